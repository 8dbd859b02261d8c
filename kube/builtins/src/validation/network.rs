//! Endpoints, ingresses and network policies.

use std::net::IpAddr;

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{get, int, invalid_each, list, text, too_long, too_many};
use crate::meta;
use crate::names;
use crate::validation::resources::port_or_name;
use crate::validation::{cidr_errors, ip_errors, parse_cidr, prefix_bits};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

pub(super) fn endpoints(endpoints: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if old.is_some_and(|old| get(old, "subsets") == get(endpoints, "subsets")) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    for (index, subset) in list(endpoints, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            errors.push(FieldError::required(path.clone(), "must specify `addresses` or `notReadyAddresses`"));
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (number, address) in list(subset, key).iter().enumerate() {
                errors.extend(endpoint_address(address, &format!("{path}.{key}[{number}]")));
            }
        }
        let ports = list(subset, "ports");
        for (number, port) in ports.iter().enumerate() {
            errors.extend(endpoint_port(port, ports.len() > 1, &format!("{path}.ports[{number}]")));
        }
    }
    errors
}

fn endpoint_address(address: &Value, path: &str) -> Vec<FieldError> {
    let ip = text(address, "ip");
    let mut errors = ip_errors(ip, &format!("{path}.ip"));
    let host = text(address, "hostname");
    if !host.is_empty() {
        errors.extend(invalid_each(&format!("{path}.hostname"), host, names::dns_label(host)));
    }
    if ip.parse::<IpAddr>().is_ok() {
        errors.extend(reachable(ip, &format!("{path}.ip")));
    } else {
        errors.push(FieldError::invalid(format!("{path}.ip"), ip, "must be a valid IP address"));
    }
    errors
}

/// An endpoint is a place that others can reach.
fn reachable(ip: &str, path: &str) -> Option<FieldError> {
    let address: IpAddr = ip.parse().ok()?;
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let error_text = if address.is_unspecified() {
        format!("may not be unspecified ({ip})")
    } else if address.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
    } else if link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
    } else {
        return None;
    };
    Some(FieldError::invalid(path, ip, error_text))
}

fn endpoint_port(port: &Value, named: bool, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = text(port, "name");
    if !name.is_empty() {
        errors.extend(invalid_each(&format!("{path}.name"), name, names::dns_label(name)));
    } else if named {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let number = int(port, "port").unwrap_or(0);
    let field = format!("{path}.port");
    errors.extend(
        names::port_number(number).into_iter().map(|error_text| FieldError::invalid(&field, number, error_text)),
    );
    errors.extend(protocol(port, path));
    errors
}

fn protocol(port: &Value, path: &str) -> Option<FieldError> {
    let protocol = text(port, "protocol");
    let field = format!("{path}.protocol");
    if protocol.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    (!PROTOCOLS.contains(&protocol)).then(|| FieldError::not_supported(field, protocol, &PROTOCOLS))
}

pub(super) fn endpoint_slice(slice: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let ty = text(slice, "addressType");
    let types = ["FQDN", "IPv4", "IPv6"];
    if ty.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !types.contains(&ty) {
        errors.push(FieldError::not_supported("addressType", ty, &types));
    }
    let ports = list(slice, "ports");
    if ports.len() > 20_000 {
        errors.push(too_many("ports", ports.len(), 20_000));
    }
    let mut seen = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            errors.extend(invalid_each(&format!("{path}.name"), name, names::dns_label(name)));
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        seen.push(name);
        errors.extend(protocol(port, &path));
    }
    if old.is_none_or(|old| get(old, "endpoints") != get(slice, "endpoints")) {
        errors.extend(slice_endpoints(slice, ty));
    }
    errors
}

fn slice_endpoints(slice: &Value, ty: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let endpoints = list(slice, "endpoints");
    if endpoints.len() > 1000 {
        errors.push(too_many("endpoints", endpoints.len(), 1000));
        return errors;
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}].addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(path.clone(), ""));
        } else if addresses.len() > 100 {
            errors.push(too_many(path.clone(), addresses.len(), 100));
        }
        for (number, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            let at = format!("{path}[{number}]");
            match ty {
                "FQDN" => errors.extend(invalid_each(&at, address, names::dns_subdomain(address))),
                "IPv4" | "IPv6" => {
                    let wrong = ip_errors(address, &at);
                    let parsed = address.parse::<IpAddr>().ok();
                    if !wrong.is_empty() {
                        errors.extend(wrong);
                    } else {
                        if parsed.is_some_and(|ip| ip.is_ipv4() != (ty == "IPv4")) {
                            // The real server points at the list here, not at the item.
                            let error_text = format!("must be an {ty} address");
                            errors.push(FieldError::invalid(path.clone(), address, error_text));
                        }
                        errors.extend(reachable(address, &at));
                    }
                }
                _ => {}
            }
        }
        let node = text(endpoint, "nodeName");
        if !node.is_empty() {
            let at = format!("endpoints[{index}].nodeName");
            errors.extend(invalid_each(&at, node, names::dns_subdomain(node)));
        }
        let host = text(endpoint, "hostname");
        if !host.is_empty() {
            let at = format!("endpoints[{index}].hostname");
            errors.extend(invalid_each(&at, host, names::dns_label(host)));
        }
    }
    errors
}

