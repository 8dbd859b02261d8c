//! The same result and the same steps on the hosts, whatever interrupts the operator on the way.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_api::{ComponentState, Phase};
use fleetwright_lab::ServerKind;
use fleetwright_rig::faults::Fault;
use fleetwright_rig::scenario::{Disturbance, run, run_in_real_time};
use fleetwright_rig::{
    Call, CallMatcher, FaultInjector, FaultRates, Harness, Side, TestServer, crash_at_every_call, under_faults,
};
use fleetwright_sim::{Fleet, demo};
use fleetwright_wire::Outcome;
use serde_json::json;

use crate::cases::spoil;
use crate::support::{DisruptionBudgets, MachineScenario, MachineSteps, acts, ensure, in_service, of, seconds, shown};

/// Two machines are installed; then one is upgraded, with a pod that must leave.
async fn an_upgrade(harness: &Harness, fleet: &Fleet) -> Result<()> {
    for name in ["a", "b"] {
        let host = harness.machine(fleet, name, json!({})).await?;
        host.set_step(seconds(2));
    }
    harness.start().await?;
    for name in ["a", "b"] {
        harness.phase(name, Phase::Ready).await?;
    }
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    harness.budget("web", json!({ "app": "web" }), 0).await?;
    harness.allow("web", 1, None).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    harness.refer("b", "kubelet", demo::NEWER_KUBELET).await?;
    for name in ["a", "b"] {
        harness.phase(name, Phase::Ready).await?;
        harness.opened(name).await?;
    }
    let left = harness.pods().await?;
    anyhow::ensure!(
        left.is_empty(),
        "the pod had to leave, and is there: {left:?}; done to its host: {:?}",
        acts(&fleet.host("a"))
    );
    Ok(())
}

/// A machine in service is upgraded, with a pod that must leave.
async fn one_upgrade(harness: &Harness, fleet: &Fleet) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    harness.budget("web", json!({ "app": "web" }), 0).await?;
    harness.allow("web", 1, None).await?;
    harness.crash().arm();
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    harness.phase("a", Phase::Ready).await?;
    harness.opened("a").await?;
    ensure(harness.pods().await?.is_empty(), "the pod had to leave")
}

/// A machine is installed and deleted again.
async fn a_short_life(harness: &Harness, fleet: &Fleet) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    crate::support::delete(harness, "a").await?;
    harness.gone("a").await
}

/// A version that does not work is installed, on a host whose answers come at once. The status write with the number
/// of the seed, counted from the upgrade on, gets a conflict.
async fn a_bad_version(harness: &Harness, fleet: &Fleet) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    spoil(fleet);
    if let Some(trouble) = harness.fault_injector() {
        let word = |call: &Call| format!("{} {} {}", call.resource, call.subresource, call.name);
        let write = CallMatcher::nth(Side::Before, word, "machines.fleetwright.io status a", trouble.seed() as usize);
        trouble.inject_at(write, Fault::Conflict);
    }
    harness.refer("a", "kubelet", demo::BAD_KUBELET).await?;
    let component = harness.component("a", "kubelet", ComponentState::RolledBack).await?;
    ensure(component.observed.as_deref() == Some("1.36.4"), format!("{component:?}"))?;
    harness.opened("a").await
}

/// How often the watch of certificate requests fails: with its backoff, that is for at least two minutes.
const FAILURES: usize = 7;

/// A kubelet joins. Under trouble the watch of certificate requests is down meanwhile, for longer than the minute in which the package must work.
async fn a_join(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = harness.machine(fleet, "a", json!({})).await?;
    host.set_step(seconds(10));
    harness.start().await?;
    let begun = || async {
        let begun = host.journal().iter().any(|record| record.component.as_deref() == Some("kubelet"));
        if begun { Ok(()) } else { Err("its kubelet is not being installed".to_owned()) }
    };
    harness.settle("its kubelet is being installed", begun).await?;
    if let Some(trouble) = harness.fault_injector() {
        let mut calls = harness.recorder().calls().into_iter().map(|record| record.call);
        let watch = calls.find(|call| call.resource == "certificatesigningrequests.certificates.k8s.io");
        let watches: Vec<Call> = std::iter::repeat_n(watch.context("requests are not watched")?, FAILURES).collect();
        let watches = CallMatcher::new(Side::After, |call: &Call| call.resource.clone(), &watches);
        trouble.inject_at(watches, Fault::ServerError { code: 503, done: false });
        // Ends every watch. The operator keeps its lease.
        trouble.start_outage(harness.clock().now(), seconds(1));
        harness.run_for(seconds(100)).await?;
        let seen = harness.get("a").await?;
        let state = of(&seen, "kubelet").map(|found| found.state);
        ensure(state == Some(ComponentState::Installing), shown(&seen))?;
        let node = harness.nodes().get_opt(&harness.node_name("a")).await?;
        ensure(node.is_none(), "the outage does not coincide with the join")?;
        ensure(harness.starts() == 1, "an operator that starts again counts from then on")?;
    }
    harness.phase("a", Phase::Ready).await.map(drop)
}

/// Longer than a lease, than the step, and than the minute in which the package must work after it.
const GONE_FOR: Duration = Duration::from_secs(100);

