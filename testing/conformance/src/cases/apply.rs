//! Server-side apply: ownership, conflicts, removal, list types.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, PatchType};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["apply";
        applying_a_missing_object_creates_it,
        an_apply_owns_what_it_says,
        an_unchanged_apply_changes_nothing,
        a_conflict_names_the_manager_and_the_field,
        several_conflicts_are_listed_by_manager,
        force_takes_the_field_over,
        equal_values_are_shared_without_conflict,
        a_field_no_longer_applied_is_removed,
        a_shared_field_stays_until_its_last_applier_leaves,
        an_updated_field_conflicts_with_a_later_apply,
        an_apply_needs_a_manager,
        a_manager_has_a_longest_name,
        force_is_for_apply_only,
        an_apply_must_say_kind_and_version,
        an_applied_name_must_be_the_paths,
        applied_managed_fields_are_refused,
        an_unknown_field_cannot_be_applied,
        a_wrong_type_cannot_be_applied,
        broken_yaml_cannot_be_applied,
        containers_merge_by_name_between_appliers,
        ports_merge_by_port_and_protocol,
        duplicate_keys_in_a_list_are_refused,
        finalizers_merge_as_a_set,
        an_atomic_list_belongs_to_one_manager,
        list_types_of_a_custom_resource_are_honoured,
        the_status_is_owned_apart,
        a_scale_write_owns_the_replicas,
        kubectl_takes_over_what_it_applied_from_the_client_side,
        a_dry_run_apply_leaves_no_trace,
        an_apply_with_an_unknown_uid_is_a_conflict,
        an_apply_to_the_main_resource_ignores_the_status,
    ]
}

fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let mut owners: Vec<_> =
        entries.iter().map(|e| format!("{} {}", text(e, "manager"), text(e, "operation"))).collect();
    owners.sort();
    owners
}

fn owned_by<'a>(object: &'a Value, manager: &str, operation: &str) -> Result<&'a Value> {
    let entries = object["metadata"]["managedFields"].as_array().context("managedFields")?;
    let entry = entries.iter().find(|entry| entry["manager"] == manager && entry["operation"] == operation);
    Ok(&entry.with_context(|| format!("no {operation} of {manager} in {entries:?}"))?["fieldsV1"])
}

async fn apply(ctx: &Ctx, manager: &str, data: Value) -> Result<crate::Reply> {
    ctx.apply(&ctx.core("configmaps/one"), manager, &ctx.config_map("one", data)).await
}

async fn applying_a_missing_object_creates_it(ctx: Ctx) -> Result<()> {
    let made = apply(&ctx, "ann", json!({"a": "1"})).await?.code(201)?;
    assert_eq!(made["data"], json!({"a": "1"}));
    apply(&ctx, "ann", json!({"a": "2"})).await?.code(200)?;
    Ok(())
}

async fn an_apply_owns_what_it_says(ctx: Ctx) -> Result<()> {
    let made = apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(entry["operation"], "Apply");
    assert_eq!(entry["fieldsV1"], json!({"f:data": {"f:a": {}}}));
    assert_eq!(owners(&made), ["ann Apply"]);
    Ok(())
}

async fn an_unchanged_apply_changes_nothing(ctx: Ctx) -> Result<()> {
    let made = apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    assert_eq!(apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?, made);
    Ok(())
}

async fn a_conflict_names_the_manager_and_the_field(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    let message = "Apply failed with 1 conflict: conflict with \"ann\": .data.a";
    let status = apply(&ctx, "bob", json!({"a": "2"})).await?.refused_with(409, "Conflict", message)?;
    let cause = json!({"reason": "FieldManagerConflict", "message": "conflict with \"ann\"", "field": ".data.a"});
    assert_eq!(status["details"]["causes"], json!([cause]));
    Ok(())
}

