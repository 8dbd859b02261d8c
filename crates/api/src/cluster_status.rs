use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, ControlPlaneComponent, Status, StepProgress, cluster_text};

/// Observed state of a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The `metadata.generation` of the Cluster that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Current phase of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClusterPhase>,
    /// What the cluster waits for, in one sentence. Omitted if it waits for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub waiting_for: Option<String>,
    /// URL at which clients reach the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub endpoint: Option<String>,
    /// Namespace of the meta cluster in which the control plane runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// UID of that namespace. The operator does not use another namespace with the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace_uid: Option<String>,
    /// Package version of the cluster. During an upgrade or rollback, the package version that it is being changed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub package_version: Option<String>,
    /// Kubernetes version of that package version. If the package version no longer exists, a change is checked against this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub kubernetes: Option<String>,
    /// Package version before the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub previous: Option<String>,
    /// Kubernetes minor that a newer minor emulates, so that a rollback to it is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub emulates: Option<String>,
    /// Start of the emulation: when the new minor was proven to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_since: Option<Timestamp>,
    /// Earliest end of the emulation: `soakSince` plus `spec.upgrade.soak`, which may be changed at any time.
    /// The emulation ends after this time as soon as nothing blocks it; the condition `UpgradeCompletable` shows what blocks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_until: Option<Timestamp>,
    /// Set when the soak has ended and the components are being restarted without emulation. No rollback that keeps every write is possible any more.
    /// Written before the first component is restarted, and removed when every API server is proven and emulates nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finishing: Option<FinishingUpgrade>,
    /// Current step of the operator for this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// The change that failed and was rolled back.
    /// The operator does not try it again until another package version is requested or a person requests a retry with the annotation `fleetwright.io/retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedChange>,
    /// State of each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub components: Vec<ClusterComponentStatus>,
    /// The etcd members: how many run, which version they have, and which member is being added, removed or replaced. Omitted if etcd is external.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStatus>,
    /// The replica that was last recreated because it did not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedReplica>,
    /// State of each extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub extensions: Vec<ExtensionStatus>,
    /// Expiry of each certificate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub certificates: Vec<CertificateStatus>,
    /// The authorities and the key of service-account tokens that the cluster uses. Each key is recorded before its first use.
    /// A recorded key is never regenerated in place: a lost Secret is restored from the sealed copy, with the same key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub keys: Vec<KeyStatus>,
    /// The value of `certificates.rotateAuthorities` that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub authorities: Option<String>,
    /// The replacement of the authorities that is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// The last snapshot that was taken and checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot: Option<SnapshotStatus>,
    /// Names of all stored snapshots, newest first; at most a hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    pub snapshots: Vec<String>,
    /// The value of the annotation `fleetwright.io/snapshot` that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed_snapshot_request: Option<String>,
    /// The snapshot that the datastore was last restored from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
    /// The restore that is in progress: its snapshot and its stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restoring: Option<Restoring>,
    /// The value of `spec.restore.snapshot` that the operator last acted on. Cleared when `spec.restore` is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub observed_restore: Option<String>,
    /// The value of the annotation `fleetwright.io/retry` that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed_retry: Option<String>,
    /// Conditions of the cluster, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Phase of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterPhase {
    /// The cluster is being created.
    Creating,
    /// The cluster matches its spec and is proven to work.
    Ready,
    /// The cluster is being changed to another package version.
    Upgrading,
    /// The cluster runs a new minor, emulates the old one, and can be rolled back.
    Soaking,
    /// The cluster is being rolled back to its previous package version.
    RollingBack,
    /// A part of the cluster is being repaired.
    Repairing,
    /// A part of the cluster does not work.
    Degraded,
    /// The datastore is being restored from a snapshot.
    Restoring,
    /// The cluster is being deleted.
    Deleting,
}

impl ClusterPhase {
    /// All phases, in the order of the life of a cluster.
    pub const ALL: [Self; 9] = [
        Self::Creating,
        Self::Ready,
        Self::Upgrading,
        Self::Soaking,
        Self::RollingBack,
        Self::Repairing,
        Self::Degraded,
        Self::Restoring,
        Self::Deleting,
    ];

    /// Returns the name of the phase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Ready => "Ready",
            Self::Upgrading => "Upgrading",
            Self::Soaking => "Soaking",
            Self::RollingBack => "RollingBack",
            Self::Repairing => "Repairing",
            Self::Degraded => "Degraded",
            Self::Restoring => "Restoring",
            Self::Deleting => "Deleting",
        }
    }
}

/// State of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterComponentStatus {
    /// The component.
    pub component: ControlPlaneComponent,
    /// Desired version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub desired: Option<String>,
    /// Version of all replicas; omitted while the replicas have different versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub observed: Option<String>,
    /// State of each replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub replicas: Vec<ReplicaStatus>,
}

/// State of one pod of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// Name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Version that the pod reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Whether the pod is ready in the meta cluster.
    #[serde(default)]
    pub ready: bool,
    /// Time at which the replica was last proven to work, by real work through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_at: Option<Timestamp>,
    /// Details for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A replica that did not work and is recreated. Written before the pod is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedReplica {
    /// Component of the replica.
    pub component: ControlPlaneComponent,
    /// Name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the pod.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Time of the replacement.
    pub at: Timestamp,
    /// Number of consecutive replacements. The delay before the next replacement grows with it.
    #[schemars(range(min = 1))]
    pub times: u32,
    /// Why the replica is recreated.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// State of one extension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionStatus {
    /// Name of the extension.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Whether the extension is applied and its checks pass.
    #[serde(default)]
    pub ready: Status,
    /// Machine-readable reason, one word in CamelCase.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Digest of the applied objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub applied: Option<String>,
}

