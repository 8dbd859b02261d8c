use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ClusterStatus, ComponentOverrides, ControlPlaneComponent, Datastore, Restore, Snapshots, Span, cluster_text, text,
};

/// A business cluster: its control plane runs as pods of the meta cluster, its Nodes are machines.
/// The spec declares the version and settings of the control plane.
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
#[x_kube(validation = Rule::new(cluster_text::snapshots_do_not_shrink())
    .message("the volume of snapshots grows but does not shrink: put the old size back (20Gi if none was given), or keep snapshots in a bucket with snapshots.s3")
    .field_path(".snapshots.volume.size")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new(cluster_text::snapshots_keep_their_class())
    .message("the volume of snapshots keeps its class: put the old one back, or keep snapshots in a bucket with snapshots.s3")
    .field_path(".snapshots.volume.class")
    .reason(Reason::FieldValueForbidden))]
pub struct ClusterSpec {
    /// Name of the ClusterPackageVersion in the same namespace. Change it to upgrade or roll back.
    #[schemars(schema_with = "text::object_name")]
    pub package_version: String,
    /// Number of replicas of each of kube-apiserver, kube-controller-manager and kube-scheduler. With two, no request fails while one replica is replaced.
    #[serde(default = "ClusterSpec::default_replicas")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: u32,
    /// Settings of components that differ from the package version.
    #[serde(default)]
    pub components: ClusterComponents,
    /// Datastore of the cluster's objects.
    #[serde(default)]
    pub datastore: Datastore,
    /// Networks of the cluster. Immutable.
    #[serde(default)]
    pub network: ClusterNetwork,
    /// How clients reach the API server.
    #[serde(default)]
    pub endpoint: Endpoint,
    /// Extensions of the package version that this Cluster enables, disables or gives values to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub extensions: Vec<ExtensionChoice>,
    /// Lifetimes of certificates, and replacement of the authorities.
    #[serde(default)]
    pub certificates: Certificates,
    /// How upgrades are carried out.
    #[serde(default)]
    pub upgrade: UpgradePolicy,
    /// When snapshots of etcd are taken, and where they are stored. If omitted, a snapshot is taken every 6 hours and the last 28 are kept on a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Snapshots>,
    /// Restores the datastore from a snapshot, once. All writes after that snapshot are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
    /// Where in the meta cluster the pods of the control plane run.
    #[serde(default)]
    pub placement: ControlPlanePlacement,
    /// If true, deletion of the Cluster is blocked: a Cluster that is marked for deletion keeps running and is reconciled as before,
    /// until this field is set to false.
    #[serde(default = "ClusterSpec::default_deletion_protection")]
    pub deletion_protection: bool,
    /// What happens to joined machines when the Cluster is deleted.
    #[serde(default)]
    pub on_delete: ClusterOnDelete,
    /// If true, the operator changes nothing in the cluster. It keeps the status up to date.
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

    /// Returns the spec of a Cluster with this package version and defaults for all other fields.
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

    /// Returns when snapshots are taken and where they are stored; `None` for an external datastore.
    pub fn snapshots(&self) -> Option<Snapshots> {
        self.datastore.etcd.as_ref().map(|_| self.snapshots.clone().unwrap_or_default())
    }
}

/// Settings of components that differ from the package version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterComponents {
    /// Settings of etcd. It takes no configuration files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::etcd_overrides")]
    pub etcd: Option<ComponentOverrides>,
    /// Settings of kube-apiserver.
    /// Allowed configuration files: admission.yaml, audit.yaml, authentication.yaml, authorization.yaml, egress.yaml, encryption.yaml and tracing.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::apiserver_overrides")]
    pub apiserver: Option<ComponentOverrides>,
    /// Settings of kube-controller-manager. It takes no configuration files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::controller_manager_overrides")]
    pub controller_manager: Option<ComponentOverrides>,
    /// Settings of kube-scheduler. Allowed configuration file: scheduler.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::scheduler_overrides")]
    pub scheduler: Option<ComponentOverrides>,
}

impl ClusterComponents {
    /// Returns the overrides of a component.
    pub fn of(&self, component: ControlPlaneComponent) -> Option<&ComponentOverrides> {
        match component {
            ControlPlaneComponent::Etcd => self.etcd.as_ref(),
            ControlPlaneComponent::Apiserver => self.apiserver.as_ref(),
            ControlPlaneComponent::ControllerManager => self.controller_manager.as_ref(),
            ControlPlaneComponent::Scheduler => self.scheduler.as_ref(),
        }
    }
}

/// Networks of a cluster.
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
    /// CIDR of pod addresses. Each Node gets a part of it.
    #[serde(default = "ClusterNetwork::default_pods")]
    #[schemars(schema_with = "cluster_text::pods")]
    pub pods: String,
    /// CIDR of Service addresses.
    #[serde(default = "ClusterNetwork::default_services")]
    #[schemars(schema_with = "cluster_text::services")]
    pub services: String,
    /// DNS domain of the cluster: the suffix of the names of Services.
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

