//! Writes the status of a Cluster, and publishes Events about what changed in it.

use std::time::Duration;

use fleetwright_api::{Cluster, ClusterStatus, FinishingUpgrade, RestoreStage, Status, condition, names};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Pass, WriteError};
use fleetwright_plan::cluster;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Clusters, Found};

/// A status that differs only in its messages is written after this long.
const STATUS_RETRY_AFTER: Duration = Duration::from_secs(1);

impl Clusters {
    /// The status after a failed pass: the reason, and the last known state.
    pub(crate) fn failed_pass_status(
        &self,
        found: &Found,
        known: &ClusterStatus,
        trouble: &fleetwright_kit::ReportedError,
        now: Timestamp,
    ) -> ClusterStatus {
        let generation = found.cluster.0.metadata.generation;
        let mut status =
            cluster::failed_pass_status(known, trouble.reason, &trouble.source.to_string(), generation, now);
        // The transition time is that of the first refusal.
        let old = found.cluster.0.status.as_ref().and_then(|old| condition(&old.conditions, names::ACCEPTED));
        let first = status.conditions.iter_mut().find(|one| one.type_ == names::ACCEPTED);
        if let (Some(old), Some(now)) = (old.filter(|old| old.status == Status::False), first) {
            now.last_transition_time = old.last_transition_time;
        }
        status
    }

    /// Writes the status, if it changed. Returns when to come back for changes that are not written yet.
    pub(crate) async fn write(
        &self,
        pass: &Pass,
        found: &Found,
        new: &ClusterStatus,
    ) -> Result<Option<Timestamp>, WriteError> {
        let old = found.cluster.0.status.clone().unwrap_or_default();
        let cached = self.caches.clusters.get(pass.key());
        let known = cached.as_ref().unwrap_or(&found.cluster);
        if let Some(field) = overtaken(&old, known.0.status.as_ref()) {
            let what = format!("status of Cluster {}", pass.key());
            let message = format!("object was modified: another process changed status.{field}; retrying");
            return Err(WriteError::Conflict { what, message });
        }
        if let Some(what) = irrevocable(&old, new)
            && known.0.metadata.generation != found.cluster.0.metadata.generation
        {
            let object = format!("status of Cluster {}", pass.key());
            let message = format!("object was modified: the spec was edited while {what} was decided; deciding again");
            return Err(WriteError::Conflict { what: object, message });
        }
        let version = known.0.resource_version().unwrap_or_default();
        let (current, desired) = (json!(old), json!(new));
        // Two processes that lead for a moment observe different states: each would overwrite the messages of the other without end.
        let soon = self.wrote().get(pass.key()).and_then(|at| at.checked_add(STATUS_RETRY_AFTER).ok());
        if let Some(at) = soon.filter(|at| *at > pass.now())
            && current != desired
            && decided(current.clone()) == decided(desired.clone())
        {
            return Ok(Some(at));
        }
        if !pass.writer().apply_status(&self.caches.clusters, pass.key(), &version, &current, desired).await? {
            return Ok(None);
        }
        self.wrote().insert(pass.key().clone(), pass.now());
        self.meters.status_written(&old, new);
        for (kind, reason, event) in TOLD {
            let of = |status: &ClusterStatus| {
                let found = fleetwright_api::condition(&status.conditions, kind).cloned();
                found.filter(|one| one.status == Status::False && reason.is_none_or(|reason| one.reason == reason))
            };
            if let Some(now) = of(new)
                && of(&old).is_none_or(|old| old.reason != now.reason)
            {
                self.publish_event(pass, found, Level::Warning, event, &now.message).await;
            }
        }
        match (&old.finishing, &new.finishing) {
            (None, Some(finishing)) => {
                let FinishingUpgrade { package_version, emulated, .. } = finishing;
                let message = format!(
                    "the soak of {package_version} is over: restarting the components without emulation of {emulated}; from now on going back requires restoring a snapshot"
                );
                self.publish_event(pass, found, Level::Normal, "SoakEnded", &message).await;
            }
            (Some(finishing), None) => {
                let message =
                    format!("{} is verified without emulation of {}", finishing.package_version, finishing.emulated);
                self.publish_event(pass, found, Level::Normal, "UpgradeCompleted", &message).await;
            }
            _ => {}
        }
        if old.phase != new.phase
            && let Some(phase) = new.phase
        {
            let ready = fleetwright_api::condition(&new.conditions, names::READY);
            let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
            self.publish_event(pass, found, Level::Normal, phase.as_str(), &message).await;
        }
        if let Some(failed) = &new.failed
            && old.failed != new.failed
        {
            let message = format!("rolling back {}: {}", failed.package_version, failed.message);
            self.publish_event(pass, found, Level::Warning, "UpgradeRolledBack", &message).await;
        }
        Ok(None)
    }

