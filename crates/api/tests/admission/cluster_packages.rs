//! Cluster package versions: what is allowed, what is not, and what is filled in.

use fleetwright_api::ClusterPackageVersionSpec;
use serde_json::{Value, json};

use crate::cases::object;
use crate::packages::SHA;

/// A package version of images alone, and what else is given.
pub fn package(more: Value) -> Value {
    let mut spec = json!(ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16"));
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    object("ClusterPackageVersion", "k8s-1.36.4-r1", spec)
}

/// With that said of a component.
fn component(component: &str, more: Value) -> Value {
    let mut package = package(json!({}));
    for (field, value) in more.as_object().expect("fields") {
        package["spec"]["components"][component][field] = value.clone();
    }
    package
}

fn arg(of: &str, name: &str, value: &str) -> Value {
    component(of, json!({"args": {name: value}}))
}

fn config(of: &str, name: &str) -> Value {
    component(of, json!({"config": [{"name": name, "content": "a: b"}]}))
}

fn configs(names: &[&str]) -> Value {
    let files: Vec<Value> = names.iter().map(|name| json!({"name": name, "content": "a: b"})).collect();
    component("apiserver", json!({"config": files}))
}

fn extension(more: Value) -> Value {
    let mut extension = json!({"name": "coredns", "template": "kind: Service"});
    for (field, value) in more.as_object().expect("fields") {
        extension[field] = value.clone();
    }
    package(json!({"extensions": [extension]}))
}

fn check(placement: &str, check: Value) -> Value {
    extension(json!({"placement": placement, "health": {"checks": [check]}}))
}

fn template(text: &str) -> Value {
    extension(json!({"template": text}))
}

fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

#[rustfmt::skip]
pub fn allowed() -> Vec<(&'static str, Value)> {
    vec![
        ("images alone", package(json!({}))),
        ("tags without v", component("apiserver", json!({"image": "registry.example:5000/a/kube-apiserver:1.36.4"}))),
        ("a tag and a digest", component("scheduler", json!({"image": format!("registry.example/kube-scheduler:v1.36.4@sha256:{SHA}")}))),
        ("a digest and a version", component("apiserver", json!({"image": format!("registry.example/kube-apiserver@sha256:{SHA}"), "version": "1.36.4"}))),
        ("a tag of one's own and a version", component("apiserver", json!({"image": "registry.example/kube-apiserver:v1.36.4-hardened", "version": "1.36.4"}))),
        ("a build number", component("etcd", json!({"image": "registry.k8s.io/etcd:3.6.6-0"}))),
        ("a digest of etcd and its version", component("etcd", json!({"image": format!("etcd@sha256:{SHA}"), "version": "3.6.16"}))),
        ("arguments", component("apiserver", json!({"args": {"max-requests-inflight": "800", "profiling": "false", "request-timeout": "1m30s", "enable-admission-plugins": "NodeRestriction,PodSecurity", "feature-gates": "AllAlpha=false"}}))),
        ("arguments of etcd", component("etcd", json!({"args": {"quota-backend-bytes": "8589934592", "snapshot-count": "10000", "auto-compaction-mode": "periodic"}}))),
        ("arguments of the controller-manager", component("controllerManager", json!({"args": {"node-cidr-mask-size": "25", "controllers": "*,-ttl", "leader-elect-lease-duration": "30s"}}))),
        ("arguments of the scheduler", component("scheduler", json!({"args": {"v": "2", "leader-elect-renew-deadline": "20s"}}))),
        ("an argument that is empty", arg("apiserver", "disable-admission-plugins", "")),
        ("files of the API server", configs(&["admission.yaml", "audit.yaml", "authentication.yaml", "authorization.yaml", "egress.yaml", "tracing.yaml", "webhook.kubeconfig"])),
        ("the scheduler's file", config("scheduler", "scheduler.yaml")),
        ("an extension", extension(json!({"order": 10, "valuesSchema": "type: object\nproperties:\n  replicas: {type: integer, default: 2}\n", "health": {"within": "3m", "checks": [{"deployment": "kube-system/coredns"}, {"daemonSet": "kube-system/kube-proxy"}, {"statefulSet": "a/b"}, {"job": "a/b"}, {"apiService": "v1beta1.metrics.k8s.io"}]}}))),
        ("an extension beside the control plane", check("Meta", json!({"deployment": "machine-operator"}))),
        ("an extension that is off", extension(json!({"enabled": false, "order": 0}))),
        ("everything that templates know", template("{{ cluster.name }} {{cluster.fleet}} {{- cluster.namespace -}} {{ cluster.labels.tier }} {{ cluster.kubernetes }} {{ cluster.server }} {{ cluster.internalServer }} {{ cluster.caBundle }} {{ cluster.pods }} {{ cluster.services }} {{ cluster.dnsDomain }} {{ cluster['dnsAddress'] }} {{ values.replicas }} {{ values['a'] }}")),
        ("names of an assignment", template("{%- set zone = cluster.labels.zone %}{{ zone }}")),
        ("names of a loop", template("{% for zone in values.zones %}{{ zone }}{% endfor %}")),
        ("versions before and after", package(json!({"upgradeFrom": ["1.35", "1.36", "k8s-1.36.3-r2", "k8s-1.34.9"], "rollbackTo": ["1.36", "k8s-1.35.7"]}))),
        ("as much as is allowed", package(json!({"extensions": many(4, |n| json!({"name": format!("a{n}"), "template": "x".repeat(65536)}))}))),
    ]
}

/// The object, the field that is wrong, and a part of the message.
#[rustfmt::skip]
pub fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let api = "spec.components.apiserver";
    let (api_image, api_args, api_config) = ("spec.components.apiserver.image", "spec.components.apiserver.args", "spec.components.apiserver.config");
    let (etcd_image, etcd_args) = ("spec.components.etcd.image", "spec.components.etcd.args");
    let manager_args = "spec.components.controllerManager.args";
    let scheduler_args = "spec.components.scheduler.args";
    let checks = "spec.extensions[0].health.checks";
    let mut cases = vec![
        // Versions
        (package(json!({"kubernetes": "v1.36.4"})), "spec.kubernetes", "without a leading v"),
        (package(json!({"kubernetes": "1.36"})), "spec.kubernetes", "three numbers"),
        (package(json!({"kubernetes": "1.36.04"})), "spec.kubernetes", "three numbers"),
        (package(json!({"upgradeFrom": ["1.34"]})), "spec.upgradeFrom", "up by one minor"),
        (package(json!({"upgradeFrom": ["1.37"]})), "spec.upgradeFrom", "up by one minor"),
        (package(json!({"upgradeFrom": ["2.36"]})), "spec.upgradeFrom", "up by one minor"),
        (package(json!({"upgradeFrom": ["1.36", "1.36"]})), "spec.upgradeFrom[1]", "Duplicate"),
        (package(json!({"upgradeFrom": ["Older ones"]})), "spec.upgradeFrom[0]", "minor of Kubernetes"),
        (package(json!({"rollbackTo": ["1.34"]})), "spec.rollbackTo", "back by one minor"),
        (package(json!({"rollbackTo": ["1.37"]})), "spec.rollbackTo", "back by one minor"),
        (package(json!({"rollbackTo": ["<1.36"]})), "spec.rollbackTo[0]", "minor of Kubernetes"),
        // Images
        (package(json!({"components": {"etcd": {"image": "etcd:v3.6.16"}}})), api, "Required"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver"})), api_image, "other than latest"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver:latest", "version": "1.36.4"})), api_image, "other than latest"),
        (component("apiserver", json!({"image": "Kube Apiserver:v1.36.4"})), api_image, "must be an image"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver@sha256:abc", "version": "1.36.4"})), api_image, "must be an image"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver:v1.36.5"})), api_image, "that kubernetes says"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver:v1.36.40"})), api_image, "that kubernetes says"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver:v1.36.5", "version": "1.36.4"})), api_image, "that kubernetes says"),
        (component("apiserver", json!({"version": "1.36.5"})), api_image, "that kubernetes says"),
        (component("apiserver", json!({"image": "registry.example/kube-apiserver:stable"})), api_image, "version beside a digest"),
        (component("controllerManager", json!({"image": "registry.example/kube-controller-manager:v1.37.0"})), "spec.components.controllerManager.image", "that kubernetes says"),
        (component("scheduler", json!({"image": format!("registry.example/kube-scheduler@sha256:{SHA}")})), "spec.components.scheduler.image", "that kubernetes says"),
        (component("etcd", json!({"image": format!("registry.example/etcd@sha256:{SHA}")})), etcd_image, "cannot be determined"),
        (component("etcd", json!({"image": "registry.example/etcd:stable"})), etcd_image, "cannot be determined"),
        (component("etcd", json!({"version": "v3.6"})), "spec.components.etcd.version", "three numbers"),
        // Arguments
        (arg("apiserver", "--profiling", "true"), api_args, "without leading dashes"),
        (arg("apiserver", "profile", "true"), api_args, "profile: kube-apiserver has no such argument in Kubernetes 1.36 and 1.37"),
        (arg("apiserver", "quota-backend-bytes", "1"), api_args, "quota-backend-bytes: kube-apiserver has no such argument"),
        (arg("apiserver", "version", "true"), api_args, "version: kube-apiserver has no such argument"),
        (component("apiserver", json!({"args": {"profiling": "true", "etcd-servers": "a", "etcd-prefix": "b"}})), api_args, "spec.datastore"),
        (arg("apiserver", "etcd-servers", "a"), api_args, "etcd-servers: "),
        (arg("apiserver", "service-cluster-ip-range", "10.96.0.0/16"), api_args, "spec.network"),
        (arg("apiserver", "secure-port", "443"), api_args, "spec.endpoint"),
        (arg("apiserver", "tls-cert-file", "/a"), api_args, "spec.certificates"),
        (arg("apiserver", "service-account-key-file", "/a"), api_args, "spec.certificates"),
        (arg("apiserver", "authorization-mode", "AlwaysAllow"), api_args, "authorization.yaml"),
        (arg("apiserver", "anonymous-auth", "false"), api_args, "authentication.yaml"),
        (arg("apiserver", "emulated-version", "1.35"), api_args, "spec.upgrade.soak"),
        (arg("apiserver", "admission-control-config-file", "/a"), api_args, "admission.yaml"),
        (arg("apiserver", "audit-policy-file", "/a"), api_args, "audit.yaml"),
        (arg("apiserver", "authentication-config", "/a"), api_args, "authentication.yaml"),
        (arg("apiserver", "authorization-config", "/a"), api_args, "authorization.yaml"),
        (arg("apiserver", "egress-selector-config-file", "/a"), api_args, "egress.yaml"),
        (arg("apiserver", "encryption-provider-config", "/a"), api_args, "encryption.yaml"),
        (arg("apiserver", "tracing-config-file", "/a"), api_args, "tracing.yaml"),
        (arg("apiserver", "profiling", "yes"), api_args, "profiling: must be \"true\" or \"false\""),
        (arg("apiserver", "max-requests-inflight", "many"), api_args, "max-requests-inflight: "),
        (arg("apiserver", "request-timeout", "90"), api_args, "request-timeout: "),
        (arg("apiserver", "feature-gates", "a\nb"), "spec.components.apiserver.args[feature-gates]", "one line"),
        (arg("etcd", "initial-cluster", "a"), etcd_args, "spec.datastore.etcd.members"),
        (arg("etcd", "data-dir", "/a"), etcd_args, "spec.datastore.etcd.storage"),
        (arg("etcd", "peer-cert-file", "/a"), etcd_args, "spec.certificates"),
        (arg("etcd", "enable-grpc-gateway", "false"), etcd_args, "asks members"),
        (arg("etcd", "quota", "1"), etcd_args, "quota: etcd has no such argument"),
        (arg("controllerManager", "cluster-cidr", "a"), manager_args, "spec.network"),
        (arg("controllerManager", "bind-address", "a"), manager_args, "spec.endpoint"),
        (arg("controllerManager", "kubeconfig", "/a"), manager_args, "spec.certificates"),
        (arg("controllerManager", "leader-elect", "false"), manager_args, "one replica leads"),
        (arg("controllerManager", "emulated-version", "1.35"), manager_args, "spec.upgrade.soak"),
        (arg("controllerManager", "cluster-dns", "a"), manager_args, "cluster-dns: kube-controller-manager has no such argument"),
        (arg("scheduler", "algorithm-provider", "a"), scheduler_args, "algorithm-provider: kube-scheduler has no such argument"),
        (arg("controllerManager", "cluster-name", "a"), manager_args, "called like its Cluster"),
        (arg("controllerManager", "leader-migration-config", "/a"), manager_args, "no other manager"),
        (arg("controllerManager", "allocate-node-cidrs", "1"), manager_args, "must be \"true\" or \"false\""),
        (arg("scheduler", "config", "/a"), scheduler_args, "scheduler.yaml"),
        (arg("scheduler", "kubeconfig", "/a"), scheduler_args, "spec.certificates"),
        (arg("scheduler", "secure-port", "1"), scheduler_args, "spec.endpoint"),
        (arg("scheduler", "write-config-to", "/a"), scheduler_args, "write its configuration"),
        (arg("scheduler", "leader-elect", "false"), scheduler_args, "one replica leads"),
        (arg("scheduler", "emulated-version", "1.35"), scheduler_args, "spec.upgrade.soak"),
        // Configuration
        (config("apiserver", "admision.yaml"), api_config, "these names"),
        (config("apiserver", "encryption.yaml"), api_config, "in a Secret"),
        (config("apiserver", "../admission.yaml"), "spec.components.apiserver.config[0].name", "the name of a file"),
        (config("etcd", "etcd.yaml"), "spec.components.etcd.config", "use args"),
        (config("controllerManager", "config.yaml"), "spec.components.controllerManager.config", "use args"),
        (config("scheduler", "config.yaml"), "spec.components.scheduler.config", "scheduler.yaml"),
        (component("apiserver", json!({"config": [{"name": "audit.yaml", "content": ""}, {"name": "audit.yaml", "content": "a"}]})), "spec.components.apiserver.config[1]", "Duplicate"),
        // Extensions
        (extension(json!({"name": "Core DNS"})), "spec.extensions[0].name", "lower-case letters"),
        (extension(json!({"order": 1001})), "spec.extensions[0].order", "less than or equal to 1000"),
        (extension(json!({"placement": "Nowhere"})), "spec.extensions[0].placement", "\"Cluster\", \"Meta\""),
        (template(""), "spec.extensions[0].template", "at least 1"),
        (template("{{ machine.name }}"), "spec.extensions[0].template", "cluster and values"),
        (template("{{crate.name}}"), "spec.extensions[0].template", "cluster and values"),
        (extension(json!({"valuesSchema": {"type": "object"}})), "spec.extensions[0].valuesSchema", "must be of type string"),
        (extension(json!({"health": {"within": "0s"}})), "spec.extensions[0].health.within", "longer than nothing"),
        (check("Cluster", json!({})), "spec.extensions[0].health.checks[0]", "exactly one of deployment"),
        (check("Cluster", json!({"deployment": "a/b", "job": "a/b"})), "spec.extensions[0].health.checks[0]", "exactly one of deployment"),
        (check("Cluster", json!({"deployment": "a/b/c"})), "spec.extensions[0].health.checks[0].deployment", "such as kube-system/coredns"),
        (check("Cluster", json!({"deployment": "coredns"})), checks, "say which"),
        (check("Cluster", json!({"job": "migrate"})), checks, "say which"),
        (check("Meta", json!({"deployment": "kube-system/coredns"})), checks, "without a namespace"),
        (check("Meta", json!({"apiService": "v1beta1.metrics.k8s.io"})), checks, "without a namespace"),
        (package(json!({"extensions": [{"name": "a", "template": "b"}, {"name": "a", "template": "c"}]})), "spec.extensions[1]", "Duplicate"),
        (package(json!({"extensions": many(21, |n| json!({"name": format!("a{n}"), "template": "b"}))})), "spec.extensions", "must have at most 20 items"),
        (package(json!({"extensions": many(5, |n| json!({"name": format!("a{n}"), "template": "x".repeat(65000)}))})), "spec", "262144"),
    ];
    for name in ["", ".hidden", "a/b", "a b"] {
        cases.push((config("apiserver", name), "spec.components.apiserver.config[0].name", "the name of a file"));
    }
    cases
}

/// What is filled in where nothing is said.
pub fn defaults() -> Vec<(Value, Value)> {
    let plain = package(json!({}));
    let mut filled = plain["spec"].clone();
    filled["extensions"] = json!([{
        "name": "coredns", "order": 100, "placement": "Cluster", "enabled": true, "template": "kind: Service", "health": {"within": "5m"},
    }]);
    vec![(plain.clone(), plain["spec"].clone()), (extension(json!({})), filled)]
}
