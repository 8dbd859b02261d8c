//! A simulated fleet for `fleetwright up`: hosts in memory behind the real operator, and what goes wrong with a few of them.

pub(crate) mod clusters;
mod door;
mod story;
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
pub(crate) use story::{BREAKS, DRIFTS, REPORTS, ROLLS};
pub(crate) use workers::Workers;

/// Simulated hosts are looked at so often, so that drift is soon seen.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The fleet, and what happens to it. Dropping it ends both.
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
    /// The hosts of so many machines. Their objects are made in the background: nobody waits for them.
    pub(crate) fn start(client: &Client, url: &str, ca: &str, machines: usize) -> Self {
        let fleet = Fleet::new(Clock::system());
        fleet.set_timing(pace());
        demo::hosts(&fleet, machines);
        let config = KubeletConfig { credentials: true, ..KubeletConfig::default() };
        let kubelets = Kubelets::start(&fleet, client.clone(), config);
        let around = demo::around_with(url, ca);
        let story = tokio::spawn(story::tell(client.clone(), fleet.clone(), around, machines));
        Self { fleet, _kubelets: kubelets, tasks: vec![story], socket: None }
    }

    /// Lets `fleetwright machine logs` and `plan --observe` ask its hosts and others, by a socket in that folder.
    ///
    /// # Errors
    /// The socket cannot be made there.
    pub(crate) fn open_door(&mut self, folder: &Path, others: &[Fleet]) -> anyhow::Result<()> {
        let fleets = std::iter::once(&self.fleet).chain(others).cloned().collect();
        let (socket, task) = door::open(folder, fleets)?;
        self.tasks.push(task);
        self.socket = Some(socket);
        Ok(())
    }

    /// The way to its hosts, and by `others` to all others.
    pub(crate) fn transport(&self, others: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(MixedTransport { fleet: self.fleet.clone(), others })
    }
}

/// How fast simulated hosts are.
fn pace() -> FleetTiming {
    FleetTiming { latency: Duration::from_millis(10), step: Duration::from_secs(1), boot: Duration::from_secs(20) }
}

/// Simulated hosts where there are some, others by another way.
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
