//! The operator has only the rights that it uses; the removal of any right is noticed.

use std::sync::Arc;

use anyhow::{Context, Result};
use fleetwright_api::Phase;
use fleetwright_lab::ServerKind;
use fleetwright_machines::rules;
use fleetwright_rig::rights::{CLUSTER, Right, check_rights, rights};
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Call, Harness, TestServer};
use fleetwright_sim::Fleet;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{
    BESIDE_MACHINES, DisruptionBudgets, MachineSteps, Story, TOKENS, delete, in_service, place, seconds,
};

const USER: &str = "system:serviceaccount:fleetwright-system:fleetwright-machines";
/// Rights that are removed at the same time, each in a world of its own.
const AT_ONCE: usize = 4;

/// Every call that an operator ever makes to the API server.
async fn a_full_life(harness: &Harness, fleet: &Fleet) -> Result<()> {
    in_service(harness, fleet, &["a", "b"]).await?;
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    harness.budget("web", json!({ "app": "web" }), 0).await?;
    harness.allow("web", 1, None).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    harness.phase("a", Phase::Ready).await?;
    // A pod that has no room in its budget is deleted where a Machine declares it.
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    harness.patch("a", json!({ "spec": { "drain": { "deleteAfter": "1m" } } })).await?;
    harness.refer("a", "containerd", "containerd-2.3.0").await?;
    harness.phase("a", Phase::Ready).await?;
    // The operator looks for a Node that somebody deleted.
    harness.nodes().delete(&harness.node_name("b"), &DeleteParams::default()).await?;
    harness.run_for(seconds(30)).await?;
    delete(harness, "a").await?;
    harness.gone("a").await
}

const FULL_LIFE: Story = Story::new(|harness, fleet| Box::pin(a_full_life(harness, fleet)));

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() {
    lives_with_its_rights(&TestServer::InProcess).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call_on_real() {
    lives_with_its_rights(&TestServer::start(ServerKind::Real).await.unwrap()).await;
}

/// Each right, and where it applies.
fn all_rights() -> Vec<Right> {
    let given = rules();
    [rights(BESIDE_MACHINES, &given.namespaced), rights(TOKENS, &given.tokens), rights(CLUSTER, &given.cluster)]
        .concat()
}

async fn lives_with_its_rights(test_server: &TestServer) {
    let story = FULL_LIFE.with_rights_as(USER);
    let (_, harness) = run(&Arc::new(story), test_server, Disturbance::None).await.unwrap();
    let refused: Vec<_> =
        harness.recorder().since(0).into_iter().filter(|record| record.code == Some(403)).map(|one| one.call).collect();
    assert!(refused.is_empty(), "with all rights these were refused: {refused:#?}");
    // The kit uses the lease, and its rights are granted with it.
    let calls = harness.recorder().since(0).into_iter().map(|record| record.call).filter(|call| !call.leases());
    // The rights of the journal are tested with the Cluster-Operator, which has the same journal. The test of joining
    // removes those of serving certificates.
    let joining = ["signers", "services", "endpointslices", "servicecidrs"];
    let elsewhere = |right: &Right| {
        right.resource.starts_with("operation") || joining.iter().any(|shown| right.resource.starts_with(shown))
    };
    check_rights(&all_rights(), calls, |call| place(&harness, call), elsewhere).unwrap();
}

/// Each right that the story needs is removed once, and a call is refused. The test of joining removes those of serving certificates.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_taken_away_is_missed() {
    let story = FULL_LIFE.with_rights_as(USER);
    let (_, harness) = run(&Arc::new(story), &TestServer::InProcess, Disturbance::None).await.unwrap();
    let calls: Vec<Call> = harness.recorder().calls().into_iter().map(|record| record.call).collect();
    let used = |right: &Right| {
        // Without streaming lists, a watch starts with a list.
        let watch = Right { verb: "watch".to_owned(), ..right.clone() };
        let wants = |call: &Call| {
            let place = place(&harness, call);
            right.allows(call, place) || (right.verb == "list" && watch.allows(call, place))
        };
        calls.iter().any(wants)
    };
    let needed: Vec<Right> = all_rights().into_iter().filter(used).collect();
    assert!(needed.len() > 20, "only these are needed: {needed:#?}");
    let (mut cases, mut wrong) = (JoinSet::new(), Vec::new());
    for right in needed {
        cases.spawn(async move {
            let right: &'static Right = Box::leak(Box::new(right));
            let story = Arc::new(story.without(right));
            let came = run(&story, &TestServer::InProcess, Disturbance::None).await;
            came.map(drop).with_context(|| format!("without {right:?}"))
        });
        if cases.len() >= AT_ONCE {
            wrong.extend(cases.join_next().await.and_then(|done| done.unwrap().err()));
        }
    }
    while let Some(done) = cases.join_next().await {
        wrong.extend(done.unwrap().err());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
