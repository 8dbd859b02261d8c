//! A large idle fleet costs nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fleetwright_api::{Machine, ReadinessGates};
use fleetwright_rig::{Harness, TestServer};
use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{Fleet, run_undisturbed};

const MACHINES: usize = 10_000;

/// Machines in service, each with a Node of its own.
async fn fleet(harness: &Harness) -> Result<()> {
    let made = futures::stream::iter(0..MACHINES).map(|n| async move {
        let name = format!("m{n:05}");
        let host = harness.node_name(&name);
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": host },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] },
        });
        let node = harness.nodes().create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        let machine = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": name, "labels": { "pool": "online", "rack": format!("r{}", n / 40) } },
            "spec": { "hostname": host, "taints": [{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }] },
        });
        harness.api::<Machine>().create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
        let bound = json!({ "nodeRef": { "name": host, "uid": node.uid(), "binding": "Joined" } });
        let bound = Patch::Merge(json!({ "status": bound }));
        harness.api::<Machine>().patch_status(&name, &PatchParams::default(), &bound).await?;
        anyhow::Ok(())
    });
    made.buffer_unordered(16).try_collect().await
}

async fn an_hour(harness: &Harness) -> Result<()> {
    fleet(harness).await?;
    let gate = json!({ "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "missing": "Pass" });
    harness.gates("workers", json!({ "conditions": [gate], "safetyNet": { "by": "rack" } })).await?;
    harness.start().await?;
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        harness.run_for(Duration::from_secs(10)).await?;
        let status = harness.api::<ReadinessGates>().get("workers").await?.status.unwrap_or_default();
        if status.schedulable as usize == MACHINES {
            break;
        }
        ensure!(Instant::now() < deadline, "only {status:?} after {} passes", harness.pass_counter().passes());
    }
    harness.run_for(Duration::from_secs(30)).await?;

    let (calls, passes) = (harness.recorder().mark(), harness.pass_counter().passes());
    harness.run_for(Duration::from_secs(3600)).await?;
    let writes = harness.recorder().writes_since(calls);
    ensure!(writes.is_empty(), "idle machines were written: {writes:?}");
    // The remaining calls: reopened watches, the lease, and two reads for each deep check.
    let reads = harness.recorder().since(calls).iter().filter(|record| record.call.verb == "get").count();
    let lists = harness.recorder().since(calls).iter().filter(|record| record.call.verb == "list").count();
    let passes = harness.pass_counter().passes() - passes;
    eprintln!("an idle hour of {MACHINES} machines: {passes} deep checks, {reads} reads, {lists} lists, 0 writes");
    ensure!(lists == 0, "{lists} lists");
    ensure!(reads <= 2 * passes, "{reads} reads in {passes} deep checks");
    // Every six hours, give or take a fifth.
    ensure!(passes < MACHINES / 4, "{passes} passes");
    eprintln!("{}", harness.pass_counter().table(&fleetwright_readiness::budgets()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_machines_make_no_calls_but_deep_checks() {
    run_undisturbed(&TestServer::InProcess, |harness| Box::pin(an_hour(harness))).await;
}
