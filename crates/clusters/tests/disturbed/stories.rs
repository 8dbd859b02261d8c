//! What happens to a cluster.

use anyhow::Result;
use fleetwright_rig::Stage;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Leg, Telling, at_every_call};

/// A cluster is made.
pub async fn make(stage: &Stage, name: &str) -> Result<Value> {
    stage.declare(name).await?;
    all_of(stage, name).await
}

/// It is deleted.
pub async fn unmake(stage: &Stage, name: &str) -> Result<Value> {
    stage.remove(name).await?;
    stage.gone(name).await?;
    stage.of(name).await
}

/// The one that is there gets the next minor.
pub async fn upgrade(stage: &Stage, _: &str) -> Result<Value> {
    stage.refer("pay", "v1.37").await?;
    all_of(stage, "pay").await
}

/// It goes back.
pub async fn rollback(stage: &Stage, _: &str) -> Result<Value> {
    stage.refer("pay", "v1.36").await?;
    all_of(stage, "pay").await
}

async fn all_of(stage: &Stage, name: &str) -> Result<Value> {
    stage.ready(name).await?;
    Ok(json!([stage.told(name).await?, stage.of(name).await?]))
}

/// Somebody changes and removes by hand.
pub async fn repair(stage: &Stage, _: &str) -> Result<Value> {
    harm(stage).await?;
    all_of(stage, "pay").await
}

/// A cluster is there, and the laps are of it.
pub async fn laps_of_one(stage: &Stage, legs: &[Leg]) -> Result<()> {
    stage.declare("pay").await?;
    stage.start().await?;
    stage.ready("pay").await?;
    at_every_call(stage, legs).await
}

/// Each lap has a cluster of its own.
pub async fn laps_of_many(stage: &Stage, legs: &[Leg]) -> Result<()> {
    stage.start().await?;
    at_every_call(stage, legs).await
}

/// All of it, and a second cluster that stays.
pub async fn life(stage: &Stage) -> Result<()> {
    stage.declare("shop").await?;
    stage.declare("pay").await?;
    stage.start().await?;
    stage.ready("pay").await?;
    stage.refer("pay", "v1.37").await?;
    stage.ready("pay").await?;
    stage.refer("pay", "v1.36").await?;
    stage.ready("pay").await?;
    harm(stage).await?;
    stage.ready("pay").await?;
    stage.ready("shop").await?;
    stage.remove("pay").await?;
    stage.gone("pay").await
}

async fn harm(stage: &Stage) -> Result<()> {
    let gone = DeleteParams::default();
    stage.within::<Service>("pay").delete("kube-apiserver", &gone).await?;
    stage.within::<Secret>("pay").delete("front-proxy-client", &gone).await?;
    let image = |binary: &str| {
        let containers = json!([{ "name": binary, "image": format!("registry.example/{binary}:v1.30.0") }]);
        Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
    };
    let params = PatchParams::default();
    stage.within::<StatefulSet>("pay").patch("etcd", &params, &image("etcd")).await?;
    stage.within::<Deployment>("pay").patch("kube-scheduler", &params, &image("kube-scheduler")).await?;
    let pods = stage.within::<Pod>("pay");
    for pod in pods.list(&ListParams::default()).await? {
        if pod.name_any().starts_with("kube-apiserver-") {
            pods.delete(&pod.name_any(), &gone).await?;
            break;
        }
    }
    Ok(())
}
