//! Clusters with their parts as text.

use std::fmt::Write as _;

use fleetwright_api::ControlPlaneComponent;
use fleetwright_plan::explain::health::Health;
use fleetwright_plan::explain::{Part, Tree, TreeNode};
use jiff::Timestamp;

use crate::terminal_text::{ago, cut, line};

/// The maximum length of a line in characters, without its indentation.
const MAX_LINE: usize = 240;
/// The maximum length of the state of a machine in characters.
const MAX_MACHINE: usize = 160;

/// The trees as text: a line for each part, below the part that it belongs to.
pub(crate) fn text(trees: &[Tree], now: Timestamp) -> String {
    let mut out = String::new();
    for tree in trees {
        let _ = writeln!(out, "{}", marked(tree.health, &root(tree)));
        below(&mut out, &tree.parts, "", now);
    }
    out
}

/// The symbol of a state.
pub(crate) fn sign(health: Health) -> &'static str {
    match health {
        Health::Unhealthy => "✗",
        Health::Progressing => "…",
        Health::Healthy => "✓",
    }
}

/// The phase of an object, and whether it is paused.
pub(crate) fn phase(phase: Option<&str>, paused: bool) -> String {
    let phase = phase.unwrap_or("-");
    if paused { format!("{phase},Paused") } else { phase.to_owned() }
}

/// The present version of a component, and the target version.
pub(crate) fn version(observed: Option<&str>, desired: Option<&str>) -> String {
    match (observed, desired) {
        (Some(from), Some(to)) if from == to => line(to),
        (Some(from), Some(to)) => line(&format!("{from} → {to}")),
        (None, Some(to)) => line(&format!("→ {to}")),
        (Some(from), None) => line(from),
        (None, None) => "-".to_owned(),
    }
}

/// Whether a replica is ready, and the time of its proof, if this component has proofs.
pub(crate) fn replica_state(component: &str, ready: bool, verified: Option<Timestamp>, now: Timestamp) -> String {
    let ready = if ready { "ready" } else { "not ready" };
    match verified {
        Some(at) => format!("{ready}, verified {} ago", ago(at, now)),
        None if component == ControlPlaneComponent::Apiserver.binary() => format!("{ready}, not verified"),
        None => ready.to_owned(),
    }
}

fn below(out: &mut String, parts: &[TreeNode], indent: &str, now: Timestamp) {
    for (at, node) in parts.iter().enumerate() {
        let (corner, bar) = if at + 1 == parts.len() { ("└─", "   ") } else { ("├─", "│  ") };
        let _ = writeln!(out, "{indent}{corner} {}", marked(node.health, &part(node, now)));
        if let Part::Replica { message, .. } = &node.part
            && !message.is_empty()
        {
            let _ = writeln!(out, "{indent}{bar}└─ {}", marked(node.health, message));
        }
        below(out, &node.parts, &format!("{indent}{bar}"), now);
    }
}

fn marked(health: Health, text: &str) -> String {
    format!("{} {}", sign(health), cut(line(text).trim_end(), MAX_LINE))
}

fn root(tree: &Tree) -> String {
    // The parts show the problem.
    let message = if tree.health == Health::Unhealthy { "" } else { &tree.message };
    let phase = phase(tree.phase.as_deref(), tree.paused);
    format!("{}  {phase}  {}  {}", tree.object.name, tree.package_version, line(message))
}

fn part(node: &TreeNode, now: Timestamp) -> String {
    match &node.part {
        Part::Condition { name, reason, message } => format!("{name}: {reason}: {message}"),
        Part::Problem { message } => message.clone(),
        Part::Component { name, observed, desired, ready_replicas, replicas } => {
            let version = version(observed.as_deref(), desired.as_deref());
            format!("{name}  {version}  {ready_replicas}/{replicas} ready")
        }
        Part::Replica { name, component, version, ready, verified, .. } => {
            let state = replica_state(component, *ready, *verified, now);
            format!("{name}  {}  {state}", version.as_deref().unwrap_or("-"))
        }
        Part::Extension { name, .. } if node.health == Health::Healthy => format!("extension {name}"),
        Part::Extension { name, reason, message } => format!("extension {name}  {reason}: {message}"),
        Part::Machines { ready_machines, machines } => format!("machines  {ready_machines}/{machines} ready"),
        Part::Machine { name, phase: in_phase, paused, ready_packages, packages, message } => {
            let phase = phase(in_phase.as_deref(), *paused);
            let state = format!("{phase} {ready_packages}/{packages} {}", line(message));
            format!("machine/{name}  {}", cut(state.trim_end(), MAX_MACHINE))
        }
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_api::{Cluster, Machine};
    use serde_json::json;

    use super::*;

    #[test]
    fn text_and_json_show_the_same_tree() {
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "bad", "namespace": "fleet"},
            "spec": {"packageVersion": "k8s-1", "paused": true},
            "status": {
                "phase": "Degraded",
                "conditions": [{
                    "type": "Ready", "status": "False", "reason": "NotVerified", "message": "1 of 2",
                    "lastTransitionTime": "2026-11-16T08:00:00Z",
                }],
                "components": [{"component": "apiserver", "desired": "1.37.1", "observed": "1.36.4", "replicas": [
                    {"name": "a", "version": "1.36.4", "ready": true, "verifiedAt": "2026-11-16T08:00:00Z"},
                    {"name": "b", "message": "CrashLoopBackOff\u{1b}"},
                ]}],
                "extensions": [{"name": "dns", "ready": "True", "reason": "Applied", "message": "m"}],
            },
        }))
        .expect("a Cluster");
        let machine: Machine = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "host-1"}, "spec": {},
            "status": {"phase": "Lost"},
        }))
        .expect("a Machine");
        let tree = Tree::of(&cluster, &[machine], false);
        let expected = "\
✗ bad  Degraded,Paused  k8s-1
├─ ✗ Ready: NotVerified: 1 of 2
├─ ✗ kube-apiserver  1.36.4 → 1.37.1  1/2 ready
│  ├─ ✗ b  -  not ready, not verified
│  │  └─ ✗ CrashLoopBackOff\u{fffd}
│  └─ ✓ a  1.36.4  ready, verified 5m ago
├─ ✗ machines  0/1 ready
│  └─ ✗ machine/host-1  Lost 0/0
└─ ✓ extension dns
";
        let now = "2026-11-16T08:05:00Z".parse().expect("a time");
        assert_eq!(text(std::slice::from_ref(&tree), now), expected);
        let tree = json!(tree);
        assert_eq!(
            (&tree["kind"], &tree["health"], &tree["paused"]),
            (&json!("Tree"), &json!("Unhealthy"), &json!(true))
        );
        assert_eq!(
            tree["parts"][0],
            json!({"kind": "Condition", "health": "Unhealthy", "name": "Ready", "reason": "NotVerified", "message": "1 of 2"})
        );
        assert_eq!(tree["parts"][1]["parts"][1]["verified"], "2026-11-16T08:00:00Z");
        assert_eq!(tree["parts"][2]["parts"][0]["phase"], "Lost");
    }
}
