//! The two servers as processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::{Request, StatusCode};
use kube::Client;

use super::process;
use crate::plane::client;
use crate::{ControlPlane, ServerKind};

const READY: Duration = Duration::from_secs(60);

/// The objects that the lab also waits for before a server counts as ready.
const NEEDED: [&str; 3] =
    ["/readyz", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/services/kubernetes"];

/// Ends the server when its standard input closes; the kernel closes it even when this process is killed.
const SUPERVISOR: &str = r#"exec 3<&0; "$@" </dev/null 3<&- & child=$!; read -r _ <&3; kill $child; wait $child"#;

/// A running server.
pub struct MeasuredServer {
    client: Client,
    kubeconfig: String,
    /// The pid of the API server and, for the real one, of etcd.
    pids: Vec<u32>,
    ready: Duration,
    _process: Running,
}

enum Running {
    Embedded { supervisor: Child, _folder: tempfile::TempDir },
    Real(#[expect(dead_code, reason = "held for its drop")] Box<ControlPlane>),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Self::Embedded { supervisor, .. } = self {
            drop(supervisor.stdin.take());
            let _ = supervisor.wait();
        }
    }
}

/// The resource use of a server at one moment.
#[derive(Clone, Copy)]
pub struct Usage {
    cpu: Duration,
}

impl MeasuredServer {
    /// Starts one of the two servers: only an API server and its store.
    pub async fn start(kind: ServerKind) -> Result<Self> {
        match kind {
            ServerKind::Embedded => embedded().await,
            ServerKind::Real => real().await,
        }
    }

    /// An administrator's client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// An administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// The time from the start of the first process to the first answers.
    pub fn ready(&self) -> Duration {
        self.ready
    }

    /// The memory of the API server alone, and with its store.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let each = self.pids.iter().map(|pid| process::resident(*pid)).collect::<Result<Vec<u64>>>()?;
        Ok((each.first().copied().unwrap_or_default(), each.iter().sum()))
    }

    /// The present CPU time counters.
    pub fn usage(&self) -> Result<Usage> {
        let cpu = self.pids.iter().map(|pid| process::cpu(*pid)).sum::<Result<Duration>>()?;
        Ok(Usage { cpu })
    }

    /// The CPU time since then.
    pub fn cpu_since(&self, before: Usage) -> Result<Duration> {
        Ok(self.usage()?.cpu.saturating_sub(before.cpu))
    }
}

async fn real() -> Result<MeasuredServer> {
    let names = ["kube-apiserver", "etcd"];
    let before = names.map(process::descendants);
    let started = Instant::now();
    let plane = ControlPlane::builder().start().await?;
    let ready = started.elapsed();
    let pids =
        names.into_iter().zip(before).map(|(name, before)| new_process(name, &before?)).collect::<Result<_>>()?;
    let kubeconfig = plane.kubeconfig();
    Ok(MeasuredServer {
        client: client(&kubeconfig).await?,
        kubeconfig,
        pids,
        ready,
        _process: Running::Real(Box::new(plane)),
    })
}

/// The process of this name that is not in `before`.
fn new_process(name: &str, before: &[u32]) -> Result<u32> {
    let new: Vec<_> = process::descendants(name)?.into_iter().filter(|pid| !before.contains(pid)).collect();
    let [pid] = new[..] else { bail!("expected one new process {name}, found {}", new.len()) };
    Ok(pid)
}

async fn embedded() -> Result<MeasuredServer> {
    let binary = tokio::task::spawn_blocking(fleetwright).await??;
    let before = process::descendants("fleetwright")?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    let started = Instant::now();
    let supervisor = Command::new("sh")
        .args(["-c", SUPERVISOR, "supervisor"])
        .arg(&binary)
        .args(["apiserver", "--memory", "--kubeconfig"])
        .arg(&kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let process = Running::Embedded { supervisor, _folder: folder };
    let kubeconfig = wait_for_file(&kubeconfig, started).await?;
    let client = client(&kubeconfig).await?;
    for path in NEEDED {
        loop {
            let request = Request::get(path).body(kube::client::Body::empty())?;
            match client.send(request).await {
                Ok(answer) if answer.status() == StatusCode::OK => break,
                last if started.elapsed() > READY => bail!("timed out after {READY:?}: {path} is not ready: {last:?}"),
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }
    let ready = started.elapsed();
    let pid = new_process("fleetwright", &before)?;
    Ok(MeasuredServer { client, kubeconfig, pids: vec![pid], ready, _process: process })
}

/// The server writes its kubeconfig when it is ready to serve.
async fn wait_for_file(path: &Path, started: Instant) -> Result<String> {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) => return Ok(text),
            Err(error) if started.elapsed() > READY => {
                return Err(error).with_context(|| format!("no kubeconfig in {} after {READY:?}", path.display()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// The `fleetwright` executable beside this program. Under Cargo it is rebuilt first, so that it is never outdated.
///
/// # Errors
/// When the build fails.
pub fn fleetwright() -> Result<PathBuf> {
    let mut path = std::env::current_exe()?.with_file_name("fleetwright");
    // Cargo places benches and tests one folder below the programs.
    if path.parent().is_some_and(|folder| folder.ends_with("deps")) {
        path = path.parent().and_then(Path::parent).context("no folder")?.join("fleetwright");
    }
    let cargo = std::env::var_os("CARGO");
    if path.exists() && cargo.is_none() {
        return Ok(path);
    }
    eprintln!("bench: building fleetwright");
    let mut command = Command::new(cargo.unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--locked", "-p", "fleetwright-cli", "--bin", "fleetwright"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status().context("cannot run cargo")?;
    if !status.success() || !path.exists() {
        bail!("{} not found: run `cargo build --release --bin fleetwright`", path.display());
    }
    Ok(path)
}
