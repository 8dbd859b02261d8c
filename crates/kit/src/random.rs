//! Randomness as an argument.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A seeded source of randomness; cheap to clone, clones share the sequence.
#[derive(Clone, Debug)]
pub struct Random {
    inner: Arc<Mutex<fastrand::Rng>>,
}

impl Random {
    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Self { inner: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))) }
    }

    /// Seeded by the system.
    pub fn system() -> Self {
        Self { inner: Arc::new(Mutex::new(fastrand::Rng::new())) }
    }

    /// A duration between `(1 - share) * duration` and `(1 + share) * duration`.
    pub fn jitter(&self, duration: Duration, share: f64) -> Duration {
        let share = share.clamp(0.0, 1.0);
        let factor = 1.0 - share + 2.0 * share * self.fraction();
        Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(duration)
    }

    /// A number from 0 up to, not including, `end`; 0 if that is empty.
    pub fn below(&self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.rng(|rng| rng.u64(..end)) }
    }

    /// A number from 0 up to, not including, 1.
    pub fn fraction(&self) -> f64 {
        self.rng(fastrand::Rng::f64)
    }

    fn rng<T>(&self, take: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        take(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_sequence_and_jitter_stays_within_its_share() {
        let (one, two) = (Random::seeded(7), Random::seeded(7));
        let minute = Duration::from_secs(60);
        for _ in 0..1000 {
            let jittered = one.jitter(minute, 0.2);
            assert_eq!(jittered, two.jitter(minute, 0.2));
            assert!(jittered >= Duration::from_secs(48) && jittered <= Duration::from_secs(72), "{jittered:?}");
            assert_eq!(one.below(10), two.below(10));
        }
        assert_eq!(one.below(0), 0);
    }
}
