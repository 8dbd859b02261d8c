//! The JSON paths of printer columns: `.status.conditions[?(@.type=="Ready")].status`.

use serde_json::Value;

use fleetwright_schema::text;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Every value of a list or map.
    All,
    /// Everything below, at any depth.
    Descend,
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    },
    Index(i64),
    /// Several fields or items.
    Union(Vec<Step>),
    Filter(Operand, Option<(Comparison, Operand)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

/// The limits of a path's length and of its number of results: columns show one value.
const MAX_LENGTH: usize = 4096;
const MAX_RESULTS: usize = 10_000;

impl JsonPath {
    /// Reads a path, with or without braces.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        if text.len() > MAX_LENGTH {
            return Err(format!("a path of more than {MAX_LENGTH} characters"));
        }
        let mut parser = Parser { rest: text, depth: 0 };
        let path = parser.path(&[])?;
        if parser.rest.is_empty() { Ok(path) } else { Err(format!("unrecognized character in path: {}", parser.rest)) }
    }

    /// All values at the path; empty where fields are missing.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                take(step, value, &mut next);
            }
            next.truncate(MAX_RESULTS);
            found = next;
        }
        found
    }

    /// The first value at the path.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.find(root).first().copied()
    }
}

fn take<'a>(step: &Step, value: &'a Value, out: &mut Vec<&'a Value>) {
    match (step, value) {
        (Step::Field(name), Value::Object(fields)) => out.extend(fields.get(name)),
        (Step::All, Value::Object(fields)) => out.extend(fields.values()),
        (Step::All, Value::Array(items)) => out.extend(items),
        (Step::Descend, _) => descend(value, out),
        (Step::Index(at), Value::Array(items)) => {
            let at = if *at < 0 { at + items.len() as i64 } else { *at };
            out.extend(usize::try_from(at).ok().and_then(|at| items.get(at)));
        }
        (Step::Slice { start, end, step }, Value::Array(items)) => {
            let len = items.len() as i64;
            let place = |at: i64| if at < 0 { at + len } else { at }.clamp(0, len);
            let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(len)));
            let step = usize::try_from(*step).unwrap_or(1).max(1);
            if start < end {
                out.extend(items[start as usize..end as usize].iter().step_by(step));
            }
        }
        (Step::Union(steps), _) => steps.iter().for_each(|step| take(step, value, out)),
        (Step::Filter(left, compare), Value::Array(items)) => {
            out.extend(items.iter().filter(|item| passes(left, compare.as_ref(), item)));
        }
        _ => {}
    }
}

fn descend<'a>(value: &'a Value, out: &mut Vec<&'a Value>) {
    if out.len() >= MAX_RESULTS {
        return;
    }
    out.push(value);
    match value {
        Value::Object(fields) => fields.values().for_each(|field| descend(field, out)),
        Value::Array(items) => items.iter().for_each(|item| descend(item, out)),
        _ => {}
    }
}

