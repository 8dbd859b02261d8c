//! `resolve`: records an outcome, on both servers.

use crate::support::{CliServer, alone};
use fleetwright_api::{Operation, names};
use fleetwright_lab::Target;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

async fn operation(api: &Api<Operation>, name: &str, phase: &str) {
    let operation = json!({
        "apiVersion": "fleetwright.io/v1alpha1",
        "kind": "Operation",
        "metadata": {"name": name},
        "spec": {
            "type": "Drain",
            "target": {"kind": "Machine", "name": "host-1"},
            "requestedBy": "machine-operator",
            "fingerprint": "7f3a9c12",
        },
    });
    let operation = serde_json::from_value(operation).expect("an Operation");
    api.create(&PostParams::default(), &operation).await.expect("it is created");
    let mut status = json!({"status": {"phase": phase}});
    if phase == "Unknown" || phase == "Running" {
        status["status"]["startedAt"] = json!("2026-11-16T08:00:00Z");
        status["status"]["startedBy"] = json!("machine-operator-0");
    }
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
}

async fn resolves(target: Target) {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    let api: Api<Operation> = Api::namespaced(place.target.admin(), "fleet");
    for (name, phase) in [("lost", "Unknown"), ("waiting", "Pending"), ("running", "Running"), ("over", "Failed")] {
        operation(&api, name, phase).await;
    }
    let says = ["--outcome", "Succeeded", "--reason", "host checked by hand"];

    let out = place.run(&[&["resolve", "operation/lost"][..], &says].concat()).await.ok();
    assert!(out.contains("operation.fleetwright.io/lost resolved") && out.contains("Succeeded"), "{out}");
    let annotations = api.get("lost").await.expect("it is there").metadata.annotations.expect("annotations");
    assert_eq!(annotations[names::OUTCOME], "Succeeded");
    assert_eq!(annotations[names::OUTCOME_REASON], "host checked by hand");

    for (name, part) in [("waiting", "is Pending"), ("running", "is Running"), ("over", "Failed")] {
        let error = place.run(&[&["resolve", "op", name][..], &says].concat()).await.refused();
        assert!(error.contains(part), "{error}");
        let found = api.get(name).await.expect("it is there");
        assert!(found.metadata.annotations.unwrap_or_default().is_empty(), "nothing was written on {name}");
    }

    let error = place.run(&[&["resolve", "op/lost", "-n", "elsewhere"][..], &says].concat()).await.refused();
    assert!(error.contains("namespace elsewhere") && error.contains("in fleet"), "{error}");
    let error = place.run(&[&["resolve", "op/nobody"][..], &says].concat()).await.refused();
    assert!(error.contains("\"nobody\" not found"), "{error}");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_unknown_outcome_can_be_recorded() {
    resolves(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_unknown_outcome_can_be_recorded_on_real() {
    resolves(Target::real().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_the_kinds_is_distinguished_from_one_without_the_object() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    let error = place.run(&["why", "machine/x"]).await.refused();
    assert!(error.contains("fleetwright install"), "{error}");
    place.target.stop(false).await;
}

#[test]
fn mistakes_are_reported_before_any_cluster_is_asked() {
    for (args, code, part) in [
        (vec!["resolve", "op/x", "--outcome", "Perhaps", "--reason", "y"], 2, "Succeeded"),
        (vec!["resolve", "op/x", "--outcome", "Failed"], 2, "--reason"),
        (vec!["resolve", "op/x", "--outcome", "Failed", "--reason", " "], 2, "host checked by hand"),
        (vec!["resolve", "machine/x", "--outcome", "failed", "--reason", "y"], 1, "operation/NAME"),
        (vec!["why", "node/x"], 1, "machine/NAME"),
        (vec!["why", "host-1"], 1, "machine/host-1"),
        (vec!["why"], 2, "TYPE/NAME"),
        (vec!["why", "machine/x", "-o", "xml"], 2, "json"),
    ] {
        let ran = alone(&args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
    }
}
