//! Watches: their start, their events, and their end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, PatchType};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["watches";
        a_watch_from_a_version_reports_what_came_after,
        a_watch_without_a_version_begins_with_what_is_there,
        a_watch_from_zero_begins_with_what_is_there,
        events_carry_whole_objects_with_their_kind,
        a_deletion_carries_the_last_state_and_a_newer_version,
        an_object_that_begins_to_match_is_added_and_one_that_ceases_is_deleted,
        a_field_selector_narrows_a_watch_to_one_object,
        a_watch_over_all_namespaces_sees_each,
        initial_events_end_with_a_marked_bookmark,
        initial_events_need_a_version_match,
        initial_events_are_for_watches_only,
        a_version_match_is_refused_for_a_plain_watch,
        a_watch_ends_when_its_time_is_over,
        a_watch_from_a_forgotten_version_is_gone(disruptive),
        two_watchers_see_one_order,
        a_dry_run_and_an_unchanged_update_send_no_event,
        a_status_change_is_seen_by_watchers,
        a_finalizer_shows_as_a_modification_before_the_deletion,
        a_watch_of_metadata_only_sends_metadata_only,
        a_watch_through_the_old_path_works,
        a_broken_version_is_refused_before_the_stream_begins,
        custom_resources_are_watched_alike,
    ]
}

async fn make(ctx: &Ctx, name: &str, labels: Value) -> Result<Value> {
    let mut body = ctx.config_map(name, json!({}));
    body["metadata"]["labels"] = labels;
    ctx.post(ctx.core("configmaps"), &body).await?.code(201)
}

async fn set(ctx: &Ctx, name: &str, patch: Value) -> Result<Value> {
    ctx.patch(ctx.core(&format!("configmaps/{name}")), PatchType::Merge, &patch).await?.code(200)
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

/// The query that keeps the root certificate out of the picture.
const OURS: &str = "labelSelector=ours";

async fn a_watch_from_a_version_reports_what_came_after(ctx: Ctx) -> Result<()> {
    make(&ctx, "before", json!({"ours": ""})).await?;
    let list = ctx.get(ctx.core(&format!("configmaps?{OURS}"))).await?.ok()?;
    make(&ctx, "one", json!({"ours": ""})).await?;
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}&resourceVersion={}", version(&list)))).await?;
    set(&ctx, "one", json!({"data": {"a": "1"}})).await?;
    ctx.delete(ctx.core("configmaps/before")).await?.ok()?;
    assert_eq!(watch.names(3).await?, ["ADDED one", "MODIFIED one", "DELETED before"]);
    Ok(())
}

async fn a_watch_without_a_version_begins_with_what_is_there(ctx: Ctx) -> Result<()> {
    make(&ctx, "b", json!({"ours": ""})).await?;
    make(&ctx, "a", json!({"ours": ""})).await?;
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}"))).await?;
    assert_eq!(watch.names(2).await?, ["ADDED a", "ADDED b"]);
    make(&ctx, "c", json!({"ours": ""})).await?;
    assert_eq!(watch.names(1).await?, ["ADDED c"]);
    Ok(())
}

async fn a_watch_from_zero_begins_with_what_is_there(ctx: Ctx) -> Result<()> {
    make(&ctx, "a", json!({"ours": ""})).await?;
    // So that what answers from a cache has caught up.
    ctx.get(ctx.core("configmaps")).await?.ok()?;
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}&resourceVersion=0"))).await?;
    assert_eq!(watch.names(1).await?, ["ADDED a"]);
    Ok(())
}

async fn events_carry_whole_objects_with_their_kind(ctx: Ctx) -> Result<()> {
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}"))).await?;
    let made = make(&ctx, "a", json!({"ours": ""})).await?;
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "ADDED");
    assert_eq!(object, made);
    Ok(())
}

async fn a_deletion_carries_the_last_state_and_a_newer_version(ctx: Ctx) -> Result<()> {
    make(&ctx, "a", json!({"ours": ""})).await?;
    let last = set(&ctx, "a", json!({"data": {"k": "v"}})).await?;
    let path = ctx.core(&format!("configmaps?{OURS}&resourceVersion={}", version(&last)));
    let mut watch = ctx.watch(&path).await?;
    ctx.delete(ctx.core("configmaps/a")).await?.ok()?;
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "DELETED");
    assert_eq!(object["data"], last["data"]);
    assert_eq!(object["metadata"]["uid"], last["metadata"]["uid"]);
    ensure!(version(&object).parse::<u64>()? > version(&last).parse()?, "{object}");
    Ok(())
}

