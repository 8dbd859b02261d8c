//! One object and its schema, on which all the tables are evaluated. The expected values, messages and costs are
//! those of the reference implementation with Kubernetes' libraries.
#![allow(dead_code)]

use fleetwright_cel::{Activation, Decl, Env, PER_CALL_LIMIT, Program, Type};
use serde_json::{Value, json};

pub fn schema() -> Value {
    let short = json!({"type": "string", "maxLength": 5});
    json!({"type": "object", "properties": {
        "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "s": {"type": "string", "maxLength": 20}, "u": {"type": "string"}, "absent": {"type": "string"},
        "l": {"type": "array", "maxItems": 10, "items": short},
        "ul": {"type": "array", "items": {"type": "integer"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "maxItems": 5},
        "ml": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
            "type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
        "m": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string", "maxLength": 8}},
        "um": {"type": "object", "additionalProperties": {"type": "integer"}},
        "ios": {"x-kubernetes-int-or-string": true},
        "t": {"type": "string", "format": "date-time"}, "d": {"type": "string", "format": "duration"},
        "by": {"type": "string", "format": "byte"}, "date": {"type": "string", "format": "date"},
        "e": {"type": "string", "enum": ["aa", "bbbb"]},
        "o": {"type": "object", "properties": {
            "a-b": {"type": "string"}, "namespace": {"type": "integer"},
            "x": {"type": "object", "properties": {"y": {"type": "string", "maxLength": 3}}}}},
        "pu": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }})
}

pub fn object() -> Value {
    json!({
        "i": 5, "n": 2.5, "b": true, "s": "hello", "u": "wörld/path", "l": ["a", "b", "c"], "ul": [3, 1, 2, 2],
        "set": ["x", "y"], "ml": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "m": {"k1": "v1", "k2": "v2"},
        "um": {"one": 1, "two": 2}, "ios": "50%", "t": "2024-02-29T12:34:56.789Z", "d": "1h30m", "by": "aGVsbG8=",
        "date": "2024-03-01", "e": "aa", "o": {"a-b": "q", "namespace": 7, "x": {"y": "z"}}, "pu": {"zz": 1},
    })
}

pub fn compile(expression: &str) -> Result<Program, String> {
    let decl = Decl::from_schema(&schema(), false).unwrap();
    Program::compile(&Env::new().var("self", decl), expression, Type::Dyn).map_err(|e| e.to_string())
}

/// The value as text, or the error.
pub fn run(expression: &str) -> Result<String, String> {
    let object = object();
    let program = compile(expression)?;
    let (result, _) = program.eval_with_cost(&Activation::new().set("self", &object), PER_CALL_LIMIT);
    match result {
        Ok(Value::String(s)) => Ok(s),
        Ok(v) => Ok(v.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

pub fn gives(table: &[(&str, &str)]) {
    for (expression, want) in table {
        assert_eq!(run(expression).as_deref(), Ok(*want), "{expression}");
    }
}

pub fn fails(table: &[(&str, &str)]) {
    for (expression, want) in table {
        assert_eq!(run(expression).err().as_deref(), Some(*want), "{expression}");
    }
}
