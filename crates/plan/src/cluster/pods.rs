//! Common fields of all pods of a control plane: security contexts, and placement.

use fleetwright_api::ControlPlanePlacement;
use serde_json::{Value, json};

/// An unprivileged user id: no image has a user with it, and none needs one.
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

/// Sets the placement in the `spec` of a pod.
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
