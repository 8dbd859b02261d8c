//! Laps: the same again and again, and each time the operator is stopped dead elsewhere.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fleetwright_api::OperationPolicy;
use fleetwright_kit::Random;
use fleetwright_plan::cluster::keys::SEAL;
use fleetwright_rig::{Call, CallMatcher, Crash, FaultInjector, Harness, Side};
use futures::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The cluster of the first lap, in which nothing happens to the operator.
pub const UNDISTURBED: &str = "lap0";

/// A part of a lap.
#[derive(Clone, Copy)]
pub struct LifecyclePhase {
    /// What happens to the cluster of that name, and what comes of it.
    pub play: for<'a> fn(&'a Harness, &'a str) -> BoxFuture<'a, Result<Value>>,
    /// Whether the operator is stopped in it.
    pub struck: bool,
}

/// So many laps in which the operator is stopped at one call of each leg, whichever the seed says.
const SINGLE: usize = 2;

/// Compares the result of every lap with that of an undisturbed one.
///
/// In one lap the operator is killed before every call of the undisturbed lap and at every watch that it opens, once each: it is restarted, and
/// proceeds one call further. The restarted operator therefore finds every state that a stop at any call can leave behind. In another lap it is
/// killed after every call: the call was done, but the operator does not get the answer. Every write must have been such a call, except events that
/// are not published again, counts of policies that exist before, and writes to the same object that this lap needed fewer of.
///
/// In a few more laps it is killed once in each leg, at a call that the seed chooses, and not disturbed after that: `RIG_SEED=n` chooses other calls.
pub async fn at_every_call(harness: &Harness, legs: &[LifecyclePhase]) -> Result<()> {
    let mut laps = LifecycleRun { harness, legs, number: 0, stops: 0 };
    let expected = laps.lap(&|_, _, _| {}).await?;
    let watches = watches(harness);
    for side in [Side::Before, Side::After] {
        let each = |leg: usize, crash: &Crash, name: &str| {
            let calls: Vec<Call> = expected[leg].calls.iter().chain(&watches).cloned().collect();
            crash.crash_at_each(CallMatcher::new(side, word(name), &calls));
        };
        let ran = laps.lap(&each).await?;
        hold(&expected, &ran, &format!("{side} every call"))?;
        for ((_, ran), expected) in legs.iter().zip(&ran).zip(&expected).filter(|((leg, _), _)| leg.struck) {
            every_write(expected, ran).with_context(|| format!("{side} every call"))?;
            laps.stops += expected.calls.len() + watches.len() - ran.left.len();
        }
    }
    let random = Random::seeded(FaultInjector::seeds(1)[0]);
    for _ in 0..SINGLE {
        let places: Vec<(usize, Side)> = expected
            .iter()
            .map(|leg| {
                let side = if random.below(2) == 0 { Side::Before } else { Side::After };
                let call = random.below(leg.calls.len().max(1) as u64);
                (usize::try_from(call).unwrap_or_default(), side)
            })
            .collect();
        laps.once(&expected, &places).await?;
    }
    let LifecycleRun { number, stops, .. } = laps;
    eprintln!("clusters: stopped dead {stops} times in {number} laps: the same end each time");
    Ok(())
}

/// Kills the operator once in each leg of a lap, at a call that the seed chooses, and compares the result with that of an undisturbed lap. It is killed
/// before the call in one leg, and after the call in the next. For servers on which laps take long.
pub async fn at_some_calls(harness: &Harness, legs: &[LifecyclePhase]) -> Result<()> {
    let mut laps = LifecycleRun { harness, legs, number: 0, stops: 0 };
    let expected = laps.lap(&|_, _, _| {}).await?;
    let random = Random::seeded(FaultInjector::seeds(1)[0]);
    let mut places = Vec::new();
    for (number, leg) in expected.iter().enumerate() {
        // Not one of the last calls: the next lap may need fewer.
        let call = random.below((leg.calls.len() * 3 / 4).max(1) as u64);
        let side = if number % 2 == 0 { Side::Before } else { Side::After };
        places.push((usize::try_from(call).unwrap_or_default(), side));
    }
    laps.once(&expected, &places).await?;
    let struck = legs.iter().filter(|leg| leg.struck).count();
    ensure!(laps.stops == struck, "the operator was killed in {} of {struck} legs, at {places:?}", laps.stops);
    Ok(())
}

/// Where the operator is to be stopped in that leg, with a cluster of that name.
type CrashPoint<'a> = &'a (dyn Fn(usize, &Crash, &str) + Sync);

struct LifecycleRun<'a> {
    harness: &'a Harness,
    legs: &'a [LifecyclePhase],
    number: usize,
    stops: usize,
}

/// What came of a leg.
struct PhaseResult {
    value: Value,
    calls: Vec<Call>,
    /// Calls at which it should have been stopped, and was not.
    left: Vec<(String, usize)>,
    /// The last at which it was.
    at: Option<Call>,
}

