//! The declarations of the data that a rule reads: types, sizes and list semantics from a structural schema.

use crate::escape::escape;
use crate::types::Type;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest request the server accepts; without a bound in the schema, sizes derive from it.
pub const MAX_REQUEST_SIZE: u64 = 3 * 1024 * 1024;
/// Schemas nest no deeper than this in a declaration; what lies below is not reachable by rules.
const MAX_NESTING: usize = 128;

/// The longest name of an object.
const MAX_NAME: u64 = 253;

/// The comparison and addition of two lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Order counts.
    #[default]
    Atomic,
    /// Elements are unique and order does not count.
    Set,
    /// The properties that identify an element; the order does not count.
    Map(Vec<String>),
}

/// The declaration of a value.
#[derive(Debug, PartialEq)]
pub struct Decl {
    /// The kind of the value.
    pub kind: DeclKind,
    /// The most characters, bytes, elements or entries a value can have; 0 for kinds without a size.
    pub max_elements: u64,
    /// The minimal number of bytes of a value in JSON.
    pub min_serialized_size: u64,
}

/// The kinds of declared values.
#[derive(Debug, PartialEq)]
pub enum DeclKind {
    /// Checked when a rule runs.
    Dyn,
    /// An integer or a string.
    IntOrString,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Double,
    String,
    /// A base64 string.
    Bytes,
    /// A `date` or `date-time` string.
    Timestamp,
    /// A `duration` string.
    Duration,
    List(Arc<Decl>, ListType),
    /// An object with arbitrary keys.
    Map(Arc<Decl>),
    /// An object with declared properties.
    Object(ObjectDecl),
}

/// An object's properties under the names that rules use.
#[derive(Debug, PartialEq)]
pub struct ObjectDecl {
    /// The name in error messages.
    pub name: String,
    /// Properties by escaped name.
    pub fields: BTreeMap<String, FieldDecl>,
}

/// One property.
#[derive(Debug, PartialEq)]
pub struct FieldDecl {
    pub json_name: String,
    /// What it holds.
    pub decl: Arc<Decl>,
}

impl Decl {
    /// A declaration without sizes.
    pub fn new(kind: DeclKind) -> Self {
        let min_serialized_size = match kind {
            DeclKind::Bool => 4,
            DeclKind::Int | DeclKind::Double | DeclKind::Dyn | DeclKind::IntOrString => 1,
            _ => 2,
        };
        Self { kind, max_elements: 0, min_serialized_size }
    }

    fn sized(kind: DeclKind, max_elements: u64, min_serialized_size: u64) -> Arc<Self> {
        Arc::new(Self { kind, max_elements, min_serialized_size })
    }

    /// The declaration of a structural schema given as JSON, or `None` if rules cannot see values of it.
    ///
    /// `resource_root` is for the root of a custom resource or embedded resource: `apiVersion`, `kind` and the names
    /// in `metadata` are always visible there.
    pub fn from_schema(schema: &Value, resource_root: bool) -> Option<Arc<Self>> {
        convert(schema, resource_root, "selfType", 0)
    }

    /// The maximal number of occurrences of a value of this declaration in one request.
    pub fn max_cardinality(&self) -> u64 {
        MAX_REQUEST_SIZE / (self.min_serialized_size + 1)
    }

    /// The type that rules see.
    pub fn to_type(self: &Arc<Self>) -> Type {
        match &self.kind {
            DeclKind::Dyn | DeclKind::IntOrString => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Timestamp => Type::Timestamp,
            DeclKind::Duration => Type::Duration,
            DeclKind::List(items, _) => Type::list(items.to_type()),
            DeclKind::Map(values) => Type::map(Type::String, values.to_type()),
            DeclKind::Object(_) => Type::Object(self.clone()),
        }
    }
}

