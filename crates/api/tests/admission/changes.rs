//! Objects over time: what may change and what may not.

use serde_json::{Value, json};

use crate::cases::{machine, object, operation};
use crate::packages;
use crate::server::{Server, refused};

pub async fn all(server: &Server) {
    a_machine_stays_the_same_host(server).await;
    a_package_version_stays_as_it_is(server).await;
    an_operation_stays_the_same_act(server).await;
    an_operation_goes_forward_only(server).await;
    status_and_spec_are_written_apart(server).await;
    conditions_keep_the_shape_that_kubectl_waits_for(server).await;
    numbers_and_lists_in_status_are_bounded(server).await;
}

pub async fn create(server: &Server, object: &Value) {
    server.create(object, false).await.unwrap_or_else(|status| panic!("{}", status.message));
}

pub async fn allowed(server: &Server, object: &Value, subresource: Option<&str>, patch: Value) -> Value {
    let answer = server.merge(object, subresource, &patch).await;
    answer.unwrap_or_else(|status| panic!("{patch}: {}", status.message))
}

pub async fn denied(server: &Server, object: &Value, subresource: Option<&str>, patch: Value, field: &str, part: &str) {
    refused(&patch.to_string(), server.merge(object, subresource, &patch).await, field, part);
}

async fn a_machine_stays_the_same_host(server: &Server) {
    let named = object("Machine", "named", json!({"hostname": "host-1"}));
    create(server, &named).await;
    let part = "delete the machine";
    denied(server, &named, None, json!({"spec": {"hostname": "host-2"}}), "spec.hostname", part).await;
    denied(server, &named, None, json!({"spec": {"hostname": null}}), "spec.hostname", part).await;
    allowed(server, &named, None, json!({"spec": {"addresses": ["10.0.0.1"], "paused": true}})).await;

    // The provider's name may come later; from then on it stays.
    allowed(server, &named, None, json!({"spec": {"providerID": "bare://host-1"}})).await;
    let part = "old one back";
    denied(server, &named, None, json!({"spec": {"providerID": "bare://host-2"}}), "spec.providerID", part).await;
    denied(server, &named, None, json!({"spec": {"providerID": null}}), "spec.providerID", part).await;

    // Without a host name it is the machine's own, said or not.
    let unnamed = object("Machine", "unnamed", json!({}));
    create(server, &unnamed).await;
    let part = "delete the machine";
    denied(server, &unnamed, None, json!({"spec": {"hostname": "host-2"}}), "spec.hostname", part).await;
    allowed(server, &unnamed, None, json!({"spec": {"hostname": "unnamed"}})).await;
    allowed(server, &unnamed, None, json!({"spec": {"hostname": null}})).await;
}

async fn a_package_version_stays_as_it_is(server: &Server) {
    let mut package = packages::package(json!({}));
    package["metadata"]["name"] = "fixed".into();
    create(server, &package).await;
    let part = "another MachinePackageVersion";
    for patch in [
        json!({"spec": {"version": "1.37.2"}}),
        json!({"spec": {"disruption": "Drain"}}),
        json!({"spec": {"files": [{"path": "/etc/kubelet.yaml", "content": "a: c"}]}}),
        json!({"spec": {"dependsOn": ["containerd"]}}),
    ] {
        denied(server, &package, None, patch, "spec", part).await;
    }
    allowed(server, &package, None, json!({"metadata": {"labels": {"pool": "online"}}})).await;
}

async fn an_operation_stays_the_same_act(server: &Server) {
    let mut act = operation(json!({}));
    act["metadata"]["name"] = "same".into();
    create(server, &act).await;
    for patch in [
        json!({"spec": {"type": "Reboot"}}),
        json!({"spec": {"fingerprint": "other"}}),
        json!({"spec": {"target": {"name": "host-18"}}}),
        json!({"spec": {"keepFor": "1h"}}),
    ] {
        denied(server, &act, None, patch, "spec", "new Operation").await;
    }
    let annotated = json!({"metadata": {"annotations": {"fleetwright.io/outcome": "Failed"}}});
    allowed(server, &act, None, annotated).await;
}

