//! HTTP/1.1 and HTTP/2 over TLS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::{HeaderValue, header};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::auth::{self, ClientCertificate};
use crate::body;
use crate::connections::{AcceptedConnection, ConnectionLimits, ConnectionSlot, Connections};
use crate::handlers::{self, Peer};
use crate::state::Inner;

/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The interval of HTTP/2 pings, and the time for their answer.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

/// The requests that one HTTP/2 connection may carry at the same time: as many as Go's servers allow.
const STREAMS: u32 = 250;

/// The time that a connection from just before a stop may wait for its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// Accepts connections until the server stops.
pub(crate) async fn serve(inner: Arc<Inner>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = Connections::new(inner.connections.connections, files);
    let stopping = inner.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let Some(acceptor) = inner.tls.acceptor() else { continue };
                    let entered = Connections::enter(&open, peer.ip());
                    if entered.as_ref().is_none_or(|entered| entered.replaces) {
                        inner.metrics.refused_connections.fetch_add(1, Ordering::Relaxed);
                        tracing::debug!(%peer, "too many connections: one is closed");
                    }
                    if let Some(AcceptedConnection { slot, replaced, .. }) = entered {
                        let connection = connection(inner.clone(), stream, acceptor, Arc::new(slot));
                        connections.spawn(async move {
                            tokio::select! {
                                () = connection => {}
                                _ = replaced => tracing::debug!(%peer, "closing a connection for another one"),
                            }
                        });
                    }
                }
                // Most likely out of file descriptors: wait until other connections are closed.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(inner: Arc<Inner>, stream: TcpStream, acceptor: TlsAcceptor, slot: Arc<ConnectionSlot>) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // Port scanners, clients that do not trust the authority: not an error of this server.
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificate =
        match stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|der| ClientCertificate::parse(der)) {
            None => None,
            Some(Ok(certificate)) => Some(Arc::new(certificate)),
            Some(Err(error)) => return tracing::debug!(error, "client certificate cannot be read"),
        };
    if let Some(Ok(Some(user))) = certificate.as_ref().map(|certificate| certificate.user(inner.now())) {
        let privileged = inner.in_flight_limiter.is_privileged(&user);
        slot.belongs_to(&auth::authenticated(user), privileged);
    }
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let (stopping, draining, limits) = (inner.stopping(), inner.draining(), inner.connections);
    let open = OpenRequests::default();
    let (unused, unread) = (open.unused(limits), open.unread(limits));
    let asked = Arc::new(AtomicBool::new(false));
    let first = asked.clone();
    let service = service_fn(move |request| {
        let (inner, peer) = (inner.clone(), Peer::Remote(certificate.clone(), slot.clone()));
        first.store(true, Ordering::Relaxed);
        let request_open = open.request();
        async move {
            let answer = handlers::serve(inner.clone(), request, peer).await;
            let mut answer = answer.map(|sent| body::chunked(sent, request_open));
            if !http2 && *inner.drain.borrow() {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(256 * 1024);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // HTTP/2 can announce that no more requests should come (GOAWAY); an idle connection of HTTP/1.1 could only be closed, while a request may
    // be on its way.
    // On a connection that was made just before the stop the first request is on its way; its answer asks the client to reconnect.
    let leaving = async {
        tokio::select! {
            () = stopping => if !http2 && !asked.load(Ordering::Relaxed) {
                tokio::time::sleep(FIRST_REQUEST).await;
            },
            () = draining, if http2 => {}
        }
    };
    tokio::pin!(unused, unread);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = &mut unread => return tracing::debug!("closing a connection whose client does not read its answers"),
        () = &mut unused => {
            tracing::debug!("closing a connection without requests");
            // HTTP/1.1 can end a connection only by closing it, and a client without a request may not speak HTTP/2 at all.
            if !http2 || !asked.load(Ordering::Relaxed) {
                return;
            }
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(limits.idle, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
        () = leaving => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = unused => return,
                () = unread => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// The requests of a connection that are not answered completely.
#[derive(Clone, Default)]
struct OpenRequests {
    count: Arc<watch::Sender<usize>>,
    answers: Arc<Mutex<Vec<Weak<ResponseProgress>>>>,
}

/// The progress of sending an answer.
#[derive(Default)]
struct ResponseProgress(Mutex<Unsent>);

#[derive(Default)]
struct Unsent {
    /// Pieces that were handed out and wait for the client.
    pieces: usize,
    /// The time since when the client has taken none of them.
    since: Option<Instant>,
}

/// An open request, until it is dropped.
struct OpenRequest {
    open: OpenRequests,
    response_progress: Arc<ResponseProgress>,
}

impl OpenRequests {
    fn request(&self) -> OpenRequest {
        let response_progress = Arc::new(ResponseProgress::default());
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|one| one.strong_count() > 0);
        answers.push(Arc::downgrade(&response_progress));
        drop(answers);
        self.count.send_modify(|open| *open += 1);
        OpenRequest { open: self.clone(), response_progress }
    }

    /// Resolves when no request came for the idle time. A request in flight, such as a watch over hours, keeps its connection.
    fn unused(&self, limits: ConnectionLimits) -> impl Future<Output = ()> + Send + use<> {
        let mut open = self.count.subscribe();
        async move {
            let mut patience = limits.first_request;
            loop {
                if open.wait_for(|open| *open == 0).await.is_err() {
                    return std::future::pending().await;
                }
                if tokio::time::timeout(patience, open.changed()).await.is_err() {
                    return;
                }
                patience = limits.idle;
            }
        }
    }

    /// Resolves when the client has left an answer unread for too long.
    fn unread(&self, limits: ConnectionLimits) -> impl Future<Output = ()> + Send + use<> {
        let (mut open, answers) = (self.count.subscribe(), self.answers.clone());
        async move {
            loop {
                if open.wait_for(|open| *open > 0).await.is_err() {
                    return std::future::pending().await;
                }
                tokio::time::sleep(limits.unread / 4).await;
                let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                if answers.iter().filter_map(Weak::upgrade).any(|one| one.waited() >= limits.unread) {
                    return;
                }
            }
        }
    }
}

impl ResponseProgress {
    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waited(&self) -> Duration {
        self.unsent().since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

impl body::SendProgress for OpenRequest {
    fn handed_out(&self) {
        let mut unsent = self.response_progress.unsent();
        unsent.pieces += 1;
        unsent.since.get_or_insert_with(Instant::now);
    }

    fn sent(&self) {
        let mut unsent = self.response_progress.unsent();
        unsent.pieces -= 1;
        unsent.since = (unsent.pieces > 0).then(Instant::now);
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.count.send_modify(|open| *open = open.saturating_sub(1));
    }
}
