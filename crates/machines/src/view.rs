//! What is kept of the objects that the operator watches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Machine, is_shared, names};
use fleetwright_kit::View;
use fleetwright_plan::join::{Binding, Joiner, RegisteredNode, bind};
use fleetwright_plan::package::NoSecret;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::join::view::address;

/// What kubectl leaves behind, which is as large as the object itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Machine, without what nobody reads.
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

    /// Whether the host that it was last seen on has its owner mark.
    pub fn has_host(&self) -> bool {
        let owner = self.0.status.as_ref().and_then(|status| status.host_owner.as_ref());
        owner.is_some_and(|owner| Some(&owner.uid) == self.0.metadata.uid.as_ref())
    }

    /// What joining looks at.
    pub fn joiner(&self, certified: Option<Timestamp>) -> Joiner {
        let Machine { metadata, spec, .. } = &self.0;
        Joiner {
            uid: metadata.uid.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            node: self.node().to_owned(),
            addresses: spec.addresses.clone(),
            deleted: metadata.deletion_timestamp.is_some(),
            paused: spec.paused,
            certified: certified.is_some(),
        }
    }

    /// Whether that Node is its own, see [`bind`].
    pub fn bind(&self, certified: Option<Timestamp>, node: Option<&NodeView>) -> Binding {
        let node = node.map(|node| RegisteredNode { uid: &node.uid, created: node.created });
        bind(&self.0, certified, self.node(), node)
    }

    /// The labels that the gate's scopes look at: its own, and where it stands.
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

/// What is kept of a Node.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Its uid.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its taints, as the API server has them; none if it has none.
    pub taints: Option<Box<Value>>,
    /// The value of our taint, if it has it.
    pub closed: Option<Box<str>>,
    /// Conditions, and whether each is True.
    pub conditions: Box<[(Arc<str>, bool)]>,
    /// The boot that its kubelet runs in.
    pub boot_id: Option<Box<str>>,
    /// Its kubelet's version.
    pub kubelet: Option<Box<str>>,
    /// Its labels.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The labels that we gave it.
    pub given: Option<Box<str>>,
    /// It has no annotations at all.
    pub bare: bool,
    /// Its addresses, as its kubelet reports them, in the one form in which they are compared.
    pub addresses: Box<[Box<str>]>,
}

impl View for NodeView {
    type Object = ThinNode;

    fn of(node: ThinNode) -> Self {
        node.view
    }
}

impl From<RawNode> for NodeView {
    fn from(RawNode { metadata, spec, status }: RawNode) -> Self {
        let annotations = metadata.annotations.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let taints = spec.unwrap_or_default().taints;
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
            given: annotations.get(names::NODE_LABELS).map(|text| text.as_str().into()),
            bare: annotations.is_empty(),
            addresses: status.addresses.into_iter().flatten().map(|one| address(&one.address).into()).collect(),
            taints: taints.map(Box::new),
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
    /// The API server alone writes it.
    creation_timestamp: Option<Timestamp>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct RawSpec {
    taints: Option<Value>,
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

/// The conditions that every Node has are kept once.
fn condition_name(name: &str) -> Arc<str> {
    use std::sync::OnceLock;
    static KNOWN: OnceLock<Vec<Arc<str>>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"].map(Arc::from).to_vec()
    });
    known.iter().find(|known| &***known == name).cloned().unwrap_or_else(|| name.into())
}

impl NodeView {
    /// Whether something changed that a decision looks at. Heartbeats are none.
    pub fn differs(&self, other: &Self) -> bool {
        self.uid != other.uid
            || self.taints != other.taints
            || self.conditions != other.conditions
            || self.boot_id != other.boot_id
            || self.kubelet != other.kubelet
            || self.labels != other.labels
            || self.given != other.given
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }

    /// Whether it has the labels that its machine declares, and none that we gave it and that it should not have any more.
    pub fn labelled(&self, machine: &Machine) -> bool {
        let wanted = &machine.spec.node_labels;
        wanted.iter().all(|(key, value)| self.label(key) == Some(value))
            && self.given().all(|key| wanted.contains_key(key))
            && (wanted.is_empty() || self.given.as_deref() == Some(&*names_of(wanted)))
    }

    fn given(&self) -> impl Iterator<Item = &str> {
        self.given.as_deref().unwrap_or_default().split(',').filter(|key| !key.is_empty())
    }