async fn an_operation_goes_forward_only(server: &Server) {
    let mut act = operation(json!({}));
    act["metadata"]["name"] = "forward".into();
    create(server, &act).await;
    let status = Some("status");
    let phase = |phase: &str| json!({"status": {"phase": phase}});

    assert_eq!(
        allowed(server, &act, status, json!({"status": {"outcome": "none yet"}})).await["status"]["phase"],
        "Pending"
    );
    allowed(server, &act, status, phase("Granted")).await;
    denied(server, &act, status, phase("Running"), "status.phase", "startedAt and startedBy").await;
    // A grant that was given may be taken back as long as nothing was started.
    allowed(server, &act, status, phase("Pending")).await;
    allowed(server, &act, status, phase("Granted")).await;
    let start = json!({"status": {"phase": "Running", "startedAt": "2026-11-15T08:00:00Z", "startedBy": "a/1"}});
    allowed(server, &act, status, start.clone()).await;
    allowed(server, &act, status, start).await;
    for back in ["Pending", "Granted"] {
        denied(server, &act, status, phase(back), "status.phase", "the act was started").await;
    }
    denied(server, &act, status, json!({"status": {"phase": null}}), "status.phase", "the act was started").await;
    let again = json!({"status": {"startedAt": "2026-11-15T08:00:01Z"}});
    denied(server, &act, status, again, "status.startedAt", "started once").await;
    denied(server, &act, status, json!({"status": {"startedAt": null}}), "status.startedAt", "started once").await;
    denied(server, &act, status, json!({"status": {"startedBy": "b/2"}}), "status.startedBy", "by one process").await;
    denied(server, &act, status, json!({"status": null}), "status", "not taken back").await;

    allowed(server, &act, status, phase("Unknown")).await;
    denied(server, &act, status, phase("Granted"), "status.phase", "the act was started").await;
    allowed(server, &act, status, phase("Running")).await;
    allowed(server, &act, status, phase("Succeeded")).await;
    for other in ["Pending", "Granted", "Running", "Failed", "Unknown"] {
        denied(server, &act, status, phase(other), "status.phase", "has ended").await;
    }
    allowed(server, &act, status, json!({"status": {"endedAt": "2026-11-15T09:00:00Z", "outcome": "3 pods moved"}}))
        .await;
}

async fn status_and_spec_are_written_apart(server: &Server) {
    let mut both = object("Machine", "apart", json!({"paused": true}));
    both["status"] = json!({"phase": "Ready"});
    let created = server.create(&both, false).await.unwrap();
    assert!(created["status"].is_null(), "{created}");
    let patch = json!({"spec": {"paused": false}, "status": {"phase": "Idle"}});
    let after = allowed(server, &both, Some("status"), patch.clone()).await;
    assert_eq!((&after["spec"]["paused"], &after["status"]["phase"]), (&json!(true), &json!("Idle")));
    assert_eq!(after["metadata"]["generation"], 1);
    allowed(server, &both, Some("status"), json!({"status": {"phase": "Lost"}})).await;
    let after = allowed(server, &both, None, patch).await;
    assert_eq!((&after["spec"]["paused"], &after["status"]["phase"]), (&json!(false), &json!("Lost")));
    assert_eq!(after["metadata"]["generation"], 2);
}

async fn conditions_keep_the_shape_that_kubectl_waits_for(server: &Server) {
    let mut host = machine(json!({}));
    host["metadata"]["name"] = "conditions".into();
    create(server, &host).await;
    let condition = |field: &str, value: Value| {
        let mut condition = json!({
            "type": "Schedulable", "status": "True", "reason": "AllGatesHold", "message": "3 of 3 gates hold",
            "lastTransitionTime": "2026-11-15T08:00:00Z", "observedGeneration": 1,
        });
        condition[field] = value;
        json!({"status": {"observedGeneration": 1, "conditions": [condition]}})
    };
    let after = allowed(server, &host, Some("status"), condition("status", json!("True"))).await;
    // What `kubectl wait --for=condition=Schedulable` reads.
    let conditions = after["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == "Schedulable").unwrap();
    assert_eq!((&found["status"], &found["observedGeneration"]), (&json!("True"), &after["metadata"]["generation"]));
    let typed: fleetwright_api::Machine = serde_json::from_value(after).unwrap();
    assert!(fleetwright_api::is_true(&typed.status.unwrap().conditions, fleetwright_api::names::SCHEDULABLE));

    for (field, value, at, part) in [
        ("type", json!("not a type"), "status.conditions[0].type", "should match"),
        ("status", json!("Maybe"), "status.conditions[0].status", "\"True\", \"False\", \"Unknown\""),
        ("reason", json!("two words"), "status.conditions[0].reason", "should match"),
        ("message", json!("x".repeat(32769)), "status.conditions[0].message", "32768"),
        ("lastTransitionTime", json!("noon"), "status.conditions[0].lastTransitionTime", "date-time"),
        ("observedGeneration", json!(-1), "status.conditions[0].observedGeneration", "greater than or equal to 0"),
    ] {
        denied(server, &host, Some("status"), condition(field, value), at, part).await;
    }
    allowed(server, &host, Some("status"), condition("reason", json!(""))).await;
    let twice = &condition("reason", json!("Twice"))["status"]["conditions"][0];
    let patch = json!({"status": {"conditions": [twice, twice]}});
    denied(server, &host, Some("status"), patch, "status.conditions[1]", "Duplicate").await;
}

async fn numbers_and_lists_in_status_are_bounded(server: &Server) {
    let mut host = machine(json!({}));
    host["metadata"]["name"] = "bounded".into();
    create(server, &host).await;
    // Of the types' range: one number that does not fit would keep every operator from reading the object.
    let cpus = |cpus: u64| json!({"status": {"facts": {"cpus": cpus}}});
    allowed(server, &host, Some("status"), cpus(u64::from(u32::MAX))).await;
    denied(server, &host, Some("status"), cpus(u64::from(u32::MAX) + 1), "status.facts.cpus", "4294967295").await;
}
