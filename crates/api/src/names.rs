//! Labels, taints, annotations and condition types that people and other programs rely on.

/// Label of a ConfigMap that reports on a machine: the machine's name.
pub const MACHINE: &str = "fleetwright.io/machine";
/// Label of a ConfigMap that reports on a machine: who reports.
pub const REPORTER: &str = "fleetwright.io/reporter";
/// The key of `data` in such a ConfigMap that holds the conditions, as a JSON list.
pub const REPORT_DATA: &str = "conditions";

/// Finalizer of operations: the knowledge that an act was started stays until its outcome is known.
pub const OPERATION_FINALIZER: &str = "fleetwright.io/journal";

/// Key of the taint that keeps pods from a machine whose gates do not hold. Kubelets register with it.
pub const UNREADY_TAINT: &str = "fleetwright.io/unready";

/// Annotation by which a person says what became of an operation whose outcome nobody else can know: `Succeeded` or `Failed`.
pub const OUTCOME: &str = "fleetwright.io/outcome";
/// Annotation that goes with [`OUTCOME`]: why the person knows.
pub const OUTCOME_BECAUSE: &str = "fleetwright.io/outcome-because";

/// Condition of a machine: may pods be scheduled to it? The verdict of its gates.
pub const SCHEDULABLE: &str = "Schedulable";
/// Condition of a machine: are all reports on it well-formed?
pub const REPORTS_VALID: &str = "ReportsValid";
/// Condition of a machine: does the host answer?
pub const REACHABLE: &str = "Reachable";
/// Condition of a machine: are the packages that the host carries installed and healthy? Readiness gates use it.
pub const PACKAGES_READY: &str = "PackagesReady";
/// Condition of a machine: does the host carry what the specification asks for? False after a rollback, while the restored version works.
pub const UP_TO_DATE: &str = "UpToDate";

/// Condition of any object: its specification is understood and acted on.
pub const ACCEPTED: &str = "Accepted";
/// Condition of ReadinessGates: the safety net keeps machines open that would be closed.
pub const HOLDING: &str = "Holding";

/// Condition of an operation: the gate let it pass.
pub const GRANTED: &str = "Granted";
/// Condition of an operation: it is known what became of it.
pub const OUTCOME_KNOWN: &str = "OutcomeKnown";

/// Key of the taint that keeps pods from a machine that is being worked on. Only the Machine-Operator writes it.
pub const MAINTENANCE_TAINT: &str = "fleetwright.io/maintenance";
/// Annotation of a machine by which a person asks to try again what failed: any value that it did not have before.
pub const RETRY: &str = "fleetwright.io/retry";
/// Annotation of a deleted machine by which a person says that its host is gone and need not be cleaned: `true`.
pub const LET_GO: &str = "fleetwright.io/let-go";
/// Finalizer of machines: the host is left clean before the machine is gone.
pub const MACHINE_FINALIZER: &str = "fleetwright.io/machine";
/// The ConfigMap with what packages may know of the cluster: `server`, `caBundle`, `dnsAddress`, `dnsDomain`, and anything else.
pub const CLUSTER_VALUES: &str = "cluster-values";
/// Condition of a machine: is its host key the one that is trusted?
pub const HOST_KEY_TRUSTED: &str = "HostKeyTrusted";
/// Condition of a machine: does its host belong to it?
pub const HOST_OWNED: &str = "HostOwned";
/// Annotation of a machine by which a person takes its host from exactly that owner: `CLUSTER/UID/EPOCH`, as in `status.hostOwner`.
pub const ADOPT_HOST: &str = "fleetwright.io/adopt-host";
/// Condition of a machine: is the host as declared, beyond what was just changed?
pub const IN_SHAPE: &str = "InShape";
/// Annotation of a Node: the labels that its machine gave it, and that are taken back when the machine declares them no more.
pub const NODE_LABELS: &str = "fleetwright.io/node-labels";
/// Annotation of a pod without a controller: it may be evicted when its Node is drained, although nobody starts it elsewhere.
pub const EVICT: &str = "fleetwright.io/evict";

