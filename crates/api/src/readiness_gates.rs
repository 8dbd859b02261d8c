use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, Condition, Span, Status, text};

/// The conditions that must hold before a machine may be scheduled.
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
    printcolumn = r#"{"name": "Held", "type": "integer", "jsonPath": ".status.held"}"#,
    printcolumn = r#"{"name": "Holding", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Holding\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Holding\")].message", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGatesSpec {
    /// The machines meant, by their labels. An empty selector means all of the namespace.
    #[schemars(schema_with = "text::selector")]
    pub selector: LabelSelector,
    /// What must hold; all of it.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Gate>,
    /// When closing is stopped because too much would close at once.
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
    .message("a gate opens at True or at False; what nobody knows opens nothing")
    .field_path(".status"))]
#[x_kube(validation = Rule::new("!has(self.staleAfter) || (has(self.from) && !has(self.from.machineCondition))")
    .message("a Machine's own condition has no heartbeat: staleAfter goes with from.reporter or from.nodeCondition, or is left out")
    .field_path(".staleAfter")
    .reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("has(self.staleAfter) || self.stale == 'Fail'")
    .message("without staleAfter nothing becomes stale: set staleAfter, or leave stale out")
    .field_path(".stale"))]
pub struct Gate {
    /// What the gate is called; without `from`, the type of the Machine's own condition.
    #[serde(rename = "type")]
    #[schemars(schema_with = "text::camel_case")]
    pub type_: String,
    /// Where the condition comes from. The Machine's own condition of that type if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<GateSource>,
    /// The status that opens the gate.
    #[serde(default = "Gate::default_status")]
    pub status: Status,
    /// Whether it counts always, or only until all gates held for the first time.
    #[serde(default)]
    pub when: GateWhen,
    /// How long it must have held before a closed machine opens.
    #[serde(default)]
    pub hold_for: Span,
    /// How long it may fail before an open machine closes.
    #[serde(default)]
    pub tolerate_for: Span,
    /// After how long without a heartbeat a report is stale. Never, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = text::positive())]
    pub stale_after: Option<Span>,
    /// What it means that there is no such condition.
    #[serde(default)]
    pub missing: Absence,
    /// What it means that the report is stale.
    #[serde(default)]
    pub stale: Absence,
}

impl Gate {
    fn default_status() -> Status {
        Status::True
    }
}

/// Where the condition of a gate comes from: exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.machineCondition), has(self.nodeCondition), has(self.reporter)].filter(given, given).size() == 1")
    .message("a condition comes from one place: give exactly one of machineCondition, nodeCondition and reporter"))]
pub struct GateSource {
    /// The Machine's condition of this type, written by an operator that owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::camel_case")]
    #[x_kube(validation = Rule::new("!(self in ['Schedulable', 'ReportsValid'])")
        .message("Schedulable and ReportsValid follow from the gates and cannot be gates themselves: name a condition that something else decides")
        .reason(Reason::FieldValueForbidden))]
    pub machine_condition: Option<String>,
    /// The Node's condition of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::node_condition")]
    pub node_condition: Option<String>,
    /// The report of this reporter, a ConfigMap labelled `fleetwright.io/reporter`, with a condition of the gate's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text::dns_label")]
    pub reporter: Option<String>,
}

/// When a gate counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GateWhen {
    /// Always.
    #[default]
    Always,
    /// Until all gates held for the first time.
    Bootstrap,
}

/// What it means that a condition is missing or its report stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Absence {
    /// The gate fails.
    #[default]
    Fail,
    /// The gate holds.
    Pass,
    /// The gate changes nothing: an open machine stays open, a closed one closed.
    Keep,
}

/// When closing is stopped because too much would close at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SafetyNet {
    /// So many machines of a scope may lose schedulability within the time: a number, or a percentage of the scope.
    #[serde(default = "SafetyNet::default_max")]
    pub max: Amount,
    /// However small the scope, so many may.
    #[serde(default = "SafetyNet::default_at_least")]
    #[schemars(range(max = 100_000))]
    pub at_least: u32,
    /// The time within which machines count as having failed together.
    #[serde(default = "SafetyNet::default_within")]
    #[x_kube(validation = text::positive())]
    pub within: Span,
    /// The label of the machines whose values divide them into scopes. All machines selected are one scope if left out.
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

/// What became of the gates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGatesStatus {
    /// The generation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// How many machines are selected.
    #[serde(default)]
    pub machines: u32,
    /// How many of them may be scheduled.
    #[serde(default)]
    pub schedulable: u32,
    /// How many are closed by a gate.
    #[serde(default)]
    pub closed: u32,
    /// How many the safety net keeps open.
    #[serde(default)]
    pub held: u32,
    /// Whether the gates are understood (`Accepted`) and whether the safety net is in force (`Holding`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}
