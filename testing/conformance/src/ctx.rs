use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fleetwright_pki::Identity;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{Reply, ServerKind, Target, Watch};

/// The timeout of an asynchronous effect, on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The fixture of a case: one of the servers, a namespace, and an identity, initially the administrator's.
#[derive(Clone)]
pub struct Ctx {
    target: Arc<Target>,
    client: Client,
    counter: Arc<AtomicU64>,
    /// The case's namespace.
    pub ns: String,
}

/// The kinds of patches.
#[derive(Clone, Copy, Debug)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Strategic merge, for built-in kinds.
    Strategic,
    /// Server-side apply.
    Apply,
}

impl PatchType {
    /// The content type that stands for it.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

impl Ctx {
    /// A context with a fresh namespace.
    pub async fn new(target: Arc<Target>, number: usize) -> Result<Self> {
        let client = target.admin();
        let ctx = Self { target, client, counter: Arc::default(), ns: format!("case-{number}") };
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ctx.ns } });
        ctx.post("/api/v1/namespaces", &body).await?.ok()?;
        Ok(ctx)
    }

    /// The server of the case.
    pub fn kind(&self) -> ServerKind {
        self.target.kind()
    }

    /// The server itself.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// A kube client with the present identity.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The same case with a client certificate of another user.
    pub async fn as_user(&self, user: &str, groups: &[&str]) -> Result<Self> {
        let client = self.target.client_as(user, groups).await?;
        Ok(Self { client, ..self.clone() })
    }

    /// The same case with a bearer token and no certificate.
    pub async fn with_token(&self, token: &str) -> Result<Self> {
        let client = self.target.client_with(Identity::Token(token)).await?;
        Ok(Self { client, ..self.clone() })
    }

    /// The same case with this client certificate, which may be one that the server does not accept.
    pub async fn with_certificate(&self, cert_pem: &str, key_pem: &str) -> Result<Self> {
        let client = self.target.client_with(Identity::Certificate { cert_pem, key_pem }).await?;
        Ok(Self { client, ..self.clone() })
    }

    /// The same case with no identity at all.
    pub async fn anonymous(&self) -> Result<Self> {
        let client = self.target.client_with(Identity::Anonymous).await?;
        Ok(Self { client, ..self.clone() })
    }

    /// A name that no other case has, for objects without a namespace.
    pub fn unique(&self, prefix: &str) -> String {
        format!("{prefix}-{}-{}", self.ns, self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// The path of a core resource in the case's namespace: `core("pods")`, `core("pods/one/status")`.
    pub fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.ns)
    }

    /// The path of a resource of another group in the case's namespace: `group("apps/v1", "deployments/one")`.
    pub fn group(&self, group_version: &str, resource: &str) -> String {
        format!("/apis/{group_version}/namespaces/{}/{resource}", self.ns)
    }

    /// Begins a request.
    pub fn call(&self, method: Method, path: impl Into<String>) -> Call<'_> {
        Call { ctx: self, method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub async fn get(&self, path: impl Into<String>) -> Result<Reply> {
        self.call(Method::GET, path).send().await
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: impl Into<String>, body: &Value) -> Result<Reply> {
        self.call(Method::POST, path).json(body).send().await
    }

    /// PUT of a JSON body.
    pub async fn put(&self, path: impl Into<String>, body: &Value) -> Result<Reply> {
        self.call(Method::PUT, path).json(body).send().await
    }

    pub async fn patch(&self, path: impl Into<String>, kind: PatchType, body: &Value) -> Result<Reply> {
        let call = self.call(Method::PATCH, path).header("content-type", kind.content_type());
        call.body(body.to_string()).send().await
    }

    /// Server-side apply by a manager; more of the query goes into the path.
    pub async fn apply(&self, path: &str, manager: &str, body: &Value) -> Result<Reply> {
        let separator = if path.contains('?') { '&' } else { '?' };
        self.patch(format!("{path}{separator}fieldManager={manager}"), PatchType::Apply, body).await
    }

    /// DELETE without options.
    pub async fn delete(&self, path: impl Into<String>) -> Result<Reply> {
        self.call(Method::DELETE, path).send().await
    }

    /// DELETE with options.
    pub async fn delete_with(&self, path: impl Into<String>, options: &Value) -> Result<Reply> {
        self.call(Method::DELETE, path).json(options).send().await
    }

    /// Opens a watch: the path with its whole query, but for `watch=true`.
    pub async fn watch(&self, path: &str) -> Result<Watch> {
        self.watch_as(path, "application/json").await
    }

    /// Opens a watch that accepts another representation.
    pub async fn watch_as(&self, path: &str, accept: &str) -> Result<Watch> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}watch=true");
        let request = Request::get(&path).header("accept", accept).body(Body::empty())?;
        Watch::open(&path, self.client.send(request).await?).await
    }

    /// Forgets the history of all resources up to now. A case that does so is `disruptive`. On the real server lists notice
    /// within about 15 seconds: ask [`eventually`].
    pub async fn compact(&self) -> Result<()> {
        self.target.compact().await
    }

    /// A config map with this name and data, for cases that need any object at all.
    pub fn config_map(&self, name: &str, data: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": self.ns },
            "data": data,
        })
    }
}

/// A request in the making.
pub struct Call<'a> {
    ctx: &'a Ctx,
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
}

impl Call<'_> {
    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a case's header is text");
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    /// Sets the body as it is, with no content type.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a JSON body and its content type.
    pub fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }

    /// Sends it and reads the whole answer.
    pub async fn send(self) -> Result<Reply> {
        let what = format!("{} {}", self.method, self.path);
        let mut request = Request::builder().method(self.method).uri(&self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(self.body)).with_context(|| what.clone())?;
        let answer = tokio::time::timeout(WAIT_TIMEOUT, async {
            let response = self.ctx.client.send(request).await?;
            let (head, body) = response.into_parts();
            anyhow::Ok((head, body.collect().await?.to_bytes()))
        });
        let (head, bytes) =
            answer.await.with_context(|| format!("{what}: no answer")).flatten().with_context(|| what.clone())?;
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Reply { request: what, status: head.status.as_u16(), headers: head.headers, bytes, json })
    }
}

/// Tries until it succeeds, for what the server does by itself; the last error when it does not within half a minute.
pub async fn eventually<T, F: Future<Output = Result<T>>>(what: &str, mut attempt: impl FnMut() -> F) -> Result<T> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => return Err(error.context(format!("in vain: {what}"))),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
