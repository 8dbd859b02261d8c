//! Filling in defaults, and dropping nulls that mean nothing.

use serde_json::Value;

use crate::Schema;

/// Gives absent fields their defaults, at every level that the value has. A null in a field that is not nullable counts
/// as absent.
pub fn default(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let absent = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => !property.nullable,
                    Some(_) => false,
                };
                if absent {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, field) in fields.iter_mut() {
                if let Some(property) = schema.properties.get(name) {
                    self::default(property, field);
                } else if let Some(additional) = &schema.additional {
                    replace_null(additional, field);
                    self::default(additional, field);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = &schema.items {
                for item in items {
                    replace_null(item_schema, item);
                    self::default(item_schema, item);
                }
            }
        }
        _ => {}
    }
}

fn replace_null(schema: &Schema, value: &mut Value) {
    if let (true, false, Some(default)) = (value.is_null(), schema.nullable, &schema.default) {
        *value = default.clone();
    }
}

/// Drops nulls from fields that are neither nullable nor have a default. Run it before [`default`], which replaces the
/// nulls that stay.
pub fn prune_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| {
                let Some(of) = schema.properties.get(name).or(schema.additional.as_ref()) else { return true };
                if field.is_null() && !of.nullable && of.default.is_none() {
                    return false;
                }
                prune_nulls(of, field);
                true
            });
        }
        Value::Array(items) => {
            if let Some(item_schema) = &schema.items {
                items.iter_mut().for_each(|item| prune_nulls(item_schema, item));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn defaulted(schema: Value, mut value: Value) -> Value {
        let schema = Schema::from_openapi(&schema).unwrap();
        prune_nulls(&schema, &mut value);
        default(&schema, &mut value);
        value
    }

    fn example() -> Value {
        json!({"type": "object", "properties": {
            "n": {"type": "integer", "default": 3},
            "maybe": {"type": "integer", "default": 3, "nullable": true},
            "plain": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "integer", "default": 1}}}},
            "deep": {"type": "object", "default": {}, "properties": {"y": {"type": "integer", "default": 7}}}
        }})
    }

    #[test]
    fn absent_fields_get_their_defaults_at_every_level() {
        let value = defaulted(example(), json!({"list": [{}, {"p": "UDP"}], "map": {"a": {}}}));
        assert_eq!(
            value,
            json!({"n": 3, "maybe": 3, "deep": {"y": 7}, "list": [{"p": "TCP"}, {"p": "UDP"}], "map": {"a": {"x": 1}}})
        );
    }

    #[test]
    fn a_null_is_kept_only_where_it_is_a_value() {
        let value = defaulted(example(), json!({"n": null, "maybe": null, "plain": null, "deep": {"y": 1}}));
        assert_eq!(value, json!({"n": 3, "maybe": null, "deep": {"y": 1}}));
    }

    #[test]
    fn defaulting_twice_changes_nothing() {
        let once = defaulted(example(), json!({"list": [{}], "n": null}));
        assert_eq!(defaulted(example(), once.clone()), once);
    }
}
