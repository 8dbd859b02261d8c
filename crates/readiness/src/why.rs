//! The reason, for a person, in one screen.

use std::fmt::Write as _;
use std::sync::Arc;

use fleetwright_api::{Condition, GateWhen, Machine, MachineStatus, ReadinessGates, Status, condition, names};
use fleetwright_kit::View;
use fleetwright_plan::readiness::gate::{Checked, Found, Source, State};
use fleetwright_plan::readiness::net::Full;
use fleetwright_plan::readiness::verdict::{Decision, Judgement, NodeSeen, Seen, Turn, reason};
use fleetwright_plan::readiness::{Fact, cut, stamp};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use serde::Serialize;

use crate::look::{Look, NodeLook};
use crate::view::{GatesView, MachineView, NodeView, ReportView};

/// So many broken reports, and so many things to do, are listed.
const TOLD: usize = 8;

/// What `fleetwright why machine/NAME` looks at, fetched live.
#[derive(Clone, Debug)]
pub struct WhyInput {
    /// The machine asked about.
    pub machine: Machine,
    /// All ReadinessGates of its namespace; those that do not select it are left out by [`why`].
    pub gates: Vec<ReadinessGates>,
    /// Its Node, see [`node_name`]; none if there is no such Node.
    pub node: Option<Node>,
    /// The ConfigMaps of its namespace labelled `fleetwright.io/machine: NAME`.
    pub reports: Vec<ConfigMap>,
    /// All machines of its namespace, for who else claims the Node.
    pub machines: Vec<Machine>,
}

/// The name of a machine's Node: what its status says, else its host name, else its own name.
pub fn node_name(machine: &Machine) -> &str {
    let status = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.as_str());
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    status.or(machine.spec.hostname.as_deref()).unwrap_or(name)
}

/// Why a machine may or may not be scheduled, in one screen, the problem first.
///
/// It is decided anew, from what is given, as the operator would; if the operator has not written that down yet, it says so.
pub fn why(input: &WhyInput, now: Timestamp) -> String {
    let Some(look) = look(input) else {
        return "the objects cannot be read: are the installed kinds of this version? (fleetwright install)\n"
            .to_owned();
    };
    let conditions = input.machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let written = condition(conditions, names::SCHEDULABLE);
    look.judge(now, |seen, copies, judgement| {
        // Whether the net holds it depends on all other machines; the operator has said so if it does.
        let held = written.is_some_and(|written| written.reason == reason::SAFETY_NET);
        let full: Vec<Full> =
            if held { look.places().into_iter().map(|place| Full { place }).collect() } else { Vec::new() };
        let decision = judgement.decide(seen, &full, now);
        let mut out = String::new();
        headline(&mut out, input, &decision, written, now);
        gates(&mut out, seen, judgement, now);
        node(&mut out, seen, judgement, now);
        nets(&mut out, input, &look);
        if !copies.refused.is_empty() {
            out.push_str("\nReports that do not count:\n");
            for refused in copies.refused.iter().take(TOLD) {
                let _ = writeln!(out, "  ✗ {}", cut(&refused.why, 300));
            }
        }
        to_do(&mut out, input, seen, judgement, &decision, written);
        out
    })
}

/// The same views as the operator has, of live objects.
fn look(input: &WhyInput) -> Option<Look> {
    fn view<V: View>(object: &impl Serialize) -> Option<V> {
        let object = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
        Some(V::of(object))
    }
    let name = input.machine.name_any();
    let machine: MachineView = view(&input.machine)?;
    let uid = input.node.as_ref().and_then(|node| node.metadata.uid.as_deref());
    let bound = |other: &Machine| uid.is_some() && other.status.as_ref().and_then(MachineStatus::bound_uid) == uid;
    let claims = input.machines.iter().filter(|other| node_name(other) == &*machine.node && bound(other));
    let owner = claims.min_by_key(|other| (other.creation_timestamp(), other.name_any())).map(ResourceExt::name_any);
    let node = match (&input.node, owner) {
        (None, _) => NodeLook::Missing,
        (Some(_), Some(owner)) if owner != name => NodeLook::Taken(owner.into()),
        (Some(_), None) => NodeLook::NotBound,
        (Some(node), _) => NodeLook::Here(Arc::new(view::<NodeView>(node)?)),
    };
    let mut gates = Vec::new();
    for object in &input.gates {
        let view: GatesView = view(object)?;
        if view.selects(&machine) {
            gates.push((Arc::from(object.name_any()), Arc::new(view)));
        }
    }
    let mut reports = Vec::new();
    for object in &input.reports {
        reports.push((Arc::from(object.name_any()), Arc::new(view::<ReportView>(object)?)));
    }
    Some(Look { name: name.into(), machine: Arc::new(machine), node, gates, reports })
}

