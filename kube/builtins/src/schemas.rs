//! Structural schemas of the built-in kinds, built once per process and shared by every server in it.
//!
//! The types and their descriptions come from `k8s-openapi`; what its generator leaves out (list types, merge keys,
//! defaults, enumerations) comes from [`crate::facts`]. Both are joined as OpenAPI definitions, the same that
//! [`crate::openapi`] serves, and then turned into trees.
//!
//! The trees describe what the real server's decoder accepts. It does not refuse an object for a missing field or an
//! unlisted value (validation does that, with its own words), so `required` and `enum` are in the definitions but not
//! in the trees; and it takes null for any field, so every node is nullable. A field's `default` is the one that
//! OpenAPI shows, which server-side apply needs for list keys; it is not a defaulting rule.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use fleetwright_schema::{ListType, PatchStrategy, Schema, Type};
use serde_json::{Map, Value, json};

use crate::facts;
use crate::table::{KINDS, Kind};

/// Where references to other definitions point.
pub(crate) const REF_PREFIX: &str = "#/components/schemas/";

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The schema of a built-in kind.
pub fn schema(kind: &Kind) -> Arc<Schema> {
    type_schema(kind.type_name).unwrap_or_else(anything)
}

/// The schema of an OpenAPI type, such as `io.k8s.api.autoscaling.v1.Scale`.
pub fn type_schema(type_name: &str) -> Option<Arc<Schema>> {
    SCHEMAS.get(type_name).cloned()
}

/// The schema of `metadata`, for custom resources.
pub fn object_meta() -> Arc<Schema> {
    type_schema(OBJECT_META).unwrap_or_else(anything)
}

/// The OpenAPI definitions of all types that the built-in kinds use, as kube-apiserver publishes them.
pub fn definitions() -> &'static BTreeMap<String, Value> {
    &DEFINITIONS
}

static DEFINITIONS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let mut definitions = base();
    facts::apply(&mut definitions, facts::committed());
    definitions
});

static SCHEMAS: LazyLock<HashMap<String, Arc<Schema>>> = LazyLock::new(|| {
    let mut builder =
        Builder { definitions: definitions(), done: HashMap::new(), open: HashSet::new(), texts: HashSet::new() };
    for name in builder.definitions.keys() {
        builder.named(name);
    }
    builder.done
});

fn anything() -> Arc<Schema> {
    Arc::new(Schema { nullable: true, preserve_unknown: true, ..Schema::default() })
}

/// The definitions that `k8s-openapi` knows, in the shape kube-apiserver gives them, without the facts.
pub(crate) fn base() -> BTreeMap<String, Value> {
    let mut definitions: BTreeMap<String, Value> = crate::types::definitions();
    for kind in KINDS.iter().filter(|kind| kind.is_stored()) {
        let list = list_of(kind.type_name, definitions.get(kind.type_name).unwrap_or(&Value::Null));
        definitions.insert(format!("{}List", kind.type_name), list);
    }
    definitions.insert("io.k8s.apimachinery.pkg.apis.meta.v1.Patch".into(), json!({"type": "object"}));
    for (name, definition) in &mut definitions {
        let Some(object) = definition.as_object_mut() else { continue };
        object.remove("required");
        correct(name, object);
    }
    definitions
}

/// Undoes what `k8s-openapi`'s generator changes about types with a wire format of their own.
fn correct(name: &str, object: &mut Map<String, Value>) {
    match name {
        QUANTITY => {
            object.remove("x-kubernetes-int-or-string");
            object.insert("oneOf".into(), json!([{"type": "string"}, {"type": "number"}]));
        }
        INT_OR_STRING => {
            object.remove("x-kubernetes-int-or-string");
            object.insert("format".into(), "int-or-string".into());
            object.insert("oneOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
        }
        _ => {
            let any = name.strip_prefix(APIEXTENSIONS).is_some_and(|rest| {
                matches!(
                    rest,
                    ".JSON" | ".JSONSchemaPropsOrArray" | ".JSONSchemaPropsOrBool" | ".JSONSchemaPropsOrStringArray"
                )
            });
            if any {
                object.retain(|key, _| key == "description");
            }
        }
    }
}

/// The definition of a list of a type; its descriptions differ from list to list and are facts.
fn list_of(type_name: &str, item: &Value) -> Value {
    let text = |field: &str| item.pointer(&format!("/properties/{field}/description")).cloned();
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": text("apiVersion")},
            "items": {"type": "array", "items": {"$ref": format!("{REF_PREFIX}{type_name}")}},
            "kind": {"type": "string", "description": text("kind")},
            "metadata": {"allOf": [{"$ref": format!("{REF_PREFIX}io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")}]},
        },
    })
}

/// The name of the definition that a node refers to, alone or with facts beside the reference.
fn referred(node: &Value) -> Option<&str> {
    let reference = match node.get("$ref") {
        Some(reference) => reference,
        None => node.get("allOf")?.get(0)?.get("$ref")?,
    };
    reference.as_str()?.strip_prefix(REF_PREFIX)
}

/// A type's name as Go's errors have it: `io.k8s.api.core.v1.Container` is `v1.Container`.
fn go_name(name: &str) -> Option<Arc<str>> {
    let (package, ty) = name.rsplit_once('.')?;
    let package = package.rsplit('.').next()?;
    Some(format!("{package}.{ty}").into())
}

struct Builder<'a> {
    definitions: &'a BTreeMap<String, Value>,
    done: HashMap<String, Arc<Schema>>,
    open: HashSet<String>,
    texts: HashSet<Arc<str>>,
}

