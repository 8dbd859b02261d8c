//! Preflight checks before a cluster gets another package version.
//!
//! Expected flow: a change is declared; every API server is asked once which APIs clients use and what the quotas allow; while there is a finding,
//! nothing is changed, and the condition `Upgradable` names the finding and what to do; when there is no finding any more, or a person overrides it
//! for exactly this change, the change starts. A change that has started is not checked again. A rollback, also by restoring a snapshot, is blocked
//! only by kubelets that are known to be newer than the API servers would be. A survey is valid for five minutes: a change that waited longer for its
//! snapshot, or for the end of a pause, asks again.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::{ClusterPackageVersionSpec, ControlPlaneComponent, RestoreStage, names};
use fleetwright_wire::text::first_chars;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::arguments;
use super::components::count;
use super::counted;
use super::etcd_data;
use super::objects::{Blueprint, Kind, objects};
use super::observed::{Observed, Replica};
use super::proofs::proven_at;
use super::restore;
use super::step::{CurrentVersion, VersionStep};
use super::survey::{Survey, SurveyQuestion};
use super::upgrade_path::VersionNode;
use crate::skew::{self, Skew};

/// A survey is valid for this long and is repeated then: clients, quotas and kubelets are not watched.
pub(super) const SURVEY_TTL: SignedDuration = SignedDuration::from_mins(5);
/// Number of APIs or nodes that a message names; the others are counted.
const MAX_LISTED_NODES: usize = 5;

/// Inputs of the checks that are not in the caches.
#[derive(Clone, Debug, Default)]
pub struct PreflightInputs {
    /// The newest survey, if there is one.
    pub survey: Option<Survey>,
    /// The value of the annotation [`names::OVERRIDE`].
    pub overrides: Option<String>,
}

/// A reason not to start a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreflightFinding {
    /// Reason in CamelCase, for programs and for the override annotation.
    pub reason: &'static str,
    /// What the check found.
    pub message: String,
    /// What to do about the finding.
    pub advice: String,
    /// Whether a person may override the finding.
    pub overridable: bool,
    /// Whether a person has overridden the finding for this change.
    pub overridden: bool,
}

/// Result of the checks for a change that has not started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preflight {
    /// Whether the change would start in this pass.
    pub begins: bool,
    /// The findings for the change.
    pub findings: Vec<PreflightFinding>,
    /// The survey to run.
    pub ask: Option<SurveyQuestion>,
    /// Short description of the running survey.
    pub checking: Option<String>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
    /// Why a restore to an older minor does not start.
    pub restore_waits: Option<String>,
}

pub(super) type Package<'a> = (&'a str, &'a ClusterPackageVersionSpec);

/// Keeps the cluster at its version while there are findings against the step.
pub(super) fn run_checks<'a>(
    seen: &'a Observed,
    step: VersionStep<'a>,
    now: Timestamp,
) -> (VersionStep<'a>, Preflight) {
    // The snapshot is taken only when there is no other finding: without quota for one more replica, there is none for the snapshot pod either.
    let snapshot = step.refused.as_ref().is_some_and(|(reason, _)| *reason == names::reasons::SNAPSHOT_REQUIRED);
    let target = if snapshot { Some(seen.target()) } else { step.package() };
    let Some(target) = target else { return restored(seen, step, now) };
    let (at, preflight) = match (begins(seen, target), goes_back(seen, target)) {
        (Some(at), _) => (at, preflight(seen, target, !snapshot, now)),
        (None, Some(at)) => (at, before_rollback(seen, target, now)),
        (None, None) => return restored(seen, step, now),
    };
    let against: Vec<_> = preflight.findings.iter().filter(|finding| !finding.overridden).collect();
    let refused = match (against.first(), &preflight.checking) {
        (Some(first), _) => (first.reason, findings_message(target.0, &against)),
        (None, Some(what)) => {
            (names::reasons::PREFLIGHT_CHECKS_RUNNING, format!("preflight checks for {}: {what}", target.0))
        }
        (None, None) => return (step, preflight),
    };
    (VersionStep::stays(at, seen.status.emulates.clone(), refused), preflight)
}

