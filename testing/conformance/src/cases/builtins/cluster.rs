//! Namespaces, nodes, events, leases, certificate requests, priorities, budgets.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{invalid, merge, strategic};
use crate::{Case, Ctx, eventually};

/// The cases about the cluster's own kinds.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        a_namespace_is_finalized_by_its_subresource,
        a_foreign_finalizer_holds_a_namespace,
        a_namespace_that_the_cluster_needs_cannot_be_deleted,
        the_name_of_a_namespace_is_a_label,
        a_node_starts_not_ready,
        the_taints_of_a_node_are_checked,
        a_node_keeps_its_addresses_and_provider,
        the_status_of_a_node_is_written_apart,
        the_capacity_of_a_node_is_checked,
        an_event_is_one_object_in_two_groups,
        an_event_is_found_by_the_object_it_is_about,
        an_event_is_checked,
        a_new_event_keeps_its_words,
        an_update_creates_a_lease,
        an_update_of_a_lease_needs_a_version,
        a_lease_is_checked,
        an_update_creates_some_kinds_and_not_others,
        a_certificate_request_knows_who_asked,
        a_certificate_request_is_approved_by_its_subresource,
        a_certificate_request_is_checked,
        a_priority_class_keeps_its_value,
        a_priority_class_of_the_system_cannot_be_deleted,
        a_disruption_budget_is_checked,
        a_quota_is_checked,
    ]
}

async fn namespace(ctx: &Ctx) -> Result<(String, String)> {
    let name = ctx.unique("space");
    ctx.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?.code(201)?;
    Ok((format!("/api/v1/namespaces/{name}"), name))
}

async fn a_namespace_is_finalized_by_its_subresource(ctx: Ctx) -> Result<()> {
    let (path, name) = namespace(&ctx).await?;
    let space = ctx.get(&path).await?.ok()?;
    assert_eq!(space["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(space["status"], json!({"phase": "Active"}));
    // The usual ways do not touch the finalizers.
    let space = merge(&ctx, &path, &json!({"spec": {"finalizers": []}})).await?.code(200)?;
    assert_eq!(space["spec"], json!({"finalizers": ["kubernetes"]}));
    let body = |finalizers: Value| json!({"metadata": {"name": name}, "spec": {"finalizers": finalizers}});
    let space = ctx.put(format!("{path}/finalize"), &body(json!(["kubernetes", "example.com/x"]))).await?.code(200)?;
    assert_eq!(space["spec"], json!({"finalizers": ["kubernetes", "example.com/x"]}));
    let mistakes = [
        "spec.finalizers[0]: Invalid value: \"none\": name is neither a standard finalizer name nor is it fully qualified",
    ];
    let reply = ctx.put(format!("{path}/finalize"), &body(json!(["none"]))).await?;
    invalid(reply, &format!("Namespace \"{name}\""), &mistakes)
}

async fn a_foreign_finalizer_holds_a_namespace(ctx: Ctx) -> Result<()> {
    let (path, name) = namespace(&ctx).await?;
    let body = |finalizers: Value| json!({"metadata": {"name": name}, "spec": {"finalizers": finalizers}});
    ctx.put(format!("{path}/finalize"), &body(json!(["kubernetes", "example.com/x"]))).await?.code(200)?;
    let ending = ctx.delete(&path).await?.code(200)?;
    assert_eq!((&ending["kind"], &ending["status"]["phase"]), (&json!("Namespace"), &json!("Terminating")));
    let message = format!(
        "configmaps \"a\" is forbidden: unable to create new content in namespace {name} because it is being terminated"
    );
    eventually("nothing new is taken", async || {
        let reply = ctx.post(format!("{path}/configmaps"), &json!({"metadata": {"name": "a"}})).await?;
        let status = reply.refused_with(403, "Forbidden", &message)?;
        let told = format!("namespace {name} is being terminated");
        let cause = json!({"reason": "NamespaceTerminating", "message": told, "field": "metadata.namespace"});
        ensure!(status["details"]["causes"] == json!([cause]), "{status}");
        Ok(())
    })
    .await?;
    eventually("only the foreign finalizer is left", async || {
        let space = ctx.get(&path).await?.ok()?;
        ensure!(space["spec"] == json!({"finalizers": ["example.com/x"]}), "{space}");
        Ok(())
    })
    .await?;
    ctx.put(format!("{path}/finalize"), &body(json!([]))).await?.code(200)?;
    eventually("it is gone", async || ctx.get(&path).await?.refused(404, "NotFound")).await?;
    Ok(())
}

async fn a_namespace_that_the_cluster_needs_cannot_be_deleted(ctx: Ctx) -> Result<()> {
    for name in ["default", "kube-system", "kube-public"] {
        let message = format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
        ctx.delete(format!("/api/v1/namespaces/{name}")).await?.refused_with(403, "Forbidden", &message)?;
    }
    let message = "the server does not allow this method on the requested resource";
    ctx.delete("/api/v1/namespaces").await?.refused_with(405, "MethodNotAllowed", message)?;
    Ok(())
}

async fn the_name_of_a_namespace_is_a_label(ctx: Ctx) -> Result<()> {
    let path = "/api/v1/namespaces";
    let mistakes = ["metadata.name: Invalid value: \"a.b\": must not contain dots"];
    invalid(ctx.post(path, &json!({"metadata": {"name": "a.b"}})).await?, "Namespace \"a.b\"", &mistakes)?;
    // The name label cannot be removed.
    let patch = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}});
    let space = merge(&ctx, format!("{path}/{}", ctx.ns), &patch).await?.code(200)?;
    assert_eq!(space["metadata"]["labels"]["kubernetes.io/metadata.name"], ctx.ns.as_str());
    Ok(())
}