    pub(crate) async fn publish_event(
        &self,
        pass: &Pass,
        found: &Found,
        level: Level,
        reason: &'static str,
        message: &str,
    ) {
        let about = reference::<Cluster>(pass.key(), found.cluster.0.metadata.uid.as_deref());
        pass.events().publish(&about, level, reason, message, message).await;
    }
}

/// A status without the fields that only report observations and their times.
fn decided(mut status: Value) -> Value {
    match &mut status {
        Value::Object(fields) => {
            fields.retain(|name, _| !["message", "waitingFor", "verifiedAt"].contains(&name.as_str()));
            fields.values_mut().for_each(|value| *value = decided(value.take()));
        }
        Value::Array(all) => all.iter_mut().for_each(|value| *value = decided(value.take())),
        _ => {}
    }
    status
}

/// What the new status starts or continues that a later edit of the spec cannot undo. It must not be recorded for a spec that has changed since: the
/// soak may have been extended, the Cluster paused, or the restore withdrawn.
fn irrevocable(old: &ClusterStatus, new: &ClusterStatus) -> Option<&'static str> {
    // A check of a snapshot stops nothing, and can be withdrawn.
    let stage = |status: &ClusterStatus| {
        let begun = status.restoring.as_ref().filter(|one| one.stage != RestoreStage::Checking);
        begun.map(|one| (one.snapshot.clone(), one.stage))
    };
    match () {
        () if old.finishing.is_none() && new.finishing.is_some() => Some("the end of the soak"),
        () if stage(new).is_some() && stage(old) != stage(new) => Some("the next stage of the restore"),
        () => None,
    }
}

/// The first field of the status that another process has recorded since the decision. A decision from an old record must not overwrite the new
/// record: a stage of a restore or rotation would be repeated, and a soak that has ended would seem to continue.
fn overtaken(decided_on: &ClusterStatus, now: Option<&ClusterStatus>) -> Option<&'static str> {
    let none = ClusterStatus::default();
    let (old, now) = (decided_on, now.unwrap_or(&none));
    let fields = [
        ("namespaceUid", old.namespace_uid != now.namespace_uid),
        ("packageVersion", old.package_version != now.package_version),
        ("previous", old.previous != now.previous),
        ("emulates", old.emulates != now.emulates),
        ("soakSince", old.soak_since != now.soak_since),
        ("finishing", old.finishing != now.finishing),
        ("progress", old.progress != now.progress),
        ("failed", old.failed != now.failed),
        ("etcd", old.etcd != now.etcd),
        ("replaced", old.replaced != now.replaced),
        ("keys", old.keys != now.keys),
        ("authorities", old.authorities != now.authorities),
        ("rotation", old.rotation != now.rotation),
        ("lastSnapshot", old.last_snapshot != now.last_snapshot),
        ("observedSnapshotRequest", old.observed_snapshot_request != now.observed_snapshot_request),
        ("restored", old.restored != now.restored),
        ("restoring", old.restoring != now.restoring),
        ("observedRestore", old.observed_restore != now.observed_restore),
        ("observedRetry", old.observed_retry != now.observed_retry),
    ];
    fields.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}

/// Event reason for a soak that does not end though its time is over, or would not.
const COMPLETION_BLOCKED: &str = "UpgradeCompletionBlocked";

