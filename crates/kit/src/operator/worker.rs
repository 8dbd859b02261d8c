//! Runs the passes of one controller.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::steps::{self, PassResult};
use super::{Idle, OnPass, Settings};
use crate::client::{PassCalls, counted};
use crate::events::Level;
use crate::metrics::Metrics;
use crate::pass::{Ending, PassContext, PassRecord};
use crate::queue::{DequeuedKey, Priority, Queue};
use crate::serve::Health;
use crate::{Clock, Controller, Key, Options, Pass, Random, Step};

/// The queue of one controller; cheap to clone.
#[derive(Clone)]
pub(super) struct ControllerQueue {
    queue: Arc<Mutex<Queue>>,
    news: Arc<Notify>,
    clock: Clock,
}

impl ControllerQueue {
    pub fn new(options: Options, random: Random, clock: Clock) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue::new(options, random))), news: Arc::default(), clock }
    }

    pub fn add(&self, keys: Vec<Key>, priority: Priority) {
        if keys.is_empty() {
            return;
        }
        let now = self.clock.monotonic();
        let mut queue = self.queue();
        keys.iter().for_each(|key| queue.add(key, priority, now));
        drop(queue);
        self.news.notify_one();
    }

    pub fn is_idle(&self, now: Duration) -> bool {
        self.queue().is_idle(now)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A controller of any kind.
pub(super) trait Drive: Send + Sync {
    /// Runs passes until the stop, and finishes those in progress.
    fn drive(self: Arc<Self>, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()>;
}

pub(super) struct Driver<C> {
    controller: C,
    workers: usize,
    line: ControllerQueue,
    context: Arc<PassContext>,
    metrics: Metrics,
    strict: bool,
    on_pass: Option<OnPass>,
    idle: Idle,
    health: Health,
    /// The last reported error of each object.
    told: Mutex<HashMap<Key, (Step, &'static str)>>,
}

impl<C: Controller> Driver<C> {
    pub fn new(
        controller: C,
        options: Options,
        line: ControllerQueue,
        context: PassContext,
        settings: &Settings,
        idle: Idle,
        health: Health,
    ) -> Self {
        Self {
            controller,
            workers: options.workers.max(1),
            line,
            context: Arc::new(context),
            metrics: settings.metrics.clone(),
            strict: settings.strict_budgets,
            on_pass: settings.on_pass.clone(),
            idle,
            health,
            told: Mutex::default(),
        }
    }

    /// Runs one pass, and records its result in any case.
    async fn pass(self: Arc<Self>, taken: DequeuedKey) {
        let clock = &self.context.clock;
        let begin = clock.monotonic();
        let _under_way = self.health.pass(C::NAME, &taken.key);
        let pass = Pass { key: taken.key.clone(), now: clock.now(), deep: taken.deep, context: self.context.clone() };
        let span = tracing::info_span!("pass", controller = C::NAME, object = %taken.key);
        let look =
            async { counted(steps::run_steps(&self.controller, &pass, taken.agains)).await }.instrument(span.clone());
        let (looked, calls) = if self.strict {
            look.await
        } else {
            // A panic that one object causes must not stop the others.
            AssertUnwindSafe(look).catch_unwind().await.unwrap_or_else(|panic| {
                let _in = span.enter();
                tracing::error!("the pass panicked: {}", panic_message(&*panic));
                self.metrics.trouble(C::NAME, "pass", "Panicked");
                (PassResult::panicked(), PassCalls::default())
            })
        };
        let took = clock.monotonic().saturating_sub(begin);
        span.in_scope(|| {
            self.report_error(&taken.key, &looked);
            self.hold_to_budget(&taken.key, calls);
        });
        self.metrics.pass(C::NAME, looked.ending.as_str(), took);
        self.metrics.queue_wait(C::NAME, taken.waited);
        if let Some(on_pass) = &self.on_pass {
            on_pass(&PassRecord {
                controller: C::NAME,
                key: taken.key.clone(),
                deep: taken.deep,
                step: looked.step,
                reads: calls.reads,
                writes: calls.writes,
                budget: C::BUDGET,
                ending: looked.ending,
                reason: looked.trouble.as_ref().map(|trouble| trouble.reason),
                took,
            });
        }
        self.idle.passed();
        self.line.queue().end(&taken.key, looked.ended, clock.monotonic());
    }

    /// Reports an error: in the log and as an event when it changes, as a metric each time.
    fn report_error(&self, key: &Key, looked: &PassResult) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(trouble) = &looked.trouble else {
            // Only a successful pass proves that the error is gone; a repeated or fenced one proves nothing.
            if matches!(looked.ending, Ending::Done | Ending::Gone) && told.remove(key).is_some() {
                tracing::info!("recovered from the last error");
            }
            return;
        };
        self.metrics.trouble(C::NAME, trouble.step.as_str(), trouble.reason);
        if told.insert(key.clone(), (trouble.step, trouble.reason)) == Some((trouble.step, trouble.reason)) {
            tracing::debug!(step = trouble.step.as_str(), reason = trouble.reason, "{}", trouble.source);
            return;
        }
        tracing::warn!(step = trouble.step.as_str(), reason = trouble.reason, remedy = ?trouble.remedy, "{}", trouble.source);
        if let Some(about) = &looked.about {
            self.context.events.put(about, Level::Warning, trouble.reason, &trouble.source.to_string(), "");
        }
    }

    fn hold_to_budget(&self, key: &Key, calls: PassCalls) {
        let budget = C::BUDGET;
        if calls.reads <= budget.reads && calls.writes <= budget.writes {
            return;
        }
        let message = format!(
            "a pass of {} over {key} made {} reads and {} writes; its budget is {} and {}",
            C::NAME,
            calls.reads,
            calls.writes,
            budget.reads,
            budget.writes
        );
        assert!(!self.strict, "{message}");
        self.metrics.trouble(C::NAME, "pass", "CallBudgetExceeded");
        tracing::warn!("{message}");
    }

    async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut passes = JoinSet::new();
        let clock = self.context.clock.clone();
        loop {
            let stopping = *stop.borrow_and_update();
            if stopping && passes.is_empty() {
                return;
            }
            let free = !stopping && passes.len() < self.workers;
            let mut timer = None;
            if free {
                let now = clock.monotonic();
                let mut queue = self.line.queue();
                let taken = queue.take(now);
                timer = queue.next_timer().map(|due| due.saturating_sub(now));
                for priority in [Priority::High, Priority::Low] {
                    self.metrics.queue_depth(C::NAME, priority.as_str(), queue.ready_keys(priority));
                }
                drop(queue);
                if let Some(taken) = taken {
                    passes.spawn(self.clone().pass(taken));
                    continue;
                }
            }
            tokio::select! {
                Some(ended) = passes.join_next(), if !passes.is_empty() => {
                    if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
                () = self.line.news.notified(), if free => {}
                () = clock.sleep(timer.unwrap_or_default()), if timer.is_some() => {}
                changed = stop.changed(), if !stopping => if changed.is_err() { return },
            }
        }
    }
}

impl<C: Controller> Drive for Driver<C> {
    fn drive(self: Arc<Self>, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
        self.run(stop).boxed()
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
