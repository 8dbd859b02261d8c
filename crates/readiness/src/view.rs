//! The cached fields of objects: few, since there are tens of thousands of objects.

mod gates;
mod intern;
mod machine;
mod managed;
mod node;
mod report;
mod thin;

pub use gates::GatesView;
pub use intern::intern;
pub use machine::MachineView;
pub use node::{LastWriter, NodeView};
pub use report::ReportView;

use std::sync::Arc;

use fleetwright_api::Status;
use fleetwright_plan::readiness::ObservedCondition;
use jiff::Timestamp;

/// The cached fields of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionView {
    /// Type of the condition.
    pub type_: Arc<str>,
    /// Status of the condition.
    pub status: Status,
    /// Reason of the condition.
    pub reason: Arc<str>,
    /// Message of the condition.
    pub message: Arc<str>,
    /// Last transition time.
    pub since: Timestamp,
    /// Last heartbeat.
    pub heartbeat: Option<Timestamp>,
    pub observed_generation: Option<i64>,
    /// The reporter, for a copied condition.
    pub reporter: Option<Arc<str>>,
    /// Whether this operator wrote it.
    pub ours: bool,
}

impl ConditionView {
    /// The condition in the form of the gates. A condition of another operator is never a report, whatever its fields say.
    pub fn fact(&self) -> ObservedCondition<'_> {
        ObservedCondition {
            type_: &self.type_,
            status: self.status,
            reason: &self.reason,
            message: &self.message,
            since: self.since,
            heartbeat: self.heartbeat,
            reporter: self.reporter.as_deref().filter(|_| self.ours),
        }
    }
}

/// A status as Kubernetes writes it; anything else is unknown.
fn status(text: &str) -> Status {
    match text {
        "True" => Status::True,
        "False" => Status::False,
        _ => Status::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_kit::View;
    use serde_json::{Value, json};

    use super::*;

    fn view<V: View>(object: Value) -> V {
        V::of(serde_json::from_value(object).unwrap())
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn who_cordoned_a_node_is_known_although_managed_fields_are_dropped() {
        let entry = |manager: &str, at: &str, fields: Value| json!({ "manager": manager, "operation": "Update", "time": at, "fieldsV1": fields });
        let node: NodeView = view(json!({
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [
                entry("kubelet", "2026-01-01T00:00:00Z", json!({ "f:spec": { "f:taints": {} } })),
                entry("kubectl-cordon", "2026-01-02T00:00:00Z", json!({ "f:spec": { "f:unschedulable": {} } })),
                entry("fleetwright-readiness", "2026-01-03T00:00:00Z", json!({ "f:spec": { "f:taints": {} } })),
                entry("odd", "2026-01-04T00:00:00Z", Value::Null),
            ] },
            "spec": { "unschedulable": true, "taints": [{ "key": "fleetwright.io/unready", "effect": "NoSchedule", "timeAdded": "2026-01-03T00:00:00Z" }] },
        }));
        assert_eq!(
            node.cordoned_by,
            Some(LastWriter { manager: "kubectl-cordon".into(), at: Some(time("2026-01-02T00:00:00Z")) })
        );
        assert_eq!(node.tainted_by.unwrap().manager, "kubelet".into(), "our own hand does not count");
        assert_eq!(node.taints.map(|taints| taints.as_array().unwrap().len()), Some(1));
    }

    #[test]
    fn objects_with_hardly_anything_in_them_are_read() {
        let node: NodeView = view(json!({ "metadata": { "name": "n" } }));
        assert!(!node.cordoned && node.taints.is_none() && node.conditions.is_empty());
        let machine: MachineView =
            view(json!({ "metadata": { "name": "m", "labels": null, "managedFields": null }, "spec": {} }));
        assert_eq!(&*machine.node, "m");
        let report: ReportView = view(json!({ "metadata": { "name": "r" } }));
        assert_eq!(&*report.machine, "");
    }

    #[test]
    fn a_node_with_invalid_times_is_read() {
        let late = "9999-12-31T23:59:59Z";
        let node: NodeView = view(json!({
            "metadata": { "name": "n", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [
                { "manager": "kubelet", "time": late, "fieldsV1": { "f:spec": { "f:taints": {} } } },
            ] },
            "spec": { "taints": [{ "key": "k", "effect": "NoSchedule", "timeAdded": late }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "lastHeartbeatTime": late, "lastTransitionTime": late },
                { "type": "Other", "status": "False", "lastHeartbeatTime": null },
            ] },
        }));
        let times: Vec<_> = node.conditions.iter().map(|kept| (kept.since, kept.heartbeat)).collect();
        let (long_ago, created) = (Timestamp::UNIX_EPOCH, time("2026-01-01T00:00:00Z"));
        assert_eq!(times, [(long_ago, Some(long_ago)), (created, None)], "it is stale for a gate that asks");
        assert!(node.taints().all(|taint| taint.added.is_none()));
        assert_eq!(&*node.tainted_by.unwrap().manager, "kubelet");
    }

    #[test]
    fn a_machine_changed_when_somebody_wrote_anything_but_its_status() {
        let entry = |at: &str, subresource: &str| json!({ "manager": "m", "time": at, "subresource": subresource, "fieldsV1": {} });
        let machine: MachineView = view(json!({ "metadata": {
            "name": "m", "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [entry("2026-01-02T00:00:00Z", ""), entry("2026-01-03T00:00:00Z", "status")],
        }, "spec": {} }));
        assert_eq!(machine.changed, time("2026-01-02T00:00:00Z"));
    }

    #[test]
    fn only_what_we_wrote_is_a_copy() {
        let condition = |type_: &str| json!({ "type": type_, "status": "True", "reporter": "r", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let fields = json!({ "f:status": { "f:conditions": { "k:{\"type\":\"Ours\"}": { ".": {} } } } });
        let machine: MachineView = view(json!({
            "metadata": { "name": "m", "managedFields": [
                { "manager": "fleetwright-readiness", "subresource": "status", "fieldsV1": fields },
            ] },
            "spec": {},
            "status": { "conditions": [condition("Ours"), condition("Theirs")] },
        }));
        let facts: Vec<_> =
            machine.conditions.iter().map(ConditionView::fact).map(|fact| (fact.type_, fact.reporter)).collect();
        assert_eq!(facts, [("Ours", Some("r")), ("Theirs", None)]);
    }

    #[test]
    fn a_report_without_heartbeat_is_as_fresh_as_its_last_writing() {
        let report: ReportView = view(json!({
            "metadata": {
                "name": "m.r", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "fleetwright.io/machine": "m", "fleetwright.io/reporter": "r" },
                "managedFields": [{ "manager": "r", "time": "2026-01-05T00:00:00Z", "fieldsV1": {} }],
            },
            "data": { "conditions": "[{\"type\":\"LogAgentReady\",\"status\":\"True\"}]" },
        }));
        let fleetwright_plan::readiness::reports::ReportContent::Read { facts, .. } = report.filed("m.r").content
        else {
            panic!("it is well-formed");
        };
        assert_eq!(facts[0].heartbeat, Some(time("2026-01-05T00:00:00Z")));
    }
}
