//! The functions on strings, among them `format`.

use crate::convert::to_text;
use crate::value::{Eval, Key, List, Map, Val, fail, no_overload};

pub(crate) fn call<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    let out_of_range = |i: i64| fail(format!("index out of range: {i}"));
    match (func, args) {
        ("contains", [Val::Str(s), Val::Str(t)]) => Ok(Val::Bool(s.contains(&**t))),
        ("startsWith", [Val::Str(s), Val::Str(t)]) => Ok(Val::Bool(s.starts_with(&**t))),
        ("endsWith", [Val::Str(s), Val::Str(t)]) => Ok(Val::Bool(s.ends_with(&**t))),
        ("charAt", [Val::Str(s), Val::Int(i)]) => match usize::try_from(*i).ok().filter(|i| *i <= s.chars().count()) {
            Some(i) => Ok(Val::str(s.chars().nth(i).map(String::from).unwrap_or_default())),
            None => out_of_range(*i),
        },
        ("indexOf", [Val::Str(s), Val::Str(t)]) => Ok(Val::Int(index_of(s, t, 0))),
        ("indexOf", [Val::Str(s), Val::Str(t), Val::Int(from)]) => match usize::try_from(*from) {
            Ok(from) => Ok(Val::Int(index_of(s, t, from))),
            Err(_) => out_of_range(*from),
        },
        ("lastIndexOf", [Val::Str(s), Val::Str(t)]) => Ok(Val::Int(last_index_of(s, t, None))),
        ("lastIndexOf", [Val::Str(s), Val::Str(t), Val::Int(from)]) => match usize::try_from(*from) {
            Ok(from) => Ok(Val::Int(last_index_of(s, t, Some(from)))),
            Err(_) => out_of_range(*from),
        },
        ("lowerAscii", [Val::Str(s)]) => Ok(Val::str(s.to_ascii_lowercase())),
        ("upperAscii", [Val::Str(s)]) => Ok(Val::str(s.to_ascii_uppercase())),
        ("trim", [Val::Str(s)]) => Ok(Val::str(s.trim())),
        ("replace", [Val::Str(s), Val::Str(old), Val::Str(new)]) => bounded_replace(s, old, new, -1),
        ("replace", [Val::Str(s), Val::Str(old), Val::Str(new), Val::Int(n)]) => bounded_replace(s, old, new, *n),
        ("split", [Val::Str(s), Val::Str(sep)]) => Ok(split(s, sep, -1)),
        ("split", [Val::Str(s), Val::Str(sep), Val::Int(n)]) => Ok(split(s, sep, *n)),
        ("substring", [Val::Str(s), Val::Int(from)]) => substring(s, *from, None),
        ("substring", [Val::Str(s), Val::Int(from), Val::Int(to)]) => substring(s, *from, Some(*to)),
        ("join", [Val::List(l)]) => join(l, ""),
        ("join", [Val::List(l), Val::Str(sep)]) => join(l, sep),
        ("strings.quote", [Val::Str(s)]) => Ok(Val::str(quote(s))),
        ("format", [Val::Str(s), Val::List(l)]) => format(s, l).map(Val::str),
        _ => no_overload(),
    }
}

fn index_of(s: &str, t: &str, from: usize) -> i64 {
    let s: Vec<char> = s.chars().collect();
    let t: Vec<char> = t.chars().collect();
    if t.is_empty() {
        return from.min(s.len()) as i64;
    }
    let found = s.get(from..).and_then(|rest| rest.windows(t.len()).position(|w| w == t));
    found.map_or(-1, |i| (i + from) as i64)
}

fn last_index_of(s: &str, t: &str, from: Option<usize>) -> i64 {
    let s: Vec<char> = s.chars().collect();
    let t: Vec<char> = t.chars().collect();
    if t.is_empty() {
        return from.unwrap_or(s.len()).min(s.len()) as i64;
    }
    if from.is_some_and(|f| f >= s.len()) {
        return -1;
    }
    let last = from.unwrap_or(s.len());
    let end = (last + t.len()).min(s.len());
    s.get(..end).and_then(|head| head.windows(t.len()).rposition(|w| w == t)).map_or(-1, |i| i as i64)
}

/// What a replacement may grow to. The reference implementation has no bound but memory.
const MAX_TEXT: usize = 64 << 20;

fn bounded_replace<'a>(s: &str, old: &str, new: &str, n: i64) -> Eval<Val<'a>> {
    let possible = if old.is_empty() { s.chars().count() + 1 } else { s.len() / old.len() };
    let count = usize::try_from(n).unwrap_or(usize::MAX).min(possible);
    if s.len().saturating_add(count.saturating_mul(new.len())) > MAX_TEXT {
        return fail("string too large");
    }
    Ok(Val::str(s.replacen(old, new, count)))
}

