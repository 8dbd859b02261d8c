//! From a message on the wire to the JSON that Go would write for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::table::{Field, Message, Presence, Shape, Table, Type};
use super::wire::{Reader, Slice, Wire};

/// The nesting limit: only the schemas of custom resources are recursive, and real ones are flatter.
const MAX_DEPTH: usize = 100;

/// A message may take two bytes on the wire and a kilobyte in memory, so their number is bounded too.
const MAX_MESSAGES: usize = 400_000;

/// The second at which Go's zero time stands, which JSON cannot tell from no time.
const ZERO_TIME: i64 = -62_135_596_800;

/// Reads the messages of one body.
pub(super) struct Decoder<'t> {
    table: &'t Table,
    messages: usize,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(table: &'t Table) -> Self {
        Decoder { table, messages: 0 }
    }

    /// Reads a message's fields into `object`; what is on the wire twice is merged, as protobuf wants it.
    pub(super) fn message(
        &mut self,
        name: &str,
        raw: Slice<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), String> {
        self.messages += 1;
        if depth > MAX_DEPTH {
            return Err(format!("proto: messages nest deeper than {MAX_DEPTH} at offset {}", raw.at));
        }
        if self.messages > MAX_MESSAGES {
            return Err(format!("proto: more than {MAX_MESSAGES} messages at offset {}", raw.at));
        }
        let message = self.table.get(name).ok_or_else(|| format!("proto: unknown message {name}"))?;
        let mut reader = Reader::new(raw);
        while let Some((number, wire)) = reader.field()? {
            // An unknown field comes from a newer client: protobuf's readers pass over it.
            if let Some(field) = message.field(number) {
                self.field(name, field, wire, raw.at, depth, object)?;
            }
        }
        self.fill(message, raw.at, depth, object)
    }

    fn field(
        &mut self,
        parent: &str,
        field: &Field,
        wire: Wire<'_>,
        at: usize,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let wrong = || {
            let field = field.name.unwrap_or("embedded");
            format!("proto: wrong wireType for field {field} of {parent} at offset {at}")
        };
        let Some(name) = field.name else {
            let (Type::Message(of), Wire::Bytes(raw)) = (field.ty, wire) else { return Err(wrong()) };
            return self.message(of, raw, depth + 1, object);
        };
        match (field.shape, wire) {
            (Shape::One, wire) => {
                let before = object.remove(name);
                let value = self.value(field.ty, wire, depth, before)?.ok_or_else(wrong)?;
                if self.shown(field, &value, depth)? {
                    object.insert(name.to_owned(), value);
                }
            }
            (Shape::List, Wire::Bytes(raw)) if matches!(field.ty, Type::Int32 | Type::Int64 | Type::Bool) => {
                let mut packed = Reader::new(raw);
                while let Some(number) = packed.packed()? {
                    let value = self.value(field.ty, Wire::Varint(number), depth, None)?.ok_or_else(wrong)?;
                    push(object, name, value);
                }
            }
            (Shape::List, wire) => {
                let value = self.value(field.ty, wire, depth, None)?.ok_or_else(wrong)?;
                push(object, name, value);
            }
            (Shape::Map, Wire::Bytes(raw)) => {
                let (key, value) = self.entry(field.ty, raw, depth)?.ok_or_else(wrong)?;
                if let Value::Object(map) = object.entry(name).or_insert_with(|| json!({})) {
                    map.insert(key, value);
                }
            }
            (Shape::Map, _) => return Err(wrong()),
        }
        Ok(())
    }

    /// One entry of a map: a message of a key and a value.
    fn entry(&mut self, ty: Type, raw: Slice<'_>, depth: usize) -> Result<Option<(String, Value)>, String> {
        let (mut key, mut value) = (String::new(), None);
        let mut reader = Reader::new(raw);
        while let Some((number, wire)) = reader.field()? {
            match (number, wire) {
                (1, Wire::Bytes(raw)) => key = text(raw),
                (2, wire) => match self.value(ty, wire, depth, None)? {
                    Some(read) => value = Some(read),
                    None => return Ok(None),
                },
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.zero(ty, raw.at, depth)?,
        };
        Ok(Some((key, value)))
    }

    /// A value of a type; `None` when the wire has another kind of thing there.
    fn value(
        &mut self,
        ty: Type,
        wire: Wire<'_>,
        depth: usize,
        before: Option<Value>,
    ) -> Result<Option<Value>, String> {
        Ok(Some(match (ty, wire) {
            (Type::Bool, Wire::Varint(number)) => Value::Bool(number != 0),
            // Protobuf's int32 is the low half of the varint, whatever the other bits are.
            (Type::Int32, Wire::Varint(number)) => json!(number as i32),
            (Type::Int64, Wire::Varint(number)) => json!(number as i64),
            (Type::Float64, Wire::Fixed64(bits)) => json!(f64::from_bits(bits)),
            (Type::String, Wire::Bytes(raw)) => Value::String(text(raw)),
            (Type::Bytes, Wire::Bytes(raw)) => Value::String(STANDARD.encode(raw.bytes)),
            (Type::Time, Wire::Bytes(raw)) => time(raw, 0)?,
            (Type::MicroTime, Wire::Bytes(raw)) => time(raw, 6)?,
            (Type::Quantity, Wire::Bytes(raw)) => Value::String(first_bytes(raw)?.map_or("0".into(), text)),
            (Type::IntOrString, Wire::Bytes(raw)) => int_or_string(raw)?,
            (Type::Json, Wire::Bytes(raw)) => raw_json(raw)?,
            (Type::Strings, Wire::Bytes(raw)) => strings(raw)?,
            (Type::Message(of), Wire::Bytes(raw)) => {
                let mut object = match before {
                    Some(Value::Object(object)) => object,
                    _ => Map::new(),
                };
                self.message(of, raw, depth + 1, &mut object)?;
                match self.table.get(of) {
                    Some(message) if message.oneof => one_of(message, object),
                    _ => Value::Object(object),
                }
            }
            _ => return Ok(None),
        }))
    }

    fn zero(&mut self, ty: Type, at: usize, depth: usize) -> Result<Value, String> {
        let wire = match ty {
            Type::Bool | Type::Int32 | Type::Int64 => Wire::Varint(0),
            Type::Float64 => Wire::Fixed64(0),
            _ => Wire::Bytes(Slice { bytes: &[], at }),
        };
        Ok(self.value(ty, wire, depth, None)?.unwrap_or_default())
    }

    /// Whether Go's JSON would have the field with this value.
    fn shown(&mut self, field: &Field, value: &Value, depth: usize) -> Result<bool, String> {
        let zero = match value {
            Value::Null => return Ok(false),
            Value::Bool(set) => !set,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(string) => string.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(_) => field.presence == Presence::OmitZero && *value == self.zero(field.ty, 0, depth)?,
        };
        Ok(!zero || matches!(field.presence, Presence::Always | Presence::Pointer))
    }

    /// Go writes zero values that are not marked as optional, and every struct: so does a JSON client.
    fn fill(
        &mut self,
        message: &Message,
        at: usize,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), String> {
        for field in &message.fields {
            let missing = field.name.is_none_or(|name| !object.contains_key(name));
            if !missing || field.shape != Shape::One || matches!(field.presence, Presence::Pointer | Presence::OmitZero)
            {
                continue;
            }
            match (field.name, field.ty) {
                (None, Type::Message(of)) => self.message(of, Slice { bytes: &[], at }, depth + 1, object)?,
                (None, _) | (_, Type::Bytes) => {}
                (Some(name), ty) => {
                    let value = self.zero(ty, at, depth)?;
                    if self.shown(field, &value, depth)? {
                        object.insert(name.to_owned(), value);
                    }
                }
            }
        }
        Ok(())
    }
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    if let Value::Array(list) = object.entry(name).or_insert_with(|| json!([])) {
        list.push(value);
    }
}

