//! Servers that hang, send wrong data or do not speak SSH.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_transport::{Hop, ReachError, Route, Transport as _, TransportLimits, Trust};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::sshd::{Setup, folder, helpers, key, limits};
use crate::{HELPER, until};
use fleetwright_transport::Ssh;

/// A server that sends these bytes and then nothing, and the number of its connections.
async fn saying(bytes: Vec<u8>) -> (u16, Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = served.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (bytes, counter) = (bytes.clone(), counter.clone());
            tokio::spawn(async move {
                counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _ = stream.write_all(&bytes).await;
                drained(stream).await;
                counter.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
    });
    (port, served)
}

async fn drained(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while matches!(stream.read(&mut buffer).await, Ok(read) if read > 0) {}
}

fn way(port: u16, limits: TransportLimits) -> (tempfile::TempDir, Ssh, Arc<Route>) {
    let folder = folder();
    let (login, _) = key(folder.path(), "ed25519");
    let host = Hop { address: "127.0.0.1".into(), port, user: "root".into(), login, trust: Trust::FirstUse };
    let ssh = Ssh::new(helpers(folder.path(), HELPER));
    (folder, ssh, Arc::new(Route { machine: "m1".into(), host, jumps: vec![], limits }))
}

#[tokio::test]
async fn servers_that_hang_cost_the_login_limit_and_nothing_after_it() {
    let mut kex = b"SSH-2.0-OpenSSH_9.9\r\n".to_vec();
    // A key exchange that starts and never continues: the length of a packet, and a part of it.
    kex.extend_from_slice(&[0, 0, 4, 0, 8, 20]);
    for bytes in [b"".to_vec(), b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), b"SSH-2.0-Open".to_vec(), kex] {
        let (port, served) = saying(bytes).await;
        let (_folder, ssh, route) = way(port, TransportLimits { login: Duration::from_millis(400), ..limits() });
        match ssh.connect(route).await.err() {
            Some(ReachError::Unreachable(text)) => assert!(text.contains("400ms"), "{text}"),
            other => panic!("{other:?}"),
        }
        until("the connection is closed", || served.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn what_is_no_ssh_server_is_distinguished() {
    let noise: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut garbled = b"SSH-2.0-OpenSSH_9.9\r\n".to_vec();
    garbled.extend_from_slice(&noise);
    let mut huge = b"SSH-2.0-OpenSSH_9.9\r\n".to_vec();
    huge.extend_from_slice(&[0xff; 4096]);
    for bytes in [b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(100), noise, garbled, huge, b"SSH-1.5-old\r\n".to_vec()] {
        let (port, served) = saying(bytes).await;
        let (_folder, ssh, route) = way(port, TransportLimits { login: Duration::from_secs(3), ..limits() });
        let error = ssh.connect(route).await.err();
        assert!(matches!(error, Some(ReachError::Unreachable(_))), "{error:?}");
        until("the connection is closed", || served.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn a_closed_port_and_an_unknown_name_are_unreachable() {
    let (_folder, ssh, route) = way(1, limits());
    match ssh.connect(route.clone()).await.err() {
        Some(ReachError::Unreachable(text)) => assert!(text.contains("refused"), "{text}"),
        other => panic!("{other:?}"),
    }
    let mut nameless = Route::clone(&route);
    nameless.host.address = "no-such-host.invalid".into();
    assert!(matches!(ssh.connect(Arc::new(nameless)).await.err(), Some(ReachError::Unreachable(_))));
}

#[tokio::test]
async fn a_host_that_stops_answering_closes_its_link() {
    let sshd = Setup::new().start();
    // A cable that can be pulled: no byte passes any more, and neither side is notified.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let pulled = Arc::new(tokio::sync::Notify::new());
    let (target, pull) = (sshd.port, pulled.clone());
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            () = pull.notified() => std::future::pending().await,
        }
    });
    let silence = Duration::from_secs(6);
    let hop = Hop { port, ..sshd.hop() };
    let way = Route { machine: "m1".into(), host: hop, jumps: vec![], limits: TransportLimits { silence, ..limits() } };
    let link = sshd.ssh(HELPER).connect(Arc::new(way)).await.unwrap();
    pulled.notify_one();
    until("the link is closed", || !link.open()).await;
    assert!(ask_lost(&*link).await);
}

async fn ask_lost(link: &dyn fleetwright_transport::Link) -> bool {
    matches!(crate::ask(link, "plain", crate::LONG).await.1, Err(fleetwright_transport::LinkError::Lost(_)))
}
