//! The cached form of the objects that joining reads.

use std::net::IpAddr;
use std::sync::Arc;

use fleetwright_kit::{Cache, Key, Source, View};
use fleetwright_plan::join::{Binding, CLIENT_SIGNER, JoiningMachine, MAX_REQUEST, Requestor, SERVING_SIGNER};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Api, Client};

use crate::observe::{BY_ADDRESS, BY_NODE, BY_UID};
use crate::view::{ConfigMapView, MachineView, NodeView};

/// The reason of our approvals.
pub const MATCHES: &str = "MachineMatches";
/// Index of Nodes by the addresses that their kubelets report.
pub const NODE_BY_ADDRESS: &str = "address";

/// Index of requests by their user and groups.
pub const BY_REQUESTOR: &str = "requestor";

/// The caches.
#[derive(Clone)]
pub struct JoinCaches {
    pub namespace: Arc<str>,
    pub machines: Cache<MachineView>,
    pub nodes: Cache<NodeView>,
    pub requests: Cache<RequestView>,
    /// ConfigMaps of the machines' namespace, of which `cluster-values` is read.
    pub maps: Cache<ConfigMapView>,
}

impl JoinCaches {
    /// The requests that may be of that machine.
    pub fn requests_of(&self, machine: &MachineView) -> Vec<Key> {
        let uid = machine.0.metadata.uid.as_deref().unwrap_or_default();
        let token = fleetwright_plan::join::token_group(&self.namespace, uid);
        let of = |requestor: &str| self.requests.by(BY_REQUESTOR, requestor).into_iter().map(|(key, _)| key);
        of(&token).chain(of(&format!("system:node:{}", machine.node()))).collect()
    }

    /// The requests that may be of the machines of that node.
    pub fn requests_of_node(&self, node: &str) -> Vec<Key> {
        let machines = self.machines.by(BY_NODE, node);
        machines.iter().flat_map(|(_, machine)| self.requests_of(machine)).collect()
    }

    /// When the machine's own token first requested a client certificate that we approved: from its status, or from the requests
    /// that still exist.
    pub fn certified(&self, machine: &MachineView) -> Option<Timestamp> {
        let written = machine.0.status.as_ref().and_then(|status| status.certified_at);
        let uid = machine.0.metadata.uid.as_deref().unwrap_or_default();
        let token = fleetwright_plan::join::token_group(&self.namespace, uid);
        let approved = |request: &RequestView| {
            request.matched
                && request.signer == CLIENT_SIGNER
                && Requestor::of(&request.username, &request.groups, &self.namespace)
                    == Requestor::Token { uid: uid.to_owned() }
        };
        let requests = self.requests.by(BY_REQUESTOR, &token).into_iter();
        let seen = requests.filter(|(_, request)| approved(request)).filter_map(|(_, request)| request.created);
        seen.chain(written).min()
    }

