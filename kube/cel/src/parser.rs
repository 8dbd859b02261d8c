//! Recursive descent over the grammar of the language. Depth and size are bounded before anything recurses over the
//! tree, because an expression comes from a client.

use crate::ast::{Entry, Expr, ExprKind, Lit};
use crate::lexer::{Tok, Token, lex};
use crate::macros;
use crate::source::{CompileError, Issues};

/// The depth limit of a tree, as in the reference implementation.
const MAX_DEPTH: usize = 250;
/// The length limit of an expression in code points, as in the reference implementation.
const MAX_SIZE: usize = 100_000;
/// `optMap` repeats its target, so that a chain of them grows without bound unless nodes are counted.
const MAX_NODES: usize = 200_000;
/// The limit of reported syntax errors: a writer with more of them does not read on.
const MAX_SYNTAX_ERRORS: usize = 30;

/// Names that are no identifiers although they look like one.
pub(crate) const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

const PRIMARY: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// A parsed expression and how many node ids it uses.
pub(crate) struct Parsed {
    pub expr: Expr,
    pub nodes: usize,
}

pub(crate) fn parse(source: &str) -> Result<Parsed, CompileError> {
    let mut issues = Issues::new(source);
    let size = source.chars().count();
    if size > MAX_SIZE {
        issues.report(None, format!("expression code point size exceeds limit: size: {size}, limit {MAX_SIZE}"));
        return Err(issues.into_error());
    }
    let tokens = lex(source, &mut issues);
    let mut parser = Parser { tokens, at: 0, issues, nodes: 0, depth: 0, syntax_errors: 0 };
    let expr = parser.start();
    match expr {
        Ok(expr) if parser.issues.is_empty() => Ok(Parsed { expr, nodes: parser.nodes }),
        _ => Err(parser.issues.into_error()),
    }
}

fn starts_expression(tok: &Tok) -> bool {
    match tok {
        Tok::Op(o) => matches!(*o, "[" | "{" | "(" | "." | "-" | "!"),
        Tok::Eof | Tok::QuotedIdent(_) => false,
        _ => true,
    }
}

/// The parser gave up; why is among the issues.
#[derive(Debug)]
pub(crate) struct ParseAborted;
type Parse<T> = Result<T, ParseAborted>;

pub(crate) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    issues: Issues,
    nodes: usize,
    depth: usize,
    syntax_errors: usize,
}

impl Parser {
    fn start(&mut self) -> Parse<Expr> {
        let e = self.expr()?;
        if *self.peek() != Tok::Eof {
            let extraneous = self.tokens.get(self.at + 1).is_some_and(|t| t.tok == Tok::Eof);
            let what = if extraneous { "extraneous" } else { "mismatched" };
            return self.syntax(format!("{what} input '{}' expecting <EOF>", self.text()));
        }
        Ok(e)
    }

    fn peek(&self) -> &Tok {
        self.tokens.get(self.at).map_or(&Tok::Eof, |t| &t.tok)
    }

