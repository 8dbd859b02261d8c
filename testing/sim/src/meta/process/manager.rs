//! kube-controller-manager and kube-scheduler: they renew their leases in the business cluster; the former also runs controllers there.

mod api_client;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fleetwright_apiserver::{ControllerManager, ControllerManagerGuard, User};
use fleetwright_kit::Clock;
use fleetwright_pki::Authority;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::super::kubelet::files::Files;
use super::super::kubelet::sandbox::ContainerHandle;
use super::super::names::suffix;
use super::tls::file;
use super::{Args, ContainerRuntime, Exit, Probe, Process, StartRequest, VersionDefect};
use api_client::{ApiClient, CallError};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// The longest renewal interval for which a connection stays open.
const KEEP_CONNECTION: Duration = Duration::from_secs(10);
/// The time limit for the release of the lease when the process stops.
const RELEASE: Duration = Duration::from_secs(2);

/// A process with leader election.
struct LeaderElectedProcess {
    port: u16,
    bad: Option<VersionDefect>,
    /// Whether the process has reached the API server.
    connected: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    task: OnceLock<Mutex<Option<JoinHandle<()>>>>,
}

pub(super) async fn start(runtime: &ContainerRuntime, start: StartRequest) -> Result<Arc<dyn Process>, Exit> {
    let StartRequest { pod, component, args, files, life, bad, .. } = start;
    args.check_files(&files)?;
    let settings = Settings::read(&files, &args)?;
    let keeps = runtime.lease <= KEEP_CONNECTION;
    let mut api_client = ApiClient::new(&files, &settings.kubeconfig, runtime, keeps).map_err(Exit::command_failed)?;
    if runtime.near {
        api_client.near = Some(User::new(format!("system:{component}"), ["system:authenticated"]));
    }
    let manages = component == "kube-controller-manager" && bad != Some(VersionDefect::WrongAnswers);
    let manager = manages.then(|| signers(&files, &args)).transpose()?;
    let port = if component == "kube-scheduler" { 10259 } else { 10257 };
    let (stop, stopping) = watch::channel(false);
    let leader = LeaderElectedProcess {
        port: args.get("secure-port").and_then(|port| port.parse().ok()).unwrap_or(port),
        bad,
        connected: Arc::default(),
        stop,
        task: OnceLock::new(),
    };
    let elector = LeaderElector {
        api_client,
        lease: settings.lease.unwrap_or(component),
        identity: format!("{}_{}{}", pod.name, suffix(&runtime.random), suffix(&runtime.random)),
        every: runtime.lease,
        duration: settings.duration.max(runtime.lease.saturating_mul(3)),
        held: None,
        observed: None,
        renewed: None,
        manager,
        managing: None,
        clock: runtime.clock.clone(),
        bad,
        connected: leader.connected.clone(),
    };
    let elects = settings.elects;
    let task = tokio::spawn(elector.run(stopping, life, elects));
    let _ = leader.task.set(Mutex::new(Some(task)));
    Ok(Arc::new(leader))
}

/// The lease settings, from flags or from the configuration file.
struct Settings {
    kubeconfig: String,
    lease: Option<String>,
    duration: Duration,
    elects: bool,
}

impl Settings {
    fn read(files: &Files, args: &Args) -> Result<Self, Exit> {
        let config: Value = match args.get("config") {
            None => Value::Null,
            Some(path) => {
                let text = file(files, path).map_err(Exit::command_failed)?;
                serde_saphyr::from_str(&text)
                    .map_err(|error| Exit::command_failed(format!("couldn't load config {path}: {error}")))?
            }
        };
        let election = &config["leaderElection"];
        let text = |flag: &str, value: &Value| args.get(flag).or(value.as_str()).map(str::to_owned);
        let kubeconfig = text("kubeconfig", &config["clientConnection"]["kubeconfig"]);
        let kubeconfig = kubeconfig.filter(|path| !path.is_empty()).ok_or_else(|| {
            Exit::command_failed("invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable")
        })?;
        let duration = text("leader-elect-lease-duration", &election["leaseDuration"]);
        Ok(Self {
            kubeconfig,
            lease: text("leader-elect-resource-name", &election["resourceName"]).filter(|name| !name.is_empty()),
            duration: duration.as_deref().and_then(seconds).unwrap_or(Duration::from_secs(15)),
            elects: args.get("leader-elect") != Some("false") && election["leaderElect"] != false,
        })
    }
}

