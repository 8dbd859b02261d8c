//! Clients of what runs in pods of a cluster, with the operator's own certificates.

use std::task::{Context, Poll};
use std::time::Duration;

use fleetwright_kit::Clock;
use fleetwright_kit::client::{CallError, Fence};

use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::certificates::OPERATOR_ETCD;
use fleetwright_plan::cluster::objects::ETCD_PORT;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use k8s_openapi::api::core::v1::Secret;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tower::layer::layer_fn;
use tower::util::MapRequestLayer;
use tower::{BoxError, Service};

use crate::words::said;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the operator's certificate cannot be read: {}", said(.0))]
    Papers(kube::Error),
    #[error("it cannot be connected to: {0}")]
    Client(String),
}

/// The meta cluster, where the operator's own certificates are, and how often somebody was asked with them.
#[derive(Clone)]
pub struct Meta {
    pub client: Client,
    pub calls: Counter,
    pub fence: Fence,
    pub clock: Clock,
}

impl Meta {
    /// Whether nobody else can lead at this moment. Who waited asks again before anything is changed.
    pub fn leads(&self) -> bool {
        self.fence.holds(&self.clock)
    }
}

/// Sends nothing that could change something once the lease could have ended.
#[derive(Clone)]
struct Fenced<S> {
    inner: S,
    fence: Fence,
    clock: Clock,
}

impl<S> Service<http::Request<Body>> for Fenced<S>
where
    S: Service<http::Request<Body>, Error: Into<BoxError> + 'static, Future: Send + 'static, Response: Send + 'static>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.method() != http::Method::GET && !self.fence.holds(&self.clock) {
            return async { Err(CallError::Fenced.into()) }.boxed();
        }
        self.inner.call(request).map_err(Into::into).boxed()
    }
}

/// Who is meant, and as whom: the pod must show that name.
pub struct Door<'a> {
    pub secret: &'a str,
    pub ip: &'a str,
    pub port: u16,
    pub server_name: String,
}

/// A client of that pod.
pub async fn connect(meta: &Meta, names: &Names, door: &Door<'_>) -> Result<Client, ConnectError> {
    build(meta, names, door, &read(meta, names, door.secret).await?).await
}

async fn read(meta: &Meta, names: &Names, secret: &str) -> Result<Secret, ConnectError> {
    let secrets: Api<Secret> = Api::namespaced(meta.client.clone(), &names.namespace);
    secrets.get(secret).await.map_err(ConnectError::Papers)
}

async fn build(meta: &Meta, names: &Names, door: &Door<'_>, secret: &Secret) -> Result<Client, ConnectError> {
    let failed = |error: &dyn std::fmt::Display| ConnectError::Client(error.to_string());
    let data = secret.data.clone().unwrap_or_default();
    let encoded = |key: &str| {
        use base64::Engine as _;
        data.get(key).map(|bytes| base64::prelude::BASE64_STANDARD.encode(&bytes.0))
    };
    let host = if door.ip.contains(':') { format!("[{}]", door.ip) } else { door.ip.to_owned() };
    let name = &names.name;
    let config = json!({
        "clusters": [{ "name": name, "cluster": {
            "server": format!("https://{host}:{}", door.port),
            "certificate-authority-data": encoded("ca.crt"),
            "tls-server-name": door.server_name,
        } }],
        "users": [{ "name": name, "user": {
            "client-certificate-data": encoded("tls.crt"), "client-key-data": encoded("tls.key"),
        } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    });
    let config: Kubeconfig = serde_json::from_value(config).map_err(|error| failed(&error))?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(config, &options).await.map_err(|error| failed(&error))?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(20));
    // A change of etcd is sent once. And a learner answers 503 to all but its status: fifteen more attempts take longer than any caller waits, so that the
    // learner would seem not to answer.
    config.default_retry = door.port != ETCD_PORT;
    let calls = meta.calls.clone();
    let counted = MapRequestLayer::new(move |request: http::Request<Body>| {
        calls.inc();
        request
    });
    let (fence, clock) = (meta.fence.clone(), meta.clock.clone());
    let fenced = layer_fn(move |inner| Fenced { inner, fence: fence.clone(), clock: clock.clone() });
    let builder = ClientBuilder::try_from(config).map_err(|error| failed(&error))?;
    Ok(builder.with_layer(&counted).with_layer(&fenced).build())
}

/// What it takes to reach members of etcd.
pub struct Members<'a> {
    meta: &'a Meta,
    names: &'a Names,
    secret: Secret,
}

impl<'a> Members<'a> {
    /// Reads the certificate once for all of them.
    pub async fn of(meta: &'a Meta, names: &'a Names) -> Result<Self, String> {
        let secret = read(meta, names, OPERATOR_ETCD).await.map_err(|error| error.to_string())?;
        Ok(Self { meta, names, secret })
    }

    /// The member at that address.
    pub async fn at(&self, ip: &str) -> Result<Etcd, String> {
        let door = Door { secret: OPERATOR_ETCD, ip, port: ETCD_PORT, server_name: self.names.etcd() };
        build(self.meta, self.names, &door, &self.secret).await.map(Etcd).map_err(|error| error.to_string())
    }
}

/// A member of etcd, asked by its JSON gateway.
pub struct Etcd(Client);

impl Etcd {
    /// Asks it something, such as `cluster/member/list`.
    pub async fn ask(&self, what: &str, body: Value) -> Result<Value, String> {
        let request = http::Request::post(format!("/v3/{what}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| error.to_string())?;
        self.0.request(request).await.map_err(|error| format!("{what}: {}", said(&error)))
    }
}
