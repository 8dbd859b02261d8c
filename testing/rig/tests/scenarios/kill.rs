//! A real process, killed with SIGKILL at random times, repeatedly.

use std::time::{Duration, Instant};

use fleetwright_lab::ServerKind;

use crate::courier_process::{CourierEnv, soon};

/// Kills a courier `times` times while parcels keep coming, at a random moment after its start.
async fn killed(kind: ServerKind, times: u64) {
    let town = CourierEnv::new(kind).await;
    let seed = std::env::var("RIG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(times);
    let mut random = fastrand::Rng::with_seed(seed);
    // A lease that outlasts any stall of the machine: a process that lost its lease would not be restarted.
    let (lease, takes) = (Duration::from_secs(600), Duration::from_millis(15));
    // The progress of a life is chance: processes that end before their first call show little, and must not be the majority.
    let mut wrote = 0;
    for life in 0..times {
        let courier = town.courier("courier", lease, takes).await;
        town.bring(&format!("parcel-{life}"), "letters").await;
        // Half of the kills happen at any moment, the others during writes, where they do the most harm.
        if life % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(0..250))).await;
        } else {
            soon("it writes", async || match courier.recorder.writes_since(0).len() {
                0 => Err("no write yet".to_owned()),
                _ => Ok(()),
            })
            .await;
            // A process without work left makes no more writes; then it is killed while idle.
            let (writes, deadline) = (random.usize(1..8), Instant::now() + Duration::from_millis(700));
            while courier.recorder.writes_since(0).len() < writes && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
        }
        wrote += u64::from(!courier.recorder.writes_since(0).is_empty());
        courier.process.kill().unwrap();
    }
    let last = town.courier("courier", lease, takes).await;
    town.all_delivered().await;
    town.assert_once(times as usize);
    last.process.kill().unwrap();
    eprintln!(
        "rig: courier on {kind}: killed {times} times, {wrote} of them after a write; every parcel was delivered once"
    );
    assert!(wrote >= times / 2, "only {wrote} of {times} lives came to a write");
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_courier_killed_two_hundred_times_delivers_everything_once() {
    killed(ServerKind::Embedded, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_courier_killed_forty_times_delivers_everything_once_on_real() {
    killed(ServerKind::Real, 40).await;
}
