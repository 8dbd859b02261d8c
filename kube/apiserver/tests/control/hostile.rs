//! Hostile clients: random objects, patches, paths and queries from a fixed seed, numbers at the limits of their types, and attempts to get past the
//! authorization or to keep the server busy. Every answer is an answer; none is the server's own fault.

use serde_json::{Map, Value, json};

use crate::support::{Cluster, PODS, pod};

const WORDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "status",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "uid",
    "ownerReferences",
    "managedFields",
    "fieldsV1",
    "f:spec",
    "resourceVersion",
    "generateName",
    "deletionTimestamp",
    "containers",
    "template",
    "selector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "ports",
    "port",
    "targetPort",
    "protocol",
    "data",
    "stringData",
    "rules",
    "subjects",
    "roleRef",
    "verbs",
    "apiGroups",
    "versions",
    "schema",
    "openAPIV3Schema",
    "properties",
    "items",
    "type",
    "x-kubernetes-validations",
    "rule",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "default",
    "pattern",
    "enum",
    "storage",
    "served",
    "names",
    "plural",
    "group",
    "scope",
    "replicas",
    "strategy",
    "rollingUpdate",
    "maxSurge",
    "image",
    "env",
    "value",
    "resources",
    "limits",
    "cpu",
    "volumes",
    "clusterIP",
    "clusterIPs",
    "schedule",
    "minAvailable",
    "op",
    "path",
    "from",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "request",
    "signerName",
    "usages",
    "taints",
    "effect",
    "conditions",
    "addresses",
    "endpoints",
    "capacity",
    "accessModes",
    "user",
    "groups",
    "resourceAttributes",
    "token",
    "audiences",
];
const TEXTS: &[&str] = &[
    "",
    "a",
    "A_",
    "one",
    "default",
    "object",
    "string",
    "array",
    "integer",
    "map",
    "add",
    "replace",
    "/spec/replicas",
    "/metadata",
    "-1",
    "1e400",
    "10.96.0.5",
    "None",
    "2020-01-01T00:00:00Z",
    "*/5 * * * *",
    "self.x > 1",
    "[",
    "\u{0}",
    "é\u{301}",
    "In",
    "example.com/x",
    "v1",
    "apps/v1",
    "Pod",
    "TCP",
    "25%",
    "500m",
    "1Gi",
    "999999999999999999999Ei",
    "true",
    "../..",
    "a/b/c",
];

/// A small generator: the same nonsense in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next(list.len())]
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.next(if depth == 0 { 6 } else { 10 }) {
            0 => Value::Null,
            1 => (self.next(2) == 0).into(),
            2 => self.of(&[0, 1, -1, 65536, i64::MAX, i64::MIN]).into(),
            3 => json!(self.of(&[0.5, -1e300, 1e18])),
            4 | 5 => self.of(TEXTS).into(),
            6 => (0..self.next(4)).map(|_| self.value(depth - 1)).collect(),
            _ => self.object(depth),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut map = Map::new();
        for _ in 0..self.next(6) {
            let value = self.value(depth.saturating_sub(1));
            map.insert(self.of(WORDS).into(), value);
        }
        map.into()
    }

    /// A value with some of its parts replaced.
    fn spoil(&mut self, value: &mut Value) {
        match value {
            _ if self.next(12) == 0 => *value = self.value(2),
            Value::Object(map) => {
                map.values_mut().for_each(|value| self.spoil(value));
                if self.next(8) == 0 {
                    let extra = self.value(2);
                    map.insert(self.of(WORDS).into(), extra);
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.spoil(value)),
            _ => {}
        }
    }
}

