//! The evaluation of one gate: does it hold, fail, or say nothing, and since when?

use fleetwright_api::{Absence, Gate, GateWhen, Status};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;

use super::reports::{CopiedConditions, MISSING, reporter_of};
use super::{Gates, ObservedCondition, after, stamp};

/// The source of a gate's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionSource<'a> {
    /// The Machine's own condition of that type.
    Machine(&'a str),
    /// The Node's condition of that type.
    Node(&'a str),
    /// That reporter's condition of the gate's type.
    Reporter(&'a str),
}

impl<'a> ConditionSource<'a> {
    /// The source of that gate.
    pub fn of(gate: &'a Gate) -> Self {
        let from = gate.from.as_ref();
        if let Some(reporter) = reporter_of(gate) {
            Self::Reporter(reporter)
        } else if let Some(type_) = from.and_then(|from| from.node_condition.as_deref()) {
            Self::Node(type_)
        } else {
            Self::Machine(from.and_then(|from| from.machine_condition.as_deref()).unwrap_or(&gate.type_))
        }
    }
}

impl std::fmt::Display for ConditionSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Machine(type_) => write!(f, "Machine condition {type_}"),
            Self::Node(type_) => write!(f, "Node condition {type_}"),
            Self::Reporter(reporter) => write!(f, "reporter {reporter}"),
        }
    }
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// The gate holds.
    Holds {
        /// Since when.
        since: Timestamp,
    },
    /// The gate fails.
    Fails {
        /// Since when.
        since: Timestamp,
    },
    /// The gate says nothing: an open Node stays open, a closed one stays closed.
    Keep,
}

/// The condition that a gate found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateResult<'a> {
    /// A condition.
    Fact(ObservedCondition<'a>),
    /// No condition.
    Missing {
        /// Since when, as far as it is known.
        since: Timestamp,
        /// What a person may have meant instead.
        hint: Option<String>,
    },
    /// A condition that was not confirmed for too long.
    Stale {
        /// The last confirmed condition.
        fact: ObservedCondition<'a>,
        /// Since when it is stale.
        since: Timestamp,
    },
}

/// A gate after its evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedGate<'a> {
    /// The ReadinessGates object that has the gate.
    pub object: &'a str,
    pub gate: &'a Gate,
    /// The condition that was found.
    pub found: GateResult<'a>,
    /// The state that follows.
    pub state: GateState,
    /// When the condition becomes stale unless it is confirmed.
    pub stale_at: Option<Timestamp>,
}

/// The inputs of an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct GateInputs<'a, 'b> {
    /// Creation time of the machine.
    pub created: Timestamp,
    /// Conditions of the Machine.
    pub machine: &'b [ObservedCondition<'a>],
    /// Conditions of the Node.
    pub node: &'b [ObservedCondition<'a>],
    /// Creation time of the Node.
    pub node_created: Timestamp,
    /// Conditions merged from the reports on the machine.
    pub copies: &'b CopiedConditions<'a>,
}

/// Evaluates all gates that count: those with `when: Bootstrap` only until the machine was first ready.
/// Sorted by type, so that neither the verdict nor its message depends on the order in which gates are written.
pub fn check<'a>(
    gates: &[Gates<'a>],
    sight: GateInputs<'a, '_>,
    bootstrapped: bool,
    now: Timestamp,
) -> Vec<CheckedGate<'a>> {
    let mut out: Vec<CheckedGate<'a>> = gates
        .iter()
        .flat_map(|object| object.gates.iter().map(move |gate| (object, gate)))
        .filter(|(_, gate)| !bootstrapped || gate.when == GateWhen::Always)
        .map(|(object, gate)| check_one(object, gate, sight, now))
        .collect();
    out.sort_by_key(|checked| (checked.gate.type_.as_str(), checked.object));
    out
}

