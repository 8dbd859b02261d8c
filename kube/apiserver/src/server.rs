//! One API server: its start and its stop.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use fleetwright_pki::{Authority, Identity, Leaf, ServiceAccountKey, kubeconfig};
use fleetwright_rbac::User;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::auth::{Authorizer, TokenIssuer};
use crate::body::Body;
use crate::config::{Config, Serving, StartError};
use crate::handlers::{self, Peer};
use crate::in_flight::InFlightLimiter;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::state::Inner;
use crate::storage::Storage;
use crate::tls::{self, Tls};
use crate::{bootstrap, controllers, local, transport};

/// The time that running requests have when the server stops.
const GRACE: Duration = Duration::from_secs(5);
/// The time that aborted tasks have to end.
const ABORT: Duration = Duration::from_secs(1);

/// Starts servers.
pub struct Server;

impl Server {
    /// Starts a server.
    ///
    /// Expected flow: certificates, listener, bootstrap objects, controllers, then requests. When this returns the server
    /// answers.
    ///
    /// # Errors
    /// The address is in use, keys cannot be created, or a setting is invalid. Nothing is left running then.
    pub async fn start(config: Config) -> Result<Handle, StartError> {
        let certificates = |error: fleetwright_pki::Error| StartError::Certificates(error.to_string());
        let authority = match (config.authority, &config.serving) {
            (Some(authority), _) => Some(authority),
            (None, Some(_)) => None,
            (None, None) => Some(Arc::new(Authority::new("fleetwright-ca").map_err(certificates)?)),
        };
        let key = match config.service_account_key {
            Some(key) => key,
            None => Arc::new(ServiceAccountKey::generate().map_err(certificates)?),
        };
        let listener = match config.listen {
            Some(address) => Some(
                tokio::net::TcpListener::bind(address)
                    .await
                    .map_err(|source| StartError::Listen { address, source })?,
            ),
            None => None,
        };
        let address = match &listener {
            Some(listener) => Some(listener.local_addr().map_err(|source| StartError::Listen {
                address: config.listen.unwrap_or(([0, 0, 0, 0], 0).into()),
                source,
            })?),
            None => None,
        };
        let storage = config.storage.unwrap_or_else(|| Storage::new(config.history));
        let networks = storage
            .networks(&config.service_cidr)
            .map_err(|message| StartError::Config { field: "service_cidr", message })?;
        let tokens = TokenIssuer::new(&config.issuer, vec![config.issuer.clone()], &key.private_pem)
            .and_then(|tokens| tokens.accepting(&config.token_keys))
            .map_err(StartError::Certificates)?;
        let ca_pem = match (&authority, &config.serving) {
            (Some(authority), _) => authority.cert_pem().to_owned(),
            (None, serving) => serving.as_ref().map(|serving| serving.client_ca_pem.clone()).unwrap_or_default(),
        };
        let tls = Tls::new(config.clock.clone());
        match (&config.serving, &authority, address) {
            (Some(serving), _, _) => tls.set(serving)?,
            (None, Some(authority), Some(address)) => {
                let mut names = config.names;
                names.push(address.ip().to_string());
                tls.set(&tls::own(authority, &names, networks.api_address())?)?;
            }
            _ => {}
        }
        let inner = Arc::new(Inner {
            store: storage.store().clone(),
            storage,
            interceptor: config.interceptor,
            version: config.version,
            registry: Registry::default(),
            authorizer: Authorizer::default(),
            tokens,
            authority,
            kubelet_signer: OnceLock::new(),
            ca_pem,
            tls,
            metrics: Metrics::default(),
            documents: Default::default(),
            networks,
            clock: config.clock,
            body_limit: config.body_limit,
            in_flight_limiter: InFlightLimiter::new(config.in_flight),
            connections: config.connections,
            stop: watch::Sender::new(false),
            drain: watch::Sender::new(false),
        });
        let new = inner.storage.is_new();
        bootstrap::run(&inner);
        let mut tasks = controllers::spawn(&inner);
        if new {
            inner.storage.seed_common_objects();
        }
        if let Some(listener) = listener {
            tasks.spawn(transport::serve(inner.clone(), listener));
        }
        Ok(Handle { inner, address, tasks })
    }
}

