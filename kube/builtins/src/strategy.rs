//! Changes of a write before validation: the owners of parts of an object, generations, and dropped fields.

mod convert;
mod pod;
mod service;
mod warnings;

use serde_json::{Value, json};

use crate::access::{get, int, is_empty, items_mut, keep, list, object, remove, set, text};
use crate::meta;
use crate::table::Kind;

pub use convert::{event_from_core, event_to_core};
pub use pod::quality_of_service;
pub use service::{needs_cluster_ip, needs_health_check, needs_node_ports};
pub use warnings::warnings;

const CERTIFICATES: &str = "certificates.k8s.io";

/// The annotation with the template generation of a daemon set in apps/v1.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The kind's rule for generations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generation {
    /// It has none.
    None,
    /// One, for ever.
    Constant,
    /// From one on, by one for every change of the spec.
    Spec,
    /// As by spec, and by one for every change of the annotations.
    SpecAndAnnotations,
    /// From nothing on, by one for every change of the spec.
    SpecFromZero,
    /// From one on, by one for every change outside of the metadata, and of the labels.
    Everything,
}

fn generation_of(group: &str, kind: &str) -> Generation {
    match (group, kind) {
        ("apps", "Deployment") => Generation::SpecAndAnnotations,
        ("", "Pod" | "ReplicationController")
        | ("apps", "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job" | "CronJob")
        | ("policy", "PodDisruptionBudget")
        | ("networking.k8s.io", "Ingress" | "NetworkPolicy" | "IngressClass") => Generation::Spec,
        ("scheduling.k8s.io", "PriorityClass") => Generation::Constant,
        ("storage.k8s.io", "CSIDriver") => Generation::SpecFromZero,
        ("discovery.k8s.io", "EndpointSlice") => Generation::Everything,
        _ => Generation::None,
    }
}

/// Whether a kind has a status that only its status endpoint writes. A node's status is taken on creation, because a
/// kubelet registers itself with it.
fn has_status(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "Pod" | "Namespace" | "Node" | "Service" | "PersistentVolume" | "PersistentVolumeClaim")
            | ("", "ReplicationController" | "ResourceQuota")
            | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
            | ("batch", "Job" | "CronJob")
            | ("policy", "PodDisruptionBudget")
            | ("networking.k8s.io", "Ingress")
            | ("storage.k8s.io", "VolumeAttachment" | "CSINode")
            | (CERTIFICATES, "CertificateSigningRequest")
    )
}

/// Prepares a new object: the status is the server's, generations start, labels that the server owns appear.
///
/// Expects name and uid to be set, because a job's selector names its uid.
pub fn prepare_create(kind: &Kind, new: &mut Value) {
    create(kind.group, kind.kind, new);
}

