//! Labels, taints, annotations and condition types that users and other programs rely on.

/// Label of a ConfigMap that reports on a machine: name of the machine.
pub const MACHINE: &str = "fleetwright.io/machine";
/// Label of a ConfigMap that reports on a machine: name of the reporter.
pub const REPORTER: &str = "fleetwright.io/reporter";
/// Key in `data` of such a ConfigMap with the conditions as a JSON list.
pub const REPORT_DATA: &str = "conditions";

/// Finalizer of Operations: the record that an action was started is kept until its outcome is known.
pub const OPERATION_FINALIZER: &str = "fleetwright.io/operation";

/// Key of the taint that keeps pods away from a machine whose gates do not hold. Kubelets register with it.
pub const UNREADY_TAINT: &str = "fleetwright.io/unready";

/// Annotation with which a person records the outcome of an Operation that cannot be determined otherwise: `Succeeded` or `Failed`.
pub const OUTCOME: &str = "fleetwright.io/outcome";
/// Annotation beside [`OUTCOME`]: how the person knows the outcome.
pub const OUTCOME_REASON: &str = "fleetwright.io/outcome-reason";

/// Condition of a machine: pods may be scheduled to it, according to its gates.
pub const SCHEDULABLE: &str = "Schedulable";
/// Condition of a machine: all reports on it are valid.
pub const REPORTS_VALID: &str = "ReportsValid";
/// Condition of a machine: the host responds.
pub const REACHABLE: &str = "Reachable";
/// Condition of a machine: the packages on the host are installed and healthy. Readiness gates use it.
pub const PACKAGES_READY: &str = "PackagesReady";
/// Condition of a machine: the host has what the spec declares. False after a rollback, although the restored version works.
pub const UP_TO_DATE: &str = "UpToDate";

/// Condition of any object: its spec is valid and acted on.
pub const ACCEPTED: &str = "Accepted";
/// Condition of ReadinessGates: the safety net keeps machines open that would be closed otherwise.
pub const SAFETY_NET_ACTIVE: &str = "SafetyNetActive";

/// Condition of an Operation: OperationPolicies allowed it.
pub const GRANTED: &str = "Granted";
/// Condition of an Operation: its outcome is known.
pub const OUTCOME_KNOWN: &str = "OutcomeKnown";

/// Key of the taint that keeps pods away from a machine during a window. Only the Machine-Operator writes it.
pub const MAINTENANCE_TAINT: &str = "fleetwright.io/maintenance";
/// Annotation with which a person requests a retry of what failed: any new value.
pub const RETRY: &str = "fleetwright.io/retry";
/// Annotation of a deleted Machine with which a person confirms that its host no longer exists and need not be cleaned: `true`.
pub const FORCE_RELEASE: &str = "fleetwright.io/force-release";
/// Annotation of a control plane's namespace, sealed by the Cluster-Operator when it created the namespace.
/// Others can copy the annotation, so it does not prove that the namespace belongs to the Cluster: a namespace with it that is not recorded is deleted and
/// created again.
pub const CREATION_PROOF: &str = "fleetwright.io/creation-proof";
/// Finalizer of Machines: the host is cleaned before the Machine is deleted.
pub const MACHINE_FINALIZER: &str = "fleetwright.io/machine";
/// ConfigMap with the values of the cluster that packages may use: `server`, `caBundle`, `dnsAddress`, `dnsDomain`, and any others.
pub const CLUSTER_VALUES: &str = "cluster-values";
/// Condition of a machine: its host key is the trusted one.
pub const HOST_KEY_TRUSTED: &str = "HostKeyTrusted";
/// Condition of a machine: it owns its host.
pub const HOST_OWNED: &str = "HostOwned";
/// Annotation of a Machine with which a person takes its host from exactly this owner: `CLUSTER/UID/EPOCH`, as in `status.hostOwner`.
pub const ADOPT_HOST: &str = "fleetwright.io/adopt-host";
/// Condition of a machine: the host has no drift, apart from the last change.
pub const IN_SYNC: &str = "InSync";
/// Annotation of a Node in which earlier versions recorded the labels that its machine set. It is ignored and removed.
pub const NODE_LABELS: &str = "fleetwright.io/node-labels";
/// Annotation of a pod without a controller: it may be evicted when its Node is drained, although it is not recreated on another Node.
pub const EVICT: &str = "fleetwright.io/evict";

