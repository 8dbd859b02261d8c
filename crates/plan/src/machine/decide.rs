//! The decision, from top to bottom.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{
    Component, ComponentState, Disruption, DriftItem, HostKeyPolicy, MachineStatus, StepProgress, names,
};
use fleetwright_wire::{self as wire, Observation, Outcome, StepRecord};
use jiff::{SignedDuration, Timestamp};

use super::component::{Sight, Stand, default_times, set, signed, state};
use super::guard::{self, cut};
use super::step::{Does, Item, Verb, id, reboot_id};
use super::{Act, Decision, Known, Node, Phase, Run, Seen, Unreachable, Wanted, Why, order};
use crate::package::Rendered;

/// A step that goes on without us is asked after so often.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(3);
/// A host that says no is asked again after that.
const REFUSED: SignedDuration = SignedDuration::from_secs(30);
/// A hint of trouble makes us look, but not more often than this.
const HINTED: SignedDuration = SignedDuration::from_secs(60);
/// How often what a person follows is written.
const PROGRESS: SignedDuration = SignedDuration::from_secs(5);
/// A window in which a step fails again and again is given up after this long.
const LONGEST_WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// In one window a host is booted at most so often.
pub(super) const MOST_BOOTS: u32 = 3;

/// Says what to do next about a machine.
pub fn decide(known: &Known<'_>, now: Timestamp) -> Decision {
    let mut mind = Mind::new(known, now);
    mind.decide();
    mind.finish()
}

/// A decision in the making.
pub(super) struct Mind<'a> {
    pub k: &'a Known<'a>,
    pub now: Timestamp,
    /// Our part of the status as it is written.
    pub old: MachineStatus,
    /// As it should be.
    pub status: MachineStatus,
    pub act: Act,
    pub next: Option<Timestamp>,
    pub withdraw: bool,
    /// What of the host is not as declared.
    pub drift: Vec<DriftItem>,
    /// What the condition PackagesReady says, if that is clear already.
    pub refused: Option<(&'static str, String)>,
    /// The host was looked at, so that components say how they are now.
    pub looked: bool,
    /// The checks of a component are asked for, and how often.
    health: Option<Duration>,
}

/// What is to be done about a host.
pub(super) struct Work<'a> {
    /// In order.
    pub items: Vec<Item<'a>>,
    /// Components that are as declared and work.
    pub settled: Vec<&'a str>,
    /// A step goes on on the host.
    pub running: bool,
    /// A change has to prove itself, and nothing else is touched until then.
    pub proving: bool,
    /// A change has to prove itself.
    pub unproven: bool,
    /// A boot is needed.
    pub boots: bool,
}

impl<'a> Mind<'a> {
    pub fn new(known: &'a Known<'a>, now: Timestamp) -> Self {
        let old = super::status::ours(known.machine);
        Self {
            k: known,
            now,
            status: MachineStatus { progress: None, ..old.clone() },
            old,
            act: Act::Rest,
            next: None,
            withdraw: false,
            drift: Vec::new(),
            refused: None,
            looked: false,
            health: None,
        }
    }

    fn decide(&mut self) {
        let machine = self.k.machine;
        if machine.metadata.deletion_timestamp.is_some() {
            return self.leave();
        }
        if machine.spec.ssh.is_none() {
            // Observed only: nothing of it is ours.
            self.withdraw = self.waits();
            return;
        }
        self.status.observed_generation = machine.metadata.generation;
        let asked = self.follow_retry();
        self.note_host();
        self.note_declared();
        if !self.host_is_free() {
            return;
        }
        let wanted = match self.k.wanted {
            Wanted::Ready(wanted) => wanted,
            Wanted::Not { reason, message } => return self.cannot(reason, message.to_owned()),
        };
        let ordered = match order(wanted) {
            Ok(ordered) => ordered,
            Err(refused) => return self.cannot(refused.reason, refused.message),
        };
        let observe = self.observe(&ordered);
        let Some(seen) = self.fresh(&ordered).filter(|_| !asked) else { return self.look_or_rest(observe, &ordered) };
        self.looked = true;
        let work = self.work(&ordered, seen.observation);
        self.note_drift();
        if machine.spec.paused {
            self.rest(seen);
            return;
        }
        self.go_on(work, observe, seen);
    }

