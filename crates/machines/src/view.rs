//! The cached form of the objects that the operator watches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Machine, Taint, is_shared, names};
use fleetwright_kit::{JsonPatch, View};
use fleetwright_plan::join::{Binding, JoiningMachine, RegisteredNode, bind};
use fleetwright_plan::package::SecretUnavailable;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::join::view::address;

/// An annotation of kubectl that is as large as the object itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The generation of a Machine's spec, and whether the Machine is being deleted.
pub type SpecVersion = (Option<i64>, bool);

/// A Machine, without unused fields.
#[derive(Clone, Debug)]
pub struct MachineView(pub Machine);

impl View for MachineView {
    type Object = Machine;

    fn of(mut object: Machine) -> Self {
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        Self(object)
    }
}

impl MachineView {
    /// The name of its Node.
    pub fn node(&self) -> &str {
        let name = self.0.metadata.name.as_deref().unwrap_or_default();
        self.0.spec.hostname.as_deref().unwrap_or(name)
    }

    /// The version of the part that a person edits.
    pub fn edition(&self) -> SpecVersion {
        (self.0.metadata.generation, self.0.metadata.deletion_timestamp.is_some())
    }

    /// Whether the host of the last observation has its owner mark.
    pub fn has_host(&self) -> bool {
        let owner = self.0.status.as_ref().and_then(|status| status.host_owner.as_ref());
        owner.is_some_and(|owner| Some(&owner.uid) == self.0.metadata.uid.as_ref())
    }

    /// The inputs of the join decision.
    pub fn joiner(&self, certified: Option<Timestamp>) -> JoiningMachine {
        let Machine { metadata, spec, .. } = &self.0;
        JoiningMachine {
            uid: metadata.uid.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            node: self.node().to_owned(),
            addresses: spec.addresses.clone(),
            deleted: metadata.deletion_timestamp.is_some(),
            paused: spec.paused,
            certified: certified.is_some(),
        }
    }

    /// Whether that Node is the machine's own, see [`bind`].
    pub fn bind(&self, certified: Option<Timestamp>, node: Option<&NodeView>) -> Binding {
        let node = node.map(|node| RegisteredNode { uid: &node.uid, created: node.created });
        bind(&self.0, certified, self.node(), node)
    }

    /// The labels for the scopes of the gate: the machine's own, and its location.
    pub fn scopes(&self) -> BTreeMap<String, String> {
        let mut labels = self.0.metadata.labels.clone().unwrap_or_default();
        let hardware = &self.0.spec.hardware;
        for (key, value) in [("zone", &hardware.zone), ("rack", &hardware.rack)] {
            if let Some(value) = value {
                labels.entry(key.to_owned()).or_insert_with(|| value.clone());
            }
        }
        labels
    }
}

/// The cached fields of a Node.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Uid of the Node.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// Its taints, as the API server has them; none if it has none.
    pub taints: Option<Box<Value>>,
    /// The value of our taint, if the Node has it.
    pub closed: Option<Box<str>>,
    /// Conditions, and whether each is True.
    pub conditions: Box<[(Arc<str>, bool)]>,
    /// Boot id that its kubelet reported.
    pub boot_id: Option<Box<str>>,
    /// Version of its kubelet.
    pub kubelet: Option<Box<str>>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Whether it has the annotation in which earlier versions recorded the labels that they set.
    pub annotated: bool,
    /// Its addresses, as its kubelet reports them, in the one form in which they are compared.
    pub addresses: Box<[Box<str>]>,
    /// The provider id of its host.
    pub provider_id: Option<Box<str>>,
}

impl View for NodeView {
    type Object = ThinNode;

    fn of(node: ThinNode) -> Self {
        node.view
    }
}

impl From<RawNode> for NodeView {
    fn from(RawNode { metadata, spec, status }: RawNode) -> Self {
        let labels = metadata.labels.unwrap_or_default();
        let RawSpec { taints, provider_id } = spec.unwrap_or_default();
        let taints = taints.filter(|taints| taints.as_array().is_some_and(|list| !list.is_empty()));
        let list = taints.as_ref().and_then(Value::as_array);
        let ours = list.and_then(|list| list.iter().find(|taint| taint["key"] == names::MAINTENANCE_TAINT));
        let closed = ours.map(|taint| taint["value"].as_str().unwrap_or_default().into());
        let status = status.unwrap_or_default();
        let conditions = status.conditions.iter().flatten();
        let info = status.node_info.unwrap_or_default();
        let said = |text: String| Some(text).filter(|text| !text.is_empty()).map(String::into_boxed_str);
        Self {
            uid: metadata.uid.into(),
            version: metadata.resource_version.into(),
            created: metadata.creation_timestamp,
            closed,
            conditions: conditions.map(|one| (condition_name(&one.type_), one.status == "True")).collect(),
            boot_id: said(info.boot_id),
            kubelet: said(info.kubelet_version),
            labels: labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            annotated: metadata.annotations.is_some_and(|all| all.contains_key(names::NODE_LABELS)),
            addresses: status.addresses.into_iter().flatten().map(|one| address(&one.address).into()).collect(),
            taints: taints.map(Box::new),
            provider_id: said(provider_id),
        }
    }
}

