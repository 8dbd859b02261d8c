use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Span, text};

/// One host of the fleet: its hardware, SSH access and packages. Usually a Machine becomes one Node.
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
    printcolumn = r#"{"name": "InSync", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"InSync\")].reason", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)")
    .message("a host keeps the provider's name that its Node carries: put the old one back, or delete the machine and make a new one")
    .field_path(".providerID")
    .reason(Reason::FieldValueForbidden))]
pub struct MachineSpec {
    /// What the machine is used for.
    #[serde(default)]
    pub role: Role,
    /// Name of the host and of its Node. If omitted, the name of the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::host_name")]
    pub hostname: Option<String>,
    /// IP addresses or DNS names of the host. The first one is used to connect to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::addresses")]
    pub addresses: Vec<String>,
    /// Hardware and location of the host.
    #[serde(default)]
    pub hardware: Hardware,
    /// SSH access to the host. If omitted, the machine is only observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,
    /// Package versions that must be installed on the host, one for each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub packages: Vec<PackageRef>,
    /// Labels that the operator sets on the Node, in addition to the Node's own labels.
    /// A missing label is set again; a label that is removed from this list is removed from the Node.
    /// A label that somebody else set on the Node before it was listed is not changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    #[x_kube(validation = Rule::new("!self.exists(key, key in ['kubernetes.io/hostname', 'kubernetes.io/os', 'kubernetes.io/arch'])")
        .message("kubernetes.io/hostname, os and arch are set by the kubelet, from what the host is: leave them out")
        .reason(Reason::FieldValueForbidden))]
    pub node_labels: BTreeMap<String, String>,
    /// Provider ID of the host, such as `bare://rack-3/host-17`; its Node has it in `spec.providerID`. It cannot be changed once it is set.
    /// If it is set later, a Node without a provider ID gets it.
    /// A Node that has another one keeps it, and the condition `UpToDate` has the reason `ProviderIDMismatch`.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::provider_id")]
    pub provider_id: Option<String>,
    /// Taints that the operator sets on the Node. A missing taint is set again; a taint that is removed from this list is removed from the Node.
    /// These taints do not make the machine count as unschedulable. A taint that somebody else set on the Node before it was listed is not changed.
    /// Taints below `node.kubernetes.io/` and `node.cloudprovider.kubernetes.io/` are set and removed only by Kubernetes.
    /// Put a taint that an agent removes when it runs into the package of the kubelet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_owned(), "effect".to_owned()]))]
    pub taints: Vec<Taint>,
    /// What the operator does about drift of the host.
    #[serde(default)]
    pub drift: Drift,
    /// What happens to the host when the Machine is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// If true, the operator changes nothing on the host or its Node. It keeps the status up to date.
    #[serde(default)]
    pub paused: bool,
    /// How pods are evicted from the Node before a disruption.
    #[serde(default)]
    pub drain: DrainOptions,
}

/// How pods are evicted from a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainOptions {
    /// Grace period of every evicted pod. If omitted, each pod's own `terminationGracePeriodSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub grace_period: Option<Span>,
    /// Also evicts pods without a controller, which are not recreated on another Node.
    #[serde(default)]
    pub force: bool,
    /// Time after the start of the window after which a pod is deleted if its eviction is still refused, even if this violates its disruption budget.
    /// If omitted, such a pod is never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub delete_after: Option<Span>,
    /// Time after the end of a pod's grace period after which the drain no longer waits for the pod if it is still terminating.
    /// Its kubelet or container runtime does not work, or a finalizer blocks it.
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

/// Role of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// It runs workloads.
    #[default]
    Worker,
    /// It runs control planes.
    ControlPlane,
}

/// How drift is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Drift {
    /// The operator repairs the drift.
    #[default]
    Repair,
    /// The operator only reports the drift.
    Report,
}

/// What happens to the host of a deleted Machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// The host is drained and its packages are removed.
    #[default]
    Uninstall,
    /// The host is left unchanged.
    Orphan,
}

/// Hardware and location of a host.
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
    /// Rack of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub rack: Option<String>,
    /// Zone of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub zone: Option<String>,
    /// Additional information about the host, as labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub labels: BTreeMap<String, String>,
}

/// SSH access to a host.
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
    /// Port of the SSH server.
    #[serde(default = "Ssh::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// User to log in as: root, or a user with passwordless sudo.
    #[serde(default = "Ssh::default_user")]
    #[schemars(schema_with = "text::user")]
    pub user: String,
    /// Secret in the same namespace with the private key (`ssh-privatekey`) and, optionally, its OpenSSH certificate (`ssh-certificate`).
    pub key_ref: SecretRef,
    /// Host keys that are trusted.
    #[serde(default)]
    pub host_keys: HostKeys,
    /// Jump hosts to connect through, in the order of the connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub jumps: Vec<Jump>,
}

