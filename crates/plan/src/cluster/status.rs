//! The status of a cluster.

use fleetwright_api::{
    CertificateStatus, ClusterComponentStatus, ClusterPhase, ClusterStatus, Condition, ControlPlaneComponent,
    FinishingUpgrade, ReplicaStatus, Status, condition, is_true, names,
};
use fleetwright_wire::text::first_chars;
use jiff::{SignedDuration, Timestamp};

use super::datastore;
use super::decide::Decision;
use super::extensions;
use super::members::NextMemberStep;
use super::observed::Observed;
use super::proofs::proven_at;
use super::rotation::{expiry, followed, progress_message};
use super::step::CurrentVersion;
use super::upgrade_path::VersionNode;
use super::{etcd_data, restore, snapshots, soak};

/// Minimum interval at which repeated successful proofs are written: the status of a fleet without changes is not written all the time.
const STATUS_REFRESH_INTERVAL: SignedDuration = SignedDuration::from_hours(1);

/// Longest value of the annotation that requests a retry.
const MAX_RETRY: usize = 256;

/// Longest message about what a cluster waits for. The condition has the full text.
const MAX_WAITING: usize = 1024;

/// Message of a cluster that is marked for deletion and paused.
const DELETION_PAUSED: &str = "deletion is blocked by spec.paused: set spec.paused to false to continue";

