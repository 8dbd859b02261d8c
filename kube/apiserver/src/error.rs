//! API errors, as the `Status` objects that Kubernetes clients read.

use fleetwright_merge::{MergeError, PatchError};
use fleetwright_schema::FieldError;
use serde_json::{Value, json};

/// A failed request. Becomes a `Status` with the code, reason and causes that kube-apiserver gives for the same mistake.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason (`NotFound`, `Conflict`…); empty for none.
    pub reason: &'static str,
    /// The text for a person.
    pub message: String,
    /// The object or resource of the error.
    pub details: Option<Box<Details>>,
}

/// The `details` of a `Status`.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The object's name.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The kind or, for most errors, the plural resource.
    pub kind: String,
    /// The object's uid.
    pub uid: String,
    /// Single causes.
    pub causes: Vec<Cause>,
    /// The time in seconds after which to retry.
    pub retry_after: Option<u32>,
}

/// One cause inside a `Status`.
#[derive(Clone, Debug, Default)]
pub struct Cause {
    /// The machine-readable reason.
    pub reason: String,
    /// The text for a person.
    pub message: String,
    /// The field, where there is one.
    pub field: String,
}

/// A resource and its group, as error texts name it: `deployments.apps`, `pods`.
fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl ApiError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details =
            Some(Box::new(Details { name: name.into(), group: group.into(), kind: kind.into(), ..Details::default() }));
        self
    }

    /// The same error with these causes.
    pub fn with_causes(mut self, causes: Vec<Cause>) -> Self {
        self.details.get_or_insert_default().causes = causes;
        self
    }

    /// The same error with a retry time.
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after = Some(seconds);
        self
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: authentication is missing or failed.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: the request is not allowed.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let what = qualified(group, resource);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(group, resource, name)
    }

    /// 404: no such object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", qualified(group, resource)))
            .about(group, resource, name)
    }

    /// 404: no such resource, while the path is well formed.
    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with_causes(Vec::new())
    }

    /// 405: the path does not have this verb.
    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_causes(Vec::new())
    }

    /// 406: none of the formats that the client accepts can be made.
    pub fn not_acceptable() -> Self {
        Self::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml",
        )
    }

    /// 409: an object of this name exists.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(group, resource)))
            .about(group, resource, name)
    }

    /// 409: the object changed, or its state does not permit the request.
    pub fn conflict(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let what = qualified(group, resource);
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {what} {name:?}: {why}"))
            .about(group, resource, name)
    }

    /// 409 for a write to an older version of the object.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 410: the requested version is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413: the body is larger than the limit.
    pub fn too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 415: the format of the body is not supported.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 422: fields have wrong values.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let what = qualified(group, kind);
        let mut texts: Vec<String> = Vec::with_capacity(errors.len());
        for error in errors {
            let text = error.to_string();
            // The real server's aggregate drops repeated messages and keeps all causes.
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let text = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = if errors.is_empty() {
            format!("{what} {name:?} is invalid")
        } else {
            format!("{what} {name:?} is invalid: {text}")
        };
        let causes = errors
            .iter()
            .map(|e| Cause { reason: e.ty.reason().into(), message: e.body(), field: e.field.clone() })
            .collect();
        Self::new(422, "Invalid", message).about(group, kind, name).with_causes(causes)
    }

    /// 429: too many requests.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(429, "TooManyRequests", message).with_retry_after(retry_after)
    }

    /// 500: an error of the server.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
            .with_causes(vec![Cause { message: message.to_string(), ..Cause::default() }])
    }

    /// 504: the server cannot answer in time.
    pub fn timeout(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(504, "Timeout", message).with_retry_after(retry_after)
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.value();
        }
        status
    }
}

impl Details {
    fn value(&self) -> Value {
        let mut out = serde_json::Map::new();
        for (key, text) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !text.is_empty() {
                out.insert(key.into(), text.as_str().into());
            }
        }
        if !self.causes.is_empty() {
            out.insert("causes".into(), self.causes.iter().map(Cause::value).collect());
        }
        if let Some(seconds) = self.retry_after {
            out.insert("retryAfterSeconds".into(), seconds.into());
        }
        out.into()
    }
}

impl Cause {
    fn value(&self) -> Value {
        let mut out = serde_json::Map::new();
        for (key, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                out.insert(key.into(), text.as_str().into());
            }
        }
        out.into()
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// The API error of a merge error.
pub(crate) fn merge_error(error: MergeError) -> ApiError {
    let message = error.to_string();
    match error {
        MergeError::BadRequest(_) => ApiError::bad_request(message),
        MergeError::Internal(_) => ApiError::new(500, "", message),
        MergeError::Conflicts(conflicts) => {
            let cause = |conflict: fleetwright_merge::Conflict| Cause {
                reason: "FieldManagerConflict".into(),
                message: conflict.message,
                field: conflict.field,
            };
            ApiError::new(409, "Conflict", message).with_causes(conflicts.into_iter().map(cause).collect())
        }
    }
}

/// The API error of a patch error.
pub(crate) fn patch_error(error: PatchError) -> ApiError {
    let message = error.to_string();
    match error {
        PatchError::BadRequest(_) => ApiError::bad_request(message),
        PatchError::TooLarge(_) => {
            ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
        }
        // The real server does not report the mismatch.
        PatchError::Unprocessable(_) => {
            ApiError::new(422, "Invalid", "the server rejected our request due to an error in our request")
                .with_causes(Vec::new())
        }
        PatchError::Internal(_) => ApiError::new(500, "", message),
    }
}
