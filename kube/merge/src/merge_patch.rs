//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use crate::error::PatchError;

/// Applies a merge patch: objects are merged, `null` removes, everything else replaces.
///
/// # Errors
/// When the patch is not an object.
pub fn merge_patch(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    match patch {
        Value::Object(patch) => {
            let mut doc = doc.as_object().cloned().unwrap_or_default();
            merge_fields(&mut doc, patch);
            Ok(Value::Object(doc))
        }
        Value::Null => Err(PatchError::BadRequest("Invalid JSON Patch".to_owned())),
        other => Err(PatchError::BadRequest(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            fleetwright_schema::decode::go_kind(other)
        ))),
    }
}

fn merge_fields(doc: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, over) in patch {
        match (doc.get_mut(name), over) {
            (_, Value::Null) => {
                doc.remove(name);
            }
            (Some(Value::Object(doc)), Value::Object(over)) => merge_fields(doc, over),
            (Some(Value::Object(slot)), over) => {
                let _ = std::mem::take(slot);
                doc.insert(name.clone(), over.clone());
            }
            _ => {
                doc.insert(name.clone(), without_nulls(over));
            }
        }
    }
}

/// The value without the fields that are null. Nulls in lists are values and stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_merge_nulls_remove_and_lists_replace() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": {"b": 1}}), json!({"a": [1, null]}), json!({"a": [1, null]})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": 2}}), json!({"a": {"c": 2}})),
        ];
        for (doc, patch, expected) in cases {
            assert_eq!(merge_patch(&doc, &patch).expect("merged"), expected, "{doc} + {patch}");
        }
    }

    #[test]
    fn a_patch_that_is_not_an_object_is_refused() {
        let error = merge_patch(&json!({}), &json!([])).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
    }
}
