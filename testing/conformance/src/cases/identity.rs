//! Authentication and authorization.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Ctx, PatchType, eventually};

mod nodes;
mod policy;

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    [own_cases(), nodes::cases(), policy::cases()].concat()
}

fn own_cases() -> Vec<Case> {
    cases!["identity";
        anonymous_users_may_read_health_and_version_and_nothing_else,
        a_certificate_names_user_and_groups,
        a_rubbish_token_is_unauthorized,
        a_token_stands_for_its_service_account,
        a_token_names_its_issuer_subject_and_end,
        a_token_lasts_at_least_ten_minutes,
        a_token_of_a_missing_account_is_not_found,
        a_token_ends_with_its_account,
        a_token_bound_to_a_secret_ends_with_it,
        a_token_for_others_is_not_for_the_server,
        a_review_distinguishes_a_good_token_from_a_bad_one,
        a_refusal_names_user_verb_resource_and_place,
        a_role_binding_grants_within_its_namespace_only,
        a_cluster_role_bound_in_a_namespace_grants_there,
        a_cluster_role_binding_grants_everywhere,
        a_group_is_bound_as_a_user_is,
        a_role_may_name_objects,
        a_subresource_is_granted_apart,
        the_default_roles_are_there,
        view_reads_all_but_secrets,
        an_aggregated_role_collects_rules,
        roles_that_aggregate_each_other_settle,
        put_and_apply_need_the_right_to_create,
        no_user_grants_what_they_do_not_have,
        no_user_binds_what_they_do_not_have,
        escalate_and_bind_are_verbs,
        a_role_reference_cannot_change,
        a_binding_to_nothing_is_invalid,
        can_i_asks_for_oneself,
        an_administrator_asks_for_others,
        an_access_review_needs_a_subject_and_one_question,
        whoami_shows_name_and_groups,
        rules_of_oneself_can_be_listed,
        an_administrator_may_impersonate_and_others_may_not,
    ]
}

async fn account(ctx: &Ctx, name: &str) -> Result<()> {
    ctx.post(ctx.core("serviceaccounts"), &json!({"metadata": {"name": name}})).await?.code(201)?;
    Ok(())
}

async fn token(ctx: &Ctx, name: &str, spec: Value) -> Result<String> {
    let path = ctx.core(&format!("serviceaccounts/{name}/token"));
    let reply = ctx.post(path, &json!({"spec": spec})).await?.code(201)?;
    reply["status"]["token"].as_str().map(str::to_owned).context("no token")
}

async fn role(ctx: &Ctx, name: &str, rules: Value) -> Result<()> {
    let path = ctx.group("rbac.authorization.k8s.io/v1", "roles");
    ctx.post(path, &json!({"metadata": {"name": name}, "rules": rules})).await?.code(201)?;
    Ok(())
}

fn binding(name: &str, kind: &str, role: &str, subject: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [subject],
    })
}

fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

async fn bind(ctx: &Ctx, kind: &str, role: &str, subject: Value) -> Result<()> {
    let path = ctx.group("rbac.authorization.k8s.io/v1", "rolebindings");
    ctx.post(path, &binding(&ctx.unique("binding"), kind, role, subject)).await?.code(201)?;
    Ok(())
}

/// Grants take effect a moment after they are written.
async fn allowed(ctx: &Ctx, path: &str) -> Result<Value> {
    eventually("the grant takes effect", async || ctx.get(path).await?.ok()).await
}

