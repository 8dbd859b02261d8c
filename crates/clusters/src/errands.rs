//! Work beside the passes: tasks that ask somebody else, write down what they heard of their cluster, and wake it. No pass waits for a business cluster, and a
//! dead one costs the others nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_kit::{Clock, Key, Waker};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::connect::Meta;

/// What is known of clusters, and what is being found out. Cheap to clone; nothing of it outlives the process.
pub struct Errands<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    meta: Meta,
    clock: Clock,
    waker: Waker,
    places: Semaphore,
    table: Mutex<HashMap<Key, Entry<K>>>,
}

struct Entry<K> {
    known: K,
    doing: BTreeMap<String, AbortHandle>,
}

impl<K: Default> Default for Entry<K> {
    fn default() -> Self {
        Self { known: K::default(), doing: BTreeMap::new() }
    }
}

impl<K> Drop for Entry<K> {
    fn drop(&mut self) {
        self.doing.values().for_each(AbortHandle::abort);
    }
}

impl<K> Clone for Errands<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Default + Send + 'static> Errands<K> {
    /// So many at the same time.
    pub fn new(meta: Meta, clock: Clock, waker: Waker, places: usize) -> Self {
        let (places, table) = (Semaphore::new(places.max(1)), Mutex::default());
        Self { shared: Arc::new(Shared { meta, clock, waker, places, table }) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Entry<K>>> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By which time is told.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// The meta cluster, for what a pass asks itself.
    pub fn meta(&self) -> Meta {
        self.shared.meta.clone()
    }

    /// Looks at what is known of a cluster, if something is.
    pub fn known<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> Option<T> {
        self.table().get_mut(key).map(|entry| look(&mut entry.known))
    }

    /// The same, from now on if nothing was.
    pub fn known_from_now<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> T {
        look(&mut self.table().entry(key.clone()).or_default().known)
    }

    /// Ends what is under way for a cluster under other names.
    pub fn only(&self, key: &Key, names: impl Fn(&str) -> bool) {
        if let Some(entry) = self.table().get_mut(key) {
            entry.doing.retain(|name, task| {
                let stays = names(name);
                if !stays {
                    task.abort();
                }
                stays
            });
        }
    }

    /// Nobody asks any more.
    pub fn forget(&self, key: &Key) {
        drop(self.table().remove(key));
    }

    /// Begins, unless something of that name is under way for the cluster. What comes of it is written down, and the cluster is woken.
    pub fn begin<T: Send, F>(
        &self,
        key: &Key,
        name: &str,
        errand: impl FnOnce(Meta, Clock) -> F + Send + 'static,
        heard: impl FnOnce(&mut K, T) + Send + 'static,
    ) where
        F: Future<Output = T> + Send,
    {
        let mut table = self.table();
        let entry = table.entry(key.clone()).or_default();
        if entry.doing.contains_key(name) {
            return;
        }
        let (this, of, own) = (self.clone(), key.clone(), name.to_owned());
        let task = tokio::spawn(async move {
            let shared = &this.shared;
            let outcome = {
                let _place = shared.places.acquire().await;
                // Another may lead since: it does its own.
                if !shared.meta.leads() {
                    if let Some(entry) = this.table().get_mut(&of) {
                        entry.doing.remove(&own);
                    }
                    return;
                }
                errand(shared.meta.clone(), shared.clock.clone()).await
            };
            // Who was ended in this moment has nothing to say: another may be under way.
            if let Some(entry) = this.table().get_mut(&of)
                && entry.doing.remove(&own).is_some()
            {
                heard(&mut entry.known, outcome);
            }
            shared.waker.wake(of);
        });
        entry.doing.insert(name.to_owned(), task.abort_handle());
    }
}
