//! Response bodies: whole or streamed, and the plain answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;

use crate::error::ApiError;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body that is there as a whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body that arrives in pieces.
pub fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    use futures::StreamExt;
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
}

/// A body that holds something until it is sent or dropped.
pub fn holding(body: Body, held: impl Send + Unpin + 'static) -> Body {
    Holding { body, _held: held }.boxed_unsync()
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// An answer of this type.
pub fn respond(code: u16, content_type: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(value) = content_type.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    response
}

/// A JSON answer.
pub fn json(code: u16, value: &Value) -> Response<Body> {
    let mut text = value.to_string();
    text.push('\n');
    respond(code, "application/json", full(text))
}

/// A text answer, which browsers shall not take for anything else.
pub fn text(code: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = respond(code, "text/plain; charset=utf-8", full(text));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    response
}

/// A `Status` answer.
pub fn error(error: &ApiError) -> Response<Body> {
    let mut response = json(error.code, &error.status());
    if let Some(seconds) = error.details.as_ref().and_then(|details| details.retry_after) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
