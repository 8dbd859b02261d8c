//! Checks for namespaces that are missing, terminating, or protected from deletion.

use crate::error::{ApiError, Cause};
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::Key;
use crate::write_request::WriteRequest;

/// The namespaces that a cluster needs to work.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Inner {
    /// Whether something may be created in a namespace; cluster-scoped resources have an empty one.
    pub(crate) fn admit_namespace(&self, resource: &Resource, namespace: &str, name: &str) -> Result<(), ApiError> {
        if namespace.is_empty() || !resource.namespaced {
            return Ok(());
        }
        let missing = || ApiError::not_found("", "namespaces", namespace);
        let namespaces = self.registry.by_plural("", "namespaces").ok_or_else(missing)?;
        let found = self.store.get(&namespaces.storage, &Key::new("", namespace)).ok_or_else(missing)?;
        if found.field("status.phase") != Some("Terminating") {
            return Ok(());
        }
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        };
        Err(ApiError::forbidden(&resource.group, &resource.plural, name, why).with_causes(vec![cause]))
    }
}

/// Refuses to delete a namespace that the cluster needs.
pub(super) fn may_be_deleted(op: &WriteRequest<'_>, name: &str) -> Result<(), ApiError> {
    if IMMORTAL.contains(&name) {
        let why = "this namespace may not be deleted";
        return Err(ApiError::forbidden(&op.resource.group, &op.resource.plural, name, why));
    }
    Ok(())
}
