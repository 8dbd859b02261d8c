//! An operator that loses its lease sends no further change to a business cluster.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fleetwright_api::{ClusterPackageVersion, ClusterPackageVersionSpec, Extension, Machine, MachineSpec, names};
use fleetwright_clusters::Options;
use fleetwright_kit::leader::Lease;
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::define;
use fleetwright_plan::cluster::certificates::OPERATOR;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use serde_json::json;

use crate::support::{FLEET, World};
use crate::versions::business;

const LEASE: Duration = Duration::from_secs(4);

/// What is between an operator and the API server. From some write on, reads of the certificate for business clusters are answered after the lease has ended, and
/// nothing else is answered at all.
#[derive(Clone, Default)]
struct Link {
    /// A write with this text is the last that is answered.
    trigger: Option<&'static str>,
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
        let read = *request.method() == Method::GET && request.uri().path().ends_with(&format!("/secrets/{OPERATOR}"));
        let held = self.cut.load(Ordering::SeqCst);
        if held && !read {
            std::future::pending::<()>().await;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let triggers = self.trigger.is_some_and(|trigger| String::from_utf8_lossy(&body).contains(trigger));
        let answer = client.send(Request::from_parts(parts, Body::from(body))).await.unwrap();
        if triggers {
            self.cut.store(true, Ordering::SeqCst);
        }
        if held {
            self.asked.store(true, Ordering::SeqCst);
            tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        }
        answer
    }
}

/// An operator with a lease, until it loses that.
fn operator(world: &World, link: &Link, identity: &str) -> (Metrics, tokio::task::JoinHandle<bool>) {
    let mut settings = Settings::new("fleetwright", link.around(world.client.clone()));
    let (namespace, name) = (FLEET.to_owned(), "fleetwright-clusters".to_owned());
    settings.lease = Some(Lease { namespace, name, identity: identity.to_owned(), duration: LEASE });
    let mut operator = Operator::new(settings);
    let options = Options { look_after: Duration::from_secs(2), ..Options::default() };
    fleetwright_clusters::add(&mut operator, FLEET, options);
    let metrics = operator.metrics().clone();
    (metrics, tokio::spawn(async move { operator.run(std::future::pending()).await.is_err() }))
}

async fn lost(world: &World, link: &Link, run: tokio::task::JoinHandle<bool>) {
    world
        .until("the first operator reads the certificate", async || match link.asked.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err("not yet".to_owned()),
        })
        .await;
    let ended = tokio::time::timeout(Duration::from_secs(30), run).await;
    assert!(ended.expect("it goes on without its lease").unwrap(), "it says that its lease is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_applies_nothing_more_in_a_business_cluster() {
    let mut world = World::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    world.operator_stops().await;
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, namespace: default}\n".to_owned();
    let mut spec = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
    spec.extensions = vec![Extension { name: "late".to_owned(), template, ..Extension::default() }];
    let maps: Api<ConfigMap> = Api::default_namespaced(business(&world).await);
    // What is to be applied is written down first: after that, the task in the background reads the certificate.
    let link = Link { trigger: Some(r#"\"name\":\"late\""#), ..Link::default() };
    let (metrics, run) = operator(&world, &link, "first");
    world.packages().create(&PostParams::default(), &ClusterPackageVersion::new("late", spec)).await.unwrap();
    world.change("pay", json!({ "spec": { "packageVersion": "late" } })).await;
    lost(&world, &link, run).await;
    // It goes on to the business cluster, and reads there which kinds there are.
    let before = |page: &str| {
        let line = page.lines().find(|line| line.starts_with("fleetwright_cluster_calls_total{work=\"extensions\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    world
        .until("it calls the business cluster", async || match before(&metrics.encode()) {
            0 => Err("no call".to_owned()),
            calls => Ok(calls),
        })
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(maps.get_opt("late").await.unwrap().is_none(), "it changed a business cluster without a lease");
    let (_, _second) = operator(&world, &Link::default(), "second");
    world.seen(&maps, "late", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_lost_its_lease_in_an_operation_deletes_nothing_and_the_next_one_goes_on() {
    let mut world = World::start().await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.on_delete = fleetwright_api::ClusterOnDelete::ReleaseMachines;
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
    let link = Link { trigger: Some(r#""phase":"Running""#), ..Link::default() };
    let (_, run) = operator(&world, &link, "first");
    lost(&world, &link, run).await;
    // The answer comes in this time, if it is still waited for.
    tokio::time::sleep(LEASE + Duration::from_secs(2)).await;
    let machine = machines.get("host-17").await.unwrap();
    assert!(machine.metadata.deletion_timestamp.is_none(), "it changed a business cluster without a lease");
    let (_, _second) = operator(&world, &Link::default(), "second");
    world.seen(&machines, "host-17", |one| one.metadata.deletion_timestamp.is_some()).await;
}
