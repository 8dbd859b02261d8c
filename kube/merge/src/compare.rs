//! The changes between two versions of an object, as sets of field paths.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::field_set::FieldSet;
use crate::path::{PathElement, same_value};
use crate::typed::{Shape, Ty};

/// The differences between two values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) added: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Comparison {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Forgets the differences at and below these paths.
    pub(crate) fn without(self, paths: &FieldSet) -> Self {
        Self {
            added: self.added.recursive_difference(paths),
            modified: self.modified.recursive_difference(paths),
            removed: self.removed.recursive_difference(paths),
        }
    }

    /// The paths that hold a new value.
    pub(crate) fn written(&self) -> FieldSet {
        self.added.clone().union(&self.modified)
    }
}

/// Compares two objects, leaving their managedFields out.
///
/// `built_in` says that the kind is one of the server's own: its nested structures exist even when nothing in them
/// is set, so that filling one does not add it.
pub(crate) fn compare(ty: Ty<'_>, old: &Value, new: &Value, built_in: bool) -> Result<Comparison, String> {
    let mut walk = Walk { out: Comparison::default(), path: Vec::new(), built_in };
    walk.visit(ty, Some(old), Some(new))?;
    Ok(walk.out)
}

/// Fields of built-in kinds that are structures by value, not by pointer, and not written as one unit.
const STRUCTURES: &[&str] = &[
    "acceptedNames",
    "daemonEndpoints",
    "deprecatedSource",
    "jobTemplate",
    "kubeletEndpoint",
    "lastState",
    "loadBalancer",
    "metadata",
    "names",
    "nodeInfo",
    "source",
    "spec",
    "state",
    "status",
    "strategy",
    "template",
    "updateStrategy",
];

