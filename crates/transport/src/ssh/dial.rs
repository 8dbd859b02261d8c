//! Opens an authenticated connection to an address, hop by hop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{self, AuthResult, ChannelOpenHandle, Config, DisconnectReason, Handle, Msg};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelOpenFailure, MethodSet, Preferred, SshId, cipher, compression};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::keys::{self, Identities, Identity, RsaSigner, SigningError};
use super::stream::{StreamOwner, owned};
use crate::text::last_line;
use crate::{Hop, ReachError, Route, TransportLimits};

/// Unread messages per channel. The lines of a helper come in few messages.
const CHANNEL_BUFFER: usize = 16;
/// Longest silence of a host before a keepalive is sent.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Number of keepalives that may stay without an answer.
const KEEPALIVES: usize = 3;

/// An authenticated connection to a host. Dropping it ends it at once.
pub(crate) struct Connection {
    pub(crate) handle: Handle<Client>,
    seen: Arc<Mutex<ConnectionEvents>>,
    _owner: StreamOwner,
}

impl Connection {
    /// The host key of the connection.
    pub(crate) fn host_key(&self) -> String {
        lock(&self.seen).key.as_ref().map(keys::line).unwrap_or_default()
    }

    /// Why the connection ended, if it did.
    pub(crate) fn lost(&self) -> Option<String> {
        if !self.handle.is_closed() {
            return None;
        }
        Some(lock(&self.seen).ended.clone().unwrap_or_else(|| "closed by the host".into()))
    }
}

/// Events of a connection.
#[derive(Default)]
struct ConnectionEvents {
    key: Option<PublicKey>,
    refused: bool,
    ended: Option<String>,
}

fn lock(seen: &Mutex<ConnectionEvents>) -> std::sync::MutexGuard<'_, ConnectionEvents> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler of a server's messages.
pub(crate) struct Client {
    trusted: Option<Vec<KeyData>>,
    seen: Arc<Mutex<ConnectionEvents>>,
}

/// Servers must not open channels to us: dropping the reply refuses.
macro_rules! refused {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(async fn $name(
            &mut self,
            _: Channel<Msg>,
            $($argument: $type,)*
            _: ChannelOpenHandle,
            _: &mut client::Session,
        ) -> Result<(), Self::Error> {
            Ok(())
        })*
    };
}

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let key = shown.public_key();
        let good = self.trusted.as_ref().is_none_or(|trusted| trusted.contains(key.key_data()));
        let mut seen = lock(&self.seen);
        seen.key = Some(key);
        seen.refused = !good;
        Ok(good)
    }

    async fn openssh_ext_host_keys_announced(
        &mut self,
        _: Vec<PublicKey>,
        _: &mut client::Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Self::Error>) -> Result<(), Self::Error> {
        let why = match &reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                format!("closed by the host: {}", last_line(info.message.as_bytes()))
            }
            DisconnectReason::Error(russh::Error::KeepaliveTimeout | russh::Error::InactivityTimeout) => {
                "the host stopped responding".into()
            }
            DisconnectReason::Error(russh::Error::HUP | russh::Error::Disconnect) => "closed by the host".into(),
            DisconnectReason::Error(error) => last_line(error.to_string().as_bytes()),
        };
        lock(&self.seen).ended = Some(why);
        Ok(())
    }

    refused! {
        server_channel_open_forwarded_tcpip(_a: &str, _b: u32, _c: &str, _d: u32);
        server_channel_open_forwarded_streamlocal(_a: &str);
        server_channel_open_agent_forward();
        server_channel_open_session();
        server_channel_open_direct_tcpip(_a: &str, _b: u32, _c: &str, _d: u32);
        server_channel_open_direct_streamlocal(_a: &str);
        server_channel_open_x11(_a: &str, _b: u32);
    }
}

