//! The Operation of the deletion of a cluster: it is started before anything of the cluster is deleted, and ends when the namespace is terminating
//! with everything in it.

use std::time::Duration;

use fleetwright_api::{Amount, Operation, OperationPhase, OperationPolicySpec, Status, Target, condition, names};
use fleetwright_kit::Pass;
use fleetwright_kit::journal::{Act, CallOutcome, Intent, OperationKey, ProbeResult, Progress};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::release::CLUSTER_DELETE;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::cluster::{Clusters, Found};
use crate::errors::ActError;
use crate::messages::truncated;
use crate::operations::{self, KIND, Permit, phase};
use crate::view::{ClusterView, NamespaceView};

/// Name of the default policy for deletions, if no other policy exists.
const POLICY: &str = "cluster-deletion";
/// Wait before the next attempt, if the deletion did not start.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time within which the cache has a namespace whose deletion succeeded.
const CACHE_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);
/// Outcome of a deletion: everything else is deleted with the namespace.
pub const DELETED: &str = "the namespace is deleted or terminating with everything in it";

/// Whether the deletion may delete now.
pub enum DeletionGrant {
    /// Its Operation is running.
    Granted,
    /// Its Operation is not running: the reason, and when to run the next pass.
    Waits(String, Option<Timestamp>),
    /// Its Operation succeeded, and the cache does not show that yet; when to run the next pass.
    Ended(Option<Timestamp>),
}

impl Clusters {
    /// Why the gate refused the deletion of the cluster with that namespace, if it did.
    pub(crate) fn refused_deletion(&self, cluster: &ClusterView, namespace: &NamespaceView) -> Option<String> {
        let (known, deletion) = (self.journal.of_target(KIND, &cluster.0.name_any()), fingerprint(cluster, namespace));
        let pending = |one: &Operation| is_of(one, &deletion) && phase(one) == OperationPhase::Pending;
        let (_, operation) = known.iter().find(|(_, one)| pending(&one.0))?;
        let granted = condition(&operation.0.status.as_ref()?.conditions, names::GRANTED)?;
        (granted.status == Status::False).then(|| waiting(&granted.message))
    }

    /// Whether the deletion of the cluster with that namespace is running.
    pub(crate) fn deletion_runs(&self, cluster: &ClusterView, namespace: &NamespaceView) -> bool {
        let (known, deletion) = (self.journal.of_target(KIND, &cluster.0.name_any()), fingerprint(cluster, namespace));
        let runs = |one: &Operation| is_of(one, &deletion) && phase(one) == OperationPhase::Running;
        known.iter().any(|(_, one)| runs(&one.0))
    }

    /// Drives the Operation of the deletion. The namespace is the one that is deleted.
    pub(crate) async fn drive_deletion(
        &self,
        pass: &Pass,
        found: &Found,
        namespace: &NamespaceView,
    ) -> Result<DeletionGrant, ActError> {
        let (key, now) = (pass.key(), pass.clock().now());
        let deletion = fingerprint(&found.cluster, namespace);
        if let Some(until) = self.deleted_until(&key.name, &deletion).filter(|until| *until > now) {
            return Ok(DeletionGrant::Ended(Some(until)));
        }
        let intent = Intent {
            type_: CLUSTER_DELETE.to_owned(),
            target: Target { kind: KIND.to_owned(), name: key.name.to_string(), labels: [].into() },
            reason: truncated(&format!(
                "the Cluster is being deleted: deleting Namespace {} with all workloads, volumes and keys in it",
                found.names.namespace
            )),
            fingerprint: deletion,
            keep_for: None,
        };
        let permit = Permit { meta: self.extenders.meta(), caches: &self.caches, key };
        let intent = operations::attempt(&self.journal, intent);
        let act = DeletionAct { permit, names: &found.names, uid: &namespace.uid, intent };
        self.journal.limit(pass, POLICY, policy()).await?;
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %key, ?progress, "deleting a cluster");
        let next = operations::next(&progress, RETRY_AFTER, now);
        let why = match progress {
            Progress::Running { .. } => return Ok(DeletionGrant::Granted),
            Progress::Succeeded(_) => return Ok(DeletionGrant::Ended(next)),
            Progress::Waiting { why, .. } | Progress::NeedsPerson(why) | Progress::Failed(why) => why,
            Progress::NeverStarted => "the deletion did not start; retrying".to_owned(),
        };
        Ok(DeletionGrant::Waits(waiting(&why), next))
    }

    /// Until when the cache may lack the outcome of that deletion, if it succeeded.
    fn deleted_until(&self, cluster: &str, deletion: &str) -> Option<Timestamp> {
        let known = self.journal.of_target(KIND, cluster);
        let done = |one: &Operation| is_of(one, deletion) && phase(one) == OperationPhase::Succeeded;
        let ended = known.iter().filter(|(_, one)| done(&one.0));
        let ended = ended.filter_map(|(_, one)| one.0.status.as_ref()?.ended_at).max()?;
        ended.checked_add(CACHE_TIMEOUT).ok()
    }
}

fn waiting(why: &str) -> String {
    format!("deletion is waiting for its Operation {CLUSTER_DELETE}: {why}")
}

/// Fingerprint of the deletion of that Cluster with that namespace, without the number of the attempt: a person may have given the namespace to a
/// later Cluster of the same name.
fn fingerprint(cluster: &ClusterView, namespace: &NamespaceView) -> String {
    format!("{}-{}", cluster.0.metadata.uid.as_deref().unwrap_or_default(), namespace.uid)
}

/// Whether the Operation is an attempt of the deletion with that fingerprint.
fn is_of(operation: &Operation, deletion: &str) -> bool {
    let attempt = operation.spec.fingerprint.strip_prefix(deletion);
    operation.spec.type_ == CLUSTER_DELETE && attempt.is_some_and(|attempt| attempt.starts_with('-'))
}

/// Default number of concurrent deletions of clusters.
fn policy() -> OperationPolicySpec {
    let operations = vec![CLUSTER_DELETE.to_owned()];
    OperationPolicySpec { operations, scope: None, max: Amount::Count(10), at_least: 1 }
}

/// Starting this act deletes nothing: it allows the steps of the deletion, each of which can be continued after a crash. Therefore a process that
/// finds the act started continues it.
struct DeletionAct<'a> {
    permit: Permit<'a>,
    names: &'a Names,
    /// Uid of the namespace.
    uid: &'a str,
    intent: Intent,
}

impl Act for DeletionAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        match self.permit.check() {
            Ok(()) => CallOutcome::Unknown("deleting step by step".to_owned()),
            Err(why) => CallOutcome::Failed(why),
        }
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        // A namespace that lost its labels is in no cache, and is not deleted.
        match self.permit.caches.namespace(self.names).filter(|namespace| *namespace.uid == *self.uid) {
            Some(namespace) if namespace.ending => ProbeResult::Succeeded(DELETED.to_owned()),
            _ => ProbeResult::StillRunning,
        }
    }
}
