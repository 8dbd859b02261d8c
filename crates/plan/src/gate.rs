//! The gate: decides whether an Operation may start. Every policy that names its type must have room.
//!
//! The gate fails closed: an Operation whose type no policy names, whose scope cannot be counted or is not counted yet is refused.
//! [`judge`] is the only entry point; breakers, windows and approvals will be added behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fleetwright_api::{
    Amount, Holder, OperationPhase, OperationPolicySpec, OperationPolicyStatus, Status, condition, names,
};
use jiff::Timestamp;

use crate::operation::put;

/// The number of targets, for limits given as a percentage.
pub trait Population: Send + Sync {
    /// The number of targets with that label; of all targets without one. None if it is unknown.
    fn count(&self, label: Option<(&str, &str)>) -> Option<usize>;
}

/// For operators whose policies are all plain numbers: a percentage is refused.
impl Population for () {
    fn count(&self, _: Option<(&str, &str)>) -> Option<usize> {
        None
    }
}

/// The most Operations that the status of one policy can list.
const MAX_HOLDERS: usize = 4096;

/// The Operation to judge.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the Operation.
    pub operation: &'a str,
    /// Uid of the Operation.
    pub uid: &'a str,
    /// Type of the Operation.
    pub type_: &'a str,
    /// The labels of its target.
    pub labels: &'a BTreeMap<String, String>,
}

/// A policy of the Operation's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// Name of the policy.
    pub name: &'a str,
    /// Generation of the policy.
    pub generation: Option<i64>,
    /// Spec of the policy.
    pub spec: &'a OperationPolicySpec,
    /// Status of the policy, with its holders.
    pub status: &'a OperationPolicyStatus,
}

/// A place behind the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySlot {
    /// The policy that grants it.
    pub policy: String,
    /// The entry for the policy's status.
    pub holder: Holder,
    /// Whether the entry is recorded already.
    pub held: bool,
}

/// The decision of the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateAnswer {
    /// The Operation may start once its places are recorded.
    Granted {
        /// In the order of the policies' names, in which all Operations must take them, so that no two wait for each other.
        places: Vec<PolicySlot>,
        /// The rules that granted it, and their counts, such as `drains: 2 of 5 in zone=z1`.
        by: String,
    },
    /// The Operation must wait.
    Refused(Refusal),
}

/// Why an Operation must wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: RefusalReason,
    /// The policy that refused it; none if no policy matches.
    pub by: Option<String>,
    /// Text of the refused rule. It has no counts, so that a written text stays true.
    pub rule: String,
    /// Number of running Operations.
    pub count: usize,
    /// Limit of running Operations.
    pub limit: usize,
    /// Until when, if time alone ends it.
    pub until: Option<Timestamp>,
}

/// The reason why an Operation must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No policy names its type.
    NoMatchingPolicy,
    /// The policy is new or changed, and its counts are not up to date yet.
    PolicyNotObserved,
    /// The policy is invalid.
    PolicyNotAccepted,
    /// The target lacks the label that the policy counts by.
    ScopeLabelMissing,
    /// The policy has a percentage, and the number of targets is unknown.
    TargetCountUnknown,
    LimitReached,
}

impl RefusalReason {
    /// The reason for a condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoMatchingPolicy => "NoMatchingPolicy",
            Self::PolicyNotObserved => "PolicyNotObserved",
            Self::PolicyNotAccepted => "PolicyNotAccepted",
            Self::ScopeLabelMissing => "ScopeLabelMissing",
            Self::TargetCountUnknown => "TargetCountUnknown",
            Self::LimitReached => "LimitReached",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        if self.why == RefusalReason::LimitReached {
            write!(f, "; {} of {} when checked", self.count, self.limit)?;
        }
        if let Some(until) = self.until {
            write!(f, "; until {until}")?;
        }
        Ok(())
    }
}

