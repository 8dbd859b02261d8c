//! The fence of the lease: until when this process may write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::Clock;

/// Tells whether the lease can still be ours; cheap to clone, clones share one fence.
///
/// The fence uses two clocks. The monotonic one cannot be set, but stops while a virtual machine is suspended; the time of day
/// continues then, but can be set back. The lease counts as held only if both clocks agree.
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
    /// A fence that always holds, without a lease.
    pub fn open() -> Self {
        Self::with(State::Open)
    }

    /// A fence that does not hold until [`Fence::hold_until`] is called.
    pub fn closed() -> Self {
        Self::with(State::Closed)
    }

    fn with(state: State) -> Self {
        Self { inner: Arc::new(Mutex::new(state)), number: Arc::default() }
    }

    /// The fencing token, from the API server: it grows with each leader that takes the lease, and is 0 without a lease. A target outside the API
    /// server records the highest token that it received and refuses a lower one, so that a leader that was paused is refused when it resumes.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Release);
    }

    /// Opens the fence until the first of the two moments.
    pub fn hold_until(&self, monotonic: Duration, wall: Timestamp) {
        self.set(State::Until { monotonic, wall });
    }

    /// Closes the fence.
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
        // The virtual machine was suspended: only the time of day advanced.
        fence.hold_until(10 * SECOND, noon - SECOND);
        assert!(!fence.holds(&clock));
        // The time of day was set back: only the monotonic clock shows it.
        fence.hold_until(Duration::ZERO, noon + 3600 * SECOND);
        assert!(!fence.holds(&clock));
        fence.hold_until(10 * SECOND, noon + 10 * SECOND);
        clock.advance(10 * SECOND);
        assert!(!fence.holds(&clock));
    }
}
