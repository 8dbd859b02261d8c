//! An emulated machine boots the kernel on its own disk.

use anyhow::Result;
use fleetwright_lab::hosts::{EmulatedMachine, Kernels, Network};

#[tokio::test(flavor = "multi_thread")]
async fn an_emulated_machine_comes_back_with_the_kernel_that_its_links_name_on_hosts() -> Result<()> {
    let network = Network::start().await?;
    let kernels = Kernels::find().await?;
    let machine = EmulatedMachine::start(&network, "emulated").await?;
    let first = Kernels::release(&kernels.first);
    assert_eq!(machine.kernel().await?, first);
    // The same kernel by another link, and parameters from the disk: only the disk decides what is booted.
    machine
        .ssh("ln -sf boot/vmlinuz-$(uname -r) /vmlinuz && echo lab.tried=1 >/boot/fleetwright-cmdline && sync")
        .await?;
    machine.cut_power().await?;
    machine.power_on().await?;
    assert!(machine.ssh("cat /proc/cmdline").await?.contains("lab.tried=1"));
    assert_eq!(machine.kernel().await?, first);
    Ok(())
}
