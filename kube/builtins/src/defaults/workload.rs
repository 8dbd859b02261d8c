//! Defaults of the kinds that make pods: deployments and their siblings, jobs and cron jobs.

use serde_json::{Map, Value};

use crate::access::{default, get, is_empty, items_mut, object, set, text};
use crate::defaults::{claim_spec, template};

/// Fills in the defaults of a workload.
pub(crate) fn apply(kind: &str, workload: &mut Value) {
    match kind {
        "Job" => job(workload),
        "ReplicationController" => replication_controller(workload),
        _ => {}
    }
    let Some(spec) = object(workload, "spec") else { return };
    match kind {
        "Deployment" => deployment(spec),
        "ReplicaSet" | "ReplicationController" => default(spec, "replicas", 1),
        "StatefulSet" => stateful_set(spec),
        "DaemonSet" => daemon_set(spec),
        "CronJob" => cron_job(spec),
        _ => {}
    }
    if matches!(kind, "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" | "DaemonSet" | "Job") {
        template(spec, "template");
    }
}

fn deployment(spec: &mut Value) {
    default(spec, "replicas", 1);
    if let Some(strategy) = object(spec, "strategy") {
        default(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = object(strategy, "rollingUpdate")
        {
            default(rolling, "maxUnavailable", "25%");
            default(rolling, "maxSurge", "25%");
        }
    }
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
}

fn daemon_set(spec: &mut Value) {
    if let Some(strategy) = object(spec, "updateStrategy") {
        default(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = object(strategy, "rollingUpdate")
        {
            default(rolling, "maxUnavailable", 1);
            default(rolling, "maxSurge", 0);
        }
    }
    default(spec, "revisionHistoryLimit", 10);
}

fn stateful_set(spec: &mut Value) {
    default(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = object(spec, "updateStrategy") {
        if text(strategy, "type").is_empty() {
            set(strategy, "type", "RollingUpdate");
            default(strategy, "rollingUpdate", Value::Object(Map::new()));
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = strategy.get_mut("rollingUpdate").filter(|rolling| rolling.is_object())
        {
            default(rolling, "partition", 0);
            default(rolling, "maxUnavailable", 1);
        }
    }
    if let Some(retention) = object(spec, "persistentVolumeClaimRetentionPolicy") {
        default(retention, "whenDeleted", "Retain");
        default(retention, "whenScaled", "Retain");
    }
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    for claim in items_mut(spec, "volumeClaimTemplates") {
        default(claim, "apiVersion", "v1");
        default(claim, "kind", "PersistentVolumeClaim");
        if let Some(status) = object(claim, "status") {
            default(status, "phase", "Pending");
        }
        if let Some(spec) = object(claim, "spec") {
            claim_spec(spec);
        }
    }
}

fn replication_controller(controller: &mut Value) {
    let labels = get(controller, "spec.template.metadata.labels").cloned();
    let Some(labels) = labels.filter(|labels| !is_empty(Some(labels))) else { return };
    if let Some(spec) = object(controller, "spec")
        && is_empty(spec.get("selector"))
    {
        set(spec, "selector", labels.clone());
    }
    if let Some(meta) = object(controller, "metadata")
        && is_empty(meta.get("labels"))
    {
        set(meta, "labels", labels);
    }
}

fn job(job: &mut Value) {
    if let Some(spec) = object(job, "spec") {
        job_spec(spec);
    }
}

fn job_spec(spec: &mut Value) {
    if get(spec, "parallelism").is_none() {
        default(spec, "completions", 1);
    }
    default(spec, "parallelism", 1);
    if get(spec, "completions").is_none_or(Value::is_null) {
        crate::access::remove(spec, "completions");
    }
    let limit = if get(spec, "backoffLimitPerIndex").is_some() { i64::from(i32::MAX) } else { 6 };
    default(spec, "backoffLimit", limit);
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    let replacement = if get(spec, "podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
    default(spec, "podReplacementPolicy", replacement);
    default(spec, "manualSelector", false);
    failure_policy(spec);
}

fn failure_policy(spec: &mut Value) {
    for rule in items_mut(spec, "podFailurePolicy.rules") {
        for condition in items_mut(rule, "onPodConditions") {
            default(condition, "status", "True");
        }
    }
}

fn cron_job(spec: &mut Value) {
    default(spec, "concurrencyPolicy", "Allow");
    default(spec, "suspend", false);
    default(spec, "successfulJobsHistoryLimit", 3);
    default(spec, "failedJobsHistoryLimit", 1);
    // A job template is defaulted as a pod template only: its numbers wait for the job that is made from it.
    if let Some(job) = spec.get_mut("jobTemplate").and_then(|template| template.get_mut("spec")) {
        failure_policy(job);
        template(job, "template");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::of;
    use serde_json::json;

    #[test]
    fn a_deployment_rolls_by_a_quarter() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": []}}}});
        of("apps", "Deployment", &mut object);
        assert_eq!(
            get(&object, "spec.strategy"),
            Some(&json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}))
        );
        assert_eq!(get(&object, "spec.replicas"), Some(&json!(1)));
        assert_eq!(get(&object, "spec.template.spec.restartPolicy"), Some(&json!("Always")));
    }

    #[test]
    fn a_replica_count_of_zero_stays() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"replicas": 0, "template": {}}});
        of("apps", "Deployment", &mut object);
        assert_eq!(get(&object, "spec.replicas"), Some(&json!(0)));
    }

    #[test]
    fn a_job_with_parallelism_alone_has_no_completions() {
        let mut object = json!({"metadata": {"name": "a"}, "spec": {"parallelism": 2, "template": {}}});
        of("batch", "Job", &mut object);
        assert_eq!(get(&object, "spec.completions"), None);
        assert_eq!(get(&object, "spec.backoffLimit"), Some(&json!(6)));
    }
}
