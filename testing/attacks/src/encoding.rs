//! Bypassing a check by another spelling of a path, a header, a body or a name.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_conformance::{Ctx, PatchType};
use http::Method;
use serde_json::json;

use crate::fixtures::{absent, account_token, attacker, refused, reveals_no_secret, rule, stored, victim};
use crate::{Area, Attempt, raw};

pub fn attempts() -> Vec<Attempt> {
    attempts![Area::Encoding, Server;
        no_spelling_of_a_path_leaves_the_namespace,
        a_body_that_names_another_place_than_its_path_is_stored_nowhere,
        names_with_separators_and_control_characters_are_refused,
        a_second_length_or_encoding_smuggles_no_request,
        headers_beyond_measure_are_refused,
        bodies_in_the_wrong_encoding_are_refused,
        a_compressed_bomb_is_refused,
        an_alias_bomb_in_yaml_is_refused,
        a_patch_that_doubles_itself_is_refused,
        a_patch_that_reaches_identity_fields_changes_none_of_them,
        a_continue_token_of_another_namespace_shows_nothing_of_it,
    ]
}

/// A token that may read ConfigMaps and Secrets in the attempt's own namespace.
async fn reader(ctx: &Ctx) -> Result<String> {
    let token = account_token(ctx, "reader").await?;
    let rules = json!([rule("", &["configmaps", "secrets"], &["get", "list", "watch", "create"])]);
    let role = json!({"metadata": {"name": "reader"}, "rules": rules});
    ctx.post(crate::fixtures::rbac(ctx, "roles"), &role).await?.code(201)?;
    let bound = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": ctx.ns}],
    });
    ctx.post(crate::fixtures::rbac(ctx, "rolebindings"), &bound).await?.code(201)?;
    crate::fixtures::may(&ctx.with_token(&token).await?, &rules[0], Some(&ctx.ns)).await?;
    Ok(token)
}

async fn no_spelling_of_a_path_leaves_the_namespace(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let token = reader(&ctx).await?;
    let own = &ctx.ns;
    let mut paths = vec![
        format!("/api/v1/namespaces/{own}/../{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}/secrets/../../{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}/%2e%2e/{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}/%2e%2e%2f{other}%2fsecrets%2ftreasure"),
        format!("/api/v1/namespaces/{own}%2f..%2f{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}%252f..%252f{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}/secrets/treasure?namespace={other}"),
        format!("/api/v1/namespaces/{own}/secrets?fieldSelector=metadata.namespace%3D{other}"),
        format!("//api/v1/namespaces/{other}/secrets/treasure"),
        format!("/api//v1/namespaces/{other}/secrets/treasure"),
        format!("/api/v1//namespaces/{other}/secrets/treasure"),
        format!("/api/v1/./namespaces/{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{other}/secrets/treasure/"),
        format!("/api/v1/namespaces/{other}/secrets/treasure;{own}"),
        format!("/api/v1/namespaces/{other}/secrets/treasure%00"),
        format!("/api/v1/namespaces/{other}/secrets/treasure%0a"),
        format!("/api/v1/namespaces/{other}/Secrets/treasure"),
        format!("/API/v1/namespaces/{other}/secrets/treasure"),
        format!("/api/v1/namespaces/{own}/configmaps/../secrets/../../{other}/secrets/treasure"),
        format!("/api/v1/watch/namespaces/{other}/secrets"),
        "/api/v1/watch/secrets".to_owned(),
        format!("/api/v1/proxy/namespaces/{other}/secrets/treasure"),
        "/api/v1/namespaces//secrets".to_owned(),
        "/api/v1/namespaces/%2a/secrets".to_owned(),
        "/api/v1/namespaces/*/secrets".to_owned(),
        format!("/apis//v1/namespaces/{other}/secrets/treasure"),
        format!("/livez/../api/v1/namespaces/{other}/secrets/treasure"),
        format!("/openapi/v2/../../api/v1/namespaces/{other}/secrets/treasure"),
        format!("/version/%2e%2e/api/v1/namespaces/{other}/secrets/treasure"),
        format!("https://elsewhere/api/v1/namespaces/{other}/secrets/treasure"),
    ];
    paths.push(format!("/api/v1/namespaces/{own}/secrets/..%5c..%5c{other}%5csecrets%5ctreasure"));
    // One connection for all requests: one that breaks the connection is repeated.
    let mut stream = raw::connect(ctx.target()).await?;
    for path in paths {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
        let mut said = String::new();
        if tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.is_ok() {
            said = raw::hear(&mut stream, Duration::from_millis(150)).await;
        }
        if said.is_empty() {
            stream = raw::connect(ctx.target()).await?;
            // The server closes this connection after its answer, so that the test can wait for a slow one.
            let last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            tokio::io::AsyncWriteExt::write_all(&mut stream, last.as_bytes()).await?;
            said = raw::hear(&mut stream, Duration::from_secs(30)).await;
            stream = raw::connect(ctx.target()).await?;
        }
        reveals_no_secret(&path, &said)?;
        let statuses = raw::statuses(&said);
        ensure!(!statuses.is_empty(), "{path} was not answered");
        // An empty list of the own namespace, or a redirect to a forbidden path.
        for status in statuses {
            let listed = status == 200 && path.contains(&format!("{own}/secrets?")) && said.contains("\"items\":");
            ensure!(listed || matches!(status, 301 | 307 | 308 | 400..500), "{path}: {said}");
        }
    }
    Ok(())
}

