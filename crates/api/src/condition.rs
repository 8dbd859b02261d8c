use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a condition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell.
    #[default]
    Unknown,
}

impl Status {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition as Kubernetes' API conventions have it, and who reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is spoken of, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 316), regex(pattern = TYPE))]
    pub type_: String,
    /// Does it hold?
    pub status: Status,
    /// One word in CamelCase why, for programs.
    #[serde(default)]
    #[schemars(length(max = 1024), regex(pattern = REASON))]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Since when the status is what it is.
    pub last_transition_time: Timestamp,
    /// The generation of the object that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Who reported it, when it was copied from a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reporter: Option<String>,
}

/// As Kubernetes has it.
const TYPE: &str =
    "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// As Kubernetes has it, or empty: a report need not give a reason.
const REASON: &str = "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$";

/// The condition of that type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Is there a condition of that type, and does it hold?
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == Status::True)
}
