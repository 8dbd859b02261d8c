//! The objects of a cache, without any I/O: events of the watch, lists and answers of our own writes, ordered by resourceVersion.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Values;
use crate::Key;

/// Change of an object by one event.
#[derive(Debug)]
pub(super) struct Changed<V> {
    pub key: Key,
    pub old: Option<Arc<V>>,
    pub new: Option<Arc<V>>,
}

struct Entry<V> {
    version: u64,
    view: Arc<V>,
}

struct Index<V> {
    values: Values<V>,
    keys: HashMap<String, BTreeSet<Key>>,
}

/// Objects by key and by index.
///
/// Two sources update it: the watch, in the order of versions, and the answers of our own writes, which may be
/// ahead of the watch. `seen` is the version that the watch has reached; an answer at or below it is ignored, and an answer above it is
/// kept until the watch has reached that version.
///
/// A store by namespace has one watch for each namespace: the version of one watch does not apply to the others, and a list of one namespace prunes
/// nothing of the others.
pub(super) struct Store<V> {
    entries: HashMap<Key, Entry<V>>,
    indexes: HashMap<&'static str, Index<V>>,
    /// Whether each namespace has a watch of its own.
    by_namespace: bool,
    /// State of each watch, by its namespace. A watch of all namespaces has the empty name.
    scopes: HashMap<Arc<str>, Scope>,
    /// Objects that this process deleted, with their version, until the watch or a list has confirmed the deletion: older events may still contain
    /// them.
    deleted: HashMap<Key, u64>,
}

/// State of one watch.
#[derive(Default)]
struct Scope {
    /// Highest version that the watch or a list has delivered.
    seen: u64,
    /// Whether all objects of the namespace are known.
    complete: bool,
    /// Keys of the objects of the namespace, so that a list of it does not iterate over all others.
    keys: BTreeSet<Key>,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        let (entries, indexes, scopes, deleted) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        Self { entries, indexes, by_namespace: false, scopes, deleted }
    }
}

impl<V> Store<V> {
    /// A store with one watch for each namespace.
    pub fn by_namespace() -> Self {
        Self { by_namespace: true, ..Self::default() }
    }