    /// Whether something may be asked of the host now; if not, what is to be done instead was decided.
    pub(super) fn host_is_free(&mut self) -> bool {
        let host = &self.k.host;
        if let Some(doing) = host.doing {
            // A look is nothing that a person follows.
            if doing.id.is_some() {
                self.progress(doing.what, doing.id, doing.since, doing.message);
                self.at(self.now + PROGRESS);
            } else {
                self.status.progress = self.old.progress.clone();
            }
            return false;
        }
        if let Some(unreachable) = host.unreachable {
            self.try_again(unreachable);
            return false;
        }
        if let Some((at, failure)) = host.refused {
            let busy = failure.kind == wire::FailureKind::Busy;
            let again = at + if busy { ASK_AGAIN } else { REFUSED };
            if again > self.now {
                self.at(again);
                if busy {
                    self.status.progress = self.old.progress.clone();
                } else {
                    self.told_no(at, &failure.message);
                }
                return false;
            }
        }
        if let Some(key) = self.unpinned() {
            match host.key {
                Some(key) => {
                    // Written down before anything is done: the next pass goes on.
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

    /// The host said no, and nothing was begun: its disk may be full, or its journal broken.
    fn told_no(&mut self, at: Timestamp, why: &str) {
        self.progress("wait for a host that says no", None, Some(at), why);
        for entry in self.status.components.iter_mut().filter(|entry| entry.state == ComponentState::Pending) {
            entry.message = cut(&format!("the host says no: {why}"), 1024);
        }
    }

    /// Trust begins with the first use, which has not been.
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

    /// Nothing is touched, because what is wanted cannot be.
    fn cannot(&mut self, reason: &'static str, message: String) {
        self.refused = Some((reason, message));
        self.withdraw = self.waits();
        if self.k.host.seen.is_none_or(|seen| seen.at < self.last_check()) {
            self.ask(wire::Observe::default());
        } else {
            self.at(self.next_check());
        }
    }

    /// What was seen, if it answers what would be asked.
    fn fresh(&self, ordered: &[&Arc<Rendered>]) -> Option<Seen<'a>> {
        let wanted = || ordered.iter().filter(|wanted| !self.is_held(wanted));
        let same = |seen: &Seen<'_>| {
            let asked = &seen.asked.digests;
            asked.len() == wanted().count()
                && wanted().all(|one| asked.get(&one.package.component) == Some(&one.digest))
        };
        self.k.host.seen.filter(|seen| seen.current && same(seen))
    }

    /// It did not work, and the host carries something else instead, which is not compared with it.
    fn is_held(&self, wanted: &Rendered) -> bool {
        let entry = self.status.components.iter().find(|entry| entry.component == wanted.package.component);
        entry
            .is_some_and(|entry| entry.failed.as_ref() == Some(&wanted.digest) && entry.state != ComponentState::Failed)
    }

    fn look_or_rest(&mut self, observe: wire::Observe, ordered: &[&Arc<Rendered>]) {
        // After a restart of the operator, a machine that was as declared is looked at when its time comes, and not all at once.
        let unchanged = ordered.iter().all(|wanted| {
            self.old.components.iter().any(|entry| {
                entry.component == wanted.package.component
                    && entry.desired.as_ref() == Some(&cut(&wanted.package.version, 256))
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
            && self.old.retried == self.status.retried
            && self.k.window.is_none()
            && self.hint().is_none()
            && self.k.node.is_none_or(|node| node.closed.is_none())
    }

    /// All that differs from what is declared.
    pub(super) fn work(&mut self, ordered: &[&'a Arc<Rendered>], seen: &'a Observation) -> Work<'a> {
        let boot = Some(&seen.facts.boot_id).filter(|boot| !boot.is_empty());
        let known = self.old.facts.as_ref().and_then(|facts| facts.boot_id.as_ref());
        let booted = known.is_some() && boot.is_some() && known != boot;
        let mut work = Work {
            items: Vec::new(),
            settled: Vec::new(),
            running: seen.records.iter().any(|record| record.outcome == Outcome::Running),
            proving: false,
            unproven: false,
            boots: false,
        };
        let nothing = wire::ComponentSeen::default();
        let mut due = Vec::new();
        for wanted in ordered {
            let found = seen.components.iter().find(|found| found.component == wanted.package.component);
            let sight = Sight { seen: found.unwrap_or(&nothing), facts: &seen.facts, booted };
            match self.stand(wanted, &sight) {
                Stand::Settled => work.settled.push(&wanted.package.component),
                Stand::Proving { others } => {
                    work.unproven = true;
                    work.proving |= !others;
                }
                Stand::Boots => work.boots = true,
                Stand::Running => work.running = true,
                Stand::Due(item) => due.push(*item),
                // A kernel that came back is in place after a boot, too.
                Stand::Left => {
                    let back = self.entry(&wanted.package.component).state == ComponentState::RolledBack;
                    work.boots |= back && sight.seen.needs_reboot;
                }
            }
        }
        // Also one of which only parts are there: what nobody asked about and is told nevertheless is ours.
        let goes =
            |found: &&wire::ComponentSeen| !ordered.iter().any(|wanted| wanted.package.component == found.component);
        let going: Vec<&wire::ComponentSeen> = seen.components.iter().filter(goes).collect();
        let names: Vec<String> = going.iter().map(|found| found.component.clone()).collect();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for name in super::order::removals(&names, self.k.leaving) {
            let Some(found) = going.iter().find(|found| found.component == name) else { continue };
            let in_the_way = ordered.iter().any(|wanted| wanted.conflicts_with.contains(&name));
            match self.going(found) {
                Stand::Running => work.running = true,
                Stand::Due(item) if in_the_way => first.push(*item),
                Stand::Due(item) => last.push(*item),
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

    /// Takes the next step, or the next towards it.
    fn go_on(&mut self, work: Work<'a>, observe: wire::Observe, seen: Seen<'a>) {
        if work.running {
            return self.look_again(observe, seen, ASK_AGAIN);
        }
        if work.unproven {
            self.progress_of_proof();
        }
        if work.proving {
            return self.look_for_proof(observe, seen);
        }
        // Who waits for the gate is looked at as anybody else.
        if self.waits() && self.due(seen) {
            return self.ask(observe);
        }
        if let Some(item) = self.next_item(&work) {
            self.take(&work, item, observe);
            if self.waits() {
                self.at(self.next_check());
            }
            return;
        }
        if work.unproven {
            return self.look_for_proof(observe, seen);
        }
        if work.boots && self.boot(&work, seen, observe.clone()) {
            return;
        }
        if let Some((level, since)) = self.running() {
            let later =
                work.items.iter().filter(|item| item.step.disruption <= level).filter_map(|item| self.item_at(item));
            return match later.min() {
                Some(at) if self.now.duration_since(since) < LONGEST_WINDOW => self.at(at.max(self.now + ASK_AGAIN)),
                Some(_) => {
                    let text = "given up: what failed is tried again in another window".to_owned();
                    self.act = Act::End { open: true, well: false, text };
                }
                None => self.end_window(),
            };
        }
        self.withdraw = self.waits() && !work.boots;
        let waits = work.items.iter().filter_map(|item| self.item_at(item)).min();
        if let Some(at) = waits {
            self.at(at);
        }
        if self.open_what_is_left() || self.label() {
            return;
        }
        if self.due(seen) {
            return self.ask(observe);
        }
        self.rest(seen);
    }

    /// The first step that may be taken now.
    fn next_item<'w>(&self, work: &'w Work<'a>) -> Option<&'w Item<'a>> {
        let free = |item: &&Item<'a>| {
            item.depends_on.iter().all(|on| work.settled.contains(&on.as_str()))
                && self.item_at(item).is_none_or(|at| at <= self.now)
        };
        let window = self.running().map(|window| window.0);
        if let Some(level) = window {
            return work
                .items
                .iter()
                .filter(free)
                .find(|item| item.step.disruption <= level || !self.needs_window(item));
        }
        // While the gate is asked, what disrupts nobody goes on.
        let gentle = work.items.iter().filter(free).find(|item| !self.needs_window(item));
        gentle.or_else(|| work.items.iter().find(free))
    }

    /// It was never whole: nobody relies on it yet.
    pub(super) fn is_new(&self) -> bool {
        let said = fleetwright_api::condition(&self.old.conditions, names::PACKAGES_READY);
        said.is_none_or(|said| ["NotLookedAtYet", super::status::INSTALLING].contains(&&*said.reason))
    }

    /// When a step may be taken.
    fn item_at(&self, item: &Item<'_>) -> Option<Timestamp> {
        let fight = (item.step.verb == Verb::Repair).then(|| self.status.last_drift.as_ref().map(guard::repair_at));
        [item.not_before, fight.flatten()].into_iter().flatten().max()
    }

    pub(super) fn needs_window(&self, item: &Item<'_>) -> bool {
        match item.step.disruption {
            Disruption::None => false,
            Disruption::Restart | Disruption::Drain => self.k.node.is_some() && !self.is_new(),
            Disruption::Reboot => true,
        }
    }

    fn take(&mut self, work: &Work<'a>, item: &Item<'a>, observe: wire::Observe) {
        if !self.finalized() {
            self.act = Act::Finalize;
            return;
        }
        // In a window that is under way anyway, also what needs none waits until pods have left: a later step counts on it.
        let disruption = item.step.disruption;
        let inside = disruption > Disruption::None && self.running().is_some_and(|(level, _)| disruption <= level);
        if (inside || self.needs_window(item)) && !self.in_window(work, disruption, item.times.drain) {
            return;
        }
        self.run(item, observe);
    }

    /// Runs a step.
    pub(super) fn run(&mut self, item: &Item<'a>, mut then: wire::Observe) {
        let step = &item.step;
        let mut entry = self.entry(&step.component);
        if let Some(state) = state(step.verb) {
            let message = if step.verb == Verb::GoBack { entry.message.clone() } else { String::new() };
            set(&mut entry, state, message, self.now);
        }
        let id = id(self.under(), &step.component, item.does.tag(), entry.attempts.unwrap_or(0));
        self.put(entry);
        self.progress(&step.text(), Some(&id), None, "");
        then.records.push(id.clone());
        then.health = true;
        let (wire, within) = (item.does.wire(&step.component), item.times.apply);
        let needs_credential = matches!(item.does, Does::Install(wanted) if wanted.needs_credential);
        self.act = Act::Run(Box::new(Run { id, step: wire, within, then, needs_credential }));
    }

    /// Boots the host, once for all that needs it. False if there is nothing to do about it now.
    fn boot(&mut self, work: &Work<'a>, seen: Seen<'a>, observe: wire::Observe) -> bool {
        if !self.finalized() {
            self.act = Act::Finalize;
            return true;
        }
        let times = match self.k.wanted {
            Wanted::Ready(wanted) => wanted.iter().map(|wanted| wanted.times).max_by_key(|times| times.reboot),
            Wanted::Not { .. } => None,
        };
        let times = times.unwrap_or_else(default_times);
        if !self.in_window(work, Disruption::Reboot, times.drain) {
            // A window of a lower level ends, and one for the boot follows.
            return self.running().is_none() || self.act != Act::Rest;
        }
        let window = self.under().to_owned();
        let mut number = 1;
        while number <= MOST_BOOTS {
            let Some(record) = self.record_of(&reboot_id(&window, number)) else { break };
            match record.outcome {
                Outcome::Running => {
                    self.look_again(observe, seen, ASK_AGAIN);
                    return true;
                }
                // The boot id says whether it happened: it is not repeated before the host was seen in the boot that it began in.
                Outcome::Done | Outcome::Failed | Outcome::Interrupted | Outcome::Refused => number += 1,
            }
        }
        if number > MOST_BOOTS {
            self.boots_in_vain(seen.observation);
            return false;
        }
        let id = reboot_id(&window, number);
        self.progress("reboot", Some(&id), None, "");
        let mut then = observe;
        then.records.push(id.clone());
        then.health = true;
        self.act = Act::Run(Box::new(Run {
            id,
            step: wire::Step::Reboot,
            within: times.reboot,
            then,
            needs_credential: false,
        }));
        true
    }

    /// It was booted again and again, and what should be in place is not.
    fn boots_in_vain(&mut self, seen: &Observation) {
        let Wanted::Ready(wanted) = self.k.wanted else { return };
        for wanted in wanted {
            let name = &wanted.package.component;
            if seen.components.iter().any(|found| found.component == *name && found.needs_reboot) {
                let mut entry = self.entry(name);
                entry.failed = Some(wanted.digest.clone());
                let message = format!("the host was booted {MOST_BOOTS} times, and still it is not in place");
                set(&mut entry, ComponentState::Failed, message, self.now);
                self.put(entry);
            }
        }
    }

    fn look_for_proof(&mut self, observe: wire::Observe, seen: Seen<'a>) {
        let every = signed(self.health.unwrap_or(Duration::from_secs(2))).max(SignedDuration::from_millis(200));
        self.look_again(wire::Observe { health: true, ..observe }, seen, every);
    }

    /// Looks at the host that long after the last look.
    pub(super) fn look_again(&mut self, observe: wire::Observe, seen: Seen<'_>, after: SignedDuration) {
        let at = seen.at.checked_add(after).unwrap_or(Timestamp::MAX);
        if at > self.now { self.at(at) } else { self.ask(observe) }
    }

    /// Nothing is to be done until the next check.
    fn rest(&mut self, seen: Seen<'_>) {
        let hinted = self.hint().is_some().then(|| seen.at + HINTED);
        self.at(self.next_check());
        if let Some(at) = hinted {
            self.at(at.max(self.now));
        }
    }

    /// Whether it is time to look, or something hints at trouble.
    fn due(&self, seen: Seen<'_>) -> bool {
        seen.at < self.last_check() || self.hint().is_some() && seen.at + HINTED <= self.now
    }

    /// What of the Node does not go with what is known of the host.
    fn hint(&self) -> Option<&'static str> {
        let node: Node<'_> = self.k.node?;
        let boot = self.status.facts.as_ref().and_then(|facts| facts.boot_id.as_deref());
        if boot.zip(node.boot_id).is_some_and(|(host, node)| host != node) {
            return Some("its Node tells of another boot");
        }
        // A Node that never said anything is none that stopped being ready.
        let says = node.conditions.iter().any(|(name, _)| &**name == "Ready");
        (says && !node.holds("Ready")).then_some("its Node is not ready")
    }

    pub(super) fn next_check(&self) -> Timestamp {
        guard::next_check(self.uid(), self.k.check_every, self.now)
    }

    fn last_check(&self) -> Timestamp {
        guard::last_check(self.uid(), self.k.check_every, self.now)
    }

    /// A person asks to try again. True if that is new.
    fn follow_retry(&mut self) -> bool {
        let asked = self.k.machine.metadata.annotations.as_ref().and_then(|all| all.get(names::RETRY));
        let asked = asked.map(|text| cut(text, 256));
        if asked.is_none() || asked == self.status.retried {
            return false;
        }
        self.status.retried = asked;
        for entry in &mut self.status.components {
            if entry.failed.take().is_some() {
                set(entry, ComponentState::Pending, "a person asked to try again".to_owned(), self.now);
            }
        }
        true
    }

    /// What is declared is told before the host was reached.
    fn note_declared(&mut self) {
        let Wanted::Ready(wanted) = self.k.wanted else { return };
        for wanted in wanted {
            let version = cut(&wanted.package.version, 256);
            let mut entry = self.entry(&wanted.package.component);
            if entry.desired.as_ref() != Some(&version) {
                entry.desired = Some(version);
                if entry.state == ComponentState::Ready {
                    set(&mut entry, ComponentState::Pending, "another version is declared".to_owned(), self.now);
                }
                self.put(entry);
            }
        }
    }

    /// What is asked of the host when it is looked at.
    pub(super) fn observe(&self, ordered: &[&Arc<Rendered>]) -> wire::Observe {
        let asked = ordered.iter().filter(|wanted| !self.is_held(wanted));
        let packages = asked.map(|wanted| wanted.package.clone()).collect();
        let health = self.status.components.iter().any(|entry| entry.state != ComponentState::Ready);
        wire::Observe { packages, health, records: self.records(), ..wire::Observe::default() }
    }

    /// The steps whose outcome matters.
    pub(super) fn records(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let under = self.under();
        if let Wanted::Ready(wanted) = self.k.wanted {
            for wanted in wanted {
                let entry = self.entry(&wanted.package.component);
                if entry.state == ComponentState::Ready {
                    continue;
                }
                let attempts = entry.attempts.unwrap_or(0);
                let install = Does::Install(wanted);
                ids.push(id(under, &entry.component, install.tag(), attempts));
                if let Some(before) = attempts.checked_sub(1) {
                    ids.push(id(under, &entry.component, install.tag(), before));
                }
                if entry.state == ComponentState::Drifted || entry.state == ComponentState::Installing {
                    let repair = Does::Repair(wanted);
                    ids.push(id(under, &entry.component, repair.tag(), attempts));
                    if let Some(before) = attempts.checked_sub(1) {
                        ids.push(id(under, &entry.component, repair.tag(), before));
                    }
                }
            }
        }
        for entry in self.status.components.iter().filter(|entry| entry.desired.is_none()) {
            ids.push(id(under, &entry.component, Does::Remove.tag(), entry.attempts.unwrap_or(0)));
        }
        if self.running().is_some() {
            ids.extend((1..=MOST_BOOTS).map(|number| reboot_id(under, number)));
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

    /// Looks again then, or before.
    pub(super) fn at(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    pub(super) fn look_for_health(&mut self, every: Duration) {
        self.health = Some(self.health.map_or(every, |other| other.min(every)));
    }

    pub(super) fn uid(&self) -> &'a str {
        self.k.machine.metadata.uid.as_deref().unwrap_or_default()
    }

    /// What the ids of steps come from: the window that is under way, or the machine.
    pub(super) fn under(&self) -> &'a str {
        match &self.k.window {
            Some(window) if matches!(window.phase, Phase::Running { .. }) => window.uid,
            _ => self.uid(),
        }
    }

    pub(super) fn finalized(&self) -> bool {
        let finalizers = self.k.machine.metadata.finalizers.as_deref().unwrap_or_default();
        finalizers.iter().any(|name| name == names::MACHINE_FINALIZER)
    }

    /// What is written of a component, or a new entry.
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

    /// Writes down what is being done; since when, if that is not given, is kept as long as it is the same.
    pub(super) fn progress(&mut self, step: &str, id: Option<&str>, since: Option<Timestamp>, message: &str) {
        let step = cut(step, 256);
        let old = self.old.progress.as_ref().filter(|old| old.step == step && old.id.as_deref() == id);
        let since = old.map(|old| old.since).or(since).unwrap_or(self.now);
        let id = id.map(ToOwned::to_owned);
        self.status.progress = Some(StepProgress { step, id, since, message: cut(message, 1024) });
    }

    fn progress_of_proof(&mut self) {
        let unproven = |entry: &&Component| entry.message.starts_with("waiting until it works");
        if let Some(entry) = self.status.components.iter().find(unproven).cloned() {
            self.progress(&format!("wait until {} works", entry.component), None, Some(entry.since), &entry.message);
        }
    }

    /// The reason why a host is not reached.
    pub(super) fn why(&self) -> Option<(Unreachable<'a>, &'static str, &'a str)> {
        let unreachable = self.k.host.unreachable?;
        Some(match unreachable.why {
            Why::HostKeyChanged(text) => (unreachable, "HostKeyChanged", text),
            Why::Unsupported(text) => (unreachable, "Unsupported", text),
            Why::Refused(reason, text) => (unreachable, reason, text),
            Why::Silent(text) => (unreachable, "NoAnswer", text),
        })
    }
}
