//! The printed cells.

use serde_json::{Value, json};

use super::*;
use crate::table::{KINDS, find};

const NOW: &str = "2026-01-01T12:00:00Z";

fn cells(group: &str, plural: &str, mut object: Value) -> Vec<Value> {
    if object.pointer("/metadata/creationTimestamp").is_none() {
        object["metadata"]["creationTimestamp"] = "2026-01-01T11:57:00Z".into();
    }
    row(find(group, "v1", plural).unwrap(), &object, NOW.parse().unwrap())
}

#[test]
fn every_kind_has_as_many_cells_as_columns() {
    for kind in KINDS.iter().filter(|kind| kind.is_stored()) {
        let row = row(kind, &json!({"metadata": {"name": "x"}}), NOW.parse().unwrap());
        assert_eq!(row.len(), columns(kind).len(), "{}", kind.plural);
    }
}

#[test]
fn every_column_says_what_it_means() {
    for kind in KINDS.iter().filter(|kind| kind.is_stored()) {
        for column in columns(kind) {
            assert!(!column.description.is_empty(), "{} {}", kind.plural, column.name);
        }
    }
}

#[test]
fn durations_have_two_or_three_figures() {
    let cases = [
        (-2, "<invalid>"),
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (28_799, "7h59m"),
        (86_400, "24h"),
        (172_800, "2d"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn a_running_pod_shows_ready_containers_and_restarts() {
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.1.2.3"}], "containerStatuses": [
            {"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
             "lastState": {"terminated": {"finishedAt": "2026-01-01T11:55:00Z"}}},
            {"name": "b", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ]},
    });
    let expected = json!(["web", "1/2", "CrashLoopBackOff", "2 (5m ago)", "3m", "10.1.2.3", "n1", "<none>", "<none>",]);
    assert_eq!(Value::from(cells("", "pods", pod)), expected);
}

#[test]
fn a_pod_that_initialises_shows_how_far_it_is() {
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]},
        "status": {"phase": "Pending", "initContainerStatuses": [
            {"name": "i", "state": {"terminated": {"exitCode": 0}}},
            {"name": "j", "state": {"running": {}}},
        ]},
    });
    assert_eq!(cells("", "pods", pod)[2], "Init:1/2");
}

#[test]
fn a_deleted_pod_terminates() {
    let pod = json!({"metadata": {"name": "web", "deletionTimestamp": NOW}, "status": {"phase": "Running"}});
    assert_eq!(cells("", "pods", pod)[2], "Terminating");
}

#[test]
fn a_failed_pods_row_is_completed() {
    let conditions = row_conditions(find("", "v1", "pods").unwrap(), &json!({"status": {"phase": "Failed"}}));
    assert_eq!(conditions[0]["message"], "The pod failed.");
}

#[test]
fn a_cordoned_node_says_so_and_shows_its_roles() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "db"}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.37.1"}},
    });
    let row = cells("", "nodes", node);
    assert_eq!(
        row[..5],
        json!(["n", "Ready,SchedulingDisabled", "db,worker", "3m", "v1.37.1"]).as_array().unwrap()[..]
    );
}

#[test]
fn a_service_shows_its_ports_and_where_it_is_reached() {
    let service = json!({
        "metadata": {"name": "s"},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.9"], "selector": {"a": "b"},
                 "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
    });
    let expected = json!(["s", "LoadBalancer", "10.0.0.9", "<pending>", "80:30080/TCP,53/UDP", "3m", "a=b"]);
    assert_eq!(Value::from(cells("", "services", service)), expected);
}

#[test]
fn a_deployment_shows_ready_of_wanted_and_its_selector() {
    let deployment = json!({
        "metadata": {"name": "d"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"z": "1"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "b", "operator": "DoesNotExist"}]},
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}},
        "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1},
    });
    let expected = json!(["d", "1/3", 2, 1, "3m", "c,d", "i,j", "a in (x,y),!b,z=1"]);
    assert_eq!(Value::from(cells("apps", "deployments", deployment)), expected);
}

#[test]
fn both_kinds_of_events_show_the_same() {
    let old = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "R", "message": " m ", "count": 4,
        "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "c", "host": "h"},
        "firstTimestamp": "2026-01-01T11:00:00Z", "lastTimestamp": "2026-01-01T11:59:00Z",
    });
    let new = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "R", "note": " m ", "deprecatedCount": 4,
        "regarding": {"kind": "Pod", "name": "p"}, "deprecatedSource": {"component": "c", "host": "h"},
        "deprecatedFirstTimestamp": "2026-01-01T11:00:00Z", "deprecatedLastTimestamp": "2026-01-01T11:59:00Z",
    });
    let expected = json!(["60s", "Normal", "R", "pod/p", "", "c, h", "m", "60m", 4, "e"]);
    assert_eq!(Value::from(cells("", "events", old)), expected);
    assert_eq!(Value::from(cells("events.k8s.io", "events", new)), expected);
}

#[test]
fn only_the_newest_default_storage_class_is_marked() {
    let class = |name: &str, created: &str| {
        json!({"metadata": {"name": name, "creationTimestamp": created,
               "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}})
    };
    let classes = [class("old", "2025-01-01T00:00:00Z"), class("new", "2025-02-01T00:00:00Z")];
    assert_eq!(default_of(find("storage.k8s.io", "v1", "storageclasses").unwrap(), &classes), Some(1));
}

#[test]
fn a_job_without_completions_counts_to_one() {
    let job = json!({"metadata": {"name": "j"}, "spec": {"parallelism": 3}, "status": {
        "succeeded": 1, "startTime": "2026-01-01T11:58:00Z", "conditions": [{"type": "Suspended", "status": "True"}]}});
    assert_eq!(cells("batch", "jobs", job)[1..4], json!(["Suspended", "1/1 of 3", "2m"]).as_array().unwrap()[..]);
}

#[test]
fn a_signing_request_shows_the_last_word_on_it() {
    let request = json!({"metadata": {"name": "r"}, "spec": {"expirationSeconds": 86400, "username": "u"}, "status": {
        "certificate": "eA==", "conditions": [{"type": "Approved", "status": "True"}]}});
    let expected = json!(["r", "3m", "<none>", "u", "24h", "Approved,Issued"]);
    assert_eq!(Value::from(cells("certificates.k8s.io", "certificatesigningrequests", request)), expected);
}

#[test]
fn more_than_three_endpoints_are_counted() {
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [
        {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 1}, {"port": 2}]}]});
    assert_eq!(cells("", "endpoints", endpoints)[1], "10.0.0.1:1,[fd00::1]:1,10.0.0.1:2 + 1 more...");
}
