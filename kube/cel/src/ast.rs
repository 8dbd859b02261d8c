//! The expression tree, as the parser makes it: macros are already expanded, so that checking, costing and evaluating
//! know only seven shapes.

/// A node. `id` indexes the side tables of the checker; `pos` is the code point the node is reported at.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub id: usize,
    pub pos: usize,
    pub depth: usize,
    pub kind: ExprKind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum ExprKind {
    Lit(Lit),
    Ident(String),
    Select { operand: Box<Expr>, field: String, test: bool },
    Call { func: String, target: Option<Box<Expr>>, args: Vec<Expr> },
    List { elems: Vec<Expr>, optional: Vec<bool> },
    Map { entries: Vec<Entry> },
    Comprehension(Box<Comprehension>),
}

/// One `key: value` of a map literal; `?key: value` is optional.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

/// A fold over a list or map. Every quantifier and transforming macro becomes one.
#[derive(Debug, Clone)]
pub(crate) struct Comprehension {
    pub range: Expr,
    pub var: String,
    pub var2: Option<String>,
    pub accu: String,
    pub init: Expr,
    pub cond: Expr,
    pub step: Expr,
    pub result: Expr,
}

/// A literal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Lit {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(String),
    Bytes(Vec<u8>),
}

/// The accumulator of the standard macros; `@` keeps it out of a writer's reach.
pub(crate) const ACCU: &str = "@result";

impl Expr {
    /// Calls `visit` on this node and everything below it.
    pub fn walk<'e>(&'e self, visit: &mut impl FnMut(&'e Expr)) {
        visit(self);
        match &self.kind {
            ExprKind::Lit(_) | ExprKind::Ident(_) => {}
            ExprKind::Select { operand, .. } => operand.walk(visit),
            ExprKind::Call { target, args, .. } => {
                if let Some(t) = target {
                    t.walk(visit);
                }
                args.iter().for_each(|a| a.walk(visit));
            }
            ExprKind::List { elems, .. } => elems.iter().for_each(|e| e.walk(visit)),
            ExprKind::Map { entries } => entries.iter().for_each(|e| {
                e.key.walk(visit);
                e.value.walk(visit);
            }),
            ExprKind::Comprehension(c) => {
                for e in [&c.range, &c.init, &c.cond, &c.step, &c.result] {
                    e.walk(visit);
                }
            }
        }
    }

    /// A dotted name (`a.b.c`), if the node is nothing but one.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            ExprKind::Ident(n) => Some(n.clone()),
            ExprKind::Select { operand, field, test: false } => Some(format!("{}.{field}", operand.qualified_name()?)),
            _ => None,
        }
    }
}

impl Comprehension {
    /// A fold that never turns and only gives a name to a value (`optMap`, `sortBy`).
    pub fn is_bind(&self) -> bool {
        matches!(&self.range.kind, ExprKind::List { elems, .. } if elems.is_empty())
            && matches!(self.cond.kind, ExprKind::Lit(Lit::Bool(false)))
    }
}
