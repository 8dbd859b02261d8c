//! Impersonating another user.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use fleetwright_conformance::{Call, Ctx, PatchType, Reply, eventually};
use fleetwright_kit::leader;
use fleetwright_pki::{Authority, Leaf};
use http::Method;
use serde_json::{Value, json};

use crate::fixtures::{
    SECRET_VALUE, WHO_AM_I, absent, account_token, attacker, attacker_everywhere, binding, rbac, reveals_no_secret,
    rule, stored, token_of, victim, whoami,
};
use crate::{Area, Attempt, ServerKind, raw};

pub fn attempts() -> Vec<Attempt> {
    attempts![Area::Identity, Server;
        a_certificate_of_another_authority_is_of_no_use_whatever_it_names,
        a_self_signed_certificate_that_copies_the_authority_s_name_is_of_no_use,
        a_server_s_own_certificate_is_no_client_certificate,
        forged_service_account_tokens_are_refused_one_by_one,
        a_token_does_not_outlive_its_account_by_a_namesake,
        a_token_of_one_account_does_not_make_tokens_of_another,
        an_operator_s_account_gets_no_token_and_no_lease_of_another_one,
        the_right_to_impersonate_one_user_gives_no_groups,
        impersonation_in_parts_and_twice_is_refused,
        front_proxy_headers_of_a_client_are_not_believed,
        a_bootstrap_token_in_another_namespace_opens_nothing,
        passwords_and_tokens_in_other_places_are_not_read,
    ]
}

/// Tries to read and to write with this client certificate: the server must not authenticate anybody by it.
async fn useless(ctx: &Ctx, cert_pem: &str, key_pem: &str) -> Result<()> {
    let other = victim(ctx).await?;
    let forger = ctx.with_certificate(cert_pem, key_pem).await?;
    not_authenticated(forger.post(WHO_AM_I, &json!({})).await)?;
    not_authenticated(forger.get(format!("/api/v1/namespaces/{other}/secrets")).await)?;
    not_authenticated(forger.post(ctx.core("configmaps"), &json!({"metadata": {"name": "forged"}})).await)?;
    absent(ctx, &ctx.core("configmaps/forged")).await?;
    // Another certificate is accepted on a new connection: the server closed the others because of theirs.
    whoami(&ctx.as_user("honest", &[]).await?).await.map(drop)
}