/// Expiry of one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Name of the Secret that contains the certificate.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Time at which the certificate expires.
    pub not_after: Timestamp,
}

/// One authority, or the key of service-account tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyStatus {
    /// Name of the Secret that contains the key.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// SHA-256 fingerprint of the signing certificate, or of the public key.
    #[schemars(length(max = 64))]
    pub fingerprint: String,
    /// Digest of all data in the Secret that belongs to the key, including additionally trusted authorities and the authority that signs next.
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// Progress of a replacement of the authorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The value of `certificates.rotateAuthorities` that requests the replacement.
    #[schemars(length(max = 63))]
    pub value: String,
    /// Current phase of the replacement.
    pub phase: RotationPhase,
    /// Start of the phase.
    pub since: Timestamp,
}

/// Phase of a replacement of the authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RotationPhase {
    /// New authorities are created and trusted beside the old ones, which still sign.
    Trusting,
    /// The new authorities sign; the old ones are still trusted.
    Signing,
    /// Only the new authorities are trusted.
    Dropping,
}

/// The members of an etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdStatus {
    /// Number of members that run. It follows `spec.datastore.etcd.members` one member at a time.
    #[schemars(range(min = 0))]
    pub members: u32,
    /// Number of members that the API servers connect to. It follows `members` when all members are as declared.
    #[schemars(range(min = 0))]
    pub serving: u32,
    /// The change of one member that is in progress. Written before the first step of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<MemberChange>,
    /// etcd version of the data.
    /// No older minor of etcd is started with this data, whichever package version the cluster has; only restoring a snapshot replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Package version that this etcd was created from. It is needed as long as the cluster has a package version with an older minor of etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub package_version: Option<String>,
}

/// A change of one etcd member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberChange {
    /// Type of the change.
    #[serde(rename = "type")]
    pub type_: MemberChangeType,
    /// Name of the member, which is the name of its pod.
    #[schemars(length(max = 63))]
    pub member: String,
    /// etcd ID of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub member_id: Option<String>,
    /// UID of the pod of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// UID of the PersistentVolumeClaim of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub claim_uid: Option<String>,
    /// Start of the change.
    pub since: Timestamp,
}

/// Type of a change of one etcd member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemberChangeType {
    /// A member is added as a learner, started, and promoted when it has caught up.
    Add,
    /// A member is removed from etcd; then its pod and finally its volume are deleted.
    Remove,
    /// A member is removed from etcd, its volume and pod are recreated, and it is added again.
    Replace,
    /// Same as `Replace`, for a healthy member whose volume is smaller than declared and cannot be expanded.
    RecreateVolume,
}

impl MemberChangeType {
    /// Returns the name of the type as in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Remove => "Remove",
            Self::Replace => "Replace",
            Self::RecreateVolume => "RecreateVolume",
        }
    }
}

/// A snapshot of etcd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Name of the snapshot, for `spec.restore`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Point in time of the data in the snapshot.
    pub at: Timestamp,
    /// Size of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::size")]
    pub size: Option<Quantity>,
    /// etcd revision of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub revision: Option<i64>,
    /// Generation of the Cluster that requested another package version, if the snapshot was taken before that change was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub generation: Option<i64>,
    /// What the snapshot was taken for, if it was taken for the end of a soak: `soak/PACKAGE-VERSION/SOAK-UNTIL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub purpose: Option<String>,
    /// Whether the snapshot was verified by restoring it into a separate etcd.
    #[serde(default)]
    pub checked: bool,
    /// ID of the encryption key. It reveals nothing about the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub key_id: Option<String>,
    /// Version of etcd that is needed to restore the snapshot: an etcd with an older minor cannot read its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub etcd: Option<String>,
}

/// A completed restore from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// Name of the snapshot.
    #[schemars(length(min = 1, max = 512))]
    pub snapshot: String,
    /// Time at which the restore completed.
    pub at: Timestamp,
    /// Point in time of the restored data.
    pub data_time: Timestamp,
}

/// A restore that is in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restoring {
    /// Name of the snapshot.
    #[schemars(length(min = 1, max = 512))]
    pub snapshot: String,
    /// Current stage of the restore.
    pub stage: RestoreStage,
    /// Start of the restore.
    pub started_at: Timestamp,
    /// Point in time of the data that is being restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_time: Option<Timestamp>,
    /// Package version that the control plane starts with, from `Stopping` on. If `spec.packageVersion` is another one, it is applied after the restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub package_version: Option<String>,
    /// Kubernetes version of that package version when the control plane was stopped. If the package version is recreated with another minor, the restore
    /// waits until it has its old content again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub kubernetes: Option<String>,
    /// etcd version of that package version when the control plane was stopped. If the package version is recreated with another minor, the restore waits
    /// until it has its old content again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub etcd: Option<String>,
}

/// Stage of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestoreStage {
    /// The snapshot is restored into a separate etcd; nothing else is changed.
    Checking,
    /// The control plane is stopped.
    Stopping,
    /// Each member receives the data of the snapshot, beside its existing data.
    Restoring,
    /// The control plane is started and proven.
    Starting,
    /// The old data of the members is removed.
    Cleaning,
}

/// The end of a soak that is in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishingUpgrade {
    /// The package version that soaked.
    #[schemars(length(max = 253))]
    pub package_version: String,
    /// The Kubernetes minor that was emulated.
    #[schemars(length(max = 16))]
    pub emulated: String,
    /// Start of this step.
    pub since: Timestamp,
}

/// A change that failed and was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedChange {
    /// The requested package version.
    #[schemars(length(max = 253))]
    pub package_version: String,
    /// Generation of the Cluster that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub generation: Option<i64>,
    /// Time at which the change was abandoned.
    pub at: Timestamp,
    /// The failed stage and the cause.
    #[schemars(length(max = 1024))]
    pub message: String,
}
