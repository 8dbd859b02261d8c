//! A controller whose pass is one function: those of a simulated cluster decide nothing that a person would want to see as a plan.

use std::convert::Infallible;
use std::future::Future;

use fleetwright_kit::events::reference;
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, Remedy, StepError, WriteError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

/// Brings one object to what it declares.
pub(super) trait Reconciler: Send + Sync + 'static {
    /// In lower case, for logs and field managers.
    const NAME: &'static str;
    /// The kind of its objects.
    type Kind: Resource<DynamicType = ()>;

    /// Whether there is such an object. If there is none, what was kept for it is let go.
    fn exists(&self, key: &Key) -> bool;

    /// One look at one object.
    fn reconcile(&self, pass: &Pass) -> impl Future<Output = Result<Next, ReconcileError>> + Send;
}

/// Why a look came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    /// A write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read, or a write of another kind.
    #[error(transparent)]
    Call(#[from] kube::Error),
    /// Something of the machine that all of this runs on.
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
            // Of a namespace that is just being made or taken down: neither is told by an event of the object.
            Self::Write(WriteError::Refused { code: 403 | 404, .. }) => Remedy::Retry,
            Self::Write(error) => error.remedy(),
            Self::Call(kube::Error::Api(status)) if status.is_conflict() => Remedy::DecideAgain,
            Self::Call(_) | Self::Machine(_) => Remedy::Retry,
        }
    }
}

/// The controller of a reconciler.
pub(super) struct ReconcilerController<K>(pub(super) K);

impl<K: Reconciler> Controller for ReconcilerController<K> {
    const NAME: &'static str = K::NAME;
    /// Simulated, so that nobody counts.
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
