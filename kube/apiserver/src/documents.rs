//! The paths that are not resources: health, version, metrics, discovery, OpenAPI, and the keys that verify tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fleetwright_builtins::openapi::{self, Definition, ResourceDoc, SubresourceDoc};
use http::{HeaderValue, Method, Response, header};
use serde_json::Value;

use crate::body::{self, Body};
use crate::call::Call;
use crate::discovery;
use crate::document_cache::DocumentCache;
use crate::error::ApiError;
use crate::registry::{Registry, Resource};
use crate::state::Inner;
use crate::store::Key;

/// The paths in `/` beside those of groups.
const OTHERS: &[&str] = &[
    "/.well-known/openid-configuration",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/version",
];

/// Answers a request for a path that is not a resource.
pub(crate) fn answer(call: &Call) -> Result<Response<Body>, ApiError> {
    if !matches!(call.method, Method::GET | Method::HEAD) {
        let message = "the server does not allow this method on the requested resource";
        return Err(ApiError::new(405, "MethodNotAllowed", message).with_causes(Vec::new()));
    }
    let path = call.info.path.as_str();
    if let Some(page) = health(call, path) {
        return Ok(page);
    }
    let server = &call.server;
    let (customs, generation) = server.registry.customs();
    let set = server.documents.at(generation, customs.len());
    let all = || -> Vec<Arc<Resource>> { Registry::builtins().iter().chain(&customs).cloned().collect() };
    let host = call.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("kubernetes.default.svc");
    let aggregated = wants_aggregated(call)?;
    let trimmed = path.trim_end_matches('/');
    let segments: Vec<&str> = trimmed.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        [""] => Ok(body::json(200, &discovery::root_paths(&all(), OTHERS))),
        ["version"] => Ok(body::json(200, &discovery::version(call.server.version.as_ref()))),
        ["metrics"] => {
            let removals = server.interceptor.as_ref().map(|interceptor| interceptor.removals()).unwrap_or_default();
            let page = server.metrics.page(&server.store, &server.in_flight_limiter, &removals);
            Ok(body::respond(200, "text/plain; version=0.0.4; charset=utf-8", body::full(page)))
        }
        [".well-known", "openid-configuration"] => {
            Ok(keys(server.tokens.openid_configuration(host), "application/json"))
        }
        ["openid", "v1", "jwks"] => Ok(keys(server.tokens.jwks(), "application/jwk-set+json")),
        ["api"] if !aggregated => Ok(body::json(200, &discovery::core_versions(host))),
        [name @ ("api" | "apis")] if aggregated => {
            let key = format!("{name}:aggregated");
            let document = set.get(&key, || bytes(discovery::aggregated(&all(), *name == "api")));
            document
                .map(|document| tagged(call, document, discovery::AGGREGATED))
                .ok_or_else(ApiError::no_such_resource)
        }
        ["apis"] => Ok(document(call, set.get("apis", || bytes(discovery::group_list(&all()))))),
        ["apis", group] => Ok(document(call, set.get(trimmed, || discovery::group(&all(), group).and_then(bytes)))),
        ["api", version] => match set.get(trimmed, || discovery::resource_list(&all(), "", version).and_then(bytes)) {
            None => nothing_here(""),
            found => Ok(document(call, found)),
        },
        ["apis", group, version] => {
            match set.get(trimmed, || discovery::resource_list(&all(), group, version).and_then(bytes)) {
                None => nothing_here(group),
                found => Ok(document(call, found)),
            }
        }
        ["openapi", "v2"] => Ok(openapi_v2(call)),
        ["openapi", "v3"] => Ok(document(call, set.get("openapi", || openapi_index(server, &set, &all())))),
        ["openapi", "v3", "api", version] => Ok(document(call, openapi_document(server, &set, &customs, "", version))),
        ["openapi", "v3", "apis", group, version] => {
            Ok(document(call, openapi_document(server, &set, &customs, group, version)))
        }
        _ => Ok(page_not_found()),
    }
}

