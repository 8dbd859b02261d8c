//! May pods be scheduled to a machine?
//!
//! In this order, each a function of what is seen and the time:
//! - [`select`]: which ReadinessGates mean the machine;
//! - [`reports`]: what other operators report becomes conditions of the machine, each with one owner;
//! - [`gate`]: does each gate hold, fail, or say nothing, and since when;
//! - [`verdict`]: should the Node be open or closed, and what is the machine's condition `Schedulable`;
//! - [`net`]: would too much be closed at once.
//!
//! All that later decisions rely on is in the API: the transition times of copied conditions, the time of the taint, and when the machine was
//! first ready. An operator that starts anew decides as its predecessor would have.

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

pub use text::{cut, stamp};

/// One condition, as gates look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedCondition<'a> {
    /// What is spoken of.
    pub type_: &'a str,
    /// Does it hold?
    pub status: Status,
    /// One word why.
    pub reason: &'a str,
    /// Why, for people.
    pub message: &'a str,
    /// Since when the status is what it is.
    pub since: Timestamp,
    /// When somebody last looked, if that is known.
    pub heartbeat: Option<Timestamp>,
    /// Who reported it, for a condition that was copied from a report.
    pub reporter: Option<&'a str>,
}

/// A ReadinessGates object that selects the machine.
#[derive(Clone, Copy, Debug)]
pub struct Gates<'a> {
    /// Its name.
    pub name: &'a str,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last changed.
    pub changed: Timestamp,
    /// What it asks for.
    pub gates: &'a [fleetwright_api::Gate],
}

/// That much later; the end of time at most.
pub(crate) fn after(time: Timestamp, span: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(span).ok().and_then(|span| time.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// That much earlier; the beginning of time at least.
pub(crate) fn before(time: Timestamp, span: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(span).ok().and_then(|span| time.checked_sub(span).ok()).unwrap_or(Timestamp::MIN)
}

/// The earlier of two moments, if there is one.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
