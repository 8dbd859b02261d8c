//! Values at run time. Data from the object under validation stays borrowed JSON until a rule looks at it.

use crate::decl::{Decl, DeclKind, ListType};
use crate::format::Format;
use crate::semver::Semver;
use crate::time::{Time, parse_duration, parse_timestamp};
use crate::types::{self, Type};
use crate::url::Url;
use fleetwright_syntax::Quantity;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// Why an evaluation has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// The expression cost more than it may in one call.
    CostLimitExceeded,
    /// The budget shared by all rules of a request ran out.
    BudgetExhausted,
    /// The expression failed on this data.
    Failed(String),
}

impl std::fmt::Display for EvalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CostLimitExceeded => "operation cancelled: actual cost limit exceeded",
            Self::BudgetExhausted => {
                "validation failed due to running out of cost budget, no further validation rules will be run"
            }
            Self::Failed(message) => message,
        })
    }
}

impl std::error::Error for EvalError {}

pub(crate) type Eval<T> = Result<T, EvalError>;

pub(crate) fn fail<T>(message: impl Into<String>) -> Eval<T> {
    Err(EvalError::Failed(message.into()))
}

pub(crate) fn no_overload<T>() -> Eval<T> {
    fail("no such overload")
}

/// Text, borrowed from the data or made by the expression.
#[derive(Debug, Clone)]
pub(crate) enum Str<'a> {
    Ref(&'a str),
    Own(Rc<str>),
}

impl Deref for Str<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Str::Ref(s) => s,
            Str::Own(s) => s,
        }
    }
}

/// A value.
#[derive(Debug, Clone)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(Str<'a>),
    Bytes(Rc<[u8]>),
    Timestamp(Time),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Type(Type),
    Optional(Option<Rc<Val<'a>>>),
    Quantity(Rc<Quantity>),
    Url(Rc<Url>),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Semver(Rc<Semver>),
    Format(&'static Format),
}

/// A list.
#[derive(Debug, Clone)]
pub(crate) enum List<'a> {
    Own(Rc<Vec<Val<'a>>>),
    Json(&'a [Value], &'a Arc<Decl>, &'a ListType),
}

/// A map or object.
#[derive(Debug, Clone)]
pub(crate) enum Map<'a> {
    Own(Rc<BTreeMap<Key, Val<'a>>>),
    Json(&'a serde_json::Map<String, Value>, &'a Arc<Decl>),
}

/// A map's key. Numbers that are equal are the same key, whatever their type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Bool(bool),
    Int(i64),
    /// Only what does not fit an `Int`.
    Uint(u64),
    Str(Rc<str>),
}

impl Key {
    pub fn of(v: &Val<'_>) -> Option<Key> {
        Some(match v {
            Val::Bool(b) => Key::Bool(*b),
            Val::Int(i) => Key::Int(*i),
            Val::Uint(u) => i64::try_from(*u).map_or(Key::Uint(*u), Key::Int),
            Val::Double(d) if d.fract() == 0.0 && d.abs() < 9e18 => Key::Int(*d as i64),
            Val::Str(s) => Key::Str(Rc::from(&**s)),
            _ => return None,
        })
    }

    pub fn to_val<'a>(&self) -> Val<'a> {
        match self {
            Key::Bool(b) => Val::Bool(*b),
            Key::Int(i) => Val::Int(*i),
            Key::Uint(u) => Val::Uint(*u),
            Key::Str(s) => Val::Str(Str::Own(s.clone())),
        }
    }
}

/// The declaration of undeclared data.
pub(crate) fn dyn_decl() -> &'static Arc<Decl> {
    static DYN: std::sync::OnceLock<Arc<Decl>> = std::sync::OnceLock::new();
    DYN.get_or_init(|| Arc::new(Decl::new(DeclKind::Dyn)))
}

