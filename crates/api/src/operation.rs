use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Span, text};

/// One action outside the API server, such as a drain or a restore, that must not run twice. Operations are a journal that anyone with read access can list.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "Operation",
    namespaced,
    status = "OperationStatus",
    shortname = "op",
    category = "fleet",
    validation = Rule::new("!has(oldSelf.status) || has(self.status)")
        .message("what is known of an operation is not taken back: keep status")
        .field_path(".status")
        .reason(Reason::FieldValueForbidden),
    printcolumn = r#"{"name": "Type", "type": "string", "jsonPath": ".spec.type"}"#,
    printcolumn = r#"{"name": "Target", "type": "string", "jsonPath": ".spec.target.name"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Started", "type": "date", "jsonPath": ".status.startedAt"}"#,
    printcolumn = r#"{"name": "Outcome", "type": "string", "jsonPath": ".status.outcome"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Kind", "type": "string", "jsonPath": ".spec.target.kind", "priority": 1}"#,
    printcolumn = r#"{"name": "Granted by", "type": "string", "jsonPath": ".status.grantedBy", "priority": 1}"#,
    printcolumn = r#"{"name": "Requested by", "type": "string", "jsonPath": ".spec.requestedBy", "priority": 1}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".spec.reason", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("an operation is one act and does not become another: make a new Operation")
    .reason(Reason::FieldValueForbidden))]
pub struct OperationSpec {
    /// Type of the action in CamelCase, such as `Drain`.
    #[serde(rename = "type")]
    #[schemars(schema_with = "text::camel_case")]
    pub type_: String,
    /// Object that the operation acts on.
    pub target: Target,
    /// Human-readable reason.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Operator that requested the operation.
    #[schemars(schema_with = "text::requester")]
    pub requested_by: String,
    /// Hash of everything that the action depends on: the same fingerprint is the same action.
    #[schemars(schema_with = "text::fingerprint")]
    pub fingerprint: String,
    /// How long the Operation is kept after it has ended.
    #[serde(default = "OperationSpec::default_keep_for")]
    pub keep_for: Span,
}

impl OperationSpec {
    /// A week.
    pub fn default_keep_for() -> Span {
        Span::minutes(7 * 24 * 60)
    }
}

/// Object that an operation acts on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Kind of the object in the same namespace, such as `Machine`.
    #[schemars(schema_with = "text::camel_case")]
    pub kind: String,
    /// Name of the object.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
    /// Labels of the object at the time of the request. Scopes of OperationPolicies read them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub labels: BTreeMap<String, String>,
}

/// Observed state of an Operation.
///
/// Validation rules of the API server itself prevent that an action is started twice, whatever a faulty process writes: an action that was started stays
/// started, with the same start time and process, and an operation that has ended stays ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(oldSelf.phase in ['Succeeded', 'Failed']) || self.phase == oldSelf.phase")
    .message("the operation has ended: to act again, make a new Operation")
    .field_path(".phase")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!(oldSelf.phase in ['Running', 'Unknown']) || !(self.phase in ['Pending', 'Granted'])")
    .message("the act was started and nothing undoes that: write Succeeded, Failed or Unknown")
    .field_path(".phase")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!(self.phase in ['Running', 'Unknown']) || (has(self.startedAt) && has(self.startedBy))")
    .message("Running and Unknown mean that the act was started: startedAt and startedBy are written with them")
    .field_path(".phase")
    .reason(Reason::FieldValueRequired))]
#[x_kube(validation = Rule::new("!has(oldSelf.startedAt) || (has(self.startedAt) && self.startedAt == oldSelf.startedAt)")
    .message("an act is started once: startedAt does not change")
    .field_path(".startedAt")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(oldSelf.startedBy) || (has(self.startedBy) && self.startedBy == oldSelf.startedBy)")
    .message("an act is started once, by one process: startedBy does not change")
    .field_path(".startedBy")
    .reason(Reason::FieldValueForbidden))]
pub struct OperationStatus {
    /// Current phase.
    #[serde(default)]
    pub phase: OperationPhase,
    /// OperationPolicy that allowed the operation, and its count at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub granted_by: Option<String>,
    /// Start of the action. Written before the action is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Process that started the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub started_by: Option<String>,
    /// End of the operation, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Human-readable outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub outcome: Option<String>,
    /// Conditions: whether OperationPolicies allowed the operation (`Granted`) and whether its outcome is known (`OutcomeKnown`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Phase of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperationPhase {
    /// The operation waits until OperationPolicies allow it.
    #[default]
    Pending,
    /// The operation may start.
    Granted,
    /// The operation was started or is about to start.
    Running,
    /// The operation succeeded.
    Succeeded,
    /// The operation failed.
    Failed,
    /// The operation was started, and its outcome cannot be determined. A person must record it.
    Unknown,
}

impl OperationPhase {
    /// Returns true if the operation has ended.
    pub fn ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns true if the operation counts against the limits of OperationPolicies.
    pub fn holds_room(self) -> bool {
        matches!(self, Self::Granted | Self::Running | Self::Unknown)
    }
}
