//! The most requests that a server works on at the same time, as `--max-requests-inflight` and `--max-mutating-requests-inflight` limit them
//! in kube-apiserver. A request beyond the limit is answered with 429 and `Retry-After`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Requests whose bodies are being received. They have no seat among the writes yet, because their clients decide how long that takes. One user
    /// has at most a quarter of these places.
    pub bodies: usize,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { reads: 400, writes: 200, watches: 10_000, bodies: 400 }
    }
}

/// Counts the requests in flight.
pub(crate) struct Seats {
    reads: Kind,
    writes: Kind,
    watches: Kind,
    bodies: Arc<Bodies>,
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
        let InFlight { reads, writes, watches, bodies } = limits;
        let bodies = Arc::new(Bodies { most: bodies, share: bodies.div_ceil(4), taken: Mutex::default() });
        Self { reads: Kind::new(reads), writes: Kind::new(writes), watches: Kind::new(watches), bodies }
    }

    /// A place for a request whose body is still to come, to be held until the body was received. Members of `system:masters` need none.
    pub(crate) fn receive(&self, user: &User) -> Result<Option<BodyPlace>, ApiError> {
        if user.is_master() {
            return Ok(None);
        }
        match Bodies::take(&self.bodies, &user.name) {
            Some(place) => Ok(Some(place)),
            None => Err(ApiError::too_many_requests("Too many requests, please try again later.", 1)),
        }
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

/// Counts the bodies that are being received, by user.
struct Bodies {
    most: usize,
    share: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// One of them, until it is dropped.
pub(crate) struct BodyPlace {
    bodies: Arc<Bodies>,
    user: String,
}

impl Bodies {
    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(bodies: &Arc<Self>, user: &str) -> Option<BodyPlace> {
        let mut taken = bodies.taken();
        let own = taken.get(user).copied().unwrap_or_default();
        if own >= bodies.share || taken.values().sum::<usize>() >= bodies.most {
            return None;
        }
        taken.insert(user.to_owned(), own + 1);
        drop(taken);
        Some(BodyPlace { bodies: bodies.clone(), user: user.to_owned() })
    }
}

impl Drop for BodyPlace {
    fn drop(&mut self) {
        let mut taken = self.bodies.taken();
        match taken.get_mut(&self.user) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                taken.remove(&self.user);
            }
        }
    }
}

fn is_health_check(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("livez" | "readyz" | "healthz"))
}
