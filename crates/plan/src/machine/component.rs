//! The state of one component, and the decision that follows from it.

use fleetwright_api::{Component, ComponentState, Disruption, Drift, OnFailure, Rollback};
use fleetwright_wire::text::truncate_chars;
use fleetwright_wire::{ComponentSeen, Facts, Outcome, StepRecord};
use jiff::{SignedDuration, Timestamp};

use super::decide::Decider;
use super::drift;
use super::step::{PlannedStep, StepEffect, StepItem, Verb, changes, id, named};
use super::version;
use crate::package::{Rendered, StepTimeouts};

/// The first delay before a failed step is retried…
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(5);
/// …and the longest.
const MAX_RETRY: SignedDuration = SignedDuration::from_mins(10);
/// Start of a component's message while its package has to prove itself.
pub(super) const PROVING: &str = "waiting until it works";
/// Start of a component's message after its repair failed.
pub(super) const REPAIR_FAILED: &str = "the repair failed";
/// Bytes of a step's output in a component's message.
const MAX_OUTPUT_TAIL: usize = 1024;
/// A component whose health checks failed this often in a row does not work. One failure may be a slow answer.
const DOWN_AFTER: u32 = 2;
/// At most this much time of API server outages is not counted against a package that has to prove itself. A longer outage ends the operator's
/// lease, and its successor counts from its own start. The limit keeps a single watch that always fails from extending the time without end.
const MAX_OUTAGE_EXCUSE: SignedDuration = SignedDuration::from_mins(30);

/// The standing of one component.
#[derive(Debug)]
pub(super) enum ComponentStanding<'a> {
    /// Installed as declared, and proven to work.
    Settled,
    /// Changed, and not yet proven to work.
    Proving {
        /// Other components may be changed meanwhile.
        others: bool,
    },
    /// Effective only after a reboot.
    Boots,
    /// Its step is running on the host.
    Running,
    /// A step is due.
    Due(Box<StepItem<'a>>),
    /// The component did not work and is not retried, or its drift is only reported.
    Abandoned,
}

/// A component as the host reported it.
pub(super) struct ObservedComponent<'a> {
    pub seen: &'a ComponentSeen,
    pub facts: &'a Facts,
    /// The boot id differs from the recorded one.
    pub booted: bool,
}