/// Checks that the server refused the credential itself: by 401, or by closing the connection in the TLS handshake. 403 is the answer to a user whom
/// the server knows, or to an anonymous one.
fn not_authenticated(answer: Result<Reply>) -> Result<()> {
    match answer {
        Ok(reply) => reply.refused(401, "Unauthorized").map(drop).context("the certificate was accepted, or not seen"),
        Err(error) if error.is::<kube::Error>() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn a_certificate_of_another_authority_is_of_no_use_whatever_it_names(ctx: Ctx) -> Result<()> {
    let pair = Authority::new("kubernetes")?.issue(Leaf::client("kubernetes-admin", ["system:masters"]))?;
    useless(&ctx, &pair.cert_pem, &pair.key_pem).await
}

async fn a_self_signed_certificate_that_copies_the_authority_s_name_is_of_no_use(ctx: Ctx) -> Result<()> {
    let theirs = fleetwright_pki::Certificate::from_pem(ctx.target().ca_pem())?;
    let namesake = Authority::new(&theirs.common_name)?;
    let pair = namesake.issue(Leaf::client("kubernetes-admin", ["system:masters"]))?;
    // With the true authority in the chain, as if it had signed.
    let chain = format!("{}{}", pair.cert_pem, ctx.target().ca_pem());
    useless(&ctx, &pair.cert_pem, &pair.key_pem).await?;
    useless(&ctx, &chain, &pair.key_pem).await
}

/// A kubelet's serving certificate names a node, and its authority is trusted for clients: the missing usage must exclude it as a client certificate.
async fn a_server_s_own_certificate_is_no_client_certificate(ctx: Ctx) -> Result<()> {
    let serving = ("kubernetes.io/kubelet-serving", "server auth", vec!["thief".to_owned()]);
    let (certificate, key) = certificate_of_a_node(&ctx, "thief", serving).await?;
    useless(&ctx, &certificate, &key).await?;
    // The same node is authenticated by a client certificate that the same authority signed.
    let client = ("kubernetes.io/kube-apiserver-client-kubelet", "client auth", Vec::new());
    let (certificate, key) = certificate_of_a_node(&ctx, "thief", client).await?;
    let node = whoami(&ctx.with_certificate(&certificate, &key).await?).await?;
    ensure!(node["username"] == "system:node:thief", "{node}");
    Ok(())
}

/// A certificate that the server's authority signs for a node, and its key: by this signer, for this usage and with these names.
async fn certificate_of_a_node(
    ctx: &Ctx,
    node: &str,
    (signer, usage, names): (&str, &str, Vec<String>),
) -> Result<(String, String)> {
    let (user, group) = (format!("system:node:{node}"), "system:nodes");
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
    params.distinguished_name.push(rcgen::DnType::CommonName, user.as_str());
    let pem = params.serialize_request(&key)?.pem()?;
    let name = ctx.unique("request");
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = json!({"metadata": {"name": name}, "spec": {
        "signerName": signer, "request": BASE64_STANDARD.encode(&pem), "usages": ["digital signature", usage],
    }});
    ctx.as_user(&user, &[group]).await?.post(path, &request).await?.code(201)?;
    let approval = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "Tried", "message": "an attempt"},
    ]}});
    ctx.patch(format!("{path}/{name}/approval"), PatchType::Merge, &approval).await?.ok()?;
    let signed = eventually("it is signed", async || {
        let request = stored(ctx, &format!("{path}/{name}")).await?;
        let text = request["status"]["certificate"].as_str().context("no certificate yet")?.to_owned();
        Ok(String::from_utf8(BASE64_STANDARD.decode(text)?)?)
    })
    .await?;
    Ok((signed, key.serialize_pem()))
}

fn segment(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

async fn forged_service_account_tokens_are_refused_one_by_one(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let token = account_token(&ctx, "robot").await?;
    let parts: Vec<&str> = token.split('.').collect();
    let read = |part: &str| -> Result<Value> { Ok(serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part)?)?) };
    let (header, claims) = (read(parts[0])?, read(parts[1])?);
    let mut admin = claims.clone();
    admin["sub"] = "system:serviceaccount:kube-system:default".into();
    admin["kubernetes.io"]["namespace"] = "kube-system".into();
    admin["kubernetes.io"]["serviceaccount"]["name"] = "default".into();
    let mut forever = claims.clone();
    forever["exp"] = json!(i64::MAX);
    let header_with = |field: &str, value: Value| {
        let mut header = header.clone();
        header[field] = value;
        header
    };
    let hmac = |header: &Value, claims: &Value, key: &[u8]| {
        let signed = format!("{}.{}", segment(header), segment(claims));
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key);
        let tag = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref()))
    };
    let none = header_with("alg", "none".into());
    let symmetric = header_with("alg", "HS256".into());
    let kid = header["kid"].as_str().unwrap_or_default().to_owned();
    let forged = [
        ("another account in the claims", format!("{}.{}.{}", parts[0], segment(&admin), parts[2])),
        ("a later end in the claims", format!("{}.{}.{}", parts[0], segment(&forever), parts[2])),
        ("algorithm none", format!("{}.{}.", segment(&none), segment(&admin))),
        ("algorithm none with a signature", format!("{}.{}.{}", segment(&none), segment(&admin), parts[2])),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("two parts", format!("{}.{}", parts[0], parts[1])),
        ("a symmetric key that is public", hmac(&symmetric, &admin, ctx.target().ca_pem().as_bytes())),
        ("a symmetric key that is the key's id", hmac(&symmetric, &admin, kid.as_bytes())),
        ("an empty symmetric key", hmac(&symmetric, &admin, b"0")),
        (
            "a key of the token's own choice",
            format!("{}.{}.{}", segment(&header_with("kid", "../../../dev/null".into())), segment(&admin), parts[2]),
        ),
        (
            "a key inside the token",
            format!(
                "{}.{}.{}",
                segment(&header_with("jwk", json!({"kty": "oct", "k": "AA"}))),
                segment(&admin),
                parts[2]
            ),
        ),
    ];
    for (what, token) in forged {
        let forger = ctx.with_token(&token).await?;
        let reply = forger.get(format!("/api/v1/namespaces/{other}/secrets")).await?;
        ensure!(reply.status == 401, "{what}: {}", reply.status);
        reveals_no_secret(what, &reply.text())?;
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let review = ctx.post(path, &json!({"spec": {"token": token}})).await?.code(201)?;
        ensure!(review["status"]["authenticated"] != true, "{what}: {review}");
    }
    // The true token is still valid.
    ensure!(whoami(&ctx.with_token(&token).await?).await?["username"] == claims["sub"], "the true token");
    Ok(())
}

