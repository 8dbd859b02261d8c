//! What a controller says to the journal, and what the journal answers.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use fleetwright_api::{OperationPhase, OperationStatus, Span, Target, condition, names};
use fleetwright_plan::operation::{self, CallOutcome, ProbeResult};
use jiff::Timestamp;

use crate::{Key, Next, Remedy, StepError, WriteError};

/// How long one that waits is content with its last answer. Asking costs no call.
const ASK_GATE_AGAIN: Duration = Duration::from_secs(300);

/// A change of the world outside the API server.
pub trait Act: Send + Sync {
    /// What is done, on what, and why. The same intent is the same act.
    fn intent(&self) -> Intent;

    /// Does it. Called at most once for each Operation. May take up to [`Act::timeout`]; the pass waits for it.
    /// May be dropped at any await, after which the act counts as started.
    fn start(&self, key: &OperationKey) -> impl Future<Output = CallOutcome> + Send;

    /// Asks the world what became of an act that was started, or was about to be, by this process or another. Changes nothing, but for one
    /// thing: where the world can be told to take nothing under this key any more, it is told so before the answer is
    /// [`ProbeResult::NeverStarted`]. Otherwise a process that was paused right before it began would still begin when it goes on.
    fn probe(&self, key: &OperationKey) -> impl Future<Output = ProbeResult> + Send;

    /// How long [`Act::start`] is waited for. After that, its outcome is asked after.
    fn timeout(&self) -> Duration {
        Duration::from_secs(300)
    }
}

/// What an act is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// What is done, in CamelCase, such as `Drain`. The gate's policies name it.
    pub type_: String,
    /// On what, with the labels that the gate's scopes look at.
    pub target: Target,
    /// Why, for people.
    pub reason: String,
    /// Stands for everything that the act depends on, and the number of the attempt.
    pub fingerprint: String,
    /// How long its Operation is kept after it ended; a week if none is given.
    pub keep_for: Option<Span>,
}

/// Which operation; the world can tell acts apart by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OperationKey {
    /// The Operation object.
    pub key: Key,
    /// Its uid, different for each object that ever was.
    pub uid: String,
}

impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.uid)
    }
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The gate does not let it pass yet. The driver is woken when that could have changed.
    Waiting {
        /// Why, for people.
        why: String,
        /// Until when, if time alone ends it.
        until: Option<Timestamp>,
    },
    /// It was started and has not ended.
    Running {
        /// When to ask again.
        ask_again_after: Duration,
    },
    /// It ended well; what is known about it.
    Succeeded(String),
    /// It ended badly, or was given up; what is known about it.
    Failed(String),
    /// It was about to be started and never was. If it is still wanted: a new attempt, with another fingerprint.
    NeverStarted,
    /// Nobody but a person can say what became of it; what is asked of that person.
    NeedsPerson(String),
}

impl Progress {
    /// When to drive it again, besides when something changes.
    pub fn next(&self) -> Next {
        match self {
            Self::Waiting { until: Some(until), .. } => Next::At(*until),
            // No cache says when a percentage is of more than it was.
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

/// Why an operation could not be driven on.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Something could not be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// Something could not be read.
    #[error("cannot read {what}: {message}")]
    Read {
        /// What.
        what: String,
        /// What happened.
        message: String,
        /// For how long the API server asks to wait.
        after: Option<Duration>,
    },
    /// The cache is behind what was just seen.
    #[error("Operation {0} is not in the cache yet")]
    CacheBehind(Key),
    /// There is another operation of that name.
    #[error(
        "Operation {key} already exists with another spec.{field}: {theirs:?} instead of {ours:?}; \
         use another fingerprint, or delete the Operation after it has ended"
    )]
    NameTaken {
        /// The operation.
        key: Key,
        /// In which field it differs.
        field: &'static str,
        /// What it has.
        theirs: String,
        /// What is wanted.
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