async fn node(ctx: &Ctx) -> Result<(String, Value)> {
    let name = ctx.unique("node");
    let made = ctx.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await?.code(201)?;
    Ok((format!("/api/v1/nodes/{name}"), made))
}

async fn a_node_starts_not_ready(ctx: Ctx) -> Result<()> {
    let (_, made) = node(&ctx).await?;
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    assert_eq!(made["spec"], json!({"taints": [taint]}));
    assert_eq!(made["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
    assert_eq!(made["status"]["nodeInfo"]["kubeletVersion"], "");
    Ok(())
}

async fn the_taints_of_a_node_are_checked(ctx: Ctx) -> Result<()> {
    let (path, made) = node(&ctx).await?;
    let object = format!("Node \"{}\"", made["metadata"]["name"].as_str().unwrap_or_default());
    let taints = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "d", "effect": "X"}]);
    let mistakes = [
        "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must \
         be unique by key and effect pair",
        "metadata.taints[2].effect: Unsupported value: \"X\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
    ];
    invalid(merge(&ctx, &path, &json!({"spec": {"taints": taints}})).await?, &object, &mistakes)?;
    let taints = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
    let made = strategic(&ctx, &path, &json!({"spec": {"taints": taints, "unschedulable": true}})).await?.code(200)?;
    assert_eq!(made["spec"]["unschedulable"], true);
    let list = ctx.get("/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue").await?.ok()?;
    let names: Vec<_> = list["items"].as_array().into_iter().flatten().map(|node| &node["metadata"]["name"]).collect();
    assert!(names.contains(&&made["metadata"]["name"]), "{names:?}");
    Ok(())
}

