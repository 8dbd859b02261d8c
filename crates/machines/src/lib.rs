//! The Machine-Operator: drives hosts to their packages over SSH, and keeps them there.
//!
//! One pure function decides, in [`fleetwright_plan::machine`]. This crate has the means: caches of the declared objects, a pool of
//! tasks on hosts ([`hosts`]), windows as Operations of the journal, evictions, and the status that people read.
//!
//! Guarantees:
//! - a pass never waits for a host;
//! - a step has an id that the host's journal runs at most once, whichever caller asks and however often;
//! - an unchanged machine costs one observation of its host in each period, and no write;
//! - only our own taint is removed, and only labels that we set;
//! - nothing is done to a Node that is not bound to its machine by uid.

mod access;
mod drain;
pub mod hosts;
pub mod join;
mod machine;
mod memory;
mod meters;
mod observe;
pub mod route;
mod rules;
mod server;
mod view;
mod window;

use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::MachinePackageVersion;
use fleetwright_kit::journal::Journal;
use fleetwright_kit::{Budget, Cache, Change, Controller, FullObject, Operator, Source, Waker};
use fleetwright_plan::gate::Population;
use fleetwright_transport::Transport;
use kube::Api;
use tokio::sync::OnceCell;

pub use access::admission_policies;
pub use drain::{DrainPreview, ReadError, preview as preview_drain};
use hosts::{Hosts, Limits};
use join::Credentials;
use machine::Machines;
use memory::MachineMemories;
use meters::Meters;
use observe::{BY_LABEL, BY_NODE, BY_PHASE, BY_REFERENCE, Caches, PHASES, machines, maps, references};
pub use rules::{Rules, rules};
use server::ServerVersion;
pub use server::minors as server_minors;
pub use view::SecretView;
use view::{MachineView, NodeView};

/// The name of the controller of machines.
pub const NAME: &str = "machines";

/// Options of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Options of the controller of machines.
    pub machines: fleetwright_kit::Options,
    /// Limits on the number of hosts visited at the same time.
    pub limits: Limits,
    /// Interval for observing a host when nothing else happens.
    pub check_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            machines: fleetwright_kit::Options { workers: 16, ..fleetwright_kit::Options::default() },
            limits: Limits::default(),
            check_every: Duration::from_secs(600),
        }
    }
}

/// The population for a policy's percentage.
struct MachinePopulation(Cache<MachineView>);

impl Population for MachinePopulation {
    fn count(&self, label: Option<(&str, &str)>) -> Option<usize> {
        Some(match label {
            None => self.0.len(),
            Some((key, value)) => self.0.count(BY_LABEL, &format!("{key}={value}")),
        })
    }
}

/// Adds the caches and controllers that drive the hosts of one namespace, reached by that transport. Returns the hosts, for callers that show
/// the present tasks.
pub fn add(operator: &mut Operator, namespace: &str, transport: Arc<dyn Transport>, options: Options) -> Hosts {
    let client = operator.client();
    let caches = Caches {
        machines: operator.cache(machines(client.clone(), namespace)),
        packages: operator.cache(
            Source::new(Api::namespaced(client.clone(), namespace))
                .index(BY_REFERENCE, |_, package: &FullObject<MachinePackageVersion>| references(&package.0)),
        ),
        secrets: operator.cache(Source::new(Api::namespaced(client.clone(), namespace))),
        maps: operator.cache(maps(client.clone(), namespace)),
        nodes: operator.cache(join::view::nodes(client)),
    };
    let journal = Journal::add(operator, namespace, MachinePopulation(caches.machines.clone()));
    let waker = Waker::new();
    let (clock, random) = (operator.clock().clone(), operator.random().clone());
    let hosts = Hosts::with_random(transport, options.limits, clock, waker.clone(), random);
    let meters = Meters::new(operator.metrics());
    let credentials = Credentials::new();
    let joining = join::add_on(operator, namespace, &credentials, &caches.machines, &caches.nodes, &caches.maps);
    let controller = Machines {
        caches: caches.clone(),
        joining: joining.clone(),
        hosts: hosts.clone(),
        journal: journal.clone(),
        memories: MachineMemories::default(),
        meters: meters.clone(),
        credentials,
        requester: operator.name().to_owned(),
        check_every: options.check_every,
        cluster_id: OnceCell::new(),
        outages: operator.outages().clone(),
        server: ServerVersion::default(),
    };
    let for_request = joining.clone();
    let of = || caches.clone();
    let (for_node, for_package, for_secret, for_map, counted, alike) = (of(), of(), of(), of(), of(), of());
    let wakes = operator
        .controller(controller, options.machines)
        .on(&caches.machines, move |change: &Change<'_, MachineView>| {
            for (_, name) in PHASES {
                meters.phase(name, counted.machines.count(BY_PHASE, name));
            }
            // Machines with the same address as another one wait until that one is deleted.
            let mut keys = alike.machines_like([change.old, change.new]);
            keys.push(change.key.clone());
            keys
        })
        .on(&caches.nodes, move |change: &Change<'_, NodeView>| {
            // A heartbeat of a Node needs no reconcile.
            if change.old.zip(change.new).is_some_and(|(old, new)| !old.differs(new)) {
                return Vec::new();
            }
            for_node.machines.by(BY_NODE, &change.key.name).into_iter().map(|(key, _)| key).collect()
        })
        .on(&joining.requests, move |change| {
            change.new.map(|request| for_request.machines_of(request)).unwrap_or_default()
        })
        .on(&caches.packages, move |change| for_package.machines_with(&change.key.name))
        .on(&caches.secrets, move |change| for_secret.machines_referring(&format!("secret/{}", change.key.name)))
        .on(&caches.maps, move |change| for_map.machines_referring(&format!("configMap/{}", change.key.name)))
        .by(&waker);
    drop(journal.wake(wakes, window::KIND));
    hosts
}

/// The most calls of one pass of each controller.
pub fn budgets() -> Vec<(&'static str, Budget)> {
    let mut budgets = vec![(Machines::NAME, Machines::BUDGET)];
    budgets.extend(join::budgets());
    budgets
}
