use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ComponentPackage, ControlPlaneComponent, Span, cluster_text, text};

/// One version of a control plane and its extensions. Immutable: change the reference of a Cluster to upgrade or roll back.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "ClusterPackageVersion",
    namespaced,
    shortname = "cpv",
    category = "fleet",
    printcolumn = r#"{"name": "Kubernetes", "type": "string", "jsonPath": ".spec.kubernetes"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Etcd", "type": "string", "jsonPath": ".spec.components.etcd.image", "priority": 1}"#,
    printcolumn = r#"{"name": "Upgrade from", "type": "string", "jsonPath": ".spec.upgradeFrom", "priority": 1}"#,
    printcolumn = r#"{"name": "Rollback to", "type": "string", "jsonPath": ".spec.rollbackTo", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("a package version does not change: make another ClusterPackageVersion and let clusters refer to it")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new(cluster_text::image_tells("self.components.apiserver"))
    .message(cluster_text::IMAGE_TELLS)
    .field_path(".components.apiserver.image"))]
#[x_kube(validation = Rule::new(cluster_text::image_tells("self.components.controllerManager"))
    .message(cluster_text::IMAGE_TELLS)
    .field_path(".components.controllerManager.image"))]
#[x_kube(validation = Rule::new(cluster_text::image_tells("self.components.scheduler"))
    .message(cluster_text::IMAGE_TELLS)
    .field_path(".components.scheduler.image"))]
#[x_kube(validation = Rule::new(cluster_text::minors("upgradeFrom"))
    .message("a control plane goes up by one minor at a time: name the minor of kubernetes, the one below it, or package versions")
    .field_path(".upgradeFrom"))]
#[x_kube(validation = Rule::new(cluster_text::minors("rollbackTo"))
    .message("a control plane goes back by one minor at most, the one that it emulates until then: name the minor of kubernetes, the one below it, or package versions")
    .field_path(".rollbackTo"))]
#[x_kube(validation = Rule::new(cluster_text::ALL_TEXTS)
    .message("configuration, templates and schemas are more than 262144 characters in all, which the datastore of the API server may not hold: shorten them, beginning with comments and descriptions"))]
pub struct ClusterPackageVersionSpec {
    /// Kubernetes version.
    #[schemars(schema_with = "cluster_text::version")]
    pub kubernetes: String,
    /// Components of the control plane.
    pub components: ComponentPackages,
    /// Extensions of clusters with this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub extensions: Vec<Extension>,
    /// Versions from which a cluster may be upgraded: minors such as `1.35`, or names of package versions. If omitted, the same minor and the one below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cluster_text::versions")]
    pub upgrade_from: Vec<String>,
    /// Versions to which a cluster may be rolled back: minors such as `1.35`, or names of package versions.
    /// If omitted, the same minor and, as long as the cluster emulates it, the one below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cluster_text::versions")]
    pub rollback_to: Vec<String>,
}

impl ClusterPackageVersionSpec {
    /// Returns a package version of images only, from one registry, each with the name of its executable.
    pub fn of_images(registry: &str, kubernetes: &str, etcd: &str) -> Self {
        let image = |component: ControlPlaneComponent, version: &str| {
            ComponentPackage::of(format!("{registry}/{}:v{version}", component.binary()))
        };
        Self {
            kubernetes: kubernetes.to_owned(),
            components: ComponentPackages {
                etcd: image(ControlPlaneComponent::Etcd, etcd),
                apiserver: image(ControlPlaneComponent::Apiserver, kubernetes),
                controller_manager: image(ControlPlaneComponent::ControllerManager, kubernetes),
                scheduler: image(ControlPlaneComponent::Scheduler, kubernetes),
            },
            ..Self::default()
        }
    }

    /// Returns the version of a component.
    pub fn version_of(&self, component: ControlPlaneComponent) -> &str {
        match component {
            ControlPlaneComponent::Etcd => self.components.etcd.version().unwrap_or_default(),
            _ => &self.kubernetes,
        }
    }
}

/// Components of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentPackages {
    /// etcd. It takes no configuration files.
    #[schemars(schema_with = "cluster_text::etcd_package")]
    #[x_kube(validation = Rule::new(cluster_text::tag_tells("self"))
        .message("the version of etcd cannot be determined: use an image whose tag is its version, such as registry.example/etcd:v3.6.16, or set version beside a digest")
        .field_path(".image"))]
    pub etcd: ComponentPackage,
    /// kube-apiserver. Allowed configuration files: admission.yaml, audit.yaml, authentication.yaml, authorization.yaml, egress.yaml and tracing.yaml.
    #[schemars(schema_with = "cluster_text::apiserver_package")]
    pub apiserver: ComponentPackage,
    /// kube-controller-manager. It takes no configuration files.
    #[schemars(schema_with = "cluster_text::controller_manager_package")]
    pub controller_manager: ComponentPackage,
    /// kube-scheduler. Allowed configuration file: scheduler.yaml.
    #[schemars(schema_with = "cluster_text::scheduler_package")]
    pub scheduler: ComponentPackage,
}

