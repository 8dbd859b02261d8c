//! A simulated meta cluster: the parts that Deployments, StatefulSets and Services need to become control planes that answer.
//!
//! [`Meta`] runs next to any API server the parts of a real cluster: the controllers of workloads and Services, a scheduler, and the kubelets of
//! a few
//! nodes. The name of its image decides what a container does. Pods and Services have addresses of the loopback network and really listen there, so
//! that clients see no difference.
//!
//! Everything follows watches. A pod that runs has neither a thread nor a timer.
//!
//! Caveats: one [`Meta`] per API server, and no other controller of workloads beside it. The API server itself is responsible for garbage collection,
//! namespaces and service accounts; the embedded one does all of that. Volumes are in memory, and only the claim is created for them. Network
//! policies, resources and priorities are ignored.

mod budgets;
mod delays;
mod forward;
mod kubelet;
mod names;
mod net;
mod nodes;
mod process;
mod reconciler;
mod services;
mod view;
mod volumes;
mod workloads;

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use fleetwright_apiserver::Removal;
use fleetwright_apiserver::{HistoryLimits, User};
use fleetwright_kit::{Cache, Clock, Idle, Key, Operator, Options, Random, Settings, Source, Waker};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use budgets::Budgets;
use delays::Delays;
pub use delays::Step;
use kubelet::Kubelet;
use kubelet::files::Sources;
use kubelet::sandbox::PodSandboxes;
pub use net::service_network;
use nodes::{NodeReconciler, Nodes};
use process::{ApiServers, Buckets, ContainerRuntime, Etcds, Names, Programs, Removals, VersionDefects, kept_file};
pub use process::{Container, EmptyStart, OlderStart, Program, VersionDefect};
use reconciler::ReconcilerController;
use services::{ServiceListeners, Services};
use view::{
    CLAIM, ClaimView, ConfigMapVersion, MAP, MOUNTED, NAMESPACE, NODE, OWNER, PodView, SECRET, SecretVersion,
    SerializedObject, by_owner, mounted,
};
use volumes::{Claims, Volumes};
use workloads::deployment::Deployments;
use workloads::replica_set::ReplicaSets;
use workloads::stateful_set::StatefulSets;

/// The configuration of the meta cluster.
#[derive(Clone, Debug)]
pub struct MetaConfig {
    /// The number of nodes.
    pub nodes: usize,
    /// The version that their kubelets report.
    pub version: String,
    /// The time from the binding of a pod until its containers start.
    pub start: Duration,
    /// The time for which a terminating pod still answers.
    pub stop: Duration,
    /// The time until a pod sees a changed Secret or ConfigMap. A minute, with real kubelets.
    pub refresh: Duration,
    /// The first backoff before a container is restarted again; doubles up to `longest_backoff`.
    pub backoff: Duration,
    pub longest_backoff: Duration,
    /// The time without a heartbeat after which a node counts as lost.
    pub node_grace: Duration,
    /// The interval of lease renewals of controller-managers and schedulers. Two seconds in real ones;
    /// thousands of clusters need a longer one to leave CPU for the rest.
    pub lease: Duration,
    /// Whether controller-managers and schedulers call their API servers within the process.
    /// Thousands of clusters would need more sockets than a process may open.
    pub near: bool,
    /// The limits of the watch history in the store of each business cluster.
    pub history: HistoryLimits,
}

impl Default for MetaConfig {
    fn default() -> Self {
        Self {
            nodes: 3,
            version: "v1.37.1".to_owned(),
            start: Duration::from_millis(50),
            stop: Duration::from_millis(200),
            refresh: Duration::from_secs(1),
            backoff: Duration::from_secs(10),
            longest_backoff: Duration::from_secs(300),
            node_grace: Duration::from_secs(40),
            lease: Duration::from_secs(2),
            near: false,
            // Leases that are renewed every two seconds would otherwise fill the histories of thousands of servers.
            history: HistoryLimits {
                history_events: 1000,
                history_age: Duration::from_secs(60),
                history_bytes: 4 << 20,
            },
        }
    }
}

/// The numbers of running things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pods that have an address.
    pub pods: usize,
    /// Running containers.
    pub containers: usize,
    /// Listening sockets of Services.
    pub sockets: usize,
    /// API servers among the containers.
    pub api_servers: usize,
    /// Members of etcd among the containers.
    pub etcd_members: usize,
}

