//! The JSONSchemaProps of a CustomResourceDefinition, read from JSON with bounded depth.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Number, Value};

use crate::{ListType, Rule, Schema, Type};

/// Deepest schema that is read. Real schemas stay far below; the bound keeps recursion finite.
pub(crate) const MAX_DEPTH: usize = 50;

/// `items`: one schema, or (refused later) several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Items {
    One(Box<Props>),
    Many(Vec<Props>),
}

/// `additionalProperties`: a schema, or whether there may be any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Additional {
    Bool(bool),
    Schema(Box<Props>),
}

/// One JSONSchemaProps node as it was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Props {
    pub id: String,
    pub schema: String,
    pub reference: Option<String>,
    pub description: String,
    pub ty: String,
    pub format: String,
    pub title: String,
    pub default: Option<Value>,
    pub maximum: Option<Number>,
    pub exclusive_maximum: bool,
    pub minimum: Option<Number>,
    pub exclusive_minimum: bool,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: String,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub multiple_of: Option<Number>,
    pub enumeration: Vec<Value>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<String>,
    pub items: Option<Items>,
    pub all_of: Vec<Props>,
    pub one_of: Vec<Props>,
    pub any_of: Vec<Props>,
    pub not: Option<Box<Props>>,
    pub properties: BTreeMap<String, Props>,
    pub additional: Option<Additional>,
    pub has_pattern_properties: bool,
    pub has_dependencies: bool,
    pub has_additional_items: bool,
    pub definitions: BTreeMap<String, Props>,
    pub external_docs: Option<Value>,
    pub example: Option<Value>,
    pub nullable: bool,
    pub preserve_unknown: Option<bool>,
    pub embedded_resource: bool,
    pub int_or_string: bool,
    pub list_map_keys: Vec<String>,
    pub list_type: Option<String>,
    pub map_type: Option<String>,
    pub rules: Vec<Rule>,
}

/// The names of JSONSchemaProps' fields.
pub(crate) const FIELDS: &[&str] = &[
    "id",
    "$schema",
    "$ref",
    "description",
    "type",
    "format",
    "title",
    "default",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "items",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "properties",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "externalDocs",
    "example",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// The names of a validation rule's fields.
pub(crate) const RULE_FIELDS: &[&str] =
    &["rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf"];

/// Reads the fields of one JSON object, with the words of Go's decoder for a wrong type.
struct Reader<'a> {
    object: &'a Map<String, Value>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn mismatch(name: &str, value: &Value, wanted: &str) -> String {
        let found = crate::decode::go_kind(value);
        format!("json: cannot unmarshal {found} into Go struct field JSONSchemaProps.{name} of type {wanted}")
    }

    fn text(&self, name: &str) -> Result<String, String> {
        Ok(self.optional_text(name)?.unwrap_or_default())
    }

    fn optional_text(&self, name: &str) -> Result<Option<String>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(Self::mismatch(name, other, "string")),
        }
    }

    fn optional_bool(&self, name: &str) -> Result<Option<bool>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(Self::mismatch(name, other, "bool")),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.optional_bool(name)?.unwrap_or_default())
    }

    fn number(&self, name: &str) -> Result<Option<Number>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(value)) => Ok(Some(value.clone())),
            Some(other) => Err(Self::mismatch(name, other, "float64")),
        }
    }

    fn int(&self, name: &str) -> Result<Option<i64>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| Self::mismatch(name, value, "int64")),
        }
    }

    fn list(&self, name: &str) -> Result<&'a [Value], String> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(Self::mismatch(name, other, "[]v1.JSONSchemaProps")),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let text =
            |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| Self::mismatch(name, value, "string"));
        self.list(name)?.iter().map(text).collect()
    }

    fn schema(&self, value: &Value) -> Result<Box<Props>, String> {
        Props::read(value, self.depth + 1)
    }

    fn schemas(&self, name: &str) -> Result<Vec<Props>, String> {
        self.list(name)?.iter().map(|value| Ok(*self.schema(value)?)).collect()
    }

    fn named_schemas(&self, name: &str) -> Result<BTreeMap<String, Props>, String> {
        match self.get(name) {
            None => Ok(BTreeMap::new()),
            Some(Value::Object(fields)) => {
                fields.iter().map(|(field, value)| Ok((field.clone(), *self.schema(value)?))).collect()
            }
            Some(other) => Err(Self::mismatch(name, other, "map[string]v1.JSONSchemaProps")),
        }
    }

    fn non_empty(&self, name: &str) -> bool {
        match self.get(name) {
            Some(Value::Object(fields)) => !fields.is_empty(),
            other => other.is_some(),
        }
    }

    fn rules(&self) -> Result<Vec<Rule>, String> {
        let read = |value: &Value| match value {
            Value::Object(object) => {
                let rule = Reader { object, depth: self.depth };
                Ok(Rule {
                    rule: rule.text("rule")?,
                    message: rule.optional_text("message")?,
                    message_expression: rule.optional_text("messageExpression")?,
                    reason: rule.optional_text("reason")?,
                    field_path: rule.optional_text("fieldPath")?,
                    optional_old_self: rule.optional_bool("optionalOldSelf")?,
                })
            }
            other => Err(Self::mismatch("x-kubernetes-validations", other, "v1.ValidationRule")),
        };
        self.list("x-kubernetes-validations")?.iter().map(read).collect()
    }
}

