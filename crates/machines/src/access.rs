//! Admission policies: which requests may bind a Node to a Machine, and which Secrets the operator may write in the namespace of bootstrap tokens.

use fleetwright_api::GROUP;
use serde_json::{Value, json};

use crate::join::{TOKEN_PREFIX, TOKEN_TYPE, TOKENS_NAMESPACE};

/// The verb on `machines` that is needed to bind an existing Node: no verb of Kubernetes, and so in no role that does not name it or `*`.
const ADOPT: &str = "adopt";

/// Fields of the status that decide which Node is bound: `certifiedAt` binds each Node that is created later, and `trusts` a Node that an earlier
/// version recorded.
const BINDING_FIELDS: [&str; 3] = ["nodeRef", "certifiedAt", "trusts"];

/// Two ValidatingAdmissionPolicies with that name and `{name}.tokens`, each followed by its binding. `user` is the user name of the operator's account,
/// and `fleet` the namespace of its Machines. The shipped extension `machine-access` has the same objects, for its own user.
///
/// - Adopting a Node is a right of its own: only the operator binds and unbinds Nodes that join, and anybody else, and each new binding `Adopted`,
///   needs the verb `adopt` on the Machine. Without the policy the right to write `machines/status` is enough, which readiness has for its
///   conditions.
/// - In the namespace of bootstrap tokens the operator creates and deletes these alone. RBAC can restrict it to neither their names nor their type.
pub fn admission_policies(name: &str, user: &str, fleet: &str) -> [Value; 4] {
    let [adoption, adoption_binding] = enforced(name, adoption(user, fleet));
    let [tokens, tokens_binding] = enforced(&format!("{name}.tokens"), tokens(user));
    [adoption, adoption_binding, tokens, tokens_binding]
}

/// A policy with that spec, and its binding.
fn enforced(name: &str, spec: Value) -> [Value; 2] {
    const VERSION: &str = "admissionregistration.k8s.io/v1";
    [
        json!({ "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name }, "spec": spec }),
        json!({
            "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        }),
    ]
}

/// The condition that the request is from that user.
fn is_from(user: &str) -> String {
    format!("request.userInfo.username == '{user}'")
}

fn adoption(user: &str, fleet: &str) -> Value {
    let changed = BINDING_FIELDS.map(|field| format!("object.?status.?{field} != oldObject.?status.?{field}"));
    let node = |object: &str, field: &str| format!("{object}.?status.?nodeRef.?{field}");
    let adopted = |object: &str| format!("{}.orValue('') == 'Adopted'", node(object, "binding"));
    let account = is_from(user);
    // The operator keeps the adoption of a Node, and replaces it by `Joined` when the machine's own kubelet registers.
    let kept = format!("({} && {} == {})", adopted("oldObject"), node("oldObject", "uid"), node("object", "uid"));
    let may_adopt = format!(
        "authorizer.group('{GROUP}').resource('machines').namespace(request.namespace).name(request.name).check('{ADOPT}').allowed()"
    );
    json!({
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
            "message": format!("binding a Node to a Machine, or unbinding it, needs the verb {ADOPT} on machines.{GROUP}; {user} binds only Nodes that join"),
            "reason": "Forbidden",
        }],
    })
}

fn tokens(user: &str) -> Value {
    let named = |object: &str| format!("{object}.metadata.name.startsWith('{TOKEN_PREFIX}')");
    let created = format!("({} && object.type == '{TOKEN_TYPE}')", named("object"));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["*"], "resources": ["secrets"], "operations": ["CREATE", "UPDATE", "DELETE"] },
        ] },
        "matchConditions": [
            { "name": "account", "expression": is_from(user) },
            { "name": "tokens", "expression": format!("request.namespace == '{TOKENS_NAMESPACE}'") },
        ],
        "validations": [{
            // A deletion of a collection names no object in the request.
            "expression": format!("request.operation == 'CREATE' ? {created} : {}", named("oldObject")),
            "message": format!("{user} creates and deletes only Secrets {TOKEN_PREFIX}ID of the type {TOKEN_TYPE} in {TOKENS_NAMESPACE}"),
            "reason": "Forbidden",
        }],
    })
}
