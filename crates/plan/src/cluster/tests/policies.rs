//! Who reaches whom, by the policies of a control plane as they are applied: they are evaluated here as the API of NetworkPolicies says.

use fleetwright_api::{ExternalDatastore, Restore, SecretRef, SnapshotBucket, Snapshots};
use serde_json::json;

use super::extension_cases::done;
use super::extensions::{ExtensionOutcome, MACHINE_OPERATOR, shipped};
use super::networks::{MetaNetworks, Network};
use super::snapshots::SnapshotPodJob;
use super::*;
use crate::cluster::policies::{DEFAULT_DENY, METRICS_READER, REACHABLE};

/// One end of a connection: a pod, or an address outside.
#[derive(Clone, Debug)]
struct PolicyPeer {
    ip: String,
    /// Its namespace, and its labels.
    pod: Option<(String, BTreeMap<String, String>)>,
}

fn outside(ip: &str) -> PolicyPeer {
    PolicyPeer { ip: ip.to_owned(), pod: None }
}

fn pod(ip: &str, namespace: &str, labels: impl IntoIterator<Item = (&'static str, &'static str)>) -> PolicyPeer {
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    PolicyPeer { ip: ip.to_owned(), pod: Some((namespace.to_owned(), labels)) }
}

/// What is in the meta cluster, for the evaluation of its policies.
struct Evaluator {
    policies: Vec<Value>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether blocks of addresses also match those of pods: implementations differ.
    blocks_match_pods: bool,
}

impl Evaluator {
    fn allows(&self, from: &PolicyPeer, to: &PolicyPeer, protocol: &str, port: u16) -> bool {
        self.passes("Egress", from, to, protocol, port) && self.passes("Ingress", to, from, protocol, port)
    }

    /// Whether the pod's policies of that direction let the other one through.
    fn passes(&self, direction: &str, end: &PolicyPeer, other: &PolicyPeer, protocol: &str, port: u16) -> bool {
        let Some((namespace, labels)) = &end.pod else { return true };
        let (rules, peers) = if direction == "Egress" { ("egress", "to") } else { ("ingress", "from") };
        let selecting: Vec<_> = self
            .policies
            .iter()
            .filter(|policy| policy["metadata"]["namespace"] == **namespace)
            .filter(|policy| selects(&policy["spec"]["podSelector"], labels))
            .filter(|policy| match policy["spec"]["policyTypes"].as_array() {
                Some(types) => types.iter().any(|one| one == direction),
                None => direction == "Ingress" || policy["spec"].get("egress").is_some(),
            })
            .collect();
        selecting.is_empty()
            || selecting.iter().flat_map(|policy| policy["spec"][rules].as_array().into_iter().flatten()).any(|rule| {
                let all = |key: &str| rule[key].as_array().filter(|list| !list.is_empty());
                let peer = all(peers).is_none_or(|peers| peers.iter().any(|peer| self.matches(peer, namespace, other)));
                peer && all("ports").is_none_or(|ports| {
                    ports.iter().any(|one| {
                        let first = one["port"].as_u64();
                        let last = one["endPort"].as_u64().or(first);
                        one["protocol"].as_str().unwrap_or("TCP") == protocol
                            && first.is_none_or(|first| first <= port.into())
                            && last.is_none_or(|last| last >= port.into())
                    })
                })
            })
    }

    fn matches(&self, peer: &Value, own: &str, end: &PolicyPeer) -> bool {
        if let Some(block) = peer.get("ipBlock") {
            let address: Network = end.ip.parse().unwrap();
            let network = |value: &Value| -> Network {
                // Everything is no network of ours.
                match value.as_str().unwrap() {
                    "0.0.0.0/0" if !address.is_v6() => address,
                    "::/0" if address.is_v6() => address,
                    "0.0.0.0/0" | "::/0" => "192.0.2.0/32".parse().unwrap(),
                    text => text.parse().unwrap(),
                }
            };
            let excepted = block["except"].as_array().into_iter().flatten().any(|one| network(one).contains(&address));
            return (end.pod.is_none() || self.blocks_match_pods)
                && network(&block["cidr"]).contains(&address)
                && !excepted;
        }
        let Some((namespace, labels)) = &end.pod else { return false };
        let there = match peer.get("namespaceSelector") {
            Some(selector) => self.namespaces.get(namespace).is_some_and(|labels| selects(selector, labels)),
            None => namespace == own,
        };
        there && peer.get("podSelector").is_none_or(|selector| selects(selector, labels))
    }
}

fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let mut exact = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    exact.all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        && expressions.all(|one| {
            let value = labels.get(one["key"].as_str().unwrap()).map(String::as_str);
            let mut listed = one["values"].as_array().into_iter().flatten();
            match one["operator"].as_str().unwrap() {
                "In" => value.is_some() && listed.any(|listed| listed.as_str() == value),
                "NotIn" => value.is_none() || !listed.any(|listed| listed.as_str() == value),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other} is no operator"),
            }
        })
}

/// The evaluator itself, by what Kubernetes' documentation says of some policies.
#[test]
fn the_evaluator_agrees_with_the_documentation() {
    let policy = |spec: Value| json!({ "metadata": { "namespace": "a" }, "spec": spec });
    let of = |policies: Vec<Value>| Evaluator {
        policies,
        namespaces: [("a", "one"), ("b", "two")]
            .map(|(name, team)| (name.to_owned(), [("team".to_owned(), team.to_owned())].into()))
            .into(),
        blocks_match_pods: false,
    };
    let (db, web) = (pod("10.0.0.1", "a", [("role", "db")]), pod("10.0.0.2", "a", [("role", "web")]));
    let other = pod("10.0.1.1", "b", [("role", "web")]);
    let open = of(Vec::new());
    assert!(open.allows(&web, &db, "TCP", 1) && open.allows(&other, &outside("8.8.8.8"), "UDP", 53));
    // Without policyTypes, egress counts if there are rules of it.
    let closed = of(vec![policy(json!({ "podSelector": {} }))]);
    assert!(!closed.allows(&web, &db, "TCP", 1) && closed.allows(&web, &outside("8.8.8.8"), "TCP", 1));
    let closed = of(vec![policy(json!({ "podSelector": {}, "policyTypes": ["Egress"] }))]);
    assert!(!closed.allows(&web, &outside("8.8.8.8"), "TCP", 1) && closed.allows(&other, &db, "TCP", 1));
    // Policies add up; a podSelector alone is of the same namespace; both together must hold.
    let rule = json!({ "podSelector": { "matchLabels": { "role": "db" } }, "policyTypes": ["Ingress"], "ingress": [{
        "from": [{ "podSelector": { "matchLabels": { "role": "web" } } }], "ports": [{ "port": 5, "endPort": 7 }],
    }] });
    let some = of(vec![policy(json!({ "podSelector": {}, "policyTypes": ["Ingress"] })), policy(rule)]);
    assert!(some.allows(&web, &db, "TCP", 6) && !some.allows(&web, &db, "UDP", 6) && !some.allows(&web, &db, "TCP", 8));
    assert!(!some.allows(&other, &db, "TCP", 6) && !some.allows(&db, &web, "TCP", 6));
    let both = json!({ "podSelector": {}, "ingress": [{ "from": [{
        "namespaceSelector": { "matchLabels": { "team": "two" } }, "podSelector": { "matchLabels": { "role": "web" } },
    }] }] });
    let both = of(vec![policy(both)]);
    assert!(both.allows(&other, &db, "TCP", 6) && !both.allows(&web, &db, "TCP", 6));
    assert!(!both.allows(&pod("10.0.1.2", "b", []), &db, "TCP", 6));
    let block = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{
        "to": [{ "ipBlock": { "cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"] } }],
    }] });
    let block = of(vec![policy(block)]);
    assert!(
        block.allows(&web, &outside("172.17.2.1"), "TCP", 1) && !block.allows(&web, &outside("172.17.1.1"), "TCP", 1)
    );
    assert!(!block.allows(&web, &outside("172.18.0.1"), "TCP", 1));
    // matchExpressions: what has no such label is not in the list.
    let odd =
        json!({ "podSelector": { "matchExpressions": [{ "key": "role", "operator": "NotIn", "values": ["db"] }] } });
    let odd = of(vec![policy(odd)]);
    assert!(odd.allows(&web, &db, "TCP", 1) && !odd.allows(&db, &web, "TCP", 1));
    assert!(!odd.allows(&db, &pod("10.0.0.3", "a", []), "TCP", 1));
}

