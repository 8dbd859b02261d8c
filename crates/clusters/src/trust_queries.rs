//! Queries which machines of a business cluster have the present trust bundle.

use std::time::Duration;

use fleetwright_api::Machine;
use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::{Names, TrustDistribution, TrustQuery};

use crate::background_tasks::BackgroundTasks;
use crate::connect::{MetaAccess, PAGE, page};
use crate::messages::{api_error_message, truncated};
use crate::proofs::client_of;
use crate::thin::ThinMachine;

/// Timeout of a query.
const WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of Machines that are read.
const MAX_MACHINES: usize = 20_000;

/// Answers, and running queries.
pub type TrustQueries = BackgroundTasks<Option<TrustDistribution>>;

impl TrustQueries {
    /// Starts a query, unless it is running, and cancels one with an older question. Its end triggers a pass of the cluster.
    pub fn start(&self, key: &Key, names: &Names, follow: &TrustQuery) {
        let (names, asked) = (names.clone(), follow.clone());
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let behind = tokio::time::timeout(WITHIN, machines_without_trust(&meta, &names, &asked));
            let late = |_| Err(format!("listing machines timed out after {} s", WITHIN.as_secs()));
            let behind = behind.await.unwrap_or_else(late);
            TrustDistribution { at: clock.now(), of: asked.of, behind }
        };
        self.ask_only(key, &follow.of, operation_future);
    }
}

/// Machines that became Nodes with another trust bundle. Machines that are only observed, or are being deleted, are not waited for.
async fn machines_without_trust(meta: &MetaAccess, names: &Names, follow: &TrustQuery) -> Result<Vec<String>, String> {
    let ip = follow.servers.first().ok_or("no API server is verified")?;
    let client = client_of(meta, names, ip).await.map_err(|error| truncated(&error.to_string()))?;
    let (mut after, mut behind, mut read) = (None::<String>, Vec::new(), 0);
    loop {
        let page = match page::<Machine, ThinMachine>(&client, after.as_deref()).await {
            Ok(page) => page,
            // A cluster without the kind has no objects of it. The API server answers that with plain text.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(truncated(&format!("listing machines: {}", api_error_message(&error)))),
        };
        let more = page.metadata.continue_.clone().filter(|more| !more.is_empty());
        let late = page.items.iter().filter(|machine| machine.lags(&follow.of));
        behind.extend(late.map(|machine| truncated(machine.metadata.name.as_deref().unwrap_or_default())));
        // A page counts as full even if it is not: a tenant can serve any number of short pages, too.
        read += page.items.len().max(PAGE as usize);
        match more {
            // A tenant can create any number of Machines, or serve them with a server of their own.
            Some(_) if read >= MAX_MACHINES => return Err(format!("there are more than {MAX_MACHINES} Machines")),
            Some(more) => after = Some(more),
            None => return Ok(behind),
        }
    }
}
