use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyRef, cluster_text};

/// Component of a control plane, in the order of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ControlPlaneComponent {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    Apiserver,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl ControlPlaneComponent {
    /// All components, in the order in which they are upgraded.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Apiserver, Self::ControllerManager, Self::Scheduler];

    /// Returns the field of the component in package versions and Clusters.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::ControllerManager => "controllerManager",
            Self::Scheduler => "scheduler",
        }
    }

    /// Returns the name of the executable, after which the containers and objects of the component are named.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }

    /// Returns the component with this executable.
    pub fn of_binary(binary: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.binary() == binary)
    }

    /// Returns the folder of the `config` files in the container of the component.
    pub fn config_folder(self) -> String {
        format!("/etc/kubernetes/{}-config", self.binary())
    }
}

impl fmt::Display for ControlPlaneComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.binary())
    }
}

/// Image, arguments and configuration of one component of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentPackage {
    /// Image of the component, with a tag or digest.
    #[schemars(schema_with = "cluster_text::image")]
    pub image: String,
    /// Version of the component. Set it if the tag of the image is not the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::version")]
    pub version: Option<String>,
    /// Command-line arguments: names without leading dashes, and values. Unknown arguments and arguments that the operator sets itself are rejected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::arguments")]
    pub args: BTreeMap<String, String>,
    /// Component configuration files. The operator passes each file with the argument that belongs to its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub config: Vec<ConfigFile>,
}

impl ComponentPackage {
    /// Returns a package with only an image.
    pub fn of(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }

    /// Returns the version of the component: `version` if it is set, otherwise the tag of the image without `v` and build number.
    /// Admission ensures that one of them is given.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref().or_else(|| tagged(&self.image))
    }
}

/// Returns true if an image is named by its digest. A registry can move a tag to another image.
pub fn is_digest(image: &str) -> bool {
    image.contains("@sha256:")
}

/// Returns the version in the tag of an image: `registry.example:5000/etcd:v3.6.16-0@sha256:…` is 3.6.16.
fn tagged(image: &str) -> Option<&str> {
    let named = image.split('@').next()?;
    // Text after the last colon is a port if a path follows it.
    let tag = named.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))?;
    let tag = tag.strip_prefix('v').unwrap_or(tag);
    let (version, build) = tag.split_once('-').unwrap_or((tag, "0"));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = version.split('.').count() == 3 && version.split('.').all(number) && number(build);
    plain.then_some(version)
}

/// A component configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFile {
    /// Name of the file. It determines the purpose of the file.
    #[schemars(schema_with = "cluster_text::file_name")]
    pub name: String,
    /// Literal content of the file.
    #[schemars(length(max = 65536))]
    pub content: String,
}

/// Files that a component takes, and the argument that passes each of them.
/// Other files that do not end in `.yaml` are put into the same folder, so that these files can refer to them.
pub const CONFIG_FILES: [(ControlPlaneComponent, &str, &str); 8] = [
    (ControlPlaneComponent::Apiserver, "admission.yaml", "admission-control-config-file"),
    (ControlPlaneComponent::Apiserver, "audit.yaml", "audit-policy-file"),
    (ControlPlaneComponent::Apiserver, "authentication.yaml", "authentication-config"),
    (ControlPlaneComponent::Apiserver, "authorization.yaml", "authorization-config"),
    (ControlPlaneComponent::Apiserver, "egress.yaml", "egress-selector-config-file"),
    (ControlPlaneComponent::Apiserver, "encryption.yaml", "encryption-provider-config"),
    (ControlPlaneComponent::Apiserver, "tracing.yaml", "tracing-config-file"),
    (ControlPlaneComponent::Scheduler, "scheduler.yaml", "config"),
];

/// Settings of a component in a Cluster that differ from the package version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentOverrides {
    /// Command-line arguments. They override those of the package version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::arguments")]
    pub args: BTreeMap<String, String>,
    /// Component configuration files. They replace the files of the package version with the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub config: Vec<ConfigOverride>,
    /// Compute resources of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// A component configuration file. Exactly one of `content` and `secret` must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.content) != has(self.secret)")
    .message("a file has one content: give exactly one of content and secret"))]
pub struct ConfigOverride {
    /// Name of the file. It determines the purpose of the file.
    #[schemars(schema_with = "cluster_text::file_name")]
    pub name: String,
    /// Literal content of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// Key of a Secret in the same namespace.
    /// The annotation `fleetwright.io/readable-by-clusters` of the Secret must name this Cluster, because the administrator of the cluster can read the
    /// content. The content is never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
}

/// Compute resources of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) || !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)")
    .message("what is requested is more than the limit: lower requests or raise limits")
    .field_path(".requests"))]
pub struct Resources {
    /// Resources that are reserved for the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::resources")]
    pub requests: BTreeMap<String, Quantity>,
    /// Maximum resources that the pod may use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::resources")]
    pub limits: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_tag_of_an_image_if_it_is_one() {
        for (image, version) in [
            ("registry.example/kube-apiserver:v1.36.4", Some("1.36.4")),
            ("registry.example:5000/a/kube-apiserver:1.36.4", Some("1.36.4")),
            ("registry.k8s.io/etcd:3.6.6-0", Some("3.6.6")),
            ("etcd:v3.6.16@sha256:6f1c", Some("3.6.16")),
            ("etcd@sha256:6f1c", None),
            ("registry.example:5000/etcd", None),
            ("etcd:v3.6.16-rc.1", None),
            ("etcd:v3.6", None),
            ("etcd:stable", None),
        ] {
            assert_eq!(ComponentPackage::of(image).version(), version, "{image}");
        }
        let own = ComponentPackage { version: Some("1.36.4".to_owned()), ..ComponentPackage::of("a:hardened") };
        assert_eq!(own.version(), Some("1.36.4"));
    }

    #[test]
    fn a_component_is_found_by_its_executable() {
        for component in ControlPlaneComponent::ALL {
            assert_eq!(ControlPlaneComponent::of_binary(component.binary()), Some(component));
            assert_eq!(serde_json::to_value(component).expect("it is JSON"), component.field());
        }
        assert_eq!(ControlPlaneComponent::of_binary("kubelet"), None);
    }
}
