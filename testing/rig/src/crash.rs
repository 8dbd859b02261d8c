//! Crashes an operator at a call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;

use crate::Call;
use crate::layer::{CallResult, Layer, forward, wrap};

/// The side of a call at which an operator crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server never receives the call.
    Before,
    /// The server has carried out the call, and the operator never gets the answer.
    After,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Before => "before",
            Self::After => "after",
        })
    }
}

/// The function that decides which calls are the same for [`CallMatcher`].
type CallKey = Box<dyn Fn(&Call) -> String + Send + Sync>;

/// Calls at each of which an operator crashes once, in any order: after each restart it gets one call further.
///
/// A call is identified by a word, and by the number of calls with this word that passed before it.
/// So each is met, although each restart makes other calls before it.
pub struct CallMatcher {
    side: Side,
    word: CallKey,
    left: BTreeMap<String, BTreeSet<usize>>,
    passed: HashMap<String, usize>,
}

impl CallMatcher {
    /// Crashes at these calls, on this side of them. `word` decides which calls are the same.
    pub fn new(side: Side, word: impl Fn(&Call) -> String + Send + Sync + 'static, calls: &[Call]) -> Self {
        let mut left: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for call in calls {
            let numbers = left.entry(word(call)).or_default();
            numbers.insert(numbers.len());
        }
        Self { side, word: Box::new(word), left, passed: HashMap::new() }
    }

    /// Crashes at a single call: the one with this word after `number` others with it passed.
    pub fn nth(
        side: Side,
        word: impl Fn(&Call) -> String + Send + Sync + 'static,
        wanted: &str,
        number: usize,
    ) -> Self {
        let left = BTreeMap::from([(wanted.to_owned(), BTreeSet::from([number]))]);
        Self { side, word: Box::new(word), left, passed: HashMap::new() }
    }

    /// Whether this call is delayed, and on which side of it; a delayed call passes all the same.
    pub(crate) fn on_delayed_call(&mut self, call: &Call) -> Option<Side> {
        let met = self.on_call(call);
        if met == Some(Side::Before) {
            *self.passed.entry((self.word)(call)).or_default() += 1;
        }
        met
    }

    /// Whether the crash happens at this call, and on which side.
    pub(crate) fn on_call(&mut self, call: &Call) -> Option<Side> {
        let word = (self.word)(call);
        let passed = self.passed.entry(word.clone()).or_default();
        let struck = self.left.get_mut(&word).is_some_and(|numbers| numbers.remove(&*passed));
        if !struck || self.side == Side::After {
            *passed += 1;
        }
        struck.then_some(self.side)
    }
}

enum CrashPoint {
    Never,
    Call(usize, Side),
    Each(CallMatcher),
}

impl From<Option<(usize, Side)>> for CrashPoint {
    fn from(at: Option<(usize, Side)>) -> Self {
        at.map_or(Self::Never, |(call, side)| Self::Call(call, side))
    }
}

/// Counts the calls of an operator and, at one of them, blocks all further calls and signals the crash.
///
/// Caveat: it cannot stop the operator itself. The caller waits for [`Crash::wait_for_crash`] and then ends the operator's runtime.
#[derive(Clone)]
pub struct Crash {
    state: Arc<CrashState>,
}

struct CrashState {
    at: Mutex<CrashPoint>,
    armed: AtomicBool,
    calls: AtomicUsize,
    /// All calls are blocked.
    has_crashed: AtomicBool,
    happened: watch::Sender<Option<Call>>,
}

impl Crash {
    /// Crashes at the `call`-th call, counted from 0.
    pub fn at(call: usize, side: Side) -> Self {
        Self::new(Some((call, side)))
    }

    /// Never crashes; only counts calls.
    pub fn never() -> Self {
        Self::new(None)
    }

    fn new(at: Option<(usize, Side)>) -> Self {
        let (armed, has_crashed) = (AtomicBool::new(true), AtomicBool::new(false));
        let (calls, happened) = (AtomicUsize::new(0), watch::Sender::new(None));
        Self { state: Arc::new(CrashState { at: Mutex::new(at.into()), armed, calls, has_crashed, happened }) }
    }

