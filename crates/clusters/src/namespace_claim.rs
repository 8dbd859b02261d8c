//! The namespace of a Cluster: the one that the operator created for it.
//!
//! Labels are no proof. A person who may create namespaces could prepare one for a future Cluster, and keep rights in it or leave pods in it that
//! wait for the keys of the control plane. Therefore the status of the Cluster records the uid of its namespace, from the API server's answer to the
//! create, before anything is written into the namespace.
//!
//! A crash between the two loses the uid. A sealed annotation then shows that the operator created the namespace, or that somebody copied the
//! annotation to another namespace of the same name. The operator cannot tell which, so it deletes that namespace and creates another one. The
//! annotation is valid for one Cluster and one creation: as soon as a uid is recorded, it proves nothing.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fleetwright_api::Cluster;
use fleetwright_kit::events::Level;
use fleetwright_kit::{JsonPatch, Key, Pass, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::keys::SEAL;
use fleetwright_plan::cluster::unrecorded_namespace::{NamespaceDecision, UnrecordedNamespace};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube::api::PropagationPolicy;
use serde_json::json;

use crate::access::{self, Account};
use crate::caches::Caches;
use crate::cluster::{Clusters, Done, Found};
use crate::errors::ActError;
use crate::keys::seal;
use crate::secrets::SecretError;
use crate::view::NamespaceView;

/// The namespace that this process created last for each Cluster: the uids of the Cluster and of the namespace. It is used if the write of the status
/// failed.
pub type CreatedNamespaces = HashMap<Key, (String, String)>;

/// The value of [`CREATION_PROOF`](fleetwright_api::names::CREATION_PROOF) for the namespace that is created next.
pub async fn prove(caches: &Caches, pass: &Pass, names: &Names, cluster: &Cluster) -> Result<String, SecretError> {
    let sealed = seal(caches, pass, names).await?.seal(&purpose(names, cluster), &[]);
    let sealed = sealed.map_err(|error| SecretError::Broken(SEAL.to_owned(), error.to_string()))?;
    Ok(BASE64_STANDARD.encode(sealed))
}

/// Whether that namespace, which has the labels of the Cluster, has the proof of the creation after the recorded one. Another namespace may have a
/// copy of it.
pub async fn is_proven(
    caches: &Caches,
    pass: &Pass,
    names: &Names,
    cluster: &Cluster,
    namespace: &NamespaceView,
) -> Result<bool, SecretError> {
    let Some(proof) = namespace.proof.as_deref().and_then(|proof| BASE64_STANDARD.decode(proof).ok()) else {
        return Ok(false);
    };
    Ok(seal(caches, pass, names).await?.open(&purpose(names, cluster), &proof).is_ok())
}

/// The purpose that a proof is sealed with. It contains the previous namespace of the Cluster: a person who deletes that namespace cannot reuse its
/// proof.
fn purpose(names: &Names, cluster: &Cluster) -> String {
    let before = cluster.status.as_ref().and_then(|status| status.namespace_uid.as_deref());
    let (uid, before) = (cluster.uid().unwrap_or_default(), before.unwrap_or("none"));
    format!("namespace {} of Cluster {}/{} {uid} after {before}", names.namespace, names.fleet, names.name)
}

/// Deletes that namespace. The operator has that right by its RoleBinding there: a missing one is created first, and the delete is retried when the
/// cache has it.
pub async fn discard(
    caches: &Caches,
    pass: &Pass,
    names: &Names,
    account: Option<Account>,
    namespace: &NamespaceView,
) -> Result<(), WriteError> {
    if namespace.ending {
        return Ok(());
    }
    if !access::is_bound(caches, names) {
        return access::bind(caches, pass, names, account).await;
    }
    let key = Key::cluster(&names.namespace);
    pass.writer().delete_uid::<Namespace>(&key, &namespace.uid, PropagationPolicy::Background).await.map(drop)
}

/// The command by which a person assigns a namespace to the Cluster. It needs the right to write `clusters/status`, which authors of Clusters do not
/// have.
pub fn adopt(names: &Names, uid: &str) -> String {
    let status = json!({ "status": { "namespaceUid": uid } });
    format!("kubectl patch cluster {} -n {} --subresource=status --type=merge -p '{status}'", names.name, names.fleet)
}

impl Clusters {
    pub(crate) fn created(&self) -> MutexGuard<'_, CreatedNamespaces> {
        // No panic leaves the map half changed, so a poisoned lock is usable.
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out the decision about an unrecorded namespace.
    pub(crate) async fn claim(&self, pass: &Pass, found: &Found, namespace: &NamespaceView) -> Result<Done, ActError> {
        let (names, cluster) = (&found.names, &found.cluster.0);
        let created = self.created().get(pass.key()).cloned();
        let created = created.is_some_and(|(of, uid)| of == found.uid() && *uid == *namespace.uid);
        let unrecorded = UnrecordedNamespace {
            created,
            proven: !created && is_proven(&self.caches, pass, names, cluster, namespace).await?,
            empty: self.caches.is_empty(&names.namespace),
            since: namespace.created,
        };
        match unrecorded.fate(pass.now()) {
            NamespaceDecision::Record => Ok(Done::Recorded(namespace.uid.to_string())),
            NamespaceDecision::Wait(at) => Ok(Done::Kept { waits: None, next: Some(at), trouble: None }),
            NamespaceDecision::Refuse => {
                Err(ActError::Unproven { names: names.clone(), uid: namespace.uid.to_string() })
            }
            NamespaceDecision::Recreate => {
                // The cache may not have the record of another process yet: a namespace in use is not deleted.
                let version = cluster.metadata.resource_version.as_deref().unwrap_or_default();
                let test = JsonPatch::new().test_version(version);
                pass.writer().json_patch(&self.caches.clusters, pass.key(), test).await?;
                discard(&self.caches, pass, names, self.account, namespace).await?;
                let message = format!(
                    "Namespace {} with uid {} was not recorded when it was created; recreating it",
                    names.namespace, namespace.uid
                );
                self.publish_event(pass, found, Level::Warning, "NamespaceRecreated", &message).await;
                Ok(Done::KEPT)
            }
        }
    }
}
