//! Fills a cache: one list, then one watch for ever.
//!
//! kube's own watcher does not expose the version at which a list was read, nor bookmarks. Without these an answer of our
//! own write that arrives after a list could bring back a deleted object for ever; therefore the kit has its own loop.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kube::Resource;
use kube::api::{ListParams, Request, WatchEvent, WatchParams};
use tokio::sync::Notify;

use super::namespaces::WatchedNamespace;
use super::read::{Page, ParsedObject};
use super::{Cache, ChangeOrigin, View};
use crate::metrics::Metrics;
use crate::outages::Outages;
use crate::{Clock, Key, Random};

/// Page size, the same as in client-go.
const PAGE: u32 = 500;
/// Minimum timeout of a watch; up to a fifth is added so that restarts spread.
const WATCH_SECONDS: u32 = 240;
/// A watch without any event, not even its end, is cancelled after this time.
const SILENCE: Duration = Duration::from_secs(330);
/// Timeout for the start of an answer.
const START: Duration = Duration::from_secs(60);
/// First and longest backoff after consecutive faults.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// First backoff while rights are missing in a namespace that was never listed.
const AWAIT_RIGHTS: Duration = Duration::from_millis(50);
/// A shorter watch does not count as healthy; otherwise a server that closes connections at once would get requests without a pause.
const HEALTHY_WATCH: Duration = Duration::from_secs(1);
/// Lists with a version older than the cache come from a server that lags behind. After this number of consecutive ones, the API server was
/// restored to an older state (from a backup, for example), and the lists are correct.
const LAGGING_LISTS: u32 = 8;
/// After this number of consecutive faults, lists are no longer streamed, and a version that the server calls too new is dropped.
const FAILED_STARTS_LIMIT: u32 = 4;

/// Dependencies of a cache's reflector.
#[derive(Clone)]
pub(crate) struct Filling {
    pub clock: Clock,
    pub random: Random,
    pub metrics: Metrics,
    /// Notified when the cache is in sync.
    pub synced: Arc<Notify>,
    /// Gets the outages in which this cache is stale because the API server does not answer.
    pub outages: Outages,
}

/// A cache of any view.
pub(crate) trait Fill: Send + Sync {
    /// Fills the cache; never returns.
    fn fill(&self, filling: Filling) -> BoxFuture<'static, ()>;
    /// Whether the first list is complete.
    fn synced(&self) -> bool;
    /// Starts to deliver changes; first every object.
    fn open(&self);
    /// The kind of the objects.
    fn kind(&self) -> String;
}

impl<V: View> Fill for Cache<V> {
    fn fill(&self, filling: Filling) -> BoxFuture<'static, ()> {
        match self.inner.source.follow {
            Some(_) => super::namespaces::fill(self.clone(), filling).boxed(),
            None => Watch::new(self.clone(), filling, None).run().boxed(),
        }
    }

    fn synced(&self) -> bool {
        Cache::synced(self)
    }

    fn open(&self) {
        let mut telling = self.telling();
        telling.open = true;
        let all = self.store().all();
        telling.notify_listeners(&all, ChangeOrigin::Initial);
    }

    fn kind(&self) -> String {
        V::Object::kind(&()).into_owned()
    }
}

/// Why a watch or list failed.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the resourceVersion of the watch has expired")]
    Expired,
    #[error("the list of the API server is older than the cache")]
    Lagging,
    #[error("the API server closed the watch immediately")]
    Ended,
    #[error("timed out waiting for the API server")]
    Silent,
    #[error("{0}")]
    Failed(#[from] kube::Error),
    #[error("{}", .0.message)]
    Refused(Box<kube::core::Status>),
}

impl Fault {
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Failed(kube::Error::Api(status)) | Self::Refused(status) => Some(status),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Whether the API server did not answer: a refusal is an answer, an error of a proxy without a backend is none.
    fn is_unanswered(&self) -> bool {
        match self {
            Self::Silent => true,
            Self::Failed(kube::Error::Api(_)) | Self::Refused(_) => {
                self.status().is_some_and(|status| status.code >= 500)
            }
            Self::Failed(_) => true,
            Self::Expired | Self::Lagging | Self::Ended => false,
        }
    }

