//! What a person and a collector get to see of a process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fleetwright_apiserver::{Config, Server};
use fleetwright_kit::Clock;
use fleetwright_kit::client::{Fence, connect, wrap};
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::telemetry::{Exporter, Format, Logging, TelemetryError, Traces, subscriber};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::Instrument;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// Logs of this thread go to memory.
fn logged(format: Format, filter: &str) -> (Log, DefaultGuard) {
    let log = Log::default();
    let logging = Logging { format, filter: filter.into(), color: false };
    let (subscriber, _) = subscriber(&logging, None, &Metrics::new(), log.clone()).unwrap();
    (log, tracing::subscriber::set_default(subscriber))
}

/// Traces of this thread go to that collector.
fn traced(endpoint: &str, share: f64) -> (Exporter, Metrics, DefaultGuard) {
    let metrics = Metrics::new();
    let traces = Traces { share, ..Traces::new(endpoint, "fleetwright-test", "pod-1") };
    let (subscriber, exporter) = subscriber(&Logging::default(), Some(&traces), &metrics, io::sink).unwrap();
    (exporter.unwrap(), metrics, tracing::subscriber::set_default(subscriber))
}

fn dropped(metrics: &Metrics) -> u64 {
    let page = metrics.encode();
    let row = page.lines().find_map(|line| line.strip_prefix("fleetwright_trace_spans_dropped_total "));
    row.unwrap().parse().unwrap()
}

/// An HTTP server that writes down what it gets.
async fn receiver(
    answer: fn(&Request<Incoming>) -> Response<Full<Bytes>>,
) -> (SocketAddr, Arc<Mutex<Vec<(String, Value)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let into = into.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let into = into.clone();
                async move {
                    let line = format!(
                        "{} {} {:?}",
                        request.method(),
                        request.uri().path(),
                        request.headers().get("content-type")
                    );
                    let answer = answer(&request);
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    into.lock().unwrap().push((line, serde_json::from_slice(&body).unwrap_or_default()));
                    Ok::<_, Infallible>(answer)
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, seen)
}

fn fine(_: &Request<Incoming>) -> Response<Full<Bytes>> {
    Response::new(Full::from("{}"))
}

/// Runs the exporter until everything is sent.
async fn sent(exporter: Exporter) {
    exporter.run(std::future::ready(())).await;
}

fn spans(batch: &Value) -> &Vec<Value> {
    batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap()
}

fn attributes(of: &Value) -> BTreeMap<&str, &Value> {
    let attributes = of["attributes"].as_array().unwrap();
    attributes.iter().map(|attribute| (attribute["key"].as_str().unwrap(), &attribute["value"])).collect()
}