/// A Node that decodes into its view. Kubelets can write timestamps that do not parse into their Nodes: unused fields are not decoded, so that
/// such a Node can still be closed, drained and deleted.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "self::RawNode")]
pub struct ThinNode {
    metadata: ObjectMeta,
    view: NodeView,
}

impl From<RawNode> for ThinNode {
    fn from(raw: RawNode) -> Self {
        let metadata = ObjectMeta {
            name: Some(raw.metadata.name.clone()),
            uid: Some(raw.metadata.uid.clone()),
            resource_version: Some(raw.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        };
        Self { metadata, view: raw.into() }
    }
}

impl Resource for ThinNode {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind(dt: &()) -> Cow<'_, str> {
        Node::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        Node::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        Node::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        Node::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
struct RawNode {
    metadata: RawMeta,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    /// Only the API server writes this timestamp.
    creation_timestamp: Option<Timestamp>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct RawSpec {
    taints: Option<Value>,
    #[serde(default, rename = "providerID")]
    provider_id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    conditions: Option<Vec<RawCondition>>,
    addresses: Option<Vec<RawAddress>>,
    node_info: Option<RawInfo>,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

#[derive(Deserialize)]
struct RawAddress {
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawInfo {
    #[serde(default, rename = "bootID")]
    boot_id: String,
    #[serde(default)]
    kubelet_version: String,
}

/// Interns the names of conditions that every Node has.
fn condition_name(name: &str) -> Arc<str> {
    use std::sync::OnceLock;
    static KNOWN: OnceLock<Vec<Arc<str>>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"].map(Arc::from).to_vec()
    });
    known.iter().find(|known| &***known == name).cloned().unwrap_or_else(|| name.into())
}

impl NodeView {
    /// Whether a field changed that a decision reads. Heartbeats do not count.
    pub fn differs(&self, other: &Self) -> bool {
        self.uid != other.uid
            || self.taints != other.taints
            || self.conditions != other.conditions
            || self.boot_id != other.boot_id
            || self.kubelet != other.kubelet
            || self.labels != other.labels
            || self.annotated != other.annotated
            || self.provider_id != other.provider_id
    }

    /// The patch that sets these labels and removes others, by their keys. All other labels stay.
    pub fn label_patch(&self, set: &BTreeMap<String, String>, remove: &[String]) -> JsonPatch {
        let mut patch = JsonPatch::new().test_uid(&self.uid).test_version(&self.version);
        if self.labels.is_empty() {
            patch = patch.add(&["metadata", "labels"], json!({}));
        }
        for key in remove {
            patch = patch.remove(&["metadata", "labels", key]);
        }
        for (key, value) in set {
            patch = patch.add(&["metadata", "labels", key], value);
        }
        if self.annotated {
            patch = patch.remove(&["metadata", "annotations", names::NODE_LABELS]);
        }
        patch
    }

    /// The patch that keeps new pods away. The taint names its window, so that another process recognizes it.
    pub fn close_patch(&self, window: &str) -> JsonPatch {
        let patch = self.tests();
        let taint = json!({ "key": names::MAINTENANCE_TAINT, "value": window, "effect": "NoSchedule" });
        match self.ours().next() {
            Some(index) => patch.replace(&["spec", "taints", &index.to_string()], taint),
            None if self.taints.is_some() => patch.add(&["spec", "taints", "-"], taint),
            None => patch.add(&["spec", "taints"], [taint]),
        }
    }

    /// The patch that allows pods again. Only our own taint is removed: a person's cordon or taint stays.
    pub fn open_patch(&self) -> JsonPatch {
        let ours: Vec<usize> = self.ours().collect();
        if ours.is_empty() {
            return JsonPatch::new();
        }
        let indices = ours.into_iter().rev();
        indices.fold(self.tests(), |patch, index| patch.remove(&["spec", "taints", &index.to_string()]))
    }