    fn why(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Lagging => "lagging",
            Self::Ended => "ended",
            Self::Silent => "silent",
            Self::Failed(kube::Error::Api(_)) | Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }
}

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<ParsedObject<K>>>>;

pub(super) struct Watch<V: View> {
    cache: Cache<V>,
    kind: String,
    filling: Filling,
    /// The namespace of the watch; `None` for a watch of all that the source covers.
    place: Option<WatchedNamespace>,
    /// Whether lists are streamed by a watch. Not every server supports it.
    streamed: bool,
    /// Version from which the watch continues; `None` if a list is needed.
    position: Option<String>,
    /// Number of consecutive faults.
    faults: u32,
    /// Whether a watch expired, and no healthy one followed.
    expired: bool,
    /// Number of consecutive lagging lists.
    lagging: u32,
    /// Whether an outage was logged and is not over.
    out: bool,
    /// Whether the API server has not answered since the fault.
    unanswered: bool,
}

impl<V: View> Drop for Watch<V> {
    fn drop(&mut self) {
        // The watch of a deleted namespace must not leave an outage that never ends.
        if self.unanswered {
            self.filling.outages.end(self.filling.clock.now());
        }
    }
}

impl<V: View> Watch<V> {
    pub(super) fn new(cache: Cache<V>, filling: Filling, place: Option<WatchedNamespace>) -> Self {
        let kind = Fill::kind(&cache);
        Self {
            cache,
            kind,
            filling,
            place,
            streamed: true,
            position: None,
            faults: 0,
            expired: false,
            lagging: 0,
            out: false,
            unanswered: false,
        }
    }

    fn namespace(&self) -> &str {
        self.place.as_ref().map_or("", |place| &place.namespace)
    }

    fn url(&self) -> String {
        match &self.place {
            Some(place) => V::Object::url_path(&(), Some(&place.namespace)),
            None => self.cache.inner.source.api.resource_url().to_owned(),
        }
    }

    /// Whether the namespace could never be listed: the RoleBinding of a new namespace may be created a moment after the namespace.
    fn awaits_rights(&self, fault: &Fault) -> bool {
        let forbidden = fault.status().is_some_and(|status| status.code == 403);
        forbidden && self.place.is_some() && !self.cache.covers(self.namespace())
    }

    pub(super) async fn run(mut self) {
        loop {
            let Err(fault) = self.round().await else { continue };
            self.faults += 1;
            self.filling.metrics.watch_restart(&self.kind, fault.why());
            if fault.is_unanswered() && !std::mem::replace(&mut self.unanswered, true) {
                self.filling.outages.begin(self.filling.clock.now());
            }
            if let Some(status) = fault.status() {
                // A version that is too new is from before the API server was restored to an older state.
                let too_new = status.code == 400 || status.message.contains("Too large resource version");
                if status.code == 410 || (too_new && self.faults > FAILED_STARTS_LIMIT) {
                    self.position = None;
                }
            }
            let expired = matches!(fault, Fault::Expired) || fault.status().is_some_and(|status| status.code == 410);
            // The next list shows whether the server is healthy; only a watch that expires again has to wait.
            if expired && !std::mem::replace(&mut self.expired, true) {
                tracing::debug!(kind = self.kind, "{fault}; listing again");
                continue;
            }
            let namespace = self.namespace();
            let awaits = self.awaits_rights(&fault);
            if self.out || (awaits && self.faults <= FAILED_STARTS_LIMIT) {
                tracing::debug!(kind = self.kind, namespace, faults = self.faults, "still cannot watch: {fault}");
            } else {
                tracing::warn!(kind = self.kind, namespace, "cannot watch: {fault}; retrying with backoff");
                self.out = true;
            }
            if let Some(place) = self.place.as_mut().filter(|_| awaits) {
                place.answered();
            }
            self.filling.clock.sleep(self.pause(&fault)).await;
        }
    }

