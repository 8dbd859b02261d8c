//! Deletes the content of terminating namespaces, then the namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::{Actor, log};
use super::garbage::{FOREGROUND, ORPHAN, has_finalizer};
use crate::error::ApiError;
use crate::fields::{has_finalizers, meta_text};
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};
use crate::write::options::{DeleteOptions, Propagation};

const FINALIZER: &str = "kubernetes";

/// Type, reason and message of each condition without a problem.
const CONDITIONS: [[&str; 3]; 5] = [
    ["NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"],
    ["NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"],
    [
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ],
    ["NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"],
    ["NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"],
];

/// The terminating namespaces, and those with changes.
#[derive(Default)]
pub(super) struct Namespaces {
    ending: BTreeSet<Arc<str>>,
    due: BTreeSet<Arc<str>>,
}

/// The remaining content of a namespace, and the errors.
#[derive(Default)]
struct RemainingContent {
    by_resource: BTreeMap<String, usize>,
    by_finalizer: BTreeMap<String, usize>,
    errors: Vec<String>,
}

impl Namespaces {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        let Some(key) = now.or(prev).map(|object| &object.key) else { return };
        if resource.is("", "namespaces") {
            if now.is_some_and(|now| now.deleting) {
                self.ending.insert(key.name.clone());
                self.due.insert(key.name.clone());
            } else {
                self.ending.remove(&key.name);
            }
        } else if self.ending.contains(&key.namespace) {
            self.due.insert(key.namespace.clone());
        }
    }

    pub(super) async fn reconcile(&mut self, inner: &Arc<Inner>) {
        for name in std::mem::take(&mut self.due) {
            end(inner, &name).await;
        }
    }
}

async fn end(inner: &Arc<Inner>, name: &str) {
    let Some(resource) = inner.registry.by_plural("", "namespaces") else { return };
    let Some(live) = inner.store.get(&resource.storage, &Key::new("", name)) else { return };
    let value = live.value();
    let ours = value["spec"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == FINALIZER));
    if !live.deleting || !ours {
        return;
    }
    let actor = Actor::manager(inner, "namespace-controller");
    let mut rest = RemainingContent::default();
    let pods_remain = match inner.registry.by_plural("", "pods") {
        Some(pods) => empty(&actor, &pods, name, &mut rest).await,
        None => false,
    };
    if pods_remain {
        // Running pods may need other content; the real server does not count it before the pods are deleted.
        rest.by_resource.clear();
        rest.by_finalizer.clear();
        report(&actor, &resource, &live, &rest);
        return;
    }
    let others = inner.registry.stored().into_iter().filter(|r| r.namespaced && !r.is("", "pods"));
    for other in others.filter(|r| r.verbs.contains(&"delete")) {
        empty(&actor, &other, name, &mut rest).await;
    }
    report(&actor, &resource, &live, &rest);
    if rest.by_resource.is_empty() && rest.errors.is_empty() {
        log(
            "namespaces",
            actor.change(&resource, &live, "finalize", |namespace| {
                if let Some(list) = namespace["spec"]["finalizers"].as_array_mut() {
                    list.retain(|known| known != FINALIZER);
                }
            }),
        );
    }
}

