//! Subresources: status, scale, binding, eviction, approval, finalize, token.

pub(crate) mod binding;
mod eviction;

use std::sync::Arc;

use http::Response;

use crate::body::Body;
use crate::call::Call;
use crate::error::ApiError;
use crate::objects::apply_patch;
use crate::registry::Resource;
use crate::store::Key;
use crate::write::update;
use crate::{reviews, scale};

/// Answers a request for a subresource of an object.
pub(crate) async fn answer(call: &Arc<Call>, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let info = &call.info;
    let known = resource.subresource(&info.subresource).is_some_and(|sub| sub.verbs.contains(&info.verb));
    if !known || info.name.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    match info.subresource.as_str() {
        "scale" => scale::answer(call, resource),
        "token" => reviews::token(call),
        "binding" => binding::bind(call, resource),
        "eviction" => eviction::evict(call, resource),
        // Every other subresource shows the object itself, and its strategy restricts a write to its part.
        _ => part(call, resource),
    }
}

fn part(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let name = &call.info.name;
    let view = call.view()?;
    match call.info.verb {
        "get" => {
            let key = Key::new(call.namespace(resource), name);
            let object = call.server.store.get(&resource.storage, &key).ok_or_else(|| resource.not_found(name))?;
            view.stored(resource, &object, 200)
        }
        "patch" => apply_patch(call, resource),
        _ => {
            let options = call.options("UpdateOptions", false)?;
            let object = call.object(resource, &options)?;
            let (outcome, _) = update::update(&call.operation(resource, options), name, object)?;
            view.outcome(resource, 200, &outcome)
        }
    }
}
