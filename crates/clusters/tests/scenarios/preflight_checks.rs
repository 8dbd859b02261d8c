//! What stands before an upgrade: it is held back, and nothing is touched.

use std::time::Duration;

use fleetwright_api::{ComponentOverrides, Status, condition, names};
use fleetwright_lab::{ServerKind, Target};
use fleetwright_plan::cluster::survey::{RemovedApi, removed_apis};
use fleetwright_sim::meta::Removal;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, ResourceQuota};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::support::TestFleet;
use crate::versions::{business, refer};

/// Waits until the change is held back for that reason; answers what is said.
pub async fn held(world: &TestFleet, reason: &str) -> String {
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

async fn packages(world: &TestFleet) -> Vec<String> {
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
    let world = TestFleet::start().await;
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
    for part in ["storageclasses", "storage.k8s.io/v1", "removed in 1.37"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let packages = packages(&world).await;
    assert_eq!(packages.len(), 4);
    assert!(packages.iter().all(|package| package == "v1.36"), "nothing is touched: {packages:?}");
    world.told("UpgradeBlocked").await;
    // Said of another change, it does not count.
    let annotate = |text: &str| json!({ "metadata": { "annotations": { names::OVERRIDE: text } } });
    world.change("pay", annotate("RemovedAPIsInUse@v1.36")).await;
    held(&world, names::reasons::REMOVED_APIS_IN_USE).await;
    world.change("pay", annotate("RemovedAPIsInUse@v1.37")).await;
    let status = world.ready("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
}

/// Endpoints are deprecated since 1.33, and no release removes them: the test writes a release into the metrics.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_a_release_removes_is_found_in_the_metrics_of_kube_apiserver_on_real() {
    let server = Target::real().await.unwrap();
    let client = server.admin();
    Api::<Endpoints>::all(client.clone()).list(&Default::default()).await.unwrap();
    // A request can be answered before it is counted.
    let counted = async {
        loop {
            let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
            let page = client.request_text(request).await.unwrap();
            let deprecated = page.lines().filter(|line| line.starts_with("apiserver_requested_deprecated_apis{"));
            let deprecated: String = deprecated.map(|line| format!("{line}\n")).collect();
            if deprecated.contains(r#"resource="endpoints""#) {
                return (page, deprecated);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let counted = tokio::time::timeout(Duration::from_secs(30), counted).await;
    let (page, deprecated) = counted.expect("the metrics do not tell that Endpoints were listed");
    let is_endpoints = |api: &RemovedApi| api.resource == "endpoints";
    assert!(!removed_apis(&page).iter().any(is_endpoints), "no release removes them: {deprecated}");
    let removed = page.replace(r#"removed_release="""#, r#"removed_release="1.38""#);
    let found: Vec<_> = removed_apis(&removed).into_iter().filter(is_endpoints).collect();
    let endpoints = RemovedApi {
        group: String::new(),
        version: "v1".to_owned(),
        resource: "endpoints".to_owned(),
        removed_release: "1.38".to_owned(),
    };
    assert_eq!(found, [endpoints], "{deprecated}");
    server.stop(false).await;
}

/// Nodes of the business cluster, with the versions of their kubelets.
async fn join(world: &TestFleet, kubelets: [(&str, &str); 2]) {
    let nodes: Api<Node> = Api::all(business(world).await);
    for (name, version) in kubelets {
        let node = json!({ "metadata": { "name": name } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let info = json!({
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": version, "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        });
        let patch = Patch::Merge(json!({ "status": { "nodeInfo": info } }));
        nodes.patch_status(name, &Default::default(), &patch).await.unwrap();
    }
}

/// Gives a Node a heartbeat that an API server accepts and most clients cannot read, as its kubelet may.
async fn confuse(client: &Client, name: &str) {
    let late = "9999-12-31T23:59:59Z";
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
    let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": late, "lastTransitionTime": late });
    let patch = Patch::Merge(json!({ "status": { "conditions": [ready] } }));
    let node = nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(node.data["status"]["conditions"][0]["lastHeartbeatTime"], late, "the API server changed it");
    let typed = Api::<Node>::all(client.clone()).list(&Default::default()).await;
    assert!(typed.is_err(), "a client reads it");
}

async fn an_old_kubelet_holds_an_upgrade_back(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    join(&world, [("old", "v1.33.2"), ("fine", "v1.36.4")]).await;
    refer(&world, "v1.37").await;
    let message = held(&world, names::reasons::KUBELET_TOO_OLD).await;
    assert!(message.contains("old (v1.33.2)") && !message.contains("fine"), "{message}");
    assert!(packages(&world).await.iter().all(|package| package == "v1.36"), "something was touched");
    let annotation = json!({ "metadata": { "annotations": { names::OVERRIDE: "KubeletTooOld@v1.37" } } });
    world.change("pay", annotation).await;
    let status = world.ready("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_fall_out_of_the_supported_skew_holds_an_upgrade_back() {
    an_old_kubelet_holds_an_upgrade_back(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_fall_out_of_the_supported_skew_holds_an_upgrade_back_on_real() {
    an_old_kubelet_holds_an_upgrade_back(ServerKind::Real).await;
}

/// On kube-apiserver the rollback is not carried out, to save time.
async fn a_new_kubelet_holds_a_rollback_back(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    world.ready("pay").await;
    join(&world, [("new", "v1.37.1"), ("fine", "v1.36.4")]).await;
    refer(&world, "v1.36").await;
    let message = held(&world, names::reasons::KUBELET_TOO_NEW).await;
    assert!(message.contains("new (v1.37.1)") && !message.contains("fine"), "{message}");
    assert!(packages(&world).await.iter().all(|package| package == "v1.37"), "something was touched");
    if kind == ServerKind::Embedded {
        let annotation = json!({ "metadata": { "annotations": { names::OVERRIDE: "KubeletTooNew@v1.36" } } });
        world.change("pay", annotation).await;
        let status = world.ready("pay").await;
        assert_eq!(status.package_version.as_deref(), Some("v1.36"));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_be_newer_than_its_api_server_holds_a_rollback_back() {
    a_new_kubelet_holds_a_rollback_back(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_would_be_newer_than_its_api_server_holds_a_rollback_back_on_real() {
    a_new_kubelet_holds_a_rollback_back(ServerKind::Real).await;
}

async fn a_node_that_cannot_be_read_hides_no_other(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    world.ready("pay").await;
    join(&world, [("new", "v1.37.1"), ("strange", "v1.36.4")]).await;
    confuse(&business(&world).await, "strange").await;
    refer(&world, "v1.36").await;
    let message = held(&world, names::reasons::KUBELET_TOO_NEW).await;
    assert!(message.contains("new (v1.37.1)") && !message.contains("strange"), "{message}");
    assert!(packages(&world).await.iter().all(|package| package == "v1.37"), "something was touched");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_heartbeat_does_not_parse_hides_no_kubelet_that_is_too_new() {
    a_node_that_cannot_be_read_hides_no_other(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_heartbeat_does_not_parse_hides_no_kubelet_that_is_too_new_on_real() {
    a_node_that_cannot_be_read_hides_no_other(ServerKind::Real).await;
}

/// The API servers of simulated control planes are embedded ones: this shows that kube-apiserver does the same.
#[tokio::test(flavor = "multi_thread")]
async fn kube_apiserver_accepts_a_heartbeat_that_does_not_parse_on_real() {
    let server = Target::real().await.unwrap();
    let client = server.admin();
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "strange" } })).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    confuse(&client, "strange").await;
    server.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_without_room_for_one_more_pod_holds_an_upgrade_back() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let quotas: Api<ResourceQuota> = world.api("pay");
    let quota = json!({ "metadata": { "name": "small" }, "spec": { "hard": { "pods": "3" } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    world.seen(&quotas, "small", |quota| quota.status.as_ref().is_some_and(|status| status.used.is_some())).await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::INSUFFICIENT_RESOURCES).await;
    assert!(message.contains("ResourceQuota small ") && message.contains(" of 3 used"), "{message}");
    let status = world.status("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.36"), "{status:#?}");
    let accepted = condition(&status.conditions, names::ACCEPTED).unwrap();
    assert_eq!(accepted.status, Status::True, "nothing else of the cluster suffers from it: {accepted:?}");
    // The rollback of a change that has not started loses nothing.
    world.change("pay", json!({ "spec": { "packageVersion": "v1.36" } })).await;
    let status = world.ready("pay").await;
    assert_eq!(status.previous, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_argument_that_a_minor_does_not_know_is_refused_before_anything_is_touched() {
    let world = TestFleet::start().await;
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
                Some(one) if one.reason == names::reasons::INVALID_ARGUMENT => Ok(one.message.clone()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let deployments: Api<Deployment> = world.api("shop");
    assert!(deployments.list(&Default::default()).await.unwrap().items.is_empty());

    world.create("pay", |spec| spec.components.controller_manager = Some(args())).await;
    world.ready("pay").await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    let message = held(&world, names::reasons::INVALID_ARGUMENT).await;
    for part in ["kube-controller-manager", "Kubernetes 1.37", "concurrent-service-syncs"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(packages(&world).await.iter().all(|package| package == "v1.36"));
    let without =
        json!({ "spec": { "components": { "controllerManager": { "args": { "concurrent-service-syncs": null } } } } });
    world.change("pay", without).await;
    world.ready("pay").await;
}