impl<'a> Val<'a> {
    pub fn str(s: impl Into<Rc<str>>) -> Val<'a> {
        Val::Str(Str::Own(s.into()))
    }

    pub fn list(items: Vec<Val<'a>>) -> Val<'a> {
        Val::List(List::Own(Rc::new(items)))
    }

    pub fn some(v: Val<'a>) -> Val<'a> {
        Val::Optional(Some(Rc::new(v)))
    }

    /// JSON as the declared kind of value.
    pub fn from_json(json: &'a Value, decl: &'a Arc<Decl>) -> Eval<Val<'a>> {
        let wrong = |want: &str| fail(format!("invalid data, expected {want}, got: {json}"));
        match (&decl.kind, json) {
            (_, Value::Null) => Ok(Val::Null),
            (DeclKind::Double, Value::Number(n)) => Ok(Val::Double(n.as_f64().unwrap_or(f64::NAN))),
            (DeclKind::Int, Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
                (Some(i), _) => Ok(Val::Int(i)),
                (None, Some(f)) if f.fract() == 0.0 && f.abs() < 9e18 => Ok(Val::Int(f as i64)),
                _ => wrong("integer"),
            },
            (DeclKind::Dyn | DeclKind::IntOrString, Value::Number(n)) => Ok(match n.as_i64() {
                Some(i) => Val::Int(i),
                None => Val::Double(n.as_f64().unwrap_or(f64::NAN)),
            }),
            (DeclKind::Bytes, Value::String(s)) => match crate::format::decode_base64(s) {
                Some(b) => Ok(Val::Bytes(b.into())),
                None => wrong("base64"),
            },
            (DeclKind::Duration, Value::String(s)) => match parse_duration(s) {
                Some(d) => Ok(Val::Duration(d)),
                None => fail(format!("Invalid duration {s}: time: invalid duration \"{s}\"")),
            },
            (DeclKind::Timestamp, Value::String(s)) => match parse_timestamp(s).or_else(|| parse_date(s)) {
                Some(t) => Ok(Val::Timestamp(t)),
                None => fail(format!("Invalid date formatted string {s}")),
            },
            (DeclKind::String | DeclKind::Dyn | DeclKind::IntOrString, Value::String(s)) => Ok(Val::Str(Str::Ref(s))),
            (DeclKind::Bool | DeclKind::Dyn, Value::Bool(b)) => Ok(Val::Bool(*b)),
            (DeclKind::List(items, kind), Value::Array(a)) => Ok(Val::List(List::Json(a, items, kind))),
            (DeclKind::Dyn, Value::Array(a)) => Ok(Val::List(List::Json(a, dyn_decl(), &ListType::Atomic))),
            (DeclKind::Map(_) | DeclKind::Object(_) | DeclKind::Dyn, Value::Object(m)) => {
                Ok(Val::Map(Map::Json(m, decl)))
            }
            _ => wrong("data that matches the schema"),
        }
    }

    /// The value as JSON; what JSON does not have becomes its text.
    pub fn to_json(&self) -> Value {
        match self {
            Val::Null => Value::Null,
            Val::Bool(b) => Value::Bool(*b),
            Val::Int(i) => (*i).into(),
            Val::Uint(u) => (*u).into(),
            Val::Double(d) => (*d).into(),
            Val::Str(s) => Value::String(s.to_string()),
            Val::List(List::Json(a, ..)) => Value::Array(a.to_vec()),
            Val::List(List::Own(items)) => Value::Array(items.iter().map(Val::to_json).collect()),
            Val::Map(Map::Json(m, _)) => Value::Object((*m).clone()),
            Val::Map(Map::Own(m)) => Value::Object(
                m.iter()
                    .map(|(k, v)| {
                        let key = match k.to_val() {
                            Val::Str(s) => s.to_string(),
                            k => k.to_json().to_string(),
                        };
                        (key, v.to_json())
                    })
                    .collect(),
            ),
            Val::Optional(v) => v.as_ref().map_or(Value::Null, |v| v.to_json()),
            other => Value::String(crate::convert::to_text(other).unwrap_or_else(|| other.type_of().runtime_name())),
        }
    }

    /// The result of `type(x)`.
    pub fn type_of(&self) -> Type {
        match self {
            Val::Null => Type::Null,
            Val::Bool(_) => Type::Bool,
            Val::Int(_) => Type::Int,
            Val::Uint(_) => Type::Uint,
            Val::Double(_) => Type::Double,
            Val::Str(_) => Type::String,
            Val::Bytes(_) => Type::Bytes,
            Val::Timestamp(_) => Type::Timestamp,
            Val::Duration(_) => Type::Duration,
            Val::List(_) => Type::list(Type::Dyn),
            Val::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Val::Type(_) => Type::Type(Arc::new(Type::Dyn)),
            Val::Optional(_) => Type::optional(Type::Dyn),
            Val::Quantity(_) => Type::Abstract(types::QUANTITY),
            Val::Url(_) => Type::Abstract(types::URL),
            Val::Ip(_) => Type::Abstract(types::IP),
            Val::Cidr(..) => Type::Abstract(types::CIDR),
            Val::Semver(_) => Type::Abstract(types::SEMVER),
            Val::Format(_) => Type::Abstract(types::FORMAT),
        }
    }

    /// The size that costs count: code points, bytes, elements or entries, and 1 for the rest.
    pub fn size(&self) -> u64 {
        match self {
            Val::Str(s) => s.chars().count() as u64,
            Val::Bytes(b) => b.len() as u64,
            Val::List(l) => l.len() as u64,
            Val::Map(m) => m.len() as u64,
            Val::Optional(Some(v)) => v.size(),
            Val::Ip(ip) => {
                if ip.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Val::Cidr(_, bits) => u64::from(*bits).div_ceil(8),
            _ => 1,
        }
    }

    /// The order of two values of comparable types.
    pub fn compare(&self, other: &Val<'_>) -> Option<Ordering> {
        match (self, other) {
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
            (Val::Str(a), Val::Str(b)) => Some((**a).cmp(&**b)),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
            (Val::Timestamp(a), Val::Timestamp(b)) => Some(a.nanos.cmp(&b.nanos)),
            (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
            _ => compare_numbers(self, other),
        }
    }

    /// Equality of the language: values of different types are unequal, numbers compare by value.
    pub fn equals(&self, other: &Val<'_>) -> bool {
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Type(a), Val::Type(b)) => a.runtime_name() == b.runtime_name(),
            (Val::List(a), Val::List(b)) => a.equals(b),
            (Val::Map(a), Val::Map(b)) => a.equals(b),
            (Val::Optional(a), Val::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (a, b) => a.is_none() && b.is_none(),
            },
            (Val::Quantity(a), Val::Quantity(b)) => a.cmp(b) == Ordering::Equal,
            (Val::Url(a), Val::Url(b)) => a.text == b.text,
            (Val::Ip(a), Val::Ip(b)) => a == b,
            (Val::Cidr(a, p), Val::Cidr(b, q)) => a == b && p == q,
            (Val::Semver(a), Val::Semver(b)) => a.cmp(b) == Ordering::Equal,
            (Val::Format(a), Val::Format(b)) => a.name == b.name,
            _ => self.compare(other) == Some(Ordering::Equal),
        }
    }

    /// Whether it is the zero of its type, for `optional.ofNonZeroValue`.
    pub fn is_zero(&self) -> bool {
        match self {
            Val::Null => true,
            Val::Bool(b) => !b,
            Val::Int(i) => *i == 0,
            Val::Uint(u) => *u == 0,
            Val::Double(d) => *d == 0.0,
            Val::Duration(d) => *d == 0,
            Val::Str(s) => s.is_empty(),
            Val::Bytes(b) => b.is_empty(),
            Val::List(l) => l.len() == 0,
            Val::Map(m) => m.len() == 0,
            Val::Optional(v) => v.as_ref().is_none_or(|v| v.is_zero()),
            _ => false,
        }
    }
}