/// A jump host. Its host key is always pinned.
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
    /// Port of the SSH server.
    #[serde(default = "Ssh::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// User to log in as.
    #[serde(default = "Ssh::default_user")]
    #[schemars(schema_with = "text::user")]
    pub user: String,
    /// Secret with the private key. If omitted, the Secret of the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_ref: Option<SecretRef>,
    /// Host keys, as in a `known_hosts` file, without the host.
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

/// Reference to a Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
}

/// Host keys that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostKeys {
    /// How the host key is first trusted.
    #[serde(default)]
    pub policy: HostKeyPolicy,
    /// Pinned host keys, as in a `known_hosts` file, without the host: `ssh-ed25519 AAAA…`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::host_keys")]
    pub keys: Vec<String>,
}

/// How a host key is first trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HostKeyPolicy {
    /// Only the listed keys are trusted.
    #[default]
    Pinned,
    /// The first key that the operator sees is pinned.
    TrustOnFirstUse,
}

/// The package version of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageRef {
    /// Name of the component, such as `kubelet`.
    #[schemars(schema_with = "text::dns_label")]
    pub component: String,
    /// Name of the MachinePackageVersion in the same namespace.
    #[schemars(schema_with = "text::object_name")]
    #[serde(rename = "ref")]
    pub ref_: String,
}

/// A taint of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key of the taint.
    #[schemars(schema_with = "text::label_key")]
    #[x_kube(validation = Rule::new("self != 'fleetwright.io/maintenance'")
        .message("the taint fleetwright.io/maintenance is set and removed while a machine is worked on: leave it out")
        .reason(Reason::FieldValueForbidden))]
    #[x_kube(validation = Rule::new("self != 'fleetwright.io/unready'")
        .message("the taint fleetwright.io/unready is set and removed by the gates alone: leave it out, or write ReadinessGates")
        .reason(Reason::FieldValueForbidden))]
    pub key: String,
    /// Value of the taint.
    #[serde(default)]
    #[schemars(schema_with = "text::label_value")]
    pub value: String,
    /// Effect of the taint.
    pub effect: TaintEffect,
}

impl Taint {
    /// Returns the identity of the taint on a Node, as kubectl writes it: `key:effect`.
    pub fn id(&self) -> String {
        format!("{}:{:?}", self.key, self.effect)
    }
}

/// Effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods are not scheduled to the Node.
    NoSchedule,
    /// New pods are scheduled to the Node only if no other Node has room.
    PreferNoSchedule,
    /// New pods are not scheduled to the Node, and running pods are evicted.
    NoExecute,
}

/// Observed state of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// The `metadata.generation` of the Machine that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Current phase of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Facts that the host reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// State of each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub components: Vec<Component>,
    /// Conditions of the machine, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// Current step of the operator on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// The last drift that was found on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_drift: Option<LastDrift>,
    /// Time of the next full check of the host if no event triggers one earlier.
    /// After that it is checked every `checkEvery`; a check that finds no change does not update this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Timestamp>,
    /// Interval between full checks of the host if no event triggers one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_every: Option<Span>,
    /// Owner of the host according to its owner mark. Omitted if no Machine has claimed the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_owner: Option<HostOwner>,
    /// Boot ID that must change: a reboot was due in this boot, and the host did not return within `timeouts.reboot`.
    /// Cleared when the host is seen with another boot ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reboot_due_from: Option<String>,
    /// Host keys that were pinned at first use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::host_keys")]
    pub host_keys: Vec<String>,
    /// The value of the annotation `fleetwright.io/retry` that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed_retry: Option<String>,
    /// The value of the annotation `fleetwright.io/adopt-host` that the operator last acted on. The operator does not act on the same value again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub adopted: Option<String>,
    /// The Node that is bound to this machine, by UID. The operator changes no other Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Keys of the Node's labels that were set for `spec.nodeLabels` or with which its kubelet registered while they were listed, until the Node no
    /// longer has them. The operator changes or removes no other label of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512), inner(length(max = 317)))]
    pub node_labels: Vec<String>,
    /// Taints of the Node, as `key:effect`, that were set for `spec.taints` or with which its kubelet registered while they were listed, until the Node no
    /// longer has them. The operator changes or removes no other taint of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 340)))]
    pub node_taints: Vec<String>,
    /// Time at which the machine's own bootstrap token first requested the client certificate of its Node, which was approved.
    /// A Node with the name of the machine that was created later is bound to the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_at: Option<Timestamp>,
    /// Digest of the authorities of the API server with which its kubelet joined, from `caBundle` of `cluster-values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub trusts: Option<String>,
    /// The Node for which all gates held for the first time, and when. From then on gates with `when: Bootstrap` no longer count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrapped: Option<Bootstrapped>,
}

/// Phase of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The machine is not in use.
    Idle,
    /// The machine is assigned to a cluster.
    Claimed,
    /// The operator is bringing the host to its declared packages.
    Converging,
    /// The host matches the spec.
    Ready,
    /// A part of the machine does not work.
    Degraded,
    /// The machine is being repaired.
    Repairing,
    /// The machine is being removed from its cluster.
    Deleting,
    /// The host does not respond.
    Lost,
}

