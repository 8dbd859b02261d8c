//! Create, get, update, patch, delete and what their parameters do.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::{Case, Ctx, PatchType, eventually};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["verbs";
        a_created_object_is_returned_with_an_identity,
        creating_an_existing_name_is_refused,
        a_generated_name_ends_in_five_random_characters,
        a_body_of_another_namespace_is_refused,
        a_body_of_another_kind_is_refused,
        a_body_without_a_kind_takes_the_kind_of_the_path,
        creating_with_a_resource_version_is_refused,
        a_missing_object_is_not_found_by_any_verb,
        an_unknown_resource_is_not_found_with_a_general_message,
        an_unsupported_method_is_refused,
        an_update_must_name_the_object_of_the_path,
        an_update_of_a_missing_object_is_not_found,
        an_update_with_a_stale_version_is_a_conflict,
        an_update_without_a_version_overwrites,
        an_update_with_another_uid_is_a_conflict,
        a_json_patch_tests_and_changes,
        a_json_patch_whose_test_fails_is_unprocessable,
        a_malformed_patch_is_a_bad_request,
        a_merge_patch_removes_what_is_null,
        a_merge_patch_with_a_stale_version_is_a_conflict,
        a_strategic_patch_merges_containers_by_name,
        a_strategic_patch_deletes_by_directive,
        an_unknown_patch_type_is_an_unsupported_media_type,
        a_patch_of_a_missing_object_is_not_found,
        a_patch_cannot_rename,
        a_deleted_object_is_reported_by_a_status_with_its_uid,
        a_delete_with_a_wrong_uid_is_a_conflict,
        a_delete_with_a_stale_version_is_a_conflict,
        a_delete_takes_its_options_from_the_query,
        delete_options_of_two_minds_are_refused,
        deleting_a_collection_honours_its_selector,
        a_dry_run_leaves_no_trace,
        a_dry_run_of_a_delete_keeps_the_object,
        an_unknown_dry_run_is_refused,
        an_unknown_field_is_refused_when_validation_is_strict,
        an_unknown_field_is_warned_of_by_default,
        an_unknown_field_is_silently_dropped_when_validation_is_off,
        an_unknown_field_validation_is_refused,
        a_duplicate_field_is_refused_when_validation_is_strict,
        a_status_write_touches_nothing_else,
        a_main_write_does_not_touch_the_status,
        yaml_is_taken_as_json_is,
        an_object_is_answered_as_yaml_on_request,
        an_unknown_content_type_is_refused,
        an_unknown_format_of_an_answer_is_not_acceptable,
    ]
}

async fn a_created_object_is_returned_with_an_identity(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.code(201)?;
    let metadata = &made["metadata"];
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["apiVersion"], "v1");
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert!(metadata["resourceVersion"].as_str().unwrap().parse::<u64>()? > 0);
    let time = metadata["creationTimestamp"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    assert_eq!(ctx.get(ctx.core("configmaps/one")).await?.code(200)?, made);
    Ok(())
}

async fn creating_an_existing_name_is_refused(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("one", json!({}));
    ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    let again = ctx.post(ctx.core("configmaps"), &body).await?;
    let status = again.refused_with(409, "AlreadyExists", r#"configmaps "one" already exists"#)?;
    assert_eq!(status["details"], json!({"name": "one", "kind": "configmaps"}));
    Ok(())
}

async fn a_generated_name_ends_in_five_random_characters(ctx: Ctx) -> Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "some-"}});
    let one = ctx.post(ctx.core("configmaps"), &body).await?.code(201)?;
    let two = ctx.post(ctx.core("configmaps"), &body).await?.code(201)?;
    let name = one["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("some-") && name.len() == 10, "{name}");
    assert_eq!(one["metadata"]["generateName"], "some-");
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    Ok(())
}

async fn a_body_of_another_namespace_is_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["namespace"] = json!("kube-system");
    let message = "the namespace of the provided object does not match the namespace sent on the request";
    ctx.post(ctx.core("configmaps"), &body).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_body_of_another_kind_is_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["kind"] = json!("Secret");
    let message = "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): \
                   unknown conversion";
    ctx.post(ctx.core("configmaps"), &body).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_body_without_a_kind_takes_the_kind_of_the_path(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &json!({"metadata": {"name": "one"}})).await?.code(201)?;
    assert_eq!(made["kind"], "ConfigMap");
    Ok(())
}

