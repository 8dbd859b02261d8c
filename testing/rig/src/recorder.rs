//! Records calls and their results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use kube::client::Body;

use crate::Call;
use crate::layer::{CallResult, Layer, forward, wrap};

/// One call and its result.
#[derive(Clone, Debug)]
pub struct Record {
    pub call: Call,
    /// The time of the call.
    pub at: Instant,
    /// The HTTP status; none while the answer is pending, and if no answer ever arrives.
    pub code: Option<u16>,
    /// Whether the connection broke instead of an answer.
    pub broken: bool,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "{} → {code}", self.call),
            None if self.broken => write!(f, "{} → broken", self.call),
            None => write!(f, "{} → no answer", self.call),
        }
    }
}

/// The log of calls; cheap to clone, clones share it.
#[derive(Clone, Default)]
pub struct Recorder {
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    records: Mutex<Vec<Record>>,
    open: AtomicUsize,
}

impl Recorder {
    /// Records the calls of a client.
    pub fn wrap(&self, client: Client) -> Client {
        wrap(client, self.log.clone())
    }

    /// All calls so far, in the order in which they were made.
    pub fn calls(&self) -> Vec<Record> {
        self.since(0)
    }

    /// The number of calls so far: a mark for [`Recorder::since`].
    pub fn mark(&self) -> usize {
        self.log.records().len()
    }

    /// The calls after a mark.
    pub fn since(&self, mark: usize) -> Vec<Record> {
        self.log.records().get(mark..).unwrap_or_default().to_vec()
    }

    /// The writes after a mark, without those of Leases.
    pub fn writes_since(&self, mark: usize) -> Vec<Record> {
        self.since(mark).into_iter().filter(|record| record.call.writes() && !record.call.leases()).collect()
    }

    /// The number of calls that wait for the start of their answer.
    pub fn open(&self) -> usize {
        self.log.open.load(Ordering::SeqCst)
    }

    /// The number of calls by resource and verb.
    pub fn by_resource(&self) -> BTreeMap<(String, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for record in self.log.records().iter() {
            *counts.entry((record.call.resource.clone(), record.call.verb)).or_default() += 1;
        }
        counts
    }

    /// The last calls, a line each.
    pub fn tail(&self, count: usize) -> String {
        let records = self.log.records();
        let lines: Vec<String> =
            records[records.len().saturating_sub(count)..].iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

impl Log {
    fn records(&self) -> std::sync::MutexGuard<'_, Vec<Record>> {
        // The log is a list of complete entries: a panic while the lock is held leaves no partial entry.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a call as open until it is answered, dropped or cut.
struct Open(Arc<Log>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Layer for Log {
    fn call(
        self: Arc<Self>,
        call: Call,
        request: Request<Body>,
        next_client: Client,
    ) -> BoxFuture<'static, CallResult> {
        let index = {
            let mut records = self.records();
            records.push(Record { call, at: Instant::now(), code: None, broken: false });
            records.len() - 1
        };
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(self.clone());
        Box::pin(async move {
            let answer = forward(&next_client, request).await;
            let mut records = self.records();
            match &answer {
                Ok(response) => records[index].code = Some(response.status().as_u16()),
                Err(_) => records[index].broken = true,
            }
            drop(records);
            drop(open);
            answer
        })
    }
}
