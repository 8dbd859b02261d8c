//! JSON patch (RFC 6902), with the leniencies and the messages of the real server.

use serde_json::Value;

use crate::error::PatchError;

const MAX_OPERATIONS: usize = 10_000;

/// The limit of the bytes of JSON that all copies of one patch may add.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// The nesting limit of a value in a patch: the limit of the parser.
const MAX_DEPTH: usize = 127;

/// Applies the operations one after the other; all or none.
///
/// # Errors
/// When the patch is not a list of operations, has too many, or one of them does not fit the document.
pub fn json_patch(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let not_a_patch = |value: &Value, go_type: &str| {
        PatchError::BadRequest(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type {go_type}",
            fleetwright_schema::decode::go_kind(value)
        ))
    };
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => return Err(not_a_patch(other, "[]handlers.jsonPatchOp")),
    };
    if let Some(bad) = operations.iter().find(|op| !op.is_object() && !op.is_null()) {
        return Err(not_a_patch(bad, "handlers.jsonPatchOp"));
    }
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut patched = Patched { doc: doc.clone(), copied: 0 };
    for operation in operations {
        patched.run(operation).map_err(PatchError::Unprocessable)?;
    }
    Ok(patched.doc)
}

struct Patched {
    doc: Value,
    copied: usize,
}

impl Patched {
    fn run(&mut self, op: &Value) -> Result<(), String> {
        match op.get("op").and_then(Value::as_str) {
            Some("add") => self.add(op),
            Some("remove") => self.remove(op),
            Some("replace") => self.replace(op),
            Some("move") => self.relocate(op),
            Some("copy") => self.copy(op),
            Some("test") => self.test(op),
            other => Err(format!("Unexpected kind: {}", other.unwrap_or("unknown"))),
        }
    }

    fn add(&mut self, op: &Value) -> Result<(), String> {
        let path = path_of(op).map_err(|_| "add operation failed to decode path: missing value".to_owned())?;
        let (parent, key) = find(&mut self.doc, path)
            .ok_or_else(|| format!("add operation does not apply: doc is missing path: \"{path}\": missing value"))?;
        insert(parent, &key, value_of(op), path).map_err(|e| format!("error in add for path: '{path}': {e}"))
    }

    fn remove(&mut self, op: &Value) -> Result<(), String> {
        let path = path_of(op).map_err(|_| "remove operation failed to decode path: missing value".to_owned())?;
        let (parent, key) = find(&mut self.doc, path).ok_or_else(|| {
            format!("remove operation does not apply: doc is missing path: \"{path}\": missing value")
        })?;
        take(parent, &key).map(drop).map_err(|e| format!("error in remove for path: '{path}': {e}"))
    }

    fn replace(&mut self, op: &Value) -> Result<(), String> {
        let path = path_of(op).map_err(|e| format!("replace operation failed to decode path: {e}"))?;
        if path.is_empty() {
            let value = value_of(op);
            if !value.is_object() && !value.is_array() {
                return Err("replace operation value must be object or array: %!w(<nil>)".to_owned());
            }
            self.doc = value;
            return Ok(());
        }
        let (parent, key) = find(&mut self.doc, path)
            .ok_or_else(|| format!("replace operation does not apply: doc is missing path: {path}: missing value"))?;
        let missing = || format!("replace operation does not apply: doc is missing key: {path}: missing value");
        check_depth(path, &value_of(op))?;
        match parent {
            Value::Object(fields) => {
                fields.insert(key, value_of(op));
            }
            Value::Array(items) => {
                let index = index_of(&key, items.len()).map_err(|_| missing())?;
                *items.get_mut(index).ok_or_else(missing)? = value_of(op);
            }
            _ => return Err(missing()),
        }
        Ok(())
    }

    fn relocate(&mut self, op: &Value) -> Result<(), String> {
        let from = from_of(op).map_err(|e| format!("move operation failed to decode from: {e}"))?;
        let (parent, key) = find(&mut self.doc, from)
            .ok_or_else(|| format!("move operation does not apply: doc is missing from path: {from}: missing value"))?;
        let value = take(parent, &key).map_err(|e| format!("error in move for path: '{key}': {e}"))?;
        let path = path_of(op).map_err(|e| format!("move operation failed to decode path: {e}"))?;
        let (parent, key) = find(&mut self.doc, path).ok_or_else(|| {
            format!("move operation does not apply: doc is missing destination path: {path}: missing value")
        })?;
        insert(parent, &key, value, path).map_err(|e| format!("error in move for path: '{path}': {e}"))
    }

