//! Volumes, claims, and the drivers behind them.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, annotation, is_deleting, name, none_if_empty, strings, text_or, time};
use crate::access::{flag, get, list, text};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn access_modes(object: &Value, path: &str) -> String {
    let modes = strings(object, path);
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    known.into_iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| short).collect::<Vec<_>>().join(",")
}

fn phase(object: &Value) -> Value {
    if is_deleting(object) { "Terminating".into() } else { text(object, "status.phase").into() }
}

fn size(object: &Value, path: &str) -> String {
    match get(object, path).and_then(|amounts| amounts.get("storage")) {
        Some(Value::String(size)) => size.clone(),
        Some(size) => size.to_string(),
        None => "0".into(),
    }
}

fn class_name(object: &Value) -> Value {
    annotation(object, BETA_CLASS).unwrap_or(text(object, "spec.storageClassName")).into()
}

pub(super) fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim =
        get(object, "spec.claimRef").map(|claim| format!("{}/{}", text(claim, "namespace"), text(claim, "name")));
    vec![
        name(object),
        size(object, "spec.capacity").into(),
        access_modes(object, "spec.accessModes").into(),
        text(object, "spec.persistentVolumeReclaimPolicy").into(),
        phase(object),
        claim.unwrap_or_default().into(),
        class_name(object),
        text_or(object, "spec.volumeAttributesClassName", "<unset>").into(),
        text(object, "status.reason").into(),
        age(object, now),
        text_or(object, "spec.volumeMode", "<unset>").into(),
    ]
}

pub(super) fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = text(object, "spec.volumeName");
    let (capacity, modes) = match volume {
        "" => (String::new(), String::new()),
        _ => (size(object, "status.capacity"), access_modes(object, "status.accessModes")),
    };
    vec![
        name(object),
        phase(object),
        volume.into(),
        capacity.into(),
        modes.into(),
        class_name(object),
        text_or(object, "spec.volumeAttributesClassName", "<unset>").into(),
        age(object, now),
        text_or(object, "spec.volumeMode", "<unset>").into(),
    ]
}

pub(super) fn class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        text(object, "provisioner").into(),
        text_or(object, "reclaimPolicy", "Delete").into(),
        text_or(object, "volumeBindingMode", "Immediate").into(),
        flag(object, "allowVolumeExpansion").into(),
        age(object, now),
    ]
}

/// Which of a list's storage classes is the default: of those that claim it, the newest, then the first by name.
pub(super) fn default_class(classes: &[Value]) -> Option<usize> {
    let claims = |class: &&Value| {
        let keys = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        keys.into_iter().any(|key| annotation(class, key) == Some("true"))
    };
    let mut candidates: Vec<(usize, &Value)> = classes.iter().enumerate().filter(|(_, class)| claims(class)).collect();
    candidates
        .sort_by_key(|(_, class)| (Reverse(time(class, "metadata.creationTimestamp")), text(class, "metadata.name")));
    candidates.first().map(|(index, _)| *index)
}

pub(super) fn attachment(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        text(object, "spec.attacher").into(),
        text(object, "spec.source.persistentVolumeName").into(),
        text(object, "spec.nodeName").into(),
        flag(object, "status.attached").into(),
        age(object, now),
    ]
}

pub(super) fn driver(object: &Value, now: Timestamp) -> Vec<Value> {
    let attach = get(object, "spec.attachRequired").and_then(Value::as_bool).unwrap_or(true);
    let tokens = get(object, "spec.tokenRequests").map(|_| {
        let audiences = list(object, "spec.tokenRequests").iter().map(|request| text(request, "audience"));
        audiences.collect::<Vec<_>>().join(",")
    });
    vec![
        name(object),
        attach.into(),
        flag(object, "spec.podInfoOnMount").into(),
        flag(object, "spec.storageCapacity").into(),
        tokens.unwrap_or("<unset>".into()).into(),
        flag(object, "spec.requiresRepublish").into(),
        none_if_empty(strings(object, "spec.volumeLifecycleModes").join(",")).into(),
        age(object, now),
    ]
}

pub(super) fn csi_node(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), list(object, "spec.drivers").len().into(), age(object, now)]
}
