//! What a host says of itself. It is not trusted: it is shown to people, compared with what is wanted, and bounded.

use serde::{Deserialize, Serialize};

use crate::{Mark, StepRecord};

/// Every managed fact of a host, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// What it is.
    pub facts: Facts,
    /// Who it belongs to; none if nobody claimed it.
    #[serde(default)]
    pub owner: Option<Mark>,
    /// Components are installed and the host never had an owner: an earlier version, which wrote no owner mark, installed them.
    #[serde(default)]
    pub never_owned: bool,
    /// The components that were asked about, in the order of the request, and after them those that we installed and that were not asked about.
    pub components: Vec<ComponentSeen>,
    /// The records that were asked for, as far as they exist, and that of a step that runs now.
    pub records: Vec<StepRecord>,
}

/// What a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Its own name.
    pub hostname: String,
    /// Operating system, such as `debian-12`.
    pub os: String,
    /// Running kernel, as `uname -r` says.
    pub kernel: String,
    /// Architecture, as Kubernetes calls it: `amd64`, `arm64`.
    pub arch: String,
    /// Processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Changes with every boot.
    pub boot_id: String,
    /// Stays the same until the host is installed anew.
    pub machine_id: String,
    /// The serial numbers of the machine and its board, as its firmware tells them; none if it does not, or only placeholders.
    #[serde(default)]
    pub serials: Vec<String>,
    /// Seconds since 1970, by its clock.
    pub clock: i64,
    /// Free bytes where our files are.
    pub free: u64,
}

/// What is seen of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSeen {
    /// Which.
    pub component: String,
    /// What we installed last, and finished; none if we never did.
    #[serde(default)]
    pub installed: Option<Installed>,
    /// What was installed before and is kept, newest first.
    #[serde(default)]
    pub previous: Vec<Installed>,
    /// The version that is there, whoever brought it.
    #[serde(default)]
    pub version: Option<String>,
    /// How it differs from the package that was asked about; empty if it was not asked about.
    #[serde(default)]
    pub deviations: Vec<Deviation>,
    /// Units that the package wants running and that do not run.
    #[serde(default)]
    pub down: Vec<String>,
    /// It is in place only after a boot.
    #[serde(default)]
    pub needs_reboot: bool,
    /// What its checks say, if they were asked for.
    #[serde(default)]
    pub health: Vec<CheckSeen>,
}

/// A package that was installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// The name of its MachinePackageVersion.
    pub reference: String,
    /// Its version.
    pub version: String,
    /// Its digest.
    pub digest: String,
}

/// One way in which a host differs from what is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// What, such as `file /etc/hosts mode` or `sysctl vm.swappiness`.
    pub what: String,
    /// How it is. Never the content of a file: its digest and size.
    pub found: String,
    /// How it should be.
    pub wanted: String,
    /// Putting it right restarts or boots something.
    #[serde(default)]
    pub disrupts: bool,
}

/// What one check says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckSeen {
    /// Which, for people: `unit kubelet.service`.
    pub check: String,
    /// Whether it holds.
    pub holds: bool,
    /// What was seen.
    pub message: String,
}
