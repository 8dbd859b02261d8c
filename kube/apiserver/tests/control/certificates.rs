use serde_json::{Value, json};

use crate::support::Cluster;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// `CN=amy, O=dev`, made by `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256`.
const REQUEST: &str = include_str!("amy.csr");

fn request() -> Value {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(REQUEST);
    json!({
        "metadata": {"name": "amy"},
        "spec": {"request": text, "signerName": "example.com/people", "usages": ["client auth"]},
    })
}

async fn allow(cluster: &Cluster, user: &str, rules: Value) {
    cluster.created(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": user}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    cluster.created(&format!("{RBAC}/clusterrolebindings"), binding).await;
}

#[tokio::test]
async fn a_request_carries_the_name_of_who_asked() {
    let cluster = Cluster::start().await;
    let mut forged = request();
    forged["spec"]["username"] = json!("root");
    let stored = cluster.created(REQUESTS, forged).await;
    assert_eq!(stored["spec"]["username"], "fleetwright-admin");
    assert_eq!(stored["spec"]["groups"], json!(["system:masters", "system:authenticated"]));
}

#[tokio::test]
async fn approving_needs_the_right_to_approve_for_the_signer() {
    let cluster = Cluster::start().await;
    let mut stored = cluster.created(REQUESTS, request()).await;
    let update = json!({
        "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["update"],
    });
    allow(&cluster, "bob", json!([update])).await;
    let approve = json!({
        "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"], "resourceNames": ["example.com/*"],
    });
    allow(&cluster, "carol", json!([update, approve])).await;
    stored["status"] =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "yes"}]});
    let path = format!("{REQUESTS}/amy/approval");
    let (code, error) = cluster.send_as("bob", &[], "PUT", &path, Some(stored.clone())).await;
    assert_eq!(code, 403);
    assert_eq!(
        error["message"],
        "certificatesigningrequests.certificates.k8s.io \"amy\" is forbidden: user not permitted to approve requests with signerName \"example.com/people\""
    );
    let (code, answer) = cluster.send_as("carol", &[], "PUT", &path, Some(stored)).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test]
async fn no_user_grants_rights_that_they_do_not_have() {
    let cluster = Cluster::start().await;
    let create =
        json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create"]});
    allow(&cluster, "bob", json!([create])).await;
    let more = json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let (code, error) = cluster.send_as("bob", &[], "POST", &format!("{RBAC}/clusterroles"), Some(more)).await;
    assert_eq!(code, 403);
    let told = error["message"].as_str().unwrap();
    assert!(told.contains("is attempting to grant RBAC permissions not currently held"), "{told}");
}
