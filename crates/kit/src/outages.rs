//! Outages of the API server.
//!
//! A deadline that only the API server can show to be met (a Node that must join) must not count time in which
//! it could show nothing. Every watch reports here when it fails and when it is established again: between the two its cache is stale,
//! which can last longer than the outage itself, because watches back off.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// The number of ended outages that are kept. Deadlines are minutes long; older outages do not matter.
const MAX_OUTAGES: usize = 64;

/// A time in which at least one watch had failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The first watch failed.
    pub from: Timestamp,
    /// All watches were established again; for an outage in progress, the time of the query.
    pub to: Timestamp,
}

/// Outages that this process observed. Cheap to clone; clones share.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of failed watches.
    down: usize,
    /// Since when at least one watch has failed.
    since: Option<Timestamp>,
    ended: VecDeque<Outage>,
}

impl Outages {
    /// Records that a watch failed because the API server did not answer.
    pub(crate) fn begin(&self, now: Timestamp) {
        let mut state = self.state();
        state.down += 1;
        state.since.get_or_insert(now);
    }

    /// Records that a failed watch is established again.
    pub(crate) fn end(&self, now: Timestamp) {
        let mut state = self.state();
        state.down = state.down.saturating_sub(1);
        if state.down > 0 {
            return;
        }
        if let Some(from) = state.since.take() {
            if state.ended.len() == MAX_OUTAGES {
                state.ended.pop_front();
            }
            state.ended.push_back(Outage { from, to: now });
        }
    }

    /// All recorded outages, oldest first. The last one may be in progress.
    pub fn until(&self, now: Timestamp) -> Vec<Outage> {
        let state = self.state();
        let open = state.since.map(|from| Outage { from, to: now.max(from) });
        state.ended.iter().copied().chain(open).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_until_the_last_watch_is_established_again() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let outages = Outages::default();
        assert!(outages.until(at(5)).is_empty());
        outages.begin(at(10));
        outages.begin(at(12));
        outages.end(at(20));
        assert_eq!(outages.until(at(30)), [Outage { from: at(10), to: at(30) }], "one watch is still down");
        outages.end(at(40));
        assert_eq!(outages.until(at(90)), [Outage { from: at(10), to: at(40) }]);
        outages.begin(at(91));
        assert_eq!(outages.until(at(92)).len(), 2);
    }
}
