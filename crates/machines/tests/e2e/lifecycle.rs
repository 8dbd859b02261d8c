//! The life of a small fleet, from bare Debian to machines that left: each chapter starts where the one before ended.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleetwright_api::{ComponentState, Machine, Operation, Phase, Status, condition, names};
use fleetwright_lab::hosts::{Host, HostDescription, apply, archives, shipped};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::try_join;

use crate::fleet::{Fleet, component, is_true, ready_in};
use crate::packages::HostProfile;
use crate::{NAMESPACE, built};

const HOSTS: [&str; 3] = ["host-1", "host-2", "host-3"];
const OLD: &str = "1.36.4";
const NEW: &str = "1.37.1";
/// Longer than the interval between two observations of a host.
const LOOKED_AT_AGAIN: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn bare_hosts_become_nodes_are_kept_in_shape_and_leave_clean_on_hosts() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let (first, second, third) =
        try_join!(fleet.site.host(HOSTS[0]), fleet.site.host(HOSTS[1]), fleet.site.host(HOSTS[2]))?;
    let hosts = [first, second, third];
    let outcome = run_phases(&mut fleet, &hosts).await;
    if outcome.is_err() {
        fleet.keep_logs();
    }
    outcome
}

async fn run_phases(fleet: &mut Fleet, hosts: &[Host; 3]) -> Result<()> {
    fleet.site.connect(&hosts.iter().collect::<Vec<_>>()).await?;
    // apt's cache of a repository belongs to the host itself.
    for host in hosts {
        host.run("apt-get update -qq").await?;
    }
    let bare = HostProfile::of(&hosts[2]).await?;

    fleet.chapter("three bare hosts become nodes");
    become_nodes(fleet, hosts).await?;
    fleet.chapter("pods answer over the network, from host to pod and from pod to pod");
    pods_answer(fleet, hosts).await?;
    fleet.chapter("the kubelet is upgraded, and brought back; pods go on");
    upgrade_and_back(fleet).await?;
    fleet.chapter("what is broken by hand is repaired");
    drift_is_repaired(fleet, &hosts[1]).await?;
    fleet.chapter("a container runtime that is down is repaired without a drain");
    dead_runtime_is_repaired(fleet, &hosts[1]).await?;
    fleet.chapter("other Machines change nothing on a host, and a person takes it back");
    others_change_nothing(fleet, &hosts[0]).await?;
    fleet.chapter("a bad version is rolled back by itself");
    bad_version_goes_back(fleet, &hosts[0]).await?;
    fleet.chapter("a machine leaves, and its host is clean");
    leaves_clean(fleet, &hosts[2], &bare).await?;
    fleet.chapter("a version and the one before it fail, and the Node stays closed");
    restored_version_fails_too(fleet, &hosts[0]).await?;
    fleet.chapter("done");
    Ok(())
}

async fn become_nodes(fleet: &mut Fleet, hosts: &[Host; 3]) -> Result<()> {
    let packages = fleet.site.worker(OLD)?;
    for (number, host) in (0..).zip(hosts) {
        fleet.add(&HostDescription::host(host, number), &packages).await?;
    }
    for name in HOSTS {
        let machine = fleet
            .until(name, "to be ready and schedulable", |machine| {
                is_true(machine, names::PACKAGES_READY) && is_true(machine, names::SCHEDULABLE)
            })
            .await?;
        fleet.chapter(&format!("{name} is schedulable"));
        for (wanted, _) in &packages {
            let found = component(&machine, wanted).with_context(|| format!("{name} says nothing of {wanted}"))?;
            ensure!(found.state == ComponentState::Ready, "{name}: {found:?}");
        }
        let node = fleet.nodes().get(name).await?;
        let labels = node.metadata.labels.unwrap_or_default();
        ensure!(labels.get("pool").map(String::as_str) == Some("lab"), "the Node has the labels {labels:?}");
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.is_empty(), "the Node of {name} still has {taints:?}");
    }
    Ok(())
}

