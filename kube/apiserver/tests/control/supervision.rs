//! Controllers that panic, and controllers that never yield.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fleetwright_apiserver::{Clock, Config};
use jiff::Timestamp;
use serde_json::json;

use crate::support::Cluster;

const FINE: u8 = 0;
const PANIC: u8 = 1;
const HANG: u8 = 2;

/// A server whose controllers fail when they ask for the time. Requests are answered by the test's own task, which has no id.
async fn server_with_failing_controller() -> (Cluster, Arc<AtomicU8>) {
    let mode = Arc::new(AtomicU8::new(FINE));
    let asked = mode.clone();
    let clock = Clock::new(move || {
        if tokio::task::try_id().is_some() {
            assert_ne!(asked.load(Ordering::SeqCst), PANIC, "the test's panic");
            while asked.load(Ordering::SeqCst) == HANG {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Timestamp::now()
    });
    (Cluster::with(Config { clock, ..Config::default() }).await, mode)
}

#[tokio::test]
async fn a_controller_that_panics_is_counted_and_starts_again() {
    let (cluster, mode) = server_with_failing_controller().await;
    mode.store(PANIC, Ordering::SeqCst);
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "late"}})).await;
    cluster
        .until("/metrics", |(_, page)| page.as_str().is_some_and(|page| page.contains("{controller=\"accounts\"}")))
        .await;
    assert!(cluster.panics().await >= 1);
    mode.store(FINE, Ordering::SeqCst);
    // What the panic left undone is done, without another change.
    cluster.until("/api/v1/namespaces/late/serviceaccounts/default", |(code, _)| *code == 200).await;
    let before = cluster.panics().await;
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "next"}})).await;
    cluster.until("/api/v1/namespaces/next/serviceaccounts/default", |(code, _)| *code == 200).await;
    assert_eq!(cluster.panics().await, before);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_server_stops_although_a_controller_never_yields() {
    let (cluster, mode) = server_with_failing_controller().await;
    mode.store(HANG, Ordering::SeqCst);
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "late"}})).await;
    let stopped = tokio::time::timeout(Duration::from_secs(60), cluster.stop()).await;
    // Before the assertion, since the runtime of the test waits for its threads.
    mode.store(FINE, Ordering::SeqCst);
    assert!(stopped.is_ok(), "the server does not stop");
}