impl Props {
    /// Reads a schema as it stands in a CustomResourceDefinition.
    pub fn parse(value: &Value) -> Result<Self, String> {
        Ok(*Self::read(value, 0)?)
    }

    fn read(value: &Value, depth: usize) -> Result<Box<Self>, String> {
        if depth > MAX_DEPTH {
            return Err(format!("the schema is nested deeper than {MAX_DEPTH} levels"));
        }
        let object = match value {
            Value::Object(object) => object,
            Value::Null => return Ok(Box::default()),
            other => {
                let found = crate::decode::go_kind(other);
                return Err(format!("json: cannot unmarshal {found} into Go value of type v1.JSONSchemaProps"));
            }
        };
        let r = Reader { object, depth };
        let items = match r.get("items") {
            None => None,
            Some(Value::Array(list)) => {
                Some(Items::Many(list.iter().map(|v| Ok(*r.schema(v)?)).collect::<Result<_, String>>()?))
            }
            Some(one) => Some(Items::One(r.schema(one)?)),
        };
        let additional = match r.get("additionalProperties") {
            None => None,
            Some(Value::Bool(allowed)) => Some(Additional::Bool(*allowed)),
            Some(schema) => Some(Additional::Schema(r.schema(schema)?)),
        };
        // Filled in place on the heap: a literal of this size would cost every level of recursion kilobytes of stack.
        let mut props = Box::<Self>::default();
        props.id = r.text("id")?;
        props.schema = r.text("$schema")?;
        props.reference = r.optional_text("$ref")?;
        props.description = r.text("description")?;
        props.ty = r.text("type")?;
        props.format = r.text("format")?;
        props.title = r.text("title")?;
        props.default = r.get("default").cloned();
        props.maximum = r.number("maximum")?;
        props.exclusive_maximum = r.flag("exclusiveMaximum")?;
        props.minimum = r.number("minimum")?;
        props.exclusive_minimum = r.flag("exclusiveMinimum")?;
        props.max_length = r.int("maxLength")?;
        props.min_length = r.int("minLength")?;
        props.pattern = r.text("pattern")?;
        props.max_items = r.int("maxItems")?;
        props.min_items = r.int("minItems")?;
        props.unique_items = r.flag("uniqueItems")?;
        props.multiple_of = r.number("multipleOf")?;
        props.enumeration = r.list("enum")?.to_vec();
        props.max_properties = r.int("maxProperties")?;
        props.min_properties = r.int("minProperties")?;
        props.required = r.texts("required")?;
        props.items = items;
        props.all_of = r.schemas("allOf")?;
        props.one_of = r.schemas("oneOf")?;
        props.any_of = r.schemas("anyOf")?;
        props.not = r.get("not").map(|value| r.schema(value)).transpose()?;
        props.properties = r.named_schemas("properties")?;
        props.additional = additional;
        props.has_pattern_properties = r.non_empty("patternProperties");
        props.has_dependencies = r.get("dependencies").is_some();
        props.has_additional_items = r.get("additionalItems").is_some();
        props.definitions = r.named_schemas("definitions")?;
        props.external_docs = r.get("externalDocs").cloned();
        props.example = r.get("example").cloned();
        props.nullable = r.flag("nullable")?;
        props.preserve_unknown = r.optional_bool("x-kubernetes-preserve-unknown-fields")?;
        props.embedded_resource = r.flag("x-kubernetes-embedded-resource")?;
        props.int_or_string = r.flag("x-kubernetes-int-or-string")?;
        props.list_map_keys = r.texts("x-kubernetes-list-map-keys")?;
        props.list_type = r.optional_text("x-kubernetes-list-type")?;
        props.map_type = r.optional_text("x-kubernetes-map-type")?;
        props.rules = r.rules()?;
        Ok(props)
    }

