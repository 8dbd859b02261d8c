//! Wrong input of every sort: a clear error, and the next request is served.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::{Case, Ctx, PatchType, ServerKind};

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
        all_mistakes_are_reported_at_once,
        a_path_that_leads_nowhere_is_not_found,
        an_encoded_slash_names_nothing,
        an_unknown_subresource_is_not_found,
        a_head_request_is_refused_where_it_is_not_served,
        an_unknown_version_in_the_body_is_refused,
        an_invalid_query_flag_is_taken_as_true,
        a_selector_with_many_requirements_is_served,
        bytes_that_are_no_text_are_refused,
        numbers_beyond_the_range_of_a_field_are_refused,
        duplicate_fields_are_warned_of_one_by_one,
        a_strict_decoding_names_duplicate_and_unknown_fields,
        unknown_words_in_the_query_are_refused,
        a_bad_manager_is_refused,
        numbers_in_the_query_are_checked,
        options_that_contradict_each_other_are_refused,
        a_time_that_is_none_is_refused,
        an_owner_reference_is_checked,
        a_name_is_checked,
        a_patch_of_the_wrong_shape_is_refused,
        delete_options_are_read_strictly,
        a_method_that_a_path_does_not_serve_is_refused,
        an_answer_of_an_unknown_shape_is_not_acceptable,
        an_error_is_answered_in_the_accepted_format,
        logs_and_commands_are_refused(differs "there are no kubelets behind the embedded server: it says so instead of trying to reach one"),
        what_the_embedded_server_lacks_is_absent(differs "webhooks, aggregation, limit ranges and flow control are not supported: discovery does not list them and their paths lead nowhere"),
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