async fn a_body_that_names_another_place_than_its_path_is_stored_nowhere(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get", "update", "patch"])])).await?;
    let bodies = [
        json!({"metadata": {"name": "planted", "namespace": other}}).to_string(),
        format!(r#"{{"metadata":{{"name":"planted","namespace":"{}","namespace":"{other}"}}}}"#, ctx.ns),
        format!(r#"{{"metadata":{{"name":"planted"}},"metadata":{{"name":"planted","namespace":"{other}"}}}}"#),
        format!(r#"{{"Metadata":{{"Namespace":"{other}"}},"metadata":{{"name":"planted"}}}}"#),
        format!(r#"{{"metadata":{{"name":"planted","Namespace":"{other}"}}}}"#),
        format!(r#"{{"metadata":{{"name":"planted","n\u0061mespace":"{other}"}}}}"#),
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "planted"}}).to_string(),
        json!({"kind": "List", "apiVersion": "v1", "items": [{"kind": "ConfigMap", "metadata": {"name": "planted", "namespace": other}}]}).to_string(),
    ];
    for body in bodies {
        let call = eve.call(Method::POST, ctx.core("configmaps")).header("content-type", "application/json");
        let reply = call.body(body.clone()).send().await?;
        ensure!(reply.status < 500, "{body}: {}", reply.text());
        for place in ["configmaps", "secrets"] {
            absent(&ctx, &format!("/api/v1/namespaces/{other}/{place}/planted")).await?;
        }
        absent(&ctx, &ctx.core("secrets/planted")).await?;
        let _ = ctx.delete(ctx.core("configmaps/planted")).await?;
    }
    // A PUT or patch with the name of another object.
    ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "mine"}})).await?.code(201)?;
    let elsewhere = json!({"metadata": {"name": "mine", "namespace": other}});
    let renamed = json!({"metadata": {"name": "planted"}});
    for body in [&elsewhere, &renamed] {
        for reply in [
            eve.put(ctx.core("configmaps/mine"), body).await?,
            eve.patch(ctx.core("configmaps/mine"), PatchType::Merge, body).await?,
        ] {
            refused(&reply.request.clone(), reply.status)?;
        }
    }
    absent(&ctx, &ctx.core("configmaps/planted")).await?;
    absent(&ctx, &format!("/api/v1/namespaces/{other}/configmaps/mine")).await
}

