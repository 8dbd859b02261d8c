//! The window as an act of the journal: it starts by closing the Node and ends when the Node is open again, many passes and processes later.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Disruption, OperationPhase, Target, condition, names};
use fleetwright_kit::Key;
use fleetwright_kit::journal::{Act, CachedOperation, CallOutcome, Intent, Journal, OperationKey, ProbeResult};
use fleetwright_plan::machine::{AbandonedWindows, WindowRequest, level_of, operation_type};
use fleetwright_plan::operation;

/// The kind of the target of windows.
pub const KIND: &str = "Machine";

/// The windows of a machine in the journal.
pub struct WindowJournal {
    /// The window that waits or is open.
    pub open: Option<(Key, Arc<CachedOperation>, Disruption)>,
    /// Abandoned windows, by their fingerprint.
    pub given_up: BTreeMap<String, AbandonedWindows>,
}

/// Reads the windows of a machine.
pub fn windows(journal: &Journal, requester: &str, machine: &str) -> WindowJournal {
    let mut found = WindowJournal { open: None, given_up: BTreeMap::new() };
    for (key, operation) in journal.of_target(KIND, machine) {
        let spec = &operation.0.spec;
        let Some(level) = level_of(&spec.type_).filter(|_| spec.requested_by == requester) else { continue };
        let status = operation.0.status.clone().unwrap_or_default();
        if !status.phase.ended() {
            // A machine has one window at a time; should there be two, the open one counts.
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

/// The fingerprint of a window without the number of the attempt.
pub fn base(fingerprint: &str) -> &str {
    fingerprint.rsplit_once('-').map_or(fingerprint, |(base, _)| base)
}

/// The intent of a requested window: the first attempt that has not ended.
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

/// The intent of an existing window.
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

/// A window, and its result, if it has ended.
pub struct WindowAct {
    /// The intent of the window.
    pub intent: Intent,
    /// Whether it ended well, and a message for people.
    pub ended: Option<(bool, String)>,
}

/// The start of a window has no effect: the steps inside it have ids of their own, which the host runs once. So any
/// process that finds the window open
/// continues it, and a window never counts as not started.
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