async fn a_token_does_not_outlive_its_account_by_a_namesake(ctx: Ctx) -> Result<()> {
    let token = account_token(&ctx, "robot").await?;
    let robot = ctx.with_token(&token).await?;
    let first = whoami(&robot).await?;
    ctx.delete(ctx.core("serviceaccounts/robot")).await?.ok()?;
    ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": "robot"}})).await?.code(201)?;
    // The server may have the token in its cache.
    eventually("the old token has ended", async || robot.get("/version").await?.refused(401, "Unauthorized")).await?;
    let second = whoami(&ctx.with_token(&token_of(&ctx, "robot").await?).await?).await?;
    ensure!(first["username"] == second["username"] && first["uid"] != second["uid"], "{first} {second}");
    Ok(())
}

async fn a_token_of_one_account_does_not_make_tokens_of_another(ctx: Ctx) -> Result<()> {
    let named = json!([{"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"], "resourceNames": ["robot"]}]);
    let (_, eve) = attacker(&ctx, named).await?;
    for name in ["robot", "master"] {
        ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    }
    let of = |name: &str| ctx.core(&format!("serviceaccounts/{name}/token"));
    let body = json!({"spec": {}});
    let own = eve.post(of("robot"), &body).await?.code(201)?;
    let wanted = format!("system:serviceaccount:{}:robot", ctx.ns);
    let own = ctx.with_token(own["status"]["token"].as_str().context("a token")?).await?;
    ensure!(whoami(&own).await?["username"] == wanted.as_str(), "its own");
    // The body must name the account and namespace of the path.
    for path in [of("master"), of("Robot"), "/api/v1/namespaces/kube-system/serviceaccounts/default/token".to_owned()] {
        let reply = eve.post(&path, &body).await?;
        ensure!(reply.status == 403 && reply.json["status"]["token"].is_null(), "{path}: {}", reply.text());
    }
    for confused in [
        json!({"metadata": {"name": "master"}, "spec": {}}),
        json!({"metadata": {"namespace": "kube-system"}, "spec": {}}),
    ] {
        let reply = eve.post(of("robot"), &confused).await?;
        if let Some(token) = reply.json["status"]["token"].as_str() {
            let who = whoami(&ctx.with_token(token).await?).await?;
            ensure!(who["username"] == wanted.as_str(), "{confused}: {who}");
        }
    }
    Ok(())
}

const READINESS: &str = "fleetwright-readiness";
const MACHINES: &str = "fleetwright-machines";
const CLUSTERS: &str = "fleetwright-clusters";

/// The user name of an operator's account in the attempt's namespace.
fn operator(ctx: &Ctx, name: &str) -> String {
    format!("system:serviceaccount:{}:{name}", ctx.ns)
}

