//! The actual cost of a call.

use crate::value::{List, Map, Val};

/// The part of a string that one unit of cost pays for traversing.
pub(crate) const STRING_FACTOR: f64 = 0.1;
/// An estimate of the number of states per character of a pattern.
pub(crate) const REGEX_FACTOR: f64 = 0.25;
pub(crate) const LIST_CREATE: u64 = 10;
pub(crate) const MAP_CREATE: u64 = 30;

fn scaled(n: f64, factor: f64) -> u64 {
    (n * factor).ceil() as u64
}

fn text(n: u64) -> u64 {
    scaled(n as f64, STRING_FACTOR)
}

/// One for each leaf, by length for text.
fn traversal(v: &Val<'_>) -> u64 {
    match v {
        Val::Str(s) => (s.len() as f64 * STRING_FACTOR) as u64,
        Val::Bytes(b) => (b.len() as f64 * STRING_FACTOR) as u64,
        Val::List(List::Own(items)) => items.iter().map(traversal).sum(),
        Val::List(l) => l.items().map(|v| v.map_or(1, |v| traversal(&v))).sum(),
        Val::Map(m) => Map::entries(m).map_or(1, |e| e.iter().map(|(k, v)| traversal(k) + traversal(v)).sum()),
        _ => 1,
    }
}

fn regex(string: u64, pattern: u64) -> u64 {
    scaled(1.0 + string as f64, STRING_FACTOR).saturating_mul(scaled(pattern as f64, REGEX_FACTOR))
}

fn self_compare(l: &Val<'_>) -> u64 {
    let n = l.size();
    let stringy = matches!(l, Val::List(l) if matches!(l.get(0), Some(Ok(Val::Str(_) | Val::Bytes(_)))));
    let factor = if stringy { 2.0 + STRING_FACTOR } else { 2.0 };
    ((n.saturating_mul(n)) as f64 * factor) as u64 + 1 + LIST_CREATE
}

/// The cost of a call. `overload` is the one the checker chose, if it could choose.
pub(crate) fn call(func: &str, overload: Option<&str>, args: &[Val<'_>], result: &Val<'_>) -> u64 {
    let size = |i: usize| args.get(i).map_or(1, Val::size);
    if let Some(cost) = by_overload_first(overload.unwrap_or_default(), args, result) {
        return cost;
    }
    match func {
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => return args.first().map_or(0, traversal),
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP" | "isCIDR" | "quantity"
        | "isQuantity" | "semver" | "isSemver" => return text(size(0)),
        "ip" if overload == Some("cidr_ip") => return 1,
        "ip" => return text(size(0)),
        "replace" | "split" | "ip.isCanonical" => return scaled(size(0) as f64 * 2.0, STRING_FACTOR),
        "join" => return scaled(result.size() as f64 * 2.0, STRING_FACTOR),
        "find" | "findAll" => return regex(size(0), size(1)),
        "containsIP" => {
            let parse = if overload == Some("cidr_contains_ip_string") { text(size(1)) } else { 0 };
            return text(2 * size(0)) + parse;
        }
        "containsCIDR" => {
            let parse = if overload == Some("cidr_contains_cidr_string") { text(size(1)) } else { 0 };
            return text(2 * size(0)) + text(size(0)) + 1 + parse;
        }
        "validate" => {
            if let Some(Val::Format(f)) = args.first() {
                return regex(size(1), f.regex_size);
            }
        }
        "_==_" => {
            let opaque = matches!(
                args.first(),
                Some(Val::Quantity(_) | Val::Ip(_) | Val::Cidr(..) | Val::Format(_) | Val::Url(_) | Val::Semver(_))
            );
            if opaque {
                return 1;
            }
        }
        _ => {}
    }
    match overload.unwrap_or_default() {
        "starts_with_string" | "ends_with_string" => text(size(1)),
        "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => text(size(0)),
        "in_list" => size(1),
        "equals" | "not_equals" => text(size(0).min(size(1))),
        o if (o.starts_with("less_") || o.starts_with("greater_"))
            && (o.ends_with("_string") || o.ends_with("_bytes")) =>
        {
            text(size(0).min(size(1)))
        }
        "add_string" | "add_bytes" => text(size(0) + size(1)),
        "matches" | "matches_string" => regex(size(0), size(1)),
        "contains_string" => text(size(0)).saturating_mul(text(size(1))),
        _ => 1,
    }
}

fn by_overload_first(overload: &str, args: &[Val<'_>], result: &Val<'_>) -> Option<u64> {
    let size = |i: usize| args.get(i).map_or(1, Val::size);
    let allocating = |factor: f64, n: u64| (n as f64 * factor) as u64 + 1 + LIST_CREATE;
    Some(match overload {
        "list_slice" | "lists_range" | "list_reverse" => allocating(1.0, result.size()),
        "list_flatten" => allocating(1.0, size(0)),
        "list_flatten_int" => match args.get(1) {
            Some(Val::Int(depth)) => allocating(if *depth < 0 { 1.0 } else { *depth as f64 }, size(0)),
            _ => allocating(1.0, size(0)),
        },
        "list_distinct" => self_compare(args.first()?),
        o if o.ends_with("_sort") => self_compare(args.first()?),
        o if o.ends_with("_sortByAssociatedKeys") => self_compare(args.get(1)?),
        "list_sets_contains_list" | "list_sets_intersects_list" => 1 + size(0).saturating_mul(size(1)),
        "list_sets_equivalent_list" => 1 + size(0).saturating_mul(size(1)).saturating_mul(2),
        _ => return None,
    })
}