/// Why a meta cluster did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the simulated meta cluster: {0}")]
pub struct StartError(String);

/// A simulated meta cluster; dropping it stops it.
pub struct Meta {
    clock: Clock,
    nodes: Nodes,
    sandboxes: PodSandboxes,
    listeners: ServiceListeners,
    volumes: Volumes,
    defects: VersionDefects,
    programs: Programs,
    removals: Removals,
    delays: Delays,
    etcds: Etcds,
    apis: ApiServers,
    pods: Cache<PodView>,
    wake_pods: Waker,
    wake_nodes: Waker,
    idle: Idle,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meta({:?})", self.counts())
    }
}

impl Meta {
    /// Starts a meta cluster in the current runtime. `client` has all rights.
    ///
    /// # Errors
    /// The API server refuses the nodes, or no address is free.
    pub async fn start(client: Client, clock: Clock, config: MetaConfig) -> Result<Self, StartError> {
        let failed = |error: reconciler::ReconcileError| StartError(error.to_string());
        let nodes = Nodes::start(&client, config.nodes, &config.version).await.map_err(failed)?;
        let mut settings = Settings::new("fleetwright-sim-meta", client);
        settings.clock = clock.clone();
        let random = settings.random.clone();
        let mut operator = Operator::new(settings);
        let (sandboxes, listeners, volumes, defects) =
            (PodSandboxes::default(), ServiceListeners::default(), Volumes::default(), VersionDefects::default());
        let (wake_pods, wake_nodes) = (Waker::new(), Waker::new());
        let caches = Caches::new(&mut operator);
        let (etcds, apis, removals) = (Etcds::default(), ApiServers::default(), Removals::default());
        let (programs, delays) = (Programs::default(), Delays::default());
        let names = Names {
            pods: caches.pods.clone(),
            services: caches.services.clone(),
            listeners: listeners.clone(),
            sandboxes: sandboxes.clone(),
        };
        let runtime = Arc::new(ContainerRuntime {
            clock: clock.clone(),
            random: random.clone(),
            defects: defects.clone(),
            programs: programs.clone(),
            removals: removals.clone(),
            delays: delays.clone(),
            names,
            etcds: etcds.clone(),
            apis: apis.clone(),
            buckets: Buckets::default(),
            lease: config.lease,
            near: config.near,
            history: config.history.clone(),
        });
        add_workloads(&mut operator, &caches, &random, &delays);
        let services = Services {
            services: caches.services.clone(),
            slices: caches.slices.clone(),
            pods: caches.pods.clone(),
            nodes: nodes.clone(),
            listeners: listeners.clone(),
        };
        let known = caches.services.clone();
        let _ = operator
            .controller(ReconcilerController(services), options())
            .on(&caches.services, |change| vec![change.key.clone()])
            .on(&caches.pods, move |change| services::wake(&known, change));
        add_budgets(&mut operator, &caches);
        let claims = Claims { claims: caches.claims.clone(), volumes: volumes.clone() };
        let _ = operator
            .controller(ReconcilerController(claims), options())
            .on(&caches.claims, |change| vec![change.key.clone()]);
        let reconciler = NodeReconciler { cache: caches.nodes.clone(), nodes: nodes.clone(), grace: config.node_grace };
        let _ = operator
            .controller(ReconcilerController(reconciler), options())
            .on(&caches.nodes, |change| vec![change.key.clone()])
            .by(&wake_nodes);
        let sources = Sources {
            client: operator.client(),
            secrets: caches.secrets.clone(),
            maps: caches.maps.clone(),
            claims: caches.claims.clone(),
            volumes: volumes.clone(),
            known: Mutex::default(),
        };
        let kubelet = Kubelet {
            pods: caches.pods.clone(),
            node_cache: caches.nodes.clone(),
            nodes: nodes.clone(),
            sources,
            sandboxes: sandboxes.clone(),
            runtime,
            config,
            clock: clock.clone(),
            waker: wake_pods.clone(),
            pending_bindings: tokio::sync::Mutex::default(),
        };
        add_kubelet(&mut operator, &caches, kubelet, &wake_pods);
        let idle = operator.watch_idle();
        let (stop, mut stopping) = watch::channel(false);
        let task = tokio::spawn(async move {
            let stop = async move {
                // A dropped sender means stop as well.
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            if let Err(error) = operator.run(stop).await {
                tracing::error!(%error, "the simulated meta cluster stopped");
            }
        });
        let (pods, task) = (caches.pods, Some(task));
        Ok(Self {
            clock,
            nodes,
            sandboxes,
            listeners,
            volumes,
            defects,
            programs,
            removals,
            delays,
            etcds,
            apis,
            pods,
            wake_pods,
            wake_nodes,
            idle,
            stop,
            task,
        })
    }

    /// The numbers of running pods, containers and sockets.
    pub fn counts(&self) -> Counts {
        let (pods, containers) = self.sandboxes.count();
        Counts {
            pods,
            containers,
            sockets: self.listeners.listening(),
            api_servers: self.apis.count(),
            etcd_members: self.etcds.count(),
        }
    }

    /// Whether all work waits for the clock or for data on a socket.
    pub fn is_idle(&self) -> bool {
        self.idle.is_idle()
    }

    /// The cluster IP on which a Service listens.
    pub fn service_address(&self, namespace: &str, name: &str) -> Option<Ipv4Addr> {
        self.listeners.address(&Key::new(namespace, name))
    }

    /// A client of the API server in a pod, within the process and as an administrator; none if no API server runs there.
    pub fn client(&self, namespace: &str, pod: &str) -> Option<Client> {
        let ip = self.sandboxes.ip(&Key::new(namespace, pod))?;
        self.apis.client(ip, administrator())
    }

    /// A client of the API servers of a namespace, within the process and as an administrator: each request goes to one that is ready at that time.
    pub fn administrator(&self, namespace: &str) -> Client {
        let (pods, sandboxes, apis) = (self.pods.clone(), self.sandboxes.clone(), self.apis.clone());
        let namespace = namespace.to_owned();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let all = pods.by(NAMESPACE, &namespace);
            let ready = all.iter().filter(|(_, pod)| pod.ready.is_some());
            let one = ready.filter_map(|(key, _)| apis.client(sandboxes.ip(key)?, administrator())).next();
            async move {
                let one = one.ok_or("no API server is ready")?;
                Ok::<_, tower::BoxError>(one.send(request).await?)
            }
        });
        Client::new(service, "default")
    }

    /// Kills a container, or all containers of a pod; returns whether one ran.
    pub fn kill(&self, namespace: &str, pod: &str, container: Option<&str>) -> bool {
        let key = Key::new(namespace, pod);
        let killed = self.sandboxes.kill(&key, container);
        self.wake_pods.wake(key);
        killed
    }

    /// The names of the nodes.
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.names().iter().map(ToString::to_string).collect()
    }

    /// Stops the heartbeats of a node and everything on it; returns false if the node does not exist.
    pub fn lose_node(&self, node: &str) -> bool {
        let known = self.nodes.set_lost(node, Some(self.clock.now()));
        for key in self.sandboxes.on(node) {
            self.sandboxes.kill(&key, None);
        }
        self.wake_node(node);
        known
    }

    /// Brings a lost node back, with the pods that it had.
    pub fn return_node(&self, node: &str) -> bool {
        let known = self.nodes.set_lost(node, None);
        self.wake_node(node);
        known
    }

    fn wake_node(&self, node: &str) {
        self.wake_nodes.wake(Key::cluster(node));
        for (key, _) in self.pods.by(NODE, node) {
            self.wake_pods.wake(key);
        }
    }

    /// Empties the volume of a claim and ends the pods that use it, as a disk failure does; returns false if the claim does not exist.
    pub fn wipe(&self, namespace: &str, claim: &str) -> bool {
        let key = Key::new(namespace, claim);
        let Some(volume) = self.volumes.of(&key) else { return false };
        let users = self.pods.by(MOUNTED, &mounted(CLAIM, &key));
        // Wipe first: a container that ends may restart at once.
        volume.wipe();
        for (pod, _) in &users {
            self.sandboxes.kill(pod, None);
        }
        users.into_iter().for_each(|(pod, _)| self.wake_pods.wake(pod));
        true
    }

    /// The file of this name that a snapshot pod wrote to the volume of a claim.
    pub fn snapshot_file(&self, namespace: &str, claim: &str, file: &str) -> Option<Vec<u8>> {
        kept_file(&self.volumes.of(&Key::new(namespace, claim))?, file)
    }

    /// Declares a version of a component defective, or good again, for containers that are started from now on.
    pub fn declare(&self, component: &str, version: &str, bad: Option<VersionDefect>) {
        self.defects.set(component, version, bad);
    }

    /// Sets the program of containers of a component without a built-in one, for containers that are started from now on.
    pub fn program(&self, component: &str, program: Program) {
        self.programs.set(component, program);
    }

    /// Delays the next `times` of this step.
    pub fn delay(&self, step: Step, time: Duration, times: usize) {
        self.delays.set(step, time, times);
    }

    /// The number of times that this step was delayed since the last [`end_delays`](Self::end_delays).
    pub fn delayed(&self, step: Step) -> usize {
        self.delays.happened(step)
    }

    /// Removes all delays.
    pub fn end_delays(&self) {
        self.delays.clear();
    }

    /// Starts of etcd members on empty volumes, where the volume was [`wipe`](Self::wipe)d or the member had started before. Each is returned once.
    pub fn empty_starts(&self) -> Vec<EmptyStart> {
        self.etcds.empty_starts()
    }

    /// Starts of etcd members with an older minor than their data, which etcd does not support. Each is returned once.
    pub fn older_starts(&self) -> Vec<OlderStart> {
        self.etcds.older_starts()
    }

    /// Declares that a release of Kubernetes removes an API: API servers report its use since their start.
    pub fn declare_removal(&self, removal: Removal) {
        self.removals.add(removal);
    }

    /// Stops the meta cluster: all containers end at once, and no work is left when this returns. The API server's objects stay.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if let Some(task) = self.task.take() {
            // At worst the task panicked, and the panic was reported.
            let _ = task.await;
        }
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.sandboxes.clear();
        self.listeners.clear();
    }
}