    fn pos(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |t| t.pos)
    }

    fn text(&self) -> String {
        match self.tokens.get(self.at) {
            Some(t) if t.tok != Tok::Eof => t.text.clone(),
            _ => "<EOF>".into(),
        }
    }

    fn advance(&mut self) -> usize {
        let pos = self.pos();
        self.at = (self.at + 1).min(self.tokens.len().saturating_sub(1));
        pos
    }

    fn eat(&mut self, op: &'static str) -> Option<usize> {
        (*self.peek() == Tok::Op(op)).then(|| self.advance())
    }

    fn eat_any(&mut self, ops: &[&'static str]) -> Option<(&'static str, usize)> {
        ops.iter().find_map(|op| self.eat(op).map(|pos| (*op, pos)))
    }

    fn expect(&mut self, op: &'static str, expecting: &str) -> Parse<usize> {
        match self.eat(op) {
            Some(pos) => Ok(pos),
            None if self.next_is(op) || (expecting.contains("','") && self.next_is(",")) => {
                let message = format!("Syntax error: extraneous input '{}' expecting {expecting}", self.text());
                self.report(self.pos(), message);
                self.advance();
                Ok(self.eat(op).unwrap_or(self.pos()))
            }
            None if expecting.starts_with('\'') && self.follows(op) => {
                let message = format!("Syntax error: missing {expecting} at '{}'", self.text());
                self.report(self.pos(), message);
                Ok(self.pos())
            }
            None => self.syntax(format!("mismatched input '{}' expecting {expecting}", self.text())),
        }
    }

    fn next_is(&self, op: &str) -> bool {
        matches!(self.tokens.get(self.at + 1), Some(Token { tok: Tok::Op(o), .. }) if *o == op)
    }

    /// Whether the present token could come after `op`, so that `op` is all that is missing.
    fn follows(&self, op: &str) -> bool {
        match (op, self.peek()) {
            (":", tok) => starts_expression(tok),
            (_, Tok::Eof) => true,
            (_, Tok::Op(o)) => !matches!(*o, "(" | "{" | "!"),
            _ => false,
        }
    }

    fn syntax<T>(&mut self, message: String) -> Parse<T> {
        self.syntax_errors += 1;
        if self.syntax_errors <= MAX_SYNTAX_ERRORS {
            self.issues.report(Some(self.pos()), format!("Syntax error: {message}"));
        }
        Err(ParseAborted)
    }

    /// Reports a mistake that does not stop the parser.
    pub fn report(&mut self, pos: usize, message: impl Into<String>) {
        self.issues.report(Some(pos), message);
    }

    fn too_deep<T>(&mut self) -> Parse<T> {
        self.issues.report(None, format!("expression recursion limit exceeded: {MAX_DEPTH}"));
        Err(ParseAborted)
    }

    /// Makes a node above its children.
    pub fn node(&mut self, pos: usize, kind: ExprKind) -> Parse<Expr> {
        let below = |e: &Expr| e.depth;
        let depth = 1 + match &kind {
            ExprKind::Lit(_) | ExprKind::Ident(_) => 0,
            ExprKind::Select { operand, .. } => operand.depth,
            ExprKind::Call { target, args, .. } => {
                args.iter().map(below).chain(target.as_deref().map(below)).max().unwrap_or(0)
            }
            ExprKind::List { elems, .. } => elems.iter().map(below).max().unwrap_or(0),
            ExprKind::Map { entries } => entries.iter().map(|e| e.key.depth.max(e.value.depth)).max().unwrap_or(0),
            ExprKind::Comprehension(c) => {
                [&c.range, &c.init, &c.cond, &c.step, &c.result].map(below).into_iter().max().unwrap_or(0)
            }
        };
        // A macro adds a few levels of its own, which the writer should not pay for.
        if depth > MAX_DEPTH + 16 || self.nodes >= MAX_NODES {
            return self.too_deep();
        }
        self.nodes += 1;
        Ok(Expr { id: self.nodes - 1, pos, depth, kind })
    }

    /// A copy with ids of its own.
    pub fn copy(&mut self, e: &Expr) -> Parse<Expr> {
        let kind = match &e.kind {
            ExprKind::Lit(_) | ExprKind::Ident(_) => e.kind.clone(),
            ExprKind::Select { operand, field, test } => {
                ExprKind::Select { operand: Box::new(self.copy(operand)?), field: field.clone(), test: *test }
            }
            ExprKind::Call { func, target, args } => ExprKind::Call {
                func: func.clone(),
                target: target.as_ref().map(|t| self.copy(t).map(Box::new)).transpose()?,
                args: args.iter().map(|a| self.copy(a)).collect::<Parse<_>>()?,
            },
            ExprKind::List { elems, optional } => ExprKind::List {
                elems: elems.iter().map(|a| self.copy(a)).collect::<Parse<_>>()?,
                optional: optional.clone(),
            },
            ExprKind::Map { entries } => {
                let mut out = Vec::with_capacity(entries.len());
                for e in entries {
                    out.push(Entry { key: self.copy(&e.key)?, value: self.copy(&e.value)?, optional: e.optional });
                }
                ExprKind::Map { entries: out }
            }
            ExprKind::Comprehension(c) => {
                let mut c = (**c).clone();
                for part in [&mut c.range, &mut c.init, &mut c.cond, &mut c.step, &mut c.result] {
                    *part = self.copy(part)?;
                }
                ExprKind::Comprehension(Box::new(c))
            }
        };
        self.node(e.pos, kind)
    }

    pub fn call(&mut self, pos: usize, func: &str, args: Vec<Expr>) -> Parse<Expr> {
        self.node(pos, ExprKind::Call { func: func.into(), target: None, args })
    }

    fn expr(&mut self) -> Parse<Expr> {
        if self.depth >= MAX_DEPTH {
            return self.too_deep();
        }
        self.depth += 1;
        let e = self.ternary();
        self.depth -= 1;
        e
    }

    fn ternary(&mut self) -> Parse<Expr> {
        let cond = self.logical("||", "_||_")?;
        let Some(pos) = self.eat("?") else { return Ok(cond) };
        let yes = self.logical("||", "_||_")?;
        self.expect(":", "':'")?;
        let no = self.expr()?;
        self.call(pos, "_?_:_", vec![cond, yes, no])
    }

    /// `a || b || c` is one node with three arguments: a long chain is not a deep one.
    fn logical(&mut self, op: &'static str, func: &str) -> Parse<Expr> {
        let next = |p: &mut Self| if op == "||" { p.logical("&&", "_&&_") } else { p.relation() };
        let mut terms = vec![next(self)?];
        let mut pos = None;
        while let Some(p) = self.eat(op) {
            pos = pos.or(Some(p));
            terms.push(next(self)?);
        }
        match pos {
            None => terms.pop().ok_or(ParseAborted),
            Some(pos) => self.call(pos, func, terms),
        }
    }

    fn relation(&mut self) -> Parse<Expr> {
        let mut left = self.sum()?;
        while let Some((op, pos)) = self.eat_any(&["<=", ">=", "<", ">", "==", "!=", "in"]) {
            let right = self.sum()?;
            let func = if op == "in" { "@in".to_string() } else { format!("_{op}_") };
            left = self.call(pos, &func, vec![left, right])?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Parse<Expr> {
        let mut left = self.product()?;
        while let Some((op, pos)) = self.eat_any(&["+", "-"]) {
            let right = self.product()?;
            left = self.call(pos, &format!("_{op}_"), vec![left, right])?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Parse<Expr> {
        let mut left = self.unary()?;
        while let Some((op, pos)) = self.eat_any(&["*", "/", "%"]) {
            let right = self.unary()?;
            left = self.call(pos, &format!("_{op}_"), vec![left, right])?;
        }
        Ok(left)
    }

    /// An even run of `!` or `-` cancels itself out, and a run may not mix the two.
    fn unary(&mut self) -> Parse<Expr> {
        for (op, func) in [("!", "!_"), ("-", "-_")] {
            let Some(pos) = self.eat(op) else { continue };
            if op == "-"
                && let Tok::Int(text) | Tok::Float(text) = self.peek().clone()
            {
                let float = matches!(self.peek(), Tok::Float(_));
                self.advance();
                let lit = self.number(pos, &format!("-{text}"), float)?;
                return self.member(lit);
            }
            let mut odd = true;
            while self.eat(op).is_some() {
                odd = !odd;
            }
            let operand = self.primary()?;
            let operand = self.member(operand)?;
            return if odd { self.call(pos, func, vec![operand]) } else { Ok(operand) };
        }
        let e = self.primary()?;
        self.member(e)
    }

    fn member(&mut self, mut e: Expr) -> Parse<Expr> {
        loop {
            if let Some(pos) = self.eat("[") {
                let optional = self.eat("?").is_some();
                let index = self.expr()?;
                self.expect("]", "']'")?;
                e = self.call(pos, if optional { "_[?_]" } else { "_[_]" }, vec![e, index])?;
            } else if let Some(pos) = self.eat(".") {
                let optional = self.eat("?").is_some();
                let name = match self.peek().clone() {
                    Tok::Ident(n) if !matches!(n.as_str(), "true" | "false" | "null") => n,
                    Tok::QuotedIdent(n) => {
                        self.report(self.pos(), "unsupported syntax: '`'");
                        n
                    }
                    _ => {
                        let next = if *self.peek() == Tok::Eof { String::new() } else { self.text() };
                        let message = format!("no viable alternative at input '.{next}'");
                        return self.syntax(message);
                    }
                };
                self.advance();
                if optional {
                    let field = self.node(pos, ExprKind::Lit(Lit::Str(name)))?;
                    e = self.call(pos, "_?._", vec![e, field])?;
                } else if let Some(open) = self.eat("(") {
                    let args = self.arguments()?;
                    e = macros::member_call(self, open, e, &name, args)?;
                } else {
                    e = self.node(pos, ExprKind::Select { operand: Box::new(e), field: name, test: false })?;
                }
            } else {
                return Ok(e);
            }
        }
    }

    fn arguments(&mut self) -> Parse<Vec<Expr>> {
        let mut args = Vec::new();
        if self.eat(")").is_some() {
            return Ok(args);
        }
        if !starts_expression(self.peek()) {
            let expecting = PRIMARY.replace("'('", "'(', ')'");
            return self.syntax(format!("mismatched input '{}' expecting {expecting}", self.text()));
        }
        loop {
            args.push(self.expr()?);
            if self.eat(",").is_none() {
                self.expect(")", "')'")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Parse<Expr> {
        let pos = self.pos();
        let tok = self.peek().clone();
        match tok {
            Tok::Int(text) => {
                self.advance();
                self.number(pos, &text, false)
            }
            Tok::Float(text) => {
                self.advance();
                self.number(pos, &text, true)
            }
            Tok::Uint(text) => {
                self.advance();
                let n = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => text.parse(),
                };
                if n.is_err() {
                    self.report(pos, "invalid uint literal");
                }
                self.node(pos, ExprKind::Lit(Lit::Uint(n.unwrap_or(0))))
            }
            Tok::Str(s) => {
                self.advance();
                self.node(pos, ExprKind::Lit(Lit::Str(s)))
            }
            Tok::Bytes(b) => {
                self.advance();
                self.node(pos, ExprKind::Lit(Lit::Bytes(b)))
            }
            Tok::Ident(name) => {
                self.advance();
                self.ident(pos, name)
            }
            Tok::Op("(") => {
                self.advance();
                let e = self.expr()?;
                self.expect(")", "')'")?;
                Ok(e)
            }
            Tok::Op("[") => {
                self.advance();
                self.list(pos)
            }
            Tok::Op("{") => {
                self.advance();
                self.map(pos)
            }
            Tok::Op(".") if matches!(self.tokens.get(self.at + 1), Some(Token { tok: Tok::Ident(_), .. })) => {
                self.advance();
                let pos = self.pos();
                match self.peek().clone() {
                    Tok::Ident(name) => {
                        self.advance();
                        self.ident(pos, name)
                    }
                    _ => Err(ParseAborted),
                }
            }
            Tok::Op(_) if self.tokens.get(self.at + 1).is_some_and(|t| starts_expression(&t.tok)) => {
                self.report(pos, format!("Syntax error: extraneous input '{}' expecting {PRIMARY}", self.text()));
                Err(ParseAborted)
            }
            Tok::QuotedIdent(_) | Tok::Op(_) | Tok::Eof => {
                let message = format!("mismatched input '{}' expecting {PRIMARY}", self.text());
                self.syntax(message)
            }
        }
    }

    fn ident(&mut self, pos: usize, name: String) -> Parse<Expr> {
        let lit = match name.as_str() {
            "true" => Some(Lit::Bool(true)),
            "false" => Some(Lit::Bool(false)),
            "null" => Some(Lit::Null),
            _ => None,
        };
        if let Some(lit) = lit {
            return self.node(pos, ExprKind::Lit(lit));
        }
        if RESERVED.contains(&name.as_str()) {
            self.report(pos, format!("reserved identifier: {name}"));
        }
        if let Some(open) = self.eat("(") {
            let args = self.arguments()?;
            return macros::global_call(self, open, &name, args);
        }
        if let Some(message) = self.message_name(&name) {
            self.report(self.pos(), format!("undeclared reference to '{message}' (in container '')"));
            return Err(ParseAborted);
        }
        self.node(pos, ExprKind::Ident(name))
    }

    /// `a.b.C{...}` would build a message; the environments we serve have no message types.
    fn message_name(&mut self, first: &str) -> Option<String> {
        let mut name = first.to_string();
        let mut at = self.at;
        loop {
            match (self.tokens.get(at).map(|t| &t.tok), self.tokens.get(at + 1).map(|t| &t.tok)) {
                (Some(Tok::Op("{")), _) => {
                    self.at = at;
                    return Some(name);
                }
                (Some(Tok::Op(".")), Some(Tok::Ident(next))) => {
                    name.push('.');
                    name.push_str(next);
                    at += 2;
                }
                _ => return None,
            }
        }
    }

    fn number(&mut self, pos: usize, text: &str, float: bool) -> Parse<Expr> {
        let lit = if float {
            text.parse().ok().filter(|f: &f64| f.is_finite()).map(Lit::Double)
        } else {
            let (sign, digits) = text.strip_prefix('-').map_or(("", text), |d| ("-", d));
            match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
                Some(hex) => i64::from_str_radix(&format!("{sign}{hex}"), 16).ok(),
                None => text.parse().ok(),
            }
            .map(Lit::Int)
        };
        if lit.is_none() {
            self.report(pos, if float { "invalid double literal" } else { "invalid int literal" });
        }
        self.node(pos, ExprKind::Lit(lit.unwrap_or(Lit::Int(0))))
    }

    /// Reports the expected tokens after the opening of a list or map.
    fn expect_element(&mut self, close: &str, first: bool) -> Parse<()> {
        if !first || starts_expression(self.peek()) || *self.peek() == Tok::Op("?") {
            return Ok(());
        }
        let opening = if close == "]" { "'[', ']', '{'" } else { "'[', '{', '}'" };
        let expecting = PRIMARY.replace("'[', '{'", opening).replace("'.', '-', '!'", "'.', ',', '-', '!', '?'");
        self.syntax(format!("mismatched input '{}' expecting {expecting}", self.text()))
    }

    fn list(&mut self, pos: usize) -> Parse<Expr> {
        let (mut elems, mut optional) = (Vec::new(), Vec::new());
        loop {
            if self.eat(",").is_some() && elems.is_empty() {
                self.expect("]", "']'")?;
                break;
            }
            if self.eat("]").is_some() {
                break;
            }
            self.expect_element("]", elems.is_empty())?;
            optional.push(self.eat("?").is_some());
            elems.push(self.expr()?);
            if *self.peek() != Tok::Op(",") {
                self.expect("]", "{']', ','}")?;
                break;
            }
        }
        self.node(pos, ExprKind::List { elems, optional })
    }

    fn map(&mut self, pos: usize) -> Parse<Expr> {
        let mut entries = Vec::new();
        loop {
            if self.eat(",").is_some() && entries.is_empty() {
                self.expect("}", "'}'")?;
                break;
            }
            if self.eat("}").is_some() {
                break;
            }
            self.expect_element("}", entries.is_empty())?;
            let optional = self.eat("?").is_some();
            let key = self.expr()?;
            self.expect(":", "':'")?;
            let value = self.expr()?;
            entries.push(Entry { key, value, optional });
            if *self.peek() != Tok::Op(",") {
                self.expect("}", "{'}', ','}")?;
                break;
            }
        }
        self.node(pos, ExprKind::Map { entries })
    }
}

pub(crate) type ParseResult = Parse<Expr>;
