//! Extensions: put in place, looked after, replaced with the package version, and taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fleetwright_api::{
    ClusterPackageVersion, ClusterPackageVersionSpec, ClusterStatus, Endpoint, EndpointType, Extension, ExtensionCheck,
    ExtensionHealth, ExtensionPlacement, Operation, OperationPhase, Status, condition, names,
};
use fleetwright_lab::ServerKind;
use fleetwright_rig::Call;
use fleetwright_rig::layer::{CallResult, Layer, forward, refusal, wrap};
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;

use crate::support::{FLEET, TestFleet};
use crate::versions::{business, refer};

const SCHEMA: &str = "type: object\nproperties:\n  text: {type: string, default: hello}\n";

/// A ConfigMap, a role and a kind of its own with an object of it, in a namespace of its own.
const NOTES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: notes, namespace: notes}
data: {text: {{ values.text | json }}, dns: {{ cluster.dnsAddress | json }}, version: {{ cluster.kubernetes | json }}}
---
apiVersion: v1
kind: Namespace
metadata: {name: notes}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: notes}
rules: []
---
apiVersion: example.com/v1
kind: Note
metadata: {name: first, namespace: notes}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.example.com}
spec:
  group: example.com
  names: {plural: notes, kind: Note}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
"#;

/// An object of a kind that the embedded API server does not serve.
const POLICY: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: notes, annotations: {fleetwright.io/if-served: "true"}}
"#;

pub const MORE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: kube-system}\n";

/// A Deployment beside the control plane.
const BESIDE: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: beside}
spec:
  selector: {matchLabels: {app: beside}}
  template:
    metadata: {labels: {app: beside}}
    spec:
      containers:
      - name: beside
        image: registry.example/beside:v1
        env: [{name: SERVER, value: {{ cluster.internalServer | json }}}]
        resources: {requests: {cpu: "0.1"}}
"#;

/// Another object of the same extension.
const BESIDE_NOTES: &str =
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: beside-notes}\ndata: {text: hello}\n";

/// Refuses to delete the object of the extension `beside` that is deleted first, as an admission webhook can, until it is free.
#[derive(Default)]
struct PinnedObject {
    name: OnceLock<String>,
    free: AtomicBool,
}

impl Layer for PinnedObject {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        Box::pin(async move {
            let deletes = call.verb == "delete" && call.name.starts_with("beside");
            let refuses = deletes && !self.free.load(Ordering::SeqCst);
            if refuses && *self.name.get_or_init(|| call.name.clone()) == call.name {
                return Ok(refusal(StatusCode::FORBIDDEN, "Forbidden", "this object is pinned"));
            }
            forward(&next_client, request).await
        })
    }
}

pub fn extension(name: &str, order: u32, template: &str) -> Extension {
    Extension { name: name.to_owned(), order, template: template.to_owned(), ..Extension::default() }
}

fn notes() -> Extension {
    Extension { values_schema: Some(SCHEMA.to_owned()), ..extension("notes", 10, NOTES) }
}

fn beside() -> Extension {
    let checks = vec![ExtensionCheck { deployment: Some("beside".to_owned()), ..ExtensionCheck::default() }];
    Extension {
        placement: ExtensionPlacement::Meta,
        health: ExtensionHealth { checks, ..ExtensionHealth::default() },
        ..extension("beside", 20, BESIDE)
    }
}

impl TestFleet {
    pub async fn package(&self, name: &str, kubernetes: &str, extensions: Vec<Extension>) {
        let mut spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16");
        spec.extensions = extensions;
        self.packages().create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await.unwrap();
    }

    pub async fn extended(&self) -> ClusterStatus {
        self.says(Status::True, names::reasons::ALL_READY, "").await
    }

