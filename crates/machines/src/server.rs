//! The version of the API server that machines join.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleetwright_api::ComponentState;
use fleetwright_kit::Pass;
use fleetwright_plan::machine::KUBELET;
use fleetwright_plan::package::Rendered;
use fleetwright_plan::skew::{self, Minor};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::version::Info;

use crate::drain::ReadError;
use crate::view::MachineView;

/// Lifetime of the cached version: an API server may be upgraded under its clients.
const VERSION_TTL: Duration = Duration::from_secs(30);

/// The cached version. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub struct ServerVersion {
    read: Arc<Mutex<Option<(Timestamp, Minor)>>>,
}

impl ServerVersion {
    /// The minor version of the API server, if a kubelet is to be changed on this machine; otherwise nothing is read. One read at most.
    ///
    /// # Errors
    /// When the version cannot be read: nothing is decided without it.
    pub async fn of(
        &self,
        pass: &Pass,
        machine: &MachineView,
        wanted: &[Arc<Rendered>],
    ) -> Result<Option<Minor>, ReadError> {
        let Some(kubelet) = wanted.iter().find(|one| one.package.component == KUBELET) else { return Ok(None) };
        let components = machine.0.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
        let settled = components.iter().any(|entry| {
            entry.component == KUBELET
                && entry.state == ComponentState::Ready
                && entry.observed.as_deref() == Some(kubelet.package.version.as_str())
        });
        if settled {
            return Ok(None);
        }
        let known = *self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, minor)) = known
            && at + VERSION_TTL > pass.now()
        {
            return Ok(Some(minor));
        }
        let minor = match (pass.client().apiserver_version().await, known) {
            (Ok(told), _) => minor(&told),
            // A version from a moment ago is better than a pass that cannot continue while the API server does not answer.
            (Err(_), Some((_, minor))) => return Ok(Some(minor)),
            (Err(error), None) => return Err(ReadError::of("the version of the API server".to_owned(), &error)),
        };
        if let Some(minor) = minor {
            *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some((pass.now(), minor));
        }
        Ok(minor)
    }
}

fn minor(told: &Info) -> Option<Minor> {
    let emulates = told.emulation_major.as_deref().zip(told.emulation_minor.as_deref());
    skew::server([&told.major, &told.minor], emulates.map(|(major, minor)| [major, minor]))
}
