//! A write that the API server refuses stops nothing else.

use fleetwright_api::{ControlPlaneComponent, Status, condition, names};
use fleetwright_lab::Kind;
use k8s_openapi::api::core::v1::{ResourceQuota, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::World;

async fn a_refused_write_stops_nothing_else(kind: Kind) {
    let world = World::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    // No PodDisruptionBudget is accepted any more. They are applied before workloads.
    let hard = json!({ "count/poddisruptionbudgets.policy": "0" });
    let quotas: Api<ResourceQuota> = world.api("pay");
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": hard } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    // Where no controller-manager does it.
    let status = json!({ "status": { "hard": hard, "used": { "count/poddisruptionbudgets.policy": "0" } } });
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = world.api("pay");
    budgets.delete("etcd", &DeleteParams::default()).await.unwrap();
    world
        .until("it says what is refused", async || {
            let accepted = condition(&world.status("pay").await.conditions, names::ACCEPTED).cloned();
            let refused = accepted.as_ref().filter(|one| one.status == Status::False);
            match refused.is_some_and(|one| one.message.contains("exceeded quota")) {
                true => Ok(()),
                false => Err(format!("{accepted:?}")),
            }
        })
        .await;

    // A lost certificate is made, and what is declared is done and proven.
    world.api::<Secret>("pay").delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "spec": { "replicas": 2 } })).await;
    world.seen(&world.api::<Secret>("pay"), "front-proxy-client", |_| true).await;
    world
        .until("both API servers are proven", async || {
            let status = world.status("pay").await;
            let server = status.components.iter().find(|one| one.component == ControlPlaneComponent::Apiserver);
            match server.is_some_and(|one| one.replicas.iter().filter(|one| one.proven.is_some()).count() == 2) {
                true => Ok(()),
                false => Err(format!("{server:#?}")),
            }
        })
        .await;
    assert!(budgets.get_opt("etcd").await.unwrap().is_none(), "it is still refused");

    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "looked": "at" } } })).await;
    world.seen(&budgets, "etcd", |_| true).await;
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_stops_neither_proofs_nor_certificates_nor_workloads() {
    a_refused_write_stops_nothing_else(Kind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_stops_neither_proofs_nor_certificates_nor_workloads_on_real() {
    a_refused_write_stops_nothing_else(Kind::Real).await;
}
