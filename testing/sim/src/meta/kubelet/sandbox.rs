//! A running pod on a node: its address, its containers and their last states.

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

pub(super) struct PodSandbox {
    pub(super) uid: Box<str>,
    pub(super) node: Arc<str>,
    pub(super) address: Address,
    pub(super) began: Timestamp,
    /// Its ephemeral volumes, which are deleted with it.
    pub(super) dirs: HashMap<String, Volume>,
    pub(super) slots: Vec<ContainerState>,
    /// The time when its containers may start, and the time when they must end.
    pub(super) start_at: Duration,
    pub(super) stop_at: Option<Duration>,
    /// The hash of what is mounted; and the hash of what will be mounted, with the time.
    pub(super) mounted: Option<u64>,
    pub(super) refresh: Option<(u64, Duration)>,
    /// The conditions, and the times of their last transitions.
    pub(super) conditions: BTreeMap<&'static str, (bool, Timestamp)>,
    /// The digest of the status that the API server has.
    pub(super) reported: Option<String>,
}

/// A container of a pod, over all its restarts.
#[derive(Default)]
pub(super) struct ContainerState {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) files: Arc<Files>,
    pub(super) running: Option<Running>,
    /// The exit that was not handled yet, with the start time of the container.
    pub(super) exit: Option<(Exit, Timestamp, Duration)>,
    pub(super) restarts: i32,
    /// The number of the current run of the container.
    pub(super) life: u64,
    pub(super) last: Option<Termination>,
    /// The time of the restart, and the backoff before it.
    pub(super) restart_at: Option<Duration>,
    pub(super) backoff: Duration,
    pub(super) ready: bool,
    /// The time since when its liveness probe fails.
    pub(super) failing_since: Option<Duration>,
    pub(super) role: ContainerRole,
    /// The exit code of a container that is not restarted.
    pub(super) done: Option<i32>,
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContainerRole {
    /// A main container.
    #[default]
    Main,
    /// An init container: it ends before the next ones start.
    Init,
    /// A sidecar: it starts before the next ones, and ends after them.
    Sidecar,
}

impl ContainerState {
    /// Whether the containers after this one may start.
    pub(super) fn passed(&self) -> bool {
        match self.role {
            ContainerRole::Main => true,
            ContainerRole::Init => self.done == Some(0),
            ContainerRole::Sidecar => self.ready || self.done.is_some(),
        }
    }
}

impl PodSandbox {
    /// Whether the container succeeded; none while it is not finished.
    pub(super) fn over(&self) -> Option<bool> {
        if self.slots.iter().any(|slot| slot.role == ContainerRole::Init && slot.done.is_some_and(|code| code != 0)) {
            return Some(false);
        }
        let mut main = self.slots.iter().filter(|slot| slot.role == ContainerRole::Main).peekable();
        main.peek()?;
        main.try_fold(true, |well, slot| slot.done.map(|code| well && code == 0))
    }
}

/// The containers of a pod, in the order of their start.
pub(super) fn containers(spec: &PodSpec) -> Vec<&k8s_openapi::api::core::v1::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers).collect()
}

/// A run of a container that ended.
pub(super) struct Termination {
    pub(super) exit: Exit,
    pub(super) started: Timestamp,
    pub(super) finished: Timestamp,
}

/// A running process of a container.
pub(super) struct Running {
    pub(super) process: Arc<dyn Process>,
    pub(super) since: Timestamp,
    pub(super) began: Duration,
    /// The task that crashes the container, if its version is declared to crash.
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
    /// Ends the current process, if one runs.
    pub(super) fn end(&mut self, exit: Exit) -> bool {
        let Some(running) = self.running.take() else { return false };
        self.ready = false;
        self.exit = Some((exit, running.since, running.began));
        true
    }
}

/// A running pod, shared with everything that may end it.
pub(super) type SharedSandbox = Arc<Mutex<PodSandbox>>;

/// All running pods. Cheap to clone.
#[derive(Clone, Default)]
pub(in super::super) struct PodSandboxes(Arc<Mutex<HashMap<Key, SharedSandbox>>>);

impl PodSandboxes {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, SharedSandbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<SharedSandbox> {
        self.all().get(key).cloned()
    }

    /// Ends the pod of this name at once, unless its uid is this one.
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

    /// The sandbox of a pod; created if it does not exist.
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

    /// Kills a container, or all of a pod; returns whether one ran.
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

    /// The numbers of running pods and containers.
    pub(in super::super) fn count(&self) -> (usize, usize) {
        let all = self.all();
        let containers =
            all.values().map(|sandbox| lock(sandbox).slots.iter().filter(|slot| slot.running.is_some()).count());
        (all.len(), containers.sum())
    }

    /// Kills all pods.
    pub(in super::super) fn clear(&self) {
        let all = std::mem::take(&mut *self.all());
        all.values().for_each(|sandbox| lock(sandbox).slots.clear());
    }
}

pub(super) fn lock(sandbox: &SharedSandbox) -> MutexGuard<'_, PodSandbox> {
    sandbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle through which one run of a container reports to its kubelet.
#[derive(Clone)]
pub(in super::super) struct ContainerHandle {
    pub(super) sandbox: Weak<Mutex<PodSandbox>>,
    pub(super) slot: usize,
    pub(super) life: u64,
    pub(super) key: Key,
    pub(super) waker: Waker,
}

impl ContainerHandle {
    /// Reports that a probe would get another answer.
    pub(in super::super) fn changed(&self) {
        self.waker.wake(self.key.clone());
    }

    /// Reports that the process ended by itself.
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