impl LifecycleRun<'_> {
    /// A lap in which the operator is killed once in each leg, at these places.
    async fn once(&mut self, expected: &[PhaseResult], places: &[(usize, Side)]) -> Result<()> {
        let ran = self.lap(&|leg, crash, _| crash.crash_at(Some(places[leg]))).await?;
        hold(expected, &ran, &format!("once in each leg, at {places:?}"))?;
        self.stops += ran.iter().filter(|ran| ran.at.is_some()).count();
        Ok(())
    }

    async fn lap(&mut self, place: CrashPoint<'_>) -> Result<Vec<PhaseResult>> {
        forget_fleet(self.harness).await?;
        // Each has a cluster of its own.
        let name = format!("lap{}", self.number);
        self.number += 1;
        let (crash, recorder) = (self.harness.crash(), self.harness.recorder());
        let mut all = Vec::new();
        for (number, leg) in self.legs.iter().enumerate() {
            let (mark, began, lives, time) =
                (recorder.mark(), Instant::now(), self.harness.starts(), self.harness.clock().now());
            crash.crash_at(None);
            if leg.struck {
                place(number, crash, &name);
            }
            let value = (leg.play)(self.harness, &name)
                .await
                .with_context(|| format!("{name}, leg {number}, not yet stopped at {:?}", crash.remaining_calls()))?;
            eprintln!(
                "clusters: {name}, leg {number}: {:.1?}, {} in it, {} lives, {} calls",
                began.elapsed(),
                self.harness.clock().now().duration_since(time),
                self.harness.starts() - lives,
                recorder.mark() - mark
            );
            // Names are the same in all laps but for the number.
            let value = serde_json::from_str(&value.to_string().replace(&name, "lap"))?;
            let done = recorder.since(mark).into_iter().filter(|record| record.code.is_some_and(|code| code < 300));
            let calls = done.map(|record| record.call);
            let calls = calls.filter(|call| !opens(call)).map(|call| named(call, &name)).collect();
            all.push(PhaseResult { value, calls, left: crash.remaining_calls(), at: crash.crashed_call() });
        }
        crash.crash_at(None);
        Ok(all)
    }
}

/// Deletes what the operator creates once for all clusters of a namespace: each lap creates it again, so that the operator is stopped at that, too. No
/// cluster is left that needs it.
async fn forget_fleet(harness: &Harness) -> Result<()> {
    delete::<Secret>(harness, SEAL).await?;
    for policy in ["etcd-members", "restores", "extension-prune", "cluster-deletion"] {
        delete::<OperationPolicy>(harness, policy).await?;
    }
    Ok(())
}

async fn delete<K>(harness: &Harness, name: &str) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::<K>::namespaced(harness.admin(), harness.namespace());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A call of the undisturbed lap, as it would be for any.
fn named(mut call: Call, name: &str) -> Call {
    for text in [&mut call.namespace, &mut call.name] {
        *text = text.replace(name, "lap");
    }
    call
}

/// Identifies the same call in all laps. Names of pods are generated in each lap.
pub fn word(name: &str) -> impl Fn(&Call) -> String + Send + Sync + use<> {
    let name = name.to_owned();
    move |call| {
        let mut call = named(call.clone(), &name);
        // Names of Operations have ids in them, which are others each time.
        if call.resource == "pods" || call.resource.starts_with("operations.") {
            call.name.clear();
        }
        call.to_string()
    }
}

fn opens(call: &Call) -> bool {
    call.verb == "watch"
}

/// Watches that an operator opens when it starts, once each.
fn watches(harness: &Harness) -> Vec<Call> {
    let calls = harness.recorder().calls().into_iter().map(|record| record.call).filter(opens);
    calls.map(|call| (call.to_string(), call)).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Whether the call updates the count of a policy that exists before the leg or is used only in the leg before: whether the leg contains that write
/// depends on timing.
fn kept(call: &Call) -> bool {
    let early = ["releases", "extension-prune", "cluster-deletion"].contains(&call.name.as_str());
    early && call.resource.starts_with("operationpolicies.") && call.subresource == "status"
}

/// Fails if a write of the undisturbed lap was none at which the operator was stopped.
fn every_write(expected: &PhaseResult, ran: &PhaseResult) -> Result<()> {
    let calls: BTreeMap<String, &Call> = expected.calls.iter().map(|call| (word("lap")(call), call)).collect();
    let writes = calls.values().filter(|call| call.writes()).count();
    ensure!(writes > 2, "the operator wrote {writes} things: that is no lap");
    for (word, number) in &ran.left {
        let Some(call) = calls.get(word).filter(|call| call.writes()) else { continue };
        // Each is met before it is made. So one that was not met was not made: the lap needed fewer of the same.
        let needless = call.resource == "events" || kept(call) || call.verb != "create" && *number > 0;
        ensure!(needless, "the operator was never stopped at call {number} of {word}");
    }
    Ok(())
}

fn hold(expected: &[PhaseResult], ran: &[PhaseResult], at: &str) -> Result<()> {
    for (expected, ran) in expected.iter().zip(ran) {
        let call = ran.at.as_ref().map(ToString::to_string).unwrap_or_default();
        let (expected, came) = (&expected.value, &ran.value);
        ensure!(
            expected == came,
            "stopped dead {at} (last at {call}), what came of it was {came:#}\nbut undisturbed {expected:#}"
        );
    }
    Ok(())
}
