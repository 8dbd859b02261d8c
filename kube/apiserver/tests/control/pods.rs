use serde_json::{Value, json};

use crate::support::{Cluster, PODS, pod};

fn binding(pod: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}})
}

#[tokio::test]
async fn a_pod_gets_the_default_account_its_token_and_tolerations() {
    let cluster = Cluster::start().await;
    let pod = cluster.created(PODS, pod("web")).await;
    let spec = &pod["spec"];
    assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == 21, "{volume}");
    assert_eq!(
        spec["volumes"][0]["projected"]["sources"][0],
        json!({"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}})
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{"name": volume, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}])
    );
    let keys: Vec<&Value> = spec["tolerations"].as_array().unwrap().iter().map(|t| &t["key"]).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
}

#[tokio::test]
async fn a_pod_created_right_after_its_namespace_finds_its_account() {
    let cluster = Cluster::start().await;
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await;
    cluster.created("/api/v1/namespaces/fresh/pods", pod("web")).await;
}

#[tokio::test]
async fn a_pod_that_does_not_want_a_token_gets_none() {
    let cluster = Cluster::start().await;
    let mut object = pod("web");
    object["spec"]["automountServiceAccountToken"] = json!(false);
    let pod = cluster.created(PODS, object).await;
    assert_eq!(pod["spec"]["volumes"], Value::Null);
}

#[tokio::test]
async fn a_pod_of_an_unknown_account_is_refused() {
    let cluster = Cluster::start().await;
    let mut object = pod("web");
    object["spec"]["serviceAccountName"] = json!("nobody");
    let (code, error) = cluster.post(PODS, object).await;
    assert_eq!(code, 403);
    assert_eq!(
        error["message"],
        "pods \"web\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
}

#[tokio::test]
async fn the_pull_secrets_of_an_account_are_its_pods_too() {
    let cluster = Cluster::start().await;
    let account = json!({"metadata": {"name": "puller"}, "imagePullSecrets": [{"name": "registry"}]});
    cluster.created("/api/v1/namespaces/default/serviceaccounts", account).await;
    let mut object = pod("web");
    object["spec"]["serviceAccountName"] = json!("puller");
    let pod = cluster.created(PODS, object).await;
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
}

#[tokio::test]
async fn a_priority_class_gives_its_value_and_an_unknown_one_is_refused() {
    let cluster = Cluster::start().await;
    let mut object = pod("web");
    object["spec"]["priorityClassName"] = json!("system-cluster-critical");
    let stored = cluster.created(PODS, object.clone()).await;
    assert_eq!(stored["spec"]["priority"], 2_000_000_000);
    object["metadata"]["name"] = json!("other");
    object["spec"]["priorityClassName"] = json!("nothing");
    let (code, error) = cluster.post(PODS, object).await;
    let told = "pods \"other\" is forbidden: no PriorityClass with name nothing was found";
    assert_eq!((code, &error["message"]), (403, &json!(told)));
}

#[tokio::test]
async fn pods_without_a_class_get_the_global_default_and_there_is_only_one() {
    let cluster = Cluster::start().await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    cluster.created(classes, json!({"metadata": {"name": "usual"}, "value": 10, "globalDefault": true})).await;
    let stored = cluster.created(PODS, pod("web")).await;
    assert_eq!((&stored["spec"]["priority"], &stored["spec"]["priorityClassName"]), (&json!(10), &json!("usual")));
    let second = json!({"metadata": {"name": "second"}, "value": 11, "globalDefault": true});
    let (code, error) = cluster.post(classes, second).await;
    assert_eq!(code, 403);
    assert_eq!(
        error["message"],
        "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist"
    );
}

#[tokio::test]
async fn a_new_node_is_tainted_until_it_is_ready() {
    let cluster = Cluster::start().await;
    let node = cluster.created("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    assert_eq!(node["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
}

#[tokio::test]
async fn a_binding_gives_the_pod_to_a_node_once() {
    let cluster = Cluster::start().await;
    let labels = json!({"topology.kubernetes.io/zone": "z1"});
    cluster.created("/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": labels}})).await;
    cluster.created(PODS, pod("web")).await;
    let (code, status) = cluster.post(&format!("{PODS}/web/binding"), binding("web", "n1")).await;
    assert_eq!((code, &status["status"], &status["code"]), (201, &json!("Success"), &json!(201)));
    let (_, bound) = cluster.get(&format!("{PODS}/web")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["labels"]["topology.kubernetes.io/zone"], "z1");
    let scheduled =
        bound["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "PodScheduled").unwrap();
    assert_eq!(scheduled["status"], "True");
    let (code, error) = cluster.post("/api/v1/namespaces/default/bindings", binding("web", "n2")).await;
    assert_eq!(code, 409);
    assert_eq!(
        error["message"],
        "Operation cannot be fulfilled on pods/binding \"web\": pod web is already assigned to node \"n1\""
    );
}
