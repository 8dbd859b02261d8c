//! The patches beside server-side apply: directives, limits, and the ownership of fields after each kind of write.

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, PatchType, Reply};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["patches";
        each_kind_of_write_owns_what_it_changed,
        a_writer_without_a_name_is_called_by_its_user_agent,
        an_update_takes_ownership_of_changed_fields_only,
        a_field_that_is_removed_has_no_owner,
        a_status_update_owns_under_its_subresource,
        managed_fields_can_be_forgotten,
        nonsense_in_managed_fields_is_ignored,
        the_list_of_containers_itself_is_not_owned_on_create,
        a_patch_that_changes_nothing_keeps_the_version,
        a_json_patch_copies_and_moves,
        a_json_patch_may_replace_what_is_missing_in_a_map,
        a_json_patch_has_a_largest_number_of_operations,
        a_json_patch_may_not_multiply_the_object,
        a_json_patch_escapes_slashes_in_names,
        a_strategic_patch_may_replace_a_whole_map,
        a_strategic_patch_deletes_from_a_primitive_list,
        a_strategic_patch_may_order_a_list,
        a_strategic_patch_retains_keys,
        a_strategic_patch_needs_the_merge_key,
        a_strategic_patch_with_an_unknown_directive_is_refused,
        a_strategic_patch_merges_ports_by_their_number,
        a_strategic_patch_sets_null_to_remove,
        a_strategic_patch_of_a_wrong_type_is_refused,
        a_custom_resource_takes_no_strategic_patch,
        a_merge_patch_replaces_a_list_whole,
        a_merge_patch_of_a_custom_resource_is_validated,
        a_patch_may_not_change_the_kind,
        a_patch_may_not_change_the_uid,
        a_patch_with_the_present_version_is_taken,
        a_strict_patch_refuses_an_unknown_field,
        a_patch_warns_of_an_unknown_field,
        a_scale_may_be_patched_and_applied_to_nothing_else,
        an_apply_may_create_a_custom_resource,
        an_apply_removes_an_item_that_it_alone_had,
        an_apply_of_a_set_adds_and_removes_its_own_values,
        an_apply_may_own_a_nested_map_by_entry,
        an_apply_that_defaults_a_key_finds_its_item_again,
        a_forced_apply_of_a_list_takes_its_items,
    ]
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "one"}},
            "template": {
                "metadata": {"labels": {"app": "one"}},
                "spec": {
                    "containers": [
                        {"name": "a", "image": "one", "ports": [{"containerPort": 80}], "args": ["x", "y"]},
                        {"name": "b", "image": "two"},
                    ],
                    "volumes": [{"name": "data", "emptyDir": {}}],
                },
            },
        },
    })
}

async fn deployed(ctx: &Ctx) -> Result<String> {
    ctx.post(ctx.group("apps/v1", "deployments"), &deployment()).await?.code(201)?;
    Ok(ctx.group("apps/v1", "deployments/one"))
}

async fn configured(ctx: &Ctx, data: Value) -> Result<String> {
    ctx.post(ctx.core("configmaps?fieldManager=maker"), &ctx.config_map("one", data)).await?.code(201)?;
    Ok(ctx.core("configmaps/one"))
}

async fn pod_spec_patched(ctx: &Ctx, patch: Value) -> Result<Reply> {
    let path = ctx.group("apps/v1", "deployments/one");
    ctx.patch(path, PatchType::Strategic, &json!({"spec": {"template": {"spec": patch}}})).await
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// Each owner with its operation, subresource and fields.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mut owners: Vec<_> = entries
        .iter()
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            let name = format!("{} {} {}", text("manager"), text("operation"), text("subresource"));
            (name.trim_end().to_owned(), entry["fieldsV1"].clone())
        })
        .collect();
    owners.sort_by(|a, b| a.0.cmp(&b.0));
    owners
}

fn owner<'a>(owners: &'a [(String, Value)], name: &str) -> Result<&'a Value> {
    let found = owners.iter().find(|(owner, _)| owner == name);
    Ok(&found.with_context(|| format!("no {name} in {owners:?}"))?.1)
}

