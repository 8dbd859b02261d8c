//! The verdict on a machine: should its Node be open or closed, and what is its condition `Schedulable`?

use fleetwright_api::{Bootstrapped, Status, TaintEffect};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;

use super::gate::{CheckedGate, GateInputs, GateState, check};
use super::reports::CopiedConditions;
use super::safety_net::{FullNet, NetState};
use super::{Gates, ObservedCondition, earlier, manager_name, stamp};

/// Reasons of the condition `Schedulable`.
pub mod reason {
    /// The Node is open.
    pub const READY: &str = "Ready";
    /// The Node was closed because a gate fails.
    pub const GATES_FAILING: &str = "GatesFailing";
    /// The Node is closed because not all gates hold yet.
    pub const GATES_PENDING: &str = "GatesPending";
    /// A person cordoned the Node.
    pub const CORDONED: &str = "Cordoned";
    /// The Node has a taint that is neither ours nor declared.
    pub const TAINTED: &str = "Tainted";
    /// The Node should be closed, and the safety net keeps it open.
    pub const SAFETY_NET: &str = "SafetyNet";
    /// No ReadinessGates select the machine.
    pub const NO_READINESS_GATES: &str = "NoReadinessGates";
    /// The Node does not exist.
    pub const NODE_NOT_FOUND: &str = "NodeNotFound";
    /// Another machine has the Node.
    pub const NODE_CONFLICT: &str = "NodeConflict";
    /// A Node of that name exists and is not bound to the machine.
    pub const NODE_NOT_BOUND: &str = crate::join::NOT_BOUND;
    /// The Node should be opened or closed, and the machine is paused.
    pub const PAUSED: &str = "Paused";
}

/// Gates that a message names.
const MAX_LISTED_GATES: usize = 10;

/// The author and time of a manual change, as far as managed fields tell.
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
    pub key: &'a str,
    pub effect: TaintEffect,
}

impl ForeignTaint<'_> {
    /// Whether Kubernetes adds and removes the taint.
    pub fn is_kubernetes(&self) -> bool {
        self.key.starts_with("node.kubernetes.io/")
    }

    /// Whether a window of the Machine-Operator adds and removes the taint.
    pub fn is_window(&self) -> bool {
        self.key == fleetwright_api::names::MAINTENANCE_TAINT
    }
}

/// A Node as observed.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Uid of the Node.
    pub uid: &'a str,
    /// Creation time.
    pub created: Timestamp,
    /// Whether it has our taint.
    pub closed: bool,
    /// When our taint was added, if we added it.
    pub closed_at: Option<Timestamp>,
    /// Whether the Node is cordoned.
    pub cordoned: bool,
    /// Author of the cordon.
    pub cordoned_by: Option<ManualChange<'a>>,
    /// Taints that are neither ours nor declared.
    pub foreign: Vec<ForeignTaint<'a>>,
    /// Author of the taints.
    pub tainted_by: Option<ManualChange<'a>>,
    /// Conditions of the Node.
    pub conditions: Vec<ObservedCondition<'a>>,
}

/// The Node of a machine as observed.
#[derive(Clone, Debug)]
pub enum NodeObservation<'a> {
    /// No Node has that name.
    Missing(&'a str),
    /// The Node is bound to another machine.
    Taken {
        /// Name of the Node.
        node: &'a str,
        /// The machine that has the Node.
        by: &'a str,
    },
    /// The Node is not bound to any machine.
    NotBound {
        /// Name of the Node.
        node: &'a str,
        /// Name of the machine.
        machine: &'a str,
    },
    /// The Node exists and is bound to the machine.
    Found(Node<'a>),
}

/// A machine as observed.
#[derive(Clone, Debug)]
pub struct MachineObservation<'a> {
    /// Creation time.
    pub created: Timestamp,
    /// When anything but its status last changed.
    pub changed: Timestamp,
    /// Whether its Node must not be changed.
    pub paused: bool,
    /// When the machine was first ready, and with which Node.
    pub bootstrapped: Option<(Timestamp, &'a str)>,
    /// Conditions of the Machine.
    pub conditions: Vec<ObservedCondition<'a>>,
    /// Node of the Machine.
    pub node: NodeObservation<'a>,
    /// The ReadinessGates that select the Machine.
    pub gates: Vec<Gates<'a>>,
}

/// The change to make to the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Remove our taint.
    Open,
    /// Add our taint.
    Close,
}

