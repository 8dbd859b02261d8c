//! Whether a value keeps to its schema, in the words that the API server uses, and whether an update made it worse.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use crate::{ErrorType, FieldError, ListType, Schema, Type, formats, text};

/// Everything that is wrong with `value`. Errors carry paths below `path`, which is empty for a whole object.
pub fn validate(schema: &Schema, value: &Value, path: &str) -> Vec<FieldError> {
    report(check(schema, value, "", None), path)
}

/// The new errors of `new`: unchanged subtrees of `old` may stay invalid, where the keys of a map list identify
/// list items.
pub fn validate_update(schema: &Schema, new: &Value, old: &Value, path: &str) -> Vec<FieldError> {
    let correlation = Correlation { schema, new, old };
    report(ratchet(schema, new, "", Some(correlation)), path)
}

/// A mistake before it has its full path.
struct ValidationError {
    /// Where, below the validated value; none for mistakes that the real server reports without a field.
    at: Option<String>,
    ty: ErrorType,
    value: Option<Value>,
    detail: String,
}

/// Mistakes, and how many checks were done: of several alternatives, the one with the most is reported.
#[derive(Default)]
struct Outcome {
    mistakes: Vec<ValidationError>,
    checks: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        self.mistakes.extend(other.mistakes);
        self.checks += other.checks;
    }

    fn add(&mut self, at: &str, ty: ErrorType, value: impl Into<Value>, detail: impl Into<String>) {
        let mistake = ValidationError { at: Some(at.to_owned()), ty, value: Some(value.into()), detail: detail.into() };
        self.mistakes.push(mistake);
    }

    fn add_unplaced(&mut self, detail: String) {
        let value = Some(Value::String(String::new()));
        self.mistakes.push(ValidationError { at: None, ty: ErrorType::Invalid, value, detail });
    }

    fn is_valid(&self) -> bool {
        self.mistakes.is_empty()
    }
}

fn report(outcome: Outcome, path: &str) -> Vec<FieldError> {
    let mut seen = HashSet::new();
    let mut errors = Vec::new();
    for mistake in outcome.mistakes {
        let below = mistake.at.as_deref().unwrap_or("");
        let below = below.strip_prefix('.').unwrap_or(below);
        let field = match (path, below) {
            ("", "") => "<nil>".to_owned(),
            (_, "") => path.to_owned(),
            _ => text::child(path, below),
        };
        let error = FieldError { ty: mistake.ty, field, value: mistake.value, detail: mistake.detail };
        if seen.insert(error.to_string()) {
            errors.push(error);
        }
    }
    errors
}

/// An old value that belongs to a new one, with the schema of both.
#[derive(Clone, Copy, Debug)]
pub struct Correlation<'a> {
    pub schema: &'a Schema,
    /// The value as it is to be.
    pub new: &'a Value,
    /// The value as it was.
    pub old: &'a Value,
}

impl<'a> Correlation<'a> {
    /// A field that was there before.
    pub fn field(self, name: &str) -> Option<Self> {
        let (old, new) = (self.old.get(name)?, self.new.get(name)?);
        let schema = match self.schema.properties.get(name) {
            Some(property) => property,
            None => self.schema.additional.as_ref()?,
        };
        Some(Self { schema, new, old })
    }

    fn item(self, at: usize) -> Option<Self> {
        let ListType::Map(keys) = &self.schema.list_type else { return None };
        let schema = self.schema.items.as_deref()?;
        let new = self.new.as_array()?.get(at)?;
        let same_key = |item: &&Value| keys.iter().all(|key| item.get(key) == new.get(key));
        let old = self.old.as_array()?.iter().find(same_key)?;
        new.is_object().then_some(Self { schema, new, old })
    }

    /// Whether nothing changed: items of a map list are matched by key.
    pub fn equal(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if new.len() != old.len() {
                    return false;
                }
                if matches!(self.schema.list_type, ListType::Map(_)) && self.schema.items.is_some() {
                    return (0..new.len()).all(|at| self.item(at).is_some_and(Self::equal));
                }
                new == old
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len() && new.keys().all(|name| self.field(name).is_some_and(Self::equal))
            }
            (new, old) => new == old,
        }
    }
}

/// Checks a value; when it is what it was, its mistakes are forgiven.
fn ratchet(schema: &Schema, value: &Value, at: &str, was: Option<Correlation<'_>>) -> Outcome {
    let outcome = check(schema, value, at, was);
    match was {
        Some(correlation) if !outcome.is_valid() && correlation.equal() => {
            Outcome { mistakes: Vec::new(), checks: outcome.checks }
        }
        _ => outcome,
    }
}

