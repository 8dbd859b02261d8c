//! A cache with one list and watch for each namespace of another cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc, watch};

use super::reflector::{Filling, Watch};
use super::{Cache, Fill, View};
use crate::Key;

/// The number of namespaces that are listed at the same time.
const MAX_CONCURRENT_LISTS: usize = 32;

/// The namespaces of another cache.
pub(super) struct NamespaceSelection {
    /// Namespaces that are always watched.
    pub always: BTreeSet<Arc<str>>,
    namespaces: Box<dyn Namespaces>,
}

impl NamespaceSelection {
    pub fn new<N: View>(cache: Cache<N>, open: fn(&N) -> bool) -> Self {
        Self { always: BTreeSet::new(), namespaces: Box::new(NamespaceCache { cache, open }) }
    }

    /// Identity among other selections.
    pub fn identity(&self) -> String {
        format!("&within={}&also={:?}", self.namespaces.identity(), self.always)
    }

    /// Whether that namespace is watched, or will be.
    pub fn holds(&self, namespace: &str) -> bool {
        self.always.contains(namespace) || self.namespaces.holds(namespace)
    }

    /// All namespaces, and whether the watch of each may start.
    fn all(&self) -> BTreeMap<Arc<str>, bool> {
        let always = self.always.iter().map(|namespace| (namespace.clone(), true));
        self.namespaces.all().into_iter().chain(always).collect()
    }
}

/// A cache of namespaces, of any view.
trait Namespaces: Send + Sync {
    fn identity(&self) -> String;
    fn holds(&self, namespace: &str) -> bool;
    fn all(&self) -> Vec<(Arc<str>, bool)>;
    fn synced(&self) -> bool;
    fn changes(&self) -> watch::Receiver<()>;
}

struct NamespaceCache<N: View> {
    cache: Cache<N>,
    open: fn(&N) -> bool,
}

impl<N: View> Namespaces for NamespaceCache<N> {
    fn identity(&self) -> String {
        self.cache.inner.source.identity()
    }

    fn holds(&self, namespace: &str) -> bool {
        self.cache.get(&Key::cluster(namespace)).is_some()
    }

    fn all(&self) -> Vec<(Arc<str>, bool)> {
        let all = self.cache.store().all().into_iter();
        all.filter_map(|one| Some((one.key.name, (self.open)(&*one.new?)))).collect()
    }

    fn synced(&self) -> bool {
        self.cache.synced()
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.cache.inner.changed.subscribe()
    }
}

/// The namespace of a watch.
pub(super) struct WatchedNamespace {
    pub namespace: Arc<str>,
    /// Held during the list.
    pub lists: Arc<Semaphore>,
    /// Sender that reports once that the API server has answered a list, or has forbidden it.
    answered: Option<mpsc::UnboundedSender<Arc<str>>>,
}

impl WatchedNamespace {
    /// Reports that the API server has answered.
    pub fn answered(&mut self) {
        if let Some(answered) = self.answered.take() {
            // No receiver is left when the operator stops.
            let _ = answered.send(self.namespace.clone());
        }
    }
}

/// Fills the cache; never returns.
pub(super) async fn fill<V: View>(cache: Cache<V>, filling: Filling) {
    let Some(follow) = &cache.inner.source.follow else { return std::future::pending().await };
    let mut changes = follow.namespaces.changes();
    let lists = Arc::new(Semaphore::new(MAX_CONCURRENT_LISTS));
    let (answers, mut answered) = mpsc::unbounded_channel();
    // All in this task: once a watch is aborted, it stores nothing any more.
    let mut running = FuturesUnordered::new();
    let mut watches: HashMap<Arc<str>, AbortHandle> = HashMap::new();
    let mut have_answered: BTreeSet<Arc<str>> = BTreeSet::new();
    // The namespaces that are known when the other cache is in sync.
    let mut waited_for: Option<Vec<Arc<str>>> = None;
    loop {
        changes.borrow_and_update();
        let known = follow.namespaces.synced();
        let all = follow.all();
        // Also a namespace that was created and deleted before its watch could start.
        let known_of = cache.store().namespaces();
        for namespace in known_of.into_iter().filter(|namespace| !follow.holds(namespace)) {
            if let Some(watch) = watches.remove(&namespace) {
                watch.abort();
            }
            cache.change(|store| store.ended(&namespace));
        }
        watches.retain(|namespace, watch| {
            let stays = all.contains_key(namespace);
            if !stays {
                watch.abort();
            }
            stays
        });
        for (namespace, _) in all.iter().filter(|(_, open)| **open) {
            if !watches.contains_key(namespace) {
                let (abort, registration) = AbortHandle::new_pair();
                watches.insert(namespace.clone(), abort);
                let answered = Some(answers.clone());
                let place = WatchedNamespace { namespace: namespace.clone(), lists: lists.clone(), answered };
                let watch = Watch::new(cache.clone(), filling.clone(), Some(place));
                running.push(Abortable::new(watch.run(), registration));
            }
        }
        if known && !cache.synced() {
            let waited_for = waited_for.get_or_insert_with(|| watches.keys().cloned().collect());
            waited_for.retain(|namespace| watches.contains_key(namespace) && !have_answered.contains(namespace));
            if waited_for.is_empty() && cache.has_synced() {
                tracing::debug!(kind = Fill::kind(&cache), namespaces = watches.len(), "cache is synced");
                filling.synced.notify_waiters();
            }
        }
        tokio::select! {
            // A watch ends only by being aborted.
            Some(_) = running.next() => {}
            // The sender lives in the cache, which this future holds.
            _ = changes.changed() => {}
            Some(namespace) = answered.recv() => drop(have_answered.insert(namespace)),
        }
    }
}