/// The accounts of all operators with their rights, in one namespace, and their Leases.
///
/// Only the Cluster-Operator may create Secrets where these accounts are. RBAC cannot restrict their type, so an admission policy keeps it from tokens of
/// the others. The embedded server has no admission policies: there the account does get such tokens, and only the Leases are tried.
async fn an_operator_s_account_gets_no_token_and_no_lease_of_another_one(ctx: Ctx) -> Result<()> {
    let clusters = fleetwright_clusters::rules(&ctx.ns);
    let rights = [
        (READINESS, vec![]),
        (MACHINES, fleetwright_machines::rules().namespaced),
        (CLUSTERS, [clusters.namespaced, clusters.keys].concat()),
    ];
    for (name, rules) in rights {
        ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": name}})).await?.code(201)?;
        let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 15}});
        ctx.post(leases(&ctx, ""), &lease).await?.code(201)?;
        let rules = [rules, leader::rules(name)].concat();
        let role = json!({"metadata": {"name": name}, "rules": rules});
        ctx.post(rbac(&ctx, "roles"), &role).await?.code(201)?;
        let bound = binding(name, "Role", name, &operator(&ctx, name));
        ctx.post(rbac(&ctx, "rolebindings"), &bound).await?.code(201)?;
    }
    for thief in [READINESS, MACHINES, CLUSTERS] {
        takes_no_lease(&ctx, thief).await?;
    }
    match ctx.kind() {
        ServerKind::Embedded => Ok(()),
        ServerKind::Real => gets_no_token(&ctx).await,
    }
}

/// The path of a Lease in the attempt's namespace, or of all.
fn leases(ctx: &Ctx, name: &str) -> String {
    ctx.group("coordination.k8s.io/v1", format!("leases/{name}").trim_end_matches('/'))
}

async fn takes_no_lease(ctx: &Ctx, thief: &str) -> Result<()> {
    let eve = ctx.as_user(&operator(ctx, thief), &[]).await?;
    let own = stored(ctx, &leases(ctx, thief)).await?;
    eventually("its own Lease can be updated", async || eve.put(leases(ctx, thief), &own).await?.ok()).await?;
    for other in [READINESS, MACHINES, CLUSTERS].into_iter().filter(|other| *other != thief) {
        let path = leases(ctx, other);
        let before = stored(ctx, &path).await?;
        let mut taken = before.clone();
        taken["spec"]["holderIdentity"] = thief.into();
        let spec = json!({"spec": {"holderIdentity": thief}});
        let applied = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": other}, "spec": spec["spec"],
        });
        let tried = [
            eve.put(path.as_str(), &taken).await?,
            eve.patch(path.as_str(), PatchType::Merge, &spec).await?,
            eve.apply(&path, "thief", &applied).await?,
            eve.delete(path.as_str()).await?,
            eve.delete(leases(ctx, "")).await?,
        ];
        for reply in tried {
            reply.refused(403, "Forbidden").with_context(|| format!("{thief} takes the Lease {other}"))?;
        }
        ensure!(stored(ctx, &path).await? == before, "{thief} changed the Lease {other}");
    }
    Ok(())
}

