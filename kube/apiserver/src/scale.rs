//! The scale subresource: the replicas of workloads and of custom resources that declare their path.

use std::sync::Arc;

use fleetwright_builtins::schemas;
use fleetwright_schema::{FieldError, json};
use http::Response;
use serde_json::{Value, json};

use crate::body::Body;
use crate::call::Call;
use crate::error::{ApiError, merge_error, patch_error};
use crate::fields::{meta_text, metadata};
use crate::registry::{Origin, Resource};
use crate::store::Key;
use crate::write::decode;
use crate::write::patch::PatchKind;
use crate::write::update::{Changed, change};
use crate::write_request::{Outcome, WriteRequest};

const TYPE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Answers a request for the scale of an object.
pub(crate) fn answer(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let name = call.info.name.as_str();
    let view = call.view()?;
    if call.info.verb == "get" {
        let key = Key::new(call.namespace(resource), name);
        let object = call.server.store.get(&resource.storage, &key).ok_or_else(|| resource.not_found(name))?;
        return Ok(view.scale(200, &scale_of(resource, &resource.value(&object))?));
    }
    let outcome = if call.info.verb == "patch" { patch(call, resource, name)? } else { update(call, resource, name)? };
    let object = match &outcome {
        Outcome::Stored(object) => resource.value(object),
        Outcome::Transient(value) => value.clone(),
    };
    Ok(view.scale(200, &scale_of(resource, &object)?))
}

fn update(call: &Call, resource: &Arc<Resource>, name: &str) -> Result<Outcome, ApiError> {
    let options = call.options("UpdateOptions", false)?;
    let (scale, _) = decode::body(&call.headers, &call.body)?.map_err(ApiError::bad_request)?;
    let op = call.operation(resource, options);
    let given = meta_text(&scale, "name");
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    change(&op, name, |live| write(&op, name, live, &scale))
}

fn patch(call: &Call, resource: &Arc<Resource>, name: &str) -> Result<Outcome, ApiError> {
    let kind = PatchKind::of(decode::media_type(&call.headers), resource)?;
    let op = call.operation(resource, call.options("PatchOptions", kind == PatchKind::Apply)?);
    if kind == PatchKind::Apply {
        let (scale, _) = decode::yaml(&call.body).map_err(ApiError::bad_request)?;
        return change(&op, name, |live| apply(&op, name, live, &scale));
    }
    let (body, _) = json::parse(&call.body, decode::MAX_DEPTH)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    let schema = schemas::type_schema(TYPE).ok_or_else(|| ApiError::internal("the schema of Scale is missing"))?;
    change(&op, name, |live| {
        let current = scale_of(op.resource, live)?;
        let patched = match kind {
            PatchKind::Json => fleetwright_merge::json_patch(&current, &body),
            PatchKind::Merge => fleetwright_merge::merge_patch(&current, &body),
            _ => fleetwright_merge::strategic_merge_patch(&schema, &current, &body),
        };
        write(&op, name, live, &patched.map_err(patch_error)?)
    })
}

/// Writes the replicas of a scale into the object.
fn write(op: &WriteRequest<'_>, name: &str, live: &Value, scale: &Value) -> Result<Changed, ApiError> {
    let replicas = replicas(op.resource, name, scale)?;
    let mut object = live.clone();
    let map = metadata(&mut object);
    for field in ["resourceVersion", "uid"] {
        match meta_text(scale, field) {
            "" => {}
            text => {
                map.insert(field.into(), text.into());
            }
        }
    }
    set_replicas(op.resource, &mut object, replicas)?;
    Ok(Changed { object, owned: false })
}

/// An applied scale owns only the replicas of the object.
fn apply(op: &WriteRequest<'_>, name: &str, live: &Value, scale: &Value) -> Result<Changed, ApiError> {
    let replicas = replicas(op.resource, name, scale)?;
    let mut applied =
        json!({"apiVersion": &*op.resource.api_version, "kind": &*op.resource.kind, "metadata": {"name": name}});
    if !op.namespace.is_empty() {
        metadata(&mut applied).insert("namespace".into(), op.namespace.into());
    }
    set_replicas(op.resource, &mut applied, replicas)?;
    let object =
        fleetwright_merge::apply(&op.ownership(), Some(live), &applied, op.options.force).map_err(merge_error)?;
    Ok(Changed { object, owned: true })
}

fn replicas(resource: &Resource, name: &str, scale: &Value) -> Result<i64, ApiError> {
    let replicas = match &scale["spec"]["replicas"] {
        Value::Null => 0,
        value => value.as_i64().ok_or_else(|| {
            ApiError::bad_request(
                "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal into Go struct field ScaleSpec.spec.replicas of type int32",
            )
        })?,
    };
    // The schema of a custom resource validates its own field.
    if replicas < 0 && resource.custom().is_none() {
        let error = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", name, &[error]));
    }
    Ok(replicas)
}

fn set_replicas(resource: &Resource, object: &mut Value, replicas: i64) -> Result<(), ApiError> {
    match &resource.origin {
        Origin::Builtin(_) => object["spec"]["replicas"] = replicas.into(),
        Origin::Custom(custom) => custom.apply_scale(object, replicas).map_err(ApiError::internal)?,
    }
    Ok(())
}

/// The scale of an object.
fn scale_of(resource: &Resource, object: &Value) -> Result<Value, ApiError> {
    let (replicas, observed, selector) = match &resource.origin {
        Origin::Builtin(_) => {
            let count = |value: &Value| value.as_i64().unwrap_or(0);
            (
                count(&object["spec"]["replicas"]),
                count(&object["status"]["replicas"]),
                selector_text(&object["spec"]["selector"]),
            )
        }
        Origin::Custom(custom) => custom.scale(object).map_err(ApiError::internal)?,
    };
    let mut scale = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {}, "spec": {}, "status": {"replicas": observed},
    });
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            scale["metadata"][field] = value.clone();
        }
    }
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

/// A label selector in its text form, as `kubectl get -l` takes it.
fn selector_text(selector: &Value) -> String {
    let mut parts: Vec<String> = selector["matchLabels"]
        .as_object()
        .map(|labels| {
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect()
        })
        .unwrap_or_default();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        values.sort_unstable();
        parts.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort();
    parts.join(",")
}
