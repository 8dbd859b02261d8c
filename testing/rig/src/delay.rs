//! Delays calls of an operator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::Clock;
use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use kube::client::Body;

use crate::layer::{CallResult, Layer, forward, wrap};
use crate::{Call, CallMatcher, Side};

/// Delays calls of an operator instead of crashing it: [`Side::Before`] the server receives the call, or
/// [`Side::After`] the server has carried it out. All other calls are made meanwhile. Cheap to clone.
#[derive(Clone)]
pub struct Delay {
    latch: Arc<Latch>,
}

struct Latch {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    at: Option<(CallMatcher, Duration)>,
    held: Vec<Call>,
}

impl Delay {
    /// Without delays yet; measures time by this clock.
    pub fn new(clock: Clock) -> Self {
        Self { latch: Arc::new(Latch { clock, state: Mutex::default() }) }
    }

    /// Delays these calls by this time from now on, and replaces earlier delays.
    pub fn hold(&self, points: CallMatcher, time: Duration) {
        *self.latch.state() = State { at: Some((points, time)), held: Vec::new() };
    }

    /// Removes all delays.
    pub fn end(&self) {
        *self.latch.state() = State::default();
    }

    /// The delayed calls since the last [`hold`](Self::hold).
    pub fn held(&self) -> Vec<Call> {
        self.latch.state().held.clone()
    }

    /// Wraps an operator's client.
    pub fn wrap(&self, client: Client) -> Client {
        wrap(client, self.latch.clone())
    }
}

impl Latch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The side and the duration of this call's delay; none if it is not delayed.
    fn meet(&self, call: &Call) -> Option<(Side, Duration)> {
        let mut state = self.state();
        let (points, time) = state.at.as_mut()?;
        let (side, time) = (points.on_delayed_call(call)?, *time);
        state.held.push(call.clone());
        Some((side, time))
    }
}

impl Layer for Latch {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        let met = self.meet(&call);
        Box::pin(async move {
            if let Some((Side::Before, time)) = met {
                self.clock.sleep(time).await;
            }
            let answer = forward(&next_client, request).await;
            if let Some((Side::After, time)) = met {
                self.clock.sleep(time).await;
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;
    use jiff::Timestamp;

    use super::*;
    use crate::layer::{BoxError, reply};

    fn request() -> Request<Body> {
        Request::get("/api/v1/namespaces/a/configmaps/b").body(Body::empty()).unwrap()
    }

    async fn go_around() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_call_is_held_before_or_after_the_server_does_it_and_the_others_are_not() {
        for (side, seen) in [(Side::Before, 1), (Side::After, 2)] {
            let served = Arc::new(AtomicUsize::new(0));
            let count = served.clone();
            let server = tower::service_fn(move |_: Request<Body>| {
                count.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, BoxError>(reply(StatusCode::OK, "application/json", "{}")) }
            });
            let clock = Clock::manual(Timestamp::UNIX_EPOCH);
            let delay = Delay::new(clock.clone());
            let client = delay.wrap(Client::new(server, "default"));
            delay.hold(CallMatcher::nth(side, ToString::to_string, "get configmaps a/b", 1), Duration::from_secs(5));
            client.send(request()).await.unwrap();
            let held = tokio::spawn({
                let client = client.clone();
                async move { client.send(request()).await.map(drop) }
            });
            go_around().await;
            assert!(!held.is_finished());
            assert_eq!((served.load(Ordering::SeqCst), delay.held().len()), (seen, 1), "{side}");
            client.send(request()).await.unwrap();
            clock.advance(Duration::from_secs(5));
            held.await.unwrap().unwrap();
            assert_eq!((served.load(Ordering::SeqCst), delay.held().len()), (3, 1), "{side}");
        }
    }
}
