//! A write that the API server refuses stops nothing else.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fleetwright_api::{ControlPlaneComponent, names};
use fleetwright_lab::ServerKind;
use fleetwright_plan::cluster::keys::{SEAL, SEAL_DATA};
use fleetwright_rig::Call;
use fleetwright_rig::layer::{CallResult, Layer, forward, refusal, wrap};
use fleetwright_sim::meta::VersionDefect;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::datastore::lose;
use crate::extensions::{MORE, extension};
use crate::heal::{break_replica, pods};
use crate::snapshots::snapshot;
use crate::support::{FLEET, TestFleet, not_accepted};
use crate::versions::business;

/// The copies of files from a Secret, in the order in which the operator writes them.
const COPIES: [&str; 2] = ["kube-apiserver-secret-config", "kube-scheduler-secret-config"];

/// A configuration of kube-scheduler with that parallelism.
fn scheduler_file(parallelism: u32) -> String {
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": { "kubeconfig": "/etc/kubernetes/scheduler-kubeconfig/kubeconfig" },
        "leaderElection": { "leaderElect": true },
        "parallelism": parallelism,
    });
    config.to_string()
}

/// Refuses all patches of the pod that is patched first, as an admission webhook can.
#[derive(Default)]
struct PinnedPod(OnceLock<String>);

impl Layer for PinnedPod {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        Box::pin(async move {
            let patches = (call.verb, &*call.resource, &*call.subresource) == ("patch", "pods", "");
            if patches && *self.0.get_or_init(|| call.name.clone()) == call.name {
                return Ok(refusal(StatusCode::FORBIDDEN, "Forbidden", "this pod is pinned"));
            }
            forward(&next_client, request).await
        })
    }
}

/// No object like `probe` is accepted in the namespace of `pay` any more. Deleting the ResourceQuota `none` ends it.
async fn refuse<K>(world: &TestFleet, count: &str, probe: Value)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let quotas: Api<ResourceQuota> = world.api("pay");
    let hard = json!({ count: "0" });
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": hard } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    // Where no controller-manager does it.
    let status = json!({ "status": { "hard": hard, "used": hard } });
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    // kube-apiserver goes by the quotas that its informer knows: before it knows of this one, the operator could create the object again.
    let api: Api<K> = world.api("pay");
    let probe: K = serde_json::from_value(probe).unwrap();
    world
        .until(&format!("no {} is accepted", K::kind(&())), async || {
            match api.create(&PostParams::default(), &probe).await {
                Err(kube::Error::Api(refused)) if refused.message.contains("exceeded quota") => Ok(()),
                other => {
                    let _ = api.delete("probe", &DeleteParams::default()).await;
                    Err(format!("{other:?}"))
                }
            }
        })
        .await;
}

/// No PodDisruptionBudget of `pay` is accepted any more, and one is missing. They are applied before workloads.
async fn refuse_budgets(world: &TestFleet) {
    let spec = json!({ "maxUnavailable": 1, "selector": { "matchLabels": { "of": "nobody" } } });
    let probe = json!({ "metadata": { "name": "probe" }, "spec": spec });
    refuse::<PodDisruptionBudget>(world, "count/poddisruptionbudgets.policy", probe).await;
    world.api::<PodDisruptionBudget>("pay").delete("etcd", &DeleteParams::default()).await.unwrap();
    not_accepted(world, "pay", "WriteRefused", "exceeded quota").await;
}

/// An authority and a certificate are lost while no Secret can be created: a lost member and an object of an extension are replaced all the same, and
/// afterwards the same authority comes back.
async fn refuse_a_key(world: &TestFleet) {
    let (secrets, maps): (Api<Secret>, Api<ConfigMap>) =
        (world.api("pay"), Api::namespaced(business(world).await, "kube-system"));
    let before = secrets.get("ca").await.unwrap().data;
    refuse::<Secret>(world, "count/secrets", json!({ "metadata": { "name": "probe" } })).await;
    for name in ["ca", "front-proxy-client"] {
        secrets.delete(name, &DeleteParams::default()).await.unwrap();
    }
    not_accepted(world, "pay", "WriteRefused", "exceeded quota").await;
    lose(world, "etcd-1").await;
    maps.delete("more", &DeleteParams::default()).await.unwrap();
    world.seen(&maps, "more", |_| true).await;
    assert!(secrets.get_opt("ca").await.unwrap().is_none(), "it is still refused");
    world.api::<ResourceQuota>("pay").delete("none", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "looked": "at-keys" } } })).await;
    assert!(world.seen(&secrets, "ca", |_| true).await.data == before, "it is another authority");
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    world.ready("pay").await;
}

