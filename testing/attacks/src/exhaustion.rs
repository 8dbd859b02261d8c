//! Exhausting shared resources: slots, memory, time. Each attempt ends with a check that another user is served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_apiserver::{Config, ConnectionLimits, InFlightLimits};
use fleetwright_conformance::{Crd, Ctx, PatchType, ServerKind, Target, eventually};
use futures::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::fixtures::{
    absent, account_token, attacker, attacker_everywhere, binding, cluster_rbac, rbac, refused, rule, stored,
};
use crate::{Area, Attempt, raw};

pub fn attempts() -> Vec<Attempt> {
    attempts![Area::Exhaustion, Server;
        slow_bodies_of_one_user_leave_places_for_others(alone),
        slow_bodies_of_many_tenants_leave_places_for_operators_and_administrators(alone),
        silent_and_slow_connections_leave_places_for_others(alone),
        connections_beyond_number_keep_no_user_out(alone),
        unread_answers_leave_places_for_others(alone),
        watches_of_one_user_leave_places_for_others(alone),
        bodies_that_are_nested_too_deeply_are_refused,
        numbers_at_the_limits_end_no_server,
        a_hundred_roles_that_aggregate_all_roles_settle(alone),
        owners_in_a_circle_and_foreign_finalizers_end_with_the_namespace,
        objects_do_not_grow_beyond_their_limit,
        a_definition_with_costly_rules_is_refused,
        a_costly_pattern_in_a_schema_costs_no_time,
    ]
}