/// Parses a duration in the notation of Go, as far as leases use it.
fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" | "m0s" => Some(Duration::from_secs(number * 60)),
        _ => None,
    }
}

/// The authorities with which the controller-manager signs certificate requests: one for all of them, or one for each signer.
fn signers(files: &Files, args: &Args) -> Result<ControllerManager, Exit> {
    let all = signer(files, args, "cluster-signing")?;
    let clients = signer(files, args, "cluster-signing-kubelet-client")?;
    let serving = signer(files, args, "cluster-signing-kubelet-serving")?;
    if all.is_some() && (clients.is_some() || serving.is_some()) {
        return Err(Exit::command_failed(
            "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
        ));
    }
    Ok(ControllerManager { signer: clients.or_else(|| all.clone()), kubelet_signer: serving.or(all), quotas: true })
}

/// The authority in the files of the two flags with this prefix, if they are set.
fn signer(files: &Files, args: &Args, prefix: &str) -> Result<Option<Arc<Authority>>, Exit> {
    let flag = |what: &str| args.get(&format!("{prefix}-{what}-file"));
    let (Some(cert), Some(key)) = (flag("cert"), flag("key")) else {
        return Ok(None);
    };
    let read = || -> Result<Authority, String> {
        let (cert, key) = (file(files, cert)?, file(files, key)?);
        Authority::from_pem(&cert, &key).map_err(|error| error.to_string())
    };
    read().map(|authority| Some(Arc::new(authority))).map_err(|why| {
        Exit::command_failed(format!(
            "error starting controllers: failed to start certificate controller: error reading CA cert file: {why}"
        ))
    })
}

impl Process for LeaderElectedProcess {
    fn probe(&self, probe: &Probe) -> Result<(), String> {
        let refused = || Err("connect: connection refused".to_owned());
        match probe {
            Probe::Other => Ok(()),
            Probe::Tcp(port) => {
                if *port == self.port {
                    Ok(())
                } else {
                    refused()
                }
            }
            Probe::Http { port, .. } if *port != self.port => refused(),
            Probe::Http { https: false, .. } => Err("HTTP probe failed with statuscode: 400".to_owned()),
            Probe::Http { path, .. } => match path.trim_matches('/').split(['/', '?']).next() {
                Some("healthz" | "livez") => Ok(()),
                Some("readyz")
                    if self.bad != Some(VersionDefect::NeverReady) && self.connected.load(Ordering::Relaxed) =>
                {
                    Ok(())
                }
                Some("readyz") => Err("HTTP probe failed with statuscode: 500".to_owned()),
                _ => Err("HTTP probe failed with statuscode: 404".to_owned()),
            },
        }
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async {
            self.stop.send_replace(true);
            let task = self.task.get().and_then(|task| task.lock().unwrap_or_else(PoisonError::into_inner).take());
            if let Some(task) = task {
                // At worst the task panicked.
                let _ = task.await;
            }
        }
        .boxed()
    }

    fn kill(&self) {
        if let Some(task) = self.task.get().and_then(|task| task.lock().unwrap_or_else(PoisonError::into_inner).take())
        {
            task.abort();
        }
    }
}

impl Drop for LeaderElectedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A lease and the candidate that elects with it.
struct LeaderElector {
    api_client: ApiClient,
    lease: String,
    identity: String,
    every: Duration,
    duration: Duration,
    /// The lease as last written, while this candidate holds it.
    held: Option<Value>,
    /// The lease of another holder, and the time when it was seen to change.
    observed: Option<(Value, Duration)>,
    renewed: Option<Duration>,
    manager: Option<ControllerManager>,
    managing: Option<ControllerManagerGuard>,
    clock: Clock,
    bad: Option<VersionDefect>,
    connected: Arc<AtomicBool>,
}

impl LeaderElector {
    async fn run(mut self, mut stop: watch::Receiver<bool>, life: ContainerHandle, elects: bool) {
        loop {
            tokio::select! {
                () = self.run_once(&life, elects) => {}
                () = stopped(&mut stop) => return self.release().await,
            }
            let deadline = self.duration.mul_f64(2.0 / 3.0).max(self.every);
            if self.renewed.is_some_and(|renewed| self.clock.monotonic().saturating_sub(renewed) > deadline) {
                return life.end(Exit::failed("\"Leaderelection lost\""));
            }
            tokio::select! {
                () = self.clock.sleep(self.every) => {}
                () = stopped(&mut stop) => return self.release().await,
            }
        }
    }

