//! The meta cluster, in a process of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_apiserver::{Config, Server};
use fleetwright_kit::Clock;
use fleetwright_sim::meta::{Meta, MetaConfig, service_network};

/// Runs until it is killed.
pub(crate) async fn run(kubeconfig: &Path) -> Result<()> {
    let service_cidr = service_network().context("no network is free")?;
    let listen = Some(([127, 0, 0, 1], 0).into());
    let server = Server::start(Config { listen, service_cidr, ..Config::default() }).await?;
    let config = MetaConfig {
        nodes: 10,
        // Thousands of controller-managers and schedulers on the cores of the operator: they call a fifth as often as real ones, and without sockets. More
        // often, and what 3,000 cost is mostly their leases. A proof wants to see them renewed within twelve seconds.
        lease: Duration::from_secs(10),
        near: true,
        ..MetaConfig::default()
    };
    let _meta = Meta::start(server.client(), Clock::system(), config).await?;
    // Whole, or not at all.
    let half = kubeconfig.with_extension("half");
    std::fs::write(&half, server.admin_kubeconfig()?)?;
    std::fs::rename(&half, kubeconfig)?;
    std::future::pending().await
}
