use serde_json::{Value, json};

use crate::support::{Cluster, PODS, pod};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

#[tokio::test]
async fn a_claim_stays_until_no_pod_uses_it() {
    let cluster = Cluster::start().await;
    let stored = cluster.created(CLAIMS, claim("data")).await;
    assert_eq!(stored["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let mut user = pod("web");
    user["spec"]["nodeName"] = json!("n1");
    user["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.created(PODS, user).await;
    cluster.delete(&format!("{CLAIMS}/data")).await;
    cluster.settle().await;
    assert_eq!(cluster.get(&format!("{CLAIMS}/data")).await.0, 200);
    cluster.send("DELETE", &format!("{PODS}/web"), Some(json!({"gracePeriodSeconds": 0}))).await;
    cluster.gone(&format!("{CLAIMS}/data")).await;
}

#[tokio::test]
async fn a_volume_that_is_not_bound_goes_at_once() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/persistentvolumes";
    let volume = json!({
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}},
    });
    let stored = cluster.created(path, volume).await;
    assert_eq!(stored["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    cluster.delete(&format!("{path}/disk")).await;
    cluster.gone(&format!("{path}/disk")).await;
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_default_one() {
    let cluster = Cluster::start().await;
    let marked = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let class = json!({"metadata": {"name": "fast", "annotations": marked}, "provisioner": "example.com/disk"});
    cluster.created("/apis/storage.k8s.io/v1/storageclasses", class).await;
    let stored = cluster.created(CLAIMS, claim("data")).await;
    assert_eq!(stored["spec"]["storageClassName"], "fast");
}

#[tokio::test]
async fn an_ingress_without_a_class_gets_the_default_one() {
    let cluster = Cluster::start().await;
    let marked = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class =
        json!({"metadata": {"name": "front", "annotations": marked}, "spec": {"controller": "example.com/front"}});
    cluster.created("/apis/networking.k8s.io/v1/ingressclasses", class).await;
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "web"}, "spec": {"defaultBackend": backend}});
    let stored = cluster.created("/apis/networking.k8s.io/v1/namespaces/default/ingresses", ingress).await;
    assert_eq!(stored["spec"]["ingressClassName"], "front");
}
