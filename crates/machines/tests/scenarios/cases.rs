//! The declared state is reached, and kept.

use anyhow::{Context, Result};
use fleetwright_api::{ComponentState, Machine, OperationPhase, Phase, Status, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{BrokenUnit, Faults, Fleet, Network, SimHost, demo};
use fleetwright_wire::{OPT, Verb};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{
    DisruptionBudgets, MachineSteps, acts, check_every, delete, ensure, in_service, of, one_at_a_time, seconds, shown,
};

pub async fn twenty_machines_converge(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let names: Vec<String> = (0..20).map(|n| format!("m{n:02}")).collect();
    for name in &names {
        harness.machine(fleet, name, json!({})).await?;
    }
    harness.start().await?;
    for name in &names {
        let seen = harness.phase(name, Phase::Ready).await?;
        for (component, version) in [("sysctl", "1"), ("containerd", "2.3.0"), ("kubelet", "1.36.4")] {
            let found = of(&seen, component).context("it is not listed")?;
            ensure(found.state == ComponentState::Ready && found.observed.as_deref() == Some(version), shown(&seen))?;
        }
        let status = seen.status.as_ref().context("no status")?;
        let facts = status.facts.as_ref().context("no facts")?;
        ensure(facts.os.as_deref() == Some("debian-12"), shown(&seen))?;
        ensure(status.host_keys == [fleet.host(name).key()], "the key of the first use is pinned")?;
        let node = harness.nodes().get(&harness.node_name(name)).await?;
        let version = node.status.and_then(|status| status.node_info).map(|info| info.kubelet_version);
        ensure(version.as_deref() == Some("v1.36.4"), format!("{version:?}"))?;
        // One step for each component, and none twice.
        let begun = acts(&fleet.host(name));
        ensure(begun.len() == 3, format!("{begun:?}"))?;
    }
    Ok(())
}

pub async fn what_needs_a_boot_gets_one_boot_in_its_window(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    let file = json!({ "path": "/etc/boot.conf", "content": "quiet\n", "mode": "0644" });
    harness
        .package(
            "boot-1",
            json!({ "component": "boot", "version": "1", "disruption": "Reboot", "config": {}, "files": [file] }),
        )
        .await?;
    let boot = |seen: &Machine| seen.status.as_ref().and_then(|status| status.facts.as_ref()?.boot_id.clone());
    let before = boot(&harness.get("a").await?);
    let packages = harness.get("a").await?.spec.packages;
    let packages: Vec<_> =
        packages.iter().map(|one| json!(one)).chain([json!({ "component": "boot", "ref": "boot-1" })]).collect();
    harness.patch("a", json!({ "spec": { "packages": packages } })).await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(before.is_some() && boot(&seen) != before, "it was not booted")?;
    let boots = hosts[0].journal().into_iter().filter(|record| record.verb == Verb::Reboot).count();
    ensure(boots == 1, format!("{boots} boots"))?;
    ensure(of(&seen, "boot").is_some_and(|boot| boot.state == ComponentState::Ready), shown(&seen))?;
    ensure(harness.pods().await?.is_empty(), "the pod had to leave before the boot")?;
    ensure(!harness.closed("a").await?, "it stayed closed")?;
    let windows = harness.operations().await?;
    let kinds: Vec<_> = windows.iter().map(|window| format!("{:?}", window.spec.type_)).collect();
    ensure(windows.len() == 1 && kinds[0].contains("Reboot"), format!("{kinds:?}"))
}

pub async fn an_upgrade_drains_within_disruption_budgets(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "free", json!({ "app": "free" })).await?;
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    let holds = |seen: &Machine| {
        let message = of(seen, "containerd").map(|found| found.message).unwrap_or_default();
        let progress = seen.status.as_ref().and_then(|status| status.progress.clone());
        let told = format!("{message} {}", progress.map(|progress| progress.message).unwrap_or_default());
        if told.contains("held") { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "says which pod is held", holds).await?;
    ensure(harness.closed("a").await?, "the Node takes new pods while it is drained")?;
    ensure(harness.pods().await? == ["held"], "only the pod that a budget protects is left")?;
    let before = acts(&hosts[0]);
    ensure(before.len() == 3, format!("nothing is touched before all have left: {before:?}"))?;

    harness.allow("held", 1, None).await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(harness.pods().await?.is_empty(), "the pod has left")?;
    ensure(!harness.closed("a").await?, "the Node is open again")?;
    let upgrades = hosts[0].journal().into_iter().filter(|record| record.component.as_deref() == Some("containerd"));
    ensure(upgrades.count() == 2, "one step for the upgrade")?;
    let operations = harness.operations().await?;
    let ended = |phase| operations.iter().filter(|o| o.status.as_ref().is_some_and(|s| s.phase == phase)).count();
    ensure(operations.len() == 1 && ended(OperationPhase::Succeeded) == 1, format!("{operations:#?}"))
}

pub async fn no_more_machines_are_worked_on_than_the_policy_of_their_zone_allows(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let names: Vec<String> = (0..8).map(|n| format!("m{n}")).collect();
    harness
        .policy("windows", json!({ "operations": ["Restart", "Drain", "Reboot"], "scope": { "by": "zone" }, "max": 1 }))
        .await?;
    for (n, name) in names.iter().enumerate() {
        let zone = format!("z{}", n % 2);
        let more = json!({
            "metadata": { "labels": { "zone": zone } },
            "spec": { "hardware": { "zone": zone } },
        });
        harness.machine(fleet, name, more).await?.set_step(seconds(5));
    }
    harness.start().await?;
    for name in &names {
        harness.phase(name, Phase::Ready).await?;
    }
    for name in &names {
        harness.refer(name, "containerd", "containerd-2.4.2").await?;
    }
    // Never more than one in each zone.
    let most = std::sync::Mutex::new([0_usize; 2]);
    let reached = || async {
        let mut now = [0; 2];
        for (n, name) in names.iter().enumerate() {
            now[n % 2] += usize::from(harness.closed(name).await.map_err(|error| error.to_string())?);
        }
        {
            let mut most = most.lock().unwrap();
            *most = [most[0].max(now[0]), most[1].max(now[1])];
        }
        let mut left = Vec::new();
        for name in &names {
            let seen = harness.get(name).await.map_err(|error| error.to_string())?;
            let found = of(&seen, "containerd");
            if found.is_none_or(|found| found.observed.as_deref() != Some("2.4.2")) {
                left.push(name.clone());
            }
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
    };
    harness.settle("all are upgraded", reached).await?;
    for name in &names {
        harness.phase(name, Phase::Ready).await?;
    }
    let most = *most.lock().unwrap();
    ensure(most == [1, 1], format!("closed at the same time, by zone: {most:?}"))
}

/// An edit of `cluster-values` changes the packages of every host: the gate limits it like a change of versions.
pub async fn an_edit_of_the_cluster_s_values_changes_one_machine_at_a_time(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let names = ["a", "b", "c"];
    let hosts = in_service(harness, fleet, &names).await?;
    harness.policy("one", json!({ "operations": ["Restart"], "max": 1 })).await?;
    let file = json!({ "path": "/etc/agent.conf", "template": "server {{ cluster.server }}\n", "mode": "0644" });
    let spec = json!({ "component": "agent", "version": "1", "config": {}, "disruption": "Restart", "files": [file] });
    harness.package("agent-1", spec).await?;
    for (name, host) in names.iter().zip(&hosts) {
        let packages = harness.get(name).await?.spec.packages;
        let packages: Vec<_> =
            packages.iter().map(|one| json!(one)).chain([json!({ "component": "agent", "ref": "agent-1" })]).collect();
        harness.patch(name, json!({ "spec": { "packages": packages } })).await?;
        harness.component(name, "agent", ComponentState::Ready).await?;
        harness.opened(name).await?;
        host.set_step(seconds(5));
    }
    let values = json!({ "data": { "server": "https://elsewhere:6443" } });
    let params = kube::api::PatchParams::default();
    let maps = harness.api::<k8s_openapi::api::core::v1::ConfigMap>();
    maps.patch(names::CLUSTER_VALUES, &params, &kube::api::Patch::Merge(values)).await?;
    let most = std::sync::Mutex::new(0_usize);
    let reached = || async {
        let mut closed = 0;
        for name in names {
            closed += usize::from(harness.closed(name).await.map_err(|error| error.to_string())?);
        }
        {
            let mut most = most.lock().unwrap();
            *most = closed.max(*most);
        }
        let content = |host: &fleetwright_sim::SimHost| host.machine().read("/etc/agent.conf", 1 << 20).ok().flatten();
        let old = hosts.iter().filter(|host| content(host).as_deref() != Some(&b"server https://elsewhere:6443\n"[..]));
        match old.count() + closed {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        }
    };
    harness.settle("all carry the new value", reached).await?;
    let most = *most.lock().unwrap();
    ensure(most == 1, format!("{most} were closed at the same time"))?;
    let operations = harness.operations().await?;
    let changed = operations.iter().filter(|one| one.spec.reason.contains("file /etc/agent.conf"));
    ensure(changed.count() == 3, format!("the windows do not name what changes: {operations:#?}"))
}

/// Gates require `PackagesReady`: an edit that cannot be rendered closes no machine that works.
pub async fn a_value_that_is_missing_leaves_machines_in_service_ready(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let maps = harness.api::<k8s_openapi::api::core::v1::ConfigMap>();
    let set_region = async |region: serde_json::Value| {
        let patch = kube::api::Patch::Merge(json!({ "data": { "region": region } }));
        maps.patch(names::CLUSTER_VALUES, &kube::api::PatchParams::default(), &patch).await
    };
    set_region(json!("north")).await?;
    let file = json!({ "path": "/etc/region.conf", "template": "{{ cluster.region }}\n", "mode": "0644" });
    let spec = json!({ "component": "agent", "version": "1", "config": {}, "disruption": "None", "files": [file] });
    harness.package("agent-1", spec).await?;
    let packages = harness.get("a").await?.spec.packages;
    let packages: Vec<_> =
        packages.iter().map(|one| json!(one)).chain([json!({ "component": "agent", "ref": "agent-1" })]).collect();
    harness.patch("a", json!({ "spec": { "packages": packages } })).await?;
    harness.component("a", "agent", ComponentState::Ready).await?;
    harness.phase("a", Phase::Ready).await?;
    let before = hosts[0].journal().len();
    set_region(serde_json::Value::Null).await?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "RenderFailed").await?;
    ensure(said.message.contains("region"), &said.message)?;
    harness.phase("a", Phase::Degraded).await?;
    harness.run_for(seconds(1200)).await?;
    harness.says("a", names::PACKAGES_READY, Status::True, "AllPackagesReady").await?;
    set_region(json!("north")).await?;
    harness.says("a", names::UP_TO_DATE, Status::True, "MatchesSpec").await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(hosts[0].journal().len() == before, "nothing was done to the host")
}

/// Breaks that version of the kubelet on every host.
pub fn spoil(fleet: &Fleet) {
    let spoilt = BrokenUnit {
        unit: "kubelet.service".to_owned(),
        path: format!("{OPT}/kubelet/current"),
        contains: "1.37.2".to_owned(),
    };
    for host in fleet.all() {
        host.set_faults(Faults { spoilt: [spoilt.clone()].into(), ..Faults::default() });
    }
}

pub async fn a_bad_version_is_rolled_back_on_its_first_host_and_not_tried_again(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    spoil(fleet);
    harness.refer("a", "kubelet", demo::BAD_KUBELET).await?;
    let component = harness.component("a", "kubelet", ComponentState::RolledBack).await?;
    ensure(component.observed.as_deref() == Some("1.36.4"), format!("{component:?}"))?;
    ensure(component.desired.as_deref() == Some("1.37.2"), format!("{component:?}"))?;
    ensure(component.message.contains("kubelet.service"), format!("it says why: {component:?}"))?;
    // The restored version works, so that gates which require it allow pods; the declared version is reported separately.
    harness.says("a", names::PACKAGES_READY, Status::True, "AllPackagesReady").await?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "RolledBack").await?;
    for part in ["kubelet", "1.37.2", "1.36.4", "kubelet.service", "fleetwright machine retry a"] {
        ensure(said.message.contains(part), format!("{part} is not in: {}", said.message))?;
    }
    harness.event("RolledBack", "kubelet").await?;
    ensure(!harness.closed("a").await?, "what works takes pods")?;
    let node = harness.nodes().get(&harness.node_name("a")).await?;
    let version = node.status.and_then(|status| status.node_info).map(|info| info.kubelet_version);
    ensure(version.as_deref() == Some("v1.36.4"), format!("{version:?}"))?;
    let tried = |host: &fleetwright_sim::SimHost| {
        host.journal().iter().filter(|record| record.component.as_deref() == Some("kubelet")).count()
    };
    let before = tried(&hosts[0]);
    harness.run_for(seconds(1500)).await?;
    ensure(tried(&hosts[0]) == before, "it is not tried again by itself")?;

    // A person requests a retry after the version was fixed.
    hosts[0].set_faults(Faults::default());
    harness.patch("a", json!({ "metadata": { "annotations": { names::RETRY: "once more" } } })).await?;
    let component = harness.component("a", "kubelet", ComponentState::Ready).await?;
    ensure(component.observed.as_deref() == Some("1.37.2"), format!("{component:?}"))
}

