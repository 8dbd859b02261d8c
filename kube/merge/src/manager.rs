//! The owner of every field, through every kind of write: create, update and patch through [`update`], server-side
//! apply through [`apply`].

use std::sync::LazyLock;

use fleetwright_schema::Schema;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::combine;
use crate::compare::{Comparison, compare};
use crate::error::{Conflict, MergeError};
use crate::field_set::FieldSet;
use crate::last_applied;
use crate::managed::{Managed, ManagerId, Operation, Owned, asks_for_reset, entries, set_entries};
use crate::path::path_to_string;
use crate::typed::{self, Ty};

/// The parameters of a write: manager, operation, version and time.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The schema of the kind in the request's version.
    pub schema: &'a Schema,
    /// The kind of the object.
    pub kind: &'a str,
    /// The apiVersion of the request: `apps/v1`.
    pub api_version: &'a str,
    /// The name of the field manager; none means `unknown`.
    pub manager: &'a str,
    /// The subresource that the request writes to.
    pub subresource: Option<&'a str>,
    /// The time of the write.
    pub now: Timestamp,
    /// Fields that this endpoint never changes, so that their owners stay: `&[&["status"]]` for the main one.
    pub reset_fields: &'a [&'a [&'a str]],
    /// All versions of the kind that still exist. Entries of other versions are dropped; an empty list keeps all.
    pub versions: &'a [&'a str],
    /// Whether the kind is one of the server's own and not a custom resource.
    pub built_in: bool,
}

impl<'a> Request<'a> {
    /// A write to the main endpoint of a custom resource.
    #[must_use]
    pub fn new(schema: &'a Schema, api_version: &'a str, kind: &'a str, manager: &'a str, now: Timestamp) -> Self {
        Self {
            schema,
            kind,
            api_version,
            manager,
            subresource: None,
            now,
            reset_fields: &[],
            versions: &[],
            built_in: false,
        }
    }

    fn ty(&self) -> Ty<'a> {
        Ty::root(self.schema)
    }

    fn id(&self, operation: Operation) -> ManagerId {
        let manager = if self.manager.is_empty() { "unknown" } else { self.manager };
        ManagerId::new(manager, operation, self.api_version, self.subresource.unwrap_or_default())
    }

    /// Whether a version of the kind still exists.
    fn knows(&self, version: &str) -> bool {
        self.versions.is_empty() || version == self.api_version || self.versions.contains(&version)
    }

    fn ignored(&self) -> FieldSet {
        FieldSet::of_fields(self.reset_fields)
    }
}

/// Fields that identify or version an object and have no owner.
static UNOWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Works out the managedFields of an object that is created, updated or patched: the changed fields go to the
/// request's manager, and away from all others.
///
/// `live` is none for a create. When the bookkeeping itself fails, the live object's managedFields are kept: a write
/// never fails for them.
///
/// # Errors
/// When `new` is not an object.
pub fn update(req: &Request<'_>, live: Option<&Value>, new: &mut Value) -> Result<(), MergeError> {
    if !new.is_object() {
        return Err(MergeError::Internal("the object to write is not a JSON object".to_owned()));
    }
    let start = starting_point(req, live, new);
    // An object without managedFields stays without them until the first apply.
    if start.is_empty() && live.is_some_and(has_uid) {
        set_entries(new, None);
        return Ok(());
    }
    let nothing = Value::Object(Map::new());
    match track_update(req, live.unwrap_or(&nothing), new, start) {
        Ok(Some(managed)) => managed.store(new),
        Ok(None) | Err(_) => {
            let before = entries(live);
            if entries(Some(new)) != before {
                set_entries(new, before.cloned());
            }
        }
    }
    Ok(())
}

/// The owners before a write.
enum StartingObject<'v> {
    /// The managedFields of the live object.
    Live(&'v [Value]),
    /// The managedFields that the client sent.
    Sent(Managed),
    /// None: there are none, or the client asked to forget them.
    Nobody,
}

impl StartingObject<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Live(entries) => entries.is_empty(),
            Self::Sent(managed) => managed.0.is_empty(),
            Self::Nobody => true,
        }
    }
}

/// The owners before the write: the live object's, unless the client sent others or asked to forget them.
fn starting_point<'v>(req: &Request<'_>, live: Option<&'v Value>, new: &Value) -> StartingObject<'v> {
    let before = entries(live);
    if req.subresource.is_none()
        && let Some(sent) = entries(Some(new))
    {
        if asks_for_reset(sent) {
            return StartingObject::Nobody;
        }
        if before != Some(sent)
            && let Ok(managed) = Managed::decode(sent)
        {
            return StartingObject::Sent(managed);
        }
    }
    before.map_or(StartingObject::Nobody, |entries| StartingObject::Live(entries))
}

