//! `/metrics`, `/healthz`, `/readyz`.
//!
//! Plain HTTP, without secret data on any page. On a developer's machine it should be bound to 127.0.0.1; in a cluster, where the kubelet and
//! Prometheus connect from other addresses, to 0.0.0.0, with a NetworkPolicy that allows only them.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::metrics::{self, Metrics};

mod health;

pub use health::{Health, MAX_PASS, PassGuard, RunGuard, Verdict};

/// Maximum number of connections; further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// Timeout from the first byte of a request to the end of its head, and between requests.
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection, also if its client does not read. Prometheus opens another one.
const MAX_CONNECTION: Duration = Duration::from_secs(300);
/// Maximum size of a request's head.
const MAX_HEAD: usize = 16 * 1024;

/// A bound address.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl Endpoint {
    /// Binds the address; port 0 is any free one.
    ///
    /// # Errors
    /// The address is in use, or is not local.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let cannot = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. Connections end when it returns or is dropped.
    pub async fn serve(self, health: Health, metrics: Metrics, stop: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => return,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, places.clone()) => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let connection = connection(stream, health.clone(), metrics.clone());
                    connections.spawn(async move {
                        let _place = place;
                        let _ = tokio::time::timeout(MAX_CONNECTION, connection).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Most likely out of file descriptors: wait until other connections are closed.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    places: Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, health: Health, metrics: Metrics) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &health, &metrics);
        async { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

fn answer(method: &Method, path: &str, health: &Health, metrics: &Metrics) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if method != Method::GET && method != Method::HEAD {
        let mut answer = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are served\n".into());
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let probe = |verdict: Verdict| {
        let code = if verdict.good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        page(code, TEXT, verdict.text)
    };
    match path {
        "/metrics" => page(StatusCode::OK, metrics::CONTENT_TYPE, metrics.encode()),
        "/healthz" => probe(health.alive()),
        "/readyz" => probe(health.ready()),
        _ => page(StatusCode::NOT_FOUND, TEXT, "not found; available: /metrics, /healthz, /readyz\n".into()),
    }
}

fn page(code: StatusCode, content: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut page = Response::new(Full::from(text));
    *page.status_mut() = code;
    page.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    page.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}