/// Objects that are right, to be spoiled.
fn seeds() -> Vec<(&'static str, Value)> {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x",
        "ports": [{"containerPort": 80}], "env": [{"name": "E", "value": "v"}], "resources": {"limits": {"cpu": "1"}}}],
        "volumes": [{"name": "v", "emptyDir": {}}]}});
    let crd = json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [{"name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}}, "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [{"rule": "self.n > 1"}], "properties": {"n": {"type": "integer", "default": 2},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}}}}}}]}});
    vec![
        ("/api/v1/namespaces/default/pods", json!({"metadata": {"name": "p"}, "spec": template["spec"]})),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}], "selector": {"a": "b"}}}),
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "c", "labels": {"a": "b"}}, "data": {"k": "v"}}),
        ),
        (
            "/api/v1/namespaces/default/secrets",
            json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}, "data": {"b": "Yg=="}}),
        ),
        (
            "/api/v1/nodes",
            json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "4"}}}),
        ),
        ("/api/v1/namespaces", json!({"metadata": {"name": "ns"}})),
        (
            "/api/v1/persistentvolumes",
            json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        ),
        (
            "/apis/batch/v1/namespaces/default/cronjobs",
            json!({"metadata": {"name": "j"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}}),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({"metadata": {"name": "r"}, "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "User", "name": "u"}]}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            json!({"metadata": {"name": "i"}, "spec": {"rules": [{"host": "a.b", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 1}}}}]}}]}}),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 1}]}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 1}}),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            json!({"metadata": {"name": "e"}, "eventTime": "2020-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A", "reportingController": "a.b/c", "reportingInstance": "i", "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}}),
        ),
        (
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            json!({"metadata": {"name": "c"}, "spec": {"request": "eA==", "signerName": "example.com/x", "usages": ["client auth"]}}),
        ),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
        ),
        ("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": "a.b.c"}})),
        (
            "/api/v1/namespaces/default/pods/p/eviction",
            json!({"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 1}}),
        ),
        ("/api/v1/namespaces/default/pods/p/binding", json!({"metadata": {"name": "p"}, "target": {"name": "n"}})),
        (
            "/api/v1/namespaces/default/serviceaccounts/default/token",
            json!({"spec": {"expirationSeconds": 600, "audiences": ["x"]}}),
        ),
    ]
}

