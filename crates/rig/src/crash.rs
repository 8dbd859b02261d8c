//! Stops an operator dead at a call.

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
use crate::layer::{Answered, Layer, around, forward};

/// On which side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server never sees the call.
    Before,
    /// The server has done it, the operator never learns.
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

/// What makes two calls the same one for [`Points`].
type Word = Box<dyn Fn(&Call) -> String + Send + Sync>;

/// Calls at each of which an operator is stopped dead, each once, in whatever order they come: as often as it was started again, it goes a call further.
///
/// A call is known by a word, and by how many with that word got through before it. So each is met, although every life makes other calls before it.
pub struct Points {
    side: Side,
    word: Word,
    left: BTreeMap<String, BTreeSet<usize>>,
    passed: HashMap<String, usize>,
}

impl Points {
    /// At these calls, and on this side of them. `word` says which calls are the same.
    pub fn new(side: Side, word: impl Fn(&Call) -> String + Send + Sync + 'static, calls: &[Call]) -> Self {
        let mut left: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for call in calls {
            let numbers = left.entry(word(call)).or_default();
            numbers.insert(numbers.len());
        }
        Self { side, word: Box::new(word), left, passed: HashMap::new() }
    }

    /// At one call alone: the one with that word before which `number` others with it got through.
    pub fn nth(
        side: Side,
        word: impl Fn(&Call) -> String + Send + Sync + 'static,
        wanted: &str,
        number: usize,
    ) -> Self {
        let left = BTreeMap::from([(wanted.to_owned(), BTreeSet::from([number]))]);
        Self { side, word: Box::new(word), left, passed: HashMap::new() }
    }

    /// Whether that call is held, and on which side of it: it gets through all the same.
    pub(crate) fn meet_late(&mut self, call: &Call) -> Option<Side> {
        let met = self.meet(call);
        if met == Some(Side::Before) {
            *self.passed.entry((self.word)(call)).or_default() += 1;
        }
        met
    }

    /// Whether it happens at that call, and on which side.
    pub(crate) fn meet(&mut self, call: &Call) -> Option<Side> {
        let word = (self.word)(call);
        let passed = self.passed.entry(word.clone()).or_default();
        let struck = self.left.get_mut(&word).is_some_and(|numbers| numbers.remove(&*passed));
        if !struck || self.side == Side::After {
            *passed += 1;
        }
        struck.then_some(self.side)
    }
}

enum Place {
    Never,
    Call(usize, Side),
    Each(Points),
}

impl From<Option<(usize, Side)>> for Place {
    fn from(at: Option<(usize, Side)>) -> Self {
        at.map_or(Self::Never, |(call, side)| Self::Call(call, side))
    }
}

/// Counts the calls of an operator and, at one of them, lets nothing through any more and says so.
///
/// Caveat: it cannot stop the operator itself. Who holds it waits for [`Crash::happened`] and then ends the operator's runtime.
#[derive(Clone)]
pub struct Crash {
    fuse: Arc<Fuse>,
}

struct Fuse {
    at: Mutex<Place>,
    armed: AtomicBool,
    calls: AtomicUsize,
    /// Nothing is let through.
    blown: AtomicBool,
    happened: watch::Sender<Option<Call>>,
}

impl Crash {
    /// At the `call`-th call, counted from 0.
    pub fn at(call: usize, side: Side) -> Self {
        Self::new(Some((call, side)))
    }

    /// Never; only counts.
    pub fn never() -> Self {
        Self::new(None)
    }

    fn new(at: Option<(usize, Side)>) -> Self {
        let (armed, blown) = (AtomicBool::new(true), AtomicBool::new(false));
        let (calls, happened) = (AtomicUsize::new(0), watch::Sender::new(None));
        Self { fuse: Arc::new(Fuse { at: Mutex::new(at.into()), armed, calls, blown, happened }) }
    }

    /// Once more, at the `call`-th call from now on, counted from 0; or never again, and only counts.
    pub fn again(&self, at: Option<(usize, Side)>) {
        self.place(at.into());
    }

    /// Again and again, at each of these calls from now on.
    pub fn at_each(&self, points: Points) {
        self.place(Place::Each(points));
    }

    /// Those of [`at_each`](Self::at_each) that were not met yet: their word, and how many with it came before.
    pub fn left(&self) -> Vec<(String, usize)> {
        match &*self.fuse.at() {
            Place::Never | Place::Call(..) => Vec::new(),
            Place::Each(points) => {
                let all = points.left.iter();
                all.flat_map(|(word, numbers)| numbers.iter().map(|number| (word.clone(), *number))).collect()
            }
        }
    }

    fn place(&self, place: Place) {
        *self.fuse.at() = place;
        self.fuse.calls.store(0, Ordering::SeqCst);
        self.fuse.happened.send_replace(None);
        self.arm();
    }

    /// Whether it has happened, and the operator has not been started again.
    pub(crate) fn blown(&self) -> bool {
        self.fuse.blown()
    }

    /// The operator was ended, and another one may begin.
    pub fn heal(&self) {
        self.fuse.blown.store(false, Ordering::SeqCst);
    }

    /// Calls count from here on.
    pub fn arm(&self) {
        self.fuse.armed.store(true, Ordering::SeqCst);
    }

    /// Calls count not before [`arm`](Self::arm).
    pub fn disarm(&self) {
        self.fuse.armed.store(false, Ordering::SeqCst);
    }

    /// Puts it around an operator's client.
    pub fn around(&self, client: Client) -> Client {
        around(client, self.fuse.clone())
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.fuse.calls.load(Ordering::SeqCst)
    }

    /// The call at which it happened, if it has.
    pub fn at_call(&self) -> Option<Call> {
        self.fuse.happened.borrow().clone()
    }

    /// Returns when it has happened, and nobody has [`heal`](Self::heal)ed it.
    pub async fn happened(&self) {
        let mut happened = self.fuse.happened.subscribe();
        // The sender lives in what we borrow.
        let _ = happened.wait_for(|_| self.fuse.blown()).await;
    }
}

impl Fuse {
    fn blown(&self) -> bool {
        self.blown.load(Ordering::SeqCst)
    }

    fn blow(&self, call: Call) {
        self.blown.store(true, Ordering::SeqCst);
        self.happened.send_replace(Some(call));
    }

    fn at(&self) -> MutexGuard<'_, Place> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it happens at that call, and on which side. Once.
    fn strikes(&self, number: usize, call: &Call) -> Option<Side> {
        let mut at = self.at();
        match &mut *at {
            Place::Call(wanted, side) if *wanted == number => {
                let side = *side;
                *at = Place::Never;
                Some(side)
            }
            // What does not get through does not count.
            Place::Each(points) if !self.blown() => points.meet(call),
            Place::Never | Place::Call(..) | Place::Each(_) => None,
        }
    }
}

impl Layer for Fuse {
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, inner: Client) -> BoxFuture<'static, Answered> {
        let armed = self.armed.load(Ordering::SeqCst);
        let number = if armed { self.calls.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        Box::pin(async move {
            match self.strikes(number, &call) {
                Some(Side::Before) => self.blow(call),
                Some(Side::After) => {
                    let answer = forward(&inner, request).await;
                    self.blow(call);
                    // A watch that was opened is dropped with its answer.
                    drop(answer);
                }
                _ if self.blown() => {}
                _ => {
                    let answer = forward(&inner, request).await;
                    if !self.blown() {
                        return answer;
                    }
                }
            }
            std::future::pending().await
        })
    }
}