fn split<'a>(s: &str, sep: &str, n: i64) -> Val<'a> {
    let limit = usize::try_from(n).unwrap_or(usize::MAX);
    if limit == 0 {
        return Val::list(Vec::new());
    }
    if sep.is_empty() {
        let mut parts = Vec::new();
        let mut rest = s;
        while let Some(c) = rest.chars().next() {
            let width = if parts.len() + 1 == limit { rest.len() } else { c.len_utf8() };
            parts.push(Val::str(&rest[..width]));
            rest = &rest[width..];
        }
        return Val::list(parts);
    }
    Val::list(s.splitn(limit, sep).map(Val::str).collect())
}

fn substring<'a>(s: &str, from: i64, to: Option<i64>) -> Eval<Val<'a>> {
    let count = s.chars().count() as i64;
    let end = to.unwrap_or(count);
    if from > end && to.is_some() {
        return fail(format!("invalid substring range. start: {from}, end: {end}"));
    }
    if from < 0 || from > count {
        return fail(format!("index out of range: {from}"));
    }
    if end < 0 || end > count {
        return fail(format!("index out of range: {end}"));
    }
    Ok(Val::str(s.chars().skip(from as usize).take((end - from) as usize).collect::<String>()))
}

fn join<'a>(list: &List<'_>, sep: &str) -> Eval<Val<'a>> {
    let mut out = String::new();
    for (i, item) in list.items().enumerate() {
        let Val::Str(s) = item? else { return fail("join: the list includes a non-string element") };
        if i > 0 {
            out.push_str(sep);
        }
        out.push_str(&s);
        if out.len() > MAX_TEXT {
            return fail("string too large");
        }
    }
    Ok(Val::str(out))
}

/// Text in quotes with what needs it escaped.
pub(crate) fn quote(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A piece of a format string.
#[derive(Debug, PartialEq)]
pub(crate) enum Clause {
    Text(String),
    Verb(char, Option<usize>),
}

impl Clause {
    pub fn verb(&self) -> Option<char> {
        match self {
            Clause::Verb(v, _) => Some(*v),
            Clause::Text(_) => None,
        }
    }
}

/// Decimals beyond this are noise and could be used to fill memory.
const MAX_PRECISION: usize = 1000;

/// Takes a format string apart.
pub(crate) fn clauses(text: &str) -> Result<Vec<Clause>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        if at > 0 {
            out.push(Clause::Text(rest[..at].into()));
        }
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push(Clause::Text("%".into()));
            rest = after;
            continue;
        }
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let n = after.bytes().take_while(u8::is_ascii_digit).count();
            let digits = after[..n].parse().ok().filter(|p| *p <= MAX_PRECISION);
            precision = Some(digits.ok_or("could not parse formatting clause: error while parsing precision")?);
            rest = &after[n..];
        }
        let verb = rest.chars().next().ok_or("unexpected end of string")?;
        if !"sdfebxXo".contains(verb) {
            return Err(format!("could not parse formatting clause: unrecognized formatting clause \"{verb}\""));
        }
        out.push(Clause::Verb(verb, precision));
        rest = &rest[verb.len_utf8()..];
    }
    if !rest.is_empty() {
        out.push(Clause::Text(rest.into()));
    }
    Ok(out)
}

/// Why a verb does not take a type.
pub(crate) fn verb_error(verb: char, given: &str) -> String {
    let rule = match verb {
        'b' => "only integers and bools can be formatted as binary",
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
    };
    format!("{rule}, was given {given}")
}

fn format(text: &str, args: &List<'_>) -> Eval<String> {
    let mut out = String::new();
    let mut next = 0;
    for clause in clauses(text).or_else(fail)? {
        let (verb, precision) = match clause {
            Clause::Text(t) => {
                out.push_str(&t);
                continue;
            }
            Clause::Verb(v, p) => (v, p),
        };
        let Some(arg) = args.get(next) else { return fail(format!("index {next} out of range")) };
        let arg = arg?;
        next += 1;
        match apply(verb, precision, &arg) {
            Some(t) => out.push_str(&t),
            None => {
                let message = verb_error(verb, &arg.type_of().runtime_name());
                return fail(format!("error during formatting: {message}"));
            }
        }
        if out.len() > MAX_TEXT {
            return fail("string too large");
        }
    }
    Ok(out)
}