/// The 404 of a missing path: known groups answer with a `Status`, unknown ones like the mux.
pub(crate) fn nothing_here(group: &str) -> Result<Response<Body>, ApiError> {
    if Registry::builtins().iter().any(|resource| &*resource.group == group) {
        return Err(ApiError::no_such_resource());
    }
    Ok(page_not_found())
}

/// The answer of the real server's mux to an unknown path.
pub(crate) fn page_not_found() -> Response<Body> {
    body::text(404, "404 page not found\n")
}

fn bytes(value: Value) -> Option<Bytes> {
    Some(value.to_string().into())
}

/// `/livez`, `/readyz`, `/healthz` and their single checks; none for other paths. The server itself is healthy if it answers: its controllers are
/// part of it. The interceptor checks the access to its objects. `?verbose` lists the checks, and so does a failed page.
fn health(call: &Call, path: &str) -> Option<Response<Body>> {
    let mut parts = path.trim_matches('/').splitn(2, '/');
    let page = parts.next().filter(|page| matches!(*page, "livez" | "readyz" | "healthz"))?;
    let own = ["ping", "log"].map(|name| (name, true));
    let interceptor = call.server.interceptor.iter().flat_map(|interceptor| interceptor.checks());
    let others = interceptor.filter(|check| check.live || page == "readyz").map(|check| (check.name, check.passed));
    let checks: Vec<(&str, bool)> = own.into_iter().chain(others).collect();
    if let Some(asked) = parts.next() {
        return Some(match checks.iter().find(|(name, _)| *name == asked) {
            Some((_, true)) => body::text(200, "ok"),
            Some((_, false)) => body::text(500, format!("internal server error: {asked} failed\n")),
            None => page_not_found(),
        });
    }
    let excluded = |name: &str| call.query.all("exclude").any(|given| given == name);
    let passed = checks.iter().all(|(name, passed)| *passed || excluded(name));
    if passed && call.query.all("verbose").next().is_none() {
        return Some(body::text(200, "ok"));
    }
    let mut text = String::new();
    for (name, passed) in checks {
        text.push_str(&match (excluded(name), passed) {
            (true, _) => format!("[+]{name} excluded: ok\n"),
            (false, true) => format!("[+]{name} ok\n"),
            (false, false) => format!("[-]{name} failed: reason withheld\n"),
        });
    }
    text.push_str(&format!("{page} check {}\n", if passed { "passed" } else { "failed" }));
    Some(body::text(if passed { 200 } else { 500 }, text))
}

/// Whether the client requests the aggregated form; an error when it accepts unknown forms only.
fn wants_aggregated(call: &Call) -> Result<bool, ApiError> {
    let accept = call.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let clauses: Vec<String> = accept.split(',').map(|clause| clause.replace(' ', "")).collect();
    let aggregated = |clause: &String| {
        clause.starts_with("application/json")
            && ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
                .iter()
                .all(|part| clause.split(';').any(|given| given == *part))
    };
    if clauses.iter().any(aggregated) {
        return Ok(true);
    }
    if clauses.iter().all(|clause| clause.contains(";as=APIGroupDiscovery")) {
        return Err(ApiError::not_acceptable());
    }
    Ok(false)
}

