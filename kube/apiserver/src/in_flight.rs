//! Limits on concurrent requests, as `--max-requests-inflight` and `--max-mutating-requests-inflight` of kube-apiserver.
//! A request beyond the limit is answered with 429 and `Retry-After`.
//!
//! Guarantees, for each kind of slot:
//! - Members of `system:masters` are answered beyond the limits, as in kube-apiserver.
//! - A quarter is reserved for operators: all other users together have three quarters, however many they are.
//! - One of these other users has at most a share. The service accounts of a namespace count as one user, because a user who may create one there
//!   may create thousands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_rbac::User;

use crate::error::ApiError;
use crate::request::RequestInfo;

/// The limits on requests in flight. Members of `system:masters` and health checks are answered beyond them, as in kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Requests that change nothing: get, list, and paths outside the resources. One user has at most half of these slots.
    pub reads: usize,
    /// Requests that change objects. One user has at most half of these slots.
    pub writes: usize,
    /// Watches, each until its end. One user has at most half of these slots: a controller of thousands of clusters needs thousands.
    pub watches: usize,
    /// Requests whose bodies are being received. They have no slot among the writes yet, because their clients decide how long that takes. One user
    /// has at most an eighth of these slots.
    pub bodies: usize,
    /// The groups of operators, for whom a quarter of all slots is kept. Tenants must not be able to create members of these groups.
    pub operators: &'static [&'static str],
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            reads: 400,
            writes: 200,
            watches: 10_000,
            bodies: 400,
            operators: &["system:serviceaccounts:kube-system", "system:serviceaccounts:fleetwright-system"],
        }
    }
}

/// Counts the requests in flight.
pub(crate) struct InFlightLimiter {
    reads: Arc<RequestPool>,
    writes: Arc<RequestPool>,
    watches: Arc<RequestPool>,
    bodies: Arc<RequestPool>,
    operators: &'static [&'static str],
}

impl InFlightLimiter {
    pub(crate) fn new(limits: InFlightLimits) -> Self {
        let InFlightLimits { reads, writes, watches, bodies, operators } = limits;
        Self {
            reads: RequestPool::new(reads, 2),
            writes: RequestPool::new(writes, 2),
            watches: RequestPool::new(watches, 2),
            bodies: RequestPool::new(bodies, 8),
            operators,
        }
    }

    /// Whether the user is an administrator or operator, whom other users must not block.
    pub(crate) fn is_privileged(&self, user: &User) -> bool {
        user.is_master() || self.operators.iter().any(|group| user.is_in(group))
    }

    /// A slot for a request without its body, to be held until the body was received.
    pub(crate) fn receive(&self, user: &User) -> Result<Option<Permit>, ApiError> {
        self.place(&self.bodies, user)
    }

    /// A slot for a request, to be held until the answer is sent; none for a request that needs none.
    pub(crate) fn take(&self, user: &User, info: &RequestInfo) -> Result<Option<Permit>, ApiError> {
        if !info.is_resource && is_health_check(&info.path) {
            return Ok(None);
        }
        let places = match info.verb {
            "watch" => &self.watches,
            "get" | "list" | "head" | "options" => &self.reads,
            _ => &self.writes,
        };
        self.place(places, user)
    }

    fn place(&self, places: &Arc<RequestPool>, user: &User) -> Result<Option<Permit>, ApiError> {
        match RequestPool::take(places, user, self.is_privileged(user)) {
            // Administrators must be able to inspect an overloaded server.
            None if !user.is_master() => {
                Err(ApiError::too_many_requests("Too many requests, please try again later.", 1))
            }
            place => Ok(place),
        }
    }

