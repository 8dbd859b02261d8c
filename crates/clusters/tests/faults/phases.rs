//! What happens to a cluster.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Cluster, Machine, MachineSpec, MemberChangeType, condition, names};
use fleetwright_lab::define;
use fleetwright_rig::Harness;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::lifecycle::{LifecyclePhase, UNDISTURBED, at_every_call, at_some_calls};
use crate::steps::ClusterSteps;
use crate::support::site;

/// It is made.
pub async fn make(harness: &Harness, name: &str) -> Result<Value> {
    harness.declare(name).await?;
    all_of(harness, name).await
}

/// It is deleted.
pub async fn delete_cluster(harness: &Harness, name: &str) -> Result<Value> {
    harness.remove(name).await?;
    deleted(harness, name).await?;
    harness.of(name).await
}

/// Waits until it is gone. However often the operator was stopped, one Operation deleted it.
async fn deleted(harness: &Harness, name: &str) -> Result<()> {
    harness.gone(name).await?;
    let operations = harness.operated(name, "ClusterDelete").await?;
    ensure!(operations == 1, "{operations} Operations deleted {name}");
    Ok(())
}

/// It gets the next minor, which emulates the one before.
pub async fn upgrade(harness: &Harness, name: &str) -> Result<Value> {
    harness.refer(name, "v1.37").await?;
    all_of(harness, name).await
}

/// It goes back.
pub async fn rollback(harness: &Harness, name: &str) -> Result<Value> {
    harness.refer(name, "v1.36").await?;
    all_of(harness, name).await
}

/// Its etcd gets more members, or fewer.
pub async fn resize(harness: &Harness, name: &str, members: u32) -> Result<Value> {
    harness.resize(name, members).await?;
    let all = all_of(harness, name).await?;
    // The API server may still protect one that is to go.
    let counted = || async {
        let claims = harness.within::<PersistentVolumeClaim>(name).list(&ListParams::default()).await;
        let claims = claims.map_err(|error| error.to_string())?.into_iter().map(|claim| claim.name_any());
        let claims: Vec<String> = claims.collect();
        if claims.len() == members as usize { Ok(()) } else { Err(format!("{claims:?}")) }
    };
    harness.settle(&format!("{name} has one volume for each member"), counted).await?;
    Ok(all)
}

/// Its etcd gets three members instead of one, and larger volumes. The volume of the first member cannot grow: when the others run, that member is replaced.
pub async fn grow(harness: &Harness, name: &str) -> Result<Value> {
    write(harness, name, "before-growth").await?;
    let before = identities(harness, name).await?;
    harness
        .change(name, json!({ "spec": { "datastore": { "etcd": { "members": 3, "storage": { "size": LARGE } } } } }))
        .await?;
    larger(harness, name, 3).await?;
    let all = all_of(harness, name).await?;
    let after = identities(harness, name).await?;
    for one in ["etcd-0", "data-etcd-0"] {
        ensure!(before.get(one) != after.get(one), "{one} is the old one: {before:?}, {after:?}");
    }
    ensure!(is_there(harness, name, "before-growth").await?, "what was written before the replacement is lost");
    Ok(all)
}

/// Its volumes grow in place: no member of etcd is restarted, and none is replaced.
async fn expand(harness: &Harness, name: &str) -> Result<()> {
    let before = identities(harness, name).await?;
    harness.change(name, json!({ "spec": { "datastore": { "etcd": { "storage": { "size": LARGE } } } } })).await?;
    larger(harness, name, site(harness)?.shape.members as usize).await?;
    harness.ready(name).await?;
    let after = identities(harness, name).await?;
    ensure!(before == after, "members of etcd or their volumes were replaced: {before:?}, {after:?}");
    Ok(())
}

/// More than volumes of etcd are made with.
const LARGE: &str = "20Gi";

/// Waits until that many members have volumes of the new size, and the StatefulSet would give it to others.
async fn larger(harness: &Harness, name: &str, members: usize) -> Result<()> {
    let grown = || async {
        let text = |error: kube::Error| error.to_string();
        let claims = harness.within::<PersistentVolumeClaim>(name).list(&ListParams::default()).await.map_err(text)?;
        let set = harness.within::<StatefulSet>(name).get_opt("etcd").await.map_err(text)?;
        let mut all = claims.items;
        all.extend(set.and_then(|set| set.spec.volume_claim_templates).unwrap_or_default());
        let sizes: Vec<Value> =
            all.iter().map(|claim| json!(claim)["spec"]["resources"]["requests"]["storage"].clone()).collect();
        let so = sizes.len() == members + 1 && sizes.iter().all(|size| size == LARGE);
        if so { Ok(()) } else { Err(format!("{sizes:?}")) }
    };
    harness.settle(&format!("the volumes of {name} are larger"), grown).await
}

