//! Runs a scenario again and again, each time disturbed in another way, and compares what comes of it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fleetwright_kit::Clock;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::stage::{Life, Outfit, Pace, Setup};
use crate::{Crash, Ground, Rates, Side, Stage, Trouble, World};

/// How many runs at the same time. They wait more than they compute.
const AT_ONCE: usize = 4;
/// How long a run goes on, in virtual time, after it has reached its end and what comes late has come.
const AFTERMATH: Duration = Duration::from_secs(45);

/// Something an operator does from beginning to end.
///
/// Expected flow: [`play`](Self::play) makes the objects, calls [`Stage::start`], and [`Stage::settle`]s after each change;
/// then [`end`](Self::end) and [`acts`](Self::acts) say what came of it. Both must be the same in every run.
pub trait Scenario: Send + Sync + 'static {
    /// Its name in messages.
    const NAME: &'static str;

    /// The kinds that the server must know.
    fn kinds(&self) -> Vec<CustomResourceDefinition>;

    /// How time passes.
    fn pace(&self) -> Pace {
        // Whole seconds, as Kubernetes keeps them, and not the time of day: nobody may confuse the two.
        Pace::FromTimerToTimer("2030-01-01T00:00:00Z".parse().unwrap_or_default())
    }

    /// Makes the operator. Called in the operator's own runtime, for each of its lives. `outside` is the folder that is the
    /// world outside.
    fn operator(&self, outfit: Outfit, outside: &std::path::Path) -> Life;

    /// Whether crashes begin with the first call. If not, [`play`](Self::play) says from where on, by `stage.crash().arm()`: what comes before
    /// is another scenario's.
    fn crashes_from_the_start(&self) -> bool {
        true
    }

    /// What happens.
    fn play(&self, stage: &Stage) -> impl Future<Output = Result<()>> + Send;

    /// What there is in the end, without what may differ; see [`Stage::snapshot`].
    fn end(&self, stage: &Stage) -> impl Future<Output = Result<Value>> + Send;

    /// What happened outside, in an order that does not depend on chance.
    fn acts(&self, stage: &Stage) -> Result<Vec<String>>;
}

/// How a run is disturbed.
#[derive(Clone, Debug)]
pub enum Disturbance {
    /// Not at all.
    None,
    /// The operator stops dead at that call.
    Crash(usize, Side),
    /// Seeded trouble, and an API server that is gone for a while, some time after the start.
    Trouble {
        /// The seed.
        seed: u64,
        /// How much.
        rates: Rates,
        /// When the server goes away and for how long.
        gone: Option<(Duration, Duration)>,
    },
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Came {
    /// The end state.
    pub end: Value,
    /// The acts.
    pub acts: Vec<String>,
}

/// What came of all runs of a scenario.
#[derive(Debug, Default)]
pub struct Verdict {
    /// How many were disturbed, as intended.
    pub disturbed: usize,
    /// How many ended before the disturbance could happen.
    pub missed: usize,
    /// How many troubles struck, by name.
    pub troubles: std::collections::BTreeMap<&'static str, usize>,
    /// How often operators were started.
    pub lives: usize,
    /// What went wrong, a text for each run.
    pub failures: Vec<String>,
}

impl Verdict {
    /// Panics with all that went wrong. For tests.
    pub fn unwrap(&self) {
        assert!(self.failures.is_empty(), "{} runs went wrong:\n\n{}", self.failures.len(), self.told());
    }

