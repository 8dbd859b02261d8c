//! Authorities and the key of service-account tokens are lost, changed and restored, without an effect on the users of the cluster.

use std::collections::BTreeMap;

use fleetwright_api::{ClusterPhase, ClusterStatus, Status, condition, names};
use fleetwright_lab::ServerKind;
use fleetwright_pki::{Authority, Leaf, fingerprint};
use fleetwright_plan::cluster::certificates::OPERATOR;
use fleetwright_plan::cluster::keys::{Key, SEAL};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use crate::support::{FLEET, TestFleet, not_accepted};
use crate::versions::business;

type Data = BTreeMap<String, ByteString>;

const COPY: &str = "pay.sealed-keys";

/// Who uses the cluster, with what they were given before anything was lost.
struct Users {
    authority: String,
    certificate: Value,
    token: Value,
}

impl Users {
    async fn of(world: &TestFleet) -> Self {
        let ca = text(&held(world, "ca").await);
        let pair = Authority::from_pem(&ca["tls.crt"], &ca["tls.key"])
            .unwrap()
            .issue(Leaf::client("ann", ["system:masters"]))
            .unwrap();
        let accounts: Api<ServiceAccount> = Api::default_namespaced(business(world).await);
        let metadata = ObjectMeta { name: Some("app".to_owned()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let token = accounts.create_token_request("app", &PostParams::default(), &request).await.unwrap();
        use base64::Engine as _;
        let encoded = |pem: &str| base64::prelude::BASE64_STANDARD.encode(pem);
        Self {
            authority: encoded(&ca["ca.crt"]),
            certificate: json!({
                "client-certificate-data": encoded(&pair.cert_pem), "client-key-data": encoded(&pair.key_pem),
            }),
            token: json!({ "token": token.status.unwrap().token }),
        }
    }

    /// Each API server knows each of them, and is known by the authority that they were given.
    async fn work(&self, world: &TestFleet) {
        self.are_known(world).await.expect("it still works");
    }

    async fn are_known(&self, world: &TestFleet) -> Result<(), String> {
        for pod in servers(world).await {
            let ip = pod.status.and_then(|status| status.pod_ip).expect("it has an address");
            for user in [&self.certificate, &self.token] {
                let client = self.client(&ip, user).await;
                client.apiserver_version().await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    async fn client(&self, ip: &str, user: &Value) -> Client {
        let config: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{ "name": "pay", "cluster": {
                "server": format!("https://{ip}:6443"), "certificate-authority-data": self.authority,
                "tls-server-name": "kube-apiserver.fleet-pay.svc",
            } }],
            "users": [{ "name": "pay", "user": user }],
            "contexts": [{ "name": "pay", "context": { "cluster": "pay", "user": "pay" } }],
            "current-context": "pay",
        }))
        .unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }
}

async fn servers(world: &TestFleet) -> Vec<Pod> {
    let all = world.api::<Pod>("pay").list(&Default::default()).await.unwrap().items;
    all.into_iter().filter(|pod| pod.name_any().starts_with("kube-apiserver")).collect()
}

/// The pods of the control plane, by uid: each that is replaced is another one.
async fn pods(world: &TestFleet) -> Vec<String> {
    let all = world.api::<Pod>("pay").list(&Default::default()).await.unwrap().items;
    let mut all: Vec<_> = all.iter().map(|pod| format!("{} {}", pod.name_any(), pod.uid().unwrap())).collect();
    all.sort();
    all
}

async fn held(world: &TestFleet, secret: &str) -> Data {
    world.api::<Secret>("pay").get(secret).await.unwrap().data.unwrap_or_default()
}

fn text(data: &Data) -> BTreeMap<String, String> {
    data.iter().map(|(key, value)| (key.clone(), String::from_utf8(value.0.clone()).unwrap())).collect()
}

async fn all_held(world: &TestFleet) -> BTreeMap<&'static str, Data> {
    let mut all = BTreeMap::new();
    for key in Key::all() {
        all.insert(key.secret(), held(world, key.secret()).await);
    }
    all
}

async fn delete(world: &TestFleet, secret: &str) {
    world.api::<Secret>("pay").delete(secret, &DeleteParams::default()).await.unwrap();
}

/// The Secret and what opens its copy are deleted before the operator sees either.
async fn lose(world: &mut TestFleet, secret: &str) {
    world.operator_stops().await;
    fleet(world).delete(SEAL, &DeleteParams::default()).await.unwrap();
    delete(world, secret).await;
    world.operator_starts();
}