/// Conditions for which an Event is published when they become false: condition, its reason, and the reason of the Event.
const TOLD: [(&str, Option<&str>, &str); 20] = [
    (names::ACCEPTED, Some(names::reasons::MACHINES_JOINED), names::reasons::MACHINES_JOINED),
    (names::ACCEPTED, Some(names::reasons::DELETION_PENDING), names::reasons::DELETION_PENDING),
    (names::ACCEPTED, Some(names::reasons::LIMIT_EXCEEDED), names::reasons::LIMIT_EXCEEDED),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_LOST), names::reasons::AUTHORITY_LOST),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_CHANGED), names::reasons::AUTHORITY_CHANGED),
    (
        names::CERTIFICATES_VALID,
        Some(names::reasons::SERVICE_ACCOUNT_KEY_LOST),
        names::reasons::SERVICE_ACCOUNT_KEY_LOST,
    ),
    (
        names::CERTIFICATES_VALID,
        Some(names::reasons::SERVICE_ACCOUNT_KEY_CHANGED),
        names::reasons::SERVICE_ACCOUNT_KEY_CHANGED,
    ),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_EXPIRING), names::reasons::AUTHORITY_EXPIRING),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_EXPIRED), names::reasons::AUTHORITY_EXPIRED),
    (names::UPGRADABLE, None, "UpgradeBlocked"),
    (
        names::UPGRADE_COMPLETABLE,
        Some(names::reasons::UPGRADE_COMPLETION_FAILED),
        names::reasons::UPGRADE_COMPLETION_FAILED,
    ),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::REMOVED_APIS_IN_USE), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::API_USAGE_UNKNOWN), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::KUBELET_TOO_OLD), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::KUBELET_TOO_NEW), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::KUBELET_VERSIONS_UNKNOWN), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::INSUFFICIENT_RESOURCES), COMPLETION_BLOCKED),
    (names::UPGRADE_COMPLETABLE, Some(names::reasons::SNAPSHOT_REQUIRED), COMPLETION_BLOCKED),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::SNAPSHOT_FAILED), names::reasons::SNAPSHOT_FAILED),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::OVERDUE), names::reasons::OVERDUE),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_end_of_a_soak_and_the_stages_of_a_restore_cannot_be_undone() {
        let status = |value: Value| serde_json::from_value::<ClusterStatus>(value).unwrap();
        let since = "2026-11-17T12:00:00Z";
        let stage = |stage: &str| json!({ "restoring": { "snapshot": "a", "stage": stage, "startedAt": since } });
        let finishing = json!({ "finishing": { "packageVersion": "v1.37", "emulated": "1.36", "since": since } });
        for (old, new, expected) in [
            (json!({}), finishing.clone(), true),
            (finishing.clone(), finishing.clone(), false),
            (finishing, json!({}), false),
            (json!({}), stage("Checking"), false),
            (stage("Checking"), stage("Stopping"), true),
            (stage("Stopping"), stage("Stopping"), false),
            (stage("Cleaning"), json!({}), false),
        ] {
            assert_eq!(irrevocable(&status(old.clone()), &status(new.clone())).is_some(), expected, "{old} {new}");
        }
    }

    #[test]
    fn a_status_that_was_decided_on_an_old_record_is_not_written() {
        let record: Value = json!({
            "packageVersion": "v1.37", "previous": "v1.36", "emulates": "1.36", "soakSince": "2026-11-17T12:00:00Z",
            "soakUntil": "2026-11-18T12:00:00Z",
            "finishing": {"packageVersion": "v1.37", "emulated": "1.36", "since": "2026-11-17T12:00:00Z"},
            "progress": {"step": "a", "since": "2026-11-17T12:00:00Z"},
            "failed": {"packageVersion": "v1.38", "at": "2026-11-17T12:00:00Z", "message": "b"},
            "etcd": {"members": 3, "serving": 3},
            "replaced": {"component": "apiserver", "name": "c", "uid": "d", "at": "2026-11-17T12:00:00Z", "times": 1, "message": ""},
            "keys": [{"name": "ca", "fingerprint": "e", "digest": "f"}], "authorities": "g",
            "rotation": {"value": "h", "phase": "Signing", "since": "2026-11-17T12:00:00Z"},
            "lastSnapshot": {"name": "i", "at": "2026-11-17T12:00:00Z"}, "observedSnapshotRequest": "j",
            "restored": {"snapshot": "k", "at": "2026-11-17T12:00:00Z", "dataTime": "2026-11-17T12:00:00Z"},
            "restoring": {"snapshot": "l", "stage": "Starting", "startedAt": "2026-11-17T12:00:00Z"},
            "observedRestore": "m", "observedRetry": "n",
        });
        let status = |value: &Value| serde_json::from_value::<ClusterStatus>(value.clone()).unwrap();
        let now = status(&record);
        assert_eq!(overtaken(&now, Some(&now)), None);
        assert!(overtaken(&now, None).is_some() && overtaken(&ClusterStatus::default(), None).is_none());
        for field in record.as_object().unwrap().keys() {
            let mut old = record.clone();
            old.as_object_mut().unwrap().remove(field);
            // The field follows from another field and the spec, and no decision depends on it.
            let expected = Some(field.as_str()).filter(|field| *field != "soakUntil");
            assert_eq!(overtaken(&status(&old), Some(&now)), expected);
        }
        // Fields that are only observed may change meanwhile.
        let seen = ClusterStatus { waiting_for: Some("another".to_owned()), ..now.clone() };
        assert_eq!(overtaken(&seen, Some(&now)), None);
    }
}