pub async fn a_kubelet_that_is_newer_than_its_api_server_is_refused(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let newest = demo::packages().into_iter().find(|one| one["metadata"]["name"] == demo::NEWER_KUBELET);
    let mut spec = newest.context("a kubelet")?["spec"].clone();
    spec["version"] = json!("1.99.0");
    harness.package("kubelet-1.99.0", spec).await?;
    let steps = hosts[0].journal().len();
    harness.refer("a", "kubelet", "kubelet-1.99.0").await?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "KubeletTooNew").await?;
    for part in ["1.99.0", "control plane"] {
        ensure(said.message.contains(part), format!("{part} is not in: {}", said.message))?;
    }
    harness.says("a", names::PACKAGES_READY, Status::True, "ChangePending").await?;
    harness.run_for(seconds(1500)).await?;
    ensure(hosts[0].journal().len() == steps, "it was touched")?;
    ensure(!harness.closed("a").await?, "it was closed for nothing")?;
    // A version that fits is installed.
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let component = harness.component("a", "kubelet", ComponentState::Ready).await?;
    ensure(component.observed.as_deref() == Some("1.37.1"), format!("{component:?}"))?;
    harness.says("a", names::UP_TO_DATE, Status::True, "MatchesSpec").await.map(drop)
}

/// A machine that was never a Node refers to such a kubelet: all other packages are installed, and no Node appears before the kubelet fits.
pub async fn a_first_kubelet_that_is_newer_than_its_api_server_is_not_installed(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let newest = demo::packages().into_iter().find(|one| one["metadata"]["name"] == demo::NEWER_KUBELET);
    let mut spec = newest.context("a kubelet")?["spec"].clone();
    spec["version"] = json!("1.99.0");
    harness.package("kubelet-1.99.0", spec).await?;
    let host = harness.machine(fleet, "a", json!({})).await?;
    harness.refer("a", "kubelet", "kubelet-1.99.0").await?;
    harness.start().await?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "KubeletTooNew").await?;
    ensure(said.message.contains("1.99.0"), &said.message)?;
    harness.component("a", "containerd", ComponentState::Ready).await?;
    harness.run_for(seconds(1500)).await?;
    ensure(host.journal().iter().all(|step| step.component.as_deref() != Some("kubelet")), "the kubelet was touched")?;
    ensure(harness.nodes().get_opt(&harness.node_name("a")).await?.is_none(), "a Node has appeared")?;
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    harness.phase("a", Phase::Ready).await?;
    harness.says("a", names::UP_TO_DATE, Status::True, "MatchesSpec").await.map(drop)
}

