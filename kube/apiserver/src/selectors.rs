//! Label and field selectors: grammar, errors and matching.

use fleetwright_schema::FieldError;

use crate::store::Object;

/// A label selector: every requirement must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads `a=b,c in (d,e),!f`. The error is the text that the real server answers with.
    pub fn parse(text: &str) -> Result<Self, String> {
        Parser { tokens: scan(text), at: 0 }.selector().map(Self)
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.test.holds(label(&requirement.key)))
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(go_int);
        match self {
            Self::In(values) => value.is_some_and(|value| values.iter().any(|known| known == value)),
            Self::NotIn(values) => value.is_none_or(|value| values.iter().all(|known| known != value)),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::Above(bound) => number().is_some_and(|number| number > *bound),
            Self::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// An integer as Go reads it.
fn go_int(text: &str) -> Option<i64> {
    text.parse().ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// An operator or punctuation; `in` and `notin` too, which are words where a value is expected.
    Sign(&'static str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Word(text) => text,
            Self::Sign(text) => text,
            Self::End => "",
        }
    }

    fn as_value(self) -> Self {
        match self {
            Self::Sign(word @ ("in" | "notin")) => Self::Word(word),
            other => other,
        }
    }
}

const SIGNS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn scan(text: &str) -> Vec<Token<'_>> {
    // The real scanner stops at a zero byte.
    let mut rest = text.split('\0').next().unwrap_or_default();
    let mut tokens = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            tokens.push(Token::End);
            return tokens;
        }
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            rest = rest.strip_prefix(sign).unwrap_or_default();
            continue;
        }
        let end = rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        tokens.push(match word {
            "in" => Token::Sign("in"),
            "notin" => Token::Sign("notin"),
            word => Token::Word(word),
        });
        rest = after;
    }
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The current token as an operator.
    fn raw(&mut self) -> Token<'a> {
        let token = self.tokens.get(self.at).copied().unwrap_or(Token::End);
        self.at += 1;
        token
    }

    fn take(&mut self) -> Token<'a> {
        self.raw().as_value()
    }

    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End).as_value()
    }

    fn selector(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Sign("!") => {
                    let requirement = self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
                    requirements.push(requirement);
                    match self.take() {
                        Token::End => break,
                        Token::Sign(",") if matches!(self.peek(), Token::Word(_) | Token::Sign("!")) => {}
                        Token::Sign(",") => {
                            return Err(format!("found '{}', expected: identifier after ','", self.peek().text()));
                        }
                        other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
                    }
                }
                Token::End => break,
                other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(requirements)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.take();
        let negated = token == Token::Sign("!");
        if negated {
            token = self.take();
        }
        let Token::Word(key) = token else { return Err(format!("found '{}', expected: identifier", token.text())) };
        if let Some(error) = key_error("<nil>", key) {
            return Err(error.to_string());
        }
        if negated {
            return Ok(Requirement { key: key.into(), test: Test::Missing });
        }
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(Requirement { key: key.into(), test: Test::Exists });
        }
        let operator = self.raw();
        let values = match operator {
            Token::Sign("in" | "notin") => self.values()?,
            Token::Sign("=" | "==" | "!=" | ">" | "<") => vec![self.value()?],
            other => return Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text())),
        };
        let test = match operator {
            Token::Sign("notin" | "!=") => Test::NotIn(values.clone()),
            Token::Sign(sign @ (">" | "<")) => {
                let bound = values.first().and_then(|value| go_int(value));
                if sign == ">" {
                    Test::Above(bound.unwrap_or_default())
                } else {
                    Test::Below(bound.unwrap_or_default())
                }
            }
            _ => Test::In(values.clone()),
        };
        let mut errors = Vec::new();
        if matches!(test, Test::Above(_) | Test::Below(_)) {
            for value in values.iter().filter(|value| go_int(value).is_none()) {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                errors.push(FieldError::invalid("values[0]", value.as_str(), detail));
            }
        }
        errors.extend(values.iter().enumerate().filter_map(|(i, v)| value_error(&format!("values[{i}][{key}]"), v)));
        match errors.as_slice() {
            [] => Ok(Requirement { key: key.into(), test }),
            [one] => Err(one.to_string()),
            many => Err(format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(String::new());
        }
        match self.take() {
            Token::Word(value) => Ok(value.into()),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// `(a,b)`: sorted, each once; empty places are empty values.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.take();
        if open != Token::Sign("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let mut values = std::collections::BTreeSet::new();
        match self.peek() {
            Token::Sign(")") => {
                values.insert(String::new());
            }
            Token::Word(_) | Token::Sign(",") => self.value_list(&mut values)?,
            other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.text())),
        }
        self.take();
        Ok(values.into_iter().collect())
    }

    fn value_list(&mut self, values: &mut std::collections::BTreeSet<String>) -> Result<(), String> {
        loop {
            match self.take() {
                Token::Word(value) => {
                    values.insert(value.into());
                    match self.peek() {
                        Token::Sign(",") => {}
                        Token::Sign(")") => return Ok(()),
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                Token::Sign(",") => {
                    let next = self.peek();
                    if values.is_empty() || matches!(next, Token::Sign(")" | ",")) {
                        values.insert(String::new());
                    }
                    if next == Token::Sign(")") {
                        return Ok(());
                    }
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
    }
}

const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

fn key_error(field: &str, key: &str) -> Option<FieldError> {
    let rule = format!(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{NAME}')"
    );
    let mut problems = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > 253 {
                    problems.push("prefix part must be no more than 253 bytes".to_owned());
                }
                if !is_subdomain(prefix) {
                    problems.push(format!(
                        "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                         characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
                         'example.com', regex used for validation is '{SUBDOMAIN}')"
                    ));
                }
            }
            name
        }
        _ => {
            let detail = format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            );
            return Some(FieldError::invalid(field, key, detail));
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name(name) {
        problems.push(format!("name part {rule}"));
    }
    (!problems.is_empty()).then(|| FieldError::invalid(field, key, problems.join("; ")))
}

fn value_error(field: &str, value: &str) -> Option<FieldError> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_name(value) {
        problems.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '({NAME})?')"
        ));
    }
    (!problems.is_empty()).then(|| FieldError::invalid(field, value, problems.join("; ")))
}

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_subdomain(text: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.split('.')
        .all(|part| part.starts_with(small) && part.ends_with(small) && part.chars().all(|c| small(c) || c == '-'))
}