/// The field of a `oneof` message: the last one that is set.
fn one_of(message: &Message, mut object: Map<String, Value>) -> Value {
    let names = message.fields.iter().rev().filter_map(|field| field.name);
    names.into_iter().find_map(|name| object.remove(name)).unwrap_or_default()
}

/// Go's JSON writer puts the replacement character where a string is not UTF-8.
fn text(raw: Slice<'_>) -> String {
    String::from_utf8_lossy(raw.bytes).into_owned()
}

/// The bytes of a message's field 1.
fn first_bytes(raw: Slice<'_>) -> Result<Option<Slice<'_>>, String> {
    let mut found = None;
    let mut reader = Reader::new(raw);
    while let Some((number, wire)) = reader.field()? {
        if let (1, Wire::Bytes(bytes)) = (number, wire) {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// The numbers of a message's fields 1 and 2.
fn numbers(raw: Slice<'_>) -> Result<(i64, i64), String> {
    let mut found = (0, 0);
    let mut reader = Reader::new(raw);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Varint(value)) => found.0 = value as i64,
            (2, Wire::Varint(value)) => found.1 = value as i64,
            _ => {}
        }
    }
    Ok(found)
}

fn time(raw: Slice<'_>, digits: usize) -> Result<Value, String> {
    let (seconds, nanos) = numbers(raw)?;
    if raw.bytes.is_empty() || (seconds, nanos) == (ZERO_TIME, 0) {
        return Ok(Value::Null);
    }
    // Whole seconds are all that a Time has in JSON, so a fraction on the wire is not read.
    let nanos = if digits == 0 { 0 } else { nanos as i32 / 1000 * 1000 };
    let at = raw.at;
    let moment = Timestamp::new(seconds, nanos).map_err(|_| format!("proto: time out of range at offset {at}"))?;
    Ok(Value::String(if digits == 0 { moment.to_string() } else { format!("{moment:.digits$}") }))
}

fn int_or_string(raw: Slice<'_>) -> Result<Value, String> {
    let (kind, number) = numbers(raw)?;
    if kind == 0 {
        return Ok(json!(number as i32));
    }
    let mut string = String::new();
    let mut reader = Reader::new(raw);
    while let Some((field, wire)) = reader.field()? {
        if let (3, Wire::Bytes(bytes)) = (field, wire) {
            string = text(bytes);
        }
    }
    Ok(Value::String(string))
}

fn raw_json(raw: Slice<'_>) -> Result<Value, String> {
    match first_bytes(raw)? {
        Some(json) if !json.bytes.is_empty() => {
            serde_json::from_slice(json.bytes).map_err(|error| format!("raw JSON at offset {}: {error}", json.at))
        }
        _ => Ok(Value::Null),
    }
}

fn strings(raw: Slice<'_>) -> Result<Value, String> {
    let mut list = Vec::new();
    let mut reader = Reader::new(raw);
    while let Some((number, wire)) = reader.field()? {
        if let (1, Wire::Bytes(item)) = (number, wire) {
            list.push(Value::String(text(item)));
        }
    }
    Ok(Value::Array(list))
}