/// Blocks a restore to an older minor while kubelets are newer than that minor: no component is stopped while the snapshot is checked, and the
/// operator does not switch to another restore.
fn restored<'a>(seen: &'a Observed, step: VersionStep<'a>, now: Timestamp) -> (VersionStep<'a>, Preflight) {
    let at = CurrentVersion::of(seen);
    let looks = restore::stage(seen) == Some(RestoreStage::Checking) || restore::instead(seen).is_some();
    let back = at.filter(|at| looks && is_back(at, seen.target()));
    let Some(at) = back else { return (step, Preflight::default()) };
    let mut preflight = before_rollback(seen, seen.target(), now);
    let against: Vec<_> = preflight.findings.iter().filter(|finding| !finding.overridden).collect();
    let (reason, why) = match (against.first(), &preflight.checking) {
        (Some(first), _) => (first.reason, findings_message(seen.target().0, &against)),
        (None, Some(what)) => {
            (names::reasons::PREFLIGHT_CHECKS_RUNNING, format!("preflight checks for {}: {what}", seen.target().0))
        }
        (None, None) => return (step, preflight),
    };
    preflight.restore_waits = Some(why.clone());
    if restore::replaces(seen) {
        return (step, preflight);
    }
    (VersionStep::stays(at, seen.status.emulates.clone(), (reason, why)), preflight)
}

/// The current version, if a change is about to start: nothing of the target was applied, and no other change is in progress.
pub(super) fn begins<'a>(seen: &'a Observed, target: Package<'_>) -> Option<CurrentVersion<'a>> {
    if restore::holds(seen) {
        return None;
    }
    let at = CurrentVersion::of(seen)?;
    let (from, to) = (at.stop()?, VersionNode::of(target.0, target.1));
    if from.name == to.name || to.is_older_than(&from) {
        return None;
    }
    untouched(seen, at.name, to.name).then_some(at)
}

/// The current version, if a rollback to an older minor is about to start.
fn goes_back<'a>(seen: &'a Observed, target: Package<'_>) -> Option<CurrentVersion<'a>> {
    if restore::holds(seen) {
        return None;
    }
    let at = CurrentVersion::of(seen)?;
    (is_back(&at, target) && untouched(seen, at.name, target.0)).then_some(at)
}

/// Whether the minor of `target` is older than the minor of `at`.
fn is_back(at: &CurrentVersion<'_>, target: Package<'_>) -> bool {
    let to = VersionNode::of(target.0, target.1);
    at.stop().is_some_and(|from| to.is_older_than(&from) && from.minor() != to.minor())
}

/// Whether all components have the package version `name`, and nothing of `to` was applied.
fn untouched(seen: &Observed, name: &str, to: &str) -> bool {
    seen.workloads.iter().all(|(component, workload)| match (component, workload.package.as_deref()) {
        // After a rollback, etcd may be newer than the other components.
        (ControlPlaneComponent::Etcd, Some(package)) => package != to || etcd_data::etcd_stayed_at(seen, to),
        (_, Some(package)) => package == name,
        (_, None) => true,
    })
}

/// Findings against a rollback: only kubelets that are known to be newer than the API servers would be. A control plane that does not answer can be
/// rolled back.
fn before_rollback(seen: &Observed, target: Package<'_>, now: Timestamp) -> Preflight {
    let mut preflight = Preflight { begins: true, ..Preflight::default() };
    // API servers may be recreated in a rollback: the answer is valid whichever pods exist.
    let ask = SurveyQuestion { of: format!("back to {}", target.0), ..ask(seen, target.0) };
    if ask.servers.is_empty() {
        return preflight;
    }
    let survey = seen.preflight.survey.as_ref().filter(|survey| survey.of == ask.of);
    match survey {
        Some(survey) => {
            let newer = kubelets(survey, target).filter(|one| one.reason == names::reasons::KUBELET_TOO_NEW);
            preflight.findings.extend(newer);
        }
        None => preflight.checking = Some("reading kubelet versions".to_owned()),
    }
    let holds = !preflight.findings.is_empty();
    settle(&mut preflight, seen, ask, survey, (holds, true), target, now);
    preflight
}

