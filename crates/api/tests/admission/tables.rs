//! Discovery and tables: what kubectl shows.

use http::Request;
use http::header::ACCEPT;
use serde_json::{Value, json};

use crate::cases::{machine, object, operation};
use crate::server::Server;
use crate::{cluster_packages, clusters, packages};

pub async fn all(server: &Server) {
    short_names_and_category(server).await;
    tables(server).await;
    tables_of_clusters(server).await;
}

async fn short_names_and_category(server: &Server) {
    let found = server.get("/apis/fleetwright.io/v1alpha1").await.unwrap();
    let resources = found["resources"].as_array().unwrap();
    for (plural, short, kind) in [
        ("clusters", "cl", "Cluster"),
        ("clusterlimits", "cll", "ClusterLimits"),
        ("clusterpackageversions", "cpv", "ClusterPackageVersion"),
        ("machines", "ma", "Machine"),
        ("readinessgates", "rg", "ReadinessGates"),
        ("operations", "op", "Operation"),
        ("operationpolicies", "opp", "OperationPolicy"),
        ("machinepackageversions", "mpv", "MachinePackageVersion"),
    ] {
        let resource = resources.iter().find(|resource| resource["name"] == plural).unwrap();
        assert_eq!(resource["kind"], kind);
        assert_eq!(resource["namespaced"], true);
        assert_eq!(resource["shortNames"], json!([short]));
        assert_eq!(resource["categories"], json!(["fleet"]));
        let status = format!("{plural}/status");
        if kind.ends_with("PackageVersion") || kind == "ClusterLimits" {
            continue; // It is what it is: nothing about it is observed.
        }
        assert!(resources.iter().any(|resource| resource["name"] == status.as_str()), "{status} is missing");
    }
}

/// The table of one object: headers and cells; wide columns begin with a +.
async fn table(server: &Server, plural: &str, name: &str) -> Vec<(String, Value)> {
    let path = format!("/apis/fleetwright.io/v1alpha1/namespaces/default/{plural}/{name}");
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let request = Request::get(path).header(ACCEPT, accept).body(Vec::new()).unwrap();
    let table: Value = server.client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let names = columns.map(|column| {
        let wide = if column["priority"].as_i64().unwrap_or(0) > 0 { "+" } else { "" };
        format!("{wide}{}", column["name"].as_str().unwrap())
    });
    names.zip(table["rows"][0]["cells"].as_array().unwrap().iter().cloned()).collect()
}

fn cells(table: &[(String, Value)]) -> Vec<(&str, Value)> {
    // Ages and dates depend on the hour.
    let stable = |name: &str| !["Age", "Started", "+Snapshot"].contains(&name);
    table.iter().filter(|(name, _)| stable(name)).map(|(name, cell)| (name.as_str(), cell.clone())).collect()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-15T08:00:00Z"})
}

async fn make(server: &Server, mut object: Value, status: Value) {
    object["metadata"]["name"] = "shown".into();
    server.create(&object, false).await.unwrap_or_else(|status| panic!("{}", status.message));
    let patched = server.merge(&object, Some("status"), &json!({"status": status})).await;
    patched.unwrap_or_else(|status| panic!("{}", status.message));
}

