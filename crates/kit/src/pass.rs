//! A pass over one object.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::client::Fence;
use crate::events::Events;
use crate::write::Writer;
use crate::{Budget, Clock, Key, Step};

/// Shared by the passes of one controller.
pub(crate) struct PassContext {
    pub client: kube::Client,
    pub clock: Clock,
    pub fence: Fence,
    pub events: Events,
    pub writer: Writer,
}

/// One pass of a controller over one object: the object, the time, and the means to write.
pub struct Pass {
    pub(crate) key: Key,
    pub(crate) now: Timestamp,
    pub(crate) deep: bool,
    pub(crate) context: Arc<PassContext>,
}

impl Pass {
    /// The object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Start of the pass. All its decisions use this time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether this is a deep check: read past the caches.
    pub fn deep(&self) -> bool {
        self.deep
    }

    /// The writer, the only way to write.
    pub fn writer(&self) -> &Writer {
        &self.context.writer
    }

    /// The publisher of Events.
    pub fn events(&self) -> &Events {
        &self.context.events
    }

    /// Whether this process is certain to hold the lease. Acts outside the API server check it right before their first effect.
    pub fn leads(&self) -> bool {
        self.context.fence.holds(&self.context.clock)
    }

    /// A number that grows with each leader: see [`Fence::number`](crate::client::Fence::number).
    pub fn fence(&self) -> u64 {
        self.context.fence.number()
    }

    /// The current time, for work that takes longer than a moment.
    pub fn clock(&self) -> &Clock {
        &self.context.clock
    }

    /// A client whose calls count for this pass and which sends nothing when the lease could have expired.
    pub fn client(&self) -> kube::Client {
        self.context.client.clone()
    }
}

/// Outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// All steps succeeded.
    Done,
    /// The object is gone.
    Gone,
    /// An error that ends by itself.
    Waits,
    /// An error; it is retried with backoff.
    Retries,
    /// A conflict with another writer; it is decided again.
    Conflict,
    /// An error that a person must fix.
    NeedsPerson,
    /// The lease could have expired: nothing was sent.
    Fenced,
    /// The controller panicked.
    Panicked,
}

impl Ending {
    /// Name in lower case, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Gone => "deleted",
            Self::Waits => "waiting",
            Self::Retries => "backoff",
            Self::Conflict => "conflict",
            Self::NeedsPerson => "action_required",
            Self::Fenced => "fenced",
            Self::Panicked => "panicked",
        }
    }
}

/// Record of one pass, for [`OnPass`](crate::operator::OnPass).
#[derive(Clone, Debug)]
pub struct PassRecord {
    /// Name of the controller.
    pub controller: &'static str,
    /// The object.
    pub key: Key,
    /// Whether it was a deep check.
    pub deep: bool,
    /// The failed step, or the last one.
    pub step: Step,
    /// Number of reads.
    pub reads: u32,
    /// Number of writes.
    pub writes: u32,
    /// Declared maximum of calls.
    pub budget: Budget,
    /// Outcome of the pass.
    pub ending: Ending,
    /// Reason of the error, if there was one.
    pub reason: Option<&'static str>,
    /// Duration of the pass.
    pub took: Duration,
}
