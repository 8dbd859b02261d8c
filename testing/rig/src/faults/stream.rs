//! The body of a watch, line by line, so that faults can happen between lines and within them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::{Either, select};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use jiff::Timestamp;

use super::{Initial, State};
use crate::layer::{BoxError, Reply, broken};

/// The faults of one watch.
#[derive(Default)]
pub(super) struct Plan {
    /// Ends after this number of lines, in the middle of the next one, with an error.
    pub(super) cut: Option<(usize, bool, bool)>,
    /// Delays each line by this time.
    pub(super) slow: Option<Duration>,
    /// Recorded lines that are sent first.
    pub(super) first: VecDeque<Bytes>,
    /// Records the initial events under this name.
    pub(super) keep_as: Option<String>,
}

struct Lines {
    inner: Reply,
    buffer: BytesMut,
    plan: Plan,
    state: Arc<State>,
    sent: usize,
    kept: Vec<Bytes>,
    /// The lines that a slow watch delays, each with its time; the last entry may be the end.
    held: VecDeque<(Timestamp, Option<Result<Bytes, BoxError>>)>,
    over: bool,
}

/// The body with this plan; an outage cuts it.
pub(super) fn watched(inner: Reply, plan: Plan, state: Arc<State>) -> Reply {
    let lines = Lines {
        inner,
        buffer: BytesMut::new(),
        plan,
        state,
        sent: 0,
        kept: Vec::new(),
        held: VecDeque::new(),
        over: false,
    };
    let stream = futures::stream::unfold(lines, |mut lines| async move {
        let next = lines.next().await?;
        Some((next.map(Frame::data), lines))
    });
    StreamBody::new(stream).boxed_unsync()
}

impl Lines {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if self.over {
            return None;
        }
        let next = match self.plan.slow {
            None => self.line().await,
            Some(late) => self.late_line(late).await,
        };
        let line = match next {
            Some(Ok(line)) => line,
            end => {
                self.over = true;
                return end;
            }
        };
        self.keep(&line);
        match self.plan.cut {
            Some((events, inside, error)) if events == self.sent => {
                self.over = true;
                match (inside, error) {
                    (true, _) => Some(Ok(line.slice(..line.len() / 2))),
                    (false, true) => Some(Err(broken("the watch was cut"))),
                    (false, false) => None,
                }
            }
            _ => {
                self.sent += 1;
                Some(Ok(line))
            }
        }
    }

    /// The next line, after its delay. Further lines are read meanwhile: each event is late by the same time, and the delays do not add up.
    async fn late_line(&mut self, late: Duration) -> Option<Result<Bytes, BoxError>> {
        let state = self.state.clone();
        loop {
            let due = self.held.front().map(|(due, _)| *due);
            let ended = self.held.back().is_some_and(|(_, line)| !matches!(line, Some(Ok(_))));
            let wait = async {
                match due {
                    Some(due) => state.clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wait => return self.held.pop_front().and_then(|(_, line)| line),
                () = state.outage() => return Some(Err(broken("the API server is gone"))),
                line = self.line(), if !ended => {
                    let due = state.clock.now().checked_add(late).unwrap_or(Timestamp::MAX);
                    self.held.push_back((due, line));
                }
            }
        }
    }

    /// The next whole line, with its line end. Data that was read is kept when the future is dropped.
    async fn line(&mut self) -> Option<Result<Bytes, BoxError>> {
        if let Some(line) = self.plan.first.pop_front() {
            return Some(Ok(line));
        }
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Some(Ok(self.buffer.split_to(end + 1).freeze()));
            }
            let frame = {
                let outage = std::pin::pin!(self.state.outage());
                match select(self.inner.frame(), outage).await {
                    Either::Left((frame, _)) => frame,
                    Either::Right(_) => return Some(Err(broken("the API server is gone"))),
                }
            };
            match frame {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
                Some(Err(error)) => return Some(Err(error)),
                // A last line without a line end is passed on unchanged.
                None if self.buffer.is_empty() => return None,
                None => return Some(Ok(self.buffer.split().freeze())),
            }
        }
    }

    /// Records the initial events once they are complete.
    fn keep(&mut self, line: &Bytes) {
        if self.plan.keep_as.is_none() {
            return;
        }
        self.kept.push(line.clone());
        let event: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        let meta = &event["object"]["metadata"];
        if event["type"] == "BOOKMARK" && meta["annotations"]["k8s.io/initial-events-end"] == "true" {
            let version = meta["resourceVersion"].as_str().unwrap_or_default().to_owned();
            let lines = std::mem::take(&mut self.kept);
            if let Some(name) = self.plan.keep_as.take() {
                self.state.keep_initial(name, Initial { lines, version });
            }
        }
    }
}

impl State {
    /// Returns when an outage starts.
    pub(super) async fn outage(&self) {
        let mut outage = self.outage.subscribe();
        loop {
            let known = *outage.borrow_and_update();
            match known {
                Some(known) if known.contains(self.clock.now()) => return,
                Some(known) if self.clock.now() < known.from => {
                    tokio::select! {
                        () = self.clock.sleep_until(known.from) => {}
                        _ = outage.changed() => {}
                    }
                }
                // `self` owns the sender: the wait ends by a change only.
                _ => drop(outage.changed().await),
            }
        }
    }
}
