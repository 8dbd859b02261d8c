use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Span, text};

/// One host: what it is, how it is reached, what it must carry, and the state it is in.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "Machine",
    namespaced,
    status = "MachineStatus",
    shortname = "ma",
    category = "fleet",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("a machine's name is at most 63 characters long, because reports and Nodes carry it in a label: choose a shorter one"),
    validation = Rule::new(
        "(has(self.spec.hostname) ? self.spec.hostname : self.metadata.name) == (has(oldSelf.spec.hostname) ? oldSelf.spec.hostname : oldSelf.metadata.name)"
    )
        .message("a machine does not become another host (without hostname it is the one of the machine's name): delete the machine and make a new one")
        .field_path(".spec.hostname")
        .reason(Reason::FieldValueForbidden),
    printcolumn = r#"{"name": "Role", "type": "string", "jsonPath": ".spec.role"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Packages", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"PackagesReady\")].status"}"#,
    printcolumn = r#"{"name": "Schedulable", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Schedulable\")].status"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".status.nodeRef.name"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Address", "type": "string", "jsonPath": ".spec.addresses[0]", "priority": 1}"#,
    printcolumn = r#"{"name": "Zone", "type": "string", "jsonPath": ".spec.hardware.zone", "priority": 1}"#,
    printcolumn = r#"{"name": "OS", "type": "string", "jsonPath": ".status.facts.os", "priority": 1}"#,
    printcolumn = r#"{"name": "Kernel", "type": "string", "jsonPath": ".status.facts.kernel", "priority": 1}"#,
    printcolumn = r#"{"name": "Reachable", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Reachable\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "UpToDate", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"UpToDate\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Shape", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"InShape\")].reason", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)")
    .message("a host keeps the provider's name that its Node carries: put the old one back, or delete the machine and make a new one")
    .field_path(".providerID")
    .reason(Reason::FieldValueForbidden))]
pub struct MachineSpec {
    /// What the machine is for.
    #[serde(default)]
    pub role: Role,
    /// The host's name, which is also the name of its Node. The machine's name if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::host_name")]
    pub hostname: Option<String>,
    /// Addresses of the host, IP or DNS name; the first is used to reach it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::addresses")]
    pub addresses: Vec<String>,
    /// What the hardware is and where it stands.
    #[serde(default)]
    pub hardware: Hardware,
    /// How the host is reached. A machine without it is observed only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,
    /// The package versions the host must carry, one for each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub packages: Vec<PackageRef>,
    /// Labels that the Node gets, besides its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    #[x_kube(validation = Rule::new("!self.exists(key, key in ['kubernetes.io/hostname', 'kubernetes.io/os', 'kubernetes.io/arch'])")
        .message("kubernetes.io/hostname, os and arch are set by the kubelet, from what the host is: leave them out")
        .reason(Reason::FieldValueForbidden))]
    pub node_labels: BTreeMap<String, String>,
    /// The provider's name for the host, which its Node carries, such as `bare://rack-3/host-17`. Cannot be changed once it is set.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::provider_id")]
    pub provider_id: Option<String>,
    /// Taints that the Node is meant to have. They do not count against its being schedulable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_owned(), "effect".to_owned()]))]
    pub taints: Vec<Taint>,
    /// What is done about a host that no longer is as declared.
    #[serde(default)]
    pub drift: Drift,
    /// What happens to the host when the machine is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// While true nothing is done to the host or its Node; the status is kept up to date.
    #[serde(default)]
    pub paused: bool,
    /// How pods are evicted from the Node before something that disrupts them.
    #[serde(default)]
    pub drain: DrainOptions,
}

/// How pods are evicted from a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainOptions {
    /// The grace period of every pod that is evicted, instead of its own `terminationGracePeriodSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub grace_period: Option<Span>,
    /// Also evict pods without a controller, which no one creates again elsewhere.
    #[serde(default)]
    pub force: bool,
    /// A pod whose eviction is still refused that long after the window started is deleted, whatever its disruption budget says.
    /// Never, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub delete_after: Option<Span>,
    /// A pod that is still terminating that long after its grace period ended is not waited for: its kubelet or container runtime
    /// does not work, or a finalizer is stuck.
    #[serde(default = "DrainOptions::default_skip_terminating_after")]
    #[x_kube(validation = text::positive())]
    pub skip_terminating_after: Span,
}

