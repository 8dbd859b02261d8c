//! The metrics of a process.
//!
//! Labels are bounded: controllers, steps and reasons are constants of the code, resources and kinds are those that an operator
//! uses (at most [`MAX_NAMES`] of each; further ones share the label `other`). No metric has a label per object.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

mod process;

/// Maximum number of resources, and of kinds, with a label of their own.
pub const MAX_NAMES: usize = 200;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Buckets from half a millisecond to a minute, for calls, passes and waits.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

type Labels<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// All metrics of one process; cheap to clone, clones share the counters.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Mutex<Registry>,
    resources: Names,
    kinds: Names,
    calls: Counters<3>,
    call_seconds: Histograms<2>,
    passes: Counters<2>,
    pass_seconds: Histograms<1>,
    queue_depth: Gauges<2>,
    queue_wait: Histograms<1>,
    troubles: Counters<3>,
    cache_objects: Gauges<1>,
    cache_synced: Gauges<1>,
    watch_restarts: Counters<2>,
    leader: Gauge,
    lease_transitions: Counter,
    events: Counters<2>,
    operations: Gauges<2>,
    spans_dropped: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Metrics without values.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process));
        let r = &mut registry;
        let inner = Inner {
            calls: add(r, "api_calls", "Calls to the API server; the code is the HTTP status or why there is none"),
            call_seconds: add_seconds(r, "api_call_duration_seconds", "Time until the API server started to respond"),
            passes: add(r, "reconciles", "Reconciles of objects by controllers"),
            pass_seconds: add_seconds(r, "reconcile_duration_seconds", "Duration of a reconcile"),
            queue_depth: add(r, "queue_depth", "Objects waiting to be reconciled"),
            queue_wait: add_seconds(r, "queue_wait_seconds", "Time that an object waited to be reconciled"),
            troubles: add(r, "reconcile_errors", "Reconciles that ended with an error"),
            cache_objects: add(r, "cache_objects", "Objects in the caches"),
            cache_synced: add(r, "cache_synced", "1 if the cache is synced with the API server"),
            watch_restarts: add(r, "watch_restarts", "Watches that were restarted"),
            leader: add(r, "leader", "1 while this process holds the lease"),
            lease_transitions: add(r, "lease_transitions", "Times that this process acquired or lost the lease"),
            events: add(r, "events", "Events published about objects"),
            operations: add(r, "operations", "Operation objects"),
            spans_dropped: add(r, "trace_spans_dropped", "Spans that could not be sent to the trace collector"),
            resources: Names::default(),
            kinds: Names::default(),
            registry: Mutex::new(registry),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A call to the API server: the verb in lower case, the resource as `machines.fleetwright.io/status`, and the HTTP status
    /// or, without an answer, a one-word reason.
    pub fn call(&self, verb: &'static str, resource: &str, code: &str, took: Duration) {
        let resource = self.inner.resources.bounded(resource);
        let labels = [("verb", verb.into()), ("resource", resource.clone()), ("code", escaped(code))];
        self.inner.calls.get_or_create(&labels).inc();
        let labels = [("verb", verb.into()), ("resource", resource)];
        self.inner.call_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A pass that ended, with a one-word outcome.
    pub fn pass(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        let labels = [("controller", controller.into()), ("outcome", outcome.into())];
        self.inner.passes.get_or_create(&labels).inc();
        self.inner.pass_seconds.get_or_create(&[("controller", controller.into())]).observe(took.as_secs_f64());
    }

    /// Number of objects that wait for a pass now.
    pub fn queue_depth(&self, controller: &'static str, priority: &'static str, depth: usize) {
        let labels = [("controller", controller.into()), ("priority", priority.into())];
        self.inner.queue_depth.get_or_create(&labels).set(number(depth));
    }

    /// Time between an object being due and its pass.
    pub fn queue_wait(&self, controller: &'static str, waited: Duration) {
        self.inner.queue_wait.get_or_create(&[("controller", controller.into())]).observe(waited.as_secs_f64());
    }

    /// A pass that ended with an error.
    pub fn trouble(&self, controller: &'static str, step: &'static str, reason: &'static str) {
        let labels = [("controller", controller.into()), ("step", step.into()), ("reason", reason.into())];
        self.inner.troubles.get_or_create(&labels).inc();
    }

    /// Number of objects in a cache.
    pub fn cache_objects(&self, kind: &str, objects: usize) {
        let kind = self.inner.kinds.bounded(kind);
        self.inner.cache_objects.get_or_create(&[("kind", kind)]).set(number(objects));
    }

    /// Whether a cache is in sync with the API server.
    pub fn cache_synced(&self, kind: &str, synced: bool) {
        let kind = self.inner.kinds.bounded(kind);
        self.inner.cache_synced.get_or_create(&[("kind", kind)]).set(synced.into());
    }

    /// A watch was restarted, with a one-word reason.
    pub fn watch_restart(&self, kind: &str, why: &'static str) {
        let kind = self.inner.kinds.bounded(kind);
        self.inner.watch_restarts.get_or_create(&[("kind", kind), ("reason", why.into())]).inc();
    }

    /// Whether this process leads. Transitions are counted.
    pub fn leading(&self, leading: bool) {
        if self.inner.leader.set(leading.into()) != i64::from(leading) {
            self.inner.lease_transitions.inc();
        }
    }

    /// An event was published about an object; the level is `Normal` or `Warning`.
    pub fn event(&self, reason: &'static str, level: &'static str) {
        self.inner.events.get_or_create(&[("reason", reason.into()), ("type", level.into())]).inc();
    }

    /// Number of Operation objects of a type in a phase.
    pub fn operations(&self, phase: &'static str, kind: &str, count: usize) {
        let kind = self.inner.kinds.bounded(kind);
        self.inner.operations.get_or_create(&[("phase", phase.into()), ("type", kind)]).set(number(count));
    }

    /// Spans were not sent to the trace collector.
    pub fn spans_dropped(&self, count: u64) {
        self.inner.spans_dropped.inc_by(count);
    }

    /// Registers metrics of an operator. Names should start with `fleetwright_`; label values must be
    /// bounded, and go through [`escaped`] unless they are constants of the code.
    pub fn register(&self, with: impl FnOnce(&mut Registry)) {
        with(&mut self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The page that Prometheus reads, in OpenMetrics' text format.
    pub fn encode(&self) -> String {
        let mut page = String::new();
        let registry = self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string cannot fail; a collector that fails truncates the page.
        let _ = text::encode(&mut page, &registry);
        page
    }
}

fn add<M: Metric + Default + Clone>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(format!("fleetwright_{name}"), help, metric.clone());
    metric
}

fn add_seconds<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Histograms<N> {
    let metric = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
    registry.register(format!("fleetwright_{name}"), help, metric.clone());
    metric
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A label value with escapes for the page; prometheus-client writes values unescaped.
pub fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Names with a label of their own.
#[derive(Default)]
struct Names(Mutex<BTreeSet<String>>);

impl Names {
    /// The name as a label value, or `other` if there are too many.
    fn bounded(&self, name: &str) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(name) {
            if names.len() >= MAX_NAMES {
                return "other".into();
            }
            names.insert(name.to_owned());
        }
        escaped(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_on_the_page() {
        let metrics = Metrics::new();
        metrics.call("patch", "machines.fleetwright.io/status", "409", Duration::from_millis(3));
        metrics.clone().trouble("readiness", "act", "WriteConflict");
        metrics.queue_depth("readiness", "high", 7);
        let page = metrics.encode();
        for line in [
            "fleetwright_api_calls_total{verb=\"patch\",resource=\"machines.fleetwright.io/status\",code=\"409\"} 1",
            "fleetwright_reconcile_errors_total{controller=\"readiness\",step=\"act\",reason=\"WriteConflict\"} 1",
            "fleetwright_queue_depth{controller=\"readiness\",priority=\"high\"} 7",
            "fleetwright_api_call_duration_seconds_bucket{le=\"0.005\",verb=\"patch\",resource=\"machines.fleetwright.io/status\"} 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn a_flood_of_names_shares_one_row() {
        let metrics = Metrics::new();
        for i in 0..10 * MAX_NAMES {
            metrics.call("get", &format!("kind{i}"), "200", Duration::ZERO);
        }
        let page = metrics.encode();
        let rows = page.lines().filter(|l| l.starts_with("fleetwright_api_calls_total{")).count();
        assert_eq!(rows, MAX_NAMES + 1);
        assert!(page.contains("resource=\"other\""));
    }

    #[test]
    fn gaining_and_losing_the_lease_is_counted_once_each() {
        let metrics = Metrics::new();
        metrics.leading(false);
        metrics.leading(true);
        metrics.leading(true);
        metrics.leading(false);
        let page = metrics.encode();
        assert!(page.contains("fleetwright_lease_transitions_total 2\n"), "{page}");
        assert!(page.contains("fleetwright_leader 0\n"), "{page}");
    }

    #[test]
    fn an_operator_can_add_its_own() {
        let metrics = Metrics::new();
        let own: Gauge = Gauge::default();
        metrics.register(|registry| registry.register("fleetwright_readiness_closed", "Nodes closed", own.clone()));
        own.set(3);
        assert!(metrics.encode().contains("fleetwright_readiness_closed 3\n"));
    }
}
