//! Hostile servers that speak SSH correctly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fleetwright_transport::{Hop, LinkError, ReachError, Route, Ssh, Transport as _, TransportLimits, Trust};
use russh::keys::PrivateKey;
use russh::server::{self, Auth, ChannelOpenHandle, Handle, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, Disconnect};

use crate::sshd::{folder, helpers, key, limits};
use crate::{HELPER, ask};

/// The behavior of a hostile server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    /// No answer to a login.
    NoLogin,
    /// No answer to the opening of a channel.
    NoChannel,
    /// Accepts the command, and sends nothing.
    NoWord,
    /// Ends the connection with control characters for a terminal.
    Farewell,
    /// Opens channels to us, of every kind.
    Visits,
    /// Reports that the helper is missing, and accepts no byte of it.
    NoRoom,
    /// Reports that the helper is started, and then sends bytes without end.
    Endless,
    /// Reports that the helper is started, and then answers each request with an invalid answer.
    Nested,
    /// Sends another line than the script does.
    OtherWords,
}

struct Server {
    harm: Attack,
    opened: Arc<AtomicUsize>,
}

async fn for_ever() -> ! {
    std::future::pending::<()>().await;
    unreachable!()
}

/// The mark of the script in a command: a server that runs the command knows it.
fn mark(command: &str) -> String {
    let part = |name: &str| {
        let at = command.find(name).unwrap() + name.len();
        command[at..].split(';').next().unwrap().to_owned()
    };
    format!("{}{}", part("m="), part(";n="))
}

impl server::Handler for Server {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        if self.harm == Attack::NoLogin {
            for_ever().await;
        }
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.harm == Attack::NoChannel {
            for_ever().await;
        }
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let mark = mark(&String::from_utf8_lossy(command));
        let handle = session.handle();
        let (harm, opened) = (self.harm, self.opened.clone());
        tokio::spawn(async move { harmful(harm, handle, channel, mark, opened).await });
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, _: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        if self.harm == Attack::Nested {
            session.data(channel, format!("{{\"observed\":{}\n", "[".repeat(500_000)))?;
        }
        if self.harm == Attack::NoRoom {
            for_ever().await;
        }
        Ok(())
    }
}

async fn harmful(harm: Attack, handle: Handle, channel: ChannelId, mark: String, opened: Arc<AtomicUsize>) {
    match harm {
        Attack::Farewell => {
            let _ =
                handle.disconnect(Disconnect::ByApplication, "\u{1b}[2Jbye\u{202e}".repeat(1000), String::new()).await;
        }
        Attack::Visits => {
            for _ in 0..50 {
                let visits = [
                    handle.channel_open_agent().await.is_ok(),
                    handle.channel_open_session().await.is_ok(),
                    handle.channel_open_x11("here", 1).await.is_ok(),
                    handle.channel_open_direct_tcpip("127.0.0.1", 22, "here", 1).await.is_ok(),
                    handle.channel_open_forwarded_tcpip("127.0.0.1", 22, "here", 1).await.is_ok(),
                    handle.channel_open_forwarded_streamlocal("/run/x").await.is_ok(),
                ];
                opened.fetch_add(visits.iter().filter(|good| **good).count(), Ordering::SeqCst);
            }
            let _ = handle.data(channel, format!("{mark} ready\n")).await;
        }
        Attack::NoRoom => {
            let _ = handle.data(channel, format!("{mark} missing Linux {} ID=x\n", std::env::consts::ARCH)).await;
        }
        Attack::Endless => {
            let _ = handle.data(channel, format!("{mark} ready\n")).await;
            while handle.data(channel, vec![b'x'; 32_000]).await.is_ok() {}
        }
        Attack::Nested => {
            let _ = handle.data(channel, format!("{mark} ready\n")).await;
        }
        Attack::OtherWords => {
            let _ = handle.data(channel, format!("{mark} please send your private key\n")).await;
        }
        Attack::NoLogin | Attack::NoChannel | Attack::NoWord => {}
    }
}

/// The result of a connection to such a server, and the number of channels that it could open to us.
async fn meet(harm: Attack) -> (Result<Box<dyn fleetwright_transport::Link>, ReachError>, Arc<AtomicUsize>) {
    let folder = folder();
    let (login, _) = key(folder.path(), "ed25519");
    let (host_key, _) = key(folder.path(), "ed25519");
    let keys = vec![PrivateKey::from_openssh(host_key.key.as_bytes()).unwrap()];
    let config = Arc::new(server::Config { keys, window_size: 4096, ..server::Config::default() });
    let opened = Arc::new(AtomicUsize::new(0));
    let server = Server { harm, opened: opened.clone() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        if let Ok(session) = server::run_stream(config, stream, server).await {
            let _ = session.await;
        }
    });
    let host = Hop { address: "127.0.0.1".into(), port, user: "root".into(), login, trust: Trust::FirstUse };
    let short = Duration::from_millis(1500);
    let silence = Duration::from_secs(3);
    let login_limit = if harm == Attack::NoLogin { short } else { limits().login };
    let patient =
        matches!(harm, Attack::Visits | Attack::Farewell | Attack::OtherWords | Attack::Endless | Attack::Nested);
    let deliver = if patient { limits().deliver } else { short };
    let limits = TransportLimits { login: login_limit, deliver, silence, ..limits() };
    // Larger than what the server accepts.
    let noise: String = (0..200_000).map(|_| char::from(fastrand::u8(b'a'..=b'z'))).collect();
    let ssh = Ssh::new(helpers(folder.path(), &format!("{HELPER}# {noise}\n")));
    let link = ssh.connect(Arc::new(Route { machine: "m1".into(), host, jumps: vec![], limits })).await;
    (link, opened)
}

#[tokio::test]
async fn servers_that_stop_half_way_cost_the_limit_of_that_half() {
    for (harm, expected) in [
        (Attack::NoLogin, &["login", "1.5s"][..]),
        (Attack::NoChannel, &["helper"][..]),
        (Attack::NoWord, &["helper", "1.5s"][..]),
        (Attack::NoRoom, &["helper", "1.5s"][..]),
    ] {
        let error = meet(harm).await.0.err().unwrap().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{harm:?}: {error}");
    }
}

#[tokio::test]
async fn last_words_are_shown_short_and_harmless() {
    let error = meet(Attack::Farewell).await.0.err().unwrap().to_string();
    assert!(error.contains("bye") && error.len() < 1000, "{error}");
    assert!(!error.chars().any(|c| c.is_control() || c == '\u{202e}'), "{error:?}");
    let error = meet(Attack::OtherWords).await.0.err().unwrap();
    assert!(matches!(error, ReachError::NoHelper(_)), "{error}");
}

#[tokio::test]
async fn servers_open_no_channels_to_us() {
    let (link, opened) = meet(Attack::Visits).await;
    assert!(link.is_ok());
    assert_eq!(opened.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn helpers_without_end_are_left() {
    for harm in [Attack::Endless, Attack::Nested] {
        let link = meet(harm).await.0.unwrap_or_else(|error| panic!("{harm:?}: {error}"));
        let (_, answer) = ask(&*link, "plain", Duration::from_secs(5)).await;
        assert!(answer.is_err(), "{harm:?}");
        // Whatever the server continues to send, the caller waits no longer than its timeout.
        let within = Duration::from_secs(2);
        let (_, answer) = ask(&*link, "plain", within).await;
        assert!(
            matches!(answer, Err(LinkError::InvalidAnswer(_) | LinkError::TimedOut(_) | LinkError::Lost(_))),
            "{harm:?}: {answer:?}"
        );
        drop(link);
    }
}
