//! Watches: changes as a stream of JSON lines.
//!
//! A watch has no queue. It reads the store's shared history at the pace of its client: a slow client delays no other,
//! and one that falls behind the history gets 410.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use serde_json::json;
use tokio::time::Instant;

use crate::body::{self, Body};
use crate::error::ApiError;
use crate::list::{ListOptions, bookmark, wait_for};
use crate::present::{INITIAL_EVENTS_END, ResponseFormat};
use crate::registry::Resource;
use crate::request::Query;
use crate::selectors::Selectors;
use crate::store::{Cursor, Event, Object, Store, WatchError, frame};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The time between the last bookmark and the end, so that the next watch starts from a recent version.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// The duration of a watch without a timeout, up to twice as long: reconnections should not come all at once.
const SHORTEST: u64 = 1800;

/// Watches a collection or, with a name, one object, until the timeout or until `stop` resolves.
pub(crate) async fn watch(
    store: &Store,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    query: &Query,
    view: &ResponseFormat,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    let options = ListOptions::read(query, resource, name, true)?;
    view.check_stream()?;
    let revision = options.revision().map_err(|error| ApiError::new(500, "", error.to_string()))?;
    let deadline = Instant::now() + duration(options.timeout);
    let scope = Scope { namespace: namespace.into(), selectors: options.selectors.clone() };
    // For a valid request the real server answers 200 and puts errors into the stream.
    let stream = match start(store, resource, &scope, &options, revision).await {
        Ok((cursor, initial)) => {
            let watcher = Watcher {
                resource: resource.clone(),
                view: view.clone(),
                scope,
                cursor,
                initial: initial.into_iter(),
                end_mark: options.bookmarks && options.send_initial == Some(true),
                headed: false,
                frames: VecDeque::new(),
                ended: false,
                deadline,
                bookmark: options.bookmarks.then(|| next_bookmark(deadline)).flatten(),
                stop: Box::pin(stop),
            };
            body::stream(futures::stream::unfold(watcher, Watcher::step))
        }
        Err(error) => body::full(error_frame(&error)),
    };
    Ok(body::respond(200, "application/json", stream))
}

/// The start position in the history, and the initial objects before it.
async fn start(
    store: &Store,
    resource: &Resource,
    scope: &Scope,
    options: &ListOptions,
    revision: u64,
) -> Result<(Cursor, Vec<Arc<Object>>), ApiError> {
    let gone = |error: crate::store::Compacted| ApiError::expired(error.to_string());
    if options.send_initial == Some(true) {
        wait_for(store, revision).await?;
        let namespace = Some(&*scope.namespace).filter(|namespace| !namespace.is_empty());
        let page =
            store.page(&resource.storage, namespace, None, None, 0, |object| scope.covers(object)).map_err(gone)?;
        let cursor = store.watch(&resource.storage, page.revision).map_err(gone)?;
        return Ok((cursor, page.objects));
    }
    let from = if revision == 0 { store.revision() } else { revision };
    Ok((store.watch(&resource.storage, from).map_err(gone)?, Vec::new()))
}

fn duration(timeout: Option<i64>) -> Duration {
    match timeout {
        None | Some(0) => {
            let random = uuid::Uuid::new_v4().as_u64_pair().0;
            Duration::from_secs(SHORTEST + random % SHORTEST)
        }
        // A year counts as for ever, and no clock overflows on it.
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(365 * 86_400)),
    }
}

fn next_bookmark(deadline: Instant) -> Option<Instant> {
    let now = Instant::now();
    let last = deadline.checked_sub(LAST_BOOKMARK).filter(|last| *last > now)?;
    Some(last.min(now + BOOKMARK_EVERY))
}

fn error_frame(error: &ApiError) -> Bytes {
    frame("ERROR", error.status().to_string().as_bytes())
}

/// The objects that a watch selects.
struct Scope {
    namespace: Box<str>,
    selectors: Selectors,
}

