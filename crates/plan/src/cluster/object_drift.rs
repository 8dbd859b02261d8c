//! Whether a live object is as the operator applied it.

use fleetwright_syntax::Quantity;
use serde_json::Value;

/// The merge keys of lists, as server-side apply uses them for the lists in control planes. Any other list is
/// compared as one value.
pub(super) const KEYS: [&str; 5] = ["name", "mountPath", "containerPort", "port", "topologyKey"];

/// Whether `object` contains all fields of `wanted`. Fields that others added are ignored: another apply would not remove them either.
pub fn contains(object: &Value, wanted: &Value) -> bool {
    difference(object, wanted).is_none()
}

/// Path of the first difference, for people.
pub fn difference(object: &Value, wanted: &Value) -> Option<String> {
    let mut path = String::new();
    differs(object, wanted, &mut path).then(|| path.trim_start_matches('.').to_owned())
}

/// Compares two values, and leaves the path of the first difference in `path`.
fn differs(object: &Value, wanted: &Value, path: &mut String) -> bool {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => wanted.iter().any(|(key, wanted)| {
            let before = path.len();
            path.push('.');
            path.push_str(key);
            let found = match object.get(key) {
                Some(value) => differs(value, wanted, path),
                // The API server drops empty values.
                None => !empty(wanted),
            };
            if !found {
                path.truncate(before);
            }
            found
        }),
        (Value::Array(object), Value::Array(wanted)) => {
            let Some(key) = wanted.first().and_then(|first| KEYS.into_iter().find(|key| first.get(key).is_some()))
            else {
                // Defaults that the API server adds to an entry are no difference.
                return object.len() != wanted.len()
                    || object.iter().zip(wanted).any(|(object, wanted)| differs(object, wanted, path));
            };
            wanted.iter().any(|wanted| {
                let before = path.len();
                path.push_str(&format!(
                    "[{}]",
                    wanted[key].as_str().map_or_else(|| wanted[key].to_string(), str::to_owned)
                ));
                let same = object.iter().find(|value| value.get(key) == wanted.get(key));
                let found = same.is_none_or(|same| differs(same, wanted, path));
                if !found {
                    path.truncate(before);
                }
                found
            })
        }
        // The API server may normalize a quantity.
        (Value::String(object), Value::String(wanted)) if is_quantity_field(path) => {
            let read = |text: &str| Quantity::parse(text.trim()).ok();
            object != wanted && (read(object).is_none() || read(object) != read(wanted))
        }
        (object, wanted) => object != wanted,
    }
}

/// Whether the path is that of a quantity, such as memory.
fn is_quantity_field(path: &str) -> bool {
    [".requests.", ".limits."].iter().any(|part| path.contains(part)) || path.ends_with(".sizeLimit")
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(_) | Value::Number(_) | Value::Bool(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_without_a_name_are_compared_in_their_order() {
        let wanted = json!({ "claims": [{ "metadata": { "name": "data" }, "spec": { "modes": ["once"] } }] });
        let stored = json!({ "claims": [
            { "metadata": { "name": "data" }, "spec": { "modes": ["once"], "volumeMode": "Filesystem" }, "status": { "phase": "Pending" } },
        ] });
        assert!(contains(&stored, &wanted), "{:?}", difference(&stored, &wanted));
        let more = json!({ "claims": [stored["claims"][0], { "metadata": { "name": "other" } }] });
        assert!(!contains(&more, &wanted) && !contains(&json!({ "claims": [] }), &wanted));
    }

    #[test]
    fn what_others_added_beside_it_is_theirs() {
        let object =
            json!({ "spec": { "replicas": 2, "paused": false }, "metadata": { "labels": { "a": "1", "b": "2" } } });
        assert!(contains(&object, &json!({ "spec": { "replicas": 2 }, "metadata": { "labels": { "a": "1" } } })));
        let list = json!({ "containers": [{ "name": "other" }, { "name": "a", "image": "x", "tty": false }] });
        assert!(contains(&list, &json!({ "containers": [{ "name": "a", "image": "x" }] })));
    }

    #[test]
    fn what_was_changed_or_taken_away_is_named() {
        let object = json!({ "containers": [{ "name": "a", "image": "x", "args": ["--b=1", "--c=2"] }] });
        let wanted = |args: Value| json!({ "containers": [{ "name": "a", "image": "x", "args": args }] });
        assert_eq!(difference(&object, &wanted(json!(["--b=1"]))).as_deref(), Some("containers[a].args"));
        assert_eq!(difference(&object, &wanted(json!(["--b=1", "--c=2"]))), None);
        assert_eq!(difference(&json!({ "data": {} }), &json!({ "data": { "a": "1" } })).as_deref(), Some("data.a"));
        assert_eq!(difference(&json!({ "containers": [] }), &wanted(json!([]))).as_deref(), Some("containers[a]"));
    }

    #[test]
    fn what_the_api_server_writes_otherwise_is_the_same() {
        let object = json!({ "resources": { "limits": { "memory": "1Gi", "cpu": "100m" } }, "sources": [{ "a": 1, "more": 2 }] });
        let wanted = |memory: &str| json!({ "resources": { "limits": { "memory": memory, "cpu": "0.1" } }, "sources": [{ "a": 1 }] });
        assert_eq!(difference(&object, &wanted("1024Mi")), None);
        assert_eq!(difference(&object, &wanted("1025Mi")).as_deref(), Some("resources.limits.memory"));
        assert!(!contains(&json!({ "data": { "requests": "1024Mi" } }), &json!({ "data": { "requests": "1Gi" } })));
        assert!(!contains(&json!({ "sources": [1, 2] }), &json!({ "sources": [1] })));
    }

    #[test]
    fn objects_without_a_name_are_distinguished_by_their_place() {
        let claims = |more: Value| json!({ "claims": [{ "metadata": { "name": "data" }, "spec": { "size": more } }] });
        let mut live = claims(json!("1Gi"));
        live["claims"][0]["kind"] = json!("PersistentVolumeClaim");
        assert!(contains(&live, &claims(json!("1Gi"))));
        assert!(difference(&live, &claims(json!("2Gi"))).is_some());
        assert!(!contains(&json!({ "claims": [] }), &claims(json!("1Gi"))));
    }

    #[test]
    fn what_is_empty_may_be_left_out() {
        assert!(contains(&json!({}), &json!({ "emptyDir": {}, "args": [], "none": null })));
        assert!(!contains(&json!({}), &json!({ "text": "" })));
    }
}
