//! Strategic merge patch: a merge patch that knows which lists are merged by which key.

use fleetwright_schema::{PatchStrategy, Schema};
use serde_json::{Map, Value};

use crate::error::PatchError;
use crate::go_fmt;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

type Fields = Map<String, Value>;

/// Applies a strategic merge patch to an object of a built-in kind.
///
/// # Errors
/// When the patch is not an object, its directives are wrong, or an item lacks its list's merge key.
pub fn strategic_merge_patch(schema: &Schema, live: &Value, patch: &Value) -> Result<Value, PatchError> {
    let (Value::Object(live), Value::Object(patch)) = (live, patch) else {
        return Err(PatchError::BadRequest(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            fleetwright_schema::decode::go_kind(patch)
        )));
    };
    merge_map(live.clone(), patch.clone(), Some(schema)).map(Value::Object)
}

fn merge_map(mut original: Fields, mut patch: Fields, schema: Option<&Schema>) -> Result<Fields, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Fields::new()),
            _ => Err(unknown_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (key, value) in patch {
        let is_deletion = key.starts_with(DELETE_FROM_LIST);
        let name = if is_deletion { target_of(&key, DELETE_FROM_LIST)?.to_owned() } else { key };
        if value.is_null() {
            original.remove(&name);
            continue;
        }
        let Some(present) = original.remove(&name) else {
            if !is_deletion {
                original.extend(fresh(value).map(|value| (name, value)));
            }
            continue;
        };
        let field = field_of(schema, &name);
        let merged = match (present, value) {
            (Value::Object(present), Value::Object(value)) => Some(Value::Object(merge_map(present, value, field)?)),
            (Value::Array(present), Value::Array(value)) => {
                Some(Value::Array(merge_list(present, value, field, is_deletion)?))
            }
            (present, _) if is_deletion => Some(present),
            (_, value) => fresh(value),
        };
        original.extend(merged.map(|value| (name, value)));
    }
    Ok(original)
}

fn field_of<'s>(schema: Option<&'s Schema>, name: &str) -> Option<&'s Schema> {
    let schema = schema?;
    schema.properties.get(name).or(schema.additional.as_ref()).map(AsRef::as_ref)
}

/// A patch value that meets nothing: without nulls and directives; none when it is a directive itself.
fn fresh(mut value: Value) -> Option<Value> {
    discard_nulls(&mut value);
    without_directives(value)
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

/// `$retainKeys`: drops what the object has and the directive does not name.
fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<(), PatchError> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let bad = || PatchError::BadRequest("invalid patch format of retainKeys".to_owned());
    let Value::Array(keys) = directive else { return Err(bad()) };
    let retained = |name: &str| keys.iter().any(|key| key.as_str() == Some(name));
    let is_directive = |name: &str| name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER);
    if patch.iter().any(|(name, value)| !value.is_null() && !is_directive(name) && !retained(name)) {
        return Err(bad());
    }
    original.retain(|name, _| retained(name));
    Ok(())
}

/// `$setElementOrder/<list>`: merges the list and puts it in the given order.
fn merge_ordered_lists(original: &mut Fields, patch: &mut Fields, schema: Option<&Schema>) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|name| name.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = as_list(patch.remove(&directive))?;
        let name = target_of(&directive, SET_ORDER)?;
        let present = original.get(name).cloned().map(|v| as_list(Some(v))).transpose()?;
        let patched = patch.get(name).cloned().map(|v| as_list(Some(v))).transpose()?;
        let field = field_of(schema, name);
        let key = field.and_then(|field| field.patch.merge_key.as_deref());
        check_order(patched.as_deref().unwrap_or_default(), &order, key)?;
        let merged = match (&present, &patched) {
            (None, None) => continue,
            (Some(present), None) => present.clone(),
            (None, Some(patched)) => patched.iter().cloned().filter_map(without_directives).collect(),
            (Some(present), Some(patched)) => merge_list(present.clone(), patched.clone(), field, false)?,
        };
        let present = present.unwrap_or_default();
        element_kind(&present, patched.as_deref().unwrap_or_default())?;
        let (mine, others) = partition(merged, &order, key)?;
        let server_order = order_after_merge(present, patched.unwrap_or_default(), key)?;
        original.insert(name.to_owned(), Value::Array(in_order(mine, others, &order, &server_order, key)?));
        patch.remove(name);
    }
    Ok(())
}

