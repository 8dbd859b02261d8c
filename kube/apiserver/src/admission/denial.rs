//! The refusal of a write.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::meta_text;
use crate::write_request::WriteRequest;

/// The name of an object in errors; it may not have one yet.
pub(super) fn shown_name(object: &Value) -> &str {
    match (meta_text(object, "name"), meta_text(object, "generateName")) {
        ("", "") => "Unknown",
        ("", generated) => generated,
        (name, _) => name,
    }
}

/// A 403 error for the object of a write.
pub(super) fn forbidden(op: &WriteRequest<'_>, object: &Value, why: impl std::fmt::Display) -> ApiError {
    ApiError::forbidden(&op.resource.group, &op.resource.plural, shown_name(object), why)
}
