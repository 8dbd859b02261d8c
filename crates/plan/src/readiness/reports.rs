//! Turns reports of other operators into conditions of the machine, each with one owner.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{Condition, Gate, Status};
use fleetwright_wire::text::{first_chars, truncate_line};
use jiff::Timestamp;

use super::{Gates, ObservedCondition, after, before, earlier, stamp};

/// Reason of a copied condition whose report is stale.
pub const STALE: &str = "ReportStale";
/// Reason of a copied condition that a gate requires and no reporter reports.
pub const MISSING: &str = "ReportMissing";
/// Most conditions copied into one machine; more are refused, so that reports cannot fill the machine's status.
pub const MAX_CONDITIONS: usize = 48;
/// How far a reporter's clock may be ahead of ours.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// A report on the machine.
#[derive(Clone, Debug)]
pub struct FiledReport<'a> {
    /// The name of the ConfigMap.
    pub name: &'a str,
    /// Creation time.
    pub created: Timestamp,
    /// The decoded content.
    pub content: ReportContent<'a>,
}

/// The content of a report.
#[derive(Clone, Debug)]
pub enum ReportContent<'a> {
    /// A valid report.
    Read {
        /// Name of the reporter.
        reporter: &'a str,
        /// The reported conditions. [`ObservedCondition::since`] is not used; [`ObservedCondition::heartbeat`] is the
        /// reported one, or else the time of the last write.
        facts: Vec<ObservedCondition<'a>>,
    },
    /// An invalid report, and why; the message names the ConfigMap.
    Broken(&'a str),
}

/// A condition copied from a report.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiedCondition<'a> {
    /// The condition for the machine's status.
    pub condition: Condition,
    /// The reported condition itself, if there is one.
    pub live: Option<ObservedCondition<'a>>,
    /// Whether the copy says that the report is stale, by the strictest gate.
    pub stale: bool,
}

/// A report, or a part of one, that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedReport {
    /// The name of the ConfigMap.
    pub name: String,
    /// What is wrong with which ConfigMap, what is allowed, and what to do.
    pub why: String,
}

/// The result of all reports on a machine.
#[derive(Clone, Debug, Default)]
pub struct CopiedConditions<'a> {
    /// Copied conditions, sorted by type.
    pub copied: Vec<CopiedCondition<'a>>,
    /// Refused reports, sorted by name.
    pub refused: Vec<RefusedReport>,
    /// When time alone changes the result.
    pub next: Option<Timestamp>,
}

impl<'a> CopiedConditions<'a> {
    /// The copy of that type by that reporter.
    pub fn get(&self, reporter: &str, type_: &str) -> Option<&CopiedCondition<'a>> {
        self.copied
            .iter()
            .find(|copy| copy.condition.type_ == type_ && copy.condition.reporter.as_deref() == Some(reporter))
    }
}

struct ConditionOwner<'a> {
    created: Timestamp,
    name: &'a str,
    reporter: &'a str,
    fact: ObservedCondition<'a>,
}

