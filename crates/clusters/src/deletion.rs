//! A cluster that is deleted: protection first, then everything at once.

use std::sync::Arc;

use fleetwright_api::{ClusterPhase, ClusterStatus, Condition, ControlPlaneComponent, RestoreStage, Status, names};
use fleetwright_kit::{Key, Pass, View as _, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::release::{self, DeletionHold, JoinedAnswer};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::PropagationPolicy;
use serde_json::json;

use crate::access::Account;
use crate::caches::{BY_NAMESPACE, Caches};
use crate::cluster::Found;
use crate::errors::ActError;
use crate::messages::api_error_message;
use crate::namespace_claim;
use crate::view::{ClusterView, NamespaceView, PodView};

/// Nobody needs its pods any more: so many seconds are left to them.
const GRACE: u32 = 1;
/// Of so many pods at a time; each that goes wakes us for the others.
const AT_ONCE: usize = 16;

/// Where the end of a cluster stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionState {
    /// Its pods are to be told to go. The namespace would take them along, but as slowly as they like, and look again later still.
    Pods,
    /// Its namespace is to be deleted: Kubernetes begins five seconds later to look for what is left in it, and by then its pods are gone.
    Namespace,
    /// Its namespace is going away.
    Waits,
    /// Nothing is left.
    Gone,
}

/// It is marked for deletion, and protected: it goes on as if it were not.
pub fn protected(cluster: &ClusterView) -> bool {
    cluster.0.metadata.deletion_timestamp.is_some() && cluster.0.spec.deletion_protection
}

/// It is marked for deletion, and nothing but `spec.paused` blocks that.
pub fn paused(cluster: &ClusterView) -> bool {
    cluster.0.metadata.deletion_timestamp.is_some() && cluster.0.spec.paused && !cluster.0.spec.deletion_protection
}

/// Where the end of that cluster stands; none if it is not deleted, protected, or paused.
pub fn ending(caches: &Caches, names: &Names, cluster: &ClusterView) -> Option<DeletionState> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    if protected(cluster) || cluster.0.spec.paused {
        return None;
    }
    Some(match caches.namespace(names) {
        Some(namespace) if namespace.ending => DeletionState::Waits,
        Some(_) if workloads_left(caches, names) || slow(caches, names).next().is_some() => DeletionState::Pods,
        Some(_) => DeletionState::Namespace,
        None => DeletionState::Gone,
    })
}

/// Whether machines hold a cluster that is to be deleted. One that was never made holds nobody; one whose end has begun is asked no more.
pub fn deletion_hold(
    caches: &Caches,
    answer: Option<&JoinedAnswer>,
    names: &Names,
    cluster: &ClusterView,
    now: Timestamp,
) -> Option<DeletionHold> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    cluster.0.status.as_ref().and_then(|status| status.package_version.as_ref())?;
    let here = caches.namespace(names).is_some_and(|namespace| !namespace.ending);
    let served =
        caches.deployments.get(&Key::new(&names.namespace, ControlPlaneComponent::Apiserver.binary())).is_some();
    if protected(cluster) || cluster.0.spec.paused || !here || !served {
        return None;
    }
    let stage = cluster.0.status.as_ref().and_then(|status| status.restoring.as_ref()).map(|restoring| restoring.stage);
    let stopped = stage.is_some_and(|stage| !matches!(stage, RestoreStage::Checking | RestoreStage::Cleaning));
    let answer = answer.cloned().map(|answer| if stopped { answer.while_restoring() } else { answer });
    release::deletion_hold(cluster.0.spec.on_delete, answer.as_ref(), now)
}

fn workloads_left(caches: &Caches, names: &Names) -> bool {
    ControlPlaneComponent::ALL.iter().any(|component| {
        let key = Key::new(&names.namespace, component.binary());
        caches.deployments.get(&key).is_some() || caches.stateful_sets.get(&key).is_some()
    })
}

/// Its pods that are not told yet to go quickly.
fn slow(caches: &Caches, names: &Names) -> impl Iterator<Item = (Key, Arc<PodView>)> {
    let pods = caches.pods.by(BY_NAMESPACE, &names.namespace).into_iter();
    pods.filter(|(_, pod)| pod.grace.is_none_or(|grace| grace > GRACE.into()))
}

