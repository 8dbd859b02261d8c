//! Our part of a machine's status.

use fleetwright_api::{
    Component, ComponentState, Disruption, Facts, Machine, MachineStatus, NodeBinding, Phase, Span, Status, condition,
    names,
};
use fleetwright_wire as wire;
use fleetwright_wire::text::truncate_chars;
use jiff::SignedDuration;

use super::decide::Decider;
use super::{Act, Decision, DesiredPackages, drift};
use crate::join::Binding;
use crate::operation::put;

/// The conditions that the Machine-Operator owns.
pub const OWNED_CONDITIONS: [&str; 6] = [
    names::REACHABLE,
    names::HOST_KEY_TRUSTED,
    names::HOST_OWNED,
    names::PACKAGES_READY,
    names::UP_TO_DATE,
    names::IN_SYNC,
];

/// Reason of [`names::PACKAGES_READY`] until all packages were installed for the first time.
pub(super) const INSTALLING: &str = "Installing";

/// The reason of [`names::REACHABLE`] when a host did not come back from a reboot in time.
const REBOOT_TIMED_OUT: &str = "RebootTimedOut";

/// A host that does not answer for this long is lost.
const LOST_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// Our part of the status.
pub fn owned_status(machine: &Machine) -> MachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    status.conditions.retain(|condition| OWNED_CONDITIONS.contains(&&*condition.type_));
    status.bootstrapped = None;
    status
}

/// The facts of a host in the form of the API.
pub fn facts(facts: &wire::Facts) -> Facts {
    let text = |text: &str| (!text.is_empty()).then(|| truncate_chars(text, 256));
    Facts {
        os: text(&facts.os),
        kernel: text(&facts.kernel),
        arch: text(&facts.arch),
        cpus: Some(facts.cpus).filter(|cpus| *cpus > 0),
        memory: (facts.memory > 0).then(|| format!("{}Ki", facts.memory / 1024)),
        boot_id: text(&facts.boot_id),
    }
}

