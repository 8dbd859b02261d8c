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
    /// Watches, each for as long as it lives. One user has at most half of these places: an operator of thousands of clusters needs thousands.
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
    watchers: Arc<Places>,
    bodies: Arc<Places>,
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
        Self {
            reads: Kind::new(reads),
            writes: Kind::new(writes),
            watches: Kind::new(watches),
            watchers: Places::new(watches, 2),
            bodies: Places::new(bodies, 4),
        }
    }

    /// A place for a request whose body is still to come, to be held until the body was received. Members of `system:masters` need none.
    pub(crate) fn receive(&self, user: &User) -> Result<Option<Place>, ApiError> {
        if user.is_master() {
            return Ok(None);
        }
        Places::take(&self.bodies, &user.name).map(Some).ok_or_else(later)
    }

    /// A seat for a request, to be held until the request is answered; none for a request that needs none.
    pub(crate) fn take(&self, user: &User, info: &RequestInfo) -> Result<Option<Seat>, ApiError> {
        if !info.is_resource && is_health_check(&info.path) {
            return Ok(None);
        }
        let kind = match info.verb {
            "watch" => &self.watches,
            "get" | "list" | "head" | "options" => &self.reads,
            _ => &self.writes,
        };
        // Watches stay as long as their clients like: one user must not take every place.
        let place = match info.verb {
            "watch" if !user.is_master() => Some(Places::take(&self.watchers, &user.name).ok_or_else(later)?),
            _ => None,
        };
        match kind.free.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(Seat { _permit: permit, _place: place })),
            // Administrators must be able to look at an overloaded server.
            Err(_) if user.is_master() => Ok(None),
            Err(_) => Err(later()),
        }
    }

    /// The number of requests in flight by their kind, with the names that kube-apiserver's metric has for them.
    pub(crate) fn taken(&self) -> [(&'static str, usize); 3] {
        [("readOnly", self.reads.taken()), ("mutating", self.writes.taken()), ("watch", self.watches.taken())]
    }
}

fn later() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

/// What a request in flight has, until it is dropped.
pub(crate) struct Seat {
    _permit: OwnedSemaphorePermit,
    _place: Option<Place>,
}

/// Counts what is in flight by user: bodies that are being received, or watches. One user has at most a share of the places.
struct Places {
    most: usize,
    share: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// One of them, until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    user: String,
}

impl Places {
    /// So many, of which one user has at most one part of that many.
    fn new(most: usize, parts: usize) -> Arc<Self> {
        Arc::new(Self { most, share: most.div_ceil(parts), taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(places: &Arc<Self>, user: &str) -> Option<Place> {
        let mut taken = places.taken();
        let own = taken.get(user).copied().unwrap_or_default();
        if own >= places.share || taken.values().sum::<usize>() >= places.most {
            return None;
        }
        taken.insert(user.to_owned(), own + 1);
        drop(taken);
        Some(Place { places: places.clone(), user: user.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::Query;

    #[test]
    fn watches_of_one_user_leave_places_for_those_of_others() {
        let seats = Seats::new(InFlight { watches: 8, ..InFlight::default() });
        let watch = RequestInfo::new(&Method::GET, "/api/v1/secrets", &Query::parse(Some("watch=true")));
        let read = RequestInfo::new(&Method::GET, "/api/v1/secrets", &Query::parse(None));
        assert_eq!((watch.verb, read.verb), ("watch", "list"));
        let user = |name: &str| User::new(name, ["system:authenticated"]);
        let refused = |user: &User| seats.take(user, &watch).err().map(|error| error.code);
        let eve = user("eve");
        let mut held: Vec<_> = (0..4).map(|_| seats.take(&eve, &watch).unwrap()).collect();
        assert_eq!(refused(&eve), Some(429));
        assert!(seats.take(&eve, &read).is_ok(), "what is no watch has no share");
        // A watch that has ended gives its place back.
        held.pop();
        held.push(seats.take(&eve, &watch).unwrap());
        assert_eq!(refused(&eve), Some(429));
        // Administrators have no share, and are answered when every place is taken.
        let admin = User::new("admin", ["system:masters"]);
        held.extend((0..2).map(|_| seats.take(&admin, &watch).unwrap()));
        held.extend((0..2).map(|_| seats.take(&user("bob"), &watch).unwrap()));
        assert_eq!(seats.taken()[2], ("watch", 8));
        assert_eq!(refused(&user("amy")), Some(429));
        assert!(seats.take(&admin, &watch).unwrap().is_none());
        // Who was refused has kept no place.
        drop(held);
        assert!(seats.watchers.taken().is_empty());
        assert_eq!(seats.taken()[2], ("watch", 0));
    }
}
