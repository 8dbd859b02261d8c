//! The API server of a scenario, with a namespace for each run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_kit::Clock;
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_pki::{Authority, ServiceAccountKey};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex;

/// The servers on which scenarios run.
#[derive(Clone)]
pub enum TestServer {
    /// A fresh embedded server for each run, in the process, without sockets.
    InProcess,
    /// One server for all runs, with a fresh namespace for each.
    Shared(Arc<Target>, DefinedKinds),
}

/// The names of the kinds that runs defined on a server. Locked while a run defines some, so that another one does not use them too early.
#[derive(Clone, Default)]
pub struct DefinedKinds(Arc<Mutex<BTreeSet<String>>>);

impl DefinedKinds {
    /// Defines those that no run defined yet: each time it is more than a second of work for a real server.
    async fn define(&self, client: &Client, kinds: &[CustomResourceDefinition]) -> Result<()> {
        let mut defined = self.0.lock().await;
        let missing: Vec<_> = kinds.iter().filter(|kind| !defined.contains(&kind.name_any())).cloned().collect();
        define(client, &missing).await?;
        defined.extend(missing.iter().map(ResourceExt::name_any));
        Ok(())
    }
}

impl TestServer {
    /// Starts a shared server.
    ///
    /// # Errors
    /// The server does not start.
    pub async fn start(kind: ServerKind) -> Result<Self> {
        Ok(Arc::new(Target::start(kind).await?).into())
    }

    /// The name of the server in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::InProcess => "embedded",
            Self::Shared(target, _) if target.kind() == ServerKind::Real => "real",
            Self::Shared(..) => "embedded over TLS",
        }
    }

    /// The time of silence after which no further event is expected: the delay of a watch event on a busy machine. A value that is too short
    /// only makes the server look slow. In the process, no event is on its way.
    pub(crate) fn quiet(&self) -> Duration {
        match self {
            Self::InProcess => Duration::ZERO,
            Self::Shared(..) => Duration::from_millis(25),
        }
    }
}

impl From<Arc<Target>> for TestServer {
    fn from(target: Arc<Target>) -> Self {
        Self::Shared(target, DefinedKinds::default())
    }
}

/// An API server with a namespace for one run.
pub struct TestEnv {
    server: ServerAccess,
    namespace: String,
    admin: Client,
}

enum ServerAccess {
    InProcess(Handle),
    /// A kubeconfig, since clients belong to the runtime that made them.
    Remote(Box<Kubeconfig>),
}

static TEST_ENVS: AtomicUsize = AtomicUsize::new(1);

/// Embedded servers share their keys: key generation takes most of the time of a start.
fn config() -> Result<Config> {
    static KEYS: OnceLock<(Arc<Authority>, Arc<ServiceAccountKey>)> = OnceLock::new();
    let keys = match KEYS.get() {
        Some(keys) => keys,
        None => {
            let keys = (Arc::new(Authority::new("fleetwright-rig")?), Arc::new(ServiceAccountKey::generate()?));
            KEYS.get_or_init(|| keys)
        }
    };
    Ok(Config { authority: Some(keys.0.clone()), service_account_key: Some(keys.1.clone()), ..Config::default() })
}

impl TestEnv {
    /// A new environment, with these kinds installed.
    ///
    /// # Errors
    /// The server does not start or refuses the kinds.
    pub async fn new(test_server: &TestServer, kinds: &[CustomResourceDefinition]) -> Result<Self> {
        Self::with_time(test_server, kinds, None).await
    }

    /// Like [`new`](Self::new), but a server of the run's own uses this clock.
    /// If virtual time is ahead of the system's, the server would otherwise report wrong object ages.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn with_time(
        test_server: &TestServer,
        kinds: &[CustomResourceDefinition],
        clock: Option<&Clock>,
    ) -> Result<Self> {
        let number = TEST_ENVS.fetch_add(1, Ordering::Relaxed);
        let server = match test_server {
            TestServer::InProcess => {
                let mut config = config()?;
                if let Some(clock) = clock.cloned() {
                    config.clock = fleetwright_apiserver::Clock::new(move || clock.now());
                }
                ServerAccess::InProcess(Server::start(config).await?)
            }
            TestServer::Shared(target, _) => {
                ServerAccess::Remote(Box::new(Kubeconfig::from_yaml(&target.kubeconfig()?)?))
            }
        };
        let admin = server.client().await?;
        let env = Self { server, namespace: format!("rig-{}-{number}", std::process::id()), admin };
        let namespace: Namespace =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": env.namespace } }))?;
        Api::all(env.admin()).create(&Default::default(), &namespace).await.context("cannot make a namespace")?;
        match test_server {
            TestServer::InProcess => define(&env.admin, kinds).await?,
            TestServer::Shared(_, defined) => defined.define(&env.admin, kinds).await?,
        }
        Ok(env)
    }

    /// The namespace of this run.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client with all rights; its calls are neither recorded nor disturbed.
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// A client that belongs to the current runtime.
    ///
    /// # Errors
    /// The server's kubeconfig is invalid.
    pub async fn client(&self) -> Result<Client> {
        self.server.client().await
    }
}

impl ServerAccess {
    async fn client(&self) -> Result<Client> {
        match self {
            Self::InProcess(handle) => Ok(handle.client()),
            Self::Remote(kubeconfig) => client(kubeconfig.as_ref().clone()).await,
        }
    }
}

/// A client without retries.
pub(crate) async fn client(kubeconfig: Kubeconfig) -> Result<Client> {
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
