//! The loads, the same for the operator and for the floor.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::fleet::Fleet;

/// Seconds until a failed machine recovers: long enough that a slow server does not show both changes at once.
const ILL: u64 = 2;

/// Latencies, in milliseconds.
#[derive(Default)]
pub(crate) struct Latency(Vec<f64>);

impl Latency {
    /// The latency that `percent` of them do not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

/// Sends reports that each change a verdict: machines fail one after the other and recover when their turn comes again.
/// The latency is from just before the report is sent until the Node's change is observed. Also returns the number of reports.
pub(crate) async fn flips(fleet: &Fleet, rate: u64, seconds: u64) -> Result<(Latency, usize)> {
    let began = Instant::now();
    let mut latency = Latency::default();
    let (mut sent, mut running) = (0, futures::stream::FuturesUnordered::new());
    let one = |number: usize, good: bool| async move {
        let start = Instant::now();
        fleet.report(number, number % 3, good).await?;
        let seen = fleet.verdict(number, good, start).await?;
        anyhow::Ok((seen - start).as_secs_f64() * 1000.0)
    };
    // That many machines fail one after the other, and then recover in the same order.
    let group = rate * ILL;
    for step in 0..(rate * seconds).next_multiple_of(2 * group) {
        let (round, place) = (step / (2 * group), step % (2 * group));
        let number = ((round * group + place % group) as usize) % fleet.size;
        tokio::time::sleep_until((began + Duration::from_micros(step * 1_000_000 / rate)).into()).await;
        running.push(one(number, place >= group));
        sent += 1;
        drain(&mut running, &mut latency, false).await?;
    }
    drain(&mut running, &mut latency, true).await?;
    Ok((latency, sent))
}

/// Collects the finished measurements, or waits for all of them.
async fn drain<F: Future<Output = Result<f64>>>(
    running: &mut futures::stream::FuturesUnordered<F>,
    latency: &mut Latency,
    all: bool,
) -> Result<()> {
    use futures::{FutureExt, StreamExt};
    loop {
        let next = if all { running.next().await } else { running.next().now_or_never().flatten() };
        match next {
            Some(millis) => latency.0.push(millis?),
            None => return Ok(()),
        }
    }
}

/// Sends reports that repeat the ones before, with a new heartbeat. Returns their number.
pub(crate) async fn heartbeats(fleet: &Fleet, rate: u64, seconds: u64) -> Result<usize> {
    let (began, total) = (Instant::now(), rate * seconds);
    let running = futures::stream::FuturesUnordered::new();
    for step in 0..total {
        tokio::time::sleep_until((began + Duration::from_micros(step * 1_000_000 / rate)).into()).await;
        let number = step as usize % fleet.size;
        running.push(fleet.report(number, number % 3, true));
    }
    use futures::TryStreamExt;
    running.try_collect::<()>().await?;
    // The operator's work on the last reports counts, too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(total as usize)
}

/// Adds machines one after the other, and waits for each Node to open.
pub(crate) async fn join(fleet: &mut Fleet, count: usize) -> Result<Latency> {
    let mut latency = Latency::default();
    for number in fleet.size..fleet.size + count {
        let start = Instant::now();
        fleet.add(number).await?;
        let seen = fleet.verdict(number, true, start).await?;
        latency.0.push((seen - start).as_secs_f64() * 1000.0);
    }
    fleet.size += count;
    Ok(latency)
}
