//! Who may write Clusters reaches their own cluster and nothing of another one.

use std::collections::BTreeMap;

use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, Datastore, Extension, ExtensionPlacement, Snapshots,
    names,
};
use fleetwright_lab::ServerKind;
use fleetwright_plan::cluster::Names;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::{FLEET, TestFleet, cluster_writer, not_accepted};

/// Everything of a control plane that another Cluster could take over: what workloads say, and contents of Secrets.
async fn control_plane(world: &TestFleet, namespace: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), namespace);
    for one in deployments.list(&Default::default()).await.unwrap().items {
        all.insert(one.name_any(), format!("{:?} {}", one.uid(), json!(one.spec)));
    }
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), namespace);
    for one in sets.list(&Default::default()).await.unwrap().items {
        all.insert(one.name_any(), format!("{:?} {}", one.uid(), json!(one.spec)));
    }
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), namespace);
    for one in secrets.list(&Default::default()).await.unwrap().items {
        all.insert(format!("secret {}", one.name_any()), format!("{:?} {}", one.uid(), json!(one.data)));
    }
    all
}

/// A cluster with a long name, whose namespace an earlier version shortened, and one whose name is what that namespace is called.
async fn a_cluster_takes_no_namespace_of_another_one(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.operator_stops().await;
    let victim = "a".repeat(60);
    let shortened = format!("{FLEET}-{}-0123abcd", "a".repeat(48));
    let twin = shortened.strip_prefix("fleet-").unwrap().to_owned();
    assert_eq!(Names::of(FLEET, &twin).namespace, shortened);
    let labels = Names::of(FLEET, &victim).labels();
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let made = json!({ "metadata": { "name": shortened, "labels": labels } });
    let made = namespaces.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
    world.create(&victim, |_| {}).await;
    let recorded = json!({ "status": { "namespace": shortened } });
    world.clusters().patch_status(&victim, &PatchParams::default(), &Patch::Merge(recorded)).await.unwrap();
    world.operator_starts();
    let status = world.ready(&victim).await;
    assert_eq!(status.namespace.as_deref(), Some(&*shortened), "it keeps the namespace that it has");
    // The last that is written about a new cluster: that its etcd is not new any more.
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), &shortened);
    world.seen(&sets, "etcd", |one| json!(one.spec).to_string().contains("--initial-cluster-state=existing")).await;
    let plane = control_plane(&world, &shortened).await;
    assert!(plane.contains_key("kube-apiserver") && plane.contains_key("secret ca"), "{plane:?}");

    let open = json!({ "config": [{ "name": "authorization.yaml", "content": "kind: AuthorizationConfiguration\n" }] });
    world.create(&twin, |spec| spec.components.apiserver = Some(serde_json::from_value(open).unwrap())).await;
    not_accepted(&world, &twin, names::reasons::NAMESPACE_CONFLICT, &victim).await;
    assert_eq!(world.status(&twin).await.namespace, None);
    world.change(&twin, json!({ "spec": { "replicas": 2 } })).await;
    let again = format!("Namespace {shortened}");
    not_accepted(&world, &twin, names::reasons::NAMESPACE_CONFLICT, &again).await;
    assert_eq!(control_plane(&world, &shortened).await, plane, "nothing of it was touched");

    world.delete(&twin).await;
    world
        .until("the other one is gone", async || match world.clusters().get_opt(&twin).await.unwrap() {
            None => Ok(()),
            Some(there) => Err(format!("{there:?}")),
        })
        .await;
    let now = namespaces.get(&shortened).await.unwrap();
    assert_eq!((now.uid(), &now.metadata.deletion_timestamp), (made.uid(), &None));
    assert_eq!(control_plane(&world, &shortened).await, plane, "nothing of it was deleted");
    world.change(&victim, json!({ "metadata": { "labels": { "look": "again" } } })).await;
    world.ready(&victim).await;

    // Its own end takes the namespace that it has.
    world.delete(&victim).await;
    world
        .until("it is gone with its namespace", async || match namespaces.get_opt(&shortened).await.unwrap() {
            None if world.clusters().get_opt(&victim).await.unwrap().is_none() => Ok(()),
            there => Err(format!("{there:?}")),
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_neither_uses_nor_deletes_the_namespace_of_another_one() {
    a_cluster_takes_no_namespace_of_another_one(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_neither_uses_nor_deletes_the_namespace_of_another_one_on_real() {
    a_cluster_takes_no_namespace_of_another_one(ServerKind::Real).await;
}

/// Creates the namespace of that cluster as who may create namespaces could, with the labels of the operator and that proof.
pub async fn prepared(world: &TestFleet, cluster: &str, proof: Option<&String>) -> Namespace {
    let names = Names::of(FLEET, cluster);
    let annotations: BTreeMap<_, _> = proof.map(|proof| (names::CREATION_PROOF, proof)).into_iter().collect();
    let metadata = json!({ "name": names.namespace, "labels": names.labels(), "annotations": annotations });
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let made = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    namespaces.create(&PostParams::default(), &made).await.unwrap()
}

/// Writes the namespace of that cluster into its status, as who has the right to can.
async fn record(world: &TestFleet, cluster: &str, uid: Value) {
    let status = Patch::Merge(json!({ "status": { "namespace": null, "namespaceUid": uid } }));
    world.clusters().patch_status(cluster, &PatchParams::default(), &status).await.unwrap();
}

/// Labels and even the annotation of another namespace make no namespace a Cluster's own: neither before its first one, nor in place of one that was deleted.
async fn a_prepared_namespace_is_not_used(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let secrets = |world: &TestFleet, cluster: &str| world.api::<Secret>(cluster);
    let keys = async |world: &TestFleet, cluster: &str| {
        let all = secrets(world, cluster).list(&Default::default()).await.unwrap().items;
        all.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    world.create("base", |_| {}).await;
    let status = world.ready("base").await;
    let base = namespaces.get("fleet-base").await.unwrap();
    assert_eq!((status.namespace.as_deref(), &status.namespace_uid), (Some("fleet-base"), &base.uid()));
    let proof = base.annotations().get(names::CREATION_PROOF).cloned().unwrap();

    world.operator_stops().await;
    let (bare, copied) = (prepared(&world, "pay", None).await, prepared(&world, "shop", Some(&proof)).await);
    for cluster in ["pay", "shop"] {
        world.create(cluster, |_| {}).await;
    }
    // The uid of another one.
    record(&world, "shop", json!(bare.uid())).await;
    // Who may write Clusters gives them no namespace.
    let eve: Api<Cluster> = Api::namespaced(cluster_writer(&world).await, FLEET);
    let mine = json!({ "metadata": { "annotations": { "fleetwright.io/adopt-namespace": bare.uid() } } });
    eve.patch("pay", &PatchParams::default(), &Patch::Merge(mine)).await.unwrap();
    let mine = Patch::Merge(json!({ "status": { "namespaceUid": bare.uid() } }));
    let refused = eve.patch_status("pay", &PatchParams::default(), &mine).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused:?}");
    world.operator_starts();
    for (cluster, made) in [("pay", &bare), ("shop", &copied)] {
        let uid = made.uid().unwrap();
        let said = not_accepted(&world, cluster, names::reasons::NAMESPACE_CONFLICT, "did not create").await;
        let command = format!(
            "kubectl patch cluster {cluster} -n {FLEET} --subresource=status --type=merge -p '{}'",
            json!({ "status": { "namespaceUid": uid } })
        );
        assert!(said.contains(&command), "{said}");
        assert_eq!(keys(&world, cluster).await, [""; 0]);
        assert_eq!(world.status(cluster).await.namespace, None);
    }
    // Nor is it deleted with the Cluster.
    world.delete("shop").await;
    world
        .until("shop is gone", async || match world.clusters().get_opt("shop").await.unwrap() {
            None => Ok(()),
            Some(there) => Err(format!("{there:?}")),
        })
        .await;
    let left = namespaces.get("fleet-shop").await.unwrap();
    assert_eq!((left.uid(), left.metadata.deletion_timestamp), (copied.uid(), None));
    // A person gives the other one to its Cluster.
    record(&world, "pay", json!(bare.uid())).await;
    assert_eq!(world.ready("pay").await.namespace_uid, bare.uid());

    // In place of one that had the keys, with all that was to be seen of it.
    world.operator_stops().await;
    namespaces.delete("fleet-base", &Default::default()).await.unwrap();
    world
        .until("it is gone", async || match namespaces.get_opt("fleet-base").await.unwrap() {
            None => Ok(()),
            Some(there) => Err(format!("{there:?}")),
        })
        .await;
    let replayed = prepared(&world, "base", Some(&proof)).await;
    world.operator_starts();
    not_accepted(&world, "base", names::reasons::NAMESPACE_CONFLICT, "did not create").await;
    assert_eq!(keys(&world, "base").await, [""; 0], "its keys came back into the hands of others");
    namespaces.delete("fleet-base", &Default::default()).await.unwrap();
    world
        .until("the operator made one of its own", async || {
            let status = world.status("base").await;
            let now = namespaces.get_opt("fleet-base").await.unwrap().and_then(|one| one.uid());
            let own = status.namespace_uid.is_some() && status.namespace_uid == now;
            if own && now != replayed.uid() && now != base.uid() { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.seen(&secrets(&world, "base"), "ca", |_| true).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_somebody_prepared_is_neither_used_nor_deleted() {
    a_prepared_namespace_is_not_used(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_somebody_prepared_is_neither_used_nor_deleted_on_real() {
    a_prepared_namespace_is_not_used(ServerKind::Real).await;
}

/// The operator was stopped after it created a namespace and before it recorded that: whatever is there then under that name, it may be another one with everything that was to be seen of the first.
async fn a_copy_of_an_unrecorded_namespace_is_not_used(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let first = namespaces.get("fleet-pay").await.unwrap();
    let proof = first.annotations().get(names::CREATION_PROOF).cloned().unwrap();

    // What has a control plane in it is neither used nor deleted, whatever proof it has.
    world.operator_stops().await;
    record(&world, "pay", Value::Null).await;
    world.operator_starts();
    not_accepted(&world, "pay", names::reasons::NAMESPACE_CONFLICT, "did not create").await;
    let now = namespaces.get("fleet-pay").await.unwrap();
    assert_eq!((now.uid(), &now.metadata.deletion_timestamp), (first.uid(), &None));
    record(&world, "pay", json!(first.uid())).await;
    world.ready("pay").await;

    world.operator_stops().await;
    record(&world, "pay", Value::Null).await;
    namespaces.delete("fleet-pay", &Default::default()).await.unwrap();
    world
        .until("it is gone", async || match namespaces.get_opt("fleet-pay").await.unwrap() {
            None => Ok(()),
            Some(there) => Err(format!("{there:?}")),
        })
        .await;
    let copy = prepared(&world, "pay", Some(&proof)).await;
    world.operator_starts();
    world
        .until("the operator made one of its own", async || {
            let status = world.status("pay").await;
            assert_ne!(status.namespace_uid, copy.uid(), "the keys go to who made the copy");
            let now = namespaces.get_opt("fleet-pay").await.unwrap().and_then(|one| one.uid());
            let own = status.namespace_uid.is_some() && status.namespace_uid == now;
            if own { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    world.told("NamespaceRecreated").await;
    world.seen(&world.api::<Secret>("pay"), "ca", |_| true).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_was_not_recorded_is_recreated_and_a_copy_of_it_gets_no_keys() {
    a_copy_of_an_unrecorded_namespace_is_not_used(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_was_not_recorded_is_recreated_and_a_copy_of_it_gets_no_keys_on_real() {
    a_copy_of_an_unrecorded_namespace_is_not_used(ServerKind::Real).await;
}

async fn annotate(world: &TestFleet, secret: &str, annotations: Value) {
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let patch = json!({ "metadata": { "annotations": annotations } });
    fleet.patch(secret, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Whether a value in a Secret beside that control plane has that text.
async fn has(world: &TestFleet, cluster: &str, text: &[u8]) -> bool {
    let secrets: Api<Secret> = world.api(cluster);
    let secrets = secrets.list(&Default::default()).await.unwrap().items;
    let mut values = secrets.iter().flat_map(|secret| secret.data.iter().flatten());
    values.any(|(_, value)| value.0.windows(text.len()).any(|part| part == text))
}

/// A Secret that a Cluster may use for one thing is not read, and not used for another.
async fn a_secret_is_shared_for_what_its_owner_says(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let shared = json!({ names::ALLOWED_CLUSTERS: "*" });
    let make = async |name: &str, annotations: &Value, data: Value| {
        let secret = json!({ "metadata": { "name": name, "annotations": annotations }, "data": data });
        fleet.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    };
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    make("s3", &shared, json!({ "accessKeyId": bytes("id"), "secretAccessKey": bytes("key of the bucket") })).await;
    make("sealing", &json!({}), json!({ "key": bytes(&"k".repeat(32)) })).await;
    world.create("base", |_| {}).await;
    world.ready("base").await;
    let client = world.api::<Secret>("base").get("apiserver-etcd-client").await.unwrap().data.unwrap();
    let certificate = json!({ "ca.crt": client["ca.crt"], "tls.crt": client["tls.crt"], "tls.key": client["tls.key"] });
    make("base-etcd", &json!({}), certificate).await;
    let reason = names::reasons::SECRET_NOT_SHARED;

    // The key of a bucket, as a file of the API server.
    let file = json!({ "config": [{ "name": "notes", "secret": { "name": "s3", "key": "secretAccessKey" } }] });
    world.create("eve", |spec| spec.components.apiserver = Some(serde_json::from_value(file).unwrap())).await;
    let said = not_accepted(&world, "eve", reason, "spec.components.apiserver.config[notes].secret").await;
    assert!(said.contains("fleet/s3") && said.contains(names::READABLE_BY_CLUSTERS), "{said}");
    // The certificate of an etcd, too.
    let file = json!([{ "name": "notes", "secret": { "name": "base-etcd", "key": "tls.key" } }]);
    annotate(&world, "base-etcd", shared.clone()).await;
    world.change("eve", json!({ "spec": { "components": { "apiserver": { "config": file } } } })).await;
    not_accepted(&world, "eve", reason, "fleet/base-etcd").await;
    assert!(!has(&world, "eve", b"key of the bucket").await && !has(&world, "eve", &client["tls.key"].0).await);
    // The key of its snapshots, which is not shared.
    world.change("eve", json!({ "spec": { "components": { "apiserver": { "config": [] } } } })).await;
    world.ready("eve").await;
    let policy: Snapshots =
        serde_json::from_value(json!({ "every": "0s", "encryption": { "secretRef": { "name": "sealing" } } })).unwrap();
    world.change("eve", json!({ "spec": { "snapshots": policy } })).await;
    world.change("eve", json!({ "metadata": { "annotations": { names::SNAPSHOT: "now" } } })).await;
    let said = not_accepted(&world, "eve", reason, "spec.snapshots.encryption.secretRef").await;
    assert!(said.contains("fleet/sealing") && said.contains(names::ALLOWED_CLUSTERS), "{said}");
    assert!(!has(&world, "eve", &[b'k'; 32]).await);

    // Another cluster's data, by the prefix of its keys.
    annotate(&world, "base-etcd", json!({ names::ALLOWED_CLUSTERS: null })).await;
    let external = |prefix: &str| {
        let external = json!({ "external": {
            "endpoints": ["https://etcd-0.etcd.fleet-base.svc:2379"], "secretRef": { "name": "base-etcd" }, "prefix": prefix,
        } });
        serde_json::from_value::<Datastore>(external).unwrap()
    };
    world.create("mallory", |spec| (spec.datastore, spec.snapshots) = (external("/registry"), None)).await;
    let field = "spec.datastore.external.secretRef";
    not_accepted(&world, "mallory", reason, field).await;
    annotate(&world, "base-etcd", shared).await;
    world.change("mallory", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    let said = not_accepted(&world, "mallory", reason, names::ALLOWED_ETCD_PREFIXES).await;
    assert!(said.contains(field) && said.contains("/registry"), "{said}");
    assert!(!has(&world, "mallory", &client["tls.key"].0).await);
    let servers: Api<Deployment> = world.api("mallory");
    assert!(servers.list(&Default::default()).await.unwrap().items.is_empty());
    // Below its own it is free, and elsewhere if the owner of the Secret says so.
    world.create("shop", |spec| (spec.datastore, spec.snapshots) = (external("/fleet/shop/blue"), None)).await;
    world.ready("shop").await;
    annotate(&world, "base-etcd", json!({ names::ALLOWED_ETCD_PREFIXES: "/old" })).await;
    world.create("old", |spec| (spec.datastore, spec.snapshots) = (external("/old"), None)).await;
    world.ready("old").await;
    world.change("mallory", json!({ "metadata": { "labels": { "look": "once-more" } } })).await;
    not_accepted(&world, "mallory", reason, names::ALLOWED_ETCD_PREFIXES).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_may_be_used_is_not_read_and_not_used_for_others_data() {
    a_secret_is_shared_for_what_its_owner_says(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_may_be_used_is_not_read_and_not_used_for_others_data_on_real() {
    a_secret_is_shared_for_what_its_owner_says(ServerKind::Real).await;
}

/// Beside the control plane, with a value that the template does not quote.
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
        args:
        - --text={{ values.text }}
"#;

/// A Deployment with the key of the authority, behind the value.
const EVIL: &str = "x\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: evil}\nspec:\n  selector: {matchLabels: {app: evil}}\n  template:\n    metadata: {labels: {app: evil}}\n    spec:\n      containers: [{name: evil, image: registry.example/evil:v1, volumeMounts: [{name: ca, mountPath: /ca}]}]\n      volumes: [{name: ca, secret: {secretName: ca}}]\n";

async fn values_bring_nothing_into_the_meta_cluster(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let mut package = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
    package.extensions = vec![Extension {
        name: "beside".to_owned(),
        placement: ExtensionPlacement::Meta,
        template: BESIDE.to_owned(),
        values_schema: Some("type: object\nproperties:\n  text: {type: string, default: hello}\n".to_owned()),
        ..Extension::default()
    }];
    let package = ClusterPackageVersion::new("beside", package);
    world.packages().create(&PostParams::default(), &package).await.unwrap();
    world.create("pay", |spec| spec.package_version = "beside".to_owned()).await;
    world.ready("pay").await;
    let deployments: Api<Deployment> = world.api("pay");
    let plain = world.seen(&deployments, "beside", |_| true).await;
    let reason = names::reasons::INVALID_EXTENSION;
    let image = "x\n        image: registry.example/evil:v1";
    let more = "x\n      - name: evil\n        image: registry.example/evil:v1";
    let keys = "x\n        envFrom: [{secretRef: {name: ca}}]";
    for (text, part) in [(EVIL, "Secret"), (image, "beside"), (more, "containers"), (keys, "envFrom[0]")] {
        let choice = json!([{ "name": "beside", "values": { "text": text } }]);
        world.change("pay", json!({ "spec": { "extensions": choice } })).await;
        not_accepted(&world, "pay", reason, part).await;
        // One that is good again, so that each of them is seen by itself.
        world.change("pay", json!({ "spec": { "extensions": [] } })).await;
        world.ready("pay").await;
    }
    let all = deployments.list(&Default::default()).await.unwrap().items;
    assert!(all.iter().all(|one| one.name_any() != "evil"), "{all:?}");
    let beside = deployments.get("beside").await.unwrap();
    assert_eq!((beside.uid(), beside.spec), (plain.uid(), plain.spec));
    // What is only a text is one.
    let choice = json!([{ "name": "beside", "values": { "text": "other" } }]);
    world.change("pay", json!({ "spec": { "extensions": choice } })).await;
    world
        .seen(&deployments, "beside", |one| {
            json!(one)["spec"]["template"]["spec"]["containers"][0]["args"][0] == "--text=other"
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_cluster_bring_nothing_into_the_meta_cluster() {
    values_bring_nothing_into_the_meta_cluster(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_cluster_bring_nothing_into_the_meta_cluster_on_real() {
    values_bring_nothing_into_the_meta_cluster(ServerKind::Real).await;
}
