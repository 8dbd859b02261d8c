//! The merge properties of a schema: atomic parts, and the keys of list items.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use fleetwright_schema::{ListType, Schema, Type};
use serde_json::{Map, Value};

use crate::field_set::{FieldSet, Node};
use crate::go_fmt;
use crate::path::PathElement;

/// The type of one value.
#[derive(Clone, Copy)]
pub(crate) enum Ty<'a> {
    /// A schema node, whether unknown fields are kept at or above it, and whether it describes a whole object.
    Known { schema: &'a Schema, preserve: bool, object: bool },
    /// Nothing is known: objects are shared field by field, lists are one unit.
    Deduced,
    /// Nothing is known, and the whole is one unit.
    Unit,
}

/// The merge type of a value.
pub(crate) enum Shape<'a> {
    /// A number, string or boolean.
    Scalar,
    /// A list or object that is written as a whole.
    Atomic,
    /// An object whose fields are shared.
    Map,
    /// A list whose items are shared; `keys` is empty for a list of scalars.
    List { keys: &'a [String], items: Ty<'a> },
}

/// The type of an object's field, and how it is known.
pub(crate) struct Field<'a> {
    pub(crate) ty: Ty<'a>,
    /// The schema names the field.
    pub(crate) named: bool,
    /// The schema allows the field.
    pub(crate) allowed: bool,
}

impl<'a> Ty<'a> {
    /// The type of a whole object.
    pub(crate) fn root(schema: &'a Schema) -> Self {
        Ty::Known { schema, preserve: schema.preserve_unknown, object: true }
    }

    fn below(schema: &'a Schema, preserve: bool) -> Self {
        Ty::Known { schema, preserve: preserve || schema.preserve_unknown, object: schema.embedded_resource }
    }

    /// The merge type of a value of this schema. A schema with several types follows the value.
    pub(crate) fn shape(self, value: Option<&Value>) -> Shape<'a> {
        let Ty::Known { schema, .. } = self else {
            return match (self, value) {
                (_, Some(Value::Bool(_) | Value::Number(_) | Value::String(_))) => Shape::Scalar,
                (Ty::Unit, _) | (_, Some(Value::Array(_))) => Shape::Atomic,
                _ => Shape::Map,
            };
        };
        let kind = if schema.int_or_string { None } else { schema.ty };
        match (kind, value) {
            (Some(Type::Object), _) => map_shape(schema),
            (Some(Type::Array), _) => list_shape(schema, self.preserves()),
            (Some(_), _) | (None, Some(Value::Bool(_) | Value::Number(_) | Value::String(_))) => Shape::Scalar,
            (None, Some(Value::Array(_))) => list_shape(schema, self.preserves()),
            (None, _) => map_shape(schema),
        }
    }

    /// Whether a schema describes the type.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Ty::Known { .. })
    }

    fn preserves(self) -> bool {
        !matches!(self, Ty::Known { preserve: false, .. })
    }

    /// The type of a field of an object of this type.
    pub(crate) fn field(self, name: &str) -> Field<'a> {
        let Ty::Known { schema, preserve, object } = self else {
            return Field { ty: self, named: false, allowed: true };
        };
        let declared = schema.properties.get(name);
        if object {
            // A custom resource's schema does not describe metadata, which is the same for all kinds.
            match name {
                "metadata" if declared.is_none_or(|s| !s.properties.contains_key("ownerReferences")) => {
                    return Field { ty: Ty::below(&OBJECT_META, false), named: true, allowed: true };
                }
                "apiVersion" | "kind" if declared.is_none() => {
                    return Field { ty: Ty::below(&STRING, false), named: true, allowed: true };
                }
                _ => {}
            }
        }
        if let Some(schema) = declared {
            Field { ty: Ty::below(schema, preserve), named: true, allowed: true }
        } else if let Some(schema) = &schema.additional {
            Field { ty: Ty::below(schema, preserve), named: false, allowed: true }
        } else {
            let allowed = preserve || schema.properties.is_empty();
            Field { ty: Ty::Deduced, named: false, allowed }
        }
    }

    /// The step to a list item.
    pub(crate) fn item_element(self, keys: &[String], item: &Value) -> Result<PathElement, String> {
        if keys.is_empty() {
            return match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(PathElement::Value(scalar.clone())),
            };
        }
        let item = match item {
            Value::Object(item) => item,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let mut fields = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(value) = item.get(key).or_else(|| self.default_of(key)) {
                fields.push((key.clone(), value.clone()));
            }
        }
        if fields.is_empty() {
            let keys: Vec<String> = keys.iter().map(|k| format!("{k:?}")).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                keys.join(" ")
            ));
        }
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(PathElement::Key(fields))
    }

    fn default_of(self, key: &str) -> Option<&'a Value> {
        let Ty::Known { schema, .. } = self else { return None };
        schema.properties.get(key)?.default.as_ref()
    }
}

