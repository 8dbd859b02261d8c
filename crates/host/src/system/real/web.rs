//! HTTP and TCP from the host.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A server that sends nothing for so long is given up.
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
    // The certificates of the host take a while to read: not for plain HTTP, unless that may lead elsewhere.
    if redirects > 0 || url.starts_with("https:") {
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots = roots.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        config = config.tls_config(tls.build());
    }
    config.build().new_agent()
}

pub(super) fn fetch(
    url: &str,
    to: &Path,
    limit: u64,
    within: Duration,
    tell: &mut dyn FnMut(u64, Option<u64>),
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
        tell(done, all);
    }
    if let Some(all) = all.filter(|all| *all != done) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{done} of {all} bytes came")));
    }
    file.sync_all()
}

/// Without following: a redirect is an answer too.
pub(super) fn status(url: &str, within: Duration) -> io::Result<u16> {
    let response = agent(url, within, 0).get(url).call().map_err(plain)?;
    Ok(response.status().as_u16())
}

pub(super) fn connects(address: &str, within: Duration) -> io::Result<()> {
    let until = Instant::now() + within;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
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
    match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => io::ErrorKind::TimedOut.into(),
        other => io::Error::other(other.to_string()),
    }
}
