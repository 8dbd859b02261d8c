use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Span, package_text, text};

/// One version of a component that is installed on hosts. Immutable: change the reference of a Machine to upgrade or roll back.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "MachinePackageVersion",
    namespaced,
    shortname = "mpv",
    category = "fleet",
    printcolumn = r#"{"name": "Component", "type": "string", "jsonPath": ".spec.component"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.version"}"#,
    printcolumn = r#"{"name": "Disruption", "type": "string", "jsonPath": ".spec.disruption"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Depends on", "type": "string", "jsonPath": ".spec.dependsOn", "priority": 1}"#,
    printcolumn = r#"{"name": "On failure", "type": "string", "jsonPath": ".spec.onFailure", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("a package version does not change: make another MachinePackageVersion and let machines refer to it")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("[has(self.deb), has(self.rpm), has(self.tarball), has(self.config), has(self.sysctl), has(self.kernel), has(self.script), has(self.reboot)].filter(given, given).size() == 1")
    .message("a package version has one method: give exactly one of deb, rpm, tarball, config, sysctl, kernel, script and reboot (files alone: config: {})"))]
#[x_kube(validation = Rule::new("!has(self.config) || (has(self.files) && self.files.size() > 0) || (has(self.units) && self.units.size() > 0)")
    .message("the method config is files and units alone: list at least one in files or units")
    .field_path(".config")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("!(has(self.kernel) || has(self.reboot)) || self.disruption == 'Reboot'")
    .message("the methods kernel and reboot boot the host: set disruption to Reboot")
    .field_path(".disruption"))]
#[x_kube(validation = Rule::new("!has(self.dependsOn) || !(self.component in self.dependsOn)")
    .message("a component cannot wait for itself: leave it out of dependsOn")
    .field_path(".dependsOn")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.conflictsWith) || !(self.component in self.conflictsWith)")
    .message("a component cannot conflict with itself, a machine carries one version of it anyway: leave it out of conflictsWith")
    .field_path(".conflictsWith")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.conflictsWith) || !has(self.dependsOn) || !self.dependsOn.exists(component, component in self.conflictsWith)")
    .message("a component that must be there cannot be one that may not be there: name it in dependsOn or in conflictsWith")
    .field_path(".conflictsWith")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.units) || self.units.all(unit, !has(unit.restartOn) || unit.restartOn.all(path, has(self.files) && self.files.exists(file, file.path == path)))")
    .message("restartOn names files of this package version, by their path: list the file in files, or leave it out of restartOn")
    .field_path(".units"))]
#[x_kube(validation = Rule::new("!has(self.tarball) || !has(self.tarball.links) || !has(self.files) || !self.files.exists(file, file.path in self.tarball.links)")
    .message("a path is a file or a link, not both: leave it out of files or of tarball.links")
    .field_path(".files")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new(package_text::ALL_TEXTS)
    .message("files, units and scripts are more than 262144 characters in all, which the datastore of the API server may not hold: put big ones into a ConfigMap or Secret and refer to it, or into an archive"))]
pub struct MachinePackageVersionSpec {
    /// Name of the component, such as `kubelet`.
    #[schemars(schema_with = "text::dns_label")]
    pub component: String,
    /// Human-readable version. Installed and declared packages are compared by digest.
    #[schemars(schema_with = "package_text::version")]
    pub version: String,

    /// Debian packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deb: Option<OsPackages>,
    /// RPM packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpm: Option<OsPackages>,
    /// An archive. It is unpacked beside the old version, and one link switches to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tarball: Option<Tarball>,
    /// Only files and units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Config>,
    /// Kernel parameters (sysctl) by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::sysctls")]
    pub sysctl: Option<BTreeMap<String, String>>,
    /// A kernel, its modules and boot parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// Reboots the host once for this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,

    /// Files. Allowed with every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".to_owned()]))]
    pub files: Vec<PackageFile>,
    /// systemd units. Allowed with every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub units: Vec<PackageUnit>,
    /// Components that must be installed and healthy before this component is changed. They are removed only after this component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::dns_labels")]
    pub depends_on: Vec<String>,
    /// Components that must not be installed on the same machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::dns_labels")]
    pub conflicts_with: Vec<String>,
    /// How installing, upgrading or removing the component disrupts workloads on the machine.
    #[serde(default)]
    pub disruption: Disruption,
    /// Timeouts of the steps.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How the health of the component is checked.
    #[serde(default)]
    pub health: PackageHealth,
    /// What happens if the component does not work after a change.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Additional steps when the component is removed.
    #[serde(default)]
    pub remove: PackageRemove,
    /// Number of earlier versions that hosts keep for a rollback without downloads.
    #[serde(default = "MachinePackageVersionSpec::default_keep")]
    #[schemars(range(min = 0, max = 5))]
    pub keep: u32,
}

impl MachinePackageVersionSpec {
    fn default_keep() -> u32 {
        1
    }
}

