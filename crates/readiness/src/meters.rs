use fleetwright_kit::metrics::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The metrics of this operator besides those of the kit; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    held: Family<[(&'static str, String); 1], Gauge>,
    broken: Gauge,
    orphans: Gauge,
    behind: Family<[(&'static str, String); 1], Counter>,
}

impl Meters {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let meters = Self::default();
        metrics.register(|page| {
            let Self { held, broken, orphans, behind } = meters.clone();
            page.register("fleetwright_readiness_kept_open", "Machines that a safety net keeps open", held);
            page.register(
                "fleetwright_readiness_invalid_reports",
                "Reports, or parts of them, that are invalid",
                broken,
            );
            page.register("fleetwright_readiness_orphan_reports", "Reports on machines that do not exist", orphans);
            page.register(
                "fleetwright_readiness_stale_cache",
                "Objects for which a deep check found a stale cache",
                behind,
            );
        });
        meters
    }

    /// Sets the number of machines that the nets of a ReadinessGates object keep open.
    pub fn held(&self, gates: &str, machines: u32) {
        self.held.get_or_create(&[("gates", gates.to_owned())]).set(i64::from(machines));
    }

    /// Removes the metrics of a deleted ReadinessGates object.
    pub fn no_gates(&self, gates: &str) {
        self.held.remove(&[("gates", gates.to_owned())]);
    }

    /// Sets the number of reports that do not count, and of those without a machine.
    pub fn reports(&self, broken: usize, orphans: usize) {
        self.broken.set(i64::try_from(broken).unwrap_or(i64::MAX));
        self.orphans.set(i64::try_from(orphans).unwrap_or(i64::MAX));
    }

    /// Counts a deep check that found a stale cache.
    pub fn behind(&self, kind: &str) {
        self.behind.get_or_create(&[("kind", kind.to_owned())]).inc();
    }
}
