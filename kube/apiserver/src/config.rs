//! The configuration of a server, and the reasons why a server does not start with it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fleetwright_pki::{Authority, ServiceAccountKey};
use jiff::Timestamp;

use crate::connections::ConnectionLimits;
use crate::in_flight::InFlightLimits;
use crate::interceptor::Interceptor;
use crate::storage::Storage;
use crate::store::HistoryLimits;

/// The version of Kubernetes whose API is served.
pub const KUBERNETES_VERSION: &str = "v1.37.1";

/// The issuer and the audience of service-account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The source of the time; a simulation supplies its own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that asks this function.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

/// The version that a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version of the program, such as `v1.36.4`.
    pub git: String,
    /// The emulated minor version, if it is an older one.
    pub emulated: Option<(u32, u32)>,
}

/// The certificates of a listener, as PEM.
#[derive(Clone)]
pub struct Serving {
    /// The server's certificate, with the intermediates up to its authority.
    pub cert_pem: String,
    pub key_pem: String,
    /// The authorities whose client certificates are trusted: one or more certificates.
    pub client_ca_pem: String,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// The configuration of a server. The default serves in-process callers only.
#[derive(Clone)]
pub struct Config {
    /// The listen address for TLS; none for in-process callers only. Port 0 selects a free one.
    pub listen: Option<SocketAddr>,
    /// The authority that signs the serving certificate and whose client certificates are trusted; created at the start when
    /// neither it nor `serving` is given. Servers may share one.
    pub authority: Option<Arc<Authority>>,
    /// Certificates for a server without its own authority: it signs no certificate requests, unless a
    /// [`ControllerManager`](crate::ControllerManager) does.
    pub serving: Option<Serving>,
    /// The key that signs service-account tokens; created at the start when none is given.
    pub service_account_key: Option<Arc<ServiceAccountKey>>,
    /// Other keys whose tokens are accepted, as PEM: public ones, or private ones of which the public half counts.
    pub token_keys: Vec<String>,
    /// The issuer of service-account tokens, and their audience.
    pub issuer: String,
    /// The storage of the objects; a new one when none is given.
    pub storage: Option<Storage>,
    /// The hook between the server and its objects, if any.
    pub interceptor: Option<Arc<dyn Interceptor>>,
    /// The reported version, if it is not the server's own.
    pub version: Option<Version>,
    /// Names and addresses of the serving certificate beside the usual ones.
    pub names: Vec<String>,
    /// The limits of the history for watches and paged lists, in a new storage.
    pub history: HistoryLimits,
    /// The largest request body.
    pub body_limit: usize,
    /// The most requests that are worked on at the same time.
    pub in_flight: InFlightLimits,
    /// The limits of one connection, and of all of them.
    pub connections: ConnectionLimits,
    /// The range of the cluster IPs of services.
    pub service_cidr: String,
    /// The source of the time.
    pub clock: Clock,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: None,
            authority: None,
            serving: None,
            service_account_key: None,
            token_keys: Vec::new(),
            issuer: ISSUER.into(),
            storage: None,
            interceptor: None,
            version: None,
            names: Vec::new(),
            history: HistoryLimits::default(),
            body_limit: 3 * 1024 * 1024,
            in_flight: InFlightLimits::default(),
            connections: ConnectionLimits::default(),
            service_cidr: "10.96.0.0/16".into(),
            clock: Clock::default(),
        }
    }
}

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or stop what uses it")]
    Listen {
        address: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Keys or certificates cannot be created or used.
    #[error("cannot set up certificates: {0}")]
    Certificates(String),
    /// The serving key is not the one of the serving certificate.
    #[error("the serving key does not belong to the serving certificate")]
    KeyMismatch,
    /// A setting is invalid.
    #[error("config field {field}: {message}")]
    Config {
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
}
