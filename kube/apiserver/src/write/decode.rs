//! Decodes a body to an object of a resource, with the findings of strict decoding.

use fleetwright_schema::{decode, json};
use http::{HeaderMap, header};
use serde_json::Value;

use super::options::FieldValidation;
use crate::error::ApiError;
use crate::registry::{Origin, Resource};
use crate::write_request::Warnings;

/// The limit of JSON nesting: real objects are flatter, and every later walk over one recurses.
pub(crate) const MAX_DEPTH: usize = 256;

/// The formats in which objects are read.
const FORMATS: &[&str] = &["application/json", "application/yaml", PROTOBUF];

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A decoded body.
pub(crate) struct Decoded {
    /// The object, defaulted, without unknown fields.
    pub object: Value,
    /// The findings of strict decoding: `unknown field "spec.x"`, `duplicate field "spec.y"`.
    pub strict: Vec<String>,
}

/// The media type of a body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads JSON or YAML by the content type of the request.
pub(crate) fn body(headers: &HeaderMap, bytes: &[u8]) -> Result<Result<(Value, Vec<String>), String>, ApiError> {
    match media_type(headers) {
        "" | "application/json" => Ok(json::parse(bytes, MAX_DEPTH)),
        "application/yaml" => Ok(yaml(bytes)),
        // kubectl's typed commands send it, whatever formats the server announces. Answers are JSON.
        PROTOBUF => Ok(fleetwright_builtins::protobuf::decode(bytes).map(|object| (object, Vec::new()))),
        _ => Err(ApiError::unsupported_media_type(FORMATS)),
    }
}

/// Parses YAML, which includes JSON. JSON is tried first: almost every client sends it, and only its parser
/// reports duplicate fields.
pub(crate) fn yaml(bytes: &[u8]) -> Result<(Value, Vec<String>), String> {
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        return json::parse(bytes, MAX_DEPTH);
    }
    let text = std::str::from_utf8(bytes).map_err(|e| format!("error converting YAML to JSON: {e}"))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|e| format!("error converting YAML to JSON: {e}"))?;
    Ok((value, Vec::new()))
}

/// Decodes the body of a create or update.
pub(crate) fn object(resource: &Resource, headers: &HeaderMap, bytes: &[u8]) -> Result<Decoded, ApiError> {
    if resource.custom().is_some() && media_type(headers) == PROTOBUF {
        return Err(ApiError::unsupported_media_type(&FORMATS[..2]));
    }
    let (mut object, duplicates) = body(headers, bytes)?.map_err(|error| {
        unrecognized(resource, &format!("couldn't get version/kind; json parse error: {error}"), bytes)
    })?;
    check_kind(resource, &mut object, bytes)?;
    let mut strict: Vec<String> = Vec::new();
    let unknown = typed(resource, &mut object).map_err(|error| {
        ApiError::bad_request(format!("{} cannot be handled as a {}: {error}", in_version(resource), resource.kind))
    })?;
    strict.extend(duplicates.iter().map(|path| format!("duplicate field {path:?}")));
    strict.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    Ok(Decoded { object, strict })
}

/// `Pod in version "v1"`.
pub(crate) fn in_version(resource: &Resource) -> String {
    format!("{} in version {:?}", resource.kind, resource.version)
}

/// Decodes an object by its schema: types checked, unknown fields dropped (and returned),
/// defaults set.
pub(crate) fn typed(resource: &Resource, object: &mut Value) -> Result<Vec<String>, String> {
    match &resource.origin {
        Origin::Builtin(kind) => {
            let mut unknown = decode::typed(&resource.schema, object)?;
            if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                unknown.extend(crate::crd::prune(object));
                crate::crd::default(object);
            }
            fleetwright_builtins::defaults::apply(kind, object);
            Ok(unknown)
        }
        Origin::Custom(custom) => {
            let mut unknown = Vec::new();
            if let Some(metadata) = object.get_mut("metadata") {
                let schema = fleetwright_builtins::schemas::object_meta();
                unknown = decode::typed(&schema, metadata)?;
                unknown.iter_mut().for_each(|path| path.insert_str(0, "metadata."));
            }
            unknown.extend(custom.decode(object)?);
            Ok(unknown)
        }
    }
}

fn unrecognized(resource: &Resource, error: &str, bytes: &[u8]) -> ApiError {
    let start = bytes.get(..30).unwrap_or(bytes);
    let mut shown = match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(start).into_owned(),
        Some(_) => start.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if start.len() < bytes.len() {
        shown.push_str(" ...");
    }
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {error} ({shown})",
        resource.kind
    ))
}

/// The body's kind must be the path's. Built-in kinds may leave it out, custom ones may not.
fn check_kind(resource: &Resource, object: &mut Value, bytes: &[u8]) -> Result<(), ApiError> {
    let Some(map) = object.as_object_mut() else {
        return Err(unrecognized(
            resource,
            "couldn't get version/kind; json parse error: json: cannot unmarshal into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }",
            bytes,
        ));
    };
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let custom = resource.custom().is_some();
    if custom && kind.is_empty() {
        let body = String::from_utf8_lossy(bytes);
        return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{}'", body.trim())));
    }
    if !api_version.is_empty() && api_version != *resource.api_version {
        if !custom
            && !crate::registry::Registry::builtins().iter().any(|r| *r.api_version == api_version && *r.kind == kind)
        {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
                resource.kind
            )));
        }
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            resource.api_version
        )));
    }
    if !kind.is_empty() && kind != *resource.kind {
        return Err(if custom {
            let detail = format!("must be {}", resource.kind);
            let error = fleetwright_schema::FieldError::invalid("kind", kind.as_str(), detail);
            ApiError::invalid(&resource.group, &kind, name_of(object), &[error])
        } else {
            ApiError::bad_request(format!(
                "{kind} in version {:?} cannot be handled as a {}: converting (v1.{kind}) to ({}.{}): unknown conversion",
                resource.version,
                resource.kind,
                if resource.group.is_empty() { "core" } else { resource.group.split('.').next().unwrap_or_default() },
                resource.kind
            ))
        });
    }
    map.insert("apiVersion".into(), (*resource.api_version).into());
    map.insert("kind".into(), (*resource.kind).into());
    Ok(())
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Turns the findings of strict decoding into warnings or an error, as the client requested.
pub(crate) fn apply_field_validation(
    found: Vec<String>,
    validation: FieldValidation,
    warnings: &Warnings,
    error: impl FnOnce(String) -> ApiError,
) -> Result<(), ApiError> {
    match validation {
        _ if found.is_empty() => Ok(()),
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            found.into_iter().for_each(|text| warnings.add(text));
            Ok(())
        }
        FieldValidation::Strict => Err(error(format!("strict decoding error: {}", found.join(", ")))),
    }
}
