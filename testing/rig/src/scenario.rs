//! Runs a scenario repeatedly with another disturbance each time, and compares the results.

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

use crate::harness::{OperatorContext, OperatorInstance, Setup, TimeMode};
use crate::{Crash, FaultInjector, FaultRates, Harness, Side, TestEnv, TestServer};

/// The number of concurrent runs. Runs wait more than they compute.
const AT_ONCE: usize = 4;
/// The virtual time for which a run continues after it has reached its end and all delayed calls have arrived.
const OBSERVED_AFTER_END: Duration = Duration::from_secs(45);

/// One complete task of an operator.
///
/// Expected flow: [`perform`](Self::perform) creates the objects, calls [`Harness::start`], and [`Harness::settle`]s after each change;
/// then [`final_state`](Self::final_state) and [`side_effects`](Self::side_effects) return the result. Both must be the same in every run.
pub trait Scenario: Send + Sync + 'static {
    /// The name of the scenario in messages.
    const NAME: &'static str;

    /// The kinds that the server must have.
    fn kinds(&self) -> Vec<CustomResourceDefinition>;

    /// The clock of the runs.
    fn time_mode(&self) -> TimeMode {
        // Whole seconds, as Kubernetes stores them, and far from the present time, so that the two are not confused.
        TimeMode::Virtual("2030-01-01T00:00:00Z".parse().unwrap_or_default())
    }

    /// Creates the operator. Called in the operator's own runtime, for each start. `outside` is the folder for side effects
    /// outside of the API server.
    fn operator(&self, context: OperatorContext, outside: &std::path::Path) -> OperatorInstance;

    /// Whether crashes start with the first call. If not, [`perform`](Self::perform) starts them with `harness.crash().arm()`: another scenario
    /// covers the calls before.
    fn crashes_from_the_start(&self) -> bool {
        true
    }

    /// Performs the scenario.
    fn perform(&self, harness: &Harness) -> impl Future<Output = Result<()>> + Send;

    /// The final objects, without the fields that may differ; see [`Harness::snapshot`].
    fn final_state(&self, harness: &Harness) -> impl Future<Output = Result<Value>> + Send;

    /// The side effects outside of the API server, in a deterministic order.
    fn side_effects(&self, harness: &Harness) -> Result<Vec<String>>;
}

/// The disturbance of a run.
#[derive(Clone, Debug)]
pub enum Disturbance {
    /// No disturbance.
    None,
    /// A crash of the operator at this call.
    Crash(usize, Side),
    /// Seeded faults, and an outage of the API server, some time after the start.
    Faults {
        seed: u64,
        /// The rates of the faults.
        rates: FaultRates,
        /// The start and the duration of the outage.
        gone: Option<(Duration, Duration)>,
    },
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// The final state.
    pub end: Value,
    pub side_effects: Vec<String>,
}

/// The results of all runs of a scenario.
#[derive(Debug, Default)]
pub struct ScenarioReport {
    /// The number of runs that were disturbed as intended.
    pub disturbed: usize,
    /// The number of runs that ended before the disturbance.
    pub missed: usize,
    /// The number of faults by name.
    pub troubles: std::collections::BTreeMap<&'static str, usize>,
    /// The number of operator starts.
    pub starts: usize,
    /// The failures, a text for each run.
    pub failures: Vec<String>,
}

impl ScenarioReport {
    /// Panics with all failures. For tests.
    pub fn unwrap(&self) {
        assert!(self.failures.is_empty(), "{} runs went wrong:\n\n{}", self.failures.len(), self.format_failures());
    }

    /// The failures, the first few in full; if there are many, all of them are in a file that is named.
    fn format_failures(&self) -> String {
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

impl fmt::Display for ScenarioReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let survived = (self.disturbed + self.missed).saturating_sub(self.failures.len());
        write!(f, "{survived} of {} runs came to the same end", self.disturbed + self.missed)?;
        write!(f, ", {} were not reached by their disturbance, {} lives", self.missed, self.starts)?;
        let parts: Vec<String> = self.troubles.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if parts.is_empty() { Ok(()) } else { write!(f, "; {}", parts.join(", ")) }
    }
}

