//! Package versions with different minors of etcd: the data stays with the newer one, whatever is rolled back, deleted or changed.

use std::time::Duration;

use fleetwright_api::{
    ClusterPackageVersion, ClusterPackageVersionSpec, ClusterStatus, RestoreStage, Status, condition, names,
};
use fleetwright_lab::ServerKind;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::datastore::{class, three_of};
use crate::preflight_checks::held;
use crate::snapshots::{restored, snapshot};
use crate::support::{TestFleet, not_accepted};
use crate::versions::{refer, there, write};

/// Has the next minor of Kubernetes and of etcd.
const NEWER: &str = "v1.37-etcd-3.7";

async fn package(world: &TestFleet, name: &str, kubernetes: &str, etcd: &str) {
    let spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
    world.packages().create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await.unwrap();
}

/// The etcd that is recorded: its version, and the package version that it was made from.
fn recorded(status: &ClusterStatus) -> (Option<&str>, Option<&str>) {
    let etcd = status.etcd.as_ref();
    (etcd.and_then(|etcd| etcd.version.as_deref()), etcd.and_then(|etcd| etcd.package_version.as_deref()))
}

/// A world with a cluster of three members that was upgraded to [`NEWER`] and rolled back, with a write and a snapshot before the upgrade and after the rollback.
async fn rolled_back(kind: ServerKind) -> (TestFleet, [String; 2]) {
    let world = TestFleet::on(kind).await;
    class(&world, "elastic", true).await;
    package(&world, NEWER, "1.37.1", "3.7.0").await;
    world
        .create("pay", |spec| {
            three_of(spec, "elastic");
            spec.replicas = 1;
        })
        .await;
    world.ready("pay").await;
    write(&world, "before").await;
    let old = snapshot(&world, "old").await;
    let last = world.status("pay").await.last_snapshot.unwrap();
    assert_eq!(last.etcd.as_deref(), Some("3.6.0"), "{last:?}");

    refer(&world, NEWER).await;
    let status = world.ready("pay").await;
    assert_eq!(recorded(&status), (Some("3.7.0"), Some(NEWER)));
    write(&world, "upgraded").await;
    refer(&world, "v1.36").await;
    let status = world.ready("pay").await;
    assert_eq!(status.components[1].observed.as_deref(), Some("1.36.4"), "{status:#?}");
    write(&world, "rolled-back").await;
    let new = snapshot(&world, "new").await;
    let last = world.status("pay").await.last_snapshot.unwrap();
    assert_eq!(last.etcd.as_deref(), Some("3.7.0"), "{last:?}");
    is_newer(&world).await;
    (world, [old, new])
}

/// The image of etcd in that StatefulSet.
fn image(set: &StatefulSet) -> &str {
    let containers = set.spec.template.spec.as_ref().map(|pod| &pod.containers[..]).unwrap_or_default();
    containers.first().and_then(|container| container.image.as_deref()).unwrap_or_default()
}

/// No member was ever started with an etcd that is older than its data.
fn is_never_older(world: &TestFleet) {
    let mut starts = world.meta.older_starts();
    // A snapshot that is checked is no member.
    starts.retain(|start| start.member.starts_with("etcd-"));
    assert!(starts.is_empty(), "{starts:?}");
}

/// All members run the newer etcd, and the status says so.
async fn is_newer(world: &TestFleet) {
    let (pods, sets): (Api<Pod>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    assert!(image(&sets.get("etcd").await.unwrap()).ends_with("etcd:v3.7.0"));
    for number in 0..3 {
        let pod = pods.get(&format!("etcd-{number}")).await.unwrap();
        let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref());
        assert!(image.is_some_and(|image| image.ends_with("etcd:v3.7.0")), "{image:?}");
    }
    assert_eq!(recorded(&world.status("pay").await), (Some("3.7.0"), Some(NEWER)));
    is_never_older(world);
}

/// Deletes the StatefulSet without its pods; answers its uid.
async fn delete_set(world: &TestFleet) -> Option<String> {
    let sets: Api<StatefulSet> = world.api("pay");
    let uid = sets.get("etcd").await.unwrap().uid();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    sets.delete("etcd", &orphan).await.unwrap();
    world
        .until("the StatefulSet is gone", async || {
            let found = sets.get_opt("etcd").await.unwrap().map(|set| set.uid());
            if found.as_ref() == Some(&uid) { Err(format!("{found:?}")) } else { Ok(()) }
        })
        .await;
    uid
}

/// Waits until there is another StatefulSet than that; it has the newer etcd from the first moment.
async fn is_created_again(world: &TestFleet, old: Option<&str>) {
    let sets: Api<StatefulSet> = world.api("pay");
    let set = world.seen(&sets, "etcd", |set| set.uid().as_deref() != old).await;
    assert!(image(&set).ends_with("etcd:v3.7.0"), "{}", image(&set));
    world.ready("pay").await;
    is_newer(world).await;
}

/// Declares larger volumes, and waits until the volumes of members and the StatefulSet, which is created again for it, have that size.
async fn grow(world: &TestFleet) {
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "storage": { "size": "20Gi" } } } } })).await;
    let (claims, sets): (Api<PersistentVolumeClaim>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    let storage = |claim: &PersistentVolumeClaim| {
        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
        requests.and_then(|requests| requests.get("storage").map(|size| size.0.clone())).unwrap_or_default()
    };
    world
        .until("volumes are larger", async || {
            let all = claims.list(&Default::default()).await.unwrap();
            let members = all.iter().filter(|claim| claim.name_any().starts_with("data-etcd-"));
            let mut sizes: Vec<String> = members.map(storage).collect();
            let set = sets.get_opt("etcd").await.unwrap().map(|set| set.spec);
            sizes.extend(set.and_then(|spec| spec.volume_claim_templates).iter().flatten().map(storage));
            if sizes == ["20Gi"; 4] { Ok(()) } else { Err(format!("{sizes:?} {:#?}", world.status("pay").await)) }
        })
        .await;
    world.ready("pay").await;
}

