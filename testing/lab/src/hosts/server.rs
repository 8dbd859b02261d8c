//! A package server on this machine: a folder over HTTP, with faults on request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::tree::{digest, hex};

const CHUNK: usize = 256 << 10;

/// A fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Answers with this status.
    Fail(u16),
    /// Sends this number of bytes per second.
    Slow(u64),
    /// Sends other bytes of the same length.
    Wrong,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Accepts the request and does not answer.
    Hang,
}

/// A served file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The URL of the file.
    pub url: String,
    /// The SHA-256 of the file, in lower-case hex.
    pub sha256: String,
}

#[derive(Debug, Default)]
struct Shared {
    misbehaviour: BTreeMap<String, Misbehaviour>,
    requests: BTreeMap<String, u64>,
}

/// A folder over HTTP. Dropping it stops the server.
#[derive(Debug)]
pub struct PackageServer {
    address: SocketAddr,
    folder: TempDir,
    shared: Arc<Mutex<Shared>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PackageServer {
    /// Starts a server without files on a free port of this address.
    pub fn start(address: impl Into<IpAddr>) -> Result<Self> {
        // The name contains the pid, so that the reaper can tell the remains of a killed process from folders in use.
        let folder = tempfile::Builder::new().prefix(&format!("fleetwright-packages-{}-", process::id())).tempdir()?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let listener = std::net::TcpListener::bind((address.into(), 0)).context("no port for the package server")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let (root, seen) = (folder.path().to_owned(), shared.clone());
        // A runtime of its own: it serves while a test blocks its own, and ends with this value.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("package-server".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(listener, root, seen) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, folder, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{}", self.address, path.trim_start_matches('/'))
    }

    /// The served folder: a new file is served at once.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Serves a file of this machine under this path, without a copy.
    pub fn publish(&self, path: &str, file: &Path) -> Result<Published> {
        let place = self.place(path)?;
        let _ = fs::remove_file(&place);
        std::os::unix::fs::symlink(fs::canonicalize(file)?, &place)?;
        let sha256 = digest(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Published { url: self.url(path), sha256 })
    }

    /// Serves these bytes under that path.
    pub fn put(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<Published> {
        fs::write(self.place(path)?, bytes.as_ref())?;
        let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes.as_ref());
        Ok(Published { url: self.url(path), sha256: hex(sum.as_ref()) })
    }

    /// Sets the fault of all paths with this prefix; none removes it.
    pub fn misbehave(&self, prefix: &str, how: Option<Misbehaviour>) {
        let mut shared = self.shared.lock().unwrap_or_else(|broken| broken.into_inner());
        let prefix = prefix.trim_start_matches('/').to_owned();
        match how {
            Some(how) => drop(shared.misbehaviour.insert(prefix, how)),
            None => drop(shared.misbehaviour.remove(&prefix)),
        }
    }

    /// The number of requests for this path.
    pub fn requests(&self, path: &str) -> u64 {
        let shared = self.shared.lock().unwrap_or_else(|broken| broken.into_inner());
        shared.requests.get(path.trim_start_matches('/')).copied().unwrap_or_default()
    }

    fn place(&self, path: &str) -> Result<PathBuf> {
        let place = self.folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().context("a file is in a folder")?)?;
        Ok(place)
    }
}

impl Drop for PackageServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>>;