fn headline(out: &mut String, input: &WhyInput, decision: &Decision, written: Option<&Condition>, now: Timestamp) {
    let verdict = match decision.status {
        Status::True => "is schedulable",
        Status::False => "is NOT schedulable",
        Status::Unknown => "may or may not be schedulable",
    };
    let since = written.filter(|written| written.status == decision.status);
    let since = since.map(|written| format!(", for {}", ago(written.last_transition_time, now))).unwrap_or_default();
    let _ = writeln!(out, "machine/{} {verdict}: {}{since}", input.machine.name_any(), decision.reason);
    let _ = writeln!(out, "  {}", decision.message);
    match written {
        Some(written) if written.status == decision.status && written.reason == decision.reason => {}
        Some(written) => {
            let _ = writeln!(
                out,
                "  The operator last wrote {} ({}): it has not caught up. Is it running?",
                written.status.as_str(),
                written.reason
            );
        }
        None => out.push_str("  The operator has not written a verdict yet. Is it running?\n"),
    }
}

fn gates(out: &mut String, seen: &Seen<'_>, judgement: &Judgement<'_>, now: Timestamp) {
    let total: usize = seen.gates.iter().map(|object| object.gates.len()).sum();
    if judgement.checked.is_empty() && (total == 0 || matches!(seen.node, NodeSeen::Missing(_))) {
        return;
    }
    out.push_str("\nGates:\n");
    let closed = matches!(&seen.node, NodeSeen::Here(node) if node.closed);
    let mut checked: Vec<&Checked<'_>> = judgement.checked.iter().collect();
    checked.sort_by_key(|gate| match gate.state {
        State::Fails { .. } => 0,
        State::Keep => 1,
        State::Holds { .. } => 2,
    });
    let width = checked.iter().map(|gate| gate.gate.type_.chars().count()).max().unwrap_or_default();
    for gate in checked {
        let mark = match gate.state {
            State::Fails { .. } => '✗',
            State::Keep => '?',
            State::Holds { .. } => '✓',
        };
        let found = match &gate.found {
            Found::Fact(fact) => tell_fact(fact, now),
            Found::Missing { since, hint } => {
                let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                format!("missing for {}{hint}", ago(*since, now))
            }
            Found::Stale { fact, since } => format!("stale for {}, was {}", ago(*since, now), fact.status.as_str()),
        };
        let left = match (closed, gate.opens_at(), gate.closes_at()) {
            (true, Some(at), _) if at > now => format!("; must hold for another {}", ago(now, at)),
            (false, _, Some(at)) if at > now => format!("; tolerated for another {}", ago(now, at)),
            (false, _, Some(_)) => format!("; longer than the {} it may", gate.gate.tolerate_for),
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "  {mark} {:width$}  {}, of ReadinessGates {}: {found}{left}",
            gate.gate.type_,
            Source::of(gate.gate),
            gate.object
        );
    }
    let passed = total - judgement.checked.len();
    if passed > 0 && matches!(seen.node, NodeSeen::Here(_)) {
        let _ = writeln!(
            out,
            "  {passed} with when: {:?} no longer count: the machine was ready before",
            GateWhen::Bootstrap
        );
    }
}

fn tell_fact(fact: &Fact<'_>, now: Timestamp) -> String {
    let mut text = format!("{} for {}", fact.status.as_str(), ago(fact.since, now));
    for part in [fact.reason, fact.message] {
        if !part.is_empty() {
            let _ = write!(text, ": {}", cut(part, 120));
        }
    }
    text
}

fn node(out: &mut String, seen: &Seen<'_>, judgement: &Judgement<'_>, now: Timestamp) {
    let NodeSeen::Here(node) = &seen.node else { return };
    let state = match (node.closed, node.closed_at) {
        (true, Some(at)) => format!("closed by the taint {} for {}", names::UNREADY_TAINT, ago(at, now)),
        (true, None) => format!("closed by its startup taint {}", names::UNREADY_TAINT),
        (false, _) => format!("open (no taint {})", names::UNREADY_TAINT),
    };
    let _ = writeln!(out, "\nNode {}: {state}", node.name);
    if node.cordoned {
        let by = node.cordoned_by.map(|hand| format!(" by {}", cut(hand.manager, 63))).unwrap_or_default();
        let at = node.cordoned_by.and_then(|hand| hand.at).map(|at| format!(" at {}", stamp(at))).unwrap_or_default();
        let _ = writeln!(out, "  cordoned{by}{at}");
    }
    for taint in &node.foreign {
        let _ = writeln!(out, "  taint {}:{:?}, not declared in spec.taints", taint.key, taint.effect);
    }
    match &judgement.bootstrapped {
        Some(first) if first.node_uid == node.uid => {
            let _ = writeln!(out, "  first ready at {}", stamp(first.at));
        }
        _ => out.push_str("  never ready yet as this Node\n"),
    }
    if seen.paused {
        out.push_str("  the machine is paused: nothing is done to the Node\n");
    }
}

