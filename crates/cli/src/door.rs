//! Access to simulated hosts from other processes: a Unix socket in the folder of the kubeconfig that `fleetwright up` writes. Real hosts are reached by SSH.
//!
//! A client sends an address in one line, reads whether the host exists, and then speaks to its helper as over SSH.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fleetwright_transport::{Link, LinkError, Route};
use fleetwright_wire::{Answer, Progress, Request};
use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// File name of the socket.
pub(crate) const SOCKET: &str = "hosts.sock";

/// The path of the socket.
#[derive(Clone, Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    /// The socket beside a kubeconfig, if it exists.
    pub(crate) fn beside(kubeconfig: &Path) -> Option<Self> {
        let path = kubeconfig.parent()?.join(SOCKET);
        path.exists().then_some(Self(path))
    }

    /// A link to a simulated host; none if the host is not simulated, or no process listens.
    pub(crate) async fn connect(&self, route: &Route) -> Option<Box<dyn Link>> {
        let (read, mut write) = UnixStream::connect(&self.0).await.ok()?.into_split();
        let mut lines = BufReader::new(read).lines();
        write.write_all(format!("{}\n", route.host.address).as_bytes()).await.ok()?;
        if lines.next_line().await.ok()?? != "here" {
            return None;
        }
        Some(Box::new(Visit { ends: Mutex::new((lines, write)) }))
    }
}

/// A conversation with one simulated host.
struct Visit {
    ends: Mutex<(tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>, tokio::net::unix::OwnedWriteHalf)>,
}

impl Visit {
    async fn answer(&self, request: &Request) -> Result<Answer, LinkError> {
        let lost = |error: std::io::Error| LinkError::Lost(error.to_string());
        let mut ends = self.ends.lock().await;
        let (lines, write) = &mut *ends;
        let mut line = serde_json::to_vec(request).map_err(|error| LinkError::InvalidAnswer(error.to_string()))?;
        line.push(b'\n');
        write.write_all(&line).await.map_err(lost)?;
        let gone = || LinkError::Lost("the simulated host does not answer; is it powered off?".to_owned());
        let said = lines.next_line().await.map_err(lost)?.ok_or_else(gone)?;
        serde_json::from_str(&said).map_err(|error| LinkError::InvalidAnswer(error.to_string()))
    }
}

impl Link for Visit {
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        _tell: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>> {
        Box::pin(async move {
            tokio::time::timeout(within, self.answer(request)).await.unwrap_or(Err(LinkError::TimedOut(within)))
        })
    }

    fn host_key(&self) -> &str {
        ""
    }

    fn open(&self) -> bool {
        true
    }
}
