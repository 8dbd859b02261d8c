//! The definitions of custom resources: what their authors wrote, and what every object has besides.

use serde_json::{Map, Value, json};

use super::ResourceDoc;
use crate::schemas::{REF_PREFIX, definitions};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The definition of a custom object.
pub(super) fn object(resource: &ResourceDoc<'_>, schema: &Value) -> Value {
    let mut root = node(schema);
    if !root.is_object() {
        root = json!({"type": "object"});
    }
    if root.get("properties").is_none_or(|properties| !properties.is_object()) {
        root["properties"] = json!({});
    }
    for (name, value) in type_meta() {
        root["properties"][name] = value;
    }
    root["properties"]["metadata"] = metadata();
    root["x-kubernetes-group-version-kind"] = gvk(resource, resource.kind);
    root
}

/// The definition of a list of custom objects.
pub(super) fn list(resource: &ResourceDoc<'_>) -> Value {
    let mut properties: Map<String, Value> = type_meta().collect();
    properties.insert(
        "items".into(),
        json!({
            "description": format!("List of {}. More info: {CONVENTIONS}", resource.plural),
            "type": "array",
            "items": {"$ref": format!("{REF_PREFIX}{}", resource.type_name())},
        }),
    );
    properties.insert(
        "metadata".into(),
        json!({
            "description": format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds"),
            "allOf": [{"$ref": format!("{REF_PREFIX}{META}ListMeta")}],
        }),
    );
    json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": gvk(resource, resource.list_kind),
    })
}

fn gvk(resource: &ResourceDoc<'_>, kind: &str) -> Value {
    json!([{"group": resource.group, "version": resource.version, "kind": kind}])
}

fn metadata() -> Value {
    json!({
        "description": format!("Standard object's metadata. More info: {CONVENTIONS}#metadata"),
        "allOf": [{"$ref": format!("{REF_PREFIX}{META}ObjectMeta")}],
    })
}

/// `apiVersion` and `kind`, described as every built-in kind describes them.
fn type_meta() -> impl Iterator<Item = (String, Value)> {
    let options = definitions().get(&format!("{META}DeleteOptions"));
    ["apiVersion", "kind"].into_iter().filter_map(move |name| {
        let value = options?.get("properties")?.get(name)?;
        Some((name.to_owned(), value.clone()))
    })
}

/// A node as its author wrote it, with the meaning of int-or-string and embedded resources spelled out.
fn node(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else { return schema.clone() };
    let mut out: Map<String, Value> = object
        .iter()
        .map(|(key, value)| {
            let value = match key.as_str() {
                "properties" => {
                    let fields = value.as_object().into_iter().flatten();
                    Value::Object(fields.map(|(name, value)| (name.clone(), node(value))).collect())
                }
                "items" | "additionalProperties" => node(value),
                _ => value.clone(),
            };
            (key.clone(), value)
        })
        .collect();
    let is_set = |key: &str| object.get(key) == Some(&Value::Bool(true));
    if is_set("x-kubernetes-int-or-string") && !object.contains_key("anyOf") && !object.contains_key("allOf") {
        out.insert("anyOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
    }
    if is_set("x-kubernetes-embedded-resource") {
        embed(&mut out);
    }
    out.into()
}

/// An embedded object must say what it is.
fn embed(node: &mut Map<String, Value>) {
    let mut required: Vec<Value> = node.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for name in ["kind", "apiVersion"] {
        if !required.iter().any(|known| known == name) {
            required.push(name.into());
        }
    }
    node.insert("required".into(), required.into());
    let properties = node.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object_mut() else { return };
    properties.insert("metadata".into(), metadata());
    properties.insert(
        "apiVersion".into(),
        json!({
            "type": "string",
            "description": format!(
                "apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources"
            ),
        }),
    );
    properties.insert(
        "kind".into(),
        json!({
            "type": "string",
            "description": format!(
                "kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds"
            ),
        }),
    );
}
