//! Server-side apply of one object, and its result.

use std::fmt;

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::manifest::Object;

/// The field manager of an installation.
pub(crate) const FIELD_MANAGER: &str = "fleetwright-install";

/// The result of applying an object, or of a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    Configured,
    Unchanged,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        })
    }
}

/// The options of an apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApplyOptions {
    /// Sends a dry run, which changes nothing.
    pub(crate) dry_run: bool,
    /// Takes over fields of other field managers.
    pub(crate) force: bool,
}

/// Why an object could not be applied.
#[derive(Debug)]
pub(crate) enum ApplyError {
    /// Other managers own fields: the field and its owner, each.
    Owned(Vec<(String, String)>),
    /// The object is terminating.
    Leaving,
    /// Its namespace does not exist.
    NoNamespace,
    /// Anything else.
    Failed(kube::Error),
}

/// Applies an object.
///
/// Labels of a namespace that somebody else created are left alone: [`super::uninstall`] uses them to decide which namespaces to remove.
pub(crate) async fn apply(client: &Client, object: &Object, how: ApplyOptions) -> Result<Change, ApplyError> {
    let api = object.api(client);
    let before = api.get_opt(object.name()).await.map_err(ApplyError::Failed)?;
    if let Some(before) = &before {
        if before.metadata.deletion_timestamp.is_some() {
            return Err(ApplyError::Leaving);
        }
        if object.is_namespace() && !super::is_ours(&before.metadata) {
            return Ok(Change::Unchanged);
        }
    }
    let mut params = PatchParams::apply(FIELD_MANAGER);
    params.dry_run = how.dry_run;
    params.force = how.force;
    let after = api.patch(object.name(), &params, &Patch::Apply(&object.value)).await.map_err(refused)?;
    let Some(before) = before else { return Ok(Change::Created) };
    // The server keeps the resourceVersion if an apply changes nothing. A dry run always keeps it.
    let same = match how.dry_run {
        false => before.metadata.resource_version == after.metadata.resource_version,
        true => lasting(&before) == lasting(&after),
    };
    Ok(if same { Change::Unchanged } else { Change::Configured })
}

/// The object without the fields that every write changes.
fn lasting(object: &kube::api::DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("generation");
        if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            for entry in entries.iter_mut() {
                entry["time"] = json!(null);
            }
            entries.sort_by_key(Value::to_string);
        }
    }
    value
}

fn refused(error: kube::Error) -> ApplyError {
    let kube::Error::Api(status) = &error else { return ApplyError::Failed(error) };
    match status.code {
        409 => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let owned: Vec<_> = causes
                .filter(|cause| cause.reason == "FieldManagerConflict")
                .map(|cause| (cause.field.clone(), owner(&cause.message)))
                .collect();
            if owned.is_empty() { ApplyError::Failed(error) } else { ApplyError::Owned(owned) }
        }
        404 if status.details.as_ref().is_some_and(|details| details.kind == "namespaces") => ApplyError::NoNamespace,
        _ => ApplyError::Failed(error),
    }
}

/// The manager in a conflict's message: `conflict with "kubectl" using apps/v1`.
fn owner(message: &str) -> String {
    message.strip_prefix("conflict with ").unwrap_or(message).to_owned()
}
