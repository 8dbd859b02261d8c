//! What happens to machines, and what a person sees of it.

use anyhow::Result;
use fleetwright_api::Status;
use fleetwright_rig::Stage;
use serde_json::json;

use crate::support::{Fleet, ensure};

pub async fn a_new_node_starts_closed_and_opens_when_its_gates_hold(stage: &Stage) -> Result<()> {
    stage
        .gates(
            "workers",
            json!({ "conditions": [
        { "type": "NodeReady", "from": { "nodeCondition": "Ready" } },
        { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
    ] }),
        )
        .await?;
    stage.machine("a", json!({})).await?;
    stage.start().await?;
    stage.verdict("a", Status::False, "NodeMissing").await?;
    stage.node("a", true).await?;
    stage.verdict("a", Status::False, "GatesPending").await?;
    stage.ready("a", "True").await?;
    stage.message("a", "1 of 2 gates fails: LogAgentReady (reporter log-agent) missing since 2030-01-01").await?;
    ensure(stage.closed("a").await?, "it opened too soon")?;
    stage
        .report("a", "log-agent", json!([{ "type": "LogAgentReady", "status": "True", "reason": "DaemonSetReady" }]))
        .await?;
    stage.verdict("a", Status::True, "Ready").await?;
    ensure(!stage.closed("a").await?, "it did not open")
}
