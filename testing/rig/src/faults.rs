//! Seeded faults between an operator and its API server.

mod fault;
mod stream;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fleetwright_kit::Clock;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

pub use fault::{Fault, FaultRates, decide};

use crate::layer::{BoxError, CallResult, Layer, broken, forward, refusal, reply, status_object, wrap};
use crate::{Call, CallMatcher};

/// The number of answers to one request that are kept for stale reads.
const REMEMBERED: usize = 4;

/// Loses, delays, refuses and falsifies calls by a seed; cheap to clone, clones share the record of faults.
///
/// Guarantees: the fault of a call depends on the seed, on the call, and on the number of earlier calls like it; neither on
/// concurrent work nor on the name of the run's namespace. A stale answer is one that the server gave before.
#[derive(Clone)]
pub struct FaultInjector {
    state: Arc<State>,
}

struct State {
    seed: u64,
    rates: FaultRates,
    clock: Clock,
    namespace: String,
    outage: watch::Sender<Option<Outage>>,
    history: Mutex<CallHistory>,
}

#[derive(Default)]
struct CallHistory {
    counts: HashMap<String, u32>,
    calls: usize,
    faults: Vec<(Call, Fault)>,
    gone: usize,
    delayed_requests: usize,
    answers: HashMap<String, VecDeque<Answer>>,
    initial: HashMap<String, VecDeque<Initial>>,
    injected: Option<(CallMatcher, Fault)>,
}

/// A recorded answer.
#[derive(Clone)]
struct Answer {
    status: StatusCode,
    body: Bytes,
}

/// The initial events of a watch, and the resourceVersion that they cover.
#[derive(Clone)]
struct Initial {
    lines: Vec<Bytes>,
    version: String,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    from: Timestamp,
    until: Timestamp,
}

impl Outage {
    fn contains(self, time: Timestamp) -> bool {
        self.from <= time && time < self.until
    }
}

impl FaultInjector {
    /// An injector with this seed and clock, for a run in this namespace.
    pub fn new(seed: u64, rates: FaultRates, clock: Clock, namespace: &str) -> Self {
        let (outage, namespace) = (watch::Sender::new(None), namespace.to_owned());
        Self { state: Arc::new(State { seed, rates, clock, namespace, outage, history: Mutex::default() }) }
    }

    /// Wraps an operator's client.
    pub fn wrap(&self, client: Client) -> Client {
        wrap(client, self.state.clone())
    }

    /// The seeds to run: `1..=count`, or the one in the environment variable `RIG_SEED`.
    pub fn seeds(count: u64) -> Vec<u64> {
        match std::env::var("RIG_SEED") {
            Ok(seed) => vec![seed.parse().unwrap_or_else(|_| panic!("RIG_SEED={seed}: not a number"))],
            Err(_) => (1..=count).collect(),
        }
    }

    /// Starts an outage of the API server: watches break, and calls fail until it ends.
    pub fn start_outage(&self, from: Timestamp, lasts: Duration) {
        let until = from.checked_add(lasts).unwrap_or(Timestamp::MAX);
        self.state.outage.send_replace(Some(Outage { from, until }));
    }

    /// Injects this fault into these calls from now on, each once and independent of the seed, and replaces earlier injections.
    /// With [`Side::Before`](crate::Side::Before), a call that meets the fault does not count as passed: its retry is the same call.
    pub fn inject_at(&self, points: CallMatcher, fault: Fault) {
        self.state.history().injected = Some((points, fault));
    }

    /// The seed of the injector.
    pub fn seed(&self) -> u64 {
        self.state.seed
    }

    /// The upper bound of all delays.
    pub fn max_delay(&self) -> Duration {
        self.state.rates.max_delay
    }

    /// Whether a delayed request has not arrived yet.
    pub fn has_delayed_requests(&self) -> bool {
        self.state.history().delayed_requests > 0
    }

    /// The injected faults by call.
    pub fn faults(&self) -> Vec<(Call, Fault)> {
        self.state.history().faults.clone()
    }

    /// The number of injections of each fault.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let history = self.state.history();
        let mut counts = BTreeMap::new();
        for (_, fault) in &history.faults {
            *counts.entry(fault.name()).or_default() += 1;
        }
        if history.gone > 0 {
            counts.insert("server gone", history.gone);
        }
        counts
    }
}

impl fmt::Display for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts();
        let calls = self.state.history().calls;
        write!(f, "seed {}: {} of {calls} calls met faults", self.state.seed, counts.values().sum::<usize>())?;
        let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

