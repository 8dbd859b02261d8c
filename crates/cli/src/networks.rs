//! The networks of the meta cluster, which control planes must not reach: from flags, or discovered in the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fleetwright_plan::cluster::networks::{MetaNetworks, Network};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};

/// More pod networks than this are merged into one that contains them all.
const MAX_OF_PODS: usize = 8;
/// The file with a pod's own namespace.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// How operators know the networks around them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NetworkArgs {
    /// CIDR of the meta cluster's pods, Services or nodes: control planes of business clusters may not connect to it. Can be repeated or
    /// comma-separated.
    #[arg(long = "meta-network", value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    pub(crate) meta: Vec<Network>,

    /// CIDR from which operators outside pods connect: etcd of control planes allows it. Can be repeated or comma-separated.
    #[arg(long = "operator-network", value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    operators: Vec<Network>,
}

pub(crate) fn network(text: &str) -> Result<Network, String> {
    text.parse().map_err(|error: fleetwright_plan::cluster::networks::InvalidNetwork| error.to_string())
}

impl NetworkArgs {
    /// The networks for the Cluster-Operator; leaked once for the life of the process.
    pub(crate) fn known(&self) -> &'static MetaNetworks {
        let namespace = std::fs::read_to_string(OWN_NAMESPACE).ok();
        let namespace = namespace.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let networks = Network::merged(self.meta.iter().copied());
        let operators = Network::merged(self.operators.iter().copied());
        Box::leak(Box::new(MetaNetworks { networks, operators, operator_namespace: namespace }))
    }
}

/// The networks that a cluster reports.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DetectedNetworks {
    /// The smallest set of networks that covers all of them.
    pub(crate) networks: Vec<Network>,
    /// Unknown networks, with what to do about them.
    pub(crate) notes: Vec<String>,
}

/// Discovers the networks of the cluster. Failed requests are noted.
pub(crate) async fn discover(client: &Client) -> DetectedNetworks {
    let mut notes = Vec::new();
    let services = ApiResource {
        group: "networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "networking.k8s.io/v1".to_owned(),
        kind: "ServiceCIDR".to_owned(),
        plural: "servicecidrs".to_owned(),
    };
    let services = Api::<DynamicObject>::all_with(client.clone(), &services).list(&ListParams::default()).await;
    let services = services.map(|list| list.items).unwrap_or_default();
    let services = services.iter().filter_map(|one| one.data["spec"]["cidrs"].as_array());
    let services: Vec<Network> = services.flatten().filter_map(|cidr| cidr.as_str()?.parse().ok()).collect();
    if services.is_empty() {
        notes.push("cannot determine the networks of Services: no ServiceCIDRs found".to_owned());
    }
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
    let nodes = match nodes {
        Ok(nodes) => nodes.items,
        Err(error) => {
            notes.push(format!("cannot determine the networks of nodes and pods: cannot list Nodes: {error}"));
            Vec::new()
        }
    };
    let named = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let servers = Api::<EndpointSlice>::namespaced(client.clone(), "default").list(&named).await;
    let servers = servers.map(|list| list.items).unwrap_or_default();
    let servers = servers
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .flat_map(|one| &one.addresses)
        .map(String::as_str);
    let mut networks = of_nodes(&nodes);
    networks.extend(services);
    networks.extend(servers.filter_map(host));
    let networks = Network::merged(networks);
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default().limit(500)).await;
    notes.extend(pods.ok().and_then(|pods| strangers(&pods.items, &networks)));
    DetectedNetworks { networks, notes }
}

/// The single-address network of an address that other machines can reach.
fn host(address: &str) -> Option<Network> {
    let address: IpAddr = address.parse().ok()?;
    (!address.is_loopback() && !address.is_unspecified()).then(|| Network::host(address))
}

