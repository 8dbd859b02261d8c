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
use crate::store::{SnapshotInfo, SnapshotStore};
use crate::take::SnapshotTaken;

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Signs what came once more, with the secret that the store knows.
fn well_signed(request: &http::request::Parts, body: &[u8]) -> bool {
    let header = |name: &str| request.headers.get(name).and_then(|one| one.to_str().ok()).unwrap_or_default();
    let keys = AccessKeys { id: "id".to_owned(), secret: "hidden".to_owned() };
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
    let place = SnapshotStore::Bucket(bucket(url, keys.path(), "hidden"));
    let encryption = encryption(keys.path());
    let (file, back) = (work.path().join("db"), work.path().join("back"));
    let (cluster_keys, sealed) = crate::store::tests::keys_of_pay();
    for (name, size) in [("20260101-000000", 10), ("20260102-000000", PIECE + 7), ("20260103-000000", 1)] {
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::fs::write(&file, &bytes).unwrap();
        let sha256 = hex(Sha256::digest(&bytes).as_slice());
        let at = Timestamp::constant(1_800_000_000, 0);
        let taken = SnapshotTaken { at, revision: 7, bytes: size as u64, sha256, etcd: None };
        let described = SnapshotInfo { name: name.to_owned(), taken, revision: 8, keys: 3 };
        let key = place.put(&encryption, &file, &described, Some(&sealed), None).await.unwrap();
        assert!(place.cluster_keys(&encryption, name).await.unwrap() == cluster_keys);
        assert_eq!(place.fetch(&encryption, name, &back, false).await.unwrap(), (described, Some(key)));
        assert_eq!(std::fs::read(&back).unwrap(), bytes, "{name}");
    }
    assert_eq!(place.list().await.unwrap(), ["20260101-000000", "20260102-000000", "20260103-000000"]);
    place.remove("20260102-000000").await.unwrap();
    // A deeper prefix, such as that of another meta cluster: none of its snapshots counts as one of this prefix, and none is removed.
    objects.lock().unwrap().insert("fleet/pay/fleet/shop/20270101-000000.json".to_owned(), Vec::new());
    assert_eq!(place.list().await.unwrap(), ["20260101-000000", "20260103-000000"]);
    objects.lock().unwrap().remove("fleet/pay/fleet/shop/20270101-000000.json");
    let left: Vec<_> = objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(left.len(), 6, "snapshot, description and keys of each: {left:?}");
    assert!(left.iter().all(|key| key.starts_with("fleet/pay/2026010") && !key.contains("20260102")));
    let missing = place.fetch(&encryption, "other", &back, false).await.unwrap_err().to_string();
    assert!(missing.contains("snapshot other"), "{missing}");
    objects.lock().unwrap().remove("fleet/pay/20260103-000000.keys");
    let old = place.cluster_keys(&encryption, "20260103-000000").await.unwrap_err().to_string();
    assert!(old.contains("20260103-000000") && old.contains("keys of the Cluster"), "{old}");
}

#[tokio::test]
async fn a_store_that_refuses_is_quoted() {
    let keys = tempfile::tempdir().unwrap();
    let (url, _) = store().await;
    let place = SnapshotStore::Bucket(bucket(url, keys.path(), "wrong"));
    let refused = place.list().await.unwrap_err().to_string();
    assert!(refused.contains("403") && refused.contains("The signature does not match"), "{refused}");
    assert!(!refused.contains("wrong"));
}

#[tokio::test]
async fn a_store_without_tls_is_not_asked_unless_that_is_allowed() {
    let keys = tempfile::tempdir().unwrap();
    let (url, objects) = store().await;
    let place = SnapshotStore::Bucket(Bucket { insecure: false, ..bucket(url, keys.path(), "hidden") });
    let refused = place.list().await.unwrap_err().to_string();
    assert!(refused.contains("is not https") && refused.contains("spec.snapshots.s3.insecure"), "{refused}");
    assert!(objects.lock().unwrap().is_empty());
}

