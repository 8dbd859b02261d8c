//! Helpers of a decision that write to the status.

use fleetwright_api::{Component, ComponentState, StepProgress, names};
use fleetwright_wire::text::truncate_chars;
use jiff::Timestamp;

use super::component::PROVING;
use super::decide::Decider;
use super::{Unreachable, UnreachableReason, WindowPhase};

impl<'a> Decider<'a> {
    /// Requests a reconcile at that time, or before.
    pub(super) fn at(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    pub(super) fn uid(&self) -> &'a str {
        self.k.machine.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Prefix of the ids of steps: the open window, or the machine.
    pub(super) fn under(&self) -> &'a str {
        match &self.k.window {
            Some(window) if matches!(window.phase, WindowPhase::Running { .. }) => window.uid,
            _ => self.uid(),
        }
    }

    pub(super) fn finalized(&self) -> bool {
        let finalizers = self.k.machine.metadata.finalizers.as_deref().unwrap_or_default();
        finalizers.iter().any(|name| name == names::MACHINE_FINALIZER)
    }

    /// The status of a component, or a new entry.
    pub(super) fn entry(&self, component: &str) -> Component {
        let known = self.status.components.iter().find(|entry| entry.component == component);
        known.cloned().unwrap_or_else(|| Component {
            component: component.to_owned(),
            desired: None,
            observed: None,
            state: ComponentState::Pending,
            since: self.now,
            message: String::new(),
            failed: None,
            rollback: None,
            verified_digest: None,
            inputs: Default::default(),
            attempts: None,
        })
    }

    pub(super) fn put(&mut self, entry: Component) {
        match self.status.components.iter_mut().find(|known| known.component == entry.component) {
            Some(known) => *known = entry,
            None if entry.component.is_empty() => {}
            None => self.status.components.push(entry),
        }
    }

    /// Writes the progress; its start time, if not given, is kept as long as the step is the same.
    pub(super) fn progress(&mut self, step: &str, id: Option<&str>, since: Option<Timestamp>, message: &str) {
        let step = truncate_chars(step, 256);
        let old = self.old.progress.as_ref().filter(|old| old.step == step && old.id.as_deref() == id);
        let since = old.map(|old| old.since).or(since).unwrap_or(self.now);
        let id = id.map(ToOwned::to_owned);
        self.status.progress = Some(StepProgress { step, id, since, message: truncate_chars(message, 1024) });
    }

    pub(super) fn progress_of_proof(&mut self) {
        let unproven = |entry: &&Component| entry.message.starts_with(PROVING);
        if let Some(entry) = self.status.components.iter().find(unproven).cloned() {
            self.progress(&format!("wait until {} works", entry.component), None, Some(entry.since), &entry.message);
        }
    }

    /// The reason why a host is unreachable.
    pub(super) fn why(&self) -> Option<(Unreachable<'a>, &'static str, &'a str)> {
        let unreachable = self.k.host.unreachable?;
        Some(match unreachable.why {
            UnreachableReason::HostKeyChanged(text) => (unreachable, "HostKeyChanged", text),
            UnreachableReason::Unsupported(text) => (unreachable, "UnsupportedPlatform", text),
            UnreachableReason::Refused(reason, text) => (unreachable, reason, text),
            UnreachableReason::NoAnswer(text) => (unreachable, "NoResponse", text),
        })
    }
}
