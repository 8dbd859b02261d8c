//! An operator: several controllers in one process.

mod idle;
mod lead;
mod steps;
mod worker;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::cache::{ChangeOrigin, Fill, Filling};
use crate::client::{self, Fence};
use crate::events::Events;
use crate::leader::Lease;
use crate::metrics::Metrics;
use crate::outages::Outages;
use crate::pass::{PassContext, PassRecord};
use crate::queue::Priority;
use crate::serve::Health;
use crate::write::Writer;
use crate::{Cache, Change, Clock, Controller, Key, Options, Random, Source, View, Waker};
pub use idle::Idle;
use lead::Lead;
use worker::{ControllerQueue, Drive, Driver};

/// Timeout at a stop for passes in progress, and for unsent events after them.
const PASSES_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const EVENTS_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Called after every pass.
pub type OnPass = Arc<dyn Fn(&PassRecord) + Send + Sync>;

/// Settings of an operator.
#[derive(Clone)]
pub struct Settings {
    /// Name in lower case, such as `fleetwright-readiness`: the user agent and the reporting controller of events.
    pub name: String,
    /// Client of the API server. The kit adds fence and counting to it.
    pub client: kube::Client,
    /// Clock of all waits and timestamps.
    pub clock: Clock,
    /// Source of jitter and backoff.
    pub random: Random,
    /// The lease to hold; without one only one process may run.
    pub lease: Option<Lease>,
    /// Metrics registry of the process.
    pub metrics: Metrics,
    /// Panic when a pass makes more calls than its controller declared, or panics. For tests.
    pub strict_budgets: bool,
    /// Called after every pass. For counting.
    pub on_pass: Option<OnPass>,
}

impl Settings {
    /// Settings with the system's clock and randomness, no lease, and without strict budgets.
    pub fn new(name: &str, client: kube::Client) -> Self {
        Self {
            name: name.to_owned(),
            client,
            clock: Clock::system(),
            random: Random::system(),
            lease: None,
            metrics: Metrics::new(),
            strict_budgets: false,
            on_pass: None,
        }
    }
}

/// Caches and controllers that run together.
pub struct Operator {
    settings: Settings,
    identity: String,
    client: kube::Client,
    fence: Fence,
    events: Events,
    /// Caches by view and by the identity of the source.
    caches: HashMap<(TypeId, String), Box<dyn Any + Send + Sync>>,
    drivers: Vec<Arc<dyn Drive>>,
    /// A mutex because the operator is shared by its parts, and futures are not `Sync`.
    background: Mutex<Vec<BoxFuture<'static, ()>>>,
    idle: Idle,
    health: Health,
    outages: Outages,
}

impl Operator {
    /// An operator without caches or controllers.
    pub fn new(settings: Settings) -> Self {
        let Settings { name, client, clock, metrics, lease, .. } = &settings;
        let fence = if lease.is_some() { Fence::closed() } else { Fence::open() };
        let client = client::wrap(client.clone(), fence.clone(), clock.clone(), metrics.clone(), name);
        let identity = lease.as_ref().map_or(name, |lease| &lease.identity).clone();
        let events = Events::new(client.clone(), clock.clone(), metrics.clone(), name, &identity);
        let idle = Idle::new(clock.clone(), events.clone());
        let health = Health::new(clock.clone());
        let (caches, drivers, background) = (HashMap::new(), Vec::new(), Mutex::default());
        let outages = Outages::default();
        Self { identity, client, fence, events, caches, drivers, background, idle, health, outages, settings }
    }

