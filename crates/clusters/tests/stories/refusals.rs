//! A write that the API server refuses stops nothing else.

use fleetwright_api::{ControlPlaneComponent, names};
use fleetwright_lab::ServerKind;
use k8s_openapi::api::core::v1::{ConfigMap, ResourceQuota, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::datastore::lose;
use crate::extensions::{MORE, extension};
use crate::snapshots::snapshot;
use crate::support::{FLEET, TestFleet, not_accepted};
use crate::versions::business;

/// No PodDisruptionBudget of `pay` is accepted any more, and one is missing. They are applied before workloads.
async fn refuse_budgets(world: &TestFleet) {
    let hard = json!({ "count/poddisruptionbudgets.policy": "0" });
    let quotas: Api<ResourceQuota> = world.api("pay");
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": hard } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    // Where no controller-manager does it.
    let status = json!({ "status": { "hard": hard, "used": { "count/poddisruptionbudgets.policy": "0" } } });
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    // kube-apiserver goes by the quotas that its informer knows: before it knows of this one, the operator could create the budget again.
    let budgets: Api<PodDisruptionBudget> = world.api("pay");
    let spec = json!({ "maxUnavailable": 1, "selector": { "matchLabels": { "of": "nobody" } } });
    let probe = serde_json::from_value(json!({ "metadata": { "name": "probe" }, "spec": spec })).unwrap();
    world
        .until("no PodDisruptionBudget is accepted", async || {
            match budgets.create(&PostParams::default(), &probe).await {
                Err(kube::Error::Api(refused)) if refused.message.contains("exceeded quota") => Ok(()),
                other => {
                    let _ = budgets.delete("probe", &DeleteParams::default()).await;
                    Err(format!("{other:?}"))
                }
            }
        })
        .await;
    budgets.delete("etcd", &DeleteParams::default()).await.unwrap();
    not_accepted(world, "pay", "WriteRefused", "exceeded quota").await;
}

async fn a_refused_write_stops_nothing_else(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.package("full", "1.36.4", vec![extension("more", 30, MORE)]).await;
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.replicas = 1;
        })
        .await;
    world.extended().await;
    world.ready("pay").await;
    refuse_budgets(&world).await;

    // A lost certificate is made, and what is declared is done and proven.
    world.api::<Secret>("pay").delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "spec": { "replicas": 2 } })).await;
    world.seen(&world.api::<Secret>("pay"), "front-proxy-client", |_| true).await;
    world
        .until("both API servers are proven", async || {
            let status = world.status("pay").await;
            let server = status.components.iter().find(|one| one.component == ControlPlaneComponent::Apiserver);
            match server.is_some_and(|one| one.replicas.iter().filter(|one| one.verified_at.is_some()).count() == 2) {
                true => Ok(()),
                false => Err(format!("{server:#?}")),
            }
        })
        .await;
    // A snapshot is taken, a member that lost its data is replaced, and an object of an extension is made again.
    snapshot(&world, "now").await;
    lose(&world, "etcd-2").await;
    let maps: Api<ConfigMap> = Api::namespaced(business(&world).await, "kube-system");
    maps.delete("more", &DeleteParams::default()).await.unwrap();
    world.seen(&maps, "more", |_| true).await;
    let budgets: Api<PodDisruptionBudget> = world.api("pay");
    assert!(budgets.get_opt("etcd").await.unwrap().is_none(), "it is still refused");

    world.api::<ResourceQuota>("pay").delete("none", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "looked": "at" } } })).await;
    world.seen(&budgets, "etcd", |_| true).await;
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_write_does_not_concern_goes_on() {
    a_refused_write_stops_nothing_else(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_write_does_not_concern_goes_on_on_real() {
    a_refused_write_stops_nothing_else(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_is_shown_beside_a_refused_write() {
    let world = TestFleet::start().await;
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let secret = json!({
        "metadata": { "name": "notes", "annotations": { names::READABLE_BY_CLUSTERS: "pay" } },
        "stringData": { "text": "some notes" },
    });
    fleet.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let file = json!({ "config": [{ "name": "notes", "secret": { "name": "notes", "key": "text" } }] });
    world.create("pay", |spec| spec.components.apiserver = Some(serde_json::from_value(file).unwrap())).await;
    world.ready("pay").await;
    refuse_budgets(&world).await;
    fleet.delete("notes", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    let says = not_accepted(&world, "pay", "WriteRefused", "Secret fleet/notes").await;
    assert!(says.contains("exceeded quota"), "{says}");
    world.stop().await;
}
