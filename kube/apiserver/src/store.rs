//! The objects of one server, their history, and its followers.
//!
//! Objects are stored as the JSON that clients get, so that reads and watches copy no structure. One revision counts
//! all writes of a server, as etcd's does; it is the resourceVersion of the written object. Watchers have no queue: each has
//! a [`Cursor`] into the shared history of its resource, so a slow one costs nothing and delays no other, and one that
//! falls behind the history gets an error.

mod cursor;
mod history;
mod object;
mod page;

pub use cursor::{Cursor, WatchError};
pub use history::{Compacted, Event, HistoryLimits, frame};
pub use object::{Draft, Key, Object};
pub use page::Page;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use history::History;

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// No object has the key.
    Absent,
    /// The object exists, at this revision.
    Revision(u64),
}

/// A write.
#[derive(Debug)]
pub enum Change {
    /// Create or replace.
    Put(Draft),
    /// Remove. The draft is the last state, which the writer gets back; watchers see the last stored one, as from etcd:
    /// still with the finalizer that the last update removed.
    Delete(Draft),
}

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// An object with the key exists.
    #[error("{} exists", .0.key)]
    Exists(Arc<Object>),
    /// No object has the key.
    #[error("no such object")]
    Missing,
    /// The object is at another revision.
    #[error("{} is at revision {}", .0.key, .0.revision)]
    Conflict(Arc<Object>),
}

/// The store of one server. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: HistoryLimits,
    state: RwLock<State>,
    wake: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    revision: u64,
    compacted: u64,
    tables: HashMap<Arc<str>, Table>,
    /// The revision at which a resource was dropped: a watch of the old one must not continue with a new one.
    dropped: HashMap<Arc<str>, u64>,
    incarnations: u64,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Arc<Object>>,
    history: History,
    /// The revision of the last change.
    changed: u64,
    /// Distinguishes a resource from an earlier one of the same name.
    incarnation: u64,
    wake: watch::Sender<u64>,
    /// The history for its followers when it is dropped.
    last: Arc<OnceLock<History>>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(HistoryLimits::default())
    }
}

impl Store {
    /// An empty store at revision 1, where etcd starts too.
    pub fn new(limits: HistoryLimits) -> Self {
        let state =
            State { revision: 1, compacted: 0, tables: HashMap::new(), dropped: HashMap::new(), incarnations: 0 };
        Self { inner: Arc::new(Inner { limits, state: RwLock::new(state), wake: watch::Sender::new(1) }) }
    }

    /// An empty store that continues after a revision, without a history.
    pub fn starting_at(limits: HistoryLimits, revision: u64) -> Self {
        let store = Self::new(limits);
        {
            let mut state = store.inner.write();
            state.revision = revision.max(1);
            state.compacted = state.revision;
        }
        store.inner.wake.send_replace(revision);
        store
    }

    /// A store with these objects of other stores, without a history. The objects are shared, not copied.
    pub fn holding(limits: HistoryLimits, objects: &[(Arc<str>, Arc<Object>)]) -> Self {
        let newest = objects.iter().map(|(_, object)| object.revision).max().unwrap_or_default();
        let store = Self::starting_at(limits, newest);
        let mut state = store.inner.write();
        for (resource, object) in objects {
            let table = state.table(resource);
            table.changed = table.changed.max(object.revision);
            table.objects.insert(object.key.clone(), object.clone());
        }
        drop(state);
        store
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.inner.read().revision
    }

    /// The revision of the last change of a resource; 0 when it never changed.
    pub fn resource_revision(&self, resource: &str) -> u64 {
        self.inner.read().tables.get(resource).map_or(0, |table| table.changed)
    }

    /// The present state of an object.
    pub fn get(&self, resource: &str, key: &Key) -> Option<Arc<Object>> {
        self.inner.read().tables.get(resource)?.objects.get(key).cloned()
    }

    /// The number of objects of a resource.
    pub fn len(&self, resource: &str) -> usize {
        self.inner.read().tables.get(resource).map_or(0, |table| table.objects.len())
    }

    /// Whether a resource has no objects.
    pub fn is_empty(&self, resource: &str) -> bool {
        self.len(resource) == 0
    }

