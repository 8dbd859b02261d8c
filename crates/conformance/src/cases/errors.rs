//! Wrong input of every sort: a clear error, and the next request is served.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::{Case, Ctx};

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    cases!["errors";
        broken_json_is_refused,
        json_that_is_no_object_is_refused,
        an_empty_body_is_refused,
        a_value_of_the_wrong_type_is_refused_with_its_field,
        bad_base64_is_refused,
        a_bad_quantity_is_refused,
        a_body_that_is_nested_too_deeply_is_refused,
        a_body_that_is_too_large_is_refused,
        an_object_that_is_too_large_is_refused,
        all_mistakes_are_told_at_once,
        a_path_that_leads_nowhere_is_not_found,
        an_encoded_slash_names_nothing,
        an_unknown_subresource_is_not_found,
        a_head_request_is_refused_where_it_is_not_served,
        an_unknown_version_in_the_body_is_refused,
        an_invalid_query_flag_is_taken_as_true,
        a_selector_with_many_requirements_is_served,
        bytes_that_are_no_text_are_refused,
        numbers_beyond_the_range_of_a_field_are_refused,
    ]
}

async fn post(ctx: &Ctx, resource: &str, body: impl Into<Vec<u8>>) -> Result<crate::Reply> {
    let call = ctx.call(Method::POST, ctx.core(resource)).header("content-type", "application/json");
    call.body(body).send().await
}

