//! HTTP/1.1 and HTTP/2 over TLS.

use std::sync::Arc;

use fleetwright_pki::{Authority, Leaf};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::auth::ClientCertificate;
use crate::handlers::{self, Peer};
use crate::server::{Inner, StartError};

/// A client that does not finish its TLS handshake within this time is cut off.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);

/// The TLS side of a listener: a certificate for these names, client certificates of the authority on request.
pub(crate) fn acceptor(authority: &Authority, names: &[String], inner: &Inner) -> Result<TlsAcceptor, StartError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| StartError::Certificates(format!("{what}: {error}"));
    let mut dns = vec![
        "localhost".to_owned(),
        "kubernetes".into(),
        "kubernetes.default".into(),
        "kubernetes.default.svc".into(),
        "kubernetes.default.svc.cluster.local".into(),
    ];
    let mut ips =
        vec![std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into(), inner.networks.api_address()];
    for name in names {
        match name.parse() {
            Ok(ip) if !ips.contains(&ip) => ips.push(ip),
            Ok(_) => {}
            Err(_) => dns.push(name.clone()),
        }
    }
    let pair = authority
        .issue(Leaf::server("fleetwright-apiserver", dns, ips))
        .map_err(|e| failed("serving certificate", &e))?;
    let chain = CertificateDer::pem_slice_iter(pair.cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| failed("serving certificate", &e))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).map_err(|e| failed("serving key", &e))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.cert_pem().as_bytes()) {
        let certificate = certificate.map_err(|e| failed("authority", &e))?;
        roots.add(certificate).map_err(|e| failed("authority", &e))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|e| failed("client certificates", &e))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failed("TLS versions", &e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| failed("serving certificate", &e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections until the server stops.
pub(crate) async fn serve(inner: Arc<Inner>, listener: TcpListener, acceptor: TlsAcceptor) {
    let mut connections = JoinSet::new();
    let stopping = inner.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(inner.clone(), stream, acceptor.clone()));
                }
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
    let stopping = inner.stopping();
    let service = service_fn(move |request| {
        let (inner, peer) = (inner.clone(), Peer::Remote(certificate.clone()));
        async move { Ok::<_, std::convert::Infallible>(handlers::serve(inner, request, peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(1000).initial_stream_window_size(256 * 1024);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
