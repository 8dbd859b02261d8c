//! Type checking: every node gets a type, every call the overloads that fit it.

use crate::ast::{Comprehension, Entry, Expr, ExprKind, Lit};
use crate::decl::DeclKind;
use crate::overloads;
use crate::source::{CompileError, Issues};
use crate::types::{CIDR, IP, Mapping, Type, most_general};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What checking found out, by node id.
#[derive(Debug)]
pub(crate) struct Checked {
    pub types: Vec<Type>,
    pub overloads: Vec<Vec<&'static str>>,
    /// Nodes that name a type, such as `int` in `type(x) == int`.
    pub type_names: HashMap<usize, Type>,
    /// Calls written as `a.b()` where `a.b` is the function's name.
    pub qualified: HashMap<usize, String>,
    /// The declared variables that the expression mentions.
    pub uses: HashSet<String>,
}

pub(crate) fn check(source: &str, expr: &Expr, nodes: usize, vars: &[(String, Type)]) -> Result<Checked, CompileError> {
    let mut checker = Checker {
        issues: Issues::new(source),
        mapping: Mapping::default(),
        free: 0,
        scopes: vars.to_vec(),
        globals: vars.len(),
        out: Checked {
            types: vec![Type::Error; nodes],
            overloads: vec![Vec::new(); nodes],
            type_names: HashMap::new(),
            qualified: HashMap::new(),
            uses: HashSet::new(),
        },
    };
    checker.check(expr);
    for t in &mut checker.out.types {
        *t = checker.mapping.substitute(t, true);
    }
    if checker.issues.is_empty() {
        crate::literals::validate(expr, &checker.out, &mut checker.issues);
    }
    if checker.issues.is_empty() { Ok(checker.out) } else { Err(checker.issues.into_error()) }
}

struct Checker {
    issues: Issues,
    mapping: Mapping,
    free: usize,
    scopes: Vec<(String, Type)>,
    globals: usize,
    out: Checked,
}

fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "null_type" => Type::Null,
        "dyn" => Type::Dyn,
        "type" => Type::Type(Arc::new(Type::Dyn)),
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        IP => Type::Abstract(IP),
        CIDR => Type::Abstract(CIDR),
        _ => return None,
    })
}

impl Checker {
    fn error(&mut self, e: &Expr, message: String) {
        self.issues.report(Some(e.pos), message);
    }

    fn type_of(&self, e: &Expr) -> Type {
        self.out.types.get(e.id).cloned().unwrap_or(Type::Error)
    }

    fn fresh(&mut self) -> Type {
        self.free += 1;
        Type::Var(self.free - 1)
    }

    fn check(&mut self, e: &Expr) -> Type {
        let t = match &e.kind {
            ExprKind::Lit(lit) => match lit {
                Lit::Null => Type::Null,
                Lit::Bool(_) => Type::Bool,
                Lit::Int(_) => Type::Int,
                Lit::Uint(_) => Type::Uint,
                Lit::Double(_) => Type::Double,
                Lit::Str(_) => Type::String,
                Lit::Bytes(_) => Type::Bytes,
            },
            ExprKind::Ident(name) => self.ident(e, name),
            ExprKind::Select { operand, field, test } => self.select(e, operand, field, *test),
            ExprKind::Call { func, target, args } => self.call(e, func, target.as_deref(), args),
            ExprKind::List { elems, optional } => self.list(elems, optional),
            ExprKind::Map { entries } => self.map(entries),
            ExprKind::Comprehension(c) => self.comprehension(c),
        };
        self.out.types[e.id] = t.clone();
        t
    }

    fn lookup(&mut self, name: &str) -> Option<Type> {
        let at = self.scopes.iter().rposition(|(n, _)| n == name)?;
        if at < self.globals {
            self.out.uses.insert(name.to_owned());
        }
        self.scopes.get(at).map(|(_, t)| t.clone())
    }

    fn named_type(&mut self, e: &Expr, name: &str) -> Option<Type> {
        let t = type_named(name)?;
        self.out.type_names.insert(e.id, t.clone());
        Some(Type::Type(Arc::new(t)))
    }

