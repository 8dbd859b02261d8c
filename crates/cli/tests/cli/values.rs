//! An edit of `cluster-values` while the Machine-Operator runs: planned and limited like a change of versions.

use std::sync::Arc;

use fleetwright_api::{ComponentState, Machine, MachineStatus, Operation, condition, names};
use fleetwright_kit::{Clock, Operator, Settings};
use fleetwright_lab::Target;
use fleetwright_machines::Options;
use fleetwright_sim::{Fleet, demo};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::support::{CliServer, until};

const ADDRESS: &str = "198.18.0.1";
const FILE: &str = "/etc/agent.conf";

/// The objects of a machine with one package, whose file has a value of `cluster-values`; and a Node, so that the gate limits the change.
fn objects() -> Value {
    let package = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion", "metadata": {"name": "agent-1"},
        "spec": {"component": "agent", "version": "1", "config": {}, "disruption": "Restart", "files": [
            {"path": FILE, "template": "server {{ cluster.server }}\n", "mode": "0644"},
        ]},
    });
    let machine = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "a"},
        "spec": {
            "addresses": [ADDRESS],
            "ssh": {"keyRef": {"name": demo::SSH_SECRET}, "hostKeys": {"policy": "TrustOnFirstUse"}},
            "packages": [{"component": "agent", "ref": "agent-1"}],
        },
    });
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}});
    let mut all = demo::around("https://old:6443");
    all.extend([package, machine, node]);
    json!({"apiVersion": "v1", "kind": "List", "items": all})
}

async fn status(machines: &Api<Machine>) -> MachineStatus {
    machines.get("a").await.expect("it is there").status.unwrap_or_default()
}

/// Whether that condition of the machine has this reason.
fn says(status: &MachineStatus, type_: &str, reason: &str) -> bool {
    condition(&status.conditions, type_).is_some_and(|said| said.reason == reason)
}

/// `machine plan` of the machine, without a connection to its host.
async fn plan(place: &CliServer) -> Value {
    let out = place.run(&["machine", "plan", "a", "-o", "json"]).await.ok();
    let plans: Value = serde_json::from_str(&out).expect("JSON");
    plans[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_cluster_values_is_planned_while_it_waits_for_the_gate() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    place.run(&["install"]).await.ok();
    let apply = ["apply", "-n", "fleet", "-f", "-"];
    place.kubectl(&apply, Some(&objects().to_string())).await.ok();
    let fleet = Fleet::new(Clock::system());
    let host = fleet.host(ADDRESS);
    let content = || {
        let bytes = host.machine().read(FILE, 1 << 10).ok().flatten();
        bytes.map(|bytes| String::from_utf8(bytes).expect("text"))
    };
    let mut operator = Operator::new(Settings::new("fleetwright-machines", place.target.admin()));
    let _hosts = fleetwright_machines::add(&mut operator, "fleet", Arc::new(fleet), Options::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));

    // The package is installed without the gate, because the machine is new. No policy exists, so that the gate grants nothing later.
    let machines: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    until("the operator finds the Node", || async {
        says(&status(&machines).await, names::UP_TO_DATE, "NodeNotBound").then_some(())
    })
    .await;
    // The operator may write the status at the same time: then the command fails, and is repeated.
    until("the Node is bound", || async { (place.run(&["machine", "bind-node", "a"]).await.code == 0).then_some(()) })
        .await;
    until("the package is installed", || async {
        let status = status(&machines).await;
        let ready = status.components.iter().any(|one| one.state == ComponentState::Ready);
        (ready && says(&status, names::PACKAGES_READY, "AllPackagesReady")).then_some(())
    })
    .await;
    assert_eq!(plan(&place).await["steps"], json!([]));
    assert_eq!(content().as_deref(), Some("server https://old:6443\n"));

    let edit = json!({"data": {"server": "https://new:6443"}}).to_string();
    let edit = ["patch", "configmap", names::CLUSTER_VALUES, "-n", "fleet", "--type", "merge", "-p", &edit];
    place.kubectl(&edit, None).await.ok();
    let operations: Api<Operation> = Api::namespaced(place.target.admin(), "fleet");
    let window = until("a window is requested", || async {
        operations.list(&ListParams::default()).await.expect("a list").items.into_iter().next()
    })
    .await;
    let changed = format!("file {FILE}");
    assert!(window.spec.type_ == "Restart" && window.spec.reason.contains(&changed), "{:?}", window.spec);
    let planned = plan(&place).await;
    let steps = planned["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [step] = steps else { panic!("not one step: {planned:#}") };
    let fields = ["action", "component", "from", "to", "disruption"].map(|field| step[field].as_str());
    assert_eq!(fields, ["change", "agent", "1", "1", "Restart"].map(Some), "{planned:#}");
    let changes = step["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [change] = changes else { panic!("not one change: {planned:#}") };
    assert_eq!(change["what"], changed.as_str());
    assert!(change["from"].is_string() && change["to"].is_string() && change["from"] != change["to"], "{planned:#}");
    assert_eq!(planned["machine"]["node"], "a", "the Node that is closed");
    assert_eq!(content().as_deref(), Some("server https://old:6443\n"), "the gate granted nothing");

    let policy = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy", "metadata": {"name": "windows"},
        "spec": {"operations": ["Restart"], "max": 1},
    });
    place.kubectl(&apply, Some(&policy.to_string())).await.ok();
    until("nothing is planned", || async { (plan(&place).await["steps"] == json!([])).then_some(()) }).await;
    assert_eq!(content().as_deref(), Some("server https://new:6443\n"));
    drop(stop);
    running.await.expect("no panic").expect("the operator stops");
    place.target.stop(false).await;
}
