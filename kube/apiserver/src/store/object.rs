//! The stored form of an object: its JSON, and the fields that selectors and controllers need without parsing it.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// The key of an object within its resource. Cluster-scoped objects have an empty namespace.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The namespace, or the empty string.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    /// The key of an object in a namespace, or of a cluster-scoped one with an empty namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.namespace.bytes().chain(std::iter::once(b'/')).chain(self.name.bytes())
    }
}

/// Keys order as the bytes of `namespace/name` do, because lists come in the order of etcd's keys: there namespace
/// `a-b` is before namespace `a`.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.namespace == other.namespace {
            return self.name.cmp(&other.name);
        }
        self.bytes().cmp(other.bytes())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The labels of an object, in the order of their names. Most objects have few: a sorted slice is the smallest map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    fn of(value: Option<&Value>) -> Self {
        let Some(labels) = value.and_then(Value::as_object) else { return Self::default() };
        let mut all: Vec<(Box<str>, Box<str>)> =
            labels.iter().map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into())).collect();
        all.sort();
        Self(all.into())
    }

    /// The value of a label.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.0.get(at).map(|(_, value)| value.as_ref())
    }
}

/// One version of one object. It is immutable: a write creates a new one.
#[derive(Clone, Debug)]
pub struct Object {
    /// The key of the object.
    pub key: Key,
    /// metadata.uid.
    pub uid: String,
    /// The store's revision of its write, which is its resourceVersion.
    pub revision: u64,
    /// The whole object as JSON, resourceVersion included.
    pub json: Bytes,
    /// metadata.labels.
    pub labels: Labels,
    /// The selectable fields besides metadata.name and metadata.namespace.
    pub fields: Vec<(Arc<str>, String)>,
    /// The schema epoch that the object was written under.
    pub stamp: u64,
    /// The apiVersion it is stored in.
    pub api_version: Arc<str>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// The uids of the owners.
    pub owners: Vec<String>,
    /// The position of the resourceVersion's digits in the JSON.
    splice: usize,
    /// The position in the JSON after kind and apiVersion.
    body: usize,
}

impl Object {
    /// The object as a JSON value.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// The JSON after the opening brace, kind and apiVersion: with a brace before it, an item of a list that does not
    /// repeat them.
    pub fn untyped(&self) -> &[u8] {
        self.json.get(self.body..).unwrap_or_default()
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)
    }

    /// The value of a selectable field; `metadata.name` and `metadata.namespace` are always available.
    pub fn field(&self, path: &str) -> Option<&str> {
        match path {
            "metadata.name" => Some(&self.key.name),
            "metadata.namespace" => Some(&self.key.namespace),
            _ => self.fields.iter().find(|(known, _)| known.as_ref() == path).map(|(_, value)| value.as_str()),
        }
    }

    /// The same object with another resourceVersion: for a watcher whose selector it left.
    pub fn at(self: &Arc<Self>, revision: u64) -> Arc<Self> {
        if revision == self.revision {
            return self.clone();
        }
        let draft = Draft::of(self);
        Arc::new(draft.seal(self.key.clone(), revision, self.api_version.clone()))
    }
}

/// An object before its commit: everything that needs no lock is done.
#[derive(Clone, Debug)]
pub struct Draft {
    head: Bytes,
    tail: Bytes,
    body: usize,
    uid: String,
    labels: Labels,
    fields: Vec<(Arc<str>, String)>,
    stamp: u64,
    api_version: Arc<str>,
    deleting: bool,
    owners: Vec<String>,
}

impl Draft {
    /// Serialises a whole object. `fields` are its selectable fields besides name and namespace; `stamp` is the schema
    /// epoch of its validation. The resourceVersion in `value`, if any, is ignored.
    pub fn new(value: &Value, fields: Vec<(Arc<str>, String)>, stamp: u64) -> Self {
        let metadata = value.get("metadata");
        let text = |path: &str| metadata.and_then(|m| m.get(path)).and_then(Value::as_str);
        let owners = metadata
            .and_then(|m| m.get("ownerReferences"))
            .and_then(Value::as_array)
            .map(|owners| owners.iter().filter_map(|o| o.get("uid")?.as_str()).map(Into::into).collect())
            .unwrap_or_default();
        let (head, tail, body) = halves(value);
        Self {
            head: head.into(),
            tail: tail.into(),
            body,
            uid: text("uid").unwrap_or_default().into(),
            labels: Labels::of(metadata.and_then(|m| m.get("labels"))),
            fields,
            stamp,
            api_version: value.get("apiVersion").and_then(Value::as_str).unwrap_or_default().into(),
            deleting: text("deletionTimestamp").is_some(),
            owners,
        }
    }