    fn pause(&self, fault: &Fault) -> Duration {
        let first = if self.awaits_rights(fault) { AWAIT_RIGHTS } else { BACKOFF.0 };
        let doubled = first.saturating_mul(1 << (self.faults - 1).min(10)).min(BACKOFF.1);
        let asked = fault.retry_after().unwrap_or_default();
        asked + self.filling.random.jitter(doubled, 0.3)
    }

    /// Lists if needed, and watches until the watch ends.
    async fn round(&mut self) -> Result<(), Fault> {
        let events = match &self.position {
            Some(position) => {
                let events = self.start(&self.params(), position).await?;
                self.recovered();
                events
            }
            None => {
                // Thousands of namespaces must not be listed at the same moment.
                let lists = self.place.as_ref().map(|place| place.lists.clone());
                let _turn = match lists {
                    Some(lists) => lists.acquire_owned().await.ok(),
                    None => None,
                };
                match self.streamed {
                    true => self.list_streamed().await?,
                    false => return self.list_paged().await,
                }
            }
        };
        self.follow(events).await
    }

    fn params(&self) -> WatchParams {
        let seconds = WATCH_SECONDS + self.filling.random.below(u64::from(WATCH_SECONDS / 5)) as u32;
        let labels = self.cache.inner.source.labels.clone();
        WatchParams { label_selector: labels, timeout: Some(seconds), bookmarks: true, ..WatchParams::default() }
    }

    async fn start(&self, params: &WatchParams, version: &str) -> Result<Events<V::Object>, Fault> {
        let source = &self.cache.inner.source;
        let request = Request::new(self.url()).watch(params, version).map_err(kube::Error::BuildRequest)?;
        let client = source.api.clone().into_client();
        let events = self.within(START, client.request_events(request)).await??;
        Ok(events.boxed())
    }

