//! The pool of visits to hosts: which run, which wait for a place, and which connections are kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::{Clock, Key, Random, Waker};
use fleetwright_transport::{Hop, Link, ReachError, Route, Transport, Trust};
use fleetwright_wire::{Answer, Progress};
use jiff::Timestamp;
use tokio::task::AbortHandle;

use super::visit::{self, Visit};
use super::{HostCounts, HostLocation, HostState, HostTask, Limits, Task, Unreachable, UnreachableCause, size_limits};

/// The progress of a step wakes its machine at most this often.
const PROGRESS_WAKE_INTERVAL: Duration = Duration::from_secs(10);
/// Share of each backoff that is random: hosts that went away together are not retried together.
const JITTER: f64 = 0.25;

/// The state of all hosts of one operator.
pub(super) struct Pool {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Clock,
    pub(super) limits: Limits,
    waker: Waker,
    random: Random,
    table: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    closed: bool,
    hosts: HashMap<Key, Host>,
    /// Visits that wait for a place: a queue for each rack, so that a full rack delays no other.
    waiting: BTreeMap<HostLocation, VecDeque<WaitingVisit>>,
    waits: usize,
    /// The rack that got the last place.
    turn: Option<HostLocation>,
    taken: UsedSlots,
    visits: u64,
    /// Kept connections by the time of their last use, and a number for those used at the same time.
    idle: BTreeMap<(Duration, u64), Key>,
    sweeper: Option<AbortHandle>,
}

#[derive(Default)]
struct Host {
    state: HostState,
    visit: Option<OngoingVisit>,
    kept: Option<KeptConnection>,
    /// The route of the last failed visit.
    failed: Option<Arc<Route>>,
    /// When progress last woke the machine.
    told: Option<Duration>,
}

/// A visit that waits or runs.
struct OngoingVisit {
    number: u64,
    /// Whether the visit waits for a place.
    waits: bool,
    task: Option<AbortHandle>,
}

/// A visit that has its place.
struct ReadyVisit {
    key: Key,
    number: u64,
    visit: Visit,
    task: Task,
}

struct KeptConnection {
    link: Box<dyn Link>,
    route: Arc<Route>,
    since: (Duration, u64),
}

struct WaitingVisit {
    key: Key,
    number: u64,
    route: Arc<Route>,
    task: Task,
}

/// The places in use.
#[derive(Default)]
struct UsedSlots {
    overall: usize,
    zones: HashMap<Arc<str>, usize>,
    /// Keyed by zone, too: racks of two zones may have the same name.
    racks: HashMap<HostLocation, usize>,
}

impl UsedSlots {
    fn has_capacity(&self, place: &HostLocation, limits: &Limits) -> bool {
        let zone = place.zone.as_ref().and_then(|zone| self.zones.get(zone)).copied().unwrap_or(0);
        let rack = self.racks.get(place).copied().unwrap_or(0);
        self.overall < limits.overall.max(1)
            && (place.zone.is_none() || zone < limits.zone.max(1))
            && (place.rack.is_none() || rack < limits.rack.max(1))
    }

    fn take(&mut self, place: &HostLocation) {
        self.overall += 1;
        if let Some(zone) = &place.zone {
            *self.zones.entry(zone.clone()).or_default() += 1;
        }
        if place.rack.is_some() {
            *self.racks.entry(place.clone()).or_default() += 1;
        }
    }

