//! The API server of a scenario, with a namespace for each run.

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
use kube::{Api, Client};

/// The servers on which scenarios run.
#[derive(Clone)]
pub enum TestServer {
    /// A fresh embedded server for each run, in the process, without sockets.
    InProcess,
    /// One server for all runs, with a fresh namespace for each.
    Shared(Arc<Target>),
}

impl TestServer {
    /// Starts a shared server.
    ///
    /// # Errors
    /// The server does not start.
    pub async fn start(kind: ServerKind) -> Result<Self> {
        Ok(Self::Shared(Arc::new(Target::start(kind).await?)))
    }

    /// The name of the server in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::InProcess => "embedded",
            Self::Shared(target) if target.kind() == ServerKind::Real => "real",
            Self::Shared(_) => "embedded over TLS",
        }
    }

    /// The time of silence after which no further event is expected: the delay of a watch event on a busy machine. A value that is too short
    /// only makes the server look slow. In the process, no event is on its way.
    pub(crate) fn quiet(&self) -> Duration {
        match self {
            Self::InProcess => Duration::ZERO,
            Self::Shared(_) => Duration::from_millis(25),
        }
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
            TestServer::Shared(target) => ServerAccess::Remote(Box::new(Kubeconfig::from_yaml(&target.kubeconfig()?)?)),
        };
        let admin = server.client().await?;
        let env = Self { server, namespace: format!("rig-{}-{number}", std::process::id()), admin };
        let namespace: Namespace =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": env.namespace } }))?;
        Api::all(env.admin()).create(&Default::default(), &namespace).await.context("cannot make a namespace")?;
        define(&env.admin, kinds).await?;
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
