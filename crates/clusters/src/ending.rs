//! A cluster that is deleted: protection first, then everything at once.

use std::sync::Arc;

use fleetwright_api::{ClusterPhase, ClusterStatus, Condition, ControlPlaneComponent, RestoreStage, Status, names};
use fleetwright_kit::{Key, Pass, View as _, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::release::{self, Answer, Hold};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::PropagationPolicy;
use serde_json::json;

use crate::access::Account;
use crate::claim;
use crate::cluster::Found;
use crate::errors::ActError;
use crate::eyes::{BY_NAMESPACE, Eyes};
use crate::view::{ClusterView, NamespaceView, PodView};
use crate::words::said;

/// Nobody needs its pods any more: so many seconds are left to them.
const GRACE: u32 = 1;
/// Of so many pods at a time; each that goes wakes us for the others.
const AT_ONCE: usize = 16;

/// Where the end of a cluster stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
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
pub fn ending(eyes: &Eyes, names: &Names, cluster: &ClusterView) -> Option<Ending> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    if protected(cluster) || cluster.0.spec.paused {
        return None;
    }
    Some(match eyes.namespace(names) {
        Some(namespace) if namespace.ending => Ending::Waits,
        Some(_) if workloads_left(eyes, names) || slow(eyes, names).next().is_some() => Ending::Pods,
        Some(_) => Ending::Namespace,
        None => Ending::Gone,
    })
}

/// Whether machines hold a cluster that is to be deleted. One that was never made holds nobody; one whose end has begun is asked no more.
pub fn hold(
    eyes: &Eyes,
    answer: Option<&Answer>,
    names: &Names,
    cluster: &ClusterView,
    now: Timestamp,
) -> Option<Hold> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    cluster.0.status.as_ref().and_then(|status| status.package_version.as_ref())?;
    let here = eyes.namespace(names).is_some_and(|namespace| !namespace.ending);
    let served = eyes.deployments.get(&Key::new(&names.namespace, ControlPlaneComponent::Apiserver.binary())).is_some();
    if protected(cluster) || cluster.0.spec.paused || !here || !served {
        return None;
    }
    let stage = cluster.0.status.as_ref().and_then(|status| status.restoring.as_ref()).map(|restoring| restoring.stage);
    let stopped = stage.is_some_and(|stage| !matches!(stage, RestoreStage::Checking | RestoreStage::Cleaning));
    let answer = answer.cloned().map(|answer| if stopped { answer.while_restoring() } else { answer });
    release::hold(cluster.0.spec.on_delete, answer.as_ref(), now)
}

fn workloads_left(eyes: &Eyes, names: &Names) -> bool {
    ControlPlaneComponent::ALL.iter().any(|component| {
        let key = Key::new(&names.namespace, component.binary());
        eyes.deployments.get(&key).is_some() || eyes.stateful_sets.get(&key).is_some()
    })
}

/// Its pods that are not told yet to go quickly.
fn slow(eyes: &Eyes, names: &Names) -> impl Iterator<Item = (Key, Arc<PodView>)> {
    let pods = eyes.pods.by(BY_NAMESPACE, &names.namespace).into_iter();
    pods.filter(|(_, pod)| pod.grace.is_none_or(|grace| grace > GRACE.into()))
}

/// Does what is next; answers whether the cluster is gone.
pub async fn end(
    eyes: &Eyes,
    pass: &Pass,
    found: &Found,
    account: Option<Account>,
    ending: &Ending,
) -> Result<bool, ActError> {
    let (names, cluster) = (&found.names, &found.cluster);
    match ending {
        Ending::Waits => Ok(false),
        Ending::Pods => {
            // Not with their pods: these would be told to go with the grace that they have in life, and no kubelet is held to a shorter one later.
            let labels = format!("{}={}", names::CLUSTER, names.name);
            if workloads_left(eyes, names) {
                let (writer, within) = (pass.writer(), &names.namespace);
                // They go when no pod uses them any more. Found in a namespace that ends, they would hold it for eight seconds more.
                let background = PropagationPolicy::Background;
                writer.delete_all::<PersistentVolumeClaim>(within, &labels, background).await?;
                writer.delete_all::<Deployment>(within, &labels, PropagationPolicy::Orphan).await?;
                writer.delete_all::<ReplicaSet>(within, &labels, PropagationPolicy::Orphan).await?;
                writer.delete_all::<StatefulSet>(within, &labels, PropagationPolicy::Orphan).await?;
            }
            // An API server whose etcd is gone would wait for it as long as it may.
            for (key, pod) in slow(eyes, names).take(AT_ONCE) {
                match pass.writer().hurry::<Pod>(&key, &pod.replica.uid, GRACE).await {
                    Ok(_) | Err(WriteError::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(false)
        }
        Ending::Namespace => {
            let key = Key::cluster(&names.namespace);
            if let Some(namespace) = eyes.namespace(names) {
                match pass.writer().delete(&eyes.namespaces, &key, &namespace.uid, &namespace.version).await {
                    Ok(()) | Err(WriteError::Gone(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(false)
        }
        Ending::Gone => {
            // A cache may not have seen yet what an operator before us made.
            let api: kube::Api<Namespace> = kube::Api::all(pass.client());
            // A read that failed says nothing: what is deleted from here on is needed if the namespace exists.
            let there = api.get_opt(&names.namespace).await.map_err(|error| unread(names, &error))?;
            let labelled = there.filter(|one| names.owns(one.labels())).map(NamespaceView::of);
            if let Some(namespace) = labelled
                && (names.is_recorded(cluster.0.status.as_ref(), &namespace.uid)
                    || claim::is_proven(eyes, pass, names, &cluster.0, &namespace).await?)
            {
                claim::discard(eyes, pass, names, account, &namespace).await?;
                return Ok(false);
            }
            // A cluster of the same name that comes after it gets keys of its own.
            let copy = Key::new(&eyes.keys, &names.sealed_keys());
            if eyes.secrets.get(&copy).is_some() {
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
            match pass.writer().json_patch(&eyes.clusters, pass.key(), patch).await {
                Ok(()) | Err(WriteError::Gone(_)) => Ok(true),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Whether the namespace exists could not be read.
fn unread(names: &Names, error: &kube::Error) -> WriteError {
    let what = format!("deletion of Cluster {}/{}", names.fleet, names.name);
    let message = format!("cannot read Namespace {}: {}", names.namespace, said(error));
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
