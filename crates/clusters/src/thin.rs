//! Objects of business clusters, decoded only as far as they are used. Tenants and their nodes can write timestamps that do not parse, such as the last second of
//! the year 9999, and one such object must not hide all others of its kind.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Metadata of any object.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ThinMeta {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub generation: Option<i64>,
    pub creation_timestamp: Option<String>,
    /// Present while the object is terminating.
    pub deletion_timestamp: Option<IgnoredAny>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Any object, by its metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ThinObject {
    pub metadata: ThinMeta,
}

/// A Node, by its name and the version of its kubelet.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ThinNode {
    metadata: ThinMeta,
    status: Option<NodeStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    node_info: Option<NodeInfo>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeInfo {
    kubelet_version: Option<String>,
}

impl ThinNode {
    /// Its name, and the version that its kubelet reports; empty if it reports none.
    pub fn kubelet(self) -> (String, String) {
        let info = self.status.and_then(|status| status.node_info);
        let version = info.and_then(|info| info.kubelet_version);
        (self.metadata.name.unwrap_or_default(), version.unwrap_or_default())
    }
}

/// A Machine, by what a rotation of authorities waits for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ThinMachine {
    pub metadata: ThinMeta,
    // Of any type: a tenant can change the schema of the kind.
    spec: Value,
    status: Value,
}

impl ThinMachine {
    /// Whether it became a Node with other authorities than these. One that is only observed, or is terminating, does not count.
    pub fn lags(&self, trusts: &str) -> bool {
        let ours = !self.spec["ssh"].is_null();
        let joined = !self.status["nodeRef"].is_null();
        ours && joined && self.metadata.deletion_timestamp.is_none() && self.status["trusts"].as_str() != Some(trusts)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LATE: &str = "9999-12-31T23:59:59Z";

    fn metadata() -> Value {
        json!({
            "name": "a", "namespace": "n", "uid": "u", "creationTimestamp": LATE, "deletionTimestamp": null,
            "managedFields": [{ "manager": "m", "operation": "Update", "time": LATE }],
        })
    }

    #[test]
    fn the_kubelet_version_of_a_node_with_invalid_timestamps_is_read() {
        let read = |node: Value| serde_json::from_value::<ThinNode>(node).unwrap().kubelet();
        let info = json!({ "kubeletVersion": "v1.37.1", "machineID": "" });
        let conditions = json!([{ "type": "Ready", "lastHeartbeatTime": LATE, "lastTransitionTime": LATE }]);
        let taints = json!([{ "key": "k", "effect": "NoSchedule", "timeAdded": LATE }]);
        let node = json!({
            "metadata": metadata(), "spec": { "taints": taints },
            "status": { "nodeInfo": info, "conditions": conditions },
        });
        assert_eq!(read(node), ("a".to_owned(), "v1.37.1".to_owned()));
        assert_eq!(read(json!({ "metadata": { "name": "b" } })), ("b".to_owned(), String::new()));
        let empty = json!({ "metadata": { "name": "b" }, "status": { "nodeInfo": null } });
        assert_eq!(read(empty), ("b".to_owned(), String::new()));
    }

    #[test]
    fn a_machine_with_fields_that_do_not_parse_lags_until_it_trusts_the_new_authorities() {
        let lags = |spec: Value, status: Value, terminating: Value| {
            let mut object = json!({ "metadata": metadata(), "spec": spec, "status": status });
            object["metadata"]["deletionTimestamp"] = terminating;
            serde_json::from_value::<ThinMachine>(object).unwrap().lags("new")
        };
        // A tenant may change the schema of the kind.
        let spec = json!({ "ssh": { "port": "many" }, "addresses": 7 });
        let joined = |trusts: Value| json!({ "nodeRef": { "uid": 1 }, "certifiedAt": LATE, "trusts": trusts });
        assert!(lags(spec.clone(), joined(json!("old")), Value::Null));
        assert!(lags(spec.clone(), joined(Value::Null), Value::Null));
        assert!(!lags(spec.clone(), joined(json!("new")), Value::Null));
        assert!(!lags(spec.clone(), joined(json!("old")), json!(LATE)), "it is terminating");
        assert!(!lags(spec.clone(), json!({ "trusts": "old" }), Value::Null), "it has not joined");
        assert!(!lags(spec, Value::Null, Value::Null));
        assert!(!lags(json!({}), joined(json!("old")), Value::Null), "it is only observed");
    }
}
