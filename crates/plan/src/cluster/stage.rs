//! The stages of a change, and when one is given up.

use fleetwright_api::{FailedChange, StepProgress};
use jiff::{SignedDuration, Timestamp};

use super::decide::Decision;
use super::observed::Observed;
use super::reach::Stop;
use super::step::Step;

/// The longest message of a change that failed.
const LONGEST: usize = 1024;

/// The change that did not work and was taken back, if it is still the one that is asked for.
pub(super) fn failed(seen: &Observed) -> Option<&FailedChange> {
    let asked_again = seen.retry.is_some() && seen.retry != seen.status.retried;
    let failed = seen.status.failed.as_ref()?;
    (failed.package_version == seen.target().0 && !asked_again).then_some(failed)
}

/// Says at which stage a change is, and gives it up when that takes too long. Nothing else is done in the pass that gives it up: it is written down
/// first, so that whoever comes next takes it back too.
pub(super) fn stage(seen: &Observed, step: &Step<'_>, decision: &mut Decision, now: Timestamp) {
    let at = seen.status.package_version.as_deref().filter(|name| *name != step.package.0);
    let (Some(at), Some((component, why))) = (at, decision.waiting.first()) else { return };
    let id = format!("{}/{component}", step.package.0);
    let known = seen.status.progress.as_ref().filter(|known| known.id.as_ref() == Some(&id));
    let since = known.map_or(now, |known| known.since);
    let text = format!("bring {component} to {}", step.package.0);
    decision.progress = Some(StepProgress { step: text, id: Some(id), since, message: bounded(why) });
    // One who goes back has nowhere else to go.
    let back =
        seen.package(at).is_none_or(|spec| Stop::of(step.package.0, step.package.1).is_older_than(&Stop::of(at, spec)));
    if back || seen.spec.paused {
        return;
    }
    let within = SignedDuration::try_from(seen.spec.upgrade.stage_within.0).unwrap_or(SignedDuration::MAX);
    let until = since.checked_add(within).unwrap_or(Timestamp::MAX);
    if now < until {
        decision.next = Some(decision.next.map_or(until, |next| next.min(until)));
        return;
    }
    let message = bounded(&format!("after {} it was still so: {why}", seen.spec.upgrade.stage_within));
    decision.failed = Some(FailedChange {
        package_version: step.package.0.to_owned(),
        generation: seen.generation,
        at: now,
        message,
    });
    decision.apply.clear();
    decision.replace = None;
}

pub(super) fn bounded(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}
