//! One look at one object.

use jiff::Timestamp;

use crate::events::Events;
use crate::write::Writer;
use crate::{Clock, Key};

/// One pass of a controller over one object: which object, when, and the means to write.
pub struct Pass {
    _inner: (),
}

impl Pass {
    /// The object.
    pub fn key(&self) -> &Key {
        todo!()
    }

    /// When the pass began. The one time that all its decisions use.
    pub fn now(&self) -> Timestamp {
        todo!()
    }

    /// Whether this is a deep check: look past the caches.
    pub fn deep(&self) -> bool {
        todo!()
    }

    /// The only way to write.
    pub fn writer(&self) -> &Writer {
        todo!()
    }

    /// Tells people.
    pub fn events(&self) -> &Events {
        todo!()
    }

    /// Whether nobody else can lead at this moment. What acts outside the API server asks right before it does.
    pub fn leads(&self) -> bool {
        todo!()
    }

    /// Tells the time of now, for what takes longer than a moment.
    pub fn clock(&self) -> &Clock {
        todo!()
    }

    /// A client whose calls count for this pass and which sends nothing when the lease could have ended.
    pub fn client(&self) -> kube::Client {
        todo!()
    }
}
