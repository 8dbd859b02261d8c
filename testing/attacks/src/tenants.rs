//! Users who may write Clusters, or who control the namespace of a control plane.

use anyhow::{Result, ensure};
use fleetwright_api::{Cluster, names};
use fleetwright_conformance::Ctx;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::fixtures::{attacker, rule, stored};
use crate::world::{FLEET, TestFleet, not_accepted};
use crate::{Area, Attempt};

pub fn attempts() -> Vec<Attempt> {
    [
        attempts![Area::Tenants, Server;
            a_cluster_refers_to_nothing_of_another_namespace,
            a_cluster_s_status_is_not_written_with_its_spec,
        ],
        attempts![Area::Tenants, Meta;
            a_namespace_that_belongs_to_others_is_neither_taken_nor_deleted,
            a_control_plane_that_was_opened_by_hand_is_closed_again,
            a_protected_control_plane_outlives_its_deletion,
        ],
    ]
    .concat()
}

const FLEETWRIGHT: &str = "fleetwright.io/v1alpha1";

async fn a_cluster_refers_to_nothing_of_another_namespace(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("fleetwright.io", &["clusters"], &["get", "create"])])).await?;
    let elsewhere = json!({"name": "treasure", "namespace": "kube-system"});
    let specs = [
        json!({"packageVersion": "v1.36", "snapshots": {"s3": {"endpoint": "https://s3.example.com", "bucket": "fleet", "secretRef": elsewhere}}}),
        json!({"packageVersion": "v1.36", "snapshots": {"encryption": {"secretRef": elsewhere}}}),
        json!({"packageVersion": "v1.36", "datastore": {"external": {"endpoints": ["https://192.0.2.1:2379"], "secretRef": elsewhere}}}),
        json!({"packageVersion": "v1.36", "components": {"apiserver": {"config": [{"name": "audit.yaml", "secret": {"name": "treasure", "key": "key", "namespace": "kube-system"}}]}}}),
        json!({"packageVersion": "kube-system/v1.36"}),
        json!({"packageVersion": "../kube-system/v1.36"}),
        json!({"packageVersion": "v1.36", "snapshots": {"encryption": {"secretRef": {"name": "kube-system/treasure"}}}}),
    ];
    for (number, spec) in specs.into_iter().enumerate() {
        let name = format!("tried-{number}");
        let object = json!({"apiVersion": FLEETWRIGHT, "kind": "Cluster", "metadata": {"name": name}, "spec": spec});
        let reply = eve.post(ctx.group(FLEETWRIGHT, "clusters"), &object).await?;
        if reply.status == 201 {
            let stored = stored(&ctx, &ctx.group(FLEETWRIGHT, &format!("clusters/{name}"))).await?;
            ensure!(!stored["spec"].to_string().contains("kube-system"), "{stored}");
        } else {
            ensure!(matches!(reply.status, 400 | 422), "{}", reply.text());
        }
    }
    Ok(())
}

async fn a_cluster_s_status_is_not_written_with_its_spec(ctx: Ctx) -> Result<()> {
    let verbs = ["get", "create", "update", "patch"];
    let (_, eve) = attacker(&ctx, json!([rule("fleetwright.io", &["clusters"], &verbs)])).await?;
    let forged = json!({"phase": "Ready", "conditions": [
        {"type": "Accepted", "status": "True", "reason": "Forged", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]});
    let object = json!({
        "apiVersion": FLEETWRIGHT, "kind": "Cluster", "metadata": {"name": "forged"},
        "spec": {"packageVersion": "v1.36"}, "status": forged,
    });
    let one = ctx.group(FLEETWRIGHT, "clusters/forged");
    eve.post(ctx.group(FLEETWRIGHT, "clusters"), &object).await?.code(201)?;
    eve.patch(&one, fleetwright_conformance::PatchType::Merge, &json!({"status": forged})).await?.ok()?;
    eve.apply(&format!("{one}?force=true"), "eve", &object).await?.ok()?;
    let reply = eve
        .patch(format!("{one}/status"), fleetwright_conformance::PatchType::Merge, &json!({"status": forged}))
        .await?;
    ensure!(reply.status == 403, "{}", reply.text());
    let after = stored(&ctx, &one).await?;
    ensure!(after["status"].is_null() || !after["status"].to_string().contains("Forged"), "{after}");
    Ok(())
}

/// Waits until a Cluster is deleted.
async fn gone(world: &TestFleet, cluster: &str) {
    let clusters = world.clusters();
    world
        .until(&format!("{cluster} is gone"), async || match clusters.get_opt(cluster).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}

async fn a_namespace_that_belongs_to_others_is_neither_taken_nor_deleted(world: &TestFleet) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let place = format!("{FLEET}-squat");
    let theirs: Namespace =
        serde_json::from_value(json!({"metadata": {"name": place, "labels": {"owner": "somebody"}}}))?;
    let before = namespaces.create(&PostParams::default(), &theirs).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &place);
    let theirs: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "theirs"}}))?;
    maps.create(&PostParams::default(), &theirs).await?;
    world.create("squat", |_| {}).await;
    // It belongs to no Cluster, so that the reason is not NamespaceConflict.
    not_accepted(world, "squat", "WriteRefused", "does not belong to this Cluster").await;
    let untouched = async || {
        let now = namespaces.get(&place).await?;
        ensure!(
            now.metadata.uid == before.metadata.uid && now.metadata.deletion_timestamp.is_none(),
            "it is another one"
        );
        let labels = now.labels();
        ensure!(labels.get("owner").map(String::as_str) == Some("somebody"), "{labels:?}");
        ensure!(!labels.keys().any(|key| key.starts_with("fleetwright.io/")), "{labels:?}");
        let secrets = Api::<Secret>::namespaced(world.client.clone(), &place).list(&ListParams::default()).await?;
        ensure!(secrets.items.is_empty(), "{:?}", secrets.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
        let sets = Api::<StatefulSet>::namespaced(world.client.clone(), &place).list(&ListParams::default()).await?;
        ensure!(sets.items.is_empty(), "a control plane was made in it");
        maps.get("theirs").await?;
        anyhow::Ok(())
    };
    untouched().await?;
    // It is not deleted with the Cluster either.
    world.delete("squat").await;
    gone(world, "squat").await;
    untouched().await
}

