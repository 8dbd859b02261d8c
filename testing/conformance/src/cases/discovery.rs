//! Discovery, OpenAPI, version, health, metrics, and tables.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, Reply, ServerKind, eventually};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["discovery";
        the_core_group_has_one_version,
        every_group_is_listed_with_its_versions,
        a_group_is_described,
        resources_are_listed_with_names_verbs_and_storage_hash,
        subresources_of_other_groups_name_them,
        everything_is_discovered_in_one_answer,
        aggregated_discovery_shows_custom_resources,
        aggregated_discovery_is_not_sent_twice,
        an_unknown_form_of_discovery_is_not_acceptable(differs "the embedded server speaks no protobuf and does not offer it"),
        what_is_not_supported_is_not_discovered(differs "the embedded server has no webhooks, aggregation, limit ranges or flow control"),
        what_does_not_exist_is_not_found,
        discovery_is_read_only,
        the_openapi_index_leads_to_documents,
        an_openapi_document_is_cached_by_its_hash,
        openapi_describes_built_in_kinds,
        openapi_names_merge_keys_and_list_types,
        openapi_describes_custom_kinds,
        openapi_forgets_custom_kinds,
        the_version_is_that_of_kubernetes,
        health_is_plain_text,
        verbose_health_lists_its_checks,
        a_single_check_can_be_asked_for,
        metrics_are_prometheus_text,
        the_root_lists_paths,
        a_table_shows_what_kubectl_shows,
        a_table_carries_as_much_of_the_object_as_asked_for,
        an_unknown_amount_of_object_is_refused,
        a_write_can_be_answered_with_a_table,
        only_metadata_is_sent_when_asked_for,
        metadata_of_lists_is_asked_for_as_a_list,
        a_table_of_another_version_is_not_acceptable(differs "the embedded server speaks no protobuf and does not offer it"),
        an_error_is_a_status_whatever_is_accepted,
        a_watch_can_be_of_metadata_only,
        a_watch_can_be_of_tables,
    ]
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const NOT_FOUND: &str = "the server could not find the requested resource";

async fn get_as(ctx: &Ctx, path: impl Into<String>, accept: &str) -> Result<Reply> {
    ctx.call(Method::GET, path).header("accept", accept).send().await
}

/// The values of one field of a list's items.
fn each<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().into_iter().flatten().filter_map(|item| item[field].as_str()).collect()
}

/// The item of a list whose field has this value.
fn find<'a>(list: &'a Value, field: &str, value: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    list.as_array().into_iter().flatten().find(|item| item[field] == value).unwrap_or(&NONE)
}

async fn the_core_group_has_one_version(ctx: Ctx) -> Result<()> {
    let core = ctx.get("/api").await?.code(200)?;
    assert_eq!((&core["kind"], &core["versions"]), (&json!("APIVersions"), &json!(["v1"])));
    let address = &core["serverAddressByClientCIDRs"][0];
    assert_eq!(address["clientCIDR"], "0.0.0.0/0");
    assert!(address["serverAddress"].as_str().is_some_and(|address| address.contains(':')), "{core}");
    Ok(())
}

async fn every_group_is_listed_with_its_versions(ctx: Ctx) -> Result<()> {
    let list = ctx.get("/apis").await?.code(200)?;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("APIGroupList"), &json!("v1")));
    let names = each(&list["groups"], "name");
    for group in [
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "batch",
        "certificates.k8s.io",
        "networking.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
        "scheduling.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
    ] {
        ensure!(names.contains(&group), "{group} is not among {names:?}");
    }
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    let apps = json!({"name": "apps", "versions": [version], "preferredVersion": version});
    assert_eq!(*find(&list["groups"], "name", "apps"), apps);
    Ok(())
}

async fn a_group_is_described(ctx: Ctx) -> Result<()> {
    let version = json!({"groupVersion": "batch/v1", "version": "v1"});
    let wanted = json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": "batch", "versions": [version], "preferredVersion": version,
    });
    assert_eq!(ctx.get("/apis/batch").await?.code(200)?, wanted);
    Ok(())
}

