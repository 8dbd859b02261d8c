//! `fleetwright cluster`: what is written of clusters is told so that a person can act on it, and what a person asks for is written.

use fleetwright_api::{Cluster, Machine};
use fleetwright_lab::Target;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::Place;

/// A place with the kinds.
async fn place(target: Target) -> Place {
    let place = Place::new(target);
    place.run(&["install"]).await.ok();
    place
}

fn clusters(place: &Place) -> Api<Cluster> {
    Api::namespaced(place.target.admin(), "fleet")
}

/// A Cluster, and what an operator would have written of it.
async fn cluster(place: &Place, name: &str, spec: Value, status: Value) -> Cluster {
    let object = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec,
    });
    let object: Cluster = serde_json::from_value(object).expect("a Cluster");
    clusters(place).create(&PostParams::default(), &object).await.expect("it is made");
    say(place, name, status).await
}

async fn say(place: &Place, name: &str, status: Value) -> Cluster {
    let patch = Patch::Merge(json!({ "status": status }));
    clusters(place).patch_status(name, &PatchParams::default(), &patch).await.expect("it has a status")
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-16T08:00:00Z"})
}

fn replicas(names: &[&str], version: &str) -> Vec<Value> {
    let one = |name: &&str| json!({"name": name, "version": version, "ready": true, "proven": "2026-11-16T08:00:00Z"});
    names.iter().map(one).collect()
}

/// What is said of a cluster that is as it should be.
fn well(name: &str) -> Value {
    let component = |component: &str, version: &str| json!({"component": component, "desired": version, "observed": version, "replicas": replicas(&[&format!("{component}-a")], version)});
    json!({
        "phase": "Ready", "endpoint": "https://192.0.2.1:6443", "namespace": format!("fleet-{name}"),
        "packageVersion": "k8s-1.36.4-r1", "observedGeneration": 1,
        "components": [component("etcd", "3.6.16"), component("apiserver", "1.36.4"), component("controllerManager", "1.36.4"), component("scheduler", "1.36.4")],
        "certificates": [{"name": "ca", "notAfter": "2036-11-16T08:00:00Z"}, {"name": "apiserver-tls", "notAfter": "2036-02-16T08:00:00Z"}],
        "lastSnapshot": {"name": "pay-01-2026", "at": "2026-11-16T08:00:00Z", "size": "12Mi", "checked": true},
        "conditions": [condition("Ready", "True", "Proven", "it works"), condition("Reversible", "False", "NothingBefore", "m")],
    })
}

/// What is said of one with an API server that does not start.
fn broken() -> Value {
    let mut servers = replicas(&["kube-apiserver-1"], "1.36.4");
    servers.push(json!({"name": "kube-apiserver-2", "version": "1.36.4", "message": "CrashLoopBackOff: back-off 10s; it ended with 1: \u{1b}[31munknown flag\u{1b}[0m"}));
    json!({
        "phase": "Degraded", "endpoint": "https://192.0.2.2:6443", "namespace": "fleet-bad", "packageVersion": "k8s-1.36.4-r1",
        "waitingFor": "kube-apiserver: 1 of 2 replicas are ready",
        "components": [
            {"component": "etcd", "desired": "3.6.16", "observed": "3.6.16", "replicas": replicas(&["etcd-0"], "3.6.16")},
            {"component": "apiserver", "desired": "1.36.4", "observed": "1.36.4", "replicas": servers},
        ],
        "conditions": [condition("Ready", "False", "NotProven", "1 of 2 API servers are proven to work")],
        "lastSnapshot": {"name": "s-1", "at": "2026-11-16T08:00:00Z"},
    })
}

