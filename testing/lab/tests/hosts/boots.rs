//! Hosts on this machine behave like hardware, and leave nothing behind.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_lab::hosts::{Host, Network, Template};

use crate::common::{killed, lab, said};

#[tokio::test(flavor = "multi_thread")]
async fn a_host_boots_answers_and_leaves_nothing_on_hosts() -> Result<()> {
    let network = Network::start().await?;
    let template = Template::debian().await?;
    let (first, second) =
        tokio::try_join!(Host::start(&network, &template, "first"), Host::start(&network, &template, "second"))?;
    assert_eq!(first.run("hostname").await?, "first\n");
    assert_eq!(first.ssh("hostname").await?, "first\n");
    assert_ne!(first.host_key(), second.host_key());
    assert_ne!(first.run("cat /etc/machine-id").await?, second.run("cat /etc/machine-id").await?);
    // Hosts reach each other, and this machine.
    let greeting = format!("timeout 5 bash -c 'read -r line </dev/tcp/{}/22; echo $line'", second.address());
    assert!(first.run(&greeting).await?.starts_with("SSH-"));
    // A kubelet can create its cgroups, and no other host sees them.
    first.run("mkdir /sys/fs/cgroup/memory/kubepods || mkdir /sys/fs/cgroup/kubepods").await?;
    assert_eq!(
        second.run("ls -d /sys/fs/cgroup/memory/kubepods /sys/fs/cgroup/kubepods 2>/dev/null | wc -l").await?,
        "0\n"
    );
    assert_eq!(second.run("systemctl is-system-running --wait || true").await?, "running\n");

    let (bridge, folder) = (network.bridge().to_owned(), network.folder().to_owned());
    let links = [first.link(), second.link()];
    drop((first, second, network));
    assert!(!folder.exists(), "{} is left", folder.display());
    let left = said("ip", &["link"])?;
    assert!(!left.contains(&bridge) && !links.iter().any(|link| left.contains(link)), "{left}");
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    assert!(!mounts.contains(&*folder.to_string_lossy()), "{mounts}");
    for link in links {
        assert_eq!(said("find", &["/sys/fs/cgroup", "-name", &format!("fleetwright-*-{link}-*")])?, "");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_rebooted_switched_off_cut_off_and_reinstalled_on_hosts() -> Result<()> {
    let network = Network::start().await?;
    let host = Host::start(&network, &Template::debian().await?, "host").await?;
    let bare = host.tree().await?;
    host.run("echo mine >/etc/mine && chmod 600 /etc/mine && mkdir /var/lib/mine").await?;
    let changes = bare.changes(&host.tree().await?);
    let mine: Vec<_> = changes.iter().filter(|change| change.contains("/mine")).cloned().collect();
    assert_eq!(mine, ["/etc/mine is new", "/var/lib/mine is new"], "{changes:#?}");

    let boot = host.boot_id().await?;
    host.reboot().await?;
    assert_ne!(host.boot_id().await?, boot);
    assert_eq!(host.ssh("cat /etc/mine").await?, "mine\n");

    host.poweroff().await?;
    assert!(!host.is_on() && host.run("true").await.is_err());
    host.power_on().await?;
    host.cut_power().await?;
    assert!(!host.is_on());
    host.power_on().await?;
    assert_eq!(host.ssh("cat /etc/mine").await?, "mine\n");

    host.disconnect().await?;
    assert!(host.ssh("true").await.is_err(), "it answers though it is cut off");
    assert_eq!(host.run("cat /etc/mine").await?, "mine\n", "it runs on");
    host.reconnect().await?;
    host.ssh("true").await?;

    host.fill_disk(100_000).await?;
    let full = host.run("head -c 1000000 /dev/zero >/var/lib/mine/zero").await.unwrap_err().to_string();
    assert!(full.contains("No space left on device"), "{full}");
    let full = host.run("head -c 1000000 /dev/zero >/etc/zero").await.unwrap_err().to_string();
    assert!(full.contains("No space left on device"), "{full}");
    host.empty_disk().await?;
    host.run("head -c 1000000 /dev/zero >/var/lib/mine/zero").await?;

    host.read_only().await?;
    let refused = host.run("touch /var/lib/mine/other").await.unwrap_err().to_string();
    assert!(refused.contains("Read-only file system"), "{refused}");
    host.writable().await?;
    host.run("touch /var/lib/mine/other /etc/other").await?;

    let key = host.host_key();
    host.wipe().await?;
    assert_ne!(host.host_key(), key);
    assert_eq!(host.ssh("ls /etc/mine /var/lib/mine 2>/dev/null | wc -l").await?, "0\n");
    host.stop().await
}

#[test]
fn a_run_that_is_killed_leaves_nothing_on_hosts() -> Result<()> {
    let (run, line) = lab(&["host", "killed"])?;
    let number = run.id();
    let words: Vec<_> = line.split_whitespace().collect();
    let [link, "ssh", "-i", key, _] = words[..] else { panic!("it says {line:?}") };
    let folder = Path::new(key).parent().context("its folder")?;
    let left = || -> Result<String> {
        let mut left = said("find", &["/sys/fs/cgroup", "-name", &format!("fleetwright-*-{link}-*")])?;
        left += &said("sh", &["-c", &format!("ip -o link | grep -F fw{number} ; ls -d {}", folder.display())])?;
        left += &said("pgrep", &["-f", &folder.to_string_lossy()])?;
        Ok(left)
    };
    killed(run, 4, Duration::from_secs(30), left)
}