/// A kubelet is installed. Under trouble the API server is gone from the middle of the step on, until long after its end.
async fn an_installation(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = harness.machine(fleet, "a", json!({})).await?;
    host.set_step(seconds(30));
    harness.start().await?;
    let record = || host.journal().into_iter().find(|record| record.component.as_deref() == Some("kubelet"));
    let begun =
        || async { if record().is_some() { Ok(()) } else { Err("its kubelet is not being installed".to_owned()) } };
    harness.settle("its kubelet is being installed", begun).await?;
    if let Some(trouble) = harness.fault_injector() {
        let started = record();
        ensure(started.as_ref().is_some_and(|one| one.outcome == Outcome::Running), format!("too late: {started:?}"))?;
        trouble.start_outage(harness.clock().now(), GONE_FOR);
    }
    let seen = harness.phase("a", Phase::Ready).await?;
    let kubelet = of(&seen, "kubelet").context("it is not listed")?;
    let failed = kubelet.failed.is_some() || kubelet.rollback.is_some();
    ensure(!failed, format!("a failure counts against the package: {}", shown(&seen)))
}

const UPGRADE: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(an_upgrade(harness, fleet)));
const ONE_UPGRADE: MachineScenario =
    MachineScenario::new(|harness, fleet| Box::pin(one_upgrade(harness, fleet))).killed_later();
const BAD_VERSION: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(a_bad_version(harness, fleet)));
const SHORT_LIFE: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(a_short_life(harness, fleet)));
const JOIN: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(a_join(harness, fleet)));
const INSTALLATION: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(an_installation(harness, fleet)));

/// With these seeds an outage once counted against the package of the kubelet that was being installed. With lower seeds it starts earlier. Which
/// step it meets depends on all calls before it: the outage of `INSTALLATION` always meets that of the kubelet.
const GONE_DURING_INSTALLATION: [u64; 2] = [22, 76];

/// The seeds to run: those in RIG_SEED, or the default number of seeds and `GONE_DURING_INSTALLATION`.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RIG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).chain(GONE_DURING_INSTALLATION).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_of_an_upgrade_doubles_no_step() {
    crash_at_every_call(ONE_UPGRADE, &TestServer::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_of_a_removal_leaves_a_clean_host() {
    crash_at_every_call(SHORT_LIFE, &TestServer::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_double_no_step() {
    let (one, _) = run(&Arc::new(UPGRADE), &TestServer::InProcess, Disturbance::None).await.unwrap();
    // Their writes to the status of machines contradict each other until one of them ends, so the status never becomes stable.
    let (two, _) = run_in_real_time(&Arc::new(UPGRADE.twice()), &TestServer::InProcess).await.unwrap();
    assert_eq!(one.side_effects, two.side_effects);
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_doubles_no_step() {
    under_faults(UPGRADE, &TestServer::InProcess, &seeds(8), &FaultRates::mixed()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_while_a_kubelet_joins_does_not_count_against_the_package() {
    let (scenario, test_server) = (Arc::new(JOIN), TestServer::InProcess);
    let (expected, _) = run(&scenario, &test_server, Disturbance::None).await.unwrap();
    let how = Disturbance::Faults { seed: 1, rates: FaultRates::none(), gone: None };
    let (came, harness) = run(&scenario, &test_server, how).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(came, expected);
    let met = harness.fault_injector().map(FaultInjector::counts).unwrap_or_default();
    assert_eq!(met.get("5xx"), Some(&FAILURES), "{met:?}");
}

/// The operator is cut off from the API server; kubelets are not.
async fn gone_during_an_installation(test_server: &TestServer) {
    let scenario = Arc::new(INSTALLATION);
    let (expected, _) = run(&scenario, test_server, Disturbance::None).await.unwrap();
    let how = Disturbance::Faults { seed: 1, rates: FaultRates::none(), gone: None };
    let (came, harness) = run(&scenario, test_server, how).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(came, expected);
    let met = harness.fault_injector().map(FaultInjector::counts).unwrap_or_default();
    assert!(met.contains_key("server gone"), "{met:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_during_an_installation_does_not_count_against_the_package() {
    gone_during_an_installation(&TestServer::InProcess).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_during_an_installation_does_not_count_against_the_package_on_real() {
    gone_during_an_installation(&TestServer::start(ServerKind::Real).await.unwrap()).await;
}

/// From its status an operator reads later what has to prove itself: one of these writes is that before the step.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_meets_a_conflict_before_a_step_hides_no_bad_version() {
    let (scenario, test_server) = (Arc::new(BAD_VERSION), TestServer::InProcess);
    let (expected, _) = run(&scenario, &test_server, Disturbance::None).await.unwrap();
    let mut met = 0;
    loop {
        let how = Disturbance::Faults { seed: met, rates: FaultRates::none(), gone: None };
        let (came, harness) =
            run(&scenario, &test_server, how).await.unwrap_or_else(|error| panic!("write {met}: {error:#}"));
        assert_eq!(came, expected, "after a conflict at write {met}");
        // There are no more writes.
        if harness.fault_injector().map(FaultInjector::counts).unwrap_or_default().is_empty() {
            break;
        }
        met += 1;
    }
    assert!(met > 2, "only {met} writes");
}
