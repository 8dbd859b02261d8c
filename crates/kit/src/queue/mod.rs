//! Which object is looked at next.
//!
//! A queue of keys without I/O: time is an argument, so that it is tested in virtual time. Ten thousand idle keys cost memory only.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::{Key, Options, Random};

/// How urgent a look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The first look at what was there before us, and deep checks.
    Low,
    /// Something changed, or a time came.
    High,
}

impl Priority {
    /// In lower case, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
        }
    }
}

/// How a pass ended, as far as the queue is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueResult {
    /// Well, or as well as it can until something changes.
    AwaitChange,
    /// The object is gone: nothing more to do until it comes back.
    Gone,
    /// Look again after that long; nothing is wrong.
    After(Duration),
    /// Try again, later each time.
    Failed,
    /// Decide again on fresh data: when the change comes that was in the way, or else after a moment. After [`MAX_CONFLICT_RETRIES`] in a row it
    /// counts as failed.
    Conflict,
}

/// What to look at now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DequeuedKey {
    /// The object.
    pub key: Key,
    /// Whether a deep check is due.
    pub deep: bool,
    /// How urgent it was.
    pub priority: Priority,
    /// For how long it was ready and waited for a worker.
    pub waited: Duration,
    /// How many passes in a row ended because somebody else wrote in between.
    pub agains: u32,
}

/// So many times in a row a pass is repeated because somebody else wrote in between.
pub const MAX_CONFLICT_RETRIES: u32 = 5;

/// The first wait before it is repeated, if nothing changes; doubles each time. The watch mostly tells within milliseconds what was in the way,
/// and to decide again before it does would only be refused again.
const FIRST_CONFLICT_RETRY: Duration = Duration::from_millis(10);

/// So many urgent keys are taken before one that is not, if there is one.
const HIGH_BEFORE_LOW: u32 = 16;

/// A change runs an object at once although it waits after an error: it may be what mends it. But only once; if it fails
/// again, later changes run it no sooner than this many times the first backoff after its last start. Otherwise an object that changes
/// with each of its failures would never wait.
const HURRY_BACKOFF_FACTOR: u32 = 5;

/// When the time since the operator began is meant.
type Moment = Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Ready { priority: Priority, since: Moment },
    Running { again: Option<Priority> },
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// When to look although nothing changed.
    wake: Option<(Moment, Priority)>,
    /// When the next deep check is due.
    deep: Option<Moment>,
    /// Where it is among the timers.
    timer: Option<Moment>,
    started: Option<Moment>,
    failures: u32,
    agains: u32,
    /// Whether it waits because a pass failed.
    backs_off: bool,
    /// Whether a change has cut a wait short since the last success.
    hurried: bool,
}

/// Keys to look at, each at most once at a time.
pub struct Queue {
    options: Options,
    random: Random,
    entries: HashMap<Key, Entry>,
    high: VecDeque<Key>,
    low: VecDeque<Key>,
    high_in_a_row: u32,
    timers: BTreeSet<(Moment, Key)>,
    running: usize,
    /// By priority.
    ready: [usize; 2],
}

impl Queue {
    /// Without keys.
    pub fn new(options: Options, random: Random) -> Self {
        Self {
            options,
            random,
            entries: HashMap::new(),
            high: VecDeque::new(),
            low: VecDeque::new(),
            high_in_a_row: 0,
            timers: BTreeSet::new(),
            running: 0,
            ready: [0; 2],
        }
    }

    /// Something changed: look at the object, now or when the pass under way has ended.
    pub fn add(&mut self, key: &Key, priority: Priority, now: Moment) {
        let (backoff, deep_check) = (self.options.backoff, self.options.deep_check);
        let entry = match self.entries.get_mut(key) {
            Some(entry) => entry,
            None => {
                // The first deep check is anywhere in the period, so that those of a fleet spread over it.
                let spread =
                    |period: Duration| now + Duration::from_secs_f64(period.as_secs_f64() * self.random.fraction());
                self.entries.entry(key.clone()).or_insert(Entry { deep: deep_check.map(spread), ..Entry::default() })
            }
        };
        match &mut entry.state {
            State::Running { again } => *again = Some(again.map_or(priority, |before| before.max(priority))),
            State::Ready { priority: before, .. } if *before >= priority => {}
            State::Ready { priority: before, .. } => {
                self.ready[*before as usize] -= 1;
                self.ready[priority as usize] += 1;
                *before = priority;
                // It stays among the others as well, where it is passed over.
                self.high.push_back(key.clone());
            }
            State::Idle if entry.backs_off && entry.hurried => {
                let soonest = entry.started.unwrap_or_default() + backoff * HURRY_BACKOFF_FACTOR;
                let due = entry.wake.map_or(soonest, |(due, _)| due.min(soonest));
                entry.wake = Some((due, Priority::High));
                self.set_timer(key);
                self.tick(now);
            }
            State::Idle => {
                entry.hurried |= entry.backs_off;
                self.put_in_line(key, priority, now);
            }
        }
    }

