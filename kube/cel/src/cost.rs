//! The worst case of what an expression can cost, from the sizes that the schema allows.
//!
//! Which rules may be written into a CRD depends on these numbers, so that the estimate follows the reference
//! implementation even where it is odd: a value reached through no variable is sized as the root of the schema.

use crate::ast::{Comprehension, Expr, ExprKind, Lit};
use crate::checker::Checked;
use crate::decl::{Decl, DeclKind};
use crate::runtime_cost::{LIST_CREATE, MAP_CREATE, REGEX_FACTOR, STRING_FACTOR};
use crate::types::{self, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// Smallest and largest size of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    min: u64,
    max: u64,
}

const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

impl Size {
    fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    fn plus(self, o: Self) -> Self {
        Self { min: self.min.saturating_add(o.min), max: self.max.saturating_add(o.max) }
    }

    fn times(self, o: Self) -> Self {
        Self { min: self.min.saturating_mul(o.min), max: self.max.saturating_mul(o.max) }
    }

    fn union(self, o: Self) -> Self {
        Self { min: self.min.min(o.min), max: self.max.max(o.max) }
    }

    /// The cost of the largest value.
    fn cost(self, factor: f64) -> u64 {
        factored(self.max, factor)
    }
}

fn factored(n: u64, factor: f64) -> u64 {
    // Conversion saturates.
    (n as f64 * factor).ceil() as u64
}

/// Sizes of what is in a list or map.
#[derive(Debug, Clone, Copy)]
struct EntrySize {
    is_list: bool,
    key: Size,
    value: Size,
}

impl EntrySize {
    fn union(self, o: Self) -> Self {
        Self { is_list: self.is_list, key: self.key.union(o.key), value: self.value.union(o.value) }
    }
}

/// Where a value comes from: `None` if from no variable, else its declaration if it has one.
type Path = Option<Option<Arc<Decl>>>;

#[derive(Debug, Clone)]
struct Local {
    path: Path,
    size: Option<Size>,
    entry: Option<EntrySize>,
}

/// The declared variables and the root, by which sizes are looked up.
pub(crate) struct Declared<'d> {
    pub vars: Vec<(&'d str, &'d Arc<Decl>)>,
}

pub(crate) fn estimate(expr: &Expr, checked: &Checked, declared: &Declared<'_>) -> u64 {
    let mut coster = CostEstimator {
        checked,
        declared,
        locals: HashMap::new(),
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    coster.cost(expr)
}

struct CostEstimator<'c> {
    checked: &'c Checked,
    declared: &'c Declared<'c>,
    locals: HashMap<&'c str, Vec<Local>>,
    paths: HashMap<usize, Path>,
    sizes: HashMap<usize, Size>,
    entries: HashMap<usize, EntrySize>,
}

/// The cost of a call without its arguments, and the size of what it gives.
type CallCost = (u64, Option<Size>);

impl<'c> CostEstimator<'c> {
    fn cost(&mut self, e: &'c Expr) -> u64 {
        match &e.kind {
            ExprKind::Lit(_) => 0,
            ExprKind::Ident(name) => {
                let path = match self.local(name) {
                    Some(l) => l.path.clone(),
                    None => self.variable(name),
                };
                self.paths.insert(e.id, path);
                1
            }
            ExprKind::Select { .. } if self.checked.type_names.contains_key(&e.id) => {
                self.paths.insert(e.id, Some(self.root()));
                1
            }
            ExprKind::Select { operand, test: true, .. } => self.cost(operand),
            ExprKind::Select { operand, field, .. } => {
                let below = self.cost(operand);
                let path = self.step(self.path(operand), field);
                self.paths.insert(e.id, path);
                let own = matches!(self.type_of(operand), Type::Map(..) | Type::Object(_) | Type::Abstract(_));
                below.saturating_add(own.into())
            }
            ExprKind::Call { func, target, args } => self.call(e, func, target.as_deref(), args),
            ExprKind::List { elems, .. } => {
                let (sum, value) = self.all(elems.iter());
                self.entries.insert(e.id, EntrySize { is_list: true, key: Size::fixed(1), value });
                sum.saturating_add(LIST_CREATE)
            }
            ExprKind::Map { entries } => {
                let (keys, key) = self.all(entries.iter().map(|e| &e.key));
                let (values, value) = self.all(entries.iter().map(|e| &e.value));
                self.entries.insert(e.id, EntrySize { is_list: false, key, value });
                keys.saturating_add(values).saturating_add(MAP_CREATE)
            }
            ExprKind::Comprehension(c) if c.is_bind() => self.bind(e, c),
            ExprKind::Comprehension(c) => self.comprehension(e, c),
        }
    }

