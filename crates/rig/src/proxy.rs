//! A door to an API server for one process, so that its calls can be watched and troubled.

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

/// Serves plain HTTP on a free loopback port and sends everything on through a client. Ends when dropped.
///
/// What the client's layers do, the process sees: a broken call is a closed connection.
pub struct Proxy {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Opens it. Who passes has the client's rights.
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

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig that leads here.
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
                // What fails is one connection, not the door.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, client.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, client: Client) {
    // Events are small and must not wait for company.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| forward_request(request, client.clone()));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn forward_request(request: Request<Incoming>, client: Client) -> Result<Response<Reply>, BoxError> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    // They belong to the connection that ends here. The client's own base is added when it sends.
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