async fn a_node_keeps_its_addresses_and_provider(ctx: Ctx) -> Result<()> {
    let (path, made) = node(&ctx).await?;
    let object = format!("Node \"{}\"", made["metadata"]["name"].as_str().unwrap_or_default());
    let range = |cidr: &str| json!({"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
    merge(&ctx, &path, &range("10.0.0.0/24")).await?.code(200)?;
    let mistakes = ["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"];
    invalid(merge(&ctx, &path, &range("10.0.1.0/24")).await?, &object, &mistakes)?;
    merge(&ctx, &path, &json!({"spec": {"providerID": "cloud://a"}})).await?.code(200)?;
    let mistakes = ["spec.providerID: Invalid value: null: field cannot be modified once set"];
    invalid(merge(&ctx, &path, &json!({"spec": {"providerID": "cloud://b"}})).await?, &object, &mistakes)
}

async fn the_status_of_a_node_is_written_apart(ctx: Ctx) -> Result<()> {
    let (path, _) = node(&ctx).await?;
    let patch = json!({
        "spec": {"unschedulable": true},
        "status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let made = strategic(&ctx, format!("{path}/status"), &patch).await?.code(200)?;
    assert_eq!(made["spec"]["unschedulable"], Value::Null);
    assert_eq!(made["status"]["allocatable"], json!({"cpu": "4"}));
    let patch = json!({"status": {"conditions": [{"type": "MemoryPressure", "status": "False"}]}});
    let made = strategic(&ctx, format!("{path}/status"), &patch).await?.code(200)?;
    assert_eq!(made["status"]["conditions"].as_array().map(Vec::len), Some(2));
    Ok(())
}

async fn the_capacity_of_a_node_is_checked(ctx: Ctx) -> Result<()> {
    let (path, made) = node(&ctx).await?;
    let object = format!("Node \"{}\"", made["metadata"]["name"].as_str().unwrap_or_default());
    let patch = json!({"status": {"capacity": {"cpu": "-4"}, "allocatable": {"cpu": "1"}}});
    let mistakes = ["status.capacity.cpu: Invalid value: \"-4\": must be greater than or equal to 0"];
    invalid(merge(&ctx, format!("{path}/status"), &patch).await?, &object, &mistakes)
}

const EVENTS: &str = "events.k8s.io/v1";

fn old_event(ctx: &Ctx) -> Value {
    json!({
        "metadata": {"name": "old"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": ctx.ns}, "reason": "Why",
        "message": "words", "type": "Normal", "source": {"component": "c"}, "count": 3,
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:00:00Z",
    })
}

fn new_event(ctx: &Ctx) -> Value {
    json!({
        "metadata": {"name": "new"}, "regarding": {"kind": "Pod", "name": "p", "namespace": ctx.ns}, "reason": "Why",
        "action": "Doing", "type": "Normal", "note": "words", "reportingController": "example.com/c",
        "reportingInstance": "i", "eventTime": "2024-01-01T00:00:00.000001Z",
    })
}

async fn an_event_is_one_object_in_two_groups(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("events"), &old_event(&ctx)).await?.code(201)?;
    let event = ctx.get(ctx.group(EVENTS, "events/old")).await?.code(200)?;
    assert_eq!((&event["apiVersion"], &event["note"]), (&json!(EVENTS), &json!("words")));
    assert_eq!((&event["deprecatedCount"], &event["deprecatedSource"]), (&json!(3), &json!({"component": "c"})));
    assert_eq!(event["regarding"]["name"], "p");
    ctx.post(ctx.group(EVENTS, "events"), &new_event(&ctx)).await?.code(201)?;
    let event = ctx.get(ctx.core("events/new")).await?.code(200)?;
    assert_eq!((&event["apiVersion"], &event["message"]), (&json!("v1"), &json!("words")));
    assert_eq!((&event["reportingComponent"], &event["source"]), (&json!("example.com/c"), &json!({})));
    assert_eq!(event["eventTime"], "2024-01-01T00:00:00.000001Z");
    Ok(())
}

async fn an_event_is_found_by_the_object_it_is_about(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("events"), &old_event(&ctx)).await?.code(201)?;
    ctx.post(ctx.group(EVENTS, "events"), &new_event(&ctx)).await?.code(201)?;
    let series = json!({"series": {"count": 2, "lastObservedTime": "2024-01-01T00:00:01.000001Z"}});
    merge(&ctx, ctx.group(EVENTS, "events/new"), &series).await?.code(200)?;
    for path in [
        ctx.core("events?fieldSelector=involvedObject.name%3Dp,reason%3DWhy,type%3DNormal"),
        ctx.group(EVENTS, "events?fieldSelector=regarding.name%3Dp,reason%3DWhy"),
        ctx.core("events?fieldSelector=involvedObject.kind%3DPod"),
    ] {
        let list = ctx.get(&path).await?.code(200)?;
        let names: Vec<_> =
            list["items"].as_array().into_iter().flatten().map(|e| e["metadata"]["name"].clone()).collect();
        ensure!(names == ["new", "old"], "{path}: {names:?}");
    }
    let message = "field label not supported: colour";
    ctx.get(ctx.core("events?fieldSelector=colour%3Dred")).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn an_event_is_checked(ctx: Ctx) -> Result<()> {
    let mut event = old_event(&ctx);
    event["involvedObject"]["namespace"] = json!("other");
    let mistakes = ["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"];
    invalid(ctx.post(ctx.core("events"), &event).await?, "Event \"old\"", &mistakes)?;
    let event = json!({"metadata": {"name": "new"}, "regarding": {"kind": "Pod", "name": "p", "namespace": ctx.ns}});
    let mistakes = ["eventTime: Required value", "type: Invalid value: \"\": has invalid value: "];
    invalid(ctx.post(ctx.group(EVENTS, "events"), &event).await?, "Event \"new\"", &mistakes)
}

async fn a_new_event_keeps_its_words(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.group(EVENTS, "events"), &new_event(&ctx)).await?.code(201)?;
    let path = ctx.group(EVENTS, "events/new");
    let mistakes = ["message: Invalid value: \"other\": field is immutable"];
    invalid(merge(&ctx, &path, &json!({"note": "other"})).await?, "Event \"new\"", &mistakes)?;
    let series = json!({"series": {"count": 2, "lastObservedTime": "2024-01-01T00:00:01.000001Z"}});
    merge(&ctx, &path, &series).await?.code(200)?;
    ctx.post(ctx.core("events"), &old_event(&ctx)).await?.code(201)?;
    merge(&ctx, ctx.core("events/old"), &json!({"message": "other", "count": 4})).await?.code(200)?;
    Ok(())
}

const LEASES: &str = "coordination.k8s.io/v1";

async fn an_update_creates_a_lease(ctx: Ctx) -> Result<()> {
    let path = ctx.group(LEASES, "leases/a");
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-01-01T00:00:00.123456Z"});
    let body = json!({"metadata": {"name": "a", "namespace": ctx.ns}, "spec": spec});
    ctx.put(format!("{path}?dryRun=All"), &body).await?.code(201)?;
    ctx.get(&path).await?.refused(404, "NotFound")?;
    let made = ctx.put(&path, &body).await?.code(201)?;
    assert_eq!(made["spec"], spec);
    let again = with_version(&body, &made["metadata"]["resourceVersion"]);
    ctx.put(&path, &again).await?.code(200)?;
    Ok(())
}

fn with_version(body: &Value, version: &Value) -> Value {
    super::with(body.clone(), &json!({"metadata": {"resourceVersion": version}}))
}

async fn an_update_of_a_lease_needs_a_version(ctx: Ctx) -> Result<()> {
    let path = ctx.group(LEASES, "leases/a");
    let body = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}});
    ctx.put(&path, &body).await?.code(201)?;
    let mistakes = ["metadata.resourceVersion: Invalid value: 0: must be specified for an update"];
    invalid(ctx.put(&path, &body).await?, "leases.coordination.k8s.io \"a\"", &mistakes)
}

