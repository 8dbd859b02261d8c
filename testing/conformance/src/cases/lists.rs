//! Lists: versions, pages, selectors.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, PatchType, eventually};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["lists";
        a_list_is_sorted_by_name_and_carries_a_version,
        items_of_a_list_carry_no_kind,
        a_list_over_all_namespaces_is_sorted_by_namespace,
        pages_follow_each_other_without_gap_or_repeat,
        pages_are_of_one_moment,
        the_last_page_has_no_token,
        a_page_of_a_selection_has_no_remaining_count,
        a_broken_token_is_refused,
        an_expired_token_is_gone_and_offers_another(disruptive),
        an_exact_version_shows_the_past,
        a_version_at_least_is_served_from_the_present,
        version_zero_is_served,
        a_version_of_the_future_times_out,
        a_forgotten_version_is_gone(disruptive),
        a_version_match_needs_a_version,
        a_version_that_is_no_number_is_refused,
        a_limit_that_is_no_number_is_refused,
        label_selectors_know_equality_and_sets,
        a_broken_label_selector_is_refused_with_its_place,
        a_label_selector_with_a_bad_value_is_refused,
        field_selectors_know_name_and_namespace,
        an_unknown_field_selector_names_the_known_ones,
        pods_are_found_by_node_and_phase,
        events_are_found_by_what_they_are_about,
        secrets_are_found_by_type,
        custom_resources_are_found_by_selectable_fields,
        a_list_is_shown_as_metadata_only_on_request,
    ]
}

async fn make_five(ctx: &Ctx) -> Result<()> {
    for name in ["c", "a", "e", "b", "d"] {
        let mut body = ctx.config_map(name, json!({}));
        body["metadata"]["labels"] = json!({"name": name, "set": "five"});
        ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    }
    Ok(())
}

/// The query that keeps the root certificate out of the picture.
const FIVE: &str = "labelSelector=set%3Dfive";

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

fn token(list: &Value) -> &str {
    list["metadata"]["continue"].as_str().unwrap_or_default()
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

async fn a_list_is_sorted_by_name_and_carries_a_version(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let list = ctx.get(ctx.core(&format!("configmaps?{FIVE}"))).await?.code(200)?;
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["apiVersion"], "v1");
    assert_eq!(names(&list), ["a", "b", "c", "d", "e"]);
    assert!(version(&list).parse::<u64>()? > 0);
    Ok(())
}

async fn items_of_a_list_carry_no_kind(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let list = ctx.get(ctx.core(&format!("configmaps?{FIVE}"))).await?.ok()?;
    assert_eq!(list["items"][0]["kind"], Value::Null);
    assert_eq!(list["items"][0]["apiVersion"], Value::Null);
    let crd = Crd::open(&ctx).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.ok()?;
    let list = ctx.get(crd.path(&ctx, "")).await?.ok()?;
    assert_eq!(list["kind"], "WidgetList");
    assert_eq!(list["items"][0]["kind"], "Widget");
    Ok(())
}

async fn a_list_over_all_namespaces_is_sorted_by_namespace(ctx: Ctx) -> Result<()> {
    let (first, second) = (ctx.unique("a"), ctx.unique("b"));
    for namespace in [&second, &first] {
        ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?.ok()?;
        let body = json!({"metadata": {"name": "one", "labels": {"all": ctx.ns}}});
        ctx.post(format!("/api/v1/namespaces/{namespace}/configmaps"), &body).await?.ok()?;
    }
    let list = ctx.get(format!("/api/v1/configmaps?labelSelector=all%3D{}", ctx.ns)).await?.ok()?;
    let found: Vec<_> =
        list["items"].as_array().context("items")?.iter().map(|i| i["metadata"]["namespace"].as_str()).collect();
    assert_eq!(found, [Some(first.as_str()), Some(second.as_str())]);
    Ok(())
}

async fn pages_follow_each_other_without_gap_or_repeat(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    for name in ["c", "a", "e", "b", "d"] {
        ctx.post(crd.path(&ctx, ""), &crd.widget(name, json!({}))).await?.ok()?;
    }
    let first = ctx.get(crd.path(&ctx, "?limit=2")).await?.code(200)?;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let second = ctx.get(crd.path(&ctx, &format!("?limit=2&continue={}", token(&first)))).await?.code(200)?;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["remainingItemCount"], 1);
    assert_eq!(version(&second), version(&first));
    let third = ctx.get(crd.path(&ctx, &format!("?limit=2&continue={}", token(&second)))).await?.code(200)?;
    assert_eq!(names(&third), ["e"]);
    assert_eq!(token(&third), "");
    Ok(())
}

