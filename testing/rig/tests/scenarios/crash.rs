//! The kit and its journal, crashed at every call.

use fleetwright_lab::ServerKind;
use fleetwright_rig::{Deliveries, TestServer, crash_at_every_call};

async fn every_call(test_server: &TestServer, parcels: &'static [&'static str]) {
    let report = crash_at_every_call(Deliveries { parcels }, test_server).await.unwrap();
    report.unwrap();
    // For each delivery an intent, a place, a grant, a claim, an outcome, a place given back and a receipt; and the lease.
    assert!(report.disturbed >= 2 * 7 * (parcels.len() + 1), "{report}: crashes must really have happened");
    assert!(report.missed <= report.disturbed / 4, "{report}: most crashes must really have happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_wherever_it_crashes() {
    every_call(&TestServer::InProcess, &["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_wherever_it_crashes_on_real() {
    every_call(&TestServer::start(ServerKind::Real).await.unwrap(), &["a"]).await;
}
