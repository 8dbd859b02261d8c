//! Authentication and authorization.
//!
//! A request passes through [`Authenticator`] (authentication), [`impersonate`] (impersonation) and
//! [`Authorizer`] (authorization). The rest are the endpoints with the same functions for clients: token requests and
//! the reviews. This module stores no objects: it reads them through [`Objects`].

mod authenticate;
mod authorizer;
mod bootstrap_token;
mod certificate;
mod impersonation;
mod names;
mod node;
mod reviews;
mod token;
mod token_request;

pub use authenticate::{Authenticator, authenticated};
pub use authorizer::{Authorizer, authorize, check_role_write};
pub(crate) use bootstrap_token::is_over;
pub use certificate::ClientCertificate;
pub use fleetwright_rbac::{Attributes, User};
pub use impersonation::impersonate;
pub use node::{Graph, node_may, node_of, reference_of};
pub use reviews::{
    local_subject_access_review, self_subject_access_review, self_subject_review, self_subject_rules_review,
    subject_access_review, token_review,
};
pub use token::{Bound, Grant, TokenIssuer};
pub use token_request::token_request;

use serde_json::Value;

/// The stored objects of the core group that authentication depends on.
pub trait Objects {
    /// The present object, by plural resource, namespace (empty for none) and name.
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value>;
}

impl<F: Fn(&str, &str, &str) -> Option<Value>> Objects for F {
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self(resource, namespace, name)
    }
}

/// The string at a pointer; empty when it does not exist.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The strings of the list at a pointer.
fn texts(value: &Value, pointer: &str) -> Vec<String> {
    let items = value.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
