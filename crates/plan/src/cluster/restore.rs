//! Restores a snapshot into the datastore, stage by stage. The status records the stage, so that the operator continues after a crash.
//!
//! Checking: a source pod restores the snapshot and runs an etcd with it; nothing else is changed. If the snapshot cannot be restored, nothing is
//! lost: members are replaced, replicas healed and snapshots taken as usual. When the source serves, the Operation of the restore asks the gate; no
//! component is stopped before that Operation has started. Stopping: all components are scaled down. Restoring: each member's volume gets the data of
//! the source, next to its old data. Starting: all components start and API servers are proven. Cleaning: the old data of the members is removed,
//! while the cluster is reconciled as usual.
//!
//! Guarantees: the package version and the number of members of Stopping are kept until the cluster works with the restored data, and so are its minors
//! of Kubernetes and etcd: a package version that is recreated under that name with an older or newer minor of either is refused. If spec names another
//! snapshot meanwhile, its restore replaces the first one as soon as its source serves, with an Operation of its own that starts with Stopping: no volume
//! is restored while a pod of another restore exists. Nothing is stopped for a snapshot whose data needs a newer minor of etcd than the package version
//! has.

use fleetwright_api::{
    ClusterPackageVersionSpec, ClusterPhase, ClusterSpec, ClusterStatus, ControlPlaneComponent, EtcdStatus,
    RestoreStage, Restored, Restoring, condition, names,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::counted;
use super::decide::Decision;
use super::etcd_data;
use super::members::VolumeClaim;
use super::objects::Kind;
use super::observed::Observed;
use super::snapshots::pods::PodInputs;
use super::snapshots::{SnapshotPod, SnapshotPodJob, SnapshotPodState, SnapshotReport};
use super::stage::bounded;
use super::step::package_missing_message;
use super::upgrade_path::VersionNode;

/// Type of the Operation of a restore.
pub const RESTORE: &str = "Restore";
/// A failed pod is recreated after this long; until then a person can inspect it.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// A restore in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Name of the snapshot.
    pub snapshot: String,
    /// The Cluster that the snapshot was taken of, if that is another one.
    pub cluster: Option<String>,
    /// Identifier of this restore; other restores of the same snapshot have other identifiers.
    pub id: String,
}

/// State of the Operation of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOperation {
    /// Whether the gate granted the Operation and it has started.
    pub running: bool,
    /// Why the Operation has not started.
    pub waits: Option<String>,
}

impl Restore {
    /// The restore that the status records.
    pub fn of(restoring: &Restoring) -> Self {
        let id = super::digest(&format!("{} {}", restoring.snapshot, restoring.started_at), 4);
        match restoring.snapshot.split_once('/') {
            Some((cluster, snapshot)) => Self { snapshot: snapshot.to_owned(), cluster: Some(cluster.to_owned()), id },
            None => Self { snapshot: restoring.snapshot.clone(), cluster: None, id },
        }
    }

    /// Name of the pod that serves the snapshot as an etcd.
    pub fn source(&self) -> String {
        format!("restore-{}", self.id)
    }

    /// Name of the pod that restores a member's volume.
    pub fn member(&self, number: u32) -> String {
        format!("restore-{}-{number}", self.id)
    }

    /// Name of the pod that removes the old data of a member.
    pub fn clean(&self, number: u32) -> String {
        format!("clean-{}-{number}", self.id)
    }

    /// Whether the pod belongs to this restore.
    fn owns(&self, task: &SnapshotPod) -> bool {
        task.pod.split('-').nth(1) == Some(self.id.as_str())
    }
}

/// Stage of the restore; `None` without a restore.
pub(super) fn stage(seen: &Observed) -> Option<RestoreStage> {
    seen.status.restoring.as_ref().map(|restoring| restoring.stage)
}

/// Whether all components must be stopped now.
pub(super) fn down(seen: &Observed) -> bool {
    matches!(stage(seen), Some(RestoreStage::Stopping | RestoreStage::Restoring))
}