/// Label of everything that belongs to a business cluster: the cluster's name.
pub const CLUSTER: &str = "fleetwright.io/cluster";
/// Label that goes with [`CLUSTER`]: the namespace of its Cluster.
pub const FLEET: &str = "fleetwright.io/fleet";
/// Label of the pods of a control plane: the executable that they run, such as `kube-apiserver`.
pub const COMPONENT: &str = "fleetwright.io/component";
/// Label of API-server pods: `true` if they get clients by the endpoint, `false` if the operator took them out of it.
pub const SERVES: &str = "fleetwright.io/serves";
/// Annotation of what an operator applied: the digest of it, so that what did not change is not written.
pub const APPLIED: &str = "fleetwright.io/applied";
/// Annotation of a Secret that is a copy of what a cluster refers to: the digest of it.
pub const COPY: &str = "fleetwright.io/copy";
/// Annotation of a Secret: the Clusters of its namespace whose control planes may have what it holds, such as `pay-01,shop-*`. See
/// [`is_shared`](crate::is_shared).
pub const ALLOWED_CLUSTERS: &str = "fleetwright.io/allowed-clusters";
/// Annotation of a Secret: the Clusters that may have its keys as files of their configuration, which the administrators of those clusters can read. In the same
/// form as [`ALLOWED_CLUSTERS`], and a right of its own: who may store snapshots with a Secret must not read it.
pub const READABLE_BY_CLUSTERS: &str = "fleetwright.io/readable-by-clusters";
/// Annotation of a Secret with a client certificate of etcd: the prefixes that Clusters may use with it besides `/NAMESPACE/NAME` of their own, in the
/// same form as [`ALLOWED_CLUSTERS`].
pub const ALLOWED_ETCD_PREFIXES: &str = "fleetwright.io/allowed-etcd-prefixes";
/// Annotation of a Secret: the Machines of its namespace whose hosts may have what it holds, such as `rack-1-*`. See [`is_shared`](crate::is_shared).
pub const ALLOWED_MACHINES: &str = "fleetwright.io/allowed-machines";
/// Annotation of a cluster by which a person says that what was found before an upgrade does not matter: `REASON@PACKAGE-VERSION`, separated by
/// commas. It counts for that package version alone. `REASON@PACKAGE-VERSION/soak` says so of the end of its soak, and of nothing else.
pub const OVERRIDE: &str = "fleetwright.io/override";
/// Annotation of the Secret with the sealed copy of a cluster's keys: by which key it is sealed, and the digest of each that it holds.
pub const SEALED: &str = "fleetwright.io/sealed";
/// Annotation of a cluster by which a person says that a key may be replaced although everything that trusts the old one is cut off:
/// `SECRET@FINGERPRINT`, with the first 16 characters of the fingerprint of the lost key, or of the one that is to take its place.
pub const REPLACE_KEY: &str = "fleetwright.io/replace-key";
/// Annotation of a cluster by which a person asks for a snapshot: any value that it did not have before.
pub const SNAPSHOT: &str = "fleetwright.io/snapshot";
/// Finalizer of clusters: everything of a cluster is gone before its Cluster is.
pub const CLUSTER_FINALIZER: &str = "fleetwright.io/cluster";
/// The field manager of the Cluster-Operator.
pub const CLUSTERS_MANAGER: &str = "fleetwright-clusters";

/// Condition of a cluster: is it proven to work, at every replica?
pub const READY: &str = "Ready";
/// Condition of a cluster: do all members of its datastore answer and agree?
pub const DATASTORE_HEALTHY: &str = "DatastoreHealthy";
/// Condition of a cluster: does its etcd have the members, with the volumes, that are declared?
pub const MEMBERS_AS_DECLARED: &str = "MembersAsDeclared";
/// Condition of a cluster: are its certificates there, as they should be, and far from their end?
pub const CERTIFICATES_VALID: &str = "CertificatesValid";
/// Condition of a cluster: are its extensions in place and healthy?
pub const EXTENSIONS_READY: &str = "ExtensionsReady";
/// Condition of a cluster: could it be brought to the package version asked for, or to a newer one?
pub const UPGRADABLE: &str = "Upgradable";
/// Condition of a cluster: would going back to the package version before keep every write?
pub const REVERSIBLE: &str = "Reversible";
/// Condition of a cluster, while a new minor emulates the old one: can the soak end?
pub const FINISHABLE: &str = "Finishable";
/// Condition of a cluster: is there a snapshot as recent as its schedule says?
pub const SNAPSHOTS_RECENT: &str = "SnapshotsRecent";