    /// The patch that sets these taints and removes others, by [`Taint::id`]. All other taints stay, in their order.
    pub fn taint_patch(&self, set: &[Taint], remove: &[String]) -> JsonPatch {
        let stale = |taint: Taint| {
            let id = taint.id();
            remove.contains(&id) || set.iter().any(|declared| declared.id() == id && *declared != taint)
        };
        let kept = |taint: &&Value| !Taint::deserialize(*taint).is_ok_and(stale);
        let mut taints: Vec<Value> = self.list().filter(kept).cloned().collect();
        let has = self.typed_taints();
        taints.extend(set.iter().filter(|declared| !has.contains(declared)).map(|taint| json!(taint)));
        self.tests().add(&["spec", "taints"], taints)
    }

    /// The patch that sets the provider id of a Node that has none.
    pub fn provider_patch(&self, id: &str) -> JsonPatch {
        JsonPatch::new().test_uid(&self.uid).add(&["spec", "providerID"], id)
    }

    /// Its taints, without those with an unknown effect.
    pub fn typed_taints(&self) -> Vec<Taint> {
        self.list().filter_map(|taint| Taint::deserialize(taint).ok()).collect()
    }

    fn tests(&self) -> JsonPatch {
        let patch = JsonPatch::new().test_uid(&self.uid);
        match &self.taints {
            Some(taints) => patch.test(&["spec", "taints"], taints),
            // JSON Patch has no test for an absent field.
            None => patch.test_version(&self.version),
        }
    }

    fn list(&self) -> impl Iterator<Item = &Value> {
        self.taints.as_deref().and_then(Value::as_array).into_iter().flatten()
    }

    fn ours(&self) -> impl Iterator<Item = usize> {
        self.list().enumerate().filter(|(_, taint)| taint["key"] == names::MAINTENANCE_TAINT).map(|(index, _)| index)
    }
}

/// The cached fields of a Secret: its contents, and with whom it is shared. Its debug output has none of the contents.
#[derive(Clone)]
pub struct SecretView {
    /// Contents of the Secret.
    pub data: BTreeMap<String, ByteString>,
    /// The annotation by which it is shared with Machines.
    allowed: Option<Box<str>>,
}

impl std::fmt::Debug for SecretView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretView({} keys)", self.data.len())
    }
}

impl View for SecretView {
    type Object = Secret;

    fn of(object: Secret) -> Self {
        let allowed = object.annotations().get(names::ALLOWED_MACHINES).map(|value| value.as_str().into());
        Self { data: object.data.unwrap_or_default(), allowed }
    }
}

impl SecretView {
    /// The content of a key, as text.
    pub fn text(&self, key: &str) -> Option<Arc<str>> {
        std::str::from_utf8(&self.data.get(key)?.0).ok().map(Into::into)
    }

    /// The content of a key for the host of that Machine.
    ///
    /// # Errors
    /// The key does not exist, or the Secret is not shared with the Machine.
    pub fn content(&self, machine: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable> {
        if !is_shared(self.allowed.as_deref(), machine) {
            return Err(SecretUnavailable::NotShared);
        }
        self.data.get(key).map(|bytes| bytes.0.clone()).ok_or(SecretUnavailable::Missing)
    }
}

/// The cached fields of a ConfigMap: its contents.
#[derive(Clone, Debug)]
pub struct ConfigMapView {
    /// Text contents.
    pub data: BTreeMap<String, String>,
    /// Binary contents.
    pub binary: BTreeMap<String, ByteString>,
}

impl View for ConfigMapView {
    type Object = ConfigMap;

