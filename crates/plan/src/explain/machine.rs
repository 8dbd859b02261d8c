//! Why a machine is or is not schedulable, and what is wrong with its host.

use fleetwright_api::{
    ComponentState, Condition, GateWhen, Machine, MachineStatus, ReadinessGates, Status, condition, names,
};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;

use super::{Action, Check, Explanation, Group, State, Subject, Verdict};
use crate::readiness::gate::{CheckedGate, ConditionSource, GateResult, GateState};
use crate::readiness::reports::CopiedConditions;
use crate::readiness::verdict::{Decision, GateVerdict, MachineObservation, Node, NodeObservation, reason};
use crate::readiness::{is_plain, manager_name};

/// Broken reports that are listed.
const MAX_REPORTS: usize = 8;

/// The name of a machine's Node: what its status says, else its host name, else its own name.
pub fn node_name(machine: &Machine) -> &str {
    let status = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.as_str());
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    status.or(machine.spec.hostname.as_deref()).unwrap_or(name)
}

fn conditions(machine: &Machine) -> &[Condition] {
    machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// What the explanation of a machine's schedulability is made from: the inputs and results of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Schedulability<'a, 'b> {
    /// The machine as it is in the API.
    pub machine: &'a Machine,
    /// The ReadinessGates that select it.
    pub gates: &'b [&'a ReadinessGates],
    /// What the decision was made from.
    pub seen: &'b MachineObservation<'a>,
    /// The reports on the machine.
    pub copies: &'b CopiedConditions<'a>,
    /// What the gates come to.
    pub judgement: &'b GateVerdict<'a>,
    pub decision: &'b Decision,
}

/// Explains why a machine is or is not schedulable.
pub fn schedulability(input: &Schedulability<'_, '_>, now: Timestamp) -> Explanation {
    let Schedulability { machine, seen, judgement, decision, .. } = *input;
    let written = condition(conditions(machine), names::SCHEDULABLE);
    let same_status = written.filter(|written| written.status == decision.status);
    let recorded = same_status.is_some_and(|written| written.reason == decision.reason);
    let verdict = Verdict {
        condition: names::SCHEDULABLE,
        status: decision.status,
        reason: decision.reason.to_owned(),
        message: decision.message.clone(),
        since: same_status.map(|written| written.last_transition_time),
        recorded,
        last_recorded: written.filter(|_| !recorded).cloned(),
    };
    let object = Subject {
        kind: "Machine",
        namespace: machine.metadata.namespace.clone().unwrap_or_default(),
        name: machine.metadata.name.clone().unwrap_or_default(),
    };
    let phase = machine.status.as_ref().and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    let mut out = Explanation::new(object, phase, machine.spec.paused, verdict);
    let closed = matches!(&seen.node, NodeObservation::Found(node) if node.closed);
    let mut gates: Vec<_> = judgement.checked.iter().map(|checked| gate(checked, closed, now)).collect();
    gates.sort_by_key(|check| check.state);
    out.checks.extend(gates);
    out.checks.extend(unchecked(seen, judgement));
    if let NodeObservation::Found(node) = &seen.node {
        out.checks.extend(node_checks(node, judgement));
    }
    out.checks.extend(input.gates.iter().filter_map(|gates| safety_net(gates)));
    let refused = input.copies.refused.iter().take(MAX_REPORTS);
    out.checks.extend(refused.map(|refused| Check {
        message: truncate_line(&refused.why, 300),
        ..Check::new(Group::Reports, "report", State::Failing)
    }));
    let actions = actions(input, written.is_some());
    out.act(actions);
    out
}

fn gate(checked: &CheckedGate<'_>, closed: bool, now: Timestamp) -> Check {
    let state = match checked.state {
        GateState::Fails { .. } => State::Failing,
        GateState::Keep => State::Unknown,
        GateState::Holds { .. } if closed && checked.blocks(now) => State::Waiting,
        GateState::Holds { .. } => State::Passing,
    };
    let (value, since, reason, message) = match &checked.found {
        GateResult::Fact(fact) => (
            fact.status.as_str().to_owned(),
            fact.since,
            truncate_line(fact.reason, 120),
            truncate_line(fact.message, 120),
        ),
        GateResult::Missing { since, hint } => {
            ("missing".to_owned(), *since, String::new(), hint.clone().unwrap_or_default())
        }
        GateResult::Stale { fact, since } => {
            ("stale".to_owned(), *since, String::new(), format!("the last value was {}", fact.status.as_str()))
        }
    };
    let (limit, until) = match closed {
        true => (checked.gate.hold_for, checked.opens_at()),
        false => (checked.gate.tolerate_for, checked.closes_at()),
    };
    Check {
        rule: Some(format!("ReadinessGates/{}", checked.object)),
        owner: Some(ConditionSource::of(checked.gate).to_string()),
        value,
        limit: until.map(|_| limit.to_string()),
        reason,
        message,
        since: Some(since),
        until,
        ..Check::new(Group::Gates, &checked.gate.type_, state)
    }
}

