//! A small store, which checks signatures as a real one does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

use super::*;
use crate::store::tests::encryption;
use crate::store::{Described, Place};
use crate::take::Taken;

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Signs what came once more, with the secret that the store knows.
fn well_signed(request: &http::request::Parts, body: &[u8]) -> bool {
    let header = |name: &str| request.headers.get(name).and_then(|one| one.to_str().ok()).unwrap_or_default();
    let keys = Keys { id: "id".to_owned(), secret: "hidden".to_owned() };
    let range = header("range");
    let more = [("range", range)];
    let sha256 = hex(Sha256::digest(body).as_slice());
    let unsigned = Unsigned {
        method: request.method.as_str(),
        host: header("host"),
        path: request.uri.path(),
        query: request.uri.query().unwrap_or_default(),
        headers: if range.is_empty() { &[] } else { &more },
        sha256: &sha256,
    };
    let time = header("x-amz-date");
    let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).unwrap();
    let at = at.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
    sign(&unsigned, &keys, "here", at)[2].1 == header("authorization")
}

async fn answer(objects: Objects, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    let respond = |code: u16, body: Vec<u8>| {
        Response::builder().status(code).header("etag", "\"e\"").body(Full::new(Bytes::from(body))).unwrap()
    };
    if !well_signed(&head, &body) {
        return respond(403, b"<Error><Message>The signature does not match</Message></Error>".to_vec());
    }
    let mut objects = objects.lock().unwrap();
    let key = head.uri.path().strip_prefix("/backups").unwrap().trim_start_matches('/').to_owned();
    let query = head.uri.query().unwrap_or_default();
    let part = query.split('&').find_map(|one| one.strip_prefix("partNumber="));
    match (head.method.as_str(), part) {
        ("POST", _) if query == "uploads=" => respond(200, b"<UploadId>u/1</UploadId>".to_vec()),
        ("PUT", Some(part)) => {
            objects.insert(format!("parts/{part:0>5}"), body);
            respond(200, Vec::new())
        }
        ("POST", _) => {
            let parts: Vec<String> = objects.keys().filter(|key| key.starts_with("parts/")).cloned().collect();
            let whole = parts.iter().flat_map(|part| objects.remove(part).unwrap()).collect();
            objects.insert(key, whole);
            respond(200, b"<ETag>e</ETag>".to_vec())
        }
        ("PUT", _) => {
            objects.insert(key, body);
            respond(200, Vec::new())
        }
        ("DELETE", _) => {
            objects.remove(&key);
            respond(204, Vec::new())
        }
        ("GET", _) if key.is_empty() => {
            // Two at a time.
            let from = query.split('&').find_map(|one| one.strip_prefix("continuation-token=")).unwrap_or_default();
            let from = from.replace("%2F", "/");
            let mut rest = objects.keys().filter(|key| **key > from);
            let page: Vec<_> = rest.by_ref().take(2).collect();
            let mut text: String = page.iter().map(|key| format!("<Key>{key}</Key>")).collect();
            if let (Some(last), Some(_)) = (page.last(), rest.next()) {
                text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
            }
            respond(200, text.into_bytes())
        }
        ("GET", _) => match (objects.get(&key), head.headers.get("range")) {
            (None, _) => respond(404, Vec::new()),
            (Some(found), None) => respond(200, found.clone()),
            (Some(found), Some(range)) => {
                let range = range.to_str().unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (from, to): (usize, usize) = (range.0.parse().unwrap(), range.1.parse().unwrap());
                respond(206, found[from..=to.min(found.len() - 1)].to_vec())
            }
        },
        _ => respond(405, Vec::new()),
    }
}

async fn store() -> (String, Objects) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, objects) = (format!("http://{}", listener.local_addr().unwrap()), Objects::default());
    let kept = objects.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let kept = kept.clone();
                    async move { Ok::<_, std::convert::Infallible>(answer(kept, request).await) }
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (url, objects)
}

fn bucket(endpoint: String, keys: &Path, secret: &str) -> Bucket {
    std::fs::write(keys.join("accessKeyId"), "id\n").unwrap();
    std::fs::write(keys.join("secretAccessKey"), secret).unwrap();
    let (bucket, region, prefix) = ("backups".to_owned(), "here".to_owned(), "fleet/pay/".to_owned());
    Bucket { endpoint, bucket, region, prefix, keys: keys.to_owned(), insecure: true }
}

#[tokio::test]
async fn snapshots_go_to_a_store_and_come_back_also_those_that_go_in_pieces() {
    let (keys, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, objects) = store().await;
    let place = Place::Bucket(bucket(url, keys.path(), "hidden"));
    let encryption = encryption(keys.path());
    let (file, back) = (work.path().join("db"), work.path().join("back"));
    for (name, size) in [("20260101-000000", 10), ("20260102-000000", PIECE + 7), ("20260103-000000", 1)] {
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::fs::write(&file, &bytes).unwrap();
        let sha256 = hex(Sha256::digest(&bytes).as_slice());
        let at = Timestamp::constant(1_800_000_000, 0);
        let taken = Taken { at, revision: 7, bytes: size as u64, sha256 };
        let described = Described { name: name.to_owned(), taken, revision: 8, keys: 3 };
        let key = place.put(&encryption, &file, &described, None).await.unwrap();
        assert_eq!(place.fetch(&encryption, name, &back, false).await.unwrap(), (described, Some(key)));
        assert_eq!(std::fs::read(&back).unwrap(), bytes, "{name}");
    }
    assert_eq!(place.list().await.unwrap(), ["20260101-000000", "20260102-000000", "20260103-000000"]);
    place.remove("20260102-000000").await.unwrap();
    // Another Cluster whose prefix is deeper: none of its snapshots counts as one of this Cluster, and none is removed.
    objects.lock().unwrap().insert("fleet/pay/fleet/shop/20270101-000000.json".to_owned(), Vec::new());
    assert_eq!(place.list().await.unwrap(), ["20260101-000000", "20260103-000000"]);
    objects.lock().unwrap().remove("fleet/pay/fleet/shop/20270101-000000.json");
    let left: Vec<_> = objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(left.iter().all(|key| key.starts_with("fleet/pay/2026010") && !key.contains("20260102")));
    let missing = place.fetch(&encryption, "other", &back, false).await.unwrap_err().to_string();
    assert!(missing.contains("there is no snapshot other"), "{missing}");
}

#[tokio::test]
async fn a_store_that_refuses_is_quoted() {
    let keys = tempfile::tempdir().unwrap();
    let (url, _) = store().await;
    let place = Place::Bucket(bucket(url, keys.path(), "wrong"));
    let refused = place.list().await.unwrap_err().to_string();
    assert!(refused.contains("the store answers 403: The signature does not match"), "{refused}");
    assert!(!refused.contains("wrong"));
}

#[tokio::test]
async fn a_store_without_tls_is_not_asked_unless_that_is_allowed() {
    let keys = tempfile::tempdir().unwrap();
    let (url, objects) = store().await;
    let place = Place::Bucket(Bucket { insecure: false, ..bucket(url, keys.path(), "hidden") });
    let refused = place.list().await.unwrap_err().to_string();
    assert!(refused.contains("is not https") && refused.contains("spec.snapshots.s3.insecure"), "{refused}");
    assert!(objects.lock().unwrap().is_empty());
}