/// Deletes the objects of a resource in a namespace. True when an object remains for now.
///
/// An object in foreground deletion is deleted once more without waiting for its dependents: those are deleted in
/// any case, and one of them with a foreign finalizer must not block all of its owners, too. The real server does so.
async fn empty(actor: &Actor<'_>, resource: &Arc<Resource>, namespace: &str, rest: &mut RemainingContent) -> bool {
    let list = || {
        let page = actor.inner.store.page(&resource.storage, Some(namespace), None, None, 0, |_| true);
        page.map(|page| page.objects).unwrap_or_default()
    };
    for (at, object) in list().into_iter().enumerate() {
        if at % 256 == 255 {
            tokio::task::yield_now().await;
        }
        if object.deleting && !waits_for_dependents(&object) {
            continue;
        }
        let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        match actor.delete(resource, &object, options) {
            Err(ApiError { code: 404 | 409, .. }) | Ok(_) => {}
            Err(error) => rest.errors.push(error.to_string()),
        }
    }
    let left = list();
    if left.is_empty() {
        return false;
    }
    rest.by_resource.insert(format!("{}.{}", resource.plural, resource.group), left.len());
    for value in left.iter().map(|object| object.value()).filter(has_finalizers) {
        for finalizer in value["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            *rest.by_finalizer.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
    true
}

fn waits_for_dependents(object: &Object) -> bool {
    let value = object.value();
    [FOREGROUND, ORPHAN].iter().any(|finalizer| has_finalizer(&value, finalizer))
}

/// Writes the conditions, if they changed.
fn report(actor: &Actor<'_>, resource: &Arc<Resource>, live: &Object, rest: &RemainingContent) {
    let conditions = conditions(rest);
    let now = actor.inner.timestamp();
    log(
        "namespaces",
        actor.change(resource, live, "status", |namespace| {
            if meta_text(namespace, "deletionTimestamp").is_empty() {
                return;
            }
            let status = &mut namespace["status"];
            status["phase"] = "Terminating".into();
            if !status["conditions"].is_array() {
                status["conditions"] = json!([]);
            }
            let Some(list) = status["conditions"].as_array_mut() else { return };
            for (ty, status, reason, message) in &conditions {
                let fresh = json!({
                    "type": ty, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
                });
                match list.iter_mut().find(|known| known["type"] == *ty) {
                    None => list.push(fresh),
                    Some(known) => {
                        let since = known["lastTransitionTime"].clone();
                        let same = known["status"] == *status;
                        *known = fresh;
                        if same {
                            known["lastTransitionTime"] = since;
                        }
                    }
                }
            }
        }),
    );
}

fn conditions(rest: &RemainingContent) -> Vec<(&'static str, &'static str, &'static str, String)> {
    let joined = |counts: &BTreeMap<String, usize>, verb: &str| {
        let texts: Vec<String> =
            counts.iter().map(|(what, n)| format!("{what} {verb} {n} resource instances")).collect();
        texts.join(", ")
    };
    CONDITIONS
        .into_iter()
        .map(|[ty, reason, message]| match ty {
            "NamespaceDeletionContentFailure" if !rest.errors.is_empty() => {
                let mut errors = rest.errors.clone();
                errors.sort();
                let told =
                    format!("Failed to delete all resource types, {} remaining: {}", errors.len(), errors.join(", "));
                (ty, "True", "ContentDeletionFailed", told)
            }
            "NamespaceContentRemaining" if !rest.by_resource.is_empty() => {
                let told = format!("Some resources are remaining: {}", joined(&rest.by_resource, "has"));
                (ty, "True", "SomeResourcesRemain", told)
            }
            "NamespaceFinalizersRemaining" if !rest.by_finalizer.is_empty() => {
                let told = joined(&rest.by_finalizer, "in");
                let told = format!("Some content in the namespace has finalizers remaining: {told}");
                (ty, "True", "SomeFinalizersRemain", told)
            }
            _ => (ty, "False", reason, message.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_is_named_by_resource_and_by_finalizer() {
        let rest = RemainingContent {
            by_resource: [("configmaps.".to_owned(), 2), ("widgets.example.com".to_owned(), 1)].into(),
            by_finalizer: [("example.com/hold".to_owned(), 1)].into(),
            errors: Vec::new(),
        };
        let all = conditions(&rest);
        let of = |ty: &str| all.iter().find(|c| c.0 == ty).map(|c| (c.1, c.2, c.3.as_str())).unwrap();
        assert_eq!(
            of("NamespaceContentRemaining"),
            (
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: configmaps. has 2 resource instances, widgets.example.com has 1 resource instances"
            )
        );
        assert_eq!(
            of("NamespaceFinalizersRemaining"),
            (
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
            )
        );
        assert_eq!(of("NamespaceDeletionContentFailure").0, "False");
    }
}
