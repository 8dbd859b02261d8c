//! The state of a cluster as text.

use fleetwright_api::{Cluster, ClusterStatus, ControlPlaneComponent};
use fleetwright_plan::explain::health::message;
pub(super) use fleetwright_plan::explain::health::{
    HEALTHY_RANK, component as of_component, components, extension as of_extension, failed, rank, replica as of_replica,
};
use jiff::Timestamp;

use crate::explanation::tree;
pub(super) use crate::explanation::tree::{sign, version};
use crate::terminal_text::{ago, cut, line};

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
    let phase = cluster.status.as_ref().and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    tree::phase(phase.as_deref(), cluster.spec.paused)
}

/// The state of a cluster in a line: the problem, else the running work.
pub(super) fn what(cluster: &Cluster) -> String {
    line(&message(cluster))
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
    let proven = replicas.iter().filter(|replica| replica.ready && replica.verified_at.is_some()).count();
    format!("{proven}/{}", cluster.spec.replicas)
}
