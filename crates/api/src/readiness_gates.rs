use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, Condition, Span, Status, text};

/// Conditions that must hold before pods may be scheduled to a machine.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "ReadinessGates",
    plural = "readinessgates",
    namespaced,
    status = "ReadinessGatesStatus",
    shortname = "rg",
    category = "fleet",
    printcolumn = r#"{"name": "Machines", "type": "integer", "jsonPath": ".status.machines"}"#,
    printcolumn = r#"{"name": "Schedulable", "type": "integer", "jsonPath": ".status.schedulable"}"#,
    printcolumn = r#"{"name": "Closed", "type": "integer", "jsonPath": ".status.closed"}"#,
    printcolumn = r#"{"name": "Kept open", "type": "integer", "jsonPath": ".status.keptOpen"}"#,
    printcolumn = r#"{"name": "Safety net", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"SafetyNetActive\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"SafetyNetActive\")].message", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGatesSpec {
    /// Selects machines by their labels. An empty selector selects all machines of the namespace.
    #[schemars(schema_with = "text::selector")]
    pub selector: LabelSelector,
    /// Conditions that must hold. All of them must hold.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Gate>,
    /// Stops the closing of machines when too many would close at the same time.
    #[serde(default)]
    pub safety_net: SafetyNet,
}

/// One condition that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.type in ['Schedulable', 'ReportsValid'])")
    .message("Schedulable and ReportsValid follow from the gates and cannot be gates themselves: name a condition that something else decides")
    .field_path(".type")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.from) || !has(self.from.reporter) || !(self.type in ['Reachable', 'PackagesReady', 'UpToDate'])")
    .message("Reachable, PackagesReady and UpToDate are Fleetwright's own and no reporter may speak of them: leave from out, or choose another type")
    .field_path(".type")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("self.status != 'Unknown'")
    .message("a gate opens at True or at False; Unknown opens no gate")
    .field_path(".status"))]
#[x_kube(validation = Rule::new("!has(self.staleAfter) || (has(self.from) && !has(self.from.machineCondition))")
    .message("a Machine's own condition has no heartbeat: staleAfter goes with from.reporter or from.nodeCondition, or is left out")
    .field_path(".staleAfter")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("has(self.staleAfter) || self.stale == 'Fail'")
    .message("without staleAfter nothing becomes stale: set staleAfter, or leave stale out")
    .field_path(".stale"))]
pub struct Gate {
    /// Name of the gate. Without `from`, the type of the Machine's own condition.
    #[serde(rename = "type")]
    #[schemars(schema_with = "text::camel_case")]
    pub type_: String,
    /// Source of the condition. If omitted, the Machine's own condition of that type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<GateSource>,
    /// Status that the condition must have.
    #[serde(default = "Gate::default_status")]
    pub status: Status,
    /// Whether the gate always counts, or only until all gates held for the first time.
    #[serde(default)]
    pub when: GateWhen,
    /// How long the condition must have held before a closed machine is opened.
    #[serde(default)]
    pub hold_for: Span,
    /// How long the condition may fail before an open machine is closed.
    #[serde(default)]
    pub tolerate_for: Span,
    /// Time without a heartbeat after which a report is stale. If omitted, reports never become stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub stale_after: Option<Span>,
    /// What a missing condition means.
    #[serde(default)]
    pub missing: Absence,
    /// What a stale report means.
    #[serde(default)]
    pub stale: Absence,
}

impl Gate {
    fn default_status() -> Status {
        Status::True
    }
}

/// Source of the condition of a gate. Exactly one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.machineCondition), has(self.nodeCondition), has(self.reporter)].filter(given, given).size() == 1")
    .message("a condition comes from one place: give exactly one of machineCondition, nodeCondition and reporter"))]
pub struct GateSource {
    /// The condition of this type of the Machine, written by the operator that owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::camel_case")]
    #[x_kube(validation = Rule::new("!(self in ['Schedulable', 'ReportsValid'])")
        .message("Schedulable and ReportsValid follow from the gates and cannot be gates themselves: name a condition that something else decides")
        .reason(Reason::FieldValueForbidden))]
    pub machine_condition: Option<String>,
    /// The condition of this type of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::node_condition")]
    pub node_condition: Option<String>,
    /// The report of this reporter: a ConfigMap with the label `fleetwright.io/reporter` that has a condition of the gate's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::dns_label")]
    pub reporter: Option<String>,
}

/// When a gate counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GateWhen {
    /// The gate always counts.
    #[default]
    Always,
    /// The gate counts until all gates held for the first time.
    Bootstrap,
}

/// What a missing condition or a stale report means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Absence {
    /// The gate fails.
    #[default]
    Fail,
    /// The gate holds.
    Pass,
    /// The gate changes nothing: an open machine stays open, a closed one stays closed.
    Keep,
}

/// Stops the closing of machines when too many would close at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SafetyNet {
    /// Maximum number of machines of a scope that may become unschedulable within `within`: a number, or a percentage of the scope.
    #[serde(default = "SafetyNet::default_max")]
    pub max: Amount,
    /// Minimum of the limit, however small the scope, if `max` is a percentage.
    #[serde(default = "SafetyNet::default_at_least")]
    #[schemars(range(max = 100_000))]
    pub at_least: u32,
    /// Period within which failures of machines count as simultaneous.
    #[serde(default = "SafetyNet::default_within")]
    #[x_kube(validation = text::positive())]
    pub within: Span,
    /// Label of the machines. Each value of the label is a scope. If omitted, all selected machines are one scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::label_key")]
    pub by: Option<String>,
}

impl SafetyNet {
    fn default_max() -> Amount {
        Amount::Percent(33)
    }

    fn default_at_least() -> u32 {
        3
    }

    fn default_within() -> Span {
        Span::minutes(10)
    }
}

impl Default for SafetyNet {
    fn default() -> Self {
        Self { max: Self::default_max(), at_least: Self::default_at_least(), within: Self::default_within(), by: None }
    }
}

/// Observed state of ReadinessGates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGatesStatus {
    /// The `metadata.generation` of the ReadinessGates that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Number of selected machines.
    #[serde(default)]
    pub machines: u32,
    /// Number of selected machines that pods may be scheduled to.
    #[serde(default)]
    pub schedulable: u32,
    /// Number of machines that a gate closes.
    #[serde(default)]
    pub closed: u32,
    /// Number of machines that the safety net keeps open.
    #[serde(default)]
    pub kept_open: u32,
    /// Conditions: whether the gates are valid (`Accepted`) and whether the safety net is active (`SafetyNetActive`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}
