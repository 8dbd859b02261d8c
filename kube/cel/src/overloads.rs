//! Which functions there are: one line per overload, `name id receiver.(arguments) result` for methods and
//! `name id (arguments) result` for the rest. Capital letters are type parameters.

use crate::types::{CIDR, FORMAT, IP, QUANTITY, SEMVER, Type, URL};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// One signature of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    pub member: bool,
    /// For a method, the receiver is the first.
    pub args: Vec<Type>,
    pub result: Type,
}

const OVERLOADS: &str = include_str!("overloads.txt");

/// The functions by name.
pub(crate) fn table() -> &'static HashMap<&'static str, Vec<Overload>> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<Overload>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: HashMap<&'static str, Vec<Overload>> = HashMap::new();
        for line in OVERLOADS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some((name, overload)) = parse_line(line) {
                table.entry(name).or_default().push(overload);
            }
        }
        table
    })
}

fn parse_line(line: &'static str) -> Option<(&'static str, Overload)> {
    let mut words = line.splitn(3, ' ');
    let (name, id, signature) = (words.next()?, words.next()?, words.next()?);
    let (args, result) = signature.split_once(") ")?;
    let (receiver, args) = args.split_once('(')?;
    let receiver = receiver.strip_suffix('.');
    let mut types = Vec::new();
    let mut rest = receiver.unwrap_or("");
    if receiver.is_some() {
        types.push(parse_type(&mut rest)?);
    }
    let mut rest = args;
    while !rest.is_empty() {
        types.push(parse_type(&mut rest)?);
        rest = rest.trim_start_matches([',', ' ']);
    }
    let mut result = result;
    let result = parse_type(&mut result)?;
    Some((name, Overload { id, member: receiver.is_some(), args: types, result }))
}

fn parse_type(rest: &mut &'static str) -> Option<Type> {
    let end = rest.find([',', '<', '>', ' ']).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after;
    let inner = |rest: &mut &'static str| {
        *rest = rest.strip_prefix(['<', ','])?;
        parse_type(rest)
    };
    Some(match word {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "quantity" => Type::Abstract(QUANTITY),
        "url" => Type::Abstract(URL),
        "semver" => Type::Abstract(SEMVER),
        "format" => Type::Abstract(FORMAT),
        "ip" => Type::Abstract(IP),
        "cidr" => Type::Abstract(CIDR),
        "list" | "optional" | "type" | "map" => {
            let first = inner(rest)?;
            let made = match word {
                "list" => Type::list(first),
                "optional" => Type::optional(first),
                "type" => Type::Type(Arc::new(first)),
                _ => Type::map(first, inner(rest)?),
            };
            *rest = rest.strip_prefix('>')?;
            made
        }
        param => Type::Param(param.chars().next()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_signature() {
        for line in OVERLOADS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            assert!(parse_line(line).is_some(), "{line}");
        }
        let split = &table()["split"];
        assert_eq!(split.len(), 2);
        assert!(split[1].member);
        assert_eq!(split[1].result.to_string(), "list(string)");
        assert_eq!(table()["getQuery"][0].result.to_string(), "map(string, list(string))");
    }
}
