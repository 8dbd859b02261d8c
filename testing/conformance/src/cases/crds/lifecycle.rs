//! From a definition's first condition to the end of its last instance.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{DEFINITIONS, cause, has_condition, invalid, with_a};
use crate::{Case, Crd, Ctx, PatchType, eventually};

pub(super) fn cases() -> Vec<Case> {
    cases!["crds";
        a_new_definition_is_completed_with_defaults,
        a_definition_becomes_established,
        the_status_of_a_definition_is_not_written_with_it,
        short_names_and_categories_are_discovered,
        names_that_are_taken_are_not_accepted,
        names_that_become_free_are_accepted,
        the_scope_group_and_kind_of_a_definition_are_fixed,
        a_stored_version_may_not_go,
        a_changed_schema_is_served,
        deleting_a_definition_deletes_its_objects,
        a_definition_waits_for_finalizers_of_its_objects,
        a_definition_can_come_back,
    ]
}

async fn a_new_definition_is_completed_with_defaults(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["names"] = json!({"plural": "widgets", "kind": "Widget"});
    let made = ctx.post(DEFINITIONS, &crd.body).await?.code(201)?;
    let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
    assert_eq!(made["spec"]["names"], names);
    assert_eq!(made["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(made["metadata"]["generation"], 1);
    let status = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]});
    assert_eq!(made["status"], status);
    Ok(())
}

/// The conditions of a definition with which all is well.
const ACCEPTED: [&str; 4] = ["NamesAccepted", "True", "NoConflicts", "no conflicts found"];
const ESTABLISHED: [&str; 4] = ["Established", "True", "InitialNamesAccepted", "the initial names have been accepted"];

async fn a_definition_becomes_established(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    has_condition(&ctx, &crd.definition(), ACCEPTED).await?;
    has_condition(&ctx, &crd.definition(), ESTABLISHED).await?;
    let now = ctx.get(crd.definition()).await?.ok()?;
    assert_eq!(now["status"]["acceptedNames"], now["spec"]["names"]);
    Ok(())
}

async fn the_status_of_a_definition_is_not_written_with_it(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let before = ctx.get(crd.definition()).await?.ok()?;
    let change = json!({"metadata": {"labels": {"a": "b"}}, "status": {"conditions": null, "storedVersions": ["v9"]}});
    let after = ctx.patch(crd.definition(), PatchType::Merge, &change).await?.code(200)?;
    assert_eq!(after["status"], before["status"]);
    assert_eq!(after["metadata"]["generation"], 1);
    Ok(())
}

async fn short_names_and_categories_are_discovered(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["names"]["shortNames"] = json!(["wi", "wid"]);
    crd.body["spec"]["names"]["categories"] = json!(["all", "mine"]);
    let crd = crd.make(&ctx).await?;
    let list = eventually("discovery", async || ctx.get(format!("/apis/{}/v1", crd.group)).await?.ok()).await?;
    let mut main = list["resources"][0].clone();
    let hash = main["storageVersionHash"].take();
    assert!(hash.as_str().is_some_and(|hash| hash.len() == 12), "{hash}");
    let wanted = json!({
        "name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget",
        "verbs": ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        "shortNames": ["wi", "wid"], "categories": ["all", "mine"], "storageVersionHash": null,
    });
    assert_eq!(main, wanted);
    let status = json!({
        "name": "widgets/status", "singularName": "", "namespaced": true, "kind": "Widget",
        "verbs": ["get", "patch", "update"],
    });
    assert_eq!(list["resources"][1], status);
    Ok(())
}

/// Another definition in the same group with the same kind.
fn rival(crd: &Crd) -> Value {
    let mut rival = crd.body.clone();
    rival["metadata"]["name"] = json!(format!("gadgets.{}", crd.group));
    rival["spec"]["names"] = json!({
        "plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "GadgetList",
    });
    rival
}

async fn names_that_are_taken_are_not_accepted(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let rival = rival(&crd);
    ctx.post(DEFINITIONS, &rival).await?.code(201)?;
    let path = format!("{DEFINITIONS}/gadgets.{}", crd.group);
    let conflict = ["NamesAccepted", "False", "KindConflict", "\"Widget\" is already in use"];
    has_condition(&ctx, &path, conflict).await?;
    has_condition(&ctx, &path, ["Established", "False", "NotAccepted", "not all names are accepted"]).await?;
    let names = &ctx.get(&path).await?.ok()?["status"]["acceptedNames"];
    assert_eq!(*names, json!({"plural": "gadgets", "singular": "gadget", "kind": "", "listKind": "GadgetList"}));
    let reply = ctx.get(crd.path(&ctx, "").replace("widgets", "gadgets")).await?;
    assert_eq!((reply.status, &*reply.text()), (404, "404 page not found\n"));
    Ok(())
}