impl ComponentPackages {
    /// Returns the package of a component.
    pub fn of(&self, component: ControlPlaneComponent) -> &ComponentPackage {
        match component {
            ControlPlaneComponent::Etcd => &self.etcd,
            ControlPlaneComponent::Apiserver => &self.apiserver,
            ControlPlaneComponent::ControllerManager => &self.controller_manager,
            ControlPlaneComponent::Scheduler => &self.scheduler,
        }
    }
}

/// An add-on of a cluster: DNS, a network plugin, the Machine-Operator, a dashboard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(cluster_text::checks_in_cluster())
    .message("a workload in the business cluster is in some namespace: say which, such as kube-system/coredns")
    .field_path(".health.checks"))]
#[x_kube(validation = Rule::new(cluster_text::checks_in_meta())
    .message("an extension with placement Meta is in the namespace of its cluster's control plane alone: give workloads by name, without a namespace")
    .field_path(".health.checks"))]
pub struct Extension {
    /// Name of the extension, such as `coredns`.
    #[schemars(schema_with = "text::dns_label")]
    pub name: String,
    /// Order of extensions. They are applied from the lowest number to the highest; extensions with the same number are applied together.
    /// They are removed in the reverse order.
    #[serde(default = "Extension::default_order")]
    #[schemars(range(min = 0, max = 1000))]
    pub order: u32,
    /// Cluster in which the objects of the extension are created.
    #[serde(default)]
    pub placement: ExtensionPlacement,
    /// Whether the extension is enabled in clusters that do not set it in `spec.extensions`.
    #[serde(default = "Extension::default_enabled")]
    pub enabled: bool,
    /// Objects of the extension as YAML documents. Expressions such as `{{ cluster.name }}` and `{{ values.replicas }}` are replaced.
    #[schemars(schema_with = "cluster_text::template")]
    pub template: String,
    /// JSON schema (an object, as YAML or JSON) of the values and their defaults. If omitted, the extension takes no values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub values_schema: Option<String>,
    /// How the health of the extension is checked.
    #[serde(default)]
    pub health: ExtensionHealth,
}

impl Extension {
    fn default_order() -> u32 {
        100
    }

    fn default_enabled() -> bool {
        true
    }
}

impl Default for Extension {
    fn default() -> Self {
        Self {
            name: String::new(),
            order: Self::default_order(),
            placement: ExtensionPlacement::default(),
            enabled: Self::default_enabled(),
            template: String::new(),
            values_schema: None,
            health: ExtensionHealth::default(),
        }
    }
}

/// Where the objects of an extension are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExtensionPlacement {
    /// In the business cluster.
    #[default]
    Cluster,
    /// In the meta cluster, in the namespace of the cluster's control plane.
    Meta,
}

/// How the health of an extension is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionHealth {
    /// Time after a change within which all checks must pass.
    #[serde(default = "ExtensionHealth::default_within")]
    #[x_kube(validation = text::positive())]
    pub within: Span,
    /// Checks that must pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub checks: Vec<ExtensionCheck>,
}

impl ExtensionHealth {
    fn default_within() -> Span {
        Span::minutes(5)
    }
}

impl Default for ExtensionHealth {
    fn default() -> Self {
        Self { within: Self::default_within(), checks: Vec::new() }
    }
}

/// One check. Exactly one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.deployment), has(self.daemonSet), has(self.statefulSet), has(self.job), has(self.apiService)].filter(given, given).size() == 1")
    .message("a check is one question: give exactly one of deployment, daemonSet, statefulSet, job and apiService, and list others on their own"))]
pub struct ExtensionCheck {
    /// The Deployment `NAMESPACE/NAME` has all replicas of its current template available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::workload")]
    pub deployment: Option<String>,
    /// The DaemonSet `NAMESPACE/NAME` has pods of its current template available on all Nodes where it should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::workload")]
    pub daemon_set: Option<String>,
    /// The StatefulSet `NAMESPACE/NAME` has all replicas of its current template ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::workload")]
    pub stateful_set: Option<String>,
    /// The Job `NAMESPACE/NAME` has completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::workload")]
    pub job: Option<String>,
    /// The APIService, such as `v1beta1.metrics.k8s.io`, is available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub api_service: Option<String>,
}
