//! The pages of a process, as the kubelet and Prometheus see them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use fleetwright_kit::Clock;
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::serve::{Endpoint, Health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Served {
    address: SocketAddr,
    health: Health,
    metrics: Metrics,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn served() -> Served {
    let endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = endpoint.address();
    let (health, metrics) = (Health::new(Clock::system()), Metrics::new());
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(endpoint.serve(health.clone(), metrics.clone(), async move {
        let _ = stopped.await;
    }));
    Served { address, health, metrics, stop, task }
}

/// What comes back for these bytes, until the connection is closed.
async fn talk(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let answer = talk(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn probes_say_what_is_missing() {
    let served = served().await;
    assert_eq!(get(served.address, "/healthz").await.0, 200);
    let (code, _, body) = get(served.address, "/readyz").await;
    assert!(code == 503 && body.contains("not started"), "{code} {body}");
    let _running = served.health.running();
    served.health.cache("Machine", false);
    let (code, _, body) = get(served.address, "/readyz").await;
    assert!(code == 503 && body.lines().count() == 1 && body.contains("Machine"), "{code} {body}");
    served.health.cache("Machine", true);
    let (code, _, body) = get(served.address, "/readyz").await;
    assert!(code == 200 && body.contains("leading"), "{code} {body}");
}

#[tokio::test]
async fn nothing_else_is_served() {
    let served = served().await;
    assert_eq!(get(served.address, "/").await.0, 404);
    assert_eq!(get(served.address, "/debug/pprof").await.0, 404);
    let answer =
        talk(served.address, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test]
async fn a_head_without_end_is_refused_and_does_no_harm() {
    let served = served().await;
    let mut request = String::from("GET /metrics HTTP/1.1\r\nhost: x\r\n");
    while request.len() < 64 * 1024 {
        request.push_str("x-more: and more, and more, and more, and more\r\n");
    }
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // The other side may close before it read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    assert_eq!(get(served.address, "/healthz").await.0, 200);
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let served = served().await;
    let error = Endpoint::bind(served.address).await.unwrap_err();
    assert!(error.to_string().contains(&format!("listen on {}", served.address)), "{error}");
}

#[tokio::test]
async fn it_stops_when_asked_although_a_client_stays() {
    let served = served().await;
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut byte = [0];
    idle.read_exact(&mut byte).await.unwrap();
    served.stop.send(()).unwrap();
    served.task.await.unwrap();
}

#[tokio::test]
async fn what_prometheus_reads_is_well_formed() {
    let served = served().await;
    let metrics = &served.metrics;
    for verb in ["get", "patch"] {
        for code in ["200", "409", "timeout"] {
            metrics.call(verb, "machines.fleetwright.io/status", code, Duration::from_millis(7));
        }
    }
    metrics.call("get", "odd\"name\\with\nlines", "200", Duration::from_secs(100));
    metrics.pass("readiness", "done", Duration::from_micros(10));
    metrics.queue_depth("readiness", "low", 3);
    metrics.queue_wait("readiness", Duration::from_millis(1));
    metrics.trouble("readiness", "act", "WriteConflict");
    metrics.cache_objects("Machine", 10_000);
    metrics.cache_synced("Machine", true);
    metrics.watch_restart("Machine", "expired");
    metrics.leading(true);
    metrics.event("Closed", "Warning");
    metrics.operations("Running", "Reboot", 2);
    metrics.spans_dropped(5);
    let (code, head, body) = get(served.address, "/metrics").await;
    assert_eq!(code, 200);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    let families = OpenMetrics::parse(&body).unwrap_or_else(|error| panic!("{error}\n{body}"));
    let names: Vec<&str> = families.keys().map(String::as_str).collect();
    let expected = [
        "fleetwright_api_call_duration_seconds",
        "fleetwright_api_calls",
        "fleetwright_cache_objects",
        "fleetwright_cache_synced",
        "fleetwright_events",
        "fleetwright_leader",
        "fleetwright_lease_transitions",
        "fleetwright_operations",
        "fleetwright_queue_depth",
        "fleetwright_queue_wait_seconds",
        "fleetwright_reconcile_duration_seconds",
        "fleetwright_reconcile_errors",
        "fleetwright_reconciles",
        "fleetwright_trace_spans_dropped",
        "fleetwright_watch_restarts",
        "process_cpu_seconds",
        "process_open_fds",
        "process_resident_memory_bytes",
    ];
    assert_eq!(names, expected);

    // Each has a row in the reference, under the name and with the labels that a query needs.
    let reference = include_str!("../../../../docs/reference/metrics.md");
    for (family, samples) in &families {
        let name = if samples[0].0.ends_with("_total") { &samples[0].0 } else { family };
        let row = reference.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
        let row = row.unwrap_or_else(|| panic!("docs/reference/metrics.md does not have {name}"));
        for label in samples[0].1.keys().filter(|label| *label != "le") {
            assert!(row.contains(&format!("`{label}`")), "docs/reference/metrics.md: {name} has a label {label}");
        }
    }
}

#[test]
fn the_checker_of_the_page_finds_what_is_wrong() {
    let good = "# HELP a_x Text.\n# TYPE a_x counter\na_x_total{l=\"v\"} 1\n# EOF\n";
    OpenMetrics::parse(good).unwrap();
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n\n"),
        ("counter", "contour"),
        ("a_x_total{", "a_x{"),
        ("} 1\n", "} 1\na_x_total{l=\"v\"} 2\n"),
        ("} 1\n", "} one\n"),
        ("} 1\n", "} -1\n"),
        ("{l=\"v\"}", "{l=\"v}"),
        ("{l=\"v\"}", "{l=\"v\",l=\"w\"}"),
        ("{l=\"v\"}", "{0=\"v\"}"),
        ("# TYPE a_x counter\n", ""),
        ("# EOF\n", "# TYPE a_x counter\n# EOF\n"),
    ] {
        let bad = good.replace(from, to);
        assert!(OpenMetrics::parse(&bad).is_err(), "taken for good:\n{bad}");
    }
    let histogram =
        "# TYPE h histogram\nh_sum 3.0\nh_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n# EOF\n";
    OpenMetrics::parse(histogram).unwrap();
    for (from, to) in [("count 2", "count 3"), ("\"1.0\"} 1", "\"1.0\"} 3"), ("h_bucket{le=\"+Inf\"} 2\n", "")] {
        let bad = histogram.replace(from, to);
        assert!(OpenMetrics::parse(&bad).is_err(), "taken for good:\n{bad}");
    }
}

/// OpenMetrics' text format, read strictly: <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
struct OpenMetrics;

type Sample = (String, BTreeMap<String, String>, f64);

impl OpenMetrics {
    /// The samples by family.
    fn parse(page: &str) -> Result<BTreeMap<String, Vec<Sample>>, String> {
        let body = page.strip_suffix("# EOF\n").ok_or("the page does not end with # EOF and a newline")?;
        let mut families: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        let mut current: Option<String> = None;
        let mut series = BTreeSet::new();
        for line in body.lines() {
            let wrong = |what: &str| format!("{what}: {line}");
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let (keyword, name) = (words.next().unwrap_or_default(), words.next().ok_or(wrong("no name"))?);
                let rest = words.next().unwrap_or_default();
                if !word(name, true) {
                    return Err(wrong("not a metric's name"));
                }
                if current.as_deref() != Some(name) {
                    if families.insert(name.into(), Vec::new()).is_some() {
                        return Err(wrong("the family began before"));
                    }
                    current = Some(name.into());
                } else if !families[name].is_empty() {
                    return Err(wrong("after samples"));
                }
                match keyword {
                    "HELP" => {}
                    "UNIT" if name.ends_with(rest) => {}
                    "TYPE" if matches!(rest, "counter" | "gauge" | "histogram") => {
                        if kinds.insert(name.to_owned(), rest.to_owned()).is_some() {
                            return Err(wrong("a second type"));
                        }
                    }
                    _ => return Err(wrong("not understood")),
                }
                continue;
            }
            let family = current.clone().ok_or(wrong("a sample without a family"))?;
            let kind = kinds.get(&family).ok_or(wrong("a sample without a type"))?;
            let (name, labels, value) = sample(line).ok_or(wrong("not a sample"))?;
            let suffix = name.strip_prefix(family.as_str()).ok_or(wrong("of another family"))?;
            let allowed: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                _ => &["_sum", "_count", "_bucket"],
            };
            if !allowed.contains(&suffix) || (suffix == "_bucket") != labels.contains_key("le") {
                return Err(wrong("not a sample of its type"));
            }
            if kind != "gauge" && (value < 0.0 || value.is_nan()) {
                return Err(wrong("less than nothing"));
            }
            if !series.insert((name.clone(), labels.clone())) {
                return Err(wrong("twice"));
            }
            families.get_mut(&family).ok_or(wrong("no family"))?.push((name, labels, value));
        }
        for (family, samples) in families.iter().filter(|(name, _)| kinds.get(*name).is_some_and(|k| k == "histogram"))
        {
            histogram(family, samples)?;
        }
        Ok(families)
    }
}

/// Buckets count up, and the last one has everything.
fn histogram(family: &str, samples: &[Sample]) -> Result<(), String> {
    let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for (name, labels, value) in samples {
        let mut labels = labels.clone();
        if let Some(le) = labels.remove("le") {
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| format!("{name}: le={le}"))? };
            buckets.entry(labels).or_default().push((le, *value));
        }
    }
    for (name, labels, count) in samples.iter().filter(|(name, ..)| *name == format!("{family}_count")) {
        let buckets = buckets.get(labels).ok_or(format!("{name}: no buckets"))?;
        if !buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
            return Err(format!("{name}: buckets go down"));
        }
        if buckets.last() != Some(&(f64::INFINITY, *count)) {
            return Err(format!("{name}: the last bucket does not have all"));
        }
    }
    Ok(())
}

fn word(text: &str, colon: bool) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || colon && c == ':')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || colon && c == ':')
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, quoted) = rest.split_once("=\"")?;
            let mut value = String::new();
            let mut chars = quoted.char_indices();
            let end = loop {
                match chars.next()? {
                    (end, '"') => break end,
                    (_, '\\') => match chars.next()?.1 {
                        'n' => value.push('\n'),
                        c @ ('"' | '\\') => value.push(c),
                        _ => return None,
                    },
                    (_, c) => value.push(c),
                }
            };
            if !word(label, false) || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = &quoted[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break rest = rest.strip_prefix('}')?,
            }
        }
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    word(name, true).then(|| (name.to_owned(), labels, value))
}