async fn pods_answer(fleet: &mut Fleet, hosts: &[Host; 3]) -> Result<()> {
    for (number, name) in HOSTS.iter().enumerate() {
        fleet.serve(&format!("web-{number}"), Some(name)).await?;
    }
    // This pod has no required Node: the scheduler places it.
    fleet.serve("anywhere", None).await?;
    let mut addresses = Vec::new();
    for pod in ["web-0", "web-1", "web-2", "anywhere"] {
        addresses.push((pod, fleet.address(pod).await?));
    }
    for (pod, address) in &addresses {
        let asked = format!("timeout 5 busybox wget -q -O - http://{address}:8080/");
        let answer =
            fleet.eventually(&format!("{pod} to answer"), || async { Ok(hosts[0].run(&asked).await.ok()) }).await?;
        ensure!(answer.trim() == *pod, "{pod} says {answer:?}");
    }
    let container =
        format!("$(ctr -n k8s.io containers ls -q image=={} | head -1)", fleetwright_lab::hosts::images::WEB);
    let asked = format!("busybox timeout 5 wget -q -O - http://{}:8080/", addresses[1].1);
    let answer = hosts[2].run(&format!("ctr -n k8s.io tasks exec --exec-id probe {container} {asked}")).await?;
    ensure!(answer.trim() == "web-1", "from a pod of another host it says {answer:?}");
    Ok(())
}

async fn upgrade_and_back(fleet: &mut Fleet) -> Result<()> {
    let before = containers(fleet).await?;
    for (version, reference) in [(NEW, format!("kubelet-{NEW}")), (OLD, format!("kubelet-{OLD}"))] {
        for name in HOSTS {
            fleet.set(name, "kubelet", &reference).await?;
        }
        for name in HOSTS {
            fleet
                .until(name, &format!("to run kubelet {version}"), |machine| ready_in(machine, "kubelet", version))
                .await?;
            fleet.until(name, "to be open again", |machine| is_true(machine, names::SCHEDULABLE)).await?;
            let nodes = fleet.nodes();
            fleet
                .eventually(&format!("the Node {name} to say {version} and to be open"), || async {
                    let node = nodes.get(name).await?;
                    let told = node.status.and_then(|status| status.node_info).map(|info| info.kubelet_version);
                    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
                    Ok((told == Some(format!("v{version}")) && taints.is_empty()).then_some(()))
                })
                .await?;
        }
        fleet.chapter(&format!("all run kubelet {version}"));
    }
    let after = containers(fleet).await?;
    ensure!(
        before == after,
        "containers were {before:?} and are {after:?}: a new kubelet is no reason to restart them"
    );
    Ok(())
}

/// The containers of all pods, by the ids of their runtime.
async fn containers(fleet: &Fleet) -> Result<Vec<(String, Option<String>)>> {
    let mut all = Vec::new();
    for pod in fleet.pods().list(&Default::default()).await? {
        let name = pod.metadata.name.unwrap_or_default();
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        all.extend(statuses.into_iter().map(|status| (name.clone(), status.container_id)));
    }
    all.sort();
    Ok(all)
}

/// The damage, the host's report of it, its report after the repair, and the name of the drift.
const DAMAGE: [(&str, &str, &str, &str); 4] = [
    (
        "echo '{}' >/etc/node-problem-detector/kernel-monitor.json && chmod 600 /etc/node-problem-detector/kernel-monitor.json",
        "grep -q kmsg /etc/node-problem-detector/kernel-monitor.json && stat -c %a /etc/node-problem-detector/kernel-monitor.json",
        "644\n",
        "kernel-monitor.json",
    ),
    (
        "dpkg --remove --force-depends containernetworking-plugins",
        "dpkg-query -W -f '${db:Status-Status}' containernetworking-plugins && test -x /usr/lib/cni/bridge",
        "installed",
        "containernetworking-plugins",
    ),
    (
        "systemctl disable --now node-problem-detector.service",
        "systemctl is-active node-problem-detector.service && systemctl is-enabled node-problem-detector.service",
        "active\nenabled\n",
        "node-problem-detector.service",
    ),
    (
        "echo 7200 >/proc/sys/net/ipv4/tcp_keepalive_time",
        "cat /proc/sys/net/ipv4/tcp_keepalive_time",
        "600\n",
        "net.ipv4.tcp_keepalive_time",
    ),
];

async fn drift_is_repaired(fleet: &mut Fleet, host: &Host) -> Result<()> {
    for (damage, look, whole, called) in DAMAGE {
        ensure!(host.run(look).await? == whole, "{called} is not whole to begin with");
        host.run(damage).await?;
        fleet
            .eventually(&format!("{called} to be repaired"), || async {
                Ok(host.run(look).await.ok().filter(|said| said == whole))
            })
            .await?;
        let machine = fleet
            .until(&host.name(), &format!("to tell of the repair of {called}"), |machine| {
                let drift = machine.status.as_ref().and_then(|status| status.last_drift.as_ref());
                drift.is_some_and(|drift| drift.repaired && drift.items.iter().any(|item| item.what.contains(called)))
                    && is_true(machine, names::IN_SYNC)
                    && is_true(machine, names::PACKAGES_READY)
            })
            .await?;
        let drift = machine.status.and_then(|status| status.last_drift).context("a drift was told")?;
        let item = drift.items.iter().find(|item| item.what.contains(called)).context("the drift was told")?;
        ensure!(!item.found.is_empty() && item.found != item.wanted, "{item:?}");
        fleet.chapter(&format!("{called} was {} and is {} again", item.found, item.wanted));
    }
    Ok(())
}