    /// The machines that an approved request of a token concerns.
    pub fn machines_of(&self, request: &RequestView) -> Vec<Key> {
        match Requestor::of(&request.username, &request.groups, &self.namespace) {
            Requestor::Token { uid } if request.matched => {
                self.machines.by(BY_UID, &uid).into_iter().map(|(key, _)| key).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The Machine or Node, other than that machine and its Node, that has the name or address.
    ///
    /// A Node that is bound to a machine counts with the addresses that the machine declares: if the reports of its
    /// kubelet counted, one host could block the
    /// certificates of others. For the same reason a younger Machine that has not joined blocks no name for one that has.
    /// Two Machines created in the same second have the same age: neither gets what the other one declares. The name
    /// of a Machine's Node is its own from the
    /// start: a Machine that joined before and declares that name later does not get it.
    pub fn other(&self, name: &str, machine: &JoiningMachine) -> Option<String> {
        let name = address(name);
        let machines = self.machines.by(BY_ADDRESS, &name).into_iter().chain(self.machines.by(BY_NODE, &name));
        let own = self.machines.by(BY_UID, &machine.uid).into_iter().next().map(|(_, own)| own);
        // Names of Nodes are DNS names: naming a Machine after an address gives no claim to that address.
        let named = name.parse::<IpAddr>().is_err();
        let claims = |other: &MachineView| match &own {
            // A machine keeps the name of its own Node, whatever others declare.
            _ if named && name == machine.node => other.node() == name,
            _ if named && other.node() == name => true,
            Some(own) => !is_younger(other, own) || self.has_joined(other) || !self.has_joined(own),
            None => true,
        };
        let mut others = machines
            .filter(|(_, other)| other.0.metadata.uid.as_deref() != Some(machine.uid.as_str()) && claims(other));
        if let Some((key, _)) = others.next() {
            return Some(format!("of Machine {}", key.name));
        }
        if name != machine.node && self.nodes.get(&Key::cluster(&name)).is_some() {
            return Some("name of another Node".to_owned());
        }
        let mut nodes = self.nodes.by(NODE_BY_ADDRESS, &name).into_iter();
        let found = nodes.find(|(key, node)| *key.name != *machine.node && !self.is_bound(&key.name, &node.uid))?;
        Some(format!("of Node {}", found.0.name))
    }

    /// Whether a Node is bound to the machine.
    fn has_joined(&self, machine: &MachineView) -> bool {
        let node = self.nodes.get(&Key::cluster(machine.node()));
        matches!(machine.bind(self.certified(machine), node.as_deref()), Binding::Bound(_))
    }

    fn is_bound(&self, node: &str, uid: &str) -> bool {
        let bound =
            |machine: &MachineView| machine.0.status.as_ref().and_then(|status| status.bound_uid()) == Some(uid);
        self.machines.by(BY_NODE, node).iter().any(|(_, machine)| bound(machine))
    }
}

/// Whether a machine was created after another one; creation timestamps have whole seconds.
fn is_younger(machine: &MachineView, than: &MachineView) -> bool {
    let created = |machine: &MachineView| machine.0.metadata.creation_timestamp.as_ref().map(|time| time.0);
    created(machine).zip(created(than)).is_some_and(|(machine, than)| machine > than)
}

/// The source of the Nodes of the cluster, for all controllers of this crate.
pub fn nodes(client: Client) -> Source<NodeView> {
    Source::new(Api::all(client))
        .index(NODE_BY_ADDRESS, |_, node: &NodeView| node.addresses.iter().map(|one| one.to_string()).collect())
}

/// An address in the one form in which addresses are compared.
pub fn address(address: &str) -> String {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => address.to_ascii_lowercase(),
    }
}

/// Addresses in the one form in which they are compared.
pub fn addresses(addresses: &[String]) -> Vec<String> {
    addresses.iter().map(|one| address(one)).collect()
}

/// The cached fields of a CertificateSigningRequest.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    pub uid: String,
    pub version: String,
    pub created: Option<Timestamp>,
    pub signer: String,
    pub username: String,
    pub groups: Vec<String>,
    pub usages: Vec<String>,
    /// The request itself, cut at one byte more than the limit, which shows that it is too long; empty once it is answered, and for other signers.
    pub pem: Vec<u8>,
    pub answered: RequestAnswer,
    /// Whether we approved it.
    pub matched: bool,
    /// Whether it was signed.
    pub signed: bool,
}

/// Whether a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAnswer {
    NotYet,
    Approved,
    Refused,
}

impl View for RequestView {
    type Object = CertificateSigningRequest;

    fn of(request: CertificateSigningRequest) -> Self {
        let status = request.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let has = |type_: &str| conditions.iter().any(|condition| condition.type_ == type_);
        let answered = match (has("Denied") || has("Failed"), has("Approved")) {
            (true, _) => RequestAnswer::Refused,
            (false, true) => RequestAnswer::Approved,
            (false, false) => RequestAnswer::NotYet,
        };
        let ours = [CLIENT_SIGNER, SERVING_SIGNER].contains(&&*request.spec.signer_name);
        let mut pem = if ours && answered == RequestAnswer::NotYet { request.spec.request.0 } else { Vec::new() };
        // Any user with the right to request certificates can fill the API server with them.
        pem.truncate(MAX_REQUEST + 1);
        pem.shrink_to_fit();
        Self {
            uid: request.metadata.uid.unwrap_or_default(),
            version: request.metadata.resource_version.unwrap_or_default(),
            created: request.metadata.creation_timestamp.map(|time| time.0),
            signer: request.spec.signer_name,
            username: request.spec.username.unwrap_or_default(),
            groups: request.spec.groups.unwrap_or_default(),
            usages: request.spec.usages.unwrap_or_default(),
            pem,
            answered,
            matched: answered == RequestAnswer::Approved
                && conditions.iter().any(|one| one.type_ == "Approved" && one.reason.as_deref() == Some(MATCHES)),
            signed: status.certificate.is_some_and(|certificate| !certificate.0.is_empty()),
        }
    }
}

impl RequestView {
    /// The index keys by which a machine finds its unfinished requests.
    pub fn requestors(&self) -> Vec<String> {
        if self.answered == RequestAnswer::Refused {
            return Vec::new();
        }
        self.groups.iter().cloned().chain([self.username.clone()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;

    use super::*;

    fn kept(signer: &str, bytes: usize) -> usize {
        let (signer_name, request) = (signer.to_owned(), ByteString(vec![b'x'; bytes]));
        let spec = CertificateSigningRequestSpec { signer_name, request, ..CertificateSigningRequestSpec::default() };
        RequestView::of(CertificateSigningRequest { spec, ..CertificateSigningRequest::default() }).pem.len()
    }

    #[test]
    fn only_requests_that_are_ours_to_answer_are_kept_and_not_more_of_them_than_is_read() {
        for signer in [CLIENT_SIGNER, SERVING_SIGNER] {
            assert_eq!(kept(signer, 1000), 1000);
            assert_eq!(kept(signer, MAX_REQUEST), MAX_REQUEST);
            assert_eq!(kept(signer, 1 << 20), MAX_REQUEST + 1, "it is seen to be too long");
        }
        assert_eq!(kept("example.com/signer", 1000), 0);
    }
}