/// Shorter than any server timeout on an attacker's resources, and long enough for an answer of a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Checks that another user can write and read in time.
async fn others_are_served(ctx: &Ctx) -> Result<()> {
    let (_, bob) = attacker(ctx, json!([rule("", &["configmaps"], &["create", "get", "delete"])])).await?;
    let started = Instant::now();
    let name = ctx.unique("served");
    bob.post(ctx.core("configmaps"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    bob.get(ctx.core(&format!("configmaps/{name}"))).await?.ok()?;
    ensure!(started.elapsed() < SOON, "another user waited {:?}", started.elapsed());
    Ok(())
}

/// The embedded server gets few slots, so that an attack can take all of them.
async fn narrow(ctx: Ctx) -> Result<Ctx> {
    if ctx.kind() == ServerKind::Real {
        return Ok(ctx);
    }
    let config = Config {
        in_flight: InFlightLimits { reads: 16, watches: 16, bodies: 16, ..InFlightLimits::default() },
        connections: ConnectionLimits { connections: 64, ..ConnectionLimits::default() },
        ..Config::default()
    };
    Ctx::new(Arc::new(Target::embedded_with(config).await?), 0).await
}

/// More requests of one user than either server has slots for service accounts: at most 8 on a narrow server, and at most 20 on kube-apiserver as the
/// runner starts it.
const REQUESTS: usize = 24;

/// Checks that the attack happened: the embedded server refuses a user with a full share of its slots.
async fn attacker_is_refused<F: Future<Output = Result<u16>>>(ask: impl Fn() -> F) -> Result<()> {
    eventually("the attacker has a full share", async || {
        let status = ask().await?;
        ensure!(status == 429, "the attack was not made: the attacker was answered with {status}");
        Ok(())
    })
    .await
}

/// Checks that the attack happened: the embedded server refuses the attacker, and in kube-apiserver requests of service accounts wait for a slot.
async fn accounts_have_no_slot<F: Future<Output = Result<u16>>>(ctx: &Ctx, ask: impl Fn() -> F) -> Result<()> {
    if ctx.kind() == ServerKind::Embedded {
        return attacker_is_refused(ask).await;
    }
    eventually("requests of service accounts wait", async || {
        let page = ctx.get("/metrics").await?.text();
        let queues = page.lines().filter(|line| line.starts_with("apiserver_flowcontrol_current_inqueue_requests{"));
        let mut queues = queues.filter(|line| line.contains("flow_schema=\"service-accounts\""));
        ensure!(queues.any(|line| !line.ends_with(" 0")), "the attack was not made: no request waits");
        Ok(())
    })
    .await
}

/// Checks that the attack happened: the embedded server closed connections for others. kube-apiserver does not limit connections; it accepts all
/// of them.
async fn connections_were_made(ctx: &Ctx, held: usize) -> Result<()> {
    if ctx.kind() == ServerKind::Real {
        ensure!(held > 100, "the attack was not made: {held}");
        return Ok(());
    }
    // The server has 64 slots, and counts a connection when it closes it.
    eventually("more connections were closed than there are places", async || {
        let page = ctx.get("/metrics").await?.text();
        let closed = page.lines().find_map(|line| line.strip_prefix("apiserver_refused_connections_total "));
        let closed: usize = closed.context("no such metric")?.parse()?;
        ensure!(closed > 64, "the attack was not made: {closed}");
        Ok(())
    })
    .await
}

/// A token of a service account in a separate namespace.
async fn tenant_token(ctx: &Ctx) -> Result<String> {
    let mut tenant = ctx.clone();
    tenant.ns = ctx.unique("tenant");
    ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": tenant.ns}})).await?.code(201)?;
    account_token(&tenant, "tenant").await
}

/// A token of an operator's service account.
async fn operator_token(ctx: &Ctx) -> Result<String> {
    let mut system = ctx.clone();
    system.ns = "kube-system".to_owned();
    account_token(&system, &ctx.unique("operator")).await
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// A request that every authenticated user may make.
const REVIEW: &str = r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#;

/// A request with only the head and the first byte of the body sent.
async fn slow_body(ctx: &Ctx, token: &str) -> Result<TlsStream<TcpStream>> {
    let head = format!(
        "POST {REVIEWS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        REVIEW.len(),
        &REVIEW[..1]
    );
    let mut stream = raw::connect(ctx.target()).await?;
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    Ok(stream)
}

/// The status of a request whose body arrives a moment after its head, as over a network.
async fn answered_late(ctx: &Ctx, token: &str) -> Result<u16> {
    let mut stream = slow_body(ctx, token).await?;
    let mut said = raw::hear(&mut stream, Duration::from_millis(300)).await;
    if said.is_empty() {
        stream.write_all(&REVIEW.as_bytes()[1..]).await?;
        stream.flush().await?;
        said = raw::hear(&mut stream, SOON).await;
    }
    raw::statuses(&said).first().copied().context("no answer")
}

async fn slow_bodies_of_one_user_leave_places_for_others(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let token = account_token(&ctx, "slow").await?;
    let held = stream::iter(0..REQUESTS).map(|_| slow_body(&ctx, &token));
    let held: Vec<_> = held.buffer_unordered(16).collect().await;
    ensure!(held.iter().filter(|held| held.is_ok()).count() > REQUESTS * 7 / 8, "the attack was not made");
    accounts_have_no_slot(&ctx, || answered_late(&ctx, &token)).await?;
    if ctx.kind() == ServerKind::Embedded {
        let status = answered_late(&ctx, &tenant_token(&ctx).await?).await?;
        ensure!(status == 201, "another tenant was answered with {status}");
    }
    others_are_served(&ctx).await
}

async fn slow_bodies_of_many_tenants_leave_places_for_operators_and_administrators(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let mut held = Vec::new();
    for _ in 0..16 {
        let token = tenant_token(&ctx).await?;
        for _ in 0..2 {
            held.push(slow_body(&ctx, &token).await?);
        }
    }
    // One more request after all slots are taken.
    let token = tenant_token(&ctx).await?;
    accounts_have_no_slot(&ctx, || answered_late(&ctx, &token)).await?;
    let status = answered_late(&ctx, &operator_token(&ctx).await?).await?;
    ensure!(status == 201, "an operator was answered with {status}");
    // Larger than one network read.
    let large = json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(900_000)}});
    ctx.post(ctx.core("configmaps"), &large).await?.code(201)?;
    drop(held);
    Ok(())
}

