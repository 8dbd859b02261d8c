//! The metrics of the operator, besides those of the kit. No metric has a label per cluster: with thousands of clusters, the number of series would
//! be too high.

use std::fmt;
use std::time::Duration;

use fleetwright_api::{ClusterPhase, ClusterStatus, Status, condition, names};
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::{Cache, Clock};
use fleetwright_plan::cluster::extensions::ExtensionOutcome;
use jiff::{SignedDuration, Timestamp};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;

use crate::view::ClusterView;

type Counters<const N: usize> = Family<[(&'static str, &'static str); N], Counter>;

/// Buckets from a fast API server to one that timed out.
const SECONDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];

/// Time spans for the expiry of certificates and the age of snapshots.
const SPANS: [(&str, i64); 6] = [("1h", 1), ("6h", 6), ("1d", 24), ("7d", 168), ("30d", 720), ("90d", 2160)];

/// Metrics of clusters; cheap to clone.
#[derive(Clone)]
pub struct Meters {
    changes: Counters<2>,
    certificates: Counters<1>,
    repairs: Counters<1>,
    proofs: Counters<1>,
    proof_seconds: Histogram,
    proving: Gauge,
    extended: Counters<1>,
    calls: Counters<1>,
}

impl Meters {
    /// Metrics in the operator's registry.
    pub fn new(metrics: &Metrics, clusters: Cache<ClusterView>, clock: Clock) -> Self {
        let meters = Self::unregistered();
        metrics.register(|page| {
            let Self { changes, certificates, repairs, proofs, proof_seconds, proving, extended, calls } =
                meters.clone();
            page.register("fleetwright_cluster_changes", "Upgrades, rollbacks and restores by outcome", changes);
            page.register("fleetwright_cluster_certificates_issued", "Certificates issued", certificates);
            page.register("fleetwright_cluster_repairs", "Objects whose drift was corrected", repairs);
            page.register("fleetwright_cluster_probes", "API server probes completed", proofs);
            page.register("fleetwright_cluster_probe_duration_seconds", "Duration of API server probes", proof_seconds);
            page.register("fleetwright_cluster_probes_in_progress", "API server probes in progress or queued", proving);
            page.register(
                "fleetwright_cluster_extension_reconciles",
                "Reconciliations of extensions by outcome",
                extended,
            );
            page.register("fleetwright_cluster_calls", "Calls to API servers and etcd of business clusters", calls);
            page.register_collector(Box::new(FleetCollector { clusters, clock }));
        });
        meters
    }

    /// Number of networks of the meta cluster that policies block for control planes. With 0, nothing is blocked.
    pub fn networks(metrics: &Metrics, known: usize) {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(known).unwrap_or(i64::MAX));
        metrics.register(|page| {
            page.register(
                "fleetwright_cluster_meta_networks",
                "Networks of the meta cluster that control planes cannot connect to; 0 if none is configured",
                gauge,
            );
        });
    }

    /// Metrics without a registry, for tests.
    fn unregistered() -> Self {
        Self {
            changes: Family::default(),
            certificates: Family::default(),
            repairs: Family::default(),
            proofs: Family::default(),
            proof_seconds: Histogram::new(SECONDS),
            proving: Gauge::default(),
            extended: Family::default(),
            calls: Family::default(),
        }
    }

    /// Counts a status that replaced another.
    pub fn status_written(&self, old: &ClusterStatus, new: &ClusterStatus) {
        let change = |change, outcome| {
            self.changes.get_or_create(&[("change", change), ("outcome", outcome)]).inc();
        };
        let of = |phase| match phase {
            Some(ClusterPhase::Upgrading) => Some("upgrade"),
            Some(ClusterPhase::RollingBack) => Some("rollback"),
            Some(ClusterPhase::Restoring) => Some("restore"),
            _ => None,
        };
        match (of(old.phase), of(new.phase)) {
            (before, Some(now)) if before != Some(now) => change(now, "started"),
            (Some(before), None) if new.phase != Some(ClusterPhase::Deleting) => change(before, "completed"),
            _ => {}
        }
        if new.failed.is_some() && new.failed != old.failed {
            change(of(old.phase).unwrap_or("upgrade"), "failed");
        }
    }

    /// Counts an issued certificate, with the reason.
    pub fn certificate(&self, why: &'static str) {
        self.certificates.get_or_create(&[("reason", why)]).inc();
    }

    /// Counts a repaired object.
    pub fn repaired(&self, kind: &'static str) {
        self.repairs.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a proof that runs or waits for its turn, until the returned guard is dropped.
    pub fn proving(&self) -> impl Drop + Send + use<> {
        self.proving.inc();
        ProofMetrics(self.proving.clone())
    }

    /// Counts a finished proof.
    pub fn proven(&self, well: bool, took: Duration) {
        self.proofs.get_or_create(&[("outcome", if well { "succeeded" } else { "failed" })]).inc();
        self.proof_seconds.observe(took.as_secs_f64());
    }

    /// Counts the outcome of applying or checking an extension in a business cluster.
    pub fn extended(&self, outcome: &ExtensionOutcome) {
        let outcome = match outcome {
            ExtensionOutcome::Healthy => "healthy",
            ExtensionOutcome::Waits(_) => "waiting",
            ExtensionOutcome::Failed(_) => "failed",
        };
        self.extended.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counter of requests to business clusters for that work.
    pub fn calls(&self, work: &'static str) -> Counter {
        self.calls.get_or_create(&[("purpose", work)]).clone()
    }
}

struct ProofMetrics(Gauge);

impl Drop for ProofMetrics {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// State of the fleet, collected on each scrape: values that depend on the time of day cannot be maintained by events, and a change costs nothing
/// this way.
struct FleetCollector {
    clusters: Cache<ClusterView>,
    clock: Clock,
}

impl fmt::Debug for FleetCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Census")
    }
}

