//! The types of the language and how one is assignable to another.

use crate::decl::{Decl, DeclKind};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A type.
#[derive(Debug, Clone)]
pub enum Type {
    /// The type of an erroneous expression, so that the error is reported once.
    Error,
    /// Any type, checked when the expression runs.
    Dyn,
    /// The type of `null`.
    Null,
    /// Booleans.
    Bool,
    /// Signed 64-bit integers.
    Int,
    /// Unsigned 64-bit integers.
    Uint,
    /// 64-bit floating point numbers.
    Double,
    /// Unicode text.
    String,
    /// Byte sequences.
    Bytes,
    /// Points in time.
    Timestamp,
    /// Spans of time.
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    /// A value that may be absent.
    Optional(Arc<Type>),
    Type(Arc<Type>),
    /// An object with declared fields.
    Object(Arc<Decl>),
    /// A type of Kubernetes' libraries, with no fields of its own: quantities, URLs, addresses, versions.
    Abstract(&'static str),
    /// A type parameter, in a function's declaration.
    Param(char),
    /// A type not known yet.
    Var(usize),
}

/// A quantity, as in resource requests.
pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
pub(crate) const URL: &str = "kubernetes.URL";
/// A semantic version.
pub(crate) const SEMVER: &str = "kubernetes.Semver";
/// A named string format.
pub(crate) const FORMAT: &str = "kubernetes.NamedFormat";
/// An IP address.
pub(crate) const IP: &str = "net.IP";
/// An IP network.
pub(crate) const CIDR: &str = "net.CIDR";

impl Type {
    /// A list of `element`.
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }

    /// A map from `key` to `value`.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    /// An optional `of`.
    pub fn optional(of: Type) -> Type {
        Type::Optional(Arc::new(of))
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// The type within an optional, and whether it was one.
    pub(crate) fn unwrap_optional(&self) -> (Type, bool) {
        match self {
            Type::Optional(t) => ((**t).clone(), true),
            t => (t.clone(), false),
        }
    }

    fn params(&self) -> Vec<&Type> {
        match self {
            Type::List(t) | Type::Optional(t) | Type::Type(t) => vec![t],
            Type::Map(k, v) => vec![k, v],
            _ => Vec::new(),
        }
    }

    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Type::Null | Type::Object(_) | Type::Abstract(_) | Type::Optional(_) | Type::Timestamp | Type::Duration
        )
    }

    /// What `type(x)` is called at run time; parameters do not count.
    pub(crate) fn runtime_name(&self) -> String {
        match self {
            Type::Dyn => "dyn".into(),
            Type::Error => "error".into(),
            Type::Null => "null_type".into(),
            Type::Timestamp => "google.protobuf.Timestamp".into(),
            Type::Duration => "google.protobuf.Duration".into(),
            Type::List(_) => "list".into(),
            Type::Map(..) => "map".into(),
            Type::Optional(_) => "optional_type".into(),
            Type::Type(_) => "type".into(),
            other => other.to_string(),
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::List(a), Type::List(b))
            | (Type::Optional(a), Type::Optional(b))
            | (Type::Type(a), Type::Type(b)) => a == b,
            (Type::Map(a, b), Type::Map(c, d)) => a == c && b == d,
            (Type::Object(a), Type::Object(b)) => Arc::ptr_eq(a, b),
            (Type::Abstract(a), Type::Abstract(b)) => a == b,
            (Type::Param(a), Type::Param(b)) => a == b,
            (Type::Var(a), Type::Var(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Error => f.write_str("!error!"),
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(t) => write!(f, "list({t})"),
            Type::Map(k, v) => write!(f, "map({k}, {v})"),
            Type::Optional(t) => write!(f, "optional_type({t})"),
            Type::Type(t) => write!(f, "type({t})"),
            Type::Object(d) => match &d.kind {
                DeclKind::Object(o) => f.write_str(&o.name),
                _ => f.write_str("object"),
            },
            Type::Abstract(name) => f.write_str(name),
            Type::Param(c) => write!(f, "{c}"),
            Type::Var(n) => write!(f, "_var{n}"),
        }
    }
}

/// What is known of the type variables.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    known: HashMap<usize, Type>,
    /// What each write replaced since the last attempt began, to undo an attempt that fails.
    trail: Vec<(usize, Option<Type>)>,
}

impl Mapping {
    /// Whether `a` can stand where `b` is asked for; what that says about variables is kept only if so.
    pub fn assignable(&mut self, a: &Type, b: &Type) -> bool {
        self.assignable_all(&[(a, b)])
    }

    pub fn assignable_all(&mut self, pairs: &[(&Type, &Type)]) -> bool {
        self.trail.clear();
        let ok = pairs.iter().all(|(a, b)| self.check(a, b));
        while !ok && let Some((v, before)) = self.trail.pop() {
            match before {
                Some(t) => self.known.insert(v, t),
                None => self.known.remove(&v),
            };
        }
        ok
    }

    fn set(&mut self, v: usize, t: Type) {
        let before = self.known.insert(v, t);
        self.trail.push((v, before));
    }

    fn check(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Var(v) = b {
            let (valid, known) = self.substitutable(a, *v);
            if valid || known {
                return valid;
            }
        }
        if let Type::Var(v) = a {
            return self.substitutable(b, *v).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        if matches!(a, Type::Null) {
            return b.is_nullable();
        }
        if matches!(b, Type::Null) {
            return a.is_nullable();
        }
        match (a, b) {
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => self.check(x, y),
            (Type::Map(k, v), Type::Map(l, w)) => self.check(k, l) && self.check(v, w),
            _ => a == b,
        }
    }

    /// Whether variable `v` can be `t`, and whether it already was something.
    fn substitutable(&mut self, t: &Type, v: usize) -> (bool, bool) {
        if *t == Type::Var(v) {
            return (true, true);
        }
        if let Some(known) = self.known.get(&v).cloned() {
            if *t == known {
                return (true, true);
            }
            if self.check(t, &known) {
                let general = most_general(t, &known);
                if !self.occurs(v, &general) {
                    self.set(v, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.occurs(v, t) {
            return (false, false);
        }
        self.set(v, t.clone());
        (true, false)
    }

    fn occurs(&self, v: usize, within: &Type) -> bool {
        match within {
            Type::Var(w) if *w == v => true,
            Type::Var(w) => self.known.get(w).is_some_and(|t| self.occurs(v, t)),
            t => t.params().iter().any(|p| self.occurs(v, p)),
        }
    }

    /// The type with what is known filled in; unknown variables stay, or become `dyn`.
    pub fn substitute(&self, t: &Type, to_dyn: bool) -> Type {
        let go = |t: &Type| Arc::new(self.substitute(t, to_dyn));
        match t {
            Type::Var(v) => match self.known.get(v) {
                Some(known) => self.substitute(known, to_dyn),
                None if to_dyn => Type::Dyn,
                None => t.clone(),
            },
            Type::List(e) => Type::List(go(e)),
            Type::Optional(e) => Type::Optional(go(e)),
            Type::Type(e) => Type::Type(go(e)),
            Type::Map(k, v) => Type::Map(go(k), go(v)),
            _ => t.clone(),
        }
    }
}

/// The more general of two types that are known to agree.
pub(crate) fn most_general(a: &Type, b: &Type) -> Type {
    if less_specific(a, b) { a.clone() } else { b.clone() }
}

fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Var(_)) => false,
        (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => less_specific(x, y),
        (Type::Map(k, v), Type::Map(l, w)) => less_specific(k, l) && less_specific(v, w),
        (Type::Type(_), Type::Type(_)) => true,
        _ => a == b,
    }
}
