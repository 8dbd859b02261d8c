//! Work beside the passes: tasks that ask somebody else, write down what they heard of their cluster, and wake it. No pass waits for a business cluster, and a
//! dead one costs the others nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_kit::{Clock, Key, Waker};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::connect::MetaAccess;

/// What is known of clusters, and what is being found out. Cheap to clone; nothing of it outlives the process.
pub struct BackgroundTasks<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    meta: MetaAccess,
    clock: Clock,
    waker: Waker,
    places: Semaphore,
    table: Mutex<HashMap<Key, ClusterTasks<K>>>,
}

struct ClusterTasks<K> {
    known: K,
    doing: BTreeMap<String, AbortHandle>,
}

impl<K: Default> Default for ClusterTasks<K> {
    fn default() -> Self {
        Self { known: K::default(), doing: BTreeMap::new() }
    }
}

impl<K> Drop for ClusterTasks<K> {
    fn drop(&mut self) {
        self.doing.values().for_each(AbortHandle::abort);
    }
}

impl<K> Clone for BackgroundTasks<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Default + Send + 'static> BackgroundTasks<K> {
    /// So many at the same time.
    pub fn new(meta: MetaAccess, clock: Clock, waker: Waker, places: usize) -> Self {
        let (places, table) = (Semaphore::new(places.max(1)), Mutex::default());
        Self { shared: Arc::new(Shared { meta, clock, waker, places, table }) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, ClusterTasks<K>>> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By which time is told.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// The meta cluster, for what a pass asks itself.
    pub fn meta(&self) -> MetaAccess {
        self.shared.meta.clone()
    }

    /// Looks at what is known of a cluster, if something is.
    pub fn known<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> Option<T> {
        self.table().get_mut(key).map(|entry| look(&mut entry.known))
    }

    /// The same, from now on if nothing was.
    pub fn state_or_default<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> T {
        look(&mut self.table().entry(key.clone()).or_default().known)
    }

    /// Ends what is under way for a cluster under other names.
    pub fn abort_others(&self, key: &Key, names: impl Fn(&str) -> bool) {
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
        errand: impl FnOnce(MetaAccess, Clock) -> F + Send + 'static,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use fleetwright_kit::client::{CallError, Fence};
    use kube::client::Body;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_task_that_waited_for_its_place_while_the_fence_closed_is_never_run() {
        let none =
            tower::service_fn(|_: http::Request<Body>| async { Err::<http::Response<Body>, _>(CallError::Fenced) });
        let (fence, clock) = (Fence::open(), Clock::system());
        let calls = prometheus_client::metrics::counter::Counter::default();
        let meta =
            MetaAccess { client: kube::Client::new(none, ""), calls, fence: fence.clone(), clock: clock.clone() };
        let background = BackgroundTasks::<Option<&str>>::new(meta, clock, Waker::new(), 1);
        let (first, second) = (Key::new("fleet", "first"), Key::new("fleet", "second"));
        let (go_on, told) = oneshot::channel::<()>();
        let (begun, began) = oneshot::channel();
        let waits = async move |_: MetaAccess, _: Clock| {
            begun.send(()).unwrap();
            told.await.unwrap();
            "done"
        };
        background.begin(&first, "", waits, |known, done| *known = Some(done));
        began.await.unwrap();
        let ran = Arc::new(AtomicBool::new(false));
        let own = ran.clone();
        let never = async move |_: MetaAccess, _: Clock| {
            own.store(true, Ordering::SeqCst);
            "done"
        };
        background.begin(&second, "", never, |known, done| *known = Some(done));
        fence.close();
        go_on.send(()).unwrap();
        let waiting = || background.table().get(&second).is_some_and(|entry| !entry.doing.is_empty());
        while waiting() {
            tokio::task::yield_now().await;
        }
        assert_eq!(background.known(&first, |known| *known).flatten(), Some("done"), "what ran before is heard");
        assert_eq!(background.known(&second, |known| *known).flatten(), None);
        assert!(!ran.load(Ordering::SeqCst));
        // It has left its place: when this process leads again, the same is done.
        assert_eq!(background.shared.places.available_permits(), 1);
    }
}