pub(super) fn ingress(ingress: &Value, is_new: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rules = list(ingress, "spec.rules");
    let default = get(ingress, "spec.defaultBackend");
    if rules.is_empty() && default.is_none() {
        let error_text = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(
            "spec",
            get(ingress, "spec.rules").cloned().unwrap_or(Value::Null),
            error_text,
        ));
    }
    if let Some(backend) = default {
        errors.extend(backend_errors(backend, "spec.defaultBackend"));
    }
    for (index, rule) in rules.iter().enumerate() {
        errors.extend(ingress_rule(rule, &format!("spec.rules[{index}]")));
    }
    for (index, tls) in list(ingress, "spec.tls").iter().enumerate() {
        for (number, host) in list(tls, "hosts").iter().filter_map(Value::as_str).enumerate() {
            let at = format!("spec.tls[{index}].hosts[{number}]");
            errors.extend(invalid_each(&at, host, host_name(host)));
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            let at = format!("spec.tls[{index}].secretName");
            errors.extend(invalid_each(&at, secret, names::dns_subdomain(secret)));
        }
    }
    let class = text(ingress, "spec.ingressClassName");
    if get(ingress, "spec.ingressClassName").is_some() {
        errors.extend(invalid_each("spec.ingressClassName", class, names::dns_subdomain(class)));
    }
    let key = "kubernetes.io/ingress.class";
    let annotation = get(ingress, "metadata.annotations").and_then(|all| all.get(key)).and_then(Value::as_str);
    if let Some(annotation) = annotation.filter(|name| is_new && !class.is_empty() && *name != class) {
        let error_text = "must match `ingressClassName` when both are specified";
        errors.push(FieldError::invalid(format!("annotations.{key}"), annotation, error_text));
    }
    errors
}

fn host_name(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns_subdomain(host) }
}

fn ingress_rule(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let host = text(rule, "host");
    if !host.is_empty() {
        let at = format!("{path}.host");
        if host.parse::<IpAddr>().is_ok() {
            errors.push(FieldError::invalid(at.clone(), host, "must be a DNS name, not an IP address"));
        }
        errors.extend(invalid_each(&at, host, host_name(host)));
    }
    let Some(http) = get(rule, "http") else { return errors };
    let paths = list(http, "paths");
    if paths.is_empty() {
        errors.push(FieldError::required(format!("{path}.http.paths"), ""));
    }
    for (index, entry) in paths.iter().enumerate() {
        errors.extend(ingress_path(entry, &format!("{path}.http.paths[{index}]")));
    }
    errors
}

fn ingress_path(entry: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (point, at) = (text(entry, "path"), format!("{path}.path"));
    let relative = || FieldError::invalid(&at, point, "must be an absolute path");
    match text(entry, "pathType") {
        "" => return vec![FieldError::required(format!("{path}.pathType"), "pathType must be specified")],
        "Exact" | "Prefix" => {
            if !point.starts_with('/') {
                errors.push(relative());
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if point.contains(part) {
                    errors.push(FieldError::invalid(&at, point, format!("must not contain '{part}'")));
                }
            }
            for end in ["/..", "/."] {
                if point.ends_with(end) {
                    errors.push(FieldError::invalid(&at, point, format!("cannot end with '{end}'")));
                }
            }
        }
        "ImplementationSpecific" => {
            if !point.is_empty() && !point.starts_with('/') {
                errors.push(relative());
            }
        }
        other => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(FieldError::not_supported(format!("{path}.pathType"), other, &known));
        }
    }
    errors.extend(backend_errors(entry.get("backend").unwrap_or(&Value::Null), &format!("{path}.backend")));
    errors
}

fn backend_errors(backend: &Value, path: &str) -> Vec<FieldError> {
    match (get(backend, "resource"), get(backend, "service")) {
        (Some(_), Some(_)) => {
            vec![FieldError::invalid(path, "", "cannot set both resource and service backends")]
        }
        (None, None) => vec![FieldError::invalid(path, "", "resource or service backend is required")],
        (Some(resource), None) => {
            let missing = ["kind", "name"].into_iter().filter(|key| text(resource, key).is_empty());
            missing.map(|key| FieldError::required(format!("{path}.resource.{key}"), "")).collect()
        }
        (None, Some(service)) => {
            let mut errors = Vec::new();
            let name = text(service, "name");
            let at = format!("{path}.service.name");
            if name.is_empty() {
                errors.push(FieldError::required(at, ""));
            } else {
                errors.extend(invalid_each(&at, name, names::dns_label(name)));
            }
            let (port, number) = (text(service, "port.name"), int(service, "port.number").unwrap_or(0));
            if !port.is_empty() && number != 0 {
                errors.push(FieldError::invalid(path, "", "cannot set both port name & port number"));
            } else if !port.is_empty() {
                errors.extend(invalid_each(&format!("{path}.service.port.name"), port, names::port_name(port)));
            } else if number != 0 {
                let field = format!("{path}.service.port.number");
                let wrong = names::port_number(number).into_iter();
                errors.extend(wrong.map(|error_text| FieldError::invalid(&field, number, error_text)));
            } else {
                errors.push(FieldError::required(path, "port name or number is required"));
            }
            errors
        }
    }
}

