//! Deletion of a machine: its host is cleaned, or left as it is.

use fleetwright_api::{Disruption, names};
use fleetwright_wire as wire;
use jiff::SignedDuration;

use super::component::{ComponentStanding, default_times};
use super::decide::Decider;
use super::work::PendingWork;
use super::{Act, order};

/// Interval for observing the host of a machine that waits because its Node is not bound; binding the Node wakes the machine.
const FOREIGN_OWNER_RETRY: SignedDuration = SignedDuration::from_mins(10);

impl Decider<'_> {
    pub(super) fn leave(&mut self) {
        let machine = self.k.machine;
        if !self.finalized() {
            return;
        }
        self.status.phase = Some(fleetwright_api::Phase::Deleting);
        self.status.observed_generation = machine.metadata.generation;
        // Before anything else: `onDelete: Orphan` and the force-release annotation remove the finalizer, and a pause must prevent that, too.
        if machine.spec.paused {
            self.note_host();
            self.progress(
                "wait while paused",
                None,
                None,
                "deletion is blocked by spec.paused: set spec.paused to false to continue",
            );
            return;
        }
        let annotations = machine.metadata.annotations.as_ref();
        if annotations.and_then(|all| all.get(names::FORCE_RELEASE)).is_some_and(|value| value == "true") {
            return self.last_act(true);
        }
        if machine.spec.ssh.is_none() {
            return self.last_act(false);
        }
        self.note_host();
        if self.leave_to_others() {
            return;
        }
        if self.k.same_address.is_some() && self.status.components.is_empty() && !self.k.host.cleaned {
            // Nothing was ever done for this machine.
            return self.last_act(false);
        }
        if self.newly_bound() {
            return;
        }
        if self.k.host.cleaned {
            return self.after_cleaning();
        }
        if !self.address_is_free() || !self.host_is_free() {
            return;
        }
        if !self.may_change() {
            // A host that another Machine owns or installed must not be cleaned.
            let never_ours = self.old.components.iter().all(|entry| entry.observed.is_none());
            if self.k.host.seen.is_some_and(|seen| match &seen.observation.owner {
                Some(mark) => !mark.owner.is(self.k.identity),
                None => seen.observation.never_owned && never_ours,
            }) && !matches!(self.act, Act::EndWindow { .. } | Act::Adopt { .. })
            {
                self.last_act(false);
            }
            return;
        }
        let observe = wire::Observe { records: self.records(), ..wire::Observe::default() };
        let Some(seen) = self.k.host.seen.filter(|seen| seen.current && seen.asked.digests.is_empty()) else {
            return self.ask(observe);
        };
        let mut work = PendingWork {
            items: Vec::new(),
            settled: Vec::new(),
            running: seen.observation.records.iter().any(|record| record.outcome == wire::Outcome::Running),
            proving: false,
            unproven: false,
            boots: false,
        };
        let there: Vec<_> = seen.observation.components.iter().collect();
        let names: Vec<String> = there.iter().map(|found| found.component.clone()).collect();
        for name in order::removals(&names, self.k.leaving) {
            let Some(found) = there.iter().find(|found| found.component == name) else { continue };
            match self.going(found) {
                ComponentStanding::Running => work.running = true,
                ComponentStanding::Due(item) => work.items.push(*item),
                _ => {}
            }
        }
        self.status.components.retain(|entry| names.contains(&entry.component));
        if work.running {
            return self.observe_after(observe, seen, SignedDuration::from_secs(3));
        }
        // Packages are not removed under the pods of a Node that must not be drained.
        if let Some(message) = self.foreign_node().filter(|_| !work.items.is_empty()) {
            self.progress("wait until the Node is bound, or force the release", None, None, &message);
            return self.at(self.now + FOREIGN_OWNER_RETRY);
        }
        if self.k.node.is_some() && !self.is_drained_for_removal(&work) {
            return;
        }
        let item = work.items.iter().find(|item| item.not_before.is_none_or(|at| at <= self.now));
        if let Some(item) = item {
            return self.run(item, observe);
        }
        if let Some(at) = work.items.iter().filter_map(|item| item.not_before).min() {
            return self.at(at);
        }
        self.progress("clean the host", None, None, "");
        self.act = Act::Clean;
    }

    /// Whether all pods have left the Node.
    fn is_drained_for_removal(&mut self, work: &PendingWork<'_>) -> bool {
        let times = work.items.iter().map(|item| item.times.drain).max().unwrap_or(default_times().drain);
        if let Some((level, since)) = self.running() {
            if level >= Disruption::Drain {
                return self.prepared(since, times);
            }
            let text = "the Machine is being deleted: it is drained in a new window".to_owned();
            self.act = Act::EndWindow { open: false, well: false, text };
            return false;
        }
        let words = [self.uid().to_owned(), "leave".to_owned()];
        self.request_window(Disruption::Drain, "drain before deletion of the Machine".to_owned(), &words);
        false
    }

    /// Handles a cleaned host: deletes the Node, ends the window and releases the machine.
    fn after_cleaning(&mut self) {
        if self.k.node.is_some() {
            self.act = Act::DeleteNode;
        } else {
            self.last_act(false);
        }
    }

    /// Ends or withdraws the window, then releases the machine: without the machine no later pass would do it. A remaining Node is opened, unless
    /// a step was started on its host and is not proven.
    pub(super) fn last_act(&mut self, node: bool) {
        self.withdraw = self.waits();
        self.act = if self.running().is_some() {
            let open = !node && self.k.node.is_some() && !self.has_unfinished_change();
            Act::EndWindow { open, well: true, text: "the Machine is released".to_owned() }
        } else if !node && self.is_left_closed() {
            Act::OpenNode
        } else {
            Act::ReleaseMachine { node }
        };
    }
}
