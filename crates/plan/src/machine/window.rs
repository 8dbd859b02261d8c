//! Windows: everything that disrupts a machine at one time, behind the gate.

use fleetwright_api::{Component, ComponentState, Disruption};
use fleetwright_wire::plural;
use fleetwright_wire::text::truncate_chars;
use jiff::{SignedDuration, Timestamp};

use super::component::{signed, unproven};
use super::decide::Decider;
use super::step::{PlannedStep, Verb, named};
use super::work::PendingWork;
use super::{Act, DesiredPackages, Node, Unreachable, WindowPhase, WindowRequest};

/// The first delay before the next request after an abandoned window…
const FIRST_WAIT: SignedDuration = SignedDuration::from_mins(10);
/// …and the longest.
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(4);
/// Interval for listing the remaining pods during a drain.
const DRAIN_EVERY: SignedDuration = SignedDuration::from_secs(2);

/// The shortest time for retrying a Node that cannot be closed, or whose pods cannot be listed: the operator may have started, or the Node
/// may have joined, when the deadline of the drain was over already.
const RECENT_DRAIN: SignedDuration = SignedDuration::from_mins(1);
/// Pods blocking a drain that a message names.
const MAX_LISTED_PODS: usize = 3;

impl<'a> Decider<'a> {
    /// The open window: its level and since when.
    pub(super) fn running(&self) -> Option<(Disruption, Timestamp)> {
        let window = self.k.window.as_ref()?;
        match window.phase {
            WindowPhase::Running { since } => Some((window.level, since)),
            _ => None,
        }
    }

    /// Whether a window waits for the gate.
    pub(super) fn waits(&self) -> bool {
        matches!(self.k.window.as_ref().map(|window| window.phase), Some(WindowPhase::Waiting(_)))
    }

    /// Whether a step of this disruption level may run now; if not, the action that leads there was decided.
    pub(super) fn in_window(&mut self, work: &PendingWork<'a>, level: Disruption, drain: std::time::Duration) -> bool {
        match self.k.window.as_ref().map(|window| window.phase) {
            Some(WindowPhase::Running { since }) => {
                let enough = self.running().is_some_and(|(allowed, _)| level <= allowed);
                enough && self.prepared(since, drain)
            }
            Some(WindowPhase::NeedsPerson(text)) => {
                self.progress("wait for manual resolution", None, None, text);
                false
            }
            _ => {
                self.wish(work, level);
                false
            }
        }
    }

    /// Whether the Node is closed, and drained if that is needed.
    pub(super) fn prepared(&mut self, since: Timestamp, drain: std::time::Duration) -> bool {
        let Some(node) = self.k.node else { return true };
        let window = self.under();
        if node.closed != Some(window) {
            self.progress(&format!("close Node {}", node.name), None, None, "");
            self.act = Act::CloseNode;
            self.end_if_hindered("closed", since, drain);
            return false;
        }
        let level = self.running().map_or(Disruption::None, |(level, _)| level);
        // Also if steps ran already: the state of the drain may be lost, and the Node may have joined only now.
        if level < Disruption::Drain {
            return true;
        }
        self.drained(node, since, drain)
    }

    fn drained(&mut self, node: Node<'_>, since: Timestamp, drain: std::time::Duration) -> bool {
        let what = format!("drain Node {}", node.name);
        let Some(pods) = self.k.pods.filter(|pods| pods.hindered.is_none()) else {
            self.progress(&what, None, Some(since), "");
            self.act = Act::Drain;
            self.end_if_hindered("drained", since, drain);
            return false;
        };
        if pods.left.is_empty() {
            return true;
        }
        let blocked: Vec<String> =
            pods.left.iter().filter_map(|(pod, why)| why.as_ref().map(|why| format!("{pod}: {why}"))).collect();
        let mut message = format!("{} left", plural(pods.left.len(), "pod"));
        if !blocked.is_empty() {
            let named: Vec<String> = blocked.iter().take(MAX_LISTED_PODS).map(|one| truncate_chars(one, 256)).collect();
            message = format!("{message}, {} blocked: {}", blocked.len(), named.join("; "));
        }
        self.progress(&what, None, Some(since), &message);
        for entry in &mut self.status.components {
            if entry.state == ComponentState::Pending {
                entry.message = format!("draining: {message}");
            }
        }
        if self.now.duration_since(since) >= signed(drain) {
            let text = format!("timed out: Node {} not drained within {}s: {message}", node.name, drain.as_secs());
            self.act = Act::EndWindow { open: !self.is_left_broken(), well: false, text };
            return false;
        }
        let again = pods.at + DRAIN_EVERY;
        if again <= self.now {
            self.act = Act::Drain;
        } else {
            self.at(again);
        }
        false
    }

