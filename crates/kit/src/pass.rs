//! One look at one object.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::client::Fence;
use crate::events::Events;
use crate::write::Writer;
use crate::{Budget, Clock, Key, Step};

/// What passes of one controller share.
pub(crate) struct PassContext {
    pub client: kube::Client,
    pub clock: Clock,
    pub fence: Fence,
    pub events: Events,
    pub writer: Writer,
}

/// One pass of a controller over one object: which object, when, and the means to write.
pub struct Pass {
    pub(crate) key: Key,
    pub(crate) now: Timestamp,
    pub(crate) deep: bool,
    pub(crate) means: Arc<PassContext>,
}

impl Pass {
    /// The object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// When the pass began. The one time that all its decisions use.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether this is a deep check: look past the caches.
    pub fn deep(&self) -> bool {
        self.deep
    }

    /// The only way to write.
    pub fn writer(&self) -> &Writer {
        &self.means.writer
    }

    /// Tells people.
    pub fn events(&self) -> &Events {
        &self.means.events
    }

    /// Whether nobody else can lead at this moment. What acts outside the API server asks right before it does.
    pub fn leads(&self) -> bool {
        self.means.fence.holds(&self.means.clock)
    }

    /// A number that grows with each leader: see [`Fence::number`](crate::client::Fence::number).
    pub fn fence(&self) -> u64 {
        self.means.fence.number()
    }

    /// Tells the time of now, for what takes longer than a moment.
    pub fn clock(&self) -> &Clock {
        &self.means.clock
    }

    /// A client whose calls count for this pass and which sends nothing when the lease could have ended.
    pub fn client(&self) -> kube::Client {
        self.means.client.clone()
    }
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// All steps went well.
    Done,
    /// The object is gone.
    Gone,
    /// An error that mends itself.
    Waits,
    /// An error; it is tried again, later each time.
    Retries,
    /// Somebody else wrote in between; it is decided again.
    Conflict,
    /// An error that a person must mend.
    NeedsPerson,
    /// The lease could have ended: nothing was sent.
    Fenced,
    /// The controller panicked.
    Panicked,
}

impl Ending {
    /// One word in lower case, for metrics.
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

/// What became of one pass, for who counts.
#[derive(Clone, Debug)]
pub struct PassRecord {
    /// The controller's name.
    pub controller: &'static str,
    /// The object.
    pub key: Key,
    /// Whether it was a deep check.
    pub deep: bool,
    /// The step that it reached: the one that failed, or the last.
    pub step: Step,
    /// Calls that read.
    pub reads: u32,
    /// Calls that wrote.
    pub writes: u32,
    /// The most calls that the controller declared.
    pub budget: Budget,
    /// How it ended.
    pub ending: Ending,
    /// The reason of the error, if it ended with one.
    pub reason: Option<&'static str>,
    /// How long it took.
    pub took: Duration,
}
