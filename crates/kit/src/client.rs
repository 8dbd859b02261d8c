//! Clients of the API server, with the fence of the lease, timeouts and metrics.
//!
//! [`wrap`] adds to any [`kube::Client`]: the user agent, the fence of the lease, a timeout, and counting.
//!
//! # What is retried
//! Nothing, at this level. A kube client that is made from a [`kube::Config`] retries by default (`default_retry`): any request, also a write, that
//! is answered 429, 503 or 504, up to 15 times, in real time, for as long as the server requests. A request with the answer 503 or 504 may have been
//! carried out, the decision may be outdated by then, and the lease expired. Therefore writes are made unrepeatable here: kube repeats only a request
//! that it can clone. Reads that kube would repeat are harmless, but wait in real time; [`connect`] turns that off. The controller decides again, and
//! its queue waits as long as the API server requests ([`retry_after`]).
//!
//! # What the fence promises
//! A write is forwarded only while the fence holds, and the fence is checked again each time that the write could make progress (a connection was
//! made, a token was renewed, its body is sent). Data that was sent before can still arrive late: for that, the lease has a margin, and writes have
//! preconditions or are safe without one ([`crate::write`]).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::poll_fn;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use tracing::Instrument;

use crate::Clock;
use crate::metrics::Metrics;

mod call;
mod fence;

pub use call::Call;
pub use fence::Fence;

/// Timeout until the first byte of an answer, and for each next part of it. Longer than kube-apiserver needs for any request but a watch
/// that is allowed to be slow; an open watch has no limit.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// Maximum number of bytes that are read of an error's body.
const MAX_ERROR: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent.
    #[error("not sent: this process does not hold the lease, or the lease may have expired")]
    Fenced,
    /// The lease could have expired before the answer arrived.
    #[error("no response before the lease could expire; the API server may have processed the request")]
    Overtaken,
    /// No answer arrived in time.
    #[error("timed out after {0:?}; the API server may have processed the request")]
    TimedOut(Duration),
}

impl CallError {
    /// The kit's reason, if the error has one.
    pub fn of(error: &kube::Error) -> Option<Self> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(*found);
            }
            next = error.source();
        }
        None
    }
}

/// The wait that the API server requests, if any.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// A client that does not repeat requests by itself.
///
/// # Errors
/// Keys or certificates cannot be read.
pub fn connect(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    config.default_retry = false;
    kube::Client::try_from(config)
}

/// Number of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassCalls {
    /// Reads.
    pub reads: u32,
    /// Writes; also those that the fence refused.
    pub writes: u32,
}

#[derive(Default)]
struct Counts {
    reads: AtomicU32,
    writes: AtomicU32,
}

tokio::task_local! {
    static COUNTS: Option<Arc<Counts>>;
}

/// Runs the future and counts the calls that it makes through wrapped clients. Tasks that it spawns are not counted.
pub async fn counted<F: Future>(future: F) -> (F::Output, PassCalls) {
    let counts = Arc::new(Counts::default());
    let output = COUNTS.scope(Some(counts.clone()), future).await;
    let [reads, writes] = [&counts.reads, &counts.writes].map(|count| count.load(Ordering::Relaxed));
    (output, PassCalls { reads, writes })
}

/// Runs the future without counting its calls for the pass around it.
pub async fn uncounted<F: Future>(future: F) -> F::Output {
    COUNTS.scope(None, future).await
}

/// A client with the fence, timeout and counting that the module's page describes. `agent` is sent as the user agent.
pub fn wrap(client: kube::Client, fence: Fence, clock: Clock, metrics: Metrics, agent: &str) -> kube::Client {
    // The agent is a plain-text constant of the code; an invalid one is omitted instead of failing every call.
    around(client, fence, clock, Some(metrics), HeaderValue::from_str(agent).ok())
}

/// A client of another server than the operator's own API server: with the same fence and timeout, but its calls count neither for the
/// pass nor in the metrics of the API server.
pub fn fenced(client: kube::Client, fence: Fence, clock: Clock) -> kube::Client {
    around(client, fence, clock, None, None)
}

fn around(
    client: kube::Client,
    fence: Fence,
    clock: Clock,
    metrics: Option<Metrics>,
    agent: Option<HeaderValue>,
) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let valid_until = *client.valid_until();
    let (guard, time) = (fence.clone(), clock.clone());
    let echo = tower::service_fn(move |request: Request<Body>| {
        let guarded = FencedBody { body: request.into_body(), fence: guard.clone(), clock: time.clone() };
        async { Ok::<_, kube::Error>(Response::new(guarded)) }
    });
    let echo = kube::Client::new(echo, "");
    let edge = Arc::new(FencedClient { client, echo, fence, clock, metrics, agent });
    // The body is kept out of `call`: kube runs that in a task of its own, and only the future it returns in the caller's, where
    // spans and counts are.
    let service = tower::service_fn(move |request: Request<Body>| {
        let edge = edge.clone();
        async move { edge.call(request).await }
    });
    kube::Client::new(service, namespace).with_valid_until(valid_until)
}

struct FencedClient {
    client: kube::Client,
    /// A client that returns the request to this layer.
    echo: kube::Client,
    fence: Fence,
    clock: Clock,
    /// `None` if calls are not counted.
    metrics: Option<Metrics>,
    agent: Option<HeaderValue>,
}

