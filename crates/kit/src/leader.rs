//! Leader election with a Lease.
//!
//! # Expected flow
//! [`Leader::run`] waits until the Lease is free, takes it, renews it every third of its duration, and releases it when `stop` is
//! ready. Observers of its state see [`Leading`]; clients ask the [`Fence`] before they write.
//!
//! # Guarantees
//! - The fence holds only while no other process can have taken the lease: the fence ends a margin (a tenth of the duration) before the lease,
//!   counted from the moment before the last request that is known to have renewed it was sent.
//! - The lease of another holder is taken only when it was released, or when it was unchanged for its whole duration by *our* monotonic
//!   clock. Times written by others are never compared with ours: clocks of different hosts may differ by any amount.
//! - Each write of the Lease carries the resourceVersion it was decided on; of two concurrent writes, one succeeds.
//! - A process that was paused finds its fence ended. It continues to lead only if its renewal is accepted, that is if no other
//!   process took the lease in the meantime.
//! - A clean stop releases the lease, and standby processes watch it: the hand-over takes milliseconds.
//!
//! # Assumptions
//! - Clocks of different hosts run at the same speed, within a tenth.
//! - Identities differ between processes that run at the same time. A process that starts with the identity of the holder takes the lease at once,
//!   so that a restarted process need not wait for itself.
//! - The Lease is not deleted. If it is, the leader recreates it, and processes that saw the old lease wait as if it still existed; a
//!   process that has just started cannot know about it, and may lead at once.
//!
//! # Permissions
//! Those of [`rules`]: `get`, `watch` and `update` on the Lease of that name, and `create` on `leases.coordination.k8s.io` in its namespace. Without
//! `watch` a hand-over takes as long as a renewal.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease as Record, LeaseSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use tokio::sync::watch;

use crate::client::Fence;
use crate::metrics::Metrics;
use crate::rights::rule;
use crate::{Clock, Random};

/// The rights that [`Leader::run`] needs in the namespace of the Lease with that name. An account with them cannot read or change the Lease of another
/// operator. It can create one that does not exist: RBAC does not know the name of an object that is created.
pub fn rules(name: &str) -> Vec<PolicyRule> {
    const GROUP: &str = "coordination.k8s.io";
    let named = Some(vec![name.to_owned()]);
    vec![
        // A watch is allowed because its field selector names the Lease.
        PolicyRule { resource_names: named, ..rule(GROUP, &["leases"], &["get", "watch", "update"]) },
        rule(GROUP, &["leases"], &["create"]),
    ]
}

/// The lease that an operator holds while it leads.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The namespace of the Lease object.
    pub namespace: String,
    /// Name of the Lease object.
    pub name: String,
    /// Identity of this process; must differ between processes.
    pub identity: String,
    /// Time for which other processes respect a lease that is not renewed.
    pub duration: Duration,
}

impl Lease {
    /// Time between the end of the fence and the end of the lease.
    fn margin(&self) -> Duration {
        (self.duration / 10).max(Duration::from_millis(100))
    }

    /// Time for which a renewal holds, from the moment before it is sent.
    fn lasts(&self) -> Duration {
        self.duration.saturating_sub(self.margin())
    }

    /// Duration in whole seconds, rounded up: other processes then wait longer, never shorter.
    fn seconds(&self) -> i32 {
        let seconds = self.duration.as_secs() + u64::from(self.duration.subsec_nanos() > 0);
        i32::try_from(seconds.max(1)).unwrap_or(i32::MAX)
    }
}

/// Whether this process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leading {
    /// Another process leads, or none yet.
    Standby {
        /// Last known holder of the lease.
        holder: Option<String>,
    },
    /// This process leads.
    Leading,
    /// This process has led, and may not lead any more. The state is final.
    Lost {
        /// Reason of the loss.
        why: String,
    },
}

/// The lease was lost; the process should exit and restart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {lease}: {why}")]
pub struct LeaseLost {
    /// The lease, as `namespace/name`.
    pub lease: String,
    /// Reason of the loss.
    pub why: String,
}

/// Acquires, renews and releases the lease.
pub struct Leader {
    api: Api<Record>,
    lease: Lease,
    clock: Clock,
    random: Random,
    fence: Fence,
    metrics: Metrics,
    state: watch::Sender<Leading>,
}

/// The lease of another holder, and since when it is unchanged.
struct ObservedLease {
    spec: LeaseSpec,
    since: Duration,
}

/// The moment before a request was sent.
#[derive(Clone, Copy)]
struct RequestStart {
    monotonic: Duration,
    wall: Timestamp,
}

