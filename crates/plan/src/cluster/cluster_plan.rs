//! The plan of a cluster: what is changed next, also for a package version that is not declared yet. Built by functions that the operator decides with.

use fleetwright_api::{ClusterSpec, ControlPlaneComponent, names};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::components::{Components, count, with_package_annotation};
use super::diff::diff;
use super::limits::Violation;
use super::members::{NextMemberStep, VolumeClaim};
use super::objects::{Blueprint, Kind, Object, TRUST_BUNDLE_HASH, objects, template_digest};
use super::observed::Observed;
use super::preflight::{Package, Preflight, PreflightFinding, begins, preflight, run_checks};
use super::restore::own_snapshot_patch;
use super::rotation::{RotationContext, progress_message, rotate};
use super::step::{CurrentVersion, VersionStep, step};
use super::upgrade_path::VersionNode;
use super::{datastore, etcd_data, heal, snapshots, soak};
use crate::readiness::is_plain;

/// Certificates that are renewed within this time are listed.
const RENEWAL_HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What a plan does not check before a member of etcd changes.
const MEMBERS_NOT_ASKED: &str =
    "asking the members of etcd whether they agree on a leader; the members of etcd were not asked for this plan";

/// The plan of a change.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    /// The cluster's name.
    pub cluster: String,
    /// The present package version of the cluster, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PlannedVersion>,
    /// The planned package version.
    pub to: PlannedVersion,
    /// Why the change would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedStep>,
    /// Violations of the ClusterLimits of the namespace: with one of them, nothing of the change would be applied.
    pub violations: Vec<Violation>,
    /// Preflight findings against the change now.
    pub findings: Vec<PreflightFinding>,
    /// Checks that run only when the change starts.
    pub later: Vec<String>,
    /// Changes of each component, in order.
    pub stages: Vec<StagePlan>,
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
    /// Extensions that are updated afterwards, in order.
    pub extensions: Vec<String>,
    /// Whether a rollback is possible afterwards.
    pub back: RollbackPlan,
    /// The way back after the soak, if no other is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestorePlan>,
    /// Certificates that are renewed soon anyway, without an outage.
    pub certificates: Vec<CertificatePlan>,
}

/// A package version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedVersion {
    /// Name of the package version.
    pub package: String,
    /// Version of Kubernetes.
    pub kubernetes: String,
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedStep {
    /// Reason in CamelCase.
    pub reason: &'static str,
    pub message: String,
}

/// Planned changes of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StagePlan {
    pub component: ControlPlaneComponent,
    /// Present version of the component, if it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Planned version of the component.
    pub to: String,
    /// Number of pods that restart.
    pub restarts: usize,
    /// How the pods are replaced.
    pub how: String,
    /// Risk of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<String>,
    /// Objects that change.
    pub objects: Vec<ObjectChange>,
}

/// A planned change of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectChange {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
    /// Fields that change.
    pub diff: String,
}

/// The next step towards the declared members of etcd: members change one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberPlan {
    /// Number of members that run.
    pub from: u32,
    /// Declared number of members.
    pub to: u32,
    /// Type of the next change: `Add`, `Remove`, `Replace` or `RecreateVolume`.
    pub action: &'static str,
    /// The member that changes next.
    pub member: String,
    /// Start of the change, if it is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Why the change cannot start or continue now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

/// A volume that is smaller than declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumePlan {
    /// Name of the PersistentVolumeClaim.
    pub claim: String,
    /// Requested size.
    pub from: String,
    /// Declared size.
    pub to: String,
    /// How the volume gets the declared size, or why it does not.
    pub message: &'static str,
}

/// The end of a soak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SoakPlan {
    /// The minor that the components emulate until then.
    pub emulates: String,
    /// The earliest end.
    pub until: Timestamp,
}

/// The way back after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RollbackPlan {
    /// Whether a rollback keeps every write.
    pub keeps_writes: bool,
    /// Until when a rollback is possible, in words.
    pub message: String,
}

/// A rollback by restoring a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestorePlan {
    /// Name of the snapshot.
    pub snapshot: String,
    /// Time of the data: everything written after it would be lost.
    pub data_time: Timestamp,
    /// Whether the snapshot was verified.
    pub checked: bool,
    /// Patch of the Cluster that starts the restore.
    pub patch: serde_json::Value,
}

