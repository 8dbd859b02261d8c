//! The macros of the language: what looks like a call of `all`, `map` or `has` becomes a fold or a test.

use crate::ast::{ACCU, Comprehension, Expr, ExprKind, Lit};
use crate::parser::{ParseAborted, ParseResult, Parser};

pub(crate) fn global_call(p: &mut Parser, pos: usize, name: &str, mut args: Vec<Expr>) -> ParseResult {
    if name == "has" && args.len() == 1 {
        let arg = args.pop().ok_or(ParseAborted)?;
        return match arg.kind {
            ExprKind::Select { operand, field, .. } => p.node(pos, ExprKind::Select { operand, field, test: true }),
            _ => {
                p.report(arg.pos, "invalid argument to has() macro");
                Err(ParseAborted)
            }
        };
    }
    p.call(pos, name, args)
}

pub(crate) fn member_call(p: &mut Parser, pos: usize, target: Expr, name: &str, args: Vec<Expr>) -> ParseResult {
    let mut m = MacroExpander { p, pos };
    match (name, args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => m.quantifier(target, name, args),
        ("map", 2 | 3) | ("filter", 2) => m.transform(target, name, args),
        ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => m.transform_two(target, name, args),
        ("optMap" | "optFlatMap", 2) => m.opt_map(target, name, args),
        ("sortBy", 2) => m.sort_by(target, args),
        _ => p.node(pos, ExprKind::Call { func: name.into(), target: Some(Box::new(target)), args }),
    }
}

struct MacroExpander<'p> {
    p: &'p mut Parser,
    pos: usize,
}

