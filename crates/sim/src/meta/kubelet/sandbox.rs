//! A pod that runs on a node: its address, its containers and what became of them.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fleetwright_kit::{Key, Waker};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;

use super::super::net::Address;
use super::super::process::{Exit, Process};
use super::super::view::PodView;
use super::super::volumes::Volume;
use super::files::{Files, own_dirs};

/// A pod that runs.
pub(super) struct PodSandbox {
    pub(super) uid: Box<str>,
    pub(super) node: Arc<str>,
    pub(super) address: Address,
    pub(super) began: Timestamp,
    /// Its own volumes, which go with it.
    pub(super) dirs: HashMap<String, Volume>,
    pub(super) slots: Vec<ContainerState>,
    /// When its containers may start, and when they must end.
    pub(super) start_at: Duration,
    pub(super) stop_at: Option<Duration>,
    /// The stamp of what is mounted; and of what will be, and when.
    pub(super) mounted: Option<u64>,
    pub(super) refresh: Option<(u64, Duration)>,
    /// Its conditions, and since when they are so.
    pub(super) conditions: BTreeMap<&'static str, (bool, Timestamp)>,
    /// What of all this the API server was told, as a digest.
    pub(super) reported: Option<String>,
}

/// A container of a pod, over all its lives.
#[derive(Default)]
pub(super) struct ContainerState {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) files: Arc<Files>,
    pub(super) running: Option<Running>,
    /// It ended, and nobody looked at it yet: how, and when it had begun.
    pub(super) exit: Option<(Exit, Timestamp, Duration)>,
    pub(super) restarts: i32,
    /// Which of its lives this is.
    pub(super) life: u64,
    pub(super) last: Option<Termination>,
    /// When it is started again, and how long the wait was.
    pub(super) restart_at: Option<Duration>,
    pub(super) backoff: Duration,
    pub(super) ready: bool,
    /// Since when it does not answer its liveness probe.
    pub(super) failing_since: Option<Duration>,
    /// Where it stands in its pod.
    pub(super) role: ContainerRole,
    /// It ended for good, with that code.
    pub(super) done: Option<i32>,
}

/// Where a container stands in its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContainerRole {
    /// It is what the pod is for.
    #[default]
    Main,
    /// It ends before others begin.
    Init,
    /// It begins before others, and ends after them.
    Sidecar,
}

impl ContainerState {
    /// Whether those after it may begin.
    pub(super) fn passed(&self) -> bool {
        match self.role {
            ContainerRole::Main => true,
            ContainerRole::Init => self.done == Some(0),
            ContainerRole::Sidecar => self.ready || self.done.is_some(),
        }
    }
}

impl PodSandbox {
    /// Whether it is over, and went well.
    pub(super) fn over(&self) -> Option<bool> {
        if self.slots.iter().any(|slot| slot.role == ContainerRole::Init && slot.done.is_some_and(|code| code != 0)) {
            return Some(false);
        }
        let mut main = self.slots.iter().filter(|slot| slot.role == ContainerRole::Main).peekable();
        main.peek()?;
        main.try_fold(true, |well, slot| slot.done.map(|code| well && code == 0))
    }
}

/// The containers of a pod, in the order in which they begin.
pub(super) fn containers(spec: &PodSpec) -> Vec<&k8s_openapi::api::core::v1::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers).collect()
}

/// A life of a container that is over.
pub(super) struct Termination {
    pub(super) exit: Exit,
    pub(super) started: Timestamp,
    pub(super) finished: Timestamp,
}

/// A life of a container.
pub(super) struct Running {
    pub(super) process: Arc<dyn Process>,
    pub(super) since: Timestamp,
    pub(super) began: Duration,
    /// What will end it, if its version is one that ends by itself.
    pub(super) crash_task: Option<tokio::task::AbortHandle>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(crash_task) = &self.crash_task {
            crash_task.abort();
        }
        self.process.kill();
    }
}

impl ContainerState {
    /// Ends the present life, if there is one.
    pub(super) fn end(&mut self, exit: Exit) -> bool {
        let Some(running) = self.running.take() else { return false };
        self.ready = false;
        self.exit = Some((exit, running.since, running.began));
        true
    }
}

/// A pod that runs, shared with those who may end it.
pub(super) type SharedSandbox = Arc<Mutex<PodSandbox>>;

/// All pods that run. Cheap to clone.
#[derive(Clone, Default)]
pub(in super::super) struct PodSandboxes(Arc<Mutex<HashMap<Key, SharedSandbox>>>);

