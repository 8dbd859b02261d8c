//! What keeps a server's own objects in order, as kube-controller-manager does for a real one: custom resource
//! definitions, namespaces, garbage, service accounts, aggregated roles, volumes in use, certificates, quotas.
//!
//! One task follows everything that changes and hands each change to those whom it concerns; they note what to do and do
//! it after the batch. Nobody polls, and a server in which nothing happens does nothing. Of servers that share their objects one does all of it, and another
//! when that one stops; only custom resources are each server's own business.

pub(crate) mod accounts;
mod actor;
mod certificates;
mod cleanup;
pub(crate) mod crds;
mod events;
mod garbage;
mod namespaces;
mod quotas;
mod roles;
mod tokens;
mod volumes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::registry::{Registry, Resource};
use crate::server::Inner;
use crate::storage::Manager;
use crate::store::{Event, Object};

/// How often the store forgets what is older than its limits.
const TRIM: Duration = Duration::from_secs(60);

/// Starts the controllers of a server; they end when it stops. What the first client counts on is there when this
/// returns.
pub(crate) fn spawn(inner: &Arc<Inner>) -> JoinSet<()> {
    let settled = roles::settle(inner);
    accounts::settle(inner);
    let mut tasks = JoinSet::new();
    tasks.spawn(until_stop(inner.clone(), crds::run(inner.clone())));
    let turn = inner.storage.turn();
    let follow = follow(inner.clone(), settled);
    tasks.spawn(until_stop(inner.clone(), async move {
        let _turn = turn.lock().await;
        follow.await;
    }));
    tasks
}

async fn until_stop(inner: Arc<Inner>, work: impl Future<Output = ()> + Send) {
    tokio::select! {
        () = inner.stopping() => {}
        () = work => {}
    }
}

/// Every object of a resource, as it is now.
fn all(inner: &Inner, storage: &str) -> Vec<Arc<Object>> {
    inner.store.page(storage, None, None, None, 0, |_| true).map(|page| page.objects).unwrap_or_default()
}

/// All that the controllers remember.
#[derive(Default)]
struct Controllers {
    kinds: Kinds,
    garbage: garbage::Garbage,
    namespaces: namespaces::Namespaces,
    accounts: accounts::Accounts,
    tokens: tokens::Tokens,
    roles: roles::Roles,
    volumes: volumes::Volumes,
    cleanup: cleanup::Cleanup,
    certificates: certificates::Certificates,
    quotas: quotas::Quotas,
    manager: Option<Arc<Manager>>,
}

/// `settled` is what [`roles::settle`] returned at the start.
async fn follow(inner: Arc<Inner>, settled: u64) {
    let mut trim = tokio::time::interval_at(tokio::time::Instant::now() + TRIM, TRIM);
    trim.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut managers = inner.storage.manager();
    loop {
        let from = inner.store.revision();
        let manager = managers.borrow_and_update().clone();
        let mut state = Controllers { roles: roles::Roles::settled(settled), manager, ..Controllers::default() };
        state.look_at_everything(&inner);
        let Ok(mut cursor) = inner.store.watch_all(from) else { continue };
        state.work(&inner).await;
        loop {
            tokio::select! {
                batch = cursor.next() => {
                    // A follower that lost its place looks at everything again.
                    let Ok(batch) = batch else { break };
                    for event in &batch.events {
                        state.see(&inner, event);
                    }
                    state.work(&inner).await;
                }
                Ok(()) = managers.changed() => {
                    state.manager = managers.borrow_and_update().clone();
                    state.look_at(&inner, &[("", "resourcequotas"), ("certificates.k8s.io", "certificatesigningrequests")]);
                    state.work(&inner).await;
                }
                _ = trim.tick() => {
                    inner.store.trim();
                    events::sweep(&inner);
                    certificates::sweep(&inner);
                }
            }
        }
    }
}

impl Controllers {
    fn look_at_everything(&mut self, inner: &Arc<Inner>) {
        for resource in inner.registry.stored() {
            for object in all(inner, &resource.storage) {
                self.changed(&resource, None, Some(&object));
            }
        }
    }

    /// Looks again at all objects of these resources.
    fn look_at(&mut self, inner: &Arc<Inner>, resources: &[(&str, &str)]) {
        for resource in resources.iter().filter_map(|(group, plural)| inner.registry.by_plural(group, plural)) {
            for object in all(inner, &resource.storage) {
                self.changed(&resource, None, Some(&object));
            }
        }
    }

    fn see(&mut self, inner: &Arc<Inner>, event: &Event) {
        let Some(any) = event.now.as_ref().or(event.prev.as_ref()) else { return };
        let Some(resource) = self.kinds.of(inner, any) else { return };
        self.changed(&resource, event.prev.as_ref(), event.now.as_ref());
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

    async fn work(&mut self, inner: &Arc<Inner>) {
        self.accounts.work(inner);
        self.tokens.work(inner);
        self.roles.work(inner);
        self.garbage.work(inner).await;
        self.volumes.work(inner);
        let manager = self.manager.as_deref();
        self.certificates.work(inner, manager.and_then(|manager| manager.signer.as_ref()));
        // A server with an authority of its own is all of a control plane that there is.
        self.quotas.work(inner, inner.authority.is_some() || manager.is_some_and(|manager| manager.quotas));
        self.namespaces.work(inner).await;
        self.cleanup.work(inner).await;
    }
}

/// Finds the resource of a stored object by what the object says of itself.
#[derive(Default)]
struct Kinds {
    generation: Option<u64>,
    by_kind: HashMap<Box<str>, Vec<Arc<Resource>>>,
}

impl Kinds {
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
        found(self)
    }

    fn is_fresh(&self, inner: &Inner) -> bool {
        self.generation == Some(inner.registry.customs().1)
    }

    fn rebuild(&mut self, inner: &Inner) {
        let (customs, generation) = inner.registry.customs();
        self.generation = Some(generation);
        self.by_kind.clear();
        for resource in Registry::builtins().iter().chain(&customs).filter(|r| r.verbs.contains(&"list")) {
            self.by_kind.entry((*resource.kind).into()).or_default().push(resource.clone());
        }
    }
}

/// The kind, which stands first in the stored JSON.
fn kind_of(object: &Object) -> Option<&str> {
    let rest = object.json.strip_prefix(b"{\"kind\":\"")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..end)?).ok()
}