    async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Result<T, Fault> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.filling.clock.sleep(limit) => Err(Fault::Silent),
        }
    }

    /// A streamed list: the watch sends each object once and then a bookmark.
    async fn list_streamed(&mut self) -> Result<Events<V::Object>, Fault> {
        let params = WatchParams { send_initial_events: true, ..self.params() };
        // Without a version: the most recent state.
        let mut events = match self.start(&params, "").await {
            Ok(events) => events,
            Err(fault) => {
                let unserved = fault.status().is_some_and(|status| matches!(status.code, 400 | 403 | 405 | 422));
                if unserved || self.faults >= FAILED_STARTS_LIMIT {
                    self.streamed = false;
                }
                if unserved {
                    tracing::debug!(kind = self.kind, "the API server does not support streaming lists: {fault}");
                    self.list_paged().await?;
                    let position = self.position.clone().unwrap_or_default();
                    return self.start(&self.params(), &position).await;
                }
                return Err(fault);
            }
        };
        let mut list = Vec::new();
        loop {
            let event = match self.within(START, events.next()).await {
                Ok(Some(event)) => event?,
                cut => {
                    self.streamed = self.faults < FAILED_STARTS_LIMIT;
                    return Err(cut.err().unwrap_or(Fault::Ended));
                }
            };
            match event {
                WatchEvent::Added(read) | WatchEvent::Modified(read) => list.push(self.viewed(read)),
                WatchEvent::Deleted(read) => list.retain(|(listed, _, _)| *listed != read.key),
                WatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key("k8s.io/initial-events-end") => {
                    self.listed(mark.metadata.resource_version, list)?;
                    return Ok(events);
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(Fault::Refused(status)),
            }
        }
    }

    /// A list in pages. Readers see the old state until the last page has arrived.
    async fn list_paged(&mut self) -> Result<(), Fault> {
        let source = &self.cache.inner.source;
        let client = source.api.clone().into_client();
        let mut params =
            ListParams { label_selector: source.labels.clone(), limit: Some(PAGE), ..ListParams::default() };
        let mut list = Vec::new();
        loop {
            let request = Request::new(self.url()).list(&params).map_err(kube::Error::BuildRequest)?;
            let page: Page<V::Object> = client.request(request).await?;
            list.extend(page.items.into_iter().flatten().map(|read| self.viewed(read)));
            if page.metadata.next.is_empty() {
                return self.listed(page.metadata.resource_version, list);
            }
            params.continue_token = Some(page.metadata.next);
        }
    }

    /// The view of an object; `None` if it cannot be parsed.
    fn viewed(&self, read: ParsedObject<V::Object>) -> (Key, u64, Option<V>) {
        let number = read.number();
        let view = match read.object {
            Ok(object) => Some(V::of(object)),
            Err(why) => {
                tracing::error!(kind = self.kind, object = %read.key, "cannot decode the object; keeping the cached version, if any: {why}");
                None
            }
        };
        (read.key, number, view)
    }

    fn listed(&mut self, position: String, list: Vec<(Key, u64, Option<V>)>) -> Result<(), Fault> {
        let version = position.parse().unwrap_or_default();
        let namespace = self.namespace().to_owned();
        if version < self.cache.store().seen(&namespace) {
            self.lagging += 1;
            if self.lagging < LAGGING_LISTS {
                return Err(Fault::Lagging);
            }
            tracing::warn!(
                kind = self.kind,
                version,
                "the API server was restored to an older state; replacing the cache with its list"
            );
            self.cache.store_mut().reset_scope(&namespace);
        }
        self.lagging = 0;
        self.position = Some(position);
        let count = list.len();
        self.cache.change(|store| store.listed(&namespace, version, list));
        self.filling.metrics.cache_objects(&self.kind, self.cache.len());
        self.recovered();
        match &mut self.place {
            Some(place) => place.answered(),
            None if self.cache.has_synced() => {
                tracing::debug!(kind = self.kind, objects = count, "cache is synced");
                self.filling.synced.notify_waiters();
            }
            None => {}
        }
        Ok(())
    }

    /// Applies the events of the watch until it ends.
    async fn follow(&mut self, mut events: Events<V::Object>) -> Result<(), Fault> {
        let begin = self.filling.clock.monotonic();
        loop {
            let event = self.within(SILENCE, events.next()).await;
            let lasted = self.filling.clock.monotonic().saturating_sub(begin) >= HEALTHY_WATCH;
            if lasted {
                self.faults = 0;
                self.expired = false;
            }
            let event = match event {
                Ok(Some(event)) => event?,
                Ok(None) if !lasted && self.faults > 0 => return Err(Fault::Ended),
                Ok(None) | Err(_) => {
                    // The first watch that ends at once may have been interrupted by chance; only a second one waits.
                    self.faults = u32::from(!lasted);
                    self.filling.metrics.watch_restart(&self.kind, "ended");
                    return Ok(());
                }
            };
            match event {
                WatchEvent::Added(read) | WatchEvent::Modified(read) => {
                    self.position = Some(read.version.clone());
                    let (key, version, view) = self.viewed(read);
                    self.cache.change(|store| match view {
                        Some(view) => store.applied(key, version, view).into_iter().collect(),
                        None => {
                            store.reached(&key.namespace, version);
                            Vec::new()
                        }
                    });
                }
                WatchEvent::Deleted(read) => {
                    self.position = Some(read.version.clone());
                    self.cache.change(|store| store.gone(&read.key, read.number()).into_iter().collect());
                }
                WatchEvent::Bookmark(mark) => {
                    let version = mark.metadata.resource_version.parse().unwrap_or_default();
                    self.cache.store_mut().reached(self.namespace(), version);
                    self.position = Some(mark.metadata.resource_version);
                }
                WatchEvent::Error(status) if status.code == 410 => {
                    self.position = None;
                    return Err(Fault::Expired);
                }
                WatchEvent::Error(status) => return Err(Fault::Refused(status)),
            }
            self.filling.metrics.cache_objects(&self.kind, self.cache.len());
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.out) {
            tracing::info!(kind = self.kind, "watch is established again");
        }
        if std::mem::take(&mut self.unanswered) {
            self.filling.outages.end(self.filling.clock.now());
        }
    }
}