async fn all_mistakes_are_reported_at_once(ctx: Ctx) -> Result<()> {
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

async fn duplicate_fields_are_warned_of_one_by_one(ctx: Ctx) -> Result<()> {
    let body = r#"{"metadata":{"name":"x","name":"a"},"data":{"k":"1","k":"2"}}"#;
    let reply = post(&ctx, "configmaps", body).await?;
    assert_eq!(reply.warnings(), [r#"duplicate field "metadata.name""#, r#"duplicate field "data.k""#]);
    let made = reply.code(201)?;
    assert_eq!((&made["metadata"]["name"], &made["data"]["k"]), (&json!("a"), &json!("2")));
    let reply = post(&ctx, "configmaps?fieldValidation=Ignore&dryRun=All", body.replace("\"a\"", "\"b\"")).await?;
    assert_eq!((reply.status, reply.warnings()), (201, vec![]));
    Ok(())
}

async fn a_strict_decoding_names_duplicate_and_unknown_fields(ctx: Ctx) -> Result<()> {
    let body = r#"{"metadata":{"name":"x","name":"a"},"data":{"k":"1","k":"2"},"bogus":1}"#;
    let message = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \
                   \"metadata.name\", duplicate field \"data.k\", unknown field \"bogus\"";
    let reply = post(&ctx, "configmaps?fieldValidation=Strict", body).await?;
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn unknown_words_in_the_query_are_refused(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("a", json!({}));
    for (query, mistake) in [
        (
            "fieldValidation=Maybe",
            "fieldValidation: Unsupported value: \"Maybe\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
        ),
        ("dryRun=Some", "dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""),
    ] {
        let reply = ctx.post(ctx.core(&format!("configmaps?{query}")), &body).await?;
        let message = format!("CreateOptions.meta.k8s.io \"\" is invalid: {mistake}");
        let status = reply.refused_with(422, "Invalid", &message)?;
        assert_eq!(status["details"]["group"], "meta.k8s.io");
    }
    let message = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Sideways\": supported values: \
                   \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
    let reply = ctx.delete(ctx.core("configmaps/a?propagationPolicy=Sideways")).await?;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_bad_manager_is_refused(ctx: Ctx) -> Result<()> {
    let body = ctx.config_map("a", json!({}));
    let long = "x".repeat(129);
    for (manager, mistake) in [
        (long.as_str(), "Too long: may not be more than 128 bytes"),
        ("%07", "Invalid value: \"\\a\": invalid character U+0007 (at position 0)"),
    ] {
        let reply = ctx.post(ctx.core(&format!("configmaps?fieldManager={manager}")), &body).await?;
        let message = format!("CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: {mistake}");
        reply.refused_with(422, "Invalid", &message)?;
    }
    let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
    ctx.patch(ctx.core("configmaps/a"), PatchType::Apply, &body).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn numbers_in_the_query_are_checked(ctx: Ctx) -> Result<()> {
    let message = "strconv.ParseInt: parsing \"soon\": invalid syntax";
    ctx.get(ctx.core("configmaps?timeoutSeconds=soon")).await?.refused_with(400, "BadRequest", message)?;
    let reply = ctx.delete(ctx.core("configmaps/a?gracePeriodSeconds=soon")).await?;
    reply.refused_with(400, "BadRequest", message)?;
    let message = "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
    for path in ["configmaps?watch=true&resourceVersion=x", "configmaps/kube-root-ca.crt?resourceVersion=x"] {
        let status = ctx.get(ctx.core(path)).await?.code(500)?;
        assert_eq!(status["message"], message, "{path}");
    }
    Ok(())
}

async fn options_that_contradict_each_other_are_refused(ctx: Ctx) -> Result<()> {
    for (query, mistake) in [
        (
            "watch=true&sendInitialEvents=true",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        ("sendInitialEvents=true", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        (
            "watch=true&resourceVersionMatch=Exact&resourceVersion=1",
            "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided, \
             resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]",
        ),
    ] {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {mistake}");
        ctx.get(ctx.core(&format!("configmaps?{query}"))).await?.refused_with(422, "Invalid", &message)?;
    }
    let message = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and \
                   deletionPropagation cannot be both set";
    let reply = ctx.delete(ctx.core("configmaps/a?propagationPolicy=Orphan&orphanDependents=true")).await?;
    reply.refused_with(422, "Invalid", message)?;
    let message =
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch";
    let reply = ctx.patch(ctx.core("configmaps/a?force=true"), PatchType::Merge, &json!({})).await?;
    reply.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_time_that_is_none_is_refused(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a", "creationTimestamp": "yesterday"}});
    let message = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: parsing time \"yesterday\" as \
                   \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"";
    ctx.post(ctx.core("configmaps"), &body).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn an_owner_reference_is_checked(ctx: Ctx) -> Result<()> {
    let owner = json!({"apiVersion": "x/y/z", "kind": "", "name": "", "uid": ""});
    let body = json!({"metadata": {"name": "a", "ownerReferences": [owner]}});
    let at = "metadata.ownerReferences[0]";
    let message = format!(
        "ConfigMap \"a\" is invalid: [{at}.apiVersion: Invalid value: \"x/y/z\": must be <group>/<version> or <version>, {at}.kind: \
         Required value: must not be empty, {at}.name: Required value: must not be empty, {at}.uid: Required value: must not be empty]"
    );
    ctx.post(ctx.core("configmaps"), &body).await?.refused_with(422, "Invalid", &message)?;
    Ok(())
}

async fn a_name_is_checked(ctx: Ctx) -> Result<()> {
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end \
                with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    for name in ["a/b", "..", "-a"] {
        let body = json!({"metadata": {"name": name}});
        let message = format!("ConfigMap {name:?} is invalid: metadata.name: Invalid value: {name:?}: {rule}");
        ctx.post(ctx.core("configmaps"), &body).await?.refused_with(422, "Invalid", &message)?;
    }
    let message = "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required";
    ctx.post(ctx.core("configmaps"), &json!({})).await?.refused_with(422, "Invalid", message)?;
    Ok(())
}

async fn a_patch_of_the_wrong_shape_is_refused(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("a", json!({}))).await?.code(201)?;
    let patch = async |kind: PatchType, body: &'static str| {
        let call = ctx.call(Method::PATCH, ctx.core("configmaps/a?fieldManager=x"));
        call.header("content-type", kind.content_type()).body(body).send().await
    };
    let message = "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}";
    patch(PatchType::Merge, "[]").await?.refused_with(400, "BadRequest", message)?;
    patch(PatchType::Merge, "{\"a\":").await?.refused(400, "BadRequest")?;
    patch(PatchType::Apply, "a: [").await?.refused(400, "BadRequest")?;
    patch(PatchType::Json, "{}").await?.refused(400, "BadRequest")?;
    let message = "the server rejected our request due to an error in our request";
    patch(PatchType::Json, r#"[{"op":"remove","path":"/none"}]"#).await?.refused_with(422, "Invalid", message)?;
    patch(PatchType::Merge, r#"{"data":5}"#).await?.refused(422, "Invalid")?;
    ctx.get(ctx.core("configmaps/a")).await?.code(200)?;
    Ok(())
}

async fn delete_options_are_read_strictly(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("configmaps"), &ctx.config_map("a", json!({}))).await?.code(201)?;
    for options in [json!({"preconditions": {"uid": 5}}), json!({"kind": "Sheep", "apiVersion": "v1"})] {
        ctx.delete_with(ctx.core("configmaps/a"), &options).await?.refused(400, "BadRequest")?;
    }
    let message =
        "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"";
    let reply = ctx.delete_with(ctx.core("configmaps/a"), &json!({"dryRun": ["Some"]})).await?;
    reply.refused_with(422, "Invalid", message)?;
    ctx.get(ctx.core("configmaps/a")).await?.code(200)?;
    Ok(())
}

async fn a_method_that_a_path_does_not_serve_is_refused(ctx: Ctx) -> Result<()> {
    let message = "the server does not allow this method on the requested resource";
    let body = ctx.config_map("a", json!({}));
    ctx.put(ctx.core("configmaps"), &body).await?.refused_with(405, "MethodNotAllowed", message)?;
    ctx.post(ctx.core("configmaps/a"), &body).await?.refused_with(405, "MethodNotAllowed", message)?;
    ctx.patch(ctx.core("configmaps"), PatchType::Merge, &body).await?.refused_with(405, "MethodNotAllowed", message)?;
    ctx.post("/version", &json!({})).await?.refused_with(405, "MethodNotAllowed", message)?;
    Ok(())
}

async fn an_answer_of_an_unknown_shape_is_not_acceptable(ctx: Ctx) -> Result<()> {
    for shape in ["as=Chair;g=meta.k8s.io;v=v1", "as=Table;g=meta.k8s.io;v=v7"] {
        let call = ctx.call(Method::GET, ctx.core("configmaps")).header("accept", &format!("application/json;{shape}"));
        let status = call.send().await?.refused(406, "NotAcceptable")?;
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("only the following media types are accepted: application/json"), "{message}");
    }
    Ok(())
}

async fn an_error_is_answered_in_the_accepted_format(ctx: Ctx) -> Result<()> {
    let call = ctx.call(Method::GET, ctx.core("configmaps/none")).header("accept", "application/yaml");
    let reply = call.send().await?;
    assert_eq!((reply.status, reply.header("content-type")), (404, "application/yaml"));
    assert!(reply.text().contains("reason: NotFound\n"), "{}", reply.text());
    Ok(())
}

async fn logs_and_commands_are_refused(ctx: Ctx) -> Result<()> {
    for (method, path) in [(Method::GET, "log"), (Method::POST, "exec?command=ls"), (Method::POST, "portforward")] {
        let reply = ctx.call(method, ctx.core(&format!("pods/none/{path}"))).send().await?;
        assert!((400..500).contains(&reply.status), "{path}: {} {}", reply.status, reply.text());
    }
    let list = ctx.get("/api/v1").await?.code(200)?;
    let names: Vec<_> = list["resources"].as_array().into_iter().flatten().map(|r| r["name"].clone()).collect();
    let served = ctx.kind() == ServerKind::Real;
    for name in
        ["pods/log", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"]
    {
        assert_eq!(names.contains(&json!(name)), served, "{name}");
    }
    Ok(())
}

async fn what_the_embedded_server_lacks_is_absent(ctx: Ctx) -> Result<()> {
    let served = ctx.kind() == ServerKind::Real;
    for path in [
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
        "/api/v1/limitranges",
    ] {
        assert_eq!(ctx.get(path).await?.status, if served { 200 } else { 404 }, "{path}");
    }
    let groups = ctx.get("/apis").await?.code(200)?;
    let names: Vec<_> = groups["groups"].as_array().into_iter().flatten().map(|group| group["name"].clone()).collect();
    for group in ["admissionregistration.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io"] {
        assert_eq!(names.contains(&json!(group)), served, "{group}");
    }
    Ok(())
}
