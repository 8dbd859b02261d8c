//! Delete and deletecollection: preconditions, grace, finalizers, propagation.

use fleetwright_builtins::strategy;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::options::{DeleteOptions, Propagation};
use crate::error::ApiError;
use crate::fields::{has_finalizers, meta_text, metadata, seconds_text};
use crate::registry::Origin;
use crate::store::{Change, CommitError, Object, Precondition};
use crate::write_request::{Outcome, WriteRequest};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

const JOBS_KEEP_PODS: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background \
    to remove them or set propagationPolicy=Orphan to suppress this warning";

/// The result of a delete.
pub(crate) enum DeleteOutcome {
    /// The object is deleted; some kinds answer with it, most with a `Status`.
    Gone(Value),
    /// The object stays for now, with a deletion timestamp.
    Pending(Outcome),
}

/// The next step of a deletion.
enum Step {
    /// The object is terminating already; nothing changes.
    Pending,
    /// The object gets a deletionTimestamp and waits for its grace period or its finalizers.
    Mark(Value),
    /// The object is removed now.
    Remove(Value),
}

/// Deletes one object.
pub(crate) fn delete(op: &WriteRequest<'_>, name: &str, options: &DeleteOptions) -> Result<DeleteOutcome, ApiError> {
    let key = op.key(name);
    loop {
        let live = op.server.store.get(&op.resource.storage, &key).ok_or_else(|| op.resource.not_found(name))?;
        let old = op.resource.value(&live);
        check_preconditions(op, name, &old, options)?;
        op.server.admit_delete(op, &old)?;
        let expect = Precondition::Revision(live.revision);
        let storage = &op.resource.storage;
        match decide(op, &old, options)? {
            Step::Pending => return Ok(DeleteOutcome::Pending(Outcome::Stored(live))),
            Step::Mark(new) if options.dry_run || new == old => {
                return Ok(DeleteOutcome::Pending(if new == old {
                    Outcome::Stored(live)
                } else {
                    Outcome::Transient(new)
                }));
            }
            Step::Mark(new) => match op.server.store.commit(storage, &key, expect, Change::Put(op.draft(new))) {
                Ok(stored) => return Ok(DeleteOutcome::Pending(Outcome::Stored(stored))),
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(op.lost_race(error, name)),
            },
            Step::Remove(last) if options.dry_run => return Ok(DeleteOutcome::Gone(last)),
            Step::Remove(last) => {
                match op.server.store.commit(storage, &key, expect, Change::Delete(op.draft(last.clone()))) {
                    Ok(_) => return Ok(DeleteOutcome::Gone(last)),
                    Err(CommitError::Conflict(_)) => {}
                    Err(error) => return Err(op.lost_race(error, name)),
                }
            }
        }
    }
}

pub(crate) fn check_preconditions(
    op: &WriteRequest<'_>,
    name: &str,
    old: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let conflict = |why: String| ApiError::conflict(&op.resource.group, &op.resource.kind, name, why);
    if let Some(uid) = &options.uid
        && uid != meta_text(old, "uid")
    {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            meta_text(old, "uid")
        )));
    }
    if let Some(version) = &options.resource_version
        && version != meta_text(old, "resourceVersion")
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            meta_text(old, "resourceVersion")
        )));
    }
    Ok(())
}

fn decide(op: &WriteRequest<'_>, old: &Value, options: &DeleteOptions) -> Result<Step, ApiError> {
    let now = op.server.now();
    let mut new = old.clone();
    let graceful = match grace(op, old, options, now) {
        Grace::Pending => return Ok(Step::Pending),
        Grace::None => false,
        Grace::Seconds { seconds, at, first } => {
            if first {
                bump_generation(&mut new);
            }
            let map = metadata(&mut new);
            map.insert("deletionTimestamp".into(), seconds_text(at).into());
            map.insert("deletionGracePeriodSeconds".into(), seconds.into());
            if seconds == 0 && !has_finalizers(&new) {
                return Ok(Step::Remove(new));
            }
            true
        }
    };
    if op.server.prepare_delete(op, &mut new) {
        return Ok(Step::Mark(new));
    }
    set_propagation(op, &mut new, options);
    if op.resource.is("", "namespaces") && op.server.namespace_has_work(&new) {
        mark(&mut new, now);
        metadata(&mut new).remove("deletionGracePeriodSeconds");
        new["status"]["phase"] = "Terminating".into();
        return Ok(Step::Mark(new));
    }
    if !has_finalizers(&new) && !graceful {
        return Ok(Step::Remove(new));
    }
    if !graceful {
        mark(&mut new, now);
    }
    Ok(Step::Mark(new))
}

enum Grace {
    /// The kind has no grace period.
    None,
    /// A deletion with at least as short a grace period is under way.
    Pending,
    Seconds {
        seconds: i64,
        at: Timestamp,
        first: bool,
    },
}

