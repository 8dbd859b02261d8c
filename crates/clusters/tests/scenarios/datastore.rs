//! Members of etcd that are lost, come and go, and get larger volumes.

use std::time::Duration;

use fleetwright_api::{EtcdDatastore, Operation, OperationPhase, names};
use fleetwright_lab::ServerKind;
use fleetwright_sim::meta::Step;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::json;
use tokio::sync::oneshot::error::TryRecvError;

use crate::support::{FLEET, TestFleet};
use crate::versions::{business, there, write};

fn three(spec: &mut fleetwright_api::ClusterSpec) {
    spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
}

/// Since when its datastore is healthy, if it is.
async fn healthy_since(world: &TestFleet) -> Option<String> {
    let status = world.status("pay").await;
    let healthy = fleetwright_api::condition(&status.conditions, names::DATASTORE_HEALTHY)?;
    (healthy.status == fleetwright_api::Status::True).then(|| healthy.last_transition_time.to_string())
}

/// Empties the volume of a member, and waits until all are healthy again.
pub async fn lose(world: &TestFleet, member: &str) {
    let before = healthy_since(world).await.expect("it is healthy");
    assert!(world.meta.wipe("fleet-pay", &format!("data-{member}")));
    world
        .until(&format!("{member} is replaced"), async || match healthy_since(world).await {
            Some(since) if since != before => Ok(()),
            _ => Err(format!("{:#?}", world.status("pay").await)),
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_volume_was_emptied_is_replaced_and_nothing_is_lost() {
    let world = TestFleet::start().await;
    world.create("pay", three).await;
    world.ready("pay").await;
    write(&world, "before").await;
    lose(&world, "etcd-2").await;
    let status = world.ready("pay").await;
    assert!(status.components[0].replicas.iter().all(|replica| replica.ready), "{status:#?}");
    assert!(there(&world, "before").await);
    // It is a member as any other: another one may be lost now.
    lose(&world, "etcd-0").await;
    world.ready("pay").await;
    assert!(there(&world, "before").await);
}

/// Waits until the condition says that the quorum is lost.
async fn says(world: &TestFleet, type_: &str) {
    world
        .until(&format!("{type_} says that the quorum is lost"), async || {
            let status = world.status("pay").await;
            let one = fleetwright_api::condition(&status.conditions, type_).cloned();
            let so = one.as_ref().is_some_and(|one| one.reason == names::reasons::QUORUM_LOST);
            if so { Ok(()) } else { Err(format!("{one:#?}")) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_it_says_so_and_nothing_is_touched() {
    let world = TestFleet::start().await;
    world.create("pay", three).await;
    world.ready("pay").await;
    let pods: Api<Pod> = world.api("pay");
    let uids = async || {
        let all = pods.list(&Default::default()).await.unwrap().items;
        all.into_iter().map(|pod| (pod.metadata.name, pod.metadata.uid)).collect::<Vec<_>>()
    };
    let before = uids().await;
    for claim in ["data-etcd-1", "data-etcd-2"] {
        assert!(world.meta.wipe("fleet-pay", claim));
    }
    says(&world, names::DATASTORE_HEALTHY).await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    says(&world, names::UPGRADABLE).await;
    assert_eq!(before, uids().await);
}

/// Declares another number of members and waits until there are that many.
async fn resize(world: &TestFleet, members: u32) {
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "members": members } } } })).await;
    let status = world.ready("pay").await;
    let etcd = status.etcd.clone().unwrap();
    assert_eq!((etcd.members, etcd.serving, etcd.change), (members, members, None), "{status:#?}");
    assert_eq!(status.components[0].replicas.len(), members as usize, "{status:#?}");
    let claims: Api<PersistentVolumeClaim> = world.api("pay");
    // One that is to go may still be protected for a moment.
    world
        .until("there is one volume for each member", async || {
            let left = claims.list(&Default::default()).await.unwrap().items.len();
            if left == members as usize { Ok(()) } else { Err(format!("{left} are left")) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_one_by_one_while_a_client_writes_and_no_write_is_lost() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.datastore.etcd.as_mut().unwrap().members = 1).await;
    world.ready("pay").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(business(&world).await);
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let writing = tokio::spawn({
        let maps = maps.clone();
        async move {
            let mut written = Vec::new();
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                let name = format!("written-{}", written.len());
                let map = ConfigMap {
                    metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                    ..ConfigMap::default()
                };
                // One that is refused or gets no answer is tried again: it may have been written.
                match maps.create(&PostParams::default(), &map).await {
                    Ok(_) => written.push(name),
                    Err(kube::Error::Api(error)) if error.code == 409 => written.push(name),
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            written
        }
    });
    for members in [3, 5, 7, 3, 1] {
        resize(&world, members).await;
    }
    drop(stop);
    let written = writing.await.unwrap();
    assert!(written.len() > 10, "{written:?}");
    let there = maps.list(&Default::default()).await.unwrap().items;
    let there: Vec<_> = there.into_iter().filter_map(|map| map.metadata.name).collect();
    let lost: Vec<_> = written.iter().filter(|name| !there.contains(name)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    // Each act on members and volumes was written down before it was done.
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let all = operations.list(&Default::default()).await.unwrap().items;
    let count = |type_: &str| {
        let done =
            |one: &&Operation| one.status.as_ref().is_some_and(|status| status.phase == OperationPhase::Succeeded);
        all.iter().filter(|one| one.spec.type_ == type_).filter(done).count()
    };
    for type_ in ["EtcdMemberAdd", "EtcdMemberPromote", "EtcdMemberRemove", "EtcdVolumeDelete"] {
        assert_eq!(count(type_), 6, "{type_}: {all:#?}");
    }
}

async fn members_leave_and_return(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", three).await;
    world.ready("pay").await;
    for (members, name) in [(1, "with-three"), (3, "with-one")] {
        write(&world, name).await;
        resize(&world, members).await;
        assert!(there(&world, name).await, "lost with {members}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_become_one_and_three_again_and_nothing_is_lost() {
    members_leave_and_return(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_become_one_and_three_again_and_nothing_is_lost_on_real() {
    members_leave_and_return(ServerKind::Real).await;
}

async fn a_lost_quorum_holds_a_smaller_number_back(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", three).await;
    world.ready("pay").await;
    let pods: Api<Pod> = world.api("pay");
    let sets: Api<StatefulSet> = world.api("pay");
    let uids = async || {
        let all = pods.list(&Default::default()).await.unwrap().items;
        let all = all.into_iter().filter(|pod| pod.metadata.name.as_deref().unwrap_or_default().starts_with("etcd-"));
        all.map(|pod| (pod.metadata.name, pod.metadata.uid)).collect::<Vec<_>>()
    };
    world.meta.wipe("fleet-pay", "data-etcd-0");
    world.meta.wipe("fleet-pay", "data-etcd-1");
    says(&world, names::DATASTORE_HEALTHY).await;
    let before = uids().await;
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "members": 1 } } } })).await;
    world
        .until("it is refused", async || {
            let status = world.status("pay").await;
            let one = fleetwright_api::condition(&status.conditions, names::MEMBERS_UP_TO_DATE).cloned();
            let so = one.as_ref().is_some_and(|one| one.reason == names::reasons::MEMBERS_UNHEALTHY);
            if so { Ok(()) } else { Err(format!("{one:#?}")) }
        })
        .await;
    assert_eq!(before, uids().await);
    assert_eq!(sets.get("etcd").await.unwrap().spec.replicas, Some(3));
    assert_eq!(world.status("pay").await.etcd.unwrap().members, 3);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_members_are_refused_without_a_quorum_and_nothing_is_touched() {
    a_lost_quorum_holds_a_smaller_number_back(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_members_are_refused_without_a_quorum_and_nothing_is_touched_on_real() {
    a_lost_quorum_holds_a_smaller_number_back(ServerKind::Real).await;
}

/// The quorum is there: without the refusal, the next member would be removed, and then one of two would be missing.
async fn a_member_that_is_not_ready_holds_a_smaller_number_back(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", three).await;
    world.ready("pay").await;
    let (pods, sets): (Api<Pod>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    let old = pods.get("etcd-1").await.unwrap().metadata.uid;
    world.meta.delay(Step::ContainerReady, Duration::from_secs(30), 1);
    pods.delete("etcd-1", &DeleteParams::default()).await.unwrap();
    world.seen(&pods, "etcd-1", |pod| pod.metadata.uid != old).await;
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "members": 1 } } } })).await;
    world
        .until("it is refused", async || {
            let status = world.status("pay").await;
            let one = fleetwright_api::condition(&status.conditions, names::MEMBERS_UP_TO_DATE).cloned();
            let so = one
                .as_ref()
                .is_some_and(|one| one.reason == names::reasons::MEMBERS_UNHEALTHY && one.message.contains("1 of 2"));
            if so { Ok(()) } else { Err(format!("{one:#?}")) }
        })
        .await;
    assert_eq!(sets.get("etcd").await.unwrap().spec.replicas, Some(3));
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let all = operations.list(&Default::default()).await.unwrap().items;
    assert!(all.iter().all(|one| one.spec.type_ != "EtcdMemberRemove"), "{all:#?}");
    // When all are ready the change continues by itself.
    world
        .until("one member is left", async || {
            let etcd = world.status("pay").await.etcd.unwrap();
            if (etcd.members, etcd.serving) == (1, 1) { Ok(()) } else { Err(format!("{etcd:#?}")) }
        })
        .await;
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_members_are_refused_while_one_is_not_ready() {
    a_member_that_is_not_ready_holds_a_smaller_number_back(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_members_are_refused_while_one_is_not_ready_on_real() {
    a_member_that_is_not_ready_holds_a_smaller_number_back(ServerKind::Real).await;
}

/// Declares larger volumes, and waits until all claims and the StatefulSet ask for that.
async fn grow(world: &TestFleet) {
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "storage": { "size": "20Gi" } } } } })).await;
    let (claims, sets): (Api<PersistentVolumeClaim>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    let storage = |claim: &PersistentVolumeClaim| {
        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
        requests.and_then(|requests| requests.get("storage").map(|size| size.0.clone())).unwrap_or_default()
    };
    world
        .until("volumes are larger", async || {
            let mut sizes: Vec<String> = claims.list(&Default::default()).await.unwrap().iter().map(storage).collect();
            let set = sets.get_opt("etcd").await.unwrap().map(|set| set.spec);
            sizes.extend(set.and_then(|spec| spec.volume_claim_templates).iter().flatten().map(storage));
            if sizes == ["20Gi"; 4] { Ok(()) } else { Err(format!("{sizes:?} {:#?}", world.status("pay").await)) }
        })
        .await;
    let status = world.ready("pay").await;
    assert!(fleetwright_api::is_true(&status.conditions, names::ACCEPTED), "{status:#?}");
}

