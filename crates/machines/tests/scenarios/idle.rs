//! A fleet to which nothing happens costs next to nothing.

use anyhow::{Result, ensure};
use fleetwright_api::Phase;
use fleetwright_rig::{Ground, Stage};
use fleetwright_sim::Fleet;
use serde_json::json;

use crate::support::{Telling, seconds, tell};

const MACHINES: usize = 100;

async fn an_hour(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let names: Vec<String> = (0..MACHINES).map(|n| format!("m{n:03}")).collect();
    for name in &names {
        stage.machine(fleet, name, json!({})).await?;
    }
    stage.start().await?;
    for name in &names {
        stage.phase(name, Phase::Ready).await?;
    }
    stage.linger(seconds(60)).await?;
    let (calls, requests) = (stage.recorder().mark(), fleet.counts().1);
    stage.linger(seconds(3600)).await?;
    let writes = stage.recorder().writes_since(calls);
    let reads = stage.recorder().since(calls).iter().filter(|record| record.call.verb == "get").count();
    let lists = stage.recorder().since(calls).iter().filter(|record| record.call.verb == "list").count();
    let looks = fleet.counts().1 - requests;
    eprintln!(
        "an idle hour of {MACHINES} machines: {looks} looks, {} writes, {reads} reads, {lists} lists",
        writes.len()
    );
    eprintln!("{}", stage.counting().table(&crate::support::budgets()));
    ensure!(writes.is_empty(), "idle machines were written: {:?}", &writes[..writes.len().min(5)]);
    ensure!(lists == 0, "{lists} lists");
    ensure!(looks >= MACHINES, "only {looks} looks: drift would not be found");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_hour_of_many_machines_looks_at_each_and_writes_nothing() {
    tell(&Ground::InProcess, |stage, fleet| Box::pin(an_hour(stage, fleet))).await;
}