/// Runs the scenario once, with its own clock.
///
/// # Errors
/// The scenario's own error, with the description of the run.
pub async fn run<S: Scenario>(
    scenario: &Arc<S>,
    test_server: &TestServer,
    how: Disturbance,
) -> Result<(RunResult, Arc<Harness>)> {
    run_by(scenario, test_server, how, scenario.time_mode()).await
}

/// Runs the scenario once, in real time: for scenarios that are never idle, so that virtual time would not advance.
///
/// # Errors
/// As [`run`].
pub async fn run_in_real_time<S: Scenario>(
    scenario: &Arc<S>,
    test_server: &TestServer,
) -> Result<(RunResult, Arc<Harness>)> {
    run_by(scenario, test_server, Disturbance::None, TimeMode::Real).await
}

async fn run_by<S: Scenario>(
    scenario: &Arc<S>,
    test_server: &TestServer,
    how: Disturbance,
    pace: TimeMode,
) -> Result<(RunResult, Arc<Harness>)> {
    let clock = match pace {
        TimeMode::Virtual(start) => Clock::manual(start),
        TimeMode::Accelerated(_) => Clock::manual(Timestamp::now()),
        TimeMode::Real => Clock::system(),
    };
    let hurried = Some(&clock).filter(|_| matches!(pace, TimeMode::Accelerated(_)));
    let env = TestEnv::with_time(test_server, &scenario.kinds(), hurried).await?;
    let start = clock.now();
    let (crash, trouble) = match how {
        Disturbance::None => (Crash::never(), None),
        Disturbance::Crash(call, side) => (Crash::at(call, side), None),
        Disturbance::Faults { seed, rates, gone } => {
            let trouble = FaultInjector::new(seed, rates, clock.clone(), env.namespace());
            if let Some((after, lasts)) = gone {
                trouble.start_outage(start.checked_add(after)?, lasts);
            }
            (Crash::never(), Some(trouble))
        }
    };
    if !scenario.crashes_from_the_start() {
        crash.disarm();
    }
    let outside = tempfile::Builder::new().prefix("fleetwright-rig-").tempdir()?;
    let factory = {
        let (scenario, outside) = (scenario.clone(), outside.path().to_owned());
        Arc::new(move |context| scenario.operator(context, &outside))
    };
    let late = trouble.as_ref().map(FaultInjector::max_delay);
    let setup = Setup { env, clock, pace, quiet: test_server.quiet(), crash, trouble, factory, outside };
    let harness = Harness::new(setup);
    let result = async {
        scenario.perform(&harness).await?;
        // In real time, wait only for delayed requests.
        if late.is_some() || matches!(pace, TimeMode::Virtual(_)) {
            harness.run_for(OBSERVED_AFTER_END + late.unwrap_or_default()).await?;
        }
        anyhow::Ok(RunResult {
            end: scenario.final_state(&harness).await?,
            side_effects: scenario.side_effects(&harness)?,
        })
    };
    let result = result.await;
    harness.kill().await;
    Ok((result?, harness))
}

/// Crashes the operator just before and just after each of its calls, restarts it, and compares the final state and the side effects with
/// those of an undisturbed run.
///
/// # Errors
/// The undisturbed run fails. Failures of the other runs are in the report.
pub async fn crash_at_every_call<S: Scenario>(scenario: S, test_server: &TestServer) -> Result<ScenarioReport> {
    let (scenario, began) = (Arc::new(scenario), Instant::now());
    let (expected, harness) = run(&scenario, test_server, Disturbance::None).await.context("the undisturbed run")?;
    let (calls, once) = (harness.crash().calls(), began.elapsed());
    drop(harness);
    let runs = (0..calls).flat_map(|call| [Side::Before, Side::After].map(|side| Disturbance::Crash(call, side)));
    let report = compare(&scenario, test_server, expected, runs.collect()).await;
    let name = format!("{} on {}", S::NAME, test_server.name());
    let took = began.elapsed();
    eprintln!(
        "rig: {name}: crashed before and after each of {calls} calls: {report}; once in {once:.1?}, all in {took:.1?}"
    );
    Ok(report)
}