    /// Waits until ExtensionsReady says so, of the present generation.
    async fn says(&self, status: Status, reason: &str, message: &str) -> ClusterStatus {
        self.until(&format!("ExtensionsReady is {status:?}, {reason}, {message}"), async || {
            let cluster = self.clusters().get("pay").await.unwrap();
            let found = cluster.status.unwrap_or_default();
            let one = condition(&found.conditions, names::EXTENSIONS_READY).cloned();
            match one {
                Some(one)
                    if one.status == status
                        && one.reason == reason
                        && one.message.contains(message)
                        && one.observed_generation == cluster.metadata.generation
                        && found.package_version.as_ref() == Some(&cluster.spec.package_version) =>
                {
                    Ok(found)
                }
                other => Err(format!("{other:?} {:#?}", found.extensions)),
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_are_put_in_place_and_what_is_changed_or_removed_by_hand_returns() {
    let world = TestFleet::start().await;
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    let given = Endpoint {
        type_: EndpointType::External,
        host: Some("192.0.2.7".to_owned()),
        port: Some(30443),
        ..Endpoint::default()
    };
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.endpoint = given;
        })
        .await;
    let status = world.extended().await;
    let names: Vec<_> = status.extensions.iter().map(|one| (one.name.as_str(), one.applied.is_some())).collect();
    assert_eq!(names, [("kubernetes-endpoint", true), ("notes", true), ("beside", true)]);
    // The objects beside the control plane need no API server of the business cluster.
    assert!(world.counted("fleetwright_cluster_extension_reconciles_total{outcome=\"healthy\"}") >= 2);
    let calls = |work: &str| world.counted(&format!("fleetwright_cluster_calls_total{{purpose=\"{work}\"}}"));
    assert!(calls("extensions") >= 4 && calls("probes") > 0, "{}", world.metrics.encode());
    assert_eq!((calls("members"), calls("machines")), (0, 0));
    let client = business(&world).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "notes");
    let data = maps.get("notes").await.unwrap().data.unwrap();
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let slice = slices.get("kubernetes").await.unwrap();
    let port = slice.ports.unwrap()[0].port;
    assert_eq!(
        (&*slice.endpoints.unwrap()[0].addresses[0], port),
        ("192.0.2.7", Some(30443)),
        "workers go where clients go"
    );
    assert_eq!(
        (data["text"].as_str(), data["dns"].as_str(), data["version"].as_str()),
        ("hello", "10.96.0.10", "1.36.4")
    );

    let other = json!({ "data": { "text": "changed" } });
    maps.patch("notes", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete("notes", &DeleteParams::default()).await.unwrap();
    world.seen(&maps, "notes", |map| map.data.as_ref().is_some_and(|data| data["text"] == "hello")).await;
    world.seen(&roles, "notes", |_| true).await;

    let deployments: Api<Deployment> = world.api("pay");
    let none =
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": "beside", "image": "other:v1" }] } } } });
    deployments.patch("beside", &PatchParams::default(), &Patch::Strategic(none)).await.unwrap();
    let image = |one: &Deployment| one.spec.template.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    world.seen(&deployments, "beside", |one| image(one) == "registry.example/beside:v1").await;
    deployments.delete("beside", &DeleteParams::background()).await.unwrap();
    world.seen(&deployments, "beside", |one| one.metadata.deletion_timestamp.is_none()).await;
    world.extended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_not_served_is_left_out_if_the_template_allows_it() {
    let world = TestFleet::start().await;
    let required = POLICY.replace("\"true\"", "\"false\"");
    world.package("full", "1.36.4", vec![extension("policy", 10, POLICY), extension("more", 20, MORE)]).await;
    world.package("strict", "1.36.5", vec![extension("policy", 10, &required), extension("more", 20, MORE)]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    let status = world.extended().await;
    let message = &status.extensions.iter().find(|one| one.name == "policy").unwrap().message;
    assert!(message.contains("left out ValidatingAdmissionPolicy notes,"), "{message}");
    refer(&world, "strict").await;
    world.says(Status::False, names::reasons::APPLY_FAILED, "ValidatingAdmissionPolicy is not served").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_at_rest_cost_no_write() {
    let mut world = TestFleet::start().await;
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    world.ready("pay").await;
    let client = business(&world).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "notes");
    let deployments: Api<Deployment> = world.api("pay");
    let versions = async |world: &TestFleet| {
        let cluster = world.clusters().get("pay").await.unwrap().metadata.resource_version;
        let inventory = world.api::<ConfigMap>("pay").get("extensions").await.unwrap().metadata.resource_version;
        let beside = deployments.get("beside").await.unwrap().metadata.resource_version;
        (cluster, inventory, beside, maps.get("notes").await.unwrap().metadata.resource_version)
    };
    let before = versions(&world).await;
    world.operator_stops().await;
    world.operator_starts();
    // A change shows that they were looked after since.
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete("notes", &DeleteParams::default()).await.unwrap();
    world.seen(&roles, "notes", |_| true).await;
    assert_eq!(before, versions(&world).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_follow_the_package_version_and_what_is_no_longer_theirs_goes() {
    let world = TestFleet::start().await;
    let later = Extension {
        template: NOTES.replace("name: notes, namespace: notes}\ndata", "name: letters, namespace: notes}\ndata"),
        ..notes()
    };
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    world.package("next", "1.36.5", vec![later, extension("more", 30, MORE)]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    refer(&world, "next").await;
    let status = world.extended().await;
    assert_eq!(status.extensions.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["notes", "more"]);
    let client = business(&world).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "notes");
    let data = maps.get("letters").await.unwrap().data.unwrap();
    assert_eq!(data["version"], "1.36.5");
    assert!(maps.get_opt("notes").await.unwrap().is_none());
    let deployments: Api<Deployment> = world.api("pay");
    assert!(deployments.get_opt("beside").await.unwrap().is_none());

    refer(&world, "full").await;
    world.extended().await;
    let maps: Api<ConfigMap> = Api::namespaced(business(&world).await, "notes");
    assert!(maps.get_opt("letters").await.unwrap().is_none() && maps.get_opt("notes").await.unwrap().is_some());
    let system: Api<ConfigMap> = Api::namespaced(business(&world).await, "kube-system");
    assert!(system.get_opt("more").await.unwrap().is_none());
    deployments.get("beside").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_turned_off_goes_but_what_people_made_of_it_stays() {
    let world = TestFleet::start().await;
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    let off = json!([{ "name": "notes", "enabled": false }, { "name": "beside", "enabled": false }]);
    world.change("pay", json!({ "spec": { "extensions": off } })).await;
    let status = world.extended().await;
    assert!(status.extensions.is_empty(), "{:#?}", status.extensions);
    let client = business(&world).await;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    assert!(roles.get_opt("notes").await.unwrap().is_none());
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    kinds.get("notes.example.com").await.unwrap();
    Api::<Namespace>::all(client.clone()).get("notes").await.unwrap();
    assert!(world.api::<Deployment>("pay").get_opt("beside").await.unwrap().is_none());
    world.change("pay", json!({ "spec": { "extensions": null } })).await;
    world.says(Status::True, names::reasons::ALL_READY, "2 extensions").await;
    roles.get("notes").await.unwrap();
}

async fn a_policy_holds_a_prune(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.limit("ExtensionPrune", 0).await;
    world.package("full", "1.36.4", vec![notes(), extension("more", 30, MORE)]).await;
    world
        .create("pay", |spec| {
            spec.package_version = "full".to_owned();
            spec.replicas = 1;
        })
        .await;
    world.extended().await;
    let client = business(&world).await;
    let (maps, roles) = (Api::<ConfigMap>::namespaced(client.clone(), "notes"), Api::<ClusterRole>::all(client));
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "notes", "enabled": false }] } })).await;
    let status = world.says(Status::False, names::reasons::REMOVING, "OperationPolicy extensionprune").await;
    assert!(status.extensions.iter().any(|one| one.name == "more" && one.ready == Status::True), "{status:#?}");
    world.operations("ExtensionPrune", &[OperationPhase::Pending]).await;
    // While it waits, somebody takes one of the objects over, and makes another of the name of a second.
    let own = json!({ "metadata": { "labels": { "fleetwright.io/extension": null } } });
    maps.patch("notes", &PatchParams::default(), &Patch::Merge(own)).await.unwrap();
    roles.delete("notes", &DeleteParams::default()).await.unwrap();
    let role = json!({ "metadata": { "name": "notes" }, "rules": [] });
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();

    world.limit("ExtensionPrune", 1).await;
    let status = world.extended().await;
    assert!(status.extensions.iter().all(|one| one.name != "notes"), "{:#?}", status.extensions);
    assert!(maps.get_opt("notes").await.unwrap().is_some() && roles.get_opt("notes").await.unwrap().is_some());
    let kind = kube::core::GroupVersionKind::gvk("example.com", "v1", "Note");
    let (resource, _) = kube::discovery::pinned_kind(&business(&world).await, &kind).await.unwrap();
    let objects: Api<kube::api::DynamicObject> = Api::namespaced_with(business(&world).await, "notes", &resource);
    assert!(objects.get_opt("first").await.unwrap().is_none(), "what is its own is deleted");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_extension_is_deleted_before_the_policy_lets_it_and_only_what_is_its_own() {
    a_policy_holds_a_prune(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_extension_is_deleted_before_the_policy_lets_it_and_only_what_is_its_own_on_real() {
    a_policy_holds_a_prune(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_beside_the_control_plane_is_deleted_before_the_policy_lets_it_and_only_the_object_that_was_found() {
    let world = TestFleet::start().await;
    world.limit("ExtensionPrune", 0).await;
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    let deployments: Api<Deployment> = world.api("pay");
    let uid = deployments.get("beside").await.unwrap().metadata.uid;
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "beside", "enabled": false }] } })).await;
    let status = world.says(Status::False, names::reasons::REMOVING, "OperationPolicy extensionprune").await;
    assert!(status.extensions.iter().any(|one| one.name == "notes" && one.ready == Status::True), "{status:#?}");
    world.operations("ExtensionPrune", &[OperationPhase::Pending]).await;
    assert_eq!(deployments.get("beside").await.unwrap().metadata.uid, uid);
    // The Operation of an object that is wanted again is withdrawn.
    world.change("pay", json!({ "spec": { "extensions": null } })).await;
    world.extended().await;
    world.operations("ExtensionPrune", &[OperationPhase::Failed]).await;
    assert_eq!(deployments.get("beside").await.unwrap().metadata.uid, uid);

    world.limit("ExtensionPrune", 1).await;
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "beside", "enabled": false }] } })).await;
    world.extended().await;
    assert!(deployments.get_opt("beside").await.unwrap().is_none());
    world.operations("ExtensionPrune", &[OperationPhase::Failed, OperationPhase::Succeeded]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_may_not_be_deleted_costs_few_operations_and_keeps_no_other() {
    let mut world = TestFleet::start().await;
    world.operator_stops().await;
    let (admin, pinned) = (world.client.clone(), Arc::new(PinnedObject::default()));
    world.client = wrap(admin.clone(), pinned.clone());
    world.operator_starts();
    world.client = admin;
    let both = Extension { template: format!("{BESIDE}{BESIDE_NOTES}"), ..beside() };
    world.package("full", "1.36.4", vec![both]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    let start = Instant::now();
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "beside", "enabled": false }] } })).await;
    world.says(Status::False, names::reasons::REMOVING, "this object is pinned").await;
    let (deployments, maps): (Api<Deployment>, Api<ConfigMap>) = (world.api("pay"), world.api("pay"));
    let left = async || {
        let deployment = deployments.get_opt("beside").await.unwrap().map(|_| "beside");
        let map = maps.get_opt("beside-notes").await.unwrap().map(|_| "beside-notes");
        deployment.into_iter().chain(map).collect::<Vec<_>>()
    };
    world
        .until("only the pinned object is left", async || {
            let left = left().await;
            if left == [pinned.name.get().unwrap().as_str()] { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let all = operations.list(&ListParams::default()).await.unwrap().items;
    let prunes = all.iter().filter(|one| one.spec.type_ == "ExtensionPrune").count();
    let most = (start.elapsed().as_secs_f64() / 30.0) as usize + 1;
    assert!((1..=most).contains(&prunes), "{prunes} Operations instead of {most}");
    world.says(Status::False, names::reasons::REMOVING, "this object is pinned").await;

    pinned.free.store(true, Ordering::SeqCst);
    world.extended().await;
    assert!(left().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_values_and_templates_are_named_and_what_is_there_stays() {
    let world = TestFleet::start().await;
    let wrong = extension("wrong", 15, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ cluster.nmae }}}\n");
    world.package("full", "1.36.4", vec![notes(), beside()]).await;
    world.package("wrong", "1.36.5", vec![notes(), wrong, beside()]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    world.extended().await;
    let client = business(&world).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "notes");

    world.change("pay", json!({ "spec": { "extensions": [{ "name": "notes", "values": { "text": 7 } }] } })).await;
    let status = world.says(Status::False, names::reasons::INVALID_EXTENSION, "notes: values: text").await;
    let accepted = condition(&status.conditions, names::ACCEPTED).unwrap();
    assert_eq!((accepted.status, accepted.reason.as_str()), (Status::False, names::reasons::INVALID_EXTENSION));
    assert_eq!(maps.get("notes").await.unwrap().data.unwrap()["text"], "hello");
    world.change("pay", json!({ "spec": { "extensions": [{ "name": "notes", "values": { "text": "7" } }] } })).await;
    world.extended().await;
    assert_eq!(maps.get("notes").await.unwrap().data.unwrap()["text"], "7");

    refer(&world, "wrong").await;
    let status = world.says(Status::False, names::reasons::INVALID_EXTENSION, "cluster.nmae").await;
    assert_eq!(status.package_version.as_deref(), Some("wrong"));
    world.api::<Deployment>("pay").get("beside").await.unwrap();
    refer(&world, "full").await;
    world.extended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_waits_for_those_before_it_and_says_for_what() {
    let world = TestFleet::start().await;
    let checks = vec![ExtensionCheck { deployment: Some("kube-system/first".to_owned()), ..ExtensionCheck::default() }];
    let health = ExtensionHealth { checks, ..ExtensionHealth::default() };
    let template = BESIDE.replace("name: beside", "name: first, namespace: kube-system");
    let template = template.replace("- name: first, namespace: kube-system\n", "- name: first\n");
    let first = Extension { health, ..extension("first", 10, &template) };
    world.package("full", "1.36.4", vec![first, extension("more", 20, MORE)]).await;
    world.create("pay", |spec| spec.package_version = "full".to_owned()).await;
    let status = world.says(Status::False, names::reasons::APPLYING, "first: Deployment first").await;
    let more = &status.extensions[1];
    assert_eq!((more.ready, more.reason.as_str()), (Status::False, names::reasons::APPLYING));
    assert!(more.message.contains("extension first"), "{more:?}");
    let client = business(&world).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    assert!(maps.get_opt("more").await.unwrap().is_none());
    // Nothing runs pods in this business cluster; somebody says that they run.
    let deployments: Api<Deployment> = Api::namespaced(client, "kube-system");
    let now = deployments.get("first").await.unwrap();
    let runs = json!({ "status": {
        "observedGeneration": now.metadata.generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
    } });
    deployments.patch_status("first", &PatchParams::default(), &Patch::Merge(runs)).await.unwrap();
    world.extended().await;
    maps.get("more").await.unwrap();
}
