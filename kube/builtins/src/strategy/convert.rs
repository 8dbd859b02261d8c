//! Events have two faces, core/v1 and events.k8s.io/v1, and one store that keeps the first.

use serde_json::Value;

use crate::access::{get, remove, set, text};

/// The fields that the two groups call differently: core first.
const FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// A core/v1 event as events.k8s.io/v1 shows it.
pub fn event_from_core(event: &mut Value) {
    for (core, ours) in FIELDS {
        rename(event, core, ours);
    }
    set(event, "apiVersion", "events.k8s.io/v1");
    crate::defaults::shape("events.k8s.io", "Event", event);
}

/// An events.k8s.io/v1 event as the store keeps it: core/v1.
pub fn event_to_core(event: &mut Value) {
    for (core, ours) in FIELDS {
        rename(event, ours, core);
    }
    set(event, "apiVersion", "v1");
    crate::defaults::shape("", "Event", event);
}

fn rename(event: &mut Value, from: &str, to: &str) {
    if let Some(value) = remove(event, from) {
        set(event, to, value);
    }
}

/// The fields of an event that a selector may name, by the names of the group that is asked. The event is a core/v1 one
/// or an events.k8s.io/v1 one.
pub(super) fn selectable_fields(group: &str, event: &Value) -> Vec<(&'static str, String)> {
    let either = |core: &str, ours: &str| match get(event, core).and_then(Value::as_str) {
        Some(found) => found.to_owned(),
        None => text(event, ours).to_owned(),
    };
    let of_object = |key: &str| either(&format!("involvedObject.{key}"), &format!("regarding.{key}"));
    let component = either("reportingComponent", "reportingController");
    let keys: [(&'static str, &'static str, &str); 7] = [
        ("involvedObject.kind", "regarding.kind", "kind"),
        ("involvedObject.namespace", "regarding.namespace", "namespace"),
        ("involvedObject.name", "regarding.name", "name"),
        ("involvedObject.uid", "regarding.uid", "uid"),
        ("involvedObject.apiVersion", "regarding.apiVersion", "apiVersion"),
        ("involvedObject.resourceVersion", "regarding.resourceVersion", "resourceVersion"),
        ("involvedObject.fieldPath", "regarding.fieldPath", "fieldPath"),
    ];
    let core = group.is_empty();
    let mut fields: Vec<(&'static str, String)> =
        keys.iter().map(|(ours, theirs, key)| (if core { *ours } else { *theirs }, of_object(key))).collect();
    fields.push(("reason", text(event, "reason").to_owned()));
    fields.push(("type", text(event, "type").to_owned()));
    if core {
        let source = match either("source.component", "deprecatedSource.component") {
            empty if empty.is_empty() => component.clone(),
            source => source,
        };
        fields.push(("source", source));
        fields.push(("reportingComponent", component));
    } else {
        fields.push(("reportingController", component));
    }
    fields
}
