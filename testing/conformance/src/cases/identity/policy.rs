//! The default policy, impersonation, and what roles, bindings and reviews must look like.

use anyhow::{Context, Result};
use serde_json::json;

use super::{account, binding, user, whoami_as};
use crate::{Case, Ctx, eventually};

/// The cases about policy.
pub(super) fn cases() -> Vec<Case> {
    cases!["identity";
        the_default_policy_is_whole,
        the_rules_of_the_default_roles_are_as_published,
        an_impersonated_user_has_no_more_rights_than_the_user,
        impersonation_takes_uid_extra_and_accounts,
        the_right_to_impersonate_can_be_granted,
        a_token_request_is_checked,
        a_review_without_a_question_is_refused,
        a_review_is_only_ever_created,
        a_role_is_checked,
        a_cluster_role_binding_is_checked,
    ]
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn the_default_policy_is_whole(ctx: Ctx) -> Result<()> {
    let mut found = String::new();
    for resource in ["clusterroles", "clusterrolebindings", "roles", "rolebindings"] {
        let path = format!("{RBAC}/{resource}?labelSelector=kubernetes.io/bootstrapping%3Drbac-defaults");
        for object in ctx.get(path).await?.code(200)?["items"].as_array().context("no items")? {
            let place = object["metadata"]["namespace"].as_str().map(|space| format!("{space}/")).unwrap_or_default();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            found.push_str(&format!("{resource} {place}{name}\n"));
        }
    }
    assert_eq!(found, include_str!("policy.txt"));
    Ok(())
}

async fn the_rules_of_the_default_roles_are_as_published(ctx: Ctx) -> Result<()> {
    let open = json!(["/healthz", "/livez", "/readyz", "/version", "/version/"]);
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    for (name, rules) in [
        (
            "cluster-admin",
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]),
        ),
        ("system:public-info-viewer", json!([{"verbs": ["get"], "nonResourceURLs": open}])),
        (
            "system:basic-user",
            json!([
                {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": reviews},
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
            ]),
        ),
    ] {
        let role = ctx.get(format!("{RBAC}/clusterroles/{name}")).await?.code(200)?;
        assert_eq!(role["rules"], rules, "{name}");
        assert_eq!(role["metadata"]["annotations"], json!({"rbac.authorization.kubernetes.io/autoupdate": "true"}));
    }
    Ok(())
}

async fn an_impersonated_user_has_no_more_rights_than_the_user(ctx: Ctx) -> Result<()> {
    let as_bob = |path: &str| ctx.call(http::Method::GET, path).header("impersonate-user", "bob").send();
    let message = "namespaces is forbidden: User \"bob\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope";
    as_bob("/api/v1/namespaces").await?.refused_with(403, "Forbidden", message)?;
    let message = "forbidden: User \"bob\" cannot get path \"/metrics\"";
    as_bob("/metrics").await?.refused_with(403, "Forbidden", message)?;
    as_bob("/apis").await?.code(200)?;
    Ok(())
}

async fn impersonation_takes_uid_extra_and_accounts(ctx: Ctx) -> Result<()> {
    let headers = [("impersonate-user", "bob"), ("impersonate-uid", "u1"), ("impersonate-extra-scopes", "a")];
    let review = whoami_as(&ctx, &headers).await?.code(201)?;
    let info = &review["status"]["userInfo"];
    assert_eq!((&info["uid"], &info["extra"]), (&json!("u1"), &json!({"scopes": ["a"]})));
    let account = format!("system:serviceaccount:{}:x", ctx.ns);
    let review = whoami_as(&ctx, &[("impersonate-user", &account)]).await?.code(201)?;
    let groups =
        json!(["system:serviceaccounts", format!("system:serviceaccounts:{}", ctx.ns), "system:authenticated"]);
    assert_eq!(review["status"]["userInfo"]["groups"], groups);
    Ok(())
}

