//! Steps, and what is remembered of them.

use serde::{Deserialize, Serialize};

use crate::{Claim, Package};

/// What to look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observe {
    /// The packages that the host should carry.
    pub packages: Vec<Package>,
    /// Components that are compared with the package that the host itself keeps of what is installed: versions that were restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub installed: Vec<String>,
    /// Also run their health checks.
    #[serde(default)]
    pub health: bool,
    /// Also tell what became of these steps.
    #[serde(default)]
    pub records: Vec<String>,
    /// Also tell of so many of the last steps, whatever their ids.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recent: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Run this step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Apply {
    /// The step's id: the same id never runs twice. Letters, digits, `-` and `.`, at most 128.
    pub id: String,
    /// Who asks.
    pub claim: Claim,
    /// What to do.
    pub step: Step,
    /// After so many seconds whatever the step runs is killed and the step failed.
    pub within: u64,
    /// What is installed has not proven itself: an installation does not keep it to go back to, and drops no earlier version for it.
    #[serde(default)]
    pub unproven: bool,
}

/// One change of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Bring the component to this package, from whatever is there. What was there is kept, as far as the package says, unless it is
    /// [`Apply::unproven`].
    Install(Package),
    /// Put right what differs from this package, which is installed.
    Repair(Package),
    /// Take the component away, by what the host remembers of it.
    Remove {
        /// Which.
        component: String,
    },
    /// Bring the component back to a version that the host keeps. Needs nothing from elsewhere.
    Back {
        /// Which.
        component: String,
        /// The digest of the kept version.
        to: String,
    },
    /// Boot. Ended when the host runs with another boot id than it had when the step began.
    Reboot,
}

impl Step {
    /// What kind of step.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Install(_) => Verb::Install,
            Self::Repair(_) => Verb::Repair,
            Self::Remove { .. } => Verb::Remove,
            Self::Back { .. } => Verb::Back,
            Self::Reboot => Verb::Reboot,
        }
    }

    /// Which component, if it is about one.
    pub fn component(&self) -> Option<&str> {
        match self {
            Self::Install(package) | Self::Repair(package) => Some(&package.component),
            Self::Remove { component } | Self::Back { component, .. } => Some(component),
            Self::Reboot => None,
        }
    }
}

/// What kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Install, upgrade or downgrade.
    Install,
    /// Repair.
    Repair,
    /// Remove.
    Remove,
    /// Go back.
    Back,
    /// Boot.
    Reboot,
}

/// What a host remembers of a step. Written, and on disk, before the step begins and after it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// Its id.
    pub id: String,
    /// What kind.
    pub verb: Verb,
    /// Which component.
    #[serde(default)]
    pub component: Option<String>,
    /// To which digest.
    #[serde(default)]
    pub digest: Option<String>,
    /// The boot in which it began.
    pub boot_id: String,
    /// When it began, by the host's clock, in seconds since 1970.
    pub began: i64,
    /// When it ended.
    #[serde(default)]
    pub ended: Option<i64>,
    /// What became of it.
    pub outcome: Outcome,
    /// It failed before anything on the host was changed, as when something could not be fetched: it may be tried again as it is.
    #[serde(default)]
    pub untouched: bool,
    /// What a person should know: what was done, or what failed.
    #[serde(default)]
    pub message: String,
    /// The end of what it printed.
    #[serde(default)]
    pub tail: String,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It goes on, in a process that lives.
    Running,
    /// It ended well.
    Done,
    /// It ended badly, and nothing of it goes on.
    Failed,
    /// It was begun and its process is gone without a word: killed, or the host went down. What it did must be seen by looking.
    Interrupted,
    /// It was never begun and never will be.
    Refused,
}

/// How far a step is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// What it does now, such as `fetching http://… 40 %`.
    pub doing: String,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// For people.
    pub message: String,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// It is not understood.
    NotUnderstood,
    /// Another step runs.
    Busy,
    /// A newer leader was heard.
    Fenced,
    /// The journal cannot be written: no room, read-only, or broken. Without it nothing is begun.
    NoJournal,
    /// The host is none that we can serve.
    Unsupported,
    /// The host belongs to another Machine, or to the same one in another epoch.
    NotOwner,
    /// It has components of ours: remove them first.
    InUse,
    /// Anything else.
    Other,
}
