//! HTTP and TCP from the host.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright_wire::text::truncate_bytes;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::programs;
use crate::system::ProgramRun;

/// Timeout for a server that sends nothing.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);

fn agent(url: &str, within: Duration, redirects: u32) -> Agent {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(within))
        .timeout_connect(Some(CONNECT.min(within)))
        .timeout_per_read(Some(SILENCE.min(within)))
        .max_redirects(redirects)
        .max_redirects_will_error(false)
        .user_agent(concat!("fleetwright-host/", env!("CARGO_PKG_VERSION")));
    // The certificates of the host take a while to read: skipped for plain HTTP, unless it may redirect to HTTPS.
    if redirects > 0 || url.starts_with("https:") {
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots = roots.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        config = config.tls_config(tls.build());
    }
    Agent::with_parts(config.build(), DefaultConnector::default(), Names)
}

/// The addresses of `HOST:PORT`. Names are resolved by the host's own `getent`: the libraries that a static program would load for that must be of
/// exactly the C library that it was built with.
fn addresses(authority: &str, within: Duration) -> io::Result<Vec<SocketAddr>> {
    let no_port = || io::Error::new(io::ErrorKind::InvalidInput, format!("{authority} has no port"));
    if let Ok(address) = authority.parse() {
        return Ok(vec![address]);
    }
    let (host, port) = authority.rsplit_once(':').ok_or_else(no_port)?;
    let port: u16 = port.parse().map_err(|_| no_port())?;
    let ran = programs::run(&ProgramRun { argv: &["getent", "ahosts", "--", host], input: b"", env: &[], within })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in ran.stdout.lines().filter_map(|line| line.split_whitespace().next()?.parse::<IpAddr>().ok()) {
        let address = SocketAddr::new(address, port);
        // `getent` prints each address once for every socket type.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no address found for {host}")));
    }
    Ok(addresses)
}

#[derive(Debug)]
struct Names;

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(ureq::Error::BadUri(truncate_bytes(&uri.to_string(), 300)));
        };
        let port = authority.port_u16().unwrap_or(if scheme.as_str() == "https" { 443 } else { 80 });
        let found = addresses(&format!("{}:{port}", authority.host()), (*timeout.after).min(CONNECT))?;
        let mut addresses = self.empty();
        for address in found.into_iter().take(16) {
            addresses.push(address);
        }
        Ok(addresses)
    }
}

pub(super) fn fetch(
    url: &str,
    to: &Path,
    limit: u64,
    within: Duration,
    on_progress: &mut dyn FnMut(u64, Option<u64>),
) -> io::Result<()> {
    let response = agent(url, within, 5).get(url).call().map_err(plain)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(io::Error::other(format!("status {status}")));
    }
    let mut body = response.into_body();
    let all = body.content_length();
    let too_large = |size: u64| io::Error::new(io::ErrorKind::FileTooLarge, format!("{size} bytes, more than {limit}"));
    if let Some(all) = all.filter(|all| *all > limit) {
        return Err(too_large(all));
    }
    if let Some(folder) = to.parent() {
        DirBuilder::new().recursive(true).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let mut reader = body.as_reader();
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        done += read as u64;
        if done > limit {
            return Err(too_large(done));
        }
        file.write_all(&buffer[..read])?;
        on_progress(done, all);
    }
    if let Some(all) = all.filter(|all| *all != done) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("received {done} of {all} bytes")));
    }
    file.sync_all()
}

/// The status without following redirects: a redirect is a result, too.
pub(super) fn status(url: &str, within: Duration) -> io::Result<u16> {
    let response = agent(url, within, 0).get(url).call().map_err(plain)?;
    Ok(response.status().as_u16())
}

pub(super) fn connects(address: &str, within: Duration) -> io::Result<()> {
    let until = Instant::now() + within;
    let mut last = io::ErrorKind::NotFound.into();
    for address in addresses(address, within)? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn plain(error: ureq::Error) -> io::Error {
    let error = match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => io::ErrorKind::TimedOut.into(),
        ureq::Error::Rustls(error) => io::Error::other(error),
        other => io::Error::other(other.to_string()),
    };
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(why)) => io::Error::other(format!(
            "the server's certificate is not trusted by this host: {why}; add the CA that signed it to the CA certificates of the host"
        )),
        _ => error,
    }
}