    /// Crashes once more, at the `call`-th call from now on, counted from 0; with none it only counts.
    pub fn crash_at(&self, at: Option<(usize, Side)>) {
        self.place(at.into());
    }

    /// Crashes at each of these calls from now on.
    pub fn crash_at_each(&self, points: CallMatcher) {
        self.place(CrashPoint::Each(points));
    }

    /// The calls of [`crash_at_each`](Self::crash_at_each) that were not met yet: their word, and the number of earlier calls with it.
    pub fn remaining_calls(&self) -> Vec<(String, usize)> {
        match &*self.state.at() {
            CrashPoint::Never | CrashPoint::Call(..) => Vec::new(),
            CrashPoint::Each(points) => {
                let all = points.left.iter();
                all.flat_map(|(word, numbers)| numbers.iter().map(|number| (word.clone(), *number))).collect()
            }
        }
    }

    fn place(&self, place: CrashPoint) {
        *self.state.at() = place;
        self.state.calls.store(0, Ordering::SeqCst);
        self.state.happened.send_replace(None);
        self.arm();
    }

    /// Whether the crash has happened, and the operator was not restarted.
    pub(crate) fn has_crashed(&self) -> bool {
        self.state.has_crashed()
    }

    /// Ends the crash: a new operator may start.
    pub fn reset(&self) {
        self.state.has_crashed.store(false, Ordering::SeqCst);
    }

    /// Starts the counting of calls.
    pub fn arm(&self) {
        self.state.armed.store(true, Ordering::SeqCst);
    }

    /// Suspends the counting of calls until [`arm`](Self::arm).
    pub fn disarm(&self) {
        self.state.armed.store(false, Ordering::SeqCst);
    }

    /// Wraps an operator's client.
    pub fn wrap(&self, client: Client) -> Client {
        wrap(client, self.state.clone())
    }

    /// The number of calls.
    pub fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// The call of the crash, if it has happened.
    pub fn crashed_call(&self) -> Option<Call> {
        self.state.happened.borrow().clone()
    }

    /// Returns after a crash that was not [`reset`](Self::reset).
    pub async fn wait_for_crash(&self) {
        let mut happened = self.state.happened.subscribe();
        // `self` owns the sender, so that it cannot be dropped here.
        let _ = happened.wait_for(|_| self.state.has_crashed()).await;
    }
}

impl CrashState {
    fn has_crashed(&self) -> bool {
        self.has_crashed.load(Ordering::SeqCst)
    }

    fn record_crash(&self, call: Call) {
        self.has_crashed.store(true, Ordering::SeqCst);
        self.happened.send_replace(Some(call));
    }

    fn at(&self) -> MutexGuard<'_, CrashPoint> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the crash happens at this call, and on which side. Returns it once.
    fn strikes(&self, number: usize, call: &Call) -> Option<Side> {
        let mut at = self.at();
        match &mut *at {
            CrashPoint::Call(wanted, side) if *wanted == number => {
                let side = *side;
                *at = CrashPoint::Never;
                Some(side)
            }
            // A blocked call does not count.
            CrashPoint::Each(points) if !self.has_crashed() => points.on_call(call),
            CrashPoint::Never | CrashPoint::Call(..) | CrashPoint::Each(_) => None,
        }
    }
}

impl Layer for CrashState {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        let armed = self.armed.load(Ordering::SeqCst);
        let number = if armed { self.calls.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        Box::pin(async move {
            match self.strikes(number, &call) {
                Some(Side::Before) => self.record_crash(call),
                Some(Side::After) => {
                    let answer = forward(&next_client, request).await;
                    self.record_crash(call);
                    // Dropping the answer closes a watch that was opened.
                    drop(answer);
                }
                _ if self.has_crashed() => {}
                _ => {
                    let answer = forward(&next_client, request).await;
                    if !self.has_crashed() {
                        return answer;
                    }
                }
            }
            std::future::pending().await
        })
    }
}
