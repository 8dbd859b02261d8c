//! A kernel on a real host: an emulated machine that boots from its own disk.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use fleetwright_lab::hosts::{EmulatedMachine, Kernels, Network, PackageServer};
use fleetwright_wire::*;

use crate::lab::{Reached, package};

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_comes_back_with_the_declared_kernel_and_without_it_with_its_own_on_hosts() -> Result<()> {
    let begun = Instant::now();
    let chapter = |what: &str| eprintln!("[{:>4} s] {what}", begun.elapsed().as_secs());
    let network = Network::start().await?;
    let kernels = Kernels::find().await?;
    let machine = EmulatedMachine::start(&network, "kernels").await?;
    let server = PackageServer::start(network.address())?;
    let host = Reached::at(&network, machine.address())?;
    let (deb, published) = kernels.repository.publish(&server, &kernels.second)?;
    let (first, second) = (Kernels::release(&kernels.first), Kernels::release(&kernels.second));
    assert_eq!(machine.kernel().await?.trim(), first);
    let images =
        "ls /boot /lib/modules; readlink /vmlinuz /initrd.img; ls /etc/modules-load.d /etc/modprobe.d; dpkg-query -W";
    let before = host.run(images)?;

    let wanted = package(
        "kernel",
        second,
        Method::Kernel(Kernel {
            deb: Some(Deb {
                packages: BTreeMap::from([(kernels.second.clone(), deb.version.clone())]),
                sources: vec![Source { urls: vec![published.url], inline: None, sha256: published.sha256 }],
                hold: true,
            }),
            release: Some(second.to_owned()),
            modules: BTreeMap::from([("dummy".to_owned(), "numdummies=3".to_owned())]),
            parameters: vec!["panic=10".to_owned(), "lab.declared=1".to_owned()],
            boot: Boot::Links,
            ..Kernel::default()
        }),
    );
    chapter("it runs with its own kernel, and gets another");
    host.done("install", Step::Install(wanted.clone()))?;
    let seen = host.see(&wanted)?;
    assert!(seen.needs_reboot && seen.deviations.is_empty(), "{seen:?}");
    assert_eq!(seen.version.as_deref(), Some(first));

    chapter("it is booted");
    machine.reboot().await?;
    chapter("it is back");
    assert_eq!(machine.kernel().await?.trim(), second);
    let seen = host.see(&wanted)?;
    assert!(!seen.needs_reboot && seen.deviations.is_empty(), "{seen:?}");
    assert_eq!(seen.version.as_deref(), Some(second));
    assert!(host.run("cat /proc/cmdline")?.contains("panic=10 lab.declared=1"));
    assert_eq!(host.run("ls -d /sys/class/net/dummy* | wc -l")?.trim(), "3");

    // Somebody changes the links by hand: the next boot would start another kernel.
    host.run(&format!("ln -sfn boot/vmlinuz-{first} /vmlinuz && rmmod dummy"))?;
    let told = host.told(&wanted)?;
    assert_eq!(told.len(), 2, "{told:?}");
    host.done("repair", Step::Repair(wanted.clone()))?;
    assert_eq!(host.told(&wanted)?, [""; 0]);

    chapter("it was repaired; the kernel is taken away");
    // The running kernel is removed, and the machine boots its earlier one.
    host.done("remove", Step::Remove { component: "kernel".to_owned() })?;
    chapter("it is booted once more");
    machine.reboot().await?;
    chapter("it is back");
    assert_eq!(machine.kernel().await?.trim(), first);
    assert!(!host.run("cat /proc/cmdline")?.contains("lab.declared"));
    assert_eq!(host.run(images)?, before);
    host.clean()
}