fn create(group: &str, kind: &str, new: &mut Value) {
    if has_status(group, kind) && kind != "Node" {
        remove(new, "status");
    }
    let first = match generation_of(group, kind) {
        Generation::None | Generation::SpecFromZero => None,
        _ => Some(1),
    };
    if let Some(meta) = object(new, "metadata") {
        remove(meta, "generation");
        if let Some(first) = first {
            set(meta, "generation", first);
        }
    }
    match (group, kind) {
        ("", "Pod") => pod::create(new),
        ("", "Namespace") => namespace_create(new),
        ("", "Node") => {
            if let Some(spec) = object(new, "spec") {
                remove(spec, "configSource");
            }
        }
        ("", "PersistentVolume") => {
            set(new, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": now()}));
        }
        ("", "PersistentVolumeClaim") => {
            set(new, "status", json!({"phase": "Pending"}));
            claim_data_sources(new, &Value::Null);
        }
        ("", "ServiceAccount") => service_account(new),
        ("", "Service") => set(new, "status", json!({"loadBalancer": {}})),
        ("batch", "Job") => {
            job_create(new);
            job_labels(new);
        }
        ("coordination.k8s.io", "Lease") => lease_fields(new, &Value::Null),
        ("apps", "DaemonSet") => template_generation(new, generation_of_template(new).max(1)),
        (CERTIFICATES, "CertificateSigningRequest") => {
            if let Some(spec) = object(new, "spec") {
                for key in ["username", "uid", "groups", "extra"] {
                    remove(spec, key);
                }
            }
        }
        _ => {}
    }
    crate::defaults::shape(group, kind, new);
}

/// Sets the requestor of a new certificate signing request.
pub fn set_requestor(request: &mut Value, username: &str, uid: &str, groups: &[String], extra: &Value) {
    let Some(spec) = object(request, "spec") else { return };
    set(spec, "username", username);
    if !uid.is_empty() {
        set(spec, "uid", uid);
    }
    if !groups.is_empty() {
        set(spec, "groups", groups);
    }
    if !is_empty(Some(extra)) {
        set(spec, "extra", extra.clone());
    }
}

/// Prepares an update: what the endpoint does not own stays as it was, and the generation counts changes.
///
/// `subresource` is `None` for the object itself, otherwise `status`, `approval`, `finalize`, `ephemeralcontainers` or
/// `resize`.
pub fn prepare_update(kind: &Kind, subresource: Option<&str>, old: &Value, new: &mut Value) {
    update(kind.group, kind.kind, subresource, old, new);
}

fn update(group: &str, kind: &str, subresource: Option<&str>, old: &Value, new: &mut Value) {
    meta::before_update(new, old);
    match subresource {
        Some("status") => status_update(group, kind, old, new),
        Some("approval") => approval_update(old, new),
        Some("finalize") => keep(new, old, "status"),
        Some("ephemeralcontainers") => pod::ephemeral_update(old, new),
        Some("resize") => pod::resize_update(old, new),
        _ => main_update(group, kind, old, new),
    }
    if subresource != Some("status") && subresource != Some("approval") && subresource != Some("finalize") {
        count_generation(group, kind, old, new);
    }
    crate::defaults::shape(group, kind, new);
}

fn main_update(group: &str, kind: &str, old: &Value, new: &mut Value) {
    if has_status(group, kind) {
        keep(new, old, "status");
    }
    match (group, kind) {
        ("", "Namespace") => {
            if let (Some(old), Some(spec)) = (old.get("spec"), object(new, "spec")) {
                keep(spec, old, "finalizers");
            }
        }
        ("", "Service") => service::update(old, new),
        ("", "Secret") if text(new, "type").is_empty() => keep(new, old, "type"),
        ("", "ServiceAccount") => service_account(new),
        ("", "PersistentVolumeClaim") => claim_data_sources(new, old),
        ("batch", "Job") => job_labels(new),
        ("coordination.k8s.io", "Lease") => lease_fields(new, old),
        ("apps", "DaemonSet") => {
            let was = generation_of_template(old);
            let changed = get(old, "spec.template") != get(new, "spec.template");
            template_generation(new, was.wrapping_add(i64::from(changed)));
        }
        (CERTIFICATES, "CertificateSigningRequest") => keep(new, old, "spec"),
        _ => {}
    }
}

fn status_update(group: &str, kind: &str, old: &Value, new: &mut Value) {
    keep(new, old, "spec");
    match (group, kind) {
        ("", "Pod") => pod::status_update(old, new),
        ("", "PersistentVolume") => phase_transition(old, new),
        ("apps", "Deployment") => {
            if let (Some(old), Some(meta)) = (old.get("metadata"), object(new, "metadata")) {
                keep(meta, old, "labels");
            }
        }
        ("storage.k8s.io", "VolumeAttachment" | "CSINode") => reset_metadata(old, new),
        (CERTIFICATES, _) => {
            for ty in ["Approved", "Denied"] {
                preserve_conditions(old, new, ty);
            }
            condition_times(old, new);
        }
        _ => {}
    }
}

/// An approver writes conditions, and nothing else of a request.
fn approval_update(old: &Value, new: &mut Value) {
    condition_times(old, new);
    let conditions = get(new, "status.conditions").cloned();
    keep(new, old, "spec");
    keep(new, old, "status");
    if let Some(status) = object(new, "status") {
        match conditions {
            Some(conditions) => set(status, "conditions", conditions),
            None => drop(remove(status, "conditions")),
        }
    }
}

/// Puts back the metadata that a status endpoint does not write.
fn reset_metadata(old: &Value, new: &mut Value) {
    let Some(old) = old.get("metadata") else { return };
    let Some(meta) = object(new, "metadata") else { return };
    for key in ["deletionTimestamp", "generation", "labels", "annotations", "finalizers", "ownerReferences"] {
        keep(meta, old, key);
    }
}

fn count_generation(group: &str, kind: &str, old: &Value, new: &mut Value) {
    let spec_changed = old.get("spec") != new.get("spec");
    let bump = match generation_of(group, kind) {
        Generation::None | Generation::Constant => false,
        Generation::Spec | Generation::SpecFromZero => spec_changed,
        Generation::SpecAndAnnotations => {
            spec_changed || get(old, "metadata.annotations") != get(new, "metadata.annotations")
        }
        Generation::Everything => {
            let rest = |value: &Value| {
                let fields = value.as_object().into_iter().flatten();
                fields
                    .filter(|(key, _)| *key != "metadata")
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect::<Vec<_>>()
            };
            rest(old) != rest(new) || get(old, "metadata.labels") != get(new, "metadata.labels")
        }
    };
    if bump && let Some(meta) = object(new, "metadata") {
        set(meta, "generation", int(old, "metadata.generation").unwrap_or(0).wrapping_add(1));
    }
}

/// The present time as the API writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn namespace_create(namespace: &mut Value) {
    set(namespace, "status", json!({"phase": "Active"}));
    let Some(spec) = object(namespace, "spec") else { return };
    let mut finalizers = list(spec, "finalizers").to_vec();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push("kubernetes".into());
    }
    set(spec, "finalizers", finalizers);
}

