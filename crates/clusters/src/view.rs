//! The fields of watched objects that the caches keep.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use fleetwright_api::{Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, names};
use fleetwright_kit::View;
use fleetwright_pki::{Certificate, SealKey, fingerprint};
use fleetwright_plan::cluster::copied_secrets::digest;
use fleetwright_plan::cluster::extensions::EXTENSION;
use fleetwright_plan::cluster::keys::{Key, SEAL, SEAL_DATA, key_digest};
use fleetwright_plan::cluster::members::VolumeClaim;
use fleetwright_plan::cluster::objects::{PACKAGE_VERSION, TRUST_BUNDLE_HASH};
use fleetwright_plan::cluster::snapshots::SnapshotPod;
use fleetwright_plan::cluster::{LiveObject, Replica, content_hash};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Namespace, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::keys::Sealed;

/// Annotation of `kubectl apply`, which is as large as the object itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object with the label of its cluster.
pub trait ClusterOwned {
    /// The value of [`names::CLUSTER`].
    fn cluster(&self) -> Option<&str>;
}

fn owner(object: &impl ResourceExt) -> Option<Box<str>> {
    object.labels().get(names::CLUSTER).map(|name| name.as_str().into())
}

/// A Cluster, without fields that are not read.
#[derive(Clone, Debug)]
pub struct ClusterView(pub Cluster);

impl View for ClusterView {
    type Object = Cluster;

    fn of(mut object: Cluster) -> Self {
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        Self(object)
    }
}

/// A package version. Its spec is shared by all observed values of its clusters.
#[derive(Debug)]
pub struct PackageView {
    pub spec: Arc<ClusterPackageVersionSpec>,
    /// Its uid: another one of the same name can have another spec.
    pub uid: Box<str>,
}

impl View for PackageView {
    type Object = ClusterPackageVersion;

    fn of(object: ClusterPackageVersion) -> Self {
        Self { uid: object.uid().unwrap_or_default().into(), spec: Arc::new(object.spec) }
    }
}

/// The namespace of a control plane.
#[derive(Debug)]
pub struct NamespaceView {
    cluster: Option<Box<str>>,
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// The value of [`names::CREATION_PROOF`].
    pub proof: Option<Box<str>>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether the namespace is terminating.
    pub ending: bool,
}

impl View for NamespaceView {
    type Object = Namespace;

    fn of(object: Namespace) -> Self {
        Self {
            cluster: owner(&object),
            uid: object.uid().unwrap_or_default().into(),
            version: object.resource_version().unwrap_or_default().into(),
            proof: object.annotations().get(names::CREATION_PROOF).map(|proof| proof.as_str().into()),
            created: object.creation_timestamp().map_or(Timestamp::MIN, |time| time.0),
            ending: object.metadata.deletion_timestamp.is_some(),
        }
    }
}

impl ClusterOwned for NamespaceView {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// A RoleBinding of the operator in the namespace of a control plane.
#[derive(Debug)]
pub struct BindingView {
    cluster: Option<Box<str>>,
}

impl View for BindingView {
    type Object = RoleBinding;

    fn of(object: RoleBinding) -> Self {
        Self { cluster: owner(&object) }
    }
}

impl ClusterOwned for BindingView {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// An object of a cluster.
#[derive(Debug)]
pub struct ObjectView<K> {
    cluster: Option<Box<str>>,
    /// The object as text.
    pub said: RawObject,
    kind: PhantomData<fn() -> K>,
}

/// An object as text: smaller than a parsed one, and parsed only in a pass of its cluster.
#[derive(Debug)]
pub struct RawObject {
    text: Box<str>,
    /// Content hash of the object.
    pub print: u64,
    /// The package version of the object, if it is a workload.
    pub package: Option<Box<str>>,
    /// The extension that the object belongs to, if it belongs to one.
    extension: Option<Box<str>>,
}

impl RawObject {
    /// The object as JSON, without status and metadata of the server.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

impl<K> View for ObjectView<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    type Object = K;

