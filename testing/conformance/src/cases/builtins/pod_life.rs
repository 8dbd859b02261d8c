//! The life of a pod: what may change, binding, the end, eviction.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::pods::create;
use super::{invalid, invalid_at, merge, pod, strategic, with};
use crate::{Case, Ctx};

/// The cases about what happens to a pod.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        the_image_of_a_running_pod_may_change,
        the_rest_of_a_pod_may_not_change,
        tolerations_may_be_added_and_deadlines_brought_forward,
        ephemeral_containers_come_through_their_subresource,
        the_status_of_a_pod_is_written_apart,
        a_pod_is_bound_once,
        a_gated_pod_is_not_bound,
        a_bound_pod_ends_gracefully,
        a_pod_without_a_node_ends_at_once,
        a_grace_period_can_only_shrink,
        the_longest_grace_period_is_accepted,
        a_pod_is_evicted_when_no_budget_guards_it,
        a_budget_that_was_not_counted_yet_blocks_an_eviction,
        a_spent_budget_blocks_an_eviction,
        an_eviction_takes_one_from_the_budget,
        a_dry_run_of_an_eviction_changes_nothing,
        an_unhealthy_pod_goes_when_the_budget_says_so,
        an_eviction_with_two_budgets_is_refused,
        a_finished_or_waiting_pod_needs_no_budget,
    ]
}

async fn the_image_of_a_running_pod_may_change(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let patch = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let pod = strategic(&ctx, ctx.core("pods/a"), &patch).await?.code(200)?;
    assert_eq!(pod["spec"]["containers"][0]["image"], "other");
    assert_eq!(pod["metadata"]["generation"], 2);
    Ok(())
}

async fn the_rest_of_a_pod_may_not_change(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let start = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                 `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                 `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n";
    for spec in [
        json!({"restartPolicy": "Never"}),
        json!({"nodeName": "n"}),
        json!({"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]}),
        json!({"terminationGracePeriodSeconds": 1}),
    ] {
        invalid_at(strategic(&ctx, ctx.core("pods/a"), &json!({"spec": spec})).await?, "spec", start)?;
    }
    let patch = json!({"spec": {"containers": [{"name": "second", "image": "x"}]}});
    let mistakes = ["spec.containers: Forbidden: pod updates may not add or remove containers"];
    invalid(strategic(&ctx, ctx.core("pods/a"), &patch).await?, "Pod \"a\"", &mistakes)
}

async fn tolerations_may_be_added_and_deadlines_brought_forward(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let path = ctx.core("pods/a");
    let toleration = json!({"key": "x", "operator": "Exists", "effect": "NoSchedule"});
    strategic(&ctx, &path, &json!({"spec": {"tolerations": [toleration]}})).await?.code(200)?;
    merge(&ctx, &path, &json!({"spec": {"activeDeadlineSeconds": 100}})).await?.code(200)?;
    merge(&ctx, &path, &json!({"spec": {"activeDeadlineSeconds": 50}})).await?.code(200)?;
    let reply = merge(&ctx, &path, &json!({"spec": {"activeDeadlineSeconds": 200}})).await?;
    let mistakes = ["spec.activeDeadlineSeconds: Invalid value: 200: must be less than or equal to previous value"];
    invalid(reply, "Pod \"a\"", &mistakes)
}

async fn ephemeral_containers_come_through_their_subresource(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let path = ctx.core("pods/a/ephemeralcontainers");
    let patch = |image: &str| json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": image}]}});
    let pod = strategic(&ctx, &path, &patch("x")).await?.code(200)?;
    assert_eq!(pod["spec"]["ephemeralContainers"][0]["imagePullPolicy"], "Always");
    let start = "Forbidden: existing ephemeral containers \"debug\" may not be changed\n";
    invalid_at(strategic(&ctx, &path, &patch("y")).await?, "spec.ephemeralContainers", start)
}

async fn the_status_of_a_pod_is_written_apart(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let patch = json!({
        "metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let pod = strategic(&ctx, ctx.core("pods/a/status"), &patch).await?.code(200)?;
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["conditions"][0]["lastProbeTime"], Value::Null);
    assert_eq!(pod["spec"]["nodeName"], Value::Null);
    let pod = merge(&ctx, ctx.core("pods/a"), &json!({"status": {"phase": "Failed"}})).await?.code(200)?;
    assert_eq!(pod["status"]["phase"], "Running");
    Ok(())
}

fn to_node(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}})
}

