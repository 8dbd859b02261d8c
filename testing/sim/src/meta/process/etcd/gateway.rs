//! The JSON gateway of etcd, and its health and version pages: the calls that operators and people make.

use std::convert::Infallible;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use serde_json::{Value, json};

use super::super::super::delays::Step;
use super::Etcd;
use super::cluster::EtcdError;

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The size of a chunk of a snapshot.
const PIECE: usize = 32 * 1024;
/// The size limit of a request.
const MAX_SIZE: usize = 1 << 20;

/// Answers a request.
pub(super) async fn answer(etcd: Arc<Etcd>, request: Request<hyper::body::Incoming>) -> Response<Body> {
    etcd.sleep_if_slow().await;
    let path = request.uri().path().to_owned();
    let get = request.method() == Method::GET;
    if get {
        return page(&etcd, &path);
    }
    let body = match Limited::new(request.into_body(), MAX_SIZE).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return refuse(&EtcdError(3, error.to_string())),
    };
    let asked: Value = if body.is_empty() { json!({}) } else { serde_json::from_slice(&body).unwrap_or_default() };
    if path == "/v3/maintenance/snapshot" {
        return snapshot(&etcd);
    }
    let (before, after) = steps(&path);
    etcd.delay(before).await;
    let answer = call(&etcd, &path, &asked);
    etcd.delay(after).await;
    match answer {
        Some(Ok(answer)) => json_page(200, &answer),
        Some(Err(refused)) => refuse(&refused),
        None => json_page(404, &json!({ "code": 5, "message": "Not Found", "details": [] })),
    }
}

/// The delayable steps of a call: before its effect, and after it.
fn steps(path: &str) -> (Option<Step>, Option<Step>) {
    match path {
        "/v3/cluster/member/list" => (None, Some(Step::MemberList)),
        "/v3/cluster/member/remove" => (Some(Step::MemberRemove), Some(Step::MemberRemoved)),
        "/v3/cluster/member/add" => (Some(Step::MemberAdd), Some(Step::MemberAdded)),
        "/v3/cluster/member/promote" => (Some(Step::MemberPromote), Some(Step::MemberPromoted)),
        _ => (None, None),
    }
}

/// Answers the health and version pages.
fn page(etcd: &Etcd, path: &str) -> Response<Body> {
    if path == "/version" {
        let (major, minor) = etcd.cluster.data();
        let data = format!("{major}.{minor}.0");
        return json_page(200, &json!({ "etcdserver": etcd.version, "etcdcluster": data, "storage": data }));
    }
    match etcd.health(path) {
        None => text_page(404, "404 page not found\n"),
        Some(Ok(())) if path == "/health" => json_page(200, &json!({ "health": "true", "reason": "" })),
        Some(Err(why)) if path == "/health" => json_page(503, &json!({ "health": "false", "reason": why })),
        Some(Ok(())) => text_page(200, "ok\n"),
        Some(Err(why)) => {
            text_page(503, &format!("[-]linearizable_read failed: {why}\n{} check failed\n", path.trim_matches('/')))
        }
    }
}