    /// The resources that have objects, in the order of their names.
    pub fn resources(&self) -> Vec<Arc<str>> {
        let state = self.inner.read();
        let mut names: Vec<_> =
            state.tables.iter().filter(|(_, table)| !table.objects.is_empty()).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Writes one object, if the precondition holds, and increments the revision.
    ///
    /// This is the only place where objects change. A log on disk belongs here, between the check and the change,
    /// under the lock: its content is then always a prefix of what clients saw.
    pub fn commit(
        &self,
        resource: &str,
        key: &Key,
        expect: Precondition,
        change: Change,
    ) -> Result<Arc<Object>, CommitError> {
        let mut guard = self.inner.write();
        let state = &mut *guard;
        let revision = state.revision + 1;
        let prev = state.tables.get(resource).and_then(|table| table.objects.get(key)).cloned();
        check(expect, prev.as_ref())?;

        let table = state.table(resource);
        let (draft, deletes) = match change {
            Change::Put(draft) => (draft, false),
            Change::Delete(draft) => (draft, true),
        };
        let (key, version) = table.interned(key, draft.api_version());
        let object = Arc::new(draft.seal(key, revision, version));
        let now = if deletes {
            table.objects.remove(&object.key);
            None
        } else {
            table.objects.insert(object.key.clone(), object.clone());
            Some(object.clone())
        };
        let event = Event::new(revision, prev, now);
        table.changed = revision;
        table.history.push(Arc::new(event), &self.inner.limits);
        table.wake.send_replace(revision);
        state.revision = revision;
        drop(guard);
        self.inner.wake.send_replace(revision);
        Ok(object)
    }

    /// Drops a resource: its objects, its history and, after they got its last changes, its watchers. Its instances should have been deleted before.
    pub fn drop_resource(&self, resource: &str) {
        let mut state = self.inner.write();
        let revision = state.revision;
        if let Some((name, table)) = state.tables.remove_entry(resource) {
            // Followers that have not polled since then still get its last changes.
            let _ = table.last.set(table.history);
            state.dropped.insert(name, revision);
        }
    }

    /// Drops the history up to a revision, as etcd's compaction does.
    pub fn compact(&self, revision: u64) {
        let mut state = self.inner.write();
        let revision = revision.min(state.revision);
        state.compacted = state.compacted.max(revision);
        for table in state.tables.values_mut() {
            table.history.compact(revision);
        }
    }

    /// Drops expired history of resources without writes. To be called periodically.
    pub fn trim(&self) {
        for table in self.inner.write().tables.values_mut() {
            table.history.trim(&self.inner.limits);
        }
    }
}

impl Inner {
    // A poisoned lock is taken over: no code that may panic runs between the first and the last change under it.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn table(&mut self, resource: &str) -> &mut Table {
        let floor = self.floor(resource);
        self.tables.entry(resource.into()).or_insert_with(|| {
            self.incarnations += 1;
            Table {
                objects: BTreeMap::new(),
                history: History::starting_after(floor),
                changed: 0,
                incarnation: self.incarnations,
                wake: watch::Sender::new(0),
                last: Arc::default(),
            }
        })
    }

    /// The oldest revision from which a resource without a table can be followed.
    fn floor(&self, resource: &str) -> u64 {
        self.compacted.max(self.dropped.get(resource).copied().unwrap_or(0))
    }
}

impl Table {
    /// The key and the apiVersion, which share their text with an equal neighbour.
    fn interned(&self, key: &Key, version: &Arc<str>) -> (Key, Arc<str>) {
        let same_key = self.objects.get_key_value(key).map(|(known, _)| known.clone());
        let neighbour = self.objects.range(Key { namespace: key.namespace.clone(), name: "".into() }..).next();
        let namespace = neighbour
            .map(|(known, _)| &known.namespace)
            .filter(|namespace| **namespace == key.namespace)
            .unwrap_or(&key.namespace);
        let key = same_key.unwrap_or_else(|| Key { namespace: namespace.clone(), name: key.name.clone() });
        let version = neighbour
            .or_else(|| self.objects.last_key_value())
            .map(|(_, object)| &object.api_version)
            .filter(|known| *known == version)
            .unwrap_or(version);
        (key, version.clone())
    }
}

fn check(expect: Precondition, present: Option<&Arc<Object>>) -> Result<(), CommitError> {
    match (expect, present) {
        (Precondition::Absent, Some(object)) => Err(CommitError::Exists(object.clone())),
        (Precondition::Revision(_), None) => Err(CommitError::Missing),
        (Precondition::Revision(revision), Some(object)) if object.revision != revision => {
            Err(CommitError::Conflict(object.clone()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
