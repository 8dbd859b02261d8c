//! The same end and the same steps on the hosts, whatever happens to the operator on the way.

use std::sync::Arc;

use anyhow::Result;
use fleetwright_api::Phase;
use fleetwright_rig::scenario::{Disturbance, run, run_in_real_time};
use fleetwright_rig::{Ground, Rates, Stage, crash_at_every_call, under_trouble};
use fleetwright_sim::{Fleet, demo};
use serde_json::json;

use crate::support::{Allowing, Story, Telling, acts, ensure, in_service, seconds};

/// Two machines are installed; then one is upgraded, with a pod that has to leave.
async fn an_upgrade(stage: &Stage, fleet: &Fleet) -> Result<()> {
    for name in ["a", "b"] {
        let host = stage.machine(fleet, name, json!({})).await?;
        host.set_step(seconds(2));
    }
    stage.start().await?;
    for name in ["a", "b"] {
        stage.phase(name, Phase::Ready).await?;
    }
    stage.pod("a", "web", json!({ "app": "web" })).await?;
    stage.budget("web", json!({ "app": "web" }), 0).await?;
    stage.allow("web", 1, None).await?;
    stage.refer("a", "containerd", "containerd-2.4.2").await?;
    stage.refer("b", "kubelet", demo::NEWER_KUBELET).await?;
    for name in ["a", "b"] {
        stage.phase(name, Phase::Ready).await?;
        stage.opened(name).await?;
    }
    let left = stage.pods().await?;
    anyhow::ensure!(
        left.is_empty(),
        "the pod had to leave, and is there: {left:?}; done to its host: {:?}",
        acts(&fleet.host("a"))
    );
    Ok(())
}

/// A machine in service is upgraded, with a pod that has to leave.
async fn one_upgrade(stage: &Stage, fleet: &Fleet) -> Result<()> {
    in_service(stage, fleet, &["a"]).await?;
    stage.pod("a", "web", json!({ "app": "web" })).await?;
    stage.budget("web", json!({ "app": "web" }), 0).await?;
    stage.allow("web", 1, None).await?;
    stage.crash().arm();
    stage.refer("a", "containerd", "containerd-2.4.2").await?;
    stage.phase("a", Phase::Ready).await?;
    stage.opened("a").await?;
    ensure(stage.pods().await?.is_empty(), "the pod had to leave")
}

/// A machine is installed and deleted again.
async fn a_short_life(stage: &Stage, fleet: &Fleet) -> Result<()> {
    in_service(stage, fleet, &["a"]).await?;
    crate::support::delete(stage, "a").await?;
    stage.gone("a").await
}

const UPGRADE: Story = Story::new(|stage, fleet| Box::pin(an_upgrade(stage, fleet)));
const ONE_UPGRADE: Story = Story::new(|stage, fleet| Box::pin(one_upgrade(stage, fleet))).killed_later();
const SHORT_LIFE: Story = Story::new(|stage, fleet| Box::pin(a_short_life(stage, fleet)));

/// The seeds to run: those asked for by RIG_SEED, or so many.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("RIG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

/// Seeds in which the API server is gone for the minute in which kubelets join for the first time.
const GONE_WHILE_JOINING: [u64; 2] = [22, 76];

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_of_an_upgrade_doubles_no_step() {
    crash_at_every_call(ONE_UPGRADE, &Ground::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_of_a_removal_leaves_a_clean_host() {
    crash_at_every_call(SHORT_LIFE, &Ground::InProcess).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_double_no_step() {
    let (one, _) = run(&Arc::new(UPGRADE), &Ground::InProcess, Disturbance::None).await.unwrap();
    // What they write of the machines contradicts each other until one of them is gone, so that they never come to rest.
    let (two, _) = run_in_real_time(&Arc::new(UPGRADE.twice()), &Ground::InProcess).await.unwrap();
    assert_eq!(one.acts, two.acts);
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_doubles_no_step() {
    under_trouble(UPGRADE, &Ground::InProcess, &seeds(8), &Rates::rough()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_while_a_kubelet_joins_does_not_count_against_the_package() {
    under_trouble(UPGRADE, &Ground::InProcess, &GONE_WHILE_JOINING, &Rates::rough()).await.unwrap().unwrap();
}
