//! What bringing a cluster to a package version would do, before anybody asks for it: made by what decides when it is done.

use fleetwright_api::{ControlPlaneComponent, names};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::components::{count, with_package_annotation};
use super::diff::diff;
use super::etcd_data;
use super::heal;
use super::limits::Violation;
use super::objects::{Blueprint, Kind, TRUST_BUNDLE_HASH, objects, template_digest};
use super::observed::Observed;
use super::preflight::{Package, Preflight, PreflightFinding, begins, preflight};
use super::step::{CurrentVersion, VersionStep, step};
use super::upgrade_path::VersionNode;

/// Certificates that are replaced within this time are told.
const RENEWAL_HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What would be done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    /// The cluster's name.
    pub cluster: String,
    /// The package version that it has, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PlannedVersion>,
    /// The package version that it would be brought to.
    pub to: PlannedVersion,
    /// Why it would not: a reason in one word, and a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedStep>,
    /// What ClusterLimits of the namespace do not allow: nothing of it would be applied.
    pub violations: Vec<Violation>,
    /// What stands against it now.
    pub findings: Vec<PreflightFinding>,
    /// What is looked at when it begins, and not before.
    pub later: Vec<String>,
    /// The components, in the order in which they would be changed.
    pub stages: Vec<StagePlan>,
    /// Extensions that follow, in their order.
    pub extensions: Vec<String>,
    /// Whether there is a way back after it.
    pub back: RollbackPlan,
    /// The way back past the soak, if no other is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestorePlan>,
    /// Certificates that are replaced soon anyway, without an outage.
    pub certificates: Vec<CertificatePlan>,
}

/// A package version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedVersion {
    /// Its name.
    pub package: String,
    /// Its version of Kubernetes.
    pub kubernetes: String,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedStep {
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

/// What would become of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StagePlan {
    /// Which.
    pub component: ControlPlaneComponent,
    /// The version that it has, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The version that it would have.
    pub to: String,
    /// How many pods begin anew.
    pub restarts: usize,
    /// In which way.
    pub how: String,
    /// What is risky about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<String>,
    /// The objects that change.
    pub objects: Vec<ObjectChange>,
}

/// An object that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectChange {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The fields that change.
    pub diff: String,
}

/// The way back after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RollbackPlan {
    /// Whether going back keeps every write.
    pub keeps_writes: bool,
    /// Until when, in words.
    pub message: String,
}

/// Going back by restoring a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestorePlan {
    /// The snapshot.
    pub snapshot: String,
    /// The time of its data: everything written after it would be lost.
    pub data_of: Timestamp,
    /// Whether it was seen to be whole.
    pub checked: bool,
    /// What to change of the Cluster.
    pub patch: serde_json::Value,
}

/// A certificate that is replaced soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatePlan {
    /// The Secret that holds it.
    pub name: String,
    /// When it ends.
    pub not_after: Timestamp,
    /// When it is replaced.
    pub replaced: Timestamp,
}

/// Says what would be done to bring a cluster to the package version that `seen` refers to.
pub fn rehearse(seen: &Observed, now: Timestamp) -> ClusterPlan {
    let (mut step, target) = (step(seen, now), seen.target());
    let mut later = Vec::new();
    // That is no refusal: it is taken when the change is asked for.
    if let Some((_, why)) = step.refused.take_if(|(reason, _)| *reason == names::reasons::SNAPSHOT_REQUIRED) {
        later.push(why);
        step = VersionStep::to(target, emulated(seen, target.0));
    }
    let from = CurrentVersion::of(seen).and_then(|present| present.stop());
    let begins = step.package().is_some_and(|package| begins(seen, package).is_some());
    let before = if begins { preflight(seen, target, true, now) } else { Preflight::default() };
    later.extend(before.checking);
    let (wanted, emulates) = match (&step.refused, step.package()) {
        (None, Some(package)) => (package, step.emulates.clone()),
        // What would be done if it were not refused.
        _ => (target, emulated(seen, target.0)),
    };
    let restore = step.refused.as_ref().filter(|(reason, _)| *reason == names::reasons::SOAK_ENDED);
    ClusterPlan {
        cluster: seen.names.name.clone(),
        from: from.map(|from| version(from.name, from.kubernetes)),
        to: version(target.0, &target.1.kubernetes),
        restore: restore.and_then(|_| restoring(seen)),
        stages: match restore {
            // Restoring makes everything anew; there are no stages to tell.
            Some(_) => Vec::new(),
            None => components(seen).filter_map(|one| stage(seen, wanted, emulates.as_deref(), one)).collect(),
        },
        back: back(seen, wanted, from.as_ref()),
        refused: step.refused.map(|(reason, message)| RefusedStep { reason, message }),
        // Limits are not seen here.
        violations: Vec::new(),
        findings: before.findings,
        later,
        extensions: extensions(seen),
        certificates: certificates(seen, now),
    }
}

