//! Clients of what runs in pods of a cluster, with the operator's own certificates.

use std::time::Duration;

use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::certificates::OPERATOR_ETCD;
use fleetwright_plan::cluster::objects::ETCD_PORT;
use k8s_openapi::api::core::v1::Secret;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tower::util::MapRequestLayer;

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
    let failed = |error: &dyn std::fmt::Display| ConnectError::Client(error.to_string());
    let secrets: Api<Secret> = Api::namespaced(meta.client.clone(), &names.namespace);
    let secret = secrets.get(door.secret).await.map_err(ConnectError::Papers)?;
    let data = secret.data.unwrap_or_default();
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
    let calls = meta.calls.clone();
    let counted = MapRequestLayer::new(move |request: http::Request<Body>| {
        calls.inc();
        request
    });
    Ok(ClientBuilder::try_from(config).map_err(|error| failed(&error))?.with_layer(&counted).build())
}

/// A member of etcd, asked by its JSON gateway.
pub struct Etcd(Client);

impl Etcd {
    /// The member at that address.
    pub async fn at(meta: &Meta, names: &Names, ip: &str) -> Result<Self, String> {
        let door = Door { secret: OPERATOR_ETCD, ip, port: ETCD_PORT, server_name: names.etcd() };
        connect(meta, names, &door).await.map(Self).map_err(|error| error.to_string())
    }

    /// Asks it something, such as `cluster/member/list`.
    pub async fn ask(&self, what: &str, body: Value) -> Result<Value, String> {
        let request = http::Request::post(format!("/v3/{what}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| error.to_string())?;
        self.0.request(request).await.map_err(|error| format!("{what}: {}", said(&error)))
    }
}
