//! The Node of a kubelet: how it joins the cluster, and its status.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::Clock;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::config::Kubelet;
use super::{KubeletConfig, KubeletState};
use crate::host::SimHost;

/// The taint that the API server sets on a new Node, until its controllers have seen the Node ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The signer of kubelet client certificates.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// A certificate request without an answer for this time is recreated.
const REQUEST_LASTS: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(super) struct PendingRequest {
    name: String,
    key: Arc<str>,
    since: Duration,
}

/// Writes the Node for the state of the kubelet, or for its absence.
pub(super) async fn sync_node(
    client: &Client,
    clock: &Clock,
    config: &KubeletConfig,
    host: &SimHost,
    kubelet: Option<Kubelet>,
    known: &mut KubeletState,
) -> Result<(), String> {
    let Some(kubelet) = kubelet else {
        known.runs = false;
        known.request = None;
        if let (true, true, Some(ran)) = (known.overdue, known.ready, &known.ran) {
            unknown(client, clock, &ran.node).await?;
            known.ready = false;
        }
        return Ok(());
    };
    let by = if config.credentials {
        match ensure_credential(client, clock, host, &kubelet, known).await? {
            Some(client) => client,
            // The request is pending; its answer triggers a sync.
            None => return Ok(()),
        }
    } else {
        client.clone()
    };
    let registered = known.ran.as_ref().is_some_and(|ran| ran.node == kubelet.node);
    if !registered || !status(&by, clock, &kubelet).await? {
        register(&by, client, clock, &kubelet).await?;
    }
    if !known.runs && config.lease.is_some() {
        renew(client, &kubelet.node, clock.now()).await?;
    }
    known.ran = Some(Arc::new(kubelet));
    (known.runs, known.ready, known.overdue) = (true, true, false);
    Ok(())
}

fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn conditions(clock: &Clock, ready: &str, reason: &str, message: &str) -> Value {
    let now = seconds(clock.now());
    json!([{
        "type": "Ready", "status": ready, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }])
}

fn said(clock: &Clock, kubelet: &Kubelet) -> Value {
    json!({
        "conditions": conditions(clock, "True", "KubeletReady", "kubelet is posting ready status"),
        "addresses": [{ "type": "Hostname", "address": kubelet.node }],
        "capacity": { "cpu": "8", "memory": "32Gi", "pods": "110" },
        "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110" },
        "nodeInfo": {
            "architecture": "amd64", "bootID": kubelet.boot_id, "machineID": kubelet.node,
            "containerRuntimeVersion": "containerd://simulated", "kernelVersion": kubelet.kernel,
            "kubeProxyVersion": "", "kubeletVersion": kubelet.version, "operatingSystem": "linux",
            "osImage": "simulated", "systemUUID": kubelet.node,
        },
    })
}

/// Returns false if the Node does not exist.
async fn status(client: &Client, clock: &Clock, kubelet: &Kubelet) -> Result<bool, String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({ "status": said(clock, kubelet) });
    match nodes.patch_status(&kubelet.node, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(false),
        Err(error) => Err(format!("cannot report the Node as ready: {error}")),
    }
}

async fn register(client: &Client, admin: &Client, clock: &Clock, kubelet: &Kubelet) -> Result<(), String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut labels = kubelet.labels.clone();
    for (key, value) in [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels.insert("kubernetes.io/hostname".to_owned(), kubelet.node.clone());
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": kubelet.node, "labels": labels },
        "spec": { "taints": kubelet.taints, "providerID": kubelet.provider_id },
        "status": said(clock, kubelet),
    });
    let node: Node =
        serde_json::from_value(node).map_err(|error| format!("its settings do not form a valid Node: {error}"))?;
    let made = match nodes.create(&PostParams::default(), &node).await {
        Ok(made) => made,
        Err(kube::Error::Api(error)) if error.code == 409 => {
            status(client, clock, kubelet).await?;
            return Ok(());
        }
        Err(error) => return Err(format!("cannot register its Node: {error}")),
    };
    // The part of the node lifecycle controller: a ready Node loses the taint that it was created with.
    let taints = made.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let kept: Vec<_> = taints.iter().filter(|taint| taint.key != NOT_READY).collect();
    if kept.len() < taints.len() {
        let patch = json!({
            "metadata": { "resourceVersion": made.metadata.resource_version },
            "spec": { "taints": kept },
        });
        let nodes: Api<Node> = Api::all(admin.clone());
        match nodes.patch(&kubelet.node, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {}
            // Conflict: the taints may have changed, so try again with the current ones.
            Err(kube::Error::Api(error)) if error.code == 409 => remove_not_ready_taint(&nodes, &kubelet.node).await?,
            Err(error) => return Err(format!("cannot mark its Node as ready: {error}")),
        }
    }
    Ok(())
}

async fn remove_not_ready_taint(nodes: &Api<Node>, name: &str) -> Result<(), String> {
    for _ in 0..10 {
        let node = nodes.get(name).await.map_err(|error| error.to_string())?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let kept: Vec<_> = taints.iter().filter(|taint| taint.key != NOT_READY).collect();
        let patch = json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": kept },
        });
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(error)) if error.code == 409 => {}
            Err(error) => return Err(error.to_string()),
            Ok(_) => return Ok(()),
        }
    }
    Err("its Node is modified by others all the time".to_owned())
}