fn parse_date(s: &str) -> Option<Time> {
    parse_timestamp(&format!("{s}T00:00:00Z"))
}

fn compare_numbers(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    match (a, b) {
        (Val::Double(x), Val::Double(y)) => x.partial_cmp(y),
        (Val::Double(x), _) => compare_double(*x, integer(b)?),
        (_, Val::Double(y)) => compare_double(*y, integer(a)?).map(Ordering::reverse),
        _ => Some(integer(a)?.cmp(&integer(b)?)),
    }
}

fn integer(v: &Val<'_>) -> Option<i128> {
    match v {
        Val::Int(i) => Some((*i).into()),
        Val::Uint(u) => Some((*u).into()),
        _ => None,
    }
}

fn compare_double(x: f64, y: i128) -> Option<Ordering> {
    if x.is_nan() {
        return None;
    }
    // Beyond the integers a double is larger or smaller than all of them.
    if x >= 1e20 {
        return Some(Ordering::Greater);
    }
    if x <= -1e20 {
        return Some(Ordering::Less);
    }
    let whole = x.trunc();
    Some((whole as i128).cmp(&y).then_with(|| x.partial_cmp(&whole).unwrap_or(Ordering::Equal)))
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            List::Own(v) => v.len(),
            List::Json(a, ..) => a.len(),
        }
    }

    pub fn get(&self, i: usize) -> Option<Eval<Val<'a>>> {
        match self {
            List::Own(v) => v.get(i).cloned().map(Ok),
            List::Json(a, decl, _) => a.get(i).map(|j| Val::from_json(j, decl)),
        }
    }

    pub fn items(&self) -> impl Iterator<Item = Eval<Val<'a>>> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    pub fn collect(&self) -> Eval<Vec<Val<'a>>> {
        self.items().collect()
    }

    pub fn contains(&self, v: &Val<'_>) -> bool {
        self.items().any(|i| i.is_ok_and(|i| i.equals(v)))
    }

    fn kind(&self) -> &ListType {
        match self {
            List::Own(_) => &ListType::Atomic,
            List::Json(_, _, kind) => kind,
        }
    }

    fn equals(&self, other: &List<'_>) -> bool {
        if self.len() != other.len() {
            return false;
        }
        match self.kind() {
            ListType::Atomic => {
                self.items().zip(other.items()).all(|(a, b)| matches!((a, b), (Ok(a), Ok(b)) if a.equals(&b)))
            }
            ListType::Set => self.items().all(|a| a.is_ok_and(|a| other.contains(&a))),
            ListType::Map(_) => self.items().all(|a| a.is_ok_and(|a| other.contains(&a))),
        }
    }

    /// `self + other`: sets and maps keep their semantics, later elements with the same key replace earlier ones.
    pub fn plus(&self, other: &List<'a>) -> Eval<List<'a>> {
        let mut out = self.collect()?;
        let more = other.collect()?;
        match self.kind() {
            ListType::Atomic => out.extend(more),
            ListType::Set => {
                for v in more {
                    if !out.iter().any(|o| o.equals(&v)) {
                        out.push(v);
                    }
                }
            }
            ListType::Map(keys) => {
                for v in more {
                    match out.iter().position(|o| same_key(o, &v, keys)) {
                        Some(i) => out[i] = v,
                        None => out.push(v),
                    }
                }
            }
        }
        Ok(List::Own(Rc::new(out)))
    }
}

