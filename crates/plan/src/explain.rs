//! Why an object is not in its end state, what would be done to it, and what it consists of, as data. `fleetwright why`, `machine plan`, `cluster plan`
//! and `cluster tree` print this data as text; their `-o json` has this shape, which docs/reference/json.md describes.

mod cluster;
pub mod health;
mod machine;
pub mod machine_health;
mod plan;
mod tree;

use std::collections::BTreeSet;

use fleetwright_api::{Condition, GROUP, Status, VERSION};
use jiff::Timestamp;
use serde::Serialize;

pub use cluster::cluster;
pub use machine::{Schedulability, host, node_name, schedulability, waits};
pub use plan::{ClusterDetails, Deviation, MachineDetails, Obstacles, PACKAGE_FAILED, Plan, Step};
pub use tree::{Part, Tree, TreeNode};

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
    pub namespace: String,
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
    /// What to do about a finding of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
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
            advice: None,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::plan::{ClusterDetails, Deviation, MachineDetails, Plan, Step};
    use super::*;
    use crate::cluster::cluster_plan::{
        CertificatePlan, MemberPlan, ObjectChange, PlannedVersion, RestorePlan, RollbackPlan, SoakPlan, VolumePlan,
    };
    use crate::machine::InputChange;

    /// Every field has a value.
    fn full_check() -> Check {
        let text = || Some("x".to_owned());
        Check {
            rule: text(),
            owner: text(),
            value: "x".to_owned(),
            limit: text(),
            reason: "x".to_owned(),
            message: "x".to_owned(),
            advice: text(),
            since: Some(Timestamp::UNIX_EPOCH),
            until: Some(Timestamp::UNIX_EPOCH),
            ..Check::new(Group::Gates, "x", State::Failing)
        }
    }

    /// Every part with every field.
    fn full_tree() -> Tree {
        let (string, text) = (|| "x".to_owned(), || Some("x".to_owned()));
        let parts = [
            Part::Condition { name: string(), reason: string(), message: string() },
            Part::Problem { message: string() },
            Part::Component { name: string(), observed: text(), desired: text(), ready_replicas: 1, replicas: 1 },
            Part::Replica {
                name: string(),
                component: string(),
                version: text(),
                ready: true,
                verified: Some(Timestamp::UNIX_EPOCH),
                message: string(),
            },
            Part::Extension { name: string(), reason: string(), message: string() },
            Part::Machines { ready_machines: 1, machines: 1 },
            Part::Machine {
                name: string(),
                phase: text(),
                paused: true,
                ready_packages: 1,
                packages: 1,
                message: string(),
            },
        ];
        let node = |part| TreeNode { health: health::Health::Healthy, part, parts: Vec::new() };
        Tree {
            api_version: string(),
            kind: "Tree",
            object: subject(),
            health: health::Health::Healthy,
            phase: text(),
            paused: true,
            package_version: string(),
            message: string(),
            parts: parts.map(node).into(),
        }
    }

    fn subject() -> Subject {
        Subject { kind: "Cluster", namespace: "fleet".to_owned(), name: "blue".to_owned() }
    }

    fn keys(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                found.insert(key.clone());
                keys(value, found);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_field_of_the_json_is_in_the_reference() {
        let condition: Condition = serde_json::from_value(json!({
            "type": "Ready", "status": "True", "reason": "Verified", "message": "m", "lastTransitionTime": "2026-11-16T08:00:00Z",
        }))
        .expect("a condition");
        let verdict = Verdict {
            condition: "Ready",
            status: Status::True,
            reason: "x".to_owned(),
            message: "x".to_owned(),
            since: Some(Timestamp::UNIX_EPOCH),
            recorded: false,
            last_recorded: Some(condition),
        };
        let mut explanation = Explanation::new(subject(), Some("Ready".to_owned()), false, verdict);
        explanation.checks.push(full_check());
        explanation.act([Action::run("x", "x")]);
        let mut json = json!(explanation);
        json["verdict"]["lastRecorded"] = Value::Null;

        let (text, time) = (|| Some("x".to_owned()), Timestamp::UNIX_EPOCH);
        let version = || PlannedVersion { package: "x".to_owned(), kubernetes: "1".to_owned() };
        let plan = Plan {
            api_version: "x".to_owned(),
            kind: "Plan",
            object: subject(),
            paused: false,
            steps: Some(vec![Step {
                action: "upgrade".to_owned(),
                component: "etcd".to_owned(),
                from: text(),
                to: text(),
                disruption: fleetwright_api::Disruption::Restart,
                restarts: Some(1),
                message: "x".to_owned(),
                risk: text(),
                changes: vec![InputChange { what: "x".to_owned(), from: text(), to: text() }],
                objects: vec![ObjectChange { kind: "Service", name: "x".to_owned(), diff: "x".to_owned() }],
            }]),
            error: text(),
            blockers: vec![full_check()],
            machine: Some(MachineDetails {
                node: text(),
                evicted_pods: vec!["x".to_owned()],
                pods_error: text(),
                deviations: vec![Deviation { component: "x".to_owned(), message: "x".to_owned() }],
                drift: fleetwright_api::Drift::Report,
                not_compared: vec!["x".to_owned()],
                compared_by_version: vec!["x".to_owned()],
            }),
            cluster: Some(ClusterDetails {
                namespace: "x".to_owned(),
                from: Some(version()),
                to: version(),
                unchanged: Vec::new(),
                checked_later: vec!["x".to_owned()],
                members: Some(MemberPlan {
                    from: 1,
                    to: 3,
                    action: "Add",
                    member: "x".to_owned(),
                    since: Some(time),
                    blocked: text(),
                }),
                volumes: vec![VolumePlan {
                    claim: "x".to_owned(),
                    from: "x".to_owned(),
                    to: "x".to_owned(),
                    message: "x",
                }],
                rotation: text(),
                soak: Some(SoakPlan { emulates: "x".to_owned(), until: time }),
                extensions: vec!["x".to_owned()],
                rollback: RollbackPlan { keeps_writes: true, message: "x".to_owned() },
                restore: Some(RestorePlan {
                    snapshot: "x".to_owned(),
                    data_time: time,
                    checked: true,
                    patch: Value::Null,
                }),
                certificates: vec![CertificatePlan { name: "x".to_owned(), not_after: time, replaced: time }],
            }),
        };
        let mut found = BTreeSet::new();
        keys(&json, &mut found);
        keys(&json!(plan), &mut found);
        keys(&json!(full_tree()), &mut found);
        let reference = include_str!("../../../docs/reference/json.md");
        let missing: Vec<_> = found.iter().filter(|key| !reference.contains(&format!("`{key}"))).collect();
        assert!(missing.is_empty(), "docs/reference/json.md lacks {missing:?}");
        for word in ["Gates", "Failing", "Waiting", "Passing"] {
            assert!(reference.contains(&format!("`{word}`")), "docs/reference/json.md lacks {word}");
        }
    }

    #[test]
    fn an_action_is_named_once() {
        let verdict = Verdict {
            condition: "Ready",
            status: Status::Unknown,
            reason: String::new(),
            message: String::new(),
            since: None,
            recorded: false,
            last_recorded: None,
        };
        let mut explanation = Explanation::new(subject(), None, false, verdict);
        explanation.act([Action::run("a", "x"), Action::text("b")]);
        explanation.act([Action::run("a", "x"), Action::run("a", "y")]);
        assert_eq!(explanation.actions, [Action::run("a", "x"), Action::text("b"), Action::run("a", "y")]);
    }
}
