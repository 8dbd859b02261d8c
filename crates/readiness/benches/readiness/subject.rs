//! The measured process: the operator, or the floor.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_lab::measure::{BenchProcess, Calls, MeasuredServer, MetricsEndpoint, fleetwright};
use tempfile::TempDir;

use crate::fleet::{Fleet, NAMESPACE};

/// A running process.
pub(crate) struct Subject {
    process: BenchProcess,
    started: Instant,
    page: Option<MetricsEndpoint>,
    _folder: TempDir,
}

impl Subject {
    /// Starts the operator, which has the fleet to itself.
    pub(crate) async fn operator(server: &MeasuredServer) -> Result<Self> {
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let address = listen.to_string();
        let arguments = [
            "operators",
            "--only",
            "readiness",
            "--namespace",
            NAMESPACE,
            "--no-leader-election",
            "--listen",
            &address,
        ];
        let binary = tokio::task::spawn_blocking(fleetwright).await??;
        Self::start(server, &binary, &arguments, "--kubeconfig", Some(listen))
    }

    /// Starts the floor.
    pub(crate) async fn floor(server: &MeasuredServer) -> Result<Self> {
        let floor = Self::start(server, &std::env::current_exe()?, &["floor"], "", None)?;
        // The floor cannot report that its watch is established.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(floor)
    }

    fn start(
        server: &MeasuredServer,
        binary: &Path,
        arguments: &[&str],
        flag: &str,
        metrics: Option<SocketAddr>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig())?;
        let mut command = Command::new(binary);
        command.args(arguments).args((!flag.is_empty()).then_some(flag)).arg(&kubeconfig);
        let started = Instant::now();
        let process = BenchProcess::start(&mut command)?;
        Ok(Self { process, started, page: metrics.map(MetricsEndpoint::at), _folder: folder })
    }

    /// Time since its start.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        self.process.memory()
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// Waits until the operator has reconciled every machine and every Node is open.
    pub(crate) async fn steady(&self, fleet: &Fleet) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(600);
        while fleet.open() < fleet.size || self.passes().await.unwrap_or_default() < fleet.size as f64 {
            ensure!(Instant::now() < deadline, "{} of {} Nodes are open after ten minutes", fleet.open(), fleet.size);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The number of passes over machines.
    async fn passes(&self) -> Result<f64> {
        let ours = |labels: &str| labels.contains(r#"controller="readiness""#);
        self.page()?.sum("fleetwright_reconciles_total", ours).await
    }

    /// The calls so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        self.page()?.calls().await
    }

    fn page(&self) -> Result<MetricsEndpoint> {
        self.page.context("the floor has no metrics")
    }
}
