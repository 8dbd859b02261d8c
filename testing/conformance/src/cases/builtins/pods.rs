//! Pods: defaults, admission, validation.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{bare, invalid, pod, with};
use crate::{Case, Ctx, eventually};

/// The cases about pods.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        a_pod_gets_its_defaults,
        a_container_gets_its_defaults,
        an_image_without_a_tag_is_always_pulled,
        a_pod_gets_its_service_account_token,
        a_pod_can_do_without_a_token,
        a_pod_of_an_unknown_account_is_forbidden,
        a_pod_takes_its_priority_from_its_class,
        a_priority_without_a_class_is_forbidden,
        a_runtime_class_that_is_not_there_is_forbidden,
        a_pod_without_containers_is_invalid,
        containers_are_checked_one_by_one,
        ports_are_checked,
        environment_variables_are_checked,
        volumes_and_mounts_are_checked,
        resources_are_checked,
        probes_and_hooks_are_checked,
        tolerations_and_affinity_are_checked,
        unknown_words_of_a_pod_are_unsupported_values,
    ]
}

/// The default account and the certificate are created a moment after the namespace.
pub(super) async fn create(ctx: &Ctx, body: &Value) -> Result<Value> {
    eventually("the namespace has its account", async || ctx.get(ctx.core("serviceaccounts/default")).await?.ok())
        .await?;
    ctx.post(ctx.core("pods"), body).await?.code(201)
}

async fn refused(ctx: &Ctx, spec: Value, mistakes: &[&str]) -> Result<()> {
    let body = with(pod("bad"), &json!({"spec": spec}));
    invalid(ctx.post(ctx.core("pods"), &body).await?, "Pod \"bad\"", mistakes)
}

fn container(rest: &Value) -> Value {
    json!({"containers": [with(json!({"name": "c", "image": "x"}), rest)]})
}

async fn a_pod_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let body = with(pod("a"), &json!({"spec": {"automountServiceAccountToken": false}}));
    let made = bare(create(&ctx, &body).await?);
    let lasting =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    let wanted = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "generation": 1},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "example.com/main:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
            "tolerations": [lasting("node.kubernetes.io/not-ready"), lasting("node.kubernetes.io/unreachable")],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    });
    assert_eq!(made, wanted);
    Ok(())
}

