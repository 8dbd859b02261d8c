use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Status, names};

/// The report of one reporter on one machine, read from a labelled ConfigMap.
///
/// This is the contract for authors of other operators. The ConfigMap
///
/// - has the labels `fleetwright.io/machine` (name of the machine) and `fleetwright.io/reporter` (a DNS label),
/// - has the name `MACHINE.REPORTER`: a reporter has one report for each machine, and write access to this name allows reporting only on this machine,
/// - contains under `data.conditions` a JSON list of at most 32 conditions ([`SubCondition`]), each with a different type.
///
/// Anyone with write access to ConfigMaps in the namespace may write anything, so nothing of a report is used before it is validated here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the machine.
    pub machine: String,
    /// Name of the reporter.
    pub reporter: String,
    /// Reported conditions.
    pub conditions: Vec<SubCondition>,
}

/// One condition in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubCondition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition.
    pub status: Status,
    /// Machine-readable reason, one word in CamelCase.
    #[serde(default)]
    pub reason: String,
    /// Human-readable explanation.
    #[serde(default)]
    pub message: String,
    /// Time at which the reporter last checked the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Timestamp>,
}

/// Why a report is invalid: what was found, what is allowed, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

const MAX_BYTES: usize = 64 * 1024;
const MAX_CONDITIONS: usize = 32;
const MAX_TYPE: usize = 64;
const MAX_REASON: usize = 128;
const MAX_MESSAGE: usize = 1024;
/// Tolerated clock skew.
const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(1);
/// Types that only Fleetwright may report.
const RESERVED: [&str; 5] =
    [names::SCHEDULABLE, names::REPORTS_VALID, names::REACHABLE, names::PACKAGES_READY, names::UP_TO_DATE];
const FIELDS: [&str; 5] = ["type", "status", "reason", "message", "heartbeat"];

impl Report {
    /// Reads the report from the name, labels and data of a ConfigMap.
    ///
    /// # Errors
    /// Describes what is wrong with the labels, the name or the data. An invalid report is ignored as a whole.
    pub fn read(
        name: &str,
        labels: &BTreeMap<String, String>,
        data: &BTreeMap<String, String>,
    ) -> Result<Self, Broken> {
        let broken = |what: String| Broken(format!("ConfigMap {}: {what}", shown(name)));
        let machine = labels
            .get(names::MACHINE)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| broken(format!("the label {} is missing: set it to the machine's name", names::MACHINE)))?;
        let reporter = labels.get(names::REPORTER).filter(|value| !value.is_empty()).ok_or_else(|| {
            broken(format!("the label {} is missing: set it to the name of who reports", names::REPORTER))
        })?;
        if !is_dns_label(reporter) {
            return Err(broken(format!(
                "the label {} is {}: it must be at most 63 lower-case letters, digits and -, beginning and ending with a letter or digit",
                names::REPORTER,
                shown(reporter),
            )));
        }
        let expected = format!("{machine}.{reporter}");
        if name != expected {
            return Err(broken(format!(
                "it reports on machine {} for reporter {} and must be called {}: rename it, or correct its labels",
                shown(machine),
                shown(reporter),
                shown(&expected),
            )));
        }
        let text = data.get(names::REPORT_DATA).ok_or_else(|| {
            broken(format!("data.{} is missing: write a JSON list of conditions there", names::REPORT_DATA))
        })?;
        let conditions = conditions(text).map_err(|what| broken(format!("data.{}{what}", names::REPORT_DATA)))?;
        Ok(Self { machine: machine.clone(), reporter: reporter.clone(), conditions })
    }

    /// Checks the heartbeats against the current time: a heartbeat in the future would never become stale.
    ///
    /// # Errors
    /// Names the heartbeat that is more than a minute in the future.
    pub fn check_time(&self, now: Timestamp) -> Result<(), Broken> {
        for (index, condition) in self.conditions.iter().enumerate() {
            if let Some(heartbeat) = condition.heartbeat.filter(|at| at.duration_since(now) > MAX_AHEAD) {
                return Err(Broken(format!(
                    "ConfigMap {}: data.{}[{index}].heartbeat ({}) is {heartbeat}, more than a minute ahead of {now}: set the reporter's clock right, and write the time it last looked",
                    shown(&format!("{}.{}", self.machine, self.reporter)),
                    names::REPORT_DATA,
                    condition.type_,
                )));
            }
        }
        Ok(())
    }
}