/// Owner of a host according to its owner mark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostOwner {
    /// API server of the Machine: the UID of its namespace kube-system.
    #[schemars(length(max = 253))]
    pub cluster: String,
    /// Namespace of the Machine.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// Name of the Machine.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the Machine.
    #[schemars(length(max = 253))]
    pub uid: String,
    /// Number of owners so far: 1 for the Machine that claimed the host first, increased by one with each adoption.
    #[schemars(range(min = 0))]
    pub epoch: i64,
}

impl HostOwner {
    /// Value of the annotation `fleetwright.io/adopt-host` that claims a host without an owner whose packages an earlier version installed.
    pub const UNCLAIMED: &str = "unclaimed";

    /// Returns the value of the annotation `fleetwright.io/adopt-host` that takes the host from exactly this owner in this epoch.
    /// Text after another slash, such as the time, distinguishes one request from the next.
    pub fn adoption(&self) -> String {
        format!("{}/{}/{}", self.cluster, self.uid, self.epoch)
    }
}

/// A step in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepProgress {
    /// Human-readable step: `install kubelet 1.37.1`.
    #[schemars(length(max = 256))]
    pub step: String,
    /// ID under which the host records the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub id: Option<String>,
    /// Start of the step.
    pub since: Timestamp,
    /// Progress of the step.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Drift that was found on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastDrift {
    /// Time at which the drift was found.
    pub at: Timestamp,
    /// Whether the drift was repaired.
    #[serde(default)]
    pub repaired: bool,
    /// Number of consecutive repetitions of the same drift, each soon after the last: something on the host reverts the repair.
    #[serde(default)]
    pub repeats: u32,
    /// Deviations that were found; only the first ones if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub items: Vec<DriftItem>,
}

/// One deviation from the declared state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftItem {
    /// Name of the component.
    #[schemars(length(max = 63))]
    pub component: String,
    /// The deviating item.
    #[schemars(length(max = 1024))]
    pub what: String,
    /// Value that was found.
    #[schemars(length(max = 1024))]
    pub found: String,
    /// Value that was expected.
    #[schemars(length(max = 1024))]
    pub wanted: String,
}

/// Facts that a host reports.
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
    /// Number of processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub memory: Option<String>,
    /// Boot ID. It changes with every boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub boot_id: Option<String>,
}

/// State of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Name of the component.
    #[schemars(length(min = 1, max = 63))]
    pub component: String,
    /// Desired version; omitted while the component is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desired: Option<String>,
    /// Installed version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed: Option<String>,
    /// Current state.
    pub state: ComponentState,
    /// Start of the current state.
    pub since: Timestamp,
    /// Details for people.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Digest of the rendered package that failed. The operator does not try it again until another package is declared or a person requests a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub failed: Option<String>,
    /// The rollback after the failure in `failed`: which version the host has instead, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// Digest of the rendered package that was last proven to work on the host. A rollback never restores a package that was installed later and not proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub verified_digest: Option<String>,
    /// Rendered inputs of the installed package (files, units, scripts), each with a prefix of its digest.
    /// A declared package of the same version with other inputs is a change. Files from Secrets have no digest, because short secrets could be guessed from it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::inputs")]
    pub inputs: BTreeMap<String, String>,
    /// Number of attempted changes; it gives each attempt its own ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<u32>,
}

/// An earlier version that was restored because the declared version failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// Version that was restored.
    #[schemars(length(max = 256))]
    pub version: String,
    /// Digest of the restored package, as stored on the host.
    #[schemars(length(max = 64))]
    pub digest: String,
    /// Time at which the host had restored it.
    pub at: Timestamp,
    /// Why the declared version failed.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub why: String,
}

/// State of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentState {
    /// It waits for something.
    Pending,
    /// It is being installed.
    Installing,
    /// It is being upgraded.
    Upgrading,
    /// It is being downgraded.
    Downgrading,
    /// It is being removed.
    Removing,
    /// It matches the declared package and is healthy.
    Ready,
    /// It no longer matches the declared package.
    Drifted,
    /// It does not work.
    Failed,
    /// A change failed; the previous working version is restored and healthy.
    RolledBack,
}

/// Reference to a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct NodeRef {
    /// Name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub uid: Option<String>,
    /// How the Node was bound to the machine. A reference without this field was written by an earlier version and binds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<NodeBinding>,
}

/// How a Node was bound to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeBinding {
    /// It registered after the machine's own bootstrap token obtained its client certificate.
    Joined,
    /// A person with write access to `machines/status` and the right to `adopt` the Machine bound it: `fleetwright machine bind-node`.
    Adopted,
}

impl MachineStatus {
    /// Returns the UID of the bound Node.
    pub fn bound_uid(&self) -> Option<&str> {
        self.node_ref.as_ref().filter(|node| node.binding.is_some()).and_then(|node| node.uid.as_deref())
    }
}

/// When all gates held for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrapped {
    /// Time at which all gates held.
    pub at: Timestamp,
    /// UID of the Node. Another Node with the same name must pass the gates again.
    #[schemars(length(min = 1, max = 128))]
    pub node_uid: String,
}