fn map_shape<'a>(schema: &Schema) -> Shape<'a> {
    if schema.atomic_map { Shape::Atomic } else { Shape::Map }
}

fn list_shape(schema: &Schema, preserve: bool) -> Shape<'_> {
    let items = schema.items.as_deref().map_or(Ty::Unit, |items| Ty::below(items, preserve));
    match &schema.list_type {
        ListType::Map(keys) => Shape::List { keys, items },
        ListType::Set => Shape::List { keys: &[], items },
        // Built-in lists that were never given a list type are shared as strategic merge patches share them.
        ListType::Atomic if schema.patch.merge => Shape::List { keys: schema.patch.merge_key.as_slice(), items },
        ListType::Atomic => Shape::Atomic,
    }
}

static STRING: LazyLock<Schema> = LazyLock::new(|| Schema { ty: Some(Type::String), ..Schema::default() });

/// The metadata of every object, as far as writers share it.
static OBJECT_META: LazyLock<Schema> = LazyLock::new(|| {
    let text = || Arc::new(STRING.clone());
    let stamp =
        || Arc::new(Schema { ty: Some(Type::String), format: Some("date-time".to_owned()), ..Schema::default() });
    let number = || Arc::new(Schema { ty: Some(Type::Integer), ..Schema::default() });
    let texts = || Arc::new(Schema { ty: Some(Type::Object), additional: Some(text()), ..Schema::default() });
    let flag = || Arc::new(Schema { ty: Some(Type::Boolean), ..Schema::default() });
    let list = |items: Arc<Schema>, list_type| {
        Arc::new(Schema { ty: Some(Type::Array), items: Some(items), list_type, ..Schema::default() })
    };
    let object = |fields: Vec<(&str, Arc<Schema>)>, atomic_map| Schema {
        ty: Some(Type::Object),
        properties: fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect(),
        atomic_map,
        ..Schema::default()
    };
    let owner = object(
        vec![
            ("apiVersion", text()),
            ("blockOwnerDeletion", flag()),
            ("controller", flag()),
            ("kind", text()),
            ("name", text()),
            ("uid", text()),
        ],
        true,
    );
    let entry = object(
        vec![
            ("apiVersion", text()),
            ("fieldsType", text()),
            ("fieldsV1", Arc::new(Schema { ty: Some(Type::Object), ..Schema::default() })),
            ("manager", text()),
            ("operation", text()),
            ("subresource", text()),
            ("time", stamp()),
        ],
        false,
    );
    object(
        vec![
            ("annotations", texts()),
            ("creationTimestamp", stamp()),
            ("deletionGracePeriodSeconds", number()),
            ("deletionTimestamp", stamp()),
            ("finalizers", list(text(), ListType::Set)),
            ("generateName", text()),
            ("generation", number()),
            ("labels", texts()),
            ("managedFields", list(Arc::new(entry), ListType::Atomic)),
            ("name", text()),
            ("namespace", text()),
            ("ownerReferences", list(Arc::new(owner), ListType::Map(vec!["uid".to_owned()]))),
            ("resourceVersion", text()),
            ("selfLink", text()),
            ("uid", text()),
        ],
        false,
    )
});

