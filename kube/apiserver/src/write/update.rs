//! Update, and the loop that every change of an existing object goes through.

use fleetwright_builtins::{meta, strategy, validation};
use fleetwright_schema::FieldError;
use serde_json::Value;

use super::checks::{dedup_owners, ensure_namespace, warnings};
use crate::error::ApiError;
use crate::fields::{has_finalizers, meta_text, metadata};
use crate::registry::Origin;
use crate::store::{Change, CommitError, Object, Precondition};
use crate::write_request::{Outcome, WriteRequest};

/// What a change makes of the live object.
pub(crate) struct Changed {
    /// The new object.
    pub object: Value,
    /// Whether managedFields are already set (server-side apply).
    pub owned: bool,
}

/// Replaces an object with the body of a PUT. Returns the object and whether it was created.
pub(crate) fn update(op: &WriteRequest<'_>, name: &str, mut object: Value) -> Result<(Outcome, bool), ApiError> {
    ensure_namespace(op, &mut object)?;
    let given = meta_text(&object, "name");
    if given.is_empty() {
        metadata(&mut object).insert("name".into(), name.into());
    } else if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    if op.server.store.get(&op.resource.storage, &op.key(name)).is_none() {
        let uid = meta_text(&object, "uid");
        if !uid.is_empty() {
            return Err(uid_conflict(op, name, uid, ""));
        }
        if op.subresource.is_empty() && allows_create_on_update(op) {
            op.server.authorize_create(op, name)?;
            metadata(&mut object).remove("resourceVersion");
            return Ok((super::create::create(op, object, false)?, true));
        }
        return Err(op.resource.not_found(name));
    }
    let outcome = change(op, name, |live| {
        let (wanted, found) = (meta_text(&object, "uid"), meta_text(live, "uid"));
        if !wanted.is_empty() && wanted != found {
            return Err(uid_conflict(op, name, wanted, found));
        }
        Ok(Changed { object: object.clone(), owned: false })
    })?;
    Ok((outcome, false))
}

/// Changes an existing object: decides from the live one, checks, commits; again when another write came first.
pub(crate) fn change(
    op: &WriteRequest<'_>,
    name: &str,
    mut decide: impl FnMut(&Value) -> Result<Changed, ApiError>,
) -> Result<Outcome, ApiError> {
    let key = op.key(name);
    // Without a bound: whoever loses a race loses it to a write that was stored.
    loop {
        let live = op.server.store.get(&op.resource.storage, &key).ok_or_else(|| op.resource.not_found(name))?;
        let old = op.resource.value(&live);
        let Changed { object: mut new, owned } = decide(&old)?;
        check_version(op, name, &old, &new)?;
        metadata(&mut new).insert("resourceVersion".into(), meta_text(&old, "resourceVersion").into());
        dedup_owners(op, &mut new);
        if !owned {
            op.own(Some(&old), &mut new)?;
        }
        op.server.admit_update(op, &old, &mut new)?;
        prepare(op, &old, &mut new);
        let _held = op.server.allocate(op, Some(&old), &mut new)?;
        let errors = validate(op, &old, &new);
        if !errors.is_empty() {
            return Err(op.resource.invalid(name, &errors));
        }
        for warning in warnings(op, &new, Some(&old)) {
            op.warnings.add(warning);
        }
        fleetwright_merge::keep_times_if_unchanged(&old, &mut new);
        op.server.admit_updated(op, &old, &new)?;
        if new == old && *live.api_version == *op.resource.storage_api_version {
            return Ok(Outcome::Stored(live));
        }
        match commit(op, &live, &old, new) {
            Ok(outcome) => return Ok(outcome),
            // A version that the client named is compared again with the newer object, and refused.
            Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(op.lost_race(error, name)),
        }
    }
}

fn commit(op: &WriteRequest<'_>, live: &Object, old: &Value, new: Value) -> Result<Outcome, CommitError> {
    let emptied = !has_finalizers(&new)
        && !meta_text(old, "deletionTimestamp").is_empty()
        && old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && op.server.may_go(op.resource, &new);
    if op.options.dry_run {
        return Ok(Outcome::Transient(new));
    }
    let key = live.key.clone();
    let expect = Precondition::Revision(live.revision);
    if emptied {
        // The last finalizer went: this update is the end of the object. Clients of a PUT expect the object back.
        op.server.store.commit(&op.resource.storage, &key, expect, Change::Delete(op.draft(new.clone())))?;
        return Ok(Outcome::Transient(new));
    }
    op.server.store.commit(&op.resource.storage, &key, expect, Change::Put(op.draft(new))).map(Outcome::Stored)
}

