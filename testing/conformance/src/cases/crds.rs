//! Custom resources: their definitions, schemas, rules, versions and subresources.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Crd, Ctx, Reply};

mod definitions;
mod lifecycle;
mod rules;
mod schemas;
mod serving;

/// Where definitions are.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Where errors in the schema of `spec` are reported when all versions have one schema.
const SPEC: &str = "spec.validation.openAPIV3Schema.properties[spec]";

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    [definitions::cases(), schemas::cases(), rules::cases(), serving::cases(), lifecycle::cases()].concat()
}

/// One cause of a refusal.
#[derive(Debug, PartialEq, Eq)]
struct Cause {
    reason: String,
    field: String,
    message: String,
}

/// A cause; the reason without its `FieldValue`.
fn cause(reason: &str, field: &str, message: &str) -> Cause {
    Cause { reason: format!("FieldValue{reason}"), field: field.into(), message: message.into() }
}

/// A cause somewhere below the schema of `spec`.
fn spec_cause(reason: &str, field: &str, message: &str) -> Cause {
    cause(reason, &format!("{SPEC}{field}"), message)
}

/// Holds a refusal as invalid to its causes, and its message to both.
fn invalid(reply: Reply, object: &str, wanted: &[Cause]) -> Result<()> {
    let status = reply.refused(422, "Invalid")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = status["details"]["causes"].as_array().into_iter().flatten();
    let found: Vec<Cause> = found
        .map(|c| Cause { reason: text(&c["reason"]), field: text(&c["field"]), message: text(&c["message"]) })
        .collect();
    assert_eq!(found, wanted);
    let parts: Vec<String> = wanted.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    let parts = if let [part] = &*parts { part.clone() } else { format!("[{}]", parts.join(", ")) };
    assert_eq!(text(&status["message"]), format!("{object} is invalid: {parts}"));
    Ok(())
}

/// A definition whose `spec` has this schema and whose `status` is free.
fn with_spec(ctx: &Ctx, spec: Value) -> Crd {
    Crd::new(ctx, spec, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
}

/// A definition whose `spec` has these properties.
fn with_properties(ctx: &Ctx, properties: Value) -> Crd {
    with_spec(ctx, json!({"type": "object", "properties": properties}))
}

/// A definition whose `spec` has this one property, `a`.
fn with_a(ctx: &Ctx, schema: Value) -> Crd {
    with_properties(ctx, json!({"a": schema}))
}

/// The definition is refused for these reasons.
async fn refused(ctx: &Ctx, crd: &Crd, wanted: &[Cause]) -> Result<()> {
    let reply = ctx.post(DEFINITIONS, &crd.body).await?;
    let name = crd.body["metadata"]["name"].as_str().unwrap_or_default();
    invalid(reply, &format!("CustomResourceDefinition.apiextensions.k8s.io \"{name}\""), wanted)
}

/// A widget with this spec is refused for these reasons.
async fn widget_refused(ctx: &Ctx, crd: &Crd, spec: Value, wanted: &[Cause]) -> Result<()> {
    let reply = ctx.post(crd.path(ctx, "?dryRun=All"), &crd.widget("one", spec)).await?;
    invalid(reply, &format!("Widget.{} \"one\"", crd.group), wanted)
}

/// A widget with this spec is accepted; what its spec became.
async fn accepted(ctx: &Ctx, crd: &Crd, spec: Value) -> Result<Value> {
    let made = ctx.post(crd.path(ctx, "?dryRun=All"), &crd.widget("one", spec)).await?.code(201)?;
    Ok(made["spec"].clone())
}

/// One of a definition's conditions.
fn condition(crd: &Value, kind: &str) -> Value {
    let all = crd["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = all.filter(|condition| condition["type"] == kind).cloned();
    let mut condition = found.next().unwrap_or_default();
    if let Some(fields) = condition.as_object_mut() {
        fields.remove("lastTransitionTime");
    }
    condition
}

/// Waits until the definition's condition is as wanted: type, status, reason, message.
async fn has_condition(ctx: &Ctx, path: &str, [kind, status, reason, message]: [&str; 4]) -> Result<()> {
    let wanted = json!({"type": kind, "status": status, "reason": reason, "message": message});
    crate::eventually("the condition", async || {
        let now = ctx.get(path).await?.ok()?;
        ensure!(condition(&now, kind) == wanted, "wanted {wanted} in {}", now["status"]);
        Ok(())
    })
    .await
}
