//! The RBAC policy of one server, compiled on first use and again after roles or bindings changed.

use std::sync::{Arc, PoisonError, RwLock};

use fleetwright_rbac::{Attributes, GROUP, Policy, Refusal, RoleWrite, forbidden_message};
use serde_json::Value;

use crate::error::{ApiError, Details};

/// Caches the compiled policy of the newest requested revision.
#[derive(Debug, Default)]
pub struct Authorizer {
    compiled: RwLock<Option<(u64, Arc<Policy>)>>,
}

impl Authorizer {
    /// The policy at a revision: any number that changes whenever a role or binding does. `objects` is called only when
    /// the policy has to be compiled, and returns roles and bindings of all four kinds.
    pub fn policy(&self, revision: u64, objects: impl FnOnce() -> Vec<Value>) -> Arc<Policy> {
        if let Some((at, policy)) = &*self.compiled.read().unwrap_or_else(PoisonError::into_inner)
            && *at == revision
        {
            return policy.clone();
        }
        let policy = Arc::new(Policy::from_objects(&objects()));
        let mut compiled = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        // A slower thread must not replace a newer policy by an older one.
        if compiled.as_ref().is_none_or(|(at, _)| *at < revision) {
            *compiled = Some((revision, policy.clone()));
        }
        policy
    }
}

/// Allows the request, or refuses it with the 403 of kube-apiserver.
pub fn authorize(policy: &Policy, attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let decision = policy.authorize(attributes);
    if decision.allowed { Ok(()) } else { Err(forbidden(attributes, &decision.reason)) }
}

/// The 403 for a request that no rule allows.
pub(super) fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let details = Details {
        name: attributes.name.into(),
        group: attributes.group.into(),
        kind: attributes.resource.into(),
        ..Details::default()
    };
    let mut error = ApiError::new(403, "Forbidden", forbidden_message(attributes, reason));
    error.details = Some(Box::new(details));
    error
}

/// Checks that the writer of a role or binding holds what it grants; any other resource passes.
pub fn check_role_write(policy: &Policy, write: &RoleWrite<'_>) -> Result<(), ApiError> {
    let name = write.new.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    policy.check_write(write).map_err(|refusal| match refusal {
        Refusal::Forbidden(why) => ApiError::forbidden(GROUP, write.resource, name, why),
        Refusal::RoleNotFound(role) => ApiError::not_found(GROUP, write.resource, &role),
        Refusal::Internal(why) => ApiError::new(500, "", why),
    })
}

#[cfg(test)]
mod tests {
    use fleetwright_rbac::{User, bootstrap};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_policy_is_compiled_once_per_revision() {
        let authorizer = Authorizer::default();
        let first = authorizer.policy(1, bootstrap::objects);
        let again = authorizer.policy(1, || unreachable!("the revision is the same"));
        assert!(Arc::ptr_eq(&first, &again));
        let next = authorizer.policy(2, Vec::new);
        assert!(!Arc::ptr_eq(&first, &next));
    }

    #[test]
    fn an_older_policy_does_not_replace_a_newer_one() {
        let authorizer = Authorizer::default();
        let new = authorizer.policy(2, Vec::new);
        authorizer.policy(1, Vec::new);
        assert!(Arc::ptr_eq(&new, &authorizer.policy(2, Vec::new)));
    }

    #[test]
    fn a_refusal_is_about_the_resource_and_its_group() {
        let user = User::new("amy", ["dev"]);
        let attributes = Attributes::resource(&user, "get", "apps", "deployments").named("web").in_namespace("a");
        let error = authorize(&Policy::default(), &attributes).unwrap_err();
        assert_eq!(error.status()["details"], json!({"name": "web", "group": "apps", "kind": "deployments"}));
        let path = authorize(&Policy::default(), &Attributes::path(&user, "get", "/x")).unwrap_err();
        assert_eq!(path.status()["details"], json!({}));
    }
}