fn query(random: &mut Random) -> String {
    let keys = [
        "labelSelector",
        "fieldSelector",
        "resourceVersion",
        "resourceVersionMatch",
        "limit",
        "continue",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "force",
        "propagationPolicy",
        "gracePeriodSeconds",
        "timeoutSeconds",
        "sendInitialEvents",
        "includeObject",
        "pretty",
    ];
    let values = [
        "",
        "a",
        "a=b",
        "a%20in%20(b",
        "!",
        "metadata.name=x",
        "0",
        "-1",
        "99999999999999999999",
        "Exact",
        "All",
        "Strict",
        "true",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
        "%00",
        "%zz",
        "Orphan",
        "1",
    ];
    (0..random.next(3)).map(|_| format!("{}={}&", random.of(&keys), random.of(&values))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_and_never_the_servers_fault() {
    let cluster = Cluster::start().await;
    let mut random = Random(42);
    let mut answers = [0_usize; 6];
    for round in 0..160 {
        for (path, seed) in seeds() {
            let mut body = seed.clone();
            random.spoil(&mut body);
            let name = seed["metadata"]["name"].as_str().unwrap_or("x");
            let whole = |path: &str, query: &str| format!("{path}?{query}");
            let (method, target, ty) = match random.next(8) {
                0..=2 => ("POST", whole(path, &query(&mut random)), "application/json"),
                3 => ("PUT", whole(&format!("{path}/{name}"), &query(&mut random)), "application/json"),
                4 => {
                    let kinds = [
                        "application/merge-patch+json",
                        "application/strategic-merge-patch+json",
                        "application/json-patch+json",
                    ];
                    let kind = random.of(&kinds);
                    if kind == "application/json-patch+json" {
                        body = (0..3).map(|_| random.object(2)).collect();
                    }
                    let part = random.of(&["", "/status", "/scale"]);
                    ("PATCH", whole(&format!("{path}/{name}{part}"), &query(&mut random)), kind)
                }
                5 => (
                    "PATCH",
                    format!("{path}/{name}?fieldManager=f&force={}", random.next(2) == 0),
                    "application/apply-patch+yaml",
                ),
                6 => ("GET", whole(path, &query(&mut random)), "application/json"),
                _ if round % 4 == 0 => {
                    ("DELETE", whole(&format!("{path}/{name}"), &query(&mut random)), "application/json")
                }
                _ => ("POST", whole(path, ""), "application/json"),
            };
            if ty == "application/apply-patch+yaml" && body.is_object() && random.next(3) > 0 {
                let (api, kind) = (
                    random.of(&["v1", "apps/v1", "batch/v1"]),
                    random.of(&["Pod", "ConfigMap", "Deployment", "CronJob"]),
                );
                body["apiVersion"] = api.into();
                body["kind"] = kind.into();
            }
            let (code, answer) = cluster.send_as_admin(method, &target, ty, Some(body.clone())).await;
            let said = answer["message"].as_str().unwrap_or_default();
            assert!(!said.contains("panic"), "{method} {target} ({ty})\n{body}\n{answer}");
            answers[usize::from(code / 100).min(5)] += 1;
        }
    }
    let (code, _) = cluster.get("/readyz").await;
    assert_eq!(code, 200);
    // Nonsense of which nothing were accepted, or nothing refused, would test nothing.
    assert!(answers[2] > 100 && answers[4] > 1000, "answers by class: {answers:?}");
}

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const HIGHEST: i64 = i64::MAX;

/// Gives a user these verbs on leases and services.
async fn allow(cluster: &Cluster, user: &str, verbs: &[&str]) {
    let rules =
        json!([{"verbs": verbs, "apiGroups": ["", "coordination.k8s.io"], "resources": ["leases", "services"]}]);
    cluster.created(ROLES, json!({"metadata": {"name": user}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": user}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
    });
    cluster.created("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
}

#[tokio::test]
async fn put_and_apply_create_only_with_the_right_to_create() {
    let cluster = Cluster::start().await;
    allow(&cluster, "updater", &["update", "patch"]).await;
    allow(&cluster, "creator", &["update", "patch", "create"]).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"leaseDurationSeconds": 1}});
    for (path, body) in [
        ("/api/v1/namespaces/default/services/taken", &service),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager", &lease),
    ] {
        for (method, ty) in [("PUT", "application/json"), ("PATCH", "application/apply-patch+yaml")] {
            let path = format!("{path}?fieldManager=m");
            let (code, answer) = cluster.typed_as("updater", method, &path, ty, body).await;
            assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{method} {path}: {answer}");
            assert_eq!(cluster.get(&path).await.0, 404, "{method} created {path}");
        }
        let (code, made) = cluster.typed_as("creator", "PUT", path, "application/json", body).await;
        assert_eq!(code, 201, "{made}");
        let (code, changed) = cluster.typed_as("updater", "PUT", path, "application/json", &made).await;
        assert_eq!(code, 200, "the right to update is enough for what exists: {changed}");
    }
}

fn aggregated(name: &str, selects: &str, rules: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"from": name}}, "rules": rules,
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"from": selects}}, {"matchLabels": {"from": "base"}}]},
    })
}

fn allows(resource: &str) -> Value {
    json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}])
}

#[tokio::test]
async fn cluster_roles_that_aggregate_each_other_settle_and_do_not_keep_the_server_from_stopping() {
    let cluster = Cluster::start().await;
    for (name, selects) in [("a", "b"), ("b", "c"), ("c", "a"), ("d", "e"), ("e", "d")] {
        cluster.created(ROLES, aggregated(name, selects, allows(name))).await;
    }
    let base = json!({"metadata": {"name": "base", "labels": {"from": "base"}}, "rules": allows("pods")});
    cluster.created(ROLES, base).await;
    for name in ["a", "b", "c", "d", "e"] {
        cluster.until(&format!("{ROLES}/{name}"), |(_, role)| role["rules"] == allows("pods")).await;
    }
    // A controller that went on would write again; the account of a new namespace comes from the same task, after it.
    let version = async || cluster.get(ROLES).await.1["items"].as_array().map(|roles| versions(roles));
    let before = version().await;
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "later"}})).await;
    cluster.until("/api/v1/namespaces/later/serviceaccounts/default", |(code, _)| *code == 200).await;
    assert_eq!(version().await, before, "rules are written once");
    // What the source no longer allows, no role of a cycle keeps.
    cluster.merge(&format!("{ROLES}/base"), json!({"rules": allows("nodes")})).await;
    for name in ["a", "b", "c", "d", "e"] {
        cluster.until(&format!("{ROLES}/{name}"), |(_, role)| role["rules"] == allows("nodes")).await;
    }
    cluster.stop().await;
}

