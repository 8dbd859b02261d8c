//! A simulated kube-apiserver: an embedded server on its pod's address, with the certificates of its files and the objects of its etcd.

mod etcd_connection;
mod interceptor;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use fleetwright_apiserver::{Body, Config, Handle, Interceptor, Server, Serving, StartError, Storage, User, Version};
use fleetwright_kit::Clock;
use fleetwright_pki::ServiceAccountKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::AbortHandle;

use super::super::kubelet::files::Files;
use super::super::kubelet::sandbox::ContainerHandle;
use super::etcd::cluster::Cluster;
use super::tls::{TlsKeyPair, file, roots};
use super::{Args, ContainerRuntime, Exit, Probe, Process, StartRequest};
use etcd_connection::{ConnectionError, EtcdConnection};
use interceptor::EtcdInterceptor;

/// How long a server waits for its etcd before it exits.
const STORAGE: Duration = Duration::from_secs(20);

/// The running API servers. Cheap to clone.
#[derive(Clone, Default)]
pub(in super::super) struct ApiServers(Arc<Mutex<HashMap<Ipv4Addr, Weak<ApiServer>>>>);

impl ApiServers {
    fn all(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Weak<ApiServer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, ip: Ipv4Addr) -> Option<Arc<ApiServer>> {
        self.all().get(&ip)?.upgrade()
    }

    /// The first of these addresses at which a server answers.
    pub(super) fn reach(&self, ips: impl IntoIterator<Item = Ipv4Addr>) -> Option<ApiServerRef> {
        let answers = |ip| self.at(ip).filter(|server| server.handle().is_some());
        ips.into_iter().find_map(answers).map(|server| ApiServerRef(Arc::downgrade(&server)))
    }

    /// A client of the server at an address, within the process.
    pub(in super::super) fn client(&self, ip: Ipv4Addr, user: User) -> Option<kube::Client> {
        self.at(ip)?.handle().as_ref().map(|handle| handle.client_as(user))
    }

    pub(in super::super) fn count(&self) -> usize {
        self.all().len()
    }
}

/// A reference to a server; it answers while the server runs.
pub(super) struct ApiServerRef(Weak<ApiServer>);

impl ApiServerRef {
    /// The store of its objects; none if the server stopped.
    pub(super) fn storage(&self) -> Option<Storage> {
        self.0.upgrade()?.handle().as_ref().map(|handle| handle.storage().clone())
    }

    /// Calls the server within the process; none if it stopped.
    pub(super) fn call(
        &self,
        user: &User,
        request: Request<Full<Bytes>>,
    ) -> Option<impl Future<Output = Response<Body>> + Send + use<>> {
        self.0.upgrade()?.handle().as_ref().map(|handle| handle.call_as(user.clone(), request))
    }
}

pub(super) struct ApiServer {
    ip: Ipv4Addr,
    port: u16,
    args: Args,
    files: Arc<Files>,
    etcd_connection: Arc<EtcdConnection>,
    interceptor: Arc<EtcdInterceptor>,
    apis: ApiServers,
    handle: Mutex<Option<Handle>>,
    task: OnceLock<AbortHandle>,
    over: OnceLock<()>,
}

/// The parts of a server that needs an etcd to start.
struct ServerParts {
    serving: Serving,
    key: ServiceAccountKey,
    token_keys: Vec<String>,
    version: Version,
    clock: Clock,
}

