//! Services.

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{about_struct, get, int, invalid_each, list, text};
use crate::defaults::externally_accessible;
use crate::meta;
use crate::names;
use crate::strategy::needs_health_check;
use crate::validation::resources::port_or_name;
use crate::validation::{cidr_errors, ip_errors};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

fn is_headless(service: &Value) -> bool {
    matches!(list(service, "spec.clusterIPs"), [only] if only == "None")
}

pub(super) fn validate(service: &Value) -> Vec<FieldError> {
    let mut errors = by_type(service);
    errors.extend(ports(service));
    errors.extend(meta::validate_labels(get(service, "spec.selector"), "spec.selector"));
    errors.extend(affinity(service));
    errors.extend(addresses(service));
    for (index, ip) in list(service, "spec.externalIPs").iter().filter_map(Value::as_str).enumerate() {
        errors.extend(ip_errors(ip, &format!("spec.externalIPs[{index}]")));
    }
    let kind = text(service, "spec.type");
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !types.contains(&kind) {
        errors.push(FieldError::not_supported("spec.type", kind, &types));
    }
    errors.extend(node_ports(service));
    errors.extend(load_balancer(service));
    errors.extend(traffic(service));
    errors
}

fn by_type(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = text(service, "spec.type");
    if list(service, "spec.ports").is_empty() && !is_headless(service) && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(service) => {
            let error_text = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid("spec.clusterIPs[0]", "None", error_text));
        }
        "ExternalName" => {
            for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !crate::access::is_empty(get(service, &format!("spec.{key}"))) {
                    let error_text = "may not be set for ExternalName services";
                    errors.push(FieldError::forbidden(format!("spec.{key}"), error_text));
                }
            }
            let name = text(service, "spec.externalName");
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.push(FieldError::required("spec.externalName", ""));
            } else {
                errors.extend(invalid_each("spec.externalName", name, names::dns_subdomain(name)));
            }
        }
        _ => {}
    }
    errors
}

fn ports(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let ports = list(service, "spec.ports");
    let mut seen = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
        } else {
            errors.extend(invalid_each(&format!("{path}.name"), name, names::dns_label(name)));
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            seen.push(name);
        }
        let number = int(port, "port").unwrap_or(0);
        let field = format!("{path}.port");
        errors.extend(
            names::port_number(number).into_iter().map(|error_text| FieldError::invalid(&field, number, error_text)),
        );
        let protocol = text(port, "protocol");
        if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &PROTOCOLS));
        }
        errors.extend(port_or_name(port.get("targetPort"), &format!("{path}.targetPort")));
        let application = text(port, "appProtocol");
        if get(port, "appProtocol").is_some() {
            let error_text = names::qualified_name(application);
            errors.extend(invalid_each(&format!("{path}.appProtocol"), application, error_text));
        }
    }
    errors
}

fn affinity(service: &Value) -> Vec<FieldError> {
    let path = "spec.sessionAffinityConfig";
    let timeout = format!("{path}.clientIP.timeoutSeconds");
    match text(service, "spec.sessionAffinity") {
        "ClientIP" => match int(service, &timeout) {
            None => vec![FieldError::required(timeout, "when session affinity type is ClientIP")],
            Some(seconds) if !(1..=86400).contains(&seconds) => {
                vec![FieldError::invalid(timeout, seconds, "must be greater than 0 and less than 86400")]
            }
            Some(_) => Vec::new(),
        },
        "None" if get(service, path).is_some() => {
            vec![FieldError::forbidden(path, "must not be set when session affinity is None")]
        }
        "None" => Vec::new(),
        other => vec![FieldError::not_supported("spec.sessionAffinity", other, &["ClientIP", "None"])],
    }
}