async fn a_container_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let more = json!({
        "automountServiceAccountToken": false, "hostNetwork": true,
        "containers": [{
            "name": "c", "image": "x:1", "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        }],
        "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "x"}}, {"name": "h", "hostPath": {"path": "/x"}}],
    });
    let made = create(&ctx, &json!({"metadata": {"name": "a"}, "spec": more})).await?;
    let container = &made["spec"]["containers"][0];
    assert_eq!(container["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
    let probe = json!({
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
        "successThreshold": 1, "failureThreshold": 3,
    });
    assert_eq!(container["livenessProbe"], probe);
    let all = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(container["resources"], json!({"limits": all, "requests": all}));
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"], json!({"apiVersion": "v1", "fieldPath": "metadata.name"}));
    let volumes = json!([
        {"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
        {"name": "h", "hostPath": {"path": "/x", "type": ""}},
    ]);
    assert_eq!(made["spec"]["volumes"], volumes);
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
    Ok(())
}

async fn an_image_without_a_tag_is_always_pulled(ctx: Ctx) -> Result<()> {
    let images = ["x", "x:latest", "x:1", "x@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"];
    let containers: Vec<_> =
        images.iter().enumerate().map(|(at, image)| json!({"name": format!("c{at}"), "image": image})).collect();
    let made = create(&ctx, &json!({"metadata": {"name": "a"}, "spec": {"containers": containers}})).await?;
    let policies: Vec<_> = (0..4).map(|at| made["spec"]["containers"][at]["imagePullPolicy"].clone()).collect();
    assert_eq!(policies, ["Always", "Always", "IfNotPresent", "IfNotPresent"]);
    Ok(())
}

async fn a_pod_gets_its_service_account_token(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, &pod("a")).await?;
    let volume = &made["spec"]["volumes"][0];
    let name = volume["name"].as_str().context("no name")?;
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let mount = json!({"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    assert_eq!(made["spec"]["containers"][0]["volumeMounts"], json!([mount]));
    let wanted = json!({"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]});
    assert_eq!(volume["projected"], wanted);
    Ok(())
}

async fn a_pod_can_do_without_a_token(ctx: Ctx) -> Result<()> {
    let account = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "pull"}]});
    ctx.post(ctx.core("serviceaccounts"), &account).await?.code(201)?;
    let body = with(pod("a"), &json!({"spec": {"serviceAccountName": "quiet"}}));
    // Admission looks into a cache, which learns of the account a moment later.
    let made = eventually("the account is known", async || ctx.post(ctx.core("pods"), &body).await?.code(201)).await?;
    assert_eq!(made["spec"]["volumes"], Value::Null);
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    Ok(())
}

async fn a_pod_of_an_unknown_account_is_forbidden(ctx: Ctx) -> Result<()> {
    let body = with(pod("a"), &json!({"spec": {"serviceAccountName": "none"}}));
    let message = format!(
        "pods \"a\" is forbidden: error looking up service account {}/none: serviceaccount \"none\" not found",
        ctx.ns
    );
    ctx.post(ctx.core("pods"), &body).await?.refused_with(403, "Forbidden", &message)?;
    Ok(())
}

async fn a_pod_takes_its_priority_from_its_class(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("class");
    let class = json!({"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"});
    ctx.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?.code(201)?;
    let body = with(pod("a"), &json!({"spec": {"priorityClassName": name}}));
    let made = eventually("the class is known", async || create(&ctx, &body).await).await?;
    assert_eq!((&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]), (&json!(1000), &json!("Never")));
    let body = with(pod("b"), &json!({"spec": {"priorityClassName": "none"}}));
    let message = "pods \"b\" is forbidden: no PriorityClass with name none was found";
    ctx.post(ctx.core("pods"), &body).await?.refused_with(403, "Forbidden", message)?;
    let body = with(pod("c"), &json!({"spec": {"priorityClassName": "system-node-critical"}}));
    assert_eq!(create(&ctx, &body).await?["spec"]["priority"], 2_000_001_000);
    Ok(())
}

async fn a_priority_without_a_class_is_forbidden(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let body = with(pod("b"), &json!({"spec": {"priority": 5}}));
    let message = "pods \"b\" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission \
                   controller computed 0 from the given PriorityClass name";
    ctx.post(ctx.core("pods"), &body).await?.refused_with(403, "Forbidden", message)?;
    Ok(())
}

async fn a_runtime_class_that_is_not_there_is_forbidden(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let body = with(pod("b"), &json!({"spec": {"runtimeClassName": "none"}}));
    let message = "pods \"b\" is forbidden: pod rejected: RuntimeClass \"none\" not found";
    ctx.post(ctx.core("pods"), &body).await?.refused_with(403, "Forbidden", message)?;
    Ok(())
}

async fn a_pod_without_containers_is_invalid(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    refused(&ctx, json!({"containers": []}), &["spec.containers: Required value"]).await?;
    let body = json!({"metadata": {"name": "bad"}});
    invalid(ctx.post(ctx.core("pods"), &body).await?, "Pod \"bad\"", &["spec.containers: Required value"])
}

async fn containers_are_checked_one_by_one(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let spec = json!({"containers": [{"name": "A_"}, {"name": "b", "image": "x"}, {"name": "b", "image": "x"}]});
    let mistakes = [
        "spec.containers[0].name: Invalid value: \"A_\": a lowercase RFC 1123 label must consist of lower case alphanumeric \
         characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
         validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        "spec.containers[0].image: Required value",
        "spec.containers[2].name: Duplicate value: \"b\"",
    ];
    refused(&ctx, spec, &mistakes).await?;
    let mistakes = ["spec.containers[0].image: Invalid value: \" x \": must not have leading or trailing whitespace"];
    refused(&ctx, container(&json!({"image": " x "})), &mistakes).await?;
    let init = json!({"name": "main", "image": "x", "readinessProbe": {"exec": {"command": ["a"]}}});
    let mistakes = [
        "spec.initContainers[0].name: Duplicate value: \"main\"",
        "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    ];
    refused(&ctx, json!({"initContainers": [init]}), &mistakes).await?;
    let mistakes = ["spec.ephemeralContainers: Forbidden: cannot be set on create"];
    refused(&ctx, json!({"ephemeralContainers": [{"name": "e", "image": "x"}]}), &mistakes).await
}

async fn ports_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let ports = json!([
        {"containerPort": 0}, {"containerPort": 70000, "name": "a"}, {"containerPort": 1, "name": "a"},
        {"containerPort": 80, "protocol": "QUIC", "hostPort": 99999},
    ]);
    let mistakes = [
        "spec.containers[0].ports[0].containerPort: Required value",
        "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        "spec.containers[0].ports[2].name: Duplicate value: \"a\"",
        "spec.containers[0].ports[3].hostPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
        "spec.containers[0].ports[3].protocol: Unsupported value: \"QUIC\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
    ];
    refused(&ctx, container(&json!({"ports": ports})), &mistakes).await
}

async fn environment_variables_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let env = json!([
        {"name": ""}, {"name": "a=b"},
        {"name": "x", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.colour"}}},
    ]);
    let mistakes = [
        "spec.containers[0].env[0].name: Required value",
        "spec.containers[0].env[1].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable \
         ASCII characters other than '='",
        "spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.colour\": error converting fieldPath: field \
         label not supported: spec.colour",
        "spec.containers[0].env[2].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
    ];
    refused(&ctx, container(&json!({"env": env})), &mistakes).await
}

async fn volumes_and_mounts_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let mounts = json!([{"name": "none", "mountPath": "/x"}, {"name": "none", "mountPath": "/x"}]);
    let mistakes = [
        "spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
        "spec.containers[0].volumeMounts[1].name: Not found: \"none\"",
        "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/x\": must be unique",
    ];
    refused(&ctx, container(&json!({"volumeMounts": mounts})), &mistakes).await?;
    let volumes = json!([
        {"name": "a"}, {"name": "a"}, {"name": "b", "emptyDir": {}, "hostPath": {"path": "/x"}}, {"name": "c", "secret": {}},
        {"name": "d", "configMap": {}}, {"name": "e", "persistentVolumeClaim": {"claimName": ""}},
    ]);
    let mistakes = [
        "spec.volumes[1].name: Duplicate value: \"a\"",
        "spec.volumes[2].hostPath: Forbidden: may not specify more than 1 volume type",
        "spec.volumes[3].secret.secretName: Required value",
        "spec.volumes[4].configMap.name: Required value",
        "spec.volumes[5].persistentVolumeClaim.claimName: Required value",
    ];
    refused(&ctx, json!({"volumes": volumes}), &mistakes).await
}

async fn resources_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let resources = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}});
    let mistakes =
        ["spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"];
    refused(&ctx, container(&json!({"resources": resources})), &mistakes).await?;
    let mistakes = [
        "spec.containers[0].resources.requests[bogus]: Invalid value: \"bogus\": must be a standard resource type or fully qualified",
        "spec.containers[0].resources.requests[bogus]: Invalid value: \"bogus\": must be a standard resource for containers",
    ];
    refused(&ctx, container(&json!({"resources": {"requests": {"bogus": "1"}}})), &mistakes).await?;
    let mistakes =
        ["spec.containers[0].resources.requests[cpu]: Invalid value: \"-2\": must be greater than or equal to 0"];
    refused(&ctx, container(&json!({"resources": {"requests": {"cpu": "-2"}}})), &mistakes).await
}

