//! Transports to hosts: SSH with a helper that is delivered on first contact; simulated machines have a transport of their own.

mod helpers;
mod ssh;
mod text;

pub use helpers::{Helper, Helpers};
pub use ssh::Ssh;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_wire::{Answer, Progress, Request};
use futures::future::BoxFuture;

/// A transport to hosts.
pub trait Transport: Send + Sync + 'static {
    /// Connects, authenticates both sides, and makes sure that the host has the helper. Takes at most the limits of the route.
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>>;
}

/// A connection to one host. Requests may be concurrent; dropping the link ends the connection, but no step on the host.
pub trait Link: Send + Sync {
    /// Sends a request, and waits for the answer. `within` limits the whole time; silence longer than [`TransportLimits::silence`] ends it sooner.
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        on_progress: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>>;

    /// The host key of the connection, as in a `known_hosts` file, without the host: `ssh-ed25519 AAAA…`.
    fn host_key(&self) -> &str;

    /// Whether the link can still be used.
    fn open(&self) -> bool;
}

/// The route to one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The machine, for messages.
    pub machine: String,
    /// The host itself.
    pub host: Hop,
    /// Jump hosts, in the order in which they are reached.
    pub jumps: Vec<Hop>,
    /// Timeouts.
    pub limits: TransportLimits,
}

/// One host on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// IP address or DNS name.
    pub address: String,
    pub port: u16,
    /// The user. A user other than root uses `sudo -n`.
    pub user: String,
    /// Our credentials.
    pub login: Login,
    /// The trusted host keys.
    pub trust: Trust,
}

/// Our credentials. The debug output reveals nothing of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Login {
    /// The private key, in OpenSSH's or PEM form, without a passphrase.
    pub key: Arc<str>,
    /// The OpenSSH certificate for it (`ssh-ed25519-cert-v01@openssh.com AAAA…`).
    pub certificate: Option<Arc<str>>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

/// Trust in a host key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any of these keys.
    Keys(Vec<String>),
    /// Any key: trust on first use, which the caller pins.
    FirstUse,
}

/// Timeouts of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Until the TCP connection is established.
    pub connect: Duration,
    /// Until both sides are authenticated.
    pub login: Duration,
    /// Until the host has the helper.
    pub deliver: Duration,
    /// Longest silence of a host during a request. The helper sends progress more often than that.
    pub silence: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            login: Duration::from_secs(15),
            deliver: Duration::from_secs(60),
            silence: Duration::from_secs(45),
        }
    }
}

/// Why a host was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// The host does not answer: name, route, port, time. It may later.
    #[error("{0}")]
    Unreachable(String),
    /// The host key differs from the trusted ones. Nothing is done until a person decides which is right.
    #[error(
        "host key mismatch: {address} presented {found}, which does not match any of the trusted keys ({known}): the host was reinstalled, or another host has this address"
    )]
    HostKeyChanged {
        /// Address of the host.
        address: String,
        /// The host key of the connection.
        found: String,
        /// Number of trusted keys.
        known: usize,
    },
    /// The host rejects our credentials.
    #[error("{0}")]
    LoginRefused(String),
    /// The user may not become root without a password.
    #[error("{0}")]
    SudoRefused(String),
    /// Our key or certificate cannot be used.
    #[error("{0}")]
    InvalidLogin(String),
    /// The host's architecture or operating system is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The helper cannot be written or run: no space, read-only, no permission to execute.
    #[error("{0}")]
    NoHelper(String),
}

/// Why a request got no answer. The requested change may have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection is lost.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The request timed out, or the host was silent for too long.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// The answer is invalid, too long, or does not fit the request.
    #[error("invalid answer from the host: {0}")]
    InvalidAnswer(String),
}
