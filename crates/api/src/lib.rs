//! The kinds of Fleetwright, `fleetwright.io/v1alpha1`: their fields, validation rules, and names of conditions. No I/O.
//!
//! The Rust types are the source: [`crds`] generates the CustomResourceDefinitions from them.

#![deny(missing_docs)]

pub mod arguments;
mod cluster;
mod cluster_datastore;
mod cluster_limits;
mod cluster_package_version;
mod cluster_status;
mod cluster_text;
mod condition;
mod control_plane;
mod definition;
mod machine;
mod machine_package_version;
pub mod names;
mod operation;
mod operation_policy;
mod package_text;
mod readiness_gates;
mod reference;
mod report;
mod sharing;
mod span;
pub mod templates;
mod text;

pub use cluster::{
    Certificates, Cluster, ClusterComponents, ClusterNetwork, ClusterOnDelete, ClusterSpec, ControlPlanePlacement,
    Endpoint, EndpointType, ExtensionChoice, PodToleration, TolerationOperator, UpgradePolicy,
};
pub use cluster_datastore::{
    Datastore, EtcdDatastore, EtcdStorage, ExternalDatastore, Restore, SnapshotBucket, SnapshotEncryption,
    SnapshotVolume, Snapshots,
};
pub use cluster_limits::{
    ClusterLimits, ClusterLimitsSpec, ComponentLimits, ComponentsLimits, ExtensionsLimits, LimitsPreset, NameLimits,
    PlacementLimits, S3Limits, StorageLimits, hardened_args, hardened_files, matches_any,
};
pub use cluster_package_version::{
    ClusterPackageVersion, ClusterPackageVersionSpec, ComponentPackages, Extension, ExtensionCheck, ExtensionHealth,
    ExtensionPlacement,
};
pub use cluster_status::{
    CertificateStatus, ClusterComponentStatus, ClusterPhase, ClusterStatus, EtcdStatus, ExtensionStatus, FailedChange,
    FinishingUpgrade, KeyStatus, MemberChange, MemberChangeType, ReplacedReplica, ReplicaStatus, RestoreStage,
    Restored, Restoring, Rotation, RotationPhase, SnapshotStatus,
};
pub use condition::{Condition, Status, condition, is_true};
pub use control_plane::{
    CONFIG_FILES, ComponentOverrides, ComponentPackage, ConfigFile, ConfigOverride, ControlPlaneComponent, Resources,
    is_digest,
};
pub use definition::{crds, crds_json, crds_yaml};
pub use machine::{
    Bootstrapped, Component, ComponentState, DrainOptions, Drift, DriftItem, Facts, Hardware, HostKeyPolicy, HostKeys,
    HostOwner, Jump, LastDrift, Machine, MachineSpec, MachineStatus, NodeBinding, NodeRef, OnDelete, PackageRef, Phase,
    Role, Rollback, SecretRef, Ssh, StepProgress, Taint, TaintEffect,
};
pub use machine_package_version::{
    Boot, Config, Disruption, Kernel, KeyRef, MachinePackageVersion, MachinePackageVersionSpec, OnFailure, OsPackages,
    PackageCheck, PackageFile, PackageHealth, PackageRemove, PackageSource, PackageUnit, Reboot, Script, Tarball,
    Timeouts,
};
pub use operation::{Operation, OperationPhase, OperationSpec, OperationStatus, Target};
pub use operation_policy::{Amount, Holder, OperationPolicy, OperationPolicySpec, OperationPolicyStatus, PolicyScope};
pub use readiness_gates::{
    Absence, Gate, GateSource, GateWhen, ReadinessGates, ReadinessGatesSpec, ReadinessGatesStatus, SafetyNet,
};
pub use reference::kinds_markdown;
pub use report::{Broken, Report, SubCondition};
pub use sharing::is_shared;
pub use span::Span;

/// The API group of all kinds.
pub const GROUP: &str = "fleetwright.io";
/// The version of all kinds.
pub const VERSION: &str = "v1alpha1";