/// Sets the next survey and applies the overrides. `holds`: there are findings. `begins`: the change would start in this pass. In both cases an
/// expired survey is repeated.
fn settle(
    preflight: &mut Preflight,
    seen: &Observed,
    ask: SurveyQuestion,
    survey: Option<&Survey>,
    (holds, begins): (bool, bool),
    target: Package<'_>,
    now: Timestamp,
) {
    let again = survey.and_then(|survey| survey.at.checked_add(SURVEY_TTL).ok());
    preflight.next = again.filter(|again| holds && *again > now);
    let old = again.is_some_and(|again| again <= now) && (holds || begins);
    preflight.ask = (survey.is_none() || old).then_some(ask);
    if old && begins {
        preflight.checking = Some("repeating the checks of API usage, kubelet versions and resources".to_owned());
    }
    override_findings(&mut preflight.findings, seen.preflight.overrides.as_deref(), target.0);
}

/// Marks the findings that a person has overridden for that step.
pub(super) fn override_findings(findings: &mut [PreflightFinding], annotation: Option<&str>, step: &str) {
    let overrides = overrides(annotation, step);
    for finding in findings {
        finding.overridden = finding.overridable && overrides.contains(finding.reason);
    }
}

/// Nodes that would leave the version skew that Kubernetes supports. Kubelets report their own version: one that reports a wrong version can block a
/// change until a person overrides the finding.
fn kubelets(survey: &Survey, target: Package<'_>) -> Option<PreflightFinding> {
    let version = &target.1.kubernetes;
    let nodes = match &survey.kubelets {
        Ok(nodes) => nodes,
        Err(why) => {
            let message = format!("cannot read kubelet versions: {why}");
            return Some(finding(names::reasons::KUBELET_VERSIONS_UNKNOWN, message, "retrying"));
        }
    };
    let server = skew::minor(version)?.into();
    for (kind, reason, what, advice) in [
        (
            Skew::TooNew,
            names::reasons::KUBELET_TOO_NEW,
            "are newer than",
            "first change these kubelets to the target minor or an older one",
        ),
        (
            Skew::TooOld,
            names::reasons::KUBELET_TOO_OLD,
            "are more than three minors older than",
            "upgrade these kubelets first",
        ),
    ] {
        let out: Vec<String> = nodes
            .iter()
            .filter(|(_, kubelet)| skew::skew(kubelet, server) == Some(kind))
            .map(|(node, kubelet)| format!("{node} ({kubelet})"))
            .collect();
        if out.is_empty() {
            continue;
        }
        let more = out.len().saturating_sub(MAX_LISTED_NODES);
        let more = if more > 0 { format!(" and {}", counted(more, "other")) } else { String::new() };
        let named = out[..out.len().min(MAX_LISTED_NODES)].join(", ");
        return Some(finding(reason, format!("kubelets of Nodes {named}{more} {what} {version}"), advice));
    }
    None
}

/// Findings against the end of a soak, besides its own conditions: the end needs what the new minor needs.
pub(super) fn before_finish(seen: &Observed, survey: &Survey, at: Package<'_>) -> Vec<PreflightFinding> {
    callers(seen, survey, at)
        .into_iter()
        .chain(kubelets(survey, at))
        .chain(quota_finding(seen, Some(survey), at))
        .collect()
}