fn grace(op: &WriteRequest<'_>, old: &Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    let Origin::Builtin(kind) = &op.resource.origin else { return Grace::None };
    if !op.resource.is("", "pods") {
        return Grace::None;
    }
    // A negative grace period is the shortest one.
    let requested = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let seconds = strategy::graceful_deletion(kind, old, requested);
    let Some(at) = old["metadata"]["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return Grace::Seconds { seconds, at: later(now, seconds), first: true };
    };
    match (old["metadata"]["deletionGracePeriodSeconds"].as_i64(), requested) {
        (None | Some(0), _) => Grace::None,
        (Some(before), Some(shorter)) if shorter < before => {
            let moved = later(at, shorter.wrapping_sub(before));
            let (seconds, at) = match moved < now {
                true => (if shorter == 0 { 0 } else { 1 }, now),
                false => (shorter, moved),
            };
            Grace::Seconds { seconds, at, first: false }
        }
        _ => Grace::Pending,
    }
}

/// The time after this number of seconds, for any number that a client sends. kube-apiserver does not limit grace periods and counts them in
/// nanoseconds that wrap:
/// 9223372036854775807 seconds are -1 second.
fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_nanos(seconds.wrapping_mul(1_000_000_000))).unwrap_or(at)
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64().filter(|g| *g > 0) {
        metadata(object).insert("generation".into(), generation.wrapping_add(1).into());
    }
}

/// Marks an object as terminating.
fn mark(object: &mut Value, now: Timestamp) {
    let before = object["metadata"]["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    if before.is_none() {
        bump_generation(object);
    }
    let map = metadata(object);
    if before.is_none_or(|at| at > now) {
        map.insert("deletionTimestamp".into(), seconds_text(now).into());
    }
    map.insert("deletionGracePeriodSeconds".into(), 0.into());
}

/// Sets or clears the garbage collector's finalizers, according to the options, the object and the kind.
fn set_propagation(op: &WriteRequest<'_>, object: &mut Value, options: &DeleteOptions) {
    if op.resource.is("", "events") || op.resource.is("events.k8s.io", "events") {
        return;
    }
    let mut finalizers: Vec<String> = object["metadata"]["finalizers"]
        .as_array()
        .map(|list| list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect())
        .unwrap_or_default();
    let had = |name: &str| finalizers.iter().any(|f| f == name);
    let (orphan, foreground) = match (options.orphan_dependents, options.propagation) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(Propagation::Orphan)) => (true, false),
        (None, Some(Propagation::Foreground)) => (false, true),
        (None, Some(Propagation::Background)) => (false, false),
        (None, None) if had(ORPHAN) || had(FOREGROUND) => (had(ORPHAN), !had(ORPHAN)),
        // Jobs orphan their pods by default, as they did before there was a garbage collector.
        (None, None) if op.resource.is("batch", "jobs") => {
            op.warnings.add(JOBS_KEEP_PODS);
            (true, false)
        }
        (None, None) => (false, false),
    };
    finalizers.retain(|f| f != ORPHAN && f != FOREGROUND);
    if orphan {
        finalizers.push(ORPHAN.into());
    }
    if foreground {
        finalizers.push(FOREGROUND.into());
    }
    let map = metadata(object);
    if finalizers.is_empty() {
        map.remove("finalizers");
    } else {
        map.insert("finalizers".into(), finalizers.into());
    }
}

/// Whether the kind answers a finished delete with the object instead of a `Status`.
pub(crate) fn returns_object(origin: &Origin) -> bool {
    matches!(origin, Origin::Builtin(kind) if kind.returns_deleted)
}

/// The `Status` of a finished delete.
pub(crate) fn success(op: &WriteRequest<'_>, object: &Value) -> Value {
    let mut details =
        json!({"name": meta_text(object, "name"), "kind": &*op.resource.plural, "uid": meta_text(object, "uid")});
    if !op.resource.group.is_empty() {
        details["group"] = Value::from(&*op.resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Deletes every listed object; objects that were deleted in between are not an error.
pub(crate) fn delete_collection(
    op: &WriteRequest<'_>,
    objects: Vec<std::sync::Arc<Object>>,
    options: &DeleteOptions,
) -> Result<Vec<Value>, ApiError> {
    let mut items = Vec::with_capacity(objects.len());
    for object in objects {
        let scoped = WriteRequest {
            server: op.server,
            resource: op.resource,
            user: op.user,
            namespace: &object.key.namespace,
            subresource: "",
            options: op.options.clone(),
            warnings: op.warnings,
        };
        match delete(&scoped, &object.key.name, options) {
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
            Ok(DeleteOutcome::Gone(last)) => items.push(last),
            Ok(DeleteOutcome::Pending(Outcome::Stored(stored))) => items.push(op.resource.value(&stored)),
            Ok(DeleteOutcome::Pending(Outcome::Transient(value))) => items.push(value),
        }
    }
    Ok(items)
}
