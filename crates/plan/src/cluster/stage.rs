//! The stages of a change, and the timeout after which a change fails.

use fleetwright_api::{FailedChange, StepProgress};
use fleetwright_wire::text::first_chars;
use jiff::{SignedDuration, Timestamp};

use super::components::Waiting;
use super::observed::Observed;
use super::restore;
use super::step::{CurrentVersion, VersionStep, package_missing_message};
use super::upgrade_path::VersionNode;

/// Longest message of a failed change.
const MAX_MESSAGE: usize = 1024;

/// The change that failed and was rolled back, if it is still the declared one.
pub(super) fn failed(seen: &Observed) -> Option<&FailedChange> {
    let asked_again = seen.retry.is_some() && seen.retry != seen.status.observed_retry;
    let failed = seen.status.failed.as_ref()?;
    (failed.package_version == seen.target().0 && !asked_again).then_some(failed)
}

/// Stage of a change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChangeStage {
    /// The stage, and its start.
    pub progress: Option<StepProgress>,
    /// Record of the failure: it is written, and from then on the change is rolled back.
    pub failed: Option<FailedChange>,
    /// When the stage times out.
    pub next: Option<Timestamp>,
}

/// Determines the stage of a change, and fails the change when the stage times out.
pub(super) fn stage(seen: &Observed, step: &VersionStep<'_>, waiting: &[Waiting], now: Timestamp) -> ChangeStage {
    let mut stage = ChangeStage::default();
    // There is no version to roll back to.
    if restore::replaces(seen) {
        return stage;
    }
    let at = CurrentVersion::of(seen).filter(|at| at.name != step.name);
    let (Some(at), Some(to), Some((component, why))) = (at, step.package(), waiting.first()) else { return stage };
    let id = format!("{}/{component}", to.0);
    let known = seen.status.progress.as_ref().filter(|known| known.id.as_ref() == Some(&id));
    let since = known.map_or(now, |known| known.since);
    let back = at.stop().is_none_or(|from| VersionNode::of(to.0, to.1).is_older_than(&from));
    let text = match back {
        true => format!("rolling back {component} to {}", to.0),
        false => format!("upgrading {component} to {}", to.0),
    };
    // The step already names the component.
    let said = why.strip_prefix(&format!("{component}: ")).unwrap_or(why);
    let mut progress = StepProgress { step: text, id: Some(id), since, message: bounded(said) };
    stage.progress = Some(progress.clone());
    // A rollback cannot be rolled back.
    if back || seen.spec.paused {
        return stage;
    }
    let within = SignedDuration::try_from(seen.spec.upgrade.stage_timeout.0).unwrap_or(SignedDuration::MAX);
    // Time without a running operator does not count, and proofs of new API servers by another process are repeated.
    let counts_from = since.max(seen.extensions.since.unwrap_or(since));
    let until = counts_from.checked_add(within).unwrap_or(Timestamp::MAX);
    if now < until {
        return ChangeStage { next: Some(until), ..stage };
    }
    let message = bounded(&format!("timed out after {}: {why}", seen.spec.upgrade.stage_timeout));
    // The previous package version does not exist. The change is retried, and rolled back when that is possible.
    if at.spec.is_none() {
        progress.message = bounded(&format!("{message}; no automatic rollback: {}", package_missing_message(at.name)));
        return ChangeStage { progress: Some(progress), ..stage };
    }
    let (package_version, generation) = (to.0.to_owned(), seen.generation);
    ChangeStage { failed: Some(FailedChange { package_version, generation, at: now, message }), ..stage }
}

pub(super) fn bounded(text: &str) -> String {
    first_chars(text, MAX_MESSAGE).to_owned()
}
