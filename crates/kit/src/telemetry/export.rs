//! Sends spans to a collector: OTLP over HTTP, in JSON.
//!
//! The exporter never blocks the program. Spans that do not fit into the queue, or that the collector refuses, are dropped and counted; nothing is
//! sent twice.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Uri, header};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{TelemetryError, Traces};
use crate::metrics::Metrics;

/// Capacity of the queue of spans.
const MAX_WAITING: usize = 4096;
/// Spans per request.
const MAX_TOGETHER: usize = 512;
/// Time for which spans are gathered before a request.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of a request.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Timeout for the last spans when the process stops.
const MAX_END: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are read of an answer.
const MAX_ANSWER: usize = 64 * 1024;

/// The queue of ended spans.
#[derive(Clone)]
pub(super) struct Queue {
    sender: mpsc::Sender<Value>,
    metrics: Metrics,
}

impl Queue {
    pub(super) fn put(&self, span: Value) {
        if self.sender.try_send(span).is_err() {
            self.metrics.spans_dropped(1);
        }
    }
}

/// Sends spans while it runs.
pub struct Exporter {
    endpoint: Uri,
    resource: Value,
    spans: mpsc::Receiver<Value>,
    metrics: Metrics,
}

impl Exporter {
    pub(super) fn new(traces: &Traces, metrics: Metrics) -> Result<(Self, Queue), TelemetryError> {
        let wrong = |why: String| TelemetryError::Endpoint { endpoint: traces.endpoint.clone(), why };
        let base = traces.endpoint.trim_end_matches('/');
        let base = base.strip_suffix("/v1/traces").unwrap_or(base);
        let endpoint: Uri = base.parse().map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
        if !matches!(endpoint.scheme_str(), Some("http" | "https")) || endpoint.host().is_none_or(str::is_empty) {
            return Err(wrong("not an http or https address".into()));
        }
        let attributes = [
            ("service.name", traces.service.as_str()),
            ("service.instance.id", &traces.instance),
            ("service.version", env!("CARGO_PKG_VERSION")),
        ];
        let attributes = attributes.map(|(key, value)| json!({"key": key, "value": {"stringValue": value}}));
        let (sender, spans) = mpsc::channel(MAX_WAITING);
        let queue = Queue { sender, metrics: metrics.clone() };
        Ok((Self { endpoint, resource: json!({"attributes": attributes}), spans, metrics }, queue))
    }

    /// Sends spans until `stop` is ready, and then those that are left.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => return tracing::warn!(endpoint = %self.endpoint, %error, "cannot send traces"),
        };
        let mut stop = pin!(stop);
        let mut reachable = true;
        loop {
            let mut batch = Vec::new();
            let stopping = tokio::select! {
                biased;
                () = &mut stop => true,
                () = self.gather(&mut batch) => false,
            };
            if stopping {
                // Gathered spans are lost if the future is dropped, unless they are stored here.
                let last = async {
                    while !batch.is_empty() || self.spans.try_recv().map(|span| batch.push(span)).is_ok() {
                        while batch.len() < MAX_TOGETHER
                            && let Ok(span) = self.spans.try_recv()
                        {
                            batch.push(span);
                        }
                        let _ = self.send(&client, std::mem::take(&mut batch)).await;
                    }
                };
                let _ = tokio::time::timeout(MAX_END, last).await;
                return;
            }
            match self.send(&client, batch).await {
                Ok(()) if reachable => {}
                Ok(()) => {
                    reachable = true;
                    tracing::info!(endpoint = %self.endpoint, "traces are sent again");
                }
                Err(error) if reachable => {
                    reachable = false;
                    tracing::warn!(endpoint = %self.endpoint, error, "cannot send traces; dropping them until the collector can be reached");
                }
                Err(_) => {}
            }
        }
    }

    /// kube's client, because it is a dependency anyway: HTTP and HTTPS with the system's authorities, without anything of Kubernetes.
    fn client(&self) -> Result<kube::Client, kube::Error> {
        let mut config = kube::Config::new(self.endpoint.clone());
        config.connect_timeout = Some(MAX_WAIT / 2);
        config.default_retry = false;
        kube::Client::try_from(config)
    }

    /// Waits for a span, and then a moment for more.
    async fn gather(&mut self, batch: &mut Vec<Value>) {
        if self.spans.recv_many(batch, MAX_TOGETHER).await == 0 {
            // All senders are dropped.
            return std::future::pending().await;
        }
        let mut enough = pin!(tokio::time::sleep(GATHER));
        while batch.len() < MAX_TOGETHER {
            let left = MAX_TOGETHER - batch.len();
            tokio::select! {
                () = &mut enough => return,
                more = self.spans.recv_many(batch, left) => if more == 0 { return },
            }
        }
    }

    async fn send(&self, client: &kube::Client, batch: Vec<Value>) -> Result<(), String> {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let scope = json!({"name": "fleetwright", "version": env!("CARGO_PKG_VERSION")});
        let body =
            json!({"resourceSpans": [{"resource": self.resource, "scopeSpans": [{"scope": scope, "spans": batch}]}]});
        let post = async {
            let request = Request::post("/v1/traces")
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::USER_AGENT, concat!("fleetwright/", env!("CARGO_PKG_VERSION")))
                .body(Body::from(body.to_string().into_bytes()))
                .map_err(|error| error.to_string())?;
            let answer = client.send(request).await.map_err(|error| error.to_string())?;
            let code = answer.status();
            if !code.is_success() {
                return Err(format!("the collector responded with {code}"));
            }
            let said = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            Ok(said.map(|said| said.to_bytes()).unwrap_or_default())
        };
        let sent = tokio::time::timeout(MAX_WAIT, post).await;
        match sent.unwrap_or_else(|_| Err(format!("timed out after {MAX_WAIT:?}"))) {
            Ok(said) => {
                let said: Value = serde_json::from_slice(&said).unwrap_or_default();
                let rejected = &said["partialSuccess"]["rejectedSpans"];
                let rejected = rejected.as_str().and_then(|text| text.parse().ok()).or(rejected.as_u64());
                self.metrics.spans_dropped(rejected.unwrap_or_default().min(count));
                Ok(())
            }
            Err(error) => {
                self.metrics.spans_dropped(count);
                Err(error)
            }
        }
    }
}
