//! The kubelets of simulated hosts, and the little of a control plane that nodes and pods need.
//!
//! One task for all of them: a host that did not change has neither a task nor a timer, unless leases are asked for.

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

/// How kubelets behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletConfig {
    /// How often each renews its lease; none to have no leases at all.
    pub lease: Option<Duration>,
    /// How long after its kubelet's last word a Node counts as gone.
    pub grace: Duration,
    /// Each asks for a certificate with its bootstrap token first, as a real one does. Otherwise Nodes are made without.
    pub credentials: bool,
    /// So many talk to the API server at the same time.
    pub at_once: usize,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self { lease: None, grace: Duration::from_secs(40), credentials: false, at_once: 32 }
    }
}

/// The kubelets of a fleet. Cheap to clone; ends with the last clone.
#[derive(Clone)]
pub struct Kubelets {
    shared: Arc<Shared>,
}

struct Shared {
    looks: mpsc::UnboundedSender<Message>,
    /// Asked and not yet done.
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
    /// Starts them: `client` may do anything, and everything that is done for a kubelet is done in its name where credentials are asked for.
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

    /// The host may have changed.
    pub(crate) fn host_changed(&self, host: &SimHost) {
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        // Gone with the runtime: nobody looks any more.
        if self.shared.looks.send(Message::Look(host.clone())).is_err() {
            self.shared.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.shared.open.load(Ordering::SeqCst) == 0
    }

    /// What went wrong, the newest last: for tests that fail.
    pub fn said(&self) -> Vec<String> {
        self.shared.said().clone()
    }
}

impl Shared {
    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a host's kubelet.
#[derive(Clone, Debug, Default)]
struct KubeletState {
    /// The kubelet as it ran last.
    ran: Option<Arc<config::Kubelet>>,
    /// It runs now.
    runs: bool,
    /// What its Node says.
    ready: bool,
    /// Nothing was heard of it for too long.
    overdue: bool,
    /// The request for its certificate, while that is not answered.
    request: Option<node::PendingRequest>,
}

/// What falls due.
#[derive(Clone)]
enum Timer {
    /// Is its kubelet still down?
    Down(SimHost),
    /// Its lease.
    Lease(SimHost),
    /// Something failed: once more.
    Again(SimHost),
}

/// The task.
struct KubeletManager {
    client: Client,
    config: KubeletConfig,
    clock: Clock,
    shared: std::sync::Weak<Shared>,
    hosts: HashMap<Arc<str>, KubeletState>,
    busy: HashSet<Arc<str>>,
    /// Synced again when the present look is over.
    again: HashMap<Arc<str>, SimHost>,
    timers: BTreeMap<(Duration, u64), Timer>,
    last_timer: u64,
    pods: pods::Pods,
}

/// What came of a look.
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
        // Paced: a server that is gone is no reason to spin.
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
                    // The stream goes on by itself; whatever a pod waits for comes again with its next event.
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
            // One look more covers all that were asked for meanwhile.
            if self.again.insert(address, host).is_some() {
                self.done();
            }
            return;
        }
        let known = self.hosts.get(&address).cloned().unwrap_or_default();
        let kubelet = config::Kubelet::of(&host);
        // Nothing of it has to do with its kubelet: most looks end here.
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
                    // As the node lifecycle controller does it: nothing was heard for too long.
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
                            // The next one comes soon enough.
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