async fn each_kind_of_write_owns_what_it_changed(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let as_manager = |name: &str| format!("{path}?fieldManager={name}");
    ctx.patch(as_manager("merge"), PatchType::Merge, &json!({"data": {"b": "1"}})).await?.ok()?;
    ctx.patch(as_manager("json"), PatchType::Json, &json!([{"op": "add", "path": "/data/c", "value": "1"}]))
        .await?
        .ok()?;
    ctx.patch(as_manager("strategic"), PatchType::Strategic, &json!({"data": {"d": "1"}})).await?.ok()?;
    let mut whole = ctx.get(&path).await?.ok()?;
    whole["data"]["e"] = json!("1");
    ctx.put(as_manager("update"), &whole).await?.ok()?;
    let now = ctx.apply(&path, "apply", &ctx.config_map("one", json!({"f": "1"}))).await?.ok()?;
    let one = |key: &str| json!({"f:data": {format!("f:{key}"): {}}});
    let wanted = [
        ("apply Apply", one("f")),
        ("json Update", one("c")),
        ("maker Update", json!({"f:data": {".": {}, "f:a": {}}})),
        ("merge Update", one("b")),
        ("strategic Update", one("d")),
        ("update Update", one("e")),
    ];
    assert_eq!(owners(&now), wanted.map(|(name, fields)| (name.to_owned(), fields)));
    Ok(())
}

async fn a_writer_without_a_name_is_called_by_its_user_agent(ctx: Ctx) -> Result<()> {
    let call = ctx.call(Method::POST, ctx.core("configmaps")).header("user-agent", "painter/v1.2 (linux/amd64)");
    let made = call.json(&ctx.config_map("one", json!({"a": "1"}))).send().await?.ok()?;
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "painter");
    Ok(())
}

async fn an_update_takes_ownership_of_changed_fields_only(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1", "b": "1"})).await?;
    let mut whole = ctx.get(&path).await?.ok()?;
    whole["data"]["b"] = json!("2");
    let owners = owners(&ctx.put(format!("{path}?fieldManager=other"), &whole).await?.ok()?);
    assert_eq!(owner(&owners, "maker Update")?, &json!({"f:data": {".": {}, "f:a": {}}}));
    assert_eq!(owner(&owners, "other Update")?, &json!({"f:data": {"f:b": {}}}));
    Ok(())
}

