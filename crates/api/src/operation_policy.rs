use std::borrow::Cow;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Condition, text};

/// Maximum number of operations of certain types that may run at the same time. An operation whose type is in no OperationPolicy is not allowed to start.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "fleetwright.io",
    version = "v1alpha1",
    kind = "OperationPolicy",
    plural = "operationpolicies",
    namespaced,
    status = "OperationPolicyStatus",
    shortname = "opp",
    category = "fleet",
    printcolumn = r#"{"name": "Operations", "type": "string", "jsonPath": ".spec.operations"}"#,
    printcolumn = r#"{"name": "Max", "type": "string", "jsonPath": ".spec.max"}"#,
    printcolumn = r#"{"name": "By", "type": "string", "jsonPath": ".spec.scope.by"}"#,
    printcolumn = r#"{"name": "Held", "type": "integer", "jsonPath": ".status.held"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct OperationPolicySpec {
    /// Types of operations that this policy applies to. They share the limit.
    #[schemars(schema_with = "text::camel_cases")]
    pub operations: Vec<String>,
    /// Scope of the limit. If omitted, the whole namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<PolicyScope>,
    /// Maximum number of operations at the same time: a number, or a percentage of the machines in the scope.
    pub max: Amount,
    /// Minimum of the limit, however small the scope, if `max` is a percentage.
    #[serde(default = "OperationPolicySpec::default_at_least")]
    #[schemars(range(max = 100_000))]
    pub at_least: u32,
}

impl OperationPolicySpec {
    fn default_at_least() -> u32 {
        1
    }
}

/// Scope of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct PolicyScope {
    /// Label of the targets. Each value of the label is a scope.
    #[schemars(schema_with = "text::label_key")]
    pub by: String,
}

/// Observed state of an OperationPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationPolicyStatus {
    /// The `metadata.generation` of the OperationPolicy that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Operations that were allowed and have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["operation".to_owned()]))]
    pub holders: Vec<Holder>,
    /// Number of operations that were allowed and have not ended.
    #[serde(default)]
    pub held: u32,
    /// Conditions: whether the policy is valid (`Accepted`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// An operation that was allowed and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Holder {
    /// Name of the Operation.
    #[schemars(length(min = 1, max = 253))]
    pub operation: String,
    /// UID of the Operation: a later one with the same name does not occupy this place.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,
    /// Scope in which the operation counts; empty for the whole namespace.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub scope: String,
}

/// A number, or a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number.
    Count(u32),
    /// A percentage.
    Percent(u32),
}

impl Amount {
    /// Returns the amount of a total: a percentage is rounded down, and never less than `at_least`.
    pub fn of(self, total: usize, at_least: u32) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => (total * percent as usize / 100).max(at_least as usize),
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Count(u32),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Count(count) => Ok(Self::Count(count)),
            Raw::Text(text) => text
                .strip_suffix('%')
                .and_then(|percent| percent.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Percent)
                .ok_or_else(|| {
                    serde::de::Error::custom(format!("{text:?} is neither a number nor a percentage such as 5%"))
                }),
        }
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^(0|[1-9][0-9]?|100)%$')",
                "message": text::AMOUNT,
            }],
        })
    }
}