fn version(package: &str, kubernetes: &str) -> PlannedVersion {
    PlannedVersion { package: package.to_owned(), kubernetes: kubernetes.to_owned() }
}

fn components(seen: &Observed) -> impl Iterator<Item = ControlPlaneComponent> {
    let external = seen.spec.datastore.etcd.is_none();
    ControlPlaneComponent::ALL.into_iter().filter(move |one| !external || *one != ControlPlaneComponent::Etcd)
}

/// What a step to that package version would emulate.
fn emulated(seen: &Observed, target: &str) -> Option<String> {
    let minor = |name: &str| seen.package(name).map(|spec| VersionNode::of("", spec).minor().to_owned());
    let has = CurrentVersion::of(seen).and_then(|present| present.stop()).map(|stop| stop.minor().to_owned());
    let wanted = if target == seen.target().0 {
        Some(VersionNode::of("", seen.target().1).minor().to_owned())
    } else {
        minor(target)
    };
    match has == wanted {
        true => seen.status.emulates.clone(),
        false => has,
    }
}

fn stage(
    seen: &Observed,
    to: Package<'_>,
    emulates: Option<&str>,
    component: ControlPlaneComponent,
) -> Option<StagePlan> {
    let workload = seen.workloads.get(&component);
    let running = workload.and_then(|workload| workload.package.as_deref());
    let package = match component {
        ControlPlaneComponent::Etcd => etcd_data::compatible_package(seen, to).ok()?,
        _ => to,
    };
    // What is trusted stays as it is, and who asks may not see it.
    let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
    let live = seen.object(kind, component.binary()).unwrap_or_default();
    let trusts =
        live["spec"]["template"]["metadata"]["annotations"][TRUST_BUNDLE_HASH].as_str().unwrap_or_default().to_owned();
    let etcd = super::datastore::record(seen);
    let of = Blueprint {
        names: &seen.names,
        spec: &seen.spec,
        package: package.1,
        etcd_exists: seen.status.package_version.is_some(),
        emulates: emulates.filter(|_| package.0 == to.0),
        trusts: &trusts,
        members: (etcd.members, etcd.serving),
    };
    let mut wanted = with_package_annotation(objects(&of, component), package.0);
    heal::select(seen, component, &mut wanted);
    let template = wanted.iter().find_map(template_digest).map(str::to_owned);
    let changes: Vec<_> = wanted
        .into_iter()
        .filter_map(|object| {
            let live = seen.object(object.kind, &object.name);
            let title = format!("{}/{}", object.kind.as_str(), object.name);
            let diff = diff(&title, live.as_ref(), &object.body);
            (!diff.is_empty()).then(|| ObjectChange { kind: object.kind.as_str(), name: object.name, diff })
        })
        .collect();
    let here = workload.into_iter().flat_map(|workload| &workload.replicas).filter(|replica| !replica.ending);
    let old = here.clone().filter(|replica| replica.template != template).count();
    let missing = count(seen, component).saturating_sub(here.clone().count());
    let from = running.and_then(|name| seen.package(name)).map(|spec| spec.version_of(component).to_owned());
    let from = from.or_else(|| here.clone().find_map(|replica| replica.runs.clone()));
    let (how, risk) = manner(seen, component, old, missing, emulates);
    let to = package.1.version_of(component).to_owned();
    Some(StagePlan { component, from, to, restarts: old, how, risk, objects: changes })
}

