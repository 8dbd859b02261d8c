//! The Common Expression Language as Kubernetes uses it in validation rules: parsed and type-checked against a
//! structural schema when a rule is written, bounded in cost both then and when it runs.
//!
//! ```
//! use fleetwright_cel::{Activation, Decl, Env, Program, RUNTIME_BUDGET, Type};
//! use serde_json::json;
//!
//! let schema = json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}});
//! let decl = Decl::from_schema(&schema, false).unwrap();
//! let env = Env::new().var("self", decl.clone()).var("oldSelf", decl);
//! let program = Program::compile(&env, "self.min <= self.max", Type::Bool).unwrap();
//! assert!(!program.uses("oldSelf"));
//!
//! let object = json!({"min": 3, "max": 2});
//! let mut budget = RUNTIME_BUDGET;
//! let result = program.eval(&Activation::new().set("self", &object), &mut budget);
//! assert_eq!(result, Ok(json!(false)));
//! ```

mod arith;
mod ast;
mod checker;
mod convert;
mod cost;
mod decl;
mod escape;
mod eval;
mod format;
mod functions;
mod lexer;
mod lists;
mod literals;
mod macros;
mod net;
mod overloads;
mod parser;
mod runtime_cost;
mod semver;
mod source;
mod strings;
mod time;
mod types;
mod url;
mod value;

pub use decl::{Decl, DeclKind, FieldDecl, ListType, MAX_REQUEST_SIZE, ObjectDecl};
pub use escape::escape;
pub use source::{CompileError, Issue};
pub use types::Type;
pub use value::EvalError;

use crate::ast::{Expr, ExprKind, Lit};
use crate::eval::{Binding, Evaluator, Plan};
use fleetwright_syntax::regexp;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// What one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What all rules on one object may cost together.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// What one rule may cost by its estimate, multiplied by how often it can apply.
pub const STATIC_RULE_LIMIT: u64 = 10_000_000;
/// What all rules of a CRD may cost by their estimates.
pub const STATIC_CRD_LIMIT: u64 = 100_000_000;

/// The variables an expression may use.
#[derive(Debug, Clone, Default)]
pub struct Env {
    vars: Vec<Var>,
}

#[derive(Debug, Clone)]
struct Var {
    name: String,
    decl: Arc<Decl>,
    optional: bool,
}

impl Env {
    /// An environment without variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable. The first is the root by which sizes are estimated.
    pub fn var(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.vars.push(Var { name: name.to_owned(), decl, optional: false });
        self
    }

    /// Adds a variable of an optional type, such as `oldSelf` of a rule with `optionalOldSelf`.
    pub fn optional_var(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.vars.push(Var { name: name.to_owned(), decl, optional: true });
        self
    }

    fn types(&self) -> Vec<(String, Type)> {
        let typed = |v: &Var| {
            let t = v.decl.to_type();
            (v.name.clone(), if v.optional { Type::optional(t) } else { t })
        };
        self.vars.iter().map(typed).collect()
    }
}

/// The values of variables for one evaluation.
#[derive(Debug, Clone, Default)]
pub struct Activation<'a> {
    vars: Vec<(&'a str, &'a Value)>,
}

impl<'a> Activation<'a> {
    /// No values. An optional variable without a value is `optional.none()`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a variable its value.
    pub fn set(mut self, name: &'a str, value: &'a Value) -> Self {
        self.vars.push((name, value));
        self
    }
}

/// Why an expression did not become a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileFailure {
    /// It is not well-formed or well-typed.
    Invalid(CompileError),
    /// It is well-typed but has not the type that was asked for.
    WrongType(&'static str),
    /// A literal pattern in it does not compile.
    Instantiation(String),
}

impl CompileFailure {
    /// The detail that Kubernetes gives for a rule, or for its message expression.
    pub fn detail(&self, message_expression: bool) -> String {
        let prefix = if message_expression { "messageExpression " } else { "" };
        match self {
            Self::Invalid(e) => format!("{prefix}compilation failed: {e}"),
            Self::WrongType(e) => (*e).to_owned(),
            Self::Instantiation(e) if message_expression => format!("messageExpression instantiation failed: {e}"),
            Self::Instantiation(e) => format!("program instantiation failed: {e}"),
        }
    }
}

impl fmt::Display for CompileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(e) => e.fmt(f),
            Self::WrongType(e) => f.write_str(e),
            Self::Instantiation(e) => f.write_str(e),
        }
    }
}

impl std::error::Error for CompileFailure {}

/// A compiled expression, cheap to evaluate often and from several threads.
#[derive(Debug)]
pub struct Program {
    plan: Plan,
    vars: Vec<Var>,
    estimated_cost: u64,
    pattern_effort: u64,
}

impl Program {
    /// Parses and checks an expression that must have the `expected` type; `Type::Dyn` takes any.
    pub fn compile(env: &Env, source: &str, expected: Type) -> Result<Self, CompileFailure> {
        let failure = "program instantiation failed: no thread to compile on";
        on_large_stack(|| Self::compile_here(env, source, &expected))
            .unwrap_or_else(|| Err(CompileFailure::Instantiation(failure.into())))
    }