/// Runs the scenario with each of the seeds, and compares the final state and the side effects with those of an undisturbed run. Every second
/// run also has an outage of the API server of one minute.
///
/// # Errors
/// The undisturbed run fails. Failures of the other runs are in the report.
pub async fn under_faults<S: Scenario>(
    scenario: S,
    test_server: &TestServer,
    seeds: &[u64],
    rates: &FaultRates,
) -> Result<ScenarioReport> {
    let scenario = Arc::new(scenario);
    let (expected, _) = run(&scenario, test_server, Disturbance::None).await.context("the undisturbed run")?;
    let minute = Duration::from_secs(60);
    let runs = seeds.iter().map(|&seed| Disturbance::Faults {
        seed,
        rates: rates.clone(),
        gone: (seed % 2 == 0).then(|| (Duration::from_millis(seed % 40 * 250), minute)),
    });
    let report = compare(&scenario, test_server, expected, runs.collect()).await;
    eprintln!("rig: {} on {}: {} seeds: {report}", S::NAME, test_server.name(), seeds.len());
    Ok(report)
}

async fn compare<S: Scenario>(
    scenario: &Arc<S>,
    test_server: &TestServer,
    expected: RunResult,
    runs: Vec<Disturbance>,
) -> ScenarioReport {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let expected = Arc::new(expected);
    let mut tasks = JoinSet::new();
    for how in runs {
        let (scenario, test_server, room, expected) =
            (scenario.clone(), test_server.clone(), room.clone(), expected.clone());
        tasks.spawn(async move {
            // The semaphore is never closed.
            let _turn = room.acquire().await;
            one(&scenario, &test_server, &expected, how).await
        });
    }
    let mut report = ScenarioReport::default();
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(one) => one.add_to(&mut report),
            Err(panic) => report.failures.push(format!("the scenario panicked: {panic}")),
        }
    }
    report.failures.sort();
    report
}

struct ComparedRun {
    reached: bool,
    starts: usize,
    troubles: std::collections::BTreeMap<&'static str, usize>,
    failure: Option<String>,
}

impl ComparedRun {
    fn add_to(self, report: &mut ScenarioReport) {
        if self.reached {
            report.disturbed += 1;
        } else {
            report.missed += 1;
        }
        report.starts += self.starts;
        for (name, count) in self.troubles {
            *report.troubles.entry(name).or_default() += count;
        }
        report.failures.extend(self.failure);
    }
}

async fn one<S: Scenario>(
    scenario: &Arc<S>,
    test_server: &TestServer,
    expected: &RunResult,
    how: Disturbance,
) -> ComparedRun {
    let name = match &how {
        Disturbance::None => "undisturbed".to_owned(),
        Disturbance::Crash(call, side) => format!("crash {side} call {call}"),
        Disturbance::Faults { seed, .. } => format!("RIG_SEED={seed}"),
    };
    let crash = matches!(how, Disturbance::Crash(..));
    let (result, harness) = match run(scenario, test_server, how).await {
        Ok(ran) => ran,
        Err(error) => {
            let failure = Some(format!("{} on {}, {name}: {error:#}", S::NAME, test_server.name()));
            return ComparedRun { reached: true, starts: 0, troubles: Default::default(), failure };
        }
    };
    let at = harness.crash().crashed_call().map(|call| format!(" ({call})")).unwrap_or_default();
    let troubles = harness.fault_injector().map(FaultInjector::counts).unwrap_or_default();
    let reached = if crash { harness.crash().crashed_call().is_some() } else { !troubles.is_empty() };
    let failure = describe_difference(expected, &result).map(|how| {
        format!(
            "{} on {}, {name}{at}: {how}\nlast calls:\n{}",
            S::NAME,
            test_server.name(),
            harness.recorder().tail(60)
        )
    });
    ComparedRun { reached, starts: harness.starts(), troubles, failure }
}

/// The difference between the two, if any.
fn describe_difference(expected: &RunResult, result: &RunResult) -> Option<String> {
    if result.side_effects != expected.side_effects {
        return Some(format!("the acts were {:#?}\nbut undisturbed {:#?}", result.side_effects, expected.side_effects));
    }
    if result.end != expected.end {
        return Some(format!("the end was {:#}\nbut undisturbed {:#}", result.end, expected.end));
    }
    None
}