const PODS: &str = "10.200.0.0/16";
const SERVICES: &str = "10.96.0.0/12";
const NODE: &str = "192.168.7.2/32";

fn known() -> MetaNetworks {
    MetaNetworks {
        networks: [PODS, SERVICES, NODE].map(|one| one.parse::<Network>().unwrap()).into(),
        operators: Vec::new(),
        operator_namespace: Some("fleetwright-system".to_owned()),
    }
}

/// A control plane that was made, and what else there is in the meta cluster.
struct PolicySite {
    world: TestCluster,
    ends: BTreeMap<&'static str, PolicyPeer>,
}

/// One with all policies seen.
fn settled(change: impl FnOnce(&mut TestCluster)) -> PolicySite {
    let mut world = TestCluster::new();
    world.meta = known();
    world.spec.network.services = "10.80.0.0/16".to_owned();
    let extensions = shipped(|name| format!("registry.example/{name}:v1")).unwrap();
    let extension = extensions.into_iter().find(|one| one.name == MACHINE_OPERATOR).unwrap();
    for package in world.packages.values_mut() {
        package.extensions = vec![extension.clone()];
    }
    world.extensions.ca_bundle = Some("trusted".to_owned());
    world.extensions.since = Some(NOW);
    change(&mut world);
    world.settle();
    let mut ends = BTreeMap::new();
    // Labels are those of the pods that are really made.
    let template = |world: &TestCluster, kind: Kind, name: &str| {
        world.live.get(&(kind, name.to_owned())).map(|object| object["spec"]["template"]["metadata"]["labels"].clone())
    };
    let mut own = |name: &'static str, ip: &str, labels: Value| {
        let labels = serde_json::from_value(labels).unwrap();
        ends.insert(name, PolicyPeer { ip: ip.to_owned(), pod: Some(("fleet-pay".to_owned(), labels)) });
    };
    for (component, ip) in
        ControlPlaneComponent::ALL.into_iter().zip(["10.200.1.1", "10.200.1.2", "10.200.1.3", "10.200.1.4"])
    {
        let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
        if let Some(labels) = template(&world, kind, component.binary()) {
            own(component.binary(), ip, labels);
        }
    }
    // The operator of machines comes when its kinds are there.
    done(&mut world, &|_| ExtensionOutcome::Healthy);
    let choice = world.decide().extensions;
    let operator = choice.apply.iter().find(|(object, _)| object.kind == Kind::Deployment).unwrap();
    own(MACHINE_OPERATOR, "10.200.1.5", operator.0.body["spec"]["template"]["metadata"]["labels"].clone());
    for (job, ip) in SnapshotPodJob::ALL.into_iter().zip(["10.200.1.6", "10.200.1.7", "10.200.1.8", "10.200.1.9"]) {
        let mut labels = world.names.labels();
        labels.insert(names::COMPONENT.to_owned(), job.as_str().to_owned());
        own(job.as_str(), ip, json!(labels));
    }
    own("stranger", "10.200.1.10", json!({ "app": "anything" }));
    let other = |component: &'static str| {
        let labels = [(names::CLUSTER, "shop"), (names::CLUSTER_NAMESPACE, "fleet"), (names::COMPONENT, component)];
        pod("10.200.2.1", "fleet-shop", labels)
    };
    ends.extend([
        ("other etcd", other("etcd")),
        ("other apiserver", other("kube-apiserver")),
        ("dns", pod("10.200.3.1", "kube-system", [("k8s-app", "kube-dns")])),
        ("kube-system", pod("10.200.3.2", "kube-system", [("k8s-app", "secrets")])),
        ("operators", pod("10.200.4.1", "fleetwright-system", [("app.kubernetes.io/name", "fleetwright-operators")])),
        ("posing operators", pod("10.200.4.2", "default", [("app.kubernetes.io/name", "fleetwright-operators")])),
        ("prometheus", pod("10.200.5.1", "monitoring", [])),
        ("opened", pod("10.200.6.1", "storage", [(REACHABLE, "true")])),
        ("not opened", pod("10.200.6.2", "storage", [])),
        ("opened alone", pod("10.200.6.3", "default", [(REACHABLE, "true")])),
        ("meta service", outside("10.96.0.1")),
        ("meta node", outside("192.168.7.2")),
        ("metadata", outside("169.254.169.254")),
        ("azure", outside("168.63.129.16")),
        ("local dns", outside("169.254.20.10")),
        ("worker", outside("192.168.7.9")),
        ("internet", outside("203.0.113.9")),
        ("internet6", outside("2001:db8::9")),
    ]);
    PolicySite { world, ends }
}

