//! Stops an operator dead at a call.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Counts the calls of an operator and, at one of them, lets nothing through any more and says so.
///
/// Caveat: it cannot stop the operator itself. Who holds it waits for [`Crash::happened`] and then ends the operator's runtime.
#[derive(Clone)]
pub struct Crash {
    fuse: Arc<Fuse>,
}

struct Fuse {
    at: Mutex<Option<(usize, Side)>>,
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
        Self { fuse: Arc::new(Fuse { at: Mutex::new(at), armed, calls, blown, happened }) }
    }

    /// Once more, at the `call`-th call from now on, counted from 0; or never again, and only counts.
    pub fn again(&self, at: Option<(usize, Side)>) {
        let mut place = self.fuse.at.lock().unwrap_or_else(PoisonError::into_inner);
        *place = at;
        self.fuse.calls.store(0, Ordering::SeqCst);
        self.fuse.happened.send_replace(None);
        self.arm();
    }

    /// Whether it has happened, and the operator has not been started again.
    pub(crate) fn blown(&self) -> bool {
        self.fuse.blown()
    }

    /// The operator was ended, and another one may begin.
    pub(crate) fn heal(&self) {
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

    /// Returns when it has happened.
    pub async fn happened(&self) {
        let mut happened = self.fuse.happened.subscribe();
        // The sender lives in what we borrow.
        let _ = happened.wait_for(Option::is_some).await;
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

    /// Whether it happens at that call, and on which side.
    fn strikes(&self, number: usize) -> Option<Side> {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        // Once.
        at.take_if(|(call, _)| *call == number).map(|(_, side)| side)
    }
}

impl Layer for Fuse {
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, inner: Client) -> BoxFuture<'static, Answered> {
        let armed = self.armed.load(Ordering::SeqCst);
        let number = if armed { self.calls.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        Box::pin(async move {
            match self.strikes(number) {
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
