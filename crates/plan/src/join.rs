//! Decides whether a kubelet gets the certificate that it requests.
//!
//! A machine's first request is made with a bootstrap token of its own, which names the machine; later requests come from the
//! node itself. Either gets a certificate for its own name and for nothing else. [`bind()`] decides which Node is a machine's own.

mod bind;
mod reserved;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use fleetwright_pki::Request;

pub use bind::{Binding, NOT_BOUND, RegisteredNode, bind, not_bound};
pub use reserved::{ApiAddresses, reserved};

/// Signer of the client certificates with which kubelets call the API server.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of the serving certificates of kubelets.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The longest request that is parsed, in bytes. Those of kubelets have about one thousand.
pub const MAX_REQUEST: usize = 16 * 1024;

/// The group of all machines that join, which may request certificates.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers:fleetwright";
/// Prefix of the user name of a bootstrap token; its id follows.
const TOKEN_USER: &str = "system:bootstrap:";
/// Prefix of the user name of a node; the node's name follows.
const NODE_USER: &str = "system:node:";
/// The group of all nodes.
const NODES: &str = "system:nodes";

/// The group of one machine's bootstrap token, by which its requests are recognized. Tokens allow lower-case letters, digits, `:` and `-`, which
/// are the characters of namespaces and uids.
pub fn token_group(namespace: &str, uid: &str) -> String {
    format!("{BOOTSTRAPPERS}:{namespace}:{uid}")
}

/// The id of the bootstrap token of that user, if it is one.
pub fn token_of(username: &str) -> Option<&str> {
    username.strip_prefix(TOKEN_USER)
}

/// Digest of the authorities that machines join with. It changes whenever the signing or the trusted authorities
/// change. The signing authority comes first.
pub fn bundle_digest(bundle: &str) -> String {
    crate::cluster::digest(bundle.trim(), 8)
}

/// The requestor, as the API server authenticated it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requestor {
    /// The bootstrap token of the machine with that uid.
    Token {
        /// The machine's uid.
        uid: String,
    },
    /// The node of that name.
    Node {
        /// Name of the node.
        name: String,
    },
    /// Any other user, whose requests are left to other approvers.
    Other,
}

impl Requestor {
    /// The requestor of that user name and groups, for the machines of one namespace.
    pub fn of(username: &str, groups: &[String], namespace: &str) -> Self {
        if username.starts_with(TOKEN_USER) {
            let ours = format!("{BOOTSTRAPPERS}:{namespace}:");
            let mut uids = groups.iter().filter_map(|group| group.strip_prefix(&ours));
            // A token with two such groups was not issued by us.
            return match (uids.next(), uids.next()) {
                (Some(uid), None) => Self::Token { uid: uid.to_owned() },
                (Some(_), Some(_)) => Self::Token { uid: String::new() },
                _ => Self::Other,
            };
        }
        match username.strip_prefix(NODE_USER) {
            Some(name) if groups.iter().any(|group| group == NODES) => Self::Node { name: name.to_owned() },
            _ => Self::Other,
        }
    }
}

/// A request for a certificate.
#[derive(Clone, Copy, Debug)]
pub struct SigningRequest<'a> {
    /// The requested signer.
    pub signer: &'a str,
    /// The requested usages.
    pub usages: &'a [String],
    /// The request itself, PEM.
    pub request: &'a [u8],
}

/// The machine of the requestor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoiningMachine {
    /// Name of the machine.
    pub name: String,
    /// Uid of the machine.
    pub uid: String,
    /// Name of its Node.
    pub node: String,
    /// Declared addresses, IP or DNS names.
    pub addresses: Vec<String>,
    /// Whether the machine is being deleted.
    pub deleted: bool,
    /// Whether the machine is paused.
    pub paused: bool,
    /// Whether its bootstrap token got a client certificate before.
    pub certified: bool,
}

/// The context of a request.
#[derive(Clone, Copy)]
pub struct JoinContext<'a> {
    /// The machine of the requestor; none if it does not exist.
    pub machine: Option<&'a JoiningMachine>,
    /// Other machines that claim the same Node name.
    pub rivals: &'a [String],
    /// The Node of the machine's name, and whether it is bound to the machine.
    pub node: &'a Binding,
    /// The owner of an address or name for which no kubelet of this machine may serve: see [`reserved()`].
    pub reserved: &'a dyn Fn(&str) -> Option<String>,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningDecision {
    /// Another approver is responsible for the request.
    Ignored,
    /// The request matches the machine.
    Approved {
        /// Message for people.
        message: String,
    },
    /// The request waits for a person.
    Waits {
        /// What it waits for.
        message: String,
    },
    /// The request does not match.
    Denied {
        /// Reason in CamelCase.
        reason: &'static str,
        /// What does not match, and what would.
        message: String,
    },
}

