//! The other processes of the bench: the simulated hosts and the operator.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fleetwright_lab::measure::{BenchProcess, Calls, MeasuredServer, MetricsEndpoint};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::hosts::{Hello, Stats, line};

fn start(arguments: &[&str]) -> Result<BenchProcess> {
    BenchProcess::start(Command::new(std::env::current_exe()?).args(arguments))
}

/// The process of the simulated hosts.
pub(crate) struct Hosts {
    _process: BenchProcess,
    folder: TempDir,
}

impl Hosts {
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("hosts");
        let process = start(&["hosts", &socket.display().to_string()])?;
        let hosts = Self { _process: process, folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while hosts.stats().await.is_err() {
            ensure!(Instant::now() < deadline, "the hosts do not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(hosts)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    pub(crate) async fn stats(&self) -> Result<Stats> {
        self.ask(Hello::Stats).await
    }

    /// Resets the count of visits.
    pub(crate) async fn mark(&self) -> Result<Stats> {
        self.ask(Hello::Mark).await
    }

    async fn ask(&self, hello: Hello) -> Result<Stats> {
        let mut stream = UnixStream::connect(self.socket()).await?;
        stream.write_all(&line(&hello)?).await?;
        let mut text = String::new();
        BufReader::new(stream).read_line(&mut text).await?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// The process of the operator.
pub(crate) struct Subject {
    process: BenchProcess,
    started: Instant,
    page: MetricsEndpoint,
    _folder: TempDir,
}

impl Subject {
    /// Starts the operator, which observes each host once per `check_every` seconds.
    pub(crate) async fn start(server: &MeasuredServer, hosts: &Hosts, check_every: u64) -> Result<Self> {
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig())?;
        let socket = hosts.socket().display().to_string();
        let (kubeconfig, listen) = (kubeconfig.display().to_string(), metrics.to_string());
        let started = Instant::now();
        let process = start(&["operator", &kubeconfig, &socket, &listen, &check_every.to_string()])?;
        Ok(Self { process, started, page: MetricsEndpoint::at(metrics), _folder: folder })
    }

    /// Waits until the operator has seen all machines.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.page.ready(Duration::from_secs(60)).await
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

    /// Waits until the operator makes no more calls. Returns the calls so far.
    pub(crate) async fn settled(&self) -> Result<Calls> {
        self.ready().await?;
        self.page.settled(Duration::from_secs(1), |calls| calls.reads + calls.writes).await
    }

    /// The calls so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        self.ready().await?;
        self.page.calls().await
    }
}
