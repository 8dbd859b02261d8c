//! A host by systemd-nspawn.

use std::fs;
use std::io::{Read as _, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::command::{aside, call, fed, told};
use super::network::keygen;
use super::supervisor::Supervisor;
use super::{Network, Template, Tree};

/// The boot timeout of a host: a boot takes seconds, but the machine may be busy.
const BOOT: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(30);
/// The environment of commands that are run in a host from outside.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The configuration of a host to boot.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    network: Network,
    template: Template,
    name: String,
    disk: String,
    files: Vec<(String, u32, Vec<u8>)>,
    binds: Vec<String>,
}

impl HostBuilder {
    /// The size of its disk in the notation of mount(8), such as `3g`. The disk is memory, which is used as far as it is filled.
    pub fn disk(mut self, size: impl Into<String>) -> Self {
        self.disk = size.into();
        self
    }

    /// A file that exists from the first boot on.
    pub fn file(mut self, path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.into(), mode, content.into()));
        self
    }

    /// Mounts a folder of this machine read-only, so that large shared files need not be copied.
    pub fn bind(mut self, folder: &Path, place: &str) -> Self {
        // nspawn separates fields by colons.
        let escaped = folder.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:");
        self.binds.push(format!("--bind-ro={escaped}:{place}"));
        self
    }

    /// Boots the host and waits for its sshd.
    ///
    /// # Errors
    /// When the host does not boot: the error has the end of its console output.
    pub async fn start(self) -> Result<Host> {
        aside(move || {
            let mut inner = Inner::prepare(self)?;
            inner.install()?;
            let host = Host { inner: Arc::new(Mutex::new(inner)) };
            host.lock().boot()?;
            Ok(host)
        })
        .await
    }
}

/// A host: Debian with systemd, sshd and its own address. Dropping it ends it and removes everything of it; its console's log stays with the
/// network's folder if that is kept.
#[derive(Debug)]
pub struct Host {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    wanted: HostBuilder,
    folder: PathBuf,
    address: Ipv4Addr,
    host_key: String,
    link: String,
    supervisor: Option<Supervisor>,
}

impl Host {
    /// The configuration of a host, to extend and start.
    pub fn builder(network: &Network, template: &Template, name: &str) -> HostBuilder {
        HostBuilder {
            network: network.clone(),
            template: template.clone(),
            name: name.to_owned(),
            disk: "4g".to_owned(),
            files: Vec::new(),
            binds: Vec::new(),
        }
    }

    /// Boots a bare host and waits for its sshd.
    pub async fn start(network: &Network, template: &Template, name: &str) -> Result<Self> {
        Self::builder(network, template, name).start().await
    }

    /// The name of the host.
    pub fn name(&self) -> String {
        self.lock().wanted.name.clone()
    }

    /// The address of the host.
    pub fn address(&self) -> Ipv4Addr {
        self.lock().address
    }

    /// The private SSH key for root.
    pub fn ssh_key(&self) -> String {
        self.lock().wanted.network.ssh_key().to_owned()
    }

    /// The host key, as in a `known_hosts` file, without the host: `ssh-ed25519 AAAA…`.
    pub fn host_key(&self) -> String {
        self.lock().host_key.clone()
    }

    /// The name of its network link on this machine; the names of its cgroups contain it.
    pub fn link(&self) -> String {
        self.lock().link.clone()
    }

    /// Runs a shell command as root and returns its standard output; an error has all output. Needs no network.
    pub async fn run(&self, command: &str) -> Result<String> {
        let (entered, command) = (self.lock().enter()?, command.to_owned());
        aside(move || {
            let mut entered = entered;
            entered.args(["sh", "-c", &command]);
            told(entered)
        })
        .await
    }

    /// Like [`Host::run`], with data for the command's standard input, for commands such as `tar -x`.
    pub async fn feed(
        &self,
        command: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<()> + Send + 'static,
    ) -> Result<String> {
        let (mut entered, command) = (self.lock().enter()?, command.to_owned());
        entered.args(["sh", "-c", &command]);
        aside(move || fed(entered, write)).await
    }