    fn give_back(&mut self, place: &HostLocation) {
        self.overall = self.overall.saturating_sub(1);
        if let Some(zone) = &place.zone {
            less(&mut self.zones, zone);
        }
        if place.rack.is_some() {
            less(&mut self.racks, place);
        }
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

pub(super) enum VisitResult {
    /// The host answered.
    Answer(Answer),
    /// The host did not answer.
    Unreachable(UnreachableCause),
}

impl Pool {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        limits: Limits,
        clock: Clock,
        waker: Waker,
        random: Random,
    ) -> Self {
        Self { transport, clock, limits, waker, random, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, PoolState> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(self: &Arc<Self>, key: &Key, route: Arc<Route>, place: HostLocation, task: Task) -> bool {
        let taken = self.take(key, route, place, task);
        let asked = taken.is_some();
        self.spawn_visits(taken.unwrap_or_default());
        asked
    }

    /// Queues the task, and removes the visits from the queue that have a place now. None if the host cannot be asked.
    fn take(
        self: &Arc<Self>,
        key: &Key,
        route: Arc<Route>,
        place: HostLocation,
        task: Task,
    ) -> Option<Vec<ReadyVisit>> {
        let mut table = self.table();
        let table = &mut *table;
        let host = table.hosts.entry(key.clone()).or_default();
        let early = host.state.unreachable.as_ref().is_some_and(|gone| self.clock.now() < gone.not_before);
        let same = host.failed.as_ref().is_none_or(|failed| **failed == *route);
        if table.closed || host.visit.is_some() || (early && same) {
            return None;
        }
        table.visits += 1;
        let number = table.visits;
        let (what, id) = visit::describe_task(&task);
        host.visit = Some(OngoingVisit { number, waits: true, task: None });
        host.state.doing = Some(HostTask { what, id, since: None, message: String::new() });
        host.told = None;
        table.waits += 1;
        table.waiting.entry(place).or_default().push_back(WaitingVisit { key: key.clone(), number, route, task });
        Some(self.ready(table))
    }

    /// Gives free places to waiting visits, taking the racks in turn.
    fn ready(self: &Arc<Self>, table: &mut PoolState) -> Vec<ReadyVisit> {
        let mut ready = Vec::new();
        while table.waits > 0 && table.taken.overall < self.limits.overall.max(1) {
            let after = table.turn.take();
            let later = table.waiting.keys().filter(|place| after.as_ref().is_none_or(|after| *place > after));
            let first = table.waiting.keys().filter(|place| after.as_ref().is_some_and(|after| *place <= after));
            let Some(place) = later.chain(first).find(|place| table.taken.has_capacity(place, &self.limits)).cloned()
            else {
                table.turn = after;
                break;
            };
            let Some(queue) = table.waiting.get_mut(&place) else { break };
            let next = queue.pop_front();
            if queue.is_empty() {
                table.waiting.remove(&place);
            }
            table.turn = Some(place.clone());
            if let Some(next) = next {
                table.waits -= 1;
                ready.extend(self.visit(table, place, next));
            }
        }
        ready
    }

    fn visit(self: &Arc<Self>, table: &mut PoolState, place: HostLocation, next: WaitingVisit) -> Option<ReadyVisit> {
        let WaitingVisit { key, number, route, task } = next;
        let host = table.hosts.get_mut(&key)?;
        let ongoing = host.visit.as_mut().filter(|ongoing| ongoing.number == number)?;
        let link = host.kept.take().and_then(|kept| {
            table.idle.remove(&kept.since);
            (kept.link.open() && serves(&kept, &route)).then_some(kept.link)
        });
        table.taken.take(&place);
        ongoing.waits = false;
        if let Some(doing) = &mut host.state.doing {
            doing.since = Some(self.clock.now());
        }
        let visit = Visit::new(self.clone(), key.clone(), number, route, place, link);
        Some(ReadyVisit { key, number, visit, task })
    }

    /// Spawns the visits. Not under the lock: a runtime that is shutting down drops a spawned future at once, and with it the visit.
    fn spawn_visits(&self, ready: Vec<ReadyVisit>) {
        for ReadyVisit { key, number, visit, task } in ready {
            let running = tokio::spawn(visit.run(task)).abort_handle();
            let kept = self.update_host(&key, number, |host| {
                if let Some(ongoing) = &mut host.visit {
                    ongoing.task = Some(running.clone());
                }
            });
            // The visit has ended already, or its host was forgotten.
            if kept.is_none() {
                running.abort();
            }
        }
    }

    /// Frees the place for the next visit.
    pub(super) fn give_back(self: &Arc<Self>, place: &HostLocation) {
        let ready = {
            let mut table = self.table();
            table.taken.give_back(place);
            if table.closed { Vec::new() } else { self.ready(&mut table) }
        };
        self.spawn_visits(ready);
    }

    /// Changes the state of the host of a visit, unless the host was forgotten meanwhile.
    fn update_host<T>(&self, key: &Key, number: u64, change: impl FnOnce(&mut Host) -> T) -> Option<T> {
        let mut table = self.table();
        let host = table.hosts.get_mut(key)?;
        let ours = host.visit.as_ref().is_some_and(|ongoing| ongoing.number == number);
        ours.then(|| change(host))
    }

    /// Records that the host answered and is reachable.
    pub(super) fn answered(&self, key: &Key, number: u64, answer: Answer, host_key: &str) {
        let now = self.clock.now();
        self.update_host(key, number, |host| {
            host.state.unreachable = None;
            host.failed = None;
            if host.state.host_key.as_deref() != Some(host_key) {
                host.state.host_key = Some(host_key.into());
            }
            match answer {
                Answer::Observed(seen) => {
                    host.state.seen = Some((now, Arc::new(size_limits::observation(*seen))));
                    host.state.refused = None;
                }
                Answer::Ended(record) | Answer::Recalled(Some(record)) => {
                    host.state.step = Some(size_limits::record(record));
                    (host.state.cleaned, host.state.released) = (false, false);
                    host.state.refused = None;
                }
                Answer::Cleaned => {
                    host.state = HostState { cleaned: true, doing: host.state.doing.take(), ..HostState::default() };
                    host.state.host_key = Some(host_key.into());
                }
                Answer::Released => (host.state.released, host.state.refused) = (true, None),
                Answer::Adopted(_) | Answer::Claimed(_) => host.state.refused = None,
                Answer::Failed(failure) => host.state.refused = Some((now, size_limits::failure(failure))),
                Answer::Progress(_) | Answer::Recalled(None) | Answer::Log(_) => {}
            }
        });
    }

    /// Records the progress of a step. Wakes the machine, but rarely.
    pub(super) fn progress(&self, key: &Key, number: u64, progress: Progress) {
        let Progress { mut doing } = progress;
        size_limits::line(&mut doing);
        let now = self.clock.monotonic();
        let wake = self.update_host(key, number, |host| {
            let Some(state) = &mut host.state.doing else { return false };
            if state.message == doing {
                return false;
            }
            state.message = doing;
            let due = host.told.is_none_or(|told| now.saturating_sub(told) >= PROGRESS_WAKE_INTERVAL);
            if due {
                host.told = Some(now);
            }
            due
        });
        if wake == Some(true) {
            self.waker.wake(key.clone());
        }
    }

    /// Ends the visit. `link` is kept if it can be used again.
    pub(super) fn visit_ended(
        self: &Arc<Self>,
        key: &Key,
        number: u64,
        route: Arc<Route>,
        link: Option<Box<dyn Link>>,
        why: Option<UnreachableCause>,
    ) {
        let mut dropped = Vec::new();
        {
            let mut table = self.table();
            if table.closed {
                return;
            }
            let table = &mut *table;
            let since = (self.clock.monotonic(), number);
            let Some(host) = table.hosts.get_mut(key) else { return };
            if host.visit.as_ref().is_none_or(|ongoing| ongoing.number != number) {
                return;
            }
            host.visit = None;
            host.state.doing = None;
            if let Some(why) = why {
                host.state.unreachable = Some(self.unreachable(host.state.unreachable.as_ref(), why));
                host.failed = Some(route);
                dropped.extend(link);
            } else if let Some(link) = link.filter(|link| link.open() && self.limits.idle_links > 0) {
                host.kept = Some(KeptConnection { link, route, since });
                table.idle.insert(since, key.clone());
                while table.idle.len() > self.limits.idle_links {
                    dropped.extend(table.oldest());
                }
                if table.sweeper.is_none() {
                    table.sweeper = Some(tokio::spawn(close_idle_connections(Arc::downgrade(self))).abort_handle());
                }
            }
        }
        // Closing a connection may take long; the lock must not be held meanwhile.
        drop(dropped);
        self.waker.wake(key.clone());
    }

    fn unreachable(&self, before: Option<&Unreachable>, why: UnreachableCause) -> Unreachable {
        let now = self.clock.now();
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        let Limits { backoff, longest_backoff, .. } = self.limits;
        // A cause that only a person can fix is retried less often.
        let first = if by_hand(&why) { backoff.max(longest_backoff / 10) } else { backoff };
        let doublings = (attempts - 1).min(16);
        let wait = first.saturating_mul(1 << doublings).min(longest_backoff);
        let not_before = now.checked_add(self.random.jitter(wait, JITTER)).unwrap_or(now);
        // Whole milliseconds, like the clock: a task that sleeps until then must not wake too early.
        let not_before = Timestamp::from_millisecond(not_before.as_millisecond()).unwrap_or(not_before);
        Unreachable { since: before.map_or(now, |before| before.since), attempts, why, not_before }
    }

    pub(super) fn state(&self, key: &Key) -> HostState {
        self.table().hosts.get(key).map(|host| host.state.clone()).unwrap_or_default()
    }

    pub(super) fn hurry(&self, key: &Key) {
        let wake = {
            let mut table = self.table();
            let host = table.hosts.get_mut(key);
            match host.and_then(|host| host.state.unreachable.as_mut()) {
                Some(gone) => {
                    gone.not_before = gone.not_before.min(self.clock.now());
                    true
                }
                None => false,
            }
        };
        if wake {
            self.waker.wake(key.clone());
        }
    }

    pub(super) fn recall(&self, key: &Key) {
        let mut table = self.table();
        let Some(host) = table.hosts.get_mut(key) else { return };
        if host.visit.as_ref().is_some_and(|ongoing| ongoing.waits) {
            (host.visit, host.state.doing) = (None, None);
            table.remove_from_queue(key);
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        let host = {
            let mut table = self.table();
            let Some(host) = table.hosts.remove(key) else { return };
            if let Some(kept) = &host.kept {
                table.idle.remove(&kept.since);
            }
            if host.visit.as_ref().is_some_and(|ongoing| ongoing.waits) {
                table.remove_from_queue(key);
            }
            host
        };
        if let Some(task) = host.visit.and_then(|ongoing| ongoing.task) {
            task.abort();
        }
    }

    pub(super) fn counts(&self) -> HostCounts {
        let table = self.table();
        let ongoing = table.hosts.values().filter_map(|host| host.visit.as_ref());
        HostCounts {
            visited: ongoing.filter(|ongoing| !ongoing.waits).count(),
            waiting: table.waits,
            idle_links: table.idle.len(),
            unreachable: table.hosts.values().filter(|host| host.state.unreachable.is_some()).count(),
        }
    }

    /// Starts no further visits; running visits end.
    pub(super) fn close(&self) {
        let (hosts, sweeper) = {
            let mut table = self.table();
            table.closed = true;
            table.waiting.clear();
            table.waits = 0;
            table.idle.clear();
            (std::mem::take(&mut table.hosts), table.sweeper.take())
        };
        let visits = hosts.into_values().filter_map(|host| host.visit.and_then(|ongoing| ongoing.task));
        visits.chain(sweeper).for_each(|task| task.abort());
    }

    /// Closes idle connections; returns when the next one may be due, or none if no connection is kept.
    fn close_idle(&self) -> Option<Duration> {
        let mut dropped = Vec::new();
        let next = {
            let mut table = self.table();
            let now = self.clock.monotonic();
            loop {
                let Some(((since, _), _)) = table.idle.first_key_value() else {
                    table.sweeper = None;
                    break None;
                };
                let due = since.saturating_add(self.limits.link_idle);
                if due > now {
                    break Some(due - now);
                }
                dropped.extend(table.oldest());
            }
        };
        drop(dropped);
        next
    }
}

impl PoolState {
    /// Removes the task of a host from its queue.
    fn remove_from_queue(&mut self, key: &Key) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiting| waiting.key != *key);
            !queue.is_empty()
        });
        self.waits = self.waiting.values().map(VecDeque::len).sum();
    }

