//! Clients that take more than their share: they send slowly or nothing, connect too often, ask for too much at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fleetwright_apiserver::{
    Config, ConnectionLimits, HealthCheck, InFlightLimits, InterceptAction, InterceptedRequest, Interceptor, User,
};
use fleetwright_pki::{Authority, Leaf};
use futures::future::BoxFuture;
use http::Request;
use http_body_util::BodyExt;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{CONFIG_MAPS, Cluster, config_map};

/// Nobody in these tests waits longer for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

struct Listener {
    cluster: Cluster,
    authority: Arc<Authority>,
}

impl Listener {
    async fn start(connections: ConnectionLimits) -> Self {
        Self::with(connections, InFlightLimits::default()).await
    }

    async fn with(connections: ConnectionLimits, in_flight: InFlightLimits) -> Self {
        let authority = Arc::new(Authority::new("test").unwrap());
        let config = Config {
            listen: Some(([127, 0, 0, 1], 0).into()),
            authority: Some(authority.clone()),
            connections,
            in_flight,
            ..Config::default()
        };
        Self { cluster: Cluster::with(config).await, authority }
    }

    /// A connection of an administrator.
    async fn connect(&self, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_as("amy", &["system:masters"], protocol).await
    }

    async fn connect_as(&self, user: &str, groups: &[&str], protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let pair = self.authority.issue(Leaf::client(user, groups.iter().copied())).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.cert_pem().as_bytes()).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.cluster.handle().address().unwrap()).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    /// Waits until no request has a place but the one that asks.
    async fn until_one_in_flight(&self) {
        let free = async {
            while self.cluster.metric(IN_FLIGHT).await != 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, free).await.expect("places come back");
    }
}

const IN_FLIGHT: &str = "apiserver_current_inflight_requests";

/// What the server sends until it closes the connection.
async fn until_closed(stream: &mut TlsStream<TcpStream>) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(WAIT_TIMEOUT, stream.read_to_end(&mut said)).await;
    // A connection that is cut off without a close of TLS is an error, and closed too.
    assert!(read.is_ok(), "the server keeps the connection: {:?}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&said).into_owned()
}