    fn ident(&mut self, e: &Expr, name: &str) -> Type {
        if let Some(t) = self.lookup(name).or_else(|| self.named_type(e, name)) {
            return t;
        }
        self.error(e, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn select(&mut self, e: &Expr, operand: &Expr, field: &str, test: bool) -> Type {
        if !test
            && let Some(name) = e.qualified_name()
            && let Some(t) = self.named_type(e, &name)
        {
            return t;
        }
        let t = self.select_field(e, operand, field, false);
        if test { Type::Bool } else { self.mapping.substitute(&t, false) }
    }

    fn select_field(&mut self, e: &Expr, operand: &Expr, field: &str, optional: bool) -> Type {
        let t = self.check(operand);
        let (target, was_optional) = self.mapping.substitute(&t, false).unwrap_optional();
        let result = match &target {
            Type::Map(_, v) => (**v).clone(),
            Type::Object(decl) => match &decl.kind {
                DeclKind::Object(o) if o.fields.contains_key(field) => o.fields[field].decl.to_type(),
                _ => {
                    self.error(e, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Abstract(name) if name.starts_with("kubernetes.") => {
                self.error(e, format!("undefined field '{field}'"));
                Type::Error
            }
            Type::Var(_) => {
                self.mapping.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            t if t.is_dyn_or_error() => Type::Dyn,
            t => {
                let message = format!("type '{t}' does not support field selection");
                self.error(e, message);
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(result) } else { result }
    }

    fn call(&mut self, e: &Expr, func: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if func == "_?._" {
            if let [operand, Expr { kind: ExprKind::Lit(Lit::Str(field)), id, .. }] = args {
                self.out.types[*id] = Type::String;
                let t = self.select_field(e, operand, field, true);
                self.out.overloads[e.id] = vec!["select_optional_field"];
                return self.mapping.substitute(&t, false);
            }
            return Type::Error;
        }
        for a in args {
            self.check(a);
        }
        if let Some(t) = target {
            if let Some(prefix) = t.qualified_name() {
                let name = format!("{prefix}.{func}");
                if overloads::table().contains_key(name.as_str()) {
                    let result = self.resolve(e, &name, None, args);
                    self.out.qualified.insert(e.id, name);
                    return result;
                }
            }
            self.check(t);
        }
        if !overloads::table().contains_key(func) {
            self.error(e, format!("undeclared reference to '{func}' (in container '')"));
            return Type::Error;
        }
        self.resolve(e, func, target, args)
    }

    fn resolve(&mut self, e: &Expr, func: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        let Some(candidates) = overloads::table().get(func) else { return Type::Error };
        if matches!(func, "_&&_" | "_||_") {
            return self.logical(e, candidates[0].id, args);
        }
        let mut types: Vec<Type> = target.into_iter().chain(args).map(|a| self.type_of(a)).collect();
        let mut result: Option<Type> = None;
        for o in candidates {
            if o.member != target.is_some() || o.args.len() != types.len() {
                continue;
            }
            let mut fresh = HashMap::new();
            let params: Vec<Type> = o.args.iter().map(|a| self.instantiate(a, &mut fresh)).collect();
            let out = self.instantiate(&o.result, &mut fresh);
            let pairs: Vec<(&Type, &Type)> = types.iter().zip(&params).collect();
            if !self.mapping.assignable_all(&pairs) {
                continue;
            }
            self.out.overloads[e.id].push(o.id);
            let out = self.mapping.substitute(&out, false);
            match &result {
                None => result = Some(out),
                Some(Type::Dyn) => {}
                Some(first) if *first == out => {}
                Some(_) => result = Some(Type::Dyn),
            }
        }
        if let Some(t) = result {
            return t;
        }
        for t in &mut types {
            *t = self.mapping.substitute(t, true);
        }
        let names: Vec<String> = types.iter().map(Type::to_string).collect();
        let signature = match (target, names.split_first()) {
            (Some(_), Some((receiver, rest))) => format!("{receiver}.({})", rest.join(", ")),
            _ => format!("({})", names.join(", ")),
        };
        self.error(e, format!("found no matching overload for '{func}' applied to '{signature}'"));
        Type::Error
    }

    fn logical(&mut self, e: &Expr, id: &'static str, args: &[Expr]) -> Type {
        let mut ok = true;
        for a in args {
            let t = self.type_of(a);
            if !self.mapping.assignable(&t, &Type::Bool) {
                let t = self.mapping.substitute(&t, true);
                self.error(a, format!("expected type 'bool' but found '{t}'"));
                ok = false;
            }
        }
        self.out.overloads[e.id].push(id);
        if ok { Type::Bool } else { Type::Error }
    }

    fn instantiate(&mut self, t: &Type, fresh: &mut HashMap<char, Type>) -> Type {
        match t {
            Type::Param(c) => match fresh.get(c) {
                Some(t) => t.clone(),
                None => {
                    let t = self.fresh();
                    fresh.insert(*c, t.clone());
                    t
                }
            },
            Type::List(e) => Type::list(self.instantiate(e, fresh)),
            Type::Optional(e) => Type::optional(self.instantiate(e, fresh)),
            Type::Type(e) => Type::Type(Arc::new(self.instantiate(e, fresh))),
            Type::Map(k, v) => Type::map(self.instantiate(k, fresh), self.instantiate(v, fresh)),
            t => t.clone(),
        }
    }

    /// The common type of what came before and the next element. Whether a mixture is allowed is decided later.
    fn join(&mut self, before: Option<Type>, t: Type) -> Type {
        match before {
            None => t,
            Some(before) if self.mapping.assignable(&before, &t) => most_general(&before, &t),
            Some(_) => Type::Dyn,
        }
    }

    fn element(&mut self, e: &Expr, optional: bool) -> Type {
        let t = self.check(e);
        if !optional {
            return t;
        }
        let (inner, was) = t.unwrap_optional();
        if !was && !matches!(inner, Type::Dyn) {
            self.error(e, format!("expected type 'optional_type({inner})' but found '{inner}'"));
        }
        inner
    }

    fn list(&mut self, elems: &[Expr], optional: &[bool]) -> Type {
        let mut common = None;
        for (e, opt) in elems.iter().zip(optional) {
            let t = self.element(e, *opt);
            common = Some(self.join(common, t));
        }
        let common = common.unwrap_or_else(|| self.fresh());
        Type::list(common)
    }

    fn map(&mut self, entries: &[Entry]) -> Type {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let k = self.check(&entry.key);
            keys = Some(self.join(keys, k));
            let v = self.element(&entry.value, entry.optional);
            values = Some(self.join(values, v));
        }
        // Nothing composite can be a key; were it kept, types could double with each nesting.
        let composite = |t: &Type| matches!(t, Type::List(_) | Type::Map(..) | Type::Optional(_) | Type::Type(_));
        let keys = keys.map(|k| self.mapping.substitute(&k, false)).map(|k| if composite(&k) { Type::Dyn } else { k });
        let keys = keys.unwrap_or_else(|| self.fresh());
        let values = values.unwrap_or_else(|| self.fresh());
        Type::map(keys, values)
    }

    fn comprehension(&mut self, c: &Comprehension) -> Type {
        let range = self.check(&c.range);
        let accu = self.check(&c.init);
        let range = self.mapping.substitute(&range, false);
        let two = c.var2.is_some();
        let (var, var2) = match &range {
            Type::List(e) if two => (Type::Int, (**e).clone()),
            Type::List(e) => ((**e).clone(), Type::Dyn),
            Type::Map(k, v) => ((**k).clone(), (**v).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.mapping.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            t => {
                let message = format!(
                    "expression of type '{t}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.error(&c.range, message);
                (Type::Error, Type::Error)
            }
        };
        self.scopes.push((c.accu.clone(), accu.clone()));
        let outer = self.scopes.len();
        self.scopes.push((c.var.clone(), var));
        if let Some(name) = &c.var2 {
            self.scopes.push((name.clone(), var2));
        }
        self.check(&c.cond);
        self.expect(&c.cond, &Type::Bool);
        self.check(&c.step);
        self.expect(&c.step, &accu);
        self.scopes.truncate(outer);
        let result = self.check(&c.result);
        self.scopes.truncate(outer - 1);
        self.mapping.substitute(&result, false)
    }

    fn expect(&mut self, e: &Expr, want: &Type) {
        let got = self.type_of(e);
        if !self.mapping.assignable(want, &got) {
            let (want, got) = (self.mapping.substitute(want, false), self.mapping.substitute(&got, false));
            self.error(e, format!("expected type '{want}' but found '{got}'"));
        }
    }
}