impl MacroExpander<'_> {
    fn lit(&mut self, lit: Lit) -> ParseResult {
        self.p.node(self.pos, ExprKind::Lit(lit))
    }

    fn ident(&mut self, name: &str) -> ParseResult {
        self.p.node(self.pos, ExprKind::Ident(name.into()))
    }

    fn accu(&mut self) -> ParseResult {
        self.ident(ACCU)
    }

    fn call(&mut self, func: &str, args: Vec<Expr>) -> ParseResult {
        self.p.call(self.pos, func, args)
    }

    fn list(&mut self, elems: Vec<Expr>) -> ParseResult {
        let optional = vec![false; elems.len()];
        self.p.node(self.pos, ExprKind::List { elems, optional })
    }

    fn member(&mut self, target: Expr, func: &str, args: Vec<Expr>) -> ParseResult {
        self.p.node(self.pos, ExprKind::Call { func: func.into(), target: Some(Box::new(target)), args })
    }

    fn fail<T>(&mut self, pos: usize, message: &str) -> Result<T, ParseAborted> {
        self.p.report(pos, message);
        Err(ParseAborted)
    }

    /// The iteration variables: all but the last arguments.
    fn vars(&mut self, names: &[Expr], wrong: &str) -> Result<(String, Option<String>), ParseAborted> {
        let mut out = Vec::new();
        for e in names {
            let ExprKind::Ident(name) = &e.kind else { return self.fail(e.pos, wrong) };
            if name == ACCU || name == "__result__" {
                return self.fail(e.pos, "iteration variable overwrites accumulator variable");
            }
            if out.contains(name) {
                return self.fail(e.pos, &format!("duplicate variable name: {name}"));
            }
            out.push(name.clone());
        }
        let mut out = out.into_iter();
        Ok((out.next().ok_or(ParseAborted)?, out.next()))
    }

    fn quantifier(&mut self, range: Expr, name: &str, mut args: Vec<Expr>) -> ParseResult {
        let predicate = args.pop().ok_or(ParseAborted)?;
        let (var, var2) = self.vars(&args, "argument must be a simple name")?;
        let accu = self.accu()?;
        let (init, cond, step, result);
        match name {
            "all" => {
                init = self.lit(Lit::Bool(true))?;
                let a = self.accu()?;
                cond = self.call("@not_strictly_false", vec![a])?;
                step = self.call("_&&_", vec![accu, predicate])?;
                result = self.accu()?;
            }
            "exists" => {
                init = self.lit(Lit::Bool(false))?;
                let a = self.accu()?;
                let not = self.call("!_", vec![a])?;
                cond = self.call("@not_strictly_false", vec![not])?;
                step = self.call("_||_", vec![accu, predicate])?;
                result = self.accu()?;
            }
            _ => {
                init = self.lit(Lit::Int(0))?;
                cond = self.lit(Lit::Bool(true))?;
                let one = self.lit(Lit::Int(1))?;
                let more = self.call("_+_", vec![accu, one])?;
                let same = self.accu()?;
                step = self.call("_?_:_", vec![predicate, more, same])?;
                let (a, one) = (self.accu()?, self.lit(Lit::Int(1))?);
                result = self.call("_==_", vec![a, one])?;
            }
        }
        let comp = Comprehension { range, var, var2, accu: ACCU.into(), init, cond, step, result };
        self.p.node(self.pos, ExprKind::Comprehension(Box::new(comp)))
    }

    fn transform(&mut self, range: Expr, name: &str, mut args: Vec<Expr>) -> ParseResult {
        let last = args.pop().ok_or(ParseAborted)?;
        let (element, filter) = match (name, args.len()) {
            ("filter", _) => (self.p.copy(args.first().ok_or(ParseAborted)?)?, Some(last)),
            (_, 2) => (last, args.pop()),
            _ => (last, None),
        };
        let (var, _) = self.vars(&args, "argument is not an identifier")?;
        let accu = self.accu()?;
        let element = self.list(vec![element])?;
        let step = self.call("_+_", vec![accu, element])?;
        let init = self.list(Vec::new())?;
        self.collect(range, var, None, init, step, filter)
    }

    fn transform_two(&mut self, range: Expr, name: &str, mut args: Vec<Expr>) -> ParseResult {
        let transform = args.pop().ok_or(ParseAborted)?;
        let filter = if args.len() == 3 { args.pop() } else { None };
        let (var, var2) = self.vars(&args, "argument must be a simple name")?;
        let accu = self.accu()?;
        let (init, step) = match name {
            "transformList" => {
                let element = self.list(vec![transform])?;
                (self.list(Vec::new())?, self.call("_+_", vec![accu, element])?)
            }
            "transformMap" => {
                let key = self.ident(&var)?;
                (self.empty_map()?, self.call("cel.@mapInsert", vec![accu, key, transform])?)
            }
            _ => (self.empty_map()?, self.call("cel.@mapInsert", vec![accu, transform])?),
        };
        self.collect(range, var, var2, init, step, filter)
    }

    fn empty_map(&mut self) -> ParseResult {
        self.p.node(self.pos, ExprKind::Map { entries: Vec::new() })
    }

    fn collect(
        &mut self,
        range: Expr,
        var: String,
        var2: Option<String>,
        init: Expr,
        step: Expr,
        filter: Option<Expr>,
    ) -> ParseResult {
        let cond = self.lit(Lit::Bool(true))?;
        let step = match filter {
            None => step,
            Some(filter) => {
                let same = self.accu()?;
                self.call("_?_:_", vec![filter, step, same])?
            }
        };
        let result = self.accu()?;
        let comp = Comprehension { range, var, var2, accu: ACCU.into(), init, cond, step, result };
        self.p.node(self.pos, ExprKind::Comprehension(Box::new(comp)))
    }

    /// A fold over nothing whose accumulator is the named value.
    fn bind(&mut self, name: &str, value: Expr, result: Expr) -> ParseResult {
        let range = self.list(Vec::new())?;
        let cond = self.lit(Lit::Bool(false))?;
        let step = self.ident(name)?;
        let comp = Comprehension {
            range,
            var: "#unused".into(),
            var2: None,
            accu: name.into(),
            init: value,
            cond,
            step,
            result,
        };
        self.p.node(self.pos, ExprKind::Comprehension(Box::new(comp)))
    }

    fn opt_map(&mut self, target: Expr, name: &str, mut args: Vec<Expr>) -> ParseResult {
        let transform = args.pop().ok_or(ParseAborted)?;
        let var = args.pop().ok_or(ParseAborted)?;
        let ExprKind::Ident(var_name) = &var.kind else {
            return self.fail(var.pos, &format!("{name}() variable name must be a simple identifier"));
        };
        let again = self.p.copy(&target)?;
        let has = self.member(target, "hasValue", Vec::new())?;
        let value = self.member(again, "value", Vec::new())?;
        let bound = self.bind(var_name, value, transform)?;
        let yes = if name == "optMap" { self.call("optional.of", vec![bound])? } else { bound };
        let none = self.call("optional.none", Vec::new())?;
        self.call("_?_:_", vec![has, yes, none])
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> ParseResult {
        const INPUT: &str = "@__sortBy_input__";
        if matches!(target.kind, ExprKind::Lit(_) | ExprKind::Map { .. }) {
            let wrong = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return self.fail(target.pos, wrong);
        }
        let input = self.ident(INPUT)?;
        let keys = self.transform(input, "map", args)?;
        let list = self.ident(INPUT)?;
        let sorted = self.member(list, "@sortByAssociatedKeys", vec![keys])?;
        self.bind(INPUT, target, sorted)
    }
}