async fn anonymous_users_may_read_health_and_version_and_nothing_else(ctx: Ctx) -> Result<()> {
    let nobody = ctx.anonymous().await?;
    for path in ["/healthz", "/livez", "/readyz"] {
        let reply = nobody.get(path).await?;
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"), "{path}");
    }
    assert_eq!(nobody.get("/version").await?.ok()?["major"], "1");
    for path in ["/", "/api", "/apis", "/openapi/v3", "/metrics"] {
        let message = format!("forbidden: User \"system:anonymous\" cannot get path \"{path}\"");
        nobody.get(path).await?.refused_with(403, "Forbidden", &message)?;
    }
    nobody.get("/api/v1/namespaces").await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn whoami(ctx: &Ctx) -> Result<Value> {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mut review = ctx.post(path, &json!({})).await?.code(201)?;
    Ok(review["status"]["userInfo"].take())
}

async fn a_certificate_names_user_and_groups(ctx: Ctx) -> Result<()> {
    let ann = whoami(&ctx.as_user("ann", &["staff", "night-shift", "on-call"]).await?).await?;
    assert_eq!(ann["username"], "ann");
    assert_eq!(ann["groups"], json!(["staff", "night-shift", "on-call", "system:authenticated"]));
    let id = ann["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap_or_default();
    assert!(id.starts_with("X509SHA256=") && id.len() == 75, "{id}");
    Ok(())
}

async fn a_rubbish_token_is_unauthorized(ctx: Ctx) -> Result<()> {
    let somebody = ctx.with_token("rubbish").await?;
    somebody.get("/version").await?.refused_with(401, "Unauthorized", "Unauthorized")?;
    Ok(())
}

async fn a_token_stands_for_its_service_account(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let robot = ctx.with_token(&token(&ctx, "robot", json!({})).await?).await?;
    let info = whoami(&robot).await?;
    assert_eq!(info["username"], json!(format!("system:serviceaccount:{}:robot", ctx.ns)));
    let groups =
        json!(["system:serviceaccounts", format!("system:serviceaccounts:{}", ctx.ns), "system:authenticated"]);
    assert_eq!(info["groups"], groups);
    let made = ctx.get(ctx.core("serviceaccounts/robot")).await?.ok()?;
    assert_eq!(info["uid"], made["metadata"]["uid"]);
    Ok(())
}

async fn a_token_names_its_issuer_subject_and_end(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let path = ctx.core("serviceaccounts/robot/token");
    let reply = ctx.post(path, &json!({"spec": {"expirationSeconds": 3600}})).await?.code(201)?;
    assert_eq!(reply["kind"], "TokenRequest");
    assert_eq!(reply["metadata"]["name"], "robot");
    assert_eq!(reply["spec"]["expirationSeconds"], 3600);
    let token = reply["status"]["token"].as_str().context("no token")?;
    let claims = token.split('.').nth(1).context("no claims")?;
    let claims: Value = serde_json::from_slice(&decode(claims)?)?;
    assert_eq!(claims["iss"], "https://kubernetes.default.svc.cluster.local");
    assert_eq!(claims["sub"], json!(format!("system:serviceaccount:{}:robot", ctx.ns)));
    assert_eq!(claims["kubernetes.io"]["serviceaccount"]["name"], "robot");
    let lasts = claims["exp"].as_i64().unwrap_or_default() - claims["iat"].as_i64().unwrap_or_default();
    assert_eq!(lasts, 3600);
    Ok(())
}

/// Base64 for URLs, without padding.
fn decode(text: &str) -> Result<Vec<u8>> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.chars() {
        let digit = digits.find(letter).with_context(|| format!("{letter:?} is not base64"))?;
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}

async fn a_token_lasts_at_least_ten_minutes(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let path = ctx.core("serviceaccounts/robot/token");
    let reply = ctx.post(path, &json!({"spec": {"expirationSeconds": 5}})).await?;
    let message = "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 5: may not specify a \
                   duration less than 10 minutes";
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_token_of_a_missing_account_is_not_found(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("serviceaccounts/none/token"), &json!({"spec": {}})).await?;
    reply.refused_with(404, "NotFound", "serviceaccounts \"none\" not found")?;
    Ok(())
}

async fn a_token_ends_with_its_account(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let robot = ctx.with_token(&token(&ctx, "robot", json!({})).await?).await?;
    whoami(&robot).await?;
    ctx.delete(ctx.core("serviceaccounts/robot")).await?.ok()?;
    account(&ctx, "robot").await?;
    // The real server remembers a good token for ten seconds.
    eventually("the token is refused", async || robot.get("/version").await?.refused(401, "Unauthorized")).await?;
    Ok(())
}

async fn a_token_bound_to_a_secret_ends_with_it(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    ctx.post(ctx.core("secrets"), &json!({"metadata": {"name": "anchor"}})).await?.ok()?;
    let bound = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "anchor"}});
    let robot = ctx.with_token(&token(&ctx, "robot", bound.clone()).await?).await?;
    whoami(&robot).await?;
    ctx.delete(ctx.core("secrets/anchor")).await?.ok()?;
    eventually("the token is refused", async || robot.get("/version").await?.refused(401, "Unauthorized")).await?;
    let reply = ctx.post(ctx.core("serviceaccounts/robot/token"), &json!({"spec": bound})).await?;
    reply.refused_with(404, "NotFound", "secrets \"anchor\" not found")?;
    Ok(())
}