impl State {
    fn history(&self) -> MutexGuard<'_, CallHistory> {
        // Every change is complete before the lock is released, so a poisoned lock is safe.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the call and picks its fault.
    fn pick_fault(&self, call: &Call, uri: &Uri) -> Option<Fault> {
        let mut history = self.history();
        history.calls += 1;
        if let Some(fault) = history.injected_fault(call) {
            history.faults.push((call.clone(), fault.clone()));
            return Some(fault);
        }
        let key = format!("{call}");
        let nth = history.counts.entry(key).or_default();
        let alike = Call {
            namespace: call.namespace.replace(&self.namespace, "NAMESPACE"),
            name: call.name.replace(&self.namespace, "NAMESPACE"),
            ..call.clone()
        };
        let fault = decide(self.seed, &self.rates, &alike, query(uri, "continue").is_some(), *nth);
        *nth += 1;
        let fault = fault.filter(|fault| match fault {
            Fault::Stale { .. } => history.recalls(call, uri),
            // A list of everything cannot expire, and neither can a watch that starts with one.
            Fault::Expired { .. } => query(uri, "sendInitialEvents").is_none(),
            _ => true,
        })?;
        history.faults.push((call.clone(), fault.clone()));
        Some(fault)
    }

    fn keep_initial(&self, name: String, initial: Initial) {
        push(self.history().initial.entry(name).or_default(), initial);
    }

    /// Forwards the call, and records the answers of reads; a watch gets the plan.
    async fn forward(
        self: &Arc<Self>,
        call: &Call,
        request: Request<Body>,
        next_client: &Client,
        mut plan: stream::Plan,
    ) -> CallResult {
        let uri = request.uri().clone();
        let response = forward(next_client, request).await?;
        if call.verb == "watch" && response.status() == StatusCode::OK {
            if plan.first.is_empty() && query(&uri, "sendInitialEvents") == Some("true") {
                plan.keep_as = Some(uri.to_string());
            }
            let state = self.clone();
            return Ok(response.map(|body| stream::watched(body, plan, state)));
        }
        if !matches!(call.verb, "get" | "list") || !matches!(response.status().as_u16(), 200 | 404) {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let answer = Answer { status: parts.status, body: body.clone() };
        push(self.history().answers.entry(uri.to_string()).or_default(), answer);
        Ok(Response::from_parts(parts, http_body_util::Full::new(body).map_err(|never| match never {}).boxed_unsync()))
    }

    /// Answers as a server that has not seen the last changes.
    async fn stale(
        self: &Arc<Self>,
        back: usize,
        call: Call,
        mut request: Request<Body>,
        next_client: Client,
    ) -> CallResult {
        let key = request.uri().to_string();
        if call.verb != "watch" {
            let answer = self.history().answers.get(&key).and_then(|answers| older(answers, back)).cloned();
            return match answer {
                Some(answer) => Ok(reply(answer.status, "application/json", answer.body)),
                None => self.forward(&call, request, &next_client, stream::Plan::default()).await,
            };
        }
        let Some(initial) = self.history().initial.get(&key).and_then(|kept| older(kept, back)).cloned() else {
            return self.forward(&call, request, &next_client, stream::Plan::default()).await;
        };
        // The recorded initial events, then all events since.
        *request.uri_mut() = going_on_from(request.uri(), &initial.version)?;
        let plan = stream::Plan { first: initial.lines.into(), ..stream::Plan::default() };
        self.forward(&call, request, &next_client, plan).await
    }

    async fn apply_fault(
        self: Arc<Self>,
        fault: Option<Fault>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> CallResult {
        let plain = stream::Plan::default;
        match fault {
            None => self.forward(&call, request, &next_client, plain()).await,
            Some(Fault::RequestLost { silent: false }) => Err(broken("connection reset before the request was sent")),
            Some(Fault::RequestLost { silent: true }) => std::future::pending().await,
            Some(Fault::AnswerLost { silent }) => {
                drop(self.forward(&call, request, &next_client, plain()).await);
                if silent {
                    std::future::pending().await
                } else {
                    Err(broken("connection reset before an answer came"))
                }
            }
            Some(Fault::LateAnswer(late)) => {
                let answer = self.forward(&call, request, &next_client, plain()).await;
                self.clock.sleep(late).await;
                answer
            }
            Some(Fault::LateRequest(late)) => {
                // The request is sent: dropping the caller no longer cancels it.
                let delayed_requests = DelayedRequest::begin(&self);
                let way = tokio::spawn(async move {
                    let _on_the_way = delayed_requests;
                    self.clock.sleep(late).await;
                    self.forward(&call, request, &next_client, plain()).await
                });
                way.await?
            }
            Some(Fault::Conflict) => {
                let message = "Operation cannot be fulfilled: the object has been modified; please apply your changes to the \
                               latest version and try again (said by the rig)";
                Ok(refusal(StatusCode::CONFLICT, "Conflict", message))
            }
            Some(Fault::Expired { event: false }) => {
                Ok(refusal(StatusCode::GONE, "Expired", "too old resource version (said by the rig)"))
            }
            Some(Fault::Expired { event: true }) => {
                let status = status_object(410, "Expired", "too old resource version (said by the rig)");
                let event = serde_json::json!({ "type": "ERROR", "object": status });
                Ok(reply(StatusCode::OK, "application/json", format!("{event}\n")))
            }
            Some(Fault::TooMany { seconds }) => {
                let message = "too many requests, please try again later (said by the rig)";
                let mut answer = refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                Ok(answer)
            }
            Some(Fault::ServerError { code, done }) => {
                if done {
                    drop(self.forward(&call, request, &next_client, plain()).await);
                }
                Ok(server_error(code))
            }
            Some(Fault::Stale { back }) => self.stale(back, call, request, next_client).await,
            Some(Fault::Cut { events, inside, broken }) => {
                let plan = stream::Plan { cut: Some((events, inside, broken)), ..plain() };
                self.forward(&call, request, &next_client, plan).await
            }
            Some(Fault::Slow(late)) => {
                let plan = stream::Plan { slow: Some(late), ..plain() };
                self.forward(&call, request, &next_client, plan).await
            }
        }
    }
}

/// A request that was sent and has not arrived; it counts as arrived when this is dropped.
struct DelayedRequest(Arc<State>);

impl DelayedRequest {
    fn begin(state: &Arc<State>) -> Self {
        state.history().delayed_requests += 1;
        Self(state.clone())
    }
}

impl Drop for DelayedRequest {
    fn drop(&mut self) {
        self.0.history().delayed_requests -= 1;
    }
}

impl Layer for State {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        if self.outage.borrow().is_some_and(|outage| outage.contains(self.clock.now())) {
            let mut history = self.history();
            history.calls += 1;
            history.gone += 1;
            return Box::pin(async { Err(refused()) });
        }
        let fault = self.pick_fault(&call, request.uri());
        Box::pin(async move {
            let state = self.clone();
            // An outage also loses the answers.
            tokio::select! {
                answer = self.apply_fault(fault, call, request, next_client) => answer,
                () = state.outage() => Err(broken("the API server is gone")),
            }
        })
    }
}

impl CallHistory {
    /// The injected fault of this call.
    fn injected_fault(&mut self, call: &Call) -> Option<Fault> {
        let (points, fault) = self.injected.as_mut()?;
        points.on_call(call).map(|_| fault.clone())
    }

