//! Steps and their records.

use serde::{Deserialize, Serialize};

use crate::{Claim, Package};

/// What an observation includes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observe {
    /// The packages that the host should have.
    pub packages: Vec<Package>,
    /// Components to compare with the package that the host itself keeps of the installed version, because that version was restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub installed: Vec<String>,
    /// Also run the health checks of the packages.
    #[serde(default)]
    pub health: bool,
    /// Ids of steps whose records to include.
    #[serde(default)]
    pub records: Vec<String>,
    /// Number of latest steps whose records to include, whatever their ids.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recent: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A request to run a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Apply {
    /// The step's id: the same id never runs twice. Letters, digits, `-` and `.`, at most 128.
    pub id: String,
    /// The owner and fencing token of the caller.
    pub claim: Claim,
    /// The step to run.
    pub step: Step,
    /// Timeout in seconds: then all programs of the step are killed, and the step has failed.
    pub within: u64,
    /// The installed version is not proven: an installation does not keep it for a rollback, and drops no earlier version for it.
    #[serde(default)]
    pub unproven: bool,
}

/// One change of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Install this package, whatever is installed now. The installed version is kept, as far as the package says, unless it is
    /// [`Apply::unproven`].
    Install(Package),
    /// Repair the deviations from this package, which is installed.
    Repair(Package),
    /// Remove the component, by what the host recorded of it.
    Remove {
        /// Name of the component.
        component: String,
    },
    /// Restore a version that the host keeps. Needs nothing from elsewhere.
    Back {
        /// Name of the component.
        component: String,
        /// The digest of the kept version.
        to: String,
    },
    /// Reboot. Ended when the host's boot id differs from that at the start of the step.
    Reboot,
}

impl Step {
    /// The kind of the step.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Install(_) => Verb::Install,
            Self::Repair(_) => Verb::Repair,
            Self::Remove { .. } => Verb::Remove,
            Self::Back { .. } => Verb::Back,
            Self::Reboot => Verb::Reboot,
        }
    }

    /// The component of the step, if it has one.
    pub fn component(&self) -> Option<&str> {
        match self {
            Self::Install(package) | Self::Repair(package) => Some(&package.component),
            Self::Remove { component } | Self::Back { component, .. } => Some(component),
            Self::Reboot => None,
        }
    }
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Install, upgrade or downgrade.
    Install,
    /// Repair deviations.
    Repair,
    /// Remove a component.
    Remove,
    /// Restore a kept version.
    Back,
    /// Reboot.
    Reboot,
}

/// The host's record of a step. It is on disk before the step starts and again after the step has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// Id of the step.
    pub id: String,
    /// Kind of the step.
    pub verb: Verb,
    /// Component of the step.
    #[serde(default)]
    pub component: Option<String>,
    /// Digest that the step installs.
    #[serde(default)]
    pub digest: Option<String>,
    /// Boot id when the step started.
    pub boot_id: String,
    /// Start time by the host's clock, in seconds since 1970.
    pub began: i64,
    /// End time by the host's clock, in seconds since 1970.
    #[serde(default)]
    pub ended: Option<i64>,
    /// Outcome of the step.
    pub outcome: Outcome,
    /// The step failed before it changed anything on the host, for example because a download failed: it may be retried unchanged.
    #[serde(default)]
    pub untouched: bool,
    /// Message for people: what was done, or what failed.
    #[serde(default)]
    pub message: String,
    /// The end of the step's output.
    #[serde(default)]
    pub tail: String,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The step is running in a live process.
    Running,
    /// The step succeeded.
    Done,
    /// The step failed, and nothing of it is still running.
    Failed,
    /// The step was started, and its process is gone without a result: killed, or the host went down. Its effect must be observed on the host.
    Interrupted,
    /// The step was never started and never will be.
    Refused,
}

/// The progress of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// What the step does now, such as `fetching http://… 40 %`.
    pub doing: String,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// Message for people.
    pub message: String,
}

/// The kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The request is invalid.
    NotUnderstood,
    /// Another step is running.
    Busy,
    /// A newer leader has used a higher fencing token.
    Fenced,
    /// The journal cannot be written: no space, read-only, or broken. Without it no step starts.
    NoJournal,
    /// The host cannot be managed by this helper.
    Unsupported,
    /// The host belongs to another Machine, or to the same one in another epoch.
    NotOwner,
    /// The host still has components of ours: remove them first.
    InUse,
    /// Any other failure.
    Other,
}
