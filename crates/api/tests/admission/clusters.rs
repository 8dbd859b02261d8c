//! Clusters: what is allowed, what is not, and what is filled in.

use fleetwright_api::ClusterSpec;
use serde_json::{Value, json};

use crate::cases::object;

/// A cluster, and what else is given.
pub fn cluster(more: Value) -> Value {
    let mut spec = json!({"packageVersion": "k8s-1.36.4-r1"});
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    object("Cluster", "pay-01", spec)
}

fn component(component: &str, overrides: Value) -> Value {
    cluster(json!({"components": {component: overrides}}))
}

fn network(network: Value) -> Value {
    cluster(json!({"network": network}))
}

fn etcd(etcd: Value) -> Value {
    cluster(json!({"datastore": {"etcd": etcd}}))
}

fn external(more: Value) -> Value {
    let mut external = json!({"endpoints": ["https://10.0.0.5:2379"], "secretRef": {"name": "etcd-client"}});
    for (field, value) in more.as_object().expect("fields") {
        external[field] = value.clone();
    }
    cluster(json!({"datastore": {"external": external}}))
}

/// With an external datastore, and what else is given.
fn outside(more: Value) -> Value {
    let mut cluster = external(json!({}));
    for (field, value) in more.as_object().expect("fields") {
        cluster["spec"][field] = value.clone();
    }
    cluster
}

fn endpoint(endpoint: Value) -> Value {
    cluster(json!({"endpoint": endpoint}))
}

fn certificates(certificates: Value) -> Value {
    cluster(json!({"certificates": certificates}))
}

fn snapshots(snapshots: Value) -> Value {
    cluster(json!({"snapshots": snapshots}))
}

fn bucket(more: Value) -> Value {
    let mut bucket =
        json!({"endpoint": "https://s3.example.com", "bucket": "fleet-snapshots", "secretRef": {"name": "s3"}});
    for (field, value) in more.as_object().expect("fields") {
        bucket[field] = value.clone();
    }
    snapshots(json!({"s3": bucket}))
}

fn toleration(toleration: Value) -> Value {
    cluster(json!({"placement": {"tolerations": [toleration]}}))
}

fn resources(resources: Value) -> Value {
    component("apiserver", json!({"resources": resources}))
}

