//! The safety net: would too much be closed at once?
//!
//! Each ReadinessGates object has a net for each of its scopes. A machine in service counts from the moment it fails, so that machines
//! failing together are known before the first of them is closed; a closed machine counts if it was closed around the time that another would be.
//! Held machines stay held until machines recover: time alone does not release them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fleetwright_api::SafetyNet;
use jiff::Timestamp;

use super::{after, before};

/// Held machines that are checked when a scope may have room again. Further ones are requeued from time to time.
const MAX_CANDIDATES: usize = 64;
/// Held machines that are woken at a time.
const MAX_WOKEN: usize = 16;

/// The state of a machine in the nets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetState {
    /// Not in service: never ready yet, without a Node, or taken out by a person. The machine neither counts nor is protected.
    NotInService,
    /// Open, and no gate fails.
    InService,
    /// Open, and a gate fails, tolerated or not.
    Failing,
    Closed {
        /// Since when.
        since: Timestamp,
    },
}

/// A net that a machine is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetMembership {
    /// Name of the ReadinessGates object.
    pub gates: Arc<str>,
    /// The value of the label that divides it into scopes; empty if there is one scope, or the machine has no such label.
    pub scope: Arc<str>,
}

/// A net that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullNet {
    /// The net.
    pub place: NetMembership,
}

/// The counts of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeCounts {
    /// Machines in service.
    pub size: usize,
    /// Of them, open and failing.
    pub failing: usize,
    /// Of them, closed.
    pub closed: usize,
    /// Of the failing, kept open by the net.
    pub held: usize,
    /// Machines that may be lost at once.
    pub limit: usize,
}

#[derive(Debug, Default)]
struct Scope {
    size: usize,
    failing: usize,
    closed: BTreeSet<(Timestamp, Arc<str>)>,
    /// Held machines, with the time at which each should have been closed.
    held: BTreeMap<Arc<str>, Timestamp>,
}

#[derive(Debug)]
struct PlacedMachine {
    places: Vec<NetMembership>,
    standing: NetState,
    held: bool,
}

/// All nets, and the state of every machine in them.
#[derive(Debug, Default)]
pub struct Net {
    rules: HashMap<Arc<str>, SafetyNet>,
    scopes: HashMap<Arc<str>, HashMap<Arc<str>, Scope>>,
    machines: HashMap<Arc<str>, PlacedMachine>,
}

impl Net {
    /// Sets the rule of a ReadinessGates object; none if the object was deleted.
    pub fn rule(&mut self, gates: &Arc<str>, rule: Option<&SafetyNet>) {
        match rule {
            Some(rule) if self.rules.get(gates) == Some(rule) => {}
            Some(rule) => drop(self.rules.insert(Arc::clone(gates), rule.clone())),
            None => drop(self.rules.remove(gates)),
        }
    }

    /// Sets the nets and the state of a machine. It is not held until [`Net::may_close`] refuses it.
    pub fn place(&mut self, machine: &Arc<str>, places: Vec<NetMembership>, standing: NetState) {
        self.remove(machine);
        let counted: &[NetMembership] = if standing == NetState::NotInService { &[] } else { &places };
        for place in counted {
            let scope =
                self.scopes.entry(Arc::clone(&place.gates)).or_default().entry(Arc::clone(&place.scope)).or_default();
            match standing {
                NetState::NotInService => {}
                NetState::InService => scope.size += 1,
                NetState::Failing => {
                    scope.size += 1;
                    scope.failing += 1;
                }
                NetState::Closed { since } => {
                    scope.size += 1;
                    scope.closed.insert((since, Arc::clone(machine)));
                }
            }
        }
        self.machines.insert(Arc::clone(machine), PlacedMachine { places, standing, held: false });
    }

    /// Removes a machine.
    pub fn remove(&mut self, machine: &Arc<str>) {
        let Some(placed) = self.machines.remove(machine) else { return };
        let counted: &[NetMembership] = if placed.standing == NetState::NotInService { &[] } else { &placed.places };
        for place in counted {
            let Some(scopes) = self.scopes.get_mut(&place.gates) else { continue };
            let Some(scope) = scopes.get_mut(&place.scope) else { continue };
            match placed.standing {
                NetState::NotInService => {}
                NetState::InService => scope.size -= 1,
                NetState::Failing => {
                    scope.size -= 1;
                    scope.failing -= 1;
                }
                NetState::Closed { since } => {
                    scope.size -= 1;
                    scope.closed.remove(&(since, Arc::clone(machine)));
                }
            }
            scope.held.remove(machine);
            if scope.size == 0 {
                scopes.remove(&place.scope);
                if scopes.is_empty() {
                    self.scopes.remove(&place.gates);
                }
            }
        }
    }

