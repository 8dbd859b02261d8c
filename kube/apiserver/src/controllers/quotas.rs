//! Writes the status of ResourceQuotas: limits and usage.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::json;

use super::actor::{Actor, log};
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};

/// The namespaces with quotas, and those to reconcile.
#[derive(Default)]
pub(super) struct Quotas {
    limited: HashSet<Arc<str>>,
    due: BTreeSet<Arc<str>>,
}

impl Quotas {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        let Some(Key { namespace, .. }) = now.or(prev).map(|object| &object.key) else { return };
        let quota = resource.is("", "resourcequotas");
        if quota && now.is_some() {
            self.limited.insert(namespace.clone());
        }
        // Counts change when objects are created or deleted, and when pods end.
        let counts = quota || prev.is_none() || now.is_none() || resource.is("", "pods");
        if counts && self.limited.contains(namespace) {
            self.due.insert(namespace.clone());
        }
    }

    /// Writes the status only where a controller-manager is responsible for quotas; elsewhere it stays unchanged.
    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>, managed: bool) {
        let due = std::mem::take(&mut self.due);
        let Some(resource) = inner.registry.by_plural("", "resourcequotas").filter(|_| managed) else { return };
        for namespace in due {
            let page = inner.store.page(&resource.storage, Some(&namespace), None, None, 0, |_| true);
            let quotas = page.map(|page| page.objects).unwrap_or_default();
            if quotas.is_empty() {
                self.limited.remove(&namespace);
            }
            for quota in quotas.iter().filter(|quota| !quota.deleting) {
                settle(inner, &resource, quota);
            }
        }
    }
}

fn settle(inner: &Arc<Inner>, resource: &Arc<Resource>, quota: &Arc<Object>) {
    let value = quota.value();
    let hard = &value["spec"]["hard"];
    let status = json!({ "hard": hard, "used": inner.quota_used(&quota.key.namespace, hard) });
    if !hard.is_object() || value["status"] == status {
        return;
    }
    let actor = Actor::manager(inner, "resourcequota-controller");
    log("quotas", actor.change(resource, quota, "status", |live| live["status"] = status.clone()));
}