/// The owners after the write; none when nothing that anybody could own has changed.
fn track_update(
    req: &Request<'_>,
    live: &Value,
    new: &Value,
    start: StartingObject<'_>,
) -> Result<Option<Managed>, String> {
    let changes = compare(req.ty(), live, new, req.built_in)?.without(&req.ignored());
    let mut managed = match start {
        StartingObject::Live(entries) => {
            let paths = [&changes.added, &changes.modified, &changes.removed];
            let managed = Managed::decode_touched(entries, &paths, &req.id(Operation::Update))?;
            let all_known = managed.0.values().all(|owned| req.knows(&owned.api_version));
            if changes.is_empty() && all_known {
                return Ok(None);
            }
            managed
        }
        StartingObject::Sent(managed) => managed,
        StartingObject::Nobody => Managed::default(),
    };
    record(req, &changes, &mut managed);
    managed.cap_updates();
    Ok(Some(managed))
}

/// Assigns the changed fields to the request's manager, and removes them from all others.
fn record(req: &Request<'_>, changes: &Comparison, managed: &mut Managed) {
    reconcile(req, managed);
    give_up(managed, changes);
    let taken = changes.written().difference(&UNOWNED);
    if taken.is_empty() {
        return;
    }
    let owned =
        managed.0.entry(req.id(Operation::Update)).or_insert_with(|| Owned::of(FieldSet::new(), req.api_version));
    owned.set.add(&taken);
    owned.time = Some(req.now);
}

/// Drops the entries of versions that no longer exist, and fits the others to the present schema.
fn reconcile(req: &Request<'_>, managed: &mut Managed) {
    let known =
        |version: &str| req.versions.is_empty() || version == req.api_version || req.versions.contains(&version);
    managed.0.retain(|_, owned| known(&owned.api_version));
    for owned in managed.0.values_mut() {
        typed::reconcile(&mut owned.set, req.ty());
    }
}

/// Removes changed and deleted fields from all owners; owners without fields are dropped.
fn give_up(managed: &mut Managed, changes: &Comparison) {
    for owned in managed.0.values_mut() {
        for gone in [&changes.added, &changes.modified, &changes.removed] {
            if owned.set.touches(gone) {
                owned.set = std::mem::take(&mut owned.set).difference(gone);
            }
        }
    }
    managed.0.retain(|_, owned| owned.untouched.is_some() || !owned.set.is_empty());
}

