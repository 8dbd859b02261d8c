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
    BESIDE_MACHINES, DisruptionBudgets, MachineScenario, MachineSteps, TOKENS, delete, in_service, place, seconds,
};

const USER: &str = "system:serviceaccount:fleetwright-system:fleetwright-machines";
/// Rights that are removed at the same time, each on an API server of its own.
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

const FULL_LIFE: MachineScenario = MachineScenario::new(|harness, fleet| Box::pin(a_full_life(harness, fleet)));

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
    let scenario = FULL_LIFE.with_rights_as(USER);
    let (_, harness) = run(&Arc::new(scenario), test_server, Disturbance::None).await.unwrap();
    let refused: Vec<_> =
        harness.recorder().since(0).into_iter().filter(|record| record.code == Some(403)).map(|one| one.call).collect();
    assert!(refused.is_empty(), "with all rights these were refused: {refused:#?}");
    // The kit uses the lease, and its rights are granted with it.
    let calls = harness.recorder().since(0).into_iter().map(|record| record.call).filter(|call| !call.leases());
    // `Journal::rules` gives the journal its rights, the same ones to each operator. This scenario only uses those for windows, which are removed
    // below. The others, to repair and to prune a journal, are tested with the Cluster-Operator. The test of joining removes those of serving
    // certificates.
    let joining = ["signers", "services", "endpointslices", "servicecidrs"];
    let elsewhere = |right: &Right| {
        right.resource.starts_with("operation") || joining.iter().any(|shown| right.resource.starts_with(shown))
    };
    check_rights(&all_rights(), calls, |call| place(&harness, call), elsewhere).unwrap();
}

/// Each right that the scenario needs is removed once, and a call is refused. The test of joining removes those of serving certificates.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_taken_away_is_missed() {
    let scenario = FULL_LIFE.with_rights_as(USER);
    let (_, harness) = run(&Arc::new(scenario), &TestServer::InProcess, Disturbance::None).await.unwrap();
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
    for right in REMOVED_ON_REAL {
        assert!(needed.iter().any(|one| is(one, right)), "{right:?} is not among {needed:#?}");
    }
    are_missed(&TestServer::InProcess, needed).await;
}

/// Rights that are removed on kube-apiserver as well: that of a subresource, of a watch, and of the journal.
const REMOVED_ON_REAL: [(&str, &str); 3] =
    [("machines/status", "patch"), ("secrets", "watch"), ("operations", "create")];

/// Whether this is the right to that resource and verb beside the machines.
fn is(right: &Right, (resource, verb): (&str, &str)) -> bool {
    (right.place, right.resource.as_str(), right.verb.as_str()) == (BESIDE_MACHINES, resource, verb)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_is_missed_on_real() {
    let chosen = |right: &Right| REMOVED_ON_REAL.into_iter().any(|one| is(right, one));
    let chosen: Vec<Right> = all_rights().into_iter().filter(chosen).collect();
    assert_eq!(chosen.len(), REMOVED_ON_REAL.len(), "{chosen:#?}");
    are_missed(&TestServer::start(ServerKind::Real).await.unwrap(), chosen).await;
}

/// Removes each of these rights once, and fails unless a call is refused each time.
async fn are_missed(test_server: &TestServer, removed: Vec<Right>) {
    // Runs on a shared server follow each other: they see the Nodes and the certificate requests of all.
    let at_once = if matches!(test_server, TestServer::InProcess) { AT_ONCE } else { 1 };
    let (mut cases, mut wrong) = (JoinSet::new(), Vec::new());
    for (number, right) in removed.into_iter().enumerate() {
        let test_server = test_server.clone();
        cases.spawn(async move {
            let right: &'static Right = Box::leak(Box::new(right));
            // Roles have the name of their user, and some are not in the namespace of the run: each run has a user of its own.
            let user: &'static str = Box::leak(format!("{USER}-{number}").into_boxed_str());
            let scenario = Arc::new(FULL_LIFE.with_rights_as(user).without(right));
            let came = run(&scenario, &test_server, Disturbance::None).await;
            came.map(drop).with_context(|| format!("without {right:?}"))
        });
        if cases.len() >= at_once {
            wrong.extend(cases.join_next().await.and_then(|done| done.unwrap().err()));
        }
    }
    while let Some(done) = cases.join_next().await {
        wrong.extend(done.unwrap().err());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
