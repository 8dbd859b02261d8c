//! Follows changes from a revision on.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::history::History;
use super::{Compacted, Event, Inner, Store};

/// The most changes that one poll returns, so that a slow watcher does not hold the lock for long.
const BATCH: usize = 512;

/// Changes in the order in which they happened.
#[derive(Debug, Default)]
pub struct Batch {
    /// The changes.
    pub events: Vec<Arc<Event>>,
    /// The revision up to which the follower has seen everything.
    pub progress: u64,
}

/// The reason why a cursor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The follower was too slow: changes that it has not seen were compacted.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// The resource was dropped.
    #[error("the resource is no longer served")]
    Ended,
}

/// A position in the history of one resource, or of all.
#[derive(Debug)]
pub struct Cursor {
    inner: Arc<Inner>,
    resource: Option<Arc<str>>,
    incarnation: u64,
    seen: u64,
    wake: watch::Receiver<u64>,
    /// The final history of a resource that was dropped.
    last: Arc<OnceLock<History>>,
}

impl Store {
    /// Follows a resource from the first change after a revision.
    pub fn watch(&self, resource: &str, from_revision: u64) -> Result<Cursor, Compacted> {
        let mut state = self.inner.write();
        let table = state.table(resource);
        table.history.reaches(from_revision)?;
        let (incarnation, wake, last) = (table.incarnation, table.wake.subscribe(), table.last.clone());
        Ok(Cursor {
            inner: self.inner.clone(),
            resource: Some(resource.into()),
            incarnation,
            seen: from_revision,
            wake,
            last,
        })
    }

    /// Follows every resource from the first change after a revision, in one order. It fails with `Compacted` when any
    /// resource drops a change that it has not seen; a dropped resource just has no more changes.
    pub fn watch_all(&self, from_revision: u64) -> Result<Cursor, Compacted> {
        let state = self.inner.read();
        for table in state.tables.values() {
            table.history.reaches(from_revision)?;
        }
        let wake = self.inner.wake.subscribe();
        let (inner, last) = (self.inner.clone(), Arc::default());
        Ok(Cursor { inner, resource: None, incarnation: 0, seen: from_revision, wake, last })
    }

    /// Waits until the store reaches a revision. After a timeout, the error is the present revision.
    pub async fn reach(&self, revision: u64, patience: Duration) -> Result<(), u64> {
        if self.revision() >= revision {
            return Ok(());
        }
        let mut wake = self.inner.wake.subscribe();
        let reached = tokio::time::timeout(patience, wake.wait_for(|now| *now >= revision)).await;
        if matches!(reached, Ok(Ok(_))) { Ok(()) } else { Err(self.revision()) }
    }
}

impl Cursor {
    /// The changes since the last call; an empty batch is valid.
    pub fn poll_changes(&mut self) -> Result<Batch, WatchError> {
        self.wake.borrow_and_update();
        let state = self.inner.read();
        let mut events = Vec::new();
        match &self.resource {
            Some(resource) => {
                let table = state.tables.get(resource).filter(|table| table.incarnation == self.incarnation);
                let history = table.map(|table| &table.history).or_else(|| self.last.get());
                events = history.ok_or(WatchError::Ended)?.after(self.seen, BATCH)?;
                if table.is_none() && events.is_empty() {
                    return Err(WatchError::Ended);
                }
            }
            None => {
                for table in state.tables.values().filter(|table| table.changed > self.seen) {
                    events.extend(table.history.after(self.seen, BATCH)?);
                }
                events.sort_by_key(|event: &Arc<Event>| event.revision);
                events.truncate(BATCH);
            }
        }
        // A full batch may have left changes behind, so progress is limited to its content.
        let progress = match events.last() {
            Some(last) if events.len() == BATCH => last.revision,
            _ => state.revision,
        };
        self.seen = self.seen.max(progress);
        Ok(Batch { events, progress: self.seen })
    }

    /// Waits until something changes. Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Batch, WatchError> {
        loop {
            let batch = self.poll_changes()?;
            if !batch.events.is_empty() {
                return Ok(batch);
            }
            self.wake.changed().await.map_err(|_| WatchError::Ended)?;
        }
    }

    /// The revision up to which everything was seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}
