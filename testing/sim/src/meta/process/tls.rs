//! Certificates of containers: loaded from their files, and verified as both ends of a connection do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::Clock;
use jiff::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::super::kubelet::files::Files;
use super::{Args, Exit};

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A certificate with its key, from a container's files.
#[derive(Clone)]
pub(super) struct TlsKeyPair {
    pub(super) cert_pem: String,
    pub(super) key_pem: String,
    key: Arc<CertifiedKey>,
    /// The expiry of the certificate.
    ends: Timestamp,
}

impl fmt::Debug for TlsKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKeyPair")
    }
}

/// Reads a required file.
pub(super) fn file(files: &Files, path: &str) -> Result<String, String> {
    files.text(path).ok_or_else(|| format!("open {path}: no such file or directory"))
}

impl TlsKeyPair {
    /// Loads a certificate and its key.
    ///
    /// # Errors
    /// In the words of Go's TLS: a file is missing or invalid, or certificate and key do not match.
    pub(super) fn read(files: &Files, cert: &str, key: &str) -> Result<Self, String> {
        let (cert_pem, key_pem) = (file(files, cert)?, file(files, key)?);
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(cert_pem.as_bytes()).filter_map(Result::ok).collect();
        if chain.is_empty() {
            return Err("tls: failed to find any PEM data in certificate input".to_owned());
        }
        let der = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|_| "tls: failed to find any PEM data in key input".to_owned())?;
        let ends = ends(&chain[0])?;
        let key = CertifiedKey::from_der(chain, der, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => "tls: private key does not match public key".to_owned(),
            error => format!("tls: {error}"),
        })?;
        Ok(Self { cert_pem, key_pem, key: Arc::new(key), ends })
    }

    /// The pair that the flags of a container name; none without these flags.
    pub(super) fn of_flags(files: &Files, args: &Args, cert: &str, key: &str) -> Result<Option<Self>, Exit> {
        match (args.get(cert), args.get(key)) {
            (Some(cert), Some(key)) => Self::read(files, cert, key).map(Some).map_err(Exit::command_failed),
            (None, None) => Ok(None),
            _ => Err(Exit::command_failed(format!("--{cert} and --{key} must be given together"))),
        }
    }

    fn leaf(&self) -> (&CertificateDer<'static>, &[CertificateDer<'static>]) {
        // The chain is not empty: loading checked it.
        self.key.cert.split_first().unwrap_or_else(|| unreachable!("the pair has a certificate"))
    }
}

fn ends(certificate: &CertificateDer<'_>) -> Result<Timestamp, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| format!("x509: {error}"))?;
    Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|error| error.to_string())
}

/// The trusted authorities. Go rejects certificates of an expired authority, and webpki does not check that: expired authorities are left out
/// here. If none is left, a real server starts and refuses every client; this one does not start.
pub(super) fn roots(pem: &str, now: Timestamp) -> Result<Arc<RootCertStore>, String> {
    let (mut roots, mut expired) = (RootCertStore::empty(), false);
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok) {
        if ends(&certificate)? <= now {
            expired = true;
            continue;
        }
        roots.add(certificate).map_err(|error| format!("x509: {error}"))?;
    }
    if roots.is_empty() && expired {
        return Err("x509: certificate has expired or is not yet valid".to_owned());
    }
    if roots.is_empty() {
        return Err("data does not contain any valid RSA or ECDSA certificates".to_owned());
    }
    Ok(Arc::new(roots))
}

/// The certificate of a listener, and the client authorities that it asks for.
#[derive(Clone, Debug)]
pub(super) struct ServingTls {
    pub(super) pair: TlsKeyPair,
    pub(super) clients: Option<Arc<RootCertStore>>,
}

impl ServingTls {
    /// The TLS configuration of the listener.
    pub(super) fn config(&self, clock: &Clock) -> Result<ServerConfig, String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let builder = ServerConfig::builder_with_details(provider(), Arc::new(ClockTimeProvider(clock.clone())))
            .with_safe_default_protocol_versions()
            .map_err(|error| text(&error))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| text(&error))?)
            }
        };
        let mut config =
            builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(self.pair.key.clone())));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Whether the handshake of a client with these `roots` and this `client` certificate succeeds under this name; returns its expiry.
    ///
    /// # Errors
    /// The error as the client reports it.
    pub(super) fn admits(
        &self,
        name: &str,
        roots: &Arc<RootCertStore>,
        client: Option<&TlsKeyPair>,
        now: Timestamp,
    ) -> Result<Timestamp, String> {
        let at = unix(now);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("tls: invalid server name {name:?}"))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| error.to_string())?;
        let (leaf, rest) = self.pair.leaf();
        verifier
            .verify_server_cert(leaf, rest, &name, &[], at)
            .map_err(|error| format!("tls: failed to verify certificate: {error}"))?;
        let Some(clients) = &self.clients else { return Ok(self.pair.ends) };
        let Some(client) = client else { return Err("remote error: tls: certificate required".to_owned()) };
        let verifier = WebPkiClientVerifier::builder_with_provider(clients.clone(), provider())
            .build()
            .map_err(|error| error.to_string())?;
        let (leaf, rest) = client.leaf();
        verifier.verify_client_cert(leaf, rest, at).map_err(|_| "remote error: tls: bad certificate".to_owned())?;
        Ok(self.pair.ends.min(client.ends))
    }
}

fn unix(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default()))
}

/// A time provider for webpki that uses the clock of the simulation.
pub(super) struct ClockTimeProvider(pub(super) Clock);

impl fmt::Debug for ClockTimeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockTimeProvider")
    }
}

impl rustls::time_provider::TimeProvider for ClockTimeProvider {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(self.0.now()))
    }
}
