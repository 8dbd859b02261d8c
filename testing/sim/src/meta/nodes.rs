//! The nodes of the simulated meta cluster: a name, an address and a kubelet each. A test can lose them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::{Cache, JsonPatch, Key, Next, Pass, write};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::net::Address;
use super::reconciler::{ReconcileError, Reconciler};
use super::view::SerializedObject;

/// The taints of a node that is not ready yet, and of an unreachable one.
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

#[derive(Clone, Default)]
pub(super) struct Nodes(Arc<Mutex<BTreeMap<Arc<str>, NodeState>>>);

#[derive(Clone, Debug)]
pub(super) struct NodeState {
    address: Address,
    /// The time since when the node sends no heartbeats.
    pub(super) lost: Option<Timestamp>,
}

impl NodeState {
    pub(super) fn ip(&self) -> Ipv4Addr {
        self.address.ip()
    }
}

impl Nodes {
    /// Creates this number of nodes; the API server has them when this returns.
    ///
    /// # Errors
    /// No address is free, or the API server refuses them.
    pub(super) async fn start(client: &Client, number: usize, version: &str) -> Result<Self, ReconcileError> {
        let nodes = Self::default();
        let api: Api<Node> = Api::all(client.clone());
        for number in 0..number {
            let name = format!("meta-{number}");
            let address = Address::take()
                .ok_or_else(|| ReconcileError::Machine("no address of the loopback network is free".to_owned()))?;
            let node = json!({
                "metadata": { "name": name, "labels": {
                    "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
                } },
                "status": {
                    "addresses": [{ "type": "InternalIP", "address": address.ip() }, { "type": "Hostname", "address": name }],
                    "capacity": { "cpu": "64", "memory": "256Gi", "pods": "100000" },
                    "allocatable": { "cpu": "64", "memory": "256Gi", "pods": "100000" },
                    "nodeInfo": {
                        "kubeletVersion": version, "containerRuntimeVersion": "simulated://1", "osImage": "simulated",
                        "kernelVersion": "6.12", "operatingSystem": "linux", "architecture": "amd64", "bootID": "1", "kubeProxyVersion": "",
                        "machineID": name, "systemUUID": name,
                    },
                    "conditions": [ready(true, Timestamp::UNIX_EPOCH)],
                },
            });
            let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
            match api.create(&PostParams::default(), &node).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(error.into()),
            }
            nodes.all().insert(name.into(), NodeState { address, lost: None });
        }
        Ok(nodes)
    }

    /// The state of a node of the simulated cluster.
    pub(super) fn node_state(&self, name: &str) -> Option<NodeState> {
        self.all().get(name).cloned()
    }

    /// The addresses of all nodes.
    pub(super) fn addresses(&self) -> Vec<Ipv4Addr> {
        self.all().values().map(NodeState::ip).collect()
    }

    /// The names of all nodes.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.all().keys().cloned().collect()
    }

    /// Marks a node as lost or as back. Returns false if the node does not exist.
    pub(super) fn set_lost(&self, name: &str, lost: Option<Timestamp>) -> bool {
        match self.all().get_mut(name) {
            Some(node_state) => {
                node_state.lost = lost;
                true
            }
            None => false,
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, NodeState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the status of the nodes, and the conditions of lost ones.
pub(super) struct NodeReconciler {
    pub(super) cache: Cache<SerializedObject<Node>>,
    pub(super) nodes: Nodes,
    /// The time without a heartbeat after which a node counts as lost.
    pub(super) grace: Duration,
}

impl Reconciler for NodeReconciler {
    const NAME: &'static str = "nodes";
    type Kind = Node;

    fn exists(&self, key: &Key) -> bool {
        self.cache.get(key).is_some()
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let key = pass.key();
        let (Some(view), Some(node_state)) = (self.cache.get(key), self.nodes.node_state(&key.name)) else {
            return Ok(Next::AwaitChange);
        };
        let due = node_state.lost.map(|lost| unreachable_at(lost, self.grace));
        let heard = due.is_none_or(|due| due > pass.now());
        let node = view.read();
        let status = node.status.clone().unwrap_or_default();
        let told = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
        let wanted = ready(heard, pass.now());
        let address = node_state.ip().to_string();
        let moved = !status.addresses.iter().flatten().any(|known| known.address == address);
        if moved || told.is_none_or(|told| told.status != wanted["status"]) {
            let addresses = json!([
                { "type": "InternalIP", "address": address }, { "type": "Hostname", "address": &*key.name },
            ]);
            let status = json!({ "conditions": [wanted], "addresses": addresses });
            pass.writer().merge_status(&self.cache, key, &view.version, status).await?;
        }
        let Some(view) = self.cache.get(key) else { return Ok(Next::AwaitChange) };
        self.taint(pass, &view, heard).await?;
        Ok(due.filter(|due| *due > pass.now()).map_or(Next::AwaitChange, Next::At))
    }
}

impl NodeReconciler {
    async fn taint(&self, pass: &Pass, view: &SerializedObject<Node>, heard: bool) -> Result<(), ReconcileError> {
        let node = view.read();
        let present = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let mut wanted: Vec<Taint> =
            present.iter().filter(|taint| ![NOT_READY, UNREACHABLE].contains(&&*taint.key)).cloned().collect();
        if !heard {
            for effect in ["NoSchedule", "NoExecute"] {
                let known = present.iter().find(|taint| taint.key == UNREACHABLE && taint.effect == effect);
                wanted.push(known.cloned().unwrap_or_else(|| Taint {
                    key: UNREACHABLE.to_owned(),
                    effect: effect.to_owned(),
                    value: None,
                    time_added: None,
                }));
            }
        }
        if !write::same(&json!(present), &json!(wanted)) {
            let patch = JsonPatch::new().test_version(&view.version).add(&["spec", "taints"], wanted);
            pass.writer().json_patch(&self.cache, pass.key(), patch).await?;
        }
        Ok(())
    }
}

/// The time at which a node without heartbeats since `lost` counts as unreachable.
pub(super) fn unreachable_at(lost: Timestamp, grace: Duration) -> Timestamp {
    lost + SignedDuration::try_from(grace).unwrap_or_default()
}

fn ready(heard: bool, now: Timestamp) -> Value {
    let (status, reason, message) = match heard {
        true => ("True", "KubeletReady", "kubelet is posting ready status"),
        false => ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
    };
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

/// Whether a node is schedulable.
pub(super) fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
    let mut taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    // Any taint of another origin excludes the node, since tolerations are not evaluated here; the not-ready taint of a new node is removed in a
    // moment.
    let tainted = taints.any(|taint| taint.key != NOT_READY && taint.effect != "PreferNoSchedule");
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    ready && !cordoned && !tainted
}