fn check(schema: &Schema, value: &Value, at: &str, was: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = check_type(schema, value, at);
    if value.is_null() {
        outcome.merge(check_enum(schema, value, at));
        return outcome;
    }
    outcome.merge(check_alternatives(schema, value, at, was));
    match value {
        Value::String(text) => outcome.merge(check_string(schema, text, at)),
        Value::Number(number) => outcome.merge(check_number(schema, number, at)),
        Value::Array(items) => outcome.merge(check_items(schema, items, at, was)),
        _ => {}
    }
    outcome.merge(check_enum(schema, value, at));
    if let Value::Object(fields) = value {
        outcome.merge(check_fields(schema, fields, at, was));
    }
    outcome.checks += 4;
    outcome
}

/// The type's name and, for numbers, the format that the real server sees in a value.
fn seen_type(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Number(n) if n.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

fn is_whole(number: &Number) -> bool {
    number.as_f64().is_some_and(|real| real.abs() <= 9_007_199_254_740_991.0 && real.fract() == 0.0)
}

fn check_type(schema: &Schema, value: &Value, at: &str) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    let wanted: &[&str] = match (schema.int_or_string, schema.ty) {
        (true, _) => &["integer", "string"],
        (false, Some(ty)) => &[ty.name()],
        (false, None) => &[],
    };
    let single = if schema.int_or_string { None } else { schema.ty };
    let format = schema.format.as_deref().filter(|format| formats::recognised(single, format));
    if wanted.is_empty() && format.is_none() {
        return outcome;
    }
    let (found, found_format) = seen_type(value);
    let wrong = |outcome: &mut Outcome, wanted: &str, found: &str| {
        let detail = format!("{at} in body must be of type {wanted}: {}", text::quote(found));
        outcome.add(at, ErrorType::TypeInvalid, found, detail);
    };
    if value.is_null() {
        if !wanted.is_empty() && !schema.nullable {
            wrong(&mut outcome, &wanted.join(","), "null");
        }
        return outcome;
    }
    let numeric = wanted.contains(&"number") || wanted.contains(&"integer");
    let fits = wanted.contains(&found)
        || (found == "number" && wanted.contains(&"integer") && matches!(value, Value::Number(n) if is_whole(n)))
        || (found == "integer" && wanted.contains(&"number"));
    let text_or_list = matches!(value, Value::String(_) | Value::Array(_));
    if let Some(format) = format {
        if !text_or_list && !fits && found_format != format {
            wrong(&mut outcome, format, found_format);
            return outcome;
        }
        // A quirk to keep: only the format decides the type of a formatted string.
        if !numeric && text_or_list {
            return outcome;
        }
    }
    if !fits {
        wrong(&mut outcome, &wanted.join(","), found);
    }
    outcome
}

fn check_alternatives(schema: &Schema, value: &Value, at: &str, was: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    let name = text::quote(at);
    if !schema.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut passed = None;
        for alternative in &schema.any_of {
            let tried = check(alternative, value, at, was);
            if tried.is_valid() {
                passed = Some(tried);
                break;
            }
            if best.as_ref().is_none_or(|best| tried.checks > best.checks) {
                best = Some(tried);
            }
        }
        if passed.is_none() {
            outcome.add_unplaced(format!("{name} must validate at least one schema (anyOf)"));
        }
        outcome.merge(passed.or(best).unwrap_or_default());
    }
    if !schema.one_of.is_empty() {
        let tried: Vec<Outcome> = schema.one_of.iter().map(|one| check(one, value, at, was)).collect();
        let valid = tried.iter().filter(|outcome| outcome.is_valid()).count();
        if valid != 1 {
            let found = match valid {
                0 => "Found none valid".to_owned(),
                n => format!("Found {n} valid alternatives"),
            };
            outcome.add_unplaced(format!("{name} must validate one and only one schema (oneOf). {found}"));
        }
        let best = tried
            .into_iter()
            .filter(|one| one.is_valid() == (valid > 0))
            .reduce(|best, next| if valid == 0 && next.checks > best.checks { next } else { best });
        if valid < 2 {
            outcome.merge(best.unwrap_or_default());
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for one in &schema.all_of {
            let tried = check(one, value, at, was);
            valid += usize::from(tried.is_valid());
            outcome.merge(tried);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            outcome.add_unplaced(format!("{name} must validate all the schemas (allOf){none}"));
        }
    }
    if let Some(not) = &schema.not
        && check(not, value, at, was).is_valid()
    {
        outcome.add_unplaced(format!("{name} must not validate the schema (not)"));
    }
    outcome
}

