//! An operator that loses its lease sends no further change to a business cluster or its etcd.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleetwright_api::{
    ClusterOnDelete, ClusterPackageVersion, ClusterPackageVersionSpec, EtcdDatastore, Extension, Machine, MachineSpec,
    Operation, OperationPhase, RestoreStage, names,
};
use fleetwright_clusters::Options;
use fleetwright_kit::leader::Lease;
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::{ServerKind, define};
use fleetwright_plan::cluster::certificates::{OPERATOR, OPERATOR_ETCD};
use fleetwright_plan::cluster::snapshots::SnapshotPodJob;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::extensions::{MORE, extension};
use crate::snapshots::{restored, snapshot};
use crate::support::{FLEET, TestFleet};
use crate::versions::{business, there, write};

const LEASE: Duration = Duration::from_secs(8);

/// What is between an operator and the API server. From some write on, the link is cut: reads of one Secret are answered after the lease has
/// ended, and renewals of the lease are not answered at all. Nor are all other requests, unless only renewals are held.
#[derive(Clone, Default)]
struct Link {
    /// The answer to a write with this text cuts the link.
    trigger: Option<&'static str>,
    /// The Secret whose reads are answered late.
    secret: &'static str,
    /// Whether all requests but renewals of the lease pass also after the cut.
    holds_renewals_alone: bool,
    cut: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl Link {
    fn around(&self, client: kube::Client) -> kube::Client {
        let link = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (link, client) = (link.clone(), client.clone());
            async move { Ok::<_, Infallible>(link.pass(client, request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn pass(&self, client: kube::Client, request: Request<Body>) -> Response<Body> {
        let (reads, path) = (*request.method() == Method::GET, request.uri().path());
        let late = reads && path.ends_with(&format!("/secrets/{}", self.secret));
        let renews = !reads && path.contains("/leases/");
        let cut = self.cut.load(Ordering::SeqCst);
        if cut && !late && (renews || !self.holds_renewals_alone) {
            std::future::pending::<()>().await;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let triggers = self.trigger.is_some_and(|trigger| String::from_utf8_lossy(&body).contains(trigger));
        let answer = client.send(Request::from_parts(parts, Body::from(body))).await.unwrap();
        if triggers {
            self.cut.store(true, Ordering::SeqCst);
        }
        if cut && late {
            self.asked.store(true, Ordering::SeqCst);
            tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        }
        answer
    }
}

/// An operator with a lease, until the link is cut and it loses that; and its metrics.
///
/// A busy server may answer too late for a lease this short. Then the operator is started again, as a supervisor would.
fn operator(world: &TestFleet, link: &Link, identity: &str) -> (Arc<Mutex<Metrics>>, JoinHandle<bool>) {
    let (client, link, identity) = (world.client.clone(), link.clone(), identity.to_owned());
    let metrics = Arc::new(Mutex::new(Metrics::new()));
    let counted = metrics.clone();
    let run = tokio::spawn(async move {
        loop {
            let mut settings = Settings::new("fleetwright", link.around(client.clone()));
            let (namespace, name) = (FLEET.to_owned(), "fleetwright-clusters".to_owned());
            settings.lease = Some(Lease { namespace, name, identity: identity.clone(), duration: LEASE });
            let mut operator = Operator::new(settings);
            let options = Options { look_after: Duration::from_secs(2), ..Options::default() };
            fleetwright_clusters::add(&mut operator, FLEET, options);
            *counted.lock().unwrap() = operator.metrics().clone();
            let lost = operator.run(std::future::pending()).await.is_err();
            if !lost || link.cut.load(Ordering::SeqCst) {
                return lost;
            }
        }
    });
    (metrics, run)
}

async fn lost(world: &TestFleet, link: &Link, run: JoinHandle<bool>) {
    world
        .until("the first operator reads the Secret", async || match link.asked.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err("not yet".to_owned()),
        })
        .await;
    let ended = tokio::time::timeout(Duration::from_secs(30), run).await;
    assert!(ended.expect("it goes on without its lease").unwrap(), "it says that its lease is lost");
}

fn operations(world: &TestFleet) -> Api<Operation> {
    Api::namespaced(world.client.clone(), FLEET)
}

fn phase(operation: &Operation) -> Option<OperationPhase> {
    operation.status.as_ref().map(|status| status.phase)
}

/// The name of the Operation of that type which an operator started before it lost its lease. It is the only one, so no other Operation has cut the link earlier.
async fn started(world: &TestFleet, type_: &str) -> String {
    let all = operations(world).list(&ListParams::default()).await.unwrap().items;
    let [started] = all.as_slice() else { panic!("not one Operation was written: {all:#?}") };
    assert_eq!((&*started.spec.type_, phase(started)), (type_, Some(OperationPhase::Running)));
    started.name_any()
}

async fn nothing_is_applied_without_a_lease(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    world.operator_stops().await;
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, namespace: default}\n".to_owned();
    let mut spec = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
    spec.extensions = vec![Extension { name: "late".to_owned(), template, ..Extension::default() }];
    let maps: Api<ConfigMap> = Api::default_namespaced(business(&world).await);
    // What is to be applied is written down first: after that, the task in the background reads the certificate.
    let link = Link { trigger: Some(r#"\"name\":\"late\""#), secret: OPERATOR, ..Link::default() };
    let (metrics, run) = operator(&world, &link, "first");
    world.packages().create(&PostParams::default(), &ClusterPackageVersion::new("late", spec)).await.unwrap();
    world.change("pay", json!({ "spec": { "packageVersion": "late" } })).await;
    lost(&world, &link, run).await;
    // The pass proceeds to the business cluster, and discovers its kinds there.
    let before = |page: &str| {
        let line =
            page.lines().find(|line| line.starts_with("fleetwright_cluster_calls_total{purpose=\"extensions\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    world
        .until("it calls the business cluster", async || match before(&metrics.lock().unwrap().encode()) {
            0 => Err("no call".to_owned()),
            calls => Ok(calls),
        })
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(maps.get_opt("late").await.unwrap().is_none(), "it changed a business cluster without a lease");
    let (_, second) = operator(&world, &Link::default(), "second");
    world.seen(&maps, "late", |_| true).await;
    second.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_applies_nothing_more_in_a_business_cluster() {
    nothing_is_applied_without_a_lease(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_applies_nothing_more_in_a_business_cluster_on_real() {
    nothing_is_applied_without_a_lease(ServerKind::Real).await;
}

async fn nothing_is_deleted_without_a_lease(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.on_delete = ClusterOnDelete::ReleaseMachines;
        })
        .await;
    world.ready("pay").await;
    world.operator_stops().await;
    world.allow("ReleaseMachines").await;
    let client = business(&world).await;
    let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").unwrap();
    define(&client, &[kind]).await.unwrap();
    let machines: Api<Machine> = Api::default_namespaced(client);
    let spec = MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() };
    let mut machine = Machine::new("host-17", spec);
    machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    machines.create(&PostParams::default(), &machine).await.unwrap();
    world.delete("pay").await;
    // The Operation is started, and then the lease is lost.
    let link = Link { trigger: Some(r#""phase":"Running""#), secret: OPERATOR, ..Link::default() };
    let (_, run) = operator(&world, &link, "first");
    lost(&world, &link, run).await;
    // The answer comes in this time, if it is still waited for.
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    let machine = machines.get("host-17").await.unwrap();
    assert!(machine.metadata.deletion_timestamp.is_none(), "it changed a business cluster without a lease");
    let started = started(&world, "ReleaseMachines").await;
    let (_, second) = operator(&world, &Link::default(), "second");
    world.seen(&machines, "host-17", |one| one.metadata.deletion_timestamp.is_some()).await;
    // The second operator finds that the Operation of the first deleted nothing, and writes another one.
    world.operations("ReleaseMachines", &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
    let started = operations(&world).get(&started).await.unwrap();
    assert_eq!(phase(&started), Some(OperationPhase::Failed), "{started:#?}");
    second.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_in_an_operation_deletes_nothing_and_the_next_one_goes_on() {
    nothing_is_deleted_without_a_lease(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_in_an_operation_deletes_nothing_and_the_next_one_goes_on_on_real() {
    nothing_is_deleted_without_a_lease(ServerKind::Real).await;
}

async fn nothing_is_pruned_without_a_lease(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.package("full", "1.36.4", vec![extension("more", 30, MORE)]).await;
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.replicas = 1;
            spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
        })
        .await;
    world.extended().await;
    world.ready("pay").await;
    let maps: Api<ConfigMap> = Api::namespaced(business(&world).await, "kube-system");
    let uid = maps.get("more").await.unwrap().metadata.uid;
    world.operator_stops().await;
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "more", "enabled": false }] } })).await;
    // What is to be deleted is looked up with the same certificate before the Operation is started, and then the lease is lost.
    let link = Link { trigger: Some(r#""phase":"Running""#), secret: OPERATOR, ..Link::default() };
    let (_, run) = operator(&world, &link, "first");
    lost(&world, &link, run).await;
    // The answer comes in this time, if it is still waited for.
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    let left = maps.get_opt("more").await.unwrap().and_then(|map| map.metadata.uid);
    assert_eq!(left, uid, "it changed a business cluster without a lease");
    let started = started(&world, "ExtensionPrune").await;
    let (_, second) = operator(&world, &Link::default(), "second");
    world
        .until("the object of the extension is deleted", async || match maps.get_opt("more").await.unwrap() {
            None => Ok(()),
            Some(map) => Err(format!("{map:?}")),
        })
        .await;
    // The second operator finds that the Operation of the first deleted nothing, and writes another one.
    world.operations("ExtensionPrune", &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
    let started = operations(&world).get(&started).await.unwrap();
    assert_eq!(phase(&started), Some(OperationPhase::Failed), "{started:#?}");
    second.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_prunes_no_extension_and_the_next_one_does() {
    nothing_is_pruned_without_a_lease(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_prunes_no_extension_and_the_next_one_does_on_real() {
    nothing_is_pruned_without_a_lease(ServerKind::Real).await;
}

async fn a_restore_is_finished_by_the_next_leader(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
        })
        .await;
    world.ready("pay").await;
    write(&world, "before").await;
    let name = snapshot(&world, "now").await;
    write(&world, "after").await;
    world.operator_stops().await;
    world.change("pay", json!({ "spec": { "restore": { "snapshot": name } } })).await;
    // All components are stopped, and no volume is restored yet. Before the operator creates the pods that restore, it reads the key of snapshots:
    // the answer comes after the lease has ended. Only renewals are held, so that nothing but the lease stops the operator.
    let trigger = Some(r#""stage":"Restoring""#);
    let link = Link { trigger, secret: "pay-snapshot-key", holds_renewals_alone: true, ..Link::default() };
    let (_, run) = operator(&world, &link, "first");
    lost(&world, &link, run).await;
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    let beside: Api<ConfigMap> = Api::namespaced(link.around(world.client.clone()), FLEET);
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "passes" } })).unwrap();
    beside.create(&PostParams::default(), &map).await.expect("the link lets writes through");
    let members = format!("{}={}", names::COMPONENT, SnapshotPodJob::Member.as_str());
    let pods = world.api::<Pod>("pay").list(&ListParams::default().labels(&members)).await.unwrap().items;
    assert!(pods.is_empty(), "it restored a volume without a lease: {pods:#?}");
    let restoring = world.status("pay").await.restoring;
    let started = started(&world, "Restore").await;
    assert_eq!(restoring.map(|restoring| restoring.stage), Some(RestoreStage::Restoring));
    let (_, second) = operator(&world, &Link::default(), "second");
    restored(&world, &name).await;
    assert!(there(&world, "before").await && !there(&world, "after").await);
    // The second operator continues the Operation of the first.
    world.operations("Restore", &[OperationPhase::Succeeded]).await;
    let finished = operations(&world).get(&started).await.unwrap();
    assert_eq!(phase(&finished), Some(OperationPhase::Succeeded), "{finished:#?}");
    second.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_leader_lost_its_lease_is_finished_by_the_next_one() {
    a_restore_is_finished_by_the_next_leader(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_leader_lost_its_lease_is_finished_by_the_next_one_on_real() {
    a_restore_is_finished_by_the_next_leader(ServerKind::Real).await;
}

async fn no_member_is_removed_without_a_lease(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
        })
        .await;
    world.ready("pay").await;
    world.operator_stops().await;
    world.change("pay", json!({ "spec": { "datastore": { "etcd": { "members": 1 } } } })).await;
    let link = Link { trigger: Some(r#""phase":"Running""#), secret: OPERATOR_ETCD, ..Link::default() };
    let (_, run) = operator(&world, &link, "first");
    lost(&world, &link, run).await;
    // The answer comes in this time, if it is still waited for.
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    assert_eq!(world.meta.counts().etcd_members, 3, "it changed etcd without a lease");
    let started = started(&world, "EtcdMemberRemove").await;
    let (_, second) = operator(&world, &Link::default(), "second");
    world
        .until("one member is left", async || match world.meta.counts().etcd_members {
            1 => Ok(()),
            members => Err(format!("{members} run")),
        })
        .await;
    // What the first operator started was never sent: another Operation removed that member.
    let started = operations(&world).get(&started).await.unwrap();
    assert_eq!(phase(&started), Some(OperationPhase::Failed), "{started:#?}");
    second.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_removes_no_member_of_etcd_and_the_next_one_does() {
    no_member_is_removed_without_a_lease(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_removes_no_member_of_etcd_and_the_next_one_does_on_real() {
    no_member_is_removed_without_a_lease(ServerKind::Real).await;
}
