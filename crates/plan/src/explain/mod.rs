//! Why an object is not in its end state, as data. `fleetwright why` prints it; its `-o json` has this shape, which docs/reference/json.md describes.

mod cluster;
pub mod health;
mod machine;
mod plan;

use std::collections::BTreeSet;

use fleetwright_api::{Condition, GROUP, Status, VERSION};
use jiff::Timestamp;
use serde::Serialize;

pub use cluster::cluster;
pub use machine::{Schedulability, host, node_name, schedulability};
pub use plan::{ClusterDetails, Deviation, MachineDetails, Obstacles, Plan, Step};

/// Why an object is or is not in its end state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `fleetwright.io/v1alpha1`.
    pub api_version: String,
    /// `Explanation`.
    pub kind: &'static str,
    /// The object that is explained.
    pub object: Subject,
    /// `status.phase` of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Whether `spec.paused` stops the operator.
    pub paused: bool,
    /// The answer in one condition.
    pub verdict: Verdict,
    /// Everything that the verdict depends on, and what else is wrong.
    pub checks: Vec<Check>,
    /// What a person can do, the most helpful first.
    pub actions: Vec<Action>,
}

/// An object of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Kind, such as `Machine`.
    pub kind: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The answer in one condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Type of the condition: `Ready` of a Cluster, `Schedulable` of a Machine.
    pub condition: &'static str,
    /// Status of the condition.
    pub status: Status,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// Since when the status is what it is; none if the operator has not recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Whether the operator recorded the same status and reason.
    pub recorded: bool,
    /// The condition that the operator recorded, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_recorded: Option<Condition>,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Group {
    /// What the operator waits for at this moment.
    Progress,
    /// Conditions of the object.
    Conditions,
    /// Replicas of a control plane.
    Replicas,
    /// Readiness gates.
    Gates,
    /// The Node of a machine.
    Node,
    /// Safety nets of ReadinessGates.
    SafetyNet,
    /// Reports on a machine.
    Reports,
    /// Packages on a host.
    Packages,
    /// The host itself.
    Host,
}

/// How a check stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum State {
    /// It blocks the end state.
    Failing,
    /// It will pass by itself, or a step of the operator is under way.
    Waiting,
    /// It counts neither way.
    Unknown,
    /// It does not block the end state.
    Passing,
}

/// One thing that the end state depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What it is about.
    pub group: Group,
    /// What is checked: a gate, a condition, a package, a replica, a taint.
    pub subject: String,
    /// How it stands.
    pub state: State,
    /// The object or field whose rule it is, such as `ReadinessGates/workers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Who sets the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The current value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What the rule allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// One word why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when the value is what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When the check has another effect although its value stays: a gate has held, or failed, for long enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Check {
    fn new(group: Group, subject: impl Into<String>, state: State) -> Self {
        Self {
            group,
            subject: subject.into(),
            state,
            rule: None,
            owner: None,
            value: String::new(),
            limit: None,
            reason: String::new(),
            message: String::new(),
            since: None,
            until: None,
        }
    }

    fn of_condition(group: Group, condition: &Condition, state: State) -> Self {
        Self {
            value: condition.status.as_str().to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: Some(condition.last_transition_time),
            ..Self::new(group, &condition.type_, state)
        }
    }
}

/// What a person can do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// The command to run, if one command does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What to do, or what the command does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl Action {
    fn run(command: impl Into<String>, description: impl Into<String>) -> Self {
        Self { command: Some(command.into()), description: description.into() }
    }

    fn text(description: impl Into<String>) -> Self {
        Self { command: None, description: description.into() }
    }
}

impl Explanation {
    fn new(object: Subject, phase: Option<String>, paused: bool, verdict: Verdict) -> Self {
        let api_version = format!("{GROUP}/{VERSION}");
        Self {
            api_version,
            kind: "Explanation",
            object,
            phase,
            paused,
            verdict,
            checks: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// The checks of a group, in order.
    pub fn group(&self, group: Group) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.group == group)
    }

    /// Actions without repetitions.
    fn act(&mut self, actions: impl IntoIterator<Item = Action>) {
        self.actions.extend(actions);
        let mut known = BTreeSet::new();
        self.actions.retain(|action| known.insert(action.clone()));
    }
}
