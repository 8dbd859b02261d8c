//! The Operation that deletes orphaned objects of an extension from a business cluster.

use std::time::Duration;

use fleetwright_api::{Amount, OperationPolicySpec, Span, Target};
use fleetwright_kit::Pass;
use fleetwright_kit::journal::{Act, CallOutcome, Intent, OperationKey, ProbeResult, Progress};
use fleetwright_plan::cluster::extensions::{EXTENSION_PRUNE, ExtensionDecision, Removal};
use fleetwright_plan::cluster::{Names, counted};
use jiff::Timestamp;

use crate::cluster::{Clusters, Found};
use crate::errors::ActError;
use crate::extension_tasks::BusinessCluster;
use crate::messages::truncated;
use crate::operations::{self, KEEP_OPERATIONS, KIND, Permit};

/// Name of the default policy, if no other policy exists.
const POLICY: &str = "extension-prune";
/// Timeout of a request to an API server.
const WITHIN: Duration = Duration::from_secs(20);
/// Wait after a failed attempt, before the remaining objects are looked up.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl Clusters {
    /// Deletes orphaned objects of extensions, as far as the gate grants it. Returns when to run the next pass.
    pub(crate) async fn prune(
        &self,
        pass: &Pass,
        found: &Found,
        choice: &ExtensionDecision,
    ) -> Result<Option<Timestamp>, ActError> {
        let key = pass.key();
        let intent =
            choice.remove.as_ref().map(|removal| operations::attempt(&self.journal, intent(removal, &key.name)));
        // Until the business cluster answers, the same objects may still have to be deleted: an Operation that waits for the gate keeps its place in
        // the queue, and the outcome of a started one is unknown.
        if choice.all_removed || intent.is_some() {
            let wanted = intent.as_ref().map(|intent| self.journal.key(intent));
            // If the answer of a started Operation was lost, the business cluster shows the outcome.
            let outcome = match &intent {
                None => ProbeResult::Succeeded("no extension has objects left to delete".to_owned()),
                Some(_) => ProbeResult::Failed("outcome unknown; other objects are left".to_owned()),
            };
            self.close(pass, &[EXTENSION_PRUNE], |key, _| wanted.as_ref() == Some(key), |_| outcome.clone()).await?;
        }
        let (Some(removal), Some(intent)) = (&choice.remove, intent) else { return Ok(None) };
        let permit = Permit { meta: self.extenders.meta(), caches: &self.caches, key };
        let act = PruneAct { permit, names: &found.names, servers: &choice.servers, removal, intent };
        self.journal.limit(pass, POLICY, policy()).await?;
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %key, extension = removal.extension, ?progress, "deleting objects of an extension");
        let now = pass.clock().now();
        let again = operations::next(&progress, RETRY_AFTER, now);
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
    let reason = format!(
        "extension {} no longer has {}, such as {first}: deleting in the business cluster",
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

/// Deletes objects of a business cluster, each by its uid and only while it has the label of its extension: a repetition does no harm, and an object
/// of the same name that was created later is kept.
struct PruneAct<'a> {
    permit: Permit<'a>,
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
        match self.on_first_server(PruneTarget::Delete).await {
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
        match self.on_first_server(PruneTarget::Count).await {
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
        let mut deleted = 0;
        for one in &self.removal.objects {
            let there = place.find(&self.removal.extension, &one.object).await?;
            if there.is_some_and(|uid| uid == one.uid) {
                self.permit.check()?;
                place.delete(one).await?;
                deleted += 1;
            }
        }
        Ok(deleted)
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