impl PolicySite {
    /// A snapshot is asked for: policies of its pods come before they do.
    fn restore(&mut self) {
        self.world.spec.restore = Some(Restore { snapshot: "x".to_owned(), ..Restore::default() });
        let decision = self.world.decide();
        let mut all = policies(&decision);
        all.sort();
        assert_eq!(all, ["restore-member", "restore-source"]);
        self.world.applied(&decision);
    }

    /// Whether it is allowed, whatever implementation enforces it.
    fn allows(&self, from: &str, to: &str, port: u16, protocol: &str) -> bool {
        let namespaces = [
            ("fleet-pay", vec![]),
            ("fleet-shop", vec![]),
            ("kube-system", vec![]),
            ("fleetwright-system", vec![]),
            ("default", vec![]),
            ("monitoring", vec![(METRICS_READER, "true")]),
            ("storage", vec![(REACHABLE, "true")]),
        ];
        let namespaces = namespaces.map(|(name, more)| {
            let own = [("kubernetes.io/metadata.name", name)].into_iter().chain(more);
            let labels: BTreeMap<_, _> = own.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            (name.to_owned(), labels)
        });
        let policies = self.world.live.iter().filter(|((kind, _), _)| *kind == Kind::NetworkPolicy);
        let mut evaluator = Evaluator {
            policies: policies.map(|(_, policy)| policy.clone()).collect(),
            namespaces: namespaces.into(),
            blocks_match_pods: false,
        };
        let end = |name: &str| self.ends.get(name).unwrap_or_else(|| panic!("{name} is nowhere"));
        let verdict = evaluator.allows(end(from), end(to), protocol, port);
        evaluator.blocks_match_pods = true;
        let other = evaluator.allows(end(from), end(to), protocol, port);
        assert_eq!(verdict, other, "{from} to {to}:{port} depends on the implementation");
        verdict
    }

