//! Replicas that do not work are removed from the endpoint and recreated.

use std::time::Duration;

use fleetwright_api::names;
use fleetwright_sim::meta::VersionDefect;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, ResourceExt};

use crate::support::TestFleet;

const VERSION: &str = "v1.36.4";

pub async fn pods(world: &TestFleet, component: &str) -> Vec<Pod> {
    let api: Api<Pod> = world.api("pay");
    let mut all = api.list(&Default::default()).await.unwrap().items;
    all.retain(|pod| pod.labels().get(names::COMPONENT).is_some_and(|name| name == component));
    all.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    all
}

/// One of two replicas restarts, and fails from now on; those after it work.
pub async fn break_replica(world: &TestFleet, component: &str, bad: VersionDefect) -> Pod {
    let victim = pods(world, component).await.remove(0);
    world.meta.declare(component, VERSION, Some(bad));
    assert!(world.meta.kill("fleet-pay", &victim.name_any(), None));
    let api: Api<Pod> = world.api("pay");
    world
        .seen(&api, &victim.name_any(), |pod| {
            let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            containers.and_then(|all| all.first()).is_some_and(|one| one.restart_count > 0)
        })
        .await;
    victim
}

/// Waits until it is replaced, and the cluster well again.
async fn replaced(world: &TestFleet, victim: &Pod) {
    world
        .until("it is made anew", async || {
            let status = world.status("pay").await;
            let noted = status.replaced.as_ref().is_some_and(|one| one.uid == victim.uid().unwrap_or_default());
            let gone =
                pods(world, &victim.labels()[names::COMPONENT]).await.iter().all(|pod| pod.uid() != victim.uid());
            if noted && gone { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    let status = world.ready("pay").await;
    assert_eq!(status.replaced.map(|one| one.times), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_says_ready_and_lies_leaves_the_endpoint_and_is_recreated() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 2).await;
    world.ready("pay").await;
    let victim = break_replica(&world, "kube-apiserver", VersionDefect::WrongAnswers).await;
    // Before it is replaced: the new one is good.
    world.meta.declare("kube-apiserver", VERSION, None);
    let slices: Api<EndpointSlice> = world.api("pay");
    let address = victim.status.clone().unwrap().pod_ip.unwrap();
    world
        .until("it is out of the endpoint and another is in it", async || {
            let all = slices.list(&Default::default()).await.unwrap().items;
            let of_server = all.into_iter().filter(|slice| slice.name_any().starts_with("kube-apiserver-"));
            let told: Vec<String> =
                of_server.flat_map(|slice| slice.endpoints.unwrap_or_default()).flat_map(|one| one.addresses).collect();
            if !told.is_empty() && !told.contains(&address) { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
    replaced(&world, &victim).await;
}

/// Replicas that are created from now on work, once the failing one is being deleted.
async fn crashing(component: &str) {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 2).await;
    world.ready("pay").await;
    let victim = break_replica(&world, component, VersionDefect::CrashesAfter(Duration::from_millis(200))).await;
    world
        .until("it is told to go", async || {
            let still = pods(&world, component).await.iter().any(|pod| pod.uid() == victim.uid());
            if still { Err(format!("{:#?}", world.status("pay").await)) } else { Ok(()) }
        })
        .await;
    world.meta.declare(component, VERSION, None);
    replaced(&world, &victim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_crashes_again_and_again_is_recreated() {
    crashing("kube-apiserver").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_crashes_again_and_again_is_recreated() {
    crashing("kube-scheduler").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_replica_is_left_to_get_well_by_itself() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let victim = break_replica(&world, "kube-apiserver", VersionDefect::WrongAnswers).await;
    world
        .until("its proof fails again and again", async || {
            let status = world.status("pay").await;
            let waits = status.waiting_for.clone().unwrap_or_default();
            if waits.contains("not verified") { Ok(()) } else { Err(waits) }
        })
        .await;
    world.meta.declare("kube-apiserver", VERSION, None);
    assert!(world.meta.kill("fleet-pay", &victim.name_any(), None));
    let status = world.ready("pay").await;
    assert_eq!(status.replaced, None);
    let now = pods(&world, "kube-apiserver").await;
    assert_eq!((now.len(), now[0].uid()), (1, victim.uid()));
    assert_eq!(now[0].labels()[names::SERVING], "true");
}