/// In which way pods are replaced, and what is risky about it.
fn manner(
    seen: &Observed,
    component: ControlPlaneComponent,
    old: usize,
    missing: usize,
    emulates: Option<&str>,
) -> (String, Option<String>) {
    let wanted = count(seen, component);
    if old == 0 {
        let how = match missing {
            0 => "no restarts".to_owned(),
            _ => format!("creating {missing} of {wanted}"),
        };
        return (how, None);
    }
    if component == ControlPlaneComponent::Etcd {
        let risk = "with one member, etcd is unavailable while it restarts; use three members to avoid this";
        let risk = (wanted == 1).then(|| risk.to_owned());
        return (format!("{old} of {wanted} members, one at a time and only while all others are healthy"), risk);
    }
    let emulates = emulates.map_or(String::new(), |minor| format!(", emulating {minor}"));
    let how = format!("{old} of {wanted} replicas, rolling update with one surge replica{emulates}");
    let risk = "with one replica, a broken API server stays in the endpoint; use two replicas to avoid this";
    (how, (component == ControlPlaneComponent::Apiserver && wanted == 1).then(|| risk.to_owned()))
}

fn back(seen: &Observed, to: Package<'_>, from: Option<&VersionNode<'_>>) -> RollbackPlan {
    let to = VersionNode::of(to.0, to.1);
    let back = |keeps_writes, message| RollbackPlan { keeps_writes, message };
    match from {
        None => back(false, "there is no version to roll back to".to_owned()),
        Some(from) if from.name == to.name => {
            match (&seen.status.previous, &seen.status.emulates, seen.status.soak_until) {
                (Some(previous), Some(_), Some(until)) => {
                    back(true, format!("to {previous} at least until {until}, keeping all writes"))
                }
                _ => back(false, "nothing changes, so there is nothing to roll back".to_owned()),
            }
        }
        Some(from) if from.minor() == to.minor() => {
            back(true, format!("to {} at any time, keeping all writes", from.name))
        }
        Some(from) if to.is_older_than(from) => back(true, format!("to {} at any time, as an upgrade", from.name)),
        Some(from) => {
            let soak = &seen.spec.upgrade.soak;
            let message = format!(
                "to {} during the upgrade and for {soak} after it (spec.upgrade.soak), keeping all writes; after that only by restoring a snapshot, which loses later writes",
                from.name
            );
            back(true, message)
        }
    }
}

fn restoring(seen: &Observed) -> Option<RestorePlan> {
    let target = seen.target().1;
    let is_readable = |version: &str| etcd_data::needs_newer(target, version).is_none();
    let last = seen.status.last_snapshot.as_ref();
    let snapshot = last.filter(|last| last.etcd.as_deref().is_none_or(is_readable))?;
    let patch = serde_json::json!({
        "spec": { "packageVersion": seen.target().0, "restore": { "snapshot": snapshot.name } },
    });
    Some(RestorePlan { snapshot: snapshot.name.clone(), data_of: snapshot.at, checked: snapshot.checked, patch })
}

/// The extensions that the cluster would have, in their order.
fn extensions(seen: &Observed) -> Vec<String> {
    let mut all: Vec<_> = seen.target().1.extensions.iter().collect();
    all.sort_by_key(|one| (one.order, one.name.clone()));
    let on = |name: &str, usual: bool| {
        let choice = seen.spec.extensions.iter().find(|choice| choice.name == name);
        choice.and_then(|choice| choice.enabled).unwrap_or(usual)
    };
    all.into_iter().filter(|one| on(&one.name, one.enabled)).map(|one| one.name.clone()).collect()
}

fn certificates(seen: &Observed, now: Timestamp) -> Vec<CertificatePlan> {
    let life = SignedDuration::try_from(seen.spec.certificates.leaf_lifetime.0).unwrap_or_default();
    let leaves = seen.status.certificates.iter().filter(|one| one.name != "ca" && !one.name.ends_with("-ca"));
    let all = leaves.filter_map(|one| {
        // One that was made to last longer than they do now is held to the shorter life.
        let replaced = one.not_after.checked_sub(life / 3).ok()?.min(now.checked_add(life / 3 * 2).ok()?);
        let (name, not_after) = (one.name.clone(), one.not_after);
        Some(CertificatePlan { name, not_after, replaced })
    });
    all.filter(|one| one.replaced <= now + RENEWAL_HORIZON).collect()
}