fn apply(verb: char, precision: Option<usize>, v: &Val<'_>) -> Option<String> {
    let double = || match v {
        Val::Double(d) => Some(*d),
        Val::Str(s) if matches!(&**s, "NaN" | "Infinity" | "-Infinity") => s.parse().ok(),
        _ => None,
    };
    match (verb, v) {
        ('d', Val::Int(_) | Val::Uint(_)) => to_text(v),
        ('b', Val::Bool(b)) => Some(u8::from(*b).to_string()),
        ('b', Val::Int(i)) => Some(signed(*i, |n| format!("{n:b}"))),
        ('b', Val::Uint(u)) => Some(format!("{u:b}")),
        ('o', Val::Int(i)) => Some(signed(*i, |n| format!("{n:o}"))),
        ('o', Val::Uint(u)) => Some(format!("{u:o}")),
        ('x', Val::Int(i)) => Some(signed(*i, |n| format!("{n:x}"))),
        ('X', Val::Int(i)) => Some(signed(*i, |n| format!("{n:X}"))),
        ('x', Val::Uint(u)) => Some(format!("{u:x}")),
        ('X', Val::Uint(u)) => Some(format!("{u:X}")),
        ('x', Val::Str(s)) => Some(s.bytes().map(|b| format!("{b:02x}")).collect()),
        ('X', Val::Str(s)) => Some(s.bytes().map(|b| format!("{b:02X}")).collect()),
        ('x', Val::Bytes(b)) => Some(b.iter().map(|b| format!("{b:02x}")).collect()),
        ('X', Val::Bytes(b)) => Some(b.iter().map(|b| format!("{b:02X}")).collect()),
        ('f', _) => double().map(|d| fixed(d, precision.unwrap_or(6))),
        // The reference implementation prints six decimals whatever was asked for.
        ('e', _) => double().map(|d| scientific(d, 6)),
        ('s', _) => string_clause(v, false),
        _ => None,
    }
}

fn signed(i: i64, show: impl Fn(u64) -> String) -> String {
    let sign = if i < 0 { "-" } else { "" };
    format!("{sign}{}", show(i.unsigned_abs()))
}

fn special(d: f64) -> Option<&'static str> {
    match d {
        d if d.is_nan() => Some("NaN"),
        d if d == f64::INFINITY => Some("∞"),
        d if d == f64::NEG_INFINITY => Some("-∞"),
        _ => None,
    }
}

/// English grouping: `1,234.50`.
fn fixed(d: f64, precision: usize) -> String {
    if let Some(s) = special(d) {
        return s.into();
    }
    let text = format!("{d:.precision$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |t| ("-", t));
    let (whole, fraction) = text.find('.').map_or((text, ""), |i| text.split_at(i));
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(c);
    }
    format!("{sign}{grouped}{fraction}")
}

fn scientific(d: f64, precision: usize) -> String {
    if let Some(s) = special(d) {
        return s.into();
    }
    let text = format!("{d:.precision$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}×10{}", superscript(&format!("{}{:02}", if sign == '-' { "-" } else { "" }, exponent.abs())))
}

fn superscript(digits: &str) -> String {
    let raise = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => c.to_digit(10).and_then(|d| char::from_u32(0x2070 + d)).unwrap_or(c),
    };
    digits.chars().map(raise).collect()
}

/// `%s`; within lists and maps, text is quoted and doubles have six decimals.
fn string_clause(v: &Val<'_>, nested: bool) -> Option<String> {
    match v {
        Val::Null => Some("null".into()),
        Val::Str(s) if nested => Some(quote(s)),
        Val::Bytes(b) if nested => Some(format!("b{}", quote(&String::from_utf8_lossy(b)))),
        Val::Double(d) if nested => Some(format!("{d:.6}")),
        Val::Type(t) if nested => Some(format!("type({})", t.runtime_name())),
        Val::Timestamp(_) if nested => Some(format!("timestamp({})", quote(&to_text(v)?))),
        Val::Duration(_) if nested => Some(format!("duration({})", quote(&to_text(v)?))),
        Val::List(l) => {
            let items: Option<Vec<String>> = l.items().map(|i| string_clause(&i.ok()?, true)).collect();
            Some(format!("[{}]", items?.join(", ")))
        }
        Val::Map(m) => map_clause(m),
        Val::Ip(_) | Val::Cidr(..) => None,
        _ => to_text(v),
    }
}

fn map_clause(m: &Map<'_>) -> Option<String> {
    let mut pairs = Vec::new();
    for (k, v) in m.entries().ok()? {
        let key = match Key::of(&k)? {
            Key::Str(s) => quote(&s),
            _ => to_text(&k)?,
        };
        pairs.push(format!("{key}: {}", string_clause(&v, true)?));
    }
    pairs.sort();
    Some(format!("{{{}}}", pairs.join(", ")))
}