    /// The summed cost and the range of sizes of several expressions.
    fn all(&mut self, exprs: impl Iterator<Item = &'c Expr>) -> (u64, Size) {
        let mut sum = 0_u64;
        let mut size: Option<Size> = None;
        for e in exprs {
            sum = sum.saturating_add(self.cost(e));
            let s = self.size_or_unknown(e);
            size = Some(size.map_or(s, |before| before.union(s)));
        }
        (sum, size.unwrap_or(Size::fixed(0)))
    }

    fn type_of(&self, e: &Expr) -> &'c Type {
        self.checked.types.get(e.id).unwrap_or(&Type::Dyn)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.get(name).and_then(|stack| stack.last())
    }

    fn variable(&self, name: &str) -> Path {
        let found = self.declared.vars.iter().find(|(n, _)| *n == name).map(|(_, d)| (*d).clone());
        Some(found.or_else(|| self.root()))
    }

    fn root(&self) -> Option<Arc<Decl>> {
        self.declared.vars.first().map(|(_, d)| (*d).clone())
    }

    fn path(&self, e: &Expr) -> Path {
        if let ExprKind::Ident(name) = &e.kind
            && let Some(l) = self.local(name)
        {
            return l.path.clone();
        }
        self.paths.get(&e.id).cloned().flatten()
    }

    fn step(&self, path: Path, name: &str) -> Path {
        let Some(decl) = path else { return Some(self.root()) };
        let below = decl.and_then(|d| match (&d.kind, name) {
            (DeclKind::List(items, _), "@items" | "@values") => Some(items.clone()),
            (DeclKind::Map(values), "@items" | "@values") => Some(values.clone()),
            (DeclKind::Map(_), "@keys") => Some(Arc::new(Decl::new(DeclKind::String))),
            (DeclKind::Object(o), name) => o.fields.get(name).map(|f| f.decl.clone()),
            _ => None,
        });
        Some(below)
    }

    fn declared_size(path: &Path) -> Option<Size> {
        path.as_ref()?.as_ref().map(|d| Size { min: 0, max: d.max_elements })
    }

    fn size(&self, e: &Expr) -> Option<Size> {
        if let Some(s) = self.sizes.get(&e.id) {
            return Some(*s);
        }
        let own = match &e.kind {
            ExprKind::Lit(Lit::Str(s)) => Some(s.chars().count()),
            ExprKind::Lit(Lit::Bytes(b)) => Some(b.len()),
            ExprKind::Lit(_) => Some(1),
            ExprKind::List { elems, .. } => Some(elems.len()),
            ExprKind::Map { entries } => Some(entries.len()),
            _ => None,
        };
        if let Some(n) = own {
            return Some(Size::fixed(n as u64));
        }
        if let Some(s) = Self::declared_size(&self.path(e)) {
            return Some(s);
        }
        if is_scalar(self.type_of(e)) {
            return Some(Size::fixed(1));
        }
        match &e.kind {
            ExprKind::Ident(name) => self.local(name).and_then(|l| l.size),
            _ => None,
        }
    }

    fn size_or_unknown(&self, e: &Expr) -> Size {
        self.size(e).unwrap_or(UNKNOWN)
    }

    fn entry(&self, e: &Expr) -> Option<EntrySize> {
        let own = self.entries.get(&e.id).copied();
        own.or_else(|| match &e.kind {
            ExprKind::Ident(name) => self.local(name).and_then(|l| l.entry),
            _ => None,
        })
    }

    fn push(&mut self, name: &'c str, local: Local) {
        self.locals.entry(name).or_default().push(local);
    }

    fn pop(&mut self, name: &str) {
        if let Some(stack) = self.locals.get_mut(name) {
            stack.pop();
        }
    }

    fn push_value(&mut self, name: &'c str, e: &Expr) {
        let local = Local { path: self.path(e), size: self.size(e), entry: self.entry(e) };
        self.push(name, local);
    }

    /// An iteration variable: a list's elements, or a map's keys or values.
    fn push_iteration(&mut self, name: &'c str, range: &Expr, what: Iteration) {
        let entry = self.entry(range);
        let is_list = entry.map_or(matches!(self.type_of(range), Type::List(_)), |e| e.is_list);
        let (step, value) = match (what, is_list) {
            (Iteration::Single | Iteration::Value, true) => ("@items", true),
            (Iteration::Value, false) => ("@values", true),
            (Iteration::Key, true) => ("@indices", false),
            (Iteration::Single | Iteration::Key, false) => ("@keys", false),
        };
        let size = entry.map(|e| if value { e.value } else { e.key });
        let path = self.step(self.path(range), step);
        self.push(name, Local { path, size, entry: None });
    }

    fn bind(&mut self, e: &'c Expr, c: &'c Comprehension) -> u64 {
        let mut sum = self.cost(&c.range).saturating_add(self.cost(&c.init));
        self.push_value(&c.accu, &c.init);
        sum = sum.saturating_add(self.cost(&c.result));
        self.keep(e, &c.result);
        self.pop(&c.accu);
        sum
    }

    /// Gives `e` the sizes of `from`.
    fn keep(&mut self, e: &Expr, from: &Expr) {
        if let Some(s) = self.size(from) {
            self.sizes.insert(e.id, s);
        }
        if let Some(s) = self.entry(from) {
            self.entries.insert(e.id, s);
        }
    }

    fn comprehension(&mut self, e: &'c Expr, c: &'c Comprehension) -> u64 {
        let mut sum = self.cost(&c.range).saturating_add(self.cost(&c.init));
        self.push_value(&c.accu, &c.init);
        match &c.var2 {
            Some(var2) => {
                self.push_iteration(&c.var, &c.range, Iteration::Key);
                self.push_iteration(var2, &c.range, Iteration::Value);
            }
            None => self.push_iteration(&c.var, &c.range, Iteration::Single),
        }
        let turn = self.cost(&c.cond).saturating_add(self.cost(&c.step));
        self.pop(&c.var);
        if let Some(var2) = &c.var2 {
            self.pop(var2);
        }
        sum = sum.saturating_add(self.cost(&c.result));
        self.pop(&c.accu);
        let count = self.size_or_unknown(&c.range);
        match &c.init.kind {
            ExprKind::Lit(_) => {
                if let Some(s) = self.size(&c.init) {
                    self.sizes.insert(e.id, s);
                }
            }
            ExprKind::List { .. } | ExprKind::Map { .. } => {
                self.sizes.insert(e.id, count);
                if let Some(entry) = self.entry(&c.step) {
                    self.entries.insert(e.id, entry);
                }
            }
            _ => {}
        }
        sum.saturating_add(count.max.saturating_mul(turn))
    }

    fn call(&mut self, e: &'c Expr, func: &'c str, target: Option<&'c Expr>, args: &'c [Expr]) -> u64 {
        if func == "dyn" && args.len() == 1 {
            let below = self.cost(&args[0]);
            self.keep(e, &args[0]);
            return below.saturating_add(1);
        }
        let qualified = self.checked.qualified.get(&e.id);
        let target = if qualified.is_some() { None } else { target };
        let func = qualified.map_or(func, String::as_str);
        let mut costs = Vec::with_capacity(args.len());
        for a in args {
            costs.push(self.cost(a));
        }
        let overloads = self.checked.overloads.get(e.id).map_or(&[][..], Vec::as_slice);
        if overloads.is_empty() {
            return 0;
        }
        let mut sum = target.map_or(0, |t| self.cost(t));
        let arguments = costs.iter().fold(0_u64, |a, c| a.saturating_add(*c));
        let mut worst = 0;
        let mut result: Option<Size> = None;
        for overload in overloads {
            let (cost, size) = self.overload(e, func, overload, target, args);
            let total = match (*overload, costs.as_slice()) {
                ("conditional", [c, y, n]) => c.saturating_add(*y.max(n)),
                ("logical_and" | "logical_or", _) => arguments,
                _ => cost.saturating_add(arguments),
            };
            worst = worst.max(total);
            result = match (result, size) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            let step = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(container)) = (step, args.first()) {
                result = self.entry(container).map(|e| e.value);
                let path = self.step(self.path(container), step);
                self.paths.insert(e.id, path);
            }
            result = result.or_else(|| self.size(e));
        }
        if let Some(size) = result {
            self.sizes.insert(e.id, size);
        }
        sum = sum.saturating_add(worst);
        sum
    }

    fn overload(
        &mut self,
        e: &Expr,
        func: &str,
        overload: &str,
        target: Option<&'c Expr>,
        args: &'c [Expr],
    ) -> CallCost {
        if let Some(found) = self.extension(overload, target, args) {
            return found;
        }
        if let Some(found) = self.kubernetes(func, overload, target, args) {
            return found;
        }
        self.standard(e, overload, target, args)
    }

    fn extension(&self, overload: &str, target: Option<&Expr>, args: &[Expr]) -> Option<CallCost> {
        let allocating = |factor: f64, s: Size| Some((s.cost(factor).saturating_add(1 + LIST_CREATE), Some(s)));
        let of = |e: Option<&Expr>| e.map(|e| self.size_or_unknown(e));
        let text = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
        let compare = if text { 2.0 + STRING_FACTOR } else { 2.0 };
        match overload {
            "list_slice" => {
                let size = of(target)?;
                let (from, to) = (int_or(args.first(), 0), int_or(args.get(1), size.max));
                allocating(1.0, Size::fixed(to.wrapping_sub(from)))
            }
            "lists_range" => allocating(1.0, Size::fixed(int_or(args.first(), u64::MAX))),
            "list_reverse" => allocating(1.0, of(target)?),
            "list_flatten" => allocating(1.0, of(target)?),
            "list_flatten_int" => allocating(int_or(args.first(), u64::MAX) as f64, of(target)?),
            "list_distinct" => of(target).and_then(|s| allocating(2.0, s.times(s))),
            o if o.ends_with("_sort") => of(target).and_then(|s| allocating(compare, s.times(s))),
            o if o.ends_with("_sortByAssociatedKeys") => of(args.first()).and_then(|s| allocating(compare, s.times(s))),
            "list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list" => {
                let both = of(args.first())?.times(of(args.get(1))?);
                let factor = if overload == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                Some((both.cost(factor).saturating_add(1), None))
            }
            _ => None,
        }
    }

    /// The size of a list's elements, if the type says what they are.
    fn element(&self, list: &Expr) -> Option<(&'c Type, Size)> {
        let t: &'c Type = match self.type_of(list) {
            Type::List(t) | Type::Optional(t) | Type::Map(t, _) => t,
            _ => return None,
        };
        let path = self.path(list);
        let size = path.is_some().then(|| Self::declared_size(&self.step(path, "@items"))).flatten();
        Some((t, size.unwrap_or(UNKNOWN)))
    }

    fn kubernetes(&self, func: &str, overload: &str, target: Option<&Expr>, args: &[Expr]) -> Option<CallCost> {
        let of = |e: Option<&Expr>| e.map(|e| self.size_or_unknown(e));
        let network = Size { min: 4, max: 16 };
        Some(match func {
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let size = of(target)?;
                match self.element(target?) {
                    Some((t, element)) => {
                        let text = matches!(t, Type::String | Type::Bytes);
                        let each = 1_u64.saturating_add(if text { element.cost(STRING_FACTOR) } else { 0 });
                        (size.max.saturating_mul(each), None)
                    }
                    None => (size.cost(STRING_FACTOR), None),
                }
            }
            "url" if args.len() == 1 => of(args.first()).map(|s| (s.cost(STRING_FACTOR), Some(s)))?,
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                of(target).map(|s| (s.cost(STRING_FACTOR), Some(s)))?
            }
            "replace" => {
                let size = of(target)?;
                let result = replaced(size, of(args.first())?, of(args.get(1))?);
                (size.cost(2.0 * STRING_FACTOR), Some(result))
            }
            "split" => {
                let size = of(target)?;
                (size.cost(2.0 * STRING_FACTOR), Some(Size { min: 0, max: int_or(args.get(1), size.max) }))
            }
            "join" => {
                let list = of(target)?;
                let mut size = self.element(target?).map_or(Size::fixed(0), |(_, e)| list.times(e));
                if let Some(sep) = of(args.first()) {
                    let gaps = Size { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                    size = size.plus(sep.times(gaps));
                }
                (size.cost(STRING_FACTOR), Some(size))
            }
            "find" | "findAll" => {
                let size = of(target)?;
                let text = size.plus(Size::fixed(1)).cost(STRING_FACTOR);
                let pattern = of(args.first())?.cost(REGEX_FACTOR);
                (text.saturating_mul(pattern), Some(Size { min: 0, max: size.max }))
            }
            "ip" if overload == "cidr_ip" => (1, None),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                (of(args.first())?.cost(STRING_FACTOR), None)
            }
            "ip.isCanonical" => (of(args.first())?.cost(2.0 * STRING_FACTOR), None),
            "containsIP" | "containsCIDR" => {
                let mut cost = network.plus(network).cost(STRING_FACTOR);
                if func == "containsCIDR" {
                    cost += network.cost(STRING_FACTOR) + 1;
                }
                if overload.ends_with("_string") {
                    cost = cost.saturating_add(of(args.first())?.cost(STRING_FACTOR));
                }
                (cost, None)
            }
            // The longest pattern that names are held to, whatever the format.
            "validate" => (factored(of(args.first())?.cost(STRING_FACTOR), 128.0 * REGEX_FACTOR), None),
            "_==_" => match (args.first().map(|a| self.type_of(a)), args.get(1).map(|a| self.type_of(a))) {
                (Some(Type::Abstract(a)), Some(Type::Abstract(b))) if a == b => match *a {
                    types::URL => {
                        let size = args.get(1).and_then(|a| self.size(a));
                        (factored(size.map_or(1, |s| s.max), STRING_FACTOR), None)
                    }
                    types::FORMAT => (factored(64, STRING_FACTOR), None),
                    _ => (1, None),
                },
                _ => return None,
            },
            _ => return None,
        })
    }

    fn standard(&mut self, e: &Expr, overload: &str, target: Option<&Expr>, args: &[Expr]) -> CallCost {
        let of = |e: Option<&Expr>| e.map_or(UNKNOWN, |e| self.size_or_unknown(e));
        let (first, second) = (of(args.first()), of(args.get(1)));
        match overload {
            "string_format" => (of(target).cost(STRING_FACTOR), None),
            "string_to_bytes" => {
                let size = Size { min: first.min, max: first.max.saturating_mul(4) };
                (first.cost(STRING_FACTOR), Some(size))
            }
            "bytes_to_string" => (first.cost(STRING_FACTOR), Some(Size { min: first.min / 4, max: first.max })),
            "strings_quote" => {
                let max = first.max.saturating_mul(2).saturating_add(2);
                (first.cost(STRING_FACTOR), Some(Size { min: first.min.saturating_add(2), max }))
            }
            "starts_with_string" | "ends_with_string" => (first.cost(STRING_FACTOR), None),
            "in_list" => (second.max, None),
            "matches" | "matches_string" => {
                let (text, pattern) = if target.is_some() { (of(target), first) } else { (first, second) };
                let text = text.plus(Size::fixed(1)).cost(STRING_FACTOR);
                (text.saturating_mul(pattern.cost(REGEX_FACTOR)), None)
            }
            "contains_string" => (of(target).cost(STRING_FACTOR).saturating_mul(first.cost(STRING_FACTOR)), None),
            "conditional" => {
                let size = second.union(of(args.get(2)));
                if let (Some(a), Some(b)) =
                    (args.get(1).and_then(|a| self.entry(a)), args.get(2).and_then(|a| self.entry(a)))
                {
                    self.entries.insert(e.id, a.union(b));
                }
                (0, Some(size))
            }
            "add_string" | "add_bytes" | "add_list" => {
                let size = first.plus(second);
                if let (Some(a), Some(b)) =
                    (args.first().and_then(|a| self.entry(a)), args.get(1).and_then(|a| self.entry(a)))
                {
                    self.entries.insert(e.id, a.union(b));
                }
                (if overload == "add_list" { 1 } else { size.cost(STRING_FACTOR) }, Some(size))
            }
            "equals" | "not_equals" => (factored(first.max.min(second.max), STRING_FACTOR), None),
            o if (o.starts_with("less_") || o.starts_with("greater_"))
                && (o.ends_with("_string") || o.ends_with("_bytes")) =>
            {
                (factored(first.max.min(second.max), STRING_FACTOR), None)
            }
            _ => (1, None),
        }
    }
}

#[derive(Clone, Copy)]
enum Iteration {
    Single,
    Key,
    Value,
}

fn int_or(e: Option<&Expr>, default: u64) -> u64 {
    match e.map(|e| &e.kind) {
        Some(ExprKind::Lit(Lit::Int(n))) => u64::try_from(*n).unwrap_or(0),
        _ => default,
    }
}

fn is_scalar(t: &Type) -> bool {
    match t {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(t) => is_scalar(t),
        _ => false,
    }
}

/// The size of a text after `replace`.
fn replaced(size: Size, old: Size, new: Size) -> Size {
    let ratio = |a: u64, b: u64| (a as f64 / b as f64).ceil() as u64;
    let (most, kept_most) = if old.min == 0 {
        (size.max.saturating_add(1), size.max)
    } else if new.max <= old.min {
        (0, size.max)
    } else {
        (ratio(size.max, old.min), 0)
    };
    let (least, kept_least) = if old.max == 0 {
        (size.min.saturating_add(1), size.min)
    } else if old.max <= new.min {
        (0, size.min)
    } else {
        (ratio(size.min, old.max), 0)
    };
    Size { min: least, max: most }.times(new).plus(Size { min: kept_least, max: kept_most })
}
