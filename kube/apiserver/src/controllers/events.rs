//! Removes Events after an hour.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::actor::all;
use crate::state::Inner;
use crate::store::{Change, Draft, Precondition};

const KEPT: SignedDuration = SignedDuration::from_hours(1);

/// Removes Events that were not updated for an hour.
pub(super) fn sweep(inner: &Arc<Inner>) {
    let Some(resource) = inner.registry.by_plural("", "events") else { return };
    if inner.store.is_empty(&resource.storage) {
        return;
    }
    let oldest = inner.now() - KEPT;
    for object in all(inner, &resource.storage) {
        let event = object.value();
        let times = [
            &event["metadata"]["creationTimestamp"],
            &event["lastTimestamp"],
            &event["eventTime"],
            &event["series"]["lastObservedTime"],
        ];
        let last = times.into_iter().filter_map(Value::as_str).filter_map(|text| text.parse::<Timestamp>().ok()).max();
        if last.is_none_or(|at| at >= oldest) {
            continue;
        }
        let gone = Change::Delete(Draft::of(&object));
        // An Event with a newer update is checked again a minute later.
        let _ = inner.store.commit(&resource.storage, &object.key, Precondition::Revision(object.revision), gone);
    }
}
