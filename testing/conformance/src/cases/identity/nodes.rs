//! Nodes: how they join, and their rights.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleetwright_pki::Identity;
use kube::Client;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::whoami;
use crate::{Case, Ctx, PatchType, eventually};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["identity";
        a_bootstrap_token_is_a_user_of_its_own,
        a_bootstrap_token_that_does_not_count_is_unauthorized,
        a_review_knows_bootstrap_tokens,
        an_approved_request_of_a_kubelet_is_signed,
        a_request_that_its_signer_does_not_take_fails,
        a_node_writes_its_own_node_and_no_other,
        a_node_may_not_touch_its_taints_and_the_labels_of_others,
        a_node_writes_its_own_lease_and_no_other,
        a_node_reads_what_its_pods_refer_to_and_no_more,
        a_node_makes_mirror_pods_only,
        a_node_asks_for_its_own_certificate_only,
    ]
}

const NODES: &str = "/api/v1/nodes";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRET: &str = "0123456789abcdef";

/// Six letters and digits that no other case has.
fn token_id(ctx: &Ctx) -> String {
    let unique = ctx.unique("t");
    let digest = unique.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{:06}", digest % 1_000_000)
}

async fn bootstrap_token(ctx: &Ctx, id: &str, more: &Value) -> Result<Ctx> {
    let mut data = json!({
        "token-id": id, "token-secret": SECRET, "usage-bootstrap-authentication": "true",
        "auth-extra-groups": "system:bootstrappers:a,system:bootstrappers:b:c-1",
    });
    for (key, value) in more.as_object().context("fields")? {
        data[key] = value.clone();
    }
    let secret = json!({
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token", "stringData": data,
    });
    ctx.post(SECRETS, &secret).await?.code(201)?;
    ctx.with_token(&format!("{id}.{SECRET}")).await
}

async fn a_bootstrap_token_is_a_user_of_its_own(ctx: Ctx) -> Result<()> {
    let id = token_id(&ctx);
    let client = bootstrap_token(&ctx, &id, &json!({"expiration": "2100-01-01T00:00:00Z"})).await?;
    // A server may hear of the Secret a moment later.
    let user = eventually("the token is known", async || whoami(&client).await).await?;
    assert_eq!(user["username"], json!(format!("system:bootstrap:{id}")));
    let groups =
        json!(["system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b:c-1", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    client.get("/api/v1/nodes").await?.refused(403, "Forbidden")?;
    ctx.delete(format!("{SECRETS}/bootstrap-token-{id}")).await?.ok()?;
    eventually("the token ends with its Secret", async || client.get("/version").await?.refused(401, "Unauthorized"))
        .await?;
    Ok(())
}

async fn a_bootstrap_token_that_does_not_count_is_unauthorized(ctx: Ctx) -> Result<()> {
    for more in [
        json!({"expiration": "2020-01-01T00:00:00Z"}),
        json!({"usage-bootstrap-authentication": "false"}),
        json!({"auth-extra-groups": "system:masters"}),
        json!({"token-secret": "ffffffffffffffff"}),
    ] {
        let client = bootstrap_token(&ctx, &token_id(&ctx), &more).await?;
        client.get("/version").await?.refused_with(401, "Unauthorized", "Unauthorized")?;
    }
    Ok(())
}

async fn a_review_knows_bootstrap_tokens(ctx: Ctx) -> Result<()> {
    let id = token_id(&ctx);
    bootstrap_token(&ctx, &id, &json!({})).await?;
    let review = json!({"spec": {"token": format!("{id}.{SECRET}")}});
    let status = eventually("the token is known", async || {
        let reply = ctx.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?.code(201)?;
        ensure!(reply["status"]["authenticated"] == true, "{reply}");
        Ok(reply["status"].clone())
    })
    .await?;
    assert_eq!(status["user"]["username"], json!(format!("system:bootstrap:{id}")));
    Ok(())
}

/// A request, and the key that it is for.
fn request(node: &str, organization: &str, signer: &str, usage: &str) -> Result<(Value, KeyPair)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&key)?.pem()?;
    let spec = json!({
        "request": STANDARD.encode(pem), "signerName": format!("kubernetes.io/{signer}"),
        "usages": ["digital signature", usage],
    });
    Ok((json!({"metadata": {"generateName": "request-"}, "spec": spec}), key))
}

async fn approve(ctx: &Ctx, request: &Value) -> Result<String> {
    let made = ctx.post(REQUESTS, request).await?.code(201)?;
    let path = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().context("a name")?);
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]}});
    ctx.patch(format!("{path}/approval"), PatchType::Merge, &approved).await?.ok()?;
    Ok(path)
}

