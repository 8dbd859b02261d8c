use serde_json::json;

use crate::support::{CONFIG_MAPS, Cluster, config_map};

fn namespace(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_is_not_there() {
    let cluster = Cluster::start().await;
    let (code, error) = cluster.post("/api/v1/namespaces/nowhere/configmaps", config_map("x")).await;
    assert_eq!((code, &error["message"]), (404, &json!("namespaces \"nowhere\" not found")));
}

#[tokio::test]
async fn the_namespaces_that_a_cluster_needs_cannot_be_deleted() {
    let cluster = Cluster::start().await;
    for name in ["default", "kube-system", "kube-public"] {
        let (code, error) = cluster.delete(&format!("/api/v1/namespaces/{name}")).await;
        let told = format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        assert_eq!((code, &error["message"]), (403, &json!(told)));
    }
}

#[tokio::test]
async fn a_deleted_namespace_takes_its_content_with_it() {
    let cluster = Cluster::start().await;
    cluster.created("/api/v1/namespaces", namespace("short")).await;
    cluster.created("/api/v1/namespaces/short/configmaps", config_map("x")).await;
    let (code, going) = cluster.delete("/api/v1/namespaces/short").await;
    assert_eq!((code, &going["status"]["phase"]), (200, &json!("Terminating")));
    cluster.gone("/api/v1/namespaces/short").await;
    cluster.created("/api/v1/namespaces", namespace("short")).await;
    let (code, _) = cluster.get("/api/v1/namespaces/short/configmaps/x").await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn a_finalizer_holds_the_namespace_and_the_conditions_say_so() {
    let cluster = Cluster::start().await;
    cluster.created("/api/v1/namespaces", namespace("held")).await;
    let mut held = config_map("x");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.created("/api/v1/namespaces/held/configmaps", held).await;
    cluster.delete("/api/v1/namespaces/held").await;
    let waiting = cluster
        .until("/api/v1/namespaces/held", |(_, ns)| ns["status"]["conditions"].as_array().is_some_and(|c| c.len() == 5))
        .await;
    let of = |ty: &str| {
        let all = waiting["status"]["conditions"].as_array().unwrap();
        all.iter().find(|condition| condition["type"] == ty).unwrap()
    };
    assert_eq!(of("NamespaceContentRemaining")["status"], "True");
    assert_eq!(
        of("NamespaceFinalizersRemaining")["message"],
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    );
    let (code, error) = cluster.post("/api/v1/namespaces/held/configmaps", config_map("y")).await;
    assert_eq!(code, 403);
    assert_eq!(
        error["message"],
        "configmaps \"y\" is forbidden: unable to create new content in namespace held because it is being terminated"
    );
    assert_eq!(error["details"]["causes"][0]["reason"], "NamespaceTerminating");
    cluster.merge("/api/v1/namespaces/held/configmaps/x", json!({"metadata": {"finalizers": null}})).await;
    cluster.gone("/api/v1/namespaces/held").await;
}

#[tokio::test]
async fn another_finalizer_in_the_spec_keeps_the_namespace_until_finalize() {
    let cluster = Cluster::start().await;
    let mut object = namespace("extra");
    object["spec"] = json!({"finalizers": ["example.com/own"]});
    cluster.created("/api/v1/namespaces", object).await;
    cluster.delete("/api/v1/namespaces/extra").await;
    let mut left = cluster
        .until("/api/v1/namespaces/extra", |(_, ns)| ns["spec"]["finalizers"] == json!(["example.com/own"]))
        .await;
    left["spec"]["finalizers"] = json!([]);
    let (code, _) = cluster.put("/api/v1/namespaces/extra/finalize", left).await;
    assert_eq!(code, 200);
    cluster.gone("/api/v1/namespaces/extra").await;
}

#[tokio::test]
async fn a_dry_run_creates_nothing_in_a_namespace() {
    let cluster = Cluster::start().await;
    let (code, _) = cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("x")).await;
    assert_eq!(code, 201);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/x")).await.0, 404);
}