impl Decider<'_> {
    /// Writes the state of the host and its Node, whatever else is decided.
    pub(super) fn note_host(&mut self) {
        let (host, now) = (&self.k.host, self.now);
        let generation = self.k.machine.metadata.generation;
        if let Some(seen) = host.seen {
            self.status.facts = Some(facts(&seen.observation.facts));
        }
        self.status.certified_at = self.k.certified;
        self.status.node_ref = match self.k.binding {
            Binding::Bound(node) => Some(node.clone()),
            // A record about an earlier Node of that name binds nothing; it still says that the machine joined.
            Binding::Foreign => self.old.node_ref.clone(),
            // A person wrote the binding, and a person replaces it: server-side apply does not remove fields of another manager.
            Binding::Missing => self.old.node_ref.clone().filter(|node| node.binding == Some(NodeBinding::Adopted)),
        };
        let conditions = &mut self.status.conditions;
        let mut say = |type_: &str, status, reason: &str, message: String| {
            put(conditions, type_, status, reason, truncate_chars(&message, 4096), generation, now);
        };
        let why = host.unreachable.map(|unreachable| (unreachable, unreachable.why));
        let no_answer = if self.status.reboot_due_from.is_some() { REBOOT_TIMED_OUT } else { "NoResponse" };
        match why {
            None if host.seen.is_some() => {
                say(names::REACHABLE, Status::True, "Connected", String::new());
                say(names::HOST_KEY_TRUSTED, Status::True, "HostKeyMatches", String::new());
            }
            Some((_, super::UnreachableReason::HostKeyChanged(text))) => {
                let message = format!(
                    "{text}. No changes are made: if the new key is correct, update spec.ssh.hostKeys.keys, or clear status.hostKeys if the \
                     policy is TrustOnFirstUse"
                );
                say(names::HOST_KEY_TRUSTED, Status::False, "HostKeyChanged", message.clone());
                say(names::REACHABLE, Status::False, "HostKeyChanged", message);
            }
            Some((unreachable, why)) => {
                let (reason, text, sure) = match why {
                    super::UnreachableReason::Unsupported(text) => ("UnsupportedPlatform", text, true),
                    super::UnreachableReason::Refused(reason, text) => (reason, text, true),
                    super::UnreachableReason::HostKeyChanged(text) | super::UnreachableReason::NoAnswer(text) => {
                        (no_answer, text, false)
                    }
                };
                // A connection may fail once; a second failure in a row is reported.
                if sure || unreachable.attempts > 1 {
                    let mut message = text.to_owned();
                    if self.k.machine.metadata.deletion_timestamp.is_some() {
                        message = format!(
                            "{message}. The Machine is being deleted, and its host must be cleaned first: make the host reachable, or, if it no longer \
                             exists, annotate the Machine with {}=true",
                            names::FORCE_RELEASE
                        );
                    }
                    say(names::REACHABLE, Status::False, reason, message);
                }
            }
            None => {}
        }
        for type_ in [names::REACHABLE, names::HOST_KEY_TRUSTED] {
            if condition(&self.status.conditions, type_).is_none() {
                put(
                    &mut self.status.conditions,
                    type_,
                    Status::Unknown,
                    "NotConnectedYet",
                    String::new(),
                    generation,
                    now,
                );
            }
        }
    }

    /// Writes the deviations of all components together.
    pub(super) fn note_drift(&mut self) {
        if self.drift.is_empty() {
            return;
        }
        let items = std::mem::take(&mut self.drift);
        self.status.last_drift = Some(drift::drift_found(self.status.last_drift.as_ref(), items.clone(), self.now));
        self.drift = items;
    }

    /// Records the end of a repair.
    pub(super) fn repaired(&mut self, well: bool) {
        let now = self.now;
        if let Some(drift) = &mut self.status.last_drift {
            if well {
                drift.repaired = true;
            } else {
                drift.at = now;
                drift.repeats = drift.repeats.saturating_add(1);
            }
        }
    }

    pub(super) fn was_repaired(&self) -> bool {
        self.status.last_drift.as_ref().is_some_and(|drift| drift.repaired)
    }

    /// Completes the status and returns the decision.
    pub(super) fn finish(mut self) -> Decision {
        let managed = self.k.machine.spec.ssh.is_some();
        let leaving = self.k.machine.metadata.deletion_timestamp.is_some();
        if managed && !leaving {
            self.set_packages_ready();
            self.say_up_to_date();
            self.set_in_sync();
            self.status.phase = Some(self.phase());
            self.status.next_check = Some(self.next_check());
            self.status.check_every = Some(Span(self.k.check_every));
        }
        // Running work is shown until it has ended, also while the host is only observed.
        if self.status.progress.is_none()
            && self.act != Act::Nothing
            && (self.k.window.is_some() || !leaving && self.changing())
        {
            self.status.progress = self.old.progress.clone();
        }
        self.status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        let Self { act, also_ask, status, next, withdraw, .. } = self;
        Decision { act, also_ask, status, next, withdraw }
    }

    /// Whether a step was started and its component is not proven.
    fn changing(&self) -> bool {
        let changing =
            |state| !matches!(state, ComponentState::Ready | ComponentState::Failed | ComponentState::RolledBack);
        self.status.components.iter().any(|entry| changing(entry.state))
    }

    /// Sets whether the installed packages work. An edit that cannot be carried out changes nothing on the host: [`names::UP_TO_DATE`] has its
    /// reason, and a machine in service stays as ready as it was.
    fn set_packages_ready(&mut self) {
        let generation = self.k.machine.metadata.generation;
        let said = match &self.refused {
            Some((reason, message)) if self.is_new() => {
                Some((Status::False, INSTALLING, format!("{reason}: {message}")))
            }
            Some(_) => None,
            None if self.looked => Some(self.packages()),
            None if condition(&self.status.conditions, names::PACKAGES_READY).is_none() => {
                Some((Status::Unknown, "NotObservedYet", String::new()))
            }
            None => None,
        };
        if let Some((status, reason, message)) = said {
            let message = truncate_chars(&message, 4096);
            put(&mut self.status.conditions, names::PACKAGES_READY, status, reason, message, generation, self.now);
        }
    }

    fn packages(&self) -> (Status, &'static str, String) {
        let components = &self.status.components;
        let of = |state: ComponentState| {
            let found = components.iter().find(|entry| entry.state == state);
            found.map(|entry| format!("{}: {}", entry.component, entry.message))
        };
        if let Some(text) = of(ComponentState::Failed) {
            return (Status::False, "PackageFailed", text);
        }
        // The failed version is on the host until an earlier version is restored and healthy.
        let back = |entry: &&Component| entry.failed.is_some() && entry.state == ComponentState::Downgrading;
        if let Some(entry) = components.iter().find(back) {
            return (Status::False, "RollingBack", format!("{}: {}", entry.component, entry.message));
        }
        let first = components.iter().find(|entry| entry.desired.is_some() && !healthy(entry));
        if let Some(entry) = first.filter(|_| self.is_new()) {
            let message = match &self.misfit {
                Some((reason, message)) => format!("{reason}: {message}"),
                None => format!("{} is not installed and healthy yet", entry.component),
            };
            return (Status::False, INSTALLING, message);
        }
        // The component differs from what is declared, and it does not work: no pods until it is repaired.
        if let Some((component, why)) = self.not_working.iter().next() {
            return (Status::False, "ComponentUnhealthy", format!("{component} is unhealthy: {why}"));
        }
        let disrupts = |component: &str| match self.k.wanted {
            DesiredPackages::Ready(wanted) => wanted
                .iter()
                .any(|wanted| wanted.package.component == component && wanted.disruption > Disruption::None),
            DesiredPackages::Unavailable { .. } => false,
        };
        let changing = components.iter().find(|entry| {
            let changes = [ComponentState::Installing, ComponentState::Upgrading, ComponentState::Downgrading];
            changes.contains(&entry.state) && disrupts(&entry.component)
        });
        if let Some(entry) = changing {
            return (Status::False, "ChangeInProgress", format!("{} is being changed", entry.component));
        }
        // The installed version works, and the declared one waits for its turn: no reason to keep pods away.
        let pending = components.iter().find(|entry| !healthy(entry) && entry.state != ComponentState::Drifted);
        if let Some(entry) = pending {
            let message = match (&entry.desired, &entry.observed) {
                (Some(desired), Some(observed)) => {
                    format!("pending: change {} from {observed} to {desired}", entry.component)
                }
                (Some(desired), None) => format!("pending: install {} {desired}", entry.component),
                _ => format!("pending: remove {}", entry.component),
            };
            return (Status::True, "ChangePending", message);
        }
        (Status::True, "AllPackagesReady", String::new())
    }

    /// Sets whether the host has the declared packages, whatever else it has and whether they work or not.
    fn say_up_to_date(&mut self) {
        let said = match &self.refused {
            Some((reason, message)) => (Status::False, *reason, message.clone()),
            None if self.looked => self.up_to_date(),
            None if condition(&self.status.conditions, names::UP_TO_DATE).is_none() => {
                (Status::Unknown, "NotObservedYet", String::new())
            }
            None => return,
        };
        let ((status, reason, message), generation) = (said, self.k.machine.metadata.generation);
        let message = truncate_chars(&message, 4096);
        put(&mut self.status.conditions, names::UP_TO_DATE, status, reason, message, generation, self.now);
    }

    fn up_to_date(&self) -> (Status, &'static str, String) {
        let components = &self.status.components;
        let name = self.k.machine.metadata.name.as_deref().unwrap_or_default();
        if let Some(entry) = components.iter().find(|entry| entry.state == ComponentState::Failed) {
            return (Status::False, "PackageFailed", format!("{}: {}", entry.component, entry.message));
        }
        let restored: Vec<String> = components
            .iter()
            .filter_map(|entry| {
                let back = entry.rollback.as_ref()?;
                Some(format!(
                    "{}: {} ({} is installed)",
                    entry.component,
                    truncate_chars(&back.why, 1800),
                    back.version
                ))
            })
            .collect();
        if !restored.is_empty() {
            let message = format!(
                "{}. It is not retried automatically: declare another version in spec.packages, or correct the cause and run \
                 `fleetwright machine retry {name}`",
                truncate_chars(&restored.join("; "), 3800)
            );
            return (Status::False, "RolledBack", message);
        }
        if let Some((reason, message)) = &self.misfit {
            return (Status::False, *reason, message.clone());
        }
        let behind = |entry: &&Component| !matches!(entry.state, ComponentState::Ready | ComponentState::Drifted);
        if let Some(entry) = components.iter().find(behind) {
            return (Status::False, "ChangePending", format!("{} does not match spec.packages yet", entry.component));
        }
        if let Some(message) = self.provider_differs() {
            return (Status::False, "ProviderIDMismatch", message);
        }
        if let Some(message) = self.taint_differs() {
            return (Status::False, "TaintMismatch", message);
        }
        match self.label_differs() {
            Some(message) => (Status::False, "LabelMismatch", message),
            None => (Status::True, "MatchesSpec", String::new()),
        }
    }

    fn set_in_sync(&mut self) {
        let generation = self.k.machine.metadata.generation;
        if !self.looked {
            if condition(&self.status.conditions, names::IN_SYNC).is_none() {
                let reason = "NotObservedYet";
                put(
                    &mut self.status.conditions,
                    names::IN_SYNC,
                    Status::Unknown,
                    reason,
                    String::new(),
                    generation,
                    self.now,
                );
            }
            return;
        }
        let fights = self.status.last_drift.as_ref().is_some_and(drift::is_recurring);
        let (status, reason, message) = match (self.drift.is_empty(), fights) {
            (true, _) => (Status::True, "MatchesSpec", String::new()),
            (false, false) => (Status::False, "Drifted", drift::text(&self.drift)),
            (false, true) => {
                let text = drift::text(&self.drift);
                (
                    Status::False,
                    "DriftRecurring",
                    format!("drift recurs after each repair, something else changes the host: {text}"),
                )
            }
        };
        put(&mut self.status.conditions, names::IN_SYNC, status, reason, message, generation, self.now);
    }

    fn phase(&self) -> Phase {
        let any = |state: ComponentState| self.status.components.iter().any(|entry| entry.state == state);
        if let Some((unreachable, reason, _)) = self.why() {
            if reason != "NoResponse" {
                return Phase::Degraded;
            }
            if unreachable.attempts > 1 && self.now.duration_since(unreachable.since) >= LOST_AFTER {
                return Phase::Lost;
            }
            return self.old.phase.unwrap_or(Phase::Converging);
        }
        if self.stopped || self.refused.is_some() || any(ComponentState::Failed) || any(ComponentState::RolledBack) {
            return Phase::Degraded;
        }
        if !self.looked {
            let changed = self.old.observed_generation != self.k.machine.metadata.generation;
            return self.old.phase.filter(|_| !changed).unwrap_or(Phase::Converging);
        }
        if any(ComponentState::Drifted) {
            let reported = self.k.machine.spec.drift == fleetwright_api::Drift::Report;
            return if reported { Phase::Degraded } else { Phase::Repairing };
        }
        let ready = self.status.components.iter().all(|entry| entry.state == ComponentState::Ready);
        let window = self.running().is_some();
        if ready && !window { Phase::Ready } else { Phase::Converging }
    }
}

/// Whether the component is installed and healthy: as declared, or restored after a rollback.
fn healthy(entry: &Component) -> bool {
    matches!(entry.state, ComponentState::Ready | ComponentState::RolledBack)
}