    /// The one schema of `items`.
    pub fn item(&self) -> Option<&Props> {
        match &self.items {
            Some(Items::One(item)) => Some(item),
            _ => None,
        }
    }

    /// The node that validates, defaults and prunes.
    pub fn to_schema(&self) -> Arc<Schema> {
        let share = |list: &[Props]| list.iter().map(|props| props.to_schema()).collect();
        let size = |value: Option<i64>| value.map(|v| u64::try_from(v).unwrap_or(0));
        let (additional, additional_allowed) = match &self.additional {
            None => (None, None),
            Some(Additional::Bool(allowed)) => (None, Some(*allowed)),
            Some(Additional::Schema(schema)) => (Some(schema.to_schema()), Some(true)),
        };
        // In place on the heap, as when it is read: deep schemas must not cost kilobytes of stack per level.
        let mut schema = Box::<Schema>::default();
        schema.ty = Type::from_name(&self.ty);
        schema.description = (!self.description.is_empty()).then(|| Arc::from(self.description.as_str()));
        schema.format = (!self.format.is_empty()).then(|| self.format.clone());
        schema.nullable = self.nullable;
        schema.int_or_string = self.int_or_string;
        schema.preserve_unknown = self.preserve_unknown == Some(true);
        schema.embedded_resource = self.embedded_resource;
        schema.properties = self.properties.iter().map(|(k, v)| (k.clone(), v.to_schema())).collect();
        schema.additional = additional;
        schema.additional_allowed = additional_allowed;
        schema.items = self.item().map(|item| item.to_schema());
        schema.required = self.required.clone();
        schema.default = self.default.clone();
        schema.enumeration = self.enumeration.clone();
        schema.minimum = self.minimum.clone();
        schema.maximum = self.maximum.clone();
        schema.exclusive_minimum = self.exclusive_minimum;
        schema.exclusive_maximum = self.exclusive_maximum;
        schema.multiple_of = self.multiple_of.clone();
        schema.min_length = size(self.min_length);
        schema.max_length = size(self.max_length);
        schema.pattern = (!self.pattern.is_empty()).then(|| self.pattern.clone());
        schema.min_items = size(self.min_items);
        schema.max_items = size(self.max_items);
        schema.unique_items = self.unique_items;
        schema.min_properties = size(self.min_properties);
        schema.max_properties = size(self.max_properties);
        schema.all_of = share(&self.all_of);
        schema.any_of = share(&self.any_of);
        schema.one_of = share(&self.one_of);
        schema.not = self.not.as_ref().map(|props| props.to_schema());
        schema.list_type = match self.list_type.as_deref() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(self.list_map_keys.clone()),
            _ => ListType::Atomic,
        };
        schema.atomic_map = self.map_type.as_deref() == Some("atomic");
        schema.rules = self.rules.clone();
        Arc::from(schema)
    }
}

