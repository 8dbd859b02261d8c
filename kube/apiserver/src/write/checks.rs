//! The checks that a create and an update share.

use fleetwright_builtins::strategy;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::metadata;
use crate::registry::Origin;
use crate::write_request::WriteRequest;

/// The object's namespace must be the path's; an empty one is filled in.
pub(super) fn ensure_namespace(op: &WriteRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
    let map = metadata(object);
    let given = map.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if given == op.namespace {
        return Ok(());
    }
    if !given.is_empty() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    map.insert("namespace".into(), op.namespace.into());
    Ok(())
}

/// An owner named twice is one owner, and the client hears about it.
pub(super) fn dedup_owners(op: &WriteRequest<'_>, object: &mut Value) {
    let Some(owners) = metadata(object).get_mut("ownerReferences").and_then(Value::as_array_mut) else { return };
    let mut seen = std::collections::HashSet::new();
    let before = owners.len();
    owners.retain(|owner| {
        seen.insert(owner["uid"].as_str().unwrap_or_default().to_owned()) || owner["uid"].as_str().is_none()
    });
    if owners.len() < before {
        op.warnings.add(".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: ".to_owned() + &seen.into_iter().collect::<Vec<_>>().join(", "));
    }
}

/// The warnings about a valid object.
pub(super) fn warnings(op: &WriteRequest<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
    match &op.resource.origin {
        Origin::Builtin(_) if op.resource.is("apiextensions.k8s.io", "customresourcedefinitions") => {
            crate::crd::warnings(new, old)
        }
        Origin::Builtin(kind) => strategy::warnings(kind, new, old),
        Origin::Custom(_) => Vec::new(),
    }
}