fn check_one<'a>(object: &Gates<'a>, gate: &'a Gate, sight: GateInputs<'a, '_>, now: Timestamp) -> CheckedGate<'a> {
    let mut stale_at = None;
    let mut seen = |fact: ObservedCondition<'a>| {
        let Some((span, heartbeat)) = gate.stale_after.zip(fact.heartbeat) else { return GateResult::Fact(fact) };
        let ends = after(heartbeat, span.0);
        if ends <= now {
            GateResult::Stale { fact, since: ends }
        } else {
            stale_at = Some(ends);
            GateResult::Fact(fact)
        }
    };
    let found = match ConditionSource::of(gate) {
        ConditionSource::Machine(type_) => {
            match sight.machine.iter().find(|fact| fact.type_ == type_ && fact.reporter.is_none()) {
                // These conditions have no heartbeats.
                Some(fact) => GateResult::Fact(*fact),
                None => GateResult::Missing {
                    since: sight.created.max(object.changed).min(now),
                    hint: sight
                        .copies
                        .copied
                        .iter()
                        .find(|copy| copy.condition.type_ == type_ && copy.live.is_some())
                        .and_then(|copy| copy.condition.reporter.as_deref())
                        .map(|reporter| {
                            format!("{reporter} reports this type; to use it, set from: {{reporter: {reporter}}}")
                        }),
                },
            }
        }
        ConditionSource::Node(type_) => match sight.node.iter().find(|fact| fact.type_ == type_) {
            Some(fact) => seen(*fact),
            None => GateResult::Missing { since: sight.node_created.max(object.changed).min(now), hint: None },
        },
        ConditionSource::Reporter(reporter) => match sight.copies.get(reporter, &gate.type_) {
            Some(copy) => match copy.live {
                // The copy has the transition time; the report itself has the status and when it was last confirmed,
                // since the timeouts of gates may differ.
                Some(live) => seen(ObservedCondition { since: copy.condition.last_transition_time, ..live }),
                None => GateResult::Missing { since: copy.condition.last_transition_time, hint: None },
            },
            None => GateResult::Missing {
                since: sight.created.max(object.changed).min(now),
                hint: Some(not_its_own(reporter, &gate.type_, sight)),
            },
        },
    };
    let state = match &found {
        GateResult::Fact(fact) if fact.status == gate.status => GateState::Holds { since: fact.since },
        GateResult::Fact(fact) => GateState::Fails { since: fact.since },
        GateResult::Missing { since, .. } => absence(gate.missing, *since, *since),
        // A condition that did not hold fails since its transition, not only since it is stale; one that held continues to hold.
        GateResult::Stale { fact, since } if fact.status == gate.status => {
            absence(gate.stale, fact.since.min(*since), *since)
        }
        GateResult::Stale { fact, since } => absence(gate.stale, *since, fact.since.min(*since)),
    };
    CheckedGate { object: object.name, gate, found, state, stale_at }
}

/// Why a reporter named by a gate has no copy: another reporter owns the type.
fn not_its_own(reporter: &str, type_: &str, sight: GateInputs<'_, '_>) -> String {
    let other = sight.copies.copied.iter().find(|copy| copy.condition.type_ == type_);
    match other.and_then(|copy| copy.condition.reporter.as_deref()) {
        Some(other) => format!(
            "another ReadinessGates object expects {type_} from {other}, not {reporter}: name the same reporter in both"
        ),
        None => format!(
            "{type_} is a condition of the Machine itself: remove `from`, or let {reporter} report another type"
        ),
    }
}

fn absence(means: Absence, holds_since: Timestamp, fails_since: Timestamp) -> GateState {
    match means {
        Absence::Fail => GateState::Fails { since: fails_since },
        Absence::Pass => GateState::Holds { since: holds_since },
        Absence::Keep => GateState::Keep,
    }
}

impl CheckedGate<'_> {
    /// When the gate allows a closed machine to open, if nothing changes.
    pub fn opens_at(&self) -> Option<Timestamp> {
        match self.state {
            GateState::Holds { since } => Some(after(since, self.gate.hold_for.0)),
            GateState::Fails { .. } | GateState::Keep => None,
        }
    }

    /// When the gate closes an open machine, if nothing changes.
    pub fn closes_at(&self) -> Option<Timestamp> {
        match self.state {
            GateState::Fails { since } => Some(after(since, self.gate.tolerate_for.0)),
            GateState::Holds { .. } | GateState::Keep => None,
        }
    }

    /// For people: the gate, its reporter, the status, and since when. Does not change with time alone.
    pub fn describe(&self) -> String {
        let head = format!("{} ({})", self.gate.type_, ConditionSource::of(self.gate));
        let tell_fact = |fact: &ObservedCondition<'_>| {
            let mut text = format!("{} since {}", fact.status.as_str(), stamp(fact.since));
            for part in [fact.reason, fact.message] {
                if !part.is_empty() {
                    text.push_str(": ");
                    text.push_str(&truncate_line(part, 160));
                }
            }
            text
        };
        match &self.found {
            GateResult::Fact(fact) => {
                let wanted = if self.gate.status == Status::True || fact.status == self.gate.status {
                    String::new()
                } else {
                    format!(", wanted {}", self.gate.status.as_str())
                };
                format!("{head} {}{wanted}", tell_fact(fact))
            }
            GateResult::Missing { since, hint } => {
                let hint = hint.as_ref().map(|hint| format!(": {hint}")).unwrap_or_default();
                format!("{head} missing since {}{hint}", stamp(*since))
            }
            GateResult::Stale { fact, since } => {
                format!("{head} stale since {}, was {}", stamp(*since), fact.status.as_str())
            }
        }
    }

    /// Whether the gate prevents opening the machine now.
    pub fn blocks(&self, now: Timestamp) -> bool {
        self.opens_at().is_none_or(|at| at > now)
    }
}

/// Whether a condition stands for a missing report.
pub fn is_placeholder(fact: &ObservedCondition<'_>) -> bool {
    fact.reporter.is_some() && fact.status == Status::Unknown && fact.reason == MISSING
}