impl Schema {
    /// Reads the `openAPIV3Schema` of a CustomResourceDefinition.
    ///
    /// # Errors
    /// When the JSON is not a schema, is nested too deeply, or uses what no structural schema has (`$ref`,
    /// `definitions`, a list of `items`…). All other errors of a schema are reported by
    /// [`structural::check`](crate::structural::check).
    pub fn from_openapi(value: &Value) -> Result<Self, String> {
        let props = Props::parse(value)?;
        unsupported(&props)?;
        Ok(Arc::unwrap_or_clone(props.to_schema()))
    }
}

/// The first construct that a structural schema cannot have, in the words of the real server.
pub(crate) fn unsupported(props: &Props) -> Result<(), String> {
    let refused = [
        (!props.id.is_empty(), "id"),
        (!props.schema.is_empty(), "schema"),
        (props.reference.as_ref().is_some_and(|r| !r.is_empty()), "$ref"),
        (props.has_pattern_properties, "patternProperties"),
        (props.has_dependencies, "dependencies"),
        (props.has_additional_items, "additionalItems"),
        (!props.definitions.is_empty(), "definitions"),
    ];
    if let Some((_, name)) = refused.iter().find(|(found, _)| *found) {
        return Err(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if matches!(&props.items, Some(Items::Many(list)) if !list.is_empty()) {
        return Err("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if props.preserve_unknown == Some(false) {
        return Err("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    props.parts().try_for_each(unsupported)
}

impl Props {
    /// Every schema directly inside this one.
    pub fn parts(&self) -> impl Iterator<Item = &Props> {
        let additional = match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema.as_ref()),
            _ => None,
        };
        self.item()
            .into_iter()
            .chain(self.properties.values())
            .chain(additional)
            .chain(&self.all_of)
            .chain(&self.any_of)
            .chain(&self.one_of)
            .chain(self.not.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_is_read_with_its_extensions() {
        let schema = Schema::from_openapi(&json!({
            "type": "object",
            "properties": {
                "ports": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}}
                },
                "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "size": {"x-kubernetes-int-or-string": true}
            },
            "x-kubernetes-validations": [{"rule": "true", "message": "m"}]
        }))
        .unwrap();
        assert_eq!(schema.properties["ports"].list_type, ListType::Map(vec!["name".into()]));
        assert!(schema.properties["raw"].preserve_unknown);
        assert!(schema.properties["size"].int_or_string);
        assert_eq!(schema.rules[0].message.as_deref(), Some("m"));
    }

    #[test]
    fn a_schema_nested_without_end_is_refused() {
        let mut schema = json!({"type": "string"});
        for _ in 0..150 {
            schema = json!({"type": "object", "properties": {"a": schema}});
        }
        assert!(Schema::from_openapi(&schema).unwrap_err().contains("nested deeper"));
    }

    #[test]
    fn the_deepest_schema_fits_on_a_small_stack() {
        let mut schema = json!({"type": "string"});
        for _ in 0..MAX_DEPTH {
            schema = json!({"type": "object", "properties": {"a": schema}});
        }
        assert!(Schema::from_openapi(&schema).is_ok());
        assert!(crate::structural::check(&schema, "s", Default::default()).is_empty());
    }

    #[test]
    fn references_are_refused() {
        let error = Schema::from_openapi(&json!({"properties": {"a": {"$ref": "#/b"}}})).unwrap_err();
        assert_eq!(error, "OpenAPIV3Schema '$ref' is not supported");
    }
}
