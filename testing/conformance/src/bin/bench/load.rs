//! The workloads, the same for both servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use fleetwright_conformance::ServerKind;
use fleetwright_lab::measure::MeasuredServer;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::idle;
use crate::report::{Report, Unit};

/// The sizes of the workloads.
pub(crate) struct Sizes {
    creates: usize,
    updates: usize,
    applies: usize,
    gets: usize,
    pods: usize,
    watchers: usize,
    paced_writes: usize,
    flood_writes: usize,
    list: usize,
    objects: usize,
    pub(crate) idle: usize,
}

impl Sizes {
    pub(crate) const FULL: Self = Self {
        creates: 5_000,
        updates: 5_000,
        applies: 2_000,
        gets: 20_000,
        pods: 2_000,
        watchers: 200,
        paced_writes: 200,
        flood_writes: 500,
        list: 20_000,
        objects: 50_000,
        idle: 1_000,
    };
    pub(crate) const QUICK: Self = Self {
        creates: 1_000,
        updates: 1_000,
        applies: 500,
        gets: 2_000,
        pods: 300,
        watchers: 50,
        paced_writes: 50,
        flood_writes: 100,
        list: 5_000,
        objects: 10_000,
        idle: 100,
    };
}

/// Requests in flight at a time.
const WORKERS: usize = 16;
/// The time limit of a workload; the work done by then counts.
const LIMIT: Duration = Duration::from_secs(60);
/// The wait for memory to settle before it is read.
const SETTLE: Duration = Duration::from_secs(3);
const PACE: Duration = Duration::from_millis(10);
const LISTS: usize = 5;
const PAGE: usize = 500;
const NAMESPACE: &str = "bench";
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";
const WATCHED: &str = "/api/v1/namespaces/bench-watch/configmaps";

/// Runs all workloads on one server.
pub(crate) async fn measure(report: &mut Report, kind: ServerKind, sizes: &Sizes) -> Result<()> {
    let server = MeasuredServer::start(kind).await?;
    let client = server.client();
    report.add("time to ready", Unit::Millis, millis(server.ready()));
    tokio::time::sleep(SETTLE).await;
    if kind == ServerKind::Real {
        report.add(idle::memory_row(sizes.idle), Unit::KiB, server.memory()?.1 as f64 / 1024.0);
    }
    memory(report, &server, "memory, idle")?;
    prepare(&client).await?;

    let mut bench = Bench { report, server: &server, client: &client };
    bench.storm("creates (ConfigMap)", sizes.creates, |i| post(CONFIG_MAPS, &config_map(i, 0))).await?;
    bench.storm("gets", sizes.gets, on_one_of(sizes.creates, |i| get(&path_of(i)))).await?;
    let update = on_one_of(sizes.creates, |i| send(Method::PUT, &path_of(i), "application/json", &config_map(i, 1)));
    bench.storm("updates", sizes.updates, update).await?;
    let apply = on_one_of(sizes.creates, |i| {
        let path = format!("{}?fieldManager=bench&force=true", path_of(i));
        let owned = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name_of(i)}, "data": {"applied": "yes"},
        });
        send(Method::PATCH, &path, "application/apply-patch+yaml", &owned)
    });
    bench.storm("server-side applies", sizes.applies, apply).await?;
    bench.storm("creates (Pod)", sizes.pods, |i| post("/api/v1/namespaces/bench/pods", &pod(i))).await?;
    bench.fan_out(sizes).await?;
    fill(&client, sizes.creates, sizes.list).await?;
    bench.lists(sizes.list).await?;
    fill(&client, sizes.list, sizes.objects).await?;
    tokio::time::sleep(SETTLE).await;
    memory(report, &server, &format!("memory, {} objects", sizes.objects))
}

