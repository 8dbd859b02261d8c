//! Aggregates cluster roles.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::{Actor, all, log};
use crate::registry::Resource;
use crate::state::Inner;

const GROUP: &str = fleetwright_rbac::GROUP;
/// One round writes, the next one finds nothing to do unless a client wrote in between; that client's event starts the next reconcile.
const ROUNDS: usize = 3;

/// Whether a cluster role changed.
#[derive(Default)]
pub(super) struct Roles {
    due: bool,
    /// The last change of cluster roles after which all rules were up to date.
    settled: u64,
}

impl Roles {
    /// The state that [`settle`] returned.
    pub(super) fn settled(settled: u64) -> Self {
        Self { due: false, settled }
    }

    pub(super) fn changed(&mut self, resource: &Arc<Resource>) {
        self.due |= resource.is(GROUP, "clusterroles");
    }

    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>) {
        if std::mem::take(&mut self.due) && revision(inner) != Some(self.settled) {
            self.settled = settle(inner);
        }
    }
}

/// The last change of cluster roles.
fn revision(inner: &Inner) -> Option<u64> {
    inner.registry.by_plural(GROUP, "clusterroles").map(|resource| inner.store.resource_revision(&resource.storage))
}

/// Updates the rules of aggregated roles. Writes nothing when they are up to date. Returns the change of cluster roles after
/// which nothing was left to do, or 0.
pub(super) fn settle(inner: &Arc<Inner>) -> u64 {
    let Some(resource) = inner.registry.by_plural(GROUP, "clusterroles") else { return 0 };
    let actor = Actor::new(inner, "clusterrole-aggregation-controller", "clusterrole-aggregation-controller");
    // A round changes few roles, so the others are not read again.
    let mut read: HashMap<u64, Value> = HashMap::new();
    for _ in 0..ROUNDS {
        let seen = inner.store.resource_revision(&resource.storage);
        let objects = all(inner, &resource.storage);
        let mut roles = Vec::with_capacity(objects.len());
        for object in &objects {
            roles.push(read.remove(&object.revision).unwrap_or_else(|| object.value()));
        }
        let stale = fleetwright_rbac::aggregate(&roles);
        if stale.is_empty() {
            return seen;
        }
        read = objects.iter().map(|object| object.revision).zip(roles).collect();
        for (name, rules) in stale {
            let object = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
            });
            if log("aggregated roles", actor.apply(&resource, &name, &object)).is_none() {
                return 0;
            }
        }
    }
    0
}