async fn a_token_for_others_is_not_for_the_server(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let robot = ctx.with_token(&token(&ctx, "robot", json!({"audiences": ["vault"]})).await?).await?;
    robot.get("/version").await?.refused(401, "Unauthorized")?;
    Ok(())
}

async fn a_review_distinguishes_a_good_token_from_a_bad_one(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let good = token(&ctx, "robot", json!({})).await?;
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = ctx.post(path, &json!({"spec": {"token": good}})).await?.code(201)?;
    assert_eq!(review["status"]["authenticated"], true);
    assert_eq!(review["status"]["user"]["username"], json!(format!("system:serviceaccount:{}:robot", ctx.ns)));
    let review = ctx.post(path, &json!({"spec": {"token": "bad"}})).await?.code(201)?;
    assert_eq!(review["status"], json!({"user": {}, "error": "invalid bearer token"}));
    let review = ctx.post(path, &json!({"spec": {"token": good, "audiences": ["vault"]}})).await?.code(201)?;
    assert_eq!(review["status"]["authenticated"], Value::Null);
    Ok(())
}

async fn a_refusal_names_user_verb_resource_and_place(ctx: Ctx) -> Result<()> {
    let ann = ctx.as_user("ann", &[]).await?;
    let start = "User \"ann\" cannot";
    let place = format!("in the namespace \"{}\"", ctx.ns);
    let list = format!("pods is forbidden: {start} list resource \"pods\" in API group \"\" {place}");
    let status = ann.get(ctx.core("pods")).await?.refused_with(403, "Forbidden", &list)?;
    assert_eq!(status["details"], json!({"kind": "pods"}));
    let get = format!("pods \"x\" is forbidden: {start} get resource \"pods\" in API group \"\" {place}");
    ann.get(ctx.core("pods/x")).await?.refused_with(403, "Forbidden", &get)?;
    let watch = format!("pods is forbidden: {start} watch resource \"pods\" in API group \"\" {place}");
    ann.get(ctx.core("pods?watch=true")).await?.refused_with(403, "Forbidden", &watch)?;
    let scale = format!(
        "deployments.apps \"x\" is forbidden: {start} update resource \"deployments/scale\" in API group \"apps\" {place}"
    );
    ann.put(ctx.group("apps/v1", "deployments/x/scale"), &json!({})).await?.refused_with(403, "Forbidden", &scale)?;
    let nodes = format!(
        "nodes is forbidden: {start} deletecollection resource \"nodes\" in API group \"\" at the cluster scope"
    );
    ann.delete("/api/v1/nodes").await?.refused_with(403, "Forbidden", &nodes)?;
    Ok(())
}

