//! Joining: a machine's kubelet gets a bootstrap credential of its own, and a certificate for its own name.
//!
//! - [`Credentials`] creates bootstrap tokens: one for each join, valid for minutes, recognized by a group with the machine's uid.
//! - The controller of CertificateSigningRequests approves requests that match the machine, denies other requests of the same requestors, and
//!   ignores all others.
//!
//! Guarantees: no Secret of kube-system is ever read; an approved or denied request is never changed; a token is deleted when its Node exists
//! or its machine is deleted; neither a token nor a certificate is given for the name of a Node that is not bound to the machine.

mod api_addresses;
mod credential;
mod requests;
mod tokens;
pub(crate) mod view;

use fleetwright_kit::rights::rule;
use fleetwright_kit::{Budget, Cache, Controller, Key, Operator, Options, Source};
use fleetwright_plan::join::{CLIENT_SIGNER, SERVING_SIGNER};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;

pub use credential::{Credentials, JoinError, LIFETIME, TOKENS_NAMESPACE};
pub(crate) use credential::{TOKEN_PREFIX, TOKEN_TYPE};
use requests::Requests;
use tokens::Tokens;
use view::{BY_REQUESTOR, JoinCaches, RequestView};

use crate::observe::{machines, maps};
use crate::view::{ConfigMapView, MachineView, NodeView};

/// Adds the caches and controllers for joining the machines of one namespace.
pub fn add(operator: &mut Operator, namespace: &str, credentials: &Credentials) {
    let client = operator.client();
    let machines = operator.cache(machines(client.clone(), namespace));
    let nodes = operator.cache(view::nodes(client.clone()));
    let maps = operator.cache(maps(client, namespace));
    add_on(operator, namespace, credentials, &machines, &nodes, &maps);
}

/// As [`add`], with existing caches. Returns the caches of joining.
pub(crate) fn add_on(
    operator: &mut Operator,
    namespace: &str,
    credentials: &Credentials,
    machines: &Cache<MachineView>,
    nodes: &Cache<NodeView>,
    maps: &Cache<ConfigMapView>,
) -> JoinCaches {
    let options = Options::default();
    let requests = Source::new(Api::all(operator.client()));
    let caches = JoinCaches {
        namespace: namespace.into(),
        machines: machines.clone(),
        nodes: nodes.clone(),
        requests: operator.cache(requests.index(BY_REQUESTOR, |_, request: &RequestView| request.requestors())),
        maps: maps.clone(),
    };
    let (for_machine, for_node) = (caches.clone(), caches.clone());
    let _ = operator
        .controller(Requests { caches: caches.clone(), credentials: credentials.clone() }, options)
        .on(&caches.requests, |change| vec![change.key.clone()])
        .on(&caches.machines, move |change| {
            let machine = change.new.or(change.old);
            machine.map(|machine| for_machine.requests_of(machine)).unwrap_or_default()
        })
        .on(&caches.nodes, move |change| {
            // The status that a kubelet reports decides nothing about its own certificates.
            if change.old.map(|node| &node.uid) == change.new.map(|node| &node.uid) {
                return Vec::new();
            }
            for_node.requests_of_node(&change.key.name)
        });
    // Only machines that are deleted are reconciled: all others need nothing.
    let _ = operator
        .controller(Tokens { machines: caches.machines.clone(), credentials: credentials.clone() }, options)
        .on(&caches.machines, |change| {
            let going = change.new.is_some_and(|machine| machine.0.metadata.deletion_timestamp.is_some());
            if going || change.new.is_none() { vec![change.key.clone()] } else { Vec::new() }
        });
    caches
}

/// The most calls of one pass of each controller.
pub fn budgets() -> [(&'static str, Budget); 2] {
    [(Requests::NAME, Requests::BUDGET), (Tokens::NAME, Tokens::BUDGET)]
}

/// The rights that joining needs, and no more.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// In the namespace of the machines.
    pub namespaced: Vec<PolicyRule>,
    /// In kube-system, the namespace of bootstrap tokens. Secrets there are created and deleted, never read.
    pub tokens: Vec<PolicyRule>,
    /// In the whole cluster.
    pub cluster: Vec<PolicyRule>,
}

/// The exact rules that joining needs.
pub fn rules() -> Rules {
    let requests = "certificates.k8s.io";
    let mut signers = rule(requests, &["signers"], &["approve"]);
    signers.resource_names = Some(vec![CLIENT_SIGNER.to_owned(), SERVING_SIGNER.to_owned()]);
    // The addresses of the API server: kubelets get no certificate for them.
    let named = |group, resource| PolicyRule {
        resource_names: Some(vec![api_addresses::SERVICE.to_owned()]),
        ..rule(group, &[resource], &["get"])
    };
    Rules {
        namespaced: vec![
            rule(fleetwright_api::GROUP, &["machines"], &["list", "watch"]),
            // Only the ConfigMap `cluster-values` is read.
            rule("", &["configmaps"], &["list", "watch"]),
        ],
        tokens: vec![rule("", &["secrets"], &["create", "delete"])],
        cluster: vec![
            rule(requests, &["certificatesigningrequests"], &["list", "watch"]),
            rule(requests, &["certificatesigningrequests/approval"], &["patch"]),
            signers,
            rule("", &["nodes"], &["get", "list", "watch"]),
            named("", "services"),
            named("discovery.k8s.io", "endpointslices"),
            rule("networking.k8s.io", &["servicecidrs"], &["list"]),
            // Events about a request, which has no namespace, are stored in the namespace default; those about a Machine, in its own.
            rule("", &["events"], &["create"]),
        ],
    }
}

/// The key of a token's Secret.
fn token_key(id: &str) -> Key {
    Key::new(TOKENS_NAMESPACE, &format!("{TOKEN_PREFIX}{id}"))
}
