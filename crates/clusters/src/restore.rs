//! The Operation of a restore: it is started before anything is stopped, and ends when the cluster works with the data of the snapshot.

use std::time::Duration;

use fleetwright_api::{
    Amount, Operation, OperationPhase, OperationPolicySpec, RestoreStage, Restoring, Span, Target, condition, names,
};
use fleetwright_kit::Pass;
use fleetwright_kit::journal::{Act, CallOutcome, Intent, OperationKey, ProbeResult};
use fleetwright_plan::cluster::restore::{RESTORE, Restore, RestoreOperation};
use jiff::Timestamp;

use crate::cluster::{Clusters, Found};
use crate::errors::ActError;
use crate::messages::truncated;
use crate::operations::{self, KEEP_OPERATIONS, KIND, phase};

/// Name of the default policy for restores, if no other policy exists.
const POLICY: &str = "restores";
/// Wait before the attempt after an abandoned one.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl Clusters {
    /// State of the Operation of the restore in progress.
    pub(crate) fn restore_started(&self, cluster: &str, restoring: Option<&Restoring>) -> RestoreOperation {
        let Some(restoring) = restoring else { return RestoreOperation::default() };
        let mut started = RestoreOperation::default();
        for (_, operation) in self.journal.of_target(KIND, cluster).iter().filter(|(_, one)| is_of(&one.0, restoring)) {
            match phase(&operation.0) {
                OperationPhase::Running => started.running = true,
                OperationPhase::Pending => {
                    let conditions =
                        operation.0.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
                    started.waits = condition(conditions, names::GRANTED).map(|one| one.message.clone());
                }
                _ => {}
            }
        }
        started
    }

    /// Drives the Operation of the restore, and ends those of restores that have finished or were withdrawn. Returns when to run the next pass.
    pub(crate) async fn drive_restore(
        &self,
        pass: &Pass,
        found: &Found,
        restore: Option<&Restore>,
    ) -> Result<Option<Timestamp>, ActError> {
        let status = found.status();
        let under_way = status.restoring.as_ref().filter(|one| one.stage != RestoreStage::Cleaning);
        let wanted = |operation: &Operation| under_way.is_some_and(|restoring| is_of(operation, restoring));
        self.close(
            pass,
            &[RESTORE],
            |_, operation| wanted(operation),
            |operation| {
                let started = operation.status.as_ref().and_then(|status| status.started_at);
                match status.restored.as_ref().filter(|restored| started.is_some_and(|at| restored.at >= at)) {
                    Some(restored) => ProbeResult::Succeeded(format!("restored snapshot {}", restored.snapshot)),
                    None => ProbeResult::Failed(match under_way.filter(|one| one.stage != RestoreStage::Checking) {
                        Some(other) => {
                            format!("superseded: snapshot {} is restored instead", other.snapshot)
                        }
                        None => "the restore was withdrawn before anything was stopped".to_owned(),
                    }),
                }
            },
        )
        .await?;
        let Some(restore) = restore else { return Ok(None) };
        let snapshot = match &restore.cluster {
            Some(cluster) => format!("{cluster}/{}", restore.snapshot),
            None => restore.snapshot.clone(),
        };
        let intent = Intent {
            type_: RESTORE.to_owned(),
            target: Target { kind: KIND.to_owned(), name: pass.key().name.to_string(), labels: [].into() },
            reason: truncated(&format!("restoring snapshot {snapshot}: all components are stopped for it")),
            fingerprint: restore.id.clone(),
            keep_for: Some(Span(KEEP_OPERATIONS)),
        };
        let act = RestoreAct { pass, intent: operations::attempt(&self.journal, intent) };
        self.journal.limit(pass, POLICY, policy()).await?;
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %pass.key(), restore = restore.id, ?progress, "restoring a snapshot");
        Ok(operations::next(&progress, RETRY_AFTER, pass.clock().now()))
    }
}

fn is_of(operation: &Operation, restoring: &Restoring) -> bool {
    let attempt = operation.spec.fingerprint.strip_prefix(&Restore::of(restoring).id);
    operation.spec.type_ == RESTORE && attempt.is_some_and(|attempt| attempt.starts_with('-'))
}

/// Default number of concurrent restores in all clusters.
fn policy() -> OperationPolicySpec {
    let operations = vec![RESTORE.to_owned()];
    OperationPolicySpec { operations, scope: None, max: Amount::Count(10), at_least: 1 }
}

/// Starting this act changes nothing: it allows the stages in the Cluster's status to start, each of which can be continued after a crash. Therefore
/// a process that finds the act started continues it.
struct RestoreAct<'a> {
    pass: &'a Pass,
    intent: Intent,
}

impl Act for RestoreAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        match self.pass.leads() {
            true => CallOutcome::Unknown("running stage by stage".to_owned()),
            false => CallOutcome::Failed("the leader election lease may have expired".to_owned()),
        }
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        ProbeResult::StillRunning
    }
}
