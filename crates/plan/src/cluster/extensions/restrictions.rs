//! Restrictions for extensions beside a control plane. Their pods run in the namespace with the keys of the cluster, and the author of the Cluster
//! chooses their values: so pods get none of these keys, and values change neither objects nor images.

use fleetwright_api::names;
use serde_json::{Value, json};

use super::super::certificates::MACHINE_OPERATOR as KUBECONFIG;
use super::super::objects::Kind;
use super::super::policies;
use super::{EXTENSION, ObjectRef};

/// The only Secret that pods of extensions may mount: the kubeconfig with a user of their own in the business cluster.
const SECRETS: [&str; 1] = [KUBECONFIG];
/// Volume types that contain no data of the control plane, besides allowed Secrets.
const VOLUMES: [&str; 6] = ["configMap", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"];
/// Allowed sources of a projected volume.
const PROJECTED: [&str; 3] = ["configMap", "downwardAPI", "secret"];
/// Labels by which Services and NetworkPolicies select the pods of the control plane.
const OURS: [&str; 2] = [names::COMPONENT, names::SERVING];
/// Fields of a pod with containers.
pub(super) const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Checks an object of that kind; its pods get no token, and a NetworkPolicy selects pods of the extension alone.
pub(super) fn confine(kind: Kind, extension: &str, object: &mut Value) -> Result<(), String> {
    labels(&object["metadata"]["labels"], "metadata.labels")?;
    match kind {
        Kind::Deployment | Kind::StatefulSet => {
            let template = &mut object["spec"]["template"];
            labels(&template["metadata"]["labels"], "spec.template.metadata.labels")?;
            pod(&mut template["spec"]).map_err(|(at, why)| format!("spec.template.spec.{at}{why}"))
        }
        Kind::NetworkPolicy => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if policies::is_ours(name) {
                return Err("the name is reserved for a policy of the control plane; choose another name".to_owned());
            }
            // Policies are additive: a policy of the extension could allow connections to the meta cluster.
            if object["spec"]["egress"].as_array().is_some_and(|rules| !rules.is_empty()) {
                return Err(format!(
                    "spec.egress is not allowed: pods of extensions may connect to addresses outside the meta cluster, and to pods in it if the pod and its namespace have the label {}; remove it",
                    policies::REACHABLE
                ));
            }
            let spec = object.get_mut("spec").and_then(Value::as_object_mut);
            let selector = spec.map(|spec| spec.entry("podSelector").or_insert(json!({})));
            let selector = selector.and_then(Value::as_object_mut);
            let matched = selector.map(|selector| selector.entry("matchLabels").or_insert(json!({})));
            let Some(matched) = matched.and_then(Value::as_object_mut) else {
                return Err("spec.podSelector is invalid: it must have matchLabels or matchExpressions".to_owned());
            };
            // Policies are additive: a policy for all pods would also apply to those of the control plane.
            matched.insert(EXTENSION.to_owned(), json!(extension));
            Ok(())
        }
        Kind::ConfigMap | Kind::Service | Kind::PodDisruptionBudget => Ok(()),
    }
}

fn labels(labels: &Value, at: &str) -> Result<(), String> {
    match OURS.iter().find(|ours| labels.get(**ours).is_some()) {
        Some(ours) => Err(format!("{at} has {ours}, which is reserved for pods of the control plane; remove it")),
        None => Ok(()),
    }
}

/// Path of a field in a pod, and the error.
type PodViolation = (String, String);

fn pod(spec: &mut Value) -> Result<(), PodViolation> {
    let Some(fields) = spec.as_object_mut() else { return Err((String::new(), " is missing".to_owned())) };
    let wrong = |at: &str, why: &str| Err((at.to_owned(), why.to_owned()));
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        if fields.get(host).is_some_and(|value| *value != json!(false)) {
            return wrong(host, " is not allowed for pods of extensions in the meta cluster; remove it");
        }
    }
    for account in ["serviceAccountName", "serviceAccount"] {
        if fields.contains_key(account) {
            return wrong(account, ": pods of extensions have no service account in the meta cluster; remove it");
        }
    }
    if fields.get("automountServiceAccountToken").is_some_and(|mount| *mount != json!(false)) {
        return wrong("automountServiceAccountToken", " must be false or unset");
    }
    fields.insert("automountServiceAccountToken".to_owned(), json!(false));
    if fields.contains_key("imagePullSecrets") {
        return wrong(
            "imagePullSecrets",
            ": the namespace has no image pull Secrets; configure registry credentials on the nodes",
        );
    }
    for (at, volume) in list(spec, "volumes") {
        self::volume(volume).map_err(|(inner, why)| (format!("{at}{inner}"), why))?;
    }
    for part in CONTAINERS {
        for (at, container) in list(spec, part) {
            self::container(container).map_err(|(inner, why)| (format!("{at}.{inner}"), why))?;
        }
    }
    Ok(())
}

