use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::text::{ruled, set_of};
use crate::{ControlPlaneComponent, EndpointType, arguments, cluster_text, text};

/// Limits on what Clusters of the namespace may set. A Cluster must satisfy every ClusterLimits that applies to it.
/// Write access to Clusters does not require write access to ClusterLimits. An omitted field sets no limit.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "ClusterLimits",
    plural = "clusterlimits",
    namespaced,
    shortname = "cll",
    category = "fleet",
    printcolumn = r#"{"name": "Clusters", "type": "string", "jsonPath": ".spec.clusters"}"#,
    printcolumn = r#"{"name": "Preset", "type": "string", "jsonPath": ".spec.preset"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Package versions", "type": "string", "jsonPath": ".spec.packageVersions", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.preset) || has(self.packageVersions) || has(self.components) || has(self.extensions) || has(self.endpointTypes) || has(self.placement) || has(self.storage) || has(self.maxReplicas) || has(self.externalDatastore) || has(self.s3) || has(self.imageDigests)")
    .message("it limits nothing: set preset or at least one other field besides clusters"))]
pub struct ClusterLimitsSpec {
    /// Names of the Clusters that the limits apply to. A name that ends with `*` matches all names with that prefix.
    /// With `*`, no Cluster can evade the limits by its name.
    #[schemars(schema_with = "clusters")]
    pub clusters: Vec<String>,
    /// A predefined set of limits that is kept up to date with Kubernetes. The lists in this object cannot allow what the preset denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<LimitsPreset>,
    /// ClusterPackageVersions that Clusters may refer to: names, or prefixes with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub package_versions: Option<Vec<String>>,
    /// Arguments and configuration files of components that Clusters may set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub components: Option<ComponentsLimits>,
    /// Extensions that Clusters may list in `spec.extensions` to enable or disable them or to set their values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<ExtensionsLimits>,
    /// Allowed types of `spec.endpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "endpoint_types")]
    pub endpoint_types: Option<Vec<EndpointType>>,
    /// Where in the meta cluster control planes may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementLimits>,
    /// Volumes of etcd and of snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageLimits>,
    /// Maximum of `spec.replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub max_replicas: Option<u32>,
    /// Whether Clusters may use an etcd that Fleetwright does not run (`spec.datastore.external`). Allowed if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_datastore: Option<bool>,
    /// Buckets in which snapshots may be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Limits>,
    /// If true, Clusters may refer only to ClusterPackageVersions that name the images of all components by digest (`NAME@sha256:…`), and all images in
    /// pods of their extensions must be named by digest, as they are rendered with the labels and values of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digests: Option<bool>,
}

impl ClusterLimitsSpec {
    /// Returns true if the limits apply to the Cluster with this name.
    pub fn applies_to(&self, cluster: &str) -> bool {
        matches_any(&self.clusters, cluster)
    }
}

/// Returns true if one of the patterns is the name, or ends with `*` and its prefix matches the name.
pub fn matches_any<T: AsRef<str>>(patterns: &[T], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.as_ref().strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern.as_ref() == name,
    })
}

/// A set of limits that Fleetwright keeps up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LimitsPreset {
    /// Denies arguments and files that weaken authentication, authorization, admission, audit or TLS of a control plane, or that send requests and tokens
    /// elsewhere.
    Hardened,
}

/// Arguments of a component that the preset `Hardened` denies: names, or prefixes with `*`.
pub const fn hardened_args(component: ControlPlaneComponent) -> &'static [&'static str] {
    match component {
        ControlPlaneComponent::Apiserver => &[
            "admission-control",
            "aggregator-reject-forwarding-redirect",
            "allow-privileged",
            "api-audiences",
            "audit-*",
            "authentication-token-webhook-*",
            "contention-profiling",
            "cors-allowed-origins",
            "debug-socket-path",
            "disable-admission-plugins",
            "enable-admission-plugins",
            "enable-aggregator-routing",
            "enable-logs-handler",
            "feature-gates",
            "oidc-*",
            "profiling",
            "runtime-config",
            "service-account-*",
            "strict-transport-security-directives",
            "tls-*",
            "token-auth-file",
        ],
        ControlPlaneComponent::ControllerManager => &[
            "authentication-*",
            "authorization-*",
            "cloud-*",
            "cluster-signing-*",
            "contention-profiling",
            "controllers",
            "enable-hostpath-provisioner",
            "external-cloud-volume-plugin",
            "feature-gates",
            "flex-volume-plugin-dir",
            "profiling",
            "pv-recycler-*",
            "tls-*",
            "use-service-account-credentials",
        ],
        ControlPlaneComponent::Scheduler => {
            &["authentication-*", "authorization-*", "contention-profiling", "feature-gates", "profiling", "tls-*"]
        }
        ControlPlaneComponent::Etcd => &[
            "auth-token",
            "cipher-suites",
            "cors",
            "distributed-tracing-*",
            "enable-distributed-tracing",
            "enable-pprof",
            "experimental-*",
            "feature-gates",
            "host-whitelist",
            "log-outputs",
            "strict-reconfig-check",
            "tls-*",
            "unsafe-no-fsync",
        ],
    }
}

