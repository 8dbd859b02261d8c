use std::sync::Arc;

use fleetwright_api::{Bootstrapped, Condition, Machine, NodeRef, Taint, TaintEffect, names};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use serde::Deserialize;

use super::thin::{Meta, thin};
use super::{ConditionView, intern};
use crate::MANAGER;

/// The cached fields of a Machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineView {
    /// Uid of the Machine.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    pub generation: i64,
    /// Creation time.
    pub created: Timestamp,
    /// When anything but its status last changed.
    pub changed: Timestamp,
    /// Its labels, sorted.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// The name of its Node.
    pub node: Arc<str>,
    /// The uid of the Node that is bound to it.
    pub bound: Option<Arc<str>>,
    /// Whether its Node must not be changed.
    pub paused: bool,
    /// Declared taints of its Node.
    pub taints: Box<[(Arc<str>, TaintEffect)]>,
    /// When it was first ready, and with which Node.
    pub bootstrapped: Option<Bootstrapped>,
    pub conditions: Box<[ConditionView]>,
}

thin! {
    /// A Machine that decodes into its view.
    ThinMachine, MachineView, Raw, Machine, NamespaceResourceScope
}

#[derive(Deserialize)]
pub(super) struct Raw {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    hostname: Option<String>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    taints: Vec<Taint>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    node_ref: Option<NodeRef>,
    #[serde(default)]
    bootstrapped: Option<Bootstrapped>,
}

impl MachineView {
    fn read(raw: Raw) -> Self {
        let Raw { metadata, spec, status } = raw;
        let status = status.unwrap_or_default();
        let bound = status.node_ref.as_ref().filter(|node| node.binding.is_some()).and_then(|node| node.uid.as_deref());
        let bound = bound.map(intern);
        let node = status.node_ref.map(|node| node.name).or(spec.hostname).unwrap_or_else(|| metadata.name.clone());
        let mine = metadata.managed_fields.iter().flatten().find(|entry| {
            // For an answer without managedFields (a person can clear them), the fields that only we write decide.
            entry.manager == MANAGER && entry.subresource == "status"
        });
        let ours = |condition: &Condition| match mine {
            Some(entry) => entry.has_condition(&condition.type_),
            None => {
                condition.reporter.is_some() || [names::SCHEDULABLE, names::REPORTS_VALID].contains(&&*condition.type_)
            }
        };
        let conditions = status
            .conditions
            .iter()
            .map(|condition| ConditionView {
                type_: intern(&condition.type_),
                status: condition.status,
                reason: intern(&condition.reason),
                message: intern(&condition.message),
                since: condition.last_transition_time,
                heartbeat: None,
                observed_generation: condition.observed_generation,
                reporter: condition.reporter.as_deref().map(intern),
                ours: ours(condition),
            })
            .collect();
        Self {
            created: metadata.created(),
            changed: metadata.changed(),
            generation: metadata.generation,
            labels: metadata.labels.iter().flatten().map(|(key, value)| (intern(key), intern(value))).collect(),
            node: intern(&node),
            bound,
            paused: spec.paused,
            taints: spec.taints.iter().map(|taint| (intern(&taint.key), taint.effect)).collect(),
            bootstrapped: status.bootstrapped,
            conditions,
            uid: metadata.uid.into(),
            version: metadata.resource_version.into(),
        }
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(other, _)| &**other == key).map(|(_, value)| &**value)
    }

    /// The condition of that type.
    pub fn condition(&self, type_: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| &*condition.type_ == type_)
    }
}
