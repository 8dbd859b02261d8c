//! Enforces NetworkPolicies on the node.
//!
//! Each pod has its own link to the node, so that its packets to other pods pass the chain FORWARD, and those to the node itself INPUT: after
//! kube-proxy chose the pod behind a Service, and before masquerading. Packets from the node to its pods, such as probes, pass neither.
//!
//! Assumptions: IPv4 only, and ports by number. Connections that were made before a policy stay open.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use futures::stream::select_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::oneshot;

use crate::hosts::Host;
use crate::plane;

/// Events come in bursts; this time collects one.
const TOGETHER: Duration = Duration::from_millis(50);

/// Loads all rules at once, and keeps them first: kube-proxy inserts its own at the top when it starts.
const LOAD: &str = "iptables-restore -w -n && for hook in FORWARD:LAB-POLICIES INPUT:LAB-TO-NODE; do \
iptables -w -S ${hook%:*} 1 | grep -q -- \"-j ${hook#*:}$\" || iptables -w -I ${hook%:*} 1 -j ${hook#*:}; done";

/// The enforcer. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Policies {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Policies {
    pub(crate) fn start(kubeconfig: String, node: Arc<Host>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        // Like the runtime of the volumes.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("policies".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    served = serve(&kubeconfig, &node) => {
                        if let Err(error) = served {
                            eprintln!("lab: NetworkPolicies are not enforced: {error:#}");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(kubeconfig: &str, node: &Host) -> Result<()> {
    let client = plane::client(kubeconfig).await?;
    let config = watcher::Config::default;
    // The content of the events does not matter.
    let mut events = select_all([
        watcher(Api::<Pod>::all(client.clone()), config()).default_backoff().map(drop).boxed(),
        watcher(Api::<Namespace>::all(client.clone()), config()).default_backoff().map(drop).boxed(),
        watcher(Api::<NetworkPolicy>::all(client.clone()), config()).default_backoff().map(drop).boxed(),
    ]);
    let mut loaded = String::new();
    loop {
        if events.next().await.is_none() {
            return Ok(());
        }
        tokio::time::sleep(TOGETHER).await;
        while futures::FutureExt::now_or_never(events.next()).flatten().is_some() {}
        // Retries, since no event would repeat a failed load.
        loop {
            match load(&client, node, &loaded).await {
                Ok(rules) => {
                    loaded = rules;
                    break;
                }
                Err(error) => eprintln!("lab: NetworkPolicies: {error:#}"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Loads the rules unless they are loaded already.
async fn load(client: &Client, node: &Host, loaded: &str) -> Result<String> {
    let all = ListParams::default();
    let pods = Api::<Pod>::all(client.clone()).list(&all).await?.items;
    let namespaces = Api::<Namespace>::all(client.clone()).list(&all).await?.items;
    let policies = Api::<NetworkPolicy>::all(client.clone()).list(&all).await?.items;
    let rules = rules(&pods, &namespaces, &policies);
    if rules != loaded {
        let text = rules.clone();
        node.feed(LOAD, move |to| Ok(to.write_all(text.as_bytes())?)).await?;
    }
    Ok(rules)
}

/// A pod with its own address.
struct PodAddress<'a> {
    ip: &'a str,
    namespace: String,
    labels: &'a BTreeMap<String, String>,
}

/// The input of `iptables-restore`. Packets that the chain of the sender accepts continue in the chains of the receiver.
fn rules(pods: &[Pod], namespaces: &[Namespace], policies: &[NetworkPolicy]) -> String {
    let namespaces: BTreeMap<String, &BTreeMap<String, String>> =
        namespaces.iter().map(|namespace| (namespace.name_any(), namespace.labels())).collect();
    let places: Vec<_> = pods.iter().filter_map(place).collect();
    let (mut chains, mut lines) = (Chains::default(), String::new());
    let mut hooks = (String::new(), String::new());
    for (number, place) in places.iter().enumerate() {
        for egress in [true, false] {
            let own: Vec<_> = policies.iter().filter(|policy| isolates(policy, place, egress)).collect();
            if own.is_empty() {
                continue;
            }
            let chain = format!("LAB-{}-{number}", if egress { "FROM" } else { "TO" });
            let (hook, side) = if egress { (&mut hooks.0, "-s") } else { (&mut hooks.1, "-d") };
            let _ = writeln!(hook, "{side} {}/32 -g {chain}", place.ip);
            chains.names.push(chain.clone());
            for policy in own {
                let inside = policy.namespace().unwrap_or_default();
                for (peers, ports) in allowed(policy, egress) {
                    for peer in sources(peers, &inside, &places, &namespaces) {
                        for port in matches(ports) {
                            chains.allow(&chain, egress, &peer, &port, &mut lines);
                        }
                    }
                }
            }
            let _ = writeln!(lines, "-A {chain} -j REJECT");
        }
    }
    let mut text = "*filter\n".to_owned();
    for chain in ["LAB-POLICIES", "LAB-TO-NODE", "LAB-NEXT"].into_iter().chain(chains.names.iter().map(String::as_str))
    {
        let _ = writeln!(text, ":{chain} - [0:0]");
    }
    let established = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN";
    let of = |chain: &str, hook: &str| -> String { hook.lines().map(|line| format!("-A {chain} {line}\n")).collect() };
    let _ = writeln!(text, "-A LAB-POLICIES {established}\n-A LAB-TO-NODE {established}");
    text += &of("LAB-POLICIES", &hooks.0);
    text += &of("LAB-POLICIES", &hooks.1);
    text += &of("LAB-TO-NODE", &hooks.0);
    text += &of("LAB-NEXT", &hooks.1);
    text + "-A LAB-NEXT -j ACCEPT\n" + &lines + "COMMIT\n"
}

/// The chains of pods, and of blocks with exceptions.
#[derive(Default)]
struct Chains {
    names: Vec<String>,
    blocks: usize,
}

/// Addresses with exceptions.
struct Addresses {
    network: String,
    except: Vec<String>,
}

impl Chains {
    /// Accepts packets from, or to, these addresses.
    fn allow(&mut self, chain: &str, egress: bool, peer: &Addresses, port: &str, lines: &mut String) {
        let side = if egress { "-d" } else { "-s" };
        // Egress that is allowed must also be accepted by the receiver's ingress.
        let through = if egress { "-g LAB-NEXT" } else { "-j ACCEPT" };
        if peer.except.is_empty() {
            let _ = writeln!(lines, "-A {chain} {side} {}{port} {through}", peer.network);
            return;
        }
        let block = format!("LAB-BLOCK-{}", self.blocks);
        self.blocks += 1;
        let _ = writeln!(lines, "-A {chain} {side} {}{port} -j {block}", peer.network);
        for except in &peer.except {
            let _ = writeln!(lines, "-A {block} {side} {except} -j RETURN");
        }
        let _ = writeln!(lines, "-A {block} {through}");
        self.names.push(block);
    }
}

fn place(pod: &Pod) -> Option<PodAddress<'_>> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    // The address of a pod that ended is reused for another pod.
    let ended = ["Succeeded", "Failed"].contains(&status.phase.as_deref().unwrap_or_default());
    let ip = status.pod_ip.as_deref().filter(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok())?;
    let own = spec.host_network != Some(true) && !ended;
    own.then(|| PodAddress { ip, namespace: pod.namespace().unwrap_or_default(), labels: pod.labels() })
}

/// Whether a policy selects this pod in this direction.
fn isolates(policy: &NetworkPolicy, place: &PodAddress<'_>, egress: bool) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let wanted = if egress { "Egress" } else { "Ingress" };
    let types = match &spec.policy_types {
        Some(types) => types.iter().any(|one| one == wanted),
        None => !egress || spec.egress.is_some(),
    };
    let selector = spec.pod_selector.as_ref();
    types
        && policy.namespace().as_deref() == Some(place.namespace.as_str())
        && selector.is_none_or(|selector| selects(selector, place.labels))
}

type Rule<'a> = (&'a [NetworkPolicyPeer], &'a [NetworkPolicyPort]);

/// The rules of a policy: peers, or all addresses without any, and ports, or all of them.
fn allowed(policy: &NetworkPolicy, egress: bool) -> Vec<Rule<'_>> {
    let Some(spec) = &policy.spec else { return Vec::new() };
    match egress {
        true => {
            let rules = spec.egress.iter().flatten();
            rules
                .map(|rule| (rule.to.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default()))
                .collect()
        }
        false => {
            let rules = spec.ingress.iter().flatten();
            rules
                .map(|rule| (rule.from.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default()))
                .collect()
        }
    }
}

/// The addresses of peers.
fn sources(
    peers: &[NetworkPolicyPeer],
    inside: &str,
    places: &[PodAddress<'_>],
    namespaces: &BTreeMap<String, &BTreeMap<String, String>>,
) -> Vec<Addresses> {
    let all = |network: &str| Addresses { network: network.to_owned(), except: Vec::new() };
    if peers.is_empty() {
        return vec![all("0.0.0.0/0")];
    }
    let mut found = Vec::new();
    for peer in peers {
        if let Some(block) = &peer.ip_block {
            if !block.cidr.contains(':') {
                found.push(Addresses { network: block.cidr.clone(), except: block.except.clone().unwrap_or_default() });
            }
            continue;
        }
        let there = |place: &&PodAddress<'_>| match &peer.namespace_selector {
            Some(selector) => namespaces.get(&place.namespace).is_some_and(|labels| selects(selector, labels)),
            None => place.namespace == inside,
        };
        let selected =
            |place: &&PodAddress<'_>| peer.pod_selector.as_ref().is_none_or(|one| selects(one, place.labels));
        found.extend(places.iter().filter(there).filter(selected).map(|place| all(&format!("{}/32", place.ip))));
    }
    found
}

/// The port matches of the rules: one empty text for all ports.
fn matches(ports: &[NetworkPolicyPort]) -> Vec<String> {
    if ports.is_empty() {
        return vec![String::new()];
    }
    let one = |port: &NetworkPolicyPort| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
        match (&port.port, port.end_port) {
            (None, _) => Some(format!(" -p {protocol}")),
            (Some(IntOrString::Int(first)), last) => {
                Some(format!(" -p {protocol} --dport {first}:{}", last.unwrap_or(*first)))
            }
            // Named ports are not supported; no policy in the lab has one.
            (Some(IntOrString::String(_)), _) => None,
        }
    };
    ports.iter().filter_map(one).collect()
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    exact
        && selector.match_expressions.iter().flatten().all(|one| {
            let value = labels.get(&one.key);
            let listed = || value.is_some_and(|value| one.values.iter().flatten().any(|listed| listed == value));
            match one.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(namespace: &str, name: &str, ip: &str, more: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
            "spec": { "containers": [] }, "status": { "phase": "Running", "podIP": ip },
        });
        if let (Some(pod), Value::Object(more)) = (pod.as_object_mut(), more) {
            pod.extend(more);
        }
        serde_json::from_value(pod).unwrap()
    }

    fn of(policies: &[Value]) -> String {
        let ended = json!({ "status": { "phase": "Succeeded", "podIP": "10.0.0.9" } });
        let on_host = json!({ "spec": { "containers": [], "hostNetwork": true } });
        let pods = [
            pod("a", "web", "10.0.0.1", json!({})),
            pod("a", "db", "10.0.0.2", json!({})),
            pod("b", "web", "10.0.0.3", json!({})),
            pod("a", "ended", "10.0.0.9", ended),
            pod("a", "proxy", "192.0.2.1", on_host),
        ];
        let namespaces: [Namespace; 2] = ["a", "b"].map(|name| {
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": { "team": name } } })).unwrap()
        });
        let policies: Vec<NetworkPolicy> = policies
            .iter()
            .map(|spec| {
                serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "a" }, "spec": spec })).unwrap()
            })
            .collect();
        rules(&pods, &namespaces, &policies)
    }

    #[test]
    fn without_policies_nothing_is_held_up() {
        let text = of(&[]);
        assert!(!text.contains("REJECT") && !text.contains("10.0.0."), "{text}");
    }

    #[test]
    fn a_selected_pod_is_reached_by_those_that_are_allowed_alone() {
        let text = of(&[json!({
            "podSelector": { "matchLabels": { "app": "db" } },
            "ingress": [{
                "from": [
                    { "podSelector": { "matchLabels": { "app": "web" } } },
                    { "namespaceSelector": { "matchLabels": { "team": "b" } } },
                ],
                "ports": [{ "port": 5432 }, { "protocol": "UDP", "port": 1, "endPort": 3 }],
            }],
        })]);
        for line in [
            "-A LAB-POLICIES -d 10.0.0.2/32 -g LAB-TO-1",
            "-A LAB-NEXT -d 10.0.0.2/32 -g LAB-TO-1",
            "-A LAB-TO-1 -s 10.0.0.1/32 -p tcp --dport 5432:5432 -j ACCEPT",
            "-A LAB-TO-1 -s 10.0.0.3/32 -p udp --dport 1:3 -j ACCEPT",
            "-A LAB-TO-1 -j REJECT",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert!(!text.contains("LAB-FROM"), "egress is open: {text}");
        let last = text.lines().rfind(|line| line.starts_with("-A LAB-TO-1")).unwrap();
        assert_eq!(last, "-A LAB-TO-1 -j REJECT");
    }

    #[test]
    fn exceptions_of_a_block_are_not_let_through_by_it() {
        let text = of(&[json!({
            "podSelector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["db", "ended"] }] },
            "policyTypes": ["Egress"],
            "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"] } }, { "ipBlock": { "cidr": "::/0" } }] }],
        })]);
        for line in [
            ":LAB-BLOCK-0 - [0:0]",
            "-A LAB-POLICIES -s 10.0.0.1/32 -g LAB-FROM-0",
            "-A LAB-TO-NODE -s 10.0.0.1/32 -g LAB-FROM-0",
            "-A LAB-FROM-0 -d 0.0.0.0/0 -j LAB-BLOCK-0",
            "-A LAB-BLOCK-0 -d 10.0.0.0/8 -j RETURN",
            "-A LAB-BLOCK-0 -g LAB-NEXT",
            "-A LAB-FROM-0 -j REJECT",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        // The policy does not select pods of other namespaces, finished pods, and pods on the host network.
        assert!(!text.contains("10.0.0.3") && !text.contains("10.0.0.9") && !text.contains("192.0.2.1"), "{text}");
        assert!(!text.contains("::"), "{text}");
    }
}
