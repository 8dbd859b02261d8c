//! One run of a scenario: a world, a clock, an operator that may die and be born again.

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

/// How long a run may take in real time before it has failed.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// How long it may take in virtual time. Far less than the time between deep checks, so that these do not hide a wake-up
/// that was lost.
const VIRTUAL_RUN_TIMEOUT: Duration = Duration::from_secs(1800);
/// How often the operator's runtime goes around before it counts as having nothing to do.
const YIELDS: usize = 24;
/// How long nothing at all may happen, in real time, while nobody waits for a time: then nothing ever will.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// How the time of a run passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimeMode {
    /// From there on, from timer to timer, whenever the operator waits for nothing else.
    Virtual(Timestamp),
    /// From now on, so many times as fast as on the wall, whoever does what: for worlds that do not say when they are at rest, because they have sockets. A server of the run's own
    /// tells that time, too; TLS goes by the system's.
    Accelerated(u32),
    /// As on the wall.
    Real,
}

/// How often all go around before a hurried clock is moved.
const YIELDS_PER_TICK: usize = 8;
/// How often a hurried clock is moved.
const TICK: Duration = Duration::from_millis(2);
/// How long to wait before looking again at a run whose time passes by itself.
const POLL_INTERVAL: Duration = Duration::from_millis(4);

/// What an operator is given for one life.
pub struct OperatorContext {
    /// Its way to the API server, with the trouble in between. Made in the operator's own runtime.
    pub client: Client,
    /// The scenario's time.
    pub clock: Clock,
    /// Randomness of this life.
    pub random: Random,
    /// Who it is; another one in each life.
    pub identity: String,
    /// The namespace of the run.
    pub namespace: String,
    /// Collects its passes.
    pub counting: PassCounter,
    stop: watch::Receiver<bool>,
}

impl OperatorContext {
    /// The settings of an operator with this context: strict, counted, without a lease.
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

    /// Ready when the operator is asked to stop in order.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.clone();
        async move {
            // Without a sender nobody asks any more: only dead operators see that.
            if stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

/// Says whether an operator has nothing to do.
pub type IsIdle = Box<dyn Fn() -> bool + Send + Sync>;
/// None until the operator was made.
type IdleCell = Arc<Mutex<Option<IsIdle>>>;

/// One life of an operator.
pub struct OperatorInstance {
    /// Runs it until it stops or cannot go on.
    pub run: BoxFuture<'static, Result<(), String>>,
    /// Whether it has nothing to do but wait for changes and timers.
    pub idle: IsIdle,
}

impl OperatorInstance {
    /// The life of one of the kit's operators.
    pub fn of(operator: Operator, context: &OperatorContext) -> Self {
        let (idle, stop) = (operator.watch_idle(), context.stop());
        let run = async move { operator.run(stop).await.map_err(|error| error.to_string()) };
        Self { run: Box::pin(run), idle: Box::new(move || idle.is_idle()) }
    }
}

/// Makes an operator, in its own runtime.
pub type OperatorFactory = Arc<dyn Fn(OperatorContext) -> OperatorInstance + Send + Sync>;

/// One run of a scenario.
pub struct Harness {
    env: Arc<TestEnv>,
    clock: Clock,
    /// Time passes from timer to timer.
    manual: bool,
    /// Moves the clock.
    pacing: Option<JoinHandle<()>>,
    quiet: Duration,
    outside: tempfile::TempDir,
    recorder: Recorder,
    /// What reaches the server.
    served: Recorder,
    counting: PassCounter,
    crash: Crash,
    delay: Delay,
    trouble: Option<FaultInjector>,
    factory: OperatorFactory,
    lives: AtomicUsize,
    running: Arc<Mutex<Option<Running>>>,
    /// What else must have come to rest before time goes on.
    idle_checks: Mutex<Vec<IsIdle>>,
}

struct Running {
    runtime: Runtime,
    task: JoinHandle<Result<(), String>>,
    idle: IdleCell,
    stop: watch::Sender<bool>,
}

/// What a run has to do with.
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

    /// A client that may do anything and whose calls nobody disturbs or records.
    pub fn admin(&self) -> Client {
        self.env.admin()
    }

    /// Objects of a kind in the run's namespace, for the administrator.
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

    /// A folder for the world outside of the API server.
    pub fn external_dir(&self) -> &Path {
        self.outside.path()
    }

    /// The operator's calls, of all its lives.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The operator's passes, of all its lives.
    pub fn pass_counter(&self) -> &PassCounter {
        &self.counting
    }

    /// The trouble that this run meets, if any.
    pub fn fault_injector(&self) -> Option<&FaultInjector> {
        self.trouble.as_ref()
    }

    /// Time does not go on while `at_rest` says no: for parts of the world outside that compute in threads of their own.
    pub fn require_idle(&self, at_rest: impl Fn() -> bool + Send + Sync + 'static) {
        self.idle_checks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(at_rest));
    }

