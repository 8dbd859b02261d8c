//! The restricted JSON paths of rules (`fieldPath`) and selectable fields: `.spec.name`, `.metadata['a.b']`.

use crate::{Schema, text};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The field's name or the map's key.
    pub name: String,
    /// Whether the step goes into a map rather than to a named field.
    pub is_key: bool,
}

/// A path that exists in a schema, and the schema that it leads to.
#[derive(Clone, Debug)]
pub struct ResolvedPath<'a> {
    /// The steps from the schema's root.
    pub steps: Vec<Step>,
    /// What the path points at; none inside a map of anything.
    pub schema: Option<&'a Schema>,
}

impl ResolvedPath<'_> {
    /// The path as errors print it (`spec.map[key]`).
    pub fn path(&self, parent: &str) -> String {
        self.steps.iter().fold(parent.to_owned(), |path, step| {
            if step.is_key { text::key(&path, &step.name) } else { text::child(&path, &step.name) }
        })
    }
}

/// Follows `path` through the schema.
///
/// # Errors
/// Why the path is not one that leads to a field.
pub fn resolve<'a>(path: &str, schema: &'a Schema, allow_brackets: bool) -> Result<ResolvedPath<'a>, String> {
    let tokens = tokens(path);
    let mut tokens = tokens.iter().map(String::as_str);
    let mut found = ResolvedPath { steps: Vec::new(), schema: Some(schema) };
    while let Some(token) = tokens.next() {
        let end = || "unexpected end of JSON path".to_owned();
        match token {
            "." => {
                let name = tokens.next().ok_or_else(end)?;
                step(&mut found, name)?;
            }
            "[" if !allow_brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or_else(end)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let Some(inner) = inner.filter(|_| quoted.len() >= 2) else {
                    return Err(format!("expected single quoted string but got {quoted}"));
                };
                step(&mut found, &unescape(inner)?)?;
                match tokens.next().ok_or_else(end)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(found)
}

fn step(found: &mut ResolvedPath<'_>, name: &str) -> Result<(), String> {
    let invalid = || "does not refer to a valid field".to_owned();
    let schema = found.schema.ok_or_else(invalid)?;
    let is_key = schema.properties.is_empty();
    found.schema = if !is_key {
        Some(schema.properties.get(name).ok_or_else(invalid)?)
    } else if schema.additional.is_some() || schema.additional_allowed.is_some() {
        schema.additional.as_deref()
    } else {
        return Err(invalid());
    };
    found.steps.push(Step { name: name.to_owned(), is_key });
    Ok(())
}

/// Delimiters, quoted strings and the texts between them.
fn tokens(path: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut previous = '\0';
    for c in path.chars() {
        let quoted = word.starts_with('\'');
        if quoted {
            word.push(c);
            if c == '\'' && previous != '\\' {
                found.push(std::mem::take(&mut word));
            }
        } else if matches!(c, '.' | '[' | ']') {
            if !word.is_empty() {
                found.push(std::mem::take(&mut word));
            }
            found.push(c.to_string());
        } else {
            word.push(c);
        }
        previous = c;
    }
    if !word.is_empty() {
        found.push(word);
    }
    found
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('a') => out.push('\u{7}'),
                Some('b') => out.push('\u{8}'),
                Some('f') => out.push('\u{c}'),
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some('v') => out.push('\u{b}'),
                Some(escaped @ ('\\' | '\'' | '"')) => out.push(escaped),
                _ => return Err("invalid string literal: invalid syntax".to_owned()),
            },
            '\'' => return Err("invalid string literal: unexpected end of string".to_owned()),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_leads_to_its_schema_or_says_why_not() {
        let schema = Schema::from_openapi(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a.b": {"type": "string"}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}}
        }}))
        .unwrap();
        let path = |p: &str| resolve(p, &schema, true).map(|found| found.path(""));
        assert_eq!(path(".spec['a.b']").unwrap(), "spec.a.b");
        assert_eq!(path(".map.x").unwrap(), "map[x]");
        assert_eq!(path(".spec.zz").unwrap_err(), "does not refer to a valid field");
        assert_eq!(path("spec").unwrap_err(), "expected [ or . but got: spec");
        assert_eq!(path(".spec[").unwrap_err(), "unexpected end of JSON path");
        assert_eq!(resolve(".map['x']", &schema, false).unwrap_err(), "array notation is not allowed");
    }
}
