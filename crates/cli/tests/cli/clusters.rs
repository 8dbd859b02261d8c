//! `fleetwright cluster`: the output shows the status so that a person can act on it, and commands write what they should.

use std::process::Stdio;
use std::time::Duration;

use fleetwright_api::{Cluster, ClusterLimits, ClusterPackageVersion, ClusterPackageVersionSpec, Machine, names};
use fleetwright_lab::Target;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt as _;

use crate::support::{CliServer, CommandResult, alone, until};

/// A server with the kinds.
pub async fn place(target: Target) -> CliServer {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    place
}

pub fn clusters(place: &CliServer) -> Api<Cluster> {
    Api::namespaced(place.target.admin(), "fleet")
}

pub async fn package(place: &CliServer, name: &str, kubernetes: &str, reach: Value) {
    let api: Api<ClusterPackageVersion> = Api::namespaced(place.target.admin(), "fleet");
    let mut spec = json!(ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16"));
    for (field, value) in reach.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let spec = serde_json::from_value(spec).expect("a specification");
    api.create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await.expect("it is made");
}

/// Creates a Cluster with a status as an operator writes it.
pub async fn cluster(place: &CliServer, name: &str, spec: Value, status: Value) -> Cluster {
    let object = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec,
    });
    let object: Cluster = serde_json::from_value(object).expect("a Cluster");
    clusters(place).create(&PostParams::default(), &object).await.expect("it is made");
    say(place, name, status).await
}

pub async fn say(place: &CliServer, name: &str, status: Value) -> Cluster {
    let patch = Patch::Merge(json!({ "status": status }));
    clusters(place).patch_status(name, &PatchParams::default(), &patch).await.expect("it has a status")
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-16T08:00:00Z"})
}

fn replicas(names: &[&str], version: &str) -> Vec<Value> {
    let one =
        |name: &&str| json!({"name": name, "version": version, "ready": true, "verifiedAt": "2026-11-16T08:00:00Z"});
    names.iter().map(one).collect()
}

/// The status of a cluster without problems.
fn well(name: &str) -> Value {
    let component = |component: &str, version: &str| json!({"component": component, "desired": version, "observed": version, "replicas": replicas(&[&format!("{component}-a")], version)});
    json!({
        "phase": "Ready", "endpoint": "https://192.0.2.1:6443", "namespace": format!("fleet-{name}"),
        "packageVersion": "k8s-1.36.4-r1", "observedGeneration": 1,
        "components": [component("etcd", "3.6.16"), component("apiserver", "1.36.4"), component("controllerManager", "1.36.4"), component("scheduler", "1.36.4")],
        "certificates": [{"name": "ca", "notAfter": "2036-11-16T08:00:00Z"}, {"name": "apiserver-tls", "notAfter": "2036-02-16T08:00:00Z"}],
        "lastSnapshot": {"name": "pay-01-2026", "at": "2026-11-16T08:00:00Z", "size": "12Mi", "checked": true},
        "conditions": [condition("Ready", "True", "Verified", "it works"), condition("RollbackPossible", "False", "NoPreviousVersion", "m")],
    })
}

/// The status of a cluster with an API server that does not start.
fn broken() -> Value {
    let mut servers = replicas(&["kube-apiserver-1"], "1.36.4");
    servers.push(json!({"name": "kube-apiserver-2", "version": "1.36.4", "message": "CrashLoopBackOff: back-off 10s; it ended with 1: \u{1b}[31munknown flag\u{1b}[0m"}));
    json!({
        "phase": "Degraded", "endpoint": "https://192.0.2.2:6443", "namespace": "fleet-bad", "packageVersion": "k8s-1.36.4-r1",
        "waitingFor": "kube-apiserver: 1 of 2 replicas are ready",
        "components": [
            {"component": "etcd", "desired": "3.6.16", "observed": "3.6.16", "replicas": replicas(&["etcd-0"], "3.6.16")},
            {"component": "apiserver", "desired": "1.36.4", "observed": "1.36.4", "replicas": servers},
        ],
        "conditions": [condition("Ready", "False", "NotVerified", "1 of 2 API servers are proven to work")],
        "lastSnapshot": {"name": "s-1", "at": "2026-11-16T08:00:00Z"},
    })
}

