//! The differences from what is declared, and the steps that remove them.

use std::sync::Arc;

use fleetwright_api::{Component, ComponentState, Disruption, names};
use fleetwright_wire::text::truncate_chars;
use fleetwright_wire::{self as wire, Observation, Outcome};
use jiff::{SignedDuration, Timestamp};

use super::component::{ComponentStanding, ObservedComponent, default_times, set, state, unproven};
use super::decide::{ASK_AGAIN, Decider};
use super::drift;
use super::observe::HINT_CHECK_INTERVAL;
use super::step::{StepEffect, StepItem, Verb, id, reboot_id};
use super::{Act, DesiredPackages, HostObservation, StepRun};
use crate::package::{Rendered, StepTimeouts};

/// A window in which a step fails again and again is abandoned after this long.
const MAX_WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// Reboots of a host per window.
pub(super) const MAX_BOOTS: u32 = 3;

/// The pending work on a host.
pub(super) struct PendingWork<'a> {
    /// Steps to run, in order.
    pub items: Vec<StepItem<'a>>,
    /// Components that are as declared and work.
    pub settled: Vec<&'a str>,
    /// A step is running on the host.
    pub running: bool,
    /// A change has to prove itself, and nothing else is changed until then.
    pub proving: bool,
    /// A change has to prove itself.
    pub unproven: bool,
    /// A reboot is needed.
    pub boots: bool,
}

impl<'a> Decider<'a> {
    /// Collects everything that differs from what is declared.
    pub(super) fn work(&mut self, ordered: &[&'a Arc<Rendered>], seen: &'a Observation) -> PendingWork<'a> {
        let boot = Some(&seen.facts.boot_id).filter(|boot| !boot.is_empty());
        let known = self.old.facts.as_ref().and_then(|facts| facts.boot_id.as_ref());
        let booted = known.is_some() && boot.is_some() && known != boot;
        let mut work = PendingWork {
            items: Vec::new(),
            settled: Vec::new(),
            running: seen.records.iter().any(|record| record.outcome == Outcome::Running),
            proving: false,
            unproven: false,
            boots: false,
        };
        if self.status.reboot_due_from.as_ref() == boot {
            work.boots = boot.is_some();
        } else if boot.is_some() {
            self.status.reboot_due_from = None;
        }
        let nothing = wire::ComponentSeen::default();
        let mut due = Vec::new();
        for wanted in ordered {
            let found = seen.components.iter().find(|found| found.component == wanted.package.component);
            let sight = ObservedComponent { seen: found.unwrap_or(&nothing), facts: &seen.facts, booted };
            match self.stand(wanted, &sight) {
                ComponentStanding::Settled => work.settled.push(&wanted.package.component),
                ComponentStanding::Proving { others } => {
                    work.unproven = true;
                    work.proving |= !others;
                }
                ComponentStanding::Boots => work.boots = true,
                ComponentStanding::Running => work.running = true,
                ComponentStanding::Due(item) => due.push(*item),
                ComponentStanding::Abandoned => {}
            }
        }
        // This includes a component of which only parts are present: the host reports undeclared components only if they are ours.
        let goes =
            |found: &&wire::ComponentSeen| !ordered.iter().any(|wanted| wanted.package.component == found.component);
        let going: Vec<&wire::ComponentSeen> = seen.components.iter().filter(goes).collect();
        let names: Vec<String> = going.iter().map(|found| found.component.clone()).collect();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for name in super::order::removals(&names, self.k.leaving) {
            let Some(found) = going.iter().find(|found| found.component == name) else { continue };
            let in_the_way = ordered.iter().any(|wanted| wanted.conflicts_with.contains(&name));
            match self.going(found) {
                ComponentStanding::Running => work.running = true,
                ComponentStanding::Due(item) if in_the_way => first.push(*item),
                ComponentStanding::Due(item) => last.push(*item),
                _ => {}
            }
        }
        work.items.extend(first);
        work.items.extend(due);
        work.items.extend(last);
        let there = |entry: &Component| {
            ordered.iter().any(|wanted| wanted.package.component == entry.component) || names.contains(&entry.component)
        };
        self.status.components.retain(there);
        work
    }