/// Opens idle connections, every second one after a request with this token. A server may close them.
async fn flood(ctx: &Ctx, token: &str) -> Vec<TlsStream<TcpStream>> {
    let head = format!("GET /version HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut held = Vec::new();
    for number in 0..200 {
        let Ok(mut stream) = raw::connect(ctx.target()).await else { continue };
        if number % 2 == 0 {
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.flush().await;
            raw::hear(&mut stream, Duration::from_millis(20)).await;
        }
        held.push(stream);
    }
    held
}

async fn connections_beyond_number_keep_no_user_out(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let operator = operator_token(&ctx).await?;
    let token = tenant_token(&ctx).await?;
    let mut held = flood(&ctx, &token).await;
    connections_were_made(&ctx, held.len()).await?;
    let admin = ctx.as_user("another-administrator", &["system:masters"]).await?;
    for _ in 0..2 {
        admin.get("/api/v1/namespaces").await?.ok()?;
        let status = answered_late(&ctx, &operator).await?;
        ensure!(status == 201, "an operator was answered with {status}");
        others_are_served(&ctx).await?;
        held.extend(flood(&ctx, &token).await);
    }
    Ok(())
}

async fn silent_and_slow_connections_leave_places_for_others(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let starts: [&[u8]; 4] = [b"", b"GET /livez HTTP/1.1\r\nX-Slow: ", b"GET", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"];
    let target = ctx.target();
    let held = stream::iter(0..200).map(|number: usize| async move { (number, raw::connect(target).await) });
    let held = held.buffer_unordered(16).then(|(number, stream)| async move {
        let mut stream = stream?;
        stream.write_all(starts[number % starts.len()]).await?;
        stream.flush().await?;
        anyhow::Ok(stream)
    });
    let held: Vec<_> = held.collect().await;
    connections_were_made(&ctx, held.iter().filter(|held| held.is_ok()).count()).await?;
    others_are_served(&ctx).await
}

async fn unread_answers_leave_places_for_others(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let token = account_token(&ctx, "deaf").await?;
    let account = format!("system:serviceaccount:{}:deaf", ctx.ns);
    ctx.post(rbac(&ctx, "rolebindings"), &binding("deaf", "ClusterRole", "view", &account)).await?.code(201)?;
    // A list of these exceeds the socket buffers of a connection.
    for number in 0..12 {
        let large = json!({"metadata": {"name": format!("large-{number}")}, "data": {"a": "x".repeat(900_000)}});
        ctx.post(ctx.core("configmaps"), &large).await?.code(201)?;
    }
    let deaf = ctx.with_token(&token).await?;
    eventually("the grant takes effect", async || deaf.get(ctx.core("configmaps?limit=1")).await?.ok()).await?;
    let head = format!("GET {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n", ctx.core("configmaps"));
    let held = stream::iter(0..REQUESTS).map(|_| async {
        let mut stream = raw::connect(ctx.target()).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        anyhow::Ok(stream)
    });
    let held: Vec<_> = held.buffer_unordered(8).collect().await;
    ensure!(held.iter().all(Result::is_ok), "the attack was not made");
    accounts_have_no_slot(&ctx, || async { anyhow::Ok(deaf.get("/version").await?.status) }).await?;
    others_are_served(&ctx).await
}

async fn watches_of_one_user_leave_places_for_others(ctx: Ctx) -> Result<()> {
    let ctx = narrow(ctx).await?;
    let rules = json!([rule("", &["configmaps"], &["watch", "list", "get"])]);
    let (_, eve) = attacker(&ctx, rules.clone()).await?;
    // kube-apiserver does not limit watches.
    let count = if ctx.kind() == ServerKind::Embedded { REQUESTS } else { 300 };
    let mut held = Vec::new();
    for _ in 0..count {
        // A server may stop the connection early.
        if let Ok(watch) = eve.watch(&ctx.core("configmaps")).await {
            held.push(watch);
        }
    }
    ensure!(held.len() >= count / 3, "the attack was not made: {}", held.len());
    if ctx.kind() == ServerKind::Embedded {
        let another = ctx.core("configmaps?watch=true&timeoutSeconds=1");
        attacker_is_refused(|| async { anyhow::Ok(eve.get(&another).await?.status) }).await?;
    }
    others_are_served(&ctx).await?;
    // Watches of other users still get events.
    let (_, bob) = attacker(&ctx, rules).await?;
    let mut seen = bob.watch(&ctx.core("configmaps?resourceVersion=0")).await?;
    ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "seen"}})).await?.code(201)?;
    seen.until(|_, object| object["metadata"]["name"] == "seen").await.map(drop)
}

