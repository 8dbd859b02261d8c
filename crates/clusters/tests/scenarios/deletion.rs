//! The deletion of a cluster is an Operation.

use fleetwright_api::{Operation, OperationPhase, condition, names};
use fleetwright_lab::ServerKind;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::snapshots::snapshot;
use crate::support::{FLEET, TestFleet, not_accepted};
use crate::tenants::prepared;
use crate::versions::business;

const TYPE: &str = "ClusterDelete";

/// The uids of the volumes of `pay` that are not terminating.
async fn volumes(world: &TestFleet) -> Vec<Option<String>> {
    let claims: Api<PersistentVolumeClaim> = world.api("pay");
    let all = claims.list(&Default::default()).await.unwrap().items.into_iter().map(|claim| claim.metadata);
    all.filter(|claim| claim.deletion_timestamp.is_none()).map(|claim| claim.uid).collect()
}

async fn a_policy_holds_a_deletion(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.limit(TYPE, 0).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let before = volumes(&world).await;
    assert!(!before.is_empty(), "it has no volume");
    world.delete("pay").await;
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    world.told(names::reasons::DELETION_PENDING).await;
    world.operations(TYPE, &[OperationPhase::Pending]).await;
    // Until then it is repaired like any other.
    let deployments: Api<Deployment> = world.api("pay");
    let uid = deployments.get("kube-scheduler").await.unwrap().metadata.uid;
    deployments.delete("kube-scheduler", &DeleteParams::background()).await.unwrap();
    world.seen(&deployments, "kube-scheduler", |one| one.metadata.uid != uid).await;
    assert_eq!(volumes(&world).await, before);
    // A protection that is set again withdraws the Operation.
    world.change("pay", json!({ "spec": { "deletionProtection": true } })).await;
    world.operations(TYPE, &[OperationPhase::Failed]).await;
    world.change("pay", json!({ "spec": { "deletionProtection": false } })).await;
    world.operations(TYPE, &[OperationPhase::Failed, OperationPhase::Pending]).await;
    // A pause holds the deletion although the policy has room.
    world.change("pay", json!({ "spec": { "paused": true } })).await;
    not_accepted(&world, "pay", names::reasons::PAUSED, "spec.paused").await;
    world.limit(TYPE, 1).await;
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    world.operations(TYPE, &[OperationPhase::Failed, OperationPhase::Pending]).await;
    assert_eq!(volumes(&world).await, before);

    world.change("pay", json!({ "spec": { "paused": false } })).await;
    world.gone().await;
    world.operations(TYPE, &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_cluster_is_kept_with_its_volumes_until_the_policy_grants_its_deletion() {
    a_policy_holds_a_deletion(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_cluster_is_kept_with_its_volumes_until_the_policy_grants_its_deletion_on_real() {
    a_policy_holds_a_deletion(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_its_policy_needs_no_package_version_and_survives_a_restart() {
    let mut world = TestFleet::start().await;
    world.limit(TYPE, 0).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let before = volumes(&world).await;
    world.packages().delete("v1.36", &DeleteParams::default()).await.unwrap();
    world.delete("pay").await;
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    world.operator_stops().await;
    world.operator_starts();
    world.create("shop", |spec| spec.package_version = "v1.37".to_owned()).await;
    world.ready("shop").await;
    world.operations(TYPE, &[OperationPhase::Pending]).await;
    assert_eq!(volumes(&world).await, before);
    world.limit(TYPE, 1).await;
    world.gone().await;
    // The Operation that waited is the one that was granted.
    world.operations(TYPE, &[OperationPhase::Succeeded]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_its_policy_is_shown_beside_an_invalid_spec() {
    let world = TestFleet::start().await;
    world.limit(TYPE, 0).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    world.delete("pay").await;
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    world.change("pay", json!({ "spec": { "packageVersion": "nowhere" } })).await;
    let accepted = world
        .until("the new spec is observed", async || {
            let cluster = world.clusters().get("pay").await.unwrap();
            let conditions = cluster.status.unwrap_or_default().conditions;
            match condition(&conditions, names::ACCEPTED) {
                Some(one) if one.observed_generation == cluster.metadata.generation => Ok(one.clone()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert_eq!(accepted.reason, names::reasons::DELETION_PENDING, "{accepted:?}");
    world.limit(TYPE, 1).await;
    world.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_its_policy_withdraws_no_other_operation() {
    let world = TestFleet::start().await;
    for type_ in [TYPE, "Restore"] {
        world.limit(type_, 0).await;
    }
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let name = snapshot(&world, "now").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    world.operations("Restore", &[OperationPhase::Pending]).await;
    world.delete("pay").await;
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    world.operations("Restore", &[OperationPhase::Pending]).await;
    world.limit(TYPE, 1).await;
    world.gone().await;
    world.operations("Restore", &[OperationPhase::Failed]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_somebody_recreated_is_named_and_not_deleted_with_the_cluster() {
    let mut world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    world.operator_stops().await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete("fleet-pay", &DeleteParams::default()).await.unwrap();
    world
        .until("its namespace is gone", async || match namespaces.get_opt("fleet-pay").await.unwrap() {
            None => Ok(()),
            Some(there) => Err(format!("{there:?}")),
        })
        .await;
    let made = prepared(&world, "pay", None).await;
    world.delete("pay").await;
    world.operator_starts();
    not_accepted(&world, "pay", names::reasons::NAMESPACE_CONFLICT, "Delete the namespace").await;
    let left = namespaces.get("fleet-pay").await.unwrap();
    assert_eq!((left.uid(), left.metadata.deletion_timestamp), (made.uid(), None));
    namespaces.delete("fleet-pay", &DeleteParams::default()).await.unwrap();
    world.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_started_and_deleted_nothing_is_stopped_by_a_machine_that_joined_since() {
    let mut world = TestFleet::start().await;
    world.limit(TYPE, 0).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let before = volumes(&world).await;
    world.delete("pay").await;
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    // The operator ends after it claimed the Operation and before it deletes anything. Then a machine joins.
    world.operator_stops().await;
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let all = operations.list(&ListParams::default()).await.unwrap().items;
    let waiting = all.iter().find(|one| one.spec.type_ == TYPE).unwrap().name_any();
    let started = json!({ "phase": "Running", "startedAt": Timestamp::now(), "startedBy": "an earlier process" });
    let started = Patch::Merge(json!({ "status": started }));
    operations.patch_status(&waiting, &PatchParams::default(), &started).await.unwrap();
    let nodes: Api<Node> = Api::all(business(&world).await);
    let metadata = ObjectMeta { name: Some("host-17".to_owned()), ..ObjectMeta::default() };
    nodes.create(&PostParams::default(), &Node { metadata, ..Node::default() }).await.unwrap();
    world.operator_starts();
    not_accepted(&world, "pay", names::reasons::MACHINES_JOINED, "1 node").await;
    world.operations(TYPE, &[OperationPhase::Failed]).await;
    assert_eq!(volumes(&world).await, before);
    // The next attempt asks the gate.
    nodes.delete("host-17", &DeleteParams::default()).await.unwrap();
    not_accepted(&world, "pay", names::reasons::DELETION_PENDING, "OperationPolicy clusterdelete").await;
    world.operations(TYPE, &[OperationPhase::Failed, OperationPhase::Pending]).await;
    assert_eq!(volumes(&world).await, before);
    world.limit(TYPE, 1).await;
    world.gone().await;
    world.operations(TYPE, &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
}
