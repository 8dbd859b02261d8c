//! The rehearsal of a change names what the operator then does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use fleetwright_api::{ControlPlaneComponent, names};
use fleetwright_clusters::ClusterSnapshot;
use fleetwright_lab::ServerKind;
use fleetwright_plan::cluster::cluster_plan::{ClusterPlan, MemberPlan, StagePlan};
use fleetwright_plan::cluster::objects::PACKAGE_VERSION;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::datastore::{class, three_of};
use crate::extensions::{MORE, extension};
use crate::support::TestFleet;
use crate::versions::{business, refer};

/// Annotation of a Deployment that the controller of Deployments writes.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// A cluster with an extension and three replicas that is Ready with the package version `full`. `next` is the same of the next minor.
async fn settled(kind: ServerKind) -> TestFleet {
    let world = TestFleet::on(kind).await;
    world.package("full", "1.36.4", vec![extension("more", 30, MORE)]).await;
    world.package("next", "1.37.1", vec![extension("more", 30, MORE)]).await;
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.replicas = 3;
        })
        .await;
    world.extended().await;
    world.ready("pay").await;
    world
}

/// What bringing `pay` to that package version would do; to the one that it refers to if none is named.
async fn rehearsed(world: &TestFleet, to: Option<&str>) -> ClusterPlan {
    let cluster = world.clusters().get("pay").await.unwrap();
    let present = ClusterSnapshot::look(&world.client, cluster).await.unwrap();
    present.rehearse(to, Timestamp::now()).expect("the package version exists")
}

/// Waits until the rehearsal of the package version that the cluster has changes nothing: the operator still applies arguments of etcd after the cluster became Ready.
async fn at_rest(world: &TestFleet) -> ClusterPlan {
    world
        .until("the rehearsal of the present package version changes nothing", async || {
            let rehearsal = rehearsed(world, None).await;
            let changes = |stage: &StagePlan| !stage.objects.is_empty() || stage.restarts > 0;
            match rehearsal.stages.iter().any(changes) {
                true => Err(format!("{:#?}", rehearsal.stages)),
                false => Ok(rehearsal),
            }
        })
        .await
}

/// The components of the stages, in their order.
fn components(stages: &[StagePlan]) -> Vec<ControlPlaneComponent> {
    stages.iter().map(|stage| stage.component).collect()
}

/// The objects that the stages name, by kind and name.
fn named(stages: &[StagePlan]) -> BTreeSet<(String, String)> {
    let objects = stages.iter().flat_map(|stage| &stage.objects);
    objects.map(|object| (object.kind.to_owned(), object.name.clone())).collect()
}

/// What the operator declares in all objects of the components, of the kinds that a rehearsal compares.
async fn declared(world: &TestFleet) -> Objects {
    let mut all = Objects::new();
    add::<ConfigMap>(world, &mut all).await;
    add::<Service>(world, &mut all).await;
    add::<PodDisruptionBudget>(world, &mut all).await;
    add::<StatefulSet>(world, &mut all).await;
    add::<Deployment>(world, &mut all).await;
    all
}

async fn add<K>(world: &TestFleet, all: &mut Objects)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let of_components = ListParams::default().labels(names::COMPONENT);
    for object in world.api::<K>("pay").list(&of_components).await.unwrap() {
        let body = serde_json::to_value(&object).unwrap();
        let mut annotations = object.annotations().clone();
        annotations.remove(REVISION);
        let declared = json!([object.labels(), annotations, body["spec"], body["data"]]);
        all.insert((K::kind(&()).into_owned(), object.name_any()), declared);
    }
}

/// The uids of the pods of a component that are not terminating.
async fn pods(world: &TestFleet, component: ControlPlaneComponent) -> BTreeSet<String> {
    let of_component = ListParams::default().labels(&format!("{}={}", names::COMPONENT, component.binary()));
    let all = world.api::<Pod>("pay").list(&of_component).await.unwrap().items.into_iter();
    all.filter(|pod| pod.metadata.deletion_timestamp.is_none()).filter_map(|pod| pod.metadata.uid).collect()
}

/// The metadata of the workload of a component.
async fn workload(world: &TestFleet, component: ControlPlaneComponent) -> ObjectMeta {
    let name = component.binary();
    match component {
        ControlPlaneComponent::Etcd => world.api::<StatefulSet>("pay").get(name).await.unwrap().metadata,
        _ => world.api::<Deployment>("pay").get(name).await.unwrap().metadata,
    }
}