async fn serve(listener: std::net::TcpListener, folder: PathBuf, shared: Arc<Mutex<Shared>>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let folder = Arc::new(folder);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (folder, shared) = (folder.clone(), shared.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let (folder, shared) = (folder.clone(), shared.clone());
                async move { Ok::<_, Infallible>(answer(&request, &folder, &shared).await) }
            });
            // A client that disconnects is not an error of the server.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: &Request<Incoming>, folder: &Path, shared: &Mutex<Shared>) -> Response<Body> {
    let path = unescape(request.uri().path().trim_start_matches('/'));
    let how = {
        let mut shared = shared.lock().unwrap_or_else(|broken| broken.into_inner());
        *shared.requests.entry(path.clone()).or_default() += 1;
        shared.misbehaviour.iter().find(|(prefix, _)| path.starts_with(prefix.as_str())).map(|(_, how)| *how)
    };
    match how {
        Some(Misbehaviour::Fail(status)) => {
            return text(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                "failing on request\n",
            );
        }
        Some(Misbehaviour::Hang) => std::future::pending().await,
        _ => {}
    }
    let outside = Path::new(&path).components().any(|part| !matches!(part, Component::Normal(_)));
    let file = folder.join(&path);
    let (Ok(open), false) = (tokio::fs::File::open(&file).await, outside) else {
        return text(StatusCode::NOT_FOUND, "file not found\n");
    };
    let size = match open.metadata().await {
        Ok(found) if found.is_file() => found.len(),
        _ => return text(StatusCode::NOT_FOUND, "not a file\n"),
    };
    let sent = stream::unfold((open, 0_u64), move |(mut open, at)| async move {
        let mut chunk = vec![0; CHUNK];
        if let Some(Misbehaviour::Slow(rate)) = how {
            chunk.truncate(usize::try_from(rate / 10).unwrap_or(CHUNK).clamp(1, CHUNK));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if how == Some(Misbehaviour::Cut) {
            if at >= size / 2 {
                return Some((Err(std::io::ErrorKind::ConnectionReset.into()), (open, at)));
            }
            chunk.truncate(usize::try_from(size / 2 - at).unwrap_or(CHUNK).min(CHUNK));
        }
        match open.read(&mut chunk).await {
            Ok(0) => None,
            Ok(read) => {
                chunk.truncate(read);
                if how == Some(Misbehaviour::Wrong) {
                    chunk.iter_mut().for_each(|byte| *byte = !*byte);
                }
                Some((Ok(Frame::data(Bytes::from(chunk))), (open, at + read as u64)))
            }
            Err(error) => Some((Err(error), (open, at))),
        }
    });
    let mut response = Response::new(StreamBody::new(sent.boxed()));
    response.headers_mut().insert(http::header::CONTENT_LENGTH, size.into());
    response
}

/// Decodes percent escapes: Debian's file names have `+` and `~`, which clients may escape or not.
fn unescape(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text(status: StatusCode, said: &'static str) -> Response<Body> {
    let body = StreamBody::new(stream::iter([Ok(Frame::data(Bytes::from_static(said.as_bytes())))]).boxed());
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn get(url: &str) -> String {
        let rest = url.strip_prefix("http://").unwrap();
        let (address, path) = rest.split_once('/').unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn what_is_put_there_is_served_and_nothing_else() {
        let server = PackageServer::start([127, 0, 0, 1]).unwrap();
        let put = server.put("a/one~1+b.txt", "content").unwrap();
        assert_eq!(put.sha256, "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73");
        assert!(get(&put.url).ends_with("content"));
        assert!(get(&server.url("a/one%7e1%2Bb.txt")).ends_with("content"));
        assert_eq!(server.requests("a/one~1+b.txt"), 2);
        for wrong in ["other", "../../etc/passwd", "a", "%2e%2e/%2e%2e/etc/passwd"] {
            assert!(get(&server.url(wrong)).starts_with("HTTP/1.1 404"), "{wrong}");
        }
    }

    #[test]
    fn it_misbehaves_as_configured_until_that_is_undone() {
        let server = PackageServer::start([127, 0, 0, 1]).unwrap();
        let put = server.put("one", "content").unwrap();
        server.misbehave("one", Some(Misbehaviour::Fail(503)));
        assert!(get(&put.url).starts_with("HTTP/1.1 503"));
        server.misbehave("one", Some(Misbehaviour::Wrong));
        let answer = get(&put.url);
        assert!(answer.contains("content-length: 7") && !answer.ends_with("content"), "{answer}");
        server.misbehave("one", Some(Misbehaviour::Cut));
        assert!(!get(&put.url).ends_with("content"));
        server.misbehave("one", None);
        assert!(get(&put.url).ends_with("content"));
    }
}
