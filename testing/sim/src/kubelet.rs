//! The kubelets of simulated hosts, and the parts of a control plane that nodes and pods need.
//!
//! One task serves all hosts: a host that did not change has neither a task nor a timer, unless it renews a lease.

mod config;
mod node;
mod pods;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::Clock;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;

use crate::fleet::Fleet;
use crate::host::SimHost;

/// The behavior of the kubelets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletConfig {
    /// The interval of lease renewals; none to have no leases.
    pub lease: Option<Duration>,
    /// The time without a heartbeat after which a Node is NotReady.
    pub grace: Duration,
    /// Whether each kubelet first requests a certificate with its bootstrap token, as a real one does. Otherwise Nodes are created without.
    pub credentials: bool,
    /// The number of concurrent syncs with the API server.
    pub at_once: usize,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self { lease: None, grace: Duration::from_secs(40), credentials: false, at_once: 32 }
    }
}

/// The kubelets of a fleet. Cheap to clone; they stop when the last clone is dropped.
#[derive(Clone)]
pub struct Kubelets {
    shared: Arc<Shared>,
}

struct Shared {
    looks: mpsc::UnboundedSender<Message>,
    /// Requested syncs that are not finished.
    open: AtomicUsize,
    said: Mutex<Vec<String>>,
}

enum Message {
    Look(SimHost),
}

impl fmt::Debug for Kubelets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kubelets")
    }
}

impl Kubelets {
    /// Starts the kubelets. `client` has all rights; with credentials, calls of a kubelet impersonate its user.
    pub fn start(fleet: &Fleet, client: Client, config: KubeletConfig) -> Self {
        let (looks, asked) = mpsc::unbounded_channel();
        let kubelets = Self { shared: Arc::new(Shared { looks, open: AtomicUsize::new(0), said: Mutex::default() }) };
        let crew = KubeletManager {
            client,
            config,
            clock: fleet.clock().clone(),
            shared: Arc::downgrade(&kubelets.shared),
            hosts: HashMap::new(),
            busy: HashSet::new(),
            again: HashMap::new(),
            timers: BTreeMap::new(),
            last_timer: 0,
            pods: pods::Pods::default(),
        };
        fleet.inner.runtime.spawn(crew.run(asked));
        fleet.set_kubelets(kubelets.clone());
        kubelets
    }

