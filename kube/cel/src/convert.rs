//! Conversions between types: `int(x)`, `string(x)` and so on.

use crate::time::{Time, duration_text, parse_duration, parse_timestamp};
use crate::value::{Eval, Val, fail, no_overload};

fn error<'a>(v: &Val<'_>, to: &str) -> Eval<Val<'a>> {
    fail(format!("type conversion error from '{}' to '{to}'", v.type_of().runtime_name()))
}

/// The text of a value that has one.
pub(crate) fn to_text(v: &Val<'_>) -> Option<String> {
    Some(match v {
        Val::Bool(b) => b.to_string(),
        Val::Int(i) => i.to_string(),
        Val::Uint(u) => u.to_string(),
        Val::Double(d) => double_text(*d),
        Val::Str(s) => s.to_string(),
        Val::Bytes(b) => String::from_utf8(b.to_vec()).ok()?,
        Val::Timestamp(t) => t.text(),
        Val::Duration(d) => duration_text(*d),
        Val::Type(t) => t.runtime_name(),
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(ip, bits) => format!("{ip}/{bits}"),
        _ => return None,
    })
}

/// Go's shortest form, with an exponent from a million on.
pub(crate) fn double_text(d: f64) -> String {
    if d.is_nan() {
        return "NaN".into();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let text = format!("{d:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if d == 0.0 || (-4..6).contains(&exponent) {
        return format!("{d}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

pub(crate) fn convert<'a>(to: &str, v: &Val<'a>) -> Eval<Val<'a>> {
    match to {
        "string" => match to_text(v) {
            Some(t) => Ok(Val::str(t)),
            None if matches!(v, Val::Bytes(_)) => fail("invalid UTF-8 in bytes, cannot convert to string"),
            None => no_overload(),
        },
        "int" => int(v),
        "uint" => uint(v),
        "double" => match v {
            Val::Double(_) => Ok(v.clone()),
            Val::Int(i) => Ok(Val::Double(*i as f64)),
            Val::Uint(u) => Ok(Val::Double(*u as f64)),
            Val::Str(s) => s.parse().map(Val::Double).or_else(|_| error(v, "double")),
            _ => no_overload(),
        },
        "bool" => match v {
            Val::Bool(_) => Ok(v.clone()),
            Val::Str(s) => match &**s {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Val::Bool(true)),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Val::Bool(false)),
                _ => error(v, "bool"),
            },
            _ => no_overload(),
        },
        "bytes" => match v {
            Val::Bytes(_) => Ok(v.clone()),
            Val::Str(s) => Ok(Val::Bytes(s.as_bytes().into())),
            _ => no_overload(),
        },
        "duration" => match v {
            Val::Duration(_) => Ok(v.clone()),
            Val::Str(s) => {
                parse_duration(s).map_or_else(|| error(v, "google.protobuf.Duration"), |d| Ok(Val::Duration(d)))
            }
            _ => no_overload(),
        },
        "timestamp" => match v {
            Val::Timestamp(_) => Ok(v.clone()),
            Val::Int(i) => match Time::from_second(*i) {
                Some(t) => Ok(Val::Timestamp(t)),
                None => fail("timestamp overflow"),
            },
            Val::Str(s) => {
                parse_timestamp(s).map_or_else(|| error(v, "google.protobuf.Timestamp"), |t| Ok(Val::Timestamp(t)))
            }
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn int<'a>(v: &Val<'a>) -> Eval<Val<'a>> {
    let overflow = || fail("integer overflow");
    match v {
        Val::Int(_) => Ok(v.clone()),
        Val::Uint(u) => i64::try_from(*u).map(Val::Int).or_else(|_| overflow()),
        Val::Double(d) if d.is_finite() && *d > -(2f64.powi(63)) && *d < 2f64.powi(63) => Ok(Val::Int(*d as i64)),
        Val::Double(_) => overflow(),
        Val::Str(s) => s.parse().map(Val::Int).or_else(|_| error(v, "int")),
        Val::Timestamp(t) => Ok(Val::Int(t.second())),
        Val::Duration(d) => Ok(Val::Int(*d)),
        _ => no_overload(),
    }
}

fn uint<'a>(v: &Val<'a>) -> Eval<Val<'a>> {
    let overflow = || fail("unsigned integer overflow");
    match v {
        Val::Uint(_) => Ok(v.clone()),
        Val::Int(i) => u64::try_from(*i).map(Val::Uint).or_else(|_| overflow()),
        Val::Double(d) if d.is_finite() && *d >= 0.0 && *d < 2f64.powi(64) => Ok(Val::Uint(*d as u64)),
        Val::Double(_) => overflow(),
        Val::Str(s) => s.parse().map(Val::Uint).or_else(|_| error(v, "uint")),
        _ => no_overload(),
    }
}