impl<'a> Decider<'a> {
    /// Judges a declared component, and records its state.
    pub(super) fn stand(&mut self, wanted: &'a Rendered, sight: &ObservedComponent<'_>) -> ComponentStanding<'a> {
        let mut entry = self.entry(&wanted.package.component);
        entry.desired = Some(truncate_chars(&wanted.package.version, 256));
        entry.observed = observed(sight.seen);
        let misfit = super::version_skew(wanted, self.k.server);
        let others = std::mem::replace(&mut self.misfit, misfit);
        if entry.failed.as_ref().is_some_and(|failed| *failed != wanted.digest) {
            // Another version is declared.
            (entry.failed, entry.rollback) = (None, None);
            if matches!(entry.state, ComponentState::Failed | ComponentState::RolledBack) && !self.stays_failed(&entry)
            {
                set(&mut entry, ComponentState::Pending, String::new(), self.now);
            }
        }
        let stand = if entry.failed.is_some() {
            self.held(&mut entry, wanted, sight)
        } else if installed(sight.seen) == Some(&wanted.digest) {
            self.in_place(&mut entry, wanted, sight)
        } else {
            self.not_in_place(&mut entry, wanted, sight)
        };
        self.put(entry);
        self.misfit = self.misfit.take().or(others);
        if matches!(stand, ComponentStanding::Settled) && wanted.trusts.is_some() {
            self.status.trusts.clone_from(&wanted.trusts);
        }
        stand
    }

    /// Whether the component was left failed on a closed Node. Declaring another version, or a retry by a person, does not repair it: the Node is
    /// opened when the component works.
    pub(super) fn stays_failed(&self, entry: &Component) -> bool {
        entry.state == ComponentState::Failed && self.k.node.is_some_and(|node| node.closed.is_some())
    }

    /// The declared package is the one that we installed last.
    fn in_place(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
    ) -> ComponentStanding<'a> {
        let now = self.now;
        for does in [StepEffect::Install(wanted), StepEffect::Repair(wanted)] {
            let Some(record) = self.record(entry, &does) else { continue };
            let (outcome, said) = (record.outcome, record_message(record));
            match outcome {
                Outcome::Running => return ComponentStanding::Running,
                Outcome::Failed | Outcome::Interrupted if matches!(does, StepEffect::Repair(_)) => {
                    count_attempt(entry);
                    self.repaired(false);
                    entry.message = format!("{REPAIR_FAILED}: {said}");
                }
                Outcome::Failed => {
                    count_attempt(entry);
                    return self.fail(entry, wanted, sight, &said);
                }
                Outcome::Done | Outcome::Interrupted | Outcome::Refused => {
                    count_attempt(entry);
                    // The time for the changed package to prove itself starts now.
                    entry.since = now;
                    if outcome == Outcome::Done && matches!(does, StepEffect::Repair(_)) {
                        self.repaired(true);
                    }
                }
            }
        }
        let deviations = &sight.seen.deviations;
        // A package that was just installed has time to become in sync; any other was in sync before, or is observed for the first time.
        let calm = self.installed_by_us(entry, wanted).is_none() && !self.repaired_in_proof(entry, wanted);
        if calm && !deviations.is_empty() {
            let why = self.drifted(entry, sight.seen);
            return why.map_or(ComponentStanding::Abandoned, |why| {
                ComponentStanding::Due(Box::new(self.repair(wanted, None, sight.seen, why)))
            });
        }
        if self.needs_boot(entry, wanted, sight) {
            if entry.state == ComponentState::Ready {
                set(entry, ComponentState::Pending, String::new(), now);
            }
            entry.message = "waiting for a reboot to take effect".to_owned();
            return ComponentStanding::Boots;
        }
        match entry.state {
            ComponentState::Ready => {
                // Neither field was written by earlier versions of the operator.
                if entry.inputs.is_empty() {
                    entry.inputs = wanted.inputs();
                }
                entry.verified_digest = Some(wanted.digest.clone());
                return ComponentStanding::Settled;
            }
            // The deviation is gone without a repair of ours.
            ComponentState::Drifted if !self.was_repaired() => {
                set(entry, ComponentState::Ready, String::new(), now);
                return ComponentStanding::Settled;
            }
            // A bootstrap token is valid for minutes: a kubelet that did not join with its token needs another one.
            // The step was recorded before it was requested. If no host received it, for example because no token was issued, it is requested again.
            ComponentState::Pending | ComponentState::Upgrading
                if wanted.needs_credential
                    && self.k.node.is_none()
                    && (entry.state == ComponentState::Pending
                        || self.written_down(entry, &StepEffect::Install(wanted))) =>
            {
                let mut stand = self.not_in_place(entry, wanted, sight);
                if let ComponentStanding::Due(item) = &mut stand {
                    item.step.why =
                        "installed, but the Node has not joined: retrying with a new bootstrap token".to_owned();
                }
                return stand;
            }
            // The recorded step was withdrawn before it ran: the time for the installed package to prove itself starts now.
            ComponentState::Upgrading | ComponentState::Downgrading
                if self.installed_by_us(entry, wanted).is_none() =>
            {
                set(entry, ComponentState::Installing, String::new(), now);
            }
            ComponentState::Drifted
            | ComponentState::Installing
            | ComponentState::Upgrading
            | ComponentState::Downgrading => {}
            // Installed as declared, and not yet proven.
            _ => set(entry, ComponentState::Installing, String::new(), now),
        }
        if sight.booted {
            entry.since = now;
        }
        self.prove(entry, wanted, sight)
    }

    fn prove(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
    ) -> ComponentStanding<'a> {
        let Some(doubt) = self.doubt(wanted, sight) else { return self.proven(entry, wanted) };
        let within = signed(wanted.times.healthy_within);
        let needs_server = !wanted.node_conditions.is_empty() || wanted.needs_credential;
        if self.had(entry, needs_server) >= within {
            // Somebody else may have changed it meanwhile. Without a version to roll back to, it is repaired once before it is abandoned.
            let deviations = &sight.seen.deviations;
            if !deviations.is_empty()
                && kept(entry, sight.seen, wanted).is_none()
                && !self.repaired_in_proof(entry, wanted)
            {
                entry.message = format!("{doubt}: repairing once before marking the package as failed");
                return ComponentStanding::Due(Box::new(self.repair(wanted, None, sight.seen, doubt)));
            }
            let said = format!("not healthy within {}s: {doubt}", within.as_secs());
            return self.fail(entry, wanted, sight, &said);
        }
        entry.message = format!("{PROVING}: {doubt}");
        self.observe_health(wanted.times.healthy_every);
        ComponentStanding::Proving { others: entry.state == ComponentState::Installing }
    }

    /// The declared package is proven: a later version rolls back to it.
    fn proven(&self, entry: &mut Component, wanted: &Rendered) -> ComponentStanding<'a> {
        set(entry, ComponentState::Ready, String::new(), self.now);
        (entry.inputs, entry.verified_digest) = (wanted.inputs(), Some(wanted.digest.clone()));
        ComponentStanding::Settled
    }

    /// The time that a component has had to prove itself.
    pub(super) fn had(&self, entry: &Component, needs_server: bool) -> SignedDuration {
        // Nothing can prove itself while no operator observes it.
        let since = entry.since.max(self.k.known_since);
        let passed = self.now.duration_since(since);
        if !needs_server {
            return passed;
        }
        // A kubelet cannot join an API server that does not answer, and no operator can see whether it did.
        let overlap = |(from, to): &(Timestamp, Timestamp)| {
            (*to).min(self.now).duration_since((*from).max(since)).max(SignedDuration::ZERO)
        };
        let excused = self.k.outages.iter().map(overlap).fold(SignedDuration::ZERO, |sum, outage| sum + outage);
        passed - excused.min(MAX_OUTAGE_EXCUSE)
    }

    /// Why a component is not yet proven to work; none if it is.
    fn doubt(&self, wanted: &Rendered, sight: &ObservedComponent<'_>) -> Option<String> {
        let checks = wanted.package.health.checks.len();
        let ran = sight.seen.health.len() >= checks;
        self.doubt_of(&wanted.package.component, ran, wanted.times.healthy_times, &wanted.node_conditions, sight)
    }

    /// As [`Self::doubt`], for any version: whether its checks `ran`, and the other conditions.
    pub(super) fn doubt_of(
        &self,
        component: &str,
        ran: bool,
        times: u32,
        node_conditions: &[String],
        sight: &ObservedComponent<'_>,
    ) -> Option<String> {
        if let Some(deviation) = sight.seen.deviations.first() {
            return Some(format!("{} is {}, wanted {}", deviation.what, deviation.found, deviation.wanted));
        }
        if sight.seen.needs_reboot {
            return Some("not in effect although the host was rebooted".to_owned());
        }
        if let Some(failed) = sight.seen.health.iter().find(|check| !check.holds) {
            return Some(format!("{}: {}", failed.check, truncate_chars(&failed.message, MAX_OUTPUT_TAIL)));
        }
        if !ran {
            return Some("health checks have not run yet".to_owned());
        }
        let streak = self.k.streaks.get(component).copied().unwrap_or(0);
        if !sight.seen.health.is_empty() && streak < times {
            return Some(format!("health checks passed {streak} of {times} times in a row"));
        }
        if let Some(condition) = node_conditions.first() {
            let Some(node) = &self.k.node else {
                return Some(format!("the Node has not joined; condition {condition} must be True"));
            };
            // Right after a reboot the Node still has the status from before.
            if node.boot_id.is_some_and(|boot| !sight.facts.boot_id.is_empty() && boot != sight.facts.boot_id) {
                return Some(format!("Node {} has not reported its current boot ID yet", node.name));
            }
            let missing = node_conditions.iter().find(|condition| !node.holds(condition));
            return missing.map(|condition| format!("Node {}: condition {condition} is not True", node.name));
        }
        None
    }

    /// Another version is installed, or none.
    fn not_in_place(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
    ) -> ComponentStanding<'a> {
        let does = StepEffect::Install(wanted);
        let verb = change(sight.seen, wanted);
        if entry.state == ComponentState::Ready || entry.state == ComponentState::Drifted {
            set(entry, ComponentState::Pending, String::new(), self.now);
        }
        if let Some(record) = self.record(entry, &does) {
            let (outcome, said, untouched) = (record.outcome, record_message(record), record.untouched);
            match outcome {
                Outcome::Running => return ComponentStanding::Running,
                Outcome::Failed if !untouched => {
                    count_attempt(entry);
                    return self.fail(entry, wanted, sight, &said);
                }
                Outcome::Failed => {
                    count_attempt(entry);
                    set(
                        entry,
                        ComponentState::Pending,
                        format!("failed before any change, retrying: {said}"),
                        self.now,
                    );
                }
                Outcome::Interrupted => {
                    count_attempt(entry);
                    entry.message = format!("interrupted, resuming: {said}");
                }
                Outcome::Done => {
                    count_attempt(entry);
                    entry.message = "the host reported success, but the package is not installed: retrying".to_owned();
                }
                Outcome::Refused => count_attempt(entry),
            }
        }
        if let Some((reason, message)) = self.misfit.clone() {
            set(entry, ComponentState::Pending, format!("{reason}: {message}"), self.now);
            return ComponentStanding::Abandoned;
        }
        let changes = changes(&entry.inputs, &wanted.inputs());
        let step = PlannedStep {
            component: wanted.package.component.clone(),
            from: entry.observed.clone(),
            to: Some(wanted.package.version.clone()),
            verb,
            disruption: wanted.disruption,
            why: match verb {
                Verb::Install => "declared and not installed".to_owned(),
                Verb::Change if changes.is_empty() => "content differs from what is installed".to_owned(),
                Verb::Change => format!("content differs from what is installed: {}", named(&changes)),
                _ => "declared version changed".to_owned(),
            },
            changes,
        };
        let not_before = self.retry_at(entry, &does);
        ComponentStanding::Due(Box::new(StepItem {
            step,
            does,
            depends_on: &wanted.depends_on,
            times: wanted.times,
            not_before,
        }))
    }

    /// The declared package did not work: it is rolled back or left.
    fn held(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
    ) -> ComponentStanding<'a> {
        // A package that proved itself too late, and was not replaced, is still recognized when it works. That is no retry.
        let late = entry.state == ComponentState::Failed && installed(sight.seen) == Some(&wanted.digest);
        if late && self.doubt(wanted, sight).is_none() {
            entry.failed = None;
            return self.proven(entry, wanted);
        }
        if let Some(back) = entry.rollback.clone() {
            return self.restored(entry, wanted, sight, &back);
        }
        if entry.state != ComponentState::Downgrading {
            if !matches!(entry.state, ComponentState::RolledBack | ComponentState::Failed) {
                set(entry, ComponentState::Failed, entry.message.clone(), self.now);
            }
            return ComponentStanding::Abandoned;
        }
        let Some((to, version)) = kept(entry, sight.seen, wanted) else {
            set(entry, ComponentState::Failed, entry.message.clone(), self.now);
            return ComponentStanding::Abandoned;
        };
        let does = StepEffect::Back { to };
        if let Some(record) = self.record(entry, &does) {
            let (outcome, said) = (record.outcome, record_message(record));
            match outcome {
                Outcome::Running => return ComponentStanding::Running,
                Outcome::Done => {
                    count_attempt(entry);
                    let StepEffect::Back { to } = does else { return ComponentStanding::Abandoned };
                    let version = truncate_chars(&version, 256);
                    let back =
                        Rollback { version: version.clone(), digest: to, at: self.now, why: entry.message.clone() };
                    // The time for the restored version to prove itself starts now.
                    entry.since = self.now;
                    (entry.observed, entry.rollback) = (Some(version), Some(back.clone()));
                    return self.restored(entry, wanted, sight, &back);
                }
                Outcome::Failed => {
                    count_attempt(entry);
                    let message = format!("{}; rollback failed: {said}", entry.message);
                    set(entry, ComponentState::Failed, message, self.now);
                    return ComponentStanding::Abandoned;
                }
                Outcome::Interrupted | Outcome::Refused => count_attempt(entry),
            }
        }
        ComponentStanding::Due(Box::new(self.back(entry, wanted, does, version)))
    }

    /// A change did not work: rolls back to the version that worked, once, or leaves the component.
    fn fail(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
        said: &str,
    ) -> ComponentStanding<'a> {
        let version = &wanted.package.version;
        let repaired = entry.state == ComponentState::Drifted;
        entry.failed = Some(wanted.digest.clone());
        // This version has proven itself on this host: an older version does not repair what broke since.
        let worked = entry.verified_digest.as_ref() == Some(&wanted.digest);
        let goes_back = wanted.on_failure == OnFailure::RollBack && !repaired && !worked;
        let target = kept(entry, sight.seen, wanted).filter(|_| goes_back);
        let Some((to, old)) = target else {
            let why = if repaired {
                "after a repair"
            } else if worked {
                "not rolled back: it worked on this host before"
            } else if wanted.on_failure == OnFailure::Hold {
                "not rolled back: onFailure is Hold"
            } else {
                "not rolled back: no earlier version worked"
            };
            let message = format!("{version} failed ({why}): {said}");
            set(entry, ComponentState::Failed, truncate_chars(&message, 4096), self.now);
            return ComponentStanding::Abandoned;
        };
        let message = format!("{version} failed, rollback to {old}: {said}");
        set(entry, ComponentState::Downgrading, truncate_chars(&message, 4096), self.now);
        let does = StepEffect::Back { to };
        ComponentStanding::Due(Box::new(self.back(entry, wanted, does, old)))
    }

    pub(super) fn back(
        &self,
        entry: &Component,
        wanted: &'a Rendered,
        does: StepEffect<'a>,
        version: String,
    ) -> StepItem<'a> {
        let step = PlannedStep {
            component: wanted.package.component.clone(),
            from: entry.observed.clone(),
            to: Some(version),
            verb: Verb::GoBack,
            disruption: wanted.disruption,
            why: entry.message.clone(),
            changes: Vec::new(),
        };
        let not_before = self.retry_at(entry, &does);
        StepItem { step, does, depends_on: &[], times: wanted.times, not_before }
    }

    /// Records the deviations. Returns what a repair is for; none if drift is only reported.
    pub(super) fn drifted(&mut self, entry: &mut Component, seen: &ComponentSeen) -> Option<String> {
        if let Some(why) = self.why_down(seen) {
            self.not_working.insert(entry.component.clone(), truncate_chars(&why, MAX_OUTPUT_TAIL));
        }
        let items = drift::items(&entry.component, &seen.deviations);
        let text = drift::text(&items);
        self.drift.extend(items);
        let kept = std::mem::take(&mut entry.message);
        let message = if kept.starts_with(REPAIR_FAILED) { kept } else { text.clone() };
        set(entry, ComponentState::Drifted, message, self.now);
        (self.k.machine.spec.drift != Drift::Report).then_some(text)
    }

    /// The step that repairs the deviations from the declared or the restored version. A component that does not work is
    /// repaired at once: no working pod is disrupted, and pods on a dead container runtime could never terminate.
    pub(super) fn repair(
        &mut self,
        wanted: &'a Rendered,
        back: Option<&Rollback>,
        seen: &ComponentSeen,
        mut why: String,
    ) -> StepItem<'a> {
        let down = self.why_down(seen);
        let disrupts = down.is_none() && seen.deviations.iter().any(|deviation| deviation.disrupts);
        if disrupts && seen.health.iter().any(|check| !check.holds) {
            self.second_look = true;
            self.observe_health(wanted.times.healthy_every);
        }
        if let Some(down) = down {
            why = truncate_chars(
                &format!("{why}; already unhealthy, so the repair disrupts nothing: {down}"),
                MAX_OUTPUT_TAIL,
            );
        }
        // The health checks decide whether the component works; without their results no pod is evicted for a repair.
        self.ask_health |= disrupts && !wanted.package.health.checks.is_empty();
        let disruption = if disrupts { wanted.disruption.max(Disruption::Restart) } else { Disruption::None };
        let version = Some(back.map_or(&wanted.package.version, |back| &back.version).clone());
        let does = back.map_or(StepEffect::Repair(wanted), |back| StepEffect::Back { to: back.digest.clone() });
        let step = PlannedStep {
            component: wanted.package.component.clone(),
            from: version.clone(),
            to: version,
            verb: Verb::Repair,
            disruption,
            why,
            changes: Vec::new(),
        };
        StepItem { step, does, depends_on: &[], times: wanted.times, not_before: None }
    }

    /// Judges a component that is on the host and not declared.
    pub(super) fn going(&mut self, seen: &ComponentSeen) -> ComponentStanding<'a> {
        let name = &seen.component;
        let mut entry = self.entry(name);
        entry.desired = None;
        (entry.failed, entry.rollback) = (None, None);
        entry.observed = observed(seen);
        let left = self.k.leaving.get(name);
        let does = StepEffect::Remove;
        if entry.state != ComponentState::Removing && entry.state != ComponentState::Failed {
            set(&mut entry, ComponentState::Pending, "no longer declared".to_owned(), self.now);
        }
        if let Some(record) = self.record(&entry, &does) {
            let (outcome, said) = (record.outcome, record_message(record));
            match outcome {
                Outcome::Running => {
                    self.put(entry);
                    return ComponentStanding::Running;
                }
                Outcome::Failed => {
                    count_attempt(&mut entry);
                    let message = format!("removal failed, retrying: {said}");
                    set(&mut entry, ComponentState::Failed, message, self.now);
                }
                Outcome::Done | Outcome::Interrupted | Outcome::Refused => count_attempt(&mut entry),
            }
        }
        let step = PlannedStep {
            component: name.clone(),
            from: entry.observed.clone(),
            to: None,
            verb: Verb::Remove,
            // The disruption of this component is no longer known: assume the highest that needs no reboot.
            disruption: left.map_or(Disruption::Drain, |left| left.disruption),
            why: "no longer declared".to_owned(),
            changes: Vec::new(),
        };
        let not_before = self.retry_at(&entry, &does);
        self.put(entry);
        let times = left.map_or_else(default_times, |left| left.times);
        ComponentStanding::Due(Box::new(StepItem { step, does, depends_on: &[], times, not_before }))
    }

    /// The host's record of the present attempt.
    pub(super) fn record(&self, entry: &Component, does: &StepEffect<'_>) -> Option<&'a StepRecord> {
        self.record_of(&id(self.under(), &entry.component, does.tag(), entry.attempts.unwrap_or(0)))
    }

    /// Whether the present attempt is the step that was recorded last.
    fn written_down(&self, entry: &Component, does: &StepEffect<'_>) -> bool {
        let id = id(self.under(), &entry.component, does.tag(), entry.attempts.unwrap_or(0));
        self.old.progress.as_ref().is_some_and(|progress| progress.id.as_ref() == Some(&id))
    }

    /// When a failed attempt may be retried.
    pub(super) fn retry_at(&self, entry: &Component, does: &StepEffect<'_>) -> Option<Timestamp> {
        let before = entry.attempts.unwrap_or(0).checked_sub(1)?;
        let record = self.record_of(&id(self.under(), &entry.component, does.tag(), before))?;
        // This includes a step that the host reports as done without a visible effect: a host that lies is not asked again and again.
        if !matches!(record.outcome, Outcome::Failed | Outcome::Interrupted | Outcome::Done) {
            return None;
        }
        let ended = self.k.host.step_at.filter(|_| self.k.host.step.is_some_and(|step| step.id == record.id))?;
        let passed = ended.duration_since(entry.since);
        let wait = (passed / 2).clamp(FIRST_RETRY, MAX_RETRY);
        ended.checked_add(wait).ok()
    }

    /// The step that installed a package which is not proven yet.
    fn installed_by_us(&self, entry: &Component, wanted: &Rendered) -> Option<&'a StepRecord> {
        let changing =
            matches!(entry.state, ComponentState::Installing | ComponentState::Upgrading | ComponentState::Downgrading);
        let before = entry.attempts.unwrap_or(0).checked_sub(1).filter(|_| changing)?;
        self.record_of(&id(self.under(), &entry.component, StepEffect::Install(wanted).tag(), before))
    }

    /// Whether a package that is not proven yet was repaired since its installation.
    fn repaired_in_proof(&self, entry: &Component, wanted: &Rendered) -> bool {
        let before = entry.attempts.unwrap_or(0).checked_sub(1).filter(|_| entry.state == ComponentState::Installing);
        let record =
            |before| self.record_of(&id(self.under(), &entry.component, StepEffect::Repair(wanted).tag(), before));
        before.and_then(record).is_some()
    }

    /// Why a component does not work, by its units, or by its health checks in two observations in a row; none if it works or is not known to fail.
    fn why_down(&self, seen: &ComponentSeen) -> Option<String> {
        if let Some(unit) = seen.down.first() {
            return Some(format!("unit {unit} is not running"));
        }
        let failed = seen.health.iter().find(|check| !check.holds)?;
        let times = self.k.failures.get(&seen.component).copied().unwrap_or(0);
        (times >= DOWN_AFTER).then(|| format!("{}: {}", failed.check, failed.message))
    }

    fn needs_boot(&self, entry: &Component, wanted: &Rendered, sight: &ObservedComponent<'_>) -> bool {
        let changed = self.installed_by_us(entry, wanted).filter(|record| record.outcome == Outcome::Done);
        match changed {
            // One reboot is enough: a component that is not effective after it does not work.
            Some(record) if record.boot_id != sight.facts.boot_id => false,
            Some(_) => sight.seen.needs_reboot || wanted.disruption == Disruption::Reboot,
            None => sight.seen.needs_reboot,
        }
    }
}

