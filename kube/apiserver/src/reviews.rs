//! The resources that are not stored: reviews of access and identity, and tokens for service accounts.

use std::sync::Arc;

use http::Response;
use serde_json::Value;

use crate::auth;
use crate::body::Body;
use crate::call::Call;
use crate::error::ApiError;
use crate::registry::Resource;
use crate::write::decode;

/// Answers a create of a review.
pub(crate) fn answer(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    let options = call.options("CreateOptions", false)?;
    let body = call.object(resource, &options)?;
    let (policy, now) = (call.server.policy(), call.server.now());
    let answer = match &*resource.kind {
        "SubjectAccessReview" => auth::subject_access_review(&policy, body)?,
        "LocalSubjectAccessReview" => auth::local_subject_access_review(&policy, &call.info.namespace, body)?,
        "SelfSubjectAccessReview" => auth::self_subject_access_review(&policy, &call.user, body)?,
        "SelfSubjectRulesReview" => auth::self_subject_rules_review(&policy, &call.user, &body)?,
        "SelfSubjectReview" => auth::self_subject_review(&call.user, now),
        "TokenReview" => auth::token_review(&call.server.tokens, &*call.server, body, now)?,
        // `POST …/bindings` is the deprecated form of `POST …/pods/NAME/binding`.
        "Binding" => return crate::subresources::binding::bind_named(call, &body),
        other => return Err(ApiError::internal(format!("{other} has no answer"))),
    };
    Ok(view.plain(201, &answer))
}

/// Answers a request for a token of a service account.
pub(crate) fn token(call: &Call) -> Result<Response<Body>, ApiError> {
    let view = call.view()?;
    call.options("CreateOptions", false)?;
    let body: Value = decode::body(&call.headers, &call.body)?.map_err(ApiError::bad_request)?.0;
    let (namespace, name) = (&call.info.namespace, &call.info.name);
    if let Some(node) = auth::node_of(&call.user) {
        // A node gets tokens for its pods, not for itself.
        let bound = &body["spec"]["boundObjectRef"];
        let pod = bound["name"].as_str().filter(|_| bound["kind"] == "Pod").unwrap_or_default();
        let pod = auth::Graph::pod(&*call.server, namespace, pod);
        let why = match pod {
            None => "node requested token not bound to a pod",
            Some(pod) if pod["spec"]["nodeName"] != node => {
                "node requested token bound to a pod scheduled on a different node"
            }
            Some(pod) if pod["metadata"]["uid"] != bound["uid"] => {
                "node requested token with a pod binding without a uid"
            }
            Some(_) => "",
        };
        if !why.is_empty() {
            return Err(ApiError::forbidden("", "serviceaccounts", name, why));
        }
    }
    let answer = auth::token_request(&call.server.tokens, &*call.server, namespace, name, body, call.server.now())?;
    Ok(view.plain(201, &answer))
}
