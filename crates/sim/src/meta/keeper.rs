//! A controller whose pass is one function: those of a simulated cluster decide nothing that a person would want to see as a plan.

use std::convert::Infallible;
use std::future::Future;

use fleetwright_kit::events::reference;
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, Remedy, StepError, WriteError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

/// Brings one object to what it declares.
pub(super) trait Keeper: Send + Sync + 'static {
    /// In lower case, for logs and field managers.
    const NAME: &'static str;
    /// The kind of its objects.
    type Kind: Resource<DynamicType = ()>;

    /// Whether there is such an object. If there is none, what was kept for it is let go.
    fn there(&self, key: &Key) -> bool;

    /// One look at one object.
    fn keep(&self, pass: &Pass) -> impl Future<Output = Result<Next, Failed>> + Send;
}

/// Why a look came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
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

impl StepError for Failed {
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
            Self::Call(kube::Error::Api(status)) if status.is_conflict() => Remedy::Again,
            Self::Call(_) | Self::Machine(_) => Remedy::Retry,
        }
    }
}

/// The controller of a keeper.
pub(super) struct Kept<K>(pub(super) K);

impl<K: Keeper> Controller for Kept<K> {
    const NAME: &'static str = K::NAME;
    /// Simulated, so that nobody counts.
    const BUDGET: Budget = Budget { reads: 10_000, writes: 10_000 };

    type Found = ();
    type Valid = ();
    type Decision = ();
    type Done = Next;

    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = Failed;
    type ReportError = Infallible;

    fn about(&self, key: &Key, _: Option<&()>) -> ObjectReference {
        reference::<K::Kind>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<()>, Infallible> {
        Ok(self.0.there(pass.key()).then_some(()))
    }

    fn validate(&self, (): &()) -> Result<(), Infallible> {
        Ok(())
    }

    fn decide(&self, (): &(), _: Timestamp) {}

    async fn act(&self, pass: &Pass, (): &(), (): &()) -> Result<Next, Failed> {
        self.0.keep(pass).await
    }

    async fn report(&self, _: &Pass, (): &(), outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(match outcome {
            Outcome::Done { done, .. } => *done,
            Outcome::Failed { .. } => Next::Rest,
        })
    }
}
