//! Collects spans when they end.

use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::export::Queue;

/// Maximum number of attributes of a span and of an event, and of events of a span; the rest is dropped.
const MAX_COUNT: usize = 32;
/// Maximum length of an attribute's text, in bytes.
const MAX_LENGTH: usize = 1024;

/// A layer that passes ended spans to the exporter.
pub(super) struct SpanCollector {
    queue: Queue,
    share: f64,
}

/// A span in progress.
struct OpenSpan {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    sent: bool,
    start: SystemTime,
    began: Instant,
    fields: Fields,
    events: Vec<Value>,
}

impl SpanCollector {
    pub(super) fn new(queue: Queue, share: f64) -> Self {
        Self { queue, share }
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for SpanCollector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let above = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<OpenSpan>().map(|open| (open.trace, open.id, open.sent))
        });
        let (trace, parent, sent) = match above {
            Some((trace, parent, sent)) => (trace, Some(parent), sent),
            None => (fastrand::u128(1..), None, fastrand::f64() < self.share),
        };
        let mut fields = Fields::default();
        if sent {
            attributes.record(&mut fields);
        }
        let (start, began) = (SystemTime::now(), Instant::now());
        let id = fastrand::u64(1..);
        span.extensions_mut().insert(OpenSpan { trace, id, parent, sent, start, began, fields, events: Vec::new() });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>()
            && open.sent
        {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<OpenSpan>().filter(|open| open.sent) else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.message.unwrap_or_default();
        if *event.metadata().level() == Level::ERROR {
            open.fields.error.get_or_insert_with(|| message.clone());
        }
        if open.events.len() < MAX_COUNT {
            let time = nanoseconds(SystemTime::now());
            open.events.push(json!({"timeUnixNano": time, "name": message, "attributes": fields.attributes}));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>().filter(|open| open.sent) else { return };
        self.queue.put(open.ended(span.name()));
    }
}

impl OpenSpan {
    /// The OTLP form in JSON: ids in hexadecimal, 64-bit numbers as text.
    fn ended(self, name: &str) -> Value {
        // The time of day may be set during a span.
        let end = self.start + self.began.elapsed();
        let status = match self.fields.error {
            Some(message) => json!({"code": 2, "message": message}),
            None => json!({}),
        };
        json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "parentSpanId": self.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
            "name": self.fields.name.as_deref().unwrap_or(name),
            "kind": self.fields.kind,
            "startTimeUnixNano": nanoseconds(self.start),
            "endTimeUnixNano": nanoseconds(end),
            "attributes": self.fields.attributes,
            "events": self.events,
            "status": status,
        })
    }
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// The fields of a span or an event. Fields with the prefix `otel.` set properties of the span, as in other Rust programs.
struct Fields {
    attributes: Vec<Value>,
    message: Option<String>,
    name: Option<String>,
    kind: u8,
    error: Option<String>,
}

impl Default for Fields {
    fn default() -> Self {
        // Kind 1 is a span within the process (`SPAN_KIND_INTERNAL`).
        Self { attributes: Vec::new(), message: None, name: None, kind: 1, error: None }
    }
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        let attribute = json!({"key": field.name(), "value": value});
        // A field that is recorded twice has its last value.
        if let Some(known) = self.attributes.iter_mut().find(|known| known["key"] == field.name()) {
            *known = attribute;
        } else if self.attributes.len() < MAX_COUNT {
            self.attributes.push(attribute);
        }
    }

    fn text(&mut self, field: &Field, text: &str) {
        let text = cut(text);
        match field.name() {
            "message" => self.message = Some(text.into()),
            "otel.name" => self.name = Some(text.into()),
            "otel.kind" => {
                self.kind = match text {
                    "server" => 2,
                    "client" => 3,
                    "producer" => 4,
                    "consumer" => 5,
                    _ => 1,
                }
            }
            "otel.status_code" => {
                if text.eq_ignore_ascii_case("error") {
                    self.error.get_or_insert_default();
                }
            }
            "otel.status_message" => self.error = Some(text.into()),
            _ => self.add(field, json!({"stringValue": text})),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, json!({"boolValue": value}));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, json!({"intValue": value.to_string()}));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.text(field, &value.to_string()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities.
        if value.is_finite() {
            self.add(field, json!({"doubleValue": value}));
        } else {
            self.text(field, &value.to_string());
        }
    }
}

fn cut(text: &str) -> &str {
    let mut end = MAX_LENGTH.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
