//! What happens to a cluster.

use anyhow::{Result, ensure};
use fleetwright_rig::Stage;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::laps::{Leg, at_every_call};
use crate::support::site;
use crate::telling::Telling;

/// It is made.
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

/// It gets the next minor, which emulates the one before.
pub async fn upgrade(stage: &Stage, name: &str) -> Result<Value> {
    stage.refer(name, "v1.37").await?;
    all_of(stage, name).await
}

/// It goes back.
pub async fn rollback(stage: &Stage, name: &str) -> Result<Value> {
    stage.refer(name, "v1.36").await?;
    all_of(stage, name).await
}

/// Its etcd gets more members, or fewer.
pub async fn resize(stage: &Stage, name: &str, members: u32) -> Result<Value> {
    stage.resize(name, members).await?;
    let all = all_of(stage, name).await?;
    let claims = stage.within::<PersistentVolumeClaim>(name).list(&ListParams::default()).await?;
    let claims: Vec<String> = claims.into_iter().map(|claim| claim.name_any()).collect();
    ensure!(claims.len() == members as usize, "volumes are left: {claims:?}");
    Ok(all)
}

/// A member of etcd loses its data.
pub async fn lose(stage: &Stage, name: &str, member: &str) -> Result<Value> {
    let namespace = format!("{}-{name}", stage.namespace());
    let before = stage.within::<PersistentVolumeClaim>(name).get(&format!("data-{member}")).await?.uid();
    ensure!(site(stage)?.meta.wipe(&namespace, &format!("data-{member}")), "{member} has no volume");
    let replaced = || async {
        let claim = stage.within::<PersistentVolumeClaim>(name).get_opt(&format!("data-{member}")).await;
        let claim = claim.map_err(|error| error.to_string())?;
        let new = claim.is_some_and(|claim| claim.uid() != before);
        if new { Ok(()) } else { Err("its volume is the old one".to_owned()) }
    };
    stage.settle(&format!("{member} has a new volume"), replaced).await?;
    all_of(stage, name).await
}

/// It gets the next minor for good.
pub async fn finish(stage: &Stage, name: &str) -> Result<Value> {
    stage.refer(name, "v1.37").await?;
    stage.finished(name).await?;
    all_of(stage, name).await
}

/// Somebody changes and removes by hand.
pub async fn repair(stage: &Stage, name: &str) -> Result<Value> {
    harm(stage, name).await?;
    all_of(stage, name).await
}

async fn all_of(stage: &Stage, name: &str) -> Result<Value> {
    stage.ready(name).await?;
    Ok(json!([stage.told(name).await?, stage.of(name).await?]))
}

/// Lap after lap.
pub async fn laps(stage: &Stage, legs: &[Leg]) -> Result<()> {
    stage.start().await?;
    at_every_call(stage, legs).await
}

/// Members come, go and lose their data.
pub async fn members(stage: &Stage) -> Result<()> {
    stage.declare("pay").await?;
    stage.start().await?;
    stage.ready("pay").await?;
    for members in [5, 1, 3] {
        resize(stage, "pay", members).await?;
    }
    lose(stage, "pay", "etcd-1").await?;
    lose(stage, "pay", "etcd-0").await?;
    // The opposite, half-way.
    stage.resize("pay", 1).await?;
    resize(stage, "pay", 3).await?;
    Ok(())
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
    harm(stage, "pay").await?;
    stage.ready("pay").await?;
    stage.ready("shop").await?;
    stage.remove("pay").await?;
    stage.gone("pay").await
}

async fn harm(stage: &Stage, name: &str) -> Result<()> {
    let gone = DeleteParams::default();
    stage.within::<Service>(name).delete("kube-apiserver", &gone).await?;
    for secret in ["front-proxy-client", "ca", "service-account"] {
        stage.within::<Secret>(name).delete(secret, &gone).await?;
    }
    let image = |binary: &str| {
        let containers = json!([{ "name": binary, "image": format!("registry.example/{binary}:v1.30.0") }]);
        Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
    };
    let params = PatchParams::default();
    stage.within::<StatefulSet>(name).patch("etcd", &params, &image("etcd")).await?;
    stage.within::<Deployment>(name).patch("kube-scheduler", &params, &image("kube-scheduler")).await?;
    let pods = stage.within::<Pod>(name);
    for pod in pods.list(&ListParams::default()).await? {
        if pod.name_any().starts_with("kube-apiserver-") {
            pods.delete(&pod.name_any(), &gone).await?;
            break;
        }
    }
    Ok(())
}