/// What seals the copies of keys is not valid: the cluster is changed and repaired all the same.
async fn break_the_seal(world: &TestFleet) {
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let seal = fleet.get(SEAL).await.unwrap().data;
    let set = async |data: Value| {
        fleet.patch(SEAL, &PatchParams::default(), &Patch::Merge(json!({ "data": data }))).await.unwrap();
    };
    set(json!({ SEAL_DATA: "bm90IGEga2V5" })).await;
    not_accepted(world, "pay", names::reasons::INVALID_AUTHORITY, SEAL).await;
    let scheduler: Api<Deployment> = world.api("pay");
    scheduler.delete("kube-scheduler", &DeleteParams::default()).await.unwrap();
    world.seen(&scheduler, "kube-scheduler", |one| one.metadata.deletion_timestamp.is_none()).await;
    set(json!(seal)).await;
    world.ready("pay").await;
}

/// The first copy of files from a Secret cannot be changed: the other one follows the Secret.
async fn refuse_a_copy(world: &TestFleet) {
    let (fleet, copies): (Api<Secret>, Api<Secret>) = (Api::namespaced(world.client.clone(), FLEET), world.api("pay"));
    let patch = async |api: &Api<Secret>, name: &str, patch: Value| {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    let holds = |key: &'static str, text: &str| {
        let text = text.to_owned();
        move |copy: &Secret| copy.data.as_ref().is_some_and(|data| data[key].0 == text.as_bytes())
    };
    patch(&copies, COPIES[0], json!({ "immutable": true })).await;
    patch(&fleet, "files", json!({ "stringData": { "notes": "second", "scheduler": scheduler_file(8) } })).await;
    world.change("pay", json!({ "metadata": { "labels": { "files": "second" } } })).await;
    world.seen(&copies, COPIES[1], holds("scheduler.yaml", &scheduler_file(8))).await;
    not_accepted(world, "pay", "WriteRefused", COPIES[0]).await;
    assert!(holds("notes", "first")(&copies.get(COPIES[0]).await.unwrap()), "it is still refused");
    copies.delete(COPIES[0], &DeleteParams::default()).await.unwrap();
    world.seen(&copies, COPIES[0], holds("notes", "second")).await;
    world.ready("pay").await;
}

