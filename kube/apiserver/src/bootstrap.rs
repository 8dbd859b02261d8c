//! The initial objects of a server: the system namespaces, RBAC's default policy, priority classes and the
//! `kubernetes` service.

use std::sync::Arc;

use fleetwright_rbac::User;
use serde_json::{Value, json};

use crate::state::Inner;
use crate::store::Key;
use crate::write::options::WriteOptions;
use crate::write::{create, decode};
use crate::write_request::{Warnings, WriteRequest};

/// Creates the missing objects. Existing ones are left alone, so that a durable store keeps its administrators' changes.
pub(crate) fn run(inner: &Arc<Inner>) {
    let namespaces = ["kube-system", "default", "kube-public", "kube-node-lease"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let classes = [("system-cluster-critical", 2_000_000_000_i64), ("system-node-critical", 2_000_001_000)].map(|(name, value)| {
        let description = match name {
            "system-cluster-critical" => "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            _ => "Used for system critical pods that must not be moved from their current node.",
        };
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            "description": description,
        })
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": inner.networks.api_address().to_string(), "type": "ClusterIP",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
        },
    });
    let objects = namespaces.into_iter().chain(fleetwright_rbac::bootstrap::objects()).chain(classes).chain([service]);
    let user = User::new("system:apiserver", ["system:masters", "system:authenticated"]);
    for object in objects {
        if let Err(error) = ensure(inner, &user, object) {
            tracing::error!(%error, "cannot create a bootstrap object");
        }
    }
}

fn ensure(inner: &Arc<Inner>, user: &User, mut object: Value) -> Result<(), String> {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let resource =
        inner.registry.by_kind(&api_version, &kind).ok_or_else(|| format!("{api_version} {kind} is not served"))?;
    if inner.store.get(&resource.storage, &Key::new(&namespace, &name)).is_some() {
        return Ok(());
    }
    decode::typed(&resource, &mut object)?;
    let warnings = Warnings::default();
    let op = WriteRequest {
        server: inner,
        resource: &resource,
        user,
        namespace: &namespace,
        subresource: "",
        options: WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() },
        warnings: &warnings,
    };
    match create::create(&op, object, false) {
        Err(error) if error.reason != "AlreadyExists" => Err(format!("{kind} {name}: {error}")),
        _ => Ok(()),
    }
}