async fn a_lease_is_checked(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}});
    let mistakes = [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
    ];
    invalid(ctx.post(ctx.group(LEASES, "leases"), &body).await?, "Lease.coordination.k8s.io \"a\"", &mistakes)?;
    // A time with microseconds must be written with all six digits.
    let body = json!({"metadata": {"name": "a"}, "spec": {"renewTime": "2024-01-01T00:00:00Z"}});
    ctx.post(ctx.group(LEASES, "leases"), &body).await?.refused(400, "BadRequest")?;
    Ok(())
}

async fn an_update_creates_some_kinds_and_not_others(ctx: Ctx) -> Result<()> {
    let put = async |path: String, rest: Value| {
        let body = super::with(json!({"metadata": {"name": "a"}}), &rest);
        anyhow::Ok(ctx.put(path, &body).await?.status)
    };
    assert_eq!(put(ctx.core("endpoints/a"), json!({})).await?, 201);
    assert_eq!(put(ctx.core("services/a"), json!({"spec": {"ports": [{"port": 1}]}})).await?, 201);
    assert_eq!(put(ctx.group("rbac.authorization.k8s.io/v1", "roles/a"), json!({})).await?, 201);
    assert_eq!(put(ctx.core("secrets/a"), json!({})).await?, 404);
    assert_eq!(put(ctx.core("configmaps/a"), json!({})).await?, 404);
    assert_eq!(put(ctx.group("apps/v1", "deployments/a"), json!({})).await?, 404);
    assert_eq!(put(ctx.group("discovery.k8s.io/v1", "endpointslices/a"), json!({})).await?, 404);
    Ok(())
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// A PKCS #10 request for `O=example, CN=somebody`.
const PKCS10: &str = include_str!("request.b64");

fn request(name: &str, rest: &Value) -> Value {
    let spec = json!({"request": PKCS10.trim(), "signerName": "example.com/signer", "usages": ["client auth"]});
    json!({"metadata": {"name": name}, "spec": super::with(spec, rest)})
}

async fn a_certificate_request_knows_who_asked(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("request");
    let somebody = ctx.as_user("somebody", &["example", "system:masters"]).await?;
    let body = request(&name, &json!({"username": "me", "groups": ["system:masters"]}));
    let made = somebody.post(REQUESTS, &body).await?.code(201)?;
    assert_eq!(made["spec"]["username"], "somebody");
    assert_eq!(made["spec"]["groups"], json!(["example", "system:masters", "system:authenticated"]));
    assert_eq!(made["status"], json!({}));
    // The requested spec stays unchanged.
    let changed = merge(&ctx, format!("{REQUESTS}/{name}"), &json!({"spec": {"signerName": "example.com/b"}})).await?;
    assert_eq!(changed.code(200)?["spec"]["signerName"], "example.com/signer");
    Ok(())
}

async fn a_certificate_request_is_approved_by_its_subresource(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("request");
    ctx.post(REQUESTS, &request(&name, &json!({}))).await?.code(201)?;
    let path = format!("{REQUESTS}/{name}");
    let approved =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
    let made = merge(&ctx, &path, &approved).await?.code(200)?;
    assert_eq!(made["status"], json!({}));
    let made = merge(&ctx, format!("{path}/approval"), &approved).await?.code(200)?;
    let condition = &made["status"]["conditions"][0];
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string(), "{condition}");
    let object = format!("CertificateSigningRequest.certificates.k8s.io \"{name}\"");
    let none = json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}});
    let mistakes = ["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""];
    invalid(merge(&ctx, format!("{path}/status"), &none).await?, &object, &mistakes)?;
    let reply = merge(&ctx, format!("{path}/status"), &json!({"status": {"certificate": "YQ=="}})).await?;
    let mistakes =
        ["status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block"];
    invalid(reply, &object, &mistakes)?;
    let both = json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]);
    let reply = merge(&ctx, format!("{path}/approval"), &json!({"status": {"conditions": both}})).await?;
    let mistakes = [
        "status.conditions: Invalid value: \"{conditions[{\\\"type\\\": \\\"Approved\\\"}], conditions[{\\\"type\\\": \
                     \\\"Denied\\\"}]}\": must specify at most one of: `conditions[{\"type\": \"Approved\"}]`, `conditions[{\"type\": \
                     \"Denied\"}]`",
    ];
    invalid(reply, &object, &mistakes)
}