async fn a_role_binding_grants_within_its_namespace_only(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    role(&ctx, "reader", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}])).await?;
    bind(&ctx, "Role", "reader", user(&name)).await?;
    let reader = ctx.as_user(&name, &[]).await?;
    allowed(&reader, &ctx.core("configmaps")).await?;
    reader.get("/api/v1/namespaces/default/configmaps").await?.refused(403, "Forbidden")?;
    reader.get("/api/v1/configmaps").await?.refused(403, "Forbidden")?;
    reader.get(ctx.core("secrets")).await?.refused(403, "Forbidden")?;
    reader.post(ctx.core("configmaps"), &ctx.config_map("x", json!({}))).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_cluster_role_bound_in_a_namespace_grants_there(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    bind(&ctx, "ClusterRole", "edit", user(&name)).await?;
    let editor = ctx.as_user(&name, &[]).await?;
    allowed(&editor, &ctx.core("configmaps")).await?;
    editor.post(ctx.core("configmaps"), &ctx.config_map("x", json!({}))).await?.code(201)?;
    editor.get("/api/v1/namespaces/default/configmaps").await?.refused(403, "Forbidden")?;
    editor.get("/api/v1/nodes").await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_cluster_role_binding_grants_everywhere(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    ctx.post(path, &binding(&ctx.unique("binding"), "ClusterRole", "view", user(&name))).await?.code(201)?;
    let viewer = ctx.as_user(&name, &[]).await?;
    allowed(&viewer, "/api/v1/configmaps").await?;
    viewer.get("/api/v1/namespaces/default/pods").await?.code(200)?;
    viewer.get("/api/v1/secrets").await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_group_is_bound_as_a_user_is(ctx: Ctx) -> Result<()> {
    let group = ctx.unique("group");
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group});
    bind(&ctx, "ClusterRole", "view", subject).await?;
    let member = ctx.as_user("member", &["other", &group]).await?;
    allowed(&member, &ctx.core("configmaps")).await?;
    ctx.as_user("member", &["other"]).await?.get(ctx.core("configmaps")).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_role_may_name_objects(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    for name in ["mine", "yours"] {
        ctx.post(ctx.core("configmaps"), &ctx.config_map(name, json!({}))).await?.ok()?;
    }
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["get"]}]);
    role(&ctx, "named", rule).await?;
    bind(&ctx, "Role", "named", user(&name)).await?;
    let one = ctx.as_user(&name, &[]).await?;
    allowed(&one, &ctx.core("configmaps/mine")).await?;
    one.get(ctx.core("configmaps/yours")).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_subresource_is_granted_apart(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    role(&ctx, "status", json!([{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get"]}])).await?;
    bind(&ctx, "Role", "status", user(&name)).await?;
    let one = ctx.as_user(&name, &[]).await?;
    eventually("the grant takes effect", async || one.get(ctx.core("pods/x/status")).await?.refused(404, "NotFound"))
        .await?;
    one.get(ctx.core("pods/x")).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn the_default_roles_are_there(ctx: Ctx) -> Result<()> {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    for name in ["cluster-admin", "admin", "edit", "view", "system:node", "system:kube-scheduler", "system:discovery"] {
        let role = ctx.get(format!("{path}/{name}")).await?.code(200)?;
        assert_eq!(role["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults", "{name}");
        ensure!(role["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "{name} has no rules");
    }
    let binding = ctx.get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin").await?.code(200)?;
    assert_eq!(binding["subjects"][0]["name"], "system:masters");
    Ok(())
}

async fn view_reads_all_but_secrets(ctx: Ctx) -> Result<()> {
    let role = ctx.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").await?.ok()?;
    let rules = role["rules"].as_array().cloned().unwrap_or_default();
    let resources: Vec<_> = rules.iter().flat_map(|r| r["resources"].as_array().cloned().unwrap_or_default()).collect();
    assert!(resources.contains(&json!("configmaps")) && resources.contains(&json!("deployments")));
    assert!(!resources.contains(&json!("secrets")));
    Ok(())
}

async fn an_aggregated_role_collects_rules(ctx: Ctx) -> Result<()> {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let (whole, part) = (ctx.unique("whole"), ctx.unique("part"));
    let labels = json!({format!("fleetwright.io/{}", ctx.ns): "yes"});
    let body = json!({
        "metadata": {"name": whole}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]},
    });
    ctx.post(path, &body).await?.code(201)?;
    let rules = json!([{"apiGroups": ["fleetwright.io"], "resources": ["machines"], "verbs": ["get"]}]);
    ctx.post(path, &json!({"metadata": {"name": part, "labels": labels}, "rules": rules})).await?.code(201)?;
    eventually("the rules arrive", async || {
        let role = ctx.get(format!("{path}/{whole}")).await?.ok()?;
        ensure!(role["rules"] == rules, "{role}");
        Ok(())
    })
    .await?;
    ctx.delete(format!("{path}/{part}")).await?.ok()?;
    eventually("the rules leave", async || {
        let role = ctx.get(format!("{path}/{whole}")).await?.ok()?;
        ensure!(role["rules"].as_array().is_none_or(Vec::is_empty), "{role}");
        Ok(())
    })
    .await
}

async fn roles_that_aggregate_each_other_settle(ctx: Ctx) -> Result<()> {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let (one, two, base) = (ctx.unique("one"), ctx.unique("two"), ctx.unique("base"));
    let label = |name: &str| json!({format!("fleetwright.io/{name}"): "yes"});
    for (name, other) in [(&one, &two), (&two, &one)] {
        let selectors = json!([{"matchLabels": label(other)}, {"matchLabels": label(&base)}]);
        let rule = json!({"clusterRoleSelectors": selectors});
        let body = json!({"metadata": {"name": name, "labels": label(name)}, "rules": [], "aggregationRule": rule});
        ctx.post(path, &body).await?.code(201)?;
    }
    let rules = json!([{"apiGroups": ["fleetwright.io"], "resources": ["machines"], "verbs": ["get"]}]);
    ctx.post(path, &json!({"metadata": {"name": base, "labels": label(&base)}, "rules": rules})).await?.code(201)?;
    for name in [&one, &two] {
        eventually("the rules arrive", async || {
            let role = ctx.get(format!("{path}/{name}")).await?.ok()?;
            ensure!(role["rules"] == rules, "{role}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn put_and_apply_need_the_right_to_create(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    let rule =
        |verbs: &[&str]| json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}]);
    role(&ctx, "updater", rule(&["get", "list", "update", "patch"])).await?;
    bind(&ctx, "Role", "updater", user(&name)).await?;
    let updater = ctx.as_user(&name, &[]).await?;
    let path = ctx.group("coordination.k8s.io/v1", "leases");
    allowed(&updater, &path).await?;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "namespace": ctx.ns},
        "spec": {"leaseDurationSeconds": 10}});
    updater.put(format!("{path}/a"), &lease).await?.refused(403, "Forbidden")?;
    updater.apply(&format!("{path}/a"), "updater", &lease).await?.refused(403, "Forbidden")?;
    ctx.get(format!("{path}/a")).await?.refused(404, "NotFound")?;
    ctx.put(format!("{path}/a"), &lease).await?.code(201)?;
    updater.apply(&format!("{path}/a"), "updater", &lease).await?.code(200)?;
    Ok(())
}

/// A user who may write roles and bindings here, and read config maps.
async fn keeper(ctx: &Ctx, verbs: &[&str]) -> Result<Ctx> {
    let name = ctx.unique("keeper");
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": verbs},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
    ]);
    role(ctx, "keeper", rules).await?;
    bind(ctx, "Role", "keeper", user(&name)).await?;
    let keeper = ctx.as_user(&name, &[]).await?;
    allowed(&keeper, &ctx.core("configmaps")).await?;
    Ok(keeper)
}

async fn no_user_grants_what_they_do_not_have(ctx: Ctx) -> Result<()> {
    let keeper = keeper(&ctx, &["get", "create", "update", "patch"]).await?;
    let path = ctx.group("rbac.authorization.k8s.io/v1", "roles");
    let fine = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    keeper.post(&path, &json!({"metadata": {"name": "fine"}, "rules": fine})).await?.code(201)?;
    let greedy = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    let reply = keeper.post(&path, &json!({"metadata": {"name": "greedy"}, "rules": greedy})).await?;
    let status = reply.refused(403, "Forbidden")?;
    let message = status["message"].as_str().unwrap_or_default();
    let start = "roles.rbac.authorization.k8s.io \"greedy\" is forbidden: user \"keeper-";
    assert!(message.starts_with(start), "{message}");
    let end = "is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    assert!(message.ends_with(end), "{message}");
    keeper
        .patch(format!("{path}/fine"), PatchType::Merge, &json!({"rules": greedy}))
        .await?
        .refused(403, "Forbidden")?;
    Ok(())
}

async fn no_user_binds_what_they_do_not_have(ctx: Ctx) -> Result<()> {
    let keeper = keeper(&ctx, &["get", "create"]).await?;
    let path = ctx.group("rbac.authorization.k8s.io/v1", "rolebindings");
    let reply = keeper.post(&path, &binding("greedy", "ClusterRole", "cluster-admin", user("keeper"))).await?;
    reply.refused(403, "Forbidden")?;
    let reply = keeper.post(&path, &binding("missing", "Role", "nothing", user("keeper"))).await?;
    reply.refused_with(404, "NotFound", "rolebindings.rbac.authorization.k8s.io \"nothing\" not found")?;
    Ok(())
}

async fn escalate_and_bind_are_verbs(ctx: Ctx) -> Result<()> {
    let keeper = keeper(&ctx, &["get", "create", "escalate", "bind"]).await?;
    let path = ctx.group("rbac.authorization.k8s.io/v1", "roles");
    let greedy = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    keeper.post(&path, &json!({"metadata": {"name": "greedy"}, "rules": greedy})).await?.code(201)?;
    let path = ctx.group("rbac.authorization.k8s.io/v1", "rolebindings");
    keeper.post(&path, &binding("greedy", "Role", "greedy", user("keeper"))).await?.code(201)?;
    keeper
        .post(&path, &binding("all", "ClusterRole", "cluster-admin", user("keeper")))
        .await?
        .refused(403, "Forbidden")?;
    Ok(())
}

async fn a_role_reference_cannot_change(ctx: Ctx) -> Result<()> {
    let path = ctx.group("rbac.authorization.k8s.io/v1", "rolebindings");
    ctx.post(&path, &binding("one", "ClusterRole", "view", user("ann"))).await?.code(201)?;
    let reply = ctx.put(format!("{path}/one"), &binding("one", "ClusterRole", "edit", user("ann"))).await?;
    let message = "RoleBinding.rbac.authorization.k8s.io \"one\" is invalid: roleRef: Invalid value: \
                   {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"edit\"}: field is immutable";
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_binding_to_nothing_is_invalid(ctx: Ctx) -> Result<()> {
    let path = ctx.group("rbac.authorization.k8s.io/v1", "rolebindings");
    let body = json!({
        "metadata": {"name": "one"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Sheep", "name": ""},
        "subjects": [{"kind": "User", "name": ""}],
    });
    let status = ctx.post(path, &body).await?.refused(422, "Invalid")?;
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    let mut fields: Vec<_> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
    fields.sort();
    assert_eq!(fields, ["roleRef.kind", "roleRef.name", "subjects[0].name"]);
    Ok(())
}

async fn can_i(ctx: &Ctx, verb: &str, resource: &str) -> Result<Value> {
    let attributes = json!({"verb": verb, "resource": resource, "namespace": ctx.ns});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mut review = ctx.post(path, &json!({"spec": {"resourceAttributes": attributes}})).await?.code(201)?;
    Ok(review["status"].take())
}

async fn can_i_asks_for_oneself(ctx: Ctx) -> Result<()> {
    assert_eq!(can_i(&ctx, "delete", "pods").await?["allowed"], true);
    let name = ctx.unique("user");
    bind(&ctx, "ClusterRole", "view", user(&name)).await?;
    let viewer = ctx.as_user(&name, &[]).await?;
    allowed(&viewer, &ctx.core("pods")).await?;
    let yes = can_i(&viewer, "list", "pods").await?;
    assert_eq!(yes["allowed"], true);
    let reason = yes["reason"].as_str().unwrap_or_default();
    let wanted = format!("of ClusterRole \"view\" to User \"{name}\"");
    assert!(reason.starts_with("RBAC: allowed by RoleBinding \"") && reason.ends_with(&wanted), "{reason}");
    assert_eq!(can_i(&viewer, "delete", "pods").await?, json!({"allowed": false}));
    Ok(())
}

async fn an_administrator_asks_for_others(ctx: Ctx) -> Result<()> {
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let attributes = json!({"verb": "get", "resource": "pods", "namespace": ctx.ns});
    let spec =
        |user: &str, groups: Value| json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
    let review = ctx.post(path, &spec("ann", json!([]))).await?.code(201)?;
    assert_eq!(review["status"], json!({"allowed": false}));
    let review = ctx.post(path, &spec("ann", json!(["system:masters"]))).await?.code(201)?;
    assert_eq!(review["status"]["allowed"], true);
    let attributes = json!({"verb": "get", "path": "/healthz"});
    let body =
        json!({"spec": {"user": "ann", "groups": ["system:authenticated"], "nonResourceAttributes": attributes}});
    assert_eq!(ctx.post(path, &body).await?.code(201)?["status"]["allowed"], true);
    Ok(())
}

async fn an_access_review_needs_a_subject_and_one_question(ctx: Ctx) -> Result<()> {
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let message = ".authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be specified";
    let body = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    ctx.post(path, &body).await?.refused_with(422, "Invalid", message)?;
    let message = ".authorization.k8s.io \"\" is invalid: spec: Invalid value: null: exactly one of nonResourceAttributes or \
                   resourceAttributes must be specified";
    ctx.post(path, &json!({"spec": {"user": "ann"}})).await?.refused_with(422, "Invalid", message)?;
    let path = ctx.group("authorization.k8s.io/v1", "localsubjectaccessreviews");
    let body = json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "other"}}});
    let message = ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid value: \"other\": must match \
                   metadata.namespace";
    ctx.post(path, &body).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn whoami_shows_name_and_groups(ctx: Ctx) -> Result<()> {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ann = ctx.as_user("ann", &["staff"]).await?;
    let review = ann.post(path, &json!({})).await?.code(201)?;
    assert_eq!(review["kind"], "SelfSubjectReview");
    assert!(review["metadata"]["creationTimestamp"].is_string());
    assert_eq!(review["status"]["userInfo"]["username"], "ann");
    Ok(())
}

async fn rules_of_oneself_can_be_listed(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("user");
    role(&ctx, "reader", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])).await?;
    bind(&ctx, "Role", "reader", user(&name)).await?;
    let reader = ctx.as_user(&name, &[]).await?;
    eventually("the rule shows", async || {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let review = reader.post(path, &json!({"spec": {"namespace": ctx.ns}})).await?.code(201)?;
        let rules = review["status"]["resourceRules"].as_array().cloned().unwrap_or_default();
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]});
        ensure!(rules.contains(&rule) && review["status"]["incomplete"] == false, "{review}");
        Ok(())
    })
    .await
}

async fn whoami_as(ctx: &Ctx, headers: &[(&'static str, &str)]) -> Result<crate::Reply> {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let call = ctx.call(http::Method::POST, path).json(&json!({}));
    headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await
}

async fn an_administrator_may_impersonate_and_others_may_not(ctx: Ctx) -> Result<()> {
    let headers = [("impersonate-user", "bob"), ("impersonate-group", "staff")];
    let review = whoami_as(&ctx, &headers).await?.code(201)?;
    assert_eq!(review["status"]["userInfo"]["username"], "bob");
    assert_eq!(review["status"]["userInfo"]["groups"], json!(["staff", "system:authenticated"]));
    let ann = ctx.as_user("ann", &[]).await?;
    whoami_as(&ann, &[("impersonate-user", "bob")]).await?.refused(403, "Forbidden")?;
    whoami_as(&ctx, &[("impersonate-group", "staff")]).await?.refused(400, "BadRequest")?;
    Ok(())
}
