//! Caches of objects of the API server: one watch for each kind, reduced to the fields that are read, with indexes.

mod namespaces;
mod read;
mod reflector;
mod store;
#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::Key;
use namespaces::NamespaceSelection;
pub(crate) use reflector::{Fill, Filling};
use store::{Changed, Store};

/// The fields of an object that a cache stores.
pub trait View: Send + Sync + Debug + 'static {
    /// The decoded object. The type may omit unused fields.
    type Object: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;

    /// Extracts the used fields and drops the rest (managedFields first of all).
    fn of(object: Self::Object) -> Self;
}

/// The view that keeps whole objects, without their managedFields. For small kinds and for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct FullObject<K>(pub K);

impl<K> View for FullObject<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    type Object = K;

    fn of(mut object: K) -> Self {
        object.meta_mut().managed_fields = None;
        Self(object)
    }
}

type Values<V> = fn(&Key, &V) -> Vec<String>;

/// The source of a cache: the objects to watch and the indexes to maintain.
pub struct Source<V: View> {
    api: Api<V::Object>,
    labels: Option<String>,
    indexes: Vec<(&'static str, Values<V>)>,
    /// The namespaces with a watch each; `None` for one watch of everything that `api` covers.
    follow: Option<NamespaceSelection>,
}

impl<V: View> Source<V> {
    /// All objects that `api` covers. Create it with [`Operator::client`](crate::Operator::client), so that its calls are counted.
    pub fn new(api: Api<V::Object>) -> Self {
        Self { api, labels: None, indexes: Vec::new(), follow: None }
    }

    /// The objects in the namespaces of another cache, with one list and watch for each, in one cache: for kinds that may not be read in the whole
    /// cluster.
    ///
    /// A namespace that is not `open` is not watched, unless it was open before. When the other cache does not have the namespace any more, the watch
    /// ends and the objects are removed. The cache is in sync when each namespace that is known at the start was listed; a namespace whose list is
    /// forbidden is not waited for, so that one missing RoleBinding does not stop all others: [`Cache::covers`] tells them apart.
    pub fn within<N: View>(client: kube::Client, namespaces: &Cache<N>, open: fn(&N) -> bool) -> Self
    where
        V::Object: Resource<Scope = NamespaceResourceScope>,
    {
        Self { follow: Some(NamespaceSelection::new(namespaces.clone(), open)), ..Self::new(Api::all(client)) }
    }

    /// Adds a namespace to a source with one watch for each namespace.
    #[must_use]
    pub fn also(mut self, namespace: &str) -> Self {
        if let Some(follow) = &mut self.follow {
            follow.always.insert(namespace.into());
        }
        self
    }

    /// Selects objects with these labels.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        self.labels = Some(selector.to_owned());
        self
    }

    /// Adds an index: `values` returns the values under which an object is found.
    #[must_use]
    pub fn index(mut self, name: &'static str, values: fn(&Key, &V) -> Vec<String>) -> Self {
        self.indexes.push((name, values));
        self
    }

    /// Identity of this source among others of the same view: sources with the same identity share one cache.
    pub(crate) fn identity(&self) -> String {
        let of = self.follow.as_ref().map(NamespaceSelection::identity).unwrap_or_default();
        format!("{}?{}{of}", self.api.resource_url(), self.labels.as_deref().unwrap_or_default())
    }

    /// Whether objects of that namespace are watched.
    fn follows(&self, namespace: &str) -> bool {
        self.follow.as_ref().is_none_or(|follow| follow.holds(namespace))
    }
}

/// A change of an object in a cache.
#[derive(Debug)]
pub struct Change<'a, V> {
    /// Key of the object.
    pub key: &'a Key,
    /// Old state; `None` for a new object.
    pub old: Option<&'a Arc<V>>,
    /// New state; `None` for a deleted object.
    pub new: Option<&'a Arc<V>>,
}

/// Whether an object changed, or existed when the operator started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeOrigin {
    Initial,
    Update,
}

type Listener<V> = Box<dyn Fn(&Change<'_, V>, ChangeOrigin) + Send + Sync>;

/// The objects of one kind; cheap to clone.
///
/// Guarantees: a reader sees each object whole and never an older state after a newer one, also during a new list;
/// a write of this process is visible as soon as its answer has arrived; a listener gets every change once and in order,
/// starting when all caches of the operator are in sync.
pub struct Cache<V: View> {
    inner: Arc<Inner<V>>,
}

struct Inner<V: View> {
    source: Source<V>,
    store: RwLock<Store<V>>,
    /// Held while a change is stored and delivered, so that changes are delivered in the order in which they were stored.
    /// Not the store's own lock, because listeners read the store.
    telling: Mutex<Listeners<V>>,
    synced: AtomicBool,
    /// Notified at every change, before listeners are called: caches of objects in these namespaces follow it.
    changed: watch::Sender<()>,
}

struct Listeners<V> {
    listeners: Vec<Listener<V>>,
    open: bool,
}

impl<V: View> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<V: View> Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({}, {} objects)", self.inner.source.identity(), self.len())
    }
}