fn addresses(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(service, "spec.type") == "ExternalName" {
        return errors;
    }
    let path = "spec.clusterIPs";
    let first = text(service, "spec.clusterIP");
    let all: Vec<&str> = list(service, path).iter().filter_map(Value::as_str).collect();
    match all.first() {
        None if !first.is_empty() => errors.push(FieldError::required(path, "")),
        Some(_) if first.is_empty() => {
            let error_text = "must be empty when `clusterIP` is not specified";
            errors.push(FieldError::invalid(path, Value::from(all.clone()), error_text));
        }
        Some(ip) if *ip != first => {
            let error_text = "first value must match `clusterIP`";
            errors.push(FieldError::invalid(path, Value::from(all.clone()), error_text));
        }
        _ => {}
    }
    for (index, family) in list(service, "spec.ipFamilies").iter().filter_map(Value::as_str).enumerate() {
        if !matches!(family, "IPv4" | "IPv6") {
            errors.push(FieldError::not_supported(format!("spec.ipFamilies[{index}]"), family, &["IPv4", "IPv6"]));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    let policy = text(service, "spec.ipFamilyPolicy");
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(FieldError::not_supported("spec.ipFamilyPolicy", policy, &policies));
    }
    for (index, ip) in all.iter().enumerate() {
        if index == 0 && *ip == "None" {
            if all.len() > 1 {
                let error_text = "'None' must be the first and only value";
                errors.push(FieldError::invalid(path, Value::from(all.clone()), error_text));
            }
            continue;
        }
        errors.extend(ip_errors(ip, &format!("{path}[{index}]")));
    }
    if all.len() > 2 {
        errors.push(FieldError::invalid(path, Value::from(all), "may only hold up to 2 values"));
    }
    errors
}

fn node_ports(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let inside = text(service, "spec.type") == "ClusterIP";
    let (mut seen_node, mut seen) = (Vec::new(), Vec::new());
    for (index, port) in list(service, "spec.ports").iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let protocol = text(port, "protocol");
        let node_port = int(port, "nodePort").unwrap_or(0);
        if node_port != 0 {
            let field = format!("{path}.nodePort");
            if inside {
                errors.push(FieldError::forbidden(field.clone(), "may not be used when `type` is 'ClusterIP'"));
            }
            if seen_node.contains(&(protocol, node_port)) {
                errors.push(FieldError::duplicate(field, node_port));
            }
            seen_node.push((protocol, node_port));
        }
        let number = int(port, "port").unwrap_or(0);
        if seen.contains(&(protocol, number)) {
            let shown = [
                ("Name", "".into()),
                ("Protocol", protocol.into()),
                ("AppProtocol", Value::Null),
                ("Port", number.into()),
                ("TargetPort", 0.into()),
                ("NodePort", 0.into()),
            ];
            errors.push(about_struct(ErrorType::Duplicate, path, &shown, ""));
        }
        seen.push((protocol, number));
    }
    errors
}

fn load_balancer(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let balanced = text(service, "spec.type") == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = list(service, "spec.loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let path = "spec.LoadBalancerSourceRanges";
        if !balanced {
            errors.push(FieldError::forbidden(path, only));
        }
        for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            errors.extend(cidr_errors(range.trim(), &format!("{path}[{index}]")));
        }
    }
    if get(service, "spec.allocateLoadBalancerNodePorts").is_some() && !balanced {
        errors.push(FieldError::forbidden("spec.allocateLoadBalancerNodePorts", only));
    }
    let class = text(service, "spec.loadBalancerClass");
    if get(service, "spec.loadBalancerClass").is_some() {
        if balanced {
            errors.extend(invalid_each("spec.loadBalancerClass", class, names::qualified_name(class)));
        } else {
            errors.push(FieldError::forbidden("spec.loadBalancerClass", only));
        }
    }
    errors
}