fn call(etcd: &Etcd, path: &str, asked: &Value) -> Option<Result<Value, EtcdError>> {
    let cluster = &etcd.cluster;
    // In JSON, 64-bit numbers are strings, but some clients send plain numbers.
    let id = || asked["ID"].as_u64().or_else(|| asked["ID"].as_str()?.parse().ok()).unwrap_or_default();
    let urls = || -> Vec<String> {
        let given = asked["peerURLs"].as_array().into_iter().flatten();
        given.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let quorum = || cluster.leader().map(drop).ok_or_else(EtcdError::no_leader);
    let members = || cluster.members().iter().map(super::cluster::Member::shown).collect::<Vec<_>>();
    let told = |done: Result<Value, EtcdError>| {
        done.map(|mut answer| {
            answer["header"] = header(etcd);
            answer
        })
    };
    let learns = cluster.learns(etcd.member);
    Some(told(match path {
        path if learns && path != "/v3/maintenance/status" => {
            Err(EtcdError(14, "etcdserver: rpc not supported for learner".to_owned()))
        }
        "/v3/cluster/member/list" => {
            let linearizable = asked["linearizable"] == true;
            if linearizable { quorum() } else { Ok(()) }.map(|()| json!({ "members": members() }))
        }
        "/v3/cluster/member/add" => cluster
            .add(urls(), asked["isLearner"] == true)
            .map(|added| json!({ "member": added.shown(), "members": members() })),
        "/v3/cluster/member/remove" => cluster.remove(id()).map(|()| json!({ "members": members() })),
        "/v3/cluster/member/update" => cluster.update(id(), urls()).map(|()| json!({ "members": members() })),
        "/v3/cluster/member/promote" => cluster.promote(id()).map(|()| json!({ "members": members() })),
        "/v3/maintenance/status" => Ok(status(etcd)),
        "/v3/maintenance/alarm" => quorum().map(|()| json!({ "alarms": [] })),
        "/v3/maintenance/defragment" => Ok(json!({})),
        "/v3/maintenance/transfer-leadership" => {
            let target = asked["targetID"].as_u64().or_else(|| asked["targetID"].as_str()?.parse().ok());
            cluster.transfer(etcd.member, target.unwrap_or_default()).map(|()| json!({}))
        }
        "/v3/maintenance/hash" => Ok(json!({ "hash": (cluster.storage().revision() % u64::from(u32::MAX)) })),
        // Only the count is returned: no client reads objects without their API server.
        "/v3/kv/range" => quorum().map(|()| json!({ "count": cluster.storage().size().0.to_string() })),
        _ => return None,
    }))
}

fn header(etcd: &Etcd) -> Value {
    json!({
        "cluster_id": etcd.cluster.id.to_string(),
        "member_id": etcd.member.to_string(),
        "revision": etcd.cluster.storage().revision().to_string(),
        "raft_term": etcd.cluster.term().to_string(),
    })
}

fn status(etcd: &Etcd) -> Value {
    let cluster = &etcd.cluster;
    let size = cluster.storage().size().1.max(20_480).to_string();
    let revision = cluster.storage().revision().to_string();
    let (major, minor) = cluster.data();
    let mut status = json!({
        "version": etcd.version, "dbSize": size, "dbSizeInUse": size,
        "leader": cluster.leader().map_or(0, |(leader, _)| leader).to_string(),
        "raftIndex": revision, "raftAppliedIndex": revision, "raftTerm": cluster.term().to_string(),
        "storageVersion": format!("{major}.{minor}.0"), "dbSizeQuota": "2147483648",
    });
    if cluster.leader().is_none() {
        status["errors"] = json!(["etcdserver: no leader"]);
    }
    if cluster.members().iter().any(|member| member.id == etcd.member && member.learner) {
        status["isLearner"] = true.into();
    }
    status
}

/// The whole snapshot in chunks, with a digest at the end, as etcd sends it.
fn snapshot(etcd: &Etcd) -> Response<Body> {
    let mut bytes = etcd.cluster.storage().snapshot();
    let sum = digest(&SHA256, &bytes);
    bytes.extend_from_slice(sum.as_ref());
    let head = header(etcd);
    let (major, minor) = etcd.cluster.data();
    let version = format!("{major}.{minor}.0");
    let total = bytes.len();
    let pieces = (0..total).step_by(PIECE).map(move |at| {
        let piece = &bytes[at..(at + PIECE).min(bytes.len())];
        let left = bytes.len() - at - piece.len();
        let result = json!({
            "header": head, "remaining_bytes": left.to_string(), "blob": STANDARD.encode(piece), "version": version,
        });
        Ok(Frame::data(Bytes::from(format!("{}\n", json!({ "result": result })))))
    });
    // The chunks are built on demand: a slow reader costs the memory of one chunk.
    respond(200, "application/json", StreamBody::new(stream::iter(pieces)).boxed_unsync())
}

fn refuse(EtcdError(code, message): &EtcdError) -> Response<Body> {
    let status = match code {
        3 | 9 => 400,
        4 => 504,
        5 => 404,
        14 => 503,
        _ => 500,
    };
    json_page(status, &json!({ "code": code, "message": message, "details": [] }))
}

fn json_page(code: u16, value: &Value) -> Response<Body> {
    respond(code, "application/json", Full::new(Bytes::from(value.to_string())).boxed_unsync())
}

fn text_page(code: u16, text: &str) -> Response<Body> {
    respond(code, "text/plain; charset=utf-8", Full::new(Bytes::from(text.to_owned())).boxed_unsync())
}

fn respond(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
