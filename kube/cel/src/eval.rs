//! Evaluation. Cost is counted step by step and the evaluation ends where it passes the limit.

use crate::ast::{Comprehension, Entry, Expr, ExprKind, Lit};
use crate::checker::Checked;
use crate::decl::Decl;
use crate::runtime_cost::{self, LIST_CREATE, MAP_CREATE};
use crate::types::Type;
use crate::value::{Eval, EvalError, Key, List, Map, Str, Val, fail, no_overload};
use crate::{arith, functions};
use fleetwright_syntax::regexp;
use regex::Regex;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// What evaluation needs of a compiled expression.
#[derive(Debug)]
pub(crate) struct Plan {
    pub expr: Expr,
    pub checked: Checked,
    /// Patterns given as literals, by the node of the call.
    pub regexes: HashMap<usize, Regex>,
    /// List and map literals and conversions made of literals only, which cost nothing.
    pub constants: HashSet<usize>,
}

impl Plan {
    /// Tries every conversion of a literal, which would fail each time if it failed once.
    pub fn fold_conversions(&self) -> Eval<()> {
        let mut result = Ok(());
        self.expr.walk(&mut |e| {
            if matches!(e.kind, ExprKind::Call { .. }) && self.constants.contains(&e.id) && result.is_ok() {
                result = Evaluator::new(self, &[], u64::MAX).eval(e).map(drop);
            }
        });
        result
    }
}

/// A variable's value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub name: &'a str,
    pub json: Option<&'a Value>,
    pub decl: &'a Arc<Decl>,
    pub optional: bool,
}

/// Copying lists is cheap in cost but not in time; this many elements may be copied in one evaluation.
const COPY_LIMIT: u64 = 4_000_000;

/// One evaluation.
pub(crate) struct Evaluator<'a> {
    plan: &'a Plan,
    vars: &'a [Binding<'a>],
    scope: Vec<(&'a str, Eval<Val<'a>>)>,
    pub cost: u64,
    limit: u64,
    copies: u64,
    /// The last pattern that was not a literal.
    last_regex: Option<(String, u64, Result<Regex, String>)>,
}

impl<'a> Evaluator<'a> {
    pub fn new(plan: &'a Plan, vars: &'a [Binding<'a>], limit: u64) -> Self {
        Self { plan, vars, scope: Vec::new(), cost: 0, limit, copies: 0, last_regex: None }
    }

    pub fn run(&mut self) -> Eval<Val<'a>> {
        let plan = self.plan;
        self.eval(&plan.expr)
    }

