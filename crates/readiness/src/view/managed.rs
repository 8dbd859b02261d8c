//! The field managers of an object, from managedFields, which are then dropped.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::thin::read_time;

/// The entry of one manager.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedFieldsEntry {
    #[serde(default)]
    pub manager: String,
    #[serde(default)]
    pub subresource: String,
    #[serde(default, deserialize_with = "read_time")]
    pub time: Option<Timestamp>,
    #[serde(default)]
    fields_v1: Option<Fields>,
}

/// The fields of an entry, as far as they are read.
#[derive(Debug, Default, Deserialize)]
struct Fields {
    #[serde(default, rename = "f:spec")]
    spec: Option<Spec>,
    #[serde(default, rename = "f:status")]
    status: Option<Status>,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default, rename = "f:unschedulable")]
    unschedulable: Option<IgnoredAny>,
    #[serde(default, rename = "f:taints")]
    taints: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default, rename = "f:conditions")]
    conditions: Option<BTreeMap<String, IgnoredAny>>,
}

impl ManagedFieldsEntry {
    fn spec(&self) -> Option<&Spec> {
        self.fields_v1.as_ref()?.spec.as_ref()
    }

    /// Whether the entry has `spec.unschedulable` of a Node.
    pub fn cordons(&self) -> bool {
        self.spec().is_some_and(|spec| spec.unschedulable.is_some())
    }

    /// Whether the entry has `spec.taints` of a Node.
    pub fn taints(&self) -> bool {
        self.spec().is_some_and(|spec| spec.taints.is_some())
    }

    /// Whether the entry has the condition of that type in the status.
    pub fn has_condition(&self, type_: &str) -> bool {
        let status = self.fields_v1.as_ref().and_then(|fields| fields.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|conditions| conditions.contains_key(&format!("k:{{\"type\":\"{type_}\"}}")))
    }
}