fn fleet(world: &TestFleet) -> Api<Secret> {
    Api::namespaced(world.client.clone(), FLEET)
}

/// Waits until the Secrets hold that again.
async fn back(world: &TestFleet, before: &BTreeMap<&'static str, Data>) {
    let secrets: Api<Secret> = world.api("pay");
    for (name, data) in before {
        let seen = world.seen(&secrets, name, |secret| secret.metadata.deletion_timestamp.is_none()).await;
        assert!(seen.data.as_ref() == Some(data), "{name} is another one");
    }
}

/// Waits until the condition of certificates is false for that reason.
async fn blocked(world: &TestFleet, reason: &str) -> (ClusterStatus, String) {
    world
        .until(&format!("it says {reason}"), async || {
            let status = world.status("pay").await;
            let valid = condition(&status.conditions, names::CERTIFICATES_VALID).cloned();
            match valid {
                Some(valid) if valid.status == Status::False && valid.reason == reason => Ok((status, valid.message)),
                other => Err(format!("{other:?}")),
            }
        })
        .await
}

/// Everything that was decided so far is done: another cluster that is declared now is ready.
async fn passes(world: &TestFleet, name: &str) {
    world.create(name, |spec| spec.replicas = 1).await;
    world.ready(name).await;
}

/// A Secret without the labels of the cluster is in no cache: it counts as missing, and cannot be created. The condition says so, and a change that does
/// not need it is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_without_its_labels_is_reported_and_blocks_nothing_else() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let secrets: Api<Secret> = world.api("pay");
    let label = |value: Value| json!({ "metadata": { "labels": { names::CLUSTER_NAMESPACE: value } } });
    for name in ["apiserver-tls", "ca"] {
        let before = secrets.get(name).await.unwrap().data;
        let client = held(&world, OPERATOR).await;
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(label(json!(null)))).await.unwrap();
        let said = not_accepted(&world, "pay", names::reasons::WRITE_REFUSED, names::CLUSTER_NAMESPACE).await;
        assert!(said.contains(&format!("kubectl label secret -n fleet-pay {name} ")), "{said}");
        assert_eq!(secrets.get(name).await.unwrap().data, before);
        assert!(held(&world, OPERATOR).await == client, "no certificate is issued again and again");
        crate::datastore::lose(&world, "etcd-0").await;
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(label(json!(FLEET)))).await.unwrap();
        world.ready("pay").await;
        // A certificate may be issued again at the moment in which it is seen again.
        assert!(name != "ca" || secrets.get(name).await.unwrap().data == before);
    }
}