async fn resources_are_listed_with_names_verbs_and_storage_hash(ctx: Ctx) -> Result<()> {
    let list = ctx.get("/apis/apps/v1").await?.code(200)?;
    assert_eq!((&list["kind"], &list["groupVersion"]), (&json!("APIResourceList"), &json!("apps/v1")));
    let verbs = json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    let wanted = json!({
        "name": "deployments", "singularName": "deployment", "namespaced": true, "kind": "Deployment", "verbs": verbs,
        "shortNames": ["deploy"], "categories": ["all"], "storageVersionHash": "8aSe+NMegvE=",
    });
    assert_eq!(*find(&list["resources"], "name", "deployments"), wanted);
    let names = each(&list["resources"], "name");
    let wanted = [
        "controllerrevisions",
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "replicasets",
        "replicasets/scale",
        "replicasets/status",
        "statefulsets",
        "statefulsets/scale",
        "statefulsets/status",
    ];
    assert_eq!(names, wanted);
    Ok(())
}

async fn subresources_of_other_groups_name_them(ctx: Ctx) -> Result<()> {
    let list = ctx.get("/apis/apps/v1").await?.code(200)?;
    let wanted = json!({
        "name": "deployments/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1",
        "kind": "Scale", "verbs": ["get", "patch", "update"],
    });
    assert_eq!(*find(&list["resources"], "name", "deployments/scale"), wanted);
    Ok(())
}

async fn everything_is_discovered_in_one_answer(ctx: Ctx) -> Result<()> {
    let reply = get_as(&ctx, "/apis", &format!("{AGGREGATED},application/json")).await?;
    assert_eq!(reply.header("content-type"), AGGREGATED);
    let list = reply.code(200)?;
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
    );
    let apps = list["items"].as_array().into_iter().flatten().find(|item| item["metadata"]["name"] == "apps");
    let version = apps.map(|apps| &apps["versions"][0]).unwrap_or(&Value::Null);
    assert_eq!((&version["version"], &version["freshness"]), (&json!("v1"), &json!("Current")));
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let verbs = json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    let sub = json!(["get", "patch", "update"]);
    let wanted = json!({
        "resource": "deployments", "responseKind": kind("", "", "Deployment"), "scope": "Namespaced",
        "singularResource": "deployment", "verbs": verbs, "shortNames": ["deploy"], "categories": ["all"],
        "subresources": [
            {"subresource": "scale", "responseKind": kind("autoscaling", "v1", "Scale"), "verbs": sub},
            {"subresource": "status", "responseKind": kind("", "", "Deployment"), "verbs": sub},
        ],
    });
    assert_eq!(*find(&version["resources"], "resource", "deployments"), wanted);
    let core = get_as(&ctx, "/api", AGGREGATED).await?.code(200)?;
    let namespaces = find(&core["items"][0]["versions"][0]["resources"], "resource", "namespaces");
    assert_eq!((&namespaces["scope"], &namespaces["shortNames"]), (&json!("Cluster"), &json!(["ns"])));
    Ok(())
}

async fn aggregated_discovery_shows_custom_resources(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    eventually("the group is discovered", async || {
        let list = get_as(&ctx, "/apis", AGGREGATED).await?.code(200)?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let group = items.into_iter().find(|item| item["metadata"]["name"] == *crd.group).unwrap_or_default();
        let kind = json!({"group": crd.group, "version": "v1", "kind": "Widget"});
        let found = &group["versions"][0]["resources"][0];
        ensure!(found["responseKind"] == kind && found["resource"] == "widgets", "{group}");
        Ok(())
    })
    .await
}

