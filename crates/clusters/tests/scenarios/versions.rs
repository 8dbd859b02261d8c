//! Upgraded, rolled back, and refused.

use std::time::Duration;

use fleetwright_api::{ClusterPhase, ClusterStatus, Status, condition, names};
use fleetwright_lab::ServerKind;
use fleetwright_sim::meta::{Removal, VersionDefect};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::TestFleet;

pub async fn refer(world: &TestFleet, package: &str) {
    world.change("pay", json!({ "spec": { "packageVersion": package } })).await;
}

/// A client of the business cluster, through one of its API servers.
pub async fn business(world: &TestFleet) -> kube::Client {
    let pods: Api<Pod> = world.api("pay");
    let all = pods.list(&Default::default()).await.unwrap().items;
    let found = all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).find_map(|pod| {
        let name = pod.metadata.name?;
        name.starts_with("kube-apiserver").then(|| world.meta.client("fleet-pay", &name)).flatten()
    });
    found.expect("an API server runs")
}

pub async fn write(world: &TestFleet, name: &str) {
    let maps: Api<ConfigMap> = Api::default_namespaced(business(world).await);
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await.unwrap();
}

pub async fn there(world: &TestFleet, name: &str) -> bool {
    let maps: Api<ConfigMap> = Api::default_namespaced(business(world).await);
    maps.get_opt(name).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_emulates_the_old_minor_and_going_back_keeps_every_write() {
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    write(&world, "before").await;
    refer(&world, "v1.37").await;
    let status = world.ready("pay").await;
    assert_eq!((status.phase, status.emulates.as_deref()), (Some(ClusterPhase::Soaking), Some("1.36")));
    assert_eq!(status.components[1].observed.as_deref(), Some("1.37.1"), "{status:#?}");
    write(&world, "after").await;
    refer(&world, "v1.36").await;
    let status = world.ready("pay").await;
    assert_eq!(status.components[1].observed.as_deref(), Some("1.36.4"), "{status:#?}");
    assert!(there(&world, "before").await && there(&world, "after").await);
}

/// API servers of that version work from now on: those that do not are deleted, and made again.
pub async fn mend(world: &TestFleet, version: &str) {
    world.meta.declare("kube-apiserver", version, None);
    let pods: Api<Pod> = world.api("pay");
    for pod in pods.list(&Default::default()).await.unwrap() {
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
        if !ready && pod.name_any().starts_with("kube-apiserver") {
            pods.delete(&pod.name_any(), &Default::default()).await.unwrap();
        }
    }
}

/// Waits until the end of the soak stands so; answers the message.
pub async fn finishable(world: &TestFleet, status: Status, reason: &str) -> String {
    world
        .until(&format!("UpgradeCompletable is {reason}"), async || {
            let said = world.status("pay").await;
            match condition(&said.conditions, names::UPGRADE_COMPLETABLE) {
                Some(one) if one.status == status && one.reason == reason => Ok(one.message.clone()),
                other => Err(format!("{other:?} {said:#?}")),
            }
        })
        .await
}

/// Waits until the soak has ended, and the components work without emulation.
pub async fn finished(world: &TestFleet) -> ClusterStatus {
    world
        .until("the soak is over and finished", async || {
            let status = world.status("pay").await;
            let done = status.phase == Some(ClusterPhase::Ready) && status.package_version.as_deref() == Some("v1.37");
            let ended = status.emulates.is_none() && status.finishing.is_none();
            if done && ended { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
}

/// The minor that an API server says it emulates.
pub async fn emulated(world: &TestFleet) -> Option<String> {
    business(world).await.apiserver_version().await.unwrap().emulation_minor
}

async fn a_soak_ends(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.upgrade.soak.0 = Duration::from_secs(1)).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    let status = finished(&world).await;
    assert_eq!(emulated(&world).await.as_deref(), Some("37"));
    let last = status.last_snapshot.clone().unwrap();
    assert!(last.purpose.as_ref().is_some_and(|purpose| purpose.starts_with("soak/v1.37/")), "{last:?}");
    assert!(last.checked && condition(&status.conditions, names::UPGRADE_COMPLETABLE).is_none(), "{status:#?}");
    world.told("SoakEnded").await;
    world.told("UpgradeCompleted").await;
    refer(&world, "v1.36").await;
    world
        .until("it is refused", async || {
            let status = world.status("pay").await;
            let upgradable = condition(&status.conditions, names::UPGRADABLE).cloned();
            match upgradable {
                Some(one) if one.reason == names::reasons::SOAK_ENDED => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert_eq!(world.status("pay").await.components[1].observed.as_deref(), Some("1.37.1"));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_that_is_over_is_finished_and_there_is_no_way_back_then() {
    a_soak_ends(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_that_is_over_is_finished_and_there_is_no_way_back_then_on_real() {
    a_soak_ends(ServerKind::Real).await;
}

/// On kube-apiserver the soak does not end, to save time.
async fn a_removed_api_blocks_the_end_of_a_soak(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let (group, version) = ("storage.k8s.io".to_owned(), "v1".to_owned());
    let removal = Removal { group, version, resource: "storageclasses".to_owned(), release: "1.37".to_owned() };
    world.meta.declare_removal(removal);
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    let status = world.ready("pay").await;
    assert_eq!(status.phase, Some(ClusterPhase::Soaking));
    assert_eq!(emulated(&world).await.as_deref(), Some("36"));
    // Somebody calls it during the soak; and the soak, which had a day left, is made so short that it is over.
    Api::<StorageClass>::all(business(&world).await).list(&Default::default()).await.unwrap();
    let since = status.soak_since.unwrap();
    world.change("pay", json!({ "spec": { "upgrade": { "soak": "1s" } } })).await;
    let message = finishable(&world, Status::False, names::reasons::REMOVED_APIS_IN_USE).await;
    for part in ["storageclasses", "storage.k8s.io/v1", "removed in 1.37", "RemovedAPIsInUse@v1.37/soak"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    world.told("UpgradeCompletionBlocked").await;
    let status = world.status("pay").await;
    assert_eq!((status.soak_since, status.soak_until), (Some(since), Some(since + SignedDuration::from_secs(1))));
    assert_eq!((status.phase, status.emulates.as_deref()), (Some(ClusterPhase::Soaking), Some("1.36")));
    if kind == ServerKind::Real {
        world.stop().await;
        return;
    }
    // Longer again: it is not over any more, and nothing is asked.
    world.change("pay", json!({ "spec": { "upgrade": { "soak": "48h" } } })).await;
    finishable(&world, Status::Unknown, names::reasons::SOAKING).await;
    assert_eq!(world.status("pay").await.soak_until, Some(since + SignedDuration::from_hours(48)));
    world.change("pay", json!({ "spec": { "upgrade": { "soak": "1s" } } })).await;
    finishable(&world, Status::False, names::reasons::REMOVED_APIS_IN_USE).await;
    // Overridden for the upgrade, it is not overridden for the end of the soak.
    let annotate = |text: &str| json!({ "metadata": { "annotations": { names::OVERRIDE: text } } });
    world.change("pay", annotate("RemovedAPIsInUse@v1.37")).await;
    finishable(&world, Status::False, names::reasons::REMOVED_APIS_IN_USE).await;
    assert_eq!(emulated(&world).await.as_deref(), Some("36"));
    world.change("pay", annotate("RemovedAPIsInUse@v1.37/soak")).await;
    let status = finished(&world).await;
    assert!(status.last_snapshot.unwrap().purpose.is_some());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_does_not_end_while_callers_use_an_api_that_the_new_minor_removes() {
    a_removed_api_blocks_the_end_of_a_soak(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_does_not_end_while_callers_use_an_api_that_the_new_minor_removes_on_real() {
    a_removed_api_blocks_the_end_of_a_soak(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_that_began_in_the_soak_is_finished_after_its_time() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    let status = world.ready("pay").await;
    assert_eq!(status.phase, Some(ClusterPhase::Soaking));
    write(&world, "in-the-soak").await;
    // The old version does not become ready for a while: the rollback is under way when the time is over.
    world.meta.declare("kube-apiserver", "v1.36.4", Some(VersionDefect::NeverReady));
    refer(&world, "v1.36").await;
    world
        .until("the rollback is under way", async || {
            let status = world.status("pay").await;
            let waits = status.waiting_for.clone().unwrap_or_default();
            let so = status.phase == Some(ClusterPhase::RollingBack) && waits.contains("kube-apiserver");
            if so { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.change("pay", json!({ "spec": { "upgrade": { "soak": "1s" } } })).await;
    finishable(&world, Status::Unknown, names::reasons::CHANGE_IN_PROGRESS).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let status = world.status("pay").await;
    assert_eq!((status.emulates.as_deref(), &status.finishing), (Some("1.36"), &None), "{status:#?}");
    mend(&world, "v1.36.4").await;
    let status = world.ready("pay").await;
    assert_eq!(status.components[1].observed.as_deref(), Some("1.36.4"), "{status:#?}");
    assert_eq!((status.emulates, status.soak_until), (None, None));
    assert!(there(&world, "in-the-soak").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_does_not_do_what_it_is_asked_for_is_never_called_ready_and_the_old_one_serves_on() {
    let world = TestFleet::start().await;
    world.meta.declare("kube-apiserver", "v1.37.1", Some(VersionDefect::NeverReady));
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    world
        .until("it waits for the new API server", async || {
            let status = world.status("pay").await;
            let waits = status.waiting_for.clone().unwrap_or_default();
            let so = status.phase == Some(ClusterPhase::Upgrading) && waits.contains("kube-apiserver");
            if so { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    let status = world.status("pay").await;
    assert!(fleetwright_api::is_true(&status.conditions, names::READY), "the old ones are proven: {status:#?}");
    assert_eq!(status.components[2].observed.as_deref(), Some("1.36.4"), "what comes later is not touched");
    write(&world, "meanwhile").await;
    refer(&world, "v1.36").await;
    world.ready("pay").await;
    assert!(there(&world, "meanwhile").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_says_ready_and_keeps_nothing_is_not_proven() {
    let world = TestFleet::start().await;
    world.meta.declare("kube-apiserver", "v1.36.4", Some(VersionDefect::WrongAnswers));
    world.create("pay", |spec| spec.replicas = 1).await;
    world
        .until("its proof fails", async || {
            let status = world.status("pay").await;
            let waits = status.waiting_for.clone().unwrap_or_default();
            if waits.contains("not verified") { Ok(()) } else { Err(waits) }
        })
        .await;
    assert!(!fleetwright_api::is_true(&world.status("pay").await.conditions, names::READY));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_does_not_work_is_taken_back_by_itself_and_says_why() {
    let world = TestFleet::start().await;
    world.meta.declare("kube-apiserver", "v1.37.1", Some(VersionDefect::NeverReady));
    world.create("pay", |spec| spec.upgrade.stage_timeout.0 = Duration::from_secs(2)).await;
    world.ready("pay").await;
    refer(&world, "v1.37").await;
    let taken_back = async || {
        let status = world.status("pay").await;
        let whole = status.phase == Some(ClusterPhase::Ready) && status.package_version.as_deref() == Some("v1.36");
        if whole && status.failed.is_some() { Ok(status) } else { Err(format!("{status:#?}")) }
    };
    let status = world.until("it is taken back", taken_back).await;
    let failed = status.failed.unwrap();
    assert_eq!(failed.package_version, "v1.37");
    assert!(failed.message.contains("kube-apiserver"), "{failed:?}");
    assert!(status.components.iter().skip(1).all(|one| one.observed.as_deref() == Some("1.36.4")));
    let upgradable = fleetwright_api::condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!(upgradable.reason, names::reasons::UPGRADE_FAILED);

    world.meta.declare("kube-apiserver", "v1.37.1", None);
    let patience = json!({ "spec": { "upgrade": { "stageTimeout": "10m" } } });
    world.change("pay", patience).await;
    world.change("pay", json!({ "metadata": { "annotations": { names::RETRY: "1" } } })).await;
    let status = world.ready("pay").await;
    assert_eq!((status.package_version.as_deref(), status.failed), (Some("v1.37"), None));
}
