//! Volumes: folders on the node, made when they are claimed, and removed with their claims.
//!
//! It is a provisioner as any other: Kubernetes' own controllers ask it by an annotation of the claim and bind what it makes.

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

/// The StorageClass; claims that name none get it as well.
pub(crate) const CLASS: &str = "local";
const PROVISIONER: &str = "fleetwright.io/lab";
/// Where the folders are on the node.
pub(super) const FOLDER: &str = "/var/lib/volumes";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const MADE_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The objects by which claims find the provisioner, and the kubelet its claims.
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
            // There is one node, so that there is nothing to wait for: the scheduler would look only a second later whether a volume came.
            "volumeBindingMode": "Immediate",
        }),
        // The Node authorizer hears of a pod and so of its claims when the kubelet does, and on a busy machine a moment later: a kubelet that is refused then asks again only 15
        // seconds after that.
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

/// The provisioner. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Volumes {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Volumes {
    pub(crate) fn start(kubeconfig: String, node: Arc<Host>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        // A runtime of its own: it works while a test blocks its own, and has let go of the node when this value is dropped.
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
        // What went wrong with a watch is repeated by it.
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

/// Tries some times: nobody asks again for what did not work.
async fn patiently<F: Future<Output = Result<()>>>(act: impl Fn() -> F) -> Result<()> {
    for _ in 0..10 {
        if act().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    act().await
}

/// Makes what a claim asks for, if it asks for something.
async fn make(client: &Client, node: &Host, claim: &PersistentVolumeClaim) -> Result<()> {
    let Some(volume) = wanted(claim) else { return Ok(()) };
    let what = format!("the volume of claim {}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
    let path = path(&volume).context("a volume has a path")?.to_owned();
    // For everybody: Kubernetes gives it to the group that a pod names, and a pod that names none is in need of it as well.
    node.run(&format!("mkdir -p -m 0777 {path}")).await.with_context(|| format!("cannot create {what}"))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    match volumes.create(&PostParams::default(), &volume).await {
        // Seen once more before it was bound.
        Err(kube::Error::Api(refused)) if refused.code == 409 => Ok(()),
        made => made.map(drop).with_context(|| format!("cannot write {what}")),
    }
}

/// Removes a volume whose claim is gone.
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

/// The volume that a claim asks this provisioner for: none while it is not its turn.
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
            // Unlike a hostPath, it is given to the group of the pod.
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
