use serde_json::{Value, json};

use crate::support::{Cluster, PODS, pod};

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn running_pod(cluster: &Cluster, name: &str, ready: bool) {
    let mut object = pod(name);
    object["spec"]["nodeName"] = json!("n1");
    let mut stored = cluster.created(PODS, object).await;
    let ready = if ready { "True" } else { "False" };
    stored["status"]["phase"] = json!("Running");
    stored["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
    let (code, answer) = cluster.put(&format!("{PODS}/{name}/status"), stored).await;
    assert_eq!(code, 200, "{answer}");
}

async fn budget(cluster: &Cluster, name: &str, status: Value) {
    let object =
        json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    let mut stored = cluster.created(BUDGETS, object).await;
    stored["status"] = status;
    let (code, answer) = cluster.put(&format!("{BUDGETS}/{name}/status"), stored).await;
    assert_eq!(code, 200, "{answer}");
}

fn status(allowed: i64, current: i64, desired: i64) -> Value {
    json!({
        "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired,
        "expectedPods": 2,
    })
}

async fn evict(cluster: &Cluster, name: &str) -> (u16, Value) {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    cluster.post(&format!("{PODS}/{name}/eviction"), body).await
}

#[tokio::test]
async fn a_pod_without_a_budget_is_deleted_with_its_grace() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    let (code, answer) = evict(&cluster, "web").await;
    assert_eq!((code, &answer["status"]), (201, &json!("Success")));
    let (_, pod) = cluster.get(&format!("{PODS}/web")).await;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    let target =
        pod["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");
}

#[tokio::test]
async fn a_budget_that_allows_a_disruption_counts_it() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    budget(&cluster, "guard", status(1, 2, 1)).await;
    assert_eq!(evict(&cluster, "web").await.0, 201);
    let (_, after) = cluster.get(&format!("{BUDGETS}/guard")).await;
    assert_eq!(after["status"]["disruptionsAllowed"], 0);
    assert!(after["status"]["disruptedPods"]["web"].is_string(), "{after}");
}

#[tokio::test]
async fn a_budget_that_is_used_up_refuses() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    budget(&cluster, "guard", status(0, 1, 1)).await;
    let (code, error) = evict(&cluster, "web").await;
    assert_eq!((code, &error["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(error["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(
        error["details"]["causes"],
        json!([{"reason": "DisruptionBudget", "message": "The disruption budget guard needs 1 healthy pods and has 1 currently"}])
    );
    assert_eq!(cluster.get(&format!("{PODS}/web")).await.1["metadata"]["deletionTimestamp"], Value::Null);
}

#[tokio::test]
async fn a_budget_that_was_not_observed_yet_refuses() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    let mut unseen = status(1, 2, 1);
    unseen["observedGeneration"] = json!(0);
    budget(&cluster, "guard", unseen).await;
    let (code, error) = evict(&cluster, "web").await;
    assert_eq!((code, &error["details"]["retryAfterSeconds"]), (429, &json!(10)));
}

#[tokio::test]
async fn a_pod_that_is_not_ready_goes_while_enough_others_are() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", false).await;
    budget(&cluster, "guard", status(0, 1, 1)).await;
    assert_eq!(evict(&cluster, "web").await.0, 201);
    let (_, after) = cluster.get(&format!("{BUDGETS}/guard")).await;
    assert_eq!(after["status"]["disruptedPods"], Value::Null);
}

#[tokio::test]
async fn a_pod_that_has_not_started_needs_no_budget() {
    let cluster = Cluster::start().await;
    cluster.created(PODS, pod("web")).await;
    budget(&cluster, "guard", status(0, 0, 1)).await;
    assert_eq!(evict(&cluster, "web").await.0, 201);
    cluster.gone(&format!("{PODS}/web")).await;
}

#[tokio::test]
async fn two_budgets_for_one_pod_are_an_error() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    budget(&cluster, "one", status(1, 2, 1)).await;
    budget(&cluster, "two", status(1, 2, 1)).await;
    let (_, answer) = evict(&cluster, "web").await;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("Failure"), &json!(500)));
    assert_eq!(
        answer["message"],
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    );
}

#[tokio::test]
async fn a_dry_run_evicts_no_pod() {
    let cluster = Cluster::start().await;
    running_pod(&cluster, "web", true).await;
    budget(&cluster, "guard", status(1, 2, 1)).await;
    let body = json!({"metadata": {"name": "web"}, "deleteOptions": {"dryRun": ["All"]}});
    assert_eq!(cluster.post(&format!("{PODS}/web/eviction"), body).await.0, 201);
    assert_eq!(cluster.get(&format!("{PODS}/web")).await.1["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(cluster.get(&format!("{BUDGETS}/guard")).await.1["status"]["disruptionsAllowed"], 1);
}
