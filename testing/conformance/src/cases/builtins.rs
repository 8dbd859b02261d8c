//! The built-in kinds: what each adds to an object, allows to change, and refuses.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Case, Ctx, PatchType, Reply};

mod cluster;
mod networks;
mod pod_life;
mod pods;
mod services;
mod storage;
mod workloads;

/// The cases of this area.
pub fn cases() -> Vec<Case> {
    [
        pods::cases(),
        pod_life::cases(),
        workloads::cases(),
        services::cases(),
        networks::cases(),
        storage::cases(),
        cluster::cases(),
    ]
    .concat()
}

/// A pod with one container.
fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "example.com/main:1"}]}})
}

/// A pod template with one container, which the label `app: x` is on.
fn template() -> Value {
    let mut template = pod("");
    template["metadata"] = json!({"labels": {"app": "x"}});
    template
}

/// Lays the second value over the first as a merge patch does.
fn with(mut object: Value, patch: &Value) -> Value {
    match (&mut object, patch) {
        (Value::Object(map), Value::Object(patch)) => {
            for (key, value) in patch {
                let merged = with(map.remove(key).unwrap_or_default(), value);
                map.insert(key.clone(), merged);
            }
            object
        }
        _ => patch.clone(),
    }
}

async fn merge(ctx: &Ctx, path: impl Into<String>, patch: &Value) -> Result<Reply> {
    ctx.patch(path, PatchType::Merge, patch).await
}

async fn strategic(ctx: &Ctx, path: impl Into<String>, patch: &Value) -> Result<Reply> {
    ctx.patch(path, PatchType::Strategic, patch).await
}

/// That this is a 422 for the object (`Pod "a"`) with exactly these mistakes, each as `field: message`.
fn invalid(reply: Reply, object: &str, mistakes: &[&str]) -> Result<()> {
    let status = reply.refused(422, "Invalid")?;
    let causes = status["details"]["causes"].as_array().context("no causes")?;
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let told: Vec<_> = causes.iter().map(|c| format!("{}: {}", text(c, "field"), text(c, "message"))).collect();
    ensure!(told == mistakes, "wanted\n  {}\ngot\n  {}", mistakes.join("\n  "), told.join("\n  "));
    let all = if told.len() == 1 { told.concat() } else { format!("[{}]", told.join(", ")) };
    let message = format!("{object} is invalid: {all}");
    ensure!(status["message"] == message.as_str(), "wanted {message:?} in {status}");
    Ok(())
}

/// As [`invalid`], for messages that continue with a dump of the server's own structures, which are not an interface.
fn invalid_at(reply: Reply, field: &str, start: &str) -> Result<()> {
    let status = reply.refused(422, "Invalid")?;
    let causes = status["details"]["causes"].as_array().context("no causes")?;
    let found = causes.iter().any(|cause| {
        cause["field"] == field && cause["message"].as_str().is_some_and(|message| message.starts_with(start))
    });
    ensure!(found, "no {field}: {start} in {status}");
    Ok(())
}

/// The object without what differs from one write to the next.
fn bare(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata
            .retain(|key, _| matches!(key.as_str(), "name" | "labels" | "annotations" | "generation" | "finalizers"));
    }
    object
}