fn keys(text: String, content_type: &str) -> Response<Body> {
    let mut response = body::respond(200, content_type, body::full(text));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

fn document(call: &Call, document: Option<Bytes>) -> Response<Body> {
    match document {
        Some(document) => tagged(call, document, "application/json"),
        None => page_not_found(),
    }
}

/// A document with its ETag; 304 for a client that has this version.
fn tagged(call: &Call, document: Bytes, content_type: &str) -> Response<Body> {
    let tag = discovery::etag(&document);
    let has = call.headers.get(header::IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let right_hash = call.query.get("hash").is_some_and(|hash| tag.trim_matches('"') == hash);
    let mut response = if has {
        body::respond(304, content_type, body::full(Bytes::new()))
    } else {
        body::respond(200, content_type, body::full(document))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    if right_hash {
        // The address changes with the content.
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// `/openapi/v2`, an empty document: clients that know v3 request it only to learn that it does not have a kind either.
fn openapi_v2(call: &Call) -> Response<Body> {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let accepts = call.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains(PROTOBUF) {
        // Document { swagger: "2.0", info: { title: "Kubernetes", version: "v1.37" }, paths: {} }
        let bytes: &[u8] = b"\x0a\x032.0\x12\x13\x0a\x0aKubernetes\x12\x05v1.37\x42\x00";
        // Not the requested type: with its `@`, Go's own media type parser rejects it.
        let content_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        return body::respond(200, content_type, body::full(Bytes::from_static(bytes)));
    }
    let info = serde_json::json!({"title": "Kubernetes", "version": "v1.37"});
    body::json(200, &serde_json::json!({"swagger": "2.0", "info": info, "paths": {}}))
}

fn openapi_index(server: &Arc<Inner>, set: &DocumentCache, all: &[Arc<Resource>]) -> Option<Bytes> {
    let mut documents = BTreeMap::new();
    for resource in all {
        let path = discovery::openapi_path(&resource.group, &resource.version);
        if let std::collections::btree_map::Entry::Vacant(entry) = documents.entry(path)
            && let Some(document) = openapi_document(server, set, all, &resource.group, &resource.version)
        {
            entry.insert(document);
        }
    }
    bytes(discovery::openapi_index(documents.iter().map(|(path, document)| (path.as_str(), document))))
}

fn openapi_document(
    server: &Arc<Inner>,
    set: &DocumentCache,
    customs: &[Arc<Resource>],
    group: &str,
    version: &str,
) -> Option<Bytes> {
    if let Some(document) = openapi::built_in(group, version) {
        return Some(document);
    }
    let mut resources: Vec<&Arc<Resource>> =
        customs.iter().filter(|r| r.custom().is_some() && *r.group == *group && *r.version == *version).collect();
    if resources.is_empty() {
        return None;
    }
    resources.sort_by(|a, b| a.plural.cmp(&b.plural));
    set.get(&format!("openapi:{group}/{version}"), || {
        let schemas: Vec<Value> = resources.iter().map(|resource| schema_of(server, resource)).collect();
        let docs: Vec<ResourceDoc<'_>> =
            resources.iter().zip(&schemas).map(|(resource, schema)| resource_doc(resource, schema)).collect();
        bytes(openapi::document(group, version, &docs))
    })
}

/// The schema as in its definition.
fn schema_of(server: &Inner, resource: &Resource) -> Value {
    let name = format!("{}.{}", resource.plural, resource.group);
    let definition = server
        .registry
        .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        .and_then(|definitions| server.store.get(&definitions.storage, &Key::new("", &name)))
        .map(|object| object.value())
        .unwrap_or_default();
    let versions = definition["spec"]["versions"].as_array();
    let version = versions.into_iter().flatten().find(|version| version["name"] == *resource.version);
    version.map(|version| version["schema"]["openAPIV3Schema"].clone()).unwrap_or_default()
}

fn resource_doc<'a>(resource: &'a Resource, schema: &'a Value) -> ResourceDoc<'a> {
    let subresources = resource.subresources.iter().map(|sub| SubresourceDoc {
        name: &sub.name,
        gvk: (&sub.group, &sub.version, &sub.kind),
        type_name: (&*sub.kind == "Scale").then_some("io.k8s.api.autoscaling.v1.Scale"),
        verbs: sub.verbs.clone(),
    });
    ResourceDoc {
        group: &resource.group,
        version: &resource.version,
        kind: &resource.kind,
        list_kind: &resource.list_kind,
        plural: &resource.plural,
        namespaced: resource.namespaced,
        verbs: resource.verbs.clone(),
        returns_deleted: false,
        subresources: subresources.collect(),
        definition: Definition::Custom(schema),
    }
}