pub(super) fn ingress_class(class: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let controller = text(class, "spec.controller");
    let path = "spec.controller";
    if controller.len() > 250 {
        errors.push(too_long(path, 250));
    }
    match controller.split_once('/') {
        _ if controller.is_empty() => errors.push(FieldError::required(path, "")),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            errors.extend(invalid_each(path, domain, names::dns_subdomain(domain)));
        }
        _ => {
            let error_text = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, controller, error_text));
        }
    }
    errors
}

pub(super) fn network_policy(policy: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(selector) = get(policy, "spec.podSelector") {
        errors.extend(meta::validate_selector(selector, "spec.podSelector"));
    }
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in list(policy, &format!("spec.{direction}")).iter().enumerate() {
            let path = format!("spec.{direction}[{index}]");
            for (number, port) in list(rule, "ports").iter().enumerate() {
                errors.extend(policy_port(port, &format!("{path}.ports[{number}]")));
            }
            for (number, peer) in list(rule, peers).iter().enumerate() {
                errors.extend(policy_peer(peer, &format!("{path}.{peers}[{number}]")));
            }
        }
    }
    let types: Vec<&str> = list(policy, "spec.policyTypes").iter().filter_map(Value::as_str).collect();
    if types.len() > 2 {
        let error_text = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid("spec.policyTypes", Value::from(types), error_text));
        return errors;
    }
    for (index, ty) in types.iter().enumerate() {
        if !matches!(*ty, "Ingress" | "Egress") {
            let field = format!("spec.policyTypes[{index}]");
            errors.push(FieldError::not_supported(field, *ty, &["Ingress", "Egress"]));
        }
    }
    errors
}

fn policy_port(port: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let protocol = text(port, "protocol");
    if !protocol.is_empty() && !PROTOCOLS.contains(&protocol) {
        errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &["TCP", "UDP", "SCTP"]));
    }
    let end = int(port, "endPort");
    let field = format!("{path}.endPort");
    match (get(port, "port"), end) {
        (None, Some(end)) => {
            errors.push(FieldError::invalid(field, end, "may not be specified when `port` is not specified"));
        }
        (Some(Value::String(_)), Some(end)) => {
            errors.push(FieldError::invalid(field, end, "may not be specified when `port` is non-numeric"));
        }
        (Some(start), Some(end)) => {
            if end < start.as_i64().unwrap_or(0) {
                errors.push(FieldError::invalid(field.clone(), end, "must be greater than or equal to `port`"));
            }
            errors.extend(
                names::port_number(end).into_iter().map(|error_text| FieldError::invalid(&field, end, error_text)),
            );
        }
        _ => {}
    }
    if let Some(start) = get(port, "port") {
        errors.extend(port_or_name(Some(start), &format!("{path}.port")));
    }
    errors
}

fn policy_peer(peer: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut found = 0;
    for key in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = get(peer, key) {
            found += 1;
            errors.extend(meta::validate_selector(selector, &format!("{path}.{key}")));
        }
    }
    if let Some(block) = get(peer, "ipBlock") {
        if found > 0 {
            errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
        }
        found += 1;
        errors.extend(ip_block(block, &format!("{path}.ipBlock")));
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a peer"));
    }
    errors
}

fn ip_block(block: &Value, path: &str) -> Vec<FieldError> {
    let range = text(block, "cidr");
    if range.is_empty() {
        return vec![FieldError::required(format!("{path}.cidr"), "")];
    }
    let mut errors = cidr_errors(range, &format!("{path}.cidr"));
    let Some((address, length)) = parse_cidr(range) else { return errors };
    for (index, except) in list(block, "except").iter().filter_map(Value::as_str).enumerate() {
        let at = format!("{path}.except[{index}]");
        let wrong = cidr_errors(except, &at);
        let Some((inner, inner_length)) = parse_cidr(except).filter(|_| wrong.is_empty()) else {
            errors.extend(wrong);
            continue;
        };
        let inside = inner.is_ipv4() == address.is_ipv4()
            && prefix_bits(inner, length).0 == prefix_bits(address, length).0
            && inner_length > length;
        if !inside {
            errors.push(FieldError::invalid(at, except, "must be a strict subset of `cidr`"));
        }
    }
    errors
}
