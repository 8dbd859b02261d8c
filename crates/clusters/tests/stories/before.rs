//! What stands before an upgrade: it is held back, and nothing is touched.

use fleetwright_api::{ComponentOverrides, Status, condition, names};
use fleetwright_sim::meta::Removal;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::World;

/// Waits until the change is held back for that reason; answers what is said.
async fn held(world: &World, reason: &str) -> String {
    world
        .until(&format!("it is held back: {reason}"), async || {
            let status = world.status("pay").await;
            match condition(&status.conditions, names::UPGRADABLE) {
                Some(one) if one.status == Status::False && one.reason == reason => Ok(one.message.clone()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
}

async fn packages(world: &World) -> Vec<String> {
    let (deployments, sets): (Api<Deployment>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    let mut all: Vec<String> = Vec::new();
    for one in deployments.list(&Default::default()).await.unwrap() {
        all.extend(one.annotations().get("fleetwright.io/package-version").cloned());
    }
    for one in sets.list(&Default::default()).await.unwrap() {
        all.extend(one.annotations().get("fleetwright.io/package-version").cloned());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_callers_use_and_the_next_minor_removes_holds_an_upgrade_back() {
    let world = World::start().await;
    let (group, version) = ("storage.k8s.io".to_owned(), "v1".to_owned());
    let removal = Removal { group, version, resource: "storageclasses".to_owned(), release: "1.37".to_owned() };
    world.meta.declare_removal(removal);
    world.create("pay", |spec| spec.replicas = 2).await;
    world.ready("pay").await;
    // One caller, at one of the two.
    let pods: Api<Pod> = world.api("pay");
    let server = pods.list(&Default::default()).await.unwrap().items.into_iter();
    let mut servers = server.filter(|pod| pod.name_any().starts_with("kube-apiserver"));
    let client = world.meta.client("fleet-pay", &servers.next().unwrap().name_any()).unwrap();
    Api::<StorageClass>::all(client).list(&Default::default()).await.unwrap();

    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::REMOVED_APIS_IN_USE).await;
    assert!(message.contains("storageclasses of storage.k8s.io/v1 (removed in 1.37)"), "{message}");
    let packages = packages(&world).await;
    assert_eq!(packages.len(), 4);
    assert!(packages.iter().all(|package| package == "v1.36"), "nothing is touched: {packages:?}");
    world.told("UpgradeHeldBack").await;
    // Said of another change, it does not count.
    let annotate = |text: &str| json!({ "metadata": { "annotations": { names::OVERRIDE: text } } });
    world.change("pay", annotate("RemovedApisInUse@v1.36")).await;
    held(&world, names::reasons::REMOVED_APIS_IN_USE).await;
    world.change("pay", annotate("RemovedApisInUse@v1.37")).await;
    let status = world.ready("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_fall_out_of_the_supported_skew_holds_an_upgrade_back() {
    let world = World::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let pods: Api<Pod> = world.api("pay");
    let mut pods = pods.list(&Default::default()).await.unwrap().items.into_iter();
    let server = pods.find(|pod| pod.name_any().starts_with("kube-apiserver")).unwrap().name_any();
    let nodes: Api<Node> = Api::all(world.meta.client("fleet-pay", &server).unwrap());
    for (name, version) in [("old", "v1.33.2"), ("fine", "v1.36.4")] {
        let node = json!({ "metadata": { "name": name } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let info = json!({
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": version, "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        });
        let patch = kube::api::Patch::Merge(json!({ "status": { "nodeInfo": info } }));
        nodes.patch_status(name, &Default::default(), &patch).await.unwrap();
    }
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::KUBELET_TOO_OLD).await;
    assert!(message.contains("old (v1.33.2)") && !message.contains("fine"), "{message}");
    assert!(packages(&world).await.iter().all(|package| package == "v1.36"), "something was touched");
    let annotation = json!({ "metadata": { "annotations": { names::OVERRIDE: "KubeletTooOld@v1.37" } } });
    world.change("pay", annotation).await;
    let status = world.ready("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_without_room_for_one_more_pod_holds_an_upgrade_back() {
    let world = World::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let quotas: Api<ResourceQuota> = world.api("pay");
    let quota = json!({ "metadata": { "name": "small" }, "spec": { "hard": { "pods": "3" } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    world.seen(&quotas, "small", |quota| quota.status.as_ref().is_some_and(|status| status.used.is_some())).await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::NO_ROOM).await;
    assert!(message.contains("ResourceQuota small allows pods 3"), "{message}");
    let status = world.status("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.36"), "{status:#?}");
    let accepted = condition(&status.conditions, names::ACCEPTED).unwrap();
    assert_eq!(accepted.status, Status::True, "nothing else of the cluster suffers from it: {accepted:?}");
    // What was not begun is not missed when it is taken back.
    world.change("pay", json!({ "spec": { "packageVersion": "v1.36" } })).await;
    let status = world.ready("pay").await;
    assert_eq!(status.previous, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_argument_that_a_minor_does_not_know_is_refused_before_anything_is_touched() {
    let world = World::start().await;
    let args = || ComponentOverrides {
        // Only 1.36 has it.
        args: [("concurrent-service-syncs".to_owned(), "2".to_owned())].into(),
        ..ComponentOverrides::default()
    };
    world
        .create("shop", |spec| {
            spec.package_version = "v1.37".to_owned();
            spec.components.controller_manager = Some(args());
        })
        .await;
    world
        .until("it is refused", async || {
            let status = world.status("shop").await;
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one) if one.reason == names::reasons::BAD_ARGUMENT => Ok(one.message.clone()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let deployments: Api<Deployment> = world.api("shop");
    assert!(deployments.list(&Default::default()).await.unwrap().items.is_empty());

    world.create("pay", |spec| spec.components.controller_manager = Some(args())).await;
    world.ready("pay").await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::BAD_ARGUMENT).await;
    assert!(
        message.contains("kube-controller-manager of Kubernetes 1.37") && message.contains("concurrent-service-syncs")
    );
    assert!(packages(&world).await.iter().all(|package| package == "v1.36"));
    let without =
        json!({ "spec": { "components": { "controllerManager": { "args": { "concurrent-service-syncs": null } } } } });
    world.change("pay", without).await;
    world.ready("pay").await;
}
