//! The keys of a cluster inside its snapshots.
//!
//! The Cluster-Operator seals them with the key of the cluster's snapshots into the Secret [`CLUSTER_KEYS`]; the pod of a snapshot stores these bytes as they
//! are, beside the snapshot. So the key of snapshots, kept outside the meta cluster, is enough to get the keys back after the control plane's Secrets, their
//! sealed copy and what opens that copy are lost.

use std::collections::BTreeMap;
use std::fmt;

use fleetwright_pki::SealKey;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::Names;
use super::super::keys::key_digest;

/// The Secret beside the control plane that pods of snapshots mount. Its data is in [`SEALED_DATA`](super::super::keys::SEALED_DATA).
pub const CLUSTER_KEYS: &str = "cluster-keys";

/// The keys of a cluster, opened.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterKeys {
    /// The namespace of the control plane.
    pub namespace: String,
    /// The data of each Secret, by its name.
    pub secrets: BTreeMap<String, BTreeMap<String, String>>,
}

/// Names alone: what is secret is in no log.
impl fmt::Debug for ClusterKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClusterKeys")
            .field("namespace", &self.namespace)
            .field("secrets", &self.secrets.keys())
            .finish()
    }
}

impl ClusterKeys {
    /// The digest of each key, by the name of its Secret.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let digest = |data: &BTreeMap<String, String>| {
            key_digest(data.iter().map(|(key, value)| (key.as_str(), value.as_bytes())))
        };
        self.secrets.iter().map(|(name, data)| (name.clone(), digest(data))).collect()
    }

    /// Encrypts them for snapshots of that Cluster, which is `NAMESPACE/NAME`.
    ///
    /// # Errors
    /// When the library fails.
    pub fn seal(&self, key: &SealKey, cluster: &str) -> Result<Vec<u8>, String> {
        let plain = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        key.seal(&purpose(cluster), &plain).map_err(|error| error.to_string())
    }

    /// Decrypts what [`ClusterKeys::seal`] made; none if it was sealed with another key or for another Cluster, or was changed since.
    pub fn open(key: &SealKey, cluster: &str, sealed: &[u8]) -> Option<Self> {
        let plain = key.open(&purpose(cluster), sealed).ok()?;
        serde_json::from_slice(&plain).ok()
    }

    /// The Secrets as the operator creates them, for a person who lost them.
    pub fn objects(&self, cluster: &str) -> Vec<Value> {
        let (fleet, name) = cluster.split_once('/').unwrap_or_default();
        let labels = Names::of(fleet, name).labels();
        let object = |(name, data): (&String, &BTreeMap<String, String>)| {
            let data: BTreeMap<_, _> =
                data.iter().map(|(key, value)| (key, ByteString(value.clone().into_bytes()))).collect();
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": { "name": name, "namespace": self.namespace, "labels": labels },
                "data": data,
            })
        };
        self.secrets.iter().map(object).collect()
    }
}

/// What they are sealed for: neither those of another Cluster nor the copy in the namespace of the operators is opened in their place.
fn purpose(cluster: &str) -> String {
    format!("snapshots of the keys of Cluster {cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_opened_by_the_key_that_sealed_them_and_for_their_cluster_alone() {
        let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let ca = BTreeMap::from([text("tls.crt", "certificate"), text("tls.key", "PRIVATE KEY")]);
        let keys = ClusterKeys { namespace: "fleet-pay".to_owned(), secrets: [("ca".to_owned(), ca)].into() };
        let (own, other) = (SealKey::generate().unwrap(), SealKey::generate().unwrap());
        let sealed = keys.seal(&own, "fleet/pay").unwrap();
        assert!(!sealed.windows(7).any(|part| part == b"PRIVATE"));
        assert_ne!(sealed, keys.seal(&own, "fleet/pay").unwrap(), "no nonce is used twice");
        assert!(ClusterKeys::open(&own, "fleet/pay", &sealed).as_ref() == Some(&keys));
        assert!(ClusterKeys::open(&other, "fleet/pay", &sealed).is_none());
        assert!(ClusterKeys::open(&own, "fleet/shop", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(ClusterKeys::open(&own, "fleet/pay", &changed).is_none(), "byte {at}");
        }
        assert!(!format!("{keys:?}").contains("PRIVATE"));

        let objects = keys.objects("fleet/pay");
        assert_eq!(objects.len(), 1);
        let metadata = &objects[0]["metadata"];
        assert_eq!((metadata["name"].as_str(), metadata["namespace"].as_str()), (Some("ca"), Some("fleet-pay")));
        assert_eq!(metadata["labels"], json!(Names::of("fleet", "pay").labels()));
        assert_eq!(objects[0]["data"]["tls.key"], json!(ByteString(b"PRIVATE KEY".to_vec())));
    }
}