/// The live order that other items are placed by. Where the patch deletes items, the real server sees the items that
/// it adds take their place in it.
fn order_after_merge(present: Vec<Value>, patched: Vec<Value>, key: Option<&str>) -> Result<Vec<Value>, PatchError> {
    let deletes = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
    let replaces = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace");
    let Some(key) = key.filter(|_| patched.iter().any(deletes) && !patched.iter().any(replaces)) else {
        return Ok(present);
    };
    let length = present.len();
    let (mut kept, plain) = special_items(present, patched, key)?;
    for item in plain {
        if position(&kept, key, identity(&item, Some(key))?)?.is_none() {
            kept.push(item);
        }
    }
    kept.truncate(length);
    Ok(kept)
}

fn as_list(value: Option<Value>) -> Result<Vec<Value>, PatchError> {
    match value {
        Some(Value::Array(items)) => Ok(items),
        other => {
            let actual = go_fmt::type_name(&other.unwrap_or(Value::Null));
            Err(PatchError::Internal(format!("expected a []interface {{}}, but received a {actual}")))
        }
    }
}

/// The list that a directive is about: what stands after its slash.
fn target_of<'k>(key: &'k str, prefix: &str) -> Result<&'k str, PatchError> {
    match key.split_once('/') {
        Some((found, name)) if found == prefix => Ok(name),
        _ if prefix == DELETE_FROM_LIST => {
            Err(PatchError::BadRequest("invalid patch format of primitive list".to_owned()))
        }
        _ => Err(PatchError::BadRequest("invalid patch format of setElementOrder list".to_owned())),
    }
}

/// The patch's items must come in the order that the directive gives, and all be named by it.
fn check_order(patched: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if patched.is_empty() || order.is_empty() {
        return Ok(());
    }
    let is_deletion = |item: &&Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
    let mut items = patched.iter().filter(|item| key.is_none() || !is_deletion(item)).peekable();
    for wanted in order {
        while items.next_if(|item| item.get(DIRECTIVE).is_some()).is_some() {}
        let Some(item) = items.peek() else { break };
        if identity(item, key)? == identity(wanted, key)? {
            items.next();
        }
    }
    if items.peek().is_some() {
        return Err(PatchError::Internal(format!(
            "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
            go_fmt::list(patched),
            go_fmt::list(order)
        )));
    }
    Ok(())
}

/// What tells an item from others: its merge key's value, or itself in a list of scalars.
fn identity<'v>(item: &'v Value, key: Option<&str>) -> Result<&'v Value, PatchError> {
    let Some(key) = key else { return Ok(item) };
    let Value::Object(fields) = item else {
        return Err(PatchError::Internal(format!(
            "expected a map[string]interface {{}}, but received a {}",
            go_fmt::type_name(item)
        )));
    };
    fields.get(key).ok_or_else(|| missing_key(item, key))
}

fn missing_key(item: &Value, key: &str) -> PatchError {
    PatchError::Internal(format!("map: {} does not contain declared merge key: {key}", go_fmt::plain(item)))
}

fn unknown_directive(directive: &Value, patch: &Fields) -> PatchError {
    let patch = go_fmt::plain(&Value::Object(patch.clone()));
    PatchError::Internal(format!("unknown patch type: {} in map: {patch}", go_fmt::plain(directive)))
}

fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: Option<&Schema>,
    is_deletion: bool,
) -> Result<Vec<Value>, PatchError> {
    let none = PatchStrategy::default();
    let strategy = field.map_or(&none, |field| &field.patch);
    if !strategy.merge && !is_deletion {
        return Ok(patch);
    }
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    if element_kind(&original, &patch)? != "map[string]interface {}" {
        if is_deletion {
            return Ok(original.into_iter().filter(|item| !patch.contains(item)).collect());
        }
        let mut both = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(&patch) {
            if !both.contains(item) {
                both.push(item.clone());
            }
        }
        let (mine, others) = partition(both, &patch, None)?;
        return in_order(mine, others, &patch, &original, None);
    }
    let Some(key) = strategy.merge_key.as_deref() else {
        return Err(PatchError::Internal("cannot merge lists without merge key for struct".to_owned()));
    };
    let items = field.and_then(|field| field.items.as_deref());
    let (mut merged, patch) = special_items(original, patch, key)?;
    let before = merged.clone();
    for item in &patch {
        let id = identity(item, Some(key))?;
        match position(&merged, key, id)? {
            Some(index) => {
                if let (Some(slot), Value::Object(over)) = (merged.get_mut(index), item) {
                    let present = slot.as_object().cloned().unwrap_or_default();
                    *slot = Value::Object(merge_map(present, over.clone(), items)?);
                }
            }
            None => merged.push(item.clone()),
        }
    }
    let (mine, others) = partition(merged, &patch, Some(key))?;
    in_order(mine, others, &patch, &before, Some(key))
}