async fn probes_and_hooks_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let rest = json!({
        "livenessProbe": {}, "readinessProbe": {"httpGet": {"port": 0}, "periodSeconds": -1},
        "startupProbe": {"exec": {"command": []}, "tcpSocket": {"port": "x"}},
    });
    let mistakes = [
        "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        "spec.containers[0].readinessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
        "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        "spec.containers[0].startupProbe.exec.command: Required value",
        "spec.containers[0].startupProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
    ];
    refused(&ctx, container(&rest), &mistakes).await?;
    let probe = json!({"successThreshold": 2, "exec": {"command": ["a"]}});
    let mistakes = ["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"];
    refused(&ctx, container(&json!({"livenessProbe": probe})), &mistakes).await?;
    let mistakes = ["spec.containers[0].lifecycle.preStop: Required value: must specify a handler type"];
    refused(&ctx, container(&json!({"lifecycle": {"preStop": {}}})), &mistakes).await
}

async fn tolerations_and_affinity_are_checked(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let tolerations = json!([
        {"operator": "Equal"}, {"key": "a", "operator": "Exists", "value": "b"}, {"key": "a", "operator": "X", "effect": "Y"},
    ]);
    let mistakes = [
        "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match \
         all values and all keys\"",
        "spec.tolerations[1].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
        "spec.tolerations[2].operator: Unsupported value: \"X\": supported values: \"Equal\", \"Exists\"",
        "spec.tolerations[2].effect: Unsupported value: \"Y\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
    ];
    refused(&ctx, json!({"tolerations": tolerations}), &mistakes).await?;
    let terms = json!([{"matchExpressions": [{"key": "a", "operator": "In"}]}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = json!({"nodeAffinity": {required: {"nodeSelectorTerms": terms}}});
    let mistake = format!(
        "spec.affinity.nodeAffinity.{required}.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified \
         when `operator` is 'In' or 'NotIn'"
    );
    refused(&ctx, json!({"affinity": affinity}), &[&mistake]).await?;
    let spread = json!([{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "X"}]);
    let mistakes = [
        "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
        "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
        "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"X\": supported values: \"DoNotSchedule\", \
         \"ScheduleAnyway\"",
    ];
    refused(&ctx, json!({"topologySpreadConstraints": spread}), &mistakes).await
}

async fn unknown_words_of_a_pod_are_unsupported_values(ctx: Ctx) -> Result<()> {
    create(&ctx, &pod("a")).await?;
    let mistakes = [
        "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        "spec.dnsPolicy: Unsupported value: \"X\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \
         \"None\"",
    ];
    refused(&ctx, json!({"restartPolicy": "Sometimes", "dnsPolicy": "X"}), &mistakes).await?;
    let rest = json!({"imagePullPolicy": "Sometimes", "terminationMessagePolicy": "X"});
    let mistakes = [
        "spec.containers[0].terminationMessagePolicy: Unsupported value: \"X\": supported values: \"File\", \
         \"FallbackToLogsOnError\"",
        "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \
         \"Never\"",
    ];
    refused(&ctx, container(&rest), &mistakes).await
}