    /// Removes the least recently used connection.
    fn oldest(&mut self) -> Option<Box<dyn Link>> {
        let (_, key) = self.idle.pop_first()?;
        self.hosts.get_mut(&key)?.kept.take().map(|kept| kept.link)
    }
}

/// The task that closes all idle connections; ends when none is kept.
async fn close_idle_connections(pool: std::sync::Weak<Pool>) {
    loop {
        let Some(here) = pool.upgrade() else { return };
        let Some(wait) = here.close_idle() else { return };
        let clock = here.clock.clone();
        drop(here);
        clock.sleep(wait).await;
    }
}

/// Whether a kept connection is the one that `route` would give. After the first visit, the host key that was seen first is pinned.
fn serves(kept: &KeptConnection, route: &Arc<Route>) -> bool {
    if Arc::ptr_eq(&kept.route, route) || *kept.route == **route {
        return true;
    }
    let pinned = match (&kept.route.host.trust, &route.host.trust) {
        (Trust::FirstUse, Trust::Keys(keys)) => keys.iter().any(|key| same_key(key, kept.link.host_key())),
        _ => false,
    };
    let as_before = Hop { trust: kept.route.host.trust.clone(), ..route.host.clone() };
    pinned && *kept.route == Route { host: as_before, ..(**route).clone() }
}

/// Compares kind and key; the rest of a key line is a comment.
fn same_key(one: &str, other: &str) -> bool {
    one.split_whitespace().take(2).eq(other.split_whitespace().take(2))
}

fn by_hand(why: &UnreachableCause) -> bool {
    match why {
        UnreachableCause::Reach(error) => !matches!(error, ReachError::Unreachable(_) | ReachError::NoHelper(_)),
        UnreachableCause::Lost(_) => false,
    }
}