    fn charge(&mut self, cost: u64) -> Eval<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(EvalError::CostLimitExceeded) } else { Ok(()) }
    }

    fn copied(&mut self, elements: usize) -> Eval<()> {
        self.copies = self.copies.saturating_add(elements as u64);
        if self.copies > COPY_LIMIT { Err(EvalError::CostLimitExceeded) } else { Ok(()) }
    }

    fn eval(&mut self, e: &'a Expr) -> Eval<Val<'a>> {
        match &e.kind {
            ExprKind::Lit(lit) => Ok(literal(lit)),
            ExprKind::Ident(name) => self.ident(e, name),
            ExprKind::Select { operand, field, test } => self.select(e, operand, field, *test),
            ExprKind::Call { func, target, args } => self.call(e, func, target.as_deref(), args),
            ExprKind::List { elems, optional } => self.list(e, elems, optional),
            ExprKind::Map { entries } => self.map(e, entries),
            ExprKind::Comprehension(c) => self.comprehension(c),
        }
    }

    fn ident(&mut self, e: &'a Expr, name: &'a str) -> Eval<Val<'a>> {
        if let Some(t) = self.plan.checked.type_names.get(&e.id) {
            return Ok(Val::Type(t.clone()));
        }
        self.charge(1)?;
        if let Some((_, v)) = self.scope.iter().rev().find(|(n, _)| *n == name) {
            return v.clone();
        }
        let Some(var) = self.vars.iter().find(|v| v.name == name) else {
            return fail(format!("no such attribute(s): {name}"));
        };
        match var.json {
            Some(json) if var.optional => Ok(Val::some(Val::from_json(json, var.decl)?)),
            Some(json) => Val::from_json(json, var.decl),
            None if var.optional => Ok(Val::Optional(None)),
            None => fail(format!("no such attribute(s): {name}")),
        }
    }

    /// Reading from what is no variable or path costs one more: the reader has to be set up.
    fn operand(&mut self, e: &'a Expr) -> Eval<Val<'a>> {
        let v = self.eval(e)?;
        let ternary = matches!(&e.kind, ExprKind::Call { func, .. } if func == "_?_:_");
        if !ternary && !self.is_path(e) {
            self.charge(1)?;
        }
        Ok(v)
    }

    /// Evaluates what becomes part of a path: its own start is not paid again.
    fn inlined(&mut self, e: &'a Expr) -> Eval<Val<'a>> {
        let v = self.eval(e);
        if self.is_path(e) {
            self.cost = self.cost.saturating_sub(1);
        }
        v
    }

    /// A variable, or a field or element of something.
    fn is_path(&self, e: &Expr) -> bool {
        match &e.kind {
            ExprKind::Ident(_) | ExprKind::Select { test: false, .. } => {
                !self.plan.checked.type_names.contains_key(&e.id)
            }
            ExprKind::Call { func, .. } => matches!(func.as_str(), "_[_]" | "_[?_]" | "_?._"),
            _ => false,
        }
    }

    fn select(&mut self, e: &'a Expr, operand: &'a Expr, field: &'a str, test: bool) -> Eval<Val<'a>> {
        if let Some(t) = self.plan.checked.type_names.get(&e.id) {
            return Ok(Val::Type(t.clone()));
        }
        let v = self.operand(operand)?;
        if test {
            return Ok(Val::Bool(self.optional_field(&v, field)?.is_some()));
        }
        self.charge(1)?;
        if let Val::Optional(_) = v {
            return Ok(Val::Optional(self.optional_field(&v, field)?.map(Rc::new)));
        }
        match self.optional_field(&v, field)? {
            Some(found) => Ok(found),
            None => fail(format!("no such key: {field}")),
        }
    }

    fn optional_field(&self, v: &Val<'a>, field: &str) -> Eval<Option<Val<'a>>> {
        match v {
            Val::Map(m) => m.field(field).transpose(),
            Val::Optional(None) => Ok(None),
            Val::Optional(Some(inner)) => self.optional_field(inner, field),
            _ => Ok(None),
        }
    }

    fn index(&mut self, container: &'a Expr, at: &'a Expr, optional: bool) -> Eval<Val<'a>> {
        let v = self.operand(container)?;
        let i = self.inlined(at)?;
        let (v, optional) = match v {
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(inner)) => ((*inner).clone(), true),
            v => (v, optional),
        };
        let found = match &v {
            Val::List(l) => match Key::of(&i) {
                Some(Key::Int(n)) => usize::try_from(n).ok().and_then(|n| l.get(n)),
                _ => return no_overload(),
            },
            Val::Map(m) => m.get(&i),
            _ => None,
        };
        if found.is_some() || !optional {
            self.charge(1)?;
        }
        match found {
            Some(found) if optional => Ok(Val::some(found?)),
            Some(found) => found,
            None if optional => Ok(Val::Optional(None)),
            None => {
                let shown = crate::convert::to_text(&i).unwrap_or_default();
                let what = if matches!(v, Val::List(_)) { "index out of bounds" } else { "no such key" };
                fail(format!("{what}: {shown}"))
            }
        }
    }

    fn list(&mut self, e: &'a Expr, elems: &'a [Expr], optional: &'a [bool]) -> Eval<Val<'a>> {
        let mut out = Vec::with_capacity(elems.len());
        for (elem, optional) in elems.iter().zip(optional) {
            match (self.eval(elem)?, optional) {
                (v, false) => out.push(v),
                (Val::Optional(v), true) => out.extend(v.map(|v| (*v).clone())),
                _ => return no_overload(),
            }
        }
        if !self.plan.constants.contains(&e.id) {
            self.charge(LIST_CREATE)?;
        }
        Ok(Val::list(out))
    }

    fn map(&mut self, e: &'a Expr, entries: &'a [Entry]) -> Eval<Val<'a>> {
        let mut out = BTreeMap::new();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let Some(k) = Key::of(&key) else { return fail(format!("unsupported key type: {}", key.type_of())) };
            let value = match (self.eval(&entry.value)?, entry.optional) {
                (v, false) => v,
                (Val::Optional(Some(v)), true) => (*v).clone(),
                (Val::Optional(None), true) => continue,
                _ => return no_overload(),
            };
            out.insert(k, value);
        }
        if !self.plan.constants.contains(&e.id) {
            self.charge(MAP_CREATE)?;
        }
        Ok(Val::Map(Map::Own(Rc::new(out))))
    }

    fn call(&mut self, e: &'a Expr, func: &'a str, target: Option<&'a Expr>, args: &'a [Expr]) -> Eval<Val<'a>> {
        match (func, target, args) {
            ("_&&_", ..) => return self.logical(args, false),
            ("_||_", ..) => return self.logical(args, true),
            ("_?_:_", _, [cond, yes, no]) => {
                return match self.eval(cond)? {
                    Val::Bool(true) => self.inlined(yes),
                    Val::Bool(false) => self.inlined(no),
                    _ => no_overload(),
                };
            }
            ("@in", _, [_, Expr { kind: ExprKind::List { elems, .. }, .. }]) if elems.is_empty() => {
                return Ok(Val::Bool(false));
            }
            ("_[_]", _, [v, i]) => return self.index(v, i, false),
            ("_[?_]", _, [v, i]) => return self.index(v, i, true),
            ("_?._", _, [v, Expr { kind: ExprKind::Lit(Lit::Str(field)), .. }]) => {
                let v = self.operand(v)?;
                let found = self.optional_field(&v, field)?;
                self.charge(found.is_some().into())?;
                return Ok(Val::Optional(found.map(Rc::new)));
            }
            ("@not_strictly_false", _, [arg]) => {
                let v = self.eval(arg);
                self.charge(1)?;
                return match v {
                    Err(EvalError::Failed(_)) => Ok(Val::Bool(true)),
                    v => v,
                };
            }
            ("or" | "orValue", Some(target), [other]) => {
                return match self.eval(target)? {
                    Val::Optional(Some(v)) if func == "orValue" => Ok((*v).clone()),
                    Val::Optional(None) => self.eval(other),
                    v @ Val::Optional(_) => Ok(v),
                    _ => no_overload(),
                };
            }
            _ => {}
        }
        self.plain_call(e, func, target, args)
    }

    fn plain_call(&mut self, e: &'a Expr, func: &'a str, target: Option<&'a Expr>, args: &'a [Expr]) -> Eval<Val<'a>> {
        let qualified = self.plan.checked.qualified.get(&e.id);
        let target = if qualified.is_some() { None } else { target };
        let func = qualified.map_or(func, String::as_str);
        let mut values = Vec::with_capacity(args.len() + 1);
        for a in target.into_iter().chain(args) {
            match self.eval(a) {
                Ok(v) => values.push(v),
                Err(e) => {
                    // A call whose argument failed was still made.
                    self.charge(1)?;
                    return Err(e);
                }
            }
        }
        let overload = match self.plan.checked.overloads[e.id].as_slice() {
            [one] => Some(*one),
            _ => None,
        };
        let result = match (func, values.as_slice()) {
            ("_+_", [a, b]) => {
                if let (Val::List(a), Val::List(b)) = (a, b) {
                    self.copied(a.len() + b.len())?;
                }
                arith::add(a, b)?
            }
            ("matches" | "find" | "findAll", [Val::Str(s), Val::Str(pattern), rest @ ..]) => {
                match self.plan.regexes.get(&e.id) {
                    Some(re) => functions::search(func, re, s, rest)?,
                    None => {
                        // A pattern from the data is bounded before it is compiled.
                        self.charge(runtime_cost::call(func, overload, &values, &Val::Null))?;
                        match self.regex(pattern, s.len())? {
                            Ok(re) => return functions::search(func, re, s, rest),
                            Err(why) if func == "matches" => return fail(why.as_str()),
                            Err(why) => return fail(format!("Illegal regex: {why}")),
                        }
                    }
                }
            }
            ("sum", [Val::List(l)]) => crate::lists::sum(l, overload)?,
            ("lists.range", [Val::Int(n)]) if (1..=crate::lists::MAX_RANGE).contains(n) => {
                self.charge(*n as u64 + 1 + LIST_CREATE)?;
                return functions::call(func, &values);
            }
            _ => match functions::call(func, &values) {
                Ok(v) => v,
                Err(e) => {
                    self.charge(1)?;
                    return Err(e);
                }
            },
        };
        let free = self.plan.constants.contains(&e.id)
            || (func == "@in" && args.last().is_some_and(|l| self.is_constant_list(l)));
        if !free {
            self.charge(runtime_cost::call(func, overload, &values, &result))?;
        }
        Ok(result)
    }

    /// Compiles a pattern that is not a literal. Its effort is a cost, which Kubernetes counts by the pattern's length only;
    /// a pattern that is the same for each element of a list is compiled and paid once. The search in a text of that many bytes costs more
    /// with a pattern that is large when compiled.
    fn regex(&mut self, pattern: &str, text: usize) -> Eval<&Result<Regex, String>> {
        let compiled = match self.last_regex.take().filter(|(last, ..)| last == pattern) {
            Some(compiled) => compiled,
            None => {
                let effort = regexp::effort(pattern);
                self.charge(effort)?;
                (pattern.to_owned(), effort, regexp::compile(pattern))
            }
        };
        self.charge((text as u64 / 10).saturating_mul(compiled.1 / 100))?;
        Ok(&self.last_regex.insert(compiled).2)
    }

    fn is_constant_list(&self, e: &Expr) -> bool {
        matches!(e.kind, ExprKind::List { .. }) && self.plan.constants.contains(&e.id)
    }

    /// `&&` and `||` decide on any deciding term, even if another one fails.
    fn logical(&mut self, terms: &'a [Expr], deciding: bool) -> Eval<Val<'a>> {
        let mut error = None;
        for t in terms {
            match self.eval(t) {
                Ok(Val::Bool(b)) if b == deciding => return Ok(Val::Bool(deciding)),
                Ok(Val::Bool(_)) => {}
                Ok(_) => error = error.or(Some(EvalError::Failed("no such overload".into()))),
                Err(e @ EvalError::Failed(_)) => error = error.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        error.map_or(Ok(Val::Bool(!deciding)), Err)
    }

    fn comprehension(&mut self, c: &'a Comprehension) -> Eval<Val<'a>> {
        if c.is_bind() {
            let value = self.eval(&c.init)?;
            self.scope.push((&c.accu, Ok(value)));
            let result = self.eval(&c.result);
            self.scope.pop();
            return result;
        }
        let range = self.eval(&c.range)?;
        let depth = self.scope.len();
        let result = match Collector::of(c) {
            Some(collector) => self.collect(c, &collector, &range),
            None => self.fold(c, &range),
        };
        self.scope.truncate(depth);
        result
    }

    fn fold(&mut self, c: &'a Comprehension, range: &Val<'a>) -> Eval<Val<'a>> {
        let init = self.eval(&c.init);
        let accu = self.scope.len();
        self.scope.push((&c.accu, init));
        self.each(c, range, |m| {
            match m.eval(&c.cond) {
                Ok(Val::Bool(true)) => {}
                Ok(Val::Bool(false)) => return Ok(false),
                Ok(_) => return no_overload(),
                Err(e) => return Err(e),
            }
            let step = m.eval(&c.step);
            if let Err(e @ (EvalError::CostLimitExceeded | EvalError::BudgetExhausted)) = step {
                return Err(e);
            }
            if let Some(slot) = m.scope.get_mut(accu) {
                slot.1 = step;
            }
            Ok(true)
        })?;
        self.eval(&c.result)
    }

    /// Runs `step` for each element with the iteration variables in scope, until it says stop.
    fn each(
        &mut self,
        c: &'a Comprehension,
        range: &Val<'a>,
        mut step: impl FnMut(&mut Self) -> Eval<bool>,
    ) -> Eval<()> {
        let depth = self.scope.len();
        let count = match range {
            Val::List(l) => l.len(),
            Val::Map(m) => m.len(),
            other => return fail(format!("got '{}', expected iterable type", other.type_of().runtime_name())),
        };
        let keys = if let Val::Map(m) = range { m.keys() } else { Vec::new() };
        for i in 0..count {
            match range {
                Val::List(l) => {
                    let item = l.get(i).unwrap_or_else(no_overload);
                    match &c.var2 {
                        Some(v2) => {
                            self.scope.push((&c.var, Ok(Val::Int(i as i64))));
                            self.scope.push((v2, item));
                        }
                        None => self.scope.push((&c.var, item)),
                    }
                }
                Val::Map(m) => {
                    let Some(key) = keys.get(i) else { break };
                    self.scope.push((&c.var, Ok(key.clone())));
                    if let Some(v2) = &c.var2 {
                        self.scope.push((v2, m.get(key).unwrap_or_else(no_overload)));
                    }
                }
                _ => return no_overload(),
            }
            let go_on = step(self);
            self.scope.truncate(depth);
            if !go_on? {
                break;
            }
        }
        Ok(())
    }

    /// `map`, `filter` and their kin fill one container in place; adding to a copy each time would take quadratic time.
    fn collect(&mut self, c: &'a Comprehension, collector: &Collector<'a>, range: &Val<'a>) -> Eval<Val<'a>> {
        if !self.plan.constants.contains(&c.init.id) {
            self.charge(if collector.into_map { MAP_CREATE } else { LIST_CREATE })?;
        }
        let mut items: Vec<Val<'a>> = Vec::new();
        let mut entries: BTreeMap<Key, Val<'a>> = BTreeMap::new();
        self.each(c, range, |m| {
            if let Some(filter) = collector.filter {
                match m.eval(filter)? {
                    Val::Bool(true) => {}
                    Val::Bool(false) => return Ok(true),
                    _ => return no_overload(),
                }
            }
            // The accumulator is read and written.
            m.charge(2)?;
            match collector.args {
                [Expr { id, kind: ExprKind::List { elems, .. }, .. }] if !collector.into_map => {
                    if let [elem] = elems.as_slice() {
                        items.push(m.eval(elem)?);
                    }
                    if !m.plan.constants.contains(id) {
                        m.charge(LIST_CREATE)?;
                    }
                }
                [key, value] => {
                    let key = m.eval(key)?;
                    let value = m.eval(value)?;
                    insert(&mut entries, &key, value)?;
                }
                [map] => match m.eval(map)? {
                    Val::Map(more) => {
                        for (k, v) in more.entries()? {
                            insert(&mut entries, &k, v)?;
                        }
                    }
                    _ => return no_overload(),
                },
                _ => return no_overload(),
            }
            Ok(true)
        })?;
        self.charge(1)?;
        Ok(if collector.into_map { Val::Map(Map::Own(Rc::new(entries))) } else { Val::List(List::Own(Rc::new(items))) })
    }
}

fn insert<'a>(entries: &mut BTreeMap<Key, Val<'a>>, key: &Val<'a>, value: Val<'a>) -> Eval<()> {
    let Some(k) = Key::of(key) else { return fail(format!("unsupported key type: {}", key.type_of())) };
    if entries.insert(k, value).is_some() {
        let shown = crate::convert::to_text(key).unwrap_or_default();
        return fail(format!("insert failed: key {shown} already exists"));
    }
    Ok(())
}

/// A fold whose step only ever adds to its accumulator.
struct Collector<'a> {
    filter: Option<&'a Expr>,
    args: &'a [Expr],
    into_map: bool,
}

impl<'a> Collector<'a> {
    fn of(c: &'a Comprehension) -> Option<Self> {
        let is_accu = |e: &Expr| matches!(&e.kind, ExprKind::Ident(n) if *n == c.accu);
        let call = |e: &'a Expr| match &e.kind {
            ExprKind::Call { func, target: None, args } => Some((func.as_str(), args.as_slice())),
            _ => None,
        };
        if !is_accu(&c.result) {
            return None;
        }
        let (filter, step) = match call(&c.step)? {
            ("_?_:_", [filter, step, same]) if is_accu(same) => (Some(filter), step),
            _ => (None, &c.step),
        };
        let (func, [first, args @ ..]) = call(step)? else { return None };
        let into_map = match func {
            "_+_" if matches!(args, [Expr { kind: ExprKind::List { elems, .. }, .. }] if elems.len() == 1) => false,
            "cel.@mapInsert" => true,
            _ => return None,
        };
        is_accu(first).then_some(Self { filter, args, into_map })
    }
}

