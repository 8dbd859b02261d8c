//! Everything that is under way with hosts, one task a host at a time, without a pass ever waiting for one.
//!
//! A pass hands a [`Task`] over and ends; when the task ended, or its host was found unreachable, the machine is woken and the next pass
//! reads the [`HostState`]. What is kept here is lost with the process: the journal of the host knows what became of each step.
//!
//! Guarantees:
//! - one visit a host at a time; a visit is over within the time limits of its route and its step, whatever the host does;
//! - a host that is slow, hung or gone takes up one place for so long and nothing else: others do not queue behind it;
//! - a host about which nothing is asked has no task and no timer, only its state and perhaps a connection.

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

/// How many hosts are worked on at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub overall: usize,
    /// In one zone.
    pub zone: usize,
    /// In one rack.
    pub rack: usize,
    /// Connections that are kept though nothing is asked; the one that was not used for longest goes first.
    pub idle_links: usize,
    /// A connection over which nothing was asked for so long is closed.
    pub link_idle: Duration,
    /// A step that takes longer gives its place back: the host does the work, and waiting for it costs nothing here.
    pub patience: Duration,
    /// A host that failed is tried again after this long at first, then twice as long each time…
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

/// Where a host stands, for the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostLocation {
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its rack.
    pub rack: Option<Arc<str>>,
}

/// What to do with a host.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Look at everything.
    Observe(Observe),
    /// Run a step. When it ended, the host is looked at again in the same visit, with `then`.
    Apply {
        /// The step.
        apply: Box<Apply>,
        /// What to look at afterwards.
        then: Observe,
    },
    /// See to it that nothing is begun under that id any more, and learn what became of it.
    Refuse {
        /// The step's id.
        id: String,
        /// Who asks.
        claim: Claim,
    },
    /// Leave nothing of ours behind.
    Clean {
        /// Who asks.
        claim: Claim,
    },
    /// Leave the host as it is, to whoever claims it next.
    Release {
        /// Who asks.
        claim: Claim,
    },
    /// Write the owner mark of a host that has none, and look at it.
    Claim {
        /// Who asks.
        claim: Claim,
    },
    /// Take the host from that owner, and look at it.
    Adopt {
        /// Who asks.
        claim: Claim,
        /// Whose it is.
        from: Owner,
    },
}

/// What is known of a host since this process began. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    /// What is under way.
    pub doing: Option<HostTask>,
    /// The last observation, and when it came.
    pub seen: Option<(Timestamp, Arc<Observation>)>,
    /// What became of the last step that was run, refused or asked after.
    pub step: Option<StepRecord>,
    /// Why the host said no to the last task, if it did.
    pub refused: Option<(Timestamp, Failure)>,
    /// It was cleaned.
    pub cleaned: bool,
    /// It belongs to nobody any more.
    pub released: bool,
    /// Why it is not reached, if it is not.
    pub unreachable: Option<Unreachable>,
    /// The host key that it showed last.
    pub host_key: Option<Arc<str>>,
}

/// What is under way with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTask {
    /// What, for people.
    pub what: String,
    /// The step's id, if it is one.
    pub id: Option<String>,
    /// Since when; none while it waits for its turn.
    pub since: Option<Timestamp>,
    /// How far it is.
    pub message: String,
}

/// A host that is not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Since when.
    pub since: Timestamp,
    /// How often it was tried.
    pub attempts: u32,
    /// Why.
    pub why: UnreachableCause,
    /// Not tried before. Nobody wakes the machine then: who wants to try asks again at that time.
    pub not_before: Timestamp,
}

/// Why a host is not reached, or stopped answering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreachableCause {
    /// No connection.
    Reach(ReachError),
    /// The connection was lost in the middle, or the answer came late or made no sense. What was asked for may have happened.
    Lost(String),
}

/// The hosts of one operator. Cheap to clone; when the last clone is gone, nothing is under way any more.
#[derive(Clone)]
pub struct Hosts {
    owner: Arc<StopOnDrop>,
}

/// Ends what is under way with the last [`Hosts`].
struct StopOnDrop(Arc<pool::Pool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How many hosts are in which state, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Visited now.
    pub visited: usize,
    /// Waiting for their turn.
    pub waiting: usize,
    /// With a connection that is kept though nothing is asked.
    pub idle_links: usize,
    /// Not reached.
    pub unreachable: usize,
}

impl Hosts {
    /// Reached by that transport. `waker` wakes machines whose task ended.
    pub fn new(transport: Arc<dyn Transport>, limits: Limits, clock: Clock, waker: Waker) -> Self {
        Self::with_random(transport, limits, clock, waker, Random::system())
    }

    /// The same, with the randomness of the operator.
    pub fn with_random(
        transport: Arc<dyn Transport>,
        limits: Limits,
        clock: Clock,
        waker: Waker,
        random: Random,
    ) -> Self {
        Self { owner: Arc::new(StopOnDrop(Arc::new(pool::Pool::new(transport, limits, clock, waker, random)))) }
    }

    /// Hands a task over. Answers false, and does nothing, if one is under way with that host, or if its time has not come
    /// ([`Unreachable::not_before`]). Another route than the one that failed is tried at once.
    pub fn ask(&self, key: &Key, route: Arc<Route>, place: HostLocation, task: Task) -> bool {
        self.owner.0.ask(key, route, place, task)
    }

    /// What is known of a host.
    pub fn state(&self, key: &Key) -> HostState {
        self.owner.0.state(key)
    }

    /// Tries a host at once that is waited with, such as when a person asks or its Node came back.
    pub fn hurry(&self, key: &Key) {
        self.owner.0.hurry(key);
    }

    /// Withdraws a task that still waits for its turn: nothing of it reaches the host. One that was started goes on.
    pub fn recall(&self, key: &Key) {
        self.owner.0.recall(key);
    }

    /// Forgets a machine that is gone.
    pub fn forget(&self, key: &Key) {
        self.owner.0.forget(key);
    }

    /// How many hosts are in which state.
    pub fn counts(&self) -> HostCounts {
        self.owner.0.counts()
    }
}