async fn an_object_that_begins_to_match_is_added_and_one_that_ceases_is_deleted(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "a", json!({"tier": "one"})).await?;
    let path = ctx.core(&format!("configmaps?labelSelector=tier%3Dtwo&resourceVersion={}", version(&made)));
    let mut watch = ctx.watch(&path).await?;
    set(&ctx, "a", json!({"metadata": {"labels": {"tier": "two"}}})).await?;
    set(&ctx, "a", json!({"data": {"k": "v"}})).await?;
    let left = set(&ctx, "a", json!({"metadata": {"labels": {"tier": "three"}}})).await?;
    assert_eq!(watch.names(2).await?, ["ADDED a", "MODIFIED a"]);
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "DELETED");
    assert_eq!(object["metadata"]["labels"]["tier"], "two");
    assert_eq!(version(&object), version(&left));
    Ok(())
}

async fn a_field_selector_narrows_a_watch_to_one_object(ctx: Ctx) -> Result<()> {
    let mut watch = ctx.watch(&ctx.core("configmaps?fieldSelector=metadata.name%3Db")).await?;
    for name in ["a", "b", "c"] {
        make(&ctx, name, json!({})).await?;
    }
    set(&ctx, "b", json!({"data": {"k": "v"}})).await?;
    assert_eq!(watch.names(2).await?, ["ADDED b", "MODIFIED b"]);
    Ok(())
}

async fn a_watch_over_all_namespaces_sees_each(ctx: Ctx) -> Result<()> {
    let other = ctx.unique("other");
    ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": other}})).await?.ok()?;
    let mut watch = ctx.watch(&format!("/api/v1/configmaps?labelSelector=all%3D{}", ctx.ns)).await?;
    make(&ctx, "here", json!({"all": ctx.ns})).await?;
    let body = json!({"metadata": {"name": "there", "labels": {"all": ctx.ns}}});
    ctx.post(format!("/api/v1/namespaces/{other}/configmaps"), &body).await?.ok()?;
    assert_eq!(watch.names(2).await?, ["ADDED here", "ADDED there"]);
    Ok(())
}

const INITIAL: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

async fn initial_events_end_with_a_marked_bookmark(ctx: Ctx) -> Result<()> {
    make(&ctx, "a", json!({"ours": ""})).await?;
    let b = make(&ctx, "b", json!({"ours": ""})).await?;
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}&{INITIAL}"))).await?;
    let mut first = watch.names(2).await?;
    first.sort();
    assert_eq!(first, ["ADDED a", "ADDED b"]);
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "BOOKMARK");
    assert_eq!(object["kind"], "ConfigMap");
    assert_eq!(object["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(object["metadata"]["name"], Value::Null);
    ensure!(version(&object).parse::<u64>()? >= version(&b).parse()?, "{object}");
    set(&ctx, "a", json!({"data": {"k": "v"}})).await?;
    assert_eq!(watch.names(1).await?, ["MODIFIED a"]);
    Ok(())
}

async fn initial_events_need_a_version_match(ctx: Ctx) -> Result<()> {
    let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                   resourceVersionMatch to NotOlderThan";
    let path = ctx.core("configmaps?watch=true&sendInitialEvents=true&allowWatchBookmarks=true");
    ctx.get(path).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn initial_events_are_for_watches_only(ctx: Ctx) -> Result<()> {
    let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list";
    ctx.get(ctx.core("configmaps?sendInitialEvents=true")).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_version_match_is_refused_for_a_plain_watch(ctx: Ctx) -> Result<()> {
    let message = "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for \
                   watch unless sendInitialEvents is provided, resourceVersionMatch: Unsupported value: \"Exact\": supported \
                   values: \"NotOlderThan\"]";
    let path = ctx.core("configmaps?watch=true&resourceVersion=5&resourceVersionMatch=Exact");
    ctx.get(path).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_watch_ends_when_its_time_is_over(ctx: Ctx) -> Result<()> {
    let started = Instant::now();
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}&timeoutSeconds=2"))).await?;
    assert_eq!(watch.next().await?, None);
    let took = started.elapsed();
    ensure!(took > Duration::from_millis(1500) && took < Duration::from_secs(60), "it took {took:?}");
    Ok(())
}

async fn a_watch_from_a_forgotten_version_is_gone(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.ok()?;
    ctx.compact().await?;
    let mut watch = ctx.watch(&crd.path(&ctx, "?resourceVersion=1")).await?;
    let (kind, status) = watch.event().await?;
    assert_eq!(kind, "ERROR");
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["code"], 410);
    assert_eq!(status["reason"], "Expired");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("too old resource version: 1 ("), "{message}");
    assert_eq!(watch.next().await?, None);
    Ok(())
}

async fn two_watchers_see_one_order(ctx: Ctx) -> Result<()> {
    let path = ctx.core(&format!("configmaps?{OURS}"));
    let (mut one, mut two) = (ctx.watch(&path).await?, ctx.watch(&path).await?);
    let writes = (0..20).map(|number| {
        let ctx = ctx.clone();
        async move { make(&ctx, &format!("c{number}"), json!({"ours": ""})).await }
    });
    futures::future::try_join_all(writes).await?;
    let mut versions = Vec::new();
    for _ in 0..20 {
        let (first, second) = (one.event().await?, two.event().await?);
        assert_eq!(first, second);
        versions.push(version(&first.1).parse::<u64>()?);
    }
    assert!(versions.is_sorted(), "{versions:?}");
    Ok(())
}

async fn a_dry_run_and_an_unchanged_update_send_no_event(ctx: Ctx) -> Result<()> {
    let made = make(&ctx, "a", json!({"ours": ""})).await?;
    let path = ctx.core(&format!("configmaps?{OURS}&resourceVersion={}", version(&made)));
    let mut watch = ctx.watch(&path).await?;
    ctx.put(ctx.core("configmaps/a"), &made).await?.ok()?;
    let patch = json!({"data": {"k": "v"}});
    ctx.patch(ctx.core("configmaps/a?dryRun=All"), PatchType::Merge, &patch).await?.ok()?;
    ctx.delete(ctx.core("configmaps/a?dryRun=All")).await?.ok()?;
    ensure!(watch.is_quiet_for(Duration::from_secs(1)).await, "an event for nothing");
    Ok(())
}

async fn a_status_change_is_seen_by_watchers(ctx: Ctx) -> Result<()> {
    let body = json!({
        "metadata": {"name": "one"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}},
        },
    });
    let mut watch = ctx.watch(&ctx.group("apps/v1", "replicasets")).await?;
    ctx.post(ctx.group("apps/v1", "replicasets"), &body).await?.code(201)?;
    let patch = json!({"status": {"replicas": 1}});
    ctx.patch(ctx.group("apps/v1", "replicasets/one/status"), PatchType::Merge, &patch).await?.code(200)?;
    assert_eq!(watch.names(1).await?, ["ADDED one"]);
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "MODIFIED");
    assert_eq!(object["status"]["replicas"], 1);
    Ok(())
}