    fn copy(&mut self, op: &Value) -> Result<(), String> {
        let from = from_of(op).map_err(|e| format!("copy operation failed to decode from: {e}"))?;
        let (parent, key) = find(&mut self.doc, from)
            .ok_or_else(|| format!("copy operation does not apply: doc is missing from path: {from}: missing value"))?;
        let value = get(parent, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?;
        let value = value.cloned().unwrap_or(Value::Null);
        let path = path_of(op).map_err(|_| "copy operation failed to decode path: missing value".to_owned())?;
        let (parent, key) = find(&mut self.doc, path).ok_or_else(|| {
            format!("copy operation does not apply: doc is missing destination path: {path}: missing value")
        })?;
        self.copied += value.to_string().len();
        if self.copied > MAX_COPIED {
            return Err(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED}",
                self.copied
            ));
        }
        insert(parent, &key, value, path).map_err(|e| format!("error while adding value during copy: {e}"))
    }

    fn test(&mut self, op: &Value) -> Result<(), String> {
        let path = path_of(op).map_err(|e| format!("test operation failed to decode path: {e}"))?;
        let expected = op.get("value").unwrap_or(&Value::Null);
        let failed = || format!("testing value {path} failed: test failed");
        if path.is_empty() {
            return if self.doc == *expected { Ok(()) } else { Err(failed()) };
        }
        let (parent, key) = find(&mut self.doc, path)
            .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: missing value"))?;
        let value = get(parent, &key).map_err(|e| format!("error in test for path: '{path}': {e}"))?;
        if value.unwrap_or(&Value::Null) == expected { Ok(()) } else { Err(failed()) }
    }
}

fn path_of(op: &Value) -> Result<&str, String> {
    op.get("path").and_then(Value::as_str).ok_or_else(|| "operation missing path field: missing value".to_owned())
}

fn from_of(op: &Value) -> Result<&str, String> {
    op.get("from").and_then(Value::as_str).ok_or_else(|| "operation, missing from field: missing value".to_owned())
}

fn value_of(op: &Value) -> Value {
    op.get("value").cloned().unwrap_or(Value::Null)
}

/// The container that the path's last step is taken in, and that step.
fn find<'d>(doc: &'d mut Value, path: &str) -> Option<(&'d mut Value, String)> {
    let (parents, last) = path.rsplit_once('/')?;
    let mut value = doc;
    for step in parents.split('/').skip(1) {
        let step = unescape(step);
        value = match value {
            Value::Object(fields) => fields.get_mut(&step)?,
            Value::Array(items) => {
                let index = index_of(&step, items.len()).ok()?;
                items.get_mut(index)?
            }
            _ => return None,
        };
    }
    (value.is_object() || value.is_array()).then(|| (value, unescape(last)))
}

fn unescape(step: &str) -> String {
    let mut out = String::with_capacity(step.len());
    let mut rest = step;
    while let Some((before, after)) = rest.split_once('~') {
        out += before;
        rest = match after.as_bytes().first() {
            Some(b'0') => {
                out.push('~');
                &after[1..]
            }
            Some(b'1') => {
                out.push('/');
                &after[1..]
            }
            _ => {
                out.push('~');
                after
            }
        };
    }
    out + rest
}

/// The position that a step names in a list of this length; negative ones count from the end.
fn index_of(step: &str, length: usize) -> Result<usize, String> {
    let index: i64 = step.parse().map_err(|_| format!("strconv.Atoi: parsing {step:?}: invalid syntax"))?;
    let invalid = || format!("Unable to access invalid index: {index}: invalid index referenced");
    let length = i64::try_from(length).map_err(|_| invalid())?;
    let position = if index < 0 { index + length } else { index };
    if position >= length {
        return Err(invalid());
    }
    usize::try_from(position).map_err(|_| invalid())
}

fn get<'d>(parent: &'d Value, key: &str) -> Result<Option<&'d Value>, String> {
    match parent {
        Value::Array(items) => Ok(items.get(index_of(key, items.len())?)),
        other => Ok(other.get(key)),
    }
}

