//! Secrets in the spec of a cluster: an external datastore, and configuration with secret data.

use fleetwright_api::{Datastore, Status, condition, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::{FLEET, TestFleet, not_accepted};

const COPY: &str = "kube-apiserver-secret-config";

fn encryption(key: &str) -> String {
    format!("kind: EncryptionConfiguration\n# {key}\n")
}

async fn refused(world: &TestFleet, secret: &str, field: &str) {
    let told = async || {
        let status = world.status("pay").await;
        match condition(&status.conditions, names::ACCEPTED) {
            Some(one)
                if one.status == Status::False
                    && one.reason == names::reasons::SECRET_NOT_FOUND
                    && one.message.contains(secret)
                    && one.message.contains(field) =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    };
    world.until("it is told that a Secret is missing", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_datastore_and_secret_configuration_reach_only_the_pods() {
    let world = TestFleet::start().await;
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let make = async |name: &str, data: Value| {
        let allowed = json!({ names::ALLOWED_CLUSTERS: "base,pay", names::READABLE_BY_CLUSTERS: "pay" });
        let secret = json!({ "metadata": { "name": name, "annotations": allowed }, "data": data });
        fleet.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        // Nobody watches Secrets of people: the next look finds it, and a change of the Cluster is one.
        world.change("pay", json!({ "metadata": { "labels": { "made": name } } })).await;
    };
    // The etcd of one cluster serves as the one that somebody else runs.
    world.create("base", |_| {}).await;
    world.ready("base").await;
    let external = json!({ "external": {
        "endpoints": ["https://etcd-0.etcd.fleet-base.svc:2379"], "secretRef": { "name": "base-etcd" },
    } });
    let config = json!({ "config": [
        { "name": "encryption.yaml", "secret": { "name": "keys", "key": "config" } },
        { "name": "audit.yaml", "content": "kind: Policy\n" },
    ] });
    world
        .create("pay", |spec| {
            spec.datastore = serde_json::from_value::<Datastore>(external).unwrap();
            spec.components.apiserver = Some(serde_json::from_value(config).unwrap());
            spec.snapshots = None;
        })
        .await;

    refused(&world, "Secret fleet/base-etcd", "spec.datastore.external.secretRef").await;
    let base: Api<Secret> = world.api("base");
    let client = base.get("apiserver-etcd-client").await.unwrap().data.unwrap();
    make(
        "base-etcd",
        json!({ "ca.crt": client["ca.crt"], "tls.crt": client["tls.crt"], "tls.key": client["tls.key"] }),
    )
    .await;
    refused(&world, "Secret fleet/keys", "spec.components.apiserver.config[encryption.yaml].secret").await;
    make("keys", json!({ "config": ByteString(encryption("first-key").into_bytes()) })).await;
    let status = world.ready("pay").await;
    assert!(status.components.iter().all(|one| format!("{:?}", one.component) != "Etcd"), "{status:#?}");

    // API servers find both files in one place, and the keys of the cluster stay apart from those of others.
    let pods: Api<Pod> = world.api("pay");
    let all = pods.list(&Default::default()).await.unwrap().items;
    let server = all.iter().find(|pod| pod.name_any().starts_with("kube-apiserver")).unwrap();
    let args = server.spec.as_ref().unwrap().containers[0].args.clone().unwrap();
    for wanted in [
        "--etcd-prefix=/fleet/pay",
        "--etcd-certfile=/etc/kubernetes/etcd-external/tls.crt",
        "--encryption-provider-config=/etc/kubernetes/kube-apiserver-config/encryption.yaml",
        "--encryption-provider-config-automatic-reload=true",
        "--audit-policy-file=/etc/kubernetes/kube-apiserver-config/audit.yaml",
    ] {
        assert!(args.iter().any(|arg| arg == wanted), "{wanted} is not in {args:#?}");
    }

    // A new key in the source is soon in the copy; a hand on the copy is undone.
    let copies: Api<Secret> = world.api("pay");
    let holds = |key: &str| {
        let wanted = encryption(key);
        move |secret: &Secret| {
            secret.data.as_ref().is_some_and(|data| data["encryption.yaml"].0 == wanted.as_bytes() && data.len() == 1)
        }
    };
    world.seen(&copies, COPY, holds("first-key")).await;
    let put = async |api: &Api<Secret>, name: &str, key: &str, text: String| {
        let patch = json!({ "data": { key: ByteString(text.into_bytes()) } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    put(&fleet, "keys", "config", encryption("second-key")).await;
    world.change("pay", json!({ "metadata": { "labels": { "made": "second" } } })).await;
    world.seen(&copies, COPY, holds("second-key")).await;
    put(&copies, COPY, "encryption.yaml", encryption("of-somebody")).await;
    world.seen(&copies, COPY, holds("second-key")).await;

    // What is secret is nowhere else.
    let events: Api<Event> = Api::namespaced(world.client.clone(), FLEET);
    let events = events.list(&Default::default()).await.unwrap().items;
    let cluster = world.clusters().get("pay").await.unwrap();
    let everything = format!("{} {} {}", json!(events), json!(cluster), json!(all));
    assert!(!everything.contains("first-key") && !everything.contains("second-key"));

    // Without the file its copy is emptied.
    world.change("pay", json!({ "spec": { "components": { "apiserver": { "config": [] } } } })).await;
    world.seen(&copies, COPY, |secret| secret.data.as_ref().is_none_or(|data| data.is_empty())).await;
    world.ready("pay").await;
}

async fn share(world: &TestFleet, secret: &str, with: Option<&str>) {
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let patch = json!({ "metadata": { "annotations": { names::READABLE_BY_CLUSTERS: with } } });
    fleet.patch(secret, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Every value in Secrets and ConfigMaps beside a control plane.
async fn holds_anywhere(world: &TestFleet, cluster: &str, text: &str) -> bool {
    let secrets: Api<Secret> = world.api(cluster);
    let secrets = secrets.list(&Default::default()).await.unwrap().items;
    let mut values = secrets.iter().flat_map(|secret| secret.data.iter().flatten());
    values.any(|(_, value)| String::from_utf8_lossy(&value.0).contains(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_gets_nothing_of_a_secret_that_is_not_shared_with_it() {
    let world = TestFleet::start().await;
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    let key = json!({
        "metadata": { "name": "fleet-ssh" }, "type": "kubernetes.io/ssh-auth",
        "stringData": { "ssh-privatekey": "the key of all hosts" },
    });
    fleet.create(&PostParams::default(), &serde_json::from_value(key).unwrap()).await.unwrap();
    let file = json!({ "config": [
        { "name": "notes", "secret": { "name": "fleet-ssh", "key": "ssh-privatekey" } },
    ] });
    world.create("eve", |spec| spec.components.apiserver = Some(serde_json::from_value(file.clone()).unwrap())).await;
    let reason = names::reasons::SECRET_NOT_SHARED;
    let says = not_accepted(&world, "eve", reason, "").await;
    for part in
        ["fleet/fleet-ssh", "eve", names::READABLE_BY_CLUSTERS, "spec.components.apiserver.config[notes].secret"]
    {
        assert!(says.contains(part), "{part} is not in {says}");
    }
    // Shared with others is not shared with this one.
    share(&world, "fleet-ssh", Some("pay,ev,eves")).await;
    world.change("eve", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    not_accepted(&world, "eve", reason, "").await;
    assert!(!holds_anywhere(&world, "eve", "the key of all hosts").await);

    // A running cluster that refers to it later keeps its present copy, and gets nothing either.
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    share(&world, "fleet-ssh", None).await;
    world.change("pay", json!({ "spec": { "components": { "apiserver": file } } })).await;
    not_accepted(&world, "pay", reason, "").await;
    assert!(!holds_anywhere(&world, "pay", "the key of all hosts").await);
    share(&world, "fleet-ssh", Some("*")).await;
    world.change("pay", json!({ "metadata": { "labels": { "look": "again" } } })).await;
    world.ready("pay").await;
    assert!(holds_anywhere(&world, "pay", "the key of all hosts").await);

    // A copy whose source is no longer shared is not changed, and all other steps continue.
    share(&world, "fleet-ssh", None).await;
    let changed = json!({ "stringData": { "ssh-privatekey": "another key" } });
    fleet.patch("fleet-ssh", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
    world.change("pay", json!({ "metadata": { "labels": { "look": "once-more" } } })).await;
    not_accepted(&world, "pay", reason, "").await;
    let secrets: Api<Secret> = world.api("pay");
    secrets.delete("front-proxy-client", &Default::default()).await.unwrap();
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    assert!(!holds_anywhere(&world, "pay", "another key").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_secret_stops_nothing_of_a_cluster_that_runs() {
    let world = TestFleet::start().await;
    world.create("pay", |_| {}).await;
    world.ready("pay").await;
    let file = json!({ "config": [{ "name": "encryption.yaml", "secret": { "name": "keyz", "key": "config" } }] });
    world.change("pay", json!({ "spec": { "components": { "apiserver": file } } })).await;
    let says = not_accepted(&world, "pay", names::reasons::SECRET_NOT_FOUND, "").await;
    for part in ["fleet/keyz", "spec.components.apiserver.config[encryption.yaml].secret", "last accepted"] {
        assert!(says.contains(part), "{part} is not in {says}");
    }
    // What runs is kept as before, and the spec that cannot be followed is not taken for one that was accepted.
    let secrets: Api<Secret> = world.api("pay");
    secrets.delete("front-proxy-client", &Default::default()).await.unwrap();
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    let records: Api<ConfigMap> = world.api("pay");
    let record = records.get("accepted-spec").await.unwrap();
    assert!(!json!(record.data).to_string().contains("keyz"), "{record:?}");
    world.change("pay", json!({ "spec": { "components": { "apiserver": null } } })).await;
    world.ready("pay").await;
}