/// Decides whether an Operation may start, by all policies of its namespace.
///
/// A place that the Operation holds already stays its own, also if the limit was lowered since: otherwise two that hold the last places
/// of a lowered limit would wait for each other.
pub fn judge<'a>(
    request: Request<'_>,
    policies: impl IntoIterator<Item = Policy<'a>>,
    population: &dyn Population,
) -> GateAnswer {
    let mut policies: Vec<_> =
        policies.into_iter().filter(|policy| policy.spec.operations.iter().any(|name| name == request.type_)).collect();
    policies.sort_by_key(|policy| policy.name);
    if policies.is_empty() {
        let rule = format!("no OperationPolicy for operations of type {}: create one that limits them", request.type_);
        return GateAnswer::Refused(Refusal {
            why: RefusalReason::NoMatchingPolicy,
            by: None,
            rule,
            count: 0,
            limit: 0,
            until: None,
        });
    }
    let mut places = Vec::new();
    let mut by = Vec::new();
    for policy in policies {
        match ask(request, policy, population) {
            Ok((place, text)) => {
                places.push(place);
                by.push(text);
            }
            Err(refusal) => return GateAnswer::Refused(refusal),
        }
    }
    GateAnswer::Granted { places, by: by.join("; ") }
}

fn ask(request: Request<'_>, policy: Policy<'_>, population: &dyn Population) -> Result<(PolicySlot, String), Refusal> {
    let name = policy.name;
    let refuse = |why, rule, count, limit| Refusal { why, by: Some(name.to_owned()), rule, count, limit, until: None };
    // The holders were recorded under the scope of the observed generation: under another scope they do not count.
    if policy.generation.is_none() || policy.status.observed_generation != policy.generation {
        let rule = format!("OperationPolicy {name} is new or was modified: waiting until its counts are updated");
        return Err(refuse(RefusalReason::PolicyNotObserved, rule, 0, 0));
    }
    if condition(&policy.status.conditions, names::ACCEPTED).is_none_or(|accepted| accepted.status != Status::True) {
        let rule = format!("OperationPolicy {name} is not accepted: see its condition {}", names::ACCEPTED);
        return Err(refuse(RefusalReason::PolicyNotAccepted, rule, 0, 0));
    }
    let label = match &policy.spec.scope {
        None => None,
        Some(scope) => match request.labels.get(&scope.by) {
            Some(value) => Some((scope.by.as_str(), value.as_str())),
            None => {
                let rule = format!(
                    "OperationPolicy {name} counts by the label {0}, which the target does not have: add the label to the target, or \
                     change the policy",
                    scope.by
                );
                return Err(refuse(RefusalReason::ScopeLabelMissing, rule, 0, 0));
            }
        },
    };
    let holder = Holder {
        operation: request.operation.to_owned(),
        uid: request.uid.to_owned(),
        scope: label.map_or_else(String::new, |(_, value)| value.to_owned()),
    };
    let inside = label.map_or_else(String::new, |(by, value)| format!(" in {by}={value}"));
    let limit = match policy.spec.max {
        Amount::Count(count) => count as usize,
        Amount::Percent(_) => match population.count(label) {
            Some(total) => policy.spec.max.of(total, policy.spec.at_least),
            None => {
                let rule = format!(
                    "OperationPolicy {name} allows {} of the machines{inside}, but the number of machines is not known yet",
                    policy.spec.max
                );
                return Err(refuse(RefusalReason::TargetCountUnknown, rule, 0, 0));
            }
        },
    };
    // An entry of the same name and another uid belongs to a deleted Operation; taking the place replaces it.
    let others = policy
        .status
        .holders
        .iter()
        .filter(|other| other.operation != holder.operation && other.scope == holder.scope)
        .count();
    let held = policy.status.holders.contains(&holder);
    if !held && others >= limit {
        let rule =
            format!("OperationPolicy {name} allows {}{inside} at a time, and the limit is reached", policy.spec.max);
        return Err(refuse(RefusalReason::LimitReached, rule, others, limit));
    }
    let all = policy.status.holders.len();
    if !held && all >= MAX_HOLDERS {
        let rule = format!("OperationPolicy {name} can track {MAX_HOLDERS} at a time, and the limit is reached");
        return Err(refuse(RefusalReason::LimitReached, rule, all, MAX_HOLDERS));
    }
    let text = format!("{name}: {} of {limit}{inside}", others + 1);
    Ok((PolicySlot { policy: name.to_owned(), holder, held }, text))
}

