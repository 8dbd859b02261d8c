//! A machine's host, driven to its packages: the next action, from the spec, the status, the observed host, and the time.
//!
//! Expected flow: the host is observed; differences from what is declared become [`PlannedStep`]s in the order of their dependencies; they
//! are run one at a time, each until its component is proven to work. Disruptive steps run inside a window: an Operation that closes the
//! Node, drains it, and opens it again. When nothing is left to do, the host is observed from time to time.
//!
//! Guarantees of [`decide`]:
//! - nothing is changed on a host that belongs to another Machine, or differs from the declared hardware;
//! - a host that has packages and never had an owner is claimed only by the Machine that installed them, or by hand;
//! - nothing is changed on a host whose key is not trusted, whose machine is paused, or one of whose packages cannot be rendered;
//! - while a Node of the machine's name is not bound to it, neither that Node nor the host is changed;
//! - labels, taints and provider id of a bound Node wait neither for the gate nor for the host;
//! - at most one step at a time, each under an id that is not used for another one;
//! - a disruptive step is decided only inside an open window, if the machine has a Node;
//! - a package that did not work is not retried until another is declared or a person asks;
//! - the time in which the API server did not answer does not count against a package that must join or keep a Node;
//! - a version that was installed and is not proven is not restored by a rollback;
//! - a restored version is checked for health before its Node is opened, and guarded against drift like any other;
//! - the same inputs give the same decision: after a crash, the next process decides as the one before would have.

mod component;
mod decide;
mod deletion;
mod drift;
mod events;
mod node;
mod observe;
mod order;
mod owner;
mod preview;
mod records;
mod rollback;
mod status;
mod step;
#[cfg(test)]
mod tests;
pub(crate) mod version;
mod window;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{Disruption, Machine, MachineStatus, Taint};
use fleetwright_wire as wire;
use jiff::Timestamp;

use crate::join::Binding;
use crate::package::{Rendered, StepTimeouts};
use crate::skew::{self, ServerMinors};

pub use decide::decide;
pub use drift::next_check;
pub use events::{Level, MachineEvent, events_between};
pub use order::{PackageConflict, order};
pub use preview::{components_without_inputs, steps};
pub use status::{OWNED_CONDITIONS, facts, owned_status};
pub(crate) use step::text as step_text;
pub use step::{InputChange, PlannedStep, Verb};

/// All inputs of a decision.
#[derive(Clone, Debug)]
pub struct MachineInputs<'a> {
    /// The Machine object.
    pub machine: &'a Machine,
    /// The identity by which the host knows the machine.
    pub identity: &'a wire::Owner,
    /// The fencing token of this leader; 0 without a lease.
    pub fence: u64,
    /// The name of an older Machine of the same API server that has the same address.
    pub same_address: Option<&'a str>,
    /// The packages that its host should have, in the order of the specification.
    pub wanted: DesiredPackages<'a>,
    /// Versions that are on the host and not wanted: of components to be removed, and of restored versions.
    pub leaving: &'a BTreeMap<String, LeavingVersion>,
    /// The state of the host.
    pub host: HostKnowledge<'a>,
    /// The Node that is bound to the machine.
    pub node: Option<Node<'a>>,
    /// Whether the Node of its name is bound to the machine. `node` is none unless it is.
    pub binding: &'a Binding,
    /// When its bootstrap token first requested a client certificate that was approved.
    pub certified: Option<Timestamp>,
    /// The remaining pods on the Node when they were last listed in this window; none if they were not.
    pub pods: Option<&'a RemainingPods>,
    /// Its window, if one waits or is open.
    pub window: Option<Window<'a>>,
    /// Abandoned windows, by [`WindowRequest::fingerprint`].
    pub given_up: &'a BTreeMap<String, AbandonedWindows>,
    /// How often in a row the health checks of a component passed.
    pub streaks: &'a BTreeMap<String, u32>,
    /// How often in a row the health checks of a component failed, counting only observations that ran them.
    pub failures: &'a BTreeMap<String, u32>,
    /// Interval for observing the host when nothing else happens.
    pub check_every: Duration,
    /// Since when this process knows the machine: its memory does not reach further back.
    pub known_since: Timestamp,
    /// When the API server did not answer, from and to, oldest first and without overlap.
    pub outages: &'a [(Timestamp, Timestamp)],
    /// The minor version of the API server that the machine's Node joins; none if it was not read.
    pub server: Option<ServerMinors>,
}

/// The packages that a host should have.
#[derive(Clone, Copy, Debug)]
pub enum DesiredPackages<'a> {
    /// All packages are rendered.
    Ready(&'a [Arc<Rendered>]),
    /// The packages are unknown, because one of them cannot be rendered.
    Unavailable {
        /// Reason in CamelCase.
        reason: &'static str,
        /// Which package, where, and what to do.
        message: &'a str,
    },
}

/// The version on the host of a component that is to be removed, or whose declared version was rolled back.
#[derive(Clone, Debug, PartialEq)]
pub struct LeavingVersion {
    /// Components that it needs, which are removed later.
    pub depends_on: Vec<String>,
    /// The disruption of its removal.
    pub disruption: Disruption,
    /// Declared timeouts.
    pub times: StepTimeouts,
    /// Conditions that its Node must have to count as healthy.
    pub node_conditions: Vec<String>,
}