    /// The client with fence and counting, for creating [`kube::Api`]s.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The fence of the lease, for clients of other servers: a task sends requests after a wait only while this process leads.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// The identity of the lease, or the operator's name without one.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The operator's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.settings.clock
    }

    /// The source of jitter.
    pub fn random(&self) -> &Random {
        &self.settings.random
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.settings.metrics
    }

    /// The publisher of Events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Reports when the operator is idle; also after [`Operator::run`] has started.
    pub fn watch_idle(&self) -> Idle {
        self.idle.clone()
    }

    /// The outages of the API server.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// State for the probes, see [`crate::serve::Endpoint`].
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Adds a cache. It fills when the operator runs.
    ///
    /// Two sources of the same view, objects and selector share one cache, with the indexes of both.
    pub fn cache<V: View>(&mut self, source: Source<V>) -> Cache<V> {
        let identity = (TypeId::of::<V>(), source.identity());
        if let Some(cache) = self.caches.get(&identity).and_then(|cache| cache.downcast_ref::<Cache<V>>()) {
            cache.add_indexes(&source);
            return cache.clone();
        }
        let cache = Cache::new(source);
        self.caches.insert(identity, Box::new(cache.clone()));
        self.health.cache(&Fill::kind(&cache), false);
        self.idle.add_cache(Arc::new(cache.clone()));
        cache
    }

    /// Adds a controller.
    pub fn controller<C: Controller>(&mut self, controller: C, options: Options) -> Triggers<'_> {
        let line = ControllerQueue::new(options, self.settings.random.clone(), self.settings.clock.clone());
        let context = PassContext {
            client: self.client.clone(),
            clock: self.settings.clock.clone(),
            fence: self.fence.clone(),
            events: self.events.clone(),
            writer: Writer::new(self.client.clone(), C::NAME),
        };
        let driver = Driver::new(
            controller,
            options,
            line.clone(),
            context,
            &self.settings,
            self.idle.clone(),
            self.health.clone(),
        );
        self.drivers.push(Arc::new(driver));
        self.idle.add_line(line.clone());
        Triggers { _operator: self, line }
    }

    /// Adds a task that runs together with the operator, leading or not. It is dropped when the operator stops.
    pub fn background(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.get_mut().unwrap_or_else(PoisonError::into_inner).push(task.boxed());
    }

    /// Runs until `stop` is ready; then finishes the passes in progress, releases the lease and returns, within seconds.
    ///
    /// All tasks of the operator belong to this future: dropping it cancels all of them at once.
    ///
    /// # Errors
    /// The operator cannot continue, and waiting would not help.
    ///
    /// # Panics
    /// If a pass panics and the settings are strict.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<(), RunError> {
        let _running = self.health.running();
        let mut tasks = JoinSet::new();
        let synced = Arc::new(Notify::new());
        let filling = Filling {
            clock: self.settings.clock.clone(),
            random: self.settings.random.clone(),
            metrics: self.settings.metrics.clone(),
            synced: synced.clone(),
            outages: self.outages.clone(),
        };
        let caches = self.idle.caches();
        for cache in &caches {
            tasks.spawn(cache.fill(filling.clone()));
        }
        tasks.spawn(self.events.clone().send());
        for task in std::mem::take(&mut self.background).into_inner().unwrap_or_else(PoisonError::into_inner) {
            tasks.spawn(async {
                task.await;
                futures::future::pending().await
            });
        }
        let lead = Lead::start(&self);
        let stopped = {
            let work = self.work(&caches, &synced, &lead);
            let mut work = pin!(work);
            let mut stop = pin!(stop.fuse());
            let stopping = self.idle.stopping();
            loop {
                tokio::select! {
                    biased;
                    // These tasks, and the leader's, end only by a panic.
                    Some(ended) = tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    },
                    lost = lead.lost() => break Err(RunError::LeaseLost(lost)),
                    () = &mut stop => { stopping.send_replace(true); }
                    () = &mut work => break Ok(()),
                }
            }
        };
        if stopped.is_ok() {
            tokio::select! {
                () = self.events.sent() => {}
                () = self.settings.clock.sleep(EVENTS_SHUTDOWN_TIMEOUT) => {}
            }
        }
        self.fence.close();
        if stopped.is_ok() {
            lead.release().await;
        }
        stopped
    }

    /// Runs passes when all caches are full, while this process leads, until the stop.
    async fn work(&self, caches: &[Arc<dyn Fill>], synced: &Notify, lead: &Lead) {
        let stopping = self.idle.stopping();
        let mut stop = stopping.subscribe();
        let ready = async {
            loop {
                let woken = synced.notified();
                let mut woken = pin!(woken);
                woken.as_mut().enable();
                let full = full(caches);
                for (kind, synced) in &full {
                    self.settings.metrics.cache_synced(kind, *synced);
                    self.health.cache(kind, *synced);
                }
                if full.values().all(|synced| *synced) {
                    break;
                }
                woken.await;
            }
            tracing::info!(operator = self.settings.name, caches = caches.len(), "caches are synced");
            caches.iter().for_each(|cache| cache.open());
            self.idle.opened();
            lead.leads().await;
            self.idle.leads();
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = ready => {}
        }
        let mut passes = JoinSet::new();
        for driver in &self.drivers {
            passes.spawn(driver.clone().drive(stop.clone()));
        }
        let mut limit = pin!(async {
            // The sender lives in `self`, so the receiver does not fail.
            let _ = stop.wait_for(|stop| *stop).await;
            self.settings.clock.sleep(PASSES_SHUTDOWN_TIMEOUT).await;
        });
        loop {
            tokio::select! {
                biased;
                ended = passes.join_next() => match ended {
                    Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Some(_) => {}
                    // Without controllers the lease still protects a background task.
                    None if !*stopping.borrow() => { limit.as_mut().await; return },
                    None => return,
                },
                () = &mut limit => {
                    tracing::warn!(operator = self.settings.name, "running passes did not end in time; cancelling them");
                    return;
                }
            }
        }
    }
}