/// Why the lease was not acquired or renewed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    /// Another process took the lease first.
    #[error("{0}")]
    TakenByOther(String),
    /// The outcome is unknown.
    #[error("{0}")]
    Unknown(String),
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> Self {
        // Not 404: that is also what creating a lease in a namespace that does not exist gets.
        let faster = matches!(&error, kube::Error::Api(status) if status.code == 409);
        if faster { Self::TakenByOther(error.to_string()) } else { Self::Unknown(error.to_string()) }
    }
}

/// Whether the object changed since it was read.
fn overtaken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

/// Annotation of Leases that older versions wrote: a fencing token from the wall clock. It is removed.
const OLD_FENCE: &str = "fleetwright.io/fence";

/// The fencing token of the leader whose write made that version of the Lease: see [`Fence::number`]. The API server counts resourceVersions up
/// with every write, also when the Lease was deleted in between, so each leader has a higher one than all before.
fn fencing_token(held: &Record) -> Result<u64, LeaseError> {
    let version = held.metadata.resource_version.as_deref().unwrap_or_default();
    let token = version.parse::<u64>().ok().filter(|token| *token > 0);
    token.ok_or_else(|| {
        LeaseError::Unknown(format!(
            "the resourceVersion {version:?} of the lease is not a number, so there is no fencing token"
        ))
    })
}

fn holder(record: &Record) -> Option<&str> {
    record.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// Longest wait before the lease is read again.
const MAX_RETRY: Duration = Duration::from_secs(1);

/// Timeout of each call that releases the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.lease.namespace, self.lease.name)
    }
}

/// Closes the fence, however [`Leader::run`] ends.
struct CloseFenceOnDrop<'a>(&'a Leader);

impl Drop for CloseFenceOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fence.close();
        self.0.metrics.leading(false);
    }
}

impl Leader {
    /// A leader for that lease. The client must not use the fence, which opens only when the lease is held; all other clients use
    /// `fence`.
    pub fn new(
        client: kube::Client,
        lease: Lease,
        clock: Clock,
        random: Random,
        fence: Fence,
        metrics: Metrics,
    ) -> Self {
        fence.close();
        metrics.leading(false);
        let api = Api::namespaced(client, &lease.namespace);
        let state = watch::Sender::new(Leading::Standby { holder: None });
        Self { api, lease, clock, random, fence, metrics, state }
    }

    /// Receiver of the leadership state.
    pub fn watch(&self) -> watch::Receiver<Leading> {
        self.state.subscribe()
    }