/// Label of every object of a business cluster: name of the cluster.
pub const CLUSTER: &str = "fleetwright.io/cluster";
/// Label beside [`CLUSTER`]: namespace of its Cluster.
pub const CLUSTER_NAMESPACE: &str = "fleetwright.io/cluster-namespace";
/// Label of the pods of a control plane: their executable, such as `kube-apiserver`.
pub const COMPONENT: &str = "fleetwright.io/component";
/// Label of API-server pods: `true` if the endpoint sends clients to them, `false` if the operator removed them from the endpoint.
pub const SERVING: &str = "fleetwright.io/serving";
/// Annotation of an applied object: digest of what was applied. An unchanged object is not written again.
pub const APPLIED_HASH: &str = "fleetwright.io/applied-hash";
/// Annotation of a Secret that is a copy of an object that a cluster refers to: digest of the original.
pub const SOURCE_HASH: &str = "fleetwright.io/source-hash";
/// Annotation of a Secret: the Clusters of its namespace whose control planes may use its content, such as `pay-01,shop-*`.
/// See [`is_shared`](crate::is_shared).
pub const ALLOWED_CLUSTERS: &str = "fleetwright.io/allowed-clusters";
/// Annotation of a Secret: the Clusters that may use its keys as configuration files, which the administrators of those clusters can read.
/// The format is that of [`ALLOWED_CLUSTERS`].
/// It is a separate permission, because a Cluster that stores snapshots with a Secret must not be able to read the Secret.
pub const READABLE_BY_CLUSTERS: &str = "fleetwright.io/readable-by-clusters";
/// Annotation of a Secret with a client certificate of etcd: the prefixes that Clusters may use with it in addition to their own `/NAMESPACE/NAME`.
/// The format is that of [`ALLOWED_CLUSTERS`].
pub const ALLOWED_ETCD_PREFIXES: &str = "fleetwright.io/allowed-etcd-prefixes";
/// Annotation of a Secret: the Machines of its namespace whose hosts may receive its content, such as `rack-1-*`. See [`is_shared`](crate::is_shared).
pub const ALLOWED_MACHINES: &str = "fleetwright.io/allowed-machines";
/// Annotation of a Cluster with which a person overrides findings of the preflight checks of an upgrade: `REASON@PACKAGE-VERSION`, separated by commas.
/// It applies only to that package version. `REASON@PACKAGE-VERSION/soak` applies only to the end of its soak.
pub const OVERRIDE: &str = "fleetwright.io/override";
/// Annotation of the Secret with the sealed copy of a cluster's keys: ID of the sealing key, and digest of each key in the copy.
pub const SEALED: &str = "fleetwright.io/sealed";
/// Annotation of a Cluster with which a person permits replacing a key although everything that trusts the old key is cut off:
/// `SECRET@FINGERPRINT`, with the first 16 characters of the fingerprint of the lost key or of its replacement.
pub const REPLACE_KEY: &str = "fleetwright.io/replace-key";
/// Annotation of a Cluster with which a person requests a snapshot: any new value.
pub const SNAPSHOT: &str = "fleetwright.io/snapshot";
/// Finalizer of Clusters: all objects of a cluster are deleted before its Cluster.
pub const CLUSTER_FINALIZER: &str = "fleetwright.io/cluster";
/// Field manager of the Cluster-Operator.
pub const CLUSTERS_MANAGER: &str = "fleetwright-clusters";

/// Condition of a cluster: every replica is proven to work.
pub const READY: &str = "Ready";
/// Condition of a cluster: all members of its datastore respond and agree.
pub const DATASTORE_HEALTHY: &str = "DatastoreHealthy";
/// Condition of a cluster: etcd has the declared members and volumes.
pub const MEMBERS_UP_TO_DATE: &str = "MembersUpToDate";
/// Condition of a cluster: its certificates exist, match the spec and do not expire soon.
pub const CERTIFICATES_VALID: &str = "CertificatesValid";
/// Condition of a cluster: its extensions are applied and healthy.
pub const EXTENSIONS_READY: &str = "ExtensionsReady";
/// Condition of a cluster: it can be changed to the requested package version, or to a newer one.
pub const UPGRADABLE: &str = "Upgradable";
/// Condition of a cluster: a rollback to the previous package version keeps every write.
pub const ROLLBACK_POSSIBLE: &str = "RollbackPossible";
/// Condition of a cluster, while a new minor emulates the old one: the soak can end.
pub const UPGRADE_COMPLETABLE: &str = "UpgradeCompletable";
/// Condition of a cluster: it has a snapshot that is as recent as its schedule requires.
pub const SNAPSHOTS_RECENT: &str = "SnapshotsRecent";