/// Sends one byte after the other for as long as the server takes them.
async fn trickle(stream: &mut TlsStream<TcpStream>) {
    let sent = tokio::time::timeout(WAIT_TIMEOUT, async {
        while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(sent.await.is_ok(), "the server reads on");
}

fn short() -> ConnectionLimits {
    let some = Duration::from_millis(300);
    ConnectionLimits { first_request: some, idle: some, body: some, ..ConnectionLimits::default() }
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let server = Listener::start(short()).await;
    for protocol in [b"http/1.1".as_slice(), b"h2"] {
        let mut silent = server.connect(protocol).await.unwrap();
        until_closed(&mut silent).await;
    }
    let mut preface = server.connect(b"h2").await.unwrap();
    preface.write_all(HTTP2_START).await.unwrap();
    until_closed(&mut preface).await;
    let mut again = server.connect(b"http/1.1").await.unwrap();
    again.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let said = until_closed(&mut again).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

#[tokio::test]
async fn slow_headers_are_cut_off() {
    let server = Listener::start(short()).await;
    let mut first = server.connect(b"http/1.1").await.unwrap();
    first.write_all(b"GET /livez HTTP/1.1\r\nX-Slow: ").await.unwrap();
    trickle(&mut first).await;
    let mut second = server.connect(b"http/1.1").await.unwrap();
    second.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /livez HTTP/1.1\r\nX-Slow: ").await.unwrap();
    trickle(&mut second).await;
    // By HTTP/2: fields that another frame would end, as the first request and after one.
    for before in [vec![], http2_frame(1, 5, &http2_fields("GET", "/livez"))] {
        let mut slow = server.connect(b"h2").await.unwrap();
        let unended = [&[0, 0, 1, 1, 1, 0, 0, 0, 3], &[0x82][..]].concat();
        slow.write_all(&[HTTP2_START, &before, &unended].concat()).await.unwrap();
        until_closed(&mut slow).await;
    }
}

#[tokio::test]
async fn slow_bodies_are_cut_off() {
    let server = Listener::start(short()).await;
    let mut slow = server.connect(b"http/1.1").await.unwrap();
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let said = until_closed(&mut slow).await;
    assert!(said.starts_with("HTTP/1.1 504") && said.contains("\"reason\":\"Timeout\""), "{said}");
}

/// The start of an HTTP/2 connection, with settings of which none is set.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The start of an HTTP/2 connection, and one request on it.
fn http2_request(method: &str, path: &str, ends: bool) -> Vec<u8> {
    // END_HEADERS, and END_STREAM where no body follows.
    let flags = if ends { 5 } else { 4 };
    [HTTP2_START, &http2_frame(1, flags, &http2_fields(method, path))].concat()
}

/// The header fields of a request in plain HPACK, without tables.
fn http2_fields(method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", "a"),
        ("content-type", "application/json"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A frame of stream 1.
fn http2_frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

#[tokio::test]
async fn slow_bodies_are_cut_off_in_http2_too() {
    let server =
        Listener::start(ConnectionLimits { body: Duration::from_millis(300), ..ConnectionLimits::default() }).await;
    let mut slow = server.connect(b"h2").await.unwrap();
    slow.write_all(&http2_request("POST", CONFIG_MAPS, false)).await.unwrap();
    let mut said = Vec::new();
    let answered = tokio::time::timeout(WAIT_TIMEOUT, async {
        // A byte of the body now and then: what counts is the whole.
        while !String::from_utf8_lossy(&said).contains("\"reason\":\"Timeout\"") {
            let _ = slow.write_all(&http2_frame(0, 0, b" ")).await;
            let mut piece = [0; 4096];
            if let Ok(read) = tokio::time::timeout(Duration::from_millis(50), slow.read(&mut piece)).await {
                let read = read.expect("the connection stays");
                assert_ne!(read, 0, "it was closed: {:?}", String::from_utf8_lossy(&said));
                said.extend_from_slice(&piece[..read]);
            }
        }
    });
    assert!(answered.await.is_ok(), "the server reads on");
}

#[tokio::test]
async fn slow_bodies_of_one_user_leave_places_for_those_of_others() {
    let in_flight = InFlightLimits { bodies: 64, writes: 16, ..InFlightLimits::default() };
    let server = Listener::with(ConnectionLimits::default(), in_flight).await;
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    // More than there are places for writes. Every authenticated user may ask this.
    let mut held = Vec::new();
    for _ in 0..in_flight.writes + 10 {
        let mut slow = server.connect_as("eve", &[], b"http/1.1").await.unwrap();
        let head = format!(
            "POST {own} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        );
        slow.write_all(head.as_bytes()).await.unwrap();
        held.push(slow);
    }
    // Those beyond her share are answered.
    let mut refused = 0;
    for slow in &mut held {
        let mut piece = [0; 4096];
        if let Ok(read) = tokio::time::timeout(Duration::from_millis(100), slow.read(&mut piece)).await {
            let said = String::from_utf8_lossy(&piece[..read.unwrap_or_default()]).into_owned();
            assert!(said.starts_with("HTTP/1.1 429"), "{said}");
            refused += 1;
        }
    }
    assert_eq!(refused, held.len() - in_flight.bodies / 8);
    let body = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}).to_string();
    let mut other = server.connect_as("bob", &[], b"http/1.1").await.unwrap();
    let head = format!(
        "POST {own} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // The body comes a moment after the head, as over a network.
    other.write_all(head.as_bytes()).await.unwrap();
    other.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    other.write_all(body.as_bytes()).await.unwrap();
    let mut piece = [0; 4096];
    let read = tokio::time::timeout(WAIT_TIMEOUT, other.read(&mut piece)).await.expect("an answer").unwrap();
    let said = String::from_utf8_lossy(&piece[..read]).into_owned();
    assert!(said.starts_with("HTTP/1.1 201"), "{said}");
    // A place comes back with its connection.
    drop(held);
    let again = async {
        loop {
            let mut slow = server.connect_as("eve", &[], b"http/1.1").await.unwrap();
            slow.write_all(head.as_bytes()).await.unwrap();
            slow.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            slow.write_all(body.as_bytes()).await.unwrap();
            let mut piece = [0; 4096];
            let read = slow.read(&mut piece).await.unwrap_or_default();
            if piece[..read].starts_with(b"HTTP/1.1 201") {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, again).await.expect("a place comes back");
}

/// More than the 64 KiB that an HTTP/2 client takes if it opens no window, and less than what is handed out to be sent at once.
const SMALL: usize = 100_000;

#[tokio::test]
async fn clients_that_do_not_read_their_answers_are_cut_off() {
    let limits = ConnectionLimits { unread: Duration::from_millis(400), ..ConnectionLimits::default() };
    let server = Listener::start(limits).await;
    // More than sockets hold back.
    for number in 0..24 {
        let mut large = config_map(&format!("large-{number}"));
        large["data"] = json!({"a": "x".repeat(1_000_000)});
        server.cluster.created(CONFIG_MAPS, large).await;
    }
    let whole = 24_000_000;
    // An answer that is sent as one piece.
    let mut small = config_map("small");
    small["data"] = json!({"a": "x".repeat(SMALL)});
    server.cluster.created(CONFIG_MAPS, small).await;
    let mut plain = server.connect(b"http/1.1").await.unwrap();
    plain.write_all(format!("GET {CONFIG_MAPS} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    // With a window of 64 KiB, which is never opened, although everything that comes is read.
    let mut http2 = server.connect(b"h2").await.unwrap();
    http2.write_all(&http2_request("GET", CONFIG_MAPS, true)).await.unwrap();
    let said = until_closed(&mut http2).await;
    assert!(said.len() < whole, "{}", said.len());
    let mut http2 = server.connect(b"h2").await.unwrap();
    http2.write_all(&http2_request("GET", &format!("{CONFIG_MAPS}/small"), true)).await.unwrap();
    let said = until_closed(&mut http2).await;
    assert!(said.len() < SMALL, "{}", said.len());
    // The other one reads nothing until its place is free.
    server.until_one_in_flight().await;
    let said = until_closed(&mut plain).await;
    assert!(said.starts_with("HTTP/1.1 200") && said.len() < whole, "{}", said.len());
}

/// The limit is far longer than the time in which a server can send nothing to a slow client: sockets buffer megabytes, and take more only when a third of that was read. On
/// the loopback device this takes half a second.
#[tokio::test]
async fn clients_that_read_their_answers_slowly_get_everything() {
    let limits = ConnectionLimits { unread: Duration::from_secs(4), ..ConnectionLimits::default() };
    let server = Listener::start(limits).await;
    for number in 0..24 {
        let mut large = config_map(&format!("large-{number}"));
        large["data"] = json!({"a": "x".repeat(1_000_000)});
        server.cluster.created(CONFIG_MAPS, large).await;
    }
    let mut reader = server.connect(b"http/1.1").await.unwrap();
    let request = format!("GET {CONFIG_MAPS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    reader.write_all(request.as_bytes()).await.unwrap();
    let mut total = 0;
    let mut piece = vec![0; 1 << 16];
    let started = tokio::time::Instant::now();
    loop {
        let read = tokio::time::timeout(WAIT_TIMEOUT, reader.read(&mut piece)).await.expect("a piece").unwrap();
        if read == 0 {
            break;
        }
        total += read;
        // Three megabytes a second, however much one read returns.
        tokio::time::sleep_until(started + Duration::from_millis(total as u64 / 3_000)).await;
    }
    assert!(total > 24_000_000, "{total}");
    assert!(started.elapsed() > limits.unread, "it was read too fast: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_watch_keeps_its_connection_while_nothing_happens() {
    let server = Listener::start(short()).await;
    let mut stream = server.connect(b"http/1.1").await.unwrap();
    let head = format!("GET {CONFIG_MAPS}?watch=true HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // Longer than an idle connection would live.
    tokio::time::sleep(short().idle * 4).await;
    server.cluster.created(CONFIG_MAPS, config_map("seen")).await;
    let mut said = String::new();
    while !said.contains("\"name\":\"seen\"") {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(WAIT_TIMEOUT, stream.read(&mut piece)).await.expect("an event").unwrap();
        assert_ne!(read, 0, "the watch ended: {said}");
        said.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
}

/// Whether the server answers a request on that connection.
async fn answers(stream: &mut TlsStream<TcpStream>) -> bool {
    let asked =
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.is_ok() && stream.flush().await.is_ok();
    let mut said = Vec::new();
    let heard = tokio::time::timeout(WAIT_TIMEOUT, async {
        let mut piece = [0; 4096];
        while !said.ends_with(b"ok") {
            match stream.read(&mut piece).await {
                Ok(read) if read > 0 => said.extend_from_slice(&piece[..read]),
                _ => break,
            }
        }
    });
    assert!(heard.await.is_ok(), "the server is silent");
    asked && said.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn connections_beyond_those_of_administrators_are_closed_and_places_come_back() {
    let limits = ConnectionLimits { connections: 2, ..ConnectionLimits::default() };
    let server = Listener::start(limits).await;
    let mut one = server.connect(b"http/1.1").await.unwrap();
    let mut two = server.connect(b"http/1.1").await.unwrap();
    assert!(answers(&mut one).await && answers(&mut two).await);
    assert!(server.connect(b"http/1.1").await.is_err());
    assert_eq!(server.cluster.metric("apiserver_refused_connections_total").await, 1);
    drop(one);
    let again = async {
        while server.connect(b"http/1.1").await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, again).await.expect("a place comes back");
    assert!(answers(&mut two).await);
}

#[tokio::test]
async fn a_full_server_takes_administrators_and_other_users_for_connections_of_the_one_who_has_most() {
    let server = Listener::start(ConnectionLimits { connections: 8, ..ConnectionLimits::default() }).await;
    let mut eve = Vec::new();
    for _ in 0..8 {
        let mut one = server.connect_as("eve", &[], b"http/1.1").await.unwrap();
        assert!(answers(&mut one).await);
        eve.push(one);
    }
    let mut admin = server.connect(b"http/1.1").await.unwrap();
    let mut bob = server.connect_as("bob", &[], b"http/1.1").await.unwrap();
    assert!(answers(&mut admin).await && answers(&mut bob).await);
    for closed in &mut eve[..2] {
        assert!(!answers(closed).await);
    }
    assert!(answers(&mut eve[2]).await);
    assert_eq!(server.cluster.metric("apiserver_refused_connections_total").await, 2);
    // However many more she makes.
    for _ in 0..20 {
        let mut one = server.connect_as("eve", &[], b"http/1.1").await.unwrap();
        assert!(answers(&mut one).await);
        eve.push(one);
    }
    assert!(answers(&mut admin).await && answers(&mut bob).await);
}

#[tokio::test]
async fn silent_connections_without_an_identity_keep_no_user_out() {
    let server = Listener::start(ConnectionLimits { connections: 8, ..ConnectionLimits::default() }).await;
    let address = server.cluster.handle().address().unwrap();
    let mut silent = Vec::new();
    let flood = async |silent: &mut Vec<TcpStream>| {
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
    };
    flood(&mut silent).await;
    let mut bob = server.connect_as("bob", &[], b"http/1.1").await.unwrap();
    assert!(answers(&mut bob).await);
    let refused = server.cluster.metric("apiserver_refused_connections_total").await;
    assert!(refused >= 13, "the attack was not made: {refused}");
    let read = tokio::time::timeout(WAIT_TIMEOUT, silent[0].read(&mut [0; 16])).await.expect("it is closed");
    assert_eq!(read.unwrap_or_default(), 0);
    flood(&mut silent).await;
    assert!(answers(&mut bob).await);
}

#[tokio::test]
async fn an_answer_keeps_its_place_until_it_was_read() {
    let in_flight = InFlightLimits { reads: 8, ..InFlightLimits::default() };
    let cluster = Cluster::with(Config { in_flight, ..Config::default() }).await;
    let get = |user: &str| {
        let request = Request::get("/version").body(http_body_util::Empty::new()).unwrap();
        cluster.handle().call_as(User::new(user, ["system:authenticated"]), request)
    };
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(get("eve").await);
    }
    assert!(unread.iter().all(|answer| answer.status() == 200));
    assert_eq!(get("eve").await.status(), 429);
    assert_eq!(get("bob").await.status(), 200);
    let read = unread.pop().unwrap().into_body().collect().await.unwrap();
    assert!(!read.to_bytes().is_empty());
    assert_eq!(get("eve").await.status(), 200);
}

#[tokio::test]
async fn an_answer_keeps_its_place_until_its_last_byte_was_sent() {
    let server = Listener::start(ConnectionLimits::default()).await;
    let mut small = config_map("small");
    small["data"] = json!({"a": "x".repeat(SMALL)});
    server.cluster.created(CONFIG_MAPS, small).await;
    let mut unread = server.connect(b"h2").await.unwrap();
    unread.write_all(&http2_request("GET", &format!("{CONFIG_MAPS}/small"), true)).await.unwrap();
    let (mut total, mut piece) = (0, vec![0; 1 << 16]);
    while total < 1 << 16 {
        let read = tokio::time::timeout(WAIT_TIMEOUT, unread.read(&mut piece)).await.expect("a piece").unwrap();
        assert_ne!(read, 0, "the server closed the connection after {total} bytes");
        total += read;
    }
    // This one, and the one that asks.
    assert_eq!(server.cluster.metric(IN_FLIGHT).await, 2);
    drop(unread);
    server.until_one_in_flight().await;
}

/// Holds back requests for configmaps until it opens.
struct Closed {
    open: watch::Sender<bool>,
    waiting: AtomicUsize,
}

impl Interceptor for Closed {
    fn intercept<'a>(&'a self, asked: InterceptedRequest<'a>) -> BoxFuture<'a, InterceptAction> {
        let mut open = self.open.subscribe();
        let waits = asked.resource == "configmaps" && asked.verb != "watch";
        Box::pin(async move {
            if waits {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                let _ = open.wait_for(|open| *open).await;
            }
            InterceptAction::Continue
        })
    }

    fn checks(&self) -> Vec<HealthCheck> {
        Vec::new()
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_in_flight_are_asked_to_come_later() {
    let interceptor = Arc::new(Closed { open: watch::Sender::new(false), waiting: AtomicUsize::new(0) });
    // Of which one user has half.
    let in_flight = InFlightLimits { reads: 4, writes: 2, watches: 2, ..InFlightLimits::default() };
    let cluster =
        Cluster::with(Config { interceptor: Some(interceptor.clone()), in_flight, ..Config::default() }).await;
    let rules = json!([{"verbs": ["*"], "apiGroups": [""], "resources": ["configmaps", "secrets"]}]);
    let roles = "/apis/rbac.authorization.k8s.io/v1";
    cluster.created(&format!("{roles}/clusterroles"), json!({"metadata": {"name": "amy"}, "rules": rules})).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "amy"}, "roleRef": {"kind": "ClusterRole", "name": "amy", "apiGroup": group},
        "subjects": [{"kind": "User", "name": "amy", "apiGroup": group}]});
    cluster.created(&format!("{roles}/clusterrolebindings"), binding).await;

    let send = |method: &str, path: &str, body: serde_json::Value| {
        let user = User::new("amy", ["system:authenticated"]);
        let bytes = if method == "GET" { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        cluster.handle().call_as(user, request.body(http_body_util::Full::new(bytes.into())).unwrap())
    };
    let get = |path: &str| send("GET", path, json!(null));
    let secrets = "/api/v1/namespaces/default/secrets";
    let waiting = [tokio::spawn(get(CONFIG_MAPS)), tokio::spawn(get(CONFIG_MAPS))];
    let written = tokio::spawn(send("POST", CONFIG_MAPS, config_map("a")));
    while interceptor.waiting.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    // These, and the one that asks.
    assert_eq!(cluster.metric("apiserver_current_inflight_requests").await, 4);
    for refused in [get(secrets).await, send("POST", secrets, json!({"metadata": {"name": "s"}})).await] {
        assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
        let status: serde_json::Value =
            serde_json::from_slice(&refused.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(status["reason"], "TooManyRequests");
    }
    // A watch is counted by itself, for as long as it lives.
    let watched = get(&format!("{secrets}?watch=true")).await;
    assert_eq!(watched.status(), 200);
    assert_eq!(get(&format!("{secrets}?watch=true")).await.status(), 429);
    drop(watched);
    assert_eq!(get(&format!("{secrets}?watch=true")).await.status(), 200);
    // Administrators and health checks are answered.
    assert_eq!(cluster.get(secrets).await.0, 200);
    assert_eq!(get("/readyz").await.status(), 200);

    interceptor.open.send_replace(true);
    for done in waiting {
        assert_eq!(done.await.unwrap().status(), 200);
    }
    assert_eq!(written.await.unwrap().status(), 201);
    assert_eq!(get(secrets).await.status(), 200);
}
