//! A simulated meta cluster with the operator in it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, ClusterStatus, Operation, OperationPhase,
    OperationPolicy, Status, condition, names,
};
use fleetwright_apiserver::Config;
use fleetwright_clusters::Options;
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::rights::rule;
use fleetwright_kit::{Clock, Operator, Settings};
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_plan::cluster::networks::{MetaNetworks, UNKNOWN_NETWORKS};
use fleetwright_rig::rights::grant_in;
use fleetwright_sim::meta::{Meta, MetaConfig, service_network};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long something may take before a test gives up.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

pub const FLEET: &str = "fleet";

/// A meta cluster, and the operator that can be stopped and started.
pub struct TestFleet {
    pub meta: Meta,
    pub client: Client,
    /// What the operator counted since it was last started.
    pub metrics: Metrics,
    /// What the operator knows of the networks around it when it is started.
    pub networks: &'static MetaNetworks,
    operator: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    server: Target,
}

fn config() -> MetaConfig {
    MetaConfig {
        start: Duration::from_millis(10),
        stop: Duration::from_millis(50),
        refresh: Duration::from_millis(100),
        backoff: Duration::from_millis(100),
        longest_backoff: Duration::from_millis(400),
        ..MetaConfig::default()
    }
}

impl TestFleet {
    /// With the package versions `v1.36` and `v1.37`, and the operator at work.
    pub async fn start() -> Self {
        Self::on(ServerKind::Embedded).await
    }