/// A restored version is guarded against drift like any other: by the host's own copy of its package.
pub async fn drift_of_a_restored_version_is_repaired_to_it(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    spoil(fleet);
    harness.refer("a", "kubelet", demo::BAD_KUBELET).await?;
    harness.component("a", "kubelet", ComponentState::RolledBack).await?;
    harness.opened("a").await?;
    let path = "/etc/kubernetes/kubelet.yaml";
    let content = || hosts[0].machine().read(path, 1 << 20).ok().flatten();
    let whole = content().context("the kubelet has its file")?;
    hosts[0].spoil_file(path, "kind: Nonsense\n");
    let repaired = |seen: &Machine| {
        let drift = seen.status.as_ref().and_then(|status| status.last_drift.clone());
        match drift {
            Some(drift) if drift.repaired && drift.items.iter().any(|item| item.what.contains(path)) => Ok(()),
            _ => Err(shown(seen)),
        }
    };
    harness.until("a", "is repaired", repaired).await?;
    ensure(content().as_ref() == Some(&whole), "the file is not as it was restored")?;
    let component = harness.component("a", "kubelet", ComponentState::RolledBack).await?;
    ensure(component.observed.as_deref() == Some("1.36.4"), format!("{component:?}"))?;
    harness.says("a", names::UP_TO_DATE, Status::False, "RolledBack").await?;
    harness.opened("a").await?;
    let last = hosts[0].journal().pop().context("a step")?;
    ensure(last.verb == Verb::Back && last.component.as_deref() == Some("kubelet"), format!("{last:?}"))
}