async fn several_conflicts_are_listed_by_manager(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1", "b": "2"})).await?.ok()?;
    apply(&ctx, "cid", json!({"c": "3"})).await?.ok()?;
    let reply = apply(&ctx, "bob", json!({"a": "2", "b": "3", "c": "4"})).await?;
    let message = "Apply failed with 3 conflicts: conflicts with \"ann\":\n- .data.a\n- .data.b\nconflicts with \"cid\":\n- .data.c";
    let status = reply.refused_with(409, "Conflict", message)?;
    assert_eq!(status["details"]["causes"].as_array().map(Vec::len), Some(3));
    Ok(())
}

async fn force_takes_the_field_over(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1", "b": "1"})).await?.ok()?;
    let path = ctx.core("configmaps/one?force=true");
    let new = ctx.apply(&path, "bob", &ctx.config_map("one", json!({"a": "2"}))).await?.code(200)?;
    assert_eq!(new["data"], json!({"a": "2", "b": "1"}));
    assert_eq!(owned_by(&new, "ann", "Apply")?, &json!({"f:data": {"f:b": {}}}));
    assert_eq!(owned_by(&new, "bob", "Apply")?, &json!({"f:data": {"f:a": {}}}));
    Ok(())
}

async fn equal_values_are_shared_without_conflict(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    let new = apply(&ctx, "bob", json!({"a": "1"})).await?.code(200)?;
    assert_eq!(owners(&new), ["ann Apply", "bob Apply"]);
    Ok(())
}

async fn a_field_no_longer_applied_is_removed(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1", "b": "2"})).await?.ok()?;
    let new = apply(&ctx, "ann", json!({"b": "2"})).await?.code(200)?;
    assert_eq!(new["data"], json!({"b": "2"}));
    Ok(())
}

async fn a_shared_field_stays_until_its_last_applier_leaves(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1", "b": "1"})).await?.ok()?;
    apply(&ctx, "bob", json!({"a": "1", "c": "1"})).await?.ok()?;
    let new = apply(&ctx, "ann", json!({"b": "1"})).await?.ok()?;
    assert_eq!(new["data"], json!({"a": "1", "b": "1", "c": "1"}));
    let new = apply(&ctx, "bob", json!({"c": "1"})).await?.ok()?;
    assert_eq!(new["data"], json!({"b": "1", "c": "1"}));
    Ok(())
}

async fn an_updated_field_conflicts_with_a_later_apply(ctx: Ctx) -> Result<()> {
    apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    let path = ctx.core("configmaps/one?fieldManager=hand");
    ctx.patch(path, PatchType::Merge, &json!({"data": {"a": "9"}})).await?.ok()?;
    let status = apply(&ctx, "ann", json!({"a": "2"})).await?.refused(409, "Conflict")?;
    let message = status["message"].as_str().unwrap_or_default();
    let start = "Apply failed with 1 conflict: conflict with \"hand\" using v1";
    assert!(message.starts_with(start) && message.ends_with(": .data.a"), "{message}");
    Ok(())
}

async fn an_apply_needs_a_manager(ctx: Ctx) -> Result<()> {
    let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
    let body = ctx.config_map("one", json!({}));
    let reply = ctx.patch(ctx.core("configmaps/one"), PatchType::Apply, &body).await?;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_manager_has_a_longest_name(ctx: Ctx) -> Result<()> {
    let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes";
    apply(&ctx, &"x".repeat(129), json!({})).await?.refused_with(422, "Invalid", message)?;
    apply(&ctx, &"x".repeat(128), json!({"a": "1"})).await?.code(201)?;
    Ok(())
}

async fn force_is_for_apply_only(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("one", json!({}))).await?.ok()?;
    let message =
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch";
    let reply = ctx.patch(ctx.core("configmaps/one?force=true"), PatchType::Merge, &json!({})).await?;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn an_apply_must_say_kind_and_version(ctx: Ctx) -> Result<()> {
    let path = ctx.core("configmaps/one");
    let reply = ctx.apply(&path, "ann", &json!({"metadata": {"name": "one"}})).await?;
    reply.refused_with(400, "BadRequest", "invalid object type: /, Kind=")?;
    let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}});
    let reply = ctx.apply(&path, "ann", &body).await?;
    reply.refused_with(400, "BadRequest", "invalid object type: /v1, Kind=Secret")?;
    Ok(())
}