    /// The same on that API server.
    pub async fn on(kind: ServerKind) -> Self {
        let server = match kind {
            ServerKind::Embedded => {
                let service_cidr = service_network().expect("a network is free");
                Target::embedded_with(Config { service_cidr, ..Config::default() }).await.unwrap()
            }
            ServerKind::Real => Target::real().await.unwrap(),
        };
        let client = server.admin();
        define(&client, &fleetwright_api::crds()).await.unwrap();
        let fleet: Namespace = serde_json::from_value(json!({ "metadata": { "name": FLEET } })).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &fleet).await.unwrap();
        let meta = Meta::start(client.clone(), Clock::system(), config()).await.unwrap();
        let mut world =
            Self { meta, client, metrics: Metrics::new(), networks: &UNKNOWN_NETWORKS, operator: None, server };
        for (name, kubernetes) in [("v1.36", "1.36.4"), ("v1.37", "1.37.1")] {
            let spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16");
            let package = ClusterPackageVersion::new(name, spec);
            world.packages().create(&PostParams::default(), &package).await.unwrap();
        }
        world.operator_starts();
        world
    }

    pub fn operator_starts(&mut self) {
        let mut settings = Settings::new("fleetwright", self.client.clone());
        settings.strict_budgets = true;
        let mut operator = Operator::new(settings);
        let options = Options { look_after: Duration::from_secs(2), networks: self.networks, ..Options::default() };
        fleetwright_clusters::add(&mut operator, FLEET, options);
        self.metrics = operator.metrics().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            operator.run(async { drop(stopped.await) }).await.unwrap();
        });
        self.operator = Some((stop, task));
    }

    /// What the operator counted under that name, with its label.
    pub fn counted(&self, name: &str) -> u64 {
        let page = self.metrics.encode();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{page}")).parse().unwrap()
    }

    pub async fn operator_stops(&mut self) {
        if let Some((stop, task)) = self.operator.take() {
            drop(stop);
            task.await.unwrap();
        }
    }

    /// Ends everything; what went well needs no logs of the API server.
    pub async fn stop(mut self) {
        self.operator_stops().await;
        self.meta.stop().await;
        self.server.stop(false).await;
    }

    /// Somebody who has the rights that were given to that name, and no others.
    pub async fn client_as(&self, user: &str) -> Client {
        self.server.client_as(user, &[]).await.unwrap()
    }

    pub fn packages(&self) -> Api<ClusterPackageVersion> {
        Api::namespaced(self.client.clone(), FLEET)
    }

    /// Lets Operations of that type pass.
    pub async fn allow(&self, operation: &str) {
        let policies: Api<OperationPolicy> = Api::namespaced(self.client.clone(), FLEET);
        let spec = serde_json::from_value(json!({ "operations": [operation], "max": 5 })).unwrap();
        policies.create(&PostParams::default(), &OperationPolicy::new("clusters", spec)).await.unwrap();
    }

    /// Lets that many Operations of a type pass at once, from now on.
    pub async fn limit(&self, operation: &str, max: u32) {
        let policies: Api<OperationPolicy> = Api::namespaced(self.client.clone(), FLEET);
        let policy = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy",
            "metadata": { "name": operation.to_lowercase() }, "spec": { "operations": [operation], "max": max },
        });
        let params = PatchParams::apply("test").force();
        policies.patch(&operation.to_lowercase(), &params, &Patch::Apply(policy)).await.unwrap();
    }

    /// Waits until the Operations of that type for `pay` have these phases, which are in alphabetical order.
    pub async fn operations(&self, type_: &str, phases: &[OperationPhase]) {
        let operations: Api<Operation> = Api::namespaced(self.client.clone(), FLEET);
        self.until(&format!("Operations {type_} are {phases:?}"), async || {
            let all = operations.list(&ListParams::default()).await.unwrap().items;
            let own: Vec<_> = all.iter().filter(|one| one.spec.type_ == type_).collect();
            let phase = |one: &&Operation| one.status.as_ref().map_or(OperationPhase::Pending, |status| status.phase);
            let targets = own.iter().all(|one| one.spec.target.name == "pay");
            let mut has: Vec<_> = own.iter().map(phase).collect();
            has.sort_by_key(|phase| format!("{phase:?}"));
            if has == phases && targets { Ok(()) } else { Err(format!("{own:#?}")) }
        })
        .await;
    }

    pub fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.client.clone(), FLEET)
    }

    /// Of the control plane of that cluster.
    pub fn api<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &format!("{FLEET}-{cluster}"))
    }

    /// One that may be deleted, with the defaults of a Cluster unless said otherwise.
    pub async fn create(&self, name: &str, change: impl FnOnce(&mut ClusterSpec)) {
        let mut spec = ClusterSpec::of("v1.36");
        spec.deletion_protection = false;
        change(&mut spec);
        self.clusters().create(&PostParams::default(), &Cluster::new(name, spec)).await.unwrap();
    }

    pub async fn change(&self, name: &str, patch: Value) {
        self.clusters().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn get(&self, name: &str) -> Cluster {
        let clusters = self.clusters();
        match clusters.get(name).await {
            // kube-apiserver closes a connection that was idle for long, perhaps in the moment in which it is used again.
            Err(kube::Error::Service(_) | kube::Error::HyperError(_)) => clusters.get(name).await.unwrap(),
            read => read.unwrap(),
        }
    }

    pub async fn status(&self, name: &str) -> ClusterStatus {
        self.get(name).await.status.unwrap_or_default()
    }

    pub async fn delete(&self, name: &str) {
        self.clusters().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the cluster is Ready, proven and at the package version that it refers to.
    pub async fn ready(&self, name: &str) -> ClusterStatus {
        self.until(&format!("{name} is Ready"), async || {
            let cluster = self.get(name).await;
            let status = cluster.status.unwrap_or_default();
            let there = status.observed_generation == cluster.metadata.generation
                && status.package_version.as_ref() == Some(&cluster.spec.package_version)
                && fleetwright_api::is_true(&status.conditions, names::READY)
                && status.waiting_for.is_none();
            if there { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    /// Waits until the cluster says of its present spec that it is paused.
    pub async fn paused(&self, name: &str) {
        self.until(&format!("{name} says that it is paused"), async || {
            let cluster = self.get(name).await;
            let status = cluster.status.unwrap_or_default();
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one)
                    if one.reason == names::reasons::PAUSED
                        && one.observed_generation == cluster.metadata.generation =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Waits until it holds.
    pub async fn until<T>(&self, what: &str, mut holds: impl AsyncFnMut() -> Result<T, String>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut pause = Duration::from_millis(20);
        loop {
            match holds().await {
                Ok(value) => return value,
                Err(why) if Instant::now() > deadline => panic!("not in time: {what}: {why}"),
                Err(_) => tokio::time::sleep(pause).await,
            }
            // What takes longer is asked for less often: each time costs about as much as a step of the operator.
            pause = (pause + Duration::from_millis(5)).min(Duration::from_millis(100));
        }
    }

    /// Waits until an event with that reason was written.
    pub async fn told(&self, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), FLEET);
        self.until(&format!("an event tells {reason}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let reasons: Vec<_> = all.into_iter().filter_map(|event| event.reason).collect();
            if reasons.iter().any(|one| one == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
        })
        .await;
    }

    /// Waits until the object is there and so.
    pub async fn seen<K>(&self, api: &Api<K>, name: &str, so: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        self.until(&format!("{} {name}", K::kind(&())), async || match api.get_opt(name).await.unwrap() {
            Some(object) if so(&object) => Ok(object),
            other => Err(format!("{other:?}").chars().take(2000).collect()),
        })
        .await
    }
}

/// Somebody who may write Clusters and nothing else.
pub async fn cluster_writer(world: &TestFleet) -> Client {
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
    let rule = rule(fleetwright_api::GROUP, &["clusters"], &verbs);
    grant_in(&world.client, FLEET, "eve", &[rule]).await.unwrap();
    world.client_as("eve").await
}

/// Waits until `Accepted` is false for that reason, with that part in its message; answers the message.
pub async fn not_accepted(world: &TestFleet, cluster: &str, reason: &str, part: &str) -> String {
    world
        .until(&format!("{cluster} says {reason} with {part}"), async || {
            let status = world.status(cluster).await;
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one) if one.status == Status::False && one.reason == reason && one.message.contains(part) => {
                    Ok(one.message.clone())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
}
