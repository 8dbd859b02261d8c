//! Until when we may write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::Clock;

/// Says whether the lease can still be ours; cheap to clone, clones are one fence.
///
/// It looks at two clocks. The monotonic one cannot be set, but stands still while a virtual machine is suspended; the time of day goes
/// on then, but can be set back. Only if both say that the lease lasts, it lasts.
#[derive(Clone, Debug)]
pub struct Fence {
    inner: Arc<Mutex<State>>,
    number: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Closed,
    Until { monotonic: Duration, wall: Timestamp },
}

impl Fence {
    /// One that always holds: there is no lease.
    pub fn open() -> Self {
        Self::with(State::Open)
    }

    /// One that does not hold until [`Fence::hold_until`] is called.
    pub fn closed() -> Self {
        Self::with(State::Closed)
    }

    fn with(state: State) -> Self {
        Self { inner: Arc::new(Mutex::new(state)), number: Arc::default() }
    }

    /// The fencing token, from the API server: it grows with each leader that takes the lease, and is 0 without a lease. What is acted on outside the API server remembers the highest that it
    /// heard and does not listen to a lower one, so that a leader that was paused is refused when it goes on.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Release);
    }

    /// Holds until the first of the two moments.
    pub fn hold_until(&self, monotonic: Duration, wall: Timestamp) {
        self.set(State::Until { monotonic, wall });
    }

    /// Holds no longer.
    pub fn close(&self) {
        self.set(State::Closed);
    }

    /// Whether the lease can still be ours.
    pub fn holds(&self, clock: &Clock) -> bool {
        match *self.inner.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open => true,
            State::Closed => false,
            State::Until { monotonic, wall } => clock.monotonic() < monotonic && clock.now() < wall,
        }
    }

    fn set(&self, state: State) {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn either_clock_ends_it() {
        let noon: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let clock = Clock::manual(noon);
        let fence = Fence::closed();
        assert!(!fence.holds(&clock));
        fence.hold_until(10 * SECOND, noon + 10 * SECOND);
        assert!(fence.holds(&clock));
        // The virtual machine was suspended: only the time of day went on.
        fence.hold_until(10 * SECOND, noon - SECOND);
        assert!(!fence.holds(&clock));
        // The time of day was set back: only the monotonic clock tells.
        fence.hold_until(Duration::ZERO, noon + 3600 * SECOND);
        assert!(!fence.holds(&clock));
        fence.hold_until(10 * SECOND, noon + 10 * SECOND);
        clock.advance(10 * SECOND);
        assert!(!fence.holds(&clock));
    }
}