/// Connects to the host of a route. The second part is the connections to jump hosts: they must live as long as the first.
///
/// Hosts behind the same jump host do not share a connection to it: within one connection, a channel whose data is not read blocks all others.
pub(crate) async fn dial(route: &Route, identities: &Identities) -> Result<(Connection, Vec<Connection>), ReachError> {
    let limits = &route.limits;
    let mut hops = route.jumps.iter().chain([&route.host]);
    let mut way: Vec<Connection> = Vec::new();
    let first = hops.next().unwrap_or(&route.host);
    let socket = tcp(first, limits).await?;
    let mut at = first;
    let mut last = enter(first, socket, limits, identities).await?;
    for hop in hops {
        let opening = last.handle.channel_open_direct_tcpip(hop.address.clone(), hop.port.into(), "127.0.0.1", 0);
        let channel = match timeout(limits.connect, opening).await {
            Err(_) => {
                return Err(unreachable(format!(
                    "timed out connecting to {} from {} after {:?}",
                    place(hop),
                    place(at),
                    limits.connect
                )));
            }
            Ok(Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited))) => {
                return Err(unreachable(format!(
                    "{} refused to forward to {}: enable AllowTcpForwarding in its sshd_config, or PermitOpen for that address",
                    place(at),
                    place(hop)
                )));
            }
            Ok(Err(error)) => {
                let why = last_line(error.to_string().as_bytes());
                return Err(unreachable(format!("cannot connect to {} from {}: {why}", place(hop), place(at))));
            }
            Ok(Ok(channel)) => channel,
        };
        let next = enter(hop, channel.into_stream(), limits, identities).await?;
        way.push(std::mem::replace(&mut last, next));
        at = hop;
    }
    Ok((last, way))
}

async fn tcp(hop: &Hop, limits: &TransportLimits) -> Result<TcpStream, ReachError> {
    let connecting = TcpStream::connect((hop.address.as_str(), hop.port));
    let socket = match timeout(limits.connect, connecting).await {
        Err(_) => {
            return Err(unreachable(format!("timed out connecting to {} after {:?}", place(hop), limits.connect)));
        }
        Ok(Err(error)) => return Err(unreachable(format!("{}: {error}", place(hop)))),
        Ok(Ok(socket)) => socket,
    };
    // Requests are small, and each waits for its answer.
    let _ = socket.set_nodelay(true);
    Ok(socket)
}

async fn enter<S>(
    hop: &Hop,
    stream: S,
    limits: &TransportLimits,
    identities: &Identities,
) -> Result<Connection, ReachError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let identity = identities.of(&hop.login)?;
    let trusted = keys::trusted(&hop.trust, &place(hop))?;
    let known = trusted.as_ref().map_or(0, Vec::len);
    let config = config(trusted.as_deref(), limits);
    let seen = Arc::new(Mutex::new(ConnectionEvents::default()));
    let client = Client { trusted, seen: seen.clone() };
    let (owner, stream) = owned(stream);
    let entering = async {
        let mut handle = client::connect_stream(config, stream, client).await.map_err(|error| {
            let seen = lock(&seen);
            match (&seen.key, seen.refused) {
                (Some(key), true) => ReachError::HostKeyChanged { address: place(hop), found: keys::line(key), known },
                _ => unreachable(format!("{}: {}", place(hop), handshake(&error))),
            }
        })?;
        login(&mut handle, hop, &identity).await?;
        Ok(handle)
    };
    match timeout(limits.login, entering).await {
        Err(_) => Err(unreachable(format!(
            "{}: SSH login timed out after {:?}: its SSH server hangs, or another service listens on this port",
            place(hop),
            limits.login
        ))),
        Ok(Err(error)) => Err(error),
        Ok(Ok(handle)) => Ok(Connection { handle, seen, _owner: owner }),
    }
}