    /// Ends the window of a Node that could not be closed, or whose pods could not be listed, at the deadline of its drain: as if its pods did
    /// not terminate.
    fn end_if_hindered(&mut self, what: &str, since: Timestamp, drain: std::time::Duration) {
        let hindered = self.k.pods.and_then(|pods| pods.hindered.as_deref().map(|why| (pods.at, why)));
        let Some((first, why)) = hindered else { return };
        if self.now.duration_since(since) < signed(drain) || self.now.duration_since(first) < RECENT_DRAIN {
            return;
        }
        // A Node that an earlier window left closed stays closed.
        let open = !self.is_left_broken() && self.k.node.is_some_and(|node| node.closed == Some(self.under()));
        let why = truncate_chars(why, 256);
        let text = format!("timed out: the Node was not {what} within {}s: {why}", drain.as_secs());
        self.act = Act::EndWindow { open, well: false, text };
    }

    fn wish(&mut self, work: &PendingWork<'a>, level: Disruption) {
        let needing: Vec<_> = work.items.iter().filter(|item| self.needs_window(item)).collect();
        let worst = needing.iter().map(|item| item.step.disruption).max().unwrap_or(level).max(level);
        let worst = if work.boots { Disruption::Reboot } else { worst };
        let text = |step: &PlannedStep| match step.verb {
            Verb::Change if !step.changes.is_empty() => format!("{} ({})", step.text(), named(&step.changes)),
            _ => step.text(),
        };
        let mut texts: Vec<String> = needing.iter().map(|item| text(&item.step)).collect();
        if work.boots {
            texts.push("reboot".to_owned());
        }
        let mut words = vec![self.uid().to_owned(), self.status.observed_retry.clone().unwrap_or_default()];
        for item in &needing {
            let (verb, digest) = item.does.tag();
            words.push(format!("{} {verb} {digest}", item.step.component));
            if item.step.verb == Verb::Repair {
                words.push("repair".to_owned());
            }
        }
        words.push(format!("{worst:?}"));
        self.request_window(worst, texts.join(", "), &words);
    }

    /// Requests a window, unless one for the same work was abandoned a moment ago.
    pub(super) fn request_window(&mut self, level: Disruption, reason: String, words: &[String]) {
        let fingerprint = format!("{:016x}", hash(words));
        let given_up = self.k.given_up.get(&fingerprint).copied().unwrap_or_default();
        if let Some(last) = given_up.last {
            let doublings = given_up.times.saturating_sub(1).min(10);
            let wait = FIRST_WAIT.checked_mul(1 << doublings).unwrap_or(MAX_WAIT).min(MAX_WAIT);
            let at = last.checked_add(wait).unwrap_or(Timestamp::MAX);
            if at > self.now {
                self.progress("back off after a failed window", None, Some(last), &reason);
                self.at(at);
                return;
            }
        }
        let why = match self.k.window.as_ref().map(|window| window.phase) {
            Some(WindowPhase::Waiting(why)) => why,
            _ => "",
        };
        self.progress("wait for the gate", None, None, why);
        for entry in &mut self.status.components {
            if entry.state == ComponentState::Pending {
                entry.message = if why.is_empty() {
                    "waiting for the gate".to_owned()
                } else {
                    format!("waiting for the gate: {why}")
                };
            }
        }
        self.act = Act::RequestWindow(WindowRequest { level, reason: truncate_chars(&reason, 1024), fingerprint });
    }

    /// Ends the window: all its work is done or cannot be done.
    pub(super) fn end_window(&mut self) {
        // Steps are found by the window that they ran in. Their results are written before the window ends: if that write failed after the
        // end, a version that did not work would be retried, and a repair would be lost.
        if self.status.components != self.old.components || self.status.last_drift != self.old.last_drift {
            return self.at(self.now);
        }
        // A rollback in an earlier window is no failure of this one.
        let since = self.running().map(|(_, since)| since);
        let now =
            |entry: &&Component| entry.rollback.as_ref().is_none_or(|back| since.is_none_or(|since| back.at >= since));
        let failed: Vec<String> = self
            .status
            .components
            .iter()
            .filter(|entry| match entry.state {
                ComponentState::Failed => true,
                ComponentState::RolledBack => now(entry),
                _ => false,
            })
            .map(|entry| format!("{}: {}", entry.component, entry.message))
            .collect();
        let left = self.status.components.iter().any(|entry| entry.state == ComponentState::Failed);
        let text = match failed.is_empty() {
            true => "the Machine matches its spec".to_owned(),
            false => truncate_chars(&failed.join("; "), 1024),
        };
        // A Node whose host was left broken stays closed until the host works, or a person opens the Node.
        self.act = Act::EndWindow { open: !left, well: failed.is_empty(), text };
    }

