//! Services, and the kinds around them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, annotation, first_three, labels, name, none_if_empty, selector, strings, text_or};
use crate::access::{get, int, list, text};

pub(super) fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let cluster_ip = strings(object, "spec.clusterIPs").first().copied().unwrap_or("<none>");
    let ports = list(object, "spec.ports").iter().map(|port| {
        let (number, protocol) = (int(port, "port").unwrap_or(0), text(port, "protocol"));
        match int(port, "nodePort").unwrap_or(0) {
            0 => format!("{number}/{protocol}"),
            node_port => format!("{number}:{node_port}/{protocol}"),
        }
    });
    let ports = none_if_empty(ports.collect::<Vec<_>>().join(","));
    vec![
        name(object),
        text(object, "spec.type").into(),
        cluster_ip.into(),
        external_ip(object).into(),
        ports.into(),
        age(object, now),
        labels(object, "spec.selector").into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let own = strings(service, "spec.externalIPs").join(",");
    match text(service, "spec.type") {
        "ClusterIP" | "NodePort" => none_if_empty(own),
        "LoadBalancer" => {
            let given = load_balancer(service);
            match (given.is_empty(), own.is_empty()) {
                (true, true) => "<pending>".into(),
                (false, false) => format!("{given},{own}"),
                _ => format!("{given}{own}"),
            }
        }
        "ExternalName" => text(service, "spec.externalName").into(),
        _ => "<unknown>".into(),
    }
}

fn load_balancer(object: &Value) -> String {
    let points = list(object, "status.loadBalancer.ingress").iter();
    let addresses: BTreeSet<&str> = points
        .map(|point| text_or(point, "ip", text(point, "hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

pub(super) fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(object, "subsets") {
        let ips: Vec<&str> = list(subset, "addresses").iter().map(|address| text(address, "ip")).collect();
        let ports = list(subset, "ports");
        if ports.is_empty() {
            all.extend(ips.iter().map(|ip| (*ip).to_owned()));
        }
        for port in ports {
            let port = int(port, "port").unwrap_or(0);
            all.extend(
                ips.iter().map(|ip| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }),
            );
        }
    }
    let shown = if list(object, "subsets").is_empty() { "<none>".into() } else { first_three(&all) };
    vec![name(object), shown.into(), age(object, now)]
}

pub(super) fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports = list(object, "ports").iter().map(|port| match int(port, "port") {
        Some(number) => number.to_string(),
        None => get(port, "name").and_then(Value::as_str).unwrap_or("*").to_owned(),
    });
    let addresses = list(object, "endpoints").iter().flat_map(|endpoint| strings(endpoint, "addresses"));
    let shown = |all: Vec<String>| match first_three(&all) {
        nothing if nothing.is_empty() => "<unset>".to_owned(),
        some => some,
    };
    vec![
        name(object),
        text(object, "addressType").into(),
        shown(ports.collect()).into(),
        shown(addresses.map(str::to_owned).collect()).into(),
        age(object, now),
    ]
}

pub(super) fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports = if list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name(object),
        text_or(object, "spec.ingressClassName", "<none>").into(),
        hosts(list(object, "spec.rules")).into(),
        load_balancer(object).into(),
        ports.into(),
        age(object, now),
    ]
}

/// The first three hosts. What is more is counted in rules, even those without a host.
fn hosts(rules: &[Value]) -> String {
    let mut shown = Vec::new();
    let mut more = false;
    for host in rules.iter().map(|rule| text(rule, "host")) {
        more |= shown.len() == 3;
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        nothing if nothing.is_empty() => "*".into(),
        some if more => format!("{some} + {} more...", rules.len() - 3),
        some => some,
    }
}

pub(super) fn ingress_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut shown = text(object, "metadata.name").to_owned();
    if annotation(object, "ingressclass.kubernetes.io/is-default-class") == Some("true") {
        shown.push_str(" (default)");
    }
    let parameters = get(object, "spec.parameters").map(|parameters| {
        let (kind, name) = (text(parameters, "kind"), text(parameters, "name"));
        match get(parameters, "apiGroup").and_then(Value::as_str) {
            Some(group) => format!("{kind}.{group}/{name}"),
            None => format!("{kind}/{name}"),
        }
    });
    vec![
        shown.into(),
        text(object, "spec.controller").into(),
        parameters.unwrap_or("<none>".into()).into(),
        age(object, now),
    ]
}

pub(super) fn network_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), none_if_empty(selector(object, "spec.podSelector")).into(), age(object, now)]
}
