//! Literals that could never work, found when a rule is written instead of when it runs.

use crate::ast::{Entry, Expr, ExprKind, Lit};
use crate::checker::Checked;
use crate::source::Issues;
use crate::types::Type;
use std::collections::HashSet;

pub(crate) fn validate(expr: &Expr, checked: &Checked, issues: &mut Issues) {
    let mut exempt = HashSet::new();
    expr.walk(&mut |e| {
        if matches!(&e.kind, ExprKind::Call { func, .. } if func == "format") {
            e.walk(&mut |inner| {
                exempt.insert(inner.id);
            });
        }
    });
    let mut bad: Vec<(usize, String)> = Vec::new();
    expr.walk(&mut |e| match &e.kind {
        ExprKind::Call { func, target, args } => {
            if let ("format", Some(target), [list]) = (func.as_str(), target, args.as_slice()) {
                bad.extend(format_call(e, target, list, checked));
            }
            bad.extend(text_argument(func, args));
        }
        ExprKind::List { elems, optional } if !exempt.contains(&e.id) => {
            let mut types = elems.iter().zip(optional).map(|(e, o)| (e.pos, value_type(checked, e, *o)));
            if let Some((_, first)) = types.next()
                && let Some((pos, other)) = types.find(|(_, t)| *t != first)
            {
                bad.push((pos, format!("expected type '{first}' but found '{other}'")));
            }
        }
        ExprKind::Map { entries } if !exempt.contains(&e.id) => bad.extend(mixed_entries(entries, checked)),
        _ => {}
    });
    for (pos, message) in bad {
        issues.report(Some(pos), message);
    }
}

fn value_type(checked: &Checked, e: &Expr, optional: bool) -> Type {
    let t = checked.types[e.id].clone();
    if optional { t.unwrap_optional().0 } else { t }
}

fn mixed_entries(entries: &[Entry], checked: &Checked) -> Vec<(usize, String)> {
    let Some((first, rest)) = entries.split_first() else { return Vec::new() };
    let keys = |e: &Entry| checked.types[e.key.id].clone();
    let values = |e: &Entry| value_type(checked, &e.value, e.optional);
    let pairs = rest.iter().flat_map(|e| [(e.key.pos, keys(first), keys(e)), (e.value.pos, values(first), values(e))]);
    pairs
        .filter(|(_, want, got)| want != got)
        .map(|(pos, want, got)| (pos, format!("expected type '{want}' but found '{got}'")))
        .collect()
}

fn text_argument(func: &str, args: &[Expr]) -> Option<(usize, String)> {
    let Some(Expr { kind: ExprKind::Lit(Lit::Str(s)), pos, .. }) = args.first() else { return None };
    let broken = match func {
        "duration" => crate::time::parse_duration(s).is_none(),
        "timestamp" => crate::time::parse_timestamp(s).is_none(),
        "matches" => fleetwright_syntax::regexp::check(s).is_err(),
        _ => false,
    };
    broken.then(|| (*pos, format!("invalid {func} argument")))
}

fn format_call(call: &Expr, target: &Expr, list: &Expr, checked: &Checked) -> Option<(usize, String)> {
    let (ExprKind::Lit(Lit::Str(text)), ExprKind::List { elems, .. }) = (&target.kind, &list.kind) else { return None };
    let clauses = match crate::strings::clauses(text) {
        Ok(c) => c,
        Err(message) => return Some((call.pos, message)),
    };
    let clauses: Vec<_> = clauses.iter().filter_map(|c| c.verb()).collect();
    if clauses.len() > elems.len() {
        return Some((call.pos, format!("index {} out of range", elems.len())));
    }
    for (verb, e) in clauses.iter().zip(elems) {
        let t = &checked.types[e.id];
        let fits = match (verb, t) {
            (_, Type::Dyn) => true,
            ('d' | 'o', t) => matches!(t, Type::Int | Type::Uint),
            ('b', t) => matches!(t, Type::Int | Type::Uint | Type::Bool),
            ('x' | 'X', t) => matches!(t, Type::Int | Type::Uint | Type::String | Type::Bytes),
            ('f' | 'e', t) => matches!(t, Type::Double | Type::String),
            (_, t) => !matches!(t, Type::Object(_) | Type::Abstract(_) | Type::Optional(_)),
        };
        if !fits {
            let message = crate::strings::verb_error(*verb, &t.runtime_name());
            return Some((e.pos, format!("error during formatting: {message}")));
        }
    }
    (elems.len() > clauses.len()).then(|| {
        let (want, got) = (clauses.len(), elems.len());
        (call.pos, format!("too many arguments supplied to string.format (expected {want}, got {got})"))
    })
}