async fn an_applied_name_must_be_the_paths(ctx: Ctx) -> Result<()> {
    let message = "the name of the object (two) does not match the name on the URL (one)";
    let reply = ctx.apply(&ctx.core("configmaps/one"), "ann", &ctx.config_map("two", json!({}))).await?;
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn applied_managed_fields_are_refused(ctx: Ctx) -> Result<()> {
    let made = apply(&ctx, "ann", json!({"a": "1"})).await?.ok()?;
    let reply = ctx.apply(&ctx.core("configmaps/one"), "ann", &made).await?;
    reply.refused_with(400, "BadRequest", "metadata.managedFields must be nil")?;
    Ok(())
}

async fn an_unknown_field_cannot_be_applied(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["bogus"] = json!(1);
    let status = ctx.apply(&ctx.core("configmaps/one"), "ann", &body).await?.code(500)?;
    let message = format!(
        "failed to create typed patch object ({}/one; /v1, Kind=ConfigMap): .bogus: field not declared in schema",
        ctx.ns
    );
    assert_eq!(status["message"], json!(message));
    Ok(())
}

async fn a_wrong_type_cannot_be_applied(ctx: Ctx) -> Result<()> {
    let status = apply(&ctx, "ann", json!({"a": 1})).await?.code(500)?;
    let message = format!(
        "failed to create typed patch object ({}/one; /v1, Kind=ConfigMap): .data.a: expected string, got \
         &value.valueUnstructured{{Value:1}}",
        ctx.ns
    );
    assert_eq!(status["message"], json!(message));
    Ok(())
}

async fn broken_yaml_cannot_be_applied(ctx: Ctx) -> Result<()> {
    let call = ctx.call(http::Method::PATCH, ctx.core("configmaps/one?fieldManager=ann"));
    let call = call.header("content-type", PatchType::Apply.content_type()).body("a: [");
    let status = call.send().await?.refused(400, "BadRequest")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("error encoding patch: yaml: "), "{message}");
    Ok(())
}

fn deployment(containers: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"},
        "spec": {
            "selector": {"matchLabels": {"app": "one"}},
            "template": {"metadata": {"labels": {"app": "one"}}, "spec": {"containers": containers}},
        },
    })
}

fn containers(object: &Value) -> Vec<String> {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    containers.iter().map(|c| format!("{}={}", text(&c["name"]), text(&c["image"]))).collect()
}

async fn containers_merge_by_name_between_appliers(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments/one");
    let body = deployment(json!([{"name": "main", "image": "a"}]));
    ctx.apply(&path, "ann", &body).await?.code(201)?;
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"},
        "spec": {"template": {"spec": {"containers": [{"name": "side", "image": "b"}]}}},
    });
    let new = ctx.apply(&path, "bob", &body).await?.code(200)?;
    assert_eq!(containers(&new), ["main=a", "side=b"]);
    let wanted = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {
        "k:{\"name\":\"side\"}": {".": {}, "f:image": {}, "f:name": {}},
    }}}}});
    assert_eq!(owned_by(&new, "bob", "Apply")?, &wanted);
    let body = deployment(json!([{"name": "main", "image": "c"}]));
    let new = ctx.apply(&path, "ann", &body).await?.code(200)?;
    assert_eq!(containers(&new), ["main=c", "side=b"]);
    Ok(())
}

