//! The other processes.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_lab::measure::process;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    // Four sockets listen for each cluster: more than most are let have at first.
    let most = "ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\"";
    let process = Command::new("sh").args(["-c", most]).arg(&binary).args(arguments).stdout(Stdio::null()).spawn();
    Ok(Running(process.with_context(|| format!("cannot start {}", binary.display()))?))
}

/// The simulated meta cluster.
pub(crate) struct MetaCluster {
    process: Running,
    folder: TempDir,
}

impl MetaCluster {
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig").display().to_string();
        let meta = Self { process: start(&["meta", &kubeconfig])?, folder };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !meta.kubeconfig().exists() {
            ensure!(Instant::now() < deadline, "the meta cluster does not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(meta)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let (kubeconfig, options) = (Kubeconfig::read_from(self.kubeconfig())?, KubeConfigOptions::default());
        Ok(Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?)
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(process::resident(self.process.0.id())? as f64)
    }
}

/// The operator.
pub(crate) struct Subject {
    process: Running,
    metrics: SocketAddr,
}

/// Calls to the API server, watches aside, and passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) reads: f64,
    pub(crate) writes: f64,
    pub(crate) passes: f64,
}

impl Calls {
    pub(crate) fn since(self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            passes: self.passes - before.passes,
        }
    }
}

/// Half of all, and 99 of 100, took no longer, in milliseconds.
pub(crate) struct Latency {
    pub(crate) pass: (f64, f64),
    pub(crate) wait: (f64, f64),
    pub(crate) proof: (f64, f64),
}

impl Subject {
    pub(crate) async fn start(meta: &MetaCluster) -> Result<Self> {
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let kubeconfig = meta.kubeconfig().display().to_string();
        let process = start(&["operator", &kubeconfig, &metrics.to_string()])?;
        Ok(Self { process, metrics })
    }

    /// Waits until it has seen everything.
    pub(crate) async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.get("/readyz").await.is_err() {
            ensure!(Instant::now() < deadline, "the operator is not ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(process::resident(self.process.0.id())? as f64)
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.process.0.id())
    }

    /// Waits until it calls nobody any more. Answers the calls so far.
    pub(crate) async fn settled(&self) -> Result<Calls> {
        let mut calls = self.calls().await?;
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let now = self.calls().await?;
            if now.writes == calls.writes {
                return Ok(now);
            }
            calls = now;
        }
    }

    /// What was called so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        let text = self.get("/metrics").await?;
        let sum = |name: &str, wanted: &dyn Fn(&str) -> bool| -> f64 {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
            lines.filter(|(labels, _)| wanted(labels)).filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
        };
        let calls = |verbs: &[&str]| {
            let wanted = |labels: &str| verbs.iter().any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
            sum("fleetwright_api_calls_total", &wanted)
        };
        Ok(Calls {
            reads: calls(&["get", "list"]),
            writes: calls(&["create", "update", "patch", "apply", "delete", "deletecollection"]),
            passes: sum("fleetwright_passes_total", &|_| true),
        })
    }

    /// Of everything so far, from the buckets of its own histograms.
    pub(crate) async fn latency(&self) -> Result<Latency> {
        let text = self.get("/metrics").await?;
        let of = |name: &str| {
            let mut buckets: Vec<(f64, f64)> = text
                .lines()
                .filter_map(|line| {
                    let (labels, count) = line.strip_prefix(name)?.strip_prefix("_bucket{")?.split_once("} ")?;
                    let (_, bound) = labels.split_once("le=\"")?;
                    let bound = bound.split('"').next()?;
                    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
                    Some((bound, count.split(' ').next()?.parse().ok()?))
                })
                .collect();
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            (quantile(&buckets, 0.5) * 1000.0, quantile(&buckets, 0.99) * 1000.0)
        };
        Ok(Latency {
            pass: of("fleetwright_pass_seconds"),
            wait: of("fleetwright_queue_wait_seconds"),
            proof: of("fleetwright_cluster_proof_seconds"),
        })
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

/// As Prometheus' `histogram_quantile`: as if all were spread evenly within their bucket.
fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let Some(all) = buckets.last().map(|(_, count)| *count) else { return f64::NAN };
    let (mut below, mut counted) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= share * all {
            return if bound.is_infinite() {
                below
            } else {
                below + (bound - below) * (share * all - counted) / (count - counted).max(1.0)
            };
        }
        (below, counted) = (*bound, *count);
    }
    below
}
