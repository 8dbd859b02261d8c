//! The state that all parts of one server share.
//!
//! Modules above add what they do with it as methods, such as admission and authorization; this module needs none of them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use fleetwright_pki::Authority;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::auth::{Authorizer, TokenIssuer};
use crate::config::{Clock, Version};
use crate::connections::ConnectionLimits;
use crate::document_cache::Documents;
use crate::fields::seconds_text;
use crate::in_flight::InFlightLimiter;
use crate::interceptor::Interceptor;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::service_network::ServiceNetwork;
use crate::storage::Storage;
use crate::store::Store;
use crate::tls::Tls;

/// The state that all parts of one server share.
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) storage: Storage,
    pub(crate) interceptor: Option<Arc<dyn Interceptor>>,
    pub(crate) version: Option<Version>,
    pub(crate) registry: Registry,
    pub(crate) authorizer: Authorizer,
    pub(crate) tokens: TokenIssuer,
    pub(crate) authority: Option<Arc<Authority>>,
    /// The authority of kubelets' serving certificates; created for the first one. No client of this server verifies them.
    pub(crate) kubelet_signer: OnceLock<Arc<Authority>>,
    /// The CA certificate for clients.
    pub(crate) ca_pem: String,
    pub(crate) tls: Tls,
    pub(crate) metrics: Metrics,
    pub(crate) documents: Documents,
    pub(crate) networks: Arc<ServiceNetwork>,
    pub(crate) clock: Clock,
    pub(crate) body_limit: usize,
    pub(crate) in_flight_limiter: InFlightLimiter,
    pub(crate) connections: ConnectionLimits,
    /// Whether the server is asked to stop.
    pub(crate) stop: watch::Sender<bool>,
    /// Whether the server will stop soon, and clients should switch to another.
    pub(crate) drain: watch::Sender<bool>,
}

impl Inner {
    /// The authority of kubelets' serving certificates, if the server has its own authority.
    pub(crate) fn kubelet_authority(&self) -> Option<Arc<Authority>> {
        self.authority.as_ref()?;
        if let Some(known) = self.kubelet_signer.get() {
            return Some(Arc::clone(known));
        }
        match Authority::new("fleetwright-kubelet-ca") {
            Ok(made) => Some(Arc::clone(self.kubelet_signer.get_or_init(|| Arc::new(made)))),
            Err(error) => {
                tracing::warn!(%error, "the authority of kubelets cannot be generated");
                None
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The present time as Kubernetes writes it.
    pub(crate) fn timestamp(&self) -> String {
        seconds_text(self.now())
    }

    /// Random numbers for generated names.
    pub(crate) fn random(&self) -> u64 {
        uuid::Uuid::new_v4().as_u64_pair().0
    }

    /// Resolves when the server is asked to stop.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.subscribe();
        async move {
            // A dropped sender means stop as well.
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }
}

impl Inner {
    /// Resolves when the server is about to stop.
    pub(crate) fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut drain = self.drain.subscribe();
        async move {
            let _ = drain.wait_for(|drain| *drain).await;
        }
    }
}

/// Counts a watch while it exists.
struct Watching(Arc<Inner>);

impl Inner {
    /// Resolves when a watch must end; counts the watch until it is dropped.
    pub(crate) fn watching(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        self.metrics.watches.fetch_add(1, Ordering::Relaxed);
        let (watching, stopping) = (Watching(self.clone()), self.stopping());
        async move {
            stopping.await;
            drop(watching);
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.metrics.watches.fetch_sub(1, Ordering::Relaxed);
    }
}
