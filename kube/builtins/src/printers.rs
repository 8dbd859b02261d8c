//! The output of `kubectl get`: the columns of each kind and the cells of each object, as the server's Table answers.
//!
//! The server always fills the wide columns too; their priority lets clients hide them.

mod cells;
mod cluster;
mod columns;
mod network;
mod pods;
mod storage;
mod workloads;

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::access::text;
use crate::table::Kind;

pub use cells::human_duration;

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// The OpenAPI type of its cells.
    pub ty: &'static str,
    /// The OpenAPI format of its cells; `name` marks the column that names the object.
    pub format: &'static str,
    /// The description of the column.
    pub description: Cow<'static, str>,
    /// 0 is always shown, 1 only when asked for (`-o wide`).
    pub priority: i32,
}

/// The columns of a kind.
pub fn columns(kind: &Kind) -> &'static [Column] {
    columns::of_type(kind.type_name)
}

/// The columns of a `Scale` subresource.
pub fn scale_columns() -> &'static [Column] {
    columns::of_type("io.k8s.api.autoscaling.v1.Scale")
}

/// The cells of a `Scale`.
pub fn scale_row(object: &Value, now: Timestamp) -> Vec<Value> {
    workloads::scale(object, now)
}

/// The cells of one object, one for each of its kind's columns.
pub fn row(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    match kind.kind {
        "ConfigMap" => cluster::config_map(object, now),
        "Secret" => cluster::secret(object, now),
        "Event" => cluster::event(object, now),
        "Namespace" => cluster::namespace(object, now),
        "Node" => cluster::node(object, now),
        "Lease" => cluster::lease(object, now),
        "PriorityClass" => cluster::priority_class(object, now),
        "RoleBinding" | "ClusterRoleBinding" => cluster::role_binding(object, now),
        "CertificateSigningRequest" => cluster::signing_request(object, now),
        "CustomResourceDefinition" => cluster::custom_resource_definition(object),
        "ResourceQuota" => cluster::resource_quota(object, now),
        "ServiceAccount" => vec![cells::name(object), cells::age(object, now)],
        "Pod" => pods::pod(object, now),
        "PodDisruptionBudget" => pods::disruption_budget(object, now),
        "Deployment" => workloads::deployment(object, now),
        "ReplicaSet" => workloads::replica_set(object, now),
        "StatefulSet" => workloads::stateful_set(object, now),
        "DaemonSet" => workloads::daemon_set(object, now),
        "ControllerRevision" => workloads::controller_revision(object, now),
        "Job" => workloads::job(object, now),
        "CronJob" => workloads::cron_job(object, now),
        "Service" => network::service(object, now),
        "Endpoints" => network::endpoints(object, now),
        "EndpointSlice" => network::endpoint_slice(object, now),
        "Ingress" => network::ingress(object, now),
        "IngressClass" => network::ingress_class(object, now),
        "NetworkPolicy" => network::network_policy(object, now),
        "PersistentVolume" => storage::volume(object, now),
        "PersistentVolumeClaim" => storage::claim(object, now),
        "StorageClass" => storage::class(object, now),
        "VolumeAttachment" => storage::attachment(object, now),
        "CSIDriver" => storage::driver(object, now),
        "CSINode" => storage::csi_node(object, now),
        _ => vec![cells::name(object), text(object, "metadata.creationTimestamp").into()],
    }
}

/// Which of a list's objects its rows mark as the default: of storage classes that claim to be it, the newest. Only lists
/// show it.
pub fn default_of(kind: &Kind, objects: &[Value]) -> Option<usize> {
    if kind.kind == "StorageClass" { storage::default_class(objects) } else { None }
}

/// The conditions of a row beside the cells: a finished pod is `Completed`.
pub fn row_conditions(kind: &Kind, object: &Value) -> Vec<Value> {
    let message = match text(object, "status.phase") {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return Vec::new(),
    };
    if kind.kind != "Pod" {
        return Vec::new();
    }
    let reason = text(object, "status.phase");
    vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
}

#[cfg(test)]
mod tests;