async fn stays_with_the_newer_etcd(kind: ServerKind) {
    let (world, _) = rolled_back(kind).await;
    let old = delete_set(&world).await;
    is_created_again(&world, old.as_deref()).await;
    grow(&world).await;
    is_newer(&world).await;

    // Without the package version that it was made from, etcd is left as it is.
    let newer = world.packages().get(NEWER).await.unwrap().spec;
    world.packages().delete(NEWER, &DeleteParams::default()).await.unwrap();
    world
        .until("MembersUpToDate names the package version", async || {
            let status = world.status("pay").await;
            match condition(&status.conditions, names::MEMBERS_UP_TO_DATE) {
                Some(one)
                    if one.status == Status::False
                        && one.reason == names::reasons::PACKAGE_VERSION_NOT_FOUND
                        && one.message.contains(NEWER) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let old = delete_set(&world).await;
    // Longer than the operator waits before it looks again.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.api::<StatefulSet>("pay").get_opt("etcd").await.unwrap().is_none());
    write(&world, "without-package").await;
    world.packages().create(&PostParams::default(), &ClusterPackageVersion::new(NEWER, newer)).await.unwrap();
    is_created_again(&world, old.as_deref()).await;

    // A member that is deleted comes back with the data that it has.
    let pods: Api<Pod> = world.api("pay");
    let old = pods.get("etcd-1").await.unwrap().uid();
    pods.delete("etcd-1", &DeleteParams::default()).await.unwrap();
    world.seen(&pods, "etcd-1", |pod| pod.uid() != old).await;
    world.ready("pay").await;
    is_newer(&world).await;
    for name in ["before", "upgraded", "rolled-back", "without-package"] {
        assert!(there(&world, name).await, "{name} is lost");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_member_is_started_with_an_older_etcd_after_a_rollback_whatever_is_deleted_or_changed() {
    stays_with_the_newer_etcd(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_member_is_started_with_an_older_etcd_after_a_rollback_whatever_is_deleted_or_changed_on_real() {
    stays_with_the_newer_etcd(ServerKind::Real).await;
}

async fn a_newer_snapshot_is_refused(kind: ServerKind) {
    let (world, [old, new]) = rolled_back(kind).await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": new } } })).await;
    let message = not_accepted(&world, "pay", names::reasons::SNAPSHOT_UNUSABLE, "spec.packageVersion").await;
    for part in [&*new, "etcd 3.7", "etcd 3.6.16", "v1.36"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let status = world.status("pay").await;
    assert_eq!(status.restoring.as_ref().map(|restoring| restoring.stage), Some(RestoreStage::Checking));
    is_newer(&world).await;
    write(&world, "meanwhile").await;

    // With the etcd that it needs it is restored, and one of the older etcd with the older etcd.
    world.change("pay", json!({ "spec": { "packageVersion": NEWER } })).await;
    restored(&world, &new).await;
    is_newer(&world).await;
    assert!(there(&world, "rolled-back").await && !there(&world, "meanwhile").await);
    let back = json!({ "spec": { "packageVersion": "v1.36", "restore": { "snapshot": old } } });
    world.change("pay", back).await;
    let status = restored(&world, &old).await;
    assert_eq!(recorded(&status), (Some("3.6.16"), Some("v1.36")));
    assert!(there(&world, "before").await && !there(&world, "upgraded").await);
    is_never_older(&world);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_newer_etcd_is_restored_with_no_older_one() {
    a_newer_snapshot_is_refused(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_newer_etcd_is_restored_with_no_older_one_on_real() {
    a_newer_snapshot_is_refused(ServerKind::Real).await;
}

async fn is_checked_without_its_package_version(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    package(&world, "v1.38", "1.38.0", "3.7.0").await;
    package(&world, NEWER, "1.37.1", "3.7.0").await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    write(&world, "before").await;
    world.packages().delete("v1.36", &DeleteParams::default()).await.unwrap();
    refer(&world, "v1.38").await;
    let message = held(&world, names::reasons::UNSUPPORTED_UPGRADE_PATH).await;
    assert!(message.contains("1.37 first") && message.contains("ClusterPackageVersion v1.36, "), "{message}");
    let status = world.status("pay").await;
    assert!(status.components.iter().skip(1).all(|one| one.observed.as_deref() == Some("1.36.4")), "{status:#?}");

    refer(&world, NEWER).await;
    let status = world.ready("pay").await;
    assert_eq!((status.emulates.as_deref(), recorded(&status)), (Some("1.36"), (Some("3.7.0"), Some(NEWER))));
    let last = status.last_snapshot.as_ref().expect("a snapshot was taken before the upgrade");
    assert_eq!(last.etcd.as_deref(), Some("3.6.0"), "{last:?}");
    assert!(there(&world, "before").await);
    is_never_older(&world);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_from_a_package_version_that_was_deleted_has_all_its_checks() {
    is_checked_without_its_package_version(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_from_a_package_version_that_was_deleted_has_all_its_checks_on_real() {
    is_checked_without_its_package_version(ServerKind::Real).await;
}