/// The result of the gates, before the safety net is asked.
#[derive(Clone, Debug)]
pub struct GateVerdict<'a> {
    /// The gates that count.
    pub checked: Vec<CheckedGate<'a>>,
    /// The change that the gates ask for.
    pub turn: Option<NodeAction>,
    /// Since when a machine should be closed. Machines due together count as one failure for the safety net.
    pub due: Timestamp,
    /// The state of the machine in the safety net now.
    pub standing: NetState,
    /// Whether the safety net protects the machine.
    pub protected: bool,
    /// When the machine was first ready, and with which Node: to be written to the status, if it is not there yet.
    pub bootstrapped: Option<Bootstrapped>,
    /// When time alone may change the verdict.
    pub next: Option<Timestamp>,
}

/// The final decision about a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The change to make to the Node.
    pub turn: Option<NodeAction>,
    /// Status of the condition `Schedulable`.
    pub status: Status,
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition, for people.
    pub message: String,
    /// When the machine was first ready, and with which Node.
    pub bootstrapped: Option<Bootstrapped>,
    /// When to reconcile again although nothing changed.
    pub next: Option<Timestamp>,
    /// Whether the safety net keeps the machine open.
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

    // When all gates hold: the time when the last of them has held for long enough.
    let opens_at = checked.iter().try_fold(Timestamp::MIN, |latest, gate| gate.opens_at().map(|at| at.max(latest)));
    let closes_at = checked.iter().filter_map(CheckedGate::closes_at).min();
    let may_open = opens_at.is_some_and(|at| at <= now);
    let any = !seen.gates.is_empty();
    let adopting = in_service && !proven;
    let turn = match (node.closed, in_service) {
        // That the machine is in service is written first: once closed, it could not be distinguished from one that never was in service.
        _ if !any || adopting => None,
        (true, _) => may_open.then_some(NodeAction::Open),
        (false, true) => closes_at.is_some_and(|at| at <= now).then_some(NodeAction::Close),
        // The Node joined open, but no gate is proven yet: failures are not tolerated, and a gate that says nothing changes nothing.
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
    // After a change of the gates or of their selectors, machines fail together although their conditions changed at different times.
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
        // A record about another Node of that name no longer holds.
        None
    };
    let protected = standing == NetState::Failing;
    GateVerdict { checked, turn, due, standing, protected, bootstrapped, next }
}

/// Whether the Node was open before the machine had gates. Such a Node is in service already: closing it loses capacity.
fn adopt_open_node(seen: &MachineObservation<'_>, node: &Node<'_>) -> bool {
    if node.closed || seen.gates.is_empty() {
        return false;
    }
    let schedulable = seen.conditions.iter().find(|fact| fact.type_ == fleetwright_api::names::SCHEDULABLE);
    schedulable.is_some_and(|fact| fact.reason == reason::NO_READINESS_GATES)
        || seen.gates.iter().all(|gates| node.created < gates.created)
}

impl GateVerdict<'_> {
    /// Whether the safety net must be asked before the Node is closed.
    pub fn needs_net(&self, seen: &MachineObservation<'_>) -> bool {
        self.turn == Some(NodeAction::Close) && self.protected && !seen.paused
    }

    /// The final decision, once the nets that hold the machine are known.
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
        // Kubernetes removes its own taints: the message of the gates matters more, unless the gates have nothing to say.
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

    /// A message about the gates, of bounded length, which stays the same until something changes.
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
            // Only the last gate is named: that others have held for long enough meanwhile is no reason for a write.
            let last = self.checked.iter().max_by_key(|gate| gate.opens_at());
            return match last.filter(|gate| gate.blocks(now)) {
                Some(gate) => format!("waiting for: {} must hold for {}", gate.describe(), gate.gate.hold_for),
                None => format!("all {total} gates hold"),
            };
        }
        parts.join("; ")
    }
}

/// A safety net, for messages.
pub fn net_message(gates: &str, scope: &str) -> String {
    if scope.is_empty() {
        format!("ReadinessGates {gates}")
    } else {
        format!("ReadinessGates {gates} in scope {}", truncate_line(scope, 63))
    }
}

fn manual_change_message(what: &str, hand: Option<ManualChange<'_>>) -> String {
    match hand {
        Some(ManualChange { manager, at: Some(at) }) => {
            format!("{what} by {} at {}", manager_name(manager), stamp(at))
        }
        Some(ManualChange { manager, at: None }) => format!("{what} by {}", manager_name(manager)),
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
    // The message does not ask people to remove a taint that a window removes at its end.
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