fn administrator() -> User {
    User::new("fleetwright-admin", ["system:masters", "system:authenticated"])
}

/// The watched objects.
struct Caches {
    deployments: Cache<SerializedObject<Deployment>>,
    replica_sets: Cache<SerializedObject<ReplicaSet>>,
    stateful_sets: Cache<SerializedObject<StatefulSet>>,
    budgets: Cache<SerializedObject<PodDisruptionBudget>>,
    services: Cache<SerializedObject<Service>>,
    slices: Cache<SerializedObject<EndpointSlice>>,
    pods: Cache<PodView>,
    nodes: Cache<SerializedObject<Node>>,
    claims: Cache<ClaimView>,
    secrets: Cache<SecretVersion>,
    maps: Cache<ConfigMapVersion>,
}

impl Caches {
    fn new(operator: &mut Operator) -> Self {
        let client = operator.client();
        Self {
            deployments: operator.cache(Source::new(Api::all(client.clone()))),
            replica_sets: operator.cache(Source::new(Api::all(client.clone())).index(OWNER, by_owner)),
            stateful_sets: operator.cache(Source::new(Api::all(client.clone()))),
            budgets: operator.cache(
                Source::new(Api::all(client.clone())).index(NAMESPACE, |key, _| vec![key.namespace.to_string()]),
            ),
            services: operator.cache(
                Source::new(Api::all(client.clone())).index(NAMESPACE, |key, _| vec![key.namespace.to_string()]),
            ),
            slices: operator.cache(
                Source::new(Api::all(client.clone()))
                    .labels("endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"),
            ),
            pods: operator.cache(
                Source::new(Api::all(client.clone()))
                    .index(OWNER, |_, pod: &PodView| pod.owner.iter().map(|owner| owner.uid.to_string()).collect())
                    .index(NODE, |_, pod| vec![pod.node.as_deref().unwrap_or_default().to_owned()])
                    .index(NAMESPACE, |key, _| vec![key.namespace.to_string()])
                    .index(MOUNTED, PodView::mounted),
            ),
            nodes: operator.cache(Source::new(Api::all(client.clone()))),
            claims: operator.cache(Source::new(Api::all(client.clone()))),
            secrets: operator.cache(Source::new(Api::all(client.clone()))),
            maps: operator.cache(Source::new(Api::all(client))),
        }
    }
}

