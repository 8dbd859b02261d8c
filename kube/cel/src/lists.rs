//! The functions on lists and sets.

use crate::value::{Eval, List, Val, fail, no_overload};
use std::cmp::Ordering;

/// What `lists.range` may allocate.
pub(crate) const MAX_RANGE: i64 = 1_000_000;

pub(crate) fn call<'a>(func: &str, args: &[Val<'a>]) -> Eval<Val<'a>> {
    match (func, args) {
        ("indexOf", [Val::List(l), v]) => position(l, v, false),
        ("lastIndexOf", [Val::List(l), v]) => position(l, v, true),
        ("isSorted", [Val::List(l)]) => {
            let items = l.collect()?;
            let pairs = items.iter().zip(items.iter().skip(1));
            Ok(Val::Bool(pairs.into_iter().all(|(a, b)| a.compare(b) != Some(Ordering::Greater))))
        }
        ("min", [Val::List(l)]) => extreme(l, Ordering::Less, "min called on empty list"),
        ("max", [Val::List(l)]) => extreme(l, Ordering::Greater, "max called on empty list"),
        ("slice", [Val::List(l), Val::Int(from), Val::Int(to)]) => slice(l, *from, *to),
        ("flatten", [Val::List(l)]) => flatten(l, 1),
        ("flatten", [Val::List(_), Val::Int(depth)]) if *depth < 0 => fail("level must be non-negative"),
        ("flatten", [Val::List(l), Val::Int(depth)]) => flatten(l, *depth),
        ("sort", [Val::List(l)]) => sort_by(l, l),
        ("@sortByAssociatedKeys", [Val::List(l), Val::List(keys)]) => sort_by(l, keys),
        ("lists.range", [Val::Int(n)]) => match n {
            0..=MAX_RANGE => Ok(Val::list((0..*n).map(Val::Int).collect())),
            ..0 => fail(format!("lists.range: size must be non-negative, got {n}")),
            _ => fail(format!("lists.range: size {n} exceeds maximum allowed ({MAX_RANGE})")),
        },
        ("reverse", [Val::List(l)]) => {
            let mut items = l.collect()?;
            items.reverse();
            Ok(Val::list(items))
        }
        ("distinct", [Val::List(l)]) => {
            let mut out: Vec<Val<'a>> = Vec::new();
            for v in l.collect()? {
                if !out.iter().any(|o| o.equals(&v)) {
                    out.push(v);
                }
            }
            Ok(Val::list(out))
        }
        ("first", [Val::List(l)]) => element(l, Some(0)),
        ("last", [Val::List(l)]) => element(l, l.len().checked_sub(1)),
        ("optional.unwrap" | "unwrapOpt", [Val::List(l)]) => {
            let mut out = Vec::new();
            for v in l.collect()? {
                match v {
                    Val::Optional(v) => out.extend(v.map(|v| (*v).clone())),
                    _ => return fail("value is not optional"),
                }
            }
            Ok(Val::list(out))
        }
        ("sets.contains", [Val::List(a), Val::List(b)]) => Ok(Val::Bool(covers(a, b)?)),
        ("sets.equivalent", [Val::List(a), Val::List(b)]) => Ok(Val::Bool(covers(a, b)? && covers(b, a)?)),
        ("sets.intersects", [Val::List(a), Val::List(b)]) => Ok(Val::Bool(a.collect()?.iter().any(|v| b.contains(v)))),
        _ => no_overload(),
    }
}

/// `sum` of an empty list is the zero of the type that the checker found.
pub(crate) fn sum<'a>(list: &List<'a>, overload: Option<&str>) -> Eval<Val<'a>> {
    let mut items = list.collect()?.into_iter();
    let Some(mut total) = items.next() else {
        return Ok(match overload {
            Some("list_uint_sum_uint") => Val::Uint(0),
            Some("list_double_sum_double") => Val::Double(0.0),
            Some("list_duration_sum_duration") => Val::Duration(0),
            _ => Val::Int(0),
        });
    };
    for v in items {
        total = crate::arith::add(&total, &v)?;
    }
    Ok(total)
}

fn covers(all: &List<'_>, some: &List<'_>) -> Eval<bool> {
    Ok(some.collect()?.iter().all(|v| all.contains(v)))
}

fn position<'a>(l: &List<'a>, v: &Val<'a>, last: bool) -> Eval<Val<'a>> {
    let items = l.collect()?;
    let found = if last { items.iter().rposition(|i| i.equals(v)) } else { items.iter().position(|i| i.equals(v)) };
    Ok(Val::Int(found.map_or(-1, |i| i as i64)))
}

fn extreme<'a>(l: &List<'a>, want: Ordering, empty: &str) -> Eval<Val<'a>> {
    let mut items = l.collect()?.into_iter();
    let Some(mut best) = items.next() else { return fail(empty) };
    for v in items {
        match v.compare(&best) {
            Some(o) if o == want => best = v,
            Some(_) => {}
            None => return no_overload(),
        }
    }
    Ok(best)
}

fn slice<'a>(l: &List<'a>, from: i64, to: i64) -> Eval<Val<'a>> {
    if from < 0 || to < 0 {
        return fail(format!("cannot slice({from}, {to}), negative indexes not supported"));
    }
    if from > to {
        return fail(format!("cannot slice({from}, {to}), start index must be less than or equal to end index"));
    }
    if to > l.len() as i64 {
        return fail(format!("cannot slice({from}, {to}), list is length {}", l.len()));
    }
    let items = l.items().skip(from as usize).take((to - from) as usize);
    Ok(Val::list(items.collect::<Eval<_>>()?))
}

fn flatten<'a>(l: &List<'a>, depth: i64) -> Eval<Val<'a>> {
    // A worklist instead of recursion: the depth is the writer's, the nesting the data's.
    let mut out = Vec::new();
    let mut stack: Vec<(Val<'a>, i64)> = l.collect()?.into_iter().rev().map(|v| (v, depth)).collect();
    while let Some((v, depth)) = stack.pop() {
        match v {
            Val::List(inner) if depth > 0 => {
                stack.extend(inner.collect()?.into_iter().rev().map(|v| (v, depth - 1)));
            }
            v => out.push(v),
        }
    }
    Ok(Val::list(out))
}

fn sort_by<'a>(l: &List<'a>, keys: &List<'a>) -> Eval<Val<'a>> {
    let mut pairs: Vec<(Val<'a>, Val<'a>)> = keys.collect()?.into_iter().zip(l.collect()?).collect();
    let Some((first, _)) = pairs.first() else { return Ok(Val::list(Vec::new())) };
    let kind = first.type_of();
    if first.compare(first).is_none() && !matches!(first, Val::Double(_)) {
        return fail("list elements must be comparable");
    }
    if pairs.iter().any(|(k, _)| k.type_of() != kind) {
        return fail("list elements must have the same type");
    }
    pairs.sort_by(|a, b| a.0.compare(&b.0).unwrap_or(Ordering::Equal));
    Ok(Val::list(pairs.into_iter().map(|(_, v)| v).collect()))
}

fn element<'a>(l: &List<'a>, at: Option<usize>) -> Eval<Val<'a>> {
    match at.and_then(|i| l.get(i)) {
        Some(v) => Ok(Val::some(v?)),
        None => Ok(Val::Optional(None)),
    }
}
