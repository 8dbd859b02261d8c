//! Roles and their bindings.

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{about_struct, get, invalid_each, is_empty, list, text};
use crate::meta;
use crate::names;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn validate(kind: &str, object: &Value) -> Vec<FieldError> {
    match kind {
        "Role" => rules(object, true).into_iter().chain(without_verbs(object)).collect(),
        "ClusterRole" => {
            let mut errors = rules(object, false);
            errors.extend(aggregation(object));
            errors.extend(without_verbs(object));
            errors
        }
        "RoleBinding" => binding(object, &["Role", "ClusterRole"], true),
        "ClusterRoleBinding" => binding(object, &["ClusterRole"], false),
        _ => Vec::new(),
    }
}

fn rules(role: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, rule) in list(role, "rules").iter().enumerate() {
        let path = format!("rules[{index}]");
        let empty = |key: &str| is_empty(rule.get(key));
        if !empty("nonResourceURLs") {
            let field = format!("{path}.nonResourceURLs");
            let urls = rule.get("nonResourceURLs").cloned().unwrap_or(Value::Null);
            if namespaced {
                let error_text = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(field.clone(), urls.clone(), error_text));
            }
            if !(empty("apiGroups") && empty("resources") && empty("resourceNames")) {
                let error_text = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(FieldError::invalid(field, urls, error_text));
            }
            continue;
        }
        if empty("apiGroups") {
            let error_text = "resource rules must supply at least one api group";
            errors.push(FieldError::required(format!("{path}.apiGroups"), error_text));
        }
        if empty("resources") {
            let error_text = "resource rules must supply at least one resource";
            errors.push(FieldError::required(format!("{path}.resources"), error_text));
        }
    }
    errors
}

/// Declarative rules are checked last.
fn without_verbs(role: &Value) -> impl Iterator<Item = FieldError> {
    let rules = list(role, "rules").iter().enumerate().filter(|(_, rule)| is_empty(rule.get("verbs")));
    rules.map(|(index, _)| FieldError::required(format!("rules[{index}].verbs"), ""))
}

fn aggregation(role: &Value) -> Vec<FieldError> {
    let Some(rule) = get(role, "aggregationRule") else { return Vec::new() };
    let path = "aggregationRule.clusterRoleSelectors";
    let selectors = list(rule, "clusterRoleSelectors");
    if selectors.is_empty() {
        let error_text = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        return vec![FieldError::required(path, error_text)];
    }
    let each = selectors.iter().enumerate();
    each.flat_map(|(index, selector)| meta::validate_selector(selector, &format!("{path}[{index}]"))).collect()
}

fn binding(binding: &Value, kinds: &[&str], namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (group, kind, name) =
        (text(binding, "roleRef.apiGroup"), text(binding, "roleRef.kind"), text(binding, "roleRef.name"));
    if group != GROUP {
        errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[GROUP]));
    }
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
    }
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else {
        errors.extend(invalid_each("roleRef.name", name, names::path_segment(name, false)));
    }
    for (index, subject) in list(binding, "subjects").iter().enumerate() {
        errors.extend(subject_errors(subject, namespaced, &format!("subjects[{index}]")));
    }
    errors
}

/// The role of a binding is immutable: a user who could grant the old one may lack the right to grant the new one.
pub(super) fn role_ref_update(new: &Value, old: &Value) -> Vec<FieldError> {
    if get(new, "roleRef") == get(old, "roleRef") {
        return Vec::new();
    }
    let keys = [("APIGroup", "roleRef.apiGroup"), ("Kind", "roleRef.kind"), ("Name", "roleRef.name")];
    let shown = keys.map(|(go, path)| (go, text(new, path).into()));
    vec![about_struct(ErrorType::Invalid, "roleRef", &shown, meta::IMMUTABLE)]
}

fn subject_errors(subject: &Value, namespaced: bool, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, group) = (text(subject, "name"), text(subject, "apiGroup"));
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(invalid_each(&format!("{path}.name"), name, names::dns_subdomain(name)));
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[""]));
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[GROUP]));
            }
        }
        other => {
            let known = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(format!("{path}.kind"), other, &known));
        }
    }
    errors
}
