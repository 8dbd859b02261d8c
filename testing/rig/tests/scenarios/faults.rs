//! The kit and its journal under faults: one seed, one run. `RIG_SEED=n` repeats one.

use fleetwright_lab::ServerKind;
use fleetwright_rig::{Deliveries, FaultInjector, FaultRates, TestServer, under_faults};

async fn seeds(test_server: &TestServer, count: u64) {
    let seeds = FaultInjector::seeds(count);
    let report =
        under_faults(Deliveries { parcels: &["a", "b"] }, test_server, &seeds, &FaultRates::mixed()).await.unwrap();
    report.unwrap();
    if seeds.len() < 20 {
        return;
    }
    // Each kind of fault must have occurred; otherwise the run shows nothing about it.
    for name in [
        "request lost",
        "answer lost",
        "late request",
        "late answer",
        "409",
        "410",
        "429",
        "5xx",
        "stale read",
        "watch cut",
        "watch slow",
        "server gone",
    ] {
        assert!(report.troubles.contains_key(name), "no {name}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_in_any_trouble() {
    seeds(&TestServer::InProcess, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_in_any_trouble_on_real() {
    seeds(&TestServer::start(ServerKind::Real).await.unwrap(), 20).await;
}