    /// Takes the next step, or the next action towards it.
    pub(super) fn take_next_step(&mut self, work: PendingWork<'a>, observe: wire::Observe, seen: HostObservation<'a>) {
        if work.running {
            self.status.progress = self.old.progress.clone();
            return self.observe_after(observe, seen, ASK_AGAIN);
        }
        if work.unproven {
            self.progress_of_proof();
        }
        if work.proving {
            return self.observe_for_proof(observe, seen);
        }
        // A drain may take long, or never end because of something that broke meanwhile.
        let stale = self.running().is_some() && seen.at + HINT_CHECK_INTERVAL <= self.now;
        if stale || self.ask_health && !seen.asked.health {
            return self.ask(wire::Observe { health: true, ..observe });
        }
        if self.second_look {
            return self.observe_for_proof(observe, seen);
        }
        // A machine that waits for the gate, or after an abandoned window, is observed as often as any other.
        if self.running().is_none() {
            if self.due(seen) {
                return self.ask(observe);
            }
            self.at(self.next_check());
        }
        if let Some(item) = self.next_item(&work) {
            return self.take(&work, item, observe);
        }
        if work.unproven {
            return self.observe_for_proof(observe, seen);
        }
        if work.boots && self.boot(&work, seen, observe.clone()) {
            return;
        }
        if let Some((level, since)) = self.running() {
            let later = work
                .items
                .iter()
                .filter(|item| item.step.disruption <= level)
                .filter_map(|item| self.item_due_at(item));
            return match later.min() {
                Some(at) if self.now.duration_since(since) < MAX_WINDOW => self.at(at.max(self.now + ASK_AGAIN)),
                Some(_) => {
                    let text = "timed out: failed steps are retried in another window".to_owned();
                    self.act = Act::EndWindow { open: !self.is_left_broken(), well: false, text };
                }
                None => self.end_window(),
            };
        }
        self.withdraw = self.waits() && !work.boots;
        let waits = work.items.iter().filter_map(|item| self.item_due_at(item)).min();
        if let Some(at) = waits {
            self.at(at);
        }
        if !self.open_what_is_left() {
            self.rest(seen);
        }
    }

