//! The operator has the rights that it uses, and no others.

use std::sync::Arc;

use anyhow::Result;
use fleetwright_api::Phase;
use fleetwright_lab::Kind;
use fleetwright_machines::rules;
use fleetwright_rig::rights::{CLUSTER, Right, judge, rights};
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Call, Ground, Stage};
use fleetwright_sim::Fleet;
use kube::api::DeleteParams;
use serde_json::json;

use crate::support::{Allowing, Story, Telling, delete, in_service, seconds};

/// Everything that an operator ever does to the API server.
async fn a_full_life(stage: &Stage, fleet: &Fleet) -> Result<()> {
    in_service(stage, fleet, &["a", "b"]).await?;
    stage.pod("a", "web", json!({ "app": "web" })).await?;
    stage.budget("web", json!({ "app": "web" }), 0).await?;
    stage.allow("web", 1, None).await?;
    stage.refer("a", "containerd", "containerd-2.4.2").await?;
    stage.phase("a", Phase::Ready).await?;
    // A pod that has no room in its budget is deleted where a machine says so.
    stage.pod("a", "held", json!({ "app": "held" })).await?;
    stage.budget("held", json!({ "app": "held" }), 1).await?;
    stage.patch("a", json!({ "spec": { "drain": { "deleteAfter": "1m" } } })).await?;
    stage.refer("a", "containerd", "containerd-2.3.0").await?;
    stage.phase("a", Phase::Ready).await?;
    // A Node that somebody deleted is missed.
    stage.nodes().delete(&stage.node_name("b"), &DeleteParams::default()).await?;
    stage.linger(seconds(30)).await?;
    delete(stage, "a").await?;
    stage.gone("a").await
}

const FULL_LIFE: Story = Story::new(|stage, fleet| Box::pin(a_full_life(stage, fleet)));

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() {
    lives_with_its_rights(&Ground::InProcess).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call_on_real() {
    lives_with_its_rights(&Ground::start(Kind::Real).await.unwrap()).await;
}

async fn lives_with_its_rights(ground: &Ground) {
    let story = FULL_LIFE.with_rights_as("system:serviceaccount:fleetwright-system:fleetwright-machines");
    let (_, stage) = run(&Arc::new(story), ground, Disturbance::None).await.unwrap();
    let refused: Vec<_> =
        stage.recorder().since(0).into_iter().filter(|record| record.code == Some(403)).map(|one| one.call).collect();
    assert!(refused.is_empty(), "with all rights these were refused: {refused:#?}");
    let given = rules();
    let mut all = rights("namespace", &given.namespaced);
    all.extend(rights("kube-system", &given.tokens));
    all.extend(rights(CLUSTER, &given.cluster));
    // The lease is the kit's, and its rights are given with it.
    let calls = stage.recorder().since(0).into_iter().map(|record| record.call).filter(|call| !call.leases());
    let place = |call: &Call| match &*call.namespace {
        "kube-system" => "kube-system",
        // As the server sees it: a Namespace is in itself.
        "" if call.resource == "namespaces" && call.name == "kube-system" => "kube-system",
        namespace if namespace == stage.namespace() => "namespace",
        _ => CLUSTER,
    };
    // What the journal needs is shown where it is kept; approving for a signer is asked by the server when a request is approved; a window
    // of an old life and a withdrawn Operation are other stories. Where the API server is, is read for serving certificates, which the
    // stories of joining ask for.
    let joining = ["signers", "services", "endpointslices", "servicecidrs"];
    let elsewhere = |right: &Right| {
        right.resource.starts_with("operation") || joining.iter().any(|shown| right.resource.starts_with(shown))
    };
    judge(&all, calls, place, elsewhere).unwrap();
}
