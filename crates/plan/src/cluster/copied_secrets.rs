//! Secrets that a Cluster refers to: its pods mount copies of them, beside the control plane.

use std::collections::BTreeMap;

use fleetwright_api::{ClusterSpec, ClusterStatus, ControlPlaneComponent, SnapshotBucket, is_shared, names};
use sha2::{Digest, Sha256};

use super::Names;
use super::snapshots::pods::{KEY, STORE};

/// The Secret with the credentials of API servers for an external datastore.
pub const DATASTORE: &str = "etcd-external";

/// The Secret with configuration files of a component that contain secret data.
pub fn config(component: ControlPlaneComponent) -> String {
    format!("{}-secret-config", component.binary())
}

/// A Secret beside the control plane, composed of values of other Secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedSecret {
    /// Name of the copy.
    pub secret: String,
    /// Values of the copy; empty if the copy is no longer needed.
    pub parts: Vec<SecretValue>,
}

/// A value of a Secret in the namespace of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretValue {
    /// Name of the Secret.
    pub from: String,
    /// Data key in the Secret.
    pub key: String,
    /// Data key in the copy.
    pub to: String,
    /// Field of the Cluster that refers to the Secret.
    pub field: String,
    /// Whether the value is required.
    pub needed: bool,
    /// Access that the Secret has to allow.
    pub access: Access,
}

/// Access of a Cluster to a Secret, which the Secret has to allow by an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Pods that the operator creates use keys of fixed names: [`names::ALLOWED_CLUSTERS`].
    Use,
    /// Any key becomes a file that the administrator of the business cluster can read: [`names::READABLE_BY_CLUSTERS`].
    Read,
    /// [`Access::Use`] for an etcd, with keys that begin with this prefix: [`names::ALLOWED_ETCD_PREFIXES`] if it is not the Cluster's own.
    UseBelow(String),
}

/// Access that a Secret does not allow to a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessDenied {
    /// The annotation that would allow it.
    pub annotation: &'static str,
    /// The value that is missing in the annotation.
    pub lacks: String,
}

impl Access {
    /// Checks the annotations of a Secret.
    ///
    /// # Errors
    /// The annotations do not allow the access.
    pub fn check(&self, names: &Names, annotations: &BTreeMap<String, String>) -> Result<(), AccessDenied> {
        let demand = |annotation: &'static str, lacks: &str| match is_shared(
            annotations.get(annotation).map(String::as_str),
            lacks,
        ) {
            true => Ok(()),
            false => Err(AccessDenied { annotation, lacks: lacks.to_owned() }),
        };
        match self {
            Self::Use => demand(names::ALLOWED_CLUSTERS, &names.name),
            Self::Read => demand(names::READABLE_BY_CLUSTERS, &names.name),
            Self::UseBelow(prefix) => {
                demand(names::ALLOWED_CLUSTERS, &names.name)?;
                let below = prefix.strip_prefix(&format!("/{}/{}", names.fleet, names.name));
                match below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
                    true => Ok(()),
                    false => demand(names::ALLOWED_ETCD_PREFIXES, prefix),
                }
            }
        }
    }
}

/// The credentials of a snapshot store. The store may have an authority of its own.
pub fn store(bucket: &SnapshotBucket) -> CopiedSecret {
    let part = |(key, needed): (&str, bool)| SecretValue {
        from: bucket.secret_ref.name.clone(),
        key: key.to_owned(),
        to: key.to_owned(),
        field: "spec.snapshots.s3.secretRef".to_owned(),
        needed,
        access: Access::Use,
    };
    let parts = [("accessKeyId", true), ("secretAccessKey", true), ("ca.crt", false)].map(part).into();
    CopiedSecret { secret: STORE.to_owned(), parts }
}

/// Name of the Secret with the generated key of a Cluster's snapshots, in the namespace of the Cluster.
pub fn generated_key(cluster: &str) -> String {
    format!("{cluster}-snapshot-key")
}

/// Name of the Secret with the key that encrypts a Cluster's snapshots, and whether it is the generated one.
pub fn key_secret(names: &Names, spec: &ClusterSpec) -> (String, bool) {
    let named = spec.snapshots.as_ref().and_then(|policy| policy.encryption.as_ref());
    match named {
        Some(named) => (named.secret_ref.name.clone(), false),
        None => (generated_key(&names.name), true),
    }
}

