//! Compact views of the meta cluster's objects. Thousands of control planes share one process, so most objects are kept as text and parsed on demand.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::net::Ipv4Addr;

use fleetwright_kit::{Key, View};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, PodSpec, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The index of objects by the uid of their controller.
pub(super) const OWNER: &str = "owner";
/// The index of pods by their node; pods without one have the empty name.
pub(super) const NODE: &str = "node";
/// The index of objects by namespace.
pub(super) const NAMESPACE: &str = "namespace";
/// The index of pods by the Secrets, ConfigMaps and claims that they mount, see [`mounted`].
pub(super) const MOUNTED: &str = "mounted";

/// A whole object, as text.
pub(super) struct SerializedObject<K> {
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    pub(super) owner: Option<Owner>,
    pub(super) deleting: bool,
    text: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Debug for SerializedObject<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl<K> View for SerializedObject<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + Debug + Send + Sync + 'static,
{
    type Object = K;

    fn of(mut object: K) -> Self {
        object.meta_mut().managed_fields = None;
        let meta = object.meta();
        Self {
            uid: uid(meta),
            version: meta.resource_version.clone().unwrap_or_default().into(),
            owner: owner(meta),
            deleting: meta.deletion_timestamp.is_some(),
            text: serde_json::to_string(&object).unwrap_or_default().into(),
            kind: PhantomData,
        }
    }
}

impl<K: DeserializeOwned> SerializedObject<K> {
    /// Parses the object.
    pub(super) fn read(&self) -> K {
        // The text was serialized here from the same type.
        serde_json::from_str(&self.text).unwrap_or_else(|error| unreachable!("{error}: {}", self.text))
    }
}

/// The cached fields of a pod.
#[derive(Debug)]
pub(super) struct PodView {
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    pub(super) owner: Option<Owner>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) created: Timestamp,
    /// The deletion deadline and its grace period in seconds.
    pub(super) deleting: Option<(Timestamp, i64)>,
    pub(super) node: Option<Box<str>>,
    pub(super) ip: Option<Ipv4Addr>,
    /// `Succeeded` or `Failed`: the phase is final.
    pub(super) over: bool,
    /// Whether its containers were started.
    pub(super) running: bool,
    /// The time since when it is ready.
    pub(super) ready: Option<Timestamp>,
    /// The reported reason why it has no node.
    pub(super) unplaced: Option<Box<str>>,
    pub(super) hostname: Option<Box<str>>,
    pub(super) subdomain: Option<Box<str>>,
    pub(super) mounts: Box<[Box<str>]>,
    spec: Box<str>,
}

impl View for PodView {
    type Object = Pod;

    fn of(pod: Pod) -> Self {
        let meta = &pod.metadata;
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
        let ready = ready.filter(|condition| condition.status == "True");
        let placed = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
        let unplaced = placed.filter(|condition| condition.status == "False");
        let boxed = |text: &Option<String>| text.as_deref().map(Box::<str>::from);
        let phase = status.phase.as_deref().unwrap_or("Pending");
        Self {
            uid: uid(meta),
            version: meta.resource_version.clone().unwrap_or_default().into(),
            owner: owner(meta),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: meta
                .deletion_timestamp
                .as_ref()
                .map(|time| (time.0, meta.deletion_grace_period_seconds.unwrap_or_default())),
            node: boxed(&spec.node_name).filter(|node| !node.is_empty()),
            ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
            over: matches!(phase, "Succeeded" | "Failed"),
            running: phase == "Running",
            ready: ready.map(|ready| ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
            unplaced: unplaced.and_then(|condition| boxed(&condition.message)),
            hostname: boxed(&spec.hostname),
            subdomain: boxed(&spec.subdomain),
            mounts: mounts(&spec).into(),
            spec: serde_json::to_string(&spec).unwrap_or_default().into(),
            labels: pod.metadata.labels.unwrap_or_default(),
        }
    }
}

impl PodView {
    /// Parses the spec.
    pub(super) fn spec(&self) -> PodSpec {
        serde_json::from_str(&self.spec).unwrap_or_else(|error| unreachable!("{error}: {}", self.spec))
    }

    /// Whether the pod is neither finished nor terminating.
    pub(super) fn active(&self) -> bool {
        !self.over && self.deleting.is_none()
    }