/// Whether a restore replaces the data: components then start with the package version that the cluster refers to, whatever version they had.
pub(super) fn replaces(seen: &Observed) -> bool {
    down(seen) || stage(seen) == Some(RestoreStage::Starting)
}

/// Whether a restore blocks changes of version: a snapshot is being checked, or replaces the data.
pub(super) fn holds(seen: &Observed) -> bool {
    stage(seen).is_some_and(|stage| stage != RestoreStage::Cleaning)
}

/// Whether the restore blocks all other work on components, members and data: it stops them now, or has stopped them. While the snapshot is only
/// checked, or the Operation waits, the cluster is reconciled as usual: the check of a mistyped name never succeeds. The same while volumes are
/// cleaned: a member without a node is never cleaned.
pub(super) fn takes_over(seen: &Observed) -> bool {
    seen.status.restoring.as_ref().is_some_and(|restoring| match restoring.stage {
        RestoreStage::Checking => {
            seen.backup.restore.running && checked(seen, task(seen, &Restore::of(restoring).source())).is_some()
        }
        RestoreStage::Cleaning => false,
        _ => true,
    })
}

/// The package version with which components start while a restore replaces the data, and its spec if it exists: the version that the cluster
/// referred to when the components were stopped, or the present one if it has the same minors of Kubernetes and etcd: the present one may fix what
/// does not start. Any other version was not checked against the snapshot and the kubelets, and may not be able to read the data written since. A
/// package version that was recreated with another minor counts as missing, see [`recreated`].
pub(super) fn package(seen: &Observed) -> Option<(&str, Option<&ClusterPackageVersionSpec>)> {
    let restoring = seen.status.restoring.as_ref().filter(|_| replaces(seen))?;
    let target = seen.target();
    let name = restoring.package_version.as_deref().unwrap_or(target.0);
    let stopped_for = if name == target.0 { Some(target.1) } else { seen.package(name) };
    let to = VersionNode::of(target.0, target.1);
    let kubernetes = restoring.kubernetes.as_deref().or(stopped_for.map(|spec| &*spec.kubernetes));
    let etcd = restoring.etcd.as_deref().or(stopped_for.map(|spec| spec.version_of(ControlPlaneComponent::Etcd)));
    let corrects = kubernetes.zip(etcd).is_some_and(|(kubernetes, etcd)| {
        VersionNode::gone(name, kubernetes).minor() == to.minor() && etcd_data::has_minor(target.1, etcd)
    });
    if name != target.0 && corrects {
        return Some((target.0, Some(target.1)));
    }
    Some((name, stopped_for.filter(|spec| other_minors(restoring, spec).is_none())))
}

/// Why the package version that the components were stopped for is not used: it was recreated with another minor. The snapshot and the kubelets were
/// checked against the recorded minors, and from Starting on etcd and API servers of these minors may have written data.
pub(super) fn recreated(seen: &Observed) -> Option<String> {
    let restoring = seen.status.restoring.as_ref().filter(|_| replaces(seen))?;
    let (name, target) = (restoring.package_version.as_deref()?, seen.target());
    let other = other_minors(restoring, if name == target.0 { target.1 } else { seen.package(name)? })?;
    let with_minor = |what: &str, version: &str| {
        let (major, minor) = etcd_data::minor(version);
        format!("{what} {major}.{minor}")
    };
    let kubernetes = restoring.kubernetes.as_deref().map(|version| with_minor("Kubernetes", version));
    let etcd = restoring.etcd.as_deref().map(|version| with_minor("etcd", version));
    let minors: Vec<_> = kubernetes.into_iter().chain(etcd).collect();
    Some(format!(
        "ClusterPackageVersion {name} was recreated with {other} while a snapshot is restored with it: recreate it with its old content, or set spec.packageVersion to one with {}",
        minors.join(" and ")
    ))
}

