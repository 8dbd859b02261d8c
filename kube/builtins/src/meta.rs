//! The rules that every object's metadata follows, built-in or custom.

use std::collections::BTreeSet;

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{entries, flag, get, go_struct, int, invalid_each, list, text, too_long};
use crate::names::{self, NameRule};
use crate::table::Kind;

/// The message for a write to an immutable field.
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// All keys and values of the annotations together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// The characters of a random suffix: no vowels, so that no words appear.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_GENERATED: usize = 63;

/// The name format of a kind.
pub fn name_rule(kind: &Kind) -> NameRule {
    rule_of(kind.group, kind.kind)
}

fn rule_of(group: &str, kind: &str) -> NameRule {
    match (group, kind) {
        ("", "Namespace" | "Service") => NameRule::Label,
        ("rbac.authorization.k8s.io", _) => NameRule::PathSegment,
        _ => NameRule::Subdomain,
    }
}

/// A name from a `generateName`: the base, cut to fit, and five random characters.
pub fn generate_name(base: &str, random: u64) -> String {
    let mut end = base.len().min(MAX_GENERATED - SUFFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base.get(..end).unwrap_or_default().to_owned();
    let mut rest = random;
    for _ in 0..SUFFIX_LENGTH {
        let at = (rest % SUFFIX_ALPHABET.len() as u64) as usize;
        name.push(char::from(SUFFIX_ALPHABET.get(at).copied().unwrap_or(b'x')));
        rest /= SUFFIX_ALPHABET.len() as u64;
    }
    name
}

/// Takes out of a new object's metadata what only the server sets.
pub fn before_create(object: &mut Value) {
    if let Some(meta) = crate::access::object(object, "metadata") {
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            crate::access::remove(meta, key);
        }
    }
}

/// Gives an update what it cannot change: identity, creation and deletion as they were.
pub fn before_update(new: &mut Value, old: &Value) {
    let Some(old) = old.get("metadata") else { return };
    let Some(meta) = crate::access::object(new, "metadata") else { return };
    crate::access::keep(meta, old, "generation");
    crate::access::keep(meta, old, "creationTimestamp");
    crate::access::remove(meta, "selfLink");
    if text(meta, "uid").is_empty() {
        crate::access::keep(meta, old, "uid");
    }
    if get(old, "deletionTimestamp").is_some() {
        crate::access::keep(meta, old, "deletionTimestamp");
    }
    if get(meta, "deletionGracePeriodSeconds").is_none() {
        crate::access::keep(meta, old, "deletionGracePeriodSeconds");
    }
}

/// Checks the metadata of a new object. Names have been generated before.
pub fn validate_create(object: &Value, namespaced: bool, rule: NameRule) -> Vec<FieldError> {
    validate_at(object.get("metadata").unwrap_or(&Value::Null), namespaced, rule, "metadata")
}

/// Checks metadata that stands at `path`, as on creation.
pub(crate) fn validate_at(meta: &Value, namespaced: bool, rule: NameRule, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let generate = text(meta, "generateName");
    if !generate.is_empty() {
        errors.extend(invalid_each(&format!("{path}.generateName"), generate, rule.check(generate, true)));
    }
    let name = text(meta, "name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), "name or generateName is required"));
    } else {
        errors.extend(invalid_each(&format!("{path}.name"), name, rule.check(name, false)));
    }
    let namespace = text(meta, "namespace");
    let field = format!("{path}.namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(field, "")),
        (true, false) => errors.extend(invalid_each(&field, namespace, names::dns_label(namespace))),
        (false, false) => errors.push(FieldError::forbidden(field, "not allowed on this type")),
        (false, true) => {}
    }
    errors.extend(non_negative(meta, "generation", path));
    errors.extend(validate_labels(meta.get("labels"), &format!("{path}.labels")));
    errors.extend(validate_annotations(meta, path));
    errors.extend(validate_owners(meta, path));
    errors.extend(validate_finalizers(meta, path));
    errors.extend(validate_managed_fields(meta, path));
    errors
}

