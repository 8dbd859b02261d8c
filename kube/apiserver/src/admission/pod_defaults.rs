//! Defaults of new pods and nodes: service account and token, priority, tolerations, topology labels,
//! and the taint of a node that has not reported its status.

use fleetwright_builtins::meta;
use serde_json::{Map, Value, json};

use super::denial::forbidden;
use crate::error::ApiError;
use crate::fields::{list_mut, meta_text};
use crate::write_request::WriteRequest;

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_VOLUME: &str = "kube-api-access-";
/// An hour, and the seven seconds by which the real server recognizes its own tokens.
const TOKEN_SECONDS: i64 = 3607;
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub(super) fn create(op: &WriteRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if !pod["spec"].is_object() {
        return Ok(());
    }
    if pod["metadata"]["annotations"][MIRROR].is_null() {
        service_account(op, pod)?;
    } else {
        mirror(op, pod)?;
    }
    priority(op, pod)?;
    tolerations(pod);
    runtime_class(op, pod)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let labels = topology(op, &node);
    if !labels.is_empty() {
        merge(&mut pod["metadata"]["labels"], labels);
    }
    Ok(())
}

/// Keeps the priority fields that an older client omits.
pub(super) fn update(old: &Value, pod: &mut Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            pod["spec"][field] = old["spec"][field].clone();
        }
    }
    tolerations(pod);
}

/// A new node gets the taint not-ready until it reports that it is ready.
pub(super) fn taint_new_node(node: &mut Value) {
    if !node["spec"].is_object() {
        node["spec"] = json!({});
    }
    let taints = list_mut(&mut node["spec"], "taints");
    if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object[field].as_array().into_iter().flatten()
}

/// A mirror pod of a static pod must not refer to secrets of the cluster.
fn mirror(op: &WriteRequest<'_>, pod: &Value) -> Result<(), ApiError> {
    let spec = &pod["spec"];
    if !spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Err(forbidden(op, pod, "a mirror pod may not reference service accounts"));
    }
    let containers = || ["containers", "initContainers"].into_iter().flat_map(|field| items(spec, field));
    let in_env = containers().flat_map(|c| items(c, "env")).any(|env| !env["valueFrom"]["secretKeyRef"].is_null());
    let in_env_from = containers().flat_map(|c| items(c, "envFrom")).any(|env| !env["secretRef"].is_null());
    let in_volumes = items(spec, "volumes").any(|volume| !volume["secret"].is_null());
    if in_env || in_env_from || in_volumes || items(spec, "imagePullSecrets").next().is_some() {
        return Err(forbidden(op, pod, "a mirror pod may not reference secrets"));
    }
    let projects_token = items(spec, "volumes")
        .flat_map(|volume| items(&volume["projected"], "sources"))
        .any(|source| !source["serviceAccountToken"].is_null());
    if projects_token {
        return Err(forbidden(op, pod, "a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

fn service_account(op: &WriteRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let mut name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        name = "default".into();
        pod["spec"]["serviceAccountName"] = name.as_str().into();
        pod["spec"]["serviceAccount"] = name.as_str().into();
    }
    let Some(account) = op.server.lookup("", "serviceaccounts", op.namespace, &name) else {
        let place = op.namespace;
        let why = format!("error looking up service account {place}/{name}: serviceaccount {name:?} not found");
        return Err(forbidden(op, pod, why));
    };
    let wanted = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or_else(|| account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if wanted {
        mount_token(op, pod);
    }
    let secrets: Vec<Value> = items(&account, "imagePullSecrets").map(|s| json!({"name": s["name"]})).collect();
    if items(&pod["spec"], "imagePullSecrets").next().is_none() && !secrets.is_empty() {
        pod["spec"]["imagePullSecrets"] = secrets.into();
    }
    limit_secrets(op, &account, pod)
}

fn mount_token(op: &WriteRequest<'_>, pod: &mut Value) {
    let known = items(&pod["spec"], "volumes")
        .filter_map(|volume| volume["name"].as_str())
        .find(|name| name.starts_with(TOKEN_VOLUME))
        .map(str::to_owned);
    let has_volume = known.is_some();
    let volume = known.unwrap_or_else(|| meta::generate_name(TOKEN_VOLUME, op.server.random()));
    let mut mounted = false;
    for field in ["initContainers", "containers"] {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten().filter(|c| c.is_object()) {
            if items(container, "volumeMounts").any(|mount| mount["mountPath"] == TOKEN_PATH) {
                continue;
            }
            let mount = json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH});
            list_mut(container, "volumeMounts").push(mount);
            mounted = true;
        }
    }
    if mounted && !has_volume {
        list_mut(&mut pod["spec"], "volumes").push(json!({
            "name": volume,
            "projected": {
                "defaultMode": 0o644,
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{
                        "path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }]}},
                ],
            },
        }));
    }
}

/// A service account may limit its pods to the secrets that it lists.
fn limit_secrets(op: &WriteRequest<'_>, account: &Value, pod: &Value) -> Result<(), ApiError> {
    let enforced = &account["metadata"]["annotations"]["kubernetes.io/enforce-mountable-secrets"];
    if !matches!(enforced.as_str(), Some("true" | "True" | "TRUE" | "t" | "T" | "1")) {
        return Ok(());
    }
    let name = meta_text(account, "name");
    let listed = |field: &str, secret: &Value| items(account, field).any(|known| known["name"] == *secret);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let refused = |what: String, kind: &str| {
        Err(forbidden(
            op,
            pod,
            format!("{what} is not allowed because service account {name} does not reference that {kind}"),
        ))
    };
    for secret in items(&pod["spec"], "volumes").map(|v| &v["secret"]["secretName"]).filter(|s| !s.is_null()) {
        if !listed("secrets", secret) {
            return refused(format!("volume with secret.secretName=\"{}\"", text(secret)), "secret");
        }
    }
    for (field, label) in [("initContainers", "init container"), ("containers", "container")] {
        for container in items(&pod["spec"], field) {
            let who = format!("{label} {}", text(&container["name"]));
            for env in items(container, "env") {
                let secret = &env["valueFrom"]["secretKeyRef"]["name"];
                if !secret.is_null() && !listed("secrets", secret) {
                    let what = format!(
                        "{who} with envVar {} referencing secret.secretName=\"{}\"",
                        text(&env["name"]),
                        text(secret)
                    );
                    return refused(what, "secret");
                }
            }
            for secret in items(container, "envFrom").map(|e| &e["secretRef"]["name"]).filter(|s| !s.is_null()) {
                if !listed("secrets", secret) {
                    return refused(
                        format!("{who} with envFrom referencing secret.secretName=\"{}\"", text(secret)),
                        "secret",
                    );
                }
            }
        }
    }
    for (at, secret) in items(&pod["spec"], "imagePullSecrets").enumerate() {
        if !listed("imagePullSecrets", &secret["name"]) {
            return refused(format!("imagePullSecrets[{at}].name=\"{}\"", text(&secret["name"])), "imagePullSecret");
        }
    }
    Ok(())
}

fn priority(op: &WriteRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let class = if name.is_empty() {
        default_priority_class(op)
    } else {
        let found = op.server.lookup("scheduling.k8s.io", "priorityclasses", "", &name);
        Some(found.ok_or_else(|| forbidden(op, pod, format!("no PriorityClass with name {name} was found")))?)
    };
    let (value, policy) = match &class {
        Some(class) => {
            pod["spec"]["priorityClassName"] = meta_text(class, "name").into();
            (class["value"].as_i64().unwrap_or(0), class["preemptionPolicy"].as_str())
        }
        None => (0, Some("PreemptLowerPriority")),
    };
    if let Some(given) = pod["spec"]["priority"].as_i64()
        && given != value
    {
        return Err(forbidden(
            op,
            pod,
            format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            ),
        ));
    }
    pod["spec"]["priority"] = value.into();
    let Some(policy) = policy else { return Ok(()) };
    if let Some(given) = pod["spec"]["preemptionPolicy"].as_str()
        && given != policy
    {
        return Err(forbidden(
            op,
            pod,
            format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            ),
        ));
    }
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}

