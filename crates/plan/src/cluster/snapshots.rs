//! Snapshots of etcd: when one is due, what is known of those that are taken, and what is said about them.

pub mod cluster_keys;
pub mod pods;

use std::time::Duration;

use fleetwright_api::{
    ClusterStatus, Condition, ControlPlaneComponent, SnapshotStatus, Snapshots, Status, condition, names,
};
use jiff::{SignedDuration, Timestamp, fmt::strtime};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::members::VolumeClaim;
use super::observed::Observed;
use super::{datastore, etcd_data, restore};

/// What the names of pods that take snapshots begin with; the rest is the snapshot's own name.
const PREFIX: &str = "snapshot-";
/// A pod that did not end within this time is given up.
pub const SNAPSHOT_TIMEOUT: SignedDuration = SignedDuration::from_secs(3600);
/// A snapshot that is older is not the one to go back to after a change, or after the end of a soak.
pub(super) const PRE_UPGRADE_MAX_AGE: SignedDuration = SignedDuration::from_hours(1);
/// One that failed is tried again after this long, and after longer the longer none succeeds.
const RETRY_BACKOFF: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(60), SignedDuration::from_secs(1800));

/// What is known for snapshots, besides what is seen of the cluster.
#[derive(Clone, Debug)]
pub struct SnapshotInputs {
    /// The image of the operator, which its pods are made of.
    pub image: String,
    /// When the Cluster was made.
    pub created: Timestamp,
    /// Its generation.
    pub generation: Option<i64>,
    /// The value of its annotation [`names::SNAPSHOT`].
    pub asked: Option<String>,
    /// The pods that work on its data.
    pub tasks: Vec<SnapshotPod>,
    /// What is known of the Operation of the restore that is under way.
    pub restore: super::restore::RestoreOperation,
}

/// What a pod does to the data of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotPodJob {
    /// Takes a snapshot.
    Snapshot,
    /// Has a snapshot as an etcd, for those that restore it.
    Source,
    /// Restores the volume of a member.
    Member,
    /// Removes what a member had before.
    Clean,
}

impl SnapshotPodJob {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Snapshot, Self::Source, Self::Member, Self::Clean];

    /// The value of the label [`names::COMPONENT`] of its pods.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Source => "restore-source",
            Self::Member => "restore-member",
            Self::Clean => "restore-clean",
        }
    }

    /// The job with that label.
    pub fn of(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|job| job.as_str() == label)
    }
}

/// A pod that works on the data of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPod {
    /// Its name.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// What it does.
    pub job: SnapshotPodJob,
    /// Where it stands.
    pub state: SnapshotPodState,
    /// When it was made.
    pub created: Timestamp,
    /// The value of the annotation that asked for it.
    pub asked: Option<String>,
    /// The generation that asked for another package version, if it is for that.
    pub generation: Option<i64>,
    /// What else it is for, see [`SnapshotStatus::purpose`].
    pub purpose: Option<String>,
    /// It is going away.
    pub ending: bool,
    /// Its address, if it is ready.
    pub serves: Option<String>,
    /// What its first container said when it had done its work.
    pub said: Option<String>,
    /// The version of etcd that it runs, if it says so.
    pub etcd: Option<String>,
}

/// Where such a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPodState {
    /// It is under way; what it waits for, if it does.
    Runs(String),
    /// It is done, and said this.
    Succeeded(String),
    /// It failed then, and why.
    Failed(Timestamp, String),
}

impl SnapshotPod {
    /// The name of the snapshot that it is about.
    pub fn snapshot(&self) -> &str {
        self.pod.strip_prefix(PREFIX).unwrap_or(&self.pod)
    }

    /// Where it stands now: one that takes too long has failed.
    fn state(&self, now: Timestamp) -> SnapshotPodState {
        match &self.state {
            SnapshotPodState::Runs(waits) if now.duration_since(self.created) >= SNAPSHOT_TIMEOUT => {
                let since = self.created.checked_add(SNAPSHOT_TIMEOUT).unwrap_or(now);
                let waits = if waits.is_empty() { String::new() } else { format!(": {waits}") };
                SnapshotPodState::Failed(
                    since,
                    format!("timed out after {} minutes{waits}", SNAPSHOT_TIMEOUT.as_mins()),
                )
            }
            SnapshotPodState::Succeeded(said) => match serde_json::from_str::<SnapshotReport>(said) {
                Ok(_) => self.state.clone(),
                Err(error) => {
                    SnapshotPodState::Failed(self.created, format!("the pod did not report its snapshot: {error}"))
                }
            },
            state => state.clone(),
        }
    }
}

