//! Timeouts: a drain whose pods do not terminate, and a reboot whose host does not come back. The kubelet and the container runtime are real ones.

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Machine, Operation, OperationPhase, OperationStatus, Status, condition, names};
use fleetwright_lab::hosts::{Host, HostDescription, apply};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::NAMESPACE;
use crate::fleet::{Fleet, is_true, ready_in};

const KUBELET: &str = "1.36.4";

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_where_pods_cannot_on_hosts() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let host = fleet.site.host("host-1").await?;
    let outcome = drain_ends(&mut fleet, &host).await;
    if outcome.is_err() {
        fleet.keep_logs();
    }
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_never_returns_from_a_reboot_frees_its_place_on_hosts() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let host = fleet.site.host("host-1").await?;
    let outcome = never_returns(&mut fleet, &host).await;
    if outcome.is_err() {
        fleet.keep_logs();
    }
    outcome
}

/// Makes the host a Node on which pods can be scheduled.
async fn becomes_a_node(fleet: &mut Fleet, host: &Host) -> Result<()> {
    fleet.chapter("a bare host becomes a node");
    let packages = fleet.site.worker(KUBELET)?;
    fleet.add(&HostDescription::host(host, 0), &packages).await?;
    fleet.until(&host.name(), "to be ready and schedulable", in_service).await.map(drop)
}

fn in_service(machine: &Machine) -> bool {
    is_true(machine, names::PACKAGES_READY) && is_true(machine, names::SCHEDULABLE)
}

/// A package with one file, whose change has that disruption.
async fn file_package(fleet: &Fleet, component: &str, disruption: &str, timeouts: Value) -> Result<()> {
    let file = json!({ "path": format!("/etc/{component}.conf"), "content": "1\n", "mode": "0644" });
    let package = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
        "metadata": { "name": format!("{component}-1"), "namespace": NAMESPACE },
        "spec": {
            "component": component, "version": "1", "disruption": disruption, "config": {}, "files": [file], "timeouts": timeouts,
        },
    });
    apply(&fleet.client, &[package]).await
}

/// The result of the only window for that component.
async fn ended_operation(fleet: &mut Fleet, component: &str) -> Result<OperationStatus> {
    let windows = Api::<Operation>::namespaced(fleet.client.clone(), NAMESPACE);
    fleet
        .eventually(&format!("the window for {component} to end"), || async {
            let all = windows.list(&Default::default()).await?.items;
            let mut found = all.into_iter().filter(|one| one.spec.reason.contains(component));
            let status = found.next().and_then(|one| one.status).unwrap_or_default();
            ensure!(found.next().is_none(), "there is more than one window for {component}");
            let ended = matches!(status.phase, OperationPhase::Succeeded | OperationPhase::Failed);
            Ok(ended.then_some(status))
        })
        .await
}

/// Whether the machine's status has that text.
fn says(machine: &Machine, words: &str) -> bool {
    let progress = machine.status.as_ref().and_then(|status| status.progress.as_ref());
    progress.is_some_and(|progress| progress.message.contains(words))
}

/// Waits until a pod no longer exists.
async fn gone(fleet: &mut Fleet, pod: &str) -> Result<()> {
    let pods = fleet.pods();
    fleet
        .eventually(&format!("{pod} to be gone"), || async { Ok(pods.get_opt(pod).await?.is_none().then_some(())) })
        .await
}

/// Stops or continues the shim process of a pod's containers. Meanwhile the container runtime answers, and cannot stop the containers: as with a disk
/// that hangs.
async fn shim(host: &Host, pod: &str, signal: &str) -> Result<()> {
    let containers = format!("$(ctr -n k8s.io containers ls -q 'labels.\"io.kubernetes.pod.name\"=={pod}')");
    let shim = "containerd-shim-runc-v2 .*-id $id";
    host.run(&format!("for id in {containers}; do pkill -{signal} -f \"{shim}\"; done; true")).await.map(drop)
}

