//! Garbage collection by owner references: in the background, in the foreground, or not at all.
//!
//! An index from owners to dependents is fed by events. The store is asked whether an owner exists at the moment when it
//! matters, by the coordinates in the reference and its uid, so that no index of all objects is needed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::{Actor, log};
use crate::fields::metadata;
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};
use crate::write::options::{DeleteOptions, Propagation};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";
/// The number of steps after which other tasks get a turn.
const STEPS: usize = 128;
/// The number of attempts of a deletion after conflicts, before the next event.
const ATTEMPTS: usize = 5;

/// The coordinates of an object.
#[derive(Clone)]
struct ObjectRef {
    resource: Arc<Resource>,
    key: Key,
    uid: String,
}

impl PartialEq for ObjectRef {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid && self.key == other.key && self.resource.storage == other.resource.storage
    }
}

impl Eq for ObjectRef {}

impl std::hash::Hash for ObjectRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
        self.key.hash(state);
    }
}

impl ObjectRef {
    fn of(resource: &Arc<Resource>, object: &Object) -> Self {
        Self { resource: resource.clone(), key: object.key.clone(), uid: object.uid.clone() }
    }

    fn live(&self, inner: &Inner) -> Option<Arc<Object>> {
        inner.store.get(&self.resource.storage, &self.key).filter(|object| object.uid == self.uid)
    }
}

enum Task {
    /// Checks whether an object has lost its owners.
    AttemptToDelete { object_ref: ObjectRef, cause: Trigger },
    /// Handles a terminating object whose finalizers concern its dependents.
    ProcessDeleting(ObjectRef),
}

/// The reason of a check.
enum Trigger {
    /// The references are new, and may have been wrong from the start.
    Fresh,
    /// The owner with this uid was deleted, perhaps with its whole resource.
    Lost(String),
    /// An owner in foreground deletion waits for its dependents.
    Asked,
}

enum OwnerState {
    Lives,
    Gone,
    /// The owner waits for the deletion of its dependents.
    Waits,
}

/// The state of the collector.
#[derive(Default)]
pub(super) struct Garbage {
    dependents: HashMap<String, HashSet<ObjectRef>>,
    /// Owners in foreground deletion.
    waiting: HashMap<String, ObjectRef>,
    tasks: VecDeque<Task>,
}

