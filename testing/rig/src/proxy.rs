//! A proxy between one process and an API server, to record the process's calls and inject faults.

use std::io;
use std::net::SocketAddr;

use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::layer::{BoxError, Reply, forward};

/// Serves plain HTTP on a free loopback port and forwards every request through a client. Stops when dropped.
///
/// The process sees the effects of the client's layers: a failed call is a closed connection.
pub struct Proxy {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Opens the port. Every caller has the client's rights.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(client: Client) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, client));
        Ok(Self { address, _tasks: tasks })
    }

    /// The URL of the proxy.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig for the proxy.
    pub fn kubeconfig(&self) -> String {
        let url = self.url();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: rig\n\
             clusters: [{{name: rig, cluster: {{server: '{url}'}}}}]\n\
             users: [{{name: rig, user: {{}}}}]\n\
             contexts: [{{name: rig, context: {{cluster: rig, user: rig}}}}]\n"
        )
    }
}

async fn serve(listener: TcpListener, client: Client) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A failed accept concerns one connection only.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, client.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, client: Client) {
    // Events are small, and Nagle's algorithm would delay them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| forward_request(request, client.clone()));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn forward_request(request: Request<Incoming>, client: Client) -> Result<Response<Reply>, BoxError> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    // These headers belong to the incoming connection. The client adds its own base when it sends.
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    parts.uri = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default().parse()?;
    parts.version = http::Version::HTTP_11;
    let mut response = forward(&client, Request::from_parts(parts, Body::from(body))).await?;
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    *response.version_mut() = http::Version::HTTP_11;
    Ok(response)
}
