//! A simulated member of an etcd cluster.

pub(super) mod cluster;
mod gateway;

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use fleetwright_apiserver::Storage;
use fleetwright_kit::{Clock, Random};
use futures::FutureExt;
use futures::future::{BoxFuture, select_all};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::super::delays::{Delays, Step};
use super::super::forward::listen;
use super::super::kubelet::files::Files;
use super::super::kubelet::sandbox::ContainerHandle;
use super::names::within;
use super::tls::{ServingTls, TlsKeyPair, file, roots};
use super::{Args, ContainerRuntime, Exit, Probe, Process, StartRequest, VersionDefect};
pub(super) use cluster::Data;
use cluster::{Cluster, JoinError, Minor, Restored, minor};

/// A client that does not finish its TLS handshake within this time is cut off.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// All running members, and all clusters that a volume holds. Cheap to clone.
#[derive(Clone)]
pub(in super::super) struct Etcds(Arc<Registry>);

struct Registry {
    living: Mutex<HashMap<Ipv4Addr, Weak<Etcd>>>,
    /// Clusters by the names and URLs of their initial members, so that members that start at the same time find each other. An entry is gone
    /// when no volume of the cluster is left.
    begun: Mutex<HashMap<String, Weak<Cluster>>>,
    /// The waiters for members, by the place where those appear: see [`place`].
    watchers: Mutex<HashMap<String, watch::Sender<()>>>,
    /// Starts on empty volumes that a test must know.
    empty_starts: Mutex<BTreeSet<EmptyStart>>,
    /// Starts with an etcd that is older than its data.
    older_starts: Mutex<BTreeSet<OlderStart>>,
}

/// A start of a member with an etcd of an older minor than its data or its cluster. The container ends at once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OlderStart {
    /// The namespace of its pod.
    pub namespace: String,
    /// Its name.
    pub member: String,
    /// The started version of etcd.
    pub version: String,
    /// The major and minor of the data.
    pub data: (u32, u32),
}

/// A start of a member on an empty volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EmptyStart {
    /// The namespace of its pod.
    pub namespace: String,
    /// Its name.
    pub member: String,
    /// The member id in etcd.
    pub id: u64,
    /// Whether the volume was wiped; otherwise it is new.
    pub wiped: bool,
    /// Whether the member with this id had started before: its log is missing, and the container ends at once.
    pub started_before: bool,
}

/// Notifications about members that start or stop at the watched places.
pub(super) struct MemberEvents(Vec<watch::Receiver<()>>);

impl MemberEvents {
    /// Waits for the next notification.
    pub(super) async fn next(&mut self) {
        let any = self.0.iter_mut().map(|one| one.changed().boxed());
        // The senders exist while somebody listens.
        let _ = select_all(any).await;
    }
}

/// The place of a member with this host name: the namespace of a Service, or an address.
fn place(host: &str) -> &str {
    within(host).and_then(|host| host.rsplit('.').next()).unwrap_or(host)
}

impl Default for Etcds {
    fn default() -> Self {
        let (living, begun, watchers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (empty_starts, older_starts) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Registry { living, begun, watchers, empty_starts, older_starts }))
    }
}

