//! Brings a datastore back to a snapshot, stage by stage. The status says which stage it is in, so that whoever goes on after a crash knows.
//!
//! Checking: a source restores the snapshot and runs an etcd of it; nothing else is touched, and if that does not work nothing is lost: members are replaced,
//! replicas healed and snapshots taken as ever. When the source serves, the Operation of the restore asks the gate, and nothing is stopped before that Operation was started. Stopping: all
//! components go down. Restoring: each member's volume gets the data of the source, beside what it has. Starting: all begin again and are proven.
//! Cleaning: what the members had before is removed, beside everything else that is done to the cluster.
//!
//! Guarantees: the package version and the number of members that Stopping starts with stay until the cluster works with the data. If another snapshot is
//! named in between, it takes the place of the first one once a source of it serves, as a restore and an Operation of its own that begins with Stopping:
//! no volume is restored while a pod of another restore exists. Nothing is stopped for a snapshot whose data needs a newer minor of etcd than the package version has.

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

/// The type of the Operation of a restore.
pub const RESTORE: &str = "Restore";
/// A pod that failed is made anew after this long: until then it can be looked at.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// A restore that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The snapshot.
    pub snapshot: String,
    /// The Cluster that it was taken of, if that is another one.
    pub cluster: Option<String>,
    /// What tells it from others, also of the same snapshot.
    pub id: String,
}

/// What is known of the Operation of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOperation {
    /// It passed the gate and was started.
    pub running: bool,
    /// Why it was not yet.
    pub waits: Option<String>,
}

impl Restore {
    /// The one that is under way.
    pub fn of(restoring: &Restoring) -> Self {
        let id = super::digest(&format!("{} {}", restoring.snapshot, restoring.began), 4);
        match restoring.snapshot.split_once('/') {
            Some((cluster, snapshot)) => Self { snapshot: snapshot.to_owned(), cluster: Some(cluster.to_owned()), id },
            None => Self { snapshot: restoring.snapshot.clone(), cluster: None, id },
        }
    }

    /// The pod that has the snapshot as an etcd.
    pub fn source(&self) -> String {
        format!("restore-{}", self.id)
    }

    /// The pod that restores a member's volume.
    pub fn member(&self, number: u32) -> String {
        format!("restore-{}-{number}", self.id)
    }

    /// The pod that removes what a member had before.
    pub fn clean(&self, number: u32) -> String {
        format!("clean-{}-{number}", self.id)
    }

    /// Whether a pod of a restore works for this one.
    fn owns(&self, task: &SnapshotPod) -> bool {
        task.pod.split('-').nth(1) == Some(self.id.as_str())
    }
}

/// The stage that it is in; none if nothing is restored.
pub(super) fn stage(seen: &Observed) -> Option<RestoreStage> {
    seen.status.restoring.as_ref().map(|restoring| restoring.stage)
}

/// No component may run now.
pub(super) fn down(seen: &Observed) -> bool {
    matches!(stage(seen), Some(RestoreStage::Stopping | RestoreStage::Restoring))
}

/// The data is that of a snapshot, or will be: components begin with what the cluster refers to, whatever they were of.
pub(super) fn replaces(seen: &Observed) -> bool {
    down(seen) || stage(seen) == Some(RestoreStage::Starting)
}

/// No change of version begins: a snapshot is looked at, or replaces the data.
pub(super) fn holds(seen: &Observed) -> bool {
    stage(seen).is_some_and(|stage| stage != RestoreStage::Cleaning)
}

/// Nothing else is done to components, members and data: the restore stops them now, or did. While its snapshot is only looked at, or its Operation waits, everything
/// goes on: a name that is mistyped is never found to be good. So it does while volumes are cleaned: a member without a node is never cleaned.
pub(super) fn takes_over(seen: &Observed) -> bool {
    seen.status.restoring.as_ref().is_some_and(|restoring| match restoring.stage {
        RestoreStage::Checking => {
            seen.backup.restore.running && checked(seen, task(seen, &Restore::of(restoring).source())).is_some()
        }
        RestoreStage::Cleaning => false,
        _ => true,
    })
}

