//! Plans as text.

use std::fmt::Write as _;

use fleetwright_api::names::reasons;
use fleetwright_api::{ControlPlaneComponent, Disruption, Drift, GROUP};
use fleetwright_plan::cluster::cluster_plan::{MemberPlan, PlannedVersion, RestorePlan, SoakPlan, VolumePlan};
use fleetwright_plan::explain::{
    Check, ClusterDetails, Deviation, Group, MachineDetails, PACKAGE_FAILED, Plan, State, Step,
};
use fleetwright_wire::plural;
use jiff::Timestamp;

use crate::terminal_text::{ago, line, lines, table};

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
            vec![format!("  {}.", at + 1), line(&step.text()), format!("{:?}", step.disruption), line(&step.message)]
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

/// The plan of a cluster as text.
pub(crate) fn cluster(plan: &Plan, now: Timestamp) -> String {
    let mut out = String::new();
    let Some(details) = &plan.cluster else { return out };
    let name = &plan.object.name;
    let version = |one: &PlannedVersion| format!("{} (Kubernetes {})", one.package, one.kubernetes);
    let _ = match &details.from {
        Some(from) if *from != details.to => {
            writeln!(out, "cluster.{GROUP}/{name} from {} to {}", version(from), version(&details.to))
        }
        _ => writeln!(out, "cluster.{GROUP}/{name} with {}", version(&details.to)),
    };
    let (limits, refused): (Vec<_>, Vec<_>) =
        plan.blockers.iter().filter(|blocker| blocker.advice.is_none()).partition(|blocker| limit(blocker).is_some());
    for Check { reason, message, .. } in &refused {
        let _ = writeln!(out, "  ✗ refused: {reason}: {}", line(message));
    }
    for blocker in &limits {
        let limits = limit(blocker).unwrap_or_default();
        let text = format!("ClusterLimits {limits} does not allow {}: {}", blocker.subject, blocker.message);
        let _ = writeln!(out, "  ✗ {}: {}", blocker.reason, line(&text));
    }
    if !limits.is_empty() {
        let _ = writeln!(out, "  The change does not start while it exceeds the limits");
    }
    if plan.paused {
        let _ = writeln!(out, "  The cluster is paused (spec.paused is true): nothing changes until it is resumed");
    }
    let stages = stages(plan, details);
    if !stages.is_empty() {
        let _ = writeln!(out, "\nStages:\n{}", stage_table(&stages).trim_end());
    }
    if !details.extensions.is_empty() {
        let _ = writeln!(out, "  then the extensions {}", details.extensions.join(", "));
    }
    if let Some(plan) = &details.members {
        members(&mut out, plan);
    }
    if !details.volumes.is_empty() {
        let row = |one: &VolumePlan| {
            let size = format!("{} → {}", line(&one.from), line(&one.to));
            vec![format!("  {}", line(&one.claim)), size, one.message.to_owned()]
        };
        let rows: Vec<_> = details.volumes.iter().map(row).collect();
        let _ = writeln!(out, "\nVolumes:\n{}", table(&rows).trim_end());
    }
    if let Some(rotation) = &details.rotation {
        let _ = writeln!(out, "\nRotation of authorities:\n  {}", line(rotation));
    }
    if let Some(SoakPlan { emulates, until }) = &details.soak {
        let _ = writeln!(
            out,
            "\nEnd of the soak:\n  not before {until}: the components restart without emulation of {}; what blocks it: condition UpgradeCompletable",
            line(emulates)
        );
    }
    let risks = risks(plan, details, &stages);
    if !risks.is_empty() {
        let _ = writeln!(out, "\nChecks and risks:\n{}", risks.trim_end());
    }
    match &details.restore {
        Some(snapshot) => restore(&mut out, plan, snapshot, now),
        None => {
            let _ = writeln!(out, "\nRollback:\n  {}", line(&details.rollback.message));
            if refused.iter().any(|refused| refused.reason == reasons::SOAK_ENDED) {
                let _ = writeln!(
                    out,
                    "\nRestore:\n  no known snapshot that etcd of this package version can read; status.snapshots has all names"
                );
            }
        }
    }
    if !details.certificates.is_empty() {
        let _ = writeln!(out, "\nCertificates that are renewed within a week, without an outage:");
        for one in &details.certificates {
            let _ = writeln!(out, "  {} on {}", line(&one.name), one.replaced);
        }
    }
    let objects: Vec<_> = stages.iter().flat_map(|stage| &stage.objects).collect();
    if !objects.is_empty() {
        let _ = writeln!(out, "\nObjects in namespace {}:", details.namespace);
        for object in objects {
            out.push_str(&lines(&object.diff));
        }
    }
    out
}