/// Versions of the package version with another minor than the recorded one.
fn other_minors(restoring: &Restoring, spec: &ClusterPackageVersionSpec) -> Option<String> {
    let differs = |had: &&str| etcd_data::minor(&spec.kubernetes) != etcd_data::minor(had);
    let kubernetes = restoring.kubernetes.as_deref().filter(differs);
    let kubernetes = kubernetes.map(|had| format!("Kubernetes {} instead of {had}", spec.kubernetes));
    let etcd = restoring.etcd.as_deref().filter(|had| !etcd_data::has_minor(spec, had));
    let has = spec.version_of(ControlPlaneComponent::Etcd);
    let etcd = etcd.map(|had| format!("etcd {has} instead of {had}"));
    let all: Vec<_> = kubernetes.into_iter().chain(etcd).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// The restore of another snapshot that spec named after the components were stopped. It replaces the restore in progress as soon as its snapshot is
/// verified.
pub(super) fn instead(seen: &Observed) -> Option<Restoring> {
    let restoring = seen.status.restoring.as_ref().filter(|_| replaces(seen))?;
    let snapshot = wanted(seen).filter(|wanted| *wanted != restoring.snapshot)?;
    Some(Restoring { snapshot, ..restoring.clone() })
}

/// Why the declared snapshot cannot be restored, and what to do. The result of the last attempt counts until the next attempt has ended, or until the
/// etcd of the package version has another minor.
pub(super) fn unusable(seen: &Observed) -> Option<String> {
    let restoring = seen.status.restoring.as_ref().filter(|restoring| restoring.stage == RestoreStage::Checking)?;
    let source = task(seen, &Restore::of(restoring).source());
    if checked(seen, source).is_some() || wanted(seen).as_ref() != Some(&restoring.snapshot) {
        return None;
    }
    if let Some(why) = too_new(seen, source) {
        return Some(format!(
            "spec.restore: snapshot {} cannot be restored: {why}. Nothing was stopped; no upgrade starts until the version is changed or spec.restore is removed",
            restoring.snapshot
        ));
    }
    // The package version was recreated with another etcd: what was found with the earlier one may not hold for it.
    if source.is_some_and(|source| is_stale(seen, source)) {
        return None;
    }
    if let Some(SnapshotPodState::Failed(_, why)) = source.map(|source| &source.state) {
        return Some(format!(
            "spec.restore: snapshot {} cannot be restored: {why}. Nothing was stopped. Correct or remove spec.restore; until then the restore is retried and no upgrade starts",
            restoring.snapshot
        ));
    }
    let before = condition(&seen.status.conditions, names::ACCEPTED);
    // What was found before an edit may not hold for it.
    let current = |one: &&fleetwright_api::Condition| one.observed_generation == seen.generation;
    before.filter(|one| one.reason == names::reasons::SNAPSHOT_UNUSABLE).filter(current).map(|one| one.message.clone())
}

/// The declared snapshot that is not restored yet: its name, or `CLUSTER/NAME` for a snapshot of another Cluster.
fn wanted(seen: &Observed) -> Option<String> {
    seen.spec.datastore.etcd.as_ref()?;
    let asked = asked(&seen.spec, &seen.names.name)?;
    (seen.status.observed_restore.as_ref() != Some(&asked)).then_some(asked)
}

/// The snapshot that the spec of the Cluster with that name declares.
fn asked(spec: &ClusterSpec, name: &str) -> Option<String> {
    let restore = spec.restore.as_ref()?;
    Some(match &restore.cluster {
        Some(cluster) if cluster != name => format!("{cluster}/{}", restore.snapshot),
        _ => restore.snapshot.clone(),
    })
}

/// Whether the declared restore of the Cluster with that name has replaced the data, or is about to: it cannot be withdrawn any more.
pub fn is_completed(spec: &ClusterSpec, name: &str, status: &ClusterStatus) -> bool {
    let replaces = status.restoring.as_ref().filter(|restoring| restoring.stage != RestoreStage::Checking);
    let followed = [status.observed_restore.as_ref(), replaces.map(|restoring| &restoring.snapshot)];
    asked(spec, name).is_some_and(|asked| followed.contains(&Some(&asked)))
}

/// The spec of a merge patch that restores a snapshot of the Cluster itself, with another package version if one is named. A merge patch keeps the fields
/// that it does not name: with the `cluster` of an earlier restore, the data of that Cluster would be restored, and with its `allowUnencrypted` a snapshot
/// that somebody replaced in the store.
pub(crate) fn own_snapshot_patch(snapshot: &str, package_version: Option<&str>) -> Value {
    let mut spec = json!({ "restore": { "cluster": null, "allowUnencrypted": null, "snapshot": snapshot } });
    if let Some(name) = package_version {
        spec["packageVersion"] = json!(name);
    }
    spec
}

/// The pods of all restores, also of those that have ended.
fn tasks(seen: &Observed) -> impl Iterator<Item = &SnapshotPod> {
    seen.backup.tasks.iter().filter(|task| task.job != SnapshotPodJob::Snapshot)
}

fn task<'a>(seen: &'a Observed, pod: &str) -> Option<&'a SnapshotPod> {
    seen.backup.tasks.iter().find(|task| task.pod == pod)
}

