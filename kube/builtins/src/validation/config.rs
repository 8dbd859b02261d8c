//! Config maps, secrets and namespaces.

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{entries, flag, get, invalid_each, list, text, too_long};
use crate::names;
use crate::validation::immutable;

/// All values of a config map or a secret together.
const MAX_BYTES: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count().min(text.len() / 4 * 3)
}

pub(super) fn config_map(map: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in entries(map, "data") {
        let path = format!("data[{key}]");
        errors.extend(invalid_each(&path, key, names::config_key(key)));
        if get(map, "binaryData").and_then(|binary| binary.get(key)).is_some() {
            errors.push(FieldError::invalid(path, key.as_str(), "duplicate of key present in binaryData"));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(map, "binaryData") {
        errors.extend(invalid_each(&format!("binaryData[{key}]"), key, names::config_key(key)));
        size += decoded_len(value);
    }
    if size > MAX_BYTES {
        // The real server names no field, and this is how that looks.
        errors.push(too_long("[]", MAX_BYTES));
    }
    errors
}

pub(super) fn config_map_update(new: &Value, old: &Value) -> Vec<FieldError> {
    frozen(new, old, &["data", "binaryData"])
}

fn frozen(new: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !flag(old, "immutable") {
        return errors;
    }
    if !flag(new, "immutable") {
        errors.push(FieldError::forbidden("immutable", FROZEN));
    }
    for field in fields {
        if get(new, field) != get(old, field) {
            errors.push(FieldError::forbidden(*field, FROZEN));
        }
    }
    errors
}

/// Why bytes are no JSON object, in Go's words where they are simple.
fn not_an_object(bytes: &[u8]) -> Option<String> {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(other) => {
            let found = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            Some(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"))
        }
        Err(wrong) => {
            let first = String::from_utf8_lossy(bytes).trim_start().chars().next();
            Some(match first {
                None => "unexpected end of JSON input".to_owned(),
                Some(first) if !"{[\"-0123456789tfn".contains(first) => {
                    format!("invalid character '{first}' looking for beginning of value")
                }
                Some(_) => wrong.to_string(),
            })
        }
    }
}

pub(super) fn secret(secret: &Value) -> Vec<FieldError> {
    use base64::Engine as _;
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in entries(secret, "data") {
        errors.extend(invalid_each(&format!("data[{key}]"), key, names::config_key(key)));
        size += decoded_len(value);
    }
    if size > MAX_BYTES {
        errors.push(too_long("data", MAX_BYTES));
    }
    let data = |key: &str| get(secret, "data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let need = |key: &str, errors: &mut Vec<FieldError>| {
        if data(key).is_none() {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    let json = |key: &str, errors: &mut Vec<FieldError>| match data(key) {
        None => errors.push(FieldError::required(format!("data[{key}]"), "")),
        Some(encoded) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
            if let Some(wrong) = not_an_object(&bytes) {
                let shown = "<secret contents redacted>";
                errors.push(FieldError::invalid(format!("data[{key}]"), shown, wrong));
            }
        }
    };
    match text(secret, "type") {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            let named = get(secret, "metadata.annotations").and_then(|all| all.get(key)).and_then(Value::as_str);
            if named.unwrap_or_default().is_empty() {
                errors.push(FieldError::required(format!("metadata.annotations[{key}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => json(".dockercfg", &mut errors),
        "kubernetes.io/dockerconfigjson" => json(".dockerconfigjson", &mut errors),
        "kubernetes.io/basic-auth" if data("username").is_none() && data("password").is_none() => {
            need("username", &mut errors);
            need("password", &mut errors);
        }
        "kubernetes.io/ssh-auth" if data("ssh-privatekey").unwrap_or_default().is_empty() => {
            errors.push(FieldError::required("data[ssh-privatekey]", ""));
        }
        "kubernetes.io/tls" => {
            need("tls.crt", &mut errors);
            need("tls.key", &mut errors);
        }
        _ => {}
    }
    errors
}

pub(super) fn secret_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = immutable(new, old, "type").into_iter().collect();
    errors.extend(frozen(new, old, &["data"]));
    errors
}

pub(super) fn namespace(namespace: &Value) -> Vec<FieldError> {
    let finalizers = list(namespace, "spec.finalizers").iter().filter_map(Value::as_str);
    finalizers.flat_map(|name| finalizer(name, "spec.finalizers")).collect()
}

pub(super) fn finalize(namespace: &Value) -> Vec<FieldError> {
    let finalizers = list(namespace, "spec.finalizers").iter().filter_map(Value::as_str).enumerate();
    finalizers.flat_map(|(index, name)| finalizer(name, &format!("spec.finalizers[{index}]"))).collect()
}

fn finalizer(name: &str, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = invalid_each(path, name, names::qualified_name(name)).collect();
    errors.extend(unknown_finalizer(name, path));
    errors
}

/// A finalizer without a domain must be one of Kubernetes' own.
pub(super) fn unknown_finalizer(name: &str, path: &str) -> Option<FieldError> {
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        let error_text = "name is neither a standard finalizer name nor is it fully qualified";
        return Some(FieldError::invalid(path, name, error_text));
    }
    None
}

pub(super) fn namespace_status(namespace: &Value) -> Vec<FieldError> {
    let phase = text(namespace, "status.phase");
    let (wanted, error_text) = match get(namespace, "metadata.deletionTimestamp") {
        None => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        Some(_) => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    if phase == wanted { Vec::new() } else { vec![FieldError::invalid("status.Phase", phase, error_text)] }
}
