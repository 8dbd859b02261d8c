//! Lists that are sets or maps hold nothing twice.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{FieldError, ListType, Schema, text};

/// Every item that repeats another one of its set or map list.
pub fn check(schema: &Schema, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    visit(schema, value, path, &mut errors);
    errors
}

fn visit(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Array(items) => {
            match &schema.list_type {
                ListType::Atomic => {}
                ListType::Set => {
                    let keys: Vec<&Value> = items.iter().collect();
                    for at in repeated(&keys) {
                        errors.push(FieldError::duplicate(text::index(path, at), items[at].clone()));
                    }
                }
                ListType::Map(keys) => check_map(keys, items, path, errors),
            }
            if let Some(item_schema) = &schema.items {
                for (at, item) in items.iter().enumerate() {
                    visit(item_schema, item, &text::index(path, at), errors);
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(additional) = &schema.additional {
                    visit(additional, value, &text::key(path, name), errors);
                }
                if let Some(property) = schema.properties.get(name) {
                    visit(property, value, &text::child(path, name), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_map(keys: &[String], items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    if let Some(at) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(text::index(path, at), items[at].clone(), detail));
        return;
    }
    let key_of = |item: &Value| {
        let found = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(found.collect::<Map<_, _>>())
    };
    let found: Vec<Value> = items.iter().map(key_of).collect();
    for at in repeated(&found.iter().collect::<Vec<_>>()) {
        errors.push(FieldError::duplicate(text::index(path, at), found[at].clone()));
    }
}

/// Where each repeated value occurs for the second time.
fn repeated(values: &[&Value]) -> Vec<usize> {
    let mut times: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let seen = times.entry(value.to_string()).or_default();
        *seen += 1;
        if *seen == 2 {
            found.push(at);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_repeated_item_is_named_once_by_its_second_place() {
        let schema = Schema::from_openapi(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "string"}}}}
        }}))
        .unwrap();
        let value = json!({"set": ["a", "b", "a", "a"], "map": [{"n": "x"}, {"n": "x", "v": "1"}]});
        let errors: Vec<String> = check(&schema, &value, "").iter().map(ToString::to_string).collect();
        assert_eq!(errors, [r#"map[1]: Duplicate value: {"n":"x"}"#, r#"set[2]: Duplicate value: "a""#]);
    }
}