/// The declared version fails its check, and so does the restored one, because the host itself is broken.
pub async fn a_restored_version_that_fails_too_is_reported_with_both_failures(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let url = "http://127.0.0.1:8686/health";
    for version in ["1", "2"] {
        let file = json!({ "path": "/etc/agent.conf", "content": format!("version {version}\n"), "mode": "0644" });
        let health = json!({ "within": "30s", "every": "2s", "checks": [{ "http": url }] });
        let spec = json!({
            "component": "agent", "version": version, "config": {}, "disruption": "Restart", "files": [file], "health": health,
        });
        harness.package(&format!("agent-{version}"), spec).await?;
    }
    let packages = harness.get("a").await?.spec.packages;
    let packages: Vec<_> =
        packages.iter().map(|one| json!(one)).chain([json!({ "component": "agent", "ref": "agent-1" })]).collect();
    harness.patch("a", json!({ "spec": { "packages": packages } })).await?;
    harness.component("a", "agent", ComponentState::Ready).await?;

    let served_by = [(url.to_owned(), "absent.service".to_owned())].into();
    hosts[0].set_faults(Faults { served_by, ..Faults::default() });
    harness.refer("a", "agent", "agent-2").await?;
    let component = harness.component("a", "agent", ComponentState::Failed).await?;
    ensure(component.message.matches("8686").count() == 2, format!("not both failures: {}", component.message))?;
    ensure(component.rollback.as_ref().is_some_and(|back| back.version == "1"), format!("{component:?}"))?;
    harness.phase("a", Phase::Degraded).await?;
    harness.says("a", names::PACKAGES_READY, Status::False, "PackageFailed").await?;
    harness.says("a", names::UP_TO_DATE, Status::False, "PackageFailed").await?;
    ensure(harness.closed("a").await?, "it is open and what it carries does not work")?;
    harness.run_for(seconds(1500)).await?;
    ensure(harness.closed("a").await?, "it was opened although nothing works")?;

    // The host is repaired: the restored version is observed to work, and pods are scheduled again.
    hosts[0].set_faults(Faults::default());
    harness.component("a", "agent", ComponentState::RolledBack).await?;
    harness.opened("a").await?;
    harness.says("a", names::PACKAGES_READY, Status::True, "AllPackagesReady").await.map(drop)
}