/// Findings against the change to that package version. `begins`: the change would start in this pass.
pub(super) fn preflight(seen: &Observed, target: Package<'_>, begins: bool, now: Timestamp) -> Preflight {
    let mut findings: Vec<PreflightFinding> = arguments::unknown(&seen.spec, target)
        .into_iter()
        .map(|unknown| PreflightFinding {
            advice: format!("remove it from {}, or use a package version whose minor has it", unknown.place),
            overridable: false,
            ..finding(names::reasons::INVALID_ARGUMENT, unknown.to_string(), "")
        })
        .collect();
    findings.extend(datastore(seen));
    findings.extend(servers(seen));
    let mut preflight = Preflight { begins: true, ..Preflight::default() };
    let ask = ask(seen, target.0);
    let survey = seen.preflight.survey.as_ref().filter(|survey| survey.of == ask.of);
    let asked = findings.len();
    match survey {
        Some(survey) => {
            findings.extend(callers(seen, survey, target));
            findings.extend(kubelets(survey, target));
        }
        None => preflight.checking = Some("reading which APIs clients use".to_owned()),
    }
    findings.extend(quota_finding(seen, survey, target));
    let holds = findings.len() > asked;
    preflight.findings = findings;
    settle(&mut preflight, seen, ask, survey, (holds, begins), target, now);
    preflight
}

/// Reasons that the annotation overrides for that package version: `REASON@PACKAGE-VERSION`, separated by commas. Overrides for other changes do not
/// count.
fn overrides<'a>(annotation: Option<&'a str>, target: &str) -> BTreeSet<&'a str> {
    let all = annotation.unwrap_or_default().split(',').filter_map(|one| one.trim().split_once('@'));
    all.filter(|(_, package)| *package == target).map(|(reason, _)| reason).collect()
}

fn finding(reason: &'static str, message: String, advice: impl Into<String>) -> PreflightFinding {
    PreflightFinding { reason, message, advice: advice.into(), overridable: true, overridden: false }
}

fn findings_message(target: &str, against: &[&PreflightFinding]) -> String {
    listed(&format!("the change to {target} is blocked; nothing was changed"), target, against)
}

/// Message with the findings, what to do about each, and how to override them.
pub(super) fn listed(what: &str, target: &str, against: &[&PreflightFinding]) -> String {
    let mut text = format!("{what}: ");
    for (number, finding) in against.iter().enumerate() {
        let PreflightFinding { reason, message, advice, .. } = finding;
        let and = if number == 0 { "" } else { "; " };
        text.push_str(&format!("{and}{reason}: {message}: {advice}"));
    }
    let reasons: Vec<_> = against.iter().map(|finding| format!("{}@{target}", finding.reason)).collect();
    if against.iter().all(|finding| finding.overridable) {
        text.push_str(&format!("; to override, annotate the Cluster with {}={}", names::OVERRIDE, reasons.join(",")));
    }
    first_chars(&text, 1000).to_owned()
}

fn running_replicas(seen: &Observed, component: ControlPlaneComponent) -> impl Iterator<Item = &Replica> {
    let workload = seen.workloads.get(&component);
    workload.into_iter().flat_map(|workload| &workload.replicas).filter(|replica| !replica.ending)
}

/// Finding about missing members. If the quorum is lost, the step is refused before this check.
fn datastore(seen: &Observed) -> Option<PreflightFinding> {
    let members = count(seen, ControlPlaneComponent::Etcd);
    let ready = running_replicas(seen, ControlPlaneComponent::Etcd).filter(|replica| replica.ready).count();
    (ready < members).then(|| {
        let message = format!("{ready} of {members} etcd members are ready");
        finding(names::reasons::MEMBERS_MISSING, message, "wait until all are ready")
    })
}

fn servers(seen: &Observed) -> Option<PreflightFinding> {
    let wanted = count(seen, ControlPlaneComponent::Apiserver);
    let all = running_replicas(seen, ControlPlaneComponent::Apiserver);
    let proven = all.filter(|replica| replica.ready && proven_at(seen, replica).is_some()).count();
    (proven < wanted).then(|| {
        let message = format!("{proven} of {wanted} API servers are verified");
        finding(
            names::reasons::NOT_VERIFIED,
            message,
            "wait until all are verified, or fix the errors in status.components",
        )
    })
}

