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