/// Starts a server. The process runs at once, and answers when its etcd does.
pub(super) async fn start(runtime: &ContainerRuntime, start: StartRequest) -> Result<Arc<dyn Process>, Exit> {
    let StartRequest { ip, version, args, files, life, bad, .. } = start;
    args.check_files(&files)?;
    let failed = Exit::command_failed::<String>;
    for (cert, key) in
        [("kubelet-client-certificate", "kubelet-client-key"), ("proxy-client-cert-file", "proxy-client-key-file")]
    {
        TlsKeyPair::of_flags(&files, &args, cert, key)?;
    }
    let urls: Vec<String> = args.get("etcd-servers").unwrap_or_default().split(',').map(str::to_owned).collect();
    if args.get("etcd-servers").is_none() {
        return Err(Exit::failed("Error: --etcd-servers must be specified"));
    }
    let issuer = args.get("service-account-issuer").filter(|issuer| !issuer.is_empty());
    let (Some(_), Some(signing)) = (issuer, args.get("service-account-signing-key-file")) else {
        return Err(Exit::failed(
            "Error: [service-account-issuer is a required flag, --service-account-signing-key-file and --service-account-issuer are required flags]",
        ));
    };
    let key = file(&files, signing)
        .and_then(|pem| ServiceAccountKey::from_pem(&pem).map_err(|error| error.to_string()))
        .map_err(|why| failed(format!("failed to parse service-account-signing-key-file: {why}")))?;
    let token_keys: Vec<String> = args
        .all("service-account-key-file")
        .map(|path| file(&files, path))
        .collect::<Result<_, _>>()
        .map_err(|why| failed(format!("failed to parse service-account-key-file: {why}")))?;
    let etcd_connection = Arc::new(EtcdConnection {
        urls,
        roots: args
            .get("etcd-cafile")
            .map(|path| file(&files, path).and_then(|pem| roots(&pem, runtime.clock.now())))
            .transpose()
            .map_err(failed)?,
        pair: RwLock::new(TlsKeyPair::of_flags(&files, &args, "etcd-certfile", "etcd-keyfile")?),
        names: runtime.names.clone(),
        etcds: runtime.etcds.clone(),
        bound: OnceLock::new(),
        seen: Mutex::default(),
    });
    let version = Version { emulated: args.get("emulated-version").and_then(emulated), git: version };
    let parts = ServerParts {
        serving: serving(&files, &args, &runtime.clock)?,
        key,
        token_keys,
        version,
        clock: runtime.clock.clone(),
    };
    let interceptor = Arc::new(EtcdInterceptor {
        etcd_connection: etcd_connection.clone(),
        clock: runtime.clock.clone(),
        bad,
        removals: runtime.removals.clone(),
    });
    let server = Arc::new(ApiServer {
        ip,
        port: args.get("secure-port").and_then(|port| port.parse().ok()).unwrap_or(6443),
        args,
        files,
        etcd_connection,
        interceptor,
        apis: runtime.apis.clone(),
        handle: Mutex::default(),
        task: OnceLock::new(),
        over: OnceLock::new(),
    });
    let task = tokio::spawn(run(Arc::downgrade(&server), parts, life)).abort_handle();
    let _ = server.task.set(task);
    runtime.apis.all().insert(ip, Arc::downgrade(&server));
    Ok(server)
}

fn serving(files: &Files, args: &Args, clock: &Clock) -> Result<Serving, Exit> {
    let Some(pair) = TlsKeyPair::of_flags(files, args, "tls-cert-file", "tls-private-key-file")? else {
        return Err(Exit::command_failed(
            "error creating self-signed certificates: mkdir /var/run/kubernetes: read-only file system",
        ));
    };
    let client_ca_pem = match args.get("client-ca-file") {
        Some(path) => file(files, path)
            .and_then(|pem| roots(&pem, clock.now()).map(|_| pem))
            .map_err(|why| Exit::command_failed(format!("unable to load client CA provider: {why}")))?,
        None => String::new(),
    };
    Ok(Serving { cert_pem: pair.cert_pem, key_pem: pair.key_pem, client_ca_pem })
}

