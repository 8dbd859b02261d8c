//! Counts over all machines: the safety nets, and the number of machines in each state.
//!
//! All counts are derived from the objects in the API, and computed at every start, before any Node is closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_api::Status;
use fleetwright_kit::{Key, Waker};
use fleetwright_plan::readiness::safety_net::{Net, NetMembership, ScopeCounts};
use jiff::Timestamp;

use crate::meters::Meters;
use crate::observe::{ALL, Caches, NodeDecision, Observed};

/// The number of machines of a ReadinessGates object in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Selected machines.
    pub machines: u32,
    /// Schedulable machines.
    pub schedulable: u32,
    /// Machines closed by a gate.
    pub closed: u32,
    /// Machines that the safety net keeps open.
    pub held: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GatesCounts {
    gates: Vec<Arc<str>>,
    schedulable: bool,
    closed: bool,
    held: bool,
    broken: usize,
}

#[derive(Default)]
struct State {
    net: Net,
    built: bool,
    tallies: HashMap<Arc<str>, GatesCounts>,
    totals: HashMap<Arc<str>, Totals>,
    broken: usize,
    orphans: HashMap<Arc<str>, usize>,
    orphaned: usize,
}

/// The counts, shared by both controllers; cheap to clone.
#[derive(Clone)]
pub struct FleetState {
    namespace: Arc<str>,
    caches: Caches,
    state: Arc<Mutex<State>>,
    machines: Waker,
    gates: Waker,
    meters: Meters,
}

impl FleetState {
    /// An empty fleet state.
    pub fn new(namespace: &str, caches: Caches, machines: Waker, gates: Waker, meters: Meters) -> Self {
        Self { namespace: namespace.into(), caches, state: Arc::default(), machines, gates, meters }
    }

    /// Decides about a machine: judges it and asks the nets. Wakes the machines and gates that the decision affects.
    pub fn decide(&self, look: &Observed, now: Timestamp) -> NodeDecision {
        let mut state = self.built(now);
        let places = look.places();
        let before = state.net.places(&look.name);
        let outcome = settle(&mut state, look, places.clone(), now, true);
        let news = state.tally(&look.name, tally(look, &outcome));
        let mut touched = places;
        touched.extend(before.into_iter().filter(|place| !touched.contains(place)).collect::<Vec<_>>());
        self.notify_changes(state, &touched, news);
        outcome
    }

    /// Removes a deleted machine; `orphans` reports on it are left.
    pub fn machine_deleted(&self, machine: &Arc<str>, orphans: usize, now: Timestamp) {
        let mut state = self.built(now);
        let places = state.net.places(machine);
        state.net.remove(machine);
        let news = state.forget(machine);
        state.orphans(machine, orphans);
        self.notify_changes(state, &places, news);
    }

    /// The counts of a ReadinessGates object, and its scopes that hold machines back.
    pub fn sum(&self, gates: &str, now: Timestamp) -> (Totals, Vec<(Arc<str>, ScopeCounts)>) {
        let state = self.built(now);
        (state.totals.get(gates).copied().unwrap_or_default(), state.net.holding(gates))
    }

    /// Removes a deleted ReadinessGates object.
    pub fn no_gates(&self, gates: &Arc<str>) {
        let mut state = self.state();
        state.net.rule(gates, None);
        drop(state);
        self.meters.no_gates(gates);
    }

    /// The state with every machine counted.
    fn built(&self, now: Timestamp) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if state.built {
            return state;
        }
        state.built = true;
        for (key, gates) in self.caches.gates.by(ALL, ALL) {
            state.net.rule(&key.name, Some(&gates.spec.safety_net));
        }
        let looks: Vec<Observed> = self.caches.machines.keys().iter().filter_map(|key| self.caches.look(key)).collect();
        // All failing machines must be known before the nets are asked which of them are held.
        for look in &looks {
            let standing = look.judge(now, |_, _, judgement| judgement.standing);
            state.net.place(&look.name, look.places(), standing);
        }
        for look in &looks {
            let outcome = settle(&mut state, look, look.places(), now, false);
            state.tally(&look.name, tally(look, &outcome));
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the machines and gates that must reconcile again, and updates the metrics.
    fn notify_changes(&self, state: MutexGuard<'_, State>, places: &[NetMembership], gates: Vec<Arc<str>>) {
        let wake = state.net.machines_to_wake(places);
        self.meters.reports(state.broken, state.orphaned);
        for gates in &gates {
            self.meters.held(gates, state.totals.get(gates).map_or(0, |totals| totals.held));
        }
        drop(state);
        for machine in wake {
            self.machines.wake(Key { namespace: Arc::clone(&self.namespace), name: machine });
        }
        for gates in gates {
            self.gates.wake(Key { namespace: Arc::clone(&self.namespace), name: gates });
        }
    }
}

/// Judges a machine, adds it to its nets, and asks them. Only with `close` does it count as closed when it may be.
fn settle(state: &mut State, look: &Observed, places: Vec<NetMembership>, now: Timestamp, close: bool) -> NodeDecision {
    for (name, gates) in &look.gates {
        state.net.rule(name, Some(&gates.spec.safety_net));
    }
    look.judge(now, |seen, copies, judgement| {
        state.net.place(&look.name, places, judgement.standing);
        let full = match judgement.needs_net(seen) {
            true if close => state.net.may_close(&look.name, judgement.due, now),
            true => state.net.full_nets(&look.name, judgement.due),
            false => Vec::new(),
        };
        look.outcome(seen, copies, judgement, &full, now)
    })
}

fn tally(look: &Observed, outcome: &NodeDecision) -> GatesCounts {
    GatesCounts {
        gates: look.gates.iter().map(|(name, _)| Arc::clone(name)).collect(),
        schedulable: outcome.decision.status == Status::True,
        closed: outcome.closed,
        held: outcome.decision.held,
        broken: outcome.refused.len(),
    }
}

impl State {
    /// Counts a machine; returns the ReadinessGates whose counts changed.
    fn tally(&mut self, machine: &Arc<str>, new: GatesCounts) -> Vec<Arc<str>> {
        self.orphans(machine, 0);
        if self.tallies.get(machine) == Some(&new) {
            return Vec::new();
        }
        let mut changed = self.forget(machine);
        self.broken += new.broken;
        for gates in &new.gates {
            let totals = self.totals.entry(Arc::clone(gates)).or_default();
            totals.machines += 1;
            totals.schedulable += u32::from(new.schedulable);
            totals.closed += u32::from(new.closed);
            totals.held += u32::from(new.held);
            if !changed.contains(gates) {
                changed.push(Arc::clone(gates));
            }
        }
        self.tallies.insert(Arc::clone(machine), new);
        changed
    }

    /// Sets the number of reports on a machine that does not exist.
    fn orphans(&mut self, machine: &Arc<str>, count: usize) {
        let before = match count {
            0 => self.orphans.remove(machine),
            _ => self.orphans.insert(Arc::clone(machine), count),
        };
        self.orphaned = self.orphaned + count - before.unwrap_or_default();
    }

    fn forget(&mut self, machine: &Arc<str>) -> Vec<Arc<str>> {
        let Some(old) = self.tallies.remove(machine) else { return Vec::new() };
        self.broken -= old.broken;
        for gates in &old.gates {
            let Some(totals) = self.totals.get_mut(gates) else { continue };
            totals.machines -= 1;
            totals.schedulable -= u32::from(old.schedulable);
            totals.closed -= u32::from(old.closed);
            totals.held -= u32::from(old.held);
            if totals.machines == 0 {
                self.totals.remove(gates);
            }
        }
        old.gates
    }
}
