//! What the kit puts around a client.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fleetwright_apiserver::{Config, Server};
use fleetwright_kit::Clock;
use fleetwright_kit::client::{CallError, Fence, MAX_WAIT, PassCalls, connect, counted, retry_after, uncounted, wrap};
use fleetwright_kit::metrics::Metrics;
use fleetwright_lab::Target;
use futures::{FutureExt, StreamExt, TryStreamExt, poll};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::net::TcpListener;

fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

/// Writes down the requests and passes them on.
fn recorded(client: kube::Client) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let into = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let agent = request.headers().get("user-agent").map_or("nobody", |agent| agent.to_str().unwrap());
        into.lock().unwrap().push(format!("{} {} by {agent}", request.method(), request.uri().path()));
        let client = client.clone();
        async move { client.send(request).await }
    });
    (kube::Client::new(service, "default"), log)
}

/// A server that never answers.
fn silent() -> kube::Client {
    let service = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn behind_a_fence_reads_pass_and_writes_are_not_sent() {
    let server = Server::start(Config::default()).await.unwrap();
    let (client, log) = recorded(server.client());
    let (fence, metrics) = (Fence::closed(), Metrics::new());
    let client = wrap(client, fence.clone(), Clock::manual(noon()), metrics.clone(), "fleetwright-test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.list(&ListParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
    let apply = PatchParams::apply("test");
    let refused = [
        maps.create(&PostParams::default(), &map("a")).await.map(drop),
        maps.replace("a", &PostParams::default(), &map("a")).await.map(drop),
        maps.patch("a", &apply, &Patch::Apply(map("a"))).await.map(drop),
        maps.delete("a", &DeleteParams::default()).await.map(drop),
        maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.map(drop),
    ];
    for refused in refused {
        assert_eq!(CallError::of(&refused.unwrap_err()), Some(CallError::Fenced));
    }
    let maps_path = "/api/v1/namespaces/default/configmaps";
    let sent = [format!("GET {maps_path} by fleetwright-test"), format!("GET {maps_path}/a by fleetwright-test")];
    assert_eq!(*log.lock().unwrap(), sent);
    let page = metrics.encode();
    for row in [
        "verb=\"list\",resource=\"configmaps\",code=\"200\"} 1",
        "verb=\"get\",resource=\"configmaps\",code=\"404\"} 1",
        "verb=\"apply\",resource=\"configmaps\",code=\"fenced\"} 1",
    ] {
        assert!(page.contains(&format!("fleetwright_api_calls_total{{{row}")), "{row}\n{page}");
    }
    fence.hold_until(Duration::from_secs(1), noon() + Duration::from_secs(1));
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
}

#[tokio::test]
async fn a_write_that_waits_is_not_carried_on_when_the_lease_could_have_ended() {
    let clock = Clock::manual(noon());
    let fence = Fence::closed();
    fence.hold_until(Duration::from_secs(10), noon() + Duration::from_secs(10));
    // Connecting takes a while; then the request would be sent.
    let (connected, connecting) = tokio::sync::watch::channel(false);
    let sent = Arc::new(Mutex::new(false));
    let inner = tower::service_fn({
        let sent = sent.clone();
        move |_: Request<Body>| {
            let (mut connecting, sent) = (connecting.clone(), sent.clone());
            async move {
                connecting.wait_for(|connected| *connected).await.unwrap();
                *sent.lock().unwrap() = true;
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        }
    });
    let client = wrap(kube::Client::new(inner, "default"), fence, clock.clone(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let (post, map) = (PostParams::default(), map("a"));
    let mut create = pin!(maps.create(&post, &map));
    for _ in 0..100 {
        assert!(poll!(&mut create).is_pending());
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(10));
    connected.send_replace(true);
    let error = create.await.unwrap_err();
    assert_eq!(CallError::of(&error), Some(CallError::Overtaken));
    assert!(!*sent.lock().unwrap());
}

#[tokio::test]
async fn a_write_whose_lease_ends_on_its_way_to_the_wire_is_never_whole() {
    let server = Server::start(Config::default()).await.unwrap();
    let (fence, clock) = (Fence::open(), Clock::manual(noon()));
    let (closing, inner) = (fence.clone(), server.client());
    // A connection has a task of its own. After a pause it finds the request that was handed on, and only now takes its body.
    let connection = Arc::new(Mutex::new(None));
    let task = connection.clone();
    let late = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        closing.close();
        *task.lock().unwrap() = Some(tokio::spawn(async move { inner.send(request).await.map(drop) }));
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let client = wrap(kube::Client::new(late, "default"), fence, clock, Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    assert!(maps.create(&PostParams::default(), &map("a")).await.is_err());
    let task = connection.lock().unwrap().take().unwrap();
    let _ = task.await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    assert!(maps.get_opt("a").await.unwrap().is_none(), "it was written");
}

#[tokio::test]
async fn a_server_that_does_not_answer_blocks_no_caller_for_long() {
    let clock = Clock::manual(noon());
    let client = wrap(silent(), Fence::open(), clock.clone(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut get = pin!(maps.get("a"));
    while clock.next_timer().is_none() {
        assert!(poll!(&mut get).is_pending());
        tokio::task::yield_now().await;
    }
    clock.advance(MAX_WAIT);
    let error = get.await.unwrap_err();
    assert_eq!(CallError::of(&error), Some(CallError::TimedOut(MAX_WAIT)));
}

#[tokio::test]
async fn an_answer_that_stops_halfway_blocks_no_caller_for_long() {
    let clock = Clock::manual(noon());
    let inner = tower::service_fn(|_: Request<Body>| async {
        let start =
            futures::stream::iter([Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(b"{\"kind\":")))]);
        Ok::<_, Infallible>(Response::new(StreamBody::new(start.chain(futures::stream::pending()))))
    });
    let client = wrap(kube::Client::new(inner, "default"), Fence::open(), clock.clone(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut get = pin!(maps.get("a"));
    let error = loop {
        if let std::task::Poll::Ready(answer) = poll!(&mut get) {
            break answer.unwrap_err();
        }
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        assert!(clock.monotonic() < 1000 * MAX_WAIT, "it waits for ever");
    };
    assert_eq!(CallError::of(&error), Some(CallError::TimedOut(MAX_WAIT)));
}

#[tokio::test]
async fn a_quiet_watch_goes_on() {
    let server = Server::start(Config::default()).await.unwrap();
    let clock = Clock::manual(noon());
    let client = wrap(server.client(), Fence::open(), clock.clone(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut changes =
        maps.watch(&WatchParams::default().labels("mine").disable_bookmarks(), "0").await.unwrap().boxed();
    for _ in 0..10 {
        assert!(poll!(changes.next()).is_pending());
        clock.advance(MAX_WAIT);
        tokio::task::yield_now().await;
    }
    let mut mine = map("a");
    mine.labels_mut().insert("mine".into(), String::new());
    maps.create(&PostParams::default(), &mine).await.unwrap();
    let change = changes.try_next().await.unwrap();
    assert!(matches!(change, Some(WatchEvent::Added(_))), "{change:?}");
}

#[tokio::test]
async fn calls_count_for_the_pass_that_makes_them() {
    let server = Server::start(Config::default()).await.unwrap();
    let client = wrap(server.client(), Fence::open(), Clock::system(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let one = counted(async {
        maps.create(&PostParams::default(), &map("a")).await.unwrap();
        tokio::task::yield_now().await;
        maps.get("a").await.unwrap();
        uncounted(maps.get("a")).await.unwrap();
        maps.list(&ListParams::default()).await.unwrap();
    });
    let two = counted(async { maps.get_opt("b").await.unwrap() });
    let ((_, one), (_, two)) = tokio::join!(one, two);
    assert_eq!((one, two), (PassCalls { reads: 2, writes: 1 }, PassCalls { reads: 1, writes: 0 }));
}

/// An HTTP server that answers everything with this.
async fn busy(code: u16, text: &'static str) -> (kube::Config, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let into = log.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let into = into.clone();
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let into = into.clone();
                async move {
                    let line = format!("{} {}", request.method(), request.uri().path());
                    let length = request.headers().get("content-length").cloned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    if let Some(length) = length {
                        assert_eq!(length, body.len().to_string());
                    }
                    into.lock().unwrap().push(line);
                    let answer = Response::builder().status(code).header("retry-after", "0");
                    Ok::<_, Infallible>(answer.body(Full::<Bytes>::from(text)).unwrap())
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (kube::Config::new(format!("http://{address}").parse().unwrap()), log)
}

#[tokio::test]
async fn a_write_is_sent_once_also_by_a_client_that_retries() {
    let (config, log) = busy(503, "no").await;
    assert!(config.default_retry);
    let client = kube::Client::try_from(config).unwrap();
    let wrapped = wrap(client.clone(), Fence::open(), Clock::system(), Metrics::new(), "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(wrapped);
    maps.create(&PostParams::default(), &map("a")).await.unwrap_err();
    maps.replace("a", &PostParams::default(), &map("a")).await.unwrap_err();
    maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({}))).await.unwrap_err();
    maps.delete("a", &DeleteParams::default()).await.unwrap_err();
    let path = "/api/v1/namespaces/default/configmaps";
    let once = [format!("POST {path}"), format!("PUT {path}/a"), format!("PATCH {path}/a"), format!("DELETE {path}/a")];
    assert_eq!(*log.lock().unwrap(), once);
    // The behaviour without the kit, which is the reason for unrepeatable writes. The test stops early; kube would retry for minutes.
    log.lock().unwrap().clear();
    let bare: Api<ConfigMap> = Api::default_namespaced(client);
    let (post, map) = (PostParams::default(), map("a"));
    let mut create = pin!(bare.create(&post, &map));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while log.lock().unwrap().len() < 2 {
        assert!(std::time::Instant::now() < deadline, "kube retries no more: the wrapping can go");
        assert!(tokio::time::timeout(Duration::from_millis(5), &mut create).await.is_err());
    }
}

#[tokio::test]
async fn a_connected_client_asks_once_and_learns_how_long_to_wait() {
    for (text, seconds) in [
        ("Too many requests, please try again later.", None),
        (r#"{"kind":"Status","status":"Failure","code":429,"message":"m","details":{"retryAfterSeconds":9}}"#, Some(9)),
    ] {
        let (config, log) = busy(429, text).await;
        let client = wrap(connect(config).unwrap(), Fence::open(), Clock::system(), Metrics::new(), "test");
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let error = maps.get("a").await.unwrap_err();
        assert_eq!(log.lock().unwrap().len(), 1);
        assert_eq!(retry_after(&error), seconds.map(Duration::from_secs), "{error}");
    }
    // Plain text with nothing but the header.
    let inner = tower::service_fn(|_: Request<Body>| async {
        let answer = Response::builder().status(429).header("retry-after", "7");
        answer.body(Body::from(b"Too many requests, please try again later.".to_vec()))
    });
    let client = wrap(kube::Client::new(inner, ""), Fence::open(), Clock::system(), Metrics::new(), "test");
    let error = Api::<ConfigMap>::default_namespaced(client).get("a").await.unwrap_err();
    assert_eq!(retry_after(&error), Some(Duration::from_secs(7)));
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.message.as_str()), (429, "Too many requests, please try again later."));
}

#[tokio::test]
async fn a_wrapped_client_does_everything() {
    on(Target::embedded().await.unwrap()).await;
}

#[tokio::test]
async fn a_wrapped_client_does_everything_on_real() {
    on(Target::real().await.unwrap()).await;
}

async fn on(target: Target) {
    let client = wrap(target.admin(), Fence::open(), Clock::system(), Metrics::new(), "test");
    let outcome = AssertUnwindSafe(everything(client)).catch_unwind().await;
    target.stop(outcome.is_err()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

async fn everything(client: kube::Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut a = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let version = a.resource_version().unwrap();
    // The real server publishes its own certificates in this namespace whenever it likes: only "a" is watched.
    let only = WatchParams::default().fields("metadata.name=a");
    let mut changes = maps.watch(&only, &version).await.unwrap().boxed();
    a.data.get_or_insert_default().insert("b".into(), "2".into());
    a.metadata.managed_fields = None;
    let a = maps.replace("a", &PostParams::default(), &a).await.unwrap();
    let change = changes.try_next().await.unwrap();
    assert!(matches!(change, Some(WatchEvent::Modified(seen)) if seen.resource_version() == a.resource_version()));
    let tests = json!([{"op": "test", "path": "/data/b", "value": "2"}, {"op": "remove", "path": "/data/b"}]);
    maps.patch("a", &PatchParams::default(), &Patch::Json::<()>(serde_json::from_value(tests).unwrap())).await.unwrap();
    let own = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"c": "3"}});
    let a = maps.patch("a", &PatchParams::apply("test"), &Patch::Apply(own)).await.unwrap();
    assert_eq!(a.data.unwrap().into_iter().collect::<Vec<_>>(), [("a".into(), "1".into()), ("c".into(), "3".into())]);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}