fn versions(roles: &[Value]) -> Vec<Value> {
    roles.iter().map(|role| role["metadata"]["resourceVersion"].clone()).collect()
}

/// A pod that runs on a node, so that its deletion waits for its grace period.
async fn running_pod(cluster: &Cluster, name: &str, grace: i64) {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = "n".into();
    pod["spec"]["terminationGracePeriodSeconds"] = grace.into();
    cluster.created(PODS, pod).await;
}

#[tokio::test]
async fn the_longest_grace_period_is_taken_as_kube_apiserver_takes_it() {
    let cluster = Cluster::start().await;
    let longest = |(code, pod): (u16, Value)| {
        assert_eq!((code, &pod["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(HIGHEST)), "{pod}");
        assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    };
    running_pod(&cluster, "body", 30).await;
    let options = Some(json!({"gracePeriodSeconds": HIGHEST}));
    longest(cluster.send("DELETE", &format!("{PODS}/body"), options.clone()).await);
    running_pod(&cluster, "query", 30).await;
    longest(cluster.delete(&format!("{PODS}/query?gracePeriodSeconds={HIGHEST}")).await);
    running_pod(&cluster, "spec", HIGHEST).await;
    longest(cluster.delete(&format!("{PODS}/spec")).await);
    running_pod(&cluster, "evicted", 30).await;
    let eviction = json!({"metadata": {"name": "evicted"}, "deleteOptions": options});
    let (code, answer) = cluster.post(&format!("{PODS}/evicted/eviction"), eviction).await;
    assert_eq!(code, 201, "{answer}");
    longest(cluster.get(&format!("{PODS}/evicted")).await);
    for name in ["body", "query", "spec", "evicted"] {
        let shorter = format!("{PODS}/{name}?gracePeriodSeconds={}", HIGHEST - 1);
        let (code, answer) = cluster.delete(&shorter).await;
        assert_eq!(code, 200, "{answer}");
        assert_eq!(cluster.delete(&format!("{PODS}/{name}?gracePeriodSeconds=0")).await.0, 200);
        cluster.gone(&format!("{PODS}/{name}")).await;
    }
}

/// The places of all numbers in an object.
fn numbers(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at),
        Value::Object(map) => map.iter().for_each(|(key, value)| numbers(value, format!("{at}/{key}"), found)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| numbers(value, format!("{at}/{n}"), found));
        }
        _ => {}
    }
}

