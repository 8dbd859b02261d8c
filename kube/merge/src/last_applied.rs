//! The annotation in which client-side apply keeps the last configuration, and the way from there to server-side
//! apply.

use serde_json::Value;

use crate::compare::compare;
use crate::field_set::FieldSet;
use crate::manager::Request;
use crate::typed::{self, Ty};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All annotations of an object together, keys and values, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields whose conflicts do not count for kubectl: those that it applied from the client's side and no other manager has
/// changed since. None when there is no usable annotation.
pub(crate) fn allowed_conflicts(req: &Request<'_>, live: &Value) -> Option<FieldSet> {
    let text = annotation(live)?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(req.api_version) {
        return None;
    }
    let ty = Ty::root(req.schema);
    typed::validate(ty, live).ok()?;
    typed::validate(ty, &last).ok()?;
    let changes = compare(ty, &last, live, req.built_in).ok()?;
    let set = typed::field_set(ty, &last);
    Some(set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed))
}

/// Updates the annotation, so that the user may return to client-side apply.
pub(crate) fn refresh(object: &mut Value, applied: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let text = escape_html(&format!("{applied}\n"));
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    let size: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

fn escape_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out += &format!("\\u{:04x}", c as u32),
            _ => out.push(c),
        }
    }
    out
}
