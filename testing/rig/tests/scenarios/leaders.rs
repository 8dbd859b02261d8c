//! Two leaders as real processes: one that was paused past its lease writes nothing after it resumes, and one that stops
//! gracefully hands over at once.

use std::time::{Duration, Instant};

use fleetwright_lab::ServerKind;
use fleetwright_rig::Record;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::courier_process::{Courier, CourierEnv, soon};

const LEASE: Duration = Duration::from_secs(12);

fn leases(town: &CourierEnv) -> Api<Lease> {
    let namespace = town.maps.namespace().expect("it has one").to_owned();
    Api::namespaced(town.maps.clone().into_client(), &namespace)
}

async fn holder(town: &CourierEnv) -> String {
    let lease = leases(town).get_opt("courier").await.unwrap();
    lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default()
}

async fn leads(town: &CourierEnv, courier: &Courier, who: &str) {
    soon(&format!("{who} leads"), async || match holder(town).await {
        holder if holder == who => Ok(()),
        holder => Err(format!("{holder:?} leads; {}", courier.process.tail())),
    })
    .await;
}

async fn paused(kind: ServerKind) {
    let town = CourierEnv::new(kind).await;
    let mut first = town.courier("first", LEASE, Duration::ZERO).await;
    leads(&town, &first, "first").await;
    let second = town.courier("second", LEASE, Duration::ZERO).await;
    // The process is paused in the middle of work: it has many writes left when it resumes.
    for number in 0..40 {
        town.bring(&format!("parcel-{number}"), "letters").await;
        if number == 20 {
            soon("it writes", async || match first.recorder.writes_since(0).len() {
                0 => Err("no write yet".to_owned()),
                _ => Ok(()),
            })
            .await;
            first.process.pause().unwrap();
        }
    }
    leads(&town, &second, "second").await;
    town.all_delivered().await;
    // Writes that were sent before the pause arrived long ago: two leases have passed.
    let mark = first.recorder.mark();
    for number in 40..60 {
        town.bring(&format!("parcel-{number}"), "letters").await;
    }
    first.process.resume().unwrap();
    town.all_delivered().await;
    // The process exits after the loss of its lease, or stands by. In both cases it had time for a wrong write.
    let deadline = Instant::now() + LEASE * 2;
    while first.process.ended().unwrap().is_none() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let since = first.recorder.since(mark);
    // A renewal of the lease may have been under way at the pause; the server answers with a conflict.
    let asked = |record: &&Record| record.call.leases() && record.code == Some(409);
    let wrote: Vec<_> =
        since.iter().filter(|record| record.call.writes() && !asked(record)).map(ToString::to_string).collect();
    assert!(wrote.is_empty(), "it was not the leader any more and wrote {wrote:#?}");
    assert_eq!(holder(&town).await, "second");
    town.assert_once(60);
    drop((first, second));
    town.stop().await;
}

async fn handed_over(kind: ServerKind) {
    let town = CourierEnv::new(kind).await;
    // A lease so long that the test could not wait for its expiry.
    let lease = Duration::from_secs(600);
    let mut first = town.courier("first", lease, Duration::ZERO).await;
    leads(&town, &first, "first").await;
    let second = town.courier("second", lease, Duration::ZERO).await;
    for number in 0..10 {
        town.bring(&format!("parcel-{number}"), "letters").await;
    }
    soon("the second stands by", async || match second.recorder.mark() {
        0 => Err("no call yet".to_owned()),
        _ => Ok(()),
    })
    .await;
    assert!(second.recorder.writes_since(0).is_empty(), "it does not lead");
    first.process.terminate().unwrap();
    soon("the first ends", async || match first.process.ended().unwrap() {
        Some(status) if status.success() => Ok(()),
        status => Err(format!("{status:?}; {}", first.process.tail())),
    })
    .await;
    leads(&town, &second, "second").await;
    town.bring("last", "letters").await;
    town.all_delivered().await;
    town.assert_once(11);
    drop((first, second));
    town.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_paused_past_its_lease_writes_nothing() {
    paused(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_paused_past_its_lease_writes_nothing_on_real() {
    paused(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_in_order_hands_over_without_waiting_for_its_lease() {
    handed_over(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_in_order_hands_over_without_waiting_for_its_lease_on_real() {
    handed_over(ServerKind::Real).await;
}
