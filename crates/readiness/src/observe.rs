//! The inputs of a verdict, from the caches.

use std::sync::Arc;

use fleetwright_api::{Condition, Status, TaintEffect, names};
use fleetwright_kit::{Cache, JsonPatch, Key};
use fleetwright_plan::readiness::reports::{CopiedConditions, RefusedReport, copy};
use fleetwright_plan::readiness::safety_net::{FullNet, NetMembership};
use fleetwright_plan::readiness::verdict::{
    Decision, ForeignTaint, GateVerdict, MachineObservation, ManualChange, Node, NodeAction, NodeObservation, judge,
};
use fleetwright_plan::readiness::{ObservedCondition, stamp};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::view::{ConditionView, GatesView, LastWriter, MachineView, NodeView, ReportView, intern};

/// Name of the index of machines by the name of their Node.
pub const BY_NODE: &str = "node";
/// Name of the index of reports by the machine that their label names.
pub const BY_MACHINE: &str = "machine";
/// Name of the index that has all gates under one key.
pub const ALL: &str = "all";

/// Invalid reports that a condition names.
const MAX_LISTED_REPORTS: usize = 5;

/// The caches.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Machines, with [`BY_NODE`].
    pub machines: Cache<MachineView>,
    pub nodes: Cache<NodeView>,
    /// ReadinessGates, with [`ALL`].
    pub gates: Cache<GatesView>,
    /// Reports, with [`BY_MACHINE`].
    pub reports: Cache<ReportView>,
}

/// The Node of a machine as observed.
#[derive(Clone, Debug)]
pub enum ObservedNode {
    /// No Node has that name.
    Missing,
    /// The Node is bound to another machine.
    Taken(Arc<str>),
    /// The Node exists and is bound to no machine.
    NotBound,
    /// The Node exists and is bound to this machine, by uid.
    Found(Arc<NodeView>),
}

/// All inputs of the verdict on one machine.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Name of the machine.
    pub name: Arc<str>,
    pub machine: Arc<MachineView>,
    pub node: ObservedNode,
    /// The ReadinessGates that select it, with their names.
    pub gates: Vec<(Arc<str>, Arc<GatesView>)>,
    /// The reports on it, with their names.
    pub reports: Vec<(Arc<str>, Arc<ReportView>)>,
}

/// The decision in the form of the API.
#[derive(Clone, Debug)]
pub struct NodeDecision {
    /// The decision about the machine.
    pub decision: Decision,
    /// The conditions that this operator owns on the machine, by type.
    pub conditions: Vec<Condition>,
    /// Reports that do not count.
    pub refused: Vec<RefusedReport>,
    /// Whether the Node has our taint after the decision is carried out.
    pub closed: bool,
}

impl Caches {
    /// Reads a machine from the caches; none if it does not exist.
    pub fn look(&self, key: &Key) -> Option<Observed> {
        let machine = self.machines.get(key)?;
        let node = match self.nodes.get(&Key::cluster(&machine.node)) {
            None => ObservedNode::Missing,
            Some(node) => match self.owner(&machine.node, &node.uid) {
                Some(owner) if owner != key.name => ObservedNode::Taken(owner),
                Some(_) => ObservedNode::Found(node),
                None => ObservedNode::NotBound,
            },
        };
        let gates = self.gates.by(ALL, ALL).into_iter().filter(|(_, gates)| gates.selects(&machine));
        let gates = gates.map(|(key, gates)| (key.name, gates)).collect();
        let reports =
            self.reports.by(BY_MACHINE, &key.name).into_iter().map(|(key, report)| (key.name, report)).collect();
        Some(Observed { name: Arc::clone(&key.name), machine, node, gates, reports })
    }

    /// The machine that the Node is bound to. Of several that a person bound it to, the oldest has it.
    fn owner(&self, node: &str, uid: &str) -> Option<Arc<str>> {
        let mut claims = self.machines.by(BY_NODE, node);
        claims.retain(|(_, machine)| machine.bound.as_deref() == Some(uid));
        claims.sort_by(|a, b| (a.1.created, &a.0.name).cmp(&(b.1.created, &b.0.name)));
        claims.into_iter().next().map(|(key, _)| key.name)
    }
}

