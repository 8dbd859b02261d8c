//! Tasks on hosts, one per host at a time. No pass ever waits for a host.
//!
//! A pass hands over a [`Task`] and ends; when the task has ended, or its host was found unreachable, the machine is woken and the next pass
//! reads the [`HostState`]. This state is lost with the process: the journal of the host has the outcome of each step.
//!
//! Guarantees:
//! - one visit per host at a time; a visit ends within the timeouts of its route and its step, whatever the host does;
//! - a host that is slow, hung or gone uses one place for that time and nothing else: other hosts do not queue behind it;
//! - a host without a request has no task and no timer, only its state and perhaps a connection.

mod pool;
mod size_limits;
#[cfg(test)]
mod tests;
mod visit;

use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::{Clock, Key, Random, Waker};
use fleetwright_transport::{ReachError, Route, Transport};
use fleetwright_wire::{Apply, Claim, Failure, Observation, Observe, Owner, StepRecord};
use jiff::Timestamp;

/// Limits on the number of hosts visited at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In total.
    pub overall: usize,
    /// Per zone.
    pub zone: usize,
    /// Per rack.
    pub rack: usize,
    /// Idle connections that are kept; the least recently used one is closed first.
    pub idle_links: usize,
    /// Idle time after which a connection is closed.
    pub link_idle: Duration,
    /// Time after which a running step gives its place back: the host does the work, and waiting for it costs nothing here.
    pub patience: Duration,
    /// First backoff after a host failed; it doubles each time…
    pub backoff: Duration,
    /// …up to this.
    pub longest_backoff: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            overall: 256,
            zone: 128,
            rack: 64,
            idle_links: 512,
            link_idle: Duration::from_secs(120),
            patience: Duration::from_secs(15),
            backoff: Duration::from_secs(2),
            longest_backoff: Duration::from_secs(300),
        }
    }
}

/// The location of a host, for the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostLocation {
    /// Zone of the host.
    pub zone: Option<Arc<str>>,
    /// Rack of the host.
    pub rack: Option<Arc<str>>,
}

/// A task for a host.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Observe the host.
    Observe(Observe),
    /// Run a step. When it has ended, the host is observed in the same visit, with `then`.
    Apply {
        /// The step.
        apply: Box<Apply>,
        /// The observation after the step.
        then: Observe,
    },
    /// Refuse a step's id, so that the step cannot start any more, and read its record.
    Refuse {
        /// Id of the step.
        id: String,
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Remove all of our files.
    Clean {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Release the host as it is, for the next owner that claims it.
    Release {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Write the owner mark of a host that has none, and observe the host.
    Claim {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Take over the host from that owner, and observe it.
    Adopt {
        /// The owner and fencing token of the caller.
        claim: Claim,
        /// The present owner.
        from: Owner,
    },
}

/// The state of a host since this process started. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    /// The present task.
    pub doing: Option<HostTask>,
    /// The last observation, and when it arrived.
    pub seen: Option<(Timestamp, Arc<Observation>)>,
    /// The record of the last step that was run, refused or recalled.
    pub step: Option<StepRecord>,
    /// Why the host rejected the last task, if it did.
    pub refused: Option<(Timestamp, Failure)>,
    /// The host was cleaned.
    pub cleaned: bool,
    /// The host was released.
    pub released: bool,
    /// Why the host is unreachable, if it is.
    pub unreachable: Option<Unreachable>,
    /// The host key of the last connection.
    pub host_key: Option<Arc<str>>,
}

/// The present task of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTask {
    /// The task, for people.
    pub what: String,
    /// Id of the step, if the task is one.
    pub id: Option<String>,
    /// Since when the task runs; none while it waits for a place.
    pub since: Option<Timestamp>,
    /// Progress message.
    pub message: String,
}

/// An unreachable host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Since when it is unreachable.
    pub since: Timestamp,
    /// Number of attempts.
    pub attempts: u32,
    /// The cause.
    pub why: UnreachableCause,
    /// Earliest time of the next attempt. No timer wakes the machine then: the caller must ask again at that time.
    pub not_before: Timestamp,
}

/// Why a host is unreachable, or stopped answering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreachableCause {
    /// The connection failed.
    Reach(ReachError),
    /// The connection was lost, or the answer was late or invalid. The requested change may have happened.
    Lost(String),
}

/// The hosts of one operator. Cheap to clone; when the last clone is dropped, all tasks end.
#[derive(Clone)]
pub struct Hosts {
    owner: Arc<StopOnDrop>,
}

/// Ends all tasks when the last [`Hosts`] is dropped.
struct StopOnDrop(Arc<pool::Pool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Number of hosts in each state, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Hosts being visited.
    pub visited: usize,
    /// Hosts waiting for a place.
    pub waiting: usize,
    /// Hosts with an idle connection.
    pub idle_links: usize,
    /// Unreachable hosts.
    pub unreachable: usize,
}

impl Hosts {
    /// Hosts reached by that transport. `waker` wakes machines whose task has ended.
    pub fn new(transport: Arc<dyn Transport>, limits: Limits, clock: Clock, waker: Waker) -> Self {
        Self::with_random(transport, limits, clock, waker, Random::system())
    }

    /// As [`Self::new`], with the operator's random numbers.
    pub fn with_random(
        transport: Arc<dyn Transport>,
        limits: Limits,
        clock: Clock,
        waker: Waker,
        random: Random,
    ) -> Self {
        Self { owner: Arc::new(StopOnDrop(Arc::new(pool::Pool::new(transport, limits, clock, waker, random)))) }
    }

    /// Hands over a task. Returns false, and does nothing, if that host has a task already, or during the backoff
    /// ([`Unreachable::not_before`]). A route that differs from the failed one is tried at once.
    pub fn ask(&self, key: &Key, route: Arc<Route>, place: HostLocation, task: Task) -> bool {
        self.owner.0.ask(key, route, place, task)
    }

    /// The state of a host.
    pub fn state(&self, key: &Key) -> HostState {
        self.owner.0.state(key)
    }

    /// Ends the backoff of a host, for example when a person asks for it or its Node is ready again.
    pub fn hurry(&self, key: &Key) {
        self.owner.0.hurry(key);
    }

    /// Withdraws a task that still waits for a place: nothing of it reaches the host. A started task continues.
    pub fn recall(&self, key: &Key) {
        self.owner.0.recall(key);
    }

    /// Drops the state of a machine that was deleted.
    pub fn forget(&self, key: &Key) {
        self.owner.0.forget(key);
    }

    /// Number of hosts in each state.
    pub fn counts(&self) -> HostCounts {
        self.owner.0.counts()
    }
}
