//! One run of a scenario: a server, a clock, and an operator that crashes and restarts.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fleetwright_kit::{Clock, Operator, Random, Settings};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Crash, Delay, FaultInjector, PassCounter, Recorder, TestEnv, normalize};

/// The timeout of a run in real time.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// The timeout of a run in virtual time. It is far shorter than the interval of deep checks, so that these do not hide a lost
/// wake-up.
const VIRTUAL_RUN_TIMEOUT: Duration = Duration::from_secs(1800);
/// The number of yields of the operator's runtime after which it counts as idle.
const YIELDS: usize = 24;
/// The time without any progress, in real time and with no timer set, after which the run counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// The clock of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimeMode {
    /// Virtual time from this timestamp: it jumps from timer to timer while the operator waits for nothing else.
    Virtual(Timestamp),
    /// Real time, multiplied by this factor: for environments that cannot report that they are idle, because they have sockets.
    /// A server of the run's own uses the same clock; TLS uses the system's.
    Accelerated(u32),
    /// Real time.
    Real,
}

/// The number of yields before each tick of an accelerated clock.
const YIELDS_PER_TICK: usize = 8;
/// The interval between ticks of an accelerated clock.
const TICK: Duration = Duration::from_millis(2);
/// The polling interval of a run whose time passes by itself.
const POLL_INTERVAL: Duration = Duration::from_millis(4);

/// The environment of one start of an operator.
pub struct OperatorContext {
    /// The client of the API server, with the injected faults. Created in the operator's own runtime.
    pub client: Client,
    /// The clock of the scenario.
    pub clock: Clock,
    /// The random source of this start.
    pub random: Random,
    /// The lease identity; another one for each start.
    pub identity: String,
    /// The namespace of the run.
    pub namespace: String,
    /// The counter of its passes.
    pub counting: PassCounter,
    stop: watch::Receiver<bool>,
}

impl OperatorContext {
    /// Settings for an operator in this environment: strict, counted, without a lease.
    pub fn settings(&self, name: &str) -> Settings {
        let counting = self.counting.clone();
        Settings {
            clock: self.clock.clone(),
            random: self.random.clone(),
            strict_budgets: true,
            on_pass: Some(Arc::new(move |record| counting.pass(record.into()))),
            ..Settings::new(name, self.client.clone())
        }
    }

    /// Resolves when the operator must stop gracefully.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.clone();
        async move {
            // Without a sender no stop can be requested; only operators that were killed see that.
            if stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

/// A check that returns whether an operator is idle.
pub type IsIdle = Box<dyn Fn() -> bool + Send + Sync>;
/// The idle check; none until the operator was created.
type IdleCell = Arc<Mutex<Option<IsIdle>>>;

/// One start of an operator.
pub struct OperatorInstance {
    /// Runs until the operator stops or fails.
    pub run: BoxFuture<'static, Result<(), String>>,
    /// Whether the operator only waits for changes and timers.
    pub idle: IsIdle,
}

impl OperatorInstance {
    /// An instance of an operator that uses the kit.
    pub fn of(operator: Operator, context: &OperatorContext) -> Self {
        let (idle, stop) = (operator.watch_idle(), context.stop());
        let run = async move { operator.run(stop).await.map_err(|error| error.to_string()) };
        Self { run: Box::pin(run), idle: Box::new(move || idle.is_idle()) }
    }
}

/// Creates an operator, in its own runtime.
pub type OperatorFactory = Arc<dyn Fn(OperatorContext) -> OperatorInstance + Send + Sync>;

/// One run of a scenario.
pub struct Harness {
    env: Arc<TestEnv>,
    clock: Clock,
    /// Whether virtual time jumps from timer to timer.
    manual: bool,
    /// The task that advances an accelerated clock.
    pacing: Option<JoinHandle<()>>,
    quiet: Duration,
    outside: tempfile::TempDir,
    recorder: Recorder,
    /// The calls that reach the server.
    served: Recorder,
    counting: PassCounter,
    crash: Crash,
    delay: Delay,
    trouble: Option<FaultInjector>,
    factory: OperatorFactory,
    lives: AtomicUsize,
    running: Arc<Mutex<Option<Running>>>,
    /// Further parts that must be idle before virtual time advances.
    idle_checks: Mutex<Vec<IsIdle>>,
}

struct Running {
    runtime: Runtime,
    task: JoinHandle<Result<(), String>>,
    idle: IdleCell,
    stop: watch::Sender<bool>,
}

/// The inputs of a run.
pub(crate) struct Setup {
    pub(crate) env: TestEnv,
    pub(crate) clock: Clock,
    pub(crate) pace: TimeMode,
    pub(crate) quiet: Duration,
    pub(crate) crash: Crash,
    pub(crate) trouble: Option<FaultInjector>,
    pub(crate) factory: OperatorFactory,
    pub(crate) outside: tempfile::TempDir,
}

impl Harness {
    pub(crate) fn new(setup: Setup) -> Arc<Self> {
        let Setup { env, clock, pace, quiet, crash, trouble, factory, outside } = setup;
        let running = Arc::new(Mutex::new(None));
        let pacing = match pace {
            TimeMode::Accelerated(times) => Some(tokio::spawn(run_fast_clock(clock.clone(), times, running.clone()))),
            TimeMode::Virtual(_) | TimeMode::Real => None,
        };
        Arc::new(Self {
            env: Arc::new(env),
            delay: Delay::new(clock.clone()),
            clock,
            manual: matches!(pace, TimeMode::Virtual(_)),
            pacing,
            quiet,
            outside,
            recorder: Recorder::default(),
            served: Recorder::default(),
            counting: PassCounter::default(),
            crash,
            trouble,
            factory,
            lives: AtomicUsize::new(0),
            running,
            idle_checks: Mutex::default(),
        })
    }

    /// The namespace of this run.
    pub fn namespace(&self) -> &str {
        self.env.namespace()
    }

    /// A client with all rights; its calls are neither recorded nor disturbed.
    pub fn admin(&self) -> Client {
        self.env.admin()
    }

    /// An API of a kind in the run's namespace, with the administrator's rights.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.admin(), self.namespace())
    }

    /// The scenario's time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A folder for side effects outside of the API server.
    pub fn external_dir(&self) -> &Path {
        self.outside.path()
    }

    /// The calls of all starts of the operator.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The passes of all starts of the operator.
    pub fn pass_counter(&self) -> &PassCounter {
        &self.counting
    }

    /// The fault injector of this run, if any.
    pub fn fault_injector(&self) -> Option<&FaultInjector> {
        self.trouble.as_ref()
    }

    /// Stops virtual time while `at_rest` returns false: for parts that compute in threads of their own.
    pub fn require_idle(&self, at_rest: impl Fn() -> bool + Send + Sync + 'static) {
        self.idle_checks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(at_rest));
    }

