//! What would be done to an object before anything is done: one shape for machines and clusters.

use fleetwright_api::{Cluster, Disruption, Drift, GROUP, Machine, VERSION};
use serde::Serialize;

use super::{Check, Group, State, Subject};
use crate::cluster::Names;
use crate::cluster::cluster_plan::{
    CertificatePlan, ClusterPlan, MemberPlan, ObjectChange, PlannedVersion, RestorePlan, RollbackPlan, SoakPlan,
    StagePlan, VolumePlan,
};
use crate::machine::{InputChange, PlannedStep};

/// Reason of a blocker of a machine: a component failed as it is declared, and is not tried again.
pub const PACKAGE_FAILED: &str = "PackageFailed";

/// The action of a component that needs no step.
const UNCHANGED: &str = "none";

/// What would be done to an object. `machine plan -o json` and `cluster plan -o json` have this shape, which docs/reference/json.md describes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `fleetwright.io/v1alpha1`.
    pub api_version: String,
    /// `Plan`.
    pub kind: &'static str,
    pub object: Subject,
    /// Whether `spec.paused` prevents all of it.
    pub paused: bool,
    /// The steps in order; none if they cannot be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// Why the steps cannot be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What prevents the steps, or some of them.
    pub blockers: Vec<Check>,
    /// What only the plan of a machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineDetails>,
    /// What only the plan of a cluster has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterDetails>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `install`, `upgrade`, `downgrade`, `change`, `repair`, `remove`, `reboot` …
    pub action: String,
    /// The component that changes; empty for a reboot.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub component: String,
    /// The version that is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The version that will be present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// What happens to workloads.
    pub disruption: Disruption,
    /// Pods of the control plane that restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<usize>,
    /// Why, or how.
    pub message: String,
    /// What could go wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<String>,
    /// Rendered inputs that change: files, units, scripts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<InputChange>,
    /// Objects that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectChange>,
}

/// What only the plan of a machine has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDetails {
    /// The Node that is closed while it is done, if it is disrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pods that are evicted.
    pub evicted_pods: Vec<String>,
    /// Why the pods could not be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_error: Option<String>,
    /// How the host differs from what is declared; only if the host was asked.
    pub deviations: Vec<Deviation>,
    /// `spec.drift`: whether deviations are repaired.
    pub drift: Drift,
    /// Files from Secrets that only the host can compare, as `component: path`; empty if it was asked.
    pub not_compared: Vec<String>,
    /// Components of which only the version was compared; empty if the host was asked.
    pub compared_by_version: Vec<String>,
}

/// A difference between the host and what is declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    pub component: String,
    /// The difference.
    pub message: String,
}

/// What prevents steps of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obstacles<'a> {
    /// Components that failed as they are declared.
    pub failed: &'a [String],
    /// Reason and message of packages that do not fit to the API server.
    pub refused: &'a [(&'static str, String)],
    /// Pods that block a drain, and what to do about each.
    pub pods: &'a [(String, String)],
}

/// What only the plan of a cluster has.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDetails {
    /// Namespace of the control plane.
    pub namespace: String,
    /// The package version that the cluster runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PlannedVersion>,
    /// The package version that it would run.
    pub to: PlannedVersion,
    /// Components that need no step.
    pub unchanged: Vec<Step>,
    /// What is only checked when the change starts.
    pub checked_later: Vec<String>,
    /// The next change of a member of etcd, if one is in progress or due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<MemberPlan>,
    /// Volumes that are smaller than declared.
    pub volumes: Vec<VolumePlan>,
    /// The rotation of authorities that is in progress or requested, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<String>,
    /// The end of the soak in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soak: Option<SoakPlan>,
    /// Extensions that follow, in order.
    pub extensions: Vec<String>,
    /// Whether and until when a rollback keeps all writes.
    pub rollback: RollbackPlan,
    /// The snapshot to restore, if there is no other way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestorePlan>,
    /// Certificates that are replaced soon in any case, without an outage.
    pub certificates: Vec<CertificatePlan>,
}

impl Plan {
    fn new(object: Subject, paused: bool, steps: Result<Vec<Step>, String>) -> Self {
        let (steps, error) = match steps {
            Ok(steps) => (Some(steps), None),
            Err(error) => (None, Some(error)),
        };
        let api_version = format!("{GROUP}/{VERSION}");
        let (machine, cluster) = (None, None);
        Self { api_version, kind: "Plan", object, paused, steps, error, blockers: Vec::new(), machine, cluster }
    }