/// Decides about a request of that requestor.
pub fn decide(requestor: &Requestor, asked: &SigningRequest<'_>, around: &JoinContext<'_>) -> SigningDecision {
    use SigningDecision::Ignored;
    let serving = match asked.signer {
        CLIENT_SIGNER => false,
        SERVING_SIGNER => true,
        _ => return Ignored,
    };
    let machine = match (requestor, around.machine) {
        (Requestor::Other, _) => return Ignored,
        // A node without a machine was joined by others.
        (Requestor::Node { .. }, None) => return Ignored,
        (Requestor::Token { .. }, None) => {
            return denied("MachineNotFound", "the Machine of this bootstrap token no longer exists".to_owned());
        }
        (_, Some(machine)) => machine,
    };
    let known = match requestor {
        Requestor::Token { uid } => *uid == machine.uid,
        Requestor::Node { name } => *name == machine.node,
        Requestor::Other => false,
    };
    if !known {
        return denied("MachineMismatch", format!("the request was not made by Machine {}", machine.name));
    }
    if machine.deleted {
        return denied("MachineDeleted", format!("Machine {} is being deleted", machine.name));
    }
    if let Some(verdict) = refuse_foreign(requestor, machine, around.node) {
        return verdict;
    }
    if let Some(verdict) = refuse(requestor, asked, machine, serving, around) {
        return verdict;
    }
    let bound = matches!(around.node, Binding::Bound(_));
    if !bound && !around.rivals.is_empty() {
        let message = format!(
            "Machines {} and {} claim the same Node {}: set another spec.hostname for all but one, or delete all but one",
            machine.name,
            shown(around.rivals),
            machine.node
        );
        return SigningDecision::Waits { message };
    }
    if machine.paused {
        let message =
            format!("Machine {} is paused: set spec.paused to false to approve its certificate request", machine.name);
        return SigningDecision::Waits { message };
    }
    let what = if serving { "serving certificate" } else { "client certificate" };
    SigningDecision::Approved { message: format!("{what} of Machine {} for its Node {}", machine.name, machine.node) }
}

fn denied(reason: &'static str, message: String) -> SigningDecision {
    SigningDecision::Denied { reason, message }
}

/// A Node of the machine's name that is not bound to the machine belongs to others: no certificate for its name is approved, and its own requests are
/// left to other approvers.
fn refuse_foreign(requestor: &Requestor, machine: &JoiningMachine, node: &Binding) -> Option<SigningDecision> {
    let JoiningMachine { name, node: node_name, .. } = machine;
    match (requestor, node) {
        (Requestor::Token { .. }, Binding::Foreign) => Some(denied(NOT_BOUND, not_bound(name, node_name))),
        (Requestor::Node { .. }, Binding::Foreign) => {
            Some(SigningDecision::Waits { message: not_bound(name, node_name) })
        }
        // The holder of a certificate that was not requested with this machine's token.
        (Requestor::Node { .. }, Binding::Missing) if !machine.certified => Some(SigningDecision::Ignored),
        _ => None,
    }
}

/// Why the request itself is refused, if it is.
fn refuse(
    requestor: &Requestor,
    asked: &SigningRequest<'_>,
    machine: &JoiningMachine,
    serving: bool,
    around: &JoinContext<'_>,
) -> Option<SigningDecision> {
    // A token has one use: the node's first certificate. The node itself requests every later one.
    if serving && matches!(requestor, Requestor::Token { .. }) {
        let message =
            "a bootstrap token can only request a client certificate: the Node requests its serving certificate itself";
        return Some(denied("SignerNotAllowed", message.to_owned()));
    }
    if let Some(message) = wrong_usages(asked.usages, serving) {
        return Some(denied("InvalidUsages", message));
    }
    if asked.request.len() > MAX_REQUEST {
        return Some(denied("RequestInvalid", format!("the request has more than {MAX_REQUEST} bytes")));
    }
    let request = match Request::from_pem(asked.request) {
        Ok(request) => request,
        Err(error) => return Some(denied("RequestInvalid", format!("the request cannot be read: {error}"))),
    };
    let user = format!("{NODE_USER}{}", machine.node);
    if request.common_names != [user.as_str()] || request.organizations != [NODES] || request.more_subject {
        let message = format!(
            "invalid subject O={}, CN={}{}: it must be exactly O={NODES}, CN={user}",
            shown(&request.organizations),
            shown(&request.common_names),
            if request.more_subject { " and more" } else { "" }
        );
        return Some(denied("InvalidSubject", message));
    }
    if serving { wrong_names(&request, machine, around) } else { unwanted_names(&request) }
}