    fn is_idle(&self) -> bool {
        self.idle_checks.lock().unwrap_or_else(PoisonError::into_inner).iter().all(|at_rest| at_rest())
    }

    /// The number of starts of the operator.
    pub fn starts(&self) -> usize {
        self.lives.load(Ordering::SeqCst)
    }

    /// The crash control of the operator.
    pub fn crash(&self) -> &Crash {
        &self.crash
    }

    /// The delays of the operator's calls.
    pub fn delay(&self) -> &Delay {
        &self.delay
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the operator with a new identity.
    ///
    /// # Errors
    /// The operator runs already, or its runtime cannot be created.
    pub async fn start(&self) -> Result<()> {
        if self.running().is_some() {
            bail!("the operator runs already");
        }
        let life = self.lives.fetch_add(1, Ordering::SeqCst) + 1;
        // The call count continues, and a crash happens again only if it was requested.
        let (crash, delay) = (self.crash.clone(), self.delay.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("operator-{life}"))
            .enable_all()
            .build()?;
        let (stop, stopping) = watch::channel(false);
        let idle = IdleCell::default();
        let env = self.env.clone();
        let (recorder, trouble, counting) = (self.recorder.clone(), self.trouble.clone(), self.counting.clone());
        let served = self.served.clone();
        let (clock, factory, told, namespace) =
            (self.clock.clone(), self.factory.clone(), idle.clone(), self.namespace().to_owned());
        let seed = trouble.as_ref().map_or(0, FaultInjector::seed) * 1000 + life as u64;
        let task = runtime.spawn(async move {
            // A client belongs to the runtime in which it was created, and must end with it.
            let client = env.client().await.map_err(|error| format!("no client: {error:#}"))?;
            drop(env);
            // From the operator outwards: a call is recorded, may be delayed, may crash, meets faults, and reaches the server.
            let client = served.wrap(client);
            let client = match &trouble {
                Some(trouble) => trouble.wrap(client),
                None => client,
            };
            let client = recorder.wrap(delay.wrap(crash.wrap(client)));
            let identity = format!("operator-{life}");
            let random = Random::seeded(seed);
            let life =
                factory(OperatorContext { client, clock, random, identity, namespace, counting, stop: stopping });
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(life.idle);
            life.run.await
        });
        *self.running() = Some(Running { runtime, task, idle, stop });
        Ok(())
    }

    /// Stops the operator gracefully, and waits for its end.
    ///
    /// # Errors
    /// The operator does not run, panicked, or stopped with an error.
    pub async fn stop(&self) -> Result<()> {
        let Some(mut running) = self.running().take() else { bail!("the operator does not run") };
        let _ = running.stop.send(true);
        let deadline = Instant::now() + RUN_TIMEOUT;
        let ended = loop {
            if let Ok(ended) = tokio::time::timeout(self.quiet.max(Duration::from_millis(5)), &mut running.task).await {
                break ended;
            }
            if Instant::now() > deadline {
                end(running.runtime).await;
                bail!("the operator did not stop within {RUN_TIMEOUT:?}; its last calls:\n{}", self.recorder.tail(20));
            }
            if self.manual {
                self.advance_to_next_timer();
            }
        };
        end(running.runtime).await;
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => bail!("the operator stopped with an error: {error}"),
            Err(panic) => bail!("the operator panicked: {panic}"),
        }
    }