    /// The plan of a machine.
    pub fn of_machine(
        machine: &Machine,
        steps: Result<&[PlannedStep], &str>,
        obstacles: Obstacles<'_>,
        details: MachineDetails,
    ) -> Self {
        let object = Subject {
            kind: "Machine",
            namespace: machine.metadata.namespace.clone().unwrap_or_default(),
            name: machine.metadata.name.clone().unwrap_or_default(),
        };
        let name = object.name.clone();
        let steps = steps.map(|steps| steps.iter().map(Step::of_machine).collect()).map_err(str::to_owned);
        let mut plan = Self::new(object, machine.spec.paused, steps);
        plan.blockers.extend(obstacles.failed.iter().map(|component| Check {
            reason: PACKAGE_FAILED.to_owned(),
            message: format!("it failed as it is declared; to retry: fleetwright machine retry {name}"),
            ..Check::new(Group::Packages, component, State::Failing)
        }));
        plan.blockers.extend(obstacles.refused.iter().map(|(reason, message)| Check {
            reason: (*reason).to_owned(),
            message: message.clone(),
            ..Check::new(Group::Packages, "packages", State::Failing)
        }));
        plan.blockers.extend(obstacles.pods.iter().map(|(pod, why)| Check {
            reason: "DrainBlocked".to_owned(),
            message: why.clone(),
            ..Check::new(Group::Node, format!("pod {pod}"), State::Failing)
        }));
        plan.machine = Some(details);
        plan
    }

    /// The plan of a cluster.
    pub fn of_cluster(cluster: &Cluster, rehearsal: &ClusterPlan) -> Self {
        let object = Subject {
            kind: "Cluster",
            namespace: cluster.metadata.namespace.clone().unwrap_or_default(),
            name: cluster.metadata.name.clone().unwrap_or_default(),
        };
        let recorded = cluster.status.as_ref().and_then(|status| status.namespace.clone());
        let namespace = recorded.unwrap_or_else(|| Names::of(&object.namespace, &object.name).namespace);
        let stages = rehearsal.stages.iter().map(Step::of_stage);
        let (unchanged, steps): (Vec<_>, Vec<_>) = stages.partition(|step| step.action == UNCHANGED);
        let mut plan = Self::new(object, cluster.spec.paused, Ok(steps));
        let version = || Check::new(Group::Conditions, "spec.packageVersion", State::Failing);
        plan.blockers.extend(rehearsal.refused.iter().map(|refused| Check {
            reason: refused.reason.to_owned(),
            message: refused.message.clone(),
            ..version()
        }));
        plan.blockers.extend(rehearsal.violations.iter().map(|violation| Check {
            rule: Some(format!("ClusterLimits/{}", violation.limits)),
            reason: fleetwright_api::names::reasons::LIMIT_EXCEEDED.to_owned(),
            message: violation.why.clone(),
            ..Check::new(Group::Conditions, &violation.field, State::Failing)
        }));
        plan.blockers.extend(rehearsal.findings.iter().map(|finding| Check {
            state: if finding.overridden { State::Passing } else { State::Failing },
            limit: finding.overridable.then(|| format!("{}@{}", finding.reason, rehearsal.to.package)),
            rule: finding.overridable.then(|| fleetwright_api::names::OVERRIDE.to_owned()),
            reason: finding.reason.to_owned(),
            message: finding.message.clone(),
            advice: Some(finding.advice.clone()),
            ..version()
        }));
        plan.cluster = Some(ClusterDetails {
            namespace,
            from: rehearsal.from.clone(),
            to: rehearsal.to.clone(),
            unchanged,
            checked_later: rehearsal.later.clone(),
            members: rehearsal.members.clone(),
            volumes: rehearsal.volumes.clone(),
            rotation: rehearsal.rotation.clone(),
            soak: rehearsal.soak.clone(),
            extensions: rehearsal.extensions.clone(),
            rollback: rehearsal.back.clone(),
            restore: rehearsal.restore.clone(),
            certificates: rehearsal.certificates.clone(),
        });
        plan
    }
}

impl Step {
    /// The step in a few words: `upgrade kubelet 1.36.4 → 1.37.1`.
    pub fn text(&self) -> String {
        crate::machine::step_text(&self.action, &self.component, self.from.as_deref(), self.to.as_deref())
    }

    fn of_machine(step: &PlannedStep) -> Self {
        Self {
            action: step.verb.as_str().to_owned(),
            component: step.component.clone(),
            from: step.from.clone(),
            to: step.to.clone(),
            disruption: step.disruption,
            restarts: None,
            message: step.why.clone(),
            risk: None,
            changes: step.changes.clone(),
            objects: Vec::new(),
        }
    }

    fn of_stage(stage: &StagePlan) -> Self {
        let changes = stage.restarts > 0 || !stage.objects.is_empty();
        let action = match &stage.from {
            None => "install",
            Some(from) if *from == stage.to && !changes => UNCHANGED,
            Some(from) if *from == stage.to => "change",
            Some(from) if crate::machine::version::compare(from, &stage.to).is_gt() => "downgrade",
            Some(_) => "upgrade",
        };
        Self {
            action: action.to_owned(),
            component: stage.component.to_string(),
            from: stage.from.clone(),
            to: Some(stage.to.clone()),
            disruption: if stage.restarts > 0 { Disruption::Restart } else { Disruption::None },
            restarts: Some(stage.restarts),
            message: stage.how.clone(),
            risk: stage.risk.clone(),
            changes: Vec::new(),
            objects: stage.objects.clone(),
        }
    }
}