/// A running server. Dropping it stops it at once; [`Handle::stop`] stops it in order.
pub struct Handle {
    inner: Arc<Inner>,
    address: Option<SocketAddr>,
    tasks: JoinSet<()>,
}

impl Handle {
    /// The address that the server listens on.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The URL of the server; without a listener, a name that only its own clients know.
    pub fn url(&self) -> String {
        match self.address {
            Some(address) => format!("https://{address}"),
            None => local::URL.into(),
        }
    }

    /// The CA certificate for clients.
    pub fn ca_pem(&self) -> &str {
        &self.inner.ca_pem
    }

    /// Replaces the certificates for new connections.
    ///
    /// # Errors
    /// They cannot be used; then nothing changes.
    pub fn set_serving(&self, serving: &Serving) -> Result<(), StartError> {
        self.inner.tls.set(serving)
    }

    /// The storage of the objects.
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// A kubeconfig with a client certificate for this user.
    ///
    /// # Errors
    /// The certificate cannot be created, or the server has no authority.
    pub fn kubeconfig(&self, user: &str, groups: &[&str]) -> Result<String, StartError> {
        let error = |error: fleetwright_pki::Error| StartError::Certificates(error.to_string());
        let none = || StartError::Certificates("the server has no authority of its own that could sign one".into());
        let pair = self
            .inner
            .authority
            .as_ref()
            .ok_or_else(none)?
            .issue(Leaf::client(user, groups.iter().copied()))
            .map_err(error)?;
        let identity = Identity::Certificate { cert_pem: &pair.cert_pem, key_pem: &pair.key_pem };
        Ok(kubeconfig("fleetwright", &self.url(), self.ca_pem(), identity))
    }

    /// The administrator's kubeconfig.
    ///
    /// # Errors
    /// The certificate cannot be created.
    pub fn admin_kubeconfig(&self) -> Result<String, StartError> {
        self.kubeconfig("fleetwright-admin", &["system:masters"])
    }

    /// A client that calls the server within the process, as the administrator.
    pub fn client(&self) -> kube::Client {
        self.client_as(User::new("fleetwright-admin", ["system:masters", "system:authenticated"]))
    }

    /// A client that calls the server within the process, as this user.
    pub fn client_as(&self, user: User) -> kube::Client {
        local::client(self.inner.clone(), user)
    }

    /// Calls the server within the process, as this user, without a client.
    pub fn call_as<B>(
        &self,
        user: User,
        request: http::Request<B>,
    ) -> impl Future<Output = http::Response<Body>> + Send + use<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        handlers::serve(self.inner.clone(), request, Peer::Local(user))
    }

    /// Compacts the history of watches and lists up to now, as etcd does.
    pub fn compact(&self) {
        self.inner.store.compact(self.inner.store.revision());
    }

    /// Announces a stop: the server answers as before, and asks clients with every answer to reconnect, so that their next request reaches
    /// another server.
    pub fn drain(&self) {
        self.inner.drain.send_replace(true);
    }

    /// Stops the server: watches end, running requests are answered, and all tasks have ended when this returns. A task that does not end within
    /// five seconds is aborted; one that does not end then, because it never yields, is left behind.
    pub async fn stop(mut self) {
        self.drain();
        let _ = self.inner.stop.send(true);
        if !self.ended_within(GRACE).await {
            self.tasks.abort_all();
            if !self.ended_within(ABORT).await {
                tracing::error!("a task of the server does not yield and was left behind when the server stopped");
            }
        }
    }

    async fn ended_within(&mut self, patience: Duration) -> bool {
        tokio::time::timeout(patience, async { while self.tasks.join_next().await.is_some() {} }).await.is_ok()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.inner.stop.send(true);
    }
}