async fn pages_are_of_one_moment(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let first = ctx.get(ctx.core(&format!("configmaps?limit=2&{FIVE}"))).await?.ok()?;
    ctx.delete(ctx.core("configmaps/d")).await?.ok()?;
    let patch = json!({"data": {"late": "yes"}});
    ctx.patch(ctx.core("configmaps/e"), PatchType::Merge, &patch).await?.ok()?;
    let mut body = ctx.config_map("dd", json!({}));
    body["metadata"]["labels"] = json!({"set": "five"});
    ctx.post(ctx.core("configmaps"), &body).await?.ok()?;
    let rest = ctx.get(ctx.core(&format!("configmaps?{FIVE}&continue={}", token(&first)))).await?.code(200)?;
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(rest["items"][2]["data"], Value::Null);
    Ok(())
}

async fn the_last_page_has_no_token(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let page = ctx.get(ctx.core(&format!("configmaps?limit=5&{FIVE}"))).await?.ok()?;
    assert_eq!(names(&page).len(), 5);
    // The server reads on to find out whether there is more; with a selector it may only learn that by asking.
    let rest = match token(&page) {
        "" => return Ok(()),
        token => ctx.get(ctx.core(&format!("configmaps?limit=5&{FIVE}&continue={token}"))).await?.ok()?,
    };
    assert_eq!(names(&rest), Vec::<&str>::new());
    assert_eq!(token(&rest), "");
    Ok(())
}

async fn a_page_of_a_selection_has_no_remaining_count(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let page = ctx.get(ctx.core(&format!("configmaps?limit=2&{FIVE}"))).await?.ok()?;
    assert_ne!(token(&page), "");
    assert_eq!(page["metadata"]["remainingItemCount"], Value::Null);
    Ok(())
}

async fn a_broken_token_is_refused(ctx: Ctx) -> Result<()> {
    let status = ctx.get(ctx.core("configmaps?continue=abc")).await?.refused(400, "BadRequest")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("invalid continue token: continue key is not valid: "), "{message}");
    Ok(())
}

async fn an_expired_token_is_gone_and_offers_another(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let first = ctx.get(ctx.core(&format!("configmaps?limit=2&{FIVE}"))).await?.ok()?;
    let patch = json!({"data": {"late": "yes"}});
    ctx.patch(ctx.core("configmaps/e"), PatchType::Merge, &patch).await?.ok()?;
    ctx.compact().await?;
    let path = ctx.core(&format!("configmaps?limit=2&{FIVE}&continue={}", token(&first)));
    let status = eventually("the token expires", async || ctx.get(&path).await?.refused(410, "Expired")).await?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("The provided continue parameter is too old to display a consistent list result."),
        "{message}"
    );
    let path = ctx.core(&format!("configmaps?{FIVE}&continue={}", token(&status)));
    let rest = ctx.get(&path).await?.code(200)?;
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(rest["items"][2]["data"]["late"], "yes");
    Ok(())
}

async fn an_exact_version_shows_the_past(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let then = ctx.get(ctx.core(&format!("configmaps?{FIVE}"))).await?.ok()?;
    ctx.delete(ctx.core("configmaps/b")).await?.ok()?;
    let patch = json!({"data": {"late": "yes"}});
    ctx.patch(ctx.core("configmaps/c"), PatchType::Merge, &patch).await?.ok()?;
    let query = format!("configmaps?{FIVE}&resourceVersion={}&resourceVersionMatch=Exact", version(&then));
    assert_eq!(ctx.get(ctx.core(&query)).await?.code(200)?, then);
    Ok(())
}

async fn a_version_at_least_is_served_from_the_present(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let then = ctx.get(ctx.core(&format!("configmaps?{FIVE}"))).await?.ok()?;
    let gone = ctx.delete(ctx.core("configmaps/b")).await?.ok()?;
    ensure!(gone["status"] == "Success");
    // A list without a version sees all earlier writes; later lists see at least as much.
    ctx.get(ctx.core("configmaps")).await?.ok()?;
    for matching in ["", "&resourceVersionMatch=NotOlderThan"] {
        let query = format!("configmaps?{FIVE}&resourceVersion={}{matching}", version(&then));
        let list = ctx.get(ctx.core(&query)).await?.code(200)?;
        assert_eq!(names(&list), ["a", "c", "d", "e"]);
        ensure!(version(&list).parse::<u64>()? > version(&then).parse()?);
    }
    Ok(())
}

async fn version_zero_is_served(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    eventually("a list at any version catches up", async || {
        let list = ctx.get(ctx.core(&format!("configmaps?resourceVersion=0&{FIVE}"))).await?.code(200)?;
        ensure!(names(&list).len() == 5, "{list}");
        Ok(())
    })
    .await
}

