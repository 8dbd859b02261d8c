//! The life of an operation: what its driver does next, and what is written down about it.
//!
//! An act is started by the process whose token is in `status.startedBy`, and only once. Everybody else, and that process after a
//! restart, asks the world what became of it ([`ProbeResult`]) and, if the world cannot tell, a person ([`ManualOutcome`]).

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{Condition, OperationPhase, OperationStatus, Status, condition, names};
use jiff::Timestamp;

use crate::gate::Refusal;

/// What this process remembers of the attempt that `status.startedBy` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// The attempt is another process's, or one of ours before a restart.
    Foreign,
    /// It is ours, and the act was not started yet.
    Claimed,
    /// The act is being started.
    Starting,
    /// The act was started, and what became of the call was lost.
    Lost,
    /// The call that started the act came back.
    Ended(CallOutcome),
}

/// What the call that started an act came back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It is done; what a person should know about it.
    Done(String),
    /// It ended badly, and nothing of it goes on.
    Failed(String),
    /// Nobody can say from here, such as after a connection was lost in the middle. It is asked after.
    Unknown(String),
}

/// What the world says about an act that was started, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It is done.
    Succeeded(String),
    /// It ended badly, and nothing of it goes on.
    Failed(String),
    /// It goes on. It is asked after again.
    StillRunning,
    /// It was never begun.
    NeverStarted,
    /// The world could not be asked now. It is asked again.
    NoAnswer(String),
    /// The world cannot tell, now or later. A person must.
    Unknowable(String),
}

/// What a person says became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManualOutcome {
    /// Nothing.
    Unset,
    /// It ended well, because.
    Succeeded(String),
    /// It ended badly, because.
    Failed(String),
    /// Something that is not understood; what is wrong with it.
    Invalid(String),
}

impl ManualOutcome {
    /// Reads the annotations of an operation.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let because = || match annotations.get(names::OUTCOME_REASON).map(|text| text.trim()) {
            None | Some("") => "resolved manually".to_owned(),
            Some(text) => format!("resolved manually: {}", cut(text)),
        };
        match annotations.get(names::OUTCOME).map(String::as_str) {
            None => Self::Unset,
            Some("Succeeded") => Self::Succeeded(because()),
            Some("Failed") => Self::Failed(because()),
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                Self::Invalid(format!(
                    "invalid annotation {}={other:?}: set it to Succeeded or Failed (and the reason in {})",
                    names::OUTCOME,
                    names::OUTCOME_REASON
                ))
            }
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationStep {
    /// Ask the gate.
    AskGate,
    /// Write that we start it.
    Claim,
    /// Start the act.
    Start,
    /// Ask the world.
    Probe,
    /// Write down what the act came back with.
    Record(Box<OperationStatus>),
    /// Write down what a person said.
    RecordManualOutcome(Box<OperationStatus>),
    /// The act is being started by this process.
    Wait,
    /// Wait for a person.
    WaitForPerson,
    /// Nothing: it ended.
    Ended,
}

