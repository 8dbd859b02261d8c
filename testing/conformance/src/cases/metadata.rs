//! The server's handling of metadata: identity, generations, finalizers, owners, namespaces.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{Case, Ctx, PatchType, eventually};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["metadata";
        identity_cannot_be_chosen_by_a_client,
        an_update_keeps_uid_and_creation_time,
        an_unchanged_update_keeps_the_version,
        an_unchanged_patch_keeps_the_version,
        a_spec_change_raises_the_generation_and_a_label_does_not,
        every_write_raises_the_version,
        a_bad_name_is_refused_with_its_rule,
        a_missing_name_is_refused,
        a_bad_label_is_refused_with_its_path,
        annotations_have_a_limit,
        a_finalizer_holds_a_deleted_object_until_it_is_removed,
        a_deleted_object_takes_no_new_finalizer,
        a_second_delete_of_a_held_object_changes_nothing,
        the_last_finalizer_removed_by_an_update_removes_the_object,
        a_bad_finalizer_is_refused,
        a_dependent_goes_with_its_owner,
        a_dependent_of_an_orphaning_delete_stays_without_its_owner,
        a_foreground_delete_waits_for_blocking_dependents,
        an_owner_that_never_was_takes_its_dependent_along,
        one_living_owner_is_enough,
        an_owner_reference_without_a_uid_is_refused,
        two_controllers_are_refused,
        owners_in_a_circle_do_no_harm,
        a_new_namespace_gets_an_account_and_the_root_certificate,
        a_new_namespace_is_labelled_with_its_name,
        a_deleted_namespace_takes_its_content_along,
        a_terminating_namespace_takes_nothing_new,
        a_namespace_that_does_not_exist_takes_nothing,
        a_namespace_waits_for_the_finalizers_of_its_content,
        a_namespace_is_finalized_through_its_subresource,
        the_system_namespaces_cannot_be_deleted,
        managed_fields_name_the_writer_and_what_it_wrote,
        managed_fields_can_be_reset,
        a_pod_without_a_node_goes_at_once,
        a_pod_on_a_node_gets_its_grace_period,
    ]
}

async fn make(ctx: &Ctx, name: &str, metadata: Value) -> Result<Value> {
    let mut body = ctx.config_map(name, json!({"a": "1"}));
    for (key, value) in metadata.as_object().into_iter().flatten() {
        body["metadata"][key] = value.clone();
    }
    ctx.post(ctx.core("configmaps"), &body).await?.code(201)
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

fn owner(object: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "name": object["metadata"]["name"], "uid": object["metadata"]["uid"],
    })
}

async fn gone(ctx: &Ctx, path: &str) -> Result<()> {
    eventually(&format!("{path} goes"), async || ctx.get(path).await?.refused(404, "NotFound")).await?;
    Ok(())
}

async fn identity_cannot_be_chosen_by_a_client(ctx: Ctx) -> Result<()> {
    let wished = json!({
        "uid": "00000000-0000-0000-0000-000000000000", "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x",
    });
    let made = make(&ctx, "one", wished).await?;
    let metadata = &made["metadata"];
    assert_ne!(metadata["uid"], "00000000-0000-0000-0000-000000000000");
    assert_ne!(metadata["creationTimestamp"], "2001-01-01T00:00:00Z");
    for field in ["deletionTimestamp", "selfLink"] {
        assert_eq!(metadata[field], Value::Null, "{field}");
    }
    Ok(())
}

async fn an_update_keeps_uid_and_creation_time(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "one", json!({})).await?;
    let new = ctx.put(ctx.core("configmaps/one"), &ctx.config_map("one", json!({"b": "2"}))).await?.ok()?;
    for field in ["uid", "creationTimestamp"] {
        assert_eq!(new["metadata"][field], made["metadata"][field], "{field}");
    }
    let patch = json!({"metadata": {"creationTimestamp": null}});
    let new = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(new["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    Ok(())
}

async fn an_unchanged_update_keeps_the_version(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "one", json!({})).await?;
    let same = ctx.put(ctx.core("configmaps/one"), &made).await?.code(200)?;
    assert_eq!(version(&same), version(&made));
    Ok(())
}

