//! JSON patches (RFC 6902).

use kube::api::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

/// The operations of a JSON patch, in the order in which they are added. Paths are lists of segments, which are escaped here.
///
/// A patch should start with tests of what the decision relied on: [`Writer::json_patch`](crate::write::Writer::json_patch) has no other precondition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonPatch(Vec<Value>);

impl JsonPatch {
    /// A patch without operations, which is not sent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tests that the object has that uid.
    #[must_use]
    pub fn test_uid(self, uid: &str) -> Self {
        self.test(&["metadata", "uid"], uid)
    }

    /// Tests that the object has that resourceVersion.
    #[must_use]
    pub fn test_version(self, version: &str) -> Self {
        self.test(&["metadata", "resourceVersion"], version)
    }

    /// Tests that the field has that value. JSON Patch has no test for an absent field.
    #[must_use]
    pub fn test(self, path: &[&str], value: impl Serialize) -> Self {
        self.with("test", path, value)
    }

    /// Sets a field, or inserts an entry into a list; `-` is the index after the last entry.
    #[must_use]
    pub fn add(self, path: &[&str], value: impl Serialize) -> Self {
        self.with("add", path, value)
    }

    /// Replaces a field or an entry that exists.
    #[must_use]
    pub fn replace(self, path: &[&str], value: impl Serialize) -> Self {
        self.with("replace", path, value)
    }

    /// Removes a field or an entry that exists.
    #[must_use]
    pub fn remove(mut self, path: &[&str]) -> Self {
        self.0.push(json!({ "op": "remove", "path": pointer(path) }));
        self
    }

    /// Adds a finalizer to the object with that metadata, which lacks it. Tests the resourceVersion.
    pub fn add_finalizer(meta: &ObjectMeta, finalizer: &str) -> Self {
        let patch = Self::new().test_version(meta.resource_version.as_deref().unwrap_or_default());
        match meta.finalizers {
            Some(_) => patch.add(&["metadata", "finalizers", "-"], finalizer),
            None => patch.add(&["metadata", "finalizers"], [finalizer]),
        }
    }

    /// Removes a finalizer from the object with that metadata; `None` if it lacks it. Tests that the finalizer still has the same index.
    #[must_use]
    pub fn remove_finalizer(self, meta: &ObjectMeta, finalizer: &str) -> Option<Self> {
        let index = meta.finalizers.iter().flatten().position(|name| name == finalizer)?.to_string();
        let path = ["metadata", "finalizers", index.as_str()];
        Some(self.test(&path, finalizer).remove(&path))
    }

    fn with(mut self, op: &str, path: &[&str], value: impl Serialize) -> Self {
        self.0.push(json!({ "op": op, "path": pointer(path), "value": value }));
        self
    }
}

impl From<JsonPatch> for Value {
    fn from(patch: JsonPatch) -> Self {
        Self::Array(patch.0)
    }
}

/// The JSON pointer (RFC 6901) with these segments.
fn pointer(path: &[&str]) -> String {
    path.iter().map(|segment| format!("/{}", segment.replace('~', "~0").replace('/', "~1"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_their_order_and_paths_are_escaped() {
        let patch = JsonPatch::new()
            .test_uid("u")
            .test_version("7")
            .test(&["spec", "taints"], json!([{ "key": "a" }]))
            .add(&["metadata", "labels", "example.com/a~b"], "x")
            .replace(&["spec", "taints", "0"], json!({ "key": "b" }))
            .remove(&["metadata", "annotations", "~1"]);
        let expected = json!([
            { "op": "test", "path": "/metadata/uid", "value": "u" },
            { "op": "test", "path": "/metadata/resourceVersion", "value": "7" },
            { "op": "test", "path": "/spec/taints", "value": [{ "key": "a" }] },
            { "op": "add", "path": "/metadata/labels/example.com~1a~0b", "value": "x" },
            { "op": "replace", "path": "/spec/taints/0", "value": { "key": "b" } },
            { "op": "remove", "path": "/metadata/annotations/~01" },
        ]);
        assert_eq!(Value::from(patch), expected);
        assert_eq!(Value::from(JsonPatch::new()), json!([]));
    }

    #[test]
    fn a_finalizer_is_added_and_removed_with_tests() {
        let meta = |finalizers: Option<&[&str]>| ObjectMeta {
            resource_version: Some("7".to_owned()),
            finalizers: finalizers.map(|all| all.iter().map(|&one| one.to_owned()).collect()),
            ..ObjectMeta::default()
        };
        let version = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" });
        let first = json!([version, { "op": "add", "path": "/metadata/finalizers", "value": ["mine"] }]);
        assert_eq!(Value::from(JsonPatch::add_finalizer(&meta(None), "mine")), first);
        let last = json!([version, { "op": "add", "path": "/metadata/finalizers/-", "value": "mine" }]);
        assert_eq!(Value::from(JsonPatch::add_finalizer(&meta(Some(&["other"])), "mine")), last);

        let remove = |patch: JsonPatch, meta: ObjectMeta| patch.remove_finalizer(&meta, "mine").map(Value::from);
        let (test, removal) = (
            json!({ "op": "test", "path": "/metadata/finalizers/1", "value": "mine" }),
            json!({ "op": "remove", "path": "/metadata/finalizers/1" }),
        );
        let held = || meta(Some(&["other", "mine"]));
        assert_eq!(remove(JsonPatch::new(), held()), Some(json!([test, removal])));
        assert_eq!(remove(JsonPatch::new().test_version("7"), held()), Some(json!([version, test, removal])));
        assert_eq!(remove(JsonPatch::new(), meta(Some(&["other"]))), None);
        assert_eq!(remove(JsonPatch::new(), meta(None)), None);
    }
}