    fn is_idle(&self) -> bool {
        self.idle_checks.lock().unwrap_or_else(PoisonError::into_inner).iter().all(|at_rest| at_rest())
    }

    /// How often the operator was started.
    pub fn starts(&self) -> usize {
        self.lives.load(Ordering::SeqCst)
    }

    /// Where the operator is stopped dead.
    pub fn crash(&self) -> &Crash {
        &self.crash
    }

    /// Which calls of the operator are held for a while.
    pub fn delay(&self) -> &Delay {
        &self.delay
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the operator, as somebody new.
    ///
    /// # Errors
    /// It runs already, or there is no room for its runtime.
    pub async fn start(&self) -> Result<()> {
        if self.running().is_some() {
            bail!("the operator runs already");
        }
        let life = self.lives.fetch_add(1, Ordering::SeqCst) + 1;
        // It counts on, and strikes again only if it was told to.
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
            // A client belongs to the runtime that it is made in, and must die with it.
            let client = env.client().await.map_err(|error| format!("no client: {error:#}"))?;
            drop(env);
            // From the operator outwards: its call is recorded, may be held, may be the one it dies at, meets trouble, reaches the server.
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

    /// Asks the operator to stop in order, and waits for it.
    ///
    /// # Errors
    /// It does not run, panicked, or stopped with an error.
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

    /// Stops the operator dead: whatever it does, it does not finish.
    pub async fn kill(&self) {
        let running = self.running().take();
        if let Some(running) = running {
            end(running.runtime).await;
        }
    }

    /// Waits until `reached` holds and the operator has nothing to do. Virtual time goes from timer to timer whenever the operator
    /// waits for nothing else. An operator that crashes or loses its lease is started again, as a supervisor would.
    ///
    /// # Errors
    /// It is not reached in time, or the operator panicked: with what it said, its last calls, its passes and the seed.
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
            // What was not reached is not reached before something else comes to the server; but its own controllers may do that.
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

    /// Lets virtual time pass; longer when the operator has to be started again meanwhile. Does nothing with the system's clock.
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

    /// All objects of a kind in the run's namespace by name, without what differs from run to run.
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
            // The server's own, with another certificate each time.
            if name == "kube-root-ca.crt" {
                continue;
            }
            all.insert(name, normalize::normalize(&serde_json::to_value(object)?, self.namespace()));
        }
        Ok(Value::Object(all))
    }

    /// Starts the operator again when it is dead; says whether it was.
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
            // Nobody asked it to: it lost its lease or could not go on, and is started again.
            Ok(Err(_)) => self.start().await.map(|()| true),
            Ok(Ok(())) => {
                bail!("the operator stopped although nobody asked; its last calls:\n{}", self.recorder.tail(20))
            }
            Err(panic) => bail!("the operator panicked: {panic}; its last calls:\n{}", self.recorder.tail(20)),
        }
    }

    /// Differs when the operator has done something.
    fn progress_counters(&self) -> (usize, usize, usize) {
        (self.recorder.mark(), self.counting.passes(), self.starts())
    }

    fn idle(&self) -> bool {
        let running = self.running();
        let Some(running) = running.as_ref() else { return true };
        let idle = running.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.as_ref().is_some_and(|idle| idle())
    }

    /// Returns when nothing more comes of the operator before time passes: every task of its that could go on has, no call is
    /// with the server, and for a server in other processes nothing was heard for a while.
    ///
    /// How busy the machine is must not matter: time that passes too early makes calls time out that nobody disturbed.
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

    /// What a person needs to understand a run that failed.
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
        // A runtime must not be waited for inside another.
        if let Some(running) = self.running().take() {
            running.runtime.shutdown_background();
        }
    }
}

/// Moves a clock on and on. However late it comes to that, no time is made up for, and it waits for the operator: nobody should find that his time is over
/// because the machine, or he himself, was busy.
async fn run_fast_clock(clock: Clock, times: u32, running: Arc<Mutex<Option<Running>>>) {
    loop {
        tokio::time::sleep(TICK).await;
        yield_times(YIELDS_PER_TICK).await;
        yield_operator(&running, YIELDS_PER_TICK).await;
        clock.advance(TICK * times);
    }
}

/// Returns when the operator's runtime has gone around so often, if there is one: each time some of those who can go on do, and sockets are looked at.
async fn yield_operator(running: &Mutex<Option<Running>>, times: usize) {
    let handle = {
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(|running| running.runtime.handle().clone())
    };
    if let Some(handle) = handle {
        // Cancelled with the runtime, if that ends meanwhile.
        let _ = handle.spawn(yield_times(times)).await;
    }
}

/// Lets the runtime that it is in go around so often.
async fn yield_times(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Ends a runtime and returns when none of its tasks runs any more.
async fn end(runtime: Runtime) {
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(20)));
    // It cannot be cancelled, and a panic of a task stays in the task.
    let _ = ended.await;
}

fn later(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
