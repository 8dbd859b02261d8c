//! Decoding into the typed form of a built-in kind, as Go's decoder does it.
//!
//! Wrong types are errors; nulls, unknown fields and empty lists and maps go; times and quantities take their one form.

use base64::Engine;
use fleetwright_syntax::Quantity;
use serde_json::{Map, Value};

use crate::{Schema, Type, text};

/// The kind of a value in messages of Go's decoder.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Brings an object of a built-in kind into its typed form. Returns the paths of unknown fields, which are dropped.
///
/// Names are matched exactly: a field in another case is unknown.
///
/// # Errors
/// The first value that the type cannot hold, as Go tells it. Go also names the struct; it is left out where the schema
/// has no [`type_name`](Schema::type_name).
pub fn typed(schema: &Schema, value: &mut Value) -> Result<Vec<String>, String> {
    typed_as(schema, value, "")
}

/// Like [`typed`], for a type whose Go name is known.
///
/// # Errors
/// As [`typed`].
pub fn typed_as(schema: &Schema, value: &mut Value, go_name: &str) -> Result<Vec<String>, String> {
    let mut decoder = Decoder { unknown: Vec::new() };
    let name = schema.type_name.as_deref().map_or(go_name, bare);
    let mut location = FieldLocation { path: String::new(), field: String::new(), owner: name.to_owned() };
    decoder.node(schema, value, &mut location)?;
    Ok(decoder.unknown)
}

/// A type's name without its package.
fn bare(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The two spellings of a location: unknown fields carry indices and keys (`list[0].x`), type errors do not (`list.x`).
struct FieldLocation {
    path: String,
    field: String,
    /// The struct that the field belongs to.
    owner: String,
}

/// The direction of a step.
#[derive(Clone, Copy, PartialEq)]
enum Step<'a> {
    Field(&'a str),
    Entry(&'a str),
    Item(usize),
}

impl FieldLocation {
    fn below<T>(&mut self, step: Step<'_>, act: impl FnOnce(&mut Self) -> T) -> T {
        let (path, field) = (self.path.len(), self.field.len());
        match step {
            Step::Item(at) => self.path.push_str(&format!("[{at}]")),
            Step::Field(name) | Step::Entry(name) => {
                if path > 0 {
                    self.path.push('.');
                }
                self.path.push_str(name);
            }
        }
        if let Step::Field(name) = step {
            if field > 0 {
                self.field.push('.');
            }
            self.field.push_str(name);
        }
        let result = act(self);
        self.path.truncate(path);
        self.field.truncate(field);
        result
    }
}

struct Decoder {
    unknown: Vec<String>,
}

impl Decoder {
    fn mismatch(&self, found: &str, location: &FieldLocation, wanted: &str) -> String {
        if location.field.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {wanted}");
        }
        let (owner, field) = (&location.owner, &location.field);
        format!("json: cannot unmarshal {found} into Go struct field {owner}.{field} of type {wanted}")
    }

    fn node(&mut self, schema: &Schema, value: &mut Value, location: &mut FieldLocation) -> Result<(), String> {
        if schema.int_or_string {
            return match value {
                Value::String(_) => Ok(()),
                Value::Number(n) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
                Value::Number(n) => Err(self.mismatch(&format!("number {}", text::number(n)), location, "int32")),
                other => Err(self.mismatch(go_kind(other), location, "int32")),
            };
        }
        if schema.format.as_deref() == Some("quantity") {
            let given = match &*value {
                Value::String(text) => text.clone(),
                Value::Number(n) => text::number(n),
                other => other.to_string(),
            };
            let quantity = Quantity::parse(given.trim()).map_err(|error| error.to_string())?;
            *value = Value::String(quantity.to_string());
            return Ok(());
        }
        match (schema.ty, &mut *value) {
            (None, _) => Ok(()),
            (Some(Type::Object), Value::Object(fields)) => self.object(schema, fields, location),
            (Some(Type::Array), Value::Array(items)) => self.array(schema, items, location),
            (Some(Type::String), Value::String(_)) => string(schema, value),
            (Some(Type::Boolean), Value::Bool(_)) | (Some(Type::Number), Value::Number(_)) => Ok(()),
            (Some(Type::Integer), Value::Number(n)) => {
                let fits = match schema.format.as_deref() {
                    Some("int32") => n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
                    _ => n.is_i64(),
                };
                if fits {
                    Ok(())
                } else {
                    Err(self.mismatch(&format!("number {}", text::number(n)), location, &go_type(schema)))
                }
            }
            (_, found) => Err(self.mismatch(go_kind(found), location, &go_type(schema))),
        }
    }

    fn object(
        &mut self,
        schema: &Schema,
        fields: &mut Map<String, Value>,
        location: &mut FieldLocation,
    ) -> Result<(), String> {
        if schema.properties.is_empty() && schema.additional.is_none() {
            // A map of anything, or a type that holds raw JSON.
            return Ok(());
        }
        let owner =
            schema.type_name.as_deref().map(|name| std::mem::replace(&mut location.owner, bare(name).to_owned()));
        let mut failure = None;
        fields.retain(|name, field| {
            if failure.is_some() {
                return true;
            }
            let Some(of) = schema.properties.get(name).or(schema.additional.as_ref()) else {
                if !schema.preserve_unknown {
                    self.unknown.push(text::child(&location.path, name));
                }
                return schema.preserve_unknown;
            };
            let is_entry = schema.additional.is_some() && !schema.properties.contains_key(name);
            if field.is_null() {
                // A null entry of a map is the zero value of its type; a null field is an absent one.
                *field = if is_entry { zero(of) } else { return of.ty.is_none() && !of.int_or_string };
                return true;
            }
            let step = if is_entry { Step::Entry(name) } else { Step::Field(name) };
            if let Err(why) = location.below(step, |location| self.node(of, field, location)) {
                failure = Some(why);
                return true;
            }
            is_entry || !is_empty(of, field) || schema.required.contains(name)
        });
        if let Some(owner) = owner {
            location.owner = owner;
        }
        failure.map_or(Ok(()), Err)
    }

    fn array(&mut self, schema: &Schema, items: &mut [Value], location: &mut FieldLocation) -> Result<(), String> {
        let Some(of) = &schema.items else { return Ok(()) };
        for (at, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = zero(of);
                continue;
            }
            location.below(Step::Item(at), |location| self.node(of, item, location))?;
        }
        Ok(())
    }
}