/// Packages of the operating system of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OsPackages {
    /// Names of the packages and their exact versions. They are installed in one transaction.
    #[schemars(schema_with = "package_text::os_packages")]
    pub packages: BTreeMap<String, String>,
    /// Package files. If omitted, the packages are installed from the repositories that are configured on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub sources: Vec<PackageSource>,
    /// Protects the packages from changes by others.
    #[serde(default = "OsPackages::default_hold")]
    pub hold: bool,
}

impl OsPackages {
    fn default_hold() -> bool {
        true
    }
}

/// Source of a file. Exactly one of `urls`, `configMap` and `secret` must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.urls) && self.urls.size() > 0, has(self.configMap), has(self.secret)].filter(given, given).size() == 1")
    .message("a source is in one place: give exactly one of urls (mirrors of the same bytes), configMap and secret"))]
pub struct PackageSource {
    /// URLs of mirrors, tried in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::urls")]
    pub urls: Vec<String>,
    /// Key of a ConfigMap in the same namespace (`binaryData` or `data`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyRef>,
    /// Key of a Secret in the same namespace. The annotation `fleetwright.io/allowed-machines` of the Secret must name the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
    /// SHA-256 digest of the file, 64 lower-case hexadecimal digits.
    #[schemars(schema_with = "package_text::sha256")]
    pub sha256: String,
}

/// Reference to a key of a ConfigMap or Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the object.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
    /// Key in the object.
    #[schemars(schema_with = "package_text::data_key")]
    pub key: String,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tarball {
    /// The archive: tar, tar.gz or tar.zst.
    pub source: PackageSource,
    /// Number of leading folders that are removed from each path.
    #[serde(default)]
    #[schemars(range(max = 16))]
    pub strip: u32,
    /// Links on the host to paths in the archive.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::links")]
    pub links: BTreeMap<String, String>,
}

/// Only files and units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Config {}

/// One reboot of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Reboot {}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.deb) || has(self.rpm) || (has(self.modules) && self.modules.size() > 0) || (has(self.parameters) && self.parameters.size() > 0)")
    .message("a kernel is packages, modules or parameters: give at least one of deb, rpm, modules and parameters"))]
#[x_kube(validation = Rule::new("!(has(self.deb) || has(self.rpm)) || has(self.release)")
    .message("release is required: it shows whether the kernel of the packages runs; give the output of uname -r, such as 6.1.0-54-amd64")
    .field_path(".release")
    .reason(Reason::FieldValueRequired))]
pub struct Kernel {
    /// Packages of the kernel on hosts with Debian packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deb: Option<OsPackages>,
    /// Packages of the kernel on hosts with RPM packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpm: Option<OsPackages>,
    /// Output of `uname -r` when this kernel runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::release")]
    pub release: Option<String>,
    /// Modules that are loaded, immediately and at boot, with their options.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::modules")]
    pub modules: BTreeMap<String, String>,
    /// Parameters on the kernel command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::parameters")]
    pub parameters: Vec<String>,
    /// How the default boot entry is set.
    #[serde(default)]
    pub boot: Boot,
}

/// How the default boot entry of a host is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Boot {
    /// With GRUB.
    #[default]
    Grub,
    /// With the links `/vmlinuz` and `/initrd.img`, for boot loaders that follow them.
    Links,
}

/// Scripts, run by `/bin/sh -eu`. They may be templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Script {
    /// Script that exits with 0 if nothing needs to be done.
    #[schemars(schema_with = "package_text::script")]
    pub check: String,
    /// Script that makes the change.
    #[schemars(schema_with = "package_text::script")]
    pub apply: String,
    /// Script that reverts the change.
    #[serde(default)]
    #[schemars(schema_with = "package_text::template")]
    pub remove: String,
}

/// A file. Exactly one of `content`, `template`, `secret`, `configMap` and `bootstrapKubeconfig` must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.content), has(self.template), has(self.secret), has(self.configMap), has(self.bootstrapKubeconfig) && self.bootstrapKubeconfig].filter(given, given).size() == 1")
    .message("a file has one content: give exactly one of content, template, secret, configMap and bootstrapKubeconfig: true"))]
#[x_kube(validation = Rule::new("!has(self.bootstrapKubeconfig) || !self.bootstrapKubeconfig || self.mode.endsWith('0')")
    .message("a credential is not for everybody on the host to read: set mode to \"0600\"")
    .field_path(".mode"))]