async fn a_finalizer_shows_as_a_modification_before_the_deletion(ctx: Ctx) -> Result<()> {
    let mut body = ctx.config_map("a", json!({}));
    body["metadata"]["finalizers"] = json!(["fleetwright.io/hold"]);
    body["metadata"]["labels"] = json!({"ours": ""});
    let mut watch = ctx.watch(&ctx.core(&format!("configmaps?{OURS}"))).await?;
    ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    ctx.delete(ctx.core("configmaps/a")).await?.ok()?;
    set(&ctx, "a", json!({"metadata": {"finalizers": null}})).await?;
    assert_eq!(watch.names(3).await?, ["ADDED a", "MODIFIED a", "DELETED a"]);
    Ok(())
}

async fn a_watch_of_metadata_only_sends_metadata_only(ctx: Ctx) -> Result<()> {
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut watch = ctx.watch_as(&ctx.core(&format!("configmaps?{OURS}")), accept).await?;
    let mut body = ctx.config_map("a", json!({"k": "v"}));
    body["metadata"]["labels"] = json!({"ours": ""});
    ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    let (kind, object) = watch.event().await?;
    assert_eq!(kind, "ADDED");
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["metadata"]["name"], "a");
    assert_eq!(object["data"], Value::Null);
    Ok(())
}

async fn a_watch_through_the_old_path_works(ctx: Ctx) -> Result<()> {
    make(&ctx, "a", json!({})).await?;
    let mut watch = ctx.watch(&format!("/api/v1/watch/namespaces/{}/configmaps/a", ctx.ns)).await?;
    assert_eq!(watch.names(1).await?, ["ADDED a"]);
    Ok(())
}

async fn a_broken_version_is_refused_before_the_stream_begins(ctx: Ctx) -> Result<()> {
    let status = ctx.get(ctx.core("configmaps?watch=true&resourceVersion=x")).await?.code(500)?;
    let message = "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
    assert_eq!(status["message"], message);
    Ok(())
}

async fn custom_resources_are_watched_alike(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut watch = ctx.watch(&crd.path(&ctx, "")).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": 1}))).await?.ok()?;
    ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &json!({"spec": {"a": 2}})).await?.ok()?;
    ctx.delete(crd.path(&ctx, "/one")).await?.ok()?;
    assert_eq!(watch.names(3).await?, ["ADDED one", "MODIFIED one", "DELETED one"]);
    Ok(())
}