/// The API server alone and, where it has a store beside it, with that.
fn memory(report: &mut Report, server: &MeasuredServer, name: &str) -> Result<()> {
    let (api_server, all) = server.memory()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    report.add(name, Unit::MiB, mib(all));
    report.add(format!("{name}, without etcd"), Unit::MiB, mib(api_server));
    Ok(())
}

struct Bench<'a> {
    report: &'a mut Report,
    server: &'a MeasuredServer,
    client: &'a Client,
}

impl Bench<'_> {
    /// Concurrent requests: throughput, latency, and the cost for the server.
    async fn storm(
        &mut self,
        name: &str,
        count: usize,
        make: impl Fn(usize) -> Result<Request<Vec<u8>>> + Send + Sync + 'static,
    ) -> Result<()> {
        let (before, started) = (self.server.usage()?, Instant::now());
        let mut times = storm(self.client, 0..count, make).await.with_context(|| name.to_owned())?;
        let took = started.elapsed();
        let cpu = self.server.cpu_since(before)?;
        ensure!(!times.is_empty(), "{name}: nothing was done");
        let done = times.len() as f64;
        self.report.add(name, Unit::PerSecond, done / took.as_secs_f64());
        times.sort();
        self.report.add(format!("{name}, median"), Unit::Millis, millis(percentile(&times, 50)));
        self.report.add(format!("{name}, 99 of 100"), Unit::Millis, millis(percentile(&times, 99)));
        self.report.add(format!("{name}, each"), Unit::CpuMicros, cpu.as_secs_f64() * 1e6 / done);
        Ok(())
    }

    /// One writer, many watchers: first at a moderate pace, then as fast as possible.
    async fn fan_out(&mut self, sizes: &Sizes) -> Result<()> {
        let watchers = sizes.watchers;
        call(self.client, post(WATCHED, &config_map(0, 0))?).await?;
        let list: Value = serde_json::from_slice(&call(self.client, get(&format!("{WATCHED}?limit=1"))?).await?)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a list without a version")?;
        let path = format!("{WATCHED}?watch=1&timeoutSeconds=300&resourceVersion={version}");
        let mut watches = Vec::new();
        for _ in 0..watchers {
            let answer = self.client.send(get(&path)?.map(Body::from)).await?;
            ensure!(answer.status() == StatusCode::OK, "a watch was answered with {}", answer.status());
            watches.push(answer.into_body());
        }

        let paced = self.follow(&mut watches, sizes.paced_writes, PACE).await?;
        let mut latencies = paced.latencies;
        latencies.sort();
        let name = format!("one writer, {watchers} watchers: write to event");
        self.report.add(format!("{name}, median"), Unit::Millis, millis(percentile(&latencies, 50)));
        self.report.add(format!("{name}, 99 of 100"), Unit::Millis, millis(percentile(&latencies, 99)));

        let before = self.server.usage()?;
        let flood = self.follow(&mut watches, sizes.flood_writes, Duration::ZERO).await?;
        let events = (sizes.flood_writes * watchers) as f64;
        let cpu = self.server.cpu_since(before)?;
        self.report.add(
            format!("one writer, {watchers} watchers: events"),
            Unit::PerSecond,
            events / flood.took.as_secs_f64(),
        );
        self.report.add(
            format!("one writer, {watchers} watchers: an event"),
            Unit::CpuMicros,
            cpu.as_secs_f64() * 1e6 / events,
        );
        Ok(())
    }

    /// Writes and waits until every watcher has seen every write.
    async fn follow(&self, watches: &mut Vec<Body>, writes: usize, pace: Duration) -> Result<WatchedEvents> {
        let started = Instant::now();
        let mut readers = JoinSet::new();
        for mut watch in watches.drain(..) {
            readers.spawn(async move {
                let mut seen = Vec::with_capacity(writes);
                while seen.len() < writes {
                    let frame = watch.frame().await.context("a watch ended")??;
                    let Ok(data) = frame.into_data() else { continue };
                    let now = started.elapsed();
                    // One line is one event, in the order of the writes.
                    seen.extend(data.iter().filter(|byte| **byte == b'\n').map(|_| now));
                }
                anyhow::Ok((watch, seen))
            });
        }
        let mut sent = Vec::with_capacity(writes);
        for turn in 0..writes {
            sent.push(started.elapsed());
            let object = config_map(0, turn + 1 + started.elapsed().as_nanos() as usize);
            call(self.client, send(Method::PUT, &format!("{WATCHED}/{}", name_of(0)), "application/json", &object)?)
                .await?;
            if !pace.is_zero() {
                tokio::time::sleep(pace).await;
            }
        }
        let mut followed = WatchedEvents { took: Duration::ZERO, latencies: Vec::new() };
        let all = async {
            while let Some(reader) = readers.join_next().await {
                let (watch, seen) = reader??;
                ensure!(seen.len() == writes, "a watch had {} events for {writes} writes", seen.len());
                followed.latencies.extend(seen.iter().zip(&sent).map(|(seen, sent)| seen.saturating_sub(*sent)));
                watches.push(watch);
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT, all).await.context("watchers did not see all writes in time")??;
        followed.took = started.elapsed();
        Ok(followed)
    }

    /// Lists of everything: in one answer, and in pages.
    async fn lists(&mut self, count: usize) -> Result<()> {
        let before = self.server.usage()?;
        let mut times = Vec::new();
        for _ in 0..LISTS {
            let started = Instant::now();
            let answer = call(self.client, get(CONFIG_MAPS)?).await?;
            times.push(started.elapsed());
            ensure!(answer.len() > count * 1000, "a list of {count} has only {} bytes", answer.len());
        }
        times.sort();
        let cpu = self.server.cpu_since(before)?;
        self.report.add(format!("list of {count}"), Unit::Millis, millis(percentile(&times, 50)));
        self.report.add(format!("list of {count}, each"), Unit::CpuMicros, cpu.as_secs_f64() * 1e6 / LISTS as f64);

        let started = Instant::now();
        let (mut token, mut pages) = (String::new(), 0);
        while pages == 0 || !token.is_empty() {
            let path = format!("{CONFIG_MAPS}?limit={PAGE}&continue={token}");
            let answer = call(self.client, get(&path)?).await?;
            token = continue_token(&answer)?;
            pages += 1;
        }
        ensure!(pages >= count / PAGE, "a list of {count} came in {pages} pages");
        self.report.add(format!("list of {count} in pages of {PAGE}"), Unit::Millis, millis(started.elapsed()));
        Ok(())
    }
}