async fn ports_merge_by_port_and_protocol(ctx: Ctx) -> Result<()> {
    let path = ctx.core("services/one");
    let service = |ports: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"},
            "spec": {"selector": {"a": "b"}, "ports": ports},
        })
    };
    ctx.apply(&path, "ann", &service(json!([{"name": "tcp", "port": 53, "protocol": "TCP"}]))).await?.code(201)?;
    let body = service(json!([{"name": "udp", "port": 53, "protocol": "UDP"}]));
    let new = ctx.apply(&path, "bob", &body).await?.code(200)?;
    let names: Vec<_> = new["spec"]["ports"].as_array().context("ports")?.iter().map(|p| p["name"].as_str()).collect();
    assert_eq!(names, [Some("tcp"), Some("udp")]);
    Ok(())
}

async fn duplicate_keys_in_a_list_are_refused(ctx: Ctx) -> Result<()> {
    let body = deployment(json!([{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]));
    let status = ctx.apply(&ctx.group("apps/v1", "deployments/one"), "ann", &body).await?.code(500)?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.ends_with(": .spec.template.spec.containers: duplicate entries for key [name=\"a\"]"), "{message}");
    Ok(())
}

async fn finalizers_merge_as_a_set(ctx: Ctx) -> Result<()> {
    let body = |finalizer: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "finalizers": [finalizer]},
        })
    };
    let path = ctx.core("configmaps/one");
    ctx.apply(&path, "ann", &body("fleetwright.io/a")).await?.ok()?;
    let new = ctx.apply(&path, "bob", &body("fleetwright.io/b")).await?.ok()?;
    assert_eq!(new["metadata"]["finalizers"], json!(["fleetwright.io/a", "fleetwright.io/b"]));
    let wanted = json!({"f:metadata": {"f:finalizers": {"v:\"fleetwright.io/b\"": {}}}});
    assert_eq!(owned_by(&new, "bob", "Apply")?, &wanted);
    Ok(())
}

async fn an_atomic_list_belongs_to_one_manager(ctx: Ctx) -> Result<()> {
    let path = ctx.core("pods/one");
    let pod = |command: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"},
            "spec": {"serviceAccountName": "default", "automountServiceAccountToken": false,
                "containers": [{"name": "a", "image": "x", "command": [command]}]},
        })
    };
    crate::eventually("the account comes", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok()).await?;
    ctx.apply(&path, "ann", &pod("one")).await?.code(201)?;
    let message = "Apply failed with 1 conflict: conflict with \"ann\": .spec.containers[name=\"a\"].command";
    ctx.apply(&path, "bob", &pod("two")).await?.refused_with(409, "Conflict", message)?;
    Ok(())
}

async fn list_types_of_a_custom_resource_are_honoured(ctx: Ctx) -> Result<()> {
    let item = json!({
        "type": "object", "required": ["id"],
        "properties": {"id": {"type": "string"}, "value": {"type": "integer"}},
    });
    let spec = json!({"type": "object", "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "parts": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        "steps": {"type": "array", "items": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
            "additionalProperties": {"type": "string"}},
    }});
    let crd = Crd::new(&ctx, spec, json!({"type": "object"})).make(&ctx).await?;
    let path = crd.path(&ctx, "/one");
    let spec = json!({"tags": ["a"], "parts": [{"id": "x", "value": 1}], "steps": ["s"], "whole": {"k": "v"}});
    ctx.apply(&path, "ann", &crd.widget("one", spec)).await?.code(201)?;
    let spec = json!({"tags": ["b"], "parts": [{"id": "y", "value": 2}]});
    let new = ctx.apply(&path, "bob", &crd.widget("one", spec)).await?.code(200)?;
    assert_eq!(new["spec"]["tags"], json!(["a", "b"]));
    assert_eq!(new["spec"]["parts"], json!([{"id": "x", "value": 1}, {"id": "y", "value": 2}]));
    let reply = ctx.apply(&path, "bob", &crd.widget("one", json!({"steps": ["t"], "whole": {"l": "w"}}))).await?;
    let message = "Apply failed with 2 conflicts: conflicts with \"ann\":\n- .spec.steps\n- .spec.whole";
    reply.refused_with(409, "Conflict", message)?;
    Ok(())
}