/// Inputs of the status besides what was observed.
#[derive(Clone, Debug, Default)]
pub struct StatusInputs {
    /// Generation that the pass acted on.
    pub generation: Option<i64>,
    /// Expiry of each certificate.
    pub certificates: Vec<CertificateStatus>,
    /// Whether `spec.paused` is true.
    pub paused: bool,
    /// Whether the cluster is marked for deletion, and only `spec.paused` blocks the deletion.
    pub deletion_paused: bool,
    /// Whether the cluster is marked for deletion and protected.
    pub protected: bool,
    /// Why the deletion of a cluster that is marked for deletion is blocked: the reason and its message.
    pub held: Option<(&'static str, String)>,
}

/// The status of a cluster that is not being deleted.
pub fn status(seen: &Observed, decision: &Decision, outlook: &StatusInputs, now: Timestamp) -> ClusterStatus {
    let before = &seen.status;
    if before.phase.is_some() && !outlook.paused && decision.keys.silent(&before.keys) {
        return ClusterStatus { keys: decision.keys.record.clone(), ..before.clone() };
    }
    // An external etcd is not reported: it is not managed here.
    let ours = |one: &ControlPlaneComponent| *one != ControlPlaneComponent::Etcd || seen.spec.datastore.etcd.is_some();
    let all = ControlPlaneComponent::ALL.into_iter().filter(ours);
    let components: Vec<_> = all.filter_map(|one| component(seen, decision, one, now)).collect();
    let settled = decision.waiting.is_empty()
        && !decision.namespace
        && (!decision.keys.creates() || outlook.paused)
        && decision.keys.blocked.is_none()
        && decision.certificates.is_empty()
        && !decision.desired.is_empty();
    let proven = proven(seen);
    let created = before.package_version.is_some();
    let ready = settled || (created && proven.0 > 0 && proven.0 == proven.1);
    let protected = "deletion is blocked by spec.deletionProtection: set it to false to continue; until then the cluster keeps running";
    let refused = decision.refused.as_ref().map(|(_, why)| why.clone());
    let blocked = decision.keys.blocked.as_ref().map(|(_, why)| why.clone());
    // The components were not compared: only the keys were checked, or the package version of the cluster was deleted.
    let partial = created && decision.desired.is_empty();
    let unseen = partial && decision.refused.is_none();
    let waiting = blocked
        .or(refused)
        .or_else(|| waiting(decision, settled))
        .or_else(|| outlook.protected.then(|| protected.to_owned()));
    let waiting = waiting.or_else(|| outlook.held.as_ref().map(|(_, why)| why.clone()));
    let waiting = if outlook.deletion_paused { Some(DELETION_PAUSED.to_owned()) } else { waiting };
    let soak = soak(seen, decision, settled && !partial && !outlook.paused, now);
    let changes = !partial && before.package_version.as_deref() != Some(&decision.package);
    let failed = decision.failed.as_ref().or_else(|| super::stage::failed(seen)).cloned();
    let phase = match () {
        () if settled && soak.emulates.is_some() => ClusterPhase::Soaking,
        () if settled && soak.finishing.is_none() => ClusterPhase::Ready,
        () if decision.soak.failed => ClusterPhase::Degraded,
        () if decision.keys.blocked.is_some() => ClusterPhase::Degraded,
        () if !created => ClusterPhase::Creating,
        () if failed.is_some() => ClusterPhase::RollingBack,
        () if changes && before.previous.as_deref() == Some(&decision.package) => ClusterPhase::RollingBack,
        () if changes || soak.finishing.is_some() => ClusterPhase::Upgrading,
        () if ready => ClusterPhase::Repairing,
        () => ClusterPhase::Degraded,
    };
    let (status, reason, message) = match (ready, proven) {
        (true, (some, all)) => (
            Status::True,
            names::reasons::VERIFIED,
            format!(
                "verified on {some}/{all} API servers: create, watch, get, delete; controller-manager and scheduler active"
            ),
        ),
        (false, _) if !created => (
            Status::False,
            names::reasons::CREATING,
            waiting.clone().unwrap_or_else(|| "creating the control plane".to_owned()),
        ),
        (false, (0, _)) if is_true(&before.conditions, names::READY) && being_proven(seen) => (
            Status::True,
            names::reasons::PARTIALLY_VERIFIED,
            format!("verifying new API servers; {}", waiting.clone().unwrap_or_default()),
        ),
        (false, (some, all)) if some > 0 => (
            Status::True,
            names::reasons::PARTIALLY_VERIFIED,
            format!("verified on {some}/{all} API servers; {}", waiting.clone().unwrap_or_default()),
        ),
        (false, _) => (
            Status::False,
            names::reasons::NOT_VERIFIED,
            waiting.clone().unwrap_or_else(|| "no API server is verified".to_owned()),
        ),
    };
    let mut conditions = vec![
        accepted(seen, decision, outlook),
        condition(&before.conditions, names::UPGRADABLE)
            .filter(|_| unseen)
            .cloned()
            .unwrap_or_else(|| upgradable(decision)),
        reversible(seen, before, &soak),
        condition_of(names::READY, status, reason, message),
        datastore::healthy(seen, now),
        certificates(seen, decision, now),
    ];
    let known = || condition(&before.conditions, names::MEMBERS_UP_TO_DATE).cloned();
    conditions.extend(datastore::as_declared(seen, decision).or_else(known));
    if unseen {
        conditions.extend(condition(&before.conditions, names::UPGRADE_COMPLETABLE).cloned());
    } else if let Some((status, reason, message)) = decision.soak.condition.clone() {
        conditions.push(condition_of(names::UPGRADE_COMPLETABLE, status, reason, message));
    }
    if partial {
        conditions.extend(condition(&before.conditions, names::EXTENSIONS_READY).cloned());
    } else if created || settled {
        let (status, reason, message) = extensions::condition(&decision.extensions);
        conditions.push(condition_of(names::EXTENSIONS_READY, status, &reason, message));
    }
    let package_version = if settled { Some(decision.package.clone()) } else { before.package_version.clone() };
    let mut status = ClusterStatus {
        observed_generation: outlook.generation,
        phase: Some(phase),
        extensions: if partial { before.extensions.clone() } else { decision.extensions.statuses.clone() },
        waiting_for: waiting,
        endpoint: seen.endpoint.clone(),
        // Never the name alone: a record without uid marks a namespace of an earlier version.
        namespace: match &seen.namespace {
            Some(_) => Some(seen.names.namespace.clone()),
            None => before.namespace.clone(),
        },
        namespace_uid: seen.namespace.clone().or_else(|| before.namespace_uid.clone()),
        kubernetes: package_version.as_deref().and_then(|name| kubernetes(seen, name)),
        package_version,
        previous: match &before.package_version {
            Some(name) if settled && *name != decision.package => Some(name.clone()),
            _ => before.previous.clone(),
        },
        emulates: soak.emulates,
        soak_since: soak.since,
        soak_until: soak.until,
        finishing: soak.finishing,
        progress: match unseen {
            true => before.progress.clone(),
            false => decision.progress.clone().filter(|_| failed.is_none()),
        },
        failed,
        observed_retry: seen.retry.as_ref().map(|retry| first_chars(retry, MAX_RETRY).to_owned()),
        keys: decision.keys.record.clone(),
        authorities: followed(seen, decision),
        rotation: decision.rotation.clone(),
        components,
        etcd: match &decision.members {
            NextMemberStep::Record(record) => Some(record.clone()),
            _ => decision.etcd.clone().or_else(|| before.etcd.clone()),
        },
        replaced: decision.heal.announce.clone().or_else(|| before.replaced.clone()),
        certificates: outlook.certificates.clone(),
        conditions,
        ..before.clone()
    };
    snapshots::set_conditions(seen, &mut status, now);
    restore::set_conditions(seen, decision, &mut status, settled, now);
    if let Some(etcd) = &mut status.etcd {
        let opened = etcd_data::opened_by(seen);
        etcd.version = opened.map(|opened| opened.version.to_owned());
        etcd.package_version = opened.and_then(|opened| opened.package).map(str::to_owned);
    }
    since(&mut status.conditions, &before.conditions, outlook.generation, now);
    if outlook.paused { paused(status, before) } else { status }
}

/// The version of Kubernetes of the cluster's package version from now on. It is recorded, because the package version can be deleted.
fn kubernetes(seen: &Observed, name: &str) -> Option<String> {
    let present = CurrentVersion::of(seen).filter(|present| present.name == name).and_then(|present| present.stop());
    let target = seen.target();
    // A restore may have changed the cluster to another package version than spec names now.
    let other = (target.0 == name).then_some(target.1).or_else(|| seen.package(name));
    present.map(|stop| stop.kubernetes).or(other.map(|spec| &*spec.kubernetes)).map(str::to_owned)
}

/// The status of a paused cluster reports what is observed. Fields that record a decision before it is carried out stay unchanged: no soak starts or
/// ends, no stage of a change, rotation or restore starts, and no request of a person counts as followed. The time of a stage starts again after the
/// pause, because nothing was done for the stage during it.
fn paused(status: ClusterStatus, before: &ClusterStatus) -> ClusterStatus {
    let before = before.clone();
    ClusterStatus {
        package_version: before.package_version,
        kubernetes: before.kubernetes,
        previous: before.previous,
        emulates: before.emulates,
        soak_since: before.soak_since.or(status.soak_since),
        finishing: before.finishing,
        progress: None,
        failed: before.failed,
        observed_retry: before.observed_retry,
        keys: before.keys,
        authorities: before.authorities,
        rotation: before.rotation,
        etcd: before.etcd,
        replaced: before.replaced,
        restored: before.restored,
        restoring: before.restoring,
        observed_restore: before.observed_restore,
        ..status
    }
}

/// The status of a cluster that is marked for deletion and paused, of which nothing else can be observed.
pub fn deletion_paused(before: &ClusterStatus, generation: Option<i64>, now: Timestamp) -> ClusterStatus {
    failed_pass_status(before, names::reasons::PAUSED, DELETION_PAUSED, generation, now)
}

/// The status after a failed pass: the last known state, and the reason of the failure.
pub fn failed_pass_status(
    before: &ClusterStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> ClusterStatus {
    not_accepted(before, before, (reason, message), generation, now)
}

/// The status with the reason why not all of the spec was applied. The previous conditions give the time of the transition.
pub fn not_accepted(
    status: &ClusterStatus,
    before: &ClusterStatus,
    (reason, message): (&str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> ClusterStatus {
    let mut conditions = status.conditions.clone();
    conditions.retain(|condition| condition.type_ != names::ACCEPTED);
    let mut accepted = vec![condition_of(names::ACCEPTED, Status::False, reason, message.to_owned())];
    since(&mut accepted, &before.conditions, generation, now);
    conditions.splice(0..0, accepted);
    ClusterStatus {
        phase: Some(status.phase.unwrap_or(ClusterPhase::Creating)),
        waiting_for: Some(first_chars(message, MAX_WAITING).to_owned()),
        conditions,
        ..status.clone()
    }
}

/// The fields of the status about a soak.
struct RecordedSoak {
    emulates: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    finishing: Option<FinishingUpgrade>,
}

/// The fields of the status about a soak after this pass. The end of a soak is recorded before anything is done for it. While nothing may start or
/// end, or not everything is as declared, the fields stay unchanged.
fn soak(seen: &Observed, decision: &Decision, settled: bool, now: Timestamp) -> RecordedSoak {
    let before = &seen.status;
    let arrived = settled && before.package_version.as_deref() != Some(&decision.package);
    let finishing = before.finishing.clone().filter(|_| !soak::finished(seen, settled));
    let none = |finishing| RecordedSoak { emulates: None, since: None, until: None, finishing };
    match (&decision.emulates, &decision.soak.ends) {
        (Some(minor), _) if arrived && before.emulates.as_ref() != Some(minor) => {
            let soak = SignedDuration::try_from(seen.spec.upgrade.soak.0).unwrap_or(SignedDuration::MAX);
            let until = now.checked_add(soak).unwrap_or(Timestamp::MAX);
            RecordedSoak { emulates: Some(minor.clone()), since: Some(now), until: Some(until), finishing }
        }
        // The rollback is complete: there is nothing to roll back to.
        (None, _) if arrived => none(finishing),
        (_, Some(ends)) if settled => none(Some(ends.clone())),
        _ => {
            let times = soak::times(seen, now);
            let (since, until) = (times.map(|(since, _)| since), times.map(|(_, until)| until));
            RecordedSoak { emulates: before.emulates.clone(), since, until, finishing }
        }
    }
}

fn certificates(seen: &Observed, decision: &Decision, now: Timestamp) -> Condition {
    let valid = |status, reason, message| condition_of(names::CERTIFICATES_VALID, status, reason, message);
    if let Some((reason, why)) = &decision.keys.blocked {
        return valid(Status::False, reason, why.clone());
    }
    let made = decision.keys.generate.iter().chain(&decision.keys.restore).next();
    let expiry = expiry(seen, now);
    let expired = expiry.as_ref().is_some_and(|(reason, _)| *reason == names::reasons::AUTHORITY_EXPIRED);
    match (decision.certificates.first(), made, &decision.rotation) {
        (Some((wanted, why)), ..) => {
            let message = format!("issuing certificate {}: {}", wanted.secret, why.as_str());
            valid(Status::False, names::reasons::ROTATING, message)
        }
        (None, Some(key), _) => {
            let message = format!("creating Secret {}", key.secret());
            valid(Status::False, names::reasons::ROTATING, message)
        }
        (None, None, Some(rotation)) => valid(
            if expired { Status::False } else { Status::True },
            names::reasons::ROTATING,
            progress_message(rotation, decision.rotation_waits.as_deref(), seen.spec.certificates.overlap),
        ),
        (None, None, None) => match expiry {
            Some((reason, message)) => valid(Status::False, reason, message),
            None => valid(
                Status::True,
                names::reasons::ALL_VALID,
                "all certificates exist, and none is due for renewal".to_owned(),
            ),
        },
    }
}

fn upgradable(decision: &Decision) -> Condition {
    match &decision.refused {
        Some((reason, why)) if *reason == names::reasons::PREFLIGHT_CHECKS_RUNNING => {
            condition_of(names::UPGRADABLE, Status::Unknown, reason, why.clone())
        }
        Some((reason, why)) => condition_of(names::UPGRADABLE, Status::False, reason, why.clone()),
        None => condition_of(
            names::UPGRADABLE,
            Status::True,
            names::reasons::NO_BLOCKERS,
            "nothing blocks the change to spec.packageVersion".to_owned(),
        ),
    }
}

fn reversible(seen: &Observed, before: &ClusterStatus, soak: &RecordedSoak) -> Condition {
    let reversible = |status, reason, message| condition_of(names::ROLLBACK_POSSIBLE, status, reason, message);
    let Some(previous) = &before.previous else {
        let message = "the cluster had no other package version".to_owned();
        return reversible(Status::False, names::reasons::NO_PREVIOUS_VERSION, message);
    };
    let minor = |name: &str| seen.package(name).map(|spec| VersionNode::of("", spec).minor().to_owned());
    let has = CurrentVersion::of(seen).and_then(|present| present.stop()).map(|stop| stop.minor().to_owned());
    let same = has.is_some() && has == minor(previous);
    match (&soak.emulates, soak.until) {
        (Some(emulated), Some(until)) if Some(emulated) == minor(previous).as_ref() => {
            let message =
                format!("emulating {emulated} at least until {until}: a rollback to {previous} keeps all writes");
            reversible(Status::True, names::reasons::STORAGE_COMPATIBLE, message)
        }
        _ if same => {
            let message = format!("{previous} has the same minor: a rollback to it keeps all writes");
            reversible(Status::True, names::reasons::STORAGE_COMPATIBLE, message)
        }
        _ => {
            let message = format!("the soak is over: going back to {previous} requires restoring a snapshot");
            reversible(Status::False, names::reasons::SOAK_ENDED, message)
        }
    }
}

fn accepted(seen: &Observed, decision: &Decision, outlook: &StatusInputs) -> Condition {
    if outlook.deletion_paused {
        return condition_of(names::ACCEPTED, Status::False, names::reasons::PAUSED, DELETION_PAUSED.to_owned());
    }
    if let Some((reason, why)) = &outlook.held {
        return condition_of(names::ACCEPTED, Status::False, reason, why.clone());
    }
    if let Some(why) = &decision.extensions.refused {
        return condition_of(names::ACCEPTED, Status::False, names::reasons::INVALID_EXTENSION, why.clone());
    }
    if let Some(why) = restore::unusable(seen).filter(|_| !outlook.paused) {
        return condition_of(names::ACCEPTED, Status::False, names::reasons::SNAPSHOT_UNUSABLE, why);
    }
    match outlook.paused {
        true => condition_of(
            names::ACCEPTED,
            Status::True,
            names::reasons::PAUSED,
            "reconciliation is stopped while spec.paused is true".to_owned(),
        ),
        false => {
            condition_of(names::ACCEPTED, Status::True, names::reasons::ACCEPTED, "the spec is accepted".to_owned())
        }
    }
}

/// Keeps the transition time of conditions whose status has not changed.
fn since(conditions: &mut [Condition], before: &[Condition], generation: Option<i64>, now: Timestamp) {
    for one in conditions {
        let old = condition(before, &one.type_).filter(|old| old.status == one.status);
        one.last_transition_time = old.map_or(now, |old| old.last_transition_time);
        one.observed_generation = generation;
    }
}

pub(super) fn condition_of(type_: &str, status: Status, reason: &str, message: String) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
        last_transition_time: Timestamp::UNIX_EPOCH,
        observed_generation: None,
        reporter: None,
    }
}

/// Whether an API server is ready and its first proof is running: it replaced a proven one, and a proof takes a moment.
fn being_proven(seen: &Observed) -> bool {
    let workload = seen.workloads.get(&ControlPlaneComponent::Apiserver);
    let mut here = workload.into_iter().flat_map(|workload| &workload.replicas);
    here.any(|replica| replica.ready && !replica.ending && !seen.proofs.contains_key(&replica.uid))
}

/// Number of proven API servers, and the desired number.
fn proven(seen: &Observed) -> (usize, usize) {
    let wanted = usize::try_from(seen.spec.replicas).unwrap_or(usize::MAX);
    let Some(workload) = seen.workloads.get(&ControlPlaneComponent::Apiserver) else { return (0, wanted) };
    let here = workload.replicas.iter().filter(|replica| replica.ready && !replica.ending);
    (here.filter(|replica| proven_at(seen, replica).is_some()).count().min(wanted), wanted)
}

fn waiting(decision: &Decision, settled: bool) -> Option<String> {
    if settled {
        return None;
    }
    let first = decision.waiting.first().map(|(_, why)| why.clone());
    Some(first.unwrap_or_else(|| match decision.namespace {
        true => "creating the namespace".to_owned(),
        false => match decision.keys.restore.first() {
            Some(key) => format!("Secret {} is missing; recreating it from the sealed copy", key.secret()),
            None => "issuing certificates".to_owned(),
        },
    }))
}

fn component(
    seen: &Observed,
    decision: &Decision,
    component: ControlPlaneComponent,
    now: Timestamp,
) -> Option<ClusterComponentStatus> {
    let workload = seen.workloads.get(&component)?;
    let before = seen.status.components.iter().find(|known| known.component == component);
    let here = workload.replicas.iter().filter(|replica| !replica.ending);
    let replicas: Vec<_> = here
        .map(|replica| {
            let known = before.and_then(|known| known.replicas.iter().find(|known| known.name == replica.name));
            let proof = seen.proofs.get(&replica.uid);
            let told = known.and_then(|known| known.verified_at);
            let verified_at = match (component, proven_at(seen, replica), told) {
                (ControlPlaneComponent::Apiserver, Some(_), Some(told))
                    if now.duration_since(told) < STATUS_REFRESH_INTERVAL =>
                {
                    Some(told)
                }
                (ControlPlaneComponent::Apiserver, Some(at), _) => Some(at),
                _ => None,
            };
            let said = proof.and_then(|proof| proof.outcome.as_ref().ok().cloned());
            ReplicaStatus {
                name: replica.name.clone(),
                version: said.or_else(|| replica.runs.clone()),
                ready: replica.ready,
                verified_at,
                message: match proof.map(|proof| &proof.outcome) {
                    Some(Err(why)) if replica.ready && replica.serves == Some(false) => {
                        format!("removed from the Service endpoints: {why}")
                    }
                    Some(Err(why)) if replica.ready => why.clone(),
                    _ => replica.message.clone(),
                },
            }
        })
        .collect();
    let first = replicas.first().and_then(|replica| replica.version.clone());
    let same = replicas.iter().all(|replica| replica.version == first);
    Some(ClusterComponentStatus {
        component,
        desired: decision.desired.get(&component).cloned().or_else(|| before.and_then(|known| known.desired.clone())),
        observed: first.filter(|_| same),
        replicas,
    })
}