async fn creating_with_a_resource_version_is_refused(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["resourceVersion"] = json!("5");
    let message = "resourceVersion should not be set on objects to be created";
    let status = ctx.post(ctx.core("configmaps"), &body).await?.code(500)?;
    assert_eq!(status["message"], message);
    Ok(())
}

async fn a_missing_object_is_not_found_by_any_verb(ctx: Ctx) -> Result<()> {
    let path = ctx.core("configmaps/none");
    let message = r#"configmaps "none" not found"#;
    let status = ctx.get(&path).await?.refused_with(404, "NotFound", message)?;
    assert_eq!(status["details"], json!({"name": "none", "kind": "configmaps"}));
    ctx.delete(&path).await?.refused_with(404, "NotFound", message)?;
    ctx.get("/apis/apps/v1/namespaces/default/deployments/none").await?.refused_with(
        404,
        "NotFound",
        r#"deployments.apps "none" not found"#,
    )?;
    Ok(())
}

async fn an_unknown_resource_is_not_found_with_a_general_message(ctx: Ctx) -> Result<()> {
    for path in ["/api/v1/gadgets", "/apis/fleetwright.io/v1/gadgets"] {
        let reply = ctx.get(path).await?;
        if path.starts_with("/api/") {
            reply.refused_with(404, "NotFound", "the server could not find the requested resource")?;
        } else {
            assert_eq!(reply.text(), "404 page not found\n");
            assert_eq!(reply.status, 404);
        }
    }
    Ok(())
}

async fn an_unsupported_method_is_refused(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("one", json!({}));
    let message = "the server does not allow this method on the requested resource";
    ctx.post(ctx.core("configmaps/one"), &body).await?.refused_with(405, "MethodNotAllowed", message)?;
    ctx.put(ctx.core("configmaps"), &body).await?.refused_with(405, "MethodNotAllowed", message)?;
    Ok(())
}

async fn an_update_must_name_the_object_of_the_path(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let message = "the name of the object (one) does not match the name on the URL (two)";
    ctx.put(ctx.core("configmaps/two"), &made).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn an_update_of_a_missing_object_is_not_found(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("none", json!({}));
    ctx.put(ctx.core("configmaps/none"), &body).await?.refused_with(
        404,
        "NotFound",
        r#"configmaps "none" not found"#,
    )?;
    Ok(())
}

async fn an_update_with_a_stale_version_is_a_conflict(ctx: Ctx) -> Result<()> {
    let old = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.ok()?;
    let mut new = old.clone();
    new["data"]["a"] = json!("2");
    ctx.put(ctx.core("configmaps/one"), &new).await?.code(200)?;
    let message = "Operation cannot be fulfilled on configmaps \"one\": the object has been modified; please apply your changes to the latest version and try again";
    let status = ctx.put(ctx.core("configmaps/one"), &new).await?.refused_with(409, "Conflict", message)?;
    assert_eq!(status["details"], json!({"name": "one", "kind": "configmaps"}));
    Ok(())
}

async fn an_update_without_a_version_overwrites(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.ok()?;
    let new = ctx.put(ctx.core("configmaps/one"), &ctx.config_map("one", json!({"b": "2"}))).await?.code(200)?;
    assert_eq!(new["data"], json!({"b": "2"}));
    Ok(())
}

async fn an_update_with_another_uid_is_a_conflict(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let mut new = made.clone();
    new["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let status = ctx.put(ctx.core("configmaps/one"), &new).await?.refused(409, "Conflict")?;
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("Operation cannot be fulfilled on configmaps \"one\": "), "{message}");
    let end = format!(
        "Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000, UID in object meta: {}",
        made["metadata"]["uid"].as_str().unwrap()
    );
    assert!(message.ends_with(&end), "{message}");
    Ok(())
}

async fn a_json_patch_tests_and_changes(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({"a": "1", "b": "2"}));
    body["metadata"]["annotations"] = json!({"fleetwright.io/x": "old"});
    ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    let patch = json!([
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "3"},
        {"op": "move", "from": "/data/b", "path": "/data/d"},
        {"op": "copy", "from": "/data/d", "path": "/data/e"},
        {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
        {"op": "replace", "path": "/metadata/annotations/fleetwright.io~1x", "value": "new"},
    ]);
    let new = ctx.patch(ctx.core("configmaps/one"), PatchType::Json, &patch).await?.code(200)?;
    assert_eq!(new["data"], json!({"a": "3", "d": "2", "e": "2"}));
    assert_eq!(new["metadata"]["labels"], json!({"x": "y"}));
    assert_eq!(new["metadata"]["annotations"], json!({"fleetwright.io/x": "new"}));
    Ok(())
}

