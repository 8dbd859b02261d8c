//! Reads the metrics of an operator.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The address at which an operator serves its metrics.
#[derive(Clone, Copy, Debug)]
pub struct MetricsEndpoint(SocketAddr);

/// Calls to the API server, without watches, and passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    /// Gets and lists.
    pub reads: f64,
    /// Calls of all writing verbs.
    pub writes: f64,
    /// Passes of all controllers.
    pub passes: f64,
}

impl Calls {
    /// The calls since an earlier count.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            passes: self.passes - before.passes,
        }
    }
}

impl MetricsEndpoint {
    /// The metrics endpoint of an operator that listens at this address.
    pub fn at(address: SocketAddr) -> Self {
        Self(address)
    }

    /// The body of a path.
    ///
    /// # Errors
    /// The endpoint does not answer, or not with 200.
    pub async fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.0).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!("{}{path}: {}", self.0, text.lines().next().unwrap_or_default());
        }
        Ok(text)
    }

    /// Waits until the operator is ready: its caches are filled.
    ///
    /// # Errors
    /// The operator is not ready within this time.
    pub async fn ready(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.get("/readyz").await.is_err() {
            ensure!(Instant::now() < deadline, "the operator is not ready after {within:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The sum of a metric over the label sets wanted.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn sum(&self, name: &str, wanted: impl Fn(&str) -> bool) -> Result<f64> {
        Ok(sum(&self.get("/metrics").await?, name, wanted))
    }

    /// The calls so far.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn calls(&self) -> Result<Calls> {
        Ok(calls(&self.get("/metrics").await?))
    }

    /// Polls until a number of its calls is stable, so that earlier work is not counted as later work. Returns the calls so far.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn settled(&self, every: Duration, number: impl Fn(&Calls) -> f64) -> Result<Calls> {
        let mut calls = self.calls().await?;
        loop {
            tokio::time::sleep(every).await;
            let now = self.calls().await?;
            if number(&now) == number(&calls) {
                return Ok(now);
            }
            calls = now;
        }
    }
}

fn sum(text: &str, name: &str, wanted: impl Fn(&str) -> bool) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    lines.filter(|(labels, _)| wanted(labels)).filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
}

fn calls(text: &str) -> Calls {
    let of = |verbs: &[&str]| {
        let wanted = |labels: &str| verbs.iter().any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
        sum(text, "fleetwright_api_calls_total", wanted)
    };
    Calls {
        reads: of(&["get", "list"]),
        writes: of(&["create", "update", "patch", "apply", "delete", "deletecollection"]),
        passes: sum(text, "fleetwright_reconciles_total", |_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_what_they_do() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# TYPE fleetwright_api_calls_total counter
fleetwright_api_calls_total{verb=\"get\",code=\"200\"} 3
fleetwright_api_calls_total{verb=\"watch\",code=\"200\"} 50
fleetwright_api_calls_total{verb=\"apply\",code=\"200\"} 4
fleetwright_api_calls_total{verb=\"delete\",code=\"404\"} 1
fleetwright_reconciles_total{controller=\"readiness\"} 7
fleetwright_reconciles_total{controller=\"gates\"} 2
";
        let found = calls(text);
        assert_eq!([found.reads, found.writes, found.passes], [3.0, 5.0, 9.0]);
        let none = found.since(&found);
        assert_eq!([none.reads, none.writes, none.passes], [0.0; 3]);
        assert_eq!(sum(text, "fleetwright_reconciles_total", |labels| labels.contains("readiness")), 7.0);
    }
}