async fn bodies_that_are_nested_too_deeply_are_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get", "patch"])])).await?;
    ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "flat"}})).await?.code(201)?;
    let before = stored(&ctx, &ctx.core("configmaps/flat")).await?;
    for depth in [20_000, 100_000] {
        let arrays = format!(r#"{{"metadata":{{"name":"deep"}},"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        let objects =
            format!(r#"{{"metadata":{{"name":"deep"}},"x":{}1{}}}"#, r#"{"a":"#.repeat(depth), "}".repeat(depth));
        for body in [arrays, objects] {
            let call = eve.call(Method::POST, ctx.core("configmaps")).header("content-type", "application/json");
            let reply = call.body(body.clone()).send().await?;
            refused(&format!("{depth} deep"), reply.status)?;
            absent(&ctx, &ctx.core("configmaps/deep")).await?;
            for kind in [PatchType::Merge, PatchType::Strategic, PatchType::Apply] {
                let call = eve
                    .call(Method::PATCH, ctx.core("configmaps/flat?fieldManager=eve"))
                    .header("content-type", kind.content_type());
                let reply = call.body(body.replace("deep", "flat")).send().await?;
                refused(&format!("{kind:?} {depth} deep"), reply.status)?;
            }
        }
        let yaml = format!("metadata: {{name: deep}}\nx: {}{}\n", "[".repeat(depth), "]".repeat(depth));
        let call = eve.call(Method::POST, ctx.core("configmaps")).header("content-type", "application/yaml");
        refused("YAML", call.body(yaml).send().await?.status)?;
    }
    ensure!(stored(&ctx, &ctx.core("configmaps/flat")).await? == before, "it was changed");
    Ok(())
}

async fn numbers_at_the_limits_end_no_server(ctx: Ctx) -> Result<()> {
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pointers = [
        "/spec/terminationGracePeriodSeconds",
        "/spec/activeDeadlineSeconds",
        "/spec/priority",
        "/metadata/generation",
        "/metadata/deletionGracePeriodSeconds",
        "/spec/containers/0/livenessProbe/periodSeconds",
    ];
    let numbers = [json!(i64::MAX), json!(i64::MIN), json!(-1), json!(0), json!(1e300), json!(9.5), json!(u64::MAX)];
    let mut count = 0;
    for pointer in pointers {
        for number in &numbers {
            let name = format!("number-{count}");
            count += 1;
            let mut object = pod(&name);
            let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
            let parent = if parent.ends_with("livenessProbe") {
                object["spec"]["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["true"]}});
                object.pointer_mut("/spec/containers/0/livenessProbe")
            } else {
                object.pointer_mut(parent)
            };
            if let Some(Value::Object(parent)) = parent {
                parent.insert(field.to_owned(), number.clone());
            }
            let reply = ctx.post(ctx.core("pods"), &object).await?;
            ensure!(reply.status < 500 && !reply.text().contains("panic"), "{pointer} {number}: {}", reply.text());
            if reply.status == 201 {
                let reply =
                    ctx.delete_with(ctx.core(&format!("pods/{name}")), &json!({"gracePeriodSeconds": 0})).await?;
                ensure!(reply.status < 500, "{pointer} {number}: {}", reply.text());
            }
        }
    }
    eventually("a pod", async || ctx.post(ctx.core("pods"), &pod("kept")).await?.code(201)).await?;
    for grace in ["9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e9", "0x10", ""] {
        let reply = ctx.delete(ctx.core(&format!("pods/kept?gracePeriodSeconds={grace}&dryRun=All"))).await?;
        ensure!(reply.status < 500 && !reply.text().contains("panic"), "{grace}: {}", reply.text());
    }
    for query in [
        "limit=9223372036854775807",
        "limit=-1",
        "resourceVersion=18446744073709551615",
        "timeoutSeconds=-9223372036854775808",
        "resourceVersion=-1",
    ] {
        // A server may wait for a future version, but not for long.
        let asked = ctx.call(Method::GET, ctx.core(&format!("pods?{query}"))).send();
        if let Ok(reply) = tokio::time::timeout(Duration::from_secs(8), asked).await {
            let reply = reply?;
            ensure!(reply.status < 500 || reply.status == 504, "{query}: {}", reply.text());
        }
    }
    stored(&ctx, &ctx.core("pods/kept")).await.map(drop)
}

async fn a_hundred_roles_that_aggregate_all_roles_settle(ctx: Ctx) -> Result<()> {
    let label = ctx.unique("all");
    let own = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create", "get", "escalate"]}]);
    let (_, eve) = attacker_everywhere(&ctx, own).await?;
    let names: Vec<String> = (0..100).map(|number| format!("{label}-{number}")).collect();
    for name in &names {
        let role = json!({
            "metadata": {"name": name, "labels": {label.as_str(): "yes"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label.as_str(): "yes"}}]},
        });
        eve.post(cluster_rbac("clusterroles"), &role).await?.code(201)?;
    }
    others_are_served(&ctx).await?;
    // A new source is aggregated: the controller still works. kube-controller-manager needs more rounds for that.
    let source = json!({
        "metadata": {"name": format!("{label}-source"), "labels": {label.as_str(): "yes"}},
        "rules": [rule("attacks.fleetwright.io", &["things"], &["get"])],
    });
    ctx.post(cluster_rbac("clusterroles"), &source).await?.code(201)?;
    eventually("the rule reaches a role", async || {
        let role = stored(&ctx, &cluster_rbac(&format!("clusterroles/{}", names[0]))).await?;
        ensure!(role["rules"].to_string().contains("things"), "{role}");
        Ok(())
    })
    .await?;
    others_are_served(&ctx).await?;
    let selected = cluster_rbac(&format!("clusterroles?labelSelector={label}%3Dyes"));
    // The embedded server stops writing these roles. kube-controller-manager needs hours for a hundred that select each other.
    if ctx.kind() == ServerKind::Embedded {
        let versions = async || -> Result<Vec<String>> {
            let listed = ctx.get(&selected).await?.ok()?;
            let items = listed["items"].as_array().context("a list")?;
            Ok(items.iter().map(|role| role["metadata"]["resourceVersion"].to_string()).collect())
        };
        eventually("nothing is written any more", async || {
            let before = versions().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(before.len() == 101 && before == versions().await?, "roles are still written");
            Ok(())
        })
        .await?;
    }
    ctx.delete(selected).await?.ok()?;
    Ok(())
}