fn literal(lit: &Lit) -> Val<'_> {
    match lit {
        Lit::Null => Val::Null,
        Lit::Bool(b) => Val::Bool(*b),
        Lit::Int(i) => Val::Int(*i),
        Lit::Uint(u) => Val::Uint(*u),
        Lit::Double(d) => Val::Double(*d),
        Lit::Str(s) => Val::Str(Str::Ref(s)),
        Lit::Bytes(b) => Val::Bytes(b.as_slice().into()),
    }
}

/// Conversions, which are made in advance if their argument is known.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Which aggregates and conversions are made of literals only.
pub(crate) fn constants(expr: &Expr) -> HashSet<usize> {
    fn constant(e: &Expr, out: &mut HashSet<usize>) -> bool {
        let all = match &e.kind {
            ExprKind::Lit(_) => return true,
            ExprKind::List { elems, optional } => !optional.contains(&true) && elems.iter().all(|e| constant(e, out)),
            ExprKind::Map { entries } => {
                entries.iter().all(|e| !e.optional && constant(&e.key, out) && constant(&e.value, out))
            }
            ExprKind::Call { func, target: None, args } if CONVERSIONS.contains(&func.as_str()) => {
                args.len() == 1 && args.iter().all(|a| constant(a, out))
            }
            _ => false,
        };
        if all {
            out.insert(e.id);
        }
        all
    }
    let mut out = HashSet::new();
    expr.walk(&mut |e| {
        if !out.contains(&e.id) {
            constant(e, &mut out);
        }
    });
    out
}

/// The type an expression must have, as the error says it.
pub(crate) fn wrong_type(expected: &Type) -> &'static str {
    match expected {
        Type::String => "messageExpression must evaluate to a string",
        _ => "cel expression must evaluate to a bool",
    }
}
