//! The facts about messages: which field number is which JSON field, and of which type.
//!
//! `table.txt` is generated from the Go types by `make generate`. A line that is not indented names a
//! message; the lines below it are its fields: number, JSON name (`.` when the fields of the embedded message are the
//! parent's own in JSON), and the type.
//!
//! | written      | meaning                                                              |
//! |--------------|----------------------------------------------------------------------|
//! | `T`          | always in JSON                                                       |
//! | `?T`         | left out of JSON when zero, as Go's `omitempty` does (never structs) |
//! | `!T`         | left out of JSON when zero, structs too, as Go's `omitzero` does     |
//! | `*T`         | a pointer: on the wire only when set, and then also when zero        |
//! | `[]T`        | a list                                                               |
//! | `{}T`        | a map from strings                                                   |
//! | `a.b.C`      | a message                                                            |
//!
//! A message marked `oneof` is encoded as whichever of its fields is set.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int32,
    Int64,
    Float64,
    String,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// Raw JSON inside a message of its own.
    Json,
    /// A named list of strings, which on the wire is a message.
    Strings,
    Message(&'static str),
}

/// The cardinality of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    Map,
}

/// When JSON has the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    OmitEmpty,
    OmitZero,
    Pointer,
}

/// One field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub number: u32,
    /// The JSON name; `None` when the message's own fields are inlined into its parent.
    pub name: Option<&'static str>,
    pub presence: Presence,
    pub shape: Shape,
    pub ty: Type,
}

/// One message, its fields sorted by number.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub oneof: bool,
    pub fields: Vec<Field>,
}

impl Message {
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        let found = self.fields.binary_search_by_key(&number, |field| field.number).ok()?;
        self.fields.get(found)
    }
}

/// All messages by name.
pub(super) type Table = HashMap<&'static str, Message>;

static TABLE: LazyLock<Result<Table, String>> = LazyLock::new(|| parse(include_str!("table.txt")));

/// The messages of this build.
pub(super) fn table() -> Result<&'static Table, String> {
    TABLE.as_ref().map_err(Clone::clone)
}

fn parse(text: &'static str) -> Result<Table, String> {
    let mut table = Table::new();
    let mut current: Option<&'static str> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let wrong = || format!("the table of protobuf messages has a wrong line: {line:?}");
        if let Some(fact) = line.strip_prefix(' ') {
            let message = current.and_then(|name| table.get_mut(name)).ok_or_else(wrong)?;
            message.fields.push(field(fact).ok_or_else(wrong)?);
        } else {
            let (name, oneof) = line.strip_suffix(" oneof").map_or((line, false), |name| (name, true));
            table.insert(name, Message { oneof, fields: Vec::new() });
            current = Some(name);
        }
    }
    Ok(table)
}

fn field(fact: &'static str) -> Option<Field> {
    let mut words = fact.split(' ');
    let number = words.next()?.parse().ok()?;
    let name = Some(words.next()?).filter(|name| *name != ".");
    let written = words.next()?;
    let (presence, rest) = match written.split_at_checked(1)? {
        ("?", rest) => (Presence::OmitEmpty, rest),
        ("!", rest) => (Presence::OmitZero, rest),
        ("*", rest) => (Presence::Pointer, rest),
        _ => (Presence::Always, written),
    };
    let (shape, rest) = match rest.split_at_checked(2)? {
        ("[]", rest) => (Shape::List, rest),
        ("{}", rest) => (Shape::Map, rest),
        _ => (Shape::One, rest),
    };
    let ty = match rest {
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "float64" => Type::Float64,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "quantity" => Type::Quantity,
        "intorstring" => Type::IntOrString,
        "json" => Type::Json,
        "strings" => Type::Strings,
        message if message.contains('.') => Type::Message(message),
        _ => return None,
    };
    Some(Field { number, name, presence, shape, ty })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_a_field_names_is_in_the_table_and_fields_are_sorted() {
        let table = table().unwrap();
        for (name, message) in table {
            assert!(message.fields.is_sorted_by(|a, b| a.number < b.number), "{name}");
            for field in &message.fields {
                if let Type::Message(of) = field.ty {
                    assert!(table.contains_key(of), "{name} needs {of}");
                }
            }
        }
    }

    #[test]
    fn every_built_in_kind_has_its_message() {
        let table = table().unwrap();
        for kind in crate::KINDS {
            assert!(table.contains_key(kind.type_name), "{}", kind.type_name);
            for sub in kind.subresources {
                assert!(table.contains_key(sub.type_name), "{}", sub.type_name);
            }
        }
    }

    #[test]
    fn a_line_that_says_nothing_is_refused() {
        assert!(parse(" 1 name string").is_err());
        assert!(parse("a.B\n 1 name sausage").is_err());
        assert!(parse("a.B\n one name string").is_err());
    }
}
