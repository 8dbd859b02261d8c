//! Time as an argument.

use std::time::Duration;

use jiff::Timestamp;

/// Tells the time and wakes sleepers: the system's clock, or one that a test moves by hand. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock {
    _inner: (),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        todo!()
    }

    /// A clock that stands still at `start` until it is advanced.
    pub fn manual(_start: Timestamp) -> Self {
        todo!()
    }

    /// The time of day, in milliseconds.
    pub fn now(&self) -> Timestamp {
        todo!()
    }

    /// Time since some moment; never goes back, and goes on while the process is stopped.
    pub fn monotonic(&self) -> Duration {
        todo!()
    }

    /// Returns after that long.
    pub async fn sleep(&self, _duration: Duration) {
        todo!()
    }

    /// Returns when [`Clock::now`] is at least `time`.
    pub async fn sleep_until(&self, _time: Timestamp) {
        todo!()
    }

    /// Moves a manual clock and wakes who is due. Does nothing to the system's clock.
    pub fn advance(&self, _duration: Duration) {
        todo!()
    }

    /// When the next sleeper of a manual clock is due.
    pub fn next_timer(&self) -> Option<Timestamp> {
        todo!()
    }
}
