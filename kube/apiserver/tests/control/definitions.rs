use serde_json::{Value, json};

use crate::support::Cluster;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

async fn with_widgets() -> Cluster {
    let cluster = Cluster::start().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    cluster.created(DEFINITIONS, definition).await;
    cluster.until(WIDGETS, |(code, _)| *code == 200).await;
    cluster
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}})
}

#[tokio::test]
async fn a_deleted_definition_takes_its_instances_with_it() {
    let cluster = with_widgets().await;
    cluster.created(WIDGETS, widget("one")).await;
    let (code, going) = cluster.delete(&format!("{DEFINITIONS}/widgets.example.com")).await;
    assert_eq!(code, 200);
    assert_eq!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    cluster.gone(&format!("{DEFINITIONS}/widgets.example.com")).await;
    cluster.until(WIDGETS, |(code, _)| *code == 404).await;
}

#[tokio::test]
async fn an_instance_with_a_finalizer_holds_the_definition_and_nothing_new_comes_in() {
    let cluster = with_widgets().await;
    let mut held = widget("one");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.created(WIDGETS, held).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    cluster.delete(&path).await;
    let reason = |crd: &Value| {
        let all = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["type"] == "Terminating").map(|c| c["reason"].clone())
    };
    cluster.until(&path, |(_, crd)| reason(crd) == Some(json!("InstanceDeletionInProgress"))).await;
    let (code, error) = cluster.post(WIDGETS, widget("two")).await;
    let told = "create not allowed while custom resource definition is terminating";
    assert_eq!((code, &error["message"]), (403, &json!(format!("widgets.example.com \"two\" is forbidden: {told}"))));
    let (code, answer) = cluster.merge(&format!("{WIDGETS}/one"), json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200, "{answer}");
    cluster.gone(&path).await;
}

#[tokio::test]
async fn custom_objects_are_garbage_too() {
    let cluster = with_widgets().await;
    let owner = cluster.created(WIDGETS, widget("owner")).await;
    let mut child = widget("child");
    child["metadata"]["ownerReferences"] = json!([crate::support::owned_by(&owner, true)]);
    cluster.created(WIDGETS, child).await;
    let options = json!({"propagationPolicy": "Foreground"});
    cluster.send("DELETE", &format!("{WIDGETS}/owner"), Some(options)).await;
    cluster.gone(&format!("{WIDGETS}/child")).await;
    cluster.gone(&format!("{WIDGETS}/owner")).await;
}

#[tokio::test]
async fn what_instances_own_goes_with_their_definition() {
    let cluster = with_widgets().await;
    let owner = cluster.created(WIDGETS, widget("owner")).await;
    let mut child = crate::support::config_map("child");
    child["metadata"]["ownerReferences"] = json!([crate::support::owned_by(&owner, false)]);
    cluster.created(crate::support::CONFIG_MAPS, child).await;
    cluster.delete(&format!("{DEFINITIONS}/widgets.example.com")).await;
    cluster.gone(&format!("{}/child", crate::support::CONFIG_MAPS)).await;
}
