use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Status;

/// What one reporter says of one machine, read from a labelled ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The machine meant.
    pub machine: String,
    /// Who reports.
    pub reporter: String,
    /// What is reported.
    pub conditions: Vec<SubCondition>,
}

/// One condition in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubCondition {
    /// What is spoken of, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// Does it hold?
    pub status: Status,
    /// One word in CamelCase why, for programs.
    #[serde(default)]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub message: String,
    /// When the reporter last looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Timestamp>,
}

/// What is wrong with a report: what was found, what is allowed, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

impl Report {
    /// Reads the report in a ConfigMap with that name, those labels and that data.
    ///
    /// # Errors
    /// Says what is wrong with the labels, the name or the data. Nothing of a broken report counts.
    pub fn read(
        _name: &str,
        _labels: &BTreeMap<String, String>,
        _data: &BTreeMap<String, String>,
    ) -> Result<Self, Broken> {
        todo!()
    }
}