    fn of(mut object: K) -> Self {
        let cluster = owner(&object);
        object.meta_mut().managed_fields = None;
        let mut value = serde_json::to_value(&object).unwrap_or_default();
        let kept = |value: &Value| -> Value {
            let metadata = &value["metadata"];
            serde_json::json!({
                "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
                "labels": metadata["labels"], "annotations": metadata["annotations"],
                "generation": metadata["generation"],
            })
        };
        let metadata = kept(&value);
        if let Some(object) = value.as_object_mut() {
            object.insert("metadata".to_owned(), metadata);
            object.insert("apiVersion".to_owned(), K::api_version(&()).into());
            object.insert("kind".to_owned(), K::kind(&()).into());
            // The status of a Service has its load-balancer address, and that of an extension's object tells whether the extension works.
            let extension = !object["metadata"]["labels"][EXTENSION].is_null();
            if K::kind(&()) != "Service" && !extension {
                object.remove("status");
            }
        }
        let text: Box<str> = value.to_string().into();
        let package = package(&value).map(Into::into);
        let extension = value["metadata"]["labels"][EXTENSION].as_str().map(Into::into);
        Self { cluster, said: RawObject { print: content_hash(&text), text, package, extension }, kind: PhantomData }
    }
}

/// The package version of a workload.
pub fn package(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][PACKAGE_VERSION].as_str()
}

impl<K: Debug> LiveObject for ObjectView<K> {
    fn value(&self) -> Value {
        self.said.value()
    }

    fn print(&self) -> u64 {
        self.said.print
    }

    fn extension(&self) -> Option<&str> {
        self.said.extension.as_deref()
    }
}

impl<K> ClusterOwned for ObjectView<K> {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// A Secret, without secret data.
#[derive(Debug)]
pub struct SecretView {
    cluster: Option<Box<str>>,
    pub uid: Box<str>,
    /// The certificate in `tls.crt`.
    pub certificate: Option<Certificate>,
    /// Whether the key in `tls.key` belongs to the certificate.
    pub key_matches: bool,
    /// The content of `ca.crt`.
    pub trusts: Option<Box<str>>,
    /// When the first of the authorities in `ca.crt` expires, in seconds since 1970, if the Secret holds an authority.
    pub first_end: Option<i64>,
    /// The keys of its data.
    pub keys: Box<[Box<str>]>,
    /// The digest of its content, if it is a copy of a person's Secret.
    pub copy: Option<Box<str>>,
    /// The fingerprint and the digest of the key in it, if the Secret has the name of a key's Secret.
    pub key: Option<(Box<str>, Box<str>)>,
    /// The annotation about the keys that are sealed in it.
    pub sealed: Option<Sealed>,
    /// The id of the key that seals copies, if the Secret holds that key.
    pub seal: Option<Box<str>>,
}

impl View for SecretView {
    type Object = Secret;

    fn of(object: Secret) -> Self {
        let cluster = owner(&object);
        let copied = object.annotations().contains_key(names::SOURCE_HASH);
        let sealed = object.annotations().get(names::SEALED).and_then(|says| serde_json::from_str(says).ok());
        let name = object.name_any();
        let uid = object.metadata.uid.unwrap_or_default().into();
        let data = object.data.unwrap_or_default();
        let values = || data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice()));
        let copy = copied.then(|| digest(values()).into());
        let text = |key: &str| data.get(key).and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        let key = Key::of(&name).and_then(|key| {
            let fingerprint = fingerprint(text(key.public())?)?;
            Some((fingerprint.into(), key_digest(values()).into()))
        });
        let trusted = text("ca.crt").filter(|_| Key::of(&name).is_some()).unwrap_or_default();
        let trusted = trusted.split_inclusive("-----END CERTIFICATE-----").map(Certificate::from_pem);
        let first_end = trusted.filter_map(Result::ok).map(|one| one.not_after).min();
        let seal = data.get(SEAL_DATA).filter(|_| name == SEAL).and_then(|bytes| SealKey::from_bytes(&bytes.0));
        let certificate = text("tls.crt").and_then(|pem| Certificate::from_pem(pem).ok());
        let key_matches =
            certificate.as_ref().zip(text("tls.key")).is_some_and(|(certificate, key)| certificate.is_of_key(key));
        Self {
            cluster,
            uid,
            key_matches,
            trusts: text("ca.crt").map(Into::into),
            first_end,
            keys: data.iter().filter(|(_, bytes)| !bytes.0.is_empty()).map(|(key, _)| key.as_str().into()).collect(),
            certificate,
            copy,
            key,
            sealed,
            seal: seal.map(|seal| seal.id().into()),
        }
    }
}

impl ClusterOwned for SecretView {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// A pod of a control plane.
#[derive(Debug)]
pub struct PodView {
    cluster: Option<Box<str>>,
    /// The component that the pod runs.
    pub component: Option<Box<str>>,
    /// The fields that decisions need.
    pub replica: Replica,
    /// The grace period in seconds of a terminating pod.
    pub grace: Option<i64>,
    /// State of a pod that works on the cluster's data instead of a component.
    pub task: Option<Box<SnapshotPod>>,
}

impl View for PodView {
    type Object = Pod;

