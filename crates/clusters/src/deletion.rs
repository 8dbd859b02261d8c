//! Deletion of a cluster: protection is checked first, then everything is deleted at once.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{ClusterPhase, ClusterStatus, Condition, ControlPlaneComponent, RestoreStage, Status, names};
use fleetwright_kit::{JsonPatch, Key, Pass, View as _, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::release::{self, DeletionHold, JoinedAnswer};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::PropagationPolicy;

use crate::access::Account;
use crate::caches::{BY_NAMESPACE, Caches};
use crate::cluster::{Clusters, Done, Found};
use crate::deletion_operation::DeletionGrant;
use crate::errors::ActError;
use crate::messages::api_error_message;
use crate::namespace_claim;
use crate::operations::Permit;
use crate::view::{ClusterView, NamespaceView, PodView};

/// Grace period in seconds of the cluster's pods: their work is no longer needed.
const GRACE: u32 = 1;
/// Pods deleted per pass; each terminated pod triggers a pass for the rest.
const AT_ONCE: usize = 16;

/// Interval between two passes that end the Operations of a cluster that is gone.
const CLOSE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// State of the deletion of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionState {
    /// The pods are deleted next. The deletion of the namespace would delete them too, but with their full grace period, and the namespace controller
    /// checks again only later.
    Pods,
    /// The namespace is deleted next: Kubernetes starts to delete its contents five seconds later, and by then the pods are gone.
    Namespace,
    /// The namespace is terminating.
    Waits,
    /// Nothing is left.
    Gone,
}

impl DeletionState {
    /// Whether the next step deletes something, which only an Operation allows.
    pub fn deletes(&self) -> bool {
        matches!(self, Self::Pods | Self::Namespace)
    }
}

/// Whether the cluster is marked for deletion and protected: it is reconciled as if it were not marked.
pub fn protected(cluster: &ClusterView) -> bool {
    cluster.0.metadata.deletion_timestamp.is_some() && cluster.0.spec.deletion_protection
}

/// Whether the cluster is marked for deletion, and only `spec.paused` blocks the deletion.
pub fn paused(cluster: &ClusterView) -> bool {
    cluster.0.metadata.deletion_timestamp.is_some() && cluster.0.spec.paused && !cluster.0.spec.deletion_protection
}

/// State of the deletion of that cluster with that namespace; `None` if it is not being deleted, protected, or paused.
pub fn ending(
    caches: &Caches,
    namespace: Option<&NamespaceView>,
    names: &Names,
    cluster: &ClusterView,
) -> Option<DeletionState> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    if protected(cluster) || cluster.0.spec.paused {
        return None;
    }
    Some(match namespace {
        Some(namespace) if namespace.ending => DeletionState::Waits,
        Some(_) if workloads_left(caches, names) || slow(caches, names).next().is_some() => DeletionState::Pods,
        Some(_) => DeletionState::Namespace,
        None => DeletionState::Gone,
    })
}

/// Whether machines block the deletion of a cluster with that namespace. Both functions must be given the same one: machines block nothing if there is
/// none. Machines are not checked for a cluster that was never created, nor after the deletion has
/// started.
pub fn deletion_hold(
    caches: &Caches,
    answer: Option<&JoinedAnswer>,
    namespace: Option<&NamespaceView>,
    names: &Names,
    cluster: &ClusterView,
    now: Timestamp,
) -> Option<DeletionHold> {
    cluster.0.metadata.deletion_timestamp.as_ref()?;
    cluster.0.status.as_ref().and_then(|status| status.package_version.as_ref())?;
    let here = namespace.is_some_and(|namespace| !namespace.ending);
    if protected(cluster) || cluster.0.spec.paused || !here || has_started(caches, names, cluster) {
        return None;
    }
    let stage = cluster.0.status.as_ref().and_then(|status| status.restoring.as_ref()).map(|restoring| restoring.stage);
    let stopped = stage.is_some_and(|stage| !matches!(stage, RestoreStage::Checking | RestoreStage::Cleaning));
    let answer = answer.cloned().map(|answer| if stopped { answer.while_restoring() } else { answer });
    release::deletion_hold(cluster.0.spec.on_delete, answer.as_ref(), now)
}

/// Whether the deletion has deleted something. A missing Deployment alone does not show it: people delete Deployments, because the operator recreates
/// them. The deletion starts with the claims, and is recorded in the status after its first pass.
pub fn has_started(caches: &Caches, names: &Names, cluster: &ClusterView) -> bool {
    if cluster.0.status.as_ref().is_some_and(|status| status.phase == Some(ClusterPhase::Deleting)) {
        return true;
    }
    let claims = caches.claims(&names.namespace);
    let ends = match claims.is_empty() {
        true => cluster.0.spec.datastore.etcd.is_some() && !workloads_left(caches, names),
        false => claims.iter().all(|claim| claim.ending),
    };
    !is_served(caches, names) && ends
}