/// Versions 2 and 3 do not work, and 2 is held back: the host keeps one earlier version, which is the one that worked.
pub async fn a_rollback_after_a_held_version_restores_the_one_that_worked(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let (good, bad) = ("http://127.0.0.1:8686/health", "http://127.0.0.1:8687/health");
    for (version, url, on_failure) in [("1", good, "RollBack"), ("2", bad, "Hold"), ("3", bad, "RollBack")] {
        let file = json!({ "path": "/etc/agent.conf", "content": format!("version {version}\n"), "mode": "0644" });
        let health = json!({ "within": "30s", "every": "2s", "checks": [{ "http": url }] });
        let spec = json!({
            "component": "agent", "version": version, "config": {}, "disruption": "Restart", "files": [file], "health": health,
            "onFailure": on_failure,
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
    harness.component("a", "agent", ComponentState::Failed).await?;
    harness.refer("a", "agent", "agent-3").await?;
    let component = harness.component("a", "agent", ComponentState::RolledBack).await?;
    ensure(component.rollback.as_ref().is_some_and(|back| back.version == "1"), format!("{component:?}"))?;
    let file = hosts[0].machine().read("/etc/agent.conf", 1 << 20).ok().flatten();
    ensure(file.as_deref() == Some(b"version 1\n".as_slice()), format!("{file:?}"))?;
    harness.opened("a").await
}

pub async fn a_change_taken_back_half_way_leads_back(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    harness.pod("a", "held", json!({ "app": "held" })).await?;
    harness.budget("held", json!({ "app": "held" }), 1).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    let closed = || async {
        match harness.closed("a").await.map_err(|error| error.to_string())? {
            true => Ok(()),
            false => Err("it is open".to_owned()),
        }
    };
    harness.settle("it is closed", closed).await?;
    harness.refer("a", "containerd", "containerd-2.3.0").await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(!harness.closed("a").await?, "it is open again")?;
    ensure(harness.pods().await? == ["held"], "the pod stayed")?;
    ensure(acts(&hosts[0]).len() == 3, "the host was not touched")?;

    // Once it was done, it is a change like any other.
    harness.allow("held", 1, None).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    harness.component("a", "containerd", ComponentState::Ready).await?;
    harness.phase("a", Phase::Ready).await?;
    harness.refer("a", "containerd", "containerd-2.3.0").await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "containerd").and_then(|found| found.observed).as_deref() == Some("2.3.0"), shown(&seen))
}

pub async fn drift_is_repaired_and_named(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let host = &hosts[0];
    host.spoil_file("/etc/containerd/config.toml", "version = 1\n");
    host.spoil_sysctl("kernel.panic", "0");
    host.stop_unit("containerd.service");
    let steps = host.journal().len();
    let holds = |seen: &Machine| {
        let drift = seen.status.as_ref().and_then(|status| status.last_drift.clone());
        match drift {
            Some(drift) if drift.repaired && drift.items.len() >= 2 => Ok(()),
            _ => Err(shown(seen)),
        }
    };
    let seen = harness.until("a", "was repaired", holds).await?;
    harness.phase("a", Phase::Ready).await?;
    let items = seen.status.and_then(|status| status.last_drift).context("no drift")?.items;
    let named = |what: &str| items.iter().any(|item| item.what.contains(what));
    ensure(named("/etc/containerd/config.toml") || named("kernel.panic"), format!("{items:?}"))?;
    {
        let machine = host.machine();
        ensure(machine.read("/etc/containerd/config.toml", 100)?.as_deref() == Some(b"version = 3\n"), "the file")?;
        ensure(machine.sysctl("kernel.panic").as_deref() == Some("10"), "the sysctl")?;
        ensure(machine.unit("containerd.service").active == "active", "the unit")?;
    }
    let repairs = host.journal().split_off(steps);
    ensure(repairs.iter().all(|record| record.verb == Verb::Repair), format!("{repairs:?}"))?;
    harness.event("Drifted", "kernel.panic").await?;
    harness.event("Repaired", "").await
}

pub async fn drift_is_only_reported_if_that_is_the_policy(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = harness.machine(fleet, "a", json!({ "spec": { "drift": "Report" } })).await?;
    harness.start().await?;
    harness.phase("a", Phase::Ready).await?;
    let steps = host.journal().len();
    host.spoil_sysctl("kernel.panic", "0");
    harness.says("a", names::IN_SYNC, Status::False, "Drifted").await?;
    let component = harness.component("a", "sysctl", ComponentState::Drifted).await?;
    ensure(component.message.contains("kernel.panic"), format!("{component:?}"))?;
    harness.run_for(seconds(1800)).await?;
    ensure(host.journal().len() == steps, "it was touched")?;
    ensure(host.machine().sysctl("kernel.panic").as_deref() == Some("0"), "it was changed")?;
    // Repaired by hand.
    host.spoil_sysctl("kernel.panic", "10");
    harness.phase("a", Phase::Ready).await.map(drop)
}

pub async fn a_host_that_fights_back_is_slowed_down_and_reported(harness: &Harness, fleet: &Fleet) -> Result<()> {
    check_every(harness, seconds(20));
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let mut repaired_at = Vec::new();
    // Another process reverts every repair.
    for _ in 0..8 {
        hosts[0].spoil_sysctl("kernel.panic", "0");
        let holds = |_: &Machine| match hosts[0].machine().sysctl("kernel.panic").as_deref() {
            Some("10") => Ok(()),
            other => Err(format!("it is {other:?}")),
        };
        harness.until("a", "was repaired", holds).await?;
        repaired_at.push(harness.clock().monotonic());
    }
    harness.event("DriftRecurring", "kernel.panic").await?;
    let waits: Vec<_> = repaired_at.windows(2).map(|two| two[1] - two[0]).collect();
    let (first, last) = (waits[0], waits[waits.len() - 1]);
    ensure(first < seconds(60) && last >= seconds(240), format!("from repair to repair: {waits:?}"))?;
    hosts[0].spoil_sysctl("kernel.panic", "0");
    harness.says("a", names::IN_SYNC, Status::False, "DriftRecurring").await.map(drop)
}

pub async fn a_deleted_machine_leaves_a_clean_host(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = fleet.host("a");
    let before = host.tree();
    in_service(harness, fleet, &["a"]).await?;
    ensure(host.tree() != before, "it was installed")?;
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    ensure(harness.pods().await?.is_empty(), "its pods had to leave")?;
    let node = harness.nodes().get_opt(&harness.node_name("a")).await?;
    ensure(node.is_none(), "its Node is gone")?;
    let left = host.tree();
    let differs: Vec<_> = left.iter().filter(|(path, thing)| before.get(*path) != Some(thing)).collect();
    ensure(differs.is_empty(), format!("what is left: {differs:#?}"))?;
    let missing: Vec<_> = before.keys().filter(|path| !left.contains_key(*path)).collect();
    ensure(missing.is_empty(), format!("what is missing: {missing:?}"))
}

pub async fn an_orphaned_host_is_left_alone(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = harness.machine(fleet, "a", json!({ "spec": { "onDelete": "Orphan" } })).await?;
    harness.start().await?;
    harness.phase("a", Phase::Ready).await?;
    // The owner mark is removed, so that another Machine can claim the host; everything else stays.
    let mark = format!("{}/owner.json", fleetwright_wire::HOME);
    let (mut before, steps) = (host.tree(), host.journal().len());
    ensure(before.remove(&mark).is_some(), "it had an owner")?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    ensure(host.tree() == before && host.journal().len() == steps, "it was touched")?;
    ensure(harness.nodes().get_opt(&harness.node_name("a")).await?.is_some(), "its Node works on")
}

pub async fn a_host_that_is_gone_can_be_released(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    hosts[0].power_off();
    delete(harness, "a").await?;
    let said = harness.says("a", names::REACHABLE, Status::False, "NoResponse").await?;
    ensure(said.message.contains(names::FORCE_RELEASE), format!("it says what to do: {}", said.message))?;
    harness.run_for(seconds(600)).await?;
    ensure(harness.api::<Machine>().get_opt("a").await?.is_some(), "it is not given up by itself")?;
    harness.patch("a", json!({ "metadata": { "annotations": { names::FORCE_RELEASE: "true" } } })).await?;
    harness.gone("a").await?;
    ensure(harness.nodes().get_opt(&harness.node_name("a")).await?.is_none(), "its Node is gone, too")
}

pub async fn nothing_is_done_to_a_paused_machine(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let steps = hosts[0].journal().len();
    harness.patch("a", json!({ "spec": { "paused": true } })).await?;
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    hosts[0].spoil_sysctl("kernel.panic", "0");
    harness.run_for(seconds(1800)).await?;
    ensure(hosts[0].journal().len() == steps, "it was touched")?;
    ensure(!harness.closed("a").await?, "its Node was touched")?;
    harness.patch("a", json!({ "spec": { "paused": false } })).await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))
}