/// Checks that an update changes only what may change, and that the new metadata is well formed.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = "metadata";
    let (new, old) = (new.get(path).unwrap_or(&Value::Null), old.get(path).unwrap_or(&Value::Null));
    let mut errors = Vec::new();
    if get(old, "deletionTimestamp").is_some() {
        errors.extend(no_new_finalizers(new, old));
    }
    if text(new, "resourceVersion").is_empty() {
        errors.push(FieldError::invalid("metadata.resourceVersion", "", "must be specified for an update"));
    }
    errors.extend(non_negative(new, "generation", path));
    let generation = int(new, "generation").unwrap_or(0);
    if generation < int(old, "generation").unwrap_or(0) {
        errors.push(FieldError::invalid("metadata.generation", generation, "must not be decremented"));
    }
    for key in ["name", "namespace", "uid"] {
        if text(new, key) != text(old, key) {
            errors.push(FieldError::invalid(format!("metadata.{key}"), text(new, key), IMMUTABLE));
        }
    }
    for key in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if get(new, key) != get(old, key) {
            let value = get(new, key).cloned().unwrap_or(Value::Null);
            errors.push(FieldError::invalid(format!("metadata.{key}"), value, IMMUTABLE));
        }
    }
    errors.extend(validate_labels(new.get("labels"), "metadata.labels"));
    errors.extend(validate_annotations(new, path));
    errors.extend(validate_owners(new, path));
    errors.extend(validate_managed_fields(new, path));
    errors
}

fn no_new_finalizers(new: &Value, old: &Value) -> Option<FieldError> {
    let had: BTreeSet<&str> = list(old, "finalizers").iter().filter_map(Value::as_str).collect();
    let has: BTreeSet<&str> = list(new, "finalizers").iter().filter_map(Value::as_str).collect();
    let extra: Vec<String> = has.difference(&had).map(|name| format!("{name:?}")).collect();
    if extra.is_empty() {
        return None;
    }
    let extra = extra.join(", ");
    let error_text = "no new finalizers can be added if the object is being deleted, found new finalizers []string";
    Some(FieldError::forbidden("metadata.finalizers", format!("{error_text}{{{extra}}}")))
}

fn non_negative(value: &Value, key: &str, path: &str) -> Option<FieldError> {
    let number = int(value, key).unwrap_or(0);
    (number < 0).then(|| FieldError::invalid(format!("{path}.{key}"), number, "must be greater than or equal to 0"))
}

/// Checks the keys and values of labels that stand at `path`.
pub fn validate_labels(labels: Option<&Value>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(invalid_each(path, key, names::qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid_each(path, value, names::label_value(value)));
    }
    errors
}

fn validate_annotations(meta: &Value, path: &str) -> Vec<FieldError> {
    let path = format!("{path}.annotations");
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in entries(meta, "annotations") {
        errors.extend(invalid_each(&path, key, names::qualified_name(&key.to_lowercase())));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATION_BYTES {
        errors.push(too_long(path, MAX_ANNOTATION_BYTES));
    }
    errors
}

fn validate_owners(meta: &Value, path: &str) -> Vec<FieldError> {
    let path = format!("{path}.ownerReferences");
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    for (index, owner) in list(meta, "ownerReferences").iter().enumerate() {
        let at = format!("{path}[{index}]");
        let version = text(owner, "apiVersion");
        if version.is_empty() {
            errors.push(FieldError::required(format!("{at}.apiVersion"), "must not be empty"));
        } else if version.matches('/').count() > 1 || version.ends_with('/') {
            let error_text = "must be <group>/<version> or <version>";
            errors.push(FieldError::invalid(format!("{at}.apiVersion"), version, error_text));
        }
        for key in ["kind", "name", "uid"] {
            if text(owner, key).is_empty() {
                errors.push(FieldError::required(format!("{at}.{key}"), "must not be empty"));
            }
        }
        if version == "v1" && text(owner, "kind") == "Event" {
            let error_text = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(at, owner.clone(), error_text));
        }
        if flag(owner, "controller") {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                Some(first) => {
                    let error_text = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    let all: Vec<String> = list(meta, "ownerReferences").iter().map(owner_text).collect();
                    let detail = format!("[{}]: {error_text}", all.join(","));
                    errors.push(FieldError { ty: ErrorType::Invalid, field: path.clone(), value: None, detail });
                }
                None => controller = Some(this),
            }
        }
    }
    errors
}

/// A reference as the real server prints it.
fn owner_text(owner: &Value) -> String {
    let keys = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let fields: Vec<(&str, Value)> = keys.into_iter().filter_map(|key| Some((key, get(owner, key)?.clone()))).collect();
    go_struct(&fields)
}

fn validate_finalizers(meta: &Value, path: &str) -> Vec<FieldError> {
    let path = format!("{path}.finalizers");
    let finalizers: Vec<&str> = list(meta, "finalizers").iter().filter_map(Value::as_str).collect();
    let mut errors: Vec<FieldError> =
        finalizers.iter().flat_map(|name| invalid_each(&path, name, names::qualified_name(name))).collect();
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let all = get(meta, "finalizers").cloned().unwrap_or(Value::Null);
        let error_text = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, all, error_text));
    }
    errors
}