/// Whether something is terminating or missing that the deletion deletes first. That is no proof without the Operation of the deletion: people delete
/// Deployments, and members of etcd are replaced with their claims.
pub fn has_deleted(caches: &Caches, names: &Names, cluster: &ClusterView) -> bool {
    let etcd = cluster.0.status.as_ref().and_then(|status| status.etcd.as_ref());
    let members = etcd.map_or(0, |etcd| etcd.members as usize);
    let claims = caches.claims(&names.namespace);
    !is_served(caches, names) || claims.len() < members || claims.iter().any(|claim| claim.ending)
}

/// Whether the Deployment of the API servers exists.
fn is_served(caches: &Caches, names: &Names) -> bool {
    caches.deployments.get(&Key::new(&names.namespace, ControlPlaneComponent::Apiserver.binary())).is_some()
}

fn workloads_left(caches: &Caches, names: &Names) -> bool {
    ControlPlaneComponent::ALL.iter().any(|component| {
        let key = Key::new(&names.namespace, component.binary());
        caches.deployments.get(&key).is_some() || caches.stateful_sets.get(&key).is_some()
    })
}

/// Pods of the cluster that are not terminating with the short grace period yet.
fn slow(caches: &Caches, names: &Names) -> impl Iterator<Item = (Key, Arc<PodView>)> {
    let pods = caches.pods.by(BY_NAMESPACE, &names.namespace).into_iter();
    pods.filter(|(_, pod)| pod.grace.is_none_or(|grace| grace > GRACE.into()))
}

impl Clusters {
    /// Does the next step of the deletion. Nothing is deleted unless the Operation of the deletion is running.
    pub(crate) async fn delete(&self, pass: &Pass, found: &Found, ending: &DeletionState) -> Result<Done, ActError> {
        let (caches, released) = (&self.caches, self.askers.none_joined(pass.key()));
        match ending {
            DeletionState::Pods | DeletionState::Namespace => {
                match self.ask_to_delete(pass, found).await? {
                    Some(DeletionGrant::Granted) => {
                        // Not before: until then the cluster is reconciled, and a restore continues.
                        self.close_all(pass, released, false).await?;
                        let permit = Permit { meta: self.extenders.meta(), caches, key: pass.key() };
                        delete_contents(&permit, pass, &found.names, ending).await?;
                        Ok(Done::KEPT)
                    }
                    Some(DeletionGrant::Waits(why, next)) => Ok(Done::Kept { waits: Some(why), next, trouble: None }),
                    Some(DeletionGrant::Ended(next)) => Ok(Done::Kept { waits: None, next, trouble: None }),
                    None => Ok(Done::KEPT),
                }
            }
            DeletionState::Waits => {
                self.close_all(pass, released, true).await?;
                Ok(Done::KEPT)
            }
            DeletionState::Gone => {
                if !is_gone(caches, pass, found, self.account).await? {
                    return Ok(Done::KEPT);
                }
                // Before the finalizer is removed: no later pass ends them.
                self.close_all(pass, released, true).await?;
                if self.has_open(&pass.key().name) {
                    let next = pass.now().checked_add(CLOSE_AGAIN_AFTER).ok();
                    return Ok(Done::Kept { waits: None, next, trouble: None });
                }
                forget(caches, pass, found).await?;
                Ok(Done::Gone)
            }
        }
    }

    /// Asks the gate for the deletion; `None` if the namespace is terminating or gone, and a pass for that follows.
    pub(crate) async fn ask_to_delete(&self, pass: &Pass, found: &Found) -> Result<Option<DeletionGrant>, ActError> {
        match self.caches.namespace(&found.names).filter(|namespace| !namespace.ending) {
            Some(namespace) => Ok(Some(self.drive_deletion(pass, found, &namespace).await?)),
            None => Ok(None),
        }
    }
}