/// The step of `b` waits until that of `a` ends, and `b` is paused before.
pub async fn a_pause_stops_a_step_that_waits_for_its_turn(harness: &Harness, fleet: &Fleet) -> Result<()> {
    one_at_a_time(harness);
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    let steps = hosts[1].journal().len();
    let newer = json!({ "component": "sysctl", "version": "2", "sysctl": { "kernel.panic": "20" } });
    harness.package("sysctl-2", newer).await?;
    let pause = |paused: bool| json!({ "spec": { "paused": paused } });
    for name in ["a", "b"] {
        // Both hosts are compared with the newer version first, so that the step is the next request to each.
        harness.patch(name, pause(true)).await?;
        harness.refer(name, "sysctl", "sysctl-2").await?;
        harness.component(name, "sysctl", ComponentState::Pending).await?;
    }
    harness.run_for(seconds(5)).await?;
    hosts[0].set_step(seconds(300));
    let asked = |seen: &Machine| {
        let progress = seen.status.as_ref().and_then(|status| status.progress.as_ref());
        if progress.is_some_and(|progress| progress.id.is_some()) { Ok(()) } else { Err(shown(seen)) }
    };
    for name in ["a", "b"] {
        harness.patch(name, pause(false)).await?;
        harness.until(name, "has a step that runs or waits for its turn", asked).await?;
    }
    ensure(hosts[1].journal().len() == steps, "the step of b does not wait for that of a")?;
    harness.patch("b", pause(true)).await?;
    harness.phase("a", Phase::Ready).await?;
    harness.run_for(seconds(600)).await?;
    ensure(hosts[1].journal().len() == steps, "a step was started on the host of a paused machine")?;
    harness.patch("b", pause(false)).await?;
    let seen = harness.phase("b", Phase::Ready).await?;
    ensure(of(&seen, "sysctl").and_then(|found| found.observed).as_deref() == Some("2"), shown(&seen))
}

