//! Middleware between an operator and its API server.

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
/// The result of a call: an answer, or an error without one.
pub type CallResult = Result<Response<Reply>, BoxError>;

/// Intercepts every call of a client.
pub trait Layer: Send + Sync + 'static {
    /// Handles the call, usually by [`forward`]ing it.
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, next_client: Client)
    -> BoxFuture<'static, CallResult>;
}

/// Makes each call as another user; the client needs the right to impersonate it.
struct Impersonation(HeaderValue);

impl Layer for Impersonation {
    fn call(
        self: Arc<Self>,
        _: Call,
        mut request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        request.headers_mut().insert("impersonate-user", self.0.clone());
        Box::pin(async move { forward(&next_client, request).await })
    }
}

/// A client that impersonates this user and has only the user's rights. `next_client` needs the right to impersonate, as administrators have.
pub fn impersonating(next_client: Client, user: &'static str) -> Client {
    wrap(next_client, Arc::new(Impersonation(HeaderValue::from_static(user))))
}

/// Simulates a server without streaming lists, such as an older one.
struct WithoutStreamingLists;

impl Layer for WithoutStreamingLists {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        Box::pin(async move {
            if call.verb == "watch" && request.uri().query().unwrap_or_default().contains("sendInitialEvents=true") {
                let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return Ok(refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message));
            }
            forward(&next_client, request).await
        })
    }
}

/// A client of a server without streaming lists: only there does it need the right to list what it watches.
pub fn without_streaming_lists(next_client: Client) -> Client {
    wrap(next_client, Arc::new(WithoutStreamingLists))
}

/// Wraps a client in a layer.
///
/// Assumptions: called in the runtime in which the client will be used, as for any new client.
pub fn wrap(next_client: Client, layer: Arc<impl Layer>) -> Client {
    let namespace = next_client.default_namespace().to_owned();
    let service =
        tower::service_fn(move |request| layer.clone().call(Call::of(&request), request, next_client.clone()));
    Client::new(service, namespace)
}

/// Forwards the call.
///
/// # Errors
/// No answer arrived.
pub async fn forward(next_client: &Client, request: Request<Body>) -> CallResult {
    let response = next_client.send(request).await?;
    Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
}

/// An answer with this text as its body.
pub fn reply(status: StatusCode, content: &'static str, body: impl Into<Bytes>) -> Response<Reply> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    response
}

/// An error answer of an API server.
pub fn refusal(status: StatusCode, reason: &str, message: &str) -> Response<Reply> {
    reply(status, "application/json", status_object(status.as_u16(), reason, message).to_string())
}

/// The Status object of an error answer.
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
