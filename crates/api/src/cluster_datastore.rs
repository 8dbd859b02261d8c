use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{SecretRef, Span, cluster_text, text};

/// Datastore of a cluster. Exactly one field must be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.etcd) != has(self.external)")
    .message("a cluster has one datastore: give exactly one of etcd (run for it) and external (run by you)"))]
#[x_kube(validation = Rule::new("has(self.etcd) == has(oldSelf.etcd)")
    .message("a cluster's objects do not move between an etcd of its own and an external one: make another Cluster with the datastore wanted and move what runs here")
    .reason(Reason::FieldValueForbidden))]
pub struct Datastore {
    /// An etcd that the operator runs beside the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdDatastore>,
    /// An etcd that you run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalDatastore>,
}

impl Default for Datastore {
    fn default() -> Self {
        Self { etcd: Some(EtcdDatastore::default()), external: None }
    }
}

/// An etcd that the operator runs beside the control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdDatastore {
    /// Number of etcd members: 1, 3, 5 or 7. With three, one member may be lost without interruption.
    /// With one, its loss loses everything that is not in a snapshot.
    /// The operator reaches a new number one member at a time, while the other members are healthy.
    #[serde(default = "EtcdDatastore::default_members")]
    #[schemars(schema_with = "cluster_text::members")]
    pub members: u32,
    /// Volume of each member.
    #[serde(default)]
    pub storage: EtcdStorage,
}

impl EtcdDatastore {
    fn default_members() -> u32 {
        3
    }
}

impl Default for EtcdDatastore {
    fn default() -> Self {
        Self { members: Self::default_members(), storage: EtcdStorage::default() }
    }
}

/// Volume of an etcd member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!isQuantity(string(self.size)) || !isQuantity(string(oldSelf.size)) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0")
    .message("a volume grows but does not shrink: put the old size back, or make another Cluster")
    .field_path(".size")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("has(self.class) == has(oldSelf.class) && (!has(self.class) || self.class == oldSelf.class)")
    .message("a volume keeps its class: put the old one back, or make another Cluster")
    .field_path(".class")
    .reason(Reason::FieldValueForbidden))]
pub struct EtcdStorage {
    /// Size of the volume. It can be increased if the StorageClass allows expansion.
    #[serde(default = "EtcdStorage::default_size")]
    #[schemars(schema_with = "cluster_text::size")]
    pub size: Quantity,
    /// Name of the StorageClass. If omitted, the default of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub class: Option<String>,
}

impl EtcdStorage {
    /// Enough for a database of 8 GiB, the most that etcd recommends, and its write-ahead log.
    fn default_size() -> Quantity {
        Quantity("10Gi".to_owned())
    }
}

impl Default for EtcdStorage {
    fn default() -> Self {
        Self { size: Self::default_size(), class: None }
    }
}

/// An etcd that you run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.prefix) == has(oldSelf.prefix) && (!has(self.prefix) || self.prefix == oldSelf.prefix)")
    .message("under another prefix the cluster would be empty: put the old one back, or make another Cluster")
    .field_path(".prefix")
    .reason(Reason::FieldValueForbidden))]
pub struct ExternalDatastore {
    /// Client URLs of the members, such as `https://10.0.0.5:2379`.
    #[schemars(schema_with = "cluster_text::endpoints")]
    pub endpoints: Vec<String>,
    /// Name of the Secret in the same namespace with the client certificate (`tls.crt`, `tls.key`) and the authority of the servers (`ca.crt`).
    /// Its annotation `fleetwright.io/allowed-clusters` must name this Cluster.
    pub secret_ref: SecretRef,
    /// Prefix of the keys of this cluster in etcd, so that several clusters can share one etcd.
    /// If omitted, `/NAMESPACE/NAME` of the Cluster; that prefix and those below it need no further permission.
    /// Any other prefix must be listed in the annotation `fleetwright.io/allowed-etcd-prefixes` of the Secret. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::prefix")]
    pub prefix: Option<String>,
}

/// When snapshots are taken, and where they are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.volume) || !has(self.s3)")
    .message("snapshots are kept in one place: give volume or s3, or neither for a volume of the default class"))]