/// Reasons of conditions of Clusters.
pub mod reasons {
    /// Ready: through every replica an object was created, watched, read and deleted, and controllers acted on it.
    pub const VERIFIED: &str = "Verified";
    /// Ready: not every replica is proven yet.
    pub const NOT_VERIFIED: &str = "NotVerified";
    /// Ready: some replicas are proven and others are not.
    pub const PARTIALLY_VERIFIED: &str = "PartiallyVerified";
    /// Ready: the cluster is being created.
    pub const CREATING: &str = "Creating";
    /// Any: the cluster is being deleted.
    pub const DELETING: &str = "Deleting";
    /// Deletion: blocked by `deletionProtection`.
    pub const DELETION_PROTECTED: &str = "DeletionProtected";
    /// Deletion: blocked by joined machines, because `onDelete` waits for them.
    pub const MACHINES_JOINED: &str = "MachinesJoined";
    /// Deletion: no OperationPolicy grants its Operation yet.
    pub const DELETION_PENDING: &str = "DeletionPending";
    /// Any: the operator changes nothing while `paused` is true.
    pub const PAUSED: &str = "Paused";
    /// Accepted: the spec is valid and acted on.
    pub const ACCEPTED: &str = "Accepted";
    /// Accepted: the requested package version does not exist. Upgradable, UpgradeCompletable: the current package version does not exist.
    /// MembersUpToDate: the package version that its etcd needs does not exist.
    pub const PACKAGE_VERSION_NOT_FOUND: &str = "PackageVersionNotFound";
    /// Accepted: the namespace of the control plane exists and belongs to another Cluster, or the operator did not create it.
    pub const NAMESPACE_CONFLICT: &str = "NamespaceConflict";
    /// Accepted: the component of this version does not know an argument, or the operator sets the argument itself.
    pub const INVALID_ARGUMENT: &str = "InvalidArgument";
    /// Accepted: a value does not match the schema of the extension, or the package version does not have the extension.
    pub const INVALID_EXTENSION: &str = "InvalidExtension";
    /// Accepted: the pod network of a new cluster overlaps a network of the meta cluster.
    pub const NETWORK_OVERLAPS: &str = "NetworkOverlaps";
    /// Accepted: a Secret that the spec refers to does not exist or lacks a key.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// Accepted: a Secret that the spec refers to is not shared with the Cluster.
    pub const SECRET_NOT_SHARED: &str = "SecretNotShared";
    /// Accepted: the spec violates a ClusterLimits of the namespace; nothing of it is applied.
    pub const LIMIT_EXCEEDED: &str = "LimitExceeded";
    /// Accepted: the API server refuses to write an object of the control plane; the other steps are done.
    pub const WRITE_REFUSED: &str = "WriteRefused";
    /// Accepted: a Secret with a key of the control plane, or its sealed copy, is not valid; the steps that need no new key are done.
    pub const INVALID_AUTHORITY: &str = "InvalidAuthority";
    /// Accepted: the snapshot in `spec.restore` could not be restored in the check; nothing was stopped for it.
    pub const SNAPSHOT_UNUSABLE: &str = "SnapshotUnusable";
    /// DatastoreHealthy: all members respond and agree on their leader.
    pub const ALL_MEMBERS_HEALTHY: &str = "AllMembersHealthy";
    /// DatastoreHealthy: members are missing; the others have a quorum.
    pub const MEMBERS_MISSING: &str = "MembersMissing";
    /// DatastoreHealthy: too few members respond for a quorum; nothing can be written.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// MembersUpToDate: number and volumes of the members are as declared.
    pub const ALL_MEMBERS_UP_TO_DATE: &str = "AllMembersUpToDate";
    /// MembersUpToDate: a member is being added, removed or replaced.
    pub const MEMBER_CHANGE_IN_PROGRESS: &str = "MemberChangeInProgress";
    /// MembersUpToDate: members are not changed while the other members are not healthy.
    pub const MEMBERS_UNHEALTHY: &str = "MembersUnhealthy";
    /// MembersUpToDate, Upgradable: the PersistentVolumeClaim of a member is terminating. It is deleted with its data when the pod of the member ends.
    pub const VOLUME_TERMINATING: &str = "VolumeTerminating";
    /// DatastoreHealthy: the datastore is being restored from a snapshot.
    pub const RESTORING: &str = "Restoring";
    /// DatastoreHealthy: the datastore does not respond, or is external.
    pub const UNREACHABLE: &str = "Unreachable";
    /// CertificatesValid: all certificates exist and do not expire soon.
    pub const ALL_VALID: &str = "AllValid";
    /// CertificatesValid: some certificates are being replaced.
    pub const ROTATING: &str = "Rotating";
    /// CertificatesValid: the Secret of an authority is lost, and no sealed copy of it can be used.
    pub const AUTHORITY_LOST: &str = "AuthorityLost";
    /// CertificatesValid: the Secret of an authority differs from the authority that the cluster uses.
    pub const AUTHORITY_CHANGED: &str = "AuthorityChanged";
    /// CertificatesValid: the Secret with the key of service-account tokens is lost, and no sealed copy of it can be used.
    pub const SERVICE_ACCOUNT_KEY_LOST: &str = "ServiceAccountKeyLost";
    /// CertificatesValid: the Secret with the key of service-account tokens differs from the key that the cluster uses.
    pub const SERVICE_ACCOUNT_KEY_CHANGED: &str = "ServiceAccountKeyChanged";
    /// CertificatesValid: an authority expires soon and must be replaced first.
    pub const AUTHORITY_EXPIRING: &str = "AuthorityExpiring";
    /// CertificatesValid: an authority has expired; nothing that it signed is accepted.
    pub const AUTHORITY_EXPIRED: &str = "AuthorityExpired";
    /// ExtensionsReady: all extensions are applied and healthy.
    pub const ALL_READY: &str = "AllReady";
    /// ExtensionsReady: some extensions are being applied, or their checks do not pass yet.
    pub const APPLYING: &str = "Applying";
    /// An extension: it is applied, and its checks pass.
    pub const HEALTHY: &str = "Healthy";
    /// ExtensionsReady: an extension could not be applied; it is retried.
    pub const APPLY_FAILED: &str = "ApplyFailed";
    /// ExtensionsReady: the objects of an extension are being removed, because the cluster no longer has the extension.
    pub const REMOVING: &str = "Removing";
    /// ExtensionsReady: the checks of an extension did not pass in time.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// Upgradable: nothing blocks an upgrade.
    pub const NO_BLOCKERS: &str = "NoBlockers";
    /// Upgradable: the package version does not list the current one in `upgradeFrom`.
    pub const UNSUPPORTED_UPGRADE_PATH: &str = "UnsupportedUpgradePath";
    /// Upgradable: the preflight checks are running.
    pub const PREFLIGHT_CHECKS_RUNNING: &str = "PreflightChecksRunning";
    /// Upgradable: the APIs that clients use are unknown.
    pub const API_USAGE_UNKNOWN: &str = "APIUsageUnknown";
    /// Upgradable: clients use APIs that the package version no longer serves.
    pub const REMOVED_APIS_IN_USE: &str = "RemovedAPIsInUse";
    /// Upgradable: kubelets are newer than the requested package version; a kubelet must not be newer than its API server.
    pub const KUBELET_TOO_NEW: &str = "KubeletTooNew";
    /// Upgradable: kubelets are more than three minors older than the requested package version.
    pub const KUBELET_TOO_OLD: &str = "KubeletTooOld";
    /// Upgradable: the versions of the kubelets could not be read.
    pub const KUBELET_VERSIONS_UNKNOWN: &str = "KubeletVersionsUnknown";
    /// Upgradable: the meta cluster has no resources for one more replica.
    pub const INSUFFICIENT_RESOURCES: &str = "InsufficientResources";
    /// Upgradable: no snapshot could be taken.
    pub const SNAPSHOT_REQUIRED: &str = "SnapshotRequired";
    /// Upgradable: the requested change was tried, failed and was rolled back.
    pub const UPGRADE_FAILED: &str = "UpgradeFailed";
    /// RollbackPossible: the previous version is emulated, or has the same minor.
    pub const STORAGE_COMPATIBLE: &str = "StorageCompatible";
    /// RollbackPossible: there is no previous version.
    pub const NO_PREVIOUS_VERSION: &str = "NoPreviousVersion";
    /// RollbackPossible: the soak has ended, and the datastore may contain data that the previous version does not understand.
    pub const SOAK_ENDED: &str = "SoakEnded";
    /// UpgradeCompletable: the soak time has not passed yet.
    pub const SOAKING: &str = "Soaking";
    /// UpgradeCompletable: the soak does not end while another change is in progress.
    pub const CHANGE_IN_PROGRESS: &str = "ChangeInProgress";
    /// UpgradeCompletable: the soak has ended, and the components are being restarted without emulation.
    pub const COMPLETING_UPGRADE: &str = "CompletingUpgrade";
    /// UpgradeCompletable: the components did not work in time without emulation.
    pub const UPGRADE_COMPLETION_FAILED: &str = "UpgradeCompletionFailed";
    /// SnapshotsRecent: the last snapshot is recent enough.
    pub const ON_SCHEDULE: &str = "OnSchedule";
    /// SnapshotsRecent: the last snapshot is older than the schedule allows.
    pub const OVERDUE: &str = "Overdue";
    /// SnapshotsRecent: the last snapshot could not be taken, or could not be restored in the check.
    pub const SNAPSHOT_FAILED: &str = "SnapshotFailed";
}