impl Garbage {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        // An object that was replaced by another of the same name counts as deleted.
        let (prev_uid, now_uid) = (prev.map(|o| o.uid.as_str()), now.map(|o| o.uid.as_str()));
        if let Some(before) = prev {
            let kept = if prev_uid == now_uid { now.map(|o| o.owners.as_slice()).unwrap_or_default() } else { &[] };
            for owner in before.owners.iter().filter(|owner| !kept.contains(owner)) {
                self.forget(resource, before, owner);
            }
            if prev_uid != now_uid {
                self.waiting.remove(&before.uid);
                for object_ref in self.dependents.get(&before.uid).into_iter().flatten() {
                    // A dependent that could not reach its owner before the change cannot do so now.
                    let reaches = before.key.namespace.is_empty() || before.key.namespace == object_ref.key.namespace;
                    let cause = if reaches { Trigger::Lost(before.uid.clone()) } else { Trigger::Asked };
                    self.tasks.push_back(Task::AttemptToDelete { object_ref: object_ref.clone(), cause });
                }
            }
        }
        let Some(object) = now else { return };
        let before = prev.filter(|_| prev_uid == now_uid);
        if !object.owners.is_empty() && before.is_none_or(|before| before.owners != object.owners) {
            let object_ref = ObjectRef::of(resource, object);
            for owner in &object.owners {
                self.dependents.entry(owner.clone()).or_default().insert(object_ref.clone());
            }
            self.tasks.push_back(Task::AttemptToDelete { object_ref, cause: Trigger::Fresh });
        } else if !object.owners.is_empty() {
            // An owner may wait for a change of blockOwnerDeletion.
            self.wake_waiting(&object.owners);
        }
        if object.deleting {
            self.tasks.push_back(Task::ProcessDeleting(ObjectRef::of(resource, object)));
        }
    }

    fn forget(&mut self, resource: &Arc<Resource>, dependent: &Object, owner: &str) {
        if let Some(places) = self.dependents.get_mut(owner) {
            places.remove(&ObjectRef::of(resource, dependent));
            if places.is_empty() {
                self.dependents.remove(owner);
            }
        }
        self.wake_waiting(&[owner.to_owned()]);
    }

    fn wake_waiting(&mut self, owners: &[String]) {
        for object_ref in owners.iter().filter_map(|owner| self.waiting.get(owner)) {
            self.tasks.push_back(Task::ProcessDeleting(object_ref.clone()));
        }
    }

    pub(super) async fn reconcile(&mut self, inner: &Arc<Inner>) {
        let actor = Actor::manager(inner, "generic-garbage-collector");
        let mut steps = 0;
        while let Some(task) = self.tasks.pop_front() {
            match task {
                Task::AttemptToDelete { object_ref, cause } => self.attempt_to_delete(&actor, &object_ref, &cause),
                Task::ProcessDeleting(object_ref) => self.process_deleting(&actor, &object_ref),
            }
            steps += 1;
            if steps % STEPS == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Deletes an object without existing owners; removes dangling references from one that also has an existing owner.
    fn attempt_to_delete(&mut self, actor: &Actor<'_>, object_ref: &ObjectRef, cause: &Trigger) {
        for _ in 0..ATTEMPTS {
            let Some(live) = object_ref.live(actor.inner) else { return };
            let value = live.value();
            if live.deleting {
                return;
            }
            let references = value["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let Some((solid, dangling, waiting)) = classify(actor, object_ref, &references, cause) else { return };
            let done = if solid > 0 {
                let dead: Vec<&str> = dangling.iter().chain(&waiting).map(String::as_str).collect();
                if dead.is_empty() {
                    return;
                }
                actor.change(&object_ref.resource, &live, "", |object| drop_owners(object, &dead)).map(|_| ())
            } else if references.is_empty() {
                return;
            } else {
                let policy = self.policy(actor, object_ref, &live, &value, !waiting.is_empty());
                let options = DeleteOptions {
                    propagation: Some(policy),
                    // The precondition: changed references must be checked again.
                    resource_version: actor
                        .inner
                        .store
                        .get(&object_ref.resource.storage, &object_ref.key)
                        .map(|o| o.revision.to_string()),
                    ..DeleteOptions::default()
                };
                actor.delete(&object_ref.resource, &live, options).map(|_| ())
            };
            match done {
                Err(error) if error.code == 409 => {}
                done => {
                    log("garbage", done);
                    return;
                }
            }
        }
    }

    fn policy(
        &self,
        actor: &Actor<'_>,
        object_ref: &ObjectRef,
        live: &Object,
        value: &Value,
        owner_waits: bool,
    ) -> Propagation {
        let dependents = self.dependents.get(&object_ref.uid);
        if owner_waits && dependents.is_some_and(|places| !places.is_empty()) {
            let cycle = dependents.into_iter().flatten().any(|object_ref| self.waiting.contains_key(&object_ref.uid));
            if cycle {
                // Objects that own each other would block each other's deletion.
                let unblocked = actor.change(&object_ref.resource, live, "", |object| {
                    for reference in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                        reference["blockOwnerDeletion"] = false.into();
                    }
                });
                log("garbage", unblocked);
            }
            return Propagation::Foreground;
        }
        if has_finalizer(value, ORPHAN) {
            Propagation::Orphan
        } else if has_finalizer(value, FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        }
    }

    /// Handles the garbage collection finalizers of a terminating object.
    fn process_deleting(&mut self, actor: &Actor<'_>, object_ref: &ObjectRef) {
        let Some(live) = object_ref.live(actor.inner) else { return };
        let value = live.value();
        if !live.deleting {
            return;
        }
        if has_finalizer(&value, ORPHAN) {
            self.orphan(actor, object_ref, &live);
        } else if has_finalizer(&value, FOREGROUND) {
            self.foreground(actor, object_ref, &live);
        } else {
            self.waiting.remove(&object_ref.uid);
        }
    }

    fn orphan(&mut self, actor: &Actor<'_>, object_ref: &ObjectRef, live: &Object) {
        for dependent in self.dependents_of(object_ref) {
            let Some(object) = dependent.live(actor.inner) else { continue };
            log(
                "garbage",
                actor.change(&dependent.resource, &object, "", |object| drop_owners(object, &[&object_ref.uid])),
            );
        }
        log("garbage", actor.drop_finalizer(&object_ref.resource, live, ORPHAN));
    }

    fn foreground(&mut self, actor: &Actor<'_>, object_ref: &ObjectRef, live: &Object) {
        let first = self.waiting.insert(object_ref.uid.clone(), object_ref.clone()).is_none();
        let mut blocked = false;
        for dependent in self.dependents_of(object_ref) {
            let Some(object) = dependent.live(actor.inner) else { continue };
            // Objects that block each other's deletion would never be deleted.
            let blocks = blocks(&object.value(), &object_ref.uid) && !self.is_cyclic(&dependent.uid, &object_ref.uid);
            blocked |= blocks;
            if (first || blocks) && !object.deleting {
                self.tasks.push_back(Task::AttemptToDelete { object_ref: dependent, cause: Trigger::Asked });
            }
        }
        if !blocked {
            self.waiting.remove(&object_ref.uid);
            log("garbage", actor.drop_finalizer(&object_ref.resource, live, FOREGROUND));
        }
    }

    /// Whether a waiting owner is, through other waiting owners, a dependent of its own dependent.
    fn is_cyclic(&self, from: &str, to: &str) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![from]);
        while let Some(uid) = next.pop() {
            if uid == to {
                return true;
            }
            if self.waiting.contains_key(uid) && seen.insert(uid) {
                next.extend(self.dependents.get(uid).into_iter().flatten().map(|object_ref| object_ref.uid.as_str()));
            }
        }
        false
    }

    fn dependents_of(&self, owner: &ObjectRef) -> Vec<ObjectRef> {
        self.dependents.get(&owner.uid).into_iter().flatten().cloned().collect()
    }
}

