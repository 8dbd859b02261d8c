//! A machine with its own kernel, for kernel packages and real reboots. It is emulated, hence slow.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::command::{aside, call};
use super::host::{seed, ssh, wait_for_sshd, with_console_tail};
use super::supervisor::Supervisor;
use super::template::{digest as key, once};
use super::{Network, Repository, Template, requirements};
use crate::binaries::cache;

/// The boot timeout; emulation on a busy machine is slow.
const BOOT: Duration = Duration::from_secs(400);
const MEMORY: &str = "640";

/// Creates the initial RAM disk of a kernel when its package is installed. Debian's own generator would take minutes under
/// emulation, and targets hardware that this machine does not have.
const INITRD: &str = r#"#!/bin/sh
set -e
version=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/lib" "$work/proc" "$work/dev" "$work/new"
cp /bin/busybox "$work/bin/busybox"
# The kernel's own script has mostly done so, and it takes seconds here.
[ -s "/lib/modules/$version/modules.dep" ] || depmod "$version"
: >"$work/order"
for module in crc32c_generic crc32c_intel virtio_pci virtio_blk virtio_net ext4; do
  modprobe --set-version "$version" --show-depends "$module" 2>/dev/null || true
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
  cp "$file" "$work/lib/"
  basename "$file" >>"$work/order"
done
cat >"$work/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/lib/$module"; done </order
tries=0
until /bin/busybox mount -t ext4 /dev/vda /new || [ $tries -gt 50 ]; do /bin/busybox sleep 0.2; tries=$((tries + 1)); done
/bin/busybox umount /proc
/bin/busybox mount --move /dev /new/dev
exec /bin/busybox switch_root /new /sbin/init
INIT
chmod 755 "$work/init"
(cd "$work" && find . | cpio --quiet -o -H newc | gzip -1) >"/boot/initrd.img-$version.tmp"
mv "/boot/initrd.img-$version.tmp" "/boot/initrd.img-$version"
"#;

