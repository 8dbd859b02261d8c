use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
pub enum Status {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status cannot be determined.
    #[default]
    Unknown,
}

impl Status {
    /// Returns the status as Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition as defined by the API conventions of Kubernetes, with the reporter added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 316), regex(pattern = TYPE))]
    pub type_: String,
    /// Status of the condition.
    pub status: Status,
    /// Machine-readable reason, one word in CamelCase.
    #[serde(default)]
    #[schemars(length(max = 1024), regex(pattern = REASON))]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Time at which the status last changed.
    pub last_transition_time: Timestamp,
    /// Generation of the object that the condition is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Reporter of the condition, if it was copied from a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reporter: Option<String>,
}

/// The pattern of Kubernetes.
const TYPE: &str =
    "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// The pattern of Kubernetes, or empty: a report need not give a reason.
const REASON: &str = "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$";

/// Returns the condition of a type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the condition of a type exists and holds.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == Status::True)
}
