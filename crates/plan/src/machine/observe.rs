//! When a host is observed, and with which scope.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::ComponentState;
use fleetwright_wire::text::truncate_chars;
use fleetwright_wire::{self as wire, StepRecord};
use jiff::{SignedDuration, Timestamp};

use super::component::signed;
use super::decide::{ASK_AGAIN, Decider};
use super::drift;
use super::step::{StepEffect, changes, id, reboot_id};
use super::work::{MAX_BOOTS, PendingWork};
use super::{Act, DesiredPackages, HostObservation, Node};
use crate::package::Rendered;

/// Shortest interval between observations because of a hint of trouble.
pub(super) const HINT_CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

impl<'a> Decider<'a> {
    /// The last observation, if it has the present scope.
    pub(super) fn fresh(&self, ordered: &[&Arc<Rendered>]) -> Option<HostObservation<'a>> {
        let wanted = || ordered.iter().filter(|wanted| !self.is_held(wanted));
        let same = |seen: &HostObservation<'_>| {
            let asked = &seen.asked.digests;
            asked.len() == wanted().count()
                && seen.asked.installed == self.restored_components(ordered)
                && wanted().all(|one| asked.get(&one.package.component) == Some(&one.digest))
        };
        self.k.host.seen.filter(|seen| seen.current && same(seen))
    }

    /// Whether the version failed, and the host has another one instead, which is not compared with it.
    fn is_held(&self, wanted: &Rendered) -> bool {
        let entry = self.status.components.iter().find(|entry| entry.component == wanted.package.component);
        entry.is_some_and(|entry| {
            entry.failed.as_ref() == Some(&wanted.digest)
                && (entry.state != ComponentState::Failed || entry.rollback.is_some())
        })
    }

    /// Components with a restored version, which the host compares with its own copy of the package.
    fn restored_components(&self, ordered: &[&Arc<Rendered>]) -> BTreeSet<String> {
        let held = ordered.iter().filter(|wanted| self.is_held(wanted)).map(|wanted| &wanted.package.component);
        held.filter(|component| self.entry(component).rollback.is_some()).cloned().collect()
    }

    pub(super) fn observe_or_wait(&mut self, observe: wire::Observe, ordered: &[&Arc<Rendered>]) {
        // After a restart of the operator, a machine that was as declared is observed at its usual time, and not all machines at once.
        let unchanged = ordered.iter().all(|wanted| {
            let joined = self.old.trusts.is_none() || wanted.trusts.is_none() || self.old.trusts == wanted.trusts;
            joined
                && self.old.components.iter().any(|entry| {
                    entry.component == wanted.package.component
                        && entry.desired.as_ref() == Some(&truncate_chars(&wanted.package.version, 256))
                        && changes(&entry.inputs, &wanted.inputs()).is_empty()
                })
        });
        let passed = self.last_check() > self.k.known_since;
        if self.k.host.seen.is_none() && unchanged && !passed && self.at_rest_since_restart() {
            self.at(self.next_check());
            return;
        }
        self.ask(observe);
    }

    fn at_rest_since_restart(&self) -> bool {
        self.old.phase == Some(fleetwright_api::Phase::Ready)
            && self.old.observed_generation == self.k.machine.metadata.generation
            && self.old.components.iter().all(|entry| entry.state == ComponentState::Ready)
            && self.old.observed_retry == self.status.observed_retry
            && self.k.window.is_none()
            && self.hint().is_none()
            && self.k.node.is_none_or(|node| node.closed.is_none())
    }

    pub(super) fn observe_for_proof(&mut self, observe: wire::Observe, seen: HostObservation<'a>) {
        let every = signed(self.health.unwrap_or(Duration::from_secs(2))).max(SignedDuration::from_millis(200));
        self.observe_after(wire::Observe { health: true, ..observe }, seen, every);
    }

    /// A pause stops steps, not observations: a change made before it proves itself, and a host that stops answering is noticed.
    pub(super) fn observe_while_paused(
        &mut self,
        work: &PendingWork<'a>,
        observe: wire::Observe,
        seen: HostObservation<'a>,
    ) {
        if work.running {
            self.status.progress = self.old.progress.clone();
            return self.observe_after(observe, seen, ASK_AGAIN);
        }
        if work.unproven {
            self.progress_of_proof();
            return self.observe_for_proof(observe, seen);
        }
        if self.due(seen) {
            return self.ask(observe);
        }
        self.rest(seen);
    }

    /// Observes the host that long after the last observation.
    pub(super) fn observe_after(&mut self, observe: wire::Observe, seen: HostObservation<'_>, after: SignedDuration) {
        let at = seen.at.checked_add(after).unwrap_or(Timestamp::MAX);
        if at > self.now { self.at(at) } else { self.ask(observe) }
    }

    /// Does nothing until the next check.
    pub(super) fn rest(&mut self, seen: HostObservation<'_>) {
        let hinted = self.hint().is_some().then(|| seen.at + HINT_CHECK_INTERVAL);
        self.at(self.next_check());
        if let Some(at) = hinted {
            self.at(at.max(self.now));
        }
    }

    /// Whether it is time for an observation, or a hint of trouble exists.
    pub(super) fn due(&self, seen: HostObservation<'_>) -> bool {
        seen.at < self.last_check() || self.hint().is_some() && seen.at + HINT_CHECK_INTERVAL <= self.now
    }

    /// A contradiction between the Node and the last observation of the host.
    fn hint(&self) -> Option<&'static str> {
        let node: Node<'_> = self.k.node?;
        let boot = self.status.facts.as_ref().and_then(|facts| facts.boot_id.as_deref());
        if boot.zip(node.boot_id).is_some_and(|(host, node)| host != node) {
            return Some("the Node reports another boot ID");
        }
        // A Node without the condition never was ready.
        let says = node.conditions.iter().any(|(name, _)| &**name == "Ready");
        (says && !node.holds("Ready")).then_some("the Node is not ready")
    }

    pub(super) fn next_check(&self) -> Timestamp {
        drift::next_check(self.uid(), self.k.check_every, self.now)
    }

    pub(super) fn last_check(&self) -> Timestamp {
        drift::last_check(self.uid(), self.k.check_every, self.now)
    }

    /// The scope of the next observation.
    pub(super) fn observe(&self, ordered: &[&Arc<Rendered>]) -> wire::Observe {
        let asked = ordered.iter().filter(|wanted| !self.is_held(wanted));
        let packages = asked.map(|wanted| wanted.package.clone()).collect();
        let health = self.status.components.iter().any(|entry| entry.state != ComponentState::Ready);
        let installed = self.restored_components(ordered).into_iter().collect();
        wire::Observe { packages, installed, health, records: self.records(), ..wire::Observe::default() }
    }

    /// The ids of steps whose outcome matters.
    pub(super) fn records(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let under = self.under();
        if let DesiredPackages::Ready(wanted) = self.k.wanted {
            for wanted in wanted {
                let entry = self.entry(&wanted.package.component);
                if entry.state == ComponentState::Ready {
                    continue;
                }
                let attempts = entry.attempts.unwrap_or(0);
                if let Some(rollback) = &entry.rollback {
                    ids.push(id(
                        under,
                        &entry.component,
                        StepEffect::Back { to: rollback.digest.clone() }.tag(),
                        attempts,
                    ));
                }
                let install = StepEffect::Install(wanted);
                ids.push(id(under, &entry.component, install.tag(), attempts));
                if let Some(before) = attempts.checked_sub(1) {
                    ids.push(id(under, &entry.component, install.tag(), before));
                }
                if entry.state == ComponentState::Drifted || entry.state == ComponentState::Installing {
                    let repair = StepEffect::Repair(wanted);
                    ids.push(id(under, &entry.component, repair.tag(), attempts));
                    if let Some(before) = attempts.checked_sub(1) {
                        ids.push(id(under, &entry.component, repair.tag(), before));
                    }
                }
            }
        }
        for entry in self.status.components.iter().filter(|entry| entry.desired.is_none()) {
            ids.push(id(under, &entry.component, StepEffect::Remove.tag(), entry.attempts.unwrap_or(0)));
        }
        if self.running().is_some() {
            ids.extend((1..=MAX_BOOTS).map(|number| reboot_id(under, number)));
        }
        ids
    }

    pub(super) fn record_of(&self, id: &str) -> Option<&'a StepRecord> {
        let host = &self.k.host;
        let seen = host.seen.filter(|seen| seen.current).map(|seen| &seen.observation.records);
        let seen = seen.and_then(|records| records.iter().find(|record| record.id == id));
        seen.or_else(|| host.step.filter(|step| step.id == id))
    }

    pub(super) fn ask(&mut self, observe: wire::Observe) {
        self.act = Act::Observe(Box::new(observe));
    }

    pub(super) fn observe_health(&mut self, every: Duration) {
        self.health = Some(self.health.map_or(every, |other| other.min(every)));
    }
}