async fn a_field_that_is_removed_has_no_owner(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1", "b": "1"})).await?;
    let patch = json!({"data": {"b": null}});
    let now = ctx.patch(format!("{path}?fieldManager=other"), PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(owners(&now), [("maker Update".to_owned(), json!({"f:data": {".": {}, "f:a": {}}}))]);
    Ok(())
}

async fn a_status_update_owns_under_its_subresource(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let patch = json!({"status": {"observedGeneration": 1}});
    let now = ctx.patch(format!("{path}/status?fieldManager=watcher"), PatchType::Merge, &patch).await?.ok()?;
    let wanted = json!({"f:status": {"f:observedGeneration": {}}});
    assert_eq!(owner(&owners(&now), "watcher Update status")?, &wanted);
    Ok(())
}

async fn managed_fields_can_be_forgotten(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let now = ctx.patch(&path, PatchType::Merge, &json!({"metadata": {"managedFields": [{}]}})).await?.ok()?;
    assert_eq!(now["metadata"]["managedFields"], Value::Null);
    let patch = json!({"data": {"b": "1"}});
    let now = ctx.patch(format!("{path}?fieldManager=late"), PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(now["metadata"]["managedFields"], Value::Null);
    let now = ctx.apply(&path, "apply", &ctx.config_map("one", json!({"c": "1"}))).await?.ok()?;
    let owners = owners(&now);
    assert_eq!(owner(&owners, "before-first-apply Update")?, &json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
    assert_eq!(owner(&owners, "apply Apply")?, &json!({"f:data": {"f:c": {}}}));
    Ok(())
}

async fn nonsense_in_managed_fields_is_ignored(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let before = ctx.get(&path).await?.ok()?;
    let entry =
        json!({"manager": "x", "operation": "Dance", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let patch = json!({"metadata": {"managedFields": [entry]}});
    assert_eq!(ctx.patch(&path, PatchType::Merge, &patch).await?.ok()?, before);
    Ok(())
}

async fn the_list_of_containers_itself_is_not_owned_on_create(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let owned = &ctx.get(path).await?.ok()?["metadata"]["managedFields"][0]["fieldsV1"];
    let containers = &owned["f:spec"]["f:template"]["f:spec"]["f:containers"];
    assert_eq!(containers["."], Value::Null);
    assert_eq!(containers["k:{\"name\":\"b\"}"]["."], json!({}));
    assert_eq!(containers["k:{\"name\":\"a\"}"]["f:ports"]["."], json!({}));
    Ok(())
}

async fn a_patch_that_changes_nothing_keeps_the_version(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let before = ctx.get(&path).await?.ok()?;
    for kind in [PatchType::Merge, PatchType::Strategic] {
        let path = format!("{path}?fieldManager=idle");
        assert_eq!(ctx.patch(path, kind, &json!({"data": {"a": "1"}})).await?.code(200)?, before);
    }
    assert_eq!(ctx.patch(&path, PatchType::Json, &json!([])).await?.code(200)?, before);
    Ok(())
}

async fn a_json_patch_copies_and_moves(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1", "b": "2"})).await?;
    let patch = json!([
        {"op": "copy", "from": "/data/a", "path": "/data/c"},
        {"op": "move", "from": "/data/b", "path": "/data/d"},
    ]);
    let now = ctx.patch(path, PatchType::Json, &patch).await?.ok()?;
    assert_eq!(now["data"], json!({"a": "1", "c": "1", "d": "2"}));
    Ok(())
}

async fn a_json_patch_may_replace_what_is_missing_in_a_map(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let patch = json!([{"op": "replace", "path": "/data/b", "value": "1"}]);
    let now = ctx.patch(path, PatchType::Json, &patch).await?.code(200)?;
    assert_eq!(now["data"], json!({"a": "1", "b": "1"}));
    Ok(())
}

async fn a_json_patch_has_a_largest_number_of_operations(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let many: Vec<_> = (0..10_001).map(|_| json!({"op": "test", "path": "/data/a", "value": "1"})).collect();
    let message = "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001";
    ctx.patch(path, PatchType::Json, &json!(many)).await?.refused_with(413, "RequestEntityTooLarge", message)?;
    Ok(())
}

async fn a_json_patch_may_not_multiply_the_object(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "x".repeat(100_000)})).await?;
    let copies = (0..60).map(|i| json!({"op": "copy", "from": "/data/a", "path": format!("/data/b{i}")}));
    let reply = ctx.patch(path, PatchType::Json, &copies.collect::<Vec<_>>().into()).await?;
    reply.refused(422, "Invalid")?;
    Ok(())
}

async fn a_json_patch_escapes_slashes_in_names(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({})).await?;
    let patch = json!([
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/example.com~1a", "value": "1"},
    ]);
    let now = ctx.patch(path, PatchType::Json, &patch).await?.ok()?;
    assert_eq!(now["metadata"]["annotations"], json!({"example.com/a": "1"}));
    Ok(())
}

async fn a_strategic_patch_may_replace_a_whole_map(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1", "b": "1"})).await?;
    let patch = json!({"data": {"$patch": "replace", "c": "1"}});
    assert_eq!(ctx.patch(path, PatchType::Strategic, &patch).await?.ok()?["data"], json!({"c": "1"}));
    Ok(())
}

async fn a_strategic_patch_deletes_from_a_primitive_list(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("one", json!({}));
    body["metadata"]["finalizers"] = json!(["fleetwright.io/a", "fleetwright.io/b"]);
    ctx.post(ctx.core("configmaps"), &body).await?.code(201)?;
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["fleetwright.io/a"]}});
    let now = ctx.patch(ctx.core("configmaps/one"), PatchType::Strategic, &patch).await?.ok()?;
    assert_eq!(now["metadata"]["finalizers"], json!(["fleetwright.io/b"]));
    let patch = json!({"metadata": {"finalizers": ["fleetwright.io/c"]}});
    let now = ctx.patch(ctx.core("configmaps/one"), PatchType::Strategic, &patch).await?.ok()?;
    assert_eq!(now["metadata"]["finalizers"], json!(["fleetwright.io/c", "fleetwright.io/b"]));
    Ok(())
}

