//! The rules for a CustomResourceDefinition's schema, with the messages of the real server.
//!
//! [`check`] covers all of it but the compilation of CEL rules: that a schema is structural, that its defaults are valid
//! and pruned, and that each keyword is used where it may be.

mod defaults;
mod keywords;
mod shape;

use fleetwright_syntax::regexp;
use serde_json::Value;

use crate::props::{Props, unsupported};
use crate::{FieldError, text};

/// The fields that a schema's root may have when the status subresource is on.
const ALLOWED_AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

/// The context of a schema node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether the version has a status subresource, which restricts the root.
    pub status: bool,
}

/// Everything that the API server refuses in a CRD's `openAPIV3Schema`. `path` is the path of the schema itself.
pub fn check(schema: &Value, path: &str, options: Options) -> Vec<FieldError> {
    let props = match Props::parse(schema) {
        Ok(props) => props,
        Err(why) => return vec![FieldError::invalid(path, "", why)],
    };
    let mut errors = Vec::new();
    if options.status {
        check_root(&props, schema, path, &mut errors);
    }
    if props.nullable {
        errors.push(FieldError::forbidden(text::child(path, "nullable"), "nullable cannot be true at the root"));
    }
    let unreadable = match unsupported(&props) {
        Err(why) => Some(FieldError::invalid(path, "", why)),
        Ok(()) => {
            let misshapen = shape::check(&props, path);
            if misshapen.is_empty() {
                errors.extend(defaults::check(&props, path));
            }
            errors.extend(misshapen);
            None
        }
    };
    errors.extend(keywords::check(&props, path));
    if errors.is_empty() {
        errors.extend(unreadable);
    }
    errors
}

/// The effort to compile all patterns of a schema, by [`regexp::effort`]. Counting ends above
/// [`regexp::TOTAL_EFFORT_LIMIT`], which callers enforce before they compile any.
pub fn pattern_effort(schema: &Value) -> u64 {
    let mut total = 0;
    // Errors of the schema itself are reported elsewhere.
    if let Ok(props) = Props::parse(schema) {
        add_effort(&props, &mut total);
    }
    total
}

fn add_effort(props: &Props, total: &mut u64) {
    if !props.pattern.is_empty() {
        *total += regexp::effort(&props.pattern);
    }
    for part in props.parts() {
        if *total > regexp::TOTAL_EFFORT_LIMIT {
            return;
        }
        add_effort(part, total);
    }
}

fn check_root(props: &Props, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !props.ty.is_empty() && props.ty != "object" {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(text::child(path, "type"), props.ty.as_str(), detail));
    }
    let odd = !props.id.is_empty()
        || !props.schema.is_empty()
        || props.reference.is_some()
        || props.default.is_some()
        || !props.enumeration.is_empty()
        || props.max_properties.is_some()
        || props.min_properties.is_some()
        || !props.all_of.is_empty()
        || !props.one_of.is_empty()
        || !props.any_of.is_empty()
        || props.not.is_some()
        || props.additional.is_some()
        || props.nullable
        || props.embedded_resource
        || props.int_or_string
        || !props.list_map_keys.is_empty()
        || props.list_type.is_some()
        || props.map_type.is_some();
    if odd {
        let detail = format!(
            "only {ALLOWED_AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        errors.push(FieldError::invalid(path, schema.clone(), detail));
    }
}

/// Drops the fields that a schema cannot have, as the typed decoder does, and returns their paths below `path`.
pub fn prune_unknown(schema: &mut Value, path: &str) -> Vec<String> {
    let mut dropped = Vec::new();
    prune_node(schema, path, 0, &mut dropped);
    dropped
}

fn prune_node(schema: &mut Value, path: &str, depth: usize, dropped: &mut Vec<String>) {
    let Value::Object(fields) = schema else { return };
    if depth > crate::props::MAX_DEPTH {
        return;
    }
    fields.retain(|name, value| {
        if !crate::props::FIELDS.contains(&name.as_str()) {
            dropped.push(text::child(path, name));
            return false;
        }
        !value.is_null()
    });
    for (name, value) in fields.iter_mut() {
        let below = text::child(path, name);
        match name.as_str() {
            "properties" | "patternProperties" | "definitions" | "dependencies" => {
                let Value::Object(named) = value else { continue };
                for (field, inner) in named.iter_mut() {
                    prune_node(inner, &text::child(&below, field), depth + 1, dropped);
                }
            }
            "items" | "not" | "additionalProperties" | "additionalItems" | "allOf" | "anyOf" | "oneOf" => {
                if let Value::Array(list) = value {
                    for (at, inner) in list.iter_mut().enumerate() {
                        prune_node(inner, &text::index(&below, at), depth + 1, dropped);
                    }
                } else {
                    prune_node(value, &below, depth + 1, dropped);
                }
            }
            "x-kubernetes-validations" => {
                let Value::Array(rules) = value else { continue };
                for (at, rule) in rules.iter_mut().enumerate() {
                    let Value::Object(rule) = rule else { continue };
                    rule.retain(|name, value| {
                        let known = crate::props::RULE_FIELDS.contains(&name.as_str());
                        if !known {
                            dropped.push(format!("{}.{name}", text::index(&below, at)));
                        }
                        known && !value.is_null()
                    });
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "structural/tests.rs"]
mod tests;
