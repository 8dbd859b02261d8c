//! HTTP/1.1 and HTTP/2 over TLS.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use fleetwright_pki::{Authority, Leaf};
use http::{HeaderValue, header};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::auth::ClientCertificate;
use crate::handlers::{self, Peer};
use crate::server::{Clock, Inner, StartError};

/// A client that does not finish its TLS handshake within this time is cut off.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);

/// How long a connection that was made just before a stop may wait for its first request.
const FIRST_REQUEST: std::time::Duration = std::time::Duration::from_secs(1);

/// The certificates of a listener, as PEM.
#[derive(Clone)]
pub struct Serving {
    /// The certificate that the server shows, with those between it and its authority.
    pub cert_pem: String,
    /// Its key.
    pub key_pem: String,
    /// The authorities whose client certificates are trusted: one or more certificates.
    pub client_ca_pem: String,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// A certificate of the server's own authority, for the usual names and these.
pub(crate) fn own(authority: &Authority, names: &[String], api_address: IpAddr) -> Result<Serving, StartError> {
    let mut dns = vec![
        "localhost".to_owned(),
        "kubernetes".into(),
        "kubernetes.default".into(),
        "kubernetes.default.svc".into(),
        "kubernetes.default.svc.cluster.local".into(),
    ];
    let mut ips = vec![std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into(), api_address];
    for name in names {
        match name.parse() {
            Ok(ip) if !ips.contains(&ip) => ips.push(ip),
            Ok(_) => {}
            Err(_) => dns.push(name.clone()),
        }
    }
    let pair = authority
        .issue(Leaf::server("fleetwright-apiserver", dns, ips))
        .map_err(|error| StartError::Certificates(format!("serving certificate: {error}")))?;
    let client_ca_pem = authority.cert_pem().to_owned();
    Ok(Serving { cert_pem: pair.cert_pem, key_pem: pair.key_pem, client_ca_pem })
}

/// The TLS side of a listener, which may change while it listens.
pub(crate) struct Tls {
    clock: Clock,
    config: RwLock<Option<Arc<rustls::ServerConfig>>>,
}

/// What is valid is valid by the server's own clock.
struct Time(Clock);

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Time")
    }
}

impl rustls::time_provider::TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

impl Tls {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, config: RwLock::new(None) }
    }

    /// Shows and trusts these from now on.
    pub(crate) fn set(&self, serving: &Serving) -> Result<(), StartError> {
        let config = config(serving, &self.clock)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        Ok(())
    }

    fn acceptor(&self) -> Option<TlsAcceptor> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone().map(TlsAcceptor::from)
    }
}

/// A certificate, and client certificates on request.
fn config(serving: &Serving, clock: &Clock) -> Result<rustls::ServerConfig, StartError> {
    let failed = |what: &str, error: &dyn fmt::Display| StartError::Certificates(format!("{what}: {error}"));
    let chain = CertificateDer::pem_slice_iter(serving.cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| failed("serving certificate", &e))?;
    let key = PrivateKeyDer::from_pem_slice(serving.key_pem.as_bytes()).map_err(|e| failed("serving key", &e))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(serving.client_ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|e| failed("authority", &e))?;
        roots.add(certificate).map_err(|e| failed("authority", &e))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|e| failed("client certificates", &e))?;
    let mut config = rustls::ServerConfig::builder_with_details(provider, Arc::new(Time(clock.clone())))
        .with_safe_default_protocol_versions()
        .map_err(|e| failed("TLS versions", &e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => StartError::KeyMismatch,
            error => failed("serving certificate", &error),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Accepts connections until the server stops.
pub(crate) async fn serve(inner: Arc<Inner>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let stopping = inner.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => if let Some(acceptor) = inner.tls.acceptor() {
                    connections.spawn(connection(inner.clone(), stream, acceptor));
                },
                // Out of file descriptors, most likely: give others the time to close theirs.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(inner: Arc<Inner>, stream: TcpStream, acceptor: TlsAcceptor) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // Port scanners, clients that do not trust our authority: theirs to worry about.
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificate =
        match stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|der| ClientCertificate::parse(der)) {
            None => None,
            Some(Ok(certificate)) => Some(Arc::new(certificate)),
            Some(Err(error)) => return tracing::debug!(error, "client certificate cannot be read"),
        };
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let (stopping, draining) = (inner.stopping(), inner.draining());
    let asked = Arc::new(AtomicBool::new(false));
    let first = asked.clone();
    let service = service_fn(move |request| {
        let (inner, peer) = (inner.clone(), Peer::Remote(certificate.clone()));
        first.store(true, Ordering::Relaxed);
        async move {
            let mut answer = handlers::serve(inner.clone(), request, peer).await;
            if !http2 && *inner.drain.borrow() {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(1000).initial_stream_window_size(256 * 1024);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // HTTP/2 has a way to say that no more requests should come; an idle connection of HTTP/1.1 could only be closed, while a request is on its way perhaps.
    // One that was made just before the server was told to stop has its first request on its way, and is asked with the answer to make another one.
    let leaving = async {
        tokio::select! {
            () = stopping => if !http2 && !asked.load(Ordering::Relaxed) {
                tokio::time::sleep(FIRST_REQUEST).await;
            },
            () = draining, if http2 => {}
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = leaving => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