/// A field selector: every term must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses `metadata.name=a,spec.nodeName!=b`. `rename` returns the stored name of a field, or the reason why it is not
    /// selectable.
    pub fn parse(text: &str, rename: impl Fn(&str) -> Result<String, String>) -> Result<Self, String> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) =
                split_term(part).ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            terms.push(Term { field: field.into(), value: unescape(value)?, equal });
        }
        terms.retain(|term| !(term.field.is_empty() && term.value.is_empty()));
        for term in &mut terms {
            term.field = rename(&term.field)?;
        }
        Ok(Self(terms))
    }

    /// A selector for one name.
    pub fn name(name: &str) -> Self {
        Self(vec![Term { field: "metadata.name".into(), value: name.into(), equal: true }])
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that a field must have, if the selector asks for one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Whether an object with these fields is selected; a missing field is an empty one.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|term| (field(&term.field).unwrap_or_default() == term.value) == term.equal)
    }
}

/// Splits at commas that no backslash precedes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c: char| {
        let separates = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    })
    .collect()
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().find(|(i, _)| {
        let rest = term.get(*i..).unwrap_or_default();
        rest.starts_with('=') || rest.starts_with("!=")
    })?;
    let (field, rest) = term.split_at(at.0);
    match rest.strip_prefix("!=") {
        Some(value) => Some((field, false, value)),
        None => Some((field, true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?)),
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(other) => return Err(format!("invalid field selector: invalid escape sequence: \\{other}")),
                None => return Err("invalid field selector: invalid escape sequence: \\".into()),
            },
            // The real message shows the character's number.
            ',' | '=' => return Err(format!("invalid field selector: unescaped character in value: {}", c as u32)),
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Both selectors of a request.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object is selected.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(|name| object.label(name)) && self.fields.matches(|path| object.field(path))
    }
}

#[cfg(test)]
mod tests;
