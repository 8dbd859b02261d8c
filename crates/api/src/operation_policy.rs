use std::borrow::Cow;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Condition, text};

/// How many operations of some kinds may be under way at once. An operation of a kind that no policy names is not let pass.
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
    /// The types of operations meant. They share the limit.
    #[schemars(schema_with = "text::camel_cases")]
    pub operations: Vec<String>,
    /// What the limit is counted in. The whole namespace if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<PolicyScope>,
    /// So many at once: a number, or a percentage of the machines in the scope.
    pub max: Amount,
    /// However small the scope, so many at once, when `max` is a percentage.
    #[serde(default = "OperationPolicySpec::default_at_least")]
    #[schemars(range(max = 100_000))]
    pub at_least: u32,
}

impl OperationPolicySpec {
    fn default_at_least() -> u32 {
        1
    }
}

/// What a limit is counted in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct PolicyScope {
    /// The label of the targets whose values are the scopes.
    #[schemars(schema_with = "text::label_key")]
    pub by: String,
}

/// The present counts of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationPolicyStatus {
    /// The generation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// The operations that passed and have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["operation".to_owned()]))]
    pub holders: Vec<Holder>,
    /// How many operations passed and have not ended.
    #[serde(default)]
    pub held: u32,
    /// Whether the policy is understood (`Accepted`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// An operation that passed and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Holder {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub operation: String,
    /// Its uid: a later one of the same name does not hold this one's place.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,
    /// The scope it counts in; empty for the whole namespace.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub scope: String,
}

/// A number, or a percentage of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Amount {
    /// How many that is of so many: rounded down, and never fewer than `at_least` for a percentage.
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
