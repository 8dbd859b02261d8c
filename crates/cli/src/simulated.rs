//! A simulated fleet for `fleetwright up`: hosts in memory behind the real operator, with faults in a few of them.

pub(crate) mod clusters;
mod demo_events;
mod door;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::Clock;
use fleetwright_sim::{Fleet, FleetTiming, KubeletConfig, Kubelets, demo};
use fleetwright_transport::{Link, ReachError, Route, Transport};
use futures::future::BoxFuture;
use kube::Client;
use tokio::task::JoinHandle;

pub(crate) use clusters::Clusters;
pub(crate) use demo_events::{BREAKS, DRIFTS, REPORTS, ROLLS};
pub(crate) use workers::Workers;

/// The check interval of simulated hosts, short so that drift is detected soon.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The fleet and its scenario. Dropping it ends both.
pub(crate) struct Simulated {
    fleet: Fleet,
    _kubelets: Kubelets,
    tasks: Vec<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

impl Drop for Simulated {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Simulated {
    /// Creates the hosts of this number of machines. The Machine objects are created in the background.
    pub(crate) fn start(client: &Client, url: &str, ca: &str, machines: usize) -> Self {
        let fleet = Fleet::new(Clock::system());
        fleet.set_timing(pace());
        demo::hosts(&fleet, machines);
        let config = KubeletConfig { credentials: true, ..KubeletConfig::default() };
        let kubelets = Kubelets::start(&fleet, client.clone(), config);
        let around = demo::around_with(url, ca);
        let scenario = tokio::spawn(demo_events::run(client.clone(), fleet.clone(), around, machines));
        Self { fleet, _kubelets: kubelets, tasks: vec![scenario], socket: None }
    }

    /// Lets `fleetwright machine logs` and `plan --observe` reach its hosts and others, by a socket in this folder.
    ///
    /// # Errors
    /// The socket cannot be created there.
    pub(crate) fn open_door(&mut self, folder: &Path, others: &[Fleet]) -> anyhow::Result<()> {
        let fleets = std::iter::once(&self.fleet).chain(others).cloned().collect();
        let (socket, task) = door::open(folder, fleets)?;
        self.tasks.push(task);
        self.socket = Some(socket);
        Ok(())
    }

    /// A transport to its hosts, and by `others` to all other hosts.
    pub(crate) fn transport(&self, others: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(MixedTransport { fleet: self.fleet.clone(), others })
    }
}

/// The timing of simulated hosts.
fn pace() -> FleetTiming {
    FleetTiming { latency: Duration::from_millis(10), step: Duration::from_secs(1), boot: Duration::from_secs(20) }
}

/// A transport that serves simulated hosts itself and delegates the others.
struct MixedTransport {
    fleet: Fleet,
    others: Arc<dyn Transport>,
}

impl Transport for MixedTransport {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        match self.fleet.known(&route.host.address) {
            Some(_) => self.fleet.connect(route),
            None => self.others.connect(route),
        }
    }
}
