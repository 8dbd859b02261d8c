//! The queue of a controller: which object runs next.
//!
//! A queue of keys without I/O: time is an argument, so that it is tested in virtual time. Ten thousand idle keys cost memory only.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::{Key, Options, Random};

/// Priority of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// First pass of an object that existed at the start, and deep checks.
    Low,
    /// A change, or a timer.
    High,
}

impl Priority {
    /// Name in lower case, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
        }
    }
}

/// Result of a pass for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueResult {
    /// Done: nothing to do until something changes.
    AwaitChange,
    /// The object is gone: nothing to do until it is created again.
    Gone,
    /// Run again after that time; there is no error.
    After(Duration),
    /// Retry with backoff.
    Failed,
    /// Decide again with fresh data: when the conflicting change arrives, or else after a moment. After [`MAX_CONFLICT_RETRIES`] in a row it
    /// counts as failed.
    Conflict,
}

/// A key for the next pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DequeuedKey {
    /// The object.
    pub key: Key,
    /// Whether a deep check is due.
    pub deep: bool,
    /// Priority of the pass.
    pub priority: Priority,
    /// Time between being ready and the start of the pass.
    pub waited: Duration,
    /// Number of consecutive passes that ended with a conflict.
    pub agains: u32,
}

/// Number of consecutive conflicts after which a pass counts as failed.
pub const MAX_CONFLICT_RETRIES: u32 = 5;

/// First wait after a conflict, if nothing changes; doubles each time. The watch mostly delivers the conflicting change within milliseconds,
/// and a decision before that would only cause the next conflict.
const FIRST_CONFLICT_RETRY: Duration = Duration::from_millis(10);

/// Number of keys with high priority that run before one with low priority, if there is one.
const HIGH_BEFORE_LOW: u32 = 16;

/// A change runs an object at once although it is in backoff: the change may fix the error. But only once; if it fails
/// again, later changes run it no earlier than this many times the first backoff after its last start. Otherwise an object that changes
/// with each of its failures would never be in backoff.
const HURRY_BACKOFF_FACTOR: u32 = 5;

/// Time since the operator started.
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
    /// When to run without a change.
    wake: Option<(Moment, Priority)>,
    /// When the next deep check is due.
    deep: Option<Moment>,
    /// Time of its entry among the timers.
    timer: Option<Moment>,
    started: Option<Moment>,
    failures: u32,
    agains: u32,
    /// Whether it is in backoff after a failed pass.
    backs_off: bool,
    /// Whether a change has cut short a backoff since the last success.
    hurried: bool,
}

/// Keys of objects, each in at most one pass at a time.
pub struct Queue {
    options: Options,
    random: Random,
    entries: HashMap<Key, Entry>,
    high: VecDeque<Key>,
    low: VecDeque<Key>,
    high_in_a_row: u32,
    timers: BTreeSet<(Moment, Key)>,
    running: usize,
    /// Number of ready keys by priority.
    ready: [usize; 2],
}

impl Queue {
    /// An empty queue.
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

    /// Adds a changed object: it runs now, or after the pass in progress.
    pub fn add(&mut self, key: &Key, priority: Priority, now: Moment) {
        let (backoff, deep_check) = (self.options.backoff, self.options.deep_check);
        let entry = match self.entries.get_mut(key) {
            Some(entry) => entry,
            None => {
                // The first deep check is at a random time in the period, so that a fleet's checks are spread.
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
                // The key stays in the low lane as well, where it is skipped.
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

    /// The next key. The caller must call [`Queue::end`] after the pass.
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
            // A key whose priority rose is in both lanes and is taken from the high one.
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

    /// Ends the pass of that key. Returns the time until its next pass if nothing changes.
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

    /// When the next timer is due. Ready keys have no timer.
    pub fn next_timer(&self) -> Option<Moment> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Number of ready keys with that priority.
    pub fn ready_keys(&self, priority: Priority) -> usize {
        self.ready[priority as usize]
    }

    /// Whether no key is ready at that time and no pass runs; timers that are not due do not count.
    pub fn is_idle(&mut self, now: Moment) -> bool {
        self.tick(now);
        self.running == 0 && self.ready == [0, 0]
    }

    /// Number of keys, including idle ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the queue has no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes keys with due timers ready.
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
                // The key runs anyway. `take` notices a due deep check.
                State::Ready { .. } | State::Running { .. } => {}
            }
        }
    }

    /// Makes an idle key ready, or delays it until it may run again.
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

    /// Sets the timer of a key to the earlier of its wake-up and its deep check.
    fn set_timer(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let due = match entry.state {
            // Ready and running keys need no timer.
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
