//! Merging an applied configuration into an object, and taking fields out of one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::field_set::FieldSet;
use crate::path::PathElement;
use crate::typed::{Shape, Ty};

/// The live value with the applied one laid over it. Nothing is removed.
pub(crate) fn merge(ty: Ty<'_>, live: &Value, applied: &Value) -> Result<Value, String> {
    Ok(merge_value(ty, Some(live), Some(applied), 0)?.unwrap_or(Value::Null))
}

/// Deeper values than the parser lets in are refused rather than walked.
const MAX_DEPTH: usize = 512;

fn merge_value(
    ty: Ty<'_>,
    live: Option<&Value>,
    applied: Option<&Value>,
    depth: usize,
) -> Result<Option<Value>, String> {
    if depth > MAX_DEPTH {
        return Err("exceeded max depth".to_owned());
    }
    let Some(over) = applied else { return Ok(live.cloned()) };
    match ty.shape(applied) {
        Shape::Scalar | Shape::Atomic => Ok(Some(over.clone())),
        Shape::Map => {
            let live_fields = live.and_then(Value::as_object).filter(|fields| !fields.is_empty());
            let fields = over.as_object().filter(|fields| !fields.is_empty());
            if live_fields.is_none() && fields.is_none() {
                return Ok(Some(over.clone()));
            }
            let mut out = Map::new();
            for (name, value) in live_fields.into_iter().flatten() {
                let above = fields.and_then(|fields| fields.get(name));
                if let Some(merged) = merge_value(ty.field(name).ty, Some(value), above, depth + 1)? {
                    out.insert(name.clone(), merged);
                }
            }
            for (name, value) in fields.into_iter().flatten() {
                if live_fields.is_none_or(|fields| !fields.contains_key(name))
                    && let Some(merged) = merge_value(ty.field(name).ty, None, Some(value), depth + 1)?
                {
                    out.insert(name.clone(), merged);
                }
            }
            Ok((!out.is_empty()).then_some(Value::Object(out)))
        }
        Shape::List { keys, items } => {
            let live_items = live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let applied_items = over.as_array().map_or(&[][..], Vec::as_slice);
            if live_items.is_empty() && applied_items.is_empty() {
                return Ok(Some(over.clone()));
            }
            let out = merge_items(keys, items, live_items, applied_items, depth)?;
            Ok((!out.is_empty()).then_some(Value::Array(out)))
        }
    }
}

/// Merges two lists whose items have keys. Items in both come in the order of the applied list; items that only
/// the live list has stay near their neighbours.
fn merge_items(
    keys: &[String],
    ty: Ty<'_>,
    live: &[Value],
    applied: &[Value],
    depth: usize,
) -> Result<Vec<Value>, String> {
    let (applied_order, in_applied) = index(keys, ty, applied, false)?;
    let (live_order, in_live) = index(keys, ty, live, true)?;
    let mut shared = applied_order.iter().filter(|element| in_live.contains_key(element));
    let mut next_shared = shared.next();
    let mut done: BTreeSet<&PathElement> = BTreeSet::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut l, mut a) = (0, 0);
    loop {
        let (left, right) = (live_order.get(l), applied_order.get(a));
        if left.is_none() && right.is_none() {
            return Ok(out);
        }
        if let (Some(left), Some(right)) = (left, right) {
            if left == right {
                done.insert(right);
                out.extend(merge_pair(ty, right, &in_live, &in_applied, depth)?);
                l += 1;
                a += 1;
                next_shared = shared.next();
                continue;
            }
            if in_applied.contains_key(left) && next_shared.is_some_and(|next| next != left) {
                l += 1;
                continue;
            }
        }
        if let Some(left) = left {
            if !in_applied.contains_key(left) {
                out.extend(live.get(l).cloned());
                l += 1;
                continue;
            }
            if done.contains(left) {
                l += 1;
            }
        }
        if let Some(right) = right {
            done.insert(right);
            out.extend(merge_pair(ty, right, &in_live, &in_applied, depth)?);
            a += 1;
            if next_shared == Some(right) {
                next_shared = shared.next();
            }
        }
    }
}

type Index<'v> = BTreeMap<PathElement, Option<&'v Value>>;

/// The items' steps in order, and the items by step: none where several share one.
fn index<'v>(
    keys: &[String],
    ty: Ty<'_>,
    items: &'v [Value],
    allow_duplicates: bool,
) -> Result<(Vec<PathElement>, Index<'v>), String> {
    let mut order = Vec::with_capacity(items.len());
    let mut by_element: Index<'v> = BTreeMap::new();
    for (position, item) in items.iter().enumerate() {
        let element = ty.item_element(keys, item).map_err(|e| format!("element {position}: {e}"))?;
        if by_element.contains_key(&element) {
            if !allow_duplicates {
                return Err(format!("duplicate entries for key {element}"));
            }
            by_element.insert(element.clone(), None);
        } else {
            by_element.insert(element.clone(), Some(item));
        }
        order.push(element);
    }
    Ok((order, by_element))
}

fn merge_pair(
    ty: Ty<'_>,
    element: &PathElement,
    live: &Index<'_>,
    applied: &Index<'_>,
    depth: usize,
) -> Result<Option<Value>, String> {
    let live = live.get(element).copied().flatten();
    let applied = applied.get(element).copied().flatten();
    merge_value(ty, live, applied, depth + 1)
}

/// Takes the named fields and items out of the value. What loses its last part becomes null, as in the real server.
pub(crate) fn remove(ty: Ty<'_>, value: &mut Value, set: &FieldSet) {
    if set.0.is_empty() {
        return;
    }
    match ty.shape(Some(value)) {
        Shape::Map => {
            let Value::Object(fields) = value else { return *value = Value::Null };
            for (element, node) in &set.0 {
                let PathElement::Field(name) = element else { continue };
                if node.member {
                    fields.remove(name);
                } else if let Some(inner) = fields.get_mut(name).filter(|_| !node.children.is_empty()) {
                    remove(ty.field(name).ty, inner, &node.children);
                }
            }
            if fields.is_empty() {
                *value = Value::Null;
            }
        }
        Shape::List { keys, items: ty } => {
            let Value::Array(items) = value else { return *value = Value::Null };
            items.retain_mut(|item| {
                let Ok(element) = ty.item_element(keys, item) else { return true };
                let Some(node) = set.0.get(&element) else { return true };
                if !node.member && !node.children.is_empty() {
                    remove(ty, item, &node.children);
                }
                !node.member
            });
            if items.is_empty() {
                *value = Value::Null;
            }
        }
        Shape::Scalar | Shape::Atomic => *value = Value::Null,
    }
}

/// Drops the null fields of structures whose fields the schema knows, as reading them into their Go types does.
pub(crate) fn drop_nulls(ty: Ty<'_>, value: &mut Value) {
    if !ty.is_known() {
        return;
    }
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            for (name, value) in fields.iter_mut() {
                drop_nulls(ty.field(name).ty, value);
            }
        }
        Value::Array(items) => {
            if let Shape::List { items: ty, .. } = ty.shape(Some(&Value::Array(Vec::new()))) {
                items.iter_mut().for_each(|item| drop_nulls(ty, item));
            }
        }
        _ => {}
    }
}
