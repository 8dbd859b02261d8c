//! Snapshots of a cluster's data.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleetwright_api::{ClusterPhase, OperationPhase, RestoreStage, SnapshotVolume, Snapshots, Span, condition, names};
use fleetwright_lab::ServerKind;
use fleetwright_pki::SealKey;
use fleetwright_plan::cluster::keys::{Key, SEAL};
use fleetwright_plan::cluster::snapshots::cluster_keys::{CLUSTER_KEYS, ClusterKeys};
use fleetwright_sim::meta::VersionDefect;
use http::{Method, Request};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::datastore::class;
use crate::support::{FLEET, TestFleet};
use crate::versions::{there, write};

async fn ask(world: &TestFleet, value: &str) {
    world.change("pay", json!({ "metadata": { "annotations": { names::SNAPSHOT: value } } })).await;
}

async fn no_pod_left(world: &TestFleet) {
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
async fn a_snapshot_that_is_asked_for_is_taken_checked_and_reported() {
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    ask(&world, "first").await;
    let taken = |status: &fleetwright_api::ClusterStatus| status.observed_snapshot_request.clone();
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
    let world = TestFleet::start().await;
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
                let done = status.observed_snapshot_request.as_deref() == Some(value);
                if done { Ok(status) } else { Err(format!("{status:#?}")) }
            })
            .await;
        assert_eq!(status.snapshots.len(), 1, "{status:#?}");
        names.extend(status.snapshots);
    }
    assert_ne!(names[0], names[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_does_not_restore_is_reported_and_holds_an_upgrade_back() {
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let version = fleetwright_clusters::IMAGE.rsplit_once(':').unwrap().1;
    world.meta.declare("fleetwright", version, Some(VersionDefect::WrongAnswers));
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    world
        .until("it says that its snapshot failed", async || {
            let status = world.status("pay").await;
            let recent = condition(&status.conditions, names::SNAPSHOTS_RECENT).cloned();
            let upgradable = condition(&status.conditions, names::UPGRADABLE).cloned();
            match (recent, upgradable) {
                (Some(recent), Some(upgradable))
                    if recent.reason == names::reasons::SNAPSHOT_FAILED
                        && recent.message.contains("integrity")
                        && upgradable.reason == names::reasons::SNAPSHOT_REQUIRED
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

#[tokio::test(flavor = "multi_thread")]
async fn the_volume_of_snapshots_grows_when_a_larger_one_is_declared() {
    let world = TestFleet::start().await;
    class(&world, "elastic", true).await;
    world
        .create("pay", |spec| {
            let volume = SnapshotVolume { class: Some("elastic".to_owned()), ..SnapshotVolume::default() };
            spec.snapshots = Some(Snapshots { volume: Some(volume), ..Snapshots::default() });
        })
        .await;
    world.ready("pay").await;
    snapshot(&world, "first").await;
    world.change("pay", json!({ "spec": { "snapshots": { "volume": { "size": "30Gi" } } } })).await;
    let claims: Api<PersistentVolumeClaim> = world.api("pay");
    let requests = |claim: &PersistentVolumeClaim| {
        let resources = claim.spec.as_ref().and_then(|spec| spec.resources.clone()).unwrap_or_default();
        resources.requests.unwrap_or_default().get("storage").map(|size| size.0.clone())
    };
    world.seen(&claims, "snapshots", |claim| requests(claim).as_deref() == Some("30Gi")).await;
    snapshot(&world, "second").await;
}

/// Asks for a snapshot, and tells its name.
pub async fn snapshot(world: &TestFleet, value: &str) -> String {
    snapshot_of(world, "pay", value).await
}

async fn snapshot_of(world: &TestFleet, cluster: &str, value: &str) -> String {
    world.change(cluster, json!({ "metadata": { "annotations": { names::SNAPSHOT: value } } })).await;
    world
        .until("it is taken", async || {
            let status = world.status(cluster).await;
            let name = status.last_snapshot.clone().map(|last| last.name);
            name.filter(|_| status.observed_snapshot_request.as_deref() == Some(value))
                .ok_or_else(|| format!("{status:#?}"))
        })
        .await
}

/// Waits until that snapshot is restored and the cluster works with its data.
pub async fn restored(world: &TestFleet, name: &str) -> fleetwright_api::ClusterStatus {
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
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "now").await;
    write(&world, "after").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    let status = restored(&world, &name).await;
    let told = status.restored.unwrap();
    assert_eq!(Some(told.data_time), status.last_snapshot.map(|last| last.at));
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
    let world = TestFleet::start().await;
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
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let name = snapshot(&world, "now").await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": "20200101-000000" } } })).await;
    world
        .until("it says so", async || {
            let waits = world.status("pay").await.waiting_for.unwrap_or_default();
            let so = waits.contains("snapshot 20200101-000000 not found") && waits.contains(&name);
            if so { Ok(()) } else { Err(waits) }
        })
        .await;
    write(&world, "meanwhile").await;
    world.change("pay", json!({ "spec": { "restore": null } })).await;
    world.ready("pay").await;
    assert!(there(&world, "meanwhile").await);
    no_pod_left(&world).await;
}

async fn a_policy_holds_a_restore(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.limit("Restore", 0).await;
    world.create("pay", |spec| spec.replicas = 1).await;
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
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_stops_nothing_before_its_policy_lets_it_pass_and_can_be_withdrawn_until_then() {
    a_policy_holds_a_restore(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_stops_nothing_before_its_policy_lets_it_pass_and_can_be_withdrawn_until_then_on_real() {
    a_policy_holds_a_restore(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_snapshot_takes_the_place_of_one_that_does_not_restore_to_the_members() {
    let world = TestFleet::start().await;
    world.limit("Restore", 1).await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    let good = snapshot(&world, "first").await;
    write(&world, "after").await;
    let bad = snapshot(&world, "second").await;
    let version = fleetwright_clusters::IMAGE.rsplit_once(':').unwrap().1;
    world.meta.declare("fleetwright", version, Some(VersionDefect::WrongAnswers));
    world.change("pay", json!({ "spec": { "restore": { "snapshot": bad } } })).await;
    world
        .until("it does not restore to the members", async || {
            let status = world.status("pay").await;
            let stage = status.restoring.as_ref().map(|restoring| restoring.stage);
            let fails = status.waiting_for.as_ref().is_some_and(|waits| waits.contains("integrity"));
            if stage == Some(RestoreStage::Restoring) && fails { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.operations("Restore", &[OperationPhase::Running]).await;
    world.meta.declare("fleetwright", version, None);
    world.change("pay", json!({ "spec": { "restore": { "snapshot": good } } })).await;
    restored(&world, &good).await;
    assert!(there(&world, "before").await && !there(&world, "after").await);
    world.operations("Restore", &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
    no_pod_left(&world).await;
}

fn secrets(world: &TestFleet) -> Api<Secret> {
    Api::namespaced(world.client.clone(), FLEET)
}

async fn key(world: &TestFleet) -> Vec<u8> {
    secrets(world).get("pay-snapshot-key").await.unwrap().data.unwrap()["key"].0.clone()
}

async fn only_the_owner_replaces_the_key_of_snapshots(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
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
                Some(one)
                    if one.reason == names::reasons::SECRET_NOT_FOUND && one.message.contains("pay-snapshot-key") =>
                {
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
    a_key_of_its_owner_is_used_and_replaced(&world).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_snapshots_is_made_once_and_brought_back_and_replaced_by_its_owner_alone() {
    only_the_owner_replaces_the_key_of_snapshots(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_snapshots_is_made_once_and_brought_back_and_replaced_by_its_owner_alone_on_real() {
    only_the_owner_replaces_the_key_of_snapshots(ServerKind::Real).await;
}

/// A key that the owner of the cluster chooses: it is used if its Secret is shared, and after a rotation `previous` opens an older snapshot.
async fn a_key_of_its_owner_is_used_and_replaced(world: &TestFleet) {
    let bytes = |byte: u8| ByteString(vec![byte; 32]);
    let key_id = async || world.status("pay").await.last_snapshot.unwrap().key_id.unwrap();
    let copy = async || world.api::<Secret>("pay").get("snapshot-key").await.unwrap().data.unwrap();
    let change = async |patch: serde_json::Value| {
        secrets(world).patch("own", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    let generated = key_id().await;
    let own = json!({ "metadata": { "name": "own" }, "data": { "key": bytes(1) } });
    secrets(world).create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    let snapshots = json!({ "encryption": { "secretRef": { "name": "own" } } });
    world.change("pay", json!({ "spec": { "restore": null, "snapshots": snapshots } })).await;
    ask(world, "not-shared").await;
    world
        .until("it says that the Secret is not shared", async || {
            let status = world.status("pay").await;
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one)
                    if one.reason == names::reasons::SECRET_NOT_SHARED
                        && one.message.contains("fleet/own")
                        && one.message.contains(names::ALLOWED_CLUSTERS) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert_ne!(copy().await["key"], bytes(1), "a key that is not shared is not copied");

    // A node gives a pod the data of a Secret that an earlier pod still has.
    no_pod_left(world).await;
    change(json!({ "metadata": { "annotations": { names::ALLOWED_CLUSTERS: "pay" } } })).await;
    write(world, "sealed").await;
    let older = snapshot(world, "own").await;
    let first = key_id().await;
    assert_ne!(first, generated);
    assert_eq!(copy().await["key"], bytes(1));
    no_pod_left(world).await;
    change(json!({ "data": { "key": bytes(2), "previous": bytes(1) } })).await;
    write(world, "rotated").await;
    snapshot(world, "rotated").await;
    assert_ne!(key_id().await, first);
    assert_eq!(copy().await["key"], bytes(2));
    world.change("pay", json!({ "spec": { "restore": { "snapshot": older } } })).await;
    restored(world, &older).await;
    assert!(there(world, "sealed").await && !there(world, "rotated").await);
}

async fn snapshots_of_others_are_not_read(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
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
    waits(&format!("snapshot {name} not found")).await;

    // By name, with the same prefix, it needs the other one's key, which its owner has to share.
    let restore = json!({ "spec": { "restore": { "snapshot": name, "cluster": "pay" } } });
    world.change("eve", json!({ "spec": { "restore": null, "snapshots": { "s3": { "prefix": null } } } })).await;
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
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_reads_no_snapshot_of_another_one_unless_that_ones_key_is_shared_with_it() {
    snapshots_of_others_are_not_read(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_reads_no_snapshot_of_another_one_unless_that_ones_key_is_shared_with_it_on_real() {
    snapshots_of_others_are_not_read(ServerKind::Real).await;
}

/// The Secrets of a cluster's keys, by their names.
async fn keys_of(world: &TestFleet) -> BTreeMap<String, BTreeMap<String, ByteString>> {
    let mut all = BTreeMap::new();
    for key in Key::all() {
        let secret = world.api::<Secret>("pay").get(key.secret()).await.unwrap();
        all.insert(key.secret().to_owned(), secret.data.unwrap_or_default());
    }
    all
}

/// What `fleetwright snapshot keys` opens of what is kept with a snapshot.
async fn opened(world: &TestFleet, snapshot: &str) -> ClusterKeys {
    let sealed = world.meta.snapshot_file("fleet-pay", "snapshots", &format!("{snapshot}.keys"));
    let sealed = sealed.expect("the keys are kept with the snapshot");
    assert!(!sealed.windows(7).any(|part| part == b"PRIVATE" || part == b"BEGIN C"), "reading it reveals nothing");
    let key = SealKey::from_bytes(&key(world).await).unwrap();
    assert!(ClusterKeys::open(&SealKey::generate().unwrap(), "fleet/pay", &sealed).is_none());
    assert!(ClusterKeys::open(&key, "fleet/shop", &sealed).is_none(), "they are of this Cluster");
    ClusterKeys::open(&key, "fleet/pay", &sealed).expect("the key of snapshots opens them")
}

fn text(secrets: &BTreeMap<String, BTreeMap<String, ByteString>>) -> BTreeMap<String, BTreeMap<String, String>> {
    let text = |data: &BTreeMap<String, ByteString>| -> BTreeMap<String, String> {
        data.iter().map(|(key, value)| (key.clone(), String::from_utf8(value.0.clone()).unwrap())).collect()
    };
    secrets.iter().map(|(name, data)| (name.clone(), text(data))).collect()
}

async fn a_snapshot_brings_back_lost_keys(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.certificates.overlap.0 = Duration::from_secs(1);
        })
        .await;
    world.ready("pay").await;
    let old = keys_of(&world).await;
    let first = snapshot(&world, "first").await;
    assert!(opened(&world, &first).await.secrets == text(&old), "they are what the Secrets hold");
    let beside = async || world.api::<Secret>("pay").get(CLUSTER_KEYS).await.unwrap();
    let made = beside().await;
    let plain = |data: &ByteString| data.0.windows(7).any(|part| part == b"PRIVATE" || part == b"BEGIN C");
    assert!(!made.data.iter().flatten().any(|(_, data)| plain(data)), "no plain key reaches the pod");

    // Nothing changed: nothing is written.
    let second = snapshot(&world, "second").await;
    assert_eq!(beside().await.resource_version(), made.resource_version());
    assert!(opened(&world, &second).await.secrets == text(&old));
    // What somebody spoils is sealed again.
    let spoilt = Patch::Merge(json!({ "data": { "sealed": ByteString(b"spoilt".to_vec()) } }));
    world.api::<Secret>("pay").patch(CLUSTER_KEYS, &PatchParams::default(), &spoilt).await.unwrap();
    let third = snapshot(&world, "third").await;
    assert!(opened(&world, &third).await.secrets == text(&old));

    let before = beside().await;
    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "now" } } })).await;
    world
        .until("it is rotated", async || {
            let status = world.status("pay").await;
            let done = status.rotation.is_none() && status.authorities.as_deref() == Some("now");
            if done { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.ready("pay").await;
    let new = keys_of(&world).await;
    assert!(new["ca"] != old["ca"] && new["service-account"] == old["service-account"]);
    let rotated = snapshot(&world, "rotated").await;
    assert_ne!(beside().await.resource_version(), before.resource_version());
    assert!(opened(&world, &rotated).await.secrets == text(&new), "they follow a rotation");
    assert!(opened(&world, &first).await.secrets == text(&old), "what is kept does not change");

    // Two keys, the sealed copy and what opens it are gone before the operator sees it.
    world.operator_stops().await;
    for name in [SEAL, "pay.sealed-keys"] {
        secrets(&world).delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["ca", "service-account"] {
        world.api::<Secret>("pay").delete(name, &DeleteParams::default()).await.unwrap();
    }
    world.operator_starts();
    world
        .until("it says that its authority is lost", async || {
            let status = world.status("pay").await;
            match condition(&status.conditions, names::CERTIFICATES_VALID) {
                Some(one) if one.reason == names::reasons::AUTHORITY_LOST => {
                    assert!(one.message.contains("fleetwright snapshot keys"), "{}", one.message);
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    // A snapshot that is taken now has the keys that are lost.
    let last = snapshot(&world, "last").await;
    let keys = opened(&world, &last).await;
    assert!(keys.secrets == text(&new));
    assert!(secrets(&world).get_opt(SEAL).await.unwrap().is_none(), "taking a snapshot seals no other copy");
    let api: Api<Secret> = world.api("pay");
    for object in keys.objects("fleet/pay") {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        assert_eq!(object["metadata"]["namespace"], "fleet-pay");
        // As `kubectl apply --server-side` does.
        api.patch(&name, &PatchParams::apply("kubectl"), &Patch::Apply(&object)).await.unwrap();
    }
    world.ready("pay").await;
    world
        .until("its certificates are valid", async || {
            let status = world.status("pay").await;
            let valid = fleetwright_api::is_true(&status.conditions, names::CERTIFICATES_VALID);
            if valid { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    assert!(keys_of(&world).await == new, "the same keys are back");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_brings_back_keys_that_are_lost_with_their_sealed_copy() {
    a_snapshot_brings_back_lost_keys(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_brings_back_keys_that_are_lost_with_their_sealed_copy_on_real() {
    a_snapshot_brings_back_lost_keys(ServerKind::Real).await;
}

/// A client after whose first read of the Secret with the cluster's keys somebody else creates that Secret.
fn overtaken(client: kube::Client, other: Secret) -> kube::Client {
    let other = Arc::new(Mutex::new(Some(other)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, other) = (client.clone(), other.clone());
        async move {
            let path = format!("/secrets/{CLUSTER_KEYS}");
            let reads = *request.method() == Method::GET && request.uri().path().ends_with(&path);
            let answer = client.send(request).await.unwrap();
            let other = if reads { other.lock().unwrap().take() } else { None };
            if let Some(other) = other {
                let api: Api<Secret> = Api::namespaced(client, "fleet-pay");
                api.create(&PostParams::default(), &other).await.unwrap();
            }
            Ok::<_, Infallible>(answer)
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_somebody_restores_while_a_snapshot_is_taken_are_not_overwritten() {
    let mut world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let first = snapshot(&world, "first").await;
    let mut keys = opened(&world, &first).await;
    keys.secrets.insert("lost".to_owned(), [("tls.key".to_owned(), "the last one".to_owned())].into());
    let seal = SealKey::from_bytes(&key(&world).await).unwrap();
    let data = json!({ "sealed": ByteString(keys.seal(&seal, "fleet/pay").unwrap()) });
    let other = serde_json::from_value(json!({ "metadata": { "name": CLUSTER_KEYS }, "data": data })).unwrap();

    world.operator_stops().await;
    world.api::<Secret>("pay").delete(CLUSTER_KEYS, &DeleteParams::default()).await.unwrap();
    let client = world.client.clone();
    world.client = overtaken(client.clone(), other);
    world.operator_starts();
    world.client = client;
    let second = snapshot(&world, "second").await;
    assert!(opened(&world, &second).await.secrets == keys.secrets, "the key that was restored is kept");
    world.stop().await;
}