async fn lists_clusters(target: Target) {
    let place = place(target).await;
    let ran = place.run(&["cluster", "list"]).await;
    assert!(ran.err.contains("namespace fleet") && ran.ok().is_empty());
    let spec = json!({"packageVersion": "k8s-1.36.4-r1"});
    cluster(&place, "good", spec.clone(), well("good")).await;
    cluster(&place, "bad", spec.clone(), broken()).await;
    let lost = json!({
        "phase": "Degraded", "namespace": "fleet-lost",
        "conditions": [condition("DatastoreHealthy", "False", "QuorumLost", "1 of 3 members are ready"), condition("Ready", "False", "NotVerified", "m")],
        "lastSnapshot": {"name": "s-7", "at": "2026-11-16T08:00:00Z", "checked": true},
    });
    cluster(&place, "lost", spec.clone(), lost).await;
    cluster(&place, "made", spec.clone(), json!({"phase": "Creating", "waitingFor": "etcd is about to be made"})).await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "bad.1"},
        "involvedObject": {"apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "name": "bad", "namespace": "fleet"},
        "type": "Warning", "reason": "Degraded", "message": "an API server does not start", "lastTimestamp": "2026-11-16T08:00:00Z",
    });
    place.kubectl(&["create", "-n", "fleet", "-f", "-"], Some(&event.to_string())).await.ok();

    let out = place.run(&["cluster", "list"]).await.ok();
    let names: Vec<_> = out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        names,
        ["lost", "bad", "made", "good"],
        "problems first, then what is on its way, then what is well:\n{out}"
    );
    assert!(out.contains("QuorumLost: 1 of 3 members are ready") && out.contains(": etcd is about"), "{out}");
    let out = place.run(&["cluster", "list", "--problems", "-o", "wide"]).await.ok();
    assert!(out.contains("https://192.0.2.2:6443") && !out.contains("good"), "{out}");
    let out = place.run(&["cluster", "list", "-o", "json"]).await.ok();
    let list: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(4));
    assert!(place.run(&["cluster", "list", "-o", "yaml"]).await.ok().contains("packageVersion: k8s-1.36.4-r1"));

    let out = place.run(&["cluster", "status", "cl/bad"]).await.ok();
    for said in [
        "cluster/bad is Degraded",
        "1/2 API servers",
        "\n  kube-apiserver: 1 of 2 replicas are ready",
        "✗ kube-apiserver-2",
        "not ready, not verified",
        "✓ etcd",
        "NotVerified",
        "an API server does not start",
        "s-1, ",
        "deletion protection  on",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(!out.contains('\u{1b}'), "nothing but text reaches the terminal: {out:?}");
    let out = place.run(&["cluster", "status", "good"]).await.ok();
    let ends: Vec<_> =
        ["apiserver-tls", "ca"].iter().map(|name| out.find(&format!("\n  {name} ")).expect("it ends")).collect();
    assert!(ends.is_sorted(), "what ends first is told first: {out}");

    let out = place.run(&["cluster", "tree"]).await.ok();
    let shown: Vec<_> = out.lines().collect();
    assert!(shown[0].starts_with("✗ lost  Degraded") && shown[1].contains("✗ DatastoreHealthy: QuorumLost"), "{out}");
    let bad = shown.iter().position(|line| line.starts_with("✗ bad")).expect("it is shown");
    assert_eq!(shown[bad + 1], "├─ ✗ Ready: NotVerified: 1 of 2 API servers are proven to work", "{out}");
    assert_eq!(shown[bad + 2], "├─ ✗ kube-apiserver  1.36.4  1/2 ready", "{out}");
    assert!(shown[bad + 3].starts_with("│  ├─ ✗ kube-apiserver-2"), "{out}");
    assert!(shown[bad + 4].starts_with("│  │  └─ ✗ CrashLoopBackOff"), "{out}");
    assert!(shown.last().is_some_and(|line| line.starts_with("✓ good")), "what is well is folded: {out}");
    let machine = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "host-1", "labels": {"fleetwright.io/cluster": "good"}}, "spec": {},
    });
    let machines: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    let machine: Machine = serde_json::from_value(machine).expect("a Machine");
    machines.create(&PostParams::default(), &machine).await.expect("it is made");
    let patch = Patch::Merge(json!({"status": {"phase": "Lost"}}));
    machines.patch_status("host-1", &PatchParams::default(), &patch).await.expect("it has a status");
    let out = place.run(&["cluster", "tree", "good"]).await.ok();
    assert!(out.contains("├─ ✗ machines  0/1 ready\n│  └─ ✗ machine/host-1  Lost"), "{out}");
    assert!(out.contains("✓ apiserver-a"), "a cluster that is named is unfolded: {out}");
    let out = place.run(&["cluster", "tree", "-o", "json"]).await.ok();
    let trees: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&trees[0]["object"]["name"], &trees[0]["health"]), (&json!("lost"), &json!("Unhealthy")), "{out}");
    let out = place.run(&["cluster", "tree", "good", "-o", "yaml"]).await.ok();
    assert!(out.contains("kind: Tree") && out.contains("name: host-1"), "{out}");

    let out = place.run(&["why", "cluster/lost"]).await.ok();
    for said in [
        "cluster/lost is NOT ready",
        "QuorumLost",
        "fleetwright.io/component=etcd",
        "\"snapshot\":\"s-7\"",
        "2026-11-16T08:00:00Z",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let out = place.run(&["why", "cl", "bad"]).await.ok();
    assert!(out.contains("kubectl logs -n fleet-bad kube-apiserver-2 --previous"), "{out}");
    let out = place.run(&["why", "cluster/good", "-o", "json"]).await.ok();
    let told: Value = serde_json::from_str(&out).expect("JSON");
    let verdict = &told["verdict"];
    assert_eq!((&verdict["status"], &verdict["reason"]), (&json!("True"), &json!("Verified")));
    let checks = told["checks"].as_array().expect("checks");
    assert!(checks.iter().all(|check| check["state"] == "Passing"), "{told}");
    let out = place.run(&["why", "cluster/lost", "-o", "json"]).await.ok();
    let told: Value = serde_json::from_str(&out).expect("JSON");
    let check = told["checks"].as_array().into_iter().flatten().find(|check| check["subject"] == "DatastoreHealthy");
    assert_eq!(check.map(|check| (&check["state"], &check["reason"])), Some((&json!("Failing"), &json!("QuorumLost"))));

    for (args, said) in [
        (&["cluster", "status", "nobody"][..], "\"nobody\" not found"),
        (&["cluster", "tree", "good", "-n", "elsewhere"], "in fleet"),
        (&["cluster", "status", "good", "-w", "-o", "json"], "--watch"),
        (&["why", "pod/x"], "cluster/NAME"),
    ] {
        let refused = place.run(args).await.refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_listed_problems_first() {
    lists_clusters(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_listed_problems_first_on_real() {
    lists_clusters(Target::real().await.expect("the real server starts")).await;
}

#[test]
fn a_cluster_is_shown_without_any_meta_cluster() {
    let out = alone(&[
        "cluster",
        "create",
        "pay-01",
        "--package-version",
        "cpv/k8s-1.36.4-r1",
        "--replicas",
        "3",
        "--members",
        "5",
        "--endpoint",
        "External:api.example.com:443",
        "--pods",
        "10.240.0.0/12",
        "--services",
        "10.96.0.0/16",
        "-l",
        "tier=prod",
        "-n",
        "blue",
        "--dry-run",
        "-o",
        "json",
    ])
    .ok();
    let object: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        object,
        json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "pay-01", "namespace": "blue", "labels": {"tier": "prod"}},
            "spec": {
                "packageVersion": "k8s-1.36.4-r1", "replicas": 3, "datastore": {"etcd": {"members": 5}},
                "endpoint": {"type": "External", "host": "api.example.com", "port": 443},
                "network": {"pods": "10.240.0.0/12", "services": "10.96.0.0/16"},
            },
        })
    );
    // The object has only the requested fields, and a file is the base of it.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.yaml");
    std::fs::write(&file, &out).expect("it can be written");
    let file = file.to_str().expect("text");
    let out = alone(&["cluster", "create", "pay-02", "-f", file, "--replicas", "1", "--dry-run", "-o", "yaml"]).ok();
    assert!(
        out.contains("name: pay-02") && out.contains("replicas: 1") && out.contains("host: api.example.com"),
        "{out}"
    );
    assert!(!out.contains("deletionProtection"), "{out}");

    std::fs::write(file, "apiVersion: v1\nkind: Pod\n").expect("it can be written");
    let refused = alone(&["cluster", "create", "-f", file, "--dry-run", "-o", "yaml"]).refused();
    assert!(
        [":1: ", "v1 Pod", "fleetwright.io/v1alpha1 Cluster"].iter().all(|part| refused.contains(part)),
        "{refused}"
    );
    for (args, said) in [
        (&["--members", "4"][..], "1, 3, 5 or 7"),
        (&["--replicas", "10"], "1..=9"),
        (&["--endpoint", "External"], "External:HOST"),
        (&["-l", "tier"], "write KEY=VALUE"),
    ] {
        let ran = alone(&[&["cluster", "create", "x", "--package-version", "k"], args].concat());
        assert!(ran.code == 2 && ran.err.contains(said), "{args:?}: {}", ran.err);
    }
}