/// The pod networks and the addresses of nodes. Each address is its own entry: workers of business clusters may be in the same network.
fn of_nodes(nodes: &[Node]) -> Vec<Network> {
    let specs = nodes.iter().filter_map(|node| node.spec.as_ref());
    let pods = specs.flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
    let pods = Network::merged(pods.filter_map(|cidr| cidr.parse().ok()));
    let mut all = Vec::new();
    for v6 in [false, true] {
        let of: Vec<_> = pods.iter().copied().filter(|one| one.is_v6() == v6).collect();
        match Network::covering(&of).filter(|_| of.len() > MAX_OF_PODS) {
            Some(covering) => all.push(covering),
            None => all.extend(of),
        }
    }
    let statuses = nodes.iter().filter_map(|node| node.status.as_ref());
    let addresses = statuses.flat_map(|status| status.addresses.iter().flatten());
    all.extend(addresses.filter_map(|one| host(&one.address)));
    all
}

/// A warning if pods have addresses that no Node declares.
fn strangers(pods: &[Pod], networks: &[Network]) -> Option<String> {
    let mut outside = BTreeSet::new();
    for pod in pods.iter().filter(|pod| pod.spec.as_ref().is_none_or(|spec| spec.host_network != Some(true))) {
        let status = pod.status.iter();
        let addresses = status.flat_map(|status| status.pod_ips.iter().flatten()).map(|one| one.ip.as_str());
        let unknown = |address: &Network| !networks.iter().any(|network| network.contains(address));
        let found = addresses.filter_map(host).find(unknown);
        outside.extend(
            found.map(|address| format!("{address} of {}/{}", pod.namespace().unwrap_or_default(), pod.name_any())),
        );
    }
    let first = outside.first()?;
    Some(format!(
        "cannot determine the networks of pods: addresses of pods outside of the known networks: {}, such as {first}",
        outside.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nodes(count: u8) -> Vec<Node> {
        let node = |number: u8| {
            json!({
                "metadata": { "name": format!("n{number}") },
                "spec": { "podCIDR": format!("10.244.{}.0/24", number * 2), "podCIDRs": [format!("10.244.{}.0/24", number * 2), format!("fd00:{number}::/64")] },
                "status": { "addresses": [
                    { "type": "InternalIP", "address": format!("192.168.7.{}", number * 2) },
                    { "type": "Hostname", "address": format!("n{number}") },
                ] },
            })
        };
        (1..=count).map(|number| serde_json::from_value(node(number)).unwrap()).collect()
    }

    fn texts(networks: Vec<Network>) -> Vec<String> {
        Network::merged(networks).iter().map(Network::to_string).collect()
    }

    #[test]
    fn nodes_tell_of_networks_of_pods_and_of_their_own_addresses_alone() {
        assert_eq!(
            texts(of_nodes(&nodes(2))),
            ["10.244.2.0/24", "10.244.4.0/24", "192.168.7.2/32", "192.168.7.4/32", "fd00:1::/64", "fd00:2::/64",]
        );
        let many = texts(of_nodes(&nodes(20)));
        assert!(many.contains(&"10.244.0.0/18".to_owned()), "{many:?}");
        // A worker in the same network is not part of the meta cluster.
        assert!(
            many.contains(&"192.168.7.2/32".to_owned()) && !many.contains(&"192.168.7.3/32".to_owned()),
            "{many:?}"
        );
    }

    #[test]
    fn pods_with_addresses_of_no_known_network_are_noted() {
        let pod = |ip: &str, host: bool| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "n" },
                "spec": { "containers": [], "hostNetwork": host },
                "status": { "podIPs": [{ "ip": ip }] },
            }))
            .unwrap()
        };
        let known = ["10.244.0.0/16".parse::<Network>().unwrap()];
        assert_eq!(strangers(&[pod("10.244.3.4", false), pod("192.168.7.2", true)], &known), None);
        let note = strangers(&[pod("10.244.3.4", false), pod("10.8.0.9", false)], &known).unwrap();
        assert!(note.contains("10.8.0.9"), "{note}");
    }
}