async fn aggregated_discovery_is_not_sent_twice(ctx: Ctx) -> Result<()> {
    let first = get_as(&ctx, "/api", AGGREGATED).await?;
    let tag = first.header("etag").to_owned();
    assert!(tag.len() > 10 && tag.starts_with('"'), "{tag}");
    assert_eq!(first.header("vary"), "Accept");
    let again = ctx.call(Method::GET, "/api").header("accept", AGGREGATED).header("if-none-match", &tag).send().await?;
    assert_eq!((again.status, again.bytes.len()), (304, 0));
    Ok(())
}

/// The media types in the server's error when it supports none of the accepted ones.
fn accepted_types(ctx: &Ctx) -> String {
    let protobuf = match ctx.kind() {
        ServerKind::Real => ", application/vnd.kubernetes.protobuf",
        ServerKind::Embedded => "",
    };
    format!("only the following media types are accepted: application/json, application/yaml{protobuf}")
}

async fn an_unknown_form_of_discovery_is_not_acceptable(ctx: Ctx) -> Result<()> {
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    get_as(&ctx, "/apis", old).await?.refused_with(406, "NotAcceptable", &accepted_types(&ctx))?;
    Ok(())
}

async fn what_is_not_supported_is_not_discovered(ctx: Ctx) -> Result<()> {
    let groups = ctx.get("/apis").await?.code(200)?;
    let core = ctx.get("/api/v1").await?.code(200)?;
    let here = ctx.kind() == ServerKind::Real;
    for group in ["admissionregistration.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io"] {
        assert_eq!(each(&groups["groups"], "name").contains(&group), here, "{group}");
    }
    for resource in ["limitranges", "pods/exec", "pods/log", "services/proxy"] {
        assert_eq!(each(&core["resources"], "name").contains(&resource), here, "{resource}");
    }
    let reply = ctx.get(ctx.core("limitranges")).await?;
    if here {
        reply.code(200)?;
    } else {
        reply.refused_with(404, "NotFound", NOT_FOUND)?;
    }
    Ok(())
}

async fn what_does_not_exist_is_not_found(ctx: Ctx) -> Result<()> {
    for path in ["/nowhere", "/apis/none.fleetwright.io", "/apis/none.fleetwright.io/v1"] {
        let reply = ctx.get(path).await?;
        assert_eq!((reply.status, &*reply.text()), (404, "404 page not found\n"), "{path}");
        assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    }
    for path in ["/apis/apps/v9", "/apis/apps/v1/gadgets", "/api/v2", "/api/v1/gadgets"] {
        let status = ctx.get(path).await?.refused_with(404, "NotFound", NOT_FOUND)?;
        assert_eq!(status["details"], json!({}), "{path}");
    }
    for path in ["gadgets", "pods/x/nothing", "configmaps/x/status"] {
        ctx.get(ctx.core(path)).await?.refused_with(404, "NotFound", NOT_FOUND)?;
    }
    Ok(())
}

async fn discovery_is_read_only(ctx: Ctx) -> Result<()> {
    let message = "the server does not allow this method on the requested resource";
    ctx.post("/api/v1", &json!({})).await?.refused_with(405, "MethodNotAllowed", message)?;
    ctx.delete("/version").await?.refused_with(405, "MethodNotAllowed", message)?;
    Ok(())
}

/// Where a document of the OpenAPI index is.
async fn document_url(ctx: &Ctx, name: &str) -> Result<String> {
    let index = ctx.get("/openapi/v3").await?.code(200)?;
    let url = index["paths"][name]["serverRelativeURL"].as_str().map(str::to_owned);
    url.ok_or_else(|| anyhow::anyhow!("no {name} in the index"))
}

async fn the_openapi_index_leads_to_documents(ctx: Ctx) -> Result<()> {
    for name in ["api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1"] {
        let url = document_url(&ctx, name).await?;
        ensure!(url.starts_with(&format!("/openapi/v3/{name}?hash=")), "{url}");
        let document = ctx.get(url).await?.code(200)?;
        assert_eq!((&document["openapi"], &document["info"]["title"]), (&json!("3.0.0"), &json!("Kubernetes")));
    }
    assert_eq!(ctx.get("/openapi/v3/apis/none.fleetwright.io/v1").await?.status, 404);
    Ok(())
}