/// Turns the tree of a host into that of an emulated machine: it adds a kernel, and a package that replaces the generator of RAM disks.
const FINISH: &str = r#"
template=$1 apt=$2 kernel=$3 initrd=$4 root=$5
cp -a "$template" "$root"
mkdir -p "$root/tmp/lab/DEBIAN" "$root/tmp/lab/etc/kernel/postinst.d" "$root/tmp/lab/etc/kernel/postrm.d"
cat >"$root/tmp/lab/DEBIAN/control" <<'CONTROL'
Package: lab-initrd
Version: 1
Architecture: all
Maintainer: Fleetwright <lab@fleetwright.io>
Depends: busybox-static, cpio, kmod
Provides: linux-initramfs-tool
Description: makes small initial RAM disks
CONTROL
printf '%s' "$initrd" >"$root/tmp/lab/etc/kernel/postinst.d/lab-initrd"
printf '#!/bin/sh\nrm -f "/boot/initrd.img-$1"\n' >"$root/tmp/lab/etc/kernel/postrm.d/lab-initrd"
chmod 755 "$root"/tmp/lab/etc/kernel/*/lab-initrd
dpkg-deb --build --root-owner-group "$root/tmp/lab" "$root/tmp/lab.deb"
cp "$apt"/linux-base_*.deb "$apt/$kernel" "$root/tmp/"
chroot "$root" dpkg -i /tmp/lab.deb
chroot "$root" sh -c 'dpkg -i /tmp/linux-*.deb'
rm -rf "$root"/tmp/*
test -s "$root/vmlinuz"
test -s "$root/initrd.img"
printf '/dev/vda / ext4 defaults 0 1\n' >"$root/etc/fstab"
# No udev tells that a link or a console is there: nothing waits for it.
cat >"$root/usr/lib/systemd/system/lab-network.service" <<'UNIT'
[Unit]
Description=The address of this machine
DefaultDependencies=no
After=systemd-sysctl.service local-fs.target
Before=network-pre.target network.target ssh.service
Wants=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -e /etc/lab-network
UNIT
mkdir -p "$root/usr/lib/systemd/system/sysinit.target.wants"
ln -sf ../lab-network.service "$root/usr/lib/systemd/system/sysinit.target.wants/lab-network.service"
# Each process of the boot takes its time under emulation: without those that nobody looks for here.
for unit in serial-getty@ttyS0.service getty@tty1.service e2scrub_reap.service systemd-pstore.service systemd-update-utmp.service \
  modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service modprobe@loop.service \
  dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
"#;

/// Creates a disk from a tree with additional files.
const DISK: &str = r#"
root=$1 folder=$2
mkdir -p "$folder/mnt" && mount -t tmpfs tmpfs "$folder/mnt"
mkdir "$folder/mnt/upper" "$folder/mnt/work" "$folder/mnt/all"
mount -t overlay -o "lowerdir=$root,upperdir=$folder/mnt/upper,workdir=$folder/mnt/work" overlay "$folder/mnt/all"
cd "$folder/seed"
find . -type f | while read -r file; do
  mkdir -p "$folder/mnt/all/${file%/*}"
  cp -p "$file" "$folder/mnt/all/$file"
done
mkfs.ext4 -q -F -L root -d "$folder/mnt/all" "$folder/disk.ext4" 3g
"#;

/// An emulated machine: Debian with its own kernel. Dropping it ends it and removes everything of it.
#[derive(Debug)]
pub struct EmulatedMachine {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    network: Network,
    name: String,
    folder: PathBuf,
    address: Ipv4Addr,
    host_key: String,
    tap: String,
    supervisor: Option<Supervisor>,
}

/// The kernels that an emulated machine can run: the newest of Debian 12, and the one before, with which it starts.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// The repository with both.
    pub repository: Repository,
    /// The kernel package that a machine starts with.
    pub first: String,
    /// The newer kernel package.
    pub second: String,
}

impl Kernels {
    /// Finds and fetches the kernels.
    pub async fn find() -> Result<Self> {
        let template = Template::debian().await?;
        let place = cache()?.join("hosts").join("kernels");
        // Debian publishes new kernels every few weeks: the first choice is kept, so that the cache stays valid.
        if !place.exists() {
            let found = Repository::search(&template, "^linux-image-6.1.0-[0-9]+-cloud-amd64$").await?;
            let [.., first, second] = found.as_slice() else { bail!("Debian's mirror has too few kernels: {found:?}") };
            fs::write(&place, format!("{first}\n{second}\n"))?;
        }
        let chosen = fs::read_to_string(&place)?;
        let [first, second] = chosen.lines().collect::<Vec<_>>()[..] else {
            bail!("{}: not two kernels", place.display())
        };
        // apt would install its own generator of RAM disks; the machine has a replacement by then.
        let repository = Repository::with(&template, &[first, second, "linux-base"]).await?;
        Ok(Self { repository, first: first.to_owned(), second: second.to_owned() })
    }

    /// The output of `uname -r` with a package's kernel.
    pub fn release(package: &str) -> &str {
        package.trim_start_matches("linux-image-")
    }
}

impl EmulatedMachine {
    /// Boots a machine and waits for its sshd.
    ///
    /// # Errors
    /// When this machine cannot emulate, or the emulated one does not boot: the error has the end of its console output.
    pub async fn start(network: &Network, name: &str) -> Result<Self> {
        for program in ["qemu-system-x86_64", "debugfs", "mkfs.ext4", "e2fsck", "dpkg-deb"] {
            if !requirements::installed(program) {
                bail!("cannot emulate a machine: the program {program} is missing");
            }
        }
        let template = Template::debian().await?;
        let kernels = Kernels::find().await?;
        let (network, name) = (network.clone(), name.to_owned());
        aside(move || {
            let tree = tree(&template, &kernels)?;
            let mut inner = Inner::prepare(network, name)?;
            inner.install(&tree)?;
            inner.boot()?;
            Ok(Self { inner: Arc::new(Mutex::new(inner)) })
        })
        .await
    }

    /// The name of the machine.
    pub fn name(&self) -> String {
        self.lock().name.clone()
    }

    /// The address of the machine.
    pub fn address(&self) -> Ipv4Addr {
        self.lock().address
    }

    /// The serial number in its firmware. Hosts by nspawn see the firmware of this machine, which may have none.
    pub fn serial(&self) -> String {
        serial(&self.lock().name)
    }

    /// The private SSH key for root.
    pub fn ssh_key(&self) -> String {
        self.lock().network.ssh_key().to_owned()
    }

    /// Its host key, as in a `known_hosts` file, without the host.
    pub fn host_key(&self) -> String {
        self.lock().host_key.clone()
    }

    /// Runs a command by SSH and returns its standard output.
    pub async fn ssh(&self, command: &str) -> Result<String> {
        let (network, folder, address, host_key) = {
            let inner = self.lock();
            (inner.network.clone(), inner.folder.clone(), inner.address, inner.host_key.clone())
        };
        let command = command.to_owned();
        aside(move || ssh(&network, &folder, address, &host_key, &command)).await
    }

    /// The boot id, which changes with every boot.
    pub async fn boot_id(&self) -> Result<String> {
        Ok(self.ssh("cat /proc/sys/kernel/random/boot_id").await?.trim().to_owned())
    }

    /// The output of `uname -r`.
    pub async fn kernel(&self) -> Result<String> {
        Ok(self.ssh("uname -r").await?.trim().to_owned())
    }

    /// Reboots it by command, and waits until sshd answers again.
    pub async fn reboot(&self) -> Result<()> {
        let before = self.boot_id().await?;
        let _ = self.ssh("systemctl reboot").await;
        let deadline = Instant::now() + BOOT;
        loop {
            match self.boot_id().await {
                Ok(now) if now != before => return Ok(()),
                _ if Instant::now() > deadline => bail!("{} did not come back from its reboot", self.name()),
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// Takes its power away.
    pub async fn cut_power(&self) -> Result<()> {
        self.with(|inner| inner.send_command("off")).await
    }

    /// Boots it after it was shut down or [`EmulatedMachine::cut_power`], and waits for its sshd.
    pub async fn power_on(&self) -> Result<()> {
        self.with(Inner::boot).await
    }

    /// Disconnects it from the network; it continues to run.
    pub async fn disconnect(&self) -> Result<()> {
        self.with(|inner| call("ip", ["link", "set", &inner.tap, "down"]).map(drop)).await
    }

    /// Reconnects it to the network.
    pub async fn reconnect(&self) -> Result<()> {
        self.with(|inner| call("ip", ["link", "set", &inner.tap, "up"]).map(drop)).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    async fn with<T: Send + 'static>(&self, act: impl FnOnce(&mut Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let inner = self.inner.clone();
        aside(move || act(&mut inner.lock().unwrap_or_else(|broken| broken.into_inner()))).await
    }
}

impl Inner {
    fn prepare(network: Network, name: String) -> Result<Self> {
        let address = network.take_address()?;
        let folder = network.folder().join(&name);
        let tap = network.link_name();
        fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}: is there another host of the same name?", folder.display()))?;
        Ok(Self { network, name, folder, address, host_key: String::new(), tap, supervisor: None })
    }

    fn install(&mut self, tree: &Path) -> Result<()> {
        let gateway = self.network.address();
        let link = format!(
            "ip link set lo up\nip link set eth0 up\nip address add {}/24 dev eth0\nip route add default via {gateway}\n",
            self.address
        );
        let files = [("etc/lab-network".to_owned(), 0o644, link.into_bytes())];
        self.host_key = seed(&self.folder.join("seed"), &self.name, self.address, &self.network, &files)?;
        let (root, folder) = (tree.to_string_lossy(), self.folder.to_string_lossy());
        // In a mount namespace, so that nothing stays mounted after a failure.
        let arguments = ["--mount", "--propagation", "private", "sh", "-euc", DISK, "disk", &root, &folder];
        call("unshare", arguments).context("cannot create the disk")?;
        let [_, b, c, d] = self.address.octets();
        let mac = format!("52:54:00:{b:02x}:{c:02x}:{d:02x}");
        let mut command = Command::new("sh");
        command.args(["-c", include_str!("emulator.sh"), "emulator"]).arg(&self.folder);
        command.args([&self.tap, self.network.bridge(), &mac, MEMORY, &serial(&self.name)]);
        self.supervisor.insert(Supervisor::start(&self.name, command)?).answer("link")
    }

    fn send_command(&mut self, command: &str) -> Result<()> {
        self.supervisor.as_mut().with_context(|| format!("{} does not run", self.name))?.send_command(command)
    }

    fn boot(&mut self) -> Result<()> {
        self.send_command("on")?;
        wait_for_sshd(self.address, BOOT)
            .map_err(|error| with_console_tail(&self.folder.join("serial.log"), error.context(self.name.clone())))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.supervisor.take());
        self.network.give_back(self.address);
    }
}

fn serial(name: &str) -> String {
    format!("SN-{name}")
}

/// The tree of all emulated machines, in the cache.
fn tree(template: &Template, kernels: &Kernels) -> Result<PathBuf> {
    let base = template.folder().to_string_lossy();
    let folder = cache()?.join("hosts").join(format!("emulated-{}", key(&[&base, &kernels.first, INITRD, FINISH])));
    once(&folder, |unfinished| {
        eprintln!("lab: creating the file tree of emulated machines, with {} (once)", kernels.first);
        let apt = kernels.repository.folder().to_string_lossy();
        let kernel = kernels.repository.deb(&kernels.first)?.file.file_name().context("a package is a file")?;
        let arguments = [&*base, &*apt, &*kernel.to_string_lossy(), INITRD, &*unfinished.to_string_lossy()];
        call("sh", ["-euc", FINISH, "finish"].into_iter().chain(arguments)).map(drop)
    })?;
    Ok(folder)
}
