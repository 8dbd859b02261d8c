use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::text::{ruled, set_of};
use crate::{ControlPlaneComponent, EndpointType, arguments, cluster_text, text};

/// What Clusters of the namespace may set. A Cluster must keep every ClusterLimits that applies to it; who may write Clusters needs no right to write
/// ClusterLimits. A field that is left out limits nothing.
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
#[x_kube(validation = Rule::new("has(self.preset) || has(self.packageVersions) || has(self.components) || has(self.extensions) || has(self.endpointTypes) || has(self.placement) || has(self.storage) || has(self.maxReplicas) || has(self.externalDatastore) || has(self.s3)")
    .message("it limits nothing: set preset or at least one other field besides clusters"))]
pub struct ClusterLimitsSpec {
    /// Names of the Clusters that it applies to; a name that ends with `*` stands for all names with that prefix. With `*` no Cluster evades it by its name.
    #[schemars(schema_with = "clusters")]
    pub clusters: Vec<String>,
    /// A set of limits that is kept up to date with Kubernetes. Lists below cannot allow what it denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<LimitsPreset>,
    /// The ClusterPackageVersions that Clusters may refer to: names, or prefixes with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub package_versions: Option<Vec<String>>,
    /// Arguments and files of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub components: Option<ComponentsLimits>,
    /// Extensions that Clusters may name in `spec.extensions`, to turn them on or off or to give them values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<ExtensionsLimits>,
    /// The types that `spec.endpoint` may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "endpoint_types")]
    pub endpoint_types: Option<Vec<EndpointType>>,
    /// Where in the meta cluster control planes may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementLimits>,
    /// Volumes of etcd and of snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageLimits>,
    /// The most that `spec.replicas` may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub max_replicas: Option<u32>,
    /// Whether Clusters may use an etcd that Fleetwright does not run (`spec.datastore.external`). They may if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_datastore: Option<bool>,
    /// Buckets that snapshots may be kept in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Limits>,
}

impl ClusterLimitsSpec {
    /// Whether it applies to the Cluster of that name.
    pub fn applies_to(&self, cluster: &str) -> bool {
        matches_any(&self.clusters, cluster)
    }
}

/// Whether one of the patterns is that name, or a prefix of it that ends with `*`.
pub fn matches_any<T: AsRef<str>>(patterns: &[T], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.as_ref().strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern.as_ref() == name,
    })
}

/// A set of limits that Fleetwright keeps up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LimitsPreset {
    /// No argument or file that loosens authentication, authorization, admission, audit or TLS of a control plane, or that sends requests and tokens elsewhere.
    Hardened,
}

/// What the preset `Hardened` denies of the arguments of a component: names, or prefixes with `*`.
pub const fn hardened_args(component: ControlPlaneComponent) -> &'static [&'static str] {
    match component {
        ControlPlaneComponent::Apiserver => &[
            "admission-control",
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

/// What the preset `Hardened` denies of the files of a component.
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
        _ => &[],
    }
}

/// Which names are allowed: those of `allow`, without those of `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.allow) || has(self.deny)")
    .message("it limits nothing: give allow (an empty list allows none), deny or both"))]
pub struct NameLimits {
    /// Names, or prefixes with `*`. All if left out, none if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub allow: Option<Vec<String>>,
    /// Names, or prefixes with `*`, that are not allowed, also if `allow` has them.
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
    /// The datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_etcd")]
    pub etcd: Option<ComponentLimits>,
    /// kube-apiserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_apiserver")]
    pub apiserver: Option<ComponentLimits>,
    /// kube-controller-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_controller_manager")]
    pub controller_manager: Option<ComponentLimits>,
    /// kube-scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "of_scheduler")]
    pub scheduler: Option<ComponentLimits>,
}

impl ComponentsLimits {
    /// Those of that component.
    pub fn of(&self, component: ControlPlaneComponent) -> Option<&ComponentLimits> {
        match component {
            ControlPlaneComponent::Etcd => self.etcd.as_ref(),
            ControlPlaneComponent::Apiserver => self.apiserver.as_ref(),
            ControlPlaneComponent::ControllerManager => self.controller_manager.as_ref(),
            ControlPlaneComponent::Scheduler => self.scheduler.as_ref(),
        }
    }
}

/// What Clusters may set of one component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentLimits {
    /// Arguments, without leading dashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<NameLimits>,
    /// Names of files in `config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NameLimits>,
}

/// What Clusters may set of extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.allow) || has(self.values)")
    .message("it limits nothing: give allow (an empty list allows none), values or both"))]
pub struct ExtensionsLimits {
    /// Names, or prefixes with `*`. All if left out, none if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub allow: Option<Vec<String>>,
    /// Whether Clusters may give them values. They may if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<bool>,
}

/// Where in the meta cluster control planes may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.nodeSelector) || has(self.tolerationKeys) || has(self.priorityClasses)")
    .message("it limits nothing: give nodeSelector, tolerationKeys or priorityClasses"))]
pub struct PlacementLimits {
    /// Labels that `spec.placement.nodeSelector` must have with these values; it may have others besides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Keys of tolerations, or prefixes with `*`. A toleration without a key tolerates every taint and needs `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub toleration_keys: Option<Vec<String>>,
    /// PriorityClasses, or prefixes with `*`. A Cluster that names none is allowed and gets the default of the meta cluster.
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
    /// StorageClasses, or prefixes with `*`. A volume that names none is allowed and gets the default of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub classes: Option<Vec<String>>,
    /// The most that one volume may ask for. A Cluster that does not say otherwise asks for 10Gi for each member of etcd and for 20Gi for snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::size")]
    pub max_size: Option<Quantity>,
}

/// Buckets that snapshots may be kept in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.endpoints) || has(self.buckets)")
    .message("it limits nothing: give endpoints (an empty list allows no S3 store), buckets or both"))]
pub struct S3Limits {
    /// Where stores answer, whole and without patterns, such as `https://s3.example.com`. All if left out, none if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "stores")]
    pub endpoints: Option<Vec<String>>,
    /// Names of buckets, or prefixes with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patterns")]
    pub buckets: Option<Vec<String>>,
}

/// How many entries a list may have.
const MOST: u32 = 64;

fn pattern() -> Schema {
    ruled(
        253,
        "self.matches('^([*]|[A-Za-z0-9][A-Za-z0-9._/-]*[*]?)$')",
        "must be a name, or the beginning of names followed by *, such as pay-* or *",
    )
}

fn patterns(_: &mut SchemaGenerator) -> Schema {
    set_of(pattern(), MOST)
}

fn clusters(generator: &mut SchemaGenerator) -> Schema {
    let mut list = patterns(generator);
    list.insert("minItems".to_owned(), 1.into());
    list
}

fn stores(generator: &mut SchemaGenerator) -> Schema {
    set_of(cluster_text::store(generator), MOST)
}

fn endpoint_types(generator: &mut SchemaGenerator) -> Schema {
    let mut item = EndpointType::json_schema(generator);
    item.remove("description");
    json_schema!({"type": "array", "items": item, "maxItems": 4, "minItems": 1, "x-kubernetes-list-type": "set"})
}

/// The schema of a component: a name that is no argument of it would deny nothing and allow nothing.
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