async fn the_status_is_owned_apart(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments/one");
    ctx.apply(&path, "ann", &deployment(json!([{"name": "main", "image": "a"}]))).await?.ok()?;
    let status = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"}, "status": {"observedGeneration": 1},
    });
    let new = ctx.apply(&format!("{path}/status"), "ann", &status).await?.code(200)?;
    assert_eq!(new["status"]["observedGeneration"], 1);
    let entries = new["metadata"]["managedFields"].as_array().context("managedFields")?;
    let of_status = entries.iter().find(|entry| entry["subresource"] == "status").context("no status entry")?;
    assert_eq!(of_status["manager"], "ann");
    assert_eq!(of_status["fieldsV1"], json!({"f:status": {"f:observedGeneration": {}}}));
    let new = ctx.apply(&path, "ann", &deployment(json!([{"name": "main", "image": "b"}]))).await?.code(200)?;
    assert_eq!(new["status"]["observedGeneration"], 1);
    Ok(())
}

async fn a_scale_write_owns_the_replicas(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments/one");
    let mut body = deployment(json!([{"name": "main", "image": "a"}]));
    body["spec"]["replicas"] = json!(2);
    ctx.apply(&path, "ann", &body).await?.ok()?;
    let patch = json!({"spec": {"replicas": 5}});
    let scale = ctx.patch(format!("{path}/scale?fieldManager=scaler"), PatchType::Merge, &patch).await?.code(200)?;
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(scale["spec"]["replicas"], 5);
    let now = ctx.get(&path).await?.ok()?;
    assert_eq!(owned_by(&now, "scaler", "Update")?, &json!({"f:spec": {"f:replicas": {}}}));
    let status = ctx.apply(&path, "ann", &body).await?.refused(409, "Conflict")?;
    assert_eq!(status["details"]["causes"][0]["field"], ".spec.replicas");
    Ok(())
}

async fn kubectl_takes_over_what_it_applied_from_the_client_side(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({"a": "1", "b": "2"}));
    let last =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1", "b": "2"}});
    body["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last.to_string()});
    ctx.post(ctx.core("configmaps?fieldManager=kubectl-client-side-apply"), &body).await?.ok()?;
    let new = ctx.config_map("one", json!({"a": "9"}));
    ctx.apply(&ctx.core("configmaps/one"), "someone-else", &new).await?.refused(409, "Conflict")?;
    let new = ctx.apply(&ctx.core("configmaps/one"), "kubectl", &new).await?.code(200)?;
    assert_eq!(new["data"], json!({"a": "9", "b": "2"}));
    assert_eq!(owned_by(&new, "kubectl", "Apply")?["f:data"], json!({"f:a": {}}));
    Ok(())
}

async fn a_dry_run_apply_leaves_no_trace(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("one", json!({"a": "1"}));
    ctx.apply(&ctx.core("configmaps/one?dryRun=All"), "ann", &body).await?.code(201)?;
    ctx.get(ctx.core("configmaps/one")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn an_apply_with_an_unknown_uid_is_a_conflict(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["uid"] = json!("aaa");
    let message = "Operation cannot be fulfilled on configmaps \"one\": uid mismatch: the provided object specified uid aaa, and \
                   no existing object was found";
    ctx.apply(&ctx.core("configmaps/one"), "ann", &body).await?.refused_with(409, "Conflict", message)?;
    Ok(())
}

async fn an_apply_to_the_main_resource_ignores_the_status(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({"a": 1}));
    body["status"] = json!({"b": 2});
    let new = ctx.apply(&crd.path(&ctx, "/one"), "ann", &body).await?.code(201)?;
    ensure!(new["status"].is_null(), "{new}");
    assert_eq!(owned_by(&new, "ann", "Apply")?, &json!({"f:spec": {"f:a": {}}}));
    Ok(())
}