fn same_key(a: &Val<'_>, b: &Val<'_>, keys: &[String]) -> bool {
    let field = |v: &Val<'_>, k: &str| match v {
        Val::Map(Map::Json(m, _)) => m.get(k).cloned(),
        _ => None,
    };
    keys.iter().all(|k| field(a, k) == field(b, k))
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Map::Own(m) => m.len(),
            Map::Json(m, _) => m.len(),
        }
    }

    /// The entry of a field or string key, if it exists.
    pub fn field(&self, name: &str) -> Option<Eval<Val<'a>>> {
        match self {
            Map::Own(m) => m.get(&Key::Str(name.into())).cloned().map(Ok),
            Map::Json(m, decl) => match &decl.kind {
                DeclKind::Object(o) => {
                    let f = o.fields.get(name)?;
                    m.get(&f.json_name).map(|j| Val::from_json(j, &f.decl))
                }
                DeclKind::Map(values) => m.get(name).map(|j| Val::from_json(j, values)),
                _ => m.get(name).map(|j| Val::from_json(j, dyn_decl())),
            },
        }
    }

    pub fn get(&self, key: &Val<'_>) -> Option<Eval<Val<'a>>> {
        match (self, key) {
            (_, Val::Str(s)) => self.field(s),
            (Map::Own(m), key) => m.get(&Key::of(key)?).cloned().map(Ok),
            _ => None,
        }
    }

    /// The keys, for iteration. An object's fields go by the names that rules use.
    pub fn keys(&self) -> Vec<Val<'a>> {
        match self {
            Map::Own(m) => m.keys().map(Key::to_val).collect(),
            Map::Json(m, decl) => match &decl.kind {
                DeclKind::Object(o) => {
                    let present = o.fields.iter().filter(|(_, f)| m.contains_key(&f.json_name));
                    present.map(|(name, _)| Val::Str(Str::Ref(name))).collect()
                }
                _ => m.keys().map(|k| Val::Str(Str::Ref(k))).collect(),
            },
        }
    }

    pub fn entries(&self) -> Eval<Vec<(Val<'a>, Val<'a>)>> {
        let pair = |k: Val<'a>| self.get(&k).map(|v| v.map(|v| (k, v)));
        self.keys().into_iter().filter_map(pair).collect()
    }

    fn equals(&self, other: &Map<'_>) -> bool {
        if self.len() != other.len() {
            return false;
        }
        self.keys().iter().all(|k| matches!((self.get(k), other.get(k)), (Some(Ok(a)), Some(Ok(b))) if a.equals(&b)))
    }
}