/// Objects with the numbers that the server, or a controller of it, counts with.
fn counted() -> Vec<(&'static str, Value)> {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}],
        "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 1, "priority": 0}});
    let daemons = json!({"metadata": {"name": "ds", "generation": 1,
        "annotations": {"deprecated.daemonset.template.generation": HIGHEST.to_string()}},
        "spec": {"minReadySeconds": 1, "revisionHistoryLimit": 1, "selector": {"matchLabels": {"a": "b"}},
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}, "template": template}});
    let job = json!({"metadata": {"name": "job"}, "spec": {"ttlSecondsAfterFinished": 1, "backoffLimit": 1, "parallelism": 1,
        "completions": 1, "activeDeadlineSeconds": 1, "template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "x"}]}}}});
    let cron = json!({"metadata": {"name": "cron"}, "spec": {"schedule": "* * * * *", "startingDeadlineSeconds": 1,
        "successfulJobsHistoryLimit": 1, "jobTemplate": {"spec": job["spec"]}}});
    let csr = json!({"metadata": {"name": "csr"}, "spec": {"request": "eA==", "signerName": "example.com/x",
        "usages": ["client auth"], "expirationSeconds": 600}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "progressDeadlineSeconds": 600,
        "minReadySeconds": 1, "revisionHistoryLimit": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}}});
    vec![
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "c", "generation": 1, "finalizers": ["a.b/c"]}}),
        ),
        ("/apis/apps/v1/namespaces/default/daemonsets", daemons),
        ("/apis/apps/v1/namespaces/default/deployments", deployment),
        ("/apis/batch/v1/namespaces/default/jobs", job),
        ("/apis/batch/v1/namespaces/default/cronjobs", cron),
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", csr),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 1, "leaseTransitions": 1}}),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "healthCheckNodePort": 0, "ports": [{"port": 1, "nodePort": 30000}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}}),
        ),
        (
            "/api/v1/namespaces/default/events",
            json!({"metadata": {"name": "e"}, "count": 1, "series": {"count": 1}, "reason": "R", "type": "Normal",
                "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}),
        ),
        ("/api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {"expirationSeconds": 600}})),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", json!({"metadata": {"name": "p"}, "value": 1})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_at_the_limits_of_their_types_are_answered() {
    let cluster = Cluster::start().await;
    let mut tried = 0;
    let check = |what: &str, (code, answer): &(u16, Value)| {
        let said = answer["message"].as_str().unwrap_or_default();
        assert!(*code < 500 && !said.contains("panic"), "{what}: {code} {answer}");
    };
    for (path, seed) in seeds().into_iter().chain(counted()) {
        let name = seed["metadata"]["name"].as_str().unwrap_or("x");
        let mut places = Vec::new();
        numbers(&seed, String::new(), &mut places);
        for place in places {
            for number in [HIGHEST, i64::MIN, i64::from(i32::MAX), i64::from(i32::MIN), -1] {
                let what = format!("{path}{place}={number}");
                let mut body = seed.clone();
                *body.pointer_mut(&place).expect("a number") = number.into();
                check(&what, &cluster.post(path, body.clone()).await);
                let (_, mut live) = cluster.get(&format!("{path}/{name}")).await;
                if live["kind"] != "Status" && live["metadata"]["name"] == name {
                    // A second write counts on from the first: generations, revisions, what is allowed.
                    live["metadata"]["labels"] = json!({"again": "true"});
                    if let Some(spec) = live["spec"].as_object_mut().filter(|spec| spec.contains_key("template")) {
                        spec["template"]["metadata"]["labels"]["again"] = "true".into();
                    }
                    check(&what, &cluster.put(&format!("{path}/{name}"), live).await);
                }
                check(&what, &cluster.delete(&format!("{path}/{name}?gracePeriodSeconds={number}")).await);
                cluster.merge(&format!("{path}/{name}"), json!({"metadata": {"finalizers": null}})).await;
                tried += 1;
            }
        }
    }
    // All at once: a list of a version that does not exist yet waits some seconds for it.
    let token = "&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTIyMzM3MjAzNjg1NDc3NTgwNywic3RhcnQiOiJhIn0";
    let mut paths = Vec::new();
    for query in ["limit", "timeoutSeconds", "resourceVersion", "gracePeriodSeconds"] {
        for number in ["9223372036854775807", "-9223372036854775808", "18446744073709551615", "-1"] {
            for rest in ["", "&resourceVersionMatch=Exact", "&limit=1", token] {
                paths.push(format!("/api/v1/namespaces/default/configmaps?{query}={number}{rest}"));
            }
        }
    }
    let answers = futures::future::join_all(paths.iter().map(|path| cluster.get(path))).await;
    for (path, (_, answer)) in paths.iter().zip(answers) {
        let said = answer["message"].as_str().unwrap_or_default();
        assert!(!said.contains("panic"), "{path}: {answer}");
    }
    assert!(tried > 200, "only {tried} numbers were tried");
    assert_eq!(cluster.panics().await, 0);
}
