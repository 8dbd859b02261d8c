//! Volumes, claims and ingresses: protection while in use, default classes, growth.

use fleetwright_syntax::Quantity;
use serde_json::Value;

use super::denial::forbidden;
use crate::error::ApiError;
use crate::fields::{list_mut, meta_text};
use crate::write_request::WriteRequest;

/// The finalizer of a volume while a claim is bound to it.
pub(crate) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// The finalizer of a claim while a pod uses it.
pub(crate) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";

const DEFAULT_STORAGE: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const DEFAULT_INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

/// Protects a new volume or claim, and gives a claim without a class the default one.
pub(super) fn create(op: &WriteRequest<'_>, object: &mut Value) {
    let claim = &*op.resource.plural == "persistentvolumeclaims";
    let finalizer = if claim { CLAIM_PROTECTION } else { VOLUME_PROTECTION };
    let finalizers = list_mut(&mut object["metadata"], "finalizers");
    if !finalizers.iter().any(|known| known == finalizer) {
        finalizers.push(finalizer.into());
    }
    if !claim {
        return;
    }
    let annotated = !object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].is_null();
    if annotated || !object["spec"]["storageClassName"].is_null() {
        return;
    }
    if let Some(class) = default_class(op, "storage.k8s.io", "storageclasses", &DEFAULT_STORAGE) {
        object["spec"]["storageClassName"] = class.into();
    }
}

/// Gives an ingress without a class the default one.
pub(super) fn default_ingress_class(op: &WriteRequest<'_>, object: &mut Value) {
    let annotated = !object["metadata"]["annotations"]["kubernetes.io/ingress.class"].is_null();
    if annotated || !object["spec"]["ingressClassName"].is_null() {
        return;
    }
    if let Some(class) = default_class(op, "networking.k8s.io", "ingressclasses", &DEFAULT_INGRESS) {
        object["spec"]["ingressClassName"] = class.into();
    }
}

/// The newest class that is marked as default; for equal creation times, the first by name.
fn default_class(op: &WriteRequest<'_>, group: &str, plural: &str, annotations: &[&str]) -> Option<String> {
    let is_default = |class: &Value| annotations.iter().any(|name| class["metadata"]["annotations"][*name] == "true");
    let mut classes: Vec<Value> = op.server.lookup_all(group, plural, None);
    classes.retain(is_default);
    classes.sort_by(|a, b| {
        let age = meta_text(b, "creationTimestamp").cmp(meta_text(a, "creationTimestamp"));
        age.then_with(|| meta_text(a, "name").cmp(meta_text(b, "name")))
    });
    classes.first().map(|class| meta_text(class, "name").to_owned())
}

/// A claim may grow only when it is bound and its class allows it.
pub(super) fn resize(op: &WriteRequest<'_>, old: &Value, new: &Value) -> Result<(), ApiError> {
    let size =
        |claim: &Value| Quantity::parse(claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap_or("0")).ok();
    let (Some(before), Some(after)) = (size(old), size(new)) else { return Ok(()) };
    if after <= before {
        return Ok(());
    }
    if old["status"]["phase"] != "Bound" {
        return Err(forbidden(op, new, "Only bound persistent volume claims can be expanded"));
    }
    let class = old["spec"]["storageClassName"].as_str().unwrap_or_default();
    let found = op.server.lookup("storage.k8s.io", "storageclasses", "", class);
    if found.is_some_and(|class| class["allowVolumeExpansion"] == true) {
        return Ok(());
    }
    Err(forbidden(
        op,
        new,
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    ))
}
