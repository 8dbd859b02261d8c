//! Work outside the passes: tasks that send requests to other servers, store the results by cluster, and trigger a pass. No pass waits for a business
//! cluster, and an unreachable one costs the others nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_kit::{Clock, Key, Waker};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::connect::MetaAccess;

/// Results by cluster, and running tasks. Cheap to clone; in memory only.
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
    /// Maximum number of concurrent tasks.
    pub fn new(meta: MetaAccess, clock: Clock, waker: Waker, places: usize) -> Self {
        let (places, table) = (Semaphore::new(places.max(1)), Mutex::default());
        Self { shared: Arc::new(Shared { meta, clock, waker, places, table }) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, ClusterTasks<K>>> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock of the tasks.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Access to the meta cluster, for requests of a pass itself.
    pub fn meta(&self) -> MetaAccess {
        self.shared.meta.clone()
    }

    /// Reads the results of a cluster, if there are any.
    pub fn known<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> Option<T> {
        self.table().get_mut(key).map(|entry| look(&mut entry.known))
    }

    /// Changes the results of a cluster, starting with the default.
    pub fn state_or_default<T>(&self, key: &Key, look: impl FnOnce(&mut K) -> T) -> T {
        look(&mut self.table().entry(key.clone()).or_default().known)
    }

    /// Cancels the tasks of a cluster with other names.
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

    /// Drops the results of a cluster and cancels its tasks.
    pub fn forget(&self, key: &Key) {
        drop(self.table().remove(key));
    }

    /// Starts a task, unless one of that name is running for the cluster. Its result is stored, and a pass of the cluster is triggered.
    pub fn begin<T: Send, F>(
        &self,
        key: &Key,
        name: &str,
        operation_future: impl FnOnce(MetaAccess, Clock) -> F + Send + 'static,
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
                // Another process may lead by now: it runs its own task.
                if !shared.meta.leads() {
                    if let Some(entry) = this.table().get_mut(&of) {
                        entry.doing.remove(&own);
                    }
                    return;
                }
                operation_future(shared.meta.clone(), shared.clock.clone()).await
            };
            // A task that was cancelled at this moment must not store its result: another may be running.
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

/// Tasks whose result for a cluster is one answer, the last one.
impl<T: Clone + Send + 'static> BackgroundTasks<Option<T>> {
    /// The last answer.
    pub fn answer(&self, key: &Key) -> Option<T> {
        self.known(key, |answer| answer.clone()).flatten()
    }

    /// Starts the task that answers a question, unless it is running, and cancels those of the cluster with other questions.
    pub fn ask_only<F>(
        &self,
        key: &Key,
        question: &str,
        operation_future: impl FnOnce(MetaAccess, Clock) -> F + Send + 'static,
    ) where
        F: Future<Output = T> + Send,
    {
        self.abort_others(key, |name| name == question);
        self.begin(key, question, operation_future, |known, answer| *known = Some(answer));
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
        // The task has released its permit: when this process leads again, the task runs again.
        assert_eq!(background.shared.places.available_permits(), 1);
    }
}