async fn owners_in_a_circle_and_foreign_finalizers_end_with_the_namespace(ctx: Ctx) -> Result<()> {
    let place = ctx.unique("storm");
    ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": place}})).await?.code(201)?;
    let maps = format!("/api/v1/namespaces/{place}/configmaps");
    let mut made = Vec::new();
    for number in 0..60 {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        made.push(ctx.post(&maps, &map).await?.code(201)?);
    }
    // An ownership cycle: each is owned by the next one, the last one by the first.
    for (number, object) in made.iter().enumerate() {
        let owner = &made[(number + 1) % made.len()];
        let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true}]);
        let held = if number % 20 == 0 { json!(["example.com/held"]) } else { json!([]) };
        let patch = json!({"metadata": {"ownerReferences": reference, "finalizers": held}});
        ctx.patch(
            format!("{maps}/{}", object["metadata"]["name"].as_str().unwrap_or_default()),
            PatchType::Merge,
            &patch,
        )
        .await?
        .ok()?;
    }
    ctx.delete_with(format!("{maps}/m1"), &json!({"propagationPolicy": "Foreground"})).await?.ok()?;
    ctx.delete(format!("/api/v1/namespaces/{place}")).await?.ok()?;
    others_are_served(&ctx).await?;
    // Only the object with the finalizer, and those that wait for its deletion, stay.
    let left = async || anyhow::Ok(ctx.get(&maps).await?.ok()?["items"].as_array().cloned().unwrap_or_default());
    eventually("only what is held is left", async || {
        let left = left().await?;
        ensure!(
            left.len() <= 6 && left.iter().all(|one| !one["metadata"]["finalizers"].is_null()),
            "{} are left",
            left.len()
        );
        Ok(())
    })
    .await?;
    for object in left().await? {
        let path = format!("{maps}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        let _ = ctx.patch(path, PatchType::Merge, &json!({"metadata": {"finalizers": null}})).await?;
    }
    eventually("the namespace is gone", async || absent(&ctx, &format!("/api/v1/namespaces/{place}")).await).await
}

