//! The file tree of new hosts, built once and cached.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{Context as Sum, SHA256};

use super::command::{aside, call};
use super::tree::hex;
use super::{Repository, requirements};
use crate::binaries::cache;

const SUITE: &str = "bookworm";
const PACKAGES: &str =
    "systemd,systemd-sysv,dbus,openssh-server,iproute2,ca-certificates,procps,kmod,sudo,cpio,busybox-static";

/// The changes after debootstrap. Part of the recipe: a change of it creates a new template.
const FINISH: &str = r#"
root=$1
# Every host gets its own.
rm -f "$root"/etc/ssh/ssh_host_* "$root"/etc/hostname "$root"/var/lib/dbus/machine-id "$root"/etc/resolv.conf
: >"$root/etc/machine-id"
# There is no network to update from; a host that is to have a repository is told.
rm -rf "$root"/etc/apt/sources.list "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/log/*.log
# Nothing changes by itself while somebody compares.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-tmpfiles-clean.timer; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# nspawn mounts the controllers of cgroup v1 read-only. They are the host's own: a kubelet may write there.
cat >"$root/usr/lib/systemd/system/lab-cgroups.service" <<'UNIT'
[Unit]
Description=Writable cgroups
DefaultDependencies=no
Before=sysinit.target
ConditionVirtualization=container

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'for each in /sys/fs/cgroup/*; do mountpoint -q $each && mount -o remount,bind,rw $each; done; mount -o remount,bind,rw /sys/fs/cgroup; true'
UNIT
mkdir -p "$root/usr/lib/systemd/system/sysinit.target.wants"
ln -sf ../lab-cgroups.service "$root/usr/lib/systemd/system/sysinit.target.wants/lab-cgroups.service"
mkdir -p "$root/usr/lib/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStopSec=10s\n' >"$root/usr/lib/systemd/system.conf.d/lab.conf"
printf 'PasswordAuthentication no\nMaxStartups 100\n' >"$root/etc/ssh/sshd_config.d/lab.conf"
"#;

/// Adds packages to a tree. No service is started.
const INSTALL: &str = r#"
template=$1 debs=$2 root=$3
cp -a "$template" "$root"
mkdir "$root/tmp/debs"
cp "$debs"/*.deb "$root/tmp/debs/"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
chroot "$root" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg -i /tmp/debs/*.deb'
rm -rf "$root/tmp/debs" "$root/usr/sbin/policy-rc.d"
"#;

/// A file tree for new hosts. It is never written to.
#[derive(Clone, Debug)]
pub struct Template {
    folder: PathBuf,
}

impl Template {
    /// A bare Debian 12 with systemd, D-Bus and sshd. The first call builds it by debootstrap, which takes a minute or two and is printed.
    ///
    /// # Errors
    /// When this machine cannot run hosts, or the packages cannot be fetched.
    pub async fn debian() -> Result<Self> {
        aside(Self::made).await
    }

    /// This template with all packages of a repository installed, for hosts that start with them. Built once.
    ///
    /// # Errors
    /// When a package cannot be installed.
    pub async fn with(&self, repository: &Repository) -> Result<Self> {
        let (base, debs) = (self.folder.clone(), repository.folder().to_owned());
        aside(move || {
            let (base, debs) = (base.to_string_lossy(), debs.to_string_lossy());
            let folder = cache()?.join("hosts").join(format!("with-{}", digest(&[&base, &debs, INSTALL])));
            once(&folder, |unfinished| {
                eprintln!("lab: creating a template of hosts with the packages of {debs} (once)");
                let target = unfinished.to_string_lossy();
                call("sh", ["-euc", INSTALL, "install", &base, &debs, &target])
                    .context("cannot install the packages")
                    .map(drop)
            })?;
            Ok(Self { folder })
        })
        .await
    }

    /// The folder of the tree.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn made() -> Result<Self> {
        requirements::require()?;
        let digest = digest(&[SUITE, PACKAGES, FINISH]);
        let folder = cache()?.join("hosts").join(format!("debian-{SUITE}-{digest}"));
        once(&folder, |unfinished| {
            let mirror = mirror();
            eprintln!("lab: creating a template of hosts: Debian {SUITE} from {mirror} (about two minutes, once)");
            let packages = format!("--include={PACKAGES}");
            let target = unfinished.to_string_lossy();
            call("debootstrap", ["--variant=minbase", &packages, SUITE, &target, &mirror])
                .context("debootstrap failed")?;
            call("sh", ["-euc", FINISH, "finish", &target])?;
            fs::set_permissions(unfinished, fs::Permissions::from_mode(0o755))?;
            eprintln!("lab: the template is in {}", folder.display());
            Ok(())
        })?;
        Ok(Self { folder })
    }
}

/// The first characters of a digest of all these texts.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut sum = Sum::new(&SHA256);
    for part in parts {
        sum.update(part.as_bytes());
        sum.update(&[0]);
    }
    hex(&sum.finish().as_ref()[..6])
}

/// Creates a cache entry unless it exists: in a temporary place, renamed when it is complete. A concurrent caller waits.
pub(crate) fn once(place: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = place.parent().context("a place in the cache has a parent")?;
    let name = place.file_name().context("a place in the cache has a name")?.to_string_lossy().into_owned();
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let lock = File::create(parent.join(format!(".{name}.lock")))?;
    lock.lock().context("cannot lock the cache")?;
    if place.exists() {
        return Ok(());
    }
    let unfinished = parent.join(format!(".{name}.tmp"));
    if unfinished.is_dir() {
        // debootstrap may have been killed while its /proc was mounted there.
        call("sh", ["-c", "umount -l \"$1/proc\" \"$1/sys\" 2>/dev/null; true", "sh", &unfinished.to_string_lossy()])?;
        fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
    } else if unfinished.exists() {
        fs::remove_file(&unfinished)?;
    }
    make(&unfinished)?;
    std::io::stderr().flush()?;
    fs::rename(&unfinished, place).with_context(|| format!("cannot rename to {}", place.display()))
}

/// The mirror of Debian: `FLEETWRIGHT_DEBIAN_MIRROR`, otherwise the mirror of this machine, otherwise Debian's own.
pub(crate) fn mirror() -> String {
    if let Ok(mirror) = std::env::var("FLEETWRIGHT_DEBIAN_MIRROR")
        && !mirror.is_empty()
    {
        return mirror;
    }
    let format = ["indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"];
    let configured = call("apt-get", format).unwrap_or_default();
    let prefix = format!("Debian {SUITE} ");
    configured
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .unwrap_or("http://deb.debian.org/debian")
        .trim_end_matches('/')
        .to_owned()
}