fn check_string(schema: &Schema, value: &str, at: &str) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    let length = || value.chars().count() as u64;
    if let Some(max) = schema.max_length.filter(|max| length() > *max) {
        let too_long = FieldError::too_long(at, max);
        outcome.mistakes.push(ValidationError {
            at: Some(at.to_owned()),
            ty: too_long.ty,
            value: None,
            detail: too_long.detail,
        });
    } else if let Some(min) = schema.min_length.filter(|min| length() < *min) {
        outcome.add(at, ErrorType::Invalid, value, format!("{at} in body should be at least {min} chars long"));
    } else if let Some(pattern) = &schema.pattern {
        match schema.compiled.get(pattern) {
            Ok(regex) if regex.is_match(value) => {}
            Ok(_) => outcome.add(at, ErrorType::Invalid, value, format!("{at} in body should match '{pattern}'")),
            Err(why) => {
                let detail = format!("{at} in body should match '{pattern}, but pattern is invalid: {why}'");
                outcome.add(at, ErrorType::Invalid, value, detail);
            }
        }
    }
    if let Some(format) = &schema.format
        && (schema.int_or_string || formats::recognised(schema.ty, format))
        && !matches!(schema.ty, Some(Type::Integer | Type::Number))
        && !formats::holds(format, value)
    {
        let detail = format!("{at} in body must be of type {format}: {}", text::quote(value));
        outcome.add(at, ErrorType::TypeInvalid, value, detail);
    }
    outcome
}

/// Checks the type and format of a number, on the value and on the bounds alike.
fn out_of_range(schema: &Schema, number: &Number, what: &str, at: &str) -> Option<String> {
    if schema.int_or_string {
        return None;
    }
    let format = schema.format.as_deref().filter(|format| formats::recognised(schema.ty, format));
    let ty = schema.ty?;
    let whole = match number.as_i64() {
        Some(int) => Some(int),
        None => number.as_f64().filter(|real| real.fract() == 0.0 && real.abs() < 9.3e18).map(|real| real as i64),
    };
    let fits = match (ty, format) {
        (Type::Integer, Some("int32")) => whole.is_some_and(|int| i32::try_from(int).is_ok()),
        (Type::Integer, _) => whole.is_some(),
        (Type::Number, Some("float")) => number.as_f64().is_some_and(|real| real.abs() <= f64::from(f32::MAX)),
        _ => true,
    };
    if fits {
        return None;
    }
    Some(match format {
        Some(format) => format!("{what} value must be of type {} with format {format} in {at}", ty.name()),
        None => format!("{what} value must be of type {} (default format) in {at}", ty.name()),
    })
}

fn check_number(schema: &Schema, number: &Number, at: &str) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    if let Some(problem) = out_of_range(schema, number, "Checked", at) {
        outcome.add_unplaced(problem);
    }
    // Integers are compared with the bound cut to an integer, as the real server does.
    let cut = |bound: &Number| match (number.as_i64(), bound.as_f64()) {
        (Some(_), Some(real)) if !bound.is_i64() => Number::from(real as i64),
        _ => bound.clone(),
    };
    if let Some(factor) = &schema.multiple_of {
        if let Some(problem) = out_of_range(schema, factor, "MultipleOf", at) {
            outcome.add_unplaced(problem);
        }
        let positive = factor.as_f64().is_some_and(|real| real > 0.0);
        let multiple = match (number.as_i64(), cut(factor).as_i64()) {
            (Some(int), Some(by)) if by > 0 => int % by == 0,
            _ => match (number.as_f64(), factor.as_f64()) {
                (Some(real), Some(by)) if by > 0.0 => {
                    let times = if by < 1.0 { 1.0 / by * real } else { real / by };
                    (times - times.round()).abs() < 1e-9
                }
                _ => false,
            },
        };
        if !positive {
            let shown = text::number(factor);
            let detail = format!("factor MultipleOf declared for {at} must be positive: {shown}");
            outcome.add(at, ErrorType::Invalid, Value::Number(factor.clone()), detail);
        } else if !multiple {
            let detail = format!("{at} in body should be a multiple of {}", text::number(factor));
            outcome.add(at, ErrorType::Invalid, Value::Number(number.clone()), detail);
        }
    }
    let bounds = [
        (&schema.minimum, "Minimum boundary", schema.exclusive_minimum, std::cmp::Ordering::Less, "greater than"),
        (&schema.maximum, "Maximum boundary", schema.exclusive_maximum, std::cmp::Ordering::Greater, "less than"),
    ];
    for (bound, what, exclusive, beyond, words) in bounds {
        let Some(bound) = bound else { continue };
        if let Some(problem) = out_of_range(schema, bound, what, at) {
            outcome.add_unplaced(problem);
        }
        let bound = cut(bound);
        let order = compare(number, &bound);
        if order == Some(beyond) || (exclusive && order == Some(std::cmp::Ordering::Equal)) {
            let or_equal = if exclusive { "" } else { " or equal to" };
            let detail = format!("{at} in body should be {words}{or_equal} {}", text::number(&bound));
            outcome.add(at, ErrorType::Invalid, Value::Number(number.clone()), detail);
        }
    }
    outcome
}

