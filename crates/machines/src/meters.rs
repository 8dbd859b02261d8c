use std::time::Duration;

use fleetwright_kit::metrics::Metrics;
use fleetwright_wire::{Outcome, StepRecord, Verb};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

type Counters<const N: usize> = Family<[(&'static str, &'static str); N], Counter>;
type Histograms = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// Buckets from a moment to the longest step.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0, 1800.0];

/// The metrics of this operator besides those of the kit; cheap to clone.
#[derive(Clone)]
pub struct Meters {
    phases: Family<[(&'static str, &'static str); 1], Gauge>,
    steps: Counters<2>,
    step_seconds: Histograms,
    observe_seconds: Histogram,
    drift: Counters<1>,
    held: Counter,
}

impl Meters {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let meters = Self {
            phases: Family::default(),
            steps: Family::default(),
            step_seconds: Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram),
            observe_seconds: Histogram::new(SECONDS),
            drift: Family::default(),
            held: Counter::default(),
        };
        metrics.register(|page| {
            let Self { phases, steps, step_seconds, observe_seconds, drift, held } = meters.clone();
            page.register("fleetwright_machines", "Machines by phase", phases);
            page.register("fleetwright_host_steps", "Steps that ended on hosts", steps);
            page.register(
                "fleetwright_host_step_duration_seconds",
                "Time that a step took, by the host's clock",
                step_seconds,
            );
            page.register(
                "fleetwright_host_observe_duration_seconds",
                "Time from requesting an observation of a host to its answer, including queueing",
                observe_seconds,
            );
            page.register("fleetwright_host_drift", "Drift that was detected or repaired on hosts", drift);
            page.register("fleetwright_evictions_blocked", "Evictions that were refused", held);
        });
        meters
    }

    /// Sets the number of machines in a phase.
    pub fn phase(&self, phase: &'static str, machines: usize) {
        self.phases.get_or_create(&[("phase", phase)]).set(i64::try_from(machines).unwrap_or(i64::MAX));
    }

    /// Counts a step that has ended.
    pub fn step(&self, record: &StepRecord) {
        let verb = match record.verb {
            Verb::Install => "install",
            Verb::Repair => "repair",
            Verb::Remove => "remove",
            Verb::Back => "rollback",
            Verb::Reboot => "reboot",
        };
        let outcome = match record.outcome {
            Outcome::Running => return,
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Interrupted => "interrupted",
            Outcome::Refused => "refused",
        };
        self.steps.get_or_create(&[("verb", verb), ("outcome", outcome)]).inc();
        if let Some(ended) = record.ended {
            let took = ended.saturating_sub(record.began).clamp(0, 86_400);
            self.step_seconds.get_or_create(&[("verb", verb)]).observe(took as f64);
        }
    }

    /// Records the duration of an observation.
    pub fn observed(&self, took: Duration) {
        self.observe_seconds.observe(took.as_secs_f64());
    }

    /// Counts detected or repaired drift.
    pub fn drift(&self, what: &'static str) {
        self.drift.get_or_create(&[("event", what)]).inc();
    }

    /// Counts refused evictions.
    pub fn held(&self, pods: usize) {
        self.held.inc_by(u64::try_from(pods).unwrap_or(u64::MAX));
    }
}