#[tokio::test]
async fn a_pass_is_a_trace_with_its_steps_and_calls() {
    let (address, seen) = receiver(fine).await;
    let (exporter, metrics, _guard) = traced(&format!("http://{address}"), 1.0);
    let server = Server::start(Config::default()).await.unwrap();
    let client = wrap(server.client(), Fence::closed(), Clock::system(), metrics, "test");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let before = std::time::SystemTime::now();
    let pass =
        tracing::info_span!(target: "fleetwright_kit", "pass", controller = "test", object = "fleet/a", tries = 3u64);
    async {
        let step = tracing::info_span!(target: "fleetwright_kit", "step", step = "act");
        async {
            maps.list(&ListParams::default()).await.unwrap();
            maps.create(&PostParams::default(), &ConfigMap::default()).await.unwrap_err();
            tracing::error!(target: "fleetwright_kit", reason = "NotLeading", "cannot write");
        }
        .instrument(step)
        .await;
    }
    .instrument(pass)
    .await;
    sent(exporter).await;
    let seen = seen.lock().unwrap();
    let [(line, batch)] = seen.as_slice() else { panic!("{} batches", seen.len()) };
    assert_eq!(line, "POST /v1/traces Some(\"application/json\")");
    let resource = attributes(&batch["resourceSpans"][0]["resource"]);
    assert_eq!(*resource["service.name"], json!({"stringValue": "fleetwright-test"}));
    assert_eq!(*resource["service.instance.id"], json!({"stringValue": "pod-1"}));

    // They are sent as they end: the innermost first.
    let [list, create, step, pass] = spans(batch).as_slice() else { panic!("{batch:#}") };
    let names = [list, create, step, pass].map(|span| span["name"].as_str().unwrap());
    assert_eq!(names, ["list configmaps", "create configmaps", "step", "pass"]);
    for (child, parent) in [(list, step), (create, step), (step, pass)] {
        assert_eq!(child["parentSpanId"], parent["spanId"]);
        assert_eq!(child["traceId"], pass["traceId"]);
    }
    assert_eq!(pass["parentSpanId"], "");
    assert_eq!(pass["traceId"].as_str().unwrap().len(), 32);
    assert_eq!(pass["spanId"].as_str().unwrap().len(), 16);
    assert_ne!(list["spanId"], create["spanId"]);

    let of_pass = attributes(pass);
    assert_eq!(*of_pass["object"], json!({"stringValue": "fleet/a"}));
    assert_eq!(*of_pass["tries"], json!({"intValue": "3"}));
    let of_list = attributes(list);
    assert_eq!(*of_list["verb"], json!({"stringValue": "list"}));
    assert_eq!(*of_list["resource"], json!({"stringValue": "configmaps"}));
    assert_eq!(*of_list["code"], json!({"stringValue": "200"}));
    assert_eq!((&list["kind"], &pass["kind"]), (&json!(3), &json!(1)));

    assert_eq!((&list["status"]["code"], &create["status"]["code"]), (&Value::Null, &json!(2)));
    assert_eq!(*attributes(create)["code"], json!({"stringValue": "fenced"}));
    assert_eq!(step["status"], json!({"code": 2, "message": "cannot write"}));
    assert_eq!(step["events"][0]["name"], "cannot write");
    assert_eq!(*attributes(&step["events"][0])["reason"], json!({"stringValue": "NotLeading"}));

    let time = |span: &Value, which: &str| span[which].as_str().unwrap().parse::<u128>().unwrap();
    let before = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    assert!(before <= time(pass, "startTimeUnixNano"));
    assert!(time(pass, "startTimeUnixNano") <= time(list, "startTimeUnixNano"));
    assert!(time(list, "endTimeUnixNano") <= time(create, "endTimeUnixNano"));
    assert!(time(create, "endTimeUnixNano") <= time(pass, "endTimeUnixNano"));
}

#[tokio::test]
async fn spans_are_sent_while_the_process_runs_and_sending_makes_no_spans() {
    let (address, seen) = receiver(fine).await;
    let (exporter, _, _guard) = traced(&format!("http://{address}/v1/traces"), 1.0);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(exporter.run(async move {
        let _ = stopped.await;
    }));
    tracing::info_span!(target: "fleetwright_kit", "one").in_scope(|| {});
    tracing::info_span!(target: "elsewhere", "not ours").in_scope(|| {});
    let deadline = Instant::now() + Duration::from_secs(30);
    while seen.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "nothing is sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send(()).unwrap();
    running.await.unwrap();
    let seen = seen.lock().unwrap();
    let names: Vec<_> = seen.iter().flat_map(|(_, batch)| spans(batch)).map(|span| &span["name"]).collect();
    assert_eq!(names, ["one"]);
}

#[tokio::test]
async fn a_share_of_nothing_sends_nothing() {
    let (address, seen) = receiver(fine).await;
    let (exporter, metrics, _guard) = traced(&format!("http://{address}"), 0.0);
    tracing::info_span!(target: "fleetwright_kit", "one").in_scope(|| {
        tracing::info_span!(target: "fleetwright_kit", "two").in_scope(|| {});
    });
    sent(exporter).await;
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(dropped(&metrics), 0);
}

#[tokio::test]
async fn a_missing_collector_does_no_harm() {
    let (exporter, metrics, _guard) = traced("http://127.0.0.1:1", 1.0);
    for _ in 0..10 {
        tracing::info_span!(target: "fleetwright_kit", "one").in_scope(|| {});
    }
    sent(exporter).await;
    assert_eq!(dropped(&metrics), 10);
}

#[tokio::test]
async fn what_no_collector_takes_is_dropped_and_counted() {
    let (exporter, metrics, _guard) = traced("http://127.0.0.1:1", 1.0);
    for _ in 0..5000 {
        tracing::info_span!(target: "fleetwright_kit", "one").in_scope(|| {});
    }
    assert_eq!(dropped(&metrics), 5000 - 4096);
    drop(exporter);
}