async fn a_json_patch_whose_test_fails_is_unprocessable(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.ok()?;
    let patch = json!([{"op": "test", "path": "/data/a", "value": "2"}]);
    let message = "the server rejected our request due to an error in our request";
    ctx.patch(ctx.core("configmaps/one"), PatchType::Json, &patch).await?.refused_with(422, "Invalid", message)?;
    let patch = json!([{"op": "remove", "path": "/data/none"}]);
    ctx.patch(ctx.core("configmaps/one"), PatchType::Json, &patch).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_malformed_patch_is_a_bad_request(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let message = "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp";
    let reply = ctx.patch(ctx.core("configmaps/one"), PatchType::Json, &json!({"op": "add"})).await?;
    reply.refused_with(400, "BadRequest", message)?;
    let message = "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}";
    let reply = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &json!([1])).await?;
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_merge_patch_removes_what_is_null(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1", "b": "2"}))).await?.ok()?;
    let patch = json!({"data": {"a": null, "c": "3"}});
    let new = ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.code(200)?;
    assert_eq!(new["data"], json!({"b": "2", "c": "3"}));
    Ok(())
}

async fn a_merge_patch_with_a_stale_version_is_a_conflict(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let patch = json!({"metadata": {"resourceVersion": "1"}, "data": {"a": "1"}});
    let message = "Operation cannot be fulfilled on configmaps \"one\": the object has been modified; please apply your changes to the latest version and try again";
    ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.refused_with(409, "Conflict", message)?;
    Ok(())
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "a", "image": "one"}, {"name": "b", "image": "two"}]},
            },
        },
    })
}

fn images(deployment: &Value) -> Vec<String> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    containers.iter().map(|c| format!("{}={}", c["name"].as_str().unwrap(), c["image"].as_str().unwrap())).collect()
}

async fn a_strategic_patch_merges_containers_by_name(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group("apps/v1", "deployments"), &deployment("one")).await?.ok()?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "three"}]}}}});
    let new = ctx.patch(ctx.group("apps/v1", "deployments/one"), PatchType::Strategic, &patch).await?.code(200)?;
    assert_eq!(images(&new), ["a=one", "b=three"]);
    Ok(())
}

async fn a_strategic_patch_deletes_by_directive(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group("apps/v1", "deployments"), &deployment("one")).await?.ok()?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}});
    let new = ctx.patch(ctx.group("apps/v1", "deployments/one"), PatchType::Strategic, &patch).await?.code(200)?;
    assert_eq!(images(&new), ["b=two"]);
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "c", "image": "x"}]}}}});
    let new = ctx.patch(ctx.group("apps/v1", "deployments/one"), PatchType::Strategic, &patch).await?.code(200)?;
    assert_eq!(images(&new), ["c=x"]);
    Ok(())
}

async fn an_unknown_patch_type_is_an_unsupported_media_type(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let call = ctx.call(Method::PATCH, ctx.core("configmaps/one")).header("content-type", "application/json");
    call.body("{}").send().await?.refused_with(415, "UnsupportedMediaType", "415: Unsupported Media Type")?;
    Ok(())
}

async fn a_patch_of_a_missing_object_is_not_found(ctx: Ctx) -> Result<()> {
    for kind in [PatchType::Merge, PatchType::Strategic] {
        ctx.patch(ctx.core("configmaps/none"), kind, &json!({"data": {}})).await?.refused_with(
            404,
            "NotFound",
            r#"configmaps "none" not found"#,
        )?;
    }
    Ok(())
}

async fn a_patch_cannot_rename(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let patch = json!({"metadata": {"name": "two"}});
    let message = "the name of the object (two) does not match the name on the URL (one)";
    ctx.patch(ctx.core("configmaps/one"), PatchType::Merge, &patch).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_deleted_object_is_reported_by_a_status_with_its_uid(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let status = ctx.delete(ctx.core("configmaps/one")).await?.code(200)?;
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"], json!({"name": "one", "kind": "configmaps", "uid": made["metadata"]["uid"]}));
    ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_delete_with_a_wrong_uid_is_a_conflict(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"one\": the UID in the precondition (x) does not match the UID in \
         record ({}). The object might have been deleted and then recreated",
        made["metadata"]["uid"].as_str().unwrap()
    );
    let options = json!({"preconditions": {"uid": "x"}});
    ctx.delete_with(ctx.core("configmaps/one"), &options).await?.refused_with(409, "Conflict", &message)?;
    Ok(())
}

async fn a_delete_with_a_stale_version_is_a_conflict(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"one\": the ResourceVersion in the precondition (1) does not match the \
         ResourceVersion in record ({version}). The object might have been modified"
    );
    let options = json!({"preconditions": {"resourceVersion": "1"}});
    ctx.delete_with(ctx.core("configmaps/one"), &options).await?.refused_with(409, "Conflict", &message)?;
    let options = json!({"preconditions": {"resourceVersion": version}});
    ctx.delete_with(ctx.core("configmaps/one"), &options).await?.code(200)?;
    Ok(())
}