async fn a_strategic_patch_may_order_a_list(ctx: Ctx) -> Result<()> {
    deployed(&ctx).await?;
    let patch = json!({
        "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "three"}],
    });
    let now = pod_spec_patched(&ctx, patch).await?.ok()?;
    assert_eq!(names(&now["spec"]["template"]["spec"]["containers"]), ["c", "b", "a"]);
    Ok(())
}

async fn a_strategic_patch_retains_keys(ctx: Ctx) -> Result<()> {
    deployed(&ctx).await?;
    let volume = json!({"name": "data", "$retainKeys": ["name", "configMap"], "configMap": {"name": "x"}});
    let now = pod_spec_patched(&ctx, json!({"volumes": [volume]})).await?.ok()?;
    let wanted = json!([{"name": "data", "configMap": {"name": "x", "defaultMode": 420}}]);
    assert_eq!(now["spec"]["template"]["spec"]["volumes"], wanted);
    Ok(())
}

async fn a_strategic_patch_needs_the_merge_key(ctx: Ctx) -> Result<()> {
    deployed(&ctx).await?;
    let status = pod_spec_patched(&ctx, json!({"containers": [{"image": "x"}]})).await?.code(500)?;
    let message = "map: map[image:x] does not contain declared merge key: name";
    assert_eq!(status["message"], message);
    Ok(())
}

async fn a_strategic_patch_with_an_unknown_directive_is_refused(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({"a": "1"})).await?;
    let patch = json!({"data": {"$patch": "dance"}});
    let status = ctx.patch(path, PatchType::Strategic, &patch).await?.code(500)?;
    assert_eq!(status["message"], "unknown patch type: dance in map: map[$patch:dance]");
    Ok(())
}

async fn a_strategic_patch_merges_ports_by_their_number(ctx: Ctx) -> Result<()> {
    deployed(&ctx).await?;
    let ports = json!([{"containerPort": 81}, {"containerPort": 80, "name": "http"}]);
    let now = pod_spec_patched(&ctx, json!({"containers": [{"name": "a", "ports": ports}]})).await?.ok()?;
    let wanted = json!([
        {"containerPort": 81, "protocol": "TCP"},
        {"containerPort": 80, "name": "http", "protocol": "TCP"},
    ]);
    assert_eq!(now["spec"]["template"]["spec"]["containers"][0]["ports"], wanted);
    Ok(())
}

async fn a_strategic_patch_sets_null_to_remove(ctx: Ctx) -> Result<()> {
    deployed(&ctx).await?;
    let now = pod_spec_patched(&ctx, json!({"containers": [{"name": "a", "args": null}]})).await?.ok()?;
    let first = &now["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((first["name"].as_str(), &first["args"]), (Some("a"), &Value::Null));
    Ok(())
}

async fn a_strategic_patch_of_a_wrong_type_is_refused(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let reply = ctx.patch(path, PatchType::Strategic, &json!({"spec": {"replicas": "many"}})).await?;
    let message = " \"\" is invalid: patch: Invalid value: \"map[spec:map[replicas:many]]\": unrecognized type: int32";
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_custom_resource_takes_no_strategic_patch(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let reply = ctx.patch(crd.path(&ctx, "/one"), PatchType::Strategic, &json!({"spec": {"a": 1}})).await?;
    let message = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                   application/merge-patch+json, application/apply-patch+yaml";
    reply.refused_with(415, "UnsupportedMediaType", message)?;
    Ok(())
}

async fn a_merge_patch_replaces_a_list_whole(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    let now = ctx.patch(path, PatchType::Merge, &patch).await?.ok()?;
    assert_eq!(names(&now["spec"]["template"]["spec"]["containers"]), ["c"]);
    Ok(())
}

async fn a_merge_patch_of_a_custom_resource_is_validated(ctx: Ctx) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"size": {"type": "integer", "maximum": 3}}});
    let crd = Crd::new(&ctx, spec, json!({"type": "object"})).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"size": 1}))).await?.code(201)?;
    let reply = ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &json!({"spec": {"size": 9}})).await?;
    let message = format!(
        "Widget.{} \"one\" is invalid: spec.size: Invalid value: 9: spec.size in body should be less than or equal to 3",
        crd.group
    );
    reply.refused_with(422, "Invalid", &message)?;
    Ok(())
}