fn take(parent: &mut Value, key: &str) -> Result<Value, String> {
    match parent {
        Value::Array(items) => {
            let index = index_of(key, items.len())?;
            Ok(items.remove(index))
        }
        Value::Object(fields) => {
            fields.remove(key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"))
        }
        _ => Err("missing value".to_owned()),
    }
}

fn insert(parent: &mut Value, key: &str, value: Value, path: &str) -> Result<(), String> {
    check_depth(path, &value)?;
    match parent {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            if key.parse::<i64>().is_err() {
                return Err(format!(
                    "value was not a proper array index: '{key}': strconv.Atoi: parsing {key:?}: invalid syntax"
                ));
            }
            let index = index_of(key, items.len() + 1)?;
            items.insert(index, value);
        }
        Value::Object(fields) => {
            fields.insert(key.to_owned(), value);
        }
        _ => return Err("missing value".to_owned()),
    }
    Ok(())
}

/// Operations could stack values upon values, deeper than anything can be read or even freed.
fn check_depth(path: &str, value: &Value) -> Result<(), String> {
    let steps = path.matches('/').count();
    if steps + depth(value) > MAX_DEPTH { Err("exceeded max depth".to_owned()) } else { Ok(()) }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_operation_does_what_the_rfc_says() {
        let cases = [
            (json!({"a": 1}), json!([{"op": "add", "path": "/b", "value": 2}]), json!({"a": 1, "b": 2})),
            (json!({"a": [1, 3]}), json!([{"op": "add", "path": "/a/1", "value": 2}]), json!({"a": [1, 2, 3]})),
            (json!({"a": [1]}), json!([{"op": "add", "path": "/a/-", "value": 2}]), json!({"a": [1, 2]})),
            (json!({"a": [1, 2]}), json!([{"op": "remove", "path": "/a/0"}]), json!({"a": [2]})),
            (json!({"a": [1, 2]}), json!([{"op": "remove", "path": "/a/-1"}]), json!({"a": [1]})),
            (json!({"a": 1}), json!([{"op": "replace", "path": "/a", "value": null}]), json!({"a": null})),
            (json!({"a": 1}), json!([{"op": "move", "from": "/a", "path": "/b"}]), json!({"b": 1})),
            (json!({"a": 1}), json!([{"op": "copy", "from": "/a", "path": "/b"}]), json!({"a": 1, "b": 1})),
            (
                json!({"a/b": 1, "c~d": 2}),
                json!([{"op": "remove", "path": "/a~1b"}, {"op": "test", "path": "/c~0d", "value": 2}]),
                json!({"c~d": 2}),
            ),
        ];
        for (doc, patch, expected) in cases {
            assert_eq!(json_patch(&doc, &patch).expect("patched"), expected, "{patch}");
        }
    }

    #[test]
    fn an_operation_that_does_not_fit_says_what_the_real_server_says() {
        let doc = json!({"a": [1], "m": {}});
        let cases = [
            (
                json!([{"op": "remove", "path": "/x"}]),
                "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value",
            ),
            (
                json!([{"op": "add", "path": "/x/y", "value": 1}]),
                "add operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!([{"op": "replace", "path": "/x/y", "value": 1}]),
                "replace operation does not apply: doc is missing path: /x/y: missing value",
            ),
            (
                json!([{"op": "replace", "path": "/a/4", "value": 1}]),
                "replace operation does not apply: doc is missing key: /a/4: missing value",
            ),
            (json!([{"op": "test", "path": "/a/0", "value": 2}]), "testing value /a/0 failed: test failed"),
            (
                json!([{"op": "remove", "path": "/a/3"}]),
                "error in remove for path: '/a/3': Unable to access invalid index: 3: invalid index referenced",
            ),
            (json!([{"op": "dance", "path": "/a"}]), "Unexpected kind: dance"),
        ];
        for (patch, expected) in cases {
            assert_eq!(json_patch(&doc, &patch), Err(PatchError::Unprocessable(expected.to_owned())));
        }
    }

    #[test]
    fn too_many_operations_are_refused() {
        let op = json!({"op": "test", "path": "/a", "value": 1});
        let patch = Value::Array(vec![op; 10_001]);
        let error = json_patch(&json!({"a": 1}), &patch).expect_err("refused");
        assert_eq!(
            error,
            PatchError::TooLarge("The allowed maximum operations in a JSON patch is 10000, got 10001".to_owned())
        );
    }

    #[test]
    fn a_patch_cannot_nest_a_document_without_end() {
        let op = json!({"op": "copy", "from": "/a", "path": "/a/a"});
        let patch = Value::Array(vec![op; 200]);
        assert!(matches!(json_patch(&json!({"a": {}}), &patch), Err(PatchError::Unprocessable(_))));
    }
}
