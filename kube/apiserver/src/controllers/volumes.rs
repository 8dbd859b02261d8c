//! Keeps claims and volumes while they are in use.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::actor::{Actor, log};
use crate::admission::{CLAIM_PROTECTION, VOLUME_PROTECTION};
use crate::fields::meta_text;
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};

/// Terminating claims and volumes that are still in use.
#[derive(Default)]
pub(super) struct Volumes {
    claims: BTreeSet<Key>,
    volumes: BTreeSet<Key>,
    due: bool,
}

impl Volumes {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        if !resource.group.is_empty() {
            return;
        }
        let Some(key) = now.or(prev).map(|object| &object.key) else { return };
        let waits = match &*resource.plural {
            "persistentvolumeclaims" => &mut self.claims,
            "persistentvolumes" => &mut self.volumes,
            "pods" => {
                self.due |= self.claims.iter().any(|claim| claim.namespace == key.namespace);
                return;
            }
            _ => return,
        };
        if now.is_some_and(|now| now.deleting) {
            waits.insert(key.clone());
            self.due = true;
        } else {
            waits.remove(key);
        }
    }

    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>) {
        if !std::mem::take(&mut self.due) {
            return;
        }
        let claims = inner.registry.by_plural("", "persistentvolumeclaims");
        let volumes = inner.registry.by_plural("", "persistentvolumes");
        for (resource, keys, finalizer, account) in [
            (claims, &self.claims, CLAIM_PROTECTION, "pvc-protection-controller"),
            (volumes, &self.volumes, VOLUME_PROTECTION, "pv-protection-controller"),
        ] {
            let Some(resource) = resource else { continue };
            let actor = Actor::manager(inner, account);
            for live in keys.iter().filter_map(|key| inner.store.get(&resource.storage, key)) {
                let value = live.value();
                let protected =
                    value["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == finalizer));
                let used = if finalizer == CLAIM_PROTECTION {
                    claim_is_used(inner, &live.key)
                } else {
                    value["status"]["phase"] == "Bound"
                };
                if live.deleting && protected && !used {
                    log("volume protection", actor.drop_finalizer(&resource, &live, finalizer));
                }
            }
        }
    }
}

fn claim_is_used(inner: &Arc<Inner>, claim: &Key) -> bool {
    let pods = inner.lookup_all("", "pods", Some(&claim.namespace));
    pods.iter().any(|pod| {
        let scheduled = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        let shut_down =
            !meta_text(pod, "deletionTimestamp").is_empty() && pod["metadata"]["deletionGracePeriodSeconds"] == 0;
        scheduled && !shut_down && uses(pod, &claim.name)
    })
}

fn uses(pod: &Value, claim: &str) -> bool {
    pod["spec"]["volumes"].as_array().into_iter().flatten().any(|volume| {
        let ephemeral = || format!("{}-{}", meta_text(pod, "name"), volume["name"].as_str().unwrap_or_default());
        volume["persistentVolumeClaim"]["claimName"] == claim
            || (!volume["ephemeral"].is_null() && ephemeral() == claim)
    })
}