fn passes(left: &Operand, compare: Option<&(Comparison, Operand)>, item: &Value) -> bool {
    fn value<'a>(operand: &'a Operand, item: &'a Value) -> Option<&'a Value> {
        match operand {
            Operand::Path(path) => path.first(item),
            Operand::Literal(literal) => Some(literal),
        }
    }
    let Some(left) = value(left, item) else { return false };
    let Some((comparison, right)) = compare else { return true };
    let Some(right) = value(right, item) else { return false };
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (a, b) => (a == b).then_some(Equal),
    };
    match comparison {
        Comparison::Equal => order == Some(Equal),
        Comparison::NotEqual => order != Some(Equal),
        Comparison::Less => order == Some(Less),
        Comparison::LessOrEqual => matches!(order, Some(Less | Equal)),
        Comparison::Greater => order == Some(Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Greater | Equal)),
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Reads steps until the end or one of `stops`.
    fn path(&mut self, stops: &[char]) -> Result<JsonPath, String> {
        let mut steps = Vec::new();
        self.take("$");
        while let Some(c) = self.rest.chars().next() {
            if stops.contains(&c) {
                break;
            }
            if self.take("..") {
                steps.push(Step::Descend);
                if !self.rest.starts_with('[') {
                    steps.push(self.field(stops)?);
                }
            } else if self.take(".") {
                if !self.rest.is_empty() && !self.rest.starts_with('[') && !self.rest.starts_with(stops) {
                    steps.push(self.field(stops)?);
                }
            } else if self.take("[") {
                steps.push(self.bracket()?);
            } else if steps.is_empty() {
                steps.push(self.field(stops)?);
            } else {
                return Err(format!("unrecognized character in action: {c:?}"));
            }
        }
        Ok(JsonPath(steps))
    }

    fn field(&mut self, stops: &[char]) -> Result<Step, String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
                '.' | '[' | ']' => {
                    end = at;
                    break;
                }
                c if stops.contains(&c) || c.is_whitespace() => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        match name.as_str() {
            "" => Err("a field without a name".to_owned()),
            "*" => Ok(Step::All),
            _ => Ok(Step::Field(name)),
        }
    }

    fn bracket(&mut self) -> Result<Step, String> {
        if self.take("?(") {
            return self.filter();
        }
        let mut steps = Vec::new();
        loop {
            self.rest = self.rest.trim_start();
            steps.push(if self.rest.starts_with(['\'', '"']) {
                Step::Field(self.quoted()?)
            } else {
                let end = self.rest.find([',', ']']).ok_or("unterminated array")?;
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                subscript(word.trim())?
            });
            self.rest = self.rest.trim_start();
            if self.take("]") {
                break;
            }
            if !self.take(",") {
                return Err("unterminated array".to_owned());
            }
        }
        Ok(if steps.len() == 1 { steps.remove(0) } else { Step::Union(steps) })
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map_or('"', |(_, c)| c);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                out.extend(chars.next().map(|(_, escaped)| escaped));
            } else if c == quote {
                self.rest = &self.rest[at + c.len_utf8()..];
                return Ok(out);
            } else {
                out.push(c);
            }
        }
        Err("unterminated quoted string".to_owned())
    }

    fn filter(&mut self) -> Result<Step, String> {
        self.depth += 1;
        if self.depth > 8 {
            return Err("filters nested too deeply".to_owned());
        }
        let left = self.operand()?;
        self.rest = self.rest.trim_start();
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let found = operators.into_iter().find(|(text, _)| self.take(text));
        let compare = match found {
            Some((_, comparison)) => Some((comparison, self.operand()?)),
            None => None,
        };
        self.rest = self.rest.trim_start();
        self.depth -= 1;
        if self.take(")]") { Ok(Step::Filter(left, compare)) } else { Err("unterminated filter".to_owned()) }
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.rest = self.rest.trim_start();
        if self.take("@") {
            return Ok(Operand::Path(self.path(&['=', '!', '<', '>', ')', ' '])?));
        }
        if self.rest.starts_with(['\'', '"']) {
            return Ok(Operand::Literal(Value::String(self.quoted()?)));
        }
        let end = self.rest.find(['=', '!', '<', '>', ')']).ok_or("unterminated filter")?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let word = word.trim();
        serde_json::from_str(word)
            .ok()
            .filter(|value: &Value| !value.is_object() && !value.is_array())
            .map(Operand::Literal)
            .ok_or_else(|| format!("unrecognized literal {}", text::quote(word)))
    }
}

fn subscript(word: &str) -> Result<Step, String> {
    let number = |text: &str| -> Result<Option<i64>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| format!("invalid array index {word}"))
    };
    if word == "*" {
        return Ok(Step::All);
    }
    if let Some((start, rest)) = word.split_once(':') {
        let (end, step) = rest.split_once(':').unwrap_or((rest, ""));
        return Ok(Step::Slice { start: number(start)?, end: number(end)?, step: number(step)?.unwrap_or(1) });
    }
    number(word)?.map(Step::Index).ok_or_else(|| format!("invalid array index {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_what_kubectl_finds() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "x"}},
            "spec": {"n": 3, "list": [1, 2, 3]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}
        });
        let table = [
            (".spec.n", json!([3])),
            (".spec.missing.deep", json!([])),
            (".metadata.annotations['a.b/c']", json!(["x"])),
            (".metadata.annotations.a\\.b/c", json!(["x"])),
            (".spec.list[0]", json!([1])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[-1:]", json!([3])),
            (".spec.list[0:2]", json!([1, 2])),
            (".spec.list[*]", json!([1, 2, 3])),
            (".spec.list[0,2]", json!([1, 3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Other')].status", json!(["False"])),
            (".status.conditions[?(@.missing)].status", json!([])),
            ("..type", json!(["Ready", "Other"])),
            ("{.spec.n}", json!([3])),
        ];
        for (path, found) in table {
            let path = JsonPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(json!(path.find(&object)), found, "{path:?}");
        }
    }

    #[test]
    fn broken_paths_are_errors() {
        for path in [".a[", ".a[?(@.b", ".a['x", ".a[x]", ".a[?(@.b==c)]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