async fn a_version_of_the_future_times_out(ctx: Ctx) -> Result<()> {
    let status = ctx.get(ctx.core("configmaps?resourceVersion=99999999")).await?.refused(504, "Timeout")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Timeout: Too large resource version: 99999999, current: "), "{message}");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    Ok(())
}

async fn a_forgotten_version_is_gone(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let then = ctx.get(ctx.core(&format!("configmaps?{FIVE}"))).await?.ok()?;
    ctx.delete(ctx.core("configmaps/b")).await?.ok()?;
    ctx.compact().await?;
    let query = format!("configmaps?resourceVersion={}&resourceVersionMatch=Exact", version(&then));
    let path = ctx.core(&query);
    eventually("the version is gone", async || ctx.get(&path).await?.refused(410, "Expired")).await?;
    Ok(())
}

async fn a_version_match_needs_a_version(ctx: Ctx) -> Result<()> {
    for (query, rest) in [
        (
            "resourceVersionMatch=Exact",
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (
            "resourceVersion=0&resourceVersionMatch=Exact",
            "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ),
        (
            "resourceVersion=5&resourceVersionMatch=Sometimes",
            "Unsupported value: \"Sometimes\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
        ),
        (
            "resourceVersion=5&resourceVersionMatch=NotOlderThan&continue=x",
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ),
    ] {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: {rest}");
        ctx.get(ctx.core(&format!("configmaps?{query}"))).await?.refused_with(422, "Invalid", &message)?;
    }
    Ok(())
}

async fn a_version_that_is_no_number_is_refused(ctx: Ctx) -> Result<()> {
    let message = "invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
    ctx.get(ctx.core("configmaps?resourceVersion=x")).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_limit_that_is_no_number_is_refused(ctx: Ctx) -> Result<()> {
    let message = "strconv.ParseInt: parsing \"x\": invalid syntax";
    ctx.get(ctx.core("configmaps?limit=x")).await?.refused_with(400, "BadRequest", message)?;
    ctx.get(ctx.core("configmaps?limit=-1")).await?.code(200)?;
    Ok(())
}

async fn label_selectors_know_equality_and_sets(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    for (selector, wanted) in [
        ("name=b", vec!["b"]),
        ("name==b", vec!["b"]),
        ("set=five,name!=b", vec!["a", "c", "d", "e"]),
        ("name in (a,e)", vec!["a", "e"]),
        ("set,name notin (a,b,c)", vec!["d", "e"]),
        ("set,!name", vec![]),
        ("name", vec!["a", "b", "c", "d", "e"]),
        ("name in (a,b),name notin (b)", vec!["a"]),
    ] {
        let encoded = selector.replace(' ', "%20").replace('=', "%3D").replace('!', "%21");
        let list = ctx.get(ctx.core(&format!("configmaps?labelSelector={encoded}"))).await?.ok()?;
        assert_eq!(names(&list), wanted, "{selector}");
    }
    Ok(())
}

async fn a_broken_label_selector_is_refused_with_its_place(ctx: Ctx) -> Result<()> {
    for (selector, message) in [
        ("a%3D%3D%3Db", "unable to parse requirement: found '=', expected: identifier"),
        ("a%20in%20x", "unable to parse requirement: found 'x' expected: '('"),
        ("%21%21", "unable to parse requirement: found '!', expected: identifier"),
        ("n%3Da%20b", "found 'b', expected: ',' or 'end of string'"),
    ] {
        let path = ctx.core(&format!("configmaps?labelSelector={selector}"));
        ctx.get(path).await?.refused_with(400, "BadRequest", message)?;
    }
    Ok(())
}

async fn a_label_selector_with_a_bad_value_is_refused(ctx: Ctx) -> Result<()> {
    let long = "x".repeat(64);
    let status =
        ctx.get(ctx.core(&format!("configmaps?labelSelector=a%3D{long}"))).await?.refused(400, "BadRequest")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("must be no more than 63"), "{message}");
    Ok(())
}

async fn field_selectors_know_name_and_namespace(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    for (selector, wanted) in [
        ("metadata.name%3Db", vec!["b"]),
        ("metadata.name!%3Db,metadata.name!%3Da", vec!["c", "d", "e"]),
        ("metadata.namespace%3Dnowhere", vec![]),
    ] {
        let list = ctx.get(ctx.core(&format!("configmaps?{FIVE}&fieldSelector={selector}"))).await?.ok()?;
        assert_eq!(names(&list), wanted, "{selector}");
    }
    Ok(())
}

async fn an_unknown_field_selector_names_the_known_ones(ctx: Ctx) -> Result<()> {
    let message = "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    ctx.get(ctx.core("configmaps?fieldSelector=spec.x%3Da")).await?.refused_with(400, "BadRequest", message)?;
    let message = "invalid selector: 'metadata.name'; can't understand 'metadata.name'";
    ctx.get(ctx.core("configmaps?fieldSelector=metadata.name")).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn pods_are_found_by_node_and_phase(ctx: Ctx) -> Result<()> {
    eventually("the account comes", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok()).await?;
    for (name, node) in [("one", "node-a"), ("two", "node-b"), ("three", "")] {
        let mut body = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "x"}]}});
        if !node.is_empty() {
            body["spec"]["nodeName"] = json!(node);
        }
        ctx.post(ctx.core("pods"), &body).await?.ok()?;
    }
    let patch = json!({"status": {"phase": "Running"}});
    ctx.patch(ctx.core("pods/two/status"), PatchType::Merge, &patch).await?.ok()?;
    for (selector, wanted) in [
        ("spec.nodeName%3Dnode-a", vec!["one"]),
        ("spec.nodeName%3D", vec!["three"]),
        ("status.phase%3DRunning", vec!["two"]),
        ("status.phase!%3DRunning,spec.restartPolicy%3DAlways", vec!["one", "three"]),
    ] {
        let list = ctx.get(ctx.core(&format!("pods?fieldSelector={selector}"))).await?.ok()?;
        assert_eq!(names(&list), wanted, "{selector}");
    }
    Ok(())
}

