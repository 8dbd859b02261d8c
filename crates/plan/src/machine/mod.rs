//! A machine's host, driven to its packages: what to do next, from what is declared, what is written down, what the host says, and the time.
//!
//! Expected flow: the host is looked at; what differs from what is declared becomes [`PlannedStep`]s in the order of their dependencies; they
//! are run one at a time, each until its component is proven to work. What disrupts happens inside a window: an Operation that closes the
//! Node, drains it, and opens it again. When nothing is left to do, the host is looked at from time to time.
//!
//! Guarantees of [`decide`]:
//! - nothing is changed on a host that belongs to another Machine, or is another one than declared;
//! - a host that carries packages and never had an owner is claimed only by the Machine that installed them, or by hand;
//! - nothing is changed on a host whose key is not trusted, that is paused, or of whose packages one cannot be made;
//! - while a Node of the machine's name is not bound to it, neither that Node nor the host is changed;
//! - what a bound Node is given waits neither for the gate nor for the host;
//! - at most one step at a time, each under an id that is not used for another one;
//! - a step that disrupts is decided on only inside a window that is under way, if the machine has a Node;
//! - a package that did not work is not tried again until another is declared or a person asks;
//! - the time in which the API server did not answer does not count against a package that must join or keep a Node;
//! - a version that was installed and has not proven itself is not restored by a rollback;
//! - a version that was restored is checked for health before its Node is opened, and guarded against drift like any other;
//! - the same inputs give the same decision: who continues after a crash does what the one before would have done.

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
use crate::skew::{self, Minor};

pub use decide::decide;
pub use drift::next_check;
pub use events::{Level, MachineEvent, events_between};
pub use order::{PackageConflict, order};
pub use preview::{components_without_inputs, steps};
pub use status::{OWNED_CONDITIONS, facts, owned_status};
pub use step::{InputChange, PlannedStep, Verb};

/// Everything that a decision is made from.
#[derive(Clone, Debug)]
pub struct MachineInputs<'a> {
    /// The machine as it is written.
    pub machine: &'a Machine,
    /// As whom the host knows it.
    pub identity: &'a wire::Owner,
    /// The fencing token of this leader; 0 without a lease.
    pub fence: u64,
    /// An older Machine of the same API server that has the same address, by its name.
    pub same_address: Option<&'a str>,
    /// What its host should carry, in the order of the specification.
    pub wanted: DesiredPackages<'a>,
    /// What is known of versions that are on the host and not wanted: of components to be removed, and of restored versions.
    pub leaving: &'a BTreeMap<String, LeavingVersion>,
    /// What is known of the host.
    pub host: HostKnowledge<'a>,
    /// The Node that is bound to it.
    pub node: Option<Node<'a>>,
    /// Whether the Node of its name is bound to it. `node` is none unless it is.
    pub binding: &'a Binding,
    /// When its bootstrap token first requested a client certificate that was approved.
    pub certified: Option<Timestamp>,
    /// Who was still on the Node when it was last looked at in this window; none if it was not.
    pub pods: Option<&'a RemainingPods>,
    /// Its window, if one waits or is under way.
    pub window: Option<Window<'a>>,
    /// Windows that were given up, by what they were for ([`WindowRequest::fingerprint`]).
    pub given_up: &'a BTreeMap<String, AbandonedWindows>,
    /// How often in a row the checks of a component held.
    pub streaks: &'a BTreeMap<String, u32>,
    /// How often in a row the checks of a component failed, of the looks that ran them.
    pub failures: &'a BTreeMap<String, u32>,
    /// How often the host is looked at though nothing happens.
    pub check_every: Duration,
    /// Since when this process knows of the machine: what was seen before is forgotten.
    pub known_since: Timestamp,
    /// When the API server did not answer, from and to, the oldest first and without overlap.
    pub outages: &'a [(Timestamp, Timestamp)],
    /// The minor of the API server that the machine's Node joins; none if it was not asked for.
    pub server: Option<Minor>,
}

/// What a host should carry.
#[derive(Clone, Copy, Debug)]
pub enum DesiredPackages<'a> {
    /// These.
    Ready(&'a [Arc<Rendered>]),
    /// Nobody can say, because one of them cannot be made.
    Unavailable {
        /// One word in CamelCase.
        reason: &'static str,
        /// Which, where, and what to do.
        message: &'a str,
    },
}

/// What is known of a component that is to go, or whose declared version was rolled back: of the version on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct LeavingVersion {
    /// What it needs, which outlives it.
    pub depends_on: Vec<String>,
    /// What taking it away does to what runs.
    pub disruption: Disruption,
    /// Times, as declared.
    pub times: StepTimeouts,
    /// The conditions that its Node must have for it to count as healthy.
    pub node_conditions: Vec<String>,
}

