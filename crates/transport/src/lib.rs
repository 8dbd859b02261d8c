//! Reaches hosts. The real way is SSH with a helper that is delivered on first contact; simulated machines have a way of their own.

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

/// A way to reach hosts.
pub trait Transport: Send + Sync + 'static {
    /// Connects, authenticates both sides, makes sure of the helper. May take as long as the limits of the route say.
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>>;
}

/// A connection to one host. Requests may be made at the same time; dropping it ends the connection, but no step on the host.
pub trait Link: Send + Sync {
    /// Asks, and waits for the answer. `within` bounds the whole; silence longer than [`TransportLimits::silence`] ends it sooner.
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        tell: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>>;

    /// The host key that was seen, as in a `known_hosts` file, without the host: `ssh-ed25519 AAAA…`.
    fn host_key(&self) -> &str;

    /// Whether it can still be used.
    fn open(&self) -> bool;
}

/// How one host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The machine, for messages.
    pub machine: String,
    /// The host itself.
    pub host: Hop,
    /// Hosts on the way, the first to be reached first.
    pub jumps: Vec<Hop>,
    /// How long things may take.
    pub limits: TransportLimits,
}

/// One host on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// IP address or DNS name.
    pub address: String,
    /// Port.
    pub port: u16,
    /// The user. One that is not root uses `sudo -n`.
    pub user: String,
    /// How we prove who we are.
    pub login: Login,
    /// How the host proves who it is.
    pub trust: Trust,
}

/// How we prove who we are. Shows nothing of it when printed.
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

/// How a host proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// By one of these keys.
    Keys(Vec<String>),
    /// By whatever key it shows: the first use, which the caller pins.
    FirstUse,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Until the TCP connection stands.
    pub connect: Duration,
    /// Until both sides are authenticated.
    pub login: Duration,
    /// Until the helper is there.
    pub deliver: Duration,
    /// How long a host may say nothing while a request runs. The helper says something more often than that.
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
    /// It does not answer: name, route, port, time. It may later.
    #[error("{0}")]
    Unreachable(String),
    /// It shows another key than it should. Nothing is done until a person says which is right.
    #[error(
        "host key mismatch: {address} presented {found}, which does not match any of the trusted keys ({known}): the host was reinstalled, or another host has this address"
    )]
    HostKeyChanged {
        /// Where.
        address: String,
        /// The key that it shows.
        found: String,
        /// How many are trusted.
        known: usize,
    },
    /// It does not let us in.
    #[error("{0}")]
    LoginRefused(String),
    /// The user may not become root without a password.
    #[error("{0}")]
    SudoRefused(String),
    /// The key or certificate of ours cannot be used.
    #[error("{0}")]
    InvalidLogin(String),
    /// Its architecture or operating system is none that we can serve.
    #[error("{0}")]
    Unsupported(String),
    /// The helper cannot be put there: no room, read-only, no permission to execute.
    #[error("{0}")]
    NoHelper(String),
}

/// Why a request got no answer. What was asked for may have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection is gone.
    #[error("connection lost: {0}")]
    Lost(String),
    /// It took too long, or was silent for too long.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// What came is none of our language, too long, or not an answer to what was asked.
    #[error("invalid answer from the host: {0}")]
    InvalidAnswer(String),
}