async fn login(handle: &mut Handle<Client>, hop: &Hop, identity: &Identity) -> Result<(), ReachError> {
    let lost = |error: String| unreachable(format!("{}: connection lost during login: {error}", place(hop)));
    let hash = match identity.key.algorithm() {
        Algorithm::Rsa { .. } => match handle.best_supported_rsa_hash().await {
            Ok(Some(Some(hash))) => Some(hash),
            Ok(Some(None)) => {
                return Err(ReachError::LoginRefused(format!(
                    "{} accepts RSA keys with SHA-1 only, which is insecure: update its SSH server, or use an ed25519 key",
                    place(hop)
                )));
            }
            // The server does not name its algorithms. All servers of the last ten years support this one.
            Ok(None) => Some(HashAlg::Sha512),
            Err(error) => return Err(lost(last_line(error.to_string().as_bytes()))),
        },
        _ => None,
    };
    let result = match (&identity.certificate, hash) {
        (None, hash) => {
            let key = PrivateKeyWithHashAlg::new(identity.key.clone(), hash);
            handle.authenticate_publickey(hop.user.clone(), key).await.map_err(|error| error.to_string())
        }
        (Some(certificate), Some(hash)) => handle
            .authenticate_certificate_with(
                hop.user.clone(),
                certificate.clone(),
                Some(hash),
                &mut RsaSigner(&identity.key),
            )
            .await
            .map_err(|SigningError(error)| error),
        (Some(certificate), None) => handle
            .authenticate_openssh_cert(hop.user.clone(), identity.key.clone(), certificate.clone())
            .await
            .map_err(|error| error.to_string()),
    };
    match result {
        Ok(AuthResult::Success) => Ok(()),
        Ok(AuthResult::Failure { remaining_methods, partial_success }) => {
            // A lost connection looks like a rejection without remaining methods.
            if remaining_methods.is_empty() && handle.is_closed() && !partial_success {
                return Err(lost(
                    "closed by the host, for example after too many login attempts or because it blocks the client address".into(),
                ));
            }
            Err(ReachError::LoginRefused(refusal(hop, identity, &remaining_methods, partial_success)))
        }
        Err(error) => Err(lost(last_line(error.as_bytes()))),
    }
}

fn refusal(hop: &Hop, identity: &Identity, left: &MethodSet, partial: bool) -> String {
    let what = if identity.certificate.is_some() { "certificate for the key" } else { "key" };
    if partial {
        let more: Vec<String> = left.iter().map(String::from).collect();
        return format!(
            "{} accepted the {what} {}, but requires further authentication: {}",
            place(hop),
            identity.name,
            last_line(more.join(", ").as_bytes())
        );
    }
    let todo = if identity.certificate.is_some() {
        "check that TrustedUserCAKeys has its authority, that it is valid now, and that it names this user"
    } else {
        "add it to the user's authorized_keys on the host"
    };
    format!(
        "{} rejected the login of {} with the {what} {}: {todo}",
        place(hop),
        last_line(hop.user.as_bytes()),
        identity.name
    )
}

fn handshake(error: &russh::Error) -> String {
    match error {
        russh::Error::Version => "the service on this port is not an SSH 2 server".into(),
        russh::Error::HUP | russh::Error::Disconnect => {
            "connection closed by the host before login, for example because of MaxStartups".into()
        }
        russh::Error::NoCommonAlgo { kind, theirs, .. } => {
            format!("the host offers no secure {kind:?} algorithm: {}", last_line(theirs.join(" ").as_bytes()))
        }
        other => last_line(other.to_string().as_bytes()),
    }
}

fn config(trusted: Option<&[KeyData]>, limits: &TransportLimits) -> Arc<Config> {
    let keepalive = KEEPALIVE.min(limits.silence / 3).max(Duration::from_millis(100));
    Arc::new(Config {
        client_id: SshId::Standard("SSH-2.0-Fleetwright".into()),
        channel_buffer_size: CHANNEL_BUFFER,
        preferred: Preferred {
            key: keys::algorithms(trusted).into(),
            // Server CPUs accelerate AES; ChaCha20 is for those that do not.
            cipher: (&[cipher::AES_128_GCM, cipher::AES_256_GCM, cipher::CHACHA20_POLY1305, cipher::AES_256_CTR][..])
                .into(),
            compression: (&[compression::NONE][..]).into(),
            ..Preferred::DEFAULT
        },
        keepalive_interval: Some(keepalive),
        keepalive_max: KEEPALIVES,
        // Answers to keepalives count as activity: this is for a host that does not even accept data.
        inactivity_timeout: Some(keepalive * (KEEPALIVES as u32 + 2)),
        ..Config::default()
    })
}

pub(crate) fn place(hop: &Hop) -> String {
    let address = last_line(hop.address.as_bytes());
    if address.contains(':') { format!("[{address}]:{}", hop.port) } else { format!("{address}:{}", hop.port) }
}

fn unreachable(message: String) -> ReachError {
    ReachError::Unreachable(message)
}