async fn events_are_found_by_what_they_are_about(ctx: Ctx) -> Result<()> {
    for (name, about, kind) in [("one", "x", "Normal"), ("two", "y", "Warning")] {
        let body = json!({
            "metadata": {"name": name}, "type": kind, "reason": "Tested",
            "involvedObject": {"kind": "Pod", "name": about, "namespace": ctx.ns},
        });
        ctx.post(ctx.core("events"), &body).await?.code(201)?;
    }
    for (selector, wanted) in [
        ("involvedObject.name%3Dx", vec!["one"]),
        ("type%3DWarning,reason%3DTested", vec!["two"]),
        ("involvedObject.kind%3DNode", vec![]),
    ] {
        let list = ctx.get(ctx.core(&format!("events?fieldSelector={selector}"))).await?.ok()?;
        assert_eq!(names(&list), wanted, "{selector}");
    }
    Ok(())
}

async fn secrets_are_found_by_type(ctx: Ctx) -> Result<()> {
    for (name, kind) in [("one", "Opaque"), ("two", "fleetwright.io/x")] {
        ctx.post(ctx.core("secrets"), &json!({"metadata": {"name": name}, "type": kind})).await?.ok()?;
    }
    let list = ctx.get(ctx.core("secrets?fieldSelector=type%3Dfleetwright.io/x")).await?.ok()?;
    assert_eq!(names(&list), ["two"]);
    Ok(())
}

async fn custom_resources_are_found_by_selectable_fields(ctx: Ctx) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"colour": {"type": "string"}, "size": {"type": "integer"}}});
    let mut crd = Crd::new(&ctx, spec, json!({"type": "object"}));
    crd.version()["selectableFields"] = json!([{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.size"}]);
    let crd = crd.make(&ctx).await?;
    for (name, colour, size) in [("one", "red", 1), ("two", "blue", 2), ("three", "red", 2)] {
        ctx.post(crd.path(&ctx, ""), &crd.widget(name, json!({"colour": colour, "size": size}))).await?.ok()?;
    }
    for (selector, wanted) in [
        ("spec.colour%3Dred", vec!["one", "three"]),
        ("spec.colour%3Dred,spec.size%3D2", vec!["three"]),
        ("spec.size!%3D2", vec!["one"]),
        ("metadata.name%3Dtwo", vec!["two"]),
    ] {
        let list = ctx.get(crd.path(&ctx, &format!("?fieldSelector={selector}"))).await?.ok()?;
        assert_eq!(names(&list), wanted, "{selector}");
    }
    let reply = ctx.get(crd.path(&ctx, "?fieldSelector=spec.weight%3D1")).await?;
    let message = "field label not supported: spec.weight";
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_list_is_shown_as_metadata_only_on_request(ctx: Ctx) -> Result<()> {
    make_five(&ctx).await?;
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let path = ctx.core(&format!("configmaps?{FIVE}"));
    let list = ctx.call(http::Method::GET, path).header("accept", accept).send().await?.code(200)?;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(names(&list), ["a", "b", "c", "d", "e"]);
    assert_eq!(list["items"][0]["data"], Value::Null);
    Ok(())
}
