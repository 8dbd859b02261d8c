//! A controller with a single function per pass: simulated controllers make no decisions that need a plan.

use std::convert::Infallible;
use std::future::Future;

use fleetwright_kit::events::reference;
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, Remedy, StepError, WriteError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

/// Reconciles objects of one kind.
pub(super) trait Reconciler: Send + Sync + 'static {
    /// The name for logs and field managers, in lower case.
    const NAME: &'static str;
    /// The kind of the objects.
    type Kind: Resource<DynamicType = ()>;

    /// Whether the object exists. If it does not, the state that was kept for it is dropped.
    fn exists(&self, key: &Key) -> bool;

    /// Reconciles one object once.
    fn reconcile(&self, pass: &Pass) -> impl Future<Output = Result<Next, ReconcileError>> + Send;
}

/// The reason why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    /// A failed write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A failed read, or a write that does not use the writer.
    #[error(transparent)]
    Call(#[from] kube::Error),
    /// An error of the system that runs the simulation.
    #[error("{0}")]
    Machine(String),
}

impl StepError for ReconcileError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Call(_) => "CallFailed",
            Self::Machine(_) => "MachineFailed",
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            // The namespace was just created or is terminating; the object gets no event about either.
            Self::Write(WriteError::Refused { code: 403 | 404, .. }) => Remedy::Retry,
            Self::Write(error) => error.remedy(),
            Self::Call(kube::Error::Api(status)) if status.is_conflict() => Remedy::DecideAgain,
            Self::Call(_) | Self::Machine(_) => Remedy::Retry,
        }
    }
}

/// The controller that runs a reconciler.
pub(super) struct ReconcilerController<K>(pub(super) K);

impl<K: Reconciler> Controller for ReconcilerController<K> {
    const NAME: &'static str = K::NAME;
    /// Without a limit in practice: call counts of the simulation do not matter.
    const BUDGET: Budget = Budget { reads: 10_000, writes: 10_000 };

    type Found = ();
    type Valid = ();
    type Decision = ();
    type Done = Next;

    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = ReconcileError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, _: Option<&()>) -> ObjectReference {
        reference::<K::Kind>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<()>, Infallible> {
        Ok(self.0.exists(pass.key()).then_some(()))
    }

    fn validate(&self, (): &()) -> Result<(), Infallible> {
        Ok(())
    }

    fn decide(&self, (): &(), _: Timestamp) {}

    async fn act(&self, pass: &Pass, (): &(), (): &()) -> Result<Next, ReconcileError> {
        self.0.reconcile(pass).await
    }

    async fn report(&self, _: &Pass, (): &(), outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(match outcome {
            Outcome::Done { done, .. } => *done,
            Outcome::Failed { .. } => Next::AwaitChange,
        })
    }
}
