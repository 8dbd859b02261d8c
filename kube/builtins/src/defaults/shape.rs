//! The shape that Go's encoder gives to an object: which fields show when they are empty, and which do not.
//!
//! The real server decodes every object into a Go struct and encodes it again. That drops `hostNetwork: false`, shows
//! `resources: {}` and turns `rules: []` into `rules: null`; clients compare what they sent with what they get back.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

static TABLE: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let lines = include_str!("shape.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (name, fields) = line.split_once(' ')?;
            Some((name, fields.split(' ').map(Field::parse).collect()))
        })
        .collect()
});

enum Zero {
    Shown(Value),
    Dropped,
    Kept,
}

struct Field {
    name: &'static str,
    zero: Zero,
    inner: Option<(&'static str, Many)>,
}

#[derive(Clone, Copy)]
enum Many {
    One,
    List,
    Map,
}

impl Field {
    fn parse(text: &'static str) -> Self {
        let (head, inner) = match text.split_once(':') {
            Some((head, inner)) => (head, Some(inner)),
            None => (text, None),
        };
        let inner = inner.map(|inner| match (inner.strip_prefix("[]"), inner.strip_prefix("{}")) {
            (Some(item), _) => (item, Many::List),
            (_, Some(item)) => (item, Many::Map),
            _ => (inner, Many::One),
        });
        let (name, zero) = match (head.split_once('='), head.strip_suffix('~')) {
            (Some((name, zero)), _) => (name, Zero::Shown(serde_json::from_str(zero).unwrap_or(Value::Null))),
            (_, Some(name)) => (name, Zero::Dropped),
            _ => (head, Zero::Kept),
        };
        Self { name, zero, inner }
    }
}

/// The name in the table of a group's kind.
fn type_of(group: &str, kind: &str) -> String {
    let short = match group {
        "" => "core",
        "coordination.k8s.io" => "coordination",
        "rbac.authorization.k8s.io" => "rbac",
        _ => group.split('.').next().unwrap_or_default(),
    };
    format!("{short}.{kind}")
}

/// Gives an object the shape that the Go server would give it.
pub(crate) fn apply(group: &str, kind: &str, object: &mut Value) {
    walk(&type_of(group, kind), object);
}

fn walk(name: &str, value: &mut Value) {
    let Some(table) = TABLE.get(name) else { return };
    let Some(fields) = value.as_object_mut() else { return };
    for field in table {
        settle(field, fields);
        let (Some((inner, many)), Some(child)) = (field.inner, fields.get_mut(field.name)) else { continue };
        match many {
            Many::One => walk(inner, child),
            Many::List => child.as_array_mut().into_iter().flatten().for_each(|item| walk(inner, item)),
            Many::Map => {
                child.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(|item| walk(inner, item));
            }
        }
    }
}

fn settle(field: &Field, fields: &mut Map<String, Value>) {
    let now = fields.get(field.name);
    match &field.zero {
        Zero::Shown(zero) => {
            let empty_list = zero.is_null() && now.is_some_and(is_empty_collection);
            if now.is_none_or(Value::is_null) || empty_list {
                fields.insert(field.name.to_owned(), zero.clone());
            }
        }
        Zero::Dropped if now.is_some_and(is_zero) => drop(fields.remove(field.name)),
        Zero::Kept if now.is_some_and(Value::is_null) => drop(fields.remove(field.name)),
        _ => {}
    }
}

fn is_empty_collection(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_false_flag_disappears_and_an_empty_struct_appears() {
        let mut pod = json!({"metadata": {}, "spec": {"hostNetwork": false, "containers": [{"name": "a"}]}});
        apply("", "Pod", &mut pod);
        assert_eq!(
            pod,
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {}}]}, "status": {}})
        );
    }

    #[test]
    fn an_empty_list_that_go_always_shows_is_null() {
        let mut role = json!({"metadata": {"name": "a"}, "rules": []});
        apply("rbac.authorization.k8s.io", "Role", &mut role);
        assert_eq!(role, json!({"metadata": {"name": "a"}, "rules": null}));
    }

    #[test]
    fn every_type_that_a_field_points_at_is_in_the_table() {
        for (name, fields) in TABLE.iter() {
            for field in fields {
                if let Some((inner, _)) = field.inner {
                    assert!(TABLE.contains_key(inner), "{name}.{} points at {inner}", field.name);
                }
            }
        }
    }
}