/// Does the next step of the deletion in the namespace. Before each call, it checks that the operator still leads and the Cluster is not paused.
async fn delete_contents(
    permit: &Permit<'_>,
    pass: &Pass,
    names: &Names,
    ending: &DeletionState,
) -> Result<(), ActError> {
    let caches = permit.caches;
    let check = || {
        let what = format!("deletion of Cluster {}/{}", names.fleet, names.name);
        permit.check().map_err(|message| WriteError::Conflict { what, message })
    };
    match ending {
        DeletionState::Waits | DeletionState::Gone => Ok(()),
        DeletionState::Pods => {
            // Not with their pods: the garbage collector would delete these with their normal grace period, and the kubelet does not apply a shorter
            // one afterwards.
            let labels = format!("{}={}", names::CLUSTER, names.name);
            if workloads_left(caches, names) {
                let (writer, within) = (pass.writer(), &names.namespace);
                // Volume claims are removed when no pod uses them any more. A claim in a terminating namespace would delay its removal by eight
                // seconds.
                let background = PropagationPolicy::Background;
                check()?;
                writer.delete_all::<PersistentVolumeClaim>(within, &labels, background).await?;
                check()?;
                writer.delete_all::<Deployment>(within, &labels, PropagationPolicy::Orphan).await?;
                check()?;
                writer.delete_all::<ReplicaSet>(within, &labels, PropagationPolicy::Orphan).await?;
                check()?;
                writer.delete_all::<StatefulSet>(within, &labels, PropagationPolicy::Orphan).await?;
            }
            // An API server whose etcd is gone would use its whole grace period to wait for etcd.
            for (key, pod) in slow(caches, names).take(AT_ONCE) {
                check()?;
                match pass.writer().hurry::<Pod>(&key, &pod.replica.uid, GRACE).await {
                    Ok(_) | Err(WriteError::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        }
        DeletionState::Namespace => {
            let key = Key::cluster(&names.namespace);
            if let Some(namespace) = caches.namespace(names) {
                check()?;
                match pass.writer().delete(&caches.namespaces, &key, &namespace.uid, &namespace.version).await {
                    Ok(()) | Err(WriteError::Gone(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        }
    }
}

/// Whether nothing is left of the cluster. A namespace in which nothing was created yet is deleted.
async fn is_gone(caches: &Caches, pass: &Pass, found: &Found, account: Option<Account>) -> Result<bool, ActError> {
    let (names, cluster) = (&found.names, &found.cluster);
    // The cache may not yet have a namespace that the previous leader created.
    let api: kube::Api<Namespace> = kube::Api::all(pass.client());
    // A failed read proves nothing: if the namespace exists, what is deleted from here on is still needed.
    let there = api.get_opt(&names.namespace).await.map_err(|error| unread(names, &error))?;
    // Without its labels, a namespace with another name than the usual one is known from the status alone.
    let recorded = cluster.0.status.as_ref().and_then(|status| status.namespace.as_deref());
    let former = match recorded.filter(|recorded| *recorded != names.namespace) {
        Some(recorded) => api.get_opt(recorded).await.map_err(|error| unread(names, &error))?,
        None => None,
    };
    if let Some(namespace) = former.as_ref().or(there.as_ref())
        && !names.owns(namespace.labels())
        && namespace.uid().is_some_and(|uid| names.is_recorded(cluster.0.status.as_ref(), &uid))
    {
        return Err(unlabelled(names, &namespace.name_any()).into());
    }
    let labelled = there.filter(|one| names.owns(one.labels())).map(NamespaceView::of);
    let recorded = labelled.as_ref().is_some_and(|one| names.is_recorded(cluster.0.status.as_ref(), &one.uid));
    let created = cluster.0.status.as_ref().is_some_and(|status| status.package_version.is_some());
    if let Some(namespace) = labelled.as_ref().filter(|_| created || recorded) {
        let cached = caches.labelled(names).is_some_and(|cached| cached.uid == namespace.uid);
        // Somebody recreated it: waiting for the cache would never end.
        if cached && !recorded {
            return Err(ActError::Unproven { names: names.clone(), uid: namespace.uid.to_string() });
        }
        // It got its labels back a moment ago, and machines may block its deletion; or another leader created it, and only an Operation may delete
        // what is in it.
        let message = "the namespace exists but is not in the cache yet".to_owned();
        return Err(WriteError::Conflict { what: format!("Namespace {}", names.namespace), message }.into());
    }
    if let Some(namespace) = labelled
        && namespace_claim::is_proven(caches, pass, names, &cluster.0, &namespace).await?
    {
        namespace_claim::discard(caches, pass, names, account, &namespace).await?;
        return Ok(false);
    }
    Ok(true)
}

/// Deletes what is left of the cluster elsewhere, and removes its finalizer.
async fn forget(caches: &Caches, pass: &Pass, found: &Found) -> Result<(), ActError> {
    let (names, cluster) = (&found.names, &found.cluster);
    // A later cluster of the same name gets keys of its own.
    let copy = Key::new(&caches.keys, &names.sealed_keys());
    if let Some(sealed) = caches.secrets.get(&copy) {
        pass.writer().delete_uid::<Secret>(&copy, &sealed.uid, PropagationPolicy::Background).await?;
    }
    let patch = JsonPatch::new().remove_finalizer(&cluster.0.metadata, names::CLUSTER_FINALIZER);
    let Some(patch) = patch else { return Ok(()) };
    match pass.writer().json_patch(&caches.clusters, pass.key(), patch).await {
        Ok(()) | Err(WriteError::Gone(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Error for the namespace of the cluster without its labels: the cluster runs in it, and its keys are still needed.
fn unlabelled(names: &Names, namespace: &str) -> WriteError {
    WriteError::Refused {
        what: format!("deletion of Cluster {}/{}", names.fleet, names.name),
        code: 409,
        message: format!(
            "Namespace {namespace} lacks the labels of this Cluster, so nothing in it was deleted: restore them with kubectl label namespace {namespace} {}, or delete the namespace",
            names.label_arguments()
        ),
    }
}

/// Error for a namespace that could not be read.
fn unread(names: &Names, error: &kube::Error) -> WriteError {
    let what = format!("deletion of Cluster {}/{}", names.fleet, names.name);
    let message = format!("cannot read Namespace {}: {}", names.namespace, api_error_message(error));
    WriteError::Unknown { what, message }
}

/// The status of a cluster that is being deleted.
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