/// Handles the items that are directives: `$patch: delete` removes from the original, `$patch: replace` makes the
/// rest of the patch the new list.
fn special_items(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            plain.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let id = item.get(key).ok_or_else(|| missing_key(&item, key))?;
                while let Some(index) = position(&original, key, id)? {
                    original.remove(index);
                }
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(PatchError::Internal("merging lists cannot yet be specified in the patch".to_owned()));
            }
            _ => return Err(unknown_directive(directive, item.as_object().unwrap_or(&Fields::new()))),
        }
    }
    Ok(if replace { (plain, Vec::new()) } else { (original, plain) })
}

fn position(items: &[Value], key: &str, id: &Value) -> Result<Option<usize>, PatchError> {
    for (index, item) in items.iter().enumerate() {
        let Value::Object(fields) = item else {
            return Err(PatchError::Internal(format!("value for key {index} is not a map")));
        };
        if fields.get(key) == Some(id) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The Go type that all items share.
fn element_kind(original: &[Value], patch: &[Value]) -> Result<&'static str, PatchError> {
    let mut kinds = original.iter().chain(patch).map(go_fmt::type_name);
    let Some(first) = kinds.next() else {
        return Err(PatchError::Internal("no elements in any of the given slices".to_owned()));
    };
    if first == "[]interface {}" {
        return Err(PatchError::Unprocessable("lists of lists are not supported".to_owned()));
    }
    if kinds.any(|kind| kind != first) {
        return Err(PatchError::Internal(format!(
            "list element types are not identical: [{} {}]",
            go_fmt::list(original),
            go_fmt::list(patch)
        )));
    }
    Ok(first)
}

/// Splits the items into those that the other list names and those that it does not.
fn partition(items: Vec<Value>, by: &[Value], key: Option<&str>) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut named = Vec::new();
    let mut others = Vec::new();
    for item in items {
        let id = identity(&item, key)?;
        let found = match key {
            Some(key) => position(by, key, id)?.is_some(),
            None => by.contains(id),
        };
        if found { named.push(item) } else { others.push(item) }
    }
    Ok((named, others))
}

/// Sorts by place. The real server puts an item without a place before its left neighbour, which turns short lists
/// without any places around; clients see that order.
fn sort_as_the_server(items: &mut [(Option<usize>, Value)]) {
    if items.len() > 20 {
        return items.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
    }
    for i in 1..items.len() {
        for j in (1..=i).rev() {
            let before = match (items[j].0, items[j - 1].0) {
                (Some(this), Some(left)) => this < left,
                _ => true,
            };
            if !before {
                break;
            }
            items.swap(j, j - 1);
        }
    }
}

/// The patch's items in the patch's order, with the server's other items kept before the neighbours that they stood
/// before.
fn in_order(
    mine: Vec<Value>,
    others: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, PatchError> {
    for item in mine.iter().chain(&others).chain(patch_order).chain(server_order) {
        identity(item, key)?;
    }
    let place = |order: &[Value], item: &Value| {
        let id = identity(item, key).ok();
        order.iter().position(|other| identity(other, key).ok() == id)
    };
    let sorted = |items: Vec<Value>, order: &[Value]| {
        let mut items: Vec<(Option<usize>, Value)> =
            items.into_iter().map(|item| (place(order, &item), item)).collect();
        sort_as_the_server(&mut items);
        items.into_iter().map(|(_, item)| item).collect::<Vec<Value>>()
    };
    let mut left = sorted(others, server_order).into_iter().peekable();
    let mut out = Vec::new();
    for item in sorted(mine, patch_order) {
        let here = place(server_order, &item);
        while let Some(other) = left.peek() {
            match (place(server_order, other), here) {
                (Some(before), Some(here)) if before < here => out.extend(left.next()),
                _ => break,
            }
        }
        out.push(item);
    }
    out.extend(left);
    Ok(out)
}
