//! YAML with the position of each value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value with its position.
#[derive(Clone, Debug)]
pub(crate) struct SourceTree {
    /// The line and column, counted from 1.
    pub(crate) line: usize,
    pub(crate) column: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Plain(Value),
    List(Vec<SourceTree>),
    Map(Vec<(String, SourceTree)>),
}

impl SourceTree {
    /// The value as JSON.
    pub(crate) fn value(&self) -> Value {
        match &self.kind {
            Kind::Plain(value) => value.clone(),
            Kind::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Kind::Map(entries) => {
                Value::Object(entries.iter().map(|(key, tree)| (key.clone(), tree.value())).collect::<Map<_, _>>())
            }
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, tree)| tree),
            _ => None,
        }
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.kind {
            Kind::List(items) => items,
            _ => &[],
        }
    }

    /// The entries of a map, in the order of the text.
    pub(crate) fn entries(&self) -> &[(String, Self)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Plain(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether the value is null, as in an empty document.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Plain(Value::Null))
    }

    /// The value at a path such as `spec.files[1].template` or `spec.tarball.links[/usr/bin/x]`, or its nearest existing ancestor,
    /// and whether the path was found.
    pub(crate) fn find(&self, path: &str) -> (&Self, bool) {
        let (mut at, mut rest) = (self, path.trim_start_matches('.'));
        while !rest.is_empty() {
            let (key, left, index) = match rest.strip_prefix('[') {
                Some(inside) => match inside.split_once(']') {
                    Some((key, left)) => (key.trim_matches('"'), left, true),
                    None => return (at, false),
                },
                None => {
                    let end = rest.find(['.', '[']).unwrap_or(rest.len());
                    (&rest[..end], &rest[end..], false)
                }
            };
            let below = match &at.kind {
                Kind::List(items) if index => key.parse::<usize>().ok().and_then(|index| items.get(index)),
                Kind::Map(_) => at.get(key),
                _ => None,
            };
            match below {
                Some(below) => at = below,
                None => return (at, false),
            }
            rest = left.trim_start_matches('.');
        }
        (at, true)
    }
}

/// The documents of a text; comments alone are not a document.
///
/// # Errors
/// The text is not valid YAML; the error has the place.
pub(crate) fn documents(text: &str) -> Result<Vec<SourceTree>, (usize, usize, String)> {
    match serde_saphyr::from_multiple::<SourceTree>(text) {
        Ok(documents) => Ok(documents.into_iter().filter(|document| !document.is_null()).collect()),
        Err(error) => {
            let place = error.location();
            let number =
                |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok()).unwrap_or(1).max(1);
            let said = error.without_snippet().to_string();
            let said = said.lines().next().unwrap_or_default().to_owned();
            Err((number(place.map(|place| place.line())), number(place.map(|place| place.column())), said))
        }
    }
}

impl<'de> Deserialize<'de> for SourceTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        let number = |number: u64| usize::try_from(number).unwrap_or(1).max(1);
        let place = spanned.referenced;
        Ok(Self { line: number(place.line()), column: number(place.column()), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Plain(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Plain(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Plain(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Plain(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Kind, E> {
        Ok(Kind::Plain(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry::<String, SourceTree>()? {
            entries.push(entry);
        }
        Ok(Kind::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\na: 1\n---\nlist:\n- x: hello\n  y: |\n    one\n    two\n- {x: \"3\"}\n";

    #[test]
    fn everything_is_found_where_it_stands() {
        let documents = documents(TEXT).unwrap();
        let [first, second] = documents.as_slice() else { panic!("two documents: {documents:?}") };
        assert_eq!((first.find("a").0.line, first.find("a").0.column), (2, 4));
        assert_eq!(second.find("list[0].x").0.line, 5);
        assert_eq!(second.find("list[0].y").0.line, 7, "the first line of the block");
        assert_eq!((second.find("list[1].x").0.line, second.find("list[1].x").0.column), (9, 7));
        let (near, exact) = second.find("list[1].nosuch.thing");
        assert!(!exact && near.line == 9);
        assert_eq!(second.value(), serde_json::json!({"list": [{"x": "hello", "y": "one\ntwo\n"}, {"x": "3"}]}));
    }

    #[test]
    fn what_is_no_yaml_is_refused_with_its_place() {
        let (line, _, said) = documents("a: 1\nb: [\n").unwrap_err();
        assert!((2..=3).contains(&line), "{line}: {said}");
        assert!(documents("# nothing\n").unwrap().is_empty());
    }
}
