//! Decides which machines may be scheduled: `ReadinessGates` and reports of other operators become one verdict, the condition
//! `Schedulable` of the Machine, and one taint of its Node.

mod rules;
mod why;

use fleetwright_kit::Operator;
pub use rules::{Rules, rules};
pub use why::{WhyInput, node_name, why};

/// Adds the caches and controllers that keep the machines of one namespace.
pub fn add(_operator: &mut Operator, _namespace: &str) {
    todo!()
}
