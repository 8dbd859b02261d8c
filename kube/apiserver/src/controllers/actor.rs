//! The client of the controllers: they write through the same path as every client, each under its own name.

use std::sync::Arc;

use fleetwright_rbac::User;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::metadata;
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::Object;
use crate::write::delete::{DeleteOutcome, delete};
use crate::write::options::{DeleteOptions, WriteOptions};
use crate::write::patch::{PatchKind, patch};
use crate::write::update::{Changed, change};
use crate::write::{create, decode};
use crate::write_request::{Outcome, Warnings, WriteRequest};

/// The number of attempts of an edit after conflicts.
const ATTEMPTS: usize = 16;

/// A controller's identity on one server.
pub(super) struct Actor<'a> {
    pub(super) inner: &'a Arc<Inner>,
    user: User,
    manager: &'a str,
    warnings: Warnings,
}

impl<'a> Actor<'a> {
    /// A controller that acts as a service account of kube-system.
    pub(super) fn new(inner: &'a Arc<Inner>, account: &str, manager: &'a str) -> Self {
        let name = format!("system:serviceaccount:kube-system:{account}");
        let user = User::new(name, ["system:masters", "system:serviceaccounts", "system:authenticated"]);
        Self { inner, user, manager, warnings: Warnings::default() }
    }

    /// As [`Actor::new`], with the manager that kube-controller-manager's writes have.
    pub(super) fn manager(inner: &'a Arc<Inner>, account: &str) -> Self {
        Self::new(inner, account, "kube-controller-manager")
    }

    fn operation<'b>(
        &'b self,
        resource: &'b Arc<Resource>,
        namespace: &'b str,
        subresource: &'b str,
    ) -> WriteRequest<'b> {
        WriteRequest {
            server: self.inner,
            resource,
            user: &self.user,
            namespace,
            subresource,
            options: WriteOptions { manager: self.manager.to_owned(), ..WriteOptions::default() },
            warnings: &self.warnings,
        }
    }

    /// Creates an object, in the form in which a client would send it.
    pub(super) fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        mut object: Value,
    ) -> Result<Outcome, ApiError> {
        decode::typed(resource, &mut object).map_err(ApiError::internal)?;
        create::create(&self.operation(resource, namespace, ""), object, false)
    }

    /// Changes the object with this uid; a change without a difference is not written. After a conflict the edit is repeated on the newer
    /// object.
    pub(super) fn change(
        &self,
        resource: &Arc<Resource>,
        object: &Object,
        subresource: &str,
        mut edit: impl FnMut(&mut Value),
    ) -> Result<Outcome, ApiError> {
        let op = self.operation(resource, &object.key.namespace, subresource);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let done = change(&op, &object.key.name, |live| {
                if live["metadata"]["uid"] != object.uid.as_str() {
                    return Err(resource.not_found(&object.key.name));
                }
                let mut new = live.clone();
                edit(&mut new);
                Ok(Changed { object: new, owned: false })
            });
            match done {
                Err(error) if error.reason == "Conflict" && attempt < ATTEMPTS => {}
                done => return done,
            }
        }
    }

    /// Removes a finalizer from an object.
    pub(super) fn drop_finalizer(
        &self,
        resource: &Arc<Resource>,
        object: &Object,
        name: &str,
    ) -> Result<Outcome, ApiError> {
        self.change(resource, object, "", |live| {
            let map = metadata(live);
            let Some(list) = map.get_mut("finalizers").and_then(Value::as_array_mut) else { return };
            list.retain(|known| known != name);
            if list.is_empty() {
                map.remove("finalizers");
            }
        })
    }

    /// Deletes an object with this uid.
    pub(super) fn delete(
        &self,
        resource: &Arc<Resource>,
        object: &Object,
        options: DeleteOptions,
    ) -> Result<DeleteOutcome, ApiError> {
        let options = DeleteOptions { uid: Some(object.uid.clone()), ..options };
        delete(&self.operation(resource, &object.key.namespace, ""), &object.key.name, &options)
    }

    /// Applies a configuration with force: it takes over fields of other managers.
    pub(super) fn apply(&self, resource: &Arc<Resource>, name: &str, object: &Value) -> Result<(), ApiError> {
        let mut op = self.operation(resource, "", "");
        op.options.force = true;
        patch(&op, name, PatchKind::Apply, object.to_string().as_bytes()).map(|_| ())
    }
}

/// Logs a failed write. A conflict or a deleted object needs no log, since its event requeues the object.
pub(super) fn log<T>(controller: &str, done: Result<T, ApiError>) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(error) if matches!(error.code, 404 | 409) => {
            tracing::debug!(controller, %error, "overtaken by another write");
            None
        }
        Err(error) => {
            tracing::warn!(controller, %error, "a controller's write was refused");
            None
        }
    }
}

/// All present objects of a resource.
pub(super) fn all(inner: &Inner, storage: &str) -> Vec<Arc<Object>> {
    inner.store.page(storage, None, None, None, 0, |_| true).map(|page| page.objects).unwrap_or_default()
}
