//! The connections of a listener, and the choice of the one to close when the limit is reached.
//!
//! A full listener closes one connection for each new one, so that clients with many connections make room for clients with few:
//! - if more than a quarter of all connections are unauthenticated, the oldest one of the address with most of those;
//! - otherwise the oldest one of the user with most connections.
//!
//! Connections of administrators and operators are never closed for others. A new connection is one of the youngest and so lives long enough to
//! authenticate: by its client certificate, or with its first request.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_rbac::{AUTHENTICATED, User};
use tokio::sync::oneshot;

use crate::in_flight::limit_key;

/// The limits of a listener's clients. Each limit ends a resource that a client could otherwise hold for ever by sending slowly, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at the same time, and no more than three quarters of the files that the process may open. At the limit, another one is
    /// closed: of the address with most unauthenticated ones, or of the user with most connections.
    pub connections: usize,
    /// The time until the first request of a connection was received, without its body.
    pub first_request: Duration,
    /// The time without a request in flight. Longer than the 90 seconds after which the usual clients close theirs, so that
    /// no client loses a request to a connection that is just being closed.
    pub idle: Duration,
    /// The time for receiving the body of a request.
    pub body: Duration,
    /// The time for which a client may leave a ready answer unread. The connection is closed after it, since
    /// everything that the client requested waits in memory.
    pub unread: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            first_request: Duration::from_secs(32),
            idle: Duration::from_secs(180),
            body: Duration::from_secs(60),
            unread: Duration::from_secs(60),
        }
    }
}

/// The connections of one listener.
pub(crate) struct Connections {
    most: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    /// Unauthenticated connections by address.
    unknown: ConnectionPool,
    /// Ordinary users' connections by user.
    ordinary: ConnectionPool,
    /// Administrators' and operators' connections by user.
    privileged: ConnectionPool,
}

/// Connections of one owner, oldest first. Dropping its sender ends a connection.
type ConnectionsOfOwner = BTreeMap<u64, oneshot::Sender<Infallible>>;

/// Connections by owner.
#[derive(Default)]
struct ConnectionPool {
    size: usize,
    owners: HashMap<String, ConnectionsOfOwner>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionClass {
    Unknown,
    Ordinary,
    Privileged,
}

/// The slot of one connection, freed when it is dropped.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    id: u64,
    owner: Mutex<(ConnectionClass, String)>,
}

/// A new connection.
pub(crate) struct AcceptedConnection {
    pub(crate) slot: ConnectionSlot,
    /// Resolves when the connection must close for another one.
    pub(crate) replaced: oneshot::Receiver<Infallible>,
    /// Whether another connection was closed for this one.
    pub(crate) replaces: bool,
}

