//! What all pods of a control plane have: no rights on their node, and a place.

use fleetwright_api::ControlPlanePlacement;
use serde_json::{Value, json};

/// Nobody in particular: no image of ours has a user of that number, and none needs one.
const USER: u32 = 65_532;

/// The `securityContext` of a pod.
pub(super) fn confined() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// The `securityContext` of each of its containers.
pub(super) fn bound() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

/// Says in the `spec` of a pod where it may run.
pub(super) fn place(spec: &mut Value, placement: &ControlPlanePlacement) {
    if !placement.node_selector.is_empty() {
        spec["nodeSelector"] = json!(placement.node_selector);
    }
    if !placement.tolerations.is_empty() {
        spec["tolerations"] = json!(placement.tolerations);
    }
    if let Some(class) = &placement.priority_class_name {
        spec["priorityClassName"] = json!(class);
    }
}
