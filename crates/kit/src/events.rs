//! Tells people, once.

use k8s_openapi::api::core::v1::ObjectReference;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Good to know.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Publishes events about objects. The same event about the same object is published once, also across restarts:
/// its name is made from what it says. Never fails a pass: an event that cannot be written is logged.
#[derive(Clone)]
pub struct Events {
    _inner: (),
}

impl Events {
    /// Publishes one. `once_for` tells occurrences apart, such as a transition time.
    pub async fn publish(
        &self,
        _about: &ObjectReference,
        _level: Level,
        _reason: &str,
        _message: &str,
        _once_for: &str,
    ) {
        todo!()
    }
}
