//! Timeouts: a reboot whose host does not come back, a repair of a dead component, a drain whose pods do not terminate.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use fleetwright_api::{ComponentState, Machine, Operation, OperationPhase, Phase, Status, condition, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{Faults, Fleet, SimHost, demo};
use fleetwright_wire::Verb;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::support::{MachineSteps, ensure, in_service, of, seconds, shown};

/// Adds a package to a machine.
async fn add_package(harness: &Harness, machine: &str, component: &str, reference: &str) -> Result<()> {
    let packages = harness.get(machine).await?.spec.packages;
    let added = json!({ "component": component, "ref": reference });
    let packages: Vec<Value> = packages.iter().map(|one| json!(one)).chain([added]).collect();
    harness.patch(machine, json!({ "spec": { "packages": packages } })).await
}

fn phase_of(operation: &Operation) -> OperationPhase {
    operation.status.as_ref().map(|status| status.phase).unwrap_or_default()
}

pub async fn a_host_that_never_returns_from_a_reboot_frees_its_place(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    harness.policy("reboots", json!({ "operations": ["Reboot"], "max": 1 })).await?;
    let file = json!({ "path": "/etc/boot.conf", "content": "quiet\n", "mode": "0644" });
    let boot = json!({
        "component": "boot", "version": "1", "disruption": "Reboot", "config": {}, "files": [file],
        "timeouts": { "reboot": "3m" },
    });
    harness.package("boot-1", boot).await?;
    hosts[0].set_stays_down(true);
    add_package(harness, "a", "boot", "boot-1").await?;
    let booting = |host: &SimHost| !host.is_on();
    harness.until("a", "is down", |seen| if booting(&hosts[0]) { Ok(()) } else { Err(shown(seen)) }).await?;
    add_package(harness, "b", "boot", "boot-1").await?;
    // Machine a holds the only place until its timeout; then b gets it.
    harness.says("a", names::REACHABLE, Status::False, "RebootTimedOut").await?;
    harness.phase("b", Phase::Ready).await?;
    let operations = harness.operations().await?;
    let of_a = operations.iter().find(|operation| operation.spec.target.name == "a").context("a has an Operation")?;
    ensure(phase_of(of_a) == OperationPhase::Failed, format!("{of_a:#?}"))?;
    let conditions = of_a.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let known = condition(&conditions, names::OUTCOME_KNOWN).context("it says what became of it")?;
    ensure(known.message.contains("RebootTimedOut"), &known.message)?;
    ensure(harness.closed("a").await?, "the Node of a host that is down stays closed")?;
    // The host is back, and its machine continues by itself: the host has rebooted, and reboots no more.
    hosts[0].set_stays_down(false);
    hosts[0].power_on();
    harness.phase("a", Phase::Ready).await?;
    harness.opened("a").await?;
    let boots = hosts[0].journal().into_iter().filter(|record| record.verb == Verb::Reboot).count();
    ensure(boots == 1, format!("{boots} boots"))
}

pub async fn a_dead_container_runtime_is_repaired_without_a_drain(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    // No pod may be evicted: a drain would never end.
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    hosts[0].spoil_file("/etc/containerd/config.toml", "this is no TOML\n");
    hosts[0].stop_unit("containerd.service");
    let holds = |seen: &Machine| {
        let drift = seen.status.as_ref().and_then(|status| status.last_drift.clone());
        if drift.is_some_and(|drift| drift.repaired) { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "was repaired", holds).await?;
    harness.phase("a", Phase::Ready).await?;
    {
        let machine = hosts[0].machine();
        ensure(machine.read("/etc/containerd/config.toml", 100)?.as_deref() == Some(b"version = 3\n"), "the file")?;
        ensure(machine.unit("containerd.service").active == "active", "the unit")?;
    }
    ensure(harness.pods().await? == ["held"], "no pod was evicted")?;
    let operations = harness.operations().await?;
    ensure(operations.is_empty(), format!("it asked the gate: {operations:#?}"))
}

pub async fn a_pod_without_a_controller_leaves_by_force_and_within_its_grace_period(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "alone", json!({ "app": "alone" })).await?;
    let pods = harness.api::<Pod>();
    // Only spec.drain allows its deletion.
    let annotation = Patch::Merge(json!({ "metadata": { "annotations": { names::EVICT: null } } }));
    let version = pods.patch("alone", &PatchParams::default(), &annotation).await?.metadata.resource_version;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watch = {
        let (pods, seen, version) = (pods.clone(), Arc::clone(&seen), version.unwrap_or_default());
        tokio::spawn(async move {
            let params = WatchParams::default().fields("metadata.name=alone").timeout(290);
            let Ok(events) = pods.watch(&params, &version).await else { return };
            let mut events = std::pin::pin!(events);
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) = event {
                    seen.lock().unwrap().extend(pod.metadata.deletion_grace_period_seconds);
                }
            }
        })
    };
    harness.patch("a", json!({ "spec": { "drain": { "gracePeriod": "7s" } } })).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    let held = |seen: &Machine| {
        let progress = seen.status.as_ref().and_then(|status| status.progress.as_ref());
        let message = progress.map(|progress| progress.message.clone()).unwrap_or_default();
        if message.contains("alone") && message.contains("spec.drain.force") { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "says what holds its drain up", held).await?;
    harness.run_for(seconds(300)).await?;
    ensure(harness.pods().await? == ["alone"], "it is not evicted without being asked for")?;
    harness.patch("a", json!({ "spec": { "drain": { "force": true } } })).await?;
    harness.phase("a", Phase::Ready).await?;
    harness.opened("a").await?;
    ensure(harness.pods().await?.is_empty(), "it left")?;
    let operations = harness.operations().await?;
    ensure(
        operations.iter().map(phase_of).collect::<Vec<_>>() == [OperationPhase::Succeeded],
        format!("{operations:#?}"),
    )?;
    let told = || async { if seen.lock().unwrap().contains(&7) { Ok(()) } else { Err(format!("{seen:?}")) } };
    harness.settle("its grace period was the machine's", told).await?;
    watch.abort();
    Ok(())
}

