//! What stands between an operator and its API server.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::Body;
use serde_json::json;

use crate::Call;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;
/// An answer's body, streamed.
pub type Reply = UnsyncBoxBody<Bytes, BoxError>;
/// What comes of a call: an answer, or none.
pub type CallResult = Result<Response<Reply>, BoxError>;

/// Sees every call of a client and decides what becomes of it.
pub trait Layer: Send + Sync + 'static {
    /// Answers the call, usually by [`forward`]ing it.
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, inner: Client) -> BoxFuture<'static, CallResult>;
}

/// Makes each call as another user, whom the client may impersonate.
struct Impersonation(HeaderValue);

impl Layer for Impersonation {
    fn call(self: Arc<Self>, _: Call, mut request: Request<Body>, inner: Client) -> BoxFuture<'static, CallResult> {
        request.headers_mut().insert("impersonate-user", self.0.clone());
        Box::pin(async move { forward(&inner, request).await })
    }
}

/// A client that acts as that user, with no rights but the user's. The client must be allowed to impersonate, as administrators are.
pub fn impersonating(inner: Client, user: &'static str) -> Client {
    wrap(inner, Arc::new(Impersonation(HeaderValue::from_static(user))))
}

/// A server that does not stream lists, as older ones do not.
struct WithoutStreamingLists;

impl Layer for WithoutStreamingLists {
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, inner: Client) -> BoxFuture<'static, CallResult> {
        Box::pin(async move {
            if call.verb == "watch" && request.uri().query().unwrap_or_default().contains("sendInitialEvents=true") {
                let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return Ok(refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message));
            }
            forward(&inner, request).await
        })
    }
}

/// A client of a server that does not stream lists: only there it needs the right to list what it watches.
pub fn without_streaming_lists(inner: Client) -> Client {
    wrap(inner, Arc::new(WithoutStreamingLists))
}

/// Puts a layer around a client.
///
/// Assumptions: called in the runtime in which the client will be used, as every making of a client.
pub fn wrap(inner: Client, layer: Arc<impl Layer>) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let service = tower::service_fn(move |request| layer.clone().call(Call::of(&request), request, inner.clone()));
    Client::new(service, namespace)
}

/// Sends the call on.
///
/// # Errors
/// No answer came.
pub async fn forward(inner: &Client, request: Request<Body>) -> CallResult {
    let response = inner.send(request).await?;
    Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
}

/// An answer of the whole text.
pub fn reply(status: StatusCode, content: &'static str, body: impl Into<Bytes>) -> Response<Reply> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    response
}

/// An API server's refusal.
pub fn refusal(status: StatusCode, reason: &str, message: &str) -> Response<Reply> {
    reply(status, "application/json", status_object(status.as_u16(), reason, message).to_string())
}

/// The Status object of a refusal.
pub(crate) fn status_object(code: u16, reason: &str, message: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

/// A broken connection.
pub(crate) fn broken(message: &str) -> BoxError {
    Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionReset, message.to_owned()))
}