    /// Tries once to acquire or renew the lease, and acts on the result.
    async fn run_once(&mut self, life: &ContainerHandle, elects: bool) {
        if let Some(VersionDefect::Slow(time)) = self.bad {
            self.clock.sleep(time).await;
        }
        let leads = if elects { self.try_acquire_or_renew().await } else { Ok(true) };
        match leads {
            Ok(leads) => {
                if !self.connected.swap(true, Ordering::Relaxed) {
                    life.changed();
                }
                if leads { self.manage() } else { self.managing = None }
            }
            Err(error) => {
                tracing::debug!(lease = self.lease, identity = self.identity, %error, "a lease was not renewed")
            }
        }
    }

    /// Writes the lease if this candidate holds it or it is free; returns whether this candidate holds it.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, CallError> {
        let path = format!("{LEASES}/{}", self.lease);
        if let Some(held) = &self.held {
            let (code, lease) = self.api_client.call(Method::PUT, &path, Some(&self.filled(held))).await?;
            if code == 200 {
                return Ok(self.has(lease));
            }
            self.held = None;
        }
        let (code, lease) = self.api_client.call(Method::GET, &path, None).await?;
        let (code, lease) = match code {
            404 => {
                let lease = json!({ "metadata": { "name": self.lease, "namespace": "kube-system" }, "spec": { "leaseTransitions": 0 } });
                self.api_client.call(Method::POST, LEASES, Some(&self.filled(&lease))).await?
            }
            200 if self.is_free(&lease) => self.api_client.call(Method::PUT, &path, Some(&self.filled(&lease))).await?,
            200 => return Ok(false),
            _ => (code, lease),
        };
        match code {
            200 | 201 => Ok(self.has(lease)),
            // Conflict: another candidate was faster.
            409 => Ok(false),
            _ => Err(CallError::told(code, &lease)),
        }
    }

    fn has(&mut self, lease: Value) -> bool {
        self.held = Some(lease);
        self.renewed = Some(self.clock.monotonic());
        true
    }

    /// Whether the lease has no holder or has expired.
    fn is_free(&mut self, lease: &Value) -> bool {
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        let now = self.clock.monotonic();
        let version = &lease["metadata"]["resourceVersion"];
        match &self.observed {
            Some((known, since)) if known == version => {
                let lasts = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(15);
                now.saturating_sub(*since) > Duration::from_secs(lasts)
            }
            _ => {
                self.observed = Some((version.clone(), now));
                false
            }
        }
    }

    /// The lease with this candidate as its holder.
    fn filled(&self, lease: &Value) -> Value {
        let now = micro(self.clock.now());
        let mut lease = lease.clone();
        let spec = &mut lease["spec"];
        if spec["holderIdentity"] != self.identity.as_str() {
            let before = spec["leaseTransitions"].as_i64().unwrap_or_default();
            let taken = spec["holderIdentity"].as_str().is_some();
            spec["leaseTransitions"] = (before + i64::from(taken)).into();
            spec["holderIdentity"] = self.identity.as_str().into();
            spec["acquireTime"] = now.as_str().into();
        }
        spec["leaseDurationSeconds"] = self.duration.as_secs().max(1).into();
        spec["renewTime"] = now.into();
        lease
    }

    /// Runs the controllers of the cluster, as the leader.
    fn manage(&mut self) {
        let Some(manager) = &self.manager else { return };
        let Some(storage) = self.api_client.storage() else { return };
        // A candidate that held the lease for a moment may have taken over and ended again.
        if !self.managing.as_ref().is_some_and(|managing| managing.works_on(&storage)) {
            self.managing = Some(storage.manage(manager.clone()));
        }
    }

    /// Releases the lease, so that the next holder need not wait for its expiry.
    async fn release(mut self) {
        self.managing = None;
        let Some(mut lease) = self.held.take() else { return };
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        let (path, clock) = (format!("{LEASES}/{}", self.lease), self.clock.clone());
        tokio::select! {
            _ = self.api_client.call(Method::PUT, &path, Some(&lease)) => {}
            () = clock.sleep(RELEASE) => {}
        }
    }
}

/// Resolves when the process must stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, so that no signal can come.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn micro(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
