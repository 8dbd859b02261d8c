//! Fills a cache: one list, then one watch for ever.
//!
//! kube's own watcher keeps to itself at which version a list was read and what bookmarks say. Without those an answer of our
//! own write that comes after a list could bring back an object that is gone, for ever; so the loop is our own.

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

/// The size of a page, as client-go has it.
const PAGE: u32 = 500;
/// For how long the server keeps a watch open, at least; up to a fifth is added so that restarts spread.
const WATCH_SECONDS: u32 = 240;
/// A watch that says nothing for so long, not even that it ends, is cut off.
const SILENCE: Duration = Duration::from_secs(330);
/// For how long the server may take to begin an answer.
const START: Duration = Duration::from_secs(60);
/// The first and the longest wait after faults in a row.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The first wait for rights in a namespace that was never listed.
const AWAIT_RIGHTS: Duration = Duration::from_millis(50);
/// A watch that lasted less than this does not show that the server is well, or one that hangs up again and again would be asked without a pause.
const HEALTHY_WATCH: Duration = Duration::from_secs(1);
/// Lists older than what was seen already come from a server that lags behind. After so many of them in a row, the API server was set
/// back (restored from a backup, say), and they are the truth.
const LAGGING_LISTS: u32 = 8;
/// After so many faults in a row, lists are no longer streamed, and a version that the server calls too new is given up.
const FAILED_STARTS_LIMIT: u32 = 4;

/// What fills a cache besides the API server.
#[derive(Clone)]
pub(crate) struct Filling {
    pub clock: Clock,
    pub random: Random,
    pub metrics: Metrics,
    /// Woken when the cache has become full.
    pub synced: Arc<Notify>,
    /// Told of when this cache is not kept up to date because the API server does not answer.
    pub outages: Outages,
}

/// A cache of any view.
pub(crate) trait Fill: Send + Sync {
    /// Fills it; never returns.
    fn fill(&self, filling: Filling) -> BoxFuture<'static, ()>;
    /// Whether the first list is complete.
    fn synced(&self) -> bool;
    /// Begins to tell changes; first every object.
    fn open(&self);
    /// Of what kind the objects are.
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

/// Why a watch or list ended otherwise than it should.
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

    /// Whether the API server did not answer: a refusal is an answer, one of a proxy before a server that is gone is none.
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
    /// The namespace that it watches; none for all that the source reaches.
    place: Option<WatchedNamespace>,
    /// Whether lists are streamed by a watch. Not every server does.
    streamed: bool,
    /// Where to go on from; none if a list is needed.
    position: Option<String>,
    /// In a row.
    faults: u32,
    /// Whether a watch expired, and none has lasted since.
    expired: bool,
    /// In a row.
    lagging: u32,
    /// Whether an outage was logged and has not ended.
    out: bool,
    /// Whether the API server does not answer since.
    unanswered: bool,
}

impl<V: View> Drop for Watch<V> {
    fn drop(&mut self) {
        // The watch of a namespace that is gone must not leave an outage that never ends.
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

    /// Whether it was never allowed to list its namespace: the RoleBinding that a new namespace gets may come a moment after the namespace.
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
                // A version that is too new is one from before the API server was set back.
                let too_new = status.code == 400 || status.message.contains("Too large resource version");
                if status.code == 410 || (too_new && self.faults > FAILED_STARTS_LIMIT) {
                    self.position = None;
                }
            }
            let expired = matches!(fault, Fault::Expired) || fault.status().is_some_and(|status| status.code == 410);
            // The list that follows tells whether the server is well; only one that expires again has to wait.
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
                // Thousands of namespaces must not be listed in the same moment.
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

    /// A list as the beginning of a watch: the server sends each object once and says when that was all.
    async fn list_streamed(&mut self) -> Result<Events<V::Object>, Fault> {
        let params = WatchParams { send_initial_events: true, ..self.params() };
        // No version: as new as can be.
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

    /// A list in pages. Readers see what was before until the last page is here.
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

    /// What the cache keeps of an object; none if it cannot be read.
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

    /// Takes what the watch tells until it ends.
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
                    // The first that ends at once may have been cut by chance; only a second one waits.
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