    fn recalls(&self, call: &Call, uri: &Uri) -> bool {
        let key = uri.to_string();
        if call.verb == "watch" { self.initial.contains_key(&key) } else { self.answers.contains_key(&key) }
    }
}

/// A refused connection.
fn refused() -> BoxError {
    Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "the API server is gone"))
}

/// The error answers of servers and of load balancers before them.
fn server_error(code: u16) -> Response<crate::layer::Reply> {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        // A load balancer answers with HTML instead of JSON.
        502 => reply(status, "text/html", "<html><body><h1>502 Bad Gateway</h1></body></html>"),
        503 => {
            let message = "the server is currently unable to handle the request (said by the rig)";
            let mut answer = refusal(status, "ServiceUnavailable", message);
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1));
            answer
        }
        504 => refusal(status, "Timeout", "request did not complete within the allotted timeout (said by the rig)"),
        _ => refusal(status, "InternalError", "an error on the server has prevented the request (said by the rig)"),
    }
}

fn push<T>(kept: &mut VecDeque<T>, new: T) {
    if kept.len() == REMEMBERED {
        kept.pop_front();
    }
    kept.push_back(new);
}

/// The answer `back` before the last; the oldest if fewer are kept.
fn older<T>(kept: &VecDeque<T>, back: usize) -> Option<&T> {
    kept.get(kept.len().saturating_sub(1 + back).min(kept.len().saturating_sub(1)))
}

fn query<'a>(uri: &'a Uri, key: &str) -> Option<&'a str> {
    let pairs = uri.query().unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).find(|value| !value.is_empty())
}

/// The URI of a watch that continues from this version.
fn going_on_from(uri: &Uri, version: &str) -> Result<Uri, BoxError> {
    let dropped = ["sendInitialEvents", "resourceVersion", "resourceVersionMatch"];
    let kept = uri.query().unwrap_or_default().split('&');
    let kept = kept.filter(|pair| !dropped.contains(&pair.split('=').next().unwrap_or_default()));
    let query: Vec<&str> = kept.filter(|pair| !pair.is_empty()).collect();
    let version = format!("resourceVersion={version}");
    let query = query.into_iter().chain([version.as_str()]).collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", uri.path()).parse()?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Side;

    #[tokio::test]
    async fn a_call_that_was_aimed_at_meets_its_fault_once_and_no_other_call_does() {
        let server = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, BoxError>(reply(StatusCode::OK, "application/json", "{}"))
        });
        let faults = FaultInjector::new(1, FaultRates::none(), Clock::manual(Timestamp::UNIX_EPOCH), "a");
        let client = faults.wrap(Client::new(server, "default"));
        let word = "patch configmaps a/b";
        faults.inject_at(CallMatcher::nth(Side::Before, ToString::to_string, word, 1), Fault::Conflict);
        let mut codes = Vec::new();
        for name in ["b", "c", "b", "b", "b"] {
            let path = format!("/api/v1/namespaces/a/configmaps/{name}");
            let request = Request::patch(path).body(Body::empty()).unwrap();
            codes.push(client.send(request).await.unwrap().status().as_u16());
        }
        assert_eq!(codes, [200, 200, 409, 200, 200]);
        assert_eq!(faults.counts(), BTreeMap::from([("409", 1)]));
    }
}