/// Compares the resourceVersion of the new object with the live one.
fn check_version(op: &WriteRequest<'_>, name: &str, old: &Value, new: &Value) -> Result<(), ApiError> {
    match meta_text(new, "resourceVersion") {
        "" | "0" if allows_unconditional_update(op) => Ok(()),
        "" | "0" => {
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            Err(ApiError::invalid(&op.resource.group, &op.resource.plural, name, &[error]))
        }
        version if version == meta_text(old, "resourceVersion") => Ok(()),
        version if version.parse::<u64>().is_err() => Err(ApiError::invalid(
            &op.resource.group,
            &op.resource.kind,
            name,
            &[FieldError::invalid(
                "metadata.resourceVersion",
                version,
                format!("strconv.ParseUint: parsing {version:?}: invalid syntax"),
            )],
        )),
        _ => Err(op.resource.modified(name)),
    }
}

fn uid_conflict(op: &WriteRequest<'_>, name: &str, wanted: &str, found: &str) -> ApiError {
    let place = if op.namespace.is_empty() { name.to_owned() } else { format!("{}/{name}", op.namespace) };
    ApiError::conflict(
        &op.resource.group,
        &op.resource.plural,
        name,
        format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{place}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
            op.resource.plural
        ),
    )
}

fn allows_create_on_update(op: &WriteRequest<'_>) -> bool {
    matches!(&op.resource.origin, Origin::Builtin(kind) if matches!(
        kind.kind,
        "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" | "Lease" | "Event" | "Service" | "Endpoints"
    ))
}

fn allows_unconditional_update(op: &WriteRequest<'_>) -> bool {
    match &op.resource.origin {
        Origin::Builtin(kind) => !matches!(
            kind.kind,
            "Lease" | "PodDisruptionBudget" | "CSIDriver" | "CSINode" | "VolumeAttachment" | "CustomResourceDefinition"
        ),
        Origin::Custom(_) => false,
    }
}

/// Carries over what an update cannot change, then lets the kind say what else it may not.
fn prepare(op: &WriteRequest<'_>, old: &Value, new: &mut Value) {
    let before = &old["metadata"];
    let map = metadata(new);
    map.remove("selfLink");
    for field in ["generation", "creationTimestamp"] {
        copy(before, map, field);
    }
    if map.get("uid").and_then(Value::as_str).unwrap_or_default().is_empty() {
        copy(before, map, "uid");
    }
    if !before["deletionTimestamp"].is_null() {
        copy(before, map, "deletionTimestamp");
    }
    if !before["deletionGracePeriodSeconds"].is_null() && !map.contains_key("deletionGracePeriodSeconds") {
        copy(before, map, "deletionGracePeriodSeconds");
    }
    match &op.resource.origin {
        Origin::Builtin(kind) => {
            strategy::prepare_update(kind, op.subresource(), old, new);
            if op.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                crate::crd::prepare_update(op.subresource(), old, new);
            }
        }
        Origin::Custom(custom) => custom.prepare_update(op.subresource(), old, new),
    }
}

fn copy(from: &Value, to: &mut serde_json::Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => to.insert(field.into(), value.clone()),
        None => to.remove(field),
    };
}

fn validate(op: &WriteRequest<'_>, old: &Value, new: &Value) -> Vec<FieldError> {
    match &op.resource.origin {
        Origin::Builtin(_) if op.resource.is("apiextensions.k8s.io", "customresourcedefinitions") => {
            let mut errors = meta::validate_update(new, old);
            errors.extend(crate::crd::validate(new, Some(old)));
            errors
        }
        Origin::Builtin(kind) => validation::validate_update(kind, op.subresource(), new, old),
        Origin::Custom(custom) => {
            let mut errors = meta::validate_update(new, old);
            let (wrong, forgiven) = custom.validate_object(new, Some(old));
            forgiven.into_iter().for_each(|warning| op.warnings.add(warning));
            errors.extend(wrong);
            errors
        }
    }
}
