//! What is wrong with a Cluster, by its status: shared by every view of clusters.

use fleetwright_api::names::{self, reasons};
use fleetwright_api::{
    Cluster, ClusterComponentStatus, ClusterPhase, Condition, ControlPlaneComponent, ExtensionStatus, FailedChange,
    ReplicaStatus, Status, condition,
};
use serde::Serialize;

/// Ranks below this one need attention.
pub const HEALTHY_RANK: u8 = 6;

/// How a cluster or a part of it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Health {
    /// It needs attention.
    Unhealthy,
    /// A change is under way.
    Progressing,
    /// It is as declared.
    Healthy,
}

/// Sort key of clusters: those that need attention most come first.
pub fn rank(cluster: &Cluster) -> u8 {
    let Some(status) = &cluster.status else { return HEALTHY_RANK + 1 };
    let wrong = problems(cluster);
    let is = |type_: &str| wrong.iter().any(|condition| condition.type_ == type_);
    let stopped = condition(&status.conditions, names::DATASTORE_HEALTHY).is_some_and(cannot_write);
    match status.phase {
        Some(ClusterPhase::Deleting) => HEALTHY_RANK,
        _ if stopped && is(names::DATASTORE_HEALTHY) => 0,
        _ if is(names::READY) => 1,
        _ if failed(cluster).is_some() => 2,
        _ if is(names::ACCEPTED) => 3,
        Some(ClusterPhase::Degraded | ClusterPhase::Restoring) => 4,
        _ if !wrong.is_empty() || is_protected(cluster) => 5,
        _ if components(cluster).iter().any(|part| component(part) == Health::Unhealthy) => 5,
        Some(ClusterPhase::Repairing) => 5,
        Some(ClusterPhase::Ready | ClusterPhase::Soaking) => HEALTHY_RANK + 2,
        _ => HEALTHY_RANK + 1,
    }
}

/// How a cluster stands.
pub fn cluster(cluster: &Cluster) -> Health {
    match rank(cluster) {
        0..HEALTHY_RANK => Health::Unhealthy,
        rank if rank < HEALTHY_RANK + 2 => Health::Progressing,
        _ => Health::Healthy,
    }
}

fn cannot_write(condition: &Condition) -> bool {
    [reasons::QUORUM_LOST, reasons::UNREACHABLE].contains(&condition.reason.as_str())
}

/// Conditions that are False and should be True, the most serious first. Those that are normal in the current phase are left out.
pub fn problems(cluster: &Cluster) -> Vec<&Condition> {
    let Some(status) = &cluster.status else { return vec![] };
    let expected = |condition: &Condition| match status.phase {
        Some(ClusterPhase::Deleting) => true,
        Some(ClusterPhase::Creating) | None => condition.type_ != names::ACCEPTED,
        Some(ClusterPhase::Upgrading | ClusterPhase::RollingBack) => condition.reason == reasons::MEMBERS_MISSING,
        _ => false,
    };
    let under_way = [reasons::CREATING, reasons::DELETING, reasons::ROTATING, reasons::APPLYING, reasons::REMOVING];
    // Whether it could be upgraded matters only when it should be.
    let has = status.package_version.as_ref();
    let stuck = has.is_some_and(|has| *has != cluster.spec.package_version) || failed(cluster).is_some();
    let required = REQUIRED.iter().chain(stuck.then_some(&names::UPGRADABLE));
    let found = required.filter_map(|type_| condition(&status.conditions, type_));
    found
        .filter(|condition| condition.status == Status::False)
        .filter(|condition| !expected(condition) && !under_way.contains(&condition.reason.as_str()))
        .collect()
}

/// The conditions that should be True. `RollbackPossible` is for information only.
const REQUIRED: [&str; 7] = [
    names::DATASTORE_HEALTHY,
    names::READY,
    names::ACCEPTED,
    names::CERTIFICATES_VALID,
    names::EXTENSIONS_READY,
    names::SNAPSHOTS_RECENT,
    names::UPGRADE_COMPLETABLE,
];

/// Whether its deletion is blocked by `spec.deletionProtection`.
pub fn is_protected(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some() && cluster.spec.deletion_protection
}

/// The requested change, if it failed.
pub fn failed(cluster: &Cluster) -> Option<&FailedChange> {
    let failed = cluster.status.as_ref()?.failed.as_ref()?;
    (failed.package_version == cluster.spec.package_version).then_some(failed)
}