/// Checks and settles the strings that Go decodes into something else.
fn string(schema: &Schema, value: &mut Value) -> Result<(), String> {
    let Value::String(found) = &mut *value else { return Ok(()) };
    match schema.format.as_deref() {
        Some(format @ ("date-time" | MICRO_TIME)) => {
            if !found.is_empty() {
                *found = canonical_time(found, format == MICRO_TIME)?;
            }
            Ok(())
        }
        Some("byte") => {
            let compact: String = found.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            match base64::engine::general_purpose::STANDARD.decode(&compact) {
                Ok(_) => {
                    *found = compact;
                    Ok(())
                }
                Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => {
                    Err(format!("illegal base64 data at input byte {at}"))
                }
                Err(_) => Err(format!("illegal base64 data at input byte {}", compact.len() / 4 * 4)),
            }
        }
        _ => Ok(()),
    }
}

/// The value of a null in Go.
fn zero(schema: &Schema) -> Value {
    match schema.ty {
        _ if schema.int_or_string => Value::from(0),
        Some(Type::Object) => Value::Object(Map::new()),
        Some(Type::String) if schema.format.as_deref() == Some("quantity") => Value::from("0"),
        Some(Type::String) => Value::from(""),
        Some(Type::Integer | Type::Number) => Value::from(0),
        Some(Type::Boolean) => Value::from(false),
        Some(Type::Array) | None => Value::Null,
    }
}

/// Whether Go leaves the value out when it writes the object: empty lists, and empty maps that are not structs.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() && schema.ty.is_some(),
        Value::Object(fields) => fields.is_empty() && schema.additional.is_some(),
        _ => false,
    }
}

