//! Scheduling constraints of a pod: affinity, tolerations, spreading and gates.

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{get, get_mut, int, invalid_each, keep, list, remove, set, text};
use crate::meta;
use crate::names;
use crate::validation::resources::taint_effect;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(affinity) = get(spec, "affinity") else { return errors };
    if let Some(node) = get(affinity, "nodeAffinity") {
        let at = format!("{path}.affinity.nodeAffinity");
        if let Some(selector) = get(node, REQUIRED) {
            errors.extend(node_selector(selector, &format!("{at}.{REQUIRED}")));
        }
        for (index, term) in list(node, PREFERRED).iter().enumerate() {
            let at = format!("{at}.{PREFERRED}[{index}]");
            errors.extend(weight(term, &at));
            errors.extend(node_term(term.get("preference").unwrap_or(&Value::Null), &format!("{at}.preference")));
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = get(affinity, kind) else { continue };
        let at = format!("{path}.affinity.{kind}");
        for (index, term) in list(pods, REQUIRED).iter().enumerate() {
            errors.extend(pod_term(term, &format!("{at}.{REQUIRED}[{index}]")));
        }
        for (index, term) in list(pods, PREFERRED).iter().enumerate() {
            let at = format!("{at}.{PREFERRED}[{index}]");
            errors.extend(weight(term, &at));
            let inner = term.get("podAffinityTerm").unwrap_or(&Value::Null);
            errors.extend(pod_term(inner, &format!("{at}.podAffinityTerm")));
        }
    }
    errors
}

fn weight(term: &Value, path: &str) -> Option<FieldError> {
    let weight = int(term, "weight").unwrap_or(0);
    (!(1..=100).contains(&weight))
        .then(|| FieldError::invalid(format!("{path}.weight"), weight, "must be in the range 1-100"))
}

pub(super) fn node_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let terms = list(selector, "nodeSelectorTerms");
    let at = format!("{path}.nodeSelectorTerms");
    if terms.is_empty() {
        return vec![FieldError::required(at, "must have at least one node selector term")];
    }
    terms.iter().enumerate().flat_map(|(index, term)| node_term(term, &format!("{at}[{index}]"))).collect()
}

fn node_term(term: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, requirement) in list(term, "matchExpressions").iter().enumerate() {
        let at = format!("{path}.matchExpressions[{index}]");
        let values = list(requirement, "values");
        let error_text = match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => Some("must be specified when `operator` is 'In' or 'NotIn'"),
            "Gt" | "Lt" if values.len() != 1 => Some("must be specified single value when `operator` is 'Lt' or 'Gt'"),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let error_text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{at}.values"), error_text));
                None
            }
            "In" | "NotIn" | "Gt" | "Lt" | "Exists" | "DoesNotExist" => None,
            other => {
                errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator"));
                None
            }
        };
        errors.extend(error_text.map(|error_text| FieldError::required(format!("{at}.values"), error_text)));
        let key = text(requirement, "key");
        errors.extend(invalid_each(&format!("{at}.key"), key, names::qualified_name(key)));
        for (number, value) in values.iter().filter_map(Value::as_str).enumerate() {
            errors.extend(invalid_each(&format!("{at}.values[{number}]"), value, names::label_value(value)));
        }
    }
    for (index, requirement) in list(term, "matchFields").iter().enumerate() {
        let at = format!("{path}.matchFields[{index}]");
        match text(requirement, "operator") {
            "In" | "NotIn" if list(requirement, "values").len() != 1 => {
                let error_text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(format!("{at}.values"), error_text));
            }
            "In" | "NotIn" => {}
            other => {
                errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator"));
            }
        }
        let key = text(requirement, "key");
        if key != "metadata.name" {
            errors.push(FieldError::invalid(format!("{at}.key"), key, "not a valid field selector key"));
        }
    }
    errors
}

fn pod_term(term: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = get(term, key) {
            errors.extend(meta::validate_selector(selector, &format!("{path}.{key}")));
        }
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        errors.extend(invalid_each(&format!("{path}.namespace"), name, names::dns_label(name)));
    }
    let key = text(term, "topologyKey");
    let field = format!("{path}.topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(field.clone(), "can not be empty"));
    }
    errors.extend(invalid_each(&field, key, names::qualified_name(key)));
    errors
}

