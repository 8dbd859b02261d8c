//! Time as an argument.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// A clock with timers: the system's clock, or a manual one that a test advances. Cheap to clone.
///
/// All waiting of the kit goes through one, so that a scenario runs in virtual time: a manual clock's sleepers wake
/// when it is advanced and at no other moment.
#[derive(Clone, Debug)]
pub struct Clock {
    inner: Inner,
}

#[derive(Clone, Debug)]
enum Inner {
    /// Start of monotonic time. `Instant` continues while the process is stopped, which the lease relies on.
    System(Instant),
    Manual(Arc<Mutex<Manual>>),
}

#[derive(Debug)]
struct Manual {
    start: Timestamp,
    elapsed: Duration,
    /// Sleepers by due time, and by a sequence number for equal times.
    sleepers: BTreeMap<(Duration, u64), Waker>,
    last_sleeper: u64,
}

/// Longest sleep of [`Clock::sleep_until`] on the system's clock, after which the time of day is read again:
/// it may have been set, or the machine suspended.
const MAX_SLEEP: Duration = Duration::from_secs(30);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { inner: Inner::System(Instant::now()) }
    }

    /// A clock that stays at `start` until it is advanced.
    pub fn manual(start: Timestamp) -> Self {
        let manual = Manual { start, elapsed: Duration::ZERO, sleepers: BTreeMap::new(), last_sleeper: 0 };
        Self { inner: Inner::Manual(Arc::new(Mutex::new(manual))) }
    }

    /// The time of day, in whole milliseconds.
    pub fn now(&self) -> Timestamp {
        let now = match &self.inner {
            Inner::System(_) => Timestamp::now(),
            Inner::Manual(manual) => {
                let manual = lock(manual);
                later(manual.start, manual.elapsed)
            }
        };
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Time since an arbitrary moment; never decreases, and continues while the process is stopped.
    pub fn monotonic(&self) -> Duration {
        match &self.inner {
            Inner::System(start) => start.elapsed(),
            Inner::Manual(manual) => lock(manual).elapsed,
        }
    }

    /// Sleeps for that duration.
    pub async fn sleep(&self, duration: Duration) {
        match &self.inner {
            Inner::System(_) => tokio::time::sleep(duration).await,
            Inner::Manual(manual) => {
                let due = lock(manual).elapsed.saturating_add(duration);
                Sleep { manual: manual.clone(), due, number: None }.await;
            }
        }
    }

    /// Sleeps until [`Clock::now`] is at least `time`.
    pub async fn sleep_until(&self, time: Timestamp) {
        loop {
            let left = Duration::try_from(time.duration_since(self.now())).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            match self.inner {
                Inner::System(_) => self.sleep(left.min(MAX_SLEEP)).await,
                Inner::Manual(_) => self.sleep(left).await,
            }
        }
    }

    /// Advances a manual clock and wakes the sleepers that are due. Has no effect on the system's clock.
    pub fn advance(&self, duration: Duration) {
        let Inner::Manual(manual) = &self.inner else { return };
        let due = {
            let mut manual = lock(manual);
            manual.elapsed = manual.elapsed.saturating_add(duration);
            let now = manual.elapsed;
            let rest = manual.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut manual.sleepers, rest)
        };
        // Woken outside the lock: a waker may poll its future at once, which reads the clock.
        due.into_values().for_each(Waker::wake);
    }

    /// Due time of the next sleeper of a manual clock. `None` without sleepers, and for the system's clock.
    pub fn next_timer(&self) -> Option<Timestamp> {
        let Inner::Manual(manual) = &self.inner else { return None };
        let manual = lock(manual);
        manual.sleepers.first_key_value().map(|((due, _), _)| later(manual.start, *due))
    }
}

/// A sleeper of a manual clock.
struct Sleep {
    manual: Arc<Mutex<Manual>>,
    due: Duration,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut manual = lock(&this.manual);
        if manual.elapsed >= this.due {
            return Poll::Ready(());
        }
        let number = *this.number.get_or_insert_with(|| {
            manual.last_sleeper += 1;
            manual.last_sleeper
        });
        manual.sleepers.insert((this.due, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // A test must not advance to the time of a dropped sleeper.
        if let Some(number) = self.number {
            lock(&self.manual).sleepers.remove(&(self.due, number));
        }
    }
}

fn lock(manual: &Mutex<Manual>) -> std::sync::MutexGuard<'_, Manual> {
    manual.lock().unwrap_or_else(PoisonError::into_inner)
}

fn later(time: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration)
        .ok()
        .and_then(|duration| time.checked_add(duration).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn noon() -> Timestamp {
        "2026-11-16T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_manual_clock_stands_still_until_it_is_advanced() {
        let clock = Clock::manual(noon());
        let mut sleep = Box::pin(clock.sleep(Duration::from_secs(2)));
        assert!(sleep.as_mut().now_or_never().is_none());
        assert_eq!(clock.next_timer(), Some("2026-11-16T12:00:02Z".parse().unwrap()));
        clock.advance(Duration::from_millis(1999));
        assert!(sleep.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_millis(1));
        assert!(sleep.as_mut().now_or_never().is_some());
        assert_eq!(clock.now(), "2026-11-16T12:00:02Z".parse().unwrap());
        assert_eq!(clock.monotonic(), Duration::from_secs(2));
        assert_eq!(clock.next_timer(), None);
    }

    #[test]
    fn a_sleeper_that_was_given_up_is_no_timer() {
        let clock = Clock::manual(noon());
        let mut sleep = Box::pin(clock.sleep_until("2026-11-16T13:00:00Z".parse().unwrap()));
        assert!(sleep.as_mut().now_or_never().is_none());
        assert!(clock.next_timer().is_some());
        drop(sleep);
        assert_eq!(clock.next_timer(), None);
    }

    #[test]
    fn time_has_whole_milliseconds() {
        for clock in [Clock::system(), Clock::manual("2026-11-16T12:00:00.0009Z".parse().unwrap())] {
            assert_eq!(clock.now().subsec_nanosecond() % 1_000_000, 0);
        }
    }

    #[tokio::test]
    async fn sleepers_on_other_threads_wake_when_time_comes() {
        let clock = Clock::manual(noon());
        let sleepers: Vec<_> = (1..=50u64)
            .map(|n| {
                let clock = clock.clone();
                tokio::spawn(async move {
                    clock.sleep(Duration::from_secs(n)).await;
                    clock.monotonic()
                })
            })
            .collect();
        while !sleepers.iter().all(|sleeper| sleeper.is_finished()) {
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        for (n, sleeper) in sleepers.into_iter().enumerate() {
            assert!(sleeper.await.unwrap() > Duration::from_secs(n as u64));
        }
    }
}
