//! Request handling: authentication, authorization, and the dispatch to the part of the server that answers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use fleetwright_rbac::{Attributes, User};
use futures::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};

use crate::auth::{self, ClientCertificate};
use crate::body::{self, Body};
use crate::call::Call;
use crate::connections::ConnectionSlot;
use crate::documents::{self, nothing_here, page_not_found};
use crate::error::ApiError;
use crate::interceptor::{InterceptAction, InterceptedRequest};
use crate::registry::Origin;
use crate::request::{Query, RequestInfo};
use crate::state::Inner;
use crate::store::Key;
use crate::write_request::Warnings;
use crate::{list, objects, reviews, subresources, watch};

/// The peer of a connection.
#[derive(Clone)]
pub(crate) enum Peer {
    /// Code in the same process, as this user.
    Local(User),
    /// A TLS connection, with the verified client certificate.
    Remote(Option<Arc<ClientCertificate>>, Arc<ConnectionSlot>),
}

/// Answers a request.
pub(crate) async fn serve<B>(server: Arc<Inner>, request: Request<B>, peer: Peer) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let started = Instant::now();
    let (parts, incoming) = request.into_parts();
    let query = Query::parse(parts.uri.query());
    let info = Arc::new(RequestInfo::new(&parts.method, parts.uri.path(), &query));
    let mut known = !info.is_resource;
    let admitted = match admit(&server, &parts, &peer, &info) {
        Ok(user) => receive(&server, &user, &parts.method, incoming).await.map(|bytes| (user, bytes)),
        Err(error) => Err(error),
    };
    // A slot is taken when the whole body has arrived: its duration depends on the client.
    let admitted = admitted.and_then(|(user, bytes)| Ok((server.in_flight_limiter.take(&user, &info)?, user, bytes)));
    let mut answer = match admitted {
        Err(error) => body::error(&error),
        Ok((permit, user, bytes)) => match pass(&server, &info).await {
            Err(error) => body::error(&error),
            Ok(pretend) => {
                let Parts { method, headers, .. } = parts;
                let call = Arc::new(Call {
                    server: server.clone(),
                    user,
                    info: info.clone(),
                    query,
                    method,
                    headers,
                    body: bytes,
                    warnings: Warnings::default(),
                    pretend,
                });
                // A panic in one request must not end the connection with its other requests.
                let guarded = AssertUnwindSafe(dispatch(&call, &mut known)).catch_unwind().await;
                let answer = guarded
                    .unwrap_or_else(|_| {
                        Err(ApiError::internal("this request caused an apiserver panic. Look in the logs for details"))
                    })
                    .unwrap_or_else(|error| call.refuse(&error));
                let answer = with_warnings(answer, &call.warnings);
                // An answer takes memory until its client has read it, so that it keeps its slot until then.
                match permit {
                    Some(permit) => answer.map(|sent| body::with_guard(sent, permit)),
                    None => answer,
                }
            }
        },
    };
    let headers = answer.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        headers.insert("audit-id", id);
    }
    server.metrics.answered(&info, known, answer.status().as_u16(), started.elapsed());
    answer
}

/// Authenticates and authorises.
fn admit(server: &Arc<Inner>, parts: &Parts, peer: &Peer, info: &RequestInfo) -> Result<User, ApiError> {
    let user = match peer {
        Peer::Local(user) => user.clone(),
        Peer::Remote(certificate, slot) => {
            let user = server.authenticate(&parts.headers, certificate.as_deref())?;
            slot.belongs_to(&user, server.in_flight_limiter.is_privileged(&user));
            user
        }
    };
    let policy = server.policy();
    let user = auth::impersonate(&policy, &attributes(&user, info), &parts.headers)?.unwrap_or(user);
    let asked = attributes(&user, info);
    if !auth::node_may(&asked, &info.selected_node, &**server) {
        auth::authorize(&policy, &asked)?;
    }
    Ok(user)
}

fn attributes<'a>(user: &'a User, info: &'a RequestInfo) -> Attributes<'a> {
    if !info.is_resource {
        return Attributes::path(user, info.verb, &info.path);
    }
    let mut attributes = Attributes::resource(user, info.verb, &info.group, &info.resource)
        .in_namespace(&info.namespace)
        .named(if info.name.is_empty() { &info.selected } else { &info.name });
    attributes.version = &info.version;
    attributes.subresource = &info.subresource;
    attributes
}

