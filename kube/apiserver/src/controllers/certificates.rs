//! Signs approved certificate requests with the server's own authority or its manager's, as kube-controller-manager does with the authority of a
//! cluster;
//! removes old requests and expired bootstrap tokens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleetwright_pki::{Authority, LeafUsage, Request};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::actor::{Actor, all, log};
use crate::auth;
use crate::registry::Resource;
use crate::state::Inner;
use crate::storage::ControllerManager;
use crate::store::{Key, Object};
use crate::write::options::DeleteOptions;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
/// The longest validity of a certificate, and the default of requests without one.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The retention of requests: answered ones, and pending ones.
const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const PENDING: SignedDuration = SignedDuration::from_hours(24);

/// The requests to reconcile.
#[derive(Default)]
pub(super) struct Certificates {
    requests: BTreeSet<Key>,
}

impl Certificates {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, now: Option<&Arc<Object>>) {
        if let Some(now) = now
            && resource.is(GROUP, PLURAL)
        {
            self.requests.insert(now.key.clone());
        }
    }

    /// A manager's authorities replace the server's own.
    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>, manager: Option<&ControllerManager>) {
        let requests = std::mem::take(&mut self.requests);
        let Some(resource) = inner.registry.by_plural(GROUP, PLURAL) else { return };
        for key in requests {
            if let Some(live) = inner.store.get(&resource.storage, &key).filter(|live| !live.deleting) {
                settle(inner, manager, &resource, &live);
            }
        }
    }
}

fn has(request: &Value, type_: &str) -> bool {
    request["status"]["conditions"].as_array().into_iter().flatten().any(|condition| condition["type"] == type_)
}

fn settle(inner: &Arc<Inner>, manager: Option<&ControllerManager>, resource: &Arc<Resource>, live: &Arc<Object>) {
    let request = live.value();
    let signed = request["status"]["certificate"].as_str().is_some_and(|text| !text.is_empty());
    if signed || !has(&request, "Approved") || has(&request, "Denied") || has(&request, "Failed") {
        return;
    }
    let Some(signer) = Signer::of(request["spec"]["signerName"].as_str().unwrap_or_default()) else { return };
    let Some(authority) = signer.authority(inner, manager) else { return };
    let actor = Actor::manager(inner, "certificate-controller");
    let answer = signer.sign(&authority, &request);
    let now = inner.timestamp();
    let done = actor.change(resource, live, "status", |live| match &answer {
        Ok(certificate) => live["status"]["certificate"] = STANDARD.encode(certificate).into(),
        Err(why) => {
            let failed = json!({
                "type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why,
                "lastUpdateTime": now, "lastTransitionTime": now,
            });
            match live["status"]["conditions"].as_array_mut() {
                Some(conditions) => conditions.push(failed),
                None => live["status"]["conditions"] = json!([failed]),
            }
        }
    });
    log("certificates", done);
}

/// The built-in signers of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signer {
    Client,
    KubeletClient,
    KubeletServing,
}

impl Signer {
    fn of(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/kube-apiserver-client" => Some(Self::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::KubeletClient),
            "kubernetes.io/kubelet-serving" => Some(Self::KubeletServing),
            _ => None,
        }
    }

    /// The authority of the signer: serving certificates of kubelets have a separate one.
    fn authority(self, inner: &Inner, manager: Option<&ControllerManager>) -> Option<Arc<Authority>> {
        match self {
            Self::Client | Self::KubeletClient => {
                manager.and_then(|manager| manager.signer.clone()).or_else(|| inner.authority.clone())
            }
            Self::KubeletServing => {
                manager.and_then(|manager| manager.kubelet_signer.clone()).or_else(|| inner.kubelet_authority())
            }
        }
    }

    fn sign(self, authority: &Authority, request: &Value) -> Result<String, String> {
        let pem = STANDARD.decode(request["spec"]["request"].as_str().unwrap_or_default());
        let asked = Request::from_pem(&pem.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        let usages: BTreeSet<&str> =
            request["spec"]["usages"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        self.check(&asked, &usages)?;
        let wanted = request["spec"]["expirationSeconds"].as_u64().map_or(LIFETIME, Duration::from_secs);
        let lifetime = wanted.clamp(Duration::from_secs(600), LIFETIME);
        let usage = if self == Self::KubeletServing { LeafUsage::Server } else { LeafUsage::Client };
        authority.sign(&asked, &[usage], lifetime).map_err(|error| error.to_string())
    }

    /// Checks the request against the signer's rules, independent of the approval.
    fn check(self, asked: &Request, usages: &BTreeSet<&str>) -> Result<(), String> {
        let own = if self == Self::KubeletServing { "server auth" } else { "client auth" };
        if !usages.contains(own)
            || usages.iter().any(|usage| ![own, "digital signature", "key encipherment"].contains(usage))
        {
            return Err(format!("usages did not match: {own} with digital signature and key encipherment are allowed"));
        }
        if self == Self::Client {
            return Ok(());
        }
        if !usages.contains("digital signature") {
            return Err("usages did not match: digital signature is required".to_owned());
        }
        if asked.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        if asked.common_names.len() != 1 || !asked.common_names[0].starts_with("system:node:") {
            return Err("subject common name does not begin with system:node: ".to_owned());
        }
        match self {
            Self::KubeletClient if asked.has_names() => Err("subjectAltNames are not allowed".to_owned()),
            Self::KubeletServing if !asked.other_names.is_empty() => {
                Err("only DNS and IP subjectAltNames are allowed".to_owned())
            }
            Self::KubeletServing if !asked.has_names() => Err("DNS or IP subjectAltName is required".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Removes old requests and expired bootstrap tokens.
pub(super) fn sweep(inner: &Arc<Inner>) {
    let now = inner.now();
    let actor = Actor::manager(inner, "certificate-controller");
    if let Some(requests) = inner.registry.by_plural(GROUP, PLURAL) {
        for object in all(inner, &requests.storage) {
            if is_old(&object.value(), now) {
                log("certificates", actor.delete(&requests, &object, DeleteOptions::default()));
            }
        }
    }
    let Some(secrets) = inner.registry.by_plural("", "secrets") else { return };
    let page = inner.store.page(&secrets.storage, Some("kube-system"), None, None, 0, |_| true);
    for object in page.map(|page| page.objects).unwrap_or_default() {
        if object.key.name.starts_with("bootstrap-token-") && auth::is_over(&object.value(), now) {
            log("bootstrap tokens", actor.delete(&secrets, &object, DeleteOptions::default()));
        }
    }
}

fn is_old(request: &Value, now: Timestamp) -> bool {
    let answered = has(request, "Approved") || has(request, "Denied") || has(request, "Failed");
    let kept = if answered { ANSWERED } else { PENDING };
    let made = request["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    made.is_some_and(|made| made + kept < now)
}
