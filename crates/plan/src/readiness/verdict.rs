//! Should the Node be open or closed, and what does the machine's condition `Schedulable` say?

use fleetwright_api::{Bootstrapped, Status, TaintEffect};
use jiff::Timestamp;

use super::gate::{CheckedGate, GateInputs, GateState, check};
use super::reports::CopiedConditions;
use super::safety_net::{FullNet, NetState};
use super::{Gates, ObservedCondition, cut, earlier, stamp};

/// Reasons of the condition `Schedulable`.
pub mod reason {
    /// The Node is open.
    pub const READY: &str = "Ready";
    /// It was closed because a gate fails.
    pub const GATES_FAILING: &str = "GatesFailing";
    /// It is closed because the gates did not all hold yet.
    pub const GATES_PENDING: &str = "GatesPending";
    /// A person cordoned it.
    pub const CORDONED: &str = "Cordoned";
    /// It has a taint that is neither ours nor declared.
    pub const TAINTED: &str = "Tainted";
    /// It should be closed, and the safety net keeps it open.
    pub const SAFETY_NET: &str = "SafetyNet";
    /// No ReadinessGates select the machine.
    pub const NO_READINESS_GATES: &str = "NoReadinessGates";
    /// There is no such Node.
    pub const NODE_NOT_FOUND: &str = "NodeNotFound";
    /// Another machine has the Node.
    pub const NODE_CONFLICT: &str = "NodeConflict";
    /// A Node of that name exists and is not bound to the machine.
    pub const NODE_NOT_BOUND: &str = crate::join::NOT_BOUND;
    /// It should be opened or closed, and the machine is paused.
    pub const PAUSED: &str = "Paused";
}

/// So many gates are told of in a message.
const MAX_LISTED_GATES: usize = 10;

/// Who did something by hand, and when, as far as the API server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManualChange<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// When it last wrote.
    pub at: Option<Timestamp>,
}

/// A taint that is neither ours nor declared and keeps pods away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignTaint<'a> {
    /// Its key.
    pub key: &'a str,
    /// What it does.
    pub effect: TaintEffect,
}

impl ForeignTaint<'_> {
    /// Whether Kubernetes put it there, and takes it away.
    pub fn is_kubernetes(&self) -> bool {
        self.key.starts_with("node.kubernetes.io/")
    }

    /// Whether a window of the Machine-Operator put it there, and takes it away.
    pub fn is_window(&self) -> bool {
        self.key == fleetwright_api::names::MAINTENANCE_TAINT
    }
}

/// What is seen of a Node.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// When it was made.
    pub created: Timestamp,
    /// Whether it has our taint.
    pub closed: bool,
    /// When our taint was added, if we added it.
    pub closed_at: Option<Timestamp>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// By whom.
    pub cordoned_by: Option<ManualChange<'a>>,
    /// Taints that are neither ours nor declared.
    pub foreign: Vec<ForeignTaint<'a>>,
    /// By whom.
    pub tainted_by: Option<ManualChange<'a>>,
    /// Its conditions.
    pub conditions: Vec<ObservedCondition<'a>>,
}

/// What is seen of the Node of a machine.
#[derive(Clone, Debug)]
pub enum NodeObservation<'a> {
    /// There is none of that name.
    Missing(&'a str),
    /// It is bound to another machine.
    Taken {
        /// The Node's name.
        node: &'a str,
        /// The machine that has it.
        by: &'a str,
    },
    /// It is not bound to any machine.
    NotBound {
        /// The Node's name.
        node: &'a str,
        /// The machine.
        machine: &'a str,
    },
    /// It is there and ours.
    Found(Node<'a>),
}

/// What is seen of a machine.
#[derive(Clone, Debug)]
pub struct MachineObservation<'a> {
    /// When it was made.
    pub created: Timestamp,
    /// When it was last changed, its status left aside.
    pub changed: Timestamp,
    /// Whether nothing may be done to its Node.
    pub paused: bool,
    /// When it was first ready, and as which Node.
    pub bootstrapped: Option<(Timestamp, &'a str)>,
    /// Its conditions.
    pub conditions: Vec<ObservedCondition<'a>>,
    /// Its Node.
    pub node: NodeObservation<'a>,
    /// The ReadinessGates that select it.
    pub gates: Vec<Gates<'a>>,
}

/// What to do to the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Remove our taint.
    Open,
    /// Add our taint.
    Close,
}

