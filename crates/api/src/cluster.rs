use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ClusterStatus, ComponentOverrides, ControlPlaneComponent, Datastore, Restore, Snapshots, Span, cluster_text, text,
};

/// One business cluster: which version its control plane has, how it runs in the meta cluster, and the state it is in.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "Cluster",
    namespaced,
    status = "ClusterStatus",
    shortname = "cl",
    category = "fleet",
    validation = Rule::new("size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')")
        .message("a cluster's name has no dots and at most 63 characters, because its namespace and labels carry it: choose another"),
    printcolumn = r#"{"name": "Package version", "type": "string", "jsonPath": ".spec.packageVersion"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Endpoint", "type": "string", "jsonPath": ".status.endpoint"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Running", "type": "string", "jsonPath": ".status.packageVersion", "priority": 1}"#,
    printcolumn = r#"{"name": "Datastore", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"DatastoreHealthy\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Extensions", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"ExtensionsReady\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Upgradable", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Upgradable\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Snapshot", "type": "date", "jsonPath": ".status.lastSnapshot.at", "priority": 1}"#,
    printcolumn = r#"{"name": "Waiting for", "type": "string", "jsonPath": ".status.waitingFor", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.datastore.external) || !has(self.snapshots)")
    .message("an external datastore is snapshotted by who runs it: leave snapshots out, or use datastore.etcd")
    .field_path(".snapshots")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.restore) || !has(self.restore.cluster) || (has(self.snapshots) && has(self.snapshots.s3))")
    .message("snapshots of another Cluster can be had from a bucket alone: name that bucket in snapshots.s3, or leave restore.cluster out")
    .field_path(".restore.cluster"))]
#[x_kube(validation = Rule::new("!has(self.datastore.external) || !has(self.restore)")
    .message("an external datastore is restored by who runs it: leave restore out, or use datastore.etcd")
    .field_path(".restore")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.datastore.external) || !has(self.components.etcd)")
    .message("an external datastore is configured by who runs it: leave components.etcd out, or use datastore.etcd")
    .field_path(".components.etcd")
    .reason(Reason::FieldValueForbidden))]
pub struct ClusterSpec {
    /// The ClusterPackageVersion, in the same namespace. Changing it is upgrade and rollback.
    #[schemars(schema_with = "text::object_name")]
    pub package_version: String,
    /// How many of each of kube-apiserver, kube-controller-manager and kube-scheduler run. With two, no request fails while one is
    /// replaced.
    #[serde(default = "ClusterSpec::default_replicas")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: u32,
    /// What is said otherwise of components than in the package version.
    #[serde(default)]
    pub components: ClusterComponents,
    /// Where the cluster's objects are kept.
    #[serde(default)]
    pub datastore: Datastore,
    /// The cluster's own networks. They cannot be changed.
    #[serde(default)]
    pub network: ClusterNetwork,
    /// How clients reach the API server.
    #[serde(default)]
    pub endpoint: Endpoint,
    /// Extensions of the package version that are turned on or off here, and their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub extensions: Vec<ExtensionChoice>,
    /// How long certificates last, and when authorities are replaced.
    #[serde(default)]
    pub certificates: Certificates,
    /// How upgrades go.
    #[serde(default)]
    pub upgrade: UpgradePolicy,
    /// When snapshots of etcd are taken, and where they are kept. Every 6 hours on a volume, 28 of them, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Snapshots>,
    /// Brings the datastore back to a snapshot, once. Everything written after it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
    /// Where in the meta cluster the control plane's pods run.
    #[serde(default)]
    pub placement: ControlPlanePlacement,
    /// While true, a deleted cluster goes on as if nothing had happened, until this is set to false.
    #[serde(default = "ClusterSpec::default_deletion_protection")]
    pub deletion_protection: bool,
    /// What happens to the machines that are joined when the cluster is deleted.
    #[serde(default)]
    pub on_delete: ClusterOnDelete,
    /// While true nothing is done to the cluster; the status is kept up to date.
    #[serde(default)]
    pub paused: bool,
}

impl ClusterSpec {
    fn default_replicas() -> u32 {
        2
    }

    fn default_deletion_protection() -> bool {
        true
    }

    /// A cluster of that package version with everything else as it is by default.
    pub fn of(package_version: impl Into<String>) -> Self {
        Self {
            package_version: package_version.into(),
            replicas: Self::default_replicas(),
            components: ClusterComponents::default(),
            datastore: Datastore::default(),
            network: ClusterNetwork::default(),
            endpoint: Endpoint::default(),
            extensions: Vec::new(),
            certificates: Certificates::default(),
            upgrade: UpgradePolicy::default(),
            snapshots: None,
            restore: None,
            placement: ControlPlanePlacement::default(),
            deletion_protection: Self::default_deletion_protection(),
            on_delete: ClusterOnDelete::default(),
            paused: false,
        }
    }