/// The keys that encrypt and decrypt snapshots. To restore a snapshot of another Cluster, also that Cluster's key, if its Secret exists.
pub fn snapshot_keys(names: &Names, spec: &ClusterSpec, status: &ClusterStatus) -> CopiedSecret {
    let (secret, generated) = key_secret(names, spec);
    let field = if generated { "spec.snapshots" } else { "spec.snapshots.encryption.secretRef" };
    let part = |from: &str, key: &str, to: &str, field: &str, needed: bool| SecretValue {
        from: from.to_owned(),
        key: key.to_owned(),
        to: to.to_owned(),
        field: field.to_owned(),
        needed,
        access: Access::Use,
    };
    let mut parts = vec![part(&secret, "key", "key", field, true), part(&secret, "previous", "previous", field, false)];
    // Only during the restore: a Secret that is no longer shared must not block snapshots. A restore that replaces another one is checked before
    // that.
    let asked = spec.restore.as_ref().and_then(|restore| restore.cluster.as_deref());
    let asked = asked.filter(|cluster| *cluster != names.name);
    let other = status.restoring.as_ref().and_then(|one| asked.or_else(|| Some(one.snapshot.split_once('/')?.0)));
    if let Some(other) = other {
        parts.push(part(&generated_key(other), "key", "other", "spec.restore.cluster", false));
    }
    CopiedSecret { secret: KEY.to_owned(), parts }
}

/// All copies that the pods of a control plane may need.
pub fn required_copies(spec: &ClusterSpec) -> Vec<CopiedSecret> {
    let mut all = Vec::new();
    if let Some(external) = &spec.datastore.external {
        let access = external.prefix.clone().map_or(Access::Use, Access::UseBelow);
        let part = |key: &str| SecretValue {
            from: external.secret_ref.name.clone(),
            key: key.to_owned(),
            to: key.to_owned(),
            field: "spec.datastore.external.secretRef".to_owned(),
            needed: true,
            access: access.clone(),
        };
        all.push(CopiedSecret {
            secret: DATASTORE.to_owned(),
            parts: ["ca.crt", "tls.crt", "tls.key"].map(part).into(),
        });
    }
    for component in ControlPlaneComponent::ALL {
        let files = spec.components.of(component).map(|given| given.config.as_slice()).unwrap_or_default();
        let parts = files.iter().filter_map(|file| {
            let secret = file.secret.as_ref()?;
            let field = format!("spec.components.{}.config[{}].secret", component.field(), file.name);
            let (from, key, to) = (secret.name.clone(), secret.key.clone(), file.name.clone());
            Some(SecretValue { from, key, to, field, needed: true, access: Access::Read })
        });
        all.push(CopiedSecret { secret: config(component), parts: parts.collect() });
    }
    all
}

