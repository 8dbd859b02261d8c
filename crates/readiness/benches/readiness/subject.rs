//! What is measured: the operator, or the floor, as a process.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_lab::measure::{Server, fleetwright, process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fleet::{Fleet, NAMESPACE};

/// A running process.
pub(crate) struct Subject {
    process: Child,
    started: Instant,
    metrics: Option<SocketAddr>,
    _folder: TempDir,
}

/// Calls to the API server, watches aside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) reads: f64,
    pub(crate) writes: f64,
}

impl Calls {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self { reads: self.reads - before.reads, writes: self.writes - before.writes }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Subject {
    /// The operator, which has the fleet to itself.
    pub(crate) async fn operator(server: &Server) -> Result<Self> {
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let address = listen.to_string();
        let arguments =
            ["operators", "--only", "readiness", "--namespace", NAMESPACE, "--no-lease", "--listen", &address];
        let binary = tokio::task::spawn_blocking(fleetwright).await??;
        Self::start(server, &binary, &arguments, "--kubeconfig", Some(listen))
    }

    /// The floor.
    pub(crate) async fn floor(server: &Server) -> Result<Self> {
        let floor = Self::start(server, &std::env::current_exe()?, &["floor"], "", None)?;
        // It has no way to say that its watch stands.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(floor)
    }

    fn start(
        server: &Server,
        binary: &Path,
        arguments: &[&str],
        flag: &str,
        metrics: Option<SocketAddr>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig())?;
        let mut command = Command::new(binary);
        command.args(arguments).args((!flag.is_empty()).then_some(flag)).arg(&kubeconfig).stdout(Stdio::null());
        let started = Instant::now();
        let process = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { process, started, metrics, _folder: folder })
    }

    /// Since its start.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(process::resident(self.process.id())? as f64)
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.process.id())
    }

    /// Waits until it looked at every machine and every Node is open.
    pub(crate) async fn steady(&self, fleet: &Fleet) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(600);
        while fleet.open() < fleet.size || self.passes().await.unwrap_or_default() < fleet.size as f64 {
            ensure!(Instant::now() < deadline, "{} of {} Nodes are open after ten minutes", fleet.open(), fleet.size);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// How many passes over machines there were.
    async fn passes(&self) -> Result<f64> {
        self.sum("fleetwright_passes_total", |labels| labels.contains(r#"controller="readiness""#)).await
    }

    /// The calls so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        let verb = |labels: &str, verbs: &[&str]| verbs.iter().any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
        let name = "fleetwright_api_calls_total";
        Ok(Calls {
            reads: self.sum(name, |labels| verb(labels, &["get", "list"])).await?,
            writes: self.sum(name, |labels| verb(labels, &["create", "update", "patch", "apply", "delete"])).await?,
        })
    }

    /// The sum of a metric over the label sets wanted.
    async fn sum(&self, name: &str, wanted: impl Fn(&str) -> bool) -> Result<f64> {
        let address = self.metrics.context("no metrics")?;
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!("{address}/metrics: {}", text.lines().next().unwrap_or_default());
        }
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
        Ok(lines.filter(|(labels, _)| wanted(labels)).filter_map(|(_, value)| value.parse::<f64>().ok()).sum())
    }
}