async fn broken_json_is_refused(ctx: Ctx) -> Result<()> {
    let message = "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: \
                   unexpected end of JSON input ({\"a\":)";
    post(&ctx, "configmaps", "{\"a\":").await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn json_that_is_no_object_is_refused(ctx: Ctx) -> Result<()> {
    for body in ["[]", "\"x\"", "5", "true"] {
        let status = post(&ctx, "configmaps", body).await?.refused(400, "BadRequest")?;
        let message = status["message"].as_str().unwrap_or_default();
        let start = "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: \
                     json: cannot unmarshal ";
        assert!(message.starts_with(start), "{message}");
    }
    Ok(())
}

async fn an_empty_body_is_refused(ctx: Ctx) -> Result<()> {
    let message = "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: \
                   unexpected end of JSON input (<empty>)";
    post(&ctx, "configmaps", "").await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_value_of_the_wrong_type_is_refused_with_its_field(ctx: Ctx) -> Result<()> {
    for (resource, body, rest) in [
        (
            "configmaps",
            json!({"metadata": {"name": "a"}, "data": {"a": 1}}),
            "number into Go struct field ConfigMap.data of type string",
        ),
        (
            "configmaps",
            json!({"metadata": {"name": 5}}),
            "number into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            "configmaps",
            json!({"metadata": {"name": "a", "labels": []}}),
            "array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            "pods",
            json!({"spec": {"containers": [{"ports": [{"containerPort": "http"}]}]}}),
            "string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
    ] {
        let kind = if resource == "pods" { "Pod" } else { "ConfigMap" };
        let message = format!("{kind} in version \"v1\" cannot be handled as a {kind}: json: cannot unmarshal {rest}");
        post(&ctx, resource, body.to_string()).await?.refused_with(400, "BadRequest", &message)?;
    }
    Ok(())
}

async fn bad_base64_is_refused(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "data": {"a": "%%"}});
    let message = "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data at input byte 0";
    post(&ctx, "secrets", body.to_string()).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_bad_quantity_is_refused(ctx: Ctx) -> Result<()> {
    let container = json!({"name": "a", "image": "x", "resources": {"limits": {"cpu": "lots"}}});
    let body = json!({"metadata": {"name": "a"}, "spec": {"containers": [container]}});
    let message = "Pod in version \"v1\" cannot be handled as a Pod: quantities must match the regular expression \
                   '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    post(&ctx, "pods", body.to_string()).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_body_that_is_nested_too_deeply_is_refused(ctx: Ctx) -> Result<()> {
    let depth = 10_001;
    let body =
        format!("{{\"metadata\":{{\"name\":\"z\"}},\"data\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let status = post(&ctx, "configmaps", body).await?.refused(400, "BadRequest")?;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("exceeded max depth"), "{message}");
    Ok(())
}

async fn a_body_that_is_too_large_is_refused(ctx: Ctx) -> Result<()> {
    let body = format!("{{\"metadata\":{{\"name\":\"z\"}},\"data\":{{\"a\":\"{}\"}}}}", "x".repeat(3 * 1024 * 1024));
    let message = "Request entity too large: limit is 3145728";
    post(&ctx, "configmaps", body).await?.refused_with(413, "RequestEntityTooLarge", message)?;
    Ok(())
}

async fn an_object_that_is_too_large_is_refused(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("z", json!({"a": "x".repeat(1024 * 1024 + 1)}));
    let message = "ConfigMap \"z\" is invalid: []: Too long: may not be more than 1048576 bytes";
    post(&ctx, "configmaps", body.to_string()).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn all_mistakes_are_told_at_once(ctx: Ctx) -> Result<()> {
    let body =
        json!({"metadata": {"name": "UP"}, "spec": {"ports": [{"port": 0}, {"port": 70000}], "type": "Sideways"}});
    let status = ctx.post(ctx.core("services"), &body).await?.refused(422, "Invalid")?;
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    let fields: Vec<_> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
    for field in ["metadata.name", "spec.ports[0].port", "spec.ports[1].port", "spec.type"] {
        assert!(fields.contains(&field), "no {field} in {fields:?}");
    }
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Service \"UP\" is invalid: [") && message.ends_with(']'), "{message}");
    Ok(())
}

async fn a_path_that_leads_nowhere_is_not_found(ctx: Ctx) -> Result<()> {
    let reply = ctx.get("/nowhere").await?;
    assert_eq!((reply.status, reply.text().as_str()), (404, "404 page not found\n"));
    let message = "the server could not find the requested resource";
    for path in ["/api/v2", "/apis/apps/v9/deployments", "/api/v1/namespaces/default/gadgets"] {
        ctx.get(path).await?.refused_with(404, "NotFound", message)?;
    }
    Ok(())
}

async fn an_encoded_slash_names_nothing(ctx: Ctx) -> Result<()> {
    let message = "the server could not find the requested resource";
    ctx.get(ctx.core("configmaps/a%2Fb")).await?.refused_with(404, "NotFound", message)?;
    Ok(())
}

async fn an_unknown_subresource_is_not_found(ctx: Ctx) -> Result<()> {
    let message = "the server could not find the requested resource";
    ctx.get(ctx.core("configmaps/a/status")).await?.refused_with(404, "NotFound", message)?;
    ctx.post(ctx.core("configmaps/a/b/c"), &json!({})).await?.refused_with(404, "NotFound", message)?;
    Ok(())
}

async fn a_head_request_is_refused_where_it_is_not_served(ctx: Ctx) -> Result<()> {
    assert_eq!(ctx.call(Method::HEAD, ctx.core("configmaps")).send().await?.status, 405);
    Ok(())
}

async fn an_unknown_version_in_the_body_is_refused(ctx: Ctx) -> Result<()> {
    let body = json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let status = ctx.post(ctx.core("configmaps"), &body).await?.refused(400, "BadRequest")?;
    let message = status["message"].as_str().unwrap_or_default();
    let start = "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\"";
    assert!(message.starts_with(start), "{message}");
    Ok(())
}

async fn an_invalid_query_flag_is_taken_as_true(ctx: Ctx) -> Result<()> {
    let mut watch = ctx.watch(&ctx.core("configmaps?watch=maybe&timeoutSeconds=1")).await?;
    while watch.next().await?.is_some() {}
    Ok(())
}

async fn a_selector_with_many_requirements_is_served(ctx: Ctx) -> Result<()> {
    let selector: Vec<_> = (0..500).map(|number| format!("a{number}!%3Db")).collect();
    let list = ctx.get(ctx.core(&format!("configmaps?labelSelector={}", selector.join(",")))).await?.code(200)?;
    assert_eq!(list["kind"], "ConfigMapList");
    Ok(())
}

async fn bytes_that_are_no_text_are_refused(ctx: Ctx) -> Result<()> {
    post(&ctx, "configmaps", vec![0xff, 0xfe, 0x00, 0x7b]).await?.refused(400, "BadRequest")?;
    Ok(())
}

async fn numbers_beyond_the_range_of_a_field_are_refused(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 99_999_999_999_u64}]}});
    let status: Value = ctx.post(ctx.core("services"), &body).await?.refused(400, "BadRequest")?;
    let message = "Service in version \"v1\" cannot be handled as a Service: json: cannot unmarshal number 99999999999 into Go \
                   struct field ServicePort.spec.ports.port of type int32";
    assert_eq!(status["message"], message);
    Ok(())
}