/// The Go type of a schema, as far as the schema determines it.
fn go_type(schema: &Schema) -> String {
    if let (Some(Type::Object), Some(name)) = (schema.ty, &schema.type_name) {
        return name.to_string();
    }
    match (schema.ty, schema.format.as_deref()) {
        (Some(Type::Integer), Some("int32")) => "int32".to_owned(),
        (Some(Type::Integer), _) => "int64".to_owned(),
        (Some(Type::Number), _) => "float64".to_owned(),
        (Some(Type::Boolean), _) => "bool".to_owned(),
        (Some(Type::String), Some("byte")) => "[]uint8".to_owned(),
        (Some(Type::String), _) => "string".to_owned(),
        (Some(Type::Array), _) => format!("[]{}", schema.items.as_deref().map_or_else(|| "struct".to_owned(), go_type)),
        (Some(Type::Object), _) => match &schema.additional {
            Some(values) => format!("map[string]{}", go_type(values)),
            None => "struct".to_owned(),
        },
        (None, _) => "interface {}".to_owned(),
    }
}

/// The format of a time that is written with exactly six digits after the second.
const MICRO_TIME: &str = "micro-time";

/// A time as the API writes it: UTC, in whole seconds or in microseconds.
fn canonical_time(given: &str, micro: bool) -> Result<String, String> {
    let layout = if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let fail = |rest: &str, want: &str| {
        let (given, rest) = (text::quote(given), text::quote(rest));
        format!("parsing time {given} as \"{layout}\": cannot parse {rest} as \"{want}\"")
    };
    // Where Go's parser stops: the piece of the layout that the text does not follow.
    let pieces: [(&str, usize); 11] = [
        ("2006", 4),
        ("-", 1),
        ("01", 2),
        ("-", 1),
        ("02", 2),
        ("T", 1),
        ("15", 2),
        (":", 1),
        ("04", 2),
        (":", 1),
        ("05", 2),
    ];
    let mut rest = given;
    for (want, width) in pieces {
        let Some(piece) = rest.get(..width) else { return Err(fail(rest, want)) };
        let literal = !want.starts_with(|c: char| c.is_ascii_digit());
        let fits = if literal { piece == want } else { piece.bytes().all(|b| b.is_ascii_digit()) };
        if !fits {
            return Err(fail(rest, want));
        }
        rest = &rest[width..];
    }
    let fraction_len = match rest.strip_prefix(['.', ',']) {
        Some(after) => after.bytes().take_while(u8::is_ascii_digit).count(),
        None => 0,
    };
    if micro && fraction_len < 6 {
        return Err(fail(rest, ".000000"));
    }
    let fraction_len = if micro { 6 } else { fraction_len };
    let zone = if fraction_len > 0 { &rest[fraction_len + 1..] } else { rest };
    let zone_fits = zone == "Z"
        || (zone.len() == 6
            && zone.starts_with(['+', '-'])
            && zone.bytes().enumerate().skip(1).all(|(at, b)| if at == 3 { b == b':' } else { b.is_ascii_digit() }));
    if !zone_fits {
        return Err(fail(zone, "Z07:00"));
    }
    let given_point = given.replace(',', ".");
    let utc = match given_point.parse::<jiff::Timestamp>() {
        Ok(stamp) => stamp.to_zoned(jiff::tz::TimeZone::UTC).datetime(),
        // The timestamps of jiff end a day and two hours before the year 9999 does, and those of Go do not.
        Err(_) => given_point
            .strip_suffix('Z')
            .and_then(|local| local.parse::<jiff::civil::DateTime>().ok())
            .ok_or_else(|| format!("parsing time {}: day out of range", text::quote(given)))?,
    };
    Ok(if micro {
        utc.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    } else {
        utc.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::from_openapi(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "required": ["must"], "properties": {
                "replicas": {"type": "integer", "format": "int32"},
                "at": {"type": "string", "format": "date-time"},
                "cpu": {"type": "string", "format": "quantity"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "must": {"type": "array", "items": {"type": "string"}},
                "port": {"x-kubernetes-int-or-string": true},
                "data": {"type": "string", "format": "byte"},
                "struct": {"type": "object", "properties": {"x": {"type": "boolean"}}}
            }}
        }}))
        .unwrap()
    }

    fn error(spec: Value) -> String {
        typed(&schema(), &mut json!({"spec": spec})).unwrap_err()
    }

    #[test]
    fn a_wrong_type_is_reported_as_go_reports_it() {
        let table = [
            (
                json!({"replicas": "3"}),
                "json: cannot unmarshal string into Go struct field .spec.replicas of type int32",
            ),
            (
                json!({"replicas": 1.5}),
                "json: cannot unmarshal number 1.5 into Go struct field .spec.replicas of type int32",
            ),
            (
                json!({"replicas": 1i64 << 40}),
                "json: cannot unmarshal number 1099511627776 into Go struct field .spec.replicas of type int32",
            ),
            (
                json!({"list": [{"a": 1}]}),
                "json: cannot unmarshal number into Go struct field .spec.list.a of type string",
            ),
            (
                json!({"labels": {"a": true}}),
                "json: cannot unmarshal bool into Go struct field .spec.labels of type string",
            ),
            (
                json!({"at": "yesterday"}),
                r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#,
            ),
            (
                json!({"cpu": true}),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (json!({"port": 1.5}), "json: cannot unmarshal number 1.5 into Go struct field .spec.port of type int32"),
            (json!({"data": "a$"}), "illegal base64 data at input byte 1"),
        ];
        for (spec, message) in table {
            assert_eq!(error(spec), message);
        }
    }

    #[test]
    fn a_struct_whose_name_is_known_is_named() {
        let container = Schema {
            ty: Some(Type::Object),
            type_name: Some("v1.Container".into()),
            properties: [("name".to_owned(), Schema { ty: Some(Type::String), ..Schema::default() }.into())].into(),
            ..Schema::default()
        };
        let list = Schema { ty: Some(Type::Array), items: Some(container.into()), ..Schema::default() };
        let pod = Schema {
            ty: Some(Type::Object),
            type_name: Some("v1.PodSpec".into()),
            properties: [("containers".to_owned(), list.into())].into(),
            ..Schema::default()
        };
        let error = |mut value: Value| typed(&pod, &mut value).unwrap_err();
        assert_eq!(
            error(json!({"containers": [{"name": 3}]})),
            "json: cannot unmarshal number into Go struct field Container.containers.name of type string"
        );
        assert_eq!(
            error(json!({"containers": "x"})),
            "json: cannot unmarshal string into Go struct field PodSpec.containers of type []v1.Container"
        );
    }

    #[test]
    fn unknown_fields_go_and_are_named_with_their_index() {
        let mut value = json!({"Spec": 1, "spec": {"list": [{"a": "x", "b": 1}], "Replicas": 2}});
        assert_eq!(typed(&schema(), &mut value).unwrap(), ["Spec", "spec.Replicas", "spec.list[0].b"]);
        assert_eq!(value, json!({"spec": {"list": [{"a": "x"}]}}));
    }

    #[test]
    fn nulls_and_empty_collections_go_unless_required() {
        let mut value = json!({"spec": {"replicas": null, "labels": {}, "list": [], "must": [], "struct": {}}});
        typed(&schema(), &mut value).unwrap();
        assert_eq!(value, json!({"spec": {"must": [], "struct": {}}}));
    }

    #[test]
    fn times_and_quantities_take_their_one_form() {
        let mut value = json!({"spec": {"at": "2024-05-06T07:08:09.5+02:00", "cpu": 0.5, "port": "http"}});
        typed(&schema(), &mut value).unwrap();
        assert_eq!(value, json!({"spec": {"at": "2024-05-06T05:08:09Z", "cpu": "500m", "port": "http"}}));
    }

    #[test]
    fn a_time_is_kept_until_the_last_second_of_the_year_9999() {
        let read = |at: &str| {
            let mut value = json!({"spec": {"at": at}});
            typed(&schema(), &mut value).map(|_| value["spec"]["at"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(read("9999-12-31T23:59:59Z").unwrap(), "9999-12-31T23:59:59Z");
        assert_eq!(read("9999-12-31T23:59:59.5Z").unwrap(), "9999-12-31T23:59:59Z");
        assert!(read("2026-02-30T00:00:00Z").unwrap_err().contains("day out of range"));
    }
}
