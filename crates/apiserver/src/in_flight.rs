//! The most requests that a server works on at the same time, as `--max-requests-inflight` and `--max-mutating-requests-inflight` limit them
//! in kube-apiserver. A request beyond the limit is answered with 429 and `Retry-After`.

use std::sync::Arc;

use fleetwright_rbac::User;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;
use crate::request::RequestInfo;

/// The limits on requests in flight. Members of `system:masters` and health checks are answered beyond them, as in kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Requests that change nothing: get, list, and paths outside the resources.
    pub reads: usize,
    /// Requests that change objects.
    pub writes: usize,
    /// Watches, each for as long as it lives.
    pub watches: usize,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { reads: 400, writes: 200, watches: 10_000 }
    }
}

/// Counts the requests in flight.
pub(crate) struct Seats {
    reads: Kind,
    writes: Kind,
    watches: Kind,
}

struct Kind {
    most: usize,
    free: Arc<Semaphore>,
}

impl Kind {
    fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { most, free: Arc::new(Semaphore::new(most)) }
    }

    fn taken(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }
}

impl Seats {
    pub(crate) fn new(limits: InFlight) -> Self {
        let InFlight { reads, writes, watches } = limits;
        Self { reads: Kind::new(reads), writes: Kind::new(writes), watches: Kind::new(watches) }
    }

    /// A seat for a request, to be held until the request is answered; none for a request that needs none.
    pub(crate) fn take(&self, user: &User, info: &RequestInfo) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if !info.is_resource && is_health_check(&info.path) {
            return Ok(None);
        }
        let kind = match info.verb {
            "watch" => &self.watches,
            "get" | "list" | "head" | "options" => &self.reads,
            _ => &self.writes,
        };
        match kind.free.clone().try_acquire_owned() {
            Ok(seat) => Ok(Some(seat)),
            // Administrators must be able to look at an overloaded server.
            Err(_) if user.is_master() => Ok(None),
            Err(_) => Err(ApiError::too_many_requests("Too many requests, please try again later.", 1)),
        }
    }

    /// The number of requests in flight by their kind, with the names that kube-apiserver's metric has for them.
    pub(crate) fn taken(&self) -> [(&'static str, usize); 3] {
        [("readOnly", self.reads.taken()), ("mutating", self.writes.taken()), ("watch", self.watches.taken())]
    }
}

fn is_health_check(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("livez" | "readyz" | "healthz"))
}