fn nets(out: &mut String, input: &WhyInput, look: &Look) {
    for (name, _) in &look.gates {
        let Some(object) = input.gates.iter().find(|object| object.name_any() == **name) else { continue };
        let Some(status) = &object.status else { continue };
        if let Some(holding) =
            condition(&status.conditions, names::SAFETY_NET_ACTIVE).filter(|it| it.status == Status::True)
        {
            let _ = writeln!(out, "\nSafety net in force since {}:", stamp(holding.last_transition_time));
            let _ = writeln!(out, "  {}", cut(&holding.message, 600));
        }
    }
}

fn to_do(
    out: &mut String,
    input: &WhyInput,
    seen: &Seen<'_>,
    judgement: &Judgement<'_>,
    decision: &Decision,
    written: Option<&Condition>,
) {
    let namespace = input.machine.namespace().unwrap_or_default();
    let name = input.machine.name_any();
    let mut steps: Vec<String> = Vec::new();
    let mut add = |step: String| {
        if !steps.contains(&step) {
            steps.push(step);
        }
    };
    match &seen.node {
        NodeSeen::Here(node) => {
            if node.cordoned {
                add(format!("kubectl uncordon {}    # when whoever cordoned it is done", node.name));
            }
            for taint in node.foreign.iter().filter(|taint| !taint.is_kubernetes() && !taint.is_window()) {
                add(format!(
                    "kubectl taint node {} {}:{:?}-    # or declare it in spec.taints",
                    node.name, taint.key, taint.effect
                ));
            }
        }
        NodeSeen::Missing(_) => add("look at the host's kubelet: it registers the Node".to_owned()),
        NodeSeen::NotBound { node, .. } => add(format!(
            "fleetwright machine bind-node {name} -n {namespace}    # if Node {node} is this machine's; needs the right to write machines/status"
        )),
        NodeSeen::Taken { by, .. } => {
            add(format!("kubectl get machine -n {namespace} {by} {name} -o wide    # one of the two must go"))
        }
    }
    if seen.paused && decision.reason == reason::PAUSED {
        add(format!("kubectl patch machine -n {namespace} {name} --type merge -p '{{\"spec\":{{\"paused\":false}}}}'"));
    }
    for gate in judgement.checked.iter().filter(|gate| !matches!(gate.state, State::Holds { .. })) {
        add(match Source::of(gate.gate) {
            Source::Reporter(reporter) => {
                format!("kubectl get configmap -n {namespace} {name}.{reporter} -o yaml    # and look at {reporter}")
            }
            Source::Node(_) => format!("kubectl describe node {}", node_name(&input.machine)),
            Source::Machine(type_) => format!(
                "kubectl describe machine -n {namespace} {name}    # {type_} is written by the operator that owns it"
            ),
        });
    }
    if decision.reason == reason::NO_READINESS_GATES {
        add(format!("kubectl get readinessgates -n {namespace}    # whose selector should match this machine?"));
    }
    let turn = judgement.turn.is_some() && !seen.paused && !decision.held;
    if written.is_none() || turn {
        add("look at the operator: fleetwright operators, its log and /readyz".to_owned());
    }
    if decision.held {
        add("find what the failing machines share before you loosen spec.safetyNet".to_owned());
    }
    if steps.is_empty() {
        let waits = judgement.turn == Some(Turn::Open) || decision.status != Status::True;
        if waits {
            out.push_str("\nNothing to do but wait.\n");
        }
        return;
    }
    out.push_str("\nWhat to do:\n");
    for step in steps.iter().take(TOLD) {
        let _ = writeln!(out, "  {step}");
    }
}

