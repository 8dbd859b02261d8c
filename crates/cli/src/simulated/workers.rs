//! Workers of the business clusters of `fleetwright up`: hosts in memory, which the Machine-Operator of each cluster joins
//! from its pod beside the control plane.

use std::collections::HashMap;
use std::sync::Arc;

use clap::Parser as _;
use fleetwright_api::{Cluster, is_true, names};
use fleetwright_kit::Clock;
use fleetwright_plan::cluster::Names;
use fleetwright_sim::meta::{Container, Meta, Program};
use fleetwright_sim::{Fleet, KubeletConfig, Kubelets, demo};
use futures::FutureExt as _;
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client};
use tokio::task::JoinHandle;

use super::clusters::name;
use super::{demo_events, pace};
use crate::{Cli, Command, FLEET_NAMESPACE};

/// The component name of this program's image.
const COMPONENT: &str = "fleetwright";

/// The hosts of all clusters, by the cluster's number.
pub(crate) struct Workers {
    fleets: Vec<Fleet>,
    each: usize,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Workers {
    /// This number of hosts for each of the clusters.
    pub(crate) fn new(clusters: usize, each: usize) -> Self {
        let fleet = |cluster: usize| {
            let fleet = Fleet::new(Clock::system());
            fleet.set_timing(pace());
            (0..each).for_each(|worker| demo::host(&fleet, &demo::worker_address(cluster, worker)));
            fleet
        };
        let clusters = if each > 0 { clusters } else { 0 };
        Self { fleets: (0..clusters).map(fleet).collect(), each, tasks: Vec::new() }
    }

    /// The fleets of all clusters.
    pub(crate) fn fleets(&self) -> &[Fleet] {
        &self.fleets
    }

    /// Runs the Machine-Operator of each cluster in its pod, and declares the machines when it is ready.
    pub(crate) fn start(&mut self, client: &Client, meta: &Meta) {
        let namespace = |cluster: usize| Names::of(FLEET_NAMESPACE, &name(cluster)).namespace;
        let numbered = self.fleets.iter().enumerate();
        let fleets = numbered.map(|(cluster, fleet)| (namespace(cluster), fleet.clone())).collect();
        meta.program(COMPONENT, program(fleets));
        for (cluster, fleet) in self.fleets.iter().enumerate() {
            let clusters: Api<Cluster> = Api::namespaced(client.clone(), FLEET_NAMESPACE);
            let (fleet, inside) = (fleet.clone(), meta.administrator(&namespace(cluster)));
            let machines = (0..self.each)
                .map(|worker| {
                    demo::worker(&format!("{}-{worker}", name(cluster)), &demo::worker_address(cluster, worker))
                })
                .collect();
            self.tasks.push(tokio::spawn(async move {
                if await_condition(clusters, &name(cluster), extended()).await.is_err() {
                    return;
                }
                let config = KubeletConfig { credentials: true, ..KubeletConfig::default() };
                let _kubelets = Kubelets::start(&fleet, inside.clone(), config);
                if let Err(error) = demo_events::make(&inside, vec![demo::key()], machines).await {
                    tracing::error!("the workers of {} are not complete: {error:#}", name(cluster));
                }
                std::future::pending::<()>().await;
            }));
        }
    }
}

/// Whether the extensions of the cluster are applied.
fn extended() -> impl Condition<Cluster> {
    |cluster: Option<&Cluster>| {
        let status = cluster.and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| is_true(&status.conditions, names::EXTENSIONS_READY))
    }
}

/// The program of this image's containers: `fleetwright operators` with the hosts of their cluster.
fn program(fleets: HashMap<String, Fleet>) -> Program {
    Arc::new(move |container| {
        let fleet = fleets.get(container.namespace()).cloned();
        async move { operate(&container, fleet).await.map_err(|error| format!("{error:#}")) }.boxed()
    })
}

async fn operate(container: &Container, fleet: Option<Fleet>) -> anyhow::Result<()> {
    let Command::Operators(args) = Cli::try_parse_from(container.arguments())?.command else {
        anyhow::bail!("only `fleetwright operators` runs in simulated pods");
    };
    // A cluster that was created later has no hosts, but its operator runs all the same.
    let fleet = fleet.unwrap_or_else(|| Fleet::new(Clock::system()));
    args.run_in(container, Arc::new(fleet)).await
}
