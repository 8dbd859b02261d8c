//! Creates and deletes the pods that take and restore snapshots, and the objects that these pods need.

use fleetwright_api::{ClusterSpec, ClusterStatus, names};
use fleetwright_kit::{Key, Pass, WriteError};
use fleetwright_pki::SealKey;
use fleetwright_plan::cluster::copied_secrets::{key_secret, snapshot_keys, store};
use fleetwright_plan::cluster::keys::SEALED_DATA;
use fleetwright_plan::cluster::snapshots::cluster_keys::{CLUSTER_KEYS, ClusterKeys};
use fleetwright_plan::cluster::snapshots::pods::{ETCD, GENERATION, KEY, PURPOSE};
use fleetwright_plan::cluster::snapshots::{SnapshotPod, SnapshotPodJob, SnapshotPodState};
use fleetwright_plan::cluster::{Decision, Names, NewSnapshot};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ContainerStatus, PersistentVolumeClaim, Pod, Secret};
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::caches::Caches;
use crate::creation;
use crate::errors::{ActError, Refusal};
use crate::keys::{self, Sealed};
use crate::messages::truncated;
use crate::secret_copies;
use crate::secrets::SecretError;

/// Creates what snapshot pods need besides volumes: the credentials of the store, and the keys that encrypt snapshots.
pub struct SnapshotSecrets<'a> {
    pub caches: &'a Caches,
    pub pass: &'a Pass,
    pub names: &'a Names,
    pub spec: &'a ClusterSpec,
    pub status: &'a ClusterStatus,
}

