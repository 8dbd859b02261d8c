//! The implementations of functions.

use crate::semver::Semver;
use crate::url::Url;
use crate::value::{Eval, Key, Map, Val, fail, no_overload};
use crate::{arith, convert, format, lists, net, strings, time};
use fleetwright_syntax::Quantity;
use regex::Regex;
use std::cmp::Ordering;
use std::rc::Rc;

pub(crate) fn call<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    let result = dispatch(func, args);
    // The checker accepts `dyn`; here no overload accepts the actual type.
    match result {
        Err(crate::EvalError::Failed(m)) if m == "no such overload" && !func.starts_with(['_', '!', '-', '@']) => {
            if func == "size" {
                return fail("no such overload: size");
            }
            let types: Vec<String> = args.iter().map(|a| a.type_of().runtime_name()).collect();
            fail(format!("no such overload: {func}({})", types.join(", ")))
        }
        other => other,
    }
}

fn dispatch<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match func {
        "_==_" | "_!=_" => match args {
            [a, b] => Ok(Val::Bool(a.equals(b) == (func == "_==_"))),
            _ => no_overload(),
        },
        "!_" => match args {
            [Val::Bool(b)] => Ok(Val::Bool(!b)),
            _ => no_overload(),
        },
        "-_" => args.first().map_or_else(no_overload, arith::negate),
        "_<_" | "_<=_" | "_>_" | "_>=_" => match args {
            [a, b] => arith::compare(func, a, b),
            _ => no_overload(),
        },
        "_-_" | "_*_" | "_/_" | "_%_" => match args {
            [a, b] => arith::binary(func, a, b),
            _ => no_overload(),
        },
        "@in" => match args {
            [v, container] => arith::contains(v, container),
            _ => no_overload(),
        },
        "size" => match args {
            [v @ (Val::Str(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_))] => Ok(Val::Int(v.size() as i64)),
            _ => no_overload(),
        },
        "type" => args.first().map_or_else(no_overload, |v| Ok(Val::Type(v.type_of()))),
        "dyn" => args.first().cloned().map_or_else(no_overload, Ok),
        "bool" | "bytes" | "double" | "duration" | "int" | "string" | "timestamp" | "uint" => match args {
            [v] => convert::convert(func, v),
            _ => no_overload(),
        },
        "contains" | "startsWith" | "endsWith" | "charAt" | "lowerAscii" | "upperAscii" | "trim" | "replace"
        | "split" | "substring" | "join" | "strings.quote" | "format" => strings::call(func, args),
        "indexOf" | "lastIndexOf" => match args.first() {
            Some(Val::Str(_)) => strings::call(func, args),
            _ => lists::call(func, args),
        },
        "isSorted"
        | "min"
        | "max"
        | "slice"
        | "flatten"
        | "sort"
        | "@sortByAssociatedKeys"
        | "lists.range"
        | "reverse"
        | "distinct"
        | "first"
        | "last"
        | "optional.unwrap"
        | "unwrapOpt"
        | "sets.contains"
        | "sets.equivalent"
        | "sets.intersects" => lists::call(func, args),
        "ip"
        | "isIP"
        | "ip.isCanonical"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "cidr"
        | "isCIDR"
        | "containsIP"
        | "containsCIDR"
        | "prefixLength"
        | "masked" => net::call(func, args),
        _ if func.starts_with("get") => getter(func, args),
        _ if func.starts_with("optional.") || matches!(func, "value" | "hasValue") => optional(func, args),
        _ => kubernetes(func, args),
    }
}

fn getter<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, args) {
        (_, [Val::Timestamp(t)]) => time::getter(func, *t, None),
        (_, [Val::Timestamp(t), Val::Str(zone)]) => time::getter(func, *t, Some(zone)),
        (_, [Val::Duration(d)]) => time::duration_getter(func, *d).map_or_else(no_overload, Ok),
        ("getScheme", [Val::Url(u)]) => Ok(Val::str(u.scheme.as_str())),
        ("getHost", [Val::Url(u)]) => Ok(Val::str(u.host.as_str())),
        ("getHostname", [Val::Url(u)]) => Ok(Val::str(u.hostname())),
        ("getPort", [Val::Url(u)]) => Ok(Val::str(u.port())),
        ("getEscapedPath", [Val::Url(u)]) => Ok(Val::str(u.path.as_str())),
        ("getQuery", [Val::Url(u)]) => {
            let texts = |values: Vec<String>| Val::list(values.into_iter().map(Val::str).collect());
            let entries = u.query().into_iter().map(|(k, v)| (Key::Str(k.into()), texts(v)));
            Ok(Val::Map(Map::Own(Rc::new(entries.collect()))))
        }
        _ => no_overload(),
    }
}

fn optional<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, args) {
        ("optional.of", [v]) => Ok(Val::some(v.clone())),
        ("optional.ofNonZeroValue", [v]) if v.is_zero() => Ok(Val::Optional(None)),
        ("optional.ofNonZeroValue", [v]) => Ok(Val::some(v.clone())),
        ("optional.none", []) => Ok(Val::Optional(None)),
        ("hasValue", [Val::Optional(v)]) => Ok(Val::Bool(v.is_some())),
        ("value", [Val::Optional(Some(v))]) => Ok((**v).clone()),
        ("value", [Val::Optional(None)]) => fail("optional.none() dereference"),
        _ => no_overload(),
    }
}

