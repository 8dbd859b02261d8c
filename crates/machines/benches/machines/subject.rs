//! The other processes.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_lab::measure::{Server, process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::hosts::{Hello, Stats, line};

/// Ends with us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &[&str]) -> Result<Running> {
    let binary = std::env::current_exe()?;
    let process = Command::new(&binary).args(arguments).stdout(Stdio::null()).spawn();
    Ok(Running(process.with_context(|| format!("cannot start {}", binary.display()))?))
}

/// The simulated hosts.
pub(crate) struct Hosts {
    _process: Running,
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

    /// Counts visits from here on.
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

/// The operator.
pub(crate) struct Subject {
    process: Running,
    started: Instant,
    metrics: SocketAddr,
    _folder: TempDir,
}

/// Calls to the API server, watches aside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) reads: f64,
    pub(crate) writes: f64,
}

impl Calls {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self { reads: self.reads - before.reads, writes: self.writes - before.writes }
    }
}

impl Subject {
    /// Looks at each host once in so many seconds.
    pub(crate) async fn start(server: &Server, hosts: &Hosts, check_every: u64) -> Result<Self> {
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig())?;
        let socket = hosts.socket().display().to_string();
        let (kubeconfig, listen) = (kubeconfig.display().to_string(), metrics.to_string());
        let started = Instant::now();
        let process = start(&["operator", &kubeconfig, &socket, &listen, &check_every.to_string()])?;
        Ok(Self { process, started, metrics, _folder: folder })
    }

    /// Waits until it has seen all machines.
    pub(crate) async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.get("/readyz").await.is_err() {
            ensure!(Instant::now() < deadline, "the operator is not ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Since its start.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(process::resident(self.process.0.id())? as f64)
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.process.0.id())
    }

    /// Waits until it calls nobody any more: what is left of work before is not that of what comes. Answers the calls so far.
    pub(crate) async fn settled(&self) -> Result<Calls> {
        let mut calls = self.calls().await?;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.calls().await?;
            if now == calls {
                return Ok(now);
            }
            calls = now;
        }
    }

    /// The calls so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        self.ready().await?;
        let text = self.get("/metrics").await?;
        let sum = |verbs: &[&str]| -> f64 {
            let lines = text.lines().filter_map(|line| {
                line.strip_prefix("fleetwright_api_calls_total")?.strip_prefix('{')?.split_once("} ")
            });
            let wanted = |labels: &str| verbs.iter().any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
            lines.filter(|(labels, _)| wanted(labels)).filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
        };
        Ok(Calls { reads: sum(&["get", "list"]), writes: sum(&["create", "update", "patch", "apply", "delete"]) })
    }

    async fn get(&self, path: &str) -> Result<String> {
        let mut stream = tokio::net::TcpStream::connect(self.metrics).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!("{path}: {}", text.lines().next().unwrap_or_default());
        }
        Ok(text)
    }
}
