//! Deployments and their kin, jobs, cron jobs.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{bare, invalid, invalid_at, merge, strategic, template, with};
use crate::{Case, Ctx};

/// The cases about workloads.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        a_deployment_gets_its_defaults,
        a_stateful_set_gets_its_defaults,
        a_daemon_set_gets_its_defaults,
        a_selector_must_match_its_template,
        a_selector_cannot_change,
        a_deployment_is_checked,
        a_rollout_must_be_able_to_move,
        negative_replicas_are_invalid,
        a_deployment_is_scaled_by_its_subresource,
        every_scalable_kind_has_a_scale,
        the_counts_of_a_status_must_agree,
        a_stateful_set_keeps_its_service,
        a_controller_revision_keeps_its_data,
        a_job_gets_a_selector_of_its_own,
        the_template_of_a_job_cannot_change,
        a_job_may_be_suspended_and_widened,
        a_job_is_checked,
        a_deleted_job_leaves_its_pods_with_a_warning,
        a_cron_job_gets_its_defaults,
        a_cron_job_is_checked,
    ]
}

/// A workload of any kind that selects its template.
fn workload(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template()}})
}

/// What the server makes of [`template`].
fn full_template() -> Value {
    json!({"metadata": {"labels": {"app": "x"}}, "spec": full_pod_spec("Always")})
}

fn full_pod_spec(restart: &str) -> Value {
    json!({
        "containers": [{
            "name": "main", "image": "example.com/main:1", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "dnsPolicy": "ClusterFirst", "restartPolicy": restart, "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30,
    })
}

async fn a_deployment_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.group("apps/v1", "deployments"), &workload("a")).await?.code(201)?;
    let wanted = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "generation": 1},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": full_template(),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
            "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
        },
        "status": {},
    });
    assert_eq!(bare(made), wanted);
    Ok(())
}

async fn a_stateful_set_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let body = with(
        workload("a"),
        &json!({"spec": {"serviceName": "x", "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": claim}]}}),
    );
    let made = ctx.post(ctx.group("apps/v1", "statefulsets"), &body).await?.code(201)?;
    let wanted = json!({
        "replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": full_template(), "serviceName": "x",
        "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "volumeClaimTemplates": [{
            "kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "v"},
            "spec": with(claim, &json!({"volumeMode": "Filesystem"})), "status": {"phase": "Pending"},
        }],
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["status"], json!({"replicas": 0, "availableReplicas": 0}));
    Ok(())
}