    /// Queues a sync of the host's kubelet.
    pub(crate) fn host_changed(&self, host: &SimHost) {
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        // The task ended with its runtime: nothing is synced any more.
        if self.shared.looks.send(Message::Look(host.clone())).is_err() {
            self.shared.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether no sync is queued or running.
    pub fn is_idle(&self) -> bool {
        self.shared.open.load(Ordering::SeqCst) == 0
    }

    /// The last errors, the newest last, for messages of tests that fail.
    pub fn said(&self) -> Vec<String> {
        self.shared.said().clone()
    }
}

impl Shared {
    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The known state of a host's kubelet.
#[derive(Clone, Debug, Default)]
struct KubeletState {
    /// The kubelet that ran last.
    ran: Option<Arc<config::Kubelet>>,
    runs: bool,
    /// The Ready condition of its Node.
    ready: bool,
    /// The Node's heartbeat timed out.
    overdue: bool,
    /// The pending certificate request.
    request: Option<node::PendingRequest>,
}

#[derive(Clone)]
enum Timer {
    /// Checks whether the kubelet is still down.
    Down(SimHost),
    /// Renews the lease.
    Lease(SimHost),
    /// Retries a failed sync.
    Again(SimHost),
}

/// The task that syncs all kubelets.
struct KubeletManager {
    client: Client,
    config: KubeletConfig,
    clock: Clock,
    shared: std::sync::Weak<Shared>,
    hosts: HashMap<Arc<str>, KubeletState>,
    busy: HashSet<Arc<str>>,
    /// Hosts that are synced again after the running sync.
    again: HashMap<Arc<str>, SimHost>,
    timers: BTreeMap<(Duration, u64), Timer>,
    last_timer: u64,
    pods: pods::Pods,
}

struct SyncResult {
    host: SimHost,
    known: KubeletState,
    failed: Option<String>,
}

impl KubeletManager {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Message>) {
        let mut looks = FuturesUnordered::new();
        let mut waiting: std::collections::VecDeque<SimHost> = std::collections::VecDeque::new();
        let pods = kube::Api::<Pod>::all(self.client.clone());
        // Backoff: without it, an API server that is gone would be called in a loop.
        let mut pods = Box::pin(watcher::watcher(pods, watcher::Config::default()).default_backoff());
        let mut acts = FuturesUnordered::new();
        loop {
            while looks.len() < self.config.at_once.max(1)
                && let Some(host) = waiting.pop_front()
            {
                looks.push(self.look(host));
            }
            for act in self.pods.due() {
                acts.push(pods::act(self.client.clone(), act));
            }
            let next = self.timers.first_key_value().map(|((due, _), _)| *due);
            let clock = self.clock.clone();
            let timer = async move {
                match next {
                    Some(due) => clock.sleep(due.saturating_sub(clock.monotonic())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = asked.recv() => match ask {
                    Some(Message::Look(host)) => self.asked(host, &mut waiting),
                    None => return,
                },
                Some(looked) = looks.next() => self.looked(looked, &mut waiting),
                Some(event) = pods.next() => match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => self.pods.seen(&pod),
                    Ok(Event::Delete(pod)) => self.pods.gone(&pod),
                    // The watcher reconnects by itself, and a pod that needs work comes again with its next event.
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                },
                Some(failed) = acts.next() => if let Some(failed) = failed {
                    self.say(failed);
                },
                () = timer => self.fire(&mut waiting),
            }
        }
    }

    fn say(&self, what: String) {
        if let Some(shared) = self.shared.upgrade() {
            tracing::debug!("{what}");
            let mut said = shared.said();
            said.push(what);
            let excess = said.len().saturating_sub(100);
            said.drain(..excess);
        }
    }

    fn done(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn asked(&mut self, host: SimHost, waiting: &mut std::collections::VecDeque<SimHost>) {
        let address: Arc<str> = host.address().into();
        if !self.busy.insert(address.clone()) {
            // One further sync covers all requests that came meanwhile.
            if self.again.insert(address, host).is_some() {
                self.done();
            }
            return;
        }
        let known = self.hosts.get(&address).cloned().unwrap_or_default();
        let kubelet = config::Kubelet::of(&host);
        // The change did not concern the kubelet; this is the most frequent case.
        let same = match &kubelet {
            Some(kubelet) => known.runs && known.ready && known.ran.as_deref() == Some(kubelet),
            None => !(known.runs || known.overdue && known.ready),
        };
        if same {
            self.busy.remove(&address);
            self.done();
        } else {
            waiting.push_back(host);
        }
    }

    fn look(&self, host: SimHost) -> impl Future<Output = SyncResult> + use<> {
        let known = self.hosts.get(host.address()).cloned().unwrap_or_default();
        let (client, clock, config) = (self.client.clone(), self.clock.clone(), self.config);
        async move {
            let kubelet = config::Kubelet::of(&host);
            let mut known = known;
            let failed = node::sync_node(&client, &clock, &config, &host, kubelet, &mut known).await.err();
            SyncResult { host, known, failed }
        }
    }

    fn looked(&mut self, looked: SyncResult, waiting: &mut std::collections::VecDeque<SimHost>) {
        let SyncResult { host, mut known, failed } = looked;
        let address: Arc<str> = host.address().into();
        let (before, overdue) = self.hosts.get(&address).map(|known| (known.runs, known.overdue)).unwrap_or_default();
        known.overdue = !known.runs && (known.overdue || overdue);
        if let Some(ran) = &known.ran {
            self.pods.alive(&ran.node, known.runs && known.ready);
        }
        if before && !known.runs {
            self.at(self.config.grace, Timer::Down(host.clone()));
        }
        if !before
            && known.runs
            && let Some(every) = self.config.lease
        {
            self.at(every, Timer::Lease(host.clone()));
        }
        if let Some(failed) = failed {
            self.say(format!("{address}: {failed}"));
            self.at(Duration::from_secs(5), Timer::Again(host.clone()));
        } else if known.request.is_some() {
            self.at(Duration::from_secs(1), Timer::Again(host.clone()));
        }
        self.hosts.insert(address.clone(), known);
        self.busy.remove(&address);
        self.done();
        if let Some(host) = self.again.remove(&address) {
            self.asked(host, waiting);
        }
    }

    fn at(&mut self, after: Duration, due: Timer) {
        self.last_timer += 1;
        self.timers.insert((self.clock.monotonic().saturating_add(after), self.last_timer), due);
    }

    fn fire(&mut self, waiting: &mut std::collections::VecDeque<SimHost>) {
        let now = self.clock.monotonic();
        while let Some(((due, _), _)) = self.timers.first_key_value()
            && *due <= now
        {
            let Some((_, due)) = self.timers.pop_first() else { return };
            if let Some(shared) = self.shared.upgrade() {
                shared.open.fetch_add(1, Ordering::SeqCst);
            }
            match due {
                Timer::Again(host) => self.asked(host, waiting),
                Timer::Down(host) => {
                    // As the node lifecycle controller does: the heartbeat timed out.
                    if let Some(known) = self.hosts.get_mut(host.address()) {
                        known.overdue = !known.runs;
                    }
                    self.asked(host, waiting);
                }
                Timer::Lease(host) => {
                    let known = self.hosts.get(host.address()).cloned().unwrap_or_default();
                    if let (true, Some(ran), Some(every)) = (known.runs, &known.ran, self.config.lease) {
                        let (client, now, node) = (self.client.clone(), self.clock.now(), ran.node.clone());
                        let shared = self.shared.clone();
                        tokio::spawn(async move {
                            // A failed renewal needs no retry: the next one comes soon enough.
                            let _ = node::renew(&client, &node, now).await;
                            if let Some(shared) = shared.upgrade() {
                                shared.open.fetch_sub(1, Ordering::SeqCst);
                            }
                        });
                        self.at(every, Timer::Lease(host));
                    } else {
                        self.done();
                    }
                }
            }
        }
    }
}
