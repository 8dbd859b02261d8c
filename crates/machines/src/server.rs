//! The version of the API server that machines join.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleetwright_api::ComponentState;
use fleetwright_kit::Pass;
use fleetwright_plan::machine::KUBELET;
use fleetwright_plan::package::Rendered;
use fleetwright_plan::skew::ServerMinors;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::version::Info;

use crate::drain::ReadError;
use crate::view::MachineView;

/// Lifetime of the cached version: an API server may be upgraded under its clients.
const VERSION_TTL: Duration = Duration::from_secs(30);

/// For this long the cached version is used while the API server does not answer. An older one may be from before a rollback.
const MAX_AGE_WITHOUT_ANSWER: Duration = Duration::from_secs(300);

/// The cached version. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub struct ServerVersion {
    read: Arc<Mutex<Option<(Timestamp, ServerMinors)>>>,
}

impl ServerVersion {
    /// The minor versions of the API server, if a kubelet is to be changed on this machine; otherwise nothing is read. One read at most.
    ///
    /// # Errors
    /// When the version cannot be read: nothing is decided without it.
    pub async fn of(
        &self,
        pass: &Pass,
        machine: &MachineView,
        wanted: &[Arc<Rendered>],
    ) -> Result<Option<ServerMinors>, ReadError> {
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
        if let Some((at, minors)) = known
            && at + VERSION_TTL > pass.now()
        {
            return Ok(Some(minors));
        }
        let minors = match (pass.client().apiserver_version().await, known) {
            (Ok(info), _) => minors(&info),
            // A version from a moment ago is better than a pass that cannot continue while the API server does not answer.
            (Err(_), Some((at, minors))) if at + MAX_AGE_WITHOUT_ANSWER > pass.now() => return Ok(Some(minors)),
            (Err(error), _) => return Err(ReadError::of("the version of the API server".to_owned(), &error)),
        };
        if let Some(minors) = minors {
            *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some((pass.now(), minors));
        }
        Ok(minors)
    }
}

/// The minor versions in the answer of an API server to `/version`.
pub fn minors(info: &Info) -> Option<ServerMinors> {
    let emulates = info.emulation_major.as_deref().zip(info.emulation_minor.as_deref());
    ServerMinors::of([&info.major, &info.minor], emulates.map(|(major, minor)| [major, minor]))
}