/// The name of the ClusterLimits that a blocker comes from.
fn limit(blocker: &Check) -> Option<&str> {
    blocker.rule.as_deref()?.strip_prefix("ClusterLimits/")
}

/// All components in the order of an upgrade, also those that need no step.
fn stages<'a>(plan: &'a Plan, details: &'a ClusterDetails) -> Vec<&'a Step> {
    let mut stages: Vec<_> = plan.steps.iter().flatten().chain(&details.unchanged).collect();
    stages.sort_by_key(|stage| ControlPlaneComponent::of_binary(&stage.component));
    stages
}

fn stage_table(stages: &[&Step]) -> String {
    let rows: Vec<_> = stages
        .iter()
        .enumerate()
        .map(|(number, stage)| {
            let to = stage.to.as_deref().unwrap_or_default();
            let versions = match stage.from.as_deref() {
                Some(from) if from != to => format!("{} → {}", line(from), line(to)),
                _ => line(to),
            };
            vec![format!("  {}.", number + 1), stage.component.clone(), versions, stage.message.clone()]
        })
        .collect();
    table(&rows)
}

fn risks(plan: &Plan, details: &ClusterDetails, stages: &[&Step]) -> String {
    let mut out = String::new();
    for Check { state, reason, message, advice, limit, .. } in &plan.blockers {
        let Some(advice) = advice else { continue };
        let (mark, more) = match (state, limit) {
            (State::Passing, _) => ("!", "overridden".to_owned()),
            (_, Some(value)) => ("✗", format!("{advice}; can be overridden with {value}")),
            (_, None) => ("✗", format!("{advice}; cannot be overridden")),
        };
        let _ = writeln!(out, "  {mark} {reason}: {}: {}", line(message), line(&more));
    }
    for stage in stages {
        if let Some(risk) = &stage.risk {
            let _ = writeln!(out, "  ! {}: {risk}", stage.component);
        }
    }
    for later in &details.checked_later {
        let _ = writeln!(out, "  ? when it starts: {later}");
    }
    out
}

/// The next change of a member of etcd.
fn members(out: &mut String, plan: &MemberPlan) {
    let MemberPlan { from, to, action, member, since, blocked } = plan;
    let numbers = if from == to { from.to_string() } else { format!("{from} → {to}, one at a time") };
    let when = since.map_or("next".to_owned(), |since| format!("in progress since {since}"));
    let _ = writeln!(out, "\nMembers of etcd: {numbers}\n  {when}: {action} {}", line(member));
    if let Some(why) = blocked {
        let _ = writeln!(out, "  blocked: {}", line(why));
    }
}

/// The way back after the soak.
fn restore(out: &mut String, plan: &Plan, restore: &RestorePlan, now: Timestamp) {
    let checked = if restore.checked { "its content was verified" } else { "its content was not verified" };
    let _ = writeln!(
        out,
        "\nRestore, if the snapshot is from before the upgrade:\n  {}, with the data of {}: everything written in the last {} would be lost; {checked}\n  kubectl patch cluster {} -n {} --type=merge -p '{}'",
        line(&restore.snapshot),
        restore.data_time,
        ago(restore.data_time, now),
        plan.object.name,
        plan.object.namespace,
        restore.patch
    );
}

#[cfg(test)]
mod tests {
    use fleetwright_api::{Cluster, Machine};
    use fleetwright_plan::cluster::cluster_plan::{ClusterPlan, ObjectChange, RollbackPlan, StagePlan};
    use fleetwright_plan::cluster::limits::Violation;
    use fleetwright_plan::cluster::preflight::PreflightFinding;
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

