//! Which machines of a business cluster have the authorities that are trusted now.

use std::time::Duration;

use fleetwright_api::Machine;
use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::{Names, TrustDistribution, TrustQuery};

use crate::background_tasks::BackgroundTasks;
use crate::connect::{MetaAccess, PAGE, page};
use crate::messages::{api_error_message, truncated};
use crate::proofs::client_of;
use crate::thin::ThinMachine;

/// An API server that does not tell within this time is not waited for.
const WITHIN: Duration = Duration::from_secs(60);
/// The most Machines that are read.
const MOST_MACHINES: usize = 20_000;

/// What was answered, and what is being asked.
pub struct TrustQueries(pub BackgroundTasks<Option<TrustDistribution>>);

impl TrustQueries {
    /// What was answered last.
    pub fn known(&self, key: &Key) -> Option<TrustDistribution> {
        self.0.known(key, |known| known.clone()).flatten()
    }

    /// Nobody asks any more.
    pub fn forget(&self, key: &Key) {
        self.0.forget(key);
    }

    /// Asks, unless that is under way. When it is over, the cluster is woken.
    pub fn begin(&self, key: &Key, names: &Names, follow: &TrustQuery) {
        let (names, asked) = (names.clone(), follow.clone());
        let errand = async move |meta: MetaAccess, clock: Clock| {
            let behind = tokio::time::timeout(WITHIN, machines_without_trust(&meta, &names, &asked));
            let late = |_| Err(format!("listing machines timed out after {} s", WITHIN.as_secs()));
            let behind = behind.await.unwrap_or_else(late);
            TrustDistribution { at: clock.now(), of: asked.of, behind }
        };
        self.0.abort_others(key, |of| of == follow.of);
        self.0.begin(key, &follow.of, errand, |known, answer| *known = Some(answer));
    }
}

/// Machines that became Nodes with something else than that. Those that are only watched, or are being deleted, are nobody's to bring along.
async fn machines_without_trust(meta: &MetaAccess, names: &Names, follow: &TrustQuery) -> Result<Vec<String>, String> {
    let ip = follow.servers.first().ok_or("no API server is verified")?;
    let client = client_of(meta, names, ip).await.map_err(|error| truncated(&error.to_string()))?;
    let (mut after, mut behind, mut read) = (None::<String>, Vec::new(), 0);
    loop {
        let page = match page::<Machine, ThinMachine>(&client, after.as_deref()).await {
            Ok(page) => page,
            // A cluster that does not know the kind has none. It says so in plain words.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(truncated(&format!("listing machines: {}", api_error_message(&error)))),
        };
        let more = page.metadata.continue_.clone().filter(|more| !more.is_empty());
        let late = page.items.iter().filter(|machine| machine.lags(&follow.of));
        behind.extend(late.map(|machine| truncated(machine.metadata.name.as_deref().unwrap_or_default())));
        // A page that is not full counts as one that is: there can be any number of those, too.
        read += page.items.len().max(PAGE as usize);
        match more {
            // A tenant can make any number of Machines, or serve them with a server of their own.
            Some(_) if read >= MOST_MACHINES => return Err(format!("there are more than {MOST_MACHINES} Machines")),
            Some(more) => after = Some(more),
            None => return Ok(behind),
        }
    }
}
