//! The deletion of a CustomResourceDefinition: its finalizer and its conditions.

use serde_json::{Value, json};

use crate::fields::metadata;

/// The finalizer of a definition while it has instances.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The changes by the first delete of a definition.
pub fn mark_for_deletion(crd: &mut Value, now: &str) {
    let map = metadata(crd);
    map.insert("deletionTimestamp".into(), now.into());
    let finalizers = map.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|known| known == FINALIZER)
    {
        list.push(FINALIZER.into());
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(crd, ["Terminating", "True", "InstanceDeletionPending", message], now);
}

/// Sets a condition, given as type, status, reason and message; the time moves only when the status does.
pub fn set_condition(crd: &mut Value, [ty, status, reason, message]: [&str; 4], now: &str) {
    if !crd["status"].is_object() {
        crd["status"] = json!({});
    }
    if !crd["status"]["conditions"].is_array() {
        crd["status"]["conditions"] = json!([]);
    }
    let Some(list) = crd["status"]["conditions"].as_array_mut() else { return };
    let mut fresh = json!({
        "type": ty, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    });
    match list.iter_mut().find(|known| known["type"] == ty) {
        None => list.push(fresh),
        Some(known) => {
            if known["status"] == status {
                fresh["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = fresh;
        }
    }
}

/// Whether a condition of this type is true.
pub fn has_condition(crd: &Value, ty: &str) -> bool {
    let conditions = crd["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == ty && c["status"] == "True")
}