async fn an_unchanged_patch_keeps_the_version(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "one", json!({})).await?;
    for kind in [PatchType::Merge, PatchType::Strategic] {
        let same = ctx.patch(ctx.core("configmaps/one"), kind, &json!({"data": {"a": "1"}})).await?.code(200)?;
        assert_eq!(version(&same), version(&made));
    }
    Ok(())
}

async fn a_spec_change_raises_the_generation_and_a_label_does_not(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments");
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"},
        "spec": {
            "selector": {"matchLabels": {"app": "one"}},
            "template": {"metadata": {"labels": {"app": "one"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}},
        },
    });
    let made = ctx.post(&path, &body).await?.ok()?;
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{path}/one");
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = ctx.patch(&path, PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(labelled["metadata"]["generation"], 1);
    let scaled = ctx.patch(&path, PatchType::Merge, &json!({"spec": {"replicas": 3}})).await?.ok()?;
    assert_eq!(scaled["metadata"]["generation"], 2);
    Ok(())
}

async fn every_write_raises_the_version(ctx: Ctx) -> Result<()> {
    let mut last = version(&make(&ctx, "one", json!({})).await?).parse::<u64>()?;
    for round in 0..3 {
        let patch = json!({"data": {"round": round.to_string()}});
        let new = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.ok()?;
        let now = version(&new).parse::<u64>()?;
        ensure!(now > last, "{now} after {last}");
        last = now;
    }
    let list = ctx.get(ctx.core("configmaps")).await?.ok()?;
    ensure!(version(&list).parse::<u64>()? >= last, "a list at {} after a write at {last}", version(&list));
    Ok(())
}

async fn a_bad_name_is_refused_with_its_rule(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps"), &ctx.config_map("Upper_Case", json!({}))).await?;
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let message = format!("ConfigMap \"Upper_Case\" is invalid: metadata.name: Invalid value: \"Upper_Case\": {rule}");
    let status = reply.refused_with(422, "Invalid", &message)?;
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["reason"], "FieldValueInvalid");
    assert_eq!(cause["field"], "metadata.name");
    Ok(())
}

async fn a_missing_name_is_refused(ctx: Ctx) -> Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}});
    let message = "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required";
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused_with(422, "Invalid", message)?;
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueRequired");
    Ok(())
}

async fn a_bad_label_is_refused_with_its_path(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["labels"] = json!({"a/b/c": "x", "fine": "not fine!"});
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused(422, "Invalid")?;
    let causes = status["details"]["causes"].as_array().context("causes")?;
    assert_eq!(causes.len(), 2, "{status}");
    assert!(causes.iter().all(|cause| cause["field"] == "metadata.labels"), "{status}");
    Ok(())
}

async fn annotations_have_a_limit(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["annotations"] = json!({"big": "x".repeat(256 * 1024)});
    let message = "ConfigMap \"one\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes";
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused_with(422, "Invalid", message)?;
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueTooLong");
    Ok(())
}