/// A certificate that is renewed soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificatePlan {
    /// The Secret that holds the certificate.
    pub name: String,
    /// Expiry of the certificate.
    pub not_after: Timestamp,
    /// Time of the renewal.
    pub replaced: Timestamp,
}

/// Plans the change of a cluster to the package version that `seen` refers to.
pub fn rehearse(seen: &Observed, now: Timestamp) -> ClusterPlan {
    let (mut step, target) = (step(seen, now), seen.target());
    let mut later = Vec::new();
    // A missing snapshot is no refusal: it is taken when the change is declared.
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
        // The plan if the change were not refused.
        _ => (target, emulated(seen, target.0)),
    };
    let restore = step.refused.as_ref().filter(|(reason, _)| *reason == names::reasons::SOAK_ENDED);
    let (members, volumes) = datastore_plan(seen, now);
    if members.as_ref().is_some_and(|members| members.blocked.is_none()) {
        later.push(MEMBERS_NOT_ASKED.to_owned());
    }
    ClusterPlan {
        cluster: seen.names.name.clone(),
        from: from.map(|from| version(from.name, from.kubernetes)),
        to: version(target.0, &target.1.kubernetes),
        restore: restore.and_then(|_| restoring(seen)),
        stages: match restore {
            // A restore recreates all components; there are no stages.
            Some(_) => Vec::new(),
            None => components(seen).filter_map(|one| stage(seen, wanted, emulates.as_deref(), one)).collect(),
        },
        back: back(seen, wanted, from.as_ref()),
        refused: step.refused.map(|(reason, message)| RefusedStep { reason, message }),
        // ClusterLimits are not observed here.
        violations: Vec::new(),
        findings: before.findings,
        later,
        members,
        volumes,
        rotation: rotation(seen, now),
        soak: soak_end(seen, now),
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

/// The minor that a step to that package version would emulate.
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

/// The package version that a component is built from in a step to that package version, and its objects.
fn wanted<'a>(
    seen: &'a Observed,
    to: Package<'a>,
    emulates: Option<&str>,
    component: ControlPlaneComponent,
) -> Result<(Package<'a>, Vec<Object>), String> {
    let package = match component {
        ControlPlaneComponent::Etcd => etcd_data::compatible_package(seen, to)?,
        _ => to,
    };
    // The trust bundle stays unchanged, and a person who plans may not read its Secrets.
    let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
    let live = seen.object(kind, component.binary()).unwrap_or_default();
    let trusts =
        live["spec"]["template"]["metadata"]["annotations"][TRUST_BUNDLE_HASH].as_str().unwrap_or_default().to_owned();
    let etcd = datastore::record(seen);
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
    Ok((package, wanted))
}

/// The observed state without `spec.paused`: a plan shows the steps of a paused cluster too.
fn resumed(seen: &Observed) -> Observed {
    Observed { spec: ClusterSpec { paused: false, ..seen.spec.clone() }, ..seen.clone() }
}