/// The state of a cluster in a line: the problem, else the running work.
pub fn message(cluster: &Cluster) -> String {
    let Some(status) = &cluster.status else { return "no status yet; check that the operators are running".to_owned() };
    let wrong = problems(cluster).first().map(|condition| format!("{}: {}", condition.reason, condition.message));
    let failed = failed(cluster).map(|failed| format!("{} failed: {}", failed.package_version, failed.message));
    let now = status.progress.as_ref().map(|progress| match progress.message.as_str() {
        "" => progress.step.clone(),
        message => format!("{}: {message}", progress.step),
    });
    let waits = status.waiting_for.as_ref().map(|waiting| format!("waiting for: {waiting}"));
    let soaks = status.emulates.as_ref().map(|minor| format!("emulates {minor}, rollback is possible"));
    let unseen = status.observed_generation.zip(cluster.metadata.generation).filter(|(seen, is)| seen < is);
    let unseen = unseen.map(|_| "the last change of the spec is not processed yet".to_owned());
    wrong.or(failed).or(now).or(waits).or(unseen).or(soaks).unwrap_or_default()
}

/// Status of its components.
pub fn components(cluster: &Cluster) -> &[ClusterComponentStatus] {
    cluster.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default()
}

/// How a replica of that component stands.
pub fn replica(component: ControlPlaneComponent, replica: &ReplicaStatus) -> Health {
    // Every pod reports these while it starts.
    let starting = ["ContainerCreating", "PodInitializing"].iter().any(|word| replica.message.starts_with(word));
    match replica.message.is_empty() || starting {
        false => Health::Unhealthy,
        true if !replica.ready => Health::Progressing,
        true if component == ControlPlaneComponent::Apiserver && replica.verified_at.is_none() => Health::Progressing,
        true => Health::Healthy,
    }
}

/// Replicas that need attention, with their components.
pub fn unhealthy_replicas(cluster: &Cluster) -> Vec<(ControlPlaneComponent, &ReplicaStatus)> {
    let components = components(cluster).iter();
    let all = components.flat_map(|part| part.replicas.iter().map(move |replica| (part.component, replica)));
    all.filter(|(component, one)| replica(*component, one) == Health::Unhealthy).collect()
}

/// How an extension stands.
pub fn extension(extension: &ExtensionStatus) -> Health {
    match extension.ready {
        Status::True => Health::Healthy,
        Status::False if ![reasons::APPLYING, reasons::REMOVING].contains(&&*extension.reason) => Health::Unhealthy,
        _ => Health::Progressing,
    }
}

/// How a component stands: as its worst replica does.
pub fn component(component: &ClusterComponentStatus) -> Health {
    let worst = component.replicas.iter().map(|one| replica(component.component, one)).min();
    let behind = component.desired.is_some() && component.desired != component.observed;
    worst.unwrap_or(Health::Progressing).min(if behind { Health::Progressing } else { Health::Healthy })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(status: Value) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
            "spec": {"packageVersion": "k8s-1"}, "status": status,
        }))
        .expect("a Cluster")
    }

    fn not(type_: &str, reason: &str) -> Value {
        json!({"type": type_, "status": "False", "reason": reason, "message": "m", "lastTransitionTime": "2026-11-16T08:00:00Z"})
    }

    #[test]
    fn the_worst_comes_first() {
        let ordered = [
            json!({"phase": "Degraded", "conditions": [not("DatastoreHealthy", "QuorumLost"), not("Ready", "NotVerified")]}),
            json!({"phase": "Degraded", "conditions": [not("DatastoreHealthy", "MembersMissing"), not("Ready", "NotVerified")]}),
            json!({"phase": "Ready", "failed": {"packageVersion": "k8s-1", "at": "2026-11-16T08:00:00Z", "message": "m"}}),
            json!({"phase": "Creating", "conditions": [not("Accepted", "PackageVersionNotFound"), not("Ready", "Creating")]}),
            json!({"phase": "Ready", "packageVersion": "k8s-0", "conditions": [not("Upgradable", "UnsupportedUpgradePath")]}),
            json!({"phase": "Deleting", "conditions": [not("Ready", "Deleting"), not("DatastoreHealthy", "QuorumLost")]}),
            json!({"phase": "Upgrading", "conditions": [not("DatastoreHealthy", "MembersMissing")]}),
            json!({"phase": "Ready", "conditions": [not("RollbackPossible", "SoakEnded"), not("Upgradable", "UnsupportedUpgradePath")]}),
        ];
        let ranks: Vec<_> = ordered.iter().map(|status| rank(&with(status.clone()))).collect();
        assert!(ranks.is_sorted() && ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
        assert!(ranks[4] < HEALTHY_RANK && ranks[5] == HEALTHY_RANK, "{ranks:?}");
    }

    #[test]
    fn what_every_cluster_reports_while_it_is_created_is_no_problem() {
        let made = with(json!({
            "phase": "Creating", "waitingFor": "etcd: 1 of 3 replicas are ready",
            "conditions": [not("Ready", "Creating"), not("DatastoreHealthy", "QuorumLost"), not("CertificatesValid", "Rotating")],
            "components": [{"component": "etcd", "desired": "3.6.16", "replicas": [{"name": "etcd-0", "message": "ContainerCreating"}]}],
        }));
        assert_eq!(cluster(&made), Health::Progressing);
        assert_eq!(component(&components(&made)[0]), Health::Progressing);
    }
}
