//! The server's own controllers, with the functions of kube-controller-manager that a server needs: custom resource
//! definitions, namespaces, garbage, service accounts, aggregated roles, volumes in use, certificates, quotas.
//!
//! One task follows all changes and dispatches each to the controllers that it concerns; they queue work and do
//! it after the batch. There is no polling, and an idle server uses no CPU time. Of several servers that share their objects, one runs the
//! controllers, and another
//! one takes over when it stops; only custom resource definitions are followed by each server.
//!
//! A panic of one controller stops neither the others nor itself permanently: it is counted and logged, the others continue, and after a backoff
//! all controllers
//! restart from the stored objects.

pub(crate) mod accounts;
mod actor;
mod certificates;
mod cleanup;
mod crds;
mod events;
mod garbage;
mod namespaces;
mod quotas;
mod roles;
mod tokens;
mod volumes;

use std::collections::{HashMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::registry::{Registry, Resource};
use crate::state::Inner;
use crate::storage::ControllerManager;
use crate::store::{Event, Object};
use actor::all;

/// The interval at which the store trims its history.
const TRIM: Duration = Duration::from_secs(60);

/// The number of batches of changes after which other tasks on the same thread get a turn.
const YIELD_EVERY: u32 = 32;

/// The number of custom resources that are cached after their definition is deleted.
const MAX_GONE: usize = 64;

/// The backoff of controllers after a panic: the first one, and the longest.
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Starts the controllers of a server; they end when it stops. The objects that the first client needs exist when this
/// returns.
pub(crate) fn spawn(inner: &Arc<Inner>) -> JoinSet<()> {
    let settled = roles::settle(inner);
    accounts::settle(inner);
    let mut tasks = JoinSet::new();
    let server = inner.clone();
    tasks.spawn(until_stop(inner.clone(), supervise(inner.clone(), "definitions", move || crds::run(server.clone()))));
    let server = inner.clone();
    let lead = move || {
        let (inner, controllers_lock) = (server.clone(), server.storage.controllers_lock());
        async move {
            let _turn = controllers_lock.lock().await;
            run_controllers(inner, settled).await;
        }
    };
    tasks.spawn(until_stop(inner.clone(), supervise(inner.clone(), "controllers", lead)));
    tasks
}

/// Runs a task, and restarts it after a panic.
async fn supervise<W: Future<Output = ()> + Send>(inner: Arc<Inner>, name: &'static str, start: impl Fn() -> W + Send) {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        if catch_panic(&inner, name, start()).await {
            return;
        }
        failures = if started.elapsed() > MAX_BACKOFF { 1 } else { failures + 1 };
        tokio::time::sleep(backoff(failures)).await;
    }
}

/// Runs a controller's work; false after a panic, which is counted and logged.
async fn catch_panic(inner: &Inner, name: &'static str, work: impl Future<Output = ()> + Send) -> bool {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    if done.is_err() {
        panicked(inner, name);
    }
    done.is_ok()
}

fn panicked(inner: &Inner, controller: &'static str) {
    inner.metrics.panicked(controller);
    tracing::error!(controller, "a controller panicked; it starts again from the stored objects after a backoff");
}

fn backoff(failures: u32) -> Duration {
    BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(MAX_BACKOFF)
}

async fn until_stop(inner: Arc<Inner>, work: impl Future<Output = ()> + Send) {
    tokio::select! {
        () = inner.stopping() => {}
        () = work => {}
    }
}

/// The state of all controllers.
#[derive(Default)]
struct Controllers {
    kinds: ResourceLookup,
    garbage: garbage::Garbage,
    namespaces: namespaces::Namespaces,
    accounts: accounts::Accounts,
    tokens: tokens::Tokens,
    roles: roles::Roles,
    volumes: volumes::Volumes,
    cleanup: cleanup::Cleanup,
    certificates: certificates::Certificates,
    quotas: quotas::Quotas,
    manager: Option<Arc<ControllerManager>>,
    /// Whether a controller panicked, so that its state may be wrong.
    restart: bool,
}

