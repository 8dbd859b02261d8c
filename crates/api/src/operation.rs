use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Span, text};

/// One act on the world outside the API server that must not happen twice: the journal, as an object anybody can list.
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
    /// What is done, in CamelCase, such as `Drain`.
    #[serde(rename = "type")]
    #[schemars(schema_with = "text::camel_case")]
    pub type_: String,
    /// On what.
    pub target: Target,
    /// Why, for people.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Which operator asked for it.
    #[schemars(schema_with = "text::requester")]
    pub requested_by: String,
    /// Stands for everything that the act depends on: the same fingerprint is the same act.
    #[schemars(schema_with = "text::fingerprint")]
    pub fingerprint: String,
    /// How long it is kept after it ended.
    #[serde(default = "OperationSpec::default_keep_for")]
    pub keep_for: Span,
}

impl OperationSpec {
    /// A week.
    pub fn default_keep_for() -> Span {
        Span::minutes(7 * 24 * 60)
    }
}

/// What an operation acts on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The kind of the object, in the same namespace, such as `Machine`.
    #[schemars(schema_with = "text::camel_case")]
    pub kind: String,
    /// Its name.
    #[schemars(schema_with = "text::object_name")]
    pub name: String,
    /// The labels that the gate's scopes look at, as they were when the operation was asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "text::labels")]
    pub labels: BTreeMap<String, String>,
}

/// How far an operation is.
///
/// The server itself keeps an act from being started twice, whatever a confused process writes: what was started stays
/// started, at the same time and by the same process, and what ended stays ended.
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
    /// Where it is.
    #[serde(default)]
    pub phase: OperationPhase,
    /// The rule that let it pass, and at what count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub granted_by: Option<String>,
    /// When the act was started. Written before it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Which process started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub started_by: Option<String>,
    /// When it ended, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// What became of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub outcome: Option<String>,
    /// Whether the gate let it pass (`Granted`) and whether its outcome is known (`OutcomeKnown`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperationPhase {
    /// It waits for the gate.
    #[default]
    Pending,
    /// It may start.
    Granted,
    /// It was started, or is about to be.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended badly.
    Failed,
    /// It was started and nobody can tell what became of it. A person must say.
    Unknown,
}

impl OperationPhase {
    /// Nothing more will happen to it.
    pub fn ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// It takes up room behind the gate.
    pub fn holds_room(self) -> bool {
        matches!(self, Self::Granted | Self::Running | Self::Unknown)
    }
}
