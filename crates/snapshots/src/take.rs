//! Takes a snapshot.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::FILE;
use crate::etcd::{Etcd, EtcdEndpoint};

/// Time for which members are retried. A CNI allows connections of a pod to etcd once it knows the pod's address, which may be a moment after the
/// pod's start; a pod that failed at once would fail each time, because the next pod has another address.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Wait between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Metadata of a snapshot from the time when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTaken {
    /// Time of the request: the snapshot contains all data written before it.
    pub at: Timestamp,
    /// Revision of etcd.
    pub revision: i64,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 digest of the file.
    pub sha256: String,
    /// Version of etcd that can read the data: an etcd of an older minor does not start with it. Descriptions of earlier versions of Fleetwright have
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
}

impl SnapshotTaken {
    /// Reads the metadata that [`take`] wrote to that directory.
    pub(crate) fn read(work: &Path) -> Result<Self> {
        let path = work.join("taken.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Requests a snapshot from the members in order, until one succeeds; `work` then contains it as `db`.
///
/// # Errors
/// No member succeeded within a minute; the error is that of the last one.
pub async fn take(source: &EtcdEndpoint, work: &Path) -> Result<SnapshotTaken> {
    let deadline = Instant::now() + RETRY_FOR;
    let members = source.members().await?;
    loop {
        let mut why = None;
        for member in &members {
            match from(member, work).await {
                Ok(taken) => {
                    std::fs::write(work.join("taken.json"), serde_json::to_vec(&taken)?)?;
                    return Ok(taken);
                }
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(error) if Instant::now() > deadline => {
                return Err(error.context("cannot take a snapshot from any etcd member"));
            }
            Some(_) => tokio::time::sleep(PAUSE).await,
            None => bail!("no etcd endpoint given"),
        }
    }
}

async fn from(member: &Etcd, work: &Path) -> Result<SnapshotTaken> {
    let (at, status) = (Timestamp::now(), member.status().await?);
    let revision = crate::etcd::revision(&status);
    let path = work.join(FILE);
    let mut file = tokio::fs::File::create(&path).await.with_context(|| format!("cannot write {}", path.display()))?;
    let mut lines = Box::pin(member.stream("maintenance/snapshot").await?.lines());
    let (mut sum, mut bytes, mut left) = (Sha256::new(), 0, true);
    let mut etcd = None;
    while let Some(line) = lines.next().await {
        let line = line.with_context(|| format!("{}: the snapshot stream was interrupted", member.url))?;
        if line.is_empty() {
            continue;
        }
        let piece: Value = serde_json::from_str(&line).context("a part of the snapshot stream is not JSON")?;
        let result = &piece["result"];
        ensure!(result.is_object(), "{}: the snapshot stream was interrupted: {}", member.url, piece["error"]);
        let blob = BASE64_STANDARD.decode(result["blob"].as_str().unwrap_or_default())?;
        sum.update(&blob);
        bytes += blob.len() as u64;
        left = crate::etcd::number(&result["remaining_bytes"]) > 0;
        // The storage version of exactly this data: while members change to a newer minor, it is older than the member, and is raised later.
        etcd = crate::etcd::version(&result["version"]).or(etcd);
        file.write_all(&blob).await.with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(!left && bytes > 0, "{}: the snapshot is incomplete", member.url);
    file.sync_all().await?;
    // etcd before 3.6 has no storage version; a newer one has none only while other members are older, and these can read its data.
    let old = |version: &String| {
        matches!(version.split('.').take(2).collect::<Vec<_>>()[..], ["3", "0" | "1" | "2" | "3" | "4" | "5"])
    };
    let etcd = etcd.or_else(|| crate::etcd::version(&status["version"]).filter(old));
    Ok(SnapshotTaken { at, revision, bytes, sha256: hex(sum.finalize().as_slice()), etcd })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::{Bytes, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use serde_json::json;
    use tokio::net::TcpSocket;

    use super::*;

    /// A member that already has etcd 3.7. The storage version of its data is in the snapshot, as from etcd 3.6 on.
    async fn answer(request: Request<Incoming>, storage: Option<&str>) -> Result<Response<Full<Bytes>>, Infallible> {
        let said = match request.uri().path() {
            "/v3/maintenance/status" => json!({ "header": { "revision": "7" }, "version": "3.7.0" }),
            "/v3/maintenance/snapshot" => {
                let blob = BASE64_STANDARD.encode("all it has");
                json!({ "result": { "blob": blob, "remaining_bytes": "0", "version": storage.unwrap_or_default() } })
            }
            other => panic!("{other} is asked for"),
        };
        Ok(Response::new(Full::new(Bytes::from(said.to_string()))))
    }

    /// Listens after a while, and answers with data of that storage version.
    async fn member(storage: Option<&'static str>, after: Duration) -> EtcdEndpoint {
        // Until the member listens, connections are refused, as by a NetworkPolicy before it knows the pod.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let listener = socket.listen(16).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let service = service_fn(move |request| answer(request, storage));
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        EtcdEndpoint { endpoints: vec![format!("http://{address}")], certificates: None, server_name: None }
    }

    #[tokio::test]
    async fn a_member_that_is_out_of_reach_at_first_is_asked_again() {
        let (source, work) = (member(None, PAUSE / 2).await, tempfile::tempdir().unwrap());
        let taken = take(&source, work.path()).await.unwrap();
        assert_eq!((taken.revision, taken.bytes), (7, 10));
        assert_eq!(std::fs::read(work.path().join(FILE)).unwrap(), b"all it has");
        assert_eq!(SnapshotTaken::read(work.path()).unwrap(), taken);
        let none = EtcdEndpoint { endpoints: Vec::new(), certificates: None, server_name: None };
        assert!(take(&none, work.path()).await.is_err());
    }

    #[tokio::test]
    async fn a_snapshot_has_the_version_of_etcd_that_its_data_needs() {
        let work = tempfile::tempdir().unwrap();
        // Not all members have changed to 3.7 yet. A member of 3.7 that reports no storage version runs beside older ones, which read its data.
        for (storage, needed) in [(Some("3.6.0"), Some("3.6.0")), (None, None)] {
            let source = member(storage, Duration::ZERO).await;
            let taken = take(&source, work.path()).await.unwrap();
            assert_eq!(taken.etcd.as_deref(), needed, "{storage:?}");
        }
        let earlier = r#"{"at":"2026-01-01T00:00:00Z","revision":7,"bytes":1,"sha256":"00"}"#;
        std::fs::write(work.path().join("taken.json"), earlier).unwrap();
        assert_eq!(SnapshotTaken::read(work.path()).unwrap().etcd, None);
    }
}
