//! A package version, rendered for one machine: without templates and references.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A component's version as one machine must have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// The component, such as `kubelet`.
    pub component: String,
    /// Its version, for people.
    pub version: String,
    /// The name of the MachinePackageVersion.
    pub reference: String,
    /// The installation method.
    pub method: Method,
    /// Files, in the order in which they are written.
    #[serde(default)]
    pub files: Vec<File>,
    /// Units, in the order in which they are started.
    #[serde(default)]
    pub units: Vec<Unit>,
    /// Health checks.
    #[serde(default)]
    pub health: Health,
    /// Additional actions at removal.
    #[serde(default)]
    pub remove: Remove,
    /// Number of earlier versions kept on the host for a rollback.
    #[serde(default)]
    pub keep: u32,
}

impl Package {
    /// Digest of everything that the host must have: two packages with the same digest need no step between them.
    /// The contents of files that are written once are not part of it.
    pub fn digest(&self) -> String {
        let mut package = self.clone();
        for file in &mut package.files {
            if file.once {
                file.content = Content::default();
            }
        }
        // Struct fields and sorted maps: the same bytes for the same package.
        let bytes = serde_json::to_vec(&package).unwrap_or_default();
        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An installation method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Method {
    /// Debian packages.
    Deb(Deb),
    /// RPM packages.
    Rpm(Rpm),
    /// An archive, unpacked beside the old one.
    Tarball(Tarball),
    /// Files and units alone.
    #[default]
    Config,
    /// Sysctls, by name.
    Sysctl(BTreeMap<String, String>),
    /// A kernel, its modules and boot parameters.
    Kernel(Kernel),
    /// Scripts.
    Script(Script),
    /// The host is rebooted once for this version.
    Reboot,
}

/// Debian packages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deb {
    /// The packages and their exact versions, installed in one transaction.
    pub packages: BTreeMap<String, String>,
    /// The package files; none to use the configured repositories.
    #[serde(default)]
    pub sources: Vec<Source>,
    /// Hold the packages at their version (`apt-mark hold`).
    #[serde(default)]
    pub hold: bool,
}

/// RPM packages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rpm {
    /// The packages and their exact versions (`VERSION-RELEASE`), installed in one transaction.
    pub packages: BTreeMap<String, String>,
    /// The package files; none to use the configured repositories.
    #[serde(default)]
    pub sources: Vec<Source>,
    /// Hold the packages at their version (`versionlock`).
    #[serde(default)]
    pub hold: bool,
}

/// An archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tarball {
    /// The archive: `.tar`, `.tar.gz` or `.tar.zst`, recognized by its content.
    pub source: Source,
    /// Number of leading path components to strip.
    #[serde(default)]
    pub strip: u32,
    /// Links on the host, to paths in the archive. All of them switch at once, with the one link that they go through.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    /// The kernel's packages; none to keep the present kernel.
    #[serde(default)]
    pub deb: Option<Deb>,
    /// The same, on hosts with RPM.
    #[serde(default)]
    pub rpm: Option<Rpm>,
    /// The release, as in `uname -r` once the kernel runs.
    #[serde(default)]
    pub release: Option<String>,
    /// Modules that are loaded, now and at boot, with their options.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
    /// Parameters on the kernel's command line.
    #[serde(default)]
    pub parameters: Vec<String>,
    /// How the boot default is set.
    #[serde(default)]
    pub boot: Boot,
}

/// How a host's boot default is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boot {
    /// By GRUB.
    #[default]
    Grub,
    /// By the links `/vmlinuz` and `/initrd.img`, for boot loaders that follow them.
    Links,
}

/// Scripts, run by `/bin/sh -eu`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Script {
    /// Check script; exits with 0 if nothing needs to be done.
    pub check: String,
    /// Script that applies the change.
    pub apply: String,
    /// Script that reverts the change.
    #[serde(default)]
    pub remove: String,
}

/// A file to download.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// URLs, tried in order.
    #[serde(default)]
    pub urls: Vec<String>,
    /// The bytes themselves, if they came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Bytes>,
    /// The sha256 of the file, in lower-case hex.
    pub sha256: String,
}

/// A file of a package.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The user that owns it.
    pub owner: String,
    /// The group that owns it.
    pub group: String,
    /// Content of the file.
    #[serde(default)]
    pub content: Content,
    /// The content must not appear in logs and messages.
    #[serde(default)]
    pub secret: bool,
    /// Written when the package is installed, and not checked afterwards.
    #[serde(default)]
    pub once: bool,
}

/// The content of a file: text where it is text, so that people can read the request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// Text.
    Text(String),
    /// Binary content.
    Bytes(Bytes),
}

impl Content {
    /// The content as bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => &bytes.0,
        }
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// The content may be a secret: only its length is shown.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.bytes().len())
    }
}

/// Bytes, base64 on the wire.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// The bytes may be a secret: only their length is shown.
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A systemd unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unit {
    /// Its name, such as `kubelet.service`.
    pub name: String,
    /// Enabled at boot; none to leave that unchanged.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// Running now; none to leave that unchanged.
    #[serde(default)]
    pub running: Option<bool>,
    /// The unit file, in `/etc/systemd/system`; none if it comes with a package.
    #[serde(default)]
    pub content: Option<String>,
    /// Drop-ins by name, such as `10-limits.conf`.
    #[serde(default)]
    pub drop_ins: BTreeMap<String, String>,
    /// Files of the package after whose change the unit is restarted, besides changes of the unit or of the method's content.
    #[serde(default)]
    pub restart_on: Vec<String>,
}

/// The health checks of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Checks on the host. All must pass.
    #[serde(default)]
    pub checks: Vec<Check>,
}

/// A health check on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Check {
    /// The unit is active.
    Unit(String),
    /// `HOST:PORT` accepts connections.
    Tcp(String),
    /// The URL answers 2xx.
    Http(String),
    /// The command, run by `/bin/sh -eu`, exits with 0.
    Command(String),
}

/// Additional actions when a component is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// Script run by `/bin/sh -eu` before anything is removed.
    #[serde(default)]
    pub before: Option<String>,
    /// Files and directories that the component creates itself, to be removed with it.
    #[serde(default)]
    pub paths: Vec<String>,
}
