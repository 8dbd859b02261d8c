//! Answers the writes of clients: create, update, patch and delete.

use std::sync::Arc;

use http::Response;
use serde_json::json;

use crate::body::{self, Body};
use crate::call::Call;
use crate::controllers::accounts;
use crate::error::ApiError;
use crate::list::ListOptions;
use crate::registry::Resource;
use crate::write::delete::{DeleteOutcome, delete, delete_collection, returns_object, success};
use crate::write::options::{DeleteOptions, WriteOptions};
use crate::write::patch::{PatchKind, patch};
use crate::write::{create, decode, update};

/// Creates an object.
pub(crate) fn post(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    let options = call.options("CreateOptions", false)?;
    let object = call.object(resource, &options)?;
    ensure_account(call, resource);
    let outcome = create::create(&call.operation(resource, options), object, false)?;
    view.outcome(resource, 201, &outcome)
}

/// Replaces an object.
pub(crate) fn put(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    let options = call.options("UpdateOptions", false)?;
    let object = call.object(resource, &options)?;
    let (outcome, created) = update::update(&call.operation(resource, options), &call.info.name, object)?;
    view.outcome(resource, if created { 201 } else { 200 }, &outcome)
}

/// Patches an object, or a part of it.
pub(crate) fn apply_patch(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    let kind = PatchKind::of(decode::media_type(&call.headers), resource)?;
    let options = call.options("PatchOptions", kind == PatchKind::Apply)?;
    if kind == PatchKind::Apply && call.info.subresource.is_empty() {
        ensure_account(call, resource);
    }
    let (outcome, created) = patch(&call.operation(resource, options), &call.info.name, kind, &call.body)?;
    view.outcome(resource, if created { 201 } else { 200 }, &outcome)
}

/// Creates the default service account of a namespace before a pod in it. The controller is about to create the account; the client of the pod
/// should not have to wait and retry.
fn ensure_account(call: &Call, resource: &Resource) {
    let namespace = call.namespace(resource);
    if resource.is("", "pods") && call.server.admit_namespace(resource, namespace, "").is_ok() {
        accounts::ensure_account(&call.server, namespace);
    }
}

fn delete_options(call: &Call) -> Result<DeleteOptions, ApiError> {
    let body = if call.body.is_empty() {
        None
    } else {
        let (value, _) = decode::body(&call.headers, &call.body)?.map_err(ApiError::bad_request)?;
        Some(value)
    };
    let mut options = DeleteOptions::read(&call.query, body.as_ref())?;
    options.dry_run |= call.pretend;
    Ok(options)
}

/// Deletes an object.
pub(crate) fn remove(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    let options = delete_options(call)?;
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let op = call.operation(resource, write);
    match delete(&op, &call.info.name, &options)? {
        DeleteOutcome::Gone(last) if returns_object(&resource.origin) => view.object(resource, &last, 200),
        DeleteOutcome::Gone(last) => Ok(view.plain(200, &success(&op, &last))),
        DeleteOutcome::Pending(outcome) => {
            // The deprecated option for cascading deletion has a different status code.
            let code = if options.orphan_dependents == Some(false) { 202 } else { 200 };
            view.outcome(resource, code, &outcome)
        }
    }
}

/// Deletes all objects that the client selects.
pub(crate) fn remove_all(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let options = delete_options(call)?;
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let op = call.operation(resource, write);
    let matching = ListOptions::read(&call.query, resource, "", false)?.selectors;
    let namespace = Some(op.namespace).filter(|namespace| !namespace.is_empty());
    let page = call.server.store.page(&resource.storage, namespace, None, None, 0, |object| matching.matches(object));
    let objects = page.map_err(|gone| ApiError::expired(gone.to_string()))?.objects;
    let items = delete_collection(&op, objects, &options)?;
    let revision = call.server.store.revision().to_string();
    Ok(body::json(
        200,
        &json!({"apiVersion": &*resource.api_version, "kind": &*resource.list_kind, "metadata": {"resourceVersion": revision}, "items": items}),
    ))
}
