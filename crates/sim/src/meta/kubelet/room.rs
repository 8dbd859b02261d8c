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
pub(super) struct Room {
    pub(super) uid: Box<str>,
    pub(super) node: Arc<str>,
    pub(super) address: Address,
    pub(super) began: Timestamp,
    /// Its own volumes, which go with it.
    pub(super) dirs: HashMap<String, Volume>,
    pub(super) slots: Vec<Slot>,
    /// When its containers may start, and when they must end.
    pub(super) start_at: Duration,
    pub(super) stop_at: Option<Duration>,
    /// The stamp of what is mounted; and of what will be, and when.
    pub(super) mounted: Option<u64>,
    pub(super) refresh: Option<(u64, Duration)>,
    /// Its conditions, and since when they are so.
    pub(super) conditions: BTreeMap<&'static str, (bool, Timestamp)>,
    /// What of all this the API server was told, as a digest.
    pub(super) told: Option<String>,
}

/// A container of a pod, over all its lives.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) files: Arc<Files>,
    pub(super) running: Option<Running>,
    /// It ended, and nobody looked at it yet: how, and when it had begun.
    pub(super) exit: Option<(Exit, Timestamp, Duration)>,
    pub(super) restarts: i32,
    /// Which of its lives this is.
    pub(super) life: u64,
    pub(super) last: Option<Ended>,
    /// When it is started again, and how long the wait was.
    pub(super) again_at: Option<Duration>,
    pub(super) backoff: Duration,
    pub(super) ready: bool,
    /// Since when it does not answer its liveness probe.
    pub(super) sick: Option<Duration>,
    /// Where it stands in its pod.
    pub(super) part: Part,
    /// It ended for good, with that code.
    pub(super) done: Option<i32>,
}

/// Where a container stands in its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    /// It is what the pod is for.
    #[default]
    Main,
    /// It ends before others begin.
    First,
    /// It begins before others, and ends after them.
    Beside,
}

impl Slot {
    /// Whether those after it may begin.
    pub(super) fn passed(&self) -> bool {
        match self.part {
            Part::Main => true,
            Part::First => self.done == Some(0),
            Part::Beside => self.ready || self.done.is_some(),
        }
    }
}

impl Room {
    /// Whether it is over, and went well.
    pub(super) fn over(&self) -> Option<bool> {
        if self.slots.iter().any(|slot| slot.part == Part::First && slot.done.is_some_and(|code| code != 0)) {
            return Some(false);
        }
        let mut main = self.slots.iter().filter(|slot| slot.part == Part::Main).peekable();
        main.peek()?;
        main.try_fold(true, |well, slot| slot.done.map(|code| well && code == 0))
    }
}

/// The containers of a pod, in the order in which they begin.
pub(super) fn containers(spec: &PodSpec) -> Vec<&k8s_openapi::api::core::v1::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers).collect()
}

/// A life of a container that is over.
pub(super) struct Ended {
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
    pub(super) fate: Option<tokio::task::AbortHandle>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(fate) = &self.fate {
            fate.abort();
        }
        self.process.kill();
    }
}

impl Slot {
    /// Ends the present life, if there is one.
    pub(super) fn end(&mut self, exit: Exit) -> bool {
        let Some(running) = self.running.take() else { return false };
        self.ready = false;
        self.exit = Some((exit, running.since, running.began));
        true
    }
}

/// A pod that runs, shared with those who may end it.
pub(super) type Shared = Arc<Mutex<Room>>;

/// All pods that run. Cheap to clone.
#[derive(Clone, Default)]
pub(in super::super) struct Rooms(Arc<Mutex<HashMap<Key, Shared>>>);

impl Rooms {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Shared> {
        self.all().get(key).cloned()
    }

    /// What runs of a pod, unless it is this very pod, ends at once.
    pub(super) fn leave_others(&self, key: &Key, uid: Option<&str>) {
        let other = {
            let mut all = self.all();
            let same = all.get(key).is_some_and(|room| uid.is_some_and(|uid| *lock(room).uid == *uid));
            if same { None } else { all.remove(key) }
        };
        if let Some(other) = other {
            lock(&other).slots.clear();
        }
    }

    /// The room of a pod; made when there is none.
    pub(super) fn ensure(
        &self,
        key: &Key,
        pod: &PodView,
        spec: &PodSpec,
        node: &str,
        (now, start_at): (Timestamp, Duration),
    ) -> Option<Shared> {
        let mut all = self.all();
        if let Some(room) = all.get(key) {
            return Some(room.clone());
        }
        let first = spec.init_containers.as_ref().map_or(0, Vec::len);
        let slot = |(number, container): (usize, &k8s_openapi::api::core::v1::Container)| Slot {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            part: match container.restart_policy.as_deref() {
                _ if number >= first => Part::Main,
                Some("Always") => Part::Beside,
                _ => Part::First,
            },
            ..Slot::default()
        };
        let room = Room {
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
            told: None,
        };
        let room = Arc::new(Mutex::new(room));
        all.insert(key.clone(), room.clone());
        Some(room)
    }

    /// Ends a container, or all of a pod, at once; says whether one ran.
    pub(in super::super) fn kill(&self, key: &Key, container: Option<&str>) -> bool {
        let Some(room) = self.get(key) else { return false };
        let mut room = lock(&room);
        let meant = room.slots.iter_mut().filter(|slot| container.is_none_or(|name| slot.name == name));
        meant.filter_map(|slot| slot.end(Exit::killed()).then_some(())).count() > 0
    }

    /// The address of a pod.
    pub(in super::super) fn ip(&self, key: &Key) -> Option<Ipv4Addr> {
        self.get(key).map(|room| lock(&room).address.ip())
    }

    /// The pods of a node.
    pub(in super::super) fn on(&self, node: &str) -> Vec<Key> {
        self.all().iter().filter(|(_, room)| *lock(room).node == *node).map(|(key, _)| key.clone()).collect()
    }

    /// How many pods and how many containers run.
    pub(in super::super) fn count(&self) -> (usize, usize) {
        let all = self.all();
        let containers = all.values().map(|room| lock(room).slots.iter().filter(|slot| slot.running.is_some()).count());
        (all.len(), containers.sum())
    }

    /// Ends everything at once.
    pub(in super::super) fn clear(&self) {
        let all = std::mem::take(&mut *self.all());
        all.values().for_each(|room| lock(room).slots.clear());
    }
}

pub(super) fn lock(room: &Shared) -> MutexGuard<'_, Room> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By which a container tells its kubelet something: one of its lives.
#[derive(Clone)]
pub(in super::super) struct Life {
    pub(super) room: Weak<Mutex<Room>>,
    pub(super) slot: usize,
    pub(super) life: u64,
    pub(super) key: Key,
    pub(super) waker: Waker,
}

impl Life {
    /// It would answer a probe otherwise than before.
    pub(in super::super) fn changed(&self) {
        self.waker.wake(self.key.clone());
    }

    /// It ended by itself.
    pub(in super::super) fn end(&self, exit: Exit) {
        let Some(room) = self.room.upgrade() else { return };
        let ended = {
            let mut room = lock(&room);
            room.slots.get_mut(self.slot).is_some_and(|slot| slot.life == self.life && slot.end(exit))
        };
        if ended {
            self.changed();
        }
    }
}