/// What follows from what is seen, before the safety net is asked.
#[derive(Clone, Debug)]
pub struct GateVerdict<'a> {
    /// The gates that count.
    pub checked: Vec<CheckedGate<'a>>,
    /// What the gates ask for.
    pub turn: Option<NodeAction>,
    /// Since when a machine that should be closed is due. What is due together, is lost together.
    pub due: Timestamp,
    /// How the machine stands with the safety net now.
    pub standing: NetState,
    /// Whether the safety net protects it.
    pub protected: bool,
    /// That it was ready for the first time, and as which Node: the time to write down, if it is not yet.
    pub bootstrapped: Option<Bootstrapped>,
    /// When time alone may change the judgement.
    pub next: Option<Timestamp>,
}

/// What to do and to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do to the Node.
    pub turn: Option<NodeAction>,
    /// Is the machine schedulable?
    pub status: Status,
    /// One word why.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
    /// When it was first ready, and as which Node.
    pub bootstrapped: Option<Bootstrapped>,
    /// When to look again although nothing changed.
    pub next: Option<Timestamp>,
    /// Whether the safety net holds it.
    pub held: bool,
}

/// Judges a machine by its gates.
pub fn judge<'a>(seen: &MachineObservation<'a>, copies: &CopiedConditions<'a>, now: Timestamp) -> GateVerdict<'a> {
    let written = seen.bootstrapped.map(|(at, uid)| Bootstrapped { at, node_uid: uid.to_owned() });
    let NodeObservation::Found(node) = &seen.node else {
        return GateVerdict {
            checked: Vec::new(),
            turn: None,
            due: now,
            standing: NetState::NotInService,
            protected: false,
            bootstrapped: written,
            next: copies.next,
        };
    };
    let proven = seen.bootstrapped.is_some_and(|(_, uid)| uid == node.uid);
    let in_service = proven || adopt_open_node(seen, node);
    let sight = GateInputs {
        created: seen.created,
        machine: &seen.conditions,
        node: &node.conditions,
        node_created: node.created,
        copies,
    };
    let checked = check(&seen.gates, sight, in_service, now);

    // All hold, and when the last of them has held for long enough.
    let opens_at = checked.iter().try_fold(Timestamp::MIN, |latest, gate| gate.opens_at().map(|at| at.max(latest)));
    let closes_at = checked.iter().filter_map(CheckedGate::closes_at).min();
    let may_open = opens_at.is_some_and(|at| at <= now);
    let any = !seen.gates.is_empty();
    let adopting = in_service && !proven;
    let turn = match (node.closed, in_service) {
        // That it is in service is written down before anything is done: once closed, it could not be told from one that never was.
        _ if !any || adopting => None,
        (true, _) => may_open.then_some(NodeAction::Open),
        (false, true) => closes_at.is_some_and(|at| at <= now).then_some(NodeAction::Close),
        // It joined open, but nothing was proven yet: nothing is tolerated, and what does not count either way changes nothing.
        (false, false) => {
            let only_kept = !may_open && checked.iter().all(|gate| gate.state == GateState::Keep || !gate.blocks(now));
            (!may_open && !only_kept).then_some(NodeAction::Close)
        }
    };

    let mut next = copies.next;
    for gate in &checked {
        next = earlier(next, gate.stale_at);
    }
    let waits_for = if node.closed || !in_service { opens_at } else { closes_at };
    if adopting {
        next = Some(now);
    } else if turn.is_none() && any {
        next = earlier(next, waits_for.filter(|at| *at > now));
    }

    let schedulable = seen.conditions.iter().find(|fact| fact.type_ == fleetwright_api::names::SCHEDULABLE);
    let opened = schedulable.filter(|fact| fact.status == Status::True).map(|fact| fact.since);
    // Gates that were changed, and machines that came under other gates, fail together although their conditions changed at different times.
    let due = [Some(seen.changed), seen.gates.iter().map(|gates| gates.changed).max(), opened, closes_at]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(now)
        .min(now);

    let standing = match (in_service && any && !node.cordoned, node.closed) {
        (false, _) => NetState::NotInService,
        (true, true) => {
            let closed = schedulable.filter(|fact| fact.status == Status::False).map(|fact| fact.since);
            NetState::Closed { since: node.closed_at.or(closed).unwrap_or(now) }
        }
        (true, false) if closes_at.is_some() && !seen.paused => NetState::Failing,
        (true, false) => NetState::InService,
    };

    let ready = any && may_open && (!node.closed || !seen.paused);
    let bootstrapped = if proven {
        written
    } else if ready || in_service {
        Some(Bootstrapped { at: now, node_uid: node.uid.to_owned() })
    } else {
        // What was written of another Node of that name no longer holds.
        None
    };
    let protected = standing == NetState::Failing;
    GateVerdict { checked, turn, due, standing, protected, bootstrapped, next }
}