impl SnapshotSecrets<'_> {
    /// Creates the pod of a snapshot, and before it the claim of its volume.
    pub async fn take(&self, taking: &NewSnapshot) -> Result<(), ActError> {
        let claimed = match &taking.claim {
            Some(claim) => {
                let claim: PersistentVolumeClaim = parsed(claim, "the claim of snapshots")?;
                creation::create(&self.caches.claims, self.pass, self.names, &claim).await
            }
            None => Ok(()),
        };
        self.copy_secrets().await?;
        self.cluster_keys().await?;
        let pod: Pod = parsed(&taking.pod, "the pod of a snapshot")?;
        self.pass.writer().create_in(&self.caches.pods, &pod).await?;
        // The pod names the claim, and needs no labels on it.
        Ok(claimed?)
    }

    /// Creates the pods of a restore, and the claims that they need.
    pub async fn restore(&self, decision: &Decision) -> Result<(), ActError> {
        for claim in &decision.claims {
            let claim: PersistentVolumeClaim = parsed(claim, "the claim of a member")?;
            creation::create(&self.caches.claims, self.pass, self.names, &claim).await?;
        }
        if !decision.pods.is_empty() {
            self.copy_secrets().await?;
        }
        for pod in &decision.pods {
            let pod: Pod = parsed(pod, "the pod of a restore")?;
            self.pass.writer().create_in(&self.caches.pods, &pod).await?;
        }
        Ok(())
    }

    /// Copies the Secrets that the pods mount. An outdated copy whose source is missing is useless: no pod is created with it.
    async fn copy_secrets(&self) -> Result<(), ActError> {
        self.key().await?;
        let mut copies = vec![snapshot_keys(self.names, self.spec, self.status)];
        let bucket = self.spec.snapshots.as_ref().and_then(|policy| policy.s3.as_ref());
        copies.extend(bucket.map(store));
        let mut refusal = Refusal::default();
        let trouble = secret_copies::copy(self.caches, self.pass, self.names, &copies, &mut refusal).await?;
        // Without its Secrets the pod would only wait.
        match refusal.0.or(trouble.map(ActError::from)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Updates the Secret with the cluster's keys that goes into snapshots: the content of the sealed copy, sealed with the key of snapshots.
    ///
    /// While the copy cannot be opened, the Secret is not changed, and a key that the copy lacks stays in it: it may be the last one.
    async fn cluster_keys(&self) -> Result<(), SecretError> {
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let read = |name: &str, error| SecretError::Read(name.to_owned(), error);
        let value = |secret: Option<Secret>, key: &str| secret?.data?.remove(key);
        let key = api.get_opt(KEY).await.map_err(|error| read(KEY, error))?;
        // The pod reports a key that does not have 32 bytes.
        let Some(key) = value(key, "key").and_then(|key| SealKey::from_bytes(&key.0)) else { return Ok(()) };
        let wanted = self.caches.sealed(self.names);
        if wanted.is_empty() {
            return Ok(());
        }
        let cluster = format!("{}/{}", self.names.fleet, self.names.name);
        let found = api.get_opt(CLUSTER_KEYS).await.map_err(|error| read(CLUSTER_KEYS, error))?;
        let says = found.as_ref().and_then(|secret| secret.annotations().get(names::SEALED).cloned());
        let version = found.as_ref().and_then(|secret| secret.resource_version());
        let held = value(found, SEALED_DATA).and_then(|sealed| ClusterKeys::open(&key, &cluster, &sealed.0));
        let held = held.filter(|held| held.namespace == self.names.namespace).unwrap_or_default();
        let digests = held.digests();
        let is_so = wanted.iter().all(|(name, digest)| digests.get(name) == Some(digest));
        if is_so && says == Some(json!(Sealed { by: key.id(), keys: digests }).to_string()) {
            return Ok(());
        }
        let mut secrets = held.secrets;
        secrets.extend(keys::opened(self.caches, self.pass, self.names).await?);
        if secrets.is_empty() {
            return Ok(());
        }
        let kept = ClusterKeys { namespace: self.names.namespace.clone(), secrets };
        let broken = |why: String| SecretError::Broken(CLUSTER_KEYS.to_owned(), why);
        let sealed = kept.seal(&key, &cluster).map_err(broken)?;
        let says = json!(Sealed { by: key.id(), keys: kept.digests() }).to_string();
        let mut body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": CLUSTER_KEYS, "namespace": self.names.namespace, "labels": self.names.labels(),
                "annotations": { names::SEALED: says },
            },
            "data": { SEALED_DATA: ByteString(sealed) },
        });
        // A person who restores the Secret, or a key into it, at this moment must not be overwritten.
        let at = Key::new(&self.names.namespace, CLUSTER_KEYS);
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = version.into();
            self.pass.writer().apply(&self.caches.secrets, &at, &body).await?;
        } else if !self.pass.writer().create_in(&self.caches.secrets, &parsed(&body, CLUSTER_KEYS)?).await? {
            let (what, message) = (format!("Secret {at}"), "another writer created it".to_owned());
            return Err(WriteError::Conflict { what, message }.into());
        }
        Ok(())
    }

    /// Makes sure that a key exists. It is generated once in the life of a cluster: if its Secret is gone, it is restored from the copy beside the
    /// control plane, and if both are gone, a person has to know, because a new key opens none of the existing snapshots.
    async fn key(&self) -> Result<(), SecretError> {
        let (name, generated) = key_secret(self.names, self.spec);
        let source: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.fleet);
        let read = |name: &str, error| SecretError::Read(name.to_owned(), error);
        if !generated || source.get_opt(&name).await.map_err(|error| read(&name, error))?.is_some() {
            return Ok(());
        }
        let copy: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let copy = copy.get_opt(KEY).await.map_err(|error| read(KEY, error))?;
        let kept = copy.and_then(|copy| copy.data).and_then(|mut data| data.remove("key"));
        let encrypted = self.status.last_snapshot.as_ref().is_some_and(|last| last.key_id.is_some());
        let key = match kept {
            Some(key) => key,
            None if encrypted => {
                return Err(SecretError::KeyLost { secret: format!("{}/{name}", self.names.fleet) });
            }
            None => {
                let mut made = vec![0; 32];
                let broken = |_| SecretError::Broken(name.clone(), "cannot generate random bytes".to_owned());
                aws_lc_rs::rand::fill(&mut made).map_err(broken)?;
                ByteString(made)
            }
        };
        let allowed = [(names::ALLOWED_CLUSTERS.to_owned(), self.names.name.clone())];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(self.names.fleet.clone()),
                annotations: Some(allowed.into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some([("key".to_owned(), key)].into()),
            ..Secret::default()
        };
        // If another process created one at the same time, the Secret in the API counts.
        self.pass.writer().create(&secret).await?;
        Ok(())
    }
}

