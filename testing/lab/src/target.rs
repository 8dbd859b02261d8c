use std::fmt;

use anyhow::Result;
use fleetwright_apiserver::{Config, Handle};
use fleetwright_pki::{Identity, kubeconfig};
use kube::Client;

use crate::ControlPlane;
use crate::plane::client;

/// The two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// The embedded server in this process, reached over TLS like any other.
    Embedded,
    /// kube-apiserver on etcd.
    Real,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embedded => "embedded",
            Self::Real => "real",
        })
    }
}

/// The controllers of kube-controller-manager whose work the embedded server does as well.
const CONTROLLERS: [&str; 12] = [
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-cleaner-controller",
    "token-cleaner-controller",
    "resourcequota-controller",
];

/// A running server.
pub struct Target {
    server: Server,
    admin: Client,
}

enum Server {
    Embedded(Handle),
    Real(Box<ControlPlane>),
}

impl Target {
    /// Starts a server of this kind.
    pub async fn start(kind: ServerKind) -> Result<Self> {
        match kind {
            ServerKind::Embedded => Self::embedded().await,
            ServerKind::Real => Self::real().await,
        }
    }

    /// Starts the embedded server on a free loopback port.
    pub async fn embedded() -> Result<Self> {
        Self::embedded_with(Config::default()).await
    }

    /// Starts the embedded server on a free loopback port, with this configuration.
    pub async fn embedded_with(config: Config) -> Result<Self> {
        let listen = Some(([127, 0, 0, 1], 0).into());
        let handle = fleetwright_apiserver::Server::start(Config { listen, ..config }).await?;
        let admin = client(&handle.admin_kubeconfig()?).await?;
        Ok(Self { server: Server::Embedded(handle), admin })
    }

    /// Starts kube-apiserver, etcd and the necessary controllers.
    pub async fn real() -> Result<Self> {
        Self::real_with(&[]).await
    }

    /// Starts the same with more arguments of kube-apiserver.
    pub async fn real_with(arguments: &[&str]) -> Result<Self> {
        let builder = ControlPlane::builder().controller_manager(CONTROLLERS);
        let builder = arguments.iter().fold(builder, |builder, argument| builder.apiserver_arg(*argument));
        let plane = builder.start().await?;
        let admin = plane.client();
        Ok(Self { server: Server::Real(Box::new(plane)), admin })
    }

    /// The kind of the server.
    pub fn kind(&self) -> ServerKind {
        match self.server {
            Server::Embedded(_) => ServerKind::Embedded,
            Server::Real(_) => ServerKind::Real,
        }
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        match &self.server {
            Server::Embedded(handle) => handle.url(),
            Server::Real(plane) => plane.url().to_owned(),
        }
    }

    /// The CA certificate of the server.
    pub fn ca_pem(&self) -> &str {
        match &self.server {
            Server::Embedded(handle) => handle.ca_pem(),
            Server::Real(plane) => plane.ca_pem(),
        }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> Result<String> {
        match &self.server {
            Server::Embedded(handle) => Ok(handle.admin_kubeconfig()?),
            Server::Real(plane) => Ok(plane.kubeconfig()),
        }
    }

    /// A client with all rights.
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// A client with a certificate of this user.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Result<Client> {
        let config = match &self.server {
            Server::Embedded(handle) => handle.kubeconfig(user, groups)?,
            Server::Real(plane) => plane.kubeconfig_as(user, groups)?,
        };
        client(&config).await
    }

    /// A client with this identity.
    pub async fn client_with(&self, identity: Identity<'_>) -> Result<Client> {
        client(&kubeconfig("lab", &self.url(), self.ca_pem(), identity)).await
    }

    /// Stops the server; after a failure the logs of the real one are kept, and their path is printed.
    pub async fn stop(self, failed: bool) {
        match self.server {
            Server::Embedded(handle) => handle.stop().await,
            // Ending processes blocks; no other task needs this thread at the end of a run.
            Server::Real(mut plane) => {
                if failed {
                    plane.keep_logs();
                }
                drop(plane);
            }
        }
    }

    /// Compacts the history: a watch from an older version is answered 410.
    pub async fn compact(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(handle) => {
                handle.compact();
                Ok(())
            }
            Server::Real(plane) => plane.compact().await.map(drop),
        }
    }
}
