//! Create.

use fleetwright_builtins::names::NameRule;
use fleetwright_builtins::{meta, strategy, validation};
use serde_json::Value;

use super::checks::{dedup_owners, ensure_namespace, warnings};
use crate::error::ApiError;
use crate::fields::{meta_text, metadata};
use crate::registry::Origin;
use crate::store::{Change, CommitError, Precondition};
use crate::write_request::{Outcome, WriteRequest};

/// The number of attempts to generate a free name.
const NAME_ATTEMPTS: usize = 8;

/// Creates an object. `owned` means that managedFields are already set (server-side apply).
pub(crate) fn create(op: &WriteRequest<'_>, mut object: Value, owned: bool) -> Result<Outcome, ApiError> {
    prepare_metadata(op, &mut object)?;
    dedup_owners(op, &mut object);
    if !owned {
        op.own(None, &mut object)?;
    }
    op.server.admit_create(op, &mut object)?;

    let generated = meta_text(&object, "name").is_empty() && !meta_text(&object, "generateName").is_empty();
    if !generated {
        return store(op, object, false);
    }
    let mut attempt = 0;
    loop {
        attempt += 1;
        match store(op, object.clone(), true) {
            Err(error) if error.reason == "AlreadyExists" && attempt < NAME_ATTEMPTS => {}
            Err(error) if error.reason == "AlreadyExists" => {
                return Err(ApiError::new(
                    409,
                    "AlreadyExists",
                    format!("{error}, the server was not able to generate a unique name for the object"),
                ));
            }
            done => return done,
        }
    }
}

/// Removes server-side metadata from the client's object, and sets the path's namespace.
fn prepare_metadata(op: &WriteRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
    let map = metadata(object);
    if map.get("resourceVersion").and_then(Value::as_str).is_some_and(|rv| !rv.is_empty() && rv != "0") {
        return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"]
    {
        map.remove(field);
    }
    ensure_namespace(op, object)
}

fn store(op: &WriteRequest<'_>, mut object: Value, generate: bool) -> Result<Outcome, ApiError> {
    let map = metadata(&mut object);
    map.insert("creationTimestamp".into(), op.server.timestamp().into());
    map.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    if generate {
        let base = map.get("generateName").and_then(Value::as_str).unwrap_or_default();
        let name = meta::generate_name(base, op.server.random());
        map.insert("name".into(), name.into());
    }
    prepare(op, &mut object);
    op.server.complete_create(op, &mut object);
    let name = meta_text(&object, "name").to_owned();
    let _held = op.server.allocate(op, None, &mut object)?;
    let errors = validate(op, &object);
    if !errors.is_empty() {
        return Err(op.resource.invalid(&name, &errors));
    }
    for warning in warnings(op, &object, None) {
        op.warnings.add(warning);
    }
    op.server.admit_created(op, &object)?;
    let key = op.key(&name);
    if op.options.dry_run {
        return match op.server.store.get(&op.resource.storage, &key) {
            Some(live) => Err(op.lost_race(CommitError::Exists(live), &name)),
            None => Ok(Outcome::Transient(object)),
        };
    }
    let draft = op.draft(object);
    let stored = op.server.store.commit(&op.resource.storage, &key, Precondition::Absent, Change::Put(draft));
    stored.map(Outcome::Stored).map_err(|error| op.lost_race(error, &name))
}

fn prepare(op: &WriteRequest<'_>, object: &mut Value) {
    match &op.resource.origin {
        Origin::Builtin(kind) => {
            strategy::prepare_create(kind, object);
            if op.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                crate::crd::prepare_create(object);
            }
        }
        Origin::Custom(custom) => custom.prepare_create(object),
    }
}

fn validate(op: &WriteRequest<'_>, object: &Value) -> Vec<fleetwright_schema::FieldError> {
    match &op.resource.origin {
        Origin::Builtin(_) if op.resource.is("apiextensions.k8s.io", "customresourcedefinitions") => {
            crate::crd::validate(object, None)
        }
        Origin::Builtin(kind) => validation::validate_create(kind, object),
        Origin::Custom(custom) => {
            let mut errors = meta::validate_create(object, op.resource.namespaced, NameRule::Subdomain);
            errors.extend(custom.validate_object(object, None).0);
            errors
        }
    }
}