fn convert(schema: &Value, root: bool, name: &str, depth: usize) -> Option<Arc<Decl>> {
    if depth > MAX_NESTING {
        return None;
    }
    let bound = |key: &str| schema.get(key).and_then(Value::as_i64).map(|n| u64::try_from(n).unwrap_or(0));
    let flag = |s: &Value, key: &str| s.get(key).and_then(Value::as_bool).unwrap_or(false);
    // A character has up to four bytes, and sizes are in bytes.
    let max_string = bound("maxLength").map(|n| n.saturating_mul(4));
    if flag(schema, "x-kubernetes-int-or-string") {
        return Some(Decl::sized(DeclKind::IntOrString, max_string.unwrap_or(MAX_REQUEST_SIZE - 2), 1));
    }
    let child = |s: &Value, name: String| convert(s, flag(s, "x-kubernetes-embedded-resource"), &name, depth + 1);
    match schema.get("type").and_then(Value::as_str)? {
        "array" => {
            let items = child(schema.get("items")?, format!("{name}.@idx"))?;
            let max = bound("maxItems").unwrap_or((MAX_REQUEST_SIZE - 2) / (items.min_serialized_size + 1));
            Some(Decl::sized(DeclKind::List(items, list_type(schema)), max, 2))
        }
        "object" => {
            if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                let values = child(values, format!("{name}.@elem"))?;
                let max = bound("maxProperties").unwrap_or((MAX_REQUEST_SIZE - 2) / (values.min_serialized_size + 6));
                return Some(Decl::sized(DeclKind::Map(values), max, 2));
            }
            Some(object(schema, root, name, &child))
        }
        "string" => Some(match schema.get("format").and_then(Value::as_str) {
            Some("byte") => Decl::sized(DeclKind::Bytes, bound("maxLength").unwrap_or(MAX_REQUEST_SIZE - 2), 2),
            Some("duration") => Decl::sized(DeclKind::Duration, 32, 3),
            Some("date") => Decl::sized(DeclKind::Timestamp, 12, 12),
            Some("date-time") => Decl::sized(DeclKind::Timestamp, 32, 21),
            _ => {
                let longest = schema.get("enum").and_then(Value::as_array).filter(|e| !e.is_empty());
                let longest =
                    longest.map(|e| e.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0) as u64);
                Decl::sized(DeclKind::String, max_string.or(longest).unwrap_or(MAX_REQUEST_SIZE - 2), 2)
            }
        }),
        "boolean" => Some(Arc::new(Decl::new(DeclKind::Bool))),
        "number" => Some(Arc::new(Decl::new(DeclKind::Double))),
        "integer" => Some(Arc::new(Decl::new(DeclKind::Int))),
        _ => None,
    }
}

fn list_type(schema: &Value) -> ListType {
    match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
            ListType::Map(keys.filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => ListType::Atomic,
    }
}

fn object(schema: &Value, root: bool, name: &str, child: &dyn Fn(&Value, String) -> Option<Arc<Decl>>) -> Arc<Decl> {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = BTreeMap::new();
    let mut size = 2;
    let mut properties: BTreeMap<&str, &Value> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.as_str(), v))
        .collect();
    let string = serde_json::json!({"type": "string"});
    let capped = |key: &str, cap: u64| {
        let pointer = format!("/properties/metadata/properties/{key}/maxLength");
        let declared = schema.pointer(&pointer).and_then(Value::as_u64);
        serde_json::json!({"type": "string", "maxLength": declared.map_or(cap, |n| n.min(cap))})
    };
    // A name is a DNS subdomain at most, and a generated one is longer than its prefix.
    let names =
        serde_json::json!({"name": capped("name", MAX_NAME), "generateName": capped("generateName", MAX_NAME - 1)});
    let meta = serde_json::json!({"type": "object", "properties": names});
    if root {
        properties.extend([("apiVersion", &string), ("kind", &string), ("metadata", &meta)]);
    }
    for (key, property) in properties {
        let Some(decl) = child(property, format!("{name}.{key}")) else { continue };
        if required.contains(&key) && property.get("default").is_none_or(Value::is_null) {
            size += key.len() as u64 + decl.min_serialized_size + 4;
        }
        if let Some(escaped) = escape(key) {
            fields.insert(escaped, FieldDecl { json_name: key.to_owned(), decl });
        }
    }
    Decl::sized(DeclKind::Object(ObjectDecl { name: name.to_owned(), fields }), 0, size)
}
