//! A client of a business cluster, configured by the kubeconfig in a container's files. It keeps no connection between calls that are far apart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fleetwright_apiserver::{Storage, User};
use fleetwright_kit::Clock;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::super::super::kubelet::files::Files;
use super::super::ContainerRuntime;
use super::super::apiserver::{ApiServerRef, ApiServers};
use super::super::etcd::{host, port};
use super::super::names::Names;
use super::super::tls::{ClockTimeProvider, file, provider, roots};

/// The timeout of a call.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct ApiClient {
    host: String,
    port: u16,
    tls: TlsConnector,
    names: Names,
    clock: Clock,
    /// Whether the connection stays open for the next call.
    pub(super) keeps: bool,
    /// Without a connection: the server is called within the process, as this user.
    pub(super) near: Option<User>,
    open: Option<SendRequest<Full<Bytes>>>,
    apis: ApiServers,
    /// The server that was found last.
    reached: Option<ApiServerRef>,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CallError(String);

impl CallError {
    /// A refusal by the server.
    pub(super) fn told(code: u16, answer: &Value) -> Self {
        Self(format!("{code}: {}", answer["message"].as_str().unwrap_or_default()))
    }
}

impl ApiClient {
    /// A client by a kubeconfig.
    ///
    /// # Errors
    /// The kubeconfig names no server or no user, or part of it cannot be read.
    pub(super) fn new(files: &Files, path: &str, runtime: &ContainerRuntime, keeps: bool) -> Result<Self, String> {
        let (names, apis, clock) = (runtime.names.clone(), runtime.apis.clone(), runtime.clock.clone());
        let text = file(files, path)?;
        let config: Value =
            serde_saphyr::from_str(&text).map_err(|error| format!("error loading config file {path:?}: {error}"))?;
        let named = |list: &str, name: &Value, field: &str| -> Value {
            let found = config[list].as_array().into_iter().flatten().find(|one| one["name"] == *name);
            found.map(|one| one[field].clone()).unwrap_or_default()
        };
        let context = named("contexts", &config["current-context"], "context");
        let (cluster, user) =
            (named("clusters", &context["cluster"], "cluster"), named("users", &context["user"], "user"));
        let server =
            cluster["server"].as_str().ok_or("invalid configuration: no server found for the current context")?;
        // Either inline or in a referenced file.
        let part = |of: &Value, name: &str| -> Result<Option<String>, String> {
            if let Some(data) = of[format!("{name}-data")].as_str() {
                let bytes = STANDARD.decode(data).map_err(|error| format!("{name}-data: {error}"))?;
                return String::from_utf8(bytes).map(Some).map_err(|error| format!("{name}-data: {error}"));
            }
            of[name].as_str().map(|path| file(files, path)).transpose()
        };
        let ca = part(&cluster, "certificate-authority")?.unwrap_or_default();
        let builder = ClientConfig::builder_with_details(provider(), Arc::new(ClockTimeProvider(clock.clone())))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots(&ca, clock.now())?);
        let tls = match (part(&user, "client-certificate")?, part(&user, "client-key")?) {
            (Some(cert), Some(key)) => {
                let chain = CertificateDer::pem_slice_iter(cert.as_bytes()).filter_map(Result::ok).collect();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("tls: {error}"))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| format!("tls: {error}"))?
            }
            _ => builder.with_no_client_auth(),
        };
        let tls = TlsConnector::from(Arc::new(tls));
        let (host, port) = (host(server).to_owned(), port(server));
        Ok(Self { host, port, tls, names, clock, keeps, near: None, open: None, apis, reached: None })
    }

    /// The store of the server that is called; none if no server answers.
    pub(super) fn storage(&mut self) -> Option<Storage> {
        self.reach(|server| server.storage())
    }

    /// Calls the server that was found last, and another one if that one stopped: no name lookup is needed while it runs.
    fn reach<T>(&mut self, ask: impl Fn(&ApiServerRef) -> Option<T>) -> Option<T> {
        if let Some(answer) = self.reached.as_ref().and_then(&ask) {
            return Some(answer);
        }
        self.reached = self.apis.reach(self.names.backends(&self.host));
        self.reached.as_ref().and_then(&ask)
    }

    /// Calls the API server.
    pub(super) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), CallError> {
        let clock = self.clock.clone();
        let called = tokio::select! {
            called = self.try_call(method, path, body) => called,
            () = clock.sleep(WAIT_TIMEOUT) => Err("context deadline exceeded".to_owned()),
        };
        if called.is_err() || !self.keeps {
            self.open = None;
        }
        called.map_err(CallError)
    }

    async fn call_near(
        &mut self,
        user: &User,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(content(body))
            .map_err(|error| error.to_string())?;
        let answer = self.reach(|server| server.call(user, request.clone()));
        let answer = answer.ok_or_else(|| format!("dial tcp: {}: connect: connection refused", self.host))?.await;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    async fn try_call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value), String> {
        if let Some(user) = self.near.clone() {
            return self.call_near(&user, method, path, body).await;
        }
        let mut sender = match self.open.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        sender.ready().await.map_err(|error| error.to_string())?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONTENT_TYPE, "application/json")
            .body(content(body))
            .map_err(|error| error.to_string())?;
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (status, closes) = (answer.status().as_u16(), answer.headers().contains_key(header::CONNECTION));
        let bytes = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        if !closes {
            self.open = Some(sender);
        }
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let (host, port) = (&self.host, self.port);
        let addresses = self.names.resolve(host);
        let Some(ip) = addresses.first() else { return Err(format!("dial tcp: lookup {host}: no such host")) };
        let at = SocketAddr::new((*ip).into(), port);
        let stream = TcpStream::connect(at).await.map_err(|error| format!("dial tcp {at}: connect: {error}"))?;
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The task ends when the sender is dropped.
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn content(body: Option<&Value>) -> Full<Bytes> {
    Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default()))
}