/// The pod on the host has no controller: a drain would never end.
async fn dead_runtime_is_repaired(fleet: &mut Fleet, host: &Host) -> Result<()> {
    let windows = Api::<Operation>::namespaced(fleet.client.clone(), NAMESPACE);
    let before = windows.list(&Default::default()).await?.items.len();
    host.run("echo 'broken = [' >/etc/containerd/config.toml; timeout 20 systemctl restart containerd.service || true")
        .await?;
    let whole = "! grep -q broken /etc/containerd/config.toml && systemctl is-active containerd.service && ctr --timeout 5s version >/dev/null";
    fleet.eventually("containerd to be repaired", || async { Ok(host.run(whole).await.ok()) }).await?;
    fleet
        // Components that depend on it, such as the import of images, are repaired after it, so `lastDrift` may already name them.
        .until(&host.name(), "to have all packages in place again", |machine| {
            let ready = |name| component(machine, name).is_some_and(|found| found.state == ComponentState::Ready);
            ready("containerd") && is_true(machine, names::PACKAGES_READY)
        })
        .await?;
    let after = windows.list(&Default::default()).await?.items;
    ensure!(after.len() == before, "the repair of what was down opened a window: {after:#?}");
    let pod = fleet.pods().get("web-1").await?;
    ensure!(pod.metadata.deletion_timestamp.is_none(), "the pod was evicted");
    fleet.address("web-1").await.map(drop)
}

/// Whether the machine reports that its host belongs to another Machine, with that reason.
fn is_not_owned(machine: &Machine, reason: &str) -> bool {
    let said = machine.status.as_ref().and_then(|status| condition(&status.conditions, names::HOST_OWNED));
    said.is_some_and(|said| said.status == Status::False && said.reason == reason)
}