    /// The numbers of requests in flight by kind, under the names of kube-apiserver's metric.
    pub(crate) fn taken(&self) -> [(&'static str, usize); 3] {
        let taken = |places: &RequestPool| places.taken().all;
        [("readOnly", taken(&self.reads)), ("mutating", taken(&self.writes)), ("watch", taken(&self.watches))]
    }
}

/// The key of a user's limit: the service accounts of a namespace share one.
pub(crate) fn limit_key(user: &User) -> &str {
    match user.name.rsplit_once(':') {
        Some((namespace, _)) if user.name.starts_with("system:serviceaccount:") => namespace,
        _ => &user.name,
    }
}

/// The slots of one kind.
struct RequestPool {
    most: usize,
    share: usize,
    taken: Mutex<PermitCounts>,
}

#[derive(Default)]
struct PermitCounts {
    all: usize,
    /// Taken slots of users who are neither administrators nor operators.
    ordinary: usize,
    /// The same by limit key.
    by_key: HashMap<String, usize>,
}

/// A taken slot, freed when it is dropped.
pub(crate) struct Permit {
    places: Arc<RequestPool>,
    /// None for administrators and operators.
    party: Option<String>,
}

impl RequestPool {
    /// At most `most` slots, and for one user one of `parts` equal parts.
    fn new(most: usize, parts: usize) -> Arc<Self> {
        Arc::new(Self { most, share: most.div_ceil(parts), taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, PermitCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(places: &Arc<Self>, user: &User, privileged: bool) -> Option<Permit> {
        let party = (!privileged).then(|| limit_key(user).to_owned());
        let mut taken = places.taken();
        if taken.all >= places.most {
            return None;
        }
        if let Some(party) = &party {
            let own = taken.by_key.get(party).copied().unwrap_or_default();
            if own >= places.share || taken.ordinary >= places.most - places.most / 4 {
                return None;
            }
            taken.by_key.insert(party.clone(), own + 1);
            taken.ordinary += 1;
        }
        taken.all += 1;
        drop(taken);
        Some(Permit { places: places.clone(), party })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        let Some(party) = &self.party else { return };
        taken.ordinary -= 1;
        match taken.by_key.get_mut(party) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                taken.by_key.remove(party);
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

    fn user(name: &str) -> User {
        User::new(name, ["system:authenticated"])
    }

    fn code<T>(result: Result<T, ApiError>) -> Option<u16> {
        result.err().map(|error| error.code)
    }

    #[test]
    fn watches_of_one_user_leave_places_for_those_of_others() {
        let in_flight_limiter = InFlightLimiter::new(InFlightLimits { watches: 8, ..InFlightLimits::default() });
        let watch = RequestInfo::new(&Method::GET, "/api/v1/secrets", &Query::parse(Some("watch=true")));
        let read = RequestInfo::new(&Method::GET, "/api/v1/secrets", &Query::parse(None));
        assert_eq!((watch.verb, read.verb), ("watch", "list"));
        let refused = |user: &User| code(in_flight_limiter.take(user, &watch));
        let eve = user("eve");
        let mut held: Vec<_> = (0..4).map(|_| in_flight_limiter.take(&eve, &watch).unwrap()).collect();
        assert_eq!(refused(&eve), Some(429));
        assert!(in_flight_limiter.take(&eve, &read).is_ok(), "each kind has places of its own");
        // A watch that has ended frees its slot.
        held.pop();
        held.push(in_flight_limiter.take(&eve, &watch).unwrap());
        assert_eq!(refused(&eve), Some(429));
        // Administrators have no share, and are answered when all slots are taken.
        let admin = User::new("admin", ["system:masters"]);
        held.extend((0..2).map(|_| in_flight_limiter.take(&admin, &watch).unwrap()));
        held.extend((0..2).map(|_| in_flight_limiter.take(&user("bob"), &watch).unwrap()));
        assert_eq!(in_flight_limiter.taken()[2], ("watch", 8));
        assert_eq!(refused(&user("amy")), Some(429));
        assert!(in_flight_limiter.take(&admin, &watch).unwrap().is_none());
        // A refused request has not kept a slot.
        drop(held);
        assert!(in_flight_limiter.watches.taken().by_key.is_empty());
        assert_eq!(in_flight_limiter.taken()[2], ("watch", 0));
    }

    #[test]
    fn no_number_of_users_takes_the_places_of_operators_and_administrators() {
        let in_flight_limiter = InFlightLimiter::new(InFlightLimits {
            reads: 16,
            writes: 16,
            watches: 16,
            bodies: 16,
            ..InFlightLimits::default()
        });
        let path = "/api/v1/secrets";
        let watch = RequestInfo::new(&Method::GET, path, &Query::parse(Some("watch=true")));
        let read = RequestInfo::new(&Method::GET, path, &Query::parse(None));
        let write = RequestInfo::new(&Method::POST, path, &Query::parse(None));
        type Take<'a> = &'a dyn Fn(&User) -> Result<Option<Permit>, ApiError>;
        let kinds: [(&str, Take<'_>); 4] = [
            ("bodies", &|user| in_flight_limiter.receive(user)),
            ("watches", &|user| in_flight_limiter.take(user, &watch)),
            ("reads", &|user| in_flight_limiter.take(user, &read)),
            ("writes", &|user| in_flight_limiter.take(user, &write)),
        ];
        let operator = User::service_account("fleetwright-system", "fleetwright-clusters", "1");
        let admin = User::new("admin", ["system:masters"]);
        for (kind, take) in kinds {
            let mut held: Vec<_> = (0..100).filter_map(|number| take(&user(&format!("eve-{number}"))).ok()).collect();
            assert_eq!(held.len(), 12, "{kind}");
            assert_eq!(code(take(&user("bob"))), Some(429), "{kind}");
            held.extend((0..4).map(|_| take(&operator).unwrap()));
            assert_eq!(code(take(&operator)), Some(429), "{kind}: every place is taken");
            assert!(take(&admin).unwrap().is_none(), "{kind}");
        }
    }

    #[test]
    fn service_accounts_of_a_namespace_have_one_share() {
        let in_flight_limiter = InFlightLimiter::new(InFlightLimits { bodies: 16, ..InFlightLimits::default() });
        let account = |namespace: &str, name: &str| User::service_account(namespace, name, "1");
        let held: Vec<_> = ["a", "b"].map(|name| in_flight_limiter.receive(&account("tenant", name)).unwrap()).into();
        assert_eq!(code(in_flight_limiter.receive(&account("tenant", "c"))), Some(429));
        assert!(in_flight_limiter.receive(&account("other", "c")).is_ok());
        drop(held);
        assert!(in_flight_limiter.receive(&account("tenant", "c")).is_ok());
    }
}
