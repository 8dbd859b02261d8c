//! The life of a cluster by commands alone: real operators, and control planes on a simulated meta cluster.

use std::process::{Child, Stdio};

use fleetwright_apiserver::Config;
use fleetwright_kit::Clock;
use fleetwright_lab::Target;
use fleetwright_sim::meta::{Meta, MetaConfig, service_network};
use serde_json::json;

use crate::clusters::{package, place};
use crate::support::CliServer;

/// The operators, as a Deployment would run them; killed at the end of the test.
struct Operators(Child);

impl Operators {
    fn start(place: &CliServer) -> Self {
        let mut command = place.command(&["operators", "--no-leader-election", "--listen", "127.0.0.1:0"]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts"))
    }
}

impl Drop for Operators {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plans are printed before the change, and change nothing.
async fn plans(place: &CliServer) {
    let out = place.run(&["cluster", "plan", "pay-01"]).await.ok();
    assert!(
        out.contains("with k8s-1.36.4-r1 (Kubernetes 1.36.4)") && !out.contains("@@"),
        "nothing is to be done: {out}"
    );
    let plan = ["cluster", "plan", "pay-01", "--to", "k8s-1.37.1-r1"];
    let out = place.run(&plan).await.ok();
    for said in [
        "from k8s-1.36.4-r1 (Kubernetes 1.36.4) to k8s-1.37.1-r1 (Kubernetes 1.37.1)",
        "1.  etcd                     3.6.16 ",
        "2.  kube-apiserver           1.36.4 → 1.37.1  2 of 2 replicas, ",
        "4.  kube-scheduler ",
        "\n  ? ",
        "Rollback:\n  to k8s-1.36.4-r1 ",
        "Objects in namespace fleet-pay-01:",
        "--- Deployment/kube-apiserver\n+++ Deployment/kube-apiserver\n",
        "-registry.example/kube-apiserver:v1.36.4\n+registry.example/kube-apiserver:v1.37.1\n",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let json = place.run(&[&plan[..], &["-o", "json"]].concat()).await.ok();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let steps = json["steps"].as_array().expect("steps");
    let restarts = steps.iter().find(|step| step["component"] == "kube-apiserver").map(|step| &step["restarts"]);
    assert_eq!(restarts, Some(&json!(2)), "{json}");
    assert!(place.run(&[&plan[..], &["-o", "yaml"]].concat()).await.ok().contains("restarts: 2"));
    let dry = place.run(&["cluster", "upgrade", "pay-01", "k8s-1.37.1-r1", "--dry-run"]).await.ok();
    assert!(dry.contains("Stages:") && dry.contains("(dry run)"), "{dry}");
    let nowhere = place.run(&["cluster", "plan", "pay-01", "--to", "k8s-1.40.0"]).await.refused();
    assert!(nowhere.contains("ClusterPackageVersion k8s-1.40.0 not found"), "{nowhere}");
    let list = place.run(&["cluster", "list"]).await.ok();
    assert!(list.contains("k8s-1.36.4-r1") && !list.contains("k8s-1.37.1-r1"), "{list}");
}

/// Without a right, the plan fails and names it, or says what it does not contain.
async fn plans_name_missing_rights(place: &CliServer) {
    let objects = "clusters.fleetwright.io,clusterpackageversions.fleetwright.io,clusterlimits.fleetwright.io,namespaces,configmaps,services,\
                   networkpolicies.networking.k8s.io,poddisruptionbudgets.policy,statefulsets.apps,deployments.apps,pods";
    let claims = format!("{objects},persistentvolumeclaims");
    let classes = format!("{objects},storageclasses.storage.k8s.io");
    let all = format!("{claims},storageclasses.storage.k8s.io");
    let unplanned = "you may not list PersistentVolumeClaims or StorageClasses";
    for (account, resources, complete) in [
        ("claims", claims, Some(false)),
        ("classes", classes, Some(false)),
        ("all", all, Some(true)),
        ("clusters", "clusters.fleetwright.io".to_owned(), None),
    ] {
        place.kubectl(&["-n", "fleet", "create", "serviceaccount", account], None).await.ok();
        let resources = format!("--resource={resources}");
        place.kubectl(&["create", "clusterrole", account, "--verb=get,list", &resources], None).await.ok();
        let (role, subject) = (format!("--clusterrole={account}"), format!("--serviceaccount=fleet:{account}"));
        place.kubectl(&["create", "clusterrolebinding", account, &role, &subject], None).await.ok();
        place.speak_as("fleet", account).await;
        let ran = place.run(&["cluster", "plan", "pay-01", "-n", "fleet", "--context", account]).await;
        match complete {
            Some(complete) => {
                let out = ran.ok();
                assert!(out.contains("with k8s-1.36.4-r1 (Kubernetes 1.36.4)"), "{out}");
                assert_eq!(out.contains(unplanned), !complete, "{account}: {out}");
            }
            None => {
                let refused = ran.refused();
                let denied = "not allowed: clusterpackageversions.fleetwright.io is forbidden";
                assert!(refused.contains(denied), "{refused}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_reached_upgraded_rolled_back_and_deleted_by_commands() {
    let service_cidr = service_network().expect("a network is free");
    let target = Target::embedded_with(Config { service_cidr, ..Config::default() }).await.expect("it starts");
    let place = place(target).await;
    let meta = Meta::start(place.target.admin(), Clock::system(), MetaConfig::default()).await.expect("it starts");
    package(&place, "k8s-1.36.4-r1", "1.36.4", json!({})).await;
    package(&place, "k8s-1.37.1-r1", "1.37.1", json!({})).await;
    let operators = Operators::start(&place);

    let create = ["cluster", "create", "pay-01", "--package-version", "k8s-1.36.4-r1", "--wait", "--timeout", "3m"];
    let ran = place.run(&create).await;
    assert!(ran.err.contains("waiting: Creating 0/2") && ran.err.contains("is Ready"), "{}", ran.err);
    ran.ok();
    let out = place.run(&["cluster", "tree", "pay-01"]).await.ok();
    assert!(out.starts_with("✓ pay-01  Ready  k8s-1.36.4-r1") && !out.contains('✗'), "{out}");
    assert!(out.contains("✓ kube-apiserver  1.36.4  2/2 ready") && out.contains("✓ etcd  3.6.16  3/3 ready"), "{out}");
    let out = place.run(&["why", "cluster/pay-01"]).await.ok();
    assert!(out.starts_with("cluster/pay-01 is ready"), "{out}");
    let out = place.run(&["cluster", "status", "pay-01"]).await.ok();
    assert!(out.contains("apiserver-tls") && out.contains("ready, verified"), "{out}");

    plans_name_missing_rights(&place).await;

    // Data that is written here survives both version changes.
    place.run(&["cluster", "kubeconfig", "pay-01", "--user", "ann", "--merge"]).await.ok();
    let inside = async |args: &[&str]| place.kubectl(&[&["--context", "pay-01"], args].concat(), None).await.ok();
    inside(&["create", "configmap", "kept"]).await;
    plans(&place).await;
    place.run(&["cluster", "upgrade", "pay-01", "k8s-1.37.1-r1", "--wait", "--timeout", "3m"]).await.ok();
    let version = inside(&["version", "-o", "json"]).await;
    assert!(version.contains("v1.37.1"), "{version}");
    let out = place.run(&["cluster", "list"]).await.ok();
    assert!(out.contains("Soaking") && out.contains("emulates 1.36"), "{out}");
    inside(&["get", "configmap", "kept"]).await;
    let out = place.run(&["cluster", "rollback", "pay-01", "--wait", "--timeout", "3m"]).await.ok();
    assert!(out.contains("rolling back pay-01"), "{out}");
    let version = inside(&["version", "-o", "json"]).await;
    assert!(version.contains("v1.36.4"), "{version}");
    inside(&["get", "configmap", "kept"]).await;

    let out = place.run(&["cluster", "delete", "pay-01", "--unprotect", "--wait", "--timeout", "2m"]).await.ok();
    assert!(out.contains("removed after"), "{out}");
    assert!(place.kubectl(&["get", "namespace", "fleet-pay-01"], None).await.err.contains("not found"));
    drop((operators, meta));
    place.target.stop(false).await;
}