/// The exact usages; RSA keys also have key encipherment, and kubelets request it.
fn wrong_usages(usages: &[String], serving: bool) -> Option<String> {
    let own = if serving { "server auth" } else { "client auth" };
    let mut found: Vec<&str> = usages.iter().map(String::as_str).collect();
    found.sort_unstable();
    let mut exact = ["digital signature", own];
    exact.sort_unstable();
    let mut with_keys = ["digital signature", "key encipherment", own];
    with_keys.sort_unstable();
    if found == exact || found == with_keys {
        return None;
    }
    Some(format!(
        "invalid usages {}: must be digital signature, {own} and, optionally, key encipherment",
        shown(usages)
    ))
}

fn unwanted_names(request: &Request) -> Option<SigningDecision> {
    let message =
        "a client certificate must have no subject alternative names: remove DNS names, IP addresses and others";
    request.has_names().then(|| denied("InvalidSubjectAltNames", message.to_owned()))
}

/// A serving certificate names the machine's Node and the addresses that the machine declares. Addresses in the Node's
/// `status.addresses` do not count: the node writes them. Reserved names are refused even if they are declared: a user with write access to Machines
/// must not get a certificate of the API server or of another kubelet.
fn wrong_names(request: &Request, machine: &JoiningMachine, around: &JoinContext<'_>) -> Option<SigningDecision> {
    if !request.other_names.is_empty() {
        let message = format!("only DNS names and IP addresses are allowed, not {}", shown(&request.other_names));
        return Some(denied("InvalidSubjectAltNames", message));
    }
    if !request.has_names() {
        let message = "a serving certificate must name at least one DNS name or IP address of the machine";
        return Some(denied("InvalidSubjectAltNames", message.to_owned()));
    }
    let declared = |name: &str| machine.addresses.iter().any(|address| same(address, name));
    let dns = request.dns_names.iter().map(|name| (name.clone(), *name == machine.node || declared(name)));
    let ips = request.ips.iter().map(IpAddr::to_string).map(|ip| (ip.clone(), declared(&ip)));
    let (mut undeclared, mut spelled, mut refused, mut reason) =
        (Vec::new(), Vec::new(), Vec::new(), "InvalidSubjectAltNames");
    for (name, own) in dns.chain(ips) {
        match (around.reserved)(&name) {
            Some(whose) => {
                if own {
                    reason = "ReservedSubjectAltNames";
                }
                refused.push(format!("{name} ({whose})"));
            }
            None if !own => undeclared.push(name),
            None => spelled.extend(other_spelling(&name)),
        }
    }
    let mut parts = Vec::new();
    if !refused.is_empty() {
        parts.push(format!("names not allowed in a kubelet certificate: {}", shown(&refused)));
    }
    if !spelled.is_empty() {
        parts.push(format!("IPv4 addresses must not be written as IPv6: request {}", shown(&spelled)));
    }
    if !undeclared.is_empty() {
        parts.push(format!(
            "{} not declared: if the host has these addresses, add them to spec.addresses of Machine {}",
            shown(&undeclared),
            machine.name
        ));
    }
    (!parts.is_empty()).then(|| denied(reason, parts.join("; ")))
}

/// The canonical form of an IPv4-mapped IPv6 address. No kubelet requests that form, and the verifier of a certificate may read it differently
/// than we do.
fn other_spelling(name: &str) -> Option<String> {
    let ip = name.parse::<IpAddr>().ok()?;
    let plain = ip.to_canonical();
    (plain != ip).then(|| format!("{plain} instead of {ip}"))
}

/// Whether two texts are the same address or name.
pub fn same(one: &str, two: &str) -> bool {
    match (one.parse::<IpAddr>(), two.parse::<IpAddr>()) {
        // An IPv4-mapped IPv6 address is the same address to the verifier of a certificate.
        (Ok(one), Ok(two)) => one.to_canonical() == two.to_canonical(),
        _ => one.eq_ignore_ascii_case(two),
    }
}

/// Text from elsewhere, bounded and on one line.
fn shown(texts: &[String]) -> String {
    if texts.is_empty() {
        return "(none)".to_owned();
    }
    let text = texts.iter().map(|text| text.escape_debug().take(253).collect::<String>()).collect::<Vec<_>>();
    let more = if text.len() > 8 { format!(" and {} more", text.len() - 8) } else { String::new() };
    format!("{}{more}", text[..text.len().min(8)].join(", "))
}