fn has_uid(object: &Value) -> bool {
    object.pointer("/metadata/uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty())
}

/// Applies a configuration: the merged object with its new managedFields. Fields that the manager's last
/// configuration had and this one lacks are removed, unless somebody else owns them too.
///
/// An apply that changes nothing returns the live object, with at most its managedFields changed; see
/// [`crate::keep_times_if_unchanged`].
///
/// # Errors
/// When the configuration is not one, does not fit the schema, or (without `force`) changes what others own.
pub fn apply(req: &Request<'_>, live: Option<&Value>, applied: &Value, force: bool) -> Result<Value, MergeError> {
    let managed =
        Managed::of(live).map_err(|e| MergeError::Internal(format!("failed to decode managed fields: {e}")))?;
    check_applied(req, applied)?;
    let typed_error =
        |e: String| MergeError::Internal(format!("failed to create typed patch object ({}): {e}", describe(applied)));
    typed::validate(req.ty(), applied).map_err(typed_error)?;

    let blank = blank_object(req);
    let live_object = live.unwrap_or(&blank);
    let managed = first_apply(req, live, managed)?;
    let result = merge_applied(req, live_object, applied, managed.clone(), force);
    let result = match result {
        Err(Failure::Conflicts(conflicts)) if req.manager == "kubectl" => {
            match last_applied::allowed_conflicts(req, live_object) {
                Some(allowed) => {
                    let left: Vec<_> = conflicts.iter().filter(|(_, path)| !allowed.has(path)).cloned().collect();
                    if left.is_empty() {
                        merge_applied(req, live_object, applied, managed, true)
                    } else {
                        Err(Failure::Conflicts(left))
                    }
                }
                None => Err(Failure::Conflicts(conflicts)),
            }
        }
        other => other,
    };
    let (mut object, managed) = result.map_err(Failure::into_error)?;
    if req.built_in {
        combine::drop_nulls(req.ty(), &mut object);
    } else if let Some(metadata) = object.get_mut("metadata") {
        combine::drop_nulls(req.ty().field("metadata").ty, metadata);
    }
    if req.manager == "kubectl" {
        last_applied::refresh(&mut object, applied);
    }
    managed.store(&mut object);
    Ok(object)
}

fn blank_object(req: &Request<'_>) -> Value {
    serde_json::json!({"apiVersion": req.api_version, "kind": req.kind})
}

fn check_applied(req: &Request<'_>, applied: &Value) -> Result<(), MergeError> {
    let text = |name: &str| applied.get(name).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != req.api_version || text("kind") != req.kind {
        return Err(MergeError::BadRequest(format!("invalid object type: {}", describe_kind(applied))));
    }
    if entries(Some(applied)).is_some() {
        return Err(MergeError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    Ok(())
}

/// The kind as messages name it: `apps/v1, Kind=Deployment`, `/v1, Kind=Pod`.
fn describe_kind(object: &Value) -> String {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    format!("{group}/{version}, Kind={}", text("kind"))
}

fn describe(object: &Value) -> String {
    let meta =
        |name: &str| object.get("metadata").and_then(|m| m.get(name)).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}; {}", meta("namespace"), meta("name"), describe_kind(object))
}

/// An object that was never tracked gets an owner for all that it holds before it is first applied to.
fn first_apply(req: &Request<'_>, live: Option<&Value>, mut managed: Managed) -> Result<Managed, MergeError> {
    let Some(live) = live.filter(|_| managed.0.is_empty()) else { return Ok(managed) };
    let changes = compare(req.ty(), &blank_object(req), live, req.built_in)
        .map_err(|e| MergeError::Internal(format!("failed to create manager for existing fields: {e}")))?;
    let before = Request { manager: BEFORE_FIRST_APPLY, ..*req };
    record(&before, &changes.without(&req.ignored()), &mut managed);
    Ok(managed)
}

enum Failure {
    Conflicts(Vec<(ManagerId, Vec<crate::PathElement>)>),
    Other(String),
}

impl Failure {
    fn into_error(self) -> MergeError {
        let conflicts = match self {
            Self::Conflicts(conflicts) => conflicts,
            Self::Other(message) => return MergeError::Internal(message),
        };
        let describe = |(id, path): &(ManagerId, Vec<crate::PathElement>)| {
            let manager = id.describe();
            Conflict { message: format!("conflict with {manager}"), manager, field: path_to_string(path) }
        };
        MergeError::Conflicts(conflicts.iter().map(describe).collect())
    }
}

fn merge_applied(
    req: &Request<'_>,
    live: &Value,
    applied: &Value,
    mut managed: Managed,
    force: bool,
) -> Result<(Value, Managed), Failure> {
    reconcile(req, &mut managed);
    let ty = req.ty();
    let merged =
        combine::merge(ty, live, applied).map_err(|e| Failure::Other(format!("failed to merge config: {e}")))?;
    let ignored = req.ignored();
    let set = typed::field_set(ty, applied).recursive_difference(&ignored);
    let id = req.id(Operation::Apply);
    let previous = managed.0.remove(&id);
    let time = previous.as_ref().and_then(|owned| owned.time);
    managed.0.insert(id.clone(), Owned { time, ..Owned::of(set, req.api_version) });
    let object = match previous {
        Some(previous) if !previous.set.is_empty() => prune(req, merged, &managed, &previous.set),
        _ => merged,
    };

    let compared = compare(ty, live, &object, req.built_in);
    let changes = compared.map_err(|e| Failure::Other(format!("failed to compare objects: {e}")))?.without(&ignored);
    let written = changes.written();
    let mut conflicts = Vec::new();
    for (other, owned) in managed.0.iter_mut().filter(|(other, _)| **other != id) {
        let conflicting = owned.set.intersection(&written);
        if !force {
            conflicts.extend(conflicting.paths().into_iter().map(|path| (other.clone(), path)));
        }
        owned.set = std::mem::take(&mut owned.set).difference(&conflicting).difference(&changes.removed);
    }
    if !conflicts.is_empty() {
        return Err(Failure::Conflicts(conflicts));
    }
    let mine = managed.0.get_mut(&id);
    if let Some(owned) = mine {
        owned.set = std::mem::take(&mut owned.set).difference(&UNOWNED);
        if !same_object(live, &object) {
            owned.time = Some(req.now);
        }
    }
    managed.0.retain(|_, owned| !owned.set.is_empty());
    Ok((object, managed))
}

/// Whether an apply has changed nothing. A blank object is never the same: an apply that creates is a change.
fn same_object(live: &Value, object: &Value) -> bool {
    live == object
}

/// Removes what the manager's last configuration had and its new one lacks, except what others own.
fn prune(req: &Request<'_>, merged: Value, managed: &Managed, last: &FieldSet) -> Value {
    let ty = req.ty();
    let named = |set: &FieldSet| typed::with_named_fields(set, Some(ty));
    let last = named(last);
    let mut pruned = merged.clone();
    combine::remove(ty, &mut pruned, &last);

    // Fields that another manager still owns are restored.
    let merged_set = named(&typed::field_set(ty, &merged));
    let mut kept = named(&typed::field_set(ty, &pruned));
    for owned in managed.0.values() {
        kept.add(&named(&owned.set));
    }
    let mut pruned = merged.clone();
    combine::remove(ty, &mut pruned, &merged_set.clone().difference(&kept));

    // Fields without an owner that the last configuration did not have stay as well.
    let pruned_set = named(&typed::field_set(ty, &pruned));
    let gone = merged_set.difference(&pruned_set).intersection(&last);
    let mut result = merged;
    combine::remove(ty, &mut result, &gone);
    result
}

/// The longest name of a field manager, in bytes.
const MAX_MANAGER_LENGTH: usize = 128;

/// The field manager of a client that names none: its user agent up to the first slash.
#[must_use]
pub fn manager_from_user_agent(user_agent: &str) -> String {
    let mut name = String::new();
    let prefix = user_agent.split('/').next().unwrap_or_default();
    for c in prefix.chars().filter(|c| *c == ' ' || !(c.is_control() || c.is_whitespace())) {
        if name.len() + c.len_utf8() > MAX_MANAGER_LENGTH {
            break;
        }
        name.push(c);
    }
    name
}