async fn an_approved_request_of_a_kubelet_is_signed(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("node");
    let (asked, key) = request(&name, "system:nodes", "kube-apiserver-client-kubelet", "client auth")?;
    let path = approve(&ctx, &asked).await?;
    let certificate = eventually("it is signed", async || {
        let request = ctx.get(&path).await?.ok()?;
        request["status"]["certificate"].as_str().map(str::to_owned).context("not signed yet")
    })
    .await?;
    let (certificate, key) = (String::from_utf8(STANDARD.decode(certificate)?)?, key.serialize_pem());
    let identity = Identity::Certificate { cert_pem: &certificate, key_pem: &key };
    let client: Client = ctx.target().client_with(identity).await?;
    let review = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(br#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#.to_vec())?;
    let review: Value = client.request(review).await?;
    let user = &review["status"]["userInfo"];
    assert_eq!(user["username"], json!(format!("system:node:{name}")));
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated"]));
    Ok(())
}

async fn a_request_that_its_signer_does_not_take_fails(ctx: Ctx) -> Result<()> {
    let (asked, _) = request("a", "example", "kube-apiserver-client-kubelet", "client auth")?;
    let path = approve(&ctx, &asked).await?;
    eventually("it fails", async || {
        let request = ctx.get(&path).await?.ok()?;
        let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let failed = conditions.iter().find(|condition| condition["type"] == "Failed").context("not yet")?;
        assert_eq!(failed["reason"], "SignerValidationFailure");
        assert!(request["status"]["certificate"].is_null());
        Ok(())
    })
    .await
}

async fn as_node(ctx: &Ctx, name: &str) -> Result<Ctx> {
    ctx.as_user(&format!("system:node:{name}"), &["system:nodes"]).await
}

async fn a_node_writes_its_own_node_and_no_other(ctx: Ctx) -> Result<()> {
    let (own, other) = (ctx.unique("node"), ctx.unique("node"));
    let node = as_node(&ctx, &own).await?;
    node.post(NODES, &json!({"metadata": {"name": own}})).await?.code(201)?;
    ctx.post(NODES, &json!({"metadata": {"name": other}})).await?.code(201)?;
    node.get(format!("{NODES}/{own}")).await?.ok()?;
    let status = json!({"status": {"addresses": [{"type": "Hostname", "address": "x"}]}});
    node.patch(format!("{NODES}/{own}/status"), PatchType::Merge, &status).await?.ok()?;
    let message = format!("nodes \"{other}\" is forbidden: node \"{own}\" is not allowed to modify node \"{other}\"");
    let reply = node.patch(format!("{NODES}/{other}/status"), PatchType::Merge, &status).await?;
    reply.refused_with(403, "Forbidden", &message)?;
    let new = ctx.unique("node");
    node.post(NODES, &json!({"metadata": {"name": new}})).await?.refused(403, "Forbidden")?;
    node.get(format!("{NODES}/{other}")).await?.refused(403, "Forbidden")?;
    node.get(NODES).await?.refused(403, "Forbidden")?;
    node.get(format!("{NODES}?fieldSelector=metadata.name%3D{own}")).await?.ok()?;
    node.delete(format!("{NODES}/{own}")).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_node_may_not_touch_its_taints_and_the_labels_of_others(ctx: Ctx) -> Result<()> {
    let own = ctx.unique("node");
    let node = as_node(&ctx, &own).await?;
    let path = format!("{NODES}/{own}");
    let labels = |key: &str| json!({"metadata": {"name": own, "labels": {key: "x"}}});
    let message = format!(
        "nodes \"{own}\" is forbidden: node \"{own}\" is not allowed to set the following labels: node-role.kubernetes.io/x"
    );
    node.post(NODES, &labels("node-role.kubernetes.io/x")).await?.refused_with(403, "Forbidden", &message)?;
    node.post(NODES, &labels("kubernetes.io/hostname")).await?.code(201)?;
    node.patch(&path, PatchType::Merge, &labels("example.com/x")).await?.ok()?;
    for key in ["node-restriction.kubernetes.io/x", "kubernetes.io/x"] {
        let message = format!("nodes \"{own}\" is forbidden: is not allowed to modify labels: {key}");
        let reply = node.patch(&path, PatchType::Merge, &labels(key)).await?;
        reply.refused_with(403, "Forbidden", &message)?;
    }
    let message = format!("nodes \"{own}\" is forbidden: node \"{own}\" is not allowed to modify taints");
    let reply = node.patch(&path, PatchType::Merge, &json!({"spec": {"taints": []}})).await?;
    reply.refused_with(403, "Forbidden", &message)?;
    Ok(())
}

async fn a_node_writes_its_own_lease_and_no_other(ctx: Ctx) -> Result<()> {
    let (own, other) = (ctx.unique("node"), ctx.unique("node"));
    let node = as_node(&ctx, &own).await?;
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    node.post(LEASES, &lease(&own)).await?.code(201)?;
    node.patch(format!("{LEASES}/{own}"), PatchType::Merge, &json!({"spec": {"leaseDurationSeconds": 40}}))
        .await?
        .ok()?;
    let message = format!(
        "leases.coordination.k8s.io \"{other}\" is forbidden: can only access node lease with the same name as the requesting node"
    );
    node.post(LEASES, &lease(&other)).await?.refused_with(403, "Forbidden", &message)?;
    ctx.post(LEASES, &lease(&other)).await?.code(201)?;
    node.get(format!("{LEASES}/{other}")).await?.refused(403, "Forbidden")?;
    node.post(ctx.group("coordination.k8s.io/v1", "leases"), &lease(&own)).await?.refused(403, "Forbidden")?;
    Ok(())
}

fn pod(ctx: &Ctx, name: &str, node: &str, secret: &str) -> Value {
    let container = json!({"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": secret}}]});
    let spec = json!({"nodeName": node, "containers": [container], "automountServiceAccountToken": false});
    json!({"metadata": {"name": name, "namespace": ctx.ns}, "spec": spec})
}