/// The package version that components start with while a restore replaces the data, and what it says if it exists: the one that the cluster referred to when they
/// were stopped, or the present one if it is of the same minors of Kubernetes and etcd: then it corrects what does not start. Any other one was not checked against
/// the snapshot and the kubelets, and may not understand what was written since.
pub(super) fn package(seen: &Observed) -> Option<(&str, Option<&ClusterPackageVersionSpec>)> {
    let restoring = seen.status.restoring.as_ref().filter(|_| replaces(seen))?;
    let target = seen.target();
    let name = restoring.package_version.as_deref().unwrap_or(target.0);
    let stopped_for = seen.package(name);
    let to = VersionNode::of(target.0, target.1);
    let corrects = stopped_for
        .is_some_and(|spec| VersionNode::of(name, spec).minor() == to.minor() && etcd_data::same_minor(spec, target.1));
    Some(if name == target.0 || corrects { (target.0, Some(target.1)) } else { (name, stopped_for) })
}

/// The restore of another snapshot that was named since the components were stopped. It takes the place of the one that is under way once its snapshot is seen to be good.
pub(super) fn instead(seen: &Observed) -> Option<Restoring> {
    let restoring = seen.status.restoring.as_ref().filter(|_| replaces(seen))?;
    let snapshot = wanted(seen).filter(|wanted| *wanted != restoring.snapshot)?;
    Some(Restoring { snapshot, ..restoring.clone() })
}

/// Why the snapshot that is asked for cannot be restored, and what to do. Until another try has ended, what the last one said counts.
pub(super) fn unusable(seen: &Observed) -> Option<String> {
    let restoring = seen.status.restoring.as_ref().filter(|restoring| restoring.stage == RestoreStage::Checking)?;
    let source = task(seen, &Restore::of(restoring).source()).filter(|source| !is_stale(seen, source));
    if checked(seen, source).is_some() || wanted(seen).as_ref() != Some(&restoring.snapshot) {
        return None;
    }
    if let Some(why) = too_new(seen, source) {
        return Some(format!(
            "spec.restore: snapshot {} cannot be restored: {why}. Nothing was stopped; no upgrade starts until the version is changed or spec.restore is removed",
            restoring.snapshot
        ));
    }
    if let Some(SnapshotPodState::Failed(_, why)) = source.map(|source| &source.state) {
        return Some(format!(
            "spec.restore: snapshot {} cannot be restored: {why}. Nothing was stopped. Correct or remove spec.restore; until then the restore is retried and no upgrade starts",
            restoring.snapshot
        ));
    }
    let before = condition(&seen.status.conditions, names::ACCEPTED);
    before.filter(|one| one.reason == names::reasons::SNAPSHOT_UNUSABLE).map(|one| one.message.clone())
}

/// The snapshot that is asked for and not followed yet: its name, or `CLUSTER/NAME` of another Cluster's.
fn wanted(seen: &Observed) -> Option<String> {
    seen.spec.datastore.etcd.as_ref()?;
    let asked = asked(&seen.spec, &seen.names.name)?;
    (seen.status.restore_followed.as_ref() != Some(&asked)).then_some(asked)
}

/// The snapshot that a spec of the Cluster with that name asks for.
fn asked(spec: &ClusterSpec, name: &str) -> Option<String> {
    let restore = spec.restore.as_ref()?;
    Some(match &restore.cluster {
        Some(cluster) if cluster != name => format!("{cluster}/{}", restore.snapshot),
        _ => restore.snapshot.clone(),
    })
}

/// Whether the restore that a spec of the Cluster with that name asks for has replaced the data, or is about to: it cannot be withdrawn any more.
pub fn is_completed(spec: &ClusterSpec, name: &str, status: &ClusterStatus) -> bool {
    let replaces = status.restoring.as_ref().filter(|restoring| restoring.stage != RestoreStage::Checking);
    let followed = [status.restore_followed.as_ref(), replaces.map(|restoring| &restoring.snapshot)];
    asked(spec, name).is_some_and(|asked| followed.contains(&Some(&asked)))
}

/// The pods of restores, also of those that are over.
fn tasks(seen: &Observed) -> impl Iterator<Item = &SnapshotPod> {
    seen.backup.tasks.iter().filter(|task| task.job != SnapshotPodJob::Snapshot)
}