#[rustfmt::skip]
pub fn allowed() -> Vec<(&'static str, Value)> {
    vec![
        ("a reference alone", cluster(json!({}))),
        ("as the types make it", object("Cluster", "pay-01", json!(ClusterSpec::of("k8s-1.36.4-r1")))),
        ("a name as long as it may be", object("Cluster", &"a".repeat(63), json!({"packageVersion": "k8s"}))),
        ("replicas", cluster(json!({"replicas": 9}))),
        ("overrides", cluster(json!({"components": {
            "etcd": {"args": {"quota-backend-bytes": "8589934592"}, "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "8Gi"}}},
            "apiserver": {"args": {"max-requests-inflight": "800"}, "config": [{"name": "audit.yaml", "content": "kind: Policy"}, {"name": "encryption.yaml", "secret": {"name": "encryption", "key": "config"}}, {"name": "webhook.kubeconfig", "secret": {"name": "webhook", "key": "kubeconfig"}}]},
            "controllerManager": {"args": {"v": "4"}},
            "scheduler": {"config": [{"name": "scheduler.yaml", "content": "kind: KubeSchedulerConfiguration"}]},
        }}))),
        ("a request without a limit", resources(json!({"requests": {"cpu": "2", "ephemeral-storage": "1Gi"}, "limits": {"cpu": "2"}}))),
        ("one member", etcd(json!({"members": 1, "storage": {"size": "500Mi", "class": "local"}}))),
        ("five members", etcd(json!({"members": 5}))),
        ("seven members", etcd(json!({"members": 7}))),
        ("an external datastore", external(json!({"endpoints": ["https://10.0.0.5:2379", "https://[fd00::5]:2379", "https://etcd.example.com:2379/"], "prefix": "/registry"}))),
        ("other networks", network(json!({"pods": "172.16.0.0/12", "services": "192.168.0.0/24", "dnsDomain": "pay.example"}))),
        ("networks beside each other", network(json!({"pods": "10.0.0.0/9", "services": "10.128.0.0/12"}))),
        ("IPv6", network(json!({"pods": "fd00:1::/56", "services": "fd00:2::/112"}))),
        ("a port on the nodes", endpoint(json!({"type": "NodePort", "port": 30443, "host": "198.18.0.1"}))),
        ("a load balancer with a name", endpoint(json!({"type": "LoadBalancer", "host": "pay-01.example.com", "names": ["198.18.0.9", "pay.example.com"]}))),
        ("a given endpoint", endpoint(json!({"type": "External", "host": "pay-01.example.com", "port": 443}))),
        ("extensions", cluster(json!({"extensions": [{"name": "coredns", "values": {"replicas": 3, "zones": [{"name": "a"}], "deep": {"er": null}}}, {"name": "dashboard", "enabled": false}]}))),
        ("short and long certificates", certificates(json!({"leafLifetime": "10m", "authorityLifetime": "262800h", "rotateAuthorities": "2026-11-15T08:00:00Z"}))),
        ("no soak", cluster(json!({"upgrade": {"soak": "0s"}}))),
        ("snapshots on a volume", snapshots(json!({"every": "1h", "keep": 1000, "volume": {"size": "100Gi", "class": "slow"}}))),
        ("snapshots in a bucket", bucket(json!({"region": "eu-central-1", "prefix": "fleet/pay-01/"}))),
        ("a store without TLS, if that is said", bucket(json!({"endpoint": "http://s3.example.com", "insecure": true}))),
        ("a key for snapshots", snapshots(json!({"encryption": {"secretRef": {"name": "pay-01-key"}}}))),
        ("a snapshot of another cluster", { let mut all = bucket(json!({})); all["spec"]["restore"] = json!({"snapshot": "a", "cluster": "shop-01"}); all }),
        ("an old snapshot that is not encrypted", cluster(json!({"restore": {"snapshot": "a", "allowUnencrypted": true}}))),
        ("snapshots when asked", snapshots(json!({"every": "0s"}))),
        ("a restore", cluster(json!({"restore": {"snapshot": "pay-01-2026-11-15T08:00:00Z"}}))),
        ("a place", cluster(json!({"placement": {"nodeSelector": {"node-role.kubernetes.io/infra": ""}, "tolerations": [{"operator": "Exists"}, {"key": "infra", "value": "yes", "effect": "NoSchedule"}], "priorityClassName": "system-cluster-critical"}}))),
        ("a cluster that may go", cluster(json!({"deletionProtection": false, "onDelete": "ReleaseMachines", "paused": true}))),
    ]
}

/// The object, the field that is wrong, and a part of the message.
#[rustfmt::skip]
pub fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let api_args = "spec.components.apiserver.args";
    let api_config = "spec.components.apiserver.config";
    let requests = "spec.components.apiserver.resources.requests";
    let mut cases = vec![
        (object("Cluster", &"a".repeat(64), json!({"packageVersion": "k8s"})), "<nil>", "at most 63"),
        (object("Cluster", "pay.01", json!({"packageVersion": "k8s"})), "<nil>", "has no dots"),
        (object("Cluster", "pay-01", json!({})), "spec.packageVersion", "Required"),
        (cluster(json!({"packageVersion": "K8s"})), "spec.packageVersion", "the name of an object"),
        (cluster(json!({"replicas": 0})), "spec.replicas", "greater than or equal to 1"),
        (cluster(json!({"replicas": 10})), "spec.replicas", "less than or equal to 9"),
        // Components
        (component("apiserver", json!({"args": {"etcd-servers": "a"}})), api_args, "etcd-servers: "),
        (component("apiserver", json!({"args": {"max-inflight": "1"}})), api_args, "max-inflight: kube-apiserver has no such argument"),
        (component("apiserver", json!({"args": {"profiling": "no"}})), api_args, "profiling: must be \"true\" or \"false\""),
        (component("etcd", json!({"args": {"data-dir": "/a"}})), "spec.components.etcd.args", "spec.datastore.etcd.storage"),
        (component("controllerManager", json!({"args": {"cluster-cidr": "a"}})), "spec.components.controllerManager.args", "spec.network"),
        (component("scheduler", json!({"args": {"config": "a"}})), "spec.components.scheduler.args", "scheduler.yaml"),
        (component("apiserver", json!({"config": [{"name": "audit.yaml"}]})), "spec.components.apiserver.config[0]", "exactly one of content and secret"),
        (component("apiserver", json!({"config": [{"name": "audit.yaml", "content": "", "secret": {"name": "a", "key": "b"}}]})), "spec.components.apiserver.config[0]", "exactly one of content and secret"),
        (component("apiserver", json!({"config": [{"name": "encryption.yaml", "content": "keys"}]})), api_config, "in a Secret"),
        (component("apiserver", json!({"config": [{"name": "audits.yaml", "content": ""}]})), api_config, "these names"),
        (component("apiserver", json!({"config": [{"name": "audit.yaml", "secret": {"name": "a", "key": "b/c"}}]})), "spec.components.apiserver.config[0].secret.key", "key of a ConfigMap"),
        (component("etcd", json!({"config": [{"name": "a", "content": ""}]})), "spec.components.etcd.config", "use args"),
        (component("controllerManager", json!({"config": [{"name": "a", "content": ""}]})), "spec.components.controllerManager.config", "use args"),
        (component("scheduler", json!({"config": [{"name": "a", "content": ""}]})), "spec.components.scheduler.config", "scheduler.yaml"),
        (resources(json!({"requests": {"cpu": "much"}})), "spec.components.apiserver.resources.requests[cpu]", "a quantity"),
        (resources(json!({"requests": {"cpu": 0}})), "spec.components.apiserver.resources.requests[cpu]", "above nothing"),
        (resources(json!({"limits": {"memory": "-1Gi"}})), "spec.components.apiserver.resources.limits[memory]", "above nothing"),
        (resources(json!({"requests": {"gpu": "1"}})), requests, "cpu, memory or ephemeral-storage"),
        (resources(json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}})), requests, "more than the limit"),
        (resources(json!({"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}})), requests, "more than the limit"),
        // Datastore
        (cluster(json!({"datastore": {}})), "spec.datastore", "exactly one of etcd"),
        ({ let mut both = external(json!({})); both["spec"]["datastore"]["etcd"] = json!({}); both }, "spec.datastore", "exactly one of etcd"),
        (etcd(json!({"members": 2})), "spec.datastore.etcd.members", "1, 3, 5 or 7"),
        (etcd(json!({"members": 9})), "spec.datastore.etcd.members", "1, 3, 5 or 7"),
        (etcd(json!({"storage": {"size": "big"}})), "spec.datastore.etcd.storage.size", "a quantity"),
        (etcd(json!({"storage": {"class": "Fast Ones"}})), "spec.datastore.etcd.storage.class", "the name of an object"),
        (external(json!({"endpoints": []})), "spec.datastore.external.endpoints", "at least 1 item"),
        (external(json!({"endpoints": ["http://10.0.0.5:2379"]})), "spec.datastore.external.endpoints[0]", "with https"),
        (external(json!({"endpoints": ["https://10.0.0.5:2379/v3"]})), "spec.datastore.external.endpoints[0]", "without a path"),
        (external(json!({"endpoints": ["10.0.0.5:2379"]})), "spec.datastore.external.endpoints[0]", "URL of a member"),
        (external(json!({"prefix": "registry/"})), "spec.datastore.external.prefix", "such as /registry"),
        (external(json!({"secretRef": {}})), "spec.datastore.external.secretRef.name", "Required"),
        (outside(json!({"snapshots": {}})), "spec.snapshots", "who runs it"),
        (outside(json!({"restore": {"snapshot": "a"}})), "spec.restore", "who runs it"),
        (outside(json!({"components": {"etcd": {}}})), "spec.components.etcd", "who runs it"),
        // Networks
        (network(json!({"pods": "10.244.0.0"})), "spec.network.pods", "network of pods"),
        (network(json!({"pods": "10.244.0.1/16"})), "spec.network.pods", "its first address"),
        (network(json!({"pods": "10.244.0.0/25"})), "spec.network.pods", "8 to 24"),
        (network(json!({"pods": "0.0.0.0/0"})), "spec.network.pods", "8 to 24"),
        (network(json!({"pods": "10.244.0.0/16,fd00::/56"})), "spec.network.pods", "network of pods"),
        (network(json!({"services": "10.0.0.0/8", "pods": "172.16.0.0/12"})), "spec.network.services", "12 to 28"),
        (network(json!({"services": "10.96.0.0/30"})), "spec.network.services", "12 to 28"),
        (network(json!({"pods": "fd00:1::/32", "services": "fd00:2::/112"})), "spec.network.pods", "IPv6: 48 to 64"),
        (network(json!({"pods": "fd00:1::/56", "services": "fd00:2::/64"})), "spec.network.services", "IPv6: 108 to 124"),
        (network(json!({"services": "fd00::/112"})), "spec.network.services", "both IPv4 or both IPv6"),
        (network(json!({"pods": "10.0.0.0/8"})), "spec.network.services", "overlap"),
        (network(json!({"pods": "10.96.1.0/24"})), "spec.network.services", "overlap"),
        (network(json!({"pods": "10.96.0.0/16"})), "spec.network.services", "overlap"),
        (network(json!({"dnsDomain": "cluster.local."})), "spec.network.dnsDomain", "without a dot"),
        // Endpoint
        (endpoint(json!({"type": "Ingress"})), "spec.endpoint.type", "\"ClusterIP\", \"NodePort\", \"LoadBalancer\", \"External\""),
        (endpoint(json!({"type": "External"})), "spec.endpoint.host", "give its host"),
        (endpoint(json!({"port": 443})), "spec.endpoint.port", "leave port out"),
        (endpoint(json!({"type": "LoadBalancer", "port": 443})), "spec.endpoint.port", "leave port out"),
        (endpoint(json!({"type": "NodePort", "port": 0})), "spec.endpoint.port", "greater than or equal to 1"),
        (endpoint(json!({"type": "External", "host": "https://a"})), "spec.endpoint.host", "IP address"),
        (endpoint(json!({"names": ["*.example.com"]})), "spec.endpoint.names[0]", "IP address"),
        // Extensions
        (cluster(json!({"extensions": [{"name": "a"}, {"name": "a"}]})), "spec.extensions[1]", "Duplicate"),
        (cluster(json!({"extensions": [{"name": "A"}]})), "spec.extensions[0].name", "lower-case letters"),
        (cluster(json!({"extensions": [{"name": "a", "values": "x"}]})), "spec.extensions[0].values", "must be of type object"),
        // Certificates, upgrades
        (certificates(json!({"leafLifetime": "9m"})), "spec.certificates.leafLifetime", "from 10m"),
        (certificates(json!({"leafLifetime": "90d"})), "spec.certificates.leafLifetime", "such as 2160h"),
        (certificates(json!({"authorityLifetime": "262801h"})), "spec.certificates.authorityLifetime", "262800h"),
        (certificates(json!({"leafLifetime": "8760h", "authorityLifetime": "8760h"})), "spec.certificates.leafLifetime", "outlive"),
        (certificates(json!({"rotateAuthorities": "now please"})), "spec.certificates.rotateAuthorities", "such as 2026-11-15"),
        (cluster(json!({"upgrade": {"soak": "31d"}})), "spec.upgrade.soak", "such as 90s"),
        // Snapshots
        (snapshots(json!({"every": "30s"})), "spec.snapshots.every", "a minute at least"),
        (snapshots(json!({"keep": 0})), "spec.snapshots.keep", "greater than or equal to 1"),
        ({ let mut both = bucket(json!({})); both["spec"]["snapshots"]["volume"] = json!({}); both }, "spec.snapshots", "kept in one place"),
        (snapshots(json!({"volume": {"size": "0"}})), "spec.snapshots.volume.size", "above nothing"),
        (bucket(json!({"endpoint": "s3.example.com"})), "spec.snapshots.s3.endpoint", "URL of a store"),
        (bucket(json!({"endpoint": "http://s3.example.com"})), "spec.snapshots.s3.endpoint", "set insecure to true"),
        (bucket(json!({"endpoint": "http://s3.example.com", "insecure": false})), "spec.snapshots.s3.endpoint", "use https"),
        (bucket(json!({"bucket": "A_B"})), "spec.snapshots.s3.bucket", "the name of a bucket"),
        (bucket(json!({"bucket": "ab"})), "spec.snapshots.s3.bucket", "3 to 63"),
        (bucket(json!({"prefix": "/fleet"})), "spec.snapshots.s3.prefix", "with / at its end"),
        (cluster(json!({"restore": {}})), "spec.restore.snapshot", "Required"),
        (cluster(json!({"restore": {"snapshot": "a", "cluster": "b"}})), "spec.restore.cluster", "from a bucket alone"),
        ({ let mut all = bucket(json!({})); all["spec"]["restore"] = json!({"snapshot": "a", "cluster": "b", "allowUnencrypted": true}); all }, "spec.restore.allowUnencrypted", "that its owner shares"),
        (snapshots(json!({"encryption": {}})), "spec.snapshots.encryption.secretRef", "Required"),
        (cluster(json!({"restore": {"snapshot": "../a"}})), "spec.restore.snapshot", "the name of a snapshot"),
        // The rest
        (toleration(json!({"value": "a"})), "spec.placement.tolerations[0].key", "give key"),
        (toleration(json!({"key": "a", "operator": "Exists", "value": "b"})), "spec.placement.tolerations[0].value", "leave value out"),
        (toleration(json!({"key": "a", "effect": "NoWay"})), "spec.placement.tolerations[0].effect", "\"NoSchedule\""),
        (cluster(json!({"placement": {"nodeSelector": {"a b": ""}}})), "spec.placement.nodeSelector", "a label's key"),
        (cluster(json!({"placement": {"nodeSelector": {"a": "b c"}}})), "spec.placement.nodeSelector[a]", "a label's value"),
        (cluster(json!({"placement": {"priorityClassName": "High!"}})), "spec.placement.priorityClassName", "the name of an object"),
        (cluster(json!({"onDelete": "Orphan"})), "spec.onDelete", "\"WaitForMachines\", \"ReleaseMachines\""),
    ];
    for size in ["", "1 Gi", "1GB"] {
        cases.push((etcd(json!({"storage": {"size": size}})), "spec.datastore.etcd.storage.size", "a quantity"));
    }
    cases
}

/// What is filled in where nothing is said.
pub fn defaults() -> Vec<(Value, Value)> {
    let plain = json!({
        "packageVersion": "k8s-1.36.4-r1", "replicas": 2, "components": {},
        "datastore": {"etcd": {"members": 3, "storage": {"size": "10Gi"}}},
        "network": {"pods": "10.244.0.0/16", "services": "10.96.0.0/16", "dnsDomain": "cluster.local"},
        "endpoint": {"type": "ClusterIP"},
        "certificates": {"leafLifetime": "2160h", "authorityLifetime": "87600h", "overlap": "24h"},
        "upgrade": {"soak": "24h", "stageTimeout": "10m"}, "placement": {},
        "deletionProtection": true, "onDelete": "WaitForMachines", "paused": false,
    });
    let with = |field: &str, value: Value| {
        let mut filled = plain.clone();
        filled[field] = value;
        filled
    };
    vec![
        (cluster(json!({})), plain.clone()),
        (
            snapshots(json!({"volume": {}})),
            with("snapshots", json!({"every": "6h", "keep": 28, "volume": {"size": "20Gi"}})),
        ),
        (
            bucket(json!({})),
            with(
                "snapshots",
                json!({"every": "6h", "keep": 28, "s3": {
                    "endpoint": "https://s3.example.com", "bucket": "fleet-snapshots", "region": "us-east-1", "secretRef": {"name": "s3"},
                }}),
            ),
        ),
        (
            toleration(json!({"key": "infra"})),
            with("placement", json!({"tolerations": [{"key": "infra", "operator": "Equal"}]})),
        ),
        (external(json!({})), with("datastore", external(json!({}))["spec"]["datastore"].clone())),
    ]
}