async fn a_pod_is_bound_once(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let path = ctx.core("pods/a/binding");
    let status = ctx.post(&path, &to_node("a", "one")).await?.code(201)?;
    assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
    let bound = ctx.get(ctx.core("pods/a")).await?.ok()?;
    assert_eq!(bound["spec"]["nodeName"], "one");
    let condition =
        bound["status"]["conditions"].as_array().and_then(|all| all.iter().find(|c| c["type"] == "PodScheduled"));
    assert_eq!(condition.map(|c| &c["status"]), Some(&json!("True")));
    let message = "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"one\"";
    ctx.post(&path, &to_node("a", "two")).await?.refused_with(409, "Conflict", message)?;
    ctx.post(ctx.core("pods/none/binding"), &to_node("none", "one")).await?.refused_with(
        404,
        "NotFound",
        "pods \"none\" not found",
    )?;
    let message = "name in URL does not match name in Binding object";
    ctx.post(&path, &to_node("b", "one")).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_gated_pod_is_not_bound(ctx: Ctx) -> Result<()> {
    create(&ctx, &with(pod("a"), &json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}}))).await?;
    let message = "Operation cannot be fulfilled on pods/binding \"a\": pod a has non-empty .spec.schedulingGates";
    ctx.post(ctx.core("pods/a/binding"), &to_node("a", "one")).await?.refused_with(409, "Conflict", message)?;
    merge(&ctx, ctx.core("pods/a"), &json!({"spec": {"schedulingGates": null}})).await?.code(200)?;
    ctx.post(ctx.core("pods/a/binding"), &to_node("a", "one")).await?.code(201)?;
    Ok(())
}

async fn bound(ctx: &Ctx, name: &str, labels: Value) -> Result<()> {
    let body = with(pod(name), &json!({"metadata": {"labels": labels}, "spec": {"nodeName": "somewhere"}}));
    create(ctx, &body).await.map(drop)
}

async fn a_bound_pod_ends_gracefully(ctx: Ctx) -> Result<()> {
    bound(&ctx, "a", json!({})).await?;
    let ending = ctx.delete(ctx.core("pods/a")).await?.code(200)?;
    assert_eq!(ending["kind"], "Pod");
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    ctx.get(ctx.core("pods/a")).await?.code(200)?;
    // The kubelet's last word.
    ctx.delete(ctx.core("pods/a?gracePeriodSeconds=0")).await?.code(200)?;
    ctx.get(ctx.core("pods/a")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_pod_without_a_node_ends_at_once(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let gone = ctx.delete(ctx.core("pods/a")).await?.code(200)?;
    assert_eq!((&gone["kind"], &gone["metadata"]["deletionGracePeriodSeconds"]), (&json!("Pod"), &json!(0)));
    ctx.get(ctx.core("pods/a")).await?.refused(404, "NotFound")?;
    Ok(())
}

async fn a_grace_period_can_only_shrink(ctx: Ctx) -> Result<()> {
    bound(&ctx, "a", json!({})).await?;
    for (asked, given) in [(20, 20), (5, 5), (50, 5)] {
        let ending = ctx.delete_with(ctx.core("pods/a"), &json!({"gracePeriodSeconds": asked})).await?.code(200)?;
        assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], given);
    }
    Ok(())
}

async fn the_longest_grace_period_is_accepted(ctx: Ctx) -> Result<()> {
    let longest = json!({"gracePeriodSeconds": i64::MAX});
    bound(&ctx, "a", json!({})).await?;
    let ending = ctx.delete_with(ctx.core("pods/a"), &longest).await?.code(200)?;
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], i64::MAX);
    assert!(ending["metadata"]["deletionTimestamp"].is_string(), "{ending}");
    bound(&ctx, "b", json!({})).await?;
    evict(&ctx, "b", longest).await?.code(201)?;
    let ending = ctx.get(ctx.core("pods/b")).await?.code(200)?;
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], i64::MAX);
    for name in ["a", "b"] {
        ctx.delete(ctx.core(&format!("pods/{name}?gracePeriodSeconds=0"))).await?.code(200)?;
        ctx.get(ctx.core(&format!("pods/{name}"))).await?.refused(404, "NotFound")?;
    }
    Ok(())
}

async fn evict(ctx: &Ctx, name: &str, options: Value) -> Result<crate::Reply> {
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": ctx.ns}, "deleteOptions": options,
    });
    ctx.post(ctx.core(&format!("pods/{name}/eviction")), &body).await
}

/// A running pod and a budget that guards it, with this status.
async fn guarded(ctx: &Ctx, ready: bool, spec: Value, status: Value) -> Result<()> {
    bound(ctx, "a", json!({"app": "x"})).await?;
    let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
    let running = json!({"status": {"phase": "Running", "conditions": [condition]}});
    strategic(ctx, ctx.core("pods/a/status"), &running).await?.code(200)?;
    budget(ctx, "guard", spec, status).await
}

async fn budget(ctx: &Ctx, name: &str, spec: Value, status: Value) -> Result<()> {
    let path = ctx.group("policy/v1", "poddisruptionbudgets");
    let spec = with(json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}), &spec);
    ctx.post(&path, &json!({"metadata": {"name": name}, "spec": spec})).await?.code(201)?;
    if !status.is_null() {
        merge(ctx, format!("{path}/{name}/status"), &json!({"status": status})).await?.code(200)?;
    }
    Ok(())
}

fn counted(allowed: u32, healthy: u32) -> Value {
    json!({"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": 1})
}