/// A reference of a service account to its secrets is a name, nothing more.
fn service_account(account: &mut Value) {
    for secret in items_mut(account, "secrets") {
        let name = text(secret, "name").to_owned();
        *secret = json!({"name": name});
    }
}

/// The old and the new field for a claim's source say the same. In the old one alone, only claims and snapshots ever
/// counted: the rest is dropped, as it always was.
fn claim_data_sources(claim: &mut Value, old: &Value) {
    let Some(spec) = object(claim, "spec") else { return };
    let known = get(spec, "dataSource").is_some_and(|source| {
        matches!(
            (text(source, "apiGroup"), text(source, "kind")),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    });
    if get(old, "spec.dataSource").is_none() && get(spec, "dataSourceRef").is_none() && !known {
        remove(spec, "dataSource");
    }
    let (source, reference) = (get(spec, "dataSource").cloned(), get(spec, "dataSourceRef").cloned());
    match (source, reference) {
        (Some(source), None) => set(spec, "dataSourceRef", source),
        (None, Some(mut reference)) if text(&reference, "namespace").is_empty() => {
            remove(&mut reference, "namespace");
            set(spec, "dataSource", reference);
        }
        _ => {}
    }
}

/// A job without labels gets those of its template.
fn job_labels(job: &mut Value) {
    let labels = get(job, "spec.template.metadata.labels").filter(|labels| !is_empty(Some(labels))).cloned();
    if let (Some(labels), Some(meta)) = (labels, object(job, "metadata"))
        && is_empty(meta.get("labels"))
    {
        set(meta, "labels", labels);
    }
}

/// Coordinated leader election is off, so its fields are dropped unless the old object has them.
fn lease_fields(lease: &mut Value, old: &Value) {
    if get(old, "spec.strategy").is_some() || get(old, "spec.preferredHolder").is_some() {
        return;
    }
    if let Some(spec) = object(lease, "spec") {
        remove(spec, "strategy");
        remove(spec, "preferredHolder");
    }
}

fn generation_of_template(set_of_daemons: &Value) -> i64 {
    let annotations = get(set_of_daemons, "metadata.annotations");
    let written = annotations.and_then(|all| all.get(TEMPLATE_GENERATION)).and_then(Value::as_str);
    written.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Kept for clients of old API versions, which counted changes of the template by it.
fn template_generation(set_of_daemons: &mut Value, generation: i64) {
    // apps/v1 shows it only as an annotation.
    if let Some(annotations) = object(set_of_daemons, "metadata").and_then(|meta| object(meta, "annotations")) {
        set(annotations, TEMPLATE_GENERATION, generation.to_string());
    }
}

fn job_create(job: &mut Value) {
    if get(job, "spec.manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let (name, uid) = (text(job, "metadata.name").to_owned(), text(job, "metadata.uid").to_owned());
    let Some(spec) = object(job, "spec") else { return };
    if let Some(labels) = object(spec, "template")
        .and_then(|template| object(template, "metadata"))
        .and_then(|meta| object(meta, "labels"))
    {
        let ours = [
            ("job-name", &name),
            ("batch.kubernetes.io/job-name", &name),
            ("controller-uid", &uid),
            ("batch.kubernetes.io/controller-uid", &uid),
        ];
        for (key, value) in ours {
            if labels.get(key).is_none() {
                set(labels, key, value.clone());
            }
        }
    }
    if let Some(labels) = object(spec, "selector").and_then(|selector| object(selector, "matchLabels"))
        && labels.get("batch.kubernetes.io/controller-uid").is_none()
    {
        set(labels, "batch.kubernetes.io/controller-uid", uid);
    }
}

fn phase_transition(old: &Value, new: &mut Value) {
    let same = text(old, "status.phase") == text(new, "status.phase");
    let (before, after) =
        (get(old, "status.lastPhaseTransitionTime").cloned(), get(new, "status.lastPhaseTransitionTime").cloned());
    let Some(status) = object(new, "status") else { return };
    if same && after.is_none() {
        if let Some(before) = before {
            set(status, "lastPhaseTransitionTime", before);
        }
    } else if !same && (after.is_none() || after == before) {
        set(status, "lastPhaseTransitionTime", now());
    }
}

fn preserve_conditions(old: &Value, new: &mut Value, ty: &str) {
    let before: Vec<Value> =
        list(old, "status.conditions").iter().filter(|condition| text(condition, "type") == ty).cloned().collect();
    let count = list(new, "status.conditions").iter().filter(|condition| text(condition, "type") == ty).count();
    if before.len() != count {
        return;
    }
    let ours = items_mut(new, "status.conditions").filter(|condition| text(condition, "type") == ty);
    for (condition, before) in ours.zip(before) {
        *condition = before;
    }
}

fn condition_times(old: &Value, new: &mut Value) {
    let now = now();
    for condition in items_mut(new, "status.conditions") {
        crate::access::default(condition, "lastUpdateTime", now.clone());
        if get(condition, "lastTransitionTime").is_none() {
            let same = |before: &&Value| {
                text(before, "type") == text(condition, "type") && text(before, "status") == text(condition, "status")
            };
            let before = list(old, "status.conditions").iter().find(same);
            let since = before.and_then(|before| get(before, "lastTransitionTime")).cloned();
            set(condition, "lastTransitionTime", since.unwrap_or_else(|| now.clone().into()));
        }
    }
}

/// The grace period of a deletion in seconds: the requested one, or a pod's own, or none when no container runs.
pub fn graceful_deletion(kind: &Kind, object: &Value, requested: Option<i64>) -> i64 {
    if (kind.group, kind.kind) != ("", "Pod") {
        return 0;
    }
    pod::grace(object, requested)
}

/// The values of the fields that a field selector may name, beyond name and namespace.
pub fn selectable_fields(kind: &Kind, object: &Value) -> Vec<(&'static str, String)> {
    let texts = |paths: &[&'static str]| paths.iter().map(|path| (*path, text(object, path).to_owned())).collect();
    match (kind.group, kind.kind) {
        ("", "Pod") => pod::selectable_fields(object),
        ("", "Node") => vec![("spec.unschedulable", crate::access::flag(object, "spec.unschedulable").to_string())],
        ("", "Namespace") => texts(&["status.phase"]),
        ("", "Secret") => texts(&["type"]),
        ("", "Service") => texts(&["spec.clusterIP", "spec.type"]),
        ("", "ReplicationController") => {
            vec![("status.replicas", int(object, "status.replicas").unwrap_or(0).to_string())]
        }
        ("batch", "Job") => vec![("status.successful", int(object, "status.succeeded").unwrap_or(0).to_string())],
        (CERTIFICATES, "CertificateSigningRequest") => texts(&["spec.signerName"]),
        ("" | "events.k8s.io", "Event") => convert::selectable_fields(kind.group, object),
        _ => Vec::new(),
    }
}

/// The fields that an endpoint does not own, and so never appear in its managed fields.
pub fn reset_fields(kind: &Kind, subresource: Option<&str>) -> &'static [&'static [&'static str]] {
    let (group, name) = (kind.group, kind.kind);
    match (subresource, group, name) {
        (None, "apiextensions.k8s.io", "CustomResourceDefinition") => &[&["status"]],
        (Some("status"), "apiextensions.k8s.io", "CustomResourceDefinition") => &[&["spec"], &["metadata"]],
        (None, CERTIFICATES, "CertificateSigningRequest") => &[&["spec"], &["status"]],
        (Some("status"), CERTIFICATES, _) => &[&["spec"], &["status", "conditions"]],
        (Some("approval"), CERTIFICATES, _) => &[&["spec"], &["status", "certificate"]],
        (Some("finalize"), "", "Namespace") => &[&["status"]],
        (Some("status"), "", "Pod") => {
            &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]
        }
        (Some("status"), "apps", "Deployment") => &[&["spec"], &["metadata", "labels"]],
        (Some("status"), "storage.k8s.io", _) => &[&["metadata"], &["spec"]],
        (None, ..) if has_status(group, name) => &[&["status"]],
        (Some("status"), ..) if has_status(group, name) => &[&["spec"]],
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
