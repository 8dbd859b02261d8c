//! Logs and traces.
//!
//! Logs are lines of text or JSON on standard error. The spans around a line (the pass with its controller and object, the step) are part of it.
//! Traces are the same spans, sent to an OpenTelemetry collector when an endpoint is given; see [`Traces`].
//!
//! Secrets are in neither: requests are logged by verb, resource and name, never by headers or bodies, and log lines of libraries with headers or
//! bodies are dropped whatever the filter is.

use std::io;
use std::str::FromStr;

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use crate::metrics::Metrics;

mod collect;
mod export;

pub use export::Exporter;

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("unknown log format {text:?}; use text or json")),
        }
    }
}

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct Logging {
    /// Format of a line.
    pub format: Format,
    /// A level such as `info`, or `target=level` pairs, as in `RUST_LOG`.
    pub filter: String,
    /// Whether text has colours.
    pub color: bool,
}

impl Default for Logging {
    fn default() -> Self {
        Self { format: Format::Text, filter: "info".into(), color: false }
    }
}

/// Settings of traces.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The address of an OTLP/HTTP receiver, such as `http://collector:4318`; `/v1/traces` is added unless it is there.
    pub endpoint: String,
    /// Service name, such as `fleetwright-readiness`.
    pub service: String,
    /// Service instance: the name of the pod.
    pub instance: String,
    /// Share of the traces that is sent, from 0 to 1. A trace is sent completely or not at all.
    pub share: f64,
}

impl Traces {
    /// Settings that send all traces of that service.
    pub fn new(endpoint: &str, service: &str, instance: &str) -> Self {
        Self { endpoint: endpoint.into(), service: service.into(), instance: instance.into(), share: 1.0 }
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be parsed.
    #[error(
        "the log filter {filter:?}: {why}; use a level such as info, or target=level pairs such as info,fleetwright_kit=debug"
    )]
    Filter {
        /// The given filter.
        filter: String,
        /// Why it is invalid.
        why: String,
    },
    /// The endpoint cannot be parsed.
    #[error("the trace endpoint {endpoint:?}: {why}; use an address such as http://collector:4318")]
    Endpoint {
        /// The given endpoint.
        endpoint: String,
        /// Why it is invalid.
        why: String,
    },
    /// Logging is already set up.
    #[error("logging is already initialized")]
    Twice,
}

/// Sets up logging for the whole process, and traces if they are configured: the returned exporter sends them while it runs.
///
/// # Errors
/// The filter or the endpoint cannot be parsed, or logging is already set up.
pub fn init(logging: &Logging, traces: Option<&Traces>, metrics: &Metrics) -> Result<Option<Exporter>, TelemetryError> {
    let (subscriber, exporter) = subscriber(logging, traces, metrics, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::Twice)?;
    Ok(exporter)
}

/// Like [`init`], with the log going to another writer.
///
/// # Errors
/// The filter or the endpoint cannot be parsed.
pub fn subscriber<W>(
    logging: &Logging,
    traces: Option<&Traces>,
    metrics: &Metrics,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Option<Exporter>), TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // Callers log a failed request once; the messages of kube's client about it appear only if the filter names them.
    let directives = format!("kube_client::client::builder=off,{}", logging.filter);
    let filter = EnvFilter::try_new(&directives)
        .map_err(|error| TelemetryError::Filter { filter: logging.filter.clone(), why: error.to_string() })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(logging.color);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match logging.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(true).boxed(),
    };
    let lines = lines.with_filter(filter.and(filter_fn(|metadata| !tells_secrets(metadata))));
    let (collect, exporter) = match traces {
        None => (None, None),
        Some(traces) => {
            let (exporter, queue) = Exporter::new(traces, metrics.clone())?;
            let ours = filter_fn(is_ours).with_max_level_hint(LevelFilter::DEBUG);
            (Some(collect::SpanCollector::new(queue, traces.share).with_filter(ours)), Some(exporter))
        }
    };
    Ok((Registry::default().with(lines).with(collect), exporter))
}

/// kube's client logs unparsable answers in full, also those of a Secret; the HTTP/2 library logs headers.
fn tells_secrets(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    target == "kube_client::client" || target == "h2" || target.starts_with("h2::")
}

/// Only our own spans are sent: spans of the HTTP client in the exporter would cause further requests without end.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let level = if metadata.is_span() { Level::DEBUG } else { Level::INFO };
    metadata.target().starts_with("fleetwright") && *metadata.level() <= level
}