    fn of(object: Pod) -> Self {
        let cluster = owner(&object);
        let component = object.labels().get(names::COMPONENT).map(|name| name.as_str().into());
        let task = crate::snapshots::task(&object).map(Box::new);
        let template = object.annotations().get(names::APPLIED_HASH).cloned();
        let trusts = object.annotations().get(TRUST_BUNDLE_HASH).cloned();
        let serves = object.labels().get(names::SERVING).map(|value| value != "false");
        let (uid, version) = (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
        let grace = object.metadata.deletion_grace_period_seconds;
        let (name, ending) = (object.name_any(), object.metadata.deletion_timestamp.is_some());
        let image = object.spec.as_ref().and_then(|spec| spec.containers.first()).and_then(|one| one.image.clone());
        let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let status = object.status.unwrap_or_default();
        let container = status.container_statuses.iter().flatten().next();
        let conditions = status.conditions.iter().flatten();
        let ready = conditions.clone().any(|one| one.type_ == "Ready" && one.status == "True");
        let unplaced = conditions.clone().find(|one| one.type_ == "PodScheduled" && one.status == "False");
        let unready = conditions.clone().find(|one| one.type_ == "Ready" && one.status != "True");
        let unready_since = unready.and_then(|one| one.last_transition_time.as_ref()).map(|time| time.0);
        let looping = container
            .and_then(|one| one.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
            .is_some_and(|reason| reason == "CrashLoopBackOff");
        let message = match container {
            _ if ready => String::new(),
            Some(container) => why(container),
            None => unplaced.and_then(|one| one.message.clone()).unwrap_or_default(),
        };
        let replica = Replica {
            name,
            uid,
            version,
            ip: status.pod_ip.filter(|ip| !ip.is_empty()),
            node,
            template,
            trusts,
            runs: image.and_then(|image| fleetwright_api::ComponentPackage::of(image).version().map(str::to_owned)),
            ready,
            ending,
            has_run: container.is_some_and(has_run),
            restarts: container.map_or(0, |container| container.restart_count),
            message,
            lost: !ready && container.is_some_and(lost),
            serves,
            looping,
            was_ready: container.is_some_and(|container| was_ready(container, unready_since)),
            unplaced: unplaced.is_some(),
            unready_since: unready_since.filter(|_| unplaced.is_none()),
        };
        Self { cluster, component, replica, grace, task }
    }
}

impl ClusterOwned for PodView {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// A volume claim.
#[derive(Debug)]
pub struct ClaimView {
    cluster: Option<Box<str>>,
    /// The fields that decisions need.
    pub claim: VolumeClaim,
    /// Its StorageClass.
    pub class: Option<Box<str>>,
}

/// Whether a StorageClass allows expansion.
#[derive(Debug)]
pub struct ClassView(pub bool);

impl View for ClassView {
    type Object = StorageClass;

    fn of(object: StorageClass) -> Self {
        Self(object.allow_volume_expansion == Some(true))
    }
}

impl View for ClaimView {
    type Object = PersistentVolumeClaim;

    fn of(object: PersistentVolumeClaim) -> Self {
        let spec = object.spec.as_ref();
        let size = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let size = size.map(|size| size.0.clone());
        let claim = VolumeClaim {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            version: object.resource_version().unwrap_or_default(),
            ending: object.metadata.deletion_timestamp.is_some(),
            size: size.unwrap_or_default(),
            expandable: true,
        };
        let class = spec.and_then(|spec| spec.storage_class_name.as_deref()).map(Into::into);
        Self { cluster: owner(&object), claim, class }
    }
}

impl ClaimView {
    /// The claim, which can be expanded if its StorageClass allows it. The API server refuses to expand a claim without a class, or with a deleted
    /// class.
    pub fn with_class(&self, expands: impl Fn(&str) -> bool) -> VolumeClaim {
        VolumeClaim { expandable: self.class.as_deref().is_some_and(expands), ..self.claim.clone() }
    }
}

impl ClusterOwned for ClaimView {
    fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }
}

/// Whether the container does not run, and its last termination message shows that it lost its data. A container that runs again may have been added
/// to etcd since, and a termination message from before that proves nothing about its data now.
fn lost(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return false;
    }
    let mut ends = [state, container.last_state.as_ref()].into_iter().flatten();
    let last = ends.find_map(|state| state.terminated.as_ref());
    last.and_then(|end| end.message.as_deref()).is_some_and(fleetwright_plan::cluster::datastore::is_data_loss)
}

/// Whether the container was started at least once.
fn has_run(container: &ContainerStatus) -> bool {
    let mut states = [container.state.as_ref(), container.last_state.as_ref()].into_iter().flatten();
    container.restart_count > 0 || states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// Whether a container that is unready since then was ready before its last termination: otherwise it is unready since an earlier termination.
fn was_ready(container: &ContainerStatus, unready_since: Option<Timestamp>) -> bool {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let last = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
    let started = last.and_then(|end| end.started_at.as_ref()).map(|time| time.0);
    started.is_some_and(|started| unready_since.is_some_and(|since| since > started))
}

/// Why a container does not run, with limited length: its messages are not trusted.
fn why(container: &ContainerStatus) -> String {
    const MAX_LENGTH: usize = 200;
    let state = container.state.clone().unwrap_or_default();
    let last = container.last_state.clone().unwrap_or_default();
    let waiting = state.waiting.and_then(|waiting| {
        // For a crash loop, the kubelet's message is long and names only the pod: the container's termination message would not fit beside it.
        let crashes = waiting.reason.as_deref() == Some("CrashLoopBackOff");
        let message = waiting.message.filter(|message| !message.is_empty() && !crashes);
        waiting.reason.map(|reason| message.map_or(reason.clone(), |message| format!("{reason}: {message}")))
    });
    let ended = state.terminated.or(last.terminated).map(|ended| {
        let said = ended.message.as_deref().unwrap_or_default().trim().lines().last().unwrap_or_default().to_owned();
        format!("exited with {}: {said}", ended.exit_code)
    });
    let text = [waiting, ended].into_iter().flatten().collect::<Vec<_>>().join("; ");
    truncate_line(&text, MAX_LENGTH)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_container_said_before_its_last_end_says_nothing_of_its_data() {
        let of = |state: serde_json::Value| {
            let container: ContainerStatus = serde_json::from_value(json!({
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 2, "state": state,
                "lastState": { "terminated": { "exitCode": 1, "message": "member count is unequal" } },
            }))
            .unwrap();
            lost(&container)
        };
        assert!(of(json!({ "waiting": { "reason": "CrashLoopBackOff" } })));
        assert!(of(json!({ "terminated": { "exitCode": 2, "message": "panic: tocommit(7) is out of range" } })));
        assert!(!of(json!({ "terminated": { "exitCode": 137, "message": "killed" } })));
        assert!(!of(json!({ "terminated": { "exitCode": 137 } })));
        assert!(!of(json!({ "running": { "startedAt": "2026-11-18T00:00:00Z" } })));
    }

    #[test]
    fn a_container_whose_image_cannot_be_pulled_has_never_run() {
        let of = |restarts: i32, state: serde_json::Value, last: serde_json::Value| {
            let container: ContainerStatus = serde_json::from_value(json!({
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state, "lastState": last,
            }))
            .unwrap();
            has_run(&container)
        };
        let ended = || json!({ "terminated": { "exitCode": 1 } });
        for reason in ["ContainerCreating", "ImagePullBackOff", "CreateContainerConfigError"] {
            assert!(!of(0, json!({ "waiting": { "reason": reason } }), json!({})), "{reason}");
        }
        assert!(of(0, json!({ "running": { "startedAt": "2026-11-18T00:00:00Z" } }), json!({})));
        assert!(of(0, ended(), json!({})) && of(0, json!({ "waiting": { "reason": "CrashLoopBackOff" } }), ended()));
        assert!(of(1, json!({ "waiting": { "reason": "ImagePullBackOff" } }), json!({})), "it ran before");
    }

    #[test]
    fn a_container_that_ended_once_was_ready_before_and_one_that_ends_again_was_not() {
        let of = |since: &str| {
            let container: ContainerStatus = serde_json::from_value(json!({
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 6,
                "state": { "waiting": { "reason": "CrashLoopBackOff" } },
                "lastState": { "terminated": {
                    "exitCode": 1, "startedAt": "2026-11-18T00:01:00Z", "finishedAt": "2026-11-18T00:02:00Z",
                } },
            }))
            .unwrap();
            was_ready(&container, Some(since.parse().unwrap()))
        };
        assert!(of("2026-11-18T00:02:00Z"));
        assert!(!of("2026-11-18T00:01:00Z"));
        assert!(!of("2026-11-18T00:00:10Z"));
    }

    #[test]
    fn a_container_that_crashes_is_reported_with_its_own_message() {
        let back_off = "back-off 10s restarting failed container=kube-scheduler pod=kube-scheduler-6c8d9b7f5d-x2v7q_fleet-pay(0b0e6f0e-4c0e-4e55-9d6a-0c6c1f6f2b7a)";
        let container: ContainerStatus = serde_json::from_value(json!({
            "name": "kube-scheduler", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": back_off } },
            "lastState": { "terminated": { "exitCode": 1, "message": "it begins\nunrecognized feature gate: NoSuchGate\n" } },
        }))
        .unwrap();
        let told = why(&container);
        assert!(told.starts_with("CrashLoopBackOff") && !told.contains("back-off"), "{told}");
        assert!(told.ends_with(" 1: unrecognized feature gate: NoSuchGate"), "{told}");
    }
}