/// Why an operator stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lease was lost: another process leads now. The process should exit and restart.
    #[error("the lease was lost: {0}")]
    LeaseLost(String),
}

/// Configures what triggers a controller.
pub struct Triggers<'a> {
    _operator: &'a mut Operator,
    line: ControllerQueue,
}

impl Triggers<'_> {
    /// A change in that cache triggers the objects that `keys` returns. It is called for every existing object when all
    /// caches are full, as if the object were new, and then for each change, in order. It may read caches, but must not block or write.
    pub fn on<V: View>(
        self,
        cache: &Cache<V>,
        keys: impl Fn(&Change<'_, V>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        let line = self.line.clone();
        cache.listen(move |change, told| {
            let priority = match told {
                ChangeOrigin::Initial => Priority::Low,
                ChangeOrigin::Update => Priority::High,
            };
            line.add(keys(change), priority);
        });
        self
    }

    /// Adds manual triggers.
    pub fn by(self, waker: &Waker) -> Self {
        let line = self.line.clone();
        waker.attach(move |key| line.add(vec![key], Priority::High));
        self
    }
}

/// Which kinds are in sync. Each cache is checked once: a cache that fills between two checks would count as full here, but would never be recorded
/// as full for the readiness probe.
fn full(caches: &[Arc<dyn Fill>]) -> BTreeMap<String, bool> {
    let mut full = BTreeMap::new();
    for cache in caches {
        // Several caches can have the same kind, with other views or selectors.
        *full.entry(cache.kind()).or_insert(true) &= cache.synced();
    }
    full
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Full from the second check on.
    #[derive(Default)]
    struct Filling(AtomicBool);

    impl Fill for Filling {
        fn fill(&self, _: super::Filling) -> BoxFuture<'static, ()> {
            Box::pin(futures::future::pending())
        }

        fn synced(&self) -> bool {
            self.0.swap(true, Ordering::AcqRel)
        }

        fn open(&self) {}

        fn kind(&self) -> String {
            "Machine".to_owned()
        }
    }

    #[test]
    fn a_cache_that_fills_while_it_is_looked_at_is_full_in_the_next_look() {
        let caches: Vec<Arc<dyn Fill>> = vec![Arc::new(Filling::default()), Arc::new(Filling(true.into()))];
        assert_eq!(full(&caches), BTreeMap::from([("Machine".to_owned(), false)]));
        assert_eq!(full(&caches), BTreeMap::from([("Machine".to_owned(), true)]));
    }
}
