//! A component whose declared version failed and whose earlier version was restored.

use fleetwright_api::{Component, ComponentState, Rollback};
use fleetwright_wire::Outcome;
use fleetwright_wire::text::truncate_chars;

use super::component::{
    ComponentStanding, ObservedComponent, PROVING, REPAIR_FAILED, count_attempt, installed, record_message, set, signed,
};
use super::decide::Decider;
use super::step::{StepEffect, StepItem};
use crate::package::Rendered;

impl<'a> Decider<'a> {
    /// Judges a restored version: it must prove itself before the Node is opened, and is guarded against drift like any other.
    pub(super) fn restored(
        &mut self,
        entry: &mut Component,
        wanted: &'a Rendered,
        sight: &ObservedComponent<'_>,
        back: &Rollback,
    ) -> ComponentStanding<'a> {
        let does = StepEffect::Back { to: back.digest.clone() };
        let drifted = entry.state == ComponentState::Drifted;
        if let Some(record) = self.record(entry, &does) {
            let (outcome, said) = (record.outcome, record_message(record));
            match outcome {
                Outcome::Running => return ComponentStanding::Running,
                Outcome::Failed | Outcome::Interrupted => {
                    count_attempt(entry);
                    if drifted {
                        self.repaired(false);
                        entry.message = format!("{REPAIR_FAILED}: {said}");
                    }
                }
                Outcome::Done | Outcome::Refused => {
                    count_attempt(entry);
                    entry.since = self.now;
                    if outcome == Outcome::Done && drifted {
                        self.repaired(true);
                    }
                }
            }
        }
        if installed(sight.seen) != Some(&back.digest) {
            let kept = sight.seen.previous.iter().any(|kept| kept.digest == back.digest);
            if kept && entry.state != ComponentState::Failed {
                set(entry, ComponentState::Downgrading, entry.message.clone(), self.now);
                return ComponentStanding::Due(Box::new(self.back(entry, wanted, does, back.version.clone())));
            }
            let message = format!("{}; rollback failed: {} is no longer on the host", back.why, back.version);
            set(entry, ComponentState::Failed, truncate_chars(&message, 8192), self.now);
            return ComponentStanding::Abandoned;
        }
        // A restored kernel is effective after a reboot.
        if sight.seen.needs_reboot && entry.state != ComponentState::Failed {
            return ComponentStanding::Boots;
        }
        let asked = self.k.host.seen.filter(|seen| seen.asked.installed.contains(&entry.component));
        let guarded = matches!(entry.state, ComponentState::RolledBack | ComponentState::Drifted);
        if guarded && asked.is_some() && !sight.seen.deviations.is_empty() {
            if let Some(why) = self.drifted(entry, sight.seen) {
                let item = self.repair(wanted, Some(back), sight.seen, why);
                return ComponentStanding::Due(Box::new(StepItem { not_before: self.retry_at(entry, &does), ..item }));
            }
            return ComponentStanding::Abandoned;
        }
        if entry.state == ComponentState::RolledBack || asked.is_none() && drifted {
            return ComponentStanding::Abandoned;
        }
        if drifted && !self.was_repaired() {
            set(entry, ComponentState::RolledBack, back.why.clone(), self.now);
            return ComponentStanding::Abandoned;
        }
        if sight.booted {
            entry.since = self.now;
        }
        let known = self.k.leaving.get(&entry.component);
        let times = known.map_or(wanted.times, |known| known.times);
        let conditions = known.map_or(&wanted.node_conditions, |known| &known.node_conditions);
        let ran = asked.is_some_and(|seen| seen.asked.health);
        let Some(doubt) = self.doubt_of(&entry.component, ran, times.healthy_times, conditions, sight) else {
            entry.verified_digest = Some(back.digest.clone());
            set(entry, ComponentState::RolledBack, back.why.clone(), self.now);
            return ComponentStanding::Abandoned;
        };
        if entry.state == ComponentState::Failed {
            return ComponentStanding::Abandoned;
        }
        let within = signed(times.healthy_within);
        if self.had(entry, !conditions.is_empty()) >= within {
            let (version, within) = (&back.version, within.as_secs());
            let message = format!("{}; restored version {version} not healthy within {within}s: {doubt}", back.why);
            set(entry, ComponentState::Failed, truncate_chars(&message, 8192), self.now);
            return ComponentStanding::Abandoned;
        }
        entry.message = format!("{PROVING}: restored version {}: {doubt}", back.version);
        self.observe_health(times.healthy_every);
        ComponentStanding::Proving { others: false }
    }
}
