//! Randomness as an argument.

use std::time::Duration;

/// A seeded source of randomness; cheap to clone, clones share the sequence.
#[derive(Clone, Debug)]
pub struct Random {
    _inner: (),
}

impl Random {
    /// The same seed gives the same sequence.
    pub fn seeded(_seed: u64) -> Self {
        todo!()
    }

    /// Seeded by the system.
    pub fn system() -> Self {
        todo!()
    }

    /// A duration between `(1 - share) * duration` and `(1 + share) * duration`.
    pub fn jitter(&self, _duration: Duration, _share: f64) -> Duration {
        todo!()
    }

    /// A number from 0 up to, not including, `end`.
    pub fn below(&self, _end: u64) -> u64 {
        todo!()
    }
}
