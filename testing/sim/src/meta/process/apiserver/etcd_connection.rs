//! The connection of an API server to its etcd.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use jiff::Timestamp;
use rustls::RootCertStore;

use super::super::etcd::cluster::Cluster;
use super::super::etcd::{Etcds, MemberEvents, host, port};
use super::super::names::Names;
use super::super::tls::TlsKeyPair;

/// A connection to an etcd cluster: URLs and certificates.
pub(super) struct EtcdConnection {
    pub(super) urls: Vec<String>,
    pub(super) roots: Option<Arc<RootCertStore>>,
    pub(super) pair: RwLock<Option<TlsKeyPair>>,
    pub(super) names: Names,
    pub(super) etcds: Etcds,
    /// The cluster whose objects are served.
    pub(super) bound: OnceLock<Arc<Cluster>>,
    pub(super) seen: Mutex<Option<CachedState>>,
}

impl fmt::Debug for EtcdConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdConnection({:?})", self.urls)
    }
}

/// The result of the last check, and its expiry.
pub(super) struct CachedState {
    epoch: u64,
    until: Timestamp,
    state: Result<(), ConnectionError>,
}

/// The reason why etcd cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionError {
    /// No member answers, or none accepts the certificate.
    Unreachable(String),
    /// The cluster has no leader.
    NoLeader,
    /// The URLs lead to another etcd cluster than the one whose objects are served.
    WrongCluster,
}

impl EtcdConnection {
    /// The cluster behind the URLs, and the expiry of the certificates.
    pub(super) fn find(&self, now: Timestamp) -> Result<(Arc<Cluster>, Timestamp), ConnectionError> {
        let mut why = "no endpoint is given".to_owned();
        let pair = self.pair.read().unwrap_or_else(PoisonError::into_inner).clone();
        for url in &self.urls {
            let (host, port) = (host(url), port(url));
            let addresses = self.names.resolve(host);
            if addresses.is_empty() {
                why = format!("dial tcp: lookup {host}: no such host");
            }
            for ip in addresses {
                let Some(etcd) = self.etcds.at(ip) else {
                    why = format!("dial tcp {ip}:{port}: connect: connection refused");
                    continue;
                };
                let admitted = etcd.serves(port).and_then(|serves| match (serves, &self.roots) {
                    (None, _) => Ok(Timestamp::MAX),
                    (Some(serves), Some(roots)) => serves.admits(host, roots, pair.as_ref(), now),
                    (Some(_), None) => {
                        Err("tls: failed to verify certificate: x509: certificate signed by unknown authority"
                            .to_owned())
                    }
                });
                match admitted {
                    Ok(until) => return Ok((etcd.cluster.clone(), until)),
                    Err(error) => why = error,
                }
            }
        }
        Err(ConnectionError::Unreachable(why))
    }

    /// The state of the connection. The cached result is valid until the cluster changes or a certificate expires.
    pub(super) fn state(&self, now: Timestamp) -> Result<(), ConnectionError> {
        let Some(bound) = self.bound.get() else {
            return Err(ConnectionError::Unreachable("not connected yet".to_owned()));
        };
        let epoch = bound.epoch();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = &*seen
            && seen.epoch == epoch
            && seen.until > now
            && (seen.state.is_ok() || seen.state == Err(ConnectionError::NoLeader))
        {
            return seen.state.clone();
        }
        let (state, until) = match self.find(now) {
            Err(broken) => (Err(broken), now),
            Ok((cluster, _)) if !Arc::ptr_eq(&cluster, bound) => (Err(ConnectionError::WrongCluster), now),
            Ok((_, until)) if bound.leader().is_some() => (Ok(()), until),
            Ok((_, until)) => (Err(ConnectionError::NoLeader), until),
        };
        *seen = Some(CachedState { epoch, until, state: state.clone() });
        state
    }

    /// Events about members of etcd behind these URLs.
    pub(super) fn member_events(&self) -> MemberEvents {
        self.etcds.watch(&self.urls)
    }

    /// Replaces the certificate: the connection is checked again.
    pub(super) fn set_pair(&self, pair: TlsKeyPair) {
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