/// The default class of pods without one: of several, the least urgent.
fn default_priority_class(op: &WriteRequest<'_>) -> Option<Value> {
    let classes = op.server.lookup_all("scheduling.k8s.io", "priorityclasses", None);
    classes.into_iter().filter(|class| class["globalDefault"] == true).min_by_key(|class| class["value"].as_i64())
}

/// Refuses a second default priority class, since the default would be ambiguous.
pub(super) fn one_default_class(op: &WriteRequest<'_>, old: Option<&Value>, class: &Value) -> Result<(), ApiError> {
    if class["globalDefault"] != true {
        return Ok(());
    }
    match default_priority_class(op) {
        Some(other) if old.is_none() || meta_text(&other, "name") != meta_text(class, "name") => {
            let other = meta_text(&other, "name");
            let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
            Err(forbidden(op, class, why))
        }
        _ => Ok(()),
    }
}

/// Pods stay five minutes on a node that is not ready or unreachable, unless they have other tolerations.
fn tolerations(pod: &mut Value) {
    if !pod["spec"].is_object() {
        return;
    }
    for key in [NOT_READY, UNREACHABLE] {
        let empty_or = |value: &Value, text: &str| value.as_str().is_none_or(|v| v.is_empty() || v == text);
        let tolerated =
            items(&pod["spec"], "tolerations").any(|t| empty_or(&t["key"], key) && empty_or(&t["effect"], "NoExecute"));
        if !tolerated {
            list_mut(&mut pod["spec"], "tolerations").push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

/// This server has no runtime classes, so that a pod with one cannot run.
fn runtime_class(op: &WriteRequest<'_>, pod: &Value) -> Result<(), ApiError> {
    if let Some(class) = pod["spec"]["runtimeClassName"].as_str() {
        return Err(forbidden(op, pod, format!("pod rejected: RuntimeClass {class:?} not found")));
    }
    if pod["spec"]["overhead"].as_object().is_some_and(|overhead| !overhead.is_empty()) {
        let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        return Err(forbidden(op, pod, why));
    }
    Ok(())
}

/// The topology labels of a node, which its pods get, too.
pub(crate) fn topology(op: &WriteRequest<'_>, node: &str) -> Map<String, Value> {
    if node.is_empty() {
        return Map::new();
    }
    let Some(node) = op.server.lookup("", "nodes", "", node) else { return Map::new() };
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    labels.filter(|(key, _)| TOPOLOGY.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Merges entries into a map, which is created when it is missing.
pub(crate) fn merge(map: &mut Value, entries: impl IntoIterator<Item = (String, Value)>) {
    if !map.is_object() {
        *map = json!({});
    }
    if let Some(map) = map.as_object_mut() {
        map.extend(entries);
    }
}