/// Says what to do next about an operation.
///
/// A person's word ends what nobody else ends: an operation in the phase `Unknown`, and one that is asked after. It also keeps
/// from being started what was not started yet. It does not interrupt an act that this process is starting, whose outcome
/// is about to be known.
pub fn next(status: &OperationStatus, memory: &AttemptState, said: &ManualOutcome, now: Timestamp) -> OperationStep {
    let record = |phase, text: &str| OperationStep::Record(Box::new(end(status, phase, ENDED, text, now)));
    let hear = |status| OperationStep::RecordManualOutcome(Box::new(status));
    match (status.phase, memory) {
        (OperationPhase::Pending, _) => OperationStep::AskGate,
        (OperationPhase::Granted, _) => OperationStep::Claim,
        (OperationPhase::Succeeded | OperationPhase::Failed, _) => OperationStep::Ended,
        (OperationPhase::Running, AttemptState::Starting) => OperationStep::Wait,
        (OperationPhase::Running, AttemptState::Ended(CallOutcome::Done(text))) => {
            record(OperationPhase::Succeeded, text)
        }
        (OperationPhase::Running, AttemptState::Ended(CallOutcome::Failed(text))) => {
            record(OperationPhase::Failed, text)
        }
        (OperationPhase::Running | OperationPhase::Unknown, memory) => match said {
            ManualOutcome::Succeeded(because) => {
                hear(end(status, OperationPhase::Succeeded, MANUALLY_RESOLVED, because, now))
            }
            ManualOutcome::Failed(because) => {
                hear(end(status, OperationPhase::Failed, MANUALLY_RESOLVED, because, now))
            }
            _ if status.phase == OperationPhase::Running && *memory == AttemptState::Claimed => OperationStep::Start,
            _ if status.phase == OperationPhase::Running => OperationStep::Probe,
            ManualOutcome::Invalid(wrong) => {
                ask_person(status, INVALID_OUTCOME, wrong, now).map_or(OperationStep::WaitForPerson, hear)
            }
            ManualOutcome::Unset => OperationStep::WaitForPerson,
        },
    }
}

/// The reason of [`names::OUTCOME_KNOWN`] when the act itself said how it ended.
pub const ENDED: &str = "Ended";
/// The reason when it was asked after.
pub const PROBED: &str = "Probed";
/// The reason when it turned out never to have begun.
pub const NEVER_STARTED: &str = "NeverStarted";
/// The reason when it was given up before it was started.
pub const WITHDRAWN: &str = "Withdrawn";
/// The reason when a person said it.
pub const MANUALLY_RESOLVED: &str = "ManuallyResolved";
/// The reason while the world cannot be asked.
pub const NO_RESPONSE: &str = "NoResponse";
/// The reason when nobody but a person can know.
pub const MANUAL_RESOLUTION_REQUIRED: &str = "ManualResolutionRequired";
/// The reason when what a person wrote is not understood.
pub const INVALID_OUTCOME: &str = "InvalidOutcome";

/// The status after the gate let it pass.
pub fn granted(status: &OperationStatus, by: &str, now: Timestamp) -> OperationStatus {
    let mut status = status.clone();
    status.phase = OperationPhase::Granted;
    status.granted_by = Some(cut(by));
    put(&mut status.conditions, names::GRANTED, Status::True, "WithinPolicyLimits", cut(by), None, now);
    status
}

/// The status after the gate refused; none if it says so already. Counts that changed are no news: a thousand that wait
/// are not rewritten each time one ends.
pub fn refused(status: &OperationStatus, refusal: &Refusal, now: Timestamp) -> Option<OperationStatus> {
    let says_so = condition(&status.conditions, names::GRANTED).is_some_and(|old| {
        old.status == Status::False && old.reason == refusal.why.as_str() && old.message.starts_with(&refusal.rule)
    });
    (!says_so).then(|| {
        let mut status = status.clone();
        status.phase = OperationPhase::Pending;
        let message = refusal.to_string();
        put(&mut status.conditions, names::GRANTED, Status::False, refusal.why.as_str(), message, None, now);
        status
    })
}

/// The status by which a process says that it, and nobody else, starts the act.
pub fn claimed(status: &OperationStatus, token: &str, now: Timestamp) -> OperationStatus {
    let mut status = status.clone();
    status.phase = OperationPhase::Running;
    status.started_at = Some(now);
    status.started_by = Some(token.to_owned());
    status
}

