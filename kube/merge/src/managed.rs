//! `metadata.managedFields`: the owners of fields.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::field_set::FieldSet;

/// The kind of write by which a manager owns fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// The identity of an owner. Appliers are the same owner in all versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ManagerId {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    /// Empty for an applier.
    pub(crate) api_version: String,
    pub(crate) subresource: String,
}

impl ManagerId {
    pub(crate) fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: if operation == Operation::Apply { String::new() } else { api_version.to_owned() },
            subresource: subresource.to_owned(),
        }
    }

    /// The owner as conflicts name it.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

/// The fields of one owner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owned {
    pub(crate) set: FieldSet,
    /// The encoded fields of an owner that the present write does not concern; `set` is empty then.
    pub(crate) untouched: Option<Value>,
    pub(crate) api_version: String,
    pub(crate) time: Option<Timestamp>,
}

impl Owned {
    pub(crate) fn of(set: FieldSet, api_version: &str) -> Self {
        Self { set, untouched: None, api_version: api_version.to_owned(), time: None }
    }
}

/// All owners of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Managed(pub(crate) BTreeMap<ManagerId, Owned>);

/// Update entries beyond this number are folded into one, oldest first.
const MAX_UPDATE_MANAGERS: usize = 10;
const OLD_UPDATES_MANAGER: &str = "ancient-changes";

impl Managed {
    /// Reads the entries of an object.
    pub(crate) fn decode(entries: &[Value]) -> Result<Self, String> {
        let mut managed = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let (id, owned) = decode_entry(index, entry)?;
            managed.0.insert(id, owned);
        }
        Ok(managed)
    }

    /// As [`Managed::decode`], but leaves the fields of owners encoded that the changes do not concern.
    pub(crate) fn decode_touched(entries: &[Value], changes: &[&FieldSet], writer: &ManagerId) -> Result<Self, String> {
        let mut managed = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let (id, mut owned) = decode_header(index, entry)?;
            let fields = entry.get("fieldsV1").unwrap_or(&Value::Null);
            if id == *writer || changes.iter().any(|set| set.may_touch(fields)) {
                owned.set = decode_fields(entry)?;
            } else {
                owned.untouched = Some(fields.clone());
            }
            managed.0.insert(id, owned);
        }
        Ok(managed)
    }

    /// Reads the entries of an object; an object without any has none.
    pub(crate) fn of(object: Option<&Value>) -> Result<Self, String> {
        entries(object).map_or_else(|| Ok(Self::default()), |entries| Self::decode(entries))
    }

    /// The entries in the server's order: appliers first, then by age, then by name.
    pub(crate) fn encode(self) -> Vec<Value> {
        let mut sorted: Vec<(ManagerId, Owned)> = self.0.into_iter().collect();
        sorted.sort_by(|(a, x), (b, y)| {
            let seconds = |owned: &Owned| owned.time.map_or(0, Timestamp::as_second);
            (a.operation, seconds(x), &a.manager, &x.api_version, &a.subresource).cmp(&(
                b.operation,
                seconds(y),
                &b.manager,
                &y.api_version,
                &b.subresource,
            ))
        });
        sorted.into_iter().map(|(id, owned)| encode_entry(id, owned)).collect()
    }

    /// Writes the entries into an object.
    pub(crate) fn store(self, object: &mut Value) {
        set_entries(object, (!self.0.is_empty()).then(|| self.encode()));
    }

    /// Folds the oldest Update entries of each version into one while there are too many.
    pub(crate) fn cap_updates(&mut self) {
        let mut updaters: Vec<(i64, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, owned)| (owned.time.map_or(0, Timestamp::as_second), id.clone()))
            .collect();
        if updaters.len() <= MAX_UPDATE_MANAGERS {
            return;
        }
        updaters.sort();
        for owned in self.0.values_mut() {
            if let Some(fields) = owned.untouched.take() {
                owned.set = FieldSet::from_fields_v1(&fields).unwrap_or_default();
            }
        }
        let mut count = updaters.len();
        let mut first_of: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updaters {
            if count <= MAX_UPDATE_MANAGERS {
                return;
            }
            let Some(version) = self.0.get(&id).map(|owned| owned.api_version.clone()) else { continue };
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, id);
                continue;
            };
            let bucket = ManagerId::new(OLD_UPDATES_MANAGER, Operation::Update, &version, "");
            if !self.0.contains_key(&bucket)
                && let Some(owned) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), owned);
            }
            if bucket == id {
                continue;
            }
            if let Some(owned) = self.0.remove(&id)
                && let Some(old) = self.0.get_mut(&bucket)
            {
                old.set.add(&owned.set);
                old.time = owned.time;
                count -= 1;
            }
        }
    }
}