/// The policy's holders after that one takes its place.
pub fn take(status: &OperationPolicyStatus, holder: &Holder) -> Vec<Holder> {
    let mut holders = release(status, &holder.operation);
    holders.push(holder.clone());
    holders
}

/// The policy's holders after that Operation releases its place.
pub fn release(status: &OperationPolicyStatus, operation: &str) -> Vec<Holder> {
    status.holders.iter().filter(|holder| holder.operation != operation).cloned().collect()
}

/// The fields of an Operation that a policy's counts depend on.
#[derive(Clone, Copy, Debug)]
pub struct ActiveOperation<'a> {
    /// Name of the Operation.
    pub name: &'a str,
    /// Uid of the Operation.
    pub uid: &'a str,
    /// Type of the Operation.
    pub type_: &'a str,
    /// The labels of its target.
    pub labels: &'a BTreeMap<String, String>,
    /// Phase of the Operation.
    pub phase: OperationPhase,
}

/// The status that a policy should have.
///
/// `operations` has at least the Operations named by the holders, as far as they exist, and the running ones. A holder that has ended,
/// is deleted, or has a type that the policy no longer names loses its place. A running Operation without a place
/// (it was granted before the policy named its type) gets one, also beyond the limit, because it runs.
/// An Operation that still waits keeps its place: its driver is about to use it, or to release it.
/// Holders named in `unsure` stay as they are, and while there are any, a change of the policy is not observed.
pub fn keep_true(
    policy: Policy<'_>,
    operations: &[ActiveOperation<'_>],
    unsure: &BTreeSet<String>,
    now: Timestamp,
) -> OperationPolicyStatus {
    let spec = policy.spec;
    let named = |type_: &str| spec.operations.iter().any(|name| name == type_);
    let place = |operation: &ActiveOperation<'_>| Holder {
        operation: operation.name.to_owned(),
        uid: operation.uid.to_owned(),
        scope: spec.scope.as_ref().and_then(|scope| operation.labels.get(&scope.by)).cloned().unwrap_or_default(),
    };
    let mut holders: Vec<Holder> = policy
        .status
        .holders
        .iter()
        .filter_map(|holder| {
            if unsure.contains(&holder.operation) {
                return Some(holder.clone());
            }
            let operation = operations.iter().find(|op| op.name == holder.operation && op.uid == holder.uid)?;
            (named(operation.type_) && !operation.phase.ended()).then(|| place(operation))
        })
        .collect();
    for operation in operations.iter().filter(|op| named(op.type_) && op.phase.holds_room()) {
        if !holders.iter().any(|holder| holder.operation == operation.name) {
            holders.push(place(operation));
        }
    }
    let mut status = policy.status.clone();
    if unsure.is_empty() {
        status.observed_generation = policy.generation;
    }
    status.held = u32::try_from(holders.len()).unwrap_or(u32::MAX);
    status.holders = holders;
    let (accepted, reason, message) = match accepted(spec) {
        Ok(message) => (Status::True, "Valid", message),
        Err(message) => (Status::False, "Invalid", message),
    };
    put(&mut status.conditions, names::ACCEPTED, accepted, reason, message, policy.generation, now);
    status
}

fn accepted(spec: &OperationPolicySpec) -> Result<String, String> {
    if spec.operations.is_empty() {
        return Err("spec.operations is empty: add at least one type, such as Drain".to_owned());
    }
    if let Some(scope) = spec.scope.as_ref().filter(|scope| scope.by.is_empty()) {
        return Err(format!("spec.scope.by is {:?}: set it to a label of the targets, such as zone", scope.by));
    }
    let scope =
        spec.scope.as_ref().map_or_else(String::new, |scope| format!(" for each value of the label {}", scope.by));
    let at_least = match spec.max {
        Amount::Percent(_) => format!(" of the machines, but at least {},", spec.at_least),
        Amount::Count(_) => String::new(),
    };
    Ok(format!("{}{at_least} at a time{scope}: {}", spec.max, spec.operations.join(", ")))
}

#[cfg(test)]
mod tests;