/// A Node that was open before there were gates for its machine is in service already: to close it is to lose it.
fn adopt_open_node(seen: &MachineObservation<'_>, node: &Node<'_>) -> bool {
    if node.closed || seen.gates.is_empty() {
        return false;
    }
    let schedulable = seen.conditions.iter().find(|fact| fact.type_ == fleetwright_api::names::SCHEDULABLE);
    schedulable.is_some_and(|fact| fact.reason == reason::NO_READINESS_GATES)
        || seen.gates.iter().all(|gates| node.created < gates.created)
}

impl GateVerdict<'_> {
    /// Whether the safety net is to be asked before the Node is closed.
    pub fn needs_net(&self, seen: &MachineObservation<'_>) -> bool {
        self.turn == Some(NodeAction::Close) && self.protected && !seen.paused
    }

    /// What to do and to say, when the nets that hold the machine are known.
    pub fn decide(&self, seen: &MachineObservation<'_>, full: &[FullNet], now: Timestamp) -> Decision {
        let held = self.needs_net(seen) && !full.is_empty();
        let turn = if seen.paused || held { None } else { self.turn };
        let (status, reason, message) = self.say(seen, full, held, turn, now);
        Decision { turn, status, reason, message, bootstrapped: self.bootstrapped.clone(), next: self.next, held }
    }

    fn say(
        &self,
        seen: &MachineObservation<'_>,
        full: &[FullNet],
        held: bool,
        turn: Option<NodeAction>,
        now: Timestamp,
    ) -> (Status, &'static str, String) {
        let node = match &seen.node {
            NodeObservation::Missing(name) => {
                let message = format!("Node {name} not found: waiting for the host's kubelet to register it");
                return (Status::False, reason::NODE_NOT_FOUND, message);
            }
            NodeObservation::Taken { node, by } => {
                let message = format!(
                    "Node {node} is used by Machine {by}: delete one of the two Machines, or set another spec.hostname for this one"
                );
                return (Status::False, reason::NODE_CONFLICT, message);
            }
            NodeObservation::NotBound { node, machine } => {
                return (Status::False, reason::NODE_NOT_BOUND, crate::join::not_bound(machine, node));
            }
            NodeObservation::Found(node) => node,
        };
        if seen.gates.is_empty() {
            let state = if node.closed { "stays closed by its startup taint" } else { "is not changed" };
            let message = format!(
                "no ReadinessGates select this Machine, Node {} {state}: create ReadinessGates whose spec.selector matches the Machine's labels",
                node.name
            );
            return (Status::Unknown, reason::NO_READINESS_GATES, message);
        }
        let open = match turn {
            Some(NodeAction::Open) => true,
            Some(NodeAction::Close) => false,
            None => !node.closed,
        };
        let gates = self.gates_message(open, now);
        if seen.paused && self.turn.is_some() {
            let would = if node.closed { "opened" } else { "closed" };
            let status = if open && !node.cordoned && node.foreign.is_empty() { Status::True } else { Status::False };
            let message = format!("spec.paused is true, otherwise Node {} would be {would}; {gates}", node.name);
            return (status, reason::PAUSED, message);
        }
        if node.cordoned {
            let by = manual_change_message("cordoned", node.cordoned_by);
            let message = format!(
                "Node {} is {by}: run `kubectl uncordon {}` to make it schedulable; {gates}",
                node.name, node.name
            );
            return (Status::False, reason::CORDONED, message);
        }
        // What Kubernetes put there goes by itself: what the gates say matters more, unless they have nothing to say.
        if node.foreign.iter().any(|taint| open || !taint.is_kubernetes()) {
            return (Status::False, reason::TAINTED, format!("{}; {gates}", foreign_taint_message(node)));
        }
        if held {
            let nets: Vec<String> = full.iter().map(|full| net_message(&full.place.gates, &full.place.scope)).collect();
            let message = format!(
                "kept open by the safety net of {}: too many machines would be closed at once; {gates}",
                nets.join(" and ")
            );
            return (Status::True, reason::SAFETY_NET, message);
        }
        if open {
            (Status::True, reason::READY, gates)
        } else if self.bootstrapped.is_some() {
            (Status::False, reason::GATES_FAILING, gates)
        } else {
            (Status::False, reason::GATES_PENDING, gates)
        }
    }

    /// What the gates say, bounded, and the same until something changes.
    fn gates_message(&self, open: bool, now: Timestamp) -> String {
        let total = self.checked.len();
        let due = self.turn == Some(NodeAction::Close);
        if open && !due {
            return "no gate has failed for longer than its tolerateFor".to_owned();
        }
        let failing: Vec<&CheckedGate<'_>> =
            self.checked.iter().filter(|gate| matches!(gate.state, GateState::Fails { .. })).collect();
        let mut parts = Vec::new();
        if !failing.is_empty() {
            let told: Vec<String> = failing.iter().take(MAX_LISTED_GATES).map(|gate| gate.describe()).collect();
            let more = failing.len().saturating_sub(MAX_LISTED_GATES);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            let fail = if failing.len() == 1 { "fails" } else { "fail" };
            parts.push(format!("{} of {total} gates {fail}: {}{more}", failing.len(), told.join("; ")));
        }
        let kept: Vec<String> = self
            .checked
            .iter()
            .filter(|gate| gate.state == GateState::Keep)
            .take(MAX_LISTED_GATES)
            .map(|gate| gate.describe())
            .collect();
        if !kept.is_empty() {
            parts.push(format!("state kept because of: {}", kept.join("; ")));
        }
        if parts.is_empty() {
            // Only the last one is told of: that others have held for long enough meanwhile is no reason to write.
            let last = self.checked.iter().max_by_key(|gate| gate.opens_at());
            return match last.filter(|gate| gate.blocks(now)) {
                Some(gate) => format!("waiting for: {} must hold for {}", gate.describe(), gate.gate.hold_for),
                None => format!("all {total} gates hold"),
            };
        }
        parts.join("; ")
    }
}