/// The state of a host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostKnowledge<'a> {
    /// The present task.
    pub doing: Option<OngoingTask<'a>>,
    /// The last observation; none if there was none since this process started.
    pub seen: Option<HostObservation<'a>>,
    /// The record of the last step.
    pub step: Option<&'a wire::StepRecord>,
    /// When that record was received.
    pub step_at: Option<Timestamp>,
    /// Why the host rejected the last request.
    pub refused: Option<(Timestamp, &'a wire::Failure)>,
    /// The host was cleaned: none of our files are left.
    pub cleaned: bool,
    /// The host was released.
    pub released: bool,
    /// Why the host is unreachable.
    pub unreachable: Option<Unreachable<'a>>,
    /// The host key of the last connection.
    pub key: Option<&'a str>,
}

/// The present task of a host.
#[derive(Clone, Copy, Debug)]
pub struct OngoingTask<'a> {
    /// The task, for people.
    pub what: &'a str,
    /// Id of the step, if the task is one.
    pub id: Option<&'a str>,
    /// Since when the task runs; none while it waits for a place.
    pub since: Option<Timestamp>,
    /// Progress message.
    pub message: &'a str,
}

/// An observation of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostObservation<'a> {
    /// Time of the observation.
    pub at: Timestamp,
    /// The answer of the host.
    pub observation: &'a wire::Observation,
    /// The scope of the observation.
    pub asked: &'a ObservedScope,
    /// No other request was sent to the host since.
    pub current: bool,
}

/// The scope of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedScope {
    /// The digests of the packages, by component.
    pub digests: BTreeMap<String, String>,
    /// Components that were compared with the host's own copy of their package.
    pub installed: BTreeSet<String>,
    /// Whether health checks were run.
    pub health: bool,
}

impl ObservedScope {
    /// The scope of that request.
    pub fn of(observe: &wire::Observe) -> Self {
        let digests = observe.packages.iter().map(|package| (package.component.clone(), package.digest())).collect();
        Self { digests, installed: observe.installed.iter().cloned().collect(), health: observe.health }
    }
}

/// An unreachable host.
#[derive(Clone, Copy, Debug)]
pub struct Unreachable<'a> {
    /// Since when it is unreachable.
    pub since: Timestamp,
    /// Number of attempts.
    pub attempts: u32,
    /// Earliest time of the next attempt.
    pub not_before: Timestamp,
    /// The cause.
    pub why: UnreachableReason<'a>,
}

/// Why a host is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason<'a> {
    /// The host key differs from the expected one.
    HostKeyChanged(&'a str),
    /// The host cannot be managed by the helper.
    Unsupported(&'a str),
    /// The host rejects our credentials, or they cannot be used: a reason, and why.
    Refused(&'static str, &'a str),
    /// The host does not answer, or stopped answering.
    NoAnswer(&'a str),
}

impl<'a> UnreachableReason<'a> {
    /// What happened, for people.
    pub fn text(self) -> &'a str {
        match self {
            Self::HostKeyChanged(text) | Self::Unsupported(text) | Self::Refused(_, text) | Self::NoAnswer(text) => {
                text
            }
        }
    }
}

/// A Node as observed.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Uid of the Node.
    pub uid: &'a str,
    /// The value of our maintenance taint, if the Node has it: the uid of the window's Operation.
    pub closed: Option<&'a str>,
    /// Its conditions: type, and whether it is True.
    pub conditions: &'a [(Arc<str>, bool)],
    /// The boot id that its kubelet reported, if any.
    pub boot_id: Option<&'a str>,
    pub labels: &'a [(Box<str>, Box<str>)],
    /// Whether it has the annotation [`fleetwright_api::names::NODE_LABELS`].
    pub annotated: bool,
    pub taints: &'a [Taint],
    /// The provider id of its host, if it has one.
    pub provider_id: Option<&'a str>,
}

impl Node<'_> {
    /// Whether the condition is True.
    pub fn holds(&self, type_: &str) -> bool {
        self.conditions.iter().any(|(name, holds)| &**name == type_ && *holds)
    }

    /// The value of a label, if the Node has it.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }
}

/// The remaining pods on a Node that is being drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingPods {
    /// When the pods were listed.
    pub at: Timestamp,
    /// Pods that must still terminate, as `namespace/name`, and what blocks each, if anything does.
    pub left: Vec<(String, Option<String>)>,
    /// Why closing the Node or listing its pods failed; `at` is the first failure, and it has not succeeded since. `left` is empty.
    pub hindered: Option<String>,
}

/// A window: one Operation from closing the Node to opening it again.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The Operation's uid. The ids of steps in the window are derived from it.
    pub uid: &'a str,
    /// The highest disruption allowed in the window.
    pub level: Disruption,
    /// The purpose of the window, see [`WindowRequest::fingerprint`].
    pub fingerprint: &'a str,
    /// The phase of the window.
    pub phase: WindowPhase<'a>,
}