async fn names_that_become_free_are_accepted(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(DEFINITIONS, &rival(&crd)).await?.code(201)?;
    let path = format!("{DEFINITIONS}/gadgets.{}", crd.group);
    has_condition(&ctx, &path, ["NamesAccepted", "False", "KindConflict", "\"Widget\" is already in use"]).await?;
    ctx.delete(crd.definition()).await?.code(200)?;
    has_condition(&ctx, &path, ACCEPTED).await?;
    has_condition(&ctx, &path, ESTABLISHED).await
}

async fn the_scope_group_and_kind_of_a_definition_are_fixed(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let changes = [
        (json!({"spec": {"scope": "Cluster"}}), "spec.scope", "Cluster"),
        (json!({"spec": {"names": {"kind": "Other"}}}), "spec.names.kind", "Other"),
        (json!({"spec": {"group": "other.io"}}), "spec.group", "other.io"),
    ];
    let object = format!("CustomResourceDefinition.apiextensions.k8s.io \"widgets.{}\"", crd.group);
    for (change, field, value) in changes {
        let reply = ctx.patch(crd.definition(), PatchType::Merge, &change).await?;
        let message = format!("Invalid value: \"{value}\": field is immutable");
        invalid(reply, &object, &[cause("Invalid", field, &message)])?;
    }
    Ok(())
}

async fn a_stored_version_may_not_go(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let change = json!([{"op": "replace", "path": "/spec/versions/0/name", "value": "v2"}]);
    let reply = ctx.patch(crd.definition(), PatchType::Json, &change).await?;
    let message = "Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in \
                   spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from \
                   status.storedVersions";
    let object = format!("CustomResourceDefinition.apiextensions.k8s.io \"widgets.{}\"", crd.group);
    invalid(reply, &object, &[cause("Invalid", "status.storedVersions[0]", message)])
}

async fn a_changed_schema_is_served(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string"})).make(&ctx).await?;
    let change = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/b",
        "value": {"type": "integer"},
    }]);
    let now = ctx.patch(crd.definition(), PatchType::Json, &change).await?.code(200)?;
    assert_eq!(now["metadata"]["generation"], 2);
    eventually("the new schema", async || {
        let body = crd.widget("one", json!({"b": 5}));
        let made = ctx.post(crd.path(&ctx, "?dryRun=All"), &body).await?.code(201)?;
        ensure!(made["spec"] == json!({"b": 5}), "{made}");
        Ok(())
    })
    .await
}

/// Waits until the definition is deleted and its resource is no longer served.
async fn gone(ctx: &Ctx, crd: &Crd) -> Result<()> {
    eventually("the definition is gone", async || {
        let message = format!("customresourcedefinitions.apiextensions.k8s.io \"widgets.{}\" not found", crd.group);
        ctx.get(crd.definition()).await?.refused_with(404, "NotFound", &message)?;
        for path in [crd.path(ctx, ""), format!("/apis/{}", crd.group), format!("/apis/{}/v1", crd.group)] {
            let reply = ctx.get(path).await?;
            ensure!(
                reply.status == 404 && reply.text() == "404 page not found\n",
                "{}: {}",
                reply.request,
                reply.text()
            );
        }
        Ok(())
    })
    .await
}

async fn deleting_a_definition_deletes_its_objects(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let mut watch = ctx.watch(&crd.path(&ctx, "")).await?;
    assert_eq!(watch.names(1).await?, ["ADDED one"]);
    let deleted = ctx.delete(crd.definition()).await?.code(200)?;
    assert_eq!(deleted["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let (_, object) = watch.until(|kind, _| kind == "DELETED").await?;
    assert_eq!(object["metadata"]["name"], "one");
    gone(&ctx, &crd).await
}

async fn a_definition_waits_for_finalizers_of_its_objects(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({}));
    body["metadata"]["finalizers"] = json!(["fleetwright.io/hold"]);
    ctx.post(crd.path(&ctx, ""), &body).await?.code(201)?;
    ctx.delete(crd.definition()).await?.code(200)?;
    let terminating = ["Terminating", "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress"];
    has_condition(&ctx, &crd.definition(), terminating).await?;
    eventually("the object is going", async || {
        let one = ctx.get(crd.path(&ctx, "/one")).await?.ok()?;
        ensure!(one["metadata"]["deletionTimestamp"].is_string(), "{one}");
        Ok(())
    })
    .await?;
    let message = format!(
        "widgets.{} \"two\" is forbidden: create not allowed while custom resource definition is terminating",
        crd.group
    );
    let reply = ctx.post(crd.path(&ctx, ""), &crd.widget("two", json!({}))).await?;
    reply.refused_with(403, "Forbidden", &message)?;
    let release = json!({"metadata": {"finalizers": null}});
    ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &release).await?.code(200)?;
    gone(&ctx, &crd).await
}

async fn a_definition_can_come_back(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    ctx.delete(crd.definition()).await?.code(200)?;
    gone(&ctx, &crd).await?;
    let crd = crd.make(&ctx).await?;
    let list = ctx.get(crd.path(&ctx, "")).await?.code(200)?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}
