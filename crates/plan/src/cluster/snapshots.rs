//! Snapshots of etcd: when one is due, the state of the pods that take them, and the conditions about them.

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

/// Prefix of the names of snapshot pods; the rest is the name of the snapshot.
const PREFIX: &str = "snapshot-";
/// A pod that did not end within this time counts as failed.
pub const SNAPSHOT_TIMEOUT: SignedDuration = SignedDuration::from_secs(3600);
/// Maximum age of a snapshot that serves as the way back for a change, or for the end of a soak.
pub(super) const PRE_UPGRADE_MAX_AGE: SignedDuration = SignedDuration::from_hours(1);
/// First and longest backoff of a failed snapshot; it doubles until one succeeds.
const RETRY_BACKOFF: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(60), SignedDuration::from_secs(1800));

/// Inputs for snapshots that are not observed from the control plane.
#[derive(Clone, Debug)]
pub struct SnapshotInputs {
    /// Image of the operator, which snapshot pods run.
    pub image: String,
    /// Creation time of the Cluster.
    pub created: Timestamp,
    /// Generation of the Cluster.
    pub generation: Option<i64>,
    /// Value of the annotation [`names::SNAPSHOT`] of the Cluster.
    pub asked: Option<String>,
    /// The pods that work on the cluster's data.
    pub tasks: Vec<SnapshotPod>,
    /// State of the Operation of the restore in progress.
    pub restore: super::restore::RestoreOperation,
}

/// Job of a pod on the data of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotPodJob {
    /// Takes a snapshot.
    Snapshot,
    /// Serves a snapshot as an etcd, from which members are restored.
    Source,
    /// Restores the volume of a member.
    Member,
    /// Removes the old data of a member.
    Clean,
}

impl SnapshotPodJob {
    /// All jobs.
    pub const ALL: [Self; 4] = [Self::Snapshot, Self::Source, Self::Member, Self::Clean];

    /// Value of the label [`names::COMPONENT`] of the job's pods.
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
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Job of the pod.
    pub job: SnapshotPodJob,
    /// State of the pod.
    pub state: SnapshotPodState,
    /// Creation time of the pod.
    pub created: Timestamp,
    /// Value of the annotation that requested the snapshot.
    pub asked: Option<String>,
    /// Generation that changed the package version, if the snapshot is for that change.
    pub generation: Option<i64>,
    /// Other purpose of the snapshot, see [`SnapshotStatus::purpose`].
    pub purpose: Option<String>,
    /// Whether the pod is being deleted.
    pub ending: bool,
    /// Address of the pod, if it is ready.
    pub serves: Option<String>,
    /// Termination message of the first container, if it succeeded.
    pub said: Option<String>,
    /// Version of etcd that the pod runs, if it is annotated.
    pub etcd: Option<String>,
}

/// State of a snapshot pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPodState {
    /// Running; the reason if it waits.
    Runs(String),
    /// Succeeded, with its termination message.
    Succeeded(String),
    /// Failed, with the time and the reason.
    Failed(Timestamp, String),
}

impl SnapshotPod {
    /// Name of the snapshot that the pod works on.
    pub fn snapshot(&self) -> &str {
        self.pod.strip_prefix(PREFIX).unwrap_or(&self.pod)
    }

    /// State at that time: a pod that exceeds [`SNAPSHOT_TIMEOUT`] has failed.
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

/// Termination message of a pod that has taken a snapshot, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Name of the snapshot.
    pub name: String,
    /// Time of the data.
    pub at: Timestamp,
    /// Size in bytes.
    pub bytes: u64,
    /// Revision of etcd.
    pub revision: i64,
    /// Number of keys.
    pub keys: u64,
    /// All snapshots in the store, newest first.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Id of the encryption key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Version of etcd that can read the data; none for a snapshot that an earlier version of Fleetwright took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
}

/// A snapshot that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSnapshot {
    /// Name of the snapshot.
    pub name: String,
    /// Value of the annotation that requested the snapshot.
    pub asked: Option<String>,
    /// Generation that changed the package version, if the snapshot is for that change.
    pub generation: Option<i64>,
    /// Other purpose of the snapshot, see [`SnapshotStatus::purpose`].
    pub purpose: Option<String>,
}

