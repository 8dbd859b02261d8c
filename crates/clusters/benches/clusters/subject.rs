//! The other processes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fleetwright_lab::measure::{BenchProcess, Calls, MetricsEndpoint};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tempfile::TempDir;

fn start(arguments: &[&str]) -> Result<BenchProcess> {
    // Four sockets listen for each cluster: more than most are let have at first.
    let most = "ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\"";
    BenchProcess::start(Command::new("sh").args(["-c", most]).arg(std::env::current_exe()?).args(arguments))
}

/// The simulated meta cluster.
pub(crate) struct MetaCluster {
    process: BenchProcess,
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
        self.process.memory()
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }
}

/// The operator.
pub(crate) struct Subject {
    process: BenchProcess,
    page: MetricsEndpoint,
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
        Ok(Self { process, page: MetricsEndpoint::at(metrics) })
    }

    /// Waits until it has seen everything.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.page.ready(Duration::from_secs(120)).await
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        self.process.memory()
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// Waits until it writes nothing any more. Answers the calls so far.
    pub(crate) async fn settled(&self) -> Result<Calls> {
        self.page.settled(Duration::from_secs(2), |calls| calls.writes).await
    }

    /// What was called so far.
    pub(crate) async fn calls(&self) -> Result<Calls> {
        self.page.calls().await
    }

    /// Of everything so far, from the buckets of its own histograms.
    pub(crate) async fn latency(&self) -> Result<Latency> {
        let text = self.page.get("/metrics").await?;
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
            pass: of("fleetwright_reconcile_duration_seconds"),
            wait: of("fleetwright_queue_wait_seconds"),
            proof: of("fleetwright_cluster_probe_duration_seconds"),
        })
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