    /// When snapshots are taken and where they are kept; none of a datastore that is not ours.
    pub fn snapshots(&self) -> Option<Snapshots> {
        self.datastore.etcd.as_ref().map(|_| self.snapshots.clone().unwrap_or_default())
    }
}

/// What is said otherwise of components than in the package version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterComponents {
    /// The datastore. It has no configuration files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::etcd_overrides")]
    pub etcd: Option<ComponentOverrides>,
    /// kube-apiserver. It takes admission.yaml, audit.yaml, authentication.yaml, authorization.yaml, egress.yaml, encryption.yaml and
    /// tracing.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::apiserver_overrides")]
    pub apiserver: Option<ComponentOverrides>,
    /// kube-controller-manager. It has no configuration files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::controller_manager_overrides")]
    pub controller_manager: Option<ComponentOverrides>,
    /// kube-scheduler. It takes scheduler.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::scheduler_overrides")]
    pub scheduler: Option<ComponentOverrides>,
}

impl ClusterComponents {
    /// What is said of that component.
    pub fn of(&self, component: ControlPlaneComponent) -> Option<&ComponentOverrides> {
        match component {
            ControlPlaneComponent::Etcd => self.etcd.as_ref(),
            ControlPlaneComponent::Apiserver => self.apiserver.as_ref(),
            ControlPlaneComponent::ControllerManager => self.controller_manager.as_ref(),
            ControlPlaneComponent::Scheduler => self.scheduler.as_ref(),
        }
    }
}

/// The cluster's own networks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("a cluster keeps its networks, which every Node, Service and certificate of it carries: make another Cluster with the networks wanted and move what runs here")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!isCIDR(self.pods) || !isCIDR(self.services) || cidr(self.pods).ip().family() == cidr(self.services).ip().family()")
    .message("pods and services are both IPv4 or both IPv6: change one of them")
    .field_path(".services"))]
#[x_kube(validation = Rule::new("!isCIDR(self.pods) || !isCIDR(self.services) || !(cidr(self.pods).containsCIDR(cidr(self.services)) || cidr(self.services).containsCIDR(cidr(self.pods)))")
    .message("the networks of pods and services overlap, so that an address could be either: choose two that do not, such as 10.244.0.0/16 and 10.96.0.0/16")
    .field_path(".services"))]
pub struct ClusterNetwork {
    /// Addresses of pods; each Node gets a part.
    #[serde(default = "ClusterNetwork::default_pods")]
    #[schemars(schema_with = "cluster_text::pods")]
    pub pods: String,
    /// Addresses of Services.
    #[serde(default = "ClusterNetwork::default_services")]
    #[schemars(schema_with = "cluster_text::services")]
    pub services: String,
    /// What the names of Services end in.
    #[serde(default = "ClusterNetwork::default_dns_domain")]
    #[schemars(schema_with = "cluster_text::dns_domain")]
    pub dns_domain: String,
}

impl ClusterNetwork {
    fn default_pods() -> String {
        "10.244.0.0/16".to_owned()
    }

    fn default_services() -> String {
        "10.96.0.0/16".to_owned()
    }

    fn default_dns_domain() -> String {
        "cluster.local".to_owned()
    }
}

impl Default for ClusterNetwork {
    fn default() -> Self {
        Self { pods: Self::default_pods(), services: Self::default_services(), dns_domain: Self::default_dns_domain() }
    }
}

/// How clients reach the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'Given' || has(self.host)")
    .message("a given endpoint is known to you alone: give its host, and its port unless it is 6443")
    .field_path(".host")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("self.type in ['NodePort', 'Given'] || !has(self.port)")
    .message("ClusterIP and LoadBalancer listen on port 6443: leave port out, or set type to NodePort or Given")
    .field_path(".port")
    .reason(Reason::FieldValueForbidden))]
pub struct Endpoint {
    /// What leads to it.
    #[serde(default, rename = "type")]
    pub type_: EndpointType,
    /// The IP address or DNS name that clients use. What the meta cluster gives if left out; with `NodePort`, the address of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::address")]
    pub host: Option<String>,
    /// With `NodePort`, the port on the nodes, which the meta cluster chooses if left out; with `Given`, the port at the host, 6443 if
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Other addresses and names by which clients reach it. Its certificate holds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::addresses")]
    pub names: Vec<String>,
}

/// What leads to an API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EndpointType {
    /// A Service that only the meta cluster's network reaches.
    #[default]
    ClusterIP,
    /// A port on every node of the meta cluster.
    NodePort,
    /// A load balancer that the meta cluster makes.
    LoadBalancer,
    /// Something that you made and that leads to the Service `kube-apiserver`.
    Given,
}

