//! Members of etcd that are lost.

use fleetwright_api::{EtcdDatastore, names};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::json;

use crate::support::World;
use crate::versions::{there, write};

fn three(spec: &mut fleetwright_api::ClusterSpec) {
    spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
}

/// Since when its datastore is healthy, if it is.
async fn healthy_since(world: &World) -> Option<String> {
    let status = world.status("pay").await;
    let healthy = fleetwright_api::condition(&status.conditions, names::DATASTORE_HEALTHY)?;
    (healthy.status == fleetwright_api::Status::True).then(|| healthy.last_transition_time.to_string())
}

/// Empties the volume of a member, and waits until all are healthy again.
async fn lose(world: &World, member: &str) {
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
    let world = World::start().await;
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
async fn says(world: &World, type_: &str) {
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
    let world = World::start().await;
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
