//! A schema with every way of sharing, and short forms for the tests.

// Every test file uses its own part of this one.
#![allow(dead_code)]

use std::sync::Arc;

use fleetwright_merge::{MergeError, Request, apply, update};
use fleetwright_schema::{ListType, PatchStrategy, Schema, Type};
use jiff::Timestamp;
use serde_json::{Value, json};

fn of(ty: Type) -> Schema {
    Schema { ty: Some(ty), ..Schema::default() }
}

fn object(fields: Vec<(&str, Schema)>) -> Schema {
    Schema {
        properties: fields.into_iter().map(|(name, schema)| (name.to_owned(), Arc::new(schema))).collect(),
        ..of(Type::Object)
    }
}

fn list(items: Schema, list_type: ListType) -> Schema {
    Schema { items: Some(Arc::new(items)), list_type, ..of(Type::Array) }
}

fn keyed(items: Schema, keys: &[&str]) -> Schema {
    list(items, ListType::Map(keys.iter().map(|key| (*key).to_owned()).collect()))
}

fn patched(schema: Schema, merge_key: Option<&str>) -> Schema {
    let patch = PatchStrategy { merge: true, retain_keys: false, merge_key: merge_key.map(str::to_owned) };
    Schema { patch, ..schema }
}

/// A kind with fields of every shape.
pub fn schema() -> Schema {
    let text = || of(Type::String);
    let container = object(vec![
        ("name", text()),
        ("image", text()),
        ("args", list(text(), ListType::Atomic)),
        ("env", patched(keyed(object(vec![("name", text()), ("value", text())]), &["name"]), Some("name"))),
    ]);
    let protocol = Schema { default: Some(json!("TCP")), ..text() };
    let port = object(vec![("port", of(Type::Integer)), ("protocol", protocol), ("name", text())]);
    let selector = Schema { atomic_map: true, additional: Some(Arc::new(text())), ..of(Type::Object) };
    let anything = Schema { preserve_unknown: true, ..of(Type::Object) };
    object(vec![
        (
            "spec",
            object(vec![
                ("replicas", of(Type::Integer)),
                ("paused", of(Type::Boolean)),
                ("selector", selector),
                ("containers", patched(keyed(container, &["name"]), Some("name"))),
                ("ports", patched(keyed(port, &["port", "protocol"]), Some("port"))),
                ("tags", patched(list(text(), ListType::Set), None)),
                ("args", list(text(), ListType::Atomic)),
                ("config", anything),
                ("strategy", object(vec![("type", text()), ("max", of(Type::Integer))])),
            ]),
        ),
        ("status", object(vec![("phase", text())])),
    ])
}

/// A time, in seconds since the epoch.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a second")
}

/// A server with one object.
pub struct ApplyFixture {
    pub schema: Schema,
    pub live: Option<Value>,
    pub clock: i64,
}

impl ApplyFixture {
    pub fn new() -> Self {
        Self { schema: schema(), live: None, clock: 0 }
    }

    pub fn request<'a>(&'a self, manager: &'a str) -> Request<'a> {
        Request::new(&self.schema, "ex.io/v1", "Thing", manager, at(self.clock))
    }

    /// Writes the object as an update would.
    pub fn update(&mut self, manager: &str, object: Value) {
        self.clock += 1;
        let mut new = with_identity(object, self.live.is_some());
        update(&self.request(manager), self.live.as_ref(), &mut new).expect("updated");
        self.live = Some(with_identity(new, true));
    }

    /// Changes the live object as a patch would.
    pub fn change(&mut self, manager: &str, change: impl FnOnce(&mut Value)) {
        self.clock += 1;
        let mut new = self.live.clone().expect("a live object");
        change(&mut new);
        update(&self.request(manager), self.live.as_ref(), &mut new).expect("updated");
        self.live = Some(new);
    }

    pub fn try_apply(&mut self, manager: &str, spec: Value, force: bool) -> Result<(), MergeError> {
        self.clock += 1;
        let applied = json!({
            "apiVersion": "ex.io/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "n"}, "spec": spec,
        });
        let object = apply(&self.request(manager), self.live.as_ref(), &applied, force)?;
        self.live = Some(with_identity(object, true));
        Ok(())
    }

    pub fn apply(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, spec, false).expect("applied");
    }

    pub fn spec(&self) -> Value {
        self.live.as_ref().expect("a live object")["spec"].clone()
    }

    /// The entries as `manager operation`.
    pub fn managers(&self) -> Vec<String> {
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        self.entries().iter().map(|e| format!("{} {}", text(e, "manager"), text(e, "operation"))).collect()
    }

    pub fn entries(&self) -> Vec<Value> {
        self.live.as_ref().expect("a live object")["metadata"]["managedFields"].as_array().cloned().unwrap_or_default()
    }

    /// The fields below spec that a manager owns.
    pub fn owned(&self, manager: &str) -> Value {
        self.entries()
            .iter()
            .find(|entry| entry["manager"] == manager)
            .map_or(Value::Null, |entry| entry["fieldsV1"]["f:spec"].clone())
    }

    pub fn time(&self, manager: &str) -> Value {
        self.entries()
            .iter()
            .find(|entry| entry["manager"] == manager)
            .map_or(Value::Null, |entry| entry["time"].clone())
    }
}

fn with_identity(mut object: Value, uid: bool) -> Value {
    object["apiVersion"] = json!("ex.io/v1");
    object["kind"] = json!("Thing");
    object["metadata"]["name"] = json!("a");
    object["metadata"]["namespace"] = json!("n");
    if uid {
        object["metadata"]["uid"] = json!("1");
    }
    object
}