async fn a_patch_may_not_change_the_kind(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({})).await?;
    ctx.patch(path, PatchType::Merge, &json!({"kind": "Secret"})).await?.refused(422, "Invalid")?;
    Ok(())
}

async fn a_patch_may_not_change_the_uid(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({})).await?;
    let reply = ctx.patch(path, PatchType::Merge, &json!({"metadata": {"uid": "other"}})).await?;
    let message = "ConfigMap \"one\" is invalid: metadata.uid: Invalid value: \"other\": field is immutable";
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_patch_with_the_present_version_is_taken(ctx: Ctx) -> Result<()> {
    let path = configured(&ctx, json!({})).await?;
    let version = ctx.get(&path).await?.ok()?["metadata"]["resourceVersion"].clone();
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {"a": "1"}});
    ctx.patch(&path, PatchType::Merge, &patch).await?.code(200)?;
    ctx.patch(&path, PatchType::Merge, &patch).await?.refused(409, "Conflict")?;
    Ok(())
}

async fn a_strict_patch_refuses_an_unknown_field(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let path = format!("{path}?fieldValidation=Strict");
    let reply = ctx.patch(path, PatchType::Merge, &json!({"spec": {"replcas": 1}})).await?;
    let status = reply.refused(422, "Invalid")?;
    let said = status["message"].as_str().unwrap_or_default();
    assert!(said.contains("strict decoding error: unknown field \"spec.replcas\""), "{said}");
    Ok(())
}

async fn a_patch_warns_of_an_unknown_field(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let reply = ctx.patch(path, PatchType::Strategic, &json!({"spec": {"replcas": 1}})).await?;
    assert_eq!(reply.warnings(), ["unknown field \"spec.replcas\""]);
    reply.code(200)?;
    Ok(())
}

async fn a_scale_may_be_patched_and_applied_to_nothing_else(ctx: Ctx) -> Result<()> {
    let path = deployed(&ctx).await?;
    let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 7}]);
    let scale = ctx.patch(format!("{path}/scale"), PatchType::Json, &patch).await?.code(200)?;
    assert_eq!(scale["spec"], json!({"replicas": 7}));
    let patch = json!({"spec": {"replicas": -1}});
    let status = ctx.patch(format!("{path}/scale"), PatchType::Merge, &patch).await?.refused(422, "Invalid")?;
    let said = status["message"].as_str().unwrap_or_default();
    assert!(said.ends_with("spec.replicas: Invalid value: -1: must be greater than or equal to 0"), "{said}");
    Ok(())
}

/// A widget whose `items` are a map by id, whose `tags` are a set, and whose `ports` have a default in their key.
async fn widgets(ctx: &Ctx) -> Result<Crd> {
    let spec = json!({"type": "object", "properties": {
        "items": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "string"}, "size": {"type": "integer"},
            }},
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "ports": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "required": ["port", "protocol"], "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"},
            }},
        },
        "sizes": {"type": "object", "additionalProperties": {"type": "object", "properties": {
            "w": {"type": "integer"}, "h": {"type": "integer"},
        }}},
    }});
    Crd::new(ctx, spec, json!({"type": "object"})).make(ctx).await
}

async fn applied(ctx: &Ctx, crd: &Crd, manager: &str, spec: Value) -> Result<Value> {
    ctx.apply(&crd.path(ctx, "/one"), manager, &crd.widget("one", spec)).await?.ok()
}

