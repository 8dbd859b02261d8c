//! NetworkPolicies of a control plane: allowed egress and ingress of its pods.
//!
//! An administrator of a business cluster chooses what its API server connects to: URLs of webhooks, addresses of Nodes and of EndpointSlices. So
//! does the author of its Cluster: an S3 endpoint, an issuer, an external etcd. None of these connections may lead into the meta cluster.
//!
//! Guarantees, where the meta cluster enforces NetworkPolicies:
//! - each component connects to the others that it needs and, if it has to leave the control plane, to no network of the meta cluster and to no
//!   address of a cloud's metadata service;
//! - a pod of the namespace that no policy selects can neither connect nor be reached. That default policy is applied when all others are in the
//!   cache, so that no running control plane is cut off in between;
//! - pods in the meta cluster that control planes have to reach opt in, by the label [`REACHABLE`] on the pods and on their namespace.
//!
//! Caveats: networks of the meta cluster are known by flags of the operators ([`MetaNetworks`]). If they are not known, only the metadata addresses
//! and pods that the ingress rules of control planes protect are out of reach; operators log that, and count it.

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ControlPlaneComponent, ExtensionPlacement, names};
use serde_json::{Value, json};

use super::Names;
use super::extensions::EXTENSION;
use super::networks::{MetaNetworks, Network};
use super::objects::{API_PORT, ETCD_PORT, Kind, Object};
use super::snapshots::SnapshotPodJob;

/// Label of pods in the meta cluster, and of their namespace, to which control planes of business clusters may connect.
pub const REACHABLE: &str = "fleetwright.io/reachable-from-control-planes";
/// Label of namespaces whose pods may read metrics.
pub const METRICS_READER: &str = "fleetwright.io/reads-metrics";
/// Label of the operators' pods.
const OPERATORS: (&str, &str) = ("app.kubernetes.io/name", "fleetwright-operators");
/// Label with the name of a namespace, which every namespace has.
const NAMESPACE: &str = "kubernetes.io/metadata.name";
/// Policy that selects every pod and allows nothing.
pub const DEFAULT_DENY: &str = "default-deny";
/// Policy that allows DNS.
const DNS: &str = "names";
/// Policy of all extensions with placement Meta.
const EXTENSIONS: &str = "extensions";
/// Peer port of etcd members, which also serves their metrics.
const ETCD_PEERS: u16 = 2380;
const ETCD_METRICS: u16 = 2381;

/// Metadata services, from which machines in clouds get credentials, and link-local addresses. No control plane needs them.
const METADATA: [&str; 7] = [
    "169.254.0.0/16",
    // Azure, Alibaba, Oracle.
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "fe80::/10",
    // AWS, Google.
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
];
/// Ports of pods that serve DNS, with and without the privilege of low ports. The same pods serve metrics and health checks on other ports.
const DNS_PORTS: [u16; 4] = [53, 1053, 5353, 8053];
/// Address of node-local DNS caches.
const LOCAL_DNS: &str = "169.254.20.10/32";

/// Inputs of the policies.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInputs<'a> {
    /// Names of the parts of the cluster.
    pub names: &'a Names,
    /// Spec of the cluster.
    pub spec: &'a ClusterSpec,
    /// The package version of the component.
    pub package: &'a ClusterPackageVersionSpec,
    /// Networks of the meta cluster and the operators.
    pub meta: &'a MetaNetworks,
    /// Whether a snapshot is being restored.
    pub restoring: bool,
}