fn members(seen: &Observed) -> u32 {
    super::datastore::record(seen).members
}

/// The report of the source about the snapshot, once the source serves it to members whose etcd can read it.
fn checked(seen: &Observed, source: Option<&SnapshotPod>) -> Option<SnapshotReport> {
    let serves = source.filter(|source| source.serves.is_some() && !is_stale(seen, source));
    fetched(serves).filter(|_| too_new(seen, serves).is_none())
}

/// The description of the snapshot that a source has fetched, also if its etcd does not start with the data.
fn fetched(source: Option<&SnapshotPod>) -> Option<SnapshotReport> {
    serde_json::from_str(source?.said.as_deref()?).ok()
}

/// Why the etcd of the package version that the cluster refers to cannot read the snapshot of a source, whichever etcd that source runs. `etcdutl`
/// restores newer data without an error: etcd refuses the data only when it starts, and its message names neither the origin of the data nor what to do.
fn too_new(seen: &Observed, source: Option<&SnapshotPod>) -> Option<String> {
    let (name, package) = seen.target();
    let needs = etcd_data::needs_newer(package, fetched(source)?.etcd.as_deref()?)?;
    Some(format!(
        "it was taken from etcd {needs}, and etcd {} of {name} cannot read it; set spec.packageVersion to a version with etcd {needs} or newer",
        package.version_of(ControlPlaneComponent::Etcd)
    ))
}

/// Whether a source runs another minor of etcd than the cluster will, because spec named another package version since. An etcd raises the version of
/// the data that it serves: members with an older minor could not start with data of that source.
fn is_stale(seen: &Observed, source: &SnapshotPod) -> bool {
    source.etcd.as_deref().is_some_and(|runs| !etcd_data::has_minor(seen.target().1, runs))
}

/// The restore whose Operation the journal drives: from the verification of its snapshot until the cluster works with the data.
fn driven(seen: &Observed, restoring: &Restoring) -> Option<Restore> {
    let restore = Restore::of(restoring);
    let begins =
        || checked(seen, task(seen, &restore.source())).is_some() && wanted(seen).as_ref() == Some(&restoring.snapshot);
    let under_way = match restoring.stage {
        RestoreStage::Checking => begins(),
        RestoreStage::Stopping | RestoreStage::Restoring | RestoreStage::Starting => true,
        RestoreStage::Cleaning => false,
    };
    under_way.then_some(restore)
}

/// Steps of a restore in this pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RestoreSteps {
    /// The restore whose Operation is to be driven.
    pub restore: Option<Restore>,
    /// Claims to create, unless they exist.
    pub claims: Vec<Value>,
    /// Pods to create.
    pub pods: Vec<Value>,
    /// Pods to delete, which have succeeded or failed.
    pub tidy: Vec<SnapshotPod>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