/// One of two API servers cannot be labelled: the other one is, and a scheduler that crashes is replaced.
async fn refuse_a_label(world: &mut TestFleet) {
    world.operator_stops().await;
    let api: Api<Pod> = world.api("pay");
    for server in pods(world, "kube-apiserver").await {
        let patch = json!({ "metadata": { "labels": { names::SERVING: null } } });
        api.patch(&server.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let (admin, pinned) = (world.client.clone(), Arc::new(PinnedPod::default()));
    world.client = wrap(admin.clone(), pinned.clone());
    world.operator_starts();
    world.client = admin;
    let world = &*world;
    world
        .until("the other API server is labelled", async || {
            let mut labelled = pods(world, "kube-apiserver").await;
            labelled.retain(|pod| pod.labels().contains_key(names::SERVING));
            let labelled: Vec<_> = labelled.iter().map(ResourceExt::name_any).collect();
            match pinned.0.get() {
                Some(pinned) if labelled.len() == 1 && labelled[0] != *pinned => Ok(()),
                _ => Err(format!("{labelled:?}")),
            }
        })
        .await;
    not_accepted(world, "pay", "WriteRefused", "this pod is pinned").await;
    let victim = break_replica(world, "kube-scheduler", VersionDefect::CrashesAfter(Duration::from_millis(200))).await;
    world
        .until("the scheduler is replaced", async || {
            match pods(world, "kube-scheduler").await.iter().any(|pod| pod.uid() == victim.uid()) {
                true => Err(format!("{:#?}", world.status("pay").await)),
                false => Ok(()),
            }
        })
        .await;
}

async fn a_refused_write_stops_nothing_else(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.package("full", "1.36.4", vec![extension("more", 30, MORE)]).await;
    let files = json!({
        "metadata": { "name": "files", "annotations": { names::READABLE_BY_CLUSTERS: "pay" } },
        "stringData": { "notes": "first", "scheduler": scheduler_file(16) },
    });
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    secrets.create(&PostParams::default(), &serde_json::from_value(files).unwrap()).await.unwrap();
    let file =
        |name: &str, key: &str| json!({ "config": [{ "name": name, "secret": { "name": "files", "key": key } }] });
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.replicas = 1;
            spec.components.apiserver = Some(serde_json::from_value(file("notes", "notes")).unwrap());
            spec.components.scheduler = Some(serde_json::from_value(file("scheduler.yaml", "scheduler")).unwrap());
        })
        .await;
    world.extended().await;
    world.ready("pay").await;
    refuse_budgets(&world).await;

    // A lost certificate is made, and what is declared is done and proven.
    world.api::<Secret>("pay").delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "spec": { "replicas": 2 } })).await;
    world.seen(&world.api::<Secret>("pay"), "front-proxy-client", |_| true).await;
    world
        .until("both API servers are proven", async || {
            let status = world.status("pay").await;
            let server = status.components.iter().find(|one| one.component == ControlPlaneComponent::Apiserver);
            match server.is_some_and(|one| one.replicas.iter().filter(|one| one.verified_at.is_some()).count() == 2) {
                true => Ok(()),
                false => Err(format!("{server:#?}")),
            }
        })
        .await;
    // A snapshot is taken, a member that lost its data is replaced, and an object of an extension is made again.
    snapshot(&world, "now").await;
    lose(&world, "etcd-2").await;
    let maps: Api<ConfigMap> = Api::namespaced(business(&world).await, "kube-system");
    maps.delete("more", &DeleteParams::default()).await.unwrap();
    world.seen(&maps, "more", |_| true).await;
    let budgets: Api<PodDisruptionBudget> = world.api("pay");
    assert!(budgets.get_opt("etcd").await.unwrap().is_none(), "it is still refused");

    world.api::<ResourceQuota>("pay").delete("none", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "looked": "at" } } })).await;
    world.seen(&budgets, "etcd", |_| true).await;
    world.ready("pay").await;

    refuse_a_key(&world).await;
    break_the_seal(&world).await;
    refuse_a_copy(&world).await;
    refuse_a_label(&mut world).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_write_does_not_concern_goes_on() {
    a_refused_write_stops_nothing_else(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_write_does_not_concern_goes_on_on_real() {
    a_refused_write_stops_nothing_else(ServerKind::Real).await;
}

/// The first copy and its source are deleted: a change of the other copy is still undone. Returns once the first copy exists again.
async fn lose_a_source(world: &TestFleet, notes: &Secret) {
    let (fleet, copies): (Api<Secret>, Api<Secret>) = (Api::namespaced(world.client.clone(), FLEET), world.api("pay"));
    fleet.delete("notes", &DeleteParams::default()).await.unwrap();
    copies.delete(COPIES[0], &DeleteParams::default()).await.unwrap();
    // One watch reports both changes: the operator that sees this one knows that the first copy is deleted.
    let patch = json!({ "stringData": { "scheduler.yaml": scheduler_file(8) } });
    copies.patch(COPIES[1], &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let declared = scheduler_file(16);
    let undone = |copy: &Secret| {
        copy.data
            .as_ref()
            .is_some_and(|data| data.get("scheduler.yaml").is_some_and(|file| file.0 == declared.as_bytes()))
    };
    world.seen(&copies, COPIES[1], undone).await;
    assert!(copies.get_opt(COPIES[0]).await.unwrap().is_none(), "its source is still missing");
    fleet.create(&PostParams::default(), notes).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "look": "now" } } })).await;
    world.seen(&copies, COPIES[0], |_| true).await;
    world.ready("pay").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_stops_no_other_copy_and_is_shown_beside_a_refused_write() {
    let world = TestFleet::start().await;
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let secret = |name: &str, text: String| -> Secret {
        let shared = json!({ "name": name, "annotations": { names::READABLE_BY_CLUSTERS: "pay" } });
        serde_json::from_value(json!({ "metadata": shared, "stringData": { "text": text } })).unwrap()
    };
    let notes = secret("notes", "some notes".to_owned());
    for source in [&notes, &secret("files", scheduler_file(16))] {
        fleet.create(&PostParams::default(), source).await.unwrap();
    }
    let file =
        |name: &str, from: &str| json!({ "config": [{ "name": name, "secret": { "name": from, "key": "text" } }] });
    world
        .create("pay", |spec| {
            spec.components.apiserver = Some(serde_json::from_value(file("notes", "notes")).unwrap());
            spec.components.scheduler = Some(serde_json::from_value(file("scheduler.yaml", "files")).unwrap());
        })
        .await;
    world.ready("pay").await;
    lose_a_source(&world, &notes).await;
    refuse_budgets(&world).await;
    fleet.delete("notes", &DeleteParams::default()).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    let says = not_accepted(&world, "pay", "WriteRefused", "Secret fleet/notes").await;
    assert!(says.contains("exceeded quota"), "{says}");
    world.stop().await;
}
