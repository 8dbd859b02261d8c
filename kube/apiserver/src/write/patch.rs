//! Patches of all four types.

use fleetwright_schema::decode::go_kind;
use fleetwright_schema::{FieldError, json};
use serde_json::Value;

use super::decode::{self, MAX_DEPTH};
use super::update::{Changed, change};
use crate::error::{ApiError, merge_error, patch_error};
use crate::fields::{meta_text, metadata};
use crate::registry::Resource;
use crate::write_request::{Outcome, WriteRequest};

/// The kinds of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// The type of a content type, if the resource supports it.
    pub(crate) fn of(media_type: &str, resource: &Resource) -> Result<Self, ApiError> {
        let custom = resource.custom().is_some();
        match media_type {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ if custom => Err(ApiError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ])),
            _ => Err(ApiError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type")),
        }
    }
}

/// Patches an object. Returns it and whether it was created, which only an apply can do.
pub(crate) fn patch(
    op: &WriteRequest<'_>,
    name: &str,
    kind: PatchKind,
    bytes: &[u8],
) -> Result<(Outcome, bool), ApiError> {
    if kind == PatchKind::Apply {
        return apply(op, name, bytes);
    }
    let (patch, duplicates) = json::parse(bytes, MAX_DEPTH)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    match (kind, &patch) {
        (PatchKind::Json, Value::Array(_)) | (PatchKind::Merge | PatchKind::Strategic, Value::Object(_)) => {}
        (_, found) => {
            let wanted = if kind == PatchKind::Json { "[]handlers.jsonPatchOp" } else { "map[string]interface {}" };
            let prefix = if kind == PatchKind::Strategic { "" } else { "error decoding patch: " };
            let found = go_kind(found);
            return Err(ApiError::bad_request(format!(
                "{prefix}json: cannot unmarshal {found} into Go value of type {wanted}"
            )));
        }
    }
    let outcome = change(op, name, |live| {
        let patched = match kind {
            PatchKind::Json => fleetwright_merge::json_patch(live, &patch),
            PatchKind::Merge => fleetwright_merge::merge_patch(live, &patch),
            _ => fleetwright_merge::strategic_merge_patch(&op.resource.schema, live, &patch),
        };
        let mut object = patched.map_err(patch_error)?;
        check_identity(op, live, &mut object)?;
        // The real server merges strategic patches into the object itself and has no patched text to show.
        let shown = match kind {
            PatchKind::Strategic => fleetwright_merge::go_text(&patch),
            _ => object.to_string(),
        };
        let invalid = |error: String| {
            // The real server's decoder has different texts for a wrong type.
            let error = match (kind, error.rsplit_once(" of type ")) {
                (PatchKind::Strategic, Some((_, ty))) => format!("unrecognized type: {ty}"),
                _ => error,
            };
            ApiError::invalid("", "", "", &[FieldError::invalid("patch", shown.clone(), error)])
        };
        let unknown = decode::typed(op.resource, &mut object).map_err(invalid)?;
        let found = duplicates
            .iter()
            .map(|path| format!("duplicate field {path:?}"))
            .chain(unknown.iter().map(|path| format!("unknown field {path:?}")))
            .collect();
        decode::apply_field_validation(found, op.options.field_validation, op.warnings, |error| {
            ApiError::invalid("", "", "", &[FieldError::invalid("patch", shown.clone(), error)])
        })?;
        Ok(Changed { object, owned: false })
    })?;
    Ok((outcome, false))
}