async fn a_certificate_request_is_checked(ctx: Ctx) -> Result<()> {
    let object = "CertificateSigningRequest.certificates.k8s.io \"bad\"";
    for (rest, mistakes) in [
        (
            json!({"request": "YQ=="}),
            ["spec.request: Invalid value: \"YQ==\": PEM block type must be CERTIFICATE REQUEST"],
        ),
        (
            json!({"signerName": "none"}),
            [
                "spec.signerName: Invalid value: \"none\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ],
        ),
        (json!({"usages": []}), ["spec.usages: Required value"]),
        (
            json!({"expirationSeconds": 5}),
            ["spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)"],
        ),
    ] {
        invalid(ctx.post(REQUESTS, &request("bad", &rest)).await?, object, &mistakes)?;
    }
    Ok(())
}

const PRIORITIES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

async fn a_priority_class_keeps_its_value(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("class");
    let made = ctx.post(PRIORITIES, &json!({"metadata": {"name": name}, "value": 1000})).await?.code(201)?;
    assert_eq!(made["preemptionPolicy"], "PreemptLowerPriority");
    let object = format!("PriorityClass.scheduling.k8s.io \"{name}\"");
    let reply = merge(&ctx, format!("{PRIORITIES}/{name}"), &json!({"value": 5})).await?;
    invalid(reply, &object, &["value: Forbidden: may not be changed in an update."])?;
    let reply = ctx.post(PRIORITIES, &json!({"metadata": {"name": "high"}, "value": 2_000_000_000})).await?;
    let mistakes = ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"];
    invalid(reply, "PriorityClass.scheduling.k8s.io \"high\"", &mistakes)
}

async fn a_priority_class_of_the_system_cannot_be_deleted(ctx: Ctx) -> Result<()> {
    let message = "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot \
                   be deleted";
    let reply = ctx.delete(format!("{PRIORITIES}/system-node-critical")).await?;
    reply.refused_with(403, "Forbidden", message)?;
    let reply = ctx.post(PRIORITIES, &json!({"metadata": {"name": "system-x"}, "value": 2})).await?;
    let mistakes = [
        "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: \
                     system-x is not a known system priority class",
    ];
    invalid(reply, "PriorityClass.scheduling.k8s.io \"system-x\"", &mistakes)
}

async fn a_disruption_budget_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group("policy/v1", "poddisruptionbudgets");
    let object = "PodDisruptionBudget.policy \"a\"";
    for (spec, mistake) in [
        (json!({"minAvailable": -1}), "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"),
        (json!({"minAvailable": "150%"}), "spec.minAvailable: Invalid value: \"150%\": must not be greater than 100%"),
        (
            json!({"minAvailable": 1, "maxUnavailable": 1}),
            "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":{},\"MaxUnavailable\":1,\"UnhealthyPodEvictionPolicy\":null}: \
             minAvailable and maxUnavailable cannot be both set",
        ),
        (
            json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": "X"}),
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"X\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ),
    ] {
        let spec = super::with(json!({"selector": {}}), &spec);
        invalid(ctx.post(&path, &json!({"metadata": {"name": "a"}, "spec": spec})).await?, object, &[mistake])?;
    }
    let made = ctx.post(&path, &json!({"metadata": {"name": "a"}, "spec": {"minAvailable": 1}})).await?.code(201)?;
    let wanted = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
    assert_eq!(made["status"], wanted);
    Ok(())
}

async fn a_quota_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.core("resourcequotas");
    let object = "ResourceQuota \"a\"";
    for (hard, mistakes) in [
        (json!({"pods": "-1"}), vec!["spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0"]),
        (json!({"secrets": "1500m"}), vec!["spec.hard[secrets]: Invalid value: \"1500m\": must be an integer"]),
        (
            json!({"dogs": "1"}),
            vec![
                "spec.hard[dogs]: Invalid value: \"dogs\": must be a standard resource type or fully qualified",
                "spec.hard[dogs]: Invalid value: \"dogs\": must be a standard resource for quota",
            ],
        ),
    ] {
        invalid(
            ctx.post(&path, &json!({"metadata": {"name": "a"}, "spec": {"hard": hard}})).await?,
            object,
            &mistakes,
        )?;
    }
    let body = json!({"metadata": {"name": "a"}, "spec": {"hard": {"count/leases.coordination.k8s.io": "10"}}, "status": {"hard": {"pods": "1"}}});
    let made = ctx.post(&path, &body).await?.code(201)?;
    assert_eq!(made["status"], json!({}));
    let status = json!({"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}});
    let kept = merge(&ctx, &format!("{path}/a/status"), &status).await?.code(200)?;
    assert_eq!((&kept["status"]["used"]["pods"], &kept["spec"]), (&json!("0"), &made["spec"]));
    let gone = ctx.delete(format!("{path}/a")).await?.code(200)?;
    assert_eq!(gone["kind"], "ResourceQuota");
    Ok(())
}