    /// The next key to look at. Who takes it must call [`Queue::end`].
    pub fn take(&mut self, now: Moment) -> Option<DequeuedKey> {
        self.tick(now);
        loop {
            let low_first = self.high_in_a_row >= HIGH_BEFORE_LOW || self.high.is_empty();
            let (key, lane) = match (low_first, self.low.pop_front()) {
                (true, Some(key)) => (key, Priority::Low),
                (_, low) => {
                    if let Some(low) = low {
                        self.low.push_front(low);
                    }
                    (self.high.pop_front()?, Priority::High)
                }
            };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            // One whose priority rose is in both lanes and taken from the better one.
            let State::Ready { priority, since } = entry.state else { continue };
            if priority != lane {
                continue;
            }
            self.high_in_a_row = if lane == Priority::High { self.high_in_a_row + 1 } else { 0 };
            entry.state = State::Running { again: None };
            entry.started = Some(now);
            entry.wake = None;
            let deep = entry.deep.is_some_and(|due| due <= now);
            if deep {
                entry.deep = None;
            }
            let agains = entry.agains;
            self.ready[lane as usize] -= 1;
            self.running += 1;
            self.set_timer(&key);
            return Some(DequeuedKey { key, deep, priority, waited: now.saturating_sub(since), agains });
        }
    }

    /// The pass over that key has ended. Returns after how long it is looked at again if nothing changes.
    pub fn end(&mut self, key: &Key, ended: QueueResult, now: Moment) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let State::Running { again } = entry.state else { return None };
        self.running -= 1;
        entry.state = State::Idle;
        if ended == QueueResult::Conflict {
            entry.agains += 1;
        } else {
            entry.agains = 0;
        }
        let failed = ended == QueueResult::Failed || entry.agains > MAX_CONFLICT_RETRIES;
        if failed {
            entry.failures += 1;
        } else {
            entry.failures = 0;
            entry.hurried = false;
        }
        entry.backs_off = failed;
        let wait = match ended {
            QueueResult::AwaitChange | QueueResult::Gone => None,
            QueueResult::After(wait) => Some(wait),
            QueueResult::Conflict if !failed => Some(FIRST_CONFLICT_RETRY * (1 << (entry.agains - 1))),
            QueueResult::Conflict | QueueResult::Failed => {
                let doubled = self.options.backoff.saturating_mul(1 << (entry.failures - 1).min(20));
                Some(self.random.jitter(doubled.min(self.options.longest_backoff), 0.2))
            }
        };
        if ended == QueueResult::Gone && again.is_none() {
            self.forget(key);
            return None;
        }
        entry.wake = wait.map(|wait| (now.saturating_add(wait), Priority::High));
        if entry.deep.is_none() {
            entry.deep = self.options.deep_check.map(|period| now + self.random.jitter(period, 0.2));
        }
        self.set_timer(key);
        if let Some(priority) = again {
            self.add(key, priority, now);
        }
        wait
    }

    /// When a timer is due next. Keys that are ready already are no timers.
    pub fn next_timer(&self) -> Option<Moment> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// How many keys are ready with that priority.
    pub fn ready_keys(&self, priority: Priority) -> usize {
        self.ready[priority as usize]
    }

    /// Whether no key is ready at that time and no pass runs; timers that are not due do not count.
    pub fn is_idle(&mut self, now: Moment) -> bool {
        self.tick(now);
        self.running == 0 && self.ready == [0, 0]
    }

    /// How many keys there are, idle ones too.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes ready what is due.
    fn tick(&mut self, now: Moment) {
        while let Some((due, key)) = self.timers.first().cloned() {
            if due > now {
                return;
            }
            self.timers.remove(&(due, key.clone()));
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.timer = None;
            let woken = entry.wake.filter(|(due, _)| *due <= now).map(|(_, priority)| priority);
            if woken.is_some() {
                entry.wake = None;
            }
            match entry.state {
                State::Idle => self.put_in_line(&key, woken.unwrap_or(Priority::Low), now),
                // It will be looked at anyway. A deep check that is due is seen when it is taken.
                State::Ready { .. } | State::Running { .. } => {}
            }
        }
    }

    /// Puts an idle key in line, or off until it may run again.
    fn put_in_line(&mut self, key: &Key, priority: Priority, now: Moment) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let soonest = entry.started.map_or(now, |started| started + self.options.at_most_every);
        if soonest > now {
            let before = entry.wake.map_or(priority, |(_, before)| before);
            entry.wake = Some((soonest, before.max(priority)));
        } else {
            entry.wake = None;
            entry.state = State::Ready { priority, since: now };
            self.ready[priority as usize] += 1;
            match priority {
                Priority::High => self.high.push_back(key.clone()),
                Priority::Low => self.low.push_back(key.clone()),
            }
        }
        self.set_timer(key);
    }

    /// Keeps the one timer of a key at the earlier of its wake-up and its deep check.
    fn set_timer(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let due = match entry.state {
            // Ready and running ones are looked at without a timer.
            State::Ready { .. } | State::Running { .. } => None,
            State::Idle => {
                let mut deep = entry.deep;
                if let (Some(due), Some(started)) = (deep, entry.started) {
                    deep = Some(due.max(started + self.options.at_most_every));
                }
                [entry.wake.map(|(due, _)| due), deep].into_iter().flatten().min()
            }
        };
        if due == entry.timer {
            return;
        }
        if let Some(before) = std::mem::replace(&mut entry.timer, due) {
            self.timers.remove(&(before, key.clone()));
        }
        if let Some(due) = due {
            self.timers.insert((due, key.clone()));
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key)
            && let Some(due) = entry.timer
        {
            self.timers.remove(&(due, key.clone()));
        }
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            state: State::Idle,
            wake: None,
            deep: None,
            timer: None,
            started: None,
            failures: 0,
            agains: 0,
            backs_off: false,
            hurried: false,
        }
    }
}