impl Etcds {
    fn living(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Weak<Etcd>>> {
        self.0.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running member at an address.
    pub(super) fn at(&self, ip: Ipv4Addr) -> Option<Arc<Etcd>> {
        self.living().get(&ip)?.upgrade()
    }

    /// Watches members behind these URLs, and no others: with thousands of clusters, each start would otherwise wake all waiting ones.
    pub(super) fn watch(&self, urls: &[String]) -> MemberEvents {
        let mut watchers = self.watchers();
        MemberEvents(
            urls.iter().map(|url| watchers.entry(place(host(url)).to_owned()).or_default().subscribe()).collect(),
        )
    }

    fn watchers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, etcd: &Etcd) {
        let mut watchers = self.watchers();
        for place in [&etcd.namespace, &etcd.ip.to_string()] {
            // No receiver is left.
            if watchers.get(place).is_some_and(|one| one.send(()).is_err()) {
                watchers.remove(place);
            }
        }
    }

    fn empty_starts_lock(&self) -> MutexGuard<'_, BTreeSet<EmptyStart>> {
        self.0.empty_starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts on empty volumes where the volume was wiped or the member had started before.
    pub(in super::super) fn empty_starts(&self) -> Vec<EmptyStart> {
        self.empty_starts_lock().iter().cloned().collect()
    }

    /// Starts with an etcd that is older than the data.
    pub(in super::super) fn older_starts(&self) -> Vec<OlderStart> {
        self.0.older_starts.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The number of running members.
    pub(in super::super) fn count(&self) -> usize {
        self.living().len()
    }

    fn member_started(&self, etcd: &Arc<Etcd>) {
        self.living().insert(etcd.ip, Arc::downgrade(etcd));
        self.notify(etcd);
    }

    fn member_stopped(&self, etcd: &Etcd) {
        self.living().remove(&etcd.ip);
        self.notify(etcd);
    }

    /// The cluster with these initial members; created with this data of this minor if it does not exist.
    pub(super) fn begin(
        &self,
        words: &str,
        members: &[(String, String)],
        random: &Random,
        data: Minor,
        storage: impl FnOnce() -> Storage,
    ) -> Arc<Cluster> {
        let mut begun = self.0.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = begun.get(words).and_then(Weak::upgrade) {
            return known;
        }
        if begun.len().is_power_of_two() {
            begun.retain(|_, cluster| cluster.strong_count() > 0);
        }
        let cluster = Cluster::new(members, storage(), data, random.clone());
        begun.insert(words.to_owned(), Arc::downgrade(&cluster));
        cluster
    }
}

pub(super) struct Etcd {
    pub(super) cluster: Arc<Cluster>,
    pub(super) member: u64,
    /// The version, without the `v` of the image's tag.
    pub(super) version: String,
    ip: Ipv4Addr,
    namespace: String,
    port: u16,
    metrics: Option<u16>,
    /// The TLS configuration; none for plain HTTP.
    serves: Option<RwLock<ServingTls>>,
    tls: RwLock<Option<TlsAcceptor>>,
    args: Args,
    files: Arc<Files>,
    etcds: Etcds,
    clock: Clock,
    delays: Delays,
    bad: Option<VersionDefect>,
    tasks: Mutex<JoinSet<()>>,
    over: OnceLock<()>,
}

pub(super) async fn start(runtime: &ContainerRuntime, start: StartRequest) -> Result<Arc<dyn Process>, Exit> {
    let StartRequest { pod, ip, version, args, files, life, bad, .. } = start;
    let serves = serves(&files, &args, runtime.clock.now())?;
    args.check_files(&files)?;
    TlsKeyPair::of_flags(&files, &args, "peer-cert-file", "peer-key-file")?;
    let port = port(args.get("listen-client-urls").unwrap_or("http://localhost:2379"));
    let metrics = args.get("listen-metrics-urls").map(self::port);
    let (cluster, member) = open(runtime, &args, &files, &pod.namespace, &version)?;
    let name = args.get("name").unwrap_or("default").to_owned();
    let urls: Vec<String> =
        args.get("advertise-client-urls").unwrap_or("http://localhost:2379").split(',').map(str::to_owned).collect();
    let etcd = Arc::new(Etcd {
        cluster: cluster.clone(),
        member,
        version: version.trim_start_matches('v').to_owned(),
        ip,
        namespace: pod.namespace.to_string(),
        port,
        metrics,
        tls: RwLock::new(acceptor(serves.as_ref(), &runtime.clock)?),
        serves: serves.map(RwLock::new),
        args,
        files,
        etcds: runtime.etcds.clone(),
        clock: runtime.clock.clone(),
        delays: runtime.delays.clone(),
        bad,
        tasks: Mutex::default(),
        over: OnceLock::new(),
    });
    for (port, secure) in [(Some(port), true), (metrics, false)] {
        let Some(port) = port else { continue };
        let at = SocketAddr::new(ip.into(), port);
        let listener = listen(at).map_err(|error| Exit::failed(format!("listen tcp {at}: bind: {error}")))?;
        etcd.tasks().spawn(serve(Arc::downgrade(&etcd), listener, secure));
    }
    etcd.tasks().spawn(follow(Arc::downgrade(&etcd), cluster.watch(), life));
    cluster.join(member, &name, urls, minor(&version));
    runtime.etcds.member_started(&etcd);
    Ok(etcd)
}

/// The member's cluster and its id there: from its volume, or by its entry in the member list.
fn open(
    runtime: &ContainerRuntime,
    args: &Args,
    files: &Files,
    namespace: &str,
    version: &str,
) -> Result<(Arc<Cluster>, u64), Exit> {
    let name = args.get("name").unwrap_or("default");
    let folder = args.get("data-dir").map_or_else(|| format!("{name}.etcd"), str::to_owned);
    let Some(volume) = files.volume(&folder) else {
        return Err(Exit::failed(format!("cannot access data directory: mkdir {folder}: read-only file system")));
    };
    let restored = volume.read::<Restored>().and_then(|restored| restored.get(&folder));
    let is_older = |cluster: &Cluster| {
        let (version, data) = (version.trim_start_matches('v').to_owned(), cluster.data());
        let older = minor(&version) < data;
        if older {
            let (namespace, member) = (namespace.to_owned(), name.to_owned());
            let start = OlderStart { namespace, member, version, data };
            runtime.etcds.0.older_starts.lock().unwrap_or_else(PoisonError::into_inner).insert(start);
        }
        older
    };
    if let Some(data) = restored.or_else(|| volume.read::<Data>()) {
        if is_older(&data.cluster) {
            let (major, minor) = data.cluster.data();
            return Err(Exit::failed(format!("discovery failed: version \"{major}.{minor}.0\" is not supported")));
        }
        if !data.cluster.has(data.member) {
            return Err(Exit::failed(
                "the member has been permanently removed from the cluster; the data-dir used by this member must be removed",
            ));
        }
        return Ok((data.cluster.clone(), data.member));
    }
    let words = args.get("initial-cluster").unwrap_or_default();
    let members = members(words);
    let Some((_, own)) = members.iter().find(|(member, _)| member == name) else {
        return Err(Exit::failed(format!("couldn't find local name {name:?} in the initial cluster configuration")));
    };
    let existing = args.get("initial-cluster-state") == Some("existing");
    let cluster = if existing {
        let peers = members.iter().filter(|(member, _)| member != name);
        let mut found =
            peers.flat_map(|(_, url)| runtime.names.resolve(host(url))).filter_map(|ip| runtime.etcds.at(ip));
        let cluster = found.next().map(|etcd| etcd.cluster.clone()).ok_or_else(|| {
            let told =
                "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs";
            Exit::failed(told)
        })?;
        if is_older(&cluster) {
            return Err(Exit::failed("incompatible with current running cluster"));
        }
        if cluster.members().len() != members.len() {
            return Err(Exit::failed("error validating peerURLs: member count is unequal"));
        }
        cluster
    } else {
        let token = args.get("initial-cluster-token").unwrap_or("etcd-cluster");
        let empty = || Storage::prepared(runtime.history.clone());
        let (words, data) = (format!("{namespace} {token} {members:?}"), Minor::default());
        runtime.etcds.begin(&words, &members, &runtime.random, data, empty)
    };
    let place = cluster.claim_member(own);
    let (id, started_before) = match &place {
        Ok(id) => (Some(*id), false),
        Err(JoinError::LogLost(id)) => (Some(*id), true),
        Err(JoinError::Unknown) => (None, false),
    };
    let wiped = volume.wiped();
    if let Some(id) = id.filter(|_| wiped || started_before) {
        let (namespace, member) = (namespace.to_owned(), name.to_owned());
        runtime.etcds.empty_starts_lock().insert(EmptyStart { namespace, member, id, wiped, started_before });
    }
    let member = place.map_err(|why| match (why, existing) {
        (JoinError::Unknown, _) => Exit::failed("error validating peerURLs: unmatched member while checking PeerURLs"),
        (JoinError::LogLost(id), false) => Exit::failed(format!("member {id:x} has already been bootstrapped")),
        (JoinError::LogLost(_), true) => Exit {
            code: 2,
            message: format!(
                "panic: tocommit({}) is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?",
                cluster.storage().revision()
            ),
        },
    })?;
    volume.write(Arc::new(Data { cluster: cluster.clone(), member }));
    Ok((cluster, member))
}

/// Parses the members that a flag names.
pub(super) fn members(words: &str) -> Vec<(String, String)> {
    let pairs = words.split(',').filter_map(|one| one.split_once('='));
    let mut members: Vec<_> = pairs.map(|(name, url)| (name.to_owned(), url.to_owned())).collect();
    members.sort();
    members
}

fn serves(files: &Files, args: &Args, now: Timestamp) -> Result<Option<ServingTls>, Exit> {
    let Some(pair) = TlsKeyPair::of_flags(files, args, "cert-file", "key-file")? else { return Ok(None) };
    let clients = match args.get("trusted-ca-file") {
        Some(path) if args.get("client-cert-auth") == Some("true") => {
            Some(file(files, path).and_then(|pem| roots(&pem, now)).map_err(Exit::command_failed)?)
        }
        _ => None,
    };
    Ok(Some(ServingTls { pair, clients }))
}

fn acceptor(serves: Option<&ServingTls>, clock: &Clock) -> Result<Option<TlsAcceptor>, Exit> {
    let config = serves.map(|serves| serves.config(clock).map_err(Exit::command_failed)).transpose()?;
    Ok(config.map(|config| TlsAcceptor::from(Arc::new(config))))
}

pub(super) fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// The port of a URL, or of the first of several.
pub(super) fn port(urls: &str) -> u16 {
    let first = urls.split(',').next().unwrap_or_default();
    let digits = first.trim_end_matches('/').rsplit(':').next().unwrap_or_default();
    digits.parse().unwrap_or(2379)
}

impl Etcd {
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of the health page; none for other pages.
    fn health(&self, path: &str) -> Option<Result<(), String>> {
        let serializable = match path {
            "/livez" => true,
            "/readyz" | "/health" => false,
            _ => return None,
        };
        Some(if self.bad == Some(VersionDefect::NeverReady) && !serializable {
            Err("this version was declared bad".to_owned())
        } else if path == "/readyz" && self.cluster.learns(self.member) {
            Err("[-]non_learner failed".to_owned())
        } else if serializable || self.cluster.leader().is_some() {
            Ok(())
        } else {
            Err("RAFT NO LEADER".to_owned())
        })
    }

    /// Waits, if the version is declared slow.
    async fn sleep_if_slow(&self) {
        if let Some(VersionDefect::Slow(time)) = self.bad {
            self.clock.sleep(time).await;
        }
    }

    /// Waits, if a test delays this step.
    async fn delay(&self, step: Option<Step>) {
        if let Some(time) = step.and_then(|step| self.delays.take(step)) {
            self.clock.sleep(time).await;
        }
    }

    /// The TLS configuration of this port; none for plain HTTP.
    pub(super) fn serves(&self, port: u16) -> Result<Option<ServingTls>, String> {
        if port != self.port {
            return Err("connect: connection refused".to_owned());
        }
        Ok(self.serves.as_ref().map(|serves| serves.read().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Unregisters the member after any kind of end.
    fn end(&self) {
        if self.over.set(()).is_ok() {
            self.tasks().abort_all();
            self.etcds.member_stopped(self);
            self.cluster.leave(self.member);
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process for Etcd {
    fn probe(&self, probe: &Probe) -> Result<(), String> {
        match probe {
            Probe::Tcp(port) if *port == self.port || Some(*port) == self.metrics => Ok(()),
            Probe::Http { https, port, path } => {
                let plain = Some(*port) == self.metrics || self.serves.is_none();
                if *port != self.port && Some(*port) != self.metrics {
                    return Err("connect: connection refused".to_owned());
                }
                if *https == plain {
                    return Err("server gave HTTP response to HTTPS client, or the other way round".to_owned());
                }
                self.health(path).unwrap_or_else(|| Err("HTTP probe failed with statuscode: 404".to_owned()))
            }
            Probe::Tcp(_) => Err("connect: connection refused".to_owned()),
            Probe::Other => Ok(()),
        }
    }

    /// etcd reloads its certificates for each connection; it loads the trusted authorities only at its start.
    fn refreshed(&self) {
        let (Some(serves), Some(cert), Some(key)) =
            (&self.serves, self.args.get("cert-file"), self.args.get("key-file"))
        else {
            return;
        };
        let Ok(pair) = TlsKeyPair::read(&self.files, cert, key) else { return };
        let now = {
            let mut serves = serves.write().unwrap_or_else(PoisonError::into_inner);
            serves.pair = pair;
            serves.clone()
        };
        if let Ok(acceptor) = acceptor(Some(&now), &self.clock) {
            *self.tls.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        }
        self.cluster.touch();
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async { self.end() }.boxed()
    }

    fn kill(&self) {
        self.end();
    }
}

/// Reports to the kubelet each change of a probe's answer; ends the member after it was removed from the cluster.
async fn follow(etcd: Weak<Etcd>, mut changed: watch::Receiver<u64>, life: ContainerHandle) {
    while changed.changed().await.is_ok() {
        let Some(etcd) = etcd.upgrade() else { return };
        if !etcd.cluster.has(etcd.member) {
            drop(etcd);
            return life
                .end(Exit { code: 0, message: "the local etcd member has been removed from the cluster".to_owned() });
        }
        life.changed();
    }
}

async fn serve(etcd: Weak<Etcd>, listener: TcpListener, secure: bool) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Some(etcd) = etcd.upgrade() else { return };
                    let acceptor = etcd.tls.read().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| secure);
                    connections.spawn(connection(Arc::downgrade(&etcd), stream, acceptor));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(etcd: Weak<Etcd>, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let etcd = etcd.upgrade();
        async move {
            // A member that ended answers nothing.
            let etcd = etcd.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionReset))?;
            Ok::<_, std::io::Error>(gateway::answer(etcd, request).await)
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let ended = match acceptor {
        None => builder.serve_connection(TokioIo::new(stream), service).await,
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => builder.serve_connection(TokioIo::new(stream), service).await,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_awaited_where_its_name_leads_to() {
        for (host, at) in [
            ("etcd.a-b.svc", "a-b"),
            ("etcd-0.etcd.a-b.svc", "a-b"),
            ("etcd-0.etcd.a-b.svc.cluster.local.", "a-b"),
            ("127.64.0.1", "127.64.0.1"),
            ("elsewhere.example", "elsewhere.example"),
        ] {
            assert_eq!(place(host), at, "{host}");
        }
    }
}