async fn an_openapi_document_is_cached_by_its_hash(ctx: Ctx) -> Result<()> {
    let url = document_url(&ctx, "apis/batch/v1").await?;
    let reply = ctx.get(&url).await?;
    let hash = url.rsplit_once("hash=").map(|(_, hash)| hash).unwrap_or_default();
    assert_eq!(reply.header("etag"), format!("\"{hash}\""));
    assert_eq!(reply.header("cache-control"), "public, immutable");
    let tag = reply.header("etag").to_owned();
    let again = ctx.call(Method::GET, "/openapi/v3/apis/batch/v1").header("if-none-match", &tag).send().await?;
    assert_eq!((again.status, again.bytes.len()), (304, 0));
    Ok(())
}

/// One schema of a document.
async fn schema(ctx: &Ctx, document: &str, name: &str) -> Result<Value> {
    Ok(ctx.get(document_url(ctx, document).await?).await?.code(200)?["components"]["schemas"][name].clone())
}

async fn openapi_describes_built_in_kinds(ctx: Ctx) -> Result<()> {
    let map = schema(&ctx, "api/v1", "io.k8s.api.core.v1.ConfigMap").await?;
    assert_eq!(map["description"], "ConfigMap holds configuration data for pods to consume.");
    assert_eq!(map["type"], "object");
    let kind = json!([{"group": "", "kind": "ConfigMap", "version": "v1"}]);
    assert_eq!(map["x-kubernetes-group-version-kind"], kind);
    assert_eq!(map["properties"]["data"]["additionalProperties"], json!({"type": "string"}));
    let metadata = json!([{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]);
    assert_eq!(map["properties"]["metadata"]["allOf"], metadata);
    let document = ctx.get(document_url(&ctx, "api/v1").await?).await?.code(200)?;
    let get = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["get"];
    assert_eq!(get["operationId"], "readCoreV1NamespacedConfigMap");
    assert_eq!(get["x-kubernetes-action"], "get");
    assert_eq!(get["x-kubernetes-group-version-kind"], json!({"group": "", "kind": "ConfigMap", "version": "v1"}));
    Ok(())
}

async fn openapi_names_merge_keys_and_list_types(ctx: Ctx) -> Result<()> {
    let spec = schema(&ctx, "api/v1", "io.k8s.api.core.v1.PodSpec").await?;
    let containers = &spec["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(spec["properties"]["tolerations"]["x-kubernetes-list-type"], "atomic");
    let meta = schema(&ctx, "api/v1", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").await?;
    assert_eq!(meta["properties"]["finalizers"]["x-kubernetes-list-type"], "set");
    let selector = schema(&ctx, "api/v1", "io.k8s.api.core.v1.NodeSelector").await?;
    assert_eq!(selector["x-kubernetes-map-type"], "atomic");
    Ok(())
}

/// The path and the name of a custom kind in OpenAPI: the group's labels turn around.
fn openapi_names(crd: &Crd) -> (String, String) {
    let labels: Vec<_> = crd.group.split('.').rev().collect();
    (format!("apis/{}/v1", crd.group), format!("{}.v1.Widget", labels.join(".")))
}

async fn openapi_describes_custom_kinds(ctx: Ctx) -> Result<()> {
    let spec = json!({
        "type": "object", "description": "what is wanted",
        "properties": {"n": {"type": "integer", "minimum": 1, "default": 3}, "s": {"type": "string", "nullable": true}},
    });
    let crd = Crd::new(&ctx, spec.clone(), json!({"type": "object"})).make(&ctx).await?;
    let (document, name) = openapi_names(&crd);
    let widget = eventually("the document", async || schema(&ctx, &document, &name).await).await?;
    assert_eq!(widget["properties"]["spec"], spec);
    let kind = json!([{"group": crd.group, "kind": "Widget", "version": "v1"}]);
    assert_eq!(widget["x-kubernetes-group-version-kind"], kind);
    let metadata = json!([{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]);
    assert_eq!(widget["properties"]["metadata"]["allOf"], metadata);
    Ok(())
}

async fn openapi_forgets_custom_kinds(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let (document, _) = openapi_names(&crd);
    eventually("the document", async || document_url(&ctx, &document).await).await?;
    ctx.delete(crd.definition()).await?.code(200)?;
    eventually("the document is gone", async || {
        ensure!(document_url(&ctx, &document).await.is_err(), "still there");
        Ok(())
    })
    .await
}

async fn the_version_is_that_of_kubernetes(ctx: Ctx) -> Result<()> {
    let version = ctx.get("/version").await?.code(200)?;
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("37")));
    assert!(version["gitVersion"].as_str().is_some_and(|v| v.starts_with("v1.37.1")), "{version}");
    assert!(version["platform"].as_str().is_some_and(|p| p.starts_with("linux/")), "{version}");
    let mut fields: Vec<_> = version.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
    fields.sort();
    let wanted = [
        "buildDate",
        "compiler",
        "emulationMajor",
        "emulationMinor",
        "gitCommit",
        "gitTreeState",
        "gitVersion",
        "goVersion",
        "major",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
        "minor",
        "platform",
    ];
    assert_eq!(fields, wanted);
    Ok(())
}

async fn health_is_plain_text(ctx: Ctx) -> Result<()> {
    for path in ["/livez", "/readyz", "/healthz"] {
        let reply = ctx.get(path).await?;
        assert_eq!((reply.status, &*reply.text()), (200, "ok"), "{path}");
        assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
    Ok(())
}

async fn verbose_health_lists_its_checks(ctx: Ctx) -> Result<()> {
    for name in ["livez", "readyz", "healthz"] {
        let text = ctx.get(format!("/{name}?verbose")).await?.text();
        let lines: Vec<_> = text.lines().collect();
        ensure!(lines.starts_with(&["[+]ping ok", "[+]log ok"]), "{text}");
        ensure!(text.ends_with(&format!("\n{name} check passed\n")), "{text}");
    }
    let text = ctx.get("/livez?verbose&exclude=log").await?.text();
    ensure!(text.contains("[+]log excluded: ok\n"), "{text}");
    Ok(())
}

async fn a_single_check_can_be_asked_for(ctx: Ctx) -> Result<()> {
    for path in ["/livez/ping", "/readyz/ping", "/healthz/ping", "/healthz/log"] {
        let reply = ctx.get(path).await?;
        assert_eq!((reply.status, &*reply.text()), (200, "ok"), "{path}");
    }
    let reply = ctx.get("/readyz/nothing").await?;
    assert_eq!((reply.status, &*reply.text()), (404, "404 page not found\n"));
    Ok(())
}

async fn metrics_are_prometheus_text(ctx: Ctx) -> Result<()> {
    ctx.get(ctx.core("configmaps")).await?.code(200)?;
    let reply = ctx.get("/metrics").await?;
    assert_eq!(reply.status, 200);
    ensure!(reply.header("content-type").starts_with("text/plain; version=0.0.4"), "{}", reply.header("content-type"));
    let text = reply.text();
    ensure!(text.contains("\n# TYPE apiserver_request_total counter\n"), "no request counter");
    let sample = |line: &&str| {
        let wanted = ["verb=\"LIST\"", "resource=\"configmaps\"", "code=\"200\""];
        line.starts_with("apiserver_request_total{") && wanted.iter().all(|label| line.contains(label))
    };
    ensure!(text.lines().any(|line| sample(&line)), "the list was not counted");
    let shaped = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in shaped {
        ensure!(line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok()), "{line}");
    }
    Ok(())
}

async fn the_root_lists_paths(ctx: Ctx) -> Result<()> {
    let root = ctx.get("/").await?.code(200)?;
    let paths: Vec<_> = root["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for path in
        ["/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/livez", "/metrics", "/openapi/v3", "/version"]
    {
        ensure!(paths.contains(&path), "{path} is not among {paths:?}");
    }
    Ok(())
}

/// A config map with two entries.
async fn config_map(ctx: &Ctx) -> Result<Value> {
    let body = ctx.config_map("one", json!({"a": "1", "b": "2"}));
    ctx.post(ctx.core("configmaps"), &body).await?.code(201)
}

/// A Table without the words that describe its columns, and the time in its last cell.
fn bare(mut table: Value) -> Value {
    for column in table["columnDefinitions"].as_array_mut().into_iter().flatten() {
        column["description"].take();
    }
    for row in table["rows"].as_array_mut().into_iter().flatten() {
        if let Some(age) = row["cells"].as_array_mut().and_then(|cells| cells.last_mut()) {
            age.take();
        }
    }
    table
}

async fn a_table_shows_what_kubectl_shows(ctx: Ctx) -> Result<()> {
    let made = config_map(&ctx).await?;
    let table = bare(get_as(&ctx, ctx.core("configmaps/one"), TABLE).await?.code(200)?);
    let column = |name: &str, format: &str| json!({"name": name, "type": "string", "format": format, "description": null, "priority": 0});
    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]});
    let wanted = json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]},
        "columnDefinitions": [column("Name", "name"), column("Data", ""), column("Age", "")],
        "rows": [{"cells": ["one", 2, null], "object": object}],
    });
    assert_eq!(table, wanted);
    let headings = BTreeMap::from([
        ("/api/v1/pods", "Name Ready Status Restarts Age IP Node Nominated Node Readiness Gates"),
        (
            "/api/v1/nodes",
            "Name Status Roles Age Version Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
        ),
        ("/api/v1/services", "Name Type Cluster-IP External-IP Port(s) Age Selector"),
        ("/api/v1/namespaces", "Name Status Age"),
        ("/apis/apps/v1/deployments", "Name Ready Up-to-date Available Age Containers Images Selector"),
        (
            "/apis/apps/v1/daemonsets",
            "Name Desired Current Ready Up-to-date Available Node Selector Age Containers Images Selector",
        ),
        ("/apis/batch/v1/jobs", "Name Status Completions Duration Age Containers Images Selector"),
        (
            "/apis/batch/v1/cronjobs",
            "Name Schedule Timezone Suspend Active Last Schedule Age Containers Images Selector",
        ),
        ("/apis/coordination.k8s.io/v1/leases", "Name Holder Age"),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "Name Scope Versions Created At Group Kind ShortNames Established",
        ),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "Name Created At"),
    ]);
    for (path, wanted) in headings {
        let table = get_as(&ctx, path, TABLE).await?.code(200)?;
        assert_eq!(each(&table["columnDefinitions"], "name").join(" "), wanted, "{path}");
    }
    Ok(())
}