/// Digest of a copy, by which a change is detected without its values.
pub fn digest<'a>(data: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let sorted: BTreeMap<&str, &[u8]> = data.into_iter().collect();
    let mut all = Sha256::new();
    for (key, value) in sorted {
        all.update((key.len() as u64).to_le_bytes());
        all.update(key);
        all.update((value.len() as u64).to_le_bytes());
        all.update(value);
    }
    all.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use fleetwright_api::{Datastore, ExternalDatastore};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_cluster_refers_to_is_copied_and_nothing_else() {
        let mut spec = ClusterSpec::of("v1");
        assert!(required_copies(&spec).iter().all(|one| one.parts.is_empty()));
        let external = json!({ "endpoints": ["https://10.0.0.5:2379"], "secretRef": { "name": "shared-etcd" } });
        let external: ExternalDatastore = serde_json::from_value(external).unwrap();
        spec.datastore = Datastore { etcd: None, external: Some(external) };
        let files = json!({ "config": [
            { "name": "encryption.yaml", "secret": { "name": "keys", "key": "config" } },
            { "name": "audit.yaml", "content": "kind: Policy" },
        ] });
        spec.components.apiserver = Some(serde_json::from_value(files).unwrap());
        let all: Vec<_> = required_copies(&spec).into_iter().filter(|one| !one.parts.is_empty()).collect();
        let names: Vec<_> = all.iter().map(|one| one.secret.as_str()).collect();
        assert_eq!(names, ["etcd-external", "kube-apiserver-secret-config"]);
        let keys: Vec<_> = all[0].parts.iter().map(|part| (part.from.as_str(), part.to.as_str())).collect();
        assert_eq!(keys, [("shared-etcd", "ca.crt"), ("shared-etcd", "tls.crt"), ("shared-etcd", "tls.key")]);
        let part = &all[1].parts[0];
        assert_eq!((&*part.from, &*part.key, &*part.to), ("keys", "config", "encryption.yaml"));
        assert_eq!(part.field, "spec.components.apiserver.config[encryption.yaml].secret");
        assert_eq!((&all[0].parts[0].access, &part.access), (&Access::Use, &Access::Read));
        if let Some(external) = &mut spec.datastore.external {
            external.prefix = Some("/registry".to_owned());
        }
        assert_eq!(required_copies(&spec)[0].parts[2].access, Access::UseBelow("/registry".to_owned()));
    }

    #[test]
    fn a_snapshot_that_takes_the_place_of_another_is_opened_with_its_own_key() {
        let names = Names::of("fleet", "pay");
        let (mut spec, mut status) = (ClusterSpec::of("v1"), ClusterStatus::default());
        let other = |spec: &ClusterSpec, status: &ClusterStatus| {
            let parts = snapshot_keys(&names, spec, status).parts;
            parts.into_iter().find(|part| part.to == "other").map(|part| part.from)
        };
        spec.restore = Some(serde_json::from_value(json!({ "snapshot": "b", "cluster": "shop" })).unwrap());
        assert_eq!(other(&spec, &status), None);
        let restoring = json!({ "snapshot": "hr/a", "stage": "Restoring", "startedAt": "2026-11-17T12:00:00Z" });
        status.restoring = Some(serde_json::from_value(restoring).unwrap());
        assert_eq!(other(&spec, &status).as_deref(), Some("shop-snapshot-key"));
        spec.restore = None;
        assert_eq!(other(&spec, &status).as_deref(), Some("hr-snapshot-key"));
    }

    #[test]
    fn a_secret_allows_each_use_by_itself() {
        let names = Names::of("fleet", "pay");
        let denied = |access: &Access, annotations: &[(&str, &str)]| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            access.check(&names, &annotations).err().map(|denied| denied.annotation)
        };
        let (used, read) = ((names::ALLOWED_CLUSTERS, "*"), (names::READABLE_BY_CLUSTERS, "pay"));
        assert_eq!(denied(&Access::Use, &[used]), None);
        assert_eq!(denied(&Access::Use, &[read]), Some(names::ALLOWED_CLUSTERS));
        assert_eq!(denied(&Access::Read, &[used]), Some(names::READABLE_BY_CLUSTERS));
        assert_eq!(denied(&Access::Read, &[read]), None);
        let below = |prefix: &str| Access::UseBelow(prefix.to_owned());
        for own in ["/fleet/pay", "/fleet/pay/blue"] {
            assert_eq!(denied(&below(own), &[used]), None, "{own}");
            assert_eq!(denied(&below(own), &[]), Some(names::ALLOWED_CLUSTERS), "{own}");
        }
        for others in ["/fleet/shop", "/fleet/pay-01", "/fleet", "/registry", "/other/fleet/pay"] {
            assert_eq!(denied(&below(others), &[used]), Some(names::ALLOWED_ETCD_PREFIXES), "{others}");
        }
        let allowed = (names::ALLOWED_ETCD_PREFIXES, "/registry, /old/*");
        assert_eq!(denied(&below("/registry"), &[used, allowed]), None);
        assert_eq!(denied(&below("/old/pay"), &[used, allowed]), None);
        assert_eq!(denied(&below("/registry/pay"), &[used, allowed]), Some(names::ALLOWED_ETCD_PREFIXES));
        assert_eq!(denied(&below("/registry"), &[allowed]), Some(names::ALLOWED_CLUSTERS));
    }

    #[test]
    fn a_value_that_moves_from_one_key_to_the_next_is_another_digest() {
        let of = |all: &[(&str, &str)]| digest(all.iter().map(|(key, value)| (*key, value.as_bytes())));
        assert_eq!(of(&[("a", "1"), ("b", "2")]), of(&[("b", "2"), ("a", "1")]));
        assert_ne!(of(&[("a", "1b"), ("c", "2")]), of(&[("a", "1"), ("bc", "2")]));
    }
}
