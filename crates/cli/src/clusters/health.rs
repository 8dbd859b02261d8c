//! How a cluster stands, in the order and in the words in which a person should hear of it.

use fleetwright_api::names::{self, reasons};
use fleetwright_api::{
    Cluster, ClusterComponentStatus, ClusterPhase, ClusterStatus, Condition, ControlPlaneComponent, ExtensionStatus,
    ReplicaStatus, Status, condition,
};

use jiff::Timestamp;

use crate::shown::{ago, cut, line};

/// From this rank on nothing is wrong.
pub(super) const FINE: u8 = 6;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Somebody should look.
    Wrong,
    /// It is on its way.
    OnItsWay,
    /// It is as it should be.
    Well,
}

impl Mark {
    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Wrong => "✗",
            Self::OnItsWay => "…",
            Self::Well => "✓",
        }
    }
}

/// The worst first.
pub(super) fn rank(cluster: &Cluster) -> u8 {
    let Some(status) = &cluster.status else { return FINE + 1 };
    let wrong = problems(cluster);
    let is = |type_: &str| wrong.iter().any(|condition| condition.type_ == type_);
    let stopped = condition(&status.conditions, names::DATASTORE_HEALTHY).is_some_and(cannot_write);
    match status.phase {
        Some(ClusterPhase::Deleting) => FINE,
        _ if stopped && is(names::DATASTORE_HEALTHY) => 0,
        _ if is(names::READY) => 1,
        _ if failed(cluster).is_some() => 2,
        _ if is(names::ACCEPTED) => 3,
        Some(ClusterPhase::Degraded | ClusterPhase::Restoring) => 4,
        _ if !wrong.is_empty() || is_protected(cluster) => 5,
        _ if components(cluster).iter().any(|component| mark(component) == Mark::Wrong) => 5,
        Some(ClusterPhase::Repairing) => 5,
        Some(ClusterPhase::Ready | ClusterPhase::Soaking) => FINE + 2,
        _ => FINE + 1,
    }
}

pub(super) fn cluster_mark(cluster: &Cluster) -> Mark {
    match rank(cluster) {
        0..FINE => Mark::Wrong,
        rank if rank < FINE + 2 => Mark::OnItsWay,
        _ => Mark::Well,
    }
}

fn cannot_write(condition: &Condition) -> bool {
    [reasons::QUORUM_LOST, reasons::UNREACHABLE].contains(&condition.reason.as_str())
}

/// Conditions that do not hold and should, in the order of [`ASKED`]. What is expected of the phase that the cluster is in is none.
pub(super) fn problems(cluster: &Cluster) -> Vec<&Condition> {
    let Some(status) = &cluster.status else { return vec![] };
    let expected = |condition: &Condition| match status.phase {
        Some(ClusterPhase::Deleting) => true,
        Some(ClusterPhase::Creating) | None => condition.type_ != names::ACCEPTED,
        Some(ClusterPhase::Upgrading | ClusterPhase::RollingBack) => condition.reason == reasons::MEMBERS_MISSING,
        _ => false,
    };
    let under_way = [reasons::CREATING, reasons::DELETING, reasons::ROTATING, reasons::APPLYING, reasons::REMOVING]
        .map(str::to_owned);
    // Whether it could be upgraded is a question only when it should be.
    let has = status.package_version.as_ref();
    let stuck = has.is_some_and(|has| *has != cluster.spec.package_version) || failed(cluster).is_some();
    let asked = ASKED.iter().chain(stuck.then_some(&names::UPGRADABLE));
    let found = asked.filter_map(|type_| condition(&status.conditions, type_));
    found
        .filter(|condition| condition.status == Status::False)
        .filter(|condition| !expected(condition) && !under_way.contains(&condition.reason))
        .collect()
}

/// The conditions of which each should hold. That a cluster could not go back is good to know, and no problem.
const ASKED: [&str; 7] = [
    names::DATASTORE_HEALTHY,
    names::READY,
    names::ACCEPTED,
    names::CERTIFICATES_VALID,
    names::EXTENSIONS_READY,
    names::SNAPSHOTS_RECENT,
    names::UPGRADE_COMPLETABLE,
];

/// It was deleted, and goes on because it is protected.
pub(super) fn is_protected(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some() && cluster.spec.deletion_protection
}

/// The change that is asked for and did not work.
pub(super) fn failed(cluster: &Cluster) -> Option<&fleetwright_api::FailedChange> {
    let failed = cluster.status.as_ref()?.failed.as_ref()?;
    (failed.package_version == cluster.spec.package_version).then_some(failed)
}

/// The minor that it emulates, so that going back to it keeps every write: as long as that is recorded, however late it is.
pub(super) fn emulates(cluster: &Cluster) -> Option<&str> {
    cluster.status.as_ref()?.emulates.as_deref()
}

/// How long its soak lasts, for people.
pub(super) fn soak_left(status: &ClusterStatus, now: Timestamp) -> String {
    match status.soak_until {
        Some(until) if until > now => format!(", for another {}", ago(now, until)),
        Some(_) => ", until nothing stands against the end of its soak (condition UpgradeCompletable)".to_owned(),
        None => String::new(),
    }
}