/// How clients reach an API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'External' || has(self.host)")
    .message("a given endpoint is known to you alone: give its host, and its port unless it is 6443")
    .field_path(".host")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("self.type in ['NodePort', 'External'] || !has(self.port)")
    .message("ClusterIP and LoadBalancer listen on port 6443: leave port out, or set type to NodePort or External")
    .field_path(".port")
    .reason(Reason::FieldValueForbidden))]
pub struct Endpoint {
    /// How the API server is exposed.
    #[serde(default, rename = "type")]
    pub type_: EndpointType,
    /// IP address or DNS name that clients use. If omitted, the address that the meta cluster provides; with `NodePort`, the address of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::address")]
    pub host: Option<String>,
    /// Port that clients use. With `NodePort`, the port on the nodes; if omitted, the meta cluster chooses it.
    /// With `External`, the port of `host`; if omitted, 6443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// More IP addresses and DNS names by which clients reach the API server. The serving certificate contains them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::addresses")]
    pub names: Vec<String>,
}

/// How an API server is exposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EndpointType {
    /// A Service that is reachable only inside the network of the meta cluster.
    #[default]
    ClusterIP,
    /// A port on every node of the meta cluster.
    NodePort,
    /// A load balancer that the meta cluster provides.
    LoadBalancer,
    /// An endpoint of your own, such as a load balancer, that leads to the Service `kube-apiserver`.
    External,
}

/// An extension that a Cluster enables, disables or gives values to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionChoice {
    /// Name of the extension in the package version.
    #[schemars(schema_with = "text::dns_label")]
    pub name: String,
    /// Whether the extension is enabled. If omitted, the package version decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Values of the extension. They must match its `valuesSchema` in the package version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::values")]
    pub values: Option<Value>,
}

/// Lifetimes of certificates, and replacement of the authorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.leafLifetime) < duration(self.authorityLifetime)")
    .message("a certificate does not outlive the authority that signed it: make leafLifetime shorter than authorityLifetime")
    .field_path(".leafLifetime"))]
pub struct Certificates {
    /// Lifetime of serving and client certificates. A certificate is replaced after two thirds of this time, even if it was issued for longer.
    #[serde(default = "Certificates::default_leaf_lifetime")]
    #[schemars(schema_with = "cluster_text::lifetime")]
    pub leaf_lifetime: Span,
    /// Lifetime of authorities that are created from now on. Existing authorities keep their lifetime.
    #[serde(default = "Certificates::default_authority_lifetime")]
    #[schemars(schema_with = "cluster_text::lifetime")]
    pub authority_lifetime: Span,
    /// Replaces the authorities, in phases, each time this value changes. Use for example the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::token")]
    pub rotate_authorities: Option<String>,
    /// While authorities are replaced: how long the new authorities are only trusted before they sign, and then how long the old ones are still trusted.
    /// Distribute the new authorities to workers and users within this time.
    #[serde(default = "Certificates::default_overlap")]
    pub overlap: Span,
}

impl Certificates {
    /// 90 days: an operator that is down for weeks does no harm, and a stolen key soon becomes worthless.
    fn default_leaf_lifetime() -> Span {
        Span::minutes(90 * 24 * 60)
    }

    /// 10 years: replacing authorities affects every kubelet, so it is done only on request.
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

/// How upgrades are carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePolicy {
    /// Minimum time for which a new minor emulates the old one.
    /// During this time a rollback keeps every write; when the emulation has ended, only restoring a snapshot leads back.
    /// The value can be changed during a soak: the time counts from `status.soakSince`.
    /// The emulation ends when this time has passed and nothing blocks it (condition `UpgradeCompletable`), after a snapshot that is taken for this.
    #[serde(default = "UpgradePolicy::default_soak")]
    pub soak: Span,
    /// Maximum time until one stage of an upgrade (one component, all replicas) works. A stage that takes longer is rolled back automatically.
    #[serde(default = "UpgradePolicy::default_stage_timeout")]
    #[x_kube(validation = text::positive())]
    pub stage_timeout: Span,
}

impl UpgradePolicy {
    fn default_soak() -> Span {
        Span::minutes(24 * 60)
    }

    fn default_stage_timeout() -> Span {
        Span::minutes(10)
    }
}

impl Default for UpgradePolicy {
    fn default() -> Self {
        Self { soak: Self::default_soak(), stage_timeout: Self::default_stage_timeout() }
    }
}

/// Where in the meta cluster the pods of a control plane run. They are always spread over nodes and zones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlanePlacement {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<PodToleration>,
    /// Name of the PriorityClass of the pods in the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub priority_class_name: Option<String>,
}

/// A toleration of a taint.
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
    /// Key of the taint. If omitted, every key matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_key")]
    pub key: Option<String>,
    /// How the value of the taint is compared.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// Value of the taint. If omitted, the empty value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_value")]
    pub value: Option<String>,
    /// Effect of the taint. If omitted, every effect matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<crate::TaintEffect>,
}

/// How the value of a taint is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The values are equal.
    #[default]
    Equal,
    /// Every value matches.
    Exists,
}

/// What happens to joined machines when a Cluster is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterOnDelete {
    /// Deletes nothing while machines are joined.
    #[default]
    WaitForMachines,
    /// Releases the machines first: each according to its own `onDelete` while the API server of the cluster responds.
    /// If the API server does not respond, machines are left unchanged.
    ReleaseMachines,
}