/// Parses `1.36`, `kube=1.36` or `kube:1.36`.
fn emulated(flag: &str) -> Option<(u32, u32)> {
    let kube = flag.split(',').find(|one| !one.contains(['=', ':']) || one.starts_with("kube"))?;
    let number = kube.rsplit(['=', ':']).next()?;
    let (major, minor) = number.trim_start_matches('v').split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Waits for etcd, serves, and monitors the connection to etcd.
async fn run(server: Weak<ApiServer>, parts: ServerParts, life: ContainerHandle) {
    let clock = parts.clock.clone();
    let cluster = tokio::select! {
        found = find(&server, &clock) => match found {
            Some(cluster) => cluster,
            None => return,
        },
        () = clock.sleep(STORAGE) => {
            let why = server.upgrade().and_then(|server| server.etcd_connection.find(clock.now()).err());
            let why = why.map(|why| format!("{why:?}")).unwrap_or_default();
            return life.end(Exit::command_failed(format!("problem initializing API group \"\": context deadline exceeded: {why}")));
        }
    };
    if let Err(exit) = serve(&server, parts, &cluster).await {
        return life.end(exit);
    }
    life.changed();
    let mut changed = cluster.watch();
    let Some(mut member_events) = server.upgrade().map(|server| server.etcd_connection.member_events()) else { return };
    loop {
        let broken = match server.upgrade() {
            Some(server) => server.etcd_connection.state(clock.now()).err(),
            None => return,
        };
        if broken == Some(ConnectionError::WrongCluster) {
            return life.end(Exit::failed(
                "etcd cluster ID mismatch: the datastore holds other objects than those being served",
            ));
        }
        life.changed();
        // While etcd answers, only its own cluster can change that; otherwise any etcd that appears at the URLs may be the right one.
        tokio::select! {
            gone = changed.changed() => if gone.is_err() { return },
            () = member_events.next(), if broken.is_some() => {}
        }
    }
}

/// Waits until etcd answers; none when the server stopped.
async fn find(server: &Weak<ApiServer>, clock: &Clock) -> Option<Arc<Cluster>> {
    let mut member_events = server.upgrade()?.etcd_connection.member_events();
    loop {
        if let Ok((cluster, _)) = server.upgrade()?.etcd_connection.find(clock.now())
            && cluster.leader().is_some()
        {
            return Some(cluster);
        }
        member_events.next().await;
    }
}

async fn serve(server: &Weak<ApiServer>, parts: ServerParts, cluster: &Arc<Cluster>) -> Result<(), Exit> {
    let Some(server) = server.upgrade() else { return Ok(()) };
    let _ = server.etcd_connection.bound.set(cluster.clone());
    let clock = parts.clock.clone();
    let cidr = server.args.get("service-cluster-ip-range").unwrap_or("10.0.0.0/24");
    let config = Config {
        listen: Some(SocketAddr::new(server.ip.into(), server.port)),
        serving: Some(parts.serving),
        service_account_key: Some(Arc::new(parts.key)),
        token_keys: parts.token_keys,
        issuer: server.args.get("service-account-issuer").unwrap_or_default().to_owned(),
        storage: Some(cluster.storage().clone()),
        interceptor: Some(server.interceptor.clone()),
        version: Some(parts.version),
        service_cidr: cidr.split(',').next().unwrap_or_default().to_owned(),
        clock: fleetwright_apiserver::Clock::new(move || clock.now()),
        ..Config::default()
    };
    let handle = Server::start(config).await.map_err(|error| match error {
        StartError::KeyMismatch => Exit::command_failed("tls: private key does not match public key"),
        StartError::Listen { address, source } => {
            Exit::command_failed(format!("failed to create listener: failed to listen on {address}: {source}"))
        }
        error => Exit::command_failed(error.to_string()),
    })?;
    if server.over.get().is_none() {
        *server.handle() = Some(handle);
    }
    Ok(())
}

impl ApiServer {
    fn handle(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the server; the first caller gets the handle of what it served with.
    fn end(&self) -> Option<Handle> {
        self.over.set(()).ok()?;
        if let Some(task) = self.task.get() {
            task.abort();
        }
        self.apis.all().remove(&self.ip);
        self.handle().take()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl Process for ApiServer {
    fn probe(&self, probe: &Probe) -> Result<(), String> {
        let refused = || Err("connect: connection refused".to_owned());
        if self.handle().is_none() {
            return refused();
        }
        let path = match probe {
            Probe::Tcp(port) => return if *port == self.port { Ok(()) } else { refused() },
            Probe::Other => return Ok(()),
            Probe::Http { port, .. } if *port != self.port => return refused(),
            Probe::Http { https: false, .. } => return Err("HTTP probe failed with statuscode: 400".to_owned()),
            Probe::Http { path, .. } => path,
        };
        let (page, query) = path.split_once('?').unwrap_or((path, ""));
        let page = page.trim_matches('/');
        let (page, one) = page.split_once('/').map_or((page, None), |(page, one)| (page, Some(one)));
        if !matches!(page, "livez" | "readyz" | "healthz") {
            return Err("HTTP probe failed with statuscode: 404".to_owned());
        }
        let excluded = |name: &str| query.split('&').any(|pair| pair.strip_prefix("exclude=") == Some(name));
        let asked = |name: &str| one.is_none_or(|one| one == name) && !excluded(name);
        let checks = self.interceptor.checks();
        let failed = checks.iter().find(|check| !check.passed && (check.live || page == "readyz") && asked(check.name));
        match failed {
            None => Ok(()),
            Some(check) => Err(format!("HTTP probe failed with statuscode: 500: [-]{} failed", check.name)),
        }
    }

    /// Reloads the certificates of both sides and the client authorities, as the real server does; an invalid file changes nothing.
    fn refreshed(&self) {
        if let Ok(serving) = serving(&self.files, &self.args, &self.interceptor.clock)
            && let Some(handle) = &*self.handle()
            && let Err(error) = handle.set_serving(&serving)
        {
            tracing::debug!(%error, "cannot use the new certificates of an API server");
        }
        if let Ok(Some(pair)) = TlsKeyPair::of_flags(&self.files, &self.args, "etcd-certfile", "etcd-keyfile") {
            self.etcd_connection.set_pair(pair);
        }
    }

    fn drain(&self) {
        if let Some(handle) = &*self.handle() {
            handle.drain();
        }
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(handle) = self.end() {
                handle.stop().await;
            }
        }
        .boxed()
    }

    fn kill(&self) {
        drop(self.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_version_is_read_in_all_its_forms() {
        for flag in ["1.36", "v1.36", "kube=1.36", "kube:1.36.2", "etcd=3.6,kube=1.36"] {
            assert_eq!(emulated(flag), Some((1, 36)), "{flag}");
        }
        assert_eq!(emulated("new"), None);
    }
}