pub(super) fn phase(cluster: &Cluster) -> String {
    let phase =
        cluster.status.as_ref().and_then(|status| status.phase).map_or("-".to_owned(), |phase| format!("{phase:?}"));
    if cluster.spec.paused { format!("{phase},Paused") } else { phase }
}

pub(super) fn components(cluster: &Cluster) -> &[ClusterComponentStatus] {
    cluster.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default()
}

/// A replica in a word and a sign.
pub(super) fn replica_mark(component: ControlPlaneComponent, replica: &ReplicaStatus) -> Mark {
    // What every pod says for some moments.
    let starting = ["ContainerCreating", "PodInitializing"].iter().any(|word| replica.message.starts_with(word));
    match replica.message.is_empty() || starting {
        false => Mark::Wrong,
        true if !replica.ready => Mark::OnItsWay,
        true if component == ControlPlaneComponent::Apiserver && replica.proven.is_none() => Mark::OnItsWay,
        true => Mark::Well,
    }
}

/// An extension that is being applied is on its way.
pub(super) fn extension_mark(extension: &ExtensionStatus) -> Mark {
    match extension.ready {
        Status::True => Mark::Well,
        Status::False if ![reasons::APPLYING, reasons::REMOVING].contains(&&*extension.reason) => Mark::Wrong,
        _ => Mark::OnItsWay,
    }
}

/// A component is as its worst replica; without any it is on its way.
pub(super) fn mark(component: &ClusterComponentStatus) -> Mark {
    let worst = component.replicas.iter().map(|replica| replica_mark(component.component, replica)).min();
    let behind = component.desired.is_some() && component.desired != component.observed;
    worst.unwrap_or(Mark::OnItsWay).min(if behind { Mark::OnItsWay } else { Mark::Well })
}

/// The version of a component, and the one that it is brought to.
pub(super) fn version(component: &ClusterComponentStatus) -> String {
    match (&component.observed, &component.desired) {
        (Some(from), Some(to)) if from == to => line(to),
        (Some(from), Some(to)) => line(&format!("{from} → {to}")),
        (None, Some(to)) => line(&format!("→ {to}")),
        (Some(from), None) => line(from),
        (None, None) => "-".to_owned(),
    }
}

/// What a person should know of it, in a line: what is wrong, else what is being done.
pub(super) fn what(cluster: &Cluster) -> String {
    let Some(status) = &cluster.status else { return "nothing is known of it yet; do the operators run?".to_owned() };
    let wrong = problems(cluster).first().map(|condition| format!("{}: {}", condition.reason, condition.message));
    let failed = failed(cluster).map(|failed| format!("{} did not work: {}", failed.package_version, failed.message));
    let now = status.progress.as_ref().map(|progress| match progress.message.as_str() {
        "" => progress.step.clone(),
        message => format!("{}: {message}", progress.step),
    });
    let waits = status.waiting_for.as_ref().map(|waiting| format!("waits for: {waiting}"));
    let soaks = status.emulates.as_ref().map(|minor| format!("emulates {minor}, and can go back to it"));
    let unseen = status.observed_generation.zip(cluster.metadata.generation).filter(|(seen, is)| seen < is);
    let unseen = unseen.map(|_| "what was last asked for is not acted on yet".to_owned());
    line(&wrong.or(failed).or(now).or(waits).or(unseen).or(soaks).unwrap_or_default())
}

/// A line for each change of it.
pub(super) fn summary(cluster: &Cluster) -> String {
    let text = format!("{} {} {}", phase(cluster), replicas(cluster), what(cluster));
    cut(text.trim_end(), 160)
}

/// How many API servers are proven, of how many there should be.
pub(super) fn replicas(cluster: &Cluster) -> String {
    let apiserver =
        components(cluster).iter().find(|component| component.component == ControlPlaneComponent::Apiserver);
    let replicas = apiserver.map(|component| component.replicas.as_slice()).unwrap_or_default();
    let proven = replicas.iter().filter(|replica| replica.ready && replica.proven.is_some()).count();
    format!("{proven}/{}", cluster.spec.replicas)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(status: Value) -> Cluster {
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
        let ranks: Vec<_> = ordered.iter().map(|status| rank(&cluster(status.clone()))).collect();
        assert!(ranks.is_sorted() && ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
        assert!(ranks[4] < FINE && ranks[5] == FINE, "{ranks:?}");
    }

    #[test]
    fn what_every_cluster_says_while_it_is_made_is_no_problem() {
        let made = cluster(json!({
            "phase": "Creating", "waitingFor": "etcd: 1 of 3 replicas are ready",
            "conditions": [not("Ready", "Creating"), not("DatastoreHealthy", "QuorumLost"), not("CertificatesValid", "Rotating")],
            "components": [{"component": "etcd", "desired": "3.6.16", "replicas": [{"name": "etcd-0", "message": "ContainerCreating"}]}],
        }));
        assert_eq!(cluster_mark(&made), Mark::OnItsWay);
        assert_eq!(what(&made), "waits for: etcd: 1 of 3 replicas are ready");
        assert_eq!(mark(&components(&made)[0]), Mark::OnItsWay);
    }
}