pub(super) fn tolerations(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let at = format!("{path}.tolerations[{index}]");
        let (key, operator, value, effect) = (
            text(toleration, "key"),
            text(toleration, "operator"),
            text(toleration, "value"),
            text(toleration, "effect"),
        );
        if !key.is_empty() {
            errors.extend(invalid_each(&format!("{at}.key"), key, names::qualified_name(key)));
        } else if operator != "Exists" {
            let error_text =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{at}.operator"), operator, error_text));
        }
        if get(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let error_text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(format!("{at}.effect"), effect, error_text));
        }
        match operator {
            "" | "Equal" => {
                let wrong = names::label_value(value);
                if !wrong.is_empty() {
                    errors.push(FieldError::invalid(format!("{at}.operator"), value, wrong.join(";")));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    let error_text = "value must be empty when `operator` is 'Exists'";
                    errors.push(FieldError::invalid(format!("{at}.operator"), value, error_text));
                }
            }
            "Lt" | "Gt" => {}
            other => {
                errors.push(FieldError::not_supported(format!("{at}.operator"), other, &["Equal", "Exists"]));
            }
        }
        errors.extend(taint_effect(effect, true, &format!("{at}.effect")));
    }
    errors
}

/// A pod keeps its tolerations; only their seconds may change.
pub(super) fn only_added_tolerations(new: &Value, old: &Value) -> Option<FieldError> {
    let bare = |toleration: &Value| {
        let mut toleration = toleration.clone();
        remove(&mut toleration, "tolerationSeconds");
        toleration
    };
    let has: Vec<Value> = list(new, "spec.tolerations").iter().map(bare).collect();
    let lost = list(old, "spec.tolerations").iter().any(|toleration| !has.contains(&bare(toleration)));
    let error_text = "existing toleration can not be modified except its tolerationSeconds";
    lost.then(|| FieldError::forbidden("spec.tolerations", error_text))
}

pub(super) fn gates(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (index, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let (name, at) = (text(gate, "name"), format!("{path}.schedulingGates[{index}]"));
        errors.extend(invalid_each(&at, name, names::qualified_name(name)));
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(at, name));
        }
        seen.push(name);
    }
    errors
}

pub(super) fn only_deleted_gates(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = "spec.schedulingGates";
    let had: Vec<&str> = list(old, path).iter().map(|gate| text(gate, "name")).collect();
    let each = list(new, path).iter().enumerate();
    let added = each.filter(|(_, gate)| !had.contains(&text(gate, "name")));
    added
        .map(|(index, gate)| {
            let name = text(gate, "name");
            let error_text = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            FieldError::forbidden(format!("{path}[{index}].name"), error_text)
        })
        .collect()
}

/// A pod behind a gate may still narrow where it runs.
pub(super) fn undo_node_affinity(spec: &mut Value, before: &Value) {
    if get(before, "affinity").is_none() {
        let only_nodes = get(spec, "affinity")
            .and_then(Value::as_object)
            .is_some_and(|affinity| affinity.keys().all(|key| key == "nodeAffinity"));
        if only_nodes {
            remove(spec, "affinity");
        }
        return;
    }
    if get(spec, "affinity").is_none() {
        set(spec, "affinity", serde_json::json!({}));
    }
    if let (Some(affinity), Some(before)) = (get_mut(spec, "affinity"), before.get("affinity")) {
        keep(affinity, before, "nodeAffinity");
    }
}

pub(super) fn spread(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let constraints = list(spec, "topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let at = format!("{path}.topologySpreadConstraints[{index}]");
        let skew = int(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            errors.push(FieldError::invalid(format!("{at}.maxSkew"), skew, "must be greater than zero"));
        }
        let (key, when) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            errors.push(FieldError::required(format!("{at}.topologyKey"), "can not be empty"));
        }
        let allowed = ["DoNotSchedule", "ScheduleAnyway"];
        if !allowed.contains(&when) {
            errors.push(FieldError::not_supported(format!("{at}.whenUnsatisfiable"), when, &allowed));
        }
        let repeats = |other: &Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == when;
        if constraints.iter().skip(index + 1).any(repeats) {
            let field = format!("{at}.{{topologyKey, whenUnsatisfiable}}");
            errors.push(FieldError::duplicate(field, format!("{{{key}, {when}}}")));
        }
        if let Some(domains) = int(constraint, "minDomains") {
            if domains <= 0 {
                errors.push(FieldError::invalid(format!("{at}.minDomains"), domains, "must be greater than zero"));
            }
            if when != "DoNotSchedule" {
                let error_text = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                errors.push(FieldError::invalid(format!("{at}.minDomains"), domains, error_text));
            }
        }
        if let Some(selector) = get(constraint, "labelSelector") {
            errors.extend(meta::validate_selector(selector, &format!("{at}.labelSelector")));
        }
    }
    errors
}