impl RestoreSteps {
    /// Like `pod`, for the source of a snapshot that is checked: a source with another minor of etcd is replaced. A source whose snapshot is too new
    /// is kept: another attempt would fail in the same way.
    fn source(&mut self, seen: &Observed, name: &str, body: impl FnOnce() -> Option<Value>, now: Timestamp) {
        match task(seen, name) {
            Some(task) if is_stale(seen, task) => self.tidy.extend((!task.ending).then(|| task.clone())),
            Some(task) if too_new(seen, Some(task)).is_some() => {}
            _ => self.pod(seen, name, body, now),
        }
    }

    /// Creates the pod if it does not exist. A failed pod is deleted after [`RETRY_AFTER`], so that a later pass creates it again.
    fn pod(&mut self, seen: &Observed, name: &str, body: impl FnOnce() -> Option<Value>, now: Timestamp) {
        match task(seen, name) {
            None => self.pods.extend(body()),
            Some(task) => match &task.state {
                SnapshotPodState::Failed(at, _) if !task.ending => match at.checked_add(RETRY_AFTER) {
                    Ok(again) if again > now => self.next = self.next.into_iter().chain([again]).min(),
                    _ => self.tidy.push(task.clone()),
                },
                _ => {}
            },
        }
    }
}

/// Steps of the stage of the restore. A restore that is `held` does not ask the gate while its snapshot is checked.
pub(super) fn keep(seen: &Observed, held: bool, now: Timestamp) -> RestoreSteps {
    let mut steps = RestoreSteps::default();
    let left = tasks(seen).filter(|task| !task.ending);
    let Some(restoring) = &seen.status.restoring else {
        return RestoreSteps { tidy: left.cloned().collect(), ..steps };
    };
    let restore = Restore::of(restoring);
    let other = instead(seen).map(|other| Restore::of(&other));
    let is_over = |task: &&SnapshotPod| match restoring.stage {
        _ if !restore.owns(task) => other.as_ref().is_none_or(|other| !other.owns(task)),
        RestoreStage::Checking => false,
        // Both sources may need the same volume with the snapshots: the old source is deleted so that the new one can mount it.
        RestoreStage::Stopping | RestoreStage::Restoring => other.is_some() && task.job == SnapshotPodJob::Source,
        RestoreStage::Starting => true,
        // The claim is not deleted while a pod uses it.
        RestoreStage::Cleaning => task.job != SnapshotPodJob::Clean || is_on_ending_volume(seen, task),
    };
    steps.tidy = left.filter(is_over).cloned().collect();
    let held = restoring.stage == RestoreStage::Checking && held;
    steps.restore = driven(seen, restoring).filter(|_| !held);
    let (names, spec, image, members) = (&seen.names, &seen.spec, &*seen.backup.image, members(seen));
    let target =
        PodInputs { names, spec, package: seen.target().1, image, members, last: seen.status.last_snapshot.as_ref() };
    let ground = match package(seen) {
        Some((_, package)) => package.map(|package| PodInputs { package, ..target }),
        None => Some(target),
    };
    let source = || Some(ground?.source(&restore));
    if let Some(other) = &other {
        steps.source(seen, &other.source(), || Some(target.source(other)), now);
    }
    match restoring.stage {
        RestoreStage::Checking => steps.source(seen, &restore.source(), source, now),
        RestoreStage::Stopping => {}
        RestoreStage::Restoring => {
            let serves = task(seen, &restore.source()).filter(|_| other.is_none());
            let serves = serves.and_then(|source| source.serves.clone());
            if other.is_none() {
                // A source that was deleted meanwhile is recreated.
                steps.pod(seen, &restore.source(), source, now);
            }
            for number in 0..members {
                let (name, volume) = (restore.member(number), volume(seen, number));
                let missing = if volume.is_none() { claim(seen, number) } else { None };
                let has_claim = volume.is_some() || missing.is_some();
                steps.claims.extend(missing);
                let pod = task(seen, &name);
                let lost = volume.is_none() && pod.is_some_and(succeeded);
                if lost || volume.is_some_and(|volume| volume.ending) {
                    // The restored data is deleted with the claim. A pod whose claim is being deleted is never scheduled, and the claim would not be
                    // created again while the pod exists.
                    steps.tidy.extend(pod.filter(|pod| !pod.ending).cloned());
                } else if has_claim {
                    let body = || Some(ground?.member(&restore, number, serves.as_deref()?));
                    steps.pod(seen, &name, body, now);
                }
            }
        }
        RestoreStage::Starting => {}
        RestoreStage::Cleaning => {
            for number in (0..members).filter(|number| !is_cleaned(seen, &restore, *number)) {
                let body = || Some(target.clean(&restore, number, node(seen, number)?));
                steps.pod(seen, &restore.clean(number), body, now);
            }
        }
    }
    steps
}