/// None of the pods has a controller. `held` has no room in its budget, and `stuck` cannot be stopped by its host. `kept` and `stuck` have a finalizer
/// that is never removed.
///
/// `kept` does not block the drain: a kubelet sets the final phase of a deleted pod when all of its containers have ended, whatever still keeps the
/// object.
async fn drain_ends(fleet: &mut Fleet, host: &Host) -> Result<()> {
    becomes_a_node(fleet, host).await?;
    fleet.chapter("pods come that cannot leave");
    let name = host.name();
    let (pods, params) = (fleet.pods(), PatchParams::default());
    for pod in ["alone", "held", "kept", "stuck"] {
        fleet.serve(pod, Some(&name)).await?;
    }
    let more = [
        ("held", json!({ "labels": { "app": "held" } })),
        ("kept", json!({ "finalizers": ["example.com/volume"] })),
        ("stuck", json!({ "finalizers": ["example.com/disk"] })),
    ];
    for (pod, metadata) in more {
        pods.patch(pod, &params, &Patch::Merge(json!({ "metadata": metadata }))).await?;
    }
    for pod in ["alone", "held", "kept", "stuck"] {
        fleet.address(pod).await?;
    }
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(fleet.client.clone());
    let budget = json!({
        "metadata": { "name": "held" }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "held" } } },
    });
    budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    shim(host, "stuck", "STOP").await?;
    fleet
        .eventually("one process to be stopped", || async {
            let stopped = host.run("ps -e -o stat= -o comm= | grep -c '^T.*containerd-shim' || true").await?;
            Ok((stopped.trim() == "1").then_some(()))
        })
        .await?;

    fleet.chapter("the machine is drained");
    // A stuck pod is reported half a minute after the end of its grace period.
    let drain = json!({ "force": true, "gracePeriod": "2s", "deleteAfter": "20s", "skipTerminatingAfter": "1m" });
    fleet.machines().patch(&name, &params, &Patch::Merge(json!({ "spec": { "drain": drain } }))).await?;
    file_package(fleet, "drained", "Drain", json!({ "drain": "5m" })).await?;
    fleet.set(&name, "drained", "drained-1").await?;
    fleet
        .until(&name, "to name the budget that holds its drain up", |machine| {
            says(machine, "PodDisruptionBudget default/held")
        })
        .await?;
    fleet.until(&name, "to name the finalizer", |machine| says(machine, "the finalizers example.com/disk")).await?;
    fleet.until(&name, "to be drained and changed", |machine| ready_in(machine, "drained", "1")).await?;
    let ended = ended_operation(fleet, "drained").await?;
    ensure!(ended.phase == OperationPhase::Succeeded, "{ended:?}");
    fleet.chapter("it is drained and changed");

    for pod in ["alone", "held"] {
        gone(fleet, pod).await?;
    }
    for (pod, phases) in [("stuck", &["Running"][..]), ("kept", &["Succeeded", "Failed"][..])] {
        let found = pods.get(pod).await?;
        let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(found.metadata.deletion_timestamp.is_some(), "{pod} was not told to leave");
        ensure!(phases.contains(&phase.as_str()), "{pod} is {phase}");
    }
    for pod in ["kept", "stuck"] {
        pods.patch(pod, &params, &Patch::Merge(json!({ "metadata": { "finalizers": null } }))).await?;
    }
    budgets.delete("held", &DeleteParams::default()).await?;
    shim(host, "stuck", "CONT").await?;
    for pod in ["kept", "stuck"] {
        gone(fleet, pod).await?;
    }
    fleet.until(&name, "to be open again", in_service).await?;
    fleet.chapter("done");
    Ok(())
}

/// The host is asked to reboot, and shuts down instead.
async fn never_returns(fleet: &mut Fleet, host: &Host) -> Result<()> {
    becomes_a_node(fleet, host).await?;
    fleet.chapter("the host goes down instead of booting");
    let name = host.name();
    let before = host.boot_id().await?;
    // Only until its next boot.
    let place = "/run/systemd/system/systemd-reboot.service.d";
    host.run(&format!(
        "mkdir -p {place} && printf '[Unit]\\nSuccessAction=poweroff-force\\n' >{place}/stays-down.conf && systemctl daemon-reload"
    ))
    .await?;
    file_package(fleet, "booted", "Reboot", json!({ "reboot": "30s" })).await?;
    fleet.set(&name, "booted", "booted-1").await?;
    fleet.eventually("the host to be down", || async { Ok((!host.is_on()).then_some(())) }).await?;
    fleet
        .until(&name, "to say that its host did not come back", |machine| {
            let said = machine.status.as_ref().and_then(|status| condition(&status.conditions, names::REACHABLE));
            said.is_some_and(|said| said.status == Status::False && said.reason == "RebootTimedOut")
        })
        .await?;
    let ended = ended_operation(fleet, "booted").await?;
    ensure!(ended.phase == OperationPhase::Failed, "{ended:?}");
    let known = condition(&ended.conditions, names::OUTCOME_KNOWN).context("it says what became of it")?;
    ensure!(known.message.contains("RebootTimedOut"), "{}", known.message);
    let node = fleet.nodes().get(&name).await?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(taints.iter().any(|taint| taint.key == names::MAINTENANCE_TAINT), "the Node is open: {taints:?}");

    fleet.chapter("it is switched on");
    host.power_on().await?;
    fleet.until(&name, "to go on by itself", |machine| ready_in(machine, "booted", "1") && in_service(machine)).await?;
    ensure!(host.boot_id().await? != before, "it is still in the same boot");
    // The host booted when its power came back: that was the due reboot, and no other window was requested.
    ended_operation(fleet, "booted").await?;
    fleet.chapter("done");
    Ok(())
}