fn decode_entry(index: usize, entry: &Value) -> Result<(ManagerId, Owned), String> {
    let (id, mut owned) = decode_header(index, entry)?;
    owned.set = decode_fields(entry)?;
    Ok((id, owned))
}

fn decode_fields(entry: &Value) -> Result<FieldSet, String> {
    match entry.get("fieldsV1") {
        None | Some(Value::Null) => Ok(FieldSet::new()),
        Some(fields) => FieldSet::from_fields_v1(fields).map_err(|e| format!("error decoding set: {e}")),
    }
}

/// Everything of an entry but its fields.
fn decode_header(index: usize, entry: &Value) -> Result<(ManagerId, Owned), String> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    if text("apiVersion").is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
        other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {index}")),
    }
    let time = match entry.get("time") {
        None | Some(Value::Null) => None,
        Some(time) => Some(time.as_str().and_then(|t| t.parse().ok()).ok_or("time must be an RFC 3339 timestamp")?),
    };
    let api_version = text("apiVersion").to_owned();
    let id = ManagerId::new(text("manager"), operation, &api_version, text("subresource"));
    Ok((id, Owned { set: FieldSet::new(), untouched: None, api_version, time }))
}

fn encode_entry(id: ManagerId, owned: Owned) -> Value {
    let mut entry = Map::new();
    let operation = match id.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    entry.insert("apiVersion".to_owned(), json!(owned.api_version));
    entry.insert("fieldsType".to_owned(), json!("FieldsV1"));
    let fields = owned.untouched.unwrap_or_else(|| owned.set.to_fields_v1());
    entry.insert("fieldsV1".to_owned(), fields);
    entry.insert("operation".to_owned(), json!(operation));
    if !id.manager.is_empty() {
        entry.insert("manager".to_owned(), json!(id.manager));
    }
    if !id.subresource.is_empty() {
        entry.insert("subresource".to_owned(), json!(id.subresource));
    }
    if let Some(time) = owned.time {
        entry.insert("time".to_owned(), json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
    }
    Value::Object(entry)
}

/// The encoded entries of an object.
pub(crate) fn entries(object: Option<&Value>) -> Option<&Vec<Value>> {
    object?.get("metadata")?.get("managedFields")?.as_array()
}

/// Replaces or removes the encoded entries of an object.
pub(crate) fn set_entries(object: &mut Value, entries: Option<Vec<Value>>) {
    let Some(object) = object.as_object_mut() else { return };
    match entries {
        Some(entries) => {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("managedFields".to_owned(), Value::Array(entries));
            }
        }
        None => {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        }
    }
}

/// Whether a client asks to forget all owners: an empty list, or a list of one empty entry.
pub(crate) fn asks_for_reset(entries: &[Value]) -> bool {
    let blank = |value: &Value| value.is_null() || value.as_str().is_some_and(str::is_empty);
    match entries {
        [] => true,
        [only] => only.as_object().is_some_and(|entry| entry.values().all(blank)),
        _ => false,
    }
}

/// Gives the new object the old one's managedFields when the two differ only in their times, so that a write that
/// changes nothing stays one.
pub fn keep_times_if_unchanged(old: &Value, new: &mut Value) {
    let (Some(before), Some(after)) = (entries(Some(old)), entries(Some(new))) else { return };
    if before == after || before.len() != after.len() || !before.iter().zip(after).all(|(a, b)| same_but_for_time(a, b))
    {
        return;
    }
    if same_except(old, new, &["metadata", "managedFields"]) {
        let before = before.clone();
        set_entries(new, Some(before));
    }
}

fn same_but_for_time(a: &Value, b: &Value) -> bool {
    same_except(a, b, &["time"]) || {
        let strip = |entry: &Value| {
            let mut entry = entry.as_object().cloned().unwrap_or_default();
            entry.remove("time");
            entry
        };
        strip(a) == strip(b)
    }
}

fn same_except(a: &Value, b: &Value, path: &[&str]) -> bool {
    let (Some(a), Some(b), Some((first, rest))) = (a.as_object(), b.as_object(), path.split_first()) else {
        return true;
    };
    a.len() == b.len()
        && a.iter().all(|(name, value)| {
            b.get(name)
                .is_some_and(|other| if name == first { same_except(value, other, rest) } else { value == other })
        })
}