/// Configuration files of a component that the preset `Hardened` denies.
pub const fn hardened_files(component: ControlPlaneComponent) -> &'static [&'static str] {
    match component {
        ControlPlaneComponent::Apiserver => &[
            "admission.yaml",
            "audit.yaml",
            "authentication.yaml",
            "authorization.yaml",
            "egress.yaml",
            "tracing.yaml",
        ],
        // An extender in it is a URL that receives pods and Nodes.
        ControlPlaneComponent::Scheduler => &["scheduler.yaml"],
        ControlPlaneComponent::Etcd | ControlPlaneComponent::ControllerManager => &[],
    }
}

/// Allowed names: those in `allow`, except those in `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.allow) || has(self.deny)")
    .message("it limits nothing: give allow (an empty list allows none), deny or both"))]
pub struct NameLimits {
    /// Names, or prefixes with `*`. If omitted, all names are allowed; if empty, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub allow: Option<Vec<String>>,
    /// Names, or prefixes with `*`, that are denied even if `allow` lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub deny: Option<Vec<String>>,
}

/// Limits of each component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.etcd) || !has(self.etcd.config)")
    .message("etcd takes no configuration files: leave config out")
    .field_path(".etcd.config")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.controllerManager) || !has(self.controllerManager.config)")
    .message("kube-controller-manager takes no configuration files: leave config out")
    .field_path(".controllerManager.config")
    .reason(Reason::FieldValueForbidden))]
pub struct ComponentsLimits {
    /// Limits of etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_etcd")]
    pub etcd: Option<ComponentLimits>,
    /// Limits of kube-apiserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_apiserver")]
    pub apiserver: Option<ComponentLimits>,
    /// Limits of kube-controller-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_controller_manager")]
    pub controller_manager: Option<ComponentLimits>,
    /// Limits of kube-scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_scheduler")]
    pub scheduler: Option<ComponentLimits>,
}

impl ComponentsLimits {
    /// Returns the limits of a component.
    pub fn of(&self, component: ControlPlaneComponent) -> Option<&ComponentLimits> {
        match component {
            ControlPlaneComponent::Etcd => self.etcd.as_ref(),
            ControlPlaneComponent::Apiserver => self.apiserver.as_ref(),
            ControlPlaneComponent::ControllerManager => self.controller_manager.as_ref(),
            ControlPlaneComponent::Scheduler => self.scheduler.as_ref(),
        }
    }
}

/// What Clusters may set for one component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentLimits {
    /// Names of arguments, without leading dashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<NameLimits>,
    /// Names of files in `config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NameLimits>,
}

/// What Clusters may set for extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.allow) || has(self.values)")
    .message("it limits nothing: give allow (an empty list allows none), values or both"))]
pub struct ExtensionsLimits {
    /// Names, or prefixes with `*`. If omitted, all extensions are allowed; if empty, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub allow: Option<Vec<String>>,
    /// Whether Clusters may set values of the extensions. Allowed if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<bool>,
}

/// Where in the meta cluster control planes may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeSelector) || has(self.tolerationKeys) || has(self.priorityClasses)")
    .message("it limits nothing: give nodeSelector, tolerationKeys or priorityClasses"))]
pub struct PlacementLimits {
    /// Labels that `spec.placement.nodeSelector` must contain with these values. It may contain more labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Keys of tolerations, or prefixes with `*`. A toleration without a key tolerates every taint and requires `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub toleration_keys: Option<Vec<String>>,
    /// PriorityClasses, or prefixes with `*`. A Cluster without a PriorityClass is allowed and gets the default of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub priority_classes: Option<Vec<String>>,
}

/// Volumes of etcd and of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.classes) || has(self.maxSize)")
    .message("it limits nothing: give classes, maxSize or both"))]
pub struct StorageLimits {
    /// StorageClasses, or prefixes with `*`. A volume without a StorageClass is allowed and gets the default of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub classes: Option<Vec<String>>,
    /// Maximum size of one volume. By default, a Cluster requests 10Gi for each etcd member and 20Gi for snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::size")]
    pub max_size: Option<Quantity>,
}