impl DueSnapshot {
    /// Name of the pod that takes the snapshot.
    pub fn pod(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// The objects to create for a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSnapshot {
    /// The snapshot.
    pub wanted: DueSnapshot,
    /// The claim of the volume for snapshots, if the store is a volume.
    pub claim: Option<serde_json::Value>,
    /// The pod that takes the snapshot.
    pub pod: serde_json::Value,
}

/// Whether a recent snapshot exists for the change that this generation of the Cluster declares. Only a recent one counts: a failed change may be
/// retried days later.
fn is_taken(seen: &Observed, now: Timestamp) -> bool {
    let last = seen.status.last_snapshot.as_ref().filter(|last| now.duration_since(last.at) < PRE_UPGRADE_MAX_AGE);
    let taken = last.and_then(|last| last.generation);
    taken.is_some() && taken == seen.backup.generation
}

/// Why a change of version waits for its snapshot.
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

/// The claim of the volume for snapshots, and the declared size, if the claim requests less.
pub(super) fn volume_to_expand(seen: &Observed) -> Option<(&VolumeClaim, String)> {
    let policy = seen.spec.snapshots().filter(|policy| policy.s3.is_none())?;
    let size = policy.volume.unwrap_or_default().size.0;
    let claim = seen.claims.iter().find(|claim| claim.name == pods::CLAIM && !claim.ending)?;
    claim.is_below(&size).then_some((claim, size))
}

/// When the next scheduled snapshot is due, if there is a schedule.
fn scheduled(seen: &Observed) -> Option<Timestamp> {
    let every = policy(seen).every.0;
    if every.is_zero() {
        return None;
    }
    match &seen.status.last_snapshot {
        Some(last) => last.at.checked_add(every).ok(),
        // Clusters that were created together do not take their snapshots together.
        None => seen.backup.created.checked_add(every.mul_f64(0.5 + start_offset(seen) / 2.0)).ok(),
    }
}

/// Number from 0 to 1, derived from the cluster's name.
fn start_offset(seen: &Observed) -> f64 {
    let text = &seen.names.namespace;
    let sum = text.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    f64::from(sum % 1000) / 1000.0
}

/// The newest failed attempt, the time of the next attempt, and the reason.
fn failed(seen: &Observed, now: Timestamp) -> Option<(&SnapshotPod, Timestamp, String)> {
    let since = condition(&seen.status.conditions, names::SNAPSHOTS_RECENT)
        .filter(|one| one.reason == names::reasons::SNAPSHOT_FAILED)
        .map(|one| one.last_transition_time);
    let failures = seen.backup.tasks.iter().filter(|task| task.job == SnapshotPodJob::Snapshot).filter_map(|task| {
        let SnapshotPodState::Failed(at, why) = task.state(now) else { return None };
        // The backoff equals the time since the first failure, so it doubles with each attempt.
        let wait =
            since.map_or(RETRY_BACKOFF.0, |since| at.duration_since(since)).clamp(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        Some((task, at.checked_add(wait).unwrap_or(now), why))
    });
    failures.max_by_key(|(_, again, _)| *again)
}

/// Requests for a snapshot, besides the schedule and the annotation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotRequests<'a> {
    /// A change of the package version waits for a snapshot.
    pub for_change: bool,
    /// The end of a soak waits for a snapshot with this purpose.
    pub purpose: Option<&'a str>,
}

/// Steps for snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SnapshotSteps {
    /// Snapshot to take now.
    pub take: Option<NewSnapshot>,
    /// Pods to delete, which have succeeded or failed.
    pub tidy: Vec<SnapshotPod>,
    /// Volume claim to expand, and its new size.
    pub expand: Option<(VolumeClaim, String)>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Decides whether to take a snapshot now, and which pods to delete.
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
    // During a restore no change starts, so no snapshot is taken for a change.
    let asks = if restore::holds(seen) { SnapshotRequests::default() } else { asks };
    let Some(due) = due(seen, asks, now) else { return steps };
    let again = failure.as_ref().map(|(_, again, _)| *again);
    let at = due.max(again.unwrap_or(due));
    if at > now {
        return SnapshotSteps { next: Some(at), ..steps };
    }
    // The failed pod before this one has been reported, and the new pod needs its name.
    steps.tidy.extend(failure.map(|(task, ..)| task.clone()).filter(|task| !task.ending));
    let quorum = datastore::quorum(seen, now);
    if news || !steps.tidy.is_empty() || quorum.is_none_or(|quorum| quorum.missing) {
        return steps;
    }
    let name = strtime::format("%Y%m%d-%H%M%S", now).unwrap_or_default();
    if last >= Some(name.as_str()) {
        // At most one snapshot per second: names are unique and sorted by time.
        return SnapshotSteps { next: now.checked_add(SignedDuration::from_secs(1)).ok(), ..steps };
    }
    let wanted = DueSnapshot {
        name,
        asked: seen.backup.asked.clone().filter(|asked| seen.status.observed_snapshot_request.as_ref() != Some(asked)),
        generation: seen.backup.generation.filter(|_| asks.for_change),
        purpose: asks.purpose.map(str::to_owned),
    };
    // The etcd version that runs can read its own data.
    let running = seen.workloads.get(&ControlPlaneComponent::Etcd).and_then(|workload| workload.package.as_deref());
    let Some(running) = running else { return steps };
    // So can an etcd version that can continue with this data.
    let other = || etcd_data::compatible_package(seen, seen.target()).ok().map(|(_, spec)| spec);
    let Some(package) = seen.package(running).or_else(other) else { return steps };
    let ground = pods::PodInputs {
        names: &seen.names,
        spec: &seen.spec,
        package,
        image: &seen.backup.image,
        members: super::datastore::record(seen).members,
        last: seen.status.last_snapshot.as_ref(),
    };
    steps.take = Some(NewSnapshot { claim: ground.claim(), pod: ground.snapshot(&wanted), wanted });
    steps
}

/// When the next snapshot is due; `None` if there is no schedule and no request.
fn due(seen: &Observed, asks: SnapshotRequests<'_>, now: Timestamp) -> Option<Timestamp> {
    seen.status.package_version.as_ref()?;
    seen.spec.datastore.etcd.as_ref()?;
    if restore::takes_over(seen) {
        return None;
    }
    let asked =
        seen.backup.asked.as_ref().is_some_and(|asked| seen.status.observed_snapshot_request.as_ref() != Some(asked));
    if asked || asks.for_change || asks.purpose.is_some() { Some(now) } else { scheduled(seen) }
}

/// Records the snapshots, and whether the newest one is recent enough.
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
        status.observed_snapshot_request = task.asked.clone().or(status.observed_snapshot_request.take());
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

/// A snapshot that is late by less than this is not overdue.
fn grace(every: Duration) -> Duration {
    (every / 2).max(Duration::from_secs(600))
}