impl DrainOptions {
    fn default_skip_terminating_after() -> Span {
        Span::minutes(5)
    }
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            grace_period: None,
            force: false,
            delete_after: None,
            skip_terminating_after: Self::default_skip_terminating_after(),
        }
    }
}

/// What a machine is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// It runs workloads.
    #[default]
    Worker,
    /// It runs control planes.
    ControlPlane,
}

/// What is done about drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Drift {
    /// It is repaired.
    #[default]
    Repair,
    /// It is reported.
    Report,
}

/// What happens to the host of a deleted machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// It is drained and its packages are removed.
    #[default]
    Uninstall,
    /// It is left as it is.
    Orphan,
}

/// What the hardware is and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// Serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::line")]
    pub serial: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::line")]
    pub model: Option<String>,
    /// The rack it stands in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub rack: Option<String>,
    /// The zone it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub zone: Option<String>,
    /// Anything else worth knowing about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub labels: BTreeMap<String, String>,
}

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.hostKeys.policy != 'Pinned' || (has(self.hostKeys.keys) && self.hostKeys.keys.size() > 0)")
    .message("pinned host keys must be listed: put what ssh-keyscan prints for the host here, or set policy to TrustOnFirstUse")
    .field_path(".hostKeys.keys")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("self.hostKeys.policy == 'Pinned' || !has(self.hostKeys.keys) || self.hostKeys.keys.size() == 0")
    .message("keys that are known need no first use: leave keys out, or set policy to Pinned")
    .field_path(".hostKeys.keys")
    .reason(Reason::FieldValueForbidden))]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// The port of its SSH server.
    #[serde(default = "Ssh::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The user to log in as: root, or one with passwordless sudo.
    #[serde(default = "Ssh::default_user")]
    #[schemars(schema_with = "text::user")]
    pub user: String,
    /// The Secret, in the same namespace, with the private key (`ssh-privatekey`) and, if there is one, its OpenSSH
    /// certificate (`ssh-certificate`).
    pub key_ref: SecretRef,
    /// Which host keys are trusted.
    #[serde(default)]
    pub host_keys: HostKeys,
    /// Hosts on the way, the first to be reached first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub jumps: Vec<Jump>,
}

/// A host on the way to another. Its key is always pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.hostKeys.size() > 0")
    .message("the keys of a host on the way must be listed, it is never trusted at first use: put what ssh-keyscan prints for it here")
    .field_path(".hostKeys")
    .reason(Reason::FieldValueRequired))]
pub struct Jump {
    /// IP address or DNS name.
    #[schemars(schema_with = "text::address")]
    pub address: String,
    /// The port of its SSH server.
    #[serde(default = "Ssh::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The user to log in as.
    #[serde(default = "Ssh::default_user")]
    #[schemars(schema_with = "text::user")]
    pub user: String,
    /// The Secret with the private key; that of the machine itself if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ref: Option<SecretRef>,
    /// Its host keys, as in a `known_hosts` file, without the host.
    #[schemars(schema_with = "text::host_keys")]
    pub host_keys: Vec<String>,
}

impl Ssh {
    fn default_port() -> u16 {
        22
    }

    fn default_user() -> String {
        "root".to_owned()
    }
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct SecretRef {
    /// Its name.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
}

/// Which host keys are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostKeys {
    /// How trust begins.
    #[serde(default)]
    pub policy: HostKeyPolicy,
    /// The keys of a pinned host, as in a `known_hosts` file, without the host: `ssh-ed25519 AAAA…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::host_keys")]
    pub keys: Vec<String>,
}

/// How trust in a host's key begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HostKeyPolicy {
    /// Only the keys listed.
    #[default]
    Pinned,
    /// The key seen first is pinned.
    TrustOnFirstUse,
}

