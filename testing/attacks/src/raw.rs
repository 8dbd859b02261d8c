//! Connections without an HTTP library.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_lab::Target;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection without a client certificate, for HTTP/1.1.
pub async fn connect(target: &Target) -> Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(target.ca_pem().as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let url = target.url();
    let address = url.trim_start_matches("https://").trim_end_matches('/');
    let host = address.rsplit_once(':').context("a port")?.0.trim_matches(['[', ']']);
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Sends bytes and reads until the server closes the connection or is silent for a moment.
pub async fn exchange(target: &Target, bytes: &[u8]) -> Result<String> {
    exchange_within(target, bytes, Duration::from_millis(700)).await
}

/// Like [`exchange`], for a server that must answer and then close the connection: a busy one gets time for it.
pub async fn answered(target: &Target, bytes: &[u8]) -> Result<String> {
    exchange_within(target, bytes, Duration::from_secs(10)).await
}

async fn exchange_within(target: &Target, bytes: &[u8], silence: Duration) -> Result<String> {
    let mut stream = connect(target).await?;
    // A server that stops reading closes the connection during the write.
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.write_all(bytes)).await;
    let _ = stream.flush().await;
    Ok(hear(&mut stream, silence).await)
}

/// Reads until the server closes the connection or is silent for that time.
pub async fn hear(stream: &mut TlsStream<TcpStream>, silence: Duration) -> String {
    let (mut said, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(Ok(read)) = tokio::time::timeout(silence, stream.read(&mut piece)).await {
        if read == 0 || said.len() > 1 << 20 {
            break;
        }
        said.extend_from_slice(&piece[..read]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// The status codes of the answers in that text.
pub fn statuses(said: &str) -> Vec<u16> {
    let after = said.split("HTTP/1.1 ").skip(1);
    after.filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}