#[tokio::test]
async fn what_the_collector_refuses_is_counted() {
    for (answer, count) in [
        ((|_| Response::new(Full::from(r#"{"partialSuccess":{"rejectedSpans":"1"}}"#))) as fn(&_) -> _, 1),
        (|_| Response::builder().status(503).body(Full::from("no")).unwrap(), 2),
    ] {
        let (address, _) = receiver(answer).await;
        let (exporter, metrics, _guard) = traced(&format!("http://{address}"), 1.0);
        for _ in 0..2 {
            tracing::info_span!(target: "fleetwright_kit", "one").in_scope(|| {});
        }
        sent(exporter).await;
        assert_eq!(dropped(&metrics), count);
    }
}

#[test]
fn each_line_names_the_object_and_the_step() {
    let say = || {
        let pass = tracing::info_span!("pass", controller = "readiness", object = "fleet/a").entered();
        tracing::info_span!("step", step = "act")
            .in_scope(|| tracing::warn!(reason = "WriteConflict", "decides again"));
        drop(pass);
    };
    let (log, guard) = logged(Format::Text, "info");
    say();
    drop(guard);
    let text = log.text();
    let (_, line) = text.trim_end().split_once("Z ").unwrap();
    let expected = " WARN pass{controller=\"readiness\" object=\"fleet/a\"}:step{step=\"act\"}: telemetry: decides again reason=\"WriteConflict\"";
    assert_eq!(line, expected);

    let (log, guard) = logged(Format::Json, "info");
    say();
    drop(guard);
    let line: Value = serde_json::from_str(&log.text()).unwrap();
    assert_eq!(
        (&line["level"], &line["message"], &line["reason"]),
        (&json!("WARN"), &json!("decides again"), &json!("WriteConflict"))
    );
    assert_eq!(
        line["spans"],
        json!([{"name": "pass", "controller": "readiness", "object": "fleet/a"}, {"name": "step", "step": "act"}])
    );
}

#[tokio::test]
async fn secrets_are_not_logged_whatever_the_filter_says() {
    fn secret(_: &Request<Incoming>) -> Response<Full<Bytes>> {
        // Cut off: kube cannot read it, and says what it got.
        Response::new(Full::from(r#"{"kind":"Secret","metadata":{"name":"a"},"data":{"password":"aHVudGVyMg==""#))
    }
    async fn read(address: SocketAddr) {
        let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
        config.auth_info.token = Some("t0ken".to_owned().into());
        let client = wrap(connect(config).unwrap(), Fence::open(), Clock::system(), Metrics::new(), "test");
        Api::<Secret>::default_namespaced(client).get("a").await.unwrap_err();
    }
    let (address, _) = receiver(secret).await;
    for filter in ["info", "trace", "trace,kube_client::client=trace"] {
        for format in [Format::Text, Format::Json] {
            let (log, guard) = logged(format, filter);
            read(address).await;
            drop(guard);
            let text = log.text();
            assert!(!text.contains("aHVudGVyMg"), "{text}");
            assert!(!text.contains("t0ken"), "{text}");
        }
    }
    // Without our care it would be there.
    let log = Log::default();
    let plain = tracing_subscriber::fmt().with_writer(log.clone()).with_env_filter("info").finish();
    let guard = tracing::subscriber::set_default(plain);
    read(address).await;
    drop(guard);
    assert!(log.text().contains("aHVudGVyMg"), "kube logs answers no more: the filter can go");
}

#[test]
fn what_cannot_be_read_is_named() {
    let metrics = Metrics::new();
    let filter = Logging { filter: "fleetwright=loud".into(), ..Logging::default() };
    let error = subscriber(&filter, None, &metrics, io::sink).err().unwrap().to_string();
    assert!(error.contains("fleetwright=loud") && error.contains("level"), "{error}");
    for endpoint in ["collector:4318", "grpc://collector:4317", "http://", "", "http://a b"] {
        let traces = Traces::new(endpoint, "s", "i");
        let error = subscriber(&Logging::default(), Some(&traces), &metrics, io::sink).err().unwrap();
        assert!(matches!(error, TelemetryError::Endpoint { .. }), "{error}");
        assert!(error.to_string().contains("http://collector:4318"), "{error}");
    }
    let error = "yaml".parse::<Format>().unwrap_err();
    assert!(["\"yaml\"", "text", "json"].iter().all(|word| error.contains(word)), "{error}");
}
