//! How custom objects are served: subresources, columns, versions, selectors.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{cause, invalid, with_properties};
use crate::{Case, Crd, Ctx, PatchType, eventually};

pub(super) fn cases() -> Vec<Case> {
    cases!["crds";
        a_custom_status_is_written_through_its_subresource_only,
        the_generation_of_a_custom_object_follows_its_spec,
        without_the_subresource_a_status_is_a_field_like_others,
        a_scale_shows_replicas_and_selector,
        a_scale_without_replicas_is_an_error,
        a_scale_changes_the_replicas,
        a_scale_is_never_negative,
        a_subresource_that_is_not_enabled_is_not_found,
        printer_columns_make_a_table,
        a_table_without_columns_shows_the_age,
        an_object_written_in_one_version_reads_in_another,
        a_field_that_the_stored_version_does_not_know_is_lost,
        a_deprecated_version_warns,
        a_version_that_is_not_served_is_not_found,
        selectable_fields_select,
        other_fields_do_not_select,
        selectable_fields_select_in_watches,
        strategic_patches_of_custom_objects_are_refused,
        a_cluster_scoped_resource_has_no_namespaces,
    ]
}

async fn a_custom_status_is_written_through_its_subresource_only(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({"a": 1}));
    body["status"] = json!({"early": true});
    let mut made = ctx.post(crd.path(&ctx, ""), &body).await?.code(201)?;
    assert_eq!(made["status"], Value::Null);
    made["spec"]["a"] = json!(2);
    made["status"] = json!({"main": true});
    let mut put = ctx.put(crd.path(&ctx, "/one"), &made).await?.code(200)?;
    assert_eq!((&put["spec"], &put["status"]), (&json!({"a": 2}), &Value::Null));
    put["spec"]["a"] = json!(3);
    put["metadata"]["labels"] = json!({"x": "y"});
    put["status"] = json!({"own": true});
    let put = ctx.put(crd.path(&ctx, "/one/status"), &put).await?.code(200)?;
    assert_eq!((&put["spec"], &put["status"]), (&json!({"a": 2}), &json!({"own": true})));
    assert_eq!(put["metadata"]["labels"], Value::Null);
    Ok(())
}

async fn the_generation_of_a_custom_object_follows_its_spec(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": 1}))).await?.code(201)?;
    let steps = [
        ("/one", json!({"metadata": {"labels": {"x": "y"}}}), 1),
        ("/one", json!({"spec": {"a": 2}}), 2),
        ("/one/status", json!({"status": {"b": 1}}), 2),
        ("/one", json!({"status": {"b": 2}}), 2),
        ("/one", json!({"spec": null}), 3),
    ];
    for (path, change, generation) in steps {
        let now = ctx.patch(crd.path(&ctx, path), PatchType::Merge, &change).await?.code(200)?;
        assert_eq!(now["metadata"]["generation"], generation, "after {change}");
    }
    Ok(())
}

async fn without_the_subresource_a_status_is_a_field_like_others(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["subresources"] = Value::Null;
    let crd = crd.make(&ctx).await?;
    let mut body = crd.widget("one", json!({}));
    body["status"] = json!({"a": 1});
    let made = ctx.post(crd.path(&ctx, ""), &body).await?.code(201)?;
    assert_eq!(made["status"], json!({"a": 1}));
    let change = json!({"status": {"a": 2}});
    let now = ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &change).await?.code(200)?;
    assert_eq!((&now["status"], &now["metadata"]["generation"]), (&json!({"a": 2}), &json!(2)));
    assert_eq!(ctx.get(crd.path(&ctx, "/one/status")).await?.status, 404);
    Ok(())
}

/// A definition with a scale subresource, served.
async fn scalable(ctx: &Ctx) -> Result<Crd> {
    let fields = json!({"type": "object", "properties": {"n": {"type": "integer"}, "selector": {"type": "string"}}});
    let mut crd = Crd::new(ctx, fields.clone(), fields);
    crd.version()["subresources"]["scale"] = json!({
        "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.selector",
    });
    crd.make(ctx).await
}

async fn a_scale_shows_replicas_and_selector(ctx: Ctx) -> Result<()> {
    let crd = scalable(&ctx).await?;
    let made = ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"n": 3}))).await?.code(201)?;
    let status = json!({"status": {"n": 2, "selector": "a=b"}});
    ctx.patch(crd.path(&ctx, "/one/status"), PatchType::Merge, &status).await?.code(200)?;
    let scale = ctx.get(crd.path(&ctx, "/one/scale")).await?.code(200)?;
    assert_eq!((&scale["apiVersion"], &scale["kind"]), (&json!("autoscaling/v1"), &json!("Scale")));
    assert_eq!(scale["spec"], json!({"replicas": 3}));
    assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=b"}));
    assert_eq!(scale["metadata"]["uid"], made["metadata"]["uid"]);
    let mut fields: Vec<_> = scale["metadata"].as_object().into_iter().flat_map(|m| m.keys()).collect();
    fields.sort();
    assert_eq!(fields, ["creationTimestamp", "name", "namespace", "resourceVersion", "uid"]);
    Ok(())
}

