//! Decisions about a Cluster: the objects of its control plane, its certificates, and the next steps.

pub mod arguments;
pub mod certificates;
pub mod cluster_plan;
mod components;
pub mod copied_secrets;
pub mod datastore;
mod decide;
pub mod diff;
pub(crate) mod etcd_data;
pub mod extensions;
pub mod heal;
pub mod keys;
pub mod limits;
pub mod members;
pub mod networks;
pub mod object_drift;
pub mod objects;
mod observed;
mod pods;
pub mod policies;
pub mod preflight;
mod proofs;
pub mod release;
pub mod restore;
mod rotation;
pub mod snapshots;
pub mod soak;
mod stage;
mod status;
mod step;
pub mod survey;
#[cfg(test)]
mod tests;
mod unchanged;
pub mod unrecorded_namespace;
pub mod upgrade_path;

use std::collections::BTreeMap;
use std::fmt;

use fleetwright_api::{ClusterStatus, names};
use sha2::{Digest, Sha256};

pub use components::{Change, Waiting};
pub use decide::{Decision, decide};
pub use observed::{FailedProofs, LiveObject, Objects, Observed, Proof, Replica, Workload};
pub use proofs::{PROVE_EVERY, ProofTarget};
pub use rotation::{ObservedAuthority, RotationAction, TrustDistribution, TrustQuery, anchor_digest};
pub use snapshots::NewSnapshot;
pub use status::{StatusInputs, deletion_paused, failed_pass_status, not_accepted, status};
pub use unchanged::{UnchangedComponent, content_hash};

/// The longest name of a namespace.
const MAX_NAME: usize = 63;
/// Bytes of the digest in a long name: enough against an attacker who searches for names with the same digest.
const DIGEST: usize = 16;

/// Whether a name has the form that is reserved for long names.
fn ends_with_digest(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, end)| {
        end.len() == 2 * DIGEST && end.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Names of the parts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Namespace of the Cluster.
    pub fleet: String,
    /// Name of the Cluster.
    pub name: String,
    /// Namespace of its control plane.
    pub namespace: String,
}

impl Names {
    /// Names for the Cluster with that name in that namespace. Two Clusters never share a namespace of the control plane: a name that is too long for
    /// a namespace ends with a digest, and so does a name that already has the form of one with a digest.
    pub fn of(fleet: &str, name: &str) -> Self {
        let mut namespace = format!("{fleet}-{name}");
        if namespace.len() > MAX_NAME || ends_with_digest(&namespace) {
            let digest = digest(&format!("{fleet}/{name}"), DIGEST);
            namespace.truncate(MAX_NAME - 2 * DIGEST - 1);
            namespace = format!("{}-{digest}", namespace.trim_end_matches('-'));
        }
        Self { fleet: fleet.to_owned(), name: name.to_owned(), namespace }
    }

    /// The same with another namespace of the control plane, such as one that an earlier version named differently. The caller has to check that it
    /// belongs to this Cluster.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    /// Whether an object with these labels belongs to this Cluster.
    pub fn owns(&self, labels: &BTreeMap<String, String>) -> bool {
        let is = |key: &str, value: &str| labels.get(key).is_some_and(|label| label == value);
        is(names::CLUSTER, &self.name) && is(names::CLUSTER_NAMESPACE, &self.fleet)
    }

    /// Whether the namespace with that uid is the one that the status records. Earlier versions recorded only its name.
    pub fn is_recorded(&self, status: Option<&ClusterStatus>, uid: &str) -> bool {
        status.is_some_and(|status| match &status.namespace_uid {
            Some(recorded) => recorded == uid,
            None => status.namespace.as_ref() == Some(&self.namespace),
        })
    }

    /// Labels of every object of the cluster.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (names::CLUSTER, self.name.as_str()),
            (names::CLUSTER_NAMESPACE, self.fleet.as_str()),
            ("app.kubernetes.io/managed-by", "fleetwright"),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    /// The same labels as arguments of `kubectl label`, for messages.
    pub fn label_arguments(&self) -> String {
        let labels: Vec<_> = self.labels().iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.join(" ")
    }

    /// DNS name in the certificates of the API servers by which the operator verifies them at any address.
    pub fn apiserver(&self) -> String {
        format!("kube-apiserver.{}.svc", self.namespace)
    }

    /// The same name for etcd.
    pub fn etcd(&self) -> String {
        format!("etcd.{}.svc", self.namespace)
    }

    fn etcd_member(&self, number: u32) -> String {
        format!("etcd-{number}.etcd.{}.svc", self.namespace)
    }

    fn etcd_clients(&self, members: u32) -> Vec<String> {
        (0..members).map(|number| format!("https://{}:{}", self.etcd_member(number), objects::ETCD_PORT)).collect()
    }

    fn etcd_peers(&self, members: u32) -> String {
        let peer = |number| format!("etcd-{number}=https://{}:2380", self.etcd_member(number));
        (0..members).map(peer).collect::<Vec<_>>().join(",")
    }
}

/// Prefix of the digest of a text, with that number of bytes in hex.
pub(crate) fn digest(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// The first of many names, for messages.
pub fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = names.len().saturating_sub(SHOWN);
    let text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// A number with its noun: `1 replica`, `2 replicas`.
pub fn counted(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