impl Observed {
    /// Judges the machine and passes the result to `f`.
    pub fn judge<R>(
        &self,
        now: Timestamp,
        f: impl FnOnce(&MachineObservation<'_>, &CopiedConditions<'_>, &GateVerdict<'_>) -> R,
    ) -> R {
        let machine = &*self.machine;
        let seen = MachineObservation {
            created: machine.created,
            changed: machine.changed,
            paused: machine.paused,
            bootstrapped: machine.bootstrapped.as_ref().map(|first| (first.at, first.node_uid.as_str())),
            conditions: machine.conditions.iter().map(ConditionView::fact).collect(),
            node: match &self.node {
                ObservedNode::Missing => NodeObservation::Missing(&machine.node),
                ObservedNode::Taken(by) => NodeObservation::Taken { node: &machine.node, by },
                ObservedNode::NotBound => NodeObservation::NotBound { node: &machine.node, machine: &self.name },
                ObservedNode::Found(node) => NodeObservation::Found(seen_node(machine, node)),
            },
            gates: self.gates.iter().map(|(name, gates)| gates.gates(name)).collect(),
        };
        let filed: Vec<_> = self.reports.iter().map(|(name, report)| report.filed(name)).collect();
        let copies = copy(&seen.conditions, &filed, &seen.gates, now);
        let judgement = judge(&seen, &copies, now);
        f(&seen, &copies, &judgement)
    }

    /// The nets that the machine is in.
    pub fn places(&self) -> Vec<NetMembership> {
        self.gates
            .iter()
            .map(|(name, gates)| {
                let value = gates.spec.safety_net.by.as_deref().and_then(|by| self.machine.label(by));
                NetMembership { gates: Arc::clone(name), scope: intern(value.unwrap_or_default()) }
            })
            .collect()
    }

    /// What to write for a verdict and the state of the nets.
    pub fn outcome(
        &self,
        seen: &MachineObservation<'_>,
        copies: &CopiedConditions<'_>,
        judgement: &GateVerdict<'_>,
        full: &[FullNet],
        now: Timestamp,
    ) -> NodeDecision {
        let decision = judgement.decide(seen, full, now);
        let mut conditions: Vec<Condition> = copies.copied.iter().map(|copy| copy.condition.clone()).collect();
        conditions.push(self.condition(
            names::SCHEDULABLE,
            decision.status,
            decision.reason,
            decision.message.clone(),
            now,
        ));
        if !self.reports.is_empty() {
            let (status, reason, message) = reports_valid(&copies.refused);
            conditions.push(self.condition(names::REPORTS_VALID, status, reason, message, now));
        }
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        let closed = match (decision.turn, &seen.node) {
            (Some(turn), _) => turn == NodeAction::Close,
            (None, NodeObservation::Found(node)) => node.closed,
            (None, _) => false,
        };
        NodeDecision { decision, conditions, refused: copies.refused.clone(), closed }
    }

    /// A condition of ours, with the time at which its status changed.
    pub fn condition(&self, type_: &str, status: Status, reason: &str, message: String, now: Timestamp) -> Condition {
        let before = self.machine.condition(type_).filter(|kept| kept.status == status);
        Condition {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: before.map_or(now, |kept| kept.since),
            observed_generation: Some(self.machine.generation),
            reporter: None,
        }
    }

    /// Our part of the machine's status, as it is now.
    pub fn current_status(&self) -> Value {
        let mut ours: Vec<&ConditionView> = self.machine.conditions.iter().filter(|kept| kept.ours).collect();
        ours.sort_by(|a, b| a.type_.cmp(&b.type_));
        let conditions: Vec<Value> = ours
            .into_iter()
            .map(|kept| {
                json!({
                    "type": &*kept.type_,
                    "status": kept.status.as_str(),
                    "reason": &*kept.reason,
                    "message": &*kept.message,
                    "lastTransitionTime": kept.since,
                    "observedGeneration": kept.observed_generation,
                    "reporter": kept.reporter.as_deref(),
                })
            })
            .collect();
        status(json!(conditions), json!(self.machine.bootstrapped))
    }

    /// Our part of the status, as it should be.
    pub fn desired_status(outcome: &NodeDecision) -> Value {
        status(json!(outcome.conditions), json!(outcome.decision.bootstrapped))
    }

    /// The patch that opens or closes the Node, safe against concurrent writes.
    pub fn patch(&self, turn: NodeAction, now: Timestamp) -> Option<JsonPatch> {
        let ObservedNode::Found(node) = &self.node else { return None };
        let patch = JsonPatch::new().test_uid(&node.uid);
        let mut patch = match &node.taints {
            Some(taints) => patch.test(&["spec", "taints"], taints),
            // JSON Patch has no test for an absent field.
            None => patch.test_version(&node.version),
        };
        match turn {
            NodeAction::Close => {
                // The time of closing is kept with the taint: the safety net counts by it, also after a restart.
                let taint = json!({ "key": names::UNREADY_TAINT, "effect": "NoSchedule", "timeAdded": stamp(now) });
                patch = match &node.taints {
                    Some(_) => patch.add(&["spec", "taints", "-"], taint),
                    None => patch.add(&["spec", "taints"], [taint]),
                };
            }
            NodeAction::Open => {
                let ours: Vec<usize> = node
                    .taints()
                    .enumerate()
                    .filter(|(_, taint)| is_ours(taint.key, taint.effect))
                    .map(|(n, _)| n)
                    .collect();
                for index in ours.into_iter().rev() {
                    patch = patch.remove(&["spec", "taints", &index.to_string()]);
                }
            }
        }
        Some(patch)
    }
}

fn status(conditions: Value, bootstrapped: Value) -> Value {
    let mut status = json!({ "conditions": conditions });
    if !bootstrapped.is_null() {
        status["bootstrapped"] = bootstrapped;
    }
    status
}

fn is_ours(key: &str, effect: Option<TaintEffect>) -> bool {
    key == names::UNREADY_TAINT && effect == Some(TaintEffect::NoSchedule)
}

fn seen_node<'a>(machine: &'a MachineView, node: &'a NodeView) -> Node<'a> {
    let hand = |touch: &'a Option<LastWriter>| {
        touch.as_ref().map(|touch| ManualChange { manager: &touch.manager, at: touch.at })
    };
    let mut closed = None;
    let mut foreign = Vec::new();
    for taint in node.taints() {
        let Some(effect) = taint.effect.filter(|effect| *effect != TaintEffect::PreferNoSchedule) else { continue };
        if is_ours(taint.key, Some(effect)) {
            closed = Some(taint.added);
        } else if !(is_declared(machine, taint.key, effect)
            || node.cordoned && taint.key == "node.kubernetes.io/unschedulable")
        {
            foreign.push(ForeignTaint { key: taint.key, effect });
        }
    }
    Node {
        name: &machine.node,
        uid: &node.uid,
        created: node.created,
        closed: closed.is_some(),
        closed_at: closed.flatten(),
        cordoned: node.cordoned,
        cordoned_by: hand(&node.cordoned_by),
        foreign,
        tainted_by: hand(&node.tainted_by),
        conditions: node.conditions.iter().map(|kept| ObservedCondition { reporter: None, ..kept.fact() }).collect(),
    }
}

fn is_declared(machine: &MachineView, key: &str, effect: TaintEffect) -> bool {
    machine.taints.iter().any(|(other, its)| &**other == key && *its == effect)
}

fn reports_valid(refused: &[RefusedReport]) -> (Status, &'static str, String) {
    if refused.is_empty() {
        return (Status::True, "AllValid", "all reports on the Machine are valid".to_owned());
    }
    let told: Vec<String> =
        refused.iter().take(MAX_LISTED_REPORTS).map(|refused| truncate_line(&refused.why, 400)).collect();
    let more = refused.len().saturating_sub(MAX_LISTED_REPORTS);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (Status::False, "ReportInvalid", format!("{}{more}", told.join("; ")))
}