/// Reasons of a cluster's conditions.
pub mod reasons {
    /// Ready: an object was made, seen, read and deleted at every replica, and controllers acted on it.
    pub const PROVEN: &str = "Proven";
    /// Ready: not all replicas are proven yet.
    pub const NOT_PROVEN: &str = "NotProven";
    /// Ready: some replicas are proven and others are not.
    pub const SOME_PROVEN: &str = "SomeProven";
    /// Ready: it is being made.
    pub const CREATING: &str = "Creating";
    /// Any: it is being deleted.
    pub const DELETING: &str = "Deleting";
    /// Deletion: `deletionProtection` is true.
    pub const PROTECTED: &str = "Protected";
    /// Deletion: machines are joined, and `onDelete` says to wait for them.
    pub const MACHINES_JOINED: &str = "MachinesJoined";
    /// Any: nothing is done while `paused` is true.
    pub const PAUSED: &str = "Paused";
    /// Accepted: it is understood and acted on.
    pub const UNDERSTOOD: &str = "Understood";
    /// Accepted: the package version that it refers to is not there.
    pub const NO_PACKAGE_VERSION: &str = "NoPackageVersion";
    /// Accepted: the namespace of its control plane exists and is of another Cluster.
    pub const NAMESPACE_TAKEN: &str = "NamespaceTaken";
    /// Accepted: an argument is not known of the component in this version, or is the operator's.
    pub const BAD_ARGUMENT: &str = "BadArgument";
    /// Accepted: a value is not as the extension's schema says, or the extension is not in the package version.
    pub const BAD_EXTENSION: &str = "BadExtension";
    /// Accepted: a network of a new cluster overlaps one of the meta cluster.
    pub const NETWORK_OVERLAPS: &str = "NetworkOverlaps";
    /// Accepted: a Secret that it refers to is not there or lacks a key.
    pub const NO_SECRET: &str = "NoSecret";
    /// Accepted: a Secret that it refers to is not shared with it.
    pub const SECRET_NOT_SHARED: &str = "SecretNotShared";
    /// Accepted: it sets what a ClusterLimits of the namespace does not allow; nothing of it is applied.
    pub const LIMIT_EXCEEDED: &str = "LimitExceeded";
    /// DatastoreHealthy: all members answer and agree on their leader.
    pub const ALL_MEMBERS_HEALTHY: &str = "AllMembersHealthy";
    /// DatastoreHealthy: so many members are missing that one more would stop it.
    pub const MEMBERS_MISSING: &str = "MembersMissing";
    /// DatastoreHealthy: fewer than half of the members answer; nothing can be written.
    pub const QUORUM_LOST: &str = "QuorumLost";
    /// MembersAsDeclared: number and volumes of the members are as declared.
    pub const ALL_MEMBERS: &str = "AllMembers";
    /// MembersAsDeclared: a member is being added, removed or replaced.
    pub const CHANGING_MEMBERS: &str = "ChangingMembers";
    /// MembersAsDeclared: members are not changed while the other members are not healthy.
    pub const MEMBERS_UNHEALTHY: &str = "MembersUnhealthy";
    /// DatastoreHealthy: it is being brought back to a snapshot.
    pub const RESTORING: &str = "Restoring";
    /// DatastoreHealthy: it does not answer at all.
    pub const UNREACHABLE: &str = "Unreachable";
    /// CertificatesValid: all are there and far from their end.
    pub const ALL_VALID: &str = "AllValid";
    /// CertificatesValid: some are being replaced.
    pub const ROTATING: &str = "Rotating";
    /// CertificatesValid: the Secret of an authority is lost, and no sealed copy of it can be used.
    pub const AUTHORITY_LOST: &str = "AuthorityLost";
    /// CertificatesValid: the Secret of an authority holds something else than what the cluster runs with.
    pub const AUTHORITY_CHANGED: &str = "AuthorityChanged";
    /// CertificatesValid: the Secret with the key of service-account tokens is lost, and no sealed copy of it can be used.
    pub const SERVICE_ACCOUNT_KEY_LOST: &str = "ServiceAccountKeyLost";
    /// CertificatesValid: the Secret with the key of service-account tokens holds something else than what the cluster runs with.
    pub const SERVICE_ACCOUNT_KEY_CHANGED: &str = "ServiceAccountKeyChanged";
    /// CertificatesValid: one has ended or is about to.
    pub const EXPIRING: &str = "Expiring";
    /// ExtensionsReady: all are in place and healthy.
    pub const ALL_READY: &str = "AllReady";
    /// ExtensionsReady: some are being applied or their checks do not hold yet.
    pub const APPLYING: &str = "Applying";
    /// An extension: it is in place, and its checks hold.
    pub const HEALTHY: &str = "Healthy";
    /// ExtensionsReady: one could not be put in place; it is tried again.
    pub const NOT_APPLIED: &str = "NotApplied";
    /// ExtensionsReady: what one brought is being taken away, because the cluster no longer has it.
    pub const REMOVING: &str = "Removing";
    /// ExtensionsReady: the checks of one did not hold in time.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// Upgradable: nothing stands against it.
    pub const NOTHING_AGAINST_IT: &str = "NothingAgainstIt";
    /// Upgradable: the package version does not list the present one in `reachableFrom`.
    pub const NOT_REACHABLE: &str = "NotReachable";
    /// Upgradable: what could stand against it is being looked at.
    pub const CHECKING: &str = "Checking";
    /// Upgradable: it is not known which APIs callers use.
    pub const CALLERS_UNKNOWN: &str = "CallersUnknown";
    /// Upgradable: callers still use APIs that the package version no longer has.
    pub const REMOVED_APIS_IN_USE: &str = "RemovedApisInUse";
    /// Upgradable: kubelets are newer than the package version asked for, and a kubelet is never newer than its API server.
    pub const KUBELET_TOO_NEW: &str = "KubeletTooNew";
    /// Upgradable: kubelets are more than three minors older than the package version asked for.
    pub const KUBELET_TOO_OLD: &str = "KubeletTooOld";
    /// Upgradable: the versions of the kubelets could not be read.
    pub const KUBELETS_UNKNOWN: &str = "KubeletsUnknown";
    /// Upgradable: the meta cluster has no room for one more replica.
    pub const NO_ROOM: &str = "NoRoom";
    /// Upgradable: no snapshot could be taken.
    pub const NO_SNAPSHOT: &str = "NoSnapshot";
    /// Upgradable: what was asked for was tried, did not work and was taken back.
    pub const TRIED_AND_FAILED: &str = "TriedAndFailed";
    /// Reversible: the version before is emulated, or of the same minor.
    pub const EMULATED: &str = "Emulated";
    /// Reversible: there was no version before.
    pub const NOTHING_BEFORE: &str = "NothingBefore";
    /// Reversible: the soak is over, and the datastore may hold what the version before does not understand.
    pub const SOAK_OVER: &str = "SoakOver";
    /// Finishable: the time of the soak is not over.
    pub const SOAKING: &str = "Soaking";
    /// Finishable: the soak does not end while something else is under way.
    pub const BUSY: &str = "Busy";
    /// Finishable: the soak has ended, and the components are being restarted without emulation.
    pub const FINISHING: &str = "Finishing";
    /// Finishable: the components did not work in time without emulation.
    pub const FINISH_FAILED: &str = "FinishFailed";
    /// SnapshotsRecent: the last one is as recent as it should be.
    pub const ON_SCHEDULE: &str = "OnSchedule";
    /// SnapshotsRecent: the last one is older than it should be.
    pub const OVERDUE: &str = "Overdue";
    /// SnapshotsRecent: the last one could not be taken or did not restore.
    pub const SNAPSHOT_FAILED: &str = "SnapshotFailed";
}