impl Scope {
    fn covers(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || *self.namespace == *object.key.namespace) && self.selectors.matches(object)
    }
}

struct Watcher {
    resource: Arc<Resource>,
    view: ResponseFormat,
    scope: Scope,
    cursor: Cursor,
    /// The initial objects that are not sent yet.
    initial: std::vec::IntoIter<Arc<Object>>,
    /// Whether a bookmark must mark the end of the initial objects.
    end_mark: bool,
    /// Whether a table's columns were sent.
    headed: bool,
    frames: VecDeque<Bytes>,
    ended: bool,
    deadline: Instant,
    bookmark: Option<Instant>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Watcher {
    /// The next line, and the watcher after it.
    async fn step(mut self) -> Option<(Bytes, Self)> {
        loop {
            if let Some(line) = self.ready() {
                return Some((line, self));
            }
            if self.ended {
                return None;
            }
            let alarm = self.bookmark.unwrap_or(self.deadline).min(self.deadline);
            tokio::select! {
                biased;
                () = &mut self.stop => return None,
                () = tokio::time::sleep_until(alarm) => {
                    if Instant::now() >= self.deadline {
                        return None;
                    }
                    self.mark_progress();
                }
                batch = self.cursor.next() => match batch {
                    Ok(batch) => self.queue(&batch.events),
                    Err(lost) => self.end_with_error(lost),
                },
            }
        }
    }

    /// A line that is available without waiting.
    fn ready(&mut self) -> Option<Bytes> {
        if let Some(object) = self.initial.next() {
            return Some(self.initial_line(&object));
        }
        if std::mem::take(&mut self.end_mark) {
            let mut value = bookmark(&self.resource, self.cursor.seen());
            value["metadata"]["annotations"] = json!({INITIAL_EVENTS_END: "true"});
            return Some(self.line("BOOKMARK", &value));
        }
        let line = self.frames.pop_front();
        if self.frames.is_empty() {
            // Thousands of idle watches should not each keep the memory of their busiest moment.
            self.frames = VecDeque::new();
        }
        line
    }

    fn initial_line(&mut self, object: &Object) -> Bytes {
        if self.view.whole() {
            return frame("ADDED", &self.resource.present(object));
        }
        let value = self.resource.value(object);
        self.line("ADDED", &value)
    }

    fn line(&mut self, kind: &str, value: &serde_json::Value) -> Bytes {
        let first = !std::mem::replace(&mut self.headed, true);
        frame(kind, self.view.watched(&self.resource, value, first).to_string().as_bytes())
    }

    fn queue(&mut self, events: &[Arc<Event>]) {
        for event in events {
            if let Some(line) = self.event_line(event) {
                self.frames.push_back(line);
            }
        }
    }

    fn event_line(&mut self, event: &Event) -> Option<Bytes> {
        let event_type = event.event_type_for(|object| self.scope.covers(object))?;
        let object = event.stored_object(event_type)?;
        if self.view.whole() && matches!(self.resource.present(object), Cow::Borrowed(_)) {
            return event.frame(event_type);
        }
        let value = self.resource.value(&*event.object_to_send(event_type)?);
        Some(self.line(event_type.as_str(), &value))
    }

    /// Sends a bookmark with the revision up to which the client has seen everything, after the pending events.
    fn mark_progress(&mut self) {
        match self.cursor.poll_changes() {
            Ok(batch) => {
                self.queue(&batch.events);
                let value = bookmark(&self.resource, batch.progress);
                let line = self.line("BOOKMARK", &value);
                self.frames.push_back(line);
                self.bookmark = next_bookmark(self.deadline);
            }
            Err(lost) => self.end_with_error(lost),
        }
    }

    fn end_with_error(&mut self, lost: WatchError) {
        self.ended = true;
        if let WatchError::Compacted(gone) = lost {
            self.frames.push_back(error_frame(&ApiError::expired(gone.to_string())));
        }
    }
}

#[cfg(test)]
mod tests;