    /// Whether a failing machine that is due since `due` may be closed now. Returns the full nets, which hold it; if
    /// there are none, it counts as closed from now.
    pub fn may_close(&mut self, machine: &Arc<str>, due: Timestamp, now: Timestamp) -> Vec<FullNet> {
        let full = self.full_nets(machine, due);
        match self.machines.get(machine) {
            Some(placed) if full.is_empty() && placed.standing == NetState::Failing => {
                let places = placed.places.clone();
                self.place(machine, places, NetState::Closed { since: now });
            }
            _ => {}
        }
        full
    }

    /// The nets that keep a failing machine open that is due since `due`. They hold it from now on.
    pub fn full_nets(&mut self, machine: &Arc<str>, due: Timestamp) -> Vec<FullNet> {
        let Some(placed) = self.machines.get(machine).filter(|placed| placed.standing == NetState::Failing) else {
            return Vec::new();
        };
        let full = placed.places.iter().filter(|place| self.is_full(place, due));
        let full: Vec<FullNet> = full.map(|place| FullNet { place: place.clone() }).collect();
        for full in &full {
            let scopes = self.scopes.get_mut(&full.place.gates);
            if let Some(scope) = scopes.and_then(|scopes| scopes.get_mut(&full.place.scope)) {
                scope.held.insert(Arc::clone(machine), due);
            }
        }
        if let Some(placed) = self.machines.get_mut(machine) {
            placed.held = !full.is_empty();
        }
        full
    }

    fn is_full(&self, place: &NetMembership, due: Timestamp) -> bool {
        let (Some(rule), Some(scope)) = (self.rules.get(&place.gates), self.scope(place)) else { return false };
        let limit = limit(rule, scope.size);
        if scope.failing > limit {
            return true;
        }
        let around = before(due, rule.within.0)..=after(due, rule.within.0);
        let first = (*around.start(), Arc::from(""));
        let closed = scope.closed.range(first..).take_while(|(since, _)| around.contains(since));
        // Counting stops as soon as the result is known.
        scope.failing + closed.take(limit + 1).count() > limit
    }

    fn scope(&self, place: &NetMembership) -> Option<&Scope> {
        self.scopes.get(&place.gates)?.get(&place.scope)
    }

    /// The counts of a scope.
    pub fn counts(&self, place: &NetMembership) -> ScopeCounts {
        let Some(scope) = self.scope(place) else { return ScopeCounts::default() };
        ScopeCounts {
            size: scope.size,
            failing: scope.failing,
            closed: scope.closed.len(),
            held: scope.held.len(),
            limit: self.rules.get(&place.gates).map_or(usize::MAX, |rule| limit(rule, scope.size)),
        }
    }

    /// The scopes of a ReadinessGates object that hold machines, in order.
    pub fn holding(&self, gates: &str) -> Vec<(Arc<str>, ScopeCounts)> {
        let Some(scopes) = self.scopes.get(gates) else { return Vec::new() };
        let mut out: Vec<(Arc<str>, ScopeCounts)> = scopes
            .iter()
            .filter(|(_, scope)| !scope.held.is_empty())
            .map(|(value, _)| {
                let place = NetMembership { gates: Arc::from(gates), scope: Arc::clone(value) };
                (Arc::clone(value), self.counts(&place))
            })
            .collect();
        out.sort_by(|a, b| a.0.cmp(&b.0));
        out
    }

    /// Some held machines of those nets that may close now: when one is closed or recovers, the next are requested.
    pub fn machines_to_wake(&self, places: &[NetMembership]) -> Vec<Arc<str>> {
        let mut out = BTreeSet::new();
        for place in places {
            let (Some(rule), Some(scope)) = (self.rules.get(&place.gates), self.scope(place)) else { continue };
            if scope.failing > limit(rule, scope.size) {
                continue;
            }
            let free = scope.held.iter().take(MAX_CANDIDATES).filter(|(_, due)| !self.is_full(place, **due));
            out.extend(free.take(MAX_WOKEN).map(|(machine, _)| Arc::clone(machine)));
        }
        out.into_iter().collect()
    }

    /// The nets of a machine.
    pub fn places(&self, machine: &str) -> Vec<NetMembership> {
        self.machines.get(machine).map(|placed| placed.places.clone()).unwrap_or_default()
    }

    /// The state of a machine, and whether it is held.
    pub fn standing(&self, machine: &str) -> Option<(NetState, bool)> {
        self.machines.get(machine).map(|placed| (placed.standing, placed.held))
    }
}

/// The number of machines that a scope of that size may lose at once.
pub fn limit(rule: &SafetyNet, size: usize) -> usize {
    rule.max.of(size, rule.at_least)
}
