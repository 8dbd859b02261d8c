use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Span, package_text, text};

/// One component's version, as hosts carry it. Immutable: changing a machine's reference to it is upgrade and rollback.
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
    /// The component, such as `kubelet`.
    #[schemars(schema_with = "text::dns_label")]
    pub component: String,
    /// Its version, for people; components compare by digest.
    #[schemars(schema_with = "package_text::version")]
    pub version: String,

    /// Debian packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deb: Option<OsPackages>,
    /// RPM packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpm: Option<OsPackages>,
    /// An archive, unpacked beside the old version and switched by one link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tarball: Option<Tarball>,
    /// Files and units alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Config>,
    /// Kernel settings, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::sysctls")]
    pub sysctl: Option<BTreeMap<String, String>>,
    /// A kernel, its modules and boot parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// The host is booted once for this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,

    /// Files, with any method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".to_owned()]))]
    pub files: Vec<PackageFile>,
    /// systemd units, with any method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub units: Vec<PackageUnit>,
    /// Components that must be in place and healthy before this one is touched, and that outlive it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::dns_labels")]
    pub depends_on: Vec<String>,
    /// Components that may not be on the same machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "text::dns_labels")]
    pub conflicts_with: Vec<String>,
    /// What installing, upgrading or removing it does to what runs on the machine.
    #[serde(default)]
    pub disruption: Disruption,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How to tell that it works.
    #[serde(default)]
    pub health: PackageHealth,
    /// What happens when it does not work after a change.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// What else is done when it is removed.
    #[serde(default)]
    pub remove: PackageRemove,
    /// How many earlier versions hosts keep, to go back to without fetching anything.
    #[serde(default = "MachinePackageVersionSpec::default_keep")]
    #[schemars(range(min = 0, max = 5))]
    pub keep: u32,
}

impl MachinePackageVersionSpec {
    fn default_keep() -> u32 {
        1
    }
}

/// Packages of the host's operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OsPackages {
    /// The packages and their exact versions, installed in one transaction.
    #[schemars(schema_with = "package_text::os_packages")]
    pub packages: BTreeMap<String, String>,
    /// The package files. Without them the packages come from the repositories that the host is configured for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub sources: Vec<PackageSource>,
    /// Others are kept from changing them.
    #[serde(default = "OsPackages::default_hold")]
    pub hold: bool,
}

impl OsPackages {
    fn default_hold() -> bool {
        true
    }
}

/// Where something comes from: exactly one of `urls`, `configMap` and `secret`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.urls) && self.urls.size() > 0, has(self.configMap), has(self.secret)].filter(given, given).size() == 1")
    .message("a source is in one place: give exactly one of urls (mirrors of the same bytes), configMap and secret"))]
pub struct PackageSource {
    /// Mirrors, tried in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::urls")]
    pub urls: Vec<String>,
    /// A key of a ConfigMap in the same namespace (`binaryData` or `data`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyRef>,
    /// A key of a Secret in the same namespace, whose annotation `fleetwright.io/allowed-machines` names the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
    /// The digest of what is fetched, 64 digits of lower-case hex.
    #[schemars(schema_with = "package_text::sha256")]
    pub sha256: String,
}

/// A key of a ConfigMap or Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The object.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
    /// The key.
    #[schemars(schema_with = "package_text::data_key")]
    pub key: String,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tarball {
    /// The archive: tar, tar.gz or tar.zst.
    pub source: PackageSource,
    /// So many leading folders of each path are dropped.
    #[serde(default)]
    #[schemars(range(max = 16))]
    pub strip: u32,
    /// Links on the host, to paths in the archive.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::links")]
    pub links: BTreeMap<String, String>,
}

/// Files and units alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Config {}

/// The host is booted once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Reboot {}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.deb) || has(self.rpm) || (has(self.modules) && self.modules.size() > 0) || (has(self.parameters) && self.parameters.size() > 0)")
    .message("a kernel is packages, modules or parameters: give at least one of deb, rpm, modules and parameters"))]
#[x_kube(validation = Rule::new("!(has(self.deb) || has(self.rpm)) || has(self.release)")
    .message("whether the kernel of the packages runs is told by its release: give what uname -r says once it does, such as 6.1.0-54-amd64")
    .field_path(".release")
    .reason(Reason::FieldValueRequired))]
pub struct Kernel {
    /// The packages that bring it, on hosts with Debian packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deb: Option<OsPackages>,
    /// The packages that bring it, on hosts with RPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpm: Option<OsPackages>,
    /// What `uname -r` says once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::release")]
    pub release: Option<String>,
    /// Modules that are loaded, now and at boot, with their options.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::modules")]
    pub modules: BTreeMap<String, String>,
    /// Parameters on the kernel's command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::parameters")]
    pub parameters: Vec<String>,
    /// How the boot default is set.
    #[serde(default)]
    pub boot: Boot,
}

/// How a host's boot default is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Boot {
    /// By GRUB.
    #[default]
    Grub,
    /// By the links `/vmlinuz` and `/initrd.img`, for loaders that follow them.
    Links,
}

