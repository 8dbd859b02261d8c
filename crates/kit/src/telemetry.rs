//! Logs and traces.
//!
//! Logs are lines of text or JSON on standard error. The spans around a line (the pass with its controller and object, the step) are part of it.
//! Traces are the same spans, sent to an OpenTelemetry collector when an endpoint is given; see [`Traces`].
//!
//! Secrets stay out of both: requests are logged by verb, resource and name, never by headers or bodies, and what libraries log of those is
//! left out whatever the filter says.

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

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line, for machines.
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

/// What is logged and how.
#[derive(Clone, Debug)]
pub struct Logging {
    /// How a line looks.
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

/// Where traces go.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The address of an OTLP/HTTP receiver, such as `http://collector:4318`; `/v1/traces` is added unless it is there.
    pub endpoint: String,
    /// Under which name, such as `fleetwright-readiness`.
    pub service: String,
    /// Which of several processes; the pod's name.
    pub instance: String,
    /// Which share of the traces is sent, from 0 to 1. A trace is sent as a whole or not at all.
    pub share: f64,
}

impl Traces {
    /// All traces of that service.
    pub fn new(endpoint: &str, service: &str, instance: &str) -> Self {
        Self { endpoint: endpoint.into(), service: service.into(), instance: instance.into(), share: 1.0 }
    }
}

/// Why nothing is logged.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error(
        "the log filter {filter:?}: {why}; use a level such as info, or target=level pairs such as info,fleetwright_kit=debug"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        why: String,
    },
    /// The endpoint cannot be read.
    #[error("the trace endpoint {endpoint:?}: {why}; use an address such as http://collector:4318")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody did this before.
    #[error("logging is already initialized")]
    Twice,
}

/// Sets up logging for the whole process, and traces if they are asked for: these are sent by the exporter that is returned, while it runs.
///
/// # Errors
/// When the filter or the endpoint cannot be read, or logging is set up already.
pub fn init(logging: &Logging, traces: Option<&Traces>, metrics: &Metrics) -> Result<Option<Exporter>, TelemetryError> {
    let (subscriber, exporter) = subscriber(logging, traces, metrics, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::Twice)?;
    Ok(exporter)
}

/// What [`init`] sets up, with the log going elsewhere.
///
/// # Errors
/// When the filter or the endpoint cannot be read.
pub fn subscriber<W>(
    logging: &Logging,
    traces: Option<&Traces>,
    metrics: &Metrics,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Option<Exporter>), TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // What kube's client says about each failed request is said by who asked, once; see it by naming it in the filter.
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

/// kube's client logs answers that it cannot read, whole, a Secret's as well; the HTTP/2 library logs headers.
fn tells_secrets(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    target == "kube_client::client" || target == "h2" || target.starts_with("h2::")
}

/// Only our spans are sent: those of the HTTP client below would tell of sending, too, and never end.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let level = if metadata.is_span() { Level::DEBUG } else { Level::INFO };
    metadata.target().starts_with("fleetwright") && *metadata.level() <= level
}