impl PodSandboxes {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, SharedSandbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<SharedSandbox> {
        self.all().get(key).cloned()
    }

    /// What runs of a pod, unless it is this very pod, ends at once.
    pub(super) fn remove_replaced(&self, key: &Key, uid: Option<&str>) {
        let other = {
            let mut all = self.all();
            let same = all.get(key).is_some_and(|sandbox| uid.is_some_and(|uid| *lock(sandbox).uid == *uid));
            if same { None } else { all.remove(key) }
        };
        if let Some(other) = other {
            lock(&other).slots.clear();
        }
    }

    /// The sandbox of a pod; made when there is none.
    pub(super) fn ensure(
        &self,
        key: &Key,
        pod: &PodView,
        spec: &PodSpec,
        node: &str,
        (now, start_at): (Timestamp, Duration),
    ) -> Option<SharedSandbox> {
        let mut all = self.all();
        if let Some(sandbox) = all.get(key) {
            return Some(sandbox.clone());
        }
        let first = spec.init_containers.as_ref().map_or(0, Vec::len);
        let slot = |(number, container): (usize, &k8s_openapi::api::core::v1::Container)| ContainerState {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            role: match container.restart_policy.as_deref() {
                _ if number >= first => ContainerRole::Main,
                Some("Always") => ContainerRole::Sidecar,
                _ => ContainerRole::Init,
            },
            ..ContainerState::default()
        };
        let sandbox = PodSandbox {
            uid: pod.uid.clone(),
            node: node.into(),
            address: Address::take()?,
            began: now,
            dirs: own_dirs(spec),
            slots: containers(spec).into_iter().enumerate().map(slot).collect(),
            start_at,
            stop_at: None,
            mounted: None,
            refresh: None,
            conditions: BTreeMap::new(),
            reported: None,
        };
        let sandbox = Arc::new(Mutex::new(sandbox));
        all.insert(key.clone(), sandbox.clone());
        Some(sandbox)
    }

    /// Ends a container, or all of a pod, at once; says whether one ran.
    pub(in super::super) fn kill(&self, key: &Key, container: Option<&str>) -> bool {
        let Some(sandbox) = self.get(key) else { return false };
        let mut sandbox = lock(&sandbox);
        let meant = sandbox.slots.iter_mut().filter(|slot| container.is_none_or(|name| slot.name == name));
        meant.filter_map(|slot| slot.end(Exit::killed()).then_some(())).count() > 0
    }

    /// The address of a pod.
    pub(in super::super) fn ip(&self, key: &Key) -> Option<Ipv4Addr> {
        self.get(key).map(|sandbox| lock(&sandbox).address.ip())
    }

    /// The pods of a node.
    pub(in super::super) fn on(&self, node: &str) -> Vec<Key> {
        self.all().iter().filter(|(_, sandbox)| *lock(sandbox).node == *node).map(|(key, _)| key.clone()).collect()
    }

    /// How many pods and how many containers run.
    pub(in super::super) fn count(&self) -> (usize, usize) {
        let all = self.all();
        let containers =
            all.values().map(|sandbox| lock(sandbox).slots.iter().filter(|slot| slot.running.is_some()).count());
        (all.len(), containers.sum())
    }

    /// Ends everything at once.
    pub(in super::super) fn clear(&self) {
        let all = std::mem::take(&mut *self.all());
        all.values().for_each(|sandbox| lock(sandbox).slots.clear());
    }
}

pub(super) fn lock(sandbox: &SharedSandbox) -> MutexGuard<'_, PodSandbox> {
    sandbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By which a container tells its kubelet something: one of its lives.
#[derive(Clone)]
pub(in super::super) struct ContainerHandle {
    pub(super) sandbox: Weak<Mutex<PodSandbox>>,
    pub(super) slot: usize,
    pub(super) life: u64,
    pub(super) key: Key,
    pub(super) waker: Waker,
}

impl ContainerHandle {
    /// It would answer a probe otherwise than before.
    pub(in super::super) fn changed(&self) {
        self.waker.wake(self.key.clone());
    }

    /// It ended by itself.
    pub(in super::super) fn end(&self, exit: Exit) {
        let Some(sandbox) = self.sandbox.upgrade() else { return };
        let ended = {
            let mut sandbox = lock(&sandbox);
            sandbox.slots.get_mut(self.slot).is_some_and(|slot| slot.life == self.life && slot.end(exit))
        };
        if ended {
            self.changed();
        }
    }
}