/// A store that answers each request with what the test says, whatever was asked.
async fn hostile(answer: fn(&http::request::Parts) -> (u16, Vec<u8>)) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| async move {
                    let (code, body) = answer(&request.into_parts().0);
                    let answer = Response::builder().status(code).body(Full::new(Bytes::from(body))).unwrap();
                    Ok::<_, std::convert::Infallible>(answer)
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    url
}

/// A description that says this length.
fn says(stored: u64) -> Vec<u8> {
    let mut beside = serde_json::to_value(crate::store::tests::described("20260101-000000", b"x")).unwrap();
    beside["stored"] = json!(stored);
    beside.to_string().into_bytes()
}

/// Fetches from such a store: how it is refused, and what is on the disk afterwards.
async fn refusal(answer: fn(&http::request::Parts) -> (u16, Vec<u8>)) -> (String, u64) {
    let (keys, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = SnapshotStore::Bucket(bucket(hostile(answer).await, keys.path(), "hidden"));
    let to = work.path().join("back");
    let refused = place.fetch(&encryption(keys.path()), "20260101-000000", &to, true).await.unwrap_err();
    assert!(!to.exists(), "nothing is given to the restore");
    let written = std::fs::metadata(to.with_extension("sealed")).map(|file| file.len()).unwrap_or_default();
    (format!("{refused:#}"), written)
}

#[tokio::test]
async fn a_store_that_sends_too_much_is_not_listened_to() {
    // A description, or an error, without an end.
    for code in [200, 403] {
        let answer: fn(&http::request::Parts) -> (u16, Vec<u8>) = match code {
            200 => |_| (200, vec![b' '; TEXT + 1]),
            _ => |_| (403, vec![b' '; TEXT + 1]),
        };
        let (refused, written) = refusal(answer).await;
        assert!(refused.contains("8388608 bytes"), "{refused}");
        assert_eq!(written, 0);
    }
    // A length that no disk has.
    let (refused, written) = refusal(|_| (200, says(u64::MAX))).await;
    assert!(refused.contains("18446744073709551615 bytes") && refused.contains("68719476736"), "{refused}");
    assert_eq!(written, 0);
    // More than the range that was asked for.
    let (refused, written) = refusal(|asked| match asked.uri.path().ends_with(".json") {
        true => (200, says(10)),
        false => (206, vec![0; 11]),
    })
    .await;
    assert!(refused.contains("11 bytes") && refused.contains(" 10"), "{refused}");
    assert_eq!(written, 0);
    let (refused, _) = refusal(|asked| match asked.uri.path().ends_with(".json") {
        true => (200, says(10)),
        false => (206, vec![0; PIECE + 1]),
    })
    .await;
    assert!(refused.contains("33554432 bytes"), "{refused}");
    // A list that has no end.
    let keys = tempfile::tempdir().unwrap();
    let url = hostile(|_| (200, b"<NextContinuationToken>a</NextContinuationToken>".to_vec())).await;
    let refused = SnapshotStore::Bucket(bucket(url, keys.path(), "hidden")).list().await.unwrap_err().to_string();
    assert!(refused.contains("same page"), "{refused}");
}

#[tokio::test]
async fn a_snapshot_that_the_store_changed_or_swapped_is_refused() {
    let (keys, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, objects) = store().await;
    let place = SnapshotStore::Bucket(bucket(url, keys.path(), "hidden"));
    let encryption = encryption(keys.path());
    let (file, back) = (work.path().join("db"), work.path().join("back"));
    let (first, second) = ("20260101-000000", "20260102-000000");
    for (name, text) in [(first, b"the older state"), (second, b"the newer state")] {
        std::fs::write(&file, text).unwrap();
        let described = crate::store::tests::described(name, text);
        place.put(&encryption, &file, &described, None, None).await.unwrap();
    }
    let key = |name: &str, end: &str| format!("fleet/pay/{name}.{end}");
    let honest = objects.lock().unwrap().clone();
    type Stored = BTreeMap<String, Vec<u8>>;
    let change = |change: &dyn Fn(&mut Stored)| {
        let mut changed = honest.clone();
        change(&mut changed);
        *objects.lock().unwrap() = changed;
    };
    let refused = async |what: &str, encryption: &crate::Encryption, part: &str| {
        let refused = place.fetch(encryption, second, &back, false).await;
        let refused = format!("{:#}", refused.expect_err(what));
        assert!(refused.contains(part), "{what}: {refused}");
        // What was opened in part is not there for a restore.
        assert!(!back.exists() || std::fs::read(&back).unwrap().is_empty(), "{what}");
    };
    change(&|all| *all.get_mut(&key(second, "db")).unwrap().last_mut().unwrap() ^= 1);
    refused("one bit of the content", &encryption, "rejected").await;
    // Its name is inside: an older one is not taken for it.
    change(&|all| {
        for end in ["db", "json"] {
            let older = all[&key(first, end)].clone();
            all.insert(key(second, end), older);
        }
    });
    refused("an older one under its name", &encryption, "rejected").await;
    change(&|all| {
        let (older, newer) = (all[&key(first, "db")].clone(), all[&key(second, "db")].clone());
        let spliced = [&newer[..newer.len() - 20], &older[older.len() - 20..]].concat();
        all.insert(key(second, "db"), spliced);
    });
    refused("the end of another one", &encryption, "rejected").await;
    change(&|all| {
        let whole = all.get_mut(&key(second, "db")).unwrap();
        whole.truncate(whole.len() - 1);
        let length = whole.len();
        let mut beside: serde_json::Value = serde_json::from_slice(&all[&key(second, "json")]).unwrap();
        beside["stored"] = json!(length);
        all.insert(key(second, "json"), beside.to_string().into_bytes());
    });
    refused("without its end", &encryption, "rejected").await;
    // A plain file with a fitting description.
    change(&|all| {
        all.insert(key(second, "db"), b"the state that an attacker wants".to_vec());
        let plain = crate::store::tests::described(second, b"the state that an attacker wants");
        all.insert(key(second, "json"), serde_json::to_vec(&plain).unwrap());
    });
    refused("one that is not encrypted", &encryption, "not encrypted").await;
    change(&|_| {});
    let other = crate::Encryption { cluster: "fleet/other".to_owned(), ..encryption.clone() };
    refused("one of another cluster", &other, "rejected").await;
    place.fetch(&encryption, second, &back, false).await.unwrap();
    assert_eq!(std::fs::read(&back).unwrap(), b"the newer state");
}

/// A store with TLS that shows a certificate of this authority for these names.
async fn tls_store(authority: &fleetwright_pki::Authority, names: &[&str], asked: Arc<Mutex<usize>>) -> String {
    use rustls_pki_types::pem::PemObject as _;
    let ips = names.iter().filter_map(|name| name.parse().ok());
    let dns = names.iter().filter(|name| name.parse::<std::net::IpAddr>().is_err()).map(|name| (*name).to_owned());
    let pair =
        authority.issue(fleetwright_pki::Leaf::server("store", dns.collect::<Vec<_>>(), ips.collect::<Vec<_>>()));
    let pair = pair.unwrap();
    let chain = vec![rustls_pki_types::CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap()];
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, asked) = (acceptor.clone(), asked.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |_: Request<Incoming>| {
                    *asked.lock().unwrap() += 1;
                    async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::new()))) }
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn a_store_with_another_certificate_hears_no_request() {
    let trusted = fleetwright_pki::Authority::new("trusted").unwrap();
    let other = fleetwright_pki::Authority::new("trusted").unwrap();
    for (what, authority, names, good) in [
        ("its own", &trusted, ["127.0.0.1"], true),
        ("of another authority of the same name", &other, ["127.0.0.1"], false),
        ("for another host", &trusted, ["store.example.com"], false),
    ] {
        let keys = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(0));
        let url = tls_store(authority, &names, asked.clone()).await;
        std::fs::write(keys.path().join("ca.crt"), trusted.cert_pem()).unwrap();
        let place = SnapshotStore::Bucket(Bucket { insecure: false, ..bucket(url, keys.path(), "hidden") });
        let listed = place.list().await;
        assert_eq!((listed.is_ok(), *asked.lock().unwrap() > 0), (good, good), "{what}: {listed:?}");
    }
}
