//! That a schema is structural: every field has a type, and value validations inside `allOf`, `anyOf`, `oneOf` and `not`
//! say nothing about structure.

use fleetwright_syntax::regexp;

use crate::props::{Additional, Props};
use crate::{FieldError, text};

/// The position of a node in the tree, which decides the message about a missing type.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The violations of structural schemas, sorted as in the real server.
pub(super) fn check(props: &Props, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(props, Level::Root, path, &mut errors);
    complete(props, Some(props), path, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn invariants(p: &Props, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(path, name);
    let property = |name: &str| text::key(&at("properties"), name);
    let item = p.item();
    if p.ty == "array" && item.is_none() {
        errors.push(FieldError::required(at("items"), "must be specified"));
    }
    if let Some(item) = item {
        invariants(item, Level::Item, &at("items"), errors);
    }
    for (name, field) in &p.properties {
        invariants(field, Level::Field, &property(name), errors);
    }
    if let Some(additional) = &p.additional {
        if level == Level::Root {
            errors.push(FieldError::forbidden(at("additionalProperties"), "must not be used at the root"));
        }
        if let Additional::Schema(schema) = additional {
            invariants(schema, Level::Field, &at("additionalProperties"), errors);
        }
    }
    if p.int_or_string && p.preserve_unknown == Some(true) {
        let detail = "must be false if x-kubernetes-int-or-string is true";
        errors.push(FieldError::invalid(at("x-kubernetes-preserve-unknown-fields"), true, detail));
    }
    if p.int_or_string && p.embedded_resource {
        let detail = "must be false if x-kubernetes-int-or-string is true";
        errors.push(FieldError::invalid(at("x-kubernetes-embedded-resource"), true, detail));
    }
    let skip_first = p.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    value_validation(p, is_int_or_string(&p.any_of), skip_first, path, errors);
    check_type(p, level, path, errors);
    if p.embedded_resource && p.additional.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(at("additionalProperties"), detail));
    }
    let is_resource = level == Level::Root || p.embedded_resource;
    for name in ["kind", "apiVersion"] {
        if let Some(field) = p.properties.get(name).filter(|field| is_resource && field.ty != "string") {
            let path = text::child(&property(name), "type");
            errors.push(FieldError::invalid(path, field.ty.as_str(), "must be string"));
        }
    }
    if let Some(metadata) = p.properties.get("metadata") {
        check_metadata(metadata, is_resource, level, &property("metadata"), errors);
    }
    if p.embedded_resource && p.preserve_unknown != Some(true) && p.properties.is_empty() {
        let detail =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(at("properties"), detail));
    }
}

fn check_type(p: &Props, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let at = text::child(path, "type");
    if p.embedded_resource && p.ty != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if p.ty.is_empty() {
            FieldError::required(at.clone(), detail)
        } else {
            FieldError::invalid(at.clone(), p.ty.as_str(), detail)
        });
    } else if p.ty.is_empty() && !p.int_or_string && p.preserve_unknown != Some(true) {
        let place = match level {
            Level::Root => "at the root",
            Level::Item => "for specified array items",
            Level::Field => "for specified object fields",
        };
        errors.push(FieldError::required(at.clone(), format!("must not be empty {place}")));
    }
    if level == Level::Root && !p.ty.is_empty() && p.ty != "object" {
        errors.push(FieldError::invalid(at, p.ty.as_str(), "must be object at the root"));
    }
}

fn check_metadata(p: &Props, is_resource: bool, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    if is_resource && p.ty != "object" {
        errors.push(FieldError::invalid(text::child(path, "type"), p.ty.as_str(), "must be object"));
    }
    if level != Level::Root {
        return;
    }
    let mut rest = p.clone();
    if rest.properties.keys().all(|name| name == "name" || name == "generateName") {
        rest.properties.clear();
    }
    rest.ty.clear();
    rest.default = None;
    if rest != Props::default() {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(path, detail));
    }
}

/// `anyOf: [{type: integer}, {type: string}]`, the one place where types may be repeated.
fn is_int_or_string(any_of: &[Props]) -> bool {
    let only = |ty: &str| Props { ty: ty.to_owned(), ..Props::default() };
    matches!(any_of, [a, b] if *a == only("integer") && *b == only("string"))
}

