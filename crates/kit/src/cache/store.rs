//! What a cache holds, without any I/O: what is told by the watch, by lists and by our own writes, put in order by version.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Values;
use crate::Key;

/// What a step changed.
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
/// Two sources tell about them: the watch, in the order of versions, and the answers of our own writes, which may be
/// ahead of the watch. `seen` is how far the watch has come; an answer at or below it is no news, and what an answer told is
/// kept until the watch has come that far.
///
/// A store that follows namespaces has a watch for each of them: how far one has come says nothing of the others, and a list of one prunes
/// nothing of the others.
pub(super) struct Store<V> {
    entries: HashMap<Key, Entry<V>>,
    indexes: HashMap<&'static str, Index<V>>,
    /// Whether each namespace has a watch of its own.
    by_namespace: bool,
    /// What is known of each watch, by its namespace. One watch for all has the empty one.
    scopes: HashMap<Arc<str>, Scope>,
    /// What we deleted, and at which version, until the watch or a list says so too: until then they may still speak of them.
    deleted: HashMap<Key, u64>,
}

/// How far one watch has come.
#[derive(Default)]
struct Scope {
    /// The highest version that the watch or a list has told.
    seen: u64,
    /// Whether all that the namespace holds is known.
    complete: bool,
    /// The objects of the namespace, so that a list of it does not look at all others.
    keys: BTreeSet<Key>,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        let (entries, indexes, scopes, deleted) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        Self { entries, indexes, by_namespace: false, scopes, deleted }
    }
}

impl<V> Store<V> {
    /// With a watch for each namespace.
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

    /// How far the watch of that namespace has come.
    pub fn seen(&self, namespace: &str) -> u64 {
        self.scopes.get(self.scope_of(namespace)).map_or(0, |scope| scope.seen)
    }

    /// Whether all that the namespace holds is known: it was listed, or this process created it.
    pub fn is_complete(&self, namespace: &str) -> bool {
        self.scopes.get(self.scope_of(namespace)).is_some_and(|scope| scope.complete)
    }

    /// All that the namespace holds is known.
    pub fn completed(&mut self, namespace: &str) {
        self.scope(namespace).complete = true;
    }

    /// The namespaces of which something is known.
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

    /// All objects, as if they were new, in the order of their keys, so that a run can be repeated.
    pub fn all(&self) -> Vec<Changed<V>> {
        let new = |key: Key| Changed { old: None, new: self.get(&key), key };
        self.keys().into_iter().map(new).collect()
    }

    /// The watch of that namespace has come to that version.
    pub fn reached(&mut self, namespace: &str, version: u64) {
        let scope = self.scope(namespace);
        scope.seen = scope.seen.max(version);
    }

    /// The watch tells that an object is there, or was changed.
    pub fn applied(&mut self, key: Key, version: u64, view: V) -> Option<Changed<V>> {
        self.reached(&key.namespace, version);
        self.newer(key, version, view)
    }

    /// The watch tells that an object is gone.
    pub fn gone(&mut self, key: &Key, version: u64) -> Option<Changed<V>> {
        self.reached(&key.namespace, version);
        // An entry that is newer was created again since, by us.
        if self.entries.get(key).is_some_and(|entry| version != 0 && entry.version > version) {
            return None;
        }
        if self.deleted.get(key).is_some_and(|deleted| version == 0 || *deleted <= version) {
            self.deleted.remove(key);
        }
        self.remove(key)
    }

    /// The answer of our own write.
    pub fn written(&mut self, key: Key, version: u64, view: V, known_only: bool) -> Option<Changed<V>> {
        // The watch was faster. What it told since may be newer, or that the object is gone.
        if version <= self.seen(&key.namespace) || (known_only && !self.entries.contains_key(&key)) {
            return None;
        }
        self.newer(key, version, view)
    }

    /// Our own delete of the object at that version went well.
    pub fn deleted(&mut self, key: &Key, version: u64) -> Option<Changed<V>> {
        match self.entries.get(key) {
            // Created again since.
            Some(entry) if entry.version > version => return None,
            // The watch has told that it is gone.
            None if version <= self.seen(&key.namespace) => return None,
            _ => {}
        }
        // Answers come in any order: that of an older delete takes nothing from what a newer one told.
        let deleted = self.deleted.entry(key.clone()).or_default();
        *deleted = version.max(*deleted);
        self.remove(key)
    }

    /// A whole list of that namespace, read at that version. What it does not name is gone, unless an answer of ours is newer than the list; what it
    /// names without a view stays as it was.
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

    /// Forgets how far the watch of that namespace had come: the API server was set back, and what it tells from now on counts.
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

    /// The namespace is gone, and its watch with it: its objects are gone too.
    pub fn ended(&mut self, namespace: &str) -> Vec<Changed<V>> {
        let keys = self.keys_of(namespace);
        let changes = keys.iter().filter_map(|key| self.remove(key)).collect();
        self.deleted.retain(|key, _| *key.namespace != *namespace);
        self.scopes.remove(namespace);
        changes
    }

    /// The objects that the watch of that namespace tells of.
    fn keys_of(&self, namespace: &str) -> Vec<Key> {
        match self.by_namespace {
            true => self.scopes.get(namespace).map(|scope| scope.keys.iter().cloned().collect()).unwrap_or_default(),
            false => self.entries.keys().cloned().collect(),
        }
    }

    /// Stores what is newer than what is stored.
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
