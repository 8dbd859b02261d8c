//! Authorization decisions of Kubernetes' RBAC.
//!
//! Everything here is pure: a [`Policy`] is compiled from Role, ClusterRole, RoleBinding and ClusterRoleBinding objects
//! and answers questions about [`Attributes`]. Whoever holds the objects compiles again when they change.

mod aggregate;
mod escalation;
mod messages;
mod policy;
mod rule;

pub mod bootstrap;

use std::collections::BTreeMap;

pub use aggregate::aggregate;
pub use escalation::{Refusal, RoleWrite};
pub use messages::{forbidden_message, forbidden_reason, quote, quote_list};
pub use policy::{Decision, Policy, Rules};
pub use rule::Rule;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// The group whose members have all rights, independent of roles.
pub const MASTERS: &str = "system:masters";
/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user name of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";

/// The authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The user name.
    pub name: String,
    /// The identity's uid; empty when the authenticator supplies none.
    pub uid: String,
    /// The groups, in the order the authenticator gave them.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of the given name and groups.
    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The user of requests that carry no credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }

    /// The identity of a service account, without the group of the authenticated.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Self { uid: uid.to_owned(), ..Self::new(service_account_username(namespace, name), groups) }
    }

    /// Whether the user is a member of the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|have| have == group)
    }

    /// Whether the user is above all rules.
    pub fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// Adds a group unless the user has it.
    pub fn ensure_group(&mut self, group: &str) {
        if !self.is_in(group) {
            self.groups.push(group.to_owned());
        }
    }
}

/// The user name of a service account.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The attributes of a request. For a path outside the API's resources, `resource_request` is false and only `verb` and `path` count.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user of the request.
    pub user: &'a User,
    /// The verb: `get`, `list`, `deletecollection`, or lower-case HTTP method for a path.
    pub verb: &'a str,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The resource in plural.
    pub resource: &'a str,
    /// The subresource; empty for the resource itself.
    pub subresource: &'a str,
    /// The object's name; empty when the request names none.
    pub name: &'a str,
    /// The namespace; empty at the cluster's scope.
    pub namespace: &'a str,
    /// The path of a request outside the resources.
    pub path: &'a str,
    /// Whether the request is for a resource at all.
    pub resource_request: bool,
}

impl<'a> Attributes<'a> {
    /// A request for a resource; the rest is set by struct update.
    pub fn resource(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self {
            user,
            verb,
            group,
            version: "*",
            resource,
            subresource: "",
            name: "",
            namespace: "",
            path: "",
            resource_request: true,
        }
    }

    /// A request for a path.
    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Self {
        Self { path, version: "", resource_request: false, ..Self::resource(user, verb, "", "") }
    }

    /// The same request in a namespace.
    pub fn in_namespace(self, namespace: &'a str) -> Self {
        Self { namespace, ..self }
    }

    /// The same request for one named object.
    pub fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }
}
