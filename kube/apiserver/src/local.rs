//! Calls from within the process: a kube client without a network.

use std::convert::Infallible;
use std::sync::Arc;

use fleetwright_rbac::User;
use http::Request;

use crate::handlers::{self, Peer};
use crate::state::Inner;

/// The base of the requests; never resolved.
pub(crate) const URL: &str = "http://fleetwright.local";

/// A client that calls the server's handler, as this user.
pub(crate) fn client(inner: Arc<Inner>, user: User) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (inner, user) = (inner.clone(), user.clone());
        async move { Ok::<_, Infallible>(handlers::serve(inner, request, Peer::Local(user)).await) }
    });
    kube::Client::new(service, "default")
}
