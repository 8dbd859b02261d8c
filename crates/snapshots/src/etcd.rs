//! etcd, asked by its JSON gateway.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::AsyncBufRead;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Where etcd answers, and with what it is asked.
#[derive(Clone, Debug)]
pub struct EtcdEndpoint {
    /// The URLs of its members.
    pub endpoints: Vec<String>,
    /// The folder with `tls.crt`, `tls.key` and `ca.crt`; none where it is asked without TLS.
    pub certificates: Option<PathBuf>,
    /// The name that its members show, if that is not the one in their URLs.
    pub server_name: Option<String>,
}

impl EtcdEndpoint {
    /// The members, one after the other.
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

/// A client of a server as a kubeconfig describes it.
pub(crate) async fn client(cluster: Value, user: Value) -> Result<Client> {
    let config: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "it", "cluster": cluster }],
        "users": [{ "name": "it", "user": user }],
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        "current-context": "it",
    }))?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    // Without TLS nobody needs to be trusted, and an image may bring no authorities along.
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

    /// What it says of itself.
    pub(crate) async fn status(&self) -> Result<Value> {
        self.ask("maintenance/status", json!({})).await
    }

    /// The revision that it is at.
    pub(crate) async fn revision(&self) -> Result<i64> {
        Ok(revision(&self.status().await?))
    }

    /// How many keys there are at a revision.
    pub(crate) async fn keys(&self, revision: i64) -> Result<u64> {
        // From the first key to the last.
        let all = json!({ "key": "AA==", "range_end": "AA==", "count_only": true, "revision": revision.to_string() });
        let count = number(&self.ask("kv/range", all).await?["count"]);
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// The digest of all keys at a revision, and from which revision on it counts.
    pub(crate) async fn digest(&self, revision: i64) -> Result<(i64, i64)> {
        let answer = self.ask("maintenance/hashkv", json!({ "revision": revision.to_string() })).await?;
        Ok((number(&answer["hash"]), number(&answer["compact_revision"])))
    }
}

/// The revision in the status of a member.
pub(crate) fn revision(status: &Value) -> i64 {
    number(&status["header"]["revision"])
}

/// A version such as `3.7.0`; none if there is none, or if it is not one. It becomes part of messages.
pub(crate) fn version(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let is_version = text.len() <= 32 && text.starts_with(|first: char| first.is_ascii_digit());
    let is_plain = text.chars().all(|one| one.is_ascii_alphanumeric() || ".-+".contains(one));
    (is_version && is_plain).then(|| text.to_owned())
}

/// Numbers of 64 bits are texts in JSON, and nought is left out.
pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}
