//! A machine with a kernel of its own gets another one.

use anyhow::{Result, ensure};
use fleetwright_api::names;
use fleetwright_lab::hosts::{Described, Emulated, Kernels, apply};

use crate::NAMESPACE;
use crate::fleet::{Fleet, is_true, ready_in};

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_is_installed_booted_and_seen_to_run_on_hosts() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let machine = Emulated::start(&fleet.site.network, "emulated").await?;
    let told = story(&mut fleet, &machine).await;
    if told.is_err() {
        fleet.keep_logs();
    }
    told
}

async fn story(fleet: &mut Fleet, machine: &Emulated) -> Result<()> {
    let kernels = Kernels::find().await?;
    let wanted = Kernels::release(&kernels.second);
    let before = machine.boot_id().await?;
    ensure!(machine.kernel().await? == Kernels::release(&kernels.first), "it begins with another kernel");
    let package = fleet.site.kernel_package(&kernels, &kernels.second, NAMESPACE)?;
    let name = package["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    apply(&fleet.client, &[package]).await?;
    fleet.add(&Described::emulated(machine, 0), &[("kernel".to_owned(), name)]).await?;
    fleet.chapter("the kernel is being installed");
    fleet
        .until("emulated", &format!("to run {wanted}"), |machine| {
            ready_in(machine, "kernel", wanted) && is_true(machine, names::PACKAGES_READY)
        })
        .await?;
    ensure!(machine.kernel().await? == wanted);
    ensure!(machine.boot_id().await? != before, "it was not booted");
    fleet.chapter("it runs");
    Ok(())
}