/// A second Machine with the address of the host, then an owner mark of another cluster's Machine, and then a newer fencing token.
async fn others_change_nothing(fleet: &mut Fleet, host: &Host) -> Result<()> {
    // Every step leaves a record.
    let (name, steps) = (host.name(), "ls /var/lib/fleetwright/journal/steps && systemctl is-active kubelet.service");
    let before = host.run(steps).await?;
    let machine = fleet.machines().get(&name).await?;
    let uid = machine.metadata.uid.context("it has a uid")?;
    let epoch = machine.status.and_then(|status| status.host_owner).context("the host has an owner")?.epoch;

    // The twin declares nothing: if it owned the host, all packages would be removed.
    fleet.add(&HostDescription { name: "twin".to_owned(), ..HostDescription::host(host, 3) }, &[]).await?;
    fleet.until("twin", "to say whose its address is", |twin| is_not_owned(twin, "AddressInUse")).await?;
    let machines = fleet.machines();
    machines.delete("twin", &DeleteParams::default()).await?;
    fleet
        .eventually("the twin to be gone", || async { Ok(machines.get_opt("twin").await?.is_none().then_some(())) })
        .await?;

    host.run(&format!("sed -i s/{uid}/another/ /var/lib/fleetwright/owner.json")).await?;
    fleet.until(&name, "to say that its host is another's", |seen| is_not_owned(seen, "HostOwnedByAnother")).await?;
    ensure!(host.run(steps).await? == before, "something was done to the host");
    adopt(fleet, &name, "another").await?;
    owns(fleet, &name, &uid, epoch + 1).await?;
    ensure!(host.run(steps).await? == before, "something was done to the host");

    // The API server was restored from a backup: the host has a higher fencing token than the leader.
    host.run(r#"sed -i 's/"fence":[0-9]*/"fence":4611686018427387904/' /var/lib/fleetwright/owner.json"#).await?;
    fleet.until(&name, "to say that its token is stale", |seen| is_not_owned(seen, "StaleFencingToken")).await?;
    ensure!(host.run(steps).await? == before, "something was done to the host");
    adopt(fleet, &name, &uid).await?;
    owns(fleet, &name, &uid, epoch + 2).await?;
    ensure!(host.run(steps).await? == before, "something was done to the host");
    Ok(())
}

/// Lets the Machine adopt its host from the Machine with that uid, as a person does.
async fn adopt(fleet: &Fleet, name: &str, from: &str) -> Result<()> {
    let arguments = ["machine", "adopt", name, "--from", from, "--namespace", NAMESPACE, "--kubeconfig"];
    let mut command = tokio::process::Command::new(built()?.join("fleetwright"));
    let adopted = command.args(arguments).arg(fleet.site.plane.kubeconfig_path()).output().await?;
    ensure!(adopted.status.success(), "{adopted:?}");
    Ok(())
}

/// Waits until the Machine owns its host in that epoch.
async fn owns(fleet: &mut Fleet, name: &str, uid: &str, epoch: i64) -> Result<()> {
    fleet
        .until(name, &format!("to own its host in epoch {epoch}"), |seen| {
            let owner = seen.status.as_ref().and_then(|status| status.host_owner.as_ref());
            owner.is_some_and(|owner| owner.uid == uid && owner.epoch == epoch)
                && is_true(seen, names::HOST_OWNED)
                && is_true(seen, names::SCHEDULABLE)
        })
        .await
        .map(drop)
}

async fn bad_version_goes_back(fleet: &mut Fleet, host: &Host) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bad = folder.path().join("kubelet");
    std::fs::write(&bad, "#!/bin/sh\necho this kubelet is bad on purpose >&2\nexit 1\n")?;
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let archive = archives::archive("kubelet-bad", vec![("bin/kubelet".to_owned(), bad)]).await?;
    let source = fleet.site.packages.publish("kubelet-1.37.9.tar.zst", &archive)?;
    let text = shipped("kubelet", "1.37.9", Some(&source))?.replace("within: 3m", "within: 20s");
    apply(&fleet.client, &[fleetwright_lab::hosts::package(&text, NAMESPACE)?]).await?;
    fleet.set(&host.name(), "kubelet", "kubelet-1.37.9").await?;
    let rolled_back = |machine: &Machine| {
        component(machine, "kubelet").is_some_and(|kubelet| {
            kubelet.state == ComponentState::RolledBack && kubelet.observed.as_deref() == Some(OLD)
        })
    };
    let machine = fleet.until(&host.name(), "to have gone back", rolled_back).await?;
    let message = component(&machine, "kubelet").map(|kubelet| kubelet.message.clone()).unwrap_or_default();
    ensure!(message.contains("1.37.9") && message.contains(OLD), "it says only {message:?}");
    fleet.chapter(&format!("it says: {}", message.lines().next().unwrap_or_default()));
    let nodes = fleet.nodes();
    let name = host.name();
    fleet
        .eventually("the Node to be ready and open with the version that worked", || async {
            let node = nodes.get(&name).await?;
            let status = node.status.unwrap_or_default();
            let told = status.node_info.map(|info| info.kubelet_version);
            let ready = status.conditions.unwrap_or_default();
            let ready = ready.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let open = node.spec.and_then(|spec| spec.taints).unwrap_or_default().is_empty();
            Ok((ready && open && told == Some(format!("v{OLD}"))).then_some(()))
        })
        .await?;
    // The gates require PackagesReady without any tolerance: the restored version works, and pods may be scheduled.
    let machine = fleet
        .until(&name, "to be schedulable with the version that worked", |machine| {
            let said = machine.status.as_ref().and_then(|status| condition(&status.conditions, names::UP_TO_DATE));
            is_true(machine, names::PACKAGES_READY)
                && is_true(machine, names::SCHEDULABLE)
                && said.is_some_and(|said| said.status == Status::False && said.reason == "RolledBack")
        })
        .await?;
    // The conditions stay: neither was lost, not even for a moment, when the host was observed again.
    let stand = |machine: &Machine| {
        [names::PACKAGES_READY, names::SCHEDULABLE].map(|type_| {
            let said = condition(&machine.status.as_ref()?.conditions, type_)?;
            Some((said.status, said.last_transition_time))
        })
    };
    tokio::time::sleep(LOOKED_AT_AGAIN).await;
    let later = fleet.machines().get(&name).await?;
    ensure!(stand(&later) == stand(&machine), "{:?} is {:?} later", stand(&machine), stand(&later));
    // The restored version is guarded against drift, too: by the host's own copy of its package.
    let whole = host.run("sha256sum /etc/kubernetes/kubelet.yaml").await?;
    host.run("echo '# by hand' >>/etc/kubernetes/kubelet.yaml").await?;
    fleet
        .eventually("the file of the version that worked to be repaired", || async {
            Ok(host.run("sha256sum /etc/kubernetes/kubelet.yaml").await.ok().filter(|said| *said == whole))
        })
        .await?;
    fleet.until(&name, "to be as it was restored", rolled_back).await?;
    // The failed version is not retried until the reference changes.
    fleet.set(&host.name(), "kubelet", &format!("kubelet-{OLD}")).await?;
    fleet.until(&host.name(), "to be as declared", |machine| ready_in(machine, "kubelet", OLD)).await.map(drop)
}

