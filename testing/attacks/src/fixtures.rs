//! Shared fixtures of attempts: rights for attackers, data to steal, and checks whether the data still exists.

use anyhow::{Context, Result, ensure};
use fleetwright_conformance::{Ctx, eventually};
use serde_json::{Value, json};

/// A value that only an administrator may read. If an answer contains it, an attack has succeeded.
pub const SECRET_VALUE: &str = "the-treasure-of-somebody-else";
/// The same in a Secret's `data`.
pub const SECRET_VALUE_BASE64: &str = "dGhlLXRyZWFzdXJlLW9mLXNvbWVib2R5LWVsc2U=";

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// One rule.
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

pub fn subject(user: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user})
}

pub fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [subject(user)],
    })
}

/// The path of RBAC objects in the attempt's namespace.
pub fn rbac(ctx: &Ctx, rest: &str) -> String {
    ctx.group(RBAC, rest)
}

/// The path of RBAC objects of the cluster.
pub fn cluster_rbac(rest: &str) -> String {
    format!("/apis/{RBAC}/{rest}")
}

/// A user with only these rights in the attempt's namespace.
pub async fn attacker(ctx: &Ctx, rules: Value) -> Result<(String, Ctx)> {
    let name = ctx.unique("eve");
    ctx.post(rbac(ctx, "roles"), &json!({"metadata": {"name": name}, "rules": rules})).await?.code(201)?;
    ctx.post(rbac(ctx, "rolebindings"), &binding(&name, "Role", &name, &name)).await?.code(201)?;
    let user = ctx.as_user(&name, &[]).await?;
    may(&user, &rules[0], Some(&ctx.ns)).await?;
    Ok((name, user))
}

/// A user with only these rights in the whole cluster.
pub async fn attacker_everywhere(ctx: &Ctx, rules: Value) -> Result<(String, Ctx)> {
    let name = ctx.unique("eve");
    let role = json!({"metadata": {"name": name}, "rules": rules});
    ctx.post(cluster_rbac("clusterroles"), &role).await?.code(201)?;
    let bound = binding(&name, "ClusterRole", &name, &name);
    ctx.post(cluster_rbac("clusterrolebindings"), &bound).await?.code(201)?;
    let user = ctx.as_user(&name, &[]).await?;
    may(&user, &rules[0], None).await?;
    Ok((name, user))
}

/// Waits until a grant has taken effect.
pub async fn may(user: &Ctx, rule: &Value, namespace: Option<&str>) -> Result<()> {
    let (resource, subresource) = {
        let text = rule["resources"][0].as_str().context("a resource")?;
        text.split_once('/').unwrap_or((text, ""))
    };
    let asked = json!({"spec": {"resourceAttributes": {
        "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
        "namespace": namespace, "name": rule["resourceNames"][0],
    }}});
    eventually("the grant takes effect", async || {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review = user.post(path, &asked).await?.ok()?;
        ensure!(review["status"]["allowed"] == true, "{review}");
        Ok(())
    })
    .await
}

/// A namespace of another user, with a Secret and a ConfigMap named `treasure`.
pub async fn victim(ctx: &Ctx) -> Result<String> {
    let name = ctx.unique("victim");
    ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?.code(201)?;
    let secret = json!({"metadata": {"name": "treasure"}, "stringData": {"key": SECRET_VALUE}});
    ctx.post(format!("/api/v1/namespaces/{name}/secrets"), &secret).await?.code(201)?;
    let map = json!({"metadata": {"name": "treasure"}, "data": {"key": SECRET_VALUE}});
    ctx.post(format!("/api/v1/namespaces/{name}/configmaps"), &map).await?.code(201)?;
    Ok(name)
}

/// Checks that an answer contains the treasure in no encoding.
pub fn reveals_no_secret(what: &str, text: &str) -> Result<()> {
    ensure!(!text.contains(SECRET_VALUE) && !text.contains(SECRET_VALUE_BASE64), "{what} revealed the secret: {text}");
    Ok(())
}

/// Checks that the path does not exist.
pub async fn absent(admin: &Ctx, path: &str) -> Result<()> {
    let reply = admin.get(path).await?;
    ensure!(reply.status == 404, "{path} exists: {}", reply.text());
    Ok(())
}

/// The present object, without the fields that may change by themselves.
pub async fn stored(admin: &Ctx, path: &str) -> Result<Value> {
    admin.get(path).await?.ok()
}

/// Checks that the request was refused without a server error.
pub fn refused(what: &str, status: u16) -> Result<()> {
    ensure!((400..500).contains(&status), "{what} was answered with {status}");
    Ok(())
}

/// The path where every authenticated user may ask for their name: they get 201, and the anonymous user 403.
pub const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The user name and groups that the server authenticates.
pub async fn whoami(ctx: &Ctx) -> Result<Value> {
    let mut review = ctx.post(WHO_AM_I, &json!({})).await?.code(201)?;
    Ok(review["status"]["userInfo"].take())
}

/// A token of a new service account in the attempt's namespace.
pub async fn account_token(ctx: &Ctx, name: &str) -> Result<String> {
    ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    token_of(ctx, name).await
}

/// Another token of that service account.
pub async fn token_of(ctx: &Ctx, name: &str) -> Result<String> {
    let reply = ctx.post(ctx.core(&format!("serviceaccounts/{name}/token")), &json!({"spec": {}})).await?.code(201)?;
    reply["status"]["token"].as_str().map(str::to_owned).context("no token")
}