pub async fn a_paused_machine_is_not_released_when_it_is_deleted(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    let steps: Vec<_> = hosts.iter().map(|host| (host.tree(), host.journal().len())).collect();
    // Neither `onDelete: Orphan` nor a forced release overrides the pause.
    harness.patch("a", json!({ "spec": { "paused": true } })).await?;
    harness
        .patch(
            "b",
            json!({
                "spec": { "paused": true, "onDelete": "Orphan" },
                "metadata": { "annotations": { names::FORCE_RELEASE: "true" } },
            }),
        )
        .await?;
    for name in ["a", "b"] {
        delete(harness, name).await?;
        harness.phase(name, Phase::Deleting).await?;
    }
    let mark = harness.recorder().mark();
    harness.run_for(seconds(1800)).await?;
    for write in harness.recorder().writes_since(mark) {
        let status = write.call.resource.starts_with("machines.") && write.call.subresource == "status";
        ensure(status || write.call.resource == "events", format!("it wrote {}", write.call))?;
    }
    for (name, (host, before)) in ["a", "b"].iter().zip(hosts.iter().zip(steps)) {
        ensure((host.tree(), host.journal().len()) == before, format!("host {name} was touched"))?;
        ensure(!harness.closed(name).await?, format!("the Node of {name} was closed"))?;
        let machine = harness.api::<Machine>().get(name).await?;
        let progress = machine.status.and_then(|status| status.progress).map(|one| one.message).unwrap_or_default();
        ensure(progress.contains("spec.paused"), format!("{name} does not say why it stays: {progress:?}"))?;
        harness.patch(name, json!({ "spec": { "paused": false } })).await?;
        harness.gone(name).await?;
    }
    Ok(())
}

pub async fn a_component_that_is_no_longer_listed_is_removed(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let packages = json!([
        { "component": "containerd", "ref": "containerd-2.3.0" }, { "component": "sysctl", "ref": "sysctl-1" },
    ]);
    harness.patch("a", json!({ "spec": { "packages": packages } })).await?;
    let holds = |seen: &Machine| if of(seen, "kubelet").is_none() { Ok(()) } else { Err(shown(seen)) };
    harness.until("a", "has no kubelet", holds).await?;
    ensure(!hosts[0].machine().unit("kubelet.service").exists, "its unit is gone")?;
    ensure(hosts[0].machine().stat("/etc/kubernetes").is_none(), "its files are gone")?;
    ensure(hosts[0].machine().unit("containerd.service").active == "active", "the rest works on")
}

