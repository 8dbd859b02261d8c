//! Stops an operator dead at a call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    at: Option<(usize, Side)>,
    armed: AtomicBool,
    calls: AtomicUsize,
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
        let (armed, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
        Self { fuse: Arc::new(Fuse { at, armed, calls, happened: watch::Sender::new(None) }) }
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
        self.happened.borrow().is_some()
    }
}

impl Layer for Fuse {
    fn call(self: Arc<Self>, call: Call, request: Request<Body>, inner: Client) -> BoxFuture<'static, Answered> {
        let armed = self.armed.load(Ordering::SeqCst);
        let number = if armed { self.calls.fetch_add(1, Ordering::SeqCst) } else { usize::MAX };
        Box::pin(async move {
            match self.at {
                Some((at, Side::Before)) if at == number => {
                    self.happened.send_replace(Some(call));
                }
                Some((at, Side::After)) if at == number => {
                    let answer = forward(&inner, request).await;
                    self.happened.send_replace(Some(call));
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
