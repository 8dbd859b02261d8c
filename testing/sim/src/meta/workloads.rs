//! Controllers of Deployments, ReplicaSets and StatefulSets.

pub(super) mod deployment;
pub(super) mod replica_set;
pub(super) mod stateful_set;

use std::collections::BTreeMap;

use fleetwright_kit::{Key, Pass, WriteError};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde_json::{Map, Value};

use super::view::PodView;
use fleetwright_kit::Cache;

/// The owner reference for objects that a controller creates.
pub(super) fn owned_by<K: Resource<DynamicType = ()>>(key: &Key, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: key.name.to_string(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod of a template.
fn pod(template: &PodTemplateSpec, key: &Key, owner: OwnerReference, labels: &[(&str, &str)]) -> Pod {
    let given = template.metadata.clone().unwrap_or_default();
    let mut all: BTreeMap<String, String> = given.labels.unwrap_or_default();
    all.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let metadata = ObjectMeta {
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        labels: Some(all),
        annotations: given.annotations,
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: template.spec.clone(), status: None }
}

/// Deletes a pod, with its own grace period.
async fn delete(pass: &Pass, pods: &Cache<PodView>, key: &Key, pod: &PodView) -> Result<(), WriteError> {
    match pass.writer().delete(pods, key, &pod.uid, &pod.version).await {
        // The pod is deleted already.
        Err(WriteError::Gone(_)) => Ok(()),
        done => done,
    }
}

/// A number of a status; null for zero, as the API omits it.
fn count(number: i32) -> Value {
    if number == 0 { Value::Null } else { number.into() }
}

/// The current values of the status fields that a controller writes.
pub(super) fn part(status: &impl serde::Serialize, wanted: &Value) -> Value {
    let now = serde_json::to_value(status).unwrap_or_default();
    let fields = wanted.as_object().into_iter().flatten();
    Value::Object(fields.map(|(name, _)| (name.clone(), now[name].clone())).collect::<Map<_, _>>())
}