fn is_structure(name: &str, ty: Ty<'_>) -> bool {
    // The resources of a volume claim are a structure by value; those of pods, which have claims, are not always.
    STRUCTURES.contains(&name) || (name == "resources" && !ty.field("claims").named)
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
static EMPTY_LIST: LazyLock<Value> = LazyLock::new(|| Value::Array(Vec::new()));

struct Walk {
    out: Comparison,
    path: Vec<PathElement>,
    built_in: bool,
}

impl Walk {
    /// Compares one value; the caller has made sure that the two differ, or one is missing.
    fn visit(&mut self, ty: Ty<'_>, old: Option<&Value>, new: Option<&Value>) -> Result<(), String> {
        let leaf = match (ty.shape(new.or(old)), ty.shape(old.or(new))) {
            (Shape::Scalar | Shape::Atomic, Shape::Scalar | Shape::Atomic) => self.leaf(old, new),
            (Shape::Map, Shape::Map) => self.map(ty, old, new)?,
            (Shape::List { keys, items }, Shape::List { .. }) => self.list(keys, items, old, new)?,
            // The value became another kind of thing: all of the old went, all of the new came.
            _ => {
                self.visit_alone(ty, old, false)?;
                self.visit_alone(ty, new, true)?;
                self.leaf(old, new)
            }
        };
        if !leaf {
            match (old, new) {
                (None, _) => self.out.added.insert(&self.path),
                (_, None) => self.out.removed.insert(&self.path),
                _ => {}
            }
        }
        Ok(())
    }

    fn visit_alone(&mut self, ty: Ty<'_>, value: Option<&Value>, is_new: bool) -> Result<(), String> {
        let (old, new) = if is_new { (None, value) } else { (value, None) };
        match ty.shape(value) {
            Shape::Map => self.map(ty, old, new).map(drop),
            Shape::List { keys, items } => self.list(keys, items, old, new).map(drop),
            Shape::Scalar | Shape::Atomic => Ok(()),
        }
    }

    /// Compares two atomic values. Always true: the path needs no further comparison.
    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> bool {
        match (old, new) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            (Some(old), Some(new)) if !same_value(old, new) => self.out.modified.insert(&self.path),
            _ => {}
        }
        true
    }

    fn map(&mut self, ty: Ty<'_>, old: Option<&Value>, new: Option<&Value>) -> Result<bool, String> {
        let old_fields = old.and_then(Value::as_object);
        let new_fields = new.and_then(Value::as_object);
        if old_fields.is_none_or(Map::is_empty) && new_fields.is_none_or(Map::is_empty) {
            return Ok(self.leaf(old, new));
        }
        for (name, value) in old_fields.into_iter().flatten() {
            let other = new_fields.and_then(|fields| fields.get(name));
            self.field(ty, name, Some(value), other, new_fields.is_some())?;
        }
        for (name, value) in new_fields.into_iter().flatten() {
            if old_fields.is_none_or(|fields| !fields.contains_key(name)) {
                self.field(ty, name, None, Some(value), old_fields.is_some())?;
            }
        }
        Ok(false)
    }

    /// Compares one field; `in_both` says that both parents exist.
    fn field(
        &mut self,
        ty: Ty<'_>,
        name: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        in_both: bool,
    ) -> Result<(), String> {
        if old == new || (name == "managedFields" && self.in_root_metadata()) {
            return Ok(());
        }
        let field = ty.field(name);
        let implied = match field.ty.shape(old.or(new)) {
            Shape::Map if is_structure(name, field.ty) => Some(&*EMPTY),
            // A pod's containers field exists even when it is empty.
            Shape::List { .. } if name == "containers" => Some(&*EMPTY_LIST),
            _ => None,
        };
        let implied = implied.filter(|_| self.built_in && in_both && field.named);
        let (old, new) = (old.or(implied), new.or(implied));
        self.path.push(PathElement::field(name));
        self.visit(field.ty, old, new)?;
        self.path.pop();
        Ok(())
    }

    fn in_root_metadata(&self) -> bool {
        matches!(self.path.as_slice(), [PathElement::Field(name)] if name == "metadata")
    }

    fn list(
        &mut self,
        keys: &[String],
        items: Ty<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<bool, String> {
        let old_items = old.and_then(Value::as_array);
        let new_items = new.and_then(Value::as_array);
        if old_items.is_none_or(Vec::is_empty) && new_items.is_none_or(Vec::is_empty) {
            return Ok(self.leaf(old, new));
        }
        let mut pairs: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (index, item) in old_items.into_iter().flatten().enumerate() {
            let element = items.item_element(keys, item).map_err(|e| format!("element {index}: {e}"))?;
            pairs.entry(element).or_default().0.push(item);
        }
        for (index, item) in new_items.into_iter().flatten().enumerate() {
            let element = items.item_element(keys, item).map_err(|e| format!("element {index}: {e}"))?;
            pairs.entry(element).or_default().1.push(item);
        }
        for (element, (old, new)) in pairs {
            self.path.push(element);
            self.items(items, &old, &new)?;
            self.path.pop();
        }
        Ok(false)
    }

    /// Compares the items that share a key. More than one on a side is a mistake that only updates may make; such
    /// items are one unit.
    fn items(&mut self, ty: Ty<'_>, old: &[&Value], new: &[&Value]) -> Result<(), String> {
        match (old, new) {
            ([] | [_], [] | [_]) => {
                let (old, new) = (old.first().copied(), new.first().copied());
                if old != new {
                    self.visit(ty, old, new)?;
                }
            }
            ([_, _, ..], [_, _, ..]) => {
                let same = old.len() == new.len() && old.iter().zip(new).all(|(a, b)| same_value(a, b));
                if !same {
                    self.out.modified.insert(&self.path);
                }
            }
            ([_, _, ..], _) => {
                if let Some(new) = new.first() {
                    self.visit(ty, None, Some(new))?;
                }
                self.out.removed.insert(&self.path);
            }
            _ => {
                if let Some(old) = old.first() {
                    self.visit(ty, Some(old), None)?;
                }
                self.out.added.insert(&self.path);
            }
        }
        Ok(())
    }
}