/// A step's message, and the end of its output.
pub(super) fn record_message(record: &StepRecord) -> String {
    let tail = record.tail.trim();
    let message = truncate_chars(record.message.trim(), MAX_OUTPUT_TAIL);
    if tail.is_empty() || message.contains(tail) {
        return message;
    }
    let from = tail.char_indices().rev().nth(MAX_OUTPUT_TAIL).map_or(0, |(at, _)| at);
    format!("{message}\n{}", &tail[from..])
}

/// Sets a state and the time since when it holds.
pub(super) fn set(entry: &mut Component, state: ComponentState, message: String, now: Timestamp) {
    if entry.state != state {
        entry.state = state;
        entry.since = now;
    }
    entry.message = message;
}

/// Gives the next step another id.
pub(super) fn count_attempt(entry: &mut Component) {
    entry.attempts = Some(entry.attempts.unwrap_or(0).saturating_add(1));
}

pub(super) fn installed(seen: &ComponentSeen) -> Option<&String> {
    seen.installed.as_ref().map(|installed| &installed.digest)
}

fn observed(seen: &ComponentSeen) -> Option<String> {
    let ours = seen.installed.as_ref().map(|installed| &installed.version);
    let version = match (&seen.version, ours) {
        // Programs report `v1.36.4` where `1.36.4` is declared.
        (Some(there), Some(ours)) if there.strip_prefix('v') == Some(ours) => ours,
        (Some(there), _) => there,
        (None, ours) => ours?,
    };
    Some(truncate_chars(version, 256))
}