async fn a_control_plane_that_was_opened_by_hand_is_closed_again(world: &TestFleet) -> Result<()> {
    world.create("open", |_| {}).await;
    world.ready("open").await;
    let deployments: Api<Deployment> = world.api("open");
    let arguments = |deployment: &Deployment| {
        let spec = serde_json::to_value(deployment).unwrap_or_default();
        spec["spec"]["template"]["spec"]["containers"][0]["args"].clone()
    };
    let before = deployments.get("kube-apiserver").await?;
    let mut args = arguments(&before).as_array().cloned().unwrap_or_default();
    for argument in &mut args {
        if argument
            .as_str()
            .is_some_and(|text| text.starts_with("--authorization-mode") || text.starts_with("--anonymous-auth"))
        {
            *argument = "--authorization-mode=AlwaysAllow".into();
        }
    }
    args.push("--authorization-mode=AlwaysAllow".into());
    let hostile = json!({"spec": {"template": {"spec": {"containers": [{"name": "kube-apiserver", "args": args, "image": "evil.example/kube-apiserver:v1"}]}}}});
    deployments.patch("kube-apiserver", &PatchParams::default(), &Patch::Strategic(hostile)).await?;
    world
        .seen(&deployments, "kube-apiserver", |now| {
            let text = serde_json::to_value(now).unwrap_or_default()["spec"].to_string();
            arguments(now) == arguments(&before) && !text.contains("evil.example")
        })
        .await;
    Ok(())
}

async fn a_protected_control_plane_outlives_its_deletion(world: &TestFleet) -> Result<()> {
    world.create("guarded", |spec| spec.deletion_protection = true).await;
    world.ready("guarded").await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let place = format!("{FLEET}-guarded");
    let before = namespaces.get(&place).await?;
    let secrets: Api<Secret> = world.api("guarded");
    let authority = secrets.get("ca").await?.data;
    let kept = async || {
        let now = namespaces.get(&place).await?;
        ensure!(now.metadata.uid == before.metadata.uid && now.metadata.deletion_timestamp.is_none(), "{now:?}");
        ensure!(secrets.get("ca").await?.data == authority, "the authority is another one");
        world.api::<StatefulSet>("guarded").get("etcd").await?;
        anyhow::Ok(())
    };
    for params in [DeleteParams::default(), DeleteParams::foreground(), DeleteParams::background().grace_period(0)] {
        world.clusters().delete("guarded", &params).await?;
    }
    world
        .until("it says why it stays", async || {
            let waits = world.status("guarded").await.waiting_for.unwrap_or_default();
            if waits.contains("spec.deletionProtection") { Ok(()) } else { Err(waits) }
        })
        .await;
    kept().await?;
    // Without its finalizers the Cluster is deleted, and its dependents stay.
    let free = json!({"metadata": {"finalizers": null}});
    let clusters: Api<Cluster> = world.clusters();
    clusters.patch("guarded", &PatchParams::default(), &Patch::Merge(free)).await?;
    gone(world, "guarded").await;
    // An operator that has seen a later Cluster has also seen the deletion of this one.
    world.create("after-guarded", |spec| spec.package_version = "v1.38".to_owned()).await;
    not_accepted(world, "after-guarded", names::reasons::PACKAGE_VERSION_NOT_FOUND, "v1.38").await;
    kept().await
}