/// Copies reports into conditions.
///
/// `now_has` are the machine's present conditions: those with a reporter are earlier copies, which keep their transition time while the status stays;
/// those without belong to other operators, and a report must not replace them.
///
/// A type has one owner: the reporter that a gate names for it; else the reporter that reported it before and still does; else the older ConfigMap.
/// A condition that a gate requires stays as `Unknown` while it is stale or missing, so that its transition time is known.
pub fn copy<'a>(
    now_has: &[ObservedCondition<'a>],
    filed: &[FiledReport<'a>],
    gates: &[Gates<'a>],
    now: Timestamp,
) -> CopiedConditions<'a> {
    let mut out = CopiedConditions::default();
    let mut claims: BTreeMap<&str, Vec<ConditionOwner<'a>>> = BTreeMap::new();
    for report in filed {
        match &report.content {
            ReportContent::Broken(why) => {
                out.refused.push(RefusedReport { name: report.name.to_owned(), why: (*why).to_owned() });
            }
            ReportContent::Read { reporter, facts } => {
                if let Some(ahead) =
                    facts.iter().find(|fact| fact.heartbeat.is_some_and(|at| at > after(now, MAX_CLOCK_SKEW)))
                {
                    let at = ahead.heartbeat.unwrap_or(now);
                    out.next = earlier(out.next, Some(before(at, MAX_CLOCK_SKEW)));
                    let why = format!(
                        "heartbeat {} of {} is more than 1m in the future: correct the reporter's clock",
                        stamp(at),
                        ahead.type_
                    );
                    out.refused.push(refuse(report.name, why));
                    continue;
                }
                for fact in facts {
                    claims.entry(fact.type_).or_default().push(ConditionOwner {
                        created: report.created,
                        name: report.name,
                        reporter,
                        fact: *fact,
                    });
                }
            }
        }
    }

    let asked = asked(gates);
    for (type_, named) in &asked {
        if named.len() > 1 {
            for (other, from) in &named[1..] {
                for claim in claims.get(type_).into_iter().flatten().filter(|claim| claim.reporter == *other) {
                    out.refused.push(refuse(
                        claim.name,
                        format!(
                            "ReadinessGates {} expects {type_} from reporter {}, but ReadinessGates {from} from {other}: name the same reporter in both",
                            named[0].1, named[0].0
                        ),
                    ));
                }
            }
        }
    }

    let mut types: Vec<&str> = asked.keys().copied().collect();
    types.extend(claims.keys().copied().filter(|type_| !asked.contains_key(type_)));
    for (count, type_) in types.into_iter().enumerate() {
        let claimed = claims.remove(type_).unwrap_or_default();
        let named = asked.get(type_);
        if now_has.iter().any(|fact| fact.type_ == type_ && fact.reporter.is_none()) {
            let why =
                format!("{type_} is a condition of the Machine that another operator writes: report another type");
            out.refused.extend(claimed.iter().map(|claim| refuse(claim.name, why.clone())));
            continue;
        }
        if count >= MAX_CONDITIONS {
            let why = format!(
                "{type_} is over the limit of {MAX_CONDITIONS} reported conditions for one Machine: report fewer types"
            );
            out.refused.extend(claimed.iter().map(|claim| refuse(claim.name, why.clone())));
            continue;
        }
        let previous = now_has.iter().find(|fact| fact.type_ == type_ && fact.reporter.is_some());
        let owner = match named {
            Some(named) => named[0].0,
            None => match owner(&claimed, previous) {
                Some(owner) => owner,
                None => continue,
            },
        };
        for claim in claimed.iter().filter(|claim| claim.reporter != owner) {
            let second = named.is_some_and(|named| named.iter().any(|(reporter, _)| *reporter == claim.reporter));
            if !second {
                let why = format!("{type_} is owned by reporter {owner}: report another type");
                out.refused.push(refuse(claim.name, why));
            }
        }
        let live = claimed.iter().find(|claim| claim.reporter == owner).map(|claim| claim.fact);
        let strictest = stale_after(gates, owner, type_);
        out.copied.push(one(type_, owner, live, previous, strictest, now, &mut out.next));
    }
    out.copied.sort_by(|a, b| a.condition.type_.cmp(&b.condition.type_));
    out.refused.sort_by(|a, b| (&a.name, &a.why).cmp(&(&b.name, &b.why)));
    out
}

fn refuse(name: &str, why: String) -> RefusedReport {
    RefusedReport { name: name.to_owned(), why: format!("ConfigMap {name}: {why}") }
}

/// For each type that gates require of reporters: the reporters, each with its ReadinessGates object; the first one counts.
fn asked<'a>(gates: &[Gates<'a>]) -> BTreeMap<&'a str, Vec<(&'a str, &'a str)>> {
    let mut sorted: Vec<&Gates<'a>> = gates.iter().collect();
    sorted.sort_by_key(|object| object.name);
    let mut out: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for object in sorted {
        for gate in object.gates {
            if let Some(reporter) = reporter_of(gate) {
                let named = out.entry(&gate.type_).or_default();
                if named.iter().all(|(other, _)| *other != reporter) {
                    named.push((reporter, object.name));
                }
            }
        }
    }
    out
}

/// The reporter that a gate names.
pub fn reporter_of(gate: &Gate) -> Option<&str> {
    gate.from.as_ref().and_then(|from| from.reporter.as_deref())
}

fn owner<'a>(claimed: &[ConditionOwner<'a>], previous: Option<&ObservedCondition<'a>>) -> Option<&'a str> {
    let before = previous.and_then(|fact| fact.reporter);
    claimed
        .iter()
        .find(|claim| Some(claim.reporter) == before)
        .or_else(|| claimed.iter().min_by_key(|claim| (claim.created, claim.name)))
        .map(|claim| claim.reporter)
}

fn stale_after(gates: &[Gates<'_>], reporter: &str, type_: &str) -> Option<Duration> {
    gates
        .iter()
        .flat_map(|object| object.gates)
        .filter(|gate| gate.type_ == type_ && reporter_of(gate) == Some(reporter))
        .filter_map(|gate| gate.stale_after)
        .map(|span| span.0)
        .min()
}

fn one<'a>(
    type_: &str,
    reporter: &str,
    live: Option<ObservedCondition<'a>>,
    previous: Option<&ObservedCondition<'a>>,
    stale_after: Option<Duration>,
    now: Timestamp,
    next: &mut Option<Timestamp>,
) -> CopiedCondition<'a> {
    let mut began = now;
    let mut stale = false;
    let (status, reason, message) = match live {
        None => (Status::Unknown, MISSING.to_owned(), format!("reporter {reporter} has not reported {type_}")),
        Some(fact) => {
            if let (Some(span), Some(heartbeat)) = (stale_after, fact.heartbeat) {
                let ends = after(heartbeat, span);
                if ends <= now {
                    stale = true;
                    began = ends;
                } else {
                    *next = earlier(*next, Some(ends));
                }
            }
            if stale {
                let last = fact.heartbeat.map(stamp).unwrap_or_default();
                (Status::Unknown, STALE.to_owned(), format!("last heartbeat of reporter {reporter} was at {last}"))
            } else {
                (fact.status, truncate_line(fact.reason, 128), first_chars(fact.message, 1024).to_owned())
            }
        }
    };
    let since = match previous {
        Some(fact) if fact.status == status && fact.reporter == Some(reporter) => fact.since,
        _ => began,
    };
    let condition = Condition {
        type_: type_.to_owned(),
        status,
        reason,
        message,
        last_transition_time: since,
        observed_generation: None,
        reporter: Some(reporter.to_owned()),
    };
    CopiedCondition { condition, live, stale }
}
