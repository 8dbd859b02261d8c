//! Errors that say what to do.

use std::fmt;
use std::time::Duration;

use crate::WriteError;
use crate::client::CallError;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Look again after that long, or when something changes; nothing is wrong with us.
    Wait(Duration),
    /// Try again, later each time.
    Retry,
    /// Decide again on fresh data, at once when it is there: somebody else wrote in between.
    DecideAgain,
    /// A person must change something; look again when something changes.
    NeedsPerson,
}

/// The steps of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Gathering the objects that are referred to.
    Dereference,
    /// Checking what the schema cannot.
    Validate,
    /// Deciding what to do next.
    Decide,
    /// Doing it.
    Act,
    /// Writing down what was seen and done.
    Report,
}

impl Step {
    /// In lower case, for logs and metrics.
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

/// The error of one step: an enum of the controller's, each variant with its reason and remedy.
pub trait StepError: std::error::Error + Send + Sync + 'static {
    /// One word in CamelCase, used as the condition's and the event's reason and the metric's label.
    fn reason(&self) -> &'static str;
    /// What to do about it.
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

/// An error of a step, as it is reported: the condition, the event and the metric come from it, once.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct ReportedError {
    /// In which step.
    pub step: Step,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What to do about it.
    pub remedy: Remedy,
    /// What happened.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl ReportedError {
    /// The error of that step.
    pub fn new(step: Step, error: impl StepError) -> Self {
        Self { step, reason: error.reason(), remedy: error.remedy(), source: Box::new(error) }
    }

    /// Whether it comes from a write that was not sent because the lease could have ended.
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