/// Controllers without periodic resync.
fn options() -> Options {
    Options {
        workers: 8,
        deep_check: None,
        backoff: Duration::from_millis(50),
        longest_backoff: Duration::from_secs(10),
        at_most_every: Duration::ZERO,
    }
}

fn add_workloads(operator: &mut Operator, caches: &Caches, random: &Random, delays: &Delays) {
    let deployments = Deployments {
        deployments: caches.deployments.clone(),
        sets: caches.replica_sets.clone(),
        pods: caches.pods.clone(),
    };
    let sets = caches.replica_sets.clone();
    let _ = operator
        .controller(ReconcilerController(deployments), options())
        .on(&caches.deployments, |change| vec![change.key.clone()])
        .on(&caches.replica_sets, |change| {
            let owners = [change.old, change.new].into_iter().flatten().filter_map(|set| set.owner.as_ref());
            owners.filter_map(|owner| owner.key::<Deployment>(change.key)).collect()
        })
        // With strategy Recreate, all old pods must be deleted before the first new one is created.
        .on(&caches.pods, move |change| {
            let gone = change.old.filter(|_| change.new.is_none());
            let set = gone.and_then(|pod| sets.get(&pod.owner.as_ref()?.key::<ReplicaSet>(change.key)?));
            set.and_then(|set| set.owner.as_ref()?.key::<Deployment>(change.key)).into_iter().collect()
        });
    let replica_sets =
        ReplicaSets { sets: caches.replica_sets.clone(), pods: caches.pods.clone(), random: random.clone() };
    let _ = operator
        .controller(ReconcilerController(replica_sets), options())
        .on(&caches.replica_sets, |change| vec![change.key.clone()])
        .on(&caches.pods, pod_owner::<ReplicaSet>);
    let stateful_sets = StatefulSets {
        sets: caches.stateful_sets.clone(),
        pods: caches.pods.clone(),
        claims: caches.claims.clone(),
        previous_templates: Mutex::new(HashMap::new()),
        delays: delays.clone(),
    };
    let _ = operator
        .controller(ReconcilerController(stateful_sets), options())
        .on(&caches.stateful_sets, |change| vec![change.key.clone()])
        .on(&caches.pods, pod_owner::<StatefulSet>);
}