/// The check of the newer version fails, and leaves a file with which that of the earlier one fails as well.
async fn restored_version_fails_too(fleet: &mut Fleet, host: &Host) -> Result<()> {
    let name = host.name();
    for (version, check) in [("1", "test ! -e /run/agent-broken"), ("2", "touch /run/agent-broken; false")] {
        let file = json!({ "path": "/etc/agent.conf", "content": format!("version {version}\n"), "mode": "0644" });
        let health = json!({ "within": "8s", "every": "1s", "checks": [{ "command": check }] });
        let package = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
            "metadata": { "name": format!("agent-{version}"), "namespace": NAMESPACE },
            "spec": {
                "component": "agent", "version": version, "config": {}, "disruption": "Restart", "files": [file], "health": health,
            },
        });
        apply(&fleet.client, &[package]).await?;
    }
    fleet.set(&name, "agent", "agent-1").await?;
    fleet.until(&name, "to have an agent that works", |machine| ready_in(machine, "agent", "1")).await?;
    fleet.set(&name, "agent", "agent-2").await?;
    let failed =
        |machine: &Machine| component(machine, "agent").is_some_and(|agent| agent.state == ComponentState::Failed);
    let machine = fleet.until(&name, "to say that neither version works", failed).await?;
    let agent = component(&machine, "agent").context("it says nothing of its agent")?;
    ensure!(agent.message.matches("not healthy within 8s").count() == 2, "not both failures: {}", agent.message);
    ensure!(agent.rollback.as_ref().is_some_and(|back| back.version == "1"), "{agent:?}");
    let status = machine.status.as_ref().context("it has a status")?;
    let said = condition(&status.conditions, names::PACKAGES_READY);
    let is_failed = said.is_some_and(|said| said.status == Status::False && said.reason == "PackageFailed");
    ensure!(status.phase == Some(Phase::Degraded) && is_failed, "{status:?}");
    let windows = Api::<Operation>::namespaced(fleet.client.clone(), NAMESPACE);
    fleet
        .eventually("its windows to end", || async {
            let all = windows.list(&Default::default()).await?.items;
            let phase = |one: &Operation| one.status.as_ref().map(|status| status.phase).unwrap_or_default();
            let ended = all.iter().filter(|one| one.spec.target.name == name).all(|one| phase(one).ended());
            Ok(ended.then_some(()))
        })
        .await?;
    let taints = fleet.nodes().get(&name).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(taints.iter().any(|taint| taint.key == names::MAINTENANCE_TAINT), "the Node is open: {taints:?}");
    fleet.chapter(&format!("it says: {}", agent.message.lines().next().unwrap_or_default()));
    Ok(())
}

async fn leaves_clean(fleet: &mut Fleet, host: &Host, bare: &HostProfile) -> Result<()> {
    let name = host.name();
    // Pods without a controller keep a machine from leaving; a person deletes them first.
    for pod in fleet.pods().list(&Default::default()).await? {
        if pod.spec.and_then(|spec| spec.node_name).as_ref() == Some(&name) {
            fleet.pods().delete(&pod.metadata.name.unwrap_or_default(), &DeleteParams::default()).await?;
        }
    }
    fleet.machines().delete(&name, &DeleteParams::default()).await?;
    let machines = fleet.machines();
    fleet
        .eventually("the machine to be gone", || async { Ok(machines.get_opt(&name).await?.is_none().then_some(())) })
        .await?;
    ensure!(fleet.nodes().get_opt(&name).await?.is_none(), "its Node is still there");
    bare.assert_same(&HostProfile::of(host).await?);
    ensure!(
        host.run("ps -eo comm").await?.lines().all(|name| !name.contains("kubelet") && !name.contains("containerd"))
    );
    Ok(())
}