/// Numbers from one iteration over all clusters.
#[derive(Debug, Default, PartialEq)]
struct FleetCounts {
    phases: [usize; ClusterPhase::ALL.len()],
    ready: [usize; READY.len()],
    /// Clusters with a certificate that expires within each of the spans.
    ends: [usize; SPANS.len()],
    /// Clusters whose newest snapshot is older than each of the spans.
    older: [usize; SPANS.len()],
    /// Clusters that should have snapshots and have none.
    unsaved: usize,
    first_end: Option<Timestamp>,
}

const READY: [Status; 3] = [Status::True, Status::False, Status::Unknown];

impl FleetCounts {
    fn add(&mut self, view: &ClusterView, now: Timestamp) {
        let nothing = ClusterStatus::default();
        let status = view.0.status.as_ref().unwrap_or(&nothing);
        let phase = status.phase.unwrap_or(ClusterPhase::Creating);
        if let Some(at) = ClusterPhase::ALL.iter().position(|one| *one == phase) {
            self.phases[at] += 1;
        }
        let ready = condition(&status.conditions, names::READY).map_or(Status::Unknown, |one| one.status);
        if let Some(at) = READY.iter().position(|one| *one == ready) {
            self.ready[at] += 1;
        }
        let first = status.certificates.iter().map(|one| one.not_after).min();
        self.first_end = self.first_end.into_iter().chain(first).min();
        let saved = status.last_snapshot.as_ref().map(|snapshot| snapshot.at);
        self.unsaved += usize::from(saved.is_none() && view.0.spec.snapshots().is_some());
        for (at, (_, hours)) in SPANS.into_iter().enumerate() {
            let span = SignedDuration::from_hours(hours);
            self.ends[at] += usize::from(first.is_some_and(|first| first.duration_since(now) <= span));
            self.older[at] += usize::from(saved.is_some_and(|saved| now.duration_since(saved) > span));
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauges = |name, help, label: &'static str, all: &mut dyn Iterator<Item = (&str, usize)>| {
            let gauge = ConstGauge::new(0_i64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (value, count) in all {
                let count = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
                count.encode(family.encode_family(&[(label, value)])?)?;
            }
            Ok::<(), fmt::Error>(())
        };
        let spans = |counts: [usize; SPANS.len()]| SPANS.map(|(name, _)| name).into_iter().zip(counts);
        let mut phases = ClusterPhase::ALL.map(ClusterPhase::as_str).into_iter().zip(self.phases);
        gauges("fleetwright_clusters", "Clusters by phase", "phase", &mut phases)?;
        let mut ready = READY.map(Status::as_str).into_iter().zip(self.ready);
        gauges("fleetwright_clusters_ready", "Clusters by status of the condition Ready", "status", &mut ready)?;
        gauges(
            "fleetwright_clusters_certificate_expiring",
            "Clusters with a certificate that expires within the time",
            "within",
            &mut spans(self.ends),
        )?;
        gauges(
            "fleetwright_clusters_snapshot_stale",
            "Clusters whose last snapshot is older than the time; never: clusters without the snapshot they should have",
            "older_than",
            &mut spans(self.older).chain([("never", self.unsaved)]),
        )?;
        if let Some(first) = self.first_end {
            let first = ConstGauge::new(first.as_second());
            let name = "fleetwright_clusters_earliest_certificate_expiry_timestamp_seconds";
            let help = "Earliest expiry of a certificate of any cluster";
            first.encode(encoder.encode_descriptor(name, help, None, first.metric_type())?)?;
        }
        Ok(())
    }
}

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (now, mut counted) = (self.clock.now(), FleetCounts::default());
        for key in self.clusters.keys() {
            if let Some(view) = self.clusters.get(&key) {
                counted.add(&view, now);
            }
        }
        counted.encode(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_api::{CertificateStatus, Cluster, ClusterSpec, SnapshotStatus};

    use super::*;

    fn cluster(phase: Option<ClusterPhase>, ends: &[&str], saved: Option<&str>) -> ClusterView {
        let mut cluster = Cluster::new("pay", ClusterSpec::of("v1.36"));
        let certificates =
            ends.iter().map(|end| CertificateStatus { name: "ca".to_owned(), not_after: end.parse().unwrap() });
        let saved = saved.map(|at| serde_json::json!({ "name": "one", "at": at }));
        let saved: Option<SnapshotStatus> = saved.map(|one| serde_json::from_value(one).unwrap());
        cluster.status = Some(ClusterStatus {
            phase,
            certificates: certificates.collect(),
            last_snapshot: saved,
            ..ClusterStatus::default()
        });
        ClusterView(cluster)
    }

    #[test]
    fn clusters_are_counted_by_what_is_said_of_them_and_by_the_time() {
        let now = "2030-01-02T00:00:00Z".parse().unwrap();
        let mut counted = FleetCounts::default();
        let soon = ["2031-01-01T00:00:00Z", "2030-01-02T05:00:00Z"];
        counted.add(&cluster(Some(ClusterPhase::Ready), &soon, Some("2030-01-01T20:00:00Z")), now);
        counted.add(&cluster(None, &[], None), now);
        assert_eq!(ClusterPhase::ALL[..2], [ClusterPhase::Creating, ClusterPhase::Ready]);
        assert_eq!(counted.phases[..2], [1, 1]);
        assert_eq!(counted.ready, [0, 0, 2]);
        assert_eq!(counted.ends, [0, 1, 1, 1, 1, 1]);
        assert_eq!((counted.older, counted.unsaved), ([1, 0, 0, 0, 0, 0], 1));
        assert_eq!(counted.first_end, Some("2030-01-02T05:00:00Z".parse().unwrap()));
    }

    #[test]
    fn changes_are_counted_when_they_begin_and_when_they_end() {
        let (operator, meters) = (Metrics::new(), Meters::unregistered());
        operator.register(|page| page.register("changes", "", meters.changes.clone()));
        let at = |phase| ClusterStatus { phase: Some(phase), ..ClusterStatus::default() };
        let phases = [
            ClusterPhase::Creating,
            ClusterPhase::Ready,
            ClusterPhase::Upgrading,
            ClusterPhase::Upgrading,
            ClusterPhase::RollingBack,
            ClusterPhase::Ready,
            ClusterPhase::Upgrading,
            ClusterPhase::Deleting,
        ];
        phases.windows(2).for_each(|two| meters.status_written(&at(two[0]), &at(two[1])));
        let page = operator.encode();
        let says = |line: &str| assert!(page.contains(line), "{line} is not in\n{page}");
        says("changes_total{change=\"upgrade\",outcome=\"started\"} 2\n");
        says("changes_total{change=\"rollback\",outcome=\"started\"} 1\n");
        says("changes_total{change=\"rollback\",outcome=\"completed\"} 1\n");
        assert!(!page.contains("change=\"upgrade\",outcome=\"completed\""), "{page}");
    }

    #[test]
    fn extensions_are_counted_by_what_became_of_them() {
        let (operator, meters) = (Metrics::new(), Meters::unregistered());
        operator.register(|page| page.register("extensions", "", meters.extended.clone()));
        let why = || "no Node is there".to_owned();
        let outcomes = [
            ExtensionOutcome::Waits(why()),
            ExtensionOutcome::Failed(why()),
            ExtensionOutcome::Waits(why()),
            ExtensionOutcome::Healthy,
        ];
        outcomes.iter().for_each(|outcome| meters.extended(outcome));
        let page = operator.encode();
        for (outcome, times) in [("healthy", 1), ("waiting", 2), ("failed", 1)] {
            let line = format!("extensions_total{{outcome=\"{outcome}\"}} {times}\n");
            assert!(page.contains(&line), "{line} is not in\n{page}");
        }
    }
}
