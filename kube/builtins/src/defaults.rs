//! The values that the server fills in for what a client left out.

mod pod;
mod shape;
mod workload;

use fleetwright_syntax::Quantity;
use serde_json::{Value, json};

use crate::access::{default, get, get_mut, int, is_empty, items_mut, list, object, remove, set, text};
use crate::table::Kind;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Fills in the defaults of an object of a built-in kind, and gives it the shape that the Go server shows.
pub fn apply(kind: &Kind, object: &mut Value) {
    of(kind.group, kind.kind, object);
}

/// Gives an object the shape that the Go server shows, without any default: for what the server itself answers.
pub fn shape(group: &str, kind: &str, object: &mut Value) {
    shape::apply(group, kind, object);
}

pub(crate) fn of(group: &str, kind: &str, object: &mut Value) {
    // Spec and status are structs in Go: they exist even when they were not given.
    shape::apply(group, kind, object);
    match (group, kind) {
        ("", "Pod") => pod::pod(object),
        ("", "PodTemplate") => template(object, "template"),
        ("", "Service") => service(object),
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object),
        ("", "Node") => node(object),
        ("", "Endpoints") => endpoints(object),
        ("", "PersistentVolume") => persistent_volume(object),
        ("", "PersistentVolumeClaim") => persistent_volume_claim(object),
        ("apps", "ControllerRevision") => {}
        ("apps" | "batch", _) | ("", "ReplicationController") => workload::apply(kind, object),
        ("networking.k8s.io", "NetworkPolicy") => network_policy(object),
        ("networking.k8s.io", "IngressClass") => {
            if let Some(parameters) = get_mut(object, "spec.parameters") {
                default(parameters, "scope", "Cluster");
            }
        }
        ("storage.k8s.io", "StorageClass") => {
            default(object, "reclaimPolicy", "Delete");
            default(object, "volumeBindingMode", "Immediate");
        }
        ("storage.k8s.io", "CSIDriver") => csi_driver(object),
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => binding(object),
        ("scheduling.k8s.io", "PriorityClass") => default(object, "preemptionPolicy", "PreemptLowerPriority"),
        ("discovery.k8s.io", "EndpointSlice") => {
            for port in items_mut(object, "ports") {
                if port.get("name").is_none_or(Value::is_null) {
                    set(port, "name", "");
                }
                default(port, "protocol", "TCP");
            }
        }
        _ => {}
    }
    shape::apply(group, kind, object);
}

/// The defaults of a pod template at a key.
pub(crate) fn template(object: &mut Value, key: &str) {
    if let Some(template) = object.get_mut(key).filter(|template| template.is_object()) {
        pod::template(template);
    }
}

/// Spells every quantity of a resource list in its canonical way.
pub(crate) fn resource_list(value: Option<&mut Value>) {
    for amount in value.and_then(Value::as_object_mut).into_iter().flat_map(|fields| fields.values_mut()) {
        canonical(amount, true);
    }
}