/// Buckets in which snapshots may be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.endpoints) || has(self.buckets)")
    .message("it limits nothing: give endpoints (an empty list allows no S3 store), buckets or both"))]
pub struct S3Limits {
    /// Complete URLs of stores without patterns, such as `https://s3.example.com`. If omitted, all stores are allowed; if empty, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "stores")]
    pub endpoints: Option<Vec<String>>,
    /// Names of buckets, or prefixes with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub buckets: Option<Vec<String>>,
}

/// Maximum number of entries in a list.
const MAX_COUNT: u32 = 64;

fn pattern() -> Schema {
    ruled(
        253,
        "self.matches('^([*]|[A-Za-z0-9][A-Za-z0-9._/-]*[*]?)$')",
        "must be a name, or the beginning of names followed by *, such as pay-* or *",
    )
}

fn patterns(_: &mut SchemaGenerator) -> Schema {
    set_of(pattern(), MAX_COUNT)
}

fn clusters(generator: &mut SchemaGenerator) -> Schema {
    let mut list = patterns(generator);
    list.insert("minItems".to_owned(), 1.into());
    list
}

fn stores(generator: &mut SchemaGenerator) -> Schema {
    set_of(cluster_text::store(generator), MAX_COUNT)
}

fn endpoint_types(generator: &mut SchemaGenerator) -> Schema {
    let mut item = EndpointType::json_schema(generator);
    item.remove("description");
    json_schema!({"type": "array", "items": item, "maxItems": 4, "minItems": 1, "x-kubernetes-list-type": "set"})
}

/// The schema of a component. A name that is not an argument of the component would deny nothing and allow nothing.
fn of_component(generator: &mut SchemaGenerator, component: ControlPlaneComponent) -> Schema {
    let mut schema = ComponentLimits::json_schema(generator);
    let names: Vec<_> = arguments::known(component).map(|argument| format!("'{}'", argument.name)).collect();
    let rule = json!([{
        "rule": format!("self.all(name, name.endsWith('*') || name in [{}])", names.join(", ")),
        "message": format!("every name must be an argument of {component} without leading dashes, or the beginning of some followed by *: see {component} --help"),
    }]);
    let mut args = NameLimits::json_schema(generator);
    for list in ["allow", "deny"] {
        if let Some(list) = args.pointer_mut(&format!("/properties/{list}")) {
            list["x-kubernetes-validations"] = rule.clone();
        }
    }
    let described = schema.pointer("/properties/args/description").cloned().unwrap_or_default();
    args.insert("description".to_owned(), described);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("args".to_owned(), args.to_value());
    }
    schema
}

fn of_etcd(generator: &mut SchemaGenerator) -> Schema {
    of_component(generator, ControlPlaneComponent::Etcd)
}

fn of_apiserver(generator: &mut SchemaGenerator) -> Schema {
    of_component(generator, ControlPlaneComponent::Apiserver)
}

fn of_controller_manager(generator: &mut SchemaGenerator) -> Schema {
    of_component(generator, ControlPlaneComponent::ControllerManager)
}

fn of_scheduler(generator: &mut SchemaGenerator) -> Schema {
    of_component(generator, ControlPlaneComponent::Scheduler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CONFIG_FILES;

    #[test]
    fn a_pattern_is_a_whole_name_or_a_prefix_with_a_star() {
        for (pattern, name) in [("*", "pay"), ("pay", "pay"), ("pay-*", "pay-01"), ("*", "")] {
            assert!(matches_any(&[pattern], name), "{pattern} {name}");
        }
        for (pattern, name) in [("pay", "pay-01"), ("pay-*", "pay"), ("*-01", "pay-01"), ("", "pay")] {
            assert!(!matches_any(&[pattern], name), "{pattern} {name}");
        }
        assert!(!matches_any::<String>(&[], "pay"));
    }

    #[test]
    fn every_entry_of_the_preset_denies_an_argument_or_a_file_that_a_cluster_could_set() {
        for component in ControlPlaneComponent::ALL {
            for pattern in hardened_args(component) {
                let mut free = arguments::known(component)
                    .filter(|argument| arguments::reserved(component, argument.name).is_none())
                    .filter(|argument| CONFIG_FILES.iter().all(|(of, _, by)| *of != component || *by != argument.name));
                assert!(free.any(|argument| matches_any(&[pattern], argument.name)), "{component} {pattern}");
            }
            for file in hardened_files(component) {
                assert!(CONFIG_FILES.iter().any(|(of, name, _)| *of == component && name == file), "{file}");
            }
        }
    }
}
