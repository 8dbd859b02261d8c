//! The kit and its journal, stopped dead at every call.

use fleetwright_lab::Kind;
use fleetwright_rig::{Deliveries, Ground, crash_at_every_call};

async fn every_call(ground: &Ground, parcels: &'static [&'static str]) {
    let verdict = crash_at_every_call(Deliveries { parcels }, ground).await.unwrap();
    verdict.unwrap();
    // An intent, a place, a grant, a claim, an outcome, a place given back and a receipt for each delivery, and the lease.
    assert!(verdict.disturbed >= 2 * 7 * (parcels.len() + 1), "{verdict}: crashes must really have happened");
    assert!(verdict.missed <= verdict.disturbed / 4, "{verdict}: most crashes must really have happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_wherever_it_crashes() {
    every_call(&Ground::InProcess, &["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_wherever_it_crashes_on_real() {
    every_call(&Ground::start(Kind::Real).await.unwrap(), &["a"]).await;
}