/// What is known of a host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostKnowledge<'a> {
    /// What is under way.
    pub doing: Option<OngoingTask<'a>>,
    /// What it said when it was last looked at; none if that was before this process began.
    pub seen: Option<HostObservation<'a>>,
    /// What became of the last step.
    pub step: Option<&'a wire::StepRecord>,
    /// When that was learnt.
    pub step_at: Option<Timestamp>,
    /// Why it said no to what it was asked last.
    pub refused: Option<(Timestamp, &'a wire::Failure)>,
    /// Nothing of ours is left on it.
    pub cleaned: bool,
    /// It belongs to nobody any more.
    pub released: bool,
    /// Why it is not reached.
    pub unreachable: Option<Unreachable<'a>>,
    /// The host key that it showed.
    pub key: Option<&'a str>,
}

/// What is under way with a host.
#[derive(Clone, Copy, Debug)]
pub struct OngoingTask<'a> {
    /// What, for people.
    pub what: &'a str,
    /// The step's id, if it is one.
    pub id: Option<&'a str>,
    /// Since when; none while it waits for its turn.
    pub since: Option<Timestamp>,
    /// How far it is.
    pub message: &'a str,
}

/// What a host said when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct HostObservation<'a> {
    /// When.
    pub at: Timestamp,
    /// What it said.
    pub observation: &'a wire::Observation,
    /// What it was asked about.
    pub asked: &'a ObservedScope,
    /// Nothing was asked of it since.
    pub current: bool,
}

/// What a host was asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedScope {
    /// The digests of the packages, by component.
    pub digests: BTreeMap<String, String>,
    /// Components that were compared with the host's own copy of their package.
    pub installed: BTreeSet<String>,
    /// Whether their checks were run.
    pub health: bool,
}

impl ObservedScope {
    /// What is asked with that.
    pub fn of(observe: &wire::Observe) -> Self {
        let digests = observe.packages.iter().map(|package| (package.component.clone(), package.digest())).collect();
        Self { digests, installed: observe.installed.iter().cloned().collect(), health: observe.health }
    }
}

/// A host that is not reached.
#[derive(Clone, Copy, Debug)]
pub struct Unreachable<'a> {
    /// Since when.
    pub since: Timestamp,
    /// How often it was tried.
    pub attempts: u32,
    /// Not tried before.
    pub not_before: Timestamp,
    /// Why.
    pub why: UnreachableReason<'a>,
}

/// Why a host is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason<'a> {
    /// It shows another key than it should.
    HostKeyChanged(&'a str),
    /// It is none that we can serve.
    Unsupported(&'a str),
    /// It does not let us in, or ours cannot be used: one word, and why.
    Refused(&'static str, &'a str),
    /// It does not answer, or stopped answering.
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

/// What is seen of a Node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// The value of our maintenance taint, if it has it: the uid of the window's Operation.
    pub closed: Option<&'a str>,
    /// Its conditions: type, and whether it is True.
    pub conditions: &'a [(Arc<str>, bool)],
    /// The boot that its kubelet runs in, if it says so.
    pub boot_id: Option<&'a str>,
    /// Its labels.
    pub labels: &'a [(Box<str>, Box<str>)],
    /// It has the annotation [`fleetwright_api::names::NODE_LABELS`].
    pub annotated: bool,
    /// Its taints.
    pub taints: &'a [Taint],
    /// The provider's name for its host, if it has one.
    pub provider_id: Option<&'a str>,
}

impl Node<'_> {
    /// Does the condition hold?
    pub fn holds(&self, type_: &str) -> bool {
        self.conditions.iter().any(|(name, holds)| &**name == type_ && *holds)
    }

    /// The value of a label, if it has it.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }
}

/// Who is on a Node that is being drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingPods {
    /// When it was looked.
    pub at: Timestamp,
    /// Who must still leave, as `namespace/name`, and what keeps each, if something does.
    pub left: Vec<(String, Option<String>)>,
    /// Why closing the Node or listing its pods failed; `at` is the first failure, and it has not succeeded since. `left` is empty.
    pub hindered: Option<String>,
}

/// A window: one Operation from closing the Node to opening it again.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The Operation's uid. The ids of steps inside come from it.
    pub uid: &'a str,
    /// The worst that may happen inside.
    pub level: Disruption,
    /// What it is for, see [`WindowRequest::fingerprint`].
    pub fingerprint: &'a str,
    /// How far it is.
    pub phase: WindowPhase<'a>,
}