impl Connections {
    /// At most `most` connections in a process that may open `files` files. A process without free file descriptors accepts no connection at
    /// all, not even to close
    /// another one for it; so a quarter of the files is reserved, also for the other parts of the process.
    pub(crate) fn new(most: usize, files: Option<u64>) -> Arc<Self> {
        let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
        Arc::new(Self { most: most.min(files - files / 4), open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a new connection from this address; none if administrators and operators have all slots.
    pub(crate) fn enter(connections: &Arc<Self>, address: IpAddr) -> Option<AcceptedConnection> {
        let owner = (ConnectionClass::Unknown, network(address).to_string());
        let mut open = connections.open();
        let replaces = open.unknown.size + open.ordinary.size + open.privileged.size >= connections.most;
        if replaces {
            let unknown = open.unknown.size > connections.most / 4 || open.ordinary.size == 0;
            let closed = if unknown { open.unknown.close_one() } else { open.ordinary.close_one() };
            if !closed {
                return None;
            }
        }
        let (sender, replaced) = oneshot::channel();
        let id = open.next;
        open.next += 1;
        open.unknown.insert(&owner.1, id, sender);
        drop(open);
        let slot = ConnectionSlot { connections: connections.clone(), id, owner: Mutex::new(owner) };
        Some(AcceptedConnection { slot, replaced, replaces })
    }
}

/// The network of an address: a client with one IPv6 address usually has all of its /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

impl OpenConnections {
    fn pool(&mut self, class: ConnectionClass) -> &mut ConnectionPool {
        match class {
            ConnectionClass::Unknown => &mut self.unknown,
            ConnectionClass::Ordinary => &mut self.ordinary,
            ConnectionClass::Privileged => &mut self.privileged,
        }
    }
}

impl ConnectionPool {
    fn insert(&mut self, owner: &str, id: u64, sender: oneshot::Sender<Infallible>) {
        self.owners.entry(owner.to_owned()).or_default().insert(id, sender);
        self.size += 1;
    }

    fn remove(&mut self, owner: &str, id: u64) -> Option<oneshot::Sender<Infallible>> {
        let own = self.owners.get_mut(owner)?;
        let sender = own.remove(&id)?;
        if own.is_empty() {
            self.owners.remove(owner);
        }
        self.size -= 1;
        Some(sender)
    }

    /// Closes the oldest connection of the owner with most; of two such owners, the one whose connection is older.
    fn close_one(&mut self) -> bool {
        let oldest = |own: &ConnectionsOfOwner| own.keys().next().copied();
        let most = self.owners.iter().max_by_key(|&(_, own)| (own.len(), Reverse(oldest(own))));
        let Some((owner, Some(id))) = most.map(|(owner, own)| (owner.clone(), oldest(own))) else { return false };
        self.remove(&owner, id).is_some()
    }
}

impl ConnectionSlot {
    /// Assigns the connection to a user. The first identity counts; anonymous requests do not.
    pub(crate) fn belongs_to(&self, user: &User, privileged: bool) {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if owner.0 != ConnectionClass::Unknown || !user.is_in(AUTHENTICATED) {
            return;
        }
        let class = if privileged { ConnectionClass::Privileged } else { ConnectionClass::Ordinary };
        let mut open = self.connections.open();
        // None if the connection is already being closed for another one.
        if let Some(sender) = open.unknown.remove(&owner.1, self.id) {
            *owner = (class, limit_key(user).to_owned());
            open.pool(class).insert(&owner.1, self.id, sender);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let (class, owner) = self.owner.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.connections.open().pool(*class).remove(owner, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(connections: &Arc<Connections>, address: &str) -> AcceptedConnection {
        Connections::enter(connections, address.parse().unwrap()).unwrap()
    }

    /// An authenticated connection.
    fn known(connections: &Arc<Connections>, address: &str, user: &str, privileged: bool) -> AcceptedConnection {
        let accepted = enter(connections, address);
        accepted.slot.belongs_to(&User::new(user, [AUTHENTICATED]), privileged);
        accepted
    }

    fn closed(accepted: &mut AcceptedConnection) -> bool {
        accepted.replaced.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn count(accepted: &mut [AcceptedConnection]) -> usize {
        accepted.iter_mut().map(closed).filter(|closed| *closed).count()
    }

    #[test]
    fn silent_connections_make_room_for_those_of_other_addresses_and_of_users() {
        let connections = Connections::new(8, None);
        let mut users: Vec<_> = ["amy", "bob"].map(|user| known(&connections, "10.0.0.9", user, false)).into();
        let mut silent: Vec<_> = (0..6).map(|_| enter(&connections, "10.0.0.1")).collect();
        assert!(silent.iter().all(|one| !one.replaces));
        let mut other = enter(&connections, "10.0.0.2");
        assert!(other.replaces && closed(&mut silent[0]) && count(&mut silent) == 1);
        // Independent of the number of further connections from that address.
        for _ in 0..100 {
            silent.push(enter(&connections, "10.0.0.1"));
        }
        assert!(!closed(&mut other));
        assert_eq!((count(&mut users), count(&mut silent)), (0, 101));
    }

    #[test]
    fn connections_of_one_user_make_room_for_those_of_others() {
        let connections = Connections::new(8, None);
        // Behind a proxy all connections come from one address.
        let mut bob = known(&connections, "10.0.0.1", "bob", false);
        let mut eve: Vec<_> = (0..7).map(|_| known(&connections, "10.0.0.1", "eve", false)).collect();
        // Unauthenticated connections are not closed for each other while they are few.
        let mut new: Vec<_> = (0..3).map(|_| enter(&connections, "10.0.0.1")).collect();
        assert_eq!((count(&mut eve), count(&mut new)), (3, 0));
        assert!(closed(&mut eve[0]) && !closed(&mut bob));
        new.push(enter(&connections, "10.0.0.1"));
        assert!(closed(&mut new[0]) && count(&mut eve) == 3);
    }

    #[test]
    fn connections_of_administrators_and_operators_are_not_closed_for_others() {
        let connections = Connections::new(2, None);
        let mut admins: Vec<_> = ["amy", "bob"].map(|user| known(&connections, "10.0.0.1", user, true)).into();
        assert!(Connections::enter(&connections, "10.0.0.2".parse().unwrap()).is_none());
        assert_eq!(count(&mut admins), 0);
        admins.pop();
        let mut eve = known(&connections, "10.0.0.2", "eve", false);
        let anonymous = enter(&connections, "10.0.0.3");
        anonymous.slot.belongs_to(&User::anonymous(), true);
        assert!(closed(&mut eve) && count(&mut admins) == 0);
        let mut again = enter(&connections, "10.0.0.3");
        again.slot.belongs_to(&User::new("carl", [AUTHENTICATED]), true);
        drop(anonymous);
        assert!(!closed(&mut again));
        assert!(Connections::enter(&connections, "10.0.0.2".parse().unwrap()).is_none(), "places are counted once");
    }

    #[test]
    fn places_come_back() {
        let connections = Connections::new(2, None);
        for user in ["amy", "bob", "carl"] {
            let accepted = [known(&connections, "10.0.0.1", user, true), enter(&connections, "10.0.0.1")];
            assert!(accepted.iter().all(|one| !one.replaces));
        }
        let open = connections.open();
        assert_eq!((open.unknown.size, open.ordinary.size, open.privileged.size), (0, 0, 0));
        assert!(open.unknown.owners.is_empty() && open.privileged.owners.is_empty());
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let seen = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(seen("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!((seen("::ffff:10.0.0.1"), seen("10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
    }

    #[test]
    fn a_process_keeps_files_for_other_things_than_connections() {
        let most = |files| Connections::new(16_384, files).most;
        assert_eq!((most(Some(1024)), most(Some(1_000_000)), most(None)), (768, 16_384, 16_384));
    }
}
