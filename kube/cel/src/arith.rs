//! Arithmetic that never wraps.

use crate::time::Time;
use crate::value::{Eval, List, Val, fail, no_overload};
use std::rc::Rc;

const INT: &str = "integer overflow";
const UINT: &str = "unsigned integer overflow";

fn int<'a>(n: Option<i64>) -> Eval<Val<'a>> {
    n.map_or_else(|| fail(INT), |n| Ok(Val::Int(n)))
}

fn uint<'a>(n: Option<u64>) -> Eval<Val<'a>> {
    n.map_or_else(|| fail(UINT), |n| Ok(Val::Uint(n)))
}

fn duration<'a>(n: Option<i64>) -> Eval<Val<'a>> {
    n.map_or_else(|| fail(INT), |n| Ok(Val::Duration(n)))
}

fn moved<'a>(t: &Time, nanos: i64, back: bool) -> Eval<Val<'a>> {
    let nanos = i128::from(nanos);
    match t.moved(if back { -nanos } else { nanos }) {
        Some(t) => Ok(Val::Timestamp(t)),
        None => fail("timestamp overflow"),
    }
}

pub(crate) fn add<'a>(a: &Val<'a>, b: &Val<'a>) -> Eval<Val<'a>> {
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => int(a.checked_add(*b)),
        (Val::Uint(a), Val::Uint(b)) => uint(a.checked_add(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
        (Val::Str(a), Val::Str(b)) => Ok(Val::str(format!("{}{}", &**a, &**b))),
        (Val::Bytes(a), Val::Bytes(b)) => Ok(Val::Bytes(Rc::from([&**a, &**b].concat()))),
        (Val::List(a), Val::List(b)) => a.plus(b).map(Val::List),
        (Val::Duration(a), Val::Duration(b)) => duration(a.checked_add(*b)),
        (Val::Timestamp(t), Val::Duration(d)) | (Val::Duration(d), Val::Timestamp(t)) => moved(t, *d, false),
        _ => no_overload(),
    }
}

fn subtract<'a>(a: &Val<'a>, b: &Val<'a>) -> Eval<Val<'a>> {
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => int(a.checked_sub(*b)),
        (Val::Uint(a), Val::Uint(b)) => uint(a.checked_sub(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a - b)),
        (Val::Duration(a), Val::Duration(b)) => duration(a.checked_sub(*b)),
        (Val::Timestamp(t), Val::Duration(d)) => moved(t, *d, true),
        (Val::Timestamp(a), Val::Timestamp(b)) => duration(i64::try_from(a.nanos - b.nanos).ok()),
        _ => no_overload(),
    }
}

pub(crate) fn binary<'a>(op: &str, a: &Val<'a>, b: &Val<'a>) -> Eval<Val<'a>> {
    match op {
        "_+_" => return add(a, b),
        "_-_" => return subtract(a, b),
        _ => {}
    }
    match (op, a, b) {
        ("_*_", Val::Int(a), Val::Int(b)) => int(a.checked_mul(*b)),
        ("_*_", Val::Uint(a), Val::Uint(b)) => uint(a.checked_mul(*b)),
        ("_*_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a * b)),
        ("_/_", Val::Int(_), Val::Int(0)) | ("_/_", Val::Uint(_), Val::Uint(0)) => fail("division by zero"),
        ("_/_", Val::Int(a), Val::Int(b)) => int(a.checked_div(*b)),
        ("_/_", Val::Uint(a), Val::Uint(b)) => uint(a.checked_div(*b)),
        ("_/_", Val::Double(a), Val::Double(b)) => Ok(Val::Double(a / b)),
        ("_%_", Val::Int(_), Val::Int(0)) | ("_%_", Val::Uint(_), Val::Uint(0)) => fail("modulus by zero"),
        ("_%_", Val::Int(a), Val::Int(b)) => int(a.checked_rem(*b)),
        ("_%_", Val::Uint(a), Val::Uint(b)) => uint(a.checked_rem(*b)),
        _ => no_overload(),
    }
}

pub(crate) fn negate<'a>(v: &Val<'a>) -> Eval<Val<'a>> {
    match v {
        Val::Int(i) => int(i.checked_neg()),
        Val::Double(d) => Ok(Val::Double(-d)),
        _ => no_overload(),
    }
}

pub(crate) fn compare<'a>(op: &str, a: &Val<'a>, b: &Val<'a>) -> Eval<Val<'a>> {
    let nan = |v: &Val<'_>| matches!(v, Val::Double(d) if d.is_nan());
    let Some(order) = a.compare(b) else {
        return if nan(a) || nan(b) { fail("NaN values cannot be ordered") } else { no_overload() };
    };
    Ok(Val::Bool(match op {
        "_<_" => order.is_lt(),
        "_<=_" => order.is_le(),
        "_>_" => order.is_gt(),
        _ => order.is_ge(),
    }))
}

pub(crate) fn contains<'a>(v: &Val<'a>, container: &Val<'a>) -> Eval<Val<'a>> {
    match container {
        Val::List(l) => Ok(Val::Bool(List::contains(l, v))),
        Val::Map(m) => Ok(Val::Bool(m.get(v).is_some())),
        _ => no_overload(),
    }
}