async fn a_finalizer_holds_a_deleted_object_until_it_is_removed(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "one", json!({"finalizers": ["fleetwright.io/hold"]})).await?;
    let held = ctx.delete(ctx.core("configmaps/one")).await?.code(200)?;
    assert_eq!(held["kind"], "ConfigMap");
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_ne!(version(&held), version(&made));
    ctx.get(ctx.core("configmaps/one")).await?.code(200)?;
    let patch = json!({"metadata": {"finalizers": null}});
    ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.code(200)?;
    ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_deleted_object_takes_no_new_finalizer(ctx: Ctx) -> Result<()> {
    make(&ctx, "one", json!({"finalizers": ["fleetwright.io/hold"]})).await?;
    ctx.delete(ctx.core("configmaps/one")).await?.ok()?;
    let patch = json!({"metadata": {"finalizers": ["fleetwright.io/hold", "fleetwright.io/more"]}});
    let reply = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?;
    let message = "ConfigMap \"one\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object \
                   is being deleted, found new finalizers []string{\"fleetwright.io/more\"}";
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_second_delete_of_a_held_object_changes_nothing(ctx: Ctx) -> Result<()> {
    make(&ctx, "one", json!({"finalizers": ["fleetwright.io/hold"]})).await?;
    let first = ctx.delete(ctx.core("configmaps/one")).await?.ok()?;
    let second = ctx.delete(ctx.core("configmaps/one")).await?.ok()?;
    assert_eq!(first["metadata"]["deletionTimestamp"], second["metadata"]["deletionTimestamp"]);
    assert_eq!(version(&first), version(&second));
    Ok(())
}

async fn the_last_finalizer_removed_by_an_update_removes_the_object(ctx: Ctx) -> Result<()> {
    make(&ctx, "one", json!({"finalizers": ["fleetwright.io/a", "fleetwright.io/b"]})).await?;
    let mut held = ctx.delete(ctx.core("configmaps/one")).await?.ok()?;
    held["metadata"]["finalizers"] = json!(["fleetwright.io/b"]);
    let mut held = ctx.put(ctx.core("configmaps/one"), &held).await?.code(200)?;
    held["metadata"]["finalizers"] = json!([]);
    ctx.put(ctx.core("configmaps/one"), &held).await?.code(200)?;
    ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_bad_finalizer_is_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["finalizers"] = json!(["not valid!"]);
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused(422, "Invalid")?;
    assert_eq!(status["details"]["causes"][1]["field"], "metadata.finalizers[0]", "{status}");
    Ok(())
}

async fn a_dependent_goes_with_its_owner(ctx: Ctx) -> Result<()> {
    let parent = make(&ctx, "parent", json!({})).await?;
    let child = make(&ctx, "child", json!({"ownerReferences": [owner(&parent)]})).await?;
    make(&ctx, "grandchild", json!({"ownerReferences": [owner(&child)]})).await?;
    ctx.delete(ctx.core("configmaps/parent")).await?.code(200)?;
    ctx.get(ctx.core("configmaps/parent")).await?.refused(404, "NotFound")?;
    gone(&ctx, &ctx.core("configmaps/child")).await?;
    gone(&ctx, &ctx.core("configmaps/grandchild")).await
}

/// The collector learns of objects in the order of their making: one that has removed the dependent of a deleted owner knows what was made before.
async fn collector_has_come_this_far(ctx: &Ctx) -> Result<()> {
    let probe = make(ctx, "probe", json!({})).await?;
    make(ctx, "probed", json!({"ownerReferences": [owner(&probe)]})).await?;
    ctx.delete(ctx.core("configmaps/probe")).await?.code(200)?;
    gone(ctx, &ctx.core("configmaps/probed")).await
}

async fn a_dependent_of_an_orphaning_delete_stays_without_its_owner(ctx: Ctx) -> Result<()> {
    let parent = make(&ctx, "parent", json!({})).await?;
    make(&ctx, "child", json!({"ownerReferences": [owner(&parent)]})).await?;
    collector_has_come_this_far(&ctx).await?;
    let options = json!({"propagationPolicy": "Orphan"});
    let held = ctx.delete_with(ctx.core("configmaps/parent"), &options).await?.code(200)?;
    assert_eq!(held["metadata"]["finalizers"], json!(["orphan"]));
    gone(&ctx, &ctx.core("configmaps/parent")).await?;
    let child = ctx.get(ctx.core("configmaps/child")).await?.code(200)?;
    assert_eq!(child["metadata"]["ownerReferences"], Value::Null);
    Ok(())
}

async fn a_foreground_delete_waits_for_blocking_dependents(ctx: Ctx) -> Result<()> {
    let parent = make(&ctx, "parent", json!({})).await?;
    let mut reference = owner(&parent);
    reference["blockOwnerDeletion"] = json!(true);
    make(&ctx, "child", json!({"ownerReferences": [reference], "finalizers": ["fleetwright.io/hold"]})).await?;
    collector_has_come_this_far(&ctx).await?;
    let options = json!({"propagationPolicy": "Foreground"});
    let held = ctx.delete_with(ctx.core("configmaps/parent"), &options).await?.code(200)?;
    assert_eq!(held["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    eventually("the child is deleted", async || {
        let child = ctx.get(ctx.core("configmaps/child")).await?.ok()?;
        ensure!(child["metadata"]["deletionTimestamp"].is_string(), "{child}");
        Ok(())
    })
    .await?;
    ctx.get(ctx.core("configmaps/parent")).await?.code(200)?;
    let patch = json!({"metadata": {"finalizers": null}});
    ctx.patch(ctx.core("configmaps/child"), PatchType::Merge, &patch).await?.ok()?;
    gone(&ctx, &ctx.core("configmaps/parent")).await
}

async fn an_owner_that_never_was_takes_its_dependent_along(ctx: Ctx) -> Result<()> {
    let parent = make(&ctx, "parent", json!({})).await?;
    let mut reference = owner(&parent);
    reference["uid"] = json!("11111111-2222-3333-4444-555555555555");
    make(&ctx, "child", json!({"ownerReferences": [reference]})).await?;
    gone(&ctx, &ctx.core("configmaps/child")).await
}

async fn one_living_owner_is_enough(ctx: Ctx) -> Result<()> {
    let one = make(&ctx, "one", json!({})).await?;
    let two = make(&ctx, "two", json!({})).await?;
    make(&ctx, "child", json!({"ownerReferences": [owner(&one), owner(&two)]})).await?;
    ctx.delete(ctx.core("configmaps/one")).await?.code(200)?;
    eventually("the reference to the dead owner goes", async || {
        let child = ctx.get(ctx.core("configmaps/child")).await?.ok()?;
        ensure!(child["metadata"]["ownerReferences"] == json!([owner(&two)]), "{child}");
        Ok(())
    })
    .await?;
    ctx.delete(ctx.core("configmaps/two")).await?.code(200)?;
    gone(&ctx, &ctx.core("configmaps/child")).await
}

async fn an_owner_reference_without_a_uid_is_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": ""}]);
    let message = "ConfigMap \"one\" is invalid: metadata.ownerReferences[0].uid: Required value: must not be empty";
    ctx.post(ctx.core("configmaps"), &body).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn two_controllers_are_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    let reference =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "controller": true});
    body["metadata"]["ownerReferences"] = json!([reference("a"), reference("b")]);
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused(422, "Invalid")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("Only one reference can have Controller set to true"), "{message}");
    Ok(())
}