/// The uids of members of etcd and of their volumes, by name.
async fn identities(harness: &Harness, name: &str) -> Result<BTreeMap<String, Option<String>>> {
    let pods = harness.within::<Pod>(name).list(&ListParams::default()).await?;
    let claims = harness.within::<PersistentVolumeClaim>(name).list(&ListParams::default()).await?;
    let pods = pods.into_iter().map(|pod| (pod.name_any(), pod.uid())).filter(|(pod, _)| pod.starts_with("etcd-"));
    Ok(pods.chain(claims.into_iter().map(|claim| (claim.name_any(), claim.uid()))).collect())
}

/// A member of etcd loses its data.
pub async fn lose(harness: &Harness, name: &str, member: &str) -> Result<Value> {
    let namespace = format!("{}-{name}", harness.namespace());
    let before = harness.within::<PersistentVolumeClaim>(name).get(&format!("data-{member}")).await?.uid();
    ensure!(site(harness)?.meta.wipe(&namespace, &format!("data-{member}")), "{member} has no volume");
    let replaced = || async {
        let claim = harness.within::<PersistentVolumeClaim>(name).get_opt(&format!("data-{member}")).await;
        let claim = claim.map_err(|error| error.to_string())?;
        let new = claim.is_some_and(|claim| claim.uid() != before);
        if new { Ok(()) } else { Err("its volume is the old one".to_owned()) }
    };
    harness.settle(&format!("{member} has a new volume"), replaced).await?;
    all_of(harness, name).await
}

/// It gets the next minor for good.
pub async fn finish(harness: &Harness, name: &str) -> Result<Value> {
    harness.refer(name, "v1.37").await?;
    harness.finished(name).await?;
    all_of(harness, name).await
}

/// Somebody changes and removes by hand.
pub async fn repair(harness: &Harness, name: &str) -> Result<Value> {
    harm(harness, name).await?;
    all_of(harness, name).await
}

/// Its authorities are replaced, and everything that they signed.
pub async fn rotate(harness: &Harness, name: &str) -> Result<Value> {
    let certificate = async || -> Result<_> {
        Ok(harness.within::<Secret>(name).get("ca").await?.data.unwrap_or_default().remove("tls.crt"))
    };
    let before = certificate().await?;
    site(harness)?.witness.rotates(&format!("{}-{name}", harness.namespace()));
    let rotate = json!({ "overlap": "1s", "rotateAuthorities": "once" });
    harness.change(name, json!({ "spec": { "certificates": rotate } })).await?;
    let done = |status: &fleetwright_api::ClusterStatus| {
        status.rotation.is_none() && status.authorities.as_deref() == Some("once")
    };
    harness.reaches(name, "its authorities are replaced", done).await?;
    ensure!(certificate().await? != before, "the authority is the old one");
    all_of(harness, name).await
}