    pub fn add_index(&mut self, name: &'static str, values: Values<V>) {
        let mut index = Index { values, keys: HashMap::new() };
        for (key, entry) in &self.entries {
            index.put(key, &entry.view);
        }
        self.indexes.insert(name, index);
    }

    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.entries.get(key).map(|entry| entry.view.clone())
    }

    pub fn by(&self, index: &str, value: &str) -> Vec<(Key, Arc<V>)> {
        let keys = self.index(index).keys.get(value).into_iter().flatten();
        keys.map(|key| (key.clone(), self.entries[key].view.clone())).collect()
    }

    pub fn count(&self, index: &str, value: &str) -> usize {
        self.index(index).keys.get(value).map_or(0, BTreeSet::len)
    }

    pub fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Version that the watch of that namespace has reached.
    pub fn seen(&self, namespace: &str) -> u64 {
        self.scopes.get(self.scope_of(namespace)).map_or(0, |scope| scope.seen)
    }

    /// Whether all objects of the namespace are known: it was listed, or this process created it.
    pub fn is_complete(&self, namespace: &str) -> bool {
        self.scopes.get(self.scope_of(namespace)).is_some_and(|scope| scope.complete)
    }

    /// Records that all objects of the namespace are known.
    pub fn completed(&mut self, namespace: &str) {
        self.scope(namespace).complete = true;
    }

    /// The namespaces with a scope.
    pub fn namespaces(&self) -> Vec<Arc<str>> {
        self.scopes.keys().cloned().collect()
    }

    fn scope_of<'a>(&self, namespace: &'a str) -> &'a str {
        if self.by_namespace { namespace } else { "" }
    }

    fn scope(&mut self, namespace: &str) -> &mut Scope {
        let name = self.scope_of(namespace);
        self.scopes.entry(name.into()).or_default()
    }

    /// All objects as added, sorted by key, so that a run is reproducible.
    pub fn all(&self) -> Vec<Changed<V>> {
        let new = |key: Key| Changed { old: None, new: self.get(&key), key };
        self.keys().into_iter().map(new).collect()
    }

    /// Records the version that the watch of that namespace has reached.
    pub fn reached(&mut self, namespace: &str, version: u64) {
        let scope = self.scope(namespace);
        scope.seen = scope.seen.max(version);
    }

    /// Applies a watch event of an object that was added or modified.
    pub fn applied(&mut self, key: Key, version: u64, view: V) -> Option<Changed<V>> {
        self.reached(&key.namespace, version);
        self.newer(key, version, view)
    }

    /// Applies a watch event of an object that was deleted.
    pub fn gone(&mut self, key: &Key, version: u64) -> Option<Changed<V>> {
        self.reached(&key.namespace, version);
        // An entry with a newer version was created again since, by this process.
        if self.entries.get(key).is_some_and(|entry| version != 0 && entry.version > version) {
            return None;
        }
        if self.deleted.get(key).is_some_and(|deleted| version == 0 || *deleted <= version) {
            self.deleted.remove(key);
        }
        self.remove(key)
    }

    /// Applies the answer of our own write.
    pub fn written(&mut self, key: Key, version: u64, view: V, known_only: bool) -> Option<Changed<V>> {
        // The watch was faster: it may have delivered a newer version, or the deletion of the object.
        if version <= self.seen(&key.namespace) || (known_only && !self.entries.contains_key(&key)) {
            return None;
        }
        self.newer(key, version, view)
    }

    /// Applies the successful answer of our own delete of the object at that version.
    pub fn deleted(&mut self, key: &Key, version: u64) -> Option<Changed<V>> {
        match self.entries.get(key) {
            // The object was created again since.
            Some(entry) if entry.version > version => return None,
            // The watch has delivered the deletion.
            None if version <= self.seen(&key.namespace) => return None,
            _ => {}
        }
        // Answers arrive in any order: the answer of an older delete must not lower the version of a newer one.
        let deleted = self.deleted.entry(key.clone()).or_default();
        *deleted = version.max(*deleted);
        self.remove(key)
    }

    /// Applies a complete list of that namespace, read at that version. Objects that it does not contain are removed, unless an answer of ours is
    /// newer than the list; objects that it contains without a view are kept unchanged.
    pub fn listed(&mut self, namespace: &str, version: u64, list: Vec<(Key, u64, Option<V>)>) -> Vec<Changed<V>> {
        let mut changes = Vec::new();
        let mut named = HashSet::with_capacity(list.len());
        for (key, version, view) in list {
            named.insert(key.clone());
            changes.extend(view.and_then(|view| self.newer(key, version, view)));
        }
        let vanished = |key: &Key| {
            let old = self.entries.get(key).is_some_and(|entry| entry.version <= version);
            (old && !named.contains(key)).then(|| key.clone())
        };
        let mut vanished: Vec<_> = self.keys_of(namespace).iter().filter_map(vanished).collect();
        vanished.sort_unstable();
        changes.extend(vanished.iter().filter_map(|key| self.remove(key)));
        let all = !self.by_namespace;
        let other = |key: &Key| !all && *key.namespace != *namespace;
        self.deleted.retain(|key, deleted| other(key) || named.contains(key) || *deleted > version);
        self.reached(namespace, version);
        self.completed(namespace);
        changes
    }

    /// Resets the version of the watch of that namespace: the API server was restored to an older state, and its events from now on count.
    pub fn reset_scope(&mut self, namespace: &str) {
        self.scope(namespace).seen = 0;
        let all = !self.by_namespace;
        self.deleted.retain(|key, _| !all && *key.namespace != *namespace);
        for key in self.keys_of(namespace) {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.version = 0;
            }
        }
    }

    /// Removes a deleted namespace, with its scope and its objects.
    pub fn ended(&mut self, namespace: &str) -> Vec<Changed<V>> {
        let keys = self.keys_of(namespace);
        let changes = keys.iter().filter_map(|key| self.remove(key)).collect();
        self.deleted.retain(|key, _| *key.namespace != *namespace);
        self.scopes.remove(namespace);
        changes
    }

    /// The keys of the objects in the scope of that namespace.
    fn keys_of(&self, namespace: &str) -> Vec<Key> {
        match self.by_namespace {
            true => self.scopes.get(namespace).map(|scope| scope.keys.iter().cloned().collect()).unwrap_or_default(),
            false => self.entries.keys().cloned().collect(),
        }
    }

    /// Stores an object if its version is newer than the stored one.
    fn newer(&mut self, key: Key, version: u64, view: V) -> Option<Changed<V>> {
        match self.deleted.get(&key) {
            Some(deleted) if version != 0 && version <= *deleted => return None,
            Some(_) => drop(self.deleted.remove(&key)),
            None => {}
        }
        let view = Arc::new(view);
        let old = match self.entries.entry(key.clone()) {
            MapEntry::Occupied(entry) if version != 0 && entry.get().version >= version => return None,
            MapEntry::Occupied(mut entry) => Some(entry.insert(Entry { version, view: view.clone() }).view),
            MapEntry::Vacant(entry) => {
                entry.insert(Entry { version, view: view.clone() });
                None
            }
        };
        if self.by_namespace && old.is_none() {
            self.scope(&key.namespace).keys.insert(key.clone());
        }
        for index in self.indexes.values_mut() {
            if let Some(old) = &old {
                index.take(&key, old);
            }
            index.put(&key, &view);
        }
        Some(Changed { key, old, new: Some(view) })
    }

    fn remove(&mut self, key: &Key) -> Option<Changed<V>> {
        let (key, entry) = self.entries.remove_entry(key)?;
        if let Some(scope) = self.scopes.get_mut(&key.namespace).filter(|_| self.by_namespace) {
            scope.keys.remove(&key);
        }
        self.indexes.values_mut().for_each(|index| index.take(&key, &entry.view));
        Some(Changed { key, old: Some(entry.view), new: None })
    }

    fn index(&self, name: &str) -> &Index<V> {
        self.indexes.get(name).unwrap_or_else(|| panic!("the cache has no index {name:?}: add it to its Source"))
    }
}

impl<V> Index<V> {
    fn put(&mut self, key: &Key, view: &V) {
        for value in (self.values)(key, view) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn take(&mut self, key: &Key, view: &V) {
        for value in (self.values)(key, view) {
            if let MapEntry::Occupied(mut keys) = self.keys.entry(value) {
                keys.get_mut().remove(key);
                if keys.get().is_empty() {
                    keys.remove();
                }
            }
        }
    }
}
