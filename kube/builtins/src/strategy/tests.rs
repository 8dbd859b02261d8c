use super::*;

fn pod() -> Value {
    json!({"metadata": {"name": "p", "generation": 1}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}}}]},
        "status": {"phase": "Running", "qosClass": "Guaranteed"}})
}

#[test]
fn a_new_pod_starts_pending_whatever_the_client_says() {
    let mut new = pod();
    create("", "Pod", &mut new);
    assert_eq!(new.get("status"), Some(&json!({"phase": "Pending", "qosClass": "Guaranteed"})));
}

#[test]
fn a_node_registers_with_its_status() {
    let mut node = json!({"metadata": {"name": "n"}, "spec": {}, "status": {"capacity": {"cpu": "4"}}});
    create("", "Node", &mut node);
    assert_eq!(get(&node, "status.capacity.cpu"), Some(&json!("4")));
}

#[test]
fn an_update_cannot_write_the_status() {
    let old = pod();
    let mut new = pod();
    set(&mut new, "status", json!({"phase": "Failed"}));
    update("", "Pod", None, &old, &mut new);
    assert_eq!(text(&new, "status.phase"), "Running");
}

#[test]
fn a_status_update_cannot_write_the_spec() {
    let old = pod();
    let mut new = pod();
    set(&mut new, "spec", json!({"nodeName": "other"}));
    set(&mut new, "status", json!({"phase": "Failed"}));
    update("", "Pod", Some("status"), &old, &mut new);
    assert_eq!(text(&new, "spec.nodeName"), "n");
    assert_eq!(text(&new, "status.phase"), "Failed");
    assert_eq!(text(&new, "status.qosClass"), "Guaranteed");
}

#[test]
fn a_generation_counts_changes_of_the_spec_only() {
    let old = json!({"metadata": {"name": "d", "generation": 3}, "spec": {"replicas": 1}});
    let mut new = old.clone();
    set(&mut new, "metadata", json!({"name": "d", "generation": 9, "labels": {"a": "b"}}));
    update("apps", "ReplicaSet", None, &old, &mut new);
    // The shape that Go shows is added to the spec of the new object alone here.
    assert!(int(&new, "metadata.generation").is_some_and(|generation| generation <= 4));
    let mut shaped = old.clone();
    crate::defaults::shape("apps", "ReplicaSet", &mut shaped);
    let mut same = shaped.clone();
    update("apps", "ReplicaSet", None, &shaped, &mut same);
    assert_eq!(int(&same, "metadata.generation"), Some(3));
}

#[test]
fn a_job_selects_its_pods_by_uid() {
    let mut job = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"manualSelector": false, "template": {}}});
    create("batch", "Job", &mut job);
    assert_eq!(get(&job, "spec.selector"), Some(&json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}})));
    assert_eq!(
        get(&job, "spec.template.metadata.labels"),
        Some(&json!({"batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j",
            "controller-uid": "u", "job-name": "j"}))
    );
}

#[test]
fn a_namespace_holds_on_until_its_content_is_gone() {
    let mut namespace = json!({"metadata": {"name": "n"}});
    create("", "Namespace", &mut namespace);
    assert_eq!(get(&namespace, "spec.finalizers"), Some(&json!(["kubernetes"])));
}

#[test]
fn a_pod_that_runs_nowhere_is_deleted_at_once() {
    let mut pod = pod();
    assert_eq!(pod::grace(&pod, None), 30);
    assert_eq!(pod::grace(&pod, Some(5)), 5);
    assert_eq!(pod::grace(&pod, Some(-1)), 1);
    set(&mut pod, "status", json!({"phase": "Succeeded"}));
    assert_eq!(pod::grace(&pod, None), 0);
}

#[test]
fn a_service_keeps_its_cluster_ip_when_a_client_forgets_it() {
    let old = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"],
        "ports": [{"name": "a", "port": 80, "nodePort": 30001}]}, "status": {"loadBalancer": {}}});
    let mut new =
        json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"name": "a", "port": 81}]}});
    update("", "Service", None, &old, &mut new);
    assert_eq!(text(&new, "spec.clusterIP"), "10.96.0.5");
    assert_eq!(new.pointer("/spec/ports/0/nodePort"), Some(&json!(30001)));
}

#[test]
fn a_service_that_becomes_a_name_loses_its_address() {
    let old = json!({"metadata": {"name": "s"}, "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}});
    let mut new = json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}});
    update("", "Service", None, &old, &mut new);
    assert_eq!(get(&new, "spec.clusterIP"), None);
}

#[test]
fn an_approval_writes_conditions_and_no_certificate() {
    let old = json!({"metadata": {"name": "c"}, "spec": {"request": "eA==", "signerName": "a.b/c"}, "status": {}});
    let mut new = json!({"metadata": {"name": "c"}, "spec": {"request": "other", "signerName": "a.b/c"},
        "status": {"certificate": "eA==", "conditions": [{"type": "Approved", "status": "True"}]}});
    update(CERTIFICATES, "CertificateSigningRequest", Some("approval"), &old, &mut new);
    assert_eq!(text(&new, "spec.request"), "eA==");
    assert_eq!(get(&new, "status.certificate"), None);
    assert!(new.pointer("/status/conditions/0/lastUpdateTime").is_some_and(Value::is_string));
}

#[test]
fn an_event_reads_the_same_from_both_groups() {
    let mut event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "hi", "count": 2, "reportingComponent": "x", "reportingInstance": "y", "source": {"component": "z"},
        "firstTimestamp": null, "lastTimestamp": null, "eventTime": null});
    let core = event.clone();
    event_from_core(&mut event);
    assert_eq!(text(&event, "note"), "hi");
    assert_eq!(text(&event, "regarding.name"), "p");
    assert_eq!(text(&event, "apiVersion"), "events.k8s.io/v1");
    event_to_core(&mut event);
    assert_eq!(event, core);
}

#[test]
fn a_variable_that_hides_another_is_warned_about() {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}});
    let Some(kind) = crate::table::KINDS.iter().find(|kind| kind.kind == "Pod" && kind.group.is_empty()) else {
        panic!("pods are in the table");
    };
    assert_eq!(
        warnings(kind, &pod, None),
        ["spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"]
    );
}
