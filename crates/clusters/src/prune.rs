//! The Operation that deletes orphaned objects of an extension, from its business cluster or from beside the control plane.

use std::time::Duration;

use fleetwright_api::{Amount, ExtensionPlacement, Operation, OperationPolicySpec, Span, Target};
use fleetwright_kit::journal::{Act, CallOutcome, Intent, OperationKey, ProbeResult, Progress};
use fleetwright_kit::{Key, Pass, WriteError};
use fleetwright_plan::cluster::extensions::{EXTENSION, EXTENSION_PRUNE, ExtensionDecision, OrphanedObject, Removal};
use fleetwright_plan::cluster::objects::Kind;
use fleetwright_plan::cluster::{Names, counted};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::PropagationPolicy;

use crate::cluster::{Clusters, Found};
use crate::errors::ActError;
use crate::extension_tasks::{BusinessCluster, PRUNE_AGAIN_AFTER};
use crate::messages::truncated;
use crate::operations::{self, KEEP_OPERATIONS, KIND, Permit};

/// Name of the default policy, if no other policy exists.
const POLICY: &str = "extension-prune";
/// Timeout of a request to an API server.
const WITHIN: Duration = Duration::from_secs(20);

impl Clusters {
    /// Deletes orphaned objects of extensions from that cluster, as far as the gate grants it. Returns when to run the next pass.
    pub(crate) async fn prune(
        &self,
        pass: &Pass,
        found: &Found,
        choice: &ExtensionDecision,
        placement: ExtensionPlacement,
    ) -> Result<Option<Timestamp>, ActError> {
        let key = pass.key();
        let (removal, all_removed) = match placement {
            ExtensionPlacement::Cluster => (&choice.remove, choice.all_removed),
            ExtensionPlacement::Meta => (&choice.prune, choice.all_pruned),
        };
        let intent = removal.as_ref().map(|removal| operations::attempt(&self.journal, intent(removal, &key.name)));
        // Until the business cluster answers, the same objects may still have to be deleted: an Operation that waits for the gate keeps its place in
        // the queue, and the outcome of a started one is unknown.
        if all_removed || intent.is_some() {
            let wanted = intent.as_ref().map(|intent| self.journal.key(intent));
            // If the answer of a started Operation was lost, the cluster shows the outcome.
            let outcome = match &intent {
                None => ProbeResult::Succeeded("no extension has objects left to delete".to_owned()),
                Some(_) => ProbeResult::Failed("outcome unknown; other objects are left".to_owned()),
            };
            let stays = |key: &Key, operation: &Operation| {
                wanted.as_ref() == Some(key) || Removal::placement_of(&operation.spec.fingerprint) != placement
            };
            self.close(pass, &[EXTENSION_PRUNE], stays, |_| outcome.clone()).await?;
        }
        if all_removed && placement == ExtensionPlacement::Meta {
            self.extenders.all_pruned(key);
        }
        let (Some(removal), Some(intent)) = (removal, intent) else { return Ok(None) };
        let permit = Permit { meta: self.extenders.meta(), caches: &self.caches, key };
        let act = PruneAct { permit, pass, names: &found.names, servers: &choice.servers, removal, intent };
        self.journal.limit(pass, POLICY, policy()).await?;
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %key, extension = removal.extension, ?progress, "deleting objects of an extension");
        let now = pass.clock().now();
        let again = operations::next(&progress, PRUNE_AGAIN_AFTER, now);
        match &progress {
            Progress::Waiting { why, .. } | Progress::NeedsPerson(why) => self.extenders.prune_waits(key, removal, why),
            Progress::Running { .. } => {}
            Progress::Succeeded(_) => self.extenders.pruned(key, removal),
            Progress::Failed(why) => self.extenders.prune_failed(key, removal, again.unwrap_or(now), why),
            Progress::NeverStarted => {
                self.extenders.prune_failed(key, removal, again.unwrap_or(now), "the deletion did not start; retrying");
            }
        }
        Ok(again)
    }
}

/// Default number of concurrent Operations in all clusters.
fn policy() -> OperationPolicySpec {
    let operations = vec![EXTENSION_PRUNE.to_owned()];
    OperationPolicySpec { operations, scope: None, max: Amount::Count(10), at_least: 1 }
}

fn intent(removal: &Removal, cluster: &str) -> Intent {
    let first = removal.objects.first().map(|one| one.object.to_string()).unwrap_or_default();
    let place = match removal.placement {
        ExtensionPlacement::Cluster => "in the business cluster",
        ExtensionPlacement::Meta => "beside the control plane",
    };
    let reason = format!(
        "extension {} no longer has {}, such as {first}: deleting {place}",
        removal.extension,
        counted(removal.objects.len(), "object")
    );
    Intent {
        type_: EXTENSION_PRUNE.to_owned(),
        target: Target { kind: KIND.to_owned(), name: cluster.to_owned(), labels: [].into() },
        reason: truncated(&reason),
        fingerprint: removal.fingerprint(),
        keep_for: Some(Span(KEEP_OPERATIONS)),
    }
}

