//! The way to simulated hosts from other processes: a socket beside the kubeconfig of `fleetwright up`, where SSH leads to real ones.
//!
//! Who connects names an address in a line, hears whether there is such a host, and then speaks to its helper as over SSH. Only questions are
//! answered: what changes hosts is the operator's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fleetwright_sim::Fleet;
use fleetwright_transport::{Hop, Limits, Link, LinkError, Login, Route, Transport as _, Trust};
use fleetwright_wire::{Answer, Failure, FailureKind, Progress, Request};
use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

/// The socket's name, in the folder of the kubeconfig.
const SOCKET: &str = "hosts.sock";

const LONGEST: Duration = Duration::from_secs(60);

/// Opens the door to fleets; it closes with the task.
pub(super) fn open(folder: &Path, fleets: Vec<Fleet>) -> anyhow::Result<(PathBuf, JoinHandle<()>)> {
    let path = folder.join(SOCKET);
    // The folder's lock is ours: whoever left it there is gone.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    let task = tokio::spawn(async move {
        let mut visitors = JoinSet::new();
        loop {
            tokio::select! {
                Ok((stream, _)) = listener.accept() => {
                    visitors.spawn(serve(stream, fleets.clone()));
                }
                Some(_) = visitors.join_next() => {}
            }
        }
    });
    Ok((path, task))
}

/// Serves one visitor until they leave.
async fn serve(stream: UnixStream, fleets: Vec<Fleet>) -> Option<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let address = lines.next_line().await.ok()??;
    let fleet = fleets.into_iter().find(|fleet| fleet.known(&address).is_some());
    write.write_all(if fleet.is_some() { b"here\n" } else { b"unknown\n" }).await.ok()?;
    let fleet = fleet?;
    let login = Login { key: "".into(), certificate: None };
    let host = Hop { address, port: 22, user: "root".into(), login, trust: Trust::FirstUse };
    let route = Route { machine: String::new(), host, jumps: vec![], limits: Limits::default() };
    let link = fleet.connect(Arc::new(route)).await.ok()?;
    loop {
        let request: Request = serde_json::from_str(&lines.next_line().await.ok()??).ok()?;
        let answer = match request {
            Request::Observe(_) | Request::Recall { .. } | Request::Log { .. } => {
                link.ask(&request, LONGEST, &|_| {}).await.ok()?
            }
            _ => Answer::Failed(Failure {
                kind: FailureKind::Other,
                message: "only the operator changes hosts".to_owned(),
            }),
        };
        let mut line = serde_json::to_vec(&answer).ok()?;
        line.push(b'\n');
        write.write_all(&line).await.ok()?;
    }
}

/// The door, from outside.
#[derive(Clone, Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    /// The door beside a kubeconfig, if there is one.
    pub(crate) fn beside(kubeconfig: &Path) -> Option<Self> {
        let path = kubeconfig.parent()?.join(SOCKET);
        path.exists().then_some(Self(path))
    }

    /// A link to a simulated host; none if it is not simulated, or nobody is at home.
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
        let mut line = serde_json::to_vec(request).map_err(|error| LinkError::Nonsense(error.to_string()))?;
        line.push(b'\n');
        write.write_all(&line).await.map_err(lost)?;
        let gone = || LinkError::Lost("the simulated host does not answer; is it powered off?".to_owned());
        let said = lines.next_line().await.map_err(lost)?.ok_or_else(gone)?;
        serde_json::from_str(&said).map_err(|error| LinkError::Nonsense(error.to_string()))
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
            tokio::time::timeout(within, self.answer(request)).await.unwrap_or(Err(LinkError::Late(within)))
        })
    }

    fn host_key(&self) -> &str {
        ""
    }

    fn open(&self) -> bool {
        true
    }
}
