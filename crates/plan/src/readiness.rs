//! Decides whether pods may be scheduled to a machine.
//!
//! In this order, each a function of what is observed and the time:
//! - [`selector`]: the ReadinessGates that select the machine;
//! - [`reports`]: reports of other operators become conditions of the machine, each with one owner;
//! - [`gate`]: does each gate hold, fail, or say nothing, and since when;
//! - [`verdict`]: should the Node be open or closed, and what is the machine's condition `Schedulable`;
//! - [`safety_net`]: would too much be closed at once.
//!
//! All inputs of later decisions are in the API: the transition times of copied conditions, the time of the taint, and when the machine was
//! first ready. After a restart an operator decides as its predecessor would have.

pub mod gate;
pub mod reports;
pub mod safety_net;
pub mod selector;
#[cfg(test)]
mod tests;
mod text;
pub mod verdict;

use std::time::Duration;

use fleetwright_api::Status;
use jiff::Timestamp;

pub use text::{is_plain, manager_name, stamp};

/// One condition, as gates read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedCondition<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// Status of the condition.
    pub status: Status,
    /// Reason of the condition.
    pub reason: &'a str,
    /// Message of the condition.
    pub message: &'a str,
    /// Last transition time.
    pub since: Timestamp,
    /// Last heartbeat, if known.
    pub heartbeat: Option<Timestamp>,
    /// The reporter, for a condition that was copied from a report.
    pub reporter: Option<&'a str>,
}

/// A ReadinessGates object that selects the machine.
#[derive(Clone, Copy, Debug)]
pub struct Gates<'a> {
    /// Name of the object.
    pub name: &'a str,
    /// Creation time.
    pub created: Timestamp,
    /// When its spec or metadata last changed.
    pub changed: Timestamp,
    pub gates: &'a [fleetwright_api::Gate],
}

/// The time plus the span; at most the maximum.
pub(crate) fn after(time: Timestamp, span: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(span).ok().and_then(|span| time.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// The time minus the span; at least the minimum.
pub(crate) fn before(time: Timestamp, span: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(span).ok().and_then(|span| time.checked_sub(span).ok()).unwrap_or(Timestamp::MIN)
}

/// The earlier of two times, if there is one.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
