use serde_json::{Value, json};

use crate::support::{CONFIG_MAPS, Cluster, config_map, owned_by};

fn owned(name: &str, owners: Vec<Value>) -> Value {
    let mut object = config_map(name);
    object["metadata"]["ownerReferences"] = owners.into();
    object
}

fn at(name: &str) -> String {
    format!("{CONFIG_MAPS}/{name}")
}

async fn delete_with(cluster: &Cluster, name: &str, policy: &str) -> (u16, Value) {
    cluster.send("DELETE", &at(name), Some(json!({"propagationPolicy": policy}))).await
}

#[tokio::test]
async fn dependents_of_dependents_go_with_their_owner() {
    let cluster = Cluster::start().await;
    let owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    let child = cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&owner, false)])).await;
    cluster.created(CONFIG_MAPS, owned("grandchild", vec![owned_by(&child, false)])).await;
    cluster.delete(&at("owner")).await;
    cluster.gone(&at("child")).await;
    cluster.gone(&at("grandchild")).await;
}

#[tokio::test]
async fn an_object_whose_owner_never_was_is_garbage() {
    let cluster = Cluster::start().await;
    let mut ghost = config_map("ghost");
    ghost["metadata"]["uid"] = json!("6f9619ff-8b86-d011-b42d-00cf4fc964ff");
    cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&ghost, false)])).await;
    cluster.gone(&at("child")).await;
}

#[tokio::test]
async fn an_owner_of_the_same_name_is_not_the_owner() {
    let cluster = Cluster::start().await;
    let mut owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    owner["metadata"]["uid"] = json!("6f9619ff-8b86-d011-b42d-00cf4fc964ff");
    cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&owner, false)])).await;
    cluster.gone(&at("child")).await;
}

#[tokio::test]
async fn a_dependent_with_another_living_owner_loses_only_the_reference() {
    let cluster = Cluster::start().await;
    let one = cluster.created(CONFIG_MAPS, config_map("one")).await;
    let two = cluster.created(CONFIG_MAPS, config_map("two")).await;
    cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&one, false), owned_by(&two, false)])).await;
    cluster.delete(&at("one")).await;
    let only = json!([two["metadata"]["uid"]]);
    let uids = |object: &Value| -> Value {
        object["metadata"]["ownerReferences"].as_array().into_iter().flatten().map(|r| r["uid"].clone()).collect()
    };
    cluster.until(&at("child"), |(_, child)| uids(child) == only).await;
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_dependents_that_block() {
    let cluster = Cluster::start().await;
    let owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    let mut child = owned("child", vec![owned_by(&owner, true)]);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.created(CONFIG_MAPS, child).await;
    let (code, going) = delete_with(&cluster, "owner", "Foreground").await;
    assert_eq!((code, &going["metadata"]["finalizers"]), (200, &json!(["foregroundDeletion"])));
    cluster.until(&at("child"), |(_, child)| !child["metadata"]["deletionTimestamp"].is_null()).await;
    cluster.settle().await;
    assert_eq!(cluster.get(&at("owner")).await.0, 200);
    cluster.merge(&at("child"), json!({"metadata": {"finalizers": null}})).await;
    cluster.gone(&at("child")).await;
    cluster.gone(&at("owner")).await;
}

#[tokio::test]
async fn a_foreground_deletion_does_not_wait_for_dependents_that_do_not_block() {
    let cluster = Cluster::start().await;
    let owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    let mut child = owned("child", vec![owned_by(&owner, false)]);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.created(CONFIG_MAPS, child).await;
    delete_with(&cluster, "owner", "Foreground").await;
    cluster.gone(&at("owner")).await;
    cluster.until(&at("child"), |(_, child)| !child["metadata"]["deletionTimestamp"].is_null()).await;
}

#[tokio::test]
async fn orphans_stay_and_lose_their_owner() {
    let cluster = Cluster::start().await;
    let owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&owner, true)])).await;
    delete_with(&cluster, "owner", "Orphan").await;
    cluster.gone(&at("owner")).await;
    let (code, child) = cluster.get(&at("child")).await;
    assert_eq!((code, &child["metadata"]["ownerReferences"]), (200, &Value::Null));
}

