//! What kube-apiserver's OpenAPI says about built-in types and `k8s-openapi` does not: list types, merge keys, atomic
//! maps, defaults, required fields, enumerations and the sentences about them.
//!
//! The facts are a generated file, `facts.txt`. [`generate`] makes it from the documents of a running server; a test
//! against the real one fails when they differ. The format is one line per type, then one indented line per field:
//!
//! ```text
//! io.k8s.api.core.v1.PodSpec required=containers
//!   containers list=map:name patch=merge:name
//!   dnsPolicy enum=["ClusterFirst"] more="\n\nPossible enum values: …"
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::schemas;

/// The facts of the Kubernetes version that this crate follows.
pub fn committed() -> &'static str {
    include_str!("facts.txt")
}

/// The facts file for the OpenAPI v3 documents of a server: sorted, and the same for the same server.
pub fn generate(documents: impl Iterator<Item = Value>) -> String {
    let mut published: BTreeMap<String, Value> = BTreeMap::new();
    let mut query: BTreeMap<String, String> = BTreeMap::new();
    for mut document in documents {
        for item in document.get("paths").and_then(Value::as_object).into_iter().flat_map(Map::values) {
            query.extend(query_facts(item));
        }
        if let Some(Value::Object(found)) = document.pointer_mut("/components/schemas").map(Value::take) {
            published.extend(found);
        }
    }
    let mut out = String::new();
    for (name, known) in schemas::base() {
        let Some(real) = published.get(&name) else { continue };
        let mut lines = String::new();
        for (field, real) in real.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let nothing = Value::Null;
            let known = known.get("properties").and_then(|p| p.get(field)).unwrap_or(&nothing);
            let facts = facts_of(known, real);
            if !facts.is_empty() {
                let _ = writeln!(lines, "  {field}{facts}");
            }
        }
        let own = facts_of(&known, real);
        if !own.is_empty() || !lines.is_empty() {
            let _ = writeln!(out, "{name}{own}\n{}", lines.trim_end_matches('\n'));
            if lines.is_empty() {
                out.pop();
            }
        }
    }
    if !query.is_empty() {
        let _ = writeln!(out, "{QUERY}");
    }
    for (name, facts) in query {
        let _ = writeln!(out, "  {name}{facts}");
    }
    out
}

/// The name under which the facts about query parameters stand, after all types.
const QUERY: &str = "query";

/// The query parameters of ordinary operations. The field manager of a patch is described apart from the others.
const QUERY_NAMES: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "dryRun",
    "fieldManager",
    "fieldSelector",
    "fieldValidation",
    "force",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "pretty",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];

/// The facts about the query parameters of one path.
fn query_facts(path: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (method, operation) in path.as_object().into_iter().flatten() {
        let parameters = if method == "parameters" { Some(operation) } else { operation.get("parameters") };
        for parameter in parameters.and_then(Value::as_array).into_iter().flatten() {
            let text = |pointer: &str| parameter.pointer(pointer).and_then(Value::as_str);
            let (Some(name), Some("query")) = (text("/name"), text("/in")) else { continue };
            let (Some(ty), Some(description)) = (text("/schema/type"), text("/description")) else { continue };
            if QUERY_NAMES.contains(&name) {
                let name = if method == "patch" && name == "fieldManager" { "patch.fieldManager" } else { name };
                found.push((name.to_owned(), format!(" type={ty} text={}", json!(description))));
            }
        }
    }
    found
}

/// The query parameters as OpenAPI describes them, by name.
pub(crate) fn query_parameters(facts: &str) -> BTreeMap<String, Value> {
    let lines = facts.lines().skip_while(|line| *line != QUERY).skip(1);
    lines
        .filter_map(|line| {
            let (key, facts) = line.trim_start().split_once(' ')?;
            let mut node = Map::new();
            apply_line(&mut node, facts);
            let parameter = json!({
                "name": key.rsplit('.').next(),
                "in": "query",
                "description": node.get("description"),
                "schema": {"type": node.get("type"), "uniqueItems": true},
            });
            Some((key.to_owned(), parameter))
        })
        .collect()
}

/// The facts of one node, each with a space before it.
fn facts_of(known: &Value, real: &Value) -> String {
    let mut out = String::new();
    let text = |key: &str| real.get(key).and_then(Value::as_str);
    let words = |key: &str| {
        let items = real.get(key).and_then(Value::as_array)?;
        Some(items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","))
    };
    let mut put = |key: &str, value: &str| {
        let _ = write!(out, " {key}={value}");
    };
    if let Some(required) = words("required") {
        put("required", &required);
    }
    match (text("x-kubernetes-list-type"), words("x-kubernetes-list-map-keys")) {
        (Some(list), Some(keys)) => put("list", &format!("{list}:{keys}")),
        (Some(list), None) => put("list", list),
        _ => {}
    }
    if let Some(map) = text("x-kubernetes-map-type") {
        put("map", map);
    }
    match (text("x-kubernetes-patch-strategy"), text("x-kubernetes-patch-merge-key")) {
        (Some(patch), Some(key)) => put("patch", &format!("{patch}:{key}")),
        (Some(patch), None) => put("patch", patch),
        _ => {}
    }
    for (fact, path) in [
        ("default", "/default"),
        ("enum", "/enum"),
        ("items-enum", "/items/enum"),
        ("values-enum", "/additionalProperties/enum"),
        ("unions", "/x-kubernetes-unions"),
    ] {
        if let Some(value) = real.pointer(path) {
            put(fact, &value.to_string());
        }
    }
    let known = known.get("description").and_then(Value::as_str).unwrap_or_default();
    let real = text("description").unwrap_or_default();
    match real.strip_prefix(known) {
        Some("") => {}
        Some(more) if !known.is_empty() => put("more", &json!(more).to_string()),
        _ => put("text", &json!(real).to_string()),
    }
    out
}

