//! The strategy of services: values that the server allocated survive updates by clients that omit them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::access::{get, int, items_mut, keep, list, object, remove, set, text};
use crate::defaults::externally_accessible;

/// Whether a type of service has a cluster IP (`None` counts).
pub fn needs_cluster_ip(service: &Value) -> bool {
    matches!(text(service, "spec.type"), "ClusterIP" | "NodePort" | "LoadBalancer")
}

/// Whether a service gets node ports.
pub fn needs_node_ports(service: &Value) -> bool {
    match text(service, "spec.type") {
        "NodePort" => true,
        "LoadBalancer" => get(service, "spec.allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// Whether a load balancer asks the nodes which of them has local endpoints.
pub fn needs_health_check(service: &Value) -> bool {
    text(service, "spec.type") == "LoadBalancer" && text(service, "spec.externalTrafficPolicy") == "Local"
}

pub(super) fn update(old: &Value, new: &mut Value) {
    drop_what_the_type_does_not_have(old, new);
    keep_what_was_allocated(old, new);
}

fn drop_what_the_type_does_not_have(old: &Value, new: &mut Value) {
    let same = |new: &Value, path: &str| get(old, path) == get(new, path);
    let mut drop_keys: Vec<&str> = Vec::new();
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        if same(new, "spec.clusterIP") && same(new, "spec.clusterIPs") {
            drop_keys.extend(["clusterIP", "clusterIPs"]);
        }
        let keys = ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"];
        drop_keys.extend(keys.iter().filter(|key| same(new, &format!("spec.{key}"))));
    }
    if needs_health_check(old) && !needs_health_check(new) && same(new, "spec.healthCheckNodePort") {
        drop_keys.push("healthCheckNodePort");
    }
    let was_balancer = text(old, "spec.type") == "LoadBalancer";
    let is_balancer = text(new, "spec.type") == "LoadBalancer";
    if was_balancer && !is_balancer {
        let keys = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        drop_keys.extend(keys.iter().filter(|key| same(new, &format!("spec.{key}"))));
    }
    if externally_accessible(old) && !externally_accessible(new) && same(new, "spec.externalTrafficPolicy") {
        drop_keys.push("externalTrafficPolicy");
    }
    let ports = |service: &Value| {
        list(service, "spec.ports").iter().filter_map(|port| int(port, "nodePort")).collect::<BTreeSet<_>>()
    };
    let wipe_ports = needs_node_ports(old) && !needs_node_ports(new) && ports(old) == ports(new);
    if let Some(spec) = object(new, "spec") {
        for key in drop_keys {
            remove(spec, key);
        }
        if wipe_ports {
            for port in items_mut(spec, "ports") {
                remove(port, "nodePort");
            }
        }
    }
    if !is_balancer && let Some(status) = object(new, "status") {
        set(status, "loadBalancer", json!({}));
    }
}

fn keep_what_was_allocated(old: &Value, new: &mut Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        let missing: Vec<&str> = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]
            .into_iter()
            .filter(|key| get(new, &format!("spec.{key}")).is_none_or(|value| value.as_str() == Some("")))
            .collect();
        if let (Some(old), Some(spec)) = (old.get("spec"), object(new, "spec")) {
            for key in missing {
                keep(spec, old, key);
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let known: BTreeMap<&str, i64> = list(old, "spec.ports")
            .iter()
            .filter_map(|port| Some((text(port, "name"), int(port, "nodePort")?)))
            .collect();
        let mut used: BTreeSet<i64> = list(new, "spec.ports").iter().filter_map(|port| int(port, "nodePort")).collect();
        for port in items_mut(new, "spec.ports") {
            let unset = int(port, "nodePort").unwrap_or(0) == 0;
            let before = known.get(text(port, "name")).copied().filter(|before| unset && !used.contains(before));
            if let Some(before) = before {
                set(port, "nodePort", before);
                used.insert(before);
            }
        }
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && int(new, "spec.healthCheckNodePort").unwrap_or(0) == 0
        && let (Some(old), Some(spec)) = (old.get("spec"), object(new, "spec"))
    {
        keep(spec, old, "healthCheckNodePort");
    }
}