/// The survey question: an answer is valid for one change and for the API server pods that exist now.
pub(super) fn ask(seen: &Observed, target: &str) -> SurveyQuestion {
    let all: Vec<_> =
        running_replicas(seen, ControlPlaneComponent::Apiserver).filter(|replica| replica.ready).collect();
    let mut pods: Vec<_> = all.iter().map(|replica| format!("{}#{}", replica.uid, replica.restarts)).collect();
    pods.sort();
    let servers = all.iter().filter_map(|replica| Some((replica.name.clone(), replica.ip.clone()?))).collect();
    SurveyQuestion { of: format!("{target} {}", pods.join(" ")), servers }
}

fn callers(seen: &Observed, survey: &Survey, target: Package<'_>) -> Option<PreflightFinding> {
    let minor = VersionNode::of(target.0, target.1).minor();
    let apis = match &survey.apis {
        Ok(apis) => apis,
        Err(why) => {
            let message = format!("cannot read which APIs clients use: {why}");
            return Some(finding(names::reasons::API_USAGE_UNKNOWN, message, "retrying"));
        }
    };
    let gone: Vec<_> = apis.iter().filter(|api| api.is_gone_in(minor)).map(|api| api.text()).collect();
    (!gone.is_empty()).then(|| {
        let more = gone.len().saturating_sub(MAX_LISTED_NODES);
        let more = if more > 0 { format!(" and {}", counted(more, "other")) } else { String::new() };
        let named = gone[..gone.len().min(MAX_LISTED_NODES)].join(", ");
        let message = format!("clients have used {named}{more} since the API servers started, and {minor} does not serve them");
        let advice = format!(
            "change the clients to a newer API version, then restart the API servers to clear the record of usage: kubectl rollout restart deployment/kube-apiserver -n {}",
            seen.names.namespace
        );
        finding(names::reasons::REMOVED_APIS_IN_USE, message, advice)
    })
}

/// Finding that one more replica cannot be created: a replica is unschedulable, or a quota of the namespace refuses it. The free capacity of nodes is
/// not checked.
fn quota_finding(seen: &Observed, survey: Option<&Survey>, target: Package<'_>) -> Option<PreflightFinding> {
    let advice = "free resources in the meta cluster for one more replica of each component";
    let mut all = seen.workloads.keys().flat_map(|component| running_replicas(seen, *component));
    if let Some(replica) = all.find(|replica| replica.unplaced) {
        let message = format!("pod {} is unschedulable: {}", replica.name, replica.message);
        return Some(finding(names::reasons::INSUFFICIENT_RESOURCES, message, advice));
    }
    match &survey?.quotas {
        Err(why) => {
            let message = format!("cannot read ResourceQuotas of namespace {}: {why}", seen.names.namespace);
            Some(finding(names::reasons::INSUFFICIENT_RESOURCES, message, "allow the operator to list ResourceQuotas"))
        }
        Ok(quotas) => {
            let requests = requests(seen, target);
            let message = quotas.iter().find_map(|quota| requests.iter().find_map(|one| quota.lacks(one)))?;
            Some(finding(
                names::reasons::INSUFFICIENT_RESOURCES,
                message,
                format!("raise the ResourceQuota of namespace {}", seen.names.namespace),
            ))
        }
    }
}

/// Resource requests of a pod of each component that surges.
fn requests(seen: &Observed, target: Package<'_>) -> Vec<BTreeMap<String, String>> {
    let of = Blueprint {
        names: &seen.names,
        spec: &seen.spec,
        package: target.1,
        etcd_exists: true,
        emulates: None,
        trusts: "",
        members: (0, 0),
    };
    let components = ControlPlaneComponent::ALL.into_iter().filter(|one| *one != ControlPlaneComponent::Etcd);
    let deployments =
        components.flat_map(|component| objects(&of, component)).filter(|one| one.kind == Kind::Deployment);
    deployments
        .map(|object| {
            let requests =
                object.body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"].as_object();
            let entries = requests.into_iter().flatten();
            entries.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.to_owned()))).collect()
        })
        .collect()
}