async fn tables(server: &Server) {
    let host = machine(json!({"addresses": ["10.0.0.17"], "hardware": {"zone": "z1", "rack": "r3"}}));
    let status = json!({
        "phase": "Degraded", "nodeRef": {"name": "host-17"}, "facts": {"os": "debian-12", "kernel": "6.1.0-54-amd64"},
        "conditions": [condition("PackagesReady", "True", "AllPackagesReady", ""), condition("UpToDate", "False", "RolledBack", "kubelet"), condition("Reachable", "False", "NoResponse", "10.0.0.17: no answer within 10s"), condition("InSync", "False", "Drifted", "sysctl: vm.swappiness is 60, wanted 0"), condition("Schedulable", "False", "GateClosed", "LogAgentReady is False")],
    });
    make(server, host, status).await;
    let machines = table(server, "machines", "shown").await;
    assert_eq!(
        cells(&machines),
        [
            ("Name", json!("shown")),
            ("Role", json!("Worker")),
            ("Phase", json!("Degraded")),
            ("Packages", json!("True")),
            ("Schedulable", json!("False")),
            ("Node", json!("host-17")),
            ("+Address", json!("10.0.0.17")),
            ("+Zone", json!("z1")),
            ("+OS", json!("debian-12")),
            ("+Kernel", json!("6.1.0-54-amd64")),
            ("+Reachable", json!("NoResponse")),
            ("+UpToDate", json!("RolledBack")),
            ("+InSync", json!("Drifted")),
        ]
    );
    assert!(machines.iter().any(|(name, age)| name == "Age" && age.is_string()), "{machines:?}");

    let mut package = packages::package(json!({"dependsOn": ["containerd"]}));
    package["metadata"]["name"] = "shown".into();
    server.create(&package, false).await.unwrap_or_else(|status| panic!("{}", status.message));
    assert_eq!(
        cells(&table(server, "machinepackageversions", "shown").await),
        [
            ("Name", json!("shown")),
            ("Component", json!("kubelet")),
            ("Version", json!("1.37.1")),
            ("Disruption", json!("None")),
            ("+Depends on", json!("[\"containerd\"]")),
            ("+On failure", json!("RollBack")),
        ]
    );

    let gates = object("ReadinessGates", "shown", json!({"selector": {}, "conditions": [{"type": "A"}]}));
    let status = json!({
        "machines": 9, "schedulable": 5, "closed": 3, "keptOpen": 1,
        "conditions": [condition("Accepted", "True", "Accepted", ""), condition("SafetyNetActive", "True", "TooMany", "1 of 4 is kept open")],
    });
    make(server, gates, status).await;
    assert_eq!(
        cells(&table(server, "readinessgates", "shown").await),
        [
            ("Name", json!("shown")),
            ("Machines", json!(9)),
            ("Schedulable", json!(5)),
            ("Closed", json!(3)),
            ("Kept open", json!(1)),
            ("Safety net", json!("True")),
            ("+Accepted", json!("True")),
            ("+Message", json!("1 of 4 is kept open")),
        ]
    );

    let status = json!({
        "phase": "Succeeded", "grantedBy": "drains: 2 of 5 in zone z1", "outcome": "3 pods moved",
        "startedAt": "2026-11-15T08:00:00Z", "startedBy": "a/1",
    });
    make(server, operation(json!({"reason": "kubelet 1.37.1"})), status).await;
    assert_eq!(
        cells(&table(server, "operations", "shown").await),
        [
            ("Name", json!("shown")),
            ("Type", json!("Drain")),
            ("Target", json!("host-17")),
            ("Phase", json!("Succeeded")),
            ("Outcome", json!("3 pods moved")),
            ("+Kind", json!("Machine")),
            ("+Granted by", json!("drains: 2 of 5 in zone z1")),
            ("+Requested by", json!("machine-operator")),
            ("+Reason", json!("kubelet 1.37.1")),
        ]
    );

    let limits = object("ClusterLimits", "shown", json!({"clusters": ["pay-*"], "preset": "Hardened"}));
    server.create(&limits, false).await.expect("it is allowed");
    assert_eq!(
        cells(&table(server, "clusterlimits", "shown").await),
        [
            ("Name", json!("shown")),
            ("Clusters", json!("[\"pay-*\"]")),
            ("Preset", json!("Hardened")),
            ("+Package versions", Value::Null),
        ]
    );

    let policy = object(
        "OperationPolicy",
        "shown",
        json!({"operations": ["Drain", "Reboot"], "scope": {"by": "zone"}, "max": "5%"}),
    );
    make(server, policy, json!({"held": 2})).await;
    assert_eq!(
        cells(&table(server, "operationpolicies", "shown").await),
        [
            ("Name", json!("shown")),
            ("Operations", json!("[\"Drain\",\"Reboot\"]")),
            ("Max", json!("5%")),
            ("By", json!("zone")),
            ("Held", json!(2)),
            ("+Accepted", Value::Null),
        ]
    );
}

async fn tables_of_clusters(server: &Server) {
    let status = json!({
        "phase": "Soaking", "endpoint": "https://198.18.0.1:30443", "packageVersion": "k8s-1.37.1-r1", "waitingFor": "the soak ends",
        "lastSnapshot": {"name": "a", "at": "2026-11-15T08:00:00Z"},
        "conditions": [condition("Ready", "True", "Verified", ""), condition("DatastoreHealthy", "True", "AllMembersHealthy", ""), condition("ExtensionsReady", "False", "Applying", ""), condition("Upgradable", "True", "NoBlockers", "")],
    });
    make(server, clusters::cluster(json!({})), status).await;
    let shown = table(server, "clusters", "shown").await;
    assert_eq!(
        cells(&shown),
        [
            ("Name", json!("shown")),
            ("Package version", json!("k8s-1.36.4-r1")),
            ("Phase", json!("Soaking")),
            ("Ready", json!("True")),
            ("Endpoint", json!("https://198.18.0.1:30443")),
            ("+Running", json!("k8s-1.37.1-r1")),
            ("+Datastore", json!("AllMembersHealthy")),
            ("+Extensions", json!("Applying")),
            ("+Upgradable", json!("NoBlockers")),
            ("+Waiting for", json!("the soak ends")),
        ]
    );
    assert!(shown.iter().any(|(name, age)| name == "+Snapshot" && age.is_string()), "{shown:?}");

    let mut package = cluster_packages::package(json!({"upgradeFrom": ["1.36"]}));
    package["metadata"]["name"] = "shown".into();
    server.create(&package, false).await.unwrap_or_else(|status| panic!("{}", status.message));
    assert_eq!(
        cells(&table(server, "clusterpackageversions", "shown").await),
        [
            ("Name", json!("shown")),
            ("Kubernetes", json!("1.36.4")),
            ("+Etcd", json!("registry.example/etcd:v3.6.16")),
            ("+Upgrade from", json!("[\"1.36\"]")),
            ("+Rollback to", Value::Null),
        ]
    );
}
