//! The life cycle of an Operation: what its driver does next, and what is written to its status.
//!
//! An act is started only once, by the process whose token is in `status.startedBy`. All other processes, and that process after a restart,
//! probe the outcome ([`ProbeResult`]); if a probe cannot find out, a person records the outcome ([`ManualOutcome`]).

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{Condition, OperationPhase, OperationStatus, Status, condition, names};
use fleetwright_wire::text::{first_chars, truncate_chars};
use jiff::Timestamp;

use crate::gate::Refusal;

/// What this process knows of the attempt named by `status.startedBy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// The attempt belongs to another process, or to this operator before a restart.
    Foreign,
    /// The attempt is ours, and the act has not been started yet.
    Claimed,
    /// The act is being started.
    Starting,
    /// The act was started, and the result of the call was lost.
    Lost,
    /// The call that started the act returned.
    Ended(CallOutcome),
}

/// The result of the call that started an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The act is done; a message for people.
    Done(String),
    /// The act failed, and nothing of it is still running.
    Failed(String),
    /// The outcome is unknown, for example after a connection was lost during the call. It is probed.
    Unknown(String),
}

/// The result of probing an act that was started, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The act is done.
    Succeeded(String),
    /// The act failed, and nothing of it is still running.
    Failed(String),
    /// The act is still running. It is probed again.
    StillRunning,
    /// The act was never started.
    NeverStarted,
    /// The probe got no answer. It is repeated.
    NoAnswer(String),
    /// No probe can find the outcome, now or later. A person must record it.
    Unknowable(String),
}

/// The outcome of an Operation as a person recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManualOutcome {
    /// No outcome is recorded.
    Unset,
    /// The act succeeded; the reason given.
    Succeeded(String),
    /// The act failed; the reason given.
    Failed(String),
    /// The annotation is invalid; what is wrong with it.
    Invalid(String),
}

impl ManualOutcome {
    /// Reads the outcome from the annotations of an Operation.
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
                let other = first_chars(other, 64);
                Self::Invalid(format!(
                    "invalid annotation {}={other:?}: set it to Succeeded or Failed (and the reason in {})",
                    names::OUTCOME,
                    names::OUTCOME_REASON
                ))
            }
        }
    }
}

/// The next thing to do for an Operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationStep {
    /// Ask the gate for permission.
    AskGate,
    /// Write our token to `status.startedBy`.
    Claim,
    /// Start the act.
    Start,
    /// Probe the outcome.
    Probe,
    /// Write the outcome that the act returned.
    Record(Box<OperationStatus>),
    /// Write the outcome that a person recorded.
    RecordManualOutcome(Box<OperationStatus>),
    /// Wait: this process is starting the act.
    Wait,
    /// Wait for a person to record the outcome.
    WaitForPerson,
    /// Nothing: the Operation has ended.
    Ended,
}

/// Decides what to do next for an Operation.
///
/// An outcome that a person recorded ends an Operation in the phase `Unknown` and one that is being probed. It also prevents the start of an
/// act that was not started yet. It does not interrupt an act that this process is starting, because that outcome is about to be known.
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

/// Reason of [`names::OUTCOME_KNOWN`]: the act itself returned its outcome.
pub const ENDED: &str = "Ended";
/// Reason: the outcome was found by a probe.
pub const PROBED: &str = "Probed";
/// Reason: a probe found that the act was never started.
pub const NEVER_STARTED: &str = "NeverStarted";
/// Reason: the Operation was withdrawn before it was started.
pub const WITHDRAWN: &str = "Withdrawn";
/// Reason: a person recorded the outcome.
pub const MANUALLY_RESOLVED: &str = "ManuallyResolved";
/// Reason: the probe gets no answer.
pub const NO_RESPONSE: &str = "NoResponse";
/// Reason: only a person can find out the outcome.
pub const MANUAL_RESOLUTION_REQUIRED: &str = "ManualResolutionRequired";
/// Reason: the outcome that a person wrote is invalid.
pub const INVALID_OUTCOME: &str = "InvalidOutcome";

/// The status after the gate granted the Operation.
pub fn granted(status: &OperationStatus, by: &str, now: Timestamp) -> OperationStatus {
    let mut status = status.clone();
    status.phase = OperationPhase::Granted;
    status.granted_by = Some(cut(by));
    put(&mut status.conditions, names::GRANTED, Status::True, "WithinPolicyLimits", cut(by), None, now);
    status
}

/// The status after the gate refused the Operation; none if the status says so already. A change of the counts alone is not written: a thousand
/// waiting Operations are not rewritten each time one ends.
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

/// The status by which a process claims that it alone starts the act.
pub fn claimed(status: &OperationStatus, token: &str, now: Timestamp) -> OperationStatus {
    let mut status = status.clone();
    status.phase = OperationPhase::Running;
    status.started_at = Some(now);
    status.started_by = Some(token.to_owned());
    status
}

/// The status after a probe; none if there is nothing new to write.
///
/// An act that never started is recorded as failed and not started in place: the process that claimed it may have been paused right before the
/// start, and may continue. A new Operation has a new key, by which the two can be distinguished.
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
            // Written once, not after each probe: the text may differ a little each time.
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

/// The status of a withdrawn Operation; none if its act may have been started.
pub fn withdrawn(status: &OperationStatus, why: &str, now: Timestamp) -> Option<OperationStatus> {
    matches!(status.phase, OperationPhase::Pending | OperationPhase::Granted)
        .then(|| end(status, OperationPhase::Failed, WITHDRAWN, &format!("withdrawn before it started: {why}"), now))
}

/// Whether a deleted Operation may be removed: its act was never started, or its outcome is known. Until then it keeps its places in the gate
/// and its name, so that nothing starts the act again.
pub fn may_be_removed(status: &OperationStatus) -> bool {
    !matches!(status.phase, OperationPhase::Running | OperationPhase::Unknown)
}

/// Delay before the next probe. It grows with the time that the act takes.
pub fn ask_again_after(status: &OperationStatus, now: Timestamp) -> Duration {
    let running = status.started_at.map_or(0, |start| now.as_second().saturating_sub(start.as_second()));
    Duration::from_secs(u64::try_from(running / 4).unwrap_or(0).clamp(1, 60))
}

/// When an Operation that has ended is deleted.
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

/// Sets a condition; its transition time changes only with its status.
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

/// Limits the length of messages from elsewhere.
fn cut(text: &str) -> String {
    truncate_chars(text, 1024)
}

#[cfg(test)]
mod tests;
