//! Which requests may bind a Node to a Machine.

use fleetwright_api::GROUP;
use serde_json::{Value, json};

/// The verb on `machines` that is needed to bind an existing Node: no verb of Kubernetes, and so in no role that does not name it or `*`.
const ADOPT: &str = "adopt";

/// Fields of the status that decide which Node is bound: `certifiedAt` binds each Node that is created later, and `trusts` a Node that an earlier
/// version recorded.
const BINDING_FIELDS: [&str; 3] = ["nodeRef", "certifiedAt", "trusts"];

/// A ValidatingAdmissionPolicy and its binding that make the adoption of a Node a right of its own: only the account of the operator binds and
/// unbinds Nodes that join, and anybody else, and each new binding `Adopted`, needs the verb `adopt` on the Machine. Without the policy the right to
/// write `machines/status` is enough, which readiness has for its conditions.
pub fn admission_policy(namespace: &str, name: &str, fleet: &str) -> [Value; 2] {
    const VERSION: &str = "admissionregistration.k8s.io/v1";
    let policy = format!("{name}.{namespace}");
    let changed = BINDING_FIELDS.map(|field| format!("object.?status.?{field} != oldObject.?status.?{field}"));
    let node = |object: &str, field: &str| format!("{object}.?status.?nodeRef.?{field}");
    let adopted = |object: &str| format!("{}.orValue('') == 'Adopted'", node(object, "binding"));
    let account = format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'");
    // The operator keeps the adoption of a Node, and replaces it by `Joined` when the machine's own kubelet registers.
    let kept = format!("({} && {} == {})", adopted("oldObject"), node("oldObject", "uid"), node("object", "uid"));
    let may_adopt = format!(
        "authorizer.group('{GROUP}').resource('machines').namespace(request.namespace).name(request.name).check('{ADOPT}').allowed()"
    );
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["machines/status"], "operations": ["UPDATE"] },
        ] },
        "matchConditions": [
            { "name": "fleet", "expression": format!("request.namespace == '{fleet}'") },
            { "name": "binding", "expression": changed.join(" || ") },
        ],
        "validations": [{
            "expression": format!("({account} && (!({}) || {kept})) || {may_adopt}", adopted("object")),
            "message": format!("binding a Node to a Machine, or unbinding it, needs the verb {ADOPT} on machines.{GROUP}; {name} binds only Nodes that join"),
            "reason": "Forbidden",
        }],
    });
    [
        json!({ "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": policy }, "spec": spec }),
        json!({
            "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": policy },
            "spec": { "policyName": policy, "validationActions": ["Deny"] },
        }),
    ]
}
