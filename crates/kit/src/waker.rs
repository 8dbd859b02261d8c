//! Triggers passes for reasons that no cache sees.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Key;

type Sink = Box<dyn Fn(Key) + Send + Sync>;

/// Triggers passes of a controller for reasons that no cache sees, such as a count in memory that fell. Cheap to clone.
///
/// Created before the controller, which may own a clone, and passed to [`Triggers::by`](crate::operator::Triggers::by).
/// Keys that are triggered before that are kept until then.
#[derive(Clone, Default)]
pub struct Waker {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    early: Vec<Key>,
    sink: Option<Arc<Sink>>,
}

impl Waker {
    /// A waker without a controller.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a pass for that object soon, as if it had changed.
    pub fn wake(&self, key: Key) {
        let sink = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            match &inner.sink {
                Some(sink) => Arc::clone(sink),
                None => return inner.early.push(key),
            }
        };
        sink(key);
    }

    /// Sets the receiver of the keys.
    pub(crate) fn attach(&self, sink: impl Fn(Key) + Send + Sync + 'static) {
        let sink: Arc<Sink> = Arc::new(Box::new(sink));
        let early = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.sink = Some(Arc::clone(&sink));
            std::mem::take(&mut inner.early)
        };
        early.into_iter().for_each(|key| sink(key));
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_woken_before_the_controller_is_known_is_not_lost() {
        let waker = Waker::new();
        waker.wake(Key::new("fleet", "early"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        waker.attach(move |key| sink.lock().unwrap().push(key.to_string()));
        waker.clone().wake(Key::new("fleet", "late"));
        assert_eq!(*seen.lock().unwrap(), ["fleet/early", "fleet/late"]);
    }
}