/// The number of existing owners, and the uids of deleted ones and of those that wait for their dependents. None when it
/// cannot be determined.
fn classify(
    actor: &Actor<'_>,
    object_ref: &ObjectRef,
    references: &[Value],
    cause: &Trigger,
) -> Option<(usize, Vec<String>, Vec<String>)> {
    let (mut solid, mut dangling, mut waiting) = (0, Vec::new(), Vec::new());
    for reference in references {
        let uid = reference["uid"].as_str().unwrap_or_default();
        let stands = match cause {
            Trigger::Lost(lost) if lost == uid => OwnerState::Gone,
            _ => owner(actor, object_ref, reference, matches!(cause, Trigger::Fresh))?,
        };
        match stands {
            OwnerState::Lives => solid += 1,
            OwnerState::Gone => dangling.push(uid.to_owned()),
            OwnerState::Waits => waiting.push(uid.to_owned()),
        }
    }
    Some((solid, dangling, waiting))
}

pub(super) fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|known| known == name))
}

fn blocks(object: &Value, owner: &str) -> bool {
    let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    references.into_iter().any(|reference| reference["uid"] == owner && reference["blockOwnerDeletion"] == true)
}

fn drop_owners(object: &mut Value, uids: &[&str]) {
    let map = metadata(object);
    let Some(list) = map.get_mut("ownerReferences").and_then(Value::as_array_mut) else { return };
    list.retain(|reference| !reference["uid"].as_str().is_some_and(|uid| uids.contains(&uid)));
    if list.is_empty() {
        map.remove("ownerReferences");
    }
}

/// The state of a reference's owner; none for a reference that cannot be resolved, which keeps its object.
fn owner(actor: &Actor<'_>, dependent: &ObjectRef, reference: &Value, fresh: bool) -> Option<OwnerState> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let resource = actor.inner.registry.by_kind(text("apiVersion"), text("kind"))?;
    if resource.namespaced && dependent.key.namespace.is_empty() {
        // A cluster-scoped object cannot refer to an owner in a namespace.
        if fresh && elsewhere(actor, &resource, text("uid")) {
            report(actor, dependent, reference);
        }
        return None;
    }
    let namespace: &str = if resource.namespaced { &dependent.key.namespace } else { "" };
    let found = actor.inner.store.get(&resource.storage, &Key::new(namespace, text("name")));
    match found.filter(|object| object.uid == text("uid")) {
        Some(object) if object.deleting && has_finalizer(&object.value(), FOREGROUND) => Some(OwnerState::Waits),
        Some(_) => Some(OwnerState::Lives),
        None => {
            if fresh && resource.namespaced && elsewhere(actor, &resource, text("uid")) {
                report(actor, dependent, reference);
            }
            Some(OwnerState::Gone)
        }
    }
}

/// Whether the owner exists in another namespace.
fn elsewhere(actor: &Actor<'_>, resource: &Arc<Resource>, uid: &str) -> bool {
    let page = actor.inner.store.page(&resource.storage, None, None, None, 1, |object| object.uid == uid);
    page.is_ok_and(|page| !page.objects.is_empty())
}

/// Reports by an Event that the owner is in another namespace.
fn report(actor: &Actor<'_>, dependent: &ObjectRef, reference: &Value) {
    let Some(events) = actor.inner.registry.by_plural("", "events") else { return };
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let own_namespace: &str = &dependent.key.namespace;
    // Events about cluster-scoped objects are in the default namespace.
    let namespace = if own_namespace.is_empty() { "default" } else { own_namespace };
    let identity = format!(
        "[{}/{}, namespace: {own_namespace}, name: {}, uid: {}]",
        text("apiVersion"),
        text("kind"),
        text("name"),
        text("uid")
    );
    let now = actor.inner.timestamp();
    let mut involved = json!({
        "apiVersion": &*dependent.resource.api_version, "kind": &*dependent.resource.kind,
        "name": &*dependent.key.name, "uid": dependent.uid,
    });
    if !own_namespace.is_empty() {
        involved["namespace"] = own_namespace.into();
    }
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{:x}", dependent.key.name, actor.inner.random()), "namespace": namespace},
        "involvedObject": involved, "type": "Warning", "reason": "OwnerRefInvalidNamespace",
        "message": format!("ownerRef {identity} does not exist in namespace {own_namespace:?}"),
        "source": {"component": "garbage-collector-controller"}, "reportingComponent": "garbage-collector-controller",
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    });
    log("garbage", actor.create(&events, namespace, event));
}
