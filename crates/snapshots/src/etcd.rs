//! Client of etcd's JSON gateway.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::AsyncBufRead;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Addresses of etcd and the credentials for it.
#[derive(Clone, Debug)]
pub struct EtcdEndpoint {
    /// URLs of the members.
    pub endpoints: Vec<String>,
    /// Directory with `tls.crt`, `tls.key` and `ca.crt`; `None` without TLS.
    pub certificates: Option<PathBuf>,
    /// Name in the members' certificates, if it differs from their URLs.
    pub server_name: Option<String>,
}

impl EtcdEndpoint {
    /// Clients of the members, in order.
    pub(crate) async fn members(&self) -> Result<Vec<Etcd>> {
        let mut all = Vec::new();
        for url in &self.endpoints {
            let (mut cluster, mut user) = (json!({ "server": url }), json!({}));
            if let Some(folder) = &self.certificates {
                cluster["certificate-authority"] = json!(folder.join("ca.crt"));
                user["client-certificate"] = json!(folder.join("tls.crt"));
                user["client-key"] = json!(folder.join("tls.key"));
            }
            if let Some(name) = &self.server_name {
                cluster["tls-server-name"] = json!(name);
            }
            all.push(Etcd { url: url.clone(), client: client(cluster, user).await? });
        }
        Ok(all)
    }
}

/// A client of a server that a kubeconfig describes.
pub(crate) async fn client(cluster: Value, user: Value) -> Result<Client> {
    let config: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "it", "cluster": cluster }],
        "users": [{ "name": "it", "user": user }],
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        "current-context": "it",
    }))?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // Without TLS no authority is needed, and an image may contain none.
    if config.cluster_url.scheme_str() == Some("http") {
        config.root_cert = Some(Vec::new());
    }
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = Some(Duration::from_secs(120));
    Ok(Client::try_from(config)?)
}

/// A member of etcd.
pub(crate) struct Etcd {
    pub(crate) url: String,
    client: Client,
}

impl Etcd {
    fn request(what: &str, body: &Value) -> Result<http::Request<Vec<u8>>> {
        let request = http::Request::post(format!("/v3/{what}")).header(http::header::CONTENT_TYPE, "application/json");
        Ok(request.body(body.to_string().into_bytes())?)
    }

    pub(crate) async fn ask(&self, what: &str, body: Value) -> Result<Value> {
        let answer = self.client.request(Self::request(what, &body)?).await;
        answer.with_context(|| format!("{}: {what}", self.url))
    }

    pub(crate) async fn stream(&self, what: &str) -> Result<impl AsyncBufRead + use<>> {
        let answer = self.client.request_stream(Self::request(what, &json!({}))?).await;
        answer.with_context(|| format!("{}: {what}", self.url))
    }

    /// Status that the member reports.
    pub(crate) async fn status(&self) -> Result<Value> {
        self.ask("maintenance/status", json!({})).await
    }

    /// Present revision of the member.
    pub(crate) async fn revision(&self) -> Result<i64> {
        Ok(revision(&self.status().await?))
    }

    /// Number of keys at a revision.
    pub(crate) async fn keys(&self, revision: i64) -> Result<u64> {
        // From the first key to the last.
        let all = json!({ "key": "AA==", "range_end": "AA==", "count_only": true, "revision": revision.to_string() });
        let count = number(&self.ask("kv/range", all).await?["count"]);
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Hash of all keys at a revision, and the compact revision from which it counts.
    pub(crate) async fn digest(&self, revision: i64) -> Result<(i64, i64)> {
        let answer = self.ask("maintenance/hashkv", json!({ "revision": revision.to_string() })).await?;
        Ok((number(&answer["hash"]), number(&answer["compact_revision"])))
    }
}

/// The revision in the status of a member.
pub(crate) fn revision(status: &Value) -> i64 {
    number(&status["header"]["revision"])
}

/// A version such as `3.7.0`; `None` if the text is missing or no version. It becomes part of messages.
pub(crate) fn version(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let is_version = text.len() <= 32 && text.starts_with(|first: char| first.is_ascii_digit());
    let is_plain = text.chars().all(|one| one.is_ascii_alphanumeric() || ".-+".contains(one));
    (is_version && is_plain).then(|| text.to_owned())
}

/// In the gateway's JSON, numbers of 64 bits are strings, and zero is omitted.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}
