//! The operator's rights in the namespaces of control planes: a RoleBinding that is created in each of them as soon as the Cluster's status records
//! it.
//!
//! The account can therefore read Secrets and create pods only in namespaces of control planes.

use fleetwright_api::names;
use fleetwright_kit::{Key, Pass, WriteError};
use fleetwright_plan::cluster::Names;
use k8s_openapi::api::rbac::v1::RoleBinding;
use serde_json::{Value, json};

use crate::caches::Caches;

/// Name of the RoleBinding in the namespace of each control plane.
const BINDING: &str = "fleetwright-clusters";
/// Name of the bound ClusterRole, without the namespace of the installation.
const CONTROL_PLANE_ROLE: &str = "fleetwright-control-plane";

/// A ServiceAccount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub namespace: &'static str,
    pub name: &'static str,
}

/// Name of the ClusterRole of an installation in that namespace.
pub fn control_plane_role(namespace: &str) -> String {
    format!("{CONTROL_PLANE_ROLE}:{namespace}")
}

/// Whether the operator has its rights in a control plane's namespace, and its cache has the Secrets there. Before that, no decision is possible: a
/// Secret that may not be read yet looks like a lost one.
pub fn is_admitted(caches: &Caches, names: &Names) -> bool {
    is_bound(caches, names) && caches.secrets.covers(&names.namespace)
}

/// Whether the operator has its rights there.
pub fn is_bound(caches: &Caches, names: &Names) -> bool {
    let key = Key::new(&names.namespace, BINDING);
    caches.bindings.as_ref().is_none_or(|bindings| bindings.get(&key).is_some())
}

/// Creates the RoleBinding, unless it exists.
pub async fn bind(caches: &Caches, pass: &Pass, names: &Names, account: Option<Account>) -> Result<(), WriteError> {
    let (Some(account), Some(bindings)) = (account, &caches.bindings) else { return Ok(()) };
    if is_bound(caches, names) {
        return Ok(());
    }
    const GROUP: &str = "rbac.authorization.k8s.io";
    let what = || format!("RoleBinding {}/{BINDING}", names.namespace);
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding",
        "metadata": { "name": BINDING, "namespace": names.namespace, "labels": names.labels() },
        "roleRef": { "apiGroup": GROUP, "kind": "ClusterRole", "name": control_plane_role(account.namespace) },
        "subjects": [{ "kind": "ServiceAccount", "name": account.name, "namespace": account.namespace }],
    });
    let refused = |message: String| WriteError::Refused { what: what(), code: 409, message };
    let binding: RoleBinding = serde_json::from_value(binding).map_err(|error| refused(error.to_string()))?;
    match pass.writer().create_in(bindings, &binding).await? {
        true => Ok(()),
        // Right after the previous leader created it, the cache may not have it yet.
        false => Err(WriteError::Conflict {
            what: what(),
            message: "object exists but is not in the cache; if this does not change, delete it: it lacks the labels of this cluster".to_owned(),
        }),
    }
}

/// A ValidatingAdmissionPolicy and its binding that restrict the account of the operator, whatever roles it has: writes only in namespaces of control
/// planes and what it needs beside the Clusters and itself; new Secrets only of the type `Opaque`; RoleBindings only of its own role to itself; Namespaces
/// only with the labels of the fleet. Without the policy a stolen token of the account could bind itself in any namespace, and, by a Secret that
/// Kubernetes fills with a token, become the account of another operator in its own namespace.
pub fn admission_policy(namespace: &str, name: &str, fleet: &str) -> [Value; 2] {
    const VERSION: &str = "admissionregistration.k8s.io/v1";
    const RESTRICTED: &str = "pod-security.kubernetes.io/enforce";
    // Kubernetes writes a token of the account that its annotation names into a Secret of this type.
    const TOKEN: &str = "kubernetes.io/service-account-token";
    let (label, role, policy) =
        (names::CLUSTER_NAMESPACE, control_plane_role(namespace), format!("{name}.{namespace}"));
    let labelled = |object: &str, label: &str, value: &str| {
        let labels = format!("{object}.metadata.labels");
        format!("has({labels}) && '{label}' in {labels} && {labels}['{label}'] == '{value}'")
    };
    let is = |resource: &str| format!("request.resource.resource == '{resource}'");
    let within = [
        "request.resource.group == 'authorization.k8s.io'".to_owned(),
        is("namespaces"),
        format!("(has(request.namespace) && request.namespace == '{namespace}' && {})", is("secrets")),
        format!(
            "(has(request.namespace) && request.namespace == '{fleet}' && (request.resource.group in ['{}', 'coordination.k8s.io', 'events.k8s.io'] || request.resource.resource in ['secrets', 'events']))",
            fleetwright_api::GROUP
        ),
        format!("(namespaceObject != null && {})", labelled("namespaceObject", label, fleet)),
    ]
    .join(" || ");
    let subject = "object.subjects[0]";
    let binding = format!(
        "!({}) || (request.operation == 'CREATE' && object.roleRef.kind == 'ClusterRole' && object.roleRef.name == '{role}' && has(object.subjects) && size(object.subjects) == 1 && {subject}.kind == 'ServiceAccount' && {subject}.name == '{name}' && {subject}.namespace == '{namespace}')",
        is("rolebindings")
    );
    let created = format!("{} && {}", labelled("object", label, fleet), labelled("object", RESTRICTED, "restricted"));
    let namespaces = format!(
        "!({}) || (request.operation == 'CREATE' ? ({created}) : (request.operation == 'DELETE' && {}))",
        is("namespaces"),
        labelled("oldObject", label, fleet)
    );
    // A Secret that is created without a type is `Opaque`, and its type never changes. A person may have restored one of the operator's with another type.
    let opaque = format!(
        "!({}) || request.operation == 'DELETE' || object.type == 'Opaque' || (request.operation == 'UPDATE' && object.type != '{TOKEN}')",
        is("secrets")
    );
    let validation = |expression: String, message: String| json!({ "expression": expression, "message": message });
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["CREATE", "UPDATE", "DELETE"] },
        ] },
        "matchConditions": [{
            "name": "account",
            "expression": format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"),
        }],
        "validations": [
            validation(within, format!("{name} writes only in namespaces with the label {label}={fleet}, and what it needs in {fleet} and {namespace}")),
            validation(binding, format!("{name} creates RoleBindings only of the ClusterRole {role} to itself")),
            validation(opaque, format!("{name} creates only Secrets of the type Opaque, and changes none of the type {TOKEN}")),
            validation(namespaces, format!("{name} creates and deletes only namespaces with the label {label}={fleet} and {RESTRICTED}=restricted")),
        ],
    });
    [
        json!({ "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": policy }, "spec": spec }),
        json!({
            "apiVersion": VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": policy },
            "spec": { "policyName": policy, "validationActions": ["Deny"] },
        }),
    ]
}
