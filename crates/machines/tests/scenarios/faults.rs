//! Faults on the route to a host and on the host.

use anyhow::{Context, Result};
use fleetwright_api::{ComponentState, Machine, Phase, Status, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{Faults, Fleet, HelperBehavior, Network, demo};
use fleetwright_wire::Outcome;
use serde_json::json;

use crate::support::{MachineSteps, ensure, in_service, of, seconds, shown};

pub async fn a_connection_cut_in_the_middle_of_a_step_does_not_run_it_twice(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let steps = hosts[0].journal().len();
    hosts[0].set_step(seconds(30));
    hosts[0].cut_next_step();
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))?;
    let begun = hosts[0].journal().split_off(steps);
    ensure(begun.len() == 1 && begun[0].outcome == Outcome::Done, format!("{begun:?}"))
}

pub async fn a_host_that_loses_power_in_the_middle_of_a_step_is_finished_when_it_is_back(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let steps = hosts[0].journal().len();
    hosts[0].power_off_at(14);
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let off = || async { if hosts[0].is_on() { Err("it is on".to_owned()) } else { Ok(()) } };
    harness.settle("the power is off", off).await?;
    harness.says("a", names::REACHABLE, Status::False, "NoResponse").await?;
    hosts[0].power_on();
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))?;
    let begun: Vec<Outcome> = hosts[0].journal().split_off(steps).iter().map(|record| record.outcome).collect();
    ensure(begun == [Outcome::Interrupted, Outcome::Done], format!("{begun:?}"))
}

async fn cannot_write(harness: &Harness, fleet: &Fleet, faults: Faults) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let steps = hosts[0].journal().len();
    hosts[0].set_faults(faults);
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let holds = |seen: &Machine| {
        let told = shown(seen);
        if told.contains("journal") || told.contains("space") || told.contains("read-only") {
            Ok(())
        } else {
            Err(told)
        }
    };
    harness.until("a", "says what is wrong", holds).await?;
    ensure(hosts[0].journal().len() == steps, "nothing was begun without a journal")?;
    hosts[0].set_faults(Faults::default());
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))
}

pub async fn a_full_disk_is_reported_and_work_goes_on_when_there_is_room(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    cannot_write(harness, fleet, Faults { full: true, ..Faults::default() }).await
}

pub async fn a_disk_that_cannot_be_written_is_reported(harness: &Harness, fleet: &Fleet) -> Result<()> {
    cannot_write(harness, fleet, Faults { read_only: true, ..Faults::default() }).await
}

pub async fn a_wrong_host_key_stops_everything(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let keys = json!({ "policy": "Pinned", "keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAnotherHost"] });
    let host = harness.machine(fleet, "a", json!({ "spec": { "ssh": { "hostKeys": keys } } })).await?;
    harness.start().await?;
    let said = harness.says("a", names::HOST_KEY_TRUSTED, Status::False, "HostKeyChanged").await?;
    ensure(said.message.contains(&host.key()), format!("it names the key that was seen: {}", said.message))?;
    harness.run_for(seconds(900)).await?;
    ensure(host.journal().is_empty(), "it was touched")?;
    let keys = json!({ "policy": "Pinned", "keys": [host.key()] });
    harness.patch("a", json!({ "spec": { "ssh": { "hostKeys": keys } } })).await?;
    harness.phase("a", Phase::Ready).await.map(drop)
}

pub async fn a_changed_host_key_stops_everything_until_a_person_settles_it(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let steps = hosts[0].journal().len();
    hosts[0].change_key();
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    harness.says("a", names::HOST_KEY_TRUSTED, Status::False, "HostKeyChanged").await?;
    harness.event("HostKeyChanged", &hosts[0].key()).await?;
    harness.run_for(seconds(900)).await?;
    ensure(hosts[0].journal().len() == steps, "it was touched")?;
    let clear = json!({ "status": { "hostKeys": null } });
    let params = kube::api::PatchParams::default();
    harness.api::<Machine>().patch_status("a", &params, &kube::api::Patch::Merge(clear)).await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(seen.status.context("no status")?.host_keys == [hosts[0].key()], "the new key is pinned")
}

