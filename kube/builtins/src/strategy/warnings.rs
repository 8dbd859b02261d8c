//! Warnings about accepted objects.

use std::collections::BTreeMap;

use fleetwright_syntax::Quantity;
use serde_json::Value;

use crate::access::{entries, get, int, list, text};
use crate::names;
use crate::table::Kind;

const NODE_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

const VOLUMES: [(&str, &str); 7] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// The warnings that a create (no old object) or an update earns.
pub fn warnings(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<String> {
    // Templates are looked at only when they, or what surrounds them, changed.
    let bumped = old.is_none_or(|old| int(old, "metadata.generation") != int(new, "metadata.generation"));
    match (kind.group, kind.kind) {
        ("", "Pod") if old.is_none() => {
            let mut warnings_found = pod_name(new, "this is used in the Pod's hostname");
            warnings_found.extend(pod(new, ""));
            warnings_found
        }
        ("apps", "Deployment" | "ReplicaSet") | ("", "ReplicationController") | ("batch", "Job") => {
            let mut warnings_found =
                if old.is_none() { pod_name(new, "this is used in Pod names and hostnames") } else { Vec::new() };
            warnings_found.extend(template(new, "spec.template", bumped));
            warnings_found
        }
        ("apps", "StatefulSet") => {
            let mut warnings_found = template(new, "spec.template", bumped);
            if int(new, "spec.revisionHistoryLimit").is_some_and(|limit| limit < 0) {
                warnings_found.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
            }
            warnings_found
        }
        ("apps", "DaemonSet") => template(new, "spec.template", bumped),
        ("batch", "CronJob") => cron_job(new, old, bumped),
        ("", "Endpoints") => {
            vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()]
        }
        ("", "Node") => node(new),
        ("", "Service") => service(new),
        ("networking.k8s.io", "Ingress") if old.is_none() => ingress(new),
        _ => Vec::new(),
    }
}

fn pod_name(object: &Value, why: &str) -> Vec<String> {
    let wrong = names::dns_label(text(object, "metadata.name"));
    if wrong.is_empty() {
        return Vec::new();
    }
    let wrong = wrong.join(" ");
    vec![format!(
        "metadata.name: {why}, which can result in surprising behavior; a DNS label is recommended: [{wrong}]"
    )]
}

fn template(object: &Value, path: &str, bumped: bool) -> Vec<String> {
    match get(object, path) {
        Some(template) if bumped => pod(template, &format!("{path}.")),
        _ => Vec::new(),
    }
}