/// What a pod says when it has taken a snapshot, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Its name.
    pub name: String,
    /// When the data was so.
    pub at: Timestamp,
    /// How many bytes it has.
    pub bytes: u64,
    /// The revision of etcd.
    pub revision: i64,
    /// How many keys there are.
    pub keys: u64,
    /// All that are kept, newest first.
    #[serde(default)]
    pub kept: Vec<String>,
    /// The id of the key that it is encrypted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The version of etcd that the data needs to be read; none of a snapshot that an earlier version of Fleetwright took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
}

/// A snapshot that is to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSnapshot {
    /// Its name.
    pub name: String,
    /// The value of the annotation that asks for it.
    pub asked: Option<String>,
    /// The generation that asks for another package version, if it is for that.
    pub generation: Option<i64>,
    /// What else it is for, see [`SnapshotStatus::purpose`].
    pub purpose: Option<String>,
}

impl DueSnapshot {
    /// The pod that takes it.
    pub fn pod(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// A snapshot that is being taken: the objects for it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSnapshot {
    /// Which.
    pub wanted: DueSnapshot,
    /// The claim that it is kept by, where that is a volume.
    pub claim: Option<serde_json::Value>,
    /// The pod that takes it.
    pub pod: serde_json::Value,
}

/// Whether a snapshot was taken for the change that this generation of the Cluster asks for, and not long ago: a change that failed may be asked for again days later.
fn is_taken(seen: &Observed, now: Timestamp) -> bool {
    let last = seen.status.last_snapshot.as_ref().filter(|last| now.duration_since(last.at) < PRE_UPGRADE_MAX_AGE);
    let taken = last.and_then(|last| last.generation);
    taken.is_some() && taken == seen.backup.generation
}

/// Why a change of version waits: its snapshot is not there yet.
pub(super) fn refused(seen: &Observed, target: &str, now: Timestamp) -> Option<(&'static str, String)> {
    if etcd_data::begun(seen, target) || seen.spec.datastore.etcd.is_none() || is_taken(seen, now) {
        return None;
    }
    let failed = condition(&seen.status.conditions, names::SNAPSHOTS_RECENT)
        .filter(|one| one.reason == names::reasons::SNAPSHOT_FAILED);
    let why = match failed {
        Some(failed) => format!("the upgrade to {target} is waiting for a snapshot: {}", failed.message),
        None => format!("taking a snapshot before the upgrade to {target}"),
    };
    Some((names::reasons::SNAPSHOT_REQUIRED, why))
}

fn policy(seen: &Observed) -> Snapshots {
    seen.spec.snapshots.clone().unwrap_or_default()
}

/// The claim that snapshots are kept by, and the declared size, if the claim requests less.
fn volume_to_expand(seen: &Observed) -> Option<(&VolumeClaim, String)> {
    let policy = seen.spec.snapshots().filter(|policy| policy.s3.is_none())?;
    let size = policy.volume.unwrap_or_default().size.0;
    let claim = seen.claims.iter().find(|claim| claim.name == pods::CLAIM && !claim.ending)?;
    claim.is_below(&size).then_some((claim, size))
}

/// When the next one of the schedule is due, if there is a schedule.
fn scheduled(seen: &Observed) -> Option<Timestamp> {
    let every = policy(seen).every.0;
    if every.is_zero() {
        return None;
    }
    match &seen.status.last_snapshot {
        Some(last) => last.at.checked_add(every).ok(),
        // Those of a fleet that was made together are not taken together.
        None => seen.backup.created.checked_add(every.mul_f64(0.5 + start_offset(seen) / 2.0)).ok(),
    }
}

/// From nought to one, by the cluster's name.
fn start_offset(seen: &Observed) -> f64 {
    let text = &seen.names.namespace;
    let sum = text.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    f64::from(sum % 1000) / 1000.0
}

/// The failed attempt that counts, with when it is tried again.
fn failed(seen: &Observed, now: Timestamp) -> Option<(&SnapshotPod, Timestamp, String)> {
    let since = condition(&seen.status.conditions, names::SNAPSHOTS_RECENT)
        .filter(|one| one.reason == names::reasons::SNAPSHOT_FAILED)
        .map(|one| one.last_transition_time);
    let failures = seen.backup.tasks.iter().filter(|task| task.job == SnapshotPodJob::Snapshot).filter_map(|task| {
        let SnapshotPodState::Failed(at, why) = task.state(now) else { return None };
        // As long again as it fails already: twice as long each time.
        let wait =
            since.map_or(RETRY_BACKOFF.0, |since| at.duration_since(since)).clamp(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        Some((task, at.checked_add(wait).unwrap_or(now), why))
    });
    failures.max_by_key(|(_, again, _)| *again)
}

/// Who else asks for a snapshot, besides the schedule and a person.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotRequests<'a> {
    /// A change of the package version waits for it.
    pub for_change: bool,
    /// The end of a soak waits for one with this purpose.
    pub purpose: Option<&'a str>,
}

/// What is done about snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SnapshotSteps {
    /// Take this one.
    pub take: Option<NewSnapshot>,
    /// Delete these pods, which have done their work.
    pub tidy: Vec<SnapshotPod>,
    /// Let this volume claim request that size.
    pub expand: Option<(VolumeClaim, String)>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

/// Decides whether a snapshot is taken now, and which pods have done their work.
pub(super) fn decide_snapshots(seen: &Observed, asks: SnapshotRequests<'_>, now: Timestamp) -> SnapshotSteps {
    let expand =
        volume_to_expand(seen).filter(|(claim, _)| claim.expandable).map(|(claim, size)| (claim.clone(), size));
    let mut steps = SnapshotSteps { expand, ..SnapshotSteps::default() };
    let tasks = || seen.backup.tasks.iter().filter(|task| task.job == SnapshotPodJob::Snapshot);
    let last = seen.status.last_snapshot.as_ref().map(|last| last.name.as_str());
    let running = tasks().any(|task| matches!(task.state(now), SnapshotPodState::Runs(_)) || task.ending);
    let told = |task: &&SnapshotPod| {
        matches!(task.state(now), SnapshotPodState::Succeeded(_)) && last >= Some(task.snapshot())
    };
    steps.tidy.extend(tasks().filter(|task| !task.ending).filter(told).cloned());
    let news =
        tasks().any(|task| matches!(task.state(now), SnapshotPodState::Succeeded(_)) && last < Some(task.snapshot()));
    let failure = failed(seen, now);
    if running {
        let over =
            tasks().filter_map(|task| task.created.checked_add(SNAPSHOT_TIMEOUT).ok()).filter(|over| *over > now).min();
        return SnapshotSteps { next: over, ..steps };
    }
    // While one is to be restored no change begins, and so none is taken for a change.
    let asks = if restore::holds(seen) { SnapshotRequests::default() } else { asks };
    let Some(due) = due(seen, asks, now) else { return steps };
    let again = failure.as_ref().map(|(_, again, _)| *again);
    let at = due.max(again.unwrap_or(due));
    if at > now {
        return SnapshotSteps { next: Some(at), ..steps };
    }
    // The one before has told what it had to tell, and its name must be free.
    steps.tidy.extend(failure.map(|(task, ..)| task.clone()).filter(|task| !task.ending));
    let quorum = datastore::quorum(seen, now);
    if news || !steps.tidy.is_empty() || quorum.is_none_or(|quorum| quorum.missing) {
        return steps;
    }
    let name = strtime::format("%Y%m%d-%H%M%S", now).unwrap_or_default();
    if last >= Some(name.as_str()) {
        // One a second, so that each has a name of its own, and the later one the greater.
        return SnapshotSteps { next: now.checked_add(SignedDuration::from_secs(1)).ok(), ..steps };
    }
    let wanted = DueSnapshot {
        name,
        asked: seen.backup.asked.clone().filter(|asked| seen.status.snapshotted.as_ref() != Some(asked)),
        generation: seen.backup.generation.filter(|_| asks.for_change),
        purpose: asks.purpose.map(str::to_owned),
    };
    // What etcd runs reads what it wrote.
    let running = seen.workloads.get(&ControlPlaneComponent::Etcd).and_then(|workload| workload.package.as_deref());
    let Some(running) = running else { return steps };
    // So does one that would go on with its data.
    let other = || etcd_data::compatible_package(seen, seen.target()).ok().map(|(_, spec)| spec);
    let Some(package) = seen.package(running).or_else(other) else { return steps };
    let ground = pods::PodInputs {
        names: &seen.names,
        spec: &seen.spec,
        package,
        image: &seen.backup.image,
        members: super::datastore::record(seen).members,
    };
    steps.take = Some(NewSnapshot { claim: ground.claim(), pod: ground.snapshot(&wanted), wanted });
    steps
}

/// When the next one is due; none if nobody wants one.
fn due(seen: &Observed, asks: SnapshotRequests<'_>, now: Timestamp) -> Option<Timestamp> {
    seen.status.package_version.as_ref()?;
    seen.spec.datastore.etcd.as_ref()?;
    if restore::takes_over(seen) {
        return None;
    }
    let asked = seen.backup.asked.as_ref().is_some_and(|asked| seen.status.snapshotted.as_ref() != Some(asked));
    if asked || asks.for_change || asks.purpose.is_some() { Some(now) } else { scheduled(seen) }
}

/// Writes down what was taken, and whether that is as recent as it should be.
pub(super) fn set_conditions(seen: &Observed, status: &mut ClusterStatus, now: Timestamp) {
    let last = seen.status.last_snapshot.as_ref().map(|last| last.name.as_str());
    let tasks =
        seen.backup.tasks.iter().filter(|task| task.job == SnapshotPodJob::Snapshot && last < Some(task.snapshot()));
    let reports = tasks.filter_map(|task| match task.state(now) {
        SnapshotPodState::Succeeded(said) => {
            serde_json::from_str::<SnapshotReport>(&said).ok().map(|report| (task, report))
        }
        _ => None,
    });
    if let Some((task, report)) = reports.max_by_key(|(_, report)| report.at) {
        status.last_snapshot = Some(SnapshotStatus {
            name: report.name,
            at: report.at,
            size: Some(Quantity(report.bytes.to_string())),
            revision: Some(report.revision),
            generation: task.generation,
            purpose: task.purpose.clone(),
            checked: true,
            key_id: report.key_id,
            etcd: report.etcd,
        });
        status.snapshots = report.kept.into_iter().take(100).collect();
        status.snapshotted = task.asked.clone().or(status.snapshotted.take());
    }
    if seen.spec.datastore.etcd.is_some() && status.package_version.is_some() {
        let recent = recent(seen, status, now);
        status.conditions.push(recent);
    }
}

fn recent(seen: &Observed, status: &ClusterStatus, now: Timestamp) -> Condition {
    let said = |status, reason, message| super::status::condition_of(names::SNAPSHOTS_RECENT, status, reason, message);
    let fresh = status.last_snapshot != seen.status.last_snapshot;
    let before = condition(&seen.status.conditions, names::SNAPSHOTS_RECENT)
        .filter(|one| one.reason == names::reasons::SNAPSHOT_FAILED && !fresh);
    if let Some((_, again, why)) = failed(seen, now).filter(|_| !fresh) {
        let message = format!("{why}; retrying at {}", strtime::format("%FT%TZ", again).unwrap_or_default());
        return said(Status::False, names::reasons::SNAPSHOT_FAILED, message);
    }
    if let Some(before) = before {
        return said(Status::False, names::reasons::SNAPSHOT_FAILED, before.message.clone());
    }
    let every = policy(seen).every.0;
    let last = match &status.last_snapshot {
        Some(last) => format!("last snapshot: {} with the data of {}", last.name, last.at),
        None => "no snapshot was taken yet".to_owned(),
    };
    let last = match volume_to_expand(seen).filter(|(claim, _)| !claim.expandable) {
        Some((claim, size)) => format!(
            "{last}. PersistentVolumeClaim {}/{} stays at {} instead of {size}: its StorageClass does not allow expansion. Set allowVolumeExpansion of the class to true, or \
             use spec.snapshots.s3",
            seen.names.namespace, claim.name, claim.size
        ),
        None => last,
    };
    let overdue = scheduled(seen).filter(|_| !fresh).and_then(|due| due.checked_add(grace(every)).ok());
    match overdue {
        Some(overdue) if overdue <= now => said(Status::False, names::reasons::OVERDUE, last),
        _ => said(Status::True, names::reasons::ON_SCHEDULE, last),
    }
}

/// One that is late by less than that is not overdue.
fn grace(every: Duration) -> Duration {
    (every / 2).max(Duration::from_secs(600))
}