struct WatchedEvents {
    took: Duration,
    latencies: Vec<Duration>,
}

/// The continue token, read from the head of the list: parsing the items would measure the client.
fn continue_token(list: &[u8]) -> Result<String> {
    let head = String::from_utf8_lossy(list.get(..4096).unwrap_or(list)).into_owned();
    let metadata = head.split("\"items\"").next().unwrap_or_default();
    let Some((_, rest)) = metadata.split_once("\"continue\":\"") else { return Ok(String::new()) };
    let token = rest.split('"').next().context("a token without an end")?;
    Ok(token.replace('+', "%2B").replace('=', "%3D"))
}

/// The targets of a second storm of requests.
fn on_one_of(
    count: usize,
    make: impl Fn(usize) -> Result<Request<Vec<u8>>> + Send + Sync + 'static,
) -> impl Fn(usize) -> Result<Request<Vec<u8>>> + Send + Sync + 'static {
    // A stride that is prime to the count visits all objects without following their order.
    move |i| make(i * 7919 % count)
}

async fn prepare(client: &Client) -> Result<()> {
    for name in [NAMESPACE, "bench-watch"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        call(client, post("/api/v1/namespaces", &namespace)?).await?;
    }
    // Pods need the account, and no controller creates it for the real server here. The embedded one may have been quicker.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let request = post(&format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), &account)?;
    let answer = client.send(request.map(Body::from)).await?;
    ensure!(matches!(answer.status().as_u16(), 201 | 409), "the service account: {}", answer.status());
    Ok(())
}

