//! The context of a call: the request with what its handlers read from it.

use std::sync::Arc;

use bytes::Bytes;
use fleetwright_rbac::User;
use http::{HeaderMap, Method, Response, header};
use serde_json::Value;

use crate::body::{self, Body};
use crate::error::ApiError;
use crate::present::ResponseFormat;
use crate::registry::Resource;
use crate::request::{Query, RequestInfo};
use crate::state::Inner;
use crate::write::decode;
use crate::write::options::WriteOptions;
use crate::write_request::{Outcome, Warnings, WriteRequest};

/// A request with everything that its handler needs.
pub(crate) struct Call {
    pub(crate) server: Arc<Inner>,
    pub(crate) user: User,
    pub(crate) info: Arc<RequestInfo>,
    pub(crate) query: Query,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) warnings: Warnings,
    /// Whether the request is answered as if it were done, without effect.
    pub(crate) pretend: bool,
}

impl Call {
    /// The namespace in which the resource's objects live; empty for cluster-scoped ones.
    pub(crate) fn namespace(&self, resource: &Resource) -> &str {
        if resource.namespaced { &self.info.namespace } else { "" }
    }

    /// The write request of this call.
    pub(crate) fn operation<'a>(&'a self, resource: &'a Arc<Resource>, options: WriteOptions) -> WriteRequest<'a> {
        WriteRequest {
            server: &self.server,
            resource,
            user: &self.user,
            namespace: self.namespace(resource),
            subresource: &self.info.subresource,
            options,
            warnings: &self.warnings,
        }
    }

    /// The options of a create, update or patch.
    pub(crate) fn options(&self, kind: &str, apply: bool) -> Result<WriteOptions, ApiError> {
        let mut options = WriteOptions::read(&self.query, &self.headers, kind, apply)?;
        options.dry_run |= self.pretend;
        Ok(options)
    }

    /// The body as an object of the resource; findings of strict decoding become warnings or an error, as the client requested.
    pub(crate) fn object(&self, resource: &Resource, options: &WriteOptions) -> Result<Value, ApiError> {
        let decoded = decode::object(resource, &self.headers, &self.body)?;
        decode::apply_field_validation(decoded.strict, options.field_validation, &self.warnings, |error| {
            ApiError::bad_request(format!(
                "{} cannot be handled as a {}: {error}",
                decode::in_version(resource),
                resource.kind
            ))
        })?;
        Ok(decoded.object)
    }

    /// The error answer, in the client's format where possible.
    pub(crate) fn refuse(&self, error: &ApiError) -> Response<Body> {
        let plain = body::error(error);
        let Ok(view) = self.view() else { return plain };
        let mut answer = view.plain(error.code, &error.status());
        if let Some(seconds) = plain.headers().get(header::RETRY_AFTER) {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.clone());
        }
        answer
    }

    /// The response format that the client accepts. Negotiated before any write, so that a write whose answer cannot be encoded
    /// is not made.
    pub(crate) fn view(&self) -> Result<ResponseFormat, ApiError> {
        ResponseFormat::negotiate(&self.headers, &self.query, self.server.now())
    }
}

impl ResponseFormat {
    /// The answer to a write.
    pub(crate) fn outcome(
        &self,
        resource: &Resource,
        code: u16,
        outcome: &Outcome,
    ) -> Result<Response<Body>, ApiError> {
        match outcome {
            Outcome::Stored(object) => self.stored(resource, object, code),
            Outcome::Transient(value) => self.object(resource, value, code),
        }
    }
}