/// Sets the conditions to Unknown, as the node lifecycle controller does.
async fn unknown(client: &Client, clock: &Clock, node: &str) -> Result<(), String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let silent = conditions(clock, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.");
    let patch = json!({ "status": { "conditions": silent } });
    match nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
        Err(error) => Err(format!("cannot mark its Node as unknown: {error}")),
    }
}

pub(super) async fn renew(client: &Client, node: &str, now: Timestamp) -> Result<(), String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": node },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}") },
    });
    let manager = PatchParams::apply("kubelet").force();
    leases.patch(node, &manager, &Patch::Apply(lease)).await.map(drop).map_err(|error| error.to_string())
}

/// A client with the kubelet's own certificate, once it has one.
async fn ensure_credential(
    client: &Client,
    clock: &Clock,
    host: &SimHost,
    kubelet: &Kubelet,
    known: &mut KubeletState,
) -> Result<Option<Client>, String> {
    let user = format!("system:node:{}", kubelet.node);
    let own = kubelet.kubeconfig.as_deref().ok_or("--kubeconfig is not set")?;
    let as_node = || impersonate(client, &user, &["system:nodes".to_owned()]);
    if host.machine().stat(own).is_some() {
        known.request = None;
        return Ok(Some(as_node()));
    }
    let Some(requested) = known.request.clone() else {
        known.request = Some(request(client, clock, host, kubelet, &user).await?);
        return Ok(None);
    };
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let status = match requests.get_opt(&requested.name).await.map_err(|error| error.to_string())? {
        Some(request) => request.status.unwrap_or_default(),
        None => {
            known.request = None;
            return Err("its CertificateSigningRequest does not exist".to_owned());
        }
    };
    if status.conditions.iter().flatten().any(|condition| condition.type_ == "Denied") {
        known.request = None;
        return Err("its CertificateSigningRequest was denied".to_owned());
    }
    let Some(certificate) = status.certificate else {
        // Requested again at once: a kubelet that only dropped its request would not be synced again, and would not join when an API server
        // comes back after a long outage.
        if clock.monotonic().saturating_sub(requested.since) > REQUEST_LASTS {
            known.request = Some(request(client, clock, host, kubelet, &user).await?);
        }
        return Ok(None);
    };
    let current = format!("{}/kubelet-client-current.pem", kubelet.cert_dir);
    let pem = format!("{}{}", String::from_utf8_lossy(&certificate.0), requested.key);
    let points =
        format!("users: [{{name: default, user: {{client-certificate: {current}, client-key: {current}}}}}]\n");
    {
        let mut machine = host.machine();
        machine.put(&current, pem.as_bytes(), 0o600);
        machine.put(own, points.as_bytes(), 0o600);
    }
    known.request = None;
    Ok(Some(as_node()))
}

/// Requests a certificate with the host's bootstrap credential.
async fn request(
    client: &Client,
    clock: &Clock,
    host: &SimHost,
    kubelet: &Kubelet,
    user: &str,
) -> Result<PendingRequest, String> {
    let path = kubelet.bootstrap.as_deref().ok_or("--bootstrap-kubeconfig is not set")?;
    let text = host.machine().read(path, 1 << 20).ok().flatten().ok_or("it has no bootstrap kubeconfig")?;
    let config: Value = serde_saphyr::from_str(&String::from_utf8_lossy(&text)).map_err(|error| error.to_string())?;
    let token = config["users"].as_array().into_iter().flatten().find_map(|user| user["user"]["token"].as_str());
    let token = token.ok_or("the bootstrap kubeconfig has no token")?;
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token },
    });
    let review: TokenReview = serde_json::from_value(review).map_err(|error| error.to_string())?;
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await.map_err(|error| error.to_string())?;
    let status = review.status.unwrap_or_default();
    let who = status.user.filter(|_| status.authenticated == Some(true)).ok_or("its token is rejected")?;
    let by = impersonate(client, &who.username.unwrap_or_default(), &who.groups.unwrap_or_default());

    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, user);
    let pem = params.serialize_request(&key).and_then(|request| request.pem()).map_err(|error| error.to_string())?;
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "generateName": "csr-" },
        "spec": {
            "request": k8s_openapi::ByteString(pem.into_bytes()),
            "signerName": SIGNER, "usages": ["digital signature", "client auth"],
        },
    });
    let request: CertificateSigningRequest = serde_json::from_value(request).map_err(|error| error.to_string())?;
    let requests: Api<CertificateSigningRequest> = Api::all(by);
    let made = requests.create(&PostParams::default(), &request).await;
    let made = made.map_err(|error| format!("cannot request a certificate: {error}"))?;
    let name = made.metadata.name.unwrap_or_default();
    Ok(PendingRequest { name, key: key.serialize_pem().into(), since: clock.monotonic() })
}

/// A client of the same API server that impersonates this user.
fn impersonate(client: &Client, user: &str, groups: &[String]) -> Client {
    let inner = client.clone();
    let user = http::HeaderValue::from_str(user).ok();
    let groups: Vec<http::HeaderValue> =
        groups.iter().filter_map(|group| http::HeaderValue::from_str(group).ok()).collect();
    let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        let inner = inner.clone();
        if let Some(user) = &user {
            request.headers_mut().insert("impersonate-user", user.clone());
        }
        for group in &groups {
            request.headers_mut().append("impersonate-group", group.clone());
        }
        async move { inner.send(request).await }
    });
    Client::new(service, client.default_namespace())
}