    /// The draft of an unchanged object, to be rewritten or deleted.
    pub fn of(object: &Object) -> Self {
        let at = object.splice.min(object.json.len());
        let digits = object.json.iter().skip(at).take_while(|b| b.is_ascii_digit()).count();
        Self {
            head: object.json.slice(..at),
            tail: object.json.slice(at + digits..),
            body: object.body,
            uid: object.uid.clone(),
            labels: object.labels.clone(),
            fields: object.fields.clone(),
            stamp: object.stamp,
            api_version: object.api_version.clone(),
            deleting: object.deleting,
            owners: object.owners.clone(),
        }
    }

    /// The object of this draft at a revision, with its key and apiVersion as the store shares them.
    pub(super) fn seal(self, key: Key, revision: u64, api_version: Arc<str>) -> Object {
        let digits = revision.to_string();
        let mut json = Vec::with_capacity(self.head.len() + digits.len() + self.tail.len());
        json.extend_from_slice(&self.head);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.tail);
        Object {
            key,
            uid: self.uid,
            revision,
            json: json.into(),
            labels: self.labels,
            fields: self.fields,
            stamp: self.stamp,
            api_version,
            deleting: self.deleting,
            owners: self.owners,
            splice: self.head.len(),
            body: self.body,
        }
    }

    pub(super) fn api_version(&self) -> &Arc<str> {
        &self.api_version
    }
}

/// The JSON before and after the digits of metadata.resourceVersion, and the position after kind and apiVersion.
/// As in the real server's answers, these two and the metadata come first.
fn halves(value: &Value) -> (Vec<u8>, Vec<u8>, usize) {
    let nothing = serde_json::Map::new();
    let object = value.as_object().unwrap_or(&nothing);
    let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
    let (mut head, mut tail) = (b"{".to_vec(), b"\"".to_vec());

    for name in ["kind", "apiVersion"] {
        if let Some(value) = object.get(name) {
            field(&mut head, name, value);
            head.push(b',');
        }
    }
    let body = head.len();
    head.extend_from_slice(b"\"metadata\":{");
    for name in ["name", "generateName", "namespace", "uid"] {
        if let Some(value) = metadata.get(name) {
            field(&mut head, name, value);
            head.push(b',');
        }
    }
    head.extend_from_slice(b"\"resourceVersion\":\"");
    let first = ["name", "generateName", "namespace", "uid", "resourceVersion"];
    for (name, value) in metadata.iter().filter(|(name, _)| !first.contains(&name.as_str())) {
        tail.push(b',');
        field(&mut tail, name, value);
    }
    tail.push(b'}');
    for (name, value) in object.iter().filter(|(name, _)| !["kind", "apiVersion", "metadata"].contains(&name.as_str()))
    {
        tail.push(b',');
        field(&mut tail, name, value);
    }
    tail.push(b'}');
    (head, tail, body)
}

fn field(out: &mut Vec<u8>, name: &str, value: &Value) {
    // Serializing into memory cannot fail: keys are strings and numbers finite.
    let _ = serde_json::to_writer(&mut *out, name);
    out.push(b':');
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_draft_gets_its_version_spliced_in_and_any_old_one_is_forgotten() {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}, "status": {},
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "7", "labels": {"l": "1"}, "managedFields": []}});
        let object =
            Draft::new(&value, vec![("spec.x".into(), "y".into())], 3).seal(Key::new("", "x"), 42, "v1".into());
        let mut expected = value;
        expected["metadata"]["resourceVersion"] = json!("42");
        assert_eq!(object.value(), expected);
        assert!(
            object.json.starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","uid":"u","res"#)
        );
        assert!(object.untyped().starts_with(br#""metadata":{"name""#));
        assert_eq!((object.uid.as_str(), object.label("l"), object.field("spec.x")), ("u", Some("1"), Some("y")));
    }

    #[test]
    fn an_object_can_be_shown_at_another_version() {
        let object = Draft::new(&json!({"metadata": {"name": "x"}}), vec![], 0).seal(Key::new("", "x"), 9, "v1".into());
        let shown = Arc::new(object).at(1000);
        assert_eq!(shown.value(), json!({"metadata": {"name": "x", "resourceVersion": "1000"}}));
    }

    #[test]
    fn an_object_without_metadata_is_not_a_panic() {
        let object = Draft::new(&Value::Null, vec![], 0).seal(Key::new("", "x"), 2, "".into());
        assert_eq!(object.value(), json!({"metadata": {"resourceVersion": "2"}}));
    }

    #[test]
    fn keys_order_as_etcd_orders_their_paths() {
        let mut keys = [Key::new("a", "z"), Key::new("a-b", "c"), Key::new("b", "a"), Key::new("a", "b")];
        keys.sort();
        assert_eq!(keys.map(|k| k.to_string()), ["a-b/c", "a/b", "a/z", "b/a"]);
    }
}