/// Does what is next; answers whether the cluster is gone.
pub async fn end(
    caches: &Caches,
    pass: &Pass,
    found: &Found,
    account: Option<Account>,
    ending: &DeletionState,
) -> Result<bool, ActError> {
    let (names, cluster) = (&found.names, &found.cluster);
    match ending {
        DeletionState::Waits => Ok(false),
        DeletionState::Pods => {
            // Not with their pods: these would be told to go with the grace that they have in life, and no kubelet is held to a shorter one later.
            let labels = format!("{}={}", names::CLUSTER, names.name);
            if workloads_left(caches, names) {
                let (writer, within) = (pass.writer(), &names.namespace);
                // They go when no pod uses them any more. Found in a namespace that ends, they would hold it for eight seconds more.
                let background = PropagationPolicy::Background;
                writer.delete_all::<PersistentVolumeClaim>(within, &labels, background).await?;
                writer.delete_all::<Deployment>(within, &labels, PropagationPolicy::Orphan).await?;
                writer.delete_all::<ReplicaSet>(within, &labels, PropagationPolicy::Orphan).await?;
                writer.delete_all::<StatefulSet>(within, &labels, PropagationPolicy::Orphan).await?;
            }
            // An API server whose etcd is gone would wait for it as long as it may.
            for (key, pod) in slow(caches, names).take(AT_ONCE) {
                match pass.writer().hurry::<Pod>(&key, &pod.replica.uid, GRACE).await {
                    Ok(_) | Err(WriteError::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(false)
        }
        DeletionState::Namespace => {
            let key = Key::cluster(&names.namespace);
            if let Some(namespace) = caches.namespace(names) {
                match pass.writer().delete(&caches.namespaces, &key, &namespace.uid, &namespace.version).await {
                    Ok(()) | Err(WriteError::Gone(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(false)
        }
        DeletionState::Gone => {
            // A cache may not have seen yet what an operator before us made.
            let api: kube::Api<Namespace> = kube::Api::all(pass.client());
            // A read that failed says nothing: what is deleted from here on is needed if the namespace exists.
            let there = api.get_opt(&names.namespace).await.map_err(|error| unread(names, &error))?;
            let labelled = there.filter(|one| names.owns(one.labels())).map(NamespaceView::of);
            if let Some(namespace) = labelled
                && (names.is_recorded(cluster.0.status.as_ref(), &namespace.uid)
                    || namespace_claim::is_proven(caches, pass, names, &cluster.0, &namespace).await?)
            {
                namespace_claim::discard(caches, pass, names, account, &namespace).await?;
                return Ok(false);
            }
            // A cluster of the same name that comes after it gets keys of its own.
            let copy = Key::new(&caches.keys, &names.sealed_keys());
            if caches.secrets.get(&copy).is_some() {
                pass.writer().delete_by_name::<Secret>(&copy).await?;
            }
            let finalizers = cluster.0.metadata.finalizers.iter().flatten();
            let Some(index) = finalizers.into_iter().position(|name| name == names::CLUSTER_FINALIZER) else {
                return Ok(true);
            };
            let path = format!("/metadata/finalizers/{index}");
            let patch = json!([
                { "op": "test", "path": path, "value": names::CLUSTER_FINALIZER },
                { "op": "remove", "path": path },
            ]);
            match pass.writer().json_patch(&caches.clusters, pass.key(), patch).await {
                Ok(()) | Err(WriteError::Gone(_)) => Ok(true),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Whether the namespace exists could not be read.
fn unread(names: &Names, error: &kube::Error) -> WriteError {
    let what = format!("deletion of Cluster {}/{}", names.fleet, names.name);
    let message = format!("cannot read Namespace {}: {}", names.namespace, api_error_message(error));
    WriteError::Unknown { what, message }
}

/// What is said of a cluster that is deleted.
pub fn status(cluster: &ClusterView, now: Timestamp) -> ClusterStatus {
    let before = cluster.0.status.clone().unwrap_or_default();
    let message = "deleting the namespace and everything in it";
    let old = fleetwright_api::condition(&before.conditions, names::READY);
    let since = old.filter(|old| old.status == Status::False).map_or(now, |old| old.last_transition_time);
    let ready = Condition {
        type_: names::READY.to_owned(),
        status: Status::False,
        reason: names::reasons::DELETING.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
        observed_generation: cluster.0.metadata.generation,
        reporter: None,
    };
    let mut conditions: Vec<_> = before.conditions.iter().filter(|one| one.type_ != names::READY).cloned().collect();
    conditions.push(ready);
    ClusterStatus {
        observed_generation: cluster.0.metadata.generation,
        phase: Some(ClusterPhase::Deleting),
        waiting_for: Some(message.to_owned()),
        conditions,
        ..before
    }
}