impl FencedClient {
    async fn call(&self, mut request: Request<Body>) -> Result<Response<TimeoutBody>, tower::BoxError> {
        let call = Call::of(&request);
        let _ = COUNTS.try_with(|counts| {
            if let Some(counts) = counts.as_ref().filter(|_| self.metrics.is_some()) {
                let count = if call.reads() { &counts.reads } else { &counts.writes };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        if let Some(agent) = &self.agent {
            request.headers_mut().insert(header::USER_AGENT, agent.clone());
        }
        let span = tracing::debug_span!(
            "call",
            otel.name = format!("{} {}", call.verb, call.resource),
            otel.kind = "client",
            verb = call.verb,
            resource = call.resource,
            namespace = call.namespace,
            name = call.name,
            code = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
        );
        let mut tally =
            CallTimer { edge: self, call: &call, started: self.clock.monotonic(), code: "cancelled".into() };
        let answer = self.send(&call, request).instrument(span.clone()).await;
        tally.code = match &answer {
            Ok(answer) => answer.status().as_str().to_owned(),
            Err(error) => error_label(error).to_owned(),
        };
        span.record("code", &tally.code);
        if answer.as_ref().map_or(true, |answer| answer.status().is_server_error()) {
            span.record("otel.status_code", "ERROR");
        }
        let limit = (!call.is_watch()).then_some(MAX_WAIT);
        let answer = answer?.map(|body| TimeoutBody { body, clock: self.clock.clone(), limit, sleep: None });
        Ok(copy_retry_after(answer).await?)
    }

    async fn send(&self, call: &Call, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let request = if call.reads() { request } else { self.unrepeatable(request).await? };
        let mut answer = pin!(self.client.send(request));
        let mut limit = pin!(self.clock.sleep(MAX_WAIT));
        let mut sent = false;
        poll_fn(|context| {
            if !call.reads() && !self.fence.holds(&self.clock) {
                let error = if sent { CallError::Overtaken } else { CallError::Fenced };
                return Poll::Ready(Err(kube::Error::Service(error.into())));
            }
            sent = true;
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            limit.as_mut().poll(context).map(|()| Err(kube::Error::Service(CallError::TimedOut(MAX_WAIT).into())))
        })
        .await
    }

    /// The same request with a body that kube cannot clone, so that a client that retries by default does not repeat it. kube has
    /// no other way to make such a body than to receive it.
    async fn unrepeatable(&self, request: Request<Body>) -> Result<Request<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        let body = self.echo.send(Request::new(body)).await?.into_body();
        Ok(Request::from_parts(parts, body))
    }
}

/// Counts a call when it ends, also by cancellation.
struct CallTimer<'a> {
    edge: &'a FencedClient,
    call: &'a Call,
    started: Duration,
    code: String,
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let took = self.edge.clock.monotonic().saturating_sub(self.started);
        if let Some(metrics) = &self.edge.metrics {
            metrics.call(self.call.verb, &self.call.resource, &self.code, took);
        }
    }
}

/// Metric label for a missing answer.
fn error_label(error: &kube::Error) -> &'static str {
    match CallError::of(error) {
        Some(CallError::Fenced) => "fenced",
        Some(CallError::Overtaken) => "lease_expired",
        Some(CallError::TimedOut(_)) => "timeout",
        None => "error",
    }
}

/// Copies `Retry-After` from the header into the error's body, where kube keeps it. kube-apiserver's own protection from overload
/// answers in plain text, with nothing but the header.
async fn copy_retry_after(answer: Response<TimeoutBody>) -> Result<Response<TimeoutBody>, kube::Error> {
    let code = answer.status();
    let asks =
        matches!(code, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT);
    let seconds = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let (true, Some(seconds)) = (asks, seconds) else { return Ok(answer) };
    let (mut parts, mut body) = answer.into_parts();
    let bytes = match http_body_util::Limited::new(&mut body, MAX_ERROR).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let mut status: Status = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        Status::failure(String::from_utf8_lossy(&bytes).trim(), "TooManyRequests").with_code(code.as_u16())
    });
    let details = status.details.get_or_insert_with(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    });
    if details.retry_after_seconds == 0 {
        details.retry_after_seconds = seconds;
    }
    let bytes = serde_json::to_vec(&status).map_err(kube::Error::SerdeError)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    body.body = Body::from(bytes);
    Ok(Response::from_parts(parts, body))
}

/// The body of a write, which ends the request when the fence does not hold.
///
/// A connection has a task of its own, which reads the body at the moment it writes. A process that is paused between the check and the
/// write finds its lease expired when it resumes, and the server never receives the whole request.
struct FencedBody {
    body: Body,
    fence: Fence,
    clock: Clock,
}

impl http_body::Body for FencedBody {
    type Data = Bytes;
    type Error = tower::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tower::BoxError>>> {
        if !self.fence.holds(&self.clock) {
            return Poll::Ready(Some(Err(CallError::Fenced.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body with a timeout for each next part.
struct TimeoutBody {
    body: Body,
    clock: Clock,
    limit: Option<Duration>,
    sleep: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl http_body::Body for TimeoutBody {
    type Data = Bytes;
    type Error = tower::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tower::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.sleep = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(limit) = self.limit else { return Poll::Pending };
        let clock = self.clock.clone();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(async move { clock.sleep(limit).await }));
        sleep.as_mut().poll(context).map(|()| Some(Err(CallError::TimedOut(limit).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
