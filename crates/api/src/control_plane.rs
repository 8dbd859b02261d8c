use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyRef, cluster_text};

/// What a control plane is made of, in the order in which it is upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ControlPlaneComponent {
    /// The datastore.
    Etcd,
    /// kube-apiserver.
    Apiserver,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl ControlPlaneComponent {
    /// All of them, in the order in which they are upgraded.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Apiserver, Self::ControllerManager, Self::Scheduler];

    /// The field that speaks of it, in package versions and clusters.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::ControllerManager => "controllerManager",
            Self::Scheduler => "scheduler",
        }
    }

    /// Its executable, which its containers and objects are called after.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }

    /// The component of that executable.
    pub fn of_binary(binary: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.binary() == binary)
    }

    /// Where the files of `config` are, in its container.
    pub fn config_folder(self) -> String {
        format!("/etc/kubernetes/{}-config", self.binary())
    }
}

impl fmt::Display for ControlPlaneComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.binary())
    }
}

/// One component of a control plane: what runs, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentPackage {
    /// The image, with a tag or digest.
    #[schemars(schema_with = "cluster_text::image")]
    pub image: String,
    /// The version of the component, where the image's tag does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::version")]
    pub version: Option<String>,
    /// Arguments: names without leading dashes, and values. Those of the operator itself are refused, and so are unknown ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::arguments")]
    pub args: BTreeMap<String, String>,
    /// Files of component configuration. The operator passes each by the argument that goes with its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub config: Vec<ConfigFile>,
}

impl ComponentPackage {
    /// An image alone.
    pub fn of(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }

    /// The version of the component: `version` if it is given, else that of the image's tag, without `v` and build number. Admission
    /// sees to it that there is one.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref().or_else(|| tagged(&self.image))
    }
}

/// The version that an image's tag tells: `registry.example:5000/etcd:v3.6.16-0@sha256:…` is 3.6.16.
fn tagged(image: &str) -> Option<&str> {
    let named = image.split('@').next()?;
    // What follows the last colon is a port if a path follows it.
    let tag = named.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))?;
    let tag = tag.strip_prefix('v').unwrap_or(tag);
    let (version, build) = tag.split_once('-').unwrap_or((tag, "0"));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = version.split('.').count() == 3 && version.split('.').all(number) && number(build);
    plain.then_some(version)
}

/// A file of component configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFile {
    /// Its name, which says what it is for.
    #[schemars(schema_with = "cluster_text::file_name")]
    pub name: String,
    /// What is in it, as it is.
    #[schemars(length(max = 65536))]
    pub content: String,
}

/// The files that a component takes, and the argument by which each is passed. Others that do not end in `.yaml` lie beside them, for
/// these to refer to.
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

/// What a Cluster says otherwise of a component than its package version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentOverrides {
    /// Arguments, which win over those of the package version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::arguments")]
    pub args: BTreeMap<String, String>,
    /// Files of component configuration, which take the place of those of the package version with the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub config: Vec<ConfigOverride>,
    /// What each of its pods may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// A file of component configuration: exactly one of `content` and `secret`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.content) != has(self.secret)")
    .message("a file has one content: give exactly one of content and secret"))]
pub struct ConfigOverride {
    /// Its name, which says what it is for.
    #[schemars(schema_with = "cluster_text::file_name")]
    pub name: String,
    /// What is in it, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// A key of a Secret in the same namespace, whose annotation `fleetwright.io/readable-by-clusters` names this Cluster: its administrator can
    /// read it. Never shown anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
}

/// What a pod may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) || !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)")
    .message("what is requested is more than the limit: lower requests or raise limits")
    .field_path(".requests"))]
pub struct Resources {
    /// What is kept free for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::resources")]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "cluster_text::resources")]
    pub limits: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_an_image_tells_its_version_if_it_is_one() {
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