async fn the_right_to_impersonate_can_be_granted(ctx: Ctx) -> Result<()> {
    let (name, role) = (ctx.unique("user"), ctx.unique("role"));
    let rules =
        json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}]);
    ctx.post(format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": role}, "rules": rules})).await?.code(201)?;
    let body = binding(&ctx.unique("binding"), "ClusterRole", &role, user(&name));
    ctx.post(format!("{RBAC}/clusterrolebindings"), &body).await?.code(201)?;
    let ann = ctx.as_user(&name, &[]).await?;
    eventually("the grant takes effect", async || whoami_as(&ann, &[("impersonate-user", "bob")]).await?.code(201))
        .await?;
    whoami_as(&ann, &[("impersonate-user", "eve")]).await?.refused(403, "Forbidden")?;
    let headers = [("impersonate-user", "bob"), ("impersonate-group", "staff")];
    // The impersonation mode in the refusal depends on the real server's cache of the user.
    whoami_as(&ann, &headers).await?.refused(403, "Forbidden")?;
    Ok(())
}

async fn a_token_request_is_checked(ctx: Ctx) -> Result<()> {
    account(&ctx, "robot").await?;
    let path = ctx.core("serviceaccounts/robot/token");
    let body = json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}});
    ctx.post(&path, &body).await?.refused_with(404, "NotFound", "pods \"none\" not found")?;
    let body = json!({"spec": {"boundObjectRef": {"kind": "Sheep", "apiVersion": "v1", "name": "none"}}});
    let message = "cannot bind token to object of type /v1, Kind=Sheep";
    ctx.post(&path, &body).await?.refused_with(400, "BadRequest", message)?;
    let message = "TokenRequest.authentication.k8s.io \"robot\" is invalid: metadata.name: Invalid value: \"other\": must match the \
                   service account name if specified";
    let body = json!({"metadata": {"name": "other"}, "spec": {}});
    ctx.post(&path, &body).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_review_without_a_question_is_refused(ctx: Ctx) -> Result<()> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    ctx.post(path, &json!({"spec": {}})).await?.refused_with(400, "BadRequest", "no namespace on request")?;
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let message = "token is required for TokenReview in authentication";
    ctx.post(path, &json!({"spec": {}})).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_review_is_only_ever_created(ctx: Ctx) -> Result<()> {
    let message = "the server does not allow this method on the requested resource";
    for path in
        ["/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"]
    {
        ctx.get(path).await?.refused_with(405, "MethodNotAllowed", message)?;
    }
    Ok(())
}

async fn a_role_is_checked(ctx: Ctx) -> Result<()> {
    let rules = json!([
        {"verbs": [], "resources": ["a"], "apiGroups": [""]}, {"verbs": ["get"]},
        {"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["b"], "apiGroups": [""]},
    ]);
    let message = "ClusterRole.rbac.authorization.k8s.io \"bad\" is invalid: [rules[1].apiGroups: Required value: resource rules must \
                   supply at least one api group, rules[1].resources: Required value: resource rules must supply at least one \
                   resource, rules[2].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and \
                   non-resource URLs, rules[0].verbs: Required value]";
    let body = json!({"metadata": {"name": "bad"}, "rules": rules});
    ctx.post(format!("{RBAC}/clusterroles"), &body).await?.refused_with(422, "Invalid", message)?;
    let body = json!({"metadata": {"name": "bad"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]});
    let message = "Role.rbac.authorization.k8s.io \"bad\" is invalid: rules[0].nonResourceURLs: Invalid value: [\"/a\"]: namespaced \
                   rules cannot apply to non-resource URLs";
    let reply = ctx.post(ctx.group("rbac.authorization.k8s.io/v1", "roles"), &body).await?;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_cluster_role_binding_is_checked(ctx: Ctx) -> Result<()> {
    let path = format!("{RBAC}/clusterrolebindings");
    let message = "ClusterRoleBinding.rbac.authorization.k8s.io \"bad\" is invalid: roleRef.kind: Unsupported value: \"Role\": supported \
                   values: \"ClusterRole\"";
    ctx.post(&path, &binding("bad", "Role", "x", user("ann"))).await?.refused_with(422, "Invalid", message)?;
    let message = "ClusterRoleBinding.rbac.authorization.k8s.io \"bad\" is invalid: subjects[0].kind: Unsupported value: \"Sheep\": \
                   supported values: \"ServiceAccount\", \"User\", \"Group\"";
    let body = binding("bad", "ClusterRole", "view", json!({"kind": "Sheep", "name": "x"}));
    ctx.post(&path, &body).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}
