//! Owners of hosts: other Machines, other clusters and old leaders change nothing on a host.

use anyhow::{Context, Result};
use fleetwright_api::{Machine, Phase, Status, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{Fleet, SimHost, demo};
use fleetwright_wire::{Answer, Apply, Claim, FailureKind, HOME, Mark, Owner, Package, Request, Step};
use serde_json::json;

use crate::support::{MachineSteps, acts, delete, ensure, in_service, seconds, shown};

fn mark(host: &SimHost) -> Option<Mark> {
    match host.ask(Request::Observe(Box::default())) {
        Answer::Observed(seen) => seen.owner,
        _ => None,
    }
}

fn another(cluster: &str) -> Owner {
    let [cluster, namespace, name, uid] = [cluster, "fleet", "host-17", "uid-17"].map(str::to_owned);
    Owner { cluster, namespace, name, uid }
}

fn step(id: &str, claim: Claim, step: Step) -> Request {
    Request::Apply(Box::new(Apply { id: id.to_owned(), claim, step, within: 60, unproven: false }))
}

/// Installs a component on the host as the operator of another cluster.
fn install_theirs(host: &SimHost) -> Result<Claim> {
    let theirs =
        Package { component: "agent".into(), version: "1".into(), reference: "agent-1".into(), ..Package::default() };
    let claim = Claim { owner: another("another-cluster"), epoch: 0, fence: u64::MAX / 2 };
    let installed = host.ask(step("theirs-1", claim.clone(), Step::Install(theirs)));
    ensure(matches!(installed, Answer::Ended(_)), format!("{installed:?}"))?;
    Ok(claim)
}

fn refused(host: &SimHost, request: Request, kind: FailureKind) -> Result<()> {
    match host.ask(request) {
        Answer::Failed(failure) if failure.kind == kind => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

pub async fn a_host_of_another_cluster_is_only_looked_at_until_it_is_adopted(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let host = fleet.host("a");
    let Claim { owner, fence, .. } = install_theirs(&host)?;
    let before = host.tree();

    harness.machine(fleet, "a", json!({})).await?;
    harness.start().await?;
    let said = harness.says("a", names::HOST_OWNED, Status::False, "HostOwnedByAnother").await?;
    ensure(said.message.contains("uid-17") && said.message.contains("another-cluster"), &said.message)?;
    harness.phase("a", Phase::Degraded).await?;
    harness.run_for(seconds(1800)).await?;
    ensure(host.tree() == before, "nothing on the host of another is touched")?;
    // An adoption that names an earlier epoch does not apply to this one.
    let adopt = |epoch: i64| json!({ "metadata": { "annotations": { names::ADOPT_HOST: format!("another-cluster/uid-17/{epoch}") } } });
    harness.patch("a", adopt(2)).await?;
    harness.run_for(seconds(60)).await?;
    ensure(host.tree() == before, "another epoch was adopted")?;
    let found =
        harness.get("a").await?.status.and_then(|status| status.host_owner).context("it says whose the host is")?;
    ensure(found.adoption() == "another-cluster/uid-17/1", format!("{found:?}"))?;

    harness.patch("a", adopt(1)).await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    harness.says("a", names::HOST_OWNED, Status::True, "Owned").await?;
    harness.event("HostAdopted", "uid-17").await?;
    let ours = mark(&host).context("it has an owner")?;
    ensure(ours.epoch == 2 && Some(&ours.owner.uid) == seen.metadata.uid.as_ref(), format!("{ours:?}"))?;
    // The other cluster's components that are not declared here are removed, and it cannot restore them.
    let again = Claim { owner, epoch: 1, fence: fence + 1 };
    refused(&host, step("theirs-2", again, Step::Reboot), FailureKind::NotOwner)
}

pub async fn a_second_machine_with_the_same_address_touches_nothing(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let (host, before) = (&hosts[0], acts(&hosts[0]));
    // Creation timestamps have a resolution of one second.
    harness.run_for(seconds(2)).await?;
    // This Machine declares nothing: without an owner mark the host would lose all its packages.
    let same = json!({ "spec": { "addresses": ["a"], "packages": [] } });
    harness.machine(fleet, "b", same.clone()).await?;
    let said = harness.says("b", names::HOST_OWNED, Status::False, "AddressInUse").await?;
    ensure(said.message.contains("Machine a "), &said.message)?;
    harness.run_for(seconds(1800)).await?;
    ensure(acts(host) == before, format!("{:?}", acts(host)))?;
    harness.phase("a", Phase::Ready).await?;
    delete(harness, "b").await?;
    harness.gone("b").await?;
    ensure(acts(host) == before, "its deletion cleaned the host of another")?;
    ensure(mark(host).is_some_and(|mark| mark.owner.name == "a"), "the host is a's")?;
    // After the first Machine has released the host, the second one owns it.
    harness
        .machine(
            fleet,
            "b",
            json!({ "spec": { "addresses": ["a"], "packages": [{ "component": "sysctl", "ref": "sysctl-1" }] } }),
        )
        .await?;
    harness.says("b", names::HOST_OWNED, Status::False, "AddressInUse").await?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    harness.phase("b", Phase::Ready).await?;
    ensure(mark(host).is_some_and(|mark| mark.owner.name == "b" && mark.epoch == 1), "the host is b's")
}

/// The host of a Machine in service as an earlier version left it: with packages, and without an owner mark.
fn without_mark(host: &SimHost) {
    host.modify(|machine| {
        machine.remove(&format!("{HOME}/owner.json"));
        machine.put(&format!("{HOME}/journal/fence"), b"1794963600\n", 0o600);
    });
}

pub async fn a_host_that_an_earlier_version_installed_is_claimed_by_its_machine_and_by_no_other(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let before = acts(&hosts[0]);
    without_mark(&hosts[0]);
    let claimed = |seen: &Machine| {
        let uid = mark(&hosts[0]).map(|mark| mark.owner.uid);
        if uid == seen.metadata.uid { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "claims its host", claimed).await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(acts(&hosts[0]) == before, "a claim is no step")?;
    // The second Machine has a status without components, like a Machine that was recreated or created in another cluster.
    harness.patch("a", json!({ "spec": { "onDelete": "Orphan" } })).await?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    without_mark(&hosts[0]);
    let tree = hosts[0].tree();
    // This Machine declares nothing: without this, its first step would remove all packages.
    harness.machine(fleet, "b", json!({ "spec": { "addresses": ["a"], "packages": [] } })).await?;
    let said = harness.says("b", names::HOST_OWNED, Status::False, "HostNotClaimed").await?;
    ensure(said.message.contains("machine adopt b --from unclaimed"), &said.message)?;
    harness.run_for(seconds(1800)).await?;
    ensure(hosts[0].tree() == tree && mark(&hosts[0]).is_none(), "it was touched")?;
    // A person confirms that no other Machine owns the host.
    let adopt = json!({ "metadata": { "annotations": { names::ADOPT_HOST: "unclaimed/1" } } });
    harness.patch("b", adopt).await?;
    harness.phase("b", Phase::Ready).await?;
    ensure(mark(&hosts[0]).is_some_and(|mark| mark.owner.name == "b"), "the host is b's")
}

/// An older Machine is edited to the address of a younger one in service.
pub async fn a_machine_in_service_keeps_its_host_from_an_older_one_that_gets_its_address(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let first = in_service(harness, fleet, &["a"]).await?;
    // Creation timestamps have a resolution of one second.
    harness.run_for(seconds(2)).await?;
    let host = harness.machine(fleet, "b", json!({})).await?;
    harness.phase("b", Phase::Ready).await?;
    let before = acts(&first[0]);
    let hers = host.tree();
    harness.patch("a", json!({ "spec": { "addresses": ["b"] } })).await?;
    // The host key differs, or the owner mark: either way nothing is changed on b's host.
    harness.phase("a", Phase::Degraded).await?;
    harness.run_for(seconds(1200)).await?;
    harness.says("b", names::HOST_OWNED, Status::True, "Owned").await?;
    ensure(host.tree() == hers, "b's host was touched")?;
    ensure(acts(&first[0]) == before, "a's former host was touched")?;
    harness.refer("b", "kubelet", demo::NEWER_KUBELET).await?;
    let newer = |seen: &Machine| {
        let found = crate::support::of(seen, "kubelet").and_then(|found| found.observed);
        if found.as_deref() == Some("1.37.1") { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("b", "works on", newer).await?;
    harness.patch("a", json!({ "spec": { "addresses": ["a"] } })).await?;
    harness.phase("a", Phase::Ready).await.map(drop)
}

/// The address of a Machine is edited to that of another's host, corrected, and the Machine is deleted: its own host is left clean.
pub async fn a_machine_whose_address_was_corrected_is_judged_by_its_own_host(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let first = in_service(harness, fleet, &["a"]).await?;
    let host = fleet.host("b");
    install_theirs(&host)?;
    let before = host.tree();
    let keys = json!({ "policy": "Pinned", "keys": [first[0].key(), host.key()] });
    harness.patch("a", json!({ "spec": { "addresses": ["b"], "ssh": { "hostKeys": keys } } })).await?;
    harness.says("a", names::HOST_OWNED, Status::False, "HostOwnedByAnother").await?;
    harness.patch("a", json!({ "spec": { "addresses": ["a"] } })).await?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    ensure(mark(&first[0]).is_none(), "its own host was left as it is")?;
    ensure(host.tree() == before, "b's host was touched")
}

pub async fn an_older_leader_is_refused_and_a_restored_api_server_is_let_in_by_hand(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let host = &hosts[0];
    let Mark { owner, epoch, fence } = mark(host).context("it has an owner")?;
    ensure(fence > 0, "the leader has a fencing token")?;
    let claim = |fence| Claim { owner: owner.clone(), epoch, fence };
    // A request of an old leader that was paused in the middle of a pass.
    refused(host, step("late", claim(fence - 1), Step::Reboot), FailureKind::Fenced)?;
    ensure(host.journal().iter().all(|record| record.id != "late"), "it was begun")?;
    // An API server that was restored from a backup counts from a lower resourceVersion than hosts have recorded.
    let heard = host.ask(Request::Refuse { id: "restored".to_owned(), claim: claim(u64::MAX / 2) });
    ensure(matches!(heard, Answer::Recalled(_)), format!("{heard:?}"))?;
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let said = harness.says("a", names::HOST_OWNED, Status::False, "StaleFencingToken").await?;
    ensure(said.message.contains("machine adopt"), &said.message)?;
    let found =
        harness.get("a").await?.status.and_then(|status| status.host_owner).context("it says whose the host is")?;
    harness.patch("a", json!({ "metadata": { "annotations": { names::ADOPT_HOST: found.adoption() } } })).await?;
    let newer = |seen: &Machine| {
        let found = crate::support::of(seen, "kubelet").and_then(|found| found.observed);
        if found.as_deref() == Some("1.37.1") { Ok(()) } else { Err(shown(seen)) }
    };
    harness.until("a", "has the newer kubelet", newer).await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(mark(host).is_some_and(|mark| mark.epoch == 2 && mark.owner == owner), "another epoch began")
}

pub async fn a_host_with_another_serial_number_is_not_touched(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host = fleet.host("a");
    host.modify(|machine| machine.set_serial("SN-2"));
    let before = host.tree();
    harness.machine(fleet, "a", json!({ "spec": { "hardware": { "serial": "SN-1" } } })).await?;
    harness.start().await?;
    let said = harness.says("a", names::HOST_OWNED, Status::False, "SerialMismatch").await?;
    ensure(said.message.contains("SN-1") && said.message.contains("SN-2"), &said.message)?;
    harness.run_for(seconds(1200)).await?;
    ensure(host.tree() == before, "it was touched")?;
    // A Machine that declares the host's serial number continues. Case does not matter.
    harness.patch("a", json!({ "spec": { "hardware": { "serial": "sn-2" } } })).await?;
    harness.phase("a", Phase::Ready).await.map(drop)
}
