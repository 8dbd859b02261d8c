//! The certificates of a listener and its TLS configuration.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use fleetwright_pki::{Authority, Leaf};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::TlsAcceptor;

use crate::config::{Clock, Serving, StartError};

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

/// The TLS configuration of a listener, which may change while it listens.
pub(crate) struct Tls {
    clock: Clock,
    config: RwLock<Option<Arc<rustls::ServerConfig>>>,
}

/// A time provider with the server's own clock.
struct ClockTimeProvider(Clock);

impl fmt::Debug for ClockTimeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockTimeProvider")
    }
}

impl rustls::time_provider::TimeProvider for ClockTimeProvider {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

impl Tls {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, config: RwLock::new(None) }
    }

    /// Replaces the certificates and trusted authorities.
    pub(crate) fn set(&self, serving: &Serving) -> Result<(), StartError> {
        let config = config(serving, &self.clock)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        Ok(())
    }

    /// Accepts TLS with the present configuration; none before there is one.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
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
    let mut config = rustls::ServerConfig::builder_with_details(provider, Arc::new(ClockTimeProvider(clock.clone())))
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
