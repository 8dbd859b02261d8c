use std::sync::Arc;

use fleetwright_api::TaintEffect;
use jiff::Timestamp;
use k8s_openapi::ClusterResourceScope;
use serde::Deserialize;
use serde_json::Value;

use super::managed::ManagedFieldsEntry;
use super::thin::{Meta, read_time, thin};
use super::{ConditionView, intern, status};
use crate::MANAGER;

/// The cached fields of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// Uid of the Node.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// Creation time.
    pub created: Timestamp,
    /// Its taints, as the API server has them; none if it has none.
    pub taints: Option<Box<Value>>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Author of the cordon.
    pub cordoned_by: Option<LastWriter>,
    /// Last writer of its taints other than this operator.
    pub tainted_by: Option<LastWriter>,
    pub conditions: Box<[ConditionView]>,
}

/// The writer of a field, and the time of the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWriter {
    /// The field manager.
    pub manager: Arc<str>,
    /// Time of the write.
    pub at: Option<Timestamp>,
}

/// The cached fields of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaintView<'a> {
    pub key: &'a str,
    /// Its effect; none if the effect is unknown.
    pub effect: Option<TaintEffect>,
    /// When it was added, if that was recorded.
    pub added: Option<Timestamp>,
}

thin! {
    /// A Node that decodes into its view.
    ThinNode, NodeView, Raw, k8s_openapi::api::core::v1::Node, ClusterResourceScope
}

#[derive(Deserialize)]
pub(super) struct Raw {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    unschedulable: bool,
    #[serde(default)]
    taints: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<RawCondition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default, deserialize_with = "read_time")]
    last_transition_time: Option<Timestamp>,
    #[serde(default, deserialize_with = "read_time")]
    last_heartbeat_time: Option<Timestamp>,
}

impl NodeView {
    fn read(raw: Raw) -> Self {
        let Raw { metadata, spec, status: seen } = raw;
        let created = metadata.created();
        let last = |has: fn(&ManagedFieldsEntry) -> bool| {
            let entries =
                metadata.managed_fields.iter().flatten().filter(|entry| has(entry) && entry.manager != MANAGER);
            let entry = entries.max_by_key(|entry| entry.time)?;
            Some(LastWriter { manager: intern(&entry.manager), at: entry.time })
        };
        let conditions = seen
            .conditions
            .iter()
            .flatten()
            .map(|condition| ConditionView {
                type_: intern(&condition.type_),
                status: status(&condition.status),
                reason: intern(&condition.reason),
                message: intern(&condition.message),
                since: condition.last_transition_time.unwrap_or(created),
                heartbeat: condition.last_heartbeat_time,
                observed_generation: None,
                reporter: None,
                ours: false,
            })
            .collect();
        Self {
            created,
            cordoned: spec.unschedulable,
            cordoned_by: if spec.unschedulable { last(ManagedFieldsEntry::cordons) } else { None },
            tainted_by: if spec.taints.is_some() { last(ManagedFieldsEntry::taints) } else { None },
            taints: spec.taints.filter(|taints| taints.as_array().is_some_and(|list| !list.is_empty())).map(Box::new),
            conditions,
            uid: metadata.uid.into(),
            version: metadata.resource_version.into(),
        }
    }

    /// Its taints, in order.
    pub fn taints(&self) -> impl Iterator<Item = TaintView<'_>> {
        let list = self.taints.as_deref().and_then(Value::as_array).into_iter().flatten();
        list.map(|taint| TaintView {
            key: taint["key"].as_str().unwrap_or_default(),
            effect: match taint["effect"].as_str() {
                Some("NoSchedule") => Some(TaintEffect::NoSchedule),
                Some("PreferNoSchedule") => Some(TaintEffect::PreferNoSchedule),
                Some("NoExecute") => Some(TaintEffect::NoExecute),
                _ => None,
            },
            added: taint["timeAdded"].as_str().and_then(|time| time.parse().ok()),
        })
    }
}