/// The status after the world was asked; none if there is nothing new to write.
///
/// What never began is recorded as failed and not started in place: the process that claimed it may have been paused right
/// before the start, and go on. A new operation has a new key, by which the world can tell the two apart.
pub fn probed(status: &OperationStatus, probed: &ProbeResult, now: Timestamp) -> Option<OperationStatus> {
    match probed {
        ProbeResult::Succeeded(text) => Some(end(status, OperationPhase::Succeeded, PROBED, text, now)),
        ProbeResult::Failed(text) => Some(end(status, OperationPhase::Failed, PROBED, text, now)),
        ProbeResult::NeverStarted => {
            let text = "it was claimed but never started, according to the target";
            Some(end(status, OperationPhase::Failed, NEVER_STARTED, text, now))
        }
        ProbeResult::StillRunning => None,
        ProbeResult::NoAnswer(text) => {
            // Once, not for each time that it is asked: the text may differ a little each time.
            let said = condition(&status.conditions, names::OUTCOME_KNOWN).is_some_and(|old| old.reason == NO_RESPONSE);
            (!said).then(|| {
                let mut status = status.clone();
                let message = format!("cannot get the outcome from the target, retrying: {}", cut(text));
                put(&mut status.conditions, names::OUTCOME_KNOWN, Status::Unknown, NO_RESPONSE, message, None, now);
                status
            })
        }
        ProbeResult::Unknowable(text) => ask_person(status, MANUAL_RESOLUTION_REQUIRED, text, now),
    }
}

/// The status when it is given up; none if that is too late.
pub fn withdrawn(status: &OperationStatus, why: &str, now: Timestamp) -> Option<OperationStatus> {
    matches!(status.phase, OperationPhase::Pending | OperationPhase::Granted)
        .then(|| end(status, OperationPhase::Failed, WITHDRAWN, &format!("withdrawn before it started: {why}"), now))
}

/// Whether an operation that somebody deleted may be removed: its act was never started, or its outcome is known. Until then it holds its
/// places and its name, so that nothing starts the act again.
pub fn may_be_removed(status: &OperationStatus) -> bool {
    !matches!(status.phase, OperationPhase::Running | OperationPhase::Unknown)
}

/// How long to wait before the world is asked again: longer the longer it takes.
pub fn ask_again_after(status: &OperationStatus, now: Timestamp) -> Duration {
    let running = status.started_at.map_or(0, |start| now.as_second().saturating_sub(start.as_second()));
    Duration::from_secs(u64::try_from(running / 4).unwrap_or(0).clamp(1, 60))
}

/// When an operation that ended is to be forgotten.
pub fn prune_at(status: &OperationStatus, keep_for: Duration) -> Option<Timestamp> {
    if !status.phase.ended() {
        return None;
    }
    Some(status.ended_at?.checked_add(keep_for).unwrap_or(Timestamp::MAX))
}

fn end(status: &OperationStatus, phase: OperationPhase, reason: &str, text: &str, now: Timestamp) -> OperationStatus {
    let mut status = status.clone();
    let text = cut(text);
    status.phase = phase;
    status.ended_at = Some(now);
    put(&mut status.conditions, names::OUTCOME_KNOWN, Status::True, reason, text.clone(), None, now);
    status.outcome = Some(text);
    status
}

fn ask_person(status: &OperationStatus, reason: &str, text: &str, now: Timestamp) -> Option<OperationStatus> {
    let message = format!(
        "{}. Check the target, then record the outcome: fleetwright resolve, or annotate this Operation with {}=Succeeded or {}=Failed, and the reason in {}",
        cut(text).trim_end_matches('.'),
        names::OUTCOME,
        names::OUTCOME,
        names::OUTCOME_REASON
    );
    let mut new = status.clone();
    new.phase = OperationPhase::Unknown;
    put(&mut new.conditions, names::OUTCOME_KNOWN, Status::False, reason, message, None, now);
    (new != *status).then_some(new)
}

/// Sets a condition, keeping since when its status is what it is.
pub(crate) fn put(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Status,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) {
    let old = condition(conditions, type_);
    let since = old.filter(|old| old.status == status).map_or(now, |old| old.last_transition_time);
    let new = Condition {
        type_: type_.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
        last_transition_time: since,
        observed_generation: generation,
        reporter: None,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// What others say may be long; what a person reads should not be.
fn cut(text: &str) -> String {
    const LONGEST: usize = 1024;
    if text.chars().count() <= LONGEST {
        text.to_owned()
    } else {
        text.chars().take(LONGEST - 1).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests;