fn cron_job(new: &Value, old: Option<&Value>, bumped: bool) -> Vec<String> {
    let mut warnings_found =
        if old.is_none() { pod_name(new, "this is used in Pod names and hostnames") } else { Vec::new() };
    warnings_found.extend(template(new, "spec.jobTemplate.spec.template", bumped));
    if old.is_some() && text(new, "spec.schedule").contains("TZ") {
        warnings_found.push("cannot use TZ or CRON_TZ in spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
    }
    warnings_found
}

fn node(node: &Value) -> Vec<String> {
    let mut warnings_found = Vec::new();
    if get(node, "spec.configSource").is_some() {
        warnings_found.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(node, "spec.externalID").is_empty() {
        warnings_found.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    warnings_found
}

fn service(service: &Value) -> Vec<String> {
    let mut warnings_found = Vec::new();
    let external = !list(service, "spec.externalIPs").is_empty();
    let kind = text(service, "spec.type");
    let headless = text(service, "spec.clusterIP") == "None" && kind != "ExternalName";
    if get(service, "metadata.annotations")
        .and_then(|all| all.get("service.kubernetes.io/topology-aware-hints"))
        .is_some()
    {
        warnings_found.push("annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead".to_owned());
    }
    if headless {
        if !text(service, "spec.loadBalancerIP").is_empty() {
            warnings_found.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if external {
            warnings_found.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if text(service, "spec.sessionAffinity") != "None" {
            warnings_found.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if external && !headless && kind != "ExternalName" {
        warnings_found
            .push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned());
    }
    if external && kind == "ExternalName" {
        warnings_found.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !text(service, "spec.externalName").is_empty() {
        warnings_found.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    warnings_found
}

fn ingress(ingress: &Value) -> Vec<String> {
    let annotation = "kubernetes.io/ingress.class";
    let set = get(ingress, "metadata.annotations").and_then(|all| all.get(annotation)).is_some();
    if set && get(ingress, "spec.ingressClassName").is_none() {
        return vec![format!("annotation \"{annotation}\" is deprecated, please use 'spec.ingressClassName' instead")];
    }
    Vec::new()
}

fn deprecated_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, warnings_found)| *warnings_found)
}

/// The warnings about a pod or a pod template; `prefix` ends with a dot when it is not empty.
fn pod(pod: &Value, prefix: &str) -> Vec<String> {
    let Some(spec) = pod.get("spec") else { return Vec::new() };
    let mut warnings_found = Vec::new();
    node_labels(spec, prefix, &mut warnings_found);
    for (key, message) in ANNOTATIONS {
        if get(pod, "metadata.annotations").and_then(|all| all.get(key)).is_some() {
            warnings_found.push(format!("{prefix}metadata.annotations[{key}]: {message}"));
        }
    }
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        for (source, message) in VOLUMES {
            if get(volume, source).is_some() {
                warnings_found.push(format!("{prefix}spec.volumes[{index}].{source}: {message}"));
            }
        }
    }
    duplicates(spec, "hostAliases", "ip", prefix, &mut warnings_found);
    duplicates(spec, "imagePullSecrets", "name", prefix, &mut warnings_found);
    for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            warnings_found.push(format!("{prefix}spec.imagePullSecrets[{index}].name: invalid empty name \"\""));
        }
    }
    fractions(spec, "overhead", &format!("{prefix}spec.overhead"), &mut warnings_found);
    for (path, container) in containers(spec, prefix) {
        for list in ["limits", "requests"] {
            let field = format!("{path}.resources.{list}");
            fractions(container, &format!("resources.{list}"), &field, &mut warnings_found);
        }
        hidden_variables(container, &path, &mut warnings_found);
    }
    ports(spec, prefix, &mut warnings_found);
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        warnings_found.push(format!(
            "{prefix}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    warnings_found
}

fn containers<'a>(spec: &'a Value, prefix: &str) -> Vec<(String, &'a Value)> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let each = lists.iter().flat_map(|name| {
        let numbered = list(spec, name).iter().enumerate();
        numbered.map(move |(index, container)| (format!("{prefix}spec.{name}[{index}]"), container))
    });
    each.collect()
}

fn node_labels(spec: &Value, prefix: &str, warnings_found: &mut Vec<String>) {
    for (key, _) in entries(spec, "nodeSelector") {
        if let Some(message) = deprecated_label(key) {
            warnings_found.push(format!("{prefix}spec.nodeSelector[{key}]: {message}"));
        }
    }
    let base = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    for (term, at) in list(spec, base).iter().zip(0..) {
        for (expression, index) in list(term, "matchExpressions").iter().zip(0..) {
            let key = text(expression, "key");
            if let Some(message) = deprecated_label(key) {
                warnings_found
                    .push(format!("{prefix}spec.{base}[{at}].matchExpressions[{index}].key: {key} is {message}"));
            }
        }
    }
    for (constraint, index) in list(spec, "topologySpreadConstraints").iter().zip(0..) {
        let at = format!("{prefix}spec.topologySpreadConstraints[{index}]");
        let key = text(constraint, "topologyKey");
        if let Some(message) = deprecated_label(key) {
            warnings_found.push(format!("{at}.topologyKey: {key} is {message}"));
        }
        if get(constraint, "labelSelector").is_none() {
            warnings_found.push(format!("{at}.labelSelector: a null labelSelector results in matching no pod"));
        }
    }
}

fn duplicates(spec: &Value, name: &str, key: &str, prefix: &str, warnings_found: &mut Vec<String>) {
    let mut seen = Vec::new();
    for (index, item) in list(spec, name).iter().enumerate() {
        let value = text(item, key);
        if seen.contains(&value) {
            warnings_found.push(format!("{prefix}spec.{name}[{index}].{key}: duplicate {key} {value:?}"));
        }
        seen.push(value);
    }
}

fn fractions(holder: &Value, path: &str, field: &str, warnings_found: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let Some(amount) = get(holder, path).and_then(|amounts| amounts.get(name)).and_then(Value::as_str) else {
            continue;
        };
        if Quantity::parse(amount).is_ok_and(|quantity| !quantity.is_integer()) {
            warnings_found
                .push(format!("{field}[{name}]: fractional byte value {amount:?} is invalid, must be an integer"));
        }
    }
}

fn hidden_variables(container: &Value, path: &str, warnings_found: &mut Vec<String>) {
    let mut seen = Vec::new();
    for (index, variable) in list(container, "env").iter().enumerate() {
        let (name, value) = (text(variable, "name"), text(variable, "value"));
        if !seen.contains(&name) {
            seen.push(name);
            continue;
        }
        let reference = format!("$({name})");
        let extends = value.contains(&reference) && value != reference && get(variable, "valueFrom").is_none();
        if !extends {
            warnings_found.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

fn ports(spec: &Value, prefix: &str, warnings_found: &mut Vec<String>) {
    let mut by_number: BTreeMap<String, Vec<(String, String, i64)>> = BTreeMap::new();
    let mut by_name: BTreeMap<&str, String> = BTreeMap::new();
    let mut names = Vec::new();
    for (path, container) in containers(spec, prefix) {
        for (index, port) in list(container, "ports").iter().enumerate() {
            let at = format!("{path}.ports[{index}]");
            let (ip, host) = (text(port, "hostIP").to_owned(), int(port, "hostPort").unwrap_or(0));
            let key = format!("{}/{}", int(port, "containerPort").unwrap_or(0), text(port, "protocol"));
            let others = by_number.entry(key).or_default();
            for (other, other_ip, other_host) in others.iter() {
                if ip == *other_ip && host == *other_host {
                    warnings_found.push(format!("{at}: duplicate port definition with {other}"));
                } else if host == 0 || *other_host == 0 {
                    warnings_found.push(format!("{at}: overlapping port definition with {other}"));
                } else if host == *other_host && ip.is_empty() != other_ip.is_empty() {
                    warnings_found.push(format!("{at}: dangerously ambiguous port definition with {other}"));
                }
            }
            others.push((at.clone(), ip, host));
            let name = text(port, "name");
            match by_name.get(name) {
                Some(other) if !name.is_empty() => names.push(format!(
                    "{at}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                _ => drop(by_name.insert(name, at)),
            }
        }
    }
    warnings_found.extend(names);
}