#[tokio::test]
async fn objects_that_own_each_other_can_be_deleted_in_the_foreground() {
    let cluster = Cluster::start().await;
    let one = cluster.created(CONFIG_MAPS, config_map("one")).await;
    let two = cluster.created(CONFIG_MAPS, owned("two", vec![owned_by(&one, true)])).await;
    cluster.merge(&at("one"), json!({"metadata": {"ownerReferences": [owned_by(&two, true)]}})).await;
    delete_with(&cluster, "one", "Foreground").await;
    cluster.gone(&at("one")).await;
    cluster.gone(&at("two")).await;
}

#[tokio::test]
async fn an_owner_in_another_namespace_is_reported_and_does_not_count() {
    let cluster = Cluster::start().await;
    let owner = cluster.created("/api/v1/namespaces/kube-public/configmaps", config_map("owner")).await;
    cluster.created(CONFIG_MAPS, owned("child", vec![owned_by(&owner, false)])).await;
    cluster.gone(&at("child")).await;
    let events = cluster
        .until("/api/v1/namespaces/default/events", |(_, list)| list["items"].as_array().is_some_and(|l| !l.is_empty()))
        .await;
    assert_eq!(events["items"][0]["reason"], "OwnerRefInvalidNamespace");
}

#[tokio::test]
async fn a_cluster_scoped_object_with_a_namespaced_owner_is_left_alone() {
    let cluster = Cluster::start().await;
    let owner = cluster.created(CONFIG_MAPS, config_map("owner")).await;
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = json!({"metadata": {"name": "mine", "ownerReferences": [owned_by(&owner, false)]}, "value": 7});
    cluster.created(path, class).await;
    cluster.delete(&at("owner")).await;
    cluster.settle().await;
    assert_eq!(cluster.get(&format!("{path}/mine")).await.0, 200);
}

#[tokio::test]
async fn objects_that_wait_for_each_other_do_not_wait_for_ever() {
    let cluster = Cluster::start().await;
    let one = cluster.created(CONFIG_MAPS, config_map("one")).await;
    let two = cluster.created(CONFIG_MAPS, owned("two", vec![owned_by(&one, true)])).await;
    cluster
        .merge(&at("one"), json!({"metadata": {"ownerReferences": [owned_by(&two, true), owned_by(&one, true)]}}))
        .await;
    delete_with(&cluster, "one", "Foreground").await;
    delete_with(&cluster, "two", "Foreground").await;
    cluster.gone(&at("one")).await;
    cluster.gone(&at("two")).await;
}

#[tokio::test]
async fn owners_do_not_wait_in_a_namespace_that_ends() {
    let cluster = Cluster::start().await;
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "ending"}})).await;
    let maps = "/api/v1/namespaces/ending/configmaps";
    let at = |name: &str| format!("{maps}/{name}");
    let owner = cluster.created(maps, config_map("owner")).await;
    let mut child = owned("child", vec![owned_by(&owner, true)]);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.created(maps, child).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    assert_eq!(cluster.send("DELETE", &at("owner"), Some(foreground)).await.0, 200);
    cluster.until(&at("child"), |(_, child)| !child["metadata"]["deletionTimestamp"].is_null()).await;
    cluster.settle().await;
    assert_eq!(cluster.get(&at("owner")).await.0, 200, "it waits for its dependent");
    cluster.delete("/api/v1/namespaces/ending").await;
    // What is held stays, and nothing else.
    cluster.gone(&at("owner")).await;
    let held = cluster.until(maps, |(_, list)| list["items"].as_array().is_some_and(|items| items.len() == 1)).await;
    assert_eq!(held["items"][0]["metadata"]["name"], "child");
    assert_eq!(held["items"][0]["metadata"]["finalizers"], json!(["example.com/hold"]));
    cluster.merge(&at("child"), json!({"metadata": {"finalizers": null}})).await;
    cluster.gone("/api/v1/namespaces/ending").await;
}
