//! The interface between controllers and the journal.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use fleetwright_api::{OperationPhase, OperationStatus, Span, Target, condition, names};
use fleetwright_plan::operation::{self, CallOutcome, ProbeResult};
use jiff::Timestamp;

use crate::{Key, Next, Remedy, StepError, WriteError};

/// Interval at which a waiting Operation asks the gate again. Asking costs no call.
const ASK_GATE_AGAIN: Duration = Duration::from_secs(300);

/// A change of the world outside the API server.
pub trait Act: Send + Sync {
    /// The intent: type, target and reason. The same intent is the same act.
    fn intent(&self) -> Intent;

    /// Starts the act. Called at most once for each Operation. May take up to [`Act::timeout`]; the pass waits for it.
    /// The future may be dropped at any await, after which the act counts as started.
    fn start(&self, key: &OperationKey) -> impl Future<Output = CallOutcome> + Send;

    /// Determines the outcome of an act that this or another process started, or was about to start. Changes nothing, with one
    /// exception: if the target can be configured to refuse this key from now on, the probe does that before it answers
    /// [`ProbeResult::NeverStarted`]. Otherwise a process that was paused right before the start would still start the act when it resumes.
    fn probe(&self, key: &OperationKey) -> impl Future<Output = ProbeResult> + Send;

    /// Timeout of [`Act::start`]. After it, the outcome is probed.
    fn timeout(&self) -> Duration {
        Duration::from_secs(300)
    }
}

/// Intent of an act.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// Type in CamelCase, such as `Drain`. Policies name it.
    pub type_: String,
    /// Target, with the labels for the scopes of policies.
    pub target: Target,
    /// Reason, for people.
    pub reason: String,
    /// Fingerprint of all inputs of the act and of the number of the attempt.
    pub fingerprint: String,
    /// Retention of the Operation after its end; one week by default.
    pub keep_for: Option<Span>,
}

/// Identity of an Operation, by which the target can tell acts apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OperationKey {
    /// Namespace and name of the Operation.
    pub key: Key,
    /// Uid of the Operation, unique over time.
    pub uid: String,
}

impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.uid)
    }
}

/// Progress of an Operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The gate does not grant it yet. The driver is triggered when that could have changed.
    Waiting {
        /// Reason, for people.
        why: String,
        /// End of the wait, if only time is missing.
        until: Option<Timestamp>,
    },
    /// Started, without a known outcome.
    Running {
        /// When to probe again.
        ask_again_after: Duration,
    },
    /// Succeeded, with a message.
    Succeeded(String),
    /// Failed or abandoned, with a message.
    Failed(String),
    /// Never started. If the act is still wanted, it needs a new attempt with another fingerprint.
    NeverStarted,
    /// Only a person can determine the outcome; the request to that person.
    NeedsPerson(String),
}

impl Progress {
    /// When to drive the Operation again, besides when something changes.
    pub fn next(&self) -> Next {
        match self {
            Self::Waiting { until: Some(until), .. } => Next::At(*until),
            // No cache event tells when the total of a percentage has grown.
            Self::Waiting { until: None, .. } => Next::After(ASK_GATE_AGAIN),
            Self::Running { ask_again_after } => Next::After(*ask_again_after),
            _ => Next::AwaitChange,
        }
    }

    pub(super) fn of(status: &OperationStatus) -> Self {
        let outcome = status.outcome.clone().unwrap_or_default();
        let known = condition(&status.conditions, names::OUTCOME_KNOWN);
        match status.phase {
            OperationPhase::Succeeded => Self::Succeeded(outcome),
            OperationPhase::Failed if known.is_some_and(|known| known.reason == operation::NEVER_STARTED) => {
                Self::NeverStarted
            }
            _ => Self::Failed(outcome),
        }
    }
}

/// Why an Operation could not be driven.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A write failed.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// A read failed.
    #[error("cannot read {what}: {message}")]
    Read {
        /// The object.
        what: String,
        /// The error.
        message: String,
        /// Wait that the API server requests.
        after: Option<Duration>,
    },
    /// The cache does not have the object yet.
    #[error("Operation {0} is not in the cache yet")]
    CacheBehind(Key),
    /// Another Operation has that name.
    #[error(
        "Operation {key} already exists with another spec.{field}: {theirs:?} instead of {ours:?}; \
         use another fingerprint, or delete the Operation after it has ended"
    )]
    NameTaken {
        /// The Operation.
        key: Key,
        /// The field that differs.
        field: &'static str,
        /// The value of the existing Operation.
        theirs: String,
        /// The wanted value.
        ours: String,
    },
}

impl StepError for JournalError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Read { .. } => "ReadFailed",
            Self::CacheBehind(_) => "CacheStale",
            Self::NameTaken { .. } => "OperationConflict",
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Write(error) => error.remedy(),
            Self::Read { after: Some(after), .. } => Remedy::Wait(*after),
            Self::Read { after: None, .. } => Remedy::Retry,
            Self::CacheBehind(_) => Remedy::DecideAgain,
            Self::NameTaken { .. } => Remedy::NeedsPerson,
        }
    }
}
