//! An S3 store on this machine, which is outside of the meta cluster.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// The bucket of the store.
const BUCKET: &str = "backups";

/// Records and lists the names of uploaded objects. It discards their content and checks no signatures: `fleetwright-snapshots` tests both.
pub struct Store {
    pub port: u16,
    /// URL without TLS.
    url: String,
    objects: Objects,
}

#[derive(Clone, Default)]
struct Objects(Arc<Mutex<BTreeSet<String>>>);

impl Store {
    /// Listens at this address of this machine until the runtime ends.
    pub async fn start(address: &str) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let (port, objects) = (listener.local_addr()?.port(), Objects::default());
        let own = objects.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let objects = own.clone();
                tokio::spawn(async move {
                    if let Err(error) = objects.serve(stream).await {
                        eprintln!("a request to the store failed: {error:#}");
                    }
                });
            }
        });
        Ok(Self { port, url: format!("http://{address}:{port}"), objects })
    }

    /// Takes a snapshot of the cluster `pay` into the store.
    pub async fn receives_a_snapshot(&self, world: &MetaFixture) -> Result<()> {
        let keys = Secret {
            metadata: ObjectMeta {
                name: Some("s3".to_owned()),
                annotations: Some([(names::ALLOWED_CLUSTERS.to_owned(), "pay".to_owned())].into()),
                ..ObjectMeta::default()
            },
            string_data: Some(
                ["accessKeyId", "secretAccessKey"].map(|key| (key.to_owned(), "hidden".to_owned())).into(),
            ),
            ..Secret::default()
        };
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
        secrets.create(&PostParams::default(), &keys).await?;
        let s3 = json!({ "endpoint": self.url, "bucket": BUCKET, "secretRef": { "name": "s3" }, "insecure": true });
        let ask = json!({
            "metadata": { "annotations": { names::SNAPSHOT: "in-store" } },
            "spec": { "snapshots": { "s3": s3 } },
        });
        world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(&ask)).await?;
        let name = eventually("a snapshot to be taken into the store", async || {
            let status = world.clusters().get("pay").await?.status.unwrap_or_default();
            let taken = status.observed_snapshot_request.as_deref() == Some("in-store");
            let name = status.last_snapshot.map(|last| last.name).filter(|_| taken);
            Ok(name.ok_or_else(|| format!("{:#?}", status.conditions)))
        })
        .await?;
        let stored: Vec<_> = self.objects.names().iter().cloned().collect();
        for end in ["db", "json"] {
            let object = format!("{FLEET}/pay/{name}.{end}");
            ensure!(stored.contains(&object), "{object} is not among the uploaded objects {stored:?}");
        }
        Ok(())
    }
}

impl Objects {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request, and closes the connection.
    async fn serve(&self, mut stream: TcpStream) -> Result<()> {
        let mut request = Vec::new();
        let start = loop {
            if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut request).await? == 0 {
                // The test only checks that it can connect.
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&request[..start]).into_owned();
        let mut headers = head.lines().filter_map(|line| line.split_once(':'));
        let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.map_or(Ok(0), |(_, length)| length.trim().parse::<usize>())?;
        while request.len() < start + length {
            ensure!(stream.read_buf(&mut request).await? > 0, "the request is incomplete: {head}");
        }
        let body = self.answer(&head);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        Ok(stream.write_all(answer.as_bytes()).await?)
    }

    fn answer(&self, head: &str) -> String {
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match (method, path.strip_prefix(&format!("/{BUCKET}/"))) {
            ("PUT", Some(object)) => {
                self.names().insert(object.to_owned());
                String::new()
            }
            ("GET", None) => self.names().iter().map(|object| format!("<Key>{object}</Key>")).collect(),
            _ => String::new(),
        }
    }
}
