//! The parameters of a write, which every step of it gets, and its result.

use std::sync::{Arc, Mutex, PoisonError};

use fleetwright_rbac::User;
use serde_json::Value;

use crate::error::{ApiError, merge_error};
use crate::registry::{Origin, Resource};
use crate::state::Inner;
use crate::store::{CommitError, Draft, Key, Object};
use crate::write::options::WriteOptions;

/// The warnings for the client beside the answer.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    pub(crate) fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&text) {
            all.push(text);
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A write: user, verb and resource.
pub(crate) struct WriteRequest<'a> {
    pub server: &'a Arc<Inner>,
    pub resource: &'a Arc<Resource>,
    pub user: &'a User,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// The subresource; empty for the resource itself.
    pub subresource: &'a str,
    pub options: WriteOptions,
    pub warnings: &'a Warnings,
}

/// The result of a write.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// The stored object.
    Stored(Arc<Object>),
    /// An object that is not stored: a dry run's, or the last state of a deleted one.
    Transient(Value),
}

impl WriteRequest<'_> {
    pub(crate) fn key(&self, name: &str) -> Key {
        Key { namespace: self.namespace.into(), name: name.into() }
    }

    pub(crate) fn subresource(&self) -> Option<&str> {
        Some(self.subresource).filter(|s| !s.is_empty())
    }

    /// The store's form of an object of this resource.
    pub(crate) fn draft(&self, object: Value) -> Draft {
        let own = self.resource.storage_api_version == self.resource.api_version || self.resource.custom().is_some();
        let fields = if own { self.resource.selectable_fields(&object) } else { Vec::new() };
        let stored = self.resource.to_storage(object);
        // Events are stored, and found, as core/v1, independent of the group of the request.
        let core = (!own).then(|| self.server.registry.find("", "v1", &self.resource.plural)).flatten();
        let fields = core.map_or(fields, |core| core.selectable_fields(&stored));
        Draft::new(&stored, fields, self.resource.stamp)
    }

    /// The same object, answered from memory when nothing is to be kept.
    pub(crate) fn lost_race(&self, error: CommitError, name: &str) -> ApiError {
        match error {
            CommitError::Exists(live) => {
                let mut error = ApiError::already_exists(&self.resource.group, &self.resource.plural, name);
                if live.deleting {
                    error.message = format!("object is being deleted: {}", error.message);
                }
                error
            }
            CommitError::Missing => self.resource.not_found(name),
            CommitError::Conflict(_) => self.resource.modified(name),
        }
    }

    /// Sets `metadata.managedFields` of `new` for a write that is not an apply.
    pub(crate) fn own(&self, live: Option<&Value>, new: &mut Value) -> Result<(), ApiError> {
        fleetwright_merge::update(&self.ownership(), live, new).map_err(merge_error)
    }

    pub(crate) fn ownership(&self) -> fleetwright_merge::Request<'_> {
        fleetwright_merge::Request {
            schema: &self.resource.schema,
            kind: &self.resource.kind,
            api_version: &self.resource.api_version,
            manager: &self.options.manager,
            subresource: self.subresource(),
            now: self.server.now(),
            reset_fields: self.resource.reset_fields(self.subresource()),
            versions: &[],
            built_in: self.resource.custom().is_none(),
        }
    }
}

impl Resource {
    /// The fields that this endpoint never owns.
    fn reset_fields(&self, subresource: Option<&str>) -> &'static [&'static [&'static str]] {
        match &self.origin {
            Origin::Builtin(kind) => fleetwright_builtins::strategy::reset_fields(kind, subresource),
            Origin::Custom(custom) if custom.has_status() => match subresource {
                Some("status") => &[&["spec"], &["metadata"]],
                _ => &[&["status"]],
            },
            Origin::Custom(_) => &[],
        }
    }
}