async fn gets_no_token(ctx: &Ctx) -> Result<()> {
    for object in fleetwright_clusters::admission_policy(&ctx.ns, CLUSTERS, &ctx.ns) {
        let plural = match object["kind"] == "ValidatingAdmissionPolicy" {
            true => "validatingadmissionpolicies",
            false => "validatingadmissionpolicybindings",
        };
        ctx.post(format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &object).await?.code(201)?;
    }
    let eve = ctx.as_user(&operator(ctx, CLUSTERS), &[]).await?;
    let secret = |of_type: &str, account: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": of_type,
            "metadata": {"name": "stolen", "annotations": {"kubernetes.io/service-account.name": account}},
        })
    };
    let (path, stolen) = (ctx.core("secrets"), ctx.core("secrets/stolen"));
    let policy = format!("{CLUSTERS}.{}", ctx.ns);
    let token = "kubernetes.io/service-account-token";
    eventually("the policy is applied", async || {
        let reply = eve.post(format!("{path}?dryRun=All"), &secret(token, MACHINES)).await?;
        ensure!(reply.text().contains(&policy), "{}: {}", reply.status, reply.text());
        Ok(())
    })
    .await?;
    for account in [READINESS, MACHINES, "default"] {
        let asked = ctx.core(&format!("serviceaccounts/{account}/token"));
        eve.post(asked, &json!({"spec": {}})).await?.refused(403, "Forbidden")?;
        let created = eve.post(path.as_str(), &secret(token, account)).await?;
        let applied = eve.apply(&stolen, "thief", &secret(token, account)).await?;
        for reply in [created, applied] {
            ensure!(reply.status >= 400 && reply.text().contains(&policy), "{}: {}", reply.status, reply.text());
        }
        absent(ctx, &stolen).await?;
        // A Secret that it may create does not become one of the other type.
        eve.post(path.as_str(), &secret("Opaque", account)).await?.code(201)?;
        let changed = eve.patch(stolen.as_str(), PatchType::Merge, &json!({"type": token})).await?;
        ensure!(changed.status >= 400, "{}: {}", changed.status, changed.text());
        let left = stored(ctx, &stolen).await?;
        ensure!(left["type"] == "Opaque" && left["data"]["token"].is_null(), "{left}");
        ctx.delete(stolen.as_str()).await?.ok()?;
    }
    Ok(())
}

async fn the_right_to_impersonate_one_user_gives_no_groups(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let named =
        json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}]);
    let (_, eve) = attacker_everywhere(&ctx, named).await?;
    let path = format!("/api/v1/namespaces/{other}/secrets/treasure");
    let as_bob = || eve.call(Method::GET, path.as_str()).header("impersonate-user", "bob");
    let bob = eve.call(Method::POST, WHO_AM_I);
    let bob = bob.header("impersonate-user", "bob").json(&json!({})).send().await?.code(201)?;
    ensure!(bob["status"]["userInfo"]["username"] == "bob", "{bob}");
    let attempts = [
        as_bob(),
        as_bob().header("impersonate-group", "system:masters"),
        as_bob().header("impersonate-group", "system:authenticated").header("impersonate-group", "system:masters"),
        as_bob().header("impersonate-uid", "0"),
        as_bob().header("impersonate-extra-scopes", "all"),
        eve.call(Method::GET, path.as_str()).header("impersonate-user", "system:admin"),
        eve.call(Method::GET, path.as_str()).header("impersonate-user", "system:serviceaccount:kube-system:default"),
        eve.call(Method::GET, path.as_str()).header("impersonate-user", "system:node:bob"),
    ];
    for (number, attempt) in attempts.into_iter().enumerate() {
        let reply = attempt.send().await?;
        ensure!(reply.status == 403, "attempt {number}: {}", reply.text());
        reveals_no_secret("impersonation", &reply.text())?;
    }
    Ok(())
}