fn value_validation(p: &Props, skip_any: bool, skip_first_all: bool, path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str, n: usize| text::index(&text::child(path, name), n);
    if !skip_any {
        for (n, one) in p.any_of.iter().enumerate() {
            nested(one, false, &at("anyOf", n), errors);
        }
    }
    for (n, one) in p.all_of.iter().enumerate() {
        nested(one, skip_first_all && n == 0, &at("allOf", n), errors);
    }
    for (n, one) in p.one_of.iter().enumerate() {
        nested(one, false, &at("oneOf", n), errors);
    }
    if let Some(not) = &p.not {
        nested(not, false, &text::child(path, "not"), errors);
    }
    if !p.pattern.is_empty()
        && let Err(why) = regexp::compile(&p.pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(FieldError::invalid(text::child(path, "pattern"), p.pattern.as_str(), detail));
    }
}

/// A node inside a quantifier: it may restrict values, not describe structure.
fn nested(p: &Props, skip_any: bool, path: &str, errors: &mut Vec<FieldError>) {
    value_validation(p, skip_any, false, path, errors);
    let at = |name: &str| text::child(path, name);
    if let Some(item) = p.item() {
        nested(item, false, &at("items"), errors);
    }
    for (name, field) in &p.properties {
        nested(field, false, &text::key(&at("properties"), name), errors);
    }
    let allows_more = matches!(&p.additional, Some(Additional::Bool(true) | Additional::Schema(_)));
    let forbidden = [
        (!p.ty.is_empty(), "type", "must be empty to be structural"),
        (allows_more, "additionalProperties", "must be undefined to be structural"),
        (p.default.is_some(), "default", "must be undefined to be structural"),
        (!p.title.is_empty(), "title", "must be empty to be structural"),
        (!p.description.is_empty(), "description", "must be empty to be structural"),
        (p.nullable, "nullable", "must be false to be structural"),
        (p.preserve_unknown == Some(true), "x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        (p.embedded_resource, "x-kubernetes-embedded-resource", "must be false to be structural"),
        (p.int_or_string, "x-kubernetes-int-or-string", "must be false to be structural"),
        (!p.list_map_keys.is_empty(), "x-kubernetes-list-map-keys", "must be empty to be structural"),
        (p.list_type.is_some(), "x-kubernetes-list-type", "must be undefined to be structural"),
        (p.map_type.is_some(), "x-kubernetes-map-type", "must be undefined to be structural"),
        (!p.rules.is_empty(), "x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (_, name, detail) in forbidden.into_iter().filter(|(set, ..)| *set) {
        errors.push(FieldError::forbidden(at(name), detail));
    }
    if p.properties.contains_key("metadata") {
        let path = text::key(&at("properties"), "metadata");
        errors.push(FieldError::forbidden(path, "must not be specified in a nested context"));
    }
}

/// Every field inside a quantifier must be described outside of it.
fn complete(p: &Props, outside: Option<&Props>, s_path: &str, v_path: &str, errors: &mut Vec<FieldError>) {
    let at = |name: &str| text::child(v_path, name);
    if let Some(not) = &p.not {
        complete_nested(not, outside, s_path, &at("not"), errors);
    }
    for (name, list) in [("allOf", &p.all_of), ("anyOf", &p.any_of), ("oneOf", &p.one_of)] {
        for (n, one) in list.iter().enumerate() {
            complete_nested(one, outside, s_path, &text::index(&at(name), n), errors);
        }
    }
}

fn complete_nested(p: &Props, outside: Option<&Props>, s_path: &str, v_path: &str, errors: &mut Vec<FieldError>) {
    let Some(schema) = outside else {
        errors.push(FieldError::required(s_path, format!("because it is defined in {v_path}")));
        return;
    };
    complete(p, outside, s_path, v_path, errors);
    if let Some(item) = p.item() {
        complete_nested(item, schema.item(), &text::child(s_path, "items"), &text::child(v_path, "items"), errors);
    }
    for (name, field) in &p.properties {
        let s_path = text::key(&text::child(s_path, "properties"), name);
        let v_path = text::key(&text::child(v_path, "properties"), name);
        complete_nested(field, schema.properties.get(name), &s_path, &v_path, errors);
    }
}
