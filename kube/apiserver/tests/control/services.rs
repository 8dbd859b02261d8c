use serde_json::{Value, json};

use crate::support::Cluster;

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, spec: Value) -> Value {
    let mut all = json!({"ports": [{"port": 80}], "selector": {"app": "web"}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": all})
}

#[tokio::test]
async fn a_service_gets_an_address_of_its_own() {
    let cluster = Cluster::start().await;
    let one = cluster.created(SERVICES, service("one", json!({}))).await;
    let two = cluster.created(SERVICES, service("two", json!({}))).await;
    let spec = &one["spec"];
    assert!(spec["clusterIP"].as_str().unwrap().starts_with("10.96."), "{spec}");
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    assert_ne!(spec["clusterIP"], two["spec"]["clusterIP"]);
}

#[tokio::test]
async fn an_address_that_is_taken_or_foreign_is_refused() {
    let cluster = Cluster::start().await;
    cluster.created(SERVICES, service("one", json!({"clusterIP": "10.96.7.7"}))).await;
    let (code, error) = cluster.post(SERVICES, service("two", json!({"clusterIP": "10.96.7.7"}))).await;
    assert_eq!(code, 422);
    assert_eq!(
        error["message"],
        "Service \"two\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.7.7\"]: failed to allocate IP 10.96.7.7: provided IP is already allocated"
    );
    let (code, error) = cluster.post(SERVICES, service("two", json!({"clusterIP": "192.168.0.1"}))).await;
    assert_eq!(code, 422);
    assert_eq!(
        error["message"],
        "Service \"two\" is invalid: spec.clusterIPs: Invalid value: [\"192.168.0.1\"]: failed to allocate IP 192.168.0.1: the provided network does not match the current range"
    );
}

#[tokio::test]
async fn the_address_of_a_deleted_service_is_free_again() {
    let cluster = Cluster::start().await;
    cluster.created(SERVICES, service("one", json!({"clusterIP": "10.96.7.7"}))).await;
    cluster.delete(&format!("{SERVICES}/one")).await;
    cluster.created(SERVICES, service("two", json!({"clusterIP": "10.96.7.7"}))).await;
}

#[tokio::test]
async fn a_dry_run_takes_no_address() {
    let cluster = Cluster::start().await;
    let wanted = service("one", json!({"clusterIP": "10.96.7.7"}));
    assert_eq!(cluster.post(&format!("{SERVICES}?dryRun=All"), wanted.clone()).await.0, 201);
    cluster.created(SERVICES, wanted).await;
}

#[tokio::test]
async fn a_headless_service_has_no_address() {
    let cluster = Cluster::start().await;
    let one = cluster.created(SERVICES, service("one", json!({"clusterIP": "None"}))).await;
    assert_eq!((&one["spec"]["clusterIPs"], &one["spec"]["ipFamilies"]), (&json!(["None"]), &json!(["IPv4"])));
    let two = cluster.created(SERVICES, service("two", json!({"clusterIP": "None", "selector": null}))).await;
    assert_eq!(two["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(two["spec"]["ipFamilyPolicy"], "RequireDualStack");
}

#[tokio::test]
async fn a_service_that_becomes_an_external_name_gives_its_address_back() {
    let cluster = Cluster::start().await;
    cluster.created(SERVICES, service("one", json!({"clusterIP": "10.96.7.7"}))).await;
    let patch = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null}});
    let (code, one) = cluster.merge(&format!("{SERVICES}/one"), patch).await;
    assert_eq!((code, &one["spec"]["clusterIP"]), (200, &Value::Null), "{one}");
    cluster.created(SERVICES, service("two", json!({"clusterIP": "10.96.7.7"}))).await;
}

#[tokio::test]
async fn node_ports_are_given_kept_and_refused_when_taken() {
    let cluster = Cluster::start().await;
    let one = cluster.created(SERVICES, service("one", json!({"type": "NodePort"}))).await;
    let port = one["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port));
    let ports = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let (code, error) = cluster.post(SERVICES, service("two", ports)).await;
    assert_eq!(code, 422);
    assert_eq!(
        error["message"],
        format!(
            "Service \"two\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
        )
    );
    let ports = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    let (_, error) = cluster.post(SERVICES, service("two", ports)).await;
    assert_eq!(
        error["message"],
        "Service \"two\" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
    );
    let (_, same) = cluster.put(&format!("{SERVICES}/one"), service("one", json!({"type": "NodePort"}))).await;
    assert_eq!(same["spec"]["ports"][0]["nodePort"], port);
}

#[tokio::test]
async fn a_service_that_is_no_longer_a_node_port_frees_it() {
    let cluster = Cluster::start().await;
    let wanted = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30777}]});
    cluster.created(SERVICES, service("one", wanted.clone())).await;
    let (code, one) = cluster.merge(&format!("{SERVICES}/one"), json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!((code, &one["spec"]["ports"][0]["nodePort"]), (200, &Value::Null));
    cluster.created(SERVICES, service("two", wanted)).await;
}

#[tokio::test]
async fn many_services_at_once_share_no_address() {
    let cluster = Cluster::start().await;
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let all = names.iter().map(|name| cluster.created(SERVICES, service(name, json!({"type": "NodePort"}))));
    let stored = futures::future::join_all(all).await;
    let distinct: std::collections::HashSet<&str> =
        stored.iter().filter_map(|s| s["spec"]["clusterIP"].as_str()).collect();
    assert_eq!(distinct.len(), 40);
}
