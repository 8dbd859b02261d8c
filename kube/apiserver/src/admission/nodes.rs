//! The writes that a node may make: its own Node and Lease, the status of its own pods, and requests for its own certificates. Like the plugin
//! NodeRestriction of kube-apiserver.

use serde_json::Value;

use super::denial::forbidden;
use crate::auth::{node_of, reference_of};
use crate::error::ApiError;
use crate::fields::meta_text;
use crate::write_request::WriteRequest;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels of Kubernetes' own that a kubelet may write; other keys of `kubernetes.io` and `k8s.io` are for administrators.
const LABELS: [&str; 13] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "kubelet.kubernetes.io/",
    "node.kubernetes.io/",
];

/// Refuses a node's write to objects of other nodes. `old` is none for a create.
pub(super) fn write(op: &WriteRequest<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let Some(node) = node_of(op.user) else { return Ok(()) };
    let name = meta_text(new, "name");
    let refuse = |why: String| Err(forbidden(op, new, why));
    match (&*op.resource.group, &*op.resource.plural) {
        ("", "nodes") => {
            if name != node {
                return refuse(format!("node {node:?} is not allowed to modify node {name:?}"));
            }
            let none = Value::Null;
            let before = old.unwrap_or(&none);
            let labels = changed_labels(before, new);
            let wrong: Vec<&str> = labels.into_iter().filter(|label| !may_label(label)).collect();
            let wrong = wrong.join(", ");
            match old {
                None if !wrong.is_empty() => {
                    return refuse(format!("node {node:?} is not allowed to set the following labels: {wrong}"));
                }
                Some(_) if !wrong.is_empty() => return refuse(format!("is not allowed to modify labels: {wrong}")),
                _ => {}
            }
            if old.is_some() && before["metadata"]["ownerReferences"] != new["metadata"]["ownerReferences"] {
                return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            if old.is_some() && before["spec"]["taints"] != new["spec"]["taints"] {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            Ok(())
        }
        ("certificates.k8s.io", "certificatesigningrequests") if old.is_none() => {
            let signer = new["spec"]["signerName"].as_str().unwrap_or_default();
            let ours = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
            let names = super::certificates::common_names(new["spec"]["request"].as_str().unwrap_or_default());
            match names {
                _ if !ours.contains(&signer) => Ok(()),
                Err(error) => refuse(format!("unable to parse csr: {error}")),
                Ok(names) if names.last().is_some_and(|name| *name == format!("system:node:{node}")) => Ok(()),
                Ok(_) => refuse(format!("can only create a node CSR with CN=system:node:{node}")),
            }
        }
        ("coordination.k8s.io", "leases") if op.namespace != "kube-node-lease" => {
            refuse("can only access leases in the \"kube-node-lease\" system namespace".to_owned())
        }
        ("coordination.k8s.io", "leases") if name != node => {
            refuse("can only access node lease with the same name as the requesting node".to_owned())
        }
        ("storage.k8s.io", "csinodes") if name != node => {
            refuse("can only access CSINode with the same name as the requesting node".to_owned())
        }
        ("", "pods") => pod(op, node, old, new),
        _ => Ok(()),
    }
}

/// Refuses that a node deletes a pod of another node.
pub(super) fn delete(op: &WriteRequest<'_>, old: &Value) -> Result<(), ApiError> {
    let Some(node) = node_of(op.user) else { return Ok(()) };
    if op.resource.is("", "pods") && old["spec"]["nodeName"] != node {
        let why = format!("node {node:?} can only delete pods with spec.nodeName set to itself");
        return Err(forbidden(op, old, why));
    }
    Ok(())
}

fn pod(op: &WriteRequest<'_>, node: &str, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let refuse = |why: String| Err(forbidden(op, new, why));
    match old {
        None if new["metadata"]["annotations"][MIRROR].as_str().is_none() => {
            refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"))
        }
        None if new["spec"]["nodeName"] != node => {
            refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"))
        }
        None if reference_of(new).is_some() => refuse(format!(
            "node {node:?} can not create pods that reference {}",
            reference_of(new).unwrap_or_default()
        )),
        Some(old) if old["metadata"]["labels"] != new["metadata"]["labels"] => {
            refuse(format!("node {node:?} cannot update labels through pod status"))
        }
        Some(old) if old["spec"]["nodeName"] != node => {
            refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
        }
        _ => Ok(()),
    }
}

fn changed_labels<'a>(old: &'a Value, new: &'a Value) -> Vec<&'a str> {
    let labels = |value: &'a Value| value["metadata"]["labels"].as_object();
    let (before, after) = (labels(old), labels(new));
    let keys = [before, after].into_iter().flatten().flat_map(|labels| labels.keys());
    let mut keys: Vec<&str> = keys
        .filter(|key| before.and_then(|l| l.get(*key)) != after.and_then(|l| l.get(*key)))
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn may_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return true };
    let of = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    if of("node-restriction.kubernetes.io") {
        return false;
    }
    let kubernetes = of("kubernetes.io") || of("k8s.io");
    let own = LABELS.iter().any(|known| match known.strip_suffix('/') {
        Some(prefix) => of(prefix),
        None => *known == key,
    });
    !kubernetes || own
}
