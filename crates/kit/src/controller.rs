//! The five functions of a controller.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{Key, Pass, ReportedError, StepError};

/// Reconciles the objects of one kind.
///
/// Expected flow of a pass: [`dereference`](Self::dereference) gathers all objects that are needed, from caches if possible;
/// [`validate`](Self::validate) turns them into the input of the decision; [`decide`](Self::decide) returns the next steps, as data;
/// [`act`](Self::act) carries them out; [`report`](Self::report) records the observed state and the results, and when to run the next pass. A step
/// that fails ends the pass; its error is given to [`report`](Self::report), which makes it a condition. The kit makes it a metric, a line in the log
/// and an event by itself, once for each object and reason, until a pass succeeds.
///
/// Not reported: a conflict with another writer ([`Remedy::DecideAgain`](crate::Remedy::DecideAgain); the pass is repeated, and only after the fifth
/// time in a row it counts as an error), a lease that could have expired, and an error of dereference, which has found nothing to report on.
///
/// Guarantees: at most one pass of a key at a time, only while this process leads, with caches that contain our last write.
pub trait Controller: Send + Sync + 'static {
    /// Name in lower case, for logs, metrics and field managers.
    const NAME: &'static str;
    /// Maximum number of calls of one pass, enforced in tests.
    const BUDGET: Budget;

    /// Result of dereference.
    type Found: Send + Sync;
    /// Result of validate: the input of the decision.
    type Valid: Send + Sync;
    /// Result of decide: the next steps.
    type Decision: Send + Sync;
    /// Result of act.
    type Done: Send + Sync;

    /// Error of dereference.
    type DereferenceError: StepError;
    /// Error of validate.
    type ValidateError: StepError;
    /// Error of act.
    type ActError: StepError;
    /// Error of report.
    type ReportError: StepError;

    /// The object, for events about it: see [`events::reference`](crate::events::reference). `found` is `None` if dereference failed.
    fn about(&self, key: &Key, found: Option<&Self::Found>) -> ObjectReference;

    /// Gathers the needed objects; `None` if there is nothing to do because the object is gone.
    fn dereference(
        &self,
        pass: &Pass,
    ) -> impl Future<Output = Result<Option<Self::Found>, Self::DereferenceError>> + Send;

    /// Checks the rules that the schema cannot express.
    ///
    /// # Errors
    /// The error names the object, the field, the allowed values and what to do.
    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Self::ValidateError>;

    /// Decides the next steps.
    fn decide(&self, valid: &Self::Valid, now: Timestamp) -> Self::Decision;

    /// Carries out the decision.
    fn act(
        &self,
        pass: &Pass,
        valid: &Self::Valid,
        decision: &Self::Decision,
    ) -> impl Future<Output = Result<Self::Done, Self::ActError>> + Send;

    /// Records the observed state and the results, and returns when to run the next pass.
    fn report(
        &self,
        pass: &Pass,
        found: &Self::Found,
        outcome: Outcome<'_, Self>,
    ) -> impl Future<Output = Result<Next, Self::ReportError>> + Send;
}

/// Result of the steps before the report.
pub enum Outcome<'a, C: Controller + ?Sized> {
    /// All steps succeeded.
    Done {
        /// Input of the decision.
        valid: &'a C::Valid,
        /// The decision.
        decision: &'a C::Decision,
        /// Result of the act.
        done: &'a C::Done,
    },
    /// A step failed. The results of the steps before it are given.
    Failed {
        /// The error.
        trouble: &'a ReportedError,
        /// Input of the decision, if validate succeeded.
        valid: Option<&'a C::Valid>,
        /// The decision, if there was one.
        decision: Option<&'a C::Decision>,
    },
}

/// When to run the next pass of an object, besides when something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At the next deep check.
    AwaitChange,
    /// At that time.
    At(Timestamp),
    /// After that long.
    After(Duration),
}

/// Maximum number of calls of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Calls that read.
    pub reads: u32,
    /// Calls that write.
    pub writes: u32,
}

/// Options of a controller.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of concurrent passes.
    pub workers: usize,
    /// Interval of passes without a change; jittered. [`Pass::deep`] is true in them.
    pub deep_check: Option<Duration>,
    /// First backoff after an error; doubles up to `longest_backoff`.
    pub backoff: Duration,
    /// Longest backoff after consecutive errors.
    pub longest_backoff: Duration,
    /// Minimum time between the starts of two passes of one object. For objects that only aggregate others.
    pub at_most_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 8,
            deep_check: Some(Duration::from_secs(6 * 3600)),
            backoff: Duration::from_millis(200),
            longest_backoff: Duration::from_secs(120),
            at_most_every: Duration::ZERO,
        }
    }
}