/// `settled` is what [`roles::settle`] returned at the start.
async fn run_controllers(inner: Arc<Inner>, settled: u64) {
    let mut trim = tokio::time::interval_at(tokio::time::Instant::now() + TRIM, TRIM);
    trim.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut managers = inner.storage.manager();
    // The number of panics since the last success.
    let mut failures = 0;
    let mut batches = 0_u32;
    loop {
        let from = inner.store.revision();
        let manager = managers.borrow_and_update().clone();
        let mut state = Controllers { roles: roles::Roles::settled(settled), manager, ..Controllers::default() };
        state.resync_all(&inner);
        let Ok(mut cursor) = inner.store.watch_all(from) else {
            tokio::task::yield_now().await;
            continue;
        };
        state.reconcile(&inner).await;
        failures = if state.restart { failures + 1 } else { 0 };
        let mut restart = state.restart.then(|| Instant::now() + backoff(failures));
        loop {
            tokio::select! {
                batch = cursor.next() => {
                    // A follower that fell behind the history resyncs everything.
                    let Ok(batch) = batch else { break };
                    for event in &batch.events {
                        state.observe_event(&inner, event);
                    }
                    state.reconcile(&inner).await;
                }
                Ok(()) = managers.changed() => {
                    state.manager = managers.borrow_and_update().clone();
                    state.resync(&inner, &[("", "resourcequotas"), ("certificates.k8s.io", "certificatesigningrequests")]);
                    state.reconcile(&inner).await;
                }
                _ = trim.tick() => {
                    let swept = catch_panic(&inner, "sweep", async {
                        inner.store.trim();
                        events::sweep(&inner);
                        certificates::sweep(&inner);
                    });
                    swept.await;
                }
                () = tokio::time::sleep_until(restart.unwrap_or_else(Instant::now)), if restart.is_some() => break,
            }
            if state.restart && restart.is_none() {
                failures += 1;
                restart = Some(Instant::now() + backoff(failures));
            }
            // Changes may come without an end, also from the controllers themselves. The stop signal, and other tasks on this thread, must get a
            // turn. Not after
            // every batch: garbage collection needs the kinds that a deleted definition still has in the registry.
            batches = batches.wrapping_add(1);
            if batches.is_multiple_of(YIELD_EVERY) {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Controllers {
    fn resync_all(&mut self, inner: &Arc<Inner>) {
        for resource in inner.registry.stored() {
            for object in all(inner, &resource.storage) {
                self.dispatch_change(inner, &resource, None, Some(&object));
            }
        }
    }

    /// Queues all objects of these resources.
    fn resync(&mut self, inner: &Arc<Inner>, resources: &[(&str, &str)]) {
        for resource in resources.iter().filter_map(|(group, plural)| inner.registry.by_plural(group, plural)) {
            for object in all(inner, &resource.storage) {
                self.dispatch_change(inner, &resource, None, Some(&object));
            }
        }
    }

    fn observe_event(&mut self, inner: &Arc<Inner>, event: &Event) {
        let Some(any) = event.now.as_ref().or(event.prev.as_ref()) else { return };
        let Some(resource) = self.kinds.of(inner, any) else { return };
        self.dispatch_change(inner, &resource, event.prev.as_ref(), event.now.as_ref());
    }

    /// Dispatches a change to the controllers.
    fn dispatch_change(
        &mut self,
        inner: &Inner,
        resource: &Arc<Resource>,
        prev: Option<&Arc<Object>>,
        now: Option<&Arc<Object>>,
    ) {
        if panic::catch_unwind(AssertUnwindSafe(|| self.changed(resource, prev, now))).is_err() {
            panicked(inner, "changes");
            self.restart = true;
        }
    }

    fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        self.garbage.changed(resource, prev, now);
        self.namespaces.changed(resource, prev, now);
        self.cleanup.changed(resource, prev, now);
        self.quotas.changed(resource, prev, now);
        if resource.custom().is_none() {
            self.accounts.changed(resource, prev, now);
            self.tokens.changed(resource, prev, now);
            self.roles.changed(resource);
            self.volumes.changed(resource, prev, now);
            self.certificates.changed(resource, now);
        }
    }

    async fn reconcile(&mut self, inner: &Arc<Inner>) {
        let manager = self.manager.as_deref();
        // A server with its own authority has no separate controller-manager.
        let fills_quotas = inner.authority.is_some() || manager.is_some_and(|manager| manager.quotas);
        let mut sound = catch_panic(inner, "accounts", async { self.accounts.reconcile(inner) }).await;
        sound &= catch_panic(inner, "tokens", async { self.tokens.reconcile(inner) }).await;
        sound &= catch_panic(inner, "roles", async { self.roles.reconcile(inner) }).await;
        sound &= catch_panic(inner, "garbage", self.garbage.reconcile(inner)).await;
        sound &= catch_panic(inner, "volumes", async { self.volumes.reconcile(inner) }).await;
        sound &= catch_panic(inner, "certificates", async { self.certificates.reconcile(inner, manager) }).await;
        sound &= catch_panic(inner, "quotas", async { self.quotas.reconcile(inner, fills_quotas) }).await;
        sound &= catch_panic(inner, "namespaces", self.namespaces.reconcile(inner)).await;
        sound &= catch_panic(inner, "cleanup", self.cleanup.reconcile(inner)).await;
        self.restart |= !sound;
    }
}

/// Finds the resource of a stored object by its apiVersion and kind.
#[derive(Default)]
struct ResourceLookup {
    generation: Option<u64>,
    by_kind: HashMap<Box<str>, Vec<Arc<Resource>>>,
    /// The last custom resources that are no longer served: events of their last instances may come after their definition is deleted.
    gone: VecDeque<Arc<Resource>>,
}

impl ResourceLookup {
    fn of(&mut self, inner: &Inner, object: &Object) -> Option<Arc<Resource>> {
        let kind = kind_of(object)?;
        let group = object.api_version.rsplit_once('/').map(|(group, _)| group).unwrap_or_default();
        let found = |known: &Self| known.by_kind.get(kind)?.iter().find(|r| &*r.group == group).cloned();
        if self.generation.is_some()
            && let Some(resource) = found(self)
            && (resource.custom().is_none() || self.is_fresh(inner))
        {
            return Some(resource);
        }
        if !self.is_fresh(inner) {
            self.rebuild(inner);
        }
        found(self).or_else(|| self.gone.iter().rev().find(|r| &*r.kind == kind && &*r.group == group).cloned())
    }

    fn is_fresh(&self, inner: &Inner) -> bool {
        self.generation == Some(inner.registry.customs().1)
    }

    fn rebuild(&mut self, inner: &Inner) {
        let (customs, generation) = inner.registry.customs();
        self.generation = Some(generation);
        let same = |a: &Resource, b: &Resource| a.group == b.group && a.kind == b.kind;
        let old = self.by_kind.drain().flat_map(|(_, resources)| resources);
        let lost = old.filter(|old| old.custom().is_some() && !customs.iter().any(|now| same(now, old)));
        self.gone.extend(lost);
        self.gone.drain(..self.gone.len().saturating_sub(MAX_GONE));
        for resource in Registry::builtins().iter().chain(&customs).filter(|r| r.verbs.contains(&"list")) {
            self.by_kind.entry((*resource.kind).into()).or_default().push(resource.clone());
        }
    }
}

/// The kind, which comes first in the stored JSON.
fn kind_of(object: &Object) -> Option<&str> {
    let rest = object.json.strip_prefix(b"{\"kind\":\"")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..end)?).ok()
}