    fn compile_here(env: &Env, source: &str, expected: &Type) -> Result<Self, CompileFailure> {
        let parsed = parser::parse(source).map_err(CompileFailure::Invalid)?;
        let expr = parsed.expr;
        let checked = checker::check(source, &expr, parsed.nodes, &env.types()).map_err(CompileFailure::Invalid)?;
        if !matches!(expected, Type::Dyn) && checked.types[expr.id] != *expected {
            return Err(CompileFailure::WrongType(eval::wrong_type(expected)));
        }
        let (regexes, pattern_effort) = regexes(&expr).map_err(CompileFailure::Instantiation)?;
        let declared = cost::Declared { vars: env.vars.iter().map(|v| (v.name.as_str(), &v.decl)).collect() };
        let estimated_cost = cost::estimate(&expr, &checked, &declared);
        let constants = eval::constants(&expr);
        let plan = Plan { expr, checked, regexes, constants };
        plan.fold_conversions().map_err(|e| CompileFailure::Instantiation(e.to_string()))?;
        Ok(Self { plan, vars: env.vars.clone(), estimated_cost, pattern_effort })
    }

    /// Whether the expression mentions a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.plan.checked.uses.contains(variable)
    }

    pub fn result_type(&self) -> &Type {
        &self.plan.checked.types[self.plan.expr.id]
    }

    /// The most that one evaluation can cost on data that the declarations allow.
    pub fn estimated_cost(&self) -> u64 {
        self.estimated_cost
    }

    /// The effort of the patterns that are literals, which were compiled with the program: at most
    /// [`EFFORT_LIMIT`](regexp::EFFORT_LIMIT).
    pub fn pattern_effort(&self) -> u64 {
        self.pattern_effort
    }

    /// Evaluates, and takes what it cost from `budget`.
    ///
    /// # Errors
    ///
    /// [`EvalError::BudgetExhausted`] if the budget did not suffice, [`EvalError::CostLimitExceeded`] if this call was
    /// too costly by itself, [`EvalError::Failed`] if the expression has no value on this data.
    pub fn eval(&self, activation: &Activation<'_>, budget: &mut u64) -> Result<Value, EvalError> {
        let (result, cost) = self.eval_with_cost(activation, PER_CALL_LIMIT);
        match budget.checked_sub(cost) {
            Some(left) => {
                *budget = left;
                result
            }
            None => {
                *budget = 0;
                Err(EvalError::BudgetExhausted)
            }
        }
    }

    /// Evaluates up to a limit, and says what it cost.
    pub fn eval_with_cost(&self, activation: &Activation<'_>, limit: u64) -> (Result<Value, EvalError>, u64) {
        let value_of = |name: &str| activation.vars.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let bind = |v: &'_ Var| (value_of(&v.name), v.optional);
        let bindings: Vec<Binding<'_>> = self
            .vars
            .iter()
            .map(|v| {
                let (json, optional) = bind(v);
                Binding { name: &v.name, json, decl: &v.decl, optional }
            })
            .collect();
        let run = || {
            let mut evaluator = Evaluator::new(&self.plan, &bindings, limit);
            let result = evaluator.run().map(|v| v.to_json());
            (result, evaluator.cost)
        };
        if self.plan.expr.depth <= SHALLOW {
            return run();
        }
        on_large_stack(run).unwrap_or((Err(EvalError::Failed("no thread to evaluate on".into())), 0))
    }
}

/// Expressions up to this depth are evaluated on the caller's stack.
const SHALLOW: usize = 48;
/// Enough for the deepest expression that the parser lets pass, in every build.
const LARGE_STACK: usize = 32 << 20;

/// Runs on a stack that the depth limit was made for; callers may be on small ones. `None` if there is no thread.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(LARGE_STACK).spawn_scoped(scope, work).ok()?;
        thread.join().ok()
    })
}

/// Compiles the patterns that are literals once, so that evaluations do not. The second result is their effort.
fn regexes(expr: &Expr) -> Result<(HashMap<usize, regex::Regex>, u64), String> {
    let mut out = HashMap::new();
    let mut effort = 0;
    let mut error = None;
    expr.walk(&mut |e| {
        let ExprKind::Call { func, target, args } = &e.kind else { return };
        let pattern = match (func.as_str(), target.is_some()) {
            ("matches" | "find" | "findAll", true) => args.first(),
            ("matches", false) => args.get(1),
            _ => None,
        };
        if let Some(Expr { kind: ExprKind::Lit(Lit::Str(text)), .. }) = pattern {
            effort += regexp::effort(text);
            if effort > regexp::EFFORT_LIMIT {
                let too_large = || regexp::total_too_large("this expression", regexp::EFFORT_LIMIT);
                error = error.take().or_else(|| Some(too_large()));
                return;
            }
            match regexp::compile(text) {
                Ok(re) => {
                    out.insert(e.id, re);
                }
                Err(why) => error = error.take().or(Some(why)),
            }
        }
    });
    error.map_or(Ok((out, effort)), Err)
}
