//! Response bodies, whole or streamed, and plain answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::Stream;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;

use crate::error::ApiError;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body with known content.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body that is streamed in pieces.
pub fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    use futures::StreamExt;
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
}

/// A body that keeps a value alive until it is sent or dropped.
pub fn with_guard(body: Body, held: impl Send + 'static) -> Body {
    // This adapter passes the size hint on. Its closure is never called.
    let holds = move |never: Infallible| {
        let _held = &held;
        never
    };
    body.map_err(holds).boxed_unsync()
}

/// Gets notified about pieces of an answer that wait for the client.
pub(crate) trait SendProgress {
    /// A piece was handed out to be sent.
    fn handed_out(&self);
    /// A piece was sent, or dropped unsent.
    fn sent(&self);
}

/// The largest piece that is handed out at once, so that a client that reads nothing is detected by a piece that stays unsent.
const CHUNK_BYTES: usize = 128 * 1024;

/// A body that is sent piece by piece, and kept with its guards until the last piece was sent. HTTP/2 drops a body when it has its last piece, of
/// which the client may have taken one byte; and a piece keeps the whole answer in memory that it is a part of.
pub(crate) fn chunked<P: SendProgress>(body: Body, progress: P) -> ChunkedBody<P> {
    ChunkedBody { rest: Bytes::new(), answer: Arc::new(SharedBody { body: Mutex::new(body), progress }) }
}

/// The body of [`chunked`].
pub(crate) struct ChunkedBody<P> {
    /// The rest of a large piece.
    rest: Bytes,
    answer: Arc<SharedBody<P>>,
}

struct SharedBody<P> {
    body: Mutex<Body>,
    progress: P,
}

impl<P> SharedBody<P> {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of an answer, dropped after it was sent.
pub(crate) struct Chunk<P: SendProgress> {
    bytes: Bytes,
    answer: Arc<SharedBody<P>>,
}

impl<P: SendProgress> Chunk<P> {
    fn new(bytes: Bytes, answer: &Arc<SharedBody<P>>) -> Self {
        answer.progress.handed_out();
        Self { bytes, answer: answer.clone() }
    }
}

impl<P: SendProgress> Drop for Chunk<P> {
    fn drop(&mut self) {
        self.answer.progress.sent();
    }
}

impl<P: SendProgress> Buf for Chunk<P> {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl<P: SendProgress> http_body::Body for ChunkedBody<P> {
    type Data = Chunk<P>;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk<P>>, Infallible>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut *self.answer.body()).poll_frame(context);
            let Some(Ok(frame)) = ready!(polled) else { return Poll::Ready(None) };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(other) => {
                    let frame = other.map_data(|data| Chunk::new(data, &self.answer));
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
        }
        let size = self.rest.len().min(CHUNK_BYTES);
        let bytes = self.rest.split_to(size);
        Poll::Ready(Some(Ok(Frame::data(Chunk::new(bytes, &self.answer)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.answer.body().is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.answer.body().size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// An answer of this content type.
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

/// A text answer, with headers against content sniffing in browsers.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use http_body::Body as _;

    use super::*;

    impl SendProgress for Arc<AtomicUsize> {
        fn handed_out(&self) {
            self.fetch_add(1, Ordering::SeqCst);
        }

        fn sent(&self) {
            self.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_answer_keeps_what_it_holds_until_its_last_piece_was_sent() {
        let (place, unsent) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
        let held = || (Arc::strong_count(&place) > 1, unsent.load(Ordering::SeqCst));
        let mut answer = chunked(with_guard(full(vec![b'x'; 2 * CHUNK_BYTES + 1]), place.clone()), unsent.clone());
        assert_eq!(answer.size_hint().exact(), Some(2 * CHUNK_BYTES as u64 + 1));
        let mut context = Context::from_waker(Waker::noop());
        let mut pieces = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut answer).poll_frame(&mut context) {
            pieces.extend(frame.into_data());
        }
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.remaining()).collect();
        assert_eq!((sizes, answer.is_end_stream()), (vec![CHUNK_BYTES, CHUNK_BYTES, 1], true));
        // As HTTP/2 does.
        drop(answer);
        assert_eq!(held(), (true, 3));
        let last = pieces.pop();
        drop(pieces);
        assert_eq!(held(), (true, 1));
        drop(last);
        assert_eq!(held(), (false, 0));
    }
}
