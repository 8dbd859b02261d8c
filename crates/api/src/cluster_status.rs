use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, ControlPlaneComponent, Status, StepProgress, cluster_text};

/// What is seen of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The generation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Where in its life the cluster is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClusterPhase>,
    /// What it waits for, in one sentence. Nothing if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub waiting_for: Option<String>,
    /// Where clients reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub endpoint: Option<String>,
    /// The namespace of the meta cluster that its control plane runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// The package version that it has; while it is being changed, the one that it is brought to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub package_version: Option<String>,
    /// The package version that it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub previous: Option<String>,
    /// The minor that a newer one emulates, so that it is possible to go back to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub emulates: Option<String>,
    /// Since when it does so: when the new minor was proven to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_since: Option<Timestamp>,
    /// Until when it does so at least: `soakSince` and `spec.upgrade.soak`, which may be changed at any time. The emulation ends after that, as soon as
    /// nothing stands against it; the condition `Finishable` says what does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_until: Option<Timestamp>,
    /// The soak is over, there is no way back that keeps every write, and the components are being restarted without emulation. It is written before
    /// the first of them restarts, and removed when every API server is proven and emulates nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finishing: Option<FinishingUpgrade>,
    /// What is being done to the cluster right now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// The change that did not work and was taken back. It is not tried again until another is asked for or a person says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedChange>,
    /// The state of each component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["component".to_owned()]))]
    pub components: Vec<ClusterComponentStatus>,
    /// The members of etcd: how many run, and which one is being added, removed or replaced. Nothing where etcd is external.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdStatus>,
    /// The replica that was last made anew because it did not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedReplica>,
    /// The state of each extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub extensions: Vec<ExtensionStatus>,
    /// When each certificate ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub certificates: Vec<CertificateStatus>,
    /// The authorities and the key of service-account tokens that the cluster runs with. Each is recorded before it is first used. Of a recorded key no
    /// new one is made in place: a lost Secret is restored from the sealed copy, with the same key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub keys: Vec<KeyStatus>,
    /// The value of `certificates.rotateAuthorities` that was last followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub authorities: Option<String>,
    /// The authorities are being replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// The last snapshot that was taken and checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot: Option<SnapshotStatus>,
    /// The names of all that are kept, newest first; a hundred at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    pub snapshots: Vec<String>,
    /// The value of the annotation `fleetwright.io/snapshot` that was last followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub snapshotted: Option<String>,
    /// The snapshot that the datastore was last brought back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
    /// The snapshot that the datastore is being brought back to, and how far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restoring: Option<Restoring>,
    /// The value of `spec.restore.snapshot` that was last followed; forgotten when `spec.restore` is taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub restore_followed: Option<String>,
    /// The value of the annotation `fleetwright.io/retry` that was last followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub retried: Option<String>,
    /// What holds and what does not, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Where in its life a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterPhase {
    /// It is being made.
    Creating,
    /// It is as declared, and proven to work.
    Ready,
    /// It is being brought to another package version.
    Upgrading,
    /// It has a new minor, emulates the old one, and can go back.
    Soaking,
    /// It is being brought back to the package version that it had.
    RollingBack,
    /// Something of it is being repaired.
    Repairing,
    /// Something of it does not work.
    Degraded,
    /// Its datastore is being brought back to a snapshot.
    Restoring,
    /// It is being deleted.
    Deleting,
}

impl ClusterPhase {
    /// All of them, in the order of a life.
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

    /// Its name.
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

/// The state of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterComponentStatus {
    /// Which.
    pub component: ControlPlaneComponent,
    /// The version that it should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub desired: Option<String>,
    /// The version that all of its replicas have; none while they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub observed: Option<String>,
    /// Each replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub replicas: Vec<ReplicaStatus>,
}

/// One pod of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The pod's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The version that it says it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Whether the meta cluster calls it ready.
    #[serde(default)]
    pub ready: bool,
    /// When it was last proven to work, by real work that was done through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<Timestamp>,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A replica that did not work and is made anew. This is written before it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedReplica {
    /// Of which component.
    pub component: ControlPlaneComponent,
    /// The pod's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The pod's uid.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// When.
    pub at: Timestamp,
    /// How many were replaced in a row. The more there were, the longer the next one waits.
    #[schemars(range(min = 1))]
    pub times: u32,
    /// Why.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// The state of one extension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionStatus {
    /// Which.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Whether it is in place and its checks hold.
    #[serde(default)]
    pub ready: Status,
    /// One word in CamelCase why, for programs.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The digest of what was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub applied: Option<String>,
}

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// The Secret that holds it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// When it ends.
    pub not_after: Timestamp,
}