pub async fn a_helper_that_lies_is_found_out(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    hosts[0].set_helper_behavior(HelperBehavior::FalseSuccess);
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    harness.run_for(seconds(600)).await?;
    let seen = harness.get("a").await?;
    let found = of(&seen, "kubelet").context("it is not listed")?;
    ensure(found.state != ComponentState::Ready, "it was believed")?;
    ensure(found.observed.as_deref() == Some("1.36.4"), shown(&seen))?;
    ensure(!found.message.is_empty(), format!("nothing is told: {}", shown(&seen)))?;
    hosts[0].set_helper_behavior(HelperBehavior::Normal);
    harness.patch("a", json!({ "metadata": { "annotations": { names::RETRY: "honest now" } } })).await?;
    let found = harness.component("a", "kubelet", ComponentState::Ready).await?;
    ensure(found.observed.as_deref() == Some("1.37.1"), format!("{found:?}"))
}

async fn not_understood(harness: &Harness, fleet: &Fleet, helper_behavior: HelperBehavior) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    let steps = hosts[0].journal().len();
    hosts[0].set_helper_behavior(helper_behavior);
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    harness.refer("b", "kubelet", demo::NEWER_KUBELET).await?;
    harness.phase("b", Phase::Ready).await?;
    harness.run_for(seconds(300)).await?;
    if helper_behavior == HelperBehavior::InvalidOutput {
        let said = harness.says("a", names::REACHABLE, Status::False, "NoResponse").await?;
        ensure(said.message.contains("invalid"), &said.message)?;
    }
    let seen = harness.get("a").await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() != Some("1.37.1"), shown(&seen))?;
    ensure(serde_json::to_vec(&seen)?.len() < 64 << 10, "what it said was written down")?;
    ensure(hosts[0].journal().len() == steps, "it was touched")?;
    hosts[0].set_helper_behavior(HelperBehavior::Normal);
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))
}

pub async fn a_helper_that_speaks_nonsense_is_not_listened_to(harness: &Harness, fleet: &Fleet) -> Result<()> {
    not_understood(harness, fleet, HelperBehavior::InvalidOutput).await
}

pub async fn gigabytes_of_output_are_cut_off(harness: &Harness, fleet: &Fleet) -> Result<()> {
    not_understood(harness, fleet, HelperBehavior::OversizedOutput).await
}

pub async fn a_hanging_command_ends_with_its_time(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let host =
        harness.machine(fleet, "a", json!({ "spec": { "packages": [{ "component": "hook", "ref": "hook-1" }] } }));
    let host = host.await?;
    let script =
        json!({ "check": "test -e /etc/hook", "apply": "wait-for-ever\ntouch /etc/hook", "remove": "rm -f /etc/hook" });
    harness
        .package(
            "hook-1",
            json!({
                "component": "hook", "version": "1", "script": script, "timeouts": { "apply": "1m" },
            }),
        )
        .await?;
    host.set_faults(Faults { hung: vec!["wait-for-ever".to_owned()], ..Faults::default() });
    harness.start().await?;
    let found = harness.component("a", "hook", ComponentState::Failed).await?;
    ensure(!found.message.is_empty(), format!("{found:?}"))?;
    host.set_faults(Faults::default());
    harness.patch("a", json!({ "metadata": { "annotations": { names::RETRY: "1" } } })).await?;
    harness.component("a", "hook", ComponentState::Ready).await.map(drop)
}

pub async fn a_host_that_hangs_is_left_for_the_others(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b"]).await?;
    let steps = hosts[0].journal().len();
    // The helper's process hangs in the middle of a step, for ever.
    hosts[0].set_faults(Faults { hang_at: Some(14), ..Faults::default() });
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    harness.refer("b", "kubelet", demo::NEWER_KUBELET).await?;
    harness.phase("b", Phase::Ready).await?;
    harness.run_for(seconds(600)).await?;
    let begun = hosts[0].journal().split_off(steps);
    ensure(begun.len() == 1 && begun[0].outcome == Outcome::Running, format!("nothing is begun beside it: {begun:?}"))?;
    // Somebody kills it.
    hosts[0].set_faults(Faults::default());
    hosts[0].modify(|machine| machine.kill_hung());
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))
}

pub async fn a_clock_that_jumps_changes_nothing(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    for (offset, version) in [(-86_400 * 365, demo::NEWER_KUBELET), (86_400 * 365, demo::KUBELET)] {
        hosts[0].set_clock_off(offset);
        hosts[0].set_network(Network::Slow(std::time::Duration::from_millis(200)));
        harness.refer("a", "kubelet", version).await?;
        let seen = harness.phase("a", Phase::Ready).await?;
        let observed = of(&seen, "kubelet").and_then(|found| found.observed);
        ensure(observed.is_some_and(|observed| version.ends_with(&observed)), shown(&seen))?;
    }
    ensure(hosts[0].journal().len() == 5, "a step was doubled")
}