/// How far a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPhase<'a> {
    /// The gate does not let it pass yet, and why.
    Waiting(&'a str),
    /// It is under way.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// Nobody but a person can say what became of it.
    NeedsPerson(&'a str),
}

/// Windows that were given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbandonedWindows {
    /// How many.
    pub times: u32,
    /// When the last one was.
    pub last: Option<Timestamp>,
}

/// What is to be done, written and told.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The one thing to do.
    pub act: Act,
    /// A window to ask for before that, if `act` is about the Node alone.
    pub also_ask: Option<WindowRequest>,
    /// Our part of the status.
    pub status: MachineStatus,
    /// When to look again, if nothing happens.
    pub next: Option<Timestamp>,
    /// A window that waits is not needed any more.
    pub withdraw: bool,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// See to it that the machine does not go before its host is clean.
    Finalize,
    /// Look at the host.
    Observe(Box<wire::Observe>),
    /// Run a step on the host.
    RunStep(Box<StepRun>),
    /// Leave nothing on the host.
    Clean,
    /// Leave the host as it is, and to whoever claims it next.
    Release,
    /// Write the owner mark onto a host that has none.
    Claim,
    /// Take the host from exactly that owner, in the epoch that was seen.
    Adopt {
        /// Whose it is.
        from: wire::Owner,
    },
    /// Ask for a window.
    RequestWindow(WindowRequest),
    /// Keep new pods away.
    CloseNode,
    /// Ask the pods to leave.
    Drain,
    /// Let pods come again.
    OpenNode,
    /// The window is over.
    EndWindow {
        /// Let pods come again, before that.
        open: bool,
        /// Whether it did what it was for.
        well: bool,
        /// What became of it.
        text: String,
    },
    /// Give the Node the labels that the machine declares, and remove those that it declared before. Other labels stay.
    Label {
        /// Labels that the machine declares.
        set: BTreeMap<String, String>,
        /// Labels that the machine declared before, by their keys.
        remove: Vec<String>,
    },
    /// Give the Node the taints that the machine declares, and remove those that it declared before. Other taints stay.
    Taint {
        /// Taints that the machine declares.
        set: Vec<Taint>,
        /// Taints that the machine declared before, by [`Taint::id`].
        remove: Vec<String>,
    },
    /// Give the Node, which has none, the provider's name that the machine declares.
    SetProviderId,
    /// The machine has left: its Node goes.
    DeleteNode,
    /// Let the machine go, and its Node, too, if it is there and the host is gone.
    ReleaseMachine {
        /// The Node, too.
        node: bool,
    },
}

/// A step to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// Its id: the host never runs the same one twice.
    pub id: String,
    /// What.
    pub step: wire::Step,
    /// It is killed after that long.
    pub within: Duration,
    /// What is installed has not proven itself: the host does not keep it to go back to.
    pub unproven: bool,
    /// What to look at when it ended.
    pub then: wire::Observe,
    /// The package holds a credential that is filled in right before.
    pub needs_credential: bool,
}

/// A window that is wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRequest {
    /// The worst that happens inside.
    pub level: Disruption,
    /// Why, for people.
    pub reason: String,
    /// Stands for what is to be done inside.
    pub fingerprint: String,
}

/// The component whose version must fit to the API server.
pub const KUBELET: &str = "kubelet";

/// Why a package does not fit to an API server of that minor: a reason, and what to do. Only kubelets are compared.
pub fn version_skew(wanted: &Rendered, server: Option<Minor>) -> Option<(&'static str, String)> {
    let (major, minor) = server?;
    let version = &wanted.package.version;
    let skew = skew::skew(version, (major, minor)).filter(|_| wanted.package.component == KUBELET)?;
    let text = match skew {
        skew::Skew::TooNew => format!(
            "kubelet {version} is newer than the API server ({major}.{minor}): upgrade the control plane first, or declare a kubelet of \
             {major}.{minor} or up to {} minors older",
            skew::MAX_KUBELET_SKEW
        ),
        skew::Skew::TooOld => format!(
            "kubelet {version} is more than {} minors older than the API server ({major}.{minor}): declare a newer kubelet",
            skew::MAX_KUBELET_SKEW
        ),
    };
    Some((skew.reason(), text))
}

/// What a window of that level is called as an Operation.
pub fn operation_type(level: Disruption) -> &'static str {
    match level {
        Disruption::None | Disruption::Restart => "Restart",
        Disruption::Drain => "Drain",
        Disruption::Reboot => "Reboot",
    }
}

/// The level of an Operation of that type; none if it is no window.
pub fn level_of(type_: &str) -> Option<Disruption> {
    match type_ {
        "Restart" => Some(Disruption::Restart),
        "Drain" => Some(Disruption::Drain),
        "Reboot" => Some(Disruption::Reboot),
        _ => None,
    }
}
