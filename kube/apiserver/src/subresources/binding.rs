//! `pods/binding`: binds a pod to a node.

use std::sync::Arc;

use fleetwright_schema::FieldError;
use http::Response;
use serde_json::{Value, json};

use crate::admission::pod_defaults::{merge, topology};
use crate::body::{self, Body};
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{list_mut, meta_text};
use crate::registry::Resource;
use crate::store::{Change, CommitError, Precondition};
use crate::write::decode;
use crate::write_request::WriteRequest;

/// The answer to a successful binding or eviction.
pub(super) fn created() -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    body::json(201, &status)
}

/// The body of a subresource with its own kind.
pub(super) fn subresource_body(call: &Call, kind: &str) -> Result<Value, ApiError> {
    let (object, _) = decode::body(&call.headers, &call.body)?.map_err(|error| {
        ApiError::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {error}"))
    })?;
    if !object.is_object() || object["kind"].as_str().is_some_and(|given| !given.is_empty() && given != kind) {
        return Err(ApiError::bad_request(format!("the object provided is unrecognized (must be of type {kind})")));
    }
    Ok(object)
}

/// `pods/binding`.
pub(super) fn bind(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let bindings = call.server.registry.by_kind("v1", "Binding").ok_or_else(ApiError::no_such_resource)?;
    let binding = call.object(&bindings, &call.options("CreateOptions", false)?)?;
    if meta_text(&binding, "name") != call.info.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    assign(call, resource, &call.info.name, &binding)
}

/// `POST …/bindings`, the old way of `pods/binding`.
pub(crate) fn bind_named(call: &Call, binding: &Value) -> Result<Response<Body>, ApiError> {
    let resource = call.server.registry.by_plural("", "pods").ok_or_else(ApiError::no_such_resource)?;
    assign(call, &resource, meta_text(binding, "name"), binding)
}

fn assign(call: &Call, resource: &Arc<Resource>, name: &str, binding: &Value) -> Result<Response<Body>, ApiError> {
    let options = call.options("CreateOptions", false)?;
    let op = WriteRequest { namespace: &call.info.namespace, ..call.operation(resource, options) };
    op.server.admit_namespace(resource, op.namespace, name)?;
    let errors = check(binding);
    if !errors.is_empty() {
        let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        let text = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        return Err(ApiError::new(500, "", text));
    }
    let (uid, version) = (meta_text(binding, "uid"), meta_text(binding, "resourceVersion"));
    let key = op.key(name);
    loop {
        let live = op.server.store.get(&resource.storage, &key).ok_or_else(|| resource.not_found(name))?;
        let mut pod = resource.value(&live);
        precondition(&pod, name, "UID", uid, "uid")?;
        precondition(&pod, name, "ResourceVersion", version, "resourceVersion")?;
        place(&op, &mut pod, binding).map_err(|why| ApiError::conflict("", "pods/binding", name, why))?;
        if op.options.dry_run {
            return Ok(created());
        }
        // As in the real server, managedFields are not changed, since this is not a client's write.
        let change = Change::Put(op.draft(pod));
        match op.server.store.commit(&resource.storage, &key, Precondition::Revision(live.revision), change) {
            Ok(_) => return Ok(created()),
            Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(op.lost_race(error, name)),
        }
    }
}

fn check(binding: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Node") {
        errors.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    } else if matches!(kind, "" | "Node") {
        let found = fleetwright_builtins::names::dns_subdomain(node);
        errors.extend(found.into_iter().map(|text| FieldError::invalid("target.name", node, text)));
    }
    errors
}

fn precondition(pod: &Value, name: &str, label: &str, wanted: &str, field: &str) -> Result<(), ApiError> {
    let found = meta_text(pod, field);
    if wanted.is_empty() || wanted == found {
        return Ok(());
    }
    let place = format!("/registry/pods/{}/{name}", meta_text(pod, "namespace"));
    Err(ApiError::conflict(
        "",
        "pods",
        name,
        format!(
            "StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
        ),
    ))
}

fn place(op: &WriteRequest<'_>, pod: &mut Value, binding: &Value) -> Result<(), String> {
    let name = meta_text(pod, "name").to_owned();
    if !meta_text(pod, "deletionTimestamp").is_empty() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !node.is_empty() {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    pod["spec"]["nodeName"] = node.into();
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    let given = |field: &str| binding["metadata"][field].as_object().cloned().unwrap_or_default();
    let annotations = given("annotations");
    if !annotations.is_empty() {
        merge(&mut pod["metadata"]["annotations"], annotations);
    }
    let mut labels = given("labels");
    if binding["target"]["kind"] == "Node" {
        labels.extend(topology(op, node));
    }
    if !labels.is_empty() {
        merge(&mut pod["metadata"]["labels"], labels);
    }
    let condition = json!({"type": "PodScheduled", "status": "True"});
    set_condition(pod, condition, &op.server.timestamp());
    Ok(())
}

/// Sets a condition of a pod; the time moves only when the status does.
pub(super) fn set_condition(pod: &mut Value, mut condition: Value, now: &str) {
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    let conditions = list_mut(&mut pod["status"], "conditions");
    let known = conditions.iter_mut().find(|known| known["type"] == condition["type"]);
    let unchanged = known.as_ref().filter(|known| known["status"] == condition["status"]);
    condition["lastTransitionTime"] = unchanged.map_or(Value::from(now), |known| known["lastTransitionTime"].clone());
    condition["lastProbeTime"] = Value::Null;
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
