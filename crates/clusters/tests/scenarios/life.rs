//! Made, kept, deleted.

use fleetwright_api::{ClusterPhase, names};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::support::{TestFleet, not_accepted};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_and_proven_and_goes_without_a_trace() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 2).await;
    let status = world.ready("pay").await;
    assert_eq!(status.phase, Some(ClusterPhase::Ready));
    let servers = &status.components[1].replicas;
    assert_eq!(servers.len(), 2, "{status:#?}");
    assert!(
        servers.iter().all(|replica| replica.verified_at.is_some() && replica.version.as_deref() == Some("1.36.4"))
    );
    assert!(fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY));
    assert!(status.certificates.iter().any(|certificate| certificate.name == "apiserver-tls"));

    world.delete("pay").await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    world
        .until("everything is gone", async || {
            let cluster = world.clusters().get_opt("pay").await.unwrap();
            let namespace = namespaces.get_opt("fleet-pay").await.unwrap();
            if cluster.is_none() && namespace.is_none() { Ok(()) } else { Err(format!("{cluster:?} {namespace:?}")) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_or_removed_by_hand_comes_back() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;

    let deployments: Api<Deployment> = world.api("pay");
    let image = json!({ "spec": { "template": { "spec": { "containers": [
        { "name": "kube-scheduler", "image": "registry.example/kube-scheduler:v1.30.0" },
    ] } } } });
    deployments.patch("kube-scheduler", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    let of = |deployment: &Deployment| -> String {
        let pod = deployment.spec.clone().template.spec.unwrap();
        pod.containers[0].image.clone().unwrap()
    };
    world.seen(&deployments, "kube-scheduler", |one| of(one).ends_with(":v1.36.4")).await;

    let services: Api<Service> = world.api("pay");
    services.delete("kube-apiserver", &DeleteParams::default()).await.unwrap();
    world.seen(&services, "kube-apiserver", |one| one.metadata.deletion_timestamp.is_none()).await;
    let sets: Api<StatefulSet> = world.api("pay");
    sets.delete("etcd", &DeleteParams::background()).await.unwrap();
    world.seen(&sets, "etcd", |one| one.metadata.deletion_timestamp.is_none()).await;

    let secrets: Api<Secret> = world.api("pay");
    let before = secrets.get("ca").await.unwrap();
    secrets.delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    let broken = json!({ "stringData": { "tls.key": "nothing" } });
    secrets.patch("apiserver-kubelet-client", &PatchParams::default(), &Patch::Merge(broken)).await.unwrap();
    world
        .seen(&secrets, "apiserver-kubelet-client", |one| {
            one.data.as_ref().is_some_and(|data| data["tls.key"].0.starts_with(b"-----BEGIN"))
        })
        .await;
    world.ready("pay").await;
    assert_eq!(secrets.get("ca").await.unwrap().data, before.data, "an authority stays what it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_cluster_runs_on_until_its_protection_is_removed() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.deletion_protection = true).await;
    world.ready("pay").await;
    world.delete("pay").await;
    world
        .until("it says why it stays", async || {
            let waits = world.status("pay").await.waiting_for.unwrap_or_default();
            if waits.contains("spec.deletionProtection") { Ok(()) } else { Err(waits) }
        })
        .await;
    world.change("pay", json!({ "spec": { "deletionProtection": false } })).await;
    world
        .until("it is gone", async || match world.clusters().get_opt("pay").await.unwrap() {
            None => Ok(()),
            Some(cluster) => Err(format!("{:?}", cluster.status)),
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_its_package_version_says_so_and_goes_on_when_it_comes() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.package_version = "v1.38".to_owned()).await;
    not_accepted(&world, "pay", names::reasons::PACKAGE_VERSION_NOT_FOUND, "v1.38").await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    world.ready("pay").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_restarts_writes_nothing_to_an_unchanged_cluster() {
    let mut world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 2).await;
    world.ready("pay").await;
    world.operator_stops().await;
    let version = async |world: &TestFleet| world.clusters().get("pay").await.unwrap().metadata.resource_version;
    let secrets: Api<Secret> = world.api("pay");
    let texts = async || {
        let all = secrets.list(&Default::default()).await.unwrap().items;
        all.into_iter().map(|one| (one.metadata.name, one.metadata.resource_version)).collect::<Vec<_>>()
    };
    let (before, secrets_before) = (version(&world).await, texts().await);
    world.operator_starts();
    // Another cluster shows that it is at work again.
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    assert_eq!(secrets_before, texts().await, "no key is made twice");
    assert_eq!(before, version(&world).await);
}