    /// The failures, the first few whole; all of them in a file that is named when they are many.
    fn told(&self) -> String {
        let all = self.failures.join("\n\n");
        if self.failures.len() <= 3 {
            return all;
        }
        let file = tempfile::Builder::new().prefix("fleetwright-rig-failures-").suffix(".txt").tempfile();
        let kept = file.and_then(|file| {
            std::fs::write(file.path(), &all)?;
            Ok(file.keep()?.1)
        });
        let place = kept.map_or_else(|error| format!("cannot be kept: {error}"), |path| path.display().to_string());
        format!("{}\n\nall of them: {place}", self.failures[..3].join("\n\n"))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let survived = (self.disturbed + self.missed).saturating_sub(self.failures.len());
        write!(f, "{survived} of {} runs came to the same end", self.disturbed + self.missed)?;
        write!(f, ", {} were not reached by their disturbance, {} lives", self.missed, self.lives)?;
        let parts: Vec<String> = self.troubles.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if parts.is_empty() { Ok(()) } else { write!(f, "; {}", parts.join(", ")) }
    }
}

/// Runs it once, in its own time.
///
/// # Errors
/// The scenario's own, with the story of the run.
pub async fn run<S: Scenario>(scenario: &Arc<S>, ground: &Ground, how: Disturbance) -> Result<(Came, Arc<Stage>)> {
    run_by(scenario, ground, how, scenario.pace()).await
}

/// Runs it once, in real time: for what never comes to rest, so that virtual time would stand still.
///
/// # Errors
/// As [`run`].
pub async fn run_in_real_time<S: Scenario>(scenario: &Arc<S>, ground: &Ground) -> Result<(Came, Arc<Stage>)> {
    run_by(scenario, ground, Disturbance::None, Pace::Real).await
}

async fn run_by<S: Scenario>(
    scenario: &Arc<S>,
    ground: &Ground,
    how: Disturbance,
    pace: Pace,
) -> Result<(Came, Arc<Stage>)> {
    let clock = match pace {
        Pace::FromTimerToTimer(start) => Clock::manual(start),
        Pace::Hurried(_) => Clock::manual(Timestamp::now()),
        Pace::Real => Clock::system(),
    };
    let hurried = Some(&clock).filter(|_| matches!(pace, Pace::Hurried(_)));
    let world = World::with_time(ground, &scenario.kinds(), hurried).await?;
    let start = clock.now();
    let (crash, trouble) = match how {
        Disturbance::None => (Crash::never(), None),
        Disturbance::Crash(call, side) => (Crash::at(call, side), None),
        Disturbance::Trouble { seed, rates, gone } => {
            let trouble = Trouble::new(seed, rates, clock.clone(), world.namespace());
            if let Some((after, lasts)) = gone {
                trouble.server_gone(start.checked_add(after)?, lasts);
            }
            (Crash::never(), Some(trouble))
        }
    };
    if !scenario.crashes_from_the_start() {
        crash.disarm();
    }
    let outside = tempfile::Builder::new().prefix("fleetwright-rig-").tempdir()?;
    let birth = {
        let (scenario, outside) = (scenario.clone(), outside.path().to_owned());
        Arc::new(move |outfit| scenario.operator(outfit, &outside))
    };
    let late = trouble.as_ref().map(Trouble::longest);
    let setup = Setup { world, clock, pace, quiet: ground.quiet(), crash, trouble, birth, outside };
    let stage = Stage::new(setup);
    let came = async {
        scenario.play(&stage).await?;
        // Where time takes its time, only what is late is waited for.
        if late.is_some() || matches!(pace, Pace::FromTimerToTimer(_)) {
            stage.linger(AFTERMATH + late.unwrap_or_default()).await?;
        }
        anyhow::Ok(Came { end: scenario.end(&stage).await?, acts: scenario.acts(&stage)? })
    };
    let came = came.await;
    stage.kill().await;
    Ok((came?, stage))
}

/// Stops the operator dead just before and just after each of its calls, starts it again, and compares the end and the acts with
/// those of an undisturbed run.
///
/// # Errors
/// The undisturbed run fails. What goes wrong in the others is in the verdict.
pub async fn crash_at_every_call<S: Scenario>(scenario: S, ground: &Ground) -> Result<Verdict> {
    let (scenario, began) = (Arc::new(scenario), Instant::now());
    let (expected, stage) = run(&scenario, ground, Disturbance::None).await.context("the undisturbed run")?;
    let (calls, once) = (stage.crash().calls(), began.elapsed());
    drop(stage);
    let runs = (0..calls).flat_map(|call| [Side::Before, Side::After].map(|side| Disturbance::Crash(call, side)));
    let verdict = compare(&scenario, ground, expected, runs.collect()).await;
    let name = format!("{} on {}", S::NAME, ground.name());
    let took = began.elapsed();
    eprintln!(
        "rig: {name}: crashed before and after each of {calls} calls: {verdict}; once in {once:.1?}, all in {took:.1?}"
    );
    Ok(verdict)
}

/// Runs it with each of the seeds, and compares the end and the acts with those of an undisturbed run. In every second run the
/// API server is gone for a minute, too.
///
/// # Errors
/// The undisturbed run fails. What goes wrong in the others is in the verdict.
pub async fn under_trouble<S: Scenario>(scenario: S, ground: &Ground, seeds: &[u64], rates: &Rates) -> Result<Verdict> {
    let scenario = Arc::new(scenario);
    let (expected, _) = run(&scenario, ground, Disturbance::None).await.context("the undisturbed run")?;
    let minute = Duration::from_secs(60);
    let runs = seeds.iter().map(|&seed| Disturbance::Trouble {
        seed,
        rates: rates.clone(),
        gone: (seed % 2 == 0).then(|| (Duration::from_millis(seed % 40 * 250), minute)),
    });
    let verdict = compare(&scenario, ground, expected, runs.collect()).await;
    eprintln!("rig: {} on {}: {} seeds: {verdict}", S::NAME, ground.name(), seeds.len());
    Ok(verdict)
}

async fn compare<S: Scenario>(scenario: &Arc<S>, ground: &Ground, expected: Came, runs: Vec<Disturbance>) -> Verdict {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let expected = Arc::new(expected);
    let mut tasks = JoinSet::new();
    for how in runs {
        let (scenario, ground, room, expected) = (scenario.clone(), ground.clone(), room.clone(), expected.clone());
        tasks.spawn(async move {
            // Never closed.
            let _turn = room.acquire().await;
            one(&scenario, &ground, &expected, how).await
        });
    }
    let mut verdict = Verdict::default();
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(one) => one.add_to(&mut verdict),
            Err(panic) => verdict.failures.push(format!("the scenario panicked: {panic}")),
        }
    }
    verdict.failures.sort();
    verdict
}