/// Gates that only count until the machine was ready for the first time.
fn unchecked(seen: &MachineObservation<'_>, judgement: &GateVerdict<'_>) -> Option<Check> {
    let total: usize = seen.gates.iter().map(|object| object.gates.len()).sum();
    let passed = total.saturating_sub(judgement.checked.len());
    (passed > 0 && matches!(seen.node, NodeObservation::Found(_))).then(|| Check {
        message: format!("{passed} with when: {:?} no longer count: the machine was ready before", GateWhen::Bootstrap),
        ..Check::new(Group::Gates, format!("when: {:?}", GateWhen::Bootstrap), State::Passing)
    })
}

fn node_checks(node: &Node<'_>, judgement: &GateVerdict<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    let taint = |state, value: &str| Check {
        value: value.to_owned(),
        since: node.closed_at,
        ..Check::new(Group::Node, format!("taint {}", names::UNREADY_TAINT), state)
    };
    checks.push(match (node.closed, node.closed_at) {
        (true, Some(_)) => taint(State::Failing, "closed"),
        (true, None) => Check { message: "startup taint of the kubelet".to_owned(), ..taint(State::Failing, "closed") },
        (false, _) => taint(State::Passing, "open"),
    });
    if node.cordoned {
        checks.push(Check {
            value: "cordoned".to_owned(),
            owner: node.cordoned_by.map(|hand| manager_name(hand.manager)),
            since: node.cordoned_by.and_then(|hand| hand.at),
            ..Check::new(Group::Node, "spec.unschedulable", State::Failing)
        });
    }
    // The last manager of any taint is known, not that of each.
    let only = node.foreign.len() == 1;
    checks.extend(node.foreign.iter().map(|taint| {
        Check {
            owner: node
                .tainted_by
                .filter(|_| only && !taint.is_kubernetes() && !taint.is_window())
                .map(|hand| manager_name(hand.manager)),
            message: "not declared in spec.taints".to_owned(),
            ..Check::new(Group::Node, format!("taint {}:{:?}", taint.key, taint.effect), State::Failing)
        }
    }));
    checks.push(match &judgement.bootstrapped {
        Some(first) if first.node_uid == node.uid => Check {
            since: Some(first.at),
            value: "yes".to_owned(),
            ..Check::new(Group::Node, "ready before", State::Passing)
        },
        _ => Check { value: "no".to_owned(), ..Check::new(Group::Node, "ready before", State::Waiting) },
    });
    for check in &mut checks {
        check.rule = Some(format!("Node/{}", node.name));
    }
    checks
}

fn safety_net(gates: &ReadinessGates) -> Option<Check> {
    let conditions = &gates.status.as_ref()?.conditions;
    let active = condition(conditions, names::SAFETY_NET_ACTIVE).filter(|active| active.status == Status::True)?;
    let mut check = Check::of_condition(Group::SafetyNet, active, State::Waiting);
    check.rule = Some(format!("ReadinessGates/{}", gates.metadata.name.as_deref().unwrap_or_default()));
    check.message = truncate_line(&check.message, 600);
    Some(check)
}

