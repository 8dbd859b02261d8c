//! A bucket of an S3-compatible store.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::sign::{AccessKeys, Unsigned, encoded, sign};
use crate::take::hex;

/// Size of the parts of large objects, and so the memory that a transfer needs.
const PIECE: usize = 32 << 20;

/// Maximum size of an answer that is not a part of a snapshot: a list, a description, an error. A larger answer is an error.
const TEXT: usize = 8 << 20;

/// Maximum size of a fetched snapshot. The store reports the size: without a limit it could fill the node's disk.
const MAX_SIZE: u64 = 64 << 30;

/// Maximum number of names that are read from a bucket.
const NAMES: usize = 100_000;

/// A bucket and the settings of its client.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// URL of the store.
    pub endpoint: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Region that requests are signed for.
    pub region: String,
    /// Prefix of the names of objects.
    pub prefix: String,
    /// Directory with `accessKeyId`, `secretAccessKey` and optionally `ca.crt`.
    pub keys: PathBuf,
    /// Whether the store may be used without TLS.
    pub insecure: bool,
}

struct S3Response {
    code: u16,
    etag: String,
    body: Vec<u8>,
}

/// A request: method, object, query and additional signed headers.
struct S3Request<'a> {
    method: &'a str,
    object: Option<&'a str>,
    query: &'a [(&'a str, &'a str)],
    headers: &'a [(&'a str, &'a str)],
}