struct One {
    reached: bool,
    lives: usize,
    troubles: std::collections::BTreeMap<&'static str, usize>,
    failure: Option<String>,
}

impl One {
    fn add_to(self, verdict: &mut Verdict) {
        if self.reached {
            verdict.disturbed += 1;
        } else {
            verdict.missed += 1;
        }
        verdict.lives += self.lives;
        for (name, count) in self.troubles {
            *verdict.troubles.entry(name).or_default() += count;
        }
        verdict.failures.extend(self.failure);
    }
}

async fn one<S: Scenario>(scenario: &Arc<S>, ground: &Ground, expected: &Came, how: Disturbance) -> One {
    let name = match &how {
        Disturbance::None => "undisturbed".to_owned(),
        Disturbance::Crash(call, side) => format!("crash {side} call {call}"),
        Disturbance::Trouble { seed, .. } => format!("RIG_SEED={seed}"),
    };
    let crash = matches!(how, Disturbance::Crash(..));
    let (came, stage) = match run(scenario, ground, how).await {
        Ok(ran) => ran,
        Err(error) => {
            let failure = Some(format!("{} on {}, {name}: {error:#}", S::NAME, ground.name()));
            return One { reached: true, lives: 0, troubles: Default::default(), failure };
        }
    };
    let at = stage.crash().at_call().map(|call| format!(" ({call})")).unwrap_or_default();
    let troubles = stage.trouble().map(Trouble::counts).unwrap_or_default();
    let reached = if crash { stage.crash().at_call().is_some() } else { !troubles.is_empty() };
    let failure = differs(expected, &came).map(|how| {
        format!("{} on {}, {name}{at}: {how}\nlast calls:\n{}", S::NAME, ground.name(), stage.recorder().tail(60))
    });
    One { reached, lives: stage.lives(), troubles, failure }
}

/// How the two differ, if they do.
fn differs(expected: &Came, came: &Came) -> Option<String> {
    if came.acts != expected.acts {
        return Some(format!("the acts were {:#?}\nbut undisturbed {:#?}", came.acts, expected.acts));
    }
    if came.end != expected.end {
        return Some(format!("the end was {:#}\nbut undisturbed {:#}", came.end, expected.end));
    }
    None
}