/// Whether a request is only answered, without effect.
async fn pass(server: &Inner, info: &RequestInfo) -> Result<bool, ApiError> {
    let passage = match &server.interceptor {
        Some(interceptor) if info.is_resource => {
            interceptor.intercept(InterceptedRequest { verb: info.verb, resource: &info.resource }).await
        }
        _ => InterceptAction::Continue,
    };
    if let InterceptAction::Refuse(code, message) = passage {
        let reason = if code == 504 { "Timeout" } else { "" };
        return Err(ApiError::new(code, reason, message));
    }
    Ok(passage == InterceptAction::Pretend)
}

/// The body of a request. A body that has arrived completely needs no slot among those that are being received.
async fn receive<B>(server: &Inner, user: &User, method: &Method, incoming: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let limit = server.body_limit;
    let mut collecting = Box::pin(Limited::new(incoming, limit).collect());
    let collected = match futures::poll!(&mut collecting) {
        Poll::Ready(collected) => collected,
        Poll::Pending => {
            let _place = server.in_flight_limiter.receive(user)?;
            match tokio::time::timeout(server.connections.body, collecting).await {
                Ok(collected) => collected,
                Err(_) => {
                    let message = "Timeout: request did not complete within the allotted timeout";
                    return Err(ApiError::new(504, "Timeout", message));
                }
            }
        }
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::too_large(limit)),
        Err(error) => Err(ApiError::bad_request(format!("the body of the request could not be read: {error}"))),
    }
}

fn with_warnings(mut answer: Response<Body>, warnings: &Warnings) -> Response<Body> {
    for warning in warnings.take() {
        // RFC 7234: code, agent, quoted text. Control characters are not allowed in a header.
        let text: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    answer
}

async fn dispatch(call: &Arc<Call>, known: &mut bool) -> Result<Response<Body>, ApiError> {
    if !call.info.is_resource {
        return documents::answer(call);
    }
    let info = &call.info;
    let Some(resource) = call.server.registry.find(&info.group, &info.version, &info.resource) else {
        return nothing_here(&info.group);
    };
    *known = true;
    if call.method == Method::HEAD {
        return Err(ApiError::method_not_allowed());
    }
    if let Some(custom) = resource.custom()
        && let Some(warning) = custom.deprecation_warning()
    {
        call.warnings.add(warning);
    }
    // Cluster-scoped objects have no namespace in their path, namespaced objects must have one.
    let is_namespace = resource.is("", "namespaces");
    let misplaced = !resource.namespaced && !info.namespace.is_empty() && !is_namespace;
    let unplaced = resource.namespaced && info.namespace.is_empty() && !matches!(info.verb, "list" | "watch");
    if misplaced || (unplaced && !info.name.is_empty()) {
        return nothing_here(&info.group);
    }
    if !info.subresource.is_empty() {
        if info.excess || resource.subresource(&info.subresource).is_none() {
            return match resource.origin {
                Origin::Builtin(_) => nothing_here(&info.group),
                Origin::Custom(_) => Err(resource.not_found(&info.name)),
            };
        }
        return subresources::answer(call, &resource).await;
    }
    let needs_name = matches!(info.verb, "update" | "patch");
    if unplaced
        || needs_name == info.name.is_empty() && (needs_name || info.verb == "create")
        || !resource.verbs.contains(&info.verb)
    {
        return Err(ApiError::method_not_allowed());
    }
    if matches!(resource.origin, Origin::Builtin(kind) if !kind.is_stored()) {
        return reviews::answer(call, &resource);
    }
    match info.verb {
        "get" => {
            let key = Key::new(call.namespace(&resource), &info.name);
            list::get(&call.server.store, &resource, &key, &call.query, &call.view()?).await
        }
        "list" => {
            let namespace = call.namespace(&resource);
            list::list(&call.server.store, &resource, namespace, &call.query, &call.view()?).await
        }
        "watch" => {
            let stop = call.server.watching();
            let namespace = call.namespace(&resource);
            watch::watch(&call.server.store, &resource, namespace, &info.name, &call.query, &call.view()?, stop).await
        }
        "create" => objects::post(call, &resource),
        "update" => objects::put(call, &resource),
        "patch" => objects::apply_patch(call, &resource),
        "delete" => objects::remove(call, &resource),
        "deletecollection" => objects::remove_all(call, &resource),
        _ => Ok(page_not_found()),
    }
}
