//! The five steps of a pass, in order.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tracing::Instrument;

use crate::pass::Ending;
use crate::queue::{AGAIN, Ended};
use crate::{Controller, Next, Outcome, Pass, Remedy, Step, Trouble};

/// The shortest wait that a controller can ask for. One that always asks for a time that is past would otherwise never rest.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// What became of a pass.
pub(super) struct Looked {
    /// The step that failed, or the last.
    pub step: Step,
    pub ending: Ending,
    pub ended: Ended,
    /// What is to be told; none if all went well, or if it is nobody's business.
    pub trouble: Option<Trouble>,
    /// What it is told about.
    pub about: Option<ObjectReference>,
}

impl Looked {
    pub fn panicked() -> Self {
        Self { step: Step::Dereference, ending: Ending::Panicked, ended: Ended::Failed, trouble: None, about: None }
    }
}

/// Goes through the steps. `agains` is how often in a row this was repeated because somebody else wrote in between.
pub(super) async fn look<C: Controller>(controller: &C, pass: &Pass, agains: u32) -> Looked {
    let span = |step: Step| tracing::info_span!("step", step = step.as_str());
    let key = pass.key();

    let found = match controller.dereference(pass).instrument(span(Step::Dereference)).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let (step, ending) = (Step::Dereference, Ending::Gone);
            return Looked { step, ending, ended: Ended::Gone, trouble: None, about: None };
        }
        Err(error) => {
            let trouble = Trouble::new(Step::Dereference, error);
            return failed(trouble, agains, Next::Rest, pass.now(), || controller.about(key, None));
        }
    };
    let about = || controller.about(key, Some(&found));

    let (mut valid, mut decision) = (None, None);
    let done = async {
        let checked = span(Step::Validate).in_scope(|| controller.validate(&found));
        let valid = &*valid.insert(checked.map_err(|error| Trouble::new(Step::Validate, error))?);
        let decided = span(Step::Decide).in_scope(|| controller.decide(valid, pass.now()));
        let decision = &*decision.insert(decided);
        let act = controller.act(pass, valid, decision).instrument(span(Step::Act));
        act.await.map_err(|error| Trouble::new(Step::Act, error))
    };
    let done = match done.await {
        Err(trouble) if is_again(&trouble, agains) || trouble.is_fenced() => {
            return failed(trouble, agains, Next::Rest, pass.now(), about);
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
            let ended = wait(next, pass.now()).map_or(Ended::Rests, Ended::After);
            Looked { step: Step::Report, ending: Ending::Done, ended, trouble: None, about: None }
        }
        (Err(trouble), Ok(next)) => failed(trouble, agains, next, pass.now(), about),
        // What went wrong first is what is told, but that it could not be written down decides when to try again.
        (Err(trouble), Err(error)) => {
            let second = Trouble::new(Step::Report, error);
            let remedy = second.remedy;
            let mut looked = failed(trouble, agains, Next::Rest, pass.now(), about);
            tracing::debug!(step = "report", reason = second.reason, "{}", second.source);
            looked.ended = ended(remedy, Next::Rest, pass.now());
            looked
        }
        (Ok(_), Err(error)) => failed(Trouble::new(Step::Report, error), agains, Next::Rest, pass.now(), about),
    }
}

fn is_again(trouble: &Trouble, agains: u32) -> bool {
    trouble.remedy == Remedy::Again && agains < AGAIN
}

fn failed(
    trouble: Trouble,
    agains: u32,
    next: Next,
    now: Timestamp,
    about: impl FnOnce() -> ObjectReference,
) -> Looked {
    let step = trouble.step;
    if trouble.is_fenced() {
        return Looked { step, ending: Ending::Fenced, ended: Ended::Failed, trouble: None, about: None };
    }
    if is_again(&trouble, agains) {
        return Looked { step, ending: Ending::Again, ended: Ended::Again, trouble: None, about: None };
    }
    let ending = match trouble.remedy {
        Remedy::Wait(_) => Ending::Waits,
        Remedy::Retry | Remedy::Again => Ending::Retries,
        Remedy::Person => Ending::NeedsPerson,
    };
    Looked { step, ending, ended: ended(trouble.remedy, next, now), about: Some(about()), trouble: Some(trouble) }
}

/// When the queue looks again after an error; sooner if the report asked for it.
fn ended(remedy: Remedy, next: Next, now: Timestamp) -> Ended {
    let next = wait(next, now);
    match remedy {
        Remedy::Wait(after) => Ended::After(next.map_or(after, |next| next.min(after)).max(SHORTEST_WAIT)),
        Remedy::Person => next.map_or(Ended::Rests, Ended::After),
        Remedy::Retry => Ended::Failed,
        Remedy::Again => Ended::Again,
    }
}

fn wait(next: Next, now: Timestamp) -> Option<Duration> {
    let wait = match next {
        Next::Rest => return None,
        Next::At(time) => Duration::try_from(time.duration_since(now)).unwrap_or_default(),
        Next::After(wait) => wait,
    };
    Some(wait.max(SHORTEST_WAIT))
}
