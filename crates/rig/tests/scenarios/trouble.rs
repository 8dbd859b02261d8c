//! The kit and its journal in trouble: one seed, one run. `RIG_SEED=n` runs one again.

use fleetwright_lab::Kind;
use fleetwright_rig::{Deliveries, Ground, Rates, Trouble, under_trouble};

async fn seeds(ground: &Ground, count: u64) {
    let seeds = Trouble::seeds(count);
    let verdict = under_trouble(Deliveries { parcels: &["a", "b"] }, ground, &seeds, &Rates::rough()).await.unwrap();
    verdict.unwrap();
    if seeds.len() < 20 {
        return;
    }
    // Each kind of trouble must have struck, or the run shows nothing about it.
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
        assert!(verdict.troubles.contains_key(name), "no {name}: {verdict}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_in_any_trouble() {
    seeds(&Ground::InProcess, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_courier_delivers_once_in_any_trouble_on_real() {
    seeds(&Ground::start(Kind::Real).await.unwrap(), 20).await;
}
