//! Deletes the instances of custom resource definitions that are terminating.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::actor::{Actor, all, log};
use crate::crd::{FINALIZER, has_condition, set_condition};
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};
use crate::write::options::DeleteOptions;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The terminating definitions by name, and those to reconcile.
#[derive(Default)]
pub(super) struct Cleanup {
    ending: BTreeSet<Arc<str>>,
    due: BTreeSet<Arc<str>>,
}

impl Cleanup {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        let Some(key) = now.or(prev).map(|object| &object.key) else { return };
        if resource.is(GROUP, PLURAL) {
            if now.is_some_and(|now| now.deleting) {
                self.ending.insert(key.name.clone());
                self.due.insert(key.name.clone());
            } else {
                self.ending.remove(&key.name);
            }
        } else if !self.ending.is_empty() && resource.custom().is_some() && now.is_none() {
            let definition = format!("{}.{}", resource.plural, resource.group);
            if let Some(name) = self.ending.get(definition.as_str()) {
                self.due.insert(name.clone());
            }
        }
    }

    pub(super) async fn reconcile(&mut self, inner: &Arc<Inner>) {
        for name in std::mem::take(&mut self.due) {
            clean(inner, &name).await;
        }
    }
}

async fn clean(inner: &Arc<Inner>, name: &str) {
    let Some(definitions) = inner.registry.by_plural(GROUP, PLURAL) else { return };
    let Some(live) = inner.store.get(&definitions.storage, &Key::new("", name)) else { return };
    let crd = live.value();
    let ours = crd["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == FINALIZER));
    if !live.deleting || !ours {
        return;
    }
    let actor = Actor::new(inner, "crd-finalizer", "kube-apiserver");
    let write = |status: &str, reason: &str, message: &str| {
        let now = inner.timestamp();
        log(
            "definitions",
            actor.change(&definitions, &live, "status", |crd| {
                set_condition(crd, ["Terminating", status, reason, message], &now);
            }),
        );
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if has_condition(&crd, "Established") {
        write("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
        let (group, plural) = (text(&crd["spec"]["group"]), text(&crd["status"]["acceptedNames"]["plural"]));
        if let Some(instances) = inner.registry.by_plural(&group, &plural) {
            for (at, object) in all(inner, &instances.storage).into_iter().enumerate() {
                if at % 256 == 255 {
                    tokio::task::yield_now().await;
                }
                if !object.deleting {
                    log("definitions", actor.delete(&instances, &object, DeleteOptions::default()));
                }
            }
            if !inner.store.is_empty(&instances.storage) {
                return;
            }
        }
        write("False", "InstanceDeletionCompleted", "removed all instances");
    } else {
        write("False", "NeverEstablished", "resource was never established");
    }
    log("definitions", actor.drop_finalizer(&definitions, &live, FINALIZER));
}