async fn clusters_are_told(target: Target) {
    let place = place(target).await;
    let ran = place.run(&["cluster", "list"]).await;
    assert!(ran.err.contains("There are no clusters in namespace fleet") && ran.ok().is_empty());
    let spec = json!({"packageVersion": "k8s-1.36.4-r1"});
    cluster(&place, "good", spec.clone(), well("good")).await;
    cluster(&place, "bad", spec.clone(), broken()).await;
    let lost = json!({
        "phase": "Degraded", "namespace": "fleet-lost",
        "conditions": [condition("DatastoreHealthy", "False", "QuorumLost", "1 of 3 members are ready"), condition("Ready", "False", "NotProven", "m")],
        "lastSnapshot": {"name": "s-7", "at": "2026-11-16T08:00:00Z", "checked": true},
    });
    cluster(&place, "lost", spec.clone(), lost).await;
    cluster(&place, "made", spec.clone(), json!({"phase": "Creating", "waitingFor": "etcd is about to be made"})).await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "bad.1"},
        "involvedObject": {"apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "name": "bad", "namespace": "fleet"},
        "type": "Warning", "reason": "Degraded", "message": "an API server does not start", "lastTimestamp": "2026-11-16T08:00:00Z",
    });
    place.kubectl(&["create", "-n", "fleet", "-f", "-"], Some(&event.to_string())).await.ok();

    let out = place.run(&["cluster", "list"]).await.ok();
    let names: Vec<_> = out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        names,
        ["lost", "bad", "made", "good"],
        "problems first, then what is on its way, then what is well:\n{out}"
    );
    assert!(out.contains("QuorumLost: 1 of 3 members are ready") && out.contains("waits for: etcd is about"), "{out}");
    let out = place.run(&["cluster", "list", "--problems", "-o", "wide"]).await.ok();
    assert!(out.contains("https://192.0.2.2:6443") && !out.contains("good"), "{out}");
    let out = place.run(&["cluster", "list", "-o", "json"]).await.ok();
    let list: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(4));
    assert!(place.run(&["cluster", "list", "-o", "yaml"]).await.ok().contains("packageVersion: k8s-1.36.4-r1"));

    let out = place.run(&["cluster", "status", "cl/bad"]).await.ok();
    for said in [
        "cluster/bad is Degraded, 1/2 API servers proven, package version k8s-1.36.4-r1",
        "Waits for:\n  kube-apiserver: 1 of 2 replicas are ready",
        "✗ kube-apiserver-2",
        "not ready, not proven",
        "✓ etcd",
        "NotProven",
        "an API server does not start",
        "s-1, of ",
        "cannot be deleted",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(!out.contains('\u{1b}'), "nothing but text reaches the terminal: {out:?}");
    let out = place.run(&["cluster", "status", "good"]).await.ok();
    let ends: Vec<_> =
        ["apiserver-tls", "ca"].iter().map(|name| out.find(&format!("\n  {name} ")).expect("it ends")).collect();
    assert!(ends.is_sorted(), "what ends first is told first: {out}");

    let out = place.run(&["cluster", "tree"]).await.ok();
    let shown: Vec<_> = out.lines().collect();
    assert!(shown[0].starts_with("✗ lost  Degraded") && shown[1].contains("✗ DatastoreHealthy: QuorumLost"), "{out}");
    let bad = shown.iter().position(|line| line.starts_with("✗ bad")).expect("it is shown");
    assert_eq!(shown[bad + 1], "├─ ✗ Ready: NotProven: 1 of 2 API servers are proven to work", "{out}");
    assert_eq!(shown[bad + 2], "├─ ✗ kube-apiserver  1.36.4  1/2 ready", "{out}");
    assert!(shown[bad + 3].starts_with("│  ├─ ✗ kube-apiserver-2"), "{out}");
    assert!(shown[bad + 4].starts_with("│  │  └─ ✗ CrashLoopBackOff"), "{out}");
    assert!(shown.last().is_some_and(|line| line.starts_with("✓ good")), "what is well is folded: {out}");
    let machine = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "host-1", "labels": {"fleetwright.io/cluster": "good"}}, "spec": {},
    });
    let machines: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    let machine: Machine = serde_json::from_value(machine).expect("a Machine");
    machines.create(&PostParams::default(), &machine).await.expect("it is made");
    let patch = Patch::Merge(json!({"status": {"phase": "Lost"}}));
    machines.patch_status("host-1", &PatchParams::default(), &patch).await.expect("it has a status");
    let out = place.run(&["cluster", "tree", "good"]).await.ok();
    assert!(out.contains("├─ ✗ machines  0/1 ready\n│  └─ ✗ machine/host-1  Lost"), "{out}");
    assert!(out.contains("✓ apiserver-a"), "a cluster that is named is unfolded: {out}");

    let out = place.run(&["why", "cluster/lost"]).await.ok();
    for said in [
        "cluster/lost does not work",
        "QuorumLost",
        "fleetwright.io/component=etcd",
        "\"snapshot\":\"s-7\"",
        "after 2026-11-16T08:00:00Z is lost",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let out = place.run(&["why", "cl", "bad"]).await.ok();
    assert!(out.contains("kubectl logs -n fleet-bad kube-apiserver-2 --previous"), "{out}");
    let out = place.run(&["why", "cluster/good", "-o", "json"]).await.ok();
    let told: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&told["ready"], &told["reason"], &told["problems"]), (&json!("True"), &json!("Proven"), &json!([])));

    for (args, said) in [
        (&["cluster", "status", "nobody"][..], "clusters.fleetwright.io \"nobody\" not found in namespace fleet"),
        (&["cluster", "tree", "good", "-n", "elsewhere"], "there is one in fleet: pass -n"),
        (&["cluster", "status", "good", "-w", "-o", "json"], "--watch prints lines"),
        (&["why", "pod/x"], "write machine/NAME or cluster/NAME"),
    ] {
        let refused = place.run(args).await.refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_told_problems_first() {
    clusters_are_told(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_told_problems_first_on_real() {
    clusters_are_told(Target::real().await.expect("the real server starts")).await;
}