    /// Each row: from, to, port, and whether it is allowed.
    fn check(&self, table: &[(&str, &str, u16, bool)]) {
        let wrong: Vec<_> =
            table.iter().filter(|(from, to, port, allowed)| self.allows(from, to, *port, "TCP") != *allowed).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn a_control_plane_reaches_what_it_needs_and_nothing_of_the_meta_cluster() {
    let site = settled(|_| {});
    site.check(&[
        ("kube-apiserver", "etcd", 2379, true),
        ("kube-apiserver", "etcd", 2380, false),
        ("kube-apiserver", "worker", 10250, true),
        ("kube-apiserver", "worker", 2379, true),
        ("kube-apiserver", "internet", 443, true),
        ("kube-apiserver", "opened", 2379, true),
        ("kube-apiserver", "meta service", 443, false),
        ("kube-apiserver", "meta service", 6443, false),
        ("kube-apiserver", "meta node", 10250, false),
        ("kube-apiserver", "meta node", 22, false),
        ("kube-apiserver", "kube-system", 443, false),
        // Of the pods that serve DNS, neither metrics nor health checks.
        ("kube-apiserver", "dns", 9153, false),
        ("kube-apiserver", "dns", 8080, false),
        ("kube-apiserver", "dns", 8181, false),
        ("kube-apiserver", "operators", 9440, false),
        ("kube-apiserver", "other etcd", 2379, false),
        ("kube-apiserver", "other apiserver", 6443, false),
        ("kube-apiserver", "not opened", 443, false),
        ("kube-apiserver", "opened alone", 443, false),
        ("kube-apiserver", "metadata", 80, false),
        ("kube-apiserver", "azure", 80, false),
        ("kube-apiserver", "internet6", 443, false),
        ("kube-apiserver", MACHINE_OPERATOR, 9440, false),
        ("kube-apiserver", "kube-scheduler", 10259, false),
        ("kube-apiserver", "stranger", 80, false),
        ("kube-controller-manager", "kube-apiserver", 6443, true),
        ("kube-controller-manager", "etcd", 2379, false),
        ("kube-controller-manager", "internet", 443, false),
        ("kube-scheduler", "kube-apiserver", 6443, true),
        ("kube-scheduler", "etcd", 2379, false),
        ("kube-scheduler", "internet", 443, false),
        ("etcd", "etcd", 2380, true),
        ("etcd", "etcd", 2379, true),
        ("etcd", "kube-apiserver", 6443, false),
        ("etcd", "internet", 443, false),
        (MACHINE_OPERATOR, "kube-apiserver", 6443, true),
        (MACHINE_OPERATOR, "worker", 22, true),
        (MACHINE_OPERATOR, "worker", 2222, true),
        (MACHINE_OPERATOR, "etcd", 2379, false),
        (MACHINE_OPERATOR, "meta node", 22, false),
        (MACHINE_OPERATOR, "meta service", 443, false),
        (MACHINE_OPERATOR, "operators", 9440, false),
        (MACHINE_OPERATOR, "metadata", 80, false),
    ]);
}

#[test]
fn only_who_needs_a_control_plane_reaches_it() {
    let site = settled(|_| {});
    site.check(&[
        ("internet", "kube-apiserver", 6443, true),
        ("worker", "kube-apiserver", 6443, true),
        ("worker", "kube-apiserver", 8080, false),
        ("operators", "kube-apiserver", 6443, true),
        ("operators", "etcd", 2379, true),
        ("operators", "etcd", 2380, false),
        ("posing operators", "etcd", 2379, false),
        ("other apiserver", "etcd", 2379, false),
        ("other etcd", "etcd", 2380, false),
        ("stranger", "etcd", 2379, false),
        ("worker", "etcd", 2379, false),
        ("kube-system", "etcd", 2379, false),
        ("prometheus", "etcd", 2381, true),
        ("prometheus", "etcd", 2379, false),
        ("prometheus", "kube-controller-manager", 10257, true),
        ("prometheus", "kube-scheduler", 10259, true),
        ("prometheus", MACHINE_OPERATOR, 9440, true),
        ("kube-system", "kube-controller-manager", 10257, false),
        ("kube-system", MACHINE_OPERATOR, 9440, false),
        // A pod that nothing selects.
        ("internet", "stranger", 80, false),
        ("kube-apiserver", "stranger", 80, false),
        ("stranger", "internet", 443, false),
        ("stranger", "kube-system", 443, false),
    ]);
}

#[test]
fn names_are_asked_for_by_all_but_pods_that_need_none() {
    let site = settled(|_| {});
    for from in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "snapshot", MACHINE_OPERATOR] {
        // These are ports of the pod, behind the port 53 of its Service.
        for port in [53, 1053, 5353, 8053] {
            assert!(site.allows(from, "dns", port, "UDP") && site.allows(from, "dns", port, "TCP"), "{from} {port}");
        }
        assert!(!site.allows(from, "dns", 9153, "TCP") && !site.allows(from, "dns", 123, "UDP"), "{from}");
        assert!(site.allows(from, "local dns", 53, "UDP") && !site.allows(from, "local dns", 80, "TCP"), "{from}");
        assert!(!site.allows(from, "kube-system", 53, "UDP"), "{from}");
    }
    assert!(!site.allows("restore-clean", "dns", 53, "UDP"));
}

#[test]
fn pods_of_snapshots_reach_the_data_and_the_store_alone() {
    let mut volume = settled(|_| {});
    volume.restore();
    volume.check(&[
        ("snapshot", "etcd", 2379, true),
        ("snapshot", "etcd", 2380, false),
        ("snapshot", "kube-apiserver", 6443, false),
        ("snapshot", "internet", 443, false),
        ("snapshot", "opened", 443, false),
        ("restore-source", "internet", 443, false),
        ("restore-source", "etcd", 2379, false),
        ("restore-member", "restore-source", 2379, true),
        ("restore-member", "restore-source", 2380, false),
        ("restore-member", "internet", 443, false),
        ("restore-member", "etcd", 2379, false),
        ("kube-apiserver", "restore-source", 2379, false),
        ("restore-clean", "etcd", 2379, false),
        ("restore-clean", "internet", 443, false),
    ]);
    let mut bucket = settled(|world| {
        world.spec.snapshots = Some(Snapshots {
            s3: Some(SnapshotBucket {
                endpoint: "https://s3.example.com:9000/under".to_owned(),
                bucket: "b".to_owned(),
                region: "r".to_owned(),
                prefix: None,
                secret_ref: SecretRef { name: "keys".to_owned() },
                insecure: false,
            }),
            ..Snapshots::default()
        });
    });
    bucket.restore();
    for from in ["snapshot", "restore-source"] {
        bucket.check(&[
            (from, "internet", 9000, true),
            (from, "internet", 443, false),
            (from, "opened", 9000, true),
            (from, "not opened", 9000, false),
            (from, "meta service", 9000, false),
            (from, "meta node", 9000, false),
            (from, "kube-system", 9000, false),
            (from, "other etcd", 2379, false),
            (from, "metadata", 9000, false),
        ]);
    }
    bucket.check(&[("restore-member", "internet", 9000, false), ("restore-clean", "internet", 9000, false)]);
}

#[test]
fn an_external_etcd_is_outside_or_opened_by_its_owner() {
    let site = settled(|world| {
        world.spec.datastore.etcd = None;
        world.spec.datastore.external = Some(ExternalDatastore {
            endpoints: vec!["https://203.0.113.9:2379".to_owned()],
            secret_ref: SecretRef { name: "keys".to_owned() },
            prefix: None,
        });
    });
    site.check(&[
        ("kube-apiserver", "internet", 2379, true),
        ("kube-apiserver", "opened", 2379, true),
        ("kube-apiserver", "not opened", 2379, false),
        ("kube-apiserver", "other etcd", 2379, false),
        ("kube-scheduler", "internet", 2379, false),
    ]);
    assert!(site.allows("kube-apiserver", "dns", 53, "UDP") && site.allows("kube-scheduler", "dns", 53, "UDP"));
    let there: Vec<_> = site.world.live.keys().filter(|(kind, _)| *kind == Kind::NetworkPolicy).collect();
    assert!(there.iter().all(|(_, name)| !["etcd", "snapshot"].contains(&name.as_str())), "{there:?}");
}

#[test]
fn a_scheduler_leaves_the_control_plane_for_extenders_alone() {
    let site = settled(|world| {
        let content = "extenders: [{urlPrefix: https://extender.example}]\n".to_owned();
        let file = fleetwright_api::ConfigFile { name: "scheduler.yaml".to_owned(), content };
        world.packages.get_mut("v1.36").unwrap().components.scheduler.config = vec![file];
    });
    site.check(&[
        ("kube-scheduler", "internet", 443, true),
        ("kube-scheduler", "meta service", 443, false),
        ("kube-scheduler", "metadata", 80, false),
        ("kube-controller-manager", "internet", 443, false),
    ]);
}

#[test]
fn operators_outside_pods_reach_etcd_from_their_network() {
    let site = settled(|world| {
        world.meta.operators = vec!["192.168.7.9".parse().unwrap()];
        world.meta.operator_namespace = None;
    });
    site.check(&[
        ("worker", "etcd", 2379, true),
        ("worker", "etcd", 2380, false),
        ("internet", "etcd", 2379, false),
        ("operators", "etcd", 2379, false),
    ]);
}

#[test]
fn without_known_networks_the_metadata_addresses_are_out_of_reach_all_the_same() {
    let site = settled(|world| world.meta = MetaNetworks::default());
    // This is not what is wanted, and operators say so: see `meta_networks` in the metrics.
    site.check(&[
        ("kube-apiserver", "meta service", 443, true),
        ("kube-apiserver", "internet6", 443, true),
        ("kube-apiserver", "metadata", 80, false),
        ("kube-apiserver", "azure", 80, false),
        // What control planes themselves let in does not depend on it. Blocks of addresses may match pods here.
        ("kube-scheduler", "etcd", 2379, false),
        ("kube-scheduler", "internet", 443, false),
    ]);
}

#[test]
fn both_families_are_excepted_where_the_meta_cluster_has_both() {
    let site = settled(|world| world.meta.networks.push("2001:db8::/64".parse().unwrap()));
    site.check(&[("kube-apiserver", "internet6", 443, false), ("kube-apiserver", "internet", 443, true)]);
    let policy = &site.world.live[&(Kind::NetworkPolicy, "kube-apiserver".to_owned())];
    let text = policy.to_string();
    assert!(text.contains("::/0") && text.contains("2001:db8::/64") && text.contains("fe80::/10"), "{text}");
}

fn policies(decision: &Decision) -> Vec<&str> {
    let all = kinds(decision).into_iter().filter(|(kind, _)| *kind == Kind::NetworkPolicy);
    all.map(|(_, name)| name).collect()
}

#[test]
fn what_nothing_allows_is_denied_after_all_that_is_allowed_was_seen() {
    let mut world = TestCluster::new();
    let mut written = Vec::new();
    for decision in world.settle() {
        let now: Vec<_> = policies(&decision).into_iter().map(str::to_owned).collect();
        if now.iter().any(|name| name == DEFAULT_DENY) {
            assert_eq!(now, [DEFAULT_DENY]);
        } else if !now.is_empty() {
            assert!(!written.iter().any(|name| name == DEFAULT_DENY), "{written:?}, then {now:?}");
        }
        // A policy is there before the pods that it selects.
        let kinds: Vec<_> = decision.apply.iter().map(|(object, _)| object.kind).collect();
        for name in ["etcd", "kube-apiserver", "kube-scheduler"] {
            let at = |kinds: &[Kind]| {
                decision.apply.iter().position(|(object, _)| object.name == name && kinds.contains(&object.kind))
            };
            if let (Some(policy), Some(workload)) =
                (at(&[Kind::NetworkPolicy]), at(&[Kind::Deployment, Kind::StatefulSet]))
            {
                assert!(policy < workload, "{kinds:?}");
            }
        }
        written.extend(now);
    }
    written.sort();
    assert_eq!(
        written,
        [DEFAULT_DENY, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "names", "snapshot"]
    );
    // A cluster of an operator that knew no policies: the same order, and no pod is made again.
    world.live.retain(|(kind, name), _| *kind != Kind::NetworkPolicy || name == "etcd");
    let first = world.decide();
    assert_eq!(policies(&first).len(), 5);
    assert!(kinds(&first).iter().all(|(kind, _)| *kind == Kind::NetworkPolicy), "{:?}", kinds(&first));
    assert!(first.replace.is_none());
    world.applied(&first);
    let second = world.decide();
    assert_eq!(kinds(&second), [(Kind::NetworkPolicy, DEFAULT_DENY)]);
    world.applied(&second);
    assert!(world.decide().apply.is_empty());
    // While one of them cannot be written, nothing is denied.
    world
        .live
        .retain(|(kind, name), _| *kind != Kind::NetworkPolicy || !["names", DEFAULT_DENY].contains(&name.as_str()));
    assert_eq!(policies(&world.decide()), ["names"]);
}

#[test]
fn a_network_that_becomes_known_changes_policies_and_no_pods() {
    let mut world = TestCluster::new();
    world.settle();
    world.meta = known();
    let decision = world.decide();
    let mut changed = policies(&decision);
    changed.sort();
    assert_eq!(changed, ["etcd", "kube-apiserver"], "etcd hears where operators are");
    assert_eq!(decision.apply.len(), 2);
    world.settle();
    assert!(world.decide().apply.is_empty());
}

#[test]
fn what_somebody_adds_to_a_policy_is_taken_away() {
    let mut world = TestCluster::new();
    world.settle();
    for change in [
        ("/spec/egress/0/to/0/namespaceSelector", json!({})),
        ("/spec/egress/0/ports/1", json!({ "protocol": "TCP", "port": 1 })),
        ("/spec/egress/9", json!({})),
    ] {
        let policy = world.live.get_mut(&(Kind::NetworkPolicy, "kube-controller-manager".to_owned())).unwrap();
        let (parent, last) = change.0.rsplit_once('/').unwrap();
        match policy.pointer_mut(parent).unwrap() {
            Value::Array(list) => list.push(change.1),
            at => at[last] = change.1,
        }
        let decision = world.decide();
        assert_eq!(policies(&decision), ["kube-controller-manager"], "{}", change.0);
        assert!(decision.apply[0].1.is_some(), "it is a repair");
        world.settle();
    }
}