/// Adds facts to definitions.
pub(crate) fn apply(definitions: &mut BTreeMap<String, Value>, facts: &str) {
    let mut current = None;
    for line in facts.lines() {
        if let Some(line) = line.strip_prefix("  ") {
            let (field, facts) = line.split_once(' ').unwrap_or((line, ""));
            let node = current.as_mut().and_then(|definition: &mut &mut Value| {
                definition.get_mut("properties")?.get_mut(field)?.as_object_mut()
            });
            if let Some(node) = node {
                apply_line(node, facts);
            }
        } else {
            let (name, facts) = line.split_once(' ').unwrap_or((line, ""));
            current = definitions.get_mut(name);
            if let Some(node) = current.as_mut().and_then(|definition| definition.as_object_mut()) {
                apply_line(node, facts);
            }
        }
    }
}

fn apply_line(node: &mut Map<String, Value>, mut facts: &str) {
    while let Some((key, rest)) = facts.split_once('=') {
        let end = if is_json(key) { json_end(rest) } else { rest.find(' ').unwrap_or(rest.len()) };
        let (value, rest) = rest.split_at(end);
        apply_fact(node, key, value);
        facts = rest.trim_start();
    }
    // A reference with facts beside it is written as OpenAPI 3.0 allows it.
    if node.len() > 1
        && let Some(reference) = node.remove("$ref")
    {
        node.insert("allOf".into(), json!([{"$ref": reference}]));
    }
}

/// Whether a fact's value is JSON, which may hold spaces.
fn is_json(fact: &str) -> bool {
    matches!(fact, "default" | "enum" | "items-enum" | "values-enum" | "unions" | "text" | "more")
}

/// Where the JSON value that a text starts with ends.
fn json_end(text: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => values.byte_offset(),
        _ => text.len(),
    }
}

fn apply_fact(node: &mut Map<String, Value>, key: &str, value: &str) {
    let words = |words: &str| words.split(',').map(Value::from).collect::<Vec<_>>();
    let parsed = || serde_json::from_str::<Value>(value).unwrap_or_default();
    let (name, with) = value.split_once(':').map_or((value, None), |(name, with)| (name, Some(with)));
    let mut set = |key: &str, value: Value| {
        node.insert(key.to_owned(), value);
    };
    match key {
        "required" => set("required", words(value).into()),
        "list" => {
            set("x-kubernetes-list-type", name.into());
            if let Some(keys) = with {
                set("x-kubernetes-list-map-keys", words(keys).into());
            }
        }
        "map" => set("x-kubernetes-map-type", value.into()),
        "patch" => {
            set("x-kubernetes-patch-strategy", name.into());
            if let Some(key) = with {
                set("x-kubernetes-patch-merge-key", key.into());
            }
        }
        "type" => set("type", value.into()),
        "default" => set("default", parsed()),
        "enum" => set("enum", parsed()),
        "items-enum" | "values-enum" => {
            let inner = if key == "items-enum" { "items" } else { "additionalProperties" };
            if let Some(Value::Object(inner)) = node.get_mut(inner) {
                inner.insert("enum".into(), parsed());
            }
        }
        "unions" => set("x-kubernetes-unions", parsed()),
        "text" => set("description", parsed()),
        "more" => {
            let known = node.get("description").and_then(Value::as_str).unwrap_or_default();
            let text = format!("{known}{}", parsed().as_str().unwrap_or_default());
            node.insert("description".into(), text.into());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_what_the_facts_made_are_the_same_facts() {
        let document = json!({"components": {"schemas": schemas::definitions()}});
        let again = generate(std::iter::once(document));
        let types = committed().split("query\n").next().unwrap_or_default();
        for (again, committed) in again.lines().zip(types.lines()) {
            assert_eq!(again, committed);
        }
        assert_eq!(again.len(), types.len());
    }

    #[test]
    fn facts_beside_a_reference_do_not_replace_it() {
        let mut definitions = BTreeMap::from([("T".to_owned(), json!({"properties": {"a": {"$ref": "x"}}}))]);
        apply(&mut definitions, "T map=atomic\n  a default={} more=\"two words\"\n");
        let expected = json!({
            "properties": {"a": {"allOf": [{"$ref": "x"}], "default": {}, "description": "two words"}},
            "x-kubernetes-map-type": "atomic",
        });
        assert_eq!(definitions["T"], expected);
    }
}