/// The package version that a component must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageRef {
    /// The component, such as `kubelet`.
    #[schemars(schema_with = "text::dns_label")]
    pub component: String,
    /// The MachinePackageVersion, in the same namespace.
    #[schemars(schema_with = "text::object_name")]
    #[serde(rename = "ref")]
    pub ref_: String,
}

/// A taint of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    #[schemars(schema_with = "text::label_key")]
    #[x_kube(validation = Rule::new("self != 'fleetwright.io/maintenance'")
        .message("the taint fleetwright.io/maintenance is set and removed while a machine is worked on: leave it out")
        .reason(Reason::FieldValueForbidden))]
    #[x_kube(validation = Rule::new("self != 'fleetwright.io/unready'")
        .message("the taint fleetwright.io/unready is set and removed by the gates alone: leave it out, or write ReadinessGates")
        .reason(Reason::FieldValueForbidden))]
    pub key: String,
    /// Its value.
    #[serde(default)]
    #[schemars(schema_with = "text::label_value")]
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New ones are kept away.
    NoSchedule,
    /// New ones are kept away if there is room elsewhere.
    PreferNoSchedule,
    /// Those there leave, too.
    NoExecute,
}

/// What is seen of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// The generation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Where in its life the machine is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What the host says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// The state of each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub components: Vec<Component>,
    /// What holds and what does not, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// What is being done to the host right now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// When the host was last found not to be as declared, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_drift: Option<LastDrift>,
    /// When it is looked at from end to end, if nothing happens before, and from then on every `checkEvery`: that a look found nothing
    /// new is not written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Timestamp>,
    /// How often it is looked at though nothing happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_every: Option<Span>,
    /// Who the host belongs to, as its owner mark says; none if nobody claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_owner: Option<HostOwner>,
    /// The boot that the host must leave: a reboot was due in it and the host did not come back within `timeouts.reboot`. Cleared when
    /// the host is seen in another boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reboot_due_from: Option<String>,
    /// The host keys that are trusted since their first use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::host_keys")]
    pub host_keys: Vec<String>,
    /// The value of the annotation `fleetwright.io/retry` that was last followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub retried: Option<String>,
    /// The value of the annotation `fleetwright.io/adopt-host` that was last followed. It is not followed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub adopted: Option<String>,
    /// The Node that is bound to this machine, by uid. Nothing is done to any other Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// When the machine's own bootstrap token first requested the client certificate of its Node, which was approved. A Node of the machine's
    /// name that was created later is bound to the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_at: Option<Timestamp>,
    /// The digest of the authorities of the API server that its kubelet joined with, as `cluster-values` had them in `caBundle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub trusts: Option<String>,
    /// When all gates held for the first time, and for which Node. From then on gates with `when: Bootstrap` no longer count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrapped: Option<Bootstrapped>,
}

/// Where in its life a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nobody uses it.
    Idle,
    /// It was given to a cluster.
    Claimed,
    /// It is being brought to its packages.
    Converging,
    /// It is as declared.
    Ready,
    /// Something of it does not work.
    Degraded,
    /// It is being repaired.
    Repairing,
    /// It is leaving its cluster.
    Leaving,
    /// It does not answer.
    Lost,
}

/// Who a host belongs to, as its owner mark says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostOwner {
    /// The API server that has the Machine: the uid of its namespace kube-system.
    #[schemars(length(max = 253))]
    pub cluster: String,
    /// The Machine's namespace.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The Machine's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The Machine's uid.
    #[schemars(length(max = 253))]
    pub uid: String,
    /// How often the host changed hands: 1 for who claimed it, one more with each adoption.
    #[schemars(range(min = 0))]
    pub epoch: i64,
}

impl HostOwner {
    /// The value of the annotation `fleetwright.io/adopt-host` that claims a host whose packages an earlier version installed, and that never
    /// had an owner.
    pub const UNCLAIMED: &str = "unclaimed";