async fn a_scale_without_replicas_is_an_error(ctx: Ctx) -> Result<()> {
    let crd = scalable(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let message = "Internal error occurred: the spec replicas field \".spec.n\" does not exist";
    ctx.get(crd.path(&ctx, "/one/scale")).await?.refused_with(500, "InternalError", message)?;
    Ok(())
}

async fn a_scale_changes_the_replicas(ctx: Ctx) -> Result<()> {
    let crd = scalable(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"n": 3}))).await?.code(201)?;
    let mut scale = ctx.get(crd.path(&ctx, "/one/scale")).await?.code(200)?;
    scale["spec"]["replicas"] = json!(5);
    let put = ctx.put(crd.path(&ctx, "/one/scale"), &scale).await?.code(200)?;
    assert_eq!(put["spec"], json!({"replicas": 5}));
    let now = ctx.get(crd.path(&ctx, "/one")).await?.code(200)?;
    assert_eq!((&now["spec"]["n"], &now["metadata"]["generation"]), (&json!(5), &json!(2)));
    let message = format!(
        "Operation cannot be fulfilled on widgets.{} \"one\": the object has been modified; please apply your changes to the \
         latest version and try again",
        crd.group
    );
    ctx.put(crd.path(&ctx, "/one/scale"), &scale).await?.refused_with(409, "Conflict", &message)?;
    let seven = json!({"spec": {"replicas": 7}});
    let patched = ctx.patch(crd.path(&ctx, "/one/scale"), PatchType::Merge, &seven).await?.code(200)?;
    assert_eq!(patched["spec"], json!({"replicas": 7}));
    Ok(())
}

async fn a_scale_is_never_negative(ctx: Ctx) -> Result<()> {
    let crd = scalable(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"n": 3}))).await?.code(201)?;
    let change = json!({"spec": {"replicas": -1}});
    let reply = ctx.patch(crd.path(&ctx, "/one/scale"), PatchType::Merge, &change).await?;
    let wanted = [cause("Invalid", ".spec.n", "Invalid value: -1: should be a non-negative integer")];
    invalid(reply, &format!("Widget.{} \"one\"", crd.group), &wanted)
}

async fn a_subresource_that_is_not_enabled_is_not_found(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let message = format!("widgets.{} \"one\" not found", crd.group);
    ctx.get(crd.path(&ctx, "/one/scale")).await?.refused_with(404, "NotFound", &message)?;
    Ok(())
}

/// Asks for a Table.
pub(super) async fn table(ctx: &Ctx, path: impl Into<String>) -> Result<Value> {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = ctx.call(http::Method::GET, path).header("accept", accept).send().await?.code(200)?;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    Ok(table)
}

/// The names of a Table's columns.
pub(super) fn headings(table: &Value) -> Vec<&str> {
    table["columnDefinitions"].as_array().into_iter().flatten().filter_map(|column| column["name"].as_str()).collect()
}

async fn printer_columns_make_a_table(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    crd.version()["additionalPrinterColumns"] = json!([
        {"name": "N", "type": "integer", "jsonPath": ".spec.n", "description": "how many", "priority": 1},
        column("S", "string", ".spec.s"),
        column("B", "boolean", ".spec.b"),
        column("D", "date", ".spec.d"),
        column("All", "string", ".spec.l[*]"),
        column("First", "string", ".spec.l[0]"),
        column("O", "string", ".spec.o"),
        column("Label", "string", ".metadata.labels.app\\.x"),
        {"name": "F", "type": "number", "format": "float", "jsonPath": ".spec.f"},
    ]);
    let crd = crd.make(&ctx).await?;
    let spec = json!({
        "n": 3, "s": "text", "b": true, "d": "2019-06-01T00:00:00Z", "l": ["a", "b"], "o": {"k": "v"}, "f": 1.5,
    });
    let mut body = crd.widget("one", spec);
    body["metadata"]["labels"] = json!({"app.x": "v"});
    ctx.post(crd.path(&ctx, ""), &body).await?.code(201)?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("two", json!({}))).await?.code(201)?;
    let table = table(&ctx, crd.path(&ctx, "")).await?;
    assert_eq!(headings(&table), ["Name", "N", "S", "B", "D", "All", "First", "O", "Label", "F"]);
    let number = json!({"name": "N", "type": "integer", "format": "", "description": "how many", "priority": 1});
    assert_eq!(table["columnDefinitions"][1], number);
    let described = "Custom resource definition column (in JSONPath format): .spec.s";
    assert_eq!(table["columnDefinitions"][2]["description"], described);
    let mut cells = table["rows"][0]["cells"].clone();
    assert!(cells[4].take().as_str().is_some_and(|age| age.contains('y')), "{table}");
    assert_eq!(cells, json!(["one", 3, "text", true, null, "a", "a", "{\"k\":\"v\"}", "v", 1.5]));
    let empty = json!(["two", null, null, null, null, null, null, null, null, null]);
    assert_eq!(table["rows"][1]["cells"], empty);
    assert_eq!(table["rows"][1]["object"]["kind"], "PartialObjectMetadata");
    Ok(())
}