    #[test]
    fn no_control_sequence_of_a_host_is_in_the_plan_of_a_machine() {
        let made: Machine = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "host-1"}, "spec": {},
        }))
        .expect("a Machine");
        let step = PlannedStep {
            component: "kubelet".to_owned(),
            from: Some("1.36.4\u{1b}[2J\nmachine/host-2: nothing to do".to_owned()),
            to: Some("1.37.1".to_owned()),
            verb: Verb::Upgrade,
            disruption: Disruption::None,
            why: "declared\u{7}".to_owned(),
            changes: Vec::new(),
        };
        let details = MachineDetails::default();
        let plan = Plan::of_machine(&made, Ok(std::slice::from_ref(&step)), Obstacles::default(), details);
        let expected = "\
machine/host-1: 1 step
  1.  upgrade kubelet 1.36.4\u{fffd}[2J machine/host-2: nothing to do → 1.37.1  None  declared\u{fffd}
";
        assert_eq!(machine(&plan), expected);
    }

    #[test]
    fn the_plan_of_a_cluster_is_printed_with_the_components_that_need_no_step() {
        let made: Cluster = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "pay-01", "namespace": "fleet"},
            "spec": {"packageVersion": "k8s-1.36.4-r1"},
        }))
        .expect("a Cluster");
        let version = |kubernetes: &str| PlannedVersion {
            package: format!("k8s-{kubernetes}-r1"),
            kubernetes: kubernetes.to_owned(),
        };
        let stage = |component: ControlPlaneComponent, from: &str, to: &str, restarts: usize| StagePlan {
            component,
            from: Some(from.to_owned()),
            to: to.to_owned(),
            restarts,
            how: format!("{restarts} restarts"),
            risk: (restarts > 0).then(|| "an outage".to_owned()),
            objects: match restarts {
                0 => Vec::new(),
                _ => vec![ObjectChange { kind: "Deployment", name: "x".to_owned(), diff: "-a\n+b\n".to_owned() }],
            },
        };
        let finding = |overridable, overridden| PreflightFinding {
            reason: "KubeletTooOld",
            message: "a kubelet is old".to_owned(),
            advice: "upgrade it".to_owned(),
            overridable,
            overridden,
        };
        let limits = Violation {
            limits: "tenants".to_owned(),
            field: "spec.packageVersion".to_owned(),
            why: "k8s-1.36*".to_owned(),
        };
        let plan = Plan::of_cluster(
            &made,
            &ClusterPlan {
                cluster: "pay-01".to_owned(),
                from: Some(version("1.36.4")),
                to: version("1.37.1"),
                refused: None,
                violations: vec![limits],
                findings: vec![finding(true, false), finding(false, false), finding(true, true)],
                later: vec!["a snapshot".to_owned()],
                stages: vec![
                    stage(ControlPlaneComponent::Etcd, "3.6.16", "3.6.16", 0),
                    stage(ControlPlaneComponent::Apiserver, "1.36.4", "1.37.1", 2),
                ],
                members: Some(MemberPlan {
                    from: 3,
                    to: 1,
                    action: "Remove",
                    member: "etcd-2".to_owned(),
                    since: None,
                    blocked: Some("1 of 2 other etcd members are ready".to_owned()),
                }),
                volumes: vec![VolumePlan {
                    claim: "data-etcd-0".to_owned(),
                    from: "8Gi".to_owned(),
                    to: "20Gi".to_owned(),
                    message: "expanded in place",
                }],
                rotation: Some("requested with the value 2026-11".to_owned()),
                soak: Some(SoakPlan { emulates: "1.36".to_owned(), until: Timestamp::UNIX_EPOCH }),
                extensions: vec!["dns".to_owned()],
                back: RollbackPlan { keeps_writes: true, message: "at any time".to_owned() },
                restore: None,
                certificates: Vec::new(),
            },
        );
        let expected = "\
cluster.fleetwright.io/pay-01 from k8s-1.36.4-r1 (Kubernetes 1.36.4) to k8s-1.37.1-r1 (Kubernetes 1.37.1)
  ✗ LimitExceeded: ClusterLimits tenants does not allow spec.packageVersion: k8s-1.36*
  The change does not start while it exceeds the limits

Stages:
  1.  etcd            3.6.16           0 restarts
  2.  kube-apiserver  1.36.4 → 1.37.1  2 restarts
  then the extensions dns

Members of etcd: 3 → 1, one at a time
  next: Remove etcd-2
  blocked: 1 of 2 other etcd members are ready

Volumes:
  data-etcd-0  8Gi → 20Gi  expanded in place

Rotation of authorities:
  requested with the value 2026-11

End of the soak:
  not before 1970-01-01T00:00:00Z: the components restart without emulation of 1.36; what blocks it: condition UpgradeCompletable

Checks and risks:
  ✗ KubeletTooOld: a kubelet is old: upgrade it; can be overridden with KubeletTooOld@k8s-1.37.1-r1
  ✗ KubeletTooOld: a kubelet is old: upgrade it; cannot be overridden
  ! KubeletTooOld: a kubelet is old: overridden
  ! kube-apiserver: an outage
  ? when it starts: a snapshot

Rollback:
  at any time

Objects in namespace fleet-pay-01:
-a
+b
";
        assert_eq!(cluster(&plan, Timestamp::UNIX_EPOCH), expected);
        let plan = json!(plan);
        assert_eq!(plan["steps"].as_array().map(Vec::len), Some(1), "{plan}");
        assert_eq!(plan["cluster"]["unchanged"][0]["component"], "etcd", "{plan}");
    }
}