/// Whether the host has a version that is not proven. A version without a record counts as proven: an earlier operator, or the operator that
/// owned the host before, installed it.
pub(super) fn unproven(entry: &Component, seen: &ComponentSeen) -> bool {
    entry.verified_digest.as_ref().zip(installed(seen)).is_some_and(|(proven, there)| proven != there)
}

/// The version that worked: the installed one, or else the one before it.
fn kept(entry: &Component, seen: &ComponentSeen, wanted: &Rendered) -> Option<(String, String)> {
    let there = seen.installed.iter().filter(|_| !unproven(entry, seen));
    let mut others = there.chain(&seen.previous).filter(|installed| installed.digest != wanted.digest);
    others.next().map(|installed| (installed.digest.clone(), installed.version.clone()))
}

fn change(seen: &ComponentSeen, wanted: &Rendered) -> Verb {
    let Some(there) = seen.installed.as_ref().map(|installed| &installed.version) else { return Verb::Install };
    match version::compare(there, &wanted.package.version) {
        std::cmp::Ordering::Less => Verb::Upgrade,
        std::cmp::Ordering::Greater => Verb::Downgrade,
        std::cmp::Ordering::Equal => Verb::Change,
    }
}

/// The state of a component while that step runs.
pub(super) fn state(verb: Verb) -> Option<ComponentState> {
    Some(match verb {
        Verb::Install => ComponentState::Installing,
        Verb::Upgrade | Verb::Change => ComponentState::Upgrading,
        Verb::Downgrade | Verb::GoBack => ComponentState::Downgrading,
        Verb::Remove => ComponentState::Removing,
        Verb::Repair | Verb::Reboot => return None,
    })
}

pub(super) fn signed(duration: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// The timeouts of a package version that declares none.
pub(super) fn default_times() -> StepTimeouts {
    let timeouts = fleetwright_api::Timeouts::default();
    let health = fleetwright_api::PackageHealth::default();
    StepTimeouts {
        apply: timeouts.apply.0,
        drain: timeouts.drain.0,
        reboot: timeouts.reboot.0,
        healthy_within: health.within.0,
        healthy_every: health.every.0,
        healthy_times: health.times,
    }
}