/// Makes a StorageClass. The API server lets a claim grow only if its class says so.
pub async fn class(world: &TestFleet, name: &str, expands: bool) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name }, "provisioner": "example.com/disks", "allowVolumeExpansion": expands,
    });
    let class: StorageClass = serde_json::from_value(class).unwrap();
    Api::all(world.client.clone()).create(&PostParams::default(), &class).await.unwrap();
}

/// Three members with volumes of that class.
pub fn three_of(spec: &mut fleetwright_api::ClusterSpec, class: &str) {
    three(spec);
    spec.datastore.etcd.as_mut().unwrap().storage.class = Some(class.to_owned());
}

/// The uids of the members' pods and volumes.
async fn identities(world: &TestFleet) -> Vec<Option<String>> {
    let pods: Api<Pod> = world.api("pay");
    let claims: Api<PersistentVolumeClaim> = world.api("pay");
    let mut all = Vec::new();
    for number in 0..3 {
        all.push(pods.get(&format!("etcd-{number}")).await.unwrap().metadata.uid);
        all.push(claims.get(&format!("data-etcd-{number}")).await.unwrap().metadata.uid);
    }
    all
}

async fn volumes_are_expanded(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    class(&world, "elastic", true).await;
    world.create("pay", |spec| three_of(spec, "elastic")).await;
    world.ready("pay").await;
    let before = identities(&world).await;
    grow(&world).await;
    assert_eq!(before, identities(&world).await);
    // A version still changes: nothing of the StatefulSet is refused.
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn larger_volumes_are_expanded_in_place_and_nothing_restarts() {
    volumes_are_expanded(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn larger_volumes_are_expanded_in_place_and_nothing_restarts_on_real() {
    volumes_are_expanded(ServerKind::Real).await;
}

async fn volumes_are_replaced(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    class(&world, "rigid", false).await;
    world.create("pay", |spec| three_of(spec, "rigid")).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let before = identities(&world).await;
    grow(&world).await;
    let after = identities(&world).await;
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{before:?} {after:?}");
    assert!(there(&world, "before").await);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_a_class_that_cannot_expand_are_replaced_member_by_member_and_no_write_is_lost() {
    volumes_are_replaced(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_a_class_that_cannot_expand_are_replaced_member_by_member_and_no_write_is_lost_on_real() {
    volumes_are_replaced(ServerKind::Real).await;
}