async fn a_table_without_columns_shows_the_age(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let table = table(&ctx, crd.path(&ctx, "/one?includeObject=Object")).await?;
    assert_eq!(headings(&table), ["Name", "Age"]);
    assert_eq!(table["columnDefinitions"][1]["type"], "date");
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["object"]["kind"]), (&json!("one"), &json!("Widget")));
    Ok(())
}

/// `v1`, stored, and `v1beta1`, which knows a field more and is deprecated; `v1alpha1` has a warning of its own and `v2` is not
/// served.
async fn versioned(ctx: &Ctx) -> Result<Crd> {
    let mut crd = with_properties(ctx, json!({"a": {"type": "string"}}));
    let mut beta = crd.version().clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    let mut next = beta.clone();
    next["name"] = json!("v2");
    next["served"] = json!(false);
    beta["deprecated"] = json!(true);
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["b"] = json!({"type": "string"});
    let mut alpha = beta.clone();
    alpha["name"] = json!("v1alpha1");
    alpha["deprecationWarning"] = json!("use another one");
    if let Some(versions) = crd.body["spec"]["versions"].as_array_mut() {
        versions.extend([beta, alpha, next]);
    }
    let crd = crd.make(ctx).await?;
    eventually("all versions are served", async || {
        ctx.get(crd.path(ctx, "").replace("/v1/", "/v1alpha1/")).await?.ok()
    })
    .await?;
    Ok(crd)
}

async fn an_object_written_in_one_version_reads_in_another(ctx: Ctx) -> Result<()> {
    let crd = versioned(&ctx).await?;
    let beta = crd.path(&ctx, "").replace("/v1/", "/v1beta1/");
    let mut body = crd.widget("one", json!({"a": "1"}));
    body["apiVersion"] = json!(format!("{}/v1beta1", crd.group));
    let made = ctx.post(&beta, &body).await?.code(201)?;
    assert_eq!(made["apiVersion"], body["apiVersion"]);
    let read = ctx.get(crd.path(&ctx, "/one")).await?.code(200)?;
    assert_eq!(read["apiVersion"], format!("{}/v1", crd.group));
    assert_eq!(read["spec"], json!({"a": "1"}));
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert_eq!(ctx.get(crd.definition()).await?.ok()?["status"]["storedVersions"], json!(["v1"]));
    let group = ctx.get(format!("/apis/{}", crd.group)).await?.code(200)?;
    let versions: Vec<_> = group["versions"].as_array().into_iter().flatten().map(|v| v["version"].clone()).collect();
    assert_eq!(versions, ["v1", "v1beta1", "v1alpha1"]);
    assert_eq!(group["preferredVersion"]["version"], "v1");
    Ok(())
}

async fn a_field_that_the_stored_version_does_not_know_is_lost(ctx: Ctx) -> Result<()> {
    let crd = versioned(&ctx).await?;
    let beta = crd.path(&ctx, "").replace("/v1/", "/v1beta1/");
    let mut body = crd.widget("one", json!({"a": "1", "b": "2"}));
    body["apiVersion"] = json!(format!("{}/v1beta1", crd.group));
    ctx.post(&beta, &body).await?.code(201)?;
    assert_eq!(ctx.get(crd.path(&ctx, "/one")).await?.code(200)?["spec"], json!({"a": "1"}));
    assert_eq!(ctx.get(format!("{beta}/one")).await?.code(200)?["spec"], json!({"a": "1"}));
    Ok(())
}