async fn a_daemon_set_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.group("apps/v1", "daemonsets"), &workload("a")).await?.code(201)?;
    let wanted = json!({
        "selector": {"matchLabels": {"app": "x"}}, "template": full_template(), "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["metadata"]["annotations"], json!({"deprecated.daemonset.template.generation": "1"}));
    let status =
        json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
    assert_eq!(made["status"], status);
    Ok(())
}

const KINDS: [(&str, &str); 4] = [
    ("deployments", "Deployment"),
    ("replicasets", "ReplicaSet"),
    ("statefulsets", "StatefulSet"),
    ("daemonsets", "DaemonSet"),
];

async fn a_selector_must_match_its_template(ctx: Ctx) -> Result<()> {
    for (resource, kind) in KINDS {
        let body = with(workload("a"), &json!({"spec": {"selector": {"matchLabels": {"app": "y"}}}}));
        let reply = ctx.post(ctx.group("apps/v1", resource), &body).await?;
        let mistakes = [
            "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
        ];
        invalid(reply, &format!("{kind}.apps \"a\""), &mistakes)?;
    }
    Ok(())
}

async fn a_selector_cannot_change(ctx: Ctx) -> Result<()> {
    for (resource, kind) in [("deployments", "Deployment"), ("replicasets", "ReplicaSet"), ("daemonsets", "DaemonSet")]
    {
        let path = ctx.group("apps/v1", resource);
        ctx.post(&path, &workload("a")).await?.code(201)?;
        let labels = json!({"app": "y"});
        let patch =
            json!({"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}});
        let mistakes = ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"y\"}}: field is immutable"];
        invalid(merge(&ctx, format!("{path}/a"), &patch).await?, &format!("{kind}.apps \"a\""), &mistakes)?;
    }
    Ok(())
}

async fn a_deployment_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments");
    let mistakes = [
        "spec.selector: Required value",
        "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
        "spec.template.spec.containers: Required value",
    ];
    invalid(ctx.post(&path, &json!({"metadata": {"name": "a"}})).await?, "Deployment.apps \"a\"", &mistakes)?;
    let mut body = with(workload("a"), &json!({"spec": {"template": {"spec": {"restartPolicy": "Never"}}}}));
    body["spec"]["selector"] = json!({});
    let mistakes = [
        "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
        "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
    ];
    invalid(ctx.post(&path, &body).await?, "Deployment.apps \"a\"", &mistakes)
}

async fn a_rollout_must_be_able_to_move(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments");
    let stuck = json!({"spec": {
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}, "minReadySeconds": 700,
    }});
    let mistakes = [
        "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
    ];
    invalid(ctx.post(&path, &with(workload("a"), &stuck)).await?, "Deployment.apps \"a\"", &mistakes)?;
    ctx.post(&path, &workload("a")).await?.code(201)?;
    let mistakes = ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"];
    let reply = merge(&ctx, format!("{path}/a"), &json!({"spec": {"strategy": {"type": "Recreate"}}})).await?;
    invalid(reply, "Deployment.apps \"a\"", &mistakes)?;
    let reply = merge(&ctx, format!("{path}/a"), &json!({"spec": {"strategy": {"type": "Sideways"}}})).await?;
    let mistakes =
        ["spec.strategy: Unsupported value: {\"Type\":\"Sideways\",\"RollingUpdate\":{\"MaxUnavailable\":\"25%\",\
                     \"MaxSurge\":\"25%\"}}: supported values: \"Recreate\", \"RollingUpdate\""];
    invalid(reply, "Deployment.apps \"a\"", &mistakes)?;
    let recreate = json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}});
    merge(&ctx, format!("{path}/a"), &recreate).await?.code(200)?;
    Ok(())
}

async fn negative_replicas_are_invalid(ctx: Ctx) -> Result<()> {
    for (resource, kind) in
        [("deployments", "Deployment"), ("replicasets", "ReplicaSet"), ("statefulsets", "StatefulSet")]
    {
        let reply =
            ctx.post(ctx.group("apps/v1", resource), &with(workload("a"), &json!({"spec": {"replicas": -1}}))).await?;
        let mistakes = ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"];
        invalid(reply, &format!("{kind}.apps \"a\""), &mistakes)?;
    }
    Ok(())
}

async fn a_deployment_is_scaled_by_its_subresource(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "deployments/a/scale");
    ctx.post(ctx.group("apps/v1", "deployments"), &workload("a")).await?.code(201)?;
    let scale = ctx.get(&path).await?.code(200)?;
    assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!(scale["spec"], json!({"replicas": 1}));
    assert_eq!(scale["status"], json!({"replicas": 0, "selector": "app=x"}));
    let body = |replicas: i32| json!({"metadata": {"name": "a", "namespace": ctx.ns}, "spec": {"replicas": replicas}});
    assert_eq!(ctx.put(&path, &body(3)).await?.code(200)?["spec"]["replicas"], 3);
    let mistakes = ["spec.replicas: Invalid value: -3: must be greater than or equal to 0"];
    invalid(ctx.put(&path, &body(-3)).await?, "Scale.autoscaling \"a\"", &mistakes)?;
    merge(&ctx, &path, &json!({"spec": {"replicas": 5}})).await?.code(200)?;
    let whole = ctx.get(ctx.group("apps/v1", "deployments/a")).await?.ok()?;
    assert_eq!((&whole["spec"]["replicas"], &whole["metadata"]["generation"]), (&json!(5), &json!(3)));
    let message = "deployments.apps \"none\" not found";
    ctx.get(ctx.group("apps/v1", "deployments/none/scale")).await?.refused_with(404, "NotFound", message)?;
    Ok(())
}