fn validate_managed_fields(meta: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, entry) in list(meta, "managedFields").iter().enumerate() {
        let at = format!("{path}.managedFields[{index}]");
        match text(entry, "operation") {
            "" => errors.push(FieldError::required(format!("{at}.operation"), "must not be empty")),
            "Apply" | "Update" => {}
            other => {
                errors.push(FieldError::not_supported(format!("{at}.operation"), other, &["Apply", "Update"]));
            }
        }
        let fields_type = text(entry, "fieldsType");
        if !fields_type.is_empty() && fields_type != "FieldsV1" {
            errors.push(FieldError::invalid(format!("{at}.fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        errors.extend(validate_field_manager(text(entry, "manager"), &format!("{at}.manager")));
        if text(entry, "subresource").len() > 256 {
            errors.push(too_long(format!("{at}.subresource"), 256));
        }
    }
    errors
}

/// Checks the name of a field manager that stands at `path`.
pub fn validate_field_manager(manager: &str, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > 128 {
        errors.push(too_long(path, 128));
    }
    for (position, character) in manager.char_indices().filter(|(_, c)| c.is_control()) {
        let error_text = format!("invalid character U+{:04X} (at position {position})", character as u32);
        errors.push(FieldError::invalid(path, manager, error_text));
    }
    errors
}

/// Checks a label selector that stands at `path`.
pub fn validate_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = validate_labels(selector.get("matchLabels"), &format!("{path}.matchLabels"));
    for (index, requirement) in list(selector, "matchExpressions").iter().enumerate() {
        let at = format!("{path}.matchExpressions[{index}]");
        let values = list(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let error_text = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{at}.values"), error_text));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let error_text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{at}.values"), error_text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator"));
            }
        }
        let key = text(requirement, "key");
        errors.extend(invalid_each(&format!("{at}.key"), key, names::qualified_name(key)));
        for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
            errors.extend(invalid_each(&format!("{at}.values[{index}]"), value, names::label_value(value)));
        }
    }
    errors
}

/// Whether labels satisfy a label selector; an empty selector matches everything, an absent one nothing.
pub fn selector_matches(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector.filter(|selector| !selector.is_null()) else { return false };
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let equal = entries(selector, "matchLabels").all(|(key, value)| label(key) == value.as_str());
    equal
        && list(selector, "matchExpressions").iter().all(|requirement| {
            let found = label(text(requirement, "key"));
            let among = || list(requirement, "values").iter().any(|value| value.as_str() == found && found.is_some());
            match text(requirement, "operator") {
                "In" => among(),
                "NotIn" => !among(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error_texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_namespaced_object_needs_name_and_namespace() {
        let errors = validate_create(&json!({"metadata": {}}), true, NameRule::Subdomain);
        assert_eq!(
            error_texts(&errors),
            ["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required value"]
        );
    }

    #[test]
    fn a_cluster_object_has_no_namespace() {
        let errors = validate_create(&json!({"metadata": {"name": "a", "namespace": "b"}}), false, NameRule::Subdomain);
        assert_eq!(error_texts(&errors), ["metadata.namespace: Forbidden: not allowed on this type"]);
    }

    #[test]
    fn two_controllers_are_refused_by_name() {
        let owner =
            |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        let object = json!({"metadata": {"name": "a", "ownerReferences": [owner("x"), owner("y")]}});
        let errors = validate_create(&object, false, NameRule::Subdomain);
        assert!(error_texts(&errors).join("").ends_with("in references for Pod/x and Pod/y"), "{errors:?}");
    }

    #[test]
    fn a_deleted_object_gets_no_new_finalizer() {
        let old = json!({"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a.b/c"]}});
        let new = json!({"metadata": {"name": "a", "deletionTimestamp": "t", "resourceVersion": "1", "finalizers": ["a.b/c", "a.b/d"]}});
        assert_eq!(
            error_texts(&validate_update(&new, &old)),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a.b/d\"}"
            ]
        );
    }

    #[test]
    fn an_uid_does_not_change() {
        let old = json!({"metadata": {"name": "a", "uid": "1"}});
        let new = json!({"metadata": {"name": "a", "uid": "2", "resourceVersion": "1"}});
        assert_eq!(
            error_texts(&validate_update(&new, &old)),
            ["metadata.uid: Invalid value: \"2\": field is immutable"]
        );
    }

    #[test]
    fn a_generated_name_fits_into_a_label() {
        let name = generate_name(&"x".repeat(100), u64::MAX);
        assert_eq!(name.len(), 63);
        assert!(generate_name("web-", 7).starts_with("web-"));
        assert!(generate_name(&"é".repeat(60), 7).len() <= 63);
    }

    #[test]
    fn a_selector_with_expressions_picks_by_them() {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]});
        assert!(selector_matches(Some(&selector), Some(&json!({"a": "y"}))));
        assert!(selector_matches(Some(&selector), None));
        assert!(!selector_matches(Some(&selector), Some(&json!({"a": "x"}))));
    }
}