fn task<'a>(seen: &'a Observed, pod: &str) -> Option<&'a SnapshotPod> {
    seen.backup.tasks.iter().find(|task| task.pod == pod)
}

fn members(seen: &Observed) -> u32 {
    super::datastore::record(seen).members
}

/// What the source says of the snapshot, once it serves it to members whose etcd can read it.
fn checked(seen: &Observed, source: Option<&SnapshotPod>) -> Option<SnapshotReport> {
    let serves = source.filter(|source| source.serves.is_some() && !is_stale(seen, source));
    fetched(serves).filter(|_| too_new(seen, serves).is_none())
}

/// The description of the snapshot that a source has fetched, also if its etcd does not start with the data.
fn fetched(source: Option<&SnapshotPod>) -> Option<SnapshotReport> {
    serde_json::from_str(source?.said.as_deref()?).ok()
}

/// Why the etcd of the package version that the cluster refers to cannot read the snapshot of a source. `etcdutl` restores newer data without a word: etcd refuses the data
/// only when it starts, and says neither where the data is from nor what to do.
fn too_new(seen: &Observed, source: Option<&SnapshotPod>) -> Option<String> {
    let (name, package) = seen.target();
    let needs = etcd_data::needs_newer(package, fetched(source)?.etcd.as_deref()?)?;
    Some(format!(
        "it was taken from etcd {needs}, and etcd {} of {name} cannot read it; set spec.packageVersion to a version with etcd {needs} or newer",
        package.version_of(ControlPlaneComponent::Etcd)
    ))
}

/// Whether a source runs another minor of etcd than the cluster will, because another package version was named since. An etcd raises the version of the data that it
/// serves: members with an older minor could not start with what they get from it.
fn is_stale(seen: &Observed, source: &SnapshotPod) -> bool {
    source.etcd.as_deref().is_some_and(|runs| !etcd_data::has_minor(seen.target().1, runs))
}

/// The restore whose Operation is driven on: from when its snapshot is known to be good until the cluster works with that data.
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

/// What is done about a restore.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RestoreSteps {
    /// Drive the Operation of this restore on.
    pub restore: Option<Restore>,
    /// Create these claims, unless they exist.
    pub claims: Vec<Value>,
    /// Create these pods.
    pub pods: Vec<Value>,
    /// Delete these pods, which have done their work or failed.
    pub tidy: Vec<SnapshotPod>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

impl RestoreSteps {
    /// The same for the source of a snapshot that is checked: one with another minor of etcd is replaced. One with a snapshot that is too new stays as it is: another attempt
    /// would fail in the same way.
    fn source(&mut self, seen: &Observed, name: &str, body: impl FnOnce() -> Option<Value>, now: Timestamp) {
        match task(seen, name) {
            Some(task) if is_stale(seen, task) => self.tidy.extend((!task.ending).then(|| task.clone())),
            Some(task) if too_new(seen, Some(task)).is_some() => {}
            _ => self.pod(seen, name, body, now),
        }
    }

    /// Creates that pod if it does not exist. One that failed is deleted after a while, so that it is created again.
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

/// What is to be done in the stage that a restore is in. One that is `held` back asks the gate for nothing while its snapshot is checked.
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
        // Sources of both may need the same volume with the snapshots: this one makes room.
        RestoreStage::Stopping | RestoreStage::Restoring => other.is_some() && task.job == SnapshotPodJob::Source,
        RestoreStage::Starting => true,
        // The claim is not deleted as long as there is a pod with it.
        RestoreStage::Cleaning => task.job != SnapshotPodJob::Clean || is_on_ending_volume(seen, task),
    };
    steps.tidy = left.filter(is_over).cloned().collect();
    let held = restoring.stage == RestoreStage::Checking && held;
    steps.restore = driven(seen, restoring).filter(|_| !held);
    let (names, spec, image, members) = (&seen.names, &seen.spec, &*seen.backup.image, members(seen));
    let target = PodInputs { names, spec, package: seen.target().1, image, members };
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
                // One that went away meanwhile comes back.
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
                    // What the pod restored is deleted with the claim. A pod with a claim that is being deleted is never scheduled, and the claim that it waits for would not be created again.
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