async fn write(harness: &Harness, name: &str, map: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(harness.business(name).await?);
    let metadata = ObjectMeta { name: Some(map.to_owned()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await?;
    Ok(())
}

async fn is_there(harness: &Harness, name: &str, map: &str) -> Result<bool> {
    let maps: Api<ConfigMap> = Api::default_namespaced(harness.business(name).await?);
    Ok(maps.get_opt(map).await?.is_some())
}

/// A snapshot is taken, and brought back.
pub async fn restore(harness: &Harness, name: &str) -> Result<Value> {
    let namespace = format!("{}-{name}", harness.namespace());
    write(harness, name, "before").await?;
    harness.change(name, json!({ "metadata": { "annotations": { names::SNAPSHOT: "now" } } })).await?;
    let taken = |status: &fleetwright_api::ClusterStatus| status.observed_snapshot_request.as_deref() == Some("now");
    let status = harness.reaches(name, "a snapshot is taken", taken).await?;
    let snapshot = status.last_snapshot.context("it has no name")?.name;
    write(harness, name, "after").await?;
    site(harness)?.witness.allow_removal(&namespace);
    harness.change(name, json!({ "spec": { "restore": { "snapshot": snapshot } } })).await?;
    let restored = |status: &fleetwright_api::ClusterStatus| {
        status.restored.as_ref().is_some_and(|one| one.snapshot == snapshot) && status.restoring.is_none()
    };
    harness.reaches(name, "it is restored", restored).await?;
    harness.ready(name).await?;
    site(harness)?.witness.hold(&namespace);
    ensure!(is_there(harness, name, "before").await?, "what the snapshot has is lost");
    ensure!(!is_there(harness, name, "after").await?, "what the snapshot does not have is there");
    let operations = harness.operated(name, "Restore").await?;
    ensure!(operations == 1, "{operations} Operations restored one snapshot");
    // Its name is another one in each lap.
    harness
        .change(name, json!({ "spec": { "restore": null }, "metadata": { "annotations": { names::SNAPSHOT: null } } }))
        .await?;
    all_of(harness, name).await
}

/// Extensions are turned off, and what they brought goes.
pub async fn prune(harness: &Harness, name: &str) -> Result<Value> {
    extended(harness, name, &["beside", "notes"]).await?;
    for map in ["first", "second", "kept"] {
        ensure!(is_there(harness, name, map).await?, "{map} is not there");
    }
    let off = json!([{ "name": "notes", "enabled": false }, { "name": "beside", "enabled": false }]);
    harness.change(name, json!({ "spec": { "extensions": off } })).await?;
    extended(harness, name, &[]).await?;
    for (map, stays) in [("first", false), ("second", false), ("kept", true)] {
        ensure!(is_there(harness, name, map).await? == stays, "{map} is there: {}", !stays);
    }
    // Of two operators, the one that is behind may apply it once more after the other has deleted it.
    let gone = || async {
        let there = harness.within::<ConfigMap>(name).get_opt("beside").await.map_err(|error| error.to_string())?;
        there.map_or(Ok(()), |there| Err(format!("{there:?}")))
    };
    harness.settle("what was beside it is gone", gone).await?;
    // One for each of the two, and one for what was beside it.
    heard(harness, name, "ExtensionPrune", 3).await?;
    all_of(harness, name).await
}

/// Fails unless there was such an Operation that ended. In the lap in which nothing is disturbed that many succeeded.
async fn heard(harness: &Harness, name: &str, type_: &str, times: usize) -> Result<()> {
    let succeeded = harness.operated(name, type_).await?;
    ensure!(name != UNDISTURBED || succeeded == times, "{succeeded} Operations {type_} of {name} succeeded");
    Ok(())
}

/// Waits until it has these extensions and no others, all of them in place.
async fn extended(harness: &Harness, name: &str, wanted: &[&str]) -> Result<()> {
    let reached = || async {
        let seen = harness.api::<Cluster>().get(name).await.map_err(|error| error.to_string())?;
        let status = seen.status.clone().unwrap_or_default();
        let mut has: Vec<_> = status.extensions.iter().map(|one| one.name.as_str()).collect();
        has.retain(|name| ["notes", "beside"].contains(name));
        has.sort_unstable();
        let one = condition(&status.conditions, names::EXTENSIONS_READY);
        let so = one.is_some_and(|one| {
            one.reason == names::reasons::ALL_READY && one.observed_generation == seen.metadata.generation
        });
        if so && has == wanted { Ok(()) } else { Err(format!("{status:#?}")) }
    };
    harness.settle(&format!("{name} has the extensions {wanted:?}"), reached).await
}

/// It is deleted while a machine is joined, which is released before.
pub async fn release(harness: &Harness, name: &str) -> Result<Value> {
    harness.ready(name).await?;
    let client = harness.business(name).await?;
    let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").context("no kind")?;
    define(&client, &[kind]).await?;
    let (machines, budgets) = (Api::<Machine>::default_namespaced(client.clone()), Api::default_namespaced(client));
    let metadata = ObjectMeta { name: Some("keeps-the-last".to_owned()), ..ObjectMeta::default() };
    let budget = PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() };
    budgets.create(&PostParams::default(), &budget).await?;
    for host in ["host-17", "host-18"] {
        let spec = MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() };
        let mut machine = Machine::new(host, spec);
        machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
        machines.create(&PostParams::default(), &machine).await?;
    }
    harness.change(name, json!({ "spec": { "onDelete": "ReleaseMachines" } })).await?;
    harness.remove(name).await?;
    let released = || async {
        let all = machines.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let left: Vec<_> = all.iter().filter(|one| one.metadata.deletion_timestamp.is_none()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    };
    harness.settle("its machines are released", released).await?;
    ensure!(harness.api::<Cluster>().get_opt(name).await?.is_some(), "it is deleted before its machines");
    ensure!(budgets.get_opt("keeps-the-last").await?.is_none(), "the disruption budget is left");
    for host in ["host-17", "host-18"] {
        let free = json!({ "metadata": { "finalizers": null } });
        machines
            .patch(host, &PatchParams::default(), &Patch::Merge(free))
            .await
            .context("its machine is gone too early")?;
    }
    deleted(harness, name).await?;
    heard(harness, name, "ReleaseMachines", 1).await?;
    harness.of(name).await
}

async fn all_of(harness: &Harness, name: &str) -> Result<Value> {
    harness.ready(name).await?;
    // It is ready before its extensions are.
    let extended = |status: &fleetwright_api::ClusterStatus| {
        let known = fleetwright_api::condition(&status.conditions, names::EXTENSIONS_READY);
        known.is_none_or(|known| known.status == fleetwright_api::Status::True)
    };
    harness.reaches(name, "its extensions are in place", extended).await?;
    Ok(json!([harness.told(name).await?, harness.of(name).await?]))
}

/// Lap after lap.
pub async fn laps(harness: &Harness, legs: &[LifecyclePhase]) -> Result<()> {
    harness.start().await?;
    at_every_call(harness, legs).await
}

/// Two laps, of which one is undisturbed.
pub async fn two_laps(harness: &Harness, legs: &[LifecyclePhase]) -> Result<()> {
    harness.start().await?;
    at_some_calls(harness, legs).await
}

/// Members come, go, get larger volumes and lose their data.
pub async fn members(harness: &Harness) -> Result<()> {
    harness.declare("pay").await?;
    harness.start().await?;
    harness.ready("pay").await?;
    for members in [5, 1] {
        resize(harness, "pay", members).await?;
    }
    grow(harness, "pay").await?;
    lose(harness, "pay", "etcd-1").await?;
    lose(harness, "pay", "etcd-0").await?;
    // The opposite, half-way: a member is on its way out, or the first one has gone.
    harness.resize("pay", 1).await?;
    let begun = |status: &fleetwright_api::ClusterStatus| {
        status.etcd.as_ref().is_some_and(|etcd| {
            let change = etcd.change.as_ref().map(|change| change.type_);
            change == Some(MemberChangeType::Remove) || etcd.members < 3
        })
    };
    harness.reaches("pay", "a member is being removed", begun).await?;
    resize(harness, "pay", 3).await?;
    Ok(())
}

/// An upgrade soaks, and its soak ends with a snapshot for that purpose.
pub async fn soaks(harness: &Harness) -> Result<()> {
    harness.declare("pay").await?;
    harness.start().await?;
    harness.ready("pay").await?;
    write(harness, "pay", "before").await?;
    finish(harness, "pay").await?;
    let status = harness.api::<Cluster>().get("pay").await?.status.unwrap_or_default();
    let purpose = status.last_snapshot.and_then(|one| one.purpose).unwrap_or_default();
    ensure!(purpose.starts_with("soak/v1.37/"), "the last snapshot is for {purpose:?}");
    ensure!(is_there(harness, "pay", "before").await?, "what was written before the upgrade is lost");
    Ok(())
}

/// Everything that is an Operation, or a rotation.
pub async fn secured(harness: &Harness) -> Result<()> {
    harness.declare("pay").await?;
    harness.start().await?;
    harness.ready("pay").await?;
    rotate(harness, "pay").await?;
    restore(harness, "pay").await?;
    prune(harness, "pay").await?;
    release(harness, "pay").await?;
    Ok(())
}

/// All of it, and a second cluster that stays.
pub async fn life(harness: &Harness) -> Result<()> {
    harness.declare("shop").await?;
    harness.declare("pay").await?;
    harness.start().await?;
    harness.ready("pay").await?;
    expand(harness, "pay").await?;
    harness.refer("pay", "v1.37").await?;
    harness.ready("pay").await?;
    harness.refer("pay", "v1.36").await?;
    harness.ready("pay").await?;
    harm(harness, "pay").await?;
    harness.ready("pay").await?;
    harness.ready("shop").await?;
    harness.remove("pay").await?;
    deleted(harness, "pay").await
}

async fn harm(harness: &Harness, name: &str) -> Result<()> {
    let gone = DeleteParams::default();
    harness.within::<Service>(name).delete("kube-apiserver", &gone).await?;
    for secret in ["front-proxy-client", "ca", "service-account"] {
        harness.within::<Secret>(name).delete(secret, &gone).await?;
    }
    let image = |binary: &str| {
        let containers = json!([{ "name": binary, "image": format!("registry.example/{binary}:v1.30.0") }]);
        Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
    };
    let params = PatchParams::default();
    harness.within::<StatefulSet>(name).patch("etcd", &params, &image("etcd")).await?;
    harness.within::<Deployment>(name).patch("kube-scheduler", &params, &image("kube-scheduler")).await?;
    let pods = harness.within::<Pod>(name);
    for pod in pods.list(&ListParams::default()).await? {
        if pod.name_any().starts_with("kube-apiserver-") {
            pods.delete(&pod.name_any(), &gone).await?;
            break;
        }
    }
    Ok(())
}