    /// Like [`Host::run`], but by SSH.
    pub async fn ssh(&self, command: &str) -> Result<String> {
        let (network, folder, address, host_key) = {
            let inner = self.lock();
            (inner.wanted.network.clone(), inner.folder.clone(), inner.address, inner.host_key.clone())
        };
        let command = command.to_owned();
        aside(move || ssh(&network, &folder, address, &host_key, &command)).await
    }

    /// Whether the host runs.
    pub fn is_on(&self) -> bool {
        self.lock().leader().is_some()
    }

    /// Shuts the host down by command, and waits for its end.
    pub async fn poweroff(&self) -> Result<()> {
        // The shutdown may cut the answer off.
        let _ = self.run("systemctl poweroff").await;
        self.until(END, "to be off", |inner| Ok(inner.leader().is_none())).await
    }

    /// Takes its power away.
    pub async fn cut_power(&self) -> Result<()> {
        self.with(|inner| inner.send_command("off")).await
    }

    /// Boots it after [`Host::poweroff`] or [`Host::cut_power`], and waits for its sshd.
    pub async fn power_on(&self) -> Result<()> {
        self.with(Inner::boot).await
    }

    /// Reboots the host by command, and waits until sshd answers again.
    pub async fn reboot(&self) -> Result<()> {
        let before = self.boot_id().await?;
        let _ = self.run("systemctl reboot").await;
        let deadline = Instant::now() + BOOT;
        loop {
            match self.boot_id().await {
                Ok(now) if now != before => break,
                _ if Instant::now() > deadline => bail!("{} did not come back from its reboot", self.name()),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        self.with(|inner| inner.wait_for_sshd()).await
    }

    /// The boot id, which changes with every boot.
    pub async fn boot_id(&self) -> Result<String> {
        Ok(self.run("cat /proc/sys/kernel/random/boot_id").await?.trim().to_owned())
    }

    /// Reinstalls the host: all of its files are lost, and it gets a new host key.
    pub async fn wipe(&self) -> Result<()> {
        self.with(|inner| {
            inner.seed()?;
            inner.send_command("wipe")?;
            inner.boot()
        })
        .await
    }

    /// Disconnects the host from the network; it continues to run.
    pub async fn disconnect(&self) -> Result<()> {
        self.with(|inner| call("ip", ["link", "set", &inner.link, "down"]).map(drop)).await
    }

    /// Reconnects the host to the network.
    pub async fn reconnect(&self) -> Result<()> {
        self.with(|inner| call("ip", ["link", "set", &inner.link, "up"]).map(drop)).await
    }

    /// Fills the disk until only this number of bytes is free.
    pub async fn fill_disk(&self, free: u64) -> Result<()> {
        self.with(move |inner| {
            let used = inner.used()?;
            inner.send_command(&format!("limit {}", used + free))
        })
        .await
    }

    /// Frees the disk space again.
    pub async fn empty_disk(&self) -> Result<()> {
        self.with(|inner| inner.send_command(&format!("limit {}", inner.wanted.disk.clone()))).await
    }

    /// Makes its file systems read-only, as a kernel does after disk errors. Fails if files are open for writing.
    pub async fn read_only(&self) -> Result<()> {
        // journald keeps files open all the time; it can work without its disk.
        self.run("journalctl --relinquish-var && mount -o remount,bind,ro /var && mount -o remount,bind,ro /")
            .await
            .map(drop)
    }

    /// Makes the file systems writable again.
    pub async fn writable(&self) -> Result<()> {
        self.run("mount -o remount,bind,rw / && mount -o remount,bind,rw /var").await.map(drop)
    }

    /// Adds a route for a subnet, such as another host's pods. The route lasts until the host is dropped.
    pub async fn route(&self, subnet: &str, via: Ipv4Addr) -> Result<()> {
        let route = format!("route {subnet} via {via}");
        self.with(move |inner| inner.send_command(&route)).await
    }

    /// The current tree of all its files.
    pub async fn tree(&self) -> Result<Tree> {
        let leader = self.lock().leader().context("the host is off")?;
        aside(move || Tree::read(&Path::new("/proc").join(leader.to_string()).join("root"))).await
    }

    /// Ends the host and waits until everything of it is removed. Dropping it does the same.
    pub async fn stop(self) -> Result<()> {
        aside(move || {
            drop(self);
            Ok(())
        })
        .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    async fn with<T: Send + 'static>(&self, act: impl FnOnce(&mut Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let inner = self.inner.clone();
        aside(move || act(&mut inner.lock().unwrap_or_else(|broken| broken.into_inner()))).await
    }

    async fn until(&self, within: Duration, what: &str, holds: impl Fn(&mut Inner) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + within;
        while !holds(&mut self.lock())? {
            if Instant::now() > deadline {
                bail!("waited {within:?} for {} {what}", self.name());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Inner {
    fn prepare(wanted: HostBuilder) -> Result<Self> {
        let address = wanted.network.take_address()?;
        let folder = wanted.network.folder().join(&wanted.name);
        let link = wanted.network.link_name();
        fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}: is there another host of the same name?", folder.display()))?;
        Ok(Self { wanted, folder, address, host_key: String::new(), link, supervisor: None })
    }

    /// Starts the supervisor, which creates the disk, and links the host to the bridge.
    fn install(&mut self) -> Result<()> {
        self.seed()?;
        let cgroup = format!("fleetwright-{}-{}-{}", std::process::id(), self.link, self.wanted.name);
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--net",
                "--propagation",
                "private",
                "sh",
                "-c",
                include_str!("supervisor.sh"),
                "supervisor",
            ])
            .args([&self.folder, self.wanted.template.folder()])
            .args([&self.wanted.name, &cgroup, &self.wanted.disk])
            .args(&self.wanted.binds);
        let supervisor = self.supervisor.insert(Supervisor::start(&self.wanted.name, command)?);
        supervisor.answer("cgroups")?;
        supervisor.answer("disk")?;
        let process = supervisor.process().to_string();
        let bridge = self.wanted.network.bridge().to_owned();
        call("ip", ["link", "add", &self.link, "type", "veth", "peer", "name", "eth0", "netns", &process])?;
        call("ip", ["link", "set", &self.link, "master", &bridge, "up"])?;
        self.send_command(&format!("network {}/24 {}", self.address, self.wanted.network.address()))
    }

    fn seed(&mut self) -> Result<()> {
        let wanted = &self.wanted;
        self.host_key = seed(&self.folder.join("seed"), &wanted.name, self.address, &wanted.network, &wanted.files)?;
        Ok(())
    }

    fn send_command(&mut self, command: &str) -> Result<()> {
        self.supervisor.as_mut().with_context(|| format!("{} does not run", self.wanted.name))?.send_command(command)
    }

    fn boot(&mut self) -> Result<()> {
        self.send_command("on")?;
        let deadline = Instant::now() + BOOT;
        while self.leader().is_none() {
            if Instant::now() > deadline {
                return Err(self.with_console_tail(anyhow!("{} does not boot", self.wanted.name)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.wait_for_sshd()
    }

    fn wait_for_sshd(&self) -> Result<()> {
        wait_for_sshd(self.address, BOOT)
            .map_err(|error| self.with_console_tail(error.context(self.wanted.name.clone())))
    }

    fn with_console_tail(&self, error: anyhow::Error) -> anyhow::Error {
        with_console_tail(&self.folder.join("console.log"), error)
    }

    /// The pid of the host's first process on this machine; none if the host is off.
    fn leader(&self) -> Option<u32> {
        let nspawn = fs::read_to_string(self.folder.join("nspawn.pid")).ok()?;
        let parent = format!("PPid:\t{}", nspawn.trim());
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let process = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let first = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
            // Before the process becomes init it is still nspawn itself.
            let init = !status.starts_with("Name:\t(sd-") && !status.starts_with("Name:\tsystemd-nspawn");
            (init && status.lines().any(|line| line == parent) && status.lines().any(first)).then_some(process)
        })
    }

    /// A command that enters the host's namespaces; the caller adds the program.
    fn enter(&self) -> Result<Command> {
        let leader = self.leader().with_context(|| format!("{} is off", self.wanted.name))?;
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &leader.to_string(),
            "--all",
            "--root",
            "--wd",
            "env",
            "-i",
            PATH,
            "HOME=/root",
            "LANG=C.UTF-8",
        ]);
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn used(&self) -> Result<u64> {
        let mut entered = self.enter()?;
        entered.args(["df", "--output=used", "-B1", "/var"]);
        let said = told(entered)?;
        said.lines()
            .nth(1)
            .and_then(|line| line.trim().parse().ok())
            .with_context(|| format!("unexpected output of df: {said:?}"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if thread::panicking() || self.wanted.network.keeps_logs() {
            // The reader of the failure needs the status of systemd.
            if let Ok(mut entered) = self.enter() {
                entered.args(["timeout", "10", "journalctl", "--no-pager", "--boot"]);
                if let Ok(output) = entered.output() {
                    let _ = fs::write(self.folder.join("journal.log"), output.stdout);
                }
            }
        }
        drop(self.supervisor.take());
        let _ = fs::remove_dir_all(self.folder.join("seed"));
        self.wanted.network.give_back(self.address);
    }
}

/// Waits until an SSH server answers at the address.
pub(crate) fn wait_for_sshd(address: Ipv4Addr, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    let place = SocketAddr::from((address, 22));
    loop {
        let greeted = TcpStream::connect_timeout(&place, Duration::from_secs(2)).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut greeting = [0; 4];
            stream.read_exact(&mut greeting)?;
            Ok(&greeting == b"SSH-")
        });
        match greeted {
            Ok(true) => return Ok(()),
            _ if Instant::now() > deadline => bail!("no sshd at {place} after {within:?}"),
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Adds the end of the console output to an error.
pub(crate) fn with_console_tail(console: &Path, error: anyhow::Error) -> anyhow::Error {
    let said = fs::read(console).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<_> = said.lines().collect();
    error.context(format!("its console's last lines:\n{}", lines[lines.len().saturating_sub(20)..].join("\n")))
}

/// Runs a command by SSH, with a known host key.
pub(crate) fn ssh(
    network: &Network,
    folder: &Path,
    address: Ipv4Addr,
    host_key: &str,
    command: &str,
) -> Result<String> {
    let known = folder.join("known_hosts");
    fs::write(&known, format!("{address} {host_key}\n"))?;
    let known = format!("UserKnownHostsFile={}", known.display());
    let key = network.ssh_key_path();
    let key = key.to_string_lossy();
    let options = ["-F", "/dev/null", "-i", &key, "-o", &known, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"];
    call("ssh", options.into_iter().chain([format!("root@{address}").as_str(), command]))
}

/// Writes the files that differ between hosts below a folder, and returns the host key.
pub(crate) fn seed(
    seed: &Path,
    name: &str,
    address: Ipv4Addr,
    network: &Network,
    files: &[(String, u32, Vec<u8>)],
) -> Result<String> {
    let _ = fs::remove_dir_all(seed);
    let machine_id = uuid::Uuid::new_v4().simple().to_string();
    let put = |path: &str, mode: u32, content: &[u8]| -> Result<()> {
        let path = seed.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(&path, content)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    };
    put("etc/hostname", 0o644, format!("{name}\n").as_bytes())?;
    put("etc/hosts", 0o644, format!("127.0.0.1 localhost\n{address} {name}\n").as_bytes())?;
    // Kubelets need the file, though no name server is reachable.
    put("etc/resolv.conf", 0o644, b"search .\n")?;
    put("etc/machine-id", 0o444, format!("{machine_id}\n").as_bytes())?;
    put("root/.ssh/authorized_keys", 0o600, format!("{}\n", network.ssh_public_key()).as_bytes())?;
    for (path, mode, content) in files {
        put(path, *mode, content)?;
    }
    fs::create_dir_all(seed.join("etc/ssh"))?;
    let key = seed.join("etc/ssh/ssh_host_ed25519_key");
    keygen(&key, name)?;
    let public = fs::read_to_string(key.with_extension("pub"))?;
    Ok(public.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}
