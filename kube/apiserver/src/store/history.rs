//! The history of one resource: its changes in order, as far back as the limits allow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Key, Object};

/// A revision that is no longer in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Compacted {
    /// The requested revision.
    pub requested: u64,
    /// The oldest available revision.
    pub oldest: u64,
}

/// The limits of the history of each resource. The first limit that is reached counts.
#[derive(Clone, Debug)]
pub struct HistoryLimits {
    /// The maximal number of changes.
    pub history_events: usize,
    /// The maximal age of a change.
    pub history_age: Duration,
    /// The maximal size in bytes of JSON that only the history needs.
    pub history_bytes: usize,
}

impl Default for HistoryLimits {
    /// etcd's five minutes, unless ten thousand changes or 32 MiB are reached earlier.
    fn default() -> Self {
        Self { history_events: 10_000, history_age: Duration::from_secs(300), history_bytes: 32 << 20 }
    }
}

/// The type of a change for a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEventType {
    /// The object is new to the watcher.
    Added,
    /// The watcher knew an older version.
    Modified,
    /// The object was deleted, or left the watcher's selector.
    Deleted,
}

impl WatchEventType {
    /// The `type` of the watch event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// The revision that the change made.
    pub revision: u64,
    /// The object before, unless it was created.
    pub prev: Option<Arc<Object>>,
    /// The object after, unless it was deleted.
    pub now: Option<Arc<Object>>,
    at: Instant,
    frames: [OnceLock<Bytes>; 3],
}

impl Event {
    pub(super) fn new(revision: u64, prev: Option<Arc<Object>>, now: Option<Arc<Object>>) -> Self {
        Self { revision, prev, now, at: Instant::now(), frames: Default::default() }
    }

    /// The object's key.
    pub fn key(&self) -> Option<&Key> {
        self.now.as_ref().or(self.prev.as_ref()).map(|object| &object.key)
    }

    /// The type of the change for a watcher with this filter; none when it does not concern the watcher.
    pub fn event_type_for(&self, mut filter: impl FnMut(&Object) -> bool) -> Option<WatchEventType> {
        let before = self.prev.as_deref().is_some_and(&mut filter);
        let after = self.now.as_deref().is_some_and(filter);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(WatchEventType::Added),
            (true, true) => Some(WatchEventType::Modified),
            (true, false) => Some(WatchEventType::Deleted),
        }
    }

    /// The version of the object for a watcher: the one after the change or, when the object was deleted or left
    /// the selector, the last stored one.
    pub fn stored_object(&self, event_type: WatchEventType) -> Option<&Arc<Object>> {
        match event_type {
            WatchEventType::Added | WatchEventType::Modified => self.now.as_ref(),
            WatchEventType::Deleted => self.prev.as_ref(),
        }
    }

    /// The object for a watcher, always with the resourceVersion of this change.
    pub fn object_to_send(&self, event_type: WatchEventType) -> Option<Arc<Object>> {
        self.stored_object(event_type).map(|object| object.at(self.revision))
    }

    /// The watch event in the stored version, a line of JSON. Encoded once for all watchers.
    pub fn frame(&self, event_type: WatchEventType) -> Option<Bytes> {
        let slot = self.frames.get(event_type as usize)?;
        if let Some(frame) = slot.get() {
            return Some(frame.clone());
        }
        let object = self.object_to_send(event_type)?;
        Some(slot.get_or_init(|| frame(event_type.as_str(), &object.json)).clone())
    }

    /// The bytes that dropping this event would free.
    fn retained_bytes(&self) -> usize {
        let size = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |o| o.json.len());
        size(&self.prev) + size(&self.now)
    }
}

/// One watch event as a line of JSON.
pub fn frame(kind: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}

/// The changes of one resource, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Changes up to this revision are dropped; the later ones are complete.
    floor: u64,
}

impl History {
    pub(super) fn starting_after(floor: u64) -> Self {
        Self { floor, ..Self::default() }
    }

    pub(super) fn push(&mut self, event: Arc<Event>, limits: &HistoryLimits) {
        self.bytes += event.retained_bytes();
        self.events.push_back(event);
        self.trim(limits);
    }

    /// Drops changes beyond the limits.
    pub(super) fn trim(&mut self, limits: &HistoryLimits) {
        while let Some(oldest) = self.events.front() {
            let over = self.events.len() > limits.history_events || self.bytes > limits.history_bytes;
            if !over && oldest.at.elapsed() <= limits.history_age {
                break;
            }
            self.forget_oldest();
        }
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    /// Drops all changes up to a revision.
    pub(super) fn compact(&mut self, revision: u64) {
        while self.events.front().is_some_and(|oldest| oldest.revision <= revision) {
            self.forget_oldest();
        }
        self.floor = self.floor.max(revision);
    }

    fn forget_oldest(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes = self.bytes.saturating_sub(event.retained_bytes());
            self.floor = self.floor.max(event.revision);
        }
    }

    pub(super) fn reaches(&self, revision: u64) -> Result<(), Compacted> {
        if revision < self.floor { Err(Compacted { requested: revision, oldest: self.floor }) } else { Ok(()) }
    }

    /// At most `most` changes after a revision.
    pub(super) fn after(&self, revision: u64, most: usize) -> Result<Vec<Arc<Event>>, Compacted> {
        self.reaches(revision)?;
        let from = self.events.partition_point(|event| event.revision <= revision);
        Ok(self.events.range(from..).take(most).cloned().collect())
    }

    /// For each key that changed after a revision, the object as it was at that revision.
    pub(super) fn undo(&self, revision: u64) -> Result<BTreeMap<Key, Option<Arc<Object>>>, Compacted> {
        self.reaches(revision)?;
        let mut past = BTreeMap::new();
        for event in self.events.iter().rev().take_while(|event| event.revision > revision) {
            if let Some(key) = event.key() {
                past.insert(key.clone(), event.prev.clone());
            }
        }
        Ok(past)
    }
}
