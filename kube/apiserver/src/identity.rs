//! Authentication and authorization of this server's clients: the auth module with this server's own objects.

use std::sync::{Arc, LazyLock};

use fleetwright_rbac::{Attributes, Policy, RoleWrite, User};
use http::HeaderMap;
use serde_json::Value;

use crate::auth::{self, Authenticator, ClientCertificate, Objects};
use crate::error::ApiError;
use crate::fields::meta_text;
use crate::registry::{Registry, Resource};
use crate::state::Inner;
use crate::store::Key;
use crate::write_request::WriteRequest;

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// The resources of the RBAC policy. Every request checks for changes, so the table is searched only once.
static ROLE_RESOURCES: LazyLock<Vec<&'static Arc<Resource>>> = LazyLock::new(|| {
    Registry::builtins().iter().filter(|r| *r.group == *GROUP && ROLES.contains(&&*r.plural)).collect()
});

impl Objects for Inner {
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.registry.find("", "v1", resource)?;
        self.store.get(&resource.storage, &Key::new(namespace, name)).map(|object| object.value())
    }
}

impl auth::Graph for Inner {
    fn pods_on(&self, node: &str) -> Vec<Value> {
        let Some(pods) = self.registry.find("", "v1", "pods") else { return Vec::new() };
        let needle = format!("\"nodeName\":\"{node}\"");
        // Filtered on the bytes first: most pods are on other nodes.
        let page = self.store.page(&pods.storage, None, None, None, 0, |pod| {
            pod.json.windows(needle.len()).any(|window| window == needle.as_bytes())
        });
        let objects = page.map(|page| page.objects).unwrap_or_default();
        objects.iter().map(|pod| pod.value()).filter(|pod| pod["spec"]["nodeName"] == node).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        Objects::get(self, "pods", namespace, name)
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Value> {
        Objects::get(self, "persistentvolumeclaims", namespace, name)
    }
}

impl Inner {
    /// The present policy.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        let resources = || ROLE_RESOURCES.iter();
        let revision = resources().map(|r| self.store.resource_revision(&r.storage)).max().unwrap_or(0);
        self.authorizer.policy(revision, || {
            resources()
                .filter_map(|r| self.store.page(&r.storage, None, None, None, 0, |_| true).ok())
                .flat_map(|page| page.objects)
                .map(|object| object.value())
                .collect()
        })
    }

    /// The user of a request over the network.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<User, ApiError> {
        Authenticator { issuer: &self.tokens, objects: self }.authenticate(certificate, headers, self.now())
    }

    /// Refuses requests that the policy does not allow.
    pub(crate) fn authorize(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        if auth::node_may(attributes, "", self) {
            return Ok(());
        }
        auth::authorize(&self.policy(), attributes)
    }

    /// An apply or a PUT without an existing object creates it, which needs the right to create as well.
    pub(crate) fn authorize_create(&self, op: &WriteRequest<'_>, name: &str) -> Result<(), ApiError> {
        let attributes = Attributes::resource(op.user, "create", &op.resource.group, &op.resource.plural)
            .in_namespace(op.namespace)
            .named(name);
        self.authorize(&attributes)
    }

    /// Prevents escalation: a user cannot grant more rights than their own.
    pub(crate) fn check_escalation(
        &self,
        op: &WriteRequest<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        // Masters may grant anything. Checked first: the policy would be recompiled after each of their writes, which made
        // the start of a server quadratic in its bootstrap roles.
        if &*op.resource.group != GROUP || op.user.is_master() {
            return Ok(());
        }
        let write = RoleWrite {
            user: op.user,
            resource: &op.resource.plural,
            name: if old.is_some() { meta_text(new, "name") } else { "" },
            namespace: op.namespace,
            old,
            new,
        };
        auth::check_role_write(&self.policy(), &write)
    }
}
