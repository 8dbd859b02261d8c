//! Common functions of Operations on clusters: attempts, permission to continue, and the end of Operations that are no longer wanted.

use std::time::Duration;

use fleetwright_api::{Operation, OperationPhase};
use fleetwright_kit::journal::{Act, CallOutcome, Intent, Journal, JournalError, OperationKey, ProbeResult, Progress};
use fleetwright_kit::{Key, Next, Pass};
use fleetwright_plan::cluster::extensions::EXTENSION_PRUNE;
use fleetwright_plan::cluster::members::OPERATIONS;
use fleetwright_plan::cluster::release::{CLUSTER_DELETE, RELEASE_MACHINES};
use fleetwright_plan::cluster::restore::RESTORE;
use jiff::Timestamp;

use crate::caches::Caches;
use crate::cluster::Clusters;
use crate::connect::MetaAccess;
use crate::deletion_operation::DELETED;
use crate::joined::RELEASED;

/// Target kind of the Operations.
pub const KIND: &str = "Cluster";
/// Retention of Operations that have ended.
pub const KEEP_OPERATIONS: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of Operations that a pass ends.
const MAX_CLOSED_PER_PASS: usize = 3;

/// The intent of the first attempt that has not ended.
pub fn attempt(journal: &Journal, mut intent: Intent) -> Intent {
    let known = journal.of_target(&intent.target.kind, &intent.target.name);
    let act = std::mem::take(&mut intent.fingerprint);
    for attempt in 1_u32.. {
        intent.fingerprint = format!("{act}-{attempt}");
        let own = journal.key(&intent);
        let ended = known.iter().find(|(key, _)| *key == own).is_some_and(|(_, operation)| ended(&operation.0));
        if !ended {
            break;
        }
    }
    intent
}

pub fn phase(operation: &Operation) -> OperationPhase {
    operation.status.as_ref().map_or(OperationPhase::Pending, |status| status.phase)
}

fn ended(operation: &Operation) -> bool {
    matches!(phase(operation), OperationPhase::Succeeded | OperationPhase::Failed)
}

/// When to run the next pass for an Operation with that progress; after `again` if it failed.
pub fn next(progress: &Progress, again: Duration, now: Timestamp) -> Option<Timestamp> {
    match (progress, progress.next()) {
        (Progress::Failed(_) | Progress::NeverStarted, _) => now.checked_add(again).ok(),
        (Progress::Succeeded(_), _) => Some(now),
        (_, Next::At(at)) => Some(at),
        (_, Next::After(wait)) => now.checked_add(wait).ok(),
        (_, Next::AwaitChange) => None,
    }
}

/// Whether an act of several calls may continue. Checked before each write: the call before may have taken long.
pub struct Permit<'a> {
    pub meta: MetaAccess,
    pub caches: &'a Caches,
    pub key: &'a Key,
}

impl Permit<'_> {
    /// Why the act may not continue, if it may not.
    pub fn check(&self) -> Result<(), String> {
        if !self.meta.leads() {
            return Err("the leader election lease may have expired".to_owned());
        }
        match self.caches.clusters.get(self.key).is_some_and(|cluster| cluster.0.spec.paused) {
            true => Err("the Cluster is paused".to_owned()),
            false => Ok(()),
        }
    }
}

impl Clusters {
    /// Ends Operations of these types that are no longer wanted: they would hold their places for ever. For a started one without a known outcome,
    /// `outcome` determines it.
    pub(crate) async fn close(
        &self,
        pass: &Pass,
        types: &[&str],
        wanted: impl Fn(&Key, &Operation) -> bool + Send + Sync,
        outcome: impl Fn(&Operation) -> ProbeResult + Send + Sync,
    ) -> Result<(), JournalError> {
        let open = self.journal.of_target(KIND, &pass.key().name).into_iter().filter(|(key, operation)| {
            let own = types.contains(&operation.0.spec.type_.as_str());
            own && !ended(&operation.0) && !wanted(key, &operation.0)
        });
        let open: Vec<_> = open.take(MAX_CLOSED_PER_PASS).collect();
        for (key, operation) in open {
            if self.journal.withdraw(pass, &key, "no longer needed").await? {
                continue;
            }
            let spec = operation.0.spec.clone();
            let intent = Intent {
                type_: spec.type_,
                target: spec.target,
                reason: spec.reason,
                fingerprint: spec.fingerprint,
                keep_for: Some(spec.keep_for),
            };
            self.journal.drive(pass, &SupersededAct { intent, outcome: outcome(&operation.0) }).await?;
        }
        Ok(())
    }

    /// The Cluster is deleted: none of its Operations is wanted any more. With `deleted`, the namespace is terminating or gone, which ends the
    /// Operation of the deletion. With `released`, no machine was joined when the deletion started.
    pub(crate) async fn close_all(&self, pass: &Pass, released: bool, deleted: bool) -> Result<(), JournalError> {
        let types: Vec<&str> = types().filter(|one| deleted || *one != CLUSTER_DELETE).collect();
        let outcome = |operation: &Operation| match operation.spec.type_.as_str() {
            RELEASE_MACHINES if released => ProbeResult::Succeeded(RELEASED.to_owned()),
            CLUSTER_DELETE => ProbeResult::Succeeded(DELETED.to_owned()),
            _ => ProbeResult::Failed("outcome unknown; the Cluster is deleted".to_owned()),
        };
        self.close(pass, &types, |_, _| false, outcome).await
    }

    /// Whether an Operation of that Cluster is open that another call of [`close_all`](Self::close_all) ends.
    pub(crate) fn has_open(&self, cluster: &str) -> bool {
        // Only a person ends one whose outcome is unknown.
        let open = |one: &Operation| !ended(one) && phase(one) != OperationPhase::Unknown;
        let known = self.journal.of_target(KIND, cluster);
        known.iter().any(|(_, one)| open(&one.0) && types().any(|type_| type_ == one.0.spec.type_))
    }
}

/// Types of the Operations on clusters.
fn types() -> impl Iterator<Item = &'static str> {
    OPERATIONS.into_iter().chain([RELEASE_MACHINES, EXTENSION_PRUNE, RESTORE, CLUSTER_DELETE])
}

/// An act without a known outcome that is no longer wanted.
struct SupersededAct {
    intent: Intent,
    outcome: ProbeResult,
}

impl Act for SupersededAct {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        CallOutcome::Failed("no longer needed".to_owned())
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        self.outcome.clone()
    }
}
