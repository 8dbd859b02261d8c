use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fleetwright_pki::{Authority, Identity, Leaf, LeafUsage, PemPair, kubeconfig, write_private};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::plane::{call_etcd, client, free_port};
use crate::process::Process;
use crate::{Binaries, DEFAULT_MINOR};

/// The number of start attempts, since another process may take the port in between.
const ATTEMPTS: usize = 5;
const READY: Duration = Duration::from_secs(120);

/// An etcd of one member outside of all clusters, as a person would run one for several clusters: it accepts only TLS with client certificates
/// of its authority. Dropping it ends it.
pub struct Etcd {
    // The order of drops.
    process: Process,
    client: Client,
    url: String,
    authority: Authority,
    _folder: TempDir,
}

impl Etcd {
    /// Starts etcd on this address of the machine, and waits until it answers.
    ///
    /// # Errors
    /// When there is no etcd executable, or etcd does not serve in time.
    pub async fn start(address: impl Into<IpAddr>) -> Result<Self> {
        let address = address.into();
        for _ in 1..ATTEMPTS {
            let mut etcd = Self::launch(address).await?;
            match etcd.ready().await {
                Err(_) if etcd.process.lost_its_port() => {}
                ready => return ready.map(|()| etcd),
            }
        }
        let mut etcd = Self::launch(address).await?;
        etcd.ready().await.map(|()| etcd)
    }

    async fn launch(address: IpAddr) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix(&format!("fleetwright-lab-{}-", std::process::id())).tempdir()?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        let keep = |name: &str, content: &str| {
            write_private(file(name), content).with_context(|| format!("cannot write {}", file(name)))
        };
        let authority = Authority::new("fleetwright-lab-etcd")?;
        // Its gateway is a client of its own server, with the server's certificate.
        let usages = vec![LeafUsage::Server, LeafUsage::Client];
        let serving = authority.issue(Leaf { usages, ..Leaf::server("etcd", ["localhost"], [address]) })?;
        keep("ca.crt", authority.cert_pem())?;
        keep("tls.crt", &serving.cert_pem)?;
        keep("tls.key", &serving.key_pem)?;
        let url = format!("https://{address}:{}", free_port(address)?);
        let arguments = [
            "--name=alone".to_owned(),
            format!("--data-dir={}", file("data")),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", file("ca.crt")),
            format!("--cert-file={}", file("tls.crt")),
            format!("--key-file={}", file("tls.key")),
            "--unsafe-no-fsync".to_owned(),
        ];
        let binary = Binaries::find(DEFAULT_MINOR)?.path("etcd")?;
        let process = Process::start("etcd", &binary, arguments, folder.path())?;
        let own = authority.issue(Leaf::client("fleetwright-lab", [""; 0]))?;
        let client = client(&kubeconfig("etcd", &url, authority.cert_pem(), Identity::from(&own))).await?;
        Ok(Self { process, client, url, authority, _folder: folder })
    }

    async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            let Err(error) = self.call("maintenance/status", &json!({})).await else { return Ok(()) };
            if let Some(status) = self.process.ended()? {
                bail!("etcd exited with {status}; its last output:\n{}", self.process.tail());
            }
            if Instant::now() > deadline {
                return Err(error.context(format!(
                    "timed out after {READY:?}: etcd is not ready; its last output:\n{}",
                    self.process.tail()
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The URL, as `https://ADDRESS:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The CA certificate of its server certificate.
    pub fn ca_pem(&self) -> &str {
        self.authority.cert_pem()
    }

    /// A client certificate for `user`.
    pub fn issue(&self, user: &str) -> Result<PemPair> {
        Ok(self.authority.issue(Leaf::client(user, [""; 0]))?)
    }

    /// Writes a value under a key.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        let body = json!({ "key": BASE64_STANDARD.encode(key), "value": BASE64_STANDARD.encode(value) });
        self.call("kv/put", &body).await.map(drop)
    }

    /// All keys with this prefix, and the revision of each one's last write.
    pub async fn keys(&self, prefix: &str) -> Result<BTreeMap<String, i64>> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().context("all keys would be too many")? += 1;
        let [from, to] = [prefix.as_bytes(), &end].map(|bytes| BASE64_STANDARD.encode(bytes));
        let found = self.call("kv/range", &json!({ "key": from, "range_end": to, "keys_only": true })).await?;
        let one = |entry: &Value| {
            let key = BASE64_STANDARD.decode(entry["key"].as_str()?).ok()?;
            Some((String::from_utf8(key).ok()?, entry["mod_revision"].as_str()?.parse().ok()?))
        };
        let all = found["kvs"].as_array().into_iter().flatten();
        all.map(|entry| one(entry).with_context(|| format!("unexpected entry of etcd: {entry}"))).collect()
    }

    async fn call(&self, what: &str, body: &Value) -> Result<Value> {
        call_etcd(&self.client, what, body).await
    }
}