/// Creates objects from one number up to another.
async fn fill(client: &Client, from: usize, to: usize) -> Result<()> {
    eprintln!("bench:          filling up to {to} objects");
    let mut at = from;
    let started = Instant::now();
    while at < to {
        ensure!(started.elapsed() < 3 * LIMIT, "only {at} of {to} objects were created in time");
        at += storm(client, at..to, |i| post(CONFIG_MAPS, &config_map(i, 0))).await?.len();
    }
    Ok(())
}

/// Sends requests with limited concurrency, and returns the latency of each.
async fn storm(
    client: &Client,
    numbers: std::ops::Range<usize>,
    make: impl Fn(usize) -> Result<Request<Vec<u8>>> + Send + Sync + 'static,
) -> Result<Vec<Duration>> {
    let (next, make) = (Arc::new(AtomicUsize::new(numbers.start)), Arc::new(make));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, next, make, end) = (client.clone(), next.clone(), make.clone(), numbers.end);
        workers.spawn(async move {
            let mut times = Vec::new();
            while started.elapsed() < LIMIT {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                let request = make(number)?;
                let sent = Instant::now();
                call(&client, request).await?;
                times.push(sent.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(worker) = workers.join_next().await {
        times.extend(worker??);
    }
    Ok(times)
}

/// Sends a request and reads the answer to its end, without looking into it.
pub(crate) async fn call(client: &Client, request: Request<Vec<u8>>) -> Result<Bytes> {
    let what = format!("{} {}", request.method(), request.uri());
    let answer = client.send(request.map(Body::from)).await.with_context(|| what.clone())?;
    let status = answer.status();
    let body = answer.into_body().collect().await.with_context(|| what.clone())?.to_bytes();
    if !status.is_success() {
        bail!("{what}: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

pub(crate) fn get(path: &str) -> Result<Request<Vec<u8>>> {
    Ok(Request::get(path).header("accept", "application/json").body(Vec::new())?)
}

pub(crate) fn post(path: &str, object: &Value) -> Result<Request<Vec<u8>>> {
    send(Method::POST, path, "application/json", object)
}

fn send(method: Method, path: &str, content: &str, object: &Value) -> Result<Request<Vec<u8>>> {
    let request = Request::builder().method(method).uri(path).header("content-type", content);
    Ok(request.header("accept", "application/json").body(serde_json::to_vec(object)?)?)
}

pub(crate) fn name_of(number: usize) -> String {
    format!("object-{number:06}")
}

fn path_of(number: usize) -> String {
    format!("{CONFIG_MAPS}/{}", name_of(number))
}

/// An object of about one KiB.
pub(crate) fn config_map(number: usize, turn: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name_of(number), "labels": {"app": "bench", "shard": (number % 10).to_string()}},
        "data": {"turn": turn.to_string(), "payload": "0123456789abcdef".repeat(56)},
    })
}

/// A pod as a Deployment's are.
fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number:06}"), "labels": {"app": "bench", "pod-template-hash": "5d4f8c7b9"}},
        "spec": {
            "containers": [{
                "name": "web", "image": "registry.example/web:1.2.3", "args": ["--port=8080"],
                "ports": [{"name": "http", "containerPort": 8080}],
                "env": [{"name": "MODE", "value": "bench"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        },
    })
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Of times in order.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_is_found_in_the_head_of_a_list() {
        let list = br#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"1","continue":"a+b="},"items":[{"continue":"x"}]}"#;
        assert_eq!(continue_token(list).unwrap(), "a%2Bb%3D");
        assert_eq!(continue_token(br#"{"metadata":{},"items":[{"continue":"x"}]}"#).unwrap(), "");
    }

    #[test]
    fn the_slowest_of_a_hundred_is_the_last_percent() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 99), Duration::from_millis(100));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