async fn owners_in_a_circle_do_no_harm(ctx: Ctx) -> Result<()> {
    let one = make(&ctx, "one", json!({})).await?;
    let two = make(&ctx, "two", json!({"ownerReferences": [owner(&one)]})).await?;
    let patch = json!({"metadata": {"ownerReferences": [owner(&two)]}});
    ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.code(200)?;
    ctx.delete_with(ctx.core("configmaps/one"), &json!({"propagationPolicy": "Foreground"})).await?.code(200)?;
    gone(&ctx, &ctx.core("configmaps/one")).await?;
    gone(&ctx, &ctx.core("configmaps/two")).await
}

async fn a_new_namespace_gets_an_account_and_the_root_certificate(ctx: Ctx) -> Result<()> {
    eventually("the account comes", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok()).await?;
    let root =
        eventually("the certificate comes", async || ctx.get(ctx.core("configmaps/kube-root-ca.crt")).await?.ok())
            .await?;
    assert_eq!(root["data"]["ca.crt"], ctx.target().ca_pem());
    ctx.delete(ctx.core("configmaps/kube-root-ca.crt")).await?.code(200)?;
    eventually("it comes back", async || ctx.get(ctx.core("configmaps/kube-root-ca.crt")).await?.ok()).await?;
    Ok(())
}

