//! All hosts, and the way to them.

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

/// How fast a fleet is. The default takes no time at all, but for a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetTiming {
    /// From here to a host and back.
    pub latency: Duration,
    /// How long a step takes, in the middle of it.
    pub step: Duration,
    /// From the moment that a host goes down until it is up again.
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
    /// Where what goes on by itself goes on: boots, steps whose connection is gone, kubelets. An operator's own runtime may end at any time.
    pub(crate) runtime: Handle,
    hosts: Mutex<HashMap<Arc<str>, SimHost>>,
    busy: AtomicUsize,
    pub(crate) kubelets: OnceLock<Kubelets>,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// Something is being computed: time must not go on.
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
    /// A fleet without hosts. What goes on by itself does so in the runtime that this is called in.
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

    /// From now on it is so fast.
    pub fn set_timing(&self, timing: FleetTiming) {
        *self.inner.timing.lock().unwrap_or_else(PoisonError::into_inner) = timing;
    }

    /// The fleet's time.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The host at an address. A bare one is there from the first time that it is asked for.
    pub fn host(&self, address: &str) -> SimHost {
        let mut hosts = self.hosts();
        if let Some(host) = hosts.get(address) {
            return host.clone();
        }
        let host = SimHost::new(self, address);
        hosts.insert(address.into(), host.clone());
        host
    }

    /// The host at an address, if there is one.
    pub fn known(&self, address: &str) -> Option<SimHost> {
        self.hosts().get(address).cloned()
    }

    /// All hosts, by address.
    pub fn all(&self) -> Vec<SimHost> {
        let mut hosts: Vec<SimHost> = self.hosts().values().cloned().collect();
        hosts.sort_by(|a, b| a.address().cmp(b.address()));
        hosts
    }

    /// Kubelets that belong to its hosts.
    pub fn set_kubelets(&self, kubelets: Kubelets) {
        for host in self.all() {
            kubelets.host_changed(&host);
        }
        let _ = self.inner.kubelets.set(kubelets);
    }

    /// Nothing is being computed: whatever goes on waits for the clock.
    pub fn is_idle(&self) -> bool {
        self.inner.busy.load(Ordering::SeqCst) == 0 && self.inner.kubelets.get().is_none_or(Kubelets::is_idle)
    }

    /// How many connections were made, and how many requests over them.
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

    /// Waits, and counts as busy before and after. The timer stands before anybody can think that nothing is left to wait for.
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

    /// A host may have changed.
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

/// Kind and key are the same; what follows is a comment.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().take(2).eq(other.split_whitespace().take(2))
}