/// Whether the pod succeeded. A pod that is being deleted may have succeeded on a volume that no longer exists.
fn succeeded(task: &SnapshotPod) -> bool {
    !task.ending && matches!(task.state, SnapshotPodState::Succeeded(_))
}

/// The volume claim of a member that exists.
fn volume(seen: &Observed, number: u32) -> Option<&VolumeClaim> {
    let name = super::members::claim(&format!("etcd-{number}"));
    seen.claims.iter().find(|claim| claim.name == name)
}

/// Whether the old data of the member is gone. A volume whose claim is being deleted is removed with all its data, and no pod starts with it.
fn is_cleaned(seen: &Observed, restore: &Restore, number: u32) -> bool {
    task(seen, &restore.clean(number)).is_some_and(succeeded)
        || volume(seen, number).is_some_and(|volume| volume.ending)
}

/// Whether the claim that a pod mounts is being deleted.
fn is_on_ending_volume(seen: &Observed, task: &SnapshotPod) -> bool {
    let number = task.pod.rsplit('-').next().and_then(|number| number.parse().ok());
    number.and_then(|number| volume(seen, number)).is_some_and(|volume| volume.ending)
}

/// The node that a member runs on.
fn node(seen: &Observed, number: u32) -> Option<&str> {
    let name = format!("etcd-{number}");
    let members = &seen.workloads.get(&ControlPlaneComponent::Etcd)?.replicas;
    members.iter().find(|replica| replica.name == name)?.node.as_deref()
}

/// The claim of a member, from the template of its StatefulSet; `None` while there is no StatefulSet.
fn claim(seen: &Observed, number: u32) -> Option<Value> {
    let set = seen.object(Kind::StatefulSet, ControlPlaneComponent::Etcd.binary())?;
    let template = &set["spec"]["volumeClaimTemplates"][0];
    let labels = &template["metadata"]["labels"];
    let name = super::members::claim(&format!("etcd-{number}"));
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": seen.names.namespace, "labels": labels },
    });
    claim["spec"] = template["spec"].clone();
    Some(claim)
}

/// Whether no controller creates pods of the component: its workload does not exist, or is scaled to zero.
fn scaled_down(seen: &Observed, component: ControlPlaneComponent) -> bool {
    let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
    seen.object(kind, component.binary()).is_none_or(|object| object["spec"]["replicas"] == 0)
}

/// The stage after the snapshot is verified: all components are stopped for it. All members start with the snapshot, and all components with this
/// package version. Both are kept until the restore has finished, whatever is declared meanwhile.
fn stops(seen: &Observed, status: &mut ClusterStatus, restoring: Restoring, report: &SnapshotReport) -> Restoring {
    let members = seen.spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
    status.etcd = Some(EtcdStatus { members, serving: members, ..EtcdStatus::default() });
    // The datastore no longer holds the data of the previously restored snapshot: that snapshot can be declared again.
    status.observed_restore = None;
    let (name, package) = seen.target();
    let etcd = Some(package.version_of(ControlPlaneComponent::Etcd)).filter(|version| !version.is_empty());
    Restoring {
        stage: RestoreStage::Stopping,
        data_time: Some(report.at),
        package_version: Some(name.to_owned()),
        kubernetes: Some(package.kubernetes.clone()),
        etcd: etcd.map(str::to_owned),
        ..restoring
    }
}