pub struct Snapshots {
    /// Interval between snapshots. With `0s`, snapshots are taken only before upgrades and on request.
    #[serde(default = "Snapshots::default_every")]
    #[x_kube(validation = Rule::new("duration(self) == duration('0s') || duration(self) >= duration('1m')")
        .message("must be a minute at least, such as 6h, or 0s for only before upgrades and when asked"))]
    pub every: Span,
    /// Number of snapshots that are kept.
    #[serde(default = "Snapshots::default_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
    /// Stores snapshots on a volume beside the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<SnapshotVolume>,
    /// Stores snapshots in a bucket of an S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<SnapshotBucket>,
    /// Key that encrypts the snapshots. If omitted, the operator generates one, once, in the Secret `NAME-snapshot-key` in the namespace of the Cluster.
    /// Keep a copy of it elsewhere: without it no snapshot can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<SnapshotEncryption>,
}

/// Key that encrypts snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotEncryption {
    /// Name of the Secret in the same namespace with 32 random bytes in `key`.
    /// After `key` changes, older snapshots can be restored while the old bytes are in `previous`.
    /// Its annotation `fleetwright.io/allowed-clusters` must name this Cluster.
    pub secret_ref: SecretRef,
}

impl Snapshots {
    fn default_every() -> Span {
        Span::minutes(6 * 60)
    }

    fn default_keep() -> u32 {
        28
    }
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { every: Self::default_every(), keep: Self::default_keep(), volume: None, s3: None, encryption: None }
    }
}

/// Volume for snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotVolume {
    /// Size of the volume. When it is full, the oldest snapshots are deleted first, even if fewer than `keep` remain.
    /// It can be increased if the StorageClass allows expansion.
    #[serde(default = "SnapshotVolume::default_size")]
    #[schemars(schema_with = "cluster_text::size")]
    pub size: Quantity,
    /// Name of the StorageClass. If omitted, the default of the meta cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub class: Option<String>,
}

impl SnapshotVolume {
    fn default_size() -> Quantity {
        Quantity("20Gi".to_owned())
    }
}

impl Default for SnapshotVolume {
    fn default() -> Self {
        Self { size: Self::default_size(), class: None }
    }
}

/// Bucket for snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.endpoint.startsWith('https://') || (has(self.insecure) && self.insecure)")
    .message("without TLS everybody on the way to the store can read and replace what is sent: use https, or set insecure to true")
    .field_path(".endpoint"))]
pub struct SnapshotBucket {
    /// URL of the store, such as `https://s3.example.com`.
    #[schemars(schema_with = "cluster_text::store")]
    pub endpoint: String,
    /// Name of the bucket.
    #[schemars(schema_with = "cluster_text::bucket")]
    pub bucket: String,
    /// Region that requests are signed for.
    #[serde(default = "SnapshotBucket::default_region")]
    #[schemars(schema_with = "text::dns_label")]
    pub region: String,
    /// Prefix of object names, below `NAMESPACE/NAME/` of the Cluster. Object names always start with these two, so that no Cluster reads or writes the
    /// snapshots of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::object_prefix")]
    pub prefix: Option<String>,
    /// Name of the Secret in the same namespace with `accessKeyId`, `secretAccessKey` and, if the certificate of the store is not publicly trusted, `ca.crt`.
    /// Its annotation `fleetwright.io/allowed-clusters` must name this Cluster.
    pub secret_ref: SecretRef,
    /// Allows an endpoint without TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

impl SnapshotBucket {
    fn default_region() -> String {
        "us-east-1".to_owned()
    }
}

/// Restore of a datastore from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.cluster) || !has(self.allowUnencrypted) || !self.allowUnencrypted")
    .message("a snapshot of another Cluster is restored with the key that its owner shares: leave allowUnencrypted out")
    .field_path(".allowUnencrypted")
    .reason(Reason::FieldValueForbidden))]
pub struct Restore {
    /// Name of the snapshot, as in `status.lastSnapshot`. To restore the same snapshot again, remove `restore` first.
    #[schemars(schema_with = "cluster_text::snapshot")]
    pub snapshot: String,
    /// Name of another Cluster in the same namespace whose snapshot is restored. The snapshot must be in the same bucket.
    /// The Secret with the snapshot key of that Cluster must name this Cluster in its annotation `fleetwright.io/allowed-clusters`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::object_name")]
    pub cluster: Option<String>,
    /// Allows restoring a snapshot that is not encrypted. Such a snapshot cannot be authenticated: anybody with write access to its storage can replace it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unencrypted: bool,
}
