//! Checks that each keyword of a schema is supported and valid at its place.

use crate::props::{Additional, Items, Props};
use crate::{FieldError, field_path, text};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const REASONS: &[&str] = &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// The keywords that the context of a node forbids.
#[derive(Clone, Default)]
struct Context {
    no_defaults: Option<String>,
    inside_meta: bool,
}

/// Unsupported and misused keywords.
pub(super) fn check(props: &Props, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    visit(props, path, true, &Context::default(), &mut errors);
    errors
}

fn visit(p: &Props, path: &str, is_root: bool, context: &Context, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(path, name);
    check_supported(p, path, context, errors);
    if p.unique_items {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(at("uniqueItems"), detail));
    }
    if let Some(additional) = &p.additional {
        if !p.properties.is_empty() && *additional != Additional::Bool(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(at("additionalProperties"), detail));
        }
        if let Additional::Schema(schema) = additional {
            let mut inner = context.clone();
            if context.inside_meta {
                inner.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
            }
            visit(schema, &at("additionalProperties"), false, &inner, errors);
        }
    }
    for (name, field) in &p.properties {
        let mut inner = context.clone();
        if (is_root || p.embedded_resource) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inner.inside_meta = true;
            if is_root {
                inner.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        visit(field, &text::key(&at("properties"), name), false, &inner, errors);
    }
    if let Some(not) = &p.not {
        visit(not, &at("not"), false, context, errors);
    }
    for (name, list) in [("allOf", &p.all_of), ("oneOf", &p.one_of), ("anyOf", &p.any_of)] {
        for (n, one) in list.iter().enumerate() {
            visit(one, &text::index(&at(name), n), false, context, errors);
        }
    }
    for (name, one) in &p.definitions {
        visit(one, &text::key(&at("definitions"), name), false, context, errors);
    }
    match &p.items {
        Some(Items::One(item)) => visit(item, &at("items"), false, context, errors),
        Some(Items::Many(list)) => {
            for (n, item) in list.iter().enumerate() {
                visit(item, &text::index(&at("items"), n), false, context, errors);
            }
        }
        None => {}
    }
    if p.preserve_unknown == Some(false) {
        let detail = "must be true or undefined";
        errors.push(FieldError::invalid(at("x-kubernetes-preserve-unknown-fields"), false, detail));
    }
    check_map_type(p, path, errors);
    check_list_type(p, path, errors);
    check_rules(p, path, errors);
}

fn check_supported(p: &Props, path: &str, context: &Context, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(path, name);
    if !p.ty.is_empty() && !TYPES.contains(&p.ty.as_str()) {
        errors.push(FieldError::not_supported(at("type"), p.ty.as_str(), TYPES));
    }
    if let (Some(_), Some(reason)) = (&p.default, &context.no_defaults) {
        errors.push(FieldError::forbidden(at("default"), format!("must not be set {reason}")));
    }
    let refused = [
        (!p.id.is_empty(), "id"),
        (p.has_additional_items, "additionalItems"),
        (p.has_pattern_properties, "patternProperties"),
        (!p.definitions.is_empty(), "definitions"),
        (p.has_dependencies, "dependencies"),
        (p.reference.is_some(), "$ref"),
    ];
    for (_, name) in refused.into_iter().filter(|(found, _)| *found) {
        errors.push(FieldError::forbidden(at(name), format!("{name} is not supported")));
    }
    if p.ty == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(at("type"), detail));
    }
    if matches!(&p.items, Some(Items::Many(list)) if !list.is_empty()) {
        errors.push(FieldError::forbidden(at("items"), "items must be a schema object and not an array"));
    }
    if context.inside_meta && p.embedded_resource {
        let detail = "must not be used inside of resource meta";
        errors.push(FieldError::forbidden(at("x-kubernetes-embedded-resource"), detail));
    }
}

/// A type that a keyword asks for.
fn wrong_type(p: &Props, path: &str, wanted: &str, keyword: &str) -> FieldError {
    let at = text::child(path, "type");
    let detail = format!("must be {wanted} if {keyword} is specified");
    if p.ty.is_empty() { FieldError::required(at, detail) } else { FieldError::invalid(at, p.ty.as_str(), detail) }
}

fn check_map_type(p: &Props, path: &str, errors: &mut Vec<FieldError>) {
    let Some(map_type) = &p.map_type else { return };
    if p.ty != "object" {
        errors.push(wrong_type(p, path, "object", "x-kubernetes-map-type"));
    }
    if !matches!(map_type.as_str(), "atomic" | "granular") {
        let at = text::child(path, "x-kubernetes-map-type");
        errors.push(FieldError::not_supported(at, map_type.as_str(), &["atomic", "granular"]));
    }
}

