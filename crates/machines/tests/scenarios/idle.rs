//! An idle fleet costs next to nothing.

use anyhow::{Result, ensure};
use fleetwright_api::Phase;
use fleetwright_rig::{Harness, TestServer};
use fleetwright_sim::Fleet;
use serde_json::json;

use crate::support::{MachineSteps, run_undisturbed, seconds};

const MACHINES: usize = 100;

async fn an_hour(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let names: Vec<String> = (0..MACHINES).map(|n| format!("m{n:03}")).collect();
    for name in &names {
        harness.machine(fleet, name, json!({})).await?;
    }
    harness.start().await?;
    for name in &names {
        harness.phase(name, Phase::Ready).await?;
    }
    harness.run_for(seconds(60)).await?;
    let (calls, requests) = (harness.recorder().mark(), fleet.counts().1);
    harness.run_for(seconds(3600)).await?;
    let writes = harness.recorder().writes_since(calls);
    let reads = harness.recorder().since(calls).iter().filter(|record| record.call.verb == "get").count();
    let lists = harness.recorder().since(calls).iter().filter(|record| record.call.verb == "list").count();
    let looks = fleet.counts().1 - requests;
    eprintln!(
        "an idle hour of {MACHINES} machines: {looks} looks, {} writes, {reads} reads, {lists} lists",
        writes.len()
    );
    eprintln!("{}", harness.pass_counter().table(&crate::support::budgets()));
    ensure!(writes.is_empty(), "idle machines were written: {:?}", &writes[..writes.len().min(5)]);
    ensure!(lists == 0, "{lists} lists");
    ensure!(looks >= MACHINES, "only {looks} looks: drift would not be found");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_hour_of_many_machines_looks_at_each_and_writes_nothing() {
    run_undisturbed(&TestServer::InProcess, |harness, fleet| Box::pin(an_hour(harness, fleet))).await;
}
