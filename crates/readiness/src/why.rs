use fleetwright_api::{Machine, ReadinessGates};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};

/// What `fleetwright why machine/NAME` looks at, fetched live.
#[derive(Clone, Debug)]
pub struct WhyInput {
    /// The machine asked about.
    pub machine: Machine,
    /// All ReadinessGates of its namespace; those that do not select it are left out by [`why`].
    pub gates: Vec<ReadinessGates>,
    /// Its Node, see [`node_name`]; none if there is no such Node.
    pub node: Option<Node>,
    /// The ConfigMaps of its namespace labelled `fleetwright.io/machine: NAME`.
    pub reports: Vec<ConfigMap>,
    /// All machines of its namespace, for what the safety net counts and for who else claims the Node.
    pub machines: Vec<Machine>,
}

/// The name of a machine's Node: what its status says, else its host name, else its own name.
pub fn node_name(machine: &Machine) -> &str {
    let status = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.as_str());
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    status.or(machine.spec.hostname.as_deref()).unwrap_or(name)
}

/// Why a machine may or may not be scheduled, in one screen, the problem first.
pub fn why(_input: &WhyInput, _now: Timestamp) -> String {
    todo!()
}