fn check_list_type(p: &Props, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(path, name);
    let items_at = |name: &str| text::child(&at("items"), name);
    let list_type = p.list_type.as_deref();
    if let Some(list_type) = list_type {
        if p.ty != "array" {
            errors.push(wrong_type(p, path, "array", "x-kubernetes-list-type"));
        } else if let ("set", Some(item)) = (list_type, p.item()) {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let shown = item.list_type.clone().map_or(serde_json::Value::Null, Into::into);
            if item.ty == "array" && item.list_type.as_deref().is_some_and(|ty| ty != "atomic") {
                errors.push(FieldError::invalid(items_at("x-kubernetes-list-type"), shown, detail));
            } else if item.ty == "object" && item.map_type.as_deref() != Some("atomic") {
                errors.push(FieldError::invalid(items_at("x-kubernetes-map-type"), shown, detail));
            }
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            let allowed = ["atomic", "set", "map"];
            errors.push(FieldError::not_supported(at("x-kubernetes-list-type"), list_type, &allowed));
        }
    }
    if !p.list_map_keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            None => FieldError::required(at("x-kubernetes-list-type"), detail),
            Some(other) => FieldError::invalid(at("x-kubernetes-list-type"), other, detail),
        });
    }
    if list_type == Some("map") {
        check_map_keys(p, path, errors);
    }
    if let (Some("set" | "map"), Some(item)) = (list_type, p.item()) {
        check_key_values(p, item, path, errors);
    }
}

fn check_map_keys(p: &Props, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(path, name);
    if p.list_map_keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(at("x-kubernetes-list-map-keys"), detail));
    }
    if p.items.is_none() {
        errors.push(FieldError::required(at("items"), "must have a schema if x-kubernetes-list-type is map"));
    }
    let Some(item) = p.item() else { return };
    if item.ty != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(text::child(&at("items"), "type"), item.ty.as_str(), detail));
        return;
    }
    let keys_at = at("x-kubernetes-list-map-keys");
    for (n, key) in p.list_map_keys.iter().enumerate() {
        match item.properties.get(key) {
            Some(field) if matches!(field.ty.as_str(), "array" | "object") => {
                let field_at = text::child(&text::key(&text::child(&at("items"), "properties"), key), "type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(field_at, item.ty.as_str(), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_at.as_str(), p.list_map_keys.clone(), detail));
            }
        }
        if p.list_map_keys[..n].contains(key) {
            let detail = "must not contain duplicate entries";
            errors.push(FieldError::invalid(keys_at.as_str(), p.list_map_keys.clone(), detail));
        }
    }
}

fn check_key_values(p: &Props, item: &Props, path: &str, errors: &mut Vec<FieldError>) {
    let list_type = p.list_type.as_deref().unwrap_or("");
    let items = text::child(path, "items");
    if item.nullable {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(text::child(&items, "nullable"), detail));
    }
    if list_type != "map" {
        return;
    }
    for key in &p.list_map_keys {
        let Some(field) = item.properties.get(key) else { continue };
        let at = text::key(&text::child(&items, "properties"), key);
        if !item.required.contains(key) && field.default.is_none() {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(text::child(&at, "default"), detail));
        }
        if field.nullable {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(text::child(&at, "nullable"), detail));
        }
    }
}

fn check_rules(p: &Props, path: &str, errors: &mut Vec<FieldError>) {
    if p.rules.is_empty() {
        return;
    }
    let has_newlines = |text: &str| text.contains(['\n', '\r']);
    let schema = p.to_schema();
    for (n, rule) in p.rules.iter().enumerate() {
        let rule_at = text::index(&text::child(path, "x-kubernetes-validations"), n);
        let at = |name: &str| text::child(&rule_at, name);
        let message = rule.message.as_deref().unwrap_or("");
        let (trimmed, trimmed_message) = (rule.rule.trim(), message.trim());
        if trimmed.is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if !message.is_empty() && trimmed_message.is_empty() {
            errors.push(FieldError::invalid(at("message"), message, "must be non-empty if specified"));
        } else if has_newlines(trimmed_message) {
            errors.push(FieldError::invalid(at("message"), message, "must not contain line breaks"));
        } else if has_newlines(trimmed) && trimmed_message.is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), detail));
        }
        let expression = rule.message_expression.as_deref().unwrap_or("");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), detail));
        }
        if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(at("reason"), reason, REASONS));
        }
        let field = rule.field_path.as_deref().unwrap_or("");
        if field.is_empty() {
            continue;
        }
        if field.trim().is_empty() {
            errors.push(FieldError::invalid(at("fieldPath"), field, "must be non-empty if specified"));
        }
        if has_newlines(field) {
            errors.push(FieldError::invalid(at("fieldPath"), field, "must not contain line breaks"));
        }
        if field_path::resolve(field, &schema, true).is_err() {
            errors.push(FieldError::invalid(at("fieldPath"), field, "must be a valid path"));
        }
    }
}