/// A command with --wait.
pub struct Waiting {
    process: tokio::process::Child,
    said: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStderr>>,
    err: String,
}

impl Waiting {
    fn start(place: &CliServer, args: &[&str]) -> Self {
        let mut command = tokio::process::Command::from(place.command(args));
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("the binary starts");
        let said = tokio::io::BufReader::new(process.stderr.take().expect("it is piped")).lines();
        Self { process, said, err: String::new() }
    }

    async fn line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(Duration::from_secs(60), self.said.next_line()).await;
        let line = line.expect("a line within a minute").expect("text")?;
        self.err.push_str(&line);
        self.err.push('\n');
        Some(line)
    }

    /// Reads until a line contains all these parts.
    async fn says(&mut self, wanted: &[&str]) {
        while let Some(line) = self.line().await {
            if wanted.iter().all(|part| line.contains(part)) {
                return;
            }
        }
        panic!("it never says {wanted:?}: {}", self.err);
    }

    async fn ends(mut self) -> CommandResult {
        while self.line().await.is_some() {}
        let output = self.process.wait_with_output().await.expect("it ends");
        let out = String::from_utf8(output.stdout).expect("text");
        CommandResult { code: output.status.code().unwrap_or(-1), out, err: self.err }
    }
}

async fn cluster_like(place: &CliServer, name: &str, is: impl Fn(&Cluster) -> bool) {
    let (api, is) = (&clusters(place), &is);
    let look = async || api.get_opt(name).await.expect("an answer").filter(|cluster| is(cluster));
    until("the cluster is as expected", look).await;
}

