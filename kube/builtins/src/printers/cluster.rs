//! The cluster's own objects: nodes, namespaces, events, bindings, requests and plain data.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, condition, human_duration, name, none_if_empty, since, strings, text_or, time};
use crate::access::{entries, flag, get, int, list, text};

pub(super) fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    let count = entries(object, "data").count() + entries(object, "binaryData").count();
    vec![name(object), count.into(), age(object, now)]
}

pub(super) fn resource_quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    let mut hard: Vec<_> = entries(object, "status.hard").collect();
    hard.sort_by_key(|(resource, _)| *resource);
    for (resource, hard) in hard {
        let used = object["status"]["used"][resource].as_str().unwrap_or("0");
        let cell = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        if resource.starts_with("limits.") { limits.push(cell) } else { requests.push(cell) }
    }
    vec![name(object), requests.join(", ").into(), limits.join(", ").into(), age(object, now)]
}

pub(super) fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "type").into(), entries(object, "data").count().into(), age(object, now)]
}

pub(super) fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "status.phase").into(), age(object, now)]
}

pub(super) fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let is_ready = |condition: &&Value| text(condition, "type") == "Ready";
    let mut status = match list(object, "status.conditions").iter().rev().find(is_ready) {
        Some(ready) if text(ready, "status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if flag(object, "spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let address = |ty: &str| {
        let found = list(object, "status.addresses").iter().find(|address| text(address, "type") == ty);
        found.map_or("<none>", |address| text(address, "address"))
    };
    let mut kernel = text_or(object, "status.nodeInfo.kernelVersion", "<unknown>").to_owned();
    match text(object, "status.nodeInfo.architecture") {
        "" => {}
        architecture => kernel.push_str(&format!(" ({architecture})")),
    }
    vec![
        name(object),
        status.into(),
        none_if_empty(roles(object)).into(),
        age(object, now),
        text(object, "status.nodeInfo.kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        text_or(object, "status.nodeInfo.osImage", "<unknown>").into(),
        kernel.into(),
        text_or(object, "status.nodeInfo.containerRuntimeVersion", "<unknown>").into(),
    ]
}

/// The roles that a node's labels give it.
fn roles(node: &Value) -> String {
    let role = |(key, value): (&String, &Value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None if key == "kubernetes.io/role" => value.as_str().map(str::to_owned),
        None => None,
    };
    let roles: BTreeSet<String> =
        entries(node, "metadata.labels").filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

/// Both kinds of events; the newer one has other names for the old fields.
pub(super) fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let either = |old: &str, new: &str| get(object, old).or_else(|| get(object, new));
    let words = |old: &str, new: &str| either(old, new).and_then(Value::as_str).unwrap_or_default().to_owned();
    let moment = |old: &str, new: &str| words(old, new).parse::<Timestamp>().ok();
    let first = moment("firstTimestamp", "deprecatedFirstTimestamp").or_else(|| time(object, "eventTime"));
    let mut last = moment("lastTimestamp", "deprecatedLastTimestamp").or(first);
    let mut count = either("count", "deprecatedCount").and_then(Value::as_i64).filter(|count| *count != 0).unwrap_or(1);
    if let Some(series) = get(object, "series") {
        last = time(series, "lastObservedTime");
        count = int(series, "count").unwrap_or(0);
    }
    let kind = words("involvedObject.kind", "regarding.kind").to_lowercase();
    let target = match words("involvedObject.name", "regarding.name") {
        nameless if nameless.is_empty() => kind,
        name => format!("{kind}/{name}"),
    };
    let or = |first: String, second: String| if first.is_empty() { second } else { first };
    let component =
        or(words("source.component", "deprecatedSource.component"), words("reportingComponent", "reportingController"));
    let instance = or(words("source.host", "deprecatedSource.host"), text(object, "reportingInstance").to_owned());
    let source = if instance.is_empty() { component } else { format!("{component}, {instance}") };
    vec![
        since(last, now).into(),
        text(object, "type").into(),
        text(object, "reason").into(),
        target.into(),
        words("involvedObject.fieldPath", "regarding.fieldPath").into(),
        source.into(),
        words("message", "note").trim().into(),
        since(first, now).into(),
        count.into(),
        name(object),
    ]
}

pub(super) fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "spec.holderIdentity").into(), age(object, now)]
}

pub(super) fn priority_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        int(object, "value").unwrap_or(0).into(),
        flag(object, "globalDefault").into(),
        age(object, now),
        text(object, "preemptionPolicy").into(),
    ]
}

pub(super) fn role_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "roleRef.kind"), text(object, "roleRef.name"));
    let subjects = |kind: &str| {
        let found = list(object, "subjects").iter().filter(|subject| text(subject, "kind") == kind);
        let names = found.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(subject, "namespace"), text(subject, "name")),
            _ => text(subject, "name").to_owned(),
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![name(object), role.into(), age(object, now), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}

pub(super) fn signing_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let has = |ty: &str| list(object, "status.conditions").iter().any(|condition| text(condition, "type") == ty);
    let mut status = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text(object, "status.certificate").is_empty() {
        status.push_str(",Issued");
    }
    let duration = int(object, "spec.expirationSeconds").map_or("<none>".into(), human_duration);
    vec![
        name(object),
        age(object, now),
        text_or(object, "spec.signerName", "<none>").into(),
        text(object, "spec.username").into(),
        duration.into(),
        status.into(),
    ]
}

pub(super) fn custom_resource_definition(object: &Value) -> Vec<Value> {
    let served = list(object, "spec.versions").iter().filter(|version| flag(version, "served"));
    let mut versions: Vec<String> = served
        .map(|version| format!("{}{}", text(version, "name"), if flag(version, "storage") { "(storage)" } else { "" }))
        .collect();
    versions.sort_unstable();
    vec![
        name(object),
        text(object, "spec.scope").into(),
        versions.join(",").into(),
        text(object, "metadata.creationTimestamp").into(),
        text(object, "spec.group").into(),
        text(object, "spec.names.kind").into(),
        strings(object, "spec.names.shortNames").join(",").into(),
        condition(object, "Established").into(),
    ]
}
