//! The declared labels, taints and provider id of the bound Node.

use fleetwright_api::{Machine, Taint};

use super::decide::Decider;
use super::{Act, Node};

/// Prefixes of taints that Kubernetes sets and removes. Such a taint in `spec.taints` is only tolerated on the Node.
const KUBERNETES: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// Namespace of labels that no kubelet may set on its Node.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// Whether a kubelet may have registered its Node with a label of that key.
fn may_register(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    namespace.strip_suffix(RESTRICTED).is_none_or(|rest| !rest.is_empty() && !rest.ends_with('.'))
}

/// The declared taints that the operator sets.
fn declared(machine: &Machine) -> impl Iterator<Item = &Taint> {
    let kubernetes = |taint: &Taint| KUBERNETES.iter().any(|prefix| taint.key.starts_with(prefix));
    machine.spec.taints.iter().filter(move |taint| !kubernetes(taint))
}

fn found<'a>(node: Node<'a>, id: &str) -> Option<&'a Taint> {
    node.taints.iter().find(|taint| taint.id() == id)
}

impl Decider<'_> {
    /// Brings the Node to the declared state when nothing else is done now. That needs no host and disrupts nothing: it waits neither for
    /// the gate nor for an unreachable host.
    pub(super) fn keep_node_meanwhile(&mut self) {
        let machine = self.k.machine;
        let left = machine.metadata.deletion_timestamp.is_some() || machine.spec.ssh.is_none() || machine.spec.paused;
        // A new binding is written to the status first.
        let bound = self.status.node_ref == self.old.node_ref;
        if left
            || !bound
            || self.stopped
            || self.running().is_some()
            || !matches!(self.act, Act::Nothing | Act::RequestWindow(_))
        {
            return;
        }
        let act = std::mem::replace(&mut self.act, Act::Nothing);
        // A first request may be granted at once: the Node would be closed again.
        if self.may_reopen_node() && (act == Act::Nothing || self.waits()) {
            self.act = Act::OpenNode;
        } else {
            self.keep_node();
        }
        if self.act == Act::Nothing {
            self.act = act;
        } else if let Act::RequestWindow(wish) = act {
            // The window is requested all the same: a Node that cannot be written must not keep its machine from the gate.
            self.also_ask = Some(wish);
        }
    }

    /// One write at a time.
    fn keep_node(&mut self) {
        let Some(node) = self.k.node else { return };
        if self.keep_labels(node) || self.keep_taints(node) {
            return;
        }
        if node.provider_id.is_none() && self.k.machine.spec.provider_id.is_some() {
            self.act = Act::SetProviderId;
        }
    }

    /// The status records which labels are the machine's, not an annotation of the Node: a kubelet may write annotations of its Node, and must
    /// not cause the removal of a label that it may not remove itself, such as one below `node-restriction.kubernetes.io/`.
    ///
    /// A label that the Node has and the status does not record was set by others: a user with write access to Machines must neither be able to
    /// change it, nor to remove it by adding it to the spec and removing it from there.
    fn keep_labels(&mut self, node: Node<'_>) -> bool {
        let known = &self.old.node_labels;
        let mut set = self.k.machine.spec.node_labels.clone();
        set.retain(|key, _| known.contains(key) || node.label(key).is_none());
        let stale = |key: &&String| !set.contains_key(*key) && node.label(key).is_some();
        let remove: Vec<String> = known.iter().filter(stale).cloned().collect();
        let mut ours: Vec<String> = set.keys().chain(&remove).cloned().collect();
        ours.sort();
        let recorded = ours.iter().all(|key| known.contains(key));
        self.status.node_labels = ours;
        if !recorded {
            // Written before the Node is changed: after a crash in between, the label would count as one of others for ever.
            self.at(self.now);
            return true;
        }
        let lacks = set.iter().any(|(key, value)| node.label(key) != Some(value.as_str()));
        let act = lacks || !remove.is_empty() || node.annotated;
        if act {
            self.act = Act::Label { set, remove };
        }
        act
    }

    /// The status records which taints are the machine's, not an annotation of the Node: a kubelet may write annotations of its Node, and must
    /// not cause the removal of a taint of others.
    ///
    /// A taint that the Node has and the status does not record was set by others, such as a quarantine: a user with
    /// write access to Machines must not be able to
    /// remove it by adding it to the spec and removing it from there.
    fn keep_taints(&mut self, node: Node<'_>) -> bool {
        let known = &self.old.node_taints;
        let may_set = |taint: &&Taint| known.contains(&taint.id()) || found(node, &taint.id()).is_none();
        let set: Vec<Taint> = declared(self.k.machine).filter(may_set).cloned().collect();
        let declares = |id: &str| set.iter().any(|taint| taint.id() == id);
        let remove: Vec<String> =
            known.iter().filter(|id| !declares(id) && found(node, id).is_some()).cloned().collect();
        let mut ours: Vec<String> = set.iter().map(Taint::id).chain(remove.iter().cloned()).collect();
        ours.sort();
        let recorded = ours.iter().all(|id| known.contains(id));
        self.status.node_taints = ours;
        if !recorded {
            // Written before the Node is changed: after a crash in between, the taint would count as one of others for ever.
            self.at(self.now);
            return true;
        }
        let act = !remove.is_empty() || set.iter().any(|taint| !node.taints.contains(taint));
        if act {
            self.act = Act::Taint { set, remove };
        }
        act
    }

    /// The declared taints that the Node has when it is bound: its kubelet registered it with them.
    pub(super) fn registered_taints(&self) -> Vec<String> {
        let Some(node) = self.k.node else { return Vec::new() };
        let mut ids: Vec<String> = declared(self.k.machine).map(Taint::id).collect();
        ids.retain(|id| found(node, id).is_some());
        ids.sort();
        ids
    }

    /// The keys of labels that are the machine's when a Node is bound: those that the spec lists, and those of the previous Node, with which the
    /// kubelet registered this one. The values may be those of an earlier spec.
    pub(super) fn registered_labels(&self) -> Vec<String> {
        let Some(node) = self.k.node else { return Vec::new() };
        let listed = self.k.machine.spec.node_labels.keys().chain(&self.old.node_labels);
        let mut keys: Vec<String> =
            listed.filter(|key| may_register(key) && node.label(key).is_some()).cloned().collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// How a label of others on the Node differs from the declared one.
    pub(super) fn label_differs(&self) -> Option<String> {
        let node = self.k.node?;
        self.k.machine.spec.node_labels.iter().find_map(|(key, declared)| {
            let others = node.label(key).filter(|_| !self.status.node_labels.contains(key))?;
            (others != declared).then(|| {
                format!(
                    "Node {0} has the label {key} with value \"{others}\", which another owner set and the operator keeps; spec.nodeLabels has value \"{declared}\". \
                     To use the value in spec.nodeLabels, run `kubectl label node {0} {key}-`; to keep the one of the Node, correct spec.nodeLabels",
                    node.name
                )
            })
        })
    }

    /// How a taint of others on the Node differs from the declared one.
    pub(super) fn taint_differs(&self) -> Option<String> {
        let node = self.k.node?;
        declared(self.k.machine).find_map(|taint| {
            let id = taint.id();
            let others = found(node, &id).filter(|_| !self.status.node_taints.contains(&id))?;
            (others.value != taint.value).then(|| {
                format!(
                    "Node {0} has the taint {id} with value \"{1}\", which another owner set and the operator keeps; spec.taints has value \"{2}\". \
                     To use the value in spec.taints, run `kubectl taint node {0} {id}-`; to keep the one of the Node, correct spec.taints",
                    node.name, others.value, taint.value
                )
            })
        })
    }

    /// How the Node's provider id differs from the declared one. A Node's provider id cannot be changed.
    pub(super) fn provider_differs(&self) -> Option<String> {
        let (node, declared) = (self.k.node?, self.k.machine.spec.provider_id.as_deref()?);
        let found = node.provider_id.filter(|found| *found != declared)?;
        Some(format!(
            "Node {} has the provider ID {found}, which is immutable, but spec.providerID is {declared}. If {declared} is correct, drain and delete \
             the Node and restart its kubelet, which registers the Node again; if {found} is correct, recreate the Machine with it",
            node.name
        ))
    }
}