/// Whether it did its work. One that is being deleted may have done it on a volume that does not exist any more.
fn succeeded(task: &SnapshotPod) -> bool {
    !task.ending && matches!(task.state, SnapshotPodState::Succeeded(_))
}

/// The volume claim of a member that exists.
fn volume(seen: &Observed, number: u32) -> Option<&VolumeClaim> {
    let name = super::members::claim(&format!("etcd-{number}"));
    seen.claims.iter().find(|claim| claim.name == name)
}

/// Whether nothing is left of what the member had before. A volume whose claim is being deleted is removed with all that it holds, and no pod starts with it.
fn is_cleaned(seen: &Observed, restore: &Restore, number: u32) -> bool {
    task(seen, &restore.clean(number)).is_some_and(succeeded)
        || volume(seen, number).is_some_and(|volume| volume.ending)
}

/// Whether the claim of the member that a pod works for is being deleted.
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

/// The claim of a member, as its StatefulSet has it; none while there is no StatefulSet.
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

/// Nobody makes a pod of it.
fn scaled_down(seen: &Observed, component: ControlPlaneComponent) -> bool {
    let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
    seen.object(kind, component.binary()).is_none_or(|object| object["spec"]["replicas"] == 0)
}

/// The stage that follows when the snapshot is seen to be good: all components are stopped for it. All members begin with the snapshot, and all components with this
/// package version. Both stay so until it is restored, whatever is declared meanwhile.
fn stops(seen: &Observed, status: &mut ClusterStatus, restoring: Restoring, report: &SnapshotReport) -> Restoring {
    let members = seen.spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
    status.etcd = Some(EtcdStatus { members, serving: members, ..EtcdStatus::default() });
    // The data is not that of the snapshot before any more: that one can be asked for again.
    status.restore_followed = None;
    let (data_of, package_version) = (Some(report.at), Some(seen.target().0.to_owned()));
    Restoring { stage: RestoreStage::Stopping, data_of, package_version, ..restoring }
}

/// Goes on to the next stage when the present one is done. `settled` says whether all components are as they should be, and proven.
pub(super) fn set_conditions(
    seen: &Observed,
    decision: &Decision,
    status: &mut ClusterStatus,
    settled: bool,
    now: Timestamp,
) {
    if seen.spec.restore.is_none() {
        status.restore_followed = None;
    }
    let Some(restoring) = &seen.status.restoring else {
        if let Some(snapshot) = wanted(seen).filter(|_| !seen.spec.paused) {
            status.restoring = Some(Restoring {
                snapshot: snapshot.clone(),
                stage: RestoreStage::Checking,
                began: now,
                data_of: None,
                package_version: None,
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
        let source = source.filter(|source| !is_stale(seen, source));
        too_new(seen, source).map_or_else(|| why(source), |why| format!(": {why}"))
    };
    let mut more = String::new();
    if let Some((name, None)) = package(seen).filter(|_| down(seen)) {
        more = format!("; {}", package_missing_message(name));
    }
    if let Some(other) = instead(seen) {
        let (name, source) = (other.snapshot.clone(), task(seen, &Restore::of(&other).source()));
        more = match (checked(seen, source), &decision.preflight.restore_waits) {
            (Some(report), None) if !settled && !seen.spec.paused => {
                // What an attempt did to a volume counts for that attempt alone.
                let next = stops(seen, status, Restoring { began: now, ..other }, &report);
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
                // Nothing is stopped for a restore that would leave kubelets newer than their API server.
                (Some(held), _) => Some(held.clone()),
                // A paused cluster keeps everything as it is, what is recorded of its members included.
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
                // One that took the place of another.
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
                    data_of: restoring.data_of.unwrap_or(restoring.began),
                });
                status.restore_followed = Some(snapshot.clone());
                None
            } else {
                let first = decision.waiting.first().map(|(_, why)| why.clone());
                let why = first.or_else(|| status.waiting_for.clone()).unwrap_or_default();
                Some(format!("starting the components with the data of snapshot {snapshot}: {why}"))
            }
        }
        RestoreStage::Cleaning => {
            let left = (0..members(seen)).find(|number| !is_cleaned(seen, &restore, *number));
            // Another restore removes what this one leaves.
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