/// Spells one quantity in its canonical way; what is no quantity stays for validation to refuse.
pub(crate) fn canonical(amount: &mut Value, to_milli: bool) {
    let spelled = match amount {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = Quantity::parse(&spelled) {
        let quantity = if to_milli { quantity.round_up_to_milli() } else { quantity };
        *amount = Value::String(quantity.to_string());
    }
}

/// Whether traffic from outside of the cluster reaches a service.
pub(crate) fn externally_accessible(service: &Value) -> bool {
    let kind = text(service, "spec.type");
    let by_type = kind == "LoadBalancer" || kind == "NodePort";
    by_type || (kind == "ClusterIP" && !list(service, "spec.externalIPs").is_empty())
}

fn service(service: &mut Value) {
    let Some(spec) = object(service, "spec") else { return };
    default(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => drop(remove(spec, "sessionAffinityConfig")),
        "ClientIP" if get(spec, "sessionAffinityConfig.clientIP.timeoutSeconds").is_none() => {
            set(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
        }
        _ => {}
    }
    default(spec, "type", "ClusterIP");
    for port in items_mut(spec, "ports") {
        default(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            Some(Value::Number(number)) => number.as_i64() == Some(0),
            Some(Value::String(name)) => name.is_empty(),
            _ => true,
        };
        if unset && let Some(number) = int(port, "port") {
            set(port, "targetPort", number);
        }
    }
    let kind = text(spec, "type").to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    if externally_accessible(service)
        && let Some(spec) = service.get_mut("spec")
    {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        for ingress in items_mut(service, "status.loadBalancer.ingress") {
            if !text(ingress, "ip").is_empty() {
                default(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn secret(secret: &mut Value) {
    use base64::Engine as _;
    default(secret, "type", "Opaque");
    // Written as text, kept as bytes: stringData is never shown.
    let Some(Value::Object(plain)) = remove(secret, "stringData") else { return };
    if plain.is_empty() {
        return;
    }
    let Some(data) = object(secret, "data") else { return };
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        set(data, &key, encoded);
    }
}

fn namespace(namespace: &mut Value) {
    let name = text(namespace, "metadata.name").to_owned();
    if !name.is_empty()
        && let Some(labels) = namespace.get_mut("metadata").and_then(|meta| object(meta, "labels"))
    {
        set(labels, "kubernetes.io/metadata.name", name);
    }
    if let Some(status) = object(namespace, "status") {
        default(status, "phase", "Active");
    }
}

fn node(node: &mut Value) {
    // The first element of the list is the earlier single value.
    if let Some(spec) = object(node, "spec")
        && get(spec, "podCIDRs").is_none()
        && let Some(cidr) = get(spec, "podCIDR").cloned()
    {
        set(spec, "podCIDRs", Value::Array(vec![cidr]));
    }
    let Some(status) = object(node, "status") else { return };
    resource_list(status.get_mut("capacity"));
    if get(status, "allocatable").is_none()
        && let Some(capacity) = get(status, "capacity").cloned()
    {
        set(status, "allocatable", capacity);
    }
    resource_list(status.get_mut("allocatable"));
}

fn endpoints(endpoints: &mut Value) {
    for subset in items_mut(endpoints, "subsets") {
        for port in items_mut(subset, "ports") {
            default(port, "protocol", "TCP");
        }
    }
}

fn persistent_volume(volume: &mut Value) {
    if let Some(status) = object(volume, "status") {
        default(status, "phase", "Pending");
    }
    let Some(spec) = object(volume, "spec") else { return };
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    resource_list(spec.get_mut("capacity"));
    pod::volume_source(spec);
}

fn persistent_volume_claim(claim: &mut Value) {
    if let Some(status) = object(claim, "status") {
        default(status, "phase", "Pending");
        resource_list(status.get_mut("capacity"));
        resource_list(status.get_mut("allocatedResources"));
    }
    if let Some(spec) = object(claim, "spec") {
        claim_spec(spec);
    }
}

pub(crate) fn claim_spec(spec: &mut Value) {
    default(spec, "volumeMode", "Filesystem");
    resource_list(get_mut(spec, "resources.limits"));
    resource_list(get_mut(spec, "resources.requests"));
}

fn network_policy(policy: &mut Value) {
    let Some(spec) = object(policy, "spec") else { return };
    for direction in ["ingress", "egress"] {
        for rule in items_mut(spec, direction) {
            for port in items_mut(rule, "ports") {
                default(port, "protocol", "TCP");
            }
        }
    }
    if is_empty(spec.get("policyTypes")) {
        let types = if is_empty(spec.get("egress")) { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        set(spec, "policyTypes", types);
    }
}

fn csi_driver(driver: &mut Value) {
    let Some(spec) = object(driver, "spec") else { return };
    default(spec, "attachRequired", true);
    for off in
        ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount", "preventPodSchedulingIfMissing"]
    {
        default(spec, off, false);
    }
    default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if is_empty(spec.get("volumeLifecycleModes")) {
        set(spec, "volumeLifecycleModes", json!(["Persistent"]));
    }
}

fn binding(binding: &mut Value) {
    if let Some(role) = object(binding, "roleRef") {
        default(role, "apiGroup", RBAC);
    }
    for subject in items_mut(binding, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            default(subject, "apiGroup", RBAC);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_gets_type_affinity_and_target_ports() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}});
        of("", "Service", &mut object);
        assert_eq!(
            object.get("spec"),
            Some(&json!({
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "type": "ClusterIP",
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"
            }))
        );
        assert_eq!(object.get("status"), Some(&json!({"loadBalancer": {}})));
    }

    #[test]
    fn string_data_of_a_secret_becomes_bytes() {
        let mut object = json!({"metadata": {"name": "a"}, "stringData": {"k": "v"}});
        of("", "Secret", &mut object);
        assert_eq!(object, json!({"metadata": {"name": "a"}, "type": "Opaque", "data": {"k": "dg=="}}));
    }

    #[test]
    fn a_namespace_carries_its_name_as_a_label() {
        let mut object = json!({"metadata": {"name": "a"}});
        of("", "Namespace", &mut object);
        assert_eq!(get(&object, "metadata.labels"), Some(&json!({"kubernetes.io/metadata.name": "a"})));
        assert_eq!(text(&object, "status.phase"), "Active");
    }

    #[test]
    fn a_node_that_is_not_cordoned_does_not_say_so() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"unschedulable": false}, "status": {"capacity": {"cpu": "4000m"}}});
        of("", "Node", &mut object);
        assert_eq!(object.get("spec"), Some(&json!({})));
        assert_eq!(get(&object, "status.allocatable"), Some(&json!({"cpu": "4"})));
    }

    #[test]
    fn a_policy_with_egress_rules_is_about_both_directions() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"egress": [{"ports": [{"port": 1}]}]}});
        of("networking.k8s.io", "NetworkPolicy", &mut object);
        assert_eq!(get(&object, "spec.policyTypes"), Some(&json!(["Ingress", "Egress"])));
        assert_eq!(get(&object, "spec.podSelector"), Some(&json!({})));
    }
}