async fn every_scalable_kind_has_a_scale(ctx: Ctx) -> Result<()> {
    for resource in ["replicasets", "statefulsets"] {
        ctx.post(ctx.group("apps/v1", resource), &workload("a")).await?.code(201)?;
        let path = ctx.group("apps/v1", &format!("{resource}/a/scale"));
        assert_eq!(merge(&ctx, &path, &json!({"spec": {"replicas": 2}})).await?.code(200)?["spec"]["replicas"], 2);
        assert_eq!(ctx.get(ctx.group("apps/v1", &format!("{resource}/a"))).await?.ok()?["spec"]["replicas"], 2);
    }
    let reply = ctx.get(ctx.group("apps/v1", "daemonsets/a/scale")).await?;
    ensure!(reply.status == 404, "{} {}", reply.status, reply.text());
    Ok(())
}

async fn the_counts_of_a_status_must_agree(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group("apps/v1", "deployments"), &workload("a")).await?.code(201)?;
    let path = ctx.group("apps/v1", "deployments/a/status");
    let reply = merge(&ctx, &path, &json!({"status": {"replicas": 5, "readyReplicas": 7}})).await?;
    let mistakes = ["status.readyReplicas: Invalid value: 7: cannot be greater than status.replicas"];
    invalid(reply, "Deployment.apps \"a\"", &mistakes)?;
    let made = merge(&ctx, &path, &json!({"status": {"replicas": 5, "readyReplicas": 5}})).await?.code(200)?;
    assert_eq!(made["metadata"]["generation"], 1);
    Ok(())
}

async fn a_stateful_set_keeps_its_service(ctx: Ctx) -> Result<()> {
    let body = with(workload("a"), &json!({"spec": {"serviceName": "x"}}));
    ctx.post(ctx.group("apps/v1", "statefulsets"), &body).await?.code(201)?;
    let path = ctx.group("apps/v1", "statefulsets/a");
    let mistakes = ["spec.serviceName: Invalid value: \"y\": field is immutable"];
    invalid(merge(&ctx, &path, &json!({"spec": {"serviceName": "y"}})).await?, "StatefulSet.apps \"a\"", &mistakes)?;
    merge(&ctx, &path, &json!({"spec": {"replicas": 3, "minReadySeconds": 4}})).await?.code(200)?;
    Ok(())
}

async fn a_controller_revision_keeps_its_data(ctx: Ctx) -> Result<()> {
    let path = ctx.group("apps/v1", "controllerrevisions");
    let body = json!({"metadata": {"name": "a"}, "revision": 1, "data": {"a": 1}});
    ctx.post(&path, &body).await?.code(201)?;
    merge(&ctx, format!("{path}/a"), &json!({"revision": 2})).await?.code(200)?;
    let reply = merge(&ctx, format!("{path}/a"), &json!({"data": {"a": 2}})).await?;
    invalid_at(reply, "data", "Invalid value")
}

fn job(name: &str) -> Value {
    let mut template = template();
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"metadata": {"name": name}, "spec": {"template": template}})
}

async fn a_job_gets_a_selector_of_its_own(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.group("batch/v1", "jobs"), &job("a")).await?.code(201)?;
    let uid = made["metadata"]["uid"].clone();
    let labels = json!({
        "app": "x", "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "a", "controller-uid": uid,
        "job-name": "a",
    });
    let wanted = json!({
        "parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": false,
        "manualSelector": false, "podReplacementPolicy": "TerminatingOrFailed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
        "template": {"metadata": {"labels": labels}, "spec": full_pod_spec("Never")},
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["status"], json!({}));
    Ok(())
}

async fn the_template_of_a_job_cannot_change(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group("batch/v1", "jobs"), &job("a")).await?.code(201)?;
    let path = ctx.group("batch/v1", "jobs/a");
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "y"}]}}}});
    let status = strategic(&ctx, &path, &patch).await?.refused(422, "Invalid")?;
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.template");
    assert!(cause["message"].as_str().is_some_and(|message| message.ends_with(": field is immutable")), "{cause}");
    let mistakes = ["spec.completions: Invalid value: 4: field is immutable"];
    invalid(merge(&ctx, &path, &json!({"spec": {"completions": 4}})).await?, "Job.batch \"a\"", &mistakes)
}