impl Bucket {
    /// Name for people.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}/{}", self.endpoint.trim_end_matches('/'), self.bucket, self.prefix)
    }

    async fn client(&self) -> Result<Client> {
        ensure!(
            self.insecure || self.endpoint.starts_with("https://"),
            "{} is not https: use https, or set spec.snapshots.s3.insecure to true",
            self.endpoint
        );
        let mut cluster = json!({ "server": self.endpoint });
        if self.keys.join("ca.crt").exists() {
            cluster["certificate-authority"] = json!(self.keys.join("ca.crt"));
        }
        crate::etcd::client(cluster, json!({})).await
    }

    fn key(&self, name: &str) -> Result<String> {
        let path = self.keys.join(name);
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("the Secret of the S3 store has no key {name}"))?;
        Ok(text.trim().to_owned())
    }

    async fn send(&self, asked: &S3Request<'_>, body: Vec<u8>) -> Result<S3Response> {
        let keys = AccessKeys { id: self.key("accessKeyId")?, secret: self.key("secretAccessKey")? };
        let endpoint: http::Uri = self.endpoint.parse().context("the endpoint of the S3 store is not a URL")?;
        let host = endpoint.authority().context("the endpoint of the S3 store has no host")?.as_str();
        let path = match asked.object {
            Some(object) => format!("/{}/{}", self.bucket, encoded(&format!("{}{object}", self.prefix), false)),
            None => format!("/{}", self.bucket),
        };
        let mut query: Vec<_> =
            asked.query.iter().map(|(name, value)| (encoded(name, true), encoded(value, true))).collect();
        query.sort_unstable();
        let query = query.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
        let sha256 = hex(Sha256::digest(&body).as_slice());
        let S3Request { method, headers, .. } = *asked;
        let unsigned = Unsigned { method, host, path: &path, query: &query, headers, sha256: &sha256 };
        let signed = sign(&unsigned, &keys, &self.region, Timestamp::now());
        let uri = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut request = http::Request::builder().method(method).uri(uri).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        for (name, value) in &signed {
            request = request.header(*name, value);
        }
        let about = || format!("{method} {}", self.name());
        let answer = self.client().await?.send(request.body(Body::from(body))?).await.with_context(about)?;
        let code = answer.status().as_u16();
        let etag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
        let most = if headers.iter().any(|(name, _)| *name == "range") { PIECE } else { TEXT };
        let body = Limited::new(answer.into_body(), most).collect().await.map_err(|error| {
            match error.is::<http_body_util::LengthLimitError>() {
                true => anyhow!("{}: the response of the store exceeds the limit of {most} bytes", about()),
                false => anyhow!("{}: {error}", about()),
            }
        })?;
        Ok(S3Response { code, etag, body: body.to_bytes().to_vec() })
    }

    /// The answer to a request, or the error of the store.
    async fn well(&self, asked: &S3Request<'_>, body: Vec<u8>) -> Result<S3Response> {
        let answer = self.send(asked, body).await?;
        if (200..300).contains(&answer.code) {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(&answer.body);
        let why = element(&text, "Message").or_else(|| element(&text, "Code")).unwrap_or_default();
        bail!("{} {}: the store responded with {}: {why}", asked.method, self.name(), answer.code)
    }

    pub(crate) async fn put(&self, object: &str, body: Vec<u8>) -> Result<()> {
        let asked = S3Request { method: "PUT", object: Some(object), query: &[], headers: &[] };
        self.well(&asked, body).await.map(drop)
    }

    /// Uploads a file, in parts if it is large.
    pub(crate) async fn put_file(&self, object: &str, path: &Path) -> Result<()> {
        let mut file = File::open(path)?;
        let first = piece(&mut file)?;
        if first.len() < PIECE {
            return self.put(object, first).await;
        }
        let begin = S3Request { method: "POST", object: Some(object), query: &[("uploads", "")], headers: &[] };
        let begun = self.well(&begin, Vec::new()).await?;
        let id = element(&String::from_utf8_lossy(&begun.body), "UploadId")
            .context("the store did not start the multipart upload")?;
        match self.pieces(object, &id, first, &mut file).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let query = [("uploadId", id.as_str())];
                let end = S3Request { method: "DELETE", object: Some(object), query: &query, headers: &[] };
                let _ = self.send(&end, Vec::new()).await;
                Err(error)
            }
        }
    }

    async fn pieces(&self, object: &str, id: &str, first: Vec<u8>, file: &mut File) -> Result<()> {
        let (mut next, mut number, mut parts) = (first, 1, String::new());
        while !next.is_empty() {
            let text = number.to_string();
            let query = [("partNumber", text.as_str()), ("uploadId", id)];
            let asked = S3Request { method: "PUT", object: Some(object), query: &query, headers: &[] };
            let etag = self.well(&asked, next).await?.etag;
            parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
            number += 1;
            next = piece(file)?;
        }
        let query = [("uploadId", id)];
        let end = S3Request { method: "POST", object: Some(object), query: &query, headers: &[] };
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let done = self.well(&end, body.into_bytes()).await?;
        let text = String::from_utf8_lossy(&done.body);
        // The store may answer 200 before it knows that the request failed.
        ensure!(element(&text, "ETag").is_some(), "the store rejected the upload: {}", text.trim());
        Ok(())
    }

    /// The content of an object; `None` if it does not exist.
    pub(crate) async fn get(&self, object: &str) -> Result<Option<Vec<u8>>> {
        let asked = S3Request { method: "GET", object: Some(object), query: &[], headers: &[] };
        match self.send(&asked, Vec::new()).await?.code {
            404 => Ok(None),
            _ => Ok(Some(self.well(&asked, Vec::new()).await?.body)),
        }
    }

    /// Downloads an object of that size to a file, part by part.
    pub(crate) async fn get_file(&self, object: &str, bytes: u64, to: &Path) -> Result<()> {
        ensure!(bytes <= MAX_SIZE, "the store reports {bytes} bytes for {object}; the limit is {MAX_SIZE}");
        let folder = to.parent().unwrap_or(Path::new("."));
        let free = rustix::fs::statvfs(folder).map(|found| found.f_bavail * found.f_frsize)?;
        ensure!(
            bytes < free,
            "the store reports {bytes} bytes for {object}, but {} has only {free} bytes free",
            folder.display()
        );
        let (mut file, mut at) = (File::create(to)?, 0);
        while at < bytes {
            let wanted = (PIECE as u64).min(bytes - at);
            let range = format!("bytes={at}-{}", at + wanted - 1);
            let headers = [("range", range.as_str())];
            let asked = S3Request { method: "GET", object: Some(object), query: &[], headers: &headers };
            let body = self.well(&asked, Vec::new()).await?.body;
            ensure!(!body.is_empty(), "{object} in the store is truncated");
            let sent = body.len() as u64;
            ensure!(sent <= wanted, "the store sent {sent} bytes of {object}, more than the requested {wanted}");
            at += sent;
            file.write_all(&body)?;
        }
        Ok(file.sync_all()?)
    }

    pub(crate) async fn delete(&self, object: &str) -> Result<()> {
        let asked = S3Request { method: "DELETE", object: Some(object), query: &[], headers: &[] };
        self.well(&asked, Vec::new()).await.map(drop)
    }

    /// The names of all objects, without the prefix.
    pub(crate) async fn list(&self) -> Result<Vec<String>> {
        let (mut all, mut from) = (Vec::new(), None::<String>);
        loop {
            let mut query = vec![("list-type", "2"), ("prefix", self.prefix.as_str())];
            if let Some(from) = &from {
                query.push(("continuation-token", from));
            }
            let asked = S3Request { method: "GET", object: None, query: &query, headers: &[] };
            let page = self.well(&asked, Vec::new()).await?.body;
            let text = String::from_utf8_lossy(&page);
            let keys = elements(&text, "Key");
            all.extend(keys.filter_map(|key| key.strip_prefix(&self.prefix).map(str::to_owned)));
            ensure!(
                all.len() <= NAMES,
                "{} has more than {NAMES} objects: remove objects that do not belong to snapshots",
                self.name()
            );
            let next = element(&text, "NextContinuationToken");
            ensure!(next.is_none() || next != from, "{} returned the same page of its list twice", self.name());
            from = next;
            if from.is_none() {
                return Ok(all);
            }
        }
    }
}

fn piece(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PIECE as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Texts of the elements of that name. Names of snapshots need no escapes, and tokens are sent back unchanged.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let begin = rest.find(&open)? + open.len();
        let end = begin + rest[begin..].find(&close)?;
        let found = rest[begin..end].replace("&amp;", "&");
        rest = &rest[end..];
        Some(found)
    })
}

fn element(text: &str, name: &str) -> Option<String> {
    elements(text, name).next()
}

#[cfg(test)]
mod tests;
