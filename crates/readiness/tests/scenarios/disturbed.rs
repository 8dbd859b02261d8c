//! The same end, whatever happens on the way: crashes at every call, and trouble with the API server.

use anyhow::Result;
use fleetwright_api::{ReadinessGates, Status};
use fleetwright_rig::{Ground, Rates, Stage, crash_at_every_call, under_trouble};
use serde_json::json;

use crate::support::{Fleet, Story};

/// A day in the life of three machines: they join, one fails and is closed, recovers and is opened; one is broken for good; a person cordons one.
pub async fn a_day(stage: &Stage) -> Result<()> {
    let spec = json!({ "conditions": [
        { "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "10s" },
        { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
    ] });
    stage.gates("workers", spec).await?;
    let agent = |status: &str| json!([{ "type": "LogAgentReady", "status": status, "reason": "Seen" }]);
    for name in ["a", "b", "c"] {
        stage.machine(name, json!({})).await?;
        stage.node(name, true).await?;
        stage.ready(name, "True").await?;
    }
    stage.start().await?;
    for name in ["a", "b", "c"] {
        stage.report(name, "log-agent", agent("True")).await?;
    }
    for name in ["a", "b", "c"] {
        stage.verdict(name, Status::True, "Ready").await?;
    }
    stage.report("a", "log-agent", agent("False")).await?;
    stage.ready("b", "Unknown").await?;
    stage.verdict("a", Status::False, "GatesFailing").await?;
    stage.verdict("b", Status::False, "GatesFailing").await?;
    stage.report("a", "log-agent", agent("True")).await?;
    stage.patch_node("c", json!({ "spec": { "unschedulable": true } })).await?;
    stage.verdict("a", Status::True, "Ready").await?;
    stage.verdict("c", Status::False, "Cordoned").await?;
    let counted = || async {
        let gates = stage.api::<ReadinessGates>().get("workers").await.map_err(|error| error.to_string())?;
        let status = gates.status.unwrap_or_default();
        if (status.schedulable, status.closed) == (1, 1) { Ok(()) } else { Err(format!("{status:?}")) }
    };
    stage.settle("one is open, one is closed, one is cordoned", counted).await
}

/// Four of six machines fail together: none may be closed, ever, until one recovers.
pub async fn a_bad_day(stage: &Stage) -> Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    let spec = json!({ "conditions": [{
        "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "30s",
    }] });
    stage.gates("workers", spec).await?;
    for name in names {
        stage.machine(name, json!({})).await?;
        stage.node(name, true).await?;
        stage.ready(name, "True").await?;
    }
    stage.start().await?;
    for name in names {
        stage.verdict(name, Status::True, "Ready").await?;
    }
    for name in &names[..4] {
        stage.ready(name, "Unknown").await?;
    }
    for name in &names[..4] {
        stage.verdict(name, Status::True, "SafetyNet").await?;
        anyhow::ensure!(!stage.closed(name).await?, "{name} was closed");
    }
    stage.holding("workers", Status::True).await?;
    stage.ready("a", "True").await?;
    for name in &names[1..4] {
        stage.verdict(name, Status::False, "GatesFailing").await?;
    }
    stage.verdict("a", Status::True, "Ready").await?;
    stage.holding("workers", Status::False).await.map(drop)
}

const DAY: Story = Story(|stage| Box::pin(a_day(stage)));
const BAD_DAY: Story = Story(|stage| Box::pin(a_bad_day(stage)));

/// The seeds to run: those asked for by RIG_SEED, or so many.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RIG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_changes_nothing_in_the_end() {
    crash_at_every_call(DAY, &Ground::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_does_not_make_the_safety_net_forget() {
    crash_at_every_call(BAD_DAY, &Ground::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end() {
    under_trouble(DAY, &Ground::InProcess, &seeds(40), &Rates::rough()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_changes_nothing_in_the_end_on_real() {
    let ground = Ground::start(fleetwright_lab::Kind::Real).await.unwrap();
    crash_at_every_call(DAY, &ground).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end_on_real() {
    let ground = Ground::start(fleetwright_lab::Kind::Real).await.unwrap();
    // All runs share the server's Nodes: a watch that is late with every one of them would never come to its own.
    let rates = Rates { slow: 0.0, ..Rates::rough() };
    under_trouble(DAY, &ground, &seeds(10), &rates).await.unwrap().unwrap();
}