    fn of(object: ConfigMap) -> Self {
        Self { data: object.data.unwrap_or_default(), binary: object.binary_data.unwrap_or_default() }
    }
}

impl ConfigMapView {
    /// The content of a key.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        let text = self.data.get(key).map(|text| text.clone().into_bytes());
        text.or_else(|| self.binary.get(key).map(|bytes| bytes.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_timestamps_that_do_not_parse_is_read() {
        let late = "9999-12-31T23:59:59Z";
        let taint = json!({ "key": names::MAINTENANCE_TAINT, "value": "w", "effect": "NoSchedule", "timeAdded": late });
        let node: ThinNode = serde_json::from_value(json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "a": "b" }, "annotations": { names::NODE_LABELS: "a" },
                "managedFields": [{ "manager": "kubelet", "operation": "Update", "time": late }],
            },
            "spec": { "podCIDR": "10.0.0.0/24", "taints": [taint] },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": late, "lastTransitionTime": late }],
                "addresses": [{ "type": "InternalIP", "address": "::ffff:10.0.0.1" }],
                "nodeInfo": { "bootID": "b", "kubeletVersion": "v1.36.0" },
            },
        }))
        .unwrap();
        assert_eq!((node.meta().name.as_deref(), node.meta().resource_version.as_deref()), (Some("n"), Some("7")));
        let node = NodeView::of(node);
        assert_eq!((&*node.uid, &*node.version, node.closed.as_deref()), ("u", "7", Some("w")));
        assert_eq!(node.created, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(node.conditions.iter().any(|(name, holds)| &**name == "Ready" && *holds));
        assert_eq!((node.boot_id.as_deref(), node.kubelet.as_deref()), (Some("b"), Some("v1.36.0")));
        assert_eq!(node.addresses.iter().map(|one| &**one).collect::<Vec<_>>(), ["10.0.0.1"]);
        assert!(node.labels.iter().any(|(key, value)| (&**key, &**value) == ("a", "b")) && node.annotated);
        assert_eq!(Value::from(node.open_patch()).as_array().map(Vec::len), Some(3), "two tests and what they allow");
    }

    #[test]
    fn a_patch_of_labels_changes_those_of_the_machine_alone() {
        let of = |metadata: Value| {
            NodeView::of(serde_json::from_value::<ThinNode>(json!({ "metadata": metadata })).unwrap())
        };
        let set = BTreeMap::from([("example.com/pool".to_owned(), "gpu".to_owned())]);
        let node = of(json!({
            "name": "n", "uid": "u", "resourceVersion": "7", "labels": { "old": "", "node-restriction.kubernetes.io/tier": "1" },
            "annotations": { names::NODE_LABELS: "node-restriction.kubernetes.io/tier" },
        }));
        let tests = json!([
            { "op": "test", "path": "/metadata/uid", "value": "u" },
            { "op": "test", "path": "/metadata/resourceVersion", "value": "7" },
        ]);
        let expected = json!([
            tests[0], tests[1],
            { "op": "remove", "path": "/metadata/labels/old" },
            { "op": "add", "path": "/metadata/labels/example.com~1pool", "value": "gpu" },
            { "op": "remove", "path": "/metadata/annotations/fleetwright.io~1node-labels" },
        ]);
        assert_eq!(Value::from(node.label_patch(&set, &["old".to_owned()])), expected);
        let expected = json!([
            tests[0], tests[1],
            { "op": "add", "path": "/metadata/labels", "value": {} },
            { "op": "add", "path": "/metadata/labels/example.com~1pool", "value": "gpu" },
        ]);
        let node = of(json!({ "name": "n", "uid": "u", "resourceVersion": "7" }));
        assert_eq!(Value::from(node.label_patch(&set, &[])), expected);
    }

    #[test]
    fn a_patch_of_taints_changes_those_of_the_machine_alone() {
        let taints = json!([
            { "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" },
            { "key": "gpu", "value": "no", "effect": "NoSchedule" },
            { "key": "gpu", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" },
            { "key": "old", "effect": "NoSchedule" },
            { "key": "odd", "effect": "NoSuchEffect" },
        ]);
        let node: ThinNode = serde_json::from_value(json!({
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "7" },
            "spec": { "taints": taints, "providerID": "bare://n" },
        }))
        .unwrap();
        let node = NodeView::of(node);
        assert_eq!(node.provider_id.as_deref(), Some("bare://n"));
        let set: Vec<Taint> = serde_json::from_value(json!([
            { "key": "gpu", "value": "yes", "effect": "NoSchedule" },
            { "key": "gpu", "effect": "NoExecute" },
        ]))
        .unwrap();
        let patch = Value::from(node.taint_patch(&set, &["old:NoSchedule".to_owned()]));
        let after = json!([taints[0], taints[2], taints[4], { "key": "gpu", "value": "yes", "effect": "NoSchedule" }]);
        assert_eq!(patch[1], json!({ "op": "test", "path": "/spec/taints", "value": taints }));
        assert_eq!(patch[2], json!({ "op": "add", "path": "/spec/taints", "value": after }));
    }

    #[test]
    fn a_node_with_hardly_anything_in_it_is_read() {
        let node: ThinNode = serde_json::from_value(json!({ "metadata": { "name": "n" } })).unwrap();
        let node = NodeView::of(node);
        assert!(!node.annotated && node.taints.is_none() && node.conditions.is_empty() && node.boot_id.is_none());
    }
}
