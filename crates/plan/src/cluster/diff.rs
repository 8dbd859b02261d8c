//! Differences between a live and a wanted object, field by field, as a unified diff.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::object_drift::KEYS;

/// Files that may contain keys: the diff shows only that they differ.
const SECRET: [&str; 1] = ["encryption.yaml"];

/// The fields that change, as a unified diff; empty if none does. Fields of other owners are omitted, because they stay unchanged.
pub fn diff(title: &str, live: Option<&Value>, wanted: &Value) -> String {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    fields(String::new(), live, wanted, &mut before, &mut after);
    let mut out = String::new();
    for (path, new) in &after {
        let old = before.get(path).map(Vec::as_slice).unwrap_or_default();
        if old == new.as_slice() {
            continue;
        }
        if out.is_empty() {
            let now = if live.is_some() { title } else { "/dev/null" };
            let _ = writeln!(out, "--- {now}\n+++ {title}");
        }
        let _ = writeln!(out, "@@ {path} @@");
        for (sign, text) in changed(old, new) {
            let _ = writeln!(out, "{sign}{text}");
        }
    }
    out
}

type Fields = BTreeMap<String, Vec<String>>;

/// The lines of each field in `wanted`, with the live and the wanted values.
fn fields(path: String, live: Option<&Value>, wanted: &Value, before: &mut Fields, after: &mut Fields) {
    match wanted {
        Value::Object(wanted) if !wanted.is_empty() => {
            for (key, value) in wanted {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                fields(path, live.and_then(|live| live.get(key)), value, before, after);
            }
        }
        Value::Array(list) if key(list).is_some() => {
            let key = key(list).unwrap_or_default();
            for value in list {
                let all = live.and_then(Value::as_array).into_iter().flatten();
                let same = all.into_iter().find(|one| one.get(key) == value.get(key));
                let name = value[key].as_str().map_or_else(|| value[key].to_string(), str::to_owned);
                fields(format!("{path}[{name}]"), same, value, before, after);
            }
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_object) => {
            for (number, value) in list.iter().enumerate() {
                let same = live.and_then(|live| live.get(number));
                fields(format!("{path}[{number}]"), same, value, before, after);
            }
        }
        wanted => {
            let hidden = SECRET.iter().any(|name| path.ends_with(name));
            let lines = |value: &Value| if hidden { vec![hide(value)] } else { lines(value) };
            // The API server drops empty values.
            let empty = |value: &Value| {
                matches!(value, Value::Null) || *value == serde_json::json!({}) || *value == serde_json::json!([])
            };
            after.insert(path.clone(), if empty(wanted) { Vec::new() } else { lines(wanted) });
            if let Some(live) = live.filter(|live| !empty(live)) {
                before.insert(path, lines(live));
            }
        }
    }
}

fn key(list: &[Value]) -> Option<&'static str> {
    let first = list.first()?;
    KEYS.into_iter().find(|key| first.get(key).is_some())
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.lines().map(str::to_owned).collect(),
        Value::Array(list) => {
            list.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect()
        }
        other => vec![other.to_string()],
    }
}

fn hide(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    format!("({} lines, sha256 {})", text.lines().count(), super::digest(text, 6))
}

/// Removed and added lines, in order. Lists here are short, so that the simplest algorithm is good enough.
fn changed<'a>(old: &'a [String], new: &'a [String]) -> Vec<(char, &'a str)> {
    // Length of the longest common subsequence, from each position on.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for (i, one) in old.iter().enumerate().rev() {
        for (j, two) in new.iter().enumerate().rev() {
            common[i][j] = if one == two { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j >= new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            out.push(('-', old[i].as_str()));
            i += 1;
        } else {
            out.push(('+', new[j].as_str()));
            j += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_fields_that_change_are_reported_and_only_lines_of_them_that_do() {
        let live = json!({ "spec": { "replicas": 2, "paused": false, "containers": [
            { "name": "other", "image": "x" }, { "name": "a", "image": "i:1", "args": ["--a=1", "--b=2", "--c=3"], "tty": false },
        ] } });
        let wanted = json!({ "spec": { "replicas": 2, "containers": [
            { "name": "a", "image": "i:2", "args": ["--a=1", "--c=4", "--d=5"], "env": [] },
        ] } });
        let expected = "\
--- Deployment/a
+++ Deployment/a
@@ spec.containers[a].args @@
---b=2
---c=3
+--c=4
+--d=5
@@ spec.containers[a].image @@
-i:1
+i:2
";
        assert_eq!(diff("Deployment/a", Some(&live), &wanted), expected);
        assert_eq!(diff("Deployment/a", Some(&wanted), &wanted), "");
        assert!(diff("Deployment/a", None, &wanted).starts_with("--- /dev/null\n+++ Deployment/a\n"));
    }

    #[test]
    fn keys_in_a_file_are_not_shown() {
        let of = |secret: &str| json!({ "data": { "encryption.yaml": format!("secret: {secret}\n"), "audit.yaml": "a: 1\n" } });
        let text = diff("ConfigMap/c", Some(&of("one")), &of("two"));
        assert!(text.contains("@@ data.encryption.yaml @@\n-(1 lines, sha256 "), "{text}");
        assert!(!text.contains("one") && !text.contains("two"));
    }
}
