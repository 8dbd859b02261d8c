//! Removes the fields that differ between runs.

use jiff::Timestamp;
use serde_json::Value;

/// The object without uids, versions, times and managers, and with a fixed name for the run's namespace.
pub fn normalize(object: &Value, namespace: &str) -> Value {
    match object {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !IGNORED_FIELDS.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), normalize(value, namespace))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| normalize(item, namespace)).collect()),
        Value::String(text) if text.len() >= 20 && text.parse::<Timestamp>().is_ok() => "TIME".into(),
        Value::String(text) => text.replace(namespace, "NAMESPACE").into(),
        other => other.clone(),
    }
}

const IGNORED_FIELDS: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "observedGeneration"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_means_nothing_goes_and_the_rest_stays() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "rig-1", "uid": "x", "resourceVersion": "5", "managedFields": []},
            "data": {"at": "2026-11-16T12:00:00Z", "where": "in rig-1", "text": "2026"},
        });
        let expected = json!({
            "metadata": {"name": "a", "namespace": "NAMESPACE"},
            "data": {"at": "TIME", "where": "in NAMESPACE", "text": "2026"},
        });
        assert_eq!(normalize(&object, "rig-1"), expected);
    }
}