async fn a_job_may_be_suspended_and_widened(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group("batch/v1", "jobs"), &job("a")).await?.code(201)?;
    let patch = json!({"spec": {"suspend": true, "parallelism": 3, "activeDeadlineSeconds": 9, "backoffLimit": 2}});
    let made = merge(&ctx, ctx.group("batch/v1", "jobs/a"), &patch).await?.code(200)?;
    assert_eq!((&made["spec"]["parallelism"], &made["metadata"]["generation"]), (&json!(3), &json!(2)));
    Ok(())
}

async fn a_job_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group("batch/v1", "jobs");
    let mistakes = ["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""];
    let body = json!({"metadata": {"name": "a"}, "spec": {"template": template()}});
    invalid(ctx.post(&path, &body).await?, "Job.batch \"a\"", &mistakes)?;
    let wrong = json!({"spec": {
        "parallelism": -1, "completions": -1, "backoffLimit": -1, "activeDeadlineSeconds": -1, "completionMode": "X",
    }});
    let mistakes = [
        "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
        "spec.completions: Invalid value: -1: must be greater than or equal to 0",
        "spec.activeDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
        "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
        "spec.completionMode: Unsupported value: \"X\": supported values: \"NonIndexed\", \"Indexed\"",
    ];
    invalid(ctx.post(&path, &with(job("a"), &wrong)).await?, "Job.batch \"a\"", &mistakes)
}

async fn a_deleted_job_leaves_its_pods_with_a_warning(ctx: Ctx) -> Result<()> {
    let path = ctx.group("batch/v1", "jobs");
    ctx.post(&path, &job("a")).await?.code(201)?;
    let reply = ctx.delete(format!("{path}/a")).await?;
    let warning = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set \
                   propagationPolicy=Orphan to suppress this warning";
    assert_eq!(reply.warnings(), [warning]);
    assert_eq!(reply.code(200)?["metadata"]["finalizers"], json!(["orphan"]));
    ctx.post(&path, &job("b")).await?.code(201)?;
    let reply = ctx.delete(format!("{path}/b?propagationPolicy=Background")).await?;
    assert_eq!(reply.warnings(), [""; 0]);
    assert_eq!(reply.code(200)?["kind"], "Status");
    Ok(())
}

fn cron_job(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": job("")["spec"]}}})
}

async fn a_cron_job_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.group("batch/v1", "cronjobs"), &cron_job("a")).await?.code(201)?;
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": full_pod_spec("Never")});
    let wanted = json!({
        "schedule": "*/5 * * * *", "concurrencyPolicy": "Allow", "suspend": false, "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1, "jobTemplate": {"metadata": {}, "spec": {"template": template}},
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["status"], json!({}));
    Ok(())
}

async fn a_cron_job_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group("batch/v1", "cronjobs");
    let wrong = json!({"spec": {
        "schedule": "every day", "concurrencyPolicy": "Maybe", "timeZone": "Mars/North",
        "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Always"}}}},
    }});
    let mistakes = [
        "spec.schedule: Invalid value: \"every day\": expected exactly 5 fields, found 2: [every day]",
        "spec.timeZone: Invalid value: \"Mars/North\": unknown time zone Mars/North",
        "spec.concurrencyPolicy: Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
    ];
    invalid(ctx.post(&path, &with(cron_job("a"), &wrong)).await?, "CronJob.batch \"a\"", &mistakes)?;
    let long = "x".repeat(53);
    let reply = ctx.post(&path, &with(cron_job(&long), &json!({"spec": {"schedule": "TZ=UTC * * * * *"}}))).await?;
    let mistakes = [
        "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        &format!("metadata.name: Invalid value: \"{long}\": must be no more than 52 characters"),
    ];
    invalid(reply, &format!("CronJob.batch \"{long}\""), &mistakes)?;
    ctx.post(&path, &with(cron_job("a"), &json!({"spec": {"timeZone": "Europe/Zurich"}}))).await?.code(201)?;
    Ok(())
}