/// The next change of a member of etcd, and the volumes that are smaller than declared, as the operator decides on them now.
fn datastore_plan(seen: &Observed, now: Timestamp) -> (Option<MemberPlan>, Vec<VolumePlan>) {
    let seen = &resumed(seen);
    let (step, _) = run_checks(seen, step(seen, now), now);
    let etcd = ControlPlaneComponent::Etcd;
    let mut components = Components::default();
    match step.package().map(|package| wanted(seen, package, step.emulates.as_deref(), etcd)) {
        Some(Ok((_, objects))) => {
            let template = objects.iter().find_map(template_digest);
            components.templates.extend(template.map(|template| (etcd, template.to_owned())));
        }
        Some(Err(why)) => components.held = Some(why),
        None => {}
    }
    let members = datastore::keep(seen, step.name, &components, now);
    let volume = |claim: &VolumeClaim, to: &str, message| {
        let (claim, from) = (claim.name.clone(), claim.size.clone());
        VolumePlan { claim, from, to: to.to_owned(), message }
    };
    let mut volumes: Vec<_> =
        members.expand.iter().map(|(claim, size)| volume(claim, size, "expanded in place")).collect();
    let snapshots = snapshots::volume_to_expand(seen).map(|(claim, size)| match claim.expandable {
        true => volume(claim, &size, "expanded in place"),
        false => volume(claim, &size, "not expanded: its StorageClass does not allow expansion"),
    });
    let (Some(declared), Some(record)) = (&seen.spec.datastore.etcd, members.record) else {
        return (None, snapshots.into_iter().collect());
    };
    // A member that is removed gets no larger volume.
    let rigid = datastore::undersized_claims(seen, record.members.min(declared.members));
    let rigid = rigid.filter(|claim| !claim.expandable);
    volumes.extend(rigid.map(|claim| {
        volume(claim, &declared.storage.size.0, "replaced together with its member, one member at a time")
    }));
    volumes.extend(snapshots);
    let blocked = match members.step {
        NextMemberStep::Wait(why) | NextMemberStep::Refuse(why) => Some(why),
        // Only a restore prevents every decision about a change that is due.
        NextMemberStep::Nothing => Some("waiting for the restore".to_owned()),
        _ => None,
    };
    let next = datastore::next_change(seen).map(|(type_, member)| MemberPlan {
        from: record.members,
        to: declared.members,
        action: type_.as_str(),
        member,
        since: record.change.map(|change| change.since),
        blocked,
    });
    (next, volumes)
}

/// The rotation of authorities that is in progress or requested. Its phases depend on Secrets and machines, which are not read here.
fn rotation(seen: &Observed, now: Timestamp) -> Option<String> {
    if let Some(rotation) = &seen.status.rotation {
        let progress = progress_message(rotation, None, seen.spec.certificates.overlap);
        return Some(format!("{progress}; which machines have the new authorities was not read for this plan"));
    }
    let seen = &resumed(seen);
    let others = RotationContext { settled: true, updating: false, extensions: &[] };
    let requested = rotate(seen, &others, now).rotation?;
    Some(format!(
        "requested with the value {}; starts when all components and members of etcd are as declared and verified",
        requested.value
    ))
}

/// The end of the soak, unless another package version is declared.
fn soak_end(seen: &Observed, now: Timestamp) -> Option<SoakPlan> {
    let (_, until) = soak::times(seen, now)?;
    let emulates = seen.status.emulates.clone()?;
    let stays = seen.status.package_version.as_deref() == Some(seen.target().0);
    stays.then_some(SoakPlan { emulates, until })
}

fn stage(
    seen: &Observed,
    to: Package<'_>,
    emulates: Option<&str>,
    component: ControlPlaneComponent,
) -> Option<StagePlan> {
    let workload = seen.workloads.get(&component);
    let running = workload.and_then(|workload| workload.package.as_deref());
    let (package, wanted) = wanted(seen, to, emulates, component).ok()?;
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
    let (how, risk) = replacement_and_risk(seen, component, old, missing, emulates);
    let to = package.1.version_of(component).to_owned();
    Some(StagePlan { component, from, to, restarts: old, how, risk, objects: changes })
}

/// How pods are replaced, and the risk of it.
fn replacement_and_risk(
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
    // The patch becomes a command, and the schema of the status does not restrict its texts to names.
    let last = seen.status.last_snapshot.as_ref().filter(|last| is_plain(&last.name));
    let snapshot = last.filter(|last| last.etcd.as_deref().is_none_or(is_readable))?;
    let patch = serde_json::json!({ "spec": own_snapshot_patch(&snapshot.name, Some(seen.target().0)) });
    Some(RestorePlan { snapshot: snapshot.name.clone(), data_time: snapshot.at, checked: snapshot.checked, patch })
}

/// The extensions that the cluster would have, in order.
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
        // A certificate with a longer life than the present setting is renewed as if it had the present one.
        let replaced = one.not_after.checked_sub(life / 3).ok()?.min(now.checked_add(life / 3 * 2).ok()?);
        let (name, not_after) = (one.name.clone(), one.not_after);
        Some(CertificatePlan { name, not_after, replaced })
    });
    all.filter(|one| one.replaced <= now + RENEWAL_HORIZON).collect()
}
