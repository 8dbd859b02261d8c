//! Removes the fields that are not in a schema.

use serde_json::Value;

use crate::{Schema, text};

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops fields that the schema does not name and returns their paths in order (`spec.foo`, `spec.list[0].bar`).
///
/// With `resource_root`, the value is a whole object, whose apiVersion, kind and metadata always stay.
pub fn prune(schema: &Schema, value: &mut Value, resource_root: bool) -> Vec<String> {
    let mut dropped = Vec::new();
    node(Some(schema), value, resource_root || schema.embedded_resource, "", &mut dropped);
    dropped.sort();
    dropped
}

/// The schema of a field, where the outer option says whether the field may stay at all.
fn field_schema<'a>(schema: &'a Schema, name: &str) -> Option<Option<&'a Schema>> {
    match schema.properties.get(name) {
        Some(property) => Some(Some(property)),
        None if schema.additional.is_some() || schema.additional_allowed.is_some() => {
            Some(schema.additional.as_deref())
        }
        None => None,
    }
}

fn node(schema: Option<&Schema>, value: &mut Value, is_resource: bool, path: &str, dropped: &mut Vec<String>) {
    if let Some(schema) = schema.filter(|schema| schema.preserve_unknown) {
        keep(schema, value, is_resource, path, dropped);
        return;
    }
    match value {
        Value::Object(fields) => fields.retain(|name, field| {
            if is_resource && META.contains(&name.as_str()) {
                return true;
            }
            let below = text::child(path, name);
            match schema.and_then(|schema| field_schema(schema, name)) {
                Some(of) => {
                    node(of, field, of.is_some_and(|of| of.embedded_resource), &below, dropped);
                    true
                }
                None => {
                    if !(path.is_empty() && META.contains(&name.as_str())) {
                        dropped.push(below);
                    }
                    false
                }
            }
        }),
        Value::Array(items) => {
            let of = schema.and_then(|schema| schema.items.as_deref());
            for (at, item) in items.iter_mut().enumerate() {
                node(of, item, of.is_some_and(|of| of.embedded_resource), &text::index(path, at), dropped);
            }
        }
        _ => {}
    }
}

/// Unknown fields stay, but what is specified further inside is pruned again.
fn keep(schema: &Schema, value: &mut Value, is_resource: bool, path: &str, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if is_resource && META.contains(&name.as_str()) {
                    continue;
                }
                if let Some(of) = field_schema(schema, name) {
                    let embedded = of.is_some_and(|of| of.embedded_resource);
                    node(of, field, embedded, &text::child(path, name), dropped);
                }
            }
        }
        Value::Array(items) => {
            let Some(of) = schema.items.as_deref() else { return };
            for (at, item) in items.iter_mut().enumerate() {
                keep(of, item, of.embedded_resource, &text::index(path, at), dropped);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pruned(schema: Value, mut value: Value) -> (Value, Vec<String>) {
        let dropped = prune(&Schema::from_openapi(&schema).unwrap(), &mut value, true);
        (value, dropped)
    }

    #[test]
    fn unknown_fields_go_and_are_named_by_their_paths() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object"}}
        }}}});
        let (value, dropped) = pruned(
            schema,
            json!({"apiVersion": "v1", "kind": "K", "metadata": {"x": 1}, "extra": 1,
                "spec": {"foo": 1, "list": [{"a": "b", "bar": {"c": 1}}], "map": {"k": {"z": 1}}}}),
        );
        assert_eq!(dropped, ["extra", "spec.foo", "spec.list[0].bar", "spec.map.k.z"]);
        assert_eq!(
            value,
            json!({"apiVersion": "v1", "kind": "K", "metadata": {"x": 1}, "spec": {"list": [{"a": "b"}], "map": {"k": {}}}})
        );
    }

    #[test]
    fn preserved_fields_stay_and_specified_ones_inside_are_pruned_again() {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "strict": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        let (value, dropped) = pruned(schema, json!({"any": {"b": 1}, "strict": {"a": "x", "b": 1}}));
        assert_eq!(dropped, ["strict.b"]);
        assert_eq!(value, json!({"any": {"b": 1}, "strict": {"a": "x"}}));
    }

    #[test]
    fn an_embedded_resource_keeps_its_metadata() {
        let schema = json!({"type": "object", "properties": {"t": {"type": "object",
            "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}});
        let (value, _) = pruned(schema, json!({"t": {"kind": "A", "metadata": {"name": "n"}, "data": 1}}));
        assert_eq!(value, json!({"t": {"kind": "A", "metadata": {"name": "n"}}}));
    }

    #[test]
    fn pruning_twice_drops_nothing_more() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "object"}}});
        let (once, _) = pruned(schema.clone(), json!({"a": {"b": 1}, "c": 2}));
        assert_eq!(pruned(schema, once.clone()), (once, vec![]));
    }
}