pub async fn hosts_that_are_gone_cost_the_others_nothing(harness: &Harness, fleet: &Fleet) -> Result<()> {
    for n in 0..40 {
        let host = harness.machine(fleet, &format!("gone-{n}"), json!({})).await?;
        host.set_network(if n % 2 == 0 { Network::Silent } else { Network::Hangs });
    }
    for n in 0..10 {
        harness.machine(fleet, &format!("fine-{n}"), json!({})).await?;
    }
    let start = harness.clock().monotonic();
    harness.start().await?;
    for n in 0..10 {
        harness.phase(&format!("fine-{n}"), Phase::Ready).await?;
    }
    let passed = harness.clock().monotonic() - start;
    ensure(passed < seconds(120), format!("they waited for {passed:?}"))?;
    harness.says("gone-0", names::REACHABLE, Status::False, "NoResponse").await?;
    for n in 0..40 {
        fleet.host(&format!("gone-{n}")).set_network(Network::Healthy);
    }
    for n in 0..40 {
        harness.phase(&format!("gone-{n}"), Phase::Ready).await?;
    }
    Ok(())
}

/// The attack: a user with write access to package versions puts any Secret of the namespace onto a host of their own.
/// Only Secrets shared with that Machine get there.
pub async fn a_host_gets_nothing_of_a_secret_that_is_not_shared_with_its_machine(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    let secrets: Api<Secret> = harness.api();
    let secret = json!({ "metadata": { "name": "token" }, "stringData": { "token": "of somebody else" } });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let file = json!({ "path": "/etc/token", "mode": "0600", "secret": { "name": "token", "key": "token" } });
    let spec = json!({ "component": "agent", "version": "1", "disruption": "None", "config": {}, "files": [file] });
    harness.package("agent-1", spec).await?;
    for machine in ["a", "b"] {
        let packages = harness.get(machine).await?.spec.packages;
        let agent = json!({ "component": "agent", "ref": "agent-1" });
        let packages: Vec<_> = packages.iter().map(|one| json!(one)).chain([agent]).collect();
        harness.patch(machine, json!({ "spec": { "packages": packages } })).await?;
    }
    let reason = names::reasons::SECRET_NOT_SHARED;
    for machine in ["a", "b"] {
        let says = harness.says(machine, names::UP_TO_DATE, Status::False, reason).await?.message;
        let named = says.contains("Secret token") && says.contains(names::ALLOWED_MACHINES);
        ensure(named && !says.contains("somebody"), says)?;
    }
    let share = async |with: &str| {
        let patch = json!({ "metadata": { "annotations": { names::ALLOWED_MACHINES: with } } });
        secrets.patch("token", &PatchParams::default(), &Patch::Merge(patch)).await
    };
    share("b").await?;
    harness.component("b", "agent", ComponentState::Ready).await?;
    harness.says("a", names::UP_TO_DATE, Status::False, reason).await?;
    harness.says("a", names::PACKAGES_READY, Status::True, "AllPackagesReady").await?;
    let has = |host: &SimHost| host.tree().into_iter().find(|(path, _)| path.ends_with("/etc/token"));
    ensure(has(&hosts[0]).is_none(), "a has what is shared with b alone")?;
    ensure(has(&hosts[1]).is_some(), "b has what is shared with it")
}

/// The attack: a user with write access to Machines names any Secret of the namespace as the key of a host of their
/// own. Only an SSH key is read from it.
pub async fn a_secret_without_an_ssh_key_opens_no_host_and_is_not_shown(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let secrets: Api<Secret> = harness.api();
    let secret = json!({ "metadata": { "name": "token" }, "stringData": { "token": "of somebody else" } });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let before = fleet.host("a").tree();
    let host = harness.machine(fleet, "a", json!({ "spec": { "ssh": { "keyRef": { "name": "token" } } } })).await?;
    harness.start().await?;
    let says = harness.says("a", names::REACHABLE, Status::False, "SSHKeyNotFound").await?.message;
    let named = ["spec.ssh.keyRef", "Secret token", "ssh-privatekey"].iter().all(|part| says.contains(part));
    ensure(named, says)?;
    harness.run_for(seconds(600)).await?;
    ensure(host.tree() == before, "the host was touched")?;
    let events = harness.api::<Event>().list(&ListParams::default()).await?;
    let public = format!("{} {events:?}", shown(&harness.get("a").await?));
    ensure(!public.contains("somebody"), public)?;
    let key = json!({ "data": { "ssh-privatekey": "c2ltdWxhdGVk" } });
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(key)).await?;
    harness.phase("a", Phase::Ready).await.map(drop)
}
