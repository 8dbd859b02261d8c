//! Labels, taints, annotations and condition types that people and other programs rely on.

/// Label of a ConfigMap that reports on a machine: the machine's name.
pub const MACHINE: &str = "fleetwright.io/machine";
/// Label of a ConfigMap that reports on a machine: who reports.
pub const REPORTER: &str = "fleetwright.io/reporter";
/// The key of `data` in such a ConfigMap that holds the conditions, as a JSON list.
pub const REPORT_DATA: &str = "conditions";

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
/// Condition of a machine: does the host carry the packages it should?
pub const PACKAGES_READY: &str = "PackagesReady";

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
/// Condition of a machine: is the host as declared, beyond what was just changed?
pub const IN_SHAPE: &str = "InShape";
/// Annotation of a Node: the labels that its machine gave it, and that are taken back when the machine declares them no more.
pub const NODE_LABELS: &str = "fleetwright.io/node-labels";
/// Annotation of a pod without a controller: it may be evicted when its Node is drained, although nobody starts it elsewhere.
pub const EVICT: &str = "fleetwright.io/evict";
