//! Deployments, StatefulSets and their pods.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fleetwright_sim::meta::VersionDefect;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::{MetaEnv, NAMESPACE, container, describe, is_ready};

fn template(image: &str, more: Value) -> Value {
    let mut spec = json!({ "containers": [{ "name": "web", "image": image }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec })
}

fn deployment(replicas: usize, image: &str, more: Value) -> Value {
    json!({ "metadata": { "name": "web" }, "spec": {
        "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template(image, more),
        "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
    } })
}

fn stateful_set(replicas: usize, image: &str, policy: &str) -> Value {
    json!({ "metadata": { "name": "db" }, "spec": {
        "serviceName": "db", "replicas": replicas, "podManagementPolicy": policy,
        "selector": { "matchLabels": { "app": "web" } }, "template": template(image, json!({})),
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        } }],
    } })
}

async fn rolled_out(world: &MetaEnv, image: &str) {
    world
        .until(&format!("all pods run {image}"), async |world| {
            let deployment = world.api::<Deployment>().get("web").await.unwrap();
            let (spec, status) = (deployment.spec, deployment.status?);
            let wanted = spec.replicas;
            let done = status.observed_generation == deployment.metadata.generation
                && status.replicas == wanted
                && status.updated_replicas == wanted
                && status.available_replicas == wanted
                && status.unavailable_replicas.is_none();
            let pods = world.pods().await;
            let all = pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image));
            (done && all && pods.len() == usize::try_from(wanted?).unwrap()).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_becomes_ready_pods_on_different_nodes() {
    let world = MetaEnv::start().await;
    world.apply::<Deployment>(deployment(3, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    let pods = world.pods().await;
    let nodes: BTreeSet<_> = pods.iter().map(|pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap()).collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    let ips: BTreeSet<_> = pods.iter().map(|pod| pod.status.as_ref().unwrap().pod_ip.clone().unwrap()).collect();
    assert!(ips.len() == 3 && ips.iter().all(|ip| ip.starts_with("127.")), "{ips:?}");
    assert!(pods.iter().all(|pod| pod.labels().contains_key("pod-template-hash")));
    let deployment = world.api::<Deployment>().get("web").await.unwrap();
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "1");
    let conditions = deployment.status.unwrap().conditions.unwrap();
    let told = |type_: &str| {
        conditions.iter().find(|one| one.type_.as_deref() == Some(type_)).and_then(|one| one.reason.clone()).unwrap()
    };
    assert_eq!(told("Available"), "MinimumReplicasAvailable");
    assert_eq!(told("Progressing"), "NewReplicaSetAvailable");
    assert_eq!((world.meta.counts().pods, world.meta.counts().containers), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_surge_of_one_there_are_never_fewer_ready_pods_than_asked_for() {
    let world = MetaEnv::start().await;
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    world.apply::<Deployment>(deployment(2, "web:2", json!({}))).await;
    let (least, most) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
    world
        .until("the old version is gone", async |world| {
            let pods = world.pods().await;
            let active: Vec<&Pod> = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
            least.fetch_min(active.iter().filter(|pod| is_ready(pod)).count(), Ordering::Relaxed);
            most.fetch_max(active.len(), Ordering::Relaxed);
            let new = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("web:2");
            (pods.len() == 2 && pods.iter().all(new)).then_some(())
        })
        .await;
    let (least, most) = (least.into_inner(), most.into_inner());
    assert!(least >= 2 && most <= 3, "{least} {most}");
    rolled_out(&world, "web:2").await;
    // Roll back: the ReplicaSet of the first version is used again.
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    assert_eq!(world.api::<ReplicaSet>().list(&Default::default()).await.unwrap().items.len(), 2);
    let deployment = world.api::<Deployment>().get("web").await.unwrap();
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_never_becomes_ready_replaces_nothing() {
    let world = MetaEnv::start().await;
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    world.meta.declare("web", "2", Some(VersionDefect::NeverReady));
    world.apply::<Deployment>(deployment(2, "web:2", json!({}))).await;
    let runs = async |world: &MetaEnv| {
        let pods = world.pods().await;
        let of = |image: &str| {
            let this = |pod: &&Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image);
            pods.iter().filter(this).filter(|pod| container(pod)["state"]["running"].is_object()).count()
        };
        (of("web:1"), of("web:2"))
    };
    world.until("the new version runs", async |world| (runs(world).await == (2, 1)).then_some(())).await;
    let deployment_now = world.api::<Deployment>().get("web").await.unwrap();
    assert_eq!(deployment_now.status.unwrap().available_replicas, Some(2));
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_deleted_takes_its_pods_along() {
    let world = MetaEnv::start().await;
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    world.api::<Deployment>().delete("web", &DeleteParams::default()).await.unwrap();
    world.until("all pods are gone", async |world| world.pods().await.is_empty().then_some(())).await;
    world.until("nothing runs", async |world| (world.meta.counts().pods == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_comes_in_order_and_changes_from_the_last() {
    let world = MetaEnv::start().await;
    world.apply::<StatefulSet>(stateful_set(3, "web:1", "OrderedReady")).await;
    for name in ["db-0", "db-1", "db-2"] {
        world.until_ready(name).await;
    }
    let pods = world.pods().await;
    let times: Vec<_> = pods.iter().map(|pod| pod.metadata.creation_timestamp.clone().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let spec = pods[1].spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-1"), Some("db")));
    let claims: Vec<PersistentVolumeClaim> = world.api().list(&Default::default()).await.unwrap().items;
    assert_eq!(claims.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["data-db-0", "data-db-1", "data-db-2"]);
    assert!(claims.iter().all(|claim| claim.status.as_ref().unwrap().phase.as_deref() == Some("Bound")));

    world.apply::<StatefulSet>(stateful_set(3, "web:2", "OrderedReady")).await;
    let mut seen = Vec::new();
    world
        .until("all are changed", async |world| {
            let set = world.api::<StatefulSet>().get("db").await.unwrap();
            let status = set.status?;
            let done = status.current_revision == status.update_revision && status.updated_replicas == Some(3);
            (done && status.ready_replicas == Some(3) && status.observed_generation == set.metadata.generation)
                .then_some(())
        })
        .await;
    let mut pods = world.pods().await;
    pods.sort_by_key(|pod| pod.metadata.resource_version.as_ref().unwrap().parse::<u64>().unwrap());
    seen.extend(pods.iter().map(ResourceExt::name_any));
    assert_eq!(seen, ["db-2", "db-1", "db-0"]);
    assert!(pods.iter().all(|pod| container(pod)["image"] == "web:2"), "{}", describe(&pods[0]));
    let after: Vec<PersistentVolumeClaim> = world.api().list(&Default::default()).await.unwrap().items;
    let uids = |claims: &[PersistentVolumeClaim]| claims.iter().map(|claim| claim.uid().unwrap()).collect::<Vec<_>>();
    assert_eq!(uids(&after), uids(&claims), "claims survive their pods");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_parallel_no_pod_waits_for_another() {
    let world = MetaEnv::start().await;
    world.meta.declare("web", "1", Some(VersionDefect::NeverReady));
    world.apply::<StatefulSet>(stateful_set(3, "web:1", "Parallel")).await;
    world
        .until("all run", async |world| {
            let pods = world.pods().await;
            let running = pods.iter().filter(|pod| container(pod)["state"]["running"].is_object()).count();
            (running == 3).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_its_secret_and_says_so() {
    let world = MetaEnv::start().await;
    let mounts = json!({ "volumes": [
        { "name": "tls", "secret": { "secretName": "apiserver-tls" } },
        { "name": "config", "configMap": { "name": "web-config" } },
    ] });
    world.apply::<ConfigMap>(json!({ "metadata": { "name": "web-config" }, "data": { "a": "b" } })).await;
    world.apply::<Deployment>(deployment(1, "web:1", mounts)).await;
    let why = world
        .until("it says what it waits for", async |world| {
            let events = world.api::<Event>().list(&Default::default()).await.unwrap().items;
            events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some("FailedMount"))
                .and_then(|event| event.message)
        })
        .await;
    assert_eq!(why, "MountVolume.SetUp failed for volume \"tls\" : secret \"apiserver-tls\" not found");
    let pod = world
        .until("its container is being created", async |world| {
            let creating = |pod: &Pod| container(pod)["state"]["waiting"]["reason"] == "ContainerCreating";
            world.pods().await.into_iter().find(creating)
        })
        .await;
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
    world.apply::<Secret>(json!({ "metadata": { "name": "apiserver-tls" }, "stringData": { "tls.key": "k" } })).await;
    rolled_out(&world, "web:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_container_comes_back_and_one_that_always_ends_waits_longer_each_time() {
    let world = MetaEnv::start().await;
    world.apply::<Deployment>(deployment(1, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    let name = world.pods().await[0].name_any();
    assert!(world.meta.kill(NAMESPACE, &name, Some("web")));
    let pod = world
        .until("it runs again", async |world| {
            world.pod(&name).await.filter(|pod| is_ready(pod) && container(pod)["restartCount"] == 1)
        })
        .await;
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 137);
    assert!(!world.meta.kill(NAMESPACE, "nobody", None));

    world.meta.declare("web", "2", Some(VersionDefect::CrashesAfter(Duration::from_millis(5))));
    let mut patient = deployment(1, "web:2", json!({}));
    patient["spec"]["minReadySeconds"] = 5.into();
    world.apply::<Deployment>(patient).await;
    world
        .until("the new one is in a loop", async |world| {
            let looping = |pod: &Pod| {
                let told = container(pod);
                told["state"]["waiting"]["reason"] == "CrashLoopBackOff" && told["restartCount"].as_i64() >= Some(2)
            };
            world.pods().await.iter().any(looping).then_some(())
        })
        .await;
    assert!(is_ready(&world.pod(&name).await.unwrap()), "the old one stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_lost_node_are_replaced_elsewhere_and_end_when_it_returns() {
    let world = MetaEnv::start().await;
    let tolerations = json!({ "tolerations": [
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 1 },
    ] });
    world.apply::<Deployment>(deployment(2, "web:1", tolerations)).await;
    rolled_out(&world, "web:1").await;
    let first = &world.pods().await[0];
    let node = first.spec.as_ref().unwrap().node_name.clone().unwrap();
    assert!(world.meta.lose_node(&node));
    world
        .until("the node is known to be lost", async |world| {
            let node = Api::<Node>::all(world.client.clone()).get(&node).await.unwrap();
            let conditions = node.status?.conditions?;
            conditions.iter().any(|one| one.type_ == "Ready" && one.status == "Unknown").then_some(())
        })
        .await;
    world
        .until("another is ready elsewhere", async |world| {
            let pods = world.pods().await;
            let elsewhere = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.as_ref() != Some(&node) && is_ready(pod);
            (pods.iter().filter(elsewhere).count() == 2).then_some(())
        })
        .await;
    let stranded = world.pod(&first.name_any()).await.expect("nobody can say that it is gone");
    assert!(stranded.metadata.deletion_timestamp.is_some());
    assert!(world.meta.return_node(&node));
    rolled_out(&world, "web:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_fits_nowhere_says_why_and_is_placed_when_there_is_room() {
    let world = MetaEnv::start().await;
    let alone = json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
    ] } } });
    world.apply::<Deployment>(deployment(4, "web:1", alone.clone())).await;
    let why = world
        .until("one has no place", async |world| {
            let pods = world.pods().await;
            let conditions =
                pods.iter().flat_map(|pod| pod.status.iter().flat_map(|status| status.conditions.iter().flatten()));
            conditions
                .into_iter()
                .find(|one| one.reason.as_deref() == Some("Unschedulable"))
                .and_then(|one| one.message.clone())
        })
        .await;
    assert_eq!(why, "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.");
    world.apply::<Deployment>(deployment(3, "web:1", alone)).await;
    rolled_out(&world, "web:1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_slices_tell_who_is_ready() {
    let world = MetaEnv::start().await;
    let service = json!({ "metadata": { "name": "web" }, "spec": {
        "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }], "type": "LoadBalancer",
    } });
    world.apply::<Service>(service).await;
    world.apply::<Deployment>(deployment(2, "web:1", json!({}))).await;
    let ready = async |world: &MetaEnv| {
        let slices: Vec<EndpointSlice> = world.api().list(&Default::default()).await.unwrap().items;
        let slice = slices.into_iter().next()?;
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "web");
        let endpoints = slice.endpoints.unwrap_or_default();
        Some(endpoints.iter().filter(|one| one.conditions.as_ref().unwrap().ready == Some(true)).count())
    };
    world.until("both are ready", async |world| (ready(world).await == Some(2)).then_some(())).await;
    let balancer = world
        .until("the balancer has an address", async |world| {
            let service = world.api::<Service>().get("web").await.unwrap();
            service.status?.load_balancer?.ingress?.first()?.ip.clone()
        })
        .await;
    assert!(balancer.starts_with("127."), "{balancer}");
    assert!(world.meta.service_address(NAMESPACE, "web").is_some());
    world.apply::<Deployment>(deployment(0, "web:1", json!({}))).await;
    world.until("none is left", async |world| (ready(world).await == Some(0)).then_some(())).await;
    world.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    world.until("nothing listens", async |world| (world.meta.counts().sockets == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disruption_budget_lets_pods_be_evicted_one_after_the_other() {
    let world = MetaEnv::start().await;
    let budget = json!({ "metadata": { "name": "web" }, "spec": {
        "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } },
    } });
    world.apply::<PodDisruptionBudget>(budget).await;
    world.apply::<Deployment>(deployment(3, "web:1", json!({}))).await;
    rolled_out(&world, "web:1").await;
    let allows = async |world: &MetaEnv, number| {
        let status = world.api::<PodDisruptionBudget>().get("web").await.unwrap().status?;
        (status.disruptions_allowed == Some(number) && status.expected_pods == Some(3)).then_some(())
    };
    world.until("one may go", async |world| allows(world, 1).await).await;
    let first = world.pods().await[0].name_any();
    world.api::<Pod>().evict(&first, &Default::default()).await.unwrap();
    world.until("it is gone", async |world| world.pod(&first).await.is_none().then_some(())).await;
    rolled_out(&world, "web:1").await;
    world.until("one may go again", async |world| allows(world, 1).await).await;
}