/// The call with these headers.
fn with<'a>(call: Call<'a>, headers: &[(&'static str, &str)]) -> Call<'a> {
    headers.iter().fold(call, |call, (name, value)| call.header(name, value))
}

async fn impersonation_in_parts_and_twice_is_refused(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create"])])).await?;
    let body = json!({"metadata": {"name": "made"}});
    let path = ctx.core("configmaps");
    let attempts: [&[(&'static str, &str)]; 6] = [
        &[("impersonate-group", "system:masters")],
        &[("impersonate-uid", "0")],
        &[("impersonate-extra-scopes", "all")],
        &[("impersonate-user", ""), ("impersonate-group", "system:masters")],
        &[("impersonate-user", "bob"), ("impersonate-user", "system:admin")],
        &[("impersonate-user", "eve, system:admin")],
    ];
    for headers in attempts {
        let call = eve.call(Method::POST, path.as_str());
        let call = with(call, headers);
        let reply = call.json(&body).send().await?;
        ensure!(reply.status >= 400, "{headers:?}: {}", reply.status);
        absent(&ctx, &ctx.core("configmaps/made")).await?;
    }
    Ok(())
}

async fn front_proxy_headers_of_a_client_are_not_believed(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let (name, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["get"])])).await?;
    let headers = [("x-remote-user", "system:admin"), ("x-remote-group", "system:masters"), ("x-remote-extra-a", "b")];
    for (who, ctx) in [(name.as_str(), eve), ("system:anonymous", ctx.anonymous().await?)] {
        let read = with(ctx.call(Method::GET, format!("/api/v1/namespaces/{other}/secrets")), &headers).send().await?;
        ensure!(matches!(read.status, 401 | 403), "{who}: {}", read.text());
        reveals_no_secret(who, &read.text())?;
        let review = ctx.call(Method::POST, WHO_AM_I);
        let review = with(review, &headers).json(&json!({})).send().await?;
        if review.status == 201 {
            ensure!(review.json["status"]["userInfo"]["username"] == who, "{}", review.text());
        }
    }
    Ok(())
}

async fn a_bootstrap_token_in_another_namespace_opens_nothing(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("", &["secrets"], &["create"])])).await?;
    let token = |id: &str| {
        json!({
            "metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
                "usage-bootstrap-signing": "true", "auth-extra-groups": "system:bootstrappers:evil",
            },
        })
    };
    let system = "/api/v1/namespaces/kube-system/secrets";
    ctx.post(ctx.core("secrets"), &token("evil01")).await?.code(201)?;
    eve.post(system, &token("evil01")).await?.refused(403, "Forbidden")?;
    absent(&ctx, &format!("{system}/bootstrap-token-evil01")).await?;
    // The same token of an administrator in kube-system is accepted: it is the namespace that matters, and the server has seen both Secrets.
    ctx.post(system, &token("good01")).await?.code(201)?;
    let good = ctx.with_token("good01.0123456789abcdef").await?;
    eventually("a token in kube-system is accepted", async || whoami(&good).await).await?;
    ctx.delete(format!("{system}/bootstrap-token-good01")).await?.ok()?;
    let holder = ctx.with_token("evil01.0123456789abcdef").await?;
    holder.get("/version").await?.refused(401, "Unauthorized")?;
    Ok(())
}

async fn passwords_and_tokens_in_other_places_are_not_read(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let token = account_token(&ctx, "robot").await?;
    let account = format!("system:serviceaccount:{}:robot", ctx.ns);
    let bound = json!({
        "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": ctx.ns}],
    });
    let there = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{other}/rolebindings");
    ctx.post(there, &bound).await?.code(201)?;
    let secrets = format!("/api/v1/namespaces/{other}/secrets");
    // A true token in the wrong place.
    let robot = ctx.with_token(&token).await?;
    eventually("the token is good", async || robot.get(&secrets).await?.ok()).await?;
    let target = ctx.target();
    let get =
        |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n");
    let basic = BASE64_STANDARD.encode(format!("{account}:{token}"));
    for request in [
        get(&format!("{secrets}?access_token={token}"), ""),
        get(&format!("{secrets}?token={token}"), ""),
        get(&secrets, &format!("Authorization: Basic {basic}\r\n")),
        get(&secrets, &format!("Cookie: token={token}\r\n")),
        get(&secrets, &format!("X-Auth-Token: {token}\r\n")),
        get(&secrets, &format!("Authorization: Token {token}\r\n")),
        get(&secrets, &format!("Proxy-Authorization: Bearer {token}\r\n")),
    ] {
        let said = raw::answered(target, request.as_bytes()).await?;
        let statuses = raw::statuses(&said);
        ensure!(statuses.len() == 1 && matches!(statuses[0], 400 | 401 | 403), "{request}\n{said}");
        ensure!(!said.contains(SECRET_VALUE), "{request}");
        reveals_no_secret(&request, &said)?;
    }
    Ok(())
}