pub struct PackageFile {
    /// Absolute path of the file.
    #[schemars(schema_with = "package_text::path")]
    pub path: String,
    /// Permission bits in octal.
    #[serde(default = "PackageFile::default_mode")]
    #[schemars(schema_with = "package_text::mode")]
    pub mode: String,
    /// User that owns the file.
    #[serde(default = "PackageFile::default_owner")]
    #[schemars(schema_with = "text::user")]
    pub owner: String,
    /// Group that owns the file.
    #[serde(default = "PackageFile::default_owner")]
    #[schemars(schema_with = "text::user")]
    pub group: String,
    /// Literal content of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// Content of the file with expressions such as `{{ machine.name }}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::template")]
    pub template: Option<String>,
    /// Key of a Secret. The annotation `fleetwright.io/allowed-machines` of the Secret must name the Machine. The content is never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
    /// Key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyRef>,
    /// The file is the kubeconfig with which the kubelet of this machine requests its certificate. It is created for this machine and valid for minutes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bootstrap_kubeconfig: bool,
}

impl PackageFile {
    fn default_mode() -> String {
        "0644".to_owned()
    }

    fn default_owner() -> String {
        "root".to_owned()
    }
}

/// A systemd unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageUnit {
    /// Name of the unit, such as `kubelet.service`.
    #[schemars(schema_with = "package_text::unit")]
    pub name: String,
    /// Whether the unit is started at boot. If omitted, this is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether the unit is running. If omitted, this is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Content of the unit file, a template. Omit it if the packages contain the unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::template")]
    pub content: Option<String>,
    /// Drop-ins by name, such as `10-limits.conf`. Their content is a template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::drop_ins")]
    pub drop_ins: BTreeMap<String, String>,
    /// Files of the package whose change restarts the unit. A change of the unit or of what the method installs restarts it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::restart_on")]
    pub restart_on: Vec<String>,
}

/// Disruption of workloads on a machine by a change of a component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Disruption {
    /// No disruption.
    #[default]
    None,
    /// Something restarts; pods stay on the Node.
    Restart,
    /// Pods are evicted from the Node first.
    Drain,
    /// Pods are evicted from the Node first, and the host reboots.
    Reboot,
}

/// Timeouts of steps on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Timeout of one step on the host.
    #[serde(default = "Timeouts::default_apply")]
    #[x_kube(validation = text::positive())]
    pub apply: Span,
    /// Timeout until all pods have left the Node.
    #[serde(default = "Timeouts::default_drain")]
    #[x_kube(validation = text::positive())]
    pub drain: Span,
    /// Timeout until the host is back after a reboot.
    #[serde(default = "Timeouts::default_reboot")]
    #[x_kube(validation = text::positive())]
    pub reboot: Span,
}

impl Timeouts {
    fn default_apply() -> Span {
        Span::minutes(10)
    }

    fn default_drain() -> Span {
        Span::minutes(30)
    }

    fn default_reboot() -> Span {
        Span::minutes(15)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { apply: Self::default_apply(), drain: Self::default_drain(), reboot: Self::default_reboot() }
    }
}

/// How the health of a component is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageHealth {
    /// Time after a change within which all checks must pass.
    #[serde(default = "PackageHealth::default_within")]
    #[x_kube(validation = text::positive())]
    pub within: Span,
    /// Interval between checks until then.
    #[serde(default = "PackageHealth::default_every")]
    #[x_kube(validation = text::positive())]
    pub every: Span,
    /// Number of consecutive times that all checks must pass.
    #[serde(default = "PackageHealth::default_times")]
    #[schemars(range(min = 1, max = 20))]
    pub times: u32,
    /// Checks that must pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub checks: Vec<PackageCheck>,
}

impl PackageHealth {
    fn default_within() -> Span {
        Span::minutes(3)
    }

    fn default_every() -> Span {
        Span::seconds(2)
    }

    fn default_times() -> u32 {
        1
    }
}

impl Default for PackageHealth {
    fn default() -> Self {
        Self {
            within: Self::default_within(),
            every: Self::default_every(),
            times: Self::default_times(),
            checks: Vec::new(),
        }
    }
}

/// One check. Exactly one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.unit), has(self.tcp), has(self.http), has(self.command), has(self.nodeCondition)].filter(given, given).size() == 1")
    .message("a check is one question: give exactly one of unit, tcp, http, command and nodeCondition, and list others on their own"))]
pub struct PackageCheck {
    /// The systemd unit is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::unit")]
    pub unit: Option<String>,
    /// A process accepts TCP connections at `HOST:PORT`, seen from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::tcp")]
    pub tcp: Option<String>,
    /// A request to the URL returns status 2xx, seen from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::url")]
    pub http: Option<String>,
    /// The command, run by `/bin/sh -eu`, exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::command")]
    pub command: Option<String>,
    /// The condition of this type of the machine's Node is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::node_condition")]
    pub node_condition: Option<String>,
}

/// What happens if a component does not work after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The last working version is restored.
    #[default]
    RollBack,
    /// The component is left unchanged, so that a person can examine it.
    Hold,
}

/// Additional steps when a component is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageRemove {
    /// Script, run by `/bin/sh -eu` before anything is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::command")]
    pub before: Option<String>,
    /// Files and folders that the component created itself. They are removed with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::removed_paths")]
    pub paths: Vec<String>,
}
