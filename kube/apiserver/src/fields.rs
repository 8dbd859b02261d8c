//! Fields of objects as JSON: metadata, lists and times.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// The object's metadata; created when it is missing or not an object.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let slot = &mut object["metadata"];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(map) => map,
        // The lines above made it an object.
        _ => unreachable!("metadata was made an object"),
    }
}

/// A text field of the metadata, empty when absent.
pub(crate) fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Whether the object has finalizers.
pub(crate) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// The list at a field; created when it is missing or not a list.
pub(crate) fn list_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Vec<Value> {
    if !object.is_object() {
        *object = Value::Object(Default::default());
    }
    let slot = &mut object[field];
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    match slot {
        Value::Array(list) => list,
        // The lines above made it an array.
        _ => unreachable!("the field was made an array"),
    }
}

/// A time in the notation of Kubernetes: whole seconds, UTC.
pub(crate) fn seconds_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
