//! One step of a field path: a field, a list item by its key or value, or a list index.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Number, Value};

/// One step from a value to one of its parts.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A named field of an object.
    Field(String),
    /// An item of a list that these fields identify, sorted by name.
    Key(Vec<(String, Value)>),
    /// An item of a list of scalars.
    Value(Value),
    /// An item of a list by position.
    Index(i64),
}

impl PathElement {
    /// A named field.
    #[must_use]
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// The key under which FieldsV1 stores this step.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let object: serde_json::Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", Value::Object(object))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// Reads a FieldsV1 key; none for a kind of step that is not known, which readers must skip.
    pub(crate) fn decode(key: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = key.split_at_checked(1).filter(|_| key.len() >= 2) else {
            return Err("key must be 2 characters long:".to_owned());
        };
        let Some(rest) = rest.strip_prefix(':') else {
            return Err(format!("missing colon: {key}"));
        };
        let element = match kind {
            "f" => Self::Field(rest.to_owned()),
            "v" => Self::Value(serde_json::from_str(rest).map_err(|e| e.to_string())?),
            "k" => {
                let object: serde_json::Map<String, Value> = serde_json::from_str(rest).map_err(|e| e.to_string())?;
                let mut fields: Vec<(String, Value)> = object.into_iter().collect();
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Self::Key(fields)
            }
            "i" => Self::Index(rest.parse().map_err(|_| format!("strconv.Atoi: parsing {rest:?}: invalid syntax"))?),
            _ => return Ok(None),
        };
        Ok(Some(element))
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => compare_fields(a, b),
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", readable(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", readable(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The path as people read it: `.spec.ports[port=80,protocol="TCP"].name`.
#[must_use]
pub fn path_to_string(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

fn readable(value: &Value) -> String {
    match value {
        Value::String(s) => format!("{s:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(readable).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => fields.iter().map(|(k, v)| format!("{k}={}", readable(v))).collect(),
        other => other.to_string(),
    }
}

fn compare_fields(a: &[(String, Value)], b: &[(String, Value)]) -> Ordering {
    for ((an, av), (bn, bv)) in a.iter().zip(b) {
        let order = an.cmp(bn).then_with(|| compare_values(av, bv));
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// A total order of JSON values: numbers, strings, booleans, lists, objects, null.
pub(crate) fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            for (x, y) in a.iter().zip(b) {
                let order = compare_values(x, y);
                if order.is_ne() {
                    return order;
                }
            }
            a.len().cmp(&b.len())
        }
        (Value::Object(a), Value::Object(b)) => {
            for ((an, av), (bn, bv)) in a.iter().zip(b) {
                let order = an.cmp(bn).then_with(|| compare_values(av, bv));
                if order.is_ne() {
                    return order;
                }
            }
            a.len().cmp(&b.len())
        }
        _ => value_rank(a).cmp(&value_rank(b)),
    }
}

/// Whether two values are the same, where `1` and `1.0` are.
pub(crate) fn same_value(a: &Value, b: &Value) -> bool {
    a == b || compare_values(a, b).is_eq()
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
    }
}

fn value_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}
