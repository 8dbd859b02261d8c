//! What is kept of the objects that joining looks at.

use std::net::IpAddr;
use std::sync::Arc;

use fleetwright_kit::{Cache, Key, View};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::look::{BY_ADDRESS, BY_NODE};
use crate::view::{MachineView, NodeView};

/// Requests by the user and the groups that asked.
pub const BY_REQUESTOR: &str = "requestor";

/// The caches.
#[derive(Clone)]
pub struct Eyes {
    pub namespace: Arc<str>,
    pub machines: Cache<MachineView>,
    pub nodes: Cache<NodeView>,
    pub requests: Cache<RequestView>,
}

impl Eyes {
    /// The requests that may be that machine's.
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

    /// Whether another machine than that declares the address.
    pub fn taken(&self, address: &str, uid: &str) -> bool {
        let holders = addresses(std::slice::from_ref(&address.to_owned()));
        holders
            .iter()
            .flat_map(|address| self.machines.by(BY_ADDRESS, address))
            .any(|(_, other)| other.0.metadata.uid.as_deref() != Some(uid))
    }
}

/// Addresses in the one form in which they are compared.
pub fn addresses(addresses: &[String]) -> Vec<String> {
    let form = |address: &String| match address.parse::<IpAddr>() {
        Ok(ip) => ip.to_string(),
        Err(_) => address.to_ascii_lowercase(),
    };
    addresses.iter().map(form).collect()
}

/// What is kept of a CertificateSigningRequest.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    pub uid: String,
    pub version: String,
    pub created: Option<Timestamp>,
    pub signer: String,
    pub username: String,
    pub groups: Vec<String>,
    pub usages: Vec<String>,
    /// The request itself; dropped once it is answered.
    pub pem: Vec<u8>,
    pub answered: Answered,
    /// It was signed.
    pub signed: bool,
}

/// Whether somebody answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
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
            (true, _) => Answered::Refused,
            (false, true) => Answered::Approved,
            (false, false) => Answered::NotYet,
        };
        let pending = answered == Answered::NotYet;
        Self {
            uid: request.metadata.uid.unwrap_or_default(),
            version: request.metadata.resource_version.unwrap_or_default(),
            created: request.metadata.creation_timestamp.map(|time| time.0),
            signer: request.spec.signer_name,
            username: request.spec.username.unwrap_or_default(),
            groups: request.spec.groups.unwrap_or_default(),
            usages: request.spec.usages.unwrap_or_default(),
            pem: if pending { request.spec.request.0 } else { Vec::new() },
            answered,
            signed: status.certificate.is_some_and(|certificate| !certificate.0.is_empty()),
        }
    }
}

impl RequestView {
    /// By what a machine finds its requests: those that still need something.
    pub fn requestors(&self) -> Vec<String> {
        if self.answered == Answered::Refused {
            return Vec::new();
        }
        self.groups.iter().cloned().chain([self.username.clone()]).collect()
    }
}
