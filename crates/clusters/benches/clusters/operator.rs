//! The operator, in a process of its own.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use fleetwright_clusters::Options;
use fleetwright_kit::serve::Endpoint;
use fleetwright_kit::{Operator, Settings};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::fleet::NAMESPACE;

/// Runs until it is killed.
pub(crate) async fn run(kubeconfig: &Path, listen: SocketAddr) -> Result<()> {
    let (kubeconfig, options) = (Kubeconfig::read_from(kubeconfig)?, KubeConfigOptions::default());
    let client = Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?;
    let endpoint = Endpoint::bind(listen).await?;
    let mut operator = Operator::new(Settings::new("fleetwright", client));
    fleetwright_clusters::add(&mut operator, NAMESPACE, Options::default());
    let (health, metrics) = (operator.health().clone(), operator.metrics().clone());
    tokio::select! {
        ended = operator.run(std::future::pending()) => Ok(ended?),
        () = endpoint.serve(health, metrics, std::future::pending()) => Ok(()),
    }
}
