use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::Cluster;

#[tokio::test]
async fn a_new_namespace_gets_a_service_account_and_the_root_certificate() {
    let cluster = Cluster::start().await;
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await;
    cluster.until("/api/v1/namespaces/fresh/serviceaccounts/default", |(code, _)| *code == 200).await;
    let map = cluster.until("/api/v1/namespaces/fresh/configmaps/kube-root-ca.crt", |(code, _)| *code == 200).await;
    assert!(map["data"]["ca.crt"].as_str().unwrap().contains("BEGIN CERTIFICATE"));
}

#[tokio::test]
async fn a_deleted_service_account_comes_back_as_another_one() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default";
    let (_, before) = cluster.get(path).await;
    cluster.delete(path).await;
    let after = cluster.until(path, |(code, _)| *code == 200).await;
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
}

#[tokio::test]
async fn a_changed_root_certificate_is_repaired() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    let (_, before) = cluster.get(path).await;
    cluster.merge(path, json!({"data": {"ca.crt": "mine", "more": "x"}})).await;
    let after = cluster.until(path, |(_, map)| map["data"] == before["data"]).await;
    assert_ne!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn aggregated_roles_have_their_rules_when_the_server_is_ready() {
    let cluster = Cluster::start().await;
    for role in ["admin", "edit", "view"] {
        let (_, role) = cluster.get(&format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")).await;
        assert!(role["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "{role}");
    }
}

#[tokio::test]
async fn a_role_that_aggregates_follows_the_roles_that_it_gathers() {
    let cluster = Cluster::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let all = json!({
        "metadata": {"name": "gathers"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"gather": "yes"}}]},
    });
    cluster.created(roles, all).await;
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    cluster.created(roles, json!({"metadata": {"name": "part", "labels": {"gather": "yes"}}, "rules": [rule]})).await;
    cluster.until(&format!("{roles}/gathers"), |(_, role)| role["rules"] == json!([rule])).await;
    cluster.delete(&format!("{roles}/part")).await;
    cluster.until(&format!("{roles}/gathers"), |(_, role)| role["rules"].as_array().is_none_or(Vec::is_empty)).await;
}

#[tokio::test]
async fn an_idle_server_writes_nothing() {
    let cluster = Cluster::start().await;
    let version = async || cluster.get("/api/v1/pods").await.1["metadata"]["resourceVersion"].clone();
    // What it makes at its start may take a while; then nothing is written any more.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let before = version().await;
        cluster.settle().await;
        if version().await == before {
            break;
        }
        assert!(Instant::now() < deadline, "it writes all the time");
    }
}