    /// The value of the annotation `fleetwright.io/adopt-host` that takes the host from exactly this owner in this epoch. What follows after
    /// another slash, such as the time, tells one request from the next.
    pub fn adoption(&self) -> String {
        format!("{}/{}/{}", self.cluster, self.uid, self.epoch)
    }
}

/// What is being done to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepProgress {
    /// What, for people: `install kubelet 1.37.1`.
    #[schemars(length(max = 256))]
    pub step: String,
    /// The id under which the host remembers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub id: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// How far it is.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// When a host was found not to be as declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastDrift {
    /// When.
    pub at: Timestamp,
    /// Whether it was put right.
    #[serde(default)]
    pub repaired: bool,
    /// How often in a row, each soon after the last: the host fights back.
    #[serde(default)]
    pub repeats: u32,
    /// What was found; the first ones if they are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub items: Vec<DriftItem>,
}

/// One thing that was not as declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftItem {
    /// Of which component.
    #[schemars(length(max = 63))]
    pub component: String,
    /// What.
    #[schemars(length(max = 1024))]
    pub what: String,
    /// How it was.
    #[schemars(length(max = 1024))]
    pub found: String,
    /// How it should have been.
    #[schemars(length(max = 1024))]
    pub wanted: String,
}

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Operating system, such as `debian-12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub os: Option<String>,
    /// Running kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub kernel: Option<String>,
    /// Architecture, such as `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub arch: Option<String>,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub memory: Option<String>,
    /// Changes with every boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub boot_id: Option<String>,
}

/// The state of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Which.
    #[schemars(length(min = 1, max = 63))]
    pub component: String,
    /// The version it should have; none while it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desired: Option<String>,
    /// The version it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed: Option<String>,
    /// What is happening to it.
    pub state: ComponentState,
    /// Since when.
    pub since: Timestamp,
    /// What a person should know.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// The digest of the rendered package that did not work. It is not tried again until another is asked for or a person says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub failed: Option<String>,
    /// The rollback after the failure of `failed`: which version the host carries instead, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// What of the installed package was rendered (files, units, scripts), each with the beginning of its digest: a declared package
    /// of the same version whose inputs differ is a change. Of files from Secrets there is no digest, because short secrets could be guessed from it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::inputs")]
    pub inputs: BTreeMap<String, String>,
    /// How many changes were tried, so that each has an id of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<u32>,
}

/// An earlier version that was restored because the declared version failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// The restored version.
    #[schemars(length(max = 256))]
    pub version: String,
    /// The digest of the restored package, as the host keeps it.
    #[schemars(length(max = 64))]
    pub digest: String,
    /// When the host had restored it.
    pub at: Timestamp,
    /// Why the declared version failed.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub why: String,
}

/// What is happening to a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentState {
    /// It waits for something.
    Pending,
    /// It is being installed.
    Installing,
    /// It is being brought to a newer version.
    Upgrading,
    /// It is being brought back to an older version.
    Downgrading,
    /// It is being removed.
    Removing,
    /// It is as declared and healthy.
    Ready,
    /// It is no longer as declared.
    Drifted,
    /// It does not work.
    Failed,
    /// A change failed, and the version that worked before is restored and healthy.
    RolledBack,
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct NodeRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub uid: Option<String>,
    /// How the Node was bound to the machine. A reference without it was written by an earlier version, and binds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<NodeBinding>,
}

/// How a Node was bound to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeBinding {
    /// It registered after the machine's own bootstrap token got its client certificate.
    Joined,
    /// A person who may write `machines/status` bound it: `fleetwright machine bind-node`.
    Adopted,
}

impl MachineStatus {
    /// The uid of the bound Node.
    pub fn bound_uid(&self) -> Option<&str> {
        self.node_ref.as_ref().filter(|node| node.binding.is_some()).and_then(|node| node.uid.as_deref())
    }
}

/// When all gates held for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrapped {
    /// When.
    pub at: Timestamp,
    /// The uid of the Node: another Node of the same name starts over.
    #[schemars(length(min = 1, max = 128))]
    pub node_uid: String,
}
