//! Volumes: folders on the node, created for claims and removed with them.
//!
//! An ordinary external provisioner: the controllers of Kubernetes request a volume by an annotation of the claim and bind the result.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::node;
use crate::hosts::Host;
use crate::plane;

/// The StorageClass, which is also the default class.
pub(crate) const CLASS: &str = "local";
const PROVISIONER: &str = "fleetwright.io/lab";
/// The path of the folders on the node.
pub(super) const FOLDER: &str = "/var/lib/volumes";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const MADE_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The StorageClass of the provisioner, and the RBAC objects that the kubelet needs for claims.
pub(crate) fn objects() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let name = json!({ "name": "lab:volumes" });
    vec![
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": { "name": CLASS, "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            // There is only one node, so nothing is gained by waiting: the scheduler would check for the volume only a second later.
            "volumeBindingMode": "Immediate",
        }),
        // The Node authorizer sees a pod and its claims at the same time as the kubelet, and on a busy machine a moment later: a refused kubelet
        // retries only 15 seconds after that.
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": name,
            "rules": [{ "apiGroups": [""], "resources": ["persistentvolumeclaims", "persistentvolumes"], "verbs": ["get"] }],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": name,
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name["name"] },
            "subjects": [{ "apiGroup": rbac, "kind": "Group", "name": "system:nodes" }],
        }),
    ]
}

/// The provisioner. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Volumes {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Volumes {
    pub(crate) fn start(kubeconfig: String, node: Arc<Host>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        // A runtime of its own: it works while a test blocks its own, and holds no reference to the node after this value is dropped.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("volumes".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    served = serve(&kubeconfig, &node) => {
                        if let Err(error) = served {
                            eprintln!("lab: cannot provide volumes: {error:#}");
                        }
                    }
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Volumes {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(kubeconfig: &str, node: &Host) -> Result<()> {
    let client = plane::client(kubeconfig).await?;
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let config = watcher::Config::default();
    let mut claims = watcher(claims, config.clone()).default_backoff().applied_objects().boxed();
    let mut released = watcher(volumes, config).default_backoff().applied_objects().boxed();
    loop {
        // The watch retries its own errors.
        let done = tokio::select! {
            claim = claims.next() => match claim {
                Some(Ok(claim)) => patiently(|| make(&client, node, &claim)).await,
                _ => continue,
            },
            volume = released.next() => match volume {
                Some(Ok(volume)) => patiently(|| remove(&client, node, &volume)).await,
                _ => continue,
            },
        };
        if let Err(error) = done {
            eprintln!("lab: {error:#}");
        }
    }
}

/// Retries a few times: no later event would repeat a failed action.
async fn patiently<F: Future<Output = Result<()>>>(act: impl Fn() -> F) -> Result<()> {
    for _ in 0..10 {
        if act().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    act().await
}

/// Provisions the volume of a claim, if it needs one.
async fn make(client: &Client, node: &Host, claim: &PersistentVolumeClaim) -> Result<()> {
    let Some(volume) = wanted(claim) else { return Ok(()) };
    let what = format!("the volume of claim {}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
    let path = path(&volume).context("a volume has a path")?.to_owned();
    // Writable for all: Kubernetes sets the group only for pods with an fsGroup, and pods without one need the volume as well.
    node.run(&format!("mkdir -p -m 0777 {path}")).await.with_context(|| format!("cannot create {what}"))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    match volumes.create(&PostParams::default(), &volume).await {
        // A second event for the claim before it was bound.
        Err(kube::Error::Api(refused)) if refused.code == 409 => Ok(()),
        made => made.map(drop).with_context(|| format!("cannot write {what}")),
    }
}

/// Removes a volume whose claim was deleted.
async fn remove(client: &Client, node: &Host, volume: &PersistentVolume) -> Result<()> {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if volume.annotations().get(MADE_BY).map(String::as_str) != Some(PROVISIONER) || phase != Some("Released") {
        return Ok(());
    }
    let Some(path) = path(volume).filter(|path| path.starts_with(FOLDER)) else { return Ok(()) };
    node.run(&format!("rm -rf {path}")).await.with_context(|| format!("cannot remove {path}"))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
        Err(kube::Error::Api(refused)) if refused.code == 404 => Ok(()),
        removed => removed.map(drop).with_context(|| format!("cannot remove {}", volume.name_any())),
    }
}

/// The volume that a claim requests from this provisioner; none if it is not waiting for one.
fn wanted(claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let annotation = |name: &str| claim.annotations().get(name).map(String::as_str);
    let spec = claim.spec.as_ref()?;
    let asked = annotation(ASKED) == Some(PROVISIONER) && spec.volume_name.as_deref().unwrap_or_default().is_empty();
    if !asked || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let uid = claim.uid()?;
    let volume = json!({
        "metadata": { "name": format!("pvc-{uid}"), "annotations": { MADE_BY: PROVISIONER } },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": spec.resources.as_ref()?.requests,
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(),
                "name": claim.name_any(),
                "uid": uid,
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec.storage_class_name,
            // Unlike a hostPath, a local volume gets the group of the pod.
            "local": { "path": format!("{FOLDER}/{uid}") },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{
                "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node::NAME] }],
            }] } },
        },
    });
    serde_json::from_value(volume).ok()
}

fn path(volume: &PersistentVolume) -> Option<&str> {
    Some(&volume.spec.as_ref()?.local.as_ref()?.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(annotations: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "data-etcd-0", "namespace": "fleet-pay-01", "uid": "0-1-2", "annotations": annotations },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
                "storageClassName": CLASS,
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_gets_a_volume_when_it_is_this_provisioners_turn() {
        assert_eq!(wanted(&claim(json!({}))), None);
        assert_eq!(wanted(&claim(json!({ ASKED: "another.example" }))), None);
        let mut asking = claim(json!({ ASKED: PROVISIONER }));
        let volume = wanted(&asking).unwrap();
        assert_eq!(volume.name_any(), "pvc-0-1-2");
        assert_eq!(path(&volume), Some("/var/lib/volumes/0-1-2"));
        asking.spec.as_mut().unwrap().volume_name = Some("pvc-0-1-2".to_owned());
        assert_eq!(wanted(&asking), None);
    }
}
