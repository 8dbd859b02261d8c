//! May an operation start? Every policy that names its type must have room.
//!
//! The gate fails closed: what no policy names, what cannot be counted and what is not yet counted does not pass.
//! [`judge`] is the one question; breakers, windows and approvals will be answered behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fleetwright_api::{
    Amount, Holder, OperationPhase, OperationPolicySpec, OperationPolicyStatus, Status, condition, names,
};
use jiff::Timestamp;

use crate::operation::put;

/// How many targets there are, for limits given as a percentage.
pub trait Population: Send + Sync {
    /// How many have that label; how many there are in all without one. None if it is not known.
    fn count(&self, label: Option<(&str, &str)>) -> Option<usize>;
}

/// For operators whose policies are all plain numbers: a percentage does not pass.
impl Population for () {
    fn count(&self, _: Option<(&str, &str)>) -> Option<usize> {
        None
    }
}

/// The most operations that the status of one policy can list.
const MOST_HOLDERS: usize = 4096;

/// What the gate is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Its type.
    pub type_: &'a str,
    /// The labels of its target.
    pub labels: &'a BTreeMap<String, String>,
}

/// A policy of the operation's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its generation.
    pub generation: Option<i64>,
    /// What it allows.
    pub spec: &'a OperationPolicySpec,
    /// Who passed.
    pub status: &'a OperationPolicyStatus,
}

/// A place behind the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySlot {
    /// The policy that gives it.
    pub policy: String,
    /// What is to be recorded in the policy's status.
    pub holder: Holder,
    /// Whether it is recorded there already.
    pub held: bool,
}

/// The gate's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateAnswer {
    /// It may start once its places are recorded.
    Granted {
        /// In the order of the policies' names, in which all must take them: so that no two wait for each other.
        places: Vec<PolicySlot>,
        /// Which rules let it pass, and at what count, such as `drains: 2 of 5 in zone=z1`.
        by: String,
    },
    /// It must wait.
    Refused(Refusal),
}

/// Why an operation must wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In one word.
    pub why: RefusalReason,
    /// By which policy; none if it is for the lack of one.
    pub by: Option<String>,
    /// What is always said of this refusal. The counts are left out, so that a text that was written stays true.
    pub rule: String,
    /// How many are under way.
    pub count: usize,
    /// How many may be.
    pub limit: usize,
    /// Until when, if time alone ends it.
    pub until: Option<Timestamp>,
}

/// Why an operation must wait, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No policy names its type.
    NoMatchingPolicy,
    /// The policy is new or changed, and its counts do not follow yet.
    PolicyNotObserved,
    /// The policy is not understood.
    PolicyNotAccepted,
    /// The target lacks the label that the policy counts by.
    ScopeLabelMissing,
    /// The policy has a percentage, and nobody knows of how many.
    TargetCountUnknown,
    /// As many as may be are under way.
    LimitReached,
}

impl RefusalReason {
    /// As a condition's reason.
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

/// Answers whether an operation may start, in the light of all policies of its namespace.
///
/// A place that it holds already is its own, also if the limit was lowered since: otherwise two that hold the last places
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
    // The holders were recorded under the scope of the generation that was observed: under another they count nothing.
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
    // An entry of the same name and another uid is of one that is gone; taking the place replaces it.
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
    if !held && all >= MOST_HOLDERS {
        let rule = format!("OperationPolicy {name} can track {MOST_HOLDERS} at a time, and the limit is reached");
        return Err(refuse(RefusalReason::LimitReached, rule, all, MOST_HOLDERS));
    }
    let text = format!("{name}: {} of {limit}{inside}", others + 1);
    Ok((PolicySlot { policy: name.to_owned(), holder, held }, text))
}

/// The policy's holders when that one takes its place.
pub fn take(status: &OperationPolicyStatus, holder: &Holder) -> Vec<Holder> {
    let mut holders = release(status, &holder.operation);
    holders.push(holder.clone());
    holders
}

/// The policy's holders when that operation gives its place back.
pub fn release(status: &OperationPolicyStatus, operation: &str) -> Vec<Holder> {
    status.holders.iter().filter(|holder| holder.operation != operation).cloned().collect()
}

/// An operation, as far as a policy's counts depend on it.
#[derive(Clone, Copy, Debug)]
pub struct ActiveOperation<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Its type.
    pub type_: &'a str,
    /// The labels of its target.
    pub labels: &'a BTreeMap<String, String>,
    /// Where it is.
    pub phase: OperationPhase,
}

/// The status that a policy should have.
///
/// `operations` holds at least those that the holders name, as far as they exist, and those under way. A holder that ended,
/// is gone, or is of a type that the policy no longer names gives up its place. One that is under way without a place
/// (it passed before the policy named its type) is given one, also beyond the limit: it is there.
/// One that still waits keeps the place it has: its driver is about to use it, or to give it back.
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
