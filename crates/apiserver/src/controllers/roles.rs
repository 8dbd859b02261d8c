//! Cluster roles that gather the rules of others.

use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::{Actor, log};
use crate::registry::Resource;
use crate::server::Inner;

const GROUP: &str = fleetwright_rbac::GROUP;
/// A chain of roles that gather each other is this long at most; longer ones are finished by their own events.
const ROUNDS: usize = 8;

/// Whether a cluster role changed.
#[derive(Default)]
pub(super) struct Roles {
    due: bool,
}

impl Roles {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>) {
        self.due |= resource.is(GROUP, "clusterroles");
    }

    pub(super) fn work(&mut self, inner: &Arc<Inner>) {
        if std::mem::take(&mut self.due) {
            settle(inner);
        }
    }
}

/// Brings the rules of aggregated roles up to date. Writes nothing when they are.
pub(super) fn settle(inner: &Arc<Inner>) {
    let Some(resource) = inner.registry.by_plural(GROUP, "clusterroles") else { return };
    let actor = Actor::new(inner, "clusterrole-aggregation-controller", "clusterrole-aggregation-controller");
    for _ in 0..ROUNDS {
        let roles: Vec<Value> = super::all(inner, &resource.storage).iter().map(|object| object.value()).collect();
        let stale = fleetwright_rbac::aggregate(&roles);
        if stale.is_empty() {
            return;
        }
        for (name, rules) in stale {
            let object = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
            });
            if log("aggregated roles", actor.apply(&resource, &name, &object)).is_none() {
                return;
            }
        }
    }
}