    /// The first step that may run now.
    fn next_item<'w>(&self, work: &'w PendingWork<'a>) -> Option<&'w StepItem<'a>> {
        let free = |item: &&StepItem<'a>| {
            item.depends_on.iter().all(|on| work.settled.contains(&on.as_str()))
                && self.item_due_at(item).is_none_or(|at| at <= self.now)
        };
        let window = self.running().map(|window| window.0);
        if let Some(level) = window {
            return work
                .items
                .iter()
                .filter(free)
                .find(|item| item.step.disruption <= level || !self.needs_window(item));
        }
        // Steps that disrupt nothing continue while the gate is asked.
        let gentle = work.items.iter().filter(free).find(|item| !self.needs_window(item));
        gentle.or_else(|| work.items.iter().find(free))
    }

    /// Whether the machine was never complete: no workload relies on it yet.
    pub(super) fn is_new(&self) -> bool {
        let said = fleetwright_api::condition(&self.old.conditions, names::PACKAGES_READY);
        said.is_none_or(|said| ["NotObservedYet", super::status::INSTALLING].contains(&&*said.reason))
    }

    /// When a step may run.
    fn item_due_at(&self, item: &StepItem<'_>) -> Option<Timestamp> {
        let fight = (item.step.verb == Verb::Repair).then(|| self.status.last_drift.as_ref().map(drift::repair_at));
        [item.not_before, fight.flatten()].into_iter().flatten().max()
    }

    pub(super) fn needs_window(&self, item: &StepItem<'_>) -> bool {
        match item.step.disruption {
            Disruption::None => false,
            Disruption::Restart | Disruption::Drain => self.k.node.is_some() && !self.is_new(),
            Disruption::Reboot => true,
        }
    }

    pub(super) fn take(&mut self, work: &PendingWork<'a>, item: &StepItem<'a>, observe: wire::Observe) {
        if !self.finalized() {
            self.act = Act::Finalize;
            return;
        }
        // In an open window even steps that need no window wait until the pods have terminated: a later step counts on it.
        let disruption = item.step.disruption;
        let inside = disruption > Disruption::None && self.running().is_some_and(|(level, _)| disruption <= level);
        if (inside || self.needs_window(item)) && !self.in_window(work, disruption, item.times.drain) {
            return;
        }
        self.run(item, observe);
    }

    /// Runs a step.
    pub(super) fn run(&mut self, item: &StepItem<'a>, mut then: wire::Observe) {
        let step = &item.step;
        let mut entry = self.entry(&step.component);
        if let Some(state) = state(step.verb) {
            let message = if step.verb == Verb::GoBack { entry.message.clone() } else { String::new() };
            set(&mut entry, state, message, self.now);
        }
        let id = id(self.under(), &step.component, item.does.tag(), entry.attempts.unwrap_or(0));
        let seen = self.k.host.seen.map(|seen| &seen.observation.components);
        let seen = seen.and_then(|all| all.iter().find(|found| found.component == step.component));
        let unproven = seen.is_some_and(|seen| unproven(&entry, seen));
        self.put(entry);
        self.progress(&step.text(), Some(&id), None, "");
        then.records.push(id.clone());
        then.health = true;
        let (wire, within) = (item.does.wire(&step.component), item.times.apply);
        let needs_credential = matches!(item.does, StepEffect::Install(wanted) if wanted.needs_credential);
        self.act = Act::RunStep(Box::new(StepRun { id, step: wire, within, unproven, then, needs_credential }));
    }

    /// The timeouts of a reboot: the longest of the packages that need it, or of all packages if none does.
    pub(super) fn boot_times(&self) -> StepTimeouts {
        let wanted = match self.k.wanted {
            DesiredPackages::Ready(wanted) => wanted,
            DesiredPackages::Unavailable { .. } => &[],
        };
        let boots = wanted.iter().any(|wanted| wanted.disruption == Disruption::Reboot);
        let counts = wanted.iter().filter(|wanted| !boots || wanted.disruption == Disruption::Reboot);
        counts.map(|wanted| wanted.times).max_by_key(|times| times.reboot).unwrap_or_else(default_times)
    }

    /// Reboots the host, once for all components that need it. False if there is nothing to do about it now.
    fn boot(&mut self, work: &PendingWork<'a>, seen: HostObservation<'a>, observe: wire::Observe) -> bool {
        if !self.finalized() {
            self.act = Act::Finalize;
            return true;
        }
        let times = self.boot_times();
        if !self.in_window(work, Disruption::Reboot, times.drain) {
            // A window of a lower level ends, and a window for the reboot follows.
            return self.running().is_none() || self.act != Act::Nothing;
        }
        let window = self.under().to_owned();
        let mut number = 1;
        while number <= MAX_BOOTS {
            let Some(record) = self.record_of(&reboot_id(&window, number)) else { break };
            match record.outcome {
                Outcome::Running => {
                    self.observe_after(observe, seen, ASK_AGAIN);
                    return true;
                }
                // The boot id shows whether the reboot happened: it is not repeated before the host was observed in the
                // boot in which the step started.
                Outcome::Done | Outcome::Failed | Outcome::Interrupted | Outcome::Refused => number += 1,
            }
        }
        if number > MAX_BOOTS {
            self.boot_limit_reached(seen.observation);
            return false;
        }
        let id = reboot_id(&window, number);
        self.progress("reboot", Some(&id), None, "");
        let mut then = observe;
        then.records.push(id.clone());
        then.health = true;
        self.act = Act::RunStep(Box::new(StepRun {
            id,
            step: wire::Step::Reboot,
            within: times.reboot,
            unproven: false,
            then,
            needs_credential: false,
        }));
        true
    }

    /// Handles a host that was rebooted up to the limit and still has ineffective changes.
    fn boot_limit_reached(&mut self, seen: &Observation) {
        let DesiredPackages::Ready(wanted) = self.k.wanted else { return };
        for wanted in wanted {
            let name = &wanted.package.component;
            if seen.components.iter().any(|found| found.component == *name && found.needs_reboot) {
                let mut entry = self.entry(name);
                entry.failed = Some(wanted.digest.clone());
                let mut message = format!("not in effect after {MAX_BOOTS} reboots");
                if let Some(back) = &entry.rollback {
                    message = format!("{}; restored version {}: {message}", back.why, back.version);
                }
                set(&mut entry, ComponentState::Failed, truncate_chars(&message, 8192), self.now);
                self.put(entry);
            }
        }
    }
}
