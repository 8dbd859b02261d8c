//! A machine with firmware and a kernel of its own: it is identified by its serial number, and gets another kernel.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Machine, Status, condition, names};
use fleetwright_lab::hosts::{EmulatedMachine, HostDescription, Kernels, apply};
use serde_json::json;

use crate::NAMESPACE;
use crate::fleet::{Fleet, is_true, ready_in};

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_is_installed_booted_and_seen_to_run_on_hosts() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let machine = EmulatedMachine::start(&fleet.site.network, "emulated").await?;
    let outcome = run_phases(&mut fleet, &machine).await;
    if outcome.is_err() {
        fleet.keep_logs();
    }
    outcome
}

async fn run_phases(fleet: &mut Fleet, machine: &EmulatedMachine) -> Result<()> {
    let kernels = Kernels::find().await?;
    let wanted = Kernels::release(&kernels.second);
    let before = machine.boot_id().await?;
    ensure!(machine.kernel().await? == Kernels::release(&kernels.first), "it begins with another kernel");
    let package = fleet.site.kernel_package(&kernels, &kernels.second, NAMESPACE)?;
    let name = package["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    apply(&fleet.client, &[package]).await?;
    let mut declared = HostDescription::emulated(machine, 0).machine(NAMESPACE, &[("kernel".to_owned(), name)]);
    declared["spec"]["hardware"]["serial"] = json!("SN-another");
    apply(&fleet.client, &[declared.clone()]).await?;
    is_the_wrong_host(fleet, machine).await?;
    // Case does not matter.
    declared["spec"]["hardware"]["serial"] = json!(machine.serial().to_lowercase());
    apply(&fleet.client, &[declared]).await?;
    fleet.chapter("the kernel is being installed");
    fleet
        .until("emulated", &format!("to run {wanted}"), |machine| {
            ready_in(machine, "kernel", wanted) && is_true(machine, names::PACKAGES_READY)
        })
        .await?;
    ensure!(machine.kernel().await? == wanted);
    ensure!(machine.boot_id().await? != before, "it was not booted");
    let owned = fleet.until("emulated", "to have its host", |machine| is_true(machine, names::HOST_OWNED)).await?;
    let reason = owned.status.and_then(|status| condition(&status.conditions, names::HOST_OWNED).cloned());
    ensure!(reason.as_ref().is_some_and(|owned| owned.reason == "Owned"), "its serial was not compared: {reason:?}");
    fleet.chapter("it runs");
    Ok(())
}

/// The declared serial number differs from that of the firmware: nothing is done to the host.
async fn is_the_wrong_host(fleet: &mut Fleet, machine: &EmulatedMachine) -> Result<()> {
    let all = "ls -A /boot /lib/modules; readlink /vmlinuz; dpkg-query -W; ls /var/lib/fleetwright/owner.json 2>/dev/null || true";
    let (before, boot) = (machine.ssh(all).await?, machine.boot_id().await?);
    let said = |machine: &Machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition(conditions, names::HOST_OWNED).cloned()
    };
    let wrong = |machine: &Machine| {
        said(machine).is_some_and(|owned| owned.status == Status::False && owned.reason == "SerialMismatch")
    };
    let found = fleet.until("emulated", "to say that it is the wrong host", wrong).await?;
    let message = said(&found).context("it said so")?.message;
    ensure!(message.contains(&machine.serial()) && message.contains("SN-another"), "{message}");
    // The operator observes it every ten seconds.
    tokio::time::sleep(Duration::from_secs(25)).await;
    ensure!(wrong(&fleet.machines().get("emulated").await?), "it no longer says so");
    ensure!(machine.ssh(all).await? == before, "it was touched");
    ensure!(machine.boot_id().await? == boot, "it was booted");
    fleet.chapter("it is the wrong host, and nothing was done to it");
    Ok(())
}
