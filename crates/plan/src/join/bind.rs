//! Decides which Node is a machine's own.
//!
//! Guarantees of [`bind()`]:
//! - a Node that existed before the machine's own bootstrap token requested a client certificate is never bound by a join;
//! - a user with write access to Machines but not to `machines/status` cannot bind an existing Node;
//! - a Node that its kubelet registers again, with the certificate that this machine's token got, is bound again under its new uid.

use fleetwright_api::{Machine, NodeBinding, NodeRef};
use jiff::Timestamp;

/// The reason why a Node is not changed, and why no certificate for its name is approved.
pub const NOT_BOUND: &str = "NodeNotBound";

/// The Node of a machine's name, as the API server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredNode<'a> {
    /// Uid of the Node.
    pub uid: &'a str,
    /// Creation time.
    pub created: Option<Timestamp>,
}

/// The Node of a machine's name, and whether it is bound to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// No Node has that name.
    Missing,
    /// The Node is bound to the machine.
    Bound(NodeRef),
    /// The Node exists, and is not bound to the machine.
    Foreign,
}

/// Decides whether the Node of the machine's name is the machine's own. `certified` is when the machine's own bootstrap token first requested a
/// client certificate that was approved; it is approved only while no foreign Node has the name.
pub fn bind(machine: &Machine, certified: Option<Timestamp>, name: &str, node: Option<RegisteredNode<'_>>) -> Binding {
    let Some(node) = node else { return Binding::Missing };
    let status = machine.status.as_ref();
    let written = status.and_then(|status| status.node_ref.as_ref());
    let same = written.filter(|written| written.uid.as_deref() == Some(node.uid));
    let created_since = |moment: Option<Timestamp>| {
        moment.zip(node.created).is_some_and(|(moment, created)| created.as_second() >= moment.as_second())
    };
    let binding = match same {
        Some(NodeRef { binding: Some(binding), .. }) => *binding,
        // An earlier version recorded every Node of the machine's name. The kubelet that the operator installed has joined, and the Node is
        // younger than the machine: the Node belongs to this kubelet.
        Some(_)
            if status.is_some_and(|status| status.trusts.is_some())
                && created_since(machine.metadata.creation_timestamp.as_ref().map(|time| time.0)) =>
        {
            NodeBinding::Joined
        }
        _ if created_since(certified) => NodeBinding::Joined,
        _ => return Binding::Foreign,
    };
    Binding::Bound(NodeRef { name: name.to_owned(), uid: Some(node.uid.to_owned()), binding: Some(binding) })
}

/// The message about a Node that is not bound.
pub fn not_bound(machine: &str, node: &str) -> String {
    format!(
        "Node {node} exists, but did not join through Machine {machine}; no changes are made. If it is the Node of this Machine, run \
         `fleetwright machine bind-node {machine}`; otherwise delete the Machine and create it with another name or spec.hostname"
    )
}
