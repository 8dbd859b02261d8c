//! The decision about a machine, from top to bottom.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{ComponentState, DriftItem, HostKeyPolicy, MachineStatus, names};
use fleetwright_wire as wire;
use fleetwright_wire::text::truncate_chars;
use jiff::{SignedDuration, Timestamp};

use super::component::set;
use super::{Act, Decision, DesiredPackages, MachineInputs, Unreachable, WindowRequest, order};
use crate::join::{Binding, NOT_BOUND, not_bound};

/// Interval for asking about a step that runs without us.
pub(super) const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(3);
/// Backoff after a host rejected a request.
const REFUSAL_BACKOFF: SignedDuration = SignedDuration::from_secs(30);
/// Interval for writing progress to the status.
const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// Decides what to do next for a machine.
pub fn decide(known: &MachineInputs<'_>, now: Timestamp) -> Decision {
    let mut mind = Decider::new(known, now);
    mind.decide();
    mind.keep_node_meanwhile();
    mind.finish()
}

/// The state of one decision while it is made.
pub(super) struct Decider<'a> {
    pub k: &'a MachineInputs<'a>,
    pub now: Timestamp,
    /// Our part of the status as it is stored.
    pub old: MachineStatus,
    /// Our part of the status as it should be.
    pub status: MachineStatus,
    pub act: Act,
    /// A window to request as well, if `act` is about the Node.
    pub also_ask: Option<WindowRequest>,
    pub next: Option<Timestamp>,
    pub withdraw: bool,
    /// Deviations of the host from what is declared.
    pub drift: Vec<DriftItem>,
    /// Why nothing is changed towards the declared state: reason and message of the condition UpToDate.
    pub refused: Option<(&'static str, String)>,
    /// The declared kubelet does not fit the API server: the reason, and what to do.
    pub misfit: Option<(&'static str, String)>,
    /// The host was observed, so that the states of components are current.
    pub looked: bool,
    /// Whether and how often a component's health checks are requested.
    pub health: Option<Duration>,
    /// A repair would disrupt a component if it works: its health checks run before anything is changed.
    pub ask_health: bool,
    /// A health check failed once: it runs again before its component counts as failed.
    pub second_look: bool,
    /// Components that differ from what is declared and do not work, and why.
    pub not_working: BTreeMap<String, String>,
    /// The host is not ours to change.
    pub stopped: bool,
}

impl<'a> Decider<'a> {
    pub fn new(known: &'a MachineInputs<'a>, now: Timestamp) -> Self {
        let old = super::status::owned_status(known.machine);
        Self {
            k: known,
            now,
            status: MachineStatus { progress: None, ..old.clone() },
            old,
            act: Act::Nothing,
            also_ask: None,
            next: None,
            withdraw: false,
            drift: Vec::new(),
            refused: None,
            misfit: None,
            looked: false,
            health: None,
            ask_health: false,
            second_look: false,
            not_working: BTreeMap::new(),
            stopped: false,
        }
    }

    fn decide(&mut self) {
        let machine = self.k.machine;
        if machine.metadata.deletion_timestamp.is_some() {
            return self.leave();
        }
        if machine.spec.ssh.is_none() {
            return self.observe_only();
        }
        self.status.observed_generation = machine.metadata.generation;
        let asked = self.follow_retry();
        self.note_host();
        self.note_declared();
        if self.newly_bound() {
            return;
        }
        let foreign = self.foreign_node();
        self.refused = foreign.clone().map(|message| (NOT_BOUND, message));
        if !self.address_is_free() || !self.host_is_free() || !self.may_change() {
            return;
        }
        if let Some(message) = foreign {
            return self.cannot(NOT_BOUND, message);
        }
        let wanted = match self.k.wanted {
            DesiredPackages::Ready(wanted) => wanted,
            DesiredPackages::Unavailable { reason, message } => return self.cannot(reason, message.to_owned()),
        };
        let ordered = match order(wanted) {
            Ok(ordered) => ordered,
            Err(refused) => return self.cannot(refused.reason, refused.message),
        };
        let observe = self.observe(&ordered);
        let Some(seen) = self.fresh(&ordered).filter(|_| !asked) else {
            return self.observe_or_wait(observe, &ordered);
        };
        self.looked = true;
        let work = self.work(&ordered, seen.observation);
        self.note_drift();
        if machine.spec.paused {
            return self.observe_while_paused(&work, observe, seen);
        }
        self.take_next_step(work, observe, seen);
    }

    /// Whether a Node was bound in this pass. The binding is written before anything is done to the Node: what it was bound by may not last.
    pub(super) fn newly_bound(&mut self) -> bool {
        let new = matches!(self.k.binding, Binding::Bound(_)) && self.status.node_ref != self.old.node_ref;
        if new {
            self.status.progress = self.old.progress.clone();
            self.status.node_labels = self.registered_labels();
            self.status.node_taints = self.registered_taints();
            self.at(self.now);
        }
        new
    }

    /// The message for a Node that has the machine's name and is not bound to it. Its host is not changed either: the Node may use what runs there.
    pub(super) fn foreign_node(&self) -> Option<String> {
        let metadata = &self.k.machine.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let node = self.k.machine.spec.hostname.as_deref().unwrap_or(name);
        (*self.k.binding == Binding::Foreign).then(|| not_bound(name, node))
    }

    /// Whether a request may be sent to the host now; if not, the action to take instead was decided.
    pub(super) fn host_is_free(&mut self) -> bool {
        let host = &self.k.host;
        if let Some(doing) = host.doing {
            // A mere observation is not shown as progress.
            if doing.id.is_some() {
                self.progress(doing.what, doing.id, doing.since, doing.message);
                self.at(self.now + PROGRESS_INTERVAL);
            } else {
                self.status.progress = self.old.progress.clone();
            }
            return false;
        }
        if let Some(unreachable) = host.unreachable {
            if !self.end_without_host(unreachable) {
                self.try_again(unreachable);
            }
            return false;
        }
        if let Some((at, failure)) = host.refused {
            let busy = failure.kind == wire::FailureKind::Busy;
            let again = at + if busy { ASK_AGAIN } else { REFUSAL_BACKOFF };
            if again > self.now {
                self.at(again);
                if busy {
                    self.status.progress = self.old.progress.clone();
                } else {
                    self.handle_refusal(at, &failure.message);
                }
                return false;
            }
        }
        if let Some(key) = self.unpinned() {
            match host.key {
                Some(key) => {
                    // Written before anything is done: the next pass continues.
                    self.status.host_keys = vec![key.to_owned()];
                    self.at(self.now);
                }
                None => self.ask(key),
            }
            return false;
        }
        if self.status.facts.is_none() && host.seen.is_none() {
            self.ask(wire::Observe::default());
            return false;
        }
        true
    }

    /// The host rejected the request, and nothing was started: its disk may be full, or its journal broken.
    fn handle_refusal(&mut self, at: Timestamp, why: &str) {
        self.progress("retry the request that the host rejected", None, Some(at), why);
        for entry in self.status.components.iter_mut().filter(|entry| entry.state == ComponentState::Pending) {
            entry.message = truncate_chars(&format!("host rejected the request, retrying: {why}"), 1024);
        }
    }

    /// A host key is trusted on first use, and there was no first use yet.
    fn unpinned(&self) -> Option<wire::Observe> {
        let ssh = self.k.machine.spec.ssh.as_ref()?;
        let first = ssh.host_keys.policy == HostKeyPolicy::TrustOnFirstUse && self.status.host_keys.is_empty();
        first.then(wire::Observe::default)
    }

    fn try_again(&mut self, unreachable: Unreachable<'_>) {
        self.status.progress = self.old.progress.clone();
        if unreachable.not_before > self.now {
            self.at(unreachable.not_before);
        } else {
            let records = self.records();
            self.ask(wire::Observe { records, ..wire::Observe::default() });
        }
    }

    /// Changes nothing, because the declared state cannot be reached.
    fn cannot(&mut self, reason: &'static str, message: String) {
        let paused = self.k.machine.spec.paused;
        self.withdraw = self.waits() && !paused;
        let ended = if paused { None } else { self.abandon_window(&format!("{reason}: {message}")) };
        if let Some(ended) = ended {
            self.refused = Some((reason, format!("{message}. {ended}")));
            return;
        }
        self.refused = Some((reason, message));
        if self.k.host.seen.is_none_or(|seen| seen.at < self.last_check()) {
            self.ask(wire::Observe::default());
        } else {
            self.at(self.next_check());
        }
    }

    /// Reads a person's request to retry. True if it is new.
    fn follow_retry(&mut self) -> bool {
        let asked = self.k.machine.metadata.annotations.as_ref().and_then(|all| all.get(names::RETRY));
        let asked = asked.map(|text| truncate_chars(text, 256));
        if asked.is_none() || asked == self.status.observed_retry {
            return false;
        }
        self.status.observed_retry = asked;
        let mut components = std::mem::take(&mut self.status.components);
        for entry in &mut components {
            entry.rollback = None;
            if entry.failed.take().is_some() && !self.stays_failed(entry) {
                set(entry, ComponentState::Pending, "retry requested".to_owned(), self.now);
            }
        }
        self.status.components = components;
        true
    }

    /// Writes the declared versions to the status before the host was reached.
    fn note_declared(&mut self) {
        let DesiredPackages::Ready(wanted) = self.k.wanted else { return };
        for wanted in wanted {
            let version = truncate_chars(&wanted.package.version, 256);
            let mut entry = self.entry(&wanted.package.component);
            if entry.desired.as_ref() != Some(&version) {
                entry.desired = Some(version);
                if entry.state == ComponentState::Ready {
                    set(&mut entry, ComponentState::Pending, "declared version changed".to_owned(), self.now);
                }
                self.put(entry);
            }
        }
    }
}