impl<V: View> Cache<V> {
    pub(crate) fn new(source: Source<V>) -> Self {
        let mut store = if source.follow.is_some() { Store::by_namespace() } else { Store::default() };
        for (name, values) in &source.indexes {
            store.add_index(name, *values);
        }
        let telling = Mutex::new(Listeners { listeners: Vec::new(), open: false });
        let synced = AtomicBool::new(false);
        let changed = watch::Sender::new(());
        Self { inner: Arc::new(Inner { source, store: RwLock::new(store), telling, synced, changed }) }
    }

    /// Adds the indexes of another source of the same objects.
    pub(crate) fn add_indexes(&self, source: &Source<V>) {
        let mut store = self.store_mut();
        for (name, values) in &source.indexes {
            store.add_index(name, *values);
        }
    }

    /// The object, if it exists.
    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.store().get(key)
    }

    /// The objects with that value in that index, sorted by key.
    ///
    /// # Panics
    /// If the source has no such index: a bug, which must not look like an empty result.
    pub fn by(&self, index: &'static str, value: &str) -> Vec<(Key, Arc<V>)> {
        self.store().by(index, value)
    }

    /// Number of objects with that value in that index.
    ///
    /// # Panics
    /// If the source has no such index.
    pub fn count(&self, index: &'static str, value: &str) -> usize {
        self.store().count(index, value)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<Key> {
        self.store().keys()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.store().len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first list is complete.
    pub fn synced(&self) -> bool {
        self.inner.synced.load(Ordering::Acquire)
    }

    /// Whether all objects of the namespace are known. For a cache with one watch for each namespace: whether that one was listed, or this process
    /// created it.
    pub fn covers(&self, namespace: &str) -> bool {
        self.inner.source.follow.is_none() || self.store().is_complete(namespace)
    }

    /// Records that this process has just created that namespace: it contains nothing that must be listed first.
    pub fn begins_empty(&self, namespace: &str) {
        if self.inner.source.follow.is_some() {
            self.store_mut().completed(namespace);
        }
    }

    /// Stores the answer of our own write, so that no later pass decides on the state before it. Ignored if the watch was faster.
    ///
    /// A cache with a label selector updates only objects that it already has: the answer does not tell whether the selector matches,
    /// and no watch event would remove an object that the watch never delivered.
    pub fn written(&self, object: V::Object) {
        let known_only = self.inner.source.labels.is_some();
        let (key, version) = (Key::of(&object), version(&object));
        // No watch event would ever remove the object.
        if !self.inner.source.follows(&key.namespace) {
            return;
        }
        self.change(|store| store.written(key, version, V::of(object), known_only).into_iter().collect());
    }

    /// Stores the answer of our own create, for an object that has the labels of the selector.
    pub(crate) fn created(&self, object: V::Object) {
        let (key, version) = (Key::of(&object), version(&object));
        if !self.inner.source.follows(&key.namespace) {
            return;
        }
        self.change(|store| store.written(key, version, V::of(object), false).into_iter().collect());
    }

    /// Applies the successful answer of our own delete of the object at that version.
    pub(crate) fn deleted(&self, key: &Key, version: u64) {
        self.change(|store| store.deleted(key, version).into_iter().collect());
    }

    /// Calls `listener` for every change, once all caches of the operator are in sync; first for each existing object.
    pub(crate) fn listen(&self, listener: impl Fn(&Change<'_, V>, ChangeOrigin) + Send + Sync + 'static) {
        self.telling().listeners.push(Box::new(listener));
    }

    /// Applies a change to the store and delivers it to the listeners.
    fn change(&self, apply: impl FnOnce(&mut Store<V>) -> Vec<Changed<V>>) {
        let telling = self.telling();
        let changes = apply(&mut self.store_mut());
        if !changes.is_empty() {
            self.inner.changed.send_replace(());
        }
        if telling.open {
            telling.notify_listeners(&changes, ChangeOrigin::Update);
        }
    }

    /// Marks the first list as complete; returns whether it was not before.
    fn has_synced(&self) -> bool {
        let news = !self.inner.synced.swap(true, Ordering::AcqRel);
        if news {
            self.inner.changed.send_replace(());
        }
        news
    }

    fn store(&self) -> RwLockReadGuard<'_, Store<V>> {
        self.inner.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn store_mut(&self) -> RwLockWriteGuard<'_, Store<V>> {
        self.inner.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn telling(&self) -> MutexGuard<'_, Listeners<V>> {
        self.inner.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Listeners<V> {
    fn notify_listeners(&self, changes: &[Changed<V>], told: ChangeOrigin) {
        for changed in changes {
            let change = Change { key: &changed.key, old: changed.old.as_ref(), new: changed.new.as_ref() };
            self.listeners.iter().for_each(|listener| listener(&change, told));
        }
    }
}

/// The resourceVersion as a number, which Kubernetes guarantees it to be; 0 if it is none.
fn version(object: &impl ResourceExt) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}