/// An extension that is turned on or off, or gets values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionChoice {
    /// Which one of the package version.
    #[schemars(schema_with = "text::dns_label")]
    pub name: String,
    /// Whether the cluster has it. As the package version says if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its values, as its `valuesSchema` in the package version allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::values")]
    pub values: Option<Value>,
}

/// How long certificates last, and when authorities are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.leafLifetime) < duration(self.authorityLifetime)")
    .message("a certificate does not outlive the authority that signed it: make leafLifetime shorter than authorityLifetime")
    .field_path(".leafLifetime"))]
pub struct Certificates {
    /// How long certificates of servers and clients last. They are replaced after two thirds of it, also those that were made to last longer.
    #[serde(default = "Certificates::default_leaf_lifetime")]
    #[schemars(schema_with = "cluster_text::lifetime")]
    pub leaf_lifetime: Span,
    /// How long authorities last that are made from now on.
    #[serde(default = "Certificates::default_authority_lifetime")]
    #[schemars(schema_with = "cluster_text::lifetime")]
    pub authority_lifetime: Span,
    /// Replaces the authorities, in phases, whenever it becomes another value, such as the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::token")]
    pub rotate_authorities: Option<String>,
    /// When authorities are replaced: how long the new ones are only trusted, before they sign, and then how long the old ones are still trusted. Workers and people must be given the
    /// new ones within that time.
    #[serde(default = "Certificates::default_overlap")]
    pub overlap: Span,
}

impl Certificates {
    /// 90 days: long enough that an operator that is away for weeks does no harm, short enough that a lost key is soon worthless.
    fn default_leaf_lifetime() -> Span {
        Span::minutes(90 * 24 * 60)
    }

    /// 10 years: replacing them concerns every kubelet, so it is done when asked.
    fn default_authority_lifetime() -> Span {
        Span::minutes(10 * 365 * 24 * 60)
    }

    fn default_overlap() -> Span {
        Span::minutes(24 * 60)
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            leaf_lifetime: Self::default_leaf_lifetime(),
            authority_lifetime: Self::default_authority_lifetime(),
            rotate_authorities: None,
            overlap: Self::default_overlap(),
        }
    }
}

/// How upgrades go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePolicy {
    /// How long a new minor emulates the old one, at least. Until then going back keeps every write; once the emulation has ended only restoring a
    /// snapshot leads back. It can be changed while a soak is under way: it counts from `status.soakSince`. The emulation ends when this time is over
    /// and nothing stands against it (condition `Finishable`), after a snapshot that is taken for this.
    #[serde(default = "UpgradePolicy::default_soak")]
    pub soak: Span,
    /// How long one stage of an upgrade (one component in all of its replicas) may take until it works. One that takes longer is taken back by itself.
    #[serde(default = "UpgradePolicy::default_stage_within")]
    #[x_kube(validation = text::positive())]
    pub stage_within: Span,
}

impl UpgradePolicy {
    fn default_soak() -> Span {
        Span::minutes(24 * 60)
    }

    fn default_stage_within() -> Span {
        Span::minutes(10)
    }
}

impl Default for UpgradePolicy {
    fn default() -> Self {
        Self { soak: Self::default_soak(), stage_within: Self::default_stage_within() }
    }
}

/// Where in the meta cluster the control plane's pods run. They are spread over nodes and zones in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlanePlacement {
    /// Labels that the nodes must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that do not keep them away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<PodToleration>,
    /// Their priority among the pods of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub priority_class_name: Option<String>,
}

/// A taint that does not keep pods away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.key) || self.operator == 'Exists'")
    .message("without a key every taint is meant: give key, or set operator to Exists")
    .field_path(".key")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("!has(self.value) || self.operator == 'Equal'")
    .message("Exists looks at the key only: leave value out, or set operator to Equal")
    .field_path(".value")
    .reason(Reason::FieldValueForbidden))]
pub struct PodToleration {
    /// The taint's key; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_key")]
    pub key: Option<String>,
    /// How the taint's value is compared.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The taint's value; empty if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub value: Option<String>,
    /// What the taint does; anything if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<crate::TaintEffect>,
}

/// How a taint's value is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// It is the same.
    #[default]
    Equal,
    /// It does not matter.
    Exists,
}

/// What happens to the machines that are joined to a cluster that is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterOnDelete {
    /// As long as there are any, nothing is deleted.
    #[default]
    WaitForMachines,
    /// They are let go: each as its own `onDelete` says while the cluster still answers, left as they are if it does not.
    ReleaseMachines,
}