impl PolicyInputs<'_> {
    /// Names of all policies that allow something.
    pub fn expected(&self) -> Vec<&'static str> {
        ControlPlaneComponent::ALL.into_iter().flat_map(|component| self.of(component)).collect()
    }

    /// Names of the policies of a component.
    fn of(&self, component: ControlPlaneComponent) -> Vec<&'static str> {
        let etcd = self.spec.datastore.etcd.is_some();
        match component {
            ControlPlaneComponent::Etcd if !etcd => Vec::new(),
            ControlPlaneComponent::Etcd => {
                let mut all = vec![DNS, component.binary(), SnapshotPodJob::Snapshot.as_str()];
                if self.restoring || self.spec.restore.is_some() {
                    all.extend([SnapshotPodJob::Source.as_str(), SnapshotPodJob::Member.as_str()]);
                }
                all
            }
            ControlPlaneComponent::Apiserver => {
                let mut all = vec![component.binary()];
                if !etcd {
                    all.push(DNS);
                }
                if self.package.extensions.iter().any(|one| one.placement == ExtensionPlacement::Meta) {
                    all.push(EXTENSIONS);
                }
                all
            }
            ControlPlaneComponent::ControllerManager | ControlPlaneComponent::Scheduler => vec![component.binary()],
        }
    }

    /// Policies of a component, which are applied before its pods start.
    pub fn policies(&self, component: ControlPlaneComponent) -> Vec<Object> {
        self.of(component).into_iter().map(|name| self.policy(name)).collect()
    }

    fn policy(&self, name: &str) -> Object {
        let apiserver = ControlPlaneComponent::Apiserver.binary();
        let (etcd, snapshot) = (ControlPlaneComponent::Etcd.binary(), SnapshotPodJob::Snapshot.as_str());
        let (source, member) = (SnapshotPodJob::Source.as_str(), SnapshotPodJob::Member.as_str());
        let own = self.labels(name);
        let (selector, ingress, egress) = match name {
            DNS => (
                // The pod works on a volume, and needs no connection.
                json!({ "matchExpressions": [
                    { "key": names::COMPONENT, "operator": "NotIn", "values": [SnapshotPodJob::Clean.as_str()] },
                ] }),
                None,
                self.dns(),
            ),
            _ if name == etcd => (
                own,
                Some(vec![
                    rule(
                        "from",
                        [self.pods(apiserver), self.pods(snapshot)].into_iter().chain(self.operators()),
                        &[ETCD_PORT],
                    ),
                    rule("from", [self.pods(etcd)], &[ETCD_PORT, ETCD_PEERS]),
                    metrics(&[ETCD_METRICS]),
                ]),
                vec![rule("to", [self.pods(etcd)], &[ETCD_PORT, ETCD_PEERS])],
            ),
            _ if name == apiserver => {
                let mut egress = Vec::new();
                if self.spec.datastore.etcd.is_some() {
                    egress.push(rule("to", [self.pods(etcd)], &[ETCD_PORT]));
                }
                // Kubelets, webhooks and APIServices in the business cluster, issuers, an external etcd.
                egress.push(rule("to", self.outside(), &[]));
                egress.push(rule("to", [reachable(), self.extensions()], &[]));
                // Clients connect from everywhere. TLS and RBAC authenticate and authorize them.
                (own, Some(vec![json!({ "ports": ports(&[API_PORT]) })]), egress)
            }
            _ if name == snapshot => {
                let mut egress = vec![rule("to", [self.pods(etcd)], &[ETCD_PORT])];
                egress.extend(self.store());
                (own, Some(Vec::new()), egress)
            }
            _ if name == source => (own, Some(vec![rule("from", [self.pods(member)], &[ETCD_PORT])]), self.store()),
            _ if name == member => (own, Some(Vec::new()), vec![rule("to", [self.pods(source)], &[ETCD_PORT])]),
            EXTENSIONS => (
                json!({
                    "matchLabels": { names::CLUSTER: self.names.name },
                    "matchExpressions": [{ "key": EXTENSION, "operator": "Exists" }],
                }),
                Some(vec![metrics(&[])]),
                vec![
                    rule("to", [self.pods(apiserver)], &[API_PORT]),
                    // Hosts by SSH, on any port, and package repositories.
                    rule("to", self.outside(), &[]),
                    rule("to", [reachable(), self.extensions()], &[]),
                ],
            ),
            // The controller-manager and the scheduler.
            _ => {
                let scheduler = name == ControlPlaneComponent::Scheduler.binary();
                let mut egress = vec![rule("to", [self.pods(apiserver)], &[API_PORT])];
                if scheduler && self.extends_scheduler() {
                    egress.push(rule("to", self.outside(), &[]));
                    egress.push(rule("to", [reachable()], &[]));
                }
                (own, Some(vec![metrics(&[if scheduler { 10_259 } else { 10_257 }])]), egress)
            }
        };
        let types = if ingress.is_some() { json!(["Ingress", "Egress"]) } else { json!(["Egress"]) };
        let ingress = ingress.unwrap_or_default();
        self.names.policy(
            name,
            json!({ "podSelector": selector, "policyTypes": types, "ingress": ingress, "egress": egress }),
        )
    }

    fn labels(&self, component: &str) -> Value {
        json!({ "matchLabels": { names::CLUSTER: self.names.name, names::COMPONENT: component } })
    }

    /// Peers: pods of this control plane.
    fn pods(&self, component: &str) -> Value {
        json!({ "podSelector": self.labels(component) })
    }

    /// Peers: pods of extensions beside this control plane. The extension's own policies decide about its ingress.
    fn extensions(&self) -> Value {
        json!({ "podSelector": {
            "matchLabels": { names::CLUSTER: self.names.name },
            "matchExpressions": [{ "key": EXTENSION, "operator": "Exists" }],
        } })
    }

    /// Peers: the operators, in pods or outside.
    fn operators(&self) -> Vec<Value> {
        let mut all: Vec<_> =
            self.meta.operators.iter().map(|network| json!({ "ipBlock": { "cidr": network } })).collect();
        let namespace = match &self.meta.operator_namespace {
            Some(namespace) => json!({ "matchLabels": { NAMESPACE: namespace } }),
            None => json!({}),
        };
        if self.meta.operator_namespace.is_some() || all.is_empty() {
            let pods = json!({ "matchLabels": { OPERATORS.0: OPERATORS.1 } });
            all.push(json!({ "namespaceSelector": namespace, "podSelector": pods }));
        }
        all
    }

    /// Egress rules for DNS. The port in a rule is the one on which the pod listens, also for connections to a Service.
    fn dns(&self) -> Vec<Value> {
        let pods = |namespace: &str, key: &str, values: &[&str]| {
            json!({
                "namespaceSelector": { "matchLabels": { NAMESPACE: namespace } },
                "podSelector": { "matchExpressions": [{ "key": key, "operator": "In", "values": values }] },
            })
        };
        let both = |port: u16| ["UDP", "TCP"].map(|protocol| json!({ "protocol": protocol, "port": port }));
        let to = [
            pods("kube-system", "k8s-app", &["kube-dns", "coredns"]),
            pods("openshift-dns", "dns.operator.openshift.io/daemonset-dns", &["default"]),
        ];
        vec![
            json!({ "to": to, "ports": DNS_PORTS.into_iter().flat_map(both).collect::<Vec<_>>() }),
            json!({ "to": [{ "ipBlock": { "cidr": LOCAL_DNS } }], "ports": both(53) }),
        ]
    }

    /// Peers: all addresses except the meta cluster and metadata services. If networks of the meta cluster are known, but none of an address family,
    /// its pods have no addresses of that family and need none.
    fn outside(&self) -> Vec<Value> {
        let known = &self.meta.networks;
        let families = [(false, "0.0.0.0/0"), (true, "::/0")].into_iter();
        let wanted = families.filter(|(v6, _)| known.is_empty() || known.iter().any(|one| one.is_v6() == *v6));
        wanted
            .map(|(v6, cidr)| {
                let metadata = METADATA.iter().filter_map(|one| one.parse().ok());
                let except = Network::merged(known.iter().copied().chain(metadata).filter(|one| one.is_v6() == v6));
                json!({ "ipBlock": { "cidr": cidr, "except": except } })
            })
            .collect()
    }

    /// Peers: the snapshot store, unless it is a volume.
    fn store(&self) -> Vec<Value> {
        let policy = self.spec.snapshots.clone().unwrap_or_default();
        let Some(bucket) = policy.s3 else { return Vec::new() };
        vec![rule("to", self.outside(), &[port(&bucket.endpoint)]), rule("to", [reachable()], &[])]
    }

    /// Whether the scheduler's configuration names extenders, or is in a Secret and may name them.
    fn extends_scheduler(&self) -> bool {
        let package = self.package.components.scheduler.config.iter().map(|file| Some(file.content.as_str()));
        let own = self.spec.components.scheduler.iter().flat_map(|one| &one.config);
        let own = own.map(|file| file.content.as_deref());
        package.chain(own).any(|content| content.is_none_or(|content| content.contains("extenders")))
    }
}