impl Builder<'_> {
    fn named(&mut self, name: &str) -> Arc<Schema> {
        if let Some(done) = self.done.get(name) {
            return Arc::clone(done);
        }
        let definitions = self.definitions;
        let Some(definition) = definitions.get(name) else { return anything() };
        if !self.open.insert(name.to_owned()) {
            return anything();
        }
        let mut schema = self.inline(definition);
        match name {
            QUANTITY => schema.format = Some("quantity".into()),
            MICRO_TIME => schema.format = Some("micro-time".into()),
            INT_OR_STRING => {
                schema =
                    Schema { int_or_string: true, nullable: true, description: schema.description, ..Schema::default() }
            }
            _ => {}
        }
        self.open.remove(name);
        schema.type_name = go_name(name);
        let schema = Arc::new(schema);
        self.done.insert(name.to_owned(), Arc::clone(&schema));
        schema
    }

    fn node(&mut self, value: &Value) -> Arc<Schema> {
        let Some(name) = referred(value) else { return Arc::new(self.inline(value)) };
        let target = self.named(name);
        if value.get("$ref").is_some() {
            return target;
        }
        let mut schema = (*target).clone();
        self.annotate(&mut schema, value);
        Arc::new(schema)
    }

    fn inline(&mut self, value: &Value) -> Schema {
        let mut schema = Schema { nullable: true, ..Schema::default() };
        schema.ty = match value.get("type").and_then(Value::as_str) {
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            _ => None,
        };
        schema.format = value.get("format").and_then(Value::as_str).map(str::to_owned);
        if let Some(properties) = value.get("properties").and_then(Value::as_object) {
            schema.properties = properties.iter().map(|(name, node)| (name.clone(), self.node(node))).collect();
        }
        schema.additional = value.get("additionalProperties").map(|node| self.node(node));
        schema.items = value.get("items").map(|node| self.node(node));
        if let Some(choices) = value.get("oneOf").and_then(Value::as_array) {
            schema.one_of = choices.iter().map(|node| self.node(node)).collect();
        }
        // An object of which nothing is said (RawExtension, FieldsV1) and a value of which nothing is said (JSON) hold anything.
        let silent = schema.properties.is_empty() && schema.additional.is_none() && schema.one_of.is_empty();
        schema.preserve_unknown = silent && matches!(schema.ty, None | Some(Type::Object));
        self.annotate(&mut schema, value);
        schema
    }

    fn annotate(&mut self, schema: &mut Schema, value: &Value) {
        if let Some(text) = value.get("description").and_then(Value::as_str) {
            schema.description = Some(self.intern(text));
        }
        if let Some(default) = value.get("default") {
            schema.default = Some(default.clone());
        }
        if value.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic") {
            schema.atomic_map = true;
        }
        match value.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => schema.list_type = ListType::Set,
            Some("map") => schema.list_type = ListType::Map(strings(value.get("x-kubernetes-list-map-keys"))),
            _ => {}
        }
        if let Some(strategy) = value.get("x-kubernetes-patch-strategy").and_then(Value::as_str) {
            schema.patch = PatchStrategy {
                merge: strategy.split(',').any(|word| word == "merge"),
                retain_keys: strategy.split(',').any(|word| word == "retainKeys"),
                merge_key: value.get("x-kubernetes-patch-merge-key").and_then(Value::as_str).map(str::to_owned),
            };
        }
    }

    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map(Cow::Borrowed).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(kind: &str, path: &str) -> Arc<Schema> {
        let row = KINDS.iter().find(|row| row.kind == kind).unwrap();
        path.split('.').fold(schema(row), |node, step| {
            let next = match step {
                "[]" => node.items.as_ref(),
                "{}" => node.additional.as_ref(),
                field => node.properties.get(field),
            };
            Arc::clone(next.unwrap_or_else(|| panic!("{kind} has no {path}")))
        })
    }

    #[test]
    fn every_kind_and_subresource_has_a_schema() {
        for kind in KINDS {
            assert!(type_schema(kind.type_name).is_some(), "{}", kind.type_name);
            for sub in kind.subresources {
                assert!(type_schema(sub.type_name).is_some(), "{}", sub.type_name);
            }
        }
    }

    #[test]
    fn containers_are_a_map_by_name_in_both_kinds_of_merge() {
        let containers = at("Deployment", "spec.template.spec.containers");
        assert_eq!(containers.list_type, ListType::Map(vec!["name".into()]));
        assert!(containers.patch.merge);
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
    }

    #[test]
    fn a_port_list_key_has_its_default_protocol() {
        assert_eq!(at("Pod", "spec.containers.[].ports.[].protocol").default, Some(json!("TCP")));
    }

    #[test]
    fn volumes_retain_keys() {
        let patch = at("Pod", "spec.volumes").patch.clone();
        assert!(patch.merge && patch.retain_keys);
    }

    #[test]
    fn a_field_keeps_its_own_description_over_its_types() {
        assert!(at("Pod", "spec").description.as_deref().unwrap().starts_with("Specification of the desired behavior"));
    }

    #[test]
    fn a_type_that_contains_itself_is_cut() {
        let schema = at("CustomResourceDefinition", "spec.versions.[].schema.openAPIV3Schema");
        assert!(!schema.properties.is_empty());
        assert!(schema.properties["not"].preserve_unknown);
    }

    #[test]
    fn raw_values_hold_anything() {
        assert!(at("ControllerRevision", "data").preserve_unknown);
        assert!(at("Pod", "metadata.managedFields.[].fieldsV1").preserve_unknown);
    }

    #[test]
    fn a_selector_is_atomic() {
        assert!(at("Deployment", "spec.selector").atomic_map);
    }

    #[test]
    fn ports_are_integers_or_strings() {
        assert!(at("Service", "spec.ports.[].targetPort").int_or_string);
    }
}
