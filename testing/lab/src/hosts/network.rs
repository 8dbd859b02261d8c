//! A bridge with addresses for hosts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail};

use super::command::{aside, call};
use super::{reaper, requirements};

/// The number of networks of this process so far, as part of their names.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The number of links of this process so far.
static LINKS: AtomicU32 = AtomicU32::new(0);

/// A bridge on this machine in a subnet of 198.18.0.0/15, the range for benchmarks, with an SSH key for all
/// hosts on it. Hosts reach this machine and each other, and nothing else. Cheap to clone; removed with its last clone and host.
#[derive(Clone, Debug)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bridge: String,
    /// The first three bytes of the subnet.
    subnet: [u8; 3],
    folder: PathBuf,
    keeper: Mutex<Child>,
    taken: Mutex<BTreeSet<u8>>,
    key: String,
    public_key: String,
}

impl Network {
    /// Creates a network in a free subnet, and removes what killed runs left behind.
    ///
    /// # Errors
    /// When this machine cannot run hosts: the error lists what is missing.
    pub async fn start() -> Result<Self> {
        aside(Self::made).await
    }

    fn made() -> Result<Self> {
        requirements::require()?;
        reaper::reap();
        let bridge = format!("fw{}n{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(format!("fleetwright-hosts-{}-{bridge}", process::id()));
        fs::create_dir_all(&folder)?;
        let keeper = Command::new("sh")
            .args(["-c", include_str!("keeper.sh"), "keeper", &bridge])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the keeper of the network")?;
        let mut inner = Inner {
            bridge,
            subnet: [0; 3],
            folder,
            keeper: Mutex::new(keeper),
            taken: Mutex::default(),
            key: String::new(),
            public_key: String::new(),
        };
        inner.subnet = inner.link()?;
        let key = inner.folder.join("key");
        keygen(&key, "fleetwright-lab")?;
        inner.key = fs::read_to_string(&key)?;
        inner.public_key = fs::read_to_string(key.with_extension("pub"))?.trim().to_owned();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The address of this machine on the bridge.
    pub fn address(&self) -> Ipv4Addr {
        self.inner.at(1)
    }

    /// The name of the bridge.
    pub fn bridge(&self) -> &str {
        &self.inner.bridge
    }

    /// The private SSH key of all hosts on it, in OpenSSH's format.
    pub fn ssh_key(&self) -> &str {
        &self.inner.key
    }

    /// A file with [`Network::ssh_key`], for `ssh -i`.
    pub fn ssh_key_path(&self) -> PathBuf {
        self.inner.folder.join("key")
    }

    /// The public half of the SSH key.
    pub fn ssh_public_key(&self) -> &str {
        &self.inner.public_key
    }

    /// The folder with the console logs of the hosts.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Keeps the folder and prints its path, for a test that failed without a panic.
    pub fn keep_logs(&self) {
        if fs::write(self.inner.folder.join("keep"), "").is_ok() {
            eprintln!("lab: the hosts' logs are in {}", self.inner.folder.display());
        }
    }

    /// Whether [`Network::keep_logs`] was called.
    pub(crate) fn keeps_logs(&self) -> bool {
        self.inner.folder.join("keep").exists()
    }

    /// Allocates a free address; returned with [`Network::give_back`].
    pub(crate) fn take_address(&self) -> Result<Ipv4Addr> {
        let mut taken = self.inner.taken.lock().unwrap_or_else(|broken| broken.into_inner());
        let free = (2..=254).find(|number| !taken.contains(number)).context("the network has no address left")?;
        taken.insert(free);
        Ok(self.inner.at(free))
    }

    pub(crate) fn give_back(&self, address: Ipv4Addr) {
        self.inner.taken.lock().unwrap_or_else(|broken| broken.into_inner()).remove(&address.octets()[3]);
    }

    /// A name for a link that is unique on this machine.
    pub(crate) fn link_name(&self) -> String {
        format!("fw{}v{}", process::id(), LINKS.fetch_add(1, Ordering::Relaxed))
    }
}

impl Inner {
    fn at(&self, number: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, number)
    }

    /// Creates the bridge in a free subnet. A lock serializes labs that start at the same time.
    fn link(&self) -> Result<[u8; 3]> {
        let lock = File::create(env::temp_dir().join(".fleetwright-hosts.lock"))?;
        lock.lock()?;
        let used = call("ip", ["-o", "-4", "address", "show"])?;
        let candidates = (18..=19).flat_map(|b| (1..=250).map(move |c| [198, b, c]));
        // Each process starts at another subnet, so that an address is not reused for another machine right after its last use.
        let begin = (process::id() as usize * 7) % 500;
        let subnet =
            candidates.cycle().skip(begin).take(500).find(|[a, b, c]| !used.contains(&format!("inet {a}.{b}.{c}.")));
        let Some(subnet) = subnet else { bail!("all subnets of 198.18.0.0/15 are in use on this machine") };
        let [a, b, c] = subnet;
        call("ip", ["link", "add", "name", &self.bridge, "type", "bridge"])?;
        call("ip", ["address", "add", &format!("{a}.{b}.{c}.1/24"), "dev", &self.bridge])?;
        call("ip", ["link", "set", &self.bridge, "up"])?;
        Ok(subnet)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if thread::panicking() || env::var_os("FLEETWRIGHT_KEEP").is_some() {
            let _ = fs::write(self.folder.join("keep"), "");
            eprintln!("lab: the hosts' logs are in {}", self.folder.display());
        }
        let keeper = self.keeper.get_mut().unwrap_or_else(|broken| broken.into_inner());
        drop(keeper.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(15);
        while Instant::now() < deadline {
            if !matches!(keeper.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
}

/// Generates an ed25519 key pair at this path.
pub(crate) fn keygen(path: &Path, comment: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    let path = path.to_string_lossy();
    call("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", &path]).map(drop)
}