async fn a_node_reads_what_its_pods_refer_to_and_no_more(ctx: Ctx) -> Result<()> {
    let (own, other) = (ctx.unique("node"), ctx.unique("node"));
    for name in [&own, &other] {
        ctx.post(NODES, &json!({"metadata": {"name": name}})).await?.code(201)?;
    }
    for secret in ["of-own", "of-other", "of-nobody"] {
        ctx.post(ctx.core("secrets"), &json!({"metadata": {"name": secret}})).await?.code(201)?;
    }
    ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": "default"}})).await?;
    ctx.post(ctx.core("pods"), &pod(&ctx, "one", &own, "of-own")).await?.code(201)?;
    ctx.post(ctx.core("pods"), &pod(&ctx, "two", &other, "of-other")).await?.code(201)?;
    let node = as_node(&ctx, &own).await?;
    eventually("its pods are known", async || node.get(ctx.core("secrets/of-own")).await?.ok()).await?;
    for secret in ["secrets/of-other", "secrets/of-nobody", "secrets"] {
        node.get(ctx.core(secret)).await?.refused(403, "Forbidden")?;
    }
    node.get(ctx.core("pods/one")).await?.ok()?;
    node.get(ctx.core("pods/two")).await?.refused(403, "Forbidden")?;
    node.get("/api/v1/pods").await?.refused(403, "Forbidden")?;
    let mine = node.get(format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{own}")).await?.ok()?;
    assert_eq!(mine["items"].as_array().map(Vec::len), Some(1));
    node.get(format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{other}")).await?.refused(403, "Forbidden")?;
    let running = json!({"status": {"phase": "Running"}});
    node.patch(ctx.core("pods/one/status"), PatchType::Merge, &running).await?.ok()?;
    let message = format!(
        "pods \"two\" is forbidden: node \"{own}\" can only update pod status for pods with spec.nodeName set to itself"
    );
    let reply = node.patch(ctx.core("pods/two/status"), PatchType::Merge, &running).await?;
    reply.refused_with(403, "Forbidden", &message)?;
    let message =
        format!("pods \"two\" is forbidden: node \"{own}\" can only delete pods with spec.nodeName set to itself");
    node.delete(ctx.core("pods/two")).await?.refused_with(403, "Forbidden", &message)?;
    Ok(())
}

async fn a_node_makes_mirror_pods_only(ctx: Ctx) -> Result<()> {
    let own = ctx.unique("node");
    ctx.post(NODES, &json!({"metadata": {"name": own}})).await?.code(201)?;
    ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": "default"}})).await?;
    let node = as_node(&ctx, &own).await?;
    let message = format!(
        "pods \"one\" is forbidden: pod does not have \"kubernetes.io/config.mirror\" annotation, node \"{own}\" can only create mirror pods"
    );
    let plain = pod(&ctx, "one", &own, "a");
    node.post(ctx.core("pods"), &plain).await?.refused_with(403, "Forbidden", &message)?;
    // The node cannot read a Secret through a pod that it creates, either.
    let mut mirror = plain;
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    node.post(ctx.core("pods"), &mirror).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_node_asks_for_its_own_certificate_only(ctx: Ctx) -> Result<()> {
    let node = as_node(&ctx, "a").await?;
    let (own, _) = request("a", "system:nodes", "kube-apiserver-client-kubelet", "client auth")?;
    node.post(REQUESTS, &own).await?.code(201)?;
    let (other, _) = request("b", "system:nodes", "kube-apiserver-client-kubelet", "client auth")?;
    let reply = node.post(REQUESTS, &other).await?.refused(403, "Forbidden")?;
    let message = reply["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("is forbidden: can only create a node CSR with CN=system:node:a"), "{message}");
    Ok(())
}