async fn a_new_namespace_is_labelled_with_its_name(ctx: Ctx) -> Result<()> {
    let namespace = ctx.get(format!("/api/v1/namespaces/{}", ctx.ns)).await?.ok()?;
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], json!(ctx.ns));
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(namespace["status"]["phase"], "Active");
    Ok(())
}

async fn a_deleted_namespace_takes_its_content_along(ctx: Ctx) -> Result<()> {
    make(&ctx, "one", json!({})).await?;
    let path = format!("/api/v1/namespaces/{}", ctx.ns);
    let deleted = ctx.delete(&path).await?.code(200)?;
    assert_eq!(deleted["status"]["phase"], "Terminating");
    gone(&ctx, &path).await?;
    let all = ctx.get(format!("/api/v1/configmaps?fieldSelector=metadata.namespace%3D{}", ctx.ns)).await?.ok()?;
    assert_eq!(all["items"], json!([]));
    Ok(())
}

async fn a_terminating_namespace_takes_nothing_new(ctx: Ctx) -> Result<()> {
    make(&ctx, "held", json!({"finalizers": ["fleetwright.io/hold"]})).await?;
    let path = format!("/api/v1/namespaces/{}", ctx.ns);
    ctx.delete(&path).await?.code(200)?;
    let reply = ctx.post(ctx.core("configmaps"), &ctx.config_map("late", json!({}))).await?;
    let message = format!(
        "configmaps \"late\" is forbidden: unable to create new content in namespace {} because it is being terminated",
        ctx.ns
    );
    let status = reply.refused_with(403, "Forbidden", &message)?;
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let patch = json!({"metadata": {"finalizers": null}});
    ctx.patch(ctx.core("configmaps/held"), PatchType::Merge, &patch).await?.code(200)?;
    gone(&ctx, &path).await
}

async fn a_namespace_that_does_not_exist_takes_nothing(ctx: Ctx) -> Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}});
    let reply = ctx.post("/api/v1/namespaces/nowhere/configmaps", &body).await?;
    let status = reply.refused_with(404, "NotFound", "namespaces \"nowhere\" not found")?;
    assert_eq!(status["details"], json!({"name": "nowhere", "kind": "namespaces"}));
    let empty = ctx.get("/api/v1/namespaces/nowhere/configmaps").await?.code(200)?;
    assert_eq!(empty["items"], json!([]));
    Ok(())
}

async fn a_namespace_waits_for_the_finalizers_of_its_content(ctx: Ctx) -> Result<()> {
    make(&ctx, "held", json!({"finalizers": ["fleetwright.io/hold"]})).await?;
    let path = format!("/api/v1/namespaces/{}", ctx.ns);
    ctx.delete(&path).await?.code(200)?;
    let conditions = eventually("the namespace says what holds it", async || {
        let namespace = ctx.get(&path).await?.ok()?;
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found =
            conditions.into_iter().find(|c| c["type"] == "NamespaceFinalizersRemaining" && c["status"] == "True");
        found.with_context(|| namespace.to_string())
    })
    .await?;
    assert_eq!(conditions["reason"], "SomeFinalizersRemain");
    assert_eq!(
        conditions["message"],
        "Some content in the namespace has finalizers remaining: fleetwright.io/hold in 1 resource instances"
    );
    let patch = json!({"metadata": {"finalizers": null}});
    ctx.patch(ctx.core("configmaps/held"), PatchType::Merge, &patch).await?.code(200)?;
    gone(&ctx, &path).await
}

