//! Many controllers in one process.

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

/// For how long passes under way may go on at a stop, and what waits to be said after them.
const PASSES_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const EVENTS_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Called after every pass.
pub type OnPass = Arc<dyn Fn(&PassRecord) + Send + Sync>;

/// What an operator is made of.
#[derive(Clone)]
pub struct Settings {
    /// In lower case, such as `fleetwright-readiness`: the user agent and the reporting controller of events.
    pub name: String,
    /// How to reach the API server. The kit adds fence and counting around it.
    pub client: kube::Client,
    /// Tells the time.
    pub clock: Clock,
    /// Jitter and backoff come from it.
    pub random: Random,
    /// The lease to hold; without one there must be only one process.
    pub lease: Option<Lease>,
    /// What is counted, is counted here.
    pub metrics: Metrics,
    /// Panic when a pass makes more calls than its controller declared, or panics. For tests.
    pub strict_budgets: bool,
    /// Called after every pass. For counting.
    pub on_pass: Option<OnPass>,
}

impl Settings {
    /// The system's clock and randomness, no lease, nothing strict.
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

/// Caches and controllers, run together.
pub struct Operator {
    settings: Settings,
    identity: String,
    client: kube::Client,
    fence: Fence,
    events: Events,
    /// By view and by what the source reaches.
    caches: HashMap<(TypeId, String), Box<dyn Any + Send + Sync>>,
    drivers: Vec<Arc<dyn Drive>>,
    /// In a mutex only because the operator is shared by its parts, and futures cannot be.
    background: Mutex<Vec<BoxFuture<'static, ()>>>,
    idle: Idle,
    health: Health,
    outages: Outages,
}

impl Operator {
    /// Without caches or controllers yet.
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

    /// The client with fence and counting, for making [`kube::Api`]s.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The fence of the lease, for clients of other servers: what a task sends after a wait is sent only while we lead.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Who we are: the identity of the lease, or the operator's name without one.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The operator's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Tells the time.
    pub fn clock(&self) -> &Clock {
        &self.settings.clock
    }

    /// Where jitter comes from.
    pub fn random(&self) -> &Random {
        &self.settings.random
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.settings.metrics
    }

    /// Tells people.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Says when there is nothing to do; also after [`Operator::run`] has begun.
    pub fn watch_idle(&self) -> Idle {
        self.idle.clone()
    }

    /// When the API server did not answer.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// What the probes are answered from, see [`crate::serve::Endpoint`].
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
        let means = PassContext {
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
            means,
            &self.settings,
            self.idle.clone(),
            self.health.clone(),
        );
        self.drivers.push(Arc::new(driver));
        self.idle.add_line(line.clone());
        Triggers { _operator: self, line }
    }

    /// Adds something that goes on while the operator runs, leading or not. It is dropped when the operator stops.
    pub fn background(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.get_mut().unwrap_or_else(PoisonError::into_inner).push(task.boxed());
    }

    /// Serves until `stop` is ready; then finishes the passes under way, gives the lease back and returns, within seconds.
    ///
    /// Everything the operator does hangs below this future: dropping it stops all of it dead.
    ///
    /// # Errors
    /// When it cannot go on: nothing that waiting would mend.
    ///
    /// # Panics
    /// When a pass does, if the settings are strict.
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
                    // Nothing but a panic ends one of them, or the leader's lease.
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

    /// Runs passes until the operator is to stop: when all caches are full, and while we lead.
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
            // A receiver of a sender that lives in `self`.
            let _ = stop.wait_for(|stop| *stop).await;
            self.settings.clock.sleep(PASSES_SHUTDOWN_TIMEOUT).await;
        });
        loop {
            tokio::select! {
                biased;
                ended = passes.join_next() => match ended {
                    Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Some(_) => {}
                    // Without controllers there is still something to lead: a background task.
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

/// Why an operator ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lease was lost: another leads now. The process should end and start anew.
    #[error("the lease was lost: {0}")]
    LeaseLost(String),
}

/// Says what wakes a controller.
pub struct Triggers<'a> {
    _operator: &'a mut Operator,
    line: ControllerQueue,
}

impl Triggers<'_> {
    /// A change in that cache wakes the objects that `keys` names. It is asked first about every object there is when all
    /// caches are full, as if it were new, and then about each change, in order. It may read caches, but must not wait or write.
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

    /// What is woken by hand.
    pub fn by(self, waker: &Waker) -> Self {
        let line = self.line.clone();
        waker.attach(move |key| line.add(vec![key], Priority::High));
        self
    }
}

/// Which kinds are full. Each cache is looked at once: one that fills meanwhile would be full for us, and for ever not full for those who ask whether
/// we are ready.
fn full(caches: &[Arc<dyn Fill>]) -> BTreeMap<String, bool> {
    let mut full = BTreeMap::new();
    for cache in caches {
        // There may be several of one kind, with other views or selectors.
        *full.entry(cache.kind()).or_insert(true) &= cache.synced();
    }
    full
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Full from the second look on.
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