async fn clusters_are_made_and_deleted(target: Target) {
    let place = place(target).await;
    let create = ["cluster", "create", "pay-01", "--package-version", "k8s-1.36.4-r1"];
    let refused = place.run(&create).await.refused();
    assert!(refused.contains("ClusterPackageVersion k8s-1.36.4-r1 not found"), "{refused}");
    package(&place, "k8s-1.36.4-r1", "1.36.4", json!({})).await;
    let out = place.run(&[&create[..], &["--dry-run"]].concat()).await.ok();
    assert_eq!(out, "cluster.fleetwright.io/pay-01 created (dry run)\n");
    assert!(clusters(&place).get_opt("pay-01").await.expect("an answer").is_none());
    let refused = place.run(&[&create[..], &["--pods", "10.96.0.0/15"]].concat()).await.refused();
    assert!(refused.contains("spec.network.services") && refused.contains("overlap"), "{refused}");
    let refused = place.run(&[&create[..], &["-n", "nowhere"]].concat()).await.refused();
    assert!(refused.contains("namespace nowhere"), "{refused}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.yaml");
    let text = "apiVersion: fleetwright.io/v1alpha1\nkind: Cluster\nmetadata: {name: x}\nspec: {packageVersion: k8s-1.36.4-r1, replica: 1}\n";
    std::fs::write(&file, text).expect("it can be written");
    let refused = place.run(&["cluster", "create", "-f", file.to_str().expect("text")]).await.refused();
    assert!(refused.contains("unknown field \"spec.replica\""), "a typing error is no default: {refused}");

    // The progress is printed, until the cluster is proven.
    let mut waiting = Waiting::start(&place, &[&create[..], &["--wait", "-l", "tier=prod"]].concat());
    waiting.says(&["waiting: - 0/2 "]).await;
    let creating = json!({
        "phase": "Creating", "observedGeneration": 1, "waitingFor": "etcd: 0 of 3 replicas are ready",
        "conditions": [condition("Ready", "False", "Creating", "m")],
    });
    say(&place, "pay-01", creating).await;
    waiting.says(&["waiting: Creating 0/2 ", "etcd: 0 of 3 replicas are ready"]).await;
    let mut status = well("pay-01");
    status["waitingFor"] = json!(null);
    say(&place, "pay-01", status).await;
    let ran = waiting.ends().await;
    assert!(ran.err.contains("is Ready") && ran.err.contains("cluster kubeconfig pay-01 -n fleet"), "{}", ran.err);
    assert_eq!(ran.ok(), "cluster.fleetwright.io/pay-01 created\n");
    let made = clusters(&place).get("pay-01").await.expect("it is there");
    assert_eq!(made.metadata.labels.expect("labels")["tier"], "prod");
    let refused = place.run(&create).await.refused();
    assert!(refused.contains("pay-01 already exists"), "{refused}");
    let refused = place
        .run(&["cluster", "create", "slow", "--package-version", "k8s-1.36.4-r1", "--wait", "--timeout", "1s"])
        .await
        .refused();
    assert!(
        refused.contains("timed out after 1s") && refused.contains("fleetwright why cluster slow -n fleet"),
        "{refused}"
    );

    // A protected cluster is not deleted, and --wait lasts until its namespace is deleted.
    let refused = place.run(&["cluster", "delete", "pay-01"]).await.refused();
    assert!(
        refused.contains("spec.deletionProtection") && refused.contains("delete pay-01 -n fleet --unprotect"),
        "{refused}"
    );
    let out = place.run(&["cluster", "delete", "pay-01", "--unprotect", "--dry-run"]).await.ok();
    assert!(out.contains("deleted (dry run)"), "{out}");
    assert!(clusters(&place).get("pay-01").await.expect("it is there").spec.deletion_protection, "nothing was changed");
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(place.target.admin());
    place.kubectl(&["create", "namespace", "fleet-pay-01"], None).await.ok();
    let hold = json!({"metadata": {"finalizers": [names::CLUSTER_FINALIZER]}});
    clusters(&place).patch("pay-01", &PatchParams::default(), &Patch::Merge(&hold)).await.expect("it is held");
    let delete = ["cluster", "delete", "pay-01", "--unprotect", "--wait", "--timeout", "60s"];
    let waiting = Waiting::start(&place, &delete);
    cluster_like(&place, "pay-01", |cluster| cluster.metadata.deletion_timestamp.is_some()).await;
    namespaces.delete("fleet-pay-01", &Default::default()).await.expect("it is deleted");
    let free = json!({"metadata": {"finalizers": null}});
    clusters(&place).patch("pay-01", &PatchParams::default(), &Patch::Merge(&free)).await.expect("it is let go");
    let ran = waiting.ends().await;
    let out = ran.ok();
    for said in ["pay-01 unprotected", "pay-01 deleted", "removed after"] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(namespaces.get_opt("fleet-pay-01").await.expect("an answer").is_none());
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_made_and_deleted_and_waited_for() {
    clusters_are_made_and_deleted(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_made_and_deleted_and_waited_for_on_real() {
    clusters_are_made_and_deleted(Target::real().await.expect("the real server starts")).await;
}

async fn limits_are_reported_beforehand(target: Target) {
    let place = place(target).await;
    package(&place, "k8s-1.36.4-r1", "1.36.4", json!({})).await;
    package(&place, "k8s-1.37.1-r1", "1.37.1", json!({})).await;
    let allows = json!({"clusters": ["*"], "maxReplicas": 2, "packageVersions": ["k8s-1.36*"]});
    let limits = ClusterLimits::new("tenants", serde_json::from_value(allows).expect("they are limits"));
    let api: Api<ClusterLimits> = Api::namespaced(place.target.admin(), "fleet");
    api.create(&PostParams::default(), &limits).await.expect("they are made");
    let create = ["cluster", "create", "pay-01", "--package-version", "k8s-1.36.4-r1"];
    for args in [&["--replicas", "3"][..], &["--replicas", "3", "--dry-run"]] {
        let refused = place.run(&[&create[..], args].concat()).await.refused();
        for said in ["ClusterLimits tenants", "spec.replicas", "at most 2"] {
            assert!(refused.contains(said), "{refused}");
        }
        assert!(clusters(&place).get_opt("pay-01").await.expect("an answer").is_none());
    }
    place.run(&create).await.ok();
    say(&place, "pay-01", well("pay-01")).await;
    let upgrade = ["cluster", "upgrade", "pay-01", "k8s-1.37.1-r1"];
    let refused = place.run(&upgrade).await.refused();
    assert!(refused.contains("spec.packageVersion") && refused.contains("k8s-1.36*"), "{refused}");
    let asked = clusters(&place).get("pay-01").await.expect("it is there").spec.package_version;
    assert_eq!(asked, "k8s-1.36.4-r1");
    let plan = ["cluster", "plan", "pay-01", "--to", "k8s-1.37.1-r1"];
    for args in [&plan[..], &[&upgrade[..], &["--dry-run"]].concat()] {
        let out = place.run(args).await.ok();
        let found = out.lines().find(|line| line.contains("✗ LimitExceeded")).unwrap_or_default();
        assert!(found.contains("ClusterLimits tenants") && found.contains("spec.packageVersion"), "{out}");
    }
    let out = place.run(&[&plan[..], &["-o", "json"]].concat()).await.ok();
    let out: Value = serde_json::from_str(&out).expect("JSON");
    let limited = |plan: &Value| {
        let blockers = plan["blockers"].as_array().into_iter().flatten();
        let limited = blockers.filter(|blocker| blocker["reason"] == "LimitExceeded");
        limited.map(|blocker| (blocker["subject"].clone(), blocker["rule"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(limited(&out), [(json!("spec.packageVersion"), json!("ClusterLimits/tenants"))]);
    let out = place.run(&["cluster", "plan", "pay-01", "-o", "json"]).await.ok();
    let out: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(limited(&out), []);
    let mut status = well("pay-01");
    status["conditions"] =
        json!([condition("Accepted", "False", "LimitExceeded", "ClusterLimits tenants does not allow spec.replicas")]);
    say(&place, "pay-01", status).await;
    let out = place.run(&["why", "cluster/pay-01"]).await.ok();
    for said in ["LimitExceeded", "ClusterLimits tenants", "kubectl get clusterlimits -n fleet"] {
        assert!(out.contains(said), "{out}");
    }
    api.delete("tenants", &Default::default()).await.expect("they are deleted");
    let pinned = json!({"clusters": ["*"], "imageDigests": true});
    let pinned = ClusterLimits::new("pinned", serde_json::from_value(pinned).expect("they are limits"));
    api.create(&PostParams::default(), &pinned).await.expect("they are made");
    let refused = place.run(&upgrade).await.refused();
    assert!(refused.contains("ClusterLimits pinned") && refused.contains("NAME@sha256:"), "{refused}");
    api.delete("pinned", &Default::default()).await.expect("they are deleted");
    place.run(&upgrade).await.ok();
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_reported_before_anything_is_asked_for() {
    limits_are_reported_beforehand(Target::embedded().await.expect("it starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_reported_before_anything_is_asked_for_on_real() {
    limits_are_reported_beforehand(Target::real().await.expect("it starts")).await;
}

async fn versions_are_changed(target: Target) {
    let place = place(target).await;
    for (name, kubernetes, reach) in [
        ("k8s-1.36.4-r1", "1.36.4", json!({})),
        ("k8s-1.36.4-r2", "1.36.4", json!({})),
        ("k8s-1.36.9-r1", "1.36.9", json!({"upgradeFrom": ["k8s-1.36.4-r2"]})),
        ("k8s-1.37.1-r1", "1.37.1", json!({})),
        ("k8s-1.38.0-r1", "1.38.0", json!({})),
    ] {
        package(&place, name, kubernetes, reach).await;
    }
    cluster(&place, "pay-01", json!({"packageVersion": "k8s-1.36.4-r1"}), well("pay-01")).await;
    let asked = async || clusters(&place).get("pay-01").await.expect("it is there").spec.package_version;

    // Impossible changes are refused, and the error lists the possible ones.
    for (args, said) in [
        (&["upgrade", "pay-01", "k8s-9"][..], "k8s-1.36.4-r1, k8s-1.36.4-r2"),
        (&["upgrade", "pay-01", "k8s-1.38.0-r1"], "1.37 first"),
        (&["upgrade", "pay-01", "k8s-1.38.0-r1"], "k8s-1.36.4-r2, k8s-1.37.1-r1"),
        (&["upgrade", "pay-01", "k8s-1.36.9-r1"], "spec.upgradeFrom"),
        (&["upgrade", "pay-01", "k8s-1.37.1-r1", "--retry"], "--retry"),
        (&["rollback", "pay-01"], "status.previous"),
        (&["rollback", "pay-01", "k8s-1.37.1-r1"], "fleetwright cluster upgrade pay-01 -n fleet k8s-1.37.1-r1"),
    ] {
        let refused = place.run(&[&["cluster"], args].concat()).await.refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    assert_eq!(asked().await, "k8s-1.36.4-r1");

    let upgrade = ["cluster", "upgrade", "pay-01", "k8s-1.37.1-r1"];
    let out = place.run(&[&upgrade[..], &["--dry-run"]].concat()).await.ok();
    assert!(
        out.contains("upgrading pay-01 from k8s-1.36.4-r1 to k8s-1.37.1-r1 ") && out.contains("(dry run)"),
        "{out}"
    );
    assert_eq!(asked().await, "k8s-1.36.4-r1");
    let mut waiting = Waiting::start(&place, &[&upgrade[..], &["--wait"]].concat());
    cluster_like(&place, "pay-01", |cluster| cluster.spec.package_version == "k8s-1.37.1-r1").await;
    let progress = json!({"step": "kube-apiserver", "since": "2026-11-16T08:00:00Z", "message": "1 of 2"});
    say(&place, "pay-01", json!({"phase": "Upgrading", "progress": progress})).await;
    waiting.says(&["waiting: Upgrading 1/2 kube-apiserver: 1 of 2"]).await;
    let soaking = json!({
        "phase": "Soaking", "progress": null, "observedGeneration": 2, "emulates": "1.36", "soakUntil": "2036-11-16T08:00:00Z",
        "packageVersion": "k8s-1.37.1-r1", "previous": "k8s-1.36.4-r1",
    });
    say(&place, "pay-01", soaking).await;
    assert!(waiting.ends().await.ok().contains("Ready with k8s-1.37.1-r1"));

    // A rollback works while the cluster emulates the previous minor, and no longer; the next upgrade works only after that.
    let refused = place.run(&["cluster", "upgrade", "pay-01", "k8s-1.38.0-r1"]).await.refused();
    assert!(refused.contains("emulates 1.36") && refused.contains("d left"), "{refused}");
    let out = place.run(&["cluster", "rollback", "pay-01", "--dry-run"]).await.ok();
    assert!(
        out.contains("rolling back pay-01 from k8s-1.37.1-r1 to k8s-1.36.4-r1 ") && out.contains("(dry run)"),
        "{out}"
    );
    // The record counts, not the time: a blocked soak does not end.
    let before = clusters(&place).get("pay-01").await.unwrap().status.unwrap_or_default().conditions;
    let mut conditions: Vec<Value> = before.iter().map(|one| json!(one)).collect();
    conditions.push(condition("UpgradeCompletable", "False", "RemovedAPIsInUse", "callers used flow.example/v1beta1"));
    let soaking = json!({
        "phase": "Soaking", "soakSince": "2026-11-15T08:00:00Z", "soakUntil": "2026-11-16T08:00:00Z", "conditions": conditions,
    });
    say(&place, "pay-01", soaking).await;
    let refused = place.run(&["cluster", "upgrade", "pay-01", "k8s-1.38.0-r1"]).await.refused();
    assert!(refused.contains("emulates 1.36") && refused.contains("UpgradeCompletable"), "{refused}");
    let out = place.run(&["cluster", "rollback", "pay-01", "--dry-run"]).await.ok();
    assert!(out.contains("rolling back pay-01 from k8s-1.37.1-r1 to k8s-1.36.4-r1"), "{out}");
    let out = place.run(&["why", "cluster/pay-01"]).await.out;
    assert!(out.contains("fleetwright.io/override=RemovedAPIsInUse@k8s-1.37.1-r1/soak"), "{out}");
    let ended = json!({"phase": "Ready", "emulates": null, "soakSince": null, "soakUntil": null, "conditions": before});
    say(&place, "pay-01", ended).await;
    let refused = place.run(&["cluster", "rollback", "pay-01"]).await.refused();
    assert!(refused.contains("no longer emulates 1.36") && refused.contains("pay-01-2026"), "{refused}");
    let refused = place.run(&["cluster", "upgrade", "pay-01", "k8s-1.36.4-r1"]).await.refused();
    assert!(refused.contains("fleetwright cluster rollback pay-01 -n fleet k8s-1.36.4-r1"), "{refused}");

    // A failed upgrade is reported, and retried on request.
    let upgrade = ["cluster", "upgrade", "pay-01", "k8s-1.38.0-r1"];
    let waiting = Waiting::start(&place, &[&upgrade[..], &["--wait"]].concat());
    cluster_like(&place, "pay-01", |cluster| cluster.spec.package_version == "k8s-1.38.0-r1").await;
    let failed = json!({
        "packageVersion": "k8s-1.38.0-r1", "generation": 3, "at": "2026-11-16T08:00:00Z",
        "message": "kube-apiserver: it ended with 1",
    });
    say(&place, "pay-01", json!({"phase": "Ready", "observedGeneration": 3, "failed": failed})).await;
    let refused = waiting.ends().await.refused();
    assert!(
        refused.contains("k8s-1.38.0-r1 failed") && refused.contains(": kube-apiserver: it ended with 1"),
        "{refused}"
    );
    let refused = place.run(&upgrade).await.refused();
    assert!(refused.contains("k8s-1.38.0-r1 --retry"), "{refused}");
    let out = place.run(&[&upgrade[..], &["--retry"]].concat()).await.ok();
    assert!(out.contains("retrying k8s-1.38.0-r1"), "{out}");
    let annotations = clusters(&place).get("pay-01").await.expect("it is there").metadata.annotations;
    assert!(annotations.unwrap_or_default().contains_key(names::RETRY));
    let out = place.run(&["cluster", "list"]).await.ok();
    assert!(out.contains("k8s-1.38.0-r1 failed: kube-apiserver: it ended with 1"), "{out}");
    // The rollback then returns to the version that the cluster still has.
    let out = place.run(&["cluster", "rollback", "pay-01"]).await.ok();
    assert!(out.contains("rolling back pay-01"), "{out}");
    assert_eq!(asked().await, "k8s-1.37.1-r1");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_changed_where_a_way_leads() {
    versions_are_changed(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_changed_where_a_way_leads_on_real() {
    versions_are_changed(Target::real().await.expect("the real server starts")).await;
}