    /// Ends a window whose host did not come back within `timeouts.reboot`; returns whether it did. The place at the gate is freed; the
    /// Node stays closed until the host is observed to work.
    pub(super) fn end_without_host(&mut self, unreachable: Unreachable<'_>) -> bool {
        let Some((level, _)) = self.running() else { return false };
        let boots = super::step::reboot_id(self.under(), 0);
        let boots = boots.trim_end_matches('0');
        let booting = self.old.progress.as_ref().filter(|p| p.id.as_deref().is_some_and(|id| id.starts_with(boots)));
        // A reboot counts from its request. An operator that started since knows only how long the host has not answered.
        let since = booting.map_or(unreachable.since, |progress| progress.since);
        let within = signed(self.boot_times().reboot);
        let end = since.checked_add(within).unwrap_or(Timestamp::MAX);
        if end > self.now {
            self.at(end);
            return false;
        }
        self.status.progress = self.old.progress.clone();
        let boot = self.status.facts.as_ref().and_then(|facts| facts.boot_id.clone());
        // A host on which no step was started needs no reboot: the change may not be declared any more when the host is back.
        if level == Disruption::Reboot && self.has_unfinished_change() && self.status.reboot_due_from != boot {
            // Written before the window ends: whether the reboot happened is observed when the host is back.
            self.status.reboot_due_from = boot;
            self.at(self.now);
            return true;
        }
        let what = if booting.is_some() { " after its reboot" } else { "" };
        let why = unreachable.why.text();
        let text = format!("RebootTimedOut: the host did not respond within {}s{what}: {why}", within.as_secs());
        self.act = Act::EndWindow { open: false, well: false, text };
        true
    }

    /// Ends an open window in which no more work can be done: it would hold its place at the gate, and keep pods away, for nothing. The Node is
    /// opened, unless a step was started on the host and is not proven. Returns a message about window and Node; none if there is no such window.
    pub(super) fn abandon_window(&mut self, why: &str) -> Option<String> {
        self.running()?;
        let whole = !self.has_unfinished_change();
        let node = self.k.node.map(|node| match whole {
            true => format!("; Node {} is opened again", node.name),
            false => {
                format!("; Node {} stays closed: a step was started on the host and is not verified yet", node.name)
            }
        });
        let text = format!("The running window is ended{}", node.unwrap_or_default());
        let open = whole && self.k.node.is_some();
        self.act = Act::EndWindow { open, well: false, text: truncate_chars(&format!("{why}. {text}"), 1024) };
        Some(text)
    }

    /// Whether a step was started on the host whose change is not proven.
    pub(super) fn has_unfinished_change(&self) -> bool {
        use ComponentState::{Drifted, Pending, Ready, RolledBack};
        let whole = |entry: &Component| matches!(entry.state, Pending | Ready | Drifted | RolledBack);
        // A repair and a reboot change no state of a component; their step is in the progress.
        let steps = format!("{}.", self.under());
        let progress = self.old.progress.as_ref().and_then(|progress| progress.id.as_deref());
        let runs = self.k.host.doing.is_some_and(|doing| doing.id.is_some());
        runs || progress.is_some_and(|id| id.starts_with(&steps))
            || self.old.reboot_due_from.is_some()
            || !self.old.components.iter().all(whole)
    }

    /// Whether a Node that an ended window left closed may be opened: its host was observed to be as before. The remaining work waits for the gate,
    /// and pods need not wait with it.
    pub(super) fn may_reopen_node(&self) -> bool {
        let seen = self.k.host.seen.filter(|_| self.looked && self.not_working.is_empty());
        let broken = self.status.components.iter().any(|entry| entry.state == ComponentState::Failed);
        seen.is_some_and(|seen| {
            let there = &seen.observation.components;
            let found = |entry: &Component| there.iter().find(|found| found.component == entry.component);
            let unproven = |entry: &Component| found(entry).is_some_and(|found| unproven(entry, found));
            !broken && self.is_left_closed() && !self.status.components.iter().any(unproven)
        })
    }

    /// Whether an earlier window left the host broken: its version disrupts pods and is not proven, or the declared version is meant to repair it.
    pub(super) fn is_left_broken(&self) -> bool {
        let DesiredPackages::Ready(wanted) = self.k.wanted else { return false };
        let there = self.k.host.seen.map(|seen| &seen.observation.components[..]).unwrap_or_default();
        wanted.iter().filter(|wanted| wanted.disruption > Disruption::None).any(|wanted| {
            let entry = self.entry(&wanted.package.component);
            let found = there.iter().find(|found| found.component == entry.component);
            entry.state == ComponentState::Failed && entry.failed.is_none()
                || found.is_some_and(|found| unproven(&entry, found))
        })
    }

    /// Whether the Node is closed although no window is open and every step started on its host is proven.
    pub(super) fn is_left_closed(&self) -> bool {
        self.k.node.is_some_and(|node| node.closed.is_some())
            && self.running().is_none()
            && !self.has_unfinished_change()
    }

    /// Removes a taint of ours that no window needs any more.
    pub(super) fn open_what_is_left(&mut self) -> bool {
        let closed = self.k.node.is_some_and(|node| node.closed.is_some());
        let broken = self.status.components.iter().any(|entry| entry.state == ComponentState::Failed);
        let open = closed && !broken && self.running().is_none();
        if open {
            self.act = Act::OpenNode;
        }
        open
    }
}

/// FNV-1a: the same hash in every process.
fn hash(words: &[String]) -> u64 {
    words
        .iter()
        .flat_map(|word| word.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