async fn the_present_version_changes_nothing(kind: ServerKind) {
    let mut world = settled(kind).await;
    let rehearsal = at_rest(&world).await;
    assert_eq!(components(&rehearsal.stages), ControlPlaneComponent::ALL);
    assert_eq!(rehearsal.from.as_ref(), Some(&rehearsal.to));
    assert_eq!((rehearsal.to.package.as_str(), rehearsal.to.kubernetes.as_str()), ("full", "1.36.4"));
    assert_eq!(rehearsal.extensions, ["more"]);
    assert!(rehearsal.refused.is_none() && rehearsal.findings.is_empty(), "{rehearsal:#?}");
    let before = declared(&world).await;
    let mut running = Vec::new();
    for component in ControlPlaneComponent::ALL {
        running.push(pods(&world, component).await);
    }
    // An operator that starts compares all objects again, and has done so when it applies the object that is missing in the business cluster.
    world.operator_stops().await;
    world.operator_starts();
    let maps: Api<ConfigMap> = Api::namespaced(business(&world).await, "kube-system");
    maps.delete("more", &DeleteParams::default()).await.unwrap();
    world.seen(&maps, "more", |_| true).await;
    world.ready("pay").await;
    assert_eq!(declared(&world).await, before, "the operator changed what the rehearsal does not name");
    for (component, before) in ControlPlaneComponent::ALL.into_iter().zip(running) {
        assert_eq!(pods(&world, component).await, before, "{component} was restarted");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rehearsal_of_the_present_version_and_the_operator_change_nothing() {
    the_present_version_changes_nothing(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rehearsal_of_the_present_version_and_the_operator_change_nothing_on_real() {
    the_present_version_changes_nothing(ServerKind::Real).await;
}

/// Waits until the workloads of all stages are of that package version. No workload changes before those of the stages before its own.
async fn changed_in_order(world: &TestFleet, stages: &[StagePlan], package: &str) {
    let mut partly = false;
    world
        .until(&format!("all workloads are of {package}"), async || {
            let mut changed = Vec::new();
            // The last stage is read first: a change between two reads must not look like one in the wrong order.
            for stage in stages.iter().rev() {
                let annotations = workload(world, stage.component).await.annotations.unwrap_or_default();
                changed.push(annotations.get(PACKAGE_VERSION).is_some_and(|own| own == package));
            }
            changed.reverse();
            assert!(changed.is_sorted_by(|one, next| one >= next), "{:?}: {changed:?}", components(stages));
            partly |= changed.contains(&true) && changed.contains(&false);
            if changed.contains(&false) { Err(format!("{changed:?}")) } else { Ok(()) }
        })
        .await;
    assert!(partly, "all workloads changed at once");
}

/// The soak of the new minor lasts a day. What the operator changes at its end is neither rehearsed nor compared here.
async fn an_upgrade_is_what_was_rehearsed(kind: ServerKind) {
    let mut world = settled(kind).await;
    at_rest(&world).await;
    world.operator_stops().await;
    let rehearsal = rehearsed(&world, Some("next")).await;
    let stages = &rehearsal.stages;
    assert!(rehearsal.refused.is_none() && rehearsal.findings.is_empty(), "{rehearsal:#?}");
    let restarts: Vec<_> = stages.iter().map(|stage| stage.restarts).collect();
    assert_eq!((components(stages), restarts), (ControlPlaneComponent::ALL.to_vec(), vec![0, 3, 3, 3]));
    let (before, mut running) = (declared(&world).await, Vec::new());
    for stage in stages {
        let generation = workload(&world, stage.component).await.generation;
        running.push((generation, pods(&world, stage.component).await));
    }
    refer(&world, "next").await;
    assert_eq!(&rehearsed(&world, None).await.stages, stages, "the rehearsal differs once the upgrade is asked for");

    world.operator_starts();
    changed_in_order(&world, stages, "next").await;
    world.ready("pay").await;
    at_rest(&world).await;
    let after = declared(&world).await;
    let keys = before.keys().chain(after.keys());
    let changed: BTreeSet<_> = keys.filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
    assert_eq!(changed, named(stages));
    for (stage, (generation, pods_before)) in stages.iter().zip(running) {
        let now = workload(&world, stage.component).await.generation;
        assert_eq!(now != generation, stage.restarts > 0, "generation {generation:?} became {now:?}: {stage:#?}");
        let gone = pods_before.difference(&pods(&world, stage.component).await).count();
        assert_eq!(gone, stage.restarts, "{stage:#?}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_changes_the_objects_that_its_rehearsal_names_in_the_order_of_its_stages() {
    an_upgrade_is_what_was_rehearsed(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_changes_the_objects_that_its_rehearsal_names_in_the_order_of_its_stages_on_real() {
    an_upgrade_is_what_was_rehearsed(ServerKind::Real).await;
}

/// Three members with volumes that can be expanded become one member with a larger volume.
async fn an_edit_of_etcd_is_what_was_rehearsed(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    class(&world, "elastic", true).await;
    world.create("pay", |spec| three_of(spec, "elastic")).await;
    world.ready("pay").await;
    let rehearsal = at_rest(&world).await;
    assert!(rehearsal.members.is_none() && rehearsal.volumes.is_empty(), "{rehearsal:#?}");
    world.operator_stops().await;
    let etcd = json!({ "members": 1, "storage": { "size": "20Gi" } });
    world.change("pay", json!({ "spec": { "datastore": { "etcd": etcd } } })).await;
    let rehearsal = rehearsed(&world, None).await;
    let next = MemberPlan { from: 3, to: 1, action: "Remove", member: "etcd-2".to_owned(), since: None, blocked: None };
    assert_eq!(rehearsal.members, Some(next));
    assert!(rehearsal.later.iter().any(|later| later.contains("were not asked")), "{:?}", rehearsal.later);
    let volumes = rehearsal.volumes.iter().map(|one| (one.claim.as_str(), one.to.as_str(), one.message));
    let volumes: Vec<_> = volumes.collect();
    assert_eq!(volumes, [("data-etcd-0", "20Gi", "expanded in place")], "members that are removed keep their volumes");

    world.operator_starts();
    world
        .until("etcd has the members and volumes that the rehearsal names", async || {
            let status = world.status("pay").await;
            let members = status.etcd.as_ref().map(|etcd| (etcd.members, etcd.change.is_none()));
            let rehearsal = rehearsed(&world, None).await;
            match members == Some((1, true)) && rehearsal.members.is_none() && rehearsal.volumes.is_empty() {
                true => Ok(()),
                false => Err(format!("{:?} {:?} {status:#?}", rehearsal.members, rehearsal.volumes)),
            }
        })
        .await;
    world.ready("pay").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rehearsal_of_an_edit_of_etcd_names_the_members_and_volumes_that_the_operator_changes() {
    an_edit_of_etcd_is_what_was_rehearsed(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rehearsal_of_an_edit_of_etcd_names_the_members_and_volumes_that_the_operator_changes_on_real() {
    an_edit_of_etcd_is_what_was_rehearsed(ServerKind::Real).await;
}
