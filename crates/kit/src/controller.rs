//! The five functions of a controller.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{Key, Pass, ReportedError, StepError};

/// What brings the objects of one kind to what they declare.
///
/// Expected flow of a pass: [`dereference`](Self::dereference) gathers everything that is needed, from caches if possible;
/// [`validate`](Self::validate) turns it into what the decision may rely on; [`decide`](Self::decide) says what to do next, as data;
/// [`act`](Self::act) does it; [`report`](Self::report) writes down what was seen and done, and when to look again.
/// A step that fails ends the pass; its error is given to [`report`](Self::report), which makes it a condition. The kit makes it a metric,
/// a line in the log and an event by itself, once for each object and reason, until a pass goes well.
///
/// Not reported: that somebody else wrote in between ([`Remedy::DecideAgain`](crate::Remedy::DecideAgain); the pass is repeated, and only after the fifth time in a
/// row it counts as an error), that the lease could have ended, and an error of dereference, which has found nothing to report on.
///
/// Guarantees: at most one pass of a key at a time, only while we lead, on caches no older than our last write.
pub trait Controller: Send + Sync + 'static {
    /// In lower case, for logs, metrics and field managers.
    const NAME: &'static str;
    /// The most calls one pass may make, enforced in tests.
    const BUDGET: Budget;

    /// What dereference finds.
    type Found: Send + Sync;
    /// What validate makes of it.
    type Valid: Send + Sync;
    /// What is to be done.
    type Decision: Send + Sync;
    /// What was done.
    type Done: Send + Sync;

    /// Why dereference fails.
    type DereferenceError: StepError;
    /// Why validate fails.
    type ValidateError: StepError;
    /// Why act fails.
    type ActError: StepError;
    /// Why report fails.
    type ReportError: StepError;

    /// The object, for events about it: see [`events::reference`](crate::events::reference). `found` is none if dereference failed.
    fn about(&self, key: &Key, found: Option<&Self::Found>) -> ObjectReference;

    /// Gathers what is needed; none if there is nothing to do because the object is gone.
    fn dereference(
        &self,
        pass: &Pass,
    ) -> impl Future<Output = Result<Option<Self::Found>, Self::DereferenceError>> + Send;

    /// Checks what the schema cannot.
    ///
    /// # Errors
    /// Says what is wrong, with the object, the field, what is allowed and what to do.
    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Self::ValidateError>;

    /// Says what to do next.
    fn decide(&self, valid: &Self::Valid, now: Timestamp) -> Self::Decision;

    /// Does it.
    fn act(
        &self,
        pass: &Pass,
        valid: &Self::Valid,
        decision: &Self::Decision,
    ) -> impl Future<Output = Result<Self::Done, Self::ActError>> + Send;

    /// Writes down what was seen and done, and says when to look again.
    fn report(
        &self,
        pass: &Pass,
        found: &Self::Found,
        outcome: Outcome<'_, Self>,
    ) -> impl Future<Output = Result<Next, Self::ReportError>> + Send;
}

/// How far a pass came.
pub enum Outcome<'a, C: Controller + ?Sized> {
    /// All steps went well.
    Done {
        /// What was decided on.
        valid: &'a C::Valid,
        /// What was decided.
        decision: &'a C::Decision,
        /// What was done.
        done: &'a C::Done,
    },
    /// A step failed. What was valid and decided before it is given as far as the pass came.
    Failed {
        /// How.
        trouble: &'a ReportedError,
        /// What was decided on, if it came to that.
        valid: Option<&'a C::Valid>,
        /// What was decided, if it came to that.
        decision: Option<&'a C::Decision>,
    },
}

/// When to look at an object again, besides when something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At the next deep check.
    AwaitChange,
    /// At that time.
    At(Timestamp),
    /// After that long.
    After(Duration),
}

/// The most calls one pass may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Calls that read.
    pub reads: u32,
    /// Calls that write.
    pub writes: u32,
}

/// How a controller is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Passes at the same time.
    pub workers: usize,
    /// How often an object is looked at although nothing changed; jittered. [`Pass::deep`] is true then.
    pub deep_check: Option<Duration>,
    /// The first wait after an error; doubles up to `longest_backoff`.
    pub backoff: Duration,
    /// The longest wait after errors in a row.
    pub longest_backoff: Duration,
    /// The shortest time between the starts of two passes of one object. For objects that only sum up others.
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