/// A net, for people.
pub fn net_message(gates: &str, scope: &str) -> String {
    if scope.is_empty() {
        format!("ReadinessGates {gates}")
    } else {
        format!("ReadinessGates {gates} in scope {}", cut(scope, 63))
    }
}

fn manual_change_message(what: &str, hand: Option<ManualChange<'_>>) -> String {
    match hand {
        Some(ManualChange { manager, at: Some(at) }) => format!("{what} by {} at {}", cut(manager, 63), stamp(at)),
        Some(ManualChange { manager, at: None }) => format!("{what} by {}", cut(manager, 63)),
        None => what.to_owned(),
    }
}

fn foreign_taint_message(node: &Node<'_>) -> String {
    let (kubernetes, theirs): (Vec<&ForeignTaint<'_>>, Vec<&ForeignTaint<'_>>) =
        node.foreign.iter().partition(|taint| taint.is_kubernetes());
    let list = |taints: &[&ForeignTaint<'_>]| {
        let told: Vec<String> =
            taints.iter().take(MAX_LISTED_GATES).map(|taint| format!("{}:{:?}", taint.key, taint.effect)).collect();
        told.join(", ")
    };
    // Nobody is told to lift what is lifted when the work is done.
    let (windows, theirs): (Vec<&ForeignTaint<'_>>, Vec<&ForeignTaint<'_>>) =
        theirs.into_iter().partition(|taint| taint.is_window());
    let mut parts = Vec::new();
    if !windows.is_empty() {
        parts.push(format!(
            "Node {} is under maintenance: the Machine-Operator set the taint {} and removes it afterwards",
            node.name,
            list(&windows)
        ));
    }
    if !theirs.is_empty() {
        let by = manual_change_message("set", node.tainted_by);
        let first = theirs[0];
        parts.push(format!(
            "Node {} has the taint {}, last {by}: remove it when its cause is resolved (kubectl taint node {} {}:{:?}-), or declare it in spec.taints",
            node.name,
            list(&theirs),
            node.name,
            first.key,
            first.effect
        ));
    }
    if !kubernetes.is_empty() {
        parts.push(format!(
            "Node {} has the taint {}, which Kubernetes removes when the Node recovers",
            node.name,
            list(&kubernetes)
        ));
    }
    parts.join("; ")
}
