//! All simulated hosts, and the connections to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fleetwright_kit::Clock;
use fleetwright_transport::{Link, ReachError, Route, Transport, Trust};
use futures::future::BoxFuture;
use tokio::runtime::Handle;

use crate::host::{Network, SimHost};
use crate::kubelet::Kubelets;
use crate::link::SimLink;

/// The latencies and durations of a fleet. By default only a boot takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetTiming {
    /// The latency of a request to a host and back.
    pub latency: Duration,
    /// The duration of a step; the host waits in the middle of it.
    pub step: Duration,
    /// The time from power off to power on in a boot.
    pub boot: Duration,
}

impl Default for FleetTiming {
    fn default() -> Self {
        Self { latency: Duration::ZERO, step: Duration::ZERO, boot: Duration::from_secs(20) }
    }
}

/// Simulated hosts, by address. Cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) timing: Mutex<FleetTiming>,
    /// The runtime of background work: boots, steps whose connection was cut, kubelets. An operator's own runtime may end at any time.
    pub(crate) runtime: Handle,
    hosts: Mutex<HashMap<Arc<str>, SimHost>>,
    busy: AtomicUsize,
    pub(crate) kubelets: OnceLock<Kubelets>,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// Marks the fleet as computing: virtual time must not advance while this value exists.
pub(crate) struct Busy(Arc<Inner>);

impl Busy {
    pub(crate) fn new(inner: &Arc<Inner>) -> Self {
        inner.busy.fetch_add(1, Ordering::SeqCst);
        Self(inner.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fleet {
    /// A fleet without hosts. Its background work runs in the runtime of the caller.
    pub fn new(clock: Clock) -> Self {
        let inner = Inner {
            clock,
            timing: Mutex::default(),
            runtime: Handle::current(),
            hosts: Mutex::default(),
            busy: AtomicUsize::new(0),
            kubelets: OnceLock::new(),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets the timing of all later calls and steps.
    pub fn set_timing(&self, timing: FleetTiming) {
        *self.inner.timing.lock().unwrap_or_else(PoisonError::into_inner) = timing;
    }

    /// The clock of the fleet.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The host at an address; the first call creates it as a bare host.
    pub fn host(&self, address: &str) -> SimHost {
        let mut hosts = self.hosts();
        if let Some(host) = hosts.get(address) {
            return host.clone();
        }
        let host = SimHost::new(self, address);
        hosts.insert(address.into(), host.clone());
        host
    }

    /// The host at an address, if it exists.
    pub fn known(&self, address: &str) -> Option<SimHost> {
        self.hosts().get(address).cloned()
    }

    /// All hosts, by address.
    pub fn all(&self) -> Vec<SimHost> {
        let mut hosts: Vec<SimHost> = self.hosts().values().cloned().collect();
        hosts.sort_by(|a, b| a.address().cmp(b.address()));
        hosts
    }

    /// Attaches the kubelets of its hosts.
    pub fn set_kubelets(&self, kubelets: Kubelets) {
        for host in self.all() {
            kubelets.host_changed(&host);
        }
        let _ = self.inner.kubelets.set(kubelets);
    }

    /// Whether nothing is being computed: all background work waits for the clock.
    pub fn is_idle(&self) -> bool {
        self.inner.busy.load(Ordering::SeqCst) == 0 && self.inner.kubelets.get().is_none_or(Kubelets::is_idle)
    }

    /// The number of connections, and of requests over them, so far.
    pub fn counts(&self) -> (usize, usize) {
        (self.inner.connections.load(Ordering::Relaxed), self.inner.requests.load(Ordering::Relaxed))
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<Arc<str>, SimHost>> {
        self.inner.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(crate) fn timing(&self) -> FleetTiming {
        *self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn wait(&self, time: Duration) {
        if !time.is_zero() {
            self.clock.sleep(time).await;
        }
    }

    /// Waits for this time and counts as busy before and after it. The timer is registered before the busy mark is
    /// dropped, so that the fleet never looks idle in between.
    pub(crate) async fn rest(self: &Arc<Self>, busy: Option<Busy>, time: Duration) -> Busy {
        let mut sleep = std::pin::pin!(self.clock.sleep(time));
        if futures::poll!(sleep.as_mut()).is_pending() {
            drop(busy);
            sleep.await;
        }
        Busy::new(self)
    }

    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports to the kubelets that a host may have changed.
    pub(crate) fn host_changed(&self, host: &SimHost) {
        if let Some(kubelets) = self.kubelets.get() {
            kubelets.host_changed(host);
        }
    }
}

impl Transport for Fleet {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        Box::pin(async move {
            for jump in &route.jumps {
                self.reach(&jump.address, &route).await?;
            }
            let address = &route.host.address;
            let host = self.reach(address, &route).await?;
            let found = host.key();
            if let Trust::Keys(keys) = &route.host.trust
                && !keys.iter().any(|key| same(key, &found))
            {
                return Err(ReachError::HostKeyChanged { address: address.clone(), found, known: keys.len() });
            }
            if host.refuses_login() {
                let user = &route.host.user;
                return Err(ReachError::LoginRefused(format!("{address} rejected this key for user {user}")));
            }
            self.inner.connections.fetch_add(1, Ordering::Relaxed);
            let link: Box<dyn Link> = Box::new(SimLink::new(host, found, route.limits));
            Ok(link)
        })
    }
}

impl Fleet {
    async fn reach(&self, address: &str, route: &Route) -> Result<SimHost, ReachError> {
        let limits = route.limits;
        let Some(host) = self.known(address) else {
            return Err(ReachError::Unreachable(format!("{address}: no route to host")));
        };
        let network = host.network();
        if network == Network::Silent || !host.is_on() {
            self.inner.wait(limits.connect).await;
            return Err(ReachError::Unreachable(format!("{address}: connection timed out after {:?}", limits.connect)));
        }
        match network {
            Network::Unreachable => Err(ReachError::Unreachable(format!("{address}: no route to host"))),
            Network::Slow(latency) => {
                self.inner.wait(latency.saturating_mul(3)).await;
                Ok(host)
            }
            _ => {
                self.inner.wait(self.inner.timing().latency.saturating_mul(3)).await;
                Ok(host)
            }
        }
    }
}

/// Compares type and key of two SSH keys; the rest of the line is a comment.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().take(2).eq(other.split_whitespace().take(2))
}
