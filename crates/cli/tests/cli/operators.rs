//! `operators` as real processes: they become ready with exactly the rights of `install`, take over from each other, and
//! exit when they should.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{CliServer, until};
use fleetwright_api::{Machine, ReadinessGates, names};
use fleetwright_lab::Target;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

/// Operators that are killed at the end of the test.
struct Operators {
    child: Child,
    address: String,
}

impl Drop for Operators {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Operators {
    /// Starts the operators and waits until they print the address of their probes.
    async fn start(place: &CliServer, args: &[&str]) -> Self {
        let mut command = place.command(&[&["operators", "--listen", "127.0.0.1:0"][..], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = child.stdout.take().expect("standard output is piped");
        let line = tokio::task::spawn_blocking(move || BufReader::new(stdout).lines().next());
        let line = line.await.expect("a thread").expect("a line").expect("text");
        let address =
            line.split("http://").nth(1).unwrap_or_else(|| panic!("an address in {line:?}")).trim().to_owned();
        Self { child, address }
    }

    /// The status and the text of a page.
    async fn get(&self, path: &str) -> (u16, String) {
        let (address, path) = (self.address.clone(), path.to_owned());
        let read = move || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(address)?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = tokio::task::spawn_blocking(read).await.expect("a thread").unwrap_or_default();
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (code, text)
    }

    async fn ready(&self) {
        until("the operators are ready", || async { (self.get("/readyz").await.0 == 200).then_some(()) }).await;
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = std::process::Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(status.success());
    }

    /// The exit status, and the log.
    async fn ended(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the process can be waited for") {
                break status;
            }
            assert!(Instant::now() < deadline, "the operators did not end within 120 s");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let mut log = String::new();
        self.child.stderr.take().expect("standard error is piped").read_to_string(&mut log).expect("text");
        (status.code(), log)
    }
}

async fn holder(place: &CliServer) -> Option<String> {
    holder_of(place, "fleetwright-readiness").await
}

async fn holder_of(place: &CliServer, operator: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(place.target.admin(), "fleet");
    let lease = leases.get_opt(operator).await.expect("an answer")?;
    lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
}

/// Creates a machine with a closed Node and a gate that holds: an operator must open it.
async fn something_to_do(place: &CliServer, name: &str) {
    let client = place.target.admin();
    let gates: Api<ReadinessGates> = Api::namespaced(client.clone(), "fleet");
    if gates.get_opt("all").await.expect("an answer").is_none() {
        let gate = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "ReadinessGates", "metadata": {"name": "all"},
            "spec": {"selector": {}, "conditions": [{"type": "NodeReady", "from": {"nodeCondition": "Ready"}}]},
        });
        let gate = serde_json::from_value(gate).expect("ReadinessGates");
        gates.create(&PostParams::default(), &gate).await.expect("gates");
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let taints = json!([{"key": names::UNREADY_TAINT, "effect": "NoSchedule"}]);
    let node = json!({"metadata": {"name": name}, "spec": {"taints": taints.clone()}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).expect("a Node")).await.expect("a Node");
    let now = jiff::Timestamp::now();
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await.expect("a status");
    // Admission gives every new Node the taint not-ready, which Kubernetes' own controller removes. Here no such controller runs.
    let lifted = json!({"spec": {"taints": taints}});
    let node = nodes.patch(name, &PatchParams::default(), &Patch::Merge(&lifted)).await.expect("taints");
    let machines: Api<Machine> = Api::namespaced(client, "fleet");
    machines.create(&PostParams::default(), &Machine::new(name, Default::default())).await.expect("a machine");
    let bound = json!({"status": {"nodeRef": {"name": name, "uid": node.metadata.uid, "binding": "Adopted"}}});
    machines.patch_status(name, &PatchParams::default(), &Patch::Merge(&bound)).await.expect("a binding");
}

async fn is_done(place: &CliServer, name: &str) {
    let nodes: Api<Node> = Api::all(place.target.admin());
    until("the Node is opened", || async {
        let node = nodes.get(name).await.expect("the Node");
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.iter().all(|taint| taint.key != names::UNREADY_TAINT).then_some(())
    })
    .await;
    let machines: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    until("the Machine says so", || async {
        let status = machines.get(name).await.expect("the Machine").status?;
        fleetwright_api::is_true(&status.conditions, names::SCHEDULABLE).then_some(())
    })
    .await;
}

async fn works_and_hands_over(target: Target) {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    place.speak_as("fleetwright-system", "fleetwright-readiness").await;
    let named = ["--only", "readiness", "--context", "fleetwright-readiness"];
    let args = [&named[..], &["--lease-duration", "20s", "--log", "info", "--log-format", "json"]].concat();

    let mut first = Operators::start(&place, &[&args[..], &["--identity", "first"]].concat()).await;
    first.ready().await;
    until("the first leads", || async { (holder(&place).await.as_deref() == Some("first")).then_some(()) }).await;
    let second = Operators::start(&place, &[&args[..], &["--identity", "second"]].concat()).await;
    second.ready().await;
    assert_eq!(holder(&place).await.as_deref(), Some("first"), "a second one waits");

    something_to_do(&place, "host-1").await;
    is_done(&place, "host-1").await;
    let why = place.run(&["why", "machine/host-1"]).await.ok();
    assert!(
        why.starts_with("machine/host-1 ") && why.lines().next().is_some_and(|line| line.contains("Ready")),
        "{why}"
    );
    assert!(why.contains("NodeReady") && why.contains("ReadinessGates all"), "{why}");
    let why = place.run(&["why", "ma", "host-1", "-n", "fleet", "-o", "json"]).await.ok();
    let why: serde_json::Value = serde_json::from_str(&why).expect("JSON");
    assert_eq!(why["object"], json!({"kind": "Machine", "namespace": "fleet", "name": "host-1"}));
    let verdict = ["condition", "status", "reason"].map(|field| why["verdict"][field].as_str());
    assert_eq!(verdict, [Some("Schedulable"), Some("True"), Some("Ready")]);
    let gate = why["checks"].as_array().into_iter().flatten().find(|check| check["group"] == "Gates").expect("a gate");
    let gate = ["subject", "state", "rule", "value"].map(|field| gate[field].as_str());
    assert_eq!(gate, [Some("NodeReady"), Some("Passing"), Some("ReadinessGates/all"), Some("True")]);
    assert_eq!(first.get("/healthz").await.0, 200);
    let (code, metrics) = first.get("/metrics").await;
    assert!(code == 200 && metrics.contains("fleetwright_reconciles_total"), "{metrics}");

    first.signal("-TERM");
    let (code, log) = first.ended().await;
    assert_eq!(code, Some(0), "{log}");
    let lines =
        log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let opened = lines.filter(|line| line.to_string().contains("fleet/host-1")).count();
    assert!(opened > 0, "a line names the object:\n{log}");
    until("the second takes over", || async { (holder(&place).await.as_deref() == Some("second")).then_some(()) })
        .await;
    something_to_do(&place, "host-2").await;
    is_done(&place, "host-2").await;
    drop(second);
    for operator in ["machines", "clusters"] {
        let account = format!("fleetwright-{operator}");
        place.speak_as("fleetwright-system", &account).await;
        let own = format!("fleetwright-system/{account}");
        let mut args = vec!["--only", operator, "--context", &account, "--identity", operator];
        if operator == "clusters" {
            args.extend(["--service-account", &own]);
        }
        let running = Operators::start(&place, &args).await;
        running.ready().await;
        until("it leads", || async { (holder_of(&place, &account).await.as_deref() == Some(operator)).then_some(()) })
            .await;
        drop(running);
    }
    // The account of one operator lacks the rights of another.
    let args = ["operators", "--listen", "127.0.0.1:0", "--only", "clusters", "--context", "fleetwright-machines"];
    let error = place.run(&args).await.refused();
    assert!(error.contains("patch clusters.fleetwright.io/status in namespace fleet"), "{error}");
    // Nor can it take over the Lease of another.
    let leases: Api<Lease> = Api::namespaced(place.target.admin(), "fleet");
    let user = "system:serviceaccount:fleetwright-system:fleetwright-machines";
    let client = place.target.client_as(user, &[]).await.expect("a client");
    let thief: Api<Lease> = Api::namespaced(client, "fleet");
    let own = leases.get("fleetwright-machines").await.expect("its own Lease");
    thief.replace("fleetwright-machines", &PostParams::default(), &own).await.expect("its own Lease can be updated");
    for other in ["fleetwright-readiness", "fleetwright-clusters"] {
        let mut lease = leases.get(other).await.expect("the Lease of another operator");
        let before = lease.clone();
        lease.spec.get_or_insert_default().holder_identity = Some("thief".to_owned());
        let answer = thief.replace(other, &PostParams::default(), &lease).await;
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{other}: {answer:?}");
        assert_eq!(leases.get(other).await.expect("the Lease").spec, before.spec, "{other}");
    }
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_work_with_the_rights_of_the_installation_and_hand_over() {
    works_and_hands_over(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_work_with_the_rights_of_the_installation_and_hand_over_on_real() {
    works_and_hands_over(Target::real().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_loses_the_lease_ends_with_an_error() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    place.run(&["install"]).await.ok();
    let mut operators = Operators::start(&place, &["--lease-duration", "15s", "--identity", "mine"]).await;
    until("it leads", || async { (holder(&place).await.as_deref() == Some("mine")).then_some(()) }).await;
    let leases: Api<Lease> = Api::namespaced(place.target.admin(), "fleet");
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let taken = json!({"spec": {"holderIdentity": "thief", "renewTime": now, "leaseDurationSeconds": 60}});
    until("the others lead too", || async {
        (holder_of(&place, "fleetwright-clusters").await.as_deref() == Some("mine")).then_some(())
    })
    .await;
    leases.patch("fleetwright-readiness", &PatchParams::default(), &Patch::Merge(&taken)).await.expect("it is taken");
    let (code, log) = operators.ended().await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the lease was lost"), "{log}");
    assert_eq!(holder(&place).await.as_deref(), Some("thief"), "it is not taken back");
    for other in ["fleetwright-machines", "fleetwright-clusters"] {
        assert_eq!(holder_of(&place, other).await, None, "the lease of {other} is given back");
    }
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_set_up_is_one_clear_sentence() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    let error = place.run(&["operators", "--listen", "127.0.0.1:0"]).await.refused();
    assert!(
        error.contains("clusterlimits, clusterpackageversions, clusters") && error.contains("fleetwright install"),
        "{error}"
    );

    place.run(&["install"]).await.ok();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let error = place.run(&["operators", "--listen", &address]).await.refused();
    assert!(error.contains(&address), "{error}");

    place.speak_as("fleetwright-system", "default").await;
    let error = place.run(&["operators", "--listen", "127.0.0.1:0", "--context", "default"]).await.refused();
    assert!(error.contains("patch machines.fleetwright.io/status in namespace fleet"), "{error}");
    assert!(error.contains("patch nodes") && error.contains("fleetwright install"), "{error}");

    let file = place.kubeconfig();
    let file = file.to_str().expect("text").to_owned();
    place.target.stop(false).await;
    let error = crate::support::alone(&["operators", "--kubeconfig", &file]).refused();
    assert!(error.contains("cannot reach") && error.contains("https://127.0.0.1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_stop_though_the_server_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("kubeconfig");
    let cluster = format!("{{name: c, cluster: {{server: \"http://{}\"}}}}", silent.local_addr().expect("an address"));
    let context = "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c";
    std::fs::write(&file, format!("apiVersion: v1\nkind: Config\nclusters: [{cluster}]\n{context}\n")).expect("a file");
    let mut command = std::process::Command::new(crate::support::BINARY);
    command.args(["operators", "--kubeconfig"]).arg(&file).stderr(Stdio::piped());
    let mut operators = Operators { child: command.spawn().expect("the binary starts"), address: String::new() };
    // The operator waits for an answer as soon as its connection is accepted.
    let called = tokio::task::spawn_blocking(move || (silent.accept(), silent)).await.expect("a thread");
    operators.signal("-TERM");
    assert_eq!(operators.ended().await.0, Some(0));
    called.0.expect("the call was held to the end");
}

#[test]
fn a_lease_that_is_not_held_has_no_settings() {
    for (args, part) in [
        (vec!["operators", "--no-leader-election", "--identity", "x"], "cannot be used with"),
        (vec!["operators", "--lease-duration", "100ms"], "1s"),
        (vec!["operators", "--only", "nothing"], "readiness"),
        (vec!["operators", "--otlp-endpoint", "collector:4318"], "http://"),
    ] {
        let ran = crate::support::alone(&args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
    }
}