async fn names_with_separators_and_control_characters_are_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get", "update", "patch"])])).await?;
    // A controller publishes the API server's CA a moment after the namespace is created.
    let stored = async || -> Result<usize> {
        let all = ctx.get(ctx.core("configmaps")).await?.ok()?["items"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter(|one| one["metadata"]["name"] != "kube-root-ca.crt").count())
    };
    let before = stored().await?;
    let long = "a".repeat(254);
    for name in [
        "a/b",
        "..",
        ".",
        "a\u{0}b",
        "a\nb",
        "a\u{202e}b",
        "A",
        "a%2fb",
        "a b",
        "",
        "\u{1b}[2J",
        long.as_str(),
        "a?x=1",
        "-a",
        "é",
    ] {
        let reply = eve.post(ctx.core("configmaps"), &json!({"metadata": {"name": name}})).await?;
        ensure!(matches!(reply.status, 400 | 422), "{name:?}: {} {}", reply.status, reply.text());
    }
    for name in ["a/", "../", "A", "a\u{0}", "-", " "] {
        let reply = eve.post(ctx.core("configmaps"), &json!({"metadata": {"generateName": name}})).await?;
        ensure!(matches!(reply.status, 400 | 422), "{name:?}: {} {}", reply.status, reply.text());
    }
    for key in ["../x", "a/b", "", "..", "a\u{0}", "a\n"] {
        let reply =
            eve.post(ctx.core("configmaps"), &json!({"metadata": {"name": "keys"}, "data": {key: "x"}})).await?;
        ensure!(matches!(reply.status, 400 | 422), "{key:?}: {} {}", reply.status, reply.text());
    }
    let after = stored().await?;
    ensure!(after == before, "something was stored: {after} {before}");
    Ok(())
}

async fn a_second_length_or_encoding_smuggles_no_request(ctx: Ctx) -> Result<()> {
    let token = reader(&ctx).await?;
    let path = ctx.core("configmaps");
    let hidden = json!({"metadata": {"name": "smuggled"}}).to_string();
    // A second request that hides in the body of the first one. Length and chunks together, folded headers and bare line feeds are not among the attempts: HTTP says how a server
    // reads them, and one that is asked directly may find two requests there.
    let inner = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{hidden}",
        hidden.len()
    );
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    );
    let whole = inner.len();
    let chunked = format!("0\r\n\r\n{inner}");
    for (what, request) in [
        ("two lengths", format!("{head}Content-Length: 0\r\nContent-Length: {whole}\r\n\r\n{inner}")),
        ("a list of lengths", format!("{head}Content-Length: 0, {whole}\r\n\r\n{inner}")),
        ("a length with a sign", format!("{head}Content-Length: +0\r\n\r\n{inner}")),
        ("a length in hexadecimal", format!("{head}Content-Length: 0x0\r\n\r\n{inner}")),
        ("a negative length", format!("{head}Content-Length: -1\r\n\r\n{inner}")),
        ("an unknown encoding", format!("{head}Transfer-Encoding: xchunked\r\n\r\n{chunked}")),
        ("chunks that are not last", format!("{head}Transfer-Encoding: chunked, identity\r\n\r\n{chunked}")),
        (
            "an encoding with a space",
            format!("{head}Transfer-Encoding : chunked\r\nContent-Length: {}\r\n\r\n{chunked}", chunked.len()),
        ),
        (
            "a size of chunks that overflows",
            format!("{head}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n{inner}"),
        ),
    ] {
        let said = raw::exchange(ctx.target(), request.as_bytes()).await?;
        // A server that takes the first request as complete must have refused it: its body is empty.
        let statuses = raw::statuses(&said);
        ensure!(statuses.iter().all(|status| *status >= 400) && statuses.len() <= 1, "{what}: {said}");
        absent(&ctx, &ctx.core("configmaps/smuggled")).await.context(what)?;
    }
    Ok(())
}

