use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Span};

/// One act on the world outside the API server that must not happen twice: the journal, as an object anybody can list.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "Operation",
    namespaced,
    status = "OperationStatus",
    shortname = "op",
    category = "fleet"
)]
#[serde(rename_all = "camelCase")]
pub struct OperationSpec {
    /// What is done, in CamelCase, such as `Drain`.
    #[serde(rename = "type")]
    pub type_: String,
    /// On what.
    pub target: Target,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// Which operator asked for it.
    pub requested_by: String,
    /// Stands for everything that the act depends on: the same fingerprint is the same act.
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
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The labels that the gate's scopes look at, as they were when the operation was asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// How far an operation is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// Where it is.
    #[serde(default)]
    pub phase: OperationPhase,
    /// The rule that let it pass, and at what count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_by: Option<String>,
    /// When the act was started. Written before it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Which process started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// When it ended, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// What became of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Whether the gate let it pass (`Granted`) and whether its outcome is known (`OutcomeKnown`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".to_owned()]))]
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
