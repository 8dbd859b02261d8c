//! Amounts of resources, and small rules that several kinds share.

use fleetwright_schema::FieldError;
use fleetwright_syntax::Quantity;
use serde_json::Value;

use crate::access::{entries, get, invalid_each, text};
use crate::names;

/// The resources that Kubernetes itself counts or limits.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// The amount that a value spells.
pub(super) fn amount(value: Option<&Value>) -> Option<Quantity> {
    match value? {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// The errors of a resource amount.
pub(super) fn quantity_value(name: &str, value: &Value, path: &str) -> Vec<FieldError> {
    let Some(quantity) = amount(Some(value)) else {
        return vec![FieldError::invalid(path, value.clone(), "must be a valid resource quantity")];
    };
    let mut errors = Vec::new();
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, quantity.to_string(), "must be greater than or equal to 0"));
    }
    if is_counted(name) && !quantity.is_integer() {
        errors.push(FieldError::invalid(path, quantity.to_string(), "must be an integer"));
    }
    errors
}

/// Whether a resource is counted in whole units: pods and the like, and all extended resources.
fn is_counted(name: &str) -> bool {
    matches!(name, "pods" | "services" | "replicationcontrollers" | "resourcequotas" | "secrets" | "configmaps")
        || is_extended(name)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.")
}

fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

/// The errors of a resource name in a container's requests.
fn container_resource(name: &str, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = invalid_each(path, name, names::qualified_name(name)).collect();
    let huge = name.starts_with("hugepages-");
    if !name.contains('/') {
        if errors.is_empty() && !STANDARD.contains(&name) && !huge && !name.starts_with("requests.hugepages-") {
            errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
        }
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !huge {
            errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(path, name, "doesn't follow extended resource name standard"));
    }
    errors
}

/// Checks what a quota limits.
pub(super) fn quota(quota: &Value) -> Vec<FieldError> {
    quota_list(quota, "spec.hard")
}

/// Checks the values of a quota.
pub(super) fn quota_status(quota: &Value) -> Vec<FieldError> {
    [quota_list(quota, "status.hard"), quota_list(quota, "status.used")].concat()
}

fn quota_list(quota: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, value) in entries(quota, path) {
        let at = format!("{path}[{name}]");
        errors.extend(quota_resource(name, &at));
        errors.extend(quantity_value(name, value, &at));
    }
    errors
}

/// The errors of a resource name in a quota.
fn quota_resource(name: &str, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = invalid_each(path, name, names::qualified_name(name)).collect();
    if !name.contains('/') {
        let huge = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
        if errors.is_empty() && !STANDARD.contains(&name) && !huge {
            errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
        }
        if (!STANDARD.contains(&name) || name == "storage") && !huge {
            errors.push(FieldError::invalid(path, name, "must be a standard resource for quota"));
        }
    }
    errors
}

/// Checks requests against limits.
pub(super) fn requirements(resources: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (mut huge, mut ordinary) = (false, false);
    for list in ["limits", "requests"] {
        for (name, value) in entries(resources, list) {
            let at = format!("{path}.{list}[{name}]");
            errors.extend(container_resource(name, &at));
            errors.extend(quantity_value(name, value, &at));
            huge |= name.starts_with("hugepages-");
            ordinary |= matches!(name.as_str(), "cpu" | "memory");
            if list == "requests" {
                errors.extend(within_limit(resources, name, value, path));
            }
        }
    }
    if huge && !ordinary {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    errors
}

fn within_limit(resources: &Value, name: &str, request: &Value, path: &str) -> Option<FieldError> {
    let requests = format!("{path}.requests");
    let request = amount(Some(request))?;
    let Some(limit) = amount(get(resources, "limits").and_then(|limits| limits.get(name))) else {
        let error_text = "Limit must be set for non overcommitable resources";
        return (!may_overcommit(name)).then(|| FieldError::required(format!("{path}.limits"), error_text));
    };
    if request != limit && !may_overcommit(name) {
        let error_text = format!("must be equal to {name} limit of {limit}");
        return Some(FieldError::invalid(requests, request.to_string(), error_text));
    }
    if request > limit {
        let error_text = format!("must be less than or equal to {name} limit of {limit}");
        return Some(FieldError::invalid(requests, request.to_string(), error_text));
    }
    None
}

/// Checks the effect of a taint or a toleration.
pub(super) fn taint_effect(effect: &str, may_be_empty: bool, path: &str) -> Option<FieldError> {
    match effect {
        "NoSchedule" | "PreferNoSchedule" | "NoExecute" => None,
        "" if may_be_empty => None,
        "" => Some(FieldError::required(path, "")),
        other => Some(FieldError::not_supported(path, other, &["NoSchedule", "PreferNoSchedule", "NoExecute"])),
    }
}

/// Checks a port that is a number or the name of one.
pub(super) fn port_or_name(value: Option<&Value>, path: &str) -> Vec<FieldError> {
    match value {
        Some(Value::String(name)) => invalid_each(path, name, names::port_name(name)).collect(),
        Some(Value::Number(number)) => {
            let number = number.as_i64().unwrap_or(-1);
            names::port_number(number)
                .into_iter()
                .map(|error_text| FieldError::invalid(path, number, error_text))
                .collect()
        }
        _ => names::port_number(0).into_iter().map(|error_text| FieldError::invalid(path, 0, error_text)).collect(),
    }
}

/// Checks a binding of a pod to a node.
pub fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = text(binding, "target.kind");
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if text(binding, "target.name").is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    errors
}
