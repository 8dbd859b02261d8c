//! A paused cluster stays as it is, whatever becomes of it and whatever is declared.

use std::time::Duration;

use fleetwright_api::{ClusterPhase, RotationPhase, Status, names};
use fleetwright_lab::ServerKind;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::authorities::{AUTHORITIES, held};
use crate::joined::{applied, written};
use crate::support::TestFleet;
use crate::versions::{emulated, finishable, finished, refer};

async fn a_pause_holds_repairs_and_changes(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.datastore.etcd.as_mut().unwrap().members = 1;
        })
        .await;
    world.ready("pay").await;
    world.change("pay", json!({ "spec": { "paused": true } })).await;
    world.paused("pay").await;
    let (secrets, deployments): (Api<Secret>, Api<Deployment>) = (world.api("pay"), world.api("pay"));
    secrets.delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    deployments.delete("kube-scheduler", &DeleteParams::background()).await.unwrap();
    let pods: Api<Pod> = world.api("pay");
    world
        .until("the scheduler is gone", async || {
            let all = pods.list(&Default::default()).await.unwrap().items;
            let left: Vec<_> = all.iter().map(|pod| pod.name_any()).collect();
            if left.iter().any(|name| name.starts_with("kube-scheduler")) { Err(format!("{left:?}")) } else { Ok(()) }
        })
        .await;
    let before = written(&world).await;
    let etcd = json!({ "etcd": { "members": 3 } });
    let edit = json!({ "spec": { "packageVersion": "v1.37", "replicas": 2, "datastore": etcd } });
    world.change("pay", edit).await;
    world.paused("pay").await;
    // The operator is at work for others.
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    world.paused("pay").await;
    let after = written(&world).await;
    // The first is the Cluster, whose generation the edit raised.
    assert_eq!(before[1..], after[1..]);
    assert!(secrets.get_opt("front-proxy-client").await.unwrap().is_none(), "it was repaired");
    assert!(deployments.get_opt("kube-scheduler").await.unwrap().is_none(), "it was repaired");
    let status = world.status("pay").await;
    assert_eq!((status.package_version.as_deref(), status.etcd.unwrap().members), (Some("v1.36"), 1));

    world.change("pay", json!({ "spec": { "paused": false } })).await;
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    world.seen(&deployments, "kube-scheduler", |_| true).await;
    // Reaching all that was declared meanwhile takes too long on kube-apiserver.
    if kind == ServerKind::Embedded {
        let status = world.ready("pay").await;
        assert_eq!((status.package_version.as_deref(), status.etcd.unwrap().members), (Some("v1.37"), 3));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_paused_cluster_is_repaired_or_changed_until_it_is_resumed() {
    a_pause_holds_repairs_and_changes(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_paused_cluster_is_repaired_or_changed_until_it_is_resumed_on_real() {
    a_pause_holds_repairs_and_changes(ServerKind::Real).await;
}

/// On kube-apiserver the pause does not end, to save time.
async fn a_pause_holds_the_end_of_a_soak(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    let soaking = world.ready("pay").await;
    assert_eq!(soaking.phase, Some(ClusterPhase::Soaking));
    world.change("pay", json!({ "spec": { "paused": true, "upgrade": { "soak": "1s" } } })).await;
    world.paused("pay").await;
    let before = written(&world).await;
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    finishable(&world, Status::Unknown, names::reasons::PAUSED).await;
    assert_eq!(before, written(&world).await);
    assert_eq!(emulated(&world).await.as_deref(), Some("36"));
    let status = world.status("pay").await;
    assert_eq!((status.phase, &status.finishing), (Some(ClusterPhase::Soaking), &None), "{status:#?}");
    assert_eq!(status.last_snapshot, soaking.last_snapshot);

    if kind == ServerKind::Embedded {
        world.change("pay", json!({ "spec": { "paused": false } })).await;
        finished(&world).await;
        assert_eq!(emulated(&world).await.as_deref(), Some("37"));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_soak_of_a_paused_cluster_ends_after_the_pause() {
    a_pause_holds_the_end_of_a_soak(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_soak_of_a_paused_cluster_does_not_end_on_real() {
    a_pause_holds_the_end_of_a_soak(ServerKind::Real).await;
}

/// The pause starts while the new authorities are trusted and do not sign yet.
async fn a_pause_holds_a_rotation(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.datastore.etcd.as_mut().unwrap().members = 1;
            spec.certificates.overlap.0 = Duration::from_secs(3600);
        })
        .await;
    world.ready("pay").await;
    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "2026-11" } } })).await;
    let (rotation, keys) = world
        .until("all new authorities are trusted", async || {
            let status = world.status("pay").await;
            let mut keys = Vec::new();
            for authority in AUTHORITIES {
                keys.push(held(&world, authority, "next.key").await);
            }
            match status.rotation.clone().filter(|rotation| rotation.phase == RotationPhase::Trusting) {
                Some(rotation) if keys.iter().all(|key| !key.is_empty()) => Ok((rotation, keys)),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
    world.change("pay", json!({ "spec": { "paused": true, "certificates": { "overlap": "1s" } } })).await;
    world.paused("pay").await;
    let before = applied(&world).await;
    // The overlap is over when an operator that starts decides about all clusters.
    world.operator_stops().await;
    let over = rotation.since + SignedDuration::from_secs(2);
    world
        .until("the overlap is over", async || {
            let now = Timestamp::now();
            if now > over { Ok(()) } else { Err(format!("it is {now}, and lasts until {over}")) }
        })
        .await;
    world.operator_starts();
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    world.paused("pay").await;
    assert!(before == applied(&world).await, "objects of a paused cluster were written");
    let status = world.status("pay").await;
    assert_eq!((status.rotation, status.authorities), (Some(rotation), None));

    world.change("pay", json!({ "spec": { "paused": false } })).await;
    world
        .until("all authorities are replaced", async || {
            let status = world.status("pay").await;
            match (&status.rotation, status.authorities.as_deref()) {
                (None, Some("2026-11")) => Ok(()),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
    for (authority, key) in AUTHORITIES.into_iter().zip(keys) {
        assert!(held(&world, authority, "tls.key").await == key, "another key of {authority} was generated");
        assert!(held(&world, authority, "next.key").await.is_empty(), "{authority}");
    }
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_of_authorities_continues_after_a_pause_with_the_keys_it_has() {
    a_pause_holds_a_rotation(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_of_authorities_continues_after_a_pause_with_the_keys_it_has_on_real() {
    a_pause_holds_a_rotation(ServerKind::Real).await;
}