async fn an_apply_may_create_a_custom_resource(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    let body = crd.widget("one", json!({"items": [{"id": "x", "size": 1}]}));
    let made = ctx.apply(&crd.path(&ctx, "/one"), "ann", &body).await?.code(201)?;
    let wanted = json!({"f:spec": {"f:items": {"k:{\"id\":\"x\"}": {".": {}, "f:id": {}, "f:size": {}}}}});
    assert_eq!(owner(&owners(&made), "ann Apply")?, &wanted);
    Ok(())
}

async fn an_apply_removes_an_item_that_it_alone_had(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    applied(&ctx, &crd, "ann", json!({"items": [{"id": "x"}, {"id": "y"}]})).await?;
    applied(&ctx, &crd, "bob", json!({"items": [{"id": "y"}, {"id": "z"}]})).await?;
    let now = applied(&ctx, &crd, "ann", json!({"items": []})).await?;
    assert_eq!(now["spec"]["items"], json!([{"id": "y"}, {"id": "z"}]));
    Ok(())
}

async fn an_apply_of_a_set_adds_and_removes_its_own_values(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    applied(&ctx, &crd, "ann", json!({"tags": ["a", "b"]})).await?;
    applied(&ctx, &crd, "bob", json!({"tags": ["b", "c"]})).await?;
    let now = applied(&ctx, &crd, "ann", json!({"tags": ["d"]})).await?;
    let mut tags: Vec<_> = now["spec"]["tags"].as_array().context("tags")?.iter().filter_map(Value::as_str).collect();
    tags.sort_unstable();
    assert_eq!(tags, ["b", "c", "d"]);
    Ok(())
}

async fn an_apply_may_own_a_nested_map_by_entry(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    applied(&ctx, &crd, "ann", json!({"sizes": {"a": {"w": 1}}})).await?;
    let now = applied(&ctx, &crd, "bob", json!({"sizes": {"a": {"h": 2}, "b": {"w": 3}}})).await?;
    assert_eq!(now["spec"]["sizes"], json!({"a": {"w": 1, "h": 2}, "b": {"w": 3}}));
    let now = applied(&ctx, &crd, "ann", json!({"sizes": {}})).await?;
    assert_eq!(now["spec"]["sizes"], json!({"a": {"h": 2}, "b": {"w": 3}}));
    Ok(())
}

async fn an_apply_that_defaults_a_key_finds_its_item_again(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    applied(&ctx, &crd, "ann", json!({"ports": [{"port": 80, "name": "http"}]})).await?;
    let now = applied(&ctx, &crd, "bob", json!({"ports": [{"port": 80, "protocol": "UDP"}]})).await?;
    let wanted = json!([{"port": 80, "protocol": "TCP", "name": "http"}, {"port": 80, "protocol": "UDP"}]);
    assert_eq!(now["spec"]["ports"], wanted);
    let now = applied(&ctx, &crd, "ann", json!({"ports": [{"port": 80, "name": "web"}]})).await?;
    assert_eq!(now["spec"]["ports"][0]["name"], "web");
    Ok(())
}

async fn a_forced_apply_of_a_list_takes_its_items(ctx: Ctx) -> Result<()> {
    let crd = widgets(&ctx).await?;
    applied(&ctx, &crd, "ann", json!({"items": [{"id": "x", "size": 1}]})).await?;
    let body = crd.widget("one", json!({"items": [{"id": "x", "size": 2}]}));
    let path = crd.path(&ctx, "/one");
    let message = "Apply failed with 1 conflict: conflict with \"ann\": .spec.items[id=\"x\"].size";
    ctx.apply(&path, "bob", &body).await?.refused_with(409, "Conflict", message)?;
    let now = ctx.apply(&format!("{path}?force=true"), "bob", &body).await?.ok()?;
    let owners = owners(&now);
    let shared = json!({"f:spec": {"f:items": {"k:{\"id\":\"x\"}": {".": {}, "f:id": {}}}}});
    assert_eq!(owner(&owners, "ann Apply")?, &shared);
    Ok(())
}