    /// Acquires and renews the lease until `stop` is ready, then releases it. `stop` should be ready only when no write is in
    /// progress. If the future is dropped, the fence closes and the lease expires.
    ///
    /// # Errors
    /// When the lease was held and is lost.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), LeaseLost> {
        let _end = CloseFenceOnDrop(&self);
        let mut stop = pin!(stop);
        let (mut held, sent) = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            taken = self.take() => taken,
        };
        tracing::info!(lease = %self, identity = self.lease.identity, "leading");
        self.metrics.leading(true);
        self.state.send_replace(Leading::Leading);
        let why = tokio::select! {
            biased;
            () = &mut stop => None,
            why = self.keep(&mut held, sent) => Some(why),
        };
        self.fence.close();
        self.metrics.leading(false);
        let Some(why) = why else {
            self.release_lease(held).await;
            self.state.send_replace(Leading::Standby { holder: None });
            return Ok(());
        };
        tracing::error!(lease = %self, why, "the lease was lost");
        self.state.send_replace(Leading::Lost { why: why.clone() });
        Err(LeaseLost { lease: self.to_string(), why })
    }

    /// Waits until the lease can be acquired, and acquires it.
    async fn take(&self) -> (Record, RequestStart) {
        let mut seen = None;
        let mut said = String::new();
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(Some(taken)) => return taken,
                Ok(None) => continue,
                Err(LeaseError::TakenByOther(why)) => {
                    tracing::debug!(lease = %self, why, "another process acquired the lease first")
                }
                // One log entry for each reason, not for each attempt.
                Err(LeaseError::Unknown(why)) if why == said => {}
                Err(LeaseError::Unknown(why)) => {
                    tracing::warn!(lease = %self, why, "cannot acquire the lease");
                    said = why;
                }
            }
            self.clock.sleep(self.random.jitter(self.lease.duration / 5, 0.5).min(MAX_RETRY)).await;
        }
    }

    /// Reads the lease, follows it until it can be acquired, and tries to acquire it. `None`: try again.
    async fn try_acquire(
        &self,
        seen: &mut Option<ObservedLease>,
    ) -> Result<Option<(Record, RequestStart)>, LeaseError> {
        let third = self.lease.duration / 3;
        let mut record = self.limited(third, self.api.get_opt(&self.lease.name)).await?;
        if self.free_at(record.as_ref(), seen) > self.clock.monotonic() {
            match self.follow(record, seen).await {
                Some(free) => record = free,
                None => return Ok(None),
            }
        }
        let sent = self.sent();
        let spec = self.taken(record.as_ref().and_then(|record| record.spec.clone()), sent.wall);
        let held = self.limited(third, self.put(record.map(|record| record.metadata), spec)).await?;
        self.fence.set_number(fencing_token(&held)?);
        self.hold(sent);
        Ok(Some((held, sent)))
    }

    /// Watches the lease until it can be acquired. `None`: read it again, because it expired or the watch ended.
    async fn follow(&self, mut record: Option<Record>, seen: &mut Option<ObservedLease>) -> Option<Option<Record>> {
        let third = self.lease.duration / 3;
        let version = record.as_ref().and_then(|record| record.metadata.resource_version.clone());
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.lease.name));
        let opened = self.limited(third, self.api.watch(&only, version.as_deref().unwrap_or("0"))).await;
        let (mut changes, pause) = match opened {
            Ok(changes) => (changes.boxed(), third.min(MAX_RETRY)),
            Err(error) => {
                tracing::debug!(lease = %self, %error, "cannot watch the lease; polling it");
                (futures::stream::empty().boxed(), third)
            }
        };
        loop {
            let now = self.clock.monotonic();
            let free = self.free_at(record.as_ref(), seen);
            if free <= now {
                return Some(record);
            }
            self.standby(record.as_ref().and_then(holder));
            let change = tokio::select! {
                () = self.clock.sleep(free - now) => return None,
                change = changes.next() => change,
            };
            match change {
                Some(Ok(WatchEvent::Added(new) | WatchEvent::Modified(new))) => record = Some(new),
                Some(Ok(WatchEvent::Deleted(_))) => record = None,
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                    self.clock.sleep(self.random.jitter(pause, 0.2).min(free - now)).await;
                    return None;
                }
            }
        }
    }

    /// When the lease can be acquired, by our monotonic clock.
    fn free_at(&self, record: Option<&Record>, seen: &mut Option<ObservedLease>) -> Duration {
        let now = self.clock.monotonic();
        // The Lease was deleted: its holder does not know yet, so the last observed Lease counts.
        if let Some(record) = record {
            match (holder(record), &record.spec) {
                (Some(_), Some(spec)) if seen.as_ref().is_none_or(|seen| seen.spec != *spec) => {
                    *seen = Some(ObservedLease { spec: spec.clone(), since: now });
                }
                (Some(_), _) => {}
                (None, _) => *seen = None,
            }
        }
        let Some(seen) = seen else { return now };
        if seen.spec.holder_identity.as_deref() == Some(&self.lease.identity) {
            return now;
        }
        let theirs = seen.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seen.since + theirs.map_or(self.lease.duration, Duration::from_secs)
    }

    /// Renews the lease until a renewal fails, and returns the reason.
    async fn keep(&self, held: &mut Record, mut sent: RequestStart) -> String {
        let third = self.lease.duration / 3;
        loop {
            let renewed = self.clock.monotonic().saturating_sub(sent.monotonic);
            self.clock.sleep(third.saturating_sub(renewed)).await;
            let end = sent.monotonic + self.lease.lasts();
            sent = loop {
                let left = end.saturating_sub(self.clock.monotonic());
                // After a pause the time is already over. One attempt is allowed: if no other process took the lease, this one continues to lead.
                let limit = if left.is_zero() { third } else { left.min(third) };
                let why = match self.limited(limit, self.renew(held)).await {
                    Ok(sent) => break sent,
                    Err(LeaseError::TakenByOther(why)) => return why,
                    Err(LeaseError::Unknown(why)) => why,
                };
                let left = end.saturating_sub(self.clock.monotonic());
                let pause = self.random.jitter(self.lease.duration / 15, 0.2);
                self.clock.sleep(pause.min(left)).await;
                if self.clock.monotonic() >= end {
                    return format!("could not be renewed for {:?}: {why}", self.lease.lasts());
                }
                tracing::warn!(lease = %self, why, "cannot renew the lease");
            };
            self.hold(sent);
        }
    }

    /// Renews the lease once, or finds out who holds it.
    async fn renew(&self, held: &mut Record) -> Result<RequestStart, LeaseError> {
        let mut meta = Some(held.metadata.clone());
        let acquired = held.spec.as_ref().and_then(|spec| spec.acquire_time.clone());
        let mut why = String::new();
        // Once our lease could have expired, nothing is sent before a read shows that it is still ours.
        let mut look = !self.fence.holds(&self.clock);
        for _ in 0..3 {
            if std::mem::replace(&mut look, true) {
                let record = self.api.get_opt(&self.lease.name).await?;
                match record.as_ref().map(holder) {
                    None => {}
                    Some(Some(holder)) if holder != self.lease.identity => {
                        return Err(LeaseError::TakenByOther(format!("{holder} holds the lease now")));
                    }
                    Some(None) => return Err(LeaseError::TakenByOther("another process released the lease".into())),
                    Some(Some(_)) => {
                        let spec = record.as_ref().and_then(|record| record.spec.as_ref());
                        if spec.and_then(|spec| spec.acquire_time.clone()) != acquired {
                            return Err(LeaseError::TakenByOther(format!(
                                "another process holds the lease with the same identity {}",
                                self.lease.identity
                            )));
                        }
                    }
                }
                meta = record.map(|record| record.metadata);
            }
            let sent = self.sent();
            let spec = self.renewed(held.spec.clone().unwrap_or_default(), sent.wall);
            match self.put(meta.take(), spec).await {
                Ok(record) => {
                    *held = record;
                    return Ok(sent);
                }
                // The Lease was edited, deleted or taken, or our last renewal succeeded although its answer was lost.
                Err(error) if overtaken(&error) => why = error.to_string(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(LeaseError::Unknown(why))
    }

    /// Releases the lease, so that another process can acquire it at once.
    async fn release_lease(&self, mut held: Record) {
        for _ in 0..2 {
            let mut spec = held.spec.clone().unwrap_or_default();
            spec.holder_identity = Some(String::new());
            let given = self.limited(RELEASE_TIMEOUT, self.put(Some(held.metadata), spec)).await;
            let error = match given {
                Ok(_) => return tracing::info!(lease = %self, "released the lease"),
                Err(error) => error,
            };
            // The last renewal may have been written meanwhile.
            let again = self.limited(RELEASE_TIMEOUT, self.api.get_opt(&self.lease.name)).await;
            match again {
                Ok(Some(record)) if holder(&record) == Some(&self.lease.identity) => held = record,
                _ => return tracing::warn!(lease = %self, %error, "cannot release the lease; it will expire"),
            }
        }
    }

    /// Creates or replaces the Lease; the metadata has the resourceVersion as precondition.
    async fn put(&self, meta: Option<ObjectMeta>, spec: LeaseSpec) -> Result<Record, kube::Error> {
        let by = PostParams { field_manager: Some("fleetwright-leader".into()), ..PostParams::default() };
        let spec = Some(spec);
        let exists = meta.is_some();
        let mut metadata =
            meta.unwrap_or_else(|| ObjectMeta { name: Some(self.lease.name.clone()), ..ObjectMeta::default() });
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(OLD_FENCE);
        }
        if exists {
            return self.api.replace(&self.lease.name, &by, &Record { metadata, spec }).await;
        }
        self.api.create(&by, &Record { metadata, spec }).await
    }

    fn taken(&self, old: Option<LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let transitions = old.as_ref().map_or(0, |old| {
            let ours = old.holder_identity.as_deref() == Some(&self.lease.identity);
            old.lease_transitions.unwrap_or_default().saturating_add(i32::from(!ours))
        });
        // A write that changes nothing keeps the resourceVersion, and so the fencing token, of the previous leader: another process with the same
        // identity.
        let same = old.as_ref().is_some_and(|old| old.acquire_time == Some(MicroTime(now)));
        let acquired = if same { now + Duration::from_micros(1) } else { now };
        LeaseSpec {
            holder_identity: Some(self.lease.identity.clone()),
            acquire_time: Some(MicroTime(acquired)),
            lease_transitions: Some(transitions),
            ..self.renewed(old.unwrap_or_default(), now)
        }
    }

    fn renewed(&self, old: LeaseSpec, now: Timestamp) -> LeaseSpec {
        LeaseSpec { renew_time: Some(MicroTime(now)), lease_duration_seconds: Some(self.lease.seconds()), ..old }
    }

    /// The answer, or an error after the timeout.
    async fn limited<T, E: Into<LeaseError>>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, LeaseError> {
        tokio::select! {
            biased;
            answer = answer => answer.map_err(Into::into),
            () = self.clock.sleep(limit) => Err(LeaseError::Unknown(format!("timed out after {limit:?}"))),
        }
    }

    fn sent(&self) -> RequestStart {
        RequestStart { monotonic: self.clock.monotonic(), wall: self.clock.now() }
    }

    fn hold(&self, sent: RequestStart) {
        let lasts = self.lease.lasts();
        let wall = SignedDuration::try_from(lasts).ok().and_then(|lasts| sent.wall.checked_add(lasts).ok());
        self.fence.hold_until(sent.monotonic + lasts, wall.unwrap_or(Timestamp::MAX));
    }

    fn standby(&self, holder: Option<&str>) {
        let standby = Leading::Standby { holder: holder.map(str::to_owned) };
        self.state.send_if_modified(|state| {
            let changed = *state != standby;
            if changed {
                tracing::info!(lease = %self, holder = holder.unwrap_or("none"), "standing by");
                *state = standby;
            }
            changed
        });
    }
}