/// The time between two moments, as people say it.
fn ago(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    let (days, hours, minutes, rest) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) if rest == 0 => format!("{minutes}m"),
        (0, 0, _) => format!("{minutes}m{rest}s"),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn input() -> WhyInput {
        let time = "2026-11-16T08:00:00Z";
        let machine: Machine = object(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": "host-17", "namespace": "fleet", "labels": { "pool": "online" }, "creationTimestamp": time },
            "spec": {},
            "status": { "bootstrapped": { "at": time, "nodeUid": "u1" },
                "nodeRef": { "name": "host-17", "uid": "u1", "binding": "Joined" }, "conditions": [
                { "type": "Schedulable", "status": "False", "reason": "GatesFailing", "message": "", "lastTransitionTime": "2026-11-16T09:00:00Z" },
                { "type": "LogAgentReady", "status": "False", "reason": "DaemonSetNotReady", "message": "0 of 1 pods", "reporter": "log-agent",
                  "lastTransitionTime": "2026-11-16T09:00:00Z" },
            ] },
        }));
        WhyInput {
            gates: vec![object(json!({
                "apiVersion": "fleetwright.io/v1alpha1", "kind": "ReadinessGates",
                "metadata": { "name": "workers", "creationTimestamp": time },
                "spec": { "selector": { "matchLabels": { "pool": "online" } }, "conditions": [
                    { "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "40s" },
                    { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
                    { "type": "DiskTested", "when": "Bootstrap" },
                ] },
            }))],
            node: Some(object(json!({
                "metadata": { "name": "host-17", "uid": "u1", "creationTimestamp": time },
                "spec": { "taints": [{ "key": "fleetwright.io/unready", "effect": "NoSchedule", "timeAdded": "2026-11-16T09:00:00Z" }] },
                "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                    "lastTransitionTime": time, "lastHeartbeatTime": time }] },
            }))),
            reports: vec![object(json!({
                "metadata": { "name": "host-17.log-agent", "creationTimestamp": time,
                    "labels": { "fleetwright.io/machine": "host-17", "fleetwright.io/reporter": "log-agent" } },
                "data": { "conditions": "[{\"type\":\"LogAgentReady\",\"status\":\"False\",\"reason\":\"DaemonSetNotReady\",\"message\":\"0 of 1 pods\"}]" },
            }))],
            machines: vec![machine.clone()],
            machine,
        }
    }

    fn now() -> Timestamp {
        "2026-11-16T09:05:00Z".parse().unwrap()
    }

    #[test]
    fn the_reason_comes_first_and_everything_fits_one_screen() {
        let text = why(&input(), now());
        let expected = "\
machine/host-17 is NOT schedulable: GatesFailing, for 5m
  1 of 2 gates fails: LogAgentReady (reporter log-agent) False since 2026-11-16T09:00:00Z: DaemonSetNotReady: 0 of 1 pods

Gates:
  ✗ LogAgentReady  reporter log-agent, of ReadinessGates workers: False for 5m: DaemonSetNotReady: 0 of 1 pods
  ✓ NodeReady      Node condition Ready, of ReadinessGates workers: True for 1h5m: KubeletReady: kubelet is posting ready status
  1 with when: Bootstrap no longer count: the machine was ready before

Node host-17: closed by the taint fleetwright.io/unready for 5m
  first ready at 2026-11-16T08:00:00Z

What to do:
  kubectl get configmap -n fleet host-17.log-agent -o yaml    # and look at log-agent
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_operator_that_has_not_caught_up_is_told_of() {
        let mut input = input();
        input.reports[0].data =
            Some([("conditions".to_owned(), "[{\"type\":\"LogAgentReady\",\"status\":\"True\"}]".to_owned())].into());
        let text = why(&input, now());
        assert!(text.contains("The operator last wrote False (GatesFailing): it has not caught up"), "{text}");
        assert!(text.contains("look at the operator"), "{text}");
    }

    #[test]
    fn a_machine_that_waits_for_a_person_says_what_the_person_types() {
        let mut cordoned = input();
        cordoned.node.as_mut().unwrap().spec.as_mut().unwrap().unschedulable = Some(true);
        let text = why(&cordoned, now());
        assert!(text.starts_with("machine/host-17 is NOT schedulable: Cordoned"), "{text}");
        assert!(text.contains("  kubectl uncordon host-17 "), "{text}");

        let mut alone = input();
        alone.node = None;
        assert!(why(&alone, now()).contains("NodeNotFound"));

        let mut replaced = input();
        replaced.node.as_mut().unwrap().metadata.uid = Some("u2".to_owned());
        let text = why(&replaced, now());
        assert!(text.starts_with("machine/host-17 is NOT schedulable: NodeNotBound"), "{text}");
        assert!(text.contains("  fleetwright machine bind-node host-17 -n fleet "), "{text}");

        let mut nobody = input();
        nobody.gates.clear();
        assert!(why(&nobody, now()).contains("kubectl get readinessgates -n fleet"));
    }

    #[test]
    fn times_are_told_as_people_say_them() {
        let start = now();
        for (seconds, told) in [(0, "0s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (3660, "1h1m"), (90_000, "1d1h")] {
            let end = start + std::time::Duration::from_secs(seconds);
            assert_eq!(ago(start, end), told);
        }
    }
}