async fn a_deprecated_version_warns(ctx: Ctx) -> Result<()> {
    let crd = versioned(&ctx).await?;
    let path = |version: &str| crd.path(&ctx, "").replace("/v1/", &format!("/{version}/"));
    let group = &crd.group;
    let warning = format!("{group}/v1beta1 Widget is deprecated; use {group}/v1 Widget");
    assert_eq!(ctx.get(path("v1beta1")).await?.warnings(), [warning]);
    assert_eq!(ctx.get(path("v1alpha1")).await?.warnings(), ["use another one"]);
    assert_eq!(ctx.get(path("v1")).await?.warnings(), [] as [&str; 0]);
    Ok(())
}

async fn a_version_that_is_not_served_is_not_found(ctx: Ctx) -> Result<()> {
    let crd = versioned(&ctx).await?;
    for path in [crd.path(&ctx, "").replace("/v1/", "/v2/"), format!("/apis/{}/v2", crd.group)] {
        let reply = ctx.get(path).await?;
        assert_eq!((reply.status, &*reply.text()), (404, "404 page not found\n"));
    }
    Ok(())
}

/// A definition with selectable fields and three widgets.
async fn selectable(ctx: &Ctx) -> Result<Crd> {
    let properties = json!({"a": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}});
    let mut crd = with_properties(ctx, properties);
    crd.version()["selectableFields"] =
        [".spec.a", ".spec.n", ".spec.b"].iter().map(|path| json!({"jsonPath": path})).collect();
    let crd = crd.make(ctx).await?;
    let specs = [json!({"a": "x", "n": 1, "b": true}), json!({"a": "y", "n": 2}), json!({})];
    for (n, spec) in specs.into_iter().enumerate() {
        ctx.post(crd.path(ctx, ""), &crd.widget(&format!("w{n}"), spec)).await?.code(201)?;
    }
    Ok(crd)
}

async fn selectable_fields_select(ctx: Ctx) -> Result<()> {
    let crd = selectable(&ctx).await?;
    let selections = [
        ("spec.a%3Dx", vec!["w0"]),
        ("spec.n%3D2", vec!["w1"]),
        ("spec.b%3Dtrue", vec!["w0"]),
        ("spec.a%21%3Dx", vec!["w1", "w2"]),
        ("spec.a%3D", vec!["w2"]),
        ("spec.a%3Dy,metadata.name%3Dw1", vec!["w1"]),
    ];
    for (selector, wanted) in selections {
        let list = ctx.get(crd.path(&ctx, &format!("?fieldSelector={selector}"))).await?.code(200)?;
        let names: Vec<_> =
            list["items"].as_array().into_iter().flatten().map(|w| w["metadata"]["name"].clone()).collect();
        assert_eq!(names, wanted, "{selector}");
    }
    Ok(())
}

async fn other_fields_do_not_select(ctx: Ctx) -> Result<()> {
    let crd = selectable(&ctx).await?;
    let reply = ctx.get(crd.path(&ctx, "?fieldSelector=spec.zz%3D1")).await?;
    reply.refused_with(400, "BadRequest", "field label not supported: spec.zz")?;
    Ok(())
}

async fn selectable_fields_select_in_watches(ctx: Ctx) -> Result<()> {
    let crd = selectable(&ctx).await?;
    let mut watch = ctx.watch(&crd.path(&ctx, "?fieldSelector=spec.a%3Dx")).await?;
    assert_eq!(watch.names(1).await?, ["ADDED w0"]);
    for (name, value) in [("w1", "x"), ("w0", "z")] {
        let change = json!({"spec": {"a": value}});
        ctx.patch(crd.path(&ctx, &format!("/{name}")), PatchType::Merge, &change).await?.code(200)?;
    }
    assert_eq!(watch.names(2).await?, ["ADDED w1", "DELETED w0"]);
    Ok(())
}

async fn strategic_patches_of_custom_objects_are_refused(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let reply = ctx.patch(crd.path(&ctx, "/one"), PatchType::Strategic, &json!({})).await?;
    let message = "the body of the request was in an unknown format - accepted media types include: \
                   application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    reply.refused_with(415, "UnsupportedMediaType", message)?;
    Ok(())
}

async fn a_cluster_scoped_resource_has_no_namespaces(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["scope"] = json!("Cluster");
    let path = format!("/apis/{}/v1/widgets", crd.group);
    ctx.post(super::DEFINITIONS, &crd.body).await?.code(201)?;
    eventually("it is served", async || ctx.get(&path).await?.ok()).await?;
    let made = ctx.post(&path, &crd.widget("one", json!({}))).await?.code(201)?;
    ensure!(made["metadata"].get("namespace").is_none(), "{made}");
    ctx.get(format!("{path}/one")).await?.code(200)?;
    ctx.get(crd.path(&ctx, "/one")).await?.code(404)?;
    Ok(())
}