pub async fn a_machine_whose_ssh_key_is_deleted_in_a_window_frees_its_place(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    let drains = |seen: &Machine| {
        let progress = seen.status.as_ref().and_then(|status| status.progress.as_ref());
        if progress.is_some_and(|progress| progress.message.contains("held")) { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "is in a window that a pod holds up", drains).await?;
    harness.api::<Secret>().delete(demo::SSH_SECRET, &DeleteParams::default()).await?;
    harness.says("a", names::REACHABLE, Status::False, "SSHKeyNotFound").await?;
    let ended = || async {
        let operations = harness.operations().await.map_err(|error| error.to_string())?;
        match operations.iter().map(phase_of).collect::<Vec<_>>()[..] {
            [OperationPhase::Failed] => Ok(()),
            _ => Err(format!("{operations:#?}")),
        }
    };
    harness.settle("its window ended", ended).await
}

/// Somebody removes the taint during a window, and a pod arrives: later steps of the window disrupt it only after it was evicted.
pub async fn pods_that_come_while_a_node_was_opened_by_hand_leave_as_well(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let (good, bad) = ("http://127.0.0.1:8686/health", "http://127.0.0.1:8687/health");
    for (version, url) in [("1", good), ("2", bad)] {
        let file = json!({ "path": "/etc/agent.conf", "content": format!("version {version}\n"), "mode": "0644" });
        let health = json!({ "within": "10m", "every": "2s", "checks": [{ "http": url }] });
        let spec = json!({
            "component": "agent", "version": version, "config": {}, "disruption": "Drain", "files": [file], "health": health,
        });
        harness.package(&format!("agent-{version}"), spec).await?;
    }
    let served_by = [(bad.to_owned(), "absent.service".to_owned())].into();
    hosts[0].set_faults(Faults { served_by, ..Faults::default() });
    let packages = harness.get("a").await?.spec.packages;
    let packages: Vec<_> =
        packages.iter().map(|one| json!(one)).chain([json!({ "component": "agent", "ref": "agent-1" })]).collect();
    harness.patch("a", json!({ "spec": { "packages": packages } })).await?;
    harness.component("a", "agent", ComponentState::Ready).await?;
    harness.refer("a", "agent", "agent-2").await?;
    let proves = |seen: &Machine| {
        let agent = of(seen, "agent");
        let proves =
            agent.is_some_and(|agent| agent.message.starts_with("waiting") && agent.state == ComponentState::Upgrading);
        if proves { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "has to prove itself", proves).await?;
    let open = Patch::Merge(json!({ "spec": { "taints": null } }));
    harness.nodes().patch(&harness.node_name("a"), &PatchParams::default(), &open).await?;
    harness.pod("a", "late", json!({ "app": "late" })).await?;
    harness.component("a", "agent", ComponentState::RolledBack).await?;
    ensure(harness.pods().await?.is_empty(), "the earlier version came back under a pod")
}

pub async fn a_drain_ends_where_pods_cannot(harness: &Harness, fleet: &Fleet) -> Result<()> {
    in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    harness.pod("a", "stuck", json!({ "app": "stuck" })).await?;
    let pods = harness.api::<Pod>();
    let finalizers = |names: Value| Patch::Merge(json!({ "metadata": { "finalizers": names } }));
    pods.patch("stuck", &PatchParams::default(), &finalizers(json!(["example.com/volume"]))).await?;
    let drain = json!({ "deleteAfter": "3m", "skipTerminatingAfter": "5m" });
    harness.patch("a", json!({ "spec": { "drain": drain } })).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    let told = |seen: &Machine| {
        let progress = seen.status.as_ref().and_then(|status| status.progress.as_ref());
        let message = progress.map(|progress| progress.message.clone()).unwrap_or_default();
        if message.contains("example.com/volume") { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "names the finalizer", told).await?;
    harness.phase("a", Phase::Ready).await?;
    harness.opened("a").await?;
    ensure(harness.pods().await? == ["stuck"], "the pod without room in its budget was deleted after a while")?;
    let operations = harness.operations().await?;
    let ended: Vec<_> = operations.iter().map(phase_of).collect();
    ensure(ended == [OperationPhase::Succeeded], format!("one window was enough: {operations:#?}"))?;
    harness.run_for(seconds(1)).await?;
    pods.patch("stuck", &PatchParams::default(), &finalizers(Value::Null)).await?;
    Ok(())
}
