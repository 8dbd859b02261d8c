//! Nodes: taints, addresses and what may not change.

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{about_struct, entries, get, invalid_each, list, text};
use crate::names;
use crate::validation::resources::{quantity_value, taint_effect};
use crate::validation::{cidr_errors, parse_cidr};

pub(super) fn validate(node: &Value) -> Vec<FieldError> {
    let mut errors = taints(node);
    errors.extend(amounts(node));
    let ranges: Vec<&str> = list(node, "spec.podCIDRs").iter().filter_map(Value::as_str).collect();
    for (index, range) in ranges.iter().enumerate() {
        errors.extend(cidr_errors(range, &format!("spec.podCIDRs[{index}]")));
    }
    if ranges.len() > 1 {
        if let Some((index, range)) = ranges.iter().enumerate().find(|(_, range)| parse_cidr(range).is_none()) {
            let error_text = "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR";
            let detail = format!("{error_text}[{index}]: <nil> (invalid CIDR address: {range})");
            errors.push(FieldError { ty: ErrorType::Internal, field: "spec.podCIDRs".into(), value: None, detail });
        }
        let four = ranges.iter().filter(|range| parse_cidr(range).is_some_and(|(ip, _)| ip.is_ipv4())).count();
        let whole = ranges.iter().all(|range| parse_cidr(range).is_some());
        if ranges.len() > 2 || four != 1 || !whole {
            let error_text = "may specify no more than one CIDR for each IP family";
            errors.push(FieldError::invalid("spec.podCIDRs", Value::from(ranges), error_text));
        }
    }
    errors
}

fn taints(node: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (index, taint) in list(node, "spec.taints").iter().enumerate() {
        // The real server points below metadata, although taints are in the spec.
        let path = format!("metadata.taints[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        errors.extend(invalid_each(&format!("{path}.key"), key, names::qualified_name(key)));
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(format!("{path}.value"), value, wrong.join(";")));
        }
        errors.extend(taint_effect(effect, false, &format!("{path}.effect")));
        if seen.contains(&(key, effect)) {
            let added = get(taint, "timeAdded").cloned().unwrap_or(Value::Null);
            let shown = [("Key", key.into()), ("Value", value.into()), ("Effect", effect.into()), ("TimeAdded", added)];
            let error_text = "taints must be unique by key and effect pair";
            errors.push(about_struct(ErrorType::Duplicate, path, &shown, error_text));
            continue;
        }
        seen.push((key, effect));
    }
    errors
}

fn amounts(node: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for list in ["status.capacity", "status.allocatable"] {
        for (name, amount) in entries(node, list) {
            errors.extend(quantity_value(name, amount, &format!("{list}.{name}")));
        }
    }
    errors
}

pub(super) fn update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = amounts(new);
    let mut seen = Vec::new();
    for (index, address) in list(new, "status.addresses").iter().enumerate() {
        if seen.contains(&address) {
            let shown = [("Type", text(address, "type").into()), ("Address", text(address, "address").into())];
            errors.push(about_struct(ErrorType::Duplicate, format!("status.addresses[{index}]"), &shown, ""));
        }
        seen.push(address);
    }
    let (had, has) = (list(old, "spec.podCIDRs"), list(new, "spec.podCIDRs"));
    let error_text = "node updates may not change podCIDR except from \"\" to valid";
    if !had.is_empty() {
        let changed =
            if had.len() == has.len() { had.iter().zip(has).filter(|(was, now)| was != now).count() } else { 1 };
        errors.extend((0..changed).map(|_| FieldError::forbidden("spec.podCIDRs", error_text)));
    }
    let (was, now) = (text(old, "spec.providerID"), text(new, "spec.providerID"));
    if !was.is_empty() && was != now {
        let error_text =
            if now.is_empty() { "field cannot be cleared once set" } else { "field cannot be modified once set" };
        errors.push(FieldError::invalid("spec.providerID", Value::Null, error_text));
    }
    if get(old, "spec.externalID") != get(new, "spec.externalID") {
        errors.push(FieldError::forbidden("spec.externalID", "may not be updated"));
    }
    errors
}
