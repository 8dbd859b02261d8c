//! The five steps of a pass, in order.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tracing::Instrument;

use crate::pass::Ending;
use crate::queue::{MAX_CONFLICT_RETRIES, QueueResult};
use crate::{Controller, Next, Outcome, Pass, Remedy, ReportedError, Step};

/// Shortest wait that a controller can request. A controller that always requests a time in the past would otherwise loop without a pause.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// Result of a pass.
pub(super) struct PassResult {
    /// The failed step, or the last one.
    pub step: Step,
    pub ending: Ending,
    pub ended: QueueResult,
    /// Error to report; `None` if there is none, or if people need not know it.
    pub trouble: Option<ReportedError>,
    /// The object of the error.
    pub about: Option<ObjectReference>,
}

impl PassResult {
    pub fn panicked() -> Self {
        Self {
            step: Step::Dereference,
            ending: Ending::Panicked,
            ended: QueueResult::Failed,
            trouble: None,
            about: None,
        }
    }
}

/// Runs the steps. `agains` is the number of consecutive repetitions because of conflicts.
pub(super) async fn run_steps<C: Controller>(controller: &C, pass: &Pass, agains: u32) -> PassResult {
    let span = |step: Step| tracing::info_span!("step", step = step.as_str());
    let key = pass.key();

    let found = match controller.dereference(pass).instrument(span(Step::Dereference)).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let (step, ending) = (Step::Dereference, Ending::Gone);
            return PassResult { step, ending, ended: QueueResult::Gone, trouble: None, about: None };
        }
        Err(error) => {
            let trouble = ReportedError::new(Step::Dereference, error);
            return failed(trouble, agains, Next::AwaitChange, pass.now(), || controller.about(key, None));
        }
    };
    let about = || controller.about(key, Some(&found));

    let (mut valid, mut decision) = (None, None);
    let done = async {
        let checked = span(Step::Validate).in_scope(|| controller.validate(&found));
        let valid = &*valid.insert(checked.map_err(|error| ReportedError::new(Step::Validate, error))?);
        let decided = span(Step::Decide).in_scope(|| controller.decide(valid, pass.now()));
        let decision = &*decision.insert(decided);
        let act = controller.act(pass, valid, decision).instrument(span(Step::Act));
        act.await.map_err(|error| ReportedError::new(Step::Act, error))
    };
    let done = match done.await {
        Err(trouble) if is_conflict_retry(&trouble, agains) || trouble.is_fenced() => {
            return failed(trouble, agains, Next::AwaitChange, pass.now(), about);
        }
        done => done,
    };

    let outcome = match (&done, &valid, &decision) {
        (Ok(done), Some(valid), Some(decision)) => Outcome::Done { valid, decision, done },
        (Err(trouble), valid, decision) => {
            Outcome::Failed { trouble, valid: valid.as_ref(), decision: decision.as_ref() }
        }
        (Ok(_), _, _) => unreachable!("what was done was decided on"),
    };
    let reported = controller.report(pass, &found, outcome).instrument(span(Step::Report)).await;
    match (done, reported) {
        (Ok(_), Ok(next)) => {
            let ended = wait(next, pass.now()).map_or(QueueResult::AwaitChange, QueueResult::After);
            PassResult { step: Step::Report, ending: Ending::Done, ended, trouble: None, about: None }
        }
        (Err(trouble), Ok(next)) => failed(trouble, agains, next, pass.now(), about),
        // The first error is reported, but the failed report decides when to retry.
        (Err(trouble), Err(error)) => {
            let second = ReportedError::new(Step::Report, error);
            let remedy = second.remedy;
            let mut looked = failed(trouble, agains, Next::AwaitChange, pass.now(), about);
            tracing::debug!(step = "report", reason = second.reason, "{}", second.source);
            looked.ended = ended(remedy, Next::AwaitChange, pass.now());
            looked
        }
        (Ok(_), Err(error)) => {
            failed(ReportedError::new(Step::Report, error), agains, Next::AwaitChange, pass.now(), about)
        }
    }
}

fn is_conflict_retry(trouble: &ReportedError, agains: u32) -> bool {
    trouble.remedy == Remedy::DecideAgain && agains < MAX_CONFLICT_RETRIES
}

fn failed(
    trouble: ReportedError,
    agains: u32,
    next: Next,
    now: Timestamp,
    about: impl FnOnce() -> ObjectReference,
) -> PassResult {
    let step = trouble.step;
    if trouble.is_fenced() {
        return PassResult { step, ending: Ending::Fenced, ended: QueueResult::Failed, trouble: None, about: None };
    }
    if is_conflict_retry(&trouble, agains) {
        return PassResult { step, ending: Ending::Conflict, ended: QueueResult::Conflict, trouble: None, about: None };
    }
    let ending = match trouble.remedy {
        Remedy::Wait(_) => Ending::Waits,
        Remedy::Retry | Remedy::DecideAgain => Ending::Retries,
        Remedy::NeedsPerson => Ending::NeedsPerson,
    };
    PassResult { step, ending, ended: ended(trouble.remedy, next, now), about: Some(about()), trouble: Some(trouble) }
}

/// When the queue runs the next pass after an error; earlier if the report requested it.
fn ended(remedy: Remedy, next: Next, now: Timestamp) -> QueueResult {
    let next = wait(next, now);
    match remedy {
        Remedy::Wait(after) => QueueResult::After(next.map_or(after, |next| next.min(after)).max(SHORTEST_WAIT)),
        Remedy::NeedsPerson => next.map_or(QueueResult::AwaitChange, QueueResult::After),
        Remedy::Retry => QueueResult::Failed,
        Remedy::DecideAgain => QueueResult::Conflict,
    }
}

fn wait(next: Next, now: Timestamp) -> Option<Duration> {
    let wait = match next {
        Next::AwaitChange => return None,
        Next::At(time) => Duration::try_from(time.duration_since(now)).unwrap_or_default(),
        Next::After(wait) => wait,
    };
    Some(wait.max(SHORTEST_WAIT))
}