fn add_budgets(operator: &mut Operator, caches: &Caches) {
    let budgets = Budgets {
        budgets: caches.budgets.clone(),
        pods: caches.pods.clone(),
        deployments: caches.deployments.clone(),
        replica_sets: caches.replica_sets.clone(),
        stateful_sets: caches.stateful_sets.clone(),
    };
    let of_namespace = caches.budgets.clone();
    let _ = operator
        .controller(ReconcilerController(budgets), options())
        .on(&caches.budgets, |change| vec![change.key.clone()])
        .on(&caches.pods, move |change| {
            let counts =
                |pod: Option<&Arc<PodView>>| pod.map(|pod| (pod.active(), pod.ready.is_some(), pod.labels.clone()));
            if counts(change.old) == counts(change.new) {
                return Vec::new();
            }
            of_namespace.by(NAMESPACE, &change.key.namespace).into_iter().map(|(key, _)| key).collect()
        });
}

fn pod_owner<K: kube::Resource<DynamicType = ()>>(change: &fleetwright_kit::Change<'_, PodView>) -> Vec<Key> {
    let pods = [change.old, change.new].into_iter().flatten();
    pods.filter_map(|pod| pod.owner.as_ref()?.key::<K>(change.key)).collect()
}

fn add_kubelet(operator: &mut Operator, caches: &Caches, kubelet: Kubelet, waker: &Waker) {
    let of = || caches.pods.clone();
    let (for_pods, for_secrets, for_maps, for_claims, for_nodes) = (of(), of(), of(), of(), of());
    let keys = |pods: Vec<(Key, Arc<PodView>)>| pods.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    let _ = operator
        .controller(ReconcilerController(kubelet), options())
        .on(&caches.pods, move |change| {
            // A deleted pod makes room: requeue the pods without a node.
            let waiting = change.new.is_none().then(|| for_pods.by(NODE, "")).into_iter().flatten();
            let waiting = waiting.filter(|(_, pod)| pod.unplaced.is_some()).map(|(key, _)| key);
            waiting.chain([change.key.clone()]).collect()
        })
        .on(&caches.secrets, move |change| keys(for_secrets.by(MOUNTED, &mounted(SECRET, change.key))))
        .on(&caches.maps, move |change| keys(for_maps.by(MOUNTED, &mounted(MAP, change.key))))
        .on(&caches.claims, move |change| keys(for_claims.by(MOUNTED, &mounted(CLAIM, change.key))))
        .on(&caches.nodes, move |change| {
            let mut woken = keys(for_nodes.by(NODE, ""));
            woken.extend(keys(for_nodes.by(NODE, &change.key.name)));
            woken
        })
        .by(waker);
}