async fn headers_beyond_measure_are_refused(ctx: Ctx) -> Result<()> {
    let token = reader(&ctx).await?;
    let body = json!({"metadata": {"name": "huge"}}).to_string();
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        ctx.core("configmaps"),
        body.len()
    );
    let large = format!("X-Large: {}\r\n", "x".repeat(3 << 20));
    let many: String = (0..200_000).map(|number| format!("X-{number}: y\r\n")).collect();
    for (what, headers) in [("a large header", large), ("many headers", many)] {
        let said = raw::answered(ctx.target(), format!("{head}{headers}\r\n{body}").as_bytes()).await?;
        let statuses = raw::statuses(&said);
        ensure!(statuses.len() == 1 && (400..500).contains(&statuses[0]), "{what}: {said}");
        absent(&ctx, &ctx.core("configmaps/huge")).await.context(what)?;
    }
    let long =
        format!("GET /api/v1/{} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n", "x".repeat(3 << 20));
    let said = raw::answered(ctx.target(), long.as_bytes()).await?;
    let statuses = raw::statuses(&said);
    ensure!(statuses.len() == 1 && (400..500).contains(&statuses[0]), "a long path: {said}");
    Ok(())
}

async fn bodies_in_the_wrong_encoding_are_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get"])])).await?;
    let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "coded"}}).to_string();
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let mut broken = text.clone().into_bytes();
    broken.extend_from_slice(b"\xff\xfe");
    let name = text.replace("coded", "c\\ud800oded");
    let bodies: [(&str, Vec<u8>); 8] = [
        ("application/json;charset=utf-16", wide.clone()),
        ("application/json", wide),
        ("application/json", broken),
        ("application/json", name.into_bytes()),
        ("application/vnd.kubernetes.protobuf", text.clone().into_bytes()),
        ("application/vnd.kubernetes.protobuf", [b"k8s\0".as_slice(), &[0xff; 64]].concat()),
        ("application/octet-stream", text.clone().into_bytes()),
        (
            "application/json",
            [text.as_bytes(), b"{\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"second\"}}"].concat(),
        ),
    ];
    for (kind, body) in bodies {
        let reply =
            eve.call(Method::POST, ctx.core("configmaps")).header("content-type", kind).body(body).send().await?;
        refused(&format!("{kind}: {}", reply.text()), reply.status)?;
        for name in ["coded", "second"] {
            absent(&ctx, &ctx.core(&format!("configmaps/{name}"))).await?;
        }
    }
    Ok(())
}

async fn a_compressed_bomb_is_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get"])])).await?;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(br#"{"metadata":{"name":"bomb"},"data":{"a":""#)?;
    for _ in 0..64 {
        packed.write_all(&vec![b'x'; 1 << 20])?;
    }
    packed.write_all(br#""}}"#)?;
    let started = Instant::now();
    let call = eve.call(Method::POST, ctx.core("configmaps")).header("content-encoding", "gzip");
    let reply = call.header("content-type", "application/json").body(packed.finish()?).send().await?;
    refused(&reply.text(), reply.status)?;
    ensure!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    absent(&ctx, &ctx.core("configmaps/bomb")).await
}

async fn an_alias_bomb_in_yaml_is_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "get", "patch"])])).await?;
    let mut bomb =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\nx0: &x0 [a, a, a, a, a, a, a, a, a]\n".to_owned();
    for level in 1..12 {
        let of = vec![format!("*x{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("x{level}: &x{level} [{of}]\n"));
    }
    bomb.push_str("data: *x11\n");
    let started = Instant::now();
    let posted =
        eve.call(Method::POST, ctx.core("configmaps")).header("content-type", "application/yaml").body(bomb.clone());
    refused("as YAML", posted.send().await?.status)?;
    let path = ctx.core("configmaps/bomb?fieldManager=eve");
    let applied = eve.call(Method::PATCH, path).header("content-type", "application/apply-patch+yaml").body(bomb);
    refused("as apply", applied.send().await?.status)?;
    ensure!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    absent(&ctx, &ctx.core("configmaps/bomb")).await
}

async fn a_patch_that_doubles_itself_is_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["get", "patch"])])).await?;
    let path = ctx.core("configmaps/small");
    let small = json!({"metadata": {"name": "small", "annotations": {"a": "x".repeat(1000)}}, "data": {"a": "b"}});
    ctx.post(ctx.core("configmaps"), &small).await?.code(201)?;
    let before = stored(&ctx, &path).await?;
    // Each copy doubles the object: forty copies would be a terabyte.
    let doubling: Vec<_> =
        (0..40).map(|n| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/copy{n}")})).collect();
    let many: Vec<_> = (0..20_000).map(|_| json!({"op": "test", "path": "/data/a", "value": "b"})).collect();
    let started = Instant::now();
    for operations in [doubling, many] {
        let reply = eve.patch(&path, PatchType::Json, &json!(operations)).await?;
        refused(&format!("{} operations: {:.200}", operations.len(), reply.text()), reply.status)?;
    }
    ensure!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    ensure!(stored(&ctx, &path).await? == before, "it was changed");
    Ok(())
}