/// The items of a list, each with its path.
fn list<'a>(of: &'a Value, name: &'a str) -> impl Iterator<Item = (String, &'a Value)> {
    let items = of[name].as_array().into_iter().flatten();
    items.enumerate().map(move |(at, item)| (format!("{name}[{at}]"), item))
}

fn volume(volume: &Value) -> Result<(), PodViolation> {
    let kinds = volume.as_object().into_iter().flat_map(|fields| fields.keys()).filter(|key| *key != "name");
    for kind in kinds {
        if !VOLUMES.contains(&kind.as_str()) {
            let why = format!(
                " is not allowed for pods of extensions in the meta cluster; allowed volumes: {}",
                VOLUMES.join(", ")
            );
            return Err((format!(".{kind}"), why));
        }
    }
    if let Some(named) = volume.get("secret") {
        secret(&named["secretName"]).map_err(|why| (".secret.secretName".to_owned(), why))?;
    }
    for (at, source) in list(&volume["projected"], "sources") {
        let at = format!(".projected.{at}");
        let kinds = source.as_object().into_iter().flat_map(|fields| fields.keys());
        if let Some(kind) = kinds.into_iter().find(|kind| !PROJECTED.contains(&kind.as_str())) {
            let why = format!(
                " is not allowed for pods of extensions in the meta cluster; allowed sources: {}",
                PROJECTED.join(", ")
            );
            return Err((format!("{at}.{kind}"), why));
        }
        if let Some(named) = source.get("secret") {
            secret(&named["name"]).map_err(|why| (format!("{at}.secret.name"), why))?;
        }
    }
    Ok(())
}

fn container(container: &Value) -> Result<(), PodViolation> {
    for (at, from) in list(container, "envFrom") {
        if let Some(named) = from.get("secretRef") {
            secret(&named["name"]).map_err(|why| (format!("{at}.secretRef.name"), why))?;
        }
    }
    for (at, one) in list(container, "env") {
        if let Some(named) = one["valueFrom"].get("secretKeyRef") {
            secret(&named["name"]).map_err(|why| (format!("{at}.valueFrom.secretKeyRef.name"), why))?;
        }
    }
    for (at, port) in list(container, "ports") {
        if port.get("hostPort").is_some_and(|port| *port != json!(0)) {
            let why = " is not allowed; use a Service instead".to_owned();
            return Err((format!("{at}.hostPort"), why));
        }
    }
    let context = &container["securityContext"];
    for field in ["privileged", "allowPrivilegeEscalation"] {
        if context.get(field).is_some_and(|value| *value != json!(false)) {
            let why = " is not allowed for pods of extensions in the meta cluster; remove it".to_owned();
            return Err((format!("securityContext.{field}"), why));
        }
    }
    if context["capabilities"].get("add").is_some() {
        let why = " is not allowed for pods of extensions in the meta cluster; remove it".to_owned();
        return Err(("securityContext.capabilities.add".to_owned(), why));
    }
    Ok(())
}

fn secret(name: &Value) -> Result<(), String> {
    match name.as_str() {
        Some(name) if SECRETS.contains(&name) => Ok(()),
        _ => Err(format!(" is {name}; the only Secret allowed for pods of extensions is {}", SECRETS.join(", "))),
    }
}

/// Values may not change which objects exist, or which containers run in their pods. Returns the first such difference between the objects with the
/// defaults and with the values of a Cluster.
pub(super) fn difference(defaults: &[Value], chosen: &[Value]) -> Option<String> {
    let refs = |objects: &[Value]| {
        let mut all: Vec<_> = objects.iter().map(ObjectRef::of).collect();
        all.sort();
        all
    };
    let (plain, given) = (refs(defaults), refs(chosen));
    if let Some(more) = given.iter().find(|one| !plain.contains(one)) {
        return Some(format!("these values add {more}"));
    }
    if let Some(less) = plain.iter().find(|one| !given.contains(one)) {
        return Some(format!("these values remove {less}"));
    }
    let programs = |object: &Value| {
        let spec = &object["spec"]["template"]["spec"];
        let all = CONTAINERS.iter().flat_map(|part| list(spec, part));
        all.map(|(at, one)| (at, one["name"].clone(), one["image"].clone(), one["command"].clone())).collect::<Vec<_>>()
    };
    defaults.iter().find_map(|plain| {
        let this = ObjectRef::of(plain);
        let given = chosen.iter().find(|given| ObjectRef::of(given) == this)?;
        let differs = programs(plain) != programs(given);
        differs.then(|| format!("these values change containers, images or commands of {this}"))
    })
}