    /// Kills the operator: running tasks do not finish.
    pub async fn kill(&self) {
        let running = self.running().take();
        if let Some(running) = running {
            end(running.runtime).await;
        }
    }

    /// Waits until `reached` holds and the operator is idle. Virtual time jumps from timer to timer whenever the operator
    /// waits for nothing else. An operator that crashes or loses its lease is restarted, as a supervisor does.
    ///
    /// # Errors
    /// The state is not reached in time, or the operator panicked: with the last failed check, the last calls, the passes and the seed.
    pub async fn settle<F, Fut>(&self, awaited: &str, reached: F) -> Result<()>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), String>> + Send,
    {
        let deadline = Instant::now() + RUN_TIMEOUT;
        let virtual_deadline = later(self.clock.now(), VIRTUAL_RUN_TIMEOUT);
        let mut alive = (self.progress_counters(), Instant::now());
        let (mut looked, mut steps, mut not_yet) = (None, 0_usize, String::new());
        loop {
            self.restart_if_stopped().await?;
            self.wait_until_quiet(deadline).await;
            // A failed check needs no repetition before a further call reaches the server; but the server's own controllers may change the state.
            let served = (self.served.mark(), self.idle());
            if looked != Some(served) || steps % 16 == 0 {
                looked = Some(served);
                not_yet = match reached().await {
                    Ok(()) if self.idle() => return Ok(()),
                    Ok(()) => "the operator is still busy".to_owned(),
                    Err(why) => why,
                };
            }
            steps += 1;
            let sign = self.progress_counters();
            if sign != alive.0 || !self.manual || self.clock.next_timer().is_some() {
                alive = (sign, Instant::now());
            }
            let dead = alive.1.elapsed() > STALL_TIMEOUT;
            if dead || Instant::now() > deadline || (self.manual && self.clock.now() > virtual_deadline) {
                bail!("{}", self.describe_failure(awaited, &not_yet));
            }
            if !self.manual {
                tokio::time::sleep(POLL_INTERVAL).await;
            } else if !self.crash.has_crashed() {
                self.advance_to_next_timer();
            }
        }
    }

    /// Lets virtual time pass; longer if the operator must be restarted meanwhile. Does nothing with the system's clock.
    ///
    /// # Errors
    /// The operator panicked.
    pub async fn run_for(&self, duration: Duration) -> Result<()> {
        let mut until = later(self.clock.now(), duration);
        loop {
            self.wait_until_quiet(Instant::now() + RUN_TIMEOUT).await;
            let attended = self.restart_if_stopped().await?;
            if attended || self.trouble.as_ref().is_some_and(FaultInjector::has_delayed_requests) {
                until = later(self.clock.now(), duration);
            }
            if attended {
                continue;
            }
            if self.clock.now() >= until || !(self.manual || self.pacing.is_some()) {
                return Ok(());
            } else if !self.manual {
                tokio::time::sleep(POLL_INTERVAL).await;
            } else {
                match self.clock.next_timer() {
                    Some(timer) if timer < until => self.advance_to_next_timer(),
                    _ => self.clock.advance(between(self.clock.now(), until)),
                }
            }
        }
    }

    /// All objects of a kind in the run's namespace by name, without the fields that differ between runs.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn snapshot<K>(&self) -> Result<Value>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize,
        K: std::fmt::Debug,
    {
        let objects = self.api::<K>().list(&Default::default()).await?;
        let mut all = serde_json::Map::new();
        for object in objects {
            let name = object.meta().name.clone().unwrap_or_default();
            // The server creates this one, with another certificate each time.
            if name == "kube-root-ca.crt" {
                continue;
            }
            all.insert(name, normalize::normalize(&serde_json::to_value(object)?, self.namespace()));
        }
        Ok(Value::Object(all))
    }

    /// Restarts the operator if it ended; returns whether it did.
    async fn restart_if_stopped(&self) -> Result<bool> {
        if self.crash.has_crashed() {
            self.kill().await;
            self.crash.reset();
            return self.start().await.map(|()| true);
        }
        let ended = {
            let mut running = self.running();
            running.take_if(|running| running.task.is_finished())
        };
        let Some(running) = ended else { return Ok(false) };
        let result = running.task.await;
        end(running.runtime).await;
        match result {
            // The operator stopped without a request: it lost its lease or failed, and is restarted.
            Ok(Err(_)) => self.start().await.map(|()| true),
            Ok(Ok(())) => {
                bail!("the operator stopped although nobody asked; its last calls:\n{}", self.recorder.tail(20))
            }
            Err(panic) => bail!("the operator panicked: {panic}; its last calls:\n{}", self.recorder.tail(20)),
        }
    }

    /// Counters that change whenever the operator makes progress.
    fn progress_counters(&self) -> (usize, usize, usize) {
        (self.recorder.mark(), self.counting.passes(), self.starts())
    }

    fn idle(&self) -> bool {
        let running = self.running();
        let Some(running) = running.as_ref() else { return true };
        let idle = running.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.as_ref().is_some_and(|idle| idle())
    }

    /// Returns when the operator makes no progress before time passes: all of its tasks wait, no call is
    /// open, and a server in another process has been silent for a while.
    ///
    /// The load of the machine must not matter: if time passes too early, undisturbed calls time out.
    async fn wait_until_quiet(&self, deadline: Instant) {
        let mut last = self.progress_counters();
        let mut since = Instant::now();
        while Instant::now() < deadline {
            if self.quiet.is_zero() {
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(self.quiet / 4).await;
            }
            yield_operator(&self.running, YIELDS).await;
            let now = self.progress_counters();
            if now != last || self.served.open() > 0 || !self.is_idle() {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= self.quiet {
                return;
            }
        }
    }

    fn advance_to_next_timer(&self) {
        if let Some(timer) = self.clock.next_timer() {
            self.clock.advance(between(self.clock.now(), timer).max(Duration::from_millis(1)));
        }
    }

    /// The description of a failed run, for its reader.
    fn describe_failure(&self, awaited: &str, not_yet: &str) -> String {
        let trouble = self.trouble.as_ref().map(|trouble| {
            let faults: Vec<_> = trouble.faults().iter().map(|(call, fault)| format!("{call}: {fault:?}")).collect();
            format!("\ntrouble, {trouble}; RIG_SEED={} runs it again:\n{}", trouble.seed(), faults.join("\n"))
        });
        let crash = self.crash.crashed_call().map(|call| format!("\nit crashed at {call}"));
        format!(
            "waited for: {awaited}\nbut: {not_yet}\nat {} after {} lives, the operator is {}, next timer {:?}{}\nlast calls:\n{}\nlast passes:\n{}{}",
            self.clock.now(),
            self.starts(),
            if self.idle() { "idle" } else { "busy" },
            self.clock.next_timer().map(|timer| timer.to_string()),
            crash.unwrap_or_default(),
            self.recorder.tail(40),
            self.counting.tail(20),
            trouble.unwrap_or_default(),
        )
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if let Some(pacing) = &self.pacing {
            pacing.abort();
        }
        // A runtime must not be shut down with a blocking wait inside another one.
        if let Some(running) = self.running().take() {
            running.runtime.shutdown_background();
        }
    }
}

/// Advances a clock continuously. It does not catch up after a delay, and it waits for the operator: no deadline should pass
/// because the machine, or the operator itself, was busy.
async fn run_fast_clock(clock: Clock, times: u32, running: Arc<Mutex<Option<Running>>>) {
    loop {
        tokio::time::sleep(TICK).await;
        yield_times(YIELDS_PER_TICK).await;
        yield_operator(&running, YIELDS_PER_TICK).await;
        clock.advance(TICK * times);
    }
}

/// Returns after this number of yields of the operator's runtime, if it runs: each lets ready tasks proceed and polls the sockets.
async fn yield_operator(running: &Mutex<Option<Running>>, times: usize) {
    let handle = {
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(|running| running.runtime.handle().clone())
    };
    if let Some(handle) = handle {
        // The task is cancelled if the runtime ends meanwhile.
        let _ = handle.spawn(yield_times(times)).await;
    }
}

/// Yields to the current runtime this number of times.
async fn yield_times(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Ends a runtime and returns when none of its tasks runs any more.
async fn end(runtime: Runtime) {
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(20)));
    // The blocking task cannot be cancelled, and a panic of a task stays in the task.
    let _ = ended.await;
}

fn later(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