/// Checks an applied object against its type: fields that the schema does not know, wrong kinds of values, and list
/// items with the same key. The text is the real server's.
pub(crate) fn validate(ty: Ty<'_>, value: &Value) -> Result<(), String> {
    let mut errors = Vec::new();
    check(ty, value, &mut Vec::new(), &mut errors);
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(format!("errors:\n  {}", errors.join("\n  "))),
    }
}

fn check(ty: Ty<'_>, value: &Value, path: &mut Vec<PathElement>, errors: &mut Vec<String>) {
    let fail = |path: &[PathElement], message: String| {
        let path = crate::path::path_to_string(path);
        if path.is_empty() { message } else { format!("{path}: {message}") }
    };
    if value.is_null() {
        return;
    }
    match expected_kind(ty, value) {
        Kind::Scalar(scalar) => {
            if let Err(message) = check_scalar(scalar, value) {
                errors.push(fail(path, message));
            }
        }
        Kind::Map => {
            let Value::Object(object) = value else {
                return errors.push(fail(path, format!("expected map, got &{{{}}}", go_fmt::plain(value))));
            };
            for (name, inner) in object {
                let field = ty.field(name);
                path.push(PathElement::field(name));
                if field.allowed {
                    check(field.ty, inner, path, errors);
                } else {
                    errors.push(fail(path, "field not declared in schema".to_owned()));
                }
                path.pop();
            }
        }
        Kind::List => {
            let Value::Array(items) = value else {
                return errors.push(fail(path, format!("expected list, got &{{{}}}", go_fmt::plain(value))));
            };
            check_items(ty, items, path, errors, fail);
        }
    }
}

fn check_items(
    ty: Ty<'_>,
    items: &[Value],
    path: &mut Vec<PathElement>,
    errors: &mut Vec<String>,
    fail: impl Fn(&[PathElement], String) -> String,
) {
    let mut seen = BTreeSet::new();
    let shape = ty.shape(Some(&Value::Array(Vec::new())));
    let item_ty = match (&shape, ty) {
        (Shape::List { items, .. }, _) => *items,
        (_, Ty::Known { schema, preserve, .. }) => {
            schema.items.as_deref().map_or(Ty::Unit, |items| Ty::below(items, preserve))
        }
        _ => Ty::Unit,
    };
    for (index, item) in items.iter().enumerate() {
        let element = match &shape {
            Shape::List { keys, .. } => match item_ty.item_element(keys, item) {
                Ok(element) => element,
                Err(message) => return errors.push(fail(path, format!("element {index}: {message}"))),
            },
            _ => PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)),
        };
        if !seen.insert(element.clone()) {
            errors.push(fail(path, format!("duplicate entries for key {element}")));
        }
        path.push(element);
        check(item_ty, item, path, errors);
        path.pop();
    }
}

enum Kind {
    Scalar(Scalar),
    Map,
    List,
}

enum Scalar {
    Numeric,
    Text,
    Boolean,
    Any,
}

