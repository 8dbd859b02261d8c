//! Plans as text.

use std::fmt::Write as _;

use fleetwright_api::{Disruption, Drift};
use fleetwright_plan::explain::{Check, Deviation, Group, MachineDetails, PACKAGE_FAILED, Plan, Step};
use fleetwright_wire::plural;

use crate::terminal_text::{line, table};

/// The plans of machines as text.
pub(crate) fn machines(plans: &[Plan]) -> String {
    plans.iter().map(machine).collect::<Vec<_>>().join("\n")
}

fn machine(plan: &Plan) -> String {
    let mut out = String::new();
    let name = &plan.object.name;
    let Some(steps) = &plan.steps else {
        let why = plan.error.as_deref().unwrap_or_default();
        let _ = writeln!(out, "machine/{name}: cannot compute the steps\n  {}", line(why));
        return out;
    };
    match steps.len() {
        0 => drop(writeln!(out, "machine/{name}: nothing to do")),
        1 => drop(writeln!(out, "machine/{name}: 1 step")),
        many => drop(writeln!(out, "machine/{name}: {many} steps")),
    }
    let rows: Vec<_> = steps
        .iter()
        .enumerate()
        .map(|(at, step)| {
            vec![format!("  {}.", at + 1), step.text(), format!("{:?}", step.disruption), line(&step.message)]
        })
        .collect();
    out.push_str(&table(&rows));
    for (step, change) in steps.iter().flat_map(|step| step.changes.iter().map(move |change| (step, change))) {
        let digest = |digest: &Option<String>| digest.as_deref().map_or("none".to_owned(), line);
        let (what, from, to) = (line(&change.what), digest(&change.from), digest(&change.to));
        let _ = writeln!(out, "     {}: {what} changes: {from} → {to}", step.component);
    }
    let nothing = MachineDetails::default();
    let details = plan.machine.as_ref().unwrap_or(&nothing);
    for Deviation { component, message } in &details.deviations {
        let _ = writeln!(out, "     {component}: {message}");
    }
    if details.drift == Drift::Report && steps.is_empty() && !details.deviations.is_empty() {
        out.push_str("  This is drift, which is only reported (spec.drift is Report)\n");
    }
    out.push_str(&disrupts(plan, details, steps));
    for Check { subject, reason, message, .. } in blockers(plan, Group::Packages) {
        let _ = match reason == PACKAGE_FAILED {
            true => {
                writeln!(out, "  {subject} failed and is not tried again; to retry: fleetwright machine retry {name}")
            }
            false => writeln!(out, "  Refused: {reason}: {}", line(message)),
        };
    }
    if !details.not_compared.is_empty() {
        let files = details.not_compared.iter().map(|file| line(file)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            out,
            "  Not compared, because the content comes from a Secret: {files}; --observe checks the host"
        );
    }
    if !details.compared_by_version.is_empty() {
        let components = details.compared_by_version.join(", ");
        let _ = writeln!(
            out,
            "  Compared by version only, because an earlier operator recorded nothing else: {components}; --observe checks the host"
        );
    }
    if plan.paused && !steps.is_empty() {
        let _ = writeln!(out, "  The machine is paused: no step runs until fleetwright machine resume {name}");
    }
    out
}

fn blockers(plan: &Plan, group: Group) -> impl Iterator<Item = &Check> {
    plan.blockers.iter().filter(move |blocker| blocker.group == group)
}

/// The impact of the most disruptive step.
fn disrupts(plan: &Plan, details: &MachineDetails, steps: &[Step]) -> String {
    let worst = steps.iter().map(|step| step.disruption).max().unwrap_or_default();
    let Some(node) = details.node.as_ref().filter(|_| worst > Disruption::None) else {
        let boots = worst == Disruption::Reboot;
        return if boots {
            "  Disrupts: the host reboots; it is not a Node, so nothing is drained\n".to_owned()
        } else {
            String::new()
        };
    };
    let some = |pods: &[String]| {
        let first = pods.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if pods.len() > 5 { format!(" and {} more", pods.len() - 5) } else { String::new() };
        format!("{}: {first}{more}", plural(pods.len(), "pod"))
    };
    let evicted = match &details.pods_error {
        Some(error) => format!("its pods could not be listed: {}", line(error)),
        None if details.evicted_pods.is_empty() => "no pods are evicted".to_owned(),
        None => format!("evicted {}", some(&details.evicted_pods)),
    };
    let blocking: String = blockers(plan, Group::Node)
        .map(|blocker| format!("  Blocks the drain: {}: {}\n", line(&blocker.subject), line(&blocker.message)))
        .collect();
    match worst {
        Disruption::Restart => {
            format!("  Disrupts: in one window the Node {node} is closed to new pods; those on it stay\n")
        }
        Disruption::Drain => {
            format!("  Disrupts: in one window the Node {node} is closed and drained; {evicted}\n{blocking}")
        }
        _ => {
            format!(
                "  Disrupts: in one window the Node {node} is closed and drained, and the host reboots; {evicted}\n{blocking}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_api::Machine;
    use fleetwright_plan::explain::Obstacles;
    use fleetwright_plan::machine::{InputChange, PlannedStep, Verb};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_plan_of_a_machine_is_printed_with_what_prevents_it() {
        let made: Machine = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "host-1"},
            "spec": {"paused": true},
        }))
        .expect("a Machine");
        let step = PlannedStep {
            component: "kubelet".to_owned(),
            from: Some("1.36.4".to_owned()),
            to: Some("1.37.1".to_owned()),
            verb: Verb::Upgrade,
            disruption: Disruption::Drain,
            why: "declared".to_owned(),
            changes: vec![InputChange { what: "file /etc/k".to_owned(), from: None, to: Some("abc".to_owned()) }],
        };
        let obstacles = Obstacles {
            failed: &["agent".to_owned()],
            refused: &[("KubeletTooNew", "too new".to_owned())],
            pods: &[("fleet/bare".to_owned(), "no controller".to_owned())],
        };
        let details = MachineDetails {
            node: Some("host-1".to_owned()),
            evicted_pods: vec!["fleet/a".to_owned()],
            ..MachineDetails::default()
        };
        let plan = Plan::of_machine(&made, Ok(std::slice::from_ref(&step)), obstacles, details);
        let expected = "\
machine/host-1: 1 step
  1.  upgrade kubelet 1.36.4 → 1.37.1  Drain  declared
     kubelet: file /etc/k changes: none → abc
  Disrupts: in one window the Node host-1 is closed and drained; evicted 1 pod: fleet/a
  Blocks the drain: pod fleet/bare: no controller
  agent failed and is not tried again; to retry: fleetwright machine retry host-1
  Refused: KubeletTooNew: too new
  The machine is paused: no step runs until fleetwright machine resume host-1
";
        assert_eq!(machine(&plan), expected);
        let unknown = Plan::of_machine(&made, Err("no package"), Obstacles::default(), MachineDetails::default());
        let expected = format!("{expected}\nmachine/host-1: cannot compute the steps\n  no package\n");
        assert_eq!(machines(&[plan, unknown]), expected);
    }
}