/// Scripts, run by `/bin/sh -eu`. They may be templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Script {
    /// Ends with 0 if nothing needs to be done.
    #[schemars(schema_with = "package_text::script")]
    pub check: String,
    /// Does it.
    #[schemars(schema_with = "package_text::script")]
    pub apply: String,
    /// Undoes it.
    #[serde(default)]
    #[schemars(schema_with = "package_text::template")]
    pub remove: String,
}

/// A file: exactly one of `content`, `template`, `secret`, `configMap` and `bootstrapKubeconfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.content), has(self.template), has(self.secret), has(self.configMap), has(self.bootstrapKubeconfig) && self.bootstrapKubeconfig].filter(given, given).size() == 1")
    .message("a file has one content: give exactly one of content, template, secret, configMap and bootstrapKubeconfig: true"))]
#[x_kube(validation = Rule::new("!has(self.bootstrapKubeconfig) || !self.bootstrapKubeconfig || self.mode.endsWith('0')")
    .message("a credential is not for everybody on the host to read: set mode to \"0600\"")
    .field_path(".mode"))]
pub struct PackageFile {
    /// Where, absolute.
    #[schemars(schema_with = "package_text::path")]
    pub path: String,
    /// Permission bits, in octal.
    #[serde(default = "PackageFile::default_mode")]
    #[schemars(schema_with = "package_text::mode")]
    pub mode: String,
    /// The user that owns it.
    #[serde(default = "PackageFile::default_owner")]
    #[schemars(schema_with = "text::user")]
    pub owner: String,
    /// The group that owns it.
    #[serde(default = "PackageFile::default_owner")]
    #[schemars(schema_with = "text::user")]
    pub group: String,
    /// What is in it, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub content: Option<String>,
    /// What is in it, with `{{ machine.name }}` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::template")]
    pub template: Option<String>,
    /// A key of a Secret, whose annotation `fleetwright.io/allowed-machines` names the Machine. Never shown anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyRef>,
    /// The kubeconfig with which this machine's kubelet asks for its certificate; made for it, valid for minutes.
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
    /// Its name, such as `kubelet.service`.
    #[schemars(schema_with = "package_text::unit")]
    pub name: String,
    /// Started at boot; left alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Running now; left alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// The unit file; a template. Not given if the packages bring it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::template")]
    pub content: Option<String>,
    /// Drop-ins by name, such as `10-limits.conf`; templates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "package_text::drop_ins")]
    pub drop_ins: BTreeMap<String, String>,
    /// Restarted when these files of the package change, besides when the unit or what the method brings changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::restart_on")]
    pub restart_on: Vec<String>,
}

/// What changing a component does to what runs on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Disruption {
    /// Nothing.
    #[default]
    None,
    /// Something restarts; pods stay.
    Restart,
    /// Pods must leave before.
    Drain,
    /// Pods must leave before, and the host boots.
    Reboot,
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// One step on the host.
    #[serde(default = "Timeouts::default_apply")]
    #[x_kube(validation = text::positive())]
    pub apply: Span,
    /// Until all pods have left.
    #[serde(default = "Timeouts::default_drain")]
    #[x_kube(validation = text::positive())]
    pub drain: Span,
    /// Until the host is back after a boot.
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

/// How to tell that a component works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageHealth {
    /// All checks must hold within that time after a change.
    #[serde(default = "PackageHealth::default_within")]
    #[x_kube(validation = text::positive())]
    pub within: Span,
    /// How often it is asked until then.
    #[serde(default = "PackageHealth::default_every")]
    #[x_kube(validation = text::positive())]
    pub every: Span,
    /// So many times in a row they must hold.
    #[serde(default = "PackageHealth::default_times")]
    #[schemars(range(min = 1, max = 20))]
    pub times: u32,
    /// What must hold.
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

/// One check: exactly one of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.unit), has(self.tcp), has(self.http), has(self.command), has(self.nodeCondition)].filter(given, given).size() == 1")
    .message("a check is one question: give exactly one of unit, tcp, http, command and nodeCondition, and list others on their own"))]
pub struct PackageCheck {
    /// The unit is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::unit")]
    pub unit: Option<String>,
    /// Something listens at `HOST:PORT`, as seen from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::tcp")]
    pub tcp: Option<String>,
    /// The URL answers 2xx, as seen from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::url")]
    pub http: Option<String>,
    /// The command, run by `/bin/sh -eu`, ends with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::command")]
    pub command: Option<String>,
    /// That condition of the machine's Node is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::node_condition")]
    pub node_condition: Option<String>,
}

/// What happens when a component does not work after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The version that worked comes back.
    #[default]
    RollBack,
    /// It is left as it is, for a person to look at.
    Hold,
}

/// What else is done when a component is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageRemove {
    /// A script, run by `/bin/sh -eu` before anything is taken away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "package_text::command")]
    pub before: Option<String>,
    /// Files and folders that the component made itself, and that go with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "package_text::removed_paths")]
    pub paths: Vec<String>,
}