async fn a_delete_takes_its_options_from_the_query(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let kept = ctx.delete(ctx.core("configmaps/one?propagationPolicy=Foreground")).await?.code(200)?;
    assert_eq!(kept["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    eventually("the garbage collector lets it go", async || {
        ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")
    })
    .await?;
    Ok(())
}

async fn delete_options_of_two_minds_are_refused(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let options = json!({"propagationPolicy": "Background", "orphanDependents": true});
    let message = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Background\": orphanDependents \
                   and deletionPropagation cannot be both set";
    ctx.delete_with(ctx.core("configmaps/one"), &options).await?.refused_with(422, "Invalid", message)?;
    let options = json!({"propagationPolicy": "Sideways"});
    let message = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Sideways\": supported \
                   values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
    ctx.delete_with(ctx.core("configmaps/one"), &options).await?.refused_with(422, "Invalid", message)?;
    ctx.get(ctx.core("configmaps/one")).await?.code(200)?;
    Ok(())
}

async fn deleting_a_collection_honours_its_selector(ctx: Ctx) -> Result<()> {
    for (name, tier) in [("one", "a"), ("two", "b"), ("three", "a")] {
        let mut body = ctx.config_map(name, json!({}));
        body["metadata"]["labels"] = json!({"tier": tier});
        ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    }
    let gone = ctx.delete(ctx.core("configmaps?labelSelector=tier%3Da")).await?.code(200)?;
    assert_eq!(gone["kind"], "ConfigMapList");
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(2));
    let left = ctx.get(ctx.core("configmaps?labelSelector=tier")).await?.ok()?;
    assert_eq!(left["items"][0]["metadata"]["name"], "two");
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

async fn a_dry_run_leaves_no_trace(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("configmaps?dryRun=All"), &ctx.config_map("one", json!({}))).await?.code(201)?;
    ensure!(made["metadata"]["uid"].is_string() && made["metadata"]["resourceVersion"].is_null(), "{made}");
    ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")?;

    let real = ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.ok()?;
    let patch = json!({"data": {"a": "2"}});
    let tried = ctx.patch(ctx.core("configmaps/one?dryRun=All"), PatchType::Merge, &patch).await?.code(200)?;
    assert_eq!(tried["data"]["a"], "2");
    assert_eq!(ctx.get(ctx.core("configmaps/one")).await?.ok()?, real);
    Ok(())
}

async fn a_dry_run_of_a_delete_keeps_the_object(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    ctx.delete(ctx.core("configmaps/one?dryRun=All")).await?.code(200)?;
    ctx.delete_with(ctx.core("configmaps/one"), &json!({"dryRun": ["All"]})).await?.code(200)?;
    ctx.get(ctx.core("configmaps/one")).await?.code(200)?;
    Ok(())
}

async fn an_unknown_dry_run_is_refused(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps?dryRun=Some"), &ctx.config_map("one", json!({}))).await?;
    let message =
        r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All""#;
    let status = reply.refused_with(422, "Invalid", message)?;
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueNotSupported");
    Ok(())
}

fn with_unknown_field(ctx: &Ctx) -> Value {
    let mut body = ctx.config_map("one", json!({}));
    body["colour"] = json!("blue");
    body["metadata"]["shape"] = json!("round");
    body
}

