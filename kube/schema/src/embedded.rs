//! Objects inside objects: the apiVersion, kind and metadata of embedded resources.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::{FieldError, Schema, decode, names, text};

static METADATA: LazyLock<Schema> = LazyLock::new(|| {
    let text = || json!({"type": "string"});
    let texts = || json!({"type": "object", "additionalProperties": {"type": "string"}});
    let time = || json!({"type": "string", "format": "date-time"});
    let number = || json!({"type": "integer", "format": "int64"});
    let flag = || json!({"type": "boolean"});
    let schema = json!({"type": "object", "properties": {
        "name": text(), "generateName": text(), "namespace": text(), "selfLink": text(), "uid": text(),
        "resourceVersion": text(), "generation": number(), "creationTimestamp": time(), "deletionTimestamp": time(),
        "deletionGracePeriodSeconds": number(), "labels": texts(), "annotations": texts(),
        "finalizers": {"type": "array", "items": text()},
        "ownerReferences": {"type": "array", "items": {"type": "object", "required": ["apiVersion", "kind", "name", "uid"],
            "properties": {"apiVersion": text(), "kind": text(), "name": text(), "uid": text(), "controller": flag(),
                "blockOwnerDeletion": flag()}}},
        "managedFields": {"type": "array", "items": {"type": "object", "properties": {"manager": text(), "operation": text(),
            "apiVersion": text(), "time": time(), "fieldsType": text(), "subresource": text(),
            "fieldsV1": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}
    }});
    Schema::from_openapi(&schema).unwrap_or_default()
});

/// The schema of `metadata`, which every object has.
pub fn metadata_schema() -> &'static Schema {
    &METADATA
}

/// Brings the metadata of the object (with `resource_root`) and of every embedded resource into its typed form: unknown
/// fields are dropped and returned by path, nulls and empty values go.
///
/// # Errors
/// When apiVersion, kind or metadata have the wrong type.
pub fn coerce(schema: &Schema, value: &mut Value, resource_root: bool) -> Result<Vec<String>, FieldError> {
    let mut dropped = Vec::new();
    coerce_node(schema, value, resource_root || schema.embedded_resource, "", &mut dropped)?;
    dropped.sort();
    Ok(dropped)
}

fn coerce_node(
    schema: &Schema,
    value: &mut Value,
    is_resource: bool,
    path: &str,
    dropped: &mut Vec<String>,
) -> Result<(), FieldError> {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let below = text::child(path, name);
                if is_resource && matches!(name.as_str(), "apiVersion" | "kind") && !field.is_string() {
                    return Err(FieldError::invalid(below, field.clone(), "must be a string"));
                }
                if is_resource && name == "metadata" {
                    let before = field.clone();
                    let unknown = decode::typed_as(&METADATA, field, "ObjectMeta")
                        .map_err(|why| FieldError::invalid(below.as_str(), before, why))?;
                    dropped.extend(unknown.into_iter().map(|unknown| text::child(&below, &unknown)));
                }
                if let Some(property) = schema.properties.get(name) {
                    coerce_node(property, field, property.embedded_resource, &below, dropped)?;
                } else if let Some(additional) = &schema.additional {
                    coerce_node(additional, field, additional.embedded_resource, &text::key(path, name), dropped)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = &schema.items else { return Ok(()) };
            for (at, item) in items.iter_mut().enumerate() {
                coerce_node(of, item, of.embedded_resource, &text::index(path, at), dropped)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// What is wrong with the apiVersion, kind and metadata of every embedded resource.
pub fn check(schema: &Schema, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_node(schema, value, path, &mut errors);
    errors
}

fn check_node(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(fields) => {
            if schema.embedded_resource {
                errors.extend(check_resource(value, path));
            }
            for (name, field) in fields {
                if let Some(property) = schema.properties.get(name) {
                    check_node(property, field, &text::child(path, name), errors);
                } else if let Some(additional) = &schema.additional {
                    check_node(additional, field, &text::key(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = &schema.items else { return };
            for (at, item) in items.iter().enumerate() {
                check_node(of, item, &text::index(path, at), errors);
            }
        }
        _ => {}
    }
}

/// What is wrong with the apiVersion, kind and metadata of one resource.
pub fn check_resource(resource: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let at = |name: &str| text::child(path, name);
    match resource.get("apiVersion") {
        None => errors.push(FieldError::required(at("apiVersion"), "")),
        Some(Value::String(version)) if version.is_empty() => {
            errors.push(FieldError::invalid(at("apiVersion"), "", "must not be empty"));
        }
        Some(Value::String(version)) if version.matches('/').count() > 1 => {
            let why = format!("unexpected GroupVersion string: {version}");
            errors.push(FieldError::invalid(at("apiVersion"), version.as_str(), why));
        }
        Some(Value::String(_)) => {}
        Some(other) => errors.push(FieldError::invalid(at("apiVersion"), other.clone(), "must be a string")),
    }
    match resource.get("kind") {
        None => errors.push(FieldError::required(at("kind"), "")),
        Some(Value::String(kind)) if kind.is_empty() => {
            errors.push(FieldError::invalid(at("kind"), "", "must not be empty"));
        }
        Some(Value::String(kind)) => {
            let problems = names::dns1035_label(&kind.to_lowercase());
            if !problems.is_empty() {
                let why = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
                errors.push(FieldError::invalid(at("kind"), kind.as_str(), why));
            }
        }
        Some(other) => errors.push(FieldError::invalid(at("kind"), other.clone(), "must be a string")),
    }
    if let Some(metadata) = resource.get("metadata") {
        errors.extend(check_metadata(metadata, &at("metadata")));
    }
    errors
}

/// What is wrong with an embedded resource's metadata.
fn check_metadata(metadata: &Value, path: &str) -> Vec<FieldError> {
    let mut typed = metadata.clone();
    if let Err(why) = decode::typed_as(&METADATA, &mut typed, "ObjectMeta") {
        return vec![FieldError::invalid(path, metadata.clone(), why)];
    }
    let mut errors = Vec::new();
    let at = |name: &str| text::child(path, name);
    let get = |name: &str| typed.get(name).and_then(Value::as_str).unwrap_or("");
    for why in names::path_segment_prefix(get("generateName")) {
        errors.push(FieldError::invalid(at("generateName"), get("generateName"), why));
    }
    for why in names::path_segment(get("name")) {
        errors.push(FieldError::invalid(at("name"), get("name"), why));
    }
    if !get("namespace").is_empty() {
        for why in names::dns1123_label(get("namespace")) {
            errors.push(FieldError::invalid(at("namespace"), get("namespace"), why));
        }
    }
    if let Some(generation) = typed.get("generation").and_then(Value::as_i64).filter(|n| *n < 0) {
        errors.push(FieldError::invalid(at("generation"), generation, "must be greater than or equal to 0"));
    }
    for (key, value) in typed.get("labels").and_then(Value::as_object).into_iter().flatten() {
        for why in names::label_key(key) {
            errors.push(FieldError::invalid(at("labels"), key.as_str(), why));
        }
        let value = value.as_str().unwrap_or("");
        for why in names::label_value(value) {
            errors.push(FieldError::invalid(at("labels"), value, why));
        }
    }
    for key in typed.get("annotations").and_then(Value::as_object).into_iter().flat_map(|map| map.keys()) {
        for why in names::label_key(&key.to_lowercase()) {
            errors.push(FieldError::invalid(at("annotations"), key.as_str(), why));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Schema {
        Schema::from_openapi(&json!({"type": "object", "properties": {"t": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}))
        .unwrap()
    }

    #[test]
    fn an_embedded_resource_needs_a_kind_and_valid_metadata() {
        let value = json!({"t": {"apiVersion": "v1", "metadata": {"labels": {"a": "-"}}}});
        let errors = check(&template(), &value, "");
        assert_eq!(errors.iter().map(|e| e.field.as_str()).collect::<Vec<_>>(), ["t.kind", "t.metadata.labels"]);
    }

    #[test]
    fn unknown_metadata_is_dropped_and_named() {
        let mut value = json!({"t": {"metadata": {"name": "x", "colour": "red", "creationTimestamp": null}}});
        assert_eq!(coerce(&template(), &mut value, true).unwrap(), ["t.metadata.colour"]);
        assert_eq!(value, json!({"t": {"metadata": {"name": "x"}}}));
    }

    #[test]
    fn metadata_of_the_wrong_type_is_an_error() {
        let error = coerce(&template(), &mut json!({"metadata": {"name": 1}}), true).unwrap_err();
        let why = "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string";
        assert_eq!(error.to_string(), format!("metadata: Invalid value: {{\"name\":1}}: {why}"));
    }
}