/// Refuses a patch that changes the identity of an object.
fn check_identity(op: &WriteRequest<'_>, live: &Value, object: &mut Value) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(ApiError::invalid(
            "",
            "",
            "",
            &[FieldError::invalid("patch", object.to_string(), "the patched object is not a JSON object")],
        ));
    }
    let custom = op.resource.custom().is_some();
    for field in ["apiVersion", "kind"] {
        if object[field] != live[field] {
            if object[field].is_null() && !custom {
                object[field] = live[field].clone();
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let detail =
                format!("converting ({}) to ({}): unknown conversion", text(&object[field]), text(&live[field]));
            return Err(ApiError::invalid("", "", "", &[FieldError::invalid("patch", object.to_string(), detail)]));
        }
    }
    let name = meta_text(live, "name");
    let given = meta_text(object, "name");
    if given.is_empty() {
        metadata(object).insert("name".into(), name.into());
    } else if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let given = meta_text(object, "namespace");
    if !given.is_empty() && given != op.namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the object ({given}) does not match the namespace on the URL ({})",
            op.namespace
        )));
    }
    if !op.namespace.is_empty() {
        metadata(object).insert("namespace".into(), op.namespace.into());
    }
    Ok(())
}

/// Server-side apply.
fn apply(op: &WriteRequest<'_>, name: &str, bytes: &[u8]) -> Result<(Outcome, bool), ApiError> {
    let (mut applied, duplicates) =
        decode::yaml(bytes).map_err(|error| ApiError::bad_request(format!("error encoding patch: yaml: {error}")))?;
    let found = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
    decode::apply_field_validation(found, op.options.field_validation, op.warnings, ApiError::bad_request)?;
    check_applied(op, name, &mut applied)?;
    let force = op.options.force;
    // An apply without an existing object creates it, one with an object patches it; each may conflict with the other.
    for _ in 0..8 {
        let exists = op.server.store.get(&op.resource.storage, &op.key(name)).is_some();
        if !exists {
            if op.subresource().is_some() {
                return Err(op.resource.not_found(name));
            }
            if !meta_text(&applied, "uid").is_empty() {
                return Err(ApiError::conflict(
                    &op.resource.group,
                    &op.resource.plural,
                    name,
                    format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        meta_text(&applied, "uid")
                    ),
                ));
            }
            op.server.authorize_create(op, name)?;
            let mut object = fleetwright_merge::apply(&op.ownership(), None, &applied, force).map_err(merge_error)?;
            decode::typed(op.resource, &mut object).map_err(ApiError::bad_request)?;
            match super::create::create(op, object, true) {
                Err(error) if error.reason == "AlreadyExists" => continue,
                done => return Ok((done?, true)),
            }
        }
        let done = change(op, name, |live| {
            let mut object =
                fleetwright_merge::apply(&op.ownership(), Some(live), &applied, force).map_err(merge_error)?;
            decode::typed(op.resource, &mut object).map_err(ApiError::bad_request)?;
            Ok(Changed { object, owned: true })
        });
        match done {
            Err(error) if error.reason == "NotFound" && error.details.as_ref().is_some_and(|d| d.name == name) => {}
            done => return Ok((done?, false)),
        }
    }
    Err(op.resource.modified(name))
}

/// An applied object must have its kind and name, and only fields of the schema.
fn check_applied(op: &WriteRequest<'_>, name: &str, applied: &mut Value) -> Result<(), ApiError> {
    let Some(map) = applied.as_object() else {
        return Err(ApiError::bad_request("error decoding YAML: the applied configuration is not an object"));
    };
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind != &*op.resource.kind || api_version.is_empty() {
        let version = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
        return Err(ApiError::bad_request(format!("invalid object type: {version}, Kind={kind}")));
    }
    if api_version != &*op.resource.api_version {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {api_version}, expected: {}",
            op.resource.api_version
        )));
    }
    let given = meta_text(applied, "name");
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let given = meta_text(applied, "namespace");
    if !given.is_empty() && given != op.namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the object ({given}) does not match the namespace on the URL ({})",
            op.namespace
        )));
    }
    let map = metadata(applied);
    map.insert("name".into(), name.into());
    if !op.namespace.is_empty() {
        map.insert("namespace".into(), op.namespace.into());
    }
    Ok(())
}
