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

/// Hears whether an answer waits for its client or for the server.
pub(crate) trait Progress {
    /// A piece was handed out to be sent, or the next one is not there yet.
    fn waits_for_client(&self, waits: bool);
}

/// The most that is handed out at once, so that a client that reads nothing is known by pieces that are never asked for.
const PIECE: usize = 128 * 1024;

/// A body that is sent piece by piece and says how it gets on.
pub(crate) fn sending(body: Body, progress: impl Progress + Send + Unpin + 'static) -> Body {
    Sending { body, rest: Bytes::new(), progress }.boxed_unsync()
}

struct Sending<P> {
    body: Body,
    /// What is left of a large piece.
    rest: Bytes,
    progress: P,
}

impl<P: Progress + Unpin> http_body::Body for Sending<P> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => {
                    self.progress.waits_for_client(false);
                    return other;
                }
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        self.progress.waits_for_client(true);
        let size = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
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