    /// The patch that gives it the labels that its machine declares, and takes back what we gave it before.
    pub fn label_patch(&self, machine: &Machine) -> Value {
        let wanted = &machine.spec.node_labels;
        let mut patch = vec![
            json!({ "op": "test", "path": "/metadata/uid", "value": &*self.uid }),
            json!({ "op": "test", "path": "/metadata/resourceVersion", "value": &*self.version }),
        ];
        if self.labels.is_empty() {
            patch.push(json!({ "op": "add", "path": "/metadata/labels", "value": {} }));
        }
        for key in self.given().filter(|key| !wanted.contains_key(*key) && self.label(key).is_some()) {
            patch.push(json!({ "op": "remove", "path": format!("/metadata/labels/{}", pointer(key)) }));
        }
        for (key, value) in wanted {
            patch.push(json!({ "op": "add", "path": format!("/metadata/labels/{}", pointer(key)), "value": value }));
        }
        let path = format!("/metadata/annotations/{}", pointer(names::NODE_LABELS));
        if wanted.is_empty() {
            if self.given.is_some() {
                patch.push(json!({ "op": "remove", "path": path }));
            }
        } else if self.bare {
            let annotations = json!({ names::NODE_LABELS: names_of(wanted) });
            patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": annotations }));
        } else {
            patch.push(json!({ "op": "add", "path": path, "value": names_of(wanted) }));
        }
        Value::Array(patch)
    }

    /// The patch that keeps new pods away. The taint says for which window, so that who continues knows it again.
    pub fn close_patch(&self, window: &str) -> Value {
        let mut patch = self.tests();
        let taint = json!({ "key": names::MAINTENANCE_TAINT, "value": window, "effect": "NoSchedule" });
        match self.ours().next() {
            Some(index) => {
                patch.push(json!({ "op": "replace", "path": format!("/spec/taints/{index}"), "value": taint }));
            }
            None if self.taints.is_some() => {
                patch.push(json!({ "op": "add", "path": "/spec/taints/-", "value": taint }));
            }
            None => patch.push(json!({ "op": "add", "path": "/spec/taints", "value": [taint] })),
        }
        Value::Array(patch)
    }

    /// The patch that lets pods come again. Only what we closed is opened: a person's cordon or taint stays.
    pub fn open_patch(&self) -> Value {
        let mut patch = self.tests();
        let ours: Vec<usize> = self.ours().collect();
        if ours.is_empty() {
            return json!([]);
        }
        for index in ours.into_iter().rev() {
            patch.push(json!({ "op": "remove", "path": format!("/spec/taints/{index}") }));
        }
        Value::Array(patch)
    }

    fn tests(&self) -> Vec<Value> {
        let mut patch = vec![json!({ "op": "test", "path": "/metadata/uid", "value": &*self.uid })];
        match &self.taints {
            Some(taints) => patch.push(json!({ "op": "test", "path": "/spec/taints", "value": taints })),
            // There is no test for what is not there.
            None => patch.push(json!({ "op": "test", "path": "/metadata/resourceVersion", "value": &*self.version })),
        }
        patch
    }

    fn ours(&self) -> impl Iterator<Item = usize> {
        let list = self.taints.as_deref().and_then(Value::as_array).into_iter().flatten();
        list.enumerate().filter(|(_, taint)| taint["key"] == names::MAINTENANCE_TAINT).map(|(index, _)| index)
    }
}

fn names_of(labels: &BTreeMap<String, String>) -> String {
    labels.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// A key as it is written in a JSON pointer.
fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// What is kept of a Secret: its contents, and with whom it is shared. Shows nothing of the contents when printed.
#[derive(Clone)]
pub struct SecretView {
    /// Its contents.
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
    /// A key of it, as text.
    pub fn text(&self, key: &str) -> Option<Arc<str>> {
        std::str::from_utf8(&self.data.get(key)?.0).ok().map(Into::into)
    }

    /// A key of it for the host of that Machine.
    ///
    /// # Errors
    /// There is no such key, or it is not shared with the Machine.
    pub fn content(&self, machine: &str, key: &str) -> Result<Vec<u8>, NoSecret> {
        if !is_shared(self.allowed.as_deref(), machine) {
            return Err(NoSecret::NotShared);
        }
        self.data.get(key).map(|bytes| bytes.0.clone()).ok_or(NoSecret::Missing)
    }
}

/// What is kept of a ConfigMap: its contents.
#[derive(Clone, Debug)]
pub struct MapView {
    /// Text.
    pub data: BTreeMap<String, String>,
    /// Anything else.
    pub binary: BTreeMap<String, ByteString>,
}

impl View for MapView {
    type Object = ConfigMap;

    fn of(object: ConfigMap) -> Self {
        Self { data: object.data.unwrap_or_default(), binary: object.binary_data.unwrap_or_default() }
    }
}

impl MapView {
    /// A key of it.
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
        assert_eq!((node.label("a"), node.given.as_deref(), node.bare), (Some("b"), Some("a"), false));
        assert_eq!(node.open_patch().as_array().map(Vec::len), Some(3), "two tests and what they allow");
    }

    #[test]
    fn a_node_with_hardly_anything_in_it_is_read() {
        let node: ThinNode = serde_json::from_value(json!({ "metadata": { "name": "n" } })).unwrap();
        let node = NodeView::of(node);
        assert!(node.bare && node.taints.is_none() && node.conditions.is_empty() && node.boot_id.is_none());
    }
}