async fn a_table_carries_as_much_of_the_object_as_asked_for(ctx: Ctx) -> Result<()> {
    let made = config_map(&ctx).await?;
    let ask = async |amount: &str| -> Result<Value> {
        let path = ctx.core(&format!("configmaps/one?includeObject={amount}"));
        Ok(get_as(&ctx, path, TABLE).await?.code(200)?["rows"][0]["object"].clone())
    };
    assert_eq!(ask("None").await?, Value::Null);
    assert_eq!(ask("Object").await?, made);
    assert_eq!(ask("Metadata").await?["kind"], "PartialObjectMetadata");
    Ok(())
}

async fn an_unknown_amount_of_object_is_refused(ctx: Ctx) -> Result<()> {
    config_map(&ctx).await?;
    let message = "Unable to convert to Table as requested: includeObject: Invalid value: \"Most\": must be 'Metadata', \
                   'Object', 'None', or empty";
    let reply = get_as(&ctx, ctx.core("configmaps/one?includeObject=Most"), TABLE).await?;
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_write_can_be_answered_with_a_table(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("one", json!({"a": "1"}));
    let call = ctx.call(Method::POST, ctx.core("configmaps")).header("accept", TABLE).json(&body);
    let table = call.send().await?.code(201)?;
    assert_eq!(table["kind"], "Table");
    let cells = &table["rows"][0]["cells"];
    assert_eq!((&cells[0], &cells[1]), (&json!("one"), &json!(1)));
    Ok(())
}

async fn only_metadata_is_sent_when_asked_for(ctx: Ctx) -> Result<()> {
    let made = config_map(&ctx).await?;
    let part = get_as(&ctx, ctx.core("configmaps/one"), METADATA).await?.code(200)?;
    let wanted = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]});
    assert_eq!(part, wanted);
    let path = ctx.core("configmaps?fieldSelector=metadata.name%3Done");
    let list = get_as(&ctx, path, METADATA_LIST).await?.code(200)?;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"], json!([wanted]));
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let made = ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": 1}))).await?.code(201)?;
    let part = get_as(&ctx, crd.path(&ctx, "/one"), METADATA).await?.code(200)?;
    let wanted = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]});
    assert_eq!(part, wanted);
    Ok(())
}

