//! Publishes deduplicated Events.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Resource};
use tokio::sync::Notify;

use crate::client::{CallError, retry_after};
use crate::metrics::Metrics;
use crate::{Clock, Key};

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// For information.
    Normal,
    /// Needs attention.
    Warning,
}

impl Level {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Reference to the object with that key, and its uid if it is known.
pub fn reference<K: Resource<DynamicType = ()>>(key: &Key, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: (!key.namespace.is_empty()).then(|| key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: uid.map(ToOwned::to_owned),
        ..ObjectReference::default()
    }
}

/// Time in which an Event is not sent again, even if the server has dropped it. Servers keep Events for an hour.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(3600);
/// Maximum number of remembered Events, and of queued ones.
const MAX_REMEMBERED: usize = 8192;
const MAX_WAITING: usize = 1024;
/// Interval between Events after an initial burst: a fleet that fails at once must not
/// overload the API server with Events.
const SEND_INTERVAL: Duration = Duration::from_millis(100);
const BURST: u32 = 50;
/// Number of attempts for an Event, and the wait between them.
const TRIES: u32 = 3;
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum length of a message in the API.
const MAX_MESSAGE: usize = 1024;

/// Publishes Events about objects. The same Event about the same object is published once, also across restarts:
/// its name is a hash of its content. Never fails a pass and never blocks it: Events are sent in the background, a bounded number of
/// them at a bounded rate, and an Event that cannot be written is logged.
#[derive(Clone)]
pub struct Events {
    inner: Arc<Inner>,
}

struct Inner {
    client: kube::Client,
    clock: Clock,
    metrics: Metrics,
    reporter: String,
    instance: String,
    state: Mutex<State>,
    news: Notify,
    /// Notified when the queue is empty.
    sent: Notify,
}

#[derive(Default)]
struct State {
    /// Time of each published Event, oldest first.
    said: VecDeque<(Duration, u64)>,
    known: HashSet<u64>,
    waiting: VecDeque<QueuedEvent>,
    sending: bool,
    /// Whether the sender waits for the clock, to respect the rate or to retry.
    asleep: bool,
    dropped: u64,
}

struct QueuedEvent {
    event: Event,
    reason: &'static str,
    level: Level,
}

impl Events {
    pub(crate) fn new(client: kube::Client, clock: Clock, metrics: Metrics, reporter: &str, instance: &str) -> Self {
        let (reporter, instance) = (reporter.to_owned(), instance.chars().take(128).collect());
        let inner = Inner {
            client,
            clock,
            metrics,
            reporter,
            instance,
            state: Mutex::default(),
            news: Notify::new(),
            sent: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Publishes an Event. `once_for` separates occurrences, such as a transition time.
    pub async fn publish(
        &self,
        about: &ObjectReference,
        level: Level,
        reason: &'static str,
        message: &str,
        once_for: &str,
    ) {
        self.put(about, level, reason, message, once_for);
    }

    pub(crate) fn put(
        &self,
        about: &ObjectReference,
        level: Level,
        reason: &'static str,
        message: &str,
        once_for: &str,
    ) {
        let said =
            fingerprint(&(&about.kind, &about.namespace, &about.name, &about.uid, level, reason, message, once_for));
        let now = self.inner.clock.monotonic();
        let mut state = self.state();
        while let Some((when, old)) = state.said.front().copied() {
            if now.saturating_sub(when) < DEDUPLICATION_WINDOW && state.said.len() < MAX_REMEMBERED {
                break;
            }
            state.said.pop_front();
            state.known.remove(&old);
        }
        if !state.known.insert(said) {
            return;
        }
        state.said.push_back((now, said));
        if state.waiting.len() >= MAX_WAITING {
            state.dropped += 1;
            if state.dropped.is_power_of_two() {
                tracing::warn!(dropped = state.dropped, "too many Events to send; dropping some");
            }
            return;
        }
        let event = self.event(about, level, reason, message, said);
        state.waiting.push_back(QueuedEvent { event, reason, level });
        drop(state);
        self.inner.news.notify_one();
    }

    fn event(&self, about: &ObjectReference, level: Level, reason: &str, message: &str, said: u64) -> Event {
        let now: Timestamp = self.inner.clock.now();
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        // Names of objects may have 253 characters, and so may those of events.
        let name: String = about.name.as_deref().unwrap_or("object").chars().take(230).collect();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{said:016x}", name.trim_end_matches(['.', '-']))),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(level.as_str().to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(MAX_MESSAGE).collect()),
            action: Some(reason.to_owned()),
            event_time: Some(MicroTime(now)),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            source: Some(EventSource { component: Some(self.inner.reporter.clone()), host: None }),
            reporting_component: Some(self.inner.reporter.clone()),
            reporting_instance: Some(self.inner.instance.clone()),
            ..Event::default()
        }
    }

    /// Whether the queue is empty now.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.asleep || (state.waiting.is_empty() && !state.sending)
    }

    /// Returns when all Events were sent.
    pub(crate) async fn sent(&self) {
        loop {
            let mut woken = pin!(self.inner.sent.notified());
            woken.as_mut().enable();
            let nothing = {
                let state = self.state();
                state.waiting.is_empty() && !state.sending
            };
            if nothing {
                return;
            }
            woken.await;
        }
    }

    async fn sleep(&self, duration: Duration) {
        self.state().asleep = true;
        self.inner.clock.sleep(duration).await;
        self.state().asleep = false;
    }

    /// Sends queued Events; never returns.
    pub(crate) async fn send(self) {
        let mut left = BURST;
        let mut refilled = self.inner.clock.monotonic();
        loop {
            let next = {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                state.sending = next.is_some();
                next
            };
            let Some(next) = next else {
                self.inner.sent.notify_waiters();
                self.inner.news.notified().await;
                continue;
            };
            let now = self.inner.clock.monotonic();
            let refill = (now.saturating_sub(refilled).as_millis() / SEND_INTERVAL.as_millis()) as u32;
            if refill > 0 {
                left = left.saturating_add(refill).min(BURST);
                refilled = now;
            }
            if left == 0 {
                self.sleep(SEND_INTERVAL).await;
            }
            left = left.saturating_sub(1);
            self.send_one(next).await;
        }
    }

    async fn send_one(&self, QueuedEvent { event, reason, level }: QueuedEvent) {
        let api: Api<Event> =
            Api::namespaced(self.inner.client.clone(), event.metadata.namespace.as_deref().unwrap_or("default"));
        for attempt in 1..=TRIES {
            let error = match api.create(&PostParams::default(), &event).await {
                Ok(_) => {
                    self.inner.metrics.event(reason, level.as_str());
                    return;
                }
                // The Event exists: this process before a restart, or another replica, has published it.
                Err(kube::Error::Api(status)) if status.is_already_exists() => return,
                Err(error) => error,
            };
            let lost = matches!(&error, kube::Error::Api(status) if status.code < 500 && status.code != 429);
            let fenced = CallError::of(&error) == Some(CallError::Fenced);
            if lost || fenced || attempt == TRIES {
                let about = event.involved_object.name.as_deref().unwrap_or_default();
                tracing::warn!(object = about, reason, "cannot write the Event: {error}");
                return;
            }
            self.sleep(retry_after(&error).unwrap_or(RETRY_INTERVAL)).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same hash for the same text in every process: the name of an Event contains it.
fn fingerprint(said: &impl Hash) -> u64 {
    /// FNV-1a. The standard library does not promise that its own hasher stays the same.
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    said.hash(&mut hasher);
    hasher.finish()
}
