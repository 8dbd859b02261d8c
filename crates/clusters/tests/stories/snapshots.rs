//! Snapshots of a cluster's data.

use fleetwright_api::{ClusterPhase, OperationPhase, RestoreStage, Snapshots, Span, condition, names};
use fleetwright_sim::meta::Bad;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{FLEET, World};
use crate::versions::{there, write};

async fn ask(world: &World, value: &str) {
    world.change("pay", json!({ "metadata": { "annotations": { names::SNAPSHOT: value } } })).await;
}

async fn no_pod_left(world: &World) {
    let pods: Api<Pod> = world.api("pay");
    world
        .until("its pod is gone", async || {
            let all = pods.list(&Default::default()).await.unwrap().items;
            let left: Vec<_> = all.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            if left.iter().any(|name| ["snapshot-", "restore-", "clean-"].iter().any(|begin| name.starts_with(begin))) {
                Err(format!("{left:?}"))
            } else {
                Ok(())
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_asked_for_is_taken_checked_and_told() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    ask(&world, "first").await;
    let taken = |status: &fleetwright_api::ClusterStatus| status.snapshotted.clone();
    let first = world
        .until("it is taken", async || {
            let status = world.status("pay").await;
            if taken(&status).as_deref() == Some("first") { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await;
    let last = first.last_snapshot.unwrap();
    assert!(last.checked && last.revision.is_some_and(|revision| revision > 0), "{last:?}");
    assert!(last.key_id.is_some(), "it is encrypted: {last:?}");
    assert_eq!(first.snapshots, std::slice::from_ref(&last.name));
    assert!(fleetwright_api::is_true(&first.conditions, names::SNAPSHOTS_RECENT));
    no_pod_left(&world).await;
    ask(&world, "second").await;
    let second = world
        .until("the second is taken", async || {
            let status = world.status("pay").await;
            if taken(&status).as_deref() == Some("second") { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await;
    assert_eq!(second.snapshots, [second.last_snapshot.unwrap().name, last.name]);
    no_pod_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_snapshots_go() {
    let world = World::start().await;
    world
        .create("pay", |spec| {
            spec.snapshots = Some(Snapshots { keep: 1, every: Span::seconds(0), ..Snapshots::default() });
        })
        .await;
    world.ready("pay").await;
    let mut names = Vec::new();
    for value in ["one", "two"] {
        ask(&world, value).await;
        let status = world
            .until("it is taken", async || {
                let status = world.status("pay").await;
                let done = status.snapshotted.as_deref() == Some(value);
                if done { Ok(status) } else { Err(format!("{status:#?}")) }
            })
            .await;
        assert_eq!(status.snapshots.len(), 1, "{status:#?}");
        names.extend(status.snapshots);
    }
    assert_ne!(names[0], names[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_does_not_restore_is_told_and_holds_an_upgrade_back() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let version = fleetwright_clusters::IMAGE.rsplit_once(':').unwrap().1;
    world.meta.declare("fleetwright", version, Some(Bad::WrongAnswers));
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    world
        .until("it says that its snapshot failed", async || {
            let status = world.status("pay").await;
            let recent = condition(&status.conditions, names::SNAPSHOTS_RECENT).cloned();
            let upgradable = condition(&status.conditions, names::UPGRADABLE).cloned();
            match (recent, upgradable) {
                (Some(recent), Some(upgradable))
                    if recent.reason == names::reasons::SNAPSHOT_FAILED
                        && recent.message.contains("restore: Error: snapshot file integrity check failed")
                        && upgradable.reason == names::reasons::NO_SNAPSHOT
                        && upgradable.message.contains("integrity") =>
                {
                    Ok(())
                }
                other => Err(format!("{other:#?}")),
            }
        })
        .await;
    assert_eq!(world.status("pay").await.components[0].replicas.iter().filter(|one| one.ready).count(), 3);
    world.told(names::reasons::SNAPSHOT_FAILED).await;
}

/// Asks for a snapshot, and tells its name.
async fn snapshot(world: &World, value: &str) -> String {
    snapshot_of(world, "pay", value).await
}

async fn snapshot_of(world: &World, cluster: &str, value: &str) -> String {
    world.change(cluster, json!({ "metadata": { "annotations": { names::SNAPSHOT: value } } })).await;
    world
        .until("it is taken", async || {
            let status = world.status(cluster).await;
            let name = status.last_snapshot.clone().map(|last| last.name);
            name.filter(|_| status.snapshotted.as_deref() == Some(value)).ok_or_else(|| format!("{status:#?}"))
        })
        .await
}

async fn restored(world: &World, name: &str) -> fleetwright_api::ClusterStatus {
    world
        .until("it is restored", async || {
            let status = world.status("pay").await;
            let done = status.restored.as_ref().is_some_and(|restored| restored.snapshot == name)
                && status.restoring.is_none()
                && status.waiting_for.is_none()
                && fleetwright_api::is_true(&status.conditions, names::READY);
            if done { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_brings_back_what_was_there_and_nothing_that_came_after() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "now").await;
    write(&world, "after").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    let status = restored(&world, &name).await;
    let told = status.restored.unwrap();
    assert_eq!(Some(told.data_of), status.last_snapshot.map(|last| last.at));
    assert!(there(&world, "before").await && !there(&world, "after").await);
    // Once for each value: what is written now stays.
    write(&world, "later").await;
    world.change("pay", json!({ "spec": { "upgrade": { "soak": "1h" } } })).await;
    world.ready("pay").await;
    assert!(there(&world, "later").await);
    no_pod_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_brings_back_a_cluster_all_of_whose_volumes_are_gone() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "now").await;
    // Those that joined later do not begin a new cluster by themselves.
    for member in ["etcd-0", "etcd-1", "etcd-2"] {
        assert!(world.meta.wipe("fleet-pay", &format!("data-{member}")));
    }
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    restored(&world, &name).await;
    assert!(there(&world, "before").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_not_there_stops_nothing() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let name = snapshot(&world, "now").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": "20200101-000000" } } })).await;
    world
        .until("it says so", async || {
            let waits = world.status("pay").await.waiting_for.unwrap_or_default();
            let so = waits.contains("there is no snapshot 20200101-000000") && waits.contains(&name);
            if so { Ok(()) } else { Err(waits) }
        })
        .await;
    write(&world, "meanwhile").await;
    world.change("pay", json!({ "spec": { "restore": null } })).await;
    world.ready("pay").await;
    assert!(there(&world, "meanwhile").await);
    no_pod_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_stops_nothing_before_its_policy_lets_it_pass_and_can_be_withdrawn_until_then() {
    let world = World::start().await;
    world.limit("Restore", 0).await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "now").await;
    let held = async || {
        world
            .until("it says which policy holds it back", async || {
                let status = world.status("pay").await;
                let waits = status.waiting_for.clone().unwrap_or_default();
                if waits.contains("OperationPolicy restore") { Ok(status) } else { Err(format!("{status:#?}")) }
            })
            .await
    };
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    let status = held().await;
    assert_eq!(status.restoring.map(|restoring| restoring.stage), Some(RestoreStage::Checking));
    assert_eq!(status.phase, Some(ClusterPhase::Ready));
    world.operations("Restore", &[OperationPhase::Pending]).await;
    write(&world, "meanwhile").await;

    world.change("pay", json!({ "spec": { "restore": null } })).await;
    world.operations("Restore", &[OperationPhase::Failed]).await;
    world.ready("pay").await;
    assert!(there(&world, "meanwhile").await);
    no_pod_left(&world).await;

    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    held().await;
    world.limit("Restore", 1).await;
    restored(&world, &name).await;
    assert!(there(&world, "before").await && !there(&world, "meanwhile").await);
    world.operations("Restore", &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
}

fn secrets(world: &World) -> Api<Secret> {
    Api::namespaced(world.client.clone(), FLEET)
}

async fn key(world: &World) -> Vec<u8> {
    secrets(world).get("pay-snapshot-key").await.unwrap().data.unwrap()["key"].0.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_snapshots_is_made_once_and_brought_back_and_never_replaced() {
    let world = World::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "first").await;
    let made = key(&world).await;
    assert_eq!(made.len(), 32);
    let everything = json!(world.clusters().get("pay").await.unwrap()).to_string();
    assert!(!everything.contains(&json!(k8s_openapi::ByteString(made.clone())).to_string()));
    // Its copy brings the same key back.
    secrets(&world).delete("pay-snapshot-key", &DeleteParams::default()).await.unwrap();
    snapshot(&world, "second").await;
    assert_eq!(key(&world).await, made);
    // Without both no other key is made: it would open none of the snapshots that there are.
    secrets(&world).delete("pay-snapshot-key", &DeleteParams::default()).await.unwrap();
    world.api::<Secret>("pay").delete("snapshot-key", &DeleteParams::default()).await.unwrap();
    ask(&world, "third").await;
    world
        .until("it says that the key is lost", async || {
            let status = world.status("pay").await;
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one) if one.reason == names::reasons::NO_SECRET && one.message.contains("pay-snapshot-key") => {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert!(secrets(&world).get_opt("pay-snapshot-key").await.unwrap().is_none());
    // A person puts it back.
    let back = json!({
        "metadata": { "name": "pay-snapshot-key", "annotations": { names::ALLOWED_CLUSTERS: "pay" } },
        "data": { "key": k8s_openapi::ByteString(made) },
    });
    secrets(&world).create(&PostParams::default(), &serde_json::from_value(back).unwrap()).await.unwrap();
    snapshot(&world, "fourth").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    restored(&world, &name).await;
    assert!(there(&world, "before").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_reads_no_snapshot_of_another_one_unless_that_ones_key_is_shared_with_it() {
    let world = World::start().await;
    let store = json!({
        "metadata": { "name": "s3", "annotations": { names::ALLOWED_CLUSTERS: "pay" } },
        "stringData": { "accessKeyId": "id", "secretAccessKey": "hidden" },
    });
    secrets(&world).create(&PostParams::default(), &serde_json::from_value(store).unwrap()).await.unwrap();
    let s3 = |prefix: Option<&str>| {
        let mut s3 = json!({ "endpoint": "https://s3.example", "bucket": "backups", "secretRef": { "name": "s3" } });
        s3["prefix"] = json!(prefix);
        Some(serde_json::from_value::<Snapshots>(json!({ "every": "0s", "s3": s3 })).unwrap())
    };
    world.create("pay", |spec| spec.snapshots = s3(None)).await;
    world.ready("pay").await;
    let name = snapshot(&world, "now").await;

    // The prefix of another Cluster leads nowhere, and without the store's Secret nothing does.
    world.create("eve", |spec| spec.snapshots = s3(Some("fleet/pay/"))).await;
    world.ready("eve").await;
    world.change("eve", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    let accepted = async |cluster: &str, reason: &str, part: &str| {
        world
            .until(&format!("{cluster}: {reason}"), async || {
                let status = world.status(cluster).await;
                match condition(&status.conditions, names::ACCEPTED) {
                    Some(one) if one.reason == reason && one.message.contains(part) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
    };
    accepted("eve", names::reasons::SECRET_NOT_SHARED, "fleet/s3").await;
    let annotate = async |secret: &str, value: &str| {
        let patch = json!({ "metadata": { "annotations": { names::ALLOWED_CLUSTERS: value } } });
        secrets(&world).patch(secret, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    annotate("s3", "pay,eve").await;
    world.change("eve", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    let waits = async |part: &str| {
        world
            .until(part, async || {
                let waits = world.status("eve").await.waiting_for.unwrap_or_default();
                if waits.contains(part) { Ok(()) } else { Err(waits) }
            })
            .await;
    };
    waits(&format!("there is no snapshot {name}")).await;

    // By name it needs the other one's key, which its owner has to share.
    let restore = json!({ "spec": { "restore": { "snapshot": name, "cluster": "pay" } } });
    world.change("eve", json!({ "spec": { "restore": null } })).await;
    world.ready("eve").await;
    world.change("eve", restore).await;
    accepted("eve", names::reasons::SECRET_NOT_SHARED, "fleet/pay-snapshot-key").await;
    annotate("pay-snapshot-key", "pay,eve").await;
    world.change("eve", json!({ "metadata": { "labels": { "look": "once-more" } } })).await;
    world
        .until("it is restored", async || {
            let status = world.status("eve").await;
            let done = status.restored.as_ref().is_some_and(|restored| restored.snapshot == format!("pay/{name}"));
            if done && status.restoring.is_none() { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.ready("eve").await;
}
