//! The same result, whatever happens on the way: crashes at every call, and faults of the API server.

use anyhow::Result;
use fleetwright_api::{ReadinessGates, Status};
use fleetwright_rig::{FaultRates, Harness, TestServer, crash_at_every_call, under_faults};
use serde_json::json;

use crate::support::{Fleet, ReadinessScenario};

/// A day in the life of three machines: they join, one fails and is closed, recovers and is opened; one stays broken; a person cordons one.
pub async fn a_day(harness: &Harness) -> Result<()> {
    let spec = json!({ "conditions": [
        { "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "10s" },
        { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
    ] });
    harness.gates("workers", spec).await?;
    let agent = |status: &str| json!([{ "type": "LogAgentReady", "status": status, "reason": "Seen" }]);
    for name in ["a", "b", "c"] {
        harness.machine(name, json!({})).await?;
        harness.node(name, true).await?;
        harness.ready(name, "True").await?;
    }
    harness.start().await?;
    for name in ["a", "b", "c"] {
        harness.report(name, "log-agent", agent("True")).await?;
    }
    for name in ["a", "b", "c"] {
        harness.verdict(name, Status::True, "Ready").await?;
    }
    harness.report("a", "log-agent", agent("False")).await?;
    harness.ready("b", "Unknown").await?;
    harness.verdict("a", Status::False, "GatesFailing").await?;
    harness.verdict("b", Status::False, "GatesFailing").await?;
    harness.report("a", "log-agent", agent("True")).await?;
    harness.patch_node("c", json!({ "spec": { "unschedulable": true } })).await?;
    harness.verdict("a", Status::True, "Ready").await?;
    harness.verdict("c", Status::False, "Cordoned").await?;
    let counted = || async {
        let gates = harness.api::<ReadinessGates>().get("workers").await.map_err(|error| error.to_string())?;
        let status = gates.status.unwrap_or_default();
        if (status.schedulable, status.closed) == (1, 1) { Ok(()) } else { Err(format!("{status:?}")) }
    };
    harness.settle("one is open, one is closed, one is cordoned", counted).await
}

/// Four of six machines fail together: none may be closed, ever, until one recovers.
pub async fn a_bad_day(harness: &Harness) -> Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    let spec = json!({ "conditions": [{
        "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "30s",
    }] });
    harness.gates("workers", spec).await?;
    for name in names {
        harness.machine(name, json!({})).await?;
        harness.node(name, true).await?;
        harness.ready(name, "True").await?;
    }
    harness.start().await?;
    for name in names {
        harness.verdict(name, Status::True, "Ready").await?;
    }
    for name in &names[..4] {
        harness.ready(name, "Unknown").await?;
    }
    for name in &names[..4] {
        harness.verdict(name, Status::True, "SafetyNet").await?;
        anyhow::ensure!(!harness.closed(name).await?, "{name} was closed");
    }
    harness.holding("workers", Status::True).await?;
    harness.ready("a", "True").await?;
    for name in &names[1..4] {
        harness.verdict(name, Status::False, "GatesFailing").await?;
    }
    harness.verdict("a", Status::True, "Ready").await?;
    harness.holding("workers", Status::False).await.map(drop)
}

const DAY: ReadinessScenario = ReadinessScenario(|harness| Box::pin(a_day(harness)));
const BAD_DAY: ReadinessScenario = ReadinessScenario(|harness| Box::pin(a_bad_day(harness)));

/// The seeds to run: those in RIG_SEED, or the default number of seeds.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RIG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_changes_nothing_in_the_end() {
    crash_at_every_call(DAY, &TestServer::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_does_not_make_the_safety_net_forget() {
    crash_at_every_call(BAD_DAY, &TestServer::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end() {
    under_faults(DAY, &TestServer::InProcess, &seeds(40), &FaultRates::mixed()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_changes_nothing_in_the_end_on_real() {
    let test_server = TestServer::start(fleetwright_lab::ServerKind::Real).await.unwrap();
    crash_at_every_call(DAY, &test_server).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end_on_real() {
    let test_server = TestServer::start(fleetwright_lab::ServerKind::Real).await.unwrap();
    // All runs share the server's Nodes: a watch that delays every one of them would never catch up.
    let rates = FaultRates { slow: 0.0, ..FaultRates::mixed() };
    under_faults(DAY, &test_server, &seeds(10), &rates).await.unwrap().unwrap();
}
