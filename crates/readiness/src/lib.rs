//! Decides which machines may be scheduled: `ReadinessGates` and reports of other operators become one verdict, the condition
//! `Schedulable` of the Machine, and one taint of its Node.
//!
//! Guarantees:
//! - a Node is opened only when all gates of its machine held for as long as they must, and closed only when one failed for longer than it may;
//! - only our own taint is ever written; a person's cordon or taint stays, and the machine's status says who must remove it;
//! - no more machines are closed together than the safety nets allow, also across restarts;
//! - two writes for a change of the verdict, none for a report that repeats the one before.
//!
//! Caveats: after a Machine was deleted, our taint on its Node stays, because no verdict says any more that the Node is ready. The taint is
//! removed by hand, or deleted with the Node.

mod fleet_state;
mod gates;
mod machine;
mod meters;
mod observe;
mod rules;
mod view;
mod why;

use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::names;
use fleetwright_kit::{Budget, Controller, Operator, Source, Waker};
use kube::Api;
pub use rules::{Rules, rules};
pub use why::{WhyInput, why};

use fleet_state::FleetState;
use gates::Summaries;
use machine::{Machines, claims, wake_for_gates, wake_for_machine, wake_for_report};
use meters::Meters;
use observe::{ALL, BY_MACHINE, BY_NODE, Caches};

/// The name of the controller of machines.
pub const NAME: &str = "readiness";
/// The field manager for writes to machines.
const MANAGER: &str = "fleetwright-readiness";

/// Options of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Options of the controller of machines.
    pub machines: fleetwright_kit::Options,
    /// Options of the controller of ReadinessGates. Its passes only sum up counts, so they have a minimum interval.
    pub gates: fleetwright_kit::Options,
}

impl Default for Options {
    fn default() -> Self {
        let options = fleetwright_kit::Options::default();
        let gates = fleetwright_kit::Options { workers: 1, at_most_every: Duration::from_secs(5), ..options };
        Self { machines: options, gates }
    }
}

/// Adds the caches and controllers for the machines of one namespace.
pub fn add(operator: &mut Operator, namespace: &str) {
    add_with(operator, namespace, Options::default());
}

/// As [`add`], with other options.
pub fn add_with(operator: &mut Operator, namespace: &str, options: Options) {
    let client = operator.client();
    let caches = Caches {
        machines: operator.cache(
            Source::new(Api::namespaced(client.clone(), namespace))
                .index(BY_NODE, |_, machine: &view::MachineView| vec![machine.node.to_string()]),
        ),
        nodes: operator.cache(Source::new(Api::all(client.clone()))),
        gates: operator
            .cache(Source::new(Api::namespaced(client.clone(), namespace)).index(ALL, |_, _| vec![ALL.to_owned()])),
        reports: operator.cache(
            Source::new(Api::namespaced(client, namespace))
                .labels(names::MACHINE)
                .index(BY_MACHINE, |_, report: &view::ReportView| vec![report.machine.to_string()]),
        ),
    };
    let meters = Meters::new(operator.metrics());
    let (wake_machines, wake_gates) = (Waker::new(), Waker::new());
    let board = FleetState::new(namespace, caches.clone(), wake_machines.clone(), wake_gates.clone(), meters.clone());
    let namespace: Arc<str> = namespace.into();

    let machines = Machines { caches: caches.clone(), board: board.clone(), meters };
    let of = |caches: &Caches| caches.clone();
    let (for_machine, for_node, for_gates) = (of(&caches), of(&caches), of(&caches));
    let _ = operator
        .controller(machines, options.machines)
        .on(&caches.machines, move |change| wake_for_machine(&for_machine, change))
        .on(&caches.nodes, move |change| claims(&for_node, &change.key.name))
        .on(&caches.reports, move |change| wake_for_report(&namespace, change))
        .on(&caches.gates, move |change| wake_for_gates(&for_gates, change))
        .by(&wake_machines);

    let summaries = Summaries { gates: caches.gates.clone(), board };
    let _ = operator
        .controller(summaries, options.gates)
        .on(&caches.gates, |change| vec![change.key.clone()])
        .by(&wake_gates);
}

/// The most calls of one pass of each controller.
pub fn budgets() -> [(&'static str, Budget); 2] {
    [(Machines::NAME, Machines::BUDGET), (Summaries::NAME, Summaries::BUDGET)]
}