/// The contract, for the reference page.
pub(crate) fn reference() -> String {
    let reserved = RESERVED.map(|name| format!("`{name}`")).join(", ");
    format!(
        "
## ConfigMaps that report

How another operator says what it knows of a machine, for gates with `from.reporter`. An example: [report.yaml](../examples/report.yaml)

| field | what is allowed |
|---|---|
| `metadata.labels[{machine}]` | required: the machine's name |
| `metadata.labels[{reporter}]` | required: who reports; lower-case letters, digits and -, 63 characters at most |
| `metadata.name` | `MACHINE.REPORTER`, as in the labels |
| `data.{data}` | required: a JSON list of at most {MAX_CONDITIONS} conditions, {MAX_BYTES} bytes at most |
| `data.{data}[].type` | required: one word in CamelCase, {MAX_TYPE} characters at most, once in a report; not {reserved} |
| `data.{data}[].status` | required: `True`, `False` or `Unknown` |
| `data.{data}[].reason` | one word in CamelCase, {MAX_REASON} characters at most |
| `data.{data}[].message` | {MAX_MESSAGE} characters at most; line breaks, but no other control characters |
| `data.{data}[].heartbeat` | when the reporter last looked, such as `2026-11-15T08:00:00Z`; not more than a minute in the future |

Other fields are refused. Nothing of a broken report counts; what is wrong with it is in the Machine's condition `{valid}`.
",
        machine = names::MACHINE,
        reporter = names::REPORTER,
        data = names::REPORT_DATA,
        valid = names::REPORTS_VALID,
    )
}

/// Parses the list. An error message continues after `data.conditions`.
fn conditions(text: &str) -> Result<Vec<SubCondition>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!(" is {} bytes long: at most {MAX_BYTES} are read; shorten the messages", text.len()));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| format!(" is not JSON: {error}"))?;
    let Value::Array(entries) = value else {
        return Err(format!(" is {}: it must be a JSON list of conditions", kind(&value)));
    };
    if entries.len() > MAX_CONDITIONS {
        return Err(format!(" has {} conditions: at most {MAX_CONDITIONS} are allowed", entries.len()));
    }
    let mut seen = BTreeSet::new();
    let mut out = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let condition = sub_condition(entry).map_err(|what| format!("[{index}]{what}"))?;
        if !seen.insert(condition.type_.clone()) {
            return Err(format!("[{index}].type is {} a second time: report each type once", condition.type_));
        }
        out.push(condition);
    }
    Ok(out)
}

fn sub_condition(entry: &Value) -> Result<SubCondition, String> {
    let Value::Object(fields) = entry else {
        return Err(format!(" is {}: it must be an object with type and status", kind(entry)));
    };
    if let Some(unknown) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        return Err(format!(".{} is not known: the fields are {}", shown(unknown), FIELDS.join(", ")));
    }
    let text = |field: &str| match fields.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(format!(".{field} is {}: it must be a text", kind(other))),
    };

    let type_ = text("type")?.ok_or(".type is missing: it names what is reported, in CamelCase")?;
    if type_.len() > MAX_TYPE || !is_camel_case(type_) {
        return Err(format!(
            ".type is {}: it must be one word in CamelCase of at most {MAX_TYPE} letters and digits, such as LogAgentReady",
            shown(type_)
        ));
    }
    if RESERVED.contains(&type_) {
        return Err(format!(".type is {type_}, which Fleetwright itself decides: report a type of your own"));
    }
    let status = match text("status")? {
        Some("True") => Status::True,
        Some("False") => Status::False,
        Some("Unknown") => Status::Unknown,
        Some(other) => return Err(format!(".status is {}: it must be True, False or Unknown", shown(other))),
        None => return Err(".status is missing: it must be True, False or Unknown".to_owned()),
    };
    let reason = text("reason")?.unwrap_or_default();
    if reason.len() > MAX_REASON || !(reason.is_empty() || is_camel_case(reason)) {
        return Err(format!(
            ".reason is {}: it must be one word in CamelCase of at most {MAX_REASON} letters and digits, such as DaemonSetReady, or be left out",
            shown(reason)
        ));
    }
    let message = text("message")?.unwrap_or_default();
    let length = message.chars().count();
    if length > MAX_MESSAGE {
        return Err(format!(".message is {length} characters long: at most {MAX_MESSAGE} are allowed"));
    }
    if let Some(control) = message.chars().find(|c| c.is_control() && *c != '\n') {
        return Err(format!(
            ".message contains the control character {}: only printable characters and line breaks are allowed",
            control.escape_unicode()
        ));
    }
    let heartbeat = text("heartbeat")?
        .map(|heartbeat| {
            heartbeat.parse::<Timestamp>().map_err(|_| {
                format!(".heartbeat is {}: it must be a time such as 2026-11-15T08:00:00Z", shown(heartbeat))
            })
        })
        .transpose()?;
    Ok(SubCondition {
        type_: type_.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        heartbeat,
    })
}

/// Quotes a value for a message, without control characters and with limited length.
fn shown(text: &str) -> String {
    const MAX_LENGTH: usize = 80;
    let mut short: String = text.chars().take(MAX_LENGTH).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn is_camel_case(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.chars().all(|c| c.is_ascii_alphanumeric())
}

fn is_dns_label(text: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 63 && text.starts_with(word) && text.ends_with(word) && text.chars().all(|c| word(c) || c == '-')
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