fn ordered<'a>(func: &str, order: Ordering) -> Eval<Val<'a>> {
    Ok(match func {
        "isGreaterThan" => Val::Bool(order.is_gt()),
        "isLessThan" => Val::Bool(order.is_lt()),
        _ => Val::Int(order as i64),
    })
}

fn kubernetes<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, args) {
        ("url", [Val::Str(s)]) => match Url::parse(s) {
            Ok(u) => Ok(Val::Url(Rc::new(u))),
            Err(why) => fail(format!("URL parse error during conversion from string: {why}")),
        },
        ("isURL", [Val::Str(s)]) => Ok(Val::Bool(Url::parse(s).is_ok())),
        ("quantity", [Val::Str(s)]) => match Quantity::parse(s) {
            Ok(q) => Ok(Val::Quantity(Rc::new(q))),
            Err(why) => fail(why.to_string()),
        },
        ("isQuantity", [Val::Str(s)]) => Ok(Val::Bool(Quantity::parse(s).is_ok())),
        ("sign", [Val::Quantity(q)]) => Ok(Val::Int(q.signum())),
        ("isInteger", [Val::Quantity(q)]) => Ok(Val::Bool(q.as_i64().is_some())),
        ("asInteger", [Val::Quantity(q)]) => {
            q.as_i64().map_or_else(|| fail("cannot convert value to integer"), |i| Ok(Val::Int(i)))
        }
        ("asApproximateFloat", [Val::Quantity(q)]) => Ok(Val::Double(q.as_approximate_f64())),
        ("add", [Val::Quantity(a), Val::Quantity(b)]) => Ok(Val::Quantity(Rc::new(a.plus(b)))),
        ("sub", [Val::Quantity(a), Val::Quantity(b)]) => Ok(Val::Quantity(Rc::new(a.minus(b)))),
        ("add", [Val::Quantity(a), Val::Int(i)]) => Ok(Val::Quantity(Rc::new(a.plus(&Quantity::from(*i))))),
        ("sub", [Val::Quantity(a), Val::Int(i)]) => Ok(Val::Quantity(Rc::new(a.minus(&Quantity::from(*i))))),
        ("isGreaterThan" | "isLessThan" | "compareTo", [Val::Quantity(a), Val::Quantity(b)]) => ordered(func, a.cmp(b)),
        ("isGreaterThan" | "isLessThan" | "compareTo", [Val::Semver(a), Val::Semver(b)]) => ordered(func, a.cmp(b)),
        ("semver", [Val::Str(s)]) => Semver::parse(s).map(|v| Val::Semver(Rc::new(v))).or_else(fail),
        ("semver", [Val::Str(s), Val::Bool(tolerant)]) => {
            let parse = if *tolerant { Semver::parse_tolerant } else { Semver::parse };
            parse(s).map(|v| Val::Semver(Rc::new(v))).or_else(fail)
        }
        ("isSemver", [Val::Str(s)]) => Ok(Val::Bool(Semver::parse(s).is_ok())),
        ("isSemver", [Val::Str(s), Val::Bool(tolerant)]) => {
            let parse = if *tolerant { Semver::parse_tolerant } else { Semver::parse };
            Ok(Val::Bool(parse(s).is_ok()))
        }
        ("major", [Val::Semver(v)]) => Ok(Val::Int(v.major as i64)),
        ("minor", [Val::Semver(v)]) => Ok(Val::Int(v.minor as i64)),
        ("patch", [Val::Semver(v)]) => Ok(Val::Int(v.patch as i64)),
        ("format.named", [Val::Str(name)]) => Ok(Val::Optional(format::named(name).map(|f| Rc::new(Val::Format(f))))),
        ("validate", [Val::Format(f), Val::Str(s)]) => {
            let errors = f.validate(s);
            if errors.is_empty() {
                return Ok(Val::Optional(None));
            }
            Ok(Val::some(Val::list(errors.into_iter().map(Val::str).collect())))
        }
        (name, []) => match name.strip_prefix("format.").and_then(format::named) {
            Some(f) => Ok(Val::Format(f)),
            None => no_overload(),
        },
        _ => no_overload(),
    }
}

/// `matches`, `find` and `findAll` with a compiled pattern.
pub(crate) fn search<'a>(func: &str, re: &Regex, s: &str, rest: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, rest) {
        ("matches", []) => Ok(Val::Bool(re.is_match(s))),
        ("find", []) => Ok(Val::str(re.find(s).map_or("", |m| m.as_str()))),
        ("findAll", [] | [Val::Int(_)]) => {
            let limit = match rest {
                [Val::Int(n)] => usize::try_from(*n).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            Ok(Val::list(re.find_iter(s).take(limit).map(|m| Val::str(m.as_str())).collect()))
        }
        _ => no_overload(),
    }
}