fn traffic(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = "spec.externalTrafficPolicy";
    let policy = text(service, path);
    if !externally_accessible(service) {
        if !policy.is_empty() {
            errors.push(FieldError::invalid(path, policy, "may only be set for externally-accessible services"));
        }
    } else if policy.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !matches!(policy, "Cluster" | "Local") {
        errors.push(FieldError::not_supported(path, policy, &["Cluster", "Local"]));
    }
    let check = int(service, "spec.healthCheckNodePort").unwrap_or(0);
    if check != 0 && !needs_health_check(service) {
        let error_text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(FieldError::invalid("spec.healthCheckNodePort", check, error_text));
    }
    let inside = text(service, "spec.internalTrafficPolicy");
    if !inside.is_empty() && !matches!(inside, "Cluster" | "Local") {
        errors.push(FieldError::not_supported("spec.internalTrafficPolicy", inside, &["Cluster", "Local"]));
    }
    let distribution = text(service, "spec.trafficDistribution");
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if !distribution.is_empty() && !known.contains(&distribution) {
        errors.push(FieldError::not_supported("spec.trafficDistribution", distribution, &known));
    }
    errors
}

/// Checks what a load balancer reports.
pub(super) fn status(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = "status.loadBalancer.ingress";
    let entries = list(new, path);
    if get(new, path) == get(old, path) {
        return Vec::new();
    }
    if text(new, "spec.type") != "LoadBalancer" && !entries.is_empty() {
        return vec![FieldError::forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")];
    }
    let mut errors = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let (ip, host) = (text(entry, "ip"), text(entry, "hostname"));
        if !ip.is_empty() {
            errors.extend(ip_errors(ip, &format!("{path}[{index}].ip")));
        }
        if !host.is_empty() {
            let at = format!("{path}[{index}].hostname");
            errors.extend(invalid_each(&at, host, names::dns_subdomain(host)));
            if host.parse::<std::net::IpAddr>().is_ok() {
                errors.push(FieldError::invalid(at, host, "must be a DNS name, not an IP address"));
            }
        }
    }
    errors
}

pub(super) fn update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let named = |service: &Value| text(service, "spec.type") == "ExternalName";
    let value = |path: &str| get(new, path).cloned().unwrap_or(Value::Null);
    let addressed = !named(new) && !named(old);
    let both_headless = is_headless(new) && is_headless(old);
    if addressed && !both_headless {
        let (was, now) = (list(old, "spec.clusterIPs"), list(new, "spec.clusterIPs"));
        if was.len() > now.len() && now.is_empty() {
            let error_text = "primary clusterIP can not be unset";
            errors.push(FieldError::invalid("spec.clusterIPs[0]", value("spec.clusterIPs"), error_text));
        }
        let compared = if was.len() == now.len() { was.len() } else { 1 };
        for (index, (was, now)) in was.iter().zip(now).take(compared).enumerate() {
            if was != now {
                let path = format!("spec.clusterIPs[{index}]");
                errors.push(FieldError::invalid(path, value("spec.clusterIPs"), "may not change once set"));
            }
        }
    }
    if addressed && !is_headless(new) && !is_headless(old) {
        let (was, now) = (list(old, "spec.ipFamilies"), list(new, "spec.ipFamilies"));
        if was.iter().zip(now).any(|(was, now)| was != now) {
            let error_text = "may not change once set";
            errors.push(FieldError::invalid("spec.ipFamilies[0]", value("spec.ipFamilies"), error_text));
        }
    }
    let balanced = |service: &Value| text(service, "spec.type") == "LoadBalancer";
    if balanced(new) && balanced(old) && get(new, "spec.loadBalancerClass") != get(old, "spec.loadBalancerClass") {
        let error_text = "may not change once set";
        errors.push(FieldError::invalid("spec.loadBalancerClass", value("spec.loadBalancerClass"), error_text));
    }
    if needs_health_check(new)
        && needs_health_check(old)
        && int(new, "spec.healthCheckNodePort") != int(old, "spec.healthCheckNodePort")
    {
        errors.push(FieldError::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
    errors
}
