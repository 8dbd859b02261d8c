//! The state of a cluster as text.

use fleetwright_api::{Cluster, ClusterComponentStatus, ClusterStatus, ControlPlaneComponent};
pub(super) use fleetwright_plan::explain::health::{
    HEALTHY_RANK, Health, cluster as of_cluster, component as of_component, components, extension as of_extension,
    failed, is_protected, problems, rank, replica as of_replica,
};
use jiff::Timestamp;

use crate::terminal_text::{ago, cut, line};

/// The symbol of a state.
pub(super) fn sign(health: Health) -> &'static str {
    match health {
        Health::Unhealthy => "✗",
        Health::Progressing => "…",
        Health::Healthy => "✓",
    }
}

/// The emulated minor, to which a rollback keeps every write. It counts while it is recorded, even past the end of the soak.
pub(super) fn emulates(cluster: &Cluster) -> Option<&str> {
    cluster.status.as_ref()?.emulates.as_deref()
}

/// The remaining soak time, as text.
pub(super) fn soak_left(status: &ClusterStatus, now: Timestamp) -> String {
    match status.soak_until {
        Some(until) if until > now => format!(", {} left", ago(now, until)),
        Some(_) => ", soak time is over, waiting for condition UpgradeCompletable".to_owned(),
        None => String::new(),
    }
}

pub(super) fn phase(cluster: &Cluster) -> String {
    let phase =
        cluster.status.as_ref().and_then(|status| status.phase).map_or("-".to_owned(), |phase| format!("{phase:?}"));
    if cluster.spec.paused { format!("{phase},Paused") } else { phase }
}

/// The present version of a component, and the target version.
pub(super) fn version(component: &ClusterComponentStatus) -> String {
    match (&component.observed, &component.desired) {
        (Some(from), Some(to)) if from == to => line(to),
        (Some(from), Some(to)) => line(&format!("{from} → {to}")),
        (None, Some(to)) => line(&format!("→ {to}")),
        (Some(from), None) => line(from),
        (None, None) => "-".to_owned(),
    }
}

/// The state of a cluster in a line: the problem, else the running work.
pub(super) fn what(cluster: &Cluster) -> String {
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
    line(&wrong.or(failed).or(now).or(waits).or(unseen).or(soaks).unwrap_or_default())
}

/// A line for each change of the cluster.
pub(super) fn summary(cluster: &Cluster) -> String {
    let text = format!("{} {} {}", phase(cluster), replicas(cluster), what(cluster));
    cut(text.trim_end(), 160)
}

/// The number of proven API servers, of the declared number.
pub(super) fn replicas(cluster: &Cluster) -> String {
    let apiserver =
        components(cluster).iter().find(|component| component.component == ControlPlaneComponent::Apiserver);
    let replicas = apiserver.map(|component| component.replicas.as_slice()).unwrap_or_default();
    let proven = replicas.iter().filter(|replica| replica.ready && replica.proven.is_some()).count();
    format!("{proven}/{}", cluster.spec.replicas)
}