/// The phase of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPhase<'a> {
    /// The gate has not granted the window yet, and why.
    Waiting(&'a str),
    /// The window is open.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// The outcome is unknown, and only a person can record it.
    NeedsPerson(&'a str),
}

/// Abandoned windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbandonedWindows {
    /// Number of abandoned windows.
    pub times: u32,
    /// When the last one was abandoned.
    pub last: Option<Timestamp>,
}

/// The decision: an action, the status, and when to decide again.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The one action.
    pub act: Act,
    /// A window to request before that, if `act` is about the Node alone.
    pub also_ask: Option<WindowRequest>,
    /// Our part of the status.
    pub status: MachineStatus,
    /// When to reconcile again, if nothing happens.
    pub next: Option<Timestamp>,
    /// A waiting window is not needed any more.
    pub withdraw: bool,
}

/// The one action to take now.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// No action.
    Nothing,
    /// Add the finalizer, so that the Machine stays until its host is clean.
    Finalize,
    /// Observe the host.
    Observe(Box<wire::Observe>),
    /// Run a step on the host.
    RunStep(Box<StepRun>),
    /// Remove all of our files from the host.
    Clean,
    /// Release the host as it is, for the next owner that claims it.
    Release,
    /// Write the owner mark onto a host that has none.
    Claim,
    /// Take over the host from exactly that owner, in the observed epoch.
    Adopt {
        /// The present owner.
        from: wire::Owner,
    },
    RequestWindow(WindowRequest),
    /// Add the maintenance taint.
    CloseNode,
    /// Evict the pods.
    Drain,
    /// Remove the maintenance taint.
    OpenNode,
    EndWindow {
        /// Open the Node before that.
        open: bool,
        /// Whether the window reached its purpose.
        well: bool,
        /// The result, for people.
        text: String,
    },
    /// Set the declared labels on the Node, and remove labels that were declared before. Other labels stay.
    Label {
        /// Labels that the machine declares.
        set: BTreeMap<String, String>,
        /// Keys of labels that the machine declared before.
        remove: Vec<String>,
    },
    /// Set the declared taints on the Node, and remove taints that were declared before. Other taints stay.
    Taint {
        /// Taints that the machine declares.
        set: Vec<Taint>,
        /// Taints that the machine declared before, by [`Taint::id`].
        remove: Vec<String>,
    },
    /// Set the declared provider id on the Node, which has none.
    SetProviderId,
    /// Delete the Node of a machine that has left.
    DeleteNode,
    /// Remove the finalizer of the machine, and delete its Node if the Node exists and the host is gone.
    ReleaseMachine {
        /// Delete the Node, too.
        node: bool,
    },
}

/// A step to run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// Id of the step: the host never runs the same id twice.
    pub id: String,
    pub step: wire::Step,
    /// Timeout, after which the step is killed.
    pub within: Duration,
    /// The installed version is not proven: the host does not keep it for a rollback.
    pub unproven: bool,
    /// The observation after the step.
    pub then: wire::Observe,
    /// The package needs a credential, which is filled in right before the step.
    pub needs_credential: bool,
}

/// A request for a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRequest {
    /// The highest disruption of the steps in the window.
    pub level: Disruption,
    /// Why, for people.
    pub reason: String,
    /// Fingerprint of the work to be done in the window.
    pub fingerprint: String,
}

/// The component whose version must fit the API server.
pub const KUBELET: &str = "kubelet";

/// Why a package does not fit an API server of these minor versions: a reason, and what to do. Only kubelets are compared.
pub fn version_skew(wanted: &Rendered, server: Option<ServerMinors>) -> Option<(&'static str, String)> {
    let server = server?;
    let version = &wanted.package.version;
    let skew = skew::skew(version, server).filter(|_| wanted.package.component == KUBELET)?;
    let text = match skew {
        skew::Skew::TooNew => {
            let (major, minor) = server.emulated;
            format!(
                "kubelet {version} is newer than the API server ({major}.{minor}): upgrade the control plane first, or declare a kubelet of \
                 {major}.{minor} or up to {} minors older",
                skew::MAX_KUBELET_SKEW
            )
        }
        skew::Skew::TooOld => {
            let (major, minor) = server.program;
            format!(
                "kubelet {version} is more than {} minors older than the API server ({major}.{minor}): declare a newer kubelet",
                skew::MAX_KUBELET_SKEW
            )
        }
    };
    Some((skew.reason(), text))
}

/// The type of the Operation for a window of that level.
pub fn operation_type(level: Disruption) -> &'static str {
    match level {
        Disruption::None | Disruption::Restart => "Restart",
        Disruption::Drain => "Drain",
        Disruption::Reboot => "Reboot",
    }
}

/// The level of an Operation of that type; none if the Operation is no window.
pub fn level_of(type_: &str) -> Option<Disruption> {
    match type_ {
        "Restart" => Some(Disruption::Restart),
        "Drain" => Some(Disruption::Drain),
        "Reboot" => Some(Disruption::Reboot),
        _ => None,
    }
}