/// Deletes objects of an extension, each by its uid and only while it has the label of its extension: a repetition does no harm, and an object
/// of the same name that was created later is kept.
struct PruneAct<'a> {
    permit: Permit<'a>,
    pass: &'a Pass,
    names: &'a Names,
    servers: &'a [String],
    removal: &'a Removal,
    intent: Intent,
}

#[derive(Clone, Copy)]
enum PruneTarget {
    /// Deletes the objects; returns their number.
    Delete,
    /// Returns the number of existing objects.
    Count,
}

impl Act for PruneAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        match self.run(PruneTarget::Delete).await {
            Ok(deleted) => {
                let all = self.removal.objects.len();
                CallOutcome::Done(format!(
                    "deleted {}; {} already deleted or no longer owned by the extension",
                    counted(deleted, "object"),
                    all - deleted
                ))
            }
            Err(why) => CallOutcome::Failed(why),
        }
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        match self.run(PruneTarget::Count).await {
            Ok(0) => ProbeResult::Succeeded("all are deleted".to_owned()),
            Ok(left) => ProbeResult::Failed(format!("{} not deleted yet", counted(left, "object"))),
            // The act does not continue after the process that started it has ended, and the rest is looked up before the next attempt.
            Err(why) => ProbeResult::Failed(why),
        }
    }

    fn timeout(&self) -> Duration {
        2 * WITHIN
    }
}

impl PruneAct<'_> {
    async fn run(&self, work: PruneTarget) -> Result<usize, String> {
        match self.removal.placement {
            ExtensionPlacement::Cluster => self.on_first_server(work).await,
            ExtensionPlacement::Meta => self.in_meta(work).await.map_err(|why| truncated(&why)),
        }
    }

    /// Reads the objects from the caches: the operator may not read single objects there.
    async fn in_meta(&self, work: PruneTarget) -> Result<usize, String> {
        let (mut done, mut refused) = (0, None);
        for one in &self.removal.objects {
            let Some(kind) = one.object.kind_in_meta().filter(|kind| self.is_there(*kind, one)) else { continue };
            if matches!(work, PruneTarget::Delete) {
                self.permit.check()?;
                let key = Key::new(&self.names.namespace, &one.object.name);
                // An object that may not be deleted does not keep the others.
                if let Err(why) = delete(self.pass, &key, kind, &one.uid).await {
                    refused.get_or_insert(why);
                    continue;
                }
            }
            done += 1;
        }
        refused.map_or(Ok(done), Err)
    }

    fn is_there(&self, kind: Kind, one: &OrphanedObject) -> bool {
        let live = self.permit.caches.object(&self.names.namespace, kind, &one.object.name).unwrap_or_default();
        let metadata = &live["metadata"];
        metadata["uid"] == one.uid && metadata["labels"][EXTENSION] == self.removal.extension
    }

    /// Uses the first API server that answers.
    async fn on_first_server(&self, work: PruneTarget) -> Result<usize, String> {
        let mut done = Err("no API server is verified".to_owned());
        for server in self.servers {
            let at = async {
                let mut place = BusinessCluster::of(&self.permit.meta, self.names, server).await?;
                match work {
                    PruneTarget::Delete => self.delete(&mut place).await,
                    PruneTarget::Count => self.left(&mut place).await,
                }
            };
            let late = |_| Err(format!("the API server did not respond within {} s", WITHIN.as_secs()));
            done = tokio::time::timeout(WITHIN, at).await.unwrap_or_else(late);
            if done.is_ok() {
                break;
            }
        }
        done.map_err(|why| truncated(&why))
    }

    async fn delete(&self, place: &mut BusinessCluster) -> Result<usize, String> {
        let (mut deleted, mut refused) = (0, None);
        for one in &self.removal.objects {
            let there = place.find(&self.removal.extension, &one.object).await?;
            if there.is_some_and(|uid| uid == one.uid) {
                self.permit.check()?;
                if let Err(why) = place.delete(one).await {
                    refused.get_or_insert(why);
                    continue;
                }
                deleted += 1;
            }
        }
        refused.map_or(Ok(deleted), Err)
    }

    async fn left(&self, place: &mut BusinessCluster) -> Result<usize, String> {
        let mut left = 0;
        for one in &self.removal.objects {
            let there = place.find(&self.removal.extension, &one.object).await?;
            left += usize::from(there.is_some_and(|uid| uid == one.uid));
        }
        Ok(left)
    }
}

/// Deletes an object of an extension beside the control plane.
async fn delete(pass: &Pass, key: &Key, kind: Kind, uid: &str) -> Result<(), String> {
    let (writer, policy) = (pass.writer(), PropagationPolicy::Background);
    let deleted = match kind {
        Kind::ConfigMap => writer.delete_uid::<ConfigMap>(key, uid, policy).await,
        Kind::Service => writer.delete_uid::<Service>(key, uid, policy).await,
        Kind::NetworkPolicy => writer.delete_uid::<NetworkPolicy>(key, uid, policy).await,
        Kind::PodDisruptionBudget => writer.delete_uid::<PodDisruptionBudget>(key, uid, policy).await,
        Kind::StatefulSet => writer.delete_uid::<StatefulSet>(key, uid, policy).await,
        Kind::Deployment => writer.delete_uid::<Deployment>(key, uid, policy).await,
    };
    match deleted {
        // With a conflict, another object has its name.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