fn compare(a: &Number, b: &Number) -> Option<std::cmp::Ordering> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn check_items(schema: &Schema, items: &[Value], at: &str, was: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    if let Some(item_schema) = &schema.items {
        let old = OldItems::new(was);
        for (n, item) in items.iter().enumerate() {
            outcome.merge(ratchet(item_schema, item, &text::index(at, n), old.of(n)));
        }
    }
    let size = items.len() as u64;
    if let Some(min) = schema.min_items.filter(|min| size < *min) {
        outcome.add(at, ErrorType::Invalid, size, format!("{at} in body should have at least {min} items"));
    }
    if let Some(max) = schema.max_items.filter(|max| size > *max) {
        let error = FieldError::too_many(at, size, max);
        outcome.add(at, error.ty, size, error.detail);
    }
    if schema.unique_items {
        let mut seen = HashSet::new();
        if items.iter().any(|item| !seen.insert(item.to_string())) {
            outcome.add(at, ErrorType::Invalid, "", format!("{at} in body shouldn't contain duplicates"));
        }
    }
    outcome
}

/// The old items of a map list by key, so that a long list is correlated in one pass.
struct OldItems<'a> {
    keys: &'a [String],
    schema: Option<&'a Schema>,
    by_key: std::collections::HashMap<String, &'a Value>,
    new: &'a [Value],
}

impl<'a> OldItems<'a> {
    fn new(was: Option<Correlation<'a>>) -> Self {
        let mut found = Self { keys: &[], schema: None, by_key: Default::default(), new: &[] };
        let Some(was) = was else { return found };
        if let (ListType::Map(keys), Some(items), Value::Array(old), Value::Array(new)) =
            (&was.schema.list_type, &was.schema.items, was.old, was.new)
        {
            found.keys = keys;
            found.schema = Some(items);
            found.new = new;
            for item in old.iter().filter(|item| item.is_object()).rev() {
                found.by_key.insert(found.key(item), item);
            }
        }
        found
    }

    fn key(&self, item: &Value) -> String {
        self.keys
            .iter()
            .map(|key| item.get(key).map_or_else(|| "-".to_owned(), Value::to_string))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn of(&self, at: usize) -> Option<Correlation<'a>> {
        let schema = self.schema?;
        let new = self.new.get(at)?;
        let old = self.by_key.get(&self.key(new))?;
        Some(Correlation { schema, new, old })
    }
}

fn check_enum(schema: &Schema, value: &Value, at: &str) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    let same = |allowed: &Value| match (allowed, value) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(a), Value::Number(b)) => compare(a, b) == Some(std::cmp::Ordering::Equal),
        (a, b) => a == b,
    };
    if schema.enumeration.is_empty() || schema.enumeration.iter().any(same) {
        return outcome;
    }
    let name = |allowed: &Value| match allowed {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let allowed: Vec<String> = schema.enumeration.iter().map(name).collect();
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    let error = FieldError::not_supported(at, value.clone(), &allowed);
    outcome.add(at, error.ty, value.clone(), error.detail);
    outcome
}

fn check_fields(schema: &Schema, fields: &Map<String, Value>, at: &str, was: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = Outcome::default();
    let size = fields.len() as u64;
    if let Some(min) = schema.min_properties.filter(|min| size < *min) {
        outcome.add(at, ErrorType::Invalid, size, format!("{at} in body should have at least {min} properties"));
    }
    if let Some(max) = schema.max_properties.filter(|max| size > *max) {
        let error = FieldError::too_many(at, size, max);
        outcome.add(at, error.ty, size, error.detail);
    }
    let correlated = |name: &str| match was {
        // A change of apiVersion is not visible here, so these two are always checked.
        Some(_) if at.is_empty() && (name == "kind" || name == "apiVersion") => None,
        Some(was) => was.field(name),
        None => None,
    };
    for (name, value) in fields {
        if schema.properties.contains_key(name) {
            continue;
        }
        if schema.additional_allowed == Some(false) {
            let detail = format!("{at}.{name} in body is a forbidden property");
            outcome.add(at, ErrorType::Invalid, name.as_str(), detail);
        } else if let Some(additional) = &schema.additional {
            outcome.merge(ratchet(additional, value, &format!("{at}.{name}"), correlated(name)));
        }
    }
    for (name, property) in &schema.properties {
        if let Some(value) = fields.get(name) {
            outcome.merge(ratchet(property, value, &text::child(at, name), correlated(name)));
        }
    }
    for name in &schema.required {
        if !fields.contains_key(name) {
            outcome.mistakes.push(ValidationError {
                at: Some(format!("{at}.{name}")),
                ty: ErrorType::Required,
                value: None,
                detail: String::new(),
            });
        }
    }
    outcome
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