/// The kind of value that the type asks for; a type that allows several follows the value.
fn expected_kind(ty: Ty<'_>, value: &Value) -> Kind {
    let kind = match ty {
        Ty::Known { schema, .. } if !schema.int_or_string => schema.ty,
        _ => None,
    };
    let plain_text = |schema: &Schema| schema.format.as_deref().is_none_or(|f| f.is_empty() || f == "byte");
    match (kind, ty) {
        (Some(Type::Object), _) => Kind::Map,
        (Some(Type::Array), _) => Kind::List,
        (Some(Type::Integer | Type::Number), _) => Kind::Scalar(Scalar::Numeric),
        (Some(Type::Boolean), _) => Kind::Scalar(Scalar::Boolean),
        (Some(Type::String), Ty::Known { schema, .. }) if plain_text(schema) => Kind::Scalar(Scalar::Text),
        (Some(Type::String), _) => Kind::Scalar(Scalar::Any),
        (None, _) => match value {
            Value::Array(_) => Kind::List,
            Value::Object(_) => Kind::Map,
            _ => Kind::Scalar(Scalar::Any),
        },
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> Result<(), String> {
    match scalar {
        Scalar::Numeric if !value.is_number() => {
            Err(format!("expected numeric (int or float), got {}", go_fmt::type_name(value)))
        }
        Scalar::Text if !value.is_string() => {
            Err(format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_fmt::literal(value)))
        }
        Scalar::Boolean if !value.is_boolean() => Err(format!("expected boolean, got &{{{}}}", go_fmt::plain(value))),
        Scalar::Any if value.is_array() || value.is_object() => {
            Err(format!("expected any scalar, got &{{{}}}", go_fmt::plain(value)))
        }
        _ => Ok(()),
    }
}

/// Every field and item that the value mentions.
pub(crate) fn field_set(ty: Ty<'_>, value: &Value) -> FieldSet {
    let mut node = Node::default();
    collect(ty, value, &mut node);
    node.children
}

fn collect(ty: Ty<'_>, value: &Value, node: &mut Node) {
    match ty.shape(Some(value)) {
        Shape::Scalar | Shape::Atomic => node.member = true,
        Shape::Map => {
            let Value::Object(object) = value else { return };
            for (name, inner) in object {
                let field = ty.field(name);
                let mut child = Node::default();
                collect(field.ty, inner, &mut child);
                let empty = inner.is_null() || inner.as_object().is_some_and(Map::is_empty);
                child.member |= empty || !field.named;
                if child.member || !child.children.0.is_empty() {
                    node.children.0.insert(PathElement::field(name), child);
                }
            }
        }
        Shape::List { keys, items } => {
            let Value::Array(list) = value else { return };
            let mut found: BTreeMap<PathElement, Node> = BTreeMap::new();
            for item in list {
                let Ok(element) = items.item_element(keys, item) else { continue };
                let mut child = Node { member: true, children: FieldSet::new() };
                match found.get_mut(&element) {
                    // Items that look the same cannot be owned apart: only the key is.
                    Some(first) => first.children.0.clear(),
                    None => {
                        collect(items, item, &mut child);
                        found.insert(element, child);
                    }
                }
            }
            node.children.0.append(&mut found);
        }
    }
}

/// Makes every named field that the set goes through a member, so that removing its last child removes it too.
pub(crate) fn with_named_fields(set: &FieldSet, ty: Option<Ty<'_>>) -> FieldSet {
    let nodes = set.0.iter().map(|(element, node)| {
        let (ty, named) = match (element, ty) {
            (PathElement::Field(name), Some(ty)) if !matches!(ty.shape(None), Shape::Scalar) => {
                let field = ty.field(name);
                (Some(field.ty), field.named)
            }
            (PathElement::Key(_), Some(ty)) => match ty.shape(Some(&Value::Array(Vec::new()))) {
                Shape::List { items, .. } => (Some(items), false),
                _ => (None, false),
            },
            _ => (None, false),
        };
        let member = node.member || (named && !node.children.0.is_empty());
        (element.clone(), Node { member, children: with_named_fields(&node.children, ty) })
    });
    FieldSet(nodes.collect())
}

/// Owners of parts of a list or object that the schema has made one unit since then own the whole.
pub(crate) fn reconcile(set: &mut FieldSet, ty: Ty<'_>) {
    for (element, node) in &mut set.0 {
        if node.children.0.is_empty() {
            continue;
        }
        let inner = match element {
            PathElement::Field(name) => {
                let field = ty.field(name);
                if !field.allowed {
                    continue;
                }
                field.ty
            }
            _ => match ty.shape(Some(&Value::Array(Vec::new()))) {
                Shape::List { items, .. } => items,
                _ => continue,
            },
        };
        match inner {
            Ty::Known { schema, .. } => {
                let atomic = match schema.ty {
                    Some(Type::Array) => matches!(inner.shape(None), Shape::Atomic),
                    _ => schema.atomic_map,
                };
                if atomic {
                    node.member = true;
                    node.children.0.clear();
                } else {
                    reconcile(&mut node.children, inner);
                }
            }
            Ty::Deduced | Ty::Unit => {}
        }
    }
}