async fn an_unknown_field_is_refused_when_validation_is_strict(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps?fieldValidation=Strict"), &with_unknown_field(&ctx)).await?;
    let message = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"colour\", unknown field \"metadata.shape\"";
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn an_unknown_field_is_warned_of_by_default(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps"), &with_unknown_field(&ctx)).await?;
    assert_eq!(reply.warnings(), [r#"unknown field "colour""#, r#"unknown field "metadata.shape""#]);
    let made = reply.code(201)?;
    assert_eq!(made["colour"], Value::Null);
    Ok(())
}

async fn an_unknown_field_is_silently_dropped_when_validation_is_off(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps?fieldValidation=Ignore"), &with_unknown_field(&ctx)).await?;
    assert_eq!(reply.warnings(), Vec::<String>::new());
    assert_eq!(reply.code(201)?["metadata"]["shape"], Value::Null);
    Ok(())
}

async fn an_unknown_field_validation_is_refused(ctx: Ctx) -> Result<()> {
    let reply = ctx.post(ctx.core("configmaps?fieldValidation=Maybe"), &ctx.config_map("one", json!({}))).await?;
    let message = r#"CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Maybe": supported values: "", "Ignore", "Strict", "Warn""#;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_duplicate_field_is_refused_when_validation_is_strict(ctx: Ctx) -> Result<()> {
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"a":"1","a":"2"}}"#;
    let call = |query: &str| {
        let path = ctx.core(&format!("configmaps{query}"));
        ctx.call(Method::POST, path).header("content-type", "application/json").body(body).send()
    };
    let message = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.a\"";
    call("?fieldValidation=Strict").await?.refused_with(400, "BadRequest", message)?;
    let reply = call("").await?;
    assert_eq!(reply.warnings(), [r#"duplicate field "data.a""#]);
    assert_eq!(reply.code(201)?["data"]["a"], "2");
    Ok(())
}

async fn a_status_write_touches_nothing_else(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments/one/status");
    let mut body = ctx.post(ctx.group("apps/v1", "deployments"), &deployment("one")).await?.ok()?;
    body["spec"]["replicas"] = json!(7);
    body["status"] = json!({"observedGeneration": 1});
    let new = ctx.put(&path, &body).await?.code(200)?;
    assert_eq!(new["spec"]["replicas"], 1);
    assert_eq!(new["status"]["observedGeneration"], 1);
    assert_eq!(new["metadata"]["generation"], 1);
    assert_eq!(ctx.get(&path).await?.ok()?["status"], new["status"]);
    Ok(())
}

async fn a_main_write_does_not_touch_the_status(ctx: Ctx) -> Result<()> {
    let mut body = deployment("one");
    body["status"] = json!({"replicas": 3});
    let made = ctx.post(ctx.group("apps/v1", "deployments"), &body).await?.ok()?;
    assert_eq!(made["status"], json!({}));
    let patch = json!({"status": {"replicas": 3}});
    let new = ctx.patch(ctx.group("apps/v1", "deployments/one"), PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(new["status"], json!({}));
    assert_eq!(new["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    Ok(())
}

async fn yaml_is_taken_as_json_is(ctx: Ctx) -> Result<()> {
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata:\n  text: |\n    two\n    lines\n  number: \"1\"\n";
    let call = ctx.call(Method::POST, ctx.core("configmaps")).header("content-type", "application/yaml").body(yaml);
    let made = call.send().await?.code(201)?;
    assert_eq!(made["data"], json!({"text": "two\nlines\n", "number": "1"}));
    Ok(())
}

async fn an_object_is_answered_as_yaml_on_request(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({"a": "1"}))).await?.ok()?;
    let reply = ctx.call(Method::GET, ctx.core("configmaps/one")).header("accept", "application/yaml").send().await?;
    assert_eq!(reply.header("content-type"), "application/yaml");
    let text = reply.text();
    assert!(text.starts_with("apiVersion: v1\ndata:\n  a: \"1\"\nkind: ConfigMap\nmetadata:\n"), "{text}");
    Ok(())
}

async fn an_unknown_content_type_is_refused(ctx: Ctx) -> Result<()> {
    let call = ctx.call(Method::POST, ctx.core("configmaps")).header("content-type", "text/plain").body("{}");
    let status = call.send().await?.refused(415, "UnsupportedMediaType")?;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("the body of the request was in an unknown format - accepted media types include: "),
        "{message}"
    );
    Ok(())
}

async fn an_unknown_format_of_an_answer_is_not_acceptable(ctx: Ctx) -> Result<()> {
    let reply = ctx.call(Method::GET, ctx.core("configmaps")).header("accept", "text/plain").send().await?;
    let status = reply.refused(406, "NotAcceptable")?;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("406: Not Acceptable\n\nAvailable representations: application/json, application/yaml"),
        "{message}"
    );
    Ok(())
}