const SPENT: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

fn blocked(reply: crate::Reply, why: &str) -> Result<Value> {
    let mut status = reply.refused_with(429, "TooManyRequests", SPENT)?;
    let causes = json!([{"reason": "DisruptionBudget", "message": why}]);
    ensure!(status["details"]["causes"] == causes, "{status}");
    Ok(status["details"].take())
}

async fn a_pod_is_evicted_when_no_budget_guards_it(ctx: Ctx) -> Result<()> {
    bound(&ctx, "a", json!({})).await?;
    let status = evict(&ctx, "a", json!({})).await?.code(201)?;
    assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
    let pod = ctx.get(ctx.core("pods/a")).await?.ok()?;
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI"))
    );
    evict(&ctx, "none", json!({})).await?.refused_with(404, "NotFound", "pods \"none\" not found")?;
    let body = json!({"metadata": {"name": "b"}});
    let message = "name in URL does not match name in Eviction object";
    ctx.post(ctx.core("pods/a/eviction"), &body).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_budget_that_was_not_counted_yet_blocks_an_eviction(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), Value::Null).await?;
    let reply = evict(&ctx, "a", json!({})).await?;
    assert_eq!(reply.header("retry-after"), "10");
    let details = blocked(reply, "The disruption budget guard is still being processed by the server.")?;
    assert_eq!(details["retryAfterSeconds"], 10);
    Ok(())
}

async fn a_spent_budget_blocks_an_eviction(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), counted(0, 1)).await?;
    let details = blocked(
        evict(&ctx, "a", json!({})).await?,
        "The disruption budget guard needs 1 healthy pods and has 1 currently",
    )?;
    assert_eq!(details["retryAfterSeconds"], Value::Null);
    ctx.get(ctx.core("pods/a")).await?.code(200)?;
    Ok(())
}

async fn an_eviction_takes_one_from_the_budget(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), counted(1, 2)).await?;
    bound(&ctx, "b", json!({"app": "x"})).await?;
    strategic(&ctx, ctx.core("pods/b/status"), &json!({"status": {"phase": "Running"}})).await?.code(200)?;
    evict(&ctx, "a", json!({})).await?.code(201)?;
    let guard = ctx.get(ctx.group("policy/v1", "poddisruptionbudgets/guard")).await?.ok()?;
    assert_eq!(guard["status"]["disruptionsAllowed"], 0);
    assert!(guard["status"]["disruptedPods"]["a"].is_string(), "{guard}");
    assert_eq!(guard["status"]["conditions"][0]["reason"], "InsufficientPods");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    strategic(&ctx, ctx.core("pods/b/status"), &ready).await?.code(200)?;
    blocked(evict(&ctx, "b", json!({})).await?, "The disruption budget guard does not allow evicting pods currently")?;
    Ok(())
}

async fn a_dry_run_of_an_eviction_changes_nothing(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), counted(1, 2)).await?;
    let before = ctx.get(ctx.core("pods/a")).await?.ok()?;
    evict(&ctx, "a", json!({"dryRun": ["All"]})).await?.code(201)?;
    assert_eq!(ctx.get(ctx.core("pods/a")).await?.ok()?, before);
    let guard = ctx.get(ctx.group("policy/v1", "poddisruptionbudgets/guard")).await?.ok()?;
    assert_eq!(guard["status"]["disruptionsAllowed"], 1);
    Ok(())
}

async fn an_unhealthy_pod_goes_when_the_budget_says_so(ctx: Ctx) -> Result<()> {
    guarded(&ctx, false, json!({}), counted(0, 0)).await?;
    let why = "The disruption budget guard needs 1 healthy pods and has 0 currently";
    blocked(evict(&ctx, "a", json!({})).await?, why)?;
    let path = ctx.group("policy/v1", "poddisruptionbudgets/guard");
    merge(&ctx, &path, &json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})).await?.code(200)?;
    evict(&ctx, "a", json!({})).await?.code(201)?;
    Ok(())
}

async fn an_eviction_with_two_budgets_is_refused(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), counted(1, 2)).await?;
    budget(&ctx, "second", json!({}), counted(1, 2)).await?;
    let status = evict(&ctx, "a", json!({})).await?.code(500)?;
    let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(status["message"], message);
    Ok(())
}

async fn a_finished_or_waiting_pod_needs_no_budget(ctx: Ctx) -> Result<()> {
    guarded(&ctx, true, json!({}), counted(0, 1)).await?;
    create(&ctx, &with(pod("waiting"), &json!({"metadata": {"labels": {"app": "x"}}}))).await?;
    evict(&ctx, "waiting", json!({})).await?.code(201)?;
    ctx.get(ctx.core("pods/waiting")).await?.refused(404, "NotFound")?;
    merge(&ctx, ctx.core("pods/a/status"), &json!({"status": {"phase": "Succeeded"}})).await?.code(200)?;
    evict(&ctx, "a", json!({})).await?.code(201)?;
    Ok(())
}
