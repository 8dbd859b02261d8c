//! The server side of [`crate::door`]: gives other processes read access to simulated hosts. Only the operator changes hosts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fleetwright_sim::Fleet;
use fleetwright_transport::{Hop, Login, Route, Transport as _, TransportLimits, Trust};
use fleetwright_wire::{Answer, Failure, FailureKind, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::door::SOCKET;

const MAX_TIME: Duration = Duration::from_secs(60);

/// Opens the socket for these fleets; it closes with the task.
pub(super) fn open(folder: &Path, fleets: Vec<Fleet>) -> anyhow::Result<(PathBuf, JoinHandle<()>)> {
    let path = folder.join(SOCKET);
    // This process holds the folder's lock: the owner of an old socket has ended.
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

/// Serves one connection until it closes.
async fn serve(stream: UnixStream, fleets: Vec<Fleet>) -> Option<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let address = lines.next_line().await.ok()??;
    let fleet = fleets.into_iter().find(|fleet| fleet.known(&address).is_some());
    write.write_all(if fleet.is_some() { b"here\n" } else { b"unknown\n" }).await.ok()?;
    let fleet = fleet?;
    let login = Login { key: "".into(), certificate: None };
    let host = Hop { address, port: 22, user: "root".into(), login, trust: Trust::FirstUse };
    let route = Route { machine: String::new(), host, jumps: vec![], limits: TransportLimits::default() };
    let link = fleet.connect(Arc::new(route)).await.ok()?;
    loop {
        let request: Request = serde_json::from_str(&lines.next_line().await.ok()??).ok()?;
        let answer = match request {
            Request::Observe(_) | Request::Recall { .. } | Request::Log { .. } => {
                link.ask(&request, MAX_TIME, &|_| {}).await.ok()?
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
