//! The window as an act of the journal: it is begun by closing the Node and over when it is open again, passes and processes later.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Disruption, OperationPhase, Target, condition, names};
use fleetwright_kit::Key;
use fleetwright_kit::journal::{Act, CachedOperation, CallOutcome, Intent, Journal, OperationKey, ProbeResult};
use fleetwright_plan::machine::{AbandonedWindows, WindowRequest, level_of, operation_type};
use fleetwright_plan::operation;

/// The kind that windows are about.
pub const KIND: &str = "Machine";

/// What is known of the windows of a machine.
pub struct WindowJournal {
    /// The one that waits or is under way.
    pub open: Option<(Key, Arc<CachedOperation>, Disruption)>,
    /// Those that were given up, by what they were for.
    pub given_up: BTreeMap<String, AbandonedWindows>,
}

/// Looks at the windows of a machine.
pub fn windows(journal: &Journal, requester: &str, machine: &str) -> WindowJournal {
    let mut found = WindowJournal { open: None, given_up: BTreeMap::new() };
    for (key, operation) in journal.of_target(KIND, machine) {
        let spec = &operation.0.spec;
        let Some(level) = level_of(&spec.type_).filter(|_| spec.requested_by == requester) else { continue };
        let status = operation.0.status.clone().unwrap_or_default();
        if !status.phase.ended() {
            // There is one at a time; should there be two, the one that is under way counts.
            let better = found.open.is_none() || status.phase.holds_room();
            if better {
                found.open = Some((key, operation, level));
            }
            continue;
        }
        let reason = condition(&status.conditions, names::OUTCOME_KNOWN).map(|known| known.reason.clone());
        let reason = reason.unwrap_or_default();
        let counts = status.phase == OperationPhase::Failed
            && reason != operation::WITHDRAWN
            && reason != operation::NEVER_STARTED;
        if counts {
            let entry = found.given_up.entry(base(&spec.fingerprint).to_owned()).or_default();
            entry.times += 1;
            entry.last = entry.last.max(status.ended_at);
        }
    }
    found
}

/// What a window is for, without the number of the attempt.
pub fn base(fingerprint: &str) -> &str {
    fingerprint.rsplit_once('-').map_or(fingerprint, |(base, _)| base)
}

/// The intent of a window that is wished for: the first attempt that has not ended.
pub fn wished(journal: &Journal, wish: &WindowRequest, machine: &str, labels: BTreeMap<String, String>) -> Intent {
    let mut intent = Intent {
        type_: operation_type(wish.level).to_owned(),
        target: Target { kind: KIND.to_owned(), name: machine.to_owned(), labels },
        reason: wish.reason.clone(),
        fingerprint: String::new(),
        keep_for: None,
    };
    let ended = |key: &Key| {
        let known = journal.of_target(KIND, machine).into_iter().find(|(known, _)| known == key);
        known.is_some_and(|(_, operation)| operation.0.status.as_ref().is_some_and(|status| status.phase.ended()))
    };
    for attempt in 1_u32.. {
        intent.fingerprint = format!("{}-{attempt}", wish.fingerprint);
        if !ended(&journal.key(&intent)) {
            break;
        }
    }
    intent
}

/// The intent of a window that exists.
pub fn existing(operation: &CachedOperation) -> Intent {
    let spec = &operation.0.spec;
    Intent {
        type_: spec.type_.clone(),
        target: spec.target.clone(),
        reason: spec.reason.clone(),
        fingerprint: spec.fingerprint.clone(),
        keep_for: Some(spec.keep_for),
    }
}

/// A window, and how it ended, if it did.
pub struct WindowAct {
    /// What it is for.
    pub intent: Intent,
    /// Whether it ended well, and what a person should know.
    pub ended: Option<(bool, String)>,
}

/// Nothing in a window happens at its start: what is done in it has ids of its own, which the host runs once. So whoever finds it under way goes
/// on with it, and it never counts as not begun.
impl Act for WindowAct {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        CallOutcome::Unknown("the window is open".to_owned())
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        match &self.ended {
            None => ProbeResult::StillRunning,
            Some((true, text)) => ProbeResult::Succeeded(text.clone()),
            Some((false, text)) => ProbeResult::Failed(text.clone()),
        }
    }
}
