//! A container whose program is supplied by the user of the meta cluster: the real code, where it can run within the process.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fleetwright_kit::Key;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::config::Kubeconfig;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::super::kubelet::files::Files;
use super::super::kubelet::sandbox::ContainerHandle;
use super::etcd::host;
use super::names::Names;
use super::tls::file;
use super::{ContainerRuntime, Exit, Probe, Process, StartRequest};

/// The program of a container: the container ends with the future; [`Container::stopped`] is the request to end.
pub type Program = Arc<dyn Fn(Container) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Programs by the component in the name of the image. Cheap to clone.
#[derive(Clone, Default)]
pub(in super::super) struct Programs(Arc<Mutex<HashMap<String, Program>>>);

impl Programs {
    pub(in super::super) fn set(&self, component: &str, program: Program) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(component.to_owned(), program);
    }

    pub(super) fn get(&self, component: &str) -> Option<Program> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(component).cloned()
    }
}

/// A container, as seen by its program.
pub struct Container {
    pod: Key,
    ip: Ipv4Addr,
    arguments: Vec<String>,
    files: Arc<Files>,
    names: Names,
    ready: Arc<AtomicBool>,
    life: ContainerHandle,
    stopping: watch::Receiver<bool>,
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Container({})", self.pod)
    }
}

impl Container {
    /// The namespace of its pod.
    pub fn namespace(&self) -> &str {
        &self.pod.namespace
    }

    /// The address of its pod, on which the program may listen.
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// The arguments: the program's name and other words, then flags.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// A kubeconfig from the container's files, with the referenced files inlined.
    /// Names of the meta cluster, which only its DNS knows, are replaced by addresses.
    ///
    /// # Errors
    /// The file does not exist or cannot be read, or the address of its server is not known yet.
    pub fn kubeconfig(&self, path: &str) -> Result<Kubeconfig, String> {
        let text = file(&self.files, path)?;
        let wrong = |error: &dyn fmt::Display| format!("{path}: {error}");
        let mut config: Value = serde_saphyr::from_str(&text).map_err(|error| wrong(&error))?;
        for cluster in config["clusters"].as_array_mut().into_iter().flatten().map(|named| &mut named["cluster"]) {
            let server = cluster["server"].as_str().unwrap_or_default().to_owned();
            let name = host(&server);
            let ip = self.names.resolve(name).into_iter().next().ok_or(format!("lookup {name}: no such host"))?;
            cluster["server"] = server.replacen(name, &ip.to_string(), 1).into();
            cluster["tls-server-name"] = name.into();
            self.inline(cluster, "certificate-authority")?;
        }
        for user in config["users"].as_array_mut().into_iter().flatten().map(|named| &mut named["user"]) {
            self.inline(user, "client-certificate")?;
            self.inline(user, "client-key")?;
        }
        serde_json::from_value(config).map_err(|error| wrong(&error))
    }

    /// Replaces the path of a file by its content: outside of the container the path does not exist.
    fn inline(&self, at: &mut Value, name: &str) -> Result<(), String> {
        let Some(path) = at[name].as_str() else { return Ok(()) };
        let content = STANDARD.encode(file(&self.files, path)?);
        if let Some(at) = at.as_object_mut() {
            at.remove(name);
            at.insert(format!("{name}-data"), content.into());
        }
        Ok(())
    }

    /// Reports the container as ready.
    pub fn is_ready(&self) {
        self.ready.store(true, Ordering::SeqCst);
        self.life.changed();
    }

    /// Resolves when the container is asked to stop.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.stopping.clone();
        async move {
            // At worst the sender is dropped, and no further signal can come.
            let _ = stopping.wait_for(|stop| *stop).await;
        }
    }
}

struct ProgramProcess {
    ready: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    over: watch::Receiver<bool>,
    task: AbortHandle,
}

/// Starts a custom program.
pub(super) fn start(runtime: &ContainerRuntime, start: StartRequest, program: &Program) -> Arc<dyn Process> {
    let (stop, stopping) = watch::channel(false);
    let (done, over) = watch::channel(false);
    let (ready, life) = (Arc::<AtomicBool>::default(), start.life);
    let container = Container {
        pod: start.pod,
        ip: start.ip,
        arguments: start.args.line(),
        files: start.files,
        names: runtime.names.clone(),
        ready: ready.clone(),
        life: life.clone(),
        stopping,
    };
    let runs = program(container);
    let task = tokio::spawn(async move {
        let exit = match runs.await {
            Ok(()) => Exit { code: 0, message: String::new() },
            Err(why) => Exit::failed(format!("error: {why}")),
        };
        done.send_replace(true);
        life.end(exit);
    });
    Arc::new(ProgramProcess { ready, stop, over, task: task.abort_handle() })
}

impl Process for ProgramProcess {
    fn probe(&self, probe: &Probe) -> Result<(), String> {
        match self.ready.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(format!("{probe:?}: connect: connection refused")),
        }
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.stop.send_replace(true);
        let mut over = self.over.clone();
        async move {
            let _ = over.wait_for(|over| *over).await;
        }
        .boxed()
    }

    fn kill(&self) {
        self.task.abort();
    }
}