    /// Whether it has been ready for this time; otherwise the time when it will have been.
    pub(super) fn available(&self, seconds: i32, now: Timestamp) -> Result<(), Option<Timestamp>> {
        let Some(since) = self.ready else { return Err(None) };
        let due = since + jiff::SignedDuration::from_secs(seconds.into());
        if seconds == 0 || due <= now { Ok(()) } else { Err(Some(due)) }
    }

    /// The values of the index [`MOUNTED`] for a pod.
    pub(super) fn mounted(key: &Key, pod: &Self) -> Vec<String> {
        pod.mounts.iter().map(|mount| format!("{}/{mount}", key.namespace)).collect()
    }
}

/// The value of the index [`MOUNTED`] for an object of this kind.
pub(super) fn mounted(kind: &str, key: &Key) -> String {
    format!("{}/{kind}/{}", key.namespace, key.name)
}

/// The mounted objects of a pod, as kind and name.
fn mounts(spec: &PodSpec) -> Vec<Box<str>> {
    let mut found = Vec::new();
    let mut add = |kind: &str, name: Option<&str>| {
        if let Some(name) = name {
            found.push(format!("{kind}/{name}").into());
        }
    };
    for volume in spec.volumes.iter().flatten() {
        add(SECRET, volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()));
        add(MAP, volume.config_map.as_ref().map(|source| &*source.name));
        add(CLAIM, volume.persistent_volume_claim.as_ref().map(|source| &*source.claim_name));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            add(SECRET, source.secret.as_ref().map(|source| &*source.name));
            add(MAP, source.config_map.as_ref().map(|source| &*source.name));
        }
    }
    found
}

pub(super) const SECRET: &str = "secret";
pub(super) const MAP: &str = "configmap";
pub(super) const CLAIM: &str = "claim";

/// The version of an object without its content, which is read when a pod needs it.
#[derive(Debug)]
pub(super) struct VersionOnly<K> {
    pub(super) version: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K> View for VersionOnly<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    type Object = PartialObjectMeta<K>;

    fn of(object: PartialObjectMeta<K>) -> Self {
        Self { version: object.resource_version().unwrap_or_default().into(), kind: PhantomData }
    }
}

pub(super) type SecretVersion = VersionOnly<Secret>;
pub(super) type ConfigMapVersion = VersionOnly<ConfigMap>;

/// The cached fields of a volume claim.
#[derive(Debug)]
pub(super) struct ClaimView {
    pub(super) uid: Box<str>,
    pub(super) version: Box<str>,
    pub(super) bound: bool,
    pub(super) deleting: bool,
    /// The requested size.
    pub(super) size: Option<Box<str>>,
    pub(super) modes: Vec<String>,
}

impl View for ClaimView {
    type Object = PersistentVolumeClaim;

    fn of(claim: PersistentVolumeClaim) -> Self {
        let spec = claim.spec.unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
        Self {
            uid: uid(&claim.metadata),
            version: claim.metadata.resource_version.unwrap_or_default().into(),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            bound: claim.status.and_then(|status| status.phase).as_deref() == Some("Bound"),
            size: requests.get("storage").map(|size| size.0.as_str().into()),
            modes: spec.access_modes.unwrap_or_default(),
        }
    }
}

fn uid(meta: &ObjectMeta) -> Box<str> {
    meta.uid.clone().unwrap_or_default().into()
}

/// The controller reference of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    kind: Box<str>,
    name: Box<str>,
    pub(super) uid: Box<str>,
}

impl Owner {
    /// The key of the controller, if it has this kind.
    pub(super) fn key<K: Resource<DynamicType = ()>>(&self, of: &Key) -> Option<Key> {
        (*self.kind == *K::kind(&())).then(|| Key::new(&of.namespace, &self.name))
    }
}

fn owner(meta: &ObjectMeta) -> Option<Owner> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(Owner { kind: owner.kind.as_str().into(), name: owner.name.as_str().into(), uid: owner.uid.as_str().into() })
}

/// The value of the index [`OWNER`].
pub(super) fn by_owner<K>(_: &Key, view: &SerializedObject<K>) -> Vec<String> {
    view.owner.iter().map(|owner| owner.uid.to_string()).collect()
}
