//! Errors with a remedy.

use std::fmt;
use std::time::Duration;

use crate::WriteError;
use crate::client::CallError;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Run the next pass after that time, or when something changes; the object is not at fault.
    Wait(Duration),
    /// Retry with backoff.
    Retry,
    /// Decide again with fresh data, as soon as it is in the cache: another writer changed the object in between.
    DecideAgain,
    /// A person must change something; run the next pass when something changes.
    NeedsPerson,
}

/// The steps of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Gathering the objects that are referred to.
    Dereference,
    /// Checking the rules that the schema cannot express.
    Validate,
    /// Deciding what to do next.
    Decide,
    /// Carrying out the decision.
    Act,
    /// Recording the observed state and the results.
    Report,
}

impl Step {
    /// Name in lower case, for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dereference => "dereference",
            Self::Validate => "validate",
            Self::Decide => "decide",
            Self::Act => "act",
            Self::Report => "report",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of one step: an enum of the controller, each variant with its reason and remedy.
pub trait StepError: std::error::Error + Send + Sync + 'static {
    /// Reason in CamelCase, used for the condition, the event and the metric's label.
    fn reason(&self) -> &'static str;
    /// What to do about the error.
    fn remedy(&self) -> Remedy;
}

/// For steps that cannot fail.
impl StepError for std::convert::Infallible {
    fn reason(&self) -> &'static str {
        match *self {}
    }

    fn remedy(&self) -> Remedy {
        match *self {}
    }
}

/// The error of a step, from which the condition, the event and the metric are made.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct ReportedError {
    /// The failed step.
    pub step: Step,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// What to do about the error.
    pub remedy: Remedy,
    /// The original error.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl ReportedError {
    /// The error of that step.
    pub fn new(step: Step, error: impl StepError) -> Self {
        Self { step, reason: error.reason(), remedy: error.remedy(), source: Box::new(error) }
    }

    /// Whether the error is of a write that was not sent because the lease could have expired.
    pub fn is_fenced(&self) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&*self.source);
        while let Some(error) = next {
            let fenced = matches!(error.downcast_ref(), Some(WriteError::Fenced(_)))
                || matches!(error.downcast_ref(), Some(CallError::Fenced));
            if fenced {
                return true;
            }
            next = error.source();
        }
        false
    }
}
