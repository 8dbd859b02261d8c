//! Whether an operator is idle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::worker::ControllerQueue;
use crate::Clock;
use crate::cache::Fill;
use crate::events::Events;

/// Reports whether an operator is idle, and its progress. Cheap to clone.
#[derive(Clone)]
pub struct Idle {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    events: Events,
    caches: Mutex<Vec<Arc<dyn Fill>>>,
    lines: Mutex<Vec<ControllerQueue>>,
    opened: AtomicBool,
    leads: AtomicBool,
    passes: AtomicU64,
    stopping: watch::Sender<bool>,
}

impl Idle {
    pub(super) fn new(clock: Clock, events: Events) -> Self {
        let inner = Inner {
            clock,
            events,
            caches: Mutex::default(),
            lines: Mutex::default(),
            opened: AtomicBool::new(false),
            leads: AtomicBool::new(false),
            passes: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether the caches are full, no pass runs, no key is ready for one, and no event waits to be sent. Timers do not count, and changes that the
    /// API server has not sent yet are unknown. An operator that does not lead is idle once its caches are full.
    ///
    /// A pass that waits on the clock (for an answer that does not arrive, for example) is not idle: a test that advances a manual clock should also
    /// do so if nothing happens for a while.
    pub fn is_idle(&self) -> bool {
        let now = self.inner.clock.monotonic();
        self.synced()
            && (!self.leading() || lock(&self.inner.lines).iter().all(|line| line.is_idle(now)))
            && self.inner.events.is_idle()
    }

    /// Whether all caches are full.
    pub fn synced(&self) -> bool {
        self.inner.opened.load(Ordering::Acquire)
    }

    /// The kinds whose caches are not full yet.
    pub fn missing(&self) -> Vec<String> {
        lock(&self.inner.caches).iter().filter(|cache| !cache.synced()).map(|cache| cache.kind()).collect()
    }

    /// Whether passes run.
    pub fn leading(&self) -> bool {
        self.inner.leads.load(Ordering::Acquire)
    }

    /// Number of passes that have ended.
    pub fn passes(&self) -> u64 {
        self.inner.passes.load(Ordering::Acquire)
    }

    pub(super) fn add_cache(&self, cache: Arc<dyn Fill>) {
        lock(&self.inner.caches).push(cache);
    }

    pub(super) fn add_line(&self, line: ControllerQueue) {
        lock(&self.inner.lines).push(line);
    }

    pub(super) fn caches(&self) -> Vec<Arc<dyn Fill>> {
        lock(&self.inner.caches).clone()
    }

    pub(super) fn opened(&self) {
        self.inner.opened.store(true, Ordering::Release);
    }

    pub(super) fn leads(&self) {
        self.inner.leads.store(true, Ordering::Release);
    }

    pub(super) fn passed(&self) {
        self.inner.passes.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn stopping(&self) -> &watch::Sender<bool> {
        &self.inner.stopping
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
