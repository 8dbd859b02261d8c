//! Reading and changing JSON objects by dotted path, with Go's idea of a zero value: absent, null and empty read the same.

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::{Map, Value};

/// The value at a dotted path; null counts as absent.
pub(crate) fn get<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |at, key| at.get(key)).filter(|found| !found.is_null())
}

/// The string at a path, empty when there is none.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    get(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a path.
pub(crate) fn int(value: &Value, path: &str) -> Option<i64> {
    get(value, path).and_then(Value::as_i64)
}

/// Whether the value at a path is `true`.
pub(crate) fn flag(value: &Value, path: &str) -> bool {
    get(value, path).and_then(Value::as_bool).unwrap_or(false)
}

/// The items at a path, none when there is no list.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    get(value, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The fields of the object at a path, none when there is no object.
pub(crate) fn entries<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    get(value, path).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a map or list is absent or has nothing in it.
pub(crate) fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}

/// The object at a key, made if it is not there.
pub(crate) fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let fields = value.as_object_mut()?;
    let child = fields.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child.is_object().then_some(child)
}

/// The items at a dotted path, to change.
pub(crate) fn items_mut<'a>(value: &'a mut Value, path: &str) -> std::slice::IterMut<'a, Value> {
    let found = path.split('.').try_fold(value, |at, key| at.get_mut(key));
    match found.and_then(Value::as_array_mut) {
        Some(items) => items.iter_mut(),
        None => Default::default(),
    }
}

/// The value at a dotted path, to change; null counts as absent.
pub(crate) fn get_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |at, key| at.get_mut(key)).filter(|found| !found.is_null())
}

/// Sets a field that is absent, null or an empty string.
pub(crate) fn default(value: &mut Value, key: &str, to: impl Into<Value>) {
    if let Some(fields) = value.as_object_mut() {
        let missing = fields.get(key).is_none_or(|now| now.is_null() || now.as_str() == Some(""));
        if missing {
            fields.insert(key.to_owned(), to.into());
        }
    }
}

/// Sets a number that is absent or zero.
pub(crate) fn default_nonzero(value: &mut Value, key: &str, to: i64) {
    if let Some(fields) = value.as_object_mut()
        && fields.get(key).and_then(Value::as_i64).unwrap_or(0) == 0
    {
        fields.insert(key.to_owned(), to.into());
    }
}

/// Sets a field.
pub(crate) fn set(value: &mut Value, key: &str, to: impl Into<Value>) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(key.to_owned(), to.into());
    }
}

/// Drops a field.
pub(crate) fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut().and_then(|fields| fields.remove(key))
}

/// Makes a field equal to that of another object: copied, or dropped when the other has none.
pub(crate) fn keep(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => set(new, key, value.clone()),
        None => drop(remove(new, key)),
    }
}

/// A reference to something that is not there.
pub(crate) fn not_found(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
    FieldError { ty: ErrorType::NotFound, field: field.into(), value: Some(value.into()), detail: String::new() }
}

/// A value with too many bytes.
pub(crate) fn too_long(field: impl Into<String>, most: usize) -> FieldError {
    let detail = format!("may not be more than {most} bytes");
    FieldError { ty: ErrorType::TooLong, field: field.into(), value: None, detail }
}

/// A list with too many items.
pub(crate) fn too_many(field: impl Into<String>, found: usize, most: usize) -> FieldError {
    let detail = format!("must have at most {most} item{}", if most == 1 { "" } else { "s" });
    FieldError { ty: ErrorType::TooMany, field: field.into(), value: Some(found.into()), detail }
}

/// An error about a value that the real server prints as a Go struct, whose fields have an order of their own.
pub(crate) fn about_struct(
    ty: ErrorType,
    field: impl Into<String>,
    fields: &[(&str, Value)],
    detail: &str,
) -> FieldError {
    let detail = [go_struct(fields), detail.to_owned()];
    let detail = detail.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    FieldError { ty, field: field.into(), value: None, detail }
}

/// A Go struct as JSON, in the order given.
pub(crate) fn go_struct(fields: &[(&str, Value)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// One `Invalid` error per message.
pub(crate) fn invalid_each(field: &str, value: &str, messages: Vec<String>) -> impl Iterator<Item = FieldError> {
    messages.into_iter().map(move |message| FieldError::invalid(field, value, message))
}