fn parsed<T: serde::de::DeserializeOwned>(value: &serde_json::Value, what: &str) -> Result<T, SecretError> {
    serde_json::from_value(value.clone()).map_err(|error| SecretError::Broken(what.to_owned(), error.to_string()))
}

/// Deletes a pod whose result is recorded.
pub async fn delete_pod(caches: &Caches, pass: &Pass, names: &Names, task: &SnapshotPod) -> Result<(), WriteError> {
    let key = Key::new(&names.namespace, &task.pod);
    match pass.writer().delete(&caches.pods, &key, &task.uid, &task.version).await {
        Ok(()) | Err(WriteError::Gone(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// State of a pod that works on a cluster's data; `None` for another pod.
pub fn task(pod: &Pod) -> Option<SnapshotPod> {
    let job = SnapshotPodJob::of(pod.labels().get(names::COMPONENT)?)?;
    let annotation = |name: &str| pod.annotations().get(name).cloned();
    let created = pod.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Some(SnapshotPod {
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        version: pod.resource_version().unwrap_or_default(),
        job,
        state: state(pod, created),
        created,
        asked: annotation(names::SNAPSHOT),
        generation: annotation(GENERATION).and_then(|number| number.parse().ok()),
        purpose: annotation(PURPOSE),
        ending: pod.metadata.deletion_timestamp.is_some(),
        serves: serves(pod),
        said: termination_message(pod),
        etcd: annotation(ETCD),
    })
}

/// The address of the pod, if it is ready.
fn serves(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    status.pod_ip.clone().filter(|ip| ready && !ip.is_empty())
}

/// The termination message of its first container, if that succeeded.
fn termination_message(pod: &Pod) -> Option<String> {
    let first = pod.status.as_ref()?.init_container_statuses.as_ref()?.first()?;
    first.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code == 0)?.message.clone()
}

fn state(pod: &Pod, created: Timestamp) -> SnapshotPodState {
    let status = pod.status.clone().unwrap_or_default();
    let all: Vec<&ContainerStatus> =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()).collect();
    let ended = |one: &ContainerStatus| one.state.as_ref().and_then(|state| state.terminated.clone());
    match status.phase.as_deref() {
        Some("Succeeded") => {
            let last = all.last().and_then(|one| ended(one));
            SnapshotPodState::Succeeded(last.and_then(|last| last.message).unwrap_or_default())
        }
        Some("Failed") => {
            let failed = all.iter().find_map(|one| ended(one).filter(|end| end.exit_code != 0).map(|end| (one, end)));
            match failed {
                Some((one, end)) => {
                    let said = end.message.unwrap_or_default();
                    let said = said.trim().lines().last().unwrap_or_default();
                    let at = end.finished_at.map_or(created, |time| time.0);
                    SnapshotPodState::Failed(at, truncated(&format!("{}: {said}", one.name)))
                }
                None => {
                    SnapshotPodState::Failed(created, truncated(&status.message.or(status.reason).unwrap_or_default()))
                }
            }
        }
        _ => {
            let unplaced = status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled");
            let unplaced = unplaced.filter(|one| one.status == "False").and_then(|one| one.message.clone());
            let waiting = all.iter().find_map(|one| {
                let waiting = one.state.as_ref()?.waiting.clone()?;
                let reason = waiting.reason.filter(|reason| reason != "PodInitializing")?;
                Some(format!("{}: {reason} {}", one.name, waiting.message.unwrap_or_default()))
            });
            SnapshotPodState::Runs(truncated(&unplaced.or(waiting).unwrap_or_default()))
        }
    }
}