async fn metadata_of_lists_is_asked_for_as_a_list(ctx: Ctx) -> Result<()> {
    let message = "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)";
    get_as(&ctx, ctx.core("configmaps"), METADATA).await?.refused_with(406, "NotAcceptable", message)?;
    Ok(())
}

async fn a_table_of_another_version_is_not_acceptable(ctx: Ctx) -> Result<()> {
    let accept = "application/json;as=Table;v=v9;g=meta.k8s.io";
    let reply = get_as(&ctx, ctx.core("configmaps"), accept).await?;
    reply.refused_with(406, "NotAcceptable", &accepted_types(&ctx))?;
    // Clients accept further types, and get one of those.
    let list = get_as(&ctx, ctx.core("configmaps"), &format!("{accept},application/json")).await?.code(200)?;
    assert_eq!(list["kind"], "ConfigMapList");
    Ok(())
}

async fn an_error_is_a_status_whatever_is_accepted(ctx: Ctx) -> Result<()> {
    for accept in [TABLE, METADATA] {
        let reply = get_as(&ctx, ctx.core("configmaps/none"), accept).await?;
        reply.refused_with(404, "NotFound", "configmaps \"none\" not found")?;
    }
    Ok(())
}

async fn a_watch_can_be_of_metadata_only(ctx: Ctx) -> Result<()> {
    let mut watch = ctx.watch_as(&ctx.core("configmaps?fieldSelector=metadata.name%3Done"), METADATA).await?;
    let made = config_map(&ctx).await?;
    let wanted = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]});
    assert_eq!(watch.event().await?, ("ADDED".to_owned(), wanted));
    Ok(())
}

async fn a_watch_can_be_of_tables(ctx: Ctx) -> Result<()> {
    let mut watch = ctx.watch_as(&ctx.core("configmaps?fieldSelector=metadata.name%3Done"), TABLE).await?;
    config_map(&ctx).await?;
    let (kind, first) = watch.event().await?;
    assert_eq!((&*kind, &first["kind"]), ("ADDED", &json!("Table")));
    assert_eq!(each(&first["columnDefinitions"], "name"), ["Name", "Data", "Age"]);
    assert_eq!(first["rows"][0]["cells"][0], "one");
    ctx.delete(ctx.core("configmaps/one")).await?.code(200)?;
    let (kind, second) = watch.event().await?;
    assert_eq!(kind, "DELETED");
    assert_eq!(second["columnDefinitions"], Value::Null, "columns come once");
    Ok(())
}
