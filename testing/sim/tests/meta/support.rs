//! A meta cluster on an embedded API server.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_kit::Clock;
use fleetwright_sim::meta::{Meta, MetaConfig, service_network};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The time after which a wait fails the test.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

pub const NAMESPACE: &str = "fleet-pay-01";

pub struct MetaEnv {
    pub meta: Meta,
    pub client: Client,
    _server: Handle,
}

/// A configuration with short delays, so that tests are fast.
pub fn config() -> MetaConfig {
    MetaConfig {
        start: Duration::from_millis(10),
        stop: Duration::from_millis(50),
        refresh: Duration::from_millis(100),
        backoff: Duration::from_millis(100),
        longest_backoff: Duration::from_millis(400),
        node_grace: Duration::from_millis(200),
        lease: Duration::from_millis(100),
        ..MetaConfig::default()
    }
}

impl MetaEnv {
    pub async fn start() -> Self {
        Self::with(config()).await
    }

    pub async fn with(config: MetaConfig) -> Self {
        let service_cidr = service_network().expect("a network is free");
        let server = Server::start(Config { service_cidr, ..Config::default() }).await.unwrap();
        let client = server.client();
        let meta = Meta::start(client.clone(), Clock::system(), config).await.unwrap();
        let world = Self { meta, client, _server: server };
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.client.clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } })).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        world
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Applies an object, as the operator does.
    pub async fn apply<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Serialize + Clone + Debug,
    {
        let mut object = object;
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let params = PatchParams::apply("fleetwright-clusters").force();
        self.api::<K>().patch(&name, &params, &Patch::Apply(&object)).await.unwrap()
    }

    pub async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&Default::default()).await.unwrap().items
    }

    pub async fn pod(&self, name: &str) -> Option<Pod> {
        self.api::<Pod>().get_opt(name).await.unwrap()
    }

    /// Waits until `ask` returns a value.
    pub async fn until<T>(&self, what: &str, ask: impl AsyncFn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(found) = ask(self).await {
                return found;
            }
            if Instant::now() > deadline {
                let pods: Vec<String> = self.pods().await.iter().map(describe).collect();
                panic!("{what}: not within {WAIT_TIMEOUT:?}; {:?}; pods:\n{}", self.meta, pods.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_ready(&self, name: &str) -> Pod {
        self.until(&format!("{name} is ready"), async |world| world.pod(name).await.filter(is_ready)).await
    }
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

pub fn describe(pod: &Pod) -> String {
    let status = serde_json::to_value(&pod.status).unwrap_or_default();
    format!("{} {} {}", pod.name_any(), status["phase"], status["containerStatuses"])
}

/// The status of the first container of a pod.
pub fn container(pod: &Pod) -> Value {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
    serde_json::to_value(status).unwrap_or_default()
}