/// One authority, or the key of service-account tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyStatus {
    /// The Secret that holds it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The SHA-256 fingerprint of the certificate that signs, or of the public key.
    #[schemars(length(max = 64))]
    pub fingerprint: String,
    /// The digest of everything in the Secret that belongs to the key: also what is trusted beside it, and the authority that signs next.
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// How far authorities are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The value of `certificates.rotateAuthorities` that asks for it.
    #[schemars(length(max = 63))]
    pub value: String,
    /// What is being done.
    pub phase: RotationPhase,
    /// Since when.
    pub since: Timestamp,
}

/// What is being done to replace authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RotationPhase {
    /// New ones are made and trusted beside the old ones, which still sign.
    Trusting,
    /// The new ones sign; the old ones are still trusted.
    Signing,
    /// Only the new ones are trusted.
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
    /// The change of one member that is under way. It is written before the first step of the change is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<MemberChange>,
}

/// A change of one member of an etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberChange {
    /// Which change.
    #[serde(rename = "type")]
    pub type_: MemberChangeType,
    /// The name of the member, which is the name of its pod.
    #[schemars(length(max = 63))]
    pub member: String,
    /// The etcd id of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub member_id: Option<String>,
    /// The uid of the pod of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// The uid of the volume claim of the member that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub claim_uid: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// The kind of a change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemberChangeType {
    /// A member is added as a learner, starts, catches up and is promoted.
    Add,
    /// A member is removed from etcd; then its pod, and last its volume, are deleted.
    Remove,
    /// A member is removed from etcd, its volume and pod are recreated, and it is added again.
    Replace,
    /// As `Replace`, for a healthy member whose volume is smaller than declared and cannot grow.
    Renew,
}

impl MemberChangeType {
    /// As the status has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Remove => "Remove",
            Self::Replace => "Replace",
            Self::Renew => "Renew",
        }
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Its name, which `spec.restore` takes.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// When the data was as the snapshot has it.
    pub at: Timestamp,
    /// How big it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cluster_text::size")]
    pub size: Option<Quantity>,
    /// The revision of etcd that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub revision: Option<i64>,
    /// The generation of the Cluster that asked for another package version, if it was taken before that was followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub generation: Option<i64>,
    /// What it was taken for, if that is the end of a soak: `soak/PACKAGE-VERSION/SOAK-UNTIL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub purpose: Option<String>,
    /// Whether it was seen to be whole by restoring it into an etcd of its own.
    #[serde(default)]
    pub checked: bool,
    /// The id of the key that it is encrypted with. It tells nothing of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub key_id: Option<String>,
}

/// A snapshot that a datastore was brought back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// Its name.
    #[schemars(length(min = 1, max = 512))]
    pub snapshot: String,
    /// When it was brought back.
    pub at: Timestamp,
    /// When the data was as it is now.
    pub data_of: Timestamp,
}

/// A snapshot that a datastore is being brought back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restoring {
    /// Its name.
    #[schemars(length(min = 1, max = 512))]
    pub snapshot: String,
    /// How far it is.
    pub stage: RestoreStage,
    /// When it was begun.
    pub began: Timestamp,
    /// When the data was as it will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_of: Option<Timestamp>,
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestoreStage {
    /// The snapshot is restored into an etcd of its own; nothing else is touched.
    Checking,
    /// The control plane goes down.
    Stopping,
    /// Each member gets the data of the snapshot, beside what it has.
    Restoring,
    /// The control plane begins again, and is proven.
    Starting,
    /// What the members had before is removed.
    Cleaning,
}

/// The end of a soak that is being carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishingUpgrade {
    /// The package version that soaked.
    #[schemars(length(max = 253))]
    pub package_version: String,
    /// The minor that was emulated.
    #[schemars(length(max = 16))]
    pub emulated: String,
    /// Since when.
    pub since: Timestamp,
}

/// A change that did not work and was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedChange {
    /// The package version that was asked for.
    #[schemars(length(max = 253))]
    pub package_version: String,
    /// The generation of the Cluster that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub generation: Option<i64>,
    /// When it was given up.
    pub at: Timestamp,
    /// At what, and why.
    #[schemars(length(max = 1024))]
    pub message: String,
}
