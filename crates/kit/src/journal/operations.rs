//! Deletes Operations whose retention has passed, protects the others from being removed, and applies the outcomes that people record for Operations
//! in phase `Unknown`.

use std::convert::Infallible;
use std::sync::Arc;

use fleetwright_api::{Operation, OperationPhase, OperationStatus};
use fleetwright_plan::operation::{self, AttemptState, OperationStep};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    CachedOperation, Journal, JournalError, OperationKey, is_protected, is_terminating, manual_outcome, phase,
};
use crate::controller::{Budget, Controller, Next, Options, Outcome};
use crate::events::reference;
use crate::{Change, Key, Operator, Pass, WriteError};

/// Index of Operations by type and phase.
pub(super) const COUNTED: &str = "counted";

const PHASES: [(OperationPhase, &str); 6] = [
    (OperationPhase::Pending, "Pending"),
    (OperationPhase::Granted, "Granted"),
    (OperationPhase::Running, "Running"),
    (OperationPhase::Succeeded, "Succeeded"),
    (OperationPhase::Failed, "Failed"),
    (OperationPhase::Unknown, "Unknown"),
];

/// The value in [`COUNTED`]. An operator counts only its own Operations, so that two operators do not count the same ones.
pub(super) fn counted(operation: &CachedOperation) -> String {
    let name = PHASES.iter().find(|(known, _)| *known == phase(operation)).map_or("", |(_, name)| name);
    row(&operation.0.spec.requested_by, &operation.0.spec.type_, name)
}

fn row(requester: &str, type_: &str, phase: &str) -> String {
    format!("{requester}/{type_}/{phase}")
}

pub(super) fn add(operator: &mut Operator, journal: &Journal) {
    let cache = journal.inner.operations.clone();
    let metrics = operator.metrics().clone();
    let requester = journal.inner.name.clone();
    let controller = Operations { journal: journal.clone() };
    let options = Options { workers: 2, deep_check: None, ..Options::default() };
    let _complete =
        operator.controller(controller, options).on(&cache.clone(), move |change: &Change<'_, CachedOperation>| {
            for operation in [change.old, change.new].into_iter().flatten() {
                let type_ = &operation.0.spec.type_;
                for (_, name) in PHASES {
                    metrics.operations(name, type_, cache.count(COUNTED, &row(&requester, type_, name)));
                }
            }
            vec![change.key.clone()]
        });
}

struct Operations {
    journal: Journal,
}

/// An Operation, and what this process knows about its attempt.
#[derive(Clone)]
struct Found {
    operation: Arc<CachedOperation>,
    memory: AttemptState,
}

enum Decision {
    /// Nothing, until that time.
    Nothing(Option<Timestamp>),
    /// Write the outcome that a person recorded.
    RecordManualOutcome(Box<OperationStatus>),
    /// Delete the Operation: its retention has passed.
    Prune,
    /// Add the finalizer.
    Protect,
    /// Remove the finalizer: the Operation is marked for deletion, and its outcome is known.
    Release,
}

impl Controller for Operations {
    const NAME: &'static str = "operations";
    const BUDGET: Budget = Budget { reads: 1, writes: 1 };

    type Found = Found;
    type Valid = Found;
    type Decision = Decision;
    type Done = ();
    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = JournalError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<Operation>(key, found.and_then(|found| found.operation.0.metadata.uid.as_deref()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, Infallible> {
        let Some(operation) = self.journal.inner.operations.get(pass.key()) else {
            self.journal.inner.attempts.forget(pass.key());
            return Ok(None);
        };
        let uid = operation.0.metadata.uid.clone().unwrap_or_default();
        let id = OperationKey { key: pass.key().clone(), uid };
        let token = operation.0.status.as_ref().and_then(|status| status.started_by.as_deref());
        let memory = self.journal.inner.attempts.memory(&id, token);
        Ok(Some(Found { operation, memory }))
    }

    fn validate(&self, found: &Found) -> Result<Found, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, Found { operation, memory }: &Found, now: Timestamp) -> Decision {
        let spec = &operation.0.spec;
        if spec.requested_by != self.journal.inner.name {
            return Decision::Nothing(None);
        }
        let status = operation.0.status.clone().unwrap_or_default();
        if is_terminating(operation) && operation::may_be_removed(&status) {
            return if is_protected(operation) { Decision::Release } else { Decision::Nothing(None) };
        }
        if !is_terminating(operation) && !is_protected(operation) && !status.phase.ended() {
            return Decision::Protect;
        }
        if let Some(due) = operation::prune_at(&status, spec.keep_for.0) {
            return if due <= now { Decision::Prune } else { Decision::Nothing(Some(due)) };
        }
        match operation::next(&status, memory, &manual_outcome(operation), now) {
            OperationStep::RecordManualOutcome(status) => Decision::RecordManualOutcome(status),
            _ => Decision::Nothing(None),
        }
    }

    async fn act(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<(), JournalError> {
        let operation = &found.operation;
        match decision {
            Decision::Nothing(_) => Ok(()),
            Decision::RecordManualOutcome(status) => self.journal.write(pass, operation, status).await,
            Decision::Protect => self.journal.protect(pass, operation).await,
            Decision::Release => self.journal.release(pass, operation).await,
            Decision::Prune => {
                let meta = &operation.0.metadata;
                let (uid, version) = (meta.uid.as_deref(), meta.resource_version.as_deref());
                let (uid, version) = (uid.unwrap_or_default(), version.unwrap_or_default());
                let cache = &self.journal.inner.operations;
                match pass.writer().delete(cache, pass.key(), uid, version).await {
                    // Another writer already did it.
                    Err(WriteError::Gone(_)) => Ok(()),
                    done => Ok(done?),
                }
            }
        }
    }

    async fn report(&self, _: &Pass, _: &Found, outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(match outcome {
            Outcome::Done { decision: Decision::Nothing(Some(due)), .. } => Next::At(*due),
            _ => Next::AwaitChange,
        })
    }
}