async fn objects_do_not_grow_beyond_their_limit(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get", "patch", "update"])])).await?;
    let path = ctx.core("configmaps/grown");
    let large = |size: usize| json!({"metadata": {"name": "grown"}, "data": {"a": "x".repeat(size)}});
    for size in [1 << 20, 4 << 20] {
        // A server may close the connection early.
        if let Ok(reply) = eve.post(ctx.core("configmaps"), &large(size + 1000)).await {
            refused(&format!("{size} bytes"), reply.status)?;
        }
        absent(&ctx, &path).await?;
    }
    let annotated = json!({"metadata": {"name": "grown", "annotations": {"a": "x".repeat(300 << 10)}}});
    refused("an annotation", eve.post(ctx.core("configmaps"), &annotated).await?.status)?;
    absent(&ctx, &path).await?;
    eve.post(ctx.core("configmaps"), &large(1000)).await?.code(201)?;
    for number in 0..8 {
        let patch = json!({"data": {format!("k{number}"): "x".repeat(200_000)}});
        let _ = eve.patch(&path, PatchType::Merge, &patch).await?;
    }
    let size = stored(&ctx, &path).await?.to_string().len();
    ensure!(size > 200_000, "the attack was not made: it has grown to {size} only");
    ensure!(size < (1 << 20) + 100_000, "it has grown to {size}");
    Ok(())
}

async fn a_definition_with_costly_rules_is_refused(ctx: Ctx) -> Result<()> {
    let nested = "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d == 'x'))))";
    let list = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": nested}]});
    let spec = json!({"type": "object", "properties": {"list": list}});
    let costly = Crd::new(&ctx, spec, json!({"type": "object"}));
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let reply = ctx.post(definitions, &costly.body).await?;
    ensure!(reply.status == 422 && reply.text().contains("cost"), "{}: {}", reply.status, reply.text());
    absent(&ctx, &costly.definition()).await
}

async fn a_costly_pattern_in_a_schema_costs_no_time(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string", "pattern": "^(a+)+(b|a*)*(a|aa)+$", "maxLength": 100_000});
    let spec = json!({"type": "object", "properties": {"text": text}});
    let crd = Crd::new(&ctx, spec, json!({"type": "object"})).make(&ctx).await?;
    let started = Instant::now();
    let hostile = crd.widget("hostile", json!({"text": format!("{}!", "a".repeat(50_000))}));
    let reply = ctx.post(crd.path(&ctx, ""), &hostile).await?;
    refused("the text", reply.status)?;
    ensure!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    absent(&ctx, &crd.path(&ctx, "/hostile")).await
}