impl Names {
    fn policy(&self, name: &str, spec: Value) -> Object {
        let kind = Kind::NetworkPolicy;
        let body = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.as_str(),
            "metadata": { "name": name, "namespace": self.namespace, "labels": self.labels() },
            "spec": spec,
        });
        Object { kind, name: name.to_owned(), body }
    }
}

/// Whether the operator writes a policy of that name.
pub(crate) fn is_ours(name: &str) -> bool {
    [DNS, EXTENSIONS, DEFAULT_DENY].contains(&name)
        || ControlPlaneComponent::of_binary(name).is_some()
        || SnapshotPodJob::of(name).is_some()
}

/// The policy that selects every pod of a control plane's namespace, and allows nothing.
pub fn default_deny(names: &Names) -> Object {
    let types = ["Ingress", "Egress"];
    names.policy(DEFAULT_DENY, json!({ "podSelector": {}, "policyTypes": types, "ingress": [], "egress": [] }))
}

/// Path of the first difference of a policy. Unlike with other objects, an addition of somebody else is a difference: one more rule allows more
/// connections.
pub(super) fn difference(live: &Value, wanted: &Value) -> Option<String> {
    let rules = |policy: &Value| {
        let mut spec = policy["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            // The API server drops empty values.
            spec.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
        }
        spec
    };
    // Entries of rules have no merge key: two ports may differ only in their protocol.
    let metadata = |policy: &Value| json!({ "metadata": policy["metadata"] });
    let place = super::object_drift::difference(&metadata(live), &metadata(wanted));
    place.or_else(|| (rules(live) != rules(wanted)).then(|| "spec".to_owned()))
}

/// Peer: pods whose owner allows connections from control planes.
fn reachable() -> Value {
    let labels = json!({ "matchLabels": { REACHABLE: "true" } });
    json!({ "namespaceSelector": labels, "podSelector": labels })
}

/// Ingress rule for readers of metrics, at these ports or at all.
fn metrics(at: &[u16]) -> Value {
    rule("from", [json!({ "namespaceSelector": { "matchLabels": { METRICS_READER: "true" } } })], at)
}

/// A rule `from` or `to` these peers, at these ports or at all.
fn rule(direction: &str, peers: impl IntoIterator<Item = Value>, at: &[u16]) -> Value {
    let mut rule = json!({ direction: peers.into_iter().collect::<Vec<_>>() });
    if !at.is_empty() {
        rule["ports"] = ports(at);
    }
    rule
}

fn ports(numbers: &[u16]) -> Value {
    numbers.iter().map(|number| json!({ "protocol": "TCP", "port": number })).collect()
}

/// The port of a URL.
fn port(url: &str) -> u16 {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let after = authority.rsplit_once(']').map_or(authority, |(_, after)| after);
    let given = after.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    given.unwrap_or(if scheme == "http" { 80 } else { 443 })
}