/// Proceeds to the next stage when the present one is finished. `settled`: all components are as declared, and proven.
pub(super) fn set_conditions(
    seen: &Observed,
    decision: &Decision,
    status: &mut ClusterStatus,
    settled: bool,
    now: Timestamp,
) {
    if seen.spec.restore.is_none() {
        status.observed_restore = None;
    }
    let Some(restoring) = &seen.status.restoring else {
        if let Some(snapshot) = wanted(seen).filter(|_| !seen.spec.paused) {
            status.restoring = Some(Restoring {
                snapshot: snapshot.clone(),
                stage: RestoreStage::Checking,
                started_at: now,
                data_time: None,
                package_version: None,
                kubernetes: None,
                etcd: None,
            });
            status.waiting_for = Some(format!("checking snapshot {snapshot} before the components are stopped"));
        }
        return;
    };
    let restore = Restore::of(restoring);
    let mut next = restoring.clone();
    let (snapshot, source) = (&restoring.snapshot, task(seen, &restore.source()));
    let why = |task: Option<&SnapshotPod>| match task.map(|task| &task.state) {
        Some(SnapshotPodState::Failed(_, why)) => format!(": {why}"),
        Some(SnapshotPodState::Runs(why)) if !why.is_empty() => format!(": {why}"),
        _ => String::new(),
    };
    let fails = |source: Option<&SnapshotPod>| {
        let current = source.filter(|source| !is_stale(seen, source));
        too_new(seen, source).map_or_else(|| why(current), |why| format!(": {why}"))
    };
    let mut more = String::new();
    if let Some((name, None)) = package(seen).filter(|_| down(seen)) {
        more = format!("; {}", recreated(seen).unwrap_or_else(|| package_missing_message(name)));
    }
    if let Some(other) = instead(seen) {
        let (name, source) = (other.snapshot.clone(), task(seen, &Restore::of(&other).source()));
        more = match (checked(seen, source), &decision.preflight.restore_waits) {
            (Some(report), None) if !settled && !seen.spec.paused => {
                // The results of an attempt on a volume count for that attempt alone.
                let next = stops(seen, status, Restoring { started_at: now, ..other }, &report);
                status.waiting_for = Some(format!("snapshot {name} passed its check and replaces {snapshot}"));
                (status.phase, status.restoring) = (Some(ClusterPhase::Restoring), Some(next));
                return;
            }
            (Some(_), held) => {
                let held = held.as_deref().unwrap_or("the Cluster is paused");
                format!("; snapshot {name} replaces it later: {held}")
            }
            (None, _) => format!("; snapshot {name} replaces it after passing its check{}", fails(source)),
        };
    }
    let waits = match restoring.stage {
        RestoreStage::Checking => {
            if wanted(seen).as_ref() != Some(snapshot) {
                status.restoring = None;
                return;
            }
            match (&decision.preflight.restore_waits, checked(seen, source)) {
                // No component is stopped for a restore that would leave kubelets newer than their API server.
                (Some(held), _) => Some(held.clone()),
                // A paused cluster keeps everything, also the record of its members.
                (None, Some(report)) if seen.backup.restore.running && !seen.spec.paused => {
                    next = stops(seen, status, next, &report);
                    Some(format!("snapshot {snapshot} passed its check; stopping all components"))
                }
                (None, Some(_)) => {
                    let why = seen.backup.restore.waits.as_deref().unwrap_or("its Operation has not started yet");
                    Some(format!("snapshot {snapshot} passed its check; nothing is stopped yet: {why}"))
                }
                (None, None) => {
                    Some(format!("checking snapshot {snapshot} before the components are stopped{}", fails(source)))
                }
            }
        }
        RestoreStage::Stopping => {
            let replicas: usize = seen.workloads.values().map(|workload| workload.replicas.len()).sum();
            let left =
                replicas + tasks(seen).filter(|task| !restore.owns(task) && task.job != SnapshotPodJob::Source).count();
            let stopped = ControlPlaneComponent::ALL.into_iter().all(|component| scaled_down(seen, component));
            match (&seen.backup.restore, left == 0 && stopped) {
                (RestoreOperation { running: true, .. }, true) => {
                    next.stage = RestoreStage::Restoring;
                    Some(format!("restoring snapshot {snapshot} to the etcd members"))
                }
                // A restore that replaced another one.
                (RestoreOperation { waits, .. }, true) => {
                    let why = waits.as_deref().unwrap_or("its Operation has not started yet");
                    Some(format!("snapshot {snapshot} is not restored yet: {why}"))
                }
                _ => Some(format!(
                    "waiting for {} to terminate before restoring snapshot {snapshot}",
                    counted(left, "pod")
                )),
            }
        }
        RestoreStage::Restoring => {
            let (count, pod) = (members(seen), |number| task(seen, &restore.member(number)));
            let holds = |number: u32| volume(seen, number).is_some_and(|volume| !volume.ending);
            let done = (0..count).filter(|number| holds(*number) && pod(*number).is_some_and(succeeded)).count();
            if done == count as usize {
                next.stage = RestoreStage::Starting;
            }
            let ending = (0..count).filter_map(|number| volume(seen, number)).find(|volume| volume.ending);
            let ending = ending
                .map(|volume| format!(": PersistentVolumeClaim {} is terminating and will be recreated", volume.name));
            let reason = || (0..count).map(pod).chain([source]).map(why).find(|why| !why.is_empty());
            let reason = ending.or_else(reason).unwrap_or_default();
            let hint = match reason.is_empty() || !more.is_empty() {
                true => "",
                false => "; if this does not finish, set spec.restore to another snapshot",
            };
            Some(format!("restoring snapshot {snapshot}: {done} of {count} members are restored{reason}{hint}"))
        }
        RestoreStage::Starting => {
            if settled {
                next.stage = RestoreStage::Cleaning;
                status.restored = Some(Restored {
                    snapshot: snapshot.clone(),
                    at: now,
                    data_time: restoring.data_time.unwrap_or(restoring.started_at),
                });
                status.observed_restore = Some(snapshot.clone());
                None
            } else {
                let first = decision.waiting.first().map(|(_, why)| why.clone());
                let why = first.or_else(|| status.waiting_for.clone()).unwrap_or_default();
                Some(format!("starting the components with the data of snapshot {snapshot}: {why}"))
            }
        }
        RestoreStage::Cleaning => {
            let left = (0..members(seen)).find(|number| !is_cleaned(seen, &restore, *number));
            // The pods of the next restore remove the old data that this one leaves.
            let Some(number) = left.filter(|_| wanted(seen).is_none()) else {
                status.restoring = None;
                return;
            };
            let why = match task(seen, &restore.clean(number)) {
                None if node(seen, number).is_none() => ": its pod has no node".to_owned(),
                pod => why(pod),
            };
            let left = format!("removing the old data of etcd-{number}{why}");
            Some(status.waiting_for.iter().cloned().chain([left]).collect::<Vec<_>>().join("; "))
        }
    };
    let cleans = next.stage == RestoreStage::Cleaning;
    if let Some(waits) = waits {
        status.waiting_for = Some(bounded(&(waits + &more)));
    }
    if !cleans && next.stage != RestoreStage::Checking {
        status.phase = Some(ClusterPhase::Restoring);
    }
    status.restoring = Some(next);
}