async fn a_patch_that_reaches_identity_fields_changes_none_of_them(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["get", "patch", "update"])])).await?;
    let path = ctx.core("configmaps/mine");
    ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "mine"}, "data": {"a": "b"}})).await?.code(201)?;
    let before = stored(&ctx, &path).await?;
    let values = [
        ("uid", json!("00000000-0000-0000-0000-000000000000")),
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(0)),
        ("generation", json!(99)),
        ("selfLink", json!("/elsewhere")),
        ("name", json!("other")),
        ("namespace", json!("kube-system")),
    ];
    for (field, value) in values {
        let patch = json!({"metadata": {field: value}});
        eve.patch(&path, PatchType::Merge, &patch).await?;
        eve.patch(&path, PatchType::Strategic, &patch).await?;
        eve.patch(
            &path,
            PatchType::Json,
            &json!([{"op": "add", "path": format!("/metadata/{field}"), "value": value}]),
        )
        .await?;
        eve.patch(&path, PatchType::Merge, &json!({"metadata": {field: null}})).await?;
        let after = stored(&ctx, &path).await?;
        for kept in ["uid", "creationTimestamp", "deletionTimestamp", "name", "namespace"] {
            ensure!(after["metadata"][kept] == before["metadata"][kept], "{field} changed {kept}: {after}");
        }
    }
    for directive in [
        json!({"$patch": "delete"}),
        json!({"$patch": "replace"}),
        json!({"$retainKeys": []}),
        json!({"metadata": {"$patch": "replace"}}),
        json!({"data": {"$deleteFromPrimitiveList/x": ["a"]}}),
    ] {
        let reply = eve.patch(&path, PatchType::Strategic, &directive).await?;
        ensure!(reply.status < 500 || ctx.kind() == crate::ServerKind::Real, "{directive}: {}", reply.text());
        let after = stored(&ctx, &path).await?;
        ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{directive}: {after}");
    }
    Ok(())
}

async fn a_continue_token_of_another_namespace_shows_nothing_of_it(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    ctx.post(format!("/api/v1/namespaces/{other}/secrets"), &json!({"metadata": {"name": "a-first"}}))
        .await?
        .code(201)?;
    let mut tokens = Vec::new();
    for path in [format!("/api/v1/namespaces/{other}/secrets?limit=1"), "/api/v1/secrets?limit=1".to_owned()] {
        let page = ctx.get(&path).await?.ok()?;
        tokens.push(page["metadata"]["continue"].as_str().context("a second page")?.to_owned());
    }
    let (_, eve) = attacker(&ctx, json!([rule("", &["secrets", "configmaps"], &["get", "list"])])).await?;
    // Edited: a start key that leaves the namespace.
    let decoded = base64::Engine::decode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, &tokens[0]).unwrap_or_default();
    let edited = String::from_utf8_lossy(&decoded).replace("a-first", &format!("../{other}/"));
    tokens.push(base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, edited));
    tokens.extend(["AAAA".to_owned(), "....".to_owned(), "x".repeat(20_000)]);
    for token in tokens {
        for resource in ["secrets", "configmaps"] {
            let reply = eve.get(ctx.core(&format!("{resource}?limit=500&continue={token}"))).await?;
            reveals_no_secret("a continue token", &reply.text())?;
            ensure!(reply.status < 500, "{token:.60}: {}", reply.text());
            for item in reply.json["items"].as_array().into_iter().flatten() {
                ensure!(item["metadata"]["namespace"] == ctx.ns.as_str(), "{item}");
            }
        }
    }
    Ok(())
}