async fn lost_keys_come_back_as_they_were(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 2).await;
    let status = world.ready("pay").await;
    let (users, before, running) = (Users::of(&world).await, all_held(&world).await, pods(&world).await);
    for (name, data) in &before {
        let record = status.keys.iter().find(|record| record.name == *name).expect("it is recorded");
        let public = text(data).get("tls.crt").or(text(data).get("sa.pub")).cloned().unwrap();
        assert_eq!(fingerprint(&public).as_ref(), Some(&record.fingerprint), "{name}");
    }
    let sealed = fleet(&world).get(COPY).await.unwrap().data.unwrap_or_default();
    let sealed: Vec<u8> = sealed.into_values().flat_map(|value| value.0).collect();
    assert!(!sealed.windows(7).any(|part| part == b"PRIVATE" || part == b"BEGIN C"), "reading it reveals nothing");

    for name in before.keys() {
        delete(&world, name).await;
        back(&world, &before).await;
    }
    world.told("KeyRestored").await;
    // As `kubectl delete secret --all` does.
    let secrets: Api<Secret> = world.api("pay");
    secrets.delete_collection(&DeleteParams::default(), &Default::default()).await.unwrap();
    back(&world, &before).await;
    // Copies are made again while the Secrets are there, also if what seals them is lost.
    fleet(&world).delete(COPY, &DeleteParams::default()).await.unwrap();
    world.seen(&fleet(&world), COPY, |_| true).await;
    let (seal, copy) = (fleet(&world).get(SEAL).await.unwrap(), fleet(&world).get(COPY).await.unwrap());
    fleet(&world).delete(SEAL, &DeleteParams::default()).await.unwrap();
    world.seen(&fleet(&world), SEAL, |now| now.uid() != seal.uid()).await;
    world
        .seen(&fleet(&world), COPY, |now| now.annotations().get(names::SEALED) != copy.annotations().get(names::SEALED))
        .await;
    delete(&world, "ca").await;
    back(&world, &before).await;

    let status = world.ready("pay").await;
    assert_eq!(status.phase, Some(ClusterPhase::Ready));
    assert!(fleetwright_api::is_true(&status.conditions, names::CERTIFICATES_VALID));
    assert_eq!(pods(&world).await, running, "no pod was replaced");
    users.work(&world).await;

    // A cluster of the same name that comes later has keys of its own.
    world.delete("pay").await;
    world
        .until("it is gone", async || {
            let copy = fleet(&world).get_opt(COPY).await.unwrap();
            let cluster = world.clusters().get_opt("pay").await.unwrap();
            match (copy, cluster) {
                (None, None) => Ok(()),
                (copy, cluster) => Err(format!("{:?} {:?}", copy.is_some(), cluster.map(|one| one.status))),
            }
        })
        .await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    for (name, data) in all_held(&world).await {
        assert!(data != before[name], "{name} is the one of the deleted cluster");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_authorities_and_token_keys_come_back_as_they_were() {
    lost_keys_come_back_as_they_were(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_authorities_and_token_keys_come_back_as_they_were_on_real() {
    lost_keys_come_back_as_they_were(ServerKind::Real).await;
}

async fn a_key_lost_with_its_copy_is_not_generated(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 2).await;
    world.ready("pay").await;
    let (users, before, running) = (Users::of(&world).await, all_held(&world).await, pods(&world).await);
    let lost = [("ca", "AuthorityLost"), ("service-account", "ServiceAccountKeyLost")];
    for (name, reason) in lost {
        lose(&mut world, name).await;
        let (status, message) = blocked(&world, reason).await;
        assert_eq!(status.phase, Some(ClusterPhase::Degraded));
        assert!(fleetwright_api::is_true(&status.conditions, names::READY), "it works on: {status:#?}");
        assert!(message.contains(names::REPLACE_KEY) && message.contains("fleet-pay/"), "{message}");
        passes(&world, &format!("beside-{name}")).await;
        assert!(world.api::<Secret>("pay").get_opt(name).await.unwrap().is_none(), "{name} was generated");
        assert_eq!(pods(&world).await, running);
        users.work(&world).await;
        // Somebody has a backup.
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(
                [(names::CLUSTER, "pay"), (names::CLUSTER_NAMESPACE, FLEET)]
                    .map(|(key, value)| (key.into(), value.into()))
                    .into(),
            ),
            ..ObjectMeta::default()
        };
        let secret = Secret { metadata, data: Some(before[name].clone()), ..Secret::default() };
        world.api::<Secret>("pay").create(&PostParams::default(), &secret).await.unwrap();
        world.ready("pay").await;
        world.seen(&fleet(&world), COPY, |_| true).await;
    }
    assert_eq!(pods(&world).await, running);

    // And one who has none says so.
    lose(&mut world, "front-proxy-ca").await;
    let (_, message) = blocked(&world, "AuthorityLost").await;
    let request = message.split(&format!("{}=", names::REPLACE_KEY)).nth(1).unwrap();
    let request = request.split_whitespace().next().unwrap();
    world.change("pay", json!({ "metadata": { "annotations": { names::REPLACE_KEY: request } } })).await;
    world.seen(&world.api::<Secret>("pay"), "front-proxy-ca", |_| true).await;
    let status = world.ready("pay").await;
    assert!(held(&world, "front-proxy-ca").await != before["front-proxy-ca"]);
    let record = status.keys.iter().find(|record| record.name == "front-proxy-ca").unwrap();
    assert!(!request.contains(&record.fingerprint[..16]), "the new one is recorded");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_generated_for_a_cluster_that_lost_it_with_its_copy() {
    a_key_lost_with_its_copy_is_not_generated(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_generated_for_a_cluster_that_lost_it_with_its_copy_on_real() {
    a_key_lost_with_its_copy_is_not_generated(ServerKind::Real).await;
}

/// The copy that cannot be opened is not overwritten: it is the last one of the key that is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_comes_back_when_what_opens_its_copy_does() {
    let mut world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let (before, seal) = (all_held(&world).await, fleet(&world).get(SEAL).await.unwrap());
    lose(&mut world, "ca").await;
    blocked(&world, names::reasons::AUTHORITY_LOST).await;
    passes(&world, "other").await;
    // The other cluster has another one by now.
    let patch = Patch::Merge(json!({ "data": seal.data }));
    fleet(&world).patch(SEAL, &PatchParams::default(), &patch).await.unwrap();
    back(&world, &before).await;
    world.ready("pay").await;
}

/// Kubelets of a cluster that is older than the authority of their serving certificates have theirs from the cluster's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_older_than_the_authority_of_kubelets_trusts_both_until_it_rotates() {
    let mut world = TestFleet::start().await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.certificates.overlap.0 = std::time::Duration::from_secs(1);
        })
        .await;
    let status = world.ready("pay").await;
    let ca = text(&held(&world, "ca").await);
    assert_eq!(text(&held(&world, "kubelet-ca").await)["ca.crt"].matches("BEGIN CERT").count(), 1);
    world.operator_stops().await;
    let keys: Vec<_> = status.keys.into_iter().filter(|record| record.name != "kubelet-ca").collect();
    let patch = Patch::Merge(json!({ "status": { "keys": keys } }));
    world.clusters().patch_status("pay", &PatchParams::default(), &patch).await.unwrap();
    fleet(&world).delete(COPY, &DeleteParams::default()).await.unwrap();
    delete(&world, "kubelet-ca").await;
    world.operator_starts();
    let made = world.seen(&world.api::<Secret>("pay"), "kubelet-ca", |_| true).await;
    let trusted = text(&made.data.unwrap_or_default())["ca.crt"].clone();
    assert!(trusted.contains(ca["tls.crt"].trim()) && trusted.matches("BEGIN CERT").count() == 2, "{trusted}");
    world.ready("pay").await;

    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "now" } } })).await;
    world
        .until("it is rotated", async || {
            let status = world.status("pay").await;
            let done = status.rotation.is_none() && status.authorities.as_deref() == Some("now");
            if done { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
    assert_eq!(text(&held(&world, "kubelet-ca").await)["ca.crt"].matches("BEGIN CERT").count(), 1);
}

/// On kube-apiserver only the first change is made, to save time.
async fn a_changed_authority_is_left_alone(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let (users, before, running) = (Users::of(&world).await, all_held(&world).await, pods(&world).await);
    let leaf = held(&world, "apiserver-tls").await;
    let made = Authority::new("by-hand").unwrap();
    let (certificate, key) = (made.cert_pem().to_owned(), made.key_pem());
    let changes = [
        json!({ "stringData": { "tls.crt": certificate, "tls.key": key, "ca.crt": certificate } }),
        json!({ "stringData": { "ca.crt": certificate } }),
        json!({ "stringData": { "tls.key": "nothing" } }),
    ];
    for change in changes.into_iter().take(if kind == ServerKind::Real { 1 } else { 3 }) {
        let secrets: Api<Secret> = world.api("pay");
        secrets.patch("ca", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        let changed = held(&world, "ca").await;
        let (status, message) = blocked(&world, names::reasons::AUTHORITY_CHANGED).await;
        assert!(message.contains("rotateAuthorities"), "{message}");
        assert!(fleetwright_api::is_true(&status.conditions, names::READY), "{status:#?}");
        passes(
            &world,
            &format!("beside-{}", secrets.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap()),
        )
        .await;
        assert!(held(&world, "ca").await == changed, "it was overwritten");
        assert!(held(&world, "apiserver-tls").await == leaf, "it signed");
        assert_eq!(pods(&world).await, running);
        // What the message says.
        delete(&world, "ca").await;
        back(&world, &before).await;
        world.ready("pay").await;
    }
    assert_eq!(pods(&world).await, running);
    // Components that mount it read what came back, a moment later.
    world.until("the users are known as before", async || users.are_known(&world).await).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_somebody_changes_is_neither_used_nor_overwritten() {
    a_changed_authority_is_left_alone(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_somebody_changes_is_neither_used_nor_overwritten_on_real() {
    a_changed_authority_is_left_alone(ServerKind::Real).await;
}

async fn a_deleted_namespace_comes_back(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let before = all_held(&world).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let old = namespaces.get("fleet-pay").await.unwrap().uid();
    namespaces.delete("fleet-pay", &DeleteParams::default()).await.unwrap();
    if kind == ServerKind::Real {
        // The namespace controller starts after five seconds, and has a long backoff if pods and claims exist then.
        let soon = DeleteParams::default().grace_period(1);
        world.api::<PersistentVolumeClaim>("pay").delete_collection(&soon, &Default::default()).await.unwrap();
        world.api::<Pod>("pay").delete_collection(&soon, &Default::default()).await.unwrap();
    }
    world.seen(&namespaces, "fleet-pay", |now| now.uid() != old && now.metadata.deletion_timestamp.is_none()).await;
    back(&world, &before).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_deleted_comes_back_with_the_same_keys() {
    a_deleted_namespace_comes_back(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_deleted_comes_back_with_the_same_keys_on_real() {
    a_deleted_namespace_comes_back(ServerKind::Real).await;
}