async fn a_namespace_is_finalized_through_its_subresource(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("final");
    let body = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
        "spec": {"finalizers": ["kubernetes", "fleetwright.io/hold"]},
    });
    let path = format!("/api/v1/namespaces/{name}");
    ctx.post("/api/v1/namespaces", &body).await?.code(201)?;
    ctx.delete(&path).await?.code(200)?;
    eventually("only our finalizer is left", async || {
        let namespace = ctx.get(&path).await?.ok()?;
        ensure!(namespace["spec"]["finalizers"] == json!(["fleetwright.io/hold"]), "{namespace}");
        Ok(())
    })
    .await?;
    let patch = json!({"spec": {"finalizers": []}});
    let unchanged = ctx.patch(&path, PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(unchanged["spec"]["finalizers"], json!(["fleetwright.io/hold"]));
    // The namespace controller may still be writing conditions.
    eventually("the finalizer can be removed", async || {
        let mut free = ctx.get(&path).await?.ok()?;
        free["spec"]["finalizers"] = json!([]);
        ctx.put(format!("{path}/finalize"), &free).await?.code(200)
    })
    .await?;
    gone(&ctx, &path).await
}

async fn the_system_namespaces_cannot_be_deleted(ctx: Ctx) -> Result<()> {
    for name in ["default", "kube-system", "kube-public"] {
        let reply = ctx.delete(format!("/api/v1/namespaces/{name}")).await?;
        let message = format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
        reply.refused_with(403, "Forbidden", &message)?;
    }
    Ok(())
}

async fn managed_fields_name_the_writer_and_what_it_wrote(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("one", json!({"a": "1"}));
    let made = ctx.post(ctx.core("configmaps?fieldManager=ann"), &body).await?.ok()?;
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(entry["manager"], "ann");
    assert_eq!(entry["operation"], "Update");
    assert_eq!(entry["apiVersion"], "v1");
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert_eq!(entry["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}}}));
    let patch = json!({"data": {"b": "2"}});
    let new = ctx.patch(ctx.core("configmaps/one?fieldManager=bob"), PatchType::Merge, &patch).await?.ok()?;
    let entries = new["metadata"]["managedFields"].as_array().context("managedFields")?;
    let Some(bob) = entries.iter().find(|entry| entry["manager"] == "bob") else { bail!("no bob in {entries:?}") };
    assert_eq!(bob["fieldsV1"], json!({"f:data": {"f:b": {}}}));
    Ok(())
}

async fn managed_fields_can_be_reset(ctx: Ctx) -> Result<()> {
    make(&ctx, "one", json!({})).await?;
    let patch = json!({"metadata": {"managedFields": [{}]}});
    let new = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.code(200)?;
    assert_eq!(new["metadata"]["managedFields"], Value::Null);
    Ok(())
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "a", "image": "x"}], "automountServiceAccountToken": false},
    })
}

async fn a_pod_without_a_node_goes_at_once(ctx: Ctx) -> Result<()> {
    eventually("the account comes", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok()).await?;
    ctx.post(ctx.core("pods"), &pod("one")).await?.code(201)?;
    let last = ctx.delete(ctx.core("pods/one")).await?.code(200)?;
    assert_eq!(last["kind"], "Pod");
    ctx.get(ctx.core("pods/one")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_pod_on_a_node_gets_its_grace_period(ctx: Ctx) -> Result<()> {
    eventually("the account comes", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok()).await?;
    let mut body = pod("one");
    body["spec"]["nodeName"] = json!("some-node");
    ctx.post(ctx.core("pods"), &body).await?.code(201)?;
    let dying = ctx.delete(ctx.core("pods/one")).await?.code(200)?;
    assert_eq!(dying["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = ctx.delete_with(ctx.core("pods/one"), &json!({"gracePeriodSeconds": 5})).await?.code(200)?;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    ctx.delete_with(ctx.core("pods/one"), &json!({"gracePeriodSeconds": 0})).await?.code(200)?;
    ctx.get(ctx.core("pods/one")).await?.refused(404, "NotFound")?;
    Ok(())
}