fn actions(input: &Schedulability<'_, '_>, recorded: bool) -> Vec<Action> {
    let Schedulability { machine, seen, judgement, decision, .. } = *input;
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let mut actions = Vec::new();
    match &seen.node {
        NodeObservation::Found(node) => {
            if node.cordoned {
                let by = node.cordoned_by.map(|hand| hand.manager).filter(|manager| is_plain(manager));
                let by = by.map_or(String::new(), |manager| format!(" if {} is done", truncate_line(manager, 63)));
                actions
                    .push(Action::run(format!("kubectl uncordon {}", node.name), format!("makes it schedulable{by}")));
            }
            let theirs = node.foreign.iter().filter(|taint| !taint.is_kubernetes() && !taint.is_window());
            for taint in theirs.filter(|taint| is_plain(taint.key)) {
                actions.push(Action::run(
                    format!("kubectl taint node {} {}:{:?}-", node.name, taint.key, taint.effect),
                    "or declare the taint in spec.taints",
                ));
            }
        }
        NodeObservation::Missing(_) => {
            actions
                .push(Action::text(format!("check the kubelet on the host: it registers Node {}", node_name(machine))));
        }
        NodeObservation::NotBound { node, .. } => actions.push(Action::run(
            format!("fleetwright machine bind-node {name} -n {namespace}"),
            format!("if Node {node} is this machine's; needs the verb adopt on machines"),
        )),
        NodeObservation::Taken { by, .. } => actions.push(Action::run(
            format!("kubectl get machine -n {namespace} {by} {name} -o wide"),
            "delete one of the two, or give it another spec.hostname",
        )),
    }
    if seen.paused && decision.reason == reason::PAUSED {
        actions.push(Action::run(format!("fleetwright machine resume {name} -n {namespace}"), "ends the pause"));
    }
    for gate in judgement.checked.iter().filter(|gate| !matches!(gate.state, GateState::Holds { .. })) {
        actions.push(match ConditionSource::of(gate.gate) {
            ConditionSource::Reporter(reporter) => Action::run(
                format!("kubectl get configmap -n {namespace} {name}.{reporter} -o yaml"),
                format!("shows the report; then check {reporter}"),
            ),
            ConditionSource::Node(_) if is_plain(node_name(machine)) => {
                Action::run(format!("kubectl describe node {}", node_name(machine)), "")
            }
            ConditionSource::Node(type_) => Action::text(format!("check the condition {type_} of the Node")),
            ConditionSource::Machine(type_) => Action::run(
                format!("kubectl describe machine -n {namespace} {name}"),
                format!("{type_} is written by the operator that owns it"),
            ),
        });
    }
    if decision.reason == reason::NO_READINESS_GATES {
        actions.push(Action::run(
            format!("kubectl get readinessgates -n {namespace}"),
            "one of them should select this machine's labels",
        ));
    }
    let due = judgement.turn.is_some() && !seen.paused && !decision.held;
    if !recorded || due {
        actions.push(Action::text("check that the readiness operator runs: its pods, log and /readyz"));
    }
    if decision.held {
        actions.push(Action::text("find what the failing machines have in common before you change spec.safetyNet"));
    }
    actions
}

/// Adds that no action is needed, if nothing but time is missing.
pub fn waits(out: &mut Explanation) {
    let blocked = |check: &Check| matches!(check.group, Group::Packages | Group::Host) && check.state == State::Failing;
    if out.actions.is_empty() && out.verdict.status != Status::True && !out.checks.iter().any(blocked) {
        out.act([Action::text("nothing: it resolves by itself")]);
    }
}

/// Adds what is wrong with the machine's host and its packages.
pub fn host(out: &mut Explanation, machine: &Machine) {
    let managed = |_: &&MachineStatus| machine.spec.ssh.is_some() || !machine.spec.packages.is_empty();
    let Some(status) = machine.status.as_ref().filter(managed) else { return };
    let wrong: Vec<_> = status.components.iter().filter(|component| component.state != ComponentState::Ready).collect();
    out.checks.extend(wrong.iter().map(|component| {
        let state = match component.state {
            ComponentState::Failed | ComponentState::RolledBack | ComponentState::Drifted => State::Failing,
            _ => State::Waiting,
        };
        Check {
            value: format!("{:?}", component.state),
            limit: component.desired.clone(),
            message: component.message.clone(),
            since: Some(component.since),
            ..Check::new(Group::Packages, &component.component, state)
        }
    }));
    let failing = crate::machine::OWNED_CONDITIONS.iter().filter_map(|type_| condition(&status.conditions, type_));
    let failing = failing.filter(|condition| condition.status == Status::False);
    out.checks.extend(failing.map(|condition| Check::of_condition(Group::Host, condition, State::Failing)));

    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let retry =
        |description: &str| Action::run(format!("fleetwright machine retry {name} -n {namespace}"), description);
    if condition(&status.conditions, names::REACHABLE).is_some_and(|reached| reached.status == Status::False) {
        let address = machine.spec.addresses.first().or(machine.spec.hostname.as_ref()).map_or(name, String::as_str);
        out.act([
            Action::text(format!(
                "check that {address} is on and that the operators can reach it; they retry with backoff"
            )),
            retry("tries it now"),
        ]);
    }
    if wrong.iter().any(|component| matches!(component.state, ComponentState::Failed | ComponentState::RolledBack)) {
        out.act([
            Action::run(format!("fleetwright machine logs {name} -n {namespace}"), "shows what the last step printed"),
            retry("once the cause is fixed; or refer to another package version"),
        ]);
    }
}
